//! Shapes of load and features of requests, with real servers: nginx and Apache with TLS, compression, proxies and
//! authentication, and small test servers that record requests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Folder, Target, answer, assert_sums, free_port, get, n, serve, signal, wait_until};
use serde_json::Value;

fn phase<'a>(run: &'a Value, name: &str) -> &'a Value {
    run["phases"].as_array().expect("phases").iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn main_phase(run: &Value) -> &Value {
    phase(run, "main")
}

// ---- servers of the test --------------------------------------------------------------------------------------------

/// A request received by a test server.
#[derive(Debug, Clone, Default)]
struct ReceivedRequest {
    peer: String,
    method: String,
    path: String,
    version: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Reads one request; None at the end of the connection.
fn read_request(stream: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut line = String::new();
    if stream.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split_whitespace();
    let mut seen = ReceivedRequest {
        peer: stream.get_ref().peer_addr().ok()?.ip().to_string(),
        method: words.next()?.into(),
        path: words.next()?.into(),
        version: words.next()?.into(),
        ..ReceivedRequest::default()
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        seen.headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let length = seen.headers.get("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    seen.body = vec![0; length];
    stream.read_exact(&mut seen.body).ok()?;
    Some(seen)
}

/// nginx with the test's configuration.
struct Nginx {
    child: Child,
}

impl Nginx {
    fn start(folder: &Folder, port: u16, servers: &str) -> Nginx {
        let config = folder.join("nginx.conf");
        let at = folder.path().display();
        let text = format!(
            "worker_processes 1; daemon off; pid {at}/nginx.pid; error_log {at}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;\n\
             uwsgi_temp_path {at}/u; scgi_temp_path {at}/s; types {{ text/html html; text/css css; }}\n{servers} }}\n"
        );
        fs::write(&config, text).expect("written");
        let child = Command::new("nginx")
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(folder.path())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx runs (./x test installs it)");
        wait_until("nginx", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Nginx { child }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        signal(&self.child, libc::SIGTERM);
        let _ = self.child.wait();
    }
}

/// Creates an authority, a server certificate for 127.0.0.1 and localhost, and a client certificate, all as PEM files.
fn certificates(folder: &Folder) {
    let at = folder.path().display();
    let script = format!(
        "set -e; cd {at}; key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
         openssl req -x509 $key -keyout ca.key -out ca.pem -days 30 -subj '/CN=test authority'
         for who in server client; do
             openssl req $key -keyout $who.key -out $who.csr -subj /CN=localhost
             printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\\nbasicConstraints=CA:FALSE\\n' > ext
             openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $who.pem -days 30 -extfile ext
         done"
    );
    let done = Command::new("sh").arg("-c").arg(script).output().expect("sh and openssl run");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Apache with the modules for authentication and other features that browsers use.
struct Apache {
    child: Child,
    port: u16,
}

impl Apache {
    fn start(folder: &Folder) -> Apache {
        let port = free_port();
        let at = folder.path().display();
        let modules = [
            "mpm_event",
            "authn_core",
            "authn_file",
            "authz_core",
            "authz_user",
            "auth_basic",
            "auth_digest",
            "alias",
            "dir",
            "mime",
            "deflate",
            "filter",
            "brotli",
            "proxy",
            "proxy_http",
            "proxy_connect",
            "headers",
            "rewrite",
        ];
        let load: String =
            modules.iter().map(|m| format!("LoadModule {m}_module /usr/lib/apache2/modules/mod_{m}.so\n")).collect();
        fs::create_dir_all(folder.join("htdocs/private")).expect("made");
        fs::write(folder.join("htdocs/index.html"), "hello from apache ".repeat(500)).expect("written");
        fs::write(folder.join("htdocs/private/index.html"), "secret").expect("written");
        // The format of htdigest, for user me with password pass in the realm test.
        fs::write(folder.join("digest"), "me:test:8e4f20024fc51ff4b9b49dfb5d7b193b\n").expect("written");
        let config = format!(
            "ServerRoot {at}\nPidFile {at}/apache.pid\nErrorLog {at}/apache.log\nListen 127.0.0.1:{port}\n{load}\
             ServerName localhost\nDocumentRoot {at}/htdocs\nDirectoryIndex index.html\nTypesConfig /dev/null\n\
             AddType text/html .html\nKeepAliveTimeout 30\nMaxKeepAliveRequests 0\n\
             <Location /gzip>\nSetOutputFilter DEFLATE\n</Location>\nAlias /gzip {at}/htdocs\n\
             <Location /br>\nSetOutputFilter BROTLI_COMPRESS\n</Location>\nAlias /br {at}/htdocs\n\
             <Location /private>\nAuthType Digest\nAuthName test\nAuthUserFile {at}/digest\nRequire valid-user\n</Location>\n\
             RewriteEngine On\nRewriteRule ^/old$ /new [R=302,L]\nRewriteRule ^/new$ /index.html [L]\n\
             RewriteRule ^/loop$ /loop [R=301,L]\n\
             ProxyRequests On\nAllowCONNECT 1-65535\n"
        );
        fs::write(folder.join("apache.conf"), config).expect("written");
        let child = Command::new("/usr/sbin/apache2")
            .args(["-X", "-f"])
            .arg(folder.join("apache.conf"))
            .stderr(Stdio::null())
            .spawn()
            .expect("apache2 runs (./x test installs it)");
        wait_until("Apache", || get(port, "/").is_some());
        Apache { child, port }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        signal(&self.child, libc::SIGTERM);
        let _ = self.child.wait();
    }
}

// ---- arrivals and phases --------------------------------------------------------------------------------------------

#[test]
fn phases_follow_each_other_on_the_same_connections() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "40"]);
    let plan = format!(
        "url = '{}'\nseed = 5\n\
         [[phase]]\nname = 'warm-up'\nmeasured = false\nusers = 2\nduration = '500ms'\n\
         [[phase]]\nname = 'up'\nrate = 0\nto_rate = 400\nduration = '500ms'\n\
         [[phase]]\nname = 'steps'\nrate = 100\nto_rate = 300\nsteps = 3\nduration = '750ms'\n\
         [[phase]]\nname = 'spike'\nrate = 100\nburst = 20\nduration = '1s'\n\
         [[phase]]\nname = 'users'\nusers = 1\nto_users = 4\nduration = '500ms'\n",
        target.url()
    );
    fs::write(folder.join("plan.toml"), plan).expect("written");
    for threads in ["1", "3"] {
        let before = n(&target.counts()["requests"]);
        let run = folder.json(&["run", folder.join("plan.toml").to_str().expect("text"), "-t", threads], 0);
        assert_sums(&run);
        let due = |name: &str| n(&phase(&run, name)["requests"]["due"]);
        assert_eq!((due("up"), due("steps"), due("spike")), (100, 150, 100));
        assert_eq!(phase(&run, "warm-up")["measured"], false);
        assert!(due("users") > 20 && due("warm-up") > 20);
        let answered: u64 =
            run["phases"].as_array().expect("phases").iter().map(|p| n(&p["requests"]["answered"])).sum();
        assert_eq!(n(&target.counts()["requests"]) - before, answered);
        let opened: u64 =
            run["phases"].as_array().expect("phases").iter().map(|p| n(&p["connections"]["opened"])).sum();
        assert!(opened < 60, "connections are kept from phase to phase: {opened}");
    }
}

/// The value at quantile q of a sorted list.
fn quantile(sorted: &[u64], q: f64) -> f64 {
    sorted[((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len()) - 1] as f64
}

/// Response latencies computed from the run's logged due times and the server's own log.
fn truth(run_log: &str, server_log: &str) -> Vec<u64> {
    let answered: BTreeMap<&str, u64> = server_log
        .lines()
        .filter_map(|l| {
            let mut fields = l.split(',');
            let at = fields.next()?.parse().ok()?;
            Some((fields.nth(1)?, at))
        })
        .collect();
    assert_eq!(answered.len(), server_log.lines().count(), "each request has a path of its own");
    let mut due: Vec<u64> =
        run_log.lines().skip(1).map(|l| l.split(',').nth(2).expect("due").parse().expect("a time")).collect();
    let mut done: Vec<u64> = answered.values().copied().collect();
    assert_eq!(due.len(), done.len());
    // Requests are sent in the order of their due times, and answered in about that order.
    due.sort_unstable();
    done.sort_unstable();
    let mut all: Vec<u64> = due.iter().zip(&done).map(|(due, done)| done.saturating_sub(*due)).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_stall_is_as_long_as_it_was() {
    let _alone = crate::common::alone();
    for (name, extra) in [("uniform", vec!["-t", "4"]), ("poisson", vec!["--arrivals", "poisson"])] {
        let folder = Folder::new();
        let log = folder.join("answers");
        let target = Target::start(
            &folder,
            &["--workers", "300", "--stall-at", "1s", "--stall-for", "1s", "--log", log.to_str().expect("text")],
        );
        let requests = folder.join("requests.csv");
        let url = format!("{}{{{{random}}}}-{{{{random}}}}", target.url());
        let mut args = vec!["run", &url, "-r", "500", "-d", "4s", "--log", requests.to_str().expect("text")];
        args.extend(extra);
        let run = folder.json(&args, 0);
        assert_sums(&run);
        let all = truth(&fs::read_to_string(&requests).expect("written"), &fs::read_to_string(&log).expect("written"));
        let response = &main_phase(&run)["latency_us"]["response"];
        for (field, q) in [("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999)] {
            let (said, was) = (response[field].as_f64().expect("a number"), quantile(&all, q));
            // Never less than the real latency, which would be coordinated omission. More only by the time between the server's
            // response and our reading of it, which may be as long as the stall on a busy machine (0.35 s was seen). That the
            // engine adds nothing is shown in simulated worlds.
            assert!(said > 0.97 * was - 20_000.0, "{name}: {field} is {said}, was {was}");
            assert!(said < 1.03 * was + 1_000_000.0, "{name}: {field} is {said}, was {was}");
        }
        let (said, was) = (response["p50"].as_f64().expect("a number"), quantile(&all, 0.5));
        assert!((said - was).abs() < 50_000.0, "{name}: p50 is {said}, was {was}");
    }
}

#[test]
fn more_threads_than_users_lose_nothing() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "10"]);
    for (args, due) in [
        (["-n", "100", "-c", "2", "-t", "4"], 100),
        (["-n", "3", "-c", "8", "-t", "8"], 3),
        (["-n", "50", "-r", "1000", "-t", "3"], 50),
    ] {
        let mut all = vec!["run"];
        let url = target.url();
        all.push(&url);
        all.extend(args);
        let run = folder.json(&all, 0);
        assert_sums(&run);
        assert_eq!(n(&main_phase(&run)["requests"]["answered"]), due, "{args:?}");
    }
}

#[test]
fn users_pause_as_long_as_they_think() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "10"]);
    let run = folder.json(&["run", &target.url(), "-c", "5", "-d", "1s", "--think", "100ms"], 0);
    let due = n(&main_phase(&run)["requests"]["due"]);
    // Five users with ten requests per second each, less the response time.
    assert!((15..=55).contains(&due), "{due}");
}

