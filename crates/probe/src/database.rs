//! Finds how many connections a database on this machine accepts at once: from its command line, otherwise its
//! configuration, otherwise its default.

use std::fs;
use std::path::{Path, PathBuf};

use lastdrop_files::input;

use crate::process;
use crate::reader::Reader;

/// A limit and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionLimit {
    pub connections: u64,
    /// Connections reserved for administrators, out of `connections`; an application gets the others.
    pub reserved: u64,
    pub source: String,
}

impl ConnectionLimit {
    /// Returns the connections that all applications may have together.
    #[must_use]
    pub fn usable(&self) -> u64 {
        self.connections.saturating_sub(self.reserved)
    }
}

/// A setting: its spellings and its default.
#[derive(Debug, Clone, Copy)]
struct CountSetting {
    names: &'static [&'static str],
    default: u64,
}

/// A kind of database: its settings and where they are.
struct DatabaseKind {
    service: &'static str,
    limit: CountSetting,
    /// Settings that reserve connections, which applications do not get.
    reserved: &'static [CountSetting],
    /// A file in the data folder that overrides the configuration.
    overrides: Option<&'static str>,
    /// Configuration files that are read if the command line names none.
    files: &'static [&'static str],
    /// Options that name a file, or a folder that contains this file.
    options: &'static [(&'static str, &'static str)],
}

const KINDS: &[DatabaseKind] = &[
    DatabaseKind {
        service: "mysql",
        limit: CountSetting { names: &["max_connections", "max-connections"], default: 151 },
        // MariaDB and MySQL accept one connection beyond max_connections, for an administrator.
        reserved: &[],
        overrides: None,
        files: &["/etc/mysql/my.cnf", "/etc/my.cnf"],
        options: &[("--defaults-file", ""), ("--defaults-extra-file", "")],
    },
    DatabaseKind {
        service: "postgresql",
        limit: CountSetting { names: &["max_connections"], default: 100 },
        reserved: &[
            CountSetting { names: &["superuser_reserved_connections"], default: 3 },
            CountSetting { names: &["reserved_connections"], default: 0 },
        ],
        // Written by ALTER SYSTEM.
        overrides: Some("postgresql.auto.conf"),
        files: &[],
        options: &[("config_file", ""), ("-D", "postgresql.conf")],
    },
];

/// Deepest level of included files that is read.
const MOST_DEPTH: u32 = 4;

/// Returns the connection limit of the database in a process. None for services that are unknown or have no limit.
#[must_use]
pub fn connection_limit(pid: i32, service: &str) -> Option<ConnectionLimit> {
    let kind = KINDS.iter().find(|k| k.service == service)?;
    let argv = process::look(pid)?.argv;
    // The owner of the process chose these file names, so they are read with the owner's rights.
    let _reader = Reader::of_process(pid);
    Some(limit(kind, &argv))
}

fn limit(kind: &DatabaseKind, argv: &[String]) -> ConnectionLimit {
    let (connections, source) = value_of(kind, kind.limit, argv);
    let reserved = kind.reserved.iter().map(|count| value_of(kind, *count, argv).0).sum();
    ConnectionLimit { connections, reserved, source }
}

/// Returns the value of a setting and where it was found.
fn value_of(kind: &DatabaseKind, count: CountSetting, argv: &[String]) -> (u64, String) {
    let plain = |word: &str| word.trim_start_matches('-').to_string();
    // Forms: --max-connections=25, and -c max_connections=25.
    let given = argv.iter().rev().find_map(|word| {
        let (name, value) = word.split_once('=')?;
        count.names.contains(&plain(name).as_str()).then(|| value.trim().parse().ok()).flatten()
    });
    if let Some(n) = given {
        return (n, "its command line".into());
    }
    let place_of = |option: &str| {
        argv.iter().enumerate().find_map(|(i, word)| match word.split_once('=') {
            Some((name, value)) if plain(name) == plain(option) => Some(value.to_string()),
            _ if word == option => argv.get(i + 1).cloned(),
            _ => None,
        })
    };
    let overriding = kind.overrides.and_then(|file| Some(Path::new(&place_of("-D")?).join(file)));
    let named = kind.options.iter().find_map(|(option, file)| {
        let place = place_of(option)?;
        Some(if file.is_empty() { PathBuf::from(place) } else { Path::new(&place).join(file) })
    });
    let no_files = argv.iter().any(|word| word == "--no-defaults");
    let files: Vec<PathBuf> = match named {
        Some(file) => vec![file],
        None if no_files => Vec::new(),
        None => kind.files.iter().map(PathBuf::from).collect(),
    };
    let found = overriding.iter().chain(&files).find_map(|file| in_file(count.names, file, 0));
    match found {
        Some((n, file)) => (n, file.display().to_string()),
        None => (count.default, format!("its default for {}", count.names[0])),
    }
}

