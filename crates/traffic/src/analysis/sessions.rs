//! Sessions: the requests of one client until half an hour without any. Think times are between pages; page resources
//! (scripts, images) are not pages.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use lastdrop_model::Histogram;
use lastdrop_model::documents::{LogSessions, LogSpread};

/// A client without requests for this long has left: the usual definition of a session.
const GAP_US: i64 = 30 * 60 * 1_000_000;
/// Most open sessions; beyond it those idle for longest are ended.
const MOST_OPEN: usize = 100_000;

const PARTS: [&str; 26] = [
    "avif", "bmp", "css", "eot", "gif", "ico", "jpeg", "jpg", "js", "json", "map", "mjs", "mp3", "mp4", "otf", "png",
    "svg", "ttf", "txt", "wasm", "wav", "webm", "webp", "woff", "woff2", "xbm",
];

#[derive(Debug, Clone, Copy)]
struct OpenSession {
    first_us: i64,
    last_us: i64,
    /// Time of the last page; `i64::MIN` if there is none yet.
    page_us: i64,
    requests: u32,
    pages: u32,
}

/// The open sessions, and statistics of those that have ended.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: HashMap<u64, OpenSession, RandomState>,
    ended: u64,
    cut: u64,
    requests: Histogram,
    pages: Histogram,
    duration_us: Histogram,
    think_us: Histogram,
}

impl Sessions {
    /// Counts a request of the client with this key, in time order.
    pub(crate) fn count(&mut self, key: u64, time_us: i64, is_page: bool) {
        if self.open.len() >= MOST_OPEN && !self.open.contains_key(&key) {
            self.make_room(time_us);
        }
        let new = OpenSession { first_us: time_us, last_us: time_us, page_us: i64::MIN, requests: 0, pages: 0 };
        let open = self.open.entry(key).or_insert(new);
        let ended = (time_us - open.last_us > GAP_US).then(|| std::mem::replace(open, new));
        open.requests = open.requests.saturating_add(1);
        open.last_us = open.last_us.max(time_us);
        if is_page {
            if open.page_us != i64::MIN {
                self.think_us.record((time_us - open.page_us).max(0) as u64);
            }
            open.page_us = time_us;
            open.pages = open.pages.saturating_add(1);
        }
        if let Some(ended) = ended {
            self.end(&ended);
        }
    }

    fn end(&mut self, ended: &OpenSession) {
        self.ended += 1;
        self.requests.record(u64::from(ended.requests));
        self.pages.record(u64::from(ended.pages));
        self.duration_us.record((ended.last_us - ended.first_us).max(0) as u64);
    }

    fn make_room(&mut self, now_us: i64) {
        let mut last: Vec<i64> = self.open.values().map(|o| o.last_us).collect();
        let middle = last.len() / 2;
        let (_, median, _) = last.select_nth_unstable(middle);
        let limit = (now_us - GAP_US).max(*median);
        let mut gone = Vec::new();
        self.open.retain(|_, o| {
            let stays = o.last_us > limit;
            if !stays {
                gone.push(*o);
            }
            stays
        });
        self.cut += gone.iter().filter(|o| now_us - o.last_us <= GAP_US).count() as u64;
        gone.iter().for_each(|o| self.end(o));
    }

    pub(crate) fn finish(mut self) -> (LogSessions, Option<LogSpread>) {
        let open: Vec<OpenSession> = self.open.drain().map(|(_, o)| o).collect();
        open.iter().for_each(|o| self.end(o));
        let sessions = LogSessions {
            count: self.ended,
            cut: self.cut,
            requests: LogSpread::of(&self.requests),
            pages: LogSpread::of(&self.pages),
            duration_us: LogSpread::of(&self.duration_us),
        };
        (sessions, LogSpread::of(&self.think_us))
    }
}

/// Whether the path is that of a page, not of a page resource.
pub(crate) fn is_page(target: &[u8]) -> bool {
    let path = &target[..target.iter().position(|b| matches!(b, b'?' | b'#')).unwrap_or(target.len())];
    let Some(point) = memchr::memrchr2(b'.', b'/', path) else { return true };
    if path[point] == b'/' {
        return true;
    }
    let ending = &path[point + 1..];
    !PARTS.iter().any(|part| part.as_bytes().eq_ignore_ascii_case(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn half_an_hour_of_silence_ends_a_session() {
        let mut sessions = Sessions::default();
        for (key, second, page) in
            [(1, 0, true), (1, 0, false), (2, 1, true), (1, 10, true), (1, 1812, true), (1, 1822, true)]
        {
            sessions.count(key, second * SECOND, page);
        }
        let (sessions, think) = sessions.finish();
        assert_eq!((sessions.count, sessions.cut), (3, 0));
        let think = think.expect("two pauses");
        assert_eq!((think.count, think.max / 1_000_000), (2, 10));
        assert_eq!(sessions.requests.expect("three").max, 3);
    }

    #[test]
    fn millions_of_clients_have_a_bound() {
        let mut sessions = Sessions::default();
        for key in 0..300_000 {
            sessions.count(key, key as i64, true);
        }
        assert!(sessions.open.len() <= MOST_OPEN);
        let (sessions, _) = sessions.finish();
        assert!(sessions.count == 300_000 && sessions.cut > 0, "{sessions:?}");
    }

    #[test]
    fn pages_are_told_from_their_parts() {
        for (target, page) in [
            ("/", true),
            ("/a.html", true),
            ("/a.php?x=y.css", true),
            ("/a.CSS?v=1", false),
            ("/x.y/z", true),
            ("*", true),
        ] {
            assert_eq!(is_page(target.as_bytes()), page, "{target}");
        }
    }
}
