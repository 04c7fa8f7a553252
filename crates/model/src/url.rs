//! URLs that lastdrop can send requests to.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::secrets;

/// The parts of an absolute http or https URL. Its text form is for people and hides the secrets of the query;
/// [`Url::in_full`] returns the whole URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Url {
    /// True for https.
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
        let err = |why: &str| UrlError { url: secrets::url(text).into_owned(), why: why.to_string() };
        let full = if text.contains("://") { text.to_string() } else { format!("http://{text}") };
        let without_fragment = full.split('#').next().unwrap_or_default();
        let uri: http::Uri = without_fragment.parse().map_err(|e: http::uri::InvalidUri| match bad_sign(text) {
            Some(why) => err(&why),
            None => err(&format!("{e}; write it as http://127.0.0.1:8080/path")),
        })?;
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
    /// Returns the host as it stands before a port: an address of IPv6 in brackets.
    #[must_use]
    pub fn bracketed_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// Returns the value of the Host header: brackets around IPv6, and the port unless it is the scheme's default.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = self.bracketed_host();
        if self.port == default_port(self.tls) { host } else { format!("{host}:{}", self.port) }
    }

    /// Returns scheme and authority: `https://host:8443`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }

    /// Resolves a reference, such as a redirect's Location or a link, against this URL (RFC 3986 section 5). Bytes that
    /// a URL may not contain are percent-encoded, as browsers do (WHATWG URL).
    ///
    /// # Errors
    /// When the result is not an http or https URL.
    pub fn join(&self, reference: impl AsRef<[u8]>) -> Result<Url, UrlError> {
        let plain = cleaned(reference.as_ref());
        let wrong = |why: &str| UrlError { url: shown(reference.as_ref()), why: why.into() };
        let absolute = |scheme: &str, rest: &str| {
            let url: Url = format!("{scheme}://{rest}").parse()?;
            let path = without_dots(&url.path);
            Ok(Url { path, ..url })
        };
        if let Some(scheme) = scheme_of(plain.as_bytes()) {
            return match plain[scheme.len() + 1..].strip_prefix("//") {
                _ if !is_http(scheme) => Err(wrong("it is neither http nor https")),
                Some(rest) => absolute(&plain[..scheme.len()].to_ascii_lowercase(), rest),
                None => Err(wrong("it has no host")),
            };
        }
        if let Some(rest) = plain.strip_prefix("//") {
            return absolute(if self.tls { "https" } else { "http" }, rest);
        }
        let own_path = self.path.split('?').next().unwrap_or("/");
        let path = if plain.is_empty() {
            self.path.clone()
        } else if plain.starts_with('/') {
            without_dots(&plain)
        } else if plain.starts_with('?') {
            format!("{own_path}{plain}")
        } else {
            without_dots(&format!("{}{plain}", &own_path[..=own_path.rfind('/').unwrap_or(0)]))
        };
        Ok(self.with_path(&path))
    }

    /// Returns the URL with the secrets of its query.
    #[must_use]
    pub fn in_full(&self) -> String {
        format!("{}{}", self.origin(), self.path)
    }

    /// Returns a URL of the same server with another path and query.
    #[must_use]
    pub fn with_path(&self, path: &str) -> Url {
        Url { path: path.to_string(), ..self.clone() }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), secrets::url(&self.path))
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
        url.in_full()
    }
}

/// Describes the first character that a URL may not contain: which it is, where, and how to write it.
fn bad_sign(text: &str) -> Option<String> {
    let is_blank = |c: char| c.is_whitespace() || c.is_control();
    let first = |is_bad: &dyn Fn(char) -> bool| text.chars().enumerate().find(|(_, c)| is_bad(*c));
    let (at, c) = first(&is_blank).or_else(|| first(&|c| !c.is_ascii() || "<>\\^`\"{}|".contains(c)))?;
    let at_host = text.split_once("://").is_some_and(|(scheme, rest)| {
        let host = scheme.chars().count() + 3;
        let length = rest.chars().take_while(|c| !matches!(c, '/' | '?' | '#')).count();
        (host..host + length).contains(&at)
    });
    let mut encoded = String::new();
    c.to_string().bytes().for_each(|b| percent(b, &mut encoded));
    let name = if c == ' ' { "a blank".into() } else { format!("'{}'", c.escape_debug()) };
    let advice = if at_host { String::new() } else { format!("; write {encoded}") };
    Some(format!("{name} (character {}) may not stand in it{advice}", at + 1))
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// Cleans a reference as browsers do. Removes the fragment, blanks around it, and line ends and tabs inside it.
/// Percent-encodes bytes that path and query may not contain, by the sets of the WHATWG URL standard for http. A `%`
/// stays, whatever follows it.
fn cleaned(reference: &[u8]) -> String {
    let blank = |b: &u8| *b <= b' ';
    let start = reference.iter().position(|b| !blank(b)).unwrap_or(reference.len());
    let end = reference.iter().rposition(|b| !blank(b)).map_or(start, |at| at + 1);
    let mut out = String::with_capacity(end - start);
    let mut in_query = false;
    for &b in &reference[start..end] {
        match b {
            b'\t' | b'\n' | b'\r' => {}
            b'#' => break,
            b'\\' if !in_query => out.push('/'),
            b'?' => {
                in_query = true;
                out.push('?');
            }
            0..=b' ' | 0x7f.. | b'"' | b'<' | b'>' => percent(b, &mut out),
            b'\'' if in_query => percent(b, &mut out),
            b'`' | b'{' | b'}' | b'^' if !in_query => percent(b, &mut out),
            b => out.push(char::from(b)),
        }
    }
    out
}

fn percent(b: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(b >> 4)]));
    out.push(char::from(DIGITS[usize::from(b & 15)]));
}