/// Returns the last value in a configuration file and the files it includes.
fn in_file(names: &[&str], file: &Path, depth: u32) -> Option<(u64, PathBuf)> {
    let text = input::read_regular_text(file).ok()?;
    let mut found = None;
    for line in text.lines().map(str::trim) {
        let include = line.strip_prefix("!include").or_else(|| line.strip_prefix("include"));
        if let Some(rest) = include.filter(|_| depth < MOST_DEPTH) {
            let place = rest.trim_start_matches("dir").trim_start_matches("_if_exists");
            let place = place.trim_matches([' ', '\t', '=', '\'', '"']);
            let place = file.parent().unwrap_or(Path::new("/")).join(place);
            let files: Vec<PathBuf> = if place.is_dir() {
                let entries = fs::read_dir(&place).into_iter().flatten().filter_map(Result::ok).map(|e| e.path());
                let mut all: Vec<PathBuf> =
                    entries.filter(|p| p.extension().is_some_and(|e| e == "cnf" || e == "conf")).collect();
                all.sort();
                all
            } else {
                vec![place]
            };
            found = files.iter().filter_map(|f| in_file(names, f, depth + 1)).next_back().or(found);
        } else if let Some((name, value)) = line.split_once('=')
            && names.contains(&name.trim())
            && let Ok(n) = value.split('#').next().unwrap_or_default().trim().trim_matches('\'').parse()
        {
            found = Some((n, file.to_path_buf()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn the_command_line_goes_before_the_files_and_those_before_the_default() {
        let dir = std::env::temp_dir().join(format!("lastdrop-database-{}", std::process::id()));
        fs::create_dir_all(dir.join("conf.d")).expect("a folder");
        fs::write(dir.join("my.cnf"), "[mysqld]\nmax_connections = 30\n!includedir conf.d\n").expect("written");
        let at = |kind: &DatabaseKind, line: &str| {
            let found = limit(kind, &words(line));
            (found.connections, found.source)
        };
        let (mysql, postgres) = (&KINDS[0], &KINDS[1]);
        let file = format!("mariadbd --defaults-file={}/my.cnf", dir.display());
        assert_eq!(at(mysql, &file).0, 30);
        fs::write(dir.join("conf.d/50.cnf"), "[mariadb]\nmax-connections=40 # more\n").expect("written");
        assert_eq!(at(mysql, &file), (40, dir.join("conf.d/50.cnf").display().to_string()));
        assert_eq!(at(mysql, &format!("{file} --max-connections=25")), (25, "its command line".into()));
        assert_eq!(at(mysql, "mariadbd --no-defaults").0, 151);
        fs::write(dir.join("postgresql.conf"), "max_connections = 60\t# (change requires restart)\n").expect("written");
        let line = format!("postgres -D {}", dir.display());
        assert_eq!(at(postgres, &line).0, 60);
        assert_eq!(at(postgres, &format!("{line} -c max_connections=70")).0, 70);
        assert_eq!(at(postgres, &format!("postgres -c config_file={}/postgresql.conf", dir.display())).0, 60);
        let usable = |line: &str| limit(postgres, &words(line)).usable();
        assert_eq!(usable(&line), 57, "three are reserved by default");
        fs::write(dir.join("postgresql.auto.conf"), "superuser_reserved_connections = '5'\nmax_connections = '40'\n")
            .expect("written");
        assert_eq!((at(postgres, &line).0, usable(&line)), (40, 35), "ALTER SYSTEM goes before the file");
        assert_eq!(usable(&format!("{line} -c reserved_connections=10")), 25);
        assert_eq!(limit(mysql, &words("mariadbd --no-defaults")).usable(), 151);
        fs::remove_dir_all(&dir).expect("removed");
    }
}
