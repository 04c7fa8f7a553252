//! Runs a program to its end: for a bounded time, and keeping a bounded part of what it says.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// What it says beyond this is not read.
const MOST_SAID: usize = 1 << 20;
/// How long what it has said may take to be read once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long its start, its end and its last words may take besides.
const START: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

/// What a program answered.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub passed: bool,
    pub output: String,
    pub errors: String,
}

/// Runs a command, which has a session of its own; None when it did not end in time.
///
/// A thread of its own does that: a program on a file system of a user's may keep whoever executes it waiting for good. The program
/// ends with that thread (`end_with_parent`).
pub fn run(command: Command, limit: Duration) -> io::Result<Option<Answer>> {
    let (to, answers) = mpsc::channel();
    thread::spawn(move || {
        let _ = to.send(run_here(command, limit));
    });
    answers.recv_timeout(limit + START).unwrap_or(Ok(None))
}

fn run_here(mut command: Command, limit: Duration) -> io::Result<Option<Answer>> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let output = child.stdout.take().map(Listener::start);
    let errors = child.stderr.take().map(Listener::start);
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            end(&mut child);
            return Ok(None);
        }
        thread::sleep(POLL);
    };
    let heard = |listener: Option<Listener>| listener.map(Listener::heard).unwrap_or_default();
    Ok(Some(Answer { passed: status.success(), output: heard(output), errors: heard(errors) }))
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
            thread::sleep(POLL);
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Whoever it has started ends with it, unless it has left its session.
fn end(child: &mut Child) {
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.kill();
    let _ = child.wait();
}
