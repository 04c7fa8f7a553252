//! nginx: each worker serves many requests at once. It accepts no setting twice, so no override is possible: its own
//! files are edited, and it is reloaded.

mod config;
mod directives;
pub mod knobs;
mod listen;
mod page_cache;
mod places;
mod title;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings};
use lastdrop_probe::listeners;
use lastdrop_probe::process::{self, Birth, ProcessInfo};
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;

use config::{Config, Directive};

use crate::adapter::{Adapter, EffectiveSettings, Facts, Placement};
use crate::change::Change;
use crate::directive_edits::where_to;
use crate::edited::{EditedFile, beside};
use crate::edits::Edits;
use crate::execution::{self, Question, Reader};
use crate::health::ASK_TIMEOUT;
use crate::journal::state_folder;
use crate::page_cache::PageCache;
use crate::private::{FileAttributes, prepare};
use crate::resolve::{Candidate, choose, masters, why_not_asked};
use crate::status_page::status_of;
use crate::{ServerError, ServerRef, host, restart};

pub struct Nginx {
    facts: Facts,
    /// The main file, under nginx's own name for it.
    main: PathBuf,
    built: BuildInfo,
    /// The port of the server blocks that are meant; `None` means all.
    port: Option<u16>,
    knobs: &'static [Knob],
}

/// Generous, because a test opens the files that the configuration names, and may wait for name resolution.
const TEST_LIMIT: Duration = Duration::from_secs(60);

/// Build options from `nginx -V`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BuildInfo {
    version: String,
    prefix: PathBuf,
    config: PathBuf,
    error_log: PathBuf,
    /// A folder of temporary files.
    temporary: Option<PathBuf>,
}

impl BuildInfo {
    fn read(said: &str) -> BuildInfo {
        let version = said.lines().find_map(|l| l.strip_prefix("nginx version: ")).unwrap_or("nginx");
        let option = |name: &str| {
            let word = said.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
            word.map(PathBuf::from)
        };
        let prefix = option("--prefix").unwrap_or_else(|| "/usr/local/nginx".into());
        BuildInfo {
            version: version.trim().into(),
            config: prefix.join(option("--conf-path").unwrap_or_else(|| "conf/nginx.conf".into())),
            error_log: option("--error-log-path").unwrap_or_else(|| "logs/error.log".into()),
            temporary: option("--http-proxy-temp-path").map(|path| prefix.join(path)),
            prefix,
        }
    }

    fn of(birth: &Birth) -> Result<BuildInfo, ServerError> {
        let answer = Question::new(birth, "nginx -V says how it was built").args(["-V"]).ask()?;
        Ok(BuildInfo::read(&answer.errors))
    }

    /// The folder to which names of the command line and of logs refer.
    fn prefix_of(&self, birth: &Birth) -> PathBuf {
        title::option(&birth.argv, "-p").map_or_else(|| self.prefix.clone(), |p| birth.directory.join(p))
    }

    /// Returns the main configuration file of a running server.
    fn main_of(&self, birth: &Birth) -> PathBuf {
        title::option(&birth.argv, "-c").map_or_else(|| self.config.clone(), |c| self.prefix_of(birth).join(c))
    }

    /// True if the default is 1000 requests per connection. Before 1.19.10 it was 100.
    fn keeps_for_1000(&self) -> bool {
        let number = self.version.rsplit('/').next().unwrap_or_default();
        let parts: Vec<u32> = number.split('.').map_while(|part| part.parse().ok()).collect();
        parts.len() < 3 || parts >= vec![1, 19, 10]
    }
}

/// How a master was started; `None` if the process is not a master.
fn birth_of(info: &ProcessInfo) -> Result<Option<Birth>, ServerError> {
    let mut birth = Birth::of_seen(info)?;
    let Some(argv) = title::command_line(&birth.argv) else { return Ok(None) };
    birth.argv = argv;
    birth.title = Some(title::MASTER.into());
    birth.environment = vec![("PATH".into(), restart::PATH.into())];
    Ok(Some(birth))
}

