//! The latest seconds of a growing log: the requests, their clients, and their durations.
//!
//! The window is a ring of slots, each with its own bounded counters. So a slot that leaves the window is dropped
//! whole, and memory is bounded whatever the log contains.

use std::collections::{BTreeMap, VecDeque};

use lastdrop_model::documents::{TopDocument, TopGroup};
use lastdrop_model::printable::lossless;

use crate::LogEntry;
use crate::analysis::bounded::{Mergeable, Slot, TopCounters};
use crate::analysis::class_name;
use crate::analysis::coarse::CoarseHistogram;

/// Number of slots in a window.
const SLOTS: u32 = 60;
/// Most classes and clients with exact counts in each slot.
const MOST_CLASSES: usize = 100;
const MOST_CLIENTS: usize = 500;
/// Most groups in the document.
const SHOWN: usize = 100;

/// Some requests that are alike.
#[derive(Debug, Clone, Copy)]
pub struct Hit<'a> {
    pub class: &'a str,
    pub client: &'a [u8],
    /// 0 if unknown.
    pub status: u16,
    pub bytes: u64,
    pub server_us: Option<u64>,
    pub count: u64,
}

#[derive(Debug, Default)]
struct GroupCounts {
    requests: u64,
    errors: u64,
    bytes: u64,
    server_us: CoarseHistogram<1>,
}

impl Mergeable for GroupCounts {
    fn merge(&mut self, other: GroupCounts) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.server_us.add(&other.server_us);
    }
}

impl GroupCounts {
    fn take(&mut self, hit: &Hit<'_>) {
        self.requests += hit.count;
        self.bytes = self.bytes.saturating_add(hit.bytes);
        if hit.status >= 400 {
            self.errors += hit.count;
        }
        hit.server_us.into_iter().for_each(|us| self.server_us.record(us));
    }

    fn copy(&self) -> GroupCounts {
        GroupCounts { server_us: self.server_us.clone(), ..*self }
    }
}

/// The counts of one slot of the window.
#[derive(Debug)]
struct WindowSlot {
    /// Its number, since the start.
    number: u64,
    status: [u64; 10],
    all: GroupCounts,
    classes: TopCounters<GroupCounts>,
    clients: TopCounters<GroupCounts>,
}

/// The requests of the latest seconds.
#[derive(Debug)]
pub struct Window {
    part_s: f64,
    parts: VecDeque<WindowSlot>,
    name: String,
    /// Requests and bytes since the start.
    total: (u64, u64),
    /// The same at the last document, and its time.
    looked: (u64, u64),
    looked_s: f64,
}

impl Window {
    #[must_use]
    pub fn new(seconds: f64) -> Window {
        Window {
            part_s: (seconds / f64::from(SLOTS)).max(0.001),
            parts: VecDeque::new(),
            name: String::new(),
            total: (0, 0),
            looked: (0, 0),
            looked_s: 0.0,
        }
    }

    /// Counts a request of a log, `at_s` seconds after the start.
    pub fn take(&mut self, entry: &LogEntry, at_s: f64) {
        let mut name = std::mem::take(&mut self.name);
        name.clear();
        class_name(entry, &mut name);
        let (client, bytes) = (entry.client().unwrap_or_default(), entry.bytes.unwrap_or(0));
        let hit = Hit { class: &name, client, status: entry.status, bytes, server_us: entry.server_us, count: 1 };
        self.count(&hit, at_s);
        self.name = name;
    }

    /// Counts requests at `at_s` seconds after the start; the time must not go back.
    pub fn count(&mut self, hit: &Hit<'_>, at_s: f64) {
        self.total = (self.total.0 + hit.count, self.total.1.saturating_add(hit.bytes));
        let number = (at_s / self.part_s) as u64;
        if self.parts.back().is_none_or(|p| p.number < number) {
            self.forget(number);
            self.parts.push_back(WindowSlot {
                number,
                status: [0; 10],
                all: GroupCounts::default(),
                classes: TopCounters::new(MOST_CLASSES),
                clients: TopCounters::new(MOST_CLIENTS),
            });
        }
        let Some(part) = self.parts.back_mut() else { return };
        part.status[usize::from(hit.status.min(999)) / 100] += hit.count;
        part.all.take(hit);
        if !hit.class.is_empty() {
            let place = part.classes.place(hit.class.as_bytes());
            part.classes.count(place).take(hit);
        }
        if !hit.client.is_empty() {
            let place = part.clients.place(hit.client);
            part.clients.count(place).take(hit);
        }
    }

    /// Drops the slots that have left the window.
    fn forget(&mut self, number: u64) {
        while self.parts.front().is_some_and(|p| p.number + u64::from(SLOTS) <= number) {
            self.parts.pop_front();
        }
    }

