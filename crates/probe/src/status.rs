//! Sends a request to a server over HTTP: for health checks and status pages.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use lastdrop_http::{ResponseParser, Sink, build_request};
use lastdrop_model::{Url, WorkerSample};
use lastdrop_wire::{DeadlineSocket, Wire};

use crate::fastcgi::{self, FpmSocket};
use crate::listeners::Endpoint;
use crate::{mod_status, stats_socket};

/// The response of a server to one request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub status: u16,
    /// Header fields in order.
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns true if the body is longer than what was kept of it.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.body.len() >= MAX_BODY_BYTES
    }

    /// Returns all values of a header field, joined by commas.
    #[must_use]
    pub fn field_values(&self, name: &str) -> String {
        let own = self.fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        own.map(|(_, value)| String::from_utf8_lossy(value)).collect::<Vec<_>>().join(", ")
    }
}

impl Sink for Answer {
    fn field(&mut self, name: &str, value: &[u8]) {
        self.fields.push((name.to_string(), value.to_vec()));
    }

    fn body(&mut self, bytes: &[u8]) {
        let room = MAX_BODY_BYTES - self.body.len();
        self.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// A request without a response.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("cannot connect to {url}: {source}")]
    Connect { url: String, source: std::io::Error },
    #[error("{url} gave no answer: {what}")]
    Answer { url: String, what: String },
    #[error("{url} was asked and did not answer within {:.0} s: no worker was free for it, or it hangs", limit.as_secs_f64())]
    Waits { url: String, limit: Duration },
}

impl AskError {
    /// Returns true if the server listens but did not respond in time. For a server whose workers are all busy, that is
    /// the result to report.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, AskError::Waits { .. })
    }
}

const MAX_BODY_BYTES: usize = 4 << 20;

/// Sends one GET on a connection of its own, with a limit on its total time. Bodies beyond 4 MB are cut.
///
/// # Errors
/// When there is no complete response in time.
pub fn get(url: &Url, limit: Duration) -> Result<Answer, AskError> {
    ask(None, url, &request("GET", url, &[], None), limit)
}

/// Posts a body to a URL without TLS, because the server's identity is not verified.
///
/// # Errors
/// As [`get`], and when the URL needs TLS.
pub fn post(url: &Url, content_type: &str, body: &[u8], limit: Duration) -> Result<Answer, AskError> {
    if url.tls {
        let what =
            "nothing is sent over TLS to somebody whose certificate is not verified; name a plain http listener".into();
        return Err(AskError::Answer { url: url.to_string(), what });
    }
    let fields = [("Content-Type".to_string(), content_type.to_string())];
    ask(None, url, &request("POST", url, &fields, Some(body)), limit)
}

/// Like `get`, from the server at an address, whatever the URL's host is.
///
/// # Errors
/// As [`get`].
pub fn get_at(address: SocketAddr, url: &Url, limit: Duration) -> Result<Answer, AskError> {
    ask(Some(address), url, &request("GET", url, &[], None), limit)
}

/// Like `get`, with these header fields; `address` is used instead of the URL's host.
///
/// # Errors
/// As [`get`].
pub fn get_with(
    address: Option<SocketAddr>,
    url: &Url,
    fields: &[(String, String)],
    limit: Duration,
) -> Result<Answer, AskError> {
    ask(address, url, &request("GET", url, fields, None), limit)
}

fn request(method: &str, url: &Url, fields: &[(String, String)], body: Option<&[u8]>) -> Vec<u8> {
    build_request(method, &url.path, &url.authority(), true, fields, body)
}

fn ask(address: Option<SocketAddr>, url: &Url, request: &[u8], limit: Duration) -> Result<Answer, AskError> {
    let deadline = Instant::now() + limit;
    let waits = || AskError::Waits { url: url.to_string(), limit };
    let connect = |source: std::io::Error| match source.kind() {
        // A full listen queue drops the SYN.
        std::io::ErrorKind::TimedOut => waits(),
        _ => AskError::Connect { url: url.to_string(), source },
    };
    let broken = |what: String| AskError::Answer { url: url.to_string(), what };
    let mut addresses = match address {
        Some(address) => vec![address].into_iter().peekable(),
        None => (url.host.as_str(), url.port).to_socket_addrs().map_err(connect)?.peekable(),
    };
    let stream = loop {
        let address =
            addresses.next().ok_or_else(|| connect(std::io::Error::new(std::io::ErrorKind::NotFound, "no address")))?;
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => break stream,
            Err(e) if addresses.peek().is_none() => return Err(connect(e)),
            Err(_) => {}
        }
    };
    let io = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => waits(),
        _ => broken(e.to_string()),
    };
    let timed = DeadlineSocket::new(stream, deadline.saturating_duration_since(Instant::now()));
    let shaken = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => waits(),
        _ => broken(format!("no TLS handshake: {e}")),
    };
    let mut wire =
        if url.tls { Wire::client_unverified(timed, &url.host).map_err(shaken)? } else { Wire::Plain(timed) };
    wire.write(request).map_err(io)?;
    let (mut parser, mut answer, mut buffer) = (ResponseParser::default(), Answer::default(), vec![0u8; 64 * 1024]);
    loop {
        let n = wire.read(&mut buffer).map_err(io)?;
        let complete = if n == 0 {
            if !parser.close() {
                return Err(broken("the connection was closed before a whole answer".into()));
            }
            true
        } else {
            parser.feed(&buffer[..n], &mut answer).map_err(|e| broken(e.to_string()))?.complete
        };
        if complete {
            return Ok(Answer { status: parser.status(), ..answer });
        }
    }
}

