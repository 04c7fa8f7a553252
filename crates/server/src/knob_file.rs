//! A knob in the file of a kind.

use std::str::FromStr;

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, ReloadClass, Role, Setting};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::change_method::Spelling;
use crate::kind_file::{keep, keep_all};

/// A setting that can be changed: what it may be, and how it is spelled where it is changed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KnobFile {
    /// What sweep, tune and knobs call it; in the server's own spelling.
    name: String,
    /// A number between the smallest and the largest. Either may be of the machine: "4 * processors", "memory_mb",
    /// "open_files".
    count: Option<[Bound; 2]>,
    /// A word that it may be instead of a number.
    or: Option<String>,
    /// One of these words.
    #[serde(default)]
    choice: Vec<String>,
    /// What stands for on and for off.
    switch: Option<[String; 2]>,
    /// What the server uses where nobody says anything.
    default: Value,
    /// The same of the machine: "processors", "2 * processors".
    default_of_machine: Option<String>,
    /// What a change needs [default: a reload where there is a signal for one].
    needs: Option<ReloadFile>,
    /// What a search may use it for.
    role: Option<RoleFile>,
    /// The option of the command line that sets it: "--workers". Of a switch: its presence is on.
    option: Option<String>,
    /// Other spellings of that option: ["-w"].
    #[serde(default)]
    also: Vec<String>,
    /// Of a switch: the option that is off.
    option_off: Option<String>,
    /// The variable of the environment that sets it [default: its name].
    variable: Option<String>,
    /// Its line in the configuration, where it differs from those of others: "threads {value}, {value}".
    line: Option<String>,
    /// Other names of it in the configuration: ["workers"].
    #[serde(default)]
    aliases: Vec<String>,
    /// What it depends on, in a sentence.
    #[serde(default)]
    constraint: String,
    /// What it does, in a sentence.
    effect: String,
    /// The setting, and the values of it, without which it does nothing.
    when: Option<WhenFile>,
    /// Ids of the findings that make it worth trying.
    #[serde(default)]
    findings: Vec<String>,
    /// Numbers that tune tries, the most promising first [default: those around the present one].
    #[serde(default)]
    usual: Vec<i64>,
    /// Why tune tries it only where the user names it, in a few words [default: it may try it].
    by_name: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WhenFile {
    name: String,
    is: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Bound {
    Number(i64),
    OfMachine(String),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Value {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ReloadFile {
    Reload,
    Restart,
}

/// What a knob is for, so that a search can treat every server alike.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum RoleFile {
    PoolSize,
    PoolStart,
    SpareMin,
    SpareMax,
    ThreadsPerWorker,
    Recycle,
    KeepAlive,
    KeepAliveTimeout,
    KeepAliveRequests,
    Backlog,
    Timeout,
}

impl From<RoleFile> for Role {
    fn from(role: RoleFile) -> Role {
        match role {
            RoleFile::PoolSize => Role::PoolSize,
            RoleFile::PoolStart => Role::PoolStart,
            RoleFile::SpareMin => Role::SpareMin,
            RoleFile::SpareMax => Role::SpareMax,
            RoleFile::ThreadsPerWorker => Role::ThreadsPerWorker,
            RoleFile::Recycle => Role::Recycle,
            RoleFile::KeepAlive => Role::KeepAlive,
            RoleFile::KeepAliveTimeout => Role::KeepAliveTimeout,
            RoleFile::KeepAliveRequests => Role::KeepAliveRequests,
            RoleFile::Backlog => Role::Backlog,
            RoleFile::Timeout => Role::Timeout,
        }
    }
}

/// Evaluates `4 * processors` for this machine.
fn of_machine(text: &str) -> Option<i64> {
    let (factor, word) = match text.split_once('*') {
        Some((factor, word)) => (i64::from_str(factor.trim()).ok()?, word.trim()),
        None => (1, text.trim()),
    };
    let amount = match word {
        "processors" => std::thread::available_parallelism().map_or(1, usize::from) as u64,
        "memory_mb" => lastdrop_probe::host::HostMemory::now()?.total >> 20,
        "open_files" => nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).ok()?.1,
        _ => return None,
    };
    i64::try_from(amount).ok()?.checked_mul(factor)
}

const OF_MACHINE: &str = "processors, memory_mb or open_files, with a factor if there is one: \"4 * processors\"";

impl KnobFile {
    /// Returns the knob and its spelling. `reloads`: a signal makes the server read its configuration again.
    ///
    /// # Errors
    /// In words: the first mistake, and what to do about it.
    pub fn read(self, reloads: bool) -> Result<(Knob, Spelling), String> {
        let name = self.name;
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("the name of a knob has no spaces, and is not empty: '{name}'"));
        }
        let wrong = |what: String| format!("knob {name}: {what}");
        let number = |bound: &Bound| match bound {
            Bound::Number(n) => Ok(*n),
            Bound::OfMachine(text) => {
                of_machine(text).ok_or_else(|| wrong(format!("'{text}' is none of {OF_MACHINE}")))
            }
        };
        let takes = match (self.count, self.choice.is_empty(), self.switch) {
            (Some([least, most]), true, None) => {
                let (least, most) = (number(&least)?, number(&most)?);
                if least > most {
                    return Err(wrong(format!("count = [{least}, {most}] has the smallest number second")));
                }
                self.or.map_or(KnobValues::Count(least, most), |word| KnobValues::CountOr(least, most, keep(word)))
            }
            (None, false, None) if self.or.is_none() => KnobValues::Choice(keep_all(self.choice)),
            (None, true, Some([on, off])) if self.or.is_none() && on != off => {
                KnobValues::Switch { on: keep(on), off: keep(off) }
            }
            _ => {
                return Err(wrong(
                    "it takes one of: count = [1, 100] (with or = \"auto\", if it may be), choice = [\"a\", \"b\"], \
                     switch = [\"on\", \"off\"]"
                        .into(),
                ));
            }
        };
        let default = match (self.default_of_machine, self.default) {
            (Some(text), _) => {
                of_machine(&text).ok_or_else(|| wrong(format!("'{text}' is none of {OF_MACHINE}")))?.to_string()
            }
            (None, Value::Number(n)) => n.to_string(),
            (None, Value::Text(text)) => text,
        };
        let needs = match self.needs {
            Some(ReloadFile::Reload) if !reloads => {
                return Err(wrong("it needs a reload, and change.reload has no signal for one".into()));
            }
            Some(ReloadFile::Restart) => ReloadClass::Restart,
            Some(ReloadFile::Reload) => ReloadClass::Reload,
            None if reloads => ReloadClass::Reload,
            None => ReloadClass::Restart,
        };
        let knob = Knob {
            role: self.role.map(Role::from),
            when: self.when.map(|when| (keep(when.name), keep_all(when.is))),
            findings: keep_all(self.findings),
            usual: self.usual.leak(),
            by_name: self.by_name.map(keep),
            ..Knob::new(
                keep(name.clone()),
                takes,
                keep(default.clone()),
                needs,
                keep(self.constraint),
                keep(self.effect),
            )
        };
        knob.check(&Setting::read(&default)).map_err(|why| wrong(format!("its default: {why}")))?;
        for usual in knob.usual {
            knob.check(&Setting::Count(*usual)).map_err(|why| wrong(format!("usual: {why}")))?;
        }
        let line = self.line.map(keep);
        if line.is_some_and(|line| !line.contains("{value}")) {
            return Err(wrong("its line has no {value}".into()));
        }
        let spelled = Spelling {
            option: self.option.map(keep),
            also: keep_all(self.also),
            option_off: self.option_off.map(keep),
            variable: self.variable.map_or(knob.name, keep),
            line,
            aliases: keep_all(self.aliases),
        };
        Ok((knob, spelled))
    }
}
