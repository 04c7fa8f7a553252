//! Numbers of connections and of requests in flight, as separate types so that they cannot be confused. Only `protocol`
//! converts one into the other.

/// The number of a connection slot in its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u32);

impl Slot {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a possible request in flight in its thread; each user has some of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamId(pub u32);

impl StreamId {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request in flight, and the connection that carries it.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    pub stream: StreamId,
    pub slot: Slot,
}
