//! Relays an answer to the browser, and keeps the beginning of its text.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use lastdrop_http::content::Decoder;
use lastdrop_http::request::write_field;
use lastdrop_model::Url;
use lastdrop_traffic::recording::RecordedAnswer;
use lastdrop_wire::Wire;

use crate::bounds;
use crate::exchange::{OWN_FIELDS, status_line};
use crate::incoming::{Request, field};
use crate::listener::ProxyState;
use crate::recorder::MemoryReservation;
use crate::rewrite::{self, Replacer};

/// Fields that would make the browser bypass the proxy.
const LEADS_AWAY: [&str; 2] = ["alt-svc", "strict-transport-security"];

/// How the browser recognises the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// As the server says, or there is no body.
    AsItIs,
    Chunked,
    UntilClose,
}

/// Receives the output of a decoder.
#[derive(Debug, Clone, Default)]
struct DecodedBytes(Rc<RefCell<Vec<u8>>>);

impl Write for DecodedBytes {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of a text, as the server sent it.
#[derive(Debug)]
struct RecordedText<'a> {
    bytes: Vec<u8>,
    held: MemoryReservation<'a>,
}

#[derive(Debug)]
pub struct ResponseRelay<'a> {
    shared: &'a ProxyState,
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    content_type: String,
    framing: Framing,
    decoder: Option<(Decoder<DecodedBytes>, DecodedBytes)>,
    replacer: Option<Replacer<'a>>,
    text: Option<RecordedText<'a>>,
    pub keeps_connection: bool,
}

