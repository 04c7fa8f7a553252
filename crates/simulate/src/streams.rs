//! A server of HTTP/2 that behaves badly, keeps to what the client allows, and knows which streams it has processed.
//!
//! It answers the streams in any order and in pieces. It refuses and resets streams, says GOAWAY, gives small windows,
//! changes its settings, and ends in the middle of anything. What it must never see is noted in `violations`: data beyond
//! its windows, streams beyond its limit, a request on a stream that there was before.

use std::collections::{BTreeMap, VecDeque};

use lastdrop_http::h2::frame::{self, FrameHead, HEAD_BYTES, flag, kind, raw, setting};
use lastdrop_http::h2::hpack::{self, Decoder, Fields};
use lastdrop_http::h2::{ErrorCode, PREFACE};
use lastdrop_model::Micros;

use crate::faults::StreamRates;
use crate::rng::Rng;

const FIRST_WINDOW: i64 = 65_535;
/// Static fields of HPACK for these statuses.
const STATUSES: [(u16, u8); 7] =
    [(200, 0x88), (204, 0x89), (206, 0x8a), (304, 0x8b), (400, 0x8c), (404, 0x8d), (500, 0x8e)];

/// An answer whose end was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamAnswer {
    /// Its first block and its end become readable with this many bytes of the connection.
    pub begins: u64,
    pub ends: u64,
    pub status: u16,
    pub head_bytes: u64,
    pub body_bytes: u64,
}

/// What the server does next.
#[derive(Debug)]
pub enum StreamStep {
    /// Bytes that belong together, and what is to be learned of their place on the connection.
    Send(Vec<u8>, Option<Landmark>),
    Pause(Micros),
    ActAfter(Micros),
    End,
    Reset,
}

/// A place on the connection.
#[derive(Debug, Clone, Copy)]
pub enum Landmark {
    Begin(u32),
    /// The end of a stream; the bytes are the first of it, too, if nothing came before.
    End(u32),
}

/// What a deferred action does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Sends the next piece of some answer.
    Answer,
    Settings,
    /// Gives back windows.
    Windows,
    Leave,
}

/// The next piece of an answer.
#[derive(Debug)]
enum Piece {
    Interim,
    Head,
    Data(usize),
    Trailers,
}

/// A stream of the client.
#[derive(Debug)]
struct ServedStream {
    /// Bytes of the request's body that the client may send, and those that are to be given back.
    window: i64,
    owed: u32,
    is_uploaded: bool,
    /// The answer may begin before the end of the request.
    is_early: bool,
    /// Bytes of the answer that the client allows.
    send_window: i64,
    status: u16,
    body_bytes: usize,
    head_bytes: u64,
    has_length: bool,
    begins: u64,
    is_head: bool,
    /// The rest of the answer; `None`: the stream is never answered.
    rest: Option<VecDeque<Piece>>,
}

/// The server's side of a connection.
#[derive(Debug)]
pub struct StreamPeer {
    rates: StreamRates,
    rng: Rng,
    input: Vec<u8>,
    has_preface: bool,
    decoder: Decoder,
    fields: Fields,
    block: Option<(u32, bool, Vec<u8>)>,
    last_stream: u32,
    open: BTreeMap<u32, ServedStream>,
    tasks: Vec<Task>,
    has_settings: bool,
    owes_ack: bool,
    /// Settings that the client has not acknowledged: streams and window.
    unconfirmed: VecDeque<(u32, u32)>,
    stream_limit: u32,
    stream_window: i64,
    window: i64,
    owed: u32,
    /// What the client allows.
    send_window: i64,
    client_window: i64,
    /// The status that the newest field of the client's table has.
    newest: Option<u16>,
    goaway: Option<u32>,
    is_silent: bool,
    /// The user whose requests come on this connection, if requests say that.
    user: Option<Vec<u8>>,
    /// Whether the client has said that it goes.
    pub has_goodbye: bool,
    /// Requests: their heads, those that were surely not processed, and those whose body was complete.
    pub heads: u64,
    pub refused: u64,
    pub answers: Vec<StreamAnswer>,
    pub violations: Vec<String>,
}

