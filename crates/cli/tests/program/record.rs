//! `record`: the actions of a client or a real browser in a real application become a plan that fifty users can follow. Secrets
//! stay where they belong, and neither client nor server can block it or make it leak anything.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::browser::Browser;
use crate::common::shop::{PASSWORD, Shop, USER};
use crate::common::tls_server::TlsServer;
use crate::common::{CommandOutput, Folder, answer, assert_sums, head, n, serve, signal};

/// A recording in progress.
struct Recording {
    child: Child,
    /// Its first line: where it listens.
    first: String,
    out: BufReader<std::process::ChildStdout>,
    errors: Option<thread::JoinHandle<String>>,
}

impl Recording {
    fn start(folder: &Folder, args: &[&str]) -> Recording {
        let mut all = vec!["record", "--listen", "127.0.0.1:0"];
        all.extend(args);
        let mut command = folder.lastdrop(&all);
        command.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut errors = child.stderr.take().expect("piped");
        let errors = thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let mut first = String::new();
        out.read_line(&mut first).expect("it says where it listens");
        Recording { child, first, out, errors: Some(errors) }
    }

    fn port(&self) -> u16 {
        let rest = self.first.split("http://127.0.0.1:").nth(1).unwrap_or_else(|| panic!("{}", self.first));
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|p| p.parse().ok()).expect("a port")
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    fn end(mut self, by: i32) -> CommandOutput {
        signal(&self.child, by);
        let mut stdout = String::new();
        self.out.read_to_string(&mut stdout).expect("text");
        let status = self.child.wait().expect("it ends");
        let stderr = self.errors.take().and_then(|e| e.join().ok()).unwrap_or_default();
        CommandOutput { args: vec![], code: status.code().unwrap_or(-1), stdout, stderr }
    }

