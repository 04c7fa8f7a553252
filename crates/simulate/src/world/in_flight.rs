//! The client's requests in flight, in the order of sending: all have the same timeout, so the oldest times out first.

use super::RequestId;

/// The end of the list.
const NOBODY: RequestId = RequestId::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct RequestInFlight {
    pub due_us: f64,
    pub sent_us: f64,
    pub phase: u16,
    older: RequestId,
    newer: RequestId,
}

/// The requests in flight, by their number. The list runs through them, so that any of them leaves it in O(1).
#[derive(Debug)]
pub(super) struct InFlight {
    requests: Vec<RequestInFlight>,
    oldest: RequestId,
    newest: RequestId,
    count: usize,
}

impl InFlight {
    pub fn new() -> InFlight {
        InFlight { requests: Vec::new(), oldest: NOBODY, newest: NOBODY, count: 0 }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the oldest request, and when it was sent.
    #[inline]
    pub fn oldest(&self) -> Option<(RequestId, f64)> {
        self.requests.get(self.oldest as usize).map(|request| (self.oldest, request.sent_us))
    }

    #[inline]
    pub fn insert(&mut self, id: RequestId, due_us: f64, sent_us: f64, phase: u16) {
        let request = RequestInFlight { due_us, sent_us, phase, older: self.newest, newer: NOBODY };
        if self.requests.len() <= id as usize {
            self.requests.resize(id as usize + 1, request);
        }
        self.requests[id as usize] = request;
        match self.requests.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = id,
            None => self.oldest = id,
        }
        self.newest = id;
        self.count += 1;
    }

    #[inline]
    pub fn remove(&mut self, id: RequestId) -> RequestInFlight {
        let request = self.requests[id as usize];
        match self.requests.get_mut(request.older as usize) {
            Some(older) => older.newer = request.newer,
            None => self.oldest = request.newer,
        }
        match self.requests.get_mut(request.newer as usize) {
            Some(newer) => newer.older = request.older,
            None => self.newest = request.older,
        }
        self.count -= 1;
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_in_any_order_and_the_oldest_is_known() {
        let mut all = InFlight::new();
        (0..4).for_each(|id| all.insert(id, 0.0, f64::from(id), 0));
        let mut oldest = Vec::new();
        for id in [2, 0, 1] {
            all.remove(id);
            oldest.push(all.oldest());
        }
        assert_eq!(oldest, [Some((0, 0.0)), Some((1, 1.0)), Some((3, 3.0))]);
        all.insert(0, 8.0, 9.0, 1);
        assert_eq!((all.remove(3).sent_us, all.oldest(), all.count()), (3.0, Some((0, 9.0)), 1));
        assert_eq!((all.remove(0).phase, all.oldest(), all.count()), (1, None, 0));
    }
}
