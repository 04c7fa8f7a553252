//! Who puts the load of a run on, where it is not this process.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use lastdrop_model::run::AgentReport;
use lastdrop_model::{Event, Generator, Plan, Reason};
use lastdrop_store::Store;

/// Carries plans out instead of this process, and tells of them what this process would have told.
pub trait Carrier {
    /// Carries a plan out: each second and each end of a phase is told, in order, as [`lastdrop_load::run`] tells them. Comes back when all
    /// is told.
    ///
    /// # Errors
    /// When no load could be put on at all: a sentence for people.
    fn carry(&mut self, run: &CarriedRun<'_>, report: &mut dyn FnMut(&Event<'_>)) -> Result<Carried, String>;

    /// Where its connections come from, as far as that is known: they are no visitors of a server.
    fn addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// The run that was carried last is kept, with its report: what was written down beside it in case of a kill is of no use any more.
    fn is_kept(&mut self) {}
}

/// A run that is to be carried out.
pub struct CarriedRun<'a> {
    pub id: &'a str,
    pub plan: &'a Plan,
    /// The user asks to stop.
    pub stop: &'a AtomicBool,
    /// Whoever is shown the run needs no more of it.
    pub enough: &'a AtomicBool,
    /// Where the run is kept. What comes from other machines is written there before they may forget it.
    pub store: Option<Store>,
    /// To be told the moment at which the first phase begins, on this machine's clock, as soon as it is known.
    pub begins: &'a dyn Fn(Instant),
}

impl fmt::Debug for CarriedRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarriedRun").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How a run went for whoever carried it out.
#[derive(Debug, Clone, Default)]
pub struct Carried {
    pub agents: Vec<AgentReport>,
    /// Of all machines together.
    pub generator: Generator,
    /// What speaks against what was measured, of each machine by itself.
    pub reasons: Vec<Reason>,
    /// Nobody could connect to anything.
    pub unreachable: bool,
    pub stopped: bool,
}
