//! Reads nginx's configuration language. The context of each directive and the byte range of each word are known, so
//! that a change of a value touches no other byte of a file.
//!
//! The rules are those of `ngx_conf_read_token` and `ngx_conf_parse` (ngx_conf_file.c). A word begins after white
//! space. A quote counts only at the beginning of a word. A backslash takes the next character literally. A `{` right
//! after a `$` belongs to the word. `#` begins a comment only where a word could begin. The content of a
//! `…_by_lua_block` is Lua and is skipped.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lastdrop_files::input;

use super::words::{Lexer, Token, lua_end};
use crate::edits::{ConfigWord, Edits, FlatText, Source};
use crate::wildcard::{HiddenFiles, WalkBudget};

/// A directive; it occurs once per inclusion of its file.
#[derive(Debug)]
pub struct Directive {
    /// Name and arguments.
    pub words: Vec<ConfigWord>,
    pub source: usize,
    /// From the name up to and including its `;` or `{`.
    pub at: Range<usize>,
    /// The enclosing block.
    pub parent: Option<usize>,
    /// True if it opens a block.
    pub is_block: bool,
}

impl Directive {
    pub fn name(&self) -> &str {
        &self.words[0].text
    }

    pub fn arguments(&self) -> &[ConfigWord] {
        &self.words[1..]
    }

    /// The argument that equals this word, or begins with it if it ends in `=`.
    pub fn word(&self, wanted: &str) -> Option<&ConfigWord> {
        let is_it = |w: &&ConfigWord| if wanted.ends_with('=') { w.text.starts_with(wanted) } else { w.text == wanted };
        self.arguments().iter().find(is_it)
    }
}

/// Why a configuration cannot be read, with the position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {what}", file.display())]
pub struct Fault {
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
}

/// A whole configuration: directives in nginx's reading order.
#[derive(Debug, Default)]
pub struct Config {
    pub sources: Vec<Source>,
    pub directives: Vec<Directive>,
}

const MOST_BYTES: u64 = 16 << 20;
/// Bound files that include each other: without a cycle, they can still grow exponentially.
const MOST_DIRECTIVES: usize = 200_000;
const MOST_INCLUSIONS: usize = 10_000;
const DEEPEST: usize = 50;

impl Config {
    /// Reads a file with all its includes, and the directives of the command line (`-g`).
    pub fn read(main: &Path, global: Option<&str>) -> Result<Config, Fault> {
        let folder = main.parent().unwrap_or(Path::new("/"));
        let config = Config::default();
        let mut reader = Reader {
            config,
            folder,
            by_file: HashMap::new(),
            chain: Vec::new(),
            inclusions: 0,
            walk: WalkBudget::default(),
        };
        // nginx reads the directives of `-g` first.
        if let Some(text) = global {
            let name = PathBuf::from("-g on the command line");
            let source = Source { name, file: None, text: text.as_bytes().to_vec(), includes: Vec::new() };
            reader.config.sources.push(source);
            reader.parse(0, None)?;
        }
        let main = reader.open(main).map_err(|what| Fault { file: main.into(), line: 0, what })?;
        reader.parse(main, None)?;
        Ok(reader.config)
    }

    /// `file:line` of a directive.
    pub fn place(&self, directive: &Directive) -> String {
        let source = &self.sources[directive.source];
        format!("{}:{}", source.name.display(), source.line(directive.at.start))
    }

    /// Names of the enclosing blocks, outermost first.
    pub fn context(&self, directive: &Directive) -> Vec<&str> {
        let mut names = Vec::new();
        let mut around = directive.parent;
        while let Some(index) = around {
            names.push(self.directives[index].name());
            around = self.directives[index].parent;
        }
        names.reverse();
        names
    }

    /// Directives with this name directly inside blocks with these names.
    pub fn within<'a>(&'a self, context: &'a [&str], name: &'a str) -> impl Iterator<Item = &'a Directive> {
        self.directives.iter().filter(move |d| d.name() == name && self.context(d) == context)
    }

    /// Returns the whole configuration as one text that knows the origin of each line, with edits applied. It can be
    /// tested from one temporary file in the folder to which relative names refer.
    pub fn flat(&self, main: &Path, edits: &Edits) -> FlatText {
        let main = fs::canonicalize(main).unwrap_or_else(|_| main.into());
        let index = self.sources.iter().position(|s| s.file.as_ref() == Some(&main));
        // A file that includes itself is not read at all.
        index.map_or_else(FlatText::default, |index| FlatText::of(&self.sources, index, edits, self.sources.len()))
    }
}

