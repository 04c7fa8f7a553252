//! PHP-FPM: processes of one request each, in a pool. A file that is included last overrides a setting, and the master
//! executes itself to read it. With a configuration that it cannot take it ends: nothing is reloaded untested.

mod knobs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::settings::Spares;
use lastdrop_model::{Knob, Setting, Settings};
use lastdrop_probe::listeners;
use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;

use knobs::{CHILDREN, IDLE, KNOBS, PM, SPARE_MAX, SPARE_MIN, START, is_of_php};

use crate::adapter::{Adapter, Effective, Facts, Placement};
use crate::change::Change;
use crate::fpm_config::{Line, Scan};
use crate::meant::{choose, masters};
use crate::private::write_durably;
use crate::status_page::status_of;
use crate::{ServerError, ServerRef, restart};

/// The override, in a folder that the configuration includes.
const OURS: &str = "zz-lastdrop.conf";
/// How long a master that executes itself may go without its title.
const UNTITLED: Duration = Duration::from_secs(5);

pub struct Fpm {
    facts: Facts,
    main: PathBuf,
    pool: String,
    status: Option<StatusSource>,
    /// What php.ini and its folder say, as PHP itself tells it: `name => local => master`.
    php: String,
}

/// Runs the program with these words.
fn ask(birth: &Birth, words: &[&str]) -> Result<Output, ServerError> {
    let exe = birth.exe.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    let mut command = Command::new(&exe);
    command.env_clear().envs(birth.environment.iter().map(|(k, v)| (k, v))).current_dir(&birth.directory).args(words);
    command.output().map_err(ServerError::io(format!("cannot run {exe}")))
}

