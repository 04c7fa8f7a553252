//! The adapter of lastdrop's own test target, which is tuned like any server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings, Url};
use lastdrop_probe::process::{self, Birth, ProcessInfo};
use lastdrop_probe::status::{self, StatusPage};
use lastdrop_probe::{ProbeError, listeners};
use nix::sys::signal::Signal;

use crate::adapter::{Adapter, EffectiveSettings, Facts, Placement};
use crate::change::Change;
use crate::execution::{Question, Reader};
use crate::private::write_for_question;
use crate::resolve::{Candidate, choose};
use crate::{ServerError, ServerRef, restart};

pub static KNOBS: &[Knob] = &[
    Knob::new(
        "workers",
        KnobValues::Count(1, 2048),
        "4",
        ReloadClass::Reload,
        "1 to 2048",
        "how many requests are served at once",
    )
    .with_role(Role::PoolSize),
    Knob::new(
        "max_requests_per_worker",
        KnobValues::Count(0, 1_000_000_000),
        "0",
        ReloadClass::Reload,
        "0 is never",
        "a worker that has served so many leaves and another is forked: bounds what leaks",
    )
    .with_role(Role::Recycle),
    Knob::new(
        "keepalive",
        KnobValues::Switch { on: "On", off: "Off" },
        "On",
        ReloadClass::Reload,
        "a kept connection holds its worker",
        "connections stay open between requests",
    )
    .with_role(Role::KeepAlive),
    Knob::new(
        "backlog",
        KnobValues::Count(1, 65_535),
        "511",
        ReloadClass::Restart,
        "at most net.core.somaxconn",
        "connections that wait to be accepted before the kernel turns them away",
    )
    .with_role(Role::Backlog),
];

pub struct Target {
    facts: Facts,
    kept: Option<PathBuf>,
}

fn option(argv: &[String], name: &str) -> Option<String> {
    let mut words = argv.iter();
    let mut found = None;
    while let Some(word) = words.next() {
        if word == name {
            found = words.next().cloned();
        } else if let Some(value) = word.strip_prefix(name).and_then(|v| v.strip_prefix('=')) {
            found = Some(value.to_string());
        }
    }
    found
}

/// Tests the configuration that a command line names.
pub fn test_start(birth: &Birth) -> Result<(), ServerError> {
    test(birth, &birth.argv)
}

fn test(birth: &Birth, argv: &[String]) -> Result<(), ServerError> {
    let words = argv.iter().skip(1).cloned().chain(["--test".to_string()]);
    let question = Question::new(birth, "the target tests its settings").args(words);
    let answer = question.reads(birth.code.iter().cloned()).ask()?;
    if answer.passed {
        return Ok(());
    }
    Err(ServerError::ConfigTest {
        command: format!("{} --test", argv.join(" ")),
        output: answer.errors.trim().to_string(),
    })
}

impl Target {
    pub fn discover(server: &ServerRef) -> Result<Target, ServerError> {
        let own = std::env::current_exe().ok().and_then(|e| e.file_name().map(|n| n.to_string_lossy().into_owned()));
        let own = own.unwrap_or_default();
        let own = own.trim_end_matches(" (deleted)");
        let not_found = || ServerError::NotFound {
            what: format!("no running target is '{server}'"),
            advice: server.kind.advice.into(),
        };
        let mut candidates = Vec::new();
        for seen in masters_of_target(own) {
            let p = seen.pid;
            let (birth, listeners) = match Birth::of_seen(&seen).and_then(|b| Ok((b, listeners::of_process(p)?))) {
                // It has ended in the meantime.
                Err(ProbeError::Gone(_)) => continue,
                other => other?,
            };
            let config = option(&birth.argv, "--config").map(|c| birth.directory.join(c));
            candidates.push(Candidate { pid: p, found: birth, config, listeners });
        }
        let Candidate { found: mut birth, config, listeners, .. } = choose(candidates, server, not_found)?;
        let config = config.map(|c| std::fs::canonicalize(&c).unwrap_or(c));
        let address = listeners.first().copied();
        let status_url = address.map(|a| Url {
            tls: false,
            host: a.ip().to_string(),
            port: a.port(),
            path: "/server-status?auto".into(),
        });
        let name = match (&config, &status_url) {
            (Some(c), _) => format!("target:{}", c.display()),
            (None, Some(url)) => format!("target@{}", url.with_path("/")),
            (None, None) => return Err(not_found()),
        };
        let kept = option(&birth.argv, "--overlay").map(|o| birth.directory.join(o));
        birth.code = config.iter().chain(&kept).cloned().collect();
        let facts = Facts {
            kind: server.kind,
            name,
            version: format!("lastdrop target {}", env!("CARGO_PKG_VERSION")),
            model: "prefork".into(),
            config,
            birth,
            listeners,
            status_url,
        };
        Ok(Target { facts, kept })
    }

    fn table(&self, path: &Path) -> Result<toml::Table, ServerError> {
        let reader = Reader::of(&self.facts.birth);
        let text = lastdrop_files::input::read_regular_text(path)
            .map_err(ServerError::io(format!("cannot read {}", path.display())))?;
        drop(reader);
        text.parse().map_err(|e| ServerError::Setting(format!("{}: {e}", path.display())))
    }

