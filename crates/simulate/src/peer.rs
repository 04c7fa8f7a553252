//! The other end of a connection: a server of the worst manners, that knows exactly what it was asked and what it said.

use std::sync::Arc;

use lastdrop_http::{RequestHead, RequestParser};
use lastdrop_model::Micros;
use rustls::ServerConfig;

use crate::dice::Dice;
use crate::layer::Layer;
use crate::weather::{Habits, Wants, Weather};

/// How a connection comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Meeting {
    RefusedAtOnce(i32),
    Refused(Micros),
    Never,
    AtOnce,
    After(Micros),
}

/// What a peer does, one after the other.
#[derive(Debug)]
pub enum Reaction {
    Pause(Micros),
    Send(Vec<u8>),
    End,
    Reset,
    /// [`Peer::act`] is to be called after this time.
    ActAfter(Micros),
}

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With so many bytes sent on the connection.
    At(u64),
    /// With the connection; where TLS says so itself, so many bytes come before that.
    Close(Option<u64>),
    /// It never does.
    Never,
    /// Where it was cut off: such an answer is as long as its connection.
    Anywhere,
}

/// A final answer as the peer gave it.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub head_bytes: u64,
    pub body_bytes: u64,
    /// Its first byte can be read with so many bytes of the connection.
    pub begins: u64,
    pub ending: Ending,
    /// It said that the connection will be closed.
    pub closing: bool,
}

#[derive(Debug)]
pub struct Peer {
    pub meeting: Meeting,
    thread: usize,
    habits: Habits,
    wants: Arc<Wants>,
    config: Option<Arc<ServerConfig>>,
    dice: Dice,
    pub layer: Layer,
    parser: RequestParser,
    /// What came since the last whole request.
    recent: Vec<u8>,
    /// Whole requests, but for CONNECT.
    pub requests: Vec<RequestHead>,
    pub answers: Vec<Answer>,
    /// Bytes that it has sent on the connection, and where the interim answer before the next final one begins.
    sent: u64,
    interim: Option<u64>,
    /// Bytes of requests as the plan has them.
    pub plain_bytes: u64,
    pub was_tls: bool,
    /// It has said all that it will.
    silent: bool,
    /// 100 Continue has been thought about for this request.
    considered: bool,
    /// What it does later: says 100 Continue, or lets go of the connection.
    later: Option<Later>,
    has_left: bool,
}

#[derive(Debug, Clone, Copy)]
enum Later {
    Continue,
    /// So many requests had come when it was decided.
    Close(usize),
    Reset(usize),
}

const BODY: &[u8] = b"all work and no play makes jack a dull boy ";

