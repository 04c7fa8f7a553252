//! HAProxy's configuration: sections of lines, each line a keyword with arguments. The byte range of each word is
//! known, so that a change of a value touches no other byte of a file.
//!
//! The rules are those of `readcfgfile` (cfgparse.c). A line whose first word is the name of a section begins one.
//! Lines between `.if` and `.endif` count if the condition holds; HAProxy itself is asked for that.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lastdrop_files::input;

use super::words::words;
use crate::edits::{ConfigWord, Edits, FlatText};

/// Keywords that begin a section.
const SECTIONS: &[&str] = &[
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "peers",
    "resolvers",
    "userlist",
    "mailers",
    "program",
    "cache",
    "ring",
    "log-forward",
    "log-profile",
    "http-errors",
    "fcgi-app",
    "crt-store",
    "traces",
    "acme",
    "namespace_list",
];

/// True if a line with this first word begins a section.
pub fn is_section(word: &str) -> bool {
    SECTIONS.contains(&word)
}

const MOST_BYTES: u64 = 64 << 20;
const MOST_FILES: usize = 10_000;

/// A file of the configuration.
#[derive(Debug)]
pub struct SourceFile {
    /// The path from the command line or its folder.
    pub name: PathBuf,
    /// The file with symbolic links resolved.
    pub file: PathBuf,
    pub text: Vec<u8>,
}

/// A keyword with its arguments.
#[derive(Debug)]
pub struct ConfigLine {
    pub words: Vec<ConfigWord>,
    pub source: usize,
    /// Line number, from 1.
    pub number: usize,
    /// Byte range without the line end.
    pub at: Range<usize>,
    pub section: usize,
}

impl ConfigLine {
    pub fn keyword(&self) -> &str {
        &self.words[0].text
    }

    pub fn argument(&self, n: usize) -> Option<&ConfigWord> {
        self.words.get(n)
    }
}

#[derive(Debug)]
pub struct Section {
    /// `frontend`, `global` …
    pub kind: String,
    /// Empty if the section has no name.
    pub name: String,
    /// The `defaults` section from which it takes what it does not set.
    pub defaults: Option<usize>,
    /// The line that begins it.
    pub head: ConfigLine,
}

/// Why a configuration cannot be read, with the position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {what}", file.display())]
pub struct Fault {
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
}

/// A whole configuration: lines in HAProxy's reading order, without the lines that begin sections and without those
/// whose conditions do not hold.
#[derive(Debug, Default)]
pub struct Config {
    pub sources: Vec<SourceFile>,
    pub sections: Vec<Section>,
    pub lines: Vec<ConfigLine>,
}

/// Resolves names on the command line to files; of a folder, those that end in `.cfg`, by name.
///
/// # Errors
/// In words.
pub fn files_of(names: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for name in names {
        if !name.is_dir() {
            files.push(name.clone());
            continue;
        }
        let entries = fs::read_dir(name).map_err(|e| format!("cannot read {}: {e}", name.display()))?;
        let is_meant = |path: &PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            file.ends_with(".cfg") && !file.starts_with('.') && path.is_file()
        };
        let mut own: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(is_meant).collect();
        own.sort_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
        files.extend(own);
    }
    if files.len() > MOST_FILES {
        return Err(format!("these are more than {MOST_FILES} files"));
    }
    Ok(files)
}

impl Config {
    /// Reads files as HAProxy with this environment does. `holds` evaluates the condition of an `.if`.
    pub fn read(
        files: &[PathBuf],
        environment: &[(String, String)],
        holds: &dyn Fn(&str) -> bool,
    ) -> Result<Config, Fault> {
        let environment = environment.iter().cloned().collect();
        let mut reader = Reader { config: Config::default(), environment, holds, defaults: None };
        for name in files {
            reader.file(name)?;
        }
        Ok(reader.config)
    }

    /// `file:line` of a line.
    pub fn place(&self, line: &ConfigLine) -> String {
        format!("{}:{}", self.sources[line.source].name.display(), line.number)
    }

    /// The lines of a section with this keyword.
    pub fn of<'a>(&'a self, section: usize, keyword: &'a str) -> impl DoubleEndedIterator<Item = &'a ConfigLine> {
        self.lines.iter().filter(move |line| line.section == section && line.keyword() == keyword)
    }

