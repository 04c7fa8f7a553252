//! Finds where the requests of a run spend their time: reads the servers many times per second while the load is on, and
//! joins that with the times of all requests (`lastdrop_analyze::anatomy`).

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lastdrop_analyze::anatomy::{Moment, RequestPlace, RequestSpan, dissect};
use lastdrop_load::RunClock;
use lastdrop_model::run::Anatomy;
use lastdrop_model::units::show_us;
use lastdrop_model::{DatabaseSample, Event, Exchange, Plan};
use lastdrop_probe::host::{self, thread_cpu};
use lastdrop_probe::listeners::{Endpoint, is_local, owner};
use lastdrop_probe::moments::{MomentReader, NETWORK, QUEUE, ServerMoment};
use lastdrop_probe::process;
use lastdrop_probe::thread_states::ServerProcesses;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::lab::LoadTarget;
use crate::observe::databases::{DatabaseOptions, Databases};
use crate::observe::members::{ConnectionFollower, Member, Members, Scope, named};

/// Time to find the servers by their connections.
const FIND: Duration = Duration::from_millis(1500);
/// Range of the pause between two readings, in microseconds, and the part of the machine that they may use.
const PAUSES_US: std::ops::Range<u64> = 8_000..16_000;
const MOST_COST: f64 = 0.012;
/// The kernel walks a large table for the sockets. They are read with this part of the cost.
const COST_OF_SOCKETS: f64 = 0.4;
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Most readings, requests and places that are kept. With more readings, every second one is dropped.
const MOST_MOMENTS: usize = 40_000;
const MOST_REQUESTS: usize = 500_000;
const MOST_PLACES: usize = 400;
/// Most peers that are looked for during a run.
const MOST_PEERS: usize = 8;
/// Fewer readings than this say nothing.
const FEWEST_MOMENTS: usize = 100;
/// Most statements and lock waits of a database that are told.
const MOST_TOLD: usize = 2;

/// Records the requests of a run and the moments of its servers.
pub struct AnatomyRecorder {
    clock: RunClock,
    measured: Option<u16>,
    requests: Vec<RequestSpan>,
    /// Requests beyond the most that are kept.
    dropped: u64,
    /// Dropped when the load is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<Readings, String>>>,
}

/// What was read of the servers.
#[derive(Debug, Default)]
struct Readings {
    places: Vec<RequestPlace>,
    moments: Vec<Moment>,
    /// Processor time of the readings, and how long they went on.
    cost: Duration,
    span: Duration,
    databases: Vec<DatabaseSample>,
}

impl AnatomyRecorder {
    /// Starts to look for the servers at the plan's URL, and then to read them.
    pub fn start(plan: &Plan, clock: RunClock) -> AnatomyRecorder {
        let target = LoadTarget::of(plan);
        let (over, is_over) = channel();
        let work = move || record(&target, clock, &is_over);
        AnatomyRecorder {
            clock,
            measured: plan.phases.iter().position(|p| p.measured).and_then(|at| u16::try_from(at).ok()),
            requests: Vec::new(),
            dropped: 0,
            over: Some(over),
            thread: thread::Builder::new().name("anatomy".into()).spawn(work).ok(),
        }
    }

    /// Takes the requests of an event.
    pub fn take(&mut self, event: &Event<'_>) {
        let Event::Exchanges { exchanges } = event else { return };
        for exchange in exchanges.iter().filter(|e| Some(e.phase) == self.measured) {
            let Some(span) = self.span(exchange) else { continue };
            if self.requests.len() < MOST_REQUESTS {
                self.requests.push(span);
            } else {
                self.dropped += 1;
            }
        }
    }

    /// Times of a request by the run's clock. None if it was not sent, or has no end.
    fn span(&self, e: &Exchange) -> Option<RequestSpan> {
        let (sent, done) = (e.sent?, e.done?);
        let fit = |us: u64| u32::try_from(us).unwrap_or(u32::MAX);
        Some(RequestSpan {
            sent: sent.checked_sub(self.clock.unix_us())?,
            in_flight: fit(done.saturating_sub(sent)),
            before: fit(sent.saturating_sub(e.due)),
            connect: fit(e.ready.unwrap_or(sent).saturating_sub(sent)),
            transfer: fit(done.saturating_sub(e.first_byte.unwrap_or(done))),
        })
    }

