//! PHP-FPM: pools of processes that serve one request at a time. A file included last overrides a setting. The master
//! executes itself to read it, and ends if it cannot use the configuration; therefore nothing is reloaded untested.

mod code;
mod extensions;
mod gateway;
mod ini;
mod instance;
pub mod knobs;
mod references;
mod script;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_files::input;
use lastdrop_model::settings::SpareWorkers;
use lastdrop_model::{Knob, Setting, Settings};
use lastdrop_probe::listeners;
use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;

pub use code::code_template;
pub use extensions::unused_extensions;
pub use gateway::Gateway;
use knobs::{BACKLOG, CHILDREN, IDLE, KNOBS, PM, SPARE_MAX, SPARE_MIN, START, full, is_of_php};

use crate::adapter::{Adapter, EffectiveSettings, Facts, Placement};
use crate::change::Change;
use crate::execution::{ProgramOutput, Question, Reader};
use crate::fpm_config::{Scan, SettingLine};
use crate::private::write_for_question;
use crate::resolve::{Candidate, choose, masters};
use crate::restart::Launch;
use crate::status_page::status_of;
use crate::{ServerError, ServerRef, host, intern, restart};

/// Name of the override, in a folder that the configuration includes.
const OURS: &str = "zz-lastdrop.conf";
/// Generous, because a test may wait for name resolution.
const TEST_LIMIT: Duration = Duration::from_secs(60);
/// First line of an override file.
const MARK: &str = "; Written by lastdrop";
/// Line of an override file that names the configuration it changes.
const ABOUT: &str = "; Changes ";
/// The option that names the configuration; `-y` is its short form.
const CONFIG: &str = "--fpm-config";
/// How long a master that executes itself may be without its title.
const UNTITLED: Duration = Duration::from_secs(5);

pub struct Fpm {
    facts: Facts,
    /// The owner's configuration.
    main: PathBuf,
    /// The override on which the server runs, if any; it includes the configuration.
    kept: Option<PathBuf>,
    pools: Vec<String>,
    knobs: &'static [Knob],
    status: Option<StatusSource>,
    /// Output of `php -i`, as the server's PHP prints it: `name => local => master`.
    php: String,
    /// Its ini files and the extensions that they load.
    ini: Vec<PathBuf>,
}

/// Runs the program with these arguments. Whatever they are, it first reads its ini files and loads the extensions they
/// name.
fn ask(birth: &Birth, ini: &[PathBuf], words: &[&str]) -> Result<ProgramOutput, ServerError> {
    let question =
        Question::new(birth, "php-fpm says what it is, what its ini files say, and whether a configuration is right");
    question.args(words.iter().copied()).reads(ini.iter().cloned()).within(TEST_LIMIT).ask()
}

/// Reads a configuration with the rights of the server's user.
fn read_as(birth: &Birth, main: &Path) -> Scan {
    let _reader = Reader::of(birth);
    Scan::read(main)
}

/// How a master was started, as far as its title and configuration show: on this file, with this folder for relative
/// names.
fn birth_of(birth: &Birth, shown: &[String], started_on: &Path, prefix: Option<&Path>) -> Birth {
    let mut birth = birth.clone();
    let exe = birth.exe.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    birth.argv = vec![exe, CONFIG.into(), started_on.display().to_string()];
    birth.argv.extend(prefix.into_iter().flat_map(|folder| ["--prefix".into(), folder.display().to_string()]));
    birth.shown = Some(shown.join(" ").trim_end().into());
    birth.environment = vec![("PATH".into(), restart::PATH.into())];
    birth
}

/// Tests the configuration with the command line that starts the server on it.
pub fn test_start(birth: &Birth) -> Result<(), ServerError> {
    let words: Vec<&str> = birth.argv.iter().skip(1).map(String::as_str).chain(["-t"]).collect();
    let answer = ask(birth, &birth.code, &words)?;
    if answer.passed {
        return Ok(());
    }
    let command = format!("{} {}", birth.exe.display(), words.join(" "));
    Err(ServerError::ConfigTest { command, output: complaints(&answer.errors) })
}

