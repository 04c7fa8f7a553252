//! `lastdrop top`: growing logs of real servers, with rotation, and a status page.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::common::servers::nginx;
use crate::common::{Apache, Folder, free_port, n, number, signal, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The documents that have been written completely.
fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|l| serde_json::from_str(l).expect("a document a line")).collect()
}

fn latest(path: &Path) -> Value {
    documents(path).pop().unwrap_or_default()
}

fn spawn(folder: &Folder, args: &[&str]) -> Child {
    let mut command = folder.lastdrop(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("started")
}

#[test]
fn a_log_under_load_is_followed_through_rename_and_truncation() {
    let (folder, port) = (Folder::new(), free_port());
    let path = folder.join("access.log");
    let format = "log_format timed '$remote_addr [$time_local] \"$request\" $status $body_bytes_sent $request_time';";
    let http = format!(
        "{format} server {{ listen 127.0.0.1:{port}; access_log {} timed; location / {{ return 200 ok; }} location /no {{ return 404; }} }}",
        path.display()
    );
    let daemon = nginx(&folder, &http, port);
    let (log, json) = (path.to_str().expect("text"), folder.join("top.jsonl"));
    let top = spawn(
        &folder,
        &[
            "top",
            log,
            "--format",
            format,
            "--window",
            "10m",
            "--interval",
            "200ms",
            "--json",
            json.to_str().expect("text"),
        ],
    );
    wait_until("the first look", || !documents(&json).is_empty());
    let urls = folder.join("urls");
    fs::write(&urls, format!("http://127.0.0.1:{port}/item/7\nhttp://127.0.0.1:{port}/no/1\n")).expect("written");
    let load = || {
        let run = folder.json(&["run", "-f", urls.to_str().expect("text"), "-n", "300", "--in-order", "--no-store"], 0);
        assert_eq!(n(&run["phases"][0]["requests"]["answered"]), 300);
    };
    let seen = |count: u64| wait_until("all requests in the window", || n(&latest(&json)["requests"]) == count);
    load();
    seen(300);
    // As logrotate does: replace the file, then signal the server.
    fs::rename(&path, folder.join("access.log.1")).expect("renamed");
    load();
    kill(Pid::from_raw(daemon.pid()), Signal::SIGUSR1).expect("told");
    wait_until("the new log", || path.exists());
    load();
    seen(900);
    // And as with its copytruncate.
    fs::copy(&path, folder.join("access.log.2")).expect("copied");
    OpenOptions::new().write(true).truncate(true).open(&path).expect("truncated");
    // The same requests in the same second would look as if nothing had happened.
    wait_until("the truncation to be seen", || n(&latest(&json)["rotations"]) == 2);
    load();
    seen(1200);
    let d = latest(&json);
    assert_eq!((d["schema"].as_str(), n(&d["unparsed"]), n(&d["rotations"])), (Some("lastdrop.top/1"), 0, 2));
    assert_eq!((n(&d["status"]["2xx"]), n(&d["status"]["4xx"])), (600, 600));
    let class = |name: &str| d["classes"].as_array().expect("classes").iter().find(|c| c["name"] == name).cloned();
    let no = class("GET /no/{n}").expect("the class");
    assert_eq!((n(&no["count"]), n(&no["errors"]), n(&no["server_time_us"]["count"])), (600, 600, 600));
    assert_eq!((&d["clients"][0]["name"], n(&d["clients"][0]["count"])), (&Value::from("127.0.0.1"), 1200));
    signal(&top, 2);
    let done = top.wait_with_output().expect("ended");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(130), "{text}");
    // A line for each sample, and a summary at the end.
    assert!(text.contains("/s  ") && text.contains("1200 requests in 1200 lines"), "{text}");
    let summary = latest(&json);
    assert_eq!((summary["schema"].as_str(), n(&summary["requests"])), (Some("lastdrop.log/1"), 1200));
}

#[test]
fn what_a_log_has_already_is_read_on_request_and_torn_lines_wait() {
    let folder = Folder::new();
    let path = folder.join("log");
    let line = |path: &str| format!("10.0.0.7 - - [10/Oct/2000:13:55:36 +0000] \"GET {path} HTTP/1.1\" 500 10\n");
    fs::write(&path, line("/old").repeat(50) + "rubbish\n" + &line("/torn")[..30]).expect("written");
    let log = path.to_str().expect("text");
    let done = folder.run(&["top", log, "--from-start", "-d", "300ms", "--interval", "100ms"]);
    // Lines from years ago are outside the window.
    assert!(
        done.code == 0 && done.stdout.contains("0.0/s") && done.stdout.contains("50 requests in 51 lines"),
        "{done:?}"
    );
    let json = folder.join("top.jsonl");
    let mut top =
        spawn(&folder, &["top", log, "--interval", "100ms", "--quiet", "--json", json.to_str().expect("text")]);
    wait_until("the first look", || !documents(&json).is_empty());
    let mut file = OpenOptions::new().append(true).open(&path).expect("open");
    file.write_all(&line("/torn").as_bytes()[30..]).expect("written");
    file.write_all(line("/new\x1b[2J").as_bytes()).expect("written");
    file.flush().expect("written");
    // The rest of a line that began before the start is ignored.
    wait_until("the new line", || n(&latest(&json)["server_errors"]) == 1);
    let d = latest(&json);
    assert_eq!((n(&d["requests"]), n(&d["unparsed"]), number(&d["clients"][0]["errors"])), (1, 0, 1.0));
    assert!(!fs::read(&json).expect("a file").contains(&0x1b));
    signal(&top, 15);
    assert_eq!(top.wait().expect("ended").code(), Some(143));
}

#[test]
fn the_status_page_of_a_server_tells_too() {
    let folder = Folder::new();
    let apache = Apache::start(&folder);
    let json = folder.join("top.jsonl");
    let top = spawn(
        &folder,
        &["top", &apache.name(), "--window", "10m", "--interval", "200ms", "--json", json.to_str().expect("text")],
    );
    wait_until("the first look", || !documents(&json).is_empty());
    folder.json(&["run", &apache.url("/page/12"), "-c", "2", "-n", "200", "--no-store"], 0);
    wait_until("the requests", || n(&latest(&json)["requests"]) >= 200);
    let d = latest(&json);
    assert!(n(&d["requests"]) < 220 && d["sampled"] == true && !d["busy"].is_null(), "{d}");
    let of_page = |g: &Value| g["name"].as_str().is_some_and(|name| name.ends_with("page/{n}")) && n(&g["count"]) > 100;
    assert!(d["classes"].as_array().expect("classes").iter().any(of_page), "{d}");
    signal(&top, 2);
    let done = top.wait_with_output().expect("ended");
    assert!(String::from_utf8_lossy(&done.stdout).contains("by each worker's latest request"), "{done:?}");
}

#[test]
fn what_cannot_be_followed_is_refused_in_words() {
    let folder = Folder::new();
    let packed = folder.join("log.gz");
    File::create(&packed).expect("a file").write_all(&[0x1f, 0x8b, 8, 0, 0]).expect("written");
    for (args, code, word) in [
        (vec!["top", "/no/such.log"], 2, "there is no file"),
        (vec!["top", "/"], 1, "it is a folder"),
        (vec!["top", packed.to_str().expect("text")], 1, "packed"),
        (vec!["top", "nginx", "--from-start"], 2, "about logs"),
        (vec!["top"], 2, "LOG"),
    ] {
        let done = folder.run(&args);
        assert!(done.code == code && done.stderr.contains(word), "{done:?}");
    }
}
