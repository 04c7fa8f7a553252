//! A second PHP-FPM with one of the first's pools, and its ini files without some lines or with others. It listens on its
//! own socket in a temporary folder and ends when its handle is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_probe::fastcgi::{self, FpmSocket};
use lastdrop_probe::process::Birth;
use lastdrop_probe::status::Answer;
use lastdrop_probe::{ProbeError, memory};
use serde::Deserialize;
use tempfile::TempDir;

use super::ini::{Ini, IniFilter};
use crate::execution::Question;
use crate::fpm_config::{Scan, SettingLine};
use crate::private::write_durably;
use crate::shadow_instance::{InstanceProcesses, POLL};
use crate::{ServerError, leftover_folders, private};

/// Settings that the instance replaces or omits.
const OURS: &[&str] = &[
    "daemonize",
    "emergency_restart_interval",
    "emergency_restart_threshold",
    "error_log",
    "log_buffering",
    "log_level",
    "log_limit",
    "pid",
    "pm",
    "process_control_timeout",
    "request_slowlog_timeout",
    "request_slowlog_trace_depth",
    "slowlog",
    "systemd_interval",
];
const OURS_BEGIN: &[&str] = &["access.", "listen", "ping.", "pm.", "syslog."];
/// Settings that would prevent lastdrop's script from reporting.
const CLOSES: &[&str] = &["disable_classes", "disable_functions", "open_basedir"];
/// The suffix of complaints at the start, for which no script is responsible.
const AT_START: &str = " in Unknown on line 0";

/// How an instance differs from the server.
#[derive(Debug, Clone, Copy)]
pub enum InstanceVariant<'a> {
    /// Everything except these extensions.
    Without(&'a [String]),
    /// Everything except what denies scripts access to files and functions.
    Open,
    /// The server's extensions, with each setting at its default.
    Plain,
    /// Everything, under load: with a number of workers, and ini lines that override all others.
    Loaded { workers: u32, ini: &'a str },
}

/// An extension as PHP describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Extension {
    /// Names of its functions, classes, constants and settings.
    pub defined: Vec<String>,
    /// Extensions that it needs.
    pub needs: Vec<String>,
    /// Value of each setting.
    pub settings: BTreeMap<String, String>,
}

/// The output of lastdrop's script.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ScriptReport {
    pub extensions: BTreeMap<String, Extension>,
    /// All files that the page consists of.
    pub included: Vec<PathBuf>,
}

/// What is needed to start instances of one server.
pub struct InstanceTemplate {
    folder: TempDir,
    birth: Birth,
    scan: Scan,
    pool: String,
    ini: Ini,
    /// The purpose of the instances, in the list of executed programs.
    pub why: &'static str,
}

impl InstanceTemplate {
    /// `for_what` is part of the name of the instances' folder.
    pub fn new(
        for_what: &str,
        birth: &Birth,
        scan: Scan,
        pool: &str,
        ini: Ini,
    ) -> Result<InstanceTemplate, ServerError> {
        let cannot = || ServerError::io("cannot make a place for a second instance");
        let folder = leftover_folders::create(for_what).map_err(cannot())?;
        // Workers of another user read a script in the folder but cannot list it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).map_err(cannot())?;
        let why = "a second PHP-FPM shows which extensions it needs";
        Ok(InstanceTemplate { folder, birth: birth.clone(), scan, pool: pool.into(), ini, why })
    }