    /// Ends reading. Returns the anatomy; if it cannot be told, its notes say why.
    pub fn finish(mut self) -> Anatomy {
        self.over = None;
        let read = self.thread.take().and_then(|thread| thread.join().ok());
        let mut read = match read.unwrap_or_else(|| Err("the thread that reads the servers has failed".into())) {
            Ok(read) => read,
            Err(why) => return Anatomy { notes: vec![why], ..Anatomy::default() },
        };
        let first = self.requests.iter().map(|r| r.sent).min().unwrap_or(0);
        let last = self.requests.iter().map(|r| r.sent + u64::from(r.in_flight)).max().unwrap_or(0);
        read.moments.retain(|m| (first..=last).contains(&m.at));
        if read.moments.len() < FEWEST_MOMENTS {
            let why = format!("only {} readings of the servers: give the run more time (-d)", read.moments.len());
            return Anatomy { moments: read.moments.len() as u64, notes: vec![why], ..Anatomy::default() };
        }
        let mut anatomy = dissect(&read.places, &read.moments, &self.requests);
        let machine = read.span.as_secs_f64() * host::processors().max(1) as f64;
        anatomy.cost = read.cost.as_secs_f64() / machine.max(f64::MIN_POSITIVE);
        anatomy.notes.extend(read.databases.iter().flat_map(database_notes));
        if self.dropped > 0 {
            anatomy.notes.push(format!("{} requests after the first {MOST_REQUESTS} are not in it", self.dropped));
        }
        anatomy
    }
}

/// Returns the process that listens at the other end of a wait.
fn owner_of(what: &str) -> Option<i32> {
    let address = what.strip_prefix("peer ")?;
    let end = match address.strip_prefix("unix:") {
        Some(path) => Endpoint::Unix(path.into()),
        None => Endpoint::Tcp(address.parse().ok()?),
    };
    owner(&end)
}

/// The statements and lock waits of a database that took longest.
fn database_notes(seen: &DatabaseSample) -> Vec<String> {
    let called = seen.server.as_deref().unwrap_or(&seen.service);
    let shown = |seconds: f64| show_us(seconds * 1e6);
    let mut notes = Vec::new();
    for wait in seen.lock_waits.iter().take(MOST_TOLD) {
        let mut note = format!("{called}: {} waited", wait.statement.as_deref().unwrap_or("a session"));
        note += &wait.waited_s.map_or_else(String::new, |s| format!(" {}", shown(s)));
        note += &wait.on.as_ref().map_or_else(|| " for a lock".into(), |on| format!(" for a lock on {on}"));
        if let Some(holder) = &wait.blocker_statement {
            note += &format!(", which the session of {holder} held");
        }
        notes.push(note);
    }
    let mut statements: Vec<_> = seen.statements.iter().filter(|s| s.longest_s > 0.0).collect();
    statements.sort_by(|a, b| b.longest_s.total_cmp(&a.longest_s));
    for statement in statements.into_iter().take(MOST_TOLD) {
        let longest = shown(statement.longest_s);
        notes.push(format!("{called}: one execution took {longest} or longer: {}", statement.statement));
    }
    notes
}

/// Finds the servers and reads them until the load is over.
fn record(target: &LoadTarget, clock: RunClock, over: &Receiver<()>) -> Result<Readings, String> {
    let here = target.endpoint().filter(|e| !matches!(e, Endpoint::Tcp(address) if !is_local(address)));
    let here = here.ok_or("the server is not on this machine: its threads can only be read there")?;
    let all = named(&[], Some(&here), &Scope::All).map_err(|e| e.to_string())?;
    if all.is_empty() {
        return Err(format!("no server of this machine is seen to listen at {here} (it may need root)"));
    }
    let follower = ConnectionFollower::start(all, Some(here.clone()), &Scope::All);
    is_on(over, FIND);
    let (members, _) = follower.end().map_err(|e| e.to_string())?;
    let subject = |m: &Member| {
        let found = &m.found;
        (ServerProcesses { master: found.master, helpers: found.helpers }, found.listeners.clone())
    };
    let front = match here {
        Endpoint::Tcp(address) => Some(address),
        Endpoint::Unix(_) => None,
    };
    let reader = MomentReader::new(&members.all.iter().map(subject).collect::<Vec<_>>(), front)
        .map_err(|e| format!("cannot read the sockets: {e}"))?;
    let mut peers = Peers::new(&members);
    let mut readings = read_moments(reader, &members, &mut peers, (clock, over));
    readings.databases = peers.databases.looks(true);
    readings.cost += peers.databases.cost();
    Ok(readings)
}

/// Waits; false once the load is over.
fn is_on(over: &Receiver<()>, pause: Duration) -> bool {
    over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
}

