//! A running Apache: what its program, its command line and its configuration say of where everything is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lastdrop_model::Url;
use lastdrop_probe::process::Birth;

use super::{ABOUT, MARK};
use crate::kind::Status;
use crate::meant::url_of;
use crate::{ServerError, ServerRef};

/// The word after a flag, `-f x` or `-fx`.
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

/// What the program says of itself with some flags, in the environment of the running server.
///
/// # Errors
/// When it cannot be run.
pub fn ask(birth: &Birth, file: Option<&Path>, flags: &[&str]) -> Result<Output, ServerError> {
    let mut command = question(birth, file, flags);
    let exe = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(ServerError::io(format!("cannot run {exe}")))
}

/// The command that asks it.
pub fn question(birth: &Birth, file: Option<&Path>, flags: &[&str]) -> Command {
    let exe = birth.exe.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    let mut command = Command::new(&exe);
    command.env_clear().envs(birth.environment.iter().map(|(k, v)| (k, v))).current_dir(&birth.directory);
    // Defines and the root of the running server matter to the meaning of its configuration.
    let mut words = birth.argv.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-D" | "-d" | "-c" | "-C" => {
                command.arg(word).args(words.next());
            }
            "-f" | "-k" | "-E" | "-e" => {
                words.next();
            }
            w if ["-D", "-d", "-c", "-C"].iter().any(|f| w.starts_with(f)) && w != "-DFOREGROUND" => {
                command.arg(w);
            }
            _ => {}
        }
    }
    if let Some(file) = file {
        command.arg("-f").arg(file);
    }
    command.args(flags);
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The quoted value of a `-D NAME="value"` line of `-V`.
fn compiled(output: &str, name: &str) -> Option<PathBuf> {
    let start = output.find(&format!("-D {name}=\""))? + name.len() + 5;
    output[start..].split('"').next().map(PathBuf::from)
}

/// Where a running server's configuration is.
pub struct Located {
    /// Its owner's configuration.
    pub config: PathBuf,
    /// The file on its command line.
    pub started_on: PathBuf,
    pub kept: Option<PathBuf>,
    pub root: PathBuf,
    pub version: String,
    pub mpm: String,
}

/// The file on a server's command line, and the folder by which names go.
///
/// # Errors
/// When the program cannot be asked where it has them by default.
pub fn started_on(birth: &Birth) -> Result<(PathBuf, PathBuf), ServerError> {
    let file = flag_value(&birth.argv, "-f").map(PathBuf::from);
    // -V reads the configuration, for the MPM may be a module; where the default one is broken or missing it still
    // prints how the program was built.
    let built = text(&ask(birth, None, &["-V"])?.stdout);
    let root = flag_value(&birth.argv, "-d")
        .map(PathBuf::from)
        .or_else(|| compiled(&built, "HTTPD_ROOT"))
        .unwrap_or_else(|| PathBuf::from("/etc/apache2"));
    let file = file.or_else(|| compiled(&built, "SERVER_CONFIG_FILE")).unwrap_or_else(|| PathBuf::from("apache2.conf"));
    Ok((root.join(file), root))
}

pub fn locate(birth: &Birth) -> Result<Located, ServerError> {
    let output = ask(birth, None, &["-v"])?;
    let version = text(&output.stdout)
        .lines()
        .find_map(|l| l.strip_prefix("Server version: "))
        .unwrap_or("Apache")
        .trim()
        .to_string();
    let (started_on, root) = started_on(birth)?;
    let content = std::fs::read_to_string(&started_on)
        .map_err(ServerError::io(format!("cannot read {}", started_on.display())))?;
    let kept = content.starts_with(MARK).then(|| started_on.clone());
    let config = content
        .lines()
        .find_map(|l| l.strip_prefix(ABOUT))
        .filter(|_| kept.is_some())
        .map_or_else(|| started_on.clone(), PathBuf::from);
    let said = text(&ask(birth, Some(&started_on), &["-V"])?.stdout);
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
    Ok(Located { config, started_on, kept, root, version, mpm })
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

/// Where the status page is: the URL of the name, or the usual path on the first listener.
pub fn status_url(server: &ServerRef, listeners: &[SocketAddr]) -> Option<Url> {
    let Status::Http { paths: [usual, ..], .. } = server.kind.status else { return None };
    let url = server.url.clone().or_else(|| listeners.first().map(|a| url_of(*a)))?;
    let path = if url.path == "/" { usual } else { url.path.as_str() };
    Some(url.with_path(&if path.contains('?') { path.to_string() } else { format!("{path}?auto") }))
}