    /// Path for a temporary file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn has(&self, file: &Path) -> bool {
        file.starts_with(self.folder.path())
    }

    /// Starts an instance and waits until it answers a request with these variables.
    ///
    /// # Errors
    /// In words, if it does not answer by the deadline.
    pub fn start(&self, like: InstanceVariant<'_>, ask: &[(&str, String)], until: Instant) -> Result<Instance, String> {
        let mut ready = self.begin(like)?;
        loop {
            if let Some(status) = ready.processes.ended() {
                let last = self.log().lines().last().unwrap_or_default().to_string();
                return Err(format!("it does not start ({status}): {last}"));
            }
            if Instant::now() >= until {
                return Err("it did not answer in time".into());
            }
            if ready.ask(ask, until).is_ok() {
                ready.started = ready.began.elapsed();
                ready.complaints = complaints(&self.log());
                return Ok(ready);
            }
            thread::sleep(POLL);
        }
    }

    fn begin(&self, like: InstanceVariant<'_>) -> Result<Instance, String> {
        let (folder, text) = (self.folder.path().display(), |e: std::io::Error| e.to_string());
        let mut ours = format!("error_log = \"{folder}/php.log\"\n");
        let kept = match like {
            InstanceVariant::Without(names) => IniFilter::Without(names),
            InstanceVariant::Open | InstanceVariant::Loaded { .. } => IniFilter::Without(&[]),
            InstanceVariant::Plain => IniFilter::Loading,
        };
        match like {
            InstanceVariant::Open | InstanceVariant::Plain => {
                ours.extend(CLOSES.iter().map(|name| format!("{name} =\n")));
            }
            InstanceVariant::Loaded { ini, .. } => ours.push_str(ini),
            InstanceVariant::Without(_) => {}
        }
        let copied = self.ini.copy_to(&self.file("ini"), kept, &ours).map_err(text)?;
        let config = self.file("conf");
        let pool = settings(&self.scan, &self.pool, self.folder.path(), like);
        write_durably(&config, pool.as_bytes()).map_err(text)?;
        let socket = self.file("socket");
        for old in ["socket", "log", "php.log", "said"] {
            private::remove_if_there(&self.file(old)).map_err(text)?;
        }
        let mut argv: Vec<String> = self.birth.argv.first().cloned().into_iter().collect();
        // Allows a pool that runs as root, since the server itself has one.
        argv.extend(["-F", "-R", "-y"].map(str::to_string));
        argv.push(config.display().to_string());
        if let Some(main) = &copied.main {
            argv.extend(["-c".to_string(), main.display().to_string()]);
        }
        let question = Question::new(&self.birth, self.why).argv(&argv);
        let question = question.variable("PHP_INI_SCAN_DIR", &copied.scanned.display().to_string());
        let question = question.reads(self.birth.code.iter().cloned()).like_the_server();
        let mut command = question.command().map_err(|e| e.to_string())?;
        let said = fs::File::create(self.file("said")).map_err(text)?;
        command.stdout(Stdio::null()).stderr(said);
        let began = Instant::now();
        let processes = InstanceProcesses::start(command).map_err(text)?;
        let socket = FpmSocket::Unix(socket);
        Ok(Instance { processes, socket, began, started: Duration::ZERO, complaints: BTreeSet::new() })
    }

    fn log(&self) -> String {
        let read = |name: &str| fs::read(self.file(name)).map(|b| String::from_utf8_lossy(&b).into_owned());
        ["php.log", "said", "log"].into_iter().filter_map(|name| read(name).ok()).collect::<Vec<_>>().join("\n")
    }

    /// Lists the extensions and what they define; with a page, also the files that the page consists of.
    ///
    /// # Errors
    /// In words, if lastdrop's script cannot report.
    pub fn describe(
        &self,
        like: InstanceVariant<'_>,
        page: Option<&Path>,
        variables: impl Fn(&Path) -> Vec<(&'static str, String)>,
        until: Instant,
    ) -> Result<ScriptReport, String> {
        let text = |e: std::io::Error| e.to_string();
        let (script, hello, told) = (self.file("describe.php"), self.file("hello.php"), self.file("told"));
        for (file, text) in [(&script, describing(page, &told)), (&hello, "<?php echo 'ok';\n".into())] {
            fs::write(file, text)
                .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(0o644)))
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        let instance = self.start(like, &variables(&hello), until)?;
        // Readable and writable only for the instance's worker, whichever user it runs as.
        write_durably(&told, b"").map_err(text)?;
        let worker = instance.processes.workers().first().copied().ok_or("it has no worker")?;
        let user = fs::metadata(format!("/proc/{worker}")).map_err(text)?;
        std::os::unix::fs::chown(&told, Some(user.uid()), Some(user.gid())).map_err(text)?;
        let answer = instance.ask(&variables(&script), until);
        loop {
            let written = fs::read(&told).map_err(text)?;
            if let Ok(described) = lastdrop_model::read_json(&written) {
                return Ok(described);
            }
            // The response may arrive before the script has ended.
            if Instant::now() >= until || answer.is_err() {
                let why = answer.map_or_else(|e| e.to_string(), |a| format!("it answers {}", a.status));
                return Err(format!("a script of ours does not tell its extensions ({why})"));
            }
            thread::sleep(POLL);
        }
    }
}

