//! Reads an Apache configuration as httpd does, as far as settings of the whole server need it. Includes are followed
//! in order and sections by nesting. IfModule, IfDefine and IfVersion are decided by what the server has, and macros
//! are expanded where they are used.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use lastdrop_files::input;

use crate::edits::{ConfigWord, Edits, FlatText, Source};
use crate::wildcard::{HiddenFiles, WalkBudget};

/// A directive and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectiveLine {
    pub file: PathBuf,
    pub number: usize,
    /// Of section heads, only `<Proxy` is stored, under this name.
    pub name: String,
    pub arguments: Vec<String>,
    /// The innermost enclosing section that limits the effect, such as `VirtualHost *:80`; `None` for the whole server.
    pub section: Option<String>,
    /// Index of that section in [`Scan::sections`].
    pub inside: Option<usize>,
    /// Index of the enclosing virtual host, in the order in which they begin; `None` for the main server.
    pub host: Option<usize>,
    /// Name and arguments as written.
    pub words: Vec<ConfigWord>,
    pub source: usize,
}

/// A section that encloses a line.
#[derive(Debug, Clone)]
struct Section {
    head: String,
    /// False if it is a condition that does not hold.
    holds: bool,
    host: Option<usize>,
    /// Index in [`Scan::sections`], if it is no condition.
    index: Option<usize>,
}

/// A section that limits the effect of its lines, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSection {
    /// `directory`, `virtualhost`; in lower case.
    pub kind: String,
    /// What stands after it, without quotes.
    pub argument: String,
    pub source: usize,
    /// The byte at which its last line begins, if that is in the same file.
    pub end: Option<usize>,
}

/// A folder from which all files of a pattern are included for the whole server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludeFolder {
    pub path: PathBuf,
    /// The pattern of the file names, such as `*.conf`.
    pub pattern: String,
    /// Index of the first line after its files.
    pub end: usize,
}

#[derive(Debug, Default)]
pub struct Scan {
    pub lines: Vec<DirectiveLine>,
    pub folders: Vec<IncludeFolder>,
    pub sections: Vec<ConfigSection>,
    /// Errors from files that could not be read.
    pub problems: Vec<String>,
    /// The files, the main one first.
    pub sources: Vec<Source>,
    /// The folder to which relative names refer.
    pub root: PathBuf,
    hosts: usize,
}

/// Facts by which conditional sections are decided.
#[derive(Debug, Default)]
pub struct Conditions {
    /// Module names as `-M` prints them, such as `mpm_prefork_module`.
    pub modules: BTreeSet<String>,
    pub defines: BTreeSet<String>,
    pub environment: Vec<(String, String)>,
    /// True if every condition and its opposite hold: this finds all that the configuration may ever name.
    pub hold: bool,
    /// Version of httpd; empty if unknown.
    pub version: Vec<u32>,
}

/// Version numbers in text such as `Apache/2.4.57 (Debian)`.
pub fn version_numbers(text: &str) -> Vec<u32> {
    let number = text.rsplit('/').next().unwrap_or_default();
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    number[..end].split('.').map_while(|part| part.parse().ok()).collect()
}

/// Evaluates the argument of `<IfVersion>`, such as `>= 2.4` or `~ ^2.4` (see mod_version). Returns `None` if it cannot
/// be decided.
fn version_fits(version: &[u32], argument: &str) -> Option<bool> {
    let words: Vec<&str> = argument.split_whitespace().collect();
    let (operator, wanted) = match words.as_slice() {
        [operator, wanted] => (*operator, *wanted),
        [wanted] => ("=", *wanted),
        _ => return None,
    };
    let (negated, operator) = operator.strip_prefix('!').map_or((false, operator), |operator| (true, operator));
    let pattern = wanted.strip_prefix('/').and_then(|w| w.strip_suffix('/'));
    let three = |numbers: &[u32]| [0, 1, 2].map(|i| numbers.get(i).copied().unwrap_or(0));
    let fits = match pattern.or_else(|| (operator == "~").then_some(wanted)) {
        Some(pattern) => {
            let own = three(version).map(|n| n.to_string()).join(".");
            regex::Regex::new(pattern).ok()?.is_match(&own)
        }
        None => {
            let (own, wanted) = (three(version), three(&version_numbers(wanted)));
            match operator {
                "=" | "==" => own == wanted,
                ">" => own > wanted,
                ">=" => own >= wanted,
                "<" => own < wanted,
                "<=" => own <= wanted,
                _ => return None,
            }
        }
    };
    Some(fits != negated)
}