impl Fpm {
    pub fn discover(server: &ServerRef) -> Result<Fpm, ServerError> {
        let until = Instant::now() + UNTITLED;
        let found = loop {
            let found = masters(|p| server.kind.runs(p));
            if found.iter().all(|p| server.kind.named_by.certain(p).is_some()) || Instant::now() > until {
                break found;
            }
            thread::sleep(Duration::from_millis(20));
        };
        let mut candidates = Vec::new();
        for p in found {
            if let Some(main) = server.kind.named_by.certain(&p) {
                // A master that only listens on unix sockets has no other listeners, and is as good a candidate as any.
                let asked = server.url.is_some();
                let listeners = if asked { listeners::of_process(p.pid).unwrap_or_default() } else { Vec::new() };
                candidates.push(Candidate { pid: p.pid, found: p, config: Some(main), listeners });
            }
        }
        let Candidate { found: p, config, .. } = choose(candidates, server, || not_found(server))?;
        let started_on = config.unwrap_or_default();
        let born = Birth::of_seen(&p)?;
        let about = changed_by(&born, &started_on);
        let kept = about.is_some().then(|| started_on.clone());
        let main = about.unwrap_or_else(|| started_on.clone());
        let listeners = listeners::of_process(p.pid).unwrap_or_default();
        let config = fs::canonicalize(&main).unwrap_or_else(|_| main.clone());
        let scan = read_as(&born, &main);
        let birth = birth_of(&born, &p.argv, &started_on, scan.prefix.as_deref());
        let pools: Vec<String> = scan.pools().into_iter().map(str::to_string).collect();
        if pools.is_empty() {
            let why = scan.problems.first().map_or(String::new(), |p| format!(": {p}"));
            return Err(ServerError::Setting(format!("{} has no pool{why}", main.display())));
        }
        let said = Question::new(&birth, "php-fpm says where its ini files are").args(["-n", "-i"]).ask()?.output;
        let ini = {
            let _reader = Reader::of(&birth);
            ini::files_that_load(&said)
        };
        let version = ask(&birth, &ini, &["-v"])?.output;
        let version = version.split_whitespace().nth(1).unwrap_or_default();
        let mut facts = Facts {
            kind: server.kind,
            name: format!("{}:{}", server.kind.name, config.display()),
            version: format!("PHP-FPM {version}"),
            model: match pools.as_slice() {
                [pool] => scan.last(pool, PM).map_or_else(String::new, |line| line.value.clone()),
                several => format!("{} pools", several.len()),
            },
            config: Some(config.clone()),
            birth,
            status_url: None,
            listeners,
        };
        // With several pools, the status page of one says nothing about requests to the others.
        let status = status_of(server, p.pid, Some(&config), &facts.listeners).filter(|_| pools.len() == 1);
        let php = ask(&facts.birth, &ini, &["-i"])?.output;
        facts.birth.code = scan.files.iter().cloned().chain(ini.iter().cloned()).collect();
        let mut fpm = Fpm { facts, main, kept, pools, knobs: &[], status, php, ini };
        fpm.knobs = knobs::of(&fpm.pools, fpm.php_ini("opcache.enable").is_some());
        Ok(fpm)
    }

    fn started_on(&self) -> &Path {
        self.kept.as_deref().unwrap_or(&self.main)
    }

    /// Tests a file that refers to the same files as the configuration read before.
    fn test(&self, scan: &Scan, file: &Path) -> Result<(bool, String), ServerError> {
        let prefix = scan.prefix.as_ref().map(|folder| folder.display().to_string());
        let code: Vec<PathBuf> = self.ini.iter().chain(&scan.files).cloned().chain([file.to_path_buf()]).collect();
        let file = file.to_string_lossy();
        let mut words = vec!["-t", CONFIG, &file];
        words.extend(prefix.iter().flat_map(|folder| ["--prefix", folder.as_str()]));
        let answer = ask(&self.facts.birth, &code, &words)?;
        Ok((answer.passed, complaints(&answer.errors)))
    }

    fn scan(&self) -> Scan {
        read_as(&self.facts.birth, &self.main)
    }

    /// Path of an override that would be effective: it is included after everything that sets the same.
    fn override_file(&self) -> Option<PathBuf> {
        let scan = self.scan();
        let is_set = |line: &SettingLine| {
            self.pools.contains(&line.section) && KNOBS.iter().any(|k| k.name == line.key) && !line.file.ends_with(OURS)
        };
        scan.inclusions.iter().rev().find_map(|inclusion| {
            let file = inclusion.pattern.parent().filter(|folder| folder.is_dir())?.join(OURS);
            let takes = glob::Pattern::new(&inclusion.pattern.to_string_lossy()).ok()?.matches_path(&file);
            let later = scan.lines[inclusion.end..].iter().any(is_set)
                || scan.lines.iter().any(|l| is_set(l) && l.file.parent() == file.parent() && l.file > file);
            (takes && !later).then_some(file)
        })
    }

