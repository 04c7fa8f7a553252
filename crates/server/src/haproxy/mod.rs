//! HAProxy: one process with several threads, with or without a master. Its own files are edited, because a later file
//! may not repeat what an earlier one sets for a proxy. A master executes itself at a reload and starts another worker.
//! A process without a master is restarted.

mod command_line;
mod config;
mod directives;
pub mod knobs;
mod page_cache;
mod running;
mod words;

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lastdrop_model::{Knob, ReloadClass, Setting, Settings};
use lastdrop_probe::listeners::Endpoint;
use lastdrop_probe::process::{self, Birth, ProcessInfo};
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;

use command_line::{CommandLine, PASSING};
use config::Config;
use knobs::{ConfigKnob, KnobLocation, MAXCONN, NBTHREAD};
use running::RuntimeState;

use crate::adapter::{Adapter, EffectiveSettings, Facts, Placement};
use crate::change::Change;
use crate::directive_edits::where_to;
use crate::edited::{EditedFile, beside};
use crate::edits::Edits;
use crate::execution::{self, Question, Reader};
use crate::page_cache::PageCache;
use crate::private::{FileAttributes, prepare};
use crate::resolve::{Candidate, choose, listeners_of, masters, why_not_asked};
use crate::{ServerError, ServerRef, restart, systemd};

pub struct Haproxy {
    facts: Facts,
    command_line: CommandLine,
    /// Absolute paths of the configuration's files and folders.
    configs: Vec<PathBuf>,
    /// True if a master starts the workers.
    has_master: bool,
    stats: Option<Endpoint>,
    knobs: &'static [Knob],
}

/// Open files besides two per connection: listeners, pollers, pipes.
const OTHER_FILES: u64 = 30;

/// A configuration may have thousands of conditions, and each is a question to HAProxy.
const MOST_ASKING: Duration = Duration::from_secs(20);

/// Generous, because a test may wait for name resolution.
const TEST_LIMIT: Duration = Duration::from_secs(60);

fn program_of(birth: &Birth) -> String {
    execution::program_of(birth).display().to_string()
}

/// How the server was started, without what belongs to a single start; and whether it has a master, which its
/// environment shows too.
fn birth_of(info: &ProcessInfo) -> Result<(Birth, bool), ServerError> {
    let pid = info.pid;
    let mut birth = Birth::of_seen(info)?;
    let has_master = birth.environment.iter().any(|(name, _)| name == "HAPROXY_MWORKER");
    birth.argv = command_line::lasting(&birth.argv);
    birth.passing = PASSING.iter().map(ToString::to_string).collect();
    birth.environment = command_line::given(&birth.environment);
    // Once its threads run, HAProxy forbids itself new processes (`insecure-fork-wanted`); with that limit a successor
    // could not have threads.
    birth.limits.retain(|(resource, soft, _)| (*resource, *soft) != (libc::RLIMIT_NPROC, Some(0)));
    // A process in a chroot no longer shows where it was started.
    if fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|root| root != Path::new("/")) {
        birth.directory = "/".into();
    }
    Ok((birth, has_master))
}

/// Tests the files that a command line names.
pub fn test_start(birth: &Birth) -> Result<(), ServerError> {
    let line = CommandLine::read(&birth.argv);
    let files: Vec<PathBuf> = line.configs.iter().map(|config| birth.directory.join(config)).collect();
    Haproxy::check_files(birth, &line, &files).map(drop)
}

impl Haproxy {
    /// Tests these files with the server's program and returns its output.
    fn check_files(birth: &Birth, line: &CommandLine, files: &[PathBuf]) -> Result<String, ServerError> {
        let (passed, said) = Haproxy::test_of(birth, line, files)?;
        if passed {
            return Ok(said);
        }
        let command = line.test(&program_of(birth), files).join(" ");
        Err(ServerError::ConfigTest { command, output: complaints(&said, "[ALERT]").join("\n") })
    }

