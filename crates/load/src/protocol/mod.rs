//! Turns requests into bytes and bytes into answers: one file per version of HTTP.
//!
//! Everything that depends on the version is decided here: which connection carries a stream, whether it has room for
//! another one, and which stream a piece of input belongs to. So are what to write, what a connection sends and
//! receives on its own, and what is left of it after a stream. So are the number of streams of an open loop, and what a
//! TLS handshake offers.

mod h1;
mod h2;

use std::collections::BTreeSet;

use lastdrop_http::h2::{Limits, MOST_WINDOW};
use lastdrop_model::Micros;
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{HttpOptions, Load, Phase, Plan};
use lastdrop_model::request::Pick;

use crate::ids::{Slot, StreamId};
use crate::prepare::Request;
use crate::stream::Streams;

pub(crate) use h1::CONTINUE_PATIENCE_US;
pub use h1::Wire;
pub use h2::{EncodedRequest, SharedWire, Uncorked};

/// Most streams that a thread has in an open loop, whatever connections and streams multiply to.
const MOST_STREAMS: u32 = 1_000_000;

/// Most servers of a plan to which a user has a connection at the same time.
const MOST_SERVERS_OF_A_USER: u32 = 8;

/// Bytes that an HTTP/2 server may send ahead on a stream, unless the user says another number: Chrome's window.
const STREAM_WINDOW: u32 = 6 << 20;

/// Bytes that it may send ahead on a connection. As in Chrome, that is two and a half times a stream's window.
fn connection_window(stream_window: u32) -> u32 {
    (u64::from(stream_window) * 5 / 2).min(MOST_WINDOW as u64) as u32
}

/// The protocols that a TLS handshake offers (ALPN), the preferred first.
pub(crate) fn offered(http: &HttpOptions) -> Vec<Vec<u8>> {
    let names: &[&[u8]] = match (http.version, http.agreed) {
        (Version::Auto, Some(_)) => &[H2, b"http/1.1"],
        _ if http.is_http2() => &[H2],
        _ => &[b"http/1.1"],
    };
    names.iter().map(|name| name.to_vec()).collect()
}

const H2: &[u8] = b"h2";

/// The version of HTTP that ALPN agreed on.
pub(crate) fn agreed_version(agreed: Option<&[u8]>) -> Version {
    if agreed == Some(H2) { Version::Http2 } else { Version::Http11 }
}

/// Says why a connection whose server agreed on another version fails.
pub(crate) fn disagreement(http: &HttpOptions) -> String {
    match http.version {
        Version::Auto => {
            let (now, before) = if http.is_http2() { ("1.1", "2") } else { ("2", "1.1") };
            format!("the server agreed on HTTP/{now} (ALPN); before the run it was HTTP/{before} (--http auto)")
        }
        _ => "the server did not agree on HTTP/2 (ALPN); --http 1.1 speaks the older version".into(),
    }
}

/// What a connection of HTTP/2 may carry, given the requests after which it is not used again.
pub(crate) fn limits(http: &HttpOptions, requests_per_connection: u32) -> Limits {
    let stream_window = http.window.unwrap_or(STREAM_WINDOW);
    Limits {
        streams: http.most_streams(),
        requests: requests_per_connection,
        stream_window,
        connection_window: connection_window(stream_window),
    }
}

/// The streams that an open loop may have on this many connections: with HTTP/1 each needs its own.
pub(crate) fn open_streams(plan: &Plan, connections: u32) -> u32 {
    let http = &plan.http;
    if http.is_http2() && own_connections(plan).is_none() {
        connections.saturating_mul(http.most_streams()).min(MOST_STREAMS)
    } else {
        connections
    }
}

/// Most connections in an open loop, if that differs from the number of its streams.
pub(crate) fn open_bound(http: &HttpOptions, connections: u32) -> Option<u32> {
    http.is_http2().then_some(connections)
}

/// Connections of HTTP/2 that each user has for itself; `None` if users share connections. In a session a user is a
/// browser, with its own connection to each server. In an open loop it has one at a time.
pub(crate) fn own_connections(plan: &Plan) -> Option<u32> {
    let is_session = matches!(plan.pick, Pick::Session | Pick::Sessions);
    let shares = |phase: &Phase| matches!(phase.load, Load::Closed { connections: Some(_), .. });
    if !plan.http.is_http2() || !is_session || plan.phases.iter().any(shares) {
        return None;
    }
    let is_open = plan.phases.iter().any(|phase| matches!(phase.load, Load::Open { .. }));
    Some(if is_open { 1 } else { servers(plan).clamp(1, MOST_SERVERS_OF_A_USER) })
}