// ---- TLS ------------------------------------------------------------------------------------------------------------

#[test]
fn tls_is_verified_counted_and_resumed() {
    let folder = Folder::new();
    certificates(&folder);
    let (port, mutual) = (free_port(), free_port());
    let at = folder.path().display();
    let tls = format!(
        "ssl_certificate {at}/server.pem; ssl_certificate_key {at}/server.key; ssl_session_cache shared:a:1m; ssl_protocols TLSv1.2 TLSv1.3;"
    );
    let _nginx = Nginx::start(
        &folder,
        port,
        &format!(
            "server {{ listen 127.0.0.1:{port} ssl; {tls} location / {{ return 200 hello; }} }}
             server {{ listen 127.0.0.1:{mutual} ssl; {tls} ssl_client_certificate {at}/ca.pem; ssl_verify_client on;
                       location / {{ return 200 hello; }} }}"
        ),
    );
    let url = format!("https://127.0.0.1:{port}/");
    let ca = format!("{at}/ca.pem");
    let run = |args: &[&str], code: i32| {
        let mut all = vec!["run"];
        all.extend(args);
        all.extend(["-n", "40", "-c", "4"]);
        let run = folder.json(&all, code);
        assert_sums(&run);
        run
    };
    // An untrusted certificate: nothing is sent over such a connection.
    let refused = run(&[&url], 1);
    assert_eq!(n(&main_phase(&refused)["requests"]["failed"]["connect"]), 40);
    let errors = refused["generator"]["connect_errors"].to_string();
    assert!(errors.contains("its issuer is not an authority") && errors.contains("--ca FILE"), "{errors}");
    for good in [vec![url.as_str(), "--ca", &ca], vec![&url, "--insecure"], vec![&url, "--ca", &ca, "--tls", "1.2"]] {
        let p = main_phase(&run(&good, 0)).clone();
        assert_eq!((n(&p["requests"]["answered"]), n(&p["connections"]["handshakes_full"])), (40, 4), "{p}");
        assert_eq!(n(&p["latency_us"]["tls"]["count"]), 4);
    }
    // The certificate is for 127.0.0.1 and localhost.
    let other = run(&[&url, "--ca", &ca, "--server-name", "example.org"], 1);
    assert!(other["generator"]["connect_errors"].to_string().contains("localhost, not for example.org"), "{other}");
    run(&[&url, "--ca", &ca, "--server-name", "localhost"], 0);
    for version in ["1.2", "1.3"] {
        let resumed = run(&[&url, "--ca", &ca, "--keepalive", "off", "--tls", version], 0);
        let c = &main_phase(&resumed)["connections"];
        assert_eq!(n(&c["handshakes_full"]) + n(&c["handshakes_resumed"]), 40);
        assert!(n(&c["handshakes_resumed"]) >= 30, "{version}: {c}");
    }
    let full = run(&[&url, "--ca", &ca, "--keepalive", "off", "--no-resumption"], 0);
    assert_eq!(n(&main_phase(&full)["connections"]["handshakes_full"]), 40);
    // A server that requires a client certificate.
    let mutual = format!("https://127.0.0.1:{mutual}/");
    let nobody = run(&[&mutual, "--ca", &ca], 0);
    assert_eq!(n(&main_phase(&nobody)["status"]["400"]), 40);
    let (cert, key) = (format!("{at}/client.pem"), format!("{at}/client.key"));
    let known = run(&[&mutual, "--ca", &ca, "--cert", &cert, "--key", &key], 0);
    assert_eq!(n(&main_phase(&known)["status"]["200"]), 40);
    // TLS to a port without TLS, and the reverse.
    let plain = Target::start(&folder, &[]);
    let wrong = run(&[&plain.url().replace("http:", "https:"), "--insecure"], 1);
    assert_eq!(n(&main_phase(&wrong)["requests"]["failed"]["connect"]), 40);
    let wrong = run(&[&url.replace("https:", "http:")], 0);
    assert_eq!(n(&main_phase(&wrong)["status"]["400"]), 40);
}

