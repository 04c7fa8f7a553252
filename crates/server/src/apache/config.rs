//! Reads an Apache configuration as httpd does, as far as settings of the whole server need: includes in order, sections
//! by nesting, IfModule and IfDefine by what the server has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A directive where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub file: PathBuf,
    pub number: usize,
    pub name: String,
    pub arguments: Vec<String>,
    /// The innermost enclosing section that limits its effect, such as `VirtualHost *:80`; None: the whole server.
    pub section: Option<String>,
}

/// A folder from which every file of a pattern is included for the whole server, and how many lines come before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    pub path: PathBuf,
    /// The pattern of the file names, such as `*.conf`.
    pub pattern: String,
    /// Index of the first line after its files.
    pub end: usize,
}

#[derive(Debug, Default)]
pub struct Scan {
    pub lines: Vec<Line>,
    pub folders: Vec<Folder>,
    /// Files that could not be read.
    pub problems: Vec<String>,
    pub files: Vec<PathBuf>,
}

/// What conditions are decided by.
#[derive(Debug, Default)]
pub struct Conditions {
    /// Module names as `-M` prints them, such as `mpm_prefork_module`.
    pub modules: BTreeSet<String>,
    pub defines: BTreeSet<String>,
    pub environment: Vec<(String, String)>,
}

const MOST_DEPTH: usize = 30;

impl Scan {
    /// Reads a configuration from its main file. Relative names are under `root`, unless it sets ServerRoot.
    pub fn read(main: &Path, root: &Path, conditions: Conditions) -> Scan {
        let mut reader = Reader { scan: Scan::default(), root: root.to_path_buf(), conditions };
        let mut sections = Vec::new();
        reader.file(main, &mut sections, 0);
        reader.scan
    }

    /// The last line for the whole server that sets a directive by any of its names, as httpd would have it.
    pub fn last(&self, names: &[&str]) -> Option<&Line> {
        let named = |l: &&Line| names.iter().any(|n| l.name.eq_ignore_ascii_case(n));
        self.lines.iter().rev().filter(|l| l.section.is_none()).find(named)
    }

    /// Lines in sections that set a directive for a part of the server.
    pub fn in_sections<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |l| l.section.is_some() && l.name.eq_ignore_ascii_case(name))
    }
}

struct Reader {
    scan: Scan,
    root: PathBuf,
    conditions: Conditions,
}

impl Reader {
    fn file(&mut self, path: &Path, sections: &mut Vec<(String, bool)>, depth: usize) {
        let text = match fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) => return self.scan.problems.push(format!("cannot read {}: {e}", path.display())),
        };
        self.scan.files.push(path.to_path_buf());
        let mut logical = String::new();
        let mut first = 0;
        for (i, raw) in text.lines().enumerate() {
            if logical.is_empty() {
                first = i + 1;
            }
            if let Some(part) = raw.strip_suffix('\\') {
                logical.push_str(part);
                continue;
            }
            logical.push_str(raw);
            let line = std::mem::take(&mut logical);
            self.line(path, first, line.trim(), sections, depth);
        }
    }

    fn line(&mut self, file: &Path, number: usize, line: &str, sections: &mut Vec<(String, bool)>, depth: usize) {
        if line.is_empty() || line.starts_with('#') {
            return;
        }
        if line.starts_with("</") {
            sections.pop();
            return;
        }
        if let Some(open) = line.strip_prefix('<') {
            let head = open.trim_end_matches('>').trim();
            let holds = self.condition(head);
            sections.push((head.to_string(), holds.unwrap_or(true)));
            return;
        }
        if sections.iter().any(|(_, holds)| !holds) {
            return;
        }
        let mut words = split_words(line).into_iter().map(|w| self.expand(&w));
        let Some(name) = words.next() else { return };
        let arguments: Vec<String> = words.collect();
        let section =
            sections.iter().rev().find(|(head, _)| self.condition(head).is_none()).map(|(head, _)| head.clone());
        match name.to_ascii_lowercase().as_str() {
            "include" | "includeoptional" if depth < MOST_DEPTH => {
                if let Some(pattern) = arguments.first() {
                    self.include(pattern, sections, section.is_none(), depth);
                }
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
                self.scan.lines.push(Line { file: file.to_path_buf(), number, name, arguments, section });
            }
        }
    }

    fn include(&mut self, pattern: &str, sections: &mut Vec<(String, bool)>, whole_server: bool, depth: usize) {
        let full = self.root.join(pattern);
        let mut paths: Vec<PathBuf> = if full.is_dir() {
            glob::glob(&format!("{}/**/*", full.display())).into_iter().flatten().filter_map(Result::ok).collect()
        } else {
            glob::glob(&full.to_string_lossy()).into_iter().flatten().filter_map(Result::ok).collect()
        };
        paths.sort();
        let inner_depth = sections.len();
        for path in paths.iter().filter(|p| p.is_file()) {
            self.file(path, sections, depth + 1);
            // A section left open in a file ends with it.
            sections.truncate(inner_depth);
        }
        if let (true, Some(folder), Some(name)) = (whole_server, full.parent(), full.file_name()) {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with('*') && folder.is_dir() {
                let end = self.scan.lines.len();
                self.scan.folders.push(Folder { path: folder.to_path_buf(), pattern: name, end });
            }
        }
    }

    /// Does a section head that only asks a question hold? None: it is a real section.
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
            // Versions before 2.4 are not about.
            "ifversion" | "ifdirective" | "ifsection" => true,
            _ => return None,
        };
        Some(holds != negated)
    }

    /// Replaces `${NAME}`.
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

/// `mpm_prefork_module`, `mod_mpm_prefork.c` and `prefork.c` are one module.
fn same_module(loaded: &str, asked: &str) -> bool {
    let plain = |name: &str| {
        let name = name.trim_end_matches(".c").trim_end_matches("_module");
        name.trim_start_matches("mod_").trim_start_matches("mpm_").to_string()
    };
    plain(loaded) == plain(asked)
}

/// Words of a line; quotes hold spaces together.
fn split_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.peek().copied() {
        if c.is_whitespace() {
            chars.next();
            continue;
        }
        let mut word = String::new();
        if c == '"' || c == '\'' {
            chars.next();
            while let Some(d) = chars.next() {
                match d {
                    '\\' if chars.peek() == Some(&c) => word.extend(chars.next()),
                    d if d == c => break,
                    d => word.push(d),
                }
            }
        } else {
            while let Some(d) = chars.next_if(|d| !d.is_whitespace()) {
                word.push(d);
            }
        }
        words.push(word);
    }
    words
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
    fn a_file_that_includes_itself_ends() {
        let (_dir, s) = scan(&[("main.conf", "Include main.conf\nStartServers 2\n")]);
        assert_eq!(s.last(&["StartServers"]).expect("is there").arguments, ["2"]);
    }

    #[test]
    fn words_may_be_quoted() {
        assert_eq!(split_words(r#"Alias "/a b" '/c' d"#), ["Alias", "/a b", "/c", "d"]);
    }
}
