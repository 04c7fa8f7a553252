//! The configuration file of nats-server, with its users and their permissions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::subjects::{COORDINATOR, JOIN, JOINER, inbox, may_publish, may_subscribe, user};
use crate::tokens::Token;

/// The contents of the configuration file.
#[derive(Debug)]
pub(super) struct Config<'a> {
    pub host: String,
    pub port: u16,
    pub folder: &'a Path,
    pub coordinator_password: String,
    pub agents_password: String,
    /// Passwords by agent name.
    pub agents: &'a BTreeMap<String, String>,
    /// Whether nats-server can flush each record to disk before acknowledging it (2.10 and later).
    pub sync_always: bool,
}

impl Config<'_> {
    pub fn text(&self) -> String {
        let path = |name: &str| quoted(&self.folder.join(name).to_string_lossy());
        let sync = if self.sync_always { "  sync_interval: always\n" } else { "" };
        let mut text = format!(
            "# Written by lastdrop fleet up; changes are lost.
server_name: lastdrop
listen: {host}
pid_file: {pid}
max_payload: 1MB
ping_interval: \"10s\"
ping_max: 2
write_deadline: \"10s\"
tls {{
  cert_file: {certificate}
  key_file: {key}
  timeout: 10
}}
jetstream {{
  store_dir: {store}
{sync}}}
",
            host = quoted(&format!("{}:{}", self.host, self.port)),
            pid = path("nats.pid"),
            certificate = path("certificate.pem"),
            key = path("key.pem"),
            store = path("jetstream"),
        );
        text.push_str(&authorization(&self.coordinator_password, Some(&self.agents_password), self.agents));
        text
    }
}

/// Returns the users and their permissions: the coordinator, the joiner if join requests are served, and the
/// agents.
fn authorization(coordinator: &str, joiner: Option<&str>, agents: &BTreeMap<String, String>) -> String {
    let mut text = format!(
        "authorization {{\n  timeout: 10\n  users: [\n    {{ user: {COORDINATOR}, password: {} }}\n",
        quoted(coordinator)
    );
    if let Some(joiner) = joiner {
        let _ = writeln!(
            text,
            "    {{ user: {JOINER}, password: {}, permissions: {{ publish: [{JOIN:?}], subscribe: [\"{}.>\"] }} }}",
            quoted(joiner),
            inbox(JOINER)
        );
    }
    for (name, password) in agents {
        let list = |subjects: &[String]| subjects.iter().map(|s| quoted(s)).collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            "    {{ user: {}, password: {}, permissions: {{ publish: [{}], subscribe: [{}], allow_responses: {{ max: 1, expires: \"10m\" }} }} }}",
            quoted(&user(name)),
            quoted(password),
            list(&may_publish(name)),
            list(&may_subscribe(name)),
        );
    }
    text.push_str("  ]\n}\n");
    text
}

/// Returns the authorization block for a nats-server that the user runs, to be included in its configuration.
/// It has users for the token's holder and for agents of these names; the agents' passwords follow from the
/// agent-token.
#[must_use]
pub fn authorization_of(token: &Token, agents: &[String]) -> String {
    let of_agents = token.agent_token();
    let agents = agents.iter().map(|name| (name.clone(), of_agents.password_of(name))).collect();
    authorization(&token.password(), None, &agents)
}

/// Quotes a string for nats-server's configuration.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_may_publish_its_own_subjects_only() {
        let agents = BTreeMap::from([("web-1".to_owned(), "secret".to_owned())]);
        let config = Config {
            host: "127.0.0.1".into(),
            port: 4222,
            folder: Path::new("/a \"b\""),
            coordinator_password: "c".into(),
            agents_password: "j".into(),
            agents: &agents,
            sync_always: true,
        };
        let text = config.text();
        assert!(text.contains(r#"store_dir: "/a \"b\"/jetstream""#) && text.contains("sync_interval: always"));
        let line = text.lines().find(|l| l.contains("agent-web-1")).expect("its user");
        assert!(line.contains(
            r#"publish: ["ld.record.*.web-1.>", "ld.answer.web-1.>", "ld.alive.web-1", "$JS.API.DIRECT.GET.LD_FILES.ld.file.>"]"#
        ));
        assert!(line.contains(r#"subscribe: ["ld.who", "ld.to.web-1.>", "_INBOX_web-1.>"]"#));
    }
}