impl StreamPeer {
    #[must_use]
    pub fn new(rates: StreamRates, rng: Rng) -> StreamPeer {
        StreamPeer {
            rates,
            rng,
            input: Vec::new(),
            has_preface: false,
            decoder: Decoder::default(),
            fields: Fields::default(),
            block: None,
            last_stream: 0,
            open: BTreeMap::new(),
            tasks: Vec::new(),
            has_settings: false,
            owes_ack: false,
            unconfirmed: VecDeque::new(),
            stream_limit: u32::MAX,
            stream_window: FIRST_WINDOW,
            window: FIRST_WINDOW,
            owed: 0,
            send_window: FIRST_WINDOW,
            client_window: FIRST_WINDOW,
            newest: None,
            goaway: None,
            is_silent: false,
            user: None,
            has_goodbye: false,
            heads: 0,
            refused: 0,
            answers: Vec::new(),
            violations: Vec::new(),
        }
    }

    fn violation(&mut self, what: impl Into<String>) {
        if self.violations.len() < 4 {
            self.violations.push(what.into());
        }
    }

    /// Learns where bytes have ended on the connection.
    pub fn note(&mut self, landmark: Landmark, at: u64) {
        let (Landmark::Begin(stream) | Landmark::End(stream)) = landmark;
        let Some(served) = self.open.get_mut(&stream) else { return };
        if served.begins == 0 {
            served.begins = at;
        }
        if matches!(landmark, Landmark::End(_)) {
            let answer = StreamAnswer {
                begins: served.begins,
                ends: at,
                status: served.status,
                head_bytes: served.head_bytes,
                body_bytes: served.body_bytes as u64,
            };
            self.answers.push(answer);
            served.rest = None;
            if served.is_uploaded {
                self.open.remove(&stream);
            }
        }
    }

    /// Processes bytes from the client.
    pub fn receive(&mut self, bytes: &[u8]) -> Vec<StreamStep> {
        let mut steps = Vec::new();
        self.input.extend_from_slice(bytes);
        if !self.has_preface {
            if self.input.len() < PREFACE.len() {
                return steps;
            }
            if !self.input.starts_with(PREFACE) {
                self.violation("a connection that does not begin with the preface");
            }
            self.input.drain(..PREFACE.len());
            self.has_preface = true;
            if self.rng.in_thousand(self.rates.late_settings) {
                self.later(Task::Settings, &mut steps);
            } else {
                self.settings(&mut steps);
            }
        }
        let mut at = 0;
        let input = std::mem::take(&mut self.input);
        while let Some(head) = FrameHead::read(&input[at..]) {
            let Some(payload) = input[at + HEAD_BYTES..].get(..head.length) else { break };
            at += HEAD_BYTES + head.length;
            self.frame(&head, payload, &mut steps);
        }
        self.input = input[at..].to_vec();
        steps
    }

    fn later(&mut self, task: Task, steps: &mut Vec<StreamStep>) {
        self.tasks.push(task);
        let us = if self.rng.in_thousand(500) { 0 } else { self.rng.around(1, self.rates.latency_us) };
        steps.push(StreamStep::ActAfter(us));
    }

    /// Performs one of the deferred actions, whichever.
    pub fn act(&mut self) -> Vec<StreamStep> {
        let mut steps = Vec::new();
        if self.tasks.is_empty() {
            return steps;
        }
        let which = self.rng.below(self.tasks.len() as u64) as usize;
        match self.tasks.swap_remove(which) {
            Task::Leave => {
                self.is_silent = true;
                steps.push(if self.rng.in_thousand(700) { StreamStep::End } else { StreamStep::Reset });
            }
            _ if self.is_silent => {}
            Task::Settings => self.settings(&mut steps),
            Task::Windows => self.give_windows(&mut steps),
            Task::Answer => self.answer(&mut steps),
        }
        steps
    }

