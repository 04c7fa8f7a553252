//! PHP's ini files: which exist, which of their lines load extensions, and copies without some of these lines.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// An ini file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IniFile {
    path: PathBuf,
    text: Vec<u8>,
}

/// php.ini, and then the files of the scanned folders, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ini {
    main: Option<IniFile>,
    scanned: Vec<IniFile>,
}

/// A line that loads an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionLine {
    /// The usual name of the extension: lower case, without folder and suffix.
    pub name: String,
    /// File name: `mysqli.so`.
    pub file: String,
    /// Position of the line: `/etc/php/8.2/fpm/conf.d/20-mysqli.ini:2`.
    pub line: String,
}

/// Which lines are copied.
#[derive(Debug, Clone, Copy)]
pub enum IniFilter<'a> {
    /// All except the lines that load these extensions.
    Without(&'a [String]),
    /// Only lines that load something, so that each setting has its default.
    Loading,
}

/// A folder with copies, to be passed by `-c` and PHP_INI_SCAN_DIR.
#[derive(Debug)]
pub struct IniCopy {
    pub main: Option<PathBuf>,
    pub scanned: PathBuf,
}

/// Files that decide which code a PHP loads, from its information without any ini file. They are its ini files, their
/// folders, the folder of extensions, and the extensions that the ini files name.
pub fn files_that_load(information: &str) -> Vec<PathBuf> {
    let value = |name: &str| information.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" => "));
    let Some(folder) = value("Configuration File (php.ini) Path").map(|path| PathBuf::from(path.trim())) else {
        return Vec::new();
    };
    let extensions = value("extension_dir").and_then(|text| text.split(" => ").next()).map(PathBuf::from);
    let built =
        information.split("--with-config-file-scan-dir=").nth(1).and_then(|rest| rest.split(['\'', ' ', '\n']).next());
    let scanned =
        [built.map(PathBuf::from), Some(folder.join("conf.d")), Some(folder.join("php.d")), Some("/etc/php.d".into())];
    let folders: Vec<PathBuf> =
        std::iter::once(folder).chain(scanned.into_iter().flatten()).filter(|f| f.is_dir()).collect();
    let ini = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok));
    let ini: Vec<PathBuf> =
        ini.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "ini")).collect();
    let mut loaded = Vec::new();
    for text in ini.iter().filter(|path| path.is_file()).filter_map(|path| lastdrop_files::input::read(path).ok()) {
        for (key, value) in lines(&text).filter_map(setting) {
            if loads_something(key) {
                let name = String::from_utf8_lossy(value).trim().trim_matches(['"', '\'']).to_string();
                let named = extensions.as_deref().unwrap_or(Path::new("/")).join(&name);
                loaded.extend([named.with_extension("so"), named]);
            } else if key.eq_ignore_ascii_case(b"extension_dir") {
                loaded.push(PathBuf::from(String::from_utf8_lossy(value).trim().trim_matches(['"', '\''])));
            }
        }
    }
    folders.into_iter().chain(ini).chain(extensions).chain(loaded).collect()
}

impl Ini {
    /// Reads the ini files that a PHP lists in its own information.
    ///
    /// # Errors
    /// In words, if it lists none or one cannot be read.
    pub fn told(information: &str) -> Result<Ini, String> {
        let mut lines = information.lines();
        let value = |line: &str, name: &str| Some(line.strip_prefix(name)?.strip_prefix(" => ")?.trim().to_string());
        let main = lines
            .find_map(|line| value(line, "Loaded Configuration File"))
            .ok_or("its program does not tell which ini files it reads")?;
        let main = if main == "(none)" { None } else { Some(read(&main)?) };
        let mut scanned = Vec::new();
        let mut rest = lines.skip_while(|line| !line.starts_with("Additional .ini files parsed => "));
        let mut next = rest.next().and_then(|line| value(line, "Additional .ini files parsed"));
        // One file per line, all but the last followed by a comma.
        while let Some(line) = next {
            if line != "(none)" {
                scanned.push(read(line.trim_end_matches(','))?);
            }
            next = line.ends_with(',').then(|| rest.next().map(|l| l.trim().to_string())).flatten();
        }
        Ok(Ini { main, scanned })
    }

