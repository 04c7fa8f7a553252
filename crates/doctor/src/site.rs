//! What a doctor asks of the machine that the servers are on. Every question and every answer is plain data, so that the machine may be
//! another one, and several of them can be asked the same. [`Here`](crate::Here) is this one.
//!
//! The order of an examination: `find`, `visitors`, `follow` while a first load is on, `servers`; then for each step `begin` and `end`, with
//! `memory` and `settle` after it; `inside` under load once more; at the end `modules` and `rest`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use lastdrop_lab::LabError;
use lastdrop_model::Url;
use lastdrop_model::documents::WorkersCeiling;
use lastdrop_model::examination::{Examination, ExaminationStep, ExaminedServer, Growth, ModuleTrial, ServerProfile};
use serde::{Deserialize, Serialize};

/// Whom it is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// Servers as they are named on a command line; where there are none, the one that listens at the URL.
    pub servers: Vec<String>,
    pub url: Url,
    /// What the load connects to: this address of the URL, or this path instead. Neither: it meets none of the servers of this machine by itself.
    pub address: Option<SocketAddr>,
    pub unix_socket: Option<PathBuf>,
    /// Where the load comes from, if not from this process: those are no clients of the servers.
    pub load_from: Vec<IpAddr>,
    /// Whoever connects from there only checks the servers' health, and is no visitor.
    pub ignore: Vec<IpAddr>,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub processors: u64,
    pub memory_bytes: u64,
    /// What it is called; empty: it is that of whoever asks.
    pub name: String,
    /// It is another one than that of whoever asks.
    pub away: bool,
    /// Agents on it, whose load is its own.
    pub agents: Vec<String>,
}

/// Servers of a chain, each before those that it connects to, with their settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Servers {
    pub servers: Vec<ExaminedServer>,
    /// Settings of the kernel that old advice names.
    pub sysctls: std::collections::BTreeMap<String, String>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

/// What is known when all steps are over.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rest {
    pub growth: Vec<Growth>,
    /// What bounds the number of workers of each pool, by what the server is called.
    #[serde(default)]
    pub ceilings: BTreeMap<String, Vec<WorkersCeiling>>,
    pub unseen: Vec<String>,
    /// Processors that looking took; and what for, seconds of processor time.
    pub cost_cores: f64,
    #[serde(default)]
    pub cost_s: BTreeMap<String, f64>,
}

/// What came of trying servers without the modules, or extensions, that they may not need.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// By what the server is called.
    pub modules: BTreeMap<String, ModuleTrial>,
    /// Which could not be tried, and why.
    pub unseen: Vec<String>,
}

/// A machine with servers, as a doctor sees it. Errors are those of who cannot be found, or asked.
pub trait Site: Send {
    /// Finds the servers, which all other questions are about.
    fn find(&mut self, goal: &Goal) -> Result<Machine, LabError>;

    /// Who else is connected to the first server, looked at for a second or so: in words.
    fn visitors(&mut self) -> Result<Option<String>, LabError>;

    /// Begins to follow connections from the servers to those behind them, while somebody puts load on.
    fn follow(&mut self) -> Result<(), LabError>;

    /// Ends that: who takes part, and what they are set to. From here on they are looked at.
    fn servers(&mut self) -> Result<Servers, LabError>;

    /// The load of a step is on from now.
    fn begin(&mut self) -> Result<(), LabError>;

    /// It is over: a step with all that was seen since, and nothing of the load itself.
    fn end(&mut self) -> Result<ExaminationStep, LabError>;

    /// Traces the servers for some seconds, while there is load; with `profile`, those that were seen to compute are profiled, too.
    fn inside(&mut self, profile: bool) -> Result<Vec<ServerProfile>, LabError>;

    /// Reads how much memory workers have, now that so many requests were answered.
    fn memory(&mut self, requests: u64) -> Result<(), LabError>;

    /// Waits until nobody waits for the servers any more, some seconds at most.
    fn settle(&mut self) -> Result<(), LabError>;

    /// Tries servers without the modules that they may not need, where they are such as have some.
    fn modules(&mut self) -> Result<Tried, LabError>;

    /// What is left to tell. From here on they are not looked at any more: whoever changes them asks who else uses them.
    fn rest(&mut self) -> Result<Rest, LabError>;

    /// Where it is several machines: of the whole examination that of each.
    fn nodes(&mut self, _whole: &Examination) -> Vec<Examination> {
        Vec::new()
    }
}
