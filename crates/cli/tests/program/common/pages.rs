//! `lastdrop ui` as its browsers and its enemies see it: byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{Folder, signal};

/// Pages that are being served.
pub struct Pages {
    pub child: Child,
    /// With the token.
    pub url: String,
    pub port: u16,
}

/// An answer, taken apart.
#[derive(Debug)]
pub struct Seen {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Seen {
    pub fn of(text: &str) -> Seen {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        Seen { status, head: head.to_string(), body: body.to_string() }
    }

    /// Nothing was given away.
    pub fn is_nothing(&self) -> bool {
        self.status == 403 && self.body.is_empty() && !self.head.to_ascii_lowercase().contains("set-cookie")
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| {
            let (n, value) = l.split_once(": ")?;
            n.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Pages {
    pub fn start(folder: &Folder, args: &[&str]) -> Pages {
        Pages::of(folder.lastdrop(&[&["ui"], args].concat()))
    }

    pub fn of(mut command: Command) -> Pages {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut url).expect("it says where it listens");
        let mut errors = child.stderr.take().expect("piped");
        if url.is_empty() {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            panic!("it does not listen: {text}");
        }
        thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        let url = url.trim().to_string();
        let port = url.split("/?token=").next().and_then(|u| u.rsplit(':').next()?.parse().ok()).expect("a port");
        Pages { child, url, port }
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn origin(&self) -> String {
        format!("http://{}", self.host())
    }

    /// Path and query that let in.
    pub fn entrance(&self) -> String {
        format!("/?token={}", self.url.split("token=").nth(1).expect("a token"))
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set");
        stream
    }

    /// Sends bytes; what comes back until the connection is closed.
    pub fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // It may have refused before all of it was sent.
        let _ = stream.write_all(bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// A request with just these fields.
    pub fn bare(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Seen {
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        Seen::of(&self.send(format!("{text}\r\n{body}").as_bytes()))
    }

    /// The cookie that the token is exchanged for.
    pub fn cookie(&self) -> String {
        let entered = self.bare("GET", &self.entrance(), &[("Host", &self.host())], "");
        assert_eq!((entered.status, entered.field("location")), (303, Some("/")), "{entered:?}");
        let cookie = entered.field("set-cookie").expect("a cookie");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        cookie.split(';').next().unwrap_or_default().to_string()
    }

    /// A page, as somebody who was let in gets it.
    pub fn get(&self, cookie: &str, path: &str) -> Seen {
        self.bare("GET", path, &[("Host", &self.host()), ("Cookie", cookie)], "")
    }

    /// As a form of ours sends it.
    pub fn post(&self, cookie: &str, path: &str, body: &str) -> Seen {
        let origin = self.origin();
        self.bare("POST", path, &[("Host", &self.host()), ("Cookie", cookie), ("Origin", &origin)], body)
    }

    /// The key of the forms of a page.
    pub fn key(&self, cookie: &str, path: &str) -> String {
        let page = self.get(cookie, path).body;
        let key = page.split("name=\"key\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        key.unwrap_or_else(|| panic!("no form: {page}")).to_string()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        signal(&self.child, libc::SIGTERM);
        let _ = self.child.wait();
    }
}