    /// Sends bytes, and returns what comes back until the connection is closed.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        // The server may refuse before all bytes are sent.
        let _ = stream.write_all(bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs curl with a cookie jar; returns the body.
fn curl(folder: &Folder, args: &[&str]) -> String {
    let jar = folder.join("jar");
    let output = Command::new("curl")
        // Ignore the proxy settings of this machine.
        .args([
            "-sS",
            "--noproxy",
            "",
            "--max-time",
            "60",
            "-b",
            jar.to_str().expect("text"),
            "-c",
            jar.to_str().expect("text"),
        ])
        .args(args)
        .output()
        .expect("curl");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The value of a hidden field.
fn hidden(page: &str, name: &str) -> String {
    let after = page.split(&format!("name=\"{name}\" value=\"")).nth(1);
    let after =
        after.or_else(|| page.split(&format!("name='{name}' value='")).nth(1)).unwrap_or_else(|| panic!("{page}"));
    after.split(['"', '\'']).next().unwrap_or_default().to_string()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o777
}

/// Replays the plan with fifty users: nothing fails, and each user has created and changed a thing of their own.
fn replays(folder: &Folder, shop: &Shop, done: &CommandOutput) {
    assert_eq!(done.code, 0, "{done:?}");
    let path = folder.join("plan.toml");
    let plan = fs::read_to_string(&path).expect("a plan");
    let data = fs::read_to_string(folder.join("plan.csv")).expect("a data file");
    assert!(plan.lines().count() <= 60, "{} lines:\n{plan}", plan.lines().count());
    assert!(!plan.contains(PASSWORD) && !plan.contains(USER) && data.contains(PASSWORD) && data.contains(USER));
    assert!(!done.stderr.contains(PASSWORD) && !done.stdout.contains(PASSWORD), "{done:?}");
    assert_eq!((mode(&path), mode(&folder.join("plan.csv"))), (0o600, 0o600));
    let steps = plan.matches("[[request]]").count() as u64;
    let before = shop.count();
    let n_args = (50 * steps * 2).to_string();
    let file = path.display().to_string();
    let args = ["run", &file, "-c", "50", "-n", &n_args, "--timeout", "120s", "--no-store"];
    let run = folder.json(&args, 0);
    assert_sums(&run);
    let phase = &run["phases"][0];
    assert_eq!(n(&phase["expectations"]["missed"]), 0, "{phase:#}\n{plan}");
    let failed: u64 = phase["requests"]["failed"].as_object().expect("kinds").values().map(n).sum();
    assert_eq!((failed, n(&phase["requests"]["timed_out"])), (0, 0), "{phase:#}");
    // Each step is a page; each session fetches its resources once.
    let pages = &phase["pages"];
    assert_eq!((n(&pages["loaded"]), n(&pages["failed"])), (100 * steps, 0), "{phase:#}");
    let after = shop.count();
    assert!(after.0 - before.0 >= 50 && after.1 - before.1 >= 50, "{before:?} → {after:?}");
    assert!(after.2 - before.2 >= 50, "each changes the thing that it has made: {before:?} → {after:?}");
}

#[test]
fn what_a_client_does_in_an_application_fifty_users_can_do() {
    let folder = Folder::new();
    let shop = Shop::start(&folder);
    let plan = folder.join("plan.toml").display().to_string();
    let recording = Recording::start(&folder, &["--to", &shop.url("/login.php"), "-o", &plan]);
    assert!(recording.first.contains("/login.php stands for http://127.0.0.1:"), "{}", recording.first);
    let form = |pairs: &[(&str, &str)]| -> Vec<String> {
        pairs.iter().flat_map(|(n, v)| ["--data-urlencode".to_string(), format!("{n}={v}")]).collect()
    };
    let post = |path: &str, pairs: &[(&str, &str)]| {
        let (url, fields) = (recording.url(path), form(pairs));
        let mut args: Vec<&str> = vec!["-L", &url];
        args.extend(fields.iter().map(String::as_str));
        curl(&folder, &args)
    };
    let login = curl(&folder, &[&recording.url("/login.php")]);
    curl(&folder, &[&recording.url("/style.css")]);
    let index = post("/login.php", &[("csrf", &hidden(&login, "csrf")), ("username", USER), ("password", PASSWORD)]);
    assert!(index.contains("<title>Things</title>"), "{index}");
    // The application's own links stay on the proxy.
    assert!(index.contains(&recording.url("/new.php")) && !index.contains(&shop.url("/")), "{index}");
    thread::sleep(Duration::from_millis(300));
    let found = curl(&folder, &[&recording.url("/search.php?q=shoe")]);
    assert!(found.contains("/thing.php?id=1\">blue shoe"), "{found}");
    let new = curl(&folder, &[&recording.url("/new.php")]);
    let fields =
        [("csrf", hidden(&new, "csrf")), ("draft", hidden(&new, "draft")), ("name", "a green & gold hat".into())];
    let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let thing = post("/new.php", &fields);
    assert!(thing.contains("<title>Thing</title>"), "{thing}");
    let id = shop_id(&shop);
    let saved = post(&format!("/thing.php?id={id}"), &[("csrf", &hidden(&thing, "csrf")), ("price", "12")]);
    assert!(saved.contains("<title>Saved</title>"), "{saved}");
    let done = recording.end(libc::SIGINT);
    assert!(done.stdout.contains("lastdrop run"), "{done:?}");
    replays(&folder, &shop, &done);
}

/// The parts of a request that a small application needs.
#[derive(Debug, Clone, Default)]
struct ReceivedRequest {
    method: String,
    path: String,
    fields: Vec<(String, String)>,
    body: String,
}

impl ReceivedRequest {
    fn read(stream: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
        let mut asked = ReceivedRequest::default();
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut words = line.split_whitespace();
        (asked.method, asked.path) = (words.next()?.into(), words.next()?.into());
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            asked.fields.push((name.to_ascii_lowercase(), value.into()));
        }
        let length = asked.field("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        asked.body = String::from_utf8_lossy(&body).into_owned();
        Some(asked)
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// An application that accepts a form only from its own page, by the Referer; otherwise it shows the form again, with status
/// 200. Its home page differs for users with a cookie only in a link.
fn careful_application() -> (String, Arc<Mutex<Vec<ReceivedRequest>>>, Arc<AtomicBool>) {
    let careless = Arc::new(AtomicBool::new(true));
    let takes = Arc::clone(&careless);
    let page = |title: &str, body: &str| {
        answer(
            "200 OK",
            "Content-Type: text/html\r\nSet-Cookie: sid=1\r\n",
            format!("<title>{title}</title><p>{body}</p>"),
        )
    };
    let (address, seen) = serve(ReceivedRequest::read, move |asked: &ReceivedRequest| {
        let path = asked.path.split('?').next().unwrap_or_default();
        let own = format!("http://{}/form", asked.field("host").unwrap_or_default());
        let from_form = asked.field("referer").is_some_and(|r| r.starts_with(&own));
        match (asked.method.as_str(), path) {
            ("POST", "/save") if from_form && takes.load(Ordering::Relaxed) => {
                answer("302 Found", "Location: /saved?id=17\r\n", "")
            }
            ("POST", _) => page("Notes", "please confirm that you mean it"),
            (_, "/home") if asked.field("cookie").is_some() => page("Notes", "<a href=/out>Log out</a>"),
            (_, "/home") => page("Notes", "<a href=/in>Log in</a>"),
            _ => page("Notes", "the same for everybody"),
        }
    });
    (address, seen, careless)
}

#[test]
fn a_form_that_is_taken_from_its_own_page_alone_is_taken_again_and_a_run_that_writes_nothing_is_not_good() {
    let folder = Folder::new();
    let (address, seen, takes) = careful_application();
    let plan = folder.join("plan.toml").display().to_string();
    let recording = Recording::start(&folder, &["--to", &format!("http://{address}/"), "-o", &plan]);
    curl(&folder, &[&recording.url("/form?token=s3cretValue99")]);
    let (form, own) = (recording.url("/form?token=s3cretValue99"), format!("Origin: {}", recording.url("")));
    let save = recording.url("/save");
    curl(&folder, &["-L", "-e", &form, "-H", &own, "-d", "note=hello", &save]);
    curl(&folder, &["-e", "http://elsewhere.example/secret", &recording.url("/home")]);
    let done = recording.end(libc::SIGINT);
    assert_eq!(done.code, 0, "{done:?}");
    let text = fs::read_to_string(&plan).expect("a plan");
    let steps: Vec<&str> = text.split("[[request]]").skip(1).collect();
    assert_eq!(steps.len(), 3, "{text}");
    assert!(steps[1].contains(&format!("\"Referer\" = \"http://{address}/form?token={{{{token}}}}\"")), "{text}");
    assert!(!text.contains("s3cretValue99") && !text.contains("elsewhere.example"), "{text}");
    // Its status, the target of its redirect, its title.
    assert!(steps[1].contains(r#"expect = ["status=200", "url=/saved?id", "text=<title>Notes</title>"]"#), "{text}");
    // Text that only this user sees: the page was requested once more, without cookies.
    assert!(steps[2].contains("\"text=Log out\"") && !steps[0].contains("everybody"), "{text}");
    let strangers = |path: &str| {
        let seen = seen.lock().expect("unpoisoned");
        seen.iter().filter(|a| a.path == path && a.field("cookie").is_none()).count()
    };
    assert_eq!((strangers("/home"), strangers("/save")), (1, 0), "asked once, and by GET alone");
    let saved = |seen: &[ReceivedRequest]| seen.iter().filter(|a| a.path.starts_with("/saved")).count() as u64;
    let before = saved(&seen.lock().expect("unpoisoned"));
    let run = folder.json(&["run", &plan, "-c", "2", "-n", "40"], 0);
    assert_sums(&run);
    let missed = |run: &serde_json::Value| n(&run["phases"][0]["expectations"]["missed"]);
    assert_eq!(missed(&run), 0, "{run:#}");
    assert!(saved(&seen.lock().expect("unpoisoned")) > before + 5, "what was recorded is done again");
    assert!(folder.run(&["show", "last"]).stdout.starts_with("Good: "));
    // The application now refuses it, with status 200 and the same title.
    takes.store(false, Ordering::Relaxed);
    let run = folder.json(&["run", &plan, "-c", "2", "-n", "40"], 0);
    assert!(missed(&run) >= 10, "{run:#}");
    let shown = folder.run(&["show", "last"]).stdout;
    assert!(shown.starts_with("Careful: ") && shown.contains("not what was expected"), "{shown}");
}

/// The id of the newest thing.
fn shop_id(shop: &Shop) -> u64 {
    // Three exist from the beginning.
    3 + shop.count().0
}

#[test]
fn what_a_browser_does_in_an_application_fifty_users_can_do() {
    let folder = Folder::new();
    let shop = Shop::start(&folder);
    let plan = folder.join("plan.toml").display().to_string();
    let recording = Recording::start(&folder, &["--to", &shop.url("/"), "-o", &plan]);
    let browser = Browser::start(&folder, &[]);
    walk(&browser, &recording.url(""));
    assert!(browser.url().starts_with(&recording.url("/thing.php?id=")), "{}", browser.url());
    drop(browser);
    let done = recording.end(libc::SIGTERM);
    assert!(fs::read_to_string(folder.join("plan.toml")).expect("a plan").contains("\n[page]"));
    replays(&folder, &shop, &done);
}

/// A login, a search, a form, a change.
fn walk(browser: &Browser, origin: &str) {
    browser.go(&format!("{origin}/login.php"));
    browser.see("Log in");
    browser.enter("[name=username]", USER);
    browser.enter("[name=password]", PASSWORD);
    browser.click("#go");
    browser.see("Things");
    browser.enter("[name=q]", "shoe");
    browser.click("#go");
    browser.see("Found");
    browser.click("#new");
    browser.see("New");
    browser.enter("[name=name]", "a grün hat");
    browser.click("#go");
    browser.see("Thing");
    browser.enter("[name=price]", "12");
    browser.click("#go");
    browser.see("Saved");
}

#[test]
fn a_browser_that_has_it_as_its_proxy_speaks_tls_to_an_authority_of_the_recording() {
    let folder = Folder::new();
    let server = TlsServer::start(&folder);
    let plan = folder.join("plan.toml").display().to_string();
    let ca = server.ca.display().to_string();
    let recording = Recording::start(&folder, &["--host", "localhost", "-o", &plan, "--ca", &ca]);
    let certificate = authority(&folder).expect("an authority");
    assert_eq!((mode(&certificate), mode(certificate.parent().expect("a folder"))), (0o600, 0o700));
    let proxy = recording.url("");
    let trusted = ["--proxy", &proxy, "--cacert", certificate.to_str().expect("text")];
    let by_proxy = |args: &[&str]| curl(&folder, &[&trusted[..], args].concat());
    let page = by_proxy(&[&server.url("/form")]);
    assert!(page.contains("a1b2c3d4e5"), "{page}");
    let fields = format!("ticket=a1b2c3d4e5&passphrase={}", "open+sesame");
    assert!(by_proxy(&["-d", &fields, &server.url("/send")]).contains("thanks"));
    // A client that does not trust the authority cannot connect, and no client reaches another host.
    let refused = |args: &[&str]| {
        let output = Command::new("curl")
            .args(["-sS", "--noproxy", "", "--max-time", "60", "--proxy", &proxy])
            .args(args)
            .output();
        let output = output.expect("curl");
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&[&server.url("/form")]).contains("certificate"));
    assert!(refused(&["https://elsewhere.test/"]).contains("403"));
    let plain = recording.send(b"GET http://elsewhere.test/x HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 403") && plain.contains("elsewhere.test"), "{plain}");
    let direct = recording.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(direct.starts_with("HTTP/1.1 400") && direct.contains("This is a proxy"), "{direct}");
    let socket =
        b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    assert!(recording.send(socket).starts_with("HTTP/1.1 501"));
    // Neither TLS nor HTTP: not for a recording.
    let ssh = format!("CONNECT localhost:{} HTTP/1.1\r\nHost: localhost\r\n\r\n", server.port);
    let mut stream = TcpStream::connect(("127.0.0.1", recording.port())).expect("it listens");
    stream.write_all(ssh.as_bytes()).expect("sent");
    let mut granted = [0; 64];
    assert!(stream.read(&mut granted).is_ok_and(|n| granted[..n].starts_with(b"HTTP/1.1 200")));
    stream.write_all(b"\0ssh").expect("sent");
    assert!(matches!(stream.read(&mut granted), Ok(0) | Err(_)));
    let done = recording.end(libc::SIGTERM);
    assert_eq!(done.code, 0, "{done:?}");
    for said in
        ["elsewhere.test, which no --host names (2 times)", "does not trust", "neither TLS nor HTTP", "WebSocket"]
    {
        assert!(done.stderr.contains(said), "{said}: {}", done.stderr);
    }
    assert!(!certificate.exists() && authority(&folder).is_none());
    let plan = fs::read_to_string(plan).expect("a plan");
    assert!(
        plan.contains("\"ticket\" = \"{{ticket}}\"") && plan.contains("\"passphrase\" = \"{{passphrase}}\""),
        "{plan}"
    );
    assert!(
        !plan.contains("sesame") && fs::read_to_string(folder.join("plan.csv")).expect("data").contains("open sesame")
    );
    let run =
        folder.json(&["run", &folder.join("plan.toml").display().to_string(), "-c", "3", "-n", "12", "--no-store"], 0);
    assert_eq!(n(&run["phases"][0]["expectations"]["missed"]), 0, "{run:#}");
}

#[test]
fn a_browser_gets_through_by_the_fingerprint_alone() {
    let folder = Folder::new();
    let server = TlsServer::start(&folder);
    let plan = folder.join("plan.toml").display().to_string();
    let recording = Recording::start(&folder, &["--host", "localhost", "-o", &plan, "--insecure"]);
    let proxy = format!("--proxy-server={}", recording.url(""));
    let certificate = authority(&folder).expect("an authority");
    let trust = format!("--ignore-certificate-errors-spki-list={}", fingerprint(&certificate));
    let browser = Browser::start(&folder, &[&proxy, "--proxy-bypass-list=<-loopback>", &trust]);
    browser.go(&server.url("/form"));
    browser.see("A form");
    drop(browser);
    let done = recording.end(libc::SIGINT);
    let written = fs::read_to_string(plan).expect("a plan");
    assert!(
        written.contains("/form\"") && written.contains("insecure = true") && done.code == 0,
        "{written}\n{done:?}"
    );
}

/// SHA-256 of a certificate's public key, in Chromium's form.
fn fingerprint(certificate: &Path) -> String {
    let command = format!(
        "openssl x509 -in '{}' -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | openssl base64",
        certificate.display()
    );
    let output = Command::new("sh").args(["-c", &command]).output().expect("openssl");
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

/// The certificate of the recording in progress. Its key is in no file.
fn authority(folder: &Folder) -> Option<PathBuf> {
    let entries = fs::read_dir(folder.path()).expect("readable");
    let mut paths = entries.filter_map(|e| Some(e.ok()?.path()));
    let private = paths.find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("lastdrop-record-")))?;
    let names: Vec<_> = fs::read_dir(&private).ok()?.map(|e| e.expect("an entry").file_name()).collect();
    assert!(names.iter().all(|name| name == "ca.pem"), "{names:?}");
    Some(private.join("ca.pem"))
}

#[test]
fn what_a_killed_recording_leaves_is_no_listener_and_goes_with_the_next() {
    let folder = Folder::new();
    let plan = folder.join("plan.toml").display().to_string();
    let recording = Recording::start(&folder, &["--host", "localhost", "-o", &plan]);
    let (port, certificate) = (recording.port(), authority(&folder).expect("an authority"));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    recording.end(libc::SIGKILL);
    assert!(certificate.exists() && TcpStream::connect(("127.0.0.1", port)).is_err());
    // Also a recording that needs no authority.
    let next = Recording::start(&folder, &["--to", "http://127.0.0.1:1/", "-o", &plan]);
    assert!(!certificate.exists());
    // Nothing was recorded, so there is no plan, and existing files stay.
    let done = next.end(libc::SIGINT);
    assert!(done.code == 1 && done.stderr.contains("nothing was recorded"), "{done:?}");
    assert!(authority(&folder).is_none() && !Path::new(&plan).exists());
}

#[test]
fn a_request_with_two_hosts_is_passed_on_to_none() {
    let folder = Folder::new();
    let (address, seen) = serve(head, |()| answer("200 OK", "", "x"));
    let plan = folder.join("plan.toml").display().to_string();
    let recording = Recording::start(&folder, &["--to", &format!("http://{address}/"), "-o", &plan]);
    let own = format!("Host: 127.0.0.1:{}\r\n", recording.port());
    for other in ["Host: other.test\r\n", "HOST: other.test\r\n", &own] {
        for hosts in [format!("{own}{other}"), format!("{other}{own}")] {
            let text = recording.send(format!("GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n").as_bytes());
            assert!(text.starts_with("HTTP/1.1 400 "), "{hosts}{text}");
        }
    }
    assert!(seen.lock().expect("nobody panicked").is_empty());
    let text = recording.send(format!("GET / HTTP/1.1\r\n{own}Connection: close\r\n\r\n").as_bytes());
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[test]
fn a_recording_is_seen_by_nobody_else_and_asked_for_in_one_way() {
    let folder = Folder::new();
    let plan = folder.join("plan.toml").display().to_string();
    for (args, said) in [
        (vec!["--to", "http://127.0.0.1:1/", "--listen", "0.0.0.0:0"], "loopback"),
        (vec!["--host", "shop.test", "--listen", "192.0.2.1:8888"], "loopback"),
        (vec!["--host", "https://shop.test"], "without scheme"),
        (vec!["--to", "http://127.0.0.1:1/", "--host", "shop.test"], "cannot be used with"),
        (vec![], "--to"),
    ] {
        let done = folder.run(&[&["record", "-o", &plan][..], &args].concat());
        assert!(done.code == 2 && done.stderr.contains(said), "{args:?}: {done:?}");
    }
    // An existing default plan is not overwritten.
    fs::write(folder.join("plan.toml"), "mine").expect("written");
    let mut command = folder.lastdrop(&["record", "--to", "http://127.0.0.1:1/"]);
    let output = command.current_dir(folder.path()).output().expect("runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("exists already"), "{output:?}");
}

#[test]
fn what_cannot_be_passed_on_is_said_and_nothing_hangs() {
    let folder = Folder::new();
    let (address, _) = serve(read_head, |head: &String| match head.split(' ').nth(1).unwrap_or_default() {
        // More than one read, so that a part is passed on before the end turns out to be missing.
        "/torn" => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9c40\r\n";
            [head.as_bytes(), &[b'h'; 40_000], b"\r\nzz\r\n"].concat()
        }
        "/endless" => b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbeginning".to_vec(),
        "/chunk" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        "/garbage" => b"SSH-2.0-x\r\n\r\n".to_vec(),
        "/long" => [&b"HTTP/1.1 200 OK\r\nX: "[..], &vec![b'x'; 300_000]].concat(),
        "/moved" => answer("302 Found", "Location: http://elsewhere.test/\r\n", ""),
        "/cookie" => answer("200 OK", "Set-Cookie: __Host-a=1; Secure; Path=/; Domain=127.0.0.1\r\n", "c"),
        _ => answer(
            "200 OK",
            "Content-Type: text/html\r\nStrict-Transport-Security: max-age=9\r\n",
            format!("seen {head}"),
        ),
    });
    let plan = folder.join("plan.toml").display().to_string();
    let recording = Recording::start(&folder, &["--to", &format!("http://{address}/"), "-o", &plan]);
    let host = format!("127.0.0.1:{}", recording.port());
    let ask = |path: &str| {
        recording.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())
    };
    let fine = ask("/fine");
    // The server gets its own name as Host, and header fields that would lead the browser away are removed.
    assert!(fine.contains(&format!("Host: {address}")) && !fine.contains("Strict-Transport"), "{fine}");
    assert!(ask("/cookie").contains("Set-Cookie: lastdrop__Host-a=1; Path=/\r\n"));
    assert!(ask("/moved").contains("Location: http://elsewhere.test/"));
    assert!(ask("/chunk").starts_with("HTTP/1.1 502"));
    assert!(ask("/garbage").starts_with("HTTP/1.1 502") && ask("/long").starts_with("HTTP/1.1 502"));
    let torn = ask("/torn");
    assert!(torn.contains("hhhh") && !torn.ends_with("0\r\n\r\n"), "a torn answer stays torn: {torn:.200}");
    // Two requests in one write get two responses, in order.
    let two = format!(
        "GET /one HTTP/1.1\r\nHost: {host}\r\n\r\nGET /two HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    );
    let two = recording.send(two.as_bytes());
    assert!(two.find("seen GET /one") < two.find("seen GET /two") && two.contains("seen GET /two"), "{two}");
    for (bytes, status) in [
        (format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: {}", "x".repeat(100_000)), "400"),
        ("\u{16}\u{3}\u{1}nonsense\r\n\r\n".to_string(), "400"),
        (format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "400"),
        (format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"), "501"),
        ("GET / HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n".to_string(), "403"),
        (format!("GET http://elsewhere.test/ HTTP/1.1\r\nHost: {host}\r\n\r\n"), "400"),
        (format!("CONNECT elsewhere.test:443 HTTP/1.1\r\nHost: {host}\r\n\r\n"), "400"),
    ] {
        let refused = recording.send(bytes.as_bytes());
        assert!(refused.starts_with(&format!("HTTP/1.1 {status}")), "{bytes:.80}: {refused}");
    }
    // An endless body is refused when it is too long, within a bounded amount of memory.
    let endless = endless_body(&recording, &host);
    assert!(endless.starts_with("HTTP/1.1 413"), "{endless}");
    // Clients with an unfinished request give way to later ones.
    let begun = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", recording.port())).expect("it listens");
        stream.write_all(bytes).map(|()| stream)
    };
    let slow: Vec<_> = (0..300).map(|_| begun(b"GET / HT")).collect();
    assert!(ask("/fine").contains("seen"));
    drop(slow);
    // A response that never ends does not block others.
    let mut endless = begun(format!("GET /endless HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).expect("sent");
    assert!(endless.read(&mut [0; 100]).is_ok_and(|n| n > 0));
    let done = recording.end(libc::SIGINT);
    assert!(!done.stderr.contains("panicked") && done.code == 0, "{done:?}");
    for said in [
        "no whole answer yet",
        "elsewhere.test, which is not recorded",
        "a chunk size that is not a number",
        "asked as 'elsewhere.test'",
        "64 MB",
    ] {
        assert!(done.stderr.contains(said), "{said}: {}", done.stderr);
    }
}

/// Reads the head of a request, and nothing after it.
fn read_head(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

fn endless_body(recording: &Recording, host: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", recording.port())).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let chunk = [&b"10000\r\n"[..], &vec![b'x'; 0x10000], b"\r\n"].concat();
    // 128 MB; it is refused earlier.
    for _ in 0..2048 {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let status = fs::read_to_string(format!("/proc/{}/status", recording.child.id())).expect("it runs");
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak_kb < 300_000, "{peak_kb} kB");
    String::from_utf8_lossy(&text).into_owned()
}
