//! A member of a stack: a server whose settings are being changed, wherever it runs.
//!
//! The methods are the course of a change: check, apply, restore or persist. What else may be done with an open server is a
//! row of [`crate::operations`]. Implementors: a [`Session`] and a [`HostSession`] of this machine, a server in a container,
//! a [`Group`](crate::group::Group) of the same server on several machines, and an agent's session, outside of this crate.

use std::path::Path;

use lastdrop_model::documents::SizeDocument;
use lastdrop_model::{Knob, Settings};
use lastdrop_probe::host::cpus;
use serde_json::Value;

use crate::adapter::{Adapter, EffectiveSettings};
use crate::host::HostSession;
use crate::operations::OperationCall;
use crate::page_cache::{CacheOffer, PageCache};
use crate::persisted_in::PersistedIn;
use crate::restore::{RestoreReport, RestoredServer};
use crate::session::{Session, check_names};
use crate::{Change, ServerError};

pub trait Member {
    /// The name for a command line; with its agent if it is on another machine: `web-1/apache:/etc/apache2/apache2.conf`.
    fn name(&self) -> &str;

    /// The settings when the session began.
    fn original(&self) -> &EffectiveSettings;

    fn knobs(&self) -> Vec<&'static Knob>;

    /// Processors of its machine.
    fn cores(&self) -> u64 {
        cpus() as u64
    }

    /// True if it is a host, which has settings and no workers.
    fn is_host(&self) -> bool {
        false
    }

    /// True if it has processes that can be sampled.
    fn has_processes(&self) -> bool {
        !self.is_host()
    }

    /// True if its lock and journal are on this machine.
    fn is_here(&self) -> bool {
        true
    }

    /// Its session, if it is a server of this machine.
    fn session(&self) -> Option<&Session> {
        None
    }

    /// Checks that it can be changed at all.
    ///
    /// # Errors
    /// With what to do instead.
    fn check_changeable(&self) -> Result<(), ServerError> {
        Ok(())
    }

    /// Checks that it has these settings and that they can take these values.
    ///
    /// # Errors
    /// With the unknown name, or the range.
    fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        check_names(&self.knobs(), settings)
    }

    /// True if it takes directives in its own language besides settings.
    fn takes_directives(&self) -> bool {
        false
    }

    /// Describes what a change does to the configuration, a line for each place; empty if it changes nothing.
    ///
    /// # Errors
    /// With the place that is not there.
    fn preview(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        Ok(change.lines().collect())
    }

    /// Checks that the server would accept the change.
    ///
    /// # Errors
    /// With the reason why the server would not accept it.
    fn check(&self, change: &Change) -> Result<(), ServerError>;

    /// Adds the settings that follow from the given ones.
    ///
    /// # Errors
    /// If its machine cannot be asked.
    fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
        Ok(settings.clone())
    }

    /// Brings the change into force.
    ///
    /// # Errors
    /// If the server does not accept it or does not come back healthy.
    fn apply(&mut self, change: &Change) -> Result<(), ServerError>;

    /// Makes the next change restart the server: a setting of its host has changed that applies when it begins to listen.
    fn start_anew_next(&mut self) {}

    /// True if a change is neither undone nor kept.
    fn is_open(&self) -> bool;

    /// Restores files and processes; [`Member::verify_health`] must follow.
    ///
    /// # Errors
    /// If files or processes are not as they were.
    fn restore_files(&mut self) -> Result<RestoredServer, ServerError>;

    /// Checks that the restored server answers, and removes its journal.
    ///
    /// # Errors
    /// If it does not answer as before.
    fn verify_health(&mut self, half: RestoredServer) -> Result<RestoreReport, ServerError> {
        Ok(half.into_restored())
    }

    /// Makes the settings permanent; they can still be undone until [`Member::commit`].
    ///
    /// # Errors
    /// If they cannot be brought into force.
    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError>;

    /// Makes all ready for a cache for all visitors, whom it does not answer yet.
    ///
    /// # Errors
    /// If it has no such cache, or cannot be changed.
    fn offer_cache(&mut self, _cache: &PageCache) -> Result<CacheOffer, ServerError> {
        Err(ServerError::Setting(format!("{} keeps no cache", self.name())))
    }

    /// Leaves the server running with a cache for all visitors that was offered.
    ///
    /// # Errors
    /// If it cannot be brought into force.
    fn keep_cache(&mut self, _cache: &PageCache) -> Result<(), ServerError> {
        Err(ServerError::Setting(format!("{} keeps no cache", self.name())))
    }

    /// Removes the journal, so that the persisted settings stay.
    ///
    /// # Errors
    /// If that cannot be written.
    fn commit(&mut self, kept: &PersistedIn) -> Result<(), ServerError>;

    /// Carries out an operation that needs no undoing.
    ///
    /// # Errors
    /// If it has no processes, or its machine cannot be asked.
    fn operate(&self, _call: OperationCall) -> Result<Value, ServerError> {
        Err(no_workers(self.name()))
    }

    /// How many of its workers fit into `memory` bytes of its machine, or into the memory that it has left, if its machine
    /// finds that out. Of a [`Session`] the caller does.
    ///
    /// # Errors
    /// If its processes may not be read, or the machine cannot be asked.
    fn size(&self, _memory: Option<u64>) -> Result<SizeDocument, ServerError> {
        Err(no_workers(self.name()))
    }
}