impl Peer {
    #[must_use]
    pub fn new(weather: &Weather, mut dice: Dice) -> Peer {
        let habits = weather.habits;
        let meeting = if dice.in_thousand(habits.refuse_at_once) {
            Meeting::RefusedAtOnce(dice.one_of(&[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EADDRNOTAVAIL]))
        } else if dice.in_thousand(habits.refuse) {
            Meeting::Refused(dice.around(1, 20_000))
        } else if dice.in_thousand(habits.never) {
            Meeting::Never
        } else if dice.in_thousand(habits.at_once) {
            Meeting::AtOnce
        } else {
            Meeting::After(dice.around(1, 5_000))
        };
        Peer {
            meeting,
            thread: weather.thread,
            habits,
            wants: Arc::clone(&weather.wants),
            config: weather.tls.clone(),
            dice,
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

    /// The shard has closed the connection.
    pub fn left(&mut self) {
        self.has_left = true;
    }

    /// What it says before it is asked.
    pub fn greet(&mut self) -> Vec<Reaction> {
        if !self.dice.in_thousand(self.habits.greet) {
            return Vec::new();
        }
        // A server with TLS says nothing that anybody would understand.
        let head = self.request_head();
        let pause = Reaction::Pause(self.dice.around(1, 5_000));
        let mut all = vec![pause];
        all.extend(self.answer(&head));
        all
    }

    /// Of a request that is not there yet.
    fn request_head(&self) -> RequestHead {
        let method = if self.wants.head { "HEAD" } else { "GET" };
        RequestHead { method: method.into(), path: "/".into(), http10: false, keep_alive: true }
    }

    /// Takes what the shard has sent.
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
        self.recent.extend_from_slice(&through.plain);
        self.parser.push(&through.plain);
        loop {
            match self.parser.next_request() {
                Ok(Some(head)) if head.method == "CONNECT" => {
                    self.tunnel(&mut reactions);
                    break;
                }
                Ok(Some(head)) => {
                    // One that was answered before it was whole is not answered again.
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

    /// The answer of a proxy to CONNECT.
    fn tunnel(&mut self, reactions: &mut Vec<Reaction>) {
        self.recent.clear();
        self.parser = RequestParser::default();
        self.layer = Layer::Unknown;
        // The bytes of CONNECT are counted by the shard like all others.
        reactions.push(Reaction::Pause(self.dice.around(1, 2_000)));
        let answer: &[u8] = match self.dice.below(100) {
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
            let pause = Reaction::Pause(self.dice.below(300));
            reactions.push(pause);
        }
    }

    fn send(&mut self, raw: Vec<u8>, reactions: &mut Vec<Reaction>) {
        self.sent += raw.len() as u64;
        reactions.push(Reaction::Send(raw));
    }

    /// Only a part of a request is there.
    fn consider(&mut self, reactions: &mut Vec<Reaction>) {
        let head = self.recent.windows(4).any(|w| w == b"\r\n\r\n");
        if self.silent || self.considered || !head {
            return;
        }
        self.considered = true;
        let waits = self.recent.windows(12).any(|w| w == b"100-continue");
        if waits && self.dice.in_thousand(800) {
            self.later = Some(Later::Continue);
            let after = if self.dice.in_thousand(50) { 1_500_000 } else { self.dice.around(1, 3_000) };
            reactions.push(Reaction::ActAfter(after));
        } else if self.dice.in_thousand(self.habits.early) {
            let head = self.request_head();
            reactions.extend(self.answer(&head));
        }
    }

    /// What it had put off.
    pub fn act(&mut self) -> Vec<Reaction> {
        let mut reactions = Vec::new();
        if self.silent {
            return reactions;
        }
        match self.later.take() {
            Some(Later::Continue) if !self.recent.is_empty() => {
                self.interim("100 Continue", &mut reactions);
            }
            Some(Later::Close(requests)) if requests == self.requests.len() => self.end(&mut reactions),
            Some(Later::Reset(requests)) if requests == self.requests.len() => {
                self.silent = true;
                reactions.push(Reaction::Reset);
            }
            _ => {}
        }
        reactions
    }

    fn end(&mut self, reactions: &mut Vec<Reaction>) {
        self.silent = true;
        if self.dice.in_thousand(700) {
            let goodbye = self.layer.goodbye();
            if !goodbye.is_empty() {
                self.send(goodbye, reactions);
                // Some leave TCP open after it.
                if self.dice.in_thousand(300) {
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
        let (pieces, single) = (self.habits.pieces, self.habits.single_bytes);
        let most = if self.dice.in_thousand(single) && raw.len() < 600 {
            1
        } else if self.dice.in_thousand(pieces) {
            self.dice.around(1, raw.len() as u64)
        } else {
            return vec![raw];
        };
        let mut all = Vec::new();
        let mut rest = raw.as_slice();
        while !rest.is_empty() {
            let n = self.dice.between(1, most).min(rest.len() as u64) as usize;
            let (piece, after) = rest.split_at(n);
            all.push(piece.to_vec());
            rest = after;
        }
        all
    }

    fn answer(&mut self, request: &RequestHead) -> Vec<Reaction> {
        let h = self.habits;
        let mut reactions = Vec::new();
        if self.dice.in_thousand(h.late) {
            reactions.push(Reaction::Pause(self.dice.around(1, h.latency_us)));
        }
        if self.dice.in_thousand(h.silent) {
            self.silent = true;
            match self.dice.below(3) {
                0 => {}
                1 => self.end(&mut reactions),
                _ => reactions.push(Reaction::Reset),
            }
            return reactions;
        }
        if self.dice.in_thousand(h.garbage) {
            self.silent = true;
            let (raw, _) = self.layer.wrap(b"\x00\x01 this is no HTTP \r\n\r\n");
            self.send(raw, &mut reactions);
            return reactions;
        }
        while self.dice.in_thousand(h.interim) {
            self.interim("103 Early Hints\r\nLink: </a.css>", &mut reactions);
            reactions.push(Reaction::Pause(self.dice.below(500)));
        }
        let closing = !request.keep_alive || self.dice.in_thousand(h.close);
        let made = self.make(request, closing);
        let (mut raw, readable) = self.layer.wrap(&made.bytes);
        let begins = self.interim.take().unwrap_or(self.sent + readable as u64);
        let mut answer = Answer { begins, ..made.answer };
        if let Ending::At(_) = answer.ending {
            answer.ending = Ending::At(self.sent + raw.len() as u64);
        }
        if self.dice.in_thousand(h.half) && raw.len() > 1 {
            let n = self.dice.between(1, raw.len() as u64 - 1) as usize;
            raw.truncate(n);
            answer.ending = if let Ending::Close(_) = answer.ending { Ending::Anywhere } else { Ending::Never };
            self.answers.push(answer);
            for piece in self.cut(raw) {
                self.send(piece, &mut reactions);
            }
            self.silent = true;
            reactions.push(Reaction::Pause(self.dice.below(2_000)));
            match self.dice.below(3) {
                0 => {}
                1 => reactions.push(Reaction::End),
                _ => reactions.push(Reaction::Reset),
            }
            return reactions;
        }
        for piece in self.cut(raw) {
            self.send(piece, &mut reactions);
            if self.dice.in_thousand(700) {
                reactions.push(Reaction::Pause(self.dice.below(h.latency_us / 10 + 2)));
            }
        }
        let until_close = answer.ending == Ending::Close(None);
        self.answers.push(answer);
        if until_close || closing {
            let before = self.sent;
            self.end(&mut reactions);
            if until_close
                && self.sent > before
                && let Some(answer) = self.answers.last_mut()
            {
                answer.ending = Ending::Close(Some(self.sent));
            }
            return reactions;
        }
        if self.dice.in_thousand(h.twice) {
            let pause = Reaction::Pause(self.dice.below(3_000));
            reactions.push(pause);
            let again = self.make(request, false);
            let (raw, readable) = self.layer.wrap(&again.bytes);
            let ending = match again.answer.ending {
                Ending::At(_) => Ending::At(self.sent + raw.len() as u64),
                other => other,
            };
            self.answers.push(Answer { begins: self.sent + readable as u64, ending, ..again.answer });
            self.send(raw, &mut reactions);
        } else if self.dice.in_thousand(h.close_later) {
            let requests = self.requests.len();
            self.later = Some(if self.dice.in_thousand(500) { Later::Close(requests) } else { Later::Reset(requests) });
            reactions.push(Reaction::ActAfter(self.dice.around(1, 50_000)));
        }
        reactions
    }

    /// The bytes of a final answer.
    fn make(&mut self, request: &RequestHead, closing: bool) -> Made {
        let wants = Arc::clone(&self.wants);
        let mut fields = String::new();
        let mut status = 200;
        let authorized = self.recent.windows(21).any(|w| w == b"Authorization: Digest");
        if wants.digest && (!authorized || self.dice.in_thousand(50)) {
            status = 401;
            fields += "WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=SHA-256\r\n";
        } else if wants.redirects && self.dice.in_thousand(self.habits.redirect) {
            status = self.dice.one_of(&[301, 302, 303, 307, 308]);
            let port = self.dice.one_of(&wants.ports);
            let location = match self.dice.below(6) {
                0 => "http://elsewhere.invalid/".to_string(),
                1 => "http://[".to_string(),
                2 | 3 => format!("http://127.0.0.1:{port}/there"),
                _ => "/there".to_string(),
            };
            fields += &format!("Location: {location}\r\n");
        } else if self.dice.in_thousand(self.habits.error) {
            status = self.dice.one_of(&[404, 500, 503, 204, 304]);
        }
        if self.dice.in_thousand(self.habits.cookie) {
            fields += &format!("Set-Cookie: c{}={}; Path=/\r\n", self.dice.below(3), self.dice.below(100));
        }
        fields += &format!("X-Token: t{}\r\n", self.dice.below(1000));
        if closing {
            fields += "Connection: close\r\n";
        }
        let body = if wants.bodies_differ {
            if self.thread % 2 == 1 { b"second".to_vec() } else { b"first!".to_vec() }
        } else if wants.page && request.path.starts_with("/page") {
            self.page()
        } else {
            let n = self.dice.around(1, self.habits.body_bytes + 1) as usize - 1;
            BODY.iter().copied().cycle().take(n).collect()
        };
        let bodiless = request.method == "HEAD" || matches!(status, 204 | 304);
        let form = if bodiless { 0 } else { self.dice.below(10) };
        let mut ending = Ending::At(0);
        let mut coded = Vec::new();
        match form {
            0..6 => {
                fields += &format!("Content-Length: {}\r\n", body.len());
                coded.extend_from_slice(&body);
            }
            6..9 => {
                fields += "Transfer-Encoding: chunked\r\n";
                let size = self.dice.around(1, body.len().max(1) as u64) as usize;
                lastdrop_http::request::write_chunked(&mut coded, &body, size.max(body.len() / 20 + 1));
            }
            _ if closing => {
                coded.extend_from_slice(&body);
                ending = Ending::Close(None);
            }
            _ => {
                fields += &format!("Content-Length: {}\r\n", body.len());
                coded.extend_from_slice(&body);
            }
        }
        if bodiless {
            coded.clear();
        }
        let is_old = closing && !(6..9).contains(&form) && self.dice.in_thousand(200);
        let version = if is_old { "1.0" } else { "1.1" };
        let head = format!("HTTP/{version} {status} Some Words\r\n{fields}\r\n");
        let body_bytes = if bodiless { 0 } else { body.len() as u64 };
        let mut bytes = head.into_bytes();
        let answer = Answer { status, head_bytes: bytes.len() as u64, body_bytes, begins: 0, ending, closing };
        bytes.extend_from_slice(&coded);
        Made { bytes, answer }
    }

    /// A page with references.
    fn page(&mut self) -> Vec<u8> {
        let mut html = String::from("<html>");
        for i in 0..self.dice.below(8) {
            let port = self.dice.one_of(&self.wants.ports.clone());
            html += &match self.dice.below(5) {
                0 => format!("<img src=\"http://127.0.0.1:{port}/i{i}.png\">"),
                1 => "<img src=\"http://elsewhere.invalid/x.png\">".to_string(),
                2 => "<script src=\"http://[\"></script>".to_string(),
                _ => format!("<link rel=stylesheet href=\"/s{i}.css\">"),
            };
        }
        html.into_bytes()
    }
}

struct Made {
    bytes: Vec<u8>,
    answer: Answer,
}
