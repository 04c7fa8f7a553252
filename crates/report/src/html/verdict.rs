//! The headline of a section: one sentence that can be read aloud, and the few numbers behind it.

use lastdrop_model::printable;
use maud::{Markup, html};

use super::text::EscapedText;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    /// For information.
    Note,
    Warning,
    Bad,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Tone::Good => "good",
            Tone::Note => "note",
            Tone::Warning => "warning",
            Tone::Bad => "bad",
        }
    }

    /// The word that repeats what the colour says.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Tone::Good => "Good",
            Tone::Note => "Result",
            Tone::Warning => "Careful",
            Tone::Bad => "Not good",
        }
    }
}

/// The headline of a section, with its sentences and numbers.
#[derive(Debug)]
pub(crate) struct Headline {
    pub tone: Tone,
    /// One sentence.
    pub headline: String,
    /// Further sentences.
    pub sentences: Vec<String>,
    /// Numbers, each as (value, name).
    pub numbers: Vec<(String, String)>,
}

impl Headline {
    pub(super) fn new(tone: Tone, headline: impl Into<String>) -> Headline {
        Headline { tone, headline: headline.into(), sentences: Vec::new(), numbers: Vec::new() }
    }

    pub(super) fn say(&mut self, sentence: impl Into<String>) {
        self.sentences.push(sentence.into());
    }

    pub(super) fn number(&mut self, value: impl Into<String>, name: impl Into<String>) {
        self.numbers.push((value.into(), name.into()));
    }

    /// Returns the headline as the first line of a text.
    pub(crate) fn line(&self) -> String {
        format!("{}: {}\n\n", self.tone.word(), printable::line(&self.headline))
    }

    pub(super) fn shown(&self) -> Markup {
        html! {
            div.verdict.(self.tone.class()) {
                p.headline { span.tone { (self.tone.word()) } " " (EscapedText(&self.headline)) }
                @for sentence in &self.sentences { p { (EscapedText(sentence)) } }
            }
            @if !self.numbers.is_empty() {
                dl.key { @for (value, name) in &self.numbers { div { dt { (EscapedText(name)) } dd { (EscapedText(value)) } } } }
            }
        }
    }
}
