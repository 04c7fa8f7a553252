//! Decides which requests are served.
//!
//! The token in the printed URL is exchanged for a session cookie. Scripts cannot read the cookie, and pages
//! of other sites do not send it. But pages from other ports of this machine do, because browsers treat all
//! ports of a host as one site. And an attacker may point the name of another site at this machine. So the
//! name in `Host` must be one of ours, and the headers that name the requesting page (`Origin`,
//! `Sec-Fetch-Site`) must name ours. A request that changes something also needs a key that only our forms
//! contain.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use rustls::crypto::SecureRandom;
use subtle::ConstantTimeEq as _;

use crate::request::{Request, value};

/// A secret text of 256 random bits.
#[derive(Clone)]
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// # Errors
    /// If the system provides no random bytes.
    pub fn new(random: &dyn SecureRandom) -> Result<Secret, rustls::Error> {
        let mut bytes = [0; 32];
        random.fill(&mut bytes)?;
        Ok(Secret(BASE64.encode(bytes)))
    }

    /// Compares in a time that does not depend on where the texts differ.
    pub fn is(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

/// The secrets and names that a request is checked against.
#[derive(Debug)]
pub struct Authenticator {
    pub token: Secret,
    session: Secret,
    /// The key in our forms.
    pub key: Secret,
    pub address: SocketAddr,
    /// Allowed host names in lower case, besides IP addresses.
    pub names: Vec<String>,
    pub tls: bool,
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// It has the token, and gets this cookie.
    Exchange(String),
    In,
    /// It gets an empty response.
    Refused,
}

impl Authenticator {
    /// # Errors
    /// If the system provides no random bytes.
    pub fn new(address: SocketAddr, names: Vec<String>, tls: bool) -> Result<Authenticator, rustls::Error> {
        let provider = rustls::crypto::ring::default_provider();
        let secret = || Secret::new(provider.secure_random);
        Ok(Authenticator { token: secret()?, session: secret()?, key: secret()?, address, names, tls })
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// All ports of a host share cookies, so the name contains the port.
    fn cookie_name(&self) -> String {
        format!("lastdrop-{}", self.address.port())
    }

    /// The URL with the token.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        let host = match self.names.iter().find(|name| *name != "localhost") {
            Some(name) => name.clone(),
            None if ip.is_unspecified() => "localhost".into(),
            None => SocketAddr::new(ip, 0).to_string().trim_end_matches(":0").to_string(),
        };
        format!("{}://{host}{}/?token={}", self.scheme(), self.port(), self.token.text())
    }

    /// The port as it follows a host name.
    fn port(&self) -> String {
        match (self.address.port(), self.tls) {
            (80, false) | (443, true) => String::new(),
            (port, _) => format!(":{port}"),
        }
    }

    /// Returns whether the host is one of ours; `local` is the address that the client connected to.
    fn is_our_host(&self, host: &str, local: IpAddr) -> bool {
        let Some(name) = host.strip_suffix(&self.port()) else { return false };
        let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
        match bare.unwrap_or(name).parse::<IpAddr>() {
            // A host given as a number cannot be a name that an attacker controls.
            Ok(ip) => ip == local.to_canonical() && bare.is_some() == ip.is_ipv6(),
            Err(_) => self.names.iter().any(|own| own == name),
        }
    }

    /// Decides about a request that came to this local address.
    pub fn enter(&self, request: &Request, local: IpAddr) -> AccessDecision {
        let host = request.field("host").unwrap_or_default().to_ascii_lowercase();
        if !self.is_our_host(&host, local) {
            return AccessDecision::Refused;
        }
        if let Some(token) = request.asked("token") {
            let right = request.path == "/" && request.method == "GET" && self.token.is(token);
            return if right { AccessDecision::Exchange(self.cookie()) } else { AccessDecision::Refused };
        }
        let changes = !["GET", "HEAD"].contains(&request.method.as_str());
        if self.has_session(request) && self.is_for_us(request, &host, changes) && (!changes || self.has_key(request)) {
            AccessDecision::In
        } else {
            AccessDecision::Refused
        }
    }

    fn cookie(&self) -> String {
        let secure = if self.tls { "; Secure" } else { "" };
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", self.cookie_name(), self.session.text())
    }

    fn has_session(&self, request: &Request) -> bool {
        let name = self.cookie_name();
        let cookies = request.fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case("cookie"));
        cookies
            .filter_map(|(_, value)| str::from_utf8(value).ok())
            .flat_map(|value| value.split(';'))
            .any(|cookie| cookie.trim().split_once('=').is_some_and(|(n, value)| n == name && self.session.is(value)))
    }

    /// Returns whether the request comes from one of our pages, or directly from the user.
    fn is_for_us(&self, request: &Request, host: &str, strict: bool) -> bool {
        let ours = format!("{}://{host}", self.scheme());
        let site = request.field("sec-fetch-site");
        let own_site = site == Some("same-origin");
        let is_site_good = match site {
            Some(site) => site == "same-origin" || site == "none" && !strict,
            None => !request.has("sec-fetch-site"),
        };
        let is_origin_good = match request.field("origin") {
            Some(origin) if origin.eq_ignore_ascii_case(&ours) => true,
            // Our forms send this under no-referrer; then the browser itself must confirm that the page is
            // ours.
            Some("null") => own_site,
            Some(_) => false,
            None => !request.has("origin") && (!strict || own_site && request.method == "GET"),
        };
        is_site_good && is_origin_good
    }

    /// An event stream has no end, so the request must come from one of our pages.
    pub fn may_follow(&self, request: &Request) -> bool {
        let host = request.field("host").unwrap_or_default().to_ascii_lowercase();
        self.is_for_us(request, &host, true)
    }

    fn has_key(&self, request: &Request) -> bool {
        value(&request.form(), "key").is_some_and(|key| self.key.is(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn authenticator() -> Authenticator {
        let names = vec!["localhost".into()];
        Authenticator::new("127.0.0.1:8080".parse().expect("an address"), names, false).expect("random bytes")
    }

    fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Request {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Request {
            method: method.into(),
            path: path.into(),
            query: lastdrop_http::form::fields(query),
            fields: fields.iter().map(|(n, v)| (n.to_string(), v.as_bytes().to_vec())).collect(),
            ..Request::default()
        }
    }

    const HOST: (&str, &str) = ("Host", "127.0.0.1:8080");

    #[test]
    fn the_token_lets_in_by_the_names_of_the_server_alone() {
        let authenticator = authenticator();
        let path = format!("/?token={}", authenticator.token.text());
        for (host, right) in [
            ("127.0.0.1:8080", true),
            ("LocalHost:8080", true),
            ("127.0.0.1", false),
            ("127.0.0.1:8081", false),
            ("127.0.0.2:8080", false),
            ("evil.example:8080", false),
            ("[::1]:8080", false),
            ("[127.0.0.1]:8080", false),
            ("", false),
        ] {
            let entry = authenticator.enter(&request("GET", &path, &[("Host", host)]), LOCAL);
            assert_eq!(matches!(entry, AccessDecision::Exchange(_)), right, "{host}");
        }
        let refused = |method, path: &str, fields: &[_]| {
            assert_eq!(
                authenticator.enter(&request(method, path, fields), LOCAL),
                AccessDecision::Refused,
                "{method} {path} {fields:?}"
            );
        };
        refused("GET", "/?token=", &[HOST]);
        refused("GET", "/?token=x", &[HOST]);
        refused("GET", &format!("{path}x"), &[HOST]);
        refused("GET", &path[..path.len() - 1], &[HOST]);
        refused("POST", &path, &[HOST]);
        refused("GET", &path.replace('/', "/run/a"), &[HOST]);
        refused("GET", &path, &[HOST, HOST]);
        refused("GET", &path, &[]);
        refused("GET", "/", &[HOST]);
    }

    #[test]
    fn a_session_is_of_use_to_our_own_pages_alone() {
        let authenticator = authenticator();
        let cookie = authenticator.cookie();
        assert!(cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains("Secure"));
        let session = format!("a=b; {}", cookie.split(';').next().expect("a cookie"));
        let with = |method: &str, more: &[(&str, &str)], body: &str| {
            let fields = [&[HOST, ("Cookie", session.as_str())], more].concat();
            let request = Request { body: body.into(), ..request(method, "/", &fields) };
            (authenticator.enter(&request, LOCAL) == AccessDecision::In, authenticator.may_follow(&request))
        };
        let (ours, same) = (("Origin", "http://127.0.0.1:8080"), ("Sec-Fetch-Site", "same-origin"));
        assert_eq!(with("GET", &[], ""), (true, false), "curl, and no news for it");
        assert_eq!(with("GET", &[("Sec-Fetch-Site", "none")], ""), (true, false), "an address that was typed");
        assert_eq!(with("GET", &[same], ""), (true, true));
        assert_eq!(with("GET", &[ours], ""), (true, true));
        for others in [
            ("Origin", "http://127.0.0.1:8081"),
            ("Origin", "https://127.0.0.1:8080"),
            ("Origin", "http://localhost:8080"),
            ("Origin", "null"),
            ("Origin", ""),
            ("Sec-Fetch-Site", "same-site"),
            ("Sec-Fetch-Site", "cross-site"),
        ] {
            assert_eq!(with("GET", &[others], ""), (false, false), "{others:?}");
        }
        let key = format!("key={}", authenticator.key.text());
        assert!(with("POST", &[ours], &key).0);
        assert!(with("POST", &[ours, same], &key).0);
        assert!(with("POST", &[("Origin", "null"), same], &key).0, "a form without scripts");
        for (fields, body) in [
            (vec![], key.as_str()),
            (vec![same], &key),
            (vec![("Origin", "null")], &key),
            (vec![("Origin", "null"), ("Sec-Fetch-Site", "cross-site")], &key),
            (vec![ours, ("Sec-Fetch-Site", "same-site")], &key),
            (vec![ours, ours], &key),
            (vec![ours], "key="),
            (vec![ours], ""),
        ] {
            assert!(!with("POST", &fields, body).0, "{fields:?} {body}");
        }
    }

    #[test]
    fn its_url_is_one_of_its_names() {
        let url = |address: &str, names: &[&str], tls| {
            let names = names.iter().map(ToString::to_string).collect();
            let authenticator =
                Authenticator::new(address.parse().expect("an address"), names, tls).expect("random bytes");
            authenticator.url().split("/?token=").next().unwrap_or_default().to_string()
        };
        assert_eq!(url("127.0.0.1:8080", &["localhost"], false), "http://127.0.0.1:8080");
        assert_eq!(url("[::1]:80", &["localhost"], false), "http://[::1]");
        assert_eq!(url("0.0.0.0:443", &["localhost"], true), "https://localhost");
        assert_eq!(url("0.0.0.0:8443", &["localhost", "box.lan"], true), "https://box.lan:8443");
    }
}