    /// Settings from file, options and overlay, in order of precedence.
    fn configured(&self) -> Result<toml::Table, ServerError> {
        let mut sum = toml::Table::new();
        if let Some(config) = &self.facts.config {
            sum.extend(self.table(config)?);
        }
        for knob in KNOBS {
            if let Some(value) = option(&self.facts.birth.argv, &format!("--{}", knob.name.replace('_', "-"))) {
                let value = value.parse::<i64>().map_or_else(
                    |_| value.parse::<bool>().map_or(toml::Value::String(value.clone()), toml::Value::Boolean),
                    toml::Value::Integer,
                );
                sum.insert(knob.name.into(), value);
            }
        }
        if let Some(kept) = &self.kept {
            sum.extend(self.table(kept)?);
        }
        Ok(sum)
    }
}

/// Master processes of targets. lastdrop itself runs the same program: a target is recognised by its first argument,
/// and a master by a parent that is not a target.
fn masters_of_target(own: &str) -> Vec<ProcessInfo> {
    let mut all = process::all();
    all.retain(|p| {
        let program = p.exe.as_ref().and_then(|e| e.file_name()).map(|n| n.to_string_lossy().into_owned());
        let program = program.as_deref().map(|n| n.trim_end_matches(" (deleted)"));
        p.argv.get(1).is_some_and(|a| a == "target") && (program == Some(own) || program == Some("lastdrop"))
    });
    restart::masters(&all).into_iter().cloned().collect()
}

fn to_setting(knob: &Knob, value: &toml::Value) -> Setting {
    match value {
        toml::Value::Integer(n) => Setting::Count(*n),
        toml::Value::Boolean(on) => knob.switched(*on),
        other if matches!(knob.takes, KnobValues::Switch { .. }) => Setting::Text(other.to_string()),
        other => Setting::read(other.as_str().unwrap_or(&other.to_string())),
    }
}

fn to_toml(value: &Setting) -> toml::Value {
    match value {
        Setting::Count(n) => toml::Value::Integer(*n),
        on_or_off => toml::Value::Boolean(on_or_off.is_on()),
    }
}

impl Adapter for Target {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn software(&self) -> String {
        self.facts.version.clone()
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        let mut e = EffectiveSettings::default();
        let configured = self.configured()?;
        for knob in KNOBS {
            let (value, source) = match configured.get(knob.name) {
                Some(value) => (to_setting(knob, value), "its settings"),
                None => (Setting::read(knob.default), "default of the target"),
            };
            e.settings.insert(knob.name.into(), value);
            e.sources.insert(knob.name.into(), source.into());
        }
        let page = self.facts.status_url.as_ref().and_then(|url| {
            let answer = status::get(url, Duration::from_secs(3)).ok()?;
            StatusPage::parse(&String::from_utf8_lossy(&answer.body))
        });
        match page {
            Some(page) => {
                e.settings.insert("workers".into(), Setting::from(page.scoreboard.len() as u64));
                e.sources.insert("workers".into(), "scoreboard of the running server".into());
            }
            None => e.notes.push("the status page did not answer; settings are those of its files".into()),
        }
        Ok(e)
    }

    fn pool_settings(&self, size: u64, _effective: &Settings) -> Settings {
        Settings::from([("workers".to_string(), Setting::from(size))])
    }

    fn placement(&self) -> Placement {
        Placement::OwnFile
    }

    fn counts_looks(&self) -> bool {
        false
    }

    fn render(&self, change: &Change, _placement: &Placement, kept: Option<&str>) -> String {
        let mut table: toml::Table = kept.and_then(|text| text.parse().ok()).unwrap_or_default();
        for (name, value) in &change.settings {
            table.insert(name.clone(), to_toml(value));
        }
        format!("# Written by lastdrop; `lastdrop restore` takes it away if its maker was killed.\n{table}")
    }

    fn argv_with(&self, file: &Path) -> Vec<String> {
        let mut argv = Vec::new();
        let mut words = self.facts.birth.argv.iter();
        while let Some(word) = words.next() {
            if word == "--overlay" {
                words.next();
            } else if !word.starts_with("--overlay=") {
                argv.push(word.clone());
            }
        }
        argv.extend(["--overlay".to_string(), file.display().to_string()]);
        argv
    }

    fn kept_override(&self) -> Option<PathBuf> {
        self.kept.clone()
    }

    fn check(&self, change: &Change, file: &Path) -> Result<(), ServerError> {
        if let Some(line) = change.directives.lines().first() {
            return Err(ServerError::Setting(format!("the target has no directives such as '{line}', only settings")));
        }
        let birth = &self.facts.birth;
        if change.is_empty() {
            return test(birth, &birth.argv);
        }
        let reader = Reader::of(birth);
        let kept = self.kept.as_ref().and_then(|k| lastdrop_files::input::read_regular_text(k).ok());
        drop(reader);
        let text = self.render(change, &Placement::OwnFile, kept.as_deref());
        write_for_question(&self.facts.birth, file, text.as_bytes())
            .map_err(ServerError::io(format!("cannot write {}", file.display())))?;
        let result = test(birth, &self.argv_with(file));
        let _ = std::fs::remove_file(file);
        result
    }

    fn daemonizes(&self) -> bool {
        false
    }

    fn reload_signal(&self) -> Signal {
        Signal::SIGHUP
    }
}
