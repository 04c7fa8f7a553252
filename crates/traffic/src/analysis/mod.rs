//! What a log tells without any load: rates, mix, sizes, statuses, sessions, server times, and the most active clients.
//!
//! It takes one pass, and memory that does not grow with the log. Seconds, classes, clients and sessions each have a
//! bound, and everything beyond is counted and reported.

pub(crate) mod bounded;
pub(crate) mod coarse;
mod demand;
mod imitate;
mod rates;
mod repeats;
mod sessions;

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use lastdrop_model::documents::{LOG_SCHEMA, LogClass, LogClient, LogDocument, LogFile, LogRejected, LogSpread};
use lastdrop_model::printable::lossless;
use lastdrop_model::{Histogram, class};

use self::bounded::{Mergeable, Slot, TopCounters};
use self::coarse::CoarseHistogram;
pub use self::demand::DemandCounter;
use self::imitate::Sample;
pub use self::imitate::{Imitation, URLS};
use self::rates::Rates;
use self::repeats::Repeats;
use self::sessions::Sessions;
pub(crate) use self::sessions::is_page;
use crate::{Format, LineCounts, LogEntries, LogEntry};

/// Most classes, clients and methods with exact counts.
const MOST_CLASSES: usize = 1_000;
const MOST_CLIENTS: usize = 20_000;
const MOST_METHODS: usize = 32;
/// Most clients in the document.
const SHOWN_CLIENTS: usize = 100;
/// Targets whose class is cached; a power of two.
const REMEMBERED: usize = 1 << 15;
/// The class of malformed requests.
const MALFORMED: &str = "(malformed)";
const SECOND_US: i64 = 1_000_000;

/// Everything collected from a log.
#[derive(Debug)]
pub struct Analysis {
    requests: u64,
    first_us: i64,
    last_us: i64,
    resolution_us: u32,
    rates: Rates,
    status: Vec<u64>,
    bytes: u64,
    sizes: Histogram,
    methods: TopCounters<()>,
    classes: TopCounters<ClassTotals>,
    clients: TopCounters<ClientTotals>,
    sessions: Sessions,
    server_us: Histogram,
    upstream_us: Histogram,
    queue_us: Histogram,
    sample: Sample,
    repeats: Repeats,
    hasher: RandomState,
    /// The class of a request, by the hash of its target.
    remembered: Vec<(u64, u32)>,
    remembered_at: u64,
    name: String,
}

#[derive(Debug, Default)]
struct ClassTotals {
    bytes: u64,
    /// By the first digit.
    status: [u64; 10],
    server_us: CoarseHistogram<2>,
    upstream_us: CoarseHistogram<2>,
}

#[derive(Debug, Default)]
struct ClientTotals {
    bytes: u64,
    errors: u64,
    server_us: u64,
}

impl Mergeable for () {
    fn merge(&mut self, (): ()) {}
}

impl Mergeable for ClassTotals {
    fn merge(&mut self, other: ClassTotals) {
        self.bytes += other.bytes;
        self.status.iter_mut().zip(other.status).for_each(|(own, n)| *own += n);
        self.server_us.add(&other.server_us);
        self.upstream_us.add(&other.upstream_us);
    }
}

impl Mergeable for ClientTotals {
    fn merge(&mut self, other: ClientTotals) {
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.server_us = self.server_us.saturating_add(other.server_us);
    }
}

impl Default for Analysis {
    fn default() -> Analysis {
        Analysis {
            requests: 0,
            first_us: i64::MAX,
            last_us: i64::MIN,
            resolution_us: 0,
            rates: Rates::default(),
            status: vec![0; 1000],
            bytes: 0,
            sizes: Histogram::new(),
            methods: TopCounters::new(MOST_METHODS),
            classes: TopCounters::new(MOST_CLASSES),
            clients: TopCounters::new(MOST_CLIENTS),
            sessions: Sessions::default(),
            server_us: Histogram::new(),
            upstream_us: Histogram::new(),
            queue_us: Histogram::new(),
            sample: Sample::default(),
            repeats: Repeats::default(),
            hasher: RandomState::default(),
            remembered: vec![(0, 0); REMEMBERED],
            remembered_at: 0,
            name: String::new(),
        }
    }
}

