//! Reads requests from a server's status page: the number since the last read, and, if the page shows each worker's
//! latest request (mod_status), its class and client.

use std::collections::HashMap;
use std::time::Duration;

use lastdrop_model::class;
use lastdrop_probe::status::{AskError, StatusReading, StatusSource};
use lastdrop_server::{ServerError, ServerRef, find};

/// A page that takes longer is not waited for.
const LIMIT: Duration = Duration::from_millis(900);

/// Requests on a status page. Class and client are empty if the page does not show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestGroup<'a> {
    pub class: &'a str,
    pub client: &'a str,
    /// How long the latest of them took.
    pub server_us: Option<u64>,
    pub count: u64,
}

/// Why a server's requests cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RequestsError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("{0} has no status page that is known; name it with @URL, or give its access log")]
    NoPage(String),
    #[error(transparent)]
    Unanswered(#[from] AskError),
}

/// A server whose status page is read repeatedly.
#[derive(Debug)]
pub struct Requests {
    pub name: String,
    source: StatusSource,
    pub latest: StatusReading,
    /// Requests of each slot at the last read.
    slots: HashMap<(String, usize), u64>,
}

impl Requests {
    /// Finds a server and reads its page once, as the base for differences.
    ///
    /// # Errors
    /// When it is not found, has no status page, or does not respond.
    pub fn start(server: &ServerRef) -> Result<Requests, RequestsError> {
        let found = find(server)?;
        let Some(source) = found.status else { return Err(RequestsError::NoPage(found.name)) };
        let latest = source.read(true, LIMIT)?;
        let mut requests =
            Requests { name: found.name, source, latest: StatusReading::default(), slots: HashMap::new() };
        requests.take(latest, |_| {});
        Ok(requests)
    }

    /// Returns true if the page shows how long the latest requests took.
    #[must_use]
    pub fn tells_times(&self) -> bool {
        self.latest.slots.iter().any(|slot| slot.took_ms.is_some())
    }

    /// Calls `tell` with the requests since the last read, without those for the page itself.
    ///
    /// # Errors
    /// When there is no response in time; the next read includes these requests, too.
    pub fn look(&mut self, tell: impl FnMut(RequestGroup<'_>)) -> Result<(), AskError> {
        let reading = self.source.read(true, LIMIT)?;
        self.take(reading, tell);
        Ok(())
    }

    fn take(&mut self, reading: StatusReading, mut tell: impl FnMut(RequestGroup<'_>)) {
        let own = if reading.counts_own { reading.asked } else { 0 };
        let totals = reading.total_requests.zip(self.latest.total_requests);
        // A restarted server counts from 0.
        let mut left = totals.map_or(0, |(now, before)| now.saturating_sub(before + own));
        let own_path = match &self.source {
            StatusSource::Page { url, .. } => url.path.split('?').next().unwrap_or_default(),
            _ => "",
        };
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut slots = HashMap::new();
        for slot in &reading.slots {
            let child = slot.slot.split('-').next().unwrap_or_default();
            let place = places.entry(child).or_default();
            *place += 1;
            let key = (child.to_string(), *place);
            // All requests of a new slot happened since the last read.
            let before = self.slots.get(&key).copied().unwrap_or(0);
            let count = slot.of_slot.saturating_sub(before).min(left);
            slots.insert(key, slot.of_slot);
            let mut words = slot.request.split(' ');
            let (Some(method), Some(target)) = (words.next(), words.next()) else { continue };
            if count == 0 || target.split('?').next() == Some(own_path) {
                continue;
            }
            left -= count;
            let class = class::pattern(method, target);
            let server_us = slot.took_ms.filter(|ms| *ms >= 0.0).map(|ms| (ms * 1e3) as u64);
            tell(RequestGroup { class: &class, client: &slot.client, server_us, count });
        }
        if left > 0 {
            tell(RequestGroup { class: "", client: "", server_us: None, count: left });
        }
        self.slots = slots;
        self.latest = reading;
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_probe::mod_status::ScoreboardSlot;
    use lastdrop_probe::status::PageFormat;

    use super::*;

    fn row(slot: &str, of_slot: u64, request: &str) -> ScoreboardSlot {
        ScoreboardSlot {
            slot: slot.into(),
            pid: Some(1),
            of_connection: 0,
            of_process: of_slot,
            of_slot,
            mode: '_',
            request_s: Some(0.0),
            took_ms: Some(12.0),
            client: "10.0.0.7".into(),
            request: request.into(),
        }
    }

    #[test]
    fn requests_are_those_of_the_slots_since_the_last_look() {
        let url = "http://127.0.0.1/server-status".parse().expect("a URL");
        let source = StatusSource::Page { format: PageFormat::ModStatus, url };
        let mut requests =
            Requests { name: "apache".into(), source, latest: StatusReading::default(), slots: HashMap::new() };
        let reading = |total, slots| StatusReading {
            total_requests: Some(total),
            counts_own: true,
            asked: 1,
            slots,
            ..StatusReading::default()
        };
        let mut told = Vec::new();
        let mut take = |requests: &mut Requests, reading| {
            told.clear();
            requests.take(reading, |t| told.push((t.class.to_string(), t.count, t.server_us)));
            told.clone()
        };
        let slots = vec![row("0-1", 10, "GET /a/7 HTTP/1.1"), row("0-1", 5, "GET /b HTTP/1.1")];
        assert!(take(&mut requests, reading(15, slots)).is_empty());
        let slots = vec![
            row("0-1", 14, "GET /a/8 HTTP/1.1"),
            row("0-1", 5, "GET /b HTTP/1.1"),
            row("1-1", 1, "GET /server-status?x HTTP/1.1"),
        ];
        let of_a = ("GET /a/{n}".to_string(), 4, Some(12_000));
        assert_eq!(take(&mut requests, reading(22, slots)), [of_a, (String::new(), 2, None)]);
        assert!(take(&mut requests, reading(3, Vec::new())).is_empty());
    }
}