/// Number of the plan's servers.
fn servers(plan: &Plan) -> u32 {
    plan.requests.iter().map(|r| r.url.origin()).collect::<BTreeSet<_>>().len() as u32
}

/// Most connections that the users of a closed loop share. With HTTP/2 they always share: as many as their requests
/// fill, for each of the plan's servers.
pub(crate) fn closed_bound(plan: &Plan, load: &Load) -> Option<u32> {
    let Load::Closed { connections, .. } = load else { return None };
    let filled =
        || load.most_concurrent().div_ceil(plan.http.most_streams().max(1)).saturating_mul(servers(plan).max(1));
    let of_each = |each: u32| load.most_concurrent().saturating_mul(each);
    let of_all = || own_connections(plan).map_or_else(filled, of_each);
    connections.or_else(|| plan.http.is_http2().then(of_all))
}

/// Maps streams to connections.
#[derive(Debug)]
pub enum Carriers {
    /// HTTP/1: a stream has the number of its connection.
    Same,
    /// HTTP/2: the connection of each stream. The last slot never has one, and is that of a stream without.
    Shared(Vec<Slot>),
}

impl Carriers {
    /// The connection that carries a stream or will carry it.
    #[inline]
    pub fn slot_of(&self, stream: StreamId) -> Slot {
        match self {
            Carriers::Same => Slot(stream.0),
            Carriers::Shared(slots) => slots[stream.index()],
        }
    }

    /// Gives a stream the connection `found`, which has room for it. Returns the slot to use; with HTTP/1 that is the
    /// stream's own.
    #[inline]
    pub fn seat(&mut self, stream: StreamId, found: Slot) -> Slot {
        match self {
            Carriers::Same => Slot(stream.0),
            Carriers::Shared(slots) => {
                slots[stream.index()] = found;
                found
            }
        }
    }
}

/// The streams of a connection.
#[derive(Debug)]
pub enum StreamIds {
    One(Option<StreamId>),
    Many(std::vec::IntoIter<u32>),
}

impl Iterator for StreamIds {
    type Item = StreamId;

    #[inline]
    fn next(&mut self) -> Option<StreamId> {
        match self {
            StreamIds::One(one) => one.take(),
            StreamIds::Many(many) => many.next().map(StreamId),
        }
    }
}

/// How far writing has come on a connection.
#[derive(Debug)]
pub enum WriteProgress {
    /// Nothing is left to write: these requests are out.
    All(StreamIds),
    /// The rest waits for `100 Continue`.
    Held,
    More,
}

/// How far an answer has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerProgress {
    /// Whether any byte of it has arrived, and whether its head is complete.
    pub started: bool,
    pub has_head: bool,
    /// Valid once the head is complete.
    pub status: u16,
    pub http10: bool,
    pub head_bytes: u64,
    pub body_bytes: u64,
}

/// The exchanges in progress on a connection.
#[derive(Debug)]
pub enum HttpState {
    One(Wire),
    Two(Box<SharedWire>),
}

/// Connections and streams.
impl HttpState {
    /// Whether several requests share the connection.
    #[inline]
    pub fn is_shared(&self) -> bool {
        matches!(self, HttpState::Two(_))
    }

    /// Whether the loop is to write to the connection before it sleeps.
    #[inline]
    pub fn is_dirty(&self) -> bool {
        matches!(self, HttpState::Two(wire) if wire.is_dirty)
    }

    /// The streams that the busy connection in a slot carries.
    #[inline]
    pub fn streams(&self, slot: Slot) -> StreamIds {
        match self {
            HttpState::One(wire) => wire.streams(slot),
            HttpState::Two(wire) => StreamIds::Many(wire.keys().collect::<Vec<_>>().into_iter()),
        }
    }

    /// Whether the connection in a slot carries this stream, if it is busy.
    pub fn carries(&self, slot: Slot, stream: StreamId) -> bool {
        match self {
            HttpState::One(_) => slot.0 == stream.0,
            HttpState::Two(wire) => wire.keys().any(|key| key == stream.0),
        }
    }

    /// Resets the state for a new socket.
    pub fn opened(&mut self) {
        match self {
            HttpState::One(wire) => wire.restart(),
            HttpState::Two(wire) => wire.opened(),
        }
    }