struct Reader<'a> {
    config: Config,
    /// The main file's folder, to which names of included files are relative.
    folder: &'a Path,
    by_file: HashMap<PathBuf, usize>,
    /// The sources being read, each included by the one before.
    chain: Vec<usize>,
    inclusions: usize,
    walk: WalkBudget,
}

impl Reader<'_> {
    /// Returns the source of a file and reads it at its first use.
    fn open(&mut self, name: &Path) -> Result<usize, String> {
        let cannot = |e: std::io::Error| format!("cannot read {}: {e}", name.display());
        let file = fs::canonicalize(name).map_err(cannot)?;
        if let Some(index) = self.by_file.get(&file) {
            return Ok(*index);
        }
        let metadata = fs::metadata(&file).map_err(cannot)?;
        if !metadata.is_file() || metadata.len() > MOST_BYTES {
            return Err(format!("{} is no file of at most {} MiB", name.display(), MOST_BYTES >> 20));
        }
        let text = input::read(&file).map_err(cannot)?;
        let index = self.config.sources.len();
        self.by_file.insert(file.clone(), index);
        self.config.sources.push(Source { name: name.into(), file: Some(file), text, includes: Vec::new() });
        Ok(index)
    }

    /// Parses the directives of a source into a block.
    fn parse(&mut self, source: usize, around: Option<usize>) -> Result<(), Fault> {
        let text = std::mem::take(&mut self.config.sources[source].text);
        self.chain.push(source);
        let mut includes = Vec::new();
        let result = self.parse_text(source, &text, around, &mut includes);
        self.chain.pop();
        let own = &mut self.config.sources[source];
        own.text = text;
        own.includes = includes;
        result.map_err(|(at, what)| match what {
            Problem::Here(what) => Fault { file: own.name.clone(), line: own.line(at), what },
            Problem::Elsewhere(fault) => fault,
        })
    }

    fn parse_text(
        &mut self,
        source: usize,
        text: &[u8],
        around: Option<usize>,
        includes: &mut Vec<(Range<usize>, Vec<usize>)>,
    ) -> Result<(), (usize, Problem)> {
        let here = |at: usize, what: &str| (at, Problem::Here(what.into()));
        let mut lexer = Lexer::new(text);
        let mut words: Vec<ConfigWord> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        loop {
            let token = lexer.token().map_err(|(at, what)| (at, Problem::Here(what)))?;
            let end = match token {
                Token::Word(word) => {
                    words.push(word);
                    continue;
                }
                Token::Close(at) => {
                    if !words.is_empty() {
                        return Err(here(at, "unexpected \"}\""));
                    }
                    open.pop().ok_or_else(|| here(at, "unexpected \"}\""))?;
                    continue;
                }
                Token::EndOfText(_) if words.is_empty() && open.is_empty() => return Ok(()),
                Token::EndOfText(at) => {
                    let wanted = if words.is_empty() { "\"}\"" } else { "\";\" or \"}\"" };
                    return Err(here(at, &format!("unexpected end of file, expecting {wanted}")));
                }
                Token::End(at) | Token::Open(at) => at,
            };
            let is_block = matches!(token, Token::Open(_));
            let Some(first) = words.first() else {
                return Err(here(end, if is_block { "unexpected \"{\"" } else { "unexpected \";\"" }));
            };
            let at = first.at.start..end + 1;
            let parent = open.last().copied().or(around);
            if self.config.directives.len() >= MOST_DIRECTIVES {
                return Err(here(at.start, "the configuration has no end: too many directives"));
            }
            let index = self.config.directives.len();
            let words = std::mem::take(&mut words);
            let is_lua = is_block && words[0].text.ends_with("_by_lua_block");
            let pattern = (words[0].text == "include" && words.len() == 2 && !is_block).then(|| words[1].text.clone());
            self.config.directives.push(Directive { words, source, at: at.clone(), parent, is_block });
            if is_lua {
                let close = lua_end(text, end + 1).ok_or_else(|| here(at.start, "this block of Lua has no end"))?;
                lexer.go_on_at(close + 1);
            } else if is_block {
                open.push(index);
            }
            if let Some(pattern) = pattern {
                let included = self.include(&pattern, parent).map_err(|problem| (at.start, problem))?;
                includes.push((at, included));
            }
        }
    }

    fn include(&mut self, pattern: &str, parent: Option<usize>) -> Result<Vec<usize>, Problem> {
        let mut included = Vec::new();
        for file in files_of(&self.folder.join(pattern), &mut self.walk).map_err(Problem::Here)? {
            let index = self.open(&file).map_err(Problem::Here)?;
            self.inclusions += 1;
            if self.chain.contains(&index) {
                return Err(Problem::Here(format!("{} includes itself", file.display())));
            }
            if self.chain.len() >= DEEPEST || self.inclusions > MOST_INCLUSIONS {
                return Err(Problem::Here("too many files include each other".into()));
            }
            included.push(index);
            self.parse(index, parent).map_err(Problem::Elsewhere)?;
        }
        Ok(included)
    }
}

