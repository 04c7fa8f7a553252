//! Finds out whether a site's files refer to an extension: to a function, class, constant or setting that it defines.
//! Files are read as words, including comments and strings, because a function may be called by a string. A false
//! reference is better than a missed one.

use std::collections::BTreeSet;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest search.
const MOST_TIME: Duration = Duration::from_millis(1500);
const MOST_FOLDERS: usize = 20_000;
const MOST_FILES: usize = 20_000;
const MOST_BYTES: u64 = 256 << 20;
/// Suffixes of PHP files, including those of widespread applications.
const SUFFIXES: &[&str] =
    &["php", "inc", "phtml", "phar", "php5", "php7", "php8", "module", "install", "theme", "profile", "engine"];
const USER_INI: &str = ".user.ini";
/// Folders shared by many programs; such a folder itself is not a site.
const SHARED: &[&str] = &["/usr/share", "/usr/lib", "/usr/local", "/var/lib"];

/// Names that count as references to an extension.
#[derive(Debug, Clone, Default)]
pub struct ReferenceNames {
    /// Names split into parts: `MongoDB\Driver\Manager` has three, `apc.shm_size` two. A reference contains all parts
    /// somewhere.
    defined: Vec<Vec<Vec<u8>>>,
    /// Names used in strings: by `extension_loaded`, or as the scheme of a stream or database.
    called: Vec<Vec<u8>>,
}

impl ReferenceNames {
    pub fn new<'a>(extension: &str, defined: impl Iterator<Item = &'a str>) -> ReferenceNames {
        let name = extension.to_ascii_lowercase();
        let mut called = vec![name.clone()];
        // A PDO driver is also known by its database's name, and bz2 by its stream scheme.
        called.extend(name.strip_prefix("pdo_").map(str::to_string));
        called.extend((name == "bz2").then(|| "bzip2".to_string()));
        let parts = |name: &str| {
            let parts = name.split(|c: char| !is_of_word(c as u32)).filter(|part| !part.is_empty());
            parts.map(|part| part.to_ascii_lowercase().into_bytes()).collect()
        };
        let defined = defined.map(parts).filter(|parts: &Vec<_>| !parts.is_empty()).collect();
        ReferenceNames { defined, called: called.into_iter().map(String::into_bytes).collect() }
    }
}

fn is_of_word(c: u32) -> bool {
    c >= 0x80 || c == u32::from(b'_') || u8::try_from(c).is_ok_and(|b| b.is_ascii_alphanumeric())
}

/// The searched words that occurred.
#[derive(Debug, Default)]
pub struct References {
    wanted: HashSet<Vec<u8>>,
    met: HashSet<Vec<u8>>,
    /// Words that occurred in a string or as an identifier, as a name would.
    met_as_name: HashSet<Vec<u8>>,
}

