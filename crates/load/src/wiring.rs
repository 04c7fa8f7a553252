//! A thread's task, how it is told to stop, and what it reports during the run and at its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use lastdrop_model::run::Shortage;
use lastdrop_model::{CaptureLevel, Exchange, Micros, Plan, Slice};
use rustls::ClientConfig;

use crate::endpoint::Directory;
use crate::error::LoadError;
use crate::prepare::PreparedPlan;
use crate::share::Shard;
use crate::transport::tls::TlsFacts;

/// The task of one thread.
#[derive(Debug)]
pub struct Job<'a> {
    pub plan: &'a Plan,
    pub prepared: &'a PreparedPlan,
    pub directory: &'a Directory,
    pub tls: Option<Arc<ClientConfig>>,
    pub thread: usize,
    /// This thread's part of the run.
    pub shard: Shard,
    /// When the first phase begins on the run's clock, the same for all threads.
    pub start: Micros,
    pub wish: CaptureLevel,
}

/// How the run went for one thread.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub unreachable: bool,
    /// Why connections failed.
    pub connect_errors: BTreeMap<String, u64>,
    /// Protocol errors in answers.
    pub protocol_errors: BTreeMap<String, u64>,
    /// Parts of measured pages that got no good answer.
    pub page_errors: BTreeMap<String, u64>,
    /// Requests without expectations, and how many of their answers were checked for signs of failure.
    pub looked_at: BTreeMap<String, u64>,
    /// Those signs: why some answers look as if the server did not do the work.
    pub doubts: BTreeMap<String, u64>,
    pub shortage: Shortage,
    /// Weaknesses of the first certificate that was accepted unverified.
    pub unverified: Option<Vec<String>>,
    /// What the first answer tells about its server, if each request is handed over.
    pub first_answer: Option<FirstAnswer>,
}

/// Where a thread's results go, and the flags that stop it.
#[derive(Debug)]
pub struct ShardLink<'a> {
    pub thread: usize,
    /// Set when the user stops the run.
    pub stop: &'a AtomicBool,
    /// Set when the run gives up (another thread failed, or nothing is reachable), or when the caller needs no more of
    /// it.
    pub halt: &'a AtomicBool,
    pub out: &'a Sender<Message>,
    /// Slices come back emptied, so that the hot path neither allocates nor clears.
    pub recycled: &'a Receiver<Box<Slice>>,
}

impl ShardLink<'_> {
    pub fn told_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.halt.load(Ordering::Relaxed)
    }
}

/// A message from a thread to the collector.
#[derive(Debug)]
pub enum Message {
    Slice { thread: usize, slice: Box<Slice> },
    PhaseEnd { thread: usize, phase: u16, duration_us: Micros, peak: u64 },
    Exchanges(Vec<Exchange>),
    ThreadEnd { outcome: Box<Outcome>, cpu_us: u64, wall_us: u64 },
    Failed(LoadError),
}

/// What the first answer of a run tells about its server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstAnswer {
    /// The `Server` field.
    pub server: Option<String>,
    pub tls: Option<TlsFacts>,
}
