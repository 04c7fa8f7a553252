//! One request over FastCGI: enough to read PHP-FPM's status page, or the response of a script, without a web server.
//!
//! Source: FastCGI Specification 1.0, sections 3.3 (records), 3.4 (name-value pairs) and 5 (application record types).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::status::Answer;
use crate::unix;

/// Where a PHP-FPM pool listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FpmSocket {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for FpmSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FpmSocket::Tcp(address) => address.fmt(f),
            FpmSocket::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
/// A status page of ten thousand processes is smaller; longer responses are cut off.
const MOST_BYTES: usize = 16 << 20;

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u16;
    let mut bytes = vec![1, kind, 0, 1];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(content);
    bytes
}

fn parameters(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in pairs {
        for text in [name, value] {
            // One byte up to 127, four with the highest bit set beyond.
            match u8::try_from(text.len()) {
                Ok(n) if n < 128 => bytes.push(n),
                _ => bytes.extend((text.len() as u32 | 1 << 31).to_be_bytes()),
            }
        }
        bytes.extend(name.as_bytes());
        bytes.extend(value.as_bytes());
    }
    bytes
}

trait Stream: Read + Write {
    /// Limits how long the next read or write may take.
    fn limit(&self, limit: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit)).and_then(|()| self.set_write_timeout(Some(limit)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit)).and_then(|()| self.set_write_timeout(Some(limit)))
    }
}

/// A stream with a deadline for the whole exchange, also if the server sends one byte per second.
struct DeadlineStream {
    stream: Box<dyn Stream>,
    deadline: Instant,
}

impl DeadlineStream {
    fn limit(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { self.stream.limit(left) }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Returns the body of the response to a GET of `path`.
///
/// # Errors
/// When nothing listens, the response does not come in time, or it is not FastCGI.
pub fn get(socket: &FpmSocket, path: &str, query: &str, limit: Duration) -> io::Result<String> {
    let uri = format!("{path}?{query}");
    let pairs = [
        ("REQUEST_METHOD", "GET"),
        ("SCRIPT_NAME", path),
        ("SCRIPT_FILENAME", path),
        ("REQUEST_URI", uri.as_str()),
        ("QUERY_STRING", query),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
    ];
    let output = output_of(socket, &pairs, &[], limit)?;
    let text = String::from_utf8_lossy(&output).into_owned();
    Ok(text.split_once("\r\n\r\n").map_or(text.clone(), |(_, body)| body.to_string()))
}

/// Returns the response to a request with these variables and this body.
///
/// # Errors
/// As [`get`], and when the response has no header.
pub fn ask(socket: &FpmSocket, variables: &[(&str, &str)], body: &[u8], limit: Duration) -> io::Result<Answer> {
    answer_of(&output_of(socket, variables, body, limit)?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer has no head"))
}

/// Parses the output of a script (RFC 3875 section 6), in which the status is a header field.
fn answer_of(output: &[u8]) -> Option<Answer> {
    let mut answer = Answer { status: 200, ..Answer::default() };
    let mut rest = output;
    loop {
        let end = rest.iter().position(|b| *b == b'\n')?;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        rest = &rest[end + 1..];
        if line.is_empty() {
            answer.body = rest.to_vec();
            return Some(answer);
        }
        let colon = line.iter().position(|b| *b == b':')?;
        let (name, value) = (String::from_utf8_lossy(&line[..colon]), line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case("Status") {
            answer.status = String::from_utf8_lossy(value).split_whitespace().next()?.parse().ok()?;
        } else {
            answer.fields.push((name.into_owned(), value.to_vec()));
        }
    }
}

fn output_of(socket: &FpmSocket, variables: &[(&str, &str)], body: &[u8], limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + limit;
    let stream: Box<dyn Stream> = match socket {
        FpmSocket::Tcp(address) => Box::new(TcpStream::connect_timeout(address, limit)?),
        FpmSocket::Unix(path) => Box::new(unix::connect(path, limit)?),
    };
    let mut stream = DeadlineStream { stream, deadline };
    // Role 1 is a responder. Without flags, the connection ends with the response.
    let mut request = record(BEGIN_REQUEST, &[0, 1, 0, 0, 0, 0, 0, 0]);
    // A record holds 65535 bytes at most.
    parameters(variables).chunks(0x8000).for_each(|part| request.extend(record(PARAMS, part)));
    request.extend(record(PARAMS, &[]));
    body.chunks(0x8000).for_each(|part| request.extend(record(STDIN, part)));
    request.extend(record(STDIN, &[]));
    stream.write_all(&request)?;
    let mut output = Vec::new();
    loop {
        let mut header = [0u8; 8];
        stream.read_exact(&mut header)?;
        if header[0] != 1 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not FastCGI"));
        }
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut content = vec![0; length + usize::from(header[6])];
        stream.read_exact(&mut content)?;
        match header[1] {
            STDOUT if output.len() < MOST_BYTES => output.extend(&content[..length]),
            END_REQUEST => return Ok(output),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_writes_is_an_answer() {
        let answer = answer_of(b"Status: 404 Not Found\r\nContent-type:  text/html\n\r\nno\n\nsuch").expect("a head");
        assert_eq!((answer.status, answer.body.as_slice()), (404, b"no\n\nsuch".as_slice()));
        assert_eq!(answer.fields, [("Content-type".to_string(), b"text/html".to_vec())]);
        assert_eq!(answer_of(b"X: y\r\n\r\n").map(|a| a.status), Some(200));
        for broken in [&b""[..], b"no head", b"no colon\r\n\r\n", b"Status: x\r\n\r\n", b"Status:\r\n\r\n"] {
            assert!(answer_of(broken).is_none(), "{broken:?}");
        }
    }

    #[test]
    fn an_answer_that_never_ends_has_one_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = FpmSocket::Tcp(listener.local_addr().expect("its address"));
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            // Sends empty records, each within the timeout.
            while client.write_all(&record(STDOUT, &[])).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        assert!(get(&socket, "/status", "", Duration::from_millis(300)).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn long_values_have_long_lengths() {
        let long = "x".repeat(200);
        let bytes = parameters(&[("A", &long)]);
        assert_eq!((bytes.len(), &bytes[..6]), (206, &[1, 0x80, 0, 0, 200, b'A'][..]));
    }
}