fn no_workers(name: &str) -> ServerError {
    ServerError::Setting(format!("{name} has no workers"))
}

impl Member for Session {
    fn name(&self) -> &str {
        &self.adapter().facts().name
    }

    fn original(&self) -> &EffectiveSettings {
        self.original()
    }

    fn knobs(&self) -> Vec<&'static Knob> {
        self.adapter().knobs().iter().collect()
    }

    fn session(&self) -> Option<&Session> {
        Some(self)
    }

    fn takes_directives(&self) -> bool {
        self.adapter().facts().kind.directives
    }

    fn preview(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        self.adapter().preview(change)
    }

    fn check(&self, change: &Change) -> Result<(), ServerError> {
        Session::check(self, change)
    }

    fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
        Ok(self.adapter().complete(settings, &self.original().settings))
    }

    fn apply(&mut self, change: &Change) -> Result<(), ServerError> {
        Session::apply(self, change)
    }

    fn start_anew_next(&mut self) {
        self.start_anew_next();
    }

    fn is_open(&self) -> bool {
        self.is_open()
    }

    fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        self.restore_files()
    }

    fn verify_health(&mut self, half: RestoredServer) -> Result<RestoreReport, ServerError> {
        Session::verify_health(self, half)
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        self.persist(settings)
    }

    fn offer_cache(&mut self, cache: &PageCache) -> Result<CacheOffer, ServerError> {
        Session::offer_cache(self, cache)
    }

    fn keep_cache(&mut self, cache: &PageCache) -> Result<(), ServerError> {
        Session::keep_cache(self, cache)
    }

    fn commit(&mut self, kept: &PersistedIn) -> Result<(), ServerError> {
        self.commit(kept)
    }

    fn operate(&self, call: OperationCall) -> Result<Value, ServerError> {
        call.carry_out(self)
    }
}

impl Member for HostSession {
    fn name(&self) -> &str {
        self.host().name()
    }

    fn original(&self) -> &EffectiveSettings {
        self.original()
    }

    fn knobs(&self) -> Vec<&'static Knob> {
        self.host().knobs()
    }

    fn is_host(&self) -> bool {
        true
    }

    fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        self.check_names(settings)
    }

    fn check(&self, change: &Change) -> Result<(), ServerError> {
        HostSession::check(self, change)
    }

    fn apply(&mut self, change: &Change) -> Result<(), ServerError> {
        HostSession::apply(self, change)
    }

    fn is_open(&self) -> bool {
        self.is_open()
    }

    fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        self.restore().map(RestoredServer::whole)
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        self.persist(settings)
    }

    fn commit(&mut self, _: &PersistedIn) -> Result<(), ServerError> {
        self.commit()
    }
}

/// A server in a container, with its settings: a change is reported, not made.
pub(crate) struct ContainedMember(pub Box<dyn Adapter>, pub EffectiveSettings);

impl ContainedMember {
    fn refuse<T>(&self, change: &Change) -> Result<T, ServerError> {
        let ContainedMember(adapter, _) = self;
        let not_from_here = || ServerError::Setting(format!("{} is not changed from here", adapter.facts().name));
        let told = adapter.contained().map(|contained| contained.tell(change));
        Err(told.unwrap_or_else(not_from_here))
    }
}

impl Member for ContainedMember {
    fn name(&self) -> &str {
        &self.0.facts().name
    }

    fn original(&self) -> &EffectiveSettings {
        &self.1
    }

    fn knobs(&self) -> Vec<&'static Knob> {
        self.0.knobs().iter().collect()
    }

    fn has_processes(&self) -> bool {
        false
    }

    fn check_changeable(&self) -> Result<(), ServerError> {
        self.refuse(&Change::default())
    }

    fn check(&self, change: &Change) -> Result<(), ServerError> {
        self.0.check(change, Path::new(""))
    }

    fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
        Ok(self.0.complete(settings, &self.1.settings))
    }

    fn apply(&mut self, change: &Change) -> Result<(), ServerError> {
        self.refuse(change)
    }

    fn is_open(&self) -> bool {
        false
    }

    fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        Ok(RestoredServer::whole(RestoreReport::untouched(self.name())))
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        self.refuse(&settings.into())
    }

    fn commit(&mut self, _: &PersistedIn) -> Result<(), ServerError> {
        Ok(())
    }
}
