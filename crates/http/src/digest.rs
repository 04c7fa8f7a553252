//! Digest access authentication (RFC 7616): the response to a server's challenge.

use md5::Md5;
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Md5,
    Sha256,
}

/// A server's challenge in `WWW-Authenticate: Digest …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    algorithm: Algorithm,
    /// The `-sess` variant.
    session: bool,
    /// `qop=auth` is offered; without it the response is that of RFC 2069.
    auth: bool,
    /// The name of the algorithm as the server wrote it.
    spelled: Option<String>,
    /// The last nonce was valid but too old.
    pub stale: bool,
}

impl Challenge {
    /// Parses a `WWW-Authenticate` value; `None` if it is not a digest challenge that can be answered.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Challenge> {
        let text = std::str::from_utf8(value).ok()?.trim();
        let scheme = text.get(..7)?;
        if !scheme.eq_ignore_ascii_case("digest ") {
            return None;
        }
        let mut challenge = Challenge {
            realm: String::new(),
            nonce: String::new(),
            opaque: None,
            algorithm: Algorithm::Md5,
            session: false,
            auth: false,
            spelled: None,
            stale: false,
        };
        let mut qop = None;
        for (name, value) in parameters(&text[7..]) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => challenge.realm = value,
                "nonce" => challenge.nonce = value,
                "opaque" => challenge.opaque = Some(value),
                "stale" => challenge.stale = value.eq_ignore_ascii_case("true"),
                "qop" => qop = Some(value),
                "algorithm" => {
                    let upper = value.to_ascii_uppercase();
                    let (base, session) = match upper.strip_suffix("-SESS") {
                        Some(base) => (base, true),
                        None => (upper.as_str(), false),
                    };
                    challenge.algorithm = match base {
                        "MD5" => Algorithm::Md5,
                        "SHA-256" => Algorithm::Sha256,
                        _ => return None,
                    };
                    challenge.session = session;
                    challenge.spelled = Some(value);
                }
                _ => {}
            }
        }
        if let Some(qop) = qop {
            challenge.auth = qop.split(',').any(|q| q.trim().eq_ignore_ascii_case("auth"));
            if !challenge.auth {
                return None;
            }
        }
        // Values that go into a header again must not end it.
        let safe = |s: &str| s.bytes().all(|b| b >= 0x20 && b != 0x7f);
        let all_safe = safe(&challenge.realm) && safe(&challenge.nonce) && challenge.opaque.as_deref().is_none_or(safe);
        (!challenge.nonce.is_empty() && all_safe).then_some(challenge)
    }

    fn hash(&self, text: &str) -> String {
        match self.algorithm {
            Algorithm::Md5 => hex(&Md5::digest(text.as_bytes())),
            Algorithm::Sha256 => hex(&Sha256::digest(text.as_bytes())),
        }
    }

    /// The value of `Authorization` for a request. `count` is how often this challenge has been answered, from 1;
    /// `cnonce` is an arbitrary text of the client.
    #[must_use]
    pub fn authorization(
        &self,
        user: &str,
        password: &str,
        method: &str,
        uri: &str,
        count: u32,
        cnonce: &str,
    ) -> String {
        let mut a1 = self.hash(&format!("{user}:{}:{password}", self.realm));
        if self.session {
            a1 = self.hash(&format!("{a1}:{}:{cnonce}", self.nonce));
        }
        let a2 = self.hash(&format!("{method}:{uri}"));
        let response = if self.auth {
            self.hash(&format!("{a1}:{}:{count:08x}:{cnonce}:auth:{a2}", self.nonce))
        } else {
            self.hash(&format!("{a1}:{}:{a2}", self.nonce))
        };
        let quote = |s: &str| s.replace('\\', "\\\\").replace('"', "\\\"");
        let mut out = format!(
            "Digest username=\"{}\", realm=\"{}\", nonce=\"{}\", uri=\"{}\", response=\"{response}\"",
            quote(user),
            quote(&self.realm),
            quote(&self.nonce),
            quote(uri),
        );
        if let Some(algorithm) = &self.spelled {
            out.push_str(&format!(", algorithm={algorithm}"));
        }
        if self.auth {
            out.push_str(&format!(", qop=auth, nc={count:08x}, cnonce=\"{}\"", quote(cnonce)));
        }
        if let Some(opaque) = &self.opaque {
            out.push_str(&format!(", opaque=\"{}\"", quote(opaque)));
        }
        out
    }
}

/// Parses `name=value` and `name="value"`, separated by commas.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim().trim_start_matches(',').trim().to_string();
        let after = after.trim_start();
        let value;
        if let Some(quoted) = after.strip_prefix('"') {
            let mut text = String::new();
            let mut chars = quoted.char_indices();
            let mut end = quoted.len();
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        end = at + 1;
                        break;
                    }
                    '\\' => text.extend(chars.next().map(|(_, c)| c)),
                    c => text.push(c),
                }
            }
            value = text;
            rest = &quoted[end..];
        } else {
            let end = after.find(',').unwrap_or(after.len());
            value = after[..end].trim().to_string();
            rest = &after[end..];
        }
        rest = rest.trim_start().trim_start_matches(',').trim_start();
        found.push((name, value));
    }
    found
}

/// Bytes as hex digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 7616 section 3.9.1.
    const NONCE: &str = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v";
    const CNONCE: &str = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ";

    fn rfc(algorithm: &str) -> Challenge {
        let text = format!(
            "Digest realm=\"http-auth@example.org\", qop=\"auth, auth-int\", algorithm={algorithm}, nonce=\"{NONCE}\", \
             opaque=\"FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\""
        );
        Challenge::parse(text.as_bytes()).expect("a challenge")
    }

    #[test]
    fn the_examples_of_the_rfc_come_out() {
        for (algorithm, response) in [
            ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
            ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
        ] {
            let value = rfc(algorithm).authorization("Mufasa", "Circle of Life", "GET", "/dir/index.html", 1, CNONCE);
            assert!(value.contains(&format!("response=\"{response}\"")), "{value}");
            assert!(value.contains("nc=00000001") && value.contains("opaque=\"FQhe/"), "{value}");
        }
    }

    #[test]
    fn what_cannot_be_answered_is_none() {
        for bad in [
            "",
            "Basic realm=\"x\"",
            "Digest realm=\"x\"",
            "Digest nonce=\"a\", algorithm=SHA-512",
            "Digest nonce=\"a\", qop=\"auth-int\"",
        ] {
            assert_eq!(Challenge::parse(bad.as_bytes()), None, "{bad}");
        }
        assert!(Challenge::parse(b"Digest nonce=\"un\\\"quoted, realm=").is_some());
    }
}
