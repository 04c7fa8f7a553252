//! Hostile servers of another user, named like real ones: the program, its environment and its configuration are all hostile.
//! Every process that executes or loads one of their files leaves a record.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{CommandOutput, Folder, free_port, wait_until};

/// The ordinary user.
pub const NOBODY: u32 = 65534;
/// Content of root's own file: this text, and a number that no server has otherwise.
pub const SECRET: &str = "SECRET5e7";
pub const SECRET_NUMBER: &str = "424242424242";
/// Timeout of a command.
const DEADLINE: Duration = Duration::from_secs(90);

/// A process that executed or loaded a hostile file.
#[derive(Debug)]
pub struct Record {
    /// The owner of the record file; inside a namespace the process may see another user.
    pub owner: u32,
    pub permitted: String,
    pub effective: String,
    pub user_namespace: String,
    pub what: String,
}

/// Folders, programs and records of one scene.
pub struct Scene {
    pub folder: Folder,
    running: Vec<Child>,
    _socket: UnixListener,
}

impl Scene {
    pub fn new() -> Scene {
        let folder = Folder::new();
        let socket = UnixListener::bind(folder.join("roots.sock")).expect("a socket");
        fs::set_permissions(folder.join("roots.sock"), fs::Permissions::from_mode(0o600)).expect("its mode");
        let scene = Scene { folder, running: Vec::new(), _socket: socket };
        for name in ["theirs", "theirs/conf.d", "record", "roots"] {
            fs::create_dir(scene.at(name)).expect("a folder");
        }
        fs::set_permissions(scene.at("record"), fs::Permissions::from_mode(0o777)).expect("its mode");
        fs::write(scene.at("roots/own.conf"), "# root's\n").expect("written");
        scene.secret();
        let source = scene.at("hostile.c");
        fs::write(&source, include_str!("hostile.c")).expect("written");
        let record = format!("-DRECORD=\"{}\"", scene.at("record").display());
        for (to, flags) in [("fake", &["-O1"][..]), ("theirs/hostile.so", &["-DLIBRARY", "-shared", "-fPIC"])] {
            let made = Command::new("cc").arg(&record).args(flags).arg("-o").arg(scene.at(to)).arg(&source).status();
            assert!(made.expect("a C compiler").success());
        }
        // A module of Perl, of Python, of the C library's character sets, and a start file of a shell.
        let (record, theirs) = (scene.text("record"), scene.text("theirs"));
        for (name, text) in [
            ("Hostile.pm", format!("open my $f, '>', '{record}/perl-' . $$; print $f \"$< $> ? ? ? perl\"; 1;\n")),
            (
                "sitecustomize.py",
                format!(
                    "import os\nopen('{record}/python-%d' % os.getpid(), 'w').write('%d %d ? ? ? python' % (os.getuid(), os.geteuid()))\n"
                ),
            ),
            ("hostile.sh", format!("echo \"$UID $EUID ? ? ? shell\" > {record}/shell-$$\n")),
            ("gconv-modules", "module X// INTERNAL hostile 1\nmodule INTERNAL X// hostile 1\n".to_string()),
        ] {
            fs::write(format!("{theirs}/{name}"), text).expect("written");
        }
        symlink(scene.at("secret"), scene.at("theirs/conf.d/link.conf")).expect("a link");
        symlink(scene.at("roots"), scene.at("theirs/folder-link")).expect("a link");
        scene.give("theirs");
        scene
    }

    /// Writes a file that only root may read. Its content would be a setting of each kind of server.
    fn secret(&self) {
        let text = format!(
            "{SECRET} {SECRET_NUMBER}\nworker_processes {SECRET_NUMBER};\nprocesses = {SECRET_NUMBER}\nworkers = {SECRET_NUMBER}\n\
             server.max-worker = {SECRET_NUMBER}\nmax_connections = {SECRET_NUMBER}\npm.max_children = {SECRET_NUMBER}\n\
             MaxRequestWorkers {SECRET_NUMBER}\n"
        );
        fs::write(self.at("secret"), text).expect("written");
        fs::set_permissions(self.at("secret"), fs::Permissions::from_mode(0o600)).expect("its mode");
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }

    /// Changes the owner of a folder and its content to the other user.
    fn give(&self, name: &str) {
        let done = Command::new("chown").args(["-hR", "65534:65534"]).arg(self.at(name)).status();
        assert!(done.expect("coreutils").success());
    }

