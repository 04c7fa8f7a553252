//! A worker process. Like a prefork server's, it serves one connection at a time.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lastdrop_http::{RequestHead, RequestParser};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::config::{Config, Service};
use crate::shared::{STATUS_PATH, Shared, monotonic_ns};

/// A client that connects and sends no request is disconnected after this time.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

pub struct Worker<'a> {
    pub slot: usize,
    pub config: &'a Config,
    pub shared: &'static Shared,
    pub listener: &'a TcpListener,
    /// Hangs up when this generation of workers shall leave, or when the master ends.
    pub leave: BorrowedFd<'a>,
    /// Readable when this worker alone shall leave, on SIGUSR1, like a worker of Apache's prefork.
    pub retire: BorrowedFd<'a>,
    /// The worker's copy of the memory that the master shares.
    pub shared_memory: &'a RefCell<Vec<u8>>,
}

/// The state that a worker keeps from request to request.
struct WorkerState {
    served: u64,
    leaked: Vec<Vec<u8>>,
    rng: Xoshiro256PlusPlus,
    log: Option<File>,
    /// When the worker became busy with the present request, nanoseconds on the monotonic clock.
    busy_since: u64,
    /// When the present request was ready to be read; later than `busy_since` if its connection was accepted first.
    began: u64,
    /// How much longer than planned the requests so far took, for accepting, reading, writing and late wake-ups. The
    /// next request is shortened by it. So a worker is busy for exactly the planned time, and the queueing formulas
    /// hold for the pool.
    debt: u64,
}

/// A larger delay is caused by the machine, not by the worker's own work, and is not made up for.
const MOST_DEBT_NS: u64 = 1_000_000;

/// The planned outcome of a request.
enum PlannedOutcome {
    Answer(u16),
    Close,
    Reset,
    Hang,
}

/// How a wait ended.
enum WaitResult {
    Ready,
    Leave,
    Timeout,
}

/// The `Connection` header of an answer.
#[derive(Clone, Copy)]
enum ConnectionHeader {
    Close,
    Keep,
    /// HTTP/1.0 needs an explicit keep-alive.
    SayKeep,
}

impl ConnectionHeader {
    fn after(close: bool, head: &RequestHead) -> ConnectionHeader {
        match (close, head.http10) {
            (true, _) => ConnectionHeader::Close,
            (false, true) => ConnectionHeader::SayKeep,
            (false, false) => ConnectionHeader::Keep,
        }
    }

    fn field(self) -> &'static str {
        match self {
            ConnectionHeader::Close => "Connection: close\r\n",
            ConnectionHeader::Keep => "",
            ConnectionHeader::SayKeep => "Connection: keep-alive\r\n",
        }
    }
}

