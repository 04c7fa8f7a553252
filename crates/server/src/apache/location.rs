//! Locates a running Apache's files from its program, its command line and its configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_files::input;
use lastdrop_model::Url;
use lastdrop_probe::process::Birth;

use super::config::{Conditions, Scan};
use super::{ABOUT, MARK};
use crate::execution::{ProgramOutput, Question, Reader};
use crate::kind::Status;
use crate::resolve::url_of;
use crate::{ServerError, ServerRef};

/// Generous, because a configuration test opens the files that the configuration names, and Perl loads its modules.
const TEST_LIMIT: Duration = Duration::from_secs(60);

/// Value of a flag, written `-f x` or `-fx`.
fn flag_value(argv: &[String], flag: &str) -> Option<String> {
    let mut words = argv.iter().skip(1);
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().cloned();
        }
        if let Some(value) = word.strip_prefix(flag).filter(|_| !word.starts_with("--")) {
            return Some(value.to_string());
        }
    }
    None
}

/// Runs the program with some flags on `file`, or on no configuration.
///
/// # Errors
/// If the program may not or cannot be run.
pub fn ask(birth: &Birth, file: Option<&Configuration<'_>>, flags: &[&str]) -> Result<ProgramOutput, ServerError> {
    question(birth, file, flags).ask()
}

/// The configuration that the program is run on.
pub struct Configuration<'a> {
    pub file: &'a Path,
    pub root: &'a Path,
}

/// Builds that call without running it.
pub fn question(birth: &Birth, configuration: Option<&Configuration<'_>>, flags: &[&str]) -> Question {
    let mut asked: Vec<String> = Vec::new();
    // The running server's defines and root change the meaning of its configuration.
    let mut words = birth.argv.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-D" | "-d" | "-c" | "-C" => asked.extend([Some(word), words.next()].into_iter().flatten().cloned()),
            "-f" | "-k" | "-E" | "-e" => {
                words.next();
            }
            w if ["-D", "-d", "-c", "-C"].iter().any(|f| w.starts_with(f)) && w != "-DFOREGROUND" => {
                asked.push(word.clone());
            }
            _ => {}
        }
    }
    let file = configuration.map_or(Path::new("/dev/null"), |c| c.file);
    asked.extend(["-f".into(), file.display().to_string()]);
    asked.extend(flags.iter().map(ToString::to_string));
    let code = configuration.map(|c| code(birth, c.file, c.root)).unwrap_or_default();
    Question::new(birth, "apache2 tells its build, its modules and whether a configuration is right")
        .args(asked)
        .reads(code)
        .within(TEST_LIMIT)
}

/// Returns the files that decide what the program executes: configuration files under any condition, and the modules
/// and scripts that these name.
pub fn code(birth: &Birth, file: &Path, root: &Path) -> Vec<PathBuf> {
    const NAME_CODE: &[&str] = &[
        "loadfile",
        "loadmodule",
        "luahookscript",
        "perlconfigrequire",
        "perlpostconfigrequire",
        "perlrequire",
        "phpinidir",
        "wsgipythonhome",
        "wsgipythonpath",
    ];
    let conditions = Conditions { hold: true, environment: birth.environment.clone(), ..Conditions::default() };
    let scan = {
        let _reader = Reader::of(birth);
        Scan::read(file, root, conditions)
    };
    let named = scan.lines.iter().filter(|l| NAME_CODE.contains(&l.name.to_ascii_lowercase().as_str()));
    let named = named.filter_map(|l| Some(scan.root.join(l.arguments.last()?)));
    // PerlSwitches may name folders of Perl modules.
    let switches = scan.lines.iter().filter(|l| l.name.eq_ignore_ascii_case("PerlSwitches")).flat_map(|l| &l.arguments);
    let folders = switches.map(|s| s.trim_start_matches("-I")).filter(|s| s.starts_with('/')).map(PathBuf::from);
    let sources = scan.sources.iter().map(|source| source.name.clone());
    // In directives on the command line, any word may be a file name.
    let mut on_line = Vec::new();
    let mut words = birth.argv.iter().skip(1);
    while let Some(word) = words.next() {
        if let Some(rest) = word.strip_prefix("-C").or_else(|| word.strip_prefix("-c")) {
            let directive = if rest.is_empty() { words.next().cloned().unwrap_or_default() } else { rest.into() };
            on_line.extend(directive.split_whitespace().skip(1).map(|w| root.join(w.trim_matches('"'))));
        }
    }
    std::iter::once(file.to_path_buf())
        .chain(sources)
        .chain(scan.folders.iter().map(|folder| folder.path.clone()))
        .chain(named)
        .chain(folders)
        .chain(on_line)
        .collect()
}