    pub fn discover(server: &ServerRef) -> Result<Haproxy, ServerError> {
        let mut candidates = Vec::new();
        let mut refused = None;
        let is_test = |argv: &[String]| argv.iter().any(|word| word == "-c" || word == "-cc");
        for p in masters(|p| server.kind.runs(p) && !is_test(&p.argv)) {
            match birth_of(&p) {
                Ok((birth, has_master)) => {
                    let command_line = CommandLine::read(&birth.argv);
                    let configs: Vec<PathBuf> =
                        command_line.configs.iter().map(|config| birth.directory.join(config)).collect();
                    let named = server.config.as_ref().and_then(|wanted| {
                        let wanted = fs::canonicalize(wanted).ok()?;
                        configs.iter().find(|c| fs::canonicalize(c).is_ok_and(|c| c == wanted)).cloned()
                    });
                    let config = named.or_else(|| configs.first().cloned());
                    let found = (birth, has_master, command_line, configs);
                    candidates.push(Candidate { pid: p.pid, found, config, listeners: listeners_of(p.pid) });
                }
                Err(e) => refused = why_not_asked(e, &p, server).or(refused),
            }
        }
        // A master that cannot be asked may be the one that is meant.
        let not_found = || refused.unwrap_or_else(|| not_found(server));
        let Candidate { found, listeners, .. } = choose(candidates, server, not_found)?;
        let (mut birth, has_master, command_line, configs) = found;
        birth.relative = command_line.configs.iter().any(|config| config.is_relative());
        let first = configs.first().ok_or_else(|| ServerError::NotFound {
            what: format!("process {} was started on no configuration", birth.pid),
            advice: server.kind.advice.into(),
        })?;
        let config = fs::canonicalize(first).unwrap_or_else(|_| first.clone());
        let facts = Facts {
            kind: server.kind,
            name: format!("{}:{}", server.kind.name, config.display()),
            version: version_of(&birth)?,
            model: String::new(),
            config: Some(config),
            birth,
            listeners,
            status_url: None,
        };
        let mut haproxy = Haproxy { facts, command_line, configs, has_master, stats: None, knobs: &[] };
        // A configuration that cannot be read is reported when it is needed.
        let config = haproxy.config().unwrap_or_default();
        haproxy.has_master |= haproxy.command_line.has_master || config.of_global("master-worker").next().is_some();
        haproxy.facts.model = if haproxy.has_master { "master and worker" } else { "one process" }.into();
        haproxy.knobs = knobs::table(&knobs::entries(&config), haproxy.processors(), haproxy.has_master);
        haproxy.start_as_root_again(&config);
        haproxy.facts.birth.code = haproxy.code(&config);
        let may_connect = |at: &Endpoint| match at {
            Endpoint::Unix(path) => execution::may_connect(&haproxy.facts.birth, path),
            Endpoint::Tcp(_) => true,
        };
        haproxy.stats = running::stats_socket(&config).filter(may_connect);
        Ok(haproxy)
    }

    fn processors(&self) -> usize {
        self.facts.birth.cpus.len()
    }

    /// Root must restart a process without a master that has changed its user. The configuration alone proves nothing,
    /// because any user can run HAProxy on a file that says `user`. A pid file of root's that names the process does.
    fn start_as_root_again(&mut self, config: &Config) {
        let drops =
            ["user", "uid", "group", "gid", "chroot"].iter().any(|word| config.of_global(word).next().is_some());
        let is_other = self.facts.birth.uid != 0 && nix::unistd::geteuid().is_root();
        if !drops || self.has_master || !is_other || systemd::unit_of(&self.facts.birth).is_some() {
            return;
        }
        let configured = config.of_global("pidfile").filter_map(|line| Some(PathBuf::from(&line.argument(1)?.text)));
        let named: Vec<PathBuf> = self.command_line.pid_file.iter().cloned().chain(configured).collect();
        let birth = &mut self.facts.birth;
        let is_roots = named.iter().any(|file| execution::is_pid_file_of_root(&birth.directory.join(file), birth.pid));
        if is_roots {
            (birth.uid, birth.gid, birth.groups) = (0, 0, Vec::new());
        } else {
            birth.unknown_starter = true;
        }
    }

