//! Where a server reports its own time per request.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::request::check_header;

/// The source of the server's time: header fields of the answer, or the server's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ServerTimeFrom {
    /// All header fields that lastdrop knows.
    Known,
    /// One header field by name; `unit` applies to numbers without a unit.
    Field { name: String, unit: TimeUnit },
    /// The server's log, joined by an id that each request carries. Without a format lastdrop recognises it.
    Log { file: PathBuf, format: Option<String> },
}

/// The request header that carries the id.
pub const REQUEST_ID: &str = "X-Request-Id";
/// The request header that names a trace, see <https://www.w3.org/TR/trace-context/>.
pub const TRACEPARENT: &str = "traceparent";

impl ServerTimeFrom {
    /// Returns the same source with the log's path relative to a folder.
    #[must_use]
    pub fn seen_from(self, folder: &Path) -> ServerTimeFrom {
        match self {
            ServerTimeFrom::Log { file, format } => ServerTimeFrom::Log { file: folder.join(file), format },
            other => other,
        }
    }

    /// Returns true if the source is a log.
    #[must_use]
    pub fn is_log(&self) -> bool {
        matches!(self, ServerTimeFrom::Log { .. })
    }
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    Seconds,
    Milliseconds,
    Microseconds,
    /// Seconds if the number has a decimal point, otherwise microseconds.
    AsWritten,
}

const UNITS: [(&str, TimeUnit); 3] =
    [("s", TimeUnit::Seconds), ("ms", TimeUnit::Milliseconds), ("us", TimeUnit::Microseconds)];

impl FromStr for ServerTimeFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' does not say where the server's time is; write auto, header:X-Runtime, header:NAME:s (s, ms, us), log:FILE or \
                 log:FILE,FORMAT"
            )
        };
        if let Some(log) = text.strip_prefix("log:") {
            let (file, format) = log.split_once(',').map_or((log, None), |(file, format)| (file, Some(format.trim())));
            if file.is_empty() || format.is_some_and(str::is_empty) {
                return Err(wrong());
            }
            return Ok(ServerTimeFrom::Log { file: file.into(), format: format.map(Into::into) });
        }
        if text == "auto" {
            return Ok(ServerTimeFrom::Known);
        }
        let field = text.strip_prefix("header:").ok_or_else(wrong)?;
        let (name, unit) = match field.split_once(':') {
            None => (field, TimeUnit::AsWritten),
            Some((name, word)) => (name, UNITS.iter().find(|(w, _)| *w == word).ok_or_else(wrong)?.1),
        };
        check_header(name, "")?;
        Ok(ServerTimeFrom::Field { name: name.into(), unit })
    }
}

impl fmt::Display for ServerTimeFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerTimeFrom::Known => f.write_str("auto"),
            ServerTimeFrom::Field { name, unit } => {
                write!(f, "header:{name}")?;
                match UNITS.iter().find(|(_, u)| u == unit) {
                    Some((word, _)) => write!(f, ":{word}"),
                    None => Ok(()),
                }
            }
            ServerTimeFrom::Log { file, format: None } => write!(f, "log:{}", file.display()),
            ServerTimeFrom::Log { file, format: Some(format) } => write!(f, "log:{},{format}", file.display()),
        }
    }
}

impl TryFrom<String> for ServerTimeFrom {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ServerTimeFrom> for String {
    fn from(from: ServerTimeFrom) -> String {
        from.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_it_is_read() {
        for text in [
            "auto",
            "header:X-Runtime",
            "header:X-Mine:ms",
            "header:Server-Timing",
            "log:/var/log/access.log",
            "log:a.log,json",
            "log:a.log,%h %t \"%r\" %>s %b %D, %{X-Request-Id}i",
        ] {
            assert_eq!(text.parse::<ServerTimeFrom>().expect("valid").to_string(), text);
        }
        for wrong in ["", "header:", "header:a b", "header:X:h", "X-Runtime", "log", "log:", "log:,json", "log:a.log, "]
        {
            assert!(wrong.parse::<ServerTimeFrom>().is_err(), "{wrong}");
        }
    }
}
