//! Requests that are due and wait for a descriptor or a connection, and the users who are free.

use std::collections::VecDeque;

use lastdrop_model::Micros;

use crate::ids::Slot;
use crate::prepare::Request;
use crate::stream::FollowUp;

/// The limit on connections, and which of them are idle.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Most connections that this thread may have open in this phase; `u64::MAX` without a limit.
    pub most: u64,
    /// Slots of connections that had room for a request when they were listed, each once.
    pub idle: Vec<Slot>,
    pub is_listed: Vec<bool>,
    /// The queue is being served.
    pub serving: bool,
    /// The queue used up the time of a turn and continues after the next poll.
    pub goes_on: bool,
    /// When the request that is being sent joined the queue, and whether it was refused before.
    pub joined: Option<Micros>,
    pub again: bool,
}

impl Pool {
    pub fn new(slots: usize) -> Pool {
        Pool {
            most: u64::MAX,
            idle: Vec::new(),
            is_listed: vec![false; slots],
            serving: false,
            goes_on: false,
            joined: None,
            again: false,
        }
    }

    /// Sets the limit of a new phase.
    pub fn limit(&mut self, most: Option<u64>) {
        self.most = most.unwrap_or(u64::MAX);
    }

    #[inline]
    pub fn is_bounded(&self) -> bool {
        self.most != u64::MAX
    }

    /// Whether more connections are open than this phase may have.
    pub fn is_exceeded(&self, open: u64) -> bool {
        open > self.most
    }

    /// Time that the request being sent spent in the queue.
    pub fn blocked(&self, now: Micros) -> Micros {
        self.joined.map_or(0, |joined| now.saturating_sub(joined))
    }
}

/// A request that is due and has no descriptor yet, or queues for a connection.
#[derive(Debug)]
pub struct WaitingRequest {
    pub(crate) user: u32,
    pub due: Micros,
    pub phase: u16,
    pub request: u32,
    pub(crate) follow_up: Option<Box<FollowUp>>,
    /// When it joined the queue.
    pub(crate) joined: Option<Micros>,
}

impl WaitingRequest {
    /// Index of the server that the request is for.
    pub(crate) fn endpoint(&self, requests: &[Request]) -> usize {
        let detour = self.follow_up.as_ref().and_then(|e| e.detour.as_ref());
        detour.map_or(requests[self.request as usize].endpoint, |d| d.endpoint)
    }
}

/// Requests that wait for a connection, and the users who are free.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Requests that are due and have no descriptor, or no connection.
    pub stranded: VecDeque<WaitingRequest>,
    /// HTTP/2: requests that were sent and surely not processed. They count as sent, and are sent once more, on a
    /// connection that was opened after `joined`: the others may be about to end, too.
    pub refused: VecDeque<WaitingRequest>,
    pub no_socket_until: Micros,
    /// Closed loop: the limit on connections, if there is one.
    pub pool: Pool,
    /// Open loop: free users by the server that they are connected to, and those without a connection.
    pub idle: Vec<Vec<u32>>,
    pub closed: Vec<u32>,
    /// Open loop: whether a request found no free user, and when a user became free again.
    pub exhausted: bool,
    pub dispatching: bool,
    pub freed_at: Micros,
}

impl Backlog {
    pub fn new(slots: usize, endpoints: usize) -> Backlog {
        Backlog {
            stranded: VecDeque::new(),
            refused: VecDeque::new(),
            no_socket_until: 0,
            pool: Pool::new(slots),
            idle: vec![Vec::new(); endpoints],
            closed: Vec::new(),
            exhausted: false,
            dispatching: false,
            freed_at: 0,
        }
    }

    /// Whether the queue for connections is not empty, so that no connection is idle.
    pub fn line_stands(&self) -> bool {
        self.pool.is_bounded() && !self.stranded.is_empty()
    }

    /// Takes a free user: preferably one connected to the server, then one without a connection, then any other.
    pub fn take_user(&mut self, endpoint: usize) -> Option<u32> {
        let own = self.idle[endpoint].pop();
        own.or_else(|| self.closed.pop()).or_else(|| self.idle.iter_mut().find_map(Vec::pop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_connection_to_the_server_comes_first_and_who_has_one_elsewhere_last() {
        let mut waiting = Backlog::new(4, 2);
        waiting.idle = vec![vec![1], vec![2, 3]];
        waiting.closed = vec![0];
        let order: Vec<Option<u32>> = (0..5).map(|_| waiting.take_user(0)).collect();
        assert_eq!(order, [Some(1), Some(0), Some(3), Some(2), None]);
    }

    #[test]
    fn a_pool_without_a_bound_is_never_exceeded() {
        let mut pool = Pool::new(1);
        assert!(!pool.is_bounded() && !pool.is_exceeded(1_000_000));
        pool.limit(Some(2));
        assert!(pool.is_bounded() && pool.is_exceeded(3) && !pool.is_exceeded(2));
        pool.joined = Some(10);
        assert_eq!((pool.blocked(25), pool.blocked(5)), (15, 0));
    }
}