    fn files(&self) -> impl Iterator<Item = &IniFile> {
        self.main.iter().chain(&self.scanned)
    }

    /// Lines that load extensions, in order, without Zend extensions.
    pub fn loads(&self) -> Vec<ExtensionLine> {
        let of = |file: &IniFile| {
            let place = file.path.display().to_string();
            let own = lines(&file.text).enumerate().filter_map(|(n, line)| Some((n, extension(line)?)));
            own.map(|(n, file)| ExtensionLine {
                name: plain(&file),
                file: object(&file),
                line: format!("{place}:{}", n + 1),
            })
            .collect::<Vec<_>>()
        };
        self.files().flat_map(of).collect()
    }

    /// Values of settings, and the content of sections for hosts and paths: words that may name an extension.
    pub fn values(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for file in self.files() {
            let mut special = false;
            for line in lines(&file.text).map(<[u8]>::trim_ascii) {
                if line.starts_with(b"[") {
                    let head = line.to_ascii_uppercase();
                    special = head.starts_with(b"[PATH=") || head.starts_with(b"[HOST=");
                }
                if line.starts_with(b";") || setting(line).is_some_and(|(key, _)| loads_something(key)) {
                    continue;
                }
                match setting(line) {
                    Some((_, value)) if !special => all.extend(value),
                    _ if special => all.extend(line),
                    _ => {}
                }
                all.push(b'\n');
            }
        }
        all
    }

    /// Writes filtered copies into a new folder, and the lines `ours`, which override all others.
    pub fn copy_to(&self, folder: &Path, kept: IniFilter<'_>, ours: &str) -> io::Result<IniCopy> {
        let _ = fs::remove_dir_all(folder);
        let scanned = folder.join("scanned");
        // Ini files may contain passwords, and PHP reads them before a worker changes its user.
        DirBuilder::new().mode(0o700).create(folder)?;
        fs::create_dir(&scanned)?;
        let main = match &self.main {
            Some(file) => {
                let path = folder.join("php.ini");
                fs::write(&path, copied(&file.text, kept))?;
                Some(path)
            }
            None => None,
        };
        for (n, file) in self.scanned.iter().enumerate() {
            fs::write(scanned.join(format!("{n:06}.ini")), copied(&file.text, kept))?;
        }
        fs::write(scanned.join("lastdrop.ini"), ours)?;
        Ok(IniCopy { main, scanned })
    }
}

fn read(path: &str) -> Result<IniFile, String> {
    let text = lastdrop_files::input::read(Path::new(path)).map_err(|e| format!("cannot read {path}: {e}"))?;
    Ok(IniFile { path: path.into(), text })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// Name and value of a line, as written.
fn setting(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|b| *b == b'=')?;
    let key = line[..at].trim_ascii();
    (!key.is_empty() && !key.starts_with(b";") && !key.starts_with(b"[")).then(|| (key, line[at + 1..].trim_ascii()))
}

fn loads_something(key: &[u8]) -> bool {
    ["extension", "zend_extension", "extension_dir"].iter().any(|name| key.eq_ignore_ascii_case(name.as_bytes()))
}

/// The extension that a line loads, as written.
fn extension(line: &[u8]) -> Option<String> {
    let (key, value) = setting(line)?;
    if !key.eq_ignore_ascii_case(b"extension") {
        return None;
    }
    let value = std::str::from_utf8(value).ok()?;
    // A quoted value ends at its quote, another one at a comment.
    let value = match value.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        Some(quote) => value[1..].split(quote).next()?,
        None => value.split(';').next()?.trim(),
    };
    // The value of a variable is not known here.
    (!value.is_empty() && !value.contains('$')).then(|| value.to_string())
}

/// File name of an extension, without its folder.
fn object(named: &str) -> String {
    let last = named.rsplit('/').next().unwrap_or(named);
    if last.ends_with(".so") { last.into() } else { format!("{last}.so") }
}