/// Lines that `Use` inserts, with arguments in place of parameters (see mod_macro).
#[derive(Debug, Clone, Default)]
struct Macro {
    name: String,
    parameters: Vec<String>,
    lines: Vec<MacroLine>,
}

#[derive(Debug, Clone)]
struct MacroLine {
    source: usize,
    number: usize,
    text: String,
    words: Vec<ConfigWord>,
}

impl Macro {
    fn begin(head: &[ConfigWord]) -> Macro {
        let mut words = head.iter().skip(1).map(|w| w.text.trim_end_matches('>').to_string()).filter(|w| !w.is_empty());
        let name = words.next().unwrap_or_default().to_ascii_lowercase();
        Macro { name, parameters: words.collect(), lines: Vec::new() }
    }

    /// Expands the macro with some arguments.
    fn used_with(&self, arguments: &[String]) -> Vec<MacroLine> {
        // If one parameter is a prefix of another, the longer one is meant.
        let mut pairs: Vec<(&String, &String)> = self.parameters.iter().zip(arguments).collect();
        pairs.sort_by_key(|(parameter, _)| std::cmp::Reverse(parameter.len()));
        let filled = |text: &str| pairs.iter().fold(text.to_string(), |text, (from, to)| text.replace(*from, to));
        let line = |line: &MacroLine| MacroLine {
            text: filled(&line.text),
            words: line.words.iter().map(|w| ConfigWord { text: filled(&w.text), at: w.at.clone() }).collect(),
            ..*line
        };
        self.lines.iter().map(line).collect()
    }
}

const MOST_DEPTH: usize = 30;
const MOST_LINES: usize = 200_000;
/// Each inclusion of a file counts as this many lines.
const LINES_OF_AN_INCLUSION: usize = 15;

impl Scan {
    /// Reads a configuration from its main file. Relative names refer to `root` unless the configuration sets
    /// ServerRoot.
    pub fn read(main: &Path, root: &Path, conditions: Conditions) -> Scan {
        let mut reader = Reader {
            scan: Scan::default(),
            root: root.to_path_buf(),
            conditions,
            macros: HashMap::new(),
            defining: None,
            walk: WalkBudget::default(),
            met: 0,
        };
        let mut sections = Vec::new();
        reader.file(main, &mut sections, 0);
        Scan { root: reader.root, ..reader.scan }
    }

    /// Returns the last line for the whole server that sets a directive by any of its names: the one that httpd uses.
    pub fn last(&self, names: &[&str]) -> Option<&DirectiveLine> {
        let named = |l: &&DirectiveLine| names.iter().any(|n| l.name.eq_ignore_ascii_case(n));
        self.lines.iter().rev().filter(|l| l.section.is_none()).find(named)
    }

    /// Returns the whole configuration as one text, with `edits` applied.
    pub fn flat(&self, edits: &Edits) -> FlatText {
        if self.sources.is_empty() { FlatText::default() } else { FlatText::of(&self.sources, 0, edits, MOST_DEPTH) }
    }

    /// Lines that set a directive inside a section, so for a part of the server.
    pub fn in_sections<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a DirectiveLine> {
        self.lines.iter().filter(move |l| l.section.is_some() && l.name.eq_ignore_ascii_case(name))
    }
}

struct Reader {
    scan: Scan,
    root: PathBuf,
    conditions: Conditions,
    /// Macros by name, in lower case.
    macros: HashMap<String, Macro>,
    /// The macro whose definition is being read.
    defining: Option<Macro>,
    walk: WalkBudget,
    /// Number of lines so far; it bounds files that include each other.
    met: usize,
}

