//! Whose rights a server's program is executed with. A process of an ordinary user that is called like a server, or a container of that
//! user, gets nothing executed with root's rights; servers of root's are asked as before. They want root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::servers::nginx;
use crate::common::{Folder, free_port, n, wait_until};

/// The ordinary user.
const NOBODY: u32 = 65534;

/// Serves HTTP on the port of its environment; executed without one it leaves a file, which belongs to whoever it runs as.
const FAKE: &str = r#"
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (!getenv("SERVE")) {
        char name[] = RECORD "/XXXXXX";
        int record = mkstemp(name);
        if (record >= 0) dprintf(record, "%s %s", argv[0], argc > 1 ? argv[1] : "");
        return 0;
    }
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(getenv("SERVE"))), .sin_addr.s_addr = htonl(0x7f000001)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 64)) return 1;
    for (;;) {
        char bytes[4096];
        const char *answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
        int client = accept(listener, 0, 0);
        if (client < 0) continue;
        if (read(client, bytes, sizeof bytes) > 0 && write(client, answer, strlen(answer)) < 0) {}
        close(client);
    }
}
"#;

/// Folders, programs and the record of one scene.
struct Scene {
    folder: Folder,
    running: Vec<Child>,
}

impl Scene {
    fn new() -> Scene {
        let folder = Folder::new();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        let scene = Scene { folder, running: Vec::new() };
        fs::create_dir(scene.at("theirs")).expect("a folder");
        let source = scene.at("fake.c");
        fs::write(&source, FAKE).expect("written");
        let record = format!("-DRECORD=\"{}\"", scene.record().display());
        let made = Command::new("cc").args([&record, "-O1", "-o"]).arg(scene.at("fake")).arg(&source).status();
        assert!(made.expect("a C compiler").success());
        fs::create_dir(scene.record()).expect("a folder");
        fs::set_permissions(scene.record(), fs::Permissions::from_mode(0o777)).expect("its mode");
        chown(scene.at("theirs"), Some(NOBODY), None).expect("given away");
        scene
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn record(&self) -> PathBuf {
        self.at("record")
    }

    /// Runs the user's own copy under a name, with a title in place of its command line, and some words before it.
    fn fake(&mut self, name: &str, title: &[&str], within: &[&str]) -> u16 {
        let (program, port) = (self.at("theirs").join(name), free_port());
        fs::copy(self.at("fake"), &program).expect("copied");
        chown(&program, Some(NOBODY), None).expect("given away");
        let line = format!("exec -a '{}' {}", title.join(" "), program.display());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(within);
        command.args(["bash", "-c", &line]).env("SERVE", port.to_string()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.running.push(command.spawn().expect("util-linux"));
        if within.is_empty() {
            wait_until(name, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        } else {
            wait_until(name, || pid_of(&program).is_some());
        }
        port
    }

    /// As whom, and by which words, the user's programs were executed.
    fn executions(&self) -> Vec<(u32, String)> {
        let files = fs::read_dir(self.record()).expect("there").filter_map(Result::ok).map(|e| e.path());
        files.map(|f| (fs::metadata(&f).expect("there").uid(), fs::read_to_string(&f).expect("text"))).collect()
    }

    fn assert_all_as_nobody(&self) {
        let all = self.executions();
        assert!(!all.is_empty(), "none of them was asked at all: this would show nothing");
        assert!(all.iter().all(|(uid, _)| *uid == NOBODY), "{all:?}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A process that runs a program.
fn pid_of(program: &Path) -> Option<i32> {
    let all = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    let mut running = all.filter(|p| fs::read_link(p.path().join("exe")).is_ok_and(|exe| exe == program));
    running.find_map(|p| p.file_name().to_str()?.parse().ok())
}

fn executed(document: &Value) -> Vec<(String, u64)> {
    let all = document["environment"]["executed"].as_array().unwrap_or_else(|| panic!("{document:#}"));
    all.iter().map(|one| (one["program"].as_str().expect("a name").to_string(), n(&one["uid"]))).collect()
}

#[test]
fn programs_of_an_ordinary_user_are_never_executed_as_root() {
    let mut scene = Scene::new();
    let config = scene.at("theirs/nginx.conf");
    fs::write(&config, "events {}\n").expect("written");
    let pool = scene.at("theirs/fpm.conf");
    fs::write(&pool, "[www]\nlisten = 127.0.0.1:1\npm = static\npm.max_children = 2\n").expect("written");
    let cfg = scene.at("theirs/haproxy.cfg");
    fs::write(&cfg, "global\n user nobody\n.if feature(OPENSSL)\n.endif\ndefaults\n mode http\n").expect("written");
    let (config, pool, cfg) = (config.display().to_string(), pool.display().to_string(), cfg.display().to_string());
    let title = format!("nginx: master process nginx -c {config}");
    let url = scene.fake("nginx", &[&title], &[]);
    scene.fake("apache2", &["apache2", "-k", "start"], &[]);
    scene.fake("php-fpm8.2", &[&format!("php-fpm: master process ({pool})")], &[]);
    scene.fake("haproxy", &["haproxy"], &[]);
    scene.fake("lighttpd", &["lighttpd"], &[]);
    let url = format!("http://127.0.0.1:{url}/");
    let (nginx, fpm) = (format!("nginx:{config}"), format!("php-fpm:{pool}"));
    let haproxy = format!("haproxy:{cfg}");
    for server in [nginx.as_str(), "apache", &fpm, &haproxy, "lighttpd"] {
        for command in [&["knobs"][..], &["size"], &["watch", "--once", "--interval", "100ms"]] {
            let words: Vec<&str> = command.iter().copied().chain([server]).collect();
            let done = scene.folder.run(&words);
            assert!(done.code <= 1 && !done.stderr.contains("panicked"), "{words:?}: {done:?}");
        }
    }
    let doctor = scene.folder.run(&["doctor", "--url", &url, "-d", "200ms", "--no-store", "--gentle"]);
    assert!(!doctor.stderr.contains("panicked"), "{doctor:?}");
    for words in [vec!["tune", &nginx, "--url", &url, "--trials", "1"], vec!["guard", "apache", "--once"]] {
        let done = scene.folder.run(&words);
        assert!(!done.stderr.contains("panicked"), "{words:?}: {done:?}");
    }
    scene.assert_all_as_nobody();
}

#[test]
fn a_container_of_an_ordinary_user_has_nothing_executed_as_root() {
    let mut scene = Scene::new();
    let config = scene.at("theirs/nginx.conf");
    fs::write(&config, "events {}\n").expect("written");
    let title = format!("nginx: master process nginx -c {}", config.display());
    scene.fake("nginx", &[&title], &["unshare", "-Urmpf", "--mount-proc", "--kill-child"]);
    let master = pid_of(&scene.at("theirs/nginx")).expect("it runs");
    let name = format!("nginx:/proc/{master}/root{}", config.display());
    for words in [&["knobs", &name][..], &["size", &name], &["watch", &name, "--once", "--interval", "100ms"]] {
        let done = scene.folder.run(words);
        assert!(!done.stderr.contains("panicked"), "{words:?}: {done:?}");
    }
    // Within it is root; on this machine that is the ordinary user.
    scene.assert_all_as_nobody();
    let document = scene.folder.run(&["knobs", &name, "--json", "-"]);
    if let Ok(document) = serde_json::from_str::<Value>(&document.stdout) {
        assert!(executed(&document).iter().all(|(_, uid)| *uid != 0), "{document:#}");
    }
}

#[test]
fn a_server_of_roots_is_asked_as_root_and_the_document_says_so() {
    let (folder, port) = (Folder::new(), free_port());
    let _server = nginx(&folder, &format!(" server {{ listen 127.0.0.1:{port}; }}"), port);
    let name = format!("nginx:{}", folder.join("nginx.conf").display());
    let document = folder.json(&["knobs", &name], 0);
    assert!(executed(&document).iter().any(|(program, uid)| program.ends_with("/nginx") && *uid == 0), "{document:#}");
    let text = document.to_string();
    assert!(!text.contains("not asked"), "{text}");
}

#[test]
fn root_executes_a_program_of_another_user_only_where_that_user_is_trusted() {
    let (folder, port) = (Folder::new(), free_port());
    // Root runs what a user could replace at any time.
    let (place, own) = (folder.join("theirs"), folder.join("theirs/nginx"));
    fs::create_dir(&place).expect("a folder");
    fs::copy("/usr/sbin/nginx", &own).expect("copied");
    chown(&own, Some(NOBODY), None).expect("given away");
    let config = folder.join("nginx.conf");
    let text = format!(
        "daemon off;\npid {0}/pid;\nerror_log {0}/error.log;\nevents {{}}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; }} }}\n",
        folder.path().display()
    );
    fs::write(&config, text).expect("written");
    let mut server = Command::new(&own)
        .arg("-c")
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_until("nginx", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let name = format!("nginx:{}", config.display());
    let refused = folder.run(&["knobs", &name]);
    let told = ["is not asked", &own.display().to_string(), "nobody", "0755", "--trust nobody"].map(str::to_string);
    assert!(refused.code == 1 && told.iter().all(|text| refused.stderr.contains(text)), "{refused:?}");
    let watched = folder.json(&["watch", &name, "--once", "--interval", "100ms"], 0);
    assert_eq!(n(&watched["master"]), u64::from(server.id()), "it is watched all the same");
    let trusted = folder.json(&["knobs", &name, "--trust", "nobody"], 0);
    assert!(executed(&trusted).iter().any(|(_, uid)| *uid == 0), "{trusted:#}");
    let _ = server.kill();
    let _ = server.wait();
}
