//! Apache httpd 2.4: prefork, worker and event.

mod config;
mod knobs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use config::{Conditions, Scan};
use knobs::{CLAMPS, OLD_NAMES, directive_needs};
use lastdrop_model::settings::Spares;
use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings, Url};
use lastdrop_probe::listeners;
use lastdrop_probe::process::Birth;
use lastdrop_probe::status::{self, StatusPage};
use nix::sys::signal::Signal;

use crate::adapter::{Adapter, Effective, Facts, Placement};
use crate::change::Change;
use crate::kind::Status;
use crate::meant::{choose, masters, url_of};
use crate::private::write_durably;
use crate::{ServerError, ServerRef};

/// First line of every file of ours; the second names the configuration that it is about.
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
}

/// The word after a flag, `-f x` or `-fx`.
fn flag_value(argv: &[String], flag: &str) -> Option<String> {
    let mut words = argv.iter().skip(1);
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().cloned();
        }
        if let Some(value) = word.strip_prefix(flag).filter(|_| !word.starts_with("--")) {
            return Some(value.to_string());
        }
    }
    None
}

/// What the program says of itself with some flags, in the environment of the running server.
fn ask(birth: &Birth, file: Option<&Path>, flags: &[&str]) -> Result<Output, ServerError> {
    let exe = birth.exe.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    let mut command = Command::new(&exe);
    command.env_clear().envs(birth.environment.iter().map(|(k, v)| (k, v))).current_dir(&birth.directory);
    // Defines and the root of the running server matter to the meaning of its configuration.
    let mut words = birth.argv.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-D" | "-d" | "-c" | "-C" => {
                command.arg(word).args(words.next());
            }
            "-f" | "-k" | "-E" | "-e" => {
                words.next();
            }
            w if ["-D", "-d", "-c", "-C"].iter().any(|f| w.starts_with(f)) && w != "-DFOREGROUND" => {
                command.arg(w);
            }
            _ => {}
        }
    }
    if let Some(file) = file {
        command.arg("-f").arg(file);
    }
    command.args(flags);
    command.output().map_err(ServerError::io(format!("cannot run {exe}")))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The quoted value of a `-D NAME="value"` line of `-V`.
fn compiled(output: &str, name: &str) -> Option<PathBuf> {
    let start = output.find(&format!("-D {name}=\""))? + name.len() + 5;
    output[start..].split('"').next().map(PathBuf::from)
}

impl Apache {
    pub fn discover(server: &ServerRef) -> Result<Apache, ServerError> {
        let found = masters(|p| server.kind.runs(p));
        let mut candidates = Vec::new();
        let mut refused = None;
        for p in &found {
            match Birth::of(p.pid).map_err(ServerError::from).and_then(|birth| locate(&birth).map(|l| (birth, l))) {
                Ok((birth, located)) => {
                    let config = located.config.clone();
                    let listeners = listeners::of_process(p.pid).unwrap_or_default();
                    candidates.push(((birth, located), Some(config), listeners));
                }
                Err(e) => refused = Some(e),
            }
        }
        if candidates.is_empty()
            && let Some(e) = refused
        {
            return Err(e);
        }
        let ((birth, located), config, listeners) = choose(candidates, server, || not_found(server))?;
        let config = config.unwrap_or_default();
        let config = std::fs::canonicalize(&config).unwrap_or(config);
        let modules = text(&ask(&birth, Some(&located.started_on), &["-M"])?.stdout);
        let modules = modules
            .lines()
            .filter_map(|l| l.split_whitespace().next())
            .filter(|m| m.ends_with("_module"))
            .map(str::to_string)
            .collect();
        let run_config = text(&ask(&birth, Some(&located.started_on), &["-t", "-D", "DUMP_RUN_CFG"])?.stdout);
        let defines = run_config
            .lines()
            .filter_map(|l| l.strip_prefix("Define: "))
            .filter(|d| *d != "DUMP_RUN_CFG")
            .map(|d| d.split('=').next().unwrap_or(d).to_string())
            .collect();
        let status_url = status_url(server, &listeners);
        Ok(Apache {
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
        })
    }

