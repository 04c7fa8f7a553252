//! The users: what each of them holds, and what each requests next.
//!
//! Every request has a user. In a closed loop it is a user who returns again and again, in an open loop any free one
//! when a request arrives. A user does one thing at a time: a request with its redirects and challenges, a session of
//! several requests, or a page with what it embeds.

mod line;
mod next;
mod page_load;

use std::collections::HashSet;

use lastdrop_http::cookies::Jar;
use lastdrop_http::digest::Challenge;
use lastdrop_model::Micros;
use lastdrop_model::plan::{BEGIN_TOGETHER, Load};
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::ids::StreamId;
use crate::inspect::Capture;
use crate::protocol::open_streams;
use crate::share::Shard;
use crate::wiring::Job;

pub(crate) use line::{Backlog, WaitingRequest};
pub(crate) use page_load::{MOST_CACHED, PageLoad, cache_key};

/// Time over which users start if there are more than [`BEGIN_TOGETHER`].
const SPREAD_US: Micros = 1_000_000;

/// Returns how many of `planned` users take part `since` the phase began, if `before` already did at its start.
pub(crate) fn spread_start(before: u32, planned: u32, since: Micros) -> u32 {
    let at_once = before.saturating_add(BEGIN_TOGETHER);
    if planned <= at_once || since >= SPREAD_US {
        return planned;
    }
    at_once + (u64::from(planned - at_once) * since / SPREAD_US) as u32
}

/// What a user is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Not taking part: not needed now, or (open loop) free for the next arrival.
    Away,
    /// Pausing; an alarm is set.
    Pausing,
    Busy,
}

/// State of a user that has any: values, cookies, login, page.
#[derive(Debug)]
pub struct Person {
    /// From 1, over all threads.
    pub number: u64,
    pub iteration: u64,
    /// The next request of the session.
    pub step: usize,
    /// The user has sent a request of a session and has another to send.
    pub mid_session: bool,
    /// The user has got through the requests that are sent once.
    pub past_once: bool,
    pub has_row: bool,
    pub values: Vec<Vec<u8>>,
    pub jar: Jar,
    pub digest: Option<(Challenge, u32)>,
    pub(crate) page: Option<Box<PageLoad>>,
    /// Keys of the resources that it has fetched (`cache_key`).
    pub(crate) cached: HashSet<u64>,
}

impl Person {
    pub fn new(number: u64, values: usize) -> Person {
        Person {
            number,
            iteration: 0,
            step: 0,
            mid_session: false,
            past_once: false,
            has_row: false,
            values: vec![Vec::new(); values],
            jar: Jar::default(),
            digest: None,
            page: None,
            cached: HashSet::new(),
        }
    }
}

/// The users of a thread.
#[derive(Debug)]
pub(crate) struct Users {
    pub presence: Vec<Presence>,
    /// The state of each user, if the plan needs any.
    pub people: Vec<Person>,
    /// Requests that each user may have in flight.
    pub per_user: u32,
    /// Closed loop: users that may be active now, and those that were active when the phase began.
    pub wanted: u32,
    pub users_before: u32,
    /// More users may begin than one turn should start; their number still grows in the first second.
    pub more_to_begin: bool,
    pub spreading: bool,
    pub rng: Xoshiro256PlusPlus,
    /// In order: how many requests and rows this thread has taken from its share.
    pub next_request: u64,
    pub next_row: u64,
}

impl Users {
    pub fn new(job: &Job<'_>) -> Users {
        let (plan, prepared) = (job.plan, job.prepared);
        let per_user = prepared.connections_per_user;
        let most = |load: &Load| match load {
            Load::Closed { .. } => job.shard.count(u64::from(load.most_concurrent())).max(1) as usize,
            Load::Open { connections, .. } => {
                let own = job.shard.count(u64::from(*connections)).max(1) as u32;
                (open_streams(plan, own) / per_user).max(1) as usize
            }
        };
        let users = plan.phases.iter().map(|p| most(&p.load)).max().unwrap_or(0);
        let number = |user: usize| job.shard.nth(user as u64) + 1;
        let people = if prepared.personal { users } else { 0 };
        let people = (0..people).map(|u| Person::new(number(u), prepared.values)).collect();
        Users { people, ..Users::of(users, per_user, plan.seed, &job.shard) }
    }

    /// Users of a thread, without state of their own.
    fn of(users: usize, per_user: u32, seed: u64, shard: &Shard) -> Users {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x5eed);
        // Each thread of each agent has 2^128 random numbers of its own.
        let (agent, thread) = shard.jumps();
        (0..agent).for_each(|_| rng.long_jump());
        (0..thread).for_each(|_| rng.jump());
        Users {
            presence: vec![Presence::Away; users],
            people: Vec::new(),
            per_user,
            wanted: 0,
            users_before: 0,
            more_to_begin: false,
            spreading: false,
            rng,
            next_request: 0,
            next_row: 0,
        }
    }

    /// Returns the streams of a user.
    #[inline]
    pub fn streams(&self, user: u32) -> impl Iterator<Item = StreamId> + Clone + use<> {
        (user * self.per_user..(user + 1) * self.per_user).map(StreamId)
    }

    /// Returns the user's stream with this number.
    #[inline]
    pub fn stream(&self, user: u32, nth: u32) -> StreamId {
        StreamId(user * self.per_user + nth)
    }

    /// Returns the user of a stream.
    #[inline]
    pub fn user_of(&self, stream: StreamId) -> u32 {
        stream.0 / self.per_user
    }

    /// Whether a user is between two requests of a session.
    pub fn in_session(&self, user: u32) -> bool {
        self.people.get(user as usize).is_some_and(|p| p.mid_session)
    }
}

/// How a request ended.
pub(crate) enum RequestEnd {
    Answered {
        status: u16,
        capture: Option<Box<Capture>>,
    },
    /// `on_reuse`: lost before the first byte of the answer, on a connection that had served another request.
    Lost {
        refused: bool,
        on_reuse: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_users_begin_over_a_second() {
        assert_eq!(spread_start(0, BEGIN_TOGETHER, 0), BEGIN_TOGETHER);
        let planned = BEGIN_TOGETHER + 4000;
        let begun: Vec<u32> = [0, 250_000, 500_000, 1_000_000].map(|us| spread_start(0, planned, us)).to_vec();
        assert_eq!(begun, [BEGIN_TOGETHER, BEGIN_TOGETHER + 1000, BEGIN_TOGETHER + 2000, planned]);
        // The users of the previous phase are already active.
        assert_eq!(spread_start(4000, planned, 0), planned);
    }
}
