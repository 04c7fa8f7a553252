//! Who generates the load of a run, if not this process.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use lastdrop_model::run::AgentReport;
use lastdrop_model::{Event, Generator, Plan, Reason};
use lastdrop_store::Store;

/// Carries out plans in place of this process, and reports the same events.
pub trait Carrier {
    /// Carries out a plan. Reports each second and each end of a phase in order, like [`lastdrop_load::run`], and
    /// returns when everything is reported.
    ///
    /// # Errors
    /// When no load could be generated at all: a sentence for people.
    fn carry(&mut self, run: &CarrierTask<'_>, report: &mut dyn FnMut(&Event<'_>)) -> Result<CarrierResult, String>;

    /// Returns the known source addresses of its connections, which are not a server's visitors.
    fn addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Returns true if the servers run on real machines. Otherwise nothing is read from this machine during a run.
    fn is_real(&self) -> bool {
        true
    }

    /// Sends one request to each of the workers of a server that only the carrier reaches, and returns how many responded. None:
    /// this machine reaches it.
    fn warm_each(&mut self, _workers: usize) -> Option<usize> {
        None
    }

    /// Tells the carrier that the last run and its report are stored. Data kept in case of a crash is no longer needed.
    fn is_kept(&mut self) {}
}

/// A run to be carried out.
pub struct CarrierTask<'a> {
    pub id: &'a str,
    pub plan: &'a Plan,
    /// The user asks to stop.
    pub stop: &'a AtomicBool,
    /// The observers need no more of the run.
    pub enough: &'a AtomicBool,
    /// Where the run is stored. Data from other machines is written there before those may forget it.
    pub store: Option<Store>,
    /// Called with the start of the first phase on this machine's clock, as soon as it is known.
    pub begins: &'a dyn Fn(Instant),
}

impl fmt::Debug for CarrierTask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarrierTask").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The result of a run from the view of its carrier.
#[derive(Debug, Clone, Default)]
pub struct CarrierResult {
    pub agents: Vec<AgentReport>,
    /// Sums over all machines.
    pub generator: Generator,
    /// What is wrong with the measurement, per machine.
    pub reasons: Vec<Reason>,
    /// No connection succeeded at all.
    pub unreachable: bool,
    pub stopped: bool,
}