/// The quoted value of a `-D NAME="value"` line of `-V`.
fn compiled(output: &str, name: &str) -> Option<PathBuf> {
    let start = output.find(&format!("-D {name}=\""))? + name.len() + 5;
    output[start..].split('"').next().map(PathBuf::from)
}

/// Where a running server's configuration is.
pub struct ConfigLocation {
    /// The configuration that its owner wrote.
    pub config: PathBuf,
    /// The file on its command line.
    pub started_on: PathBuf,
    pub kept: Option<PathBuf>,
    pub root: PathBuf,
    pub version: String,
    pub mpm: String,
}

/// Returns the configuration file of a server's command line, and the folder to which names refer.
///
/// # Errors
/// If the program cannot be run to print its defaults.
pub fn started_on(birth: &Birth) -> Result<(PathBuf, PathBuf), ServerError> {
    let file = flag_value(&birth.argv, "-f").map(PathBuf::from);
    // -V reads a configuration, because the MPM may be a module. With an empty one it still prints how the program was
    // built.
    let built = ask(birth, None, &["-V"])?.output;
    let root = flag_value(&birth.argv, "-d")
        .map(PathBuf::from)
        .or_else(|| compiled(&built, "HTTPD_ROOT"))
        .unwrap_or_else(|| PathBuf::from("/etc/apache2"));
    let file = file.or_else(|| compiled(&built, "SERVER_CONFIG_FILE")).unwrap_or_else(|| PathBuf::from("apache2.conf"));
    Ok((root.join(file), root))
}

pub fn locate(birth: &Birth) -> Result<ConfigLocation, ServerError> {
    let version = ask(birth, None, &["-v"])?
        .output
        .lines()
        .find_map(|l| l.strip_prefix("Server version: "))
        .unwrap_or("Apache")
        .trim()
        .to_string();
    let (started_on, root) = started_on(birth)?;
    let reader = Reader::of(birth);
    let content = input::read_regular_text(&started_on)
        .map_err(ServerError::io(format!("cannot read {}", started_on.display())))?;
    drop(reader);
    let kept = content.starts_with(MARK).then(|| started_on.clone());
    let config = content
        .lines()
        .find_map(|l| l.strip_prefix(ABOUT))
        .filter(|_| kept.is_some())
        .map_or_else(|| started_on.clone(), PathBuf::from);
    let said = ask(birth, Some(&Configuration { file: &started_on, root: &root }), &["-V"])?.output;
    let mpm = said
        .lines()
        .find_map(|l| l.strip_prefix("Server MPM:"))
        .map(|m| m.trim().to_ascii_lowercase())
        .unwrap_or_default();
    if !["prefork", "worker", "event"].contains(&mpm.as_str()) {
        return Err(ServerError::Setting(format!(
            "the MPM of {} cannot be found out (apache2 -V says '{mpm}'); does its configuration pass apache2 -t?",
            started_on.display()
        )));
    }
    Ok(ConfigLocation { config, started_on, kept, root, version, mpm })
}

pub fn not_found(server: &ServerRef) -> ServerError {
    let installed =
        ["/usr/sbin/apache2", "/usr/sbin/httpd", "/usr/local/apache2/bin/httpd"].iter().find(|p| Path::new(p).exists());
    match (installed, &server.config) {
        (None, _) => ServerError::NotFound {
            what: "no Apache is running, and none is installed (looked for /usr/sbin/apache2 and /usr/sbin/httpd)"
                .into(),
            advice: server.kind.advice.into(),
        },
        (Some(exe), Some(config)) => ServerError::NotFound {
            what: format!("no running Apache was started on {}", config.display()),
            advice: format!("start it: {exe} -f {} -k start", config.display()),
        },
        (Some(exe), None) => ServerError::NotFound {
            what: match &server.url {
                Some(url) => format!("no running Apache listens on port {}", url.port),
                None => "no Apache is running".into(),
            },
            advice: format!("start it: {exe} -k start, or name its configuration: apache:/path/apache2.conf"),
        },
    }
}

/// URL of the status page: the URL of the server's name, or the usual path on the first listener.
pub fn status_url(server: &ServerRef, listeners: &[SocketAddr]) -> Option<Url> {
    let Status::Http { paths: [usual, ..], .. } = server.kind.status else { return None };
    let url = server.url.clone().or_else(|| listeners.first().map(|a| url_of(*a)))?;
    let path = if url.path == "/" { usual } else { url.path.as_str() };
    Some(url.with_path(&if path.contains('?') { path.to_string() } else { format!("{path}?auto") }))
}
