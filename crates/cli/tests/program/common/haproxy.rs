//! A real HAProxy with two backend servers, in the folder of its test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use super::{Folder, free_port, get, processes_with, wait_until};

/// A slow server with keep-alive, and its counts.
#[derive(Default)]
pub struct BackendServer {
    pub connections: AtomicUsize,
    pub requests: AtomicUsize,
    pub now: AtomicUsize,
    /// Maximum of simultaneous requests since the last call of `counts`.
    pub most: AtomicUsize,
}

impl BackendServer {
    pub fn start() -> (u16, Arc<BackendServer>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let behind = Arc::new(BackendServer::default());
        let seen = behind.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                behind.connections.fetch_add(1, SeqCst);
                let behind = behind.clone();
                thread::spawn(move || behind.serve(&stream));
            }
        });
        (port, seen)
    }

    pub fn serve(&self, stream: &TcpStream) {
        let mut lines = BufReader::new(stream).lines();
        let mut is_visitor = false;
        while let Some(Ok(line)) = lines.next() {
            if !line.is_empty() {
                is_visitor |= line.to_ascii_lowercase().starts_with("x-visitor:");
                continue;
            }
            let number = self.requests.fetch_add(1, SeqCst);
            self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
            thread::sleep(Duration::from_millis(10));
            self.now.fetch_sub(1, SeqCst);
            let mut writer = stream;
            // A visitor gets a page that nobody else gets.
            let page = if std::mem::take(&mut is_visitor) { format!("page {:p} {number}", self) } else { "ok".into() };
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
            if writer.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    pub fn counts(&self) -> [usize; 2] {
        [self.connections.load(SeqCst), self.requests.load(SeqCst)]
    }
}

/// An HAProxy with its configuration in a file and a folder.
pub struct Haproxy {
    pub folder: PathBuf,
    pub port: u16,
    pub behind: [Arc<BackendServer>; 2],
    pub launcher: Vec<&'static str>,
    pub flags: Vec<&'static str>,
    pub child: Option<Child>,
}

impl Haproxy {
    pub fn start(folder: &Folder, flags: &[&'static str]) -> Haproxy {
        Haproxy::start_by(folder, &[], flags, "", "")
    }

    pub fn start_by(
        folder: &Folder,
        launcher: &[&'static str],
        flags: &[&'static str],
        more_of_global: &str,
        more_of_frontend: &str,
    ) -> Haproxy {
        let at = folder.join("haproxy");
        fs::create_dir_all(at.join("conf.d")).expect("a folder");
        let (port, [one, two]) = (free_port(), [BackendServer::start(), BackendServer::start()]);
        let main = format!(
            "# By hand.\nglobal\r\n\tmaxconn  200 # of all\r\n\tnbthread 2\n\tstats socket \"{}/s.sock\" level operator\n\
             {more_of_global}\thard-stop-after 20s\ndefaults\n    mode http\n    timeout connect 5s\n    timeout client 20s\n    \
             timeout server 20s\n    timeout queue 20s\n",
            at.display()
        );
        let site = format!(
            "frontend fe_main\n  bind 127.0.0.1:{port}\n{more_of_frontend}  default_backend be_app\n\n\
             .if defined(NO_SUCH_VARIABLE)\nfrontend never\n  maxconn 1\n.endif\nbackend be_app\n  \
             default-server maxconn 50\n  server app1 127.0.0.1:{} maxconn 7   # few\n  server app2 127.0.0.1:{}\n",
            one.0, two.0
        );
        fs::write(at.join("haproxy.cfg"), main).expect("written");
        fs::write(at.join("conf.d/site.cfg"), site).expect("written");
        let (launcher, flags) = (launcher.to_vec(), flags.to_vec());
        let mut haproxy = Haproxy { folder: at, port, behind: [one.1, two.1], launcher, flags, child: None };
        haproxy.run();
        haproxy
    }

    pub fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.folder.join("log")).expect("a log");
        let mut words: Vec<String> = self.launcher.iter().map(ToString::to_string).collect();
        words.push("/usr/sbin/haproxy".into());
        words.extend(self.flags.iter().map(ToString::to_string));
        // With relative names, if the flags ask for them.
        let names = ["haproxy.cfg", "conf.d"].map(|name| {
            let own = if self.is_locked_up() { self.folder.display().to_string() } else { "haproxy".into() };
            format!("{own}/{name}")
        });
        words.extend(names.into_iter().flat_map(|name| ["-f".to_string(), name]));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.folder.parent().expect("has one")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("haproxy runs (./x test installs it)"));
        wait_until("HAProxy", || get(self.port, "/").is_some());
        wait_until("its master", || self.masters().len() == 1);
    }

    pub fn is_locked_up(&self) -> bool {
        fs::read_to_string(self.config()).expect("readable").contains("chroot")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.join("haproxy.cfg")
    }

    pub fn site(&self) -> PathBuf {
        self.folder.join("conf.d/site.cfg")
    }

    pub fn name(&self) -> String {
        format!("haproxy:{}", self.config().display())
    }

    pub fn ask(&self, command: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.folder.join("s.sock")).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        writeln!(stream, "{command}").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    pub fn info(&self, name: &str) -> Option<u64> {
        let text = self.ask("show info")?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?.parse().ok()
    }

    /// A column of `show stat`.
    pub fn stat(&self, proxy: &str, part: &str, column: &str) -> Option<String> {
        let text = self.ask("show stat")?;
        let mut lines = text.lines();
        let at = lines.next()?.trim_start_matches("# ").split(',').position(|name| name == column)?;
        let line = lines.find(|line| line.starts_with(&format!("{proxy},{part},")))?;
        line.split(',').nth(at).map(str::to_string)
    }

    /// Its processes whose parent is another program, with their command lines.
    pub fn masters(&self) -> Vec<(i32, String)> {
        let all = self.processes();
        let parent = |pid: i32| -> Option<i32> {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
        };
        let line = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
        let masters = all.iter().filter(|pid| parent(**pid).is_some_and(|parent| !all.contains(&parent)));
        masters.map(|pid| (*pid, line(*pid))).filter(|(_, line)| !line.is_empty()).collect()
    }

    pub fn processes(&self) -> Vec<i32> {
        let runs_here = |pid: &i32| {
            let at = |what: &str| fs::read_link(format!("/proc/{pid}/{what}")).unwrap_or_default();
            at("exe").ends_with("haproxy")
                && (self.is_locked_up() || at("cwd") == self.folder.parent().expect("has one"))
        };
        let name = if self.is_locked_up() { self.config().display().to_string() } else { "haproxy/haproxy.cfg".into() };
        processes_with(&name).into_iter().filter(runs_here).collect()
    }

    pub fn threads(&self, pid: u64) -> usize {
        fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
    }

    pub fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folders = [self.folder.clone(), self.folder.join("conf.d")];
        let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("readable").filter_map(Result::ok));
        let mut files: Vec<PathBuf> =
            entries.map(|e| e.path()).filter(|p| p.is_file() && !p.ends_with("log")).collect();
        files.sort();
        files.into_iter().map(|file| (file.clone(), fs::read(file).expect("readable"))).collect()
    }

    /// Ends its processes by a signal; gives up after 10 s.
    pub fn end(&self, number: i32) {
        let deadline = Instant::now() + Duration::from_secs(10);
        for pid in self.processes() {
            // SAFETY: a plain call on our own server.
            unsafe { libc::kill(pid, number) };
        }
        while !self.processes().is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn plan(&self, folder: &Folder, duration: &str, settings: &str) -> String {
        let file = folder.join("plan.toml");
        let head = format!(
            "server = '{}'\nurl = 'http://127.0.0.1:{}/'\nusers = 12\nduration = '{duration}'\nkeepalive = 'off'",
            self.name(),
            self.port
        );
        fs::write(&file, format!("{head}\n[settings]\n{settings}")).expect("written");
        file.display().to_string()
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        self.end(libc::SIGTERM);
        self.end(libc::SIGKILL);
        self.child.as_mut().map(Child::wait);
    }
}
