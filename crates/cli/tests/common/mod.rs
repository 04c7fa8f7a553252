//! What the tests of the whole program share: the program itself with a store and a journal of its own, targets, and
//! real Apaches, each in a fresh folder on a free port.
#![allow(dead_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Tests that compare rates do not run beside each other: two processors are soon full.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder for a test, readable by the users that servers run as.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        let dir = tempfile::Builder::new().prefix("lastdrop-test-").tempdir().expect("a temporary folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        Folder(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program, keeping runs and journals in this folder.
    pub fn lastdrop(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lastdrop"));
        command
            .args(args)
            .env("LASTDROP_STORE", self.join("runs.sqlite"))
            .env("LASTDROP_STATE", self.join("state"))
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, args: &[&str]) -> Done {
        Done::of(self.lastdrop(args).output().expect("the program runs"), args)
    }

    /// Runs the program with `--json -` and reads its document; the exit code has to be `code`.
    pub fn json(&self, args: &[&str], code: i32) -> Value {
        let mut all = args.to_vec();
        all.extend(["--json", "-"]);
        let done = self.run(&all);
        assert_eq!(done.code, code, "{done:?}");
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("stdout is one JSON document: {e}\n{done:?}"))
    }
}

#[derive(Debug)]
pub struct Done {
    pub args: Vec<String>,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    pub fn of(output: Output, args: &[&str]) -> Done {
        Done {
            args: args.iter().map(ToString::to_string).collect(),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

pub fn signal(child: &Child, number: i32) {
    // SAFETY: a plain call on a process of ours.
    unsafe { libc::kill(child.id() as i32, number) };
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

/// One GET; the body of the answer.
pub fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_string())
}

/// Waits until something holds, at most 30 s.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come about within 30 s");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A running target.
pub struct Target {
    pub child: Child,
    pub port: u16,
    config: Option<PathBuf>,
}

impl Target {
    pub fn start(folder: &Folder, args: &[&str]) -> Target {
        let mut all = vec!["target", "--listen", "127.0.0.1:0"];
        all.extend(args);
        Target::spawn(folder, &all, None)
    }

    /// With its settings in a file, on a fixed port, so that it can be restarted by others.
    pub fn with_config(folder: &Folder, settings: &str) -> Target {
        let config = folder.join("target.toml");
        let port = free_port();
        fs::write(&config, format!("{settings}\nlisten = '127.0.0.1:{port}'\n")).expect("written");
        let path = config.to_str().expect("text").to_string();
        Target::spawn(folder, &["target", "--config", &path], Some(config))
    }

    fn spawn(folder: &Folder, args: &[&str], config: Option<PathBuf>) -> Target {
        let mut child =
            folder.lastdrop(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the target starts");
        let mut line = String::new();
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        errors.read_line(&mut line).expect("it says where it listens");
        let port = line
            .split("http://127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split('/').next()?.parse().ok())
            .unwrap_or_else(|| panic!("the target did not start: {line}"));
        // Nobody reads what else it says; let it not be stopped by a full pipe.
        thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Target { child, port, config }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    pub fn name(&self) -> String {
        format!("target:{}", self.config.as_ref().expect("has a configuration").display())
    }

    pub fn counts(&self) -> Value {
        serde_json::from_str(&get(self.port, "/server-status?json").expect("a status page")).expect("JSON")
    }

    pub fn scoreboard(&self) -> Option<String> {
        let page = get(self.port, "/server-status?auto")?;
        page.lines().find_map(|l| l.strip_prefix("Scoreboard: ").map(str::to_string))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        signal(&self.child, libc::SIGTERM);
        let _ = self.child.wait();
        // One that was restarted by a tune is another process: found by its configuration.
        if let Some(config) = &self.config {
            for pid in processes_with(&config.to_string_lossy()) {
                // SAFETY: a plain call on a process of ours.
                unsafe { libc::kill(pid, libc::SIGTERM) };
            }
        }
    }
}

/// Processes that have a text among their arguments, ourselves left out.
pub fn processes_with(text: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        })
        .collect()
}

/// A real Apache with mod_perl, by `examples/mod_perl/server`.
pub struct Apache {
    pub folder: PathBuf,
    pub port: u16,
    script: PathBuf,
}

impl Apache {
    pub fn start(folder: &Folder) -> Apache {
        Apache::start_with(folder, |text| text)
    }

    /// Starts it on a configuration that was changed first.
    pub fn start_with(folder: &Folder, change: impl FnOnce(String) -> String) -> Apache {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mod_perl/server");
        let apache = Apache { folder: folder.join("apache"), port: free_port(), script };
        apache.script("start", &[&apache.port.to_string()]);
        let text = fs::read_to_string(apache.config()).expect("its configuration");
        let changed = change(text.clone());
        if changed != text {
            apache.script("stop", &[]);
            wait_until("the end of Apache", || processes_with(&apache.config().to_string_lossy()).is_empty());
            fs::write(apache.config(), changed).expect("written");
            let started =
                Command::new("/usr/sbin/apache2").arg("-f").arg(apache.config()).args(["-k", "start"]).output();
            let started = started.expect("apache2 runs");
            assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        }
        wait_until("an answer of Apache", || get(apache.port, "/").is_some_and(|b| b.contains("hello")));
        apache
    }

    fn script(&self, action: &str, more: &[&str]) {
        let output = Command::new(&self.script).arg(action).arg(&self.folder).args(more).output().expect("sh");
        assert!(
            output.status.success(),
            "these tests need a real Apache with mod_perl (./x test installs them): {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub fn config(&self) -> PathBuf {
        self.folder.join("apache2.conf")
    }

    pub fn name(&self) -> String {
        format!("apache:{}", self.config().display())
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// How many workers the running server may have: the length of its scoreboard.
    pub fn pool(&self) -> Option<usize> {
        let page = get(self.port, "/server-status?auto")?;
        page.lines().find_map(|l| l.strip_prefix("Scoreboard: ").map(str::len))
    }

    /// Command lines of the masters that run, as /proc has them.
    pub fn masters(&self) -> Vec<String> {
        let text = |pid: i32| {
            String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
        };
        let parent = |pid: i32| -> i32 {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|s| s.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
        };
        let mine = |pid: &i32| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|e| e.ends_with("apache2"))
                && fs::read_link(format!("/proc/{pid}/cwd")).is_ok()
        };
        let all: Vec<i32> = processes_with("apache2").into_iter().filter(mine).collect();
        let listens = |pid: i32| {
            // Its error log is open in each of its processes.
            fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|fds| {
                fds.filter_map(Result::ok)
                    .filter_map(|f| fs::read_link(f.path()).ok())
                    .any(|f| f.starts_with(&self.folder))
            })
        };
        all.iter().filter(|p| listens(**p) && !all.contains(&parent(**p))).map(|p| text(*p)).collect()
    }

    /// Every file of the configuration and the documents, with its content.
    pub fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("readable").filter_map(Result::ok) {
                let path = entry.path();
                if path.ends_with("logs") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push((path.clone(), fs::read(&path).expect("readable")));
                }
            }
        }
        files.sort();
        files
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        if let Ok(pid) = fs::read_to_string(self.folder.join("logs/apache2.pid"))
            && let Ok(pid) = pid.trim().parse::<i32>()
        {
            // SAFETY: a plain call on a process of ours.
            unsafe { libc::kill(pid, libc::SIGTERM) };
            let deadline = Instant::now() + Duration::from_secs(10);
            while Path::new(&format!("/proc/{pid}/exe")).exists() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
