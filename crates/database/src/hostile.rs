//! Tests against fake databases. A program that only holds the port, or that never ends its response, gets no password
//! and blocks nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{DatabaseTrouble, TroubleKind};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::access::Access;
use crate::stream::{EXCHANGE, EffectiveUser};
use crate::views;

const PASSWORD: &str = "right-and-secret";

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// The client under test; all that it sends is recorded.
struct Client<'a> {
    stream: &'a mut dyn Duplex,
    heard: &'a mut Vec<u8>,
}

impl Client<'_> {
    /// Returns the next bytes from the client; none once it has closed the connection.
    fn hear(&mut self) -> Vec<u8> {
        let mut bytes = [0; 4096];
        let n = self.stream.read(&mut bytes).unwrap_or(0);
        self.heard.extend_from_slice(&bytes[..n]);
        bytes[..n].to_vec()
    }

    /// False once the client has closed the connection.
    fn say(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).is_ok()
    }

    fn packet(&mut self, sequence: u8, body: &[u8]) -> bool {
        self.say(&[&(body.len() as u32).to_le_bytes()[..3], &[sequence], body].concat())
    }

    /// Sends MySQL's greeting and reads the login that follows.
    fn greet(&mut self, plugin: &str) {
        let greeting =
            [b"\x0a8.0.0\0\x01\0\0\0abcdefgh\0\xff\xf7\x2d\x02\0\xff\xff\x15", &[0; 10][..], b"ijklmnopqrst\0"];
        self.packet(0, &[&greeting.concat(), plugin.as_bytes(), b"\0"].concat());
        self.hear();
    }

    /// Sends a message of PostgreSQL's protocol.
    fn message(&mut self, kind: u8, body: &[u8]) -> bool {
        self.say(&[&[kind], &(body.len() as u32 + 4).to_be_bytes()[..], body].concat())
    }

    fn authentication(&mut self, number: u32, body: &[u8]) -> bool {
        self.message(b'R', &[&number.to_be_bytes()[..], body].concat())
    }
}

