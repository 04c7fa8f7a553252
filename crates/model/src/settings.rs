//! Settings of a server, and the knobs that describe what can be set.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

mod knob_json;

/// A value of a setting, as the configuration file spells it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    Count(i64),
    Text(String),
}

impl Setting {
    /// Reads a word of a configuration file, as a number if it is one.
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

    /// Returns true if the value means "on" in any server's spelling.
    #[must_use]
    pub fn is_on(&self) -> bool {
        match self {
            Setting::Count(n) => *n != 0,
            Setting::Text(t) => ["on", "true", "yes"].iter().any(|w| t.eq_ignore_ascii_case(w)),
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

/// Returns all settings as one line of text.
#[must_use]
pub fn describe(settings: &Settings) -> String {
    if settings.is_empty() {
        return "as it is".into();
    }
    let shown: Vec<String> = settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    shown.join(", ")
}

/// Purpose of a knob, the same for every server, so that a search can treat all servers alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Most workers that may run at once.
    PoolSize,
    /// The hard ceiling of the pool size, such as ServerLimit.
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
    /// A kernel setting; it takes effect at once.
    Sysctl,
}

impl ReloadClass {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReloadClass::Reload => "reload",
            ReloadClass::Restart => "restart",
            ReloadClass::Sysctl => "sysctl",
        }
    }
}

/// The values that a knob can be set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnobValues {
    /// A number between the smallest and the largest.
    Count(i64, i64),
    /// A number between the smallest and the largest, or this word.
    CountOr(i64, i64, &'static str),
    /// Two numbers between the smallest and the largest, the lower one first: `32768 60999`.
    Range(i64, i64),
    /// On or off, in the server's own words.
    Switch { on: &'static str, off: &'static str },
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// Spare workers that a pool starts with and keeps idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpareWorkers {
    pub start: u64,
    pub min_spare: u64,
    pub max_spare: u64,
}

/// A setting that can be changed, and what is known about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knob {
    pub name: &'static str,
    /// Short column name, as published tables of such measurements use it.
    pub short: Option<&'static str>,
    /// Its role in a search; `None` if it is only set by name.
    pub role: Option<Role>,
    pub takes: KnobValues,
    /// The server's default.
    pub default: &'static str,
    pub needs: ReloadClass,
    /// What it depends on, in a sentence.
    pub constraint: &'static str,
    /// Its effect on the server, in a sentence.
    pub effect: &'static str,
    /// Another knob, and the values of it with which this one has an effect. `None`: it always has.
    pub when: Option<(&'static str, &'static [&'static str])>,
    /// Ids of the findings that make it worth trying.
    pub findings: &'static [&'static str],
    /// Numbers worth trying, the most promising first; empty: numbers around the present one.
    pub usual: &'static [i64],
    /// Why a search leaves it out unless the user names it; `None`: a search may try it.
    pub by_name: Option<&'static str>,
}