    /// Value of a PHP setting in php.ini.
    fn php_ini(&self, name: &str) -> Option<&str> {
        self.php.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" => ")?.split(" => ").next())
    }

    /// Value of a PHP setting, and its source.
    fn of_php(&self, scan: &Scan, pool: &str, knob: &Knob) -> (Setting, String) {
        let ours = scan.last(pool, &format!("php_admin_value[{}]", knob.name)).filter(|l| l.file.ends_with(OURS));
        let (text, source) = match (scan.of_php(pool, knob.name, OURS), ours) {
            (Some((line, true)), _) | (_, Some(line)) | (Some((line, false)), None) => {
                (line.value.as_str(), format!("{}:{}", line.file.display(), line.number))
            }
            (None, None) => (self.php_ini(knob.name).unwrap_or(knob.default), "php.ini, as PHP itself tells".into()),
        };
        let value = Setting::read(text);
        (if knob.takes == knobs::SWITCH { knob.switched(value.is_on()) } else { value }, source)
    }

    /// Qualified setting name; unqualified if there is only one pool.
    fn full(&self, pool: &str, name: &str) -> String {
        if self.pools.len() == 1 { name.into() } else { full(pool, name) }
    }

    /// Splits a qualified name into pool and setting. Pool names may contain dots.
    fn pool_of<'a>(&'a self, name: &'a str) -> Option<(&'a str, &'a str)> {
        if let [pool] = self.pools.as_slice() {
            return Some((pool, name));
        }
        let named =
            self.pools.iter().filter_map(|pool| Some((pool.as_str(), name.strip_prefix(pool)?.strip_prefix('.')?)));
        named.filter(|(_, own)| KNOBS.iter().any(|k| k.name == *own)).min_by_key(|(_, own)| own.len())
    }

    /// The configuration sections for a change: one per pool that it concerns.
    fn sections(&self, settings: &Settings) -> String {
        let of = |pool: &String| {
            let own = settings.iter().filter_map(|(name, value)| match self.pool_of(name)? {
                (of, own) if of == pool => Some((own, value)),
                _ => None,
            });
            let lines = own.map(|(name, value)| match is_of_php(name) {
                true => format!("php_admin_value[{name}] = {value}\n"),
                false => format!("{name} = {value}\n"),
            });
            let lines: String = lines.collect();
            if lines.is_empty() { lines } else { format!("[{pool}]\n{lines}") }
        };
        self.pools.iter().map(of).collect()
    }

    /// A numeric setting of a pool.
    fn count(&self, settings: &Settings, pool: &str, name: &str) -> Option<i64> {
        settings.get(&self.full(pool, name))?.count()
    }

    fn is_of_kind(&self, settings: &Settings, pool: &str, pm: &str) -> bool {
        settings.get(&self.full(pool, PM)).is_some_and(|now| now.to_string() == pm)
    }

    /// Notes that a value comes from an environment variable, which the process title has overwritten. For a static
    /// pool, the number of workers shows the value; otherwise it is unknown.
    fn note_about_variable(&self, e: &mut EffectiveSettings, pool: &str, knob: &Knob, line: &SettingLine) {
        let place = format!("{}:{}", line.file.display(), line.number);
        let is_static = self.is_of_kind(&e.settings, pool, "static");
        let running = self.workers_of(pool);
        if is_static && line.key == CHILDREN && running > 0 {
            e.settings.insert(knob.name.into(), Setting::Count(running));
            e.sources.insert(knob.name.into(), format!("workers of the running server ({place} says {})", line.value));
        } else {
            e.sources.insert(knob.name.into(), format!("{place} says {}", line.value));
            e.notes.push(format!(
                "{} is {} in {place}: its value is in the environment of the server, which cannot be read because a \
                 title lies over it",
                knob.name, line.value
            ));
        }
    }

    /// Number of workers that a pool has now.
    fn workers_of(&self, pool: &str) -> i64 {
        let workers = self.workers(self.facts.birth.pid);
        if self.pools.len() == 1 {
            return workers.len() as i64;
        }
        // A worker that was just forked still has its master's title.
        let title = format!("php-fpm: pool {pool}");
        let is_own = |pid: &&i32| process::look(**pid).is_some_and(|p| p.argv.join(" ").trim_end() == title);
        workers.iter().filter(is_own).count() as i64
    }

    fn note_about_children(&self, e: &mut EffectiveSettings) {
        for pool in &self.pools {
            let running = self.workers_of(pool);
            let Some(most) = self.count(&e.settings, pool, CHILDREN) else { continue };
            if running > most || (self.is_of_kind(&e.settings, pool, "static") && running != most) {
                e.notes.push(format!(
                    "the configuration says {} {most}, the running server has {running} workers: the configuration has \
                     changed since it was loaded, or some are just being replaced",
                    self.full(pool, CHILDREN)
                ));
            }
        }
    }

    /// Settings for a pool of `size` workers that are all kept alive.
    fn sized(&self, pool: &str, size: u64, effective: &Settings) -> impl Iterator<Item = (String, Setting)> {
        let names: &[&str] = match self.is_of_kind(effective, pool, "dynamic") {
            true => &[CHILDREN, START, SPARE_MIN, SPARE_MAX],
            false => &[CHILDREN],
        };
        names.iter().map(move |name| (self.full(pool, name), Setting::from(size)))
    }

    /// Distributes `size` workers among the pools in proportion to their present sizes, at least one each.
    fn shares(&self, size: u64, effective: &Settings) -> Vec<(&str, u64)> {
        let now = |pool: &str| self.count(effective, pool, CHILDREN).unwrap_or(1).max(1) as u64;
        let all: u64 = self.pools.iter().map(|pool| now(pool)).sum();
        let share = |pool: &str| (u128::from(size) * u128::from(now(pool)) / u128::from(all.max(1))) as u64;
        self.pools.iter().map(|pool| (pool.as_str(), share(pool).max(1))).collect()
    }
}

