//! Finds out whether clients other than lastdrop use a server, before the server is touched.
//!
//! Two sources show it: the kernel's table of connections, polled repeatedly, and the server's count of requests, if it
//! has a status page. Neither is enough. A connection that the client closes first is in the table only for a moment,
//! and a connection without requests is in no count.
//!
//! The following are not visitors: lastdrop's own requests, which carry a mark; earlier connections; earlier requests
//! that are counted only now; and Apache's connections to itself. While a pool shrinks, the prefork master connects to
//! a listener once per second and sends `OPTIONS *` (`dummy_connection` in httpd's mpm_unix.c). That wakes an idle
//! worker, which then leaves. Such a connection ends with a reset, so it is in the table for a moment and never in
//! TIME_WAIT. Its request is in the scoreboard like any other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_probe::links;
use lastdrop_probe::listeners::{self, Connection};
use lastdrop_probe::mod_status::{self, ScoreboardSlot};
use lastdrop_probe::process;
use lastdrop_probe::status::{self, StatusPage};

use crate::ServerError;
use crate::adapter::Adapter;
use crate::health::ASK_TIMEOUT;

/// The user's options about other clients of the server, and about its machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherTrafficPolicy {
    /// Change the server although it has other clients.
    pub live: bool,
    /// Connections from these addresses are health checks, not visitors.
    pub ignore: Vec<IpAddr>,
    /// Machine-wide settings may be changed too.
    pub host_wide: bool,
}

/// How long to look for visitors.
const WINDOW: Duration = Duration::from_secs(2);
/// After this many windows with an inconclusive result, it counts as traffic.
const MOST_WINDOWS: u32 = 3;
const POLL: Duration = Duration::from_millis(50);
/// The server has finished earlier load when it counts no request for this long …
const QUIET: Duration = Duration::from_millis(300);
/// … or after this: a backlog of clients that have disconnected can take a while.
const MOST_SETTLING: Duration = Duration::from_secs(30);
/// A request is counted some time after its answer, later on a busy machine, but no later than this.
const LATEST_COUNT: Duration = Duration::from_secs(5);
/// How long a connection that one side has closed may take to end.
const ENDING: Duration = Duration::from_secs(3);
/// mod_status stores this many bytes of a request's first line.
const REQUEST_LENGTH: usize = 63;
/// Number of different requests that an error shows.
const TOLD: usize = 3;

enum Verdict {
    Nobody,
    Somebody(String),
    /// Observed requests or connections may be lastdrop's or the server's own.
    Unsure(String),
}

/// The counters of a status page.
enum Count {
    Rows(Vec<ScoreboardSlot>),
    Total(u64),
}

/// Requests between two reads of the status page, without lastdrop's own.
#[derive(Debug, Default, PartialEq)]
struct Requests {
    /// Number of requests by client and first line.
    known: BTreeMap<(String, String), u64>,
    /// Requests that were counted but are no longer shown.
    unknown: u64,
    /// The server's own requests.
    of_itself: u64,
}

pub struct TrafficDetector<'a> {
    adapter: &'a dyn Adapter,
    ignore: Vec<IpAddr>,
    /// Masters of the servers that are changed with it: their open connections are not visitors.
    beside: Vec<i32>,
    ports: Vec<u16>,
    status: Option<Url>,
    /// Prefix of the first line of lastdrop's own requests.
    mark: String,
    looks: u32,
    /// Lastdrop's requests that the server has not counted yet, by process slot.
    owed: BTreeMap<String, u64>,
    /// The last read of the status page, and the peers that were connected after it.
    count: Option<Count>,
    known: HashSet<SocketAddr>,
    /// Peers that another server of the stack has had open.
    ours: HashSet<SocketAddr>,
}