    /// Files that decide what it executes: its configuration, and the scripts named there.
    fn code(&self, config: &Config) -> Vec<PathBuf> {
        const NAME_CODE: &[&str] = &["lua-load", "lua-load-per-thread", "lua-prepend-path", "ssl-engine"];
        let scripts = config.lines.iter().filter(|line| NAME_CODE.contains(&line.keyword()));
        let scripts: Vec<PathBuf> = scripts.filter_map(|line| Some(PathBuf::from(&line.argument(1)?.text))).collect();
        let sources: Vec<PathBuf> = config.sources.iter().map(|source| source.file.clone()).collect();
        self.configs.iter().cloned().chain(sources).chain(scripts).collect()
    }

    fn files(&self) -> Result<Vec<PathBuf>, ServerError> {
        config::files_of(&self.configs).map_err(ServerError::Setting)
    }

    fn config(&self) -> Result<Config, ServerError> {
        let birth = &self.facts.birth;
        let asking = OnceCell::new();
        let holds = |condition: &str| {
            let question = Question::new(birth, "haproxy -cc tells whether a condition of its configuration holds");
            question.args(["-cc", condition]).ask().is_ok_and(|answer| answer.passed)
        };
        let holds = |condition: &str| {
            let begun = *asking.get_or_init(Instant::now);
            begun.elapsed() < MOST_ASKING && holds(condition)
        };
        let _reader = Reader::of(birth);
        Config::read(&self.files()?, &birth.environment, &holds)
            .map_err(|fault| ServerError::Setting(format!("the configuration cannot be read: {fault}")))
    }

    /// Runs the configuration test as the server would run it, with its limits, and returns its output.
    fn test(&self, files: &[PathBuf]) -> Result<(bool, String), ServerError> {
        let birth = Birth { code: self.code(&self.config()?), ..self.facts.birth.clone() };
        Haproxy::test_of(&birth, &self.command_line, files)
    }

    fn test_of(birth: &Birth, line: &CommandLine, files: &[PathBuf]) -> Result<(bool, String), ServerError> {
        let name = birth.argv.first().map_or("haproxy", String::as_str);
        let question = Question::new(birth, "haproxy -c tests its configuration").argv(&line.test(name, files));
        let code = birth.code.iter().cloned().chain(files.iter().cloned());
        let answer = question.reads(code).like_the_server().within(TEST_LIMIT).ask()?;
        Ok((answer.passed, answer.errors.trim().to_string()))
    }

    fn flat_file(&self) -> Option<PathBuf> {
        Some(beside(self.files().ok()?.first()?, "test"))
    }

    /// Runs the test on a temporary file next to the configuration that contains all of it, with edits.
    fn test_flat(&self, config: &Config, edits: &Edits) -> Result<(bool, String), ServerError> {
        let (Some(file), Some(first)) = (self.flat_file(), config.sources.first()) else {
            return Err(ServerError::Setting("there is no file to change".into()));
        };
        let flat = config.flat(edits);
        let write = || {
            FileAttributes::of(&first.file)
                .and_then(|like| prepare(&file, &like, &flat.text))
                .map_err(ServerError::io(format!("cannot write {}", file.display())))
        };
        let birth = &self.facts.birth;
        let told = execution::write_for(birth, write).and_then(|()| self.test(std::slice::from_ref(&file)));
        let _ = execution::write_for(birth, || Ok(fs::remove_file(&file)));
        let (passed, said) = told?;
        let said = flat.told_of_its_files(&said, &file);
        Ok((passed, said.replace(&*file.to_string_lossy(), &first.name.to_string_lossy())))
    }

    fn edits_of(config: &Config, change: &Change) -> Result<Edits, ServerError> {
        let mut edits = knobs::edits(config, &change.settings).map_err(ServerError::Setting)?;
        edits.extend(directives::edits(config, change).map_err(ServerError::Setting)?);
        if let Some(cache) = &change.cache {
            edits.extend(page_cache::edits(config, cache).map_err(ServerError::Setting)?);
        }
        Ok(edits)
    }

