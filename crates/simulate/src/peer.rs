//! The other end of a connection: a badly behaved server that knows exactly what it received and sent.

use std::sync::Arc;

use lastdrop_http::{RequestHead, RequestParser};
use lastdrop_model::Micros;
use rustls::ServerConfig;

use crate::faults::{FaultModel, FaultRates, PlanNeeds};
use crate::layer::Layer;
use crate::rng::Rng;
use crate::streams::{StreamPeer, StreamStep};

/// The end of a chunked body, after its last chunk.
const EMPTY_LINE: &[u8] = b"\r\n";

/// How connecting goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectOutcome {
    RefusedAtOnce(i32),
    Refused(Micros),
    Never,
    AtOnce,
    After(Micros),
}

/// One action of a peer.
#[derive(Debug)]
pub enum Reaction {
    Pause(Micros),
    Send(Vec<u8>),
    End,
    Reset,
    /// Call [`Peer::act`] after this time.
    ActAfter(Micros),
}

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// When this many bytes have been sent on the connection.
    At(u64),
    /// When the connection ends; if TLS announces the end, this many bytes come before.
    Close(Option<u64>),
    /// Never.
    Never,
    /// Wherever it was cut off: such an answer is as long as its connection.
    Anywhere,
}

/// A final answer as the peer sent it.
#[derive(Debug, Clone)]
pub struct PeerAnswer {
    pub status: u16,
    pub head_bytes: u64,
    pub body_bytes: u64,
    /// Its first byte becomes readable with this many bytes of the connection.
    pub begins: u64,
    pub ending: AnswerEnd,
    /// It announced that the connection will be closed.
    pub closing: bool,
}

#[derive(Debug)]
pub struct Peer {
    pub meeting: ConnectOutcome,
    thread: usize,
    rates: FaultRates,
    wants: Arc<PlanNeeds>,
    config: Option<Arc<ServerConfig>>,
    rng: Rng,
    pub layer: Layer,
    parser: RequestParser,
    /// Bytes received since the last whole request.
    recent: Vec<u8>,
    /// Whole requests, except CONNECT.
    pub requests: Vec<RequestHead>,
    pub answers: Vec<PeerAnswer>,
    /// Bytes sent on the connection, and where the interim answer before the next final one begins.
    sent: u64,
    interim: Option<u64>,
    /// Bytes of requests before encryption.
    pub plain_bytes: u64,
    pub was_tls: bool,
    /// The peer will send nothing more.
    silent: bool,
    /// The peer has decided about 100 Continue for this request.
    considered: bool,
    /// A deferred action: send 100 Continue, or close the connection.
    later: Option<DeferredAction>,
    has_left: bool,
    /// Set if the server speaks HTTP/2.
    pub streams: Option<Box<StreamPeer>>,
}

#[derive(Debug, Clone, Copy)]
enum DeferredAction {
    Continue,
    /// Valid if no more than this many requests have arrived by then.
    Close(usize),
    Reset(usize),
}

const BODY: &[u8] = b"all work and no play makes jack a dull boy ";

impl Peer {
    #[must_use]
    pub fn new(faults: &FaultModel, mut rng: Rng) -> Peer {
        let rates = faults.rates;
        let meeting = if rng.in_thousand(rates.refuse_at_once) {
            ConnectOutcome::RefusedAtOnce(rng.one_of(&[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EADDRNOTAVAIL]))
        } else if rng.in_thousand(rates.refuse) {
            ConnectOutcome::Refused(rng.around(1, 20_000))
        } else if rng.in_thousand(rates.never) {
            ConnectOutcome::Never
        } else if rng.in_thousand(rates.at_once) {
            ConnectOutcome::AtOnce
        } else {
            ConnectOutcome::After(rng.around(1, 5_000))
        };
        let streams = faults.streams.map(|rates| Box::new(StreamPeer::new(rates, rng.others())));
        let other = faults.other_tls.as_ref().filter(|_| rng.in_thousand(150));
        Peer {
            streams,
            meeting,
            thread: faults.thread,
            rates,
            wants: Arc::clone(&faults.wants),
            config: other.or(faults.tls.as_ref()).cloned(),
            rng,
            layer: Layer::Unknown,
            parser: RequestParser::default(),
            recent: Vec::new(),
            requests: Vec::new(),
            answers: Vec::new(),
            sent: 0,
            interim: None,
            plain_bytes: 0,
            was_tls: false,
            silent: false,
            considered: false,
            later: None,
            has_left: false,
        }
    }

