//! Profilers of the languages that servers execute: what they need in a configuration, the code of lastdrop's that
//! switches them on and writes their records, and the command that installs a missing one.
//!
//! A record has two sorts of lines. `s`, a tab, a stack, a tab, a weight: the frames of the stack are separated by `;`,
//! the outermost caller first. `c`, a tab, a frame, a tab, a count: how often it was called. A frame is
//! `name|file|line`.

pub mod perl;

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use lastdrop_files::input;
use serde::{Deserialize, Serialize};

use crate::ServerError;

/// A language whose functions can be profiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Language {
    Perl,
}

impl Language {
    pub const ALL: [Language; 1] = [Language::Perl];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Language::Perl => "perl",
        }
    }

    /// Its profiler.
    #[must_use]
    pub fn tool(self) -> &'static str {
        match self {
            Language::Perl => "Devel::NYTProf",
        }
    }

    /// The command that installs the profiler.
    #[must_use]
    pub fn installed_by(self) -> &'static str {
        match self {
            Language::Perl => "on Debian: apt-get install libdevel-nytprof-perl",
        }
    }

    /// The error where the profiler is missing.
    #[must_use]
    pub fn missing(self) -> String {
        format!(
            "{} is not installed; {}. Without --code the functions of programs and libraries are shown",
            self.tool(),
            self.installed_by()
        )
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Language {
    type Err = String;

    fn from_str(text: &str) -> Result<Language, String> {
        let names = Language::ALL.map(Language::name).join(", ");
        let one = Language::ALL.into_iter().find(|language| language.name() == text);
        one.ok_or(format!("'{text}' is none of the languages that can be profiled: {names}"))
    }
}

/// What a profiler counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Time on a processor.
    Cpu,
    /// Time that passes, waits included.
    Wall,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clock::Cpu => "CPU time",
            Clock::Wall => "wall time",
        })
    }
}

fn read_lossy(path: &Path) -> Result<String, ServerError> {
    let mut bytes = Vec::new();
    let read = input::open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(ServerError::io(format!("cannot read {}", path.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
