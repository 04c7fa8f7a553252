//! Watches a database on a thread of its own, so that a database that hangs delays no other sample.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{DatabaseSample, DatabaseTrouble, TroubleKind};
use lastdrop_probe::host::thread_cpu;

use crate::access::Access;
use crate::failure::Failure;
use crate::views::{self, Views};
use crate::window::Window;

/// Time between two samples. One sample costs a database with a hundred sessions less than 1 ms.
const SAMPLE: Duration = Duration::from_millis(200);
/// Pause before the next attempt to connect to a database.
const AGAIN: Duration = Duration::from_secs(1);

/// Samples a database regularly; each look summarises the samples since the look before.
#[derive(Debug)]
pub struct DatabaseWatcher {
    access: Access,
    /// Dropped with the watcher, which ends the thread after its present exchange.
    asks: Sender<Sender<DatabaseSample>>,
    /// The look that was requested and has not arrived yet.
    pending: Option<Receiver<DatabaseSample>>,
    last_answer: Instant,
    cost_us: Arc<AtomicU64>,
}

impl DatabaseWatcher {
    /// Starts the thread. If the database cannot be reached, the looks say so.
    #[must_use]
    pub fn start(access: Access) -> DatabaseWatcher {
        let (asks, asked) = channel();
        let of = access.clone();
        let cost_us = Arc::<AtomicU64>::default();
        let cost = Arc::clone(&cost_us);
        // If the thread cannot be started, the looks report a silent database.
        let _ = thread::Builder::new().name("database".into()).spawn(move || watch(&of, &asked, &cost));
        DatabaseWatcher { access, asks, pending: None, last_answer: Instant::now(), cost_us }
    }

    /// Our processor time for the queries, without the database's.
    #[must_use]
    pub fn cost(&self) -> Duration {
        Duration::from_micros(self.cost_us.load(Ordering::Relaxed))
    }

    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Returns what happened since the look before. Waits for `patience` at most.
    pub fn look(&mut self, patience: Duration) -> DatabaseSample {
        let answered = self.pending.take().unwrap_or_else(|| {
            let (answer, answered) = channel();
            let _ = self.asks.send(answer);
            answered
        });
        let look = answered.recv_timeout(patience);
        match &look {
            Ok(_) => self.last_answer = Instant::now(),
            Err(RecvTimeoutError::Timeout) => self.pending = Some(answered),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        let mut look = look.unwrap_or_else(|_| {
            let silent = self.last_answer.elapsed().as_secs_f64();
            let what = format!("it has not answered for {silent:.1} s; is it stopped, or its disk stuck?");
            DatabaseSample {
                trouble: Some(DatabaseTrouble { kind: TroubleKind::Silent, what }),
                ..DatabaseSample::default()
            }
        });
        look.service = self.access.service.name().into();
        look.at = self.access.to_string();
        look
    }
}

/// A connection and the window of samples taken over it.
struct WatchedConnection {
    views: Box<dyn Views>,
    window: Window,
}

impl WatchedConnection {
    fn new(access: &Access) -> Result<WatchedConnection, Failure> {
        let mut views = views::open(access)?;
        let window = Window::new(access.service, views.totals()?);
        let mut open = WatchedConnection { views, window };
        open.sample()?;
        Ok(open)
    }

    fn sample(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let sample = self.views.sample()?;
        self.window.add(sample, began.elapsed());
        Ok(())
    }

    /// Ends the window with one more sample.
    fn look(mut self) -> Result<(DatabaseSample, WatchedConnection), Failure> {
        self.sample()?;
        let totals = self.views.totals()?;
        let constants = self.views.constants();
        let look = DatabaseSample {
            software: constants.software.clone(),
            max_connections: constants.max_connections,
            reserved_connections: constants.reserved_connections,
            unread: constants.unread.clone(),
            ..self.window.look(&totals)
        };
        Ok((look, WatchedConnection { views: self.views, window: self.window.next(totals) }))
    }
}

fn watch(access: &Access, asked: &Receiver<Sender<DatabaseSample>>, cost_us: &AtomicU64) {
    let mut state = WatchedConnection::new(access);
    let mut tried = Instant::now();
    loop {
        let ask = match asked.recv_timeout(SAMPLE) {
            Ok(ask) => Some(ask),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if state.as_ref().is_err_and(|e| tried.elapsed() >= pause_after(e)) {
            state = WatchedConnection::new(access);
            tried = Instant::now();
        }
        state = match (state, &ask) {
            (Ok(open), Some(answer)) => open.look().map(|(look, open)| {
                let _ = answer.send(look);
                open
            }),
            (Ok(mut open), None) => open.sample().map(|()| open),
            (Err(e), _) => Err(e),
        };
        if let (Err(e), Some(answer)) = (&state, ask) {
            let trouble = Some(e.clone().trouble());
            let _ = answer.send(DatabaseSample { trouble, ..DatabaseSample::default() });
        }
        cost_us.store(thread_cpu().as_micros() as u64, Ordering::Relaxed);
    }
}

/// A server that denies access may count failed logins, so it is asked less often.
fn pause_after(e: &Failure) -> Duration {
    let denied = matches!(e, Failure::Ended { kind: TroubleKind::Denied, .. });
    if denied { Duration::from_secs(30) } else { AGAIN }
}
