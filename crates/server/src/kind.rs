//! All knowledge of a kind of server. The rest of the program does not distinguish kinds. A kind says how servers are
//! named on a command line, found and told apart. It says where the status page is and how one worker is asked to
//! leave. It also has the texts that help and errors print about it.
//!
//! `kinds` contains all kinds, each read from a file. A kind whose settings can be changed also has an adapter: its
//! file names it, and `adapters` contains it.

use std::path::{Path, PathBuf};

use lastdrop_model::DatabaseService;
use lastdrop_probe::process::{Helpers, ProcessInfo};
use lastdrop_probe::status::PageFormat;
use nix::sys::signal::Signal;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::change_method::{ChangeMethods, LineFormat, SettingsFile};

#[derive(Debug)]
pub struct Kind {
    /// The name on the command line, in documents and in journals.
    pub name: &'static str,
    /// Other names accepted on the command line.
    pub aliases: &'static [&'static str],
    /// The name in prose.
    pub title: &'static str,
    /// Names of its programs; a star at the end matches anything: `php-fpm*`.
    pub programs: &'static [&'static str],
    /// The first argument of the program, or that file's name, if only this makes it a server of the kind. A star at
    /// the end matches anything.
    pub argument: Option<&'static str>,
    /// The same for any word of its command line.
    pub word: Option<&'static str>,
    /// Prefixes of the titles that its processes write over their command lines.
    pub titles: &'static [&'static str],
    pub named_by: NameSource,
    /// What may follow the colon, as shown in help.
    pub example: Option<&'static str>,
    /// What to try if none is found.
    pub advice: &'static str,
    pub status: Status,
    /// The setting that makes its status page list each worker, if it does not do so by default.
    pub tells_each: Option<&'static str>,
    pub leave: LeaveMethod,
    /// Titles of child processes that are not workers.
    pub helpers: Helpers,
    /// True if every worker is a process that serves one request at a time, whatever the configuration. If the
    /// configuration decides, the adapter knows.
    pub one_request_a_worker: bool,
    /// The protocol, if it is a database: lastdrop queries the database's own views and never changes it.
    pub database: Option<DatabaseService>,
    /// True if it takes directives in its own language besides settings (`trace --with`, `size --variant`).
    pub directives: bool,
    /// The adapter that reads and changes its settings.
    pub adapter: Option<AdapterName>,
    /// How its settings are changed, if its file says so.
    pub means: Option<ChangeMethods>,
}

/// The adapters that there are; `adapters` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterName {
    Apache,
    Haproxy,
    Nginx,
    PhpFpm,
    Target,
    // Not a program, but the machine that all servers run on.
    Host,
    /// For those whose files say all of it.
    #[serde(skip)]
    Described,
}

/// What follows the colon of a server's name, and how the right master is recognised.
#[derive(Debug)]
pub enum NameSource {
    /// A configuration file or folder: the command line word after this flag, or after its '='.
    Flag(&'static str),
    /// The same in a title; without the flag, the file that is built into the program. This identifies a master that is
    /// searched by its file. It does not suffice to name one, because the title does not show what a relative path is
    /// relative to.
    TitleFlag { flag: &'static str, otherwise: &'static str },
    /// Its data folder, which is its working folder: the command line word after this flag, otherwise the working
    /// folder.
    Folder {
        flag: &'static str,
        /// Configurations that it reads if its command line names none.
        files: &'static [&'static str],
    },
    /// A configuration file in brackets in its title: `php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)`.
    TitleBrackets,
    /// The pid of any process.
    ProcessId,
    /// Nothing: two servers differ only in where they listen.
    Nothing,
}

/// The word after a flag, or the rest of the word if the flag ends with '='.
fn after(flag: &str, argv: &[String]) -> Option<PathBuf> {
    let joined = || argv.iter().find_map(|w| w.strip_prefix(flag));
    let apart = || argv.windows(2).find(|w| w[0] == flag).map(|w| w[1].as_str());
    if flag.ends_with('=') { joined() } else { apart() }.map(PathBuf::from)
}

