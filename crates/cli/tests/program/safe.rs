//! Safety: credentials for the wrong server, secrets in files and process lists, control sequences on terminals, and results that
//! are lost because they cannot be written.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{Apache, CommandOutput, Folder, Target, free_port, get, processes_with, signal, wait_until};
use serde_json::Value;

// ---- servers --------------------------------------------------------------------------------------------------------

/// A real nginx that logs the credentials of each request.
struct Nginx {
    child: Child,
    log: PathBuf,
}

impl Nginx {
    fn start(folder: &Folder, port: u16, servers: &str) -> Nginx {
        let (config, at) = (folder.join("nginx.conf"), folder.path().display());
        let text = format!(
            "worker_processes 1; daemon off; pid {at}/nginx.pid; error_log {at}/error.log;\nevents {{}}\n\
             http {{ client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u;\n\
             scgi_temp_path {at}/s; default_type text/html;\n\
             log_format seen '$uri auth=$http_authorization cookie=$http_cookie key=$http_x_api_key';\n\
             access_log {at}/seen.log seen;\n{servers} }}\n"
        );
        fs::write(&config, text).expect("written");
        let mut nginx = Command::new("nginx");
        nginx.arg("-c").arg(&config).arg("-p").arg(folder.path()).stderr(Stdio::null());
        let child = nginx.spawn().expect("nginx runs (./x test installs it)");
        wait_until("nginx", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Nginx { child, log: folder.join("seen.log") }
    }

    /// The credentials of the requests since the last call, by path; waits for `requests` of them.
    fn seen(&self, requests: usize) -> HashMap<String, Vec<String>> {
        let read = || fs::read_to_string(&self.log).unwrap_or_default();
        wait_until("all requests in the log", || read().lines().count() >= requests);
        let mut all: HashMap<String, Vec<String>> = HashMap::new();
        for line in read().lines() {
            let (path, what) = line.split_once(' ').expect("a path first");
            all.entry(path.to_string()).or_default().push(what.to_string());
        }
        fs::write(&self.log, "").expect("emptied");
        all
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        signal(&self.child, libc::SIGTERM);
        let _ = self.child.wait();
    }
}

/// A server that sends the same bytes for each request and records the received heads.
fn fixed(answer: Vec<u8>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heads);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, log) = (answer.clone(), Arc::clone(&log));
            thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let line = head.lines().find_map(|l| l.strip_prefix("Content-Length: ").map(str::to_string));
                    let mut body = vec![0; line.and_then(|l| l.parse().ok()).unwrap_or(0)];
                    let _ = reader.read_exact(&mut body);
                    log.lock().expect("nobody panicked").push(head);
                    if reader.get_mut().write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, heads)
}

/// A response with a body.
fn answer(headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A program that ends with the test, also if that fails.
struct RunningProcess(Child);

impl RunningProcess {
    fn start(command: &mut Command) -> RunningProcess {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        RunningProcess(command.spawn().expect("starts"))
    }

    fn end(&mut self, number: i32) {
        signal(&self.0, number);
        self.0.wait().expect("ends");
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o7777
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_string()
}

/// Files below a folder that contain a text.
fn files_with(folder: &Path, what: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("readable").filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with(&path, what));
        } else if fs::read(&path).is_ok_and(|b| b.windows(what.len()).any(|w| w == what.as_bytes())) {
            found.push(path);
        }
    }
    found
}

// ---- credentials ----------------------------------------------------------------------------------------------------