/// Errors about a configuration, without timestamps.
fn complaints(said: &str) -> String {
    let bare = |line: &'static str, text: &str| text.find(line).map(|at| text[at..].to_string());
    let lines = said.lines().filter_map(|text| ["ALERT: ", "ERROR: "].iter().find_map(|level| bare(level, text)));
    lines.collect::<Vec<_>>().join("\n")
}

/// The configuration that an override file changes.
fn changed_by(birth: &Birth, file: &Path) -> Option<PathBuf> {
    let _reader = Reader::of(birth);
    let text = input::read_regular_text(file).ok().filter(|text| text.starts_with(MARK))?;
    text.lines().find_map(|line| line.strip_prefix(ABOUT)).map(PathBuf::from)
}

fn not_found(server: &ServerRef) -> ServerError {
    let what = match (&server.config, &server.url) {
        (Some(config), _) => format!("no running PHP-FPM was started on {}", config.display()),
        (None, Some(url)) => format!("no running PHP-FPM listens on port {}", url.port),
        (None, None) => "no PHP-FPM is running".into(),
    };
    ServerError::NotFound { what, advice: server.kind.advice.into() }
}

/// Parses a time such as `10s`, `2m`, `1h`, `1d` or `10` into seconds.
fn seconds(text: &str) -> Option<i64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(unit)
}

impl Adapter for Fpm {
    /// The listen address of each pool.
    fn directives(&self) -> BTreeMap<String, String> {
        let scan = self.scan();
        let listens = |pool: &String| Some((format!("{pool}.listen"), scan.last(pool, "listen")?.value.clone()));
        let mut told: BTreeMap<String, String> = self.pools.iter().filter_map(listens).collect();
        told.extend(self.php_ini("xdebug.mode").map(|mode| ("xdebug.mode".to_string(), mode.to_string())));
        told
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn status(&self) -> Option<StatusSource> {
        self.status.clone()
    }

    fn knobs(&self) -> &'static [Knob] {
        self.knobs
    }

    fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        let scan = read_as(&self.facts.birth, self.started_on());
        let mut e = EffectiveSettings { notes: scan.problems.clone(), ..EffectiveSettings::default() };
        for knob in self.knobs {
            let Some((pool, name)) = self.pool_of(knob.name) else { continue };
            if is_of_php(name) {
                let (value, source) = self.of_php(&scan, pool, &Knob { name: intern::text(name), ..*knob });
                e.settings.insert(knob.name.into(), value);
                e.sources.insert(knob.name.into(), source);
                continue;
            }
            let line = scan.last(pool, name);
            let text = line.map_or(knob.default, |line| line.value.as_str());
            if let Some(line) = line.filter(|line| line.value.contains("${")) {
                self.note_about_variable(&mut e, pool, knob, line);
                continue;
            }
            let value = if name == IDLE { seconds(text).map(Setting::Count) } else { None };
            e.settings.insert(knob.name.into(), value.unwrap_or_else(|| Setting::read(text)));
            let source = line.map(|line| format!("{}:{}", line.file.display(), line.number));
            e.sources.insert(knob.name.into(), source.unwrap_or_else(|| "default of PHP-FPM".into()));
        }
        self.note_about_children(&mut e);
        let patience = scan.global("process_control_timeout").and_then(seconds).unwrap_or(0);
        if patience == 0 {
            e.notes.push(
                "process_control_timeout is 0: a reload cuts off the requests that are being served; with a time in \
                 [global] they may end first"
                    .into(),
            );
        }
        if self.pools.len() > 1 {
            e.notes.push(
                "it has several pools: whether others use them is told by connections alone, on unix sockets by nothing"
                    .into(),
            );
        } else if self.status.is_none() {
            e.notes.push("no status page: with pm.status_path = /status in the pool its requests are counted".into());
        }
        Ok(e)
    }

    fn pool_settings(&self, size: u64, effective: &Settings) -> Settings {
        let shares = self.shares(size, effective).into_iter();
        shares.flat_map(|(pool, size)| self.sized(pool, size, effective)).collect()
    }

    fn spare_settings(&self, spares: SpareWorkers, effective: &Settings) -> Settings {
        let dynamic = |pool: &&String| self.is_of_kind(effective, pool, "dynamic");
        let share = |n: u64, pool: &str| {
            let shares = self.shares(n, effective);
            shares.into_iter().find(|(of, _)| *of == pool).map_or(1, |(_, n)| n)
        };
        let of = |pool: &String| {
            let least = share(spares.min_spare, pool);
            let most = share(spares.max_spare, pool).max(least);
            let wanted = [(START, share(spares.start, pool).clamp(least, most)), (SPARE_MIN, least), (SPARE_MAX, most)];
            wanted.map(|(name, n)| (self.full(pool, name), Setting::from(n)))
        };
        self.pools.iter().filter(dynamic).flat_map(of).collect()
    }

    fn complete(&self, settings: &Settings, effective: &Settings) -> Settings {
        let mut all = settings.clone();
        for pool in &self.pools {
            let size = self.count(settings, pool, CHILDREN);
            all.extend(size.into_iter().flat_map(|n| self.sized(pool, n.max(0) as u64, effective)));
        }
        all.retain(|name, value| effective.get(name) != Some(value));
        all
    }

    fn placement(&self) -> Placement {
        self.override_file().map_or(Placement::OwnFile, Placement::IncludedFile)
    }

    fn argv_with(&self, file: &Path) -> Vec<String> {
        let mut words = self.facts.birth.argv.iter().cloned();
        let mut argv: Vec<String> = words.next().into_iter().collect();
        argv.extend([CONFIG.to_string(), file.display().to_string()]);
        while let Some(word) = words.next() {
            match word.as_str() {
                CONFIG | "-y" => drop(words.next()),
                joined if joined.starts_with("-y") || joined.starts_with("--fpm-config=") => {}
                _ => argv.push(word),
            }
        }
        argv
    }

    fn kept_override(&self) -> Option<PathBuf> {
        self.kept.clone()
    }

    fn render(&self, change: &Change, placement: &Placement, kept: Option<&str>) -> String {
        let mut all = Settings::new();
        let mut pool = "";
        for line in kept.into_iter().flat_map(str::lines) {
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                pool = name;
            } else if let Some((name, value)) = line.split_once(" = ")
                && let name = name.strip_prefix("php_admin_value[").map_or(name, |n| n.trim_end_matches(']'))
                && KNOBS.iter().any(|k| k.name == name)
            {
                all.insert(self.full(pool, name), Setting::read(value));
            }
        }
        all.extend(change.settings.clone());
        let sections = self.sections(&all);
        let main = self.main.display();
        // Settings after a pool's inclusion override those in the included file.
        let original = match placement {
            Placement::OwnFile => format!("{ABOUT}{main}\ninclude = \"{main}\"\n"),
            _ => String::new(),
        };
        format!("{MARK}; `lastdrop restore` takes it away if its maker was killed.\n{original}{sections}")
    }

    fn check(&self, change: &Change, file: &Path) -> Result<(), ServerError> {
        if let Some(line) = change.directives.lines().first() {
            return Err(ServerError::Setting(format!(
                "PHP-FPM takes no directives such as '{line}' here, only settings"
            )));
        }
        let scan = self.scan();
        let (passed, output) = self.test(&scan, self.started_on())?;
        if !passed {
            let command = format!("{} -t {CONFIG} {}", self.facts.birth.exe.display(), self.started_on().display());
            return Err(ServerError::ConfigTest { command, output });
        }
        if change.is_empty() {
            return Ok(());
        }
        for (pool, name) in change.settings.keys().filter_map(|name| self.pool_of(name)) {
            if let Some((line, true)) = scan.of_php(pool, name, OURS).filter(|_| is_of_php(name)) {
                return Err(ServerError::Setting(format!(
                    "{}:{} sets {name} by {}, over which nothing later counts: take that line away first",
                    line.file.display(),
                    line.number,
                    line.key
                )));
            }
        }
        let shown: Vec<String> = change.lines().collect();
        let longest = self.pools.iter().filter_map(|pool| self.count(&change.settings, pool, BACKLOG)).max();
        let beyond = longest.and_then(|n| host::queue_beyond(self.facts.birth.pid, n.max(0) as u64));
        if let Some(output) = beyond {
            return Err(ServerError::Clamped { settings: shown.join(", "), output });
        }
        let reader = Reader::of(&self.facts.birth);
        let main = input::read(&self.main).map_err(ServerError::io(format!("cannot read {}", self.main.display())))?;
        drop(reader);
        let text = [&main[..], b"\n", self.sections(&change.settings).as_bytes()].concat();
        let cannot = ServerError::io(format!("cannot write {}", file.display()));
        write_for_question(&self.facts.birth, file, &text).map_err(cannot)?;
        let told = self.test(&scan, file);
        let _ = fs::remove_file(file);
        let (passed, said) = told?;
        if passed {
            return Ok(());
        }
        let ours = self.override_file();
        let shown_as = ours.as_deref().unwrap_or(&self.main);
        let output = said.replace(&*file.to_string_lossy(), &shown_as.to_string_lossy());
        Err(ServerError::Clamped { settings: shown.join(", "), output })
    }

    fn counts_looks(&self) -> bool {
        !matches!(self.status, Some(StatusSource::FastCgi { apart: true, .. }))
    }

    fn daemonizes(&self) -> bool {
        // For a server that shows a title, these words are known only once its command line has been seen.
        let has = |words: [&str; 2]| self.facts.birth.argv.iter().any(|word| words.contains(&word.as_str()));
        if has(["-F", "--nodaemonize"]) || has(["-D", "--daemonize"]) {
            return !has(["-F", "--nodaemonize"]);
        }
        let scan = self.scan();
        scan.global("daemonize").is_none_or(|word| !matches!(word.to_ascii_lowercase().as_str(), "no" | "off" | "0"))
    }

    fn reload_signal(&self) -> Signal {
        Signal::SIGUSR2
    }

    fn is_fresh_after_reload(&self) -> bool {
        true
    }

    fn executes_itself(&self) -> bool {
        true
    }

    fn hands_over_by(&self) -> Option<&'static str> {
        Some("FPM_SOCKETS")
    }

    fn learn(&mut self, launch: &Launch) {
        (self.facts.birth.argv, self.facts.birth.environment) = (launch.argv.clone(), launch.environment.clone());
    }

    fn workers(&self, master: i32) -> Vec<i32> {
        process::worker_pids(master, self.facts.kind.helpers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_complaints_are_read() {
        assert_eq!(
            ["10", "10s", "2m", "1h", "1d", "x", "3w"].map(seconds)[..4],
            [Some(10), Some(10), Some(120), Some(3600)]
        );
        assert_eq!((seconds("1d"), seconds("3w"), seconds("")), (Some(86_400), None, None));
        let said = "[23-Nov-2026 01:18:58] ALERT: [pool www] no\n[x] NOTICE: fine\n[x] ERROR: failed";
        assert_eq!(complaints(said), "ALERT: [pool www] no\nERROR: failed");
        let server: ServerRef = "php-fpm:/no/such.conf".parse().expect("a name");
        assert!(not_found(&server).to_string().contains("/no/such.conf"));
    }
}
