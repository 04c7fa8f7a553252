//! Reads the server's own time of each response from its log.
//!
//! Each request carries an id. The log is followed from its end at the start of the run. The times in a line with such
//! an id are added to the second of its response. Lines come after responses, so a second is held back until all of its
//! lines are there, at most for [`PATIENCE`]. Then it goes on as if the responses had contained the times. So the
//! builder of the run, the store and reports need not handle late parts, and a reported second never changes. The
//! events of a run are as late as its log.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::run::JoinedLog;
use lastdrop_model::{Event, IdentifiedAnswer, Kind, Slice};
use lastdrop_traffic::{Format, GrowingLog, LogEntry};

/// How long a response waits for its line. Servers that buffer their logs for longer are not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a line waits for its response, which may still be on its way; also, a second is reported only when it is
/// over.
const LINE_PATIENCE: Duration = Duration::from_secs(10);
/// Most responses that wait for their line; some 30 MB.
const MOST_WAITING: usize = 1 << 20;
/// Most lines that wait for their response.
const MOST_EARLY: usize = 1 << 18;
/// If by then the log has as many lines as there were responses, and none has one of their ids, the log has no ids.
const NO_IDS_AFTER: Duration = Duration::from_secs(2);
/// Pause between two reads of the log once the load is over.
const PAUSE: Duration = Duration::from_millis(50);

const FIELDS: &str = "LogFormat \"… %D %{X-Request-Id}i\" (Apache), log_format … '… $request_time $upstream_response_time \
                      $http_x_request_id' (nginx) or capture request header X-Request-Id len 64 (HAProxy)";

/// The times in a line, in µs.
#[derive(Debug, Clone, Copy)]
struct LoggedTimes {
    queue: Option<u32>,
    server: Option<u32>,
    upstream: Option<u32>,
}

impl LoggedTimes {
    fn of(entry: &LogEntry) -> LoggedTimes {
        let fit = |us: Option<u64>| us.map(|us| u32::try_from(us).unwrap_or(u32::MAX));
        // Logs include the time in the server's queue in the server's time; here it counts as queue time.
        let server = entry.server_us.map(|us| us.saturating_sub(entry.queue_us.unwrap_or(0)));
        LoggedTimes { queue: fit(entry.queue_us), server: fit(server), upstream: fit(entry.upstream_us) }
    }

    fn record(self, slice: &mut Slice, class: u16) {
        let parts = [(Kind::Queue, self.queue), (Kind::Server, self.server), (Kind::Upstream, self.upstream)];
        for (kind, us) in parts {
            if let Some(us) = us {
                slice.record_part(class, kind, us.into());
            }
        }
    }
}

/// A second that waits for lines, or an event that came after one.
#[derive(Debug)]
struct HeldEvent {
    event: Event<'static>,
    /// Responses in it without a line.
    missing: u64,
    since: Instant,
}

/// Events of a run that wait for lines of the server's log.
#[derive(Debug)]
pub(crate) struct ServerLog {
    log: GrowingLog,
    /// Prefix of the ids of this run.
    prefix: String,
    /// Responses without a line: the index of their held event, counted from the start of the run, and their class.
    waiting: HashMap<u64, (u64, u16)>,
    /// Lines without a response, and when they were read.
    early: HashMap<u64, (LoggedTimes, Instant)>,
    held: VecDeque<HeldEvent>,
    /// Number of events that were passed on.
    gone: u64,
    /// The log had ids of this run.
    has_ids: bool,
    joined: JoinedLog,
    /// Why following the log makes no sense any more.
    pub trouble: Option<String>,
}

impl ServerLog {
    /// Opens a log at its end.
    ///
    /// # Errors
    /// When it cannot be read, or its format lacks what is needed.
    pub fn open(file: &Path, format: Option<&str>, prefix: String) -> Result<ServerLog, String> {
        let format = format.map(str::parse::<Format>).transpose()?;
        let log = GrowingLog::open(file, format.as_ref(), false)
            .map_err(|e| format!("the server's log {} cannot be followed: {e}", file.display()))?;
        let log = ServerLog {
            log,
            prefix,
            waiting: HashMap::new(),
            early: HashMap::new(),
            held: VecDeque::new(),
            gone: 0,
            has_ids: false,
            joined: JoinedLog::default(),
            trouble: None,
        };
        log.lacks().map_or(Ok(log), Err)
    }

    /// Returns what the format lacks, if it is known.
    fn lacks(&self) -> Option<String> {
        let format = self.log.format()?;
        let what = match (format.has_server_time(), format.may_have_id()) {
            (true, true) => return None,
            (false, _) => "no time that the server took",
            (true, false) => "no id of a request",
        };
        let name = format.name();
        Some(format!("{} ({name}) has {what}; {}", self.log.file().file, self.advice()))
    }

    fn advice(&self) -> String {
        format!("let the server write {FIELDS}, and say so: --server-time 'log:{},FORMAT'", self.log.file().file)
    }

