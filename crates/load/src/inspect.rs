//! Inspects answers: expectations, values for later requests, cookies, redirects, challenges.
//!
//! Only answers to requests that need it are inspected; all others are counted and forgotten. The part of a body that
//! is kept is bounded, so that a hostile server cannot fill our memory.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::OnceLock;

use crc32fast::Hasher as Crc32;
use lastdrop_http::Sink;
use lastdrop_http::content::Decoder;
use lastdrop_http::digest::hex;
use lastdrop_model::class;
use lastdrop_model::request::{Checksum, Expectation};
use md5::Md5;
use memchr::memmem;
use sha2::{Digest, Sha256};

use crate::extract::{Extraction, Rule};

/// Largest part of a body that is searched for texts, values and links.
pub const MOST_KEPT_BYTES: usize = 4 << 20;
/// Largest part of a body that is kept only to look for signs of failure.
const PEEKED_BYTES: usize = 64 << 10;
/// Memory for all bodies that arrive on a thread's connections at once. A hundred pages of the size above fit. When it
/// is used up, only the length of further data is recorded.
const MOST_HELD_BYTES: usize = 256 << 20;

/// What has to be kept of an answer.
#[derive(Debug, Clone, Default)]
pub struct CaptureSpec {
    pub headers: Vec<String>,
    pub cookies: bool,
    pub location: bool,
    pub challenge: bool,
    pub caching: bool,
    pub body: bool,
    /// The beginning of the body is enough.
    pub peek: bool,
    pub crc32: bool,
    pub md5: bool,
    pub sha256: bool,
    pub decode: bool,
}

