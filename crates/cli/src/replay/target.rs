//! Turns a log's entry into a request: its method, path and query, encoded so that they cannot smuggle a second request.

use std::borrow::Cow;

use lastdrop_load::redirect_target;
use lastdrop_model::Url;
use lastdrop_traffic::LogEntry;
use regex::Regex;

/// Methods that change nothing (RFC 9110, section 9.2.1).
const SAFE: [&str; 4] = ["GET", "HEAD", "OPTIONS", "TRACE"];
/// A longer word is not a method.
const LONGEST_METHOD: usize = 32;

/// How requests are changed before they are sent.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// Prefix of each path.
    pub prefix: String,
    /// Replacements in path and query, applied one after the other.
    pub rewrites: Vec<(Regex, String)>,
    /// Also send methods that may change something.
    pub unsafe_methods: bool,
    pub host: Host,
}

/// Source of the Host field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Host {
    /// The server that gets the request.
    #[default]
    Server,
    /// The host in the log, if it has one.
    Log,
    Named(String),
}

/// A request of the log in the form in which it is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct ReplayRequest {
    pub method: String,
    pub target: String,
    pub host: Option<String>,
}

/// Why a request is not sent.
#[derive(Debug, PartialEq, Eq)]
pub enum SkipReason {
    Unsafe,
    Unusable,
}

impl Targets {
    /// Returns the request of a log's entry.
    ///
    /// # Errors
    /// When it is not sent.
    pub fn read(&self, entry: &LogEntry) -> Result<ReplayRequest, SkipReason> {
        let target = entry.target().ok_or(SkipReason::Unusable)?;
        let host = match &self.host {
            Host::Server => None,
            Host::Named(name) => Some(name.clone()),
            Host::Log => entry.host().and_then(host),
        };
        // HTTP/0.9 requests and some logs have no method.
        self.make(entry.method().unwrap_or(b"GET"), &target, host)
    }

    /// Returns where a logged redirect leads, changed as targets are, and folded for comparison.
    pub fn redirect(&self, entry: &LogEntry, location: &[u8]) -> Option<String> {
        let here = Url { tls: false, host: "log".into(), port: 80, path: cleaned(&entry.target()?)? };
        let there = here.join(location).ok()?;
        let target = self.make(b"GET", there.path.as_bytes(), None).ok()?.target;
        redirect_target(&here, target.as_bytes())
    }

    fn make(&self, method: &[u8], target: &[u8], host: Option<String>) -> Result<ReplayRequest, SkipReason> {
        let method = std::str::from_utf8(method).ok().filter(|m| is_method(m)).ok_or(SkipReason::Unusable)?;
        let mut target = cleaned(target).ok_or(SkipReason::Unusable)?;
        if !self.unsafe_methods && !SAFE.contains(&method) {
            return Err(SkipReason::Unsafe);
        }
        for (from, to) in &self.rewrites {
            if let Cow::Owned(changed) = from.replace_all(&target, to.as_str()) {
                target = cleaned(changed.as_bytes()).ok_or(SkipReason::Unusable)?;
            }
        }
        Ok(ReplayRequest { method: method.into(), target: format!("{}{target}", self.prefix), host })
    }
}

fn is_method(text: &str) -> bool {
    (1..=LONGEST_METHOD).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-' || b == b'_')
}

/// The host in a log, if it is a valid host.
fn host(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b);
    (text.len() <= 255 && text.bytes().all(fits)).then(|| text.to_string())
}