/// Tests the configuration file that a command line names.
pub fn test_start(birth: &Birth) -> Result<(), ServerError> {
    Nginx::check_main(birth, &BuildInfo::of(birth)?.main_of(birth))
}

impl Nginx {
    /// Tests a main file with its server's program.
    fn check_main(birth: &Birth, main: &Path) -> Result<(), ServerError> {
        let (passed, output) = Nginx::test_of(birth, main)?;
        let command = format!("{} -t -c {}", birth.exe.display(), main.display());
        if passed { Ok(()) } else { Err(ServerError::ConfigTest { command, output }) }
    }

    pub fn discover(server: &ServerRef) -> Result<Nginx, ServerError> {
        let mut candidates = Vec::new();
        let mut refused = None;
        for p in masters(|p| server.kind.runs(p)) {
            match birth_of(&p).and_then(|birth| birth.map(|b| BuildInfo::of(&b).map(|built| (b, built))).transpose()) {
                Ok(Some((birth, built))) => {
                    let main = built.main_of(&birth);
                    let listeners = listeners::of_process(p.pid).unwrap_or_default();
                    candidates.push(Candidate { pid: p.pid, found: (birth, built), config: Some(main), listeners });
                }
                Ok(None) => {}
                Err(e) => refused = why_not_asked(e, &p, server).or(refused),
            }
        }
        // A master that cannot be asked may be the one that is meant.
        let not_found = || refused.unwrap_or_else(|| not_found(server));
        let Candidate { found: (birth, built), config, listeners, .. } = choose(candidates, server, not_found)?;
        let main = config.unwrap_or_else(|| built.config.clone());
        let config = fs::canonicalize(&main).unwrap_or_else(|_| main.clone());
        let status_url = match status_of(server, birth.pid, Some(&config), &listeners) {
            Some(StatusSource::Page { url, .. }) => Some(url),
            _ => None,
        };
        let port = server.url.as_ref().map(|url| url.port);
        let facts = Facts {
            kind: server.kind,
            name: format!("{}:{}", server.kind.name, config.display()),
            version: built.version.clone(),
            model: "event".into(),
            config: Some(config),
            birth,
            listeners,
            status_url,
        };
        let mut nginx = Nginx { facts, main, built, port, knobs: knobs::of(None) };
        // A broken configuration is reported when it is needed.
        nginx.knobs = knobs::of(nginx.config().ok().as_ref());
        nginx.facts.birth.code = nginx.code().unwrap_or_else(|_| vec![nginx.main.clone()]);
        Ok(nginx)
    }

    fn config(&self) -> Result<Config, ServerError> {
        let global = title::option(&self.facts.birth.argv, "-g");
        let _reader = Reader::of(&self.facts.birth);
        Config::read(&self.main, global)
            .map_err(|fault| ServerError::Setting(format!("the configuration cannot be read: {fault}")))
    }

    /// Folders whose files it serves or names to its backends, except those that depend on variables.
    pub fn served_folders(&self) -> Result<Vec<PathBuf>, ServerError> {
        let prefix = self.built.prefix_of(&self.facts.birth);
        let config = self.config()?;
        let own = config.directives.iter().filter(|d| matches!(d.name(), "root" | "alias"));
        let named = own.filter_map(|d| d.arguments().first()).filter(|word| !word.text.contains('$'));
        Ok(named.map(|word| prefix.join(&word.text)).collect())
    }

    /// Runs the configuration test as the server would run it, with its limits, and returns its warnings.
    fn test(&self, file: &Path) -> Result<(bool, String), ServerError> {
        let birth = Birth { code: self.code()?, ..self.facts.birth.clone() };
        Nginx::test_of(&birth, file)
    }

