//! Numbers of connections and of requests in flight: each a type of its own, so that none is taken for the other. Only `protocol`
//! makes one out of the other.

/// The number of a place for a connection in its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u32);

impl Slot {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a request that may be in flight in its thread; each user has some of its own.
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
pub struct Place {
    pub stream: StreamId,
    pub slot: Slot,
}
