//! What goes out on a connection: a tunnel's CONNECT, TLS records, the bytes of a request.

use std::io;

use super::Transport;
use crate::prepare::Request;
use crate::protocol::bytes_of;
use crate::stream::Stream;
use crate::world::{Outgoing, World};

/// What became of an attempt to write.
pub(crate) enum Written {
    All,
    /// No room now; some bytes may have gone.
    Blocked {
        some: bool,
    },
    /// With a limited bandwidth: no more for now.
    Enough,
    Error(io::Error),
}

impl<W: World> Transport<W> {
    /// Writes what the state of a connection has to write, at most `piece` bytes at once. Says how many bytes of HTTP went.
    pub fn send(&mut self, slot: u32, stream: &Stream, requests: &[Request], piece: usize) -> (Written, usize) {
        let i = slot as usize;
        let c = &mut self.connections[i];
        let Some(socket) = &c.socket else { return (Written::All, 0) };
        let handshaking = c.layers.tls.as_ref().is_some_and(|t| t.handshaking());
        let mut counted = 0;
        let mut result = Written::All;
        if c.layers.tunnel {
            let bytes = self.endpoints[c.endpoint as usize].connect_request.clone().unwrap_or_default();
            while c.wire.written < bytes.len() {
                match self.world.send(socket, &bytes[c.wire.written..]) {
                    Ok(n) => {
                        c.wire.written += n;
                        counted += n;
                    }
                    Err(e) => {
                        result = blocked_or(e, counted > 0);
                        break;
                    }
                }
            }
        } else if let Some(mut tls) = c.layers.tls.take() {
            let bytes = bytes_of(&c.wire, stream, requests);
            let end = bytes.len().min(c.wire.hold_at);
            let mut at = c.wire.written;
            let mut raw = 0;
            loop {
                let mut took = 0;
                if !handshaking && at < end {
                    took = tls.write(&bytes[at..end.min(at.saturating_add(piece))]);
                    at += took;
                    counted += took;
                }
                let mut outgoing = Outgoing::new(&mut self.world, socket);
                let flushed = tls.flush(&mut outgoing);
                raw += outgoing.sent;
                match flushed {
                    Ok(()) if handshaking || at >= end || took == 0 => break,
                    Ok(()) if piece != usize::MAX => {
                        result = Written::Enough;
                        break;
                    }
                    Ok(()) => {}
                    Err(e) => {
                        // A hello that does not fit is on its way all the same: what comes meanwhile has to be read.
                        result = blocked_or(e, raw > 0);
                        break;
                    }
                }
            }
            c.wire.written = at;
            c.layers.tls = Some(tls);
        } else {
            let bytes = bytes_of(&c.wire, stream, requests);
            let end = bytes.len().min(c.wire.hold_at);
            let mut at = c.wire.written;
            while at < end {
                let to = end.min(at.saturating_add(piece));
                match self.world.send(socket, &bytes[at..to]) {
                    Ok(n) => {
                        at += n;
                        counted += n;
                        if piece != usize::MAX && at < end {
                            result = Written::Enough;
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
            c.wire.written = at;
        }
        (result, counted)
    }
}

fn blocked_or(e: io::Error, some: bool) -> Written {
    if e.kind() == io::ErrorKind::WouldBlock { Written::Blocked { some } } else { Written::Error(e) }
}

pub(crate) fn is_reset(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE))
}