impl Reader {
    fn file(&mut self, path: &Path, sections: &mut Vec<Section>, depth: usize) -> Option<usize> {
        let file = fs::canonicalize(path).ok();
        let known = self.scan.sources.iter().position(|s| s.file.is_some() && s.file == file);
        let source = known.unwrap_or(self.scan.sources.len());
        if known.is_none() {
            match input::read(path) {
                Ok(text) => self.scan.sources.push(Source { name: path.into(), file, text, includes: Vec::new() }),
                Err(e) => {
                    self.scan.problems.push(format!("cannot read {}: {e}", path.display()));
                    return None;
                }
            }
        }
        // At most up to the limit, so that the next line reports it.
        self.met = self.met.max((self.met + LINES_OF_AN_INCLUSION).min(MOST_LINES - 1));
        let text = self.scan.sources[source].text.clone();
        let (mut at, mut number) = (0, 0);
        while at < text.len() && self.met < MOST_LINES {
            let first = number + 1;
            // A logical line (joined over continuation lines), and the position of each of its bytes.
            let (mut line, mut places) = (Vec::new(), Vec::new());
            loop {
                let end = text[at..].iter().position(|b| *b == b'\n').map_or(text.len(), |n| at + n);
                let whole = text[at..end].strip_suffix(b"\r").unwrap_or(&text[at..end]);
                let part = whole.strip_suffix(b"\\").unwrap_or(whole);
                line.extend(part);
                places.extend(at..at + part.len());
                (at, number) = (end + 1, number + 1);
                if part.len() == whole.len() || at >= text.len() {
                    break;
                }
            }
            let word = |(word, from, to): (Vec<u8>, usize, usize)| ConfigWord {
                text: String::from_utf8_lossy(&word).into_owned(),
                at: places[from]..places[to - 1] + 1,
            };
            let words = split_words(&line).into_iter().map(word).collect();
            self.line(source, first, String::from_utf8_lossy(&line).trim(), words, sections, depth);
        }
        Some(source)
    }

    /// Takes the first line of a section, without its bracket.
    fn open_section(
        &mut self,
        (source, number): (usize, usize),
        open: &str,
        mut words: Vec<ConfigWord>,
        sections: &mut Vec<Section>,
        holds: bool,
        host: Option<usize>,
    ) {
        let head = open.trim_end_matches('>').trim();
        let own = self.condition(head).unwrap_or(true);
        let begins = head.split(char::is_whitespace).next().unwrap_or_default().to_ascii_lowercase();
        if begins == "macro" {
            self.defining = Some(Macro::begin(&words));
            return;
        }
        let host = if begins == "virtualhost" { Some(self.scan.hosts) } else { host };
        self.scan.hosts += usize::from(begins == "virtualhost");
        if holds && begins == "proxy" {
            close_head(&mut words);
            self.keep(source, number, words, sections, host);
        }
        let is_real = holds && self.condition(head).is_none();
        if is_real {
            let argument = head.get(begins.len()..).unwrap_or_default().trim();
            let argument = argument.trim_matches(['"', '\'']).to_string();
            self.scan.sections.push(ConfigSection {
                kind: begins,
                argument: self.expand(&argument),
                source,
                end: None,
            });
        }
        let index = is_real.then(|| self.scan.sections.len() - 1);
        sections.push(Section { head: head.to_string(), holds: own, host, index });
    }

