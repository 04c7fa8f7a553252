//! Finds a running server for looking at it: its processes, its listeners, its status page. Any server, tunable or not.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_model::{ServerKind, ServerRef, Url};
use lastdrop_probe::fastcgi::FpmSocket;
use lastdrop_probe::listeners;
use lastdrop_probe::process::{self, ProcessInfo};
use lastdrop_probe::status::StatusSource;

use crate::ServerError;
use crate::adapter::{choose, discover, masters};
use crate::apache::Apache;

/// A server that runs.
#[derive(Debug, Clone)]
pub struct Found {
    /// As it is named on a command line.
    pub name: String,
    pub kind: ServerKind,
    /// `Apache/2.4.62 (Debian), prefork`; the program's name where no more is known.
    pub software: String,
    pub master: i32,
    /// Workers are processes of one request each.
    pub prefork: bool,
    pub listeners: Vec<SocketAddr>,
    pub status: Option<StatusSource>,
}

impl Found {
    /// Ports that it listens on.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.listeners.iter().map(SocketAddr::port).collect()
    }
}

/// Where nginx pages of stub_status are by habit.
const STUB_STATUS: &[&str] = &["/nginx_status", "/stub_status", "/basic_status"];
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Finds the running server that a name means.
///
/// # Errors
/// When there is none, more than one, or it may not be looked at.
pub fn find(server: &ServerRef) -> Result<Found, ServerError> {
    find_any(server).map_err(|e| match e {
        ServerError::NotFound { what, advice } if !nix::unistd::geteuid().is_root() => ServerError::NotFound {
            what,
            advice: format!("{advice}; one of another user is found as root (sudo), or by its process: pid:1234"),
        },
        other => other,
    })
}

fn find_any(server: &ServerRef) -> Result<Found, ServerError> {
    match server.kind {
        ServerKind::Apache | ServerKind::Target => {
            let adapter = discover(server)?;
            let facts = adapter.facts();
            Ok(Found {
                name: facts.name.clone(),
                kind: server.kind,
                software: match server.kind {
                    ServerKind::Target => facts.version.clone(),
                    _ => format!("{}, {}", facts.version, facts.model),
                },
                master: facts.birth.pid,
                prefork: facts.model == "prefork",
                listeners: facts.listeners.clone(),
                status: facts.status_url.clone().map(StatusSource::Apache),
            })
        }
        ServerKind::Nginx => nginx(server),
        ServerKind::Fpm => fpm(server),
        ServerKind::Pid(pid) => {
            let info = process::look(pid).ok_or_else(|| ServerError::NotFound {
                what: format!("no process has the id {pid}"),
                advice: "look for it: ps -e".into(),
            })?;
            let found = by_process(&info);
            Ok(Found { name: format!("pid:{pid}"), kind: server.kind, master: pid, ..found })
        }
    }
}

/// The server that listens at an address of this machine, found by the owner of the socket. None where nobody listens
/// there or its owner may not be seen.
#[must_use]
pub fn find_listening_at(address: &SocketAddr) -> Option<Found> {
    Some(by_process(&process::look(listeners::owner(address)?)?))
}

/// What can be told of a process without asking the server anything.
fn by_process(info: &ProcessInfo) -> Found {
    let program = program(info);
    let title = info.argv.first().map(String::as_str).unwrap_or_default();
    let is_target = info.argv.get(1).is_some_and(|a| a == "target") && program == "lastdrop";
    let kind = if Apache::is_program(&program) {
        ServerKind::Apache
    } else if program == "nginx" {
        ServerKind::Nginx
    } else if program.starts_with("php-fpm") {
        ServerKind::Fpm
    } else if is_target {
        ServerKind::Target
    } else {
        ServerKind::Pid(info.pid)
    };
    let config = match kind {
        ServerKind::Apache => flag(&info.argv, "-f").map(PathBuf::from),
        ServerKind::Target => flag(&info.argv, "--config").map(PathBuf::from),
        ServerKind::Fpm => title_config(title),
        _ => None,
    };
    let name = ServerRef { kind, config, url: None }.to_string();
    Found {
        name,
        kind,
        software: program,
        master: info.pid,
        prefork: matches!(kind, ServerKind::Target | ServerKind::Fpm),
        listeners: listeners::of_process(info.pid).unwrap_or_default(),
        status: None,
    }
}

