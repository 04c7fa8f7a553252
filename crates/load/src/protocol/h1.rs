//! HTTP/1: one request at a time on a connection (or a few of them, pipelined), one answer after the other.

use lastdrop_http::ResponseParser;
use lastdrop_model::Micros;

use crate::prepare::Request;
use crate::stream::Stream;

/// After this without `100 Continue` the body is sent all the same (curl's patience).
pub(crate) const CONTINUE_PATIENCE_US: Micros = 1_000_000;

/// What is said on a connection now.
#[derive(Debug)]
pub struct Wire {
    pub parser: ResponseParser,
    /// The bytes of a changing request; empty where they are the prepared ones.
    pub out: Vec<u8>,
    /// Bytes of the request written, and how many may be for now.
    pub written: usize,
    pub hold_at: usize,
    /// Due times of further requests on this connection, pipelined behind the first.
    pub pipelined: Vec<Micros>,
}

impl Default for Wire {
    fn default() -> Wire {
        Wire {
            parser: ResponseParser::default(),
            out: Vec::new(),
            written: 0,
            hold_at: usize::MAX,
            pipelined: Vec::new(),
        }
    }
}

/// The bytes of the request in flight.
#[inline]
pub(crate) fn bytes_of<'b>(wire: &'b Wire, stream: &Stream, requests: &'b [Request]) -> &'b [u8] {
    if wire.out.is_empty() { requests[stream.request as usize].wire.as_deref().unwrap_or_default() } else { &wire.out }
}