    /// Checks that the server would accept this change. `before` is the test's output without them.
    fn check_settings(&self, change: &Change, before: &str) -> Result<(), ServerError> {
        let config = self.config()?;
        if self.command_line.maxconn && change.settings.contains_key(MAXCONN) {
            return Err(ServerError::Setting("-n on the command line sets maxconn: a file cannot change that".into()));
        }
        if let Some(folder) = self.command_line.folder.as_ref().filter(|folder| folder.is_relative()) {
            return Err(ServerError::Setting(format!(
                "it was started with -C {}, and from where is not known: start it with the whole name of the folder",
                folder.display()
            )));
        }
        let shown: Vec<String> = change.lines().collect();
        let refused = |output: String| Err(ServerError::Clamped { settings: shown.join(", "), output });
        if let Some(why) = self.limit_beyond(&config, &change.settings) {
            return refused(why);
        }
        let edits = Haproxy::edits_of(&config, change)?;
        let (passed, said) = self.test_flat(&config, &edits)?;
        if !passed {
            let advice = where_to(change, &["section", "expects", "permitted"], &said);
            return refused(format!("{}{advice}", complaints(&said, "[ALERT]").join("\n")));
        }
        let known = complaints(before, "[WARNING]");
        let new: Vec<&str> = complaints(&said, "[WARNING]").into_iter().filter(|w| !known.contains(w)).collect();
        if new.is_empty() { Ok(()) } else { refused(new.join("\n")) }
    }

    /// Why the server would reduce these settings or not start with them, where HAProxy's test does not report it.
    fn limit_beyond(&self, config: &Config, settings: &Settings) -> Option<String> {
        let running = self.stats.as_ref().and_then(|at| RuntimeState::ask(at).ok());
        let wanted = |name: &str| settings.get(name).and_then(Setting::count).filter(|n| *n > 0).map(|n| n as u64);
        let (limit, files) = running.as_ref().map_or((None, None), |r| (r.count("Maxconn"), r.count("Maxsock")));
        let of_global = |keyword: &str| {
            let line = config.of_global(keyword).next()?;
            line.argument(1)?.text.parse::<u64>().ok().filter(|n| *n > 0)
        };
        // The running server may still have the value of the last trial.
        let global = wanted(MAXCONN).or_else(|| of_global(MAXCONN));
        for entry in knobs::entries(config) {
            let Some(value) = wanted(&entry.name) else { continue };
            match entry.place {
                KnobLocation::Section(_) if entry.keyword == MAXCONN => {
                    if let Some(most) = global.filter(|most| value > *most) {
                        return Some(format!(
                            "{}: the global maxconn is {most}, and no frontend gets more",
                            entry.name
                        ));
                    }
                }
                KnobLocation::Server(line) => {
                    let least = knobs::of_server(config, line, "minconn").and_then(|(word, _)| word.text.parse().ok());
                    if let Some(least) = least.filter(|least: &u64| value < *least) {
                        return Some(format!("{}: minconn is {least}, and maxconn would be the same", entry.name));
                    }
                }
                _ => {}
            }
        }
        let maxconn = wanted(MAXCONN)?;
        let others = files.zip(limit).map_or(OTHER_FILES, |(files, most)| files.saturating_sub(2 * most));
        let needed = 2 * maxconn + others;
        if let Some(fixed) = of_global("ulimit-n").filter(|fixed| needed > *fixed) {
            return Some(format!("maxconn {maxconn} takes {needed} open files, and ulimit-n is {fixed}"));
        }
        let birth = &self.facts.birth;
        let hard = birth.limits.iter().find(|(resource, ..)| *resource == libc::RLIMIT_NOFILE)?.2?;
        (needed > hard && birth.uid != 0)
            .then(|| format!("maxconn {maxconn} takes {needed} open files; it may have {hard} at most and is not root"))
    }