    fn test_of(birth: &Birth, file: &Path) -> Result<(bool, String), ServerError> {
        let mut argv = title::with_config(&birth.argv, &file.to_string_lossy());
        argv.push("-t".into());
        let question = Question::new(birth, "nginx -t tests its configuration").argv(&argv).within(TEST_LIMIT);
        let code = birth.code.iter().cloned().chain([file.to_path_buf()]);
        let answer = question.reads(code).like_the_server().ask()?;
        Ok((answer.passed, answer.errors.trim().to_string()))
    }

    /// Files that decide what it executes: its configuration, and the modules and scripts named there.
    fn code(&self) -> Result<Vec<PathBuf>, ServerError> {
        const NAME_CODE: &[&str] = &[
            "init_by_lua_file",
            "init_worker_by_lua_file",
            "js_include",
            "js_import",
            "js_path",
            "load_module",
            "perl_modules",
            "perl_require",
            "passenger_root",
            "passenger_ruby",
            "ssl_engine",
        ];
        let (config, prefix) = (self.config()?, self.built.prefix_of(&self.facts.birth));
        let beside = self.main.parent().map_or_else(|| prefix.clone(), Path::to_path_buf);
        let mut code: Vec<PathBuf> = config.sources.iter().filter_map(|source| source.file.clone()).collect();
        code.push(self.main.clone());
        for directive in config.directives.iter().filter(|d| NAME_CODE.contains(&d.name())) {
            let Some(file) = directive.arguments().last() else { continue };
            code.extend([prefix.join(&file.text), beside.join(&file.text)]);
        }
        Ok(code)
    }

    fn edits_of(&self, config: &Config, change: &Change) -> Result<Edits, ServerError> {
        let mut edits = places::edits(config, &change.settings, self.port).map_err(ServerError::Setting)?;
        edits.extend(directives::edits(config, change).map_err(ServerError::Setting)?);
        if let Some(cache) = &change.cache {
            edits.extend(page_cache::edits(config, cache).map_err(ServerError::Setting)?);
        }
        Ok(edits)
    }

    /// Checks that the server would accept this change.
    fn check_settings(&self, change: &Change) -> Result<(), ServerError> {
        let config = self.config()?;
        if last(&config, "master_process").is_some_and(|d| d.arguments().iter().any(|w| w.text == "off")) {
            return Err(ServerError::Setting("master_process is off: there is nobody who could reload".into()));
        }
        let shown: Vec<String> = change.lines().collect();
        let refused = |output: String| Err(ServerError::Clamped { settings: shown.join(", "), output });
        if let Some(why) = self.limit_beyond(&change.settings) {
            return refused(why);
        }
        let (passed, before) = self.test_flat(&config, &Edits::default())?;
        if !passed {
            return Err(ServerError::ConfigTest {
                command: "nginx -t of all of it in one file".into(),
                output: before,
            });
        }
        let (passed, said) = self.test_flat(&config, &self.edits_of(&config, change)?)?;
        if !passed {
            let advice = where_to(change, &["is not allowed here"], &said);
            return refused(format!("{said}{advice}"));
        }
        let known: Vec<&str> = complaints(&before, &["[warn]"]);
        let new: Vec<&str> = complaints(&said, &["[warn]"]).into_iter().filter(|w| !known.contains(w)).collect();
        if new.is_empty() { Ok(()) } else { refused(new.join("\n")) }
    }

    /// Runs the configuration test on a temporary file next to the main one that contains all of it, with edits.
    fn test_flat(&self, config: &Config, edits: &Edits) -> Result<(bool, String), ServerError> {
        // nginx warns about limits only if a log accepts warnings; by default none does.
        const LOG: &[u8] = b"error_log stderr warn; ";
        let flat = config.flat(&self.main, edits);
        let file = self.flat_file();
        let write = || {
            FileAttributes::of(&self.main)
                .and_then(|like| prepare(&file, &like, &[LOG, &flat.text].concat()))
                .map_err(ServerError::io(format!("cannot write {}", file.display())))
        };
        let birth = &self.facts.birth;
        let told = execution::write_for(birth, write).and_then(|()| self.test(&file));
        let _ = execution::write_for(birth, || Ok(fs::remove_file(&file)));
        let (passed, said) = told?;
        let said = flat.told_of_its_files(&said, &file);
        Ok((passed, said.replace(&*file.to_string_lossy(), &self.main.to_string_lossy())))
    }