// ---- users ----------------------------------------------------------------------------------------------------------

#[test]
fn a_session_logs_in_and_takes_values_along() {
    let (address, seen) = serve(read_request, |r| match r.path.as_str() {
        "/login" => {
            let name = String::from_utf8_lossy(&r.body).replace("user=", "").replace("&password=x+y%26", "");
            answer(
                "200 OK",
                format!("Set-Cookie: sid={name}; Path=/\r\nX-Token: t-{name}\r\n"),
                "{\"items\":[{\"id\":17}]}",
            )
        }
        path if path.starts_with("/items/17") && r.headers.contains_key("cookie") => {
            answer("200 OK", "", "<input name=csrf value=c-9>")
        }
        "/buy" => answer("200 OK", "Set-Cookie: sid=; Max-Age=0; Path=/\r\n", "bought"),
        _ => answer("403 Forbidden", "", "who are you?"),
    });
    let folder = Folder::new();
    fs::write(folder.join("users.csv"), "name,city\nann,Ulm\nbob,\"Bad Orb\"\n").expect("written");
    let plan = format!(
        r#"
pick = "session"
requests = 24
users = 2
url = "http://{address}/login"
[data]
file = "users.csv"
per = "user"
[[request]]
name = "login"
form = {{ user = "{{{{name}}}}", password = "x y&" }}
expect = ["status=200"]
extract.token = {{ header = "X-Token" }}
extract.item = {{ json = "/items/0/id" }}
[[request]]
url = "http://{address}/items/{{{{item}}}}?city={{{{city}}}}"
headers = {{ "X-Token" = "{{{{token}}}}" }}
extract.csrf = {{ regex = 'value=([^>]+)' }}
[[request]]
method = "POST"
url = "http://{address}/buy"
body = '{{"csrf":"{{{{csrf}}}}"}}'
expect = ["text=bought"]
"#
    );
    fs::write(folder.join("plan.toml"), plan).expect("written");
    let run = folder.json(&["run", folder.join("plan.toml").to_str().expect("text")], 0);
    assert_sums(&run);
    let p = main_phase(&run);
    assert_eq!((n(&p["requests"]["answered"]), n(&p["expectations"]["missed"])), (24, 0), "{p}");
    let seen = seen.lock().expect("nobody panicked");
    assert_eq!(seen.len(), 24);
    for name in ["ann", "bob"] {
        let city = if name == "ann" { "Ulm" } else { "Bad%20Orb" };
        let cookie = format!("sid={name}");
        let of = |path: &str| {
            seen.iter()
                .filter(|r| r.path == path && r.headers.get("cookie") == Some(&cookie))
                .cloned()
                .collect::<Vec<_>>()
        };
        let items = of(&format!("/items/17?city={city}"));
        let buys = of("/buy");
        // The number of sessions of each user depends on the machine; all but the last are complete.
        assert!(buys.len() + 1 >= items.len(), "{name}: {seen:?}");
        assert!(items.iter().all(|r| r.headers["x-token"] == format!("t-{name}")));
        assert!(buys.iter().all(|r| r.body == b"{\"csrf\":\"c-9\"}"));
    }
    assert!(seen.iter().filter(|r| r.path == "/buy").count() >= 7, "{seen:?}");
    assert!(
        seen.iter().filter(|r| r.path == "/login").all(|r| !r.headers.contains_key("cookie")),
        "a new session has no cookies"
    );
}

