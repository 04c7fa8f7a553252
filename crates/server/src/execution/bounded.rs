//! Runs a program to its end, for a bounded time, and reads a bounded amount of its output.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Output beyond this is not read.
const MOST_SAID: usize = 1 << 20;
/// Longest time to read remaining output after the program has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Extra time for the start, the end and the remaining output.
const START: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

/// The result of a program.
#[derive(Debug, Clone, Default)]
pub struct ProgramOutput {
    pub passed: bool,
    pub output: String,
    pub errors: String,
}

/// Runs a command in its own session. Returns `None` if it did not end in time.
///
/// A separate thread does that: a program on a user's file system may block the thread that executes it forever. The
/// program ends with that thread ([`lastdrop_probe::tool::end_with_parent`]).
pub fn run(command: Command, limit: Duration) -> io::Result<Option<ProgramOutput>> {
    let (to, answers) = mpsc::channel();
    thread::spawn(move || {
        let _ = to.send(run_here(command, limit));
    });
    answers.recv_timeout(limit + START).unwrap_or(Ok(None))
}

fn run_here(mut command: Command, limit: Duration) -> io::Result<Option<ProgramOutput>> {
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
    Ok(Some(ProgramOutput { passed: status.success(), output: heard(output), errors: heard(errors) }))
}

/// Reads a program's output while it runs.
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

    /// Returns the whole output once the program has ended. A process that it left running may hold the output open
    /// forever.
    fn heard(self) -> String {
        let until = Instant::now() + LAST_WORDS;
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(POLL);
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Ends the program and the processes it started, except those that have left its session.
fn end(child: &mut Child) {
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.kill();
    let _ = child.wait();
}
