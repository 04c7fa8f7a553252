//! Keep-alive: how many requests the generator sends on one connection.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bounds::KEEPALIVE;

/// What the generator does with a connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeepAlive {
    /// Keep it as long as the server does.
    On,
    /// A new connection for each request; the request says `Connection: close`.
    Off,
    /// At most this many requests on a connection.
    Requests(u32),
}

impl FromStr for KeepAlive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(KeepAlive::On),
            "off" | "1" => Ok(KeepAlive::Off),
            n => match n.parse::<u32>() {
                Ok(n) if n > 1 && KEEPALIVE.holds(f64::from(n)) => Ok(KeepAlive::Requests(n)),
                _ => Err(format!(
                    "'{text}' is not on, off or a number of requests a connection; {}",
                    KEEPALIVE.error(text)
                )),
            },
        }
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepAlive::On => f.write_str("on"),
            KeepAlive::Off => f.write_str("off"),
            KeepAlive::Requests(n) => write!(f, "{n}"),
        }
    }
}

impl TryFrom<String> for KeepAlive {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<KeepAlive> for String {
    fn from(k: KeepAlive) -> String {
        k.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_reads_what_it_prints() {
        for k in [KeepAlive::On, KeepAlive::Off, KeepAlive::Requests(7)] {
            assert_eq!(k.to_string().parse::<KeepAlive>(), Ok(k));
        }
        assert!("0".parse::<KeepAlive>().is_err() && "4000000000".parse::<KeepAlive>().is_err());
    }
}