#[test]
fn a_login_that_is_sent_once_is_sent_once_a_user() {
    let (address, seen) = serve(read_request, |r| match r.path.as_str() {
        "/login" => answer("200 OK", "Set-Cookie: sid=1; Path=/\r\n", "token=t7"),
        _ if r.headers.get("cookie").is_some_and(|c| c == "sid=1") => answer("200 OK", "", ""),
        _ => answer("403 Forbidden", "", ""),
    });
    let folder = Folder::new();
    let plan = format!(
        "pick = 'session'\nrequests = 40\nusers = 3\n[[request]]\nurl = 'http://{address}/login'\nonce = true\n\
         extract.token = {{ regex = 'token=(.+)' }}\n[[request]]\nurl = 'http://{address}/a?{{{{token}}}}'\n\
         [[request]]\nurl = 'http://{address}/b?{{{{token}}}}'\n"
    );
    fs::write(folder.join("plan.toml"), plan).expect("written");
    let run = folder.json(&["run", folder.join("plan.toml").to_str().expect("text")], 0);
    assert_eq!(n(&main_phase(&run)["status"]["200"]), 40, "{}", main_phase(&run));
    let seen = seen.lock().expect("nobody panicked");
    let count = |path: &str| seen.iter().filter(|r| r.path == path).count();
    assert_eq!(count("/login"), 3);
    assert!(count("/a?t7").abs_diff(count("/b?t7")) <= 3 && count("/a?t7") + count("/b?t7") == 37);
}

#[test]
fn a_session_that_fails_begins_anew_and_is_counted() {
    let (address, seen) = serve(read_request, |r| match r.path.as_str() {
        "/a" => answer("200 OK", "", "no token here"),
        _ => answer("200 OK", "", ""),
    });
    let folder = Folder::new();
    let plan = format!(
        "pick = 'session'\nrequests = 10\nusers = 1\n[[request]]\nurl = 'http://{address}/a'\n\
         extract.token = {{ regex = 'token=(\\d+)' }}\n[[request]]\nurl = 'http://{address}/b?{{{{token}}}}'\n"
    );
    fs::write(folder.join("plan.toml"), plan).expect("written");
    let run = folder.json(&["run", folder.join("plan.toml").to_str().expect("text")], 0);
    assert_eq!(n(&main_phase(&run)["expectations"]["missed"]), 10);
    assert!(seen.lock().expect("nobody panicked").iter().all(|r| r.path == "/a"));
}

// ---- requests -------------------------------------------------------------------------------------------------------

#[test]
fn url_files_are_loaded_in_turn_and_at_random() {
    let (address, seen) = serve(read_request, |_| answer("200 OK", "", "ok"));
    let folder = Folder::new();
    let urls =
        format!("# a comment\nHOST={address}\nhttp://$(HOST)/a\n${{HOST}}/b POST x=1\n$(HOST)/c PUT <body.txt\n");
    fs::write(folder.join("urls.txt"), urls).expect("written");
    fs::write(folder.join("body.txt"), "from a file").expect("written");
    let file = folder.join("urls.txt");
    let file = file.to_str().expect("text");
    folder.json(&["run", "-f", file, "--in-order", "-n", "30", "-c", "3"], 0);
    let count = |path: &str| seen.lock().expect("nobody panicked").iter().filter(|r| r.path == path).count();
    assert_eq!((count("/a"), count("/b"), count("/c")), (10, 10, 10));
    {
        let seen = seen.lock().expect("nobody panicked");
        let c = seen.iter().find(|r| r.path == "/c").expect("sent");
        assert_eq!((c.method.as_str(), c.body.as_slice()), ("PUT", &b"from a file"[..]));
    }
    folder.json(&["run", "-f", file, "-n", "300", "-c", "3"], 0);
    for path in ["/a", "/b", "/c"] {
        let of_300 = count(path) - 10;
        assert!((60..=140).contains(&of_300), "{path}: {of_300}");
    }
}

#[test]
fn bodies_and_heads_are_what_was_asked_for() {
    let (address, seen) = serve(read_request, |_| answer("200 OK", "", "ok"));
    let folder = Folder::new();
    fs::write(folder.join("upload.bin"), [0u8, 255, 10]).expect("written");
    let url = format!("http://{address}/x");
    let part = format!("file=@{}", folder.join("upload.bin").display());
    let run = |args: &[&str]| {
        let mut all = vec!["run", url.as_str(), "-n", "1", "-c", "1"];
        all.extend(args);
        folder.json(&all, 0);
        seen.lock().expect("nobody panicked").pop().expect("one request")
    };
    let form = run(&["--form", "a=1 & 2", "--form", "b=ü", "--bearer", "tok"]);
    assert_eq!((form.method.as_str(), form.body.as_slice()), ("POST", &b"a=1+%26+2&b=%C3%BC"[..]));
    assert_eq!(form.headers["content-type"], "application/x-www-form-urlencoded");
    assert_eq!(form.headers["authorization"], "Bearer tok");
    let multipart = run(&["--part", "name=value", "--part", &part]);
    let boundary = multipart.headers["content-type"].split("boundary=").nth(1).expect("a boundary").to_string();
    let text = String::from_utf8_lossy(&multipart.body).into_owned();
    assert!(text.contains("name=\"name\"\r\n\r\nvalue\r\n") && text.contains("filename=\"upload.bin\""), "{text}");
    assert!(text.ends_with(&format!("--{boundary}--\r\n")), "{text}");
    assert!(multipart.body.windows(3).any(|w| w == [0, 255, 10]));
    let old = run(&["--http", "1.0", "--basic", "u:p", "-X", "DELETE"]);
    assert_eq!((old.version.as_str(), old.method.as_str()), ("HTTP/1.0", "DELETE"));
    assert_eq!(
        (old.headers["connection"].as_str(), old.headers["authorization"].as_str()),
        ("keep-alive", "Basic dTpw")
    );
    let changing = run(&["--body", "{\"user\":{{user}}}", "-H", "X-N: {{iteration}}"]);
    assert_eq!((changing.body.as_slice(), changing.headers["x-n"].as_str()), (&b"{\"user\":1}"[..], "1"));
}

