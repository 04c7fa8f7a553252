//! The questions that the doctor asks about the servers' machine, which hands out a [`Site`] to answer them. Every
//! question and every answer is plain data: several machines can be asked the same.
//!
//! The order of an examination: `find`, `visitors`, `follow` during a first load, `servers`. For each step `begin` and
//! `end`, with `memory` and `settle` after it. Then `inside` under load once more, and `code` if processors are the limit;
//! at the end `modules` and `finish`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use crate::lab::LabError;
use lastdrop_model::documents::WorkersCeiling;
use lastdrop_model::examination::{
    Examination, ExaminationStep, ExaminedServer, Growth, HotFunction, ModuleTrial, ServerProfile,
};
use lastdrop_model::{Plan, Url};
use lastdrop_probe::listeners::Endpoint;
use serde::{Deserialize, Serialize};

/// The servers to examine, and where the load comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// Servers as they are named on a command line. If there are none, the one that listens at the URL.
    pub servers: Vec<String>,
    pub url: Url,
    /// The load connects to this address of the URL, or to `unix_socket` instead. With neither, it reaches none of this
    /// machine's servers by itself.
    pub address: Option<SocketAddr>,
    pub unix_socket: Option<PathBuf>,
    /// Addresses that the load comes from, if not from this process: they are not clients of the servers.
    pub load_from: Vec<IpAddr>,
    /// Addresses that only send health checks, and are not visitors.
    pub ignore: Vec<IpAddr>,
}

impl Goal {
    /// Returns the endpoint that the load connects to.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match &self.unix_socket {
            Some(path) => Some(Endpoint::Unix(path.clone())),
            None => self.address.map(Endpoint::Tcp),
        }
    }
}

/// The servers' machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    pub processors: u64,
    pub memory_bytes: u64,
    /// Its name; empty for the machine of the process that asks.
    pub name: String,
    /// True if it is another machine than that of the process that asks.
    pub away: bool,
    /// Agents that run on it: their load uses its processors.
    pub agents: Vec<String>,
}

/// Servers of a chain with their settings, each before those that it connects to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Servers {
    pub servers: Vec<ExaminedServer>,
    /// Kernel settings that old advice names.
    pub sysctls: std::collections::BTreeMap<String, String>,
    /// What could not be read, and why.
    pub unseen: Vec<String>,
}

/// Results that are known after all steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SiteSummary {
    pub growth: Vec<Growth>,
    /// Ceilings for the number of workers of each pool, by server name.
    #[serde(default)]
    pub ceilings: BTreeMap<String, Vec<WorkersCeiling>>,
    pub unseen: Vec<String>,
    /// Cores that sampling used on average; `cost_s` has its processor time in seconds, by purpose.
    pub cost_cores: f64,
    #[serde(default)]
    pub cost_s: BTreeMap<String, f64>,
}

/// Results of trying servers without the modules, or extensions, that they may not need.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModuleTrials {
    /// By server name.
    pub modules: BTreeMap<String, ModuleTrial>,
    /// Servers that could not be tried, and why.
    pub unseen: Vec<String>,
}

/// A machine with servers, as the doctor sees it. An error means that a server or machine was not found, or could not
/// be asked.
pub trait Site: Send {
    /// Finds the servers, which all other questions are about.
    fn find(&mut self, goal: &Goal) -> Result<MachineFacts, LabError>;

    /// Describes who else is connected to the first server, checked for a second or so.
    fn visitors(&mut self) -> Result<Option<String>, LabError>;

    /// Starts to follow connections from the servers to those behind them, while load is on.
    fn follow(&mut self) -> Result<(), LabError>;

    /// Stops following. Returns the servers that take part, and their settings; sampling starts here.
    fn servers(&mut self) -> Result<Servers, LabError>;

    /// Marks the start of a step's load.
    fn begin(&mut self) -> Result<(), LabError>;

    /// Marks its end. Returns a step with all samples since its start, without the load's own numbers.
    fn end(&mut self) -> Result<ExaminationStep, LabError>;

    /// Traces the servers for some seconds under load; with `profile`, also profiles those that used processor time.
    fn inside(&mut self, profile: bool) -> Result<Vec<ServerProfile>, LabError>;

    /// Profiles the functions of a server's own language under a part of the plan's load. None if that is not known here.
    /// `Err` inside: why it could not be done.
    fn code(
        &mut self,
        _server: &str,
        _plan: &Plan,
        _stop: &AtomicBool,
    ) -> Result<Option<Result<Vec<HotFunction>, String>>, LabError> {
        Ok(None)
    }

    /// Reads the workers' memory, after this many answered requests.
    fn memory(&mut self, requests: u64) -> Result<(), LabError>;

    /// Waits until no connection waits for the servers, some seconds at most.
    fn settle(&mut self) -> Result<(), LabError>;

    /// Tries servers without the modules that they may not need, if they have any.
    fn modules(&mut self) -> Result<ModuleTrials, LabError>;

    /// Ends sampling and returns the remaining results. Whoever changes the servers afterwards has to look for other
    /// clients.
    fn finish(&mut self) -> Result<SiteSummary, LabError>;

    /// For several machines, returns the part of the whole examination that belongs to each.
    fn nodes(&mut self, _whole: &Examination) -> Vec<Examination> {
        Vec::new()
    }
}