/// Returns the scheme that a reference begins with.
fn scheme_of(reference: &[u8]) -> Option<&[u8]> {
    let end = reference.iter().position(|b| !(b.is_ascii_alphanumeric() || b"+-.".contains(b)))?;
    (end > 0 && reference[end] == b':').then(|| &reference[..end])
}

fn is_http(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")
}

/// Returns true if the reference has a scheme other than http and https: `data:…`, `javascript:…`, `mailto:…`.
#[must_use]
pub fn is_of_other_scheme(reference: &[u8]) -> bool {
    scheme_of(reference.trim_ascii_start()).is_some_and(|scheme| !is_http(scheme))
}

/// Returns a reference that a server sent as text for a message.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
    secrets::url(&text).escape_debug().to_string()
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
        match dots(segment) {
            0 => kept.push(segment),
            n => {
                if n == 2 {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
        }
    }
    let path = format!("/{}", kept.join("/"));
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

/// Counts the dots of a segment that consists only of dots (`%2e` counts); returns 0 for other segments.
fn dots(segment: &str) -> usize {
    let mut rest = segment.as_bytes();
    let mut dots = 0;
    while !rest.is_empty() {
        let length = match rest {
            [b'.', ..] => 1,
            [b'%', b'2', b'e' | b'E', ..] => 3,
            _ => return 0,
        };
        rest = &rest[length..];
        dots += 1;
    }
    if dots > 2 { 0 } else { dots }
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
        for (bad, why) in [
            ("http://h/a b", "a blank (character 11) may not stand in it; write %20"),
            ("http://h/a?q=<x>", "'<' (character 14) may not stand in it; write %3C"),
            ("http://h/a\tb", "'\\t' (character 11) may not stand in it; write %09"),
            ("http://a b/", "a blank (character 9) may not stand in it"),
        ] {
            let error = bad.parse::<Url>().expect_err(bad).to_string();
            assert!(error.ends_with(why), "{error}");
        }
    }

    #[test]
    fn https_has_a_port_of_its_own() {
        let u: Url = "https://h/x".parse().expect("valid");
        assert_eq!((u.tls, u.port, u.authority().as_str()), (true, 443, "h"));
        assert_eq!("https://h:80/".parse::<Url>().expect("valid").to_string(), "https://h:80/");
    }

    #[test]
    fn people_see_no_passwords() {
        let u: Url = "http://h/a?token=x&b=1".parse().expect("valid");
        assert_eq!((u.to_string(), u.in_full()), ("http://h/a?token=***&b=1".into(), "http://h/a?token=x&b=1".into()));
        assert!(!"http://u:hidden@h/".parse::<Url>().expect_err("a login in it").to_string().contains("hidden"));
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
        for bad in ["mailto:x@y", "javascript:void(0)", "ftp://h/", "http:x", "//", "http://[", "//h:x/", "//user@h/"] {
            assert!(base.join(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_may_not_stand_in_a_url_is_encoded_as_browsers_do() {
        let base: Url = "http://h/d/p?q".parse().expect("valid");
        let cases: [(&[u8], &str); 13] = [
            (b"a b<c>.png", "/d/a%20b%3Cc%3E.png"),
            (b"/x`y^{z}\"|", "/x%60y%5E%7Bz%7D%22|"),
            (b"/x?a b<>\"'`{}^|", "/x?a%20b%3C%3E%22%27`{}^|"),
            (b"/\xff\xc3\xa4", "/%FF%C3%A4"),
            (b"/100%&%zz%20", "/100%&%zz%20"),
            (b" \n a\tb\r\nc \0", "/d/abc"),
            (b"\\x\\y?\\", "/x/y?\\"),
            (b"//h\\x", "/x"),
            (b"HTTP://h/x#y", "/x"),
            (b"a%2fb/%2E%2e/c", "/d/c"),
            (b"http://h/a/../b/.", "/b/"),
            (b"/x\x7f\x01y", "/x%7F%01y"),
            (b"?\xe9", "/d/p?%E9"),
        ];
        for (reference, path) in cases {
            let joined = base.join(reference).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((joined.host.as_str(), joined.path.as_str()), ("h", path));
        }
    }
}