    /// Records that the shard has closed the connection.
    pub fn left(&mut self) {
        self.has_left = true;
    }

    /// Returns what the peer sends before the first request.
    pub fn greet(&mut self) -> Vec<Reaction> {
        if self.streams.is_some() || !self.rng.in_thousand(self.rates.greet) {
            return Vec::new();
        }
        // A greeting of a TLS server is not understood by anyone.
        let head = self.request_head();
        let pause = Reaction::Pause(self.rng.around(1, 5_000));
        let mut all = vec![pause];
        all.extend(self.answer(&head));
        all
    }

    /// The head of a request that has not arrived yet.
    fn request_head(&self) -> RequestHead {
        let method = if self.wants.head { "HEAD" } else { "GET" };
        RequestHead { method: method.into(), path: "/".into(), http10: false, keep_alive: true }
    }

    /// Processes bytes from the shard.
    pub fn receive(&mut self, bytes: &[u8]) -> Vec<Reaction> {
        let mut reactions = Vec::new();
        let through = self.layer.receive(bytes, self.config.as_ref());
        self.was_tls |= self.layer.is_tls();
        if !through.raw.is_empty() {
            self.send(through.raw, &mut reactions);
        }
        if through.broken {
            self.silent = true;
            reactions.push(Reaction::End);
            return reactions;
        }
        self.plain_bytes += through.plain.len() as u64;
        if let Some(streams) = &mut self.streams {
            let steps = streams.receive(&through.plain);
            self.perform(steps, &mut reactions);
            return reactions;
        }
        self.recent.extend_from_slice(&through.plain);
        self.parser.push(&through.plain);
        loop {
            match self.parser.next_request() {
                Ok(Some(head)) if head.method == "CONNECT" => {
                    self.tunnel(&mut reactions);
                    break;
                }
                Ok(Some(head)) => {
                    // A request answered before it was complete is not answered again.
                    let answered = self.answers.len() > self.requests.len();
                    self.requests.push(head.clone());
                    if !answered && !self.silent {
                        reactions.extend(self.answer(&head));
                    }
                    self.recent.clear();
                    self.considered = false;
                }
                Ok(None) => {
                    self.consider(&mut reactions);
                    break;
                }
                Err(_) => {
                    self.silent = true;
                    break;
                }
            }
        }
        reactions
    }

    /// Does what the server of HTTP/2 has decided on.
    fn perform(&mut self, steps: Vec<StreamStep>, reactions: &mut Vec<Reaction>) {
        for step in steps {
            match step {
                StreamStep::Pause(us) => reactions.push(Reaction::Pause(us)),
                StreamStep::ActAfter(us) => reactions.push(Reaction::ActAfter(us)),
                StreamStep::End => self.end(reactions),
                StreamStep::Reset => reactions.push(Reaction::Reset),
                StreamStep::Send(plain, landmark) => {
                    let (raw, _) = self.layer.wrap(&plain);
                    for piece in self.cut(raw) {
                        self.send(piece, reactions);
                    }
                    if let (Some(landmark), Some(streams)) = (landmark, &mut self.streams) {
                        streams.note(landmark, self.sent);
                    }
                }
            }
        }
    }

