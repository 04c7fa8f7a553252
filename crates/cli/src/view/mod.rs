//! Live views of an experiment on a terminal: the choice of view, and the full-screen view.

pub mod canvas;
mod keys;
mod screen;
pub mod tty;

use std::ffi::OsStr;
use std::str::FromStr;

use lastdrop_experiment::lab::Observer;

pub use self::screen::Screen;
use self::tty::Stream;
use crate::narrator::Terminal;
use crate::signals::Stop;
use crate::stdio::{self, note};

/// How to show progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum View {
    /// The whole screen on an interactive terminal, otherwise lines.
    #[default]
    Auto,
    Lines,
    Full,
}

impl FromStr for View {
    type Err = String;

    fn from_str(text: &str) -> Result<View, String> {
        match text {
            "auto" => Ok(View::Auto),
            "lines" => Ok(View::Lines),
            "full" => Ok(View::Full),
            other => Err(format!("'{other}' is no view; there are auto, lines and full")),
        }
    }
}

/// The options about a command's progress.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub view: View,
    pub quiet: bool,
    /// stdout is a document.
    pub document: bool,
}

impl Progress {
    /// The observer that shows progress to the user.
    pub fn observer(self, stop: &Stop) -> Box<dyn Observer> {
        if !self.quiet && self.is_full() {
            match Screen::new(stop.clone(), has_colour(std::env::var_os("NO_COLOR").as_deref())) {
                Ok(screen) => return Box::new(screen),
                Err(e) => note!("note: no view of the whole screen here: {e}"),
            }
        }
        Box::new(Terminal::new(self.quiet))
    }

    fn is_full(self) -> bool {
        let drawable = tty::is_ours(Stream::Stderr) && can_draw(std::env::var_os("TERM").as_deref());
        match self.view {
            View::Lines => false,
            View::Full if !drawable => {
                note!("note: stderr is no terminal to draw on: progress in lines");
                false
            }
            View::Full => true,
            // Build servers have terminals, too, but nobody watches them.
            View::Auto => {
                drawable
                    && stdio::out_is_terminal()
                    && !self.document
                    && std::env::var_os("CI").is_none_or(|v| v.is_empty())
            }
        }
    }
}

fn can_draw(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// The convention of no-color.org.
fn has_colour(no_color: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_cannot_draw_gets_lines() {
        let term = |name: &'static str| can_draw(Some(OsStr::new(name)));
        assert!(term("xterm-256color") && term("screen") && term("vt100"));
        assert!(!term("dumb") && !term("") && !can_draw(None));
        assert!(has_colour(None) && has_colour(Some(OsStr::new(""))) && !has_colour(Some(OsStr::new("1"))));
    }

    #[test]
    fn a_view_is_one_of_three() {
        assert_eq!("full".parse(), Ok(View::Full));
        assert!("fancy".parse::<View>().is_err_and(|e| e.contains("auto, lines and full")));
    }
}