impl Analysis {
    /// Counts a request. They arrive in time order, except for late ones.
    pub fn take(&mut self, entry: &LogEntry) {
        self.requests += 1;
        self.first_us = self.first_us.min(entry.time_us);
        self.last_us = self.last_us.max(entry.time_us);
        self.resolution_us = self.resolution_us.max(entry.resolution_us);
        self.rates.count(entry.time_us.div_euclid(SECOND_US));
        let status = usize::from(entry.status).min(999);
        self.status[status] += 1;
        let bytes = entry.bytes.unwrap_or(0);
        self.bytes = self.bytes.saturating_add(bytes);
        entry.bytes.into_iter().for_each(|bytes| self.sizes.record(bytes));
        entry.server_us.into_iter().for_each(|us| self.server_us.record(us));
        entry.upstream_us.into_iter().for_each(|us| self.upstream_us.record(us));
        entry.queue_us.into_iter().for_each(|us| self.queue_us.record(us));
        let method = self.methods.place(entry.method().unwrap_or_default());
        self.methods.count(method);
        let place = self.class(entry);
        let class = self.classes.count(place);
        class.bytes = class.bytes.saturating_add(bytes);
        class.status[status / 100] += 1;
        entry.server_us.into_iter().for_each(|us| class.server_us.record(us));
        entry.upstream_us.into_iter().for_each(|us| class.upstream_us.record(us));
        let place = self.clients.place(entry.client().unwrap_or_default());
        let client = self.clients.count(place);
        client.bytes = client.bytes.saturating_add(bytes);
        client.errors += u64::from(status >= 400);
        client.server_us = client.server_us.saturating_add(entry.server_us.unwrap_or(0));
        let key = self.hasher.hash_one((entry.client(), entry.agent()));
        self.sessions.count(key, entry.time_us, entry.path().is_some_and(is_page));
        self.sample.take(entry);
        if entry.status == 200 && entry.method() == Some(b"GET") {
            let url = self.hasher.hash_one((entry.host(), entry.path(), entry.query())).max(1);
            self.repeats.take(url, entry.time_us);
        }
    }

    /// The place of a request's class. Most targets repeat, and are not folded again.
    fn class(&mut self, entry: &LogEntry) -> usize {
        if self.remembered_at != self.classes.changes {
            self.remembered.fill((0, 0));
            self.remembered_at = self.classes.changes;
        }
        let hash = self.hasher.hash_one((entry.method(), entry.path(), entry.query())).max(1);
        let memory = hash as usize % REMEMBERED;
        if let (known, place) = self.remembered[memory]
            && known == hash
        {
            return place as usize;
        }
        self.name.clear();
        class_name(entry, &mut self.name);
        let place = self.classes.place(self.name.as_bytes());
        // Adding a class may have moved the others.
        if self.remembered_at == self.classes.changes {
            self.remembered[memory] = (hash, place as u32);
        }
        place
    }

    /// A plan that imitates the log, with requests to this origin (`http://127.0.0.1:8080`); `None` if there was no
    /// GET.
    #[must_use]
    pub fn imitate(&self, origin: &str) -> Option<Imitation> {
        self.sample.plan(origin, &self.rates, &self.classes)
    }

    /// Returns the results, once the entries have ended.
    #[must_use]
    pub fn finish(self, entries: &LogEntries) -> LogDocument {
        let file = |(path, format): (&std::path::Path, &Format)| LogFile {
            file: path.display().to_string(),
            format: format.name().into(),
        };
        self.document(entries.formats().map(file).collect(), entries.tally())
    }

    /// Like `finish`, for requests from another source.
    #[must_use]
    pub fn document(self, files: Vec<LogFile>, tally: &LineCounts) -> LogDocument {
        let seconds = if self.requests > 0 { (self.last_us - self.first_us) as f64 / 1e6 } else { 0.0 };
        // The last second, or the last unit of time, belongs to the log too.
        let span_s = seconds + f64::from(self.resolution_us) / 1e6;
        let (rate, arrivals) = self.rates.finish(self.requests, span_s);
        let (sessions, think_us) = self.sessions.finish();
        let exact = self.classes.rest.is_none() && self.clients.rest.is_none() && sessions.cut == 0;
        let (classes, rest) = self.classes.finish(MOST_CLASSES);
        let (clients, other_clients) = self.clients.finish(SHOWN_CLIENTS);
        let rest = rest.map(|(count, value)| Slot::of_rest(class::OTHERS, count, value));
        let requests = self.requests.max(1) as f64;
        let mut document = LogDocument {
            schema: LOG_SCHEMA.into(),
            files,
            lines: tally.lines,
            requests: tally.requests,
            ignored: tally.nothing,
            unparsed: tally.unparsed,
            too_long: tally.too_long,
            torn: tally.torn,
            late: tally.late,
            clock_jumps: tally.jumps,
            damaged: tally.damaged.clone(),
            rejected: tally
                .rejected
                .iter()
                .map(|r| LogRejected { file: r.file.clone(), line: r.line, why: r.why.clone(), text: r.text.clone() })
                .collect(),
            seconds,
            resolution_us: self.resolution_us.into(),
            rate,
            arrivals,
            status: self
                .status
                .iter()
                .enumerate()
                .filter(|(_, n)| **n > 0)
                .map(|(code, n)| (if code == 0 { "-".into() } else { code.to_string() }, *n))
                .collect(),
            methods: methods(self.methods),
            bytes: self.bytes,
            response_bytes: LogSpread::of(&self.sizes),
            classes: classes.into_iter().chain(rest).map(|slot| of_class(slot, requests)).collect(),
            clients: clients.into_iter().map(of_client).collect(),
            other_clients: other_clients.map_or(0, |(count, _)| count),
            exact,
            sessions,
            think_us,
            server_time_us: LogSpread::of(&self.server_us),
            upstream_time_us: LogSpread::of(&self.upstream_us),
            queue_time_us: LogSpread::of(&self.queue_us),
            repeats: self.repeats.document(self.requests),
            ..LogDocument::default()
        };
        if self.requests > 0 {
            document.begin_unix_s = self.first_us as f64 / 1e6;
            document.end_unix_s = self.last_us as f64 / 1e6;
        }
        document.notes = notes(&document);
        document.notes.extend(tally.notes());
        document
    }
}

