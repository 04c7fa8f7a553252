//! Profilers of the languages that servers execute: what they need in a configuration, the code of lastdrop's that
//! switches them on and writes their records, and the command that installs a missing one.
//!
//! A record has two sorts of lines. `s`, a tab, a stack, a tab, a weight: the frames of the stack are separated by `;`,
//! the outermost caller first. `c`, a tab, a frame, a tab, a count: how often it was called. A frame is
//! `name|file|line`. Weights are microseconds; `n`, a tab, `samples`, a tab, a number says how many samples a profiler
//! that does not count calls has taken.

mod flight_events;
mod java;
mod node;
mod outside;
pub mod perl;
pub mod php;
mod python;
mod recording;
mod ruby;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use lastdrop_files::input;
use lastdrop_model::Url;
use lastdrop_probe::process::Birth;
use serde::{Deserialize, Serialize};

use crate::shadow_instance::InstanceProcesses;
use crate::{ServerError, ServerRef, apache, container, fpm};

use python::PY_SPY;
use ruby::RBSPY;

pub(crate) use recording::{Recording, user_of_workers};

pub(crate) const START_TIME: Duration = Duration::from_secs(60);
pub(crate) const ASK_TIME: Duration = Duration::from_secs(30);
/// Time for the workers of an instance to finish their records.
const END_TIME: Duration = Duration::from_secs(20);

/// A language whose functions can be profiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Language {
    Perl,
    Php,
    Python,
    Node,
    Java,
    Ruby,
}

/// What there is to know about a language.
struct LanguageRow {
    name: &'static str,
    /// Its profiler.
    tool: &'static str,
    /// The command that installs the profiler.
    installed_by: &'static str,
    /// The servers under which it is profiled.
    servers: &'static str,
}

impl Language {
    pub const ALL: [Language; 6] =
        [Language::Perl, Language::Php, Language::Python, Language::Node, Language::Java, Language::Ruby];

    fn row(self) -> LanguageRow {
        match self {
            Language::Perl => LanguageRow {
                name: "perl",
                tool: "Devel::NYTProf",
                installed_by: "on Debian: apt-get install libdevel-nytprof-perl",
                servers: "Apache with mod_perl",
            },
            Language::Php => LanguageRow {
                name: "php",
                tool: "Excimer",
                installed_by: "on Debian: apt-get install php-excimer",
                servers: "PHP-FPM, and Apache with mod_php",
            },
            Language::Python => LanguageRow {
                name: "python",
                tool: "py-spy",
                installed_by: "from PyPI, as root: pip install --break-system-packages py-spy",
                servers: "gunicorn, uWSGI, and a process of Python by pid:PID",
            },
            Language::Node => LanguageRow {
                name: "node",
                tool: "V8's profiler",
                installed_by: "it is part of Node, unless that was built without the inspector",
                servers: "Node",
            },
            Language::Java => LanguageRow {
                name: "java",
                tool: "JFR",
                installed_by: "its jcmd and jfr are part of the JDK, on Debian: apt-get install default-jdk-headless",
                servers: "Tomcat, and a JVM by pid:PID",
            },
            Language::Ruby => LanguageRow {
                name: "ruby",
                tool: "rbspy",
                installed_by: "from crates.io, as root: cargo install --locked --root /usr/local rbspy",
                servers: "Puma, and a process of Ruby by pid:PID",
            },
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its profiler.
    #[must_use]
    pub fn tool(self) -> &'static str {
        self.row().tool
    }

    /// All languages and where they are profiled.
    #[must_use]
    pub fn all_known() -> String {
        Language::ALL.map(|language| format!("{language} ({})", language.row().servers)).join(", ")
    }

    /// The error where the profiler is missing.
    #[must_use]
    pub fn missing(self) -> String {
        format!(
            "{} is not installed; {}. lastdrop profile without --code shows the functions of programs and libraries",
            self.tool(),
            self.row().installed_by
        )
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Language {
    type Err = String;

    fn from_str(text: &str) -> Result<Language, String> {
        let names = Language::ALL.map(Language::name).join(", ");
        let one = Language::ALL.into_iter().find(|language| language.name() == text);
        one.ok_or(format!("'{text}' is none of the languages that can be profiled: {names}"))
    }
}

/// What a profiler counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Time on a processor.
    Cpu,
    /// Time that passes, waits included.
    Wall,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clock::Cpu => "CPU time",
            Clock::Wall => "wall time",
        })
    }
}