/// Reads moments until the load is over, as often as the cost allows.
fn read_moments(
    mut reader: MomentReader,
    members: &Members,
    peers: &mut Peers,
    (clock, over): (RunClock, &Receiver<()>),
) -> Readings {
    let mut places = Places::new(members);
    let (begun, mut chance) = (Instant::now(), Xoshiro256PlusPlus::seed_from_u64(11));
    let (mut moments, mut cost, mut of_sockets) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    let (mut every, mut turn) = (1u64, 0u64);
    loop {
        let is_kept = turn.is_multiple_of(every);
        let has_sockets = is_kept && of_sockets <= cost.mul_f64(COST_OF_SOCKETS);
        let read = reader.read(has_sockets);
        cost += read.cost;
        of_sockets += if has_sockets { read.cost } else { Duration::ZERO };
        if is_kept {
            let known = places.all.len();
            moments.push(Moment { at: clock.at(read.at), counts: places.counts(&read.servers), has_sockets });
            let begun = thread_cpu();
            places.all[known..].iter_mut().for_each(|place| peers.name(place));
            cost += thread_cpu().saturating_sub(begun);
        }
        turn += 1;
        if moments.len() >= MOST_MOMENTS {
            let mut keep = true;
            moments.retain(|_| {
                keep = !keep;
                keep
            });
            every *= 2;
        }
        let uneven = Duration::from_micros(PAUSES_US.start + chance.next_u64() % (PAUSES_US.end - PAUSES_US.start));
        // How long the readings so far should have taken.
        let due = cost.as_secs_f64() / MOST_COST / host::processors().max(1) as f64;
        let affordable = Duration::from_secs_f64(due).saturating_sub(begun.elapsed());
        if !is_on(over, uneven.max(affordable.min(LONGEST_PAUSE))) {
            break;
        }
    }
    Readings { places: places.all, moments, cost, span: begun.elapsed(), databases: Vec::new() }
}

/// Servers at the other ends of waits, which the connections at the beginning did not show, and the databases among all.
struct Peers {
    known: Vec<(String, i32)>,
    databases: Databases,
    /// How many more may be looked for, which reads the open files of all processes.
    left: usize,
}

impl Peers {
    fn new(members: &Members) -> Peers {
        let known: Vec<(String, i32)> = members.all.iter().map(|m| (m.called.clone(), m.found.master)).collect();
        let mut databases = Databases::start(&DatabaseOptions::default(), &known);
        databases.looks(false);
        Peers { known, databases, left: MOST_PEERS }
    }

    /// Names the peer of a place. A database begins to be watched.
    fn name(&mut self, place: &mut RequestPlace) {
        if place.peer.is_some() || !place.what.starts_with("peer ") || self.left == 0 {
            return;
        }
        self.left -= 1;
        let Some(master) = owner_of(&place.what) else { return };
        let mut nearby = self.databases.nearby(&self.known);
        if let Some(database) = nearby.iter_mut().find(|database| database.master == master) {
            let names: Vec<&str> = self.known.iter().map(|(called, _)| called.as_str()).collect();
            self.databases.watch(database, &names);
            place.peer.clone_from(&database.called);
            self.known.extend(database.called.clone().map(|called| (called, master)));
        } else {
            let known = self.known.iter().find(|(_, pid)| *pid == master).map(|(called, _)| called.clone());
            place.peer = known.or_else(|| process::name(master));
        }
    }
}

/// The places that have been seen, by server and state.
struct Places {
    all: Vec<RequestPlace>,
    index: HashMap<(usize, String), Option<u16>>,
    servers: Vec<PlacedServer>,
}

/// A server as its places name it.
struct PlacedServer {
    called: String,
    /// It passes requests on to the pool, or is behind it.
    is_front: bool,
    behind: bool,
    /// It has threads besides those that serve requests.
    has_residents: bool,
    /// The addresses that lead to servers of the chain, with their names.
    leads_to: Vec<(String, String)>,
}

impl Places {
    fn new(members: &Members) -> Places {
        let pool = pool(members);
        let server = |(i, m): (usize, &Member)| PlacedServer {
            called: m.called.clone(),
            is_front: i < pool,
            behind: i > pool,
            has_residents: !m.found.prefork,
            leads_to: members
                .links
                .links
                .iter()
                .filter(|l| l.from == i)
                .map(|l| (format!("peer {}", l.via), members.all[l.to].called.clone()))
                .collect(),
        };
        let servers = members.all.iter().enumerate().map(server).collect();
        Places { all: Vec::new(), index: HashMap::new(), servers }
    }

