//! Apache httpd 2.4: prefork, worker and event.

mod code;
mod config;
mod directives;
mod instance;
pub mod knobs;
mod location;
mod modules;
mod page_cache;
mod proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use code::code_template;
use config::{Conditions, Scan};
use directives::{OVERRIDE, PlacedDirectives};
use knobs::{CLAMPS, OLD_NAMES, directive_needs};
use lastdrop_model::settings::SpareWorkers;
use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings};
use lastdrop_probe::listeners;
use lastdrop_probe::process::Birth;
use lastdrop_probe::status::{self, StatusPage};
use location::{Configuration, ask, code as code_files, locate, not_found, started_on, status_url};
pub use modules::unused_modules;
use nix::sys::signal::Signal;
use page_cache::CacheSurroundings;

use crate::adapter::{Adapter, EffectiveSettings, Facts, Placement};
use crate::change::Change;
use crate::edited::EditedFile;
use crate::edits::{Edits, FlatText};
use crate::execution::Reader;
use crate::journal::state_folder;
use crate::page_cache::PageCache;
use crate::private::write_for_question;
use crate::resolve::{Candidate, choose, masters, why_not_asked};
use crate::{ServerError, ServerRef};

/// First line of every override file; the second names the configuration it belongs to.
const MARK: &str = "# Written by lastdrop";
const ABOUT: &str = "# Overrides: ";

pub struct Apache {
    facts: Facts,
    /// The configuration that its owner wrote, whatever file the server was started on.
    config: PathBuf,
    root: PathBuf,
    modules: BTreeSet<String>,
    defines: BTreeSet<String>,
    kept: Option<PathBuf>,
    knobs: &'static [Knob],
}

/// Tests the configuration file that a command line names.
pub fn test_start(birth: &Birth) -> Result<(), ServerError> {
    let (file, root) = started_on(birth)?;
    Apache::test_of(birth, &file, &root).map(drop)
}

impl Apache {
    pub fn discover(server: &ServerRef) -> Result<Apache, ServerError> {
        let found = masters(|p| server.kind.runs(p));
        let mut candidates = Vec::new();
        let mut refused = None;
        for p in &found {
            match Birth::of_seen(p).map_err(ServerError::from).and_then(|birth| locate(&birth).map(|l| (birth, l))) {
                Ok((birth, located)) => {
                    let config = located.config.clone();
                    let listeners = listeners::of_process(p.pid).unwrap_or_default();
                    candidates.push(Candidate { pid: p.pid, found: (birth, located), config: Some(config), listeners });
                }
                Err(e) => refused = why_not_asked(e, p, server).or(refused),
            }
        }
        // A master that cannot be asked may be the one that is meant.
        let not_found = || refused.unwrap_or_else(|| not_found(server));
        let Candidate { found: (birth, located), config, listeners, .. } = choose(candidates, server, not_found)?;
        let config = config.unwrap_or_default();
        let config = std::fs::canonicalize(&config).unwrap_or(config);
        let configuration = Configuration { file: &located.started_on, root: &located.root };
        let modules = ask(&birth, Some(&configuration), &["-M"])?.output;
        let modules = modules
            .lines()
            .filter_map(|l| l.split_whitespace().next())
            .filter(|m| m.ends_with("_module"))
            .map(str::to_string)
            .collect();
        let run_config = ask(&birth, Some(&configuration), &["-t", "-D", "DUMP_RUN_CFG"])?.output;
        let defines = run_config
            .lines()
            .filter_map(|l| l.strip_prefix("Define: "))
            .filter(|d| *d != "DUMP_RUN_CFG")
            .map(|d| d.split('=').next().unwrap_or(d).to_string())
            .collect();
        let status_url = status_url(server, &listeners);
        let mut birth = birth;
        birth.code = code_files(&birth, &located.started_on, &located.root);
        let mut apache = Apache {
            facts: Facts {
                kind: server.kind,
                name: format!("apache:{}", config.display()),
                version: located.version,
                model: located.mpm,
                config: Some(config.clone()),
                birth,
                listeners,
                status_url,
            },
            config,
            root: located.root,
            modules,
            defines,
            kept: located.kept,
            knobs: &[],
        };
        let proxies = proxy::has_workers(&apache.scan(&apache.config));
        apache.knobs = knobs::of(&apache.facts.model, apache.modules.contains("perl_module"), proxies);
        Ok(apache)
    }

