//! Commands whose terminal disappears, which are stopped, or whose terminal has an absurd size. The terminal is a real
//! pseudo-terminal.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::common::{Folder, Target, processes_with, signal, wait_until};
use serde_json::Value;

/// The relation of a process to its terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalRole {
    /// The leader of its session: the kernel sends it SIGHUP when the terminal disappears.
    Session,
    /// Only writes to it: no signal comes.
    Output,
    /// With SIGHUP ignored, as by nohup and `disown`.
    HangupIgnored,
}

/// A process on a terminal of its own.
struct TerminalProcess {
    child: Child,
    /// The thread that reads the other end.
    reader: Option<JoinHandle<()>>,
    gone: Arc<AtomicBool>,
    /// Our handle of the process's end.
    terminal: File,
    /// All of its output.
    written: Arc<Mutex<Vec<u8>>>,
}

fn resize(terminal: &File, rows: u16, columns: u16) {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the size is there for the time of the call.
    assert_eq!(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
}

/// Reads the output of a process until the terminal is to disappear.
fn read_until(gone: &AtomicBool, mut master: File, to: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 64 << 10];
    while !gone.load(Ordering::SeqCst) {
        let mut ready = libc::pollfd { fd: master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, as it is told.
        if unsafe { libc::poll(&raw mut ready, 1, 10) } <= 0 {
            continue;
        }
        match master.read(&mut buffer) {
            Ok(n @ 1..) => to.lock().expect("nobody panicked").extend_from_slice(&buffer[..n]),
            // Its processes have ended.
            _ => return,
        }
    }
}

impl TerminalProcess {
    fn start(folder: &Folder, args: &[&str], tie: TerminalRole, rows: u16, columns: u16) -> TerminalProcess {
        let (mut master, mut slave) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: it writes two descriptors that nobody else has; name and settings may be left out.
        let (master, slave) = unsafe {
            assert_eq!(libc::openpty(&raw mut master, &raw mut slave, none, none.cast(), none.cast()), 0);
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
            (File::from_raw_fd(master), File::from_raw_fd(slave))
        };
        resize(&slave, rows, columns);
        let mut command = folder.lastdrop(args);
        let other = |file: &File| Stdio::from(file.try_clone().expect("a second handle"));
        command.stdin(other(&slave)).stdout(other(&slave)).stderr(other(&slave));
        command.env("TERM", "xterm").env_remove("CI").env_remove("NO_COLOR");
        // SAFETY: calls that are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                if tie != TerminalRole::Output {
                    libc::ioctl(0, libc::TIOCSCTTY, 0);
                }
                // The parent of the tests may have it ignored.
                libc::signal(
                    libc::SIGHUP,
                    if tie == TerminalRole::HangupIgnored { libc::SIG_IGN } else { libc::SIG_DFL },
                );
                Ok(())
            })
        };
        let child = command.spawn().expect("it starts");
        let (written, gone) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (to, gone) = (Arc::clone(&written), Arc::clone(&gone));
            thread::spawn(move || read_until(&gone, master, &to))
        };
        TerminalProcess { child, reader: Some(reader), gone, terminal: slave, written }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("nobody panicked")).into_owned()
    }

    fn shows(&self, what: &str) {
        wait_until(&format!("{what:?} on the terminal"), || self.text().contains(what));
    }

    fn times(&self, what: &str) -> usize {
        self.text().matches(what).count()
    }

    /// Removes the terminal, like a closed window or a broken connection.
    fn hang_up(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it reads");
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of the program", || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for TerminalProcess {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The document of a run, and the run in the store.
fn kept(folder: &Folder, document: &str) -> (Value, String) {
    let text = fs::read_to_string(document).expect("a document");
    (serde_json::from_str(&text).expect("whole"), folder.run(&["show", "last"]).stdout)
}

#[test]
fn a_run_whose_terminal_goes_away_keeps_its_report_and_ends_as_by_sighup() {
    let ends = |tie: TerminalRole, view: &str| {
        let folder = Folder::new();
        let target = Target::start(&folder, &["--service", "5ms"]);
        let (url, document) = (target.url(), folder.join("run.json").display().to_string());
        let args = ["run", &url, "-c", "2", "-d", "10m", "--view", view, "--json", &document];
        let mut run = TerminalProcess::start(&folder, &args, tie, 24, 80);
        run.shows("p99");
        run.hang_up();
        let status = run.wait();
        assert_eq!(status.code(), Some(129), "{tie:?} {view}: {status} {}", run.text());
        let (run, shown) = kept(&folder, &document);
        assert!(run["phases"][0]["requests"]["answered"].as_u64() > Some(0), "{run}");
        assert!(shown.contains("ended early: interrupted"), "{shown}");
    };
    thread::scope(|scope| {
        for tie in [TerminalRole::Session, TerminalRole::Output] {
            for view in ["full", "lines"] {
                scope.spawn(move || ends(tie, view));
            }
        }
    });
}

#[test]
fn a_run_that_ignores_sighup_goes_on_to_its_end_without_its_terminal() {
    let goes_on = |view: &str| {
        let folder = Folder::new();
        let target = Target::start(&folder, &["--service", "5ms"]);
        let (url, document) = (target.url(), folder.join("run.json").display().to_string());
        let args = ["run", &url, "-c", "2", "-d", "10s", "--view", view, "--json", &document];
        let mut run = TerminalProcess::start(&folder, &args, TerminalRole::HangupIgnored, 24, 80);
        run.shows("p99");
        run.hang_up();
        assert_eq!(run.wait().code(), Some(129), "{view}");
        let (run, shown) = kept(&folder, &document);
        assert!(run["phases"][0]["duration_s"].as_f64() > Some(9.5), "{run}");
        assert!(!shown.contains("ended early"), "{shown}");
    };
    thread::scope(|scope| {
        for view in ["full", "lines"] {
            scope.spawn(move || goes_on(view));
        }
    });
}

#[test]
fn what_has_no_report_ends_with_its_terminal_too() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let log = folder.join("access.log");
    fs::write(&log, "").expect("written");
    let (url, log) = (target.url(), log.display().to_string());
    let commands: [(&[&str], &str); 4] = [
        (&["top", &log], "\x1b[?1049h"),
        (&["compare", "--live", &url, "--aa", "--blocks", "200", "-d", "100ms"], "block 2"),
        (&["capacity", &url, "-d", "1s", "--objective", "p99<1s"], "p99"),
        (&["ab", "-n", "100000000", "-c", "2", &url], "Benchmarking"),
    ];
    for (args, shown) in commands {
        let mut command = TerminalProcess::start(&folder, args, TerminalRole::Session, 24, 80);
        command.shows(shown);
        command.hang_up();
        let status = command.wait();
        assert_eq!(status.code(), Some(129), "{args:?}: {status}: {}", command.text());
    }
}

