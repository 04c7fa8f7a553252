//! Splits a line of HAProxy's configuration into words with their byte ranges (`parse_line` in its tools.c). White
//! space ends a word, quotes may begin inside one, and a backslash escapes some characters. `#` begins a comment
//! anywhere outside quotes, and environment variables are expanded inside double quotes.

use std::collections::HashMap;

use crate::edits::ConfigWord;

/// Splits a line that begins at `from` in its file.
///
/// # Errors
/// In words, if a quote is not closed.
pub fn words(line: &[u8], from: usize, environment: &HashMap<String, String>) -> Result<Vec<ConfigWord>, String> {
    let mut words = Vec::new();
    let mut word: Option<(usize, Vec<u8>)> = None;
    let mut quote: Option<u8> = None;
    let mut at = 0;
    while let Some(&c) = line.get(at) {
        match c {
            b'\n' | b'\r' => break,
            b'#' if quote.is_none() => break,
            b' ' | b'\t' | 0x0b | 0x0c if quote.is_none() => {
                finish(&mut words, &mut word, from + at);
                at += 1;
                continue;
            }
            _ => {}
        }
        let (_, text) = word.get_or_insert_with(|| (from + at, Vec::new()));
        match c {
            b'"' | b'\'' if quote == Some(c) => quote = None,
            b'"' | b'\'' if quote.is_none() => quote = Some(c),
            b'\\' if quote != Some(b'\'') => {
                let (bytes, length) = escaped(&line[at + 1..], quote.is_some());
                text.extend(bytes);
                at += length;
            }
            b'$' if quote == Some(b'"') => {
                let (value, length) = variable(&line[at + 1..], environment);
                text.extend(value.bytes());
                at += length;
            }
            c => text.push(c),
        }
        at += 1;
    }
    if quote.is_some() {
        return Err("unmatched quote".into());
    }
    finish(&mut words, &mut word, from + at);
    Ok(words)
}

fn finish(words: &mut Vec<ConfigWord>, word: &mut Option<(usize, Vec<u8>)>, end: usize) {
    if let Some((start, bytes)) = word.take() {
        words.push(ConfigWord { text: String::from_utf8_lossy(&bytes).into_owned(), at: start..end });
    }
}

/// What an escape sequence stands for, and how many bytes after the backslash belong to it.
fn escaped(after: &[u8], in_double_quotes: bool) -> (Vec<u8>, usize) {
    let hex = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16)).map(|d| d as u8);
    match after.first() {
        Some(c @ (b' ' | b'\\' | b'#' | b'"' | b'\'')) => (vec![*c], 1),
        Some(b'$') if in_double_quotes => (vec![b'$'], 1),
        Some(b'n') => (vec![b'\n'], 1),
        Some(b'r') => (vec![b'\r'], 1),
        Some(b't') => (vec![b'\t'], 1),
        Some(b'x') => match (hex(after.get(1)), hex(after.get(2))) {
            (Some(high), Some(low)) => (vec![high << 4 | low], 3),
            _ => (vec![b'\\'], 0),
        },
        _ => (vec![b'\\'], 0),
    }
}

/// The value of `NAME`, `{NAME}`, `{NAME-default}` or `{NAME[*]}`, and its length in bytes.
fn variable(after: &[u8], environment: &HashMap<String, String>) -> (String, usize) {
    let is_name = |b: &&u8| b.is_ascii_alphanumeric() || **b == b'_' || **b == b'.';
    let braces = usize::from(after.first() == Some(&b'{'));
    let length = after[braces..].iter().take_while(is_name).count();
    let name = String::from_utf8_lossy(&after[braces..braces + length]).into_owned();
    let value = environment.get(&name).cloned();
    if braces == 0 {
        return (value.unwrap_or_default(), length);
    }
    let rest = &after[braces + length..];
    let end = rest.iter().position(|b| *b == b'}').unwrap_or(rest.len());
    let otherwise = rest[..end].strip_prefix(b"-").map(|text| String::from_utf8_lossy(text).into_owned());
    (value.or(otherwise).unwrap_or_default(), (braces + length + end + 1).min(after.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_words_are_read_as_haproxy_reads_them() {
        let environment = HashMap::from([("MOST".to_string(), "7 0".to_string())]);
        let read = |line: &str| {
            let words = words(line.as_bytes(), 10, &environment)?;
            Ok(words.into_iter().map(|w| (w.text, w.at)).collect::<Vec<_>>())
        };
        let texts = |line: &str| read(line).map(|w| w.into_iter().map(|(text, _)| text).collect::<Vec<_>>());
        let expect = |line: &str, expected: &[&str]| {
            let expected: Result<Vec<String>, String> = Ok(expected.iter().map(ToString::to_string).collect());
            assert_eq!(texts(line), expected, "{line}");
        };
        expect("\tserver  a 1:2#x maxconn 5 \r\n", &["server", "a", "1:2"]);
        expect(r#"a b\ c 'd "e\' "f'g\"h" i\#j \x41\q"#, &["a", "b c", "d \"e\\", "f'g\"h", "i#j", "A\\q"]);
        expect(
            "maxconn \"$MOST\" \"${MOST}\" \"${NO-3}\" ${MOST} '$MOST'",
            &["maxconn", "7 0", "7 0", "3", "${MOST}", "$MOST"],
        );
        expect("a\"\" \"\" ''", &["a", "", ""]);
        expect("  # nothing", &[]);
        assert_eq!(texts("a \"b"), Err("unmatched quote".into()));
        assert_eq!(read("ab 'c d'").map(|w| w[1].1.clone()), Ok(13..18));
        assert!(texts("x \"${A").is_err() && texts("x \"$\" \\").is_ok());
    }
    #[test]
    fn no_line_is_too_odd() {
        let environment = HashMap::from([("a".to_string(), "b".to_string())]);
        let bytes = b"\\\"'#$ {}x-4a\n\xff";
        let n = bytes.len();
        for number in 0..n.pow(4) {
            let line: Vec<u8> = (0..4).map(|place| bytes[number / n.pow(place) % n]).collect();
            for word in words(&line, 0, &environment).into_iter().flatten() {
                assert!(word.at.start < word.at.end && word.at.end <= line.len(), "{line:?}: {word:?}");
            }
        }
    }
}
