//! Finds the secrets of a request, which are replaced by a mark wherever something is stored or shown.
//!
//! The name of a header, form field or query value decides. The list hides rather too much: a value hidden needlessly
//! is only missing, but a secret shown is known to every reader of a report. [`KeptPlan`](crate::KeptPlan) applies it
//! to a whole plan.

use std::borrow::Cow;
use std::ops::Range;

/// The text that replaces a secret.
pub const MARK: &str = "***";

/// A name that contains one of these is the name of a secret. Only letters and digits are compared, without case.
const PARTS: &[&str] = &[
    "accesskey",
    "apikey",
    "authenticat",
    "authoriz",
    "cookie",
    "credential",
    "csrf",
    "jwt",
    "oauth",
    "passphrase",
    "passw",
    "privatekey",
    "pwd",
    "secret",
    "sessid",
    "session",
    "signature",
    "token",
    "xauth",
    "xsrf",
];
/// A name that equals one of these is the name of a secret, too.
const WHOLE: &[&str] = &["auth", "key", "otp", "pass", "pin", "pw", "sid", "sig"];

/// Returns true if a header, form field or query value of this name is secret.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    PARTS.iter().any(|part| plain.contains(part)) || WHOLE.contains(&plain.as_str())
}

/// Returns the value of a header, or the mark if it is secret.
#[must_use]
pub fn header<'a>(name: &str, value: &'a str) -> &'a str {
    if is_secret(name) && !value.is_empty() { MARK } else { value }
}

/// Returns `user:password` with the password hidden; a login without a colon is hidden completely.
#[must_use]
pub fn login(text: &str) -> String {
    in_login(text).map_or_else(|| text.to_string(), |secret| masked(text, &[secret]).into_owned())
}

/// Returns the position of the password in a login.
#[must_use]
pub fn in_login(text: &str) -> Option<Range<usize>> {
    let start = text.find(':').map_or(0, |at| at + 1);
    (start < text.len()).then_some(start..text.len())
}

/// Returns the mark for the value of a form field. A template stays, because it is only a name.
#[must_use]
pub fn field(value: &str) -> &str {
    if value.is_empty() || is_template(value) { value } else { MARK }
}

/// Returns true if the value is exactly one `{{name}}`.
fn is_template(value: &str) -> bool {
    value.strip_prefix("{{").and_then(|v| v.strip_suffix("}}")).is_some_and(|name| !name.contains(['{', '}']))
}

/// Returns a URL, or its path and query, with the secrets hidden.
#[must_use]
pub fn url(text: &str) -> Cow<'_, str> {
    masked(text, &in_url(text))
}

/// Returns the positions of the secrets of a URL: the password before its host, and values of its query.
#[must_use]
pub fn in_url(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let query = text.find('?').map_or(text.len(), |at| at + 1);
    // The scheme must be at the beginning: a URL inside the path or query may have a `://`, too.
    let scheme =
        text.find("://").filter(|at| text[..*at].bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)));
    let start = scheme.map_or(0, |at| at + 3);
    if !text.starts_with('/') && start < query {
        let end = start + text[start..].find(['/', '?', '#']).unwrap_or(text.len() - start);
        if let Some(at) = text[start..end].rfind('@') {
            found.extend(in_login(&text[start..start + at]).map(|r| r.start + start..r.end + start));
        }
    }
    let mut at = query;
    for pair in text[query..].split(['&', ';', '#']) {
        if let Some((name, value)) = pair.split_once('=')
            && is_secret(name)
            && !value.is_empty()
            && !is_template(value)
        {
            found.push(at + name.len() + 1..at + pair.len());
        }
        at += pair.len() + 1;
    }
    found
}

/// Replaces parts of a text by the mark. The parts are in order and do not overlap.
fn masked<'a>(text: &'a str, secrets: &[Range<usize>]) -> Cow<'a, str> {
    if secrets.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for secret in secrets {
        out.push_str(&text[from..secret.start]);
        out.push_str(MARK);
        from = secret.end;
    }
    out.push_str(&text[from..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_in_every_spelling() {
        for name in
            ["Authorization", "proxy-authorization", "COOKIE", "Set-Cookie", "X-Api-Key", "api_key", "accessToken"]
        {
            assert!(is_secret(name), "{name}");
        }
        for name in ["passwd", "password", "sid", "PHPSESSID", "client_secret", "X-Amz-Signature", "X-Auth-Key", "key"]
        {
            assert!(is_secret(name), "{name}");
        }
        for name in
            ["author", "Accept", "Content-Type", "User-Agent", "X-Request-Id", "q", "keyword", "page", "inside", "Host"]
        {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn urls_are_shown_without_their_secrets() {
        for (whole, shown) in [
            ("http://h/a?b=c", "http://h/a?b=c"),
            ("http://u:p@h/a", "http://u:***@h/a"),
            ("u:p@w@h:3128", "u:***@h:3128"),
            ("https://token@h/", "https://***@h/"),
            ("http://h/?a=1&password=x&b=2", "http://h/?a=1&password=***&b=2"),
            ("/login?token=x", "/login?token=***"),
            ("/login?token={{token}}&pw=", "/login?token={{token}}&pw="),
            ("/a?mail=u:p@h", "/a?mail=u:p@h"),
            ("http://h/u:p@x", "http://h/u:p@x"),
            ("u:p@h/?to=http://i/&token=x", "u:***@h/?to=http://i/&token=***"),
            ("http://h?key=ä&x", "http://h?key=***&x"),
        ] {
            assert_eq!(url(whole), shown);
        }
    }

    #[test]
    fn logins_keep_who_and_hide_the_rest() {
        assert_eq!(
            (login("u:p:q"), login("alone"), login("u:"), login("")),
            ("u:***".into(), "***".into(), "u:".into(), String::new())
        );
        assert_eq!((field("x"), field("{{name}}"), field("{{a}}x"), field("")), (MARK, "{{name}}", MARK, ""));
    }
}