#[test]
fn signals_that_end_or_stop_it_find_the_terminal_as_it_was() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let url = target.url();
    let start = || {
        let run =
            TerminalProcess::start(&folder, &["run", &url, "-c", "2", "-d", "10m"], TerminalRole::Session, 24, 80);
        run.shows("p99");
        run
    };
    let (enter, leave) = ("\x1b[?1049h", "\x1b[?25h\x1b[?1049l");
    for number in [libc::SIGQUIT, libc::SIGABRT] {
        let mut run = start();
        signal(&run.child, number);
        let status = run.wait();
        assert_eq!(status.signal(), Some(number), "{status}");
        run.shows(leave);
        assert!(run.text().ends_with(leave), "{:?}", run.text());
    }
    let run = start();
    signal(&run.child, libc::SIGTSTP);
    let state = || fs::read_to_string(format!("/proc/{}/stat", run.child.id())).expect("it is there");
    wait_until("that it is stopped", || state().contains(") T "));
    run.shows(leave);
    assert_eq!((run.times(enter), run.text().ends_with(leave)), (1, true), "{:?}", run.text());
    signal(&run.child, libc::SIGCONT);
    wait_until("the view again", || run.times(enter) == 2);
    let again = || run.text().rsplit(enter).next().is_some_and(|text| text.contains("p99"));
    wait_until("the whole picture again", again);
}

