//! A tape as a file that can go to other machines: one line of JSON per request, in playing order.
//!
//! Each agent plays its share. Requests with times are divided by their position on the tape, those of sessions by
//! session, which stays whole. A tape from elsewhere is accepted only as plain requests: a method, a target and a host
//! without line breaks.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

use lastdrop_model::Micros;
use serde::Deserialize;

use crate::logged::LoggedAnswer;
use crate::share::Share;
use crate::tape::{RecordedRequest, Tape};

/// Requests per batch, and most batches that wait.
const TOGETHER: usize = 256;
const WAITING: usize = 32;

/// How the requests of a tape are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TapeSplit {
    /// By position: each request goes at its own time.
    ByPlace,
    /// By the number of its session, from 0 (`RecordedRequest::who`).
    BySession,
}

/// Writes one request.
///
/// # Errors
/// The error of the writer.
pub fn write(played: &RecordedRequest, out: &mut impl Write) -> io::Result<()> {
    let RecordedRequest { due, request, method, target, host, who, number, logged } = played;
    serde_json::to_writer(&mut *out, &(due, request, method, target, host, who, number, logged))?;
    out.write_all(b"\n")
}

/// The fields of [`RecordedRequest`], in its order.
#[derive(Deserialize)]
struct TapeLine(u64, u32, String, String, Option<String>, u64, u64, Option<LoggedAnswer>);

/// Reads one line of a tape for a plan with this many requests.
fn read(line: &[u8], requests: usize) -> Result<RecordedRequest, String> {
    let TapeLine(due, request, method, target, host, who, number, logged) =
        lastdrop_model::read_json(line).map_err(|e| e.to_string())?;
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if request as usize >= requests {
        return Err(format!("it is of request {request}, and the plan has {requests}"));
    }
    let is_line = |text: &str| !text.bytes().any(|b| b.is_ascii_control());
    if !plain(&method) || !target.starts_with('/') || !plain(&target) || !host.as_deref().is_none_or(is_line) {
        return Err("its method, target or host is none".into());
    }
    Ok(RecordedRequest { due, request, method, target, host, who, number, logged })
}

fn lines(tape: &[u8]) -> impl Iterator<Item = &[u8]> {
    tape.split(|b| *b == b'\n').filter(|line| !line.is_empty())
}

/// A tape that has been read and checked.
#[derive(Debug, Clone)]
pub struct TapeFile {
    bytes: Arc<Vec<u8>>,
    requests: usize,
    dealt: TapeSplit,
}

impl TapeFile {
    /// Reads a tape for a plan with this many requests.
    ///
    /// # Errors
    /// The first line that is not a request, and why.
    pub fn new(bytes: Vec<u8>, requests: usize, dealt: TapeSplit) -> Result<TapeFile, String> {
        let mut before = 0;
        for (place, line) in lines(&bytes).enumerate() {
            let played = read(line, requests).map_err(|e| format!("line {} of the tape: {e}", place + 1))?;
            if played.due < before {
                return Err(format!("line {} of the tape: it is due before the one in front of it", place + 1));
            }
            before = played.due;
        }
        Ok(TapeFile { bytes: Arc::new(bytes), requests, dealt })
    }

    /// How the tape is divided.
    #[must_use]
    pub fn split(&self) -> TapeSplit {
        self.dealt
    }

    /// The requests of one share.
    pub fn of(&self, share: &Share) -> impl Iterator<Item = RecordedRequest> + use<> {
        let (tape, share) = (self.clone(), share.clone());
        let mut at = 0;
        let mut place = 0;
        std::iter::from_fn(move || {
            while at < tape.bytes.len() {
                let rest = &tape.bytes[at..];
                let line = &rest[..rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())];
                at += line.len() + 1;
                // It was checked by `new`.
                let Ok(played) = read(line, tape.requests) else { continue };
                place += 1;
                let number = match tape.dealt {
                    TapeSplit::ByPlace => place - 1,
                    TapeSplit::BySession => played.who,
                };
                if share.has(number) {
                    return Some(played);
                }
            }
            None
        })
    }

    /// When its requests are due, in order; empty for sessions, which have no times.
    #[must_use]
    pub fn dues(&self) -> Arc<[Micros]> {
        match self.dealt {
            TapeSplit::ByPlace => self.of(&Share::whole()).map(|p| p.due).collect(),
            TapeSplit::BySession => Arc::new([]),
        }
    }

    /// Plays a share of the tape, which a separate thread reads as it is played.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn play(&self, share: &Share) -> io::Result<Tape> {
        let (out, played) = sync_channel(WAITING);
        let behind = Arc::new(AtomicU64::new(0));
        let last = self.of(share).last().map_or(0, |p| p.number);
        let mut own = self.of(share);
        thread::Builder::new().name("tape".into()).spawn(move || {
            loop {
                let some: Vec<RecordedRequest> = own.by_ref().take(TOGETHER).collect();
                // The receiver may be gone.
                if some.is_empty() || out.send(some).is_err() {
                    return;
                }
            }
        })?;
        Ok(Tape::new(played, Arc::clone(&behind)).of_which_is_known(TapeProgress { behind, last }))
    }
}

