//! URL files as siege and http_load read them: one request per line.
//!
//! siege's lines are `# comment`, `NAME = value`, `URL`, `URL POST body` and `URL PUT <file`. `$(NAME)` and `${NAME}`
//! stand for a variable of the file or of the environment. A URL without a scheme is http. A body that is markup
//! (`<?xml …>`) is not taken for a file name. http_load's lines are URLs only.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::request::{Body, RequestSpec};
use crate::url::Url;

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The most that variables may lengthen one line, and all lines together. Without a limit each line could double the
/// variable of the line before it.
const MOST_GROWTH_BYTES: usize = 64 << 10;
const MOST_GROWTH_OF_ALL_BYTES: usize = 64 << 20;

/// More lines than this are a mistake, and their requests would not fit in memory.
const MOST_LINES: usize = 10_000_000;

/// A line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct UrlFileError {
    pub line: usize,
    pub what: String,
}

/// Reads a URL file. `<file` is relative to `folder`; `environment` resolves variables that the file does not define.
///
/// # Errors
/// For the first line that cannot be read, and for a file without requests.
pub fn parse(
    text: &str,
    folder: &Path,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Vec<RequestSpec>, UrlFileError> {
    let mut variables: HashMap<String, String> = HashMap::new();
    let mut requests = Vec::new();
    let mut growth = 0;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        let error = |what: String| UrlFileError { line: index + 1, what };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if index >= MOST_LINES {
            return Err(error(format!("more than {MOST_LINES} lines")));
        }
        if let Some((name, value)) = assignment(line) {
            let value = substitute(value, &variables, &environment).map_err(error)?;
            variables.insert(name.to_string(), value);
            continue;
        }
        let written = line.len();
        let line = substitute(line, &variables, &environment).map_err(error)?;
        growth += line.len().saturating_sub(written);
        if growth > MOST_GROWTH_OF_ALL_BYTES {
            return Err(error("variables make the file longer by more than 64 MB".into()));
        }
        let (url, rest) = match line.split_once(char::is_whitespace) {
            Some((url, rest)) => (url, rest.trim()),
            None => (line.as_str(), ""),
        };
        let url: Url = url.parse().map_err(|e: crate::url::UrlError| error(e.to_string()))?;
        let mut request = RequestSpec::get(url);
        if !rest.is_empty() {
            let (method, body) = match rest.split_once(char::is_whitespace) {
                Some((method, body)) => (method, body.trim()),
                None => (rest, ""),
            };
            if !METHODS.contains(&method) {
                return Err(error(format!("'{method}' is not a method; write URL POST body, or URL POST <file")));
            }
            request.method = method.to_string();
            request.body = match body.strip_prefix('<').filter(|_| !is_markup(body)) {
                Some(file) if file.trim().is_empty() => return Err(error("no file after '<'".into())),
                Some(file) => Body::File(folder.join(PathBuf::from(file.trim()))),
                None if body.is_empty() => Body::None,
                None => Body::Text(body.to_string()),
            };
            if matches!(request.body, Body::Text(_)) {
                // siege sends a body from the line as a form.
                request.headers.push(("Content-Type".into(), "application/x-www-form-urlencoded".into()));
            }
        }
        requests.push(request);
    }
    if requests.is_empty() {
        return Err(UrlFileError { line: 1, what: "there is no URL in it".into() });
    }
    Ok(requests)
}

/// Returns true if a body that begins with `<` is XML or HTML rather than a file name: it begins like a tag, and a `>`
/// follows. A file whose name contains `>` can be written with its folder.
fn is_markup(body: &str) -> bool {
    let begins = |c: char| c.is_alphabetic() || matches!(c, '?' | '!' | '_');
    body.contains('>') && body.strip_prefix('<').is_some_and(|tag| tag.starts_with(begins))
}

/// Splits `NAME = value` if the name is a word; a URL with `=` in its query is not an assignment.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (!name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(word)).then(|| (name, value.trim()))
}

