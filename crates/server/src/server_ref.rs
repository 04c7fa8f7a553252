//! Parses server names from the command line: `[NAME=][AGENT/]KIND[:CONFIG][@URL]`, and names several of them apart.
//!
//! `AGENT/KIND` is the server of that kind on the machine of a fleet's agent. `A,B/KIND` is the same server on several
//! machines; settings apply to all of them. Its name is as written, but with `+` between agents, because a comma
//! separates settings: `a+b/apache.MaxRequestWorkers`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lastdrop_model::Url;

use crate::kind::{Kind, NameSource};
use crate::kinds;

/// A server as the user names it: its software, its configuration file, and where its listener and status page are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRef {
    /// The user's name for it, which distinguishes the settings of several servers: `NAME.SETTING`.
    pub name: Option<String>,
    pub kind: &'static Kind,
    pub config: Option<PathBuf>,
    /// The process, if the kind is named by a pid.
    pub pid: Option<i32>,
    pub url: Option<Url>,
    /// The agents on whose machines it is; `None` for this machine.
    pub at: Option<RemoteLocation>,
}

/// The machines of a remote server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteLocation {
    /// At least one agent, each once.
    pub agents: Vec<String>,
    /// The default name: `a/apache`, `a+b/apache`.
    called: String,
}

impl RemoteLocation {
    fn new(agents: Vec<String>, kind: &Kind) -> RemoteLocation {
        let called = format!("{}/{}", agents.join("+"), kind.name);
        RemoteLocation { agents, called }
    }
}

impl ServerRef {
    /// Its name among several servers: the user's, otherwise that of its kind, after its agents if it is remote.
    #[must_use]
    pub fn called(&self) -> &str {
        let own = || self.at.as_ref().map_or(self.kind.name, |at| at.called.as_str());
        self.name.as_deref().unwrap_or_else(own)
    }

    /// True if it is on another machine.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.at.is_some()
    }

    /// The agents on whose machines it is.
    #[must_use]
    pub fn agents(&self) -> &[String] {
        self.at.as_ref().map_or(&[], |at| &at.agents)
    }

    /// Splits it by machine: one server on this machine, or one per agent. If the user has named it, each gets the name
    /// AGENT/NAME.
    #[must_use]
    pub fn each(&self) -> Vec<ServerRef> {
        let agents = self.agents();
        let alone = |agent: &String| ServerRef {
            name: self
                .name
                .as_ref()
                .map(|name| if agents.len() > 1 { format!("{agent}/{name}") } else { name.clone() }),
            at: Some(RemoteLocation::new(vec![agent.clone()], self.kind)),
            ..self.clone()
        };
        if agents.is_empty() { vec![self.clone()] } else { agents.iter().map(alone).collect() }
    }

    /// The same server on the machines of these agents, at least one.
    #[must_use]
    pub fn on(&self, agents: Vec<String>) -> ServerRef {
        ServerRef { at: Some(RemoteLocation::new(agents, self.kind)), ..self.clone() }
    }

    /// The same server as its agents name it, on their own machine.
    #[must_use]
    pub fn there(&self) -> ServerRef {
        ServerRef { at: None, name: None, ..self.clone() }
    }

    /// True if this name, from an agent's start, is the server that is asked for: the same kind and, if given, the same
    /// configuration.
    #[must_use]
    pub fn answers_to(&self, kind: &str, config: Option<&Path>) -> bool {
        self.kind.name == kind && (config.is_none() || self.config.as_deref() == config)
    }

    /// Prefixes a server's own name with the user's name for it.
    #[must_use]
    pub fn naming(&self, own: &str) -> String {
        self.name.as_ref().map_or_else(|| own.into(), |name| format!("{name}={own}"))
    }

    /// The same server without the user's name.
    #[must_use]
    pub fn unnamed(&self) -> ServerRef {
        ServerRef { name: None, ..self.clone() }
    }
}

/// Checks that no two servers have the same name.
///
/// # Errors
/// With the two that do, and how to name them.
pub fn check_called_apart(servers: &[ServerRef]) -> Result<(), String> {
    let twice = servers.iter().enumerate().find_map(|(i, server)| {
        let before = servers[..i].iter().find(|other| other.called() == server.called())?;
        Some((before, server))
    });
    let Some((one, other)) = twice else { return Ok(()) };
    let (first, second) = (one.unnamed(), other.unnamed());
    Err(format!(
        "two servers are called '{}': '{one}' and '{other}'; give each a name of its own: a={first} b={second}",
        one.called()
    ))
}

