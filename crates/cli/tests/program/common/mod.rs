//! Shared parts of the tests of the whole program: the program with its own store and journal, targets, and real Apaches,
//! each in a fresh folder on a free port.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

pub mod accessible;
pub mod browser;
pub mod chapters;
pub mod databases;
pub mod fleet;
pub mod haproxy;
pub mod hostile;
pub mod house;
pub mod lines;
pub mod link;
pub mod misbehaving;
pub mod originals;
pub mod pages;
pub mod servers;
pub mod shop;
pub mod tls_server;

/// Keeps tests that compare rates from running at the same time, in all files: two processors are soon full.
pub fn alone() -> impl Drop {
    let path = std::env::temp_dir().join("lastdrop-tests.lock");
    let file = fs::File::options().create(true).append(true).open(path).expect("a place for temporary files");
    nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).expect("a lock")
}

/// The same for tests that judge how long answers take: `tests/run` lets nothing at all run beside them.
pub fn quiet() -> impl Drop {
    alone()
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

    /// The journal of a server that is being changed or was left changed.
    pub fn journal(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.join("state")).ok()?;
        entries.filter_map(|e| Some(e.ok()?.path())).find(|path| path.extension().is_some_and(|e| e == "journal"))
    }

    /// Runs the program and waits for its end.
    pub fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::of(self.lastdrop(args).output().expect("the program runs"), args)
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
pub struct CommandOutput {
    #[expect(dead_code, reason = "it is shown where a test fails")]
    pub args: Vec<String>,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn of(output: Output, args: &[&str]) -> CommandOutput {
        CommandOutput {
            args: args.iter().map(ToString::to_string).collect(),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Kills a command before each step that changes anything, one after the other, until it reaches its own end
/// (`lastdrop_files::step`). Restores after each kill and asserts that everything is as before. Returns the number of steps.
pub fn end_at_each_step(folder: &Folder, args: &[&str], is_as_found: impl Fn(&str)) -> usize {
    for step in 1..MOST_STEPS {
        let moment = format!("{args:?}, ended before step {step}");
        let done = end_at(folder, args, step);
        if done.code != KILLED {
            assert_eq!(done.code, 0, "{done:?}");
            is_as_found(&moment);
            return step - 1;
        }
        let restored = folder.run(&["restore"]);
        assert!(restored.code == 0 && !restored.stdout.contains("but "), "{moment}: {restored:?}");
        is_as_found(&moment);
    }
    panic!("{args:?} has more than {MOST_STEPS} steps");
}

/// Runs a command that kills itself before a step.
pub fn end_at(folder: &Folder, args: &[&str], step: usize) -> CommandOutput {
    let mut command = folder.lastdrop(args);
    CommandOutput::of(command.env("LASTDROP_END_AT", step.to_string()).output().expect("the program runs"), args)
}

/// The exit code in `CommandOutput` of a process that was killed.
pub const KILLED: i32 = -1;
const MOST_STEPS: usize = 300;

pub fn signal(child: &Child, number: i32) {
    // SAFETY: a plain call on a process of ours.
    unsafe { libc::kill(child.id() as i32, number) };
}

/// A count in a document.
pub fn n(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("not a count: {v}"))
}

pub fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("a number: {v}"))
}

/// Asserts that requests due = sent + unsent, and that each sent request has exactly one outcome.
pub fn assert_sums(run: &Value) {
    for p in run["phases"].as_array().expect("phases") {
        let r = &p["requests"];
        let failed: u64 = r["failed"].as_object().expect("kinds").values().map(n).sum();
        assert_eq!(n(&r["due"]), n(&r["sent"]) + n(&r["unsent"]), "{p}");
        assert_eq!(n(&r["sent"]), n(&r["answered"]) + failed + n(&r["timed_out"]) + n(&r["censored"]), "{p}");
    }
}

/// The bytes of a response in HTTP/1.1.
pub fn answer(status: &str, headers: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    let (headers, body) = (headers.as_ref(), body.as_ref());
    let line = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    [line.as_bytes(), headers, b"\r\n", body].concat()
}

/// Reads the head of a request, for [`serve`]; None if it does not end.
pub fn head(stream: &mut BufReader<TcpStream>) -> Option<()> {
    let mut line = String::new();
    while stream.read_line(&mut line).ok()? > 0 {
        if line.trim().is_empty() {
            return Some(());
        }
        line.clear();
    }
    None
}