/// How a master was started, as far as its title tells: with this file.
fn birth_of(pid: i32, shown: &[String], main: &Path) -> Result<Birth, ServerError> {
    let mut birth = Birth::of(pid)?;
    let exe = birth.exe.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    birth.argv = vec![exe, "--fpm-config".into(), main.display().to_string()];
    birth.shown = Some(shown.join(" ").trim_end().into());
    birth.environment = vec![("PATH".into(), restart::PATH.into())];
    Ok(birth)
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
                // One on a unix socket listens nowhere else, and is as good as another.
                let asked = server.url.is_some();
                let listeners = if asked { listeners::of_process(p.pid).unwrap_or_default() } else { Vec::new() };
                candidates.push((p, Some(main), listeners));
            }
        }
        let (p, main, _) = choose(candidates, server, || not_found(server))?;
        let main = main.unwrap_or_default();
        let birth = birth_of(p.pid, &p.argv, &main)?;
        let listeners = listeners::of_process(p.pid).unwrap_or_default();
        let config = fs::canonicalize(&main).unwrap_or_else(|_| main.clone());
        let scan = Scan::read(&main);
        let pool = match scan.pools()[..] {
            [pool] => pool.to_string(),
            [] => {
                let why = scan.problems.first().map_or(String::new(), |p| format!(": {p}"));
                return Err(ServerError::Setting(format!("{} has no pool{why}", main.display())));
            }
            ref several => {
                return Err(ServerError::Setting(format!(
                    "{} has {} pools ({}): settings are read and changed of a PHP-FPM with one pool only. Any can be \
                     looked at (lastdrop watch {server})",
                    main.display(),
                    several.len(),
                    several.join(", ")
                )));
            }
        };
        let said = ask(&birth, &["-v"])?;
        let version = String::from_utf8_lossy(&said.stdout);
        let version = version.split_whitespace().nth(1).unwrap_or_default();
        let facts = Facts {
            kind: server.kind,
            name: format!("{}:{}", server.kind.name, config.display()),
            version: format!("PHP-FPM {version}"),
            model: scan.last(&pool, PM).map_or_else(String::new, |line| line.value.clone()),
            config: Some(config.clone()),
            birth,
            status_url: None,
            listeners,
        };
        let status = status_of(server, Some(&config), &facts.listeners);
        let php = String::from_utf8_lossy(&ask(&facts.birth, &["-i"])?.stdout).into_owned();
        Ok(Fpm { facts, main, pool, status, php })
    }

    fn test(&self, file: &Path) -> Result<(bool, String), ServerError> {
        let output = ask(&self.facts.birth, &["-t", "--fpm-config", &file.to_string_lossy()])?;
        Ok((output.status.success(), complaints(&String::from_utf8_lossy(&output.stderr))))
    }

    /// The override, where one would count: included after everything that sets the same.
    fn override_file(&self) -> Option<PathBuf> {
        let scan = Scan::read(&self.main);
        let is_set = |line: &Line| {
            line.section == self.pool && KNOBS.iter().any(|k| k.name == line.key) && !line.file.ends_with(OURS)
        };
        scan.inclusions.iter().rev().find_map(|inclusion| {
            let file = inclusion.pattern.parent().filter(|folder| folder.is_dir())?.join(OURS);
            let takes = glob::Pattern::new(&inclusion.pattern.to_string_lossy()).ok()?.matches_path(&file);
            let later = scan.lines[inclusion.end..].iter().any(is_set)
                || scan.lines.iter().any(|l| is_set(l) && l.file.parent() == file.parent() && l.file > file);
            (takes && !later).then_some(file)
        })
    }

    /// What php.ini says of a setting of PHP.
    fn php_ini(&self, name: &str) -> Option<&str> {
        self.php.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" => ")?.split(" => ").next())
    }

    /// A setting of PHP, and where it is from.
    fn of_php(&self, scan: &Scan, knob: &Knob) -> (Setting, String) {
        let ours = scan.last(&self.pool, &format!("php_admin_value[{}]", knob.name)).filter(|l| l.file.ends_with(OURS));
        let (text, source) = match (scan.of_php(&self.pool, knob.name, OURS), ours) {
            (Some((line, true)), _) | (_, Some(line)) | (Some((line, false)), None) => {
                (line.value.as_str(), format!("{}:{}", line.file.display(), line.number))
            }
            (None, None) => (self.php_ini(knob.name).unwrap_or(knob.default), "php.ini, as PHP itself tells".into()),
        };
        let value = Setting::read(text);
        (if knob.takes == knobs::SWITCH { knob.switched(value.is_on()) } else { value }, source)
    }

    fn section(&self, settings: &Settings) -> String {
        let lines = settings.iter().map(|(name, value)| match is_of_php(name) {
            true => format!("php_admin_value[{name}] = {value}\n"),
            false => format!("{name} = {value}\n"),
        });
        format!("[{}]\n{}", self.pool, lines.collect::<String>())
    }

    fn note_about_children(&self, e: &mut Effective) {
        let running = self.workers(self.facts.birth.pid).len() as i64;
        let most = e.settings.get(CHILDREN).and_then(Setting::count).unwrap_or(0);
        let is_static = e.settings.get(PM).is_some_and(|pm| pm.to_string() == "static");
        if running > most || (is_static && running != most) {
            e.notes.push(format!(
                "the configuration says {CHILDREN} {most}, the running server has {running} workers: the configuration \
                 has changed since it was loaded, or some are just being replaced"
            ));
        }
    }
}

/// What it says of a configuration that it does not take, without its times.
fn complaints(said: &str) -> String {
    let bare = |line: &'static str, text: &str| text.find(line).map(|at| text[at..].to_string());
    let lines = said.lines().filter_map(|text| ["ALERT: ", "ERROR: "].iter().find_map(|level| bare(level, text)));
    lines.collect::<Vec<_>>().join("\n")
}

fn not_found(server: &ServerRef) -> ServerError {
    let what = match (&server.config, &server.url) {
        (Some(config), _) => format!("no running PHP-FPM was started on {}", config.display()),
        (None, Some(url)) => format!("no running PHP-FPM listens on port {}", url.port),
        (None, None) => "no PHP-FPM is running".into(),
    };
    ServerError::NotFound { what, advice: server.kind.advice.into() }
}