    /// Resets the state once the tunnel or TLS is ready, with what ALPN `agreed` on. Returns false if that is another
    /// protocol.
    pub fn ready(&mut self, agreed: Option<&[u8]>) -> bool {
        match self {
            HttpState::One(wire) => {
                wire.restart();
                agreed != Some(H2)
            }
            HttpState::Two(_) => agreed == Some(H2),
        }
    }

    /// Whether no stream waits for an answer, once everything is written.
    #[inline]
    pub fn awaits_nothing(&self) -> bool {
        match self {
            HttpState::One(_) => false,
            HttpState::Two(wire) => wire.in_flight() == 0,
        }
    }

    /// Whether to read data that arrives while no request is in flight. With HTTP/1 that can only be the end, or a TLS
    /// ticket.
    #[inline]
    pub fn is_heard_idle(&self) -> bool {
        self.is_shared()
    }

    /// How far the answer to a request has come.
    #[inline]
    pub fn answer(&self, stream: StreamId) -> AnswerProgress {
        match self {
            HttpState::One(wire) => {
                let answer = wire.answer();
                AnswerProgress {
                    started: answer.started(),
                    has_head: answer.has_head(),
                    status: answer.status(),
                    http10: answer.http10(),
                    head_bytes: answer.head_bytes(),
                    body_bytes: answer.body_bytes(),
                }
            }
            HttpState::Two(wire) => wire.answer(stream),
        }
    }

    /// HTTP/1: writes the next request from its beginning.
    #[inline]
    pub fn restart(&mut self) {
        if let HttpState::One(wire) = self {
            wire.restart();
        }
    }

    /// HTTP/1: prepares for the answer to a request.
    #[inline]
    pub fn start(&mut self, head_request: bool) {
        if let HttpState::One(wire) = self {
            wire.answer_mut().start(head_request);
        }
    }

    /// Handles the end of the connection. Returns the stream whose answer that completes.
    pub fn completed_by_close(&mut self, slot: Slot) -> Option<StreamId> {
        match self {
            HttpState::One(wire) => wire.completed_by_close(slot),
            HttpState::Two(_) => None,
        }
    }
}

/// Output.
impl HttpState {
    /// Clears the request's bytes. Without new ones the prepared bytes are sent.
    pub fn clear(&mut self) {
        match self {
            HttpState::One(wire) => wire.clear(),
            HttpState::Two(wire) => wire.text.clear(),
        }
    }

    /// The buffer for a request in its HTTP/1.1 form.
    pub fn out(&mut self) -> &mut Vec<u8> {
        match self {
            HttpState::One(wire) => wire.out(),
            HttpState::Two(wire) => &mut wire.text,
        }
    }

    /// Pipelining: writes the same request once for each due time.
    pub fn repeat(&mut self, mut write: impl FnMut(&mut Vec<u8>)) {
        match self {
            HttpState::One(wire) => wire.repeat(write),
            HttpState::Two(wire) => write(&mut wire.text),
        }
    }

    /// Holds back everything beyond these bytes of the request until `100 Continue`. Plans over HTTP/2 ask for none.
    pub fn hold_at(&mut self, bytes: usize) {
        if let HttpState::One(wire) = self {
            wire.hold_at(bytes);
        }
    }

    /// Ends the holding back.
    pub fn release(&mut self) {
        if let HttpState::One(wire) = self {
            wire.release();
        }
    }

    /// Returns the bytes to write next, at most `piece`; empty if none may be written.
    #[inline]
    pub fn next<'b>(&'b self, slot: Slot, streams: &Streams, requests: &'b [Request], piece: usize) -> &'b [u8] {
        match self {
            HttpState::One(wire) => wire.next(slot, streams, requests, piece),
            HttpState::Two(wire) => wire.output(),
        }
    }

    /// Records that this many more bytes were written.
    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        match self {
            HttpState::One(wire) => wire.wrote(bytes),
            HttpState::Two(wire) => wire.wrote(bytes),
        }
    }

    /// Bytes written of a tunnel's CONNECT.
    #[inline]
    pub fn written(&self) -> usize {
        match self {
            HttpState::One(wire) => wire.written(),
            HttpState::Two(_) => 0,
        }
    }

    /// Bytes of a request that were written.
    pub fn bytes_of(&self, stream: StreamId) -> usize {
        match self {
            HttpState::One(wire) => wire.written(),
            HttpState::Two(wire) => wire.bytes_of(stream),
        }
    }

    #[inline]
    pub fn progress(&mut self, slot: Slot, streams: &Streams, requests: &[Request]) -> WriteProgress {
        match self {
            HttpState::One(wire) => wire.progress(slot, streams, requests),
            HttpState::Two(wire) => match wire.written() {
                Some(streams) => WriteProgress::All(StreamIds::Many(streams.into_iter())),
                None => WriteProgress::More,
            },
        }
    }
}

