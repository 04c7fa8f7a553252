//! Foreign text on its way into a page. Markup appears only in our own source, since `maud` escapes every
//! value. What remains is to make control characters visible, and to keep a JSON block from ending its script
//! element.

use lastdrop_model::printable;
use maud::{Markup, Render};
use serde_json::Value;

/// Foreign text in one line: control characters and direction marks are made visible, and all markup is
/// escaped.
#[derive(Debug, Clone, Copy)]
pub struct EscapedText<'a>(pub &'a str);

impl Render for EscapedText<'_> {
    fn render_to(&self, buffer: &mut String) {
        printable::line(self.0).render_to(buffer);
    }
}

/// Renders foreign text of several lines, for blocks of configuration.
pub(super) fn block(text: &str) -> Markup {
    printable::Printable::from(text).as_str().render()
}

/// Cuts a text after `most` characters and marks the cut.
pub(super) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

/// Renders JSON for a script element. No character in it ends the element or begins a comment. The line
/// separators U+2028 and U+2029 are escaped for old JavaScript engines.
pub(super) fn json_block(value: &Value) -> String {
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    const EVIL: &str = "</script><script>alert(1)</script><!--\" onx='y' \u{2028}\u{202e}\x1b[31m\0&amp;";

    #[test]
    fn what_others_say_is_text_and_never_markup() {
        let page = html! { p title=(EscapedText(EVIL)) { (EscapedText(EVIL)) } }.into_string();
        assert_eq!(page.matches('<').count(), 2, "{page}");
        assert_eq!(page.matches('"').count(), 2, "{page}");
        assert!(page.contains("\\x1b[31m") && page.contains("\\u{202e}") && page.contains("&amp;amp;"), "{page}");
        assert!(page.chars().all(|c| !c.is_control()), "{page:?}");
    }

    #[test]
    fn a_block_of_json_is_closed_by_us_alone() {
        let text = json_block(&serde_json::json!({ EVIL: EVIL }));
        assert!(!text.contains(['<', '>', '&', '\u{2028}']), "{text}");
        let back: Value = lastdrop_model::read_json(&text).expect("still JSON");
        assert_eq!(back[EVIL], EVIL);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        assert_eq!((short("äöü", 2).as_str(), short("äöü", 3).as_str()), ("äö…", "äöü"));
    }
}
