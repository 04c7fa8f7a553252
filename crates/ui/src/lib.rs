//! `lastdrop ui`: serves the pages of `report` from the store to one person's browser.
//!
//! It shows everything in the store, whichever process makes it. A run in progress is followed there, and
//! stopped with the signal that Ctrl-C sends. `authenticator` decides which requests are served, `site`
//! routes them, and `pages` has the markup around the sections of a report. `follow` sends events. Only
//! `stop`, `start` and the users' tags and notes change anything.
//!
//! There is one user, so each connection has a thread with a blocking socket under one deadline (`wire`), and
//! `bounds` limits what a browser may ask for. A page is self-contained and readable without scripts.

mod answer;
mod authenticator;
mod bounds;
mod certificate;
mod follow;
mod pages;
mod progress;
mod request;
mod site;
mod start;
mod stop;

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::Run;
use lastdrop_model::documents::CompareDocument;
use lastdrop_store::Store;
use lastdrop_wire::{Acceptor, DeadlineSocket, RefusalReason, Slot, Wire, listen_on};

use crate::authenticator::Authenticator;
use crate::site::Site;
use crate::start::StartedRuns;

/// The operations that the program provides.
pub trait Program: fmt::Debug + Send + Sync {
    /// Opens the store, once per connection, so that no connection waits for another.
    ///
    /// # Errors
    /// A sentence for the user.
    fn store(&self) -> Result<Store, String>;

    /// Compares two stored runs, the second against the first.
    ///
    /// # Errors
    /// A sentence for the user.
    fn compare(&self, a: &Run, b: &Run, store: &Store) -> Result<CompareDocument, String>;

    /// Returns the command that runs a stored plan again.
    fn again(&self, id: &str) -> Command;
}

/// Options of the web UI.
#[derive(Debug)]
pub struct Options {
    /// Candidate addresses; the first that this machine has is used.
    pub listen: Vec<SocketAddr>,
    /// Allows addresses that other machines can reach.
    pub anyway: bool,
    /// Host names besides the address.
    pub names: Vec<String>,
    /// PEM files: certificates, and the key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The text at the foot of each page.
    pub made: String,
}

/// The reason why the UI cannot start.
#[derive(Debug, thiserror::Error)]
pub enum UiError {
    #[error(
        "{0} can be reached by other machines, and whoever has the URL sees all runs and may start and stop them; \
         listen on loopback (127.0.0.1:0), or say --listen-anyway"
    )]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("{}: {what}", path.display())]
    File { path: PathBuf, what: String },
    #[error("no certificate can be made: {0}")]
    Certificate(String),
    #[error("the system gives no random numbers: {0}")]
    Random(rustls::Error),
}

/// A running web UI.
#[derive(Debug)]
pub struct Ui {
    /// The URL with the token.
    pub url: String,
    /// SHA-256 of the certificate, if one was created.
    pub fingerprint: Option<String>,
    acceptor: Acceptor,
    site: Arc<Site>,
}

impl Ui {
    /// Serves in threads of its own until `end` is called.
    ///
    /// # Errors
    /// If it cannot listen, or if other machines could connect without `anyway`.
    pub fn start(options: Options, program: Box<dyn Program>) -> Result<Ui, UiError> {
        let beyond = options.listen.iter().find(|address| !address.ip().is_loopback());
        let is_own = beyond.is_none();
        if let Some(address) = beyond.filter(|_| !options.anyway) {
            return Err(UiError::NotLoopback(*address));
        }
        let listener = listen_on(&options.listen).map_err(|(address, e)| UiError::Listen(address, e))?;
        let address = listener.local_addr().map_err(|e| UiError::Listen(options.listen[0], e))?;
        let mut names = vec!["localhost".to_string()];
        names.extend(options.names.iter().map(|name| name.to_ascii_lowercase()));
        let (tls, fingerprint) = match &options.certificate {
            Some((certificate, key)) => (Some(certificate::of_files(certificate, key)?), None),
            None if is_own => (None, None),
            None => {
                let mut all = names.clone();
                all.extend(Some(address.ip()).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string()));
                let (config, fingerprint) = certificate::made(all)?;
                (Some(config), Some(fingerprint))
            }
        };
        let authenticator = Authenticator::new(address, names, tls.is_some()).map_err(UiError::Random)?;
        let url = authenticator.url();
        let acceptor = Acceptor::default();
        let site = Arc::new(Site::new(authenticator, program, StartedRuns::default(), options.made, acceptor.clone()));
        let serving = Arc::clone(&site);
        let serve = move |socket: TcpStream, slot: &Slot| {
            let Ok(local) = socket.local_addr() else { return };
            let timed = DeadlineSocket::new(socket, bounds::REQUEST);
            let wire = match &tls {
                None => Some(Wire::Plain(timed)),
                Some(config) => Wire::server(timed, config).ok(),
            };
            if let Some(wire) = wire {
                serving.serve(wire, slot, local.ip().to_canonical());
            }
        };
        acceptor
            .start(listener, bounds::CONNECTIONS, bounds::STACK_BYTES, serve, refuse)
            .map_err(|e| UiError::Listen(address, e))?;
        Ok(Ui { url, fingerprint, acceptor, site })
    }

    /// Stops serving, and ends all event streams and the runs that were started here.
    pub fn end(self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        self.acceptor.end();
        self.site.started.end();
        let until = Instant::now() + PATIENCE;
        // Idle connections are not waited for.
        while self.site.streams() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Closes the connection silently, because the client has shown no token.
fn refuse(socket: Option<TcpStream>, _: RefusalReason) {
    drop(socket);
}
