//! Limits of the load generator itself: ports, descriptors, threads, memory, and time without a processor.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::{Folder, Namespace, Target, alone, as_nobody, assert_sums, json_of, n, signal, wait_until};
use serde_json::Value;

fn rules(run: &Value) -> Vec<String> {
    let reasons = run["validity"]["reasons"].as_array().expect("reasons");
    reasons.iter().map(|r| r["rule"].as_str().expect("a name").to_string()).collect()
}

/// A process that ends with the test.
struct RunningProcess(std::process::Child);

impl Drop for RunningProcess {
    fn drop(&mut self) {
        signal(&self.0, libc::SIGTERM);
        let _ = self.0.wait();
    }
}

#[test]
fn more_users_than_half_of_the_local_ports_are_answered_from_one_address() {
    let _alone = alone();
    let folder = Folder::new();
    let space = Namespace::new();
    let at = folder.path().display();
    let config = folder.join("nginx.conf");
    let text = format!(
        "worker_processes 2; daemon off; worker_rlimit_nofile 18000; pid {at}/nginx.pid; error_log {at}/error.log;\n\
         events {{ worker_connections 17500; }}\n\
         http {{ access_log off; keepalive_timeout 60s; server {{ listen 8080 backlog=4096; return 200 ok; }} }}\n"
    );
    fs::write(&config, text).expect("written");
    let mut nginx = Command::new("nginx");
    nginx.arg("-c").arg(&config).arg("-p").arg(folder.path());
    let _nginx = RunningProcess(space.inside(&nginx).stderr(Stdio::null()).spawn().expect("nginx runs"));
    wait_until("nginx", || fs::metadata(folder.join("nginx.pid")).is_ok_and(|m| m.len() > 1));
    // Half of the usual range is 14,116 ports. With the kernel's own search the other half took 1.3 ms each, and all timed out.
    let args = ["run", "http://127.0.0.1:8080/", "-c", "17000", "-n", "17000", "--think", "50s", "--timeout", "3s"];
    let run = json_of(space.inside(&folder.lastdrop(&[&args[..], &["--json", "-"]].concat())));
    let requests = &run["phases"][0]["requests"];
    assert_sums(&run);
    assert_eq!((n(&requests["timed_out"]), n(&requests["failed"]["connect"])), (0, 0), "{requests}");
    // Each user sends one request, however long that takes on a busy machine.
    assert_eq!(n(&requests["answered"]), 17_000, "{requests}");
    assert_eq!(n(&run["phases"][0]["connections"]["peak"]), 17_000, "{}", run["phases"][0]["connections"]);
}

#[test]
fn what_came_while_the_generator_could_not_look_is_an_answer_and_no_timeout() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "20", "--service", "200ms"]);
    let args = ["run", &target.url(), "-c", "20", "-d", "3s", "--timeout", "1s", "--json", "-"];
    let child = folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("runs");
    wait_until("load", || n(&target.counts()["requests"]) >= 40);
    // All twenty responses arrive within the timeout of one second, and wait unread for another.
    signal(&child, libc::SIGSTOP);
    thread::sleep(Duration::from_millis(2000));
    signal(&child, libc::SIGCONT);
    let run: Value = serde_json::from_slice(&child.wait_with_output().expect("ends").stdout).expect("JSON");
    assert_sums(&run);
    let requests = &run["phases"][0]["requests"];
    assert_eq!(n(&requests["timed_out"]), 0, "{requests}");
}

#[test]
fn a_lack_of_descriptors_or_ports_is_said() {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("its mode");
    let target = Target::start(&folder, &["--workers", "100", "--service", "50ms"]);
    let args = ["run", &target.url(), "-c", "100", "-d", "1s", "--no-store", "--json", "-"];
    let run = json_of(as_nobody(&folder.lastdrop(&args), &["--nofile=40:40"]));
    assert_sums(&run);
    assert!(rules(&run).contains(&"descriptors".into()), "{}", run["validity"]);
    let waited = n(&run["generator"]["shortage"]["descriptors"]);
    assert!((60..100).contains(&waited), "{waited} of 100 users had no descriptor");

    let space = Namespace::new();
    space.set("net.ipv4.ip_local_port_range", "40000 40039");
    let mut command = folder.lastdrop(&["target", "--listen", "127.0.0.1:8080", "--workers", "100"]);
    command.args(["--service", "50ms"]).stderr(Stdio::null());
    let mut inside = space.inside(&command);
    let _target = RunningProcess(inside.stderr(Stdio::null()).spawn().expect("the target starts"));
    let args = ["run", "http://127.0.0.1:8080/", "-c", "80", "-d", "1s", "--no-store", "--json", "-"];
    let mut last = Value::Null;
    wait_until("the target in its namespace", || {
        last = json_of(space.inside(&folder.lastdrop(&args)));
        n(&last["phases"][0]["requests"]["answered"]) > 0
    });
    assert_sums(&last);
    assert!(rules(&last).contains(&"ports".into()), "{}", last["validity"]);
    assert!(n(&last["generator"]["shortage"]["ports"]) >= 40, "{}", last["generator"]);
}

