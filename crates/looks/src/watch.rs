//! Looks at a server again and again, without load of our own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::documents::{WATCH_SCHEMA, WatchDocument};
use lastdrop_probe::looker::{Detail, Looker, Subject};
use lastdrop_server::{Found, ServerError, ServerRef, find};

/// A server under watch.
#[derive(Debug)]
pub struct Watcher {
    server: ServerRef,
    found: Found,
    looker: Looker,
    started: Instant,
}

fn looker(found: &Found) -> Looker {
    let (listeners, status) = (found.listeners.clone(), found.status.clone());
    let subject = Subject { master: found.master, helpers: found.helpers, listeners, status, url: None };
    Looker::new(&subject, Detail::Whole)
}

impl Watcher {
    /// Finds the server and looks once, so that the next look tells differences.
    ///
    /// # Errors
    /// When it is not found, or may not be looked at.
    pub fn start(server: &ServerRef) -> Result<Watcher, ServerError> {
        let found = find(server)?;
        let mut looker = looker(&found);
        looker.look(0.0, true);
        Ok(Watcher { server: server.clone(), found, looker, started: Instant::now() })
    }

    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Looks. With `patient`, every process's memory is read now and the status page waited for.
    pub fn look(&mut self, patient: bool) -> WatchDocument {
        let look = self.looker.look(self.started.elapsed().as_secs_f64(), patient);
        WatchDocument {
            schema: WATCH_SCHEMA.into(),
            server: self.found.name.clone(),
            software: self.found.software.clone(),
            master: self.found.master,
            unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            workers: self.looker.workers(),
            look,
            databases: Vec::new(),
            unread: self.looker.unread(),
            cost_cores: self.looker.cost_cores(),
        }
    }

    /// Did the server's master process live at the last look?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.looker.is_alive()
    }

    /// Looks for the server anew after its master has ended. True when it is there again.
    pub fn find_again(&mut self) -> bool {
        let Ok(found) = find(&self.server) else { return false };
        self.looker = looker(&found);
        self.looker.look(self.started.elapsed().as_secs_f64(), true);
        self.found = found;
        true
    }
}
