//! `lastdrop ui` as browsers and attackers see it, byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{Folder, signal};

/// A running `lastdrop ui`.
pub struct UiServer {
    pub child: Child,
    /// The URL with the token.
    pub url: String,
    pub port: u16,
}

/// A parsed response.
#[derive(Debug)]
pub struct PageResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl PageResponse {
    pub fn of(text: &str) -> PageResponse {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        PageResponse { status, head: head.to_string(), body: body.to_string() }
    }

    /// True if the response gives nothing away.
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

impl UiServer {
    pub fn start(folder: &Folder, args: &[&str]) -> UiServer {
        UiServer::of(folder.lastdrop(&[&["ui"], args].concat()))
    }

    pub fn of(mut command: Command) -> UiServer {
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
        UiServer { child, url, port }
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn origin(&self) -> String {
        format!("http://{}", self.host())
    }

    /// Path and query with the token.
    pub fn entrance(&self) -> String {
        format!("/?token={}", self.url.split("token=").nth(1).expect("a token"))
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set");
        stream
    }

    /// Sends bytes and returns what comes back until the connection is closed.
    pub fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may refuse before all bytes are sent.
        let _ = stream.write_all(bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Sends a request with only these fields.
    pub fn bare(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> PageResponse {
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        PageResponse::of(&self.send(format!("{text}\r\n{body}").as_bytes()))
    }

    /// The cookie that the token is exchanged for.
    pub fn cookie(&self) -> String {
        let entered = self.bare("GET", &self.entrance(), &[("Host", &self.host())], "");
        assert_eq!((entered.status, entered.field("location")), (303, Some("/")), "{entered:?}");
        let cookie = entered.field("set-cookie").expect("a cookie");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        cookie.split(';').next().unwrap_or_default().to_string()
    }

    /// Gets a page with the cookie.
    pub fn get(&self, cookie: &str, path: &str) -> PageResponse {
        self.bare("GET", path, &[("Host", &self.host()), ("Cookie", cookie)], "")
    }

    /// Posts a form as our pages do.
    pub fn post(&self, cookie: &str, path: &str, body: &str) -> PageResponse {
        let origin = self.origin();
        self.bare("POST", path, &[("Host", &self.host()), ("Cookie", cookie), ("Origin", &origin)], body)
    }

    /// The key in the forms of a page.
    pub fn key(&self, cookie: &str, path: &str) -> String {
        let page = self.get(cookie, path).body;
        let key = page.split("name=\"key\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        key.unwrap_or_else(|| panic!("no form: {page}")).to_string()
    }
}

impl Drop for UiServer {
    fn drop(&mut self) {
        signal(&self.child, libc::SIGTERM);
        let _ = self.child.wait();
    }
}