thread_local! {
    /// Bytes that this thread uses for bodies: kept data and decoder windows.
    static HELD_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Accounts for a part of the memory that a thread has for bodies.
#[derive(Debug, Default)]
struct BodyMemory(usize);

impl BodyMemory {
    fn set(&mut self, bytes: usize) {
        HELD_BYTES.set(HELD_BYTES.get() - self.0 + bytes);
        self.0 = bytes;
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn is_full() -> bool {
    HELD_BYTES.get() >= MOST_HELD_BYTES
}

/// The beginning of a body.
#[derive(Debug)]
struct BodyPrefix {
    bytes: Vec<u8>,
    held: BodyMemory,
    /// Most bytes to keep.
    most: usize,
    /// The body had more.
    cut: bool,
}

impl BodyPrefix {
    fn new(most: usize) -> BodyPrefix {
        BodyPrefix { bytes: Vec::new(), held: BodyMemory::default(), most, cut: false }
    }

    fn take(&mut self, data: &[u8]) {
        let room = if is_full() { 0 } else { self.most - self.bytes.len() };
        self.cut |= data.len() > room;
        self.bytes.extend_from_slice(&data[..data.len().min(room)]);
        self.held.set(self.bytes.capacity());
    }
}

/// What is kept of one body.
#[derive(Default)]
struct CapturedBody {
    bytes: u64,
    kept: Option<BodyPrefix>,
    crc32: Option<Crc32>,
    md5: Option<Md5>,
    sha256: Option<Sha256>,
}

impl CapturedBody {
    fn new(wanted: &CaptureSpec) -> CapturedBody {
        CapturedBody {
            bytes: 0,
            kept: (wanted.body || wanted.peek)
                .then(|| BodyPrefix::new(if wanted.body { MOST_KEPT_BYTES } else { PEEKED_BYTES })),
            crc32: wanted.crc32.then(Crc32::new),
            md5: wanted.md5.then(Md5::new),
            sha256: wanted.sha256.then(Sha256::new),
        }
    }

    fn take(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.take(data);
        }
        if let Some(sum) = &mut self.crc32 {
            sum.update(data);
        }
        if let Some(sum) = &mut self.md5 {
            sum.update(data);
        }
        if let Some(sum) = &mut self.sha256 {
            sum.update(data);
        }
    }
}

impl Write for CapturedBody {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.take(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Content {
    Plain(Box<CapturedBody>),
    Coded {
        decoder: Box<Decoder<CapturedBody>>,
        window: BodyMemory,
        /// The rest was not decoded for lack of memory.
        cut: bool,
    },
}

/// What is collected from one answer while it arrives.
pub struct Capture {
    wanted: CaptureSpec,
    pub headers: Vec<(String, Vec<u8>)>,
    pub cookies: Vec<Vec<u8>>,
    pub location: Option<Vec<u8>>,
    pub challenges: Vec<Vec<u8>>,
    /// A cache may not reuse the answer without asking again.
    pub no_store: bool,
    /// The body does not decode.
    pub damaged: bool,
    /// Bytes of the body before decoding.
    coded_bytes: u64,
    content: Content,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capture")
    }
}

impl Capture {
    #[must_use]
    pub fn new(wanted: &CaptureSpec) -> Capture {
        Capture {
            wanted: wanted.clone(),
            headers: Vec::new(),
            cookies: Vec::new(),
            location: None,
            challenges: Vec::new(),
            no_store: false,
            damaged: false,
            coded_bytes: 0,
            content: Content::Plain(Box::new(CapturedBody::new(wanted))),
        }
    }

    /// For a resource that a page embeds: expectations and values are about the page.
    #[must_use]
    pub fn of_part(wanted: &CaptureSpec) -> Capture {
        let CaptureSpec { cookies, location, challenge, caching, decode, .. } = *wanted;
        Capture::new(&CaptureSpec { cookies, location, challenge, caching, decode, ..CaptureSpec::default() })
    }

    fn seen(&self) -> &CapturedBody {
        match &self.content {
            Content::Plain(body) => body,
            Content::Coded { decoder, .. } => decoder.inner(),
        }
    }

    /// Ends the answer.
    pub fn finish(&mut self) {
        // Answers to HEAD, 204 and 304 name a coding but have no body; an empty body has nothing to decode.
        if self.coded_bytes == 0 {
            return;
        }
        if let Content::Coded { decoder, cut: false, .. } = &mut self.content {
            self.damaged |= decoder.finish().is_err();
        }
    }

    /// Bytes of the body, decoded if the plan asks for it.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.seen().bytes
    }

    /// Bytes before and after decoding; `None` if there was no decoder.
    #[must_use]
    pub fn decoded_bytes(&self) -> Option<(u64, u64)> {
        matches!(self.content, Content::Coded { .. }).then(|| (self.coded_bytes, self.seen().bytes))
    }

    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.seen().kept.as_ref().map_or(&[][..], |kept| &kept.bytes)
    }

    /// Whether more of the body was wanted than the memory allows.
    #[must_use]
    pub fn left_out(&self) -> bool {
        (self.wanted.body && self.seen().kept.as_ref().is_some_and(|kept| kept.cut))
            || matches!(self.content, Content::Coded { cut: true, .. })
    }

    #[must_use]
    pub fn crc32(&self) -> Option<u32> {
        self.seen().crc32.clone().map(Crc32::finalize)
    }

    /// Whether the answer to a request for `target` meets an expectation. `first` is the CRC-32 of the first answer to
    /// the same request.
    #[must_use]
    pub fn meets(&self, expectation: &Expectation, status: u16, target: &[u8], first: &OnceLock<u32>) -> bool {
        let body = self.seen();
        match expectation {
            Expectation::Status(list) => list.iter().any(|s| if *s < 10 { status / 100 == *s } else { status == *s }),
            Expectation::Length(n) => body.bytes == *n,
            Expectation::Url(pattern) => class::leads_to(pattern, &String::from_utf8_lossy(target)),
            Expectation::Text(text) => memmem::find(self.body(), text.as_bytes()).is_some(),
            Expectation::NoText(text) => memmem::find(self.body(), text.as_bytes()).is_none(),
            Expectation::Checksum(Checksum::Crc32(sum)) => self.crc32().is_some_and(|c| format!("{c:08x}") == *sum),
            Expectation::Checksum(Checksum::Md5(sum)) => body.md5.clone().is_some_and(|h| hex(&h.finalize()) == *sum),
            Expectation::Checksum(Checksum::Sha256(sum)) => {
                body.sha256.clone().is_some_and(|h| hex(&h.finalize()) == *sum)
            }
            Expectation::Same => {
                let Some(sum) = self.crc32() else { return false };
                *first.get_or_init(|| sum) == sum
            }
        }
    }
}

impl Sink for Capture {
    fn field(&mut self, name: &str, value: &[u8]) {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if self.wanted.cookies && is("set-cookie") {
            self.cookies.push(value.to_vec());
        } else if self.wanted.location && is("location") {
            self.location = Some(value.to_vec());
        } else if self.wanted.challenge && is("www-authenticate") {
            self.challenges.push(value.to_vec());
        } else if self.wanted.caching && is("cache-control") {
            let text = String::from_utf8_lossy(value).to_ascii_lowercase();
            self.no_store |= ["no-store", "no-cache", "max-age=0"].iter().any(|w| text.contains(w));
        } else if self.wanted.decode
            && is("content-encoding")
            && let Ok(decoder) = Decoder::new(value, CapturedBody::new(&self.wanted))
        {
            self.content = Content::Coded { decoder: Box::new(decoder), window: BodyMemory::default(), cut: false };
        }
        if self.wanted.headers.iter().any(|h| is(h)) {
            self.headers.push((name.to_string(), value.to_vec()));
        }
    }

    fn body(&mut self, bytes: &[u8]) {
        if matches!(self.content, Content::Coded { .. }) {
            self.coded_bytes += bytes.len() as u64;
        }
        match &mut self.content {
            Content::Plain(body) => body.take(bytes),
            Content::Coded { decoder, window, cut } if !self.damaged => {
                *cut |= is_full();
                if !*cut {
                    self.damaged = decoder.feed(bytes).is_err();
                    window.set(decoder.window_bytes() as usize);
                }
            }
            Content::Coded { .. } => {}
        }
    }
}

/// What the expectations and extractions of a request need to see.
#[must_use]
pub fn wanted(expect: &[Expectation], extract: &[Extraction]) -> CaptureSpec {
    let mut w = CaptureSpec::default();
    for e in expect {
        match e {
            Expectation::Status(_) | Expectation::Length(_) | Expectation::Url(_) => {}
            Expectation::Text(_) | Expectation::NoText(_) => w.body = true,
            Expectation::Checksum(Checksum::Crc32(_)) | Expectation::Same => w.crc32 = true,
            Expectation::Checksum(Checksum::Md5(_)) => w.md5 = true,
            Expectation::Checksum(Checksum::Sha256(_)) => w.sha256 = true,
        }
    }
    for e in extract {
        match &e.rule {
            Rule::Header(name) => w.headers.push(name.clone()),
            Rule::Regex(_) | Rule::Json(_) => w.body = true,
            Rule::Url(_) => w.location = true,
        }
    }
    w
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_for_bodies_has_a_bound_and_what_is_left_out_is_told() {
        let wanted = CaptureSpec { body: true, decode: true, ..CaptureSpec::default() };
        let mut all: Vec<Capture> = (0..100).map(|_| Capture::new(&wanted)).collect();
        let piece = vec![b'x'; 1 << 20];
        for capture in &mut all {
            (0..4).for_each(|_| Sink::body(capture, &piece));
        }
        assert!(HELD_BYTES.get() < MOST_HELD_BYTES + 2 * MOST_KEPT_BYTES, "{}", HELD_BYTES.get());
        assert!(!all[0].left_out() && all[99].left_out());
        assert_eq!((all[0].body().len(), all[99].body().len(), all[99].body_bytes()), (4 << 20, 0, 4 << 20));
        // Another coding has nothing to decode into.
        Sink::field(&mut all[98], "Content-Encoding", b"br");
        Sink::body(&mut all[98], b"whatever");
        assert!(all[98].left_out() && !all[98].damaged);
        drop(all);
        assert_eq!(HELD_BYTES.get(), 0);
        let mut one = Capture::new(&wanted);
        (0..5).for_each(|_| Sink::body(&mut one, &piece));
        assert!(one.left_out() && one.body().len() == MOST_KEPT_BYTES);
    }

    #[test]
    fn a_coded_answer_without_a_body_is_not_damaged_and_one_that_breaks_off_is() {
        let wanted = CaptureSpec { decode: true, ..CaptureSpec::default() };
        for coding in [&b"gzip"[..], b"deflate", b"br"] {
            let mut capture = Capture::new(&wanted);
            Sink::field(&mut capture, "Content-Encoding", coding);
            capture.finish();
            assert!(!capture.damaged, "{:?}", String::from_utf8_lossy(coding));
            let mut capture = Capture::new(&wanted);
            Sink::field(&mut capture, "Content-Encoding", coding);
            Sink::body(&mut capture, &[0x1f]);
            capture.finish();
            assert!(capture.damaged, "{:?}", String::from_utf8_lossy(coding));
        }
    }

    #[test]
    fn expectations_are_met_or_missed() {
        let all: Vec<Expectation> = [
            "text=ell",
            "no-text=x",
            "length=5",
            "checksum=crc32:3610a686",
            "checksum=md5:5d41402abc4b2a76b9719d911017c592",
            "checksum=sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
            "status=2xx,404",
            "checksum=same",
            "url=/a/{n}",
        ]
        .iter()
        .map(|t| t.parse().expect("valid"))
        .collect();
        let first = OnceLock::new();
        let mut capture = Capture::new(&wanted(&all, &[]));
        Sink::body(&mut capture, b"hel");
        Sink::body(&mut capture, b"lo");
        assert!(all.iter().all(|e| capture.meets(e, 200, b"/a/7", &first)));
        assert!(!capture.meets(&all[6], 500, b"/", &first));
        let mut other = Capture::new(&wanted(&all, &[]));
        Sink::body(&mut other, b"jello");
        let met: Vec<bool> = all.iter().map(|e| other.meets(e, 404, b"/login", &first)).collect();
        assert_eq!(met, [true, true, true, false, false, false, true, false, false]);
    }
}