impl Worker<'_> {
    /// Serves until the worker shall leave or has served its maximum of requests.
    pub fn run(&self) -> io::Result<()> {
        let mut memory = vec![1u8; self.config.memory as usize];
        std::hint::black_box(memory.as_mut_slice());
        precise_timers();
        self.shared.set_state(self.slot, b'S');
        std::thread::sleep(self.config.startup);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // Exclusive: a connection wakes one worker, not the whole pool.
        epoll.add(self.listener, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE, 0))?;
        epoll.add(self.leave, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        epoll.add(self.retire, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        let mut state = WorkerState {
            served: 0,
            leaked: Vec::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(self.config.seed ^ u64::from(std::process::id()) << 20),
            log: match &self.config.log {
                Some(path) => Some(OpenOptions::new().create(true).append(true).open(path)?),
                None => None,
            },
            busy_since: 0,
            began: 0,
            debt: 0,
        };
        loop {
            self.shared.set_state(self.slot, b'_');
            let mut events = [EpollEvent::empty(); 3];
            let n = match epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(n) => n,
                Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(e.into()),
            };
            if events[..n].iter().any(|e| e.data() == 1) {
                return Ok(());
            }
            state.busy_since = monotonic_ns();
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.shared.counters.connections.fetch_add(1, SeqCst);
                    // An error on a connection ends that connection and nothing else.
                    let _ = self.serve(stream, &mut state);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            if self.used_up(state.served) {
                return Ok(());
            }
        }
    }

    fn used_up(&self, served: u64) -> bool {
        self.config.max_requests_per_worker > 0 && served >= self.config.max_requests_per_worker
    }

    fn serve(&self, mut stream: TcpStream, state: &mut WorkerState) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        let mut parser = RequestParser::default();
        let mut buffer = [0u8; 16 * 1024];
        let mut on_connection = 0;
        loop {
            let head = match parser.next_request() {
                Ok(Some(head)) => head,
                Ok(None) => {
                    let (letter, limit) = if on_connection > 0 && parser.is_empty() {
                        (b'K', self.config.keepalive_timeout)
                    } else {
                        (b'R', FIRST_REQUEST_TIMEOUT)
                    };
                    self.shared.set_state(self.slot, letter);
                    match self.wait_readable(&stream, limit)? {
                        // After a part of a request has arrived, it is served before the worker leaves.
                        WaitResult::Leave if letter == b'K' => return Ok(()),
                        WaitResult::Timeout => return Ok(()),
                        WaitResult::Ready | WaitResult::Leave => {}
                    }
                    state.began = monotonic_ns();
                    if on_connection > 0 {
                        state.busy_since = state.began;
                    }
                    match stream.read(&mut buffer)? {
                        0 => return Ok(()),
                        n => parser.push(&buffer[..n]),
                    }
                    continue;
                }
                Err(_) => {
                    self.shared.counters.bad_requests.fetch_add(1, SeqCst);
                    return self.answer(
                        &mut stream,
                        400,
                        "text/plain",
                        b"bad request\n",
                        ConnectionHeader::Close,
                        false,
                    );
                }
            };
            self.shared.set_state(self.slot, b'W');
            on_connection += 1;
            if head.path.split('?').next() == Some(STATUS_PATH) {
                self.shared.counters.status_requests.fetch_add(1, SeqCst);
                return self.status(&mut stream, &head);
            }
            state.served += 1;
            let slot = self.shared.slot(self.slot);
            slot.requests.store(state.served, Relaxed);
            slot.since_ns.store(monotonic_ns(), Relaxed);
            let limit = self.config.max_keepalive_requests;
            let close = !head.keep_alive
                || !self.config.keepalive
                || self.used_up(state.served)
                || (limit > 0 && on_connection >= limit)
                || self.told_to_leave();
            if self.config.leak > 0 {
                state.leaked.push(vec![1u8; self.config.leak as usize]);
            }
            if self.config.unshare > 0 {
                let mut memory = self.shared_memory.borrow_mut();
                let from = ((state.served - 1) * self.config.unshare).min(memory.len() as u64) as usize;
                let to = (from + self.config.unshare as usize).min(memory.len());
                std::hint::black_box(&mut memory[from..to]).fill(2);
            }
            if !self.request(&mut stream, &head, close, state)? || close {
                return Ok(());
            }
        }
    }

    /// Carries out the planned outcome of one request. Returns false if the connection is done.
    fn request(
        &self,
        stream: &mut TcpStream,
        head: &RequestHead,
        close: bool,
        state: &mut WorkerState,
    ) -> io::Result<bool> {
        let counters = &self.shared.counters;
        let number = counters.requests.fetch_add(1, SeqCst) + 1;
        let _ = counters.first_request_ns.compare_exchange(0, monotonic_ns(), SeqCst, SeqCst);
        match self.planned_outcome(number) {
            PlannedOutcome::Reset => {
                counters.resets.fetch_add(1, SeqCst);
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                nix::sys::socket::setsockopt(&*stream, nix::sys::socket::sockopt::Linger, &linger)?;
                Ok(false)
            }
            PlannedOutcome::Close => {
                counters.closes.fetch_add(1, SeqCst);
                Ok(false)
            }
            PlannedOutcome::Hang => {
                counters.hangs.fetch_add(1, SeqCst);
                let mut sink = [0u8; 1024];
                loop {
                    match self.wait_readable(stream, Duration::from_secs(3600))? {
                        WaitResult::Leave => return Ok(false),
                        _ if stream.read(&mut sink)? == 0 => return Ok(false),
                        _ => {}
                    }
                }
            }
            PlannedOutcome::Answer(status) => {
                let began = state.began;
                let busy = counters.busy.fetch_add(1, SeqCst) + 1;
                let stalled = self.stall();
                state.busy_since += stalled;
                let planned = self.work(busy, state);
                let stalled = self.stall();
                state.busy_since += stalled;
                counters.busy.fetch_sub(1, SeqCst);
                if status >= 500 {
                    counters.errors.fetch_add(1, SeqCst);
                }
                let body = vec![b'x'; self.config.body as usize];
                let times = if self.config.server_time { times_since(began) } else { String::new() };
                // Counted before it is written, so that a client never has an answer that is not counted yet.
                counters.answered.fetch_add(1, SeqCst);
                let written = self.answer_with(
                    stream,
                    &times,
                    status,
                    "text/plain",
                    &body,
                    ConnectionHeader::after(close, head),
                    head.method == "HEAD",
                );
                if written.is_err() {
                    counters.answered.fetch_sub(1, SeqCst);
                    counters.abandoned.fetch_add(1, SeqCst);
                }
                if let (Ok(()), Some(log)) = (&written, &mut state.log) {
                    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros());
                    // One write for each line keeps lines of several workers apart.
                    let _ = log.write_all(format!("{at},{status},{}\n", head.path).as_bytes());
                }
                if let Some(planned) = planned {
                    let took = monotonic_ns().saturating_sub(state.busy_since);
                    state.debt = (state.debt + took).saturating_sub(planned).min(MOST_DEBT_NS);
                }
                written.map(|()| true)
            }
        }
    }

    fn planned_outcome(&self, number: u64) -> PlannedOutcome {
        let every = |n: u64| n > 0 && number.is_multiple_of(n);
        let c = self.config;
        if every(c.reset_every) {
            PlannedOutcome::Reset
        } else if every(c.close_every) {
            PlannedOutcome::Close
        } else if every(c.hang_every) {
            PlannedOutcome::Hang
        } else if every(c.error_every) {
            PlannedOutcome::Answer(500)
        } else {
            PlannedOutcome::Answer(200)
        }
    }

    /// Takes the service time of a request while `busy` workers are busy. Returns the planned nanoseconds if the time
    /// was slept.
    fn work(&self, busy: u32, state: &mut WorkerState) -> Option<u64> {
        let stretch = self.config.stretch(busy);
        let planned = match self.config.service {
            Service::Fixed(d) => d.mul_f64(stretch),
            Service::Exponential(d) => {
                let u = ((state.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                d.mul_f64(stretch * -u.ln())
            }
            Service::Cpu(d) => {
                burn(d.mul_f64(stretch));
                return None;
            }
        };
        if planned.is_zero() {
            return None;
        }
        let planned = planned.as_nanos() as u64;
        let until = (state.busy_since + planned).saturating_sub(state.debt);
        sleep(Duration::from_nanos(until.saturating_sub(monotonic_ns())));
        Some(planned)
    }

    /// Sleeps until the end of the planned stall, if it is now. Returns the nanoseconds slept.
    fn stall(&self) -> u64 {
        if self.config.stall_for.is_zero() {
            return 0;
        }
        let began = self.shared.counters.first_request_ns.load(SeqCst) + self.config.stall_at.as_nanos() as u64;
        let ends = began + self.config.stall_for.as_nanos() as u64;
        let now = monotonic_ns();
        if (began..ends).contains(&now) {
            std::thread::sleep(Duration::from_nanos(ends - now));
            return ends - now;
        }
        0
    }

    fn status(&self, stream: &mut TcpStream, head: &RequestHead) -> io::Result<()> {
        if head.path.ends_with("?json") {
            let body = serde_json::to_vec(&self.shared.view()).map_err(io::Error::other)?;
            self.answer(stream, 200, "application/json", &body, ConnectionHeader::Close, false)
        } else {
            self.answer(stream, 200, "text/plain", self.shared.auto_page().as_bytes(), ConnectionHeader::Close, false)
        }
    }

    fn answer(
        &self,
        stream: &mut TcpStream,
        status: u16,
        kind: &str,
        body: &[u8],
        connection: ConnectionHeader,
        head_only: bool,
    ) -> io::Result<()> {
        self.answer_with(stream, "", status, kind, body, connection, head_only)
    }

    /// Writes an answer with further header fields, each with its line end.
    #[allow(clippy::too_many_arguments)]
    fn answer_with(
        &self,
        stream: &mut TcpStream,
        fields: &str,
        status: u16,
        kind: &str,
        body: &[u8],
        connection: ConnectionHeader,
        head_only: bool,
    ) -> io::Result<()> {
        let reason = match status {
            200 => "OK",
            400 => "Bad Request",
            _ => "Internal Server Error",
        };
        let mut bytes = format!(
            "HTTP/1.1 {status} {reason}\r\nServer: lastdrop-target\r\nContent-Type: {kind}\r\n{fields}Content-Length: {}\r\n{}\r\n",
            body.len(),
            connection.field(),
        )
        .into_bytes();
        if !head_only {
            bytes.extend_from_slice(body);
        }
        stream.write_all(&bytes)
    }

    fn wait_readable(&self, stream: &TcpStream, limit: Duration) -> io::Result<WaitResult> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left.as_millis().min(3_600_000) as i32 + 1).unwrap_or(PollTimeout::MAX);
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [readable(stream.as_fd()), readable(self.leave), readable(self.retire)];
            match poll(&mut fds, timeout) {
                Ok(0) => return Ok(WaitResult::Timeout),
                Ok(_) if fds[0].any() == Some(true) => return Ok(WaitResult::Ready),
                Ok(_) => return Ok(WaitResult::Leave),
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn told_to_leave(&self) -> bool {
        let mut fds = [self.leave, self.retire].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(n) if n > 0)
    }
}

/// Header fields with the times of a request. `began` is on the monotonic clock; the fields have the wall-clock time
/// and the duration.
fn times_since(began: u64) -> String {
    let took_us = monotonic_ns().saturating_sub(began) / 1000;
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
    let (ms, us) = (took_us / 1000, took_us % 1000);
    let at = now_us.saturating_sub(took_us);
    format!("X-Request-Received: t={at} D={took_us}\r\nServer-Timing: app;dur={ms}.{us:03}\r\n")
}

/// Sets the timer slack to 1 ns, so that sleeps do not end up to 50 µs late.
fn precise_timers() {
    // SAFETY: sets the timer slack of this thread, nanoseconds; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

fn sleep(d: Duration) {
    if !d.is_zero() {
        std::thread::sleep(d);
    }
}

/// Burns CPU time, not wall time: a busy machine makes it slower, like real work.
fn burn(d: Duration) {
    let cpu = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |t| t.num_nanoseconds() as u64);
    let end = cpu() + d.as_nanos() as u64;
    let mut x = 1.0f64;
    while cpu() < end {
        for _ in 0..500 {
            x = std::hint::black_box((x + 1.5).ln() + 1.0);
        }
    }
}
