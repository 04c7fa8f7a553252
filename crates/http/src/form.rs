//! Fields of a query or of a form (`application/x-www-form-urlencoded`), as a browser writes them.

/// Returns names and values in order. Invalid UTF-8 becomes replacement characters, and a `%` without two hex digits
/// stays as it is.
#[must_use]
pub fn fields(text: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decoded(name), decoded(value))
    };
    text.split('&').filter(|part| !part.is_empty()).map(pair).collect()
}

fn decoded(text: &str) -> String {
    let hex = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16));
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match (byte, hex(bytes.get(at)), hex(bytes.get(at + 1))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            (other, ..) => out.push(*other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_what_was_entered() {
        let seen = fields("q=a+b%26c%3D%C3%A4&&empty=&bare&bad=%zz%4&no=%ff");
        let seen: Vec<_> = seen.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(seen, [("q", "a b&c=ä"), ("empty", ""), ("bare", ""), ("bad", "%zz%4"), ("no", "\u{fffd}")]);
    }
}
