//! The latest state over HTTP: `/metrics`, for as long as the runs go on.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_http::request::RequestParser;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Sink;
use crate::stdio::note;

/// Who has not got his answer by then does not get it.
const LIMIT: Duration = Duration::from_secs(10);
/// Scrapers at a time; others are closed.
const MOST: usize = 16;
/// How often it is looked whether it is over, milliseconds.
const LOOK_MS: u16 = 100;

/// Where it listens: an address and port, or a port on loopback.
///
/// # Errors
/// What to write.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let loopback =
        || text.trim_start_matches(':').parse().ok().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    local.as_deref().unwrap_or(text).parse().ok().or_else(loopback).ok_or_else(|| {
        format!("'{text}' is no address to listen at; write a port, which is on 127.0.0.1, or ADDRESS:PORT")
    })
}

#[derive(Debug, Default)]
struct Shared {
    page: Mutex<Arc<Vec<u8>>>,
    over: AtomicBool,
    scrapers: AtomicUsize,
}

/// A thread that listens, and one for each scraper.
#[derive(Debug)]
pub(super) struct Server(Arc<Shared>);

impl Server {
    /// # Errors
    /// When the address is not to be had.
    pub fn open(at: &str, quiet: bool) -> io::Result<Server> {
        let listener = TcpListener::bind(address(at).map_err(io::Error::other)?)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        if !quiet {
            note!("metrics at http://{address}/metrics");
        }
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("export-serve".into()).spawn(move || listen(&listener, &theirs))?;
        Ok(Server(shared))
    }
}

impl Sink for Server {
    fn take(&self, piece: Vec<u8>) {
        *self.0.page.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(piece);
    }

    fn close(&self) -> Option<String> {
        self.0.over.store(true, Ordering::Relaxed);
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.over.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::from(LOOK_MS));
        let Ok((stream, _)) = listener.accept() else { continue };
        if shared.scrapers.fetch_add(1, Ordering::Relaxed) >= MOST {
            shared.scrapers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let theirs = Arc::clone(shared);
        let answer = move || {
            let page = Arc::clone(&theirs.page.lock().unwrap_or_else(PoisonError::into_inner));
            // A scraper who has gone, or talks no HTTP, gets nothing.
            let _ = answer(stream, &page);
            theirs.scrapers.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("export-answer".into()).spawn(answer).is_err() {
            shared.scrapers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Answers one request.
fn answer(mut stream: TcpStream, page: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    stream.set_nonblocking(false)?;
    let (mut parser, mut buffer) = (RequestParser::default(), [0; 4096]);
    let request = loop {
        if let Some(request) = parser.next_request().map_err(io::Error::other)? {
            break request;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => parser.push(&buffer[..n]),
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    };
    let path = request.path.split('?').next().unwrap_or_default();
    let (status, body): (&str, &[u8]) = match (request.method.as_str(), path) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", page),
        ("GET" | "HEAD", _) => ("404 Not Found", b"lastdrop: /metrics\n"),
        _ => ("405 Method Not Allowed", b"GET\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(head.as_bytes())?;
    if request.method != "HEAD" {
        stream.write_all(body)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_loopback() {
        for (text, at) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("localhost:0", "127.0.0.1:0"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(address(text).map(|a| a.to_string()), Ok(at.to_string()));
        }
        assert!(address("70000").is_err() && address("example.org:80").is_err());
    }

    #[test]
    fn who_says_nothing_keeps_nobody_from_the_latest_page() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("set");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let server = Server(Arc::clone(&shared));
        let serving = thread::spawn(move || listen(&listener, &shared));
        server.take(b"old 1\n".to_vec());
        server.take(b"new 2\n".to_vec());
        let _silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).expect("connects")).collect();
        let get = |path: &str| {
            let mut stream = TcpStream::connect(address).expect("connects");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        };
        assert!(get("/metrics").ends_with("\r\n\r\nnew 2\n"));
        assert!(get("/").starts_with("HTTP/1.1 404 "));
        drop(server);
        serving.join().expect("ends");
    }
}
