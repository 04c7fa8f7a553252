//! Opens a connection: the socket, then TLS.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use lastdrop_model::Micros;
use lastdrop_model::plan::TlsOptions;
use rustls::ClientConfig;

use super::{State, Transport, tls};
use crate::ids::Slot;
use crate::tls_config;
use crate::world::{NoConnection, World};

impl<W: World> Transport<W> {
    /// Opens the connection of a slot, from one of `sources` in turn if there are any. The inner result says whether
    /// connecting failed at once.
    ///
    /// # Errors
    /// This process cannot open another socket now.
    pub fn open(&mut self, slot: Slot, endpoint: u32, sources: &[IpAddr], now: Micros) -> io::Result<io::Result<()>> {
        let server = &mut self.endpoints[endpoint as usize];
        let address = server.next_address();
        let has_tunnel = server.connect_request.is_some();
        let source = match sources {
            [] => None,
            sources => {
                self.source_turn = self.source_turn.wrapping_add(1);
                Some(sources[self.source_turn % sources.len()])
            }
        };
        let (socket, connected) = match self.world.connect(&address, source, self.open_sockets) {
            Ok(socket) => (socket, Ok(())),
            Err(NoConnection::Connect(socket, e)) => (socket, Err(e)),
            Err(NoConnection::Socket(e)) => return Err(e),
        };
        let c = &mut self.connections[slot];
        c.served = 0;
        c.generation = c.generation.wrapping_add(1);
        c.endpoint = endpoint;
        c.dialed.begun = now;
        c.dialed.connected = 0;
        c.peer_closed = false;
        c.wire.opened();
        c.pace = None;
        c.state = State::Connecting;
        c.socket = Some(socket);
        if c.wire.is_shared() {
            self.shared.opened(slot, c.owner);
        }
        c.layers.tunnel = has_tunnel;
        self.open_sockets += 1;
        Ok(connected)
    }

    /// Starts reporting the events of the connection.
    ///
    /// # Errors
    /// The system cannot watch another socket.
    pub fn watch(&mut self, slot: Slot) -> io::Result<()> {
        let c = &self.connections[slot];
        let token = c.token(slot);
        c.socket.as_ref().map_or(Ok(()), |socket| self.world.watch(socket, token))
    }

    /// Sets up TLS on a new connection, if its server uses it.
    ///
    /// # Errors
    /// The reason why TLS cannot start.
    pub fn start_tls(
        &mut self,
        slot: Slot,
        config: Option<&Arc<ClientConfig>>,
        options: &TlsOptions,
    ) -> Result<(), String> {
        let c = &mut self.connections[slot];
        let e = &self.endpoints[c.endpoint as usize];
        if !e.tls {
            return Ok(());
        }
        let config = config.ok_or("TLS is not configured")?;
        let name = tls_config::server_name(&e.host, options).map_err(|e| e.to_string())?;
        let session = tls::TlsSession::new(config, name).map_err(|e| format!("TLS: {e}"))?;
        c.layers.tls = Some(Box::new(session));
        Ok(())
    }

    /// Marks a connection that failed at once; it fails in the loop's next turn. Failing it here would recurse through
    /// the next request of the same user.
    pub fn doom(&mut self, slot: Slot, why: Option<Box<str>>) {
        let c = &mut self.connections[slot];
        c.doomed = true;
        c.error = why;
        let token = c.token(slot);
        self.again.push(token);
    }
}

/// An error of the system without its number: "Connection refused" from "Connection refused (os error 111)".
#[must_use]
pub fn describe(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