    fn scan(&self, file: &Path) -> Scan {
        let conditions = Conditions {
            modules: self.modules.clone(),
            defines: self.defines.clone(),
            environment: self.facts.birth.environment.clone(),
        };
        Scan::read(file, &self.root, conditions)
    }

    /// The file that the running server was started on: its owner's, or a kept one of ours.
    fn started_on(&self) -> &Path {
        self.kept.as_deref().unwrap_or(&self.config)
    }

    fn threaded(&self) -> bool {
        self.facts.model != "prefork"
    }

    /// Runs the configuration test; gives what it warned about.
    fn test(&self, file: &Path) -> Result<Vec<String>, ServerError> {
        let output = ask(&self.facts.birth, Some(file), &["-t"])?;
        let said = text(&output.stderr);
        if !output.status.success() {
            return Err(ServerError::ConfigTest {
                command: format!("{} -t -f {}", self.facts.birth.exe.display(), file.display()),
                output: said.trim().to_string(),
            });
        }
        Ok(said.lines().filter(|l| CLAMPS.iter().any(|c| l.contains(c))).map(without_time).collect())
    }
}

/// Log lines begin with a time and a process, which differ from call to call.
fn without_time(line: &str) -> String {
    line.find("AH0").map_or(line, |at| &line[at..]).to_string()
}

/// Where a running server's configuration is.
struct Located {
    /// Its owner's configuration.
    config: PathBuf,
    /// The file on its command line.
    started_on: PathBuf,
    kept: Option<PathBuf>,
    root: PathBuf,
    version: String,
    mpm: String,
}

fn locate(birth: &Birth) -> Result<Located, ServerError> {
    let file = flag_value(&birth.argv, "-f").map(PathBuf::from);
    let output = ask(birth, None, &["-v"])?;
    let version = text(&output.stdout)
        .lines()
        .find_map(|l| l.strip_prefix("Server version: "))
        .unwrap_or("Apache")
        .trim()
        .to_string();
    // -V reads the configuration, for the MPM may be a module; where the default one is broken or missing it still
    // prints how the program was built.
    let built = text(&ask(birth, None, &["-V"])?.stdout);
    let root = flag_value(&birth.argv, "-d")
        .map(PathBuf::from)
        .or_else(|| compiled(&built, "HTTPD_ROOT"))
        .unwrap_or_else(|| PathBuf::from("/etc/apache2"));
    let file = file.or_else(|| compiled(&built, "SERVER_CONFIG_FILE")).unwrap_or_else(|| PathBuf::from("apache2.conf"));
    let started_on = root.join(file);
    let content = std::fs::read_to_string(&started_on)
        .map_err(ServerError::io(format!("cannot read {}", started_on.display())))?;
    let kept = content.starts_with(MARK).then(|| started_on.clone());
    let config = content
        .lines()
        .find_map(|l| l.strip_prefix(ABOUT))
        .filter(|_| kept.is_some())
        .map_or_else(|| started_on.clone(), PathBuf::from);
    let said = text(&ask(birth, Some(&started_on), &["-V"])?.stdout);
    let mpm = said
        .lines()
        .find_map(|l| l.strip_prefix("Server MPM:"))
        .map(|m| m.trim().to_ascii_lowercase())
        .unwrap_or_default();
    if !["prefork", "worker", "event"].contains(&mpm.as_str()) {
        return Err(ServerError::Setting(format!(
            "the MPM of {} cannot be found out (apache2 -V says '{mpm}'); does its configuration pass apache2 -t?",
            started_on.display()
        )));
    }
    Ok(Located { config, started_on, kept, root, version, mpm })
}

fn not_found(server: &ServerRef) -> ServerError {
    let installed =
        ["/usr/sbin/apache2", "/usr/sbin/httpd", "/usr/local/apache2/bin/httpd"].iter().find(|p| Path::new(p).exists());
    match (installed, &server.config) {
        (None, _) => ServerError::NotFound {
            what: "no Apache is running, and none is installed (looked for /usr/sbin/apache2 and /usr/sbin/httpd)"
                .into(),
            advice: server.kind.advice.into(),
        },
        (Some(exe), Some(config)) => ServerError::NotFound {
            what: format!("no running Apache was started on {}", config.display()),
            advice: format!("start it: {exe} -f {} -k start", config.display()),
        },
        (Some(exe), None) => ServerError::NotFound {
            what: match &server.url {
                Some(url) => format!("no running Apache listens on port {}", url.port),
                None => "no Apache is running".into(),
            },
            advice: format!("start it: {exe} -k start, or name its configuration: apache:/path/apache2.conf"),
        },
    }
}

