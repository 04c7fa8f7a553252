//! All kinds of servers: lastdrop's own, and those that users have added as files.
//!
//! A user's file may make lastdrop send signals to processes, and change them if it says how. Therefore it is read only
//! if root and the user of lastdrop alone could have written it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lastdrop_files::TrustedFile;
use lastdrop_probe::process::ProcessInfo;

use crate::kind::Kind;
use crate::kind_file;

/// The files of lastdrop's own kinds. The last one matches any process that no other kind matches.
pub(crate) const OWN: &[(&str, &str)] = &[
    ("apache", include_str!("../kinds/apache.toml")),
    ("nginx", include_str!("../kinds/nginx.toml")),
    ("php-fpm", include_str!("../kinds/php-fpm.toml")),
    ("gunicorn", include_str!("../kinds/gunicorn.toml")),
    ("haproxy", include_str!("../kinds/haproxy.toml")),
    ("uwsgi", include_str!("../kinds/uwsgi.toml")),
    ("lighttpd", include_str!("../kinds/lighttpd.toml")),
    ("caddy", include_str!("../kinds/caddy.toml")),
    ("puma", include_str!("../kinds/puma.toml")),
    ("tomcat", include_str!("../kinds/tomcat.toml")),
    ("node", include_str!("../kinds/node.toml")),
    ("mariadb", include_str!("../kinds/mariadb.toml")),
    ("postgresql", include_str!("../kinds/postgresql.toml")),
    ("target", include_str!("../kinds/target.toml")),
    ("host", include_str!("../kinds/host.toml")),
    ("pid", include_str!("../kinds/pid.toml")),
];

/// The prefix of a server name that is followed by the file of its kind.
pub const CUSTOM: &str = "custom";
/// Largest size of a kind's file.
const MOST_BYTES: u64 = 64 * 1024;

struct Kinds {
    all: Vec<&'static Kind>,
    /// Users' files that are not valid kinds, with the reasons.
    troubles: Vec<String>,
}

fn kinds() -> &'static Kinds {
    static ALL: OnceLock<Kinds> = OnceLock::new();
    ALL.get_or_init(|| read(&folders()))
}

/// Folders with users' kinds: those of the machine, then those of the user.
fn folders() -> Vec<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = std::env::var_os("HOME").filter(|v| !v.is_empty()).map(|home| Path::new(&home).join(".config"));
    let own = config.or(home).map(|c| c.join("lastdrop/servers"));
    std::iter::once(PathBuf::from("/etc/lastdrop/servers")).chain(own).collect()
}

fn read(folders: &[PathBuf]) -> Kinds {
    let mut own: Vec<&'static Kind> = Vec::new();
    // Users' kinds come first: a user's file says more about a program than lastdrop's.
    let mut all: Vec<&'static Kind> = Vec::new();
    let mut troubles = Vec::new();
    for (name, text) in OWN {
        match kind_file::parse(text, (*name).into()) {
            Ok(kind) => own.push(Box::leak(Box::new(kind))),
            // Happens only if lastdrop's own files are wrong; a test reads them all.
            Err(why) => troubles.push(format!("{name}: {why}")),
        }
    }
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "toml"));
        files.sort();
        for file in files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let known = |word: &str| own.iter().chain(&all).any(|k| k.name == word || k.aliases.contains(&word));
            let opened = TrustedFile::open(&file).map_err(|e| e.to_string());
            let kind = opened.and_then(|file| from_file(&file, name)).and_then(|kind| {
                let taken = std::iter::once(kind.name).chain(kind.aliases.iter().copied()).find(|word| known(word));
                match taken {
                    Some(word) => Err(format!("'{word}' is a kind of server already; give it another name")),
                    None => Ok(kind),
                }
            });
            match kind {
                Ok(kind) => all.push(Box::leak(Box::new(kind))),
                Err(why) => troubles.push(format!("{}: {why}", file.display())),
            }
        }
    }
    all.extend(own);
    Kinds { all, troubles }
}

/// Reads the kind in a file.
fn from_file(file: &TrustedFile, name: String) -> Result<Kind, String> {
    if name.is_empty() || (!name.starts_with(CUSTOM) && name.contains([':', '@', '=', '/', ' '])) {
        return Err("the file's name is the kind's: letters, digits and '-' only".into());
    }
    let bytes = file.read(MOST_BYTES).map_err(|e| e.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_string())?;
    kind_file::parse(&text, name)
}

