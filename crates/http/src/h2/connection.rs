//! One connection as a client has it: settings, windows, streams by number, and what it must say on its own.
//!
//! The caller knows a stream by a key of its own. It begins streams, hands in the bytes that arrive, takes the bytes to
//! send, and learns of heads, data and ends as [`Event`]s. A broken rule ends the stream, or as a [`ConnectionError`]
//! the connection; what the server is to be told is then already among the bytes to send.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::frame::{self, FrameHead, HEAD_BYTES, flag, kind, setting};
use super::head::{AnswerHead, check_answer, check_trailers};
use super::hpack::{self, Decoder, Fields, HpackError};
use super::{
    ErrorCode, MOST_BLOCK_BYTES, MOST_CONTINUATIONS, MOST_FRAME_BYTES, MOST_IDLE_FRAMES, MOST_LIST_BYTES,
    MOST_REPLY_BYTES, MOST_WINDOW, PREFACE,
};

/// The window of both sides until they say otherwise.
const FIRST_WINDOW: i64 = 65_535;
/// Bytes to send up to which further pieces of bodies are added.
const OUTPUT_BYTES: usize = 64 * 1024;
/// Largest piece of a body in a frame, though the server may accept more: streams take turns.
const PIECE_BYTES: usize = 16_384;
/// How many streams that we cancelled are remembered: a server may have sent more before it learned of it.
const MOST_CANCELLED: usize = 1024;
/// Largest number of a stream; then another connection is needed.
const LAST_STREAM: u32 = 0x7fff_fffd;

/// What the caller allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most streams at once.
    pub streams: u32,
    /// Most requests on the connection in all.
    pub requests: u32,
    /// Bytes that the server may send ahead: on a stream, and on all.
    pub stream_window: u32,
    pub connection_window: u32,
}

/// A request's body; several streams may send the same.
pub type Body = Arc<[u8]>;

/// Why the connection is of no further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{text} ({code})")]
pub struct ConnectionError {
    pub code: ErrorCode,
    pub text: &'static str,
}

fn unpadded<'a>(head: &FrameHead, payload: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
    frame::unpadded(head, payload).map_err(|code| {
        let text = match code {
            ErrorCode::FRAME_SIZE => "a frame too short for its flags",
            _ => "padding longer than its frame",
        };
        ConnectionError { code, text }
    })
}

fn broken<T>(code: ErrorCode, text: &'static str) -> Result<T, ConnectionError> {
    Err(ConnectionError { code, text })
}

/// Why a stream ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// The server surely did not process the request.
    Refused,
    /// The server gave it up, with this code.
    Code(ErrorCode),
    /// The answer breaks a rule, and was given up with this code.
    Malformed(ErrorCode, &'static str),
}