#[test]
fn users_without_a_descriptor_do_not_keep_a_run_from_its_end() {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("its mode");
    let target = Target::start(&folder, &["--workers", "10"]);
    let args = ["run", &target.url(), "-c", "5000", "-d", "1s", "--drain", "1s", "--no-store", "--json", "-"];
    let run = json_of(as_nobody(&folder.lastdrop(&args), &["--nofile=2000:2000"]));
    assert_sums(&run);
    // A loop that tries for a descriptor until it has one never ends.
    assert!(run["phases"][0]["duration_s"].as_f64().expect("a time") < 10.0, "{}", run["phases"][0]);
    assert!(rules(&run).contains(&"descriptors".into()), "{}", run["validity"]);
}

#[test]
fn a_phase_whose_requests_are_used_up_sleeps_until_it_is_over() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "4"]);
    let plan = folder.join("plan.toml");
    let text = format!(
        "url = \"{}\"\n[[phase]]\nname = \"first\"\nrate = 100\nrequests = 20\nduration = \"2s\"\n\
         [[phase]]\nname = \"main\"\nrate = 100\nduration = \"500ms\"\n",
        target.url()
    );
    fs::write(&plan, text).expect("written");
    let run = folder.json(&["run", plan.to_str().expect("text")], 0);
    assert_eq!(n(&run["phases"][0]["requests"]["due"]), 20, "{run}");
    assert_eq!(n(&run["phases"][1]["requests"]["due"]), 50, "{run}");
    // The CPU time shows it: a busy loop takes nearly 2 s of it.
    let cpu = run["generator"]["cpu_s"].as_f64().expect("a time");
    assert!(cpu < 0.5, "{cpu} s of CPU for 70 requests");
}

#[test]
fn threads_that_cannot_be_started_are_an_error_at_once() {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("its mode");
    let target = Target::start(&folder, &[]);
    let args = ["run", &target.url(), "-c", "2000", "-t", "256", "-d", "60s", "--no-store"];
    // Other processes may also run as nobody: the limit must leave room for at most a hundred of ours.
    let output = as_nobody(&folder.lastdrop(&args), &["--nproc=100:100"]).output().expect("runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot start a load thread"), "{error}");
}

#[test]
fn the_same_checksum_is_one_for_all_threads() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("its address"));
    // Each connection gets its own response, always the same.
    thread::spawn(move || {
        for (number, mut stream) in listener.incoming().flatten().enumerate() {
            thread::spawn(move || {
                let mut buffer = [0u8; 4096];
                while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
                }
            });
        }
    });
    let args = ["run", &url, "-c", "2", "-t", "2", "-n", "20", "--expect", "checksum=same", "--no-store"];
    let run = folder.json(&args, 0);
    let missed = n(&run["phases"][0]["expectations"]["missed"]);
    assert!(missed > 0, "one of two threads has other answers than the first: {run}");
}

// ---- TLS that ends before TCP does ------------------------------------------------------------------------------------

/// Serves TLS: for each request the bytes of `answer`, then close_notify on a connection that stays open.
fn tls_server(folder: &Folder, answer: &'static [u8]) -> String {
    let at = folder.path().display();
    let script = format!(
        "cd {at} && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 3 -subj /CN=localhost \
         -addext subjectAltName=IP:127.0.0.1"
    );
    let made = Command::new("sh").arg("-c").arg(script).output().expect("sh and openssl run");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let certificate = CertificateDer::from_pem_file(folder.join("cert.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("they belong together");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}/", listener.local_addr().expect("its address"));
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            thread::spawn(move || {
                let mut tls = rustls::ServerConnection::new(config).expect("a configuration");
                {
                    let mut both = rustls::Stream::new(&mut tls, &mut stream);
                    let mut buffer = [0u8; 4096];
                    let _ = both.read(&mut buffer);
                    let _ = both.write_all(answer);
                }
                tls.send_close_notify();
                let _ = tls.complete_io(&mut stream);
                // The TCP connection stays open longer than any client waits.
                thread::sleep(Duration::from_secs(20));
            });
        }
    });
    url
}

#[test]
fn close_notify_is_the_end_of_the_stream() {
    let cases: BTreeMap<&str, (&[u8], [u64; 3])> = BTreeMap::from([
        ("without a length", (&b"HTTP/1.1 200 OK\r\n\r\nall of it"[..], [6, 0, 0])),
        ("a length that is reached", (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", [6, 0, 0])),
        ("a length that is not", (b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc", [0, 6, 0])),
        ("nothing", (b"", [0, 6, 0])),
    ]);
    for (what, (bytes, expected)) in cases {
        let folder = Folder::new();
        let url = tls_server(&folder, bytes);
        // A keep-alive connection could be reused before its end arrives.
        let args =
            ["run", &url, "-c", "2", "-n", "6", "--timeout", "5s", "--insecure", "--no-store", "--keepalive", "off"];
        let run = folder.json(&args, i32::from(expected[0] == 0));
        assert_sums(&run);
        let r = &run["phases"][0]["requests"];
        assert_eq!([n(&r["answered"]), n(&r["failed"]["closed"]), n(&r["timed_out"])], expected, "{what}: {r}");
    }
}