#[test]
fn answers_are_held_against_expectations() {
    let (address, _) = serve(read_request, |r| match r.path.as_str() {
        "/changing" => answer("200 OK", "", format!("{:?}", Instant::now())),
        _ => answer("200 OK", "", "hello"),
    });
    let folder = Folder::new();
    let missed = |path: &str, expect: &str| {
        let run =
            folder.json(&["run", &format!("http://{address}{path}"), "-n", "10", "-c", "2", "--expect", expect], 0);
        assert_eq!(n(&main_phase(&run)["requests"]["answered"]), 10);
        n(&main_phase(&run)["expectations"]["missed"])
    };
    for good in ["status=2xx", "length=5", "text=ell", "no-text=x", "checksum=same", "checksum=crc32:3610a686"] {
        assert_eq!(missed("/", good), 0, "{good}");
    }
    for bad in ["status=404", "length=6", "text=x", "no-text=ell", "checksum=crc32:3610a687"] {
        assert_eq!(missed("/", bad), 10, "{bad}");
    }
    assert!(missed("/changing", "checksum=same") >= 9);
}

#[test]
fn a_real_apache_compresses_redirects_and_challenges() {
    let folder = Folder::new();
    let apache = Apache::start(&folder);
    let run = |args: &[&str]| {
        let mut all = vec!["run"];
        all.extend(args);
        all.extend(["-n", "20", "-c", "2"]);
        let run = folder.json(&all, 0);
        assert_sums(&run);
        main_phase(&run).clone()
    };
    let page = 18 * 500;
    for coding in ["/gzip/", "/br/"] {
        let p = run(&[
            &apache.url(coding),
            "--decode",
            "--expect",
            &format!("length={page}"),
            "--expect",
            "text=apache hello",
        ]);
        assert_eq!(n(&p["expectations"]["missed"]), 0, "{coding}: {p}");
        assert_eq!(n(&p["bytes"]["decoded"]), 20 * page, "{coding}: {p}");
        assert!(n(&p["bytes"]["received"]) < 20 * page / 4, "{coding}: {p}");
        let counted = run(&[&apache.url(coding), "--compressed"]);
        assert!(n(&counted["bytes"]["decoded"]) == 0 && n(&counted["bytes"]["received"]) < 20 * page / 4);
    }
    let followed = run(&[&apache.url("/old"), "--redirects", "5", "--expect", "status=200"]);
    assert_eq!((n(&followed["status"]["302"]), n(&followed["status"]["200"])), (20, 20), "{followed}");
    assert_eq!((n(&followed["followed"]["redirects"]), n(&followed["expectations"]["missed"])), (20, 0));
    let stays = run(&[&apache.url("/old")]);
    assert_eq!(n(&stays["status"]["302"]), 20);
    let circle = run(&[&apache.url("/loop"), "--redirects", "5"]);
    assert_eq!((n(&circle["followed"]["redirects"]), n(&circle["status"]["301"])), (100, 120), "{circle}");
    let nobody = run(&[&apache.url("/private/")]);
    assert_eq!(n(&nobody["status"]["401"]), 20);
    let known = run(&[&apache.url("/private/"), "--digest", "me:pass", "--expect", "text=secret"]);
    // Each of two users is challenged once; afterwards it sends its credentials.
    assert_eq!((n(&known["status"]["401"]), n(&known["status"]["200"])), (2, 20), "{known}");
    assert_eq!((n(&known["followed"]["challenges"]), n(&known["expectations"]["missed"])), (2, 0));
    let wrong = run(&[&apache.url("/private/"), "--digest", "me:wrong"]);
    assert_eq!(wrong["status"].get("200"), None, "{wrong}");
    let body = run(&[&apache.url("/"), "-X", "POST", "--body", "x", "--expect-continue", "--chunked", "1k"]);
    assert_eq!(n(&body["requests"]["answered"]), 20, "{body}");
    let head = run(&[&apache.url("/"), "-X", "HEAD", "--expect", "length=0"]);
    assert_eq!((n(&head["status"]["200"]), n(&head["expectations"]["missed"])), (20, 0));
}

#[test]
fn proxies_are_gone_through_and_tunnelled() {
    let folder = Folder::new();
    certificates(&folder);
    let apache = Apache::start(&folder);
    let (plain, tls) = (free_port(), free_port());
    let at = folder.path().display();
    let _nginx = Nginx::start(
        &folder,
        plain,
        &format!(
            "server {{ listen 127.0.0.1:{plain}; location / {{ return 200 $http_via; }} }}
             server {{ listen 127.0.0.1:{tls} ssl; ssl_certificate {at}/server.pem; ssl_certificate_key {at}/server.key;
                       location / {{ return 200 tunnelled; }} }}"
        ),
    );
    let proxy = apache.url("").trim_end_matches('/').to_string();
    let ca = format!("{at}/ca.pem");
    let run = |url: &str, args: &[&str]| {
        let mut all = vec!["run", url, "-n", "20", "-c", "2", "--proxy", &proxy];
        all.extend(args);
        main_phase(&folder.json(&all, 0)).clone()
    };
    let http = format!("http://127.0.0.1:{plain}/");
    let through = run(&http, &["--expect", "status=200"]);
    assert_eq!((n(&through["status"]["200"]), n(&through["expectations"]["missed"])), (20, 0));
    let tunnel = run(&http, &["--proxy-tunnel", "--expect", "length=0"]);
    assert_eq!((n(&tunnel["status"]["200"]), n(&tunnel["connections"]["opened"])), (20, 2), "{tunnel}");
    let https = run(&format!("https://127.0.0.1:{tls}/"), &["--ca", &ca, "--expect", "text=tunnelled"]);
    assert_eq!((n(&https["status"]["200"]), n(&https["expectations"]["missed"])), (20, 0));
    let dead = format!("https://127.0.0.1:{}/", free_port());
    let refused = folder.json(&["run", &dead, "-n", "6", "-c", "2", "--proxy", &proxy, "--insecure"], 1);
    assert_eq!(n(&main_phase(&refused)["requests"]["failed"]["connect"]), 6);
    assert!(refused["generator"]["connect_errors"].to_string().contains("CONNECT"), "{}", refused["generator"]);
}

