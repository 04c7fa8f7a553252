//! Changes that keep a browser on a reverse proxy. Names of the server are replaced in what the browser receives, and
//! the proxy's in what the server receives. Attributes that tie cookies to the server's name or to https are removed.
//! Everything else passes unchanged.

use lastdrop_model::Url;

/// Browsers refuse cookies with these prefixes over http.
const STRICT_PREFIXES: [&str; 2] = ["__Host-", "__Secure-"];
/// Prefix of such a cookie's name while the browser has it.
const RENAMED: &str = "lastdrop";

/// The two names of a server: its own, and that of the proxy before it.
#[derive(Debug)]
pub struct Names {
    to_browser: Vec<(Vec<u8>, Vec<u8>)>,
    to_server: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Names {
    /// For the server at a URL, behind proxies at these addresses (`127.0.0.1:8080`); the first one replaces its name.
    pub fn new(server: &Url, own: &[String]) -> Names {
        let (there, here) = (server.authority(), own.first().cloned().unwrap_or_default());
        let mut to_browser = Vec::new();
        for scheme in ["https:", "http:", ""] {
            let ours = if scheme.is_empty() { "" } else { "http:" };
            for slashes in ["//", "\\/\\/"] {
                to_browser.push((format!("{scheme}{slashes}{there}"), format!("{ours}{slashes}{here}")));
            }
        }
        let mut to_server = Vec::new();
        for name in own {
            for written in [str::to_string, escaped, percent_upper, percent_lower] {
                to_server.push((written(&format!("http://{name}")), written(&server.origin())));
            }
        }
        let bytes = |all: Vec<(String, String)>| all.into_iter().map(|(a, b)| (a.into(), b.into())).collect();
        Names { to_browser: bytes(to_browser), to_server: bytes(to_server) }
    }

    /// Replaces names in a body on its way to the browser.
    pub fn replacer(&self) -> Replacer<'_> {
        Replacer { pairs: &self.to_browser, held: Vec::new() }
    }

    pub fn for_browser(&self, text: &[u8]) -> Vec<u8> {
        replaced(&self.to_browser, text)
    }

    pub fn for_server(&self, text: &[u8]) -> Vec<u8> {
        replaced(&self.to_server, text)
    }
}

fn escaped(text: &str) -> String {
    text.replace('/', "\\/")
}

fn percent_upper(text: &str) -> String {
    text.replace(':', "%3A").replace('/', "%2F")
}

fn percent_lower(text: &str) -> String {
    text.replace(':', "%3a").replace('/', "%2f")
}

fn replaced(pairs: &[(Vec<u8>, Vec<u8>)], text: &[u8]) -> Vec<u8> {
    let (mut replacer, mut out) = (Replacer { pairs, held: Vec::new() }, Vec::new());
    replacer.feed(text, &mut out);
    replacer.finish(&mut out);
    out
}

/// Replaces names in a body that arrives in pieces; holds back only what may be the beginning of a name.
#[derive(Debug)]
pub struct Replacer<'a> {
    pairs: &'a [(Vec<u8>, Vec<u8>)],
    held: Vec<u8>,
}

impl Replacer<'_> {
    pub fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.held.extend_from_slice(piece);
        self.run(false, out);
    }

    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.run(true, out);
    }

    fn run(&mut self, is_all: bool, out: &mut Vec<u8>) {
        let data = std::mem::take(&mut self.held);
        let mut at = 0;
        while let Some(found) = memchr::memchr3(b'h', b'/', b'\\', &data[at..]) {
            out.extend_from_slice(&data[at..at + found]);
            at += found;
            let rest = &data[at..];
            if !is_all && self.pairs.iter().any(|(name, _)| name.starts_with(rest)) {
                self.held = rest.to_vec();
                return;
            }
            let hit = self
                .pairs
                .iter()
                .find(|(name, _)| rest.starts_with(name) && rest.get(name.len()).is_none_or(|next| !goes_on(*next)));
            if let Some((name, other)) = hit {
                out.extend_from_slice(other);
                at += name.len();
            } else {
                out.push(data[at]);
                at += 1;
            }
        }
        out.extend_from_slice(&data[at..]);
    }
}

/// Whether a host name continues with this byte.
fn goes_on(next: u8) -> bool {
    next.is_ascii_alphanumeric() || b"-._:".contains(&next)
}