/// Where a server publishes its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatusSource {
    /// A page over HTTP.
    Page { format: PageFormat, url: Url },
    /// PHP-FPM's own page over FastCGI, without a web server. A worker of the pool responds; with `apart`
    /// (`pm.status_listen`), a process that serves nothing else.
    FastCgi { socket: FpmSocket, path: String, apart: bool },
    /// HAProxy's stats socket.
    StatsSocket { at: Endpoint },
}

/// Format of a status page over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    /// Apache's mod_status, which lastdrop's own target imitates.
    ModStatus,
    /// nginx's stub_status.
    StubStatus,
}

impl std::fmt::Display for StatusSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StatusSource::Page { url, .. } => url.fmt(f),
            StatusSource::FastCgi { socket, path, .. } => write!(f, "{path} of {socket}"),
            StatusSource::StatsSocket { at } => write!(f, "the stats socket {at}"),
        }
    }
}

/// One worker on a status page.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerStatus {
    pub pid: i32,
    /// A letter of Apache's scoreboard.
    pub state: char,
    pub requests: u64,
    /// Seconds since its present or last request began.
    pub request_s: Option<f64>,
}

/// Content of a status page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatusReading {
    /// As on the page: the worker that makes the page counts as busy.
    pub scoreboard: Option<String>,
    pub total_requests: Option<u64>,
    /// Requests made for this reading, and whether the server's total includes them.
    pub asked: u64,
    pub counts_own: bool,
    /// Without the worker that makes the page.
    pub busy: Option<u64>,
    pub idle: Option<u64>,
    /// Requests that wait for a backend server.
    pub queued: Option<u64>,
    /// Worker processes. For threaded servers, each process once, with the requests of its threads added up.
    pub workers: Vec<WorkerStatus>,
    /// What each slot of mod_status is doing or did last.
    pub slots: Vec<mod_status::ScoreboardSlot>,
}

impl StatusReading {
    /// Writes what the page says about each worker into the workers' samples.
    pub fn tell(&self, workers: &mut [WorkerSample]) {
        for worker in workers {
            if let Some(known) = self.workers.iter().find(|w| w.pid == worker.pid) {
                worker.state = known.state.to_string();
                worker.requests = Some(known.requests);
                worker.request_s = known.request_s;
            }
        }
    }
}