#[test]
fn pipelined_requests_are_each_accounted_for() {
    let folder = Folder::new();
    let port = free_port();
    let _nginx = Nginx::start(
        &folder,
        port,
        &format!("server {{ listen 127.0.0.1:{port}; keepalive_requests 25; location / {{ return 200 hello; }} }}"),
    );
    let url = format!("http://127.0.0.1:{port}/");
    let run = folder.json(&["run", &url, "-n", "1000", "-c", "4", "--pipeline", "8"], 0);
    assert_sums(&run);
    let r = &main_phase(&run)["requests"];
    // nginx closes a connection after 25 requests: those pipelined after the 25th get no response.
    assert_eq!(n(&r["due"]), 1000);
    assert!(n(&r["answered"]) >= 700 && n(&r["failed"]["closed"]) + n(&r["failed"]["reset"]) > 0, "{r}");
    let open = folder.json(&["run", &url, "-r", "2000", "-d", "1s", "--connections", "4", "--pipeline", "8"], 0);
    assert_sums(&open);
    assert_eq!(n(&main_phase(&open)["requests"]["due"]), 2000);
}

#[test]
fn a_page_is_loaded_with_what_it_embeds() {
    let folder = Folder::new();
    let port = free_port();
    fs::create_dir_all(folder.join("www")).expect("made");
    let images: String = (0..20).map(|i| format!("<img src=i{i}.png>")).collect();
    fs::write(folder.join("www/index.html"), format!("<link rel=stylesheet href=s.css>{images}<a href=no.html>"))
        .expect("written");
    for i in 0..20 {
        fs::write(folder.join(&format!("www/i{i}.png")), "png").expect("written");
    }
    fs::write(folder.join("www/s.css"), "css").expect("written");
    let root = folder.join("www");
    let _nginx =
        Nginx::start(&folder, port, &format!("server {{ listen 127.0.0.1:{port}; root {}; }}", root.display()));
    let url = format!("http://127.0.0.1:{port}/index.html");
    let run = folder.json(&["run", &url, "-n", "10", "-c", "2", "--page"], 0);
    assert_sums(&run);
    let p = main_phase(&run);
    assert_eq!((n(&p["pages"]["loaded"]), n(&p["pages"]["failed"])), (10, 0), "{p}");
    assert_eq!(n(&p["requests"]["answered"]), 220);
    assert_eq!(n(&p["latency_us"]["page"]["count"]), 10);
    assert!(p["latency_us"]["page"]["p50"].as_u64() > p["latency_us"]["response"]["p50"].as_u64());
    assert_eq!(n(&p["connections"]["peak"]), 12, "six connections a user");
    let cached = folder.json(&["run", &url, "-n", "10", "-c", "2", "--page", "--page-cache"], 0);
    assert_eq!(n(&main_phase(&cached)["requests"]["answered"]), 10 + 2 * 21);
    fs::remove_file(folder.join("www/i3.png")).expect("removed");
    let broken = folder.json(&["run", &url, "-r", "10", "-d", "1s", "--page"], 0);
    assert_eq!(n(&main_phase(&broken)["pages"]["failed"]), 10, "{}", main_phase(&broken));
    let missing = format!("404 http://127.0.0.1:{port}/i3.png");
    // The end of the phase can cut the last pages short before that part is asked for.
    let times = n(&broken["generator"]["page_errors"][&missing]);
    assert!((4..=10).contains(&times), "{}", broken["generator"]);
    let text = folder.run(&["show", "last"]).stdout;
    assert!(
        text.starts_with(&format!("Careful: Parts of the 10 pages are missing, above all: {times} × {missing}")),
        "{text}"
    );
    assert!(text.contains(&format!("incomplete: {times} × {missing}")), "{text}");
    let report = folder.join("report.html");
    folder.run(&["report", "last", "-o", &report.to_string_lossy()]);
    assert!(fs::read_to_string(report).expect("written").contains(&format!("part of a page: {missing}")));
}

#[test]
fn an_icon_is_part_of_a_page_only_where_the_page_names_it() {
    let (address, seen) = serve(read_request, |request: &ReceivedRequest| match request.path.as_str() {
        "/plain" => answer("200 OK", "Content-Type: text/html\r\n", "<h1>no icon</h1>"),
        "/icon" => answer("200 OK", "Content-Type: text/html\r\n", "<link rel=icon href=/favicon.ico>"),
        _ => answer("404 Not Found", "", "none"),
    });
    let folder = Folder::new();
    let run = folder.json(&["run", &format!("http://{address}/plain"), "-n", "5", "--page"], 0);
    assert_eq!(n(&main_phase(&run)["pages"]["loaded"]), 5);
    assert!(seen.lock().expect("unpoisoned").iter().all(|r| r.path == "/plain"), "browsers ask for it on their own");
    let run = folder.json(&["run", &format!("http://{address}/icon"), "-n", "5", "--page"], 0);
    assert_eq!(n(&main_phase(&run)["pages"]["failed"]), 5);
    assert_eq!(n(&run["generator"]["page_errors"][format!("404 http://{address}/favicon.ico")]), 5);
}

// ---- connections ----------------------------------------------------------------------------------------------------

#[test]
fn connections_come_from_and_go_where_they_are_told() {
    let folder = Folder::new();
    let (address, seen) = serve(read_request, |_| answer("200 OK", "", "ok"));
    let url = format!("http://{address}/");
    folder.json(
        &["run", &url, "-n", "30", "-c", "3", "--keepalive", "off", "--source", "127.0.0.2,127.0.0.3,127.0.0.4"],
        0,
    );
    let seen = seen.lock().expect("nobody panicked");
    for source in ["127.0.0.2", "127.0.0.3", "127.0.0.4"] {
        assert_eq!(seen.iter().filter(|r| r.peer == source).count(), 10, "{source}");
    }
    let port = free_port();
    let socket = folder.join("web.sock");
    let _nginx = Nginx::start(
        &folder,
        port,
        &format!(
            "server {{ listen 127.0.0.1:{port}; listen unix:{}; location / {{ return 200 hi; }} }}",
            socket.display()
        ),
    );
    let path = socket.to_str().expect("text");
    let run =
        folder.json(&["run", "http://any.invalid/", "-n", "100", "--unix-socket", path, "--expect", "text=hi"], 0);
    assert_eq!(
        (n(&main_phase(&run)["requests"]["answered"]), n(&main_phase(&run)["expectations"]["missed"])),
        (100, 0)
    );
    let gone = folder.json(&["run", "http://any/", "-n", "5", "--unix-socket", "/no/such.sock"], 1);
    assert_eq!(n(&main_phase(&gone)["requests"]["failed"]["connect"]), 5);
}

