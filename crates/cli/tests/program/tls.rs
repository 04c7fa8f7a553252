//! TLS with certificates that strict clients refuse, and with servers that require a client certificate: which are accepted, and
//! the error messages for the others. The server is OpenSSL's, because web servers do not start with such certificates.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{Folder, free_port, n, wait_until};

fn shell(folder: &Folder, script: &str) {
    let done =
        Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().expect("sh and openssl run");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// `openssl s_server` that answers each request with a page.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(folder: &Folder, certificate: &str, more: &[&str]) -> Server {
        let port = free_port();
        let child = Command::new("openssl")
            .args([
                "s_server",
                "-quiet",
                "-www",
                "-cipher",
                "DEFAULT@SECLEVEL=0",
                "-accept",
                &format!("127.0.0.1:{port}"),
            ])
            .args(["-cert", &format!("{certificate}.pem"), "-key", &format!("{certificate}.key")])
            .args(more)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        wait_until("a server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Server { child, port }
    }

    fn url(&self, host: &str) -> String {
        format!("https://{host}:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(folder: &Folder, url: &str, more: &[&str], code: i32) -> Value {
    folder.json(&[&["run", url, "-n", "5", "-c", "1", "-4"], more].concat(), code)
}

fn answered(run: &Value) -> u64 {
    n(&run["phases"][0]["requests"]["answered"])
}

#[test]
fn a_certificate_that_only_insecure_clients_take_is_loaded_and_the_report_says_what_is_weak_about_it() {
    let folder = Folder::new();
    shell(
        &folder,
        "openssl req -newkey rsa:1024 -nodes -keyout old.key -out old.csr -subj /CN=localhost
         openssl x509 -req -in old.csr -signkey old.key -out old.pem -days 2
         openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp521r1 -nodes -keyout p521.key -out p521.pem -subj /CN=x",
    );
    // With TLS 1.2 a P-521 key requires a key exchange with that curve, which we do not support.
    for (certificate, versions) in [("old", &["1.2", "1.3"][..]), ("p521", &["1.3"])] {
        let server = Server::start(&folder, certificate, &[]);
        for version in versions {
            let run = load(&folder, &server.url("127.0.0.1"), &["--insecure", "--tls", version], 0);
            assert_eq!(answered(&run), 5, "{certificate}, {version}: {}", run["generator"]);
            let weak = run["generator"]["unverified"].to_string();
            assert!(weak.contains("is self-signed"), "{weak}");
            let is_old =
                ["is an X.509 version 1 certificate", "has an RSA key of 1024 bits"].iter().all(|w| weak.contains(w));
            assert_eq!(is_old, certificate == "old", "{weak}");
        }
        let text = folder.run(&["run", &server.url("127.0.0.1"), "-n", "5", "-c", "1", "-k"]).stdout;
        assert!(text.contains("TLS: the server's certificate was not verified (--insecure); it "), "{text}");
    }
}

#[test]
fn a_certificate_that_is_refused_is_refused_with_what_is_wrong_and_what_helps() {
    let folder = Folder::new();
    shell(
        &folder,
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout own.key -out own.pem -days 2 -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost
         openssl rsa -aes256 -passout pass:secret -in own.key -out encrypted.key",
    );
    let server = Server::start(&folder, "own", &[]);
    let (local, ca) = (server.url("localhost"), folder.join("own.pem").display().to_string());
    // A certificate by `openssl req -x509` is marked as an authority.
    let run = load(&folder, &local, &["--ca", &ca], 0);
    assert_eq!((answered(&run), &run["generator"]["unverified"]), (5, &Value::Null), "{}", run["generator"]);

    let said = |url: &str, more: &[&str]| {
        let done = folder.run(&[&["run", url, "-n", "5", "-c", "1", "-4"], more].concat());
        assert!(done.code != 0 && !done.stderr.contains("is the server running"), "{done:?}");
        done.stderr
    };
    let unknown = said(&local, &[]);
    assert!(unknown.contains("it is self-signed") && unknown.contains("--ca FILE"), "{unknown}");
    let other = said(&server.url("127.0.0.1"), &["--ca", &ca]);
    assert!(other.contains("it is for localhost, not for 127.0.0.1") && other.contains("--server-name"), "{other}");
    let key = folder.join("encrypted.key").display().to_string();
    let encrypted = said(&local, &["--ca", &ca, "--cert", &ca, "--key", &key]);
    assert!(encrypted.contains(&format!("is encrypted: openssl pkey -in {key} -out ")), "{encrypted}");

    let strict = Server::start(&folder, "own", &["-Verify", "1", "-CAfile", "own.pem", "-verify_return_error"]);
    for version in ["1.2", "1.3"] {
        let run = load(&folder, &strict.url("localhost"), &["--ca", &ca, "--tls", version], 1);
        let failed = &run["phases"][0]["requests"]["failed"];
        assert_eq!((n(&failed["connect"]), n(&failed["protocol"])), (5, 0), "{version}: {}", run["generator"]);
        let errors = run["generator"]["connect_errors"].to_string();
        let wanted = if version == "1.3" { "requires a client certificate" } else { "TLS alert HandshakeFailure" };
        assert!(errors.contains(wanted), "{version}: {errors}");
        assert!(version == "1.2" || errors.contains("--cert FILE"), "{errors}");
    }
    let own_key = folder.join("own.key").display().to_string();
    let run = load(&folder, &strict.url("localhost"), &["--ca", &ca, "--cert", &ca, "--key", &own_key], 0);
    assert_eq!(answered(&run), 5, "{}", run["generator"]);
}