    /// Sends settings; the first ones may be followed by others.
    fn settings(&mut self, steps: &mut Vec<StreamStep>) {
        let is_first = !std::mem::replace(&mut self.has_settings, true);
        let mut out = Vec::new();
        let mut all = Vec::new();
        let (mut streams, mut window) = (u32::MAX, FIRST_WINDOW as u32);
        if let Some((before, bytes)) = self.unconfirmed.back() {
            (streams, window) = (*before, *bytes);
        } else if !is_first {
            (streams, window) = (self.stream_limit, self.stream_window as u32);
        }
        if self.rng.in_thousand(500) {
            // A limit of 0 is raised later.
            streams = self.rng.one_of(&[0, 1, 2, 5, 100, 1 << 31]);
            all.push((setting::MAX_CONCURRENT_STREAMS, streams));
        }
        if self.rng.in_thousand(400) {
            window = self.rng.one_of(&[0, 1, 100, 5_000, FIRST_WINDOW as u32, 1 << 20]);
            all.push((setting::INITIAL_WINDOW_SIZE, window));
        }
        if self.rng.in_thousand(200) {
            all.push((setting::HEADER_TABLE_SIZE, self.rng.one_of(&[0, 100, 4096, 65_536])));
        }
        if self.rng.in_thousand(200) {
            all.push((setting::MAX_FRAME_SIZE, self.rng.one_of(&[16_384, 100_000])));
        }
        if self.rng.in_thousand(100) {
            all.push((99, 1));
        }
        frame::write_settings(&mut out, &all);
        self.unconfirmed.push_back((streams, window));
        if is_first && self.rng.in_thousand(300) {
            // Another SETTINGS frame in the same flight.
            frame::write_settings(&mut out, &[]);
            self.unconfirmed.push_back((streams, window));
        }
        if std::mem::take(&mut self.owes_ack) {
            frame::write_settings_ack(&mut out);
        }
        steps.push(StreamStep::Send(out, None));
        if streams == 0 || is_first && self.rng.in_thousand(self.rates.new_settings) {
            self.later(Task::Settings, steps);
        }
    }

    fn frame(&mut self, head: &FrameHead, payload: &[u8], steps: &mut Vec<StreamStep>) {
        if head.length > 16_384 {
            self.violation(format!("a frame of {} bytes", head.length));
        }
        if let Some((stream, _, _)) = &self.block
            && (head.kind != kind::CONTINUATION || head.stream != *stream)
        {
            self.violation("a frame within a header block");
        }
        match head.kind {
            kind::HEADERS => {
                let Ok(block) = frame::unpadded(head, payload) else { return self.violation("wrong padding") };
                if head.has(flag::END_HEADERS) {
                    self.request(head.stream, head.has(flag::END_STREAM), block, steps);
                } else {
                    self.block = Some((head.stream, head.has(flag::END_STREAM), block.to_vec()));
                }
            }
            kind::CONTINUATION => {
                let Some((stream, ends, mut block)) = self.block.take() else {
                    return self.violation("a CONTINUATION without a block");
                };
                block.extend_from_slice(payload);
                if head.has(flag::END_HEADERS) {
                    self.request(stream, ends, &block, steps);
                } else {
                    self.block = Some((stream, ends, block));
                }
            }
            kind::DATA => self.data(head, payload.len() as i64, steps),
            kind::RST_STREAM => _ = self.open.remove(&head.stream),
            kind::SETTINGS if head.has(flag::ACK) => {
                let Some((streams, window)) = self.unconfirmed.pop_front() else {
                    return self.violation("an acknowledgement of settings that were not sent");
                };
                self.stream_limit = streams;
                let change = i64::from(window) - self.stream_window;
                self.stream_window = i64::from(window);
                self.open.values_mut().for_each(|s| s.window += change);
                self.later(Task::Windows, steps);
            }
            kind::SETTINGS => {
                for one in payload.chunks_exact(6) {
                    if u16::from_be_bytes([one[0], one[1]]) == setting::INITIAL_WINDOW_SIZE {
                        self.client_window = i64::from(frame::number(&one[2..]));
                    }
                }
                // The server's own settings come first.
                self.owes_ack = !self.has_settings;
                if self.has_settings && !self.is_silent {
                    let mut out = Vec::new();
                    frame::write_settings_ack(&mut out);
                    steps.push(StreamStep::Send(out, None));
                }
            }
            kind::WINDOW_UPDATE => {
                let more = i64::from(frame::number(payload));
                if head.stream == 0 {
                    self.send_window += more;
                } else if let Some(served) = self.open.get_mut(&head.stream) {
                    served.send_window += more;
                }
                // What waited for it goes on.
                self.later(Task::Answer, steps);
            }
            kind::GOAWAY => self.has_goodbye = true,
            _ => {}
        }
    }