/// Splits off the agents: the text before the first '/', unless that belongs to a configuration's path or a URL.
fn split_agents(text: &str) -> Result<(Vec<String>, &str), String> {
    let Some((agents, server)) = text.split_once('/').filter(|(agents, _)| !agents.contains([':', '@'])) else {
        return Ok((Vec::new(), text));
    };
    let mut all: Vec<String> = Vec::new();
    for agent in agents.split(',').map(str::trim) {
        if agent.is_empty() || !agent.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            return Err(format!(
                "'{agent}' in '{text}' is no name of an agent: letters, digits, '-' and '_', for example web-1/apache, or \
                 web-1,web-2/apache for the same server on two machines"
            ));
        }
        if all.iter().any(|known| known == agent) {
            return Err(format!("'{text}' names agent {agent} twice"));
        }
        all.push(agent.into());
    }
    Ok((all, server))
}

/// Splits off the name: the text before the first '=', unless that belongs to a configuration's path or a URL.
fn split_name(text: &str) -> Result<(Option<String>, &str), String> {
    let Some((name, server)) = text.split_once('=').filter(|(name, _)| !name.contains([':', '@', '/'])) else {
        return Ok((None, text));
    };
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        return Err(format!(
            "'{name}' is no name for a server: letters, digits, '-' and '_' (its settings are NAME.SETTING), for example \
             front=nginx"
        ));
    }
    Ok((Some(name.into()), server))
}

impl FromStr for ServerRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (own_name, text) = split_name(text)?;
        let (agents, text) = split_agents(text)?;
        let at = |kind| (!agents.is_empty()).then(|| RemoteLocation::new(agents.clone(), kind));
        // A path may contain '@'; the URL begins after the last '@' that is followed by a scheme.
        let (name, url) = match text.rfind("@http") {
            Some(at) => (&text[..at], Some(text[at + 1..].parse::<Url>().map_err(|e| e.to_string())?)),
            None => (text, None),
        };
        let (word, after) = match name.split_once(':') {
            Some((word, after)) => (word, Some(after)),
            None => (name, None),
        };
        if let (kinds::CUSTOM, Some(file)) = (word, after) {
            if !agents.is_empty() {
                return Err(format!(
                    "'{text}' is on another machine, and no agent reads a file that it is told of: start the agent there with \
                     --server {text}, and write AGENT/KIND"
                ));
            }
            return Ok(ServerRef {
                name: own_name,
                kind: kinds::custom(file)?,
                config: None,
                pid: None,
                url,
                at: None,
            });
        }
        let Some(kind) = kinds::named(word) else {
            let mut error = format!(
                "'{text}' does not name a server; write [NAME=][AGENT/]KIND[:CONFIG][@URL], for example {} or apache@http://127.0.0.1:8080/",
                kinds::list_with_files(|_| true)
            );
            for trouble in kinds::troubles() {
                error.push_str(&format!("; {trouble}"));
            }
            return Err(error);
        };
        if let NameSource::ProcessId = kind.named_by {
            let pid = after.and_then(|id| id.parse::<i32>().ok()).filter(|pid| *pid > 0);
            let pid = pid.ok_or_else(|| format!("'{text}' has no process id after the colon: pid:1234"))?;
            return Ok(ServerRef { name: own_name, kind, config: None, pid: Some(pid), url, at: at(kind) });
        }
        match after {
            Some(_) if kind.is_host() => Err(format!(
                "'{text}': the host has no configuration file; write host, or host@URL for the network namespace of whoever \
                 listens there"
            )),
            Some("") => Err(format!("'{text}' has no configuration file after the colon")),
            config => {
                let config = config.map(PathBuf::from);
                Ok(ServerRef { name: own_name, kind, config, pid: None, url, at: at(kind) })
            }
        }
    }
}

