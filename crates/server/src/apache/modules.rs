//! Modules that a server has loaded and does not need.
//!
//! A module is a candidate if no `<IfModule>` asks for it, and if the configuration does not refer to it. A reference
//! is the name of a directive, section, handler, filter or provider that occurs among the strings of the module's file.
//! The .htaccess files that the configuration allows count too.
//!
//! Modules that act without being named are judged by behaviour: a second instance must give the same answer for the
//! URL with and without the candidates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_model::examination::{ModuleSize, ModuleTrial};
use lastdrop_probe::{ProbeError, memory, status};

use super::Apache;
use super::config::{DirectiveLine, Scan, split_words};
use super::instance::{Instance, InstanceTemplate, InstanceVariant, logical_lines};
use super::location::{Configuration, question};
use crate::adapter::Adapter;
use crate::edits::Edits;
use crate::execution::Reader;
use crate::leftover_folders::FOR_MODULES;
use crate::private::write_for_question;
use crate::shadow_instance::{ComparableAnswer, MOST_TIME, dispensable};
use crate::{ServerError, ServerRef, container};

const TEST_TIME: Duration = Duration::from_secs(2);
/// The search for .htaccess files stops after this many folders.
const MOST_FOLDERS: usize = 2000;
/// Modules that are never candidates: the server needs them to run at all, or they act without a directive and without
/// effect on an answer. Examples are limits on slow clients, notifications to systemd and log fields.
const NEVER: &[&str] = &[
    "authz_core_module",
    "log_config_module",
    "logio_module",
    "reqtimeout_module",
    "systemd_module",
    "unique_id_module",
    "unixd_module",
    "watchdog_module",
];
/// Words that occur in many module files and identify none.
const PLAIN: &[&str] = &[
    "access",
    "all",
    "any",
    "application/xml",
    "default",
    "error",
    "from",
    "get",
    "html",
    "index",
    "index.html",
    "iso-8859-1",
    "none",
    "off",
    "post",
    "referer",
    "text",
    "text/html",
    "user",
    "user-agent",
    "utf-8",
];

/// Finds the modules that a running Apache could do without, by trials on a second instance with its configuration. The
/// server itself gets one request for the URL and is otherwise left alone.
///
/// # Errors
/// If it cannot be tried, with the reason.
pub fn unused_modules(server: &ServerRef, url: &Url) -> Result<ModuleTrial, ServerError> {
    Apache::discover(server)?.try_without_modules(url)
}

