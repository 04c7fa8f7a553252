//! The visitors of a simulated server: each sends one request, at random times that do not depend on the server.

use std::collections::HashMap;

use lastdrop_model::Experience;

use super::RequestId;
use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Visits {
    rng: Rng,
    /// Mean time between two visitors, µs.
    between_us: f64,
    pub next_us: f64,
    /// When the requests in flight were sent, µs.
    in_flight: HashMap<RequestId, f64>,
    /// What has ended since it was last taken, and all that has.
    ended: Experience,
    all: Experience,
}

impl Visits {
    pub fn new(rate: f64, now_us: f64, rng: Rng) -> Visits {
        let (between_us, in_flight) = (1e6 / rate, HashMap::new());
        let (ended, all) = (Experience::default(), Experience::default());
        let mut visits = Visits { rng, between_us, next_us: now_us, in_flight, ended, all };
        visits.wait_for_next(now_us);
        visits
    }

    fn wait_for_next(&mut self, now_us: f64) {
        self.next_us = now_us + self.between_us * self.rng.exponential();
    }

    /// A visitor has come and sent this request.
    pub fn come(&mut self, id: RequestId, now_us: f64) {
        self.in_flight.insert(id, now_us);
        self.wait_for_next(now_us);
    }

    /// Takes an answer, if it is to a visitor.
    pub fn answered(&mut self, id: RequestId, now_us: f64) {
        if let Some(sent_us) = self.in_flight.remove(&id) {
            self.ended.requests += 1;
            self.ended.latency.record((now_us - sent_us) as u64);
        }
    }

    /// The server has dropped all requests in flight.
    pub fn lose_all(&mut self) {
        let lost = self.in_flight.len() as u64;
        self.ended.requests += lost;
        self.ended.errors += lost;
        self.in_flight.clear();
    }

    /// Nobody comes until then, and those who are there leave. Returns their requests.
    pub fn pause_until(&mut self, now_us: f64) -> Vec<RequestId> {
        self.wait_for_next(now_us);
        self.in_flight.drain().map(|(id, _)| id).collect()
    }

    /// Returns what has ended since the last call.
    pub fn take(&mut self) -> Experience {
        let ended = std::mem::take(&mut self.ended);
        self.all.add(&ended);
        ended
    }

    /// Returns all that has ended.
    pub fn all(&mut self) -> &Experience {
        self.take();
        &self.all
    }
}