    fn counts(&mut self, read: &[ServerMoment]) -> Vec<(u16, f32)> {
        let mut counts = Vec::new();
        for (server, moment) in read.iter().enumerate() {
            for (what, count) in moment.iter().filter(|(_, count)| **count > 0.0) {
                if let Some(at) = self.at(server, what) {
                    counts.push((at, *count as f32));
                }
            }
        }
        counts
    }

    /// The index of a place. None if what is there is seen elsewhere, too, or there are too many places.
    fn at(&mut self, server: usize, what: &str) -> Option<u16> {
        if let Some(at) = self.index.get(&(server, what.to_string())) {
            return *at;
        }
        let of = self.servers.get(server)?;
        let peer = of.leads_to.iter().find(|(address, _)| address == what).map(|(_, called)| called.clone());
        // A front that waits for the pool has a request that the pool has, too.
        let at = (self.all.len() < MOST_PLACES && !(of.is_front && peer.is_some())).then_some(self.all.len() as u16);
        if at.is_some() {
            self.all.push(RequestPlace {
                server: of.called.clone(),
                what: what.into(),
                peer,
                behind: of.behind,
                is_socket: matches!(what, QUEUE | NETWORK),
                has_residents: of.has_residents && !matches!(what, QUEUE | NETWORK | "running"),
            });
        }
        if self.index.len() < 2 * MOST_PLACES {
            self.index.insert((server, what.to_string()), at);
        }
        at
    }
}

/// Returns the place of the first server that serves requests itself: with one process each, or the last before the
/// databases.
fn pool(members: &Members) -> usize {
    let before_databases = members.all.iter().take_while(|m| m.found.kind.database.is_none()).count();
    members.all.iter().position(|m| m.found.prefork).unwrap_or(before_databases.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use lastdrop_model::database::SessionState;
    use lastdrop_model::{LockWait, StatementSample};
    use lastdrop_probe::links::{Link, Links};
    use lastdrop_server::{FoundServer, ServerRef};

    use super::*;

    fn chain() -> Members {
        let member = |called: &str, kind: &str, prefork: bool| {
            let server: ServerRef = kind.parse().expect("a server");
            let found = FoundServer {
                name: called.into(),
                kind: server.kind,
                software: String::new(),
                master: 1,
                prefork,
                helpers: &[],
                listeners: Vec::new(),
                status: None,
            };
            Member { called: called.into(), named: None, found }
        };
        let via = |path: &str| Endpoint::Unix(path.into());
        Members {
            all: vec![
                member("nginx", "nginx", false),
                member("php-fpm", "php-fpm", true),
                member("db", "mariadb", false),
            ],
            links: Links {
                links: [Link { from: 0, to: 1, via: via("/fpm") }, Link { from: 1, to: 2, via: via("/db") }].into(),
                ..Links::default()
            },
            hidden: Vec::new(),
        }
    }

    #[test]
    fn a_request_is_counted_once_along_the_chain() {
        let members = chain();
        assert_eq!(pool(&members), 1);
        let mut places = Places::new(&members);
        assert_eq!(places.at(0, "peer unix:/fpm"), None, "the pool has that request, too");
        let of = |places: &mut Places, server: usize, what: &str| {
            let at = places.at(server, what).expect("a place");
            assert_eq!(places.at(server, what), Some(at), "the same place again");
            places.all[usize::from(at)].clone()
        };
        let waits = of(&mut places, 1, "peer unix:/db");
        assert_eq!((waits.peer.as_deref(), waits.behind, waits.has_residents), (Some("db"), false, false));
        let behind = of(&mut places, 2, "futex");
        assert!(behind.behind && behind.has_residents, "{behind:?}");
        assert!(of(&mut places, 0, QUEUE).is_socket);
    }

    #[test]
    fn what_a_database_saw_is_told_with_its_lock_and_holder() {
        let seen = DatabaseSample {
            server: Some("db".into()),
            lock_waits: vec![LockWait {
                statement: Some("UPDATE stock SET n = ?".into()),
                waited_s: Some(0.2),
                on: Some("stock".into()),
                blocker_statement: Some("DELETE FROM stock".into()),
                blocker_state: Some(SessionState::Idle),
                ..LockWait::default()
            }],
            statements: vec![StatementSample {
                statement: "SELECT SLEEP(?)".into(),
                longest_s: 0.19,
                ..StatementSample::default()
            }],
            ..DatabaseSample::default()
        };
        let notes = database_notes(&seen);
        assert_eq!(
            notes,
            [
                "db: UPDATE stock SET n = ? waited 200.0 ms for a lock on stock, which the session of DELETE FROM stock held",
                "db: one execution took 190.0 ms or longer: SELECT SLEEP(?)"
            ]
        );
    }
}