impl Apache {
    fn try_without_modules(&self, url: &Url) -> Result<ModuleTrial, ServerError> {
        let no = |why: &str| Err(ServerError::Setting(why.to_string()));
        let birth = &self.facts.birth;
        let euid = nix::unistd::geteuid();
        if !euid.is_root() && euid.as_raw() != birth.uid {
            return no("only root or the server's user can try it");
        }
        if url.tls {
            return no("it is tried on URLs of http only");
        }
        if !self.facts.listeners.iter().any(|l| l.port() == url.port) {
            return no("it does not listen at the URL itself");
        }
        if container::root_of(birth.pid).is_some() {
            return no("it runs in a container");
        }
        if birth.argv.iter().skip(1).any(|w| w.starts_with("-c") || w.starts_with("-C")) {
            return no("it was started with directives on its command line");
        }
        let scan = self.scan(self.started_on());
        if let Some(problem) = scan.problems.first() {
            return no(problem);
        }
        let root =
            scan.last(&["ServerRoot"]).and_then(|l| l.arguments.first()).map_or(self.root.clone(), PathBuf::from);
        let flat = scan.flat(&Edits::default()).text;
        let reader = Reader::of(birth);
        let Some(used) = UsedFeatures::of(&scan, &flat) else { return no("too many folders may have .htaccess files") };
        let loaded = loaded(&scan, &root);
        let candidates: Vec<String> = loaded
            .iter()
            .rev()
            .filter(|(name, path)| {
                used.is_candidate(name) && lastdrop_files::input::read(path).is_ok_and(|file| !used.has_word_of(&file))
            })
            .map(|(name, _)| name.clone())
            .collect();
        drop(reader);
        if candidates.is_empty() {
            return Ok(ModuleTrial::default());
        }
        let ground = InstanceTemplate::new(FOR_MODULES, birth, url, self.threaded(), |file| self.argv_with(file))?;
        let until = Instant::now() + MOST_TIME;
        let refuse = |what: String| ServerError::Setting(format!("of its second instance: {what}"));
        let mut tried = ModuleTrial::default();
        let (answer, sizes) = {
            let all = ground.start(&flat, InstanceVariant::default(), url, until).map_err(refuse)?;
            let answer = Apache::stable_answer(&all, url, until)?;
            (tried.start_s, tried.worker_bytes) = (all.started.as_secs_f64(), all.processes.worker_bytes()?);
            (answer, all.processes.workers().first().and_then(|pid| memory::of_files(*pid).ok()).unwrap_or_default())
        };
        let mut last = None;
        let mut works = |without: &[String]| -> Result<Option<bool>, ProbeError> {
            if Instant::now() >= until {
                return Ok(None);
            }
            let Ok(instance) =
                ground.start(&flat, InstanceVariant { without, ..InstanceVariant::default() }, url, until)
            else {
                return Ok((Instant::now() < until).then_some(false));
            };
            let same = instance.ask(url, until).is_ok_and(|a| ComparableAnswer::of(&a) == answer);
            if same {
                last = Some((instance.started.as_secs_f64(), instance.processes.worker_bytes()?));
            }
            Ok(if same || Instant::now() < until { Some(same) } else { None })
        };
        let unused = dispensable(&candidates, &mut works, &mut tried)?;
        if let Some((started, bytes)) = last {
            (tried.start_without_s, tried.worker_bytes_without) = (started, bytes);
        }
        // Test the original configuration as well: the instance had its own logs and ports.
        let file = ground.file("tested");
        let text = without_modules(&flat, &unused);
        write_for_question(birth, &file, &text).map_err(ServerError::io(format!("cannot write {}", file.display())))?;
        match question(birth, Some(&Configuration { file: &file, root: &root }), &["-t"]).within(TEST_TIME).ask() {
            Ok(answer) if answer.passed => {}
            Ok(_) => return no("its configuration does not pass its test without them, though an instance of it runs"),
            Err(ServerError::Timeout { .. }) => {
                return no("there was no time to test its configuration without them");
            }
            Err(e) => return Err(e),
        }
        let size = |(name, path): &(String, PathBuf)| ModuleSize {
            bytes: size_of(path, &sizes),
            name: name.clone(),
            ..ModuleSize::default()
        };
        tried.unused = loaded.iter().filter(|(name, _)| unused.contains(name)).map(size).collect();
        Ok(tried)
    }

    /// Folders whose files the server serves or names to its backends.
    pub fn served_folders(&self) -> Vec<PathBuf> {
        self.scan(self.started_on()).lines.iter().filter_map(served_by).map(PathBuf::from).collect()
    }

    /// Returns the instance's answer if it is the same each time and like that of the server itself.
    fn stable_answer(instance: &Instance, url: &Url, until: Instant) -> Result<ComparableAnswer, ServerError> {
        let server = || status::get(url, until.saturating_duration_since(Instant::now()));
        ComparableAnswer::stable(|| instance.ask(url, until), server).map_err(ServerError::Setting)
    }
}

/// Loaded modules with their files, in load order.
fn loaded(scan: &Scan, root: &Path) -> Vec<(String, PathBuf)> {
    let lines = scan.lines.iter().filter(|l| l.name.eq_ignore_ascii_case("LoadModule"));
    lines.filter_map(|l| Some((l.arguments.first()?.clone(), root.join(l.arguments.get(1)?)))).collect()
}

fn size_of(path: &Path, sizes: &BTreeMap<String, u64>) -> Option<u64> {
    let path = std::fs::canonicalize(path).ok()?;
    sizes.get(&path.display().to_string()).copied()
}

