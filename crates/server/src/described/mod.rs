//! The adapter of a kind that is described by data alone: lastdrop knows only what the kind's file says.

mod command_output;
mod options;
mod template;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_files::input;
use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings};
use lastdrop_probe::ProbeError;
use lastdrop_probe::process::{self, Birth};
use nix::sys::signal::Signal;

use crate::adapter::{Adapter, EffectiveSettings, Facts, Placement};
use crate::change::Change;
use crate::edited::{EditedFile, beside};

use crate::change_method::{self, ChangeMethods, LineFormat, SettingsFile, Spelling};
use crate::execution::{self, Reader};
use crate::kind::{NameSource, program_of};
use crate::private::{FileAttributes, prepare, remove_if_there, write_durably};
use crate::resolve::{Candidate, choose, listeners_of, masters, url_of};
use crate::restart::Launch;
use crate::wildcard::{HiddenFiles, WalkBudget};
use crate::{ServerError, ServerRef, restart};

use command_output::{CommandOutput, ask};

/// How long a reloaded server may take to start the requested number of workers.
const IN_FORCE: Duration = Duration::from_secs(10);

pub struct DescribedServer {
    facts: Facts,
    means: &'static ChangeMethods,
    way: ChosenMethod,
    /// True if the server shows a title instead of its command line, so that how it was started is unknown.
    titled: bool,
}

/// The way in which this server's settings are changed.
#[derive(Debug, Clone, Copy)]
enum ChosenMethod {
    CommandLine,
    Environment,
    Written(&'static SettingsFile),
}

/// Makes a program test itself as a command line would start it. Returns `None` if its configuration is unknown.
pub fn test_start(server: &ServerRef, birth: &Birth) -> Option<Result<(), ServerError>> {
    let means = server.kind.means.as_ref()?;
    let facts = Facts {
        kind: server.kind,
        name: server.to_string(),
        version: String::new(),
        model: String::new(),
        config: server.config.clone(),
        birth: birth.clone(),
        listeners: Vec::new(),
        status_url: None,
    };
    let file = server.config.clone().unwrap_or_default();
    Some(match ask(means.test, &facts, &Launch::as_found(birth), &file) {
        Ok(Some(told)) if !told.passed => Err(ServerError::ConfigTest { command: told.command, output: told.said }),
        other => other.map(drop),
    })
}

impl DescribedServer {
    pub fn discover(server: &ServerRef) -> Result<DescribedServer, ServerError> {
        let kind = server.kind;
        let not_found = || ServerError::NotFound {
            what: format!("no running {} is meant", kind.title),
            advice: kind.advice.into(),
        };
        let means = kind.means.as_ref().ok_or_else(not_found)?;
        let found = masters(|p| kind.runs(p)).into_iter().filter(|p| !means.is_asked(&p.argv));
        let candidates = found.map(|p| {
            let config = kind.config_of(&p);
            let listeners = listeners_of(p.pid);
            Candidate { pid: p.pid, found: p, config, listeners }
        });
        let Candidate { found: info, config, listeners, .. } = choose(candidates.collect(), server, not_found)?;
        let config = config.map(|c| fs::canonicalize(&c).unwrap_or(c));
        // A process that ends while it is read was not a server, or is none any more.
        let mut birth = Birth::of_seen(&info).map_err(|e| match e {
            ProbeError::Gone(_) => not_found(),
            e => e.into(),
        })?;
        let titled = kind.shows_title(&info);
        if titled {
            birth.shown = Some(info.argv.join(" ").trim_end().into());
            birth.argv.clear();
            birth.environment = vec![("PATH".into(), restart::PATH.into())];
        }
        birth.code = code_of(&birth, config.as_deref());
        let way = match &means.written {
            _ if means.command_line && !titled => ChosenMethod::CommandLine,
            _ if means.environment && !titled => ChosenMethod::Environment,
            Some(written) => ChosenMethod::Written(written),
            None => {
                return Err(ServerError::Setting(format!(
                    "process {} shows a title ('{}') instead of its command line, so that nobody can tell how it was \
                     started: it can be looked at (lastdrop watch {server})",
                    info.pid,
                    info.argv.join(" ")
                )));
            }
        };
        if let (ChosenMethod::Written(_), None) = (way, &config) {
            return Err(ServerError::Setting(format!(
                "the configuration of process {} is not known; name it: {}:/path/to/its/file",
                info.pid, kind.name
            )));
        }
        let named =
            config.as_ref().filter(|_| !matches!(kind.named_by, NameSource::Nothing) && !kind.name.contains(':'));
        let name = match (named, listeners.first()) {
            (Some(config), _) => format!("{}:{}", kind.name, config.display()),
            (None, Some(address)) => format!("{}@{}", kind.name, url_of(*address)),
            (None, None) => kind.name.to_string(),
        };
        let facts = Facts {
            kind,
            name,
            version: kind.title.into(),
            model: program_of(&info),
            config,
            birth,
            listeners,
            status_url: None,
        };
        Ok(DescribedServer { facts, means, way, titled })
    }