    pub fn of_global<'a>(&'a self, keyword: &'a str) -> impl DoubleEndedIterator<Item = &'a ConfigLine> {
        let is_global = |line: &&ConfigLine| self.sections[line.section].kind == "global";
        self.lines.iter().filter(is_global).filter(move |line| line.keyword() == keyword)
    }

    /// The line of a section with this keyword, otherwise that of its defaults.
    pub fn said<'a>(&'a self, section: usize, keyword: &'a str) -> Option<&'a ConfigLine> {
        let of_defaults = || self.of(self.sections[section].defaults?, keyword).next_back();
        self.of(section, keyword).next_back().or_else(of_defaults)
    }

    /// Returns the whole configuration as one text, with `edits` applied, so that one temporary file suffices for a
    /// test.
    pub fn flat(&self, edits: &Edits) -> FlatText {
        let mut flat = FlatText::default();
        for (index, source) in self.sources.iter().enumerate() {
            for (number, at) in lines_of(&source.text).enumerate() {
                flat.add(&source.name, number + 1, &edits.apply(index, &source.text, at));
            }
            if !flat.text.ends_with(b"\n") {
                flat.text.push(b'\n');
            }
        }
        flat
    }
}

/// Byte ranges of the lines, with their line ends.
fn lines_of(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    text.split_inclusive(|b| *b == b'\n').map(move |line| {
        let at = from..from + line.len();
        from = at.end;
        at
    })
}

/// A block from `.if` to `.endif`.
struct Branch {
    counts: bool,
    /// True if one of its branches has applied, or none may.
    done: bool,
}

struct Reader<'a> {
    config: Config,
    environment: HashMap<String, String>,
    holds: &'a dyn Fn(&str) -> bool,
    /// The defaults for the next proxy.
    defaults: Option<usize>,
}

