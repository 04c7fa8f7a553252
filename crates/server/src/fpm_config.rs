//! Reads a PHP-FPM configuration as PHP-FPM does: line by line, with included files in order of name. A section
//! continues after an inclusion with the section that the included file ended in (`fpm_conf_ini_parser_section`).

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use lastdrop_files::input;
use lastdrop_probe::fastcgi::FpmSocket;
use lastdrop_probe::status::StatusSource;

use crate::wildcard::{HiddenFiles, WalkBudget};

/// A setting and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingLine {
    pub file: PathBuf,
    pub number: usize,
    /// `global`, or the name of a pool.
    pub section: String,
    pub key: String,
    pub value: String,
}

/// A pattern of included files, and the number of lines up to their end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inclusion {
    pub pattern: PathBuf,
    pub end: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Scan {
    pub lines: Vec<SettingLine>,
    /// The files, and the folders from which they are included.
    pub files: Vec<PathBuf>,
    pub inclusions: Vec<Inclusion>,
    /// Errors from files that could not be read.
    pub problems: Vec<String>,
    /// The folder for relative inclusions, if it is not one of [`PREFIXES`].
    pub prefix: Option<PathBuf>,
    section: String,
    /// Folders above the main file, nearest first.
    above: Vec<PathBuf>,
    walk: WalkBudget,
    bytes: usize,
}

const GLOBAL: &str = "global";
const MOST_DEPTH: usize = 4;
/// Bounds files that include each other.
const MOST_FILES: usize = 2000;
const MOST_BYTES: usize = 64 << 20;
/// Relative names refer to the installation prefix.
const PREFIXES: [&str; 2] = ["/usr/local", "/usr"];

impl Scan {
    pub fn read(main: &Path) -> Scan {
        let above =
            main.ancestors().skip(1).filter(|folder| folder.parent().is_some()).map(Path::to_path_buf).collect();
        let mut scan = Scan { section: GLOBAL.into(), above, ..Scan::default() };
        scan.file(main, 0);
        scan
    }

    fn file(&mut self, path: &Path, depth: usize) {
        if self.files.len() >= MOST_FILES || self.bytes >= MOST_BYTES {
            return self.problems.push("it includes too many files: the rest is not read".into());
        }
        self.files.push(path.into());
        let text = match input::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) => return self.problems.push(format!("cannot read {}: {e}", path.display())),
        };
        self.bytes += text.len();
        for (i, line) in text.lines().enumerate() {
            let line = line.split(';').next().unwrap_or_default().trim();
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                self.section = name.trim().into();
            } else if let Some((key, value)) = line.split_once('=') {
                let (key, value) = (key.trim(), value.trim().trim_matches(['"', '\'']));
                if key == "include" {
                    self.include(value, depth);
                    continue;
                }
                self.lines.push(SettingLine {
                    file: path.into(),
                    number: i + 1,
                    section: self.section.clone(),
                    key: key.into(),
                    value: value.into(),
                });
            }
        }
    }

    fn include(&mut self, pattern: &str, depth: usize) {
        let walk = RefCell::new(std::mem::take(&mut self.walk));
        let found = |pattern: &Path| walk.borrow_mut().files(pattern, HiddenFiles::Taken).unwrap_or_default();
        // The title hides `-p PREFIX`, to which relative names refer; the configuration is usually below that folder.
        let built_in = PREFIXES.map(PathBuf::from);
        // An absolute name does not depend on the prefix.
        let most = if Path::new(pattern).is_absolute() { 1 } else { usize::MAX };
        let known = self.prefix.iter().chain(&built_in).chain(&self.above).take(most);
        let prefix = known.into_iter().find(|prefix| !found(&prefix.join(pattern)).is_empty()).cloned();
        if let Some(prefix) = prefix.as_ref().filter(|p| Path::new(pattern).is_relative() && !built_in.contains(p)) {
            self.prefix = Some(prefix.clone());
        }
        let pattern = prefix.unwrap_or_else(|| built_in[1].clone()).join(pattern);
        let files = if depth < MOST_DEPTH { found(&pattern) } else { Vec::new() };
        self.walk = walk.into_inner();
        for file in files {
            self.file(&file, depth + 1);
        }
        self.files.extend(pattern.parent().map(Path::to_path_buf));
        self.inclusions.push(Inclusion { pattern, end: self.lines.len() });
    }

    /// Names of the pools, in order.
    pub fn pools(&self) -> Vec<&str> {
        let mut pools: Vec<&str> = Vec::new();
        for line in &self.lines {
            if line.section != GLOBAL && !pools.contains(&line.section.as_str()) {
                pools.push(&line.section);
            }
        }
        pools
    }

    /// The last line of a section that sets a key: the effective one.
    pub fn last(&self, section: &str, key: &str) -> Option<&SettingLine> {
        self.lines.iter().rev().find(|line| line.section == section && line.key == key)
    }

    /// The line of a pool that sets a PHP setting, and whether no script can override it. Of several lines the first is
    /// effective (`fpm_conf_set_array` reverses their order).
    pub fn of_php(&self, pool: &str, key: &str, skip: &str) -> Option<(&SettingLine, bool)> {
        let sets = |line: &&SettingLine, by: &str| line.key.strip_prefix(by).is_some_and(|k| k == format!("[{key}]"));
        let own = || self.lines.iter().filter(|line| line.section == pool && !line.file.ends_with(skip));
        let first = |by: [&str; 2]| own().find(|line| by.iter().any(|by| sets(line, by)));
        let admin = first(["php_admin_value", "php_admin_flag"]).map(|line| (line, true));
        admin.or_else(|| first(["php_value", "php_flag"]).map(|line| (line, false)))
    }

    pub fn global(&self, key: &str) -> Option<&str> {
        self.last(GLOBAL, key).map(|line| line.value.as_str())
    }
}