    fn config(&self) -> &Path {
        self.facts.config.as_deref().unwrap_or(Path::new(""))
    }

    fn config_text(&self) -> Result<String, ServerError> {
        let cannot = || ServerError::io(format!("cannot read {}", self.config().display()));
        let _reader = Reader::of(&self.facts.birth);
        let bytes = input::read(self.config()).map_err(cannot())?;
        String::from_utf8(bytes)
            .map_err(|_| ServerError::Setting(format!("{} is not text in UTF-8", self.config().display())))
    }

    /// Path of a file by the name that the configuration has for it.
    fn included_file(&self, name: &str) -> PathBuf {
        self.facts.birth.directory.join(name.split_once(".ini:").map_or(name.into(), |(file, _)| format!("{file}.ini")))
    }

    /// Returns a function that reads files by the names in the configuration. It stops after a fixed number, because
    /// files may include each other endlessly.
    fn included(&self) -> impl Fn(&str) -> Option<String> + '_ {
        const MOST_FILES: usize = 1000;
        const MOST_BYTES: usize = 64 << 20;
        let read = Cell::new((0, 0));
        move |name| {
            let (files, bytes) = read.get();
            if files >= MOST_FILES || bytes >= MOST_BYTES {
                return None;
            }
            let text = self.read(&self.included_file(name)).ok();
            read.set((files + 1, bytes + text.as_ref().map_or(0, String::len)));
            text
        }
    }

    /// Reads a file that the configuration names, or one next to it, with the rights of the server's user.
    fn read(&self, file: &Path) -> std::io::Result<String> {
        let _reader = Reader::of(&self.facts.birth);
        input::read_regular_text(file)
    }

    /// True if the configuration is a program, so that its text does not show the settings.
    fn has_code(&self) -> bool {
        self.facts.config.is_some() && matches!(&self.means.written, Some(SettingsFile::Lines(lines)) if lines.is_code)
    }

    /// Settings as the server itself prints them, from its command line; if a title hides that, from its configuration
    /// alone.
    fn told(&self, launch: &Launch, file: &Path) -> Result<Option<CommandOutput>, ServerError> {
        if self.titled {
            return ask(self.means.tells_file, &self.facts, launch, file);
        }
        ask(self.means.tells, &self.facts, launch, file)
    }

    /// The knob of the pool size, and the number of running workers. `None` if the kind has no such knob or the server
    /// does not fork.
    fn running(&self) -> Option<(&'static Knob, i64)> {
        let workers = self.workers(self.facts.birth.pid).len() as i64;
        Adapter::knob(self, Role::PoolSize).filter(|_| workers > 0).map(|knob| (knob, workers))
    }

    fn beside_config(&self, file: &Path) -> PathBuf {
        self.config().parent().unwrap_or(Path::new("/")).join(file)
    }