    fn line(
        &mut self,
        source: usize,
        number: usize,
        line: &str,
        words: Vec<ConfigWord>,
        sections: &mut Vec<Section>,
        depth: usize,
    ) {
        self.met += 1;
        if self.met == MOST_LINES {
            self.scan
                .problems
                .push(format!("it has more than {MOST_LINES} lines with all that it includes: the rest is not read"));
        }
        if self.met >= MOST_LINES || line.is_empty() || line.starts_with('#') {
            return;
        }
        if let Some(macro_read) = &mut self.defining {
            if line.to_ascii_lowercase().starts_with("</macro>") {
                let whole = std::mem::take(macro_read);
                self.defining = None;
                self.macros.insert(whole.name.clone(), whole);
            } else {
                macro_read.lines.push(MacroLine { source, number, text: line.into(), words });
            }
            return;
        }
        if line.starts_with("</") {
            let closed = sections.pop().and_then(|section| section.index);
            if let (Some(section), Some(word)) = (closed.map(|i| &mut self.scan.sections[i]), words.first())
                && section.source == source
            {
                section.end = Some(word.at.start);
            }
            return;
        }
        let holds = sections.iter().all(|s| s.holds);
        let host = sections.last().and_then(|s| s.host);
        if let Some(open) = line.strip_prefix('<') {
            self.open_section((source, number), open, words, sections, holds, host);
            return;
        }
        if !holds {
            return;
        }
        let Some(name) = words.first().map(|w| self.expand(&w.text)) else { return };
        let arguments: Vec<String> = words[1..].iter().map(|w| self.expand(&w.text)).collect();
        let whole_server = self.section(sections).is_none();
        match name.to_ascii_lowercase().as_str() {
            "include" | "includeoptional" if depth < MOST_DEPTH => {
                if let (Some(pattern), [first, .., last]) = (arguments.first(), words.as_slice()) {
                    let at = first.at.start..last.at.end;
                    let included = self.include(pattern, sections, whole_server, depth);
                    let includes = &mut self.scan.sources[source].includes;
                    if !includes.iter().any(|(known, _)| *known == at) {
                        includes.push((at, included));
                        includes.sort_by_key(|(at, _)| at.start);
                    }
                }
            }
            "use" if depth < MOST_DEPTH => {
                let used = arguments.split_first().and_then(|(name, arguments)| {
                    Some(self.macros.get(&name.to_ascii_lowercase())?.used_with(arguments))
                });
                let outer = sections.len();
                for line in used.unwrap_or_default() {
                    self.line(line.source, line.number, &line.text, line.words, sections, depth + 1);
                }
                sections.truncate(outer);
            }
            "define" => {
                if let Some(name) = arguments.first() {
                    self.conditions.defines.insert(name.clone());
                    if let Some(value) = arguments.get(1) {
                        self.conditions.environment.push((name.clone(), value.clone()));
                    }
                }
            }
            lower => {
                if lower == "serverroot"
                    && let Some(root) = arguments.first()
                {
                    self.root = PathBuf::from(root);
                }
                self.keep(source, number, words, sections, host);
            }
        }
    }

    /// The innermost section that limits the effect.
    fn section(&self, sections: &[Section]) -> Option<String> {
        sections.iter().rev().find(|s| self.condition(&s.head).is_none()).map(|s| s.head.clone())
    }

    fn keep(
        &mut self,
        source: usize,
        number: usize,
        words: Vec<ConfigWord>,
        sections: &[Section],
        host: Option<usize>,
    ) {
        let file = self.scan.sources[source].name.clone();
        let mut texts = words.iter().map(|w| self.expand(&w.text));
        let name = texts.next().unwrap_or_default();
        let arguments = texts.collect();
        let section = self.section(sections);
        let inside = sections.iter().rev().find_map(|s| s.index);
        self.scan.lines.push(DirectiveLine { file, number, name, arguments, section, inside, host, words, source });
    }

    /// Reads the files of a pattern and returns their sources.
    fn include(&mut self, pattern: &str, sections: &mut Vec<Section>, whole_server: bool, depth: usize) -> Vec<usize> {
        let full = self.root.join(pattern);
        let found = if full.is_dir() { self.walk.below(&full) } else { self.walk.files(&full, HiddenFiles::Taken) };
        let mut paths = found.unwrap_or_else(|why| {
            self.scan.problems.push(why);
            Vec::new()
        });
        paths.sort();
        let inner_depth = sections.len();
        let mut included = Vec::new();
        for path in paths.iter().filter(|p| p.is_file()) {
            included.extend(self.file(path, sections, depth + 1));
            // A section left open in a file ends with the file.
            sections.truncate(inner_depth);
        }
        if let (true, Some(folder), Some(name)) = (whole_server, full.parent(), full.file_name()) {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with('*') && folder.is_dir() {
                let end = self.scan.lines.len();
                self.scan.folders.push(IncludeFolder { path: folder.to_path_buf(), pattern: name, end });
            }
        }
        included
    }

