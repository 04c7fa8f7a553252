//! What a page embeds, as a browser fetches it: style sheets, scripts, images, frames.

use html5gum::{DefaultEmitter, Token, Tokenizer};
use lastdrop_model::Url;

/// More than this on one page is a page that nobody waits for.
const MOST_RESOURCES: usize = 1000;

/// URLs that a page makes a browser fetch, in the order of the page, each once.
#[must_use]
pub fn embedded(html: &[u8], page: &Url) -> Vec<Url> {
    let mut base = page.clone();
    let mut found: Vec<Url> = Vec::new();
    let mut emitter = DefaultEmitter::default();
    // What stands in a script is no tag.
    emitter.naively_switch_states(true);
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(Token::StartTag(tag)) = token else { continue };
        let attribute = |name: &str| {
            tag.attributes
                .iter()
                .find(|(key, _)| key.as_slice() == name.as_bytes())
                .map(|(_, value)| String::from_utf8_lossy(value.as_slice()).into_owned())
        };
        let reference = match tag.name.as_slice() {
            b"base" => {
                if let Some(joined) = attribute("href").and_then(|href| page.join(&href).ok()) {
                    base = joined;
                }
                None
            }
            b"img" | b"script" | b"iframe" | b"frame" | b"embed" | b"audio" | b"video" | b"source" => attribute("src"),
            b"input" if attribute("type").is_some_and(|t| t.eq_ignore_ascii_case("image")) => attribute("src"),
            b"link" => {
                let rel = attribute("rel").unwrap_or_default().to_ascii_lowercase();
                let fetched =
                    rel.split_whitespace().any(|r| ["stylesheet", "icon", "preload", "modulepreload"].contains(&r));
                if fetched { attribute("href") } else { None }
            }
            b"body" | b"table" | b"td" => attribute("background"),
            b"object" => attribute("data"),
            _ => None,
        };
        if let Some(url) = reference.filter(|r| !r.trim().is_empty()).and_then(|r| base.join(&r).ok())
            && !found.contains(&url)
        {
            found.push(url);
            if found.len() == MOST_RESOURCES {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_browser_would_fetch_is_found() {
        let html = br#"<!doctype html><html><head><link rel="stylesheet" href="s.css"><link rel=canonical href=/x>
            <script src="/j.js"></script><!-- <img src=no.png> --></head><body background='b.gif'>
            <img src="i.png"><IMG SRC=i.png><img src="data:image/png;base64,xx"><a href="page2">x</a>
            <input type=image src="button.gif"><iframe src="//other/f"></iframe><script>var x = "<img src=no2.png>";</script>"#;
        let urls: Vec<String> =
            embedded(html, &"http://h/d/p".parse().expect("valid")).iter().map(ToString::to_string).collect();
        assert_eq!(
            urls,
            [
                "http://h/d/s.css",
                "http://h/j.js",
                "http://h/d/b.gif",
                "http://h/d/i.png",
                "http://h/d/button.gif",
                "http://other/f"
            ]
        );
    }

    #[test]
    fn a_base_moves_the_links() {
        let urls = embedded(b"<base href='/deep/'><img src=a>", &"http://h/".parse().expect("valid"));
        assert_eq!(urls[0].to_string(), "http://h/deep/a");
    }

    #[test]
    fn garbage_is_no_page() {
        assert!(embedded(&[0xff, 0x00, b'<', 0xfe, b'>'], &"http://h/".parse().expect("valid")).is_empty());
    }
}
