//! Finds what a page embeds, as a browser fetches it: style sheets, scripts, images, frames.
//!
//! The page may come from a hostile server, and it is parsed between the events of thousands of connections. So only
//! its references are kept. Each is compared with earlier ones as written, and only then made a URL. Their number and
//! length are bounded; those beyond the bounds are counted.

use std::collections::HashSet;
use std::convert::Infallible;

use html5gum::emitters::{Emitter, naive_next_state};
use html5gum::{Error, State, Tokenizer};
use lastdrop_model::Url;
use lastdrop_model::url::is_of_other_scheme;

/// Only the beginning of a longer page is parsed. That takes this thread up to 30 ms (measured with pages of tags
/// alone).
const MOST_PAGE_BYTES: usize = 2 << 20;
/// More references than any real page has.
const MOST_REFERENCES: usize = 1000;
/// Every server refuses longer request lines.
const LONGEST_REFERENCE: usize = 8192;
/// Total size of the URLs of one page: a long `<base>` goes into each of them.
const MOST_URL_BYTES: usize = 1 << 20;

/// The resources that a page makes a browser fetch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PageResources {
    /// In page order, without duplicates.
    pub urls: Vec<Url>,
    /// References that are not loadable URLs.
    pub unusable: u64,
    /// References beyond the bounds: too many or too long.
    pub left_out: u64,
}

/// Returns the URLs that a page at `page` makes a browser fetch.
#[must_use]
pub fn embedded(html: &[u8], page: &Url) -> PageResources {
    let mut links = Links {
        base: page.clone(),
        base_is_said: false,
        seen: HashSet::new(),
        urls: HashSet::new(),
        url_bytes: 0,
        found: PageResources::default(),
    };
    let emitter = TagReader { tag: Tag::default(), last_start: Vec::new(), links: &mut links };
    let Ok(()) = Tokenizer::new_with_emitter(&html[..html.len().min(MOST_PAGE_BYTES)], emitter).finish();
    links.found.left_out += u64::from(html.len() > MOST_PAGE_BYTES);
    links.found
}

/// The references of a page found so far.
struct Links {
    base: Url,
    /// Only the first `<base>` counts.
    base_is_said: bool,
    /// The references as written, and as URLs.
    seen: HashSet<Vec<u8>>,
    urls: HashSet<Url>,
    url_bytes: usize,
    found: PageResources,
}

impl Links {
    fn take(&mut self, tag: &Tag) {
        let reference = match tag.name.as_slice() {
            b"base" => {
                if let Some(href) = tag.get(Attribute::Href).filter(|_| !self.base_is_said) {
                    self.move_base(href);
                }
                None
            }
            b"img" | b"script" | b"iframe" | b"frame" | b"embed" | b"audio" | b"video" | b"source" => {
                tag.get(Attribute::Src)
            }
            b"input" if tag.get(Attribute::Type).is_some_and(|t| t.eq_ignore_ascii_case(b"image")) => {
                tag.get(Attribute::Src)
            }
            b"link" => tag.get(Attribute::Href).filter(|_| is_fetched(tag.get(Attribute::Rel).unwrap_or_default())),
            b"body" | b"table" | b"td" => tag.get(Attribute::Background),
            b"object" => tag.get(Attribute::Data),
            _ => None,
        };
        if let Some(reference) = reference.filter(|r| !r.trim_ascii().is_empty() && !is_of_other_scheme(r)) {
            self.add(reference);
        }
    }

    fn move_base(&mut self, href: &[u8]) {
        self.base_is_said = true;
        if href.len() > LONGEST_REFERENCE {
            self.found.left_out += 1;
        } else if let Ok(base) = self.base.join(href) {
            self.base = base;
            // References before the base had another meaning.
            self.seen.clear();
        }
    }

    fn add(&mut self, reference: &[u8]) {
        if self.seen.contains(reference) {
            return;
        }
        let enough = self.urls.len() >= MOST_REFERENCES || self.url_bytes >= MOST_URL_BYTES;
        if enough || self.seen.len() >= 2 * MOST_REFERENCES || reference.len() > LONGEST_REFERENCE {
            self.found.left_out += 1;
            return;
        }
        self.seen.insert(reference.to_vec());
        match self.base.join(reference) {
            Err(_) => self.found.unusable += 1,
            Ok(url) if self.urls.contains(&url) => {}
            Ok(url) => {
                self.url_bytes += url.path.len();
                self.urls.insert(url.clone());
                self.found.urls.push(url);
            }
        }
    }
}