fn without_modules(flat: &[u8], without: &[String]) -> Vec<u8> {
    let takes_away = |line: &[u8]| {
        let words = split_words(line);
        let is = |n: usize, of: &dyn Fn(&str) -> bool| words.get(n).is_some_and(|w| of(&String::from_utf8_lossy(&w.0)));
        is(0, &|w| w.eq_ignore_ascii_case("LoadModule")) && is(1, &|w| without.iter().any(|m| m == w))
    };
    let lines = logical_lines(flat);
    lines.iter().filter(|l| !takes_away(l)).flat_map(|l| l.iter().copied().chain([b'\n'])).collect()
}

/// Everything that a configuration refers to.
#[derive(Debug, Default)]
struct UsedFeatures {
    /// Names of directives and sections, and words of arguments, in lower case.
    words: BTreeSet<String>,
    /// Modules that an `<IfModule>` asks for, without prefix and suffix.
    asked: BTreeSet<String>,
    options: BTreeSet<String>,
    scripts: bool,
    authenticates: bool,
    balances: bool,
}

impl UsedFeatures {
    /// Collects the references; `None` if too many folders could contain .htaccess files.
    fn of(scan: &Scan, flat: &[u8]) -> Option<UsedFeatures> {
        let mut used = UsedFeatures::default();
        for line in &scan.lines {
            used.add(&line.name, &line.arguments);
            used.head(line.section.as_deref().unwrap_or_default());
        }
        logical_lines(flat).iter().for_each(|line| used.section(line));
        for text in overrides(scan)? {
            for line in logical_lines(&text) {
                let words: Vec<String> =
                    split_words(&line).iter().map(|w| String::from_utf8_lossy(&w.0).into_owned()).collect();
                if let Some((name, arguments)) = words.split_first() {
                    used.add(name, arguments);
                }
                used.section(&line);
            }
        }
        Some(used)
    }

    fn add(&mut self, name: &str, arguments: &[String]) {
        let name = name.to_ascii_lowercase();
        if name == "loadmodule" || name.starts_with('#') {
            return;
        }
        for argument in arguments {
            let argument = argument.to_ascii_lowercase();
            if name == "options" {
                self.options.insert(argument.trim_start_matches(['+', '-']).to_string());
            } else if !argument.starts_with('/') {
                self.balances |= argument.starts_with("balancer:");
                // Two-letter words are languages and occur by chance in any file, but for a few directives they are
                // names.
                let names = name.starts_with("require") || name == "protocols";
                self.words_of(&argument, if names { 2 } else { 3 });
            }
        }
        self.scripts |= name.starts_with("scriptalias");
        self.authenticates |= name == "authtype";
        self.words.insert(name);
    }

    fn words_of(&mut self, text: &str, shortest: usize) {
        let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c)).chain([text]);
        let names = parts
            .filter(|w| w.len() >= shortest && !PLAIN.contains(w) && w.contains(|c: char| c.is_ascii_alphabetic()));
        self.words.extend(names.map(str::to_string));
    }

    /// Reads the head of a section.
    fn head(&mut self, head: &str) {
        if !head.contains('/') {
            self.words_of(&head.to_ascii_lowercase(), 3);
        }
    }

    /// Reads a line that begins a section, whether or not its condition holds.
    fn section(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line).to_ascii_lowercase();
        let Some(head) = text.trim().strip_prefix('<').filter(|h| !h.starts_with('/')) else { return };
        let mut words = head.trim_end_matches('>').split_whitespace();
        let name = words.next().unwrap_or_default();
        if name == "ifmodule" {
            self.asked.extend(words.map(|w| plain(w.trim_matches(['"', '!']))));
        } else {
            self.words.insert(format!("<{name}"));
            self.words.insert(format!("<{name}>"));
        }
    }

    fn is_candidate(&self, module: &str) -> bool {
        let name = plain(module);
        let option = |o: &str| self.options.contains(o) || self.options.contains("all");
        let needed = match name.as_str() {
            "autoindex" => option("indexes"),
            "include" => option("includes") || option("includesnoexec"),
            "negotiation" => option("multiviews"),
            "cgi" | "cgid" => self.scripts || option("execcgi"),
            "slotmem_shm" | "slotmem_plain" => self.balances,
            lb if lb.starts_with("lbmethod_") => self.balances,
            auth if auth.starts_with("auth") => self.authenticates,
            mpm => mpm.starts_with("mpm_"),
        };
        !needed && !NEVER.contains(&module) && !self.asked.contains(&name)
    }

    /// True if one of the words is a whole string in a module's file.
    fn has_word_of(&self, file: &[u8]) -> bool {
        let strings = file.split(|b| *b == 0).filter(|s| (2..=64).contains(&s.len()) && s.is_ascii());
        strings.filter_map(|s| std::str::from_utf8(s).ok()).any(|s| self.words.contains(&s.to_ascii_lowercase()))
    }
}