fn program(info: &ProcessInfo) -> String {
    let name = info.exe.as_ref().and_then(|e| e.file_name()).map(|n| n.to_string_lossy().into_owned());
    let name = name.or_else(|| {
        Path::new(info.argv.first()?.split(':').next()?).file_name().map(|n| n.to_string_lossy().into_owned())
    });
    name.unwrap_or_default().trim_end_matches(" (deleted)").to_string()
}

fn flag(argv: &[String], name: &str) -> Option<String> {
    argv.windows(2).find(|w| w[0] == name).map(|w| w[1].clone())
}

fn not_found(program: &str, advice: &str) -> impl FnOnce() -> ServerError {
    let (what, advice) = (format!("no running {program} is meant"), advice.to_string());
    move || ServerError::NotFound { what, advice }
}

/// One master: the process, its configuration, its listeners.
fn one(
    server: &ServerRef,
    found: Vec<ProcessInfo>,
    config: fn(&ProcessInfo) -> Option<PathBuf>,
    advice: &str,
) -> Result<(ProcessInfo, Option<PathBuf>, Vec<SocketAddr>), ServerError> {
    let candidates = found
        .into_iter()
        .map(|p| {
            let listeners = listeners::of_process(p.pid).unwrap_or_default();
            let config = config(&p);
            (p, config, listeners)
        })
        .collect();
    choose(candidates, server, not_found(&server.kind.to_string(), advice))
}

fn nginx(server: &ServerRef) -> Result<Found, ServerError> {
    // nginx writes its command line into its title: "nginx: master process /usr/sbin/nginx -c FILE".
    let config = |p: &ProcessInfo| {
        let title = p.argv.join(" ");
        let mut words = title.split_whitespace().skip_while(|w| *w != "-c");
        Some(PathBuf::from(words.nth(1).unwrap_or("/etc/nginx/nginx.conf")))
    };
    let (info, config, listeners) = one(server, masters(&["nginx"])?, config, "start it, or name it by pid:1234")?;
    let page = |url: Url| {
        let source = StatusSource::Nginx(url);
        source.read(false, ASK_TIMEOUT).is_ok().then_some(source)
    };
    let status = match &server.url {
        Some(url) if url.path != "/" => Some(StatusSource::Nginx(url.clone())),
        given => {
            let base = given.clone().or_else(|| listeners.first().map(|a| url_of(*a)));
            base.and_then(|base| STUB_STATUS.iter().find_map(|path| page(base.with_path(path))))
        }
    };
    Ok(Found {
        name: ServerRef { kind: ServerKind::Nginx, config, url: None }.to_string(),
        kind: ServerKind::Nginx,
        software: "nginx".into(),
        master: info.pid,
        prefork: false,
        listeners,
        status,
    })
}

fn url_of(address: SocketAddr) -> Url {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    Url { tls: false, host: ip.to_string(), port: address.port(), path: "/".into() }
}

/// "php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)"
fn title_config(title: &str) -> Option<PathBuf> {
    Some(PathBuf::from(title.split_once('(')?.1.split_once(')')?.0))
}

