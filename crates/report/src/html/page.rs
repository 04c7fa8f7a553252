//! The page around the sections: one file that asks nobody for anything. Its policy (Content-Security-Policy) forbids all but
//! its own style and script, which are known by their hashes; so nothing that got into it by mistake would be carried out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::text::{Said, json_block};

const STYLE: &str = concat!(include_str!("assets/uPlot.min.css"), "\n", include_str!("assets/report.css"));
/// uPlot 1.6.32, as it was published, under its licence; then ours.
const SCRIPT: &str = concat!(
    "/*! uPlot\n",
    include_str!("assets/uPlot.LICENSE"),
    "*/\n",
    include_str!("assets/uPlot.iife.min.js"),
    "\n",
    include_str!("assets/report.js"),
);

/// A section of the page.
#[derive(Debug)]
pub(super) struct Section {
    /// What it is about, in a few words.
    pub title: String,
    /// Beneath the title: what was measured, when.
    pub about: Vec<String>,
    pub body: Markup,
}

/// The whole page.
pub(super) fn page(title: &str, sections: &[Section], plots: &Value, made: &str) -> String {
    let policy = format!(
        "default-src 'none'; style-src '{}'; script-src '{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    );
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                meta name="color-scheme" content="light dark";
                title { (Said(title)) " – lastdrop" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header.top {
                    p.brand { "lastdrop" }
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
                            li { a href=(format!("#section-{}", i + 1)) { (Said(&section.title)) } }
                        }
                    } }
                }
                main {
                    @for (i, section) in sections.iter().enumerate() {
                        section.part id=(format!("section-{}", i + 1)) {
                            @if i == 0 { h1 { (Said(&section.title)) } } @else { h2.second { (Said(&section.title)) } }
                            @if !section.about.is_empty() {
                                ul.about { @for line in &section.about { li { (Said(line)) } } }
                            }
                            (section.body)
                        }
                    }
                }
                footer {
                    p { (Said(made)) }
                    noscript { p { "Plots over time are drawn by this page's script, which is not allowed here; the tables have the same numbers." } }
                    details { summary { "Licences" } pre { "Plots over time: uPlot 1.6.32\n\n" (include_str!("assets/uPlot.LICENSE")) } }
                }
                script type="application/json" id="plots" { (PreEscaped(json_block(plots))) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

/// A source of a policy.
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
        let page = page(evil, &[section], &serde_json::json!({ "a": evil }), evil);
        assert_eq!(page.matches("<script").count(), 2, "the data and our own");
        assert!(!page.contains("<img") && !page.contains("http://") && page.contains("default-src 'none'"));
        assert_eq!(page.matches(" src=").count(), page.matches("img src=x").count(), "what loads something is text");
    }

    #[test]
    fn assets_are_what_they_were_when_they_are_printed() {
        for text in [STYLE, SCRIPT] {
            assert!(
                !text.contains("</") && text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()),
                "changed on the way"
            );
        }
    }
}