    fn scan(&self, file: &Path) -> Scan {
        let conditions = Conditions {
            modules: self.modules.clone(),
            defines: self.defines.clone(),
            environment: self.facts.birth.environment.clone(),
            hold: false,
            version: config::version_numbers(&self.facts.version),
        };
        let _reader = Reader::of(&self.facts.birth);
        Scan::read(file, &self.root, conditions)
    }

    /// The file on which the running server was started: its owner's, or an override from an earlier `--keep`.
    fn started_on(&self) -> &Path {
        self.kept.as_deref().unwrap_or(&self.config)
    }

    fn threaded(&self) -> bool {
        self.facts.model != "prefork"
    }

    /// The places of a change's directives.
    fn placed(&self, scan: &Scan, change: &Change) -> Result<PlacedDirectives, ServerError> {
        if change.directives.lines().is_empty() {
            return Ok(PlacedDirectives::default());
        }
        let end = match self.placement() {
            Placement::IncludedFile(file) => {
                scan.folders.iter().filter(|f| Some(f.path.as_path()) == file.parent()).map(|f| f.end).max()
            }
            Placement::OwnFile | Placement::Edited | Placement::StartedWith => None,
        };
        let after = |line: usize| end.is_some_and(|end| line >= end);
        directives::place(scan, change, after).map_err(ServerError::Setting)
    }

    /// The edits of the server's own files, for what no override reaches.
    fn edits_of(&self, scan: &Scan, change: &Change) -> Result<Edits, ServerError> {
        let mut edits = proxy::edits(scan, self.knobs(), &change.settings).map_err(ServerError::Setting)?;
        edits.extend(self.placed(scan, change)?.edits);
        if let Some(cache) = &change.cache {
            edits.extend(self.cache_surroundings(scan).edits(cache).map_err(ServerError::Setting)?);
        }
        Ok(edits)
    }

    fn cache_surroundings<'a>(&'a self, scan: &'a Scan) -> CacheSurroundings<'a> {
        let _reader = Reader::of(&self.facts.birth);
        CacheSurroundings { scan, modules: &self.modules, overrides: modules::overrides(scan) }
    }

    /// Runs the configuration test and returns its warnings.
    fn test(&self, file: &Path) -> Result<Vec<String>, ServerError> {
        Apache::test_of(&self.facts.birth, file, &self.root)
    }

    fn test_of(birth: &Birth, file: &Path, root: &Path) -> Result<Vec<String>, ServerError> {
        let answer = ask(birth, Some(&Configuration { file, root }), &["-t"])?;
        let said = answer.errors;
        if !answer.passed {
            return Err(ServerError::ConfigTest {
                command: format!("{} -t -f {}", birth.exe.display(), file.display()),
                output: said.trim().to_string(),
            });
        }
        Ok(said.lines().filter(|l| CLAMPS.iter().any(|c| l.contains(c))).map(without_time).collect())
    }
}

/// An override's text without the line that includes the original configuration.
fn without_include(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("Include ")).map(|line| format!("{line}\n")).collect()
}

/// Translates line numbers in httpd's messages about a flat text at `file` to the original files.
fn told_of_its_files(flat: &FlatText, said: &str, file: &Path) -> String {
    let after = format!(" of {}:", file.display());
    let line = |line: &str| {
        let (before, rest) = line.split_once(&after)?;
        let (head, number) = before.rsplit_once(' ')?;
        let (name, own) = flat.place(number.parse().ok()?)?;
        Some(format!("{head} {own} of {}:{rest}", name.display()))
    };
    said.lines().map(|l| line(l).unwrap_or_else(|| l.to_string())).collect::<Vec<_>>().join("\n")
}

/// A log line without its time and process id, which differ between calls.
fn without_time(line: &str) -> String {
    line.find("AH0").map_or(line, |at| &line[at..]).to_string()
}

