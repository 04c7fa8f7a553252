//! Writes to a connection: a tunnel's CONNECT, TLS records, the bytes of a request.

use std::io;

use super::Transport;
use crate::ids::Slot;
use crate::prepare::Request;
use crate::stream::Streams;
use crate::world::{SocketWriter, World};

/// The result of an attempt to write.
pub(crate) enum WriteOutcome {
    All,
    /// The socket accepts no more now; `some` says whether any bytes have gone.
    Blocked {
        some: bool,
    },
    /// With a limited bandwidth: no more for now.
    Enough,
    /// The socket would accept more, but other connections have waited long enough.
    Later,
    Error(io::Error),
}

/// Most writes in a row on one connection: a server that reads without end, or byte by byte, must not starve the
/// others.
pub(crate) const MOST_WRITES: usize = 16;

impl<W: World> Transport<W> {
    /// Writes what the state of a connection requires, at most `piece` bytes at once. Returns how many bytes of HTTP
    /// went.
    pub fn send(&mut self, slot: Slot, streams: &Streams, requests: &[Request], piece: usize) -> (WriteOutcome, usize) {
        let c = &mut self.connections[slot];
        let Some(socket) = &c.socket else { return (WriteOutcome::All, 0) };
        let handshaking = c.layers.tls.as_ref().is_some_and(|t| t.handshaking());
        let mut counted = 0;
        let mut result = WriteOutcome::All;
        if c.layers.tunnel {
            let bytes = self.endpoints[c.endpoint as usize].connect_request.clone().unwrap_or_default();
            let mut writes = 0..MOST_WRITES;
            while c.wire.written() < bytes.len() {
                if writes.next().is_none() {
                    result = WriteOutcome::Later;
                    break;
                }
                match self.world.send(socket, &bytes[c.wire.written()..]) {
                    Ok(n) => {
                        c.wire.wrote(n);
                        counted += n;
                    }
                    Err(e) => {
                        result = blocked_or(e, counted > 0);
                        break;
                    }
                }
            }
        } else if let Some(mut tls) = c.layers.tls.take() {
            let mut raw = 0;
            let mut left = MOST_WRITES;
            loop {
                let mut took = 0;
                if !handshaking {
                    let bytes = c.wire.next(slot, streams, requests, piece);
                    if !bytes.is_empty() {
                        took = tls.write(bytes);
                        c.wire.wrote(took);
                        counted += took;
                    }
                }
                let mut outgoing = SocketWriter::new(&mut self.world, socket).at_most(left);
                let flushed = tls.flush(&mut outgoing);
                raw += outgoing.sent;
                left = outgoing.left;
                match flushed {
                    Ok(()) if handshaking || took == 0 || c.wire.next(slot, streams, requests, piece).is_empty() => {
                        break;
                    }
                    Ok(()) if piece != usize::MAX => {
                        result = WriteOutcome::Enough;
                        break;
                    }
                    Ok(()) => {}
                    Err(_) if left == 0 => {
                        result = WriteOutcome::Later;
                        break;
                    }
                    Err(e) => {
                        // A partly written handshake message is already on its way: what arrives meanwhile has to be
                        // read.
                        result = blocked_or(e, raw > 0);
                        break;
                    }
                }
            }
            c.layers.tls = Some(tls);
        } else {
            let mut writes = 0..MOST_WRITES;
            loop {
                let bytes = c.wire.next(slot, streams, requests, piece);
                if bytes.is_empty() {
                    break;
                }
                if writes.next().is_none() {
                    result = WriteOutcome::Later;
                    break;
                }
                match self.world.send(socket, bytes) {
                    Ok(n) => {
                        c.wire.wrote(n);
                        counted += n;
                        if piece != usize::MAX && !c.wire.next(slot, streams, requests, piece).is_empty() {
                            result = WriteOutcome::Enough;
                            break;
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        result = blocked_or(e, counted > 0);
                        break;
                    }
                }
            }
        }
        (result, counted)
    }
}

fn blocked_or(e: io::Error, some: bool) -> WriteOutcome {
    if e.kind() == io::ErrorKind::WouldBlock { WriteOutcome::Blocked { some } } else { WriteOutcome::Error(e) }
}

pub(crate) fn is_reset(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE))
}