/// What arrived.
#[derive(Debug)]
pub enum Event<'a> {
    /// An interim answer.
    Interim { key: u32 },
    /// The head of an answer. Without `fields` they are those of the last head, and the caller wanted none.
    Head { key: u32, status: u16, bytes: usize, fields: Option<&'a Fields> },
    /// A piece of a body, in a frame of `bytes`.
    Data { key: u32, piece: &'a [u8], bytes: usize },
    /// An answer is complete; its stream is gone.
    End { key: u32 },
    /// A stream is gone without an answer.
    Reset { key: u32, why: Reset },
    /// The server takes no more streams. These it surely did not process; they are gone.
    GoAway { code: ErrorCode, refused: Vec<u32> },
    /// The server's settings arrived: there may be more room than before.
    Settings,
}

/// An event before it borrows anything.
enum Step<'a> {
    Interim(u32),
    Head(u32, u16, usize, bool),
    Data(u32, Payload<'a>, Range<usize>, usize),
    End(u32),
    Reset(u32, Reset),
    GoAway(ErrorCode, Vec<u32>),
    Settings,
    Nothing,
}

/// A frame's payload: in the input, or where it was put together.
#[derive(Clone, Copy)]
enum Payload<'a> {
    Input(&'a [u8]),
    Kept,
}

/// A stream in flight.
#[derive(Debug)]
struct Open {
    key: u32,
    /// Bytes that it may send, and has received since the last update of its window.
    send_window: i64,
    received: u32,
    /// The rest of the request's body.
    body: Option<(Body, usize)>,
    head_request: bool,
    wants_fields: bool,
    /// The answer so far.
    head: Option<AnswerHead>,
    body_bytes: u64,
}

/// A header block that is not complete.
#[derive(Debug)]
struct PartialBlock {
    stream: u32,
    ends: bool,
    bytes: Vec<u8>,
    continuations: u32,
    frames: usize,
}

/// Heads that are remembered, and how many blocks may be owed to the table: a table of 4,096 bytes holds 128 fields.
const MOST_REMEMBERED: usize = 4;
const MOST_OWED: usize = hpack::TABLE_BYTES / hpack::FIELD_BYTES;

/// A head that was decoded before.
#[derive(Debug)]
struct RememberedHead {
    block: Vec<u8>,
    head: AnswerHead,
    /// The state of the table under which the block means this head; `None` if it means that under every state.
    generation: Option<u64>,
    inserts: bool,
}

/// Heads of answers that were decoded before: most later ones equal one of them.
///
/// A block that refers to no field of the table means the same each time, though it may insert fields. nginx writes such
/// blocks: each of its answers inserts the same fields, and none refers to them. What an equal block would insert is
/// owed, and is inserted once another block is decoded.
#[derive(Debug, Default)]
struct RememberedHeads {
    heads: Vec<RememberedHead>,
    /// Where the next new head goes.
    next: usize,
    /// The blocks, by index, whose fields are yet to be inserted, in their order; the last ones if there are many, as
    /// older fields would be evicted.
    owed: VecDeque<u8>,
}

impl RememberedHeads {
    /// Returns the head that a block means, if that is known.
    #[inline]
    fn recall(&mut self, block: &[u8], generation: u64) -> Option<AnswerHead> {
        let is_settled = self.owed.is_empty();
        let is_valid = |under: Option<u64>| under.is_none_or(|under| is_settled && under == generation);
        let at = self.heads.iter().position(|h| h.block == block && is_valid(h.generation))?;
        let known = &self.heads[at];
        if known.inserts {
            if self.owed.len() == MOST_OWED {
                self.owed.pop_front();
            }
            self.owed.push_back(at as u8);
        }
        Some(known.head)
    }

    /// Inserts what is owed to the table.
    fn settle(&mut self, decoder: &mut Decoder, fields: &mut Fields) -> Result<(), HpackError> {
        for at in self.owed.drain(..) {
            decoder.decode(&self.heads[usize::from(at)].block, fields)?;
        }
        Ok(())
    }

    /// Remembers the block that was decoded last. Nothing may be owed.
    fn learn(&mut self, block: &[u8], head: AnswerHead, decoder: &Decoder, before: u64) {
        let inserts = decoder.generation() != before;
        let generation = if decoder.referred() { Some(before) } else { None };
        if inserts && generation.is_some() {
            return;
        }
        // The memory of a forgotten head is used again.
        let mut kept = match self.heads.get_mut(self.next) {
            Some(oldest) => std::mem::take(&mut oldest.block),
            None => Vec::new(),
        };
        kept.clear();
        kept.extend_from_slice(block);
        let new = RememberedHead { block: kept, head, generation, inserts };
        match self.heads.get_mut(self.next) {
            Some(oldest) => *oldest = new,
            None => self.heads.push(new),
        }
        self.next = (self.next + 1) % MOST_REMEMBERED;
    }
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    /// A frame of which a part has arrived, or the last one; it is cleared before the next.
    partial: Vec<u8>,
    is_used: bool,
    output: Vec<u8>,
    sent: usize,
    reply_bytes: usize,
    decoder: Decoder,
    fields: Fields,
    remembered: RememberedHeads,
    block: Option<PartialBlock>,
    next_stream: u32,
    begun: u32,
    /// Numbers of the streams in flight, and in the same order their states: the numbers alone are searched.
    ids: Vec<u32>,
    open: Vec<Open>,
    cancelled: VecDeque<u32>,
    /// The newest stream that was cancelled and is forgotten.
    forgotten: u32,
    /// Streams of which the whole request is among the bytes to send.
    written: Vec<u32>,
    /// Streams whose bodies are not yet among them.
    bodies: u32,
    next_body: usize,
    /// An answer that ended with the frame before.
    ended: Option<u32>,
    /// The server's settings.
    has_settings: bool,
    peer_streams: u32,
    peer_window: i64,
    peer_frame_bytes: usize,
    /// The next block tells that our table is empty.
    says_empty: bool,
    send_window: i64,
    received: u32,
    last_processed: Option<u32>,
    idle_frames: u32,
    /// Bytes of frames that belong to no stream in flight, since they were last taken.
    other_bytes: u64,
}

impl Connection {
    /// Returns a connection whose first bytes are ready to send.
    #[must_use]
    pub fn new(limits: Limits) -> Connection {
        let mut output = PREFACE.to_vec();
        let settings = [
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, limits.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, MOST_LIST_BYTES as u32),
        ];
        frame::write_settings(&mut output, &settings);
        if let Some(more) = limits.connection_window.checked_sub(FIRST_WINDOW as u32).filter(|more| *more > 0) {
            frame::write_window_update(&mut output, 0, more);
        }
        Connection {
            limits,
            partial: Vec::new(),
            is_used: false,
            output,
            sent: 0,
            reply_bytes: 0,
            decoder: Decoder::default(),
            fields: Fields::default(),
            remembered: RememberedHeads::default(),
            block: None,
            next_stream: 1,
            begun: 0,
            ids: Vec::new(),
            open: Vec::new(),
            cancelled: VecDeque::new(),
            forgotten: 0,
            written: Vec::new(),
            bodies: 0,
            next_body: 0,
            ended: None,
            has_settings: false,
            peer_streams: u32::MAX,
            peer_window: FIRST_WINDOW,
            peer_frame_bytes: MOST_FRAME_BYTES,
            says_empty: false,
            send_window: FIRST_WINDOW,
            received: 0,
            last_processed: None,
            idle_frames: 0,
            other_bytes: 0,
        }
    }

    /// Streams in flight.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.open.len()
    }

    /// The keys of the streams in flight.
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.open.iter().map(|o| o.key)
    }

    /// Whether no further stream will ever begin here.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.last_processed.is_some() || self.begun >= self.limits.requests || self.next_stream > LAST_STREAM
    }

    /// Whether the server has sent its settings.
    #[inline]
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Most streams at once that the server allows; `None` before its settings, and without a limit.
    #[must_use]
    pub fn peer_streams(&self) -> Option<u32> {
        (self.has_settings && self.peer_streams != u32::MAX).then_some(self.peer_streams)
    }

    /// Whether a stream may begin. One goes out with the first flight; more wait for the server's limit, which others
    /// have exceeded with their first requests.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        let most = if self.has_settings { self.limits.streams.min(self.peer_streams) } else { 1 };
        (self.open.len() as u32) < most && !self.is_over()
    }

    /// Begins a stream: a request with this header block.
    pub fn begin(&mut self, key: u32, block: &[u8], body: Option<Body>, head_request: bool, wants_fields: bool) {
        let id = self.next_stream;
        self.next_stream += 2;
        self.begun += 1;
        let body = body.filter(|body| !body.is_empty());
        if self.says_empty {
            self.says_empty = false;
            let block = [hpack::EMPTY_TABLE, block].concat();
            frame::write_headers(&mut self.output, id, &block, body.is_none(), self.peer_frame_bytes);
        } else {
            frame::write_headers(&mut self.output, id, block, body.is_none(), self.peer_frame_bytes);
        }
        if body.is_none() {
            self.written.push(key);
        }
        self.bodies += u32::from(body.is_some());
        let body = body.map(|body| (body, 0));
        self.ids.push(id);
        self.open.push(Open {
            key,
            send_window: self.peer_window,
            received: 0,
            body,
            head_request,
            wants_fields,
            head: None,
            body_bytes: 0,
        });
        self.write_bodies();
    }

    /// Ends a stream that is no longer wanted, if it is in flight.
    pub fn cancel(&mut self, key: u32) {
        if let Some(at) = self.open.iter().position(|o| o.key == key) {
            self.cancel_at(at, ErrorCode::CANCEL);
        }
    }

    /// Ends the connection, politely.
    pub fn say_goodbye(&mut self) {
        frame::write_goaway(&mut self.output, ErrorCode::NO_ERROR);
    }

    /// Bytes to send.
    #[inline]
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Records that this many of them were sent.
    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= self.output.len() {
            self.output.clear();
            self.sent = 0;
            self.reply_bytes = 0;
        } else if self.sent >= OUTPUT_BYTES {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        self.write_bodies();
    }

    /// Forgets the bytes to send: nobody will read them.
    pub fn drop_output(&mut self) {
        self.output.clear();
        self.sent = 0;
        self.bodies = 0;
        self.open.iter_mut().for_each(|o| o.body = None);
    }

    /// Takes the streams whose requests were among the bytes to send as a whole.
    pub fn take_written(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.written)
    }

    /// Takes the bytes of frames that belonged to no stream in flight.
    #[inline]
    pub fn take_other_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.other_bytes)
    }

    /// Takes the streams in flight off a connection of no further use.
    pub fn take_all(&mut self) -> Vec<u32> {
        self.ids.clear();
        self.bodies = 0;
        self.ended = None;
        self.open.drain(..).map(|o| o.key).collect()
    }

    /// Takes input until something has happened; `None` when all of it is used up.
    ///
    /// # Errors
    /// The server broke a rule of the connection. A GOAWAY that says so is among the bytes to send.
    #[inline]
    pub fn receive<'c, 'd: 'c>(&'c mut self, input: &mut &'d [u8]) -> Result<Option<Event<'c>>, ConnectionError> {
        let step = loop {
            if let Some(key) = self.ended.take() {
                break Step::End(key);
            }
            match self.next_frame(input) {
                Ok(None) => return Ok(None),
                Ok(Some(Step::Nothing)) => {}
                Ok(Some(step)) => break step,
                Err(e) => {
                    frame::write_goaway(&mut self.output, e.code);
                    return Err(e);
                }
            }
        };
        Ok(Some(match step {
            Step::Interim(key) => Event::Interim { key },
            Step::Head(key, status, bytes, decoded) => {
                Event::Head { key, status, bytes, fields: decoded.then_some(&self.fields) }
            }
            Step::Data(key, payload, range, bytes) => {
                let whole = match payload {
                    Payload::Input(whole) => whole,
                    Payload::Kept => &self.partial[HEAD_BYTES..],
                };
                Event::Data { key, piece: &whole[range], bytes }
            }
            Step::End(key) => Event::End { key },
            Step::Reset(key, why) => Event::Reset { key, why },
            Step::GoAway(code, refused) => Event::GoAway { code, refused },
            Step::Settings | Step::Nothing => Event::Settings,
        }))
    }

    /// Takes one frame; `None` if the input holds no whole one.
    fn next_frame<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Step<'a>>, ConnectionError> {
        if std::mem::take(&mut self.is_used) {
            self.partial.clear();
        }
        if self.partial.is_empty() {
            let Some(head) = FrameHead::read(input) else {
                self.partial.extend_from_slice(input);
                *input = &[];
                return Ok(None);
            };
            self.check_head(&head)?;
            if let Some(payload) = input.get(HEAD_BYTES..HEAD_BYTES + head.length) {
                *input = &input[HEAD_BYTES + head.length..];
                return self.take_frame(&head, payload, Payload::Input(payload)).map(Some);
            }
            self.partial.extend_from_slice(input);
            *input = &[];
            return Ok(None);
        }
        if self.partial.len() < HEAD_BYTES {
            let most = (HEAD_BYTES - self.partial.len()).min(input.len());
            self.partial.extend_from_slice(&input[..most]);
            *input = &input[most..];
        }
        let Some(head) = FrameHead::read(&self.partial) else { return Ok(None) };
        self.check_head(&head)?;
        let most = (HEAD_BYTES + head.length - self.partial.len()).min(input.len());
        self.partial.extend_from_slice(&input[..most]);
        *input = &input[most..];
        if self.partial.len() < HEAD_BYTES + head.length {
            return Ok(None);
        }
        self.is_used = true;
        let frame = std::mem::take(&mut self.partial);
        let step = self.take_frame(&head, &frame[HEAD_BYTES..], Payload::Kept);
        self.partial = frame;
        step.map(Some)
    }

    /// Checks what can be checked before the payload has arrived.
    fn check_head(&self, head: &FrameHead) -> Result<(), ConnectionError> {
        if !self.has_settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return broken(ErrorCode::PROTOCOL, "a connection that does not begin with SETTINGS: not HTTP/2?");
        }
        if head.length > MOST_FRAME_BYTES {
            return broken(ErrorCode::FRAME_SIZE, "a frame larger than 16,384 bytes");
        }
        if let Some(block) = &self.block
            && (head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            return broken(ErrorCode::PROTOCOL, "a frame within a header block");
        }
        Ok(())
    }

    fn take_frame<'a>(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        whole: Payload<'a>,
    ) -> Result<Step<'a>, ConnectionError> {
        let bytes = HEAD_BYTES + payload.len();
        let of_connection = matches!(head.kind, kind::SETTINGS | kind::PING | kind::GOAWAY);
        if of_connection && head.stream != 0 {
            return broken(ErrorCode::PROTOCOL, "SETTINGS, PING or GOAWAY on a stream");
        }
        let of_stream = matches!(
            head.kind,
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION | kind::PUSH_PROMISE
        );
        if of_stream && head.stream == 0 {
            return broken(ErrorCode::PROTOCOL, "DATA, HEADERS, PRIORITY, RST_STREAM or CONTINUATION on no stream");
        }
        // A server begins no streams here: it may not push.
        let is_idle = head.stream != 0 && (head.stream.is_multiple_of(2) || head.stream >= self.next_stream);
        if is_idle && matches!(head.kind, kind::DATA | kind::HEADERS | kind::RST_STREAM | kind::WINDOW_UPDATE) {
            return broken(ErrorCode::PROTOCOL, "a frame on a stream that nobody began");
        }
        if !matches!(head.kind, kind::DATA | kind::HEADERS | kind::CONTINUATION) {
            self.other_bytes += bytes as u64;
        }
        match head.kind {
            kind::DATA => self.take_data(head, payload, whole, bytes),
            kind::HEADERS => {
                let block = unpadded(head, payload)?;
                let ends = head.has(flag::END_STREAM);
                if head.has(flag::END_HEADERS) {
                    return self.take_block(head.stream, block, ends, bytes);
                }
                self.block = Some(PartialBlock {
                    stream: head.stream,
                    ends,
                    bytes: block.to_vec(),
                    continuations: 0,
                    frames: bytes,
                });
                Ok(Step::Nothing)
            }
            kind::CONTINUATION => self.take_continuation(head, payload, bytes),
            kind::PRIORITY => {
                self.brought_nothing()?;
                if payload.len() != 5 {
                    return self.stream_broken(head.stream, ErrorCode::FRAME_SIZE, "a PRIORITY that is not 5 bytes");
                }
                Ok(Step::Nothing)
            }
            kind::RST_STREAM => {
                if payload.len() != 4 {
                    return broken(ErrorCode::FRAME_SIZE, "a RST_STREAM that is not 4 bytes");
                }
                self.take_reset(head.stream, ErrorCode(frame::number(payload)))
            }
            kind::SETTINGS => self.take_settings(head, payload),
            kind::PUSH_PROMISE => broken(ErrorCode::PROTOCOL, "a PUSH_PROMISE, though pushing is off"),
            kind::PING => {
                if payload.len() != 8 {
                    return broken(ErrorCode::FRAME_SIZE, "a PING that is not 8 bytes");
                }
                self.brought_nothing()?;
                if !head.has(flag::ACK) {
                    frame::write_ping_ack(&mut self.output, payload);
                    self.replied(bytes)?;
                }
                Ok(Step::Nothing)
            }
            kind::GOAWAY => {
                if payload.len() < 8 {
                    return broken(ErrorCode::FRAME_SIZE, "a GOAWAY of less than 8 bytes");
                }
                if self.last_processed.is_some() {
                    self.brought_nothing()?;
                }
                Ok(self.take_goaway(frame::number(payload) & 0x7fff_ffff, ErrorCode(frame::number(&payload[4..]))))
            }
            kind::WINDOW_UPDATE => self.take_window_update(head.stream, payload),
            // An unknown frame is ignored (section 4.1).
            _ => self.brought_nothing().map(|()| Step::Nothing),
        }
    }

    fn brought_nothing(&mut self) -> Result<(), ConnectionError> {
        self.idle_frames += 1;
        if self.idle_frames > MOST_IDLE_FRAMES {
            return broken(ErrorCode::ENHANCE_YOUR_CALM, "more than 10,000 frames that bring nothing");
        }
        Ok(())
    }

    fn replied(&mut self, bytes: usize) -> Result<(), ConnectionError> {
        self.reply_bytes += bytes;
        if self.reply_bytes > MOST_REPLY_BYTES {
            return broken(ErrorCode::ENHANCE_YOUR_CALM, "PING or SETTINGS without end, and no reply is read");
        }
        Ok(())
    }

    #[inline]
    fn position(&self, stream: u32) -> Option<usize> {
        self.ids.iter().position(|id| *id == stream)
    }

    /// Removes a stream.
    fn remove(&mut self, at: usize) -> Open {
        self.ids.swap_remove(at);
        let open = self.open.swap_remove(at);
        self.bodies -= u32::from(open.body.is_some());
        if !self.written.is_empty() {
            self.written.retain(|key| *key != open.key);
        }
        open
    }

    /// Ends a stream from our side, and remembers it.
    fn cancel_at(&mut self, at: usize, code: ErrorCode) -> Open {
        let id = self.ids[at];
        frame::write_reset(&mut self.output, id, code);
        self.cancelled.push_back(id);
        if self.cancelled.len() > MOST_CANCELLED
            && let Some(oldest) = self.cancelled.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.remove(at)
    }

    /// Ends a stream because of what the server sent on it.
    fn stream_broken<'a>(
        &mut self,
        stream: u32,
        code: ErrorCode,
        text: &'static str,
    ) -> Result<Step<'a>, ConnectionError> {
        let Some(at) = self.position(stream) else { return Ok(Step::Nothing) };
        let open = self.cancel_at(at, code);
        Ok(Step::Reset(open.key, Reset::Malformed(code, text)))
    }

    /// Judges a frame on a stream that has ended: late ones are harmless on streams that we cancelled.
    fn after_end<'a>(&self, stream: u32) -> Result<Step<'a>, ConnectionError> {
        if stream > self.forgotten && !self.cancelled.contains(&stream) {
            return broken(ErrorCode::STREAM_CLOSED, "a frame on a stream that has ended");
        }
        Ok(Step::Nothing)
    }

    fn take_data<'a>(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        whole: Payload<'a>,
        bytes: usize,
    ) -> Result<Step<'a>, ConnectionError> {
        let data = unpadded(head, payload)?;
        let begin = usize::from(head.has(flag::PADDED));
        let range = begin..begin + data.len();
        let length = payload.len() as u32;
        // The connection's window counts what arrives on streams that are gone, too.
        self.received += length;
        if self.received > self.limits.connection_window.max(FIRST_WINDOW as u32) {
            return broken(ErrorCode::FLOW_CONTROL, "more data than the connection's window allows");
        }
        if self.received > self.limits.connection_window / 2 {
            frame::write_window_update(&mut self.output, 0, self.received);
            self.received = 0;
        }
        let ends = head.has(flag::END_STREAM);
        if data.is_empty() && !ends {
            self.brought_nothing()?;
        }
        let Some(at) = self.position(head.stream) else {
            self.other_bytes += bytes as u64;
            return self.after_end(head.stream);
        };
        let window = self.limits.stream_window;
        let open = &mut self.open[at];
        open.received += length;
        open.body_bytes += data.len() as u64;
        if open.received > window.max(FIRST_WINDOW as u32) {
            return self.stream_broken(head.stream, ErrorCode::FLOW_CONTROL, "more data than the window allows");
        }
        let Some(answer) = open.head else {
            return self.stream_broken(head.stream, ErrorCode::PROTOCOL, "data before a head");
        };
        if !data.is_empty() && (open.head_request || matches!(answer.status, 204 | 304)) {
            let text = "a body where none may be: after HEAD, 204 or 304";
            return self.stream_broken(head.stream, ErrorCode::PROTOCOL, text);
        }
        if answer.length.is_some_and(|length| open.body_bytes > length) {
            return self.stream_broken(head.stream, ErrorCode::PROTOCOL, "a body longer than its Content-Length");
        }
        let key = open.key;
        if ends {
            if let Some(error) = self.end(head.stream)? {
                return Ok(error);
            }
        } else if open.received > window / 2 {
            let received = std::mem::take(&mut open.received);
            frame::write_window_update(&mut self.output, head.stream, received);
        }
        Ok(Step::Data(key, whole, range, bytes))
    }

    /// Ends a stream whose answer is complete. Returns the event if the answer is too short.
    fn end<'a>(&mut self, stream: u32) -> Result<Option<Step<'a>>, ConnectionError> {
        let Some(at) = self.position(stream) else { return Ok(None) };
        let open = &self.open[at];
        let has_body = !open.head_request && open.head.is_some_and(|h| !matches!(h.status, 204 | 304));
        let length = open.head.and_then(|h| h.length).filter(|_| has_body);
        if length.is_some_and(|length| length != open.body_bytes) {
            let text = "a body shorter than its Content-Length";
            return self.stream_broken(stream, ErrorCode::PROTOCOL, text).map(Some);
        }
        // An answer before the end of the request: the rest is not wanted (section 8.1).
        let is_early = open.body.is_some();
        let open = if is_early { self.cancel_at(at, ErrorCode::NO_ERROR) } else { self.remove(at) };
        self.idle_frames = 0;
        self.ended = Some(open.key);
        Ok(None)
    }

    fn take_continuation<'a>(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        bytes: usize,
    ) -> Result<Step<'a>, ConnectionError> {
        let Some(mut block) = self.block.take() else {
            return broken(ErrorCode::PROTOCOL, "a CONTINUATION without a header block");
        };
        block.continuations += 1;
        block.bytes.extend_from_slice(payload);
        block.frames += bytes;
        if block.continuations > MOST_CONTINUATIONS || block.bytes.len() > MOST_BLOCK_BYTES {
            return broken(
                ErrorCode::ENHANCE_YOUR_CALM,
                "a header block of more than 64 KB, or of more than 64 CONTINUATION frames",
            );
        }
        if head.has(flag::END_HEADERS) {
            return self.take_block(block.stream, &block.bytes, block.ends, block.frames);
        }
        self.block = Some(block);
        Ok(Step::Nothing)
    }

    /// Takes a whole header block: an interim answer, an answer's head, or trailers.
    fn take_block<'a>(
        &mut self,
        stream: u32,
        block: &[u8],
        ends: bool,
        bytes: usize,
    ) -> Result<Step<'a>, ConnectionError> {
        let at = self.position(stream);
        let is_first = at.is_some_and(|at| self.open[at].head.is_none());
        let may_skip = is_first && at.is_some_and(|at| !self.open[at].wants_fields);
        let known = if may_skip { self.remembered.recall(block, self.decoder.generation()) } else { None };
        let checked = if let Some(head) = known {
            Ok(head)
        } else {
            // The table has to be kept in step, even if nobody waits for the fields.
            let (memory, decoder, fields) = (&mut self.remembered, &mut self.decoder, &mut self.fields);
            let settled = memory.settle(decoder, fields);
            let before = decoder.generation();
            if let Err(e) = settled.and_then(|()| decoder.decode(block, fields)) {
                return broken(e.code(), e.0);
            }
            let checked = if is_first {
                check_answer(&self.fields)
            } else {
                check_trailers(&self.fields).map(|()| AnswerHead::default())
            };
            if may_skip
                && let Ok(head) = checked
                && head.status >= 200
            {
                self.remembered.learn(block, head, &self.decoder, before);
            }
            checked
        };
        let Some(at) = at else {
            self.other_bytes += bytes as u64;
            let ignored = self.after_end(stream)?;
            return self.brought_nothing().map(|()| ignored);
        };
        let head = match checked {
            Ok(head) => head,
            Err(e) => {
                self.other_bytes += bytes as u64;
                return self.stream_broken(stream, ErrorCode::PROTOCOL, e.0);
            }
        };
        let open = &mut self.open[at];
        let key = open.key;
        if !is_first {
            self.other_bytes += bytes as u64;
            if !ends {
                return self.stream_broken(stream, ErrorCode::PROTOCOL, "a second head, or trailers without an end");
            }
            return Ok(self.end(stream)?.unwrap_or(Step::Nothing));
        }
        if head.status < 200 {
            self.other_bytes += bytes as u64;
            if ends {
                return self.stream_broken(stream, ErrorCode::PROTOCOL, "an interim answer that ends the stream");
            }
            self.brought_nothing()?;
            return Ok(Step::Interim(key));
        }
        open.head = Some(head);
        if ends && let Some(error) = self.end(stream)? {
            return Ok(error);
        }
        Ok(Step::Head(key, head.status, bytes, known.is_none()))
    }

    fn take_reset<'a>(&mut self, stream: u32, code: ErrorCode) -> Result<Step<'a>, ConnectionError> {
        let Some(at) = self.position(stream) else {
            // Often the reply to our own, or "send no more" after an early answer.
            return self.brought_nothing().map(|()| Step::Nothing);
        };
        let open = self.remove(at);
        let why = if code == ErrorCode::REFUSED_STREAM { Reset::Refused } else { Reset::Code(code) };
        Ok(Step::Reset(open.key, why))
    }

    fn take_settings<'a>(&mut self, head: &FrameHead, payload: &[u8]) -> Result<Step<'a>, ConnectionError> {
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return broken(ErrorCode::FRAME_SIZE, "an acknowledgement of SETTINGS with a payload");
            }
            return self.brought_nothing().map(|()| Step::Nothing);
        }
        if !payload.len().is_multiple_of(6) {
            return broken(ErrorCode::FRAME_SIZE, "SETTINGS that are not of 6 bytes each");
        }
        if self.has_settings {
            self.brought_nothing()?;
        }
        if !self.has_settings {
            self.has_settings = true;
        }
        for one in payload.chunks_exact(6) {
            let value = frame::number(&one[2..]);
            match u16::from_be_bytes([one[0], one[1]]) {
                setting::HEADER_TABLE_SIZE if (value as usize) < hpack::TABLE_BYTES => self.says_empty = true,
                setting::ENABLE_PUSH if value != 0 => {
                    return broken(ErrorCode::PROTOCOL, "SETTINGS of a server that turn pushing on");
                }
                setting::MAX_CONCURRENT_STREAMS => self.peer_streams = value,
                setting::INITIAL_WINDOW_SIZE => {
                    let window = i64::from(value);
                    let change = window - self.peer_window;
                    let overflows = self.open.iter().any(|o| o.send_window + change > MOST_WINDOW);
                    if window > MOST_WINDOW || overflows {
                        return broken(ErrorCode::FLOW_CONTROL, "SETTINGS with a window above 2^31 - 1");
                    }
                    self.open.iter_mut().for_each(|o| o.send_window += change);
                    self.peer_window = window;
                }
                setting::MAX_FRAME_SIZE => {
                    if !(16_384..=16_777_215).contains(&value) {
                        return broken(ErrorCode::PROTOCOL, "SETTINGS with a frame size out of bounds");
                    }
                    self.peer_frame_bytes = value as usize;
                }
                _ => {}
            }
        }
        frame::write_settings_ack(&mut self.output);
        self.replied(HEAD_BYTES)?;
        self.write_bodies();
        Ok(Step::Settings)
    }

    fn take_goaway<'a>(&mut self, last: u32, code: ErrorCode) -> Step<'a> {
        let last = self.last_processed.map_or(last, |before| before.min(last));
        self.last_processed = Some(last);
        let mut refused = Vec::new();
        let mut at = 0;
        while at < self.ids.len() {
            if self.ids[at] > last {
                refused.push(self.remove(at).key);
            } else {
                at += 1;
            }
        }
        Step::GoAway(code, refused)
    }

    fn take_window_update<'a>(&mut self, stream: u32, payload: &[u8]) -> Result<Step<'a>, ConnectionError> {
        if payload.len() != 4 {
            return broken(ErrorCode::FRAME_SIZE, "a WINDOW_UPDATE that is not 4 bytes");
        }
        self.brought_nothing()?;
        let more = i64::from(frame::number(payload) & 0x7fff_ffff);
        if stream == 0 {
            if more == 0 {
                return broken(ErrorCode::PROTOCOL, "a WINDOW_UPDATE of 0 bytes");
            }
            if self.send_window + more > MOST_WINDOW {
                return broken(ErrorCode::FLOW_CONTROL, "a connection's window above 2^31 - 1");
            }
            self.send_window += more;
        } else if let Some(at) = self.position(stream) {
            if more == 0 {
                return self.stream_broken(stream, ErrorCode::PROTOCOL, "a WINDOW_UPDATE of 0 bytes");
            }
            if self.open[at].send_window + more > MOST_WINDOW {
                return self.stream_broken(stream, ErrorCode::FLOW_CONTROL, "a stream's window above 2^31 - 1");
            }
            self.open[at].send_window += more;
        }
        self.write_bodies();
        Ok(Step::Nothing)
    }

    /// Adds pieces of bodies to the bytes to send, as far as the windows allow; the streams take turns.
    fn write_bodies(&mut self) {
        let mut idle = 0;
        while self.bodies > 0
            && self.send_window > 0
            && self.output.len() - self.sent < OUTPUT_BYTES
            && idle < self.open.len()
        {
            let at = self.next_body % self.open.len();
            self.next_body = at + 1;
            let open = &mut self.open[at];
            let Some((body, done)) = &mut open.body else {
                idle += 1;
                continue;
            };
            let window = open.send_window.min(self.send_window);
            if window <= 0 {
                idle += 1;
                continue;
            }
            idle = 0;
            let piece = (body.len() - *done).min(PIECE_BYTES).min(window as usize);
            let ends = *done + piece == body.len();
            frame::write_data(&mut self.output, self.ids[at], &body[*done..*done + piece], ends);
            *done += piece;
            open.send_window -= piece as i64;
            self.send_window -= piece as i64;
            self.idle_frames = 0;
            if ends {
                open.body = None;
                self.bodies -= 1;
                self.written.push(open.key);
            }
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