#[test]
fn credentials_go_only_to_the_scheme_host_and_port_that_they_were_written_for() {
    let folder = Folder::new();
    let (own, other, tls) = (free_port(), free_port(), free_port());
    let at = folder.path().display();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"])
        .arg(folder.join("key"))
        .arg("-out")
        .arg(folder.join("cert"))
        .output();
    assert!(made.expect("openssl runs").status.success());
    let nginx = Nginx::start(
        &folder,
        own,
        &format!(
            "server {{ listen 127.0.0.1:{own}; location / {{ return 200 ok; }}
               location /near {{ return 302 /here; }}
               location /port {{ return 302 http://127.0.0.1:{other}/at-other; }}
               location /there-and-back {{ return 302 http://127.0.0.1:{other}/back; }}
               location /tls {{ return 302 https://127.0.0.1:{tls}/at-tls; }}
               location /host {{ return 302 http://127.0.0.2:{other}/at-other-host; }}
               location /page {{ return 200 '<img src=/own.png><img src=http://127.0.0.1:{other}/other.png>'; }} }}
             server {{ listen 127.0.0.1:{other}; listen 127.0.0.2:{other}; location / {{ return 200 ok; }}
               location /back {{ return 302 http://127.0.0.1:{own}/home; }} }}
             server {{ listen 127.0.0.1:{tls} ssl; ssl_certificate {at}/cert; ssl_certificate_key {at}/key;
               location / {{ return 200 ok; }} location /plain {{ return 302 http://127.0.0.1:{own}/at-plain; }} }}"
        ),
    );
    let all = "auth=Basic bWU6cHc= cookie=s=1 key=k";
    let none = "auth=- cookie=- key=-";
    let with = |login: &[&str], url: &str| {
        let mut args = vec!["run", url, "-n", "2", "-c", "1", "--redirects", "3", "--insecure"];
        args.extend(login);
        folder.json(&args, 0);
    };
    let everything = ["--basic", "me:pw", "-H", "Cookie: s=1", "-H", "X-Api-Key: k"];
    let here = |path: &str| format!("http://127.0.0.1:{own}{path}");
    let tls_url = format!("https://127.0.0.1:{tls}/plain");
    for (url, first, then, what) in [
        (here("/near"), "/near", "/here", all),
        (here("/port"), "/port", "/at-other", none),
        (here("/tls"), "/tls", "/at-tls", none),
        (tls_url, "/plain", "/at-plain", none),
    ] {
        with(&everything, &url);
        let seen = nginx.seen(4);
        assert_eq!(
            (seen[first].as_slice(), seen[then].as_slice()),
            (&[all, all].map(String::from)[..], &[what, what].map(String::from)[..]),
            "{url}"
        );
    }
    // A redirect to another server gets nothing; one back to the first server gets its credentials.
    with(&everything, &here("/there-and-back"));
    let seen = nginx.seen(6);
    assert_eq!((seen["/back"][0].as_str(), seen["/home"][0].as_str()), (none, all), "{seen:?}");
    for login in [["--bearer", "tok"], ["-H", "Authorization: Basic own"]] {
        with(&login, &here("/port"));
        let seen = nginx.seen(4);
        assert!(seen["/port"][0].starts_with("auth=B") && seen["/at-other"] == [none, none], "{login:?}: {seen:?}");
    }
    // Resources that a page embeds from another server.
    let mut page = vec!["run", "--page", "-n", "1", "-c", "1"];
    page.extend(everything);
    let url = here("/page");
    page.push(&url);
    folder.json(&page, 0);
    let seen = nginx.seen(3);
    assert_eq!((seen["/own.png"][0].as_str(), seen["/other.png"][0].as_str()), (all, none), "{seen:?}");
    // Another host of the plan has its own credentials, for its own requests.
    let plan = format!(
        "pick = 'order'\n[http]\nredirects = 3\n[[request]]\nurl = '{}'\nheaders = {{ Authorization = 'one' }}\n\
         [[request]]\nurl = 'http://127.0.0.2:{other}/own'\nheaders = {{ Authorization = 'two' }}\n",
        here("/host")
    );
    fs::write(folder.join("plan.toml"), plan).expect("written");
    folder.json(&["run", &text(&folder.join("plan.toml")), "-n", "2", "-c", "1"], 0);
    let seen = nginx.seen(3);
    assert_eq!(seen["/host"][0], "auth=one cookie=- key=-", "{seen:?}");
    assert_eq!((seen["/at-other-host"][0].as_str(), seen["/own"][0].as_str()), (none, "auth=two cookie=- key=-"));
}

#[test]
fn a_password_does_not_answer_the_challenge_of_another_server() {
    let folder = Folder::new();
    let challenge = "HTTP/1.1 401 Who are you\r\nWWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"\r\nContent-Length: 0\r\n\r\n";
    let (other, asked) = fixed(challenge.into());
    let redirect = format!("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other}/x\r\nContent-Length: 0\r\n\r\n");
    let (own, _) = fixed(redirect.into());
    let url = format!("http://127.0.0.1:{own}/");
    folder.json(&["run", &url, "-n", "4", "-c", "2", "--redirects", "2", "--digest", "me:pw"], 0);
    let asked = asked.lock().expect("nobody panicked");
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert!(asked.iter().all(|head| !head.contains("Authorization")), "{asked:?}");
    drop(asked);
    // Its own server gets the response.
    let (own, asked) = fixed(challenge.into());
    folder.json(&["run", &format!("http://127.0.0.1:{own}/"), "-n", "1", "-c", "1", "--digest", "me:pw"], 0);
    assert!(asked.lock().expect("nobody panicked").iter().any(|head| head.contains("Authorization: Digest")));
}

// ---- secrets --------------------------------------------------------------------------------------------------------

/// All ways to give a secret to `run`; each contains the word.
const SECRET: &str = "hunter2";

#[test]
fn secrets_reach_neither_store_nor_documents_nor_reports() {
    let folder = Folder::new();
    let (port, heads) = fixed(answer("", "hello"));
    let url = format!("http://127.0.0.1:{port}/a?token={SECRET}&b=seen");
    let (header, cookie) = (format!("X-Auth-Token: {SECRET}"), format!("Cookie: a={SECRET}"));
    let (login, field) = (format!("me:{SECRET}"), format!("password={SECRET}"));
    let proxy = format!("http://me:{SECRET}@127.0.0.1:{port}");
    let (json, log, junit) = (folder.join("run.json"), folder.join("log.csv"), folder.join("junit.xml"));
    let (json, log, junit) = (text(&json), text(&log), text(&junit));
    let common = ["run", url.as_str(), "-n", "4", "-c", "1", "-H", &header, "-H", &cookie, "--objective", "errors<1%"];
    let files = ["--json", json.as_str(), "--log", &log, "--junit", &junit];
    for how in [
        &["--basic", &login, "--form", &field, "--proxy", &proxy][..],
        &["--digest", &login, "--part", &field],
        &["--bearer", SECRET, "--body", SECRET],
    ] {
        let args = [&common[..], &files, how].concat();
        let done = folder.run(&args);
        assert_eq!(done.code, 0, "{done:?}");
        assert!(!done.stdout.contains(SECRET) && !done.stderr.contains(SECRET), "{done:?}");
        assert!(heads.lock().expect("nobody panicked").iter().any(|h| h.contains(SECRET)), "it was sent");
        let found = files_with(folder.path(), SECRET);
        assert!(found.is_empty(), "{how:?}: {found:?}");
        let run: Value = serde_json::from_str(&fs::read_to_string(&json).expect("written")).expect("JSON");
        assert!(
            run["plan"]["requests"][0]["url"].as_str().is_some_and(|u| u.ends_with("/a?token=***&b=seen")),
            "{run:#}"
        );
    }
    // The personalities' reports show the requests without it.
    fs::write(folder.join("urls"), format!("{url}\n")).expect("written");
    let (at, urls) = (port.to_string(), text(&folder.join("urls")));
    let (path, add) = (format!("/a?token={SECRET}"), format!("Cookie: a={SECRET}\\n"));
    for args in [
        &["ab", "-n", "1", "-A", &login, "-C", &cookie, &url][..],
        &["siege", "-v", "-r", "1", "-c", "1", "-H", &cookie, &url],
        &["httperf", "--server", "127.0.0.1", "--port", &at, "--uri", &path, "--add-header", &add],
        &["http_load", "-verbose", "-parallel", "1", "-fetches", "1", &urls],
        &["lwp-bench", "-n", "1", &url],
        &["wrk", "-d", "1s", "-t", "1", "-c", "1", "-H", &cookie, &url],
    ] {
        let output = folder.lastdrop(args).env("SIEGERC", "/dev/null").output().expect("runs");
        let done = CommandOutput::of(output, args);
        assert!(done.code == 0 && !done.stdout.contains(SECRET) && !done.stderr.contains(SECRET), "{done:?}");
    }
    fs::remove_file(urls).expect("removed");
    // The output of later commands.
    for args in [&["history"][..], &["show", "last"], &["show", "last", "--json"]] {
        let done = folder.run(args);
        assert!(done.code == 0 && !done.stdout.contains(SECRET), "{done:?}");
    }
    for name in ["plan.toml", "sweep.toml"] {
        // The user's own files may contain it; files that we make of them may not.
        let plan = if name == "plan.toml" {
            format!("users = 1\nrequests = 2\n[[request]]\nurl = '{url}'\nheaders = {{ Cookie = 'a={SECRET}' }}\n")
        } else {
            format!("url = '{url}'\nusers = 1\nrequests = 2\nheader = ['{cookie}']\n")
        };
        fs::write(folder.join(name), plan).expect("written");
    }
    let (plan, sweep, csv) =
        (text(&folder.join("plan.toml")), text(&folder.join("sweep.toml")), text(&folder.join("t.csv")));
    for args in [&["run", &plan, "--json", &json][..], &["sweep", &sweep, "--json", &json, "--csv", &csv]] {
        let done = folder.run(args);
        assert!(done.code == 0 && !done.stdout.contains(SECRET) && !done.stderr.contains(SECRET), "{done:?}");
        let mut found = files_with(folder.path(), SECRET);
        found.retain(|f| f.extension().is_none_or(|e| e != "toml"));
        assert!(found.is_empty(), "{args:?}: {found:?}");
    }
    let live =
        ["compare", "--live", &url, "--aa", "--blocks", "4", "-d", "50ms", "-c", "1", "-H", &cookie, "--json", &json];
    let done = folder.run(&live);
    assert!(!done.stdout.contains(SECRET) && !done.stderr.contains(SECRET), "{done:?}");
    let mut found = files_with(folder.path(), SECRET);
    found.retain(|f| f.extension().is_none_or(|e| e != "toml"));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn secrets_are_kept_where_that_is_asked_for_and_nobody_else_can_read_them() {
    let folder = Folder::new();
    let (port, _) = fixed(answer("", "hello"));
    let (url, json) = (format!("http://127.0.0.1:{port}/"), folder.join("run.json"));
    let login = format!("me:{SECRET}");
    let done =
        folder.run(&["run", &url, "-n", "2", "-c", "1", "--basic", &login, "--keep-secrets", "--json", &text(&json)]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!files_with(folder.path(), SECRET).is_empty());
    assert_eq!((mode(&json), mode(&folder.join("runs.sqlite"))), (0o600, 0o600));
    let shown = folder.json(&["show", "last"], 0);
    assert_eq!(shown["plan"]["requests"][0]["auth"]["basic"]["password"], SECRET, "{shown:#}");
}

#[test]
fn process_lists_show_no_secrets() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "5ms", "--workers", "40"]);
    let url = format!("{}?key={SECRET}", target.url());
    let (header, login) = (format!("Authorization: {SECRET}"), format!("me:{SECRET}"));
    let run = ["run", url.as_str(), "-d", "30s", "--basic", &login, "-H", &header, "--quiet"];
    let ab = ["ab", "-n", "1000000", "-A", &login, "-C", SECRET, "-kH", &header, url.as_str()];
    let siege = ["siege", "-t", "30S", "-H", &header, url.as_str()];
    for args in [&run[..], &ab, &siege] {
        let before = target.counts()["requests"].as_u64().expect("a count");
        let mut child = RunningProcess::start(&mut folder.lastdrop(args));
        wait_until("requests", || target.counts()["requests"].as_u64().is_some_and(|n| n > before + 3));
        let line = fs::read(format!("/proc/{}/cmdline", child.0.id())).expect("its command line");
        let line = String::from_utf8_lossy(&line).into_owned();
        child.end(libc::SIGINT);
        assert!(!line.contains(SECRET) && line.contains("*******") && line.contains("127.0.0.1"), "{line:?}");
    }
    assert!(processes_with(SECRET).is_empty());
}

// ---- modes ----------------------------------------------------------------------------------------------------------

#[test]
fn stores_and_journals_are_for_their_owner_alone_and_old_ones_are_mended() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 2");
    // With the modes of version 0.1.
    let (state, store) = (folder.join("state"), folder.join("data/lastdrop"));
    for dir in [&state, &store] {
        fs::create_dir_all(dir).expect("made");
        fs::set_permissions(dir, Permissions::from_mode(0o755)).expect("its mode");
    }
    let old = [state.join("apache-old.lock"), store.join("runs.sqlite")];
    for file in &old {
        fs::write(file, "").expect("written");
        fs::set_permissions(file, Permissions::from_mode(0o644)).expect("its mode");
    }
    let plan = format!(
        "server = '{}'\nurl = '{}'\nusers = 1\nduration = '30s'\n[settings]\nworkers = [3]\n",
        target.name(),
        target.url()
    );
    fs::write(folder.join("sweep.toml"), plan).expect("written");
    let mut command = folder.lastdrop(&["sweep", &text(&folder.join("sweep.toml"))]);
    command.env_remove("LASTDROP_STORE").env("XDG_DATA_HOME", folder.join("data"));
    let mut sweep = RunningProcess::start(&mut command);
    let of = |end: &str| {
        let all = fs::read_dir(&state).expect("readable").filter_map(|e| Some(e.ok()?.path()));
        all.filter(|p| p.to_string_lossy().ends_with(end)).collect::<Vec<_>>()
    };
    // Everything is written when the server is about to be changed. (A request before that would make us a visitor.)
    let changed = || of(".journal").iter().any(|j| fs::read_to_string(j).is_ok_and(|t| t.contains("\"changed\"")));
    wait_until("a change", || changed() && !of(".trial.conf").is_empty());
    wait_until("the log of writes", || store.join("runs.sqlite-wal").exists());
    let journal = of(".journal");
    assert_eq!(journal.len(), 1, "{journal:?}");
    assert!(fs::read_to_string(&journal[0]).expect("readable").contains("LASTDROP_STATE"), "it has the environment");
    for file in journal.iter().chain(&of(".lock")).chain(&of(".conf")) {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    assert_eq!((mode(&state), mode(&store)), (0o700, 0o700));
    for file in fs::read_dir(&store).expect("readable").filter_map(|e| Some(e.ok()?.path())) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    // Kill it, set the modes of an older version, and restore.
    sweep.end(libc::SIGKILL);
    fs::set_permissions(&journal[0], Permissions::from_mode(0o644)).expect("its mode");
    fs::set_permissions(&state, Permissions::from_mode(0o755)).expect("its mode");
    let looked = folder.run(&["restore", "--dry-run"]);
    assert!(looked.code == 0 && looked.stdout.contains("would be put back"), "{looked:?}");
    assert_eq!((mode(&state), mode(&journal[0])), (0o700, 0o600));
    assert_eq!(folder.run(&["restore"]).code, 0);
    wait_until("two workers", || target.scoreboard().is_some_and(|b| b.len() == 2));
    // A partial journal of a kill is deleted, too.
    let found = files_with(folder.path(), "LASTDROP_STATE");
    assert!(found.is_empty(), "the environment was in the journal alone: {found:?}");
}

#[test]
fn a_server_of_another_user_reads_its_override_and_nothing_else() {
    let folder = Folder::new();
    // Without a folder for an override the server starts with a file in lastdrop's folder, as the user who had started it.
    let apache = Apache::start_with(&folder, |text| {
        text.lines().filter(|l| !l.contains("IncludeOptional")).collect::<Vec<_>>().join("\n") + "\n"
    });
    let stop = |apache: &Apache| {
        let pid = fs::read_to_string(apache.folder.join("logs/apache2.pid")).expect("its pid");
        // SAFETY: a plain call on the server that was started above.
        unsafe { libc::kill(pid.trim().parse().expect("a number"), libc::SIGTERM) };
        wait_until("its end", || processes_with(&text(&apache.config())).is_empty());
    };
    stop(&apache);
    let (uid, gid) = (65_534, 65_534);
    let own = Command::new("chown").args(["-R", &format!("{uid}:{gid}")]).arg(&apache.folder).status();
    assert!(own.expect("chown runs").success());
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups", "/usr/sbin/apache2", "-f"]);
    assert!(command.arg(apache.config()).args(["-k", "start"]).status().expect("setpriv runs").success());
    wait_until("an answer of Apache", || get(apache.port, "/").is_some());
    let plan = format!(
        "server = '{}'\nurl = '{}'\nusers = 1\nrequests = 20\n[settings]\nMaxRequestWorkers = [3, 4]\n",
        apache.name(),
        apache.url("/")
    );
    fs::write(folder.join("sweep.toml"), plan).expect("written");
    let document = folder.json(&["sweep", &text(&folder.join("sweep.toml"))], 0);
    let rows = document["rows"].as_array().expect("rows");
    assert!(rows.len() == 2 && rows.iter().all(|r| r["answered"] == 20), "{document:#}");
    assert_eq!(mode(&folder.join("state")), 0o700, "nobody has to come by any more");
    stop(&apache);
}

// ---- terminals ------------------------------------------------------------------------------------------------------

/// Control sequences: set the title, in C0 and in C1, and reverse the reading direction.
const EVIL: &str = "\x1b]0;owned\x07\u{9b}31m\u{202e}";

fn steers(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{202a}'..='\u{202e}'))
}

/// A program that is busy until it is ended. An attacker has chosen its name and that of its function.
fn burn(folder: &Folder) -> RunningProcess {
    let program = folder.join(&format!("burn{EVIL}"));
    let source = folder.join("burn.c");
    fs::write(&source, "void burn(void) { for (volatile long i = 0;; i++); }\nint main(void) { burn(); }\n")
        .expect("written");
    let object = folder.join("burn.o");
    let tool = |name: &str, args: &[&str]| {
        let done = Command::new(name).args(args).output().expect("gcc and binutils run");
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let (source, object, built) = (text(&source), text(&object), text(&folder.join("burn")));
    tool("gcc", &["-O0", "-fno-inline", "-c", &source, "-o", &object]);
    tool("objcopy", &["--redefine-sym", &format!("burn=burn{EVIL}"), &object]);
    tool("gcc", &[&object, "-o", &built]);
    // perf looks up a function in a file whose name it can handle.
    fs::copy(&built, &program).expect("copied");
    RunningProcess::start(&mut Command::new(&program))
}

#[test]
fn names_of_processes_and_files_do_not_steer_the_terminal() {
    let folder = Folder::new();
    let child = burn(&folder);
    let plain = RunningProcess::start(&mut Command::new(folder.join("burn")));
    let plainly_named = format!("pid:{}", plain.0.id());
    let name = format!("pid:{}", child.0.id());
    let (recording, svg) = (text(&folder.join("r.jsonl")), text(&folder.join("f.svg")));
    let once = folder.run(&["watch", &name, "--once", "--interval", "100ms"]);
    let json = folder.run(&["watch", &name, "--once", "--interval", "100ms", "--json", "-"]);
    let record = folder.run(&["watch", &name, "--interval", "100ms", "-d", "500ms", "--record", &recording]);
    // On a busy machine it may get no CPU time.
    let long = |attempt: u64| format!("{}s", 1 + attempt);
    let profiles = (0..10).map(|i| folder.run(&["profile", &plainly_named, "-d", &long(i), "--flame", &svg]));
    let profile = { profiles }.find(|done| done.stdout.contains("burn")).expect("a sample in ten attempts");
    assert!(once.stdout.contains("burn\\x1b]0;owned\\x07\\u{9b}31m\\u{202e}"), "{once:?}");
    assert!(profile.stdout.contains("burn\\x1b]0"), "{profile:?}");
    // A recording of another user, changed by hand.
    let evil = fs::read_to_string(&recording).expect("recorded");
    let evil = evil.replace("\"log\":[]", "\"log\":[\"\\u001b[2J\u{9b}2J\\nforged\"]");
    assert!(evil.contains("forged"), "{evil}");
    fs::write(&recording, evil).expect("written");
    let replay = folder.run(&["watch", "--replay", &recording]);
    let last = folder.run(&["watch", "--replay", &recording, "--once"]);
    assert!(replay.stdout.contains("kernel: \\x1b[2J\\u{9b}2J\\nforged"), "{replay:?}");
    for done in [&once, &json, &record, &profile, &replay, &last] {
        assert!(done.code == 0 && !steers(&done.stdout) && !steers(&done.stderr), "{done:?}");
    }
    // The document has the unescaped name.
    let document: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert!(document["software"].as_str().is_some_and(|s| s.contains(EVIL)), "{document:#}");
    let graph = fs::read_to_string(&svg).expect("a flame graph");
    let parsed = Command::new("xmllint").args(["--noout", &svg]).output().expect("xmllint runs (./x test installs it)");
    assert!(parsed.status.success() && !steers(&graph), "{}\n{graph}", String::from_utf8_lossy(&parsed.stderr));
    assert!(graph.contains("burn\\x1b]0"), "{graph}");
}

#[test]
fn what_a_server_says_of_itself_does_not_steer_the_terminal() {
    let folder = Folder::new();
    // A header cannot contain others: such a response is not HTTP.
    let (port, _) = fixed(answer("Server: evil\u{9b}31m\u{202e}\r\nX: \u{9b}2J\r\n", EVIL));
    let url = format!("http://127.0.0.1:{port}/");
    let shown = |args: &[&str]| {
        let output = folder.lastdrop(args).env("SIEGERC", "/dev/null").output().expect("runs");
        let done = CommandOutput::of(output, args);
        let lines = format!("{}{}", done.stdout, done.stderr).replace("\r\n", "\n");
        assert!(!steers(&lines), "{done:?}");
        lines
    };
    assert!(shown(&["ab", "-n", "1", &url]).contains("Server Software:        evil\\u{9b}31m\\u{202e}"));
    assert!(shown(&["ab", "-v", "4", "-n", "1", &url]).contains("X: \\u{9b}2J"));
    assert!(shown(&["ab", "-w", "-n", "1", &url]).contains("evil\\u{9b}31m"));
    assert!(
        shown(&["httperf", "--server", "127.0.0.1", "--port", &port.to_string(), "--print-reply"]).contains("\\x1b]0")
    );
    assert!(shown(&["siege", "-g", &url]).contains("X: \\u{9b}2J"));
    assert!(shown(&["siege", "-p", &url]).contains("\\x1b]0;owned"));
    // siege's own colours stay; control sequences of others are escaped.
    let path = format!("{url}a%1b");
    let mut siege = folder.lastdrop(&["siege", "-v", "-r", "1", "-c", "1", &path]);
    let done = CommandOutput::of(siege.env("SIEGERC", "/dev/null").output().expect("runs"), &["siege"]);
    assert!(done.stdout.contains("\x1b[0;34mHTTP/1.1 200"), "{done:?}");
    // Bytes that are not text.
    let (port, _) = fixed(b"HTTP/1.1 200 OK\r\nServer: latin\x9b1\r\nContent-Length: 0\r\n\r\n".to_vec());
    let latin = shown(&["ab", "-n", "1", &format!("http://127.0.0.1:{port}/")]);
    assert!(latin.contains("Server Software:        latin\\x9b1"), "{latin}");
    // Names of files and options of our own command line.
    for args in [
        &["show", EVIL][..],
        &["run", EVIL],
        &["compare", EVIL, "b"],
        &["ab", EVIL],
        &["run", "x", &format!("--{EVIL}")],
    ] {
        let done = folder.run(args);
        assert!(done.code != 0 && !steers(&done.stderr), "{done:?}");
    }
}

// ---- results that cannot be written ---------------------------------------------------------------------------------

#[test]
fn a_report_that_nobody_gets_is_a_failure() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "2"]);
    let url = target.url();
    let pid = format!("pid:{}", target.child.id());
    let port = target.port.to_string();
    fs::write(folder.join("urls"), format!("{url}\n")).expect("written");
    let urls = text(&folder.join("urls"));
    folder.json(&["run", &url, "-n", "20"], 0);
    let all: &[&[&str]] = &[
        &["run", &url, "-n", "20"],
        &["run", &url, "-n", "20", "--json", "-"],
        &["run", &url, "--dry-run"],
        &["run", "--plan-schema"],
        &["history"],
        &["show", "last"],
        &["show", "last", "--json"],
        &["compare", "last", "last"],
        &["restore"],
        &["size", &format!("target@{url}")],
        &["watch", &pid, "--once", "--interval", "50ms"],
        &["watch", &pid, "--once", "--interval", "50ms", "--json", "-"],
        &["watch", &pid, "--interval", "50ms", "-d", "30s"],
        &["watch", &pid, "--interval", "50ms", "-d", "30s", "--json", "-"],
        &["guard", &format!("target@{url}"), "--max-size", "1T", "-d", "100ms", "--every", "100ms"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
        &["ab", "-n", "2", &url],
        &["ab", "-h"],
        &["ab", "-V"],
        &["siege", "-C"],
        &["siege", "-c", "1", "-r", "1", "-v", &url],
        &["httperf", "--server", "127.0.0.1", "--port", &port],
        &["http_load", "-parallel", "1", "-fetches", "2", &urls],
        &["lwp-bench", "-n", "2", &url],
        &["wrk", "-d", "1s", "-t", "1", "-c", "1", &url],
    ];
    for args in all {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("there");
        let output = folder.lastdrop(args).stdout(full).env("SIEGERC", "/dev/null").output().expect("runs");
        let done = CommandOutput::of(output, args);
        // Usage of ab has a code of its own.
        let code = if args[1..].contains(&"-h") { 22 } else { 1 };
        assert!(done.code == code && (code != 1 || done.stderr.contains("No space left")), "{done:?}");
        // A closed pipe is not a failure.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = folder.lastdrop(args).stdout(writer).env("SIEGERC", "/dev/null").output().expect("runs");
        let done = CommandOutput::of(output, args);
        assert!([0, 22].contains(&done.code) && !done.stderr.contains("write"), "{done:?}");
    }
    // If the document goes to stdout, the text goes to stderr.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("there");
    let status = folder.lastdrop(&["run", &url, "-n", "20", "--json", "-"]).stdout(Stdio::null()).stderr(full).status();
    assert_eq!(status.expect("runs").code(), Some(1));
    // A closed pipe of the text does not hide a file that could not be written.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = folder.lastdrop(&["run", &url, "-n", "20", "--json", "/dev/full"]);
    assert_eq!(command.stdout(writer).stderr(Stdio::null()).status().expect("runs").code(), Some(1));
}

#[test]
fn a_file_that_cannot_be_written_is_found_before_the_work() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 2");
    let (url, name) = (target.url(), target.name());
    let nowhere = text(&folder.join("nowhere/file"));
    let dir = text(folder.path());
    fs::write(folder.join("sweep.toml"), format!("url = '{url}'\nusers = 1\nrequests = 2\n")).expect("written");
    let sweep = text(&folder.join("sweep.toml"));
    let before = target.counts();
    for file in [nowhere.as_str(), &dir, "/proc/nothing"] {
        for args in [
            &["run", &url, "-n", "5", "--json", file][..],
            &["run", &url, "-n", "5", "--log", file],
            &["run", &url, "-n", "5", "--objective", "errors<1%", "--junit", file],
            &["capacity", &url, "--objective", "p99<1s", "--json", file],
            &["compare", "--live", &url, "--aa", "--json", file],
            &["sweep", &sweep, "--csv", file],
            &["sweep", &sweep, "--json", file],
            &["tune", &name, "--url", &url, "--json", file],
            &["size", &name, "--fit", "--url", &url, "--json", file],
            &["trace", &name, "--url", &url, "--json", file],
            &["profile", &name, "--url", &url, "--flame", file],
            &["profile", &name, "--url", &url, "--json", file],
            &["watch", &name, "--once", "--json", file],
            &["watch", &name, "--record", file],
            &["guard", &name, "--max-size", "1T", "--log", file],
            &["demo", "--json", file],
        ] {
            let done = folder.run(args);
            assert!(done.code == 1 && done.stderr.contains(file) && done.stdout.is_empty(), "{done:?}");
        }
    }
    assert_eq!(target.counts()["requests"], before["requests"], "not one request was sent");
}

#[test]
fn an_older_report_stays_until_the_new_one_is_whole() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "5ms"]);
    let url = target.url();
    let reports = folder.join("reports");
    fs::create_dir(&reports).expect("made");
    let files = ["run.json", "junit.xml", "log.csv"].map(|n| reports.join(n));
    for file in &files {
        fs::write(file, "the old one").expect("written");
    }
    fs::set_permissions(&files[0], Permissions::from_mode(0o640)).expect("its mode");
    let link = folder.join("link.json");
    std::os::unix::fs::symlink(&files[0], &link).expect("a link");
    let (json, junit, log) = (text(&link), text(&files[1]), text(&files[2]));
    let args = |d| {
        ["run", &url, "-d", d, "-c", "2", "--objective", "errors<1%", "--json", &json, "--junit", &junit, "--log", &log]
    };
    let mut child = RunningProcess::start(&mut folder.lastdrop(&args("30s")));
    let partial = files[2].with_file_name(format!("log.csv.{}.partial", child.0.id()));
    wait_until("lines in the log", || fs::metadata(&partial).is_ok_and(|m| m.len() > 1000));
    child.end(libc::SIGKILL);
    for file in &files {
        assert_eq!(fs::read_to_string(file).expect("there"), "the old one", "{}", file.display());
    }
    fs::remove_file(&partial).expect("what the killed run leaves");
    assert_eq!(fs::read_dir(&reports).expect("readable").count(), 3, "and nothing else");
    // A run that cannot begin leaves them alone, too.
    let dead = format!("http://127.0.0.1:{}/", free_port());
    let done = folder.run(&["run", &dead, "-n", "1", "--ca", "/nonexistent", "--log", &log]);
    assert!(
        done.code != 0 && fs::read_to_string(&log).is_ok_and(|t| t == "the old one" || t.starts_with("phase,")),
        "{done:?}"
    );
    // A run that ends replaces them, also the target of a link, and keeps their mode.
    let inode = fs::metadata(&files[0]).expect("there").ino();
    let done = folder.run(&args("300ms"));
    assert_eq!(done.code, 0, "{done:?}");
    let run: Value = serde_json::from_str(&fs::read_to_string(&files[0]).expect("there")).expect("JSON");
    assert_eq!(run["schema"], "lastdrop.run/1");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(mode(&files[0]), 0o640);
    assert_ne!(fs::metadata(&files[0]).expect("there").ino(), inode, "another file took its place");
    assert!(fs::read_to_string(&files[1]).expect("there").ends_with("</testsuites>\n"));
    let lines = fs::read_to_string(&files[2]).expect("there");
    assert_eq!(lines.lines().count() as u64, 1 + run["phases"][0]["requests"]["due"].as_u64().expect("a count"));
    assert_eq!(fs::read_dir(&reports).expect("readable").count(), 3);
    // Pipes are written directly.
    let mut child = folder.lastdrop(&["run", &url, "-n", "5", "--quiet", "--json", "/dev/stdout"]);
    let output = child.output().expect("runs");
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["schema"], "lastdrop.run/1");
}