    /// Answers a CONNECT as a proxy.
    fn tunnel(&mut self, reactions: &mut Vec<Reaction>) {
        self.recent.clear();
        self.parser = RequestParser::default();
        self.layer = Layer::Unknown;
        // The shard counts the bytes of CONNECT like all others.
        reactions.push(Reaction::Pause(self.rng.around(1, 2_000)));
        let answer: &[u8] = match self.rng.below(100) {
            0..3 => b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            3..5 => b"SSH-2.0-proxy\r\n\r\n",
            5 => b"HTTP/1.1 200 OK\r\n\r\nmore",
            6 => {
                self.silent = true;
                reactions.push(Reaction::End);
                return;
            }
            _ => b"HTTP/1.1 200 Connection established\r\n\r\n",
        };
        for piece in self.cut(answer.to_vec()) {
            self.send(piece, reactions);
            let pause = Reaction::Pause(self.rng.below(300));
            reactions.push(pause);
        }
    }

    fn send(&mut self, raw: Vec<u8>, reactions: &mut Vec<Reaction>) {
        self.sent += raw.len() as u64;
        reactions.push(Reaction::Send(raw));
    }

    /// Reacts to an incomplete request.
    fn consider(&mut self, reactions: &mut Vec<Reaction>) {
        let head = self.recent.windows(4).any(|w| w == b"\r\n\r\n");
        if self.silent || self.considered || !head {
            return;
        }
        self.considered = true;
        let waits = self.recent.windows(12).any(|w| w == b"100-continue");
        if waits && self.rng.in_thousand(800) {
            self.later = Some(DeferredAction::Continue);
            let after = if self.rng.in_thousand(50) { 1_500_000 } else { self.rng.around(1, 3_000) };
            reactions.push(Reaction::ActAfter(after));
        } else if self.rng.in_thousand(self.rates.early) {
            let head = self.request_head();
            reactions.extend(self.answer(&head));
        }
    }

    /// Performs the deferred action.
    pub fn act(&mut self) -> Vec<Reaction> {
        let mut reactions = Vec::new();
        if let Some(streams) = &mut self.streams {
            let steps = streams.act();
            self.perform(steps, &mut reactions);
            return reactions;
        }
        if self.silent {
            return reactions;
        }
        match self.later.take() {
            Some(DeferredAction::Continue) if !self.recent.is_empty() => {
                self.interim("100 Continue", &mut reactions);
            }
            Some(DeferredAction::Close(requests)) if requests == self.requests.len() => self.end(&mut reactions),
            Some(DeferredAction::Reset(requests)) if requests == self.requests.len() => {
                self.silent = true;
                reactions.push(Reaction::Reset);
            }
            _ => {}
        }
        reactions
    }

    fn end(&mut self, reactions: &mut Vec<Reaction>) {
        self.silent = true;
        if self.rng.in_thousand(700) {
            let goodbye = self.layer.goodbye();
            if !goodbye.is_empty() {
                self.send(goodbye, reactions);
                // Some servers leave TCP open after it.
                if self.rng.in_thousand(300) {
                    return;
                }
            }
        }
        reactions.push(Reaction::End);
    }

    fn interim(&mut self, status: &str, reactions: &mut Vec<Reaction>) {
        let (raw, readable) = self.layer.wrap(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes());
        self.interim.get_or_insert(self.sent + readable as u64);
        self.send(raw, reactions);
    }

    fn cut(&mut self, raw: Vec<u8>) -> Vec<Vec<u8>> {
        let (pieces, single) = (self.rates.pieces, self.rates.single_bytes);
        let most = if self.rng.in_thousand(single) && raw.len() < 600 {
            1
        } else if self.rng.in_thousand(pieces) {
            self.rng.around(1, raw.len() as u64)
        } else {
            return vec![raw];
        };
        let mut all = Vec::new();
        let mut rest = raw.as_slice();
        while !rest.is_empty() {
            let n = self.rng.between(1, most).min(rest.len() as u64) as usize;
            let (piece, after) = rest.split_at(n);
            all.push(piece.to_vec());
            rest = after;
        }
        all
    }

