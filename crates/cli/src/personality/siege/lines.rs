//! Converts lines of URLs as siege reads them into standard URLs.
//!
//! A line is `URL`, or `URL POST body` and the like. siege takes all text before the method as the URL, blanks included.
//! Without a method it percent-encodes invalid characters. It drops a user's name and the fragment.

use lastdrop_model::raw;

const METHODS: [&str; 7] = ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "GET"];

/// The text with its URLs in standard form.
pub fn readable(text: &str) -> String {
    text.lines().map(|line| readable_line(line) + "\n").collect()
}

fn readable_line(line: &str) -> String {
    let text = line.trim();
    if text.is_empty() || text.starts_with('#') || is_assignment(text) {
        return line.to_string();
    }
    let method = METHODS
        .iter()
        .filter_map(|m| {
            let at = text.find(&format!(" {m}"))?;
            let behind = &text[at + 1 + m.len()..];
            (behind.is_empty() || behind.starts_with(char::is_whitespace)).then_some(at)
        })
        .min();
    let (url, rest) = text.split_at(method.unwrap_or(text.len()));
    format!("{}{rest}", readable_url(url.trim_end(), method.is_none()))
}

/// `NAME = value`
fn is_assignment(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| {
        let name = name.trim();
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

fn readable_url(url: &str, encoded: bool) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{}://", scheme.to_ascii_lowercase()), rest),
        None => (String::new(), url),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // siege drops a query that follows the host without a path.
    let host = host.split('?').next().unwrap_or_default();
    let mut out = format!("{scheme}{host}");
    let bytes = raw::bytes(path);
    for (i, &b) in bytes.iter().enumerate() {
        let is_escape = || bytes.get(i + 1..i + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        let plain = match b {
            b'%' => !encoded || is_escape(),
            b' ' | b'<' | b'>' | b'"' => false,
            b'\\' | b'{' | b'}' | b'|' | b'^' | b'`' => !encoded || path.contains("${"),
            b => b.is_ascii_graphic(),
        };
        if plain {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_not_stand_in_a_url_is_encoded() {
        for (line, read) in [
            ("http://h/a b", "http://h/a%20b"),
            ("HTTP://u:p@h:81/a<b>\"c\"#x", "http://h:81/a%3Cb%3E%22c%22"),
            ("h/é%20%", "h/%C3%A9%20%25"),
            ("http://h/\u{10ffff}", "http://h/%FF"),
            ("http://h/a POST x=1 2", "http://h/a POST x=1 2"),
            ("http://h/a b DELETE", "http://h/a%20b DELETE"),
            ("http://h/a POSTED", "http://h/a%20POSTED"),
            ("http://h?x", "http://h"),
            ("A = http://u@h/", "A = http://u@h/"),
            ("# c", "# c"),
        ] {
            assert_eq!(readable(line), format!("{read}\n"), "{line}");
        }
    }
}
