//! Real servers other than Apache, each in the folder of its test: nginx, PHP-FPM, HAProxy, MariaDB, Apache with mod_php.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Folder, get, signal, wait_until};

/// A server in the foreground; ends on drop, with all processes that it has started.
pub struct Daemon {
    pub child: Child,
}

impl Daemon {
    /// Starts a server and waits until it is ready. Starts it again, a few times, if it ends at once: a free port may be the
    /// local end of another connection for a moment.
    pub fn start(mut command: Command, package: &str, ready: impl Fn(&Daemon) -> bool) -> Daemon {
        for _ in 0..5 {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().unwrap_or_else(|e| panic!("{package} (./x test installs it): {e}"));
            let mut daemon = Daemon { child };
            let mut ended = false;
            wait_until(package, || {
                ended = !matches!(daemon.child.try_wait(), Ok(None));
                ended || ready(&daemon)
            });
            if !ended {
                return daemon;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        panic!("{package} ends as soon as it is started: {command:?}");
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        signal(&self.child, libc::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Creates a folder in that of the test for servers that do not run as root.
pub fn open_folder(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(&path).expect("a folder");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("its mode");
    path
}

/// Starts nginx with these lines in its http block and waits until it answers at this port.
pub fn nginx(folder: &Folder, http: &str, port: u16) -> Daemon {
    nginx_of(folder, 2, http, port)
}

/// Like [`nginx`], with a number of worker processes.
pub fn nginx_of(folder: &Folder, processes: usize, http: &str, port: u16) -> Daemon {
    let (config, dir) = (folder.join("nginx.conf"), folder.path().display());
    write(
        &config,
        &format!(
            "user www-data;\nworker_processes {processes};\ndaemon off;\npid {dir}/nginx.pid;\nerror_log {dir}/nginx.log;\nevents {{}}\n\
             http {{\n access_log off;\n{http}\n}}\n"
        ),
    );
    let mut command = Command::new("/usr/sbin/nginx");
    command.arg("-c").arg(&config);
    Daemon::start(command, "nginx", |_| get(port, "/").is_some())
}

/// A server block that passes PHP files of a folder to a pool.
pub fn php_site(port: u16, root: &Path, socket: &Path) -> String {
    format!(
        " server {{\n  listen 127.0.0.1:{port};\n  root {};\n  location / {{ return 200 ok; }}\n  location ~ \\.php {{\n   \
         include /etc/nginx/fastcgi_params;\n   fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\n   \
         fastcgi_pass unix:{};\n  }}\n }}",
        root.display(),
        socket.display()
    )
}

/// A pool of PHP-FPM: its process, its socket, its configuration.
pub struct Fpm {
    pub daemon: Daemon,
    pub socket: PathBuf,
    pub config: PathBuf,
}

impl Fpm {
    /// Starts a pool with `children` and these further lines.
    pub fn start(folder: &Folder, children: usize, lines: &str) -> Fpm {
        Fpm::start_in(folder, children, lines, false)
    }

    /// Starts a pool; `included` puts its settings into an included file, as on Debian.
    pub fn start_in(folder: &Folder, children: usize, lines: &str, included: bool) -> Fpm {
        Fpm::start_by(folder, children, lines, included, &["-F", "-y"])
    }

    /// Starts a pool with further arguments, and the variables SITE and CHILDREN.
    pub fn start_by(folder: &Folder, children: usize, lines: &str, included: bool, words: &[&str]) -> Fpm {
        let (config, socket, dir) = (folder.join("fpm.conf"), folder.join("fpm.sock"), folder.path().display());
        let global = format!("[global]\npid = {dir}/fpm.pid\nerror_log = {dir}/fpm.log\n");
        let (pool, head) = if included {
            fs::create_dir_all(folder.join("pool.d")).expect("a folder");
            write(&config, &format!("{global}include = {dir}/pool.d/*.conf\n"));
            (folder.join("pool.d/www.conf"), String::new())
        } else {
            (config.clone(), global)
        };
        write(
            &pool,
            &format!(
                "{head}[www]\nuser = www-data\ngroup = www-data\n\
                 listen = {}\nlisten.owner = www-data\nlisten.group = www-data\npm = static\npm.max_children = {children}\n{lines}\n",
                socket.display()
            ),
        );
        let program = fs::read_dir("/usr/sbin")
            .expect("readable")
            .filter_map(|e| Some(e.ok()?.path()))
            .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("php-fpm")))
            .expect("PHP-FPM (./x test installs it)");
        let mut command = Command::new(program);
        command.args(words).arg(&config).env("SITE", "with = sign").env("CHILDREN", children.to_string());
        let daemon = Daemon::start(command, "php-fpm", |d| socket.exists() && children_of(d.pid()) >= children);
        Fpm { daemon, socket, config }
    }

    pub fn name(&self) -> String {
        format!("php-fpm:{}", self.config.display())
    }
}

impl Fpm {
    /// The pid of its master, which may be another process than the one that the test started.
    pub fn master(&self) -> i32 {
        let written = fs::read_to_string(self.config.with_file_name("fpm.pid")).ok();
        written.and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| self.daemon.pid())
    }
}

impl Drop for Fpm {
    /// Ends every master with this configuration: during a replacement there are two.
    fn drop(&mut self) {
        let title = format!("php-fpm: master process ({})", self.config.display());
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // The child of the test stays visible until it is waited for.
            let masters: Vec<i32> = processes_called(&title).filter(|pid| *pid != self.daemon.pid()).collect();
            let last = Instant::now() > deadline;
            for pid in &masters {
                // SAFETY: a plain call on our own server.
                unsafe { libc::kill(*pid, if last { libc::SIGKILL } else { libc::SIGTERM }) };
            }
            if last || masters.is_empty() && !matches!(self.daemon.child.try_wait(), Ok(None)) {
                return;
            }
            signal(&self.daemon.child, libc::SIGTERM);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Processes whose command line begins with this.
fn processes_called(title: &str) -> impl Iterator<Item = i32> {
    let of = |e: fs::DirEntry| Some((e.file_name().to_str()?.parse().ok()?, fs::read(e.path().join("cmdline")).ok()?));
    let all = fs::read_dir("/proc").expect("/proc").filter_map(move |e| of(e.ok()?));
    all.filter(|(_, line): &(i32, Vec<u8>)| line.starts_with(title.as_bytes())).map(|(pid, _)| pid)
}

/// Living children of a process.
pub fn children_of(pid: i32) -> usize {
    let parent = |stat: String| stat.rsplit(") ").next().and_then(|s| s.split(' ').nth(1)?.parse::<i32>().ok());
    fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|e| fs::read_to_string(e.ok()?.path().join("stat")).ok())
        .filter(|stat| parent(stat.clone()) == Some(pid))
        .count()
}

/// HAProxy with this configuration.
pub fn haproxy(folder: &Folder, config: &str, port: u16) -> Daemon {
    let file = folder.join("haproxy.cfg");
    write(&file, config);
    let mut command = Command::new("/usr/sbin/haproxy");
    command.arg("-db").arg("-f").arg(&file);
    Daemon::start(command, "haproxy", |_| get(port, "/").is_some())
}

/// MariaDB whose root needs no password.
pub struct Mariadb {
    pub daemon: Daemon,
    pub socket: PathBuf,
}

impl Mariadb {
    pub fn start(folder: &Folder, options: &[&str]) -> Mariadb {
        let data = open_folder(folder, "db");
        // At its start each deletes files of earlier ones in /tmp, also those of one that is running.
        let temporary = open_folder(folder, "db-tmp");
        let made = Command::new("mariadb-install-db")
            .env("TMPDIR", &temporary)
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--user=www-data"])
            .arg(format!("--datadir={}", data.display()))
            .output()
            .expect("mariadb-install-db (./x test installs it)");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let socket = data.join("mysqld.sock");
        let mut command = Command::new("/usr/sbin/mariadbd");
        command
            .env("TMPDIR", &temporary)
            .args(["--no-defaults", "--user=www-data", "--skip-networking", "--innodb-buffer-pool-size=8M"])
            .args(["--skip-log-bin", "--performance-schema=off"])
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", socket.display()))
            .args(options);
        let ready = |_: &Daemon| std::os::unix::net::UnixStream::connect(&socket).is_ok();
        let daemon = Daemon::start(command, "mariadb-server-core", ready);
        Mariadb { daemon, socket }
    }

    /// PHP that connects to it as $db.
    pub fn connect(&self) -> String {
        format!("$db = new mysqli(null, 'root', '', '', 0, '{}');", self.socket.display())
    }
}

/// Writes a script into a folder of PHP pages.
pub fn php(root: &Path, name: &str, code: &str) {
    write(&root.join(name), &format!("<?php\n{code}\n"));
}

/// Apache prefork with mod_php on a port of its own; ends on drop.
pub struct ModPhp {
    pub port: u16,
    pub config: PathBuf,
    pub docs: PathBuf,
    pid: PathBuf,
}

impl ModPhp {
    /// Starts an Apache with a number of workers, and these further lines.
    pub fn start(folder: &Folder, workers: u64, lines: &str) -> ModPhp {
        // Only root may write into the folder of the configuration.
        let (port, run) = (super::free_port(), folder.join("modphp"));
        fs::create_dir_all(&run).expect("a folder");
        let docs = open_folder(folder, "modphp/docs");
        let modules = "/usr/lib/apache2/modules";
        let php = fs::read_dir(modules)
            .expect("apache2 (./x test installs it)")
            .filter_map(|e| Some(e.ok()?.path()))
            .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libphp")))
            .expect("libapache2-mod-php (./x test installs it)");
        let load = |name: &str| format!("LoadModule {name}_module {modules}/mod_{name}.so\n");
        let config = run.join("apache2.conf");
        let text = format!(
            "ServerRoot \"{0}\"\nServerName 127.0.0.1\nPidFile {0}/apache2.pid\nListen 127.0.0.1:{port}\nErrorLog {0}/error.log\n\
             {1}LoadModule php_module {2}\nUser www-data\nGroup www-data\nTypesConfig /etc/mime.types\nDocumentRoot \"{3}\"\n\
             ServerLimit {workers}\nMaxRequestWorkers {workers}\nStartServers {workers}\nMinSpareServers {workers}\n\
             MaxSpareServers {4}\nMaxConnectionsPerChild 0\nKeepAlive Off\n<FilesMatch \"\\.php$\">\nSetHandler application/x-httpd-php\n\
             </FilesMatch>\n<Directory \"{3}\">\nAllowOverride None\nRequire all granted\n</Directory>\n\
             <Location \"/server-status\">\nSetHandler server-status\n</Location>\n{lines}\n",
            run.display(),
            ["mpm_prefork", "authz_core", "status", "dir", "mime"].map(load).concat(),
            php.display(),
            docs.display(),
            workers + 1,
        );
        write(&config, &text);
        let server = ModPhp { port, pid: run.join("apache2.pid"), config, docs };
        server.begin();
        server
    }

    fn begin(&self) {
        let started = Command::new("/usr/sbin/apache2").arg("-f").arg(&self.config).args(["-k", "start"]).output();
        let started = started.expect("apache2 runs");
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        wait_until("an answer of Apache", || get(self.port, "/server-status?auto").is_some());
    }

    /// Restarts it with a number of workers.
    pub fn restart_with(&self, workers: u64) {
        self.end();
        let text = fs::read_to_string(&self.config).expect("readable");
        let changed: Vec<String> = text
            .lines()
            .map(|line| match line.split_once(' ') {
                Some((name @ ("ServerLimit" | "MaxRequestWorkers" | "StartServers" | "MinSpareServers"), _)) => {
                    format!("{name} {workers}")
                }
                Some((name @ "MaxSpareServers", _)) => format!("{name} {}", workers + 1),
                _ => line.to_string(),
            })
            .collect();
        write(&self.config, &(changed.join("\n") + "\n"));
        self.begin();
        wait_until("a whole pool", || children_of(self.master()) as u64 >= workers);
    }

    pub fn master(&self) -> i32 {
        fs::read_to_string(&self.pid).ok().and_then(|t| t.trim().parse().ok()).expect("its process id")
    }

    fn end(&self) {
        let Some(pid) = fs::read_to_string(&self.pid).ok().and_then(|t| t.trim().parse::<i32>().ok()) else { return };
        // SAFETY: a plain call on a server that we have started.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let deadline = Instant::now() + Duration::from_secs(20);
        while Path::new(&format!("/proc/{pid}/exe")).exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn name(&self) -> String {
        format!("apache:{}", self.config.display())
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Drop for ModPhp {
    fn drop(&mut self) {
        self.end();
    }
}

/// A program of another name that keeps a processor busy until it is dropped.
pub struct Hog {
    pub name: String,
    child: Child,
}

impl Hog {
    pub fn start(folder: &Folder) -> Hog {
        let name = format!("hog-{}", std::process::id() % 100_000);
        let program = folder.join(&name);
        fs::copy("/bin/sh", &program).expect("a copy of the shell");
        let child =
            Command::new(&program).args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("it runs");
        Hog { name, child }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a GET without waiting for the response; the connection stays open until it is dropped.
pub fn ask_and_leave(port: u16, path: &str) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").expect("written");
    stream
}