/// How far a share of a tape was played.
#[derive(Debug, Clone)]
pub struct TapeProgress {
    behind: Arc<AtomicU64>,
    /// Number of its last request.
    last: u64,
}

impl TapeProgress {
    /// At the end of the run: the last request before the first that was not sent; `None` if all were sent.
    #[must_use]
    pub fn behind(&self) -> Option<u64> {
        Some(self.behind.load(Ordering::Relaxed)).filter(|behind| *behind < self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(place: u64, who: u64) -> RecordedRequest {
        let target = format!("/{place}?a=\"ü\"").replace('ü', "%C3%BC");
        let logged = LoggedAnswer::new((place % 4) as u16 * 100, Some("/\"ü".into()));
        RecordedRequest {
            due: place * 10,
            request: 1,
            method: "GET".into(),
            target,
            host: None,
            who,
            number: place + 7,
            logged,
        }
    }

    fn tape(n: u64, dealt: TapeSplit) -> (Vec<RecordedRequest>, TapeFile) {
        let all: Vec<RecordedRequest> = (0..n).map(|i| played(i, i * 5 % 13)).collect();
        let mut bytes = Vec::new();
        all.iter().for_each(|p| write(p, &mut bytes).expect("memory"));
        (all, TapeFile::new(bytes, 2, dealt).expect("a tape"))
    }

    #[test]
    fn every_request_is_one_agents_and_keeps_its_time() {
        let (all, file) = tape(1000, TapeSplit::ByPlace);
        for weights in [&[1][..], &[1, 1], &[2, 1, 4]] {
            let shares = Share::by_weight(weights).expect("weights");
            let mut seen: Vec<RecordedRequest> = shares.iter().flat_map(|s| file.of(s)).collect();
            assert!(shares.iter().all(|s| file.of(s).count() as u64 == s.count(1000)));
            seen.sort_by_key(|p| p.number);
            assert_eq!(seen, all, "{weights:?}");
        }
        assert_eq!(file.dues().len(), 1000);
    }

    #[test]
    fn sessions_stay_whole_and_in_their_order() {
        let (all, file) = tape(1000, TapeSplit::BySession);
        let shares = Share::by_weight(&[1, 2]).expect("weights");
        let parts: Vec<Vec<RecordedRequest>> = shares.iter().map(|s| file.of(s).collect()).collect();
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), all.len());
        for session in 0..13 {
            let whole: Vec<&RecordedRequest> = all.iter().filter(|p| p.who == session).collect();
            let of =
                |part: &'_ [RecordedRequest]| part.iter().filter(|p| p.who == session).cloned().collect::<Vec<_>>();
            let found: Vec<Vec<RecordedRequest>> = parts.iter().map(|p| of(p)).filter(|p| !p.is_empty()).collect();
            assert_eq!(found.len(), 1, "session {session}");
            assert!(found[0].iter().eq(whole), "session {session}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let good = r#"[0,0,"GET","/",null,0,1,null]"#;
        assert!(TapeFile::new(format!("{good}\n").into_bytes(), 1, TapeSplit::ByPlace).is_ok());
        for bad in [
            r#"[0,1,"GET","/",null,0,1,null]"#,
            r#"[0,0,"GET","/a b",null,0,1,null]"#,
            r#"[0,0,"GET","/a\r\nX: y",null,0,1,null]"#,
            r#"[0,0,"GET","http://elsewhere/",null,0,1,null]"#,
            r#"[0,0,"","/",null,0,1,null]"#,
            r#"[0,0,"GET","/","a\nb",0,1,null]"#,
            r#"[0,0,"GET"]"#,
            "no JSON",
        ] {
            let tape = format!("{good}\n{bad}\n").into_bytes();
            let why = TapeFile::new(tape, 1, TapeSplit::ByPlace).expect_err(bad);
            assert!(why.starts_with("line 2 of the tape"), "{why}");
        }
        let back = "[5,0,\"GET\",\"/\",null,0,1,null]\n[4,0,\"GET\",\"/\",null,0,2,null]\n";
        assert!(TapeFile::new(back.into(), 1, TapeSplit::ByPlace).is_err());
    }

    #[test]
    fn a_share_is_played_and_says_how_far() {
        let (all, file) = tape(3000, TapeSplit::ByPlace);
        let tape = file.play(&Share::by_weight(&[1, 1]).expect("weights")[1]).expect("a thread");
        let progress = tape.progress.clone().expect("known");
        let mut reader = tape.take().expect("once");
        let mut next = || {
            while reader.next_due().is_none() && !reader.over() {
                thread::yield_now();
            }
            reader.take()
        };
        assert_eq!(next().as_ref(), Some(&all[1]));
        assert_eq!(next().as_ref(), Some(&all[3]));
        assert_eq!(std::iter::from_fn(next).count(), 1498);
        reader.tell();
        assert_eq!(progress.behind(), None);
    }
}