    /// Takes the head of a request.
    fn request(&mut self, stream: u32, ends: bool, block: &[u8], steps: &mut Vec<StreamStep>) {
        if let Err(e) = self.decoder.decode(block, &mut self.fields) {
            self.violation(format!("a header block that does not decode: {}", e.0));
        }
        if stream.is_multiple_of(2) || stream <= self.last_stream {
            self.violation(format!("stream {stream} after {}", self.last_stream));
        }
        if self.open.len() as u64 >= u64::from(self.stream_limit) {
            self.violation(format!("{} streams and another one, of {}", self.open.len(), self.stream_limit));
        }
        self.last_stream = stream;
        self.heads += 1;
        if self.goaway.is_some_and(|last| stream > last) {
            // The client has not read the GOAWAY yet.
            self.refused += 1;
            return;
        }
        let user = self.fields.iter().find(|(name, _)| *name == b"x-user").map(|(_, user)| user.to_vec());
        if let Some(user) = user
            && self.user.get_or_insert_with(|| user.clone()) != &user
        {
            self.violation("requests of two users, who have a connection each");
        }
        let is_head = self.fields.iter().any(|(name, value)| name == b":method" && value == b"HEAD");
        let status =
            if self.rng.in_thousand(800) { 200 } else { self.rng.one_of(&[204, 206, 304, 404, 418, 500, 503]) };
        let bodiless = is_head || matches!(status, 204 | 304);
        let most = self.rates.body_bytes;
        let body_bytes = if bodiless { 0 } else { self.rng.around(1, most + 1) as usize - 1 };
        let mut pieces = VecDeque::new();
        while self.rng.in_thousand(self.rates.interim) {
            pieces.push_back(Piece::Interim);
        }
        pieces.push_back(Piece::Head);
        let mut left = body_bytes;
        while left > 0 {
            let piece = (self.rng.around(1, 16_000) as usize).max(body_bytes / 20).min(left).min(16_000);
            pieces.push_back(Piece::Data(piece));
            left -= piece;
        }
        if !bodiless && self.rng.in_thousand(self.rates.interim) {
            pieces.push_back(Piece::Trailers);
        }
        let is_early = self.rng.in_thousand(self.rates.early);
        let served = ServedStream {
            is_early,
            window: self.stream_window,
            owed: 0,
            is_uploaded: ends,
            send_window: self.client_window,
            status,
            body_bytes,
            head_bytes: 0,
            has_length: self.rng.in_thousand(600),
            begins: 0,
            is_head,
            rest: Some(pieces),
        };
        self.open.insert(stream, served);
        if self.is_silent {
            return;
        }
        self.trouble(stream, steps);
        if ends || is_early {
            self.later(Task::Answer, steps);
        }
        if !ends {
            // The client's body may wait for a window.
            self.later(Task::Windows, steps);
        }
    }

