//! One GET over FastCGI: enough to ask PHP-FPM for its status page past any web server.
//!
//! Source: FastCGI Specification 1.0, sections 3.3 (records), 3.4 (name-value pairs) and 5 (application record types).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where a pool listens.
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
/// A status page of ten thousand processes is smaller.
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

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// The body of the answer to a GET of `path`.
///
/// # Errors
/// When nobody listens, the answer does not come in time, or it is not FastCGI.
pub fn get(socket: &FpmSocket, path: &str, query: &str, limit: Duration) -> io::Result<String> {
    let mut stream: Box<dyn Stream> = match socket {
        FpmSocket::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))?;
            Box::new(stream)
        }
        FpmSocket::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))?;
            Box::new(stream)
        }
    };
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
    // Role 1 is a responder; no flags: the connection ends with the answer.
    let mut request = record(BEGIN_REQUEST, &[0, 1, 0, 0, 0, 0, 0, 0]);
    request.extend(record(PARAMS, &parameters(&pairs)));
    request.extend(record(PARAMS, &[]));
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
            END_REQUEST => break,
            _ => {}
        }
    }
    let text = String::from_utf8_lossy(&output).into_owned();
    Ok(text.split_once("\r\n\r\n").map_or(text.clone(), |(_, body)| body.to_string()))
}