    fn answer(&mut self, request: &RequestHead) -> Vec<Reaction> {
        let h = self.rates;
        let mut reactions = Vec::new();
        if self.rng.in_thousand(h.late) {
            reactions.push(Reaction::Pause(self.rng.around(1, h.latency_us)));
        }
        if self.rng.in_thousand(h.silent) {
            self.silent = true;
            match self.rng.below(3) {
                0 => {}
                1 => self.end(&mut reactions),
                _ => reactions.push(Reaction::Reset),
            }
            return reactions;
        }
        if self.rng.in_thousand(h.garbage) {
            self.silent = true;
            let (raw, _) = self.layer.wrap(b"\x00\x01 this is no HTTP \r\n\r\n");
            self.send(raw, &mut reactions);
            return reactions;
        }
        while self.rng.in_thousand(h.interim) {
            self.interim("103 Early Hints\r\nLink: </a.css>", &mut reactions);
            reactions.push(Reaction::Pause(self.rng.below(500)));
        }
        let closing = !request.keep_alive || self.rng.in_thousand(h.close);
        let made = self.make(request, closing);
        let (mut raw, readable) = self.layer.wrap(&made.bytes);
        let begins = self.interim.take().unwrap_or(self.sent + readable as u64);
        let mut answer = PeerAnswer { begins, ..made.answer };
        if let AnswerEnd::At(_) = answer.ending {
            answer.ending = AnswerEnd::At(self.sent + raw.len() as u64);
        }
        if self.rng.in_thousand(h.half) && raw.len() > 1 {
            let n = self.rng.between(1, raw.len() as u64 - 1) as usize;
            // With its last chunk a body is whole once the connection closes (RFC 9112, 8). A cut record of TLS brings none of it.
            let has_last_chunk =
                made.chunked && raw.len() == made.bytes.len() && n + EMPTY_LINE.len() >= made.bytes.len();
            raw.truncate(n);
            answer.ending = match answer.ending {
                AnswerEnd::Close(_) => AnswerEnd::Anywhere,
                _ if has_last_chunk => AnswerEnd::Close(None),
                _ => AnswerEnd::Never,
            };
            self.answers.push(answer);
            for piece in self.cut(raw) {
                self.send(piece, &mut reactions);
            }
            self.silent = true;
            reactions.push(Reaction::Pause(self.rng.below(2_000)));
            match self.rng.below(3) {
                0 => {}
                1 => reactions.push(Reaction::End),
                _ => reactions.push(Reaction::Reset),
            }
            return reactions;
        }
        for piece in self.cut(raw) {
            self.send(piece, &mut reactions);
            if self.rng.in_thousand(700) {
                reactions.push(Reaction::Pause(self.rng.below(h.latency_us / 10 + 2)));
            }
        }
        let until_close = answer.ending == AnswerEnd::Close(None);
        self.answers.push(answer);
        if until_close || closing {
            let before = self.sent;
            self.end(&mut reactions);
            if until_close
                && self.sent > before
                && let Some(answer) = self.answers.last_mut()
            {
                answer.ending = AnswerEnd::Close(Some(self.sent));
            }
            return reactions;
        }
        if self.rng.in_thousand(h.twice) {
            let pause = Reaction::Pause(self.rng.below(3_000));
            reactions.push(pause);
            let again = self.make(request, false);
            let (raw, readable) = self.layer.wrap(&again.bytes);
            let ending = match again.answer.ending {
                AnswerEnd::At(_) => AnswerEnd::At(self.sent + raw.len() as u64),
                other => other,
            };
            self.answers.push(PeerAnswer { begins: self.sent + readable as u64, ending, ..again.answer });
            self.send(raw, &mut reactions);
        } else if self.rng.in_thousand(h.close_later) {
            let requests = self.requests.len();
            self.later = Some(if self.rng.in_thousand(500) {
                DeferredAction::Close(requests)
            } else {
                DeferredAction::Reset(requests)
            });
            reactions.push(Reaction::ActAfter(self.rng.around(1, 50_000)));
        }
        reactions
    }

