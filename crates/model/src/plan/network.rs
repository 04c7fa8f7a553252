//! How connections are made: source addresses, proxy, address family, bandwidth.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::secrets;
use crate::units::serde_seconds_option;
use crate::url::{Url, UrlError};

/// A proxy: the parts of `http://user:password@host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proxy {
    pub host: String,
    pub port: u16,
    /// `user:password`.
    #[serde(default)]
    pub credentials: Option<String>,
    /// Use CONNECT for http, too; https always uses it.
    #[serde(default)]
    pub tunnel: bool,
}

impl FromStr for Proxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials.to_string()), rest),
            None => (None, rest),
        };
        let url: Url = format!("http://{rest}").parse().map_err(|e: UrlError| e.why)?;
        if url.path != "/" || text.contains("://") && !text.starts_with("http://") {
            return Err(format!("'{}' is not a proxy; write http://host:3128", secrets::url(text)));
        }
        Ok(Proxy { host: url.host, port: url.port, credentials, tunnel: false })
    }
}

/// Connections to a host and port that go to another address; requests stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectTo {
    pub host: String,
    pub port: u16,
    pub address: SocketAddr,
}

impl ConnectTo {
    #[must_use]
    pub fn matches(&self, url: &Url) -> bool {
        self.host == url.host && self.port == url.port
    }
}

/// How connections are made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Connect to this socket instead of the host of the URL.
    pub unix_socket: Option<PathBuf>,
    /// Connect elsewhere for one host and port. Not an option of the user's: lastdrop loads a second instance so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_to: Option<ConnectTo>,
    /// Addresses to connect from, in turn.
    pub sources: Vec<IpAddr>,
    pub proxy: Option<Proxy>,
    /// Use only addresses of this family: 4 or 6.
    pub family: Option<u8>,
    /// Interval after which names are resolved again.
    #[serde(with = "serde_seconds_option")]
    pub dns_refresh: Option<Duration>,
    /// Most bytes per second that each connection reads, and writes.
    pub bandwidth_bytes: Option<u64>,
    pub receive_buffer_bytes: Option<u32>,
    pub send_buffer_bytes: Option<u32>,
}