type Script = fn(&mut Client<'_>);
/// Builds the URL of a database at a port.
type UrlBuilder = fn(u16) -> String;

fn play(script: Script, mut stream: impl Read + Write, heard: &mut Vec<u8>) {
    script(&mut Client { stream: &mut stream, heard });
}

/// Plays a script to one client over TCP; the receiver gets all that the client sent.
fn tcp(script: Script) -> (u16, Receiver<Vec<u8>>) {
    serve_tcp(move |stream, heard| play(script, stream, heard))
}

fn serve_tcp(serve: impl FnOnce(TcpStream, &mut Vec<u8>) + Send + 'static) -> (u16, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let port = listener.local_addr().expect("its address").port();
    let (tell, told) = channel();
    thread::spawn(move || {
        let mut heard = Vec::new();
        serve(listener.accept().expect("a client").0, &mut heard);
        let _ = tell.send(heard);
    });
    (port, told)
}

fn trouble(url: &str) -> DatabaseTrouble {
    match views::open(&url.parse::<Access>().expect("valid")) {
        Ok(_) => panic!("{url} let us in"),
        Err(e) => e.trouble(),
    }
}

fn mysql(port: u16) -> String {
    format!("mysql://u:{PASSWORD}@127.0.0.1:{port}/?sslmode=disable")
}

fn postgres(port: u16) -> String {
    format!("postgres://u:{PASSWORD}@127.0.0.1:{port}/?sslmode=disable")
}

fn has_password(heard: &[u8]) -> bool {
    heard.windows(PASSWORD.len()).any(|w| w == PASSWORD.as_bytes())
}

fn clear_password(c: &mut Client) {
    c.greet("mysql_native_password");
    c.packet(2, b"\xfemysql_clear_password\0");
    c.hear();
}

fn postgres_clear(c: &mut Client) {
    c.hear();
    c.authentication(3, b"");
    c.hear();
}

#[test]
fn a_password_is_not_sent_in_clear_to_who_holds_the_port() {
    let scripts: [(&str, UrlBuilder, Script); 5] = [
        ("mysql_clear_password", mysql, clear_password),
        ("caching_sha2_password", mysql, |c| {
            c.greet("caching_sha2_password");
            c.packet(2, b"\x01\x04");
            c.hear();
        }),
        ("the password itself", postgres, postgres_clear),
        ("MD5", postgres, |c| {
            c.hear();
            c.authentication(5, b"salt");
            c.hear();
        }),
        ("very few rounds", postgres, |c| {
            c.hear();
            c.authentication(10, b"SCRAM-SHA-256\0\0");
            let first = String::from_utf8_lossy(&c.hear()).into_owned();
            let nonce = first.rsplit_once("r=").expect("a nonce").1.to_string();
            c.authentication(11, format!("r={nonce}x,s=c2FsdA==,i=1").as_bytes());
            c.hear();
        }),
    ];
    for (method, url, script) in scripts {
        let (port, told) = tcp(script);
        let refused = trouble(&url(port));
        assert_eq!(refused.kind, TroubleKind::Denied, "{method}: {refused:?}");
        for words in [method, "is not encrypted", "unix socket", "--db-ca"] {
            assert!(refused.what.contains(words), "{method}, {words}: {}", refused.what);
        }
        let heard = told.recv().expect("what it was told");
        // After the login request, the client sends nothing but the first message of SCRAM.
        assert!(!has_password(&heard), "{method}");
        assert!(!heard.windows(3).any(|w| w == b"md5" || w == b",p="), "{method}");
    }
}

#[test]
fn a_database_that_does_not_prove_that_it_knows_the_password_is_refused() {
    let (port, _told) = tcp(|c| {
        c.hear();
        c.authentication(10, b"SCRAM-SHA-256\0\0");
        let first = String::from_utf8_lossy(&c.hear()).into_owned();
        let nonce = first.rsplit_once("r=").expect("a nonce").1.to_string();
        c.authentication(11, format!("r={nonce}x,s=c2FsdA==,i=4096").as_bytes());
        c.hear();
        c.authentication(0, b"");
        c.message(b'Z', b"I");
        c.hear();
    });
    let refused = trouble(&postgres(port));
    assert!(refused.what.contains("has not proven"), "{refused:?}");
}

#[test]
fn a_file_of_this_machine_is_not_given_away() {
    let (port, told) = tcp(|c| {
        c.greet("mysql_native_password");
        c.packet(2, b"\0\0\0\x02\0\0\0");
        c.hear();
        c.packet(1, b"\xfb/etc/passwd");
        while !c.hear().is_empty() {}
    });
    let began = Instant::now();
    let refused = trouble(&mysql(port));
    assert!(refused.what.contains("LOCAL INFILE '/etc/passwd'"), "{refused:?}");
    // The client answers with an empty file and closes the connection; it sends no further query.
    let heard = told.recv().expect("what it was told");
    assert!(heard.ends_with(&[0, 0, 0, 2]) && began.elapsed() < EXCHANGE, "{heard:?}");
}

#[test]
fn who_answers_without_an_end_is_left_in_time() {
    let scripts: [(UrlBuilder, Script); 6] = [
        // One byte every 50 ms.
        (mysql, |c| {
            while c.say(b"\x4a") {
                thread::sleep(Duration::from_millis(50))
            }
        }),
        (postgres, |c| {
            while c.say(b"N") {
                thread::sleep(Duration::from_millis(50))
            }
        }),
        // Endless notices, parameters, rows, columns.
        (postgres, |c| while c.message(b'N', b"SNOTICE\0C00000\0Mhello\0\0") {}),
        (postgres, |c| while c.message(b'S', b"a\0b\0") {}),
        (mysql, |c| {
            c.greet("mysql_native_password");
            c.packet(2, b"\0\0\0\x02\0\0\0");
            c.hear();
            c.packet(1, b"\x01");
            c.packet(2, b"column");
            c.packet(3, b"\xfe\0\0\0\0");
            while c.packet(4, &[b"\xfc\xff\xff", &[b'x'; 0xffff][..]].concat()) {}
        }),
        (mysql, |c| {
            c.greet("mysql_native_password");
            c.packet(2, b"\0\0\0\x02\0\0\0");
            c.hear();
            c.packet(1, b"\xfc\xff\xff");
            while c.packet(2, b"column") {}
        }),
    ];
    let waits = scripts.map(|(url, script)| {
        thread::spawn(move || {
            let (port, _told) = tcp(script);
            let began = Instant::now();
            (trouble(&url(port)), began.elapsed())
        })
    });
    for wait in waits {
        let (trouble, took) = wait.join().expect("it ends");
        // One deadline for the login and one for a query.
        assert!(took < 3 * EXCHANGE, "{took:?}: {trouble:?}");
        assert!(trouble.what.len() < 1000, "{} bytes", trouble.what.len());
    }
}

/// A PostgreSQL server with TLS that asks for the password in clear. Its certificate is for `localhost`.
fn with_tls() -> (u16, Receiver<Vec<u8>>, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let chain = vec![CertificateDer::from(made.cert.der().to_vec())];
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key.into())
        .expect("a key");
    let (port, told) = serve_tcp(move |mut tcp, heard| {
        let mut request = [0; 8];
        tcp.read_exact(&mut request).expect("a request for TLS");
        tcp.write_all(b"S").expect("a client");
        let session = ServerConnection::new(Arc::new(config)).expect("a session");
        play(postgres_clear, StreamOwned::new(session, tcp), heard);
    });
    (port, told, made.cert.pem())
}

