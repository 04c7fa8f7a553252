//! How TLS is spoken on connections: who is trusted, who we say we are.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// TLS, for https URLs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsOptions {
    /// Any certificate is good.
    pub insecure: bool,
    /// Certificates that are trusted besides the system's.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The name to ask for and to verify, instead of the host of the URL.
    pub server_name: Option<String>,
    /// Only this version: `1.2` or `1.3`.
    pub version: Option<String>,
    pub resumption: bool,
    /// Do not say the server's name in the handshake.
    pub no_sni: bool,
}

impl Default for TlsOptions {
    fn default() -> Self {
        TlsOptions {
            insecure: false,
            ca: None,
            certificate: None,
            key: None,
            server_name: None,
            version: None,
            resumption: true,
            no_sni: false,
        }
    }
}
