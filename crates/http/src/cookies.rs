//! The cookies of one user (RFC 6265).
//!
//! The `cookie` crate parses `Set-Cookie`. A cookie that arrives already expired is removed, as servers do to log a
//! user out. One that expires later is kept, since sessions under load are shorter than that.

use cookie::{Cookie, Expiration};

/// A server that sends more wants to fill our memory (browsers keep about as many per host).
const MOST_COOKIES: usize = 180;
const MOST_BYTES: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredCookie {
    name: String,
    value: String,
    domain: String,
    /// Only for exactly this host, not for its subdomains.
    host_only: bool,
    path: String,
    secure: bool,
}

/// A user's cookies.
#[derive(Debug, Clone, Default)]
pub struct Jar {
    kept: Vec<StoredCookie>,
}

impl Jar {
    /// Stores a `Set-Cookie` value from an answer of `host` to a request for `path` (with or without its query), over
    /// TLS or not. Ignores, as browsers do, what is not a cookie or not for this host to set.
    pub fn set(&mut self, value: &[u8], host: &str, path: &str, tls: bool, now_unix_s: i64) {
        let Ok(text) = std::str::from_utf8(value) else { return };
        if text.len() > MOST_BYTES {
            return;
        }
        let Ok(cookie) = Cookie::parse(text) else { return };
        let visible = |s: &str| s.bytes().all(|b| b > 0x20 && b != 0x7f && b != b';');
        if cookie.name().is_empty()
            || !visible(cookie.name())
            || !cookie.value().bytes().all(|b| b >= 0x20 && b != 0x7f && b != b';')
        {
            return;
        }
        let host = host.to_ascii_lowercase();
        let domain = cookie.domain().map(|d| d.trim_start_matches('.').to_ascii_lowercase()).filter(|d| !d.is_empty());
        // A domain of one word belongs to a registry (`com`): its cookie would go to every site below it.
        if domain.as_ref().is_some_and(|d| !is_under(&host, d) || !d.contains('.') && *d != host) {
            return;
        }
        let secure = cookie.secure() == Some(true);
        // An attacker on plain HTTP could forge this cookie. It must neither create nor replace a cookie for TLS alone
        // (RFC 6265bis, section 5.7).
        let replaces =
            |k: &StoredCookie| k.name == cookie.name() && (is_under(&k.domain, &host) || is_under(&host, &k.domain));
        if !tls && (secure || self.kept.iter().any(|k| k.secure && replaces(k))) {
            return;
        }
        let own_path = path.split('?').next().unwrap_or("/");
        let default_path = own_path.rfind('/').map_or("/", |at| if at == 0 { "/" } else { &own_path[..at] });
        let kept = StoredCookie {
            name: cookie.name().to_string(),
            value: cookie.value().to_string(),
            // An IP address has no subdomains.
            host_only: domain.is_none() || host.parse::<std::net::IpAddr>().is_ok(),
            domain: domain.unwrap_or(host),
            path: cookie.path().filter(|p| p.starts_with('/')).unwrap_or(default_path).to_string(),
            secure,
        };
        self.kept.retain(|k| !(k.name == kept.name && k.domain == kept.domain && k.path == kept.path));
        let over = match (cookie.max_age(), cookie.expires()) {
            (Some(age), _) => age.whole_seconds() <= 0,
            (None, Some(Expiration::DateTime(at))) => at.unix_timestamp() <= now_unix_s,
            _ => false,
        };
        if !over && self.kept.len() < MOST_COOKIES {
            self.kept.push(kept);
        }
    }

    /// Appends the value of the `Cookie` header for a request. Returns false, and appends nothing, if there is none.
    pub fn write_header(&self, host: &str, path: &str, tls: bool, out: &mut Vec<u8>) -> bool {
        let host = host.to_ascii_lowercase();
        let own_path = path.split('?').next().unwrap_or("/");
        let start = out.len();
        for k in &self.kept {
            let host_fits = if k.host_only { host == k.domain } else { is_under(&host, &k.domain) };
            if host_fits && path_fits(own_path, &k.path) && (tls || !k.secure) {
                if out.len() > start {
                    out.extend_from_slice(b"; ");
                }
                out.extend_from_slice(k.name.as_bytes());
                out.push(b'=');
                out.extend_from_slice(k.value.as_bytes());
            }
        }
        out.len() > start
    }

    pub fn clear(&mut self) {
        self.kept.clear();
    }
}

fn is_under(host: &str, domain: &str) -> bool {
    host == domain
        || host.len() > domain.len()
            && host.ends_with(domain)
            && host.as_bytes()[host.len() - domain.len() - 1] == b'.'
            && host.parse::<std::net::IpAddr>().is_err()
}