fn works_in(info: &ProcessInfo) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/cwd", info.pid)).ok()
}

impl NameSource {
    /// The configuration file by which a server can be named.
    #[must_use]
    pub fn certain(&self, info: &ProcessInfo) -> Option<PathBuf> {
        match self {
            NameSource::Flag(flag) => after(flag, &info.argv),
            NameSource::Folder { flag, .. } => after(flag, &info.argv).or_else(|| works_in(info)),
            NameSource::TitleBrackets => Some(PathBuf::from(info.argv.first()?.split_once('(')?.1.split_once(')')?.0)),
            NameSource::TitleFlag { .. } | NameSource::ProcessId | NameSource::Nothing => None,
        }
    }

    /// The configuration file that it most likely has.
    #[must_use]
    pub fn likely(&self, info: &ProcessInfo) -> Option<PathBuf> {
        match self {
            NameSource::TitleFlag { flag, otherwise } => {
                let title = info.argv.join(" ");
                let mut words = title.split_whitespace().skip_while(|w| w != flag);
                Some(PathBuf::from(words.nth(1).unwrap_or(otherwise)))
            }
            // A relative path is relative to the folder where the server was started.
            NameSource::Flag(_) => {
                self.certain(info).map(|file| works_in(info).map_or_else(|| file.clone(), |at| at.join(&file)))
            }
            _ => self.certain(info),
        }
    }
}

/// Files that a process names on its command line, as words or after a '=' (`--defaults-file=/etc/my.cnf`).
fn files_named_by(info: &ProcessInfo) -> impl Iterator<Item = PathBuf> {
    let folder = works_in(info).unwrap_or_else(|| PathBuf::from("/"));
    let names = info.argv.iter().skip(1).flat_map(|word| {
        let value = word.split_once('=').map(|(_, value)| value);
        std::iter::once(word.as_str()).chain(value)
    });
    names.map(move |name| folder.join(name)).filter(|file| file.is_file())
}

impl NameSource {
    /// True if a server was started on this configuration, even if its kind is not named by it. Its command line names
    /// the file, or the file is the default, or it is in the data folder.
    #[must_use]
    pub fn also_names(&self, info: &ProcessInfo, wanted: &Path) -> bool {
        let is_wanted = |file: &Path| crate::container::is_same_file(file, wanted) == Some(true);
        if files_named_by(info).any(|file| is_wanted(&crate::container::seen_from_here(info.pid, &file))) {
            return true;
        }
        let NameSource::Folder { files, .. } = self else { return false };
        let names_one = info.argv.iter().any(|w| w == "--no-defaults" || w.starts_with("--defaults-file="));
        let in_its_folder = || self.certain(info).is_some_and(|folder| wanted.parent() == Some(folder.as_path()));
        in_its_folder() || (!names_one && files.iter().any(|file| is_wanted(Path::new(file))))
    }
}

/// Where the status page of a server is.
#[derive(Debug)]
pub enum Status {
    Nowhere,
    /// Over HTTP, usually at one of these paths.
    Http {
        format: PageFormat,
        paths: &'static [&'static str],
    },
    /// By FastCGI, at the address in PHP-FPM's configuration; at a socket named by hand, at `path`.
    FastCgi {
        path: &'static str,
    },
    /// HAProxy's stats socket, at the address in its configuration.
    StatsSocket,
}