/// Appends the name of a request's class to a text.
pub(crate) fn class_name(entry: &LogEntry, to: &mut String) {
    let (Some(method), Some(target)) = (entry.method(), entry.target()) else { return to.push_str(MALFORMED) };
    let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"-_".contains(b);
    let (Ok(method), true) = (std::str::from_utf8(method), method.len() <= 20 && method.iter().all(is_token)) else {
        return to.push_str(MALFORMED);
    };
    to.push_str(method);
    to.push(' ');
    let target = &target[..target.len().min(MOST_TARGET_BYTES)];
    // A whole URL, as a proxy receives it, is in the class of its path.
    let path = match memchr::memmem::find(&target[..target.len().min(16)], b"://") {
        Some(at) if target[0] != b'/' => {
            let rest = &target[at + 3..];
            &rest[memchr::memchr(b'/', rest).unwrap_or(rest.len())..]
        }
        _ => target,
    };
    match std::str::from_utf8(path) {
        Ok("") => to.push('/'),
        Ok(path) => class::fold_into(path, to),
        Err(_) => class::fold_into(&lossless(path), to),
    }
}

/// Longer targets come from scanners; only this many bytes distinguish them.
const MOST_TARGET_BYTES: usize = 512;

fn methods(methods: TopCounters<()>) -> std::collections::BTreeMap<String, u64> {
    let (slots, rest) = methods.finish(MOST_METHODS);
    let shown = |name: &[u8]| if name.is_empty() { "-".into() } else { lossless(&name[..name.len().min(40)]) };
    let rest = rest.map(|(count, ())| (class::OTHERS.to_string(), count));
    slots.into_iter().map(|s| (shown(&s.name), s.count)).chain(rest).collect()
}

fn of_class(slot: Slot<ClassTotals>, requests: f64) -> LogClass {
    let status = slot.value.status.iter().enumerate().filter(|(_, n)| **n > 0);
    LogClass {
        name: lossless(&slot.name),
        count: slot.count,
        missed_at_most: slot.missed,
        share: slot.count as f64 / requests,
        status: status.map(|(digit, n)| (if digit == 0 { "-".into() } else { format!("{digit}xx") }, *n)).collect(),
        bytes: slot.value.bytes,
        server_time_us: slot.value.server_us.spread(),
        upstream_time_us: slot.value.upstream_us.spread(),
    }
}

fn of_client(slot: Slot<ClientTotals>) -> LogClient {
    LogClient {
        address: if slot.name.is_empty() { "-".into() } else { lossless(&slot.name) },
        count: slot.count,
        missed_at_most: slot.missed,
        bytes: slot.value.bytes,
        errors: slot.value.errors,
        server_time_us: slot.value.server_us,
    }
}

/// Lists what a reader must know before trusting the numbers.
fn notes(d: &LogDocument) -> Vec<String> {
    let mut notes = Vec::new();
    if !d.exact {
        notes.push(
            "there are more classes, clients or sessions than are counted one by one: sums are exact, counts of single ones at least what \
             is shown, and at most missed_at_most more"
                .into(),
        );
    }
    if d.files.iter().any(|f| f.format.ends_with(" and more")) {
        notes.push(
            "lines have fields after those that are known; --format says what they are (a server's own time, perhaps)"
                .into(),
        );
    }
    if d.resolution_us >= 1_000_000 && d.requests > 0 {
        notes.push(
            "times are whole seconds: how requests come within a second, and pauses shorter than that, are not known"
                .into(),
        );
    }
    if d.clock_jumps > 0 {
        notes.push(format!(
            "{} requests have a time far ahead of their neighbours', and were given that of the one before",
            d.clock_jumps
        ));
    }
    // Every log that is written at the ends of requests has some slow ones.
    if d.late * 100 > d.requests {
        notes.push(format!("{} requests are out of order by more than the window", d.late));
    }
    notes
}

#[cfg(test)]
mod tests;