    /// Evaluates a conditional section head; `None` if it is a real section.
    fn condition(&self, head: &str) -> Option<bool> {
        let (kind, argument) = head.split_once(char::is_whitespace).unwrap_or((head, ""));
        let argument = argument.trim().trim_matches('"');
        let (negated, name) = match argument.strip_prefix('!') {
            Some(name) => (true, name),
            None => (false, argument),
        };
        let holds = match kind.to_ascii_lowercase().as_str() {
            "ifmodule" => self.conditions.modules.iter().any(|m| same_module(m, name)),
            "ifdefine" => self.conditions.defines.contains(name),
            "iffile" => self.root.join(name).exists(),
            "ifversion" if !self.conditions.version.is_empty() => {
                let fits = version_fits(&self.conditions.version, argument).unwrap_or(true);
                return Some(fits || self.conditions.hold);
            }
            "ifversion" | "ifdirective" | "ifsection" => true,
            _ => return None,
        };
        Some(holds != negated || self.conditions.hold)
    }

    /// Expands `${NAME}`.
    fn expand(&self, word: &str) -> String {
        let mut out = String::new();
        let mut rest = word;
        while let Some(start) = rest.find("${") {
            let Some(length) = rest[start..].find('}') else { break };
            let name = &rest[start + 2..start + length];
            out.push_str(&rest[..start]);
            match self.conditions.environment.iter().rev().find(|(k, _)| k == name) {
                Some((_, value)) => out.push_str(value),
                None => out.push_str(&rest[start..=start + length]),
            }
            rest = &rest[start + length + 1..];
        }
        out.push_str(rest);
        out
    }
}

/// Compares module names: `mpm_prefork_module`, `mod_mpm_prefork.c` and `prefork.c` are the same module.
fn same_module(loaded: &str, asked: &str) -> bool {
    let plain = |name: &str| {
        let name = name.trim_end_matches(".c").trim_end_matches("_module");
        name.trim_start_matches("mod_").trim_start_matches("mpm_").to_string()
    };
    plain(loaded) == plain(asked)
}

/// Removes the `>` from the words of a section head.
fn close_head(words: &mut Vec<ConfigWord>) {
    if let Some(last) = words.last_mut()
        && let Some(text) = last.text.strip_suffix('>')
    {
        (last.text, last.at.end) = (text.to_string(), last.at.end - 1);
    }
    words.retain(|w| !w.at.is_empty());
}

/// Splits a line into words, each with its byte range; quotes keep spaces inside a word.
pub fn split_words(line: &[u8]) -> Vec<(Vec<u8>, usize, usize)> {
    let mut words = Vec::new();
    let mut at = 0;
    while at < line.len() {
        if line[at].is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let (from, quote) = (at, Some(line[at]).filter(|b| matches!(b, b'"' | b'\'')));
        at += usize::from(quote.is_some());
        let mut word = Vec::new();
        while at < line.len() {
            let byte = line[at];
            match quote {
                None if byte.is_ascii_whitespace() => break,
                Some(q) if byte == q => {
                    at += 1;
                    break;
                }
                Some(q) if byte == b'\\' && line.get(at + 1) == Some(&q) => at += 1,
                _ => {}
            }
            word.push(line[at]);
            at += 1;
        }
        words.push((word, from, at));
    }
    words
}