/// Whether a body of this type may contain names.
pub fn has_names(content_type: &str) -> bool {
    ["text/", "javascript", "json", "xml"].iter().any(|part| content_type.contains(part))
}

/// Changes a Set-Cookie value so that a browser accepts it from the proxy.
pub fn set_cookie(value: &str) -> String {
    let mut parts = value.split(';');
    let pair = parts.next().unwrap_or_default().trim();
    let is_strict =
        STRICT_PREFIXES.iter().any(|p| pair.get(..p.len()).is_some_and(|start| start.eq_ignore_ascii_case(p)));
    let mut out = if is_strict { format!("{RENAMED}{pair}") } else { pair.to_string() };
    for part in parts {
        let plain: String = part.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_ascii_lowercase();
        let is_tied =
            plain == "secure" || plain == "partitioned" || plain == "samesite=none" || plain.starts_with("domain=");
        if !is_tied {
            out.push(';');
            out.push_str(part);
        }
    }
    out
}

/// Changes the cookies of a request back to the server's names.
pub fn cookies(value: &str) -> String {
    let one = |pair: &str| {
        let pair = pair.trim();
        pair.strip_prefix(RENAMED).filter(|name| name.starts_with("__")).unwrap_or(pair).to_string()
    };
    value.split(';').map(one).collect::<Vec<_>>().join("; ")
}

/// Changes a policy so that it does not send the browser to https.
pub fn policy(value: &str) -> String {
    let stays = |part: &&str| !part.trim().eq_ignore_ascii_case("upgrade-insecure-requests");
    value.split(';').filter(stays).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(server: &str) -> Names {
        let own = ["127.0.0.1:9000".to_string(), "localhost:9000".to_string()];
        Names::new(&server.parse().expect("a URL"), &own)
    }

    #[test]
    fn links_to_the_server_lead_to_the_proxy_and_others_stay() {
        let names = names("https://shop.test/");
        let page = "<a href=\"https://shop.test/a\"> //shop.test/b {\"u\":\"https:\\/\\/shop.test\\/c\"} http://shop.test \
                    https://shop.test.evil/ https://shop.test:8443/ https://other.test/ /d";
        let wanted = "<a href=\"http://127.0.0.1:9000/a\"> //127.0.0.1:9000/b {\"u\":\"http:\\/\\/127.0.0.1:9000\\/c\"} \
                      http://127.0.0.1:9000 https://shop.test.evil/ https://shop.test:8443/ https://other.test/ /d";
        for step in 1..page.len() {
            let (mut replacer, mut out) = (names.replacer(), Vec::new());
            page.as_bytes().chunks(step).for_each(|piece| replacer.feed(piece, &mut out));
            replacer.finish(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), wanted, "in steps of {step}");
        }
    }

    #[test]
    fn an_event_is_not_held_back_until_the_next_one() {
        let names = names("http://127.0.0.1:8080/");
        let (mut replacer, mut out) = (names.replacer(), Vec::new());
        replacer.feed(b"data: hello\n\n", &mut out);
        assert_eq!(out, b"data: hello\n\n");
    }

    #[test]
    fn the_server_never_sees_the_proxy() {
        let names = names("https://shop.test/");
        let form = "back=http%3A%2F%2Flocalhost%3A9000%2Fx&to=http://127.0.0.1:9000/y&z=http%3a%2f%2f127.0.0.1%3a9000&w=http://127.0.0.1:90001";
        assert_eq!(
            String::from_utf8_lossy(&names.for_server(form.as_bytes())),
            "back=https%3A%2F%2Fshop.test%2Fx&to=https://shop.test/y&z=https%3a%2f%2fshop.test&w=http://127.0.0.1:90001"
        );
    }

    #[test]
    fn cookies_are_taken_and_given_back() {
        assert_eq!(
            set_cookie("sid=1; Domain=.shop.test; Path=/; Secure; HttpOnly; SameSite=None"),
            "sid=1; Path=/; HttpOnly"
        );
        let kept = set_cookie("__Host-sid=a=b; Path=/; Secure; SameSite=Lax");
        assert_eq!(kept, "lastdrop__Host-sid=a=b; Path=/; SameSite=Lax");
        assert_eq!(cookies("x=1; lastdrop__Host-sid=a=b;lastdrop=2"), "x=1; __Host-sid=a=b; lastdrop=2");
        assert_eq!(policy("default-src 'self'; upgrade-insecure-requests; img-src *"), "default-src 'self'; img-src *");
    }
}
