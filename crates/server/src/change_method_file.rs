//! The part of a kind's file that says how settings are changed.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::signal::Signal;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::change_method::{ChangeMethods, LineFormat, SettingsFile};
use crate::kind_file::{keep, keep_all};
use crate::knob_file::KnobFile;

/// How its settings are changed. Of `command_line`, `environment` and one place in files, what is given is tried in this
/// order: a server that has written a title over its command line shows neither that nor its environment.
///
/// Commands are lists of words, and no shell reads them. A word `{program}` stands for the program of the server, `{argv}`
/// for all words of its command line as changed, `{config}` for its configuration, `{file}` for a copy of that with the
/// change.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChangeFile {
    /// Settings are options of its command line.
    command_line: bool,
    /// Settings are variables of its environment.
    environment: bool,
    /// Settings are lines of its configuration file.
    lines: Option<LinesFile>,
    /// Settings are lines of a file of lastdrop's that its configuration includes; here its name, relative to the folder of
    /// the configuration: "conf.d/zz-lastdrop.conf".
    included: Option<PathBuf>,
    /// Settings are lines of a file of lastdrop's on which it is started instead of its own; here the line by which that
    /// includes its own: "include \"{config}\"".
    own_file: Option<String>,
    /// Its configuration file is made of this one, in which {{name}} stands for a value; relative to the folder of the
    /// configuration.
    template: Option<PathBuf>,
    /// The signal at which it reads its configuration again and replaces its workers: "SIGHUP". None: it is started again.
    reload: Option<String>,
    /// At that signal the master executes itself.
    executes_itself: bool,
    /// The signal at which the whole of it ends [default: SIGTERM].
    stop: Option<String>,
    /// Words of its command line with which it detaches itself from whoever starts it.
    detached_by: Vec<String>,
    /// Words of its command line without which it detaches itself.
    attached_by: Vec<String>,
    /// The command that tests a configuration: it fails with the reason on standard error.
    test: Vec<String>,
    /// Words in what a passing test says that mean that a value would not be taken as it is.
    clamps: Vec<String>,
    /// A command that prints "name = value" for each setting as the server would have it.
    tells: Vec<String>,
    /// The same of the configuration file alone, for a server that shows a title instead of its command line.
    tells_file: Vec<String>,
}

/// How settings are written in a file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LinesFile {
    /// A setting and its value [default: "{name} = {value}"].
    line: String,
    /// The section of an INI file in which they stand.
    section: Option<String>,
    /// What begins a comment, each of these characters [default: "#"].
    comment: String,
    /// What stands around a value that is a word.
    quote: String,
    /// The file where no flag of the command line names one; relative to the folder in which the server was started.
    otherwise: Option<PathBuf>,
    /// Names of lines that bring in another file: ["include"].
    includes: Vec<String>,
    /// The file is a program: its settings are never read from its text, and a change is a line at its end.
    code: bool,
}

impl Default for LinesFile {
    fn default() -> LinesFile {
        LinesFile {
            line: "{name} = {value}".into(),
            section: None,
            comment: "#".into(),
            quote: String::new(),
            otherwise: None,
            includes: Vec::new(),
            code: false,
        }
    }
}

impl LinesFile {
    fn read(self) -> Result<LineFormat, String> {
        if !self.line.contains("{name}") || !self.line.contains("{value}") {
            return Err(format!(
                "change.lines.line has {{name}} and {{value}} in it, as \"{{name}} = {{value}}\": '{}'",
                self.line
            ));
        }
        Ok(LineFormat {
            line: keep(self.line),
            section: self.section.map(keep),
            comment: keep(self.comment),
            quote: keep(self.quote),
            otherwise: self.otherwise.map(keep_path),
            includes: keep_all(self.includes),
            is_code: self.code,
        })
    }
}

fn keep_path(path: PathBuf) -> &'static Path {
    Box::leak(path.into_boxed_path())
}

const WORDS: [&str; 4] = ["{program}", "{argv}", "{config}", "{file}"];