#[test]
fn a_modem_is_as_slow_as_a_modem() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--body", "40000"]);
    // 40 KB at 160 kbit/s take two seconds.
    let run =
        folder.json(&["run", &target.url(), "-n", "2", "-c", "2", "--bandwidth", "160kbit", "--timeout", "20s"], 0);
    let service = main_phase(&run)["latency_us"]["service"]["p50"].as_u64().expect("a number");
    assert!((1_700_000..8_000_000).contains(&service), "{service}");
    assert_eq!(n(&main_phase(&run)["requests"]["answered"]), 2);
}

#[test]
fn thousands_of_idle_connections_need_little_memory() {
    let folder = Folder::new();
    let port = free_port();
    let _nginx = Nginx::start(
        &folder,
        port,
        &format!("server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 hi; }} }}"),
    );
    let run = folder.json(
        &[
            "run",
            &format!("http://127.0.0.1:{port}/"),
            "-c",
            "3000",
            "-n",
            "9000",
            "--think",
            "500ms",
            "--source",
            "127.0.0.2,127.0.0.3",
        ],
        0,
    );
    assert_sums(&run);
    let p = main_phase(&run);
    assert!(n(&p["connections"]["peak"]) >= 2900, "{p}");
    assert!(n(&run["generator"]["peak_rss_bytes"]) < 40 << 20, "{}", run["generator"]);
}

// ---- the plan, and the end ------------------------------------------------------------------------------------------

#[test]
fn a_dry_run_shows_everything_and_sends_nothing() {
    let (address, seen) = serve(read_request, |_| answer("200 OK", "", "ok"));
    let folder = Folder::new();
    let done = folder.run(&["run", &format!("http://{address}/p"), "--dry-run", "-r", "5", "-H", "X-A: b"]);
    assert_eq!(done.code, 0);
    for word in ["5 requests/s", "GET /p HTTP/1.1", "X-A: b", &address] {
        assert!(done.stdout.contains(word), "{word}: {}", done.stdout);
    }
    thread::sleep(Duration::from_millis(100));
    assert!(seen.lock().expect("nobody panicked").is_empty());
}

#[test]
fn mistakes_in_a_plan_have_a_line_and_an_advice() {
    let folder = Folder::new();
    for (text, code, words) in [
        ("url = 'http://h/'\nusres = 3\n", 2, vec!["plan.toml", "line 2, column 1", "did you mean users?"]),
        ("url = 'http://127.0.0.1/{{nobody}}'\n", 2, vec!["nobody", "there are: user"]),
        (
            "url = 'http://127.0.0.1/'\n[[request]]\n[[request]]\nextract.x = { regex = '(' }\n",
            2,
            vec!["line 3, column 1", "regex of 'x'"],
        ),
        ("url = 'http://127.0.0.1/'\n[[request]]\nonce = true\n", 2, vec!["line 2, column 1", "pick = \"session\""]),
        ("url = 'http://127.0.0.1/'\n[data]\nfile = 'none.csv'\n", 2, vec!["none.csv"]),
        ("url = 'http://127.0.0.1/'\n[[request]]\nbody_file = 'none'\n", 2, vec!["none"]),
        ("url = 'https://127.0.0.1/'\n[tls]\nca = 'plan.toml'\n", 2, vec!["plan.toml", "PEM"]),
    ] {
        fs::write(folder.join("plan.toml"), text).expect("written");
        let done = folder.run(&["run", folder.join("plan.toml").to_str().expect("text")]);
        assert_eq!(done.code, code, "{done:?}");
        for word in words {
            assert!(done.stderr.contains(word), "'{word}' is missing: {done:?}");
        }
    }
    let schema = folder.run(&["run", "--plan-schema"]);
    assert!(serde_json::from_str::<Value>(&schema.stdout).is_ok_and(|s| s["properties"]["phase"].is_object()));
}

#[test]
fn the_example_plans_are_valid() {
    let folder = Folder::new();
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for name in ["session.toml", "spike.toml", "page.toml"] {
        let done = folder.run(&["run", examples.join(name).to_str().expect("text"), "--dry-run"]);
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.stdout.contains("HTTP/1.1"), "{done:?}");
    }
}

#[test]
fn the_schemas_in_the_documentation_are_the_present_ones() {
    let folder = Folder::new();
    for (file, args) in
        [("plan.schema.json", ["run", "--plan-schema"]), ("kind.schema.json", ["knobs", "--kind-schema"])]
    {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
        let schema = folder.run(&args).stdout;
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(written, schema, "write it anew: lastdrop {} > docs/{file}", args.join(" "));
    }
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "5ms"]);
    let mut child = folder.lastdrop(&["run", &target.url(), "-d", "60s", "--quiet"]).spawn().expect("runs");
    thread::sleep(Duration::from_millis(2500));
    signal(&child, libc::SIGINT);
    signal(&child, libc::SIGINT);
    let left = Instant::now();
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    assert!(left.elapsed() < Duration::from_secs(5));
    let run: Value = serde_json::from_str(&folder.run(&["show", "last", "--json"]).stdout).expect("JSON");
    assert_sums(&run);
    assert!(n(&main_phase(&run)["requests"]["answered"]) > 50);
}

// ---- hostile servers ------------------------------------------------------------------------------------------------

/// Starts a server that does the same with every connection; returns its address.
fn hostile(act: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let act = Arc::new(act);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let act = Arc::clone(&act);
            thread::spawn(move || act(stream));
        }
    });
    address
}

fn wait_for_request(stream: &mut TcpStream) {
    let _ = stream.read(&mut [0u8; 4096]);
}

/// Closes a connection with a reset.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: pointer and length describe `linger`.
    unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(stream),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&linger).cast(),
            std::mem::size_of_val(&linger) as libc::socklen_t,
        );
    }
}

