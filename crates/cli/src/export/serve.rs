//! Serves the latest state over HTTP at `/metrics` while the runs go on.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lastdrop_http::request::RequestParser;
use lastdrop_wire::{Acceptor, DeadlineSocket, Slot, Wire, listen_on, loopback};

use super::Sink;
use crate::stdio::note;

/// Timeout of a scraper's request and of our response.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit of simultaneous scrapers; one more closes the oldest connection.
const MOST: usize = 16;
const STACK_BYTES: usize = 1 << 20;

/// The addresses to listen at: an address and port, or a port on loopback (IPv4 or IPv6, whichever this machine has).
///
/// # Errors
/// Says what to write.
pub(super) fn addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    let port = text.strip_prefix("localhost:").unwrap_or(text.trim_start_matches(':'));
    match (text.parse(), port.parse()) {
        (Ok(address), _) => Ok(vec![address]),
        (_, Ok(port)) => Ok(loopback(port).to_vec()),
        _ => Err(format!("'{text}' is no address to listen at; write a port, which is on 127.0.0.1, or ADDRESS:PORT")),
    }
}

/// A server of the latest page.
#[derive(Debug, Default)]
pub(super) struct Server {
    page: Arc<Mutex<Arc<Vec<u8>>>>,
    acceptor: Acceptor,
}

impl Server {
    /// # Errors
    /// When the address is not available.
    pub fn open(at: &str, quiet: bool) -> io::Result<Server> {
        let addresses = addresses(at).map_err(io::Error::other)?;
        let listener = listen_on(&addresses).map_err(|(_, e)| e)?;
        let address = listener.local_addr()?;
        if !quiet {
            note!("metrics at http://{address}/metrics");
        }
        let server = Server::default();
        let page = Arc::clone(&server.page);
        // The acceptor counts all connections as idle, so it may close any of them for a new one.
        let serve = move |stream, _: &Slot| {
            let page = Arc::clone(&page.lock().unwrap_or_else(PoisonError::into_inner));
            // Ignore a scraper that has closed its connection or does not speak HTTP.
            let _ = answer(stream, &page);
        };
        server.acceptor.start(listener, MOST, STACK_BYTES, serve, |stream, _| drop(stream))?;
        Ok(server)
    }
}

impl Sink for Server {
    fn take(&self, piece: Vec<u8>) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(piece);
    }

    fn close(&self) -> Option<String> {
        self.acceptor.end();
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

/// Answers one request.
fn answer(stream: TcpStream, page: &[u8]) -> io::Result<()> {
    let mut wire = Wire::Plain(DeadlineSocket::new(stream, LIMIT));
    let (mut parser, mut buffer) = (RequestParser::default(), [0; 4096]);
    let request = loop {
        if let Some(request) = parser.next_request().map_err(io::Error::other)? {
            break request;
        }
        match wire.read(&mut buffer)? {
            0 => return Ok(()),
            n => parser.push(&buffer[..n]),
        }
    };
    let path = request.path.split('?').next().unwrap_or_default();
    let (status, body): (&str, &[u8]) = match (request.method.as_str(), path) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", page),
        ("GET" | "HEAD", _) => ("404 Not Found", b"lastdrop: /metrics\n"),
        _ => ("405 Method Not Allowed", b"GET\n"),
    };
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    if request.method != "HEAD" {
        text.extend_from_slice(body);
    }
    wire.within(LIMIT);
    wire.write(&text)?;
    wire.linger();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

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
            assert_eq!(addresses(text).map(|all| all[0].to_string()), Ok(at.to_string()));
        }
        assert!(addresses("70000").is_err() && addresses("example.org:80").is_err());
    }

    #[test]
    fn who_says_nothing_keeps_nobody_from_the_latest_page() {
        let server = Server::open("0", true).expect("a free port");
        let address = *server.acceptor.address().expect("it listens");
        server.take(b"old 1\n".to_vec());
        server.take(b"new 2\n".to_vec());
        let _silent: Vec<TcpStream> = (0..3 * MOST).map(|_| TcpStream::connect(address).expect("connects")).collect();
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
        let over = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            TcpStream::connect(address).is_err()
        });
        assert!(over, "{address} is still served");
    }
}
