//! A second instance of a server that runs next to the first and touches nothing of it. Its whole configuration is one
//! text in which every path and port of the first is replaced. It lives in a temporary folder and ends when its handle
//! is dropped.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::status::{self, Answer};
use tempfile::TempDir;

use super::config::split_words;
use crate::execution::Question;
use crate::shadow_instance::{InstanceProcesses, POLL};
use crate::{ServerError, leftover_folders, private};

/// Directives that name files the master writes; they point into the instance's folder.
const FILES: &[&str] = &[
    "cacheroot",
    "customlog",
    "davlockdb",
    "errorlog",
    "forensiclog",
    "globallog",
    "rewritelog",
    "scoreboardfile",
    "scriptlog",
    "scriptsock",
    "transferlog",
];
/// Directives for ports and for files that exist once per server; the instance sets its own.
const OURS: &[&str] = &["defaultruntimedir", "listen", "lockfile", "mutex", "pidfile"];

/// How an instance differs from the server, besides its ports and files.
#[derive(Debug, Clone, Copy, Default)]
pub struct InstanceVariant<'a> {
    /// Modules that it does not load.
    pub without: &'a [String],
    /// Lines that come directly after a module is loaded, before all others about it.
    pub after: Option<(&'a str, &'a str)>,
    /// Workers of prefork, all started at once and never replaced; otherwise a small pool.
    pub workers: Option<u32>,
}

/// Where an instance listens, and which URL it stands in for.
#[derive(Debug)]
pub struct InstanceAddress {
    pub folder: PathBuf,
    pub port: u16,
    pub url_port: u16,
    /// Addresses of the URL's host.
    pub addresses: Vec<IpAddr>,
    pub threaded: bool,
}

/// Rewrites a flat configuration for another folder and port.
pub fn isolated(flat: &[u8], place: &InstanceAddress, variant: InstanceVariant<'_>) -> Vec<u8> {
    let folder = place.folder.display();
    let mut out = format!("DefaultRuntimeDir \"{folder}\"\n").into_bytes();
    for line in logical_lines(flat) {
        let words = split_words(&line);
        let word = |n: usize| words.get(n).map(|(text, ..)| String::from_utf8_lossy(text).into_owned());
        let name = word(0).unwrap_or_default().to_ascii_lowercase();
        if name == "loadmodule" && word(1).is_some_and(|module| variant.without.contains(&module))
            || OURS.contains(&name.as_str())
        {
            continue;
        }
        match words.get(1) {
            Some((_, _, end)) if FILES.contains(&name.as_str()) => {
                out.extend(format!("{name} \"{folder}/{name}\"").bytes());
                out.extend(&line[*end..]);
            }
            _ if name == "<virtualhost" => {
                let text = String::from_utf8_lossy(&line).into_owned();
                let all: Vec<String> = text
                    .trim()
                    .trim_end_matches('>')
                    .split_whitespace()
                    .skip(1)
                    .map(|a| host_address(a, place))
                    .collect();
                out.extend(format!("<VirtualHost {}>", all.join(" ")).bytes());
            }
            _ => out.extend(line),
        }
        out.push(b'\n');
        if let Some((_, lines)) =
            variant.after.filter(|(module, _)| name == "loadmodule" && word(1).is_some_and(|m| m == *module))
        {
            out.extend(lines.bytes());
        }
    }
    let pool = if let Some(n) = variant.workers {
        &format!(
            "ServerLimit {n}\nMaxRequestWorkers {n}\nStartServers {n}\nMinSpareServers {n}\nMaxSpareServers {}\n\
             MaxConnectionsPerChild 0\n",
            n + 1
        )
    } else if place.threaded {
        "StartServers 1\nServerLimit 2\nThreadsPerChild 4\nMaxRequestWorkers 8\nMinSpareThreads 1\nMaxSpareThreads 8\n"
    } else {
        "StartServers 1\nServerLimit 4\nMaxRequestWorkers 4\nMinSpareServers 1\nMaxSpareServers 2\n"
    };
    out.extend(format!("Listen 127.0.0.1:{}\nPidFile \"{folder}/pid\"\n{pool}", place.port).bytes());
    out
}

/// Joins continuation lines.
pub fn logical_lines(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut all, mut open) = (Vec::new(), false);
    for line in text.split(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let part = line.strip_suffix(b"\\").unwrap_or(line);
        match all.last_mut() {
            Some(last) if open => Vec::extend(last, part),
            _ => all.push(part.to_vec()),
        }
        open = part.len() < line.len();
    }
    all
}

/// Address of a virtual host, moved to the instance's port if the URL leads to it.
fn host_address(address: &str, place: &InstanceAddress) -> String {
    let address = address.trim_matches('"');
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (address, "*"),
    };
    let is_port = port == "*" || port.starts_with("${") || port.parse() == Ok(place.url_port);
    if !is_port {
        return address.to_string();
    }
    let any = host == "*" || host.eq_ignore_ascii_case("_default_");
    let own =
        host.trim_matches(['[', ']']).parse().is_ok_and(|ip: IpAddr| place.addresses.contains(&ip.to_canonical()));
    match (any, own) {
        (true, _) => format!("{host}:{}", place.port),
        (_, true) => format!("127.0.0.1:{}", place.port),
        _ => address.to_string(),
    }
}

/// What is needed to start instances of one server.
#[derive(Debug)]
pub struct InstanceTemplate {
    folder: TempDir,
    place: InstanceAddress,
    birth: Birth,
    argv: Vec<String>,
    /// The purpose of the instances, in the list of executed programs.
    pub why: &'static str,
    /// Environment variables that an instance has besides those of a question.
    pub variables: Vec<(String, String)>,
}

