//! Settings of a server and the knobs that they turn.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A value of a setting, as the configuration file would have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    Count(i64),
    Text(String),
}

impl Setting {
    /// Reads a word of a configuration file: a number where it is one.
    #[must_use]
    pub fn read(word: &str) -> Setting {
        word.parse().map_or_else(|_| Setting::Text(word.to_string()), Setting::Count)
    }

    #[must_use]
    pub fn count(&self) -> Option<i64> {
        match self {
            Setting::Count(n) => Some(*n),
            Setting::Text(_) => None,
        }
    }

    /// Is this the "on" of a switch, in any of the ways in which servers spell it?
    #[must_use]
    pub fn is_on(&self) -> bool {
        match self {
            Setting::Count(n) => *n != 0,
            Setting::Text(t) => t.eq_ignore_ascii_case("on") || t.eq_ignore_ascii_case("true"),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Count(n) => write!(f, "{n}"),
            Setting::Text(t) => f.write_str(t),
        }
    }
}

impl From<u64> for Setting {
    fn from(n: u64) -> Setting {
        Setting::Count(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<&str> for Setting {
    fn from(t: &str) -> Setting {
        Setting::read(t)
    }
}

/// Settings by directive name, in the server's own spelling.
pub type Settings = BTreeMap<String, Setting>;

/// Settings in a line for a person. Spares follow the number of servers started; a line that says one says the others.
#[must_use]
pub fn describe(settings: &Settings) -> String {
    if settings.is_empty() {
        return "as it is".into();
    }
    let follows = |name: &str| {
        settings.contains_key("StartServers")
            && (name.starts_with("MinSpare") || name.starts_with("MaxSpare") || name == "ServerLimit")
    };
    let shown: Vec<String> =
        settings.iter().filter(|(name, _)| !follows(name)).map(|(name, value)| format!("{name} {value}")).collect();
    let dots = if shown.len() < settings.len() { ", …" } else { "" };
    shown.join(", ") + dots
}

/// What a knob is for, so that a search can treat every server alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// How many workers may run at once.
    PoolSize,
    /// The hard ceiling that the pool size needs.
    PoolCeiling,
    PoolStart,
    SpareMin,
    SpareMax,
    ThreadsPerWorker,
    /// A worker is replaced after this many connections or requests; 0 is never.
    Recycle,
    KeepAlive,
    KeepAliveTimeout,
    KeepAliveRequests,
    Backlog,
    Timeout,
}

/// What a change of a knob needs to take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReloadClass {
    Reload,
    Restart,
}

/// A setting that can be changed, and what is known about it.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    pub name: &'static str,
    pub role: Role,
    /// Smallest and largest value, for counts; (0, 1) for switches.
    pub range: (i64, i64),
    /// A switch takes On and Off, everything else a count.
    pub switch: bool,
    /// What the server uses where the configuration says nothing.
    pub default: &'static str,
    pub needs: ReloadClass,
    /// What it depends on, in a sentence.
    pub constraint: &'static str,
}

/// The knob that has a role, in a table of knobs.
#[must_use]
pub fn knob_for(knobs: &'static [Knob], role: Role) -> Option<&'static Knob> {
    knobs.iter().find(|k| k.role == role)
}

impl Knob {
    /// Is the value one that the knob can take at all?
    ///
    /// # Errors
    /// A sentence with the range.
    pub fn check(&self, value: &Setting) -> Result<(), String> {
        match value {
            Setting::Text(t) if self.switch => {
                if t.eq_ignore_ascii_case("on") || t.eq_ignore_ascii_case("off") {
                    Ok(())
                } else {
                    Err(format!("{} is On or Off, not '{t}'", self.name))
                }
            }
            Setting::Count(n) if !self.switch && (self.range.0..=self.range.1).contains(n) => Ok(()),
            other if self.switch => Err(format!("{} is On or Off, not '{other}'", self.name)),
            other => Err(format!("{} is a number from {} to {}, not '{other}'", self.name, self.range.0, self.range.1)),
        }
    }
}