impl<'a> ResponseRelay<'a> {
    /// Starts with this head; keeps no text of page resources.
    pub fn new(
        shared: &'a ProxyState,
        request: &Request<'_>,
        url: &Url,
        status: u16,
        fields: Vec<(String, Vec<u8>)>,
        is_part: bool,
    ) -> ResponseRelay<'a> {
        let content_type = field(&fields, "content-type").unwrap_or_default();
        let content_type = String::from_utf8_lossy(content_type).to_ascii_lowercase();
        let has_body = request.head.method != "HEAD" && status != 204 && status != 304;
        let coding = field(&fields, "content-encoding").filter(|c| has_body && !c.eq_ignore_ascii_case(b"identity"));
        let decoded = DecodedBytes::default();
        let decoder = coding.and_then(|coding| Decoder::new(coding, decoded.clone()).ok()).map(|d| (d, decoded));
        let is_readable = has_body && rewrite::has_names(&content_type) && (coding.is_none() || decoder.is_some());
        if coding.is_some() && decoder.is_none() {
            shared.recorder.trouble("an answer in an unknown coding: it is passed on, and no values are found in it");
        }
        let replacer = shared.names.as_ref().filter(|_| is_readable).map(rewrite::Names::replacer);
        let is_as_it_is = decoder.is_none() && replacer.is_none() && field(&fields, "content-length").is_some();
        let framing = match has_body {
            false => Framing::AsItIs,
            true if is_as_it_is => Framing::AsItIs,
            true if request.head.http10 => Framing::UntilClose,
            true => Framing::Chunked,
        };
        let text = (is_readable && !is_part).then(|| shared.recorder.hold(0)).flatten();
        let text = text.map(|held| RecordedText { bytes: Vec::new(), held });
        let keeps_connection = request.head.keep_alive && framing != Framing::UntilClose;
        let back =
            ResponseRelay { shared, status, fields, content_type, framing, decoder, replacer, text, keeps_connection };
        back.warn_of_leaving(url);
        back
    }

    /// Warns of a redirect to another server, which ends the recorded part.
    fn warn_of_leaving(&self, url: &Url) {
        let location = field(&self.fields, "location").filter(|_| (300..400).contains(&self.status));
        if self.shared.names.is_some()
            && let Some(there) = location.and_then(|l| url.join(l).ok())
            && there.authority() != url.authority()
        {
            self.shared.recorder.trouble(format!("a redirect leads to {}, which is not recorded", there.origin()));
        }
    }

    /// Sends the head.
    pub fn begin(&mut self, wire: &mut Wire) -> io::Result<()> {
        let mut head = status_line(self.status);
        for (name, value) in &self.fields {
            let lower = name.to_ascii_lowercase();
            let is_length = lower == "content-length" && self.framing == Framing::AsItIs;
            let is_undone = lower == "content-encoding" && self.decoder.is_some();
            if (OWN_FIELDS.contains(&lower.as_str()) && !is_length) || LEADS_AWAY.contains(&lower.as_str()) || is_undone
            {
                continue;
            }
            write_field(&mut head, name, &self.for_browser(&lower, value));
        }
        if self.framing == Framing::Chunked {
            write_field(&mut head, "Transfer-Encoding", b"chunked");
        }
        write_field(&mut head, "Connection", if self.keeps_connection { b"keep-alive" } else { b"close" });
        head.extend_from_slice(b"\r\n");
        wire.within(bounds::SILENCE);
        wire.write(&head)
    }

    fn for_browser(&self, name: &str, value: &[u8]) -> Vec<u8> {
        let Some(names) = &self.shared.names else { return value.to_vec() };
        match (name, str::from_utf8(value)) {
            ("set-cookie", Ok(text)) => rewrite::set_cookie(text).into_bytes(),
            ("set-cookie", Err(_)) => value.to_vec(),
            ("content-security-policy", Ok(text)) => names.for_browser(rewrite::policy(text).as_bytes()),
            _ => names.for_browser(value),
        }
    }

    /// Sends a piece of the body that the server has sent.
    pub fn pass(&mut self, wire: &mut Wire, piece: &[u8]) -> io::Result<()> {
        match &mut self.decoder {
            None => self.send(wire, piece),
            Some((decoder, decoded)) => {
                decoder
                    .feed(piece)
                    .map_err(|e| self.shared.recorder.trouble(e.0))
                    .map_err(|()| io::Error::other("coding"))?;
                let plain = decoded.0.take();
                self.send(wire, &plain)
            }
        }
    }

    /// Sends the end of the body.
    pub fn finish(&mut self, wire: &mut Wire) -> io::Result<()> {
        if let Some((mut decoder, decoded)) = self.decoder.take() {
            decoder.finish().map_err(|e| io::Error::other(e.0))?;
            let plain = decoded.0.take();
            self.send(wire, &plain)?;
        }
        let mut rest = Vec::new();
        if let Some(replacer) = &mut self.replacer {
            replacer.finish(&mut rest);
        }
        self.frame(wire, &rest)?;
        if self.framing == Framing::Chunked { wire.write(b"0\r\n\r\n") } else { Ok(()) }
    }

    /// Keeps a piece, and sends it with the names that the browser knows.
    fn send(&mut self, wire: &mut Wire, plain: &[u8]) -> io::Result<()> {
        if let Some(text) = &mut self.text {
            let room = bounds::ANSWER_BYTES.saturating_sub(text.bytes.len()).min(plain.len());
            if text.held.grow(room) {
                text.bytes.extend_from_slice(&plain[..room]);
            }
        }
        match &mut self.replacer {
            None => self.frame(wire, plain),
            Some(replacer) => {
                let mut out = Vec::with_capacity(plain.len() + 64);
                replacer.feed(plain, &mut out);
                self.frame(wire, &out)
            }
        }
    }

    fn frame(&self, wire: &mut Wire, body: &[u8]) -> io::Result<()> {
        if body.is_empty() {
            return Ok(());
        }
        wire.within(bounds::SILENCE);
        if self.framing != Framing::Chunked {
            return wire.write(body);
        }
        wire.write(&chunk(body))
    }

    /// Returns the answer for the recording.
    pub fn answer(self) -> RecordedAnswer {
        let text = self.text.map(|text| String::from_utf8_lossy(&text.bytes).into_owned()).unwrap_or_default();
        let headers = self.fields.into_iter().map(|(n, v)| (n, String::from_utf8_lossy(&v).into_owned())).collect();
        RecordedAnswer { status: self.status, headers, content_type: self.content_type, text }
    }
}

/// One chunk of a chunked body.
fn chunk(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{:x}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\r\n");
    bytes
}