/// A running instance; it ends when dropped.
pub struct Instance {
    pub processes: InstanceProcesses,
    pub socket: FpmSocket,
    began: Instant,
    /// Time from the start to the first answer.
    pub started: Duration,
    /// Complaints about ini files and extensions at its start.
    pub complaints: BTreeSet<String>,
}

impl Instance {
    pub fn ask(&self, variables: &[(&str, String)], until: Instant) -> std::io::Result<Answer> {
        let pairs: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        fastcgi::ask(&self.socket, &pairs, &[], until.saturating_duration_since(Instant::now()).max(POLL))
    }

    /// Shared objects below these folders that are mapped in its master's memory.
    pub fn objects(&self, folders: &BTreeSet<PathBuf>) -> Result<BTreeSet<PathBuf>, ProbeError> {
        objects(self.processes.master(), folders)
    }
}

/// Shared objects directly below some folders that are mapped in a process's memory.
pub fn objects(pid: i32, folders: &BTreeSet<PathBuf>) -> Result<BTreeSet<PathBuf>, ProbeError> {
    let all = memory::of_files(pid)?.into_keys().map(PathBuf::from);
    Ok(all.filter(|path| path.parent().is_some_and(|folder| folders.contains(folder))).collect())
}

/// Complaints in the log at the start, without timestamps.
fn complaints(log: &str) -> BTreeSet<String> {
    let bare = |line: &str| line.find("PHP ").map(|at| line[at..].to_string());
    log.lines().filter(|line| line.trim_end().ends_with(AT_START)).filter_map(bare).collect()
}

/// A configuration with one pool, in a folder.
fn settings(scan: &Scan, pool: &str, folder: &Path, like: InstanceVariant<'_>) -> String {
    let folder = folder.display();
    // Settings of PHP that `ini` overrides.
    let (workers, overridden) = match like {
        InstanceVariant::Loaded { workers, ini } => {
            (workers, ini.lines().filter_map(|line| Some(line.split_once('=')?.0.trim())).collect())
        }
        _ => (1, Vec::new()),
    };
    let is_as_served = matches!(like, InstanceVariant::Without(_) | InstanceVariant::Loaded { .. });
    let mut files: BTreeMap<&Path, Vec<String>> = BTreeMap::new();
    // The setting as written, with its quotes.
    let mut own = |line: &'_ SettingLine| {
        let text =
            |path: &Path| String::from_utf8_lossy(&lastdrop_files::input::read(path).unwrap_or_default()).into_owned();
        let lines = |path: &Path| text(path).lines().map(str::to_string).collect();
        let all = scan.lines.iter().find(|l| l.file == line.file).map(|l| l.file.as_path());
        let all = all.map(|path| files.entry(path).or_insert_with(|| lines(path)));
        all.and_then(|all| all.get(line.number - 1).cloned()).unwrap_or_default()
    };
    let stays = |line: &&SettingLine| {
        let php = line.key.strip_prefix("php_").and_then(|k| k.split_once('[')).map(|(_, k)| k.trim_end_matches(']'));
        !OURS.contains(&line.key.as_str())
            && !OURS_BEGIN.iter().any(|begin| line.key.starts_with(begin))
            && php.is_none_or(|name| {
                name != "error_log"
                    && match like {
                        InstanceVariant::Without(_) => true,
                        InstanceVariant::Open => !CLOSES.contains(&name),
                        InstanceVariant::Plain => false,
                        InstanceVariant::Loaded { .. } => !overridden.contains(&name),
                    }
            })
            && (is_as_served || line.key != "security.limit_extensions")
    };
    let mut section = |name: &str| -> String {
        let lines = scan.lines.iter().filter(|line| line.section == name).filter(stays);
        lines.map(|line| own(line) + "\n").collect()
    };
    format!(
        "[global]\n{}pid = {folder}/pid\nerror_log = {folder}/log\ndaemonize = no\n\
         [{pool}]\n{}listen = {folder}/socket\npm = static\npm.max_children = {workers}\n",
        section("global"),
        section(pool)
    )
}

