//! From a host name to the address that is loaded.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use lastdrop_model::Url;

use crate::LoadError;

/// The address to connect to. A name with several addresses (localhost is often ::1 and 127.0.0.1) gets the first
/// that takes a connection; a single address is not tried, so that the server sees nothing but the load.
///
/// # Errors
/// When the name does not resolve.
pub fn resolve(url: &Url) -> Result<SocketAddr, LoadError> {
    let error = |source| LoadError::Resolve { host: url.host.clone(), source };
    let addresses: Vec<SocketAddr> = (url.host.as_str(), url.port).to_socket_addrs().map_err(error)?.collect();
    let first = *addresses
        .first()
        .ok_or_else(|| error(std::io::Error::new(std::io::ErrorKind::NotFound, "it has no address")))?;
    if addresses.len() > 1 {
        let answering = addresses.iter().find(|a| TcpStream::connect_timeout(a, Duration::from_secs(1)).is_ok());
        return Ok(answering.copied().unwrap_or(first));
    }
    Ok(first)
}