/// Where the status page is: the URL of the name, or the usual path on the first listener.
fn status_url(server: &ServerRef, listeners: &[SocketAddr]) -> Option<Url> {
    let Status::Http { paths: [usual, ..], .. } = server.kind.status else { return None };
    let url = server.url.clone().or_else(|| listeners.first().map(|a| url_of(*a)))?;
    let path = if url.path == "/" { usual } else { url.path.as_str() };
    Some(url.with_path(&if path.contains('?') { path.to_string() } else { format!("{path}?auto") }))
}

impl Adapter for Apache {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn knobs(&self) -> &'static [Knob] {
        knobs::of(&self.facts.model, self.modules.contains("perl_module"))
    }

    fn effective(&self) -> Result<Effective, ServerError> {
        let scan = self.scan(self.started_on());
        let mut e = Effective { notes: scan.problems.clone(), ..Effective::default() };
        for knob in self.knobs() {
            let old = OLD_NAMES.iter().find(|(_, new)| *new == knob.name).map(|(old, _)| *old);
            // Old and new spelling are one directive: the later line wins.
            let line = scan.last(&[knob.name, old.unwrap_or(knob.name)]);
            let (value, source) = match line {
                Some(l) => (
                    l.arguments.first().map_or(Setting::Text(String::new()), |a| Setting::read(a)),
                    format!("{}:{}", l.file.display(), l.number),
                ),
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
        const TOLD: &[&str] = &["HostnameLookups", "AllowOverride", "MaxClients", "MaxRequestsPerChild", "BufferedLogs", "MaxRequestWorkers"];
        let scan = self.scan(self.started_on());
        let told = |name: &&str| {
            let of = |l: &&config::Line| l.name.eq_ignore_ascii_case(name);
            let line = scan.lines.iter().rfind(of)?;
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
            // A pool is whole processes; httpd would round down with a warning.
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

    fn spare_settings(&self, spares: Spares, effective: &Settings) -> Settings {
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
        let ours = "zz-lastdrop.conf";
        // An override counts only where nothing after it sets the same again.
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
        let conventional = |f: &&config::Folder| {
            f.path.file_name().is_some_and(|n| n == "conf-enabled" || n == "conf.d" || n == "conf.modules.d")
        };
        // The pattern has to take our name, after all others.
        let takes_ours = |f: &&config::Folder| f.pattern == "*.conf" || f.pattern == "*";
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
        for line in (Change { settings: all, directives: change.directives.clone() }).lines() {
            out.push_str(&line);
            out.push('\n');
        }
        out
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

    fn needs(&self, name: &str) -> Option<ReloadClass> {
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
        // Tested as a file of our own also where the override will be an included one: the last line wins either way,
        // and nothing of the server's is touched.
        let text = self.render(change, &Placement::OwnFile, kept.as_deref());
        // The test is run by us, not by the server's user.
        write_durably(file, text.as_bytes()).map_err(ServerError::io(format!("cannot write {}", file.display())))?;
        let after = self.test(file);
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
    /// The running server knows better than its files: its scoreboard is as long as its pool may grow.
    fn correct_by_scoreboard(&self, e: &mut Effective) {
        let Some(url) = &self.facts.status_url else { return };
        let missing = |why: String| {
            format!(
                "no status page at {url} ({why}); settings are those of the configuration, which the server may not \
                 have read yet. With mod_status and <Location /server-status> SetHandler server-status they are sure; \
                 a page elsewhere is named with apache@URL"
            )
        };
        let page = match status::get(url, Duration::from_secs(3)) {
            Ok(answer) if answer.status == 200 => StatusPage::parse(&text(&answer.body)),
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