impl References {
    pub fn to<'a>(all: impl Iterator<Item = &'a ReferenceNames>) -> References {
        let wanted = all.flat_map(|n| n.defined.iter().flatten().chain(&n.called)).cloned().collect();
        References { wanted, ..References::default() }
    }

    /// Notes the words of a PHP file.
    pub fn read(&mut self, text: &[u8]) {
        self.each_word(text, |before, after| {
            matches!(before, Some(b'"' | b'\'' | b'.')) && matches!(after, Some(b'"' | b'\'' | b'.' | b':'))
        });
    }

    /// Notes the words of settings, where names have no quotes.
    pub fn read_settings(&mut self, text: &[u8]) {
        self.each_word(text, |_, _| true);
    }

    fn each_word(&mut self, text: &[u8], is_name: impl Fn(Option<u8>, Option<u8>) -> bool) {
        let mut word = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let Some(begin) = text[at..].iter().position(|b| is_of_word(u32::from(*b))).map(|n| at + n) else { return };
            let end = text[begin..].iter().position(|b| !is_of_word(u32::from(*b))).map_or(text.len(), |n| begin + n);
            at = end;
            let before = begin.checked_sub(1).map(|n| text[n]);
            // A variable is not a reference.
            if before == Some(b'$') {
                continue;
            }
            word.clear();
            word.extend(text[begin..end].iter().map(u8::to_ascii_lowercase));
            if let Some(wanted) = self.wanted.get(&word) {
                if !self.met.contains(wanted) {
                    self.met.insert(wanted.clone());
                }
                if is_name(before, text.get(end).copied()) && !self.met_as_name.contains(wanted) {
                    self.met_as_name.insert(wanted.clone());
                }
            }
        }
    }

    pub fn has(&self, names: &ReferenceNames) -> bool {
        names.called.iter().any(|name| self.met_as_name.contains(name))
            || names.defined.iter().any(|parts| parts.iter().all(|part| self.met.contains(part)))
    }

    /// Reads a site: all PHP files below its folders, and the listed files whatever their suffix.
    ///
    /// # Errors
    /// In words, if there are too many, or one cannot be read.
    pub fn read_site(&mut self, folders: BTreeSet<PathBuf>, files: &[PathBuf]) -> Result<(), String> {
        let end = Instant::now() + MOST_TIME;
        let many = |what: &str| Err(format!("there is too much to look through below the site's folders ({what})"));
        let (mut open, mut known): (Vec<PathBuf>, HashSet<PathBuf>) = (folders.into_iter().collect(), HashSet::new());
        let (mut count, mut bytes) = (0, 0);
        let mut one = |path: &Path, size: u64| -> Result<(), String> {
            (count, bytes) = (count + 1, bytes + size);
            if count > MOST_FILES {
                return many(&format!("more than {MOST_FILES} files of PHP"));
            } else if bytes > MOST_BYTES {
                return many(&format!("more than {} MB of PHP", MOST_BYTES >> 20));
            } else if Instant::now() > end {
                return many(&format!("more than {:.1} s", MOST_TIME.as_secs_f64()));
            }
            let text = lastdrop_files::input::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            if path.file_name() == Some(OsStr::new(USER_INI)) {
                self.read_settings(&text)
            } else {
                self.read(&text)
            }
            Ok(())
        };
        for file in files {
            one(file, fs::metadata(file).map_or(0, |m| m.len()))?;
        }
        while let Some(folder) = open.pop() {
            // A link may lead back to a folder already read.
            let cannot = |e| format!("cannot read {}: {e}", folder.display());
            if !known.insert(fs::canonicalize(&folder).map_err(cannot)?) {
                continue;
            }
            if known.len() > MOST_FOLDERS {
                return many(&format!("more than {MOST_FOLDERS} folders"));
            }
            for entry in fs::read_dir(&folder).map_err(cannot)?.filter_map(Result::ok) {
                let path = entry.path();
                // A broken link.
                let Ok(metadata) = fs::metadata(&path) else { continue };
                if metadata.is_dir() {
                    if entry.file_name() != ".git" {
                        open.push(path);
                    }
                } else if metadata.is_file() && is_read(&path) {
                    one(&path, metadata.len())?;
                }
            }
        }
        Ok(())
    }
}

fn is_read(path: &Path) -> bool {
    let suffix = path.extension().map(|s| s.to_string_lossy().to_ascii_lowercase());
    suffix.is_some_and(|s| SUFFIXES.contains(&s.as_str())) || path.file_name() == Some(OsStr::new(USER_INI))
}