    /// What the kernel would reduce without a message from nginx's test.
    fn limit_beyond(&self, settings: &Settings) -> Option<String> {
        let birth = &self.facts.birth;
        let count = |name: &str| settings.get(name).and_then(Setting::count).map(|n| n.max(0) as u64);
        if let Some(why) = count("backlog").and_then(|wanted| host::queue_beyond(birth.pid, wanted)) {
            return Some(why);
        }
        let hard = birth.limits.iter().find(|(resource, ..)| *resource == libc::RLIMIT_NOFILE)?.2?;
        let wanted = count("worker_rlimit_nofile").filter(|n| *n > hard && birth.uid != 0)?;
        Some(format!("the master may open {hard} files at most and is not root: its workers cannot have {wanted}"))
    }

    fn flat_file(&self) -> PathBuf {
        beside(&self.main, "test")
    }

    /// The running server shows its number of workers better than its files.
    fn correct_by_workers(&self, e: &mut EffectiveSettings) {
        const NAME: &str = "worker_processes";
        let running = self.workers(self.facts.birth.pid).len() as i64;
        let configured = match e.settings.get(NAME) {
            Some(Setting::Count(n)) => *n,
            // SAFETY: only returns a number.
            _ => unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1),
        };
        if running == configured {
            return;
        }
        e.notes.push(format!(
            "the configuration says {NAME} {}, the running server has {running}: the configuration has changed since it \
             was loaded",
            e.settings.get(NAME).map_or_else(String::new, ToString::to_string)
        ));
        e.settings.insert(NAME.into(), Setting::Count(running));
        e.sources.insert(NAME.into(), "workers of the running server".into());
    }

    fn note_about_status(&self, e: &mut EffectiveSettings) {
        let answers = self.status().map(|source| source.read(false, ASK_TIMEOUT));
        let why = match &answers {
            Some(Ok(_)) => return,
            Some(Err(error)) => format!("{error}"),
            None => "none is where one is by habit".into(),
        };
        e.notes.push(format!(
            "no status page ({why}): whether others use the server is told by their connections alone. With location = \
             /nginx_status {{ stub_status; }} requests are counted; a page elsewhere is named with nginx@URL"
        ));
    }
}

/// The last line of a directive of the main context, including the command line.
fn last<'a>(config: &'a Config, name: &'a str) -> Option<&'a Directive> {
    config.within(&[], name).last()
}

/// Messages of these levels, without the time and process that may precede them.
fn complaints<'a>(said: &'a str, levels: &[&str]) -> Vec<&'a str> {
    let bare = |line: &'a str| {
        let line = levels.iter().find_map(|level| line.find(level).map(|at| &line[at..]))?;
        Some(match line.split_once("#") {
            Some((head, rest)) if head.ends_with(|c: char| c.is_ascii_digit()) => {
                rest.split_once(": ").map_or(line, |(_, what)| what)
            }
            _ => line,
        })
    };
    said.lines().filter_map(bare).collect()
}

fn not_found(server: &ServerRef) -> ServerError {
    let what = match (&server.config, &server.url) {
        (Some(config), _) => format!("no running nginx was started on {}", config.display()),
        (None, Some(url)) => format!("no running nginx listens on port {}", url.port),
        (None, None) => "no nginx is running".into(),
    };
    ServerError::NotFound { what, advice: server.kind.advice.into() }
}

impl Adapter for Nginx {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn software(&self) -> String {
        self.facts.version.clone()
    }

