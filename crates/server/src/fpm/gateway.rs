//! A front server for a second PHP-FPM: it takes HTTP on a loopback port and passes each request to the pool by FastCGI.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lastdrop_http::{RequestHead, RequestParser, Sink};
use lastdrop_model::Url;
use lastdrop_probe::fastcgi::{self, FpmSocket};
use lastdrop_probe::status::Answer;

use super::script::ServedRequest;

/// Longest time of an answer, and of a connection without a request.
const LIMIT: Duration = Duration::from_secs(60);
/// Fields that concern one connection, or that the gateway writes itself.
const OWN_FIELDS: [&str; 4] = ["connection", "content-length", "keep-alive", "transfer-encoding"];

/// A running gateway; it accepts no more connections when dropped.
#[derive(Debug)]
pub struct Gateway {
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
}

/// What the gateway passes on to.
struct Site {
    socket: FpmSocket,
    served: ServedRequest,
    url: Url,
}

impl Gateway {
    /// Starts it for a pool that answers `url` as `served` says.
    pub fn start(socket: FpmSocket, served: ServedRequest, url: Url) -> io::Result<Gateway> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, over) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let (site, ended) = (Arc::new(Site { socket, served, url }), Arc::clone(&over));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), site) = (stream, Arc::clone(&site)) else { continue };
                // An error on a connection ends that connection and nothing else.
                thread::spawn(move || drop(site.serve(stream)));
            }
        });
        Ok(Gateway { address, over })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

/// Fields and body of a request.
#[derive(Default)]
struct RequestParts {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Sink for RequestParts {
    fn field(&mut self, name: &str, value: &[u8]) {
        self.fields.push((name.into(), String::from_utf8_lossy(value).into_owned()));
    }

    fn body(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }
}

impl Site {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let (mut parser, mut parts, mut buffer) = (RequestParser::default(), RequestParts::default(), [0; 16 * 1024]);
        loop {
            let next = parser.next_into(&mut parts).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            let Some(head) = next else {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    n => parser.push(&buffer[..n]),
                }
                continue;
            };
            let answer = self.ask(&head, &std::mem::take(&mut parts))?;
            stream.write_all(&wire(&answer, &head))?;
            if !head.keep_alive {
                return Ok(());
            }
        }
    }

    fn ask(&self, head: &RequestHead, parts: &RequestParts) -> io::Result<Answer> {
        let variables = self.variables(head, parts);
        let pairs: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        fastcgi::ask(&self.socket, &pairs, &parts.body, LIMIT)
    }

    fn variables(&self, head: &RequestHead, parts: &RequestParts) -> Vec<(String, String)> {
        let url = Url { path: head.path.clone(), ..self.url.clone() };
        let served = if head.path == self.url.path { self.served.clone() } else { self.served.of_path(&head.path) };
        let mut all: Vec<(String, String)> =
            served.variables(&url, &served.script).into_iter().map(|(name, value)| (name.into(), value)).collect();
        let mut set = |name: String, value: String| {
            all.retain(|(known, _)| *known != name);
            all.push((name, value));
        };
        set("REQUEST_METHOD".into(), head.method.clone());
        for (name, value) in &parts.fields {
            set(format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_")), value.clone());
            if name.eq_ignore_ascii_case("content-type") {
                set("CONTENT_TYPE".into(), value.clone());
            }
        }
        if !parts.body.is_empty() {
            set("CONTENT_LENGTH".into(), parts.body.len().to_string());
        }
        // A field Proxy is not the variable HTTP_PROXY (CVE-2016-5385).
        all.retain(|(name, _)| name != "HTTP_PROXY");
        all
    }
}

fn wire(answer: &Answer, head: &RequestHead) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {} -\r\nContent-Length: {}\r\n", answer.status, answer.body.len()).into_bytes();
    for (name, value) in answer.fields.iter().filter(|(n, _)| !OWN_FIELDS.iter().any(|own| n.eq_ignore_ascii_case(own)))
    {
        bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    if !head.keep_alive {
        bytes.extend(b"Connection: close\r\n");
    } else if head.http10 {
        bytes.extend(b"Connection: keep-alive\r\n");
    }
    bytes.extend(b"\r\n");
    if head.method != "HEAD" {
        bytes.extend(&answer.body);
    }
    bytes
}