    /// The window at `at_s` seconds after the start.
    pub fn look(&mut self, at_s: f64) -> TopDocument {
        self.forget((at_s / self.part_s) as u64);
        let (mut status, mut all) = ([0; 10], GroupCounts::default());
        let (mut classes, mut clients) = (TopCounters::new(2 * MOST_CLASSES), TopCounters::new(2 * MOST_CLIENTS));
        let mut exact = true;
        for part in &self.parts {
            status.iter_mut().zip(part.status).for_each(|(sum, n)| *sum += n);
            all.merge(part.all.copy());
            for (from, to) in [(&part.classes, &mut classes), (&part.clients, &mut clients)] {
                exact &= from.rest.is_none();
                for slot in from.slots() {
                    let place = to.place(&slot.name);
                    to.add(place, slot.count, slot.value.copy());
                }
            }
        }
        exact &= classes.rest.is_none() && clients.rest.is_none();
        let span_s = (at_s - self.looked_s).max(1e-3);
        let since = (self.total.0 - self.looked.0, self.total.1 - self.looked.1);
        (self.looked, self.looked_s) = (self.total, at_s);
        let mut classes = groups(classes);
        // The slowest first.
        let slowness = |g: &TopGroup| g.server_time_us.as_ref().map_or(0.0, |s| s.mean);
        classes.sort_by(|a, b| slowness(b).total_cmp(&slowness(a)));
        let shown = status.iter().enumerate().filter(|(digit, n)| **n > 0 && *digit > 0);
        let status: BTreeMap<String, u64> = shown.map(|(digit, n)| (format!("{digit}xx"), *n)).collect();
        TopDocument {
            schema: lastdrop_model::documents::TOP_SCHEMA.into(),
            window_s: at_s.min(self.part_s * f64::from(SLOTS)),
            rps: since.0 as f64 / span_s,
            bytes_per_s: since.1 as f64 / span_s,
            requests: all.requests,
            server_errors: status.get("5xx").copied().unwrap_or(0),
            status,
            bytes: all.bytes,
            server_time_us: all.server_us.spread(),
            classes,
            clients: groups(clients),
            exact,
            ..TopDocument::default()
        }
    }
}

fn groups(groups: TopCounters<GroupCounts>) -> Vec<TopGroup> {
    let group = |slot: Slot<GroupCounts>| TopGroup {
        name: lossless(&slot.name),
        count: slot.value.requests,
        errors: slot.value.errors,
        bytes: slot.value.bytes,
        server_time_us: slot.value.server_us.spread(),
    };
    let mut all: Vec<TopGroup> = groups.finish(usize::MAX).0.into_iter().map(group).collect();
    all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
    all.truncate(SHOWN);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(class: &str, server_us: u64) -> Hit<'_> {
        Hit { class, client: b"10.0.0.1", status: 200, bytes: 10, server_us: Some(server_us), count: 1 }
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut window = Window::new(60.0);
        (0..10).for_each(|i| window.count(&hit("GET /old", 1000), f64::from(i) / 10.0));
        let d = window.look(2.0);
        assert_eq!((d.requests, d.rps, d.bytes, d.window_s), (10, 5.0, 100, 2.0));
        (0..5).for_each(|_| window.count(&Hit { status: 503, ..hit("GET /new", 50_000) }, 59.0));
        let d = window.look(60.0);
        assert_eq!((d.requests, d.server_errors, d.classes[0].name.as_str()), (5, 5, "GET /new"));
        assert_eq!((d.classes[0].errors, d.clients[0].count, d.exact), (5, 5, true));
        assert!(d.server_time_us.is_some_and(|s| (45_000..55_000).contains(&s.p50)));
        assert_eq!(window.look(200.0).requests, 0);
    }

    #[test]
    fn a_flood_of_names_has_a_bound_and_sums_are_exact() {
        let mut window = Window::new(10.0);
        for i in 0..100_000u32 {
            let (class, client) = (format!("GET /{i}x"), i.to_string());
            window.count(&Hit { class: &class, client: client.as_bytes(), ..hit("", 7) }, f64::from(i) / 10_000.0);
            window.count(&hit("GET /often", 900), f64::from(i) / 10_000.0);
        }
        let d = window.look(9.99);
        assert_eq!((d.requests, d.exact, d.classes.len(), d.clients.len()), (200_000, false, SHOWN, SHOWN));
        assert_eq!((d.classes[0].name.as_str(), d.clients[0].count), ("GET /often", 100_000));
        assert!(window.parts.iter().all(|p| p.classes.slots().len() <= 2 * MOST_CLASSES));
    }
}