/// Scans a configuration of one file, in a folder of its own.
#[cfg(test)]
pub(super) fn scan_of(text: &str) -> (tempfile::TempDir, Scan) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("main.conf");
    fs::write(&file, text).expect("written");
    let scan = Scan::read(&file, dir.path(), Conditions::default());
    (dir, scan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(files: &[(&str, &str)]) -> (tempfile::TempDir, Scan) {
        let dir = tempfile::tempdir().expect("temp dir");
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("has one")).expect("made");
            fs::write(path, text).expect("written");
        }
        let conditions = Conditions {
            modules: ["mpm_prefork_module".to_string(), "core_module".to_string()].into(),
            defines: ["ON".to_string()].into(),
            environment: vec![("N".into(), "7".into())],
            version: vec![2, 4, 57],
            hold: false,
        };
        let scan = Scan::read(&dir.path().join("main.conf"), dir.path(), conditions);
        (dir, scan)
    }

    #[test]
    fn the_last_line_for_the_whole_server_counts() {
        let (_dir, s) = scan(&[
            (
                "main.conf",
                "StartServers 1\nIncludeOptional conf.d/*.conf\n<VirtualHost *:80>\nKeepAlive On\n</VirtualHost>\n",
            ),
            ("conf.d/a.conf", "startservers ${N}\n<IfModule mpm_event_module>\nStartServers 9\n</IfModule>\n"),
            (
                "conf.d/b.conf",
                "<IfModule mod_mpm_prefork.c>\nMaxRequestWorkers \\\n 33\n</IfModule>\n<IfDefine !ON>\nStartServers 8\n</IfDefine>",
            ),
        ]);
        let l = s.last(&["StartServers"]).expect("is there");
        assert_eq!((l.arguments[0].as_str(), l.number), ("7", 1));
        assert_eq!(s.last(&["MaxClients", "MaxRequestWorkers"]).expect("is there").arguments, ["33"]);
        assert_eq!(s.last(&["KeepAlive"]), None);
        assert_eq!(s.in_sections("KeepAlive").count(), 1);
        assert_eq!(s.folders.len(), 1);
        assert!(s.folders[0].path.ends_with("conf.d") && s.folders[0].end == 3);
    }

    #[test]
    fn a_version_decides_which_lines_count() {
        assert_eq!(version_numbers("Apache/2.4.57 (Debian)"), [2, 4, 57]);
        for (argument, fits) in [
            ("< 2.2", false),
            ("<= 2.4.57", true),
            (">= 2.4", true),
            ("> 2.4.57", false),
            ("2.4.57", true),
            ("!= 2.4.57", false),
            ("!< 2.2", true),
            ("~ ^2\\.4\\.", true),
            ("= /^2.2/", false),
        ] {
            assert_eq!(version_fits(&[2, 4, 57], argument), Some(fits), "{argument}");
        }
        let text = "StartServers 2\n<IfVersion < 2.2>\nStartServers 9\n</IfVersion>\n";
        let (_dir, s) = scan(&[("main.conf", text)]);
        assert_eq!(s.last(&["StartServers"]).expect("is there").arguments, ["2"]);
    }

    #[test]
    fn a_macro_counts_where_it_is_used() {
        let (_dir, s) = scan(&[
            (
                "main.conf",
                "StartServers 1\n<Macro Pool $n $folder>\nStartServers $n\nInclude $folder/*.conf\n</Macro>\n\
                 KeepAlive Off\nUse pool 6 pools\n<Macro Never>\nKeepAlive On\n</Macro>\n",
            ),
            ("pools/a.conf", "MaxRequestWorkers 44\n"),
        ]);
        let last = |name: &str| s.last(&[name]).expect("is there").arguments[0].clone();
        assert_eq!((last("StartServers"), last("MaxRequestWorkers")), ("6".into(), "44".into()));
        assert_eq!(last("KeepAlive"), "Off", "a macro that nobody uses sets nothing");
    }

    #[test]
    fn a_file_that_includes_itself_ends() {
        let (_dir, s) = scan(&[("main.conf", "Include main.conf\nStartServers 2\n")]);
        assert_eq!(s.last(&["StartServers"]).expect("is there").arguments, ["2"]);
    }

    #[test]
    fn words_may_be_quoted() {
        let line = br#"Alias "/a \"b" '/c' d"#;
        let words: Vec<(Vec<u8>, usize, usize)> = split_words(line);
        let texts: Vec<&[u8]> = words.iter().map(|(text, ..)| text.as_slice()).collect();
        assert_eq!(texts, [b"Alias".as_slice(), b"/a \"b", b"/c", b"d"]);
        assert_eq!(words.iter().map(|(_, from, to)| &line[*from..*to]).collect::<Vec<_>>()[1], b"\"/a \\\"b\"");
    }
}