/// How a single worker is asked to leave.
#[derive(Debug)]
pub enum LeaveMethod {
    /// At this signal, a worker finishes its work and leaves, and its master starts another.
    Gracefully(Signal),
    /// The same, but only for processes that serve one request at a time. For others, `otherwise` names the setting
    /// that bounds their age.
    IfOneRequest { signal: Signal, otherwise: &'static str },
    /// Not done, with the reason: it would cut requests off, or its effect cannot be known.
    Never(&'static str),
    /// It has not been investigated.
    Unknown,
}

impl Kind {
    /// True if its adapter can try a cache of pages.
    #[must_use]
    pub fn has_page_cache(&self) -> bool {
        matches!(self.adapter, Some(AdapterName::Apache | AdapterName::Haproxy | AdapterName::Nginx))
    }

    /// True if a cache for all visitors has a bound, so that it may store a page with each of its queries.
    #[must_use]
    pub fn bounds_page_cache(&self) -> bool {
        self.adapter != Some(AdapterName::Apache)
    }

    /// True if this is a process of its program.
    #[must_use]
    pub fn runs(&self, info: &ProcessInfo) -> bool {
        let program = program_of(info);
        let title = info.argv.first().map_or("", String::as_str);
        if !self.programs.iter().any(|name| fits(name, &program)) {
            return false;
        }
        if self.titles.iter().any(|begins| title.starts_with(begins)) {
            return true;
        }
        let argument = self.argument.is_none_or(|name| {
            let given = info.argv.get(1).map(|a| a.rsplit('/').next().unwrap_or(a));
            given.is_some_and(|a| fits(name, a))
        });
        argument && self.word.is_none_or(|word| info.argv.iter().skip(1).any(|a| a == word))
    }

    /// True if a process shows a title instead of its command line.
    pub(crate) fn shows_title(&self, info: &ProcessInfo) -> bool {
        let first = info.argv.first().map_or("", String::as_str);
        self.titles.iter().any(|begins| first.starts_with(begins)) || (info.argv.len() == 1 && first.contains(' '))
    }

    /// The configuration file that a process most likely has: as its command line or title says, otherwise the one that
    /// its program looks for in the working folder.
    pub(crate) fn config_of(&self, info: &ProcessInfo) -> Option<PathBuf> {
        let otherwise = || match &self.means.as_ref()?.written {
            Some(SettingsFile::Lines(LineFormat { otherwise: Some(file), .. })) => {
                works_in(info).map(|folder| folder.join(file)).filter(|file| file.is_file())
            }
            _ => None,
        };
        self.named_by.likely(info).or_else(otherwise)
    }

    /// True for the host: it has settings but no process.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.adapter == Some(AdapterName::Host)
    }

    /// True if it is a program, and not the host.
    #[must_use]
    pub fn is_program(&self) -> bool {
        !self.is_host()
    }

    /// True if its settings can be read and changed.
    #[must_use]
    pub fn can_change(&self) -> bool {
        self.adapter.is_some()
    }

    /// True if its status page counts all requests together and lists no single one.
    pub(crate) fn counts_in_total(&self) -> bool {
        matches!(
            self.status,
            Status::Http { format: PageFormat::StubStatus, .. } | Status::FastCgi { .. } | Status::StatsSocket
        )
    }

    /// True if its workers can be replaced one by one.
    #[must_use]
    pub fn can_replace(&self) -> bool {
        !matches!(self.leave, LeaveMethod::Never(_) | LeaveMethod::Unknown)
    }

    /// How the kind is written without a file: `nginx`, `pid:1234`.
    pub(crate) fn written(&self) -> String {
        match (&self.named_by, self.example) {
            (NameSource::ProcessId, Some(id)) => format!("{}:{id}", self.name),
            _ => self.name.into(),
        }
    }
}

/// Name of a process's program; if the program is hidden because the process belongs to another user, the name in its
/// title.
pub(crate) fn program_of(info: &ProcessInfo) -> String {
    let name = info.exe.as_ref().and_then(|e| e.file_name()).map(|n| n.to_string_lossy().into_owned());
    let name = name.or_else(|| {
        // "nginx: master process /usr/sbin/nginx", "/usr/sbin/apache2"
        Path::new(info.argv.first()?.split(':').next()?).file_name().map(|n| n.to_string_lossy().into_owned())
    });
    name.unwrap_or_default().trim_end_matches(" (deleted)").to_string()
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

/// Compares a name with a pattern, in which a star at the end matches anything.
fn fits(name: &str, given: &str) -> bool {
    match name.strip_suffix('*') {
        Some(beginning) => given.starts_with(beginning),
        None => given == name,
    }
}
