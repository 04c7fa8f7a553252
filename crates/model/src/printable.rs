//! Escapes untrusted text before people see it: characters that would control a terminal or break a document.
//!
//! Names of processes, files and symbols, headers, error pages, kernel log lines and stored files may contain control
//! characters from an attacker. The terminal output accepts only [`Printable`], and making a `Printable` escapes the
//! text. Only [`Printable::control`] adds a control sequence, and it accepts only `'static` text from our own source.

use std::fmt::{self, Write as _};

use crate::raw;

/// Text that is safe to print on a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Printable(String);

impl Printable {
    #[must_use]
    pub fn new() -> Printable {
        Printable::default()
    }

    /// Adds text and escapes it. Newlines and tabs stay.
    #[must_use]
    pub fn text(mut self, text: &str) -> Printable {
        escape_into(text, &mut self.0);
        self
    }

    /// Adds one of lastdrop's own control sequences, unescaped.
    #[must_use]
    pub fn control(mut self, sequence: &'static str) -> Printable {
        self.0.push_str(sequence);
        self
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: AsRef<str> + ?Sized> From<&T> for Printable {
    fn from(text: &T) -> Printable {
        Printable::new().text(text.as_ref())
    }
}

impl From<String> for Printable {
    fn from(text: String) -> Printable {
        // Text without such characters, the common case, is not copied.
        if text.chars().any(|c| c == '\r' || steers(c)) { Printable::new().text(&text) } else { Printable(text) }
    }
}

impl fmt::Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if the character controls a terminal or the reading direction instead of being visible.
fn steers(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        c if c.is_control() || raw::byte(c).is_some() => true,
        // Marks, embeddings, overrides and isolates of direction (UAX 9), line and paragraph separators, and invisible
        // annotations and tags.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        _ => false,
    }
}

/// Writes a character's escaped form: `\x1b`, `\u{9b}`.
fn show(c: char, out: &mut String) {
    let _ = match c {
        '\r' => write!(out, "\\r"),
        '\n' => write!(out, "\\n"),
        '\t' => write!(out, "\\t"),
        c if c.is_ascii() => write!(out, "\\x{:02x}", c as u32),
        c if let Some(byte) = raw::byte(c) => write!(out, "\\x{byte:02x}"),
        c => write!(out, "\\u{{{:x}}}", c as u32),
    };
}

fn escape_into(text: &str, out: &mut String) {
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // HTTP lines end with \r\n. A lone \r would overwrite the line on the terminal.
            '\r' if rest.peek() == Some(&'\n') => out.push(c),
            c if steers(c) => show(c, out),
            c => out.push(c),
        }
    }
}

/// Returns the text on one line: newlines and tabs are escaped, too. For names and values inside other text.
#[must_use]
pub fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) || matches!(c, '\n' | '\t') { show(c, &mut out) } else { out.push(c) }
    }
    out
}

/// Returns bytes as text; a byte that is not UTF-8 becomes `\xff`.
#[must_use]
pub fn lossless(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Returns the text on one line, for an element or a quoted attribute of XML and HTML. Characters that XML 1.0 does
/// not allow are escaped.
#[must_use]
pub fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => show(c, &mut out),
            c => out.push(c),
        }
    }
    out
}

/// Returns the same JSON document with such characters written as `\u009b`, so that it is harmless on a terminal.
/// In JSON they occur only inside strings, so the function need not parse the document.
#[must_use]
pub fn json(document: &str) -> std::borrow::Cow<'_, str> {
    // JSON already escapes characters below 0x20 in strings; the rest are newlines between tokens.
    let unsafe_in_json = |c: char| steers(c) && !c.is_ascii() || c == '\x7f';
    if !document.chars().any(unsafe_in_json) {
        return document.into();
    }
    let mut out = String::with_capacity(document.len());
    for c in document.chars() {
        if unsafe_in_json(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "a\x1b[2J\u{9b}31m\x07\x7f\u{202e}b\u{2066}";

    #[test]
    fn what_steers_a_terminal_is_shown() {
        let shown = Printable::from(EVIL).to_string();
        assert_eq!(shown, "a\\x1b[2J\\u{9b}31m\\x07\\x7f\\u{202e}b\\u{2066}");
        assert_eq!(Printable::from(EVIL.to_string()).to_string(), shown);
        assert_eq!(line("a\nb\tc\rd\r\n"), "a\\nb\\tc\\rd\\r\\n");
    }

    #[test]
    fn what_is_only_text_stays() {
        let text = "µs ≥ Σ 日本語 👩‍👩‍👧 naïve\n\ttab\r\nnext";
        assert_eq!(Printable::from(text.to_string()).as_str(), text);
        assert_eq!(Printable::from("over\rwritten").as_str(), "over\\rwritten");
        assert_eq!(lossless(b"ok \xc3\xa4 \x9b \xff"), "ok ä \\x9b \\xff");
    }

    #[test]
    fn only_our_own_sequences_are_sequences() {
        let text = Printable::new().control("\x1b[31m").text("\x1b[31mx").control("\x1b[0m");
        assert_eq!(text.as_str(), "\x1b[31m\\x1b[31mx\x1b[0m");
    }

    #[test]
    fn xml_has_neither_control_characters_nor_markup_of_others() {
        assert_eq!(xml("<a b='c'>\x1b&\n\u{ffff}\0"), "&lt;a b=&#39;c&#39;&gt;\\x1b&amp;\\n\\u{ffff}\\x00");
    }

    #[test]
    fn a_json_document_stays_the_same_document() {
        let value = serde_json::json!({ "name": format!("{EVIL}\u{e0041}\n"), "n": 1 });
        let text = serde_json::to_string_pretty(&value).expect("JSON");
        let harmless = json(&text);
        assert!(harmless.chars().all(|c| c == '\n' || !steers(c)), "{harmless}");
        assert_eq!(crate::read_json::<serde_json::Value>(harmless.as_bytes()).expect("JSON"), value);
    }
}
