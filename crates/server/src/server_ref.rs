//! How a server is named on the command line: `KIND[:CONFIG][@URL]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use lastdrop_model::Url;

use crate::kind::{Kind, NamedBy};
use crate::kinds;

/// A server as named by the user: what software, which configuration file, where its listener and status page are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRef {
    pub kind: &'static Kind,
    pub config: Option<PathBuf>,
    /// The process, where the kind is named by one.
    pub pid: Option<i32>,
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
        let (word, after) = match name.split_once(':') {
            Some((word, after)) => (word, Some(after)),
            None => (name, None),
        };
        if let (kinds::CUSTOM, Some(file)) = (word, after) {
            return Ok(ServerRef { kind: kinds::custom(file)?, config: None, pid: None, url });
        }
        let Some(kind) = kinds::named(word) else {
            let mut error = format!(
                "'{text}' does not name a server; write KIND[:CONFIG][@URL], for example {} or apache@http://127.0.0.1:8080/",
                kinds::list_with_files(|_| true)
            );
            for trouble in kinds::troubles() {
                error.push_str(&format!("; {trouble}"));
            }
            return Err(error);
        };
        if let NamedBy::ProcessId = kind.named_by {
            let pid = after.and_then(|id| id.parse::<i32>().ok()).filter(|pid| *pid > 0);
            let pid = pid.ok_or_else(|| format!("'{text}' has no process id after the colon: pid:1234"))?;
            return Ok(ServerRef { kind, config: None, pid: Some(pid), url });
        }
        match after {
            Some(_) if kind.is_host() => Err(format!(
                "'{text}': the host has no configuration file; write host, or host@URL for the network namespace of whoever \
                 listens there"
            )),
            Some("") => Err(format!("'{text}' has no configuration file after the colon")),
            config => Ok(ServerRef { kind, config: config.map(PathBuf::from), pid: None, url }),
        }
    }
}

impl fmt::Display for ServerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    fn a_wrong_name_says_how_to_write_it() {
        for bad in ["", "iis", "apache:", "pid", "pid:x", "apache@http://", "host:", "host:7"] {
            assert!(bad.parse::<ServerRef>().is_err(), "{bad}");
        }
    }
}
