//! Samples a server repeatedly, without load of our own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::Settings;
use lastdrop_model::documents::{WATCH_SCHEMA, WatchDocument};
use lastdrop_probe::namespace::ConnectionTables;
use lastdrop_probe::sampler::{Detail, Sampler};
use lastdrop_server::{FoundServer, ServerError, ServerRef, find, knobs_of};
use serde::{Deserialize, Serialize};

/// A server under watch, wherever it runs.
pub trait ServerWatch: Send {
    /// Returns the server that was found; it changes when the server is found again.
    fn info(&self) -> ServerInfo;

    /// Takes a sample, and looks for a server that has ended. Also returns whether it is alive. With `patient`, reads every
    /// process's memory now and waits for the status page.
    ///
    /// # Errors
    /// When its machine cannot be reached.
    fn sample(&mut self, patient: bool) -> Result<(WatchDocument, bool), ServerError>;

    /// Returns its present settings; None if they cannot be read.
    fn settings(&mut self) -> Option<Settings>;
}

/// A server under watch, in plain data.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Its name on a command line of its machine.
    pub name: String,
    pub kind: String,
    pub software: String,
    pub master: i32,
    pub listens: Vec<String>,
}

impl From<&FoundServer> for ServerInfo {
    fn from(found: &FoundServer) -> ServerInfo {
        ServerInfo {
            name: found.name.clone(),
            kind: kind(found),
            software: found.software.clone(),
            master: found.master,
            listens: found.listeners.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Returns the kind of a server; a server named by its process has none, so its software is returned.
pub(crate) fn kind(found: &FoundServer) -> String {
    if found.kind.programs.is_empty() { found.software.clone() } else { found.kind.name.into() }
}

/// A server under watch.
#[derive(Debug)]
pub struct Watcher {
    server: ServerRef,
    found: FoundServer,
    sampler: Sampler,
    started: Instant,
}

fn sampler(found: &FoundServer) -> Sampler {
    Sampler::new(&found.to_sample(None, ConnectionTables::default()), Detail::Whole)
}

impl Watcher {
    /// Finds the server and takes a first sample as the base for differences.
    ///
    /// # Errors
    /// When it is not found, or may not be inspected.
    pub fn start(server: &ServerRef) -> Result<Watcher, ServerError> {
        let found = find(server)?;
        let mut sampler = sampler(&found);
        sampler.sample(0.0, true);
        Ok(Watcher { server: server.clone(), found, sampler, started: Instant::now() })
    }

    #[must_use]
    pub fn found(&self) -> &FoundServer {
        &self.found
    }

    /// Takes a sample. With `patient`, reads every process's memory now and waits for the status page.
    pub fn look(&mut self, patient: bool) -> WatchDocument {
        let look = self.sampler.sample(self.started.elapsed().as_secs_f64(), patient);
        WatchDocument {
            schema: WATCH_SCHEMA.into(),
            server: self.found.name.clone(),
            software: self.found.software.clone(),
            master: self.found.master,
            unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            workers: self.sampler.workers(),
            look,
            databases: Vec::new(),
            unread: self.sampler.unread(),
            cost_cores: self.sampler.cost_cores(),
        }
    }

    /// Returns true if the server's master process existed at the last sample.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.sampler.is_alive()
    }

    /// Looks for the server after its master has ended. Returns true if it is back.
    pub fn find_again(&mut self) -> bool {
        let Ok(found) = find(&self.server) else { return false };
        self.sampler = sampler(&found);
        self.sampler.sample(self.started.elapsed().as_secs_f64(), true);
        self.found = found;
        true
    }
}

impl ServerWatch for Watcher {
    fn info(&self) -> ServerInfo {
        ServerInfo::from(&self.found)
    }

    fn sample(&mut self, patient: bool) -> Result<(WatchDocument, bool), ServerError> {
        if !self.is_alive() {
            self.find_again();
        }
        let document = self.look(patient);
        Ok((document, self.is_alive()))
    }

    fn settings(&mut self) -> Option<Settings> {
        Some(knobs_of(&self.server).ok()?.effective.settings)
    }
}