/// The status page of the first pool that has one.
pub fn status(config: &Path) -> Option<StatusSource> {
    let scan = Scan::read(config);
    scan.pools().into_iter().find_map(|pool| {
        let value = |key: &str| Some(scan.last(pool, key)?.value.clone());
        let (path, own) = (value("pm.status_path")?, value("pm.status_listen"));
        let apart = own.is_some();
        let at = own.or_else(|| value("listen"))?.replace("$pool", pool);
        Some(StatusSource::FastCgi { socket: socket_of(&at)?, path, apart })
    })
}

/// A pool's listen address from its configuration; `None` if it is neither a path nor an address.
pub(crate) fn socket_of(text: &str) -> Option<FpmSocket> {
    if text.starts_with('/') {
        return Some(FpmSocket::Unix(text.into()));
    }
    let address = if text.contains(':') { text.to_string() } else { format!("127.0.0.1:{text}") };
    address.parse().ok().map(FpmSocket::Tcp)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_status_page_of_a_pool_is_found_through_includes() {
        let dir = tempfile::tempdir().expect("a folder");
        let pool = "[quiet]\nlisten = 9001\n[www] ; main\nlisten = /run/php/$pool.sock\n; pm.status_path = /no\npm.status_path = /status\n";
        fs::write(dir.path().join("www.conf"), pool).expect("written");
        let main = dir.path().join("php-fpm.conf");
        fs::write(&main, format!("[global]\npid = x\ninclude={}/www*.conf\n", dir.path().display())).expect("written");
        let expected = |socket, apart| Some(StatusSource::FastCgi { socket, path: "/status".into(), apart });
        assert_eq!(status(&main), expected(FpmSocket::Unix("/run/php/www.sock".into()), false));
        fs::write(dir.path().join("www.conf"), format!("{pool}pm.status_listen = 127.0.0.1:9002\n")).expect("written");
        let address = "127.0.0.1:9002".parse().expect("an address");
        assert_eq!(status(&main), expected(FpmSocket::Tcp(address), true));
        let scan = Scan::read(&main);
        assert_eq!((scan.pools(), scan.inclusions.len(), scan.global("pid")), (vec!["quiet", "www"], 1, Some("x")));
        assert_eq!(socket_of("9000"), Some(FpmSocket::Tcp("127.0.0.1:9000".parse().expect("an address"))));
    }

    #[test]
    fn a_relative_inclusion_goes_by_a_folder_above_the_configuration() {
        let dir = tempfile::tempdir().expect("a folder");
        let (etc, pools) = (dir.path().join("etc"), dir.path().join("etc/pools.d"));
        fs::create_dir_all(&pools).expect("folders");
        fs::write(pools.join("shop.conf"), "[shop]\nlisten = 9001\n").expect("written");
        let main = etc.join("php-fpm.conf");
        for (pattern, prefix) in [("etc/pools.d/*.conf", dir.path()), ("pools.d/*.conf", etc.as_path())] {
            fs::write(&main, format!("[global]\ninclude = {pattern}\n")).expect("written");
            let scan = Scan::read(&main);
            assert_eq!((scan.pools(), scan.prefix.as_deref()), (vec!["shop"], Some(prefix)), "{pattern}");
        }
        fs::write(&main, format!("[global]\ninclude = {}/*.conf\n", pools.display())).expect("written");
        assert_eq!(Scan::read(&main).prefix, None, "the name is whole");
    }

    #[test]
    fn the_last_line_counts_and_a_section_goes_on_behind_an_inclusion() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("a.conf"), "[a]\npm.max_children = 1\n").expect("written");
        let main = dir.path().join("php-fpm.conf");
        let include = format!("include = \"{}/*.conf\"", dir.path().join(".").display()).replace("/*", "/a*");
        let text = format!("[www]\npm.max_children = 7\n{include}\npm.max_children = 9\n[www]\npm = static\n");
        fs::write(&main, text).expect("written");
        let scan = Scan::read(&main);
        let of = |pool: &str| scan.last(pool, "pm.max_children").map(|l| (l.value.as_str(), l.number));
        assert_eq!((of("www"), of("a")), (Some(("7", 2)), Some(("9", 4))));
        assert_eq!((scan.inclusions[0].end, scan.lines.len()), (2, 4));
        assert!(Scan::read(&dir.path().join("none")).problems[0].contains("cannot read"));
    }
}