fn plain(named: &str) -> String {
    object(named).trim_end_matches(".so").to_ascii_lowercase()
}

fn copied(text: &[u8], kept: IniFilter<'_>) -> Vec<u8> {
    let stays = |line: &&[u8]| match kept {
        IniFilter::Without(names) => extension(line).is_none_or(|file| !names.contains(&plain(&file))),
        IniFilter::Loading => setting(line).is_some_and(|(key, _)| loads_something(key)),
    };
    lines(text).filter(stays).flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(main: &str, scanned: &[&str]) -> (tempfile::TempDir, Ini) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name).display().to_string();
        fs::write(path("php.ini"), main).expect("written");
        let mut names = Vec::new();
        for (n, text) in scanned.iter().enumerate() {
            names.push(path(&format!("{n}.ini")));
            fs::write(names.last().expect("one"), text).expect("written");
        }
        let all = if names.is_empty() { "(none)".into() } else { names.join(",\n") };
        let told = format!(
            "phpinfo()\nLoaded Configuration File => {}\nScan this dir => x\nAdditional .ini files parsed => {all}\n\nPHP API => 1\n",
            path("php.ini")
        );
        let ini = Ini::told(&told).expect("its files");
        (dir, ini)
    }

    #[test]
    fn lines_that_load_extensions_are_known_however_they_are_written() {
        let (_dir, ini) = written(
            "; extension=off\n[PHP]\nextension=a\nEXTENSION = \"B.so\" ; why\nzend_extension=opcache\nextension=${X}\n",
            &["extension=/opt/c.so;x\r\n", "extension_dir=/x\n\n extension='d'"],
        );
        let loads = ini.loads();
        let of: Vec<_> = loads.iter().map(|l| (l.name.as_str(), l.file.as_str())).collect();
        assert_eq!(of, [("a", "a.so"), ("b", "B.so"), ("c", "c.so"), ("d", "d.so")]);
        assert!(loads[1].line.ends_with("/php.ini:4") && loads[3].line.ends_with("/1.ini:3"), "{loads:?}");
    }

    #[test]
    fn copies_keep_their_order_and_lack_only_what_they_shall() {
        let (dir, ini) = written("a = 1\nextension=x\n", &["extension=y\nb = 2", "zend_extension=z\n"]);
        let text = |path: &Path| fs::read_to_string(path).expect("written");
        let copied =
            ini.copy_to(&dir.path().join("copy"), IniFilter::Without(&["y".into()]), "c = 3\n").expect("written");
        let main = copied.main.expect("a main file");
        assert_eq!(text(&main), "a = 1\nextension=x\n\n");
        let mut names: Vec<_> =
            fs::read_dir(&copied.scanned).expect("there").map(|e| e.expect("one").file_name()).collect();
        names.sort();
        assert_eq!(names, ["000000.ini", "000001.ini", "lastdrop.ini"]);
        assert_eq!(text(&copied.scanned.join("000000.ini")), "b = 2\n");
        let bare = ini.copy_to(&dir.path().join("copy"), IniFilter::Loading, "").expect("written");
        assert_eq!(text(&bare.main.expect("a main file")), "extension=x\n");
        assert_eq!(text(&bare.scanned.join("000001.ini")), "zend_extension=z\n");
    }

    #[test]
    fn values_are_words_and_names_of_settings_are_not() {
        let (_dir, ini) =
            written("[session]\nsession.save_handler = redis\n;x = y\nextension=z\n[PATH=/a]\nmbstring.x = 1\n", &[]);
        let values = String::from_utf8(ini.values()).expect("text");
        assert!(values.contains("redis") && values.contains("mbstring"), "{values}");
        for no in ["save_handler", "y", "z", "[session]"] {
            assert!(!values.contains(no), "{no}: {values}");
        }
        assert!(Ini::told("nothing").is_err());
        let gone = "Loaded Configuration File => /no/such.ini\n";
        assert!(Ini::told(gone).expect_err("not there").contains("/no/such.ini"));
        assert_eq!(Ini::told("Loaded Configuration File => (none)\n"), Ok(Ini::default()));
    }
}
