//! Plays recorded requests: each has its time (or its user), its method and its target.
//!
//! They arrive in batches through a channel from a reader and are taken as they come due. So memory depends neither on
//! their number nor on how long the server stalls. A request counts as due when it is taken. At the end of the run the
//! remaining ones are read only to count them.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lastdrop_model::Micros;

use crate::logged::LoggedAnswer;
use crate::tape_file::TapeProgress;

/// Most requests that a closed loop reads ahead to find the next one of each user.
const MOST_AHEAD: usize = 50_000;
/// Wait before a reader that is late is asked again.
pub(crate) const BEHIND_US: Micros = 500;
/// Wait of a closed-loop user who has nothing to do yet.
pub(crate) const NOTHING_YET_US: Micros = 2_000;
/// While the reader sends nothing, how often to check whether the run is over.
const PATIENCE: Duration = Duration::from_millis(50);

/// A recorded request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// Since the start of the phase; unused in a closed loop.
    pub due: Micros,
    /// Index of the plan's request that it belongs to, which gives its class, header fields and server.
    pub request: u32,
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// Value of the Host field if it is not the server's own.
    pub host: Option<String>,
    /// Closed loop: number of the recorded client. One user sends all requests of a client, one after the other.
    pub who: u64,
    /// Position in the recording, from 1.
    pub number: u64,
    /// The recorded answer, if known.
    pub logged: Option<LoggedAnswer>,
}

/// A source of recorded requests.
#[derive(Debug)]
pub struct Tape {
    played: Mutex<Option<Receiver<Vec<RecordedRequest>>>>,
    behind: Arc<AtomicU64>,
    /// How far it was played, if its length is known.
    pub(crate) progress: Option<TapeProgress>,
}

impl Tape {
    /// At the end of the run `behind` receives the number of requests played: all before the first one that was not
    /// sent.
    #[must_use]
    pub fn new(played: Receiver<Vec<RecordedRequest>>, behind: Arc<AtomicU64>) -> Tape {
        Tape { played: Mutex::new(Some(played)), behind, progress: None }
    }

    pub(crate) fn of_which_is_known(self, progress: TapeProgress) -> Tape {
        Tape { progress: Some(progress), ..self }
    }

    /// Hands the tape to the one thread that plays it.
    pub(crate) fn take(&self) -> Option<TapeReader> {
        Some(TapeReader {
            played: self.played.lock().ok()?.take()?,
            next: VecDeque::new(),
            of_users: Vec::new(),
            ahead: 0,
            ended: false,
            hash: RandomState::new(),
            last: 0,
            behind: Arc::clone(&self.behind),
        })
    }
}

/// The playing end of a tape.
#[derive(Debug)]
pub(crate) struct TapeReader {
    played: Receiver<Vec<RecordedRequest>>,
    next: VecDeque<RecordedRequest>,
    /// Closed loop: requests read ahead, by user.
    of_users: Vec<VecDeque<RecordedRequest>>,
    ahead: usize,
    ended: bool,
    hash: RandomState,
    /// Number of the last request taken.
    last: u64,
    behind: Arc<AtomicU64>,
}

impl TapeReader {
    /// Stores how many requests have been played.
    pub fn tell(&mut self) {
        self.fill();
        let ahead = self.next.front().into_iter().chain(self.of_users.iter().filter_map(VecDeque::front));
        let first = ahead.map(|p| p.number).min();
        self.behind.store(first.map_or(self.last, |first| first - 1), Ordering::Relaxed);
    }

    /// Fetches the next batch if it has arrived and none is left.
    fn fill(&mut self) {
        while self.next.is_empty() && !self.ended {
            match self.played.try_recv() {
                Ok(some) => self.next.extend(some),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.ended = true,
            }
        }
    }

    /// When the next request is due; `None` if none has arrived.
    pub fn next_due(&mut self) -> Option<Micros> {
        self.fill();
        self.next.front().map(|p| p.due)
    }

    /// Takes the next request, if it has arrived.
    pub fn take(&mut self) -> Option<RecordedRequest> {
        let played = self.next.pop_front()?;
        self.last = played.number;
        Some(played)
    }

    /// Whether all requests have been taken.
    pub fn over(&self) -> bool {
        self.ended && self.next.is_empty() && self.ahead == 0
    }

    /// Closed loop: takes the next request of user `user` of `users`.
    pub fn of_user(&mut self, user: usize, users: usize) -> Option<RecordedRequest> {
        self.of_users.resize_with(self.of_users.len().max(users), VecDeque::new);
        loop {
            if let Some(played) = self.of_users.get_mut(user)?.pop_front() {
                self.ahead -= 1;
                self.last = self.last.max(played.number);
                return Some(played);
            }
            if self.ahead >= MOST_AHEAD {
                return None;
            }
            self.fill();
            let played = self.next.pop_front()?;
            let own = (self.hash.hash_one(played.who) % users.max(1) as u64) as usize;
            self.of_users[own].push_back(played);
            self.ahead += 1;
        }
    }

    /// Passes each request due before `until` to `count`; none of them will be sent.
    pub fn rest(&mut self, until: Micros, stop: impl Fn() -> bool, mut count: impl FnMut(&RecordedRequest)) {
        loop {
            while let Some(played) = self.next.front() {
                if played.due >= until {
                    return;
                }
                count(played);
                self.next.pop_front();
            }
            match self.played.recv_timeout(PATIENCE) {
                Ok(some) => self.next.extend(some),
                Err(RecvTimeoutError::Timeout) if !stop() => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn played(due: Micros, who: u64) -> RecordedRequest {
        RecordedRequest {
            due,
            request: 0,
            method: "GET".into(),
            target: "/".into(),
            host: None,
            who,
            number: due + 1,
            logged: None,
        }
    }

    #[test]
    fn requests_of_one_are_those_of_one_user_in_their_order() {
        let (out, tape) = sync_channel(100);
        for i in 0..100u64 {
            out.send(vec![played(i, i % 7)]).expect("room");
        }
        drop(out);
        let mut reader = Tape::new(tape, Arc::default()).take().expect("once");
        let mut last = [None; 7];
        let mut users = [None; 7];
        for round in 0..400 {
            let user = round % 3;
            if let Some(p) = reader.of_user(user, 3) {
                let who = p.who as usize;
                assert!(last[who] < Some(p.due) && users[who].is_none_or(|u| u == user));
                (last[who], users[who]) = (Some(p.due), Some(user));
            }
        }
        assert!(reader.over(), "all were played");
    }

    #[test]
    fn a_user_who_has_nothing_does_not_read_everything() {
        let (out, tape) = sync_channel(1);
        let reading = std::thread::spawn(move || {
            let mut sent = 0;
            while out.send(vec![played(0, 1); 1000]).is_ok() && sent < 1000 {
                sent += 1;
            }
            sent
        });
        let mut reader = Tape::new(tape, Arc::default()).take().expect("once");
        let own = (reader.hash.hash_one(1u64) % 2) as usize;
        for _ in 0..1000 {
            assert!(reader.of_user(1 - own, 2).is_none());
        }
        assert!(reader.ahead <= MOST_AHEAD);
        drop(reader);
        assert!(reading.join().expect("ends") < 100);
    }
}
