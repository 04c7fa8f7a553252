//! Asks a server a question over HTTP: is it healthy, and what does its status page say?

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use lastdrop_http::{ResponseParser, build_request};
use lastdrop_model::Url;

/// What a server answered to one request.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// A question that got no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("cannot connect to {url}: {source}")]
    Connect { url: String, source: std::io::Error },
    #[error("{url} gave no answer: {what}")]
    Answer { url: String, what: String },
}

const MAX_BODY_BYTES: usize = 4 << 20;

/// One GET on a connection of its own, with a limit on the whole of it. Bodies beyond 4 MB are cut.
///
/// # Errors
/// When there is no whole answer in time.
pub fn get(url: &Url, limit: Duration) -> Result<Answer, AskError> {
    if url.tls {
        let what = "looking at a server over TLS is not possible; name its plain http listener".into();
        return Err(AskError::Answer { url: url.to_string(), what });
    }
    let deadline = Instant::now() + limit;
    let connect = |source| AskError::Connect { url: url.to_string(), source };
    let broken = |what: String| AskError::Answer { url: url.to_string(), what };
    let mut addresses = (url.host.as_str(), url.port).to_socket_addrs().map_err(connect)?.peekable();
    let mut stream = loop {
        let address =
            addresses.next().ok_or_else(|| connect(std::io::Error::new(std::io::ErrorKind::NotFound, "no address")))?;
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => break stream,
            Err(e) if addresses.peek().is_none() => return Err(connect(e)),
            Err(_) => {}
        }
    };
    let io = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            broken(format!("nothing within {:.0} s", limit.as_secs_f64()))
        }
        _ => broken(e.to_string()),
    };
    stream.set_write_timeout(Some(limit)).map_err(io)?;
    stream.write_all(&build_request("GET", &url.path, &url.authority(), true, &[], None)).map_err(io)?;
    let (mut parser, mut body, mut buffer) = (ResponseParser::default(), Vec::new(), vec![0u8; 64 * 1024]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io(std::io::ErrorKind::TimedOut.into()));
        }
        stream.set_read_timeout(Some(left)).map_err(io)?;
        let n = match stream.read(&mut buffer) {
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(io(e)),
        };
        let complete = if n == 0 {
            if !parser.close() {
                return Err(broken("the connection was closed before a whole answer".into()));
            }
            true
        } else {
            let mut keep = |b: &[u8]| {
                let room = MAX_BODY_BYTES - body.len();
                body.extend_from_slice(&b[..b.len().min(room)]);
            };
            parser.feed(&buffer[..n], &mut keep).map_err(|e| broken(e.to_string()))?.complete
        };
        if complete {
            return Ok(Answer { status: parser.status(), body });
        }
    }
}

/// A status page in the form of Apache's `mod_status?auto`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusPage {
    /// One letter a slot that the server may use.
    pub scoreboard: String,
    pub total_accesses: Option<u64>,
    pub busy: Option<u64>,
    pub idle: Option<u64>,
    pub generation: Option<u64>,
}

impl StatusPage {
    /// Reads a page; None when it is not such a page.
    #[must_use]
    pub fn parse(text: &str) -> Option<StatusPage> {
        let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")).map(str::trim);
        let number = |name: &str| field(name).and_then(|v| v.parse().ok());
        Some(StatusPage {
            scoreboard: field("Scoreboard")?.to_string(),
            total_accesses: number("Total Accesses"),
            busy: number("BusyWorkers"),
            idle: number("IdleWorkers"),
            generation: number("ParentServerConfigGeneration"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_page_is_read_by_name() {
        let text =
            "127.0.0.1\nServerMPM: prefork\nTotal Accesses: 17\nBusyWorkers: 2\nIdleWorkers: 1\nScoreboard: W_K..\n";
        let page = StatusPage::parse(text).expect("is one");
        assert_eq!((page.scoreboard.as_str(), page.total_accesses, page.generation), ("W_K..", Some(17), None));
        assert_eq!(StatusPage::parse("<html>404</html>"), None);
    }
}