/// Folders to search: the served folders with the project that contains them, and those of the files that a page
/// includes. For the latter, the folder of the whole project, or for a shared library, the part that is used.
pub fn folders_of(served: &[PathBuf], included: &[PathBuf]) -> BTreeSet<PathBuf> {
    let is_deep = |folder: &Path| folder.components().count() > 2;
    let mut all: BTreeSet<PathBuf> =
        served.iter().filter(|folder| is_deep(folder) && folder.is_dir()).map(|folder| project_of(folder)).collect();
    for file in included {
        let Some(folder) = file.parent() else { continue };
        if all.iter().any(|known| folder.starts_with(known)) {
            continue;
        }
        let common = |root: &PathBuf| -> PathBuf {
            root.components().zip(folder.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
        };
        // A project is at least two levels deep, such as /srv/shop; /srv is not.
        let is_project = |common: &PathBuf| is_deep(common) && !SHARED.iter().any(|s| common == Path::new(s));
        let project = served.first().map(common).filter(is_project);
        all.insert(project.unwrap_or_else(|| folder.to_path_buf()));
    }
    let whole = all.clone();
    all.retain(|folder| !whole.iter().any(|other| other != folder && folder.starts_with(other)));
    all
}

/// The project of a served folder: the folder that contains the rest of the application.
fn project_of(served: &Path) -> PathBuf {
    let is_project = |folder: &&Path| ["composer.json", "vendor"].iter().any(|name| folder.join(name).exists());
    served.parent().filter(is_project).unwrap_or(served).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_refers_to_what_it_names_however_it_is_written() {
        let of = |extension: &str, defined: &[&str]| ReferenceNames::new(extension, defined.iter().copied());
        let all = [
            of("ctype", &["ctype_digit"]),
            of("mongodb", &["MongoDB\\Driver\\Manager"]),
            of("apcu", &["apcu_fetch", "apc.shm_size"]),
            of("phar", &["Phar"]),
            of("pdo_mysql", &[]),
            of("calendar", &["cal_days_in_month"]),
            of("exif", &["exif_read_data"]),
            of("gettext", &["_", "gettext"]),
            of("iconv", &["iconv"]),
            of("ftp", &["ftp_connect"]),
        ];
        let mut references = References::to(all.iter());
        references.read(
            b"<?php use MongoDB\\Driver; array_map('CTYPE_digit', $x); new Driver\\Manager; // calendar of $exif_read_data\n\
              $s = \"phar://x\"; new PDO('mysql:host=x'); foreach ($a as $_) {} fopen('convert.iconv.a', 'r'); my_ftp_connect();",
        );
        let met: Vec<bool> = all.iter().map(|names| references.has(names)).collect();
        assert_eq!(met, [true, true, false, true, true, false, false, false, true, false]);
        let mut settings = References::to(all.iter());
        settings.read_settings(b"apc.shm_size = 32M\nsession.save_handler=calendar");
        let met: Vec<bool> = all.iter().map(|names| settings.has(names)).collect();
        assert_eq!(met, [false, false, true, false, false, true, false, false, false, false]);
    }

    #[test]
    fn a_site_is_where_its_pages_and_what_they_include_are() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        for folder in ["shop/public", "shop/src", "blog/public", "blog/vendor", "lib/x"] {
            fs::create_dir_all(at(folder)).expect("made");
        }
        let of = |served: &[&str], included: &[&str]| -> Vec<String> {
            let served: Vec<PathBuf> = served.iter().map(|name| at(name)).collect();
            let included: Vec<PathBuf> = included.iter().map(|name| at(name)).collect();
            let all = folders_of(&served, &included).into_iter();
            let mut all: Vec<String> =
                all.map(|p| p.strip_prefix(dir.path()).unwrap_or(&p).display().to_string()).collect();
            all.sort();
            all
        };
        assert_eq!(of(&["shop/public"], &["shop/public/a.php"]), ["shop/public"]);
        assert_eq!(of(&["shop/public", "gone"], &["shop/src/a.php"]), ["shop"]);
        assert_eq!(of(&["shop/public"], &["shop/src/a.php", "/usr/share/php/x/a.php"]), ["/usr/share/php/x", "shop"]);
        assert_eq!(of(&["shop/public", "blog/public"], &[]), ["blog", "shop/public"], "with what is beside it");
        let shared = folders_of(&["/usr/share".into()], &["/usr/share/php/a.php".into()]);
        assert_eq!(shared, [PathBuf::from("/usr/share")].into());
        let apart = folders_of(&["/usr/share/misc".into()], &["/usr/share/php/a.php".into()]);
        assert!(apart.contains(Path::new("/usr/share/php")) && !apart.contains(Path::new("/usr/share")), "{apart:?}");
    }

    #[test]
    fn the_files_of_a_site_are_read_through_links_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("deep")).expect("made");
        fs::write(path("deep/a.INC"), "one();").expect("written");
        fs::write(path("deep/.user.ini"), "two = 1").expect("written");
        fs::write(path("deep/a.css"), "three").expect("written");
        fs::write(path("b.tpl"), "four()").expect("written");
        std::os::unix::fs::symlink(dir.path(), path("deep/back")).expect("made");
        let all = ["one", "two", "three", "four"].map(|name| ReferenceNames::new("x", [name].into_iter()));
        let mut references = References::to(all.iter());
        references.read_site([dir.path().to_path_buf()].into(), &[path("b.tpl")]).expect("read");
        assert_eq!(all.each_ref().map(|names| references.has(names)), [true, true, false, true]);
        let gone = references.read_site([path("gone")].into(), &[]).expect_err("not there");
        assert!(gone.contains("/gone"), "{gone}");
    }
}
