//! Where connections go: names (resolved again from time to time), unix sockets, proxies.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use lastdrop_http::request::{RequestBuilder, write_field};
use lastdrop_model::Url;
use lastdrop_model::plan::Network;

use crate::LoadError;
use crate::part::AllowedNetworks;

/// An address that a socket can connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(Arc<Path>),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A server under load: an origin and the addresses behind it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Value of the Host header.
    pub authority: String,
    /// Scheme and authority.
    pub origin: String,
    pub addresses: Vec<Address>,
    /// The name behind `addresses` that is resolved again: the host's, or the proxy's.
    pub name: Option<(String, u16)>,
    /// The CONNECT request that opens a tunnel through a proxy; it has to be answered 2xx.
    pub connect_request: Option<Arc<[u8]>>,
    /// Requests carry the whole URL, for a proxy.
    pub absolute: bool,
    /// The Proxy-Authorization value, if the proxy needs one. It is for the proxy alone. With `absolute` it is in each
    /// request, and the proxy removes it; otherwise it is in `connect_request`.
    pub proxy_authorization: Option<Arc<str>>,
    /// Index of the next address to use.
    pub turn: usize,
}

impl Endpoint {
    /// # Errors
    /// The name does not resolve, or leads to where connections may not go.
    pub fn new(url: &Url, network: &Network, allow: Option<&AllowedNetworks>) -> Result<Endpoint, LoadError> {
        let (name, addresses) = if let Some(path) = &network.unix_socket {
            let address = Address::Unix(path.as_path().into());
            check_allowed(allow, &url.origin(), &address)?;
            (None, vec![address])
        } else if let Some(to) = network.connect_to.as_ref().filter(|to| to.matches(url)) {
            let address = Address::Tcp(to.address);
            check_allowed(allow, &url.origin(), &address)?;
            (None, vec![address])
        } else {
            let (host, port) = match &network.proxy {
                Some(proxy) => (proxy.host.clone(), proxy.port),
                None => (url.host.clone(), url.port),
            };
            let addresses = resolve_name(&host, port, network.family, true, allow)?;
            let literal = host.parse::<IpAddr>().is_ok();
            ((!literal).then_some((host, port)), addresses.into_iter().map(Address::Tcp).collect())
        };
        let tunnel = network.proxy.as_ref().filter(|p| p.tunnel || url.tls);
        Ok(Endpoint {
            tls: url.tls,
            host: url.host.clone(),
            port: url.port,
            authority: url.authority(),
            origin: url.origin(),
            addresses,
            name,
            connect_request: tunnel.map(|p| connect_request(url, p.credentials.as_deref()).into()),
            absolute: network.proxy.is_some() && tunnel.is_none(),
            proxy_authorization: network.proxy.as_ref().and_then(|p| p.credentials.as_deref()).map(|c| basic(c).into()),
            turn: 0,
        })
    }

    /// Another origin on the same host, for redirects: same addresses, another port, or TLS where there was none.
    #[must_use]
    pub fn sibling(&self, url: &Url, network: &Network) -> Endpoint {
        let mut other = self.clone();
        other.tls = url.tls;
        other.port = url.port;
        other.authority = url.authority();
        other.origin = url.origin();
        match &network.proxy {
            Some(proxy) => {
                let tunnel = proxy.tunnel || url.tls;
                other.connect_request = tunnel.then(|| connect_request(url, proxy.credentials.as_deref()).into());
                other.absolute = !tunnel;
            }
            None => {
                for address in &mut other.addresses {
                    if let Address::Tcp(a) = address {
                        a.set_port(url.port);
                    }
                }
                if let Some((_, port)) = &mut other.name {
                    *port = url.port;
                }
            }
        }
        other
    }

    /// Returns the next address to connect to, in turn.
    pub fn next_address(&mut self) -> Address {
        let address = self.addresses[self.turn % self.addresses.len()].clone();
        self.turn = self.turn.wrapping_add(1);
        address
    }
}

