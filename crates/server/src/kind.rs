//! Every kind of server that lastdrop knows, a row each. Nothing else in the program knows one kind from another: what
//! can be named on a command line, how a server is found and told from others, where its status page is, how one of its
//! workers is asked to leave and what help and errors say of all that is read here.
//!
//! A kind that can be looked at is its row. One whose settings can be changed has an adapter besides: the row has its name,
//! `adapters` the rest.

use std::path::PathBuf;

use lastdrop_probe::process::{Helpers, ProcessInfo};
use lastdrop_probe::status::PageFormat;
use nix::sys::signal::Signal;

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
    /// First argument of the program, where that makes it a server of this kind.
    pub argument: Option<&'static str>,
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
    /// Takes lines of its own language beside settings (`trace --with`, `size --variant`).
    pub directives: bool,
    /// By whom its settings can be read and changed.
    pub adapter: Option<AdapterName>,
}

/// The adapters that there are; `adapters` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterName {
    Apache,
    Target,
}

/// What stands after the colon of a server's name, and how a master tells that it is the one.
#[derive(Debug)]
pub enum NamedBy {
    /// A configuration file, the word after this flag of its command line.
    Flag(&'static str),
    /// The same in a title; without the flag it is the file that the program is built with. Good for telling one master
    /// from another that is sought by its file, not for naming it: a relative path is relative to what no title tells.
    TitleFlag { flag: &'static str, otherwise: &'static str },
    /// A configuration file, in brackets in its title: `php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)`.
    TitleBrackets,
    /// The id of any process.
    ProcessId,
    /// There is nothing by which two could be told apart but where they listen.
    Nothing,
}

impl NamedBy {
    /// The configuration file by which a server can be named.
    #[must_use]
    pub fn certain(&self, info: &ProcessInfo) -> Option<PathBuf> {
        match self {
            NamedBy::Flag(flag) => info.argv.windows(2).find(|w| w[0] == *flag).map(|w| PathBuf::from(&w[1])),
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
            NamedBy::Flag(_) => self.certain(info).map(|file| {
                std::fs::read_link(format!("/proc/{}/cwd", info.pid)).map_or_else(|_| file.clone(), |at| at.join(&file))
            }),
            _ => self.certain(info),
        }
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

/// A kind that can be looked at from outside, for the rows to say what is different.
const LOOK_ONLY: Kind = Kind {
    name: "",
    aliases: &[],
    title: "",
    programs: &[],
    argument: None,
    named_by: NamedBy::Nothing,
    example: None,
    advice: "start it, or name it by pid:1234",
    status: Status::Nowhere,
    tells_each: None,
    leave: Leave::Unknown,
    helpers: &[],
    one_request_a_worker: false,
    directives: false,
    adapter: None,
};

pub static KINDS: &[Kind] = &[
    Kind {
        name: "apache",
        aliases: &["apache2", "httpd"],
        title: "Apache",
        programs: &["apache2", "httpd", "httpd.worker", "httpd.event", "apache2.real"],
        named_by: NamedBy::Flag("-f"),
        example: Some("/path/apache2.conf"),
        advice: "on Debian: apt-get install apache2",
        status: Status::Http { format: PageFormat::ModStatus, paths: &["/server-status"] },
        tells_each: Some("ExtendedStatus On"),
        leave: Leave::IfOneRequest { signal: Signal::SIGUSR1, otherwise: "MaxConnectionsPerChild limits their age" },
        directives: true,
        adapter: Some(AdapterName::Apache),
        ..LOOK_ONLY
    },
    Kind {
        name: "nginx",
        title: "nginx",
        programs: &["nginx"],
        // nginx writes its command line into its title: "nginx: master process /usr/sbin/nginx -c FILE".
        named_by: NamedBy::TitleFlag { flag: "-c", otherwise: "/etc/nginx/nginx.conf" },
        status: Status::Http {
            format: PageFormat::StubStatus,
            paths: &["/nginx_status", "/stub_status", "/basic_status"],
        },
        leave: Leave::Gracefully(Signal::SIGQUIT),
        helpers: &[("nginx: cache manager process", ""), ("nginx: cache loader process", "")],
        ..LOOK_ONLY
    },
    Kind {
        name: "php-fpm",
        aliases: &["fpm"],
        title: "PHP-FPM",
        programs: &["php-fpm*"],
        named_by: NamedBy::TitleBrackets,
        status: Status::FastCgi { path: "/status" },
        leave: Leave::Gracefully(Signal::SIGQUIT),
        // The pool that PHP-FPM makes for pm.status_listen of the pool of that name.
        helpers: &[("php-fpm: pool ", "_status")],
        one_request_a_worker: true,
        ..LOOK_ONLY
    },
    Kind {
        name: "target",
        title: "lastdrop's target",
        programs: &["lastdrop"],
        argument: Some("target"),
        named_by: NamedBy::Flag("--config"),
        example: Some("/path/target.toml"),
        advice: "start one: lastdrop target --config target.toml",
        status: Status::Http { format: PageFormat::ModStatus, paths: &["/server-status"] },
        leave: Leave::Gracefully(Signal::SIGUSR1),
        one_request_a_worker: true,
        adapter: Some(AdapterName::Target),
        ..LOOK_ONLY
    },
    // Any process and what descends from it; last, since it is what is left when no other row fits.
    Kind {
        name: "pid",
        title: "a process",
        named_by: NamedBy::ProcessId,
        example: Some("1234"),
        advice: "look for it: ps -e",
        leave: Leave::Never(
            "how a worker of an unknown program is replaced gracefully is not known; name the server by its kind",
        ),
        ..LOOK_ONLY
    },
];

impl Kind {
    /// The kind that a word on the command line means.
    #[must_use]
    pub fn named(word: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|k| k.name == word || k.aliases.contains(&word))
    }

    /// The kind that a process is of.
    #[must_use]
    pub fn of(info: &ProcessInfo) -> &'static Kind {
        let known = KINDS.iter().find(|k| k.runs(info));
        known.unwrap_or(&KINDS[KINDS.len() - 1])
    }