/// Starts a server that answers the requests of `read` by a function; returns its address and the requests.
pub fn serve<T: Send + 'static>(
    read: fn(&mut BufReader<TcpStream>) -> Option<T>,
    respond: impl Fn(&T) -> Vec<u8> + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<T>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let (log, respond) = (Arc::new(Mutex::new(Vec::new())), Arc::new(respond));
    let seen = Arc::clone(&log);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (log, respond) = (Arc::clone(&log), Arc::clone(&respond));
            thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a second handle");
                let mut reader = BufReader::new(stream);
                while let Some(request) = read(&mut reader) {
                    let bytes = respond(&request);
                    log.lock().expect("nobody panicked").push(request);
                    if writer.write_all(&bytes).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

/// A port that stays free: below the range that the kernel gives to clients, and different for every test.
pub fn free_port() -> u16 {
    let path = std::env::temp_dir().join("lastdrop-tests.port");
    let file = fs::File::options().create(true).truncate(false).read(true).write(true).open(path);
    let file = nix::fcntl::Flock::lock(file.expect("a place for temporary files"), nix::fcntl::FlockArg::LockExclusive);
    let file = file.expect("a lock");
    let mut text = String::new();
    (&*file).read_to_string(&mut text).expect("readable");
    let mut port = text.trim().parse().unwrap_or(0u16).clamp(15_000, 31_999);
    loop {
        port = if port < 31_999 { port + 1 } else { 15_000 };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            break;
        }
    }
    file.set_len(0).expect("writable");
    (&*file).seek(SeekFrom::Start(0)).and_then(|_| write!(&*file, "{port}")).expect("writable");
    port
}

/// Sends a GET and returns the body of the response.
pub fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_string())
}

/// Waits until a condition holds, at most two minutes, so that a busy machine does not fail the test.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come about within two minutes");
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

    /// Starts a target with its settings in a file, on a fixed port, so that others can restart it.
    pub fn with_config(folder: &Folder, settings: &str) -> Target {
        let config = folder.join("target.toml");
        let port = free_port();
        fs::write(&config, format!("{settings}\nlisten = '127.0.0.1:{port}'\n")).expect("written");
        let path = config.to_str().expect("text").to_string();
        Target::spawn(folder, &["target", "--config", &path], Some(config))
    }

    /// Like [`Target::with_config`], as a process of another user that writes to a log.
    pub fn with_config_as(folder: &Folder, settings: &str, user: u32, log: &Path) -> Target {
        use std::os::unix::process::CommandExt;
        let (config, port) = (folder.join("target.toml"), free_port());
        fs::write(&config, format!("{settings}\nlisten = '127.0.0.1:{port}'\n")).expect("written");
        let mut command = folder.lastdrop(&["target", "--config", config.to_str().expect("text")]);
        let log = fs::File::options().append(true).open(log).expect("a log");
        command.uid(user).gid(user).stdout(Stdio::null()).stderr(log);
        let target = Target { child: command.spawn().expect("the target starts"), port, config: Some(config) };
        wait_until("the target", || target.scoreboard().is_some());
        target
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
        // Drain its other output, so that a full pipe does not block it.
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
        let mut page = None;
        wait_until("a status page", || {
            page = get(self.port, "/server-status?json");
            page.is_some()
        });
        serde_json::from_str(&page.unwrap_or_default()).expect("JSON")
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
        // A tune may have restarted it as another process: find that by its configuration.
        if let Some(config) = &self.config {
            for pid in processes_with(&config.to_string_lossy()) {
                // SAFETY: a plain call on a process of ours.
                unsafe { libc::kill(pid, libc::SIGTERM) };
            }
        }
    }
}

/// Processes with a text among their arguments, except ourselves.
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

