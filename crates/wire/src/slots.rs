//! Chooses which connection to close at the limit.
//!
//! A limit alone would let a client that opens that many silent connections lock all others out. So an idle connection
//! is closed when a new one needs its slot. Connections without authentication go first, and among them the one idle
//! for longest.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open connections.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<SlotTable>);

#[derive(Debug, Default)]
struct SlotTable {
    open: BTreeMap<u64, Connection>,
    /// Counts connections, and each time one becomes idle.
    turn: u64,
}

#[derive(Debug)]
struct Connection {
    /// To end the connection from another thread.
    socket: TcpStream,
    is_trusted: bool,
    /// The turn at which it became idle; `None` while it is being served.
    idle_since: Option<u64>,
}

impl SlotTable {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }
}

impl Slots {
    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of `most` slots, closing an idle connection if necessary; `None` if all are busy.
    pub(crate) fn take(self: &Arc<Slots>, socket: &TcpStream, most: usize) -> Option<Slot> {
        let socket = socket.try_clone().ok()?;
        let mut table = self.table();
        while table.open.len() >= most {
            let idle = table.open.iter().filter_map(|(id, c)| Some((c.is_trusted, c.idle_since?, *id)));
            let (.., id) = idle.min()?;
            // Its thread reads the end of the connection, and ends.
            if let Some(given_up) = table.open.remove(&id) {
                let _ = given_up.socket.shutdown(Shutdown::Both);
            }
        }
        let id = table.next_turn();
        table.open.insert(id, Connection { socket, is_trusted: false, idle_since: Some(id) });
        Some(Slot { id, slots: Arc::clone(self) })
    }
}

/// The slot of a connection, freed when dropped. It starts as idle.
#[derive(Debug)]
pub struct Slot {
    id: u64,
    slots: Arc<Slots>,
}

impl Slot {
    /// Marks the client as authenticated: others are closed before it.
    pub fn trust(&self) {
        if let Some(connection) = self.slots.table().open.get_mut(&self.id) {
            connection.is_trusted = true;
        }
    }

    /// Marks the connection as busy while the guard lives: it is not closed.
    #[must_use]
    pub fn busy(&self) -> BusyGuard<'_> {
        if let Some(connection) = self.slots.table().open.get_mut(&self.id) {
            connection.idle_since = None;
        }
        BusyGuard(self)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.table().open.remove(&self.id);
    }
}

/// Keeps a connection from being closed.
#[derive(Debug)]
pub struct BusyGuard<'a>(&'a Slot);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.0.slots.table();
        let turn = table.next_turn();
        if let Some(connection) = table.open.get_mut(&self.0.id) {
            connection.idle_since = Some(turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    /// Both ends of a connection.
    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
        client.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        (client, listener.accept().expect("a connection").0)
    }

    fn is_open(client: &TcpStream) -> bool {
        matches!((&*client).read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock)
    }

    #[test]
    fn the_one_that_is_idle_for_longest_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let slots = Arc::new(Slots::default());
        let pairs: Vec<_> = (0..5).map(|_| pair(&listener)).collect();
        let clients: Vec<&TcpStream> = pairs.iter().map(|(client, _)| client).collect();
        let trusted = slots.take(&pairs[0].1, 3).expect("a slot");
        trusted.trust();
        let was_busy = slots.take(&pairs[1].1, 3).expect("a slot");
        let _idle = slots.take(&pairs[2].1, 3).expect("a slot");
        drop(was_busy.busy());
        let third = slots.take(&pairs[3].1, 3).expect("a slot");
        assert!(!is_open(clients[2]), "idle for longest, and nobody knows who it is");
        let _third_works = third.busy();
        let fourth = slots.take(&pairs[4].1, 3).expect("a slot");
        assert!(!is_open(clients[1]) && is_open(clients[0]) && is_open(clients[3]) && is_open(clients[4]));
        // Trusted connections are closed last, and busy ones never.
        let _fourth_works = fourth.busy();
        let (client, server) = pair(&listener);
        let _fifth = slots.take(&server, 3).expect("a slot");
        assert!(!is_open(clients[0]) && is_open(&client));
        let _fifth_works = _fifth.busy();
        assert!(slots.take(&pair(&listener).1, 3).is_none(), "all are at work");
    }
}