impl<'a> TrafficDetector<'a> {
    /// Takes the first sample; later requests are lastdrop's or a visitor's.
    ///
    /// # Errors
    /// If the table of connections cannot be read.
    pub fn start(
        adapter: &'a dyn Adapter,
        others: &OtherTrafficPolicy,
        beside: &[i32],
    ) -> Result<TrafficDetector<'a>, ServerError> {
        let facts = adapter.facts();
        let status = facts.status_url.as_ref().map(|url| url.with_path(url.path.split('?').next().unwrap_or("/")));
        let mark = status.as_ref().map(|url| format!("GET {}?lastdrop-{}-", url.path, std::process::id()));
        let mut lookout = TrafficDetector {
            adapter,
            ignore: others.ignore.iter().map(IpAddr::to_canonical).collect(),
            beside: beside.to_vec(),
            ports: facts.listeners.iter().map(SocketAddr::port).collect(),
            status,
            mark: mark.unwrap_or_default().chars().take(REQUEST_LENGTH).collect(),
            looks: 0,
            owed: BTreeMap::new(),
            count: None,
            known: HashSet::new(),
            ours: HashSet::new(),
        };
        lookout.look()?;
        if lookout.ports.is_empty() && lookout.count.is_none() {
            return Err(ServerError::Setting(
                "whether others use the server cannot be seen: it listens at a unix socket and has no status page that \
                 answers. PHP-FPM has one with pm.status_path = /status; --live does without"
                    .into(),
            ));
        }
        Ok(lookout)
    }

    fn connections(&self) -> Result<Vec<Connection>, ServerError> {
        Ok(listeners::connections(self.adapter.facts().birth.pid, &self.ports)?)
    }

    fn is_ignored(&self, ip: IpAddr) -> bool {
        self.ignore.contains(&ip.to_canonical())
    }

    fn strangers(&mut self) -> Result<Vec<Connection>, ServerError> {
        let now = self.of_others()?;
        Ok(now.into_iter().filter(|c| !self.known.contains(&c.peer)).collect())
    }

    /// Connections, without those that another server of the stack has open or had open at a sample.
    fn of_others(&mut self) -> Result<Vec<Connection>, ServerError> {
        let mut now = self.connections()?;
        if !self.beside.is_empty() && now.iter().any(|c| c.open && !self.ours.contains(&c.peer)) {
            let ends = links::ends(&self.beside);
            self.ours.extend(now.iter().map(|c| c.peer).filter(|peer| ends.contains(peer)));
        }
        now.retain(|c| !self.ours.contains(&c.peer));
        Ok(now)
    }

    /// Reads the status page and the connections. Returns the requests since the last read.
    fn look(&mut self) -> Result<Requests, ServerError> {
        let now = self.read();
        let requests = match (&self.count, &now) {
            (Some(Count::Rows(before)), Some(Count::Rows(after))) => {
                between(before, after, &mut self.owed, &self.mark, |client| self.adapter.facts().is_own(client))
            }
            (Some(Count::Total(before)), Some(Count::Total(after))) => {
                let own = u64::from(self.adapter.counts_looks());
                Requests { unknown: after.saturating_sub(*before).saturating_sub(own), ..Requests::default() }
            }
            _ => Requests::default(),
        };
        if let Some(Count::Rows(rows)) = &now
            && let Some(ours) = rows.iter().find(|r| r.mode == 'W' && r.request.starts_with(&self.mark))
        {
            *self.owed.entry(process_slot(ours).into()).or_default() += 1;
        }
        self.count = now;
        self.known = self.connections()?.into_iter().map(|c| c.peer).collect();
        Ok(requests)
    }

    fn read(&mut self) -> Option<Count> {
        if self.adapter.facts().kind.counts_in_total() {
            return self.adapter.status()?.read(false, ASK_TIMEOUT).ok()?.total_requests.map(Count::Total);
        }
        let url = self.status.as_ref()?;
        let page = |query: &str| {
            let answer = status::get(&url.with_path(&format!("{}?{query}", url.path)), ASK_TIMEOUT).ok()?;
            Some(String::from_utf8_lossy(&answer.body).into_owned())
        };
        self.looks += 1;
        if !matches!(self.count, Some(Count::Total(_)))
            && let Some(rows) = mod_status::rows(&page(&format!("lastdrop-{}-{}", std::process::id(), self.looks))?)
        {
            return Some(Count::Rows(rows));
        }
        StatusPage::parse(&page("auto")?)?.total_accesses.map(Count::Total)
    }

    /// Returns an error if other clients use the server. `requests` of lastdrop's were answered since the start.
    ///
    /// # Errors
    /// [`ServerError::Busy`] with the clients and requests, or the tables cannot be read.
    pub fn look_for_others(&mut self, requests: u64) -> Result<(), ServerError> {
        self.known.extend(self.connections()?.iter().map(|c| c.peer));
        self.settle(requests)?;
        let mut evidence = String::new();
        for _ in 0..MOST_WINDOWS {
            match self.window()? {
                Verdict::Nobody => return Ok(()),
                Verdict::Somebody(seen) => return Err(ServerError::Busy { evidence: seen }),
                Verdict::Unsure(seen) => evidence = seen,
            }
        }
        Err(ServerError::Busy { evidence })
    }

    /// Waits until the server has counted what it has answered, `ours` of it, and has finished with clients that have
    /// disconnected.
    fn settle(&mut self, ours: u64) -> Result<(), ServerError> {
        let began = Instant::now();
        let mut counted = 0;
        while began.elapsed() < MOST_SETTLING {
            thread::sleep(QUIET);
            // A new client is what the window is for: the window begins before it, but after lastdrop's own requests.
            if counted >= ours && self.strangers()?.iter().any(|c| !self.is_ignored(c.peer.ip())) {
                return Ok(());
            }
            let requests = self.look()?;
            let new = requests.known.values().sum::<u64>() + requests.unknown;
            counted += new;
            let due = counted < ours && self.count.is_some() && began.elapsed() < LATEST_COUNT;
            if new == 0 && !due {
                return Ok(());
            }
        }
        Ok(())
    }

    fn window(&mut self) -> Result<Verdict, ServerError> {
        let master = self.adapter.facts().birth.pid;
        let workers = process::child_pids(master);
        let mut seen: HashMap<SocketAddr, Connection> = HashMap::new();
        let deadline = Instant::now() + WINDOW;
        while Instant::now() < deadline {
            seen.extend(self.strangers()?.into_iter().map(|c| (c.peer, c)));
            thread::sleep(POLL);
        }
        let (there, ended) = self.sort_out(seen)?;
        let ignored = ended.iter().chain(&there).filter(|c| self.is_ignored(c.peer.ip())).count() as u64;
        let mine = |c: &&Connection| !self.is_ignored(c.peer.ip());
        let there: Vec<Connection> = there.iter().filter(mine).copied().collect();
        let ended: Vec<Connection> = ended.iter().filter(mine).copied().collect();
        let still = process::child_pids(master);
        let left = workers.iter().filter(|pid| !still.contains(pid)).count() as u64;
        let mut requests = self.look()?;
        let from_ignored = |client: &str| client.parse().is_ok_and(|ip| self.is_ignored(ip));
        let checks: u64 = requests.known.iter().filter(|((client, _), _)| from_ignored(client)).map(|(_, n)| n).sum();
        requests.known.retain(|(client, _), _| !from_ignored(client));
        requests.unknown = requests.unknown.saturating_sub(ignored.saturating_sub(checks));
        // Without rows, a worker that has left shows that the master has woken it.
        let rows = matches!(self.count, Some(Count::Rows(_)));
        let own = if rows {
            requests.of_itself
        } else if self.adapter.connects_to_itself() {
            left
        } else {
            0
        };
        let foreign = ended.iter().any(|c| c.peer.ip().to_canonical() != c.local.ip().to_canonical());
        let evidence = describe(&there, &ended, &requests);
        Ok(if !there.is_empty() || !requests.known.is_empty() || foreign {
            Verdict::Somebody(evidence)
        } else if requests.unknown > 0 || ended.len() as u64 > own {
            Verdict::Unsure(evidence)
        } else {
            Verdict::Nobody
        })
    }

    /// Records connections that are open or were closed normally, and those of `seen` that have just gone.
    fn sort_out(
        &mut self,
        mut seen: HashMap<SocketAddr, Connection>,
    ) -> Result<(Vec<Connection>, Vec<Connection>), ServerError> {
        let deadline = Instant::now() + ENDING;
        loop {
            let now = self.of_others()?;
            seen.extend(now.iter().filter(|c| !self.known.contains(&c.peer)).map(|c| (c.peer, *c)));
            let is_there = |c: &Connection| c.open || c.time_wait && seen.contains_key(&c.peer);
            let (there, ending): (Vec<_>, Vec<_>) = now.into_iter().partition(is_there);
            let ending: Vec<_> = ending.into_iter().filter(|c| seen.contains_key(&c.peer)).collect();
            let late = Instant::now() > deadline;
            if ending.is_empty() || late {
                let there: Vec<Connection> = there.into_iter().chain(ending).collect();
                for c in &there {
                    seen.remove(&c.peer);
                }
                return Ok((there, seen.into_values().collect()));
            }
            thread::sleep(POLL);
        }
    }
}