/// Plain module name: `mod_mime.c`, `mime_module` and `mime` are the same.
fn plain(name: &str) -> String {
    name.trim_start_matches("mod_").trim_end_matches(".c").trim_end_matches("_module").to_string()
}

/// The folder whose files a line makes available.
fn served_by(line: &DirectiveLine) -> Option<&String> {
    match line.name.to_ascii_lowercase().as_str() {
        "documentroot" => line.arguments.first(),
        "alias" | "scriptalias" => line.arguments.get(1),
        _ => None,
    }
}

/// The texts of the .htaccess files that the configuration allows; `None` if too many folders could have one.
pub fn overrides(scan: &Scan) -> Option<Vec<Vec<u8>>> {
    let is_about = |line: &&DirectiveLine| {
        line.name.eq_ignore_ascii_case("AllowOverride") || line.name.eq_ignore_ascii_case("AllowOverrideList")
    };
    let mut words = scan.lines.iter().filter(is_about).flat_map(|line| &line.arguments);
    if words.all(|word| word.eq_ignore_ascii_case("None")) {
        return Some(Vec::new());
    }
    overrides_below(scan.lines.iter().filter_map(served_by).map(PathBuf::from).collect())
}

/// All .htaccess files below some folders; `None` if there are too many folders.
fn overrides_below(mut folders: Vec<PathBuf>) -> Option<Vec<Vec<u8>>> {
    let (mut texts, mut seen) = (Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        seen += 1;
        if seen > MOST_FOLDERS {
            return None;
        }
        texts.extend(lastdrop_files::input::read(&folder.join(".htaccess")));
        let entries = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        folders.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apache::config::Conditions;

    fn used(text: &str) -> UsedFeatures {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("a.conf");
        std::fs::write(&file, text).expect("written");
        let scan = Scan::read(&file, dir.path(), Conditions::default());
        UsedFeatures::of(&scan, text.as_bytes()).expect("few folders")
    }

    #[test]
    fn a_module_is_referred_to_by_its_directives_and_by_names_that_it_gives() {
        let used = used(
            "LoadModule x_module mod_x.so\nProxyPass /a http://127.0.0.1:81/\nAddOutputFilterByType DEFLATE text/html\n\
             <Location /s>\nSetHandler server-status\n</Location>\n<Perl>\n</Perl>\nTimeout 5\n",
        );
        for referred in ["ProxyPass", "http", "DEFLATE", "server-status", "<Perl"] {
            assert!(used.has_word_of(format!("\x7fELF\0{referred}\0x").as_bytes()), "{referred}");
        }
        for other in ["UserDir", "mod_x.so", "x_module", "on", "CheckSpelling"] {
            assert!(!used.has_word_of(format!("\x7fELF\0{other}\0x").as_bytes()), "{other}");
        }
    }

    #[test]
    fn what_works_without_a_directive_of_its_own_is_no_candidate() {
        let used = used(
            "<IfModule !mod_env.c>\n</IfModule>\nOptions -Indexes +MultiViews\nScriptAlias /c /x\n<IfModule headers_module>\n</IfModule>\n",
        );
        for needed in ["env", "autoindex", "negotiation", "cgi", "headers", "mpm_event", "unixd", "systemd"] {
            assert!(!used.is_candidate(&format!("{needed}_module")), "{needed}");
        }
        for other in ["userdir", "include", "authn_file", "lbmethod_byrequests"] {
            assert!(used.is_candidate(&format!("{other}_module")), "{other}");
        }
    }
}