/// The peak memory of a process, in bytes.
fn peak_bytes(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it is there");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("a peak").trim();
    line.trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn a_terminal_of_absurd_size_takes_no_absurd_memory() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let log = folder.join("access.log");
    fs::write(&log, "").expect("written");
    let (url, log) = (target.url(), log.display().to_string());
    // What each shows once it has drawn: a size that it reads before is no change of size.
    let commands: [(&[&str], &str); 2] =
        [(&["run", &url, "-c", "2", "-d", "10m"], "p99"), (&["top", &log], "\x1b[59m")];
    for (args, shown) in commands {
        for (rows, columns) in [(24, 80), (u16::MAX, u16::MAX)] {
            let mut command = TerminalProcess::start(&folder, args, TerminalRole::Session, rows, columns);
            command.shows(shown);
            if rows < u16::MAX {
                resize(&command.terminal, u16::MAX, u16::MAX);
                // The new area is drawn completely.
                command.shows("\x1b[2J");
            }
            thread::sleep(std::time::Duration::from_millis(600));
            assert!(command.child.try_wait().expect("it is ours").is_none(), "{args:?} has ended");
            let peak = peak_bytes(&command.child);
            assert!(peak < 300 << 20, "{args:?} at {rows} x {columns}: {peak} bytes");
        }
    }
}

#[test]
fn a_tune_whose_terminal_goes_away_restores_its_server_by_itself() {
    let restores = |tie: TerminalRole| {
        let folder = Folder::new();
        let target = Target::with_config(&folder, "workers = 4\nservice = '5ms'");
        let (name, url, ours) = (target.name(), target.url(), folder.path().display().to_string());
        let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let in_a_trial = || processes_with(".trial.conf").iter().any(|pid| line(pid).contains(&ours));
        // Without a watchdog, which would restore the server, too.
        let mut args =
            vec!["tune", &name, "--url", &url, "-c", "8", "-d", "1s", "--warm-up", "50ms", "--dead-man", "0s"];
        args.extend(["--only", "workers"]);
        let mut tune = TerminalProcess::start(&folder, &args, tie, 24, 80);
        wait_until("a trial", in_a_trial);
        tune.hang_up();
        assert_eq!(tune.wait().code(), Some(129), "{tie:?}: {}", tune.text());
        assert_eq!(folder.run(&["restore"]).stdout, "Nothing to put back.\n");
        assert!(!in_a_trial() && target.scoreboard().is_some_and(|workers| workers.len() == 4), "{tie:?}");
    };
    thread::scope(|scope| {
        for tie in [TerminalRole::Session, TerminalRole::Output] {
            scope.spawn(move || restores(tie));
        }
    });
}

/// The code of a source file without tests and comments; nothing for files of tests.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a source");
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).expect("readable").map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs")
            && !path.ends_with("tests.rs")
            && !path.ends_with("hostile.rs")
        {
            all.push(path);
        }
    }
}

/// The text from its opening brace to the matching one.
fn block(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == '}' && depth == 0
    });
    &text[..end.unwrap_or(text.len())]
}

/// A lint. clippy forbids `println!` and its like (Cargo.toml) and `stdout()` (clippy.toml). An `expect` on a write, and a panic
/// in a drop, would also end lastdrop when the terminal disappears.
#[test]
fn no_source_expects_a_write_to_succeed_and_none_panics_in_a_drop() {
    let mut all = Vec::new();
    for folder in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("readable").flatten() {
        // The simulation is a tool for developers.
        if folder.file_name() != "simulate" {
            sources(&folder.path().join("src"), &mut all);
        }
    }
    assert!(all.len() > 200, "these are not the sources");
    for file in &all {
        let code = code_of(file);
        for write in ["write!(", "writeln!(", ".write_all(", ".flush("] {
            for (at, _) in code.match_indices(write) {
                let statement = code[at..].split(';').next().unwrap_or_default();
                let expects = statement.contains(".expect(") || statement.contains(".unwrap()");
                assert!(!expects, "{}: {statement}", file.display());
            }
        }
        for (at, _) in code.match_indices(" Drop for ") {
            let body = block(code[at..].split_once('{').map_or("", |(head, _)| &code[at + head.len()..]));
            for panics in
                [".expect(", ".unwrap()", "panic!(", "assert!(", "assert_eq!(", "unreachable!(", "print!(", "println!("]
            {
                assert!(!body.contains(panics), "{}: {panics} in a Drop: {body}", file.display());
            }
        }
        assert!(!code.contains("dbg!("), "{}", file.display());
    }
}
