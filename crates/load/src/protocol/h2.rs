//! HTTP/2: several requests at once on a connection, answered in any order. A stream's key is its number in the thread.

use lastdrop_http::h2::{Body, Connection, Limits, encode_request};
use lastdrop_model::Micros;
use memchr::memmem;

use super::AnswerProgress;
use crate::ids::StreamId;
use crate::prepare::Request;

/// A request in its HTTP/2 form.
#[derive(Debug)]
pub struct EncodedRequest {
    /// The header block.
    pub block: Box<[u8]>,
    pub body: Option<Body>,
}

impl EncodedRequest {
    /// Encodes a request of which the HTTP/1.1 form is given.
    pub fn new(text: &[u8], https: bool) -> Result<EncodedRequest, String> {
        let mut block = Vec::new();
        let body = encode(text, https, &mut block).map_err(|e| e.to_string())?;
        Ok(EncodedRequest { block: block.into(), body })
    }
}

fn encode(text: &[u8], https: bool, block: &mut Vec<u8>) -> Result<Option<Body>, lastdrop_http::ProtocolError> {
    let end = memmem::find(text, b"\r\n\r\n").map_or(text.len(), |at| at + 4);
    encode_request(&text[..end], https, block)?;
    Ok((end < text.len()).then(|| Body::from(&text[end..])))
}

/// A request that is encoded, and whose first byte has not been handed to the socket.
#[derive(Debug, Clone, Copy)]
pub struct Uncorked {
    pub stream: StreamId,
    /// How long it waited for a user or a connection.
    pub blocked: Option<Micros>,
    /// It was sent before, and is counted.
    pub again: bool,
}

/// An answer that has begun or may begin.
#[derive(Debug, Clone, Copy)]
struct Progress {
    key: u32,
    answer: AnswerProgress,
    sent_bytes: usize,
}

/// The exchanges in progress on a connection of HTTP/2.
#[derive(Debug)]
pub struct SharedWire {
    limits: Limits,
    pub connection: Connection,
    /// The request to begin, in its HTTP/1.1 form; empty if the prepared one is used.
    pub text: Vec<u8>,
    block: Vec<u8>,
    answers: Vec<Progress>,
    /// The answer that ended last.
    ended: Option<Progress>,
    /// Requests begun since the last write.
    pub corked: Vec<Uncorked>,
    /// Whether the loop is to write before it sleeps.
    pub is_dirty: bool,
    /// Whether the loop gives the server time to allow streams again.
    pub bears_no_streams: bool,
}

impl SharedWire {
    pub fn new(limits: Limits) -> SharedWire {
        SharedWire {
            limits,
            connection: Connection::new(limits),
            text: Vec::new(),
            block: Vec::new(),
            answers: Vec::new(),
            ended: None,
            corked: Vec::new(),
            is_dirty: false,
            bears_no_streams: false,
        }
    }

    pub fn opened(&mut self) {
        self.connection = Connection::new(self.limits);
        self.answers.clear();
        self.ended = None;
        self.corked.clear();
        self.is_dirty = false;
        self.bears_no_streams = false;
    }

    /// Whether nothing is in flight, and the server allows no streams.
    #[inline]
    pub fn allows_nothing(&self) -> bool {
        self.connection.in_flight() == 0 && self.connection.peer_streams() == Some(0)
    }

    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.connection.keys()
    }

    #[inline]
    pub fn in_flight(&self) -> usize {
        self.connection.in_flight()
    }

    #[inline]
    pub fn has_room(&self) -> bool {
        self.connection.has_room()
    }

    /// Begins a request: the one in `text`, or the prepared one. Returns its bytes.
    ///
    /// # Errors
    /// The request has no HTTP/2 form.
    pub fn begin(
        &mut self,
        stream: StreamId,
        request: &Request,
        https: bool,
        head_request: bool,
        wants_fields: bool,
    ) -> Result<usize, lastdrop_http::ProtocolError> {
        let prepared = request.encoded.as_ref().filter(|_| self.text.is_empty());
        let (block, body) = match prepared {
            Some(prepared) => (&prepared.block[..], prepared.body.clone()),
            None => {
                self.block.clear();
                let text = if self.text.is_empty() { request.wire.as_deref().unwrap_or_default() } else { &self.text };
                let body = encode(text, https, &mut self.block)?;
                (&self.block[..], body)
            }
        };
        let sent_bytes = block.len() + body.as_ref().map_or(0, |body| body.len());
        self.connection.begin(stream.0, block, body, head_request, wants_fields);
        self.text.clear();
        self.answers.push(Progress { key: stream.0, answer: AnswerProgress::default(), sent_bytes });
        Ok(sent_bytes)
    }

    #[inline]
    fn position(&self, key: u32) -> Option<usize> {
        self.answers.iter().position(|a| a.key == key)
    }

    fn progress(&self, stream: StreamId) -> Option<&Progress> {
        let ended = self.ended.as_ref().filter(|a| a.key == stream.0);
        ended.or_else(|| self.answers.iter().find(|a| a.key == stream.0))
    }

    pub fn answer(&self, stream: StreamId) -> AnswerProgress {
        self.progress(stream).map(|a| a.answer).unwrap_or_default()
    }

    pub fn bytes_of(&self, stream: StreamId) -> usize {
        self.progress(stream).map_or(0, |a| a.sent_bytes)
    }

    /// Records what has arrived of an answer.
    #[inline]
    pub fn note(answers: &mut SharedAnswers<'_>, key: u32, change: impl FnOnce(&mut AnswerProgress)) {
        if let Some(a) = answers.0.iter_mut().find(|a| a.key == key) {
            change(&mut a.answer);
        }
    }

    /// The connection, and beside it what is known of the answers.
    #[inline]
    pub fn parts(&mut self) -> (&mut Connection, SharedAnswers<'_>) {
        (&mut self.connection, SharedAnswers(&mut self.answers))
    }

    /// Moves an answer that has ended aside; it can be asked about until the next one ends.
    #[inline]
    pub fn end(&mut self, stream: StreamId) {
        if let Some(at) = self.position(stream.0) {
            self.ended = Some(self.answers.swap_remove(at));
        }
    }

    /// Ends a request without an answer.
    pub fn lost(&mut self, stream: StreamId) {
        self.connection.cancel(stream.0);
        self.end(stream);
    }

    #[inline]
    pub fn output(&self) -> &[u8] {
        self.connection.output()
    }

    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.connection.wrote(bytes);
    }

    /// Returns the requests that are written as a whole, once nothing is left to write.
    #[inline]
    pub fn written(&mut self) -> Option<Vec<u32>> {
        self.connection.output().is_empty().then(|| self.connection.take_written())
    }
}

/// What is known of the answers on a connection.
#[derive(Debug)]
pub struct SharedAnswers<'a>(&'a mut Vec<Progress>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_its_older_form_is_encoded_with_its_body() {
        let text = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok";
        let request = EncodedRequest::new(text, false).expect("valid");
        assert_eq!(request.body.as_deref(), Some(&b"ok"[..]));
        assert_eq!(request.block[..2], [0x83, 0x86]);
        let request = EncodedRequest::new(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", true).expect("valid");
        assert!(request.body.is_none() && request.block[..2] == [0x82, 0x87]);
    }
}