/// RFC 6265 section 5.1.4.
fn path_fits(path: &str, cookie_path: &str) -> bool {
    path == cookie_path
        || path.starts_with(cookie_path)
            && (cookie_path.ends_with('/') || path.as_bytes().get(cookie_path.len()) == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(jar: &Jar, host: &str, path: &str, tls: bool) -> String {
        let mut out = Vec::new();
        jar.write_header(host, path, tls, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn cookies_come_back_where_they_belong() {
        let mut jar = Jar::default();
        jar.set(b"a=1; Path=/", "h.example", "/x/y", false, 0);
        jar.set(b"b=2", "h.example", "/x/y?q", false, 0);
        jar.set(b"c=3; Secure; HttpOnly; Path=/", "h.example", "/", true, 0);
        jar.set(b"d=4; Domain=h.example; Path=/", "h.example", "/", false, 0);
        assert_eq!(header(&jar, "h.example", "/", false), "a=1; d=4");
        assert_eq!(header(&jar, "H.example", "/x/z?q", false), "a=1; b=2; d=4");
        assert_eq!(header(&jar, "h.example", "/", true), "a=1; c=3; d=4");
        assert_eq!(header(&jar, "other.h.example", "/x/", false), "d=4");
        assert_eq!(header(&jar, "h.example", "/xy", false), "a=1; d=4");
    }

    #[test]
    fn what_is_for_tls_alone_is_neither_sent_nor_made_nor_replaced_without_it() {
        let mut jar = Jar::default();
        jar.set(b"s=1; Secure; Path=/", "h.example", "/", false, 0);
        assert_eq!(header(&jar, "h.example", "/", true), "", "made over plain HTTP");
        jar.set(b"s=1; Secure; Path=/", "h.example", "/", true, 0);
        jar.set(b"s=2; Path=/", "h.example", "/", false, 0);
        assert_eq!(header(&jar, "h.example", "/", true), "s=1");
        assert_eq!(header(&jar, "h.example", "/", false), "");
        jar.set(b"s=3; Path=/", "h.example", "/", true, 0);
        assert_eq!(header(&jar, "h.example", "/", false), "s=3", "over TLS it may be replaced");
    }

    #[test]
    fn a_cookie_is_for_nobody_outside_its_domain() {
        let mut jar = Jar::default();
        jar.set(b"a=1; Domain=example; Path=/", "h.example", "/", false, 0);
        jar.set(b"b=1; Path=/", "h.example", "/", false, 0);
        jar.set(b"c=1; Domain=localhost; Path=/", "localhost", "/", false, 0);
        jar.set(b"d=1; Domain=127.0.0.1; Path=/", "127.0.0.1", "/", false, 0);
        assert_eq!(header(&jar, "other.example", "/", true), "");
        assert_eq!(header(&jar, "evilh.example", "/", true), "");
        assert_eq!(header(&jar, "sub.h.example", "/", true), "");
        assert_eq!(header(&jar, "localhost", "/", true), "c=1");
        assert_eq!(header(&jar, "127.0.0.1", "/", true), "d=1");
        assert_eq!(header(&jar, "1.127.0.0.1", "/", true), "");
    }

    #[test]
    fn a_new_value_replaces_and_a_past_date_removes() {
        let mut jar = Jar::default();
        jar.set(b"a=1; Path=/", "h", "/", false, 1_000_000_000);
        jar.set(b"a=2; Path=/", "h", "/", false, 1_000_000_000);
        assert_eq!(header(&jar, "h", "/", false), "a=2");
        jar.set(b"a=; Path=/; Expires=Thu, 01-Jan-1970 00:00:01 GMT", "h", "/", false, 1_000_000_000);
        assert_eq!(header(&jar, "h", "/", false), "");
        jar.set(b"b=1", "h", "/", false, 1_000_000_000);
        jar.set(b"b=1; Max-Age=0", "h", "/", false, 1_000_000_000);
        assert_eq!(header(&jar, "h", "/", false), "");
    }

    #[test]
    fn what_is_not_for_us_or_without_end_is_ignored() {
        let mut jar = Jar::default();
        jar.set(b"a=1; Domain=other.org", "h.example", "/", false, 0);
        jar.set(b"=x", "h", "/", false, 0);
        jar.set(b"no equals sign", "h", "/", false, 0);
        jar.set(&[0xff, b'=', 0xfe], "h", "/", false, 0);
        jar.set(b"a=x\r\nSet-Cookie: b=y", "h", "/", false, 0);
        jar.set(b"a=\x7f", "h", "/", false, 0);
        assert_eq!(header(&jar, "h.example", "/", true), "");
        for i in 0..1000 {
            jar.set(format!("c{i}=1").as_bytes(), "h", "/", false, 0);
        }
        assert_eq!(jar.kept.len(), MOST_COOKIES);
    }
}