/// Path and query of a target in any form; of a whole URL the part after the host. None if the target has no path.
/// Bytes that would end the line, or that a URL cannot contain, are percent-encoded.
fn cleaned(target: &[u8]) -> Option<String> {
    let starts = |scheme: &[u8]| target.len() >= scheme.len() && target[..scheme.len()].eq_ignore_ascii_case(scheme);
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| starts(scheme));
    let rest = match scheme {
        None => target,
        Some(scheme) => {
            let rest = &target[scheme.len()..];
            &rest[rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len())..]
        }
    };
    let mut out = String::with_capacity(rest.len() + 1);
    match rest.first() {
        Some(b'/') => {}
        _ if scheme.is_some() => out.push('/'),
        _ => return None,
    }
    for b in rest {
        match b {
            0x21..=0x7e if *b != b'#' => out.push(char::from(*b)),
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_any_form_become_a_path_at_the_one_server() {
        for (target, sent) in [
            (&b"/a?b=c"[..], Some("/a?b=c")),
            (b"http://evil.example/x?y", Some("/x?y")),
            (b"HTTPS://evil.example", Some("/")),
            (b"https://evil.example?q", Some("/?q")),
            (b"//evil.example/x", Some("//evil.example/x")),
            (b"/a b\r\nHost: evil\t\x00\xff", Some("/a%20b%0D%0AHost:%20evil%09%00%FF")),
            (b"/a#b", Some("/a%23b")),
            (b"*", None),
            (b"evil.example:443", None),
            (b"", None),
        ] {
            assert_eq!(cleaned(target).as_deref(), sent);
        }
    }

    #[test]
    fn what_may_change_something_is_sent_only_when_asked_for() {
        let mut targets = Targets::default();
        let make = |targets: &Targets, method: &[u8]| targets.make(method, b"/", None).map(|s| s.method);
        assert_eq!(make(&targets, b"HEAD"), Ok("HEAD".into()));
        for method in [&b"POST"[..], b"DELETE", b"PROPFIND"] {
            assert_eq!(make(&targets, method), Err(SkipReason::Unsafe));
        }
        targets.unsafe_methods = true;
        assert_eq!(make(&targets, b"POST"), Ok("POST".into()));
        for method in [&b""[..], b"GE T", b"G\r\nX", b"\x16\x03", &[b'A'; 100]] {
            assert_eq!(make(&targets, method), Err(SkipReason::Unusable));
        }
    }

    #[test]
    fn paths_are_rewritten_in_turn() {
        let rule = |from: &str, to: &str| (Regex::new(from).expect("valid"), to.to_string());
        let targets = Targets {
            prefix: "/app".into(),
            rewrites: vec![rule("^/old/", "/new/"), rule(r"id=(\d+)", "key=$1 x")],
            ..Targets::default()
        };
        assert_eq!(targets.make(b"GET", b"/old/a?id=7", None).map(|s| s.target), Ok("/app/new/a?key=7%20x".into()));
        let gone = Targets { rewrites: vec![rule("^.*$", "gone")], ..Targets::default() };
        assert_eq!(gone.make(b"GET", b"/a", None), Err(SkipReason::Unusable));
    }

    #[test]
    fn a_logged_redirect_is_changed_as_the_targets_are() {
        let format: lastdrop_traffic::Format = r#"%t "%r" %>s %{Location}o"#.parse().expect("valid");
        let log = tempfile::NamedTempFile::new().expect("a file");
        let line = |location: &str| format!("[10/Oct/2000:13:55:36 +0000] \"GET /old/cart HTTP/1.1\" 302 {location}\n");
        let text = ["https://www.example.com/old/item/17?from=cart", "item/18", "-"].map(line).concat();
        std::fs::write(log.path(), text).expect("written");
        let options = lastdrop_traffic::LogOptions { format: Some(format), ..lastdrop_traffic::LogOptions::default() };
        let mut entries = lastdrop_traffic::LogEntries::open(&[log.path().into()], &options).expect("a log");
        let rule = Regex::new("^/old/").expect("valid");
        let targets = Targets { prefix: "/app".into(), rewrites: vec![(rule, "/new/".into())], ..Targets::default() };
        let mut seen = Vec::new();
        while let Some(entry) = entries.next() {
            seen.push(entry.location().and_then(|location| targets.redirect(entry, location)));
        }
        assert_eq!(seen, [Some("/app/new/item/{n}?from".into()), Some("/app/new/item/{n}".into()), None]);
    }

    #[test]
    fn a_host_of_a_log_is_a_host_or_nothing() {
        assert_eq!(host(b"www.example.com:8080"), Some("www.example.com:8080".into()));
        for bad in [&b"a\r\nX: y"[..], b"a b", b"\xff", b"a/b"] {
            assert_eq!(host(bad), None);
        }
    }
}