/// A network namespace with nothing but a loopback device.
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    pub fn new() -> Namespace {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"]).stdout(Stdio::piped());
        let mut holder = command.spawn().expect("unshare runs (these tests want root)");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut line).expect("it says that it is up");
        assert_eq!(line, "up\n", "no network namespace can be made (these tests want root)");
        Namespace { holder }
    }

    pub fn pid(&self) -> i32 {
        self.holder.id() as i32
    }

    /// The same command, run inside, with its environment.
    pub fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["-t", &self.holder.id().to_string(), "-n"]).arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        inside
    }

    pub fn set(&self, sysctl: &str, value: &str) {
        let mut write = Command::new("sh");
        write.args(["-c", &format!("echo '{value}' > /proc/sys/{}", sysctl.replace('.', "/"))]);
        assert!(self.inside(&write).status().expect("nsenter runs").success(), "{sysctl}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        signal(&self.holder, libc::SIGKILL);
        let _ = self.holder.wait();
    }
}

/// The command as user nobody, who may not raise limits, with limits as options of `prlimit` (`--nofile=40:40`).
pub fn as_nobody(command: &Command, limits: &[&str]) -> Command {
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit"]).args(limits).arg("--");
    other.arg(command.get_program()).args(command.get_args());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    other
}

/// Runs a command of the program that prints one JSON document.
pub fn json_of(mut command: Command) -> Value {
    let output = command.output().expect("runs");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// A real Apache with mod_perl, by `examples/mod_perl/server`.
pub struct Apache {
    pub folder: PathBuf,
    pub port: u16,
}

impl Apache {
    pub fn start(folder: &Folder) -> Apache {
        Apache::start_with(folder, |text| text)
    }

    /// Starts an Apache with two workers; each response of `/perl/sleep.pl` takes 100 ms.
    pub fn small(folder: &Folder) -> Apache {
        let apache = Apache::start_with(folder, |config| {
            let small = config
                .replace("MaxRequestWorkers 50", "MaxRequestWorkers 2")
                .replace("StartServers 5", "StartServers 2");
            small
                .replace("SpareServers 5", "SpareServers 2")
                .replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0")
        });
        let page = apache.folder.join("htdocs/perl/sleep.pl");
        fs::write(&page, "select undef, undef, undef, 0.1; print \"Content-Type: text/plain\\n\\nok\\n\";\n")
            .expect("written");
        fs::set_permissions(&page, fs::Permissions::from_mode(0o755)).expect("its mode");
        apache
    }

    /// Starts it with a changed configuration.
    pub fn start_with(folder: &Folder, change: impl FnOnce(String) -> String) -> Apache {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mod_perl/server");
        let apache = Apache { folder: folder.join("apache"), port: free_port() };
        let mut make = Command::new(script);
        make.arg("make").arg(&apache.folder).arg(apache.port.to_string());
        let made = make.output().expect("sh");
        assert!(
            made.status.success(),
            "these tests need a real Apache with mod_perl (./x test installs them): {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let text = fs::read_to_string(apache.config()).expect("its configuration");
        fs::write(apache.config(), change(text)).expect("written");
        let started = Command::new("/usr/sbin/apache2").arg("-f").arg(apache.config()).args(["-k", "start"]).output();
        let started = started.expect("apache2 runs");
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        wait_until("an answer of Apache", || get(apache.port, "/").is_some_and(|b| b.contains("hello")));
        apache
    }

    /// Without Perl an instance starts at once.
    pub fn without_perl(config: String) -> String {
        let (before, rest) = config.split_once("<Location \"/perl/\">").expect("a section");
        let (_, after) = rest.split_once("</Location>").expect("its end");
        let kept = before.lines().filter(|l| !l.contains("perl_module"));
        format!("{}\n{after}", kept.collect::<Vec<_>>().join("\n"))
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

    /// The number of workers that the running server may have: the length of its scoreboard.
    pub fn pool(&self) -> Option<usize> {
        let page = get(self.port, "/server-status?auto")?;
        page.lines().find_map(|l| l.strip_prefix("Scoreboard: ").map(str::len))
    }

    /// Command lines of the running masters, from /proc.
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
            // Each of its processes has its error log open.
            fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|fds| {
                fds.filter_map(Result::ok)
                    .filter_map(|f| fs::read_link(f.path()).ok())
                    .any(|f| f.starts_with(&self.folder))
            })
        };
        // A test of the configuration that a killed program left running ends by itself.
        let only_looks = |text: &String| ["-t", "-M", "-V"].iter().any(|flag| text.split('\0').any(|w| w == *flag));
        let masters = all.iter().filter(|p| listens(**p) && !all.contains(&parent(**p))).map(|p| text(*p));
        masters.filter(|text| !only_looks(text)).collect()
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
