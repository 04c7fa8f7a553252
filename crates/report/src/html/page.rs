//! The page around the sections: one file that loads nothing. Its Content-Security-Policy allows only its own
//! style and script, by their hashes. Markup that got in by mistake could therefore not run.
//!
//! A page served by `lastdrop ui` has some more style and script. It may connect to its own server, and its
//! policy is sent as an HTTP header.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::text::{EscapedText, json_block};

const STYLE: &str = concat!(include_str!("assets/uPlot.min.css"), "\n", include_str!("assets/report.css"));
/// uPlot 1.6.32 as published, with its licence; then our script.
const SCRIPT: &str = concat!(
    "/*! uPlot\n",
    include_str!("assets/uPlot.LICENSE"),
    "*/\n",
    include_str!("assets/uPlot.iife.min.js"),
    "\n(() => {\n\"use strict\";\n",
    include_str!("assets/report.js"),
    "})();\n",
);
const SERVED_STYLE: &str = concat!(
    include_str!("assets/uPlot.min.css"),
    "\n",
    include_str!("assets/report.css"),
    include_str!("assets/served.css")
);
const SERVED_SCRIPT: &str = concat!(
    "/*! uPlot\n",
    include_str!("assets/uPlot.LICENSE"),
    "*/\n",
    include_str!("assets/uPlot.iife.min.js"),
    "\n(() => {\n\"use strict\";\n",
    include_str!("assets/report.js"),
    include_str!("assets/served.js"),
    "})();\n",
);

/// A section of the page.
#[derive(Debug)]
pub(super) struct Section {
    /// The subject, in a few words.
    pub title: String,
    /// Lines below the title: what was measured, and when.
    pub about: Vec<String>,
    pub body: Markup,
}

/// The contents of a page.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub title: &'a str,
    /// Markup before the sections.
    pub lead: Markup,
    pub sections: &'a [Section],
    /// Markup after the sections.
    pub tail: Markup,
    pub plots: &'a Value,
    pub made: &'a str,
    pub served: bool,
}

impl Page<'_> {
    /// The whole page.
    pub(super) fn html(&self) -> String {
        let sections = self.sections;
        // A page in a file has no HTTP header for its policy.
        let policy = (!self.served).then(|| policy(STYLE, SCRIPT, "form-action 'none'"));
        let (style, script) = if self.served { (SERVED_STYLE, SERVED_SCRIPT) } else { (STYLE, SCRIPT) };
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    @if let Some(policy) = policy { meta http-equiv="Content-Security-Policy" content=(policy); }
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="referrer" content="no-referrer";
                    meta name="color-scheme" content="light dark";
                    // Browsers would request /favicon.ico otherwise.
                    @if self.served { link rel="icon" href="data:,"; }
                    title { (EscapedText(self.title)) " – lastdrop" }
                    style { (PreEscaped(style)) }
                }
                body {
                    header.top {
                        p.brand { @if self.served { a href="/" { "lastdrop" } } @else { "lastdrop" } }
                        fieldset.theme {
                            legend { "Colours" }
                            @for (id, name, checked) in [("auto", "Auto", true), ("light", "Light", false), ("dark", "Dark", false)] {
                                input type="radio" name="theme" id=(id) checked[checked] autocomplete="off";
                                label for=(id) { (name) }
                            }
                        }
                    }
                    @if sections.len() > 1 {
                        nav aria-label="Sections" { ol {
                            @for (i, section) in sections.iter().enumerate() {
                                li { a href=(format!("#section-{}", i + 1)) { (EscapedText(&section.title)) } }
                            }
                        } }
                    }
                    main {
                        (self.lead)
                        @for (i, section) in sections.iter().enumerate() {
                            section.part id=(format!("section-{}", i + 1)) {
                                @if i == 0 { h1 { (EscapedText(&section.title)) } } @else { h2.second { (EscapedText(&section.title)) } }
                                @if !section.about.is_empty() {
                                    ul.about { @for line in &section.about { li { (EscapedText(line)) } } }
                                }
                                (section.body)
                            }
                        }
                        (self.tail)
                    }
                    footer {
                        p { (EscapedText(self.made)) }
                        @if !sections.is_empty() {
                            noscript { p { "Plots over time are drawn by this page's script, which is not allowed here; the tables have the same numbers." } }
                            details { summary { "Licences" } pre { "Plots over time: uPlot 1.6.32\n\n" (include_str!("assets/uPlot.LICENSE")) } }
                        }
                    }
                    script type="application/json" id="plots" { (PreEscaped(json_block(self.plots))) }
                    script { (PreEscaped(script)) }
                }
            }
        }
        .into_string()
    }
}

/// Returns the Content-Security-Policy for served pages.
#[must_use]
pub fn served_policy() -> String {
    policy(SERVED_STYLE, SERVED_SCRIPT, "connect-src 'self'; form-action 'self'; img-src data:; frame-ancestors 'none'")
}

fn policy(style: &str, script: &str, more: &str) -> String {
    let (style, script) = (hash(style), hash(script));
    format!("default-src 'none'; style-src '{style}'; script-src '{script}'; base-uri 'none'; {more}")
}

/// A hash as a source in a Content-Security-Policy.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_closed_to_what_is_not_its_own() {
        let evil = "</title></script><script>alert(1)</script><img src=x onerror=y>";
        let section = Section { title: evil.into(), about: vec![evil.into()], body: Markup::default() };
        let plots = serde_json::json!({ "a": evil });
        let lead = Markup::default();
        let page = Page {
            title: evil,
            lead: lead.clone(),
            sections: &[section],
            tail: lead,
            plots: &plots,
            made: evil,
            served: false,
        };
        let page = page.html();
        assert_eq!(page.matches("<script").count(), 2, "the data and our own");
        assert!(!page.contains("<img") && !page.contains("http://") && page.contains("default-src 'none'"));
        assert_eq!(page.matches(" src=").count(), page.matches("img src=x").count(), "what loads something is text");
    }

    #[test]
    fn assets_are_what_they_were_when_they_are_printed() {
        for text in [STYLE, SCRIPT, SERVED_STYLE, SERVED_SCRIPT] {
            assert!(
                !text.contains("</") && text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()),
                "changed on the way"
            );
        }
    }
}
