//! A TLS server with a certificate of its own.

use std::path::PathBuf;
use std::process::Command;

use super::servers::{Daemon, nginx};
use super::{Folder, free_port};

/// nginx with a certificate of an authority that no client knows.
pub struct TlsServer {
    pub port: u16,
    pub ca: PathBuf,
    _nginx: Daemon,
}

impl TlsServer {
    pub fn start(folder: &Folder) -> TlsServer {
        let (port, plain) = (free_port(), free_port());
        let (ca, key) = (folder.join("server.pem"), folder.join("server.key"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=test", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args([std::ffi::OsStr::new("-keyout"), key.as_os_str(), std::ffi::OsStr::new("-out"), ca.as_os_str()])
            .output()
            .expect("openssl");
        assert!(made.status.success(), "{made:?}");
        let form = "<title>A form</title><form method=post action=/send><input type=hidden name=\\\"ticket\\\" value=\\\"a1b2c3d4e5\\\"></form>";
        let site = format!(
            " default_type text/html;\n server {{ listen 127.0.0.1:{plain}; location / {{ return 200 ok; }} }}\n server {{\n  \
             listen 127.0.0.1:{port} ssl;\n  listen [::1]:{port} ssl;\n  ssl_certificate {};\n  ssl_certificate_key {};\n  \
             location /form {{ return 200 \"{form}\"; }}\n  location / {{ return 200 thanks; }}\n }}",
            ca.display(),
            key.display()
        );
        TlsServer { port, ca, _nginx: nginx(folder, &site, plain) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }
}