/// Seconds of `10s`, `2m`, `1h`, `1d`, `10`.
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
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn status(&self) -> Option<StatusSource> {
        self.status.clone()
    }

    fn knobs(&self) -> &'static [Knob] {
        knobs::of(self.php_ini("opcache.enable").is_some())
    }

    fn effective(&self) -> Result<Effective, ServerError> {
        let scan = Scan::read(&self.main);
        let mut e = Effective { notes: scan.problems.clone(), ..Effective::default() };
        for knob in self.knobs() {
            if is_of_php(knob.name) {
                let (value, source) = self.of_php(&scan, knob);
                e.settings.insert(knob.name.into(), value);
                e.sources.insert(knob.name.into(), source);
                continue;
            }
            let line = scan.last(&self.pool, knob.name);
            let text = line.map_or(knob.default, |line| line.value.as_str());
            let value = if knob.name == IDLE { seconds(text).map(Setting::Count) } else { None };
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
        if self.status.is_none() {
            e.notes.push("no status page: with pm.status_path = /status in the pool its requests are counted".into());
        }
        Ok(e)
    }

    fn pool_settings(&self, size: u64, effective: &Settings) -> Settings {
        let names: &[&str] = match effective.get(PM).map(ToString::to_string).as_deref() {
            Some("dynamic") => &[CHILDREN, START, SPARE_MIN, SPARE_MAX],
            _ => &[CHILDREN],
        };
        names.iter().map(|name| ((*name).to_string(), Setting::from(size))).collect()
    }

    fn spare_settings(&self, spares: Spares, effective: &Settings) -> Settings {
        if effective.get(PM).is_none_or(|pm| pm.to_string() != "dynamic") {
            return Settings::new();
        }
        let most = spares.max_spare.max(spares.min_spare).max(1);
        let least = spares.min_spare.max(1);
        let wanted = [(START, spares.start.clamp(least, most)), (SPARE_MIN, least), (SPARE_MAX, most)];
        wanted.into_iter().map(|(name, n)| (name.to_string(), Setting::from(n))).collect()
    }

    fn placement(&self) -> Placement {
        // `check` refuses one that has no place for it.
        let none = || self.main.with_file_name(OURS);
        Placement::IncludedFile(self.override_file().unwrap_or_else(none))
    }

    fn render(&self, change: &Change, _placement: &Placement, kept: Option<&str>) -> String {
        let mut all = Settings::new();
        for line in kept.into_iter().flat_map(str::lines) {
            if let Some((name, value)) = line.split_once(" = ")
                && let name = name.strip_prefix("php_admin_value[").map_or(name, |n| n.trim_end_matches(']'))
                && KNOBS.iter().any(|k| k.name == name)
            {
                all.insert(name.into(), Setting::read(value));
            }
        }
        all.extend(change.settings.clone());
        let section = self.section(&all);
        format!("; Written by lastdrop; `lastdrop restore` takes it away if its maker was killed.\n{section}")
    }

    fn check(&self, change: &Change, file: &Path) -> Result<(), ServerError> {
        if let Some(line) = change.directives.lines().first() {
            return Err(ServerError::Setting(format!(
                "PHP-FPM takes no directives such as '{line}' here, only settings"
            )));
        }
        let (passed, output) = self.test(&self.main)?;
        if !passed {
            let command = format!("{} -t --fpm-config {}", self.facts.birth.exe.display(), self.main.display());
            return Err(ServerError::ConfigTest { command, output });
        }
        let Some(ours) = self.override_file() else {
            return Err(ServerError::Setting(format!(
                "{0} includes no folder after everything that it sets of the pool, so that there is no place for an \
                 override; add as its last line: include = {1}/*.conf",
                self.main.display(),
                self.main.with_file_name("pool.d").display()
            )));
        };
        if change.is_empty() {
            return Ok(());
        }
        let scan = Scan::read(&self.main);
        for name in change.settings.keys().filter(|name| is_of_php(name)) {
            if let Some((line, true)) = scan.of_php(&self.pool, name, OURS) {
                return Err(ServerError::Setting(format!(
                    "{}:{} sets {name} by {}, over which nothing later counts: take that line away first",
                    line.file.display(),
                    line.number,
                    line.key
                )));
            }
        }
        let main = fs::read(&self.main).map_err(ServerError::io(format!("cannot read {}", self.main.display())))?;
        let text = [&main[..], b"\n", self.section(&change.settings).as_bytes()].concat();
        write_durably(file, &text).map_err(ServerError::io(format!("cannot write {}", file.display())))?;
        let told = self.test(file);
        let _ = fs::remove_file(file);
        let (passed, said) = told?;
        if passed {
            return Ok(());
        }
        let shown: Vec<String> = change.lines().collect();
        let output = said.replace(&*file.to_string_lossy(), &ours.to_string_lossy());
        Err(ServerError::Clamped { settings: shown.join(", "), output })
    }

    fn counts_looks(&self) -> bool {
        !matches!(self.status, Some(StatusSource::FastCgi { apart: true, .. }))
    }

    fn daemonizes(&self) -> bool {
        let scan = Scan::read(&self.main);
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