fn substitute(
    text: &str,
    variables: &HashMap<String, String>,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let close = match after.chars().next() {
            Some('(') => ')',
            Some('{') => '}',
            _ => {
                out.push('$');
                rest = after;
                continue;
            }
        };
        let Some(end) = after.find(close) else {
            return Err(format!("'${}' is not closed", after.chars().take(20).collect::<String>()));
        };
        let name = &after[1..end];
        let value = variables.get(name).cloned().or_else(|| environment(name));
        out.push_str(&value.ok_or_else(|| format!("'{name}' has no value; write {name} = value above"))?);
        if out.len() > text.len() + MOST_GROWTH_BYTES {
            return Err(format!("'{name}' makes the line longer by more than 64 KB"));
        }
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<RequestSpec>, UrlFileError> {
        parse(text, Path::new("/f"), |name| (name == "HOME").then(|| "/root".to_string()))
    }

    #[test]
    fn a_file_of_siege_is_understood() {
        let text = "# my site\nHOST = www.example.org:8080\nBASE=http://$(HOST)/app\n\n${BASE}/a?x=1\n\
                    $(BASE)/b POST user=me&x=$5\nwww.example.org/c POST </tmp/body\nhttp://h/$(HOME) HEAD\nhttps://h/d DELETE\n";
        let all = read(text).expect("valid");
        let lines: Vec<String> = all.iter().map(|r| format!("{} {}", r.method, r.url)).collect();
        assert_eq!(
            lines,
            [
                "GET http://www.example.org:8080/app/a?x=1",
                "POST http://www.example.org:8080/app/b",
                "POST http://www.example.org/c",
                "HEAD http://h//root",
                "DELETE https://h/d"
            ]
        );
        assert_eq!(all[1].body, Body::Text("user=me&x=$5".into()));
        assert_eq!(all[2].body, Body::File("/tmp/body".into()));
    }

    #[test]
    fn a_body_of_markup_is_sent_and_not_taken_for_the_name_of_a_file() {
        let bodies =
            ["<?xml version=\"1.0\"?><a/>", "<soap:Envelope><b>1</b></soap:Envelope>", "<!DOCTYPE html><p>", "<é/>"];
        for body in bodies {
            assert_eq!(read(&format!("http://h/ POST {body}\n")).expect(body)[0].body, Body::Text(body.into()));
        }
        for file in ["<a.xml", "< a.xml", "</tmp/a.xml", "<./a>b.xml"] {
            let body = &read(&format!("http://h/ POST {file}\n")).expect(file)[0].body;
            assert!(matches!(body, Body::File(_)), "{file}: {body:?}");
        }
    }

    #[test]
    fn variables_cannot_fill_the_memory() {
        let mut bomb = String::from("A0=0123456789\n");
        for i in 1..64 {
            bomb.push_str(&format!("A{i}=$(A{0})$(A{0})\n", i - 1));
        }
        let e = read(&bomb).expect_err("a bomb");
        assert!(e.line == 14 && e.what.contains("64 KB"), "{e}");
        let many = format!("A={}\n{}", "x".repeat(60_000), "http://h/ POST $(A)\n".repeat(2000));
        assert!(read(&many).expect_err("too much").what.contains("64 MB"));
        assert!(read(&format!("http://h/ POST {}\n", "x".repeat(1 << 20))).is_ok(), "a long line is no bomb");
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line, word) in [
            ("http://h/\nftp://h/\n", 2, "http://"),
            ("http://h/ FETCH x\n", 1, "FETCH"),
            ("$(NOPE)/\n", 1, "NOPE"),
            ("http://h/$(NOPE\n", 1, "closed"),
            ("# nothing\n", 1, "no URL"),
            ("http://h/ POST <\n", 1, "file"),
        ] {
            let e = read(text).expect_err(text);
            assert!(e.line == line && e.what.contains(word), "{e}");
        }
    }
}
