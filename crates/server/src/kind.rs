//! What is known of a kind of server. Nothing else in the program knows one kind from another: what can be named on a
//! command line, how a server is found and told from others, where its status page is, how one of its workers is asked to
//! leave and what help and errors say of all that is read here.
//!
//! `kinds` has them all, each out of a file. One whose settings can be changed has an adapter besides: its file has the name of
//! it, `adapters` the rest.

use std::path::{Path, PathBuf};

use lastdrop_model::DatabaseService;
use lastdrop_probe::process::{Helpers, ProcessInfo};
use lastdrop_probe::status::PageFormat;
use nix::sys::signal::Signal;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::change_method::Means;

#[derive(Debug)]
pub struct Kind {
    /// On the command line, in documents and journals.
    pub name: &'static str,
    /// Other names that the command line takes.
    pub aliases: &'static [&'static str],
    /// As people write it.
    pub title: &'static str,
    /// Names of its programs; a star at the end of one stands for anything: `php-fpm*`.
    pub programs: &'static [&'static str],
    /// First argument of the program, or the name of the file that it is, where that makes it a server of this kind. A
    /// star at the end stands for anything.
    pub argument: Option<&'static str>,
    /// Any word of its command line, likewise.
    pub word: Option<&'static str>,
    /// How titles begin that its processes write over their command lines.
    pub titles: &'static [&'static str],
    pub named_by: NamedBy,
    /// What may follow the colon, as help shows it.
    pub example: Option<&'static str>,
    /// What to try where none is found.
    pub advice: &'static str,
    pub status: Status,
    /// What makes its status page tell of each worker, where it does not do so by itself.
    pub tells_each: Option<&'static str>,
    pub leave: Leave,
    /// Titles of children that are no workers.
    pub helpers: Helpers,
    /// A worker is a process that serves one request at a time, whatever the configuration says. Where it is the
    /// configuration that decides, the adapter knows.
    pub one_request_a_worker: bool,
    /// What it speaks, where it is a database: it is asked by its own views and never changed.
    pub database: Option<DatabaseService>,
    /// Takes lines of its own language beside settings (`trace --with`, `size --variant`).
    pub directives: bool,
    /// By whom its settings can be read and changed.
    pub adapter: Option<AdapterName>,
    /// How its settings are changed, where its file says that.
    pub means: Option<Means>,
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
    // Not a program: what all of them stand on.
    Host,
    /// For those whose files say all of it.
    #[serde(skip)]
    Described,
}

/// What stands after the colon of a server's name, and how a master tells that it is the one.
#[derive(Debug)]
pub enum NamedBy {
    /// A configuration file, or a folder: the word after this flag of its command line; of one that ends with '=' what follows it.
    Flag(&'static str),
    /// The same in a title; without the flag it is the file that the program is built with. Good for telling one master
    /// from another that is sought by its file, not for naming it: a relative path is relative to what no title tells.
    TitleFlag { flag: &'static str, otherwise: &'static str },
    /// The folder of its data, in which it works: what follows this flag of its command line, else where it is.
    Folder {
        flag: &'static str,
        /// Configurations that it reads where its command line names none.
        files: &'static [&'static str],
    },
    /// A configuration file, in brackets in its title: `php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)`.
    TitleBrackets,
    /// The id of any process.
    ProcessId,
    /// There is nothing by which two could be told apart but where they listen.
    Nothing,
}

/// The word after a flag; of one that ends with '=' what follows it.
fn after(flag: &str, argv: &[String]) -> Option<PathBuf> {
    let joined = || argv.iter().find_map(|w| w.strip_prefix(flag));
    let apart = || argv.windows(2).find(|w| w[0] == flag).map(|w| w[1].as_str());
    if flag.ends_with('=') { joined() } else { apart() }.map(PathBuf::from)
}

fn works_in(info: &ProcessInfo) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/cwd", info.pid)).ok()
}

impl NamedBy {
    /// The configuration file by which a server can be named.
    #[must_use]
    pub fn certain(&self, info: &ProcessInfo) -> Option<PathBuf> {
        match self {
            NamedBy::Flag(flag) => after(flag, &info.argv),
            NamedBy::Folder { flag, .. } => after(flag, &info.argv).or_else(|| works_in(info)),
            NamedBy::TitleBrackets => Some(PathBuf::from(info.argv.first()?.split_once('(')?.1.split_once(')')?.0)),
            NamedBy::TitleFlag { .. } | NamedBy::ProcessId | NamedBy::Nothing => None,
        }
    }

