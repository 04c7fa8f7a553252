//! HAProxy's stats socket: one command per connection; the response ends with the connection.
//!
//! Source: HAProxy's management guide, sections 9.1 (the CSV of `show stat`) and 9.3 (commands). Columns differ between
//! versions, so they are read by name.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::listeners::Endpoint;
use crate::status::StatusReading;

/// More than the table of ten thousand servers.
const MOST_BYTES: usize = 16 << 20;

trait Stream: Read + Write {
    fn limit(&self, left: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

/// Sends a command and returns the server's response.
///
/// # Errors
/// When nothing listens, the response does not come in time, or it does not end.
pub fn ask(at: &Endpoint, command: &str, limit: Duration) -> io::Result<String> {
    let deadline = Instant::now() + limit;
    let mut stream: Box<dyn Stream> = match at {
        Endpoint::Tcp(address) => Box::new(TcpStream::connect_timeout(address, limit)?),
        Endpoint::Unix(path) => Box::new(crate::unix::connect(path, limit)?),
    };
    stream.limit(limit)?;
    stream.write_all(format!("{command}\n").as_bytes())?;
    let (mut text, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.limit(left)?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(String::from_utf8_lossy(&text).into_owned()),
            Ok(n) => text.extend(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if text.len() > MOST_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer has no end"));
        }
    }
}

/// A line of `show stat` by column name; empty cells are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatsRow(BTreeMap<String, String>);

impl StatsRow {
    #[must_use]
    pub fn text(&self, column: &str) -> &str {
        self.0.get(column).map_or("", String::as_str)
    }

    #[must_use]
    pub fn count(&self, column: &str) -> Option<u64> {
        self.text(column).parse().ok()
    }

    /// Matches a frontend, backend or server: `part` is `FRONTEND`, `BACKEND`, or the name of the server.
    #[must_use]
    pub fn is(&self, proxy: &str, part: &str) -> bool {
        self.text("pxname") == proxy && self.text("svname") == part
    }
}

/// Parses the lines of `show stat`; None for any other text.
#[must_use]
pub fn rows(text: &str) -> Option<Vec<StatsRow>> {
    let mut lines = text.lines();
    let names = cells(lines.find_map(|line| line.strip_prefix("# "))?);
    if names.first().is_none_or(|name| name != "pxname") {
        return None;
    }
    let row = |line: &str| {
        let filled = cells(line).into_iter().zip(&names).filter(|(cell, _)| !cell.is_empty());
        StatsRow(filled.map(|(cell, name)| (name.clone(), cell)).collect())
    };
    Some(lines.filter(|line| !line.is_empty()).map(row).collect())
}

/// Splits a line of CSV: a cell with a comma is quoted, and a quote inside it is doubled.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cells.last_mut().into_iter().for_each(|cell| cell.push('"'));
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().into_iter().for_each(|cell| cell.push(c)),
        }
    }
    cells
}

/// Parses the names and values of `show info`.
#[must_use]
pub fn info(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_string(), value.trim().to_string()));
    text.lines().filter_map(pair).collect()
}

/// Returns the requests that all frontends received (connections, for frontends that are not HTTP), their open
/// connections, and the requests waiting for a server. The table does not contain the stats socket, so none of these
/// are ours.
#[must_use]
pub fn reading(text: &str) -> Option<StatusReading> {
    let rows = rows(text)?;
    let sum = |part: &str, count: &dyn Fn(&StatsRow) -> Option<u64>| {
        rows.iter().filter(|row| row.text("svname") == part).filter_map(count).sum()
    };
    let requests = |row: &StatsRow| row.count(if row.text("mode") == "tcp" { "stot" } else { "req_tot" });
    Some(StatusReading {
        total_requests: Some(sum("FRONTEND", &|row| requests(row).or(row.count("stot")))),
        busy: Some(sum("FRONTEND", &|row| row.count("scur"))),
        queued: Some(sum("BACKEND", &|row| row.count("qcur"))),
        ..StatusReading::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "# pxname,svname,qcur,scur,slim,stot,req_tot,mode,check_desc,\n\
        web,FRONTEND,,3,200,9,12,http,,\napp,one,1,2,5,4,,http,\"a \"\"b\"\", c\",\napp,BACKEND,4,2,20,4,,http,,\n\
        db,FRONTEND,,1,200,7,,tcp,,\ndb,BACKEND,1,2,20,4,,tcp,,\n\n";

    #[test]
    fn its_table_is_read_by_the_names_of_the_columns() {
        let rows = rows(STAT).expect("the table");
        assert_eq!(rows.len(), 5);
        assert!(rows[1].is("app", "one") && rows[1].text("check_desc") == "a \"b\", c");
        assert_eq!((rows[0].count("slim"), rows[0].count("qcur")), (Some(200), None));
        let reading = reading(STAT).expect("the table");
        assert_eq!((reading.total_requests, reading.busy, reading.queued), (Some(19), Some(4), Some(5)));
        assert!(super::rows("Unknown command\n").is_none() && super::rows("# other,x\n").is_none());
        assert_eq!(info("Name: HAProxy\nMaxconn: 200\n\n").get("Maxconn").map(String::as_str), Some("200"));
    }
}