/// What shall be profiled.
#[derive(Debug, Clone, Copy)]
pub struct CodeRequest<'a> {
    pub url: &'a Url,
    /// None: the server's.
    pub language: Option<Language>,
    pub clock: Clock,
    pub workers: u32,
    /// How long it is loaded while the profiler records.
    pub time: Duration,
}

/// What is needed to profile a server's code.
pub trait CodeTemplate {
    /// The server's name.
    fn server(&self) -> &str;

    fn language(&self) -> Language;

    /// What is profiled, and what the server itself notices.
    fn note(&self) -> String;

    /// Starts what is loaded, with or without the profiler, and waits until it answers as the server does.
    ///
    /// # Errors
    /// If it does not, or the profiler is missing.
    fn start(&self, profiled: bool) -> Result<Box<dyn ProfiledServer>, ServerError>;
}

/// What is loaded while it is profiled; what was started for that ends when it is dropped.
pub trait ProfiledServer {
    /// Where it is loaded; none for the URL's own address.
    fn address(&self) -> Option<SocketAddr>;

    fn master(&self) -> i32;

    /// A profiler outside of the server's processes, while it records.
    fn profiler(&self) -> Option<i32> {
        None
    }

    /// From now on the profiler records.
    ///
    /// # Errors
    /// If it cannot.
    fn begin(&mut self) -> Result<(), ServerError>;

    /// Ends it and returns the record, as this module describes it.
    ///
    /// # Errors
    /// If it does not end, or there is nothing to be read.
    fn finish(self: Box<Self>) -> Result<String, ServerError>;
}

/// Returns whether the profiler of this server's language can tell which functions allocate memory that is kept.
#[must_use]
pub fn tells_allocations(server: &ServerRef) -> bool {
    server.kind.name == "node" || server.pid.and_then(language_of_program) == Some(Language::Node)
}

/// Like [`template`], for a record of the bytes that are kept: the weights of its stacks are bytes.
///
/// # Errors
/// With the reason why there is none.
pub fn allocations(server: &ServerRef, request: &CodeRequest<'_>) -> Result<Box<dyn CodeTemplate>, ServerError> {
    if tells_allocations(server) {
        return node::template(server, request, node::RecordingSubject::Kept);
    }
    Err(impossible("its profiler does not tell which functions allocate memory; V8's does (Node)"))
}

/// Finds a server and its language, and checks that a second instance can be made.
///
/// # Errors
/// With the reason why it cannot.
pub fn template(server: &ServerRef, request: &CodeRequest<'_>) -> Result<Box<dyn CodeTemplate>, ServerError> {
    match server.kind.name {
        "apache" => apache::code_template(server, request),
        "php-fpm" => fpm::code_template(server, request),
        "gunicorn" | "uwsgi" => outside::template(&PY_SPY, server, request),
        "node" => node::template(server, request, node::RecordingSubject::Time),
        "pid" if server.pid.and_then(language_of_program) == Some(Language::Python) => {
            outside::template(&PY_SPY, server, request)
        }
        "pid" if server.pid.and_then(language_of_program) == Some(Language::Node) => {
            node::template(server, request, node::RecordingSubject::Time)
        }
        "pid" if server.pid.is_some_and(java::is_java) => java::template(server, request),
        "puma" => ruby_template(server, request),
        "pid" if server.pid.and_then(language_of_program) == Some(Language::Ruby) => ruby_template(server, request),
        "tomcat" => java::template(server, request),
        other => Err(ServerError::Setting(format!(
            "the code of {other} is not profiled: --code knows {}. Without --code the functions of programs and \
             libraries are shown",
            Language::all_known()
        ))),
    }
}

fn ruby_template(server: &ServerRef, request: &CodeRequest<'_>) -> Result<Box<dyn CodeTemplate>, ServerError> {
    if request.clock == Clock::Wall {
        return Err(impossible(
            "rbspy sees the thread that runs Ruby and none that waits, so that --wall shows nothing more",
        ));
    }
    outside::template(&RBSPY, server, request)
}

/// The language whose interpreter a process runs, by the file that it executes.
fn language_of_program(pid: i32) -> Option<Language> {
    let file = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = file.file_name()?.to_str()?;
    match name {
        "node" | "nodejs" => Some(Language::Node),
        _ if name.starts_with("ruby") => Some(Language::Ruby),
        _ => name.starts_with("python").then_some(Language::Python),
    }
}