impl Adapter for Apache {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn knobs(&self) -> &'static [Knob] {
        self.knobs
    }

    fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        let scan = self.scan(self.started_on());
        let mut e = EffectiveSettings { notes: scan.problems.clone(), ..EffectiveSettings::default() };
        for knob in self.knobs() {
            if proxy::is_parameter(knob.name) {
                let (value, source, notes) = proxy::find(&scan, knob);
                e.settings.insert(knob.name.into(), value);
                e.sources.insert(knob.name.into(), source.unwrap_or_else(|| "default of mod_proxy".into()));
                e.notes.extend(notes);
                continue;
            }
            let old = OLD_NAMES.iter().find(|(_, new)| *new == knob.name).map(|(old, _)| *old);
            // The old and the new spelling are the same directive: the later line wins.
            let line = scan.last(&[knob.name, old.unwrap_or(knob.name)]);
            let (value, source) = match line {
                Some(l) => (
                    l.arguments.first().map_or(Setting::Text(String::new()), |a| Setting::read(a)),
                    format!("{}:{}", l.file.display(), l.number),
                ),
                None if knob.name == proxy::PROXY_TIMEOUT => {
                    let timeout = e.settings.get("Timeout").cloned();
                    (timeout.unwrap_or_else(|| Setting::read(knob.default)), "Timeout".to_string())
                }
                None => (Setting::read(knob.default), "default of Apache".to_string()),
            };
            for l in scan.in_sections(knob.name) {
                e.notes.push(format!(
                    "<{}> has its own {} ({}:{}), which overrides keep out of",
                    l.section.as_deref().unwrap_or_default(),
                    knob.name,
                    l.file.display(),
                    l.number
                ));
            }
            e.settings.insert(knob.name.into(), value);
            e.sources.insert(knob.name.into(), source);
        }
        self.correct_by_scoreboard(&mut e);
        Ok(e)
    }

    fn directives(&self) -> BTreeMap<String, String> {
        const TOLD: &[&str] = &[
            "HostnameLookups",
            "AllowOverride",
            "MaxClients",
            "MaxRequestsPerChild",
            "BufferedLogs",
            "MaxRequestWorkers",
        ];
        let scan = self.scan(self.started_on());
        let told = |name: &&str| {
            let of = |l: &&config::DirectiveLine| l.name.eq_ignore_ascii_case(name);
            // One that is on costs wherever it is.
            let is_on = |l: &&config::DirectiveLine| {
                of(l) && l.arguments.first().is_some_and(|a| !a.eq_ignore_ascii_case("off"))
            };
            let costs = (*name == "HostnameLookups").then(|| scan.lines.iter().rfind(is_on)).flatten();
            let line = costs.or_else(|| scan.lines.iter().rfind(of))?;
            Some(((*name).to_string(), line.arguments.join(" ")))
        };
        TOLD.iter().filter_map(told).collect()
    }

    fn pool_settings(&self, size: u64, effective: &Settings) -> Settings {
        let get = |name: &str| effective.get(name).and_then(Setting::count).unwrap_or(0).max(1) as u64;
        let mut s = Settings::new();
        let mut set = |name: &str, n: u64| s.insert(name.to_string(), Setting::from(n));
        if self.threaded() {
            let threads = get("ThreadsPerChild").min(size);
            // A pool consists of whole processes; httpd would round down with a warning.
            let processes = size.div_ceil(threads);
            let workers = processes * threads;
            set("ThreadsPerChild", threads);
            if threads > get("ThreadLimit") {
                set("ThreadLimit", threads);
            }
            set("MaxRequestWorkers", workers);
            // event needs slots for processes that still finish while new ones start (event.xml, since 2.4.24).
            set("ServerLimit", get("ServerLimit").max(processes + processes.div_ceil(4)));
            set("StartServers", processes);
            set("MinSpareThreads", workers.min(threads));
            set("MaxSpareThreads", workers + threads);
        } else {
            set("MaxRequestWorkers", size);
            set("ServerLimit", get("ServerLimit").max(size));
            set("StartServers", size);
            set("MinSpareServers", size);
            set("MaxSpareServers", size + 1);
        }
        s
    }

    fn spare_settings(&self, spares: SpareWorkers, effective: &Settings) -> Settings {
        // StartServers counts processes; spares of threaded MPMs count threads.
        let threads = match self.value(Role::ThreadsPerWorker, effective) {
            Some(threads) => threads.count().unwrap_or(1).max(1) as u64,
            None => 1,
        };
        let wanted = [
            (Role::PoolStart, spares.start.div_ceil(threads)),
            (Role::SpareMin, spares.min_spare),
            (Role::SpareMax, spares.max_spare.max(spares.min_spare + threads)),
        ];
        wanted.into_iter().filter_map(|(role, n)| Some((self.knob(role)?.name.to_string(), Setting::from(n)))).collect()
    }

    fn placement(&self) -> Placement {
        let scan = self.scan(&self.config);
        let ours = OVERRIDE;
        // An override works only if nothing after it sets the same directive.
        let last_set = scan
            .lines
            .iter()
            .enumerate()
            .filter(|(_, l)| l.section.is_none() && !l.file.ends_with(ours))
            .filter(|(_, l)| {
                let known = |n: &str| l.name.eq_ignore_ascii_case(n);
                self.knobs().iter().any(|k| known(k.name)) || OLD_NAMES.iter().any(|(old, _)| known(old))
            })
            .map(|(i, _)| i + 1)
            .max()
            .unwrap_or(0);
        let conventional = |f: &&config::IncludeFolder| {
            f.path.file_name().is_some_and(|n| n == "conf-enabled" || n == "conf.d" || n == "conf.modules.d")
        };
        // The pattern must match our file name, and our file must sort after all others.
        let takes_ours = |f: &&config::IncludeFolder| f.pattern == "*.conf" || f.pattern == "*";
        let usable: Vec<_> = scan.folders.iter().filter(|f| f.end >= last_set).filter(takes_ours).collect();
        match usable.iter().find(|f| conventional(f)).or(usable.last()) {
            Some(folder) => Placement::IncludedFile(folder.path.join(ours)),
            None => Placement::OwnFile,
        }
    }

    fn render(&self, change: &Change, placement: &Placement, kept: Option<&str>) -> String {
        let mut out = format!("{MARK}; `lastdrop restore` takes it away if its maker was killed.\n");
        out.push_str(&format!("{ABOUT}{}\n", self.config.display()));
        if *placement == Placement::OwnFile {
            out.push_str(&format!("Include \"{}\"\n", self.config.display()));
        }
        let mut all = Settings::new();
        for line in kept.into_iter().flat_map(str::lines) {
            if let Some((name, value)) = line.split_once(' ')
                && self.knobs().iter().any(|k| k.name == name)
            {
                all.insert(name.into(), Setting::read(value));
            }
        }
        all.extend(change.settings.clone());
        all.retain(|name, _| !proxy::is_parameter(name));
        // A place that is not there is told when the change is checked.
        let added = self.placed(&self.scan(&self.config), change).map(|placed| placed.added).unwrap_or_default();
        for line in Change::from(all).lines().chain(added) {
            out.push_str(&line);
            out.push('\n');
        }
        out
    }

    fn edits(&self, change: &Change) -> Result<Vec<EditedFile>, ServerError> {
        let scan = self.scan(&self.config);
        let edits = self.edits_of(&scan, change)?;
        let edited = |index: usize| {
            let source = &scan.sources[index];
            let after = edits.apply(index, &source.text, 0..source.text.len());
            let path = source.file.clone().filter(|_| after != source.text)?;
            Some(EditedFile::new(path, source.text.clone(), after))
        };
        edits.sources().filter_map(edited).collect()
    }

    fn preview(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        let edited = self.edits(change)?;
        let settings = Change::from(change.settings.clone());
        let own = settings.lines().filter(|line| !proxy::is_parameter(line));
        let added = self.placed(&self.scan(&self.config), change)?.added;
        let override_lines = own.chain(added).map(|line| format!("for the whole server: {line}"));
        Ok(edited.iter().flat_map(EditedFile::changed_lines).chain(override_lines).collect())
    }

    fn argv_with(&self, file: &Path) -> Vec<String> {
        let mut argv = Vec::new();
        let mut words = self.facts.birth.argv.iter();
        argv.extend(words.next().cloned());
        while let Some(word) = words.next() {
            if word == "-f" {
                words.next();
            } else if !word.starts_with("-f") {
                argv.push(word.clone());
            }
        }
        argv.splice(1..1, ["-f".to_string(), file.display().to_string()]);
        argv
    }

    fn kept_override(&self) -> Option<PathBuf> {
        self.kept.clone()
    }

    fn cache_homes(&self) -> Vec<PathBuf> {
        let usual = ["/var/cache/apache2", "/var/cache/httpd", "/var/cache"].map(PathBuf::from);
        usual.into_iter().chain(state_folder()).collect()
    }

    fn cache_writer(&self) -> Option<(u32, u32)> {
        let worker = self.workers(self.facts.birth.pid).into_iter().next()?;
        let about = std::fs::metadata(format!("/proc/{worker}")).ok()?;
        Some((about.uid(), about.gid()))
    }

    fn keeps_caches(&self) -> bool {
        true
    }

    fn cache_lines(&self, cache: &PageCache) -> Result<Vec<String>, ServerError> {
        let home = self.cache_homes().into_iter().find(|home| home.is_dir()).unwrap_or_else(|| "/var/cache".into());
        let scan = self.scan(&self.config);
        self.cache_surroundings(&scan).kept_lines(cache, &home).map_err(ServerError::Setting)
    }

    fn needs(&self, name: &str) -> Option<ReloadClass> {
        if name == "cache" {
            return Some(ReloadClass::Reload);
        }
        directive_needs(self.knobs(), name)
    }

    fn connects_to_itself(&self) -> bool {
        !self.threaded()
    }

    fn check(&self, change: &Change, file: &Path) -> Result<(), ServerError> {
        let before = self.test(self.started_on())?;
        if change.is_empty() {
            return Ok(());
        }
        let kept = self.kept.as_ref().and_then(|k| std::fs::read_to_string(k).ok());
        self.beyond_threads(change)?;
        // Tested as a separate file even if the override will be an included one: the last line wins in both cases, and
        // the server's files stay untouched. If its own files are edited too, this one file contains all of it.
        let text = self.render(change, &Placement::OwnFile, kept.as_deref());
        let scan = self.scan(&self.config);
        let edits = self.edits_of(&scan, change)?;
        let flat = edits.sources().next().map(|_| scan.flat(&edits));
        let text = match &flat {
            Some(flat) => [&flat.text, b"\n".as_slice(), without_include(&text).as_bytes()].concat(),
            None => text.into_bytes(),
        };
        write_for_question(&self.facts.birth, file, &text)
            .map_err(ServerError::io(format!("cannot write {}", file.display())))?;
        let after = self.test(file).map_err(|e| match (&flat, e) {
            (Some(flat), ServerError::ConfigTest { command, output }) => {
                ServerError::ConfigTest { command, output: told_of_its_files(flat, &output, file) }
            }
            (_, e) => e,
        });
        let _ = std::fs::remove_file(file);
        let new: Vec<String> = after?.into_iter().filter(|w| !before.contains(w)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let shown: Vec<String> = change.lines().collect();
        Err(ServerError::Clamped { settings: shown.join(", "), output: new.join("\n") })
    }

    fn daemonizes(&self) -> bool {
        let argv = &self.facts.birth.argv;
        let foreground = |w: &str| ["FOREGROUND", "NO_DETACH", "ONE_PROCESS", "DEBUG"].contains(&w);
        !argv.iter().any(|w| w == "-X" || foreground(w.strip_prefix("-D").unwrap_or(w)))
    }

    fn reload_signal(&self) -> Signal {
        Signal::SIGUSR1
    }
}