fn fpm(server: &ServerRef) -> Result<Found, ServerError> {
    let mut programs = process::all();
    programs.retain(|p| program(p).starts_with("php-fpm"));
    let pids: Vec<i32> = programs.iter().map(|p| p.pid).collect();
    programs.retain(|p| !pids.contains(&p.parent));
    let config = |p: &ProcessInfo| title_config(p.argv.first()?);
    let (info, config, listeners) = one(server, programs, config, "start it, or name it by pid:1234")?;
    let status = match &server.url {
        Some(url) => {
            let address = std::net::ToSocketAddrs::to_socket_addrs(&(url.host.as_str(), url.port));
            address.ok().and_then(|mut a| a.next()).map(|a| StatusSource::Fpm {
                socket: FpmSocket::Tcp(a),
                path: if url.path == "/" { "/status".into() } else { url.path.clone() },
            })
        }
        None => config.as_ref().and_then(|c| fpm_status(c)),
    };
    Ok(Found {
        name: ServerRef { kind: ServerKind::Fpm, config, url: None }.to_string(),
        kind: ServerKind::Fpm,
        software: program(&info),
        master: info.pid,
        prefork: true,
        listeners,
        status,
    })
}

/// The status page of the first pool that has one.
fn fpm_status(config: &Path) -> Option<StatusSource> {
    let mut lines: Vec<String> = Vec::new();
    for line in fs::read_to_string(config).ok()?.lines() {
        match line.trim().strip_prefix("include").and_then(|l| l.trim_start().strip_prefix('=')) {
            Some(pattern) => {
                for file in glob::glob(pattern.trim().trim_matches('"')).ok()?.filter_map(Result::ok) {
                    lines.extend(fs::read_to_string(file).unwrap_or_default().lines().map(str::to_string));
                }
            }
            None => lines.push(line.to_string()),
        }
    }
    let (mut listen, mut path, mut own, mut pool) = (None, None, None, String::new());
    let source = |listen: &Option<String>, path: &Option<String>, own: &Option<String>, pool: &str| {
        let at = own.as_ref().or(listen.as_ref())?.replace("$pool", pool);
        Some(StatusSource::Fpm { socket: fpm_socket(&at)?, path: path.clone()? })
    };
    for line in &lines {
        let line = line.split(';').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            if let Some(found) = source(&listen, &path, &own, &pool) {
                return Some(found);
            }
            (listen, path, own, pool) = (None, None, None, name.to_string());
        } else if let Some((key, value)) = line.split_once('=') {
            let value = Some(value.trim().trim_matches('"').to_string());
            match key.trim() {
                "listen" => listen = value,
                "pm.status_path" => path = value,
                "pm.status_listen" => own = value,
                _ => {}
            }
        }
    }
    source(&listen, &path, &own, &pool)
}

fn fpm_socket(text: &str) -> Option<FpmSocket> {
    if text.starts_with('/') {
        return Some(FpmSocket::Unix(text.into()));
    }
    let address = if text.contains(':') { text.to_string() } else { format!("127.0.0.1:{text}") };
    address.parse().ok().map(FpmSocket::Tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_page_of_a_pool_is_found_through_includes() {
        let dir = tempfile::tempdir().expect("a folder");
        let pool = "[quiet]\nlisten = 9001\n[www] ; main\nlisten = /run/php/$pool.sock\n; pm.status_path = /no\npm.status_path = /status\n";
        fs::write(dir.path().join("www.conf"), pool).expect("written");
        let main = dir.path().join("php-fpm.conf");
        fs::write(&main, format!("[global]\npid = x\ninclude={}/www*.conf\n", dir.path().display())).expect("written");
        let expected =
            StatusSource::Fpm { socket: FpmSocket::Unix("/run/php/www.sock".into()), path: "/status".into() };
        assert_eq!(fpm_status(&main), Some(expected));
        assert_eq!(fpm_socket("9000"), Some(FpmSocket::Tcp("127.0.0.1:9000".parse().expect("an address"))));
    }

    #[test]
    fn titles_tell_the_configuration() {
        let title = "php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)";
        assert_eq!(title_config(title), Some("/etc/php/8.2/fpm/php-fpm.conf".into()));
    }
}
