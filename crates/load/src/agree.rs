//! Agrees with the servers of a plan on a version of HTTP before the run (`--http auto`).
//!
//! One handshake a server, without a request and not counted, decides for the whole run: HTTP/2 if every server agrees
//! on it through ALPN, HTTP/1.1 otherwise, and in clear text. A version for each connection would mix two kinds of
//! service in one result. A connection that agrees on another version later fails.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use lastdrop_model::Url;
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{HttpOptions, Plan};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::endpoint::{Address, Endpoint};
use crate::error::LoadError;
use crate::files::Files;
use crate::protocol::agreed_version;
use crate::tls_config;
use crate::transport::describe;
use crate::transport::tls::TlsSession;

/// Longest wait for a server, or the plan's timeout if that is shorter.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a proxy's answer to CONNECT.
const MOST_HEAD_BYTES: usize = 16 * 1024;

/// Sets the version of HTTP for a plan that leaves it to the servers. Other plans stay as they are.
///
/// # Errors
/// A server cannot be reached, or the TLS handshake fails.
pub fn agree(plan: &mut Plan) -> Result<(), LoadError> {
    if plan.http.version != Version::Auto {
        return Ok(());
    }
    plan.http.agreed = Some(Version::Http11);
    let mut servers: Vec<&Url> = plan.requests.iter().map(|request| &request.url).collect();
    if servers.is_empty() {
        servers.push(&plan.url);
    }
    servers.sort_by_key(|url| url.origin());
    servers.dedup_by_key(|url| url.origin());
    if servers.iter().any(|url| !url.tls) {
        return Ok(());
    }
    let offers = HttpOptions { agreed: Some(Version::Http2), ..plan.http.clone() };
    let config = tls_config::configs(&plan.tls, &offers, 1, &Files::Disk)?.remove(0);
    let patience = if plan.timeout.is_zero() { PATIENCE } else { plan.timeout.min(PATIENCE) };
    let mut agreed = Version::Http2;
    for url in servers {
        let endpoint = Endpoint::new(url, &plan.network, None)?;
        let name = tls_config::server_name(&url.host, &plan.tls)?;
        let version = handshake(&endpoint, &config, &name, patience)
            .map_err(|what| LoadError::Agreement { origin: endpoint.origin.clone(), what })?;
        if version != Version::Http2 {
            agreed = version;
        }
    }
    plan.http.agreed = Some(agreed);
    Ok(())
}

/// Tries the addresses of a server in turn.
fn handshake(
    endpoint: &Endpoint,
    config: &Arc<ClientConfig>,
    name: &ServerName<'static>,
    patience: Duration,
) -> Result<Version, String> {
    let mut socket = Err("it has no address".to_string());
    for address in &endpoint.addresses {
        socket = connect(address, patience).map_err(|e| describe(&e));
        if socket.is_ok() {
            break;
        }
    }
    let mut socket = socket?;
    if let Some(request) = &endpoint.connect_request {
        tunnel(&mut *socket, request).map_err(|e| format!("proxy: {}", describe(&e)))?;
    }
    let mut tls = TlsSession::new(config, name.clone()).map_err(|e| format!("TLS: {e}"))?;
    let mut buffer = [0; 4096];
    while tls.handshaking() {
        tls.flush(&mut socket).map_err(|e| describe(&e))?;
        if !tls.handshaking() {
            break;
        }
        let n = match socket.read(&mut buffer) {
            Ok(0) => return Err("TLS: the server closed the connection".into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err("TLS: the server does not answer".into()),
            Err(e) => return Err(describe(&e)),
        };
        let fed = tls.feed(&buffer[..n], |_| {});
        if let Err(e) = fed {
            let _ = tls.flush(&mut socket);
            return Err(tls_config::failure(&e));
        }
    }
    let version = agreed_version(tls.agreed());
    tls.say_goodbye(&mut socket);
    Ok(version)
}

trait Socket: Read + Write {}
impl<S: Read + Write> Socket for S {}

fn connect(address: &Address, patience: Duration) -> io::Result<Box<dyn Socket>> {
    Ok(match address {
        Address::Tcp(address) => {
            let socket = TcpStream::connect_timeout(address, patience)?;
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
            Box::new(socket)
        }
        Address::Unix(path) => {
            let socket = UnixStream::connect(path)?;
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
            Box::new(socket)
        }
    })
}

/// Asks a proxy for a tunnel.
fn tunnel(socket: &mut dyn Socket, request: &[u8]) -> io::Result<()> {
    socket.write_all(request)?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MOST_HEAD_BYTES || socket.read(&mut byte)? == 0 {
            return Err(io::Error::other("it does not answer CONNECT"));
        }
        head.push(byte[0]);
    }
    let status = head.split(|b| *b == b' ').nth(1).unwrap_or_default();
    if status.first() != Some(&b'2') {
        return Err(io::Error::other(format!("it answers CONNECT with {}", String::from_utf8_lossy(status))));
    }
    Ok(())
}
