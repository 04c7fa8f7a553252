//! What a thread is given to do, how it is told to stop, and what it says meanwhile and at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use lastdrop_model::run::Shortage;
use lastdrop_model::{Exchange, Micros, Plan, Slice, Wish};
use rustls::ClientConfig;

use crate::endpoint::Directory;
use crate::error::LoadError;
use crate::prepare::Prepared;
use crate::share::Shard;
use crate::transport::tls::TlsFacts;

/// What one thread is given.
#[derive(Debug)]
pub struct Job<'a> {
    pub plan: &'a Plan,
    pub prepared: &'a Prepared,
    pub directory: &'a Directory,
    pub tls: Option<Arc<ClientConfig>>,
    pub thread: usize,
    /// What of the run is this thread's.
    pub shard: Shard,
    /// On the run's clock: when the first phase begins, the same for all threads.
    pub start: Micros,
    pub wish: Wish,
}

/// How a run went for one thread.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub unreachable: bool,
    /// Why connections failed.
    pub connect_errors: BTreeMap<String, u64>,
    /// What was wrong with answers.
    pub protocol_errors: BTreeMap<String, u64>,
    /// Parts of measured pages that got no good answer.
    pub page_errors: BTreeMap<String, u64>,
    /// Requests that nothing is expected of, and how many of their answers were looked at.
    pub looked_at: BTreeMap<String, u64>,
    /// Why some of those looked as if the work was not done.
    pub doubts: BTreeMap<String, u64>,
    pub shortage: Shortage,
    /// What is weak about the first certificate that was taken unverified.
    pub unverified: Option<Vec<String>>,
    /// What the first answer says of its server, where each request is handed over.
    pub first_answer: Option<FirstAnswer>,
}

/// Where a thread's results go and how it is told to stop.
#[derive(Debug)]
pub struct Wiring<'a> {
    pub thread: usize,
    /// Told to stop by the user.
    pub stop: &'a AtomicBool,
    /// Given up by the run itself (another thread failed, or nothing can be reached), or by whoever needs no more of it.
    pub halt: &'a AtomicBool,
    pub out: &'a Sender<Message>,
    /// Slices come back emptied, so that the hot path neither allocates nor clears.
    pub recycled: &'a Receiver<Box<Slice>>,
}

impl Wiring<'_> {
    pub fn told_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.halt.load(Ordering::Relaxed)
    }
}

/// What a thread says to the collector.
#[derive(Debug)]
pub enum Message {
    Slice { thread: usize, slice: Box<Slice> },
    PhaseEnd { thread: usize, phase: u16, duration_us: Micros, peak: u64 },
    Exchanges(Vec<Exchange>),
    ThreadEnd { outcome: Box<Outcome>, cpu_us: u64, wall_us: u64 },
    Failed(LoadError),
}

/// What the first answer of a run says of its server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstAnswer {
    /// The `Server` field.
    pub server: Option<String>,
    pub tls: Option<TlsFacts>,
}