impl StatusSource {
    /// Reads the status. With `each_worker`, requests the longer page with every worker, if there is one.
    ///
    /// # Errors
    /// When there is no response in time, or it is not a status page.
    pub fn read(&self, each_worker: bool, limit: Duration) -> Result<StatusReading, AskError> {
        let strange = |what: String| AskError::Answer { url: self.to_string(), what };
        let page = |url: &Url| {
            let answer = get(url, limit)?;
            if answer.status != 200 {
                return Err(strange(format!("it answers {}", answer.status)));
            }
            Ok(String::from_utf8_lossy(&answer.body).into_owned())
        };
        let unanswered = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                AskError::Waits { url: self.to_string(), limit }
            }
            _ => AskError::Connect { url: self.to_string(), source },
        };
        // The worker that responds is busy with our request.
        let others = |reading: StatusReading, asked: u64| {
            let busy = reading.busy.map(|b| b.saturating_sub(1));
            StatusReading { busy, asked, ..reading }
        };
        match self {
            StatusSource::Page { format: PageFormat::ModStatus, url } => {
                let plain = url.with_path(url.path.split('?').next().unwrap_or("/"));
                if each_worker {
                    let text = page(&plain.with_path(&format!("{}?json", plain.path)))?;
                    // mod_status ignores unknown queries and returns HTML; lastdrop's target knows this one.
                    if let Some(reading) = read_target_json(&text).or_else(|| read_mod_status_html(&text)) {
                        return Ok(others(reading, 1));
                    }
                }
                let text = page(&plain.with_path(&format!("{}?auto", plain.path)))?;
                let auto = StatusPage::parse(&text).ok_or_else(|| strange("it is another page".into()))?;
                let reading = StatusReading {
                    scoreboard: Some(auto.scoreboard),
                    total_requests: auto.total_accesses,
                    // The target counts status requests separately.
                    counts_own: !text.starts_with("ServerVersion: lastdrop-target"),
                    busy: auto.busy,
                    idle: auto.idle,
                    ..StatusReading::default()
                };
                Ok(others(reading, 1 + u64::from(each_worker)))
            }
            StatusSource::Page { format: PageFormat::StubStatus, url } => {
                let reading = read_stub_status(&page(url)?).ok_or_else(|| strange("it is another page".into()))?;
                Ok(others(reading, 1))
            }
            StatusSource::FastCgi { socket, path, apart } => {
                let query = if each_worker { "full&json" } else { "json" };
                let text = fastcgi::get(socket, path, query, limit).map_err(unanswered)?;
                let reading =
                    read_fpm(&text).ok_or_else(|| strange("it is another page; is pm.status_path set?".into()))?;
                Ok(if *apart { StatusReading { counts_own: false, ..reading } } else { others(reading, 1) })
            }
            StatusSource::StatsSocket { at } => {
                let text = stats_socket::ask(at, "show stat", limit).map_err(unanswered)?;
                stats_socket::reading(&text).ok_or_else(|| strange("it answers something else than a table".into()))
            }
        }
    }
}

fn read_target_json(text: &str) -> Option<StatusReading> {
    let v: serde_json::Value = serde_json::from_str(text).ok()?;
    let scoreboard = v.get("scoreboard")?.as_str()?.to_string();
    let workers = v.get("workers").and_then(|w| w.as_array()).map_or_else(Vec::new, |rows| {
        rows.iter()
            .filter_map(|w| {
                Some(WorkerStatus {
                    pid: w.get("pid")?.as_i64()? as i32,
                    state: w.get("state")?.as_str()?.chars().next()?,
                    requests: w.get("requests")?.as_u64()?,
                    request_s: w.get("request_s").and_then(serde_json::Value::as_f64),
                })
            })
            .collect()
    });
    Some(StatusReading {
        busy: Some(scoreboard.chars().filter(|c| !"_.".contains(*c)).count() as u64),
        idle: Some(scoreboard.chars().filter(|c| *c == '_').count() as u64),
        total_requests: v.get("requests").and_then(serde_json::Value::as_u64),
        scoreboard: Some(scoreboard),
        workers,
        ..StatusReading::default()
    })
}

