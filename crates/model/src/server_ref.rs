//! How a server is named on the command line: `KIND[:CONFIG][@URL]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::Url;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerKind {
    Apache,
    Target,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerKind::Apache => "apache",
            ServerKind::Target => "target",
        })
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
            "nginx" | "fpm" | "php-fpm" | "pid" => {
                return Err(format!(
                    "'{kind}' servers cannot be tuned yet; apache and target can. To put load on any server: lastdrop run URL"
                ));
            }
            _ => {
                return Err(format!(
                    "'{text}' does not name a server; write KIND[:CONFIG][@URL], for example apache, \
                     apache:/etc/apache2/apache2.conf or target@http://127.0.0.1:8080/"
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
    }

    #[test]
    fn a_wrong_name_says_how_to_write_it() {
        for bad in ["", "iis", "apache:", "nginx", "apache@http://"] {
            assert!(bad.parse::<ServerRef>().is_err(), "{bad}");
        }
    }
}
