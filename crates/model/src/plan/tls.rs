//! TLS of connections: which certificates are trusted, and which one lastdrop presents.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// TLS, for https URLs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsOptions {
    /// Accept any certificate.
    pub insecure: bool,
    /// Certificates to trust in addition to the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate and its key.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Server name to request and verify instead of the host of the URL.
    pub server_name: Option<String>,
    /// The only version to allow: `1.2` or `1.3`.
    pub version: Option<String>,
    pub resumption: bool,
    /// Do not send the server's name in the handshake.
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