/// True if an examination may profile a server's code although nobody asked for that. Not a program of Node: its second
/// instance could do work that is not a request's.
#[must_use]
pub fn is_profiled_unasked(server: &ServerRef) -> bool {
    ["apache", "php-fpm", "gunicorn", "uwsgi", "puma"].contains(&server.kind.name)
}

/// Ends what a killed lastdrop has left running beside this folder of its own.
pub(crate) fn end_left(folder: &Path) {
    java::end_left(folder);
}

/// Takes away what all stacks begin with: the start of the server, which says nothing. Each keeps its last frame.
fn without_shared_start(stacks: &mut [(Vec<String>, u64)]) {
    let Some((first, _)) = stacks.first().filter(|_| stacks.len() > 1).cloned() else { return };
    let alike = |n: &usize| stacks.iter().all(|(frames, _)| frames.len() > n + 1 && frames[*n] == first[*n]);
    let shared = (0..).take_while(alike).count();
    for (frames, _) in stacks {
        frames.drain(..shared);
    }
}

/// The line of each function that most of its samples have: those where it ran itself before those where it had called
/// another. A stack has functions with the lines where they were, the outermost caller first, and a weight.
fn likely_lines<'a>(stacks: impl Iterator<Item = (&'a [(String, u32)], u64)>) -> HashMap<&'a str, u32> {
    let mut weights: HashMap<&str, HashMap<u32, (u64, u64)>> = HashMap::new();
    for (stack, weight) in stacks {
        for (depth, (name, line)) in stack.iter().rev().enumerate() {
            let (own, all) = weights.entry(name).or_default().entry(*line).or_default();
            *own += if depth == 0 { weight } else { 0 };
            *all += weight;
        }
    }
    let likely = |lines: HashMap<u32, (u64, u64)>| {
        let best = lines.into_iter().max_by_key(|(line, weight)| (*weight, Reverse(*line)));
        best.map_or(0, |(line, _)| line)
    };
    weights.into_iter().map(|(name, lines)| (name, likely(lines))).collect()
}

/// A running second instance; it ends when dropped.
#[derive(Debug)]
pub(crate) struct SecondInstance {
    pub address: SocketAddr,
    pub processes: InstanceProcesses,
    pub recording: Recording,
    /// What else the instance needs to be reached.
    pub _front: Option<fpm::Gateway>,
}

/// What templates of second instances say.
pub(crate) fn note_about(workers: u32) -> String {
    format!(
        "on a second instance with {workers} workers and the same configuration; nothing was loaded into the server's own workers"
    )
}

impl ProfiledServer for SecondInstance {
    fn address(&self) -> Option<SocketAddr> {
        Some(self.address)
    }

    fn master(&self) -> i32 {
        self.processes.master()
    }

    fn begin(&mut self) -> Result<(), ServerError> {
        self.recording.begin()
    }

    fn finish(mut self: Box<Self>) -> Result<String, ServerError> {
        if !self.processes.end(END_TIME) {
            return Err(ServerError::Setting("of its second instance: it does not end".into()));
        }
        match self.recording.language {
            Language::Php => php::read(&self.recording),
            _ => perl::read(&self.recording),
        }
    }
}

/// The error where a server's code cannot be profiled.
pub(crate) fn impossible(why: &str) -> ServerError {
    ServerError::Setting(format!("its code is not profiled: {why}"))
}

/// Checks that a second instance of a server may be started, and loaded by this URL.
pub(crate) fn check_instance(birth: &Birth, url: &Url) -> Result<(), ServerError> {
    if url.tls {
        return Err(impossible("a second instance is loaded by http only; give --url an http URL"));
    }
    check_rights(birth)
}

/// Checks that a server's code may be profiled from here.
pub(crate) fn check_rights(birth: &Birth) -> Result<(), ServerError> {
    let no = |why: &str| Err(impossible(why));
    let euid = nix::unistd::geteuid();
    if !euid.is_root() && euid.as_raw() != birth.uid {
        return no("only root or the server's user can do that");
    }
    if container::root_of(birth.pid).is_some() {
        return no("it runs in a container");
    }
    Ok(())
}

/// The error where an instance answers otherwise than its server.
pub(crate) fn unlike(status: u16, own: u16) -> ServerError {
    ServerError::Setting(format!("of its second instance: it answers {status} where the server answers {own}"))
}

fn read_lossy(path: &Path) -> Result<String, ServerError> {
    let mut bytes = Vec::new();
    let read = input::open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(ServerError::io(format!("cannot read {}", path.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
