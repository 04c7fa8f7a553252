//! URLs that can be loaded.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where requests go: an absolute http or https URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Url {
    /// https.
    pub tls: bool,
    /// Host without brackets: a name, an IPv4 or an IPv6 address.
    pub host: String,
    pub port: u16,
    /// Path and query, starting with `/`.
    pub path: String,
}

/// A URL that cannot be used, with what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{url}' is not a URL that can be loaded: {why}")]
pub struct UrlError {
    pub url: String,
    pub why: String,
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let err = |why: &str| UrlError { url: text.to_string(), why: why.to_string() };
        let full = if text.contains("://") { text.to_string() } else { format!("http://{text}") };
        let without_fragment = full.split('#').next().unwrap_or_default();
        let uri: http::Uri = without_fragment
            .parse()
            .map_err(|e: http::uri::InvalidUri| err(&format!("{e}; write it as http://127.0.0.1:8080/path")))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(err("it must start with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| err("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(err("user and password do not belong in it; use --basic or --digest USER:PASSWORD"));
        }
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, digits)) if !digits.ends_with(']') => {
                digits.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(|| err("the port must be 1 to 65535"))?
            }
            _ => default_port(tls),
        };
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host).to_string();
        if host.is_empty() {
            return Err(err("it has no host"));
        }
        let no_address = host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err();
        if no_address || host.contains(['[', ']']) {
            return Err(err("brackets belong around an IPv6 address, as in http://[::1]:8080/"));
        }
        if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b)) {
            return Err(err("its host is not a name; names are letters, digits, hyphens and dots"));
        }
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
        Ok(Url { tls, host, port, path })
    }
}

impl Url {
    /// The value of the Host header: brackets around IPv6, the port unless it is the scheme's own.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == default_port(self.tls) { host } else { format!("{host}:{}", self.port) }
    }

    /// Scheme and authority: `https://host:8443`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }

    /// The URL that `reference` means on a page at this one (RFC 3986 section 5): a redirect's Location, a link.
    ///
    /// # Errors
    /// When that is not a URL that can be loaded.
    pub fn join(&self, reference: &str) -> Result<Url, UrlError> {
        let reference = reference.trim();
        let plain = reference.split('#').next().unwrap_or_default();
        let scheme_end =
            plain.find(':').filter(|at| plain[..*at].bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)));
        if plain.contains("://") && scheme_end.is_some() {
            return plain.parse();
        }
        if scheme_end.is_some_and(|at| !plain[at..].starts_with("://") && at > 0) {
            return Err(UrlError { url: reference.to_string(), why: "it is neither http nor https".into() });
        }
        if let Some(rest) = plain.strip_prefix("//") {
            return format!("{}://{rest}", if self.tls { "https" } else { "http" }).parse();
        }
        let own_path = self.path.split('?').next().unwrap_or("/");
        let joined = if plain.is_empty() {
            self.path.clone()
        } else if plain.starts_with('/') {
            without_dots(plain)
        } else if plain.starts_with('?') {
            format!("{own_path}{plain}")
        } else {
            without_dots(&format!("{}{plain}", &own_path[..=own_path.rfind('/').unwrap_or(0)]))
        };
        format!("{}{joined}", self.origin()).parse()
    }

    /// The same server, another path.
    #[must_use]
    pub fn with_path(&self, path: &str) -> Url {
        Url { path: path.to_string(), ..self.clone() }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

impl TryFrom<String> for Url {
    type Error = UrlError;

    fn try_from(text: String) -> Result<Self, UrlError> {
        text.parse()
    }
}

impl From<Url> for String {
    fn from(url: Url) -> String {
        url.to_string()
    }
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// Removes `.` and `..` from a path (RFC 3986 section 5.2.4), leaving the query alone.
fn without_dots(path_and_query: &str) -> String {
    let (path, query) = match path_and_query.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path_and_query, None),
    };
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    let path = format!("/{}", kept.join("/"));
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let u: Url = "http://[::1]:8080/a?b=c#d".parse().expect("valid");
        assert_eq!((u.host.as_str(), u.port, u.path.as_str()), ("::1", 8080, "/a?b=c"));
        assert_eq!(u.to_string(), "http://[::1]:8080/a?b=c");
        let u: Url = "localhost:81".parse().expect("valid");
        assert_eq!((u.host.as_str(), u.port, u.path.as_str()), ("localhost", 81, "/"));
        let u: Url = "http://h?x".parse().expect("valid");
        assert_eq!(u.path, "/?x");
    }

    #[test]
    fn wrong_urls_say_what_to_write() {
        for bad in [
            "",
            "http://",
            "ftp://x/",
            "http://h:0/",
            "http://h:99999/",
            "http://a b/",
            "http://u:p@h/",
            "mailto:x",
            "http://a[b/",
            "http://[a:b]/",
        ] {
            assert!(bad.parse::<Url>().is_err(), "{bad}");
        }
    }

    #[test]
    fn https_has_a_port_of_its_own() {
        let u: Url = "https://h/x".parse().expect("valid");
        assert_eq!((u.tls, u.port, u.authority().as_str()), (true, 443, "h"));
        assert_eq!("https://h:80/".parse::<Url>().expect("valid").to_string(), "https://h:80/");
    }

    #[test]
    fn references_are_joined_as_browsers_do() {
        let base: Url = "http://h:81/a/b/c?q".parse().expect("valid");
        for (reference, whole) in [
            ("d", "http://h:81/a/b/d"),
            ("../d?x=1", "http://h:81/a/d?x=1"),
            ("../../../d", "http://h:81/d"),
            ("./", "http://h:81/a/b/"),
            ("/e/./f/..", "http://h:81/e/"),
            ("?y", "http://h:81/a/b/c?y"),
            ("//o/p", "http://o/p"),
            ("https://o/p#f", "https://o/p"),
            ("", "http://h:81/a/b/c?q"),
            ("#top", "http://h:81/a/b/c?q"),
        ] {
            assert_eq!(base.join(reference).expect("valid").to_string(), whole, "{reference}");
        }
        assert!(base.join("mailto:x@y").is_err() && base.join("javascript:void(0)").is_err());
    }
}