/// The kind in a file that is named on the command line.
///
/// # Errors
/// With the file and what is wrong with it.
pub fn custom(file: &str) -> Result<&'static Kind, String> {
    let opened = TrustedFile::open(Path::new(file)).map_err(|e| format!("{file}: {e}"))?;
    let kind = from_file(&opened, format!("{CUSTOM}:{}", opened.path().display()));
    kind.map(|kind| &*Box::leak(Box::new(kind))).map_err(|why| format!("{file}: {why}"))
}

/// All kinds; the last is that of any process.
#[must_use]
pub fn all() -> &'static [&'static Kind] {
    &kinds().all
}

/// Users' files that are not valid kinds, with the reasons.
#[must_use]
pub fn troubles() -> &'static [String] {
    &kinds().troubles
}

/// The kind with this name on the command line.
#[must_use]
pub fn named(word: &str) -> Option<&'static Kind> {
    all().iter().copied().find(|k| k.name == word || k.aliases.contains(&word))
}

/// The kind of a process.
#[must_use]
pub fn of(info: &ProcessInfo) -> &'static Kind {
    let known = all().iter().copied().find(|k| k.runs(info));
    known.unwrap_or(all()[all().len() - 1])
}

/// The selected kinds, as help lists them: `apache, nginx, php-fpm, target, pid:1234`.
#[must_use]
pub fn list(which: impl Fn(&Kind) -> bool) -> String {
    all().iter().filter(|k| which(k)).map(|k| k.written()).collect::<Vec<_>>().join(", ")
}

/// The same with configuration files: `apache, apache:/path/apache2.conf, nginx …`.
#[must_use]
pub fn list_with_files(which: impl Fn(&Kind) -> bool) -> String {
    let ways = |k: &Kind| {
        let file = k.example.map(|file| format!("{}:{file}", k.name)).filter(|way| *way != k.written());
        std::iter::once(k.written()).chain(file).collect::<Vec<_>>()
    };
    all().iter().filter(|k| which(k)).flat_map(|k| ways(k)).collect::<Vec<_>>().join(", ")
}

/// The titles of the selected kinds, in a sentence: `Apache and nginx`.
#[must_use]
pub fn titles(which: impl Fn(&Kind) -> bool) -> String {
    let titles: Vec<&str> = all().iter().filter(|k| which(k)).map(|k| k.title).collect();
    in_a_sentence(&titles)
}

