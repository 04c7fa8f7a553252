//! Looks at a server again and again, without load of our own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::Settings;
use lastdrop_model::documents::{WATCH_SCHEMA, WatchDocument};
use lastdrop_probe::namespace::ConnectionTables;
use lastdrop_probe::sampler::{Detail, SampledServer, Sampler};
use lastdrop_server::{FoundServer, ServerError, ServerRef, find};
use serde::{Deserialize, Serialize};

/// A server of another machine under watch, whoever carries the looks here.
pub trait WatchElsewhere: Send {
    /// What was found, and when it is looked for anew.
    fn found(&self) -> &FoundElsewhere;

    /// As [`Watcher::look`]; one that has ended is looked for anew. With it: does it live?
    ///
    /// # Errors
    /// When its machine cannot be asked.
    fn look(&mut self, patient: bool) -> Result<(WatchDocument, bool), ServerError>;

    /// Its settings as they are now; None where they cannot be read.
    fn settings(&mut self) -> Option<Settings>;
}

/// What is known of a server of another machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FoundElsewhere {
    /// As it is named on a command line there.
    pub name: String,
    pub kind: String,
    pub software: String,
    pub master: i32,
    pub listens: Vec<String>,
}

impl From<&FoundServer> for FoundElsewhere {
    fn from(found: &FoundServer) -> FoundElsewhere {
        FoundElsewhere {
            name: found.name.clone(),
            kind: kind(found),
            software: found.software.clone(),
            master: found.master,
            listens: found.listeners.iter().map(ToString::to_string).collect(),
        }
    }
}

/// What is named by a process is of no kind.
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
    let (listeners, status) = (found.listeners.clone(), found.status.clone());
    let subject = SampledServer {
        master: found.master,
        helpers: found.helpers,
        listeners,
        status,
        url: None,
        walks: ConnectionTables::default(),
    };
    Sampler::new(&subject, Detail::Whole)
}

impl Watcher {
    /// Finds the server and looks once, so that the next look tells differences.
    ///
    /// # Errors
    /// When it is not found, or may not be looked at.
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

    /// Looks. With `patient`, every process's memory is read now and the status page waited for.
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

    /// Did the server's master process live at the last look?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.sampler.is_alive()
    }

    /// Looks for the server anew after its master has ended. True when it is there again.
    pub fn find_again(&mut self) -> bool {
        let Ok(found) = find(&self.server) else { return false };
        self.sampler = sampler(&found);
        self.sampler.sample(self.started.elapsed().as_secs_f64(), true);
        self.found = found;
        true
    }
}
