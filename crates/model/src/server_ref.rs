//! How a server is named on the command line: `KIND[:CONFIG][@URL]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::Url;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    Apache,
    Target,
    /// These can be looked at, not tuned.
    Nginx,
    Fpm,
    /// Any process and what descends from it.
    Pid(i32),
}

impl ServerKind {
    /// Are its settings known, so that they can be changed?
    #[must_use]
    pub fn can_be_tuned(self) -> bool {
        matches!(self, ServerKind::Apache | ServerKind::Target)
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerKind::Apache => f.write_str("apache"),
            ServerKind::Target => f.write_str("target"),
            ServerKind::Nginx => f.write_str("nginx"),
            ServerKind::Fpm => f.write_str("php-fpm"),
            ServerKind::Pid(pid) => write!(f, "pid:{pid}"),
        }
    }
}

/// A server as named by the user: what software, which configuration file, where its listener and status page are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerRef {
    pub kind: ServerKind,
    pub config: Option<PathBuf>,
    pub url: Option<Url>,
}

impl FromStr for ServerRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // '@' may stand in a path; the URL is what follows the last one that is followed by a scheme.
        let (name, url) = match text.rfind("@http") {
            Some(at) => (&text[..at], Some(text[at + 1..].parse::<Url>().map_err(|e| e.to_string())?)),
            None => (text, None),
        };
        let (kind, config) = match name.split_once(':') {
            Some((kind, config)) => (kind, Some(config)),
            None => (name, None),
        };
        let kind = match kind {
            "apache" | "apache2" | "httpd" => ServerKind::Apache,
            "target" => ServerKind::Target,
            "nginx" => ServerKind::Nginx,
            "fpm" | "php-fpm" => ServerKind::Fpm,
            "pid" => {
                let pid = config.and_then(|c| c.parse::<i32>().ok()).filter(|p| *p > 0);
                let pid = pid.ok_or_else(|| format!("'{text}' has no process id after the colon: pid:1234"))?;
                return Ok(ServerRef { kind: ServerKind::Pid(pid), config: None, url });
            }
            _ => {
                return Err(format!(
                    "'{text}' does not name a server; write KIND[:CONFIG][@URL], for example apache, \
                     apache:/etc/apache2/apache2.conf, nginx, php-fpm, pid:1234 or target@http://127.0.0.1:8080/"
                ));
            }
        };
        match config {
            Some("") => Err(format!("'{text}' has no configuration file after the colon")),
            config => Ok(ServerRef { kind, config: config.map(PathBuf::from), url }),
        }
    }
}

impl fmt::Display for ServerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(config) = &self.config {
            write!(f, ":{}", config.display())?;
        }
        if let Some(url) = &self.url {
            write!(f, "@{url}")?;
        }
        Ok(())
    }
}

impl TryFrom<String> for ServerRef {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ServerRef> for String {
    fn from(r: ServerRef) -> String {
        r.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_kind_config_and_url() {
        let r: ServerRef = "apache:/etc/a@b/apache2.conf@http://127.0.0.1:81/server-status".parse().expect("valid");
        assert_eq!(r.kind, ServerKind::Apache);
        assert_eq!(r.config, Some(PathBuf::from("/etc/a@b/apache2.conf")));
        assert_eq!(r.url.as_ref().map(|u| u.port), Some(81));
        assert_eq!(r.to_string().parse::<ServerRef>(), Ok(r));
        assert_eq!("target".parse::<ServerRef>().expect("valid").config, None);
        let r: ServerRef = "pid:42".parse().expect("valid");
        assert_eq!((r.kind, r.to_string().as_str()), (ServerKind::Pid(42), "pid:42"));
    }

    #[test]
    fn a_wrong_name_says_how_to_write_it() {
        for bad in ["", "iis", "apache:", "pid", "pid:x", "apache@http://"] {
            assert!(bad.parse::<ServerRef>().is_err(), "{bad}");
        }
    }
}