enum Problem {
    Here(String),
    Elsewhere(Fault),
}

/// Resolves an include pattern in the order of glob(3); a name without wildcards is the file itself.
fn files_of(pattern: &Path, walk: &mut WalkBudget) -> Result<Vec<PathBuf>, String> {
    let text = pattern.to_string_lossy();
    if !text.contains(['*', '?', '[']) {
        return Ok(vec![pattern.into()]);
    }
    let mut files = walk.files(pattern, HiddenFiles::LeftOut).map_err(|e| format!("include {text}: {e}"))?;
    files.sort_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Config, Fault> {
        let dir = tempfile::tempdir().expect("a folder");
        let main = dir.path().join("nginx.conf");
        fs::write(&main, text).expect("written");
        Config::read(&main, None)
    }

    fn shown(config: &Config) -> Vec<String> {
        let line = |d: &Directive| {
            let words: Vec<&str> = d.words.iter().map(|w| w.text.as_str()).collect();
            format!("{}>{}", config.context(d).join("/"), words.join("|"))
        };
        config.directives.iter().map(line).collect()
    }

    #[test]
    fn odd_words_are_read_as_nginx_reads_them() {
        let config = of("a b#c 'd;{}' \"e\\\"f\" g\\ h; # x { ;\nmap $a $b { ~^\\d ${x}y; }if ($a ~ \"x{2}\") { b; }");
        let expected = [">a|b#c|d;{}|e\"f|g\\ h", ">map|$a|$b", "map>~^\\d|${x}y", ">if|($a|~|x{2}|)", "if>b"];
        assert_eq!(shown(&config.expect("read")), expected);
        for (bad, line, what) in [
            ("a;\nb", 2, "unexpected end of file, expecting \";\""),
            ("a {\n", 2, "unexpected end of file, expecting \"}\""),
            ("a }", 1, "unexpected \"}\""),
            ("}", 1, "unexpected \"}\""),
            ("\n;", 2, "unexpected \";\""),
            ("{}", 1, "unexpected \"{\""),
            ("a 'b'c;", 1, "unexpected \"c\""),
            ("a 'b", 1, "unexpected end of file"),
            ("x_by_lua_block { '} ", 1, "no end"),
        ] {
            let fault = of(bad).expect_err(bad);
            assert!(fault.line == line && fault.what.contains(what), "{bad:?}: {fault}");
        }
        assert!(of("").expect("empty").directives.is_empty() && of("\u{0}\u{fffd};").is_ok());
    }

    #[test]
    fn lua_is_passed_over() {
        let lua = "content_by_lua_block {\n -- }\n local s = \"}\\\"}\" .. '}' .. [==[ }]] ]==] --[[ } ]]\n if x then y({ z = 1 }) end\n}\nlocation /b { c; }";
        assert_eq!(shown(&of(lua).expect("read")), [">content_by_lua_block", ">location|/b", "location>c"]);
    }

    #[test]
    fn included_files_are_part_of_the_block_around_and_loops_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
        fs::create_dir(dir.path().join("sites")).expect("a folder");
        write("nginx.conf", "http { include sites/*; include mime; }");
        write("sites/b", "server { listen 2; }");
        write("sites/a", "server { listen 1; }");
        write("sites/.hidden", "}");
        write("mime", "x;");
        let main = dir.path().join("nginx.conf");
        let config = Config::read(&main, Some("daemon off;")).expect("read");
        let listens: Vec<String> = config
            .within(&["http", "server"], "listen")
            .map(|d| format!("{} {}", d.arguments()[0].text, config.place(d)))
            .collect();
        let at = |name: &str| dir.path().join(name).display().to_string();
        assert_eq!(listens, [format!("1 {}:1", at("sites/a")), format!("2 {}:1", at("sites/b"))]);
        assert_eq!(config.place(&config.directives[0]), "-g on the command line:1");

        let flat = config.flat(&main, &Edits::default());
        let text = String::from_utf8_lossy(&flat.text).into_owned();
        let line = 1 + text.lines().position(|l| l.contains("listen 2")).expect("it is in");
        let told = flat.told_of_its_files(&format!("[emerg] x in /t:{line}\ny"), Path::new("/t"));
        assert_eq!(told, format!("[emerg] x in {}:1\ny", at("sites/b")));
        fs::write(&main, &flat.text).expect("written");
        assert_eq!(shown(&Config::read(&main, Some("daemon off;")).expect("flat")), {
            let all = shown(&config);
            all.into_iter().filter(|l| !l.contains("include")).collect::<Vec<_>>()
        });

        write("mime", "include nginx.conf;");
        write("nginx.conf", "include mime;");
        let fault = Config::read(&main, None).expect_err("a loop");
        assert!(fault.what.contains("includes itself") && fault.file.ends_with("mime"), "{fault}");
        // Not a cycle, but two to the power of forty inclusions.
        for i in 0..40 {
            write(&format!("f{i}"), &format!("include f{}; include f{};", i + 1, i + 1));
        }
        write("f40", "a;");
        write("nginx.conf", "include f0;");
        assert!(Config::read(&main, None).expect_err("no end").what.contains("too many"));
        write("nginx.conf", "include none*; include none;");
        assert!(Config::read(&main, None).expect_err("missing").what.contains("none"));
    }

    #[test]
    fn what_is_not_changed_stays_as_it_is() {
        let text = "a  1 ; # x\r\n\tb {c  '2'  3;}\n";
        let config = of(text).expect("read");
        let mut edits = Edits::default();
        assert_eq!(edits.apply(0, text.as_bytes(), 0..text.len()), text.as_bytes());
        let c = &config.within(&["b"], "c").next().expect("there").words;
        for _ in 0..2 {
            edits.replace(0, c[1].at.clone(), "9".into());
            edits.replace(0, c[2].at.end..c[2].at.end, " new".into());
        }
        let changed = edits.apply(0, text.as_bytes(), 0..text.len());
        assert_eq!(String::from_utf8_lossy(&changed), "a  1 ; # x\r\n\tb {c  9  3 new;}\n");
    }

    #[test]
    fn no_input_makes_it_panic() {
        let pieces = [
            "a",
            " ",
            ";",
            "{",
            "}",
            "'",
            "\"",
            "\\",
            "$",
            "#",
            "\n",
            ")",
            "x_by_lua_block",
            "--",
            "[[",
            "]]",
            "\u{e9}",
        ];
        let mut seed = 7_u64;
        for _ in 0..3000 {
            let text: String = (0..12)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    pieces[(seed >> 33) as usize % pieces.len()]
                })
                .collect();
            let mut reader = Reader {
                config: Config::default(),
                folder: Path::new("/nonexistent"),
                by_file: HashMap::new(),
                chain: Vec::new(),
                inclusions: 0,
                walk: WalkBudget::default(),
            };
            let source = Source { name: "x".into(), file: None, text: text.clone().into_bytes(), includes: Vec::new() };
            reader.config.sources.push(source);
            let _ = reader.parse(0, None);
        }
    }
}