    fn knobs(&self) -> &'static [Knob] {
        self.knobs
    }

    fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        let config = self.config()?;
        let mut e = EffectiveSettings::default();
        for knob in self.knobs {
            let found = places::find(&config, knob, self.port);
            let old =
                found.source.is_none() && knob.role == Some(Role::KeepAliveRequests) && !self.built.keeps_for_1000();
            e.settings.insert(knob.name.into(), if old { Setting::Count(100) } else { found.value });
            e.sources.insert(knob.name.into(), found.source.unwrap_or_else(|| "default of nginx".into()));
            e.notes.extend(found.notes);
        }
        self.correct_by_workers(&mut e);
        self.note_about_status(&mut e);
        Ok(e)
    }

    /// Empty: as many processes as CPUs serve any number of users.
    fn pool_settings(&self, _size: u64, _effective: &Settings) -> Settings {
        Settings::new()
    }

    /// A proxied connection takes two descriptors.
    fn complete(&self, settings: &Settings, effective: &Settings) -> Settings {
        let mut all = settings.clone();
        let count = |name: &str| all.get(name).or(effective.get(name)).and_then(Setting::count);
        let wanted = settings.get("worker_connections").and_then(Setting::count).map(|n| n.saturating_mul(2));
        let own = count("worker_rlimit_nofile").filter(|n| *n > 0);
        let master = self.facts.birth.limits.iter().find(|(resource, ..)| *resource == libc::RLIMIT_NOFILE);
        let allowed = own.or_else(|| master?.1.map(|n| i64::try_from(n).unwrap_or(i64::MAX)));
        if let (Some(wanted), Some(allowed)) = (wanted, allowed)
            && wanted > allowed
        {
            all.insert("worker_rlimit_nofile".into(), Setting::Count(wanted));
        }
        all.retain(|name, value| effective.get(name) != Some(value));
        all
    }

    fn placement(&self) -> Placement {
        Placement::Edited
    }

    fn edits(&self, change: &Change) -> Result<Vec<EditedFile>, ServerError> {
        let config = self.config()?;
        let edits = self.edits_of(&config, change)?;
        let edited = |index: usize| {
            let source = &config.sources[index];
            let after = edits.apply(index, &source.text, 0..source.text.len());
            let path = source.file.clone().filter(|_| after != source.text)?;
            Some(EditedFile::new(path, source.text.clone(), after))
        };
        edits.sources().filter_map(edited).collect()
    }

    fn preview(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        Ok(self.edits(change)?.iter().flat_map(EditedFile::changed_lines).collect())
    }

    /// Folders beside those of its temporary files, which its workers reach; otherwise the system's.
    fn cache_homes(&self) -> Vec<PathBuf> {
        let prefix = self.built.prefix_of(&self.facts.birth);
        let config = self.config().unwrap_or_default();
        let is_of_temporary = |d: &&Directive| d.name().ends_with("_temp_path");
        let configured = config.directives.iter().filter(is_of_temporary).filter_map(|d| d.arguments().first());
        let temporary = configured.map(|word| prefix.join(&word.text)).chain(self.built.temporary.clone());
        let mut homes: Vec<PathBuf> = temporary.filter_map(|path| path.parent().map(Path::to_path_buf)).collect();
        homes.push("/var/cache".into());
        homes.extend(state_folder());
        homes.dedup();
        homes
    }

    fn keeps_caches(&self) -> bool {
        true
    }

    fn cache_lines(&self, cache: &PageCache) -> Result<Vec<String>, ServerError> {
        let home = self.cache_homes().into_iter().find(|home| home.is_dir()).unwrap_or_else(|| "/var/cache".into());
        page_cache::kept_lines(&self.config()?, cache, &home).map_err(ServerError::Setting)
    }

    fn needs(&self, name: &str) -> Option<ReloadClass> {
        // A reload keeps the listening sockets of addresses, and what the master alone has.
        const KEPT: &[&str] = &["daemon", "listen", "lock_file", "master_process", "pid", "working_directory"];
        let of_all = if KEPT.contains(&name) { ReloadClass::Restart } else { ReloadClass::Reload };
        Some(self.knobs.iter().find(|k| k.name == name).map_or(of_all, |k| k.needs))
    }

    fn test_file(&self) -> Option<PathBuf> {
        Some(self.flat_file())
    }

    fn check(&self, change: &Change, _file: &Path) -> Result<(), ServerError> {
        Nginx::check_main(&self.facts.birth, &self.main)?;
        if change.is_empty() { Ok(()) } else { self.check_settings(change) }
    }

    fn daemonizes(&self) -> bool {
        let daemon = self.config().ok().and_then(|c| Some(last(&c, "daemon")?.arguments().first()?.text.clone()));
        daemon.is_none_or(|word| word != "off")
    }

    fn reload_signal(&self) -> Signal {
        Signal::SIGHUP
    }

    fn is_fresh_after_reload(&self) -> bool {
        true
    }

    fn error_log(&self) -> Option<PathBuf> {
        let config = self.config().ok()?;
        let own = config.within(&[], "error_log").next().and_then(|d| Some(d.arguments().first()?.text.clone()));
        let name = own.map_or_else(|| self.built.error_log.clone(), PathBuf::from);
        match name.to_str() {
            Some("stderr") => self.facts.birth.errors.clone(),
            Some(other) if other.starts_with("syslog:") || other.starts_with("memory:") => None,
            _ => Some(self.built.prefix_of(&self.facts.birth).join(name)),
        }
    }

    /// Without those of an old generation, which are finishing their work.
    fn workers(&self, master: i32) -> Vec<i32> {
        let mut pids = process::worker_pids(master, self.facts.kind.helpers);
        pids.retain(|pid| process::look(*pid).is_some_and(|p| !p.argv.join(" ").ends_with("is shutting down")));
        pids
    }
}