    /// Records the effective value of a knob and its source.
    fn effective_value(
        &self,
        config: &Config,
        entry: &ConfigKnob,
        running: Option<&RuntimeState>,
        e: &mut EffectiveSettings,
    ) {
        let said = knobs::find(config, entry).filter(|_| entry.name != MAXCONN || !self.command_line.maxconn);
        let actual = running.and_then(|running| running.value(config, entry));
        let default = || match entry.name.as_str() {
            NBTHREAD => Setting::from(self.processors() as u64),
            _ => Setting::read(self.knobs.iter().find(|k| k.name == entry.name).map_or("0", |k| k.default)),
        };
        let is_same = |configured: &Setting, actual: &Setting| match entry.keyword {
            // 0 means that the value follows from others. For a balance algorithm, the server reports only the first
            // word.
            MAXCONN => configured == actual || configured.count() == Some(0),
            _ => configured.to_string().split([' ', '(']).next() == Some(actual.to_string().as_str()),
        };
        let (value, source) = match (said, actual) {
            (Some((configured, place)), Some(actual)) if is_same(&configured, &actual) => {
                let value = if entry.keyword == MAXCONN { actual } else { configured };
                (value, place)
            }
            (Some((configured, _)), Some(actual)) => {
                e.notes.push(format!(
                    "the configuration says {} {configured}, the running server has {actual}: the configuration has \
                     changed since it was loaded, or the server was told over its socket",
                    entry.name
                ));
                (actual, "the running server".into())
            }
            (Some((configured, place)), None) => (configured, place),
            (None, Some(actual)) if self.command_line.maxconn && entry.name == MAXCONN => (actual, "-n".into()),
            (None, Some(actual)) => {
                let follows = entry.keyword == MAXCONN && matches!(entry.place, KnobLocation::Section(_));
                (actual, if follows { "the global maxconn" } else { "default of HAProxy" }.into())
            }
            (None, None) => (default(), "default of HAProxy".into()),
        };
        e.settings.insert(entry.name.clone(), value);
        e.sources.insert(entry.name.clone(), source);
    }
}

/// Messages of a level, without the process that prints them.
fn complaints<'a>(said: &'a str, level: &str) -> Vec<&'a str> {
    let bare = |line: &'a str| {
        let rest = line.strip_prefix(level)?;
        Some(rest.split_once(") : ").map_or(rest, |(_, what)| what).trim())
    };
    // Skip lines that only say that there are errors.
    let tells = |line: &&str| !line.contains("Fatal errors found") && !line.contains("Error(s) found");
    said.lines().filter_map(bare).filter(tells).collect()
}

/// Why a master did not use its configuration, from its log; `None` if the log does not say.
pub fn refusal(log: &str, master: i32) -> Option<String> {
    let mark = format!("({master})");
    let own: Vec<&str> = log.lines().filter(|line| line.contains(&mark)).collect();
    let said = complaints(&own.join("\n"), "[ALERT]").join("\n");
    (!said.is_empty()).then_some(said)
}

fn version_of(birth: &Birth) -> Result<String, ServerError> {
    let said = Question::new(birth, "haproxy -v says its version").args(["-v"]).ask()?.output;
    // "HAProxy version 2.6.12-1+deb12u4 2026/10/17", "HA-Proxy version …"
    Ok(format!("HAProxy {}", said.split_whitespace().nth(2).unwrap_or_default()))
}

fn not_found(server: &ServerRef) -> ServerError {
    let what = match (&server.config, &server.url) {
        (Some(config), _) => format!("no running HAProxy was started on {}", config.display()),
        (None, Some(url)) => format!("no running HAProxy listens on port {}", url.port),
        (None, None) => "no HAProxy is running".into(),
    };
    ServerError::NotFound { what, advice: server.kind.advice.into() }
}

impl Adapter for Haproxy {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn status(&self) -> Option<StatusSource> {
        self.stats.clone().map(|at| StatusSource::StatsSocket { at })
    }