/// Reads mod_status' table (with ExtendedStatus) by the names of its columns. None without the table.
fn read_mod_status_html(html: &str) -> Option<StatusReading> {
    let mut workers: BTreeMap<i32, WorkerStatus> = BTreeMap::new();
    let slots = mod_status::rows(html)?;
    for row in &slots {
        let Some(pid) = row.pid else { continue };
        workers
            .entry(pid)
            .and_modify(|w| {
                // Threads of one process: busy if any is, for as long as the longest.
                w.requests += row.of_process;
                if w.state == '_' {
                    w.state = row.mode;
                }
                if row.mode != '_' && row.mode != 'K' {
                    w.request_s = w.request_s.into_iter().chain(row.request_s).reduce(f64::max);
                }
            })
            .or_insert(WorkerStatus { pid, state: row.mode, requests: row.of_process, request_s: row.request_s });
    }
    let board: String = html.split("<pre>").nth(1)?.split("</pre>").next()?.split_whitespace().collect();
    let number = |before: &str| {
        let at = html.find(before)? + before.len();
        html[at..].trim_start_matches([':', ' ']).split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    Some(StatusReading {
        busy: Some(board.chars().filter(|c| !"_.".contains(*c)).count() as u64),
        idle: Some(board.chars().filter(|c| *c == '_').count() as u64),
        scoreboard: Some(board),
        total_requests: number("Total accesses"),
        counts_own: true,
        workers: workers.into_values().collect(),
        slots,
        ..StatusReading::default()
    })
}

fn read_stub_status(text: &str) -> Option<StatusReading> {
    let mut lines = text.lines();
    let active: u64 = lines.next()?.strip_prefix("Active connections:")?.trim().parse().ok()?;
    let numbers: Vec<u64> = lines.nth(1)?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let states = lines.next()?;
    let state = |name: &str| states.split(name).nth(1)?.split_whitespace().next()?.parse::<u64>().ok();
    let waiting = state("Waiting:")?;
    Some(StatusReading {
        total_requests: numbers.get(2).copied(),
        counts_own: true,
        busy: Some(active.saturating_sub(waiting)),
        idle: Some(waiting),
        ..StatusReading::default()
    })
}

fn read_fpm(text: &str) -> Option<StatusReading> {
    let v: serde_json::Value = serde_json::from_str(text).ok()?;
    let count = |name: &str| v.get(name).and_then(serde_json::Value::as_u64);
    let workers: Vec<WorkerStatus> = v.get("processes").and_then(|p| p.as_array()).map_or_else(Vec::new, |rows| {
        rows.iter()
            .filter_map(|p| {
                let state = match p.get("state")?.as_str()? {
                    "Idle" => '_',
                    "Reading headers" => 'R',
                    "Finishing" | "Ending" => 'C',
                    _ => 'W',
                };
                Some(WorkerStatus {
                    pid: p.get("pid")?.as_i64()? as i32,
                    state,
                    requests: p.get("requests")?.as_u64()?,
                    request_s: p.get("request duration").and_then(|d| d.as_f64()).map(|us| us / 1e6),
                })
            })
            .collect()
    });
    let (busy, idle) = (count("active processes")?, count("idle processes")?);
    let scoreboard = if workers.is_empty() {
        "W".repeat(busy as usize) + &"_".repeat(idle as usize)
    } else {
        workers.iter().map(|w| w.state).collect()
    };
    Some(StatusReading {
        scoreboard: Some(scoreboard),
        total_requests: count("accepted conn"),
        counts_own: true,
        busy: Some(busy),
        idle: Some(idle),
        workers,
        ..StatusReading::default()
    })
}

/// A status page in the form of Apache's `mod_status?auto`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusPage {
    /// One letter per slot that the server may use.
    pub scoreboard: String,
    pub total_accesses: Option<u64>,
    pub busy: Option<u64>,
    pub idle: Option<u64>,
    pub generation: Option<u64>,
}

impl StatusPage {
    /// Parses a page; None if it has another form.
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

    #[test]
    fn rows_of_mod_status_are_read_by_the_names_of_their_columns() {
        let html = "<dl><dt>Total accesses: 321 - Total Traffic: 1 kB</dt></dl><pre>_W..</pre>\n\
            <table border=\"0\"><tr><th>Srv</th><th>PID</th><th>Acc</th><th>M</th><th>CPU\n</th><th>SS</th><th>Req</th></tr>\n\
            <tr><td><b>0-0</b></td><td>11</td><td>0/7/90</td><td>_\n</td><td>0.1</td><td>5</td><td>0</td></tr>\n\
            <tr><td><b>1-0</b></td><td>12</td><td>1/3/4</td><td><b>W</b>\n</td><td>0.1</td><td>2</td><td>0</td></tr>\n\
            <tr><td><b>2-0</b></td><td>-</td><td>0/0/8</td><td>.\n</td><td>0.1</td><td>2</td><td>0</td></tr></table>";
        let r = read_mod_status_html(html).expect("the table");
        assert_eq!((r.scoreboard.as_deref(), r.total_requests, r.busy), (Some("_W.."), Some(321), Some(1)));
        let rows: Vec<_> = r.workers.iter().map(|w| (w.pid, w.state, w.requests, w.request_s)).collect();
        assert_eq!(rows, [(11, '_', 7, Some(5.0)), (12, 'W', 3, Some(2.0))]);
        assert_eq!(read_mod_status_html("<html>no table</html>"), None);
    }

    #[test]
    fn other_status_pages_are_read() {
        let nginx =
            "Active connections: 4 \nserver accepts handled requests\n 10 9 27 \nReading: 0 Writing: 1 Waiting: 3 \n";
        let r = read_stub_status(nginx).expect("stub_status");
        assert_eq!((r.total_requests, r.busy, r.idle), (Some(27), Some(1), Some(3)));
        let fpm = r#"{"pool":"www","accepted conn":12,"idle processes":1,"active processes":1,"processes":[
            {"pid":5,"state":"Idle","requests":3,"request duration":1500},
            {"pid":6,"state":"Running","requests":9,"request duration":2500000}]}"#;
        let r = read_fpm(fpm).expect("FPM");
        assert_eq!((r.scoreboard.as_deref(), r.total_requests), (Some("_W"), Some(12)));
        assert_eq!(r.workers[1].request_s, Some(2.5));
    }
}