    fn knob(&self, name: &str) -> Option<(&'static Knob, &'static Spelling)> {
        self.means.knobs.iter().zip(self.means.spelled).find(|(knob, _)| knob.name == name)
    }

    /// The values of a change with their spelling; names that are not knobs have been refused before.
    fn turned<'a>(
        &'a self,
        settings: &'a Settings,
    ) -> impl Iterator<Item = (&'static Knob, &'static Spelling, String)> + 'a {
        settings.iter().filter_map(|(name, value)| {
            let (knob, spelled) = self.knob(name)?;
            Some((knob, spelled, value.to_string()))
        })
    }

    /// The value of a knob in the files, the command line and the environment, with its source.
    fn said(&self, knob: &Knob, spelled: &Spelling, text: Option<&str>) -> Option<(String, String)> {
        let birth = &self.facts.birth;
        let on_line = || options::value(&birth.argv, knob, spelled).map(|v| (v, "its command line".to_string()));
        let in_environment = || {
            let variable = birth.environment.iter().find(|(name, _)| name == spelled.variable)?;
            Some((variable.1.clone(), format!("{} in its environment", spelled.variable)))
        };
        let in_file = || {
            let config = self.config().display();
            match self.means.written.as_ref()? {
                SettingsFile::Lines(lines) if lines.is_code => {
                    let place = lines.certain_in_code(text?, knob, spelled)?;
                    Some((place.value, format!("{config}:{}", place.number)))
                }
                SettingsFile::Lines(lines) | SettingsFile::OwnFile { lines, .. } => {
                    let read = self.included();
                    let (file, place) = lines.find_through(text?, knob, spelled, &read, change_method::MOST_DEPTH)?;
                    let file = file.map_or(config.to_string(), |name| self.included_file(&name).display().to_string());
                    Some((place.value, format!("{file}:{}", place.number)))
                }
                SettingsFile::Included { file, lines } => {
                    let file = self.beside_config(file);
                    let ours = self.read(&file).ok().and_then(|t| lines.find(&t, knob, spelled));
                    ours.map(|place| (place.value, format!("{}:{}", file.display(), place.number))).or_else(|| {
                        let place = lines.find(text?, knob, spelled)?;
                        Some((place.value, format!("{config}:{}", place.number)))
                    })
                }
                SettingsFile::Template(file) => {
                    let template = self.read(&self.beside_config(file)).ok()?;
                    let (value, number) = template::value(&template, text?, knob.name)?;
                    Some((value, format!("{config}:{number}")))
                }
            }
        };
        let line = if self.means.command_line { on_line() } else { None };
        let environment = || if self.means.environment { in_environment() } else { None };
        line.or_else(environment).or_else(in_file)
    }

    /// The text of the configuration, or of lastdrop's own file, after a change.
    fn written(&self, written: &SettingsFile, settings: &Settings) -> Result<String, ServerError> {
        let config = self.config().display();
        match written {
            SettingsFile::Lines(lines) => {
                self.turned(settings).try_fold(self.config_text()?, |text, (knob, spelled, value)| {
                    lines
                        .set(&text, knob, spelled, &value, &self.included())
                        .map_err(|why| ServerError::Setting(format!("{config} has no place for {}: {why}", knob.name)))
                })
            }
            SettingsFile::Included { lines, .. } => Ok(self.lines(lines, settings)),
            SettingsFile::OwnFile { head, lines } => {
                Ok(format!("{}\n{}", head.replace("{config}", &config.to_string()), self.lines(lines, settings)))
            }
            SettingsFile::Template(file) => {
                let file = self.beside_config(file);
                let cannot = ServerError::io(format!("cannot read {}", file.display()));
                let template = self.read(&file).map_err(cannot)?;
                let mut values = self.effective_of_files().settings;
                values.extend(settings.clone());
                template::render(&template, &values)
                    .map_err(|why| ServerError::Setting(format!("{}: {why}", file.display())))
            }
        }
    }

    fn lines(&self, lines: &LineFormat, settings: &Settings) -> String {
        let section = lines.section.map(|s| format!("[{s}]\n")).unwrap_or_default();
        let set = self.turned(settings).map(|(knob, spelled, value)| lines.written(knob, spelled, &value) + "\n");
        section + &set.collect::<String>()
    }

    fn effective_of_files(&self) -> EffectiveSettings {
        let text = self.facts.config.as_ref().and_then(|_| self.config_text().ok());
        let mut e = EffectiveSettings::default();
        for (knob, spelled) in self.means.knobs.iter().zip(self.means.spelled) {
            let said = self.said(knob, spelled, text.as_deref());
            if said.is_none() && self.has_code() && text.as_ref().is_some_and(|text| text.contains(knob.name)) {
                e.sources.insert(knob.name.into(), format!("{}, which is a program", self.config().display()));
                continue;
            }
            let (value, source) =
                said.unwrap_or_else(|| (knob.default.into(), format!("default of {}", self.facts.kind.title)));
            e.settings.insert(knob.name.into(), as_setting(knob, &value));
            e.sources.insert(knob.name.into(), source);
        }
        e
    }

    /// Checks that every setting of a change can be changed in this server's way.
    fn reaches(&self, settings: &Settings) -> Result<(), ServerError> {
        let now = self.effective_of_files().settings;
        for (knob, spelled, value) in self.turned(settings) {
            if now.get(knob.name) == Some(&as_setting(knob, &value)) {
                continue;
            }
            let refuse = |why: String| Err(ServerError::Setting(format!("{} cannot be changed: {why}", knob.name)));
            if self.titled && knob.needs == ReloadClass::Restart {
                let title = self.facts.birth.shown.as_deref().unwrap_or_default();
                return refuse(format!(
                    "the server would have to be started again, and it shows a title ('{title}') instead of how it was started"
                ));
            }
            let is_switch = matches!(knob.takes, KnobValues::Switch { .. });
            match self.way {
                ChosenMethod::CommandLine if spelled.option.is_none() => {
                    return refuse("it has no option, and the server is started with options".into());
                }
                // A file may set it even without the option; a server that can print its settings shows that.
                ChosenMethod::CommandLine
                    if is_switch
                        && !Setting::read(&value).is_on()
                        && spelled.option_off.is_none()
                        && Setting::read(knob.default).is_on()
                        && self.means.tells.is_empty() =>
                {
                    return refuse("no option switches it off".into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Tests a configuration that is a program, on its own. If it cannot be evaluated outside its server, it only has
    /// to be syntactically correct.
    fn test_code(
        &self,
        settings: &str,
        launch: &Launch,
        file: &Path,
        original: &Path,
    ) -> Result<Option<CommandOutput>, ServerError> {
        let Some(answer) = ask(self.means.tells_file, &self.facts, launch, file)? else { return Ok(None) };
        if answer.passed {
            return Ok(Some(answer));
        }
        let output = answer.said.replace(&*file.to_string_lossy(), &original.to_string_lossy());
        let is_malformed = output.to_ascii_lowercase().contains("syntax error") || output.contains("SyntaxError");
        if file == original {
            let error = ServerError::ConfigTest { command: answer.command, output };
            return if is_malformed { Err(error) } else { Ok(None) };
        }
        let before = if is_malformed { None } else { ask(self.means.tells_file, &self.facts, launch, original)? };
        if is_malformed || before.is_some_and(|before| before.passed) {
            return Err(ServerError::Clamped { settings: settings.into(), output });
        }
        Ok(None)
    }

    /// Makes the server test itself with a change and print its resulting settings.
    fn test(&self, change: &Change, launch: &Launch, file: &Path, original: &Path) -> Result<(), ServerError> {
        let shown: Vec<String> = change.lines().collect();
        let shown = shown.join(", ");
        let in_its_words = |said: &str| said.replace(&*file.to_string_lossy(), &original.to_string_lossy());
        let mut told = None;
        if self.titled && !self.means.tells_file.is_empty() {
            told = self.test_code(&shown, launch, file, original)?;
        }
        for words in [self.means.test, self.means.tells] {
            let Some(answer) = ask(words, &self.facts, launch, file)? else { continue };
            let output = in_its_words(&answer.said);
            if !answer.passed && change.is_empty() {
                return Err(ServerError::ConfigTest { command: answer.command, output });
            }
            if !answer.passed || self.means.clamps.iter().any(|word| output.contains(word)) {
                return Err(ServerError::Clamped { settings: shown, output });
            }
            if words == self.means.tells {
                told = Some(answer);
            }
        }
        let Some(told) = told.filter(|_| !change.is_empty()) else { return Ok(()) };
        for (knob, _, wanted) in self.turned(&change.settings) {
            let wanted = as_setting(knob, &wanted);
            let is = told.value(knob.name).map(|v| as_setting(knob, &v));
            if let Some(is) = is.filter(|is| *is != wanted) {
                let output = format!("{} is {is} all the same, says {}", knob.name, told.command);
                return Err(ServerError::Clamped { settings: shown, output });
            }
        }
        Ok(())
    }
}

/// Files that decide what a server executes: its configuration with all includes; for an interpreter also the scripts
/// on its command line and its working folder.
fn code_of(birth: &Birth, config: Option<&Path>) -> Vec<PathBuf> {
    const INTERPRETERS: &[&str] = &["python", "pypy", "ruby", "perl", "node", "java", "php"];
    let _reader = Reader::of(birth);
    let mut code: Vec<PathBuf> = config.into_iter().flat_map(with_included).collect();
    let program = birth.exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !INTERPRETERS.iter().any(|name| program.starts_with(name)) {
        return code;
    }
    code.push(birth.directory.clone());
    let words = birth.argv.iter().skip(1).flat_map(|word| word.split('='));
    let files = words.filter(|word| !word.is_empty()).map(|word| birth.directory.join(word));
    let is_code = |path: &PathBuf| {
        let end = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        (path.is_file() || path.is_dir()) && !["log", "pid", "sock"].contains(&end.as_str())
    };
    code.extend(files.filter(is_code));
    code
}

/// A file, the files named in its lines such as `include "conf.d/*.conf"` (one level deep), and their folders.
fn with_included(file: &Path) -> Vec<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let text = input::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with("include"));
    let mut walk = WalkBudget::default();
    let patterns = lines.filter_map(|line| line.split('"').nth(1)).map(|name| folder.join(name));
    let mut all = vec![file.to_path_buf()];
    for pattern in patterns {
        all.extend(walk.files(&pattern, HiddenFiles::Taken).unwrap_or_default());
        all.extend(pattern.parent().map(Path::to_path_buf));
    }
    all
}

fn as_setting(knob: &Knob, text: &str) -> Setting {
    let value = Setting::read(text.trim_matches(['\'', '"']));
    match knob.takes {
        KnobValues::Switch { .. } => knob.switched(value.is_on()),
        _ => value,
    }
}

impl Adapter for DescribedServer {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn software(&self) -> String {
        self.facts.version.clone()
    }

    fn knobs(&self) -> &'static [Knob] {
        self.means.knobs
    }

    fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        let mut e = self.effective_of_files();
        e.notes.extend(self.facts.config.as_ref().and_then(|_| self.config_text().err()).map(|e| e.to_string()));
        let launch = Launch::as_found(&self.facts.birth);
        let told = self.told(&launch, self.config());
        match told {
            Ok(Some(told)) if told.passed => {
                for knob in self.means.knobs {
                    let Some(value) = told.value(knob.name) else { continue };
                    let value = as_setting(knob, &value);
                    if e.settings.get(knob.name) != Some(&value) {
                        e.sources.insert(knob.name.into(), format!("the server itself ({})", told.command));
                        e.settings.insert(knob.name.into(), value);
                    }
                }
            }
            Ok(Some(told)) => e.notes.push(format!("{} did not tell its settings: {}", told.command, told.said)),
            Ok(None) => {}
            Err(why) => e.notes.push(why.to_string()),
        }
        // The title hides an option that overrides any file.
        if let Some((knob, workers)) = self.running().filter(|_| self.has_code())
            && e.settings.get(knob.name) != Some(&Setting::Count(workers))
        {
            e.sources.insert(knob.name.into(), "worker processes of the running server".into());
            e.settings.insert(knob.name.into(), Setting::Count(workers));
        }
        for knob in self.means.knobs.iter().filter(|knob| !e.settings.contains_key(knob.name)) {
            e.notes.push(format!("what {} is cannot be told: {} is a program", knob.name, self.config().display()));
        }
        if self.titled {
            e.notes.push(format!(
                "it shows a title instead of its command line ('{}'): what an option there sets is not seen, and it cannot \
                 be started again from here, only be reloaded",
                self.facts.birth.shown.as_deref().unwrap_or_default()
            ));
        }
        Ok(e)
    }

    fn pool_settings(&self, size: u64, _effective: &Settings) -> Settings {
        let knob = Adapter::knob(self, Role::PoolSize);
        knob.map(|k| (k.name.to_string(), Setting::from(size))).into_iter().collect()
    }

    fn placement(&self) -> Placement {
        match self.way {
            ChosenMethod::CommandLine | ChosenMethod::Environment => Placement::StartedWith,
            ChosenMethod::Written(SettingsFile::Lines(_) | SettingsFile::Template(_)) => Placement::Edited,
            ChosenMethod::Written(SettingsFile::Included { file, .. }) => {
                Placement::IncludedFile(self.beside_config(file))
            }
            ChosenMethod::Written(SettingsFile::OwnFile { .. }) => Placement::OwnFile,
        }
    }

    fn launch_with(&self, change: &Change) -> Launch {
        let mut launch = Launch::as_found(&self.facts.birth);
        for (knob, spelled, value) in self.turned(&change.settings) {
            match self.way {
                ChosenMethod::CommandLine => {
                    options::set(&mut launch.argv, knob, spelled, &value, self.facts.kind.word);
                }
                ChosenMethod::Environment => {
                    launch.environment.retain(|(name, _)| name != spelled.variable);
                    launch.environment.push((spelled.variable.into(), value));
                }
                ChosenMethod::Written(_) => {}
            }
        }
        launch
    }

    fn argv_with(&self, file: &Path) -> Vec<String> {
        let (config, directory) = (self.config(), &self.facts.birth.directory);
        let is_config = |word: &str| fs::canonicalize(directory.join(word)).is_ok_and(|path| path == config);
        let argv = self.facts.birth.argv.iter();
        argv.map(|word| if is_config(word) { file.display().to_string() } else { word.clone() }).collect()
    }

    fn render(&self, change: &Change, _placement: &Placement, kept: Option<&str>) -> String {
        let ChosenMethod::Written(
            written @ (SettingsFile::Included { lines, .. } | SettingsFile::OwnFile { lines, .. }),
        ) = self.way
        else {
            return String::new();
        };
        let mut all = Settings::new();
        for (knob, spelled) in self.means.knobs.iter().zip(self.means.spelled) {
            if let Some(place) = kept.and_then(|text| lines.find(text, knob, spelled)) {
                all.insert(knob.name.into(), Setting::read(&place.value));
            }
        }
        all.extend(change.settings.clone());
        let text = self.written(written, &all).unwrap_or_default();
        match lines.comment.chars().next() {
            Some(c) => {
                format!("{c} Written by lastdrop; `lastdrop restore` takes it away if its maker was killed.\n{text}")
            }
            None => text,
        }
    }

    fn edits(&self, change: &Change) -> Result<Vec<EditedFile>, ServerError> {
        let ChosenMethod::Written(written @ (SettingsFile::Lines(_) | SettingsFile::Template(_))) = self.way else {
            return Ok(Vec::new());
        };
        let (before, after) = (self.config_text()?, self.written(written, &change.settings)?);
        Ok(vec![EditedFile::new(self.config().to_path_buf(), before.into_bytes(), after.into_bytes())?])
    }

    fn test_file(&self) -> Option<PathBuf> {
        matches!(self.way, ChosenMethod::Written(_)).then(|| beside(self.config(), "test"))
    }

    fn check(&self, change: &Change, _file: &Path) -> Result<(), ServerError> {
        if let Some(line) = change.directives.lines().first() {
            let title = self.facts.kind.title;
            return Err(ServerError::Setting(format!(
                "{title} takes no directives such as '{line}' here, only settings"
            )));
        }
        self.reaches(&change.settings)?;
        let launch = self.launch_with(change);
        let ChosenMethod::Written(written) = self.way else {
            return self.test(change, &launch, self.config(), self.config());
        };
        if change.is_empty() {
            // Finds a missing template before anything is changed.
            self.written(written, &change.settings)?;
            return self.test(change, &launch, self.config(), self.config());
        }
        let text = self.written(written, &change.settings)?;
        let text = match written {
            SettingsFile::Included { .. } => self.config_text()? + "\n" + &text,
            _ => text,
        };
        let copy = beside(self.config(), "test");
        let write = || {
            let written = match FileAttributes::of(self.config()) {
                Ok(like) => prepare(&copy, &like, text.as_bytes()),
                Err(_) => write_durably(&copy, text.as_bytes()),
            };
            written.map_err(ServerError::io(format!("cannot write {}", copy.display())))
        };
        let birth = &self.facts.birth;
        execution::write_for(birth, write)?;
        let launch = Launch { argv: self.argv_with(&copy), ..launch };
        let result = self.test(change, &launch, &copy, self.config());
        let take_away =
            || remove_if_there(&copy).map_err(ServerError::io(format!("cannot take away {}", copy.display())));
        execution::write_for(birth, take_away)?;
        result
    }

    fn in_force(&self, settings: &Settings, master: i32) -> Result<(), ServerError> {
        let knob = Adapter::knob(self, Role::PoolSize).filter(|_| self.has_code());
        let Some((knob, wanted)) = knob.and_then(|k| Some((k, settings.get(k.name)?.count()?))) else { return Ok(()) };
        let until = Instant::now() + IN_FORCE;
        loop {
            let running = self.workers(master).len() as i64;
            if running == wanted {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(ServerError::Clamped {
                    settings: format!("{} {wanted}", knob.name),
                    output: format!(
                        "{running} workers run all the same: an option with which the server was started counts more than {}",
                        self.config().display()
                    ),
                });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn daemonizes(&self) -> bool {
        let has = |words: &[&str]| self.facts.birth.argv.iter().any(|word| words.contains(&word.as_str()));
        has(self.means.detached_by) || !(self.means.attached_by.is_empty() || has(self.means.attached_by))
    }

    fn reload_signal(&self) -> Signal {
        self.means.reload.unwrap_or(Signal::SIGHUP)
    }

    fn stop_signal(&self) -> Signal {
        self.means.stop
    }

    fn is_fresh_after_reload(&self) -> bool {
        self.means.reload.is_some() && matches!(self.way, ChosenMethod::Written(_))
    }

    fn executes_itself(&self) -> bool {
        self.means.executes_itself
    }

    fn needs(&self, name: &str) -> Option<ReloadClass> {
        let (knob, _) = self.knob(name)?;
        match self.way {
            ChosenMethod::CommandLine | ChosenMethod::Environment => Some(ReloadClass::Restart),
            ChosenMethod::Written(_) => Some(knob.needs),
        }
    }

    fn workers(&self, master: i32) -> Vec<i32> {
        process::worker_pids(master, self.facts.kind.helpers)
    }
}
