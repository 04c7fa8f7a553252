//! The keys of a view.

use std::time::Instant;

use lastdrop_report::live::{Pane, ScreenOptions};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Commands of keys that do more than change the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyCommand {
    Nothing,
    /// End the run, with a report.
    Stop,
    /// Freeze the view, or unfreeze it.
    Hold,
    /// A mark at a moment.
    Mark(Instant, String),
    /// Redraw the whole screen.
    Redraw,
}

/// Limit of a mark's text, in characters.
const LONGEST_MARK: usize = 200;
const PAGE: usize = 10;

/// State of the keyboard input.
#[derive(Debug, Default)]
pub struct Keys {
    /// When the user began to write the present mark; that is the mark's time.
    since: Option<Instant>,
    /// Number of marks so far; a mark without text gets it as its name.
    marks: u32,
}

impl Keys {
    pub fn press(&mut self, key: KeyEvent, manner: &mut ScreenOptions, panes: &[Pane], now: Instant) -> KeyCommand {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if let Some(text) = &mut manner.writing {
            match key.code {
                KeyCode::Enter => {
                    self.marks += 1;
                    let text = text.trim();
                    let text = if text.is_empty() { format!("mark {}", self.marks) } else { text.to_string() };
                    manner.writing = None;
                    return KeyCommand::Mark(self.since.take().unwrap_or(now), text);
                }
                KeyCode::Esc => manner.writing = None,
                KeyCode::Backspace => {
                    text.pop();
                }
                KeyCode::Char(c) if !control && !c.is_control() && text.chars().count() < LONGEST_MARK => text.push(c),
                _ => {}
            }
            return KeyCommand::Nothing;
        }
        if manner.help {
            manner.help = false;
            return KeyCommand::Nothing;
        }
        let list = |manner: &mut ScreenOptions, back: isize| manner.skip = manner.skip.saturating_add_signed(back);
        let step = |manner: &mut ScreenOptions, steps: isize| {
            (manner.pane, manner.skip) = (manner.pane.step(panes, steps), 0);
        };
        match key.code {
            KeyCode::Char('l') if control => return KeyCommand::Redraw,
            KeyCode::Char('c') if control => return KeyCommand::Stop,
            // Ignore other control keys: a terminal sends a zero byte for Ctrl-Space.
            KeyCode::Char(_) if control => {}
            KeyCode::Char('q') => return KeyCommand::Stop,
            KeyCode::Char('p' | ' ') => return KeyCommand::Hold,
            KeyCode::Char('m') => {
                (self.since, manner.writing) = (Some(now), Some(String::new()));
            }
            KeyCode::Char('?' | 'h') => manner.help = true,
            KeyCode::Tab | KeyCode::Right => step(manner, 1),
            KeyCode::BackTab | KeyCode::Left => step(manner, -1),
            KeyCode::Esc => (manner.pane, manner.skip) = (Pane::Overview, 0),
            KeyCode::Char(c @ '1'..='9') => {
                if let Some(pane) = panes.get(c as usize - '1' as usize) {
                    (manner.pane, manner.skip) = (*pane, 0);
                }
            }
            KeyCode::Up => list(manner, 1),
            KeyCode::Down => list(manner, -1),
            KeyCode::PageUp => list(manner, PAGE as isize),
            KeyCode::PageDown => list(manner, -(PAGE as isize)),
            KeyCode::End => manner.skip = 0,
            _ => {}
        }
        KeyCommand::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn typed(keys: &mut Keys, manner: &mut ScreenOptions, text: &str, now: Instant) -> KeyCommand {
        let mut last = KeyCommand::Nothing;
        for c in text.chars() {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            last = keys.press(code.into(), manner, &Pane::ALL, now);
        }
        last
    }

    #[test]
    fn a_mark_has_the_moment_of_its_key_and_takes_keys_as_letters() {
        let (mut keys, mut manner, then) = (Keys::default(), ScreenOptions::default(), Instant::now());
        assert_eq!(typed(&mut keys, &mut manner, "m", then), KeyCommand::Nothing);
        let later = then + Duration::from_secs(5);
        assert_eq!(typed(&mut keys, &mut manner, "quick ?\n", later), KeyCommand::Mark(then, "quick ?".into()));
        assert_eq!(manner.writing, None);
        assert_eq!(typed(&mut keys, &mut manner, "m\n", later), KeyCommand::Mark(later, "mark 2".into()));
        typed(&mut keys, &mut manner, "mx", then);
        keys.press(KeyCode::Esc.into(), &mut manner, &Pane::ALL, then);
        assert_eq!(manner.writing, None);
        assert_eq!(typed(&mut keys, &mut manner, "q", then), KeyCommand::Stop);
    }

    #[test]
    fn panes_go_round_among_those_that_there_are() {
        let (mut keys, mut manner, now) = (Keys::default(), ScreenOptions::default(), Instant::now());
        let panes = [Pane::Overview, Pane::Latency, Pane::News];
        for (key, expected) in [
            (KeyCode::Tab, Pane::Latency),
            (KeyCode::Tab, Pane::News),
            (KeyCode::Tab, Pane::Overview),
            (KeyCode::BackTab, Pane::News),
            (KeyCode::Char('2'), Pane::Latency),
            (KeyCode::Char('7'), Pane::Latency),
            (KeyCode::Esc, Pane::Overview),
        ] {
            keys.press(key.into(), &mut manner, &panes, now);
            assert_eq!(manner.pane, expected, "{key:?}");
        }
    }

    #[test]
    fn help_is_closed_by_any_key_and_nothing_else_happens() {
        let (mut keys, mut manner, now) = (Keys::default(), ScreenOptions::default(), Instant::now());
        assert_eq!(typed(&mut keys, &mut manner, "?", now), KeyCommand::Nothing);
        assert!(manner.help);
        assert_eq!(typed(&mut keys, &mut manner, "q", now), KeyCommand::Nothing);
        assert!(!manner.help);
    }
}
