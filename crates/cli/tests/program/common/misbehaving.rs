//! A server that misbehaves on purpose: each path in its own way, always the same. It records the requests.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A hanging response lasts until the client closes the connection, and at most this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Meaning of the last part of a path. `…later` applies to every third request; the others are answered.
pub const WAYS: [&str; 18] = [
    "ok",
    "nothing",
    "nothinglater",
    "short",
    "shortchunk",
    "head",
    "reset",
    "resetlater",
    "garbage",
    "hang",
    "hanglater",
    "once",
    "close",
    "chunked",
    "vary",
    "404",
    "500",
    "page",
];

/// A received request: its head with the empty line, and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedRequest {
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Memory {
    seen: HashMap<String, u64>,
    heard: Vec<ReceivedRequest>,
}

pub struct MisbehavingServer {
    pub port: u16,
    memory: Arc<Mutex<Memory>>,
    ended: Arc<AtomicBool>,
}

impl MisbehavingServer {
    pub fn start() -> MisbehavingServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (memory, ended) = (Arc::new(Mutex::new(Memory::default())), Arc::new(AtomicBool::new(false)));
        let (shared, over) = (Arc::clone(&memory), Arc::clone(&ended));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let memory = Arc::clone(&shared);
                // A client that closes in the middle of a response ends that connection.
                thread::spawn(move || converse(stream, &memory).unwrap_or_default());
            }
        });
        MisbehavingServer { port, memory, ended }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Resets the server for the next client; returns the requests so far.
    pub fn fresh(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut *self.memory.lock().expect("nobody panicked")).heard
    }
}

impl Drop for MisbehavingServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Connect once more, so that accept returns and sees the end.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Reads a request; None at the end of the stream.
fn hear(reader: &mut impl BufRead) -> std::io::Result<Option<ReceivedRequest>> {
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let start = head.len();
        if reader.read_until(b'\n', &mut head)? == 0 {
            return Ok(None);
        }
        let line = head[start..].trim_ascii();
        if line.is_empty() {
            break;
        }
        let line = String::from_utf8_lossy(line).to_ascii_lowercase();
        if let Some(n) = line.strip_prefix("content-length:") {
            length = n.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(ReceivedRequest { head, body }))
}

/// Ends a connection by a reset.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the socket option gets its own type and size.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
}

fn converse(mut stream: TcpStream, memory: &Mutex<Memory>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(heard) = hear(&mut reader)? {
        let head = String::from_utf8_lossy(&heard.head).to_ascii_lowercase();
        let line: Vec<&str> = head.lines().next().unwrap_or_default().split(' ').collect();
        let keep =
            head.contains("keep-alive") || line.last() == Some(&"http/1.1") && !head.contains("connection: close");
        let path = line.get(1).copied().unwrap_or_default().split('?').next().unwrap_or_default();
        let way = path.rsplit('/').next().unwrap_or_default().to_string();
        let bodiless = line[0] == "head";
        let nth = {
            let mut memory = memory.lock().expect("nobody panicked");
            memory.heard.push(heard);
            let seen = memory.seen.entry(way.clone()).or_default();
            *seen += 1;
            *seen
        };
        let way = match way.strip_suffix("later") {
            Some(way) if nth % 3 == 0 => way,
            Some(_) => "ok",
            None => way.as_str(),
        };
        let answer = |status: &str, fields: &str, body: &str| {
            let end = if keep { "keep-alive" } else { "close" };
            let length = body.len();
            let body = if bodiless { "" } else { body };
            format!(
                "HTTP/1.1 {status}\r\nServer: mis/1\r\nContent-Length: {length}\r\n{fields}Connection: {end}\r\n\r\n{body}"
            )
        };
        let hundred = "x".repeat(100);
        let bytes: Vec<u8> = match way {
            "nothing" => return stream.shutdown(Shutdown::Both),
            "reset" => {
                reset(&stream);
                return Ok(());
            }
            "hang" => {
                // Until the client closes the connection.
                while reader.read(&mut [0; 64])? > 0 {}
                return Ok(());
            }
            "short" => format!("HTTP/1.1 200 OK\r\nServer: mis/1\r\nContent-Length: 1000\r\n\r\n{hundred}").into(),
            "shortchunk" => format!(
                "HTTP/1.1 200 OK\r\nServer: mis/1\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{}",
                "x".repeat(50)
            )
            .into(),
            "head" => b"HTTP/1.1 200 OK\r\nServer: mis/1\r\nConte".to_vec(),
            "garbage" => b"\x00\x01\x02 nonsense \xff\xfe\r\n\r\nmore".to_vec(),
            "close" => format!("HTTP/1.1 200 OK\r\nServer: mis/1\r\nConnection: close\r\n\r\n{hundred}").into(),
            "chunked" => format!(
                "HTTP/1.1 200 OK\r\nServer: mis/1\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{hundred}\r\n32\r\n{}\r\n0\r\n\r\n",
                "y".repeat(50)
            )
            .into(),
            "vary" => answer("200 OK", "", &"v".repeat(if nth % 2 == 1 { 100 } else { 120 })).into(),
            "changes" => answer("200 OK", "", &format!("{nth:05}")).into(),
            "404" => answer("404 Not Found", "", &hundred).into(),
            "500" => answer("500 Oops", "", &hundred).into(),
            "page" => answer("200 OK", "Content-Type: text/html\r\n", "<html><img src=\"/ok\"></html>").into(),
            _ => answer("200 OK", "", &hundred).into(),
        };
        stream.write_all(&bytes)?;
        if !keep || matches!(way, "short" | "shortchunk" | "head" | "garbage" | "close" | "once") {
            return stream.shutdown(Shutdown::Both);
        }
    }
    Ok(())
}