/// The names of the kinds whose settings can be changed, in a sentence.
pub(crate) fn changeable() -> String {
    let names: Vec<&str> = all().iter().filter(|k| k.can_change()).map(|k| k.name).collect();
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
    use crate::kind::{NameSource, Status};

    fn process(argv: &[&str]) -> ProcessInfo {
        let argv: Vec<String> = argv.iter().map(ToString::to_string).collect();
        let exe = argv.first().map(|a| PathBuf::from(a.split(':').next().unwrap_or_default()));
        ProcessInfo { pid: 1, parent: 0, start_ticks: 0, state: 'S', exe, argv }
    }

    #[test]
    fn every_file_of_lastdrop_is_a_kind() {
        let kinds = read(&[]);
        assert!(kinds.troubles.is_empty() && kinds.all.len() == OWN.len(), "{:?}", kinds.troubles);
        assert!(matches!(kinds.all[OWN.len() - 1].named_by, NameSource::ProcessId), "what is left fits everything");
    }

    #[test]
    fn a_users_kinds_are_read_where_nobody_else_could_have_written_them() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        };
        file("site.toml", "programs = ['site-server']", 0o644);
        file("nginx.toml", "programs = ['nginx']", 0o644);
        file("open.toml", "programs = ['x']", 0o666);
        file("torn.toml", "programs = [", 0o600);
        file("large.toml", &"# comment\n".repeat(10_000), 0o600);
        file("a b.toml", "programs = ['x']", 0o600);
        file("notes.txt", "no kind", 0o600);
        let kinds = read(&[folder.path().into(), "/nonexistent".into()]);
        assert_eq!((kinds.all.len(), kinds.all[0].name), (OWN.len() + 1, "site"));
        let told = kinds.troubles.join("\n");
        assert_eq!(kinds.troubles.len(), 5, "{told}");
        for words in
            ["nginx.toml: 'nginx' is a kind", "open.toml: it is not read", "torn.toml: line 1", "large.toml has"]
        {
            assert!(told.contains(words), "{words}: {told}");
        }
        let name = folder.path().join("site.toml").display().to_string();
        let kind = custom(&name).expect("a kind");
        assert!(kind.name.starts_with("custom:/") && kind.title == "site", "{kind:?}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("set");
        assert!(custom(&name).expect_err("a folder of everybody").contains("somebody else may write"));
        assert!(custom("/nonexistent/x.toml").expect_err("nothing").contains("cannot be read"));
    }

    #[test]
    fn every_kind_is_named_once_read_and_printed_again() {
        let mut names = BTreeSet::new();
        for &kind in all() {
            for name in kind.aliases.iter().chain([&kind.name]) {
                assert!(names.insert(*name), "{name} is two kinds");
                assert!(!name.contains([':', '@', '=', '/', ' ']), "{name} cannot be told from what follows it");
                assert_eq!(named(name), Some(kind));
            }
            let file = if matches!(kind.named_by, NameSource::ProcessId) { "7" } else { "/etc/a@b.conf" };
            let plain = kind.written();
            let with_file = if kind.is_host() { plain.clone() } else { format!("{}:{file}", kind.name) };
            for text in [plain.clone(), with_file, format!("{plain}@http://127.0.0.1:81/s")] {
                let server: ServerRef = text.parse().expect("a name");
                assert_eq!((server.kind, server.to_string()), (kind, text.clone()));
                assert_eq!(server.to_string().parse::<ServerRef>(), Ok(server), "{text}");
            }
        }
    }

    #[test]
    fn every_kind_is_found_by_its_programs_and_no_other_kind_takes_them() {
        for &kind in all() {
            for name in kind.programs {
                let exe = format!("/usr/sbin/{}", name.replace('*', "8.2"));
                let words = std::iter::once(exe.as_str())
                    .chain(kind.argument.map(|a| a.trim_end_matches('*')))
                    .chain(kind.word);
                let info = process(&words.collect::<Vec<_>>());
                let takers: Vec<&str> = all().iter().filter(|k| k.runs(&info)).map(|k| k.name).collect();
                assert_eq!(takers, [kind.name], "{exe}");
                assert_eq!(of(&info), kind);
            }
            let without = kind.is_host() || matches!(kind.named_by, NameSource::ProcessId);
            assert_eq!(kind.programs.is_empty(), without, "{}", kind.name);
        }
        assert_eq!(of(&process(&["/usr/bin/lastdrop", "run"])).name, "pid", "lastdrop itself is no target");
    }

    #[test]
    fn every_kind_says_what_to_try_and_is_in_the_lists() {
        let error = "iis".parse::<ServerRef>().expect_err("unknown");
        for &kind in all() {
            assert!(!kind.title.is_empty() && !kind.advice.is_empty(), "{}", kind.name);
            assert!(list(|_| true).contains(&kind.written()) && error.contains(&kind.written()), "{error}");
            assert!(kind.helpers.iter().all(|(begins, _)| !begins.is_empty()), "{}: every title begins so", kind.name);
            if let Status::Http { paths, .. } = kind.status {
                assert!(!paths.is_empty() && paths.iter().all(|p| p.starts_with('/')), "{}", kind.name);
            }
        }
        // Only some kinds, so that a new one needs no change here.
        let old = |k: &Kind| ["apache", "nginx", "target", "pid"].contains(&k.name);
        assert_eq!(
            (list(old).as_str(), titles(|k| k.name == "nginx").as_str()),
            ("apache, nginx, target, pid:1234", "nginx")
        );
        let files =
            "apache, apache:/path/apache2.conf, nginx, nginx:/path/nginx.conf, target, target:/path/target.toml";
        assert_eq!(list_with_files(|k| old(k) && k.can_change()), files);
        assert_eq!(in_a_sentence(&["a", "b", "c"]), "a, b and c");
        assert!(changeable().contains("apache") && !changeable().contains("pid"));
    }

    #[test]
    fn titles_and_flags_tell_the_configuration() {
        let by = |kind: &str, argv: &[&str]| {
            let named_by = &named(kind).expect("a kind").named_by;
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