    /// Does something else than answering, perhaps.
    fn trouble(&mut self, stream: u32, steps: &mut Vec<StreamStep>) {
        let r = self.rates;
        let mut out = Vec::new();
        if self.rng.in_thousand(r.refuse) {
            self.open.remove(&stream);
            self.refused += 1;
            frame::write_reset(&mut out, stream, ErrorCode::REFUSED_STREAM);
        } else if self.rng.in_thousand(r.reset) {
            self.open.remove(&stream);
            frame::write_reset(&mut out, stream, self.rng.one_of(&[ErrorCode::CANCEL, ErrorCode(2), ErrorCode(99)]));
        } else if self.rng.in_thousand(r.silent) {
            self.open.entry(stream).and_modify(|s| s.rest = None);
        } else if self.rng.in_thousand(r.goaway) && self.goaway.is_none() {
            self.say_goaway(&mut out, steps);
        } else if self.rng.in_thousand(r.broken) {
            self.is_silent = true;
            match self.rng.below(6) {
                0 => out.extend(raw(kind::DATA, 0, 0, b"x")),
                1 => out.extend(raw(kind::HEADERS, flag::END_HEADERS, stream, &[0x80])),
                2 => out.extend(raw(kind::SETTINGS, 0, 0, &[0; 5])),
                3 => out.extend(raw(kind::DATA, 0, stream + 200, b"x")),
                4 => out.extend(raw(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
                _ => {}
            }
            self.later(Task::Leave, steps);
        } else if self.rng.in_thousand(r.half) {
            self.is_silent = true;
            out.extend(&raw(kind::HEADERS, flag::END_HEADERS, stream, &[0x88])[..self.rng.below(10) as usize]);
            self.later(Task::Leave, steps);
        } else if self.rng.in_thousand(r.chatter) {
            match self.rng.below(4) {
                0 => out.extend(raw(kind::PING, 0, 0, b"12345678")),
                1 => out.extend(raw(kind::PRIORITY, 0, stream, &[0, 0, 0, 0, 9])),
                2 => out.extend(raw(77, 3, stream, b"unknown")),
                _ => frame::write_window_update(&mut out, stream, 5),
            }
            if let (Some(served), 13) = (self.open.get_mut(&stream), out.len())
                && out[3] == kind::WINDOW_UPDATE
            {
                served.window += 5;
            }
        } else if self.rng.in_thousand(r.leave) {
            self.later(Task::Leave, steps);
        }
        if !out.is_empty() {
            if !self.has_settings {
                self.settings(steps);
            }
            steps.push(StreamStep::Send(out, None));
        }
    }

    /// Ends the connection: what is not answered yet may be processed or not.
    fn say_goaway(&mut self, out: &mut Vec<u8>, steps: &mut Vec<StreamStep>) {
        if self.rng.in_thousand(300) {
            out.extend(goaway(0x7fff_ffff));
        }
        // Streams of which an answer has begun were processed.
        let begun = self.open.iter().filter(|(_, s)| s.begins > 0 || s.head_bytes > 0).map(|(stream, _)| *stream);
        let least = begun.max().unwrap_or(0).max(self.last_answered());
        let last = self.rng.between(u64::from(least), u64::from(self.last_stream)) as u32;
        out.extend(goaway(last));
        self.goaway = Some(last);
        let above = self.open.split_off(&(last + 1));
        self.refused += above.len() as u64;
        if self.rng.in_thousand(500) {
            self.later(Task::Leave, steps);
        }
    }

    /// The newest stream that is no longer open: it was answered, refused or given up.
    fn last_answered(&self) -> u32 {
        let gone = |stream: &u32| !self.open.contains_key(stream);
        (0..=self.last_stream).rev().filter(|stream| !stream.is_multiple_of(2)).find(gone).unwrap_or(0)
    }

    fn data(&mut self, head: &FrameHead, bytes: i64, steps: &mut Vec<StreamStep>) {
        self.window -= bytes;
        self.owed += bytes as u32;
        if self.window < 0 {
            self.violation(format!("{} bytes beyond the connection's window", -self.window));
        }
        let ends = head.has(flag::END_STREAM);
        let mut wrong = None;
        if let Some(served) = self.open.get_mut(&head.stream) {
            served.window -= bytes;
            if served.window < 0 && bytes > 0 {
                wrong = Some(format!("{} bytes beyond the window of stream {}", -served.window, head.stream));
            }
            if served.is_uploaded {
                wrong = Some(format!("data after the end of stream {}", head.stream));
            }
            served.owed += bytes as u32;
            served.is_uploaded |= ends;
            let is_answered = served.rest.is_none() && served.begins > 0;
            if ends && is_answered {
                self.open.remove(&head.stream);
            }
        }
        wrong.into_iter().for_each(|what| self.violation(what));
        if ends {
            self.later(Task::Answer, steps);
        }
        self.later(Task::Windows, steps);
    }

    /// Gives back what was received, and something to those that have no window at all.
    fn give_windows(&mut self, steps: &mut Vec<StreamStep>) {
        let mut out = Vec::new();
        let mut all = std::mem::take(&mut self.owed);
        if self.window <= 0 {
            all = all.max(1000);
        }
        if all > 0 {
            frame::write_window_update(&mut out, 0, all);
            self.window += i64::from(all);
        }
        for (stream, served) in self.open.iter_mut().filter(|(_, s)| !s.is_uploaded) {
            let mut more = std::mem::take(&mut served.owed);
            if served.window + i64::from(more) <= 0 {
                more = (1000 - served.window) as u32;
            }
            if more > 0 {
                frame::write_window_update(&mut out, *stream, more);
                served.window += i64::from(more);
            }
        }
        if !self.has_settings {
            self.settings(steps);
        }
        if !out.is_empty() {
            steps.push(StreamStep::Send(out, None));
        }
    }

    /// Sends the next piece of some answer.
    fn answer(&mut self, steps: &mut Vec<StreamStep>) {
        if !self.has_settings {
            self.settings(steps);
        }
        let connection = self.send_window;
        let may_go = |s: &ServedStream| {
            (s.is_uploaded || s.is_early)
                && s.rest.as_ref().and_then(VecDeque::front).is_some_and(|piece| match piece {
                    Piece::Data(bytes) => (*bytes as i64 + 256) <= connection.min(s.send_window),
                    _ => true,
                })
        };
        let ready: Vec<u32> = self.open.iter().filter(|(_, s)| may_go(s)).map(|(stream, _)| *stream).collect();
        if ready.is_empty() {
            return;
        }
        let stream = self.rng.one_of(&ready);
        let Some(mut served) = self.open.remove(&stream) else { return };
        let Some(piece) = served.rest.as_mut().and_then(VecDeque::pop_front) else { return };
        let is_last = served.rest.as_ref().is_some_and(VecDeque::is_empty);
        let mut out = Vec::new();
        let mark = if is_last { Landmark::End(stream) } else { Landmark::Begin(stream) };
        match piece {
            Piece::Interim => self.block(&mut out, stream, &self.interim_block(), false),
            Piece::Trailers => self.block(&mut out, stream, &trailers(), true),
            Piece::Head => {
                let block = self.head_block(&served);
                self.block(&mut out, stream, &block, is_last);
                served.head_bytes = out.len() as u64;
            }
            Piece::Data(bytes) => {
                let padding = if self.rng.in_thousand(200) { self.rng.below(256) as u8 } else { 0 };
                let ends = if is_last { flag::END_STREAM } else { 0 };
                let body = vec![b'x'; bytes];
                let before = out.len();
                if padding > 0 {
                    let payload = [&[padding][..], &body, &vec![0; usize::from(padding)]].concat();
                    out.extend(raw(kind::DATA, flag::PADDED | ends, stream, &payload));
                } else {
                    out.extend(raw(kind::DATA, ends, stream, &body));
                }
                let sent = (out.len() - before - HEAD_BYTES) as i64;
                self.send_window -= sent;
                served.send_window -= sent;
            }
        }
        if is_last && self.rng.in_thousand(self.rates.malformed) && matches!(piece, Piece::Data(_)) {
            // Too short for its length, or given up.
            served.rest = None;
            if served.has_length {
                out = raw(kind::DATA, flag::END_STREAM, stream, &[]);
                self.open.insert(stream, served);
            } else {
                out = raw(kind::RST_STREAM, 0, stream, &[0, 0, 0, 2]);
            }
            return steps.push(StreamStep::Send(out, Some(Landmark::Begin(stream))));
        }
        let is_early = is_last && !served.is_uploaded;
        self.open.insert(stream, served);
        steps.push(StreamStep::Send(out, Some(mark)));
        if is_early && self.rng.in_thousand(500) {
            steps.push(StreamStep::Send(raw(kind::RST_STREAM, 0, stream, &[0; 4]), None));
        }
        // The same or another stream goes on.
        if !is_last || ready.len() > 1 {
            self.later(Task::Answer, steps);
        }
    }

    fn interim_block(&self) -> Vec<u8> {
        let mut block = Vec::new();
        hpack::encode(&mut block, b":status", b"103", false);
        hpack::encode(&mut block, b"link", b"</a.css>", false);
        block
    }

    /// The block of an answer's head: with fields from the static table, literal, inserted, and from the table.
    fn head_block(&mut self, served: &ServedStream) -> Vec<u8> {
        let mut block = Vec::new();
        let fixed = STATUSES.iter().find(|(status, _)| *status == served.status).map(|(_, byte)| *byte);
        let digits = served.status.to_string();
        if self.newest == Some(served.status) && self.rng.in_thousand(500) {
            block.push(0xbe);
        } else if let (Some(byte), true) = (fixed, self.rng.in_thousand(700)) {
            block.push(byte);
        } else if self.rng.in_thousand(500) {
            // Inserted.
            block.extend([0x48, digits.len() as u8]);
            block.extend(digits.bytes());
            self.newest = Some(served.status);
        } else {
            block.extend([0x08, digits.len() as u8]);
            block.extend(digits.bytes());
        }
        if self.rng.in_thousand(300) {
            let value = format!("t{}", self.rng.below(10));
            block.extend([0x40, 7]);
            block.extend(b"x-token");
            block.push(value.len() as u8);
            block.extend(value.bytes());
            self.newest = None;
        }
        if served.has_length && !served.is_head {
            hpack::encode(&mut block, b"content-length", served.body_bytes.to_string().as_bytes(), false);
        }
        block
    }

    /// Writes a header block in frames of any size.
    fn block(&mut self, out: &mut Vec<u8>, stream: u32, block: &[u8], ends: bool) {
        let most = if self.rng.in_thousand(self.rates.pieces) { self.rng.between(1, 20) as usize } else { 16_384 };
        frame::write_headers(out, stream, block, ends, most.max(block.len().div_ceil(60)));
    }
}

fn trailers() -> Vec<u8> {
    let mut block = Vec::new();
    hpack::encode(&mut block, b"grpc-status", b"0", false);
    block
}

fn goaway(last: u32) -> Vec<u8> {
    raw(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}