impl InstanceTemplate {
    /// `argv` returns the command line that starts the server on a given file. `for_what` is part of the name of the
    /// instance's folder.
    pub fn new(
        for_what: &str,
        birth: &Birth,
        url: &Url,
        threaded: bool,
        argv: impl Fn(&Path) -> Vec<String>,
    ) -> Result<InstanceTemplate, ServerError> {
        let cannot = || ServerError::io("cannot make a place for a second instance");
        let folder = leftover_folders::create(for_what).map_err(cannot())?;
        // Workers of another user reach sockets in the folder but cannot list it.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).map_err(cannot())?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(cannot())?.port();
        let addresses =
            (url.host.as_str(), url.port).to_socket_addrs().into_iter().flatten().map(|a| a.ip().to_canonical());
        let place = InstanceAddress {
            folder: folder.path().into(),
            port,
            url_port: url.port,
            addresses: addresses.collect(),
            threaded,
        };
        let mut argv = process::without(&argv(&folder.path().join("conf")), &["-k"]);
        argv.push("-DFOREGROUND".into());
        Ok(InstanceTemplate {
            folder,
            place,
            birth: birth.clone(),
            argv,
            why: "a second Apache shows which modules it needs",
            variables: Vec::new(),
        })
    }

    /// Path for a temporary file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the configuration and waits until it answers.
    ///
    /// # Errors
    /// In words, if it does not answer by the deadline.
    pub fn start(
        &self,
        flat: &[u8],
        variant: InstanceVariant<'_>,
        url: &Url,
        until: Instant,
    ) -> Result<Instance, String> {
        let file = self.file("conf");
        private::write_for_question(&self.birth, &file, &isolated(flat, &self.place, variant))
            .map_err(|e| e.to_string())?;
        let mut question = Question::new(&self.birth, self.why).argv(&self.argv);
        for (name, value) in &self.variables {
            question = question.variable(name, value);
        }
        let question = question.reads(self.birth.code.iter().cloned()).like_the_server();
        let mut command = question.command().map_err(|e| e.to_string())?;
        let said = self.file("said");
        let errors = std::fs::File::create(&said).map_err(|e| e.to_string())?;
        command.stdout(Stdio::null()).stderr(errors);
        let began = Instant::now();
        let processes = InstanceProcesses::start(command).map_err(|e| e.to_string())?;
        let mut instance =
            Instance { processes, at: (Ipv4Addr::LOCALHOST, self.place.port).into(), started: Duration::ZERO };
        loop {
            if let Some(status) = instance.processes.ended() {
                let said = std::fs::read_to_string(&said).unwrap_or_default();
                let logged = std::fs::read_to_string(self.file("errorlog")).unwrap_or_default();
                let last = said.lines().chain(logged.lines()).last().unwrap_or_default();
                return Err(format!("it does not start ({status}): {last}"));
            }
            if Instant::now() >= until {
                return Err("it did not answer in time".into());
            }
            if instance.ask(url, until).is_ok() {
                instance.started = began.elapsed();
                return Ok(instance);
            }
            thread::sleep(POLL);
        }
    }
}

/// A running instance; it ends when dropped.
#[derive(Debug)]
pub struct Instance {
    pub processes: InstanceProcesses,
    pub at: SocketAddr,
    /// Time from the start to the first answer.
    pub started: Duration,
}

impl Instance {
    pub fn ask(&self, url: &Url, until: Instant) -> Result<Answer, status::AskError> {
        status::get_at(self.at, url, until.saturating_duration_since(Instant::now()).max(POLL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_touches_nothing_of_the_server() {
        let place = InstanceAddress {
            folder: "/tmp/x".into(),
            port: 7000,
            url_port: 80,
            addresses: vec![IpAddr::from([10, 0, 0, 1])],
            threaded: false,
        };
        let flat =
            b"PidFile /run/a.pid\nListen 80\nListen 443\nLoadModule a_module a.so\nLoadModule \\\n b_module b.so\n\
            <VirtualHost *:80 10.0.0.1:80 10.0.0.2:80 _default_:443>\nCustomLog \"|/bin/rotate x\" combined env=!no\n\
            ErrorLog /var/log/e\n</VirtualHost>\nMutex file:/run/lock default\n";
        let without = ["b_module".to_string()];
        let variant = InstanceVariant { without: &without, ..InstanceVariant::default() };
        let text = String::from_utf8(isolated(flat, &place, variant)).expect("text");
        let (config, ours) = text.split_once("Listen").expect("ours");
        assert_eq!(
            config,
            "DefaultRuntimeDir \"/tmp/x\"\nLoadModule a_module a.so\n\
             <VirtualHost *:7000 127.0.0.1:7000 10.0.0.2:80 _default_:443>\ncustomlog \"/tmp/x/customlog\" combined env=!no\n\
             errorlog \"/tmp/x/errorlog\"\n</VirtualHost>\n\n"
        );
        assert!(ours.starts_with(" 127.0.0.1:7000\nPidFile \"/tmp/x/pid\"\n"), "{ours}");
        let variant = InstanceVariant { after: Some(("a_module", "PerlModule X\n")), workers: Some(3), ..variant };
        let text = String::from_utf8(isolated(flat, &place, variant)).expect("text");
        assert!(text.contains("LoadModule a_module a.so\nPerlModule X\n<VirtualHost"), "{text}");
        assert!(text.contains("\nStartServers 3\n") && text.ends_with("MaxConnectionsPerChild 0\n"), "{text}");
    }
}