impl Reader<'_> {
    fn file(&mut self, name: &Path) -> Result<(), Fault> {
        let cannot = |what: String| Fault { file: name.into(), line: 0, what };
        let file = fs::canonicalize(name).map_err(|e| cannot(format!("cannot be read: {e}")))?;
        let metadata = fs::metadata(&file).map_err(|e| cannot(format!("cannot be read: {e}")))?;
        if !metadata.is_file() || metadata.len() > MOST_BYTES {
            return Err(cannot(format!("it is no file of at most {} MiB", MOST_BYTES >> 20)));
        }
        let text = input::read(&file).map_err(|e| cannot(format!("cannot be read: {e}")))?;
        let source = self.config.sources.len();
        let (mut section, mut branches) = (None, Vec::new());
        for (index, at) in lines_of(&text).enumerate() {
            let number = index + 1;
            let fault = |what: String| Fault { file: name.into(), line: number, what };
            let words = words(&text[at.clone()], at.start, &self.environment).map_err(fault)?;
            let Some(first) = words.first() else { continue };
            if self.is_condition(&words, &mut branches).map_err(fault)? {
                continue;
            }
            if first.text.starts_with('.') || branches.iter().any(|branch: &Branch| !branch.counts) {
                continue;
            }
            let content = text[at.clone()].iter().rev().take_while(|b| matches!(b, b'\n' | b'\r')).count();
            let at = at.start..at.end - content;
            if SECTIONS.contains(&first.text.as_str()) {
                section =
                    Some(self.begin(ConfigLine { words, source, number, at, section: self.config.sections.len() }));
                continue;
            }
            let own = section.ok_or_else(|| fault(format!("unknown keyword '{}' out of section", first.text)))?;
            let line = ConfigLine { words, source, number, at, section: own };
            self.set_variable(&line);
            self.config.lines.push(line);
        }
        if !branches.is_empty() {
            return Err(cannot("an '.if' has no '.endif'".into()));
        }
        self.config.sources.push(SourceFile { name: name.into(), file, text });
        Ok(())
    }

    fn begin(&mut self, head: ConfigLine) -> usize {
        let index = self.config.sections.len();
        let kind = head.keyword().to_string();
        let text = |n: usize| head.argument(n).map_or("", |word| word.text.as_str());
        // "defaults from other" has no name of its own.
        let name = if text(1) == "from" && kind == "defaults" { String::new() } else { text(1).to_string() };
        let from = head.words.iter().position(|word| word.text == "from").map(|n| text(n + 1).to_string());
        let named = from.and_then(|from| {
            let is_meant = |s: &&Section| s.kind == "defaults" && s.name == from;
            self.config.sections.iter().rfind(is_meant).map(|s| s.head.section)
        });
        let defaults = match kind.as_str() {
            "defaults" => {
                self.defaults = Some(index);
                named
            }
            "frontend" | "backend" | "listen" => named.or(self.defaults),
            _ => None,
        };
        self.config.sections.push(Section { kind, name, defaults, head });
        index
    }

    /// Variables that the configuration sets apply from here on.
    fn set_variable(&mut self, line: &ConfigLine) {
        let text = |n: usize| line.argument(n).map(|word| word.text.clone());
        match (line.keyword(), text(1), text(2)) {
            ("setenv", Some(name), Some(value)) => drop(self.environment.insert(name, value)),
            ("presetenv", Some(name), Some(value)) => drop(self.environment.entry(name).or_insert(value)),
            ("unsetenv", Some(name), _) => drop(self.environment.remove(&name)),
            _ => {}
        }
    }

    /// Handles a line of a condition and updates the branches; false if it is another line.
    fn is_condition(&self, words: &[ConfigWord], branches: &mut Vec<Branch>) -> Result<bool, String> {
        let condition = words.get(1).map_or("", |word| word.text.as_str());
        let outer_counts = |branches: &[Branch]| branches.iter().all(|branch| branch.counts);
        match words[0].text.as_str() {
            ".if" => {
                let may = outer_counts(branches);
                let counts = may && (self.holds)(condition);
                branches.push(Branch { counts, done: counts || !may });
            }
            word @ (".elif" | ".else") => {
                let mut last = branches.pop().ok_or_else(|| format!("lone '{word}' with no matching '.if'"))?;
                last.counts = !last.done && (word == ".else" || (self.holds)(condition));
                last.done |= last.counts;
                branches.push(last);
            }
            ".endif" => {
                branches.pop().ok_or("lone '.endif' with no matching '.if'")?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_lines_and_conditions_are_read_as_haproxy_reads_them() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
        write("b.cfg", "# second\nbackend app from base\r\n  server a 1.1.1.1:1 maxconn 5 # few\r\n");
        write(
            "a.cfg",
            "global\n setenv MOST 9\ndefaults base\n maxconn \"$MOST\"\ndefaults\n mode http\nfrontend web\n bind :1",
        );
        write(".hidden.cfg", "oops");
        write("c.txt", "oops");
        let files = files_of(&[dir.path().into()]).expect("a folder");
        assert_eq!(files.len(), 2);
        let config = Config::read(&files, &[], &|_| false).expect("read");
        let (web, app) = (3, 4);
        assert_eq!((config.sections[web].defaults, config.sections[app].defaults), (Some(2), Some(1)));
        assert_eq!(config.said(app, "maxconn").map(|l| l.words[1].text.as_str()), Some("9"));
        assert!(config.said(web, "maxconn").is_none() && config.of_global("setenv").count() == 1);
        let server = config.of(app, "server").next().expect("a server");
        assert!(config.place(server).ends_with("b.cfg:3") && server.words.len() == 5);
        let flat = config.flat(&Edits::default());
        let at = 1 + flat.text.split(|b| *b == b'\n').position(|l| l.starts_with(b"backend")).expect("it is there");
        let told = flat.told_of_its_files(&format!("parsing [/t:{at}] : x"), Path::new("/t"));
        assert!(told.ends_with("b.cfg:2] : x"), "{told}");

        let read = |text: &str| {
            write("d.cfg", text);
            Config::read(&[dir.path().join("d.cfg")], &[], &|condition| condition == "yes")
        };
        let kept = |text: &str| {
            let lines = read(text).expect("read").lines;
            lines.iter().map(|l| l.keyword().to_string()).collect::<String>()
        };
        assert_eq!(kept("global\n.if yes\n a\n.else\n b\n.endif\n c\n"), "ac");
        assert_eq!(kept("global\n.if no\n a\n .if yes\n x\n .endif\n.elif yes\n b\n.else\n d\n.endif\n"), "b");
        for (text, line, what) in [
            ("global\n a \"b\n", 2, "unmatched quote"),
            ("maxconn 5\n", 1, "out of section"),
            ("global\n.if yes\n", 0, "'.endif'"),
            ("global\n.endif\n", 2, "lone"),
        ] {
            let fault = read(text).expect_err(text);
            assert!(fault.line == line && fault.what.contains(what), "{text}: {fault}");
        }
        assert!(Config::read(&["/no/such".into()], &[], &|_| true).is_err());
    }
}
