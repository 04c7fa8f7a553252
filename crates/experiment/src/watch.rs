//! Looks at a server again and again, without load of our own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::ServerRef;
use lastdrop_model::documents::{WATCH_SCHEMA, WatchDocument};
use lastdrop_probe::observer::{Detail, Observer, Subject};
use lastdrop_server::{Found, ServerError, find};

/// A server under watch.
#[derive(Debug)]
pub struct Watcher {
    server: ServerRef,
    found: Found,
    observer: Observer,
    started: Instant,
}

fn observer(found: &Found) -> Observer {
    let subject = Subject { master: found.master, listeners: found.listeners.clone(), status: found.status.clone() };
    Observer::new(&subject, Detail::Whole)
}

impl Watcher {
    /// Finds the server and looks once, so that the next look tells differences.
    ///
    /// # Errors
    /// When it is not found, or may not be looked at.
    pub fn start(server: &ServerRef) -> Result<Watcher, ServerError> {
        let found = find(server)?;
        let mut observer = observer(&found);
        observer.look(0.0, true);
        Ok(Watcher { server: server.clone(), found, observer, started: Instant::now() })
    }

    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Looks. With `patient`, every process's memory is read now and the status page waited for.
    pub fn look(&mut self, patient: bool) -> WatchDocument {
        let look = self.observer.look(self.started.elapsed().as_secs_f64(), patient);
        WatchDocument {
            schema: WATCH_SCHEMA.into(),
            server: self.found.name.clone(),
            software: self.found.software.clone(),
            master: self.found.master,
            unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            workers: self.observer.workers(),
            look,
            unread: self.observer.unread(),
            cost_cores: self.observer.cost_cores(),
        }
    }

    /// Did the server's master process live at the last look?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.observer.is_alive()
    }

    /// Looks for the server anew after its master has ended. True when it is there again.
    pub fn find_again(&mut self) -> bool {
        let Ok(found) = find(&self.server) else { return false };
        self.observer = observer(&found);
        self.observer.look(self.started.elapsed().as_secs_f64(), true);
        self.found = found;
        true
    }
}