#[test]
fn over_tls_a_password_is_sent_once_the_certificate_is_verified_with_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    let trouble_at = |host: &str, more: &str| {
        let (port, told, pem) = with_tls();
        std::fs::write(&ca, pem).expect("written");
        let trouble = trouble(&format!("postgres://u:{PASSWORD}@{host}:{port}/{more}"));
        (trouble.what, has_password(&told.recv().unwrap_or_default()))
    };
    let given = format!("?sslrootcert={}", ca.display());
    let (what, sent) = trouble_at("localhost", &given);
    assert!(sent, "{what}");
    let (what, sent) = trouble_at("localhost", "");
    assert!(!sent && what.contains("certificate is not trusted (it is self-signed"), "{what}");
    let (what, sent) = trouble_at("127.0.0.1", &given);
    assert!(!sent && what.contains("is for localhost, not for 127.0.0.1"), "{what}");
    // Without TLS nothing can be verified; a client that requires TLS sends no password.
    let (port, told) = tcp(|c| {
        c.hear();
        c.say(b"N");
        c.hear();
    });
    let refused = trouble(&format!("postgres://u:{PASSWORD}@localhost:{port}/{given}"));
    assert!(refused.what.contains("has no TLS") && !has_password(&told.recv().expect("heard")), "{refused:?}");
}

#[test]
fn over_a_unix_socket_a_password_is_sent_to_root_or_the_user_who_was_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let is_root = nix::unistd::geteuid().is_root();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("allowed");
    let told_by = |user: Option<u32>, more: &str| {
        let path = folder.path().join(format!("{user:?}{}.sock", more.len()));
        let listener = {
            let _as = user.map(|user| EffectiveUser::new(user).expect("as root"));
            UnixListener::bind(&path).expect("listens")
        };
        let served = thread::spawn(move || {
            let mut heard = Vec::new();
            let (stream, _): (UnixStream, _) = listener.accept().expect("a client");
            play(clear_password, stream, &mut heard);
            has_password(&heard)
        });
        let trouble = trouble(&format!("mysql://u:{PASSWORD}@localhost/?socket={}{more}", path.display()));
        (served.join().expect("served"), trouble.what)
    };
    assert!(told_by(None, "").0, "our own socket");
    if !is_root {
        return;
    }
    let (sent, what) = told_by(Some(65534), "");
    assert!(!sent && what.contains("its socket is of user nobody"), "{what}");
    assert!(told_by(Some(65534), "&requirepeer=nobody").0);
    let (sent, what) = told_by(None, "&requirepeer=nobody");
    assert!(!sent && what.contains("requirepeer says nobody"), "{what}");
}