/// Whether a `<link>` with this `rel` makes a browser fetch something.
fn is_fetched(rel: &[u8]) -> bool {
    let fetched: [&[u8]; 4] = [b"stylesheet", b"icon", b"preload", b"modulepreload"];
    rel.split(u8::is_ascii_whitespace).any(|word| fetched.iter().any(|f| word.eq_ignore_ascii_case(f)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attribute {
    Src,
    Href,
    Rel,
    Type,
    Background,
    Data,
}

const ATTRIBUTES: [(&[u8], Attribute); 6] = [
    (b"src", Attribute::Src),
    (b"href", Attribute::Href),
    (b"rel", Attribute::Rel),
    (b"type", Attribute::Type),
    (b"background", Attribute::Background),
    (b"data", Attribute::Data),
];

/// Longer than any tag or attribute name of interest.
const LONGEST_NAME: usize = 16;

/// The tag being read. Its memory is reused for the next one.
#[derive(Debug, Default)]
struct Tag {
    name: Vec<u8>,
    is_end: bool,
    attribute: Vec<u8>,
    /// The attribute that the current value belongs to; `None` if it is of no interest.
    current: Option<Attribute>,
    /// The first value of each attribute; the flag says whether there is one.
    values: [(bool, Vec<u8>); ATTRIBUTES.len()],
}

impl Tag {
    fn begin(&mut self, is_end: bool) {
        self.is_end = is_end;
        self.name.clear();
        self.attribute.clear();
        self.current = None;
        for (is_there, value) in &mut self.values {
            *is_there = false;
            value.clear();
        }
    }

    fn get(&self, attribute: Attribute) -> Option<&[u8]> {
        let (is_there, value) = &self.values[attribute as usize];
        is_there.then_some(value.as_slice())
    }

    /// Handles the end of an attribute's name.
    fn named(&mut self) {
        if self.attribute.is_empty() {
            return;
        }
        let known = ATTRIBUTES.iter().find(|(name, _)| *name == self.attribute.as_slice());
        // Of two attributes with the same name the first counts.
        self.current = known.map(|(_, a)| *a).filter(|a| !self.values[*a as usize].0);
        if let Some(attribute) = self.current {
            self.values[attribute as usize].0 = true;
        }
        self.attribute.clear();
    }
}

/// Appends bytes up to a total of `most`.
fn push(to: &mut Vec<u8>, bytes: &[u8], most: usize) {
    to.extend_from_slice(&bytes[..bytes.len().min(most - to.len().min(most))]);
}

/// Takes tags and their attributes from the tokenizer, and nothing else.
struct TagReader<'a> {
    tag: Tag,
    last_start: Vec<u8>,
    links: &'a mut Links,
}

impl Emitter for TagReader<'_> {
    type Token = Infallible;

    fn pop_token(&mut self) -> Option<Infallible> {
        None
    }

    fn should_emit_errors(&mut self) -> bool {
        false
    }

    fn set_last_start_tag(&mut self, name: Option<&[u8]>) {
        self.last_start.clear();
        push(&mut self.last_start, name.unwrap_or_default(), LONGEST_NAME);
    }

    fn init_start_tag(&mut self) {
        self.tag.begin(false);
    }

    fn init_end_tag(&mut self) {
        self.tag.begin(true);
    }

    fn push_tag_name(&mut self, s: &[u8]) {
        push(&mut self.tag.name, s, LONGEST_NAME);
    }

    fn init_attribute(&mut self) {
        self.tag.named();
        self.tag.current = None;
    }

    fn push_attribute_name(&mut self, s: &[u8]) {
        push(&mut self.tag.attribute, s, LONGEST_NAME);
    }

    fn push_attribute_value(&mut self, s: &[u8]) {
        self.tag.named();
        if let Some(attribute) = self.tag.current {
            // One byte more than allowed marks the value as too long.
            push(&mut self.tag.values[attribute as usize].1, s, LONGEST_REFERENCE + 1);
        }
    }

    fn emit_current_tag(&mut self) -> Option<State> {
        self.tag.named();
        if self.tag.is_end {
            self.last_start.clear();
            return None;
        }
        self.last_start.clone_from(&self.tag.name);
        self.links.take(&self.tag);
        // The content of a script has no tags.
        naive_next_state(&self.tag.name)
    }

    fn current_is_appropriate_end_tag_token(&mut self) -> bool {
        self.tag.is_end && !self.last_start.is_empty() && self.tag.name == self.last_start
    }

    fn emit_eof(&mut self) {}
    fn emit_error(&mut self, _: Error) {}
    fn emit_string(&mut self, _: &[u8]) {}
    fn init_comment(&mut self) {}
    fn emit_current_comment(&mut self) {}
    fn emit_current_doctype(&mut self) {}
    fn set_self_closing(&mut self) {}
    fn set_force_quirks(&mut self) {}
    fn push_comment(&mut self, _: &[u8]) {}
    fn push_doctype_name(&mut self, _: &[u8]) {}
    fn init_doctype(&mut self) {}
    fn set_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn set_doctype_system_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_system_identifier(&mut self, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(html: &[u8], page: &str) -> (Vec<String>, PageResources) {
        let found = embedded(html, &page.parse().expect("valid"));
        (found.urls.iter().map(ToString::to_string).collect(), found)
    }

    #[test]
    fn what_a_browser_would_fetch_is_found() {
        let html = br#"<!doctype html><html><head><link rel="stylesheet" href="s.css"><link rel=canonical href=/x>
            <script src="/j.js"></script><!-- <img src=no.png> --></head><body background='b.gif'>
            <img src="i.png" src="no3.png"><IMG alt SRC=i.png><img src="data:image/png;base64,xx"><a href="page2">x</a>
            <input type=image src="button.gif"><iframe src="//other/f"></iframe><script>var x = "<img src=no2.png>";</script>
            <img src=after.png?a&amp;b></img src=no4.png>"#;
        let (urls, found) = found(html, "http://h/d/p");
        assert_eq!(
            urls,
            [
                "http://h/d/s.css",
                "http://h/j.js",
                "http://h/d/b.gif",
                "http://h/d/i.png",
                "http://h/d/button.gif",
                "http://other/f",
                "http://h/d/after.png?a&b"
            ]
        );
        assert_eq!((found.unusable, found.left_out), (0, 0));
    }

    #[test]
    fn the_first_base_moves_the_links_behind_it() {
        let (urls, _) = found(b"<img src=a><base href='/deep/'><base href=/no/><img src=a>", "http://h/");
        assert_eq!(urls, ["http://h/a", "http://h/deep/a"]);
    }

    #[test]
    fn references_are_encoded_and_those_that_are_no_urls_counted() {
        let html = b"<img src='a b<c'><img src=\"x\xe9`\"><img src=http://[/><img src=//u@h/><img src=mailto:x>";
        let (urls, found) = found(html, "http://h/");
        assert_eq!(urls, ["http://h/a%20b%3Cc", "http://h/x%E9%60"]);
        assert_eq!((found.unusable, found.left_out), (2, 0));
    }

    #[test]
    fn garbage_is_no_page() {
        assert_eq!(
            embedded(&[0xff, 0x00, b'<', 0xfe, b'>'], &"http://h/".parse().expect("valid")),
            PageResources::default()
        );
    }

    #[test]
    fn the_references_of_a_page_have_a_bound_and_the_rest_is_counted() {
        let page = |base: &str| {
            let mut html = format!("<base href='/{base}x'>").into_bytes();
            for i in 0..100_000 {
                html.extend_from_slice(format!("<img src={}>", i % 2000).as_bytes());
            }
            html.extend_from_slice(format!("<img src={}>", "y".repeat(LONGEST_REFERENCE + 1)).as_bytes());
            found(&html, "http://h/")
        };
        let (urls, found) = page("d/");
        assert_eq!((urls.len(), found.left_out), (MOST_REFERENCES, 50_000 + 1));
        assert_eq!(urls[999], "http://h/d/999");
        // A long base would make 800 MB of URLs out of them.
        let (urls, found) = page(&"d/".repeat(4000));
        assert!((131..=132).contains(&urls.len()) && found.left_out > 90_000, "{} {}", urls.len(), found.left_out);
        let (_, found) = self::found(&vec![0; MOST_PAGE_BYTES + 1], "http://h/");
        assert_eq!(found.left_out, 1);
    }
}