    /// The configuration file that it has by all appearances.
    #[must_use]
    pub fn likely(&self, info: &ProcessInfo) -> Option<PathBuf> {
        match self {
            NamedBy::TitleFlag { flag, otherwise } => {
                let title = info.argv.join(" ");
                let mut words = title.split_whitespace().skip_while(|w| w != flag);
                Some(PathBuf::from(words.nth(1).unwrap_or(otherwise)))
            }
            // A relative path means one from where the server was started.
            NamedBy::Flag(_) => {
                self.certain(info).map(|file| works_in(info).map_or_else(|| file.clone(), |at| at.join(&file)))
            }
            _ => self.certain(info),
        }
    }
}

/// The files that a process names on its command line, as words or behind a '=' (`--defaults-file=/etc/my.cnf`).
fn files_named_by(info: &ProcessInfo) -> impl Iterator<Item = PathBuf> {
    let folder = works_in(info).unwrap_or_else(|| PathBuf::from("/"));
    let names = info.argv.iter().skip(1).flat_map(|word| {
        let value = word.split_once('=').map(|(_, value)| value);
        std::iter::once(word.as_str()).chain(value)
    });
    names.map(move |name| folder.join(name)).filter(|file| file.is_file())
}

impl NamedBy {
    /// Was a server started on this configuration, though that is not what tells it from others? Its command line names
    /// it, or it is the one that is read where no other is named, or it is in the folder of its data.
    #[must_use]
    pub fn also_names(&self, info: &ProcessInfo, wanted: &Path) -> bool {
        let is_wanted = |file: &Path| crate::container::is_same_file(file, wanted) == Some(true);
        if files_named_by(info).any(|file| is_wanted(&crate::container::seen_from_here(info.pid, &file))) {
            return true;
        }
        let NamedBy::Folder { files, .. } = self else { return false };
        let names_one = info.argv.iter().any(|w| w == "--no-defaults" || w.starts_with("--defaults-file="));
        let in_its_folder = || self.certain(info).is_some_and(|folder| wanted.parent() == Some(folder.as_path()));
        in_its_folder() || (!names_one && files.iter().any(|file| is_wanted(Path::new(file))))
    }
}

/// Where the status page of a server is.
#[derive(Debug)]
pub enum Status {
    Nowhere,
    /// Over HTTP; at one of these paths by habit.
    Http {
        format: PageFormat,
        paths: &'static [&'static str],
    },
    /// By FastCGI, where the configuration of PHP-FPM says; at a socket that is named by hand it is at `path`.
    FastCgi {
        path: &'static str,
    },
    /// HAProxy's stats socket, where its configuration says.
    StatsSocket,
}

/// How one worker alone is asked to go.
#[derive(Debug)]
pub enum Leave {
    /// At this signal it finishes what it does and leaves, and its master puts another in its place.
    Gracefully(Signal),
    /// The same, of processes of one request each only. Of others: what bounds their age instead.
    IfOneRequest { signal: Signal, otherwise: &'static str },
    /// It would cut requests off, or cannot be known; in words.
    Never(&'static str),
    /// Nobody has found out yet.
    Unknown,
}

impl Kind {
    /// Is this a process of its program?
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

    /// Is it the host: settings, and no process that is it?
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.adapter == Some(AdapterName::Host)
    }

    /// Is it a program that runs?
    #[must_use]
    pub fn is_program(&self) -> bool {
        !self.is_host()
    }

    /// Can its settings be read and changed?
    #[must_use]
    pub fn can_change(&self) -> bool {
        self.adapter.is_some()
    }

    /// Does its status page tell of all its requests together and of none alone?
    pub(crate) fn counts_in_total(&self) -> bool {
        matches!(
            self.status,
            Status::Http { format: PageFormat::StubStatus, .. } | Status::FastCgi { .. } | Status::StatsSocket
        )
    }

    /// Can its workers be replaced one by one?
    #[must_use]
    pub fn can_replace(&self) -> bool {
        !matches!(self.leave, Leave::Never(_) | Leave::Unknown)
    }

    /// How it is written where no file is named: `nginx`, `pid:1234`.
    pub(crate) fn written(&self) -> String {
        match (&self.named_by, self.example) {
            (NamedBy::ProcessId, Some(id)) => format!("{}:{id}", self.name),
            _ => self.name.into(),
        }
    }
}

/// The name of a process's program; of another user's process, whose program is hidden, what its title says.
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

/// Is this the name, where a star at its end stands for anything?
fn fits(name: &str, given: &str) -> bool {
    match name.strip_suffix('*') {
        Some(beginning) => given.starts_with(beginning),
        None => given == name,
    }
}