/// The child process of a row, whatever its generation.
fn process_slot(row: &ScoreboardSlot) -> &str {
    row.slot.split('-').next().unwrap_or_default()
}

/// Compares the rows of two reads. A threaded server has several rows per process, which cannot be matched between
/// reads. Therefore the process's counts are used, and changed rows show the clients.
fn between(
    before: &[ScoreboardSlot],
    after: &[ScoreboardSlot],
    owed: &mut BTreeMap<String, u64>,
    mark: &str,
    is_own: impl Fn(IpAddr) -> bool,
) -> Requests {
    let mut requests = Requests::default();
    let of = |rows: &[ScoreboardSlot], slot: &str| {
        rows.iter().filter(|r| process_slot(r) == slot).map(|r| r.of_slot).sum::<u64>()
    };
    let mut slots: Vec<&str> = after.iter().map(process_slot).collect();
    slots.dedup();
    for slot in slots {
        let mut new = of(after, slot).saturating_sub(of(before, slot));
        let ours = owed.get_mut(slot);
        if let Some(ours) = ours {
            let counted = new.min(*ours);
            (new, *ours) = (new - counted, *ours - counted);
        }
        let same = |a: &ScoreboardSlot, b: &ScoreboardSlot| {
            (a.of_slot, &a.client, &a.request) == (b.of_slot, &b.client, &b.request)
        };
        let changed = after
            .iter()
            .filter(|r| process_slot(r) == slot && !before.iter().any(|b| process_slot(b) == slot && same(r, b)));
        for row in changed {
            // A worker's current request is not counted yet, and an earlier one of the row is no longer shown.
            if new == 0 || row.mode == 'W' || row.request.is_empty() || row.request.starts_with(mark) {
                continue;
            }
            let client = row.client.parse::<IpAddr>();
            let local = client.as_ref().map_or(row.client == "localhost", |ip| is_own(*ip));
            let count = new.min(row.of_connection.max(1));
            new -= count;
            if local && row.request == "OPTIONS * HTTP/1.0" {
                requests.of_itself += count;
            } else {
                *requests.known.entry((row.client.clone(), row.request.clone())).or_default() += count;
            }
        }
        requests.unknown += new;
    }
    requests
}

