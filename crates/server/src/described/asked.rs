//! Asks a program about a configuration: as the server's own user, with its environment, in its folder, for a bounded time.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_probe::process::Birth;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::ServerError;
use crate::adapter::Facts;
use crate::restart::{self, Launch};

/// How long a test of a configuration may take: some load the whole application.
const LIMIT: Duration = Duration::from_secs(60);
/// What it says beyond this is not read.
const MOST_SAID: usize = 1 << 20;
/// How long what it has said may take to be read once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a program has said.
pub struct Told {
    pub command: String,
    pub passed: bool,
    /// On its standard error; where there is nothing, on its standard output.
    pub said: String,
    output: String,
}

impl Told {
    /// The value of a setting: `name = value`.
    pub fn value(&self, name: &str) -> Option<String> {
        self.output.lines().rev().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_string())
        })
    }
}

/// Asks with a command of a kind. None: the kind has no such command, or nobody knows the command line that it needs.
pub fn ask(words: &[&str], facts: &Facts, launch: &Launch, file: &Path) -> Result<Option<Told>, ServerError> {
    if words.is_empty() || (words.contains(&"{argv}") && launch.argv.is_empty()) {
        return Ok(None);
    }
    let birth = &facts.birth;
    let program = birth.exe.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    let config = facts.config.as_ref().map(|c| c.display().to_string()).unwrap_or_default();
    let mut argv: Vec<String> = Vec::new();
    for word in words {
        match *word {
            "{argv}" => argv.extend(launch.argv.clone()),
            word => argv.push(
                word.replace("{program}", &program)
                    .replace("{config}", &config)
                    .replace("{file}", &file.display().to_string()),
            ),
        }
    }
    let shown = argv.join(" ");
    // The first word is what the server calls itself; its program may be an interpreter.
    let own = matches!(words.first(), Some(&"{argv}" | &"{program}"));
    let exe = if own { birth.exe.clone() } else { argv.first().map(PathBuf::from).unwrap_or_default() };
    let birth = Birth { exe, environment: launch.environment.clone(), ..birth.clone() };
    let mut command = restart::command(&birth, &argv, true);
    let told = bounded(&mut command).map_err(ServerError::io(format!("cannot run {shown}")))?;
    let Some((passed, output, errors)) = told else {
        return Err(ServerError::Timeout {
            what: format!("{shown} did not end"),
            limit: LIMIT,
            advice: "run it by hand".into(),
        });
    };
    let said = if errors.trim().is_empty() { output.trim().to_string() } else { errors.trim().to_string() };
    Ok(Some(Told { command: shown, passed, said, output }))
}

/// Runs a command to its end; None when that did not come in time.
fn bounded(command: &mut Command) -> std::io::Result<Option<(bool, String, String)>> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let output = child.stdout.take().map(Listener::start);
    let errors = child.stderr.take().map(Listener::start);
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            end(&mut child);
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    };
    let heard = |listener: Option<Listener>| listener.map(Listener::heard).unwrap_or_default();
    Ok(Some((status.success(), heard(output), heard(errors))))
}

/// Takes what a program says while it runs.
struct Listener {
    thread: thread::JoinHandle<()>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Listener {
    fn start(mut from: impl Read + Send + 'static) -> Listener {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&bytes);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                let mut bytes = to.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MOST_SAID.saturating_sub(bytes.len());
                bytes.extend_from_slice(&buffer[..n.min(room)]);
            }
        });
        Listener { thread, bytes }
    }

    /// All of it, once the program has ended; what that has left running may hold its output open for good.
    fn heard(self) -> String {
        let until = Instant::now() + LAST_WORDS;
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// It has a session of its own: whoever it has started ends with it.
fn end(child: &mut Child) {
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.kill();
    let _ = child.wait();
}