fn command(name: &str, words: Vec<String>) -> Result<&'static [&'static str], String> {
    for word in &words {
        if word.starts_with('{') && word.ends_with('}') && !WORDS.contains(&word.as_str()) {
            return Err(format!("change.{name}: {word} stands for nothing; {} do", WORDS.join(", ")));
        }
    }
    Ok(keep_all(words))
}

fn signal(name: &str, word: Option<String>) -> Result<Option<Signal>, String> {
    let read = |word: String| {
        Signal::from_str(&word)
            .map_err(|_| format!("change.{name} is the name of a signal such as \"SIGHUP\", not '{word}'"))
    };
    word.map(read).transpose()
}

impl ChangeFile {
    /// The means, with the knobs that they change.
    ///
    /// # Errors
    /// In words: the first mistake, and what to do about it.
    pub fn read(self, knobs: Vec<KnobFile>) -> Result<ChangeMethods, String> {
        let apart = self.lines.is_some() && self.included.is_none() && self.own_file.is_none();
        let written = match (self.included, self.own_file, self.template) {
            (Some(file), None, None) => {
                let lines = self.lines.unwrap_or_default().read()?;
                Some(SettingsFile::Included { file: keep_path(file), lines })
            }
            (None, Some(head), None) => {
                let lines = self.lines.unwrap_or_default().read()?;
                Some(SettingsFile::OwnFile { head: keep(head), lines })
            }
            (None, None, Some(template)) if !apart => Some(SettingsFile::Template(keep_path(template))),
            (None, None, None) => self.lines.map(|lines| lines.read().map(SettingsFile::Lines)).transpose()?,
            _ => return Err(ONE_OF.into()),
        };
        if !self.command_line && !self.environment && written.is_none() {
            return Err(ONE_OF.into());
        }
        let reload = signal("reload", self.reload)?;
        if reload.is_none() && self.executes_itself {
            return Err("change.executes_itself is of a server with a change.reload".into());
        }
        let stop = signal("stop", self.stop)?.unwrap_or(Signal::SIGTERM);
        let (test, tells) = (command("test", self.test)?, command("tells", self.tells)?);
        let tells_file = command("tells_file", self.tells_file)?;
        if knobs.is_empty() {
            return Err("[change] has no knobs to change; add: [[knobs]] with name, count, default, effect".into());
        }
        let read = knobs.into_iter().map(|knob| knob.read(reload.is_some())).collect::<Result<Vec<_>, _>>()?;
        let known = |name: &str| read.iter().filter(|(knob, _)| knob.name == name).count();
        for (knob, spelled) in &read {
            if known(knob.name) > 1 {
                return Err(format!("two knobs are called {}", knob.name));
            }
            if let Some((other, _)) = knob.when.filter(|(other, _)| known(other) == 0) {
                return Err(format!("knob {}: there is no knob {other} on which it could depend", knob.name));
            }
            if self.command_line && !self.environment && written.is_none() && spelled.option.is_none() {
                return Err(format!("knob {}: it has no option of the command line", knob.name));
            }
        }
        let (knobs, spelled): (Vec<_>, Vec<_>) = read.into_iter().unzip();
        Ok(ChangeMethods {
            command_line: self.command_line,
            environment: self.environment,
            written,
            reload,
            executes_itself: self.executes_itself,
            stop,
            detached_by: keep_all(self.detached_by),
            attached_by: keep_all(self.attached_by),
            test,
            clamps: keep_all(self.clamps),
            tells,
            tells_file,
            knobs: Box::leak(knobs.into_boxed_slice()),
            spelled: Box::leak(spelled.into_boxed_slice()),
        })
    }
}

const ONE_OF: &str = "[change] is one of: command_line = true, environment = true, lines = {}, included = \"FILE\" (with \
                      lines), own_file = \"LINE\" (with lines), template = \"FILE\"; the first two may have one of the \
                      others beside them, for a server that shows a title instead of its command line";