    /// Creates the bytes of a final answer.
    fn make(&mut self, request: &RequestHead, closing: bool) -> BuiltAnswer {
        let wants = Arc::clone(&self.wants);
        let mut fields = String::new();
        let mut status = 200;
        let authorized = self.recent.windows(21).any(|w| w == b"Authorization: Digest");
        if wants.digest && (!authorized || self.rng.in_thousand(50)) {
            status = 401;
            fields += "WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=SHA-256\r\n";
        } else if wants.redirects && self.rng.in_thousand(self.rates.redirect) {
            status = self.rng.one_of(&[301, 302, 303, 307, 308]);
            let port = self.rng.one_of(&wants.ports);
            let location = match self.rng.below(6) {
                0 => "http://elsewhere.invalid/".to_string(),
                1 => "http://[".to_string(),
                2 | 3 => format!("http://127.0.0.1:{port}/there"),
                _ => "/there".to_string(),
            };
            fields += &format!("Location: {location}\r\n");
        } else if self.rng.in_thousand(self.rates.error) {
            status = self.rng.one_of(&[404, 500, 503, 204, 304]);
        }
        if self.rng.in_thousand(self.rates.cookie) {
            fields += &format!("Set-Cookie: c{}={}; Path=/\r\n", self.rng.below(3), self.rng.below(100));
        }
        fields += &format!("X-Token: t{}\r\n", self.rng.below(1000));
        if closing {
            fields += "Connection: close\r\n";
        }
        let body = if wants.bodies_differ {
            if self.thread % 2 == 1 { b"second".to_vec() } else { b"first!".to_vec() }
        } else if wants.page && request.path.starts_with("/page") {
            self.page()
        } else {
            let n = self.rng.around(1, self.rates.body_bytes + 1) as usize - 1;
            BODY.iter().copied().cycle().take(n).collect()
        };
        let bodiless = request.method == "HEAD" || matches!(status, 204 | 304);
        let form = if bodiless { 0 } else { self.rng.below(10) };
        let mut ending = AnswerEnd::At(0);
        let mut coded = Vec::new();
        match form {
            0..6 => {
                fields += &format!("Content-Length: {}\r\n", body.len());
                coded.extend_from_slice(&body);
            }
            6..9 => {
                fields += "Transfer-Encoding: chunked\r\n";
                let size = self.rng.around(1, body.len().max(1) as u64) as usize;
                lastdrop_http::request::write_chunked(&mut coded, &body, size.max(body.len() / 20 + 1));
            }
            _ if closing => {
                coded.extend_from_slice(&body);
                ending = AnswerEnd::Close(None);
            }
            _ => {
                fields += &format!("Content-Length: {}\r\n", body.len());
                coded.extend_from_slice(&body);
            }
        }
        if bodiless {
            coded.clear();
        }
        let is_old = closing && !(6..9).contains(&form) && self.rng.in_thousand(200);
        let version = if is_old { "1.0" } else { "1.1" };
        let head = format!("HTTP/{version} {status} Some Words\r\n{fields}\r\n");
        let body_bytes = if bodiless { 0 } else { body.len() as u64 };
        let mut bytes = head.into_bytes();
        let answer = PeerAnswer { status, head_bytes: bytes.len() as u64, body_bytes, begins: 0, ending, closing };
        bytes.extend_from_slice(&coded);
        BuiltAnswer { bytes, answer, chunked: (6..9).contains(&form) }
    }

    /// Creates a page with references.
    fn page(&mut self) -> Vec<u8> {
        let mut html = String::from("<html>");
        for i in 0..self.rng.below(8) {
            let port = self.rng.one_of(&self.wants.ports.clone());
            html += &match self.rng.below(5) {
                0 => format!("<img src=\"http://127.0.0.1:{port}/i{i}.png\">"),
                1 => "<img src=\"http://elsewhere.invalid/x.png\">".to_string(),
                2 => "<script src=\"http://[\"></script>".to_string(),
                _ => format!("<link rel=stylesheet href=\"/s{i}.css\">"),
            };
        }
        html.into_bytes()
    }
}

struct BuiltAnswer {
    bytes: Vec<u8>,
    answer: PeerAnswer,
    chunked: bool,
}