fn describe(there: &[Connection], ended: &[Connection], requests: &Requests) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut parts = Vec::new();
    let open: Vec<&Connection> = there.iter().filter(|c| c.open).collect();
    let over: Vec<&Connection> = there.iter().filter(|c| !c.open).chain(ended).collect();
    for (connections, what) in [(open, "open connection"), (over, "new connection")] {
        if let Some(one) = connections.first() {
            let from = if connections.len() == 1 { "from" } else { "one from" };
            let peer = SocketAddr::new(one.peer.ip().to_canonical(), one.peer.port());
            parts.push(format!("{}, {from} {peer}", count(connections.len(), what)));
        }
    }
    let total: u64 = requests.known.values().sum::<u64>() + requests.unknown;
    if total > 0 {
        let mut most: Vec<_> = requests.known.iter().collect();
        most.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let line = |request: &str| request.rsplit_once(" HTTP/").map_or(request, |(line, _)| line).to_string();
        let told: Vec<String> = most
            .iter()
            .take(TOLD)
            .map(|((client, request), n)| format!("{n} × {} from {client}", line(request)))
            .collect();
        let told = if told.is_empty() { String::new() } else { format!(", of them {}", told.join(", ")) };
        parts.push(format!("{}{told}", count(total as usize, "request")));
    }
    format!("in {} s: {}", WINDOW.as_secs(), parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "GET /server-status?lastdrop-7-";

    fn row(slot: &str, of_slot: u64, mode: char, client: &str, request: &str) -> ScoreboardSlot {
        ScoreboardSlot {
            slot: slot.into(),
            pid: Some(1),
            of_connection: 0,
            of_process: of_slot,
            of_slot,
            mode,
            request_s: None,
            took_ms: None,
            client: client.into(),
            request: request.into(),
        }
    }

    fn seen(before: &[ScoreboardSlot], after: &[ScoreboardSlot], owed: &[(&str, u64)]) -> Requests {
        let mut owed = owed.iter().map(|(slot, n)| ((*slot).to_string(), *n)).collect();
        between(before, after, &mut owed, MARK, |ip| ip.is_loopback())
    }

    #[test]
    fn what_apache_asks_of_itself_is_nobody() {
        let before = [row("0-0", 5, '_', "10.0.0.1", "GET / HTTP/1.1")];
        let after =
            [row("0-0", 6, '.', "127.0.0.1", "OPTIONS * HTTP/1.0"), row("1-0", 1, 'C', "::1", "OPTIONS * HTTP/1.0")];
        assert_eq!(seen(&before, &after, &[]), Requests { of_itself: 2, ..Requests::default() });
        // From another machine, or with another request in the same slot, it is a visitor.
        let far = seen(&[], &[row("0-0", 1, '_', "10.0.0.1", "OPTIONS * HTTP/1.0")], &[]);
        assert_eq!((far.of_itself, far.known.len()), (0, 1));
        assert_eq!(seen(&before, &[row("0-0", 7, '.', "::1", "OPTIONS * HTTP/1.0")], &[]).unknown, 1);
    }

    #[test]
    fn our_own_looks_are_nobody_and_visitors_in_their_slot_are_somebody() {
        let look = format!("{MARK}1 HTTP/1.1");
        let before = [row("3-0", 8, 'W', "127.0.0.1", &look)];
        let none = Requests::default();
        assert_eq!(seen(&before, &[row("3-0", 9, '_', "127.0.0.1", &look)], &[("3", 1)]), none);
        // The next read is served in the same slot.
        assert_eq!(seen(&before, &[row("3-0", 9, 'W', "127.0.0.1", &look.replace("7-1", "7-2"))], &[("3", 1)]), none);
        let visited = seen(&before, &[row("3-0", 10, '_', "10.0.0.9", "GET /health HTTP/1.1")], &[("3", 1)]);
        assert_eq!(visited.known, BTreeMap::from([(("10.0.0.9".into(), "GET /health HTTP/1.1".into()), 1)]));
        assert_eq!(seen(&before, &[row("3-0", 10, 'W', "127.0.0.1", &look)], &[("3", 1)]).unknown, 1);
    }

    #[test]
    fn threads_of_a_process_are_counted_together() {
        let before = [row("0-0", 4, '_', "a", "GET /a HTTP/1.1"), row("0-0", 2, '_', "b", "GET /b HTTP/1.1")];
        let mut after = before.to_vec();
        after.insert(1, row("0-0", 1, '_', "10.0.0.2", "GET /c HTTP/1.1"));
        let requests = seen(&before, &after, &[]);
        assert_eq!((requests.known.values().sum::<u64>(), requests.unknown), (1, 0));
    }

    #[test]
    fn evidence_says_from_whom_and_what() {
        let known = BTreeMap::from([(("10.0.0.9".to_string(), "GET /health HTTP/1.1".to_string()), 2)]);
        let text = describe(&[], &[], &Requests { known, unknown: 1, of_itself: 4 });
        assert_eq!(text, "in 2 s: 3 requests, of them 2 × GET /health from 10.0.0.9");
    }
}