    fn knobs(&self) -> &'static [Knob] {
        self.knobs
    }

    fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        let config = self.config()?;
        let mut e = EffectiveSettings::default();
        let running = match self.stats.as_ref().map(RuntimeState::ask) {
            Some(Ok(running)) => Some(running),
            other => {
                let why = other.and_then(Result::err).unwrap_or_else(|| "its configuration has none".into());
                e.notes.push(format!(
                    "no stats socket ({why}): limits are those of the configuration, and whether others use the server \
                     is told by their connections alone. With 'stats socket /run/haproxy.sock mode 600 level operator' \
                     in global it tells itself"
                ));
                None
            }
        };
        for entry in knobs::entries(&config) {
            self.effective_value(&config, &entry, running.as_ref(), &mut e);
        }
        if !self.has_master {
            e.notes.push(
                "it has no master (-W): a change is a stop and a start, which cuts off those who use the server".into(),
            );
        }
        Ok(e)
    }

    /// Empty: one process serves any number of users.
    fn pool_settings(&self, _size: u64, _effective: &Settings) -> Settings {
        Settings::new()
    }

    /// All settings, including those already in force: a knob that is not set follows changes made elsewhere.
    fn complete(&self, settings: &Settings, _effective: &Settings) -> Settings {
        settings.clone()
    }

    fn placement(&self) -> Placement {
        Placement::Edited
    }

    fn edits(&self, change: &Change) -> Result<Vec<EditedFile>, ServerError> {
        let config = self.config()?;
        let edits = Haproxy::edits_of(&config, change)?;
        let edited = |index: usize| {
            let source = &config.sources[index];
            let after = edits.apply(index, &source.text, 0..source.text.len());
            (after != source.text).then(|| EditedFile::new(source.file.clone(), source.text.clone(), after))
        };
        edits.sources().filter_map(edited).collect()
    }

    fn preview(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        Ok(self.edits(change)?.iter().flat_map(EditedFile::changed_lines).collect())
    }

    fn caches_in_memory(&self) -> bool {
        true
    }

    fn cache_lines(&self, cache: &PageCache) -> Result<Vec<String>, ServerError> {
        if !self.has_master {
            let what = "it has no master (-W): each block of a trial would cut off its visitors";
            return Err(ServerError::Setting(what.into()));
        }
        page_cache::kept_lines(&self.config()?, cache).map_err(ServerError::Setting)
    }

    fn needs(&self, name: &str) -> Option<ReloadClass> {
        // A master executes itself and reads everything again.
        let of_all = if self.has_master { ReloadClass::Reload } else { ReloadClass::Restart };
        Some(self.knobs.iter().find(|k| k.name == name).map_or(of_all, |k| k.needs))
    }

    fn test_file(&self) -> Option<PathBuf> {
        self.flat_file()
    }

    fn check(&self, change: &Change, _file: &Path) -> Result<(), ServerError> {
        let said = Haproxy::check_files(&self.facts.birth, &self.command_line, &self.configs)?;
        if change.is_empty() { Ok(()) } else { self.check_settings(change, &said) }
    }

    /// No frontend counts requests on the stats socket.
    fn counts_looks(&self) -> bool {
        false
    }

    fn daemonizes(&self) -> bool {
        let by_file = || self.config().is_ok_and(|config| config.of_global("daemon").next().is_some());
        !self.command_line.stays && (self.command_line.detaches || by_file())
    }

    /// SIGHUP means no reload to a process without a master: it only logs its state.
    fn reload_signal(&self) -> Signal {
        if self.has_master { Signal::SIGUSR2 } else { Signal::SIGHUP }
    }

    fn is_fresh_after_reload(&self) -> bool {
        self.has_master
    }

    fn executes_itself(&self) -> bool {
        self.has_master
    }

    fn survives_a_bad_reload(&self) -> bool {
        self.has_master
    }

    fn error_log(&self) -> Option<PathBuf> {
        self.facts.birth.errors.clone()
    }

    /// Only the newest workers: older ones are finishing. A master may also have started other programs.
    fn workers(&self, master: i32) -> Vec<i32> {
        let own = process::children(master).into_iter();
        let own = own.filter(|p| p.exe.as_ref().is_none_or(|exe| restart::same_program(exe, &self.facts.birth.exe)));
        own.max_by_key(|p| (p.start_ticks, p.pid)).map(|p| p.pid).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_without_who_says_them() {
        let said = "[NOTICE]   (7) : haproxy version is 2\n[ALERT]    (7) : config : parsing [/a:3] : no\n\
                    [ALERT]    (8) : other\n[ALERT]    (7) : config : Fatal errors found in configuration.";
        assert_eq!(complaints(said, "[ALERT]"), ["config : parsing [/a:3] : no", "other"]);
        assert_eq!(refusal(said, 7).as_deref(), Some("config : parsing [/a:3] : no"));
        assert_eq!(refusal("[WARNING]  (7) : x", 7), None);
        let server: ServerRef = "haproxy:/no/such.cfg".parse().expect("a name");
        assert!(not_found(&server).to_string().contains("/no/such.cfg"));
    }
}