/// Why a master did not use its configuration, from its error log; `None` if the log does not say.
pub fn refusal(log: &str, master: i32) -> Option<String> {
    let mark = format!("[emerg] {master}#");
    let said: Vec<&str> = log.lines().filter(|line| line.contains(&mark)).collect();
    // nginx tries to bind an address in use five times.
    let tries = |line: &&str| line.contains("bind()") && !line.contains("still could not");
    if said.iter().all(tries) {
        return None;
    }
    Some(complaints(&said.join("\n"), &["[emerg]"]).join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_was_built_is_read() {
        let debian = "nginx version: nginx/1.22.1\nbuilt with OpenSSL\nconfigure arguments: --with-cc-opt='-g -O2' \
                      --prefix=/usr/share/nginx --conf-path=/etc/nginx/nginx.conf --error-log-path=stderr";
        let built = BuildInfo::read(debian);
        assert_eq!((built.version.as_str(), built.config.to_str()), ("nginx/1.22.1", Some("/etc/nginx/nginx.conf")));
        assert!(built.keeps_for_1000() && built.error_log.ends_with("stderr"));
        let plain = BuildInfo::read("nginx version: nginx/1.18.0\nconfigure arguments:\n");
        assert_eq!(plain.config.to_str(), Some("/usr/local/nginx/conf/nginx.conf"));
        assert!(!plain.keeps_for_1000());
    }

    #[test]
    fn complaints_are_told_without_their_time() {
        let said = "nginx: [warn] 9 worker_connections exceed\n2026/11/23 00:21:45 [warn] 7#7: \"user\" ignored\nok";
        assert_eq!(complaints(said, &["[warn]"]), ["[warn] 9 worker_connections exceed", "\"user\" ignored"]);
        assert_eq!(refusal("", 7), None);
        assert_eq!(refusal("t [emerg] 8#8: other\nt [emerg] 7#7: bind() to x failed\n", 7), None);
        let log = "t [emerg] 7#7: bind() to x failed\nt [emerg] 7#7: still could not bind()\n";
        assert!(refusal(log, 7).is_some_and(|text| text.ends_with("still could not bind()")));
        let server: ServerRef = "nginx:/no/such.conf".parse().expect("a name");
        assert!(not_found(&server).to_string().contains("/no/such.conf"));
    }
}