/// Returns the knob with this role from a table of knobs.
#[must_use]
pub fn knob_for(knobs: &'static [Knob], role: Role) -> Option<&'static Knob> {
    knobs.iter().find(|k| k.role == Some(role))
}

impl Knob {
    /// Makes a knob that is only set by name, always has an effect, and that no finding points to.
    #[must_use]
    pub const fn new(
        name: &'static str,
        takes: KnobValues,
        default: &'static str,
        needs: ReloadClass,
        constraint: &'static str,
        effect: &'static str,
    ) -> Knob {
        Knob {
            name,
            short: None,
            role: None,
            takes,
            default,
            needs,
            constraint,
            effect,
            when: None,
            findings: &[],
            usual: &[],
            by_name: None,
        }
    }

    /// Like [`Knob::new`], for a knob that needs only a reload.
    #[must_use]
    pub const fn by_reload(
        name: &'static str,
        takes: KnobValues,
        default: &'static str,
        constraint: &'static str,
        effect: &'static str,
    ) -> Knob {
        Knob::new(name, takes, default, ReloadClass::Reload, constraint, effect)
    }

    #[must_use]
    pub const fn with_role(self, role: Role) -> Knob {
        Knob { role: Some(role), ..self }
    }

    /// Sets the short column name.
    #[must_use]
    pub const fn called(self, short: &'static str) -> Knob {
        Knob { short: Some(short), ..self }
    }

    /// Sets another knob and the values of it with which this one has an effect.
    #[must_use]
    pub const fn only_with(self, knob: &'static str, values: &'static [&'static str]) -> Knob {
        Knob { when: Some((knob, values)), ..self }
    }

    #[must_use]
    pub const fn worth_trying_for(self, findings: &'static [&'static str]) -> Knob {
        Knob { findings, ..self }
    }

    /// Sets numbers worth trying, the most promising first.
    #[must_use]
    pub const fn usually(self, usual: &'static [i64]) -> Knob {
        Knob { usual, ..self }
    }

    /// Excludes the knob from searches unless the user names it; `why` is the reason.
    #[must_use]
    pub const fn only_by_name(self, why: &'static str) -> Knob {
        Knob { by_name: Some(why), ..self }
    }

    /// Returns true if the knob has an effect with these settings. An unknown setting counts as fitting.
    #[must_use]
    pub fn matters(&self, settings: &Settings) -> bool {
        self.when.is_none_or(|(name, values)| {
            settings.get(name).is_none_or(|v| values.iter().any(|w| v.to_string().eq_ignore_ascii_case(w)))
        })
    }

    /// Returns the largest number that the knob accepts.
    #[must_use]
    pub fn most(&self) -> u64 {
        match self.takes {
            KnobValues::Count(_, most) | KnobValues::CountOr(_, most, _) | KnobValues::Range(_, most) => {
                most.max(0) as u64
            }
            KnobValues::Switch { .. } => 1,
            KnobValues::Choice(words) => words.len() as u64,
        }
    }

    /// Returns on or off in the server's spelling.
    #[must_use]
    pub fn switched(&self, on: bool) -> Setting {
        match self.takes {
            KnobValues::Switch { on: word, .. } if on => Setting::Text(word.into()),
            KnobValues::Switch { off: word, .. } => Setting::Text(word.into()),
            KnobValues::Count(..) | KnobValues::CountOr(..) | KnobValues::Range(..) | KnobValues::Choice(_) => {
                Setting::from(u64::from(on))
            }
        }
    }

    /// Checks that the knob accepts a value.
    ///
    /// # Errors
    /// A sentence with the range.
    pub fn check(&self, value: &Setting) -> Result<(), String> {
        match (self.takes, value) {
            (KnobValues::Switch { on, off }, Setting::Text(t))
                if [on, off].iter().any(|w| t.eq_ignore_ascii_case(w)) =>
            {
                Ok(())
            }
            (KnobValues::Switch { on, off }, other) => Err(format!("{} is {on} or {off}, not '{other}'", self.name)),
            (KnobValues::Count(least, most) | KnobValues::CountOr(least, most, _), Setting::Count(n))
                if (least..=most).contains(n) =>
            {
                Ok(())
            }
            (KnobValues::CountOr(_, _, word), Setting::Text(t)) if t == word => Ok(()),
            (KnobValues::Choice(words), value) if words.contains(&value.to_string().as_str()) => Ok(()),
            (KnobValues::Choice(words), other) => {
                Err(format!("{} is one of {}, not '{other}'", self.name, words.join(", ")))
            }
            (KnobValues::Range(least, most), other) => {
                let text = other.to_string();
                let numbers: Vec<Option<i64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
                match numbers[..] {
                    [Some(low), Some(high)] if least <= low && low <= high && high <= most => Ok(()),
                    _ => Err(format!(
                        "{} is two numbers from {least} to {most}, the lower one first, not '{other}'",
                        self.name
                    )),
                }
            }
            (KnobValues::Count(least, most), other) => {
                Err(format!("{} is a number from {least} to {most}, not '{other}'", self.name))
            }
            (KnobValues::CountOr(least, most, word), other) => {
                Err(format!("{} is a number from {least} to {most} or {word}, not '{other}'", self.name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_spelled_as_its_server_spells_it() {
        let takes = KnobValues::Switch { on: "yes", off: "no" };
        let switch = Knob::new("keep", takes, "yes", ReloadClass::Reload, "", "").with_role(Role::KeepAlive);
        assert_eq!([true, false].map(|on| switch.switched(on).to_string()), ["yes", "no"]);
        assert!(switch.check(&"No".into()).is_ok());
        assert_eq!(switch.check(&"Off".into()), Err("keep is yes or no, not 'Off'".into()));
        let number = Knob { takes: KnobValues::Count(1, 9), ..switch };
        assert_eq!(number.check(&Setting::Count(10)), Err("keep is a number from 1 to 9, not '10'".into()));
        let words = Knob { takes: KnobValues::Choice(&["static", "dynamic"]), ..switch };
        assert!(words.check(&"static".into()).is_ok());
        assert_eq!(words.check(&"on".into()), Err("keep is one of static, dynamic, not 'on'".into()));
        let either = Knob { takes: KnobValues::CountOr(1, 9, "auto"), ..switch };
        assert!(either.check(&"auto".into()).is_ok() && either.check(&"9".into()).is_ok());
        let range = Knob { takes: KnobValues::Range(1024, 65_535), ..switch };
        assert!(range.check(&"1024 65535".into()).is_ok() && range.check(&"2000\t2000".into()).is_ok());
        for wrong in ["2000", "3000 2000", "1 65535", "1024 65536", "1024 2000 3000", "1024 x", ""] {
            let error = range.check(&wrong.into()).expect_err(wrong);
            assert!(error.contains("two numbers from 1024 to 65535"), "{error}");
        }
        assert_eq!(either.check(&"no".into()), Err("keep is a number from 1 to 9 or auto, not 'no'".into()));
    }

    #[test]
    fn a_knob_matters_with_the_values_of_another() {
        let knob =
            Knob::new("spare", KnobValues::Count(1, 9), "1", ReloadClass::Reload, "", "").only_with("pm", &["dynamic"]);
        let with = |pm: &str| Settings::from([("pm".to_string(), pm.into())]);
        assert!(knob.matters(&with("dynamic")) && !knob.matters(&with("static")) && knob.matters(&Settings::new()));
    }

    #[test]
    fn settings_are_described_whole() {
        let names = ["MaxRequestWorkers", "MaxSpareServers", "MinSpareServers", "StartServers"];
        let settings: Settings = names.iter().map(|n| ((*n).to_string(), Setting::Count(20))).collect();
        let text = describe(&settings);
        assert!(names.iter().all(|name| text.contains(&format!("{name} 20"))), "{text}");
        assert_eq!(describe(&Settings::new()), "as it is");
    }
}