/// The action of a hostile server on a connection.
type ConnectionHandler = Box<dyn Fn(TcpStream) + Send + Sync>;

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table of servers")]
fn every_hostile_end_is_counted_and_memory_stays_small() {
    let folder = Folder::new();
    let cases: Vec<(&str, &[&str], ConnectionHandler)> = vec![
        ("reset at accept", &["reset", "closed"], Box::new(|s| reset(&s))),
        (
            "reset after the request",
            &["reset"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                reset(&s);
            }),
        ),
        (
            "reset in the head",
            &["reset"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-");
                thread::sleep(Duration::from_millis(50));
                reset(&s);
            }),
        ),
        (
            "reset in the body",
            &["reset"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
                thread::sleep(Duration::from_millis(50));
                reset(&s);
            }),
        ),
        (
            "a line of 100 MB",
            &["protocol"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nX: ");
                for _ in 0..100 {
                    if s.write_all(&[b'a'; 1 << 20]).is_err() {
                        return;
                    }
                }
            }),
        ),
        (
            "ten thousand headers",
            &["protocol"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(10_000)).as_bytes());
            }),
        ),
        (
            "a negative length",
            &["protocol"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n");
            }),
        ),
        (
            "an endless chunk size",
            &["protocol"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n");
            }),
        ),
        (
            "endless trailers",
            &["protocol"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
                while s.write_all(b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n").is_ok() {}
            }),
        ),
        (
            "an endless body",
            &["timed_out"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                while s.write_all(&[b'x'; 65536]).is_ok() {}
            }),
        ),
        (
            "endless interim answers",
            &["timed_out"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                while s.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {}
            }),
        ),
        (
            "an answer before the request",
            &["answered", "reset", "closed"],
            Box::new(|mut s| {
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                wait_for_request(&mut s);
            }),
        ),
        (
            "another protocol",
            &["protocol"],
            Box::new(|mut s| {
                let _ = s.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n");
                wait_for_request(&mut s);
            }),
        ),
        (
            "an answer after the timeout",
            &["timed_out"],
            Box::new(|mut s| {
                wait_for_request(&mut s);
                thread::sleep(Duration::from_millis(1500));
                let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }),
        ),
    ];
    for (name, kinds, act) in cases {
        let url = format!("http://{}/", hostile(act));
        let args = ["run", &url, "-n", "6", "-c", "3", "--timeout", "1s", "--json", "-"];
        let done = folder.run(&args);
        assert!([0, 1].contains(&done.code), "{name}: {done:?}");
        let run: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_sums(&run);
        let r = &main_phase(&run)["requests"];
        let count = |kind: &&str| match *kind {
            "answered" | "timed_out" => n(&r[*kind]),
            kind => n(&r["failed"][kind]),
        };
        assert_eq!(kinds.iter().map(count).sum::<u64>(), 6, "{name}: {r}");
        let memory = n(&run["generator"]["peak_rss_bytes"]);
        assert!(memory < 40 << 20, "{name}: {memory}");
    }
}

#[test]
fn tls_that_breaks_is_counted_in_every_state() {
    let folder = Folder::new();
    let alert: &[u8] = &[0x15, 3, 3, 0, 2, 2, 40];
    let cases: Vec<(&str, &str, ConnectionHandler)> = vec![
        (
            "an alert",
            "HandshakeFailure",
            Box::new(move |mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(alert);
                wait_for_request(&mut s);
            }),
        ),
        (
            "garbage",
            "TLS",
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(&[0xaa; 3000]);
                wait_for_request(&mut s);
            }),
        ),
        (
            "HTTP",
            "TLS",
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }),
        ),
        ("the end", "closed", Box::new(|mut s| wait_for_request(&mut s))),
        (
            "a record without an end",
            "timed out",
            Box::new(|mut s| {
                wait_for_request(&mut s);
                let _ = s.write_all(&[0x16, 3, 3, 0x40, 0, 2]);
                wait_for_request(&mut s);
                thread::sleep(Duration::from_secs(3));
            }),
        ),
        (
            "a reset",
            "reset",
            Box::new(|mut s| {
                wait_for_request(&mut s);
                reset(&s);
            }),
        ),
    ];
    for (name, word, act) in cases {
        let url = format!("https://{}/", hostile(act));
        let run = folder.json(&["run", &url, "-n", "2", "-c", "2", "--timeout", "1s", "--insecure"], 1);
        assert_sums(&run);
        let r = &main_phase(&run)["requests"];
        if word == "timed out" {
            assert_eq!(n(&r["timed_out"]), 2, "{name}: {r}");
        } else {
            assert_eq!(n(&r["failed"]["connect"]), 2, "{name}: {r}");
            let errors = run["generator"]["connect_errors"].to_string();
            assert!(errors.contains(word), "{name}: {errors}");
        }
    }
}

#[test]
fn a_server_that_goes_away_is_counted_as_such() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "1ms"]);
    let out = folder.join("run.json");
    let args = ["run", &target.url(), "-r", "200", "-d", "10m", "--json", out.to_str().expect("text"), "--quiet"];
    let mut child = folder.lastdrop(&args).spawn().expect("runs");
    wait_until("load", || n(&target.counts()["requests"]) > 200);
    let port = target.port;
    drop(target);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    // Four hundred requests fall due while nobody listens.
    thread::sleep(Duration::from_secs(2));
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    let run: Value = serde_json::from_str(&fs::read_to_string(out).expect("written")).expect("JSON");
    assert_sums(&run);
    let r = &main_phase(&run)["requests"];
    assert!(n(&r["failed"]["connect"]) > 100 && n(&r["answered"]) > 100, "{r}");
    assert!(run["generator"]["connect_errors"].to_string().contains("refused"));
}

#[test]
fn a_bomb_is_not_unpacked() {
    let folder = Folder::new();
    // 200 MB of zeros are 200 KB of gzip.
    let script = "head -c 200000000 /dev/zero | gzip -9 > bomb.gz";
    let made = Command::new("sh").arg("-c").arg(script).current_dir(folder.path()).status().expect("sh and gzip run");
    assert!(made.success());
    let bomb = fs::read(folder.join("bomb.gz")).expect("made");
    let address = hostile(move |mut s| {
        wait_for_request(&mut s);
        let length = bomb.len();
        // It takes one request per connection, and says so; otherwise a race would decide the outcome of a second request.
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length:";
        let _ = s.write_all(format!("{head} {length}\r\n\r\n").as_bytes());
        let _ = s.write_all(&bomb);
    });
    let url = format!("http://{address}/");
    let args = ["run", &url, "-n", "3", "-c", "1", "--decode", "--expect", "text=x", "--timeout", "60s", "-d", "120s"];
    let run = folder.json(&args, 0);
    assert_eq!(n(&main_phase(&run)["expectations"]["missed"]), 3);
    assert!(n(&run["generator"]["peak_rss_bytes"]) < 60 << 20, "{}", run["generator"]);
}