fn connect_request(url: &Url, credentials: Option<&str>) -> Vec<u8> {
    let target = format!("{}:{}", url.bracketed_host(), url.port);
    let builder =
        RequestBuilder { method: "CONNECT", target: &target, host: &target, http10: false, close: false, extra: &[] };
    let mut bytes = builder.head();
    if let Some(value) = credentials.map(basic) {
        write_field(&mut bytes, "Proxy-Authorization", value.as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// The value of an Authorization header for `user:password`.
#[must_use]
pub fn basic(credentials: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(credentials))
}

/// Returns the addresses of a name. If it has both families (localhost often is ::1 and 127.0.0.1), only those of the
/// family that first accepts a connection. A name with one family is not tried, so that the server sees nothing but the
/// load.
fn resolve_name(
    host: &str,
    port: u16,
    family: Option<u8>,
    try_them: bool,
    allow: Option<&AllowedNetworks>,
) -> Result<Vec<SocketAddr>, LoadError> {
    let error = |source| LoadError::Resolve { host: host.to_string(), source };
    let mut all = addresses(host, port).map_err(error)?;
    all.dedup();
    if let Some(family) = family {
        all.retain(|a| a.is_ipv4() == (family == 4));
    }
    let none = || error(io::Error::new(io::ErrorKind::NotFound, "it has no address"));
    let first = *all.first().ok_or_else(none)?;
    // Check before any of them is tried.
    all.iter().try_for_each(|a| check_allowed(allow, host, &Address::Tcp(*a)))?;
    if all.iter().any(|a| a.is_ipv4() != first.is_ipv4()) && try_them {
        let v4 = answers_by_ipv4(host, port, &all).unwrap_or(first.is_ipv4());
        all.retain(|a| a.is_ipv4() == v4);
    }
    Ok(all)
}

fn check_allowed(allow: Option<&AllowedNetworks>, what: &str, address: &Address) -> Result<(), LoadError> {
    match allow {
        Some(allow) if !allow.allows(address) => {
            Err(LoadError::NotAllowed { what: what.to_string(), address: address.to_string() })
        }
        _ => Ok(()),
    }
}

/// Resolves a name through the system. `localhost` is loopback even if nothing defines it (a root without /etc/hosts
/// and name server), as RFC 6761, 6.3 requires.
fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match (host, port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(_) if host.eq_ignore_ascii_case("localhost") => {
            let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
            Ok(loopback.map(|ip| SocketAddr::new(ip, port)).to_vec())
        }
        Err(e) => Err(e),
    }
}

/// Whether IPv4 is the family by which a name with both accepts a connection; `None` if nothing answers. Each try looks
/// like a foreign client to the server, so the result holds for the life of this process.
fn answers_by_ipv4(host: &str, port: u16, all: &[SocketAddr]) -> Option<bool> {
    static KNOWN: Mutex<BTreeMap<(String, u16), bool>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(v4) = known.get(&(host.to_string(), port)) {
        return Some(*v4);
    }
    let answering = all.iter().find(|a| TcpStream::connect_timeout(a, Duration::from_secs(1)).is_ok())?;
    known.insert((host.to_string(), port), answering.is_ipv4());
    Some(answering.is_ipv4())
}

/// Returns the first address that load on a URL goes to.
///
/// # Errors
/// The name does not resolve.
pub fn resolve(url: &Url) -> Result<SocketAddr, LoadError> {
    Ok(resolve_name(&url.host, url.port, None, true, None)?[0])
}

/// The current addresses, shared by all threads of a run.
#[derive(Debug, Default)]
pub struct Directory {
    version: AtomicU64,
    names: Mutex<Vec<(String, u16, Vec<SocketAddr>)>>,
}

impl Directory {
    /// Resolves every name of `endpoints` again for [`Directory::news`].
    pub fn refresh(&self, endpoints: &[Endpoint], family: Option<u8>) {
        let mut fresh = Vec::new();
        for endpoint in endpoints {
            let Some((host, port)) = &endpoint.name else { continue };
            let v4 = endpoint.addresses.iter().any(|a| matches!(a, Address::Tcp(SocketAddr::V4(_))));
            // A name that does not resolve now keeps its old addresses.
            if let Ok(mut found) = resolve_name(host, *port, family, false, None) {
                found.retain(|a| a.is_ipv4() == v4);
                if !found.is_empty() {
                    fresh.push((host.clone(), *port, found));
                }
            }
        }
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Updates `endpoints` with everything new since version `seen`.
    pub fn news(&self, seen: &mut u64, endpoints: &mut [Endpoint]) {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen {
            return;
        }
        *seen = version;
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for endpoint in endpoints {
            if let Some((host, port)) = &endpoint.name
                && let Some((_, _, found)) = names.iter().find(|(h, p, _)| h == host && p == port)
            {
                endpoint.addresses = found.iter().copied().map(Address::Tcp).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(network: &Network) -> Endpoint {
        Endpoint::new(&"https://127.0.0.1:8443/".parse().expect("valid"), network, None).expect("an address")
    }

    #[test]
    fn a_server_sees_one_stranger_however_often_its_name_is_resolved() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
        listener.set_nonblocking(true).expect("set");
        let port = listener.local_addr().expect("its address").port();
        let all = [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))];
        assert_eq!([(); 3].map(|()| answers_by_ipv4("a-name-of-both", port, &all)), [Some(true); 3]);
        let strangers = std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(strangers, 1);
    }

    #[test]
    fn https_through_a_proxy_is_a_tunnel() {
        let network =
            Network { proxy: Some("http://a:b@127.0.0.1:3128".parse().expect("valid")), ..Network::default() };
        let e = endpoint(&network);
        assert_eq!(e.addresses, [Address::Tcp("127.0.0.1:3128".parse().expect("valid"))]);
        let connect = String::from_utf8(e.connect_request.expect("a tunnel").to_vec()).expect("text");
        assert!(connect.starts_with("CONNECT 127.0.0.1:8443 HTTP/1.1\r\n"), "{connect}");
        assert!(connect.contains("Proxy-Authorization: Basic YTpi\r\n"), "{connect}");
        assert!(!e.absolute);
        let plain = Endpoint::new(&"http://127.0.0.1/".parse().expect("valid"), &network, None).expect("an address");
        assert!(plain.absolute && plain.connect_request.is_none());
    }

    #[test]
    fn names_are_resolved_again() {
        let url = "http://localhost:81/".parse().expect("valid");
        let mut endpoints =
            vec![Endpoint::new(&url, &Network { family: Some(4), ..Network::default() }, None).expect("localhost")];
        let real = endpoints[0].addresses.clone();
        endpoints[0].addresses = vec![Address::Tcp("127.9.9.9:81".parse().expect("valid"))];
        let (directory, mut seen) = (Directory::default(), 0);
        directory.news(&mut seen, &mut endpoints);
        assert_ne!(endpoints[0].addresses, real, "nothing is new yet");
        directory.refresh(&endpoints, Some(4));
        directory.news(&mut seen, &mut endpoints);
        assert_eq!((&endpoints[0].addresses, seen), (&real, 1));
    }

    #[test]
    fn addresses_are_used_in_turn() {
        let mut e = endpoint(&Network::default());
        let other = Address::Tcp("127.0.0.2:8443".parse().expect("valid"));
        e.addresses.push(other.clone());
        let used = [e.next_address(), e.next_address(), e.next_address()];
        assert_eq!(used[1], other);
        assert_eq!(used[0], used[2]);
    }
}
