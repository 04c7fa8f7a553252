//! Real databases, each in the folder of its test and as a user other than root: clients of MariaDB, and PostgreSQL.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Folder;
use super::servers::{Daemon, Mariadb, open_folder};

/// The user that servers run as.
const WWW_DATA: u32 = 33;

/// A client with its own session, which executes statements as they are written to it; ends on drop.
pub struct Client {
    child: Child,
}

impl Client {
    fn start(command: &mut Command) -> Client {
        let child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
        Client { child }
    }

    pub fn say(&mut self, sql: &str) {
        let to = self.child.stdin.as_mut().expect("piped");
        writeln!(to, "{sql}").and_then(|()| to.flush()).expect("the client lives");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs statements and waits for their end.
fn done(command: &mut Command, sql: &str) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a client");
    child.stdin.take().expect("piped").write_all(sql.as_bytes()).expect("written");
    let end = child.wait_with_output().expect("ends");
    assert!(end.status.success(), "{sql}: {}", String::from_utf8_lossy(&end.stderr));
}

impl Mariadb {
    /// Its name on a command line.
    pub fn name(&self) -> String {
        format!("mariadb:{}", self.socket.parent().expect("a folder").display())
    }

    pub fn url(&self, user: &str) -> String {
        format!("mysql://{user}@localhost/?socket={}", self.socket.display())
    }

    fn client_as(&self, user: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--unbuffered", "-u", user]).arg(format!("--socket={}", self.socket.display()));
        command
    }

    pub fn run(&self, sql: &str) {
        done(&mut self.client_as("root"), sql);
    }

    pub fn client(&self, user: &str) -> Client {
        Client::start(&mut self.client_as(user))
    }
}

/// PostgreSQL. Its administrator is the user that it runs as; others need a password.
pub struct Postgres {
    pub daemon: Daemon,
    pub data: PathBuf,
    pub socket: PathBuf,
}

/// A program of PostgreSQL outside the search path.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql (./x test installs it)");
    let mut found = versions.filter_map(|v| Some(v.ok()?.path().join("bin").join(name)).filter(|p| p.exists()));
    found.next().unwrap_or_else(|| panic!("{name} of postgresql (./x test installs it)"))
}

impl Postgres {
    pub fn start(folder: &Folder, options: &[&str]) -> Postgres {
        let (run, data) = (open_folder(folder, "pg"), folder.join("pg/data"));
        let made = Command::new(program("initdb"))
            .args(["-U", "www-data", "--auth-local=peer", "--auth-host=scram-sha-256", "--no-sync", "-E", "UTF8", "-D"])
            .arg(&data)
            .uid(WWW_DATA)
            .current_dir("/")
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // Other users need a password.
        let access = "local all www-data peer\nlocal all all scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), access).expect("written");
        let socket = run.join(".s.PGSQL.5432");
        let mut command = Command::new(program("postgres"));
        command
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&run)
            .args(["-h", "", "-c", "fsync=off", "-c", "shared_buffers=4MB"])
            .args(options)
            .uid(WWW_DATA)
            .current_dir("/");
        let ready = |_: &Daemon| client(&run).arg("-c").arg("SELECT 1").output().is_ok_and(|o| o.status.success());
        let daemon = Daemon::start(command, "postgresql", ready);
        Postgres { daemon, data, socket }
    }

    pub fn name(&self) -> String {
        format!("postgresql:{}", self.data.display())
    }

    pub fn url(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@localhost/{database}?socket={}", self.socket.display())
    }

    pub fn run(&self, sql: &str) {
        done(&mut client(self.socket.parent().expect("a folder")), sql);
    }

    pub fn client(&self) -> Client {
        Client::start(&mut client(self.socket.parent().expect("a folder")))
    }
}

fn client(run: &Path) -> Command {
    let mut command = Command::new("psql");
    command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", "www-data", "-d", "postgres", "-h"]).arg(run);
    command.uid(WWW_DATA).current_dir("/");
    command
}