    /// Writes a file of the other user; `{theirs}`, `{roots}`, `{secret}`, `{self}` and `{socket}` are placeholders for names.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.at("theirs").join(name);
        let text = text
            .replace("{self}", &path.display().to_string())
            .replace("{theirs}", &self.text("theirs"))
            .replace("{roots}", &self.text("roots"))
            .replace("{secret}", &self.text("secret"))
            .replace("{socket}", &self.text("roots.sock"));
        fs::write(&path, text).expect("written");
        chown(&path, Some(NOBODY), Some(NOBODY)).expect("given away");
        path.display().to_string()
    }

    /// Starts a program as that user with a hostile environment; `within` is a command in front of it (`unshare …`).
    pub fn start(&mut self, program: &Path, argv: &[&str], variables: &[(&str, &str)], within: &[&str]) -> i32 {
        let theirs = self.text("theirs");
        // The last shell sets the environment; it already runs as that user.
        let line = format!(
            "export LD_PRELOAD={theirs}/hostile.so GCONV_PATH={theirs} PERL5LIB={theirs} PERL5OPT=-MHostile PYTHONPATH={theirs} \
             PYTHONSTARTUP={theirs}/sitecustomize.py BASH_ENV={theirs}/hostile.sh ENV={theirs}/hostile.sh \
             NODE_OPTIONS=--require={theirs}/hostile.js JAVA_TOOL_OPTIONS=-agentpath:{theirs}/hostile.so \
             RUBYOPT=-r{theirs}/hostile.rb OPENSSL_CONF={theirs}/openssl.cnf PATH={theirs}:/usr/sbin:/usr/bin:/bin; \
             exec -a \"$0\" '{}' \"$@\"",
            program.display()
        );
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(within);
        command.args(["bash", "-c", &line]).args(argv).envs(variables.iter().copied()).current_dir(&theirs);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.running.push(command.spawn().expect("util-linux"));
        let mut pid = None;
        wait_until(argv[0], || {
            pid = pid_of(program, argv.last().expect("a word"));
            pid.is_some()
        });
        pid.expect("it runs")
    }

    /// Starts the user's own copy of the fake server under a name; returns its port.
    pub fn fake(&mut self, name: &str, argv: &[&str], within: &[&str]) -> (i32, u16) {
        let (program, port) = (self.at("theirs").join(name), free_port());
        if !program.exists() {
            fs::copy(self.at("fake"), &program).expect("copied");
            chown(&program, Some(NOBODY), None).expect("given away");
        }
        let pid = self.start(&program, argv, &[("SERVE", port.to_string().as_str())], within);
        if within.is_empty() {
            wait_until(name, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        }
        (pid, port)
    }

    /// Runs a command as root, within the deadline; asserts that it prints no secret of root and does not panic.
    pub fn run(&self, words: &[&str]) -> CommandOutput {
        let mut command = self.folder.lastdrop(words);
        let (out, errors) = (tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file"));
        let clone = |file: &fs::File| Stdio::from(file.try_clone().expect("a handle"));
        let mut child = command.stdout(clone(&out)).stderr(clone(&errors)).spawn().expect("the program runs");
        let until = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = child.try_wait().expect("waited for") {
                break status;
            }
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{words:?} hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |mut file: &fs::File| {
            use std::io::{Read, Seek};
            let mut bytes = Vec::new();
            file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("read");
            bytes
        };
        let done = CommandOutput::of(std::process::Output { status, stdout: read(&out), stderr: read(&errors) }, words);
        let text = format!("{}{}", done.stdout, done.stderr);
        assert!(!text.contains("unexpected argument"), "{done:?}");
        assert!(done.code >= 0 && done.code != 101 && !text.contains("panicked"), "{done:?}");
        assert!(!text.contains(SECRET) && !text.contains(SECRET_NUMBER), "what is root's is told: {done:?}");
        if let Ok(document) = serde_json::from_str::<Value>(&done.stdout) {
            let executed = document["environment"]["executed"].as_array().cloned().unwrap_or_default();
            let theirs = self.text("theirs");
            let is_wrong =
                |one: &&Value| one["program"].as_str().is_some_and(|p| p.contains(&theirs)) && one["uid"] == 0;
            assert!(!executed.iter().any(|one| is_wrong(&one)), "{words:?}: {executed:#?}");
        }
        done
    }

    pub fn records(&self) -> Vec<Record> {
        let files = fs::read_dir(self.at("record")).expect("there").filter_map(Result::ok).map(|e| e.path());
        let record = |file: PathBuf| {
            let (owner, text) = (fs::metadata(&file).expect("there").uid(), fs::read_to_string(&file).expect("text"));
            let mut fields = text.splitn(6, ' ').skip(2).map(str::to_string);
            let mut next = || fields.next().unwrap_or_default();
            Record { owner, permitted: next(), effective: next(), user_namespace: next(), what: next() }
        };
        files.map(record).collect()
    }

    /// Asserts that every hostile file was executed or loaded as that user, without a capability that matters on this machine.
    pub fn assert_all_as_nobody(&self, at_least: usize) {
        let own = fs::read_link("/proc/self/ns/user").expect("a namespace").display().to_string();
        let all = self.records();
        assert!(
            all.iter().filter(|r| !r.what.is_empty()).count() >= at_least,
            "too few were asked: this would show nothing: {all:?}"
        );
        let none = |capabilities: &str| capabilities.chars().all(|c| c == '0' || c == '?');
        let fine =
            |r: &&Record| r.owner == NOBODY && (r.user_namespace != own || (none(&r.permitted) && none(&r.effective)));
        let wrong: Vec<&Record> = all.iter().filter(|r| !fine(r)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    /// Asserts that no file of root was changed or added.
    pub fn assert_roots_are_as_they_were(&self) {
        let names: Vec<_> = fs::read_dir(self.at("roots")).expect("there").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["own.conf"]);
        assert_eq!(fs::read_to_string(self.at("roots/own.conf")).expect("text"), "# root's\n");
        assert!(fs::read_to_string(self.at("secret")).expect("text").starts_with(SECRET));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // All processes of that user, also those that a sweep has restarted.
        let theirs = self.at("theirs");
        for pid in all_pids() {
            let is_program = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.starts_with(&theirs));
            // Workers of a genuine server survive their master.
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if is_program || String::from_utf8_lossy(&line).contains(&*theirs.to_string_lossy()) {
                // SAFETY: a plain call on our own process.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn all_pids() -> impl Iterator<Item = i32> {
    let all = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process that runs a program with this word in its command line or title.
pub fn pid_of(program: &Path, word: &str) -> Option<i32> {
    let real = fs::canonicalize(program).ok()?;
    all_pids().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == real)
            && String::from_utf8_lossy(&line).contains(word)
    })
}