impl Apache {
    /// mod_proxy silently reduces its pools to the number of threads of a process.
    fn beyond_threads(&self, change: &Change) -> Result<(), ServerError> {
        let Some(most) = change.settings.get(proxy::MAX).and_then(Setting::count) else { return Ok(()) };
        let scan = self.scan(self.started_on());
        let knob = self.knob(Role::ThreadsPerWorker);
        let said = knob.and_then(|k| scan.last(&[k.name])?.arguments.first()?.parse().ok());
        let own = knob.and_then(|k| change.settings.get(k.name)?.count());
        let threads = own.or(said).or_else(|| knob?.default.parse().ok()).unwrap_or(1);
        if most <= threads {
            return Ok(());
        }
        let shown: Vec<String> = change.lines().collect();
        let output = format!(
            "a process has {threads} threads (ThreadsPerChild), and mod_proxy never keeps more connections than that to a \
             server behind: it would take {} for {threads}",
            proxy::MAX
        );
        Err(ServerError::Clamped { settings: shown.join(", "), output })
    }

    /// The running server knows better than its files: its scoreboard has a slot per possible worker.
    fn correct_by_scoreboard(&self, e: &mut EffectiveSettings) {
        let Some(url) = &self.facts.status_url else { return };
        let missing = |why: String| {
            format!(
                "no status page at {url} ({why}); settings are those of the configuration, which the server may not \
                 have read yet. With mod_status and <Location /server-status> SetHandler server-status they are sure; \
                 a page elsewhere is named with apache@URL"
            )
        };
        let page = match status::get(url, Duration::from_secs(3)) {
            Ok(answer) if answer.status == 200 => StatusPage::parse(&String::from_utf8_lossy(&answer.body)),
            Ok(answer) => return e.notes.push(missing(format!("it answers {}", answer.status))),
            Err(error) => return e.notes.push(missing(error.to_string())),
        };
        let Some(page) = page else { return e.notes.push(missing("it is another page".into())) };
        let effective = page.scoreboard.len() as i64;
        let configured = e.settings.get("MaxRequestWorkers").and_then(Setting::count);
        if configured.is_some_and(|c| c != effective) {
            e.notes.push(format!(
                "the configuration says MaxRequestWorkers {}, the running server has {effective}: it was clamped, or \
                 the configuration has changed since the server started",
                configured.unwrap_or(0)
            ));
        }
        e.settings.insert("MaxRequestWorkers".into(), Setting::Count(effective));
        e.sources.insert("MaxRequestWorkers".into(), "scoreboard of the running server".into());
    }
}