impl fmt::Display for ServerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        if let Some(at) = &self.at {
            write!(f, "{}/", at.agents.join(","))?;
        }
        f.write_str(self.kind.name)?;
        if let Some(pid) = self.pid {
            write!(f, ":{pid}")?;
        }
        if let Some(config) = &self.config {
            write!(f, ":{}", config.display())?;
        }
        if let Some(url) = &self.url {
            write!(f, "@{url}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_kind_config_and_url() {
        let r: ServerRef = "apache:/etc/a@b/apache2.conf@http://127.0.0.1:81/server-status".parse().expect("valid");
        assert_eq!(r.kind.name, "apache");
        assert_eq!(r.config, Some(PathBuf::from("/etc/a@b/apache2.conf")));
        assert_eq!(r.url.as_ref().map(|u| u.port), Some(81));
        assert_eq!(r.to_string().parse::<ServerRef>(), Ok(r));
        assert_eq!("target".parse::<ServerRef>().expect("valid").config, None);
        let r: ServerRef = "pid:42".parse().expect("valid");
        assert_eq!((r.kind.name, r.pid, r.to_string().as_str()), ("pid", Some(42), "pid:42"));
    }

    #[test]
    fn a_server_may_be_called_something() {
        let r: ServerRef = "front-1=nginx:/etc/a=b.conf@http://127.0.0.1/s?a=b".parse().expect("valid");
        assert_eq!((r.called(), r.kind.name), ("front-1", "nginx"));
        assert_eq!(r.config, Some(PathBuf::from("/etc/a=b.conf")));
        assert_eq!(r.to_string().parse::<ServerRef>(), Ok(r.clone()));
        assert_eq!(r.unnamed().to_string(), "nginx:/etc/a=b.conf@http://127.0.0.1/s?a=b");
        let plain: ServerRef = "nginx:/etc/a=b.conf".parse().expect("valid");
        assert_eq!((plain.name.as_deref(), plain.called()), (None, "nginx"));
        for bad in ["=nginx", "a.b=nginx", "a b=nginx", "web=", "web=iis", "a=b=nginx"] {
            assert!(bad.parse::<ServerRef>().is_err(), "{bad}");
        }
        let error = "a.b=nginx".parse::<ServerRef>().expect_err("a point");
        assert!(error.contains("'a.b' is no name for a server") && error.contains("front=nginx"), "{error}");
    }

    #[test]
    fn a_server_may_be_on_the_machine_of_an_agent_or_of_several() {
        let r: ServerRef = "web-1/apache:/etc/a/b.conf@http://127.0.0.1/s".parse().expect("valid");
        assert_eq!((r.called(), r.kind.name, r.agents()), ("web-1/apache", "apache", &["web-1".to_string()][..]));
        assert_eq!(r.config, Some(PathBuf::from("/etc/a/b.conf")));
        assert_eq!(r.to_string().parse::<ServerRef>(), Ok(r.clone()));
        assert_eq!(r.there().to_string(), "apache:/etc/a/b.conf@http://127.0.0.1/s");
        let pair: ServerRef = "front=a, b/nginx".parse().expect("valid");
        assert_eq!((pair.called(), pair.to_string().as_str()), ("front", "front=a,b/nginx"));
        assert_eq!(pair.unnamed().called(), "a+b/nginx");
        let each: Vec<String> = pair.each().iter().map(|r| r.called().to_string()).collect();
        assert_eq!(each, ["a/front", "b/front"]);
        assert_eq!(pair.unnamed().each()[1].called(), "b/nginx");
        let here: ServerRef = "apache:/etc/a.conf".parse().expect("valid");
        assert_eq!((here.each(), here.is_elsewhere(), pair.is_elsewhere()), (vec![here.clone()], false, true));
        for bad in ["/apache", "a,/apache", "a,a/apache", "a b/apache", "a/b/apache", "a/custom:/x.toml", "a/iis"] {
            assert!(bad.parse::<ServerRef>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_agents_server_is_meant_by_its_kind_and_its_configuration() {
        let named: ServerRef = "apache:/a.conf".parse().expect("valid");
        assert!(named.answers_to("apache", None) && named.answers_to("apache", Some(Path::new("/a.conf"))));
        assert!(!named.answers_to("apache", Some(Path::new("/b.conf"))) && !named.answers_to("nginx", None));
        let bare: ServerRef = "apache".parse().expect("valid");
        assert!(bare.answers_to("apache", None) && !bare.answers_to("apache", Some(Path::new("/a.conf"))));
    }

    #[test]
    fn servers_of_one_name_are_refused_with_advice() {
        let check = |names: &[&str]| {
            let servers: Vec<ServerRef> = names.iter().map(|n| n.parse().expect("valid")).collect();
            check_called_apart(&servers)
        };
        assert_eq!(check(&["nginx", "php-fpm", "b=nginx"]), Ok(()));
        let unnamed = check(&["nginx:/a", "php-fpm", "nginx:/b"]).expect_err("two");
        assert!(
            unnamed.contains("two servers are called 'nginx'") && unnamed.contains("a=nginx:/a b=nginx:/b"),
            "{unnamed}"
        );
        assert!(check(&["w=nginx", "w=php-fpm"]).is_err() && check(&["nginx", "nginx=php-fpm"]).is_err());
    }

    #[test]
    fn a_wrong_name_says_how_to_write_it() {
        for bad in ["", "iis", "apache:", "pid", "pid:x", "apache@http://", "host:", "host:7"] {
            assert!(bad.parse::<ServerRef>().is_err(), "{bad}");
        }
    }
}