/// Pipelining, which only HTTP/1 has.
impl HttpState {
    /// Due times of requests pipelined behind the first one.
    #[inline]
    pub fn behind(&self) -> &[Micros] {
        match self {
            HttpState::One(wire) => wire.behind(),
            HttpState::Two(_) => &[],
        }
    }

    /// Sets the due times of the requests that follow the next one.
    pub fn put_behind(&mut self, dues: impl IntoIterator<Item = Micros>) {
        if let HttpState::One(wire) = self {
            wire.put_behind(dues);
        }
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::plan::Arrival;
    use lastdrop_model::request::RequestSpec;

    use super::*;

    fn plan(version: Version, agreed: Option<Version>) -> Plan {
        let mut plan = Plan::new("https://a.test/".parse().expect("valid"), 1);
        (plan.http.version, plan.http.agreed) = (version, agreed);
        plan
    }

    #[test]
    fn a_handshake_offers_what_the_run_speaks_and_both_versions_under_auto() {
        let offers = |version, agreed| offered(&plan(version, agreed).http);
        let (one, two) = (b"http/1.1".to_vec(), b"h2".to_vec());
        assert_eq!(offers(Version::Http11, None), std::slice::from_ref(&one));
        assert_eq!(offers(Version::Http2, None), std::slice::from_ref(&two));
        // A server that changes its mind can say so: the connection then fails by that name.
        assert_eq!(offers(Version::Auto, Some(Version::Http2)), [two.clone(), one.clone()]);
        assert_eq!(offers(Version::Auto, Some(Version::Http11)), [two, one]);
    }

    #[test]
    fn a_connection_is_ready_if_its_server_agreed_on_the_version_of_the_run() {
        assert_eq!(agreed_version(Some(b"h2")), Version::Http2);
        assert_eq!([agreed_version(Some(b"http/1.1")), agreed_version(None)], [Version::Http11; 2]);
        let mut one = HttpState::One(Wire::default());
        let mut two = HttpState::Two(Box::new(SharedWire::new(limits(&plan(Version::Http2, None).http, 1))));
        let agreed = [Some(&b"h2"[..]), Some(b"http/1.1"), None];
        assert_eq!(agreed.map(|agreed| one.ready(agreed)), [false, true, true]);
        assert_eq!(agreed.map(|agreed| two.ready(agreed)), [true, false, false]);
        let says = |agreed| disagreement(&plan(Version::Auto, Some(agreed)).http);
        assert!(
            says(Version::Http2).contains("agreed on HTTP/1.1") && says(Version::Http11).contains("agreed on HTTP/2")
        );
    }

    #[test]
    fn a_user_of_a_session_has_a_connection_to_each_server_unless_users_share_some() {
        let mut plan = plan(Version::Http2, None);
        for url in ["https://a.test/more", "https://b.test/"] {
            plan.requests.push(RequestSpec::get(url.parse().expect("valid")));
        }
        let closed = |connections| Load::Closed { users: 250, to_users: None, connections };
        plan.phases[0].load = closed(None);
        // Without a session three connections of 100 streams hold 250 users, for each of two servers.
        assert_eq!((own_connections(&plan), closed_bound(&plan, &closed(None))), (None, Some(6)));
        plan.pick = Pick::Session;
        assert_eq!((own_connections(&plan), closed_bound(&plan, &closed(None))), (Some(2), Some(500)));
        plan.phases[0].load = closed(Some(7));
        assert_eq!((own_connections(&plan), closed_bound(&plan, &closed(Some(7)))), (None, Some(7)));
        plan.phases[0].load = Load::open(10.0, Arrival::Uniform, 20);
        assert_eq!((own_connections(&plan), open_streams(&plan, 20)), (Some(1), 20));
        plan.pick = Pick::Weighted;
        assert_eq!((own_connections(&plan), open_streams(&plan, 20)), (None, 2000));
        plan.http.version = Version::Http11;
        assert_eq!((closed_bound(&plan, &closed(None)), open_streams(&plan, 20)), (None, 20));
    }
}
