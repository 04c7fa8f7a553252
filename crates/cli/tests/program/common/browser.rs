//! Headless Chromium, driven by chromedriver's plain HTTP (W3C WebDriver).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::servers::Daemon;
use super::{Folder, free_port, wait_until};

/// WebDriver's key of an element's id.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser; closes on drop.
pub struct Browser {
    port: u16,
    session: String,
    _driver: Daemon,
}

impl Browser {
    /// Starts a browser with a profile of its own and these arguments.
    pub fn start(folder: &Folder, args: &[&str]) -> Browser {
        let port = free_port();
        let mut command = Command::new("chromedriver");
        // Its temporary files are deleted with the folder.
        command
            .arg(format!("--port={port}"))
            .env("TMPDIR", folder.path())
            .env("HOME", folder.path())
            .stdin(Stdio::null());
        let driver =
            Daemon::start(command, "chromium-driver", |_| request(port, "GET", "/status", &Value::Null).is_some());
        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        let mut all =
            vec!["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
        all.extend(["--disable-background-networking", "--disable-component-update", &profile]);
        all.extend(args);
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": all}, "goog:loggingPrefs": {"browser": "ALL"}}}});
        let made = request(port, "POST", "/session", &wanted).expect("a session of Chromium");
        let session = made["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {made}")).to_string();
        Browser { port, session, _driver: driver }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        let answer = request(self.port, method, &path, body).expect("an answer of chromedriver");
        assert!(answer["value"]["error"].is_null(), "{path}: {answer}");
        answer["value"].clone()
    }

    pub fn go(&self, url: &str) {
        self.ask("POST", "/url", &json!({"url": url}));
    }

    pub fn url(&self) -> String {
        self.ask("GET", "/url", &Value::Null).as_str().unwrap_or_default().to_string()
    }

    /// Waits for a page of this title.
    pub fn see(&self, title: &str) {
        wait_until(title, || self.ask("GET", "/title", &Value::Null) == title);
    }

    fn element(&self, css: &str) -> String {
        let found = self.ask("POST", "/element", &json!({"using": "css selector", "value": css}));
        format!("/element/{}", found[ELEMENT].as_str().unwrap_or_else(|| panic!("{css}: {found}")))
    }

    pub fn enter(&self, css: &str, text: &str) {
        self.ask("POST", &format!("{}/value", self.element(css)), &json!({"text": text}));
    }

    /// Runs a script and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Errors and violations of policies since the last call.
    pub fn console(&self) -> Vec<String> {
        let entries = self.ask("POST", "/se/log", &json!({"type": "browser"}));
        entries.as_array().map(|all| all.iter().map(|e| e["message"].to_string()).collect()).unwrap_or_default()
    }

    /// A command of the DevTools protocol.
    pub fn devtools(&self, command: &str, params: &Value) -> Value {
        self.ask("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": params}))
    }

    pub fn click(&self, css: &str) {
        self.ask("POST", &format!("{}/click", self.element(css)), &json!({}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = request(self.port, "DELETE", &format!("/session/{}", self.session), &Value::Null);
    }
}

fn request(port: u16, method: &str, path: &str, body: &Value) -> Option<Value> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    // A browser on a busy machine is slow.
    stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 8192];
    // chromedriver keeps the connection open in any case: the length marks the end.
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            if rest.len() >= length.unwrap_or(0usize) {
                return serde_json::from_str(rest).ok();
            }
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            n => bytes.extend_from_slice(&buffer[..n]),
        }
    }
}