    /// Is this a process of its program?
    #[must_use]
    pub fn runs(&self, info: &ProcessInfo) -> bool {
        let program = program_of(info);
        let named = self.programs.iter().any(|name| match name.strip_suffix('*') {
            Some(beginning) => program.starts_with(beginning),
            None => program == *name,
        });
        named && self.argument.is_none_or(|word| info.argv.get(1).is_some_and(|a| a == word))
    }

    /// Can its settings be read and changed?
    #[must_use]
    pub fn can_change(&self) -> bool {
        self.adapter.is_some()
    }

    /// Can its workers be replaced one by one?
    #[must_use]
    pub fn can_replace(&self) -> bool {
        !matches!(self.leave, Leave::Never(_) | Leave::Unknown)
    }

    /// How it is written where no file is named: `nginx`, `pid:1234`.
    fn written(&self) -> String {
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
        std::path::Path::new(info.argv.first()?.split(':').next()?)
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
    });
    name.unwrap_or_default().trim_end_matches(" (deleted)").to_string()
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

/// The kinds for which something is true, as help lists them: `apache, nginx, php-fpm, target, pid:1234`.
#[must_use]
pub fn list(which: impl Fn(&Kind) -> bool) -> String {
    KINDS.iter().filter(|k| which(k)).map(Kind::written).collect::<Vec<_>>().join(", ")
}

/// The same, with configuration files: `apache, apache:/path/apache2.conf, nginx …`.
#[must_use]
pub fn list_with_files(which: impl Fn(&Kind) -> bool) -> String {
    let ways = |k: &Kind| {
        let file = k.example.map(|file| format!("{}:{file}", k.name)).filter(|way| *way != k.written());
        std::iter::once(k.written()).chain(file).collect::<Vec<_>>()
    };
    KINDS.iter().filter(|k| which(k)).flat_map(ways).collect::<Vec<_>>().join(", ")
}

/// The titles of the kinds for which something is true, in a sentence: `Apache and nginx`.
#[must_use]
pub fn titles(which: impl Fn(&Kind) -> bool) -> String {
    let titles: Vec<&str> = KINDS.iter().filter(|k| which(k)).map(|k| k.title).collect();
    in_a_sentence(&titles)
}

/// The names of the kinds whose settings can be changed, in a sentence.
pub(crate) fn changeable() -> String {
    let names: Vec<&str> = KINDS.iter().filter(|k| k.can_change()).map(|k| k.name).collect();
    in_a_sentence(&names)
}

fn in_a_sentence(words: &[&str]) -> String {
    match words {
        [] => "none".into(),
        [one] => (*one).into(),
        [some @ .., last] => format!("{} and {last}", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::ServerRef;

    fn process(argv: &[&str]) -> ProcessInfo {
        let argv: Vec<String> = argv.iter().map(ToString::to_string).collect();
        let exe = argv.first().map(|a| PathBuf::from(a.split(':').next().unwrap_or_default()));
        ProcessInfo { pid: 1, parent: 0, start_ticks: 0, state: 'S', exe, argv }
    }

    #[test]
    fn every_kind_is_named_once_read_and_printed_again() {
        let mut names = BTreeSet::new();
        for kind in KINDS {
            for name in kind.aliases.iter().chain([&kind.name]) {
                assert!(names.insert(*name), "{name} is two kinds");
                assert!(!name.contains([':', '@', '=', '/', ' ']), "{name} cannot be told from what follows it");
                assert_eq!(Kind::named(name), Some(kind));
            }
            let file = if matches!(kind.named_by, NamedBy::ProcessId) { "7" } else { "/etc/a@b.conf" };
            let plain = kind.written();
            for text in [plain.clone(), format!("{}:{file}", kind.name), format!("{plain}@http://127.0.0.1:81/s")] {
                let server: ServerRef = text.parse().expect("a name");
                assert_eq!((server.kind, server.to_string()), (kind, text.clone()));
                assert_eq!(server.to_string().parse::<ServerRef>(), Ok(server), "{text}");
            }
        }
    }

    #[test]
    fn every_kind_is_found_by_its_programs_and_no_other_kind_takes_them() {
        for kind in KINDS {
            for name in kind.programs {
                let exe = format!("/usr/sbin/{}", name.replace('*', "8.2"));
                let words = std::iter::once(exe.as_str()).chain(kind.argument);
                let info = process(&words.collect::<Vec<_>>());
                let takers: Vec<&str> = KINDS.iter().filter(|k| k.runs(&info)).map(|k| k.name).collect();
                assert_eq!(takers, [kind.name], "{exe}");
                assert_eq!(Kind::of(&info), kind);
            }
            assert_eq!(kind.programs.is_empty(), matches!(kind.named_by, NamedBy::ProcessId), "{}", kind.name);
        }
        assert_eq!(Kind::of(&process(&["/usr/bin/lastdrop", "run"])).name, "pid", "lastdrop itself is no target");
    }

    #[test]
    fn every_kind_says_what_to_try_and_is_in_the_lists() {
        let error = "iis".parse::<ServerRef>().expect_err("unknown");
        for kind in KINDS {
            assert!(!kind.title.is_empty() && !kind.advice.is_empty(), "{}", kind.name);
            assert!(list(|_| true).contains(&kind.written()) && error.contains(&kind.written()), "{error}");
            assert!(kind.helpers.iter().all(|(begins, _)| !begins.is_empty()), "{}: every title begins so", kind.name);
            if let Status::Http { paths, .. } = kind.status {
                assert!(!paths.is_empty() && paths.iter().all(|p| p.starts_with('/')), "{}", kind.name);
            }
        }
        // Of some rows, since a new one shall not need an edit here.
        let old = |k: &Kind| ["apache", "nginx", "target", "pid"].contains(&k.name);
        assert_eq!(
            (list(old).as_str(), titles(|k| k.name == "nginx").as_str()),
            ("apache, nginx, target, pid:1234", "nginx")
        );
        let files = "apache, apache:/path/apache2.conf, target, target:/path/target.toml";
        assert_eq!(list_with_files(|k| old(k) && k.can_change()), files);
        assert_eq!(in_a_sentence(&["a", "b", "c"]), "a, b and c");
        assert!(changeable().contains("apache") && !changeable().contains("pid"));
    }

    #[test]
    fn titles_and_flags_tell_the_configuration() {
        let by = |kind: &str, argv: &[&str]| {
            let named_by = &Kind::named(kind).expect("a kind").named_by;
            let shown = |file: Option<PathBuf>| file.map(|f| f.display().to_string());
            (shown(named_by.certain(&process(argv))), shown(named_by.likely(&process(argv))))
        };
        let both = |file: &str| (Some(file.to_string()), Some(file.to_string()));
        let fpm = "php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)";
        assert_eq!(by("php-fpm", &[fpm]), both("/etc/php/8.2/fpm/php-fpm.conf"));
        assert_eq!(by("apache", &["/usr/sbin/apache2", "-f", "/etc/a.conf", "-k", "start"]), both("/etc/a.conf"));
        let nginx = |title: &str| by("nginx", &[title]).1;
        assert_eq!(nginx("nginx: master process /usr/sbin/nginx -c /x/n.conf").as_deref(), Some("/x/n.conf"));
        assert_eq!(nginx("nginx: master process nginx").as_deref(), Some("/etc/nginx/nginx.conf"));
    }
}