/// A script that includes the page and, when that has ended, writes its report to a file.
fn describing(page: Option<&Path>, told: &Path) -> String {
    let text = |path: &Path| format!("'{}'", path.display().to_string().replace('\\', "\\\\").replace('\'', "\\'"));
    let mut all = format!(
        r"<?php
(function () {{
    $all = [];
    foreach (get_loaded_extensions() as $name) {{
        $of = new ReflectionExtension($name);
        $settings = array_map('strval', $of->getINIEntries());
        $constants = array_keys($of->getConstants());
        $defined = array_merge(array_keys($of->getFunctions()), $of->getClassNames(), $constants, array_keys($settings));
        $all[$name] = [
            'defined' => array_map('strval', $defined),
            'needs' => array_map('strval', array_keys($of->getDependencies())),
            'settings' => (object) $settings,
        ];
    }}
    register_shutdown_function(function () use ($all) {{
        $described = ['extensions' => (object) $all, 'included' => get_included_files()];
        file_put_contents({told}, json_encode($described, JSON_INVALID_UTF8_SUBSTITUTE));
    }});
}})();
",
        told = text(told)
    );
    if let Some(page) = page {
        let page = text(page);
        all.push_str(&format!("$_SERVER['SCRIPT_FILENAME'] = {page};\nchdir(dirname({page}));\nrequire {page};\n"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_the_lines_of_one_pool_and_places_of_its_own() {
        let dir = tempfile::tempdir().expect("a folder");
        let main = dir.path().join("fpm.conf");
        let text = "[global]\npid = /run/a\nerror_log = /var/log/a\nrlimit_files = 9\n[www]\nlisten = /run/w\nlisten.mode = 0600\n\
                    user = www ; why\npm = dynamic\npm.max_children = 9\nphp_admin_value[open_basedir] = \"/srv:/tmp\"\n\
                    php_value[error_log] = /x\nsecurity.limit_extensions = .html\nenv[A] = \"b c\"\n[other]\nuser = x\n";
        fs::write(&main, text).expect("written");
        let scan = Scan::read(&main);
        let ours = "listen = /f/socket\npm = static\npm.max_children = 1\n";
        let global = "[global]\nrlimit_files = 9\npid = /f/pid\nerror_log = /f/log\ndaemonize = no\n";
        let all = settings(&scan, "www", Path::new("/f"), InstanceVariant::Without(&[]));
        let own = "[www]\nuser = www ; why\nphp_admin_value[open_basedir] = \"/srv:/tmp\"\nsecurity.limit_extensions = .html\n";
        assert_eq!(all, format!("{global}{own}env[A] = \"b c\"\n{ours}"));
        let open = settings(&scan, "www", Path::new("/f"), InstanceVariant::Open);
        assert_eq!(open, format!("{global}[www]\nuser = www ; why\nenv[A] = \"b c\"\n{ours}"));
        let loaded = InstanceVariant::Loaded { workers: 3, ini: "open_basedir = \"/srv:/tmp:/f\"\n" };
        let loaded = settings(&scan, "www", Path::new("/f"), loaded);
        let own = "[www]\nuser = www ; why\nsecurity.limit_extensions = .html\nenv[A] = \"b c\"\n";
        assert_eq!(loaded, format!("{global}{own}{}", ours.replace("children = 1", "children = 3")));
    }

    #[test]
    fn complaints_are_of_the_start_and_have_no_time() {
        let log = "[25-Nov-2026 10:00:00 UTC] PHP Warning:  PHP Startup: Unable to load dynamic library 'x' in Unknown on line 0\n\
                   [25-Nov-2026 10:00:00] NOTICE: ready\n[x] PHP Warning:  no in /srv/a.php on line 3\n";
        let all = complaints(log);
        assert_eq!(all.len(), 1);
        assert!(all.first().is_some_and(|l| l.starts_with("PHP Warning:  PHP Startup: Unable")), "{all:?}");
    }
}
