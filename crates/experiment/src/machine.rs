//! The machines on which servers run, as experiments know them: [`ThisMachine`], and outside of this crate those of agents. An
//! experiment is given a [`Machine`] and never asks which one it is; a command chooses it by the names of its servers.
//!
//! What lasts is handed out: a watch, a sampler of a run, a [`Site`] for the doctor, a [`Stack`] of servers to change. Several
//! machines are one by composition: `doctor::Nodes` of sites, a group of members in a stack. The load comes from machines of its
//! own choosing, see [`crate::lab::Carrier`].

use std::sync::mpsc::Sender;

use lastdrop_model::documents::KnobsDocument;
use lastdrop_model::{Sample, Url};
use lastdrop_server::{OtherTrafficPolicy, RestoreReport, ServerError, ServerRef, Stack, find, restore_like};

use crate::doctor::{LocalSite, Site};
use crate::lab::{LabError, SampledServer};
use crate::observe::databases::DatabaseOptions;
use crate::observe::knobs::knobs;
use crate::observe::watch::{ServerWatch, Watcher};

pub trait Machine {
    /// Begins to watch a server.
    ///
    /// # Errors
    /// When it is not found, may not be inspected, or its machine cannot be asked.
    fn watch(&self, server: &ServerRef) -> Result<Box<dyn ServerWatch>, ServerError>;

    /// Finds a server, to sample it during a run.
    ///
    /// # Errors
    /// As [`Machine::watch`].
    fn sampled(&self, server: &ServerRef) -> Result<SampledServer, ServerError>;

    /// Reads the settings of a server.
    ///
    /// # Errors
    /// When it is not found, or is of a kind whose settings cannot be read.
    fn knobs(&self, server: &ServerRef) -> Result<KnobsDocument, LabError>;

    /// Returns the servers' machine for a doctor's questions. Samples of the first server go to `samples` as they come.
    ///
    /// # Errors
    /// When the machine cannot be asked.
    fn site(
        &self,
        servers: &[ServerRef],
        databases: &DatabaseOptions,
        samples: Sender<Sample>,
    ) -> Result<Box<dyn Site>, ServerError>;

    /// Opens servers to change them, as [`Stack::open`].
    ///
    /// # Errors
    /// When a server is not found, not healthy, in use by others, or may not be changed.
    fn open(&self, servers: &[ServerRef], url: Option<&Url>, others: &OtherTrafficPolicy)
    -> Result<Stack, ServerError>;

    /// Undoes what killed runs left of changes to a server.
    ///
    /// # Errors
    /// When the machine cannot be asked, or its journals cannot be listed.
    fn restore_left(
        &self,
        server: &ServerRef,
        dry_run: bool,
    ) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError>;
}

/// The machine of this process.
#[derive(Debug, Clone, Copy)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn watch(&self, server: &ServerRef) -> Result<Box<dyn ServerWatch>, ServerError> {
        Ok(Box::new(Watcher::start(server)?))
    }

    fn sampled(&self, server: &ServerRef) -> Result<SampledServer, ServerError> {
        find(server).map(SampledServer::Found)
    }

    fn knobs(&self, server: &ServerRef) -> Result<KnobsDocument, LabError> {
        knobs(server)
    }

    fn site(
        &self,
        servers: &[ServerRef],
        databases: &DatabaseOptions,
        samples: Sender<Sample>,
    ) -> Result<Box<dyn Site>, ServerError> {
        Ok(Box::new(LocalSite::new(servers, databases.clone(), samples)))
    }

    fn open(
        &self,
        servers: &[ServerRef],
        url: Option<&Url>,
        others: &OtherTrafficPolicy,
    ) -> Result<Stack, ServerError> {
        Stack::open(servers, url, others)
    }

    fn restore_left(
        &self,
        server: &ServerRef,
        dry_run: bool,
    ) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
        let config = server.config.as_deref();
        restore_like(dry_run, |journal| {
            journal.kind.name == server.kind.name && (config.is_none() || journal.config.as_deref() == config)
        })
    }
}