    /// Takes an event and passes on those that may go on.
    pub fn take(&mut self, event: &Event<'_>, mut pass_on: impl FnMut(&Event<'_>)) {
        match event {
            Event::Second { slice } => self.hold(Slice::clone(slice)),
            Event::PhaseEnd { phase, duration_us, peak } => {
                let event = Event::PhaseEnd { phase: *phase, duration_us: *duration_us, peak: *peak };
                self.held.push_back(HeldEvent { event, missing: 0, since: Instant::now() });
            }
            other => return pass_on(other),
        }
        self.look();
        self.release(PATIENCE, pass_on);
    }

    fn hold(&mut self, mut slice: Slice) {
        let at = self.gone + self.held.len() as u64;
        let mut missing = 0;
        for IdentifiedAnswer { id, class } in std::mem::take(&mut slice.identified) {
            if let Some((said, _)) = self.early.remove(&id) {
                said.record(&mut slice, class);
                self.joined.joined += 1;
            } else if self.waiting.len() < MOST_WAITING {
                self.waiting.insert(id, (at, class));
                missing += 1;
            } else {
                self.joined.without_line += 1;
            }
        }
        let event = Event::Second { slice: Cow::Owned(slice) };
        self.held.push_back(HeldEvent { event, missing, since: Instant::now() });
    }

    /// Reads what has been written since the last call.
    fn look(&mut self) {
        let ServerLog { log, prefix, waiting, early, held, gone, has_ids, joined, .. } = self;
        let now = Instant::now();
        let looked = log.look(|entry| {
            let Some(id) = entry.behind(prefix.as_bytes()).and_then(number) else {
                joined.others += 1;
                return true;
            };
            *has_ids = true;
            let said = LoggedTimes::of(entry);
            match waiting.remove(&id) {
                Some((at, class)) => {
                    let second = held.get_mut(at.saturating_sub(*gone) as usize);
                    if let Some(HeldEvent { event: Event::Second { slice }, missing, .. }) = second {
                        said.record(slice.to_mut(), class);
                        *missing -= 1;
                        joined.joined += 1;
                    }
                }
                None if early.len() < MOST_EARLY => {
                    early.insert(id, (said, now));
                }
                None => {}
            }
            true
        });
        early.retain(|_, (_, since)| now.duration_since(*since) < LINE_PATIENCE);
        if let Err(e) = looked {
            let file = self.log.file().file;
            self.trouble.get_or_insert(format!("the server's log {file} cannot be read on: {e}"));
        }
        if self.trouble.is_none() {
            self.trouble = self.lacks().or_else(|| self.without_ids(now));
        }
    }

    /// Reports that lines come, but none of them has an id of this run.
    fn without_ids(&self, now: Instant) -> Option<String> {
        let tally = self.log.tally();
        let waited = self.held.iter().find(|h| h.missing > 0).map(|h| now.duration_since(h.since))?;
        let lines = self.joined.others + tally.unparsed;
        if self.has_ids || waited < NO_IDS_AFTER || lines < self.waiting.len() as u64 {
            return None;
        }
        let file = self.log.file();
        let format = if file.format.is_empty() { "not known".into() } else { format!("'{}'", file.format) };
        let example = tally.rejected.first().map_or(String::new(), |line| {
            format!("; {} of them are not understood (format {format}), as {}: {}", tally.unparsed, line.text, line.why)
        });
        let advice = self.advice();
        Some(format!(
            "none of {lines} new lines of {} has the X-Request-Id of its request{example}; {advice}",
            file.file
        ))
    }

    /// Passes on, in order, the events that wait for nothing any more.
    fn release(&mut self, patience: Duration, mut pass_on: impl FnMut(&Event<'_>)) {
        let may_go = |h: &HeldEvent| h.missing == 0 || h.since.elapsed() >= patience;
        while self.held.front().is_some_and(may_go)
            && let Some(first) = self.held.pop_front()
        {
            if first.missing > 0 {
                self.waiting.retain(|_, (at, _)| *at != self.gone);
                self.joined.without_line += first.missing;
            }
            self.gone += 1;
            pass_on(&first.event);
        }
    }

    /// Ends the log once the load is over: waits for the last lines, unless the user stops, and passes everything on.
    ///
    /// # Errors
    /// When the log lacks what is needed.
    pub fn finish(mut self, stop: &AtomicBool, mut pass_on: impl FnMut(&Event<'_>)) -> Result<JoinedLog, String> {
        loop {
            self.look();
            self.release(PATIENCE, &mut pass_on);
            if self.held.is_empty() || self.trouble.is_some() || stop.load(Ordering::Relaxed) {
                break;
            }
            thread::sleep(PAUSE);
        }
        self.release(Duration::ZERO, &mut pass_on);
        if let Some(trouble) = self.trouble {
            return Err(trouble);
        }
        let file = self.log.file();
        let (unparsed, rotations) = (self.log.tally().unparsed, self.log.rotations());
        Ok(JoinedLog { file: file.file, format: file.format, unparsed, rotations, ..self.joined })
    }
}

/// Returns the number in an id, from the text after its prefix.
fn number(text: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(text.get(..16)?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::path::PathBuf;

    use lastdrop_model::Counts;
    use tempfile::TempDir;

    use super::*;

    const FORMAT: &str = "$remote_addr [$time_local] \"$request\" $status $request_time $http_x_request_id";

    struct TestLog {
        _folder: TempDir,
        path: PathBuf,
    }

    impl TestLog {
        fn new() -> TestLog {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("log");
            fs::write(&path, "").expect("written");
            TestLog { _folder: folder, path }
        }

        fn line(&self, took: &str, id: &str) {
            let mut file = OpenOptions::new().append(true).open(&self.path).expect("open");
            let line = format!("h [10/Oct/2000:13:00:00 +0000] \"GET / HTTP/1.1\" 200 {took} {id}\n");
            file.write_all(line.as_bytes()).expect("written");
        }

        fn open(&self) -> ServerLog {
            ServerLog::open(&self.path, Some(FORMAT), "run-".into()).expect("a log")
        }
    }

    fn second(at: u32, ids: &[u64]) -> Event<'static> {
        let mut slice = Slice::new(0, at);
        slice.by_class.counts = vec![Counts::default(); 2];
        slice.identified = ids.iter().map(|id| IdentifiedAnswer { id: *id, class: 1 }).collect();
        Event::Second { slice: Cow::Owned(slice) }
    }

    /// The second or phase of each event, and the longest server time in it.
    fn told(event: &Event<'_>) -> (String, u64) {
        match event {
            Event::Second { slice } => {
                let server = &slice.latencies[Kind::Server as usize];
                assert!(slice.identified.is_empty() && slice.by_class.parts.len() as u64 == server.count());
                (format!("second {}", slice.second), server.max())
            }
            Event::PhaseEnd { phase, .. } => (format!("phase {phase}"), 0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn seconds_wait_for_their_lines_and_go_on_in_order() {
        let file = TestLog::new();
        file.line("9.000", "run-0000000000000001");
        let mut log = file.open();
        let mut seen = Vec::new();
        file.line("0.002", "run-0000000000000002");
        file.line("0.100", "-");
        file.line("0.200", "other-0000000000000001");
        // The line of 2 is there before its response is reported.
        log.look();
        log.take(&second(0, &[1, 2]), |e| seen.push(told(e)));
        log.take(&second(1, &[]), |e| seen.push(told(e)));
        log.take(&Event::PhaseEnd { phase: 0, duration_us: 5, peak: 1 }, |e| seen.push(told(e)));
        assert!(seen.is_empty(), "what was in the log before the run is no part of it: {seen:?}");
        file.line("0.050", "run-0000000000000001");
        let joined = log.finish(&AtomicBool::new(false), |e| seen.push(told(e))).expect("joined");
        let names: Vec<&str> = seen.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["second 0", "second 1", "phase 0"]);
        assert!((49_900..50_100).contains(&seen[0].1) && seen[1].1 == 0, "{seen:?}");
        assert_eq!((joined.joined, joined.without_line, joined.others, joined.format.as_str()), (2, 0, 2, FORMAT));
    }

    #[test]
    fn an_answer_without_a_line_is_counted() {
        let file = TestLog::new();
        let mut log = file.open();
        let mut seen = Vec::new();
        log.take(&second(0, &[1, 2]), |e| seen.push(told(e)));
        file.line("0.010", "run-0000000000000002");
        let joined = log.finish(&AtomicBool::new(true), |e| seen.push(told(e))).expect("joined");
        assert_eq!((joined.joined, joined.without_line, seen.len()), (1, 1, 1));
    }

    #[test]
    fn lines_without_ids_are_an_error_that_says_what_to_do() {
        let file = TestLog::new();
        let mut log = file.open();
        log.take(&second(0, &[1, 2]), |_| panic!("it waits"));
        (0..2).for_each(|_| file.line("0.010", "-"));
        let why = log.finish(&AtomicBool::new(false), |_| {}).expect_err("no ids");
        assert!(why.contains("none of 2 new lines") && why.contains("$http_x_request_id"), "{why}");
        for (format, lacks) in [("combined", "no time"), ("%h %t \"%r\" %>s %b %D", "no id of a request")] {
            let why = ServerLog::open(&file.path, Some(format), "run-".into()).expect_err("nothing to join");
            assert!(why.contains(lacks) && why.contains("%{X-Request-Id}i"), "{why}");
        }
        assert!(ServerLog::open(&file.path, Some("rubbish"), "run-".into()).is_err());
        assert!(ServerLog::open(&file.path.join("x"), None, "run-".into()).is_err());
    }
}
