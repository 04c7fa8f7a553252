//! `lastdrop ui`: the pages of `report`, served from the store to one person's browser.
//!
//! Whatever is in the store is shown, whichever process makes it: a run that is under way is followed there, and stopped by the
//! signal that Ctrl-C sends. `door` decides who is let in, `site` what is asked for, `pages` has what stands around the sections
//! of a report; `follow` tells news, `stop` and `start` are all that changes anything, beside what somebody writes about a run.
//!
//! There is one user: a thread for each connection, blocking sockets under one deadline (`wire`), bounds for all that a browser
//! may ask in `bounds`. A page needs nothing but itself, and reads without scripts.

mod answer;
mod bounds;
mod certificate;
mod door;
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
use lastdrop_wire::{Acceptor, Refused, Slot, Timed, Wire, listen_on};

use crate::door::Door;
use crate::site::Site;
use crate::start::Started;

/// What the program does for it.
pub trait Program: fmt::Debug + Send + Sync {
    /// Opens the store: for each connection, so that none waits for another.
    ///
    /// # Errors
    /// A sentence for the user.
    fn store(&self) -> Result<Store, String>;

    /// Two stored runs, the second against the first.
    ///
    /// # Errors
    /// A sentence for the user.
    fn compare(&self, a: &Run, b: &Run, store: &Store) -> Result<CompareDocument, String>;

    /// The command that carries out the plan of a run once more.
    fn again(&self, id: &str) -> Command;
}

/// Where it listens, and as whom.
#[derive(Debug)]
pub struct Options {
    /// The first of them that this machine has.
    pub listen: Vec<SocketAddr>,
    /// Other machines may connect.
    pub anyway: bool,
    /// By which it is called, beside its address.
    pub names: Vec<String>,
    /// PEM files: certificates, and the key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// At the foot of each page.
    pub made: String,
}

/// Why it does not listen.
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

/// Pages that are being served.
#[derive(Debug)]
pub struct Ui {
    /// With the token.
    pub url: String,
    /// SHA-256 of the certificate that was made, where one was.
    pub fingerprint: Option<String>,
    acceptor: Acceptor,
    site: Arc<Site>,
}

impl Ui {
    /// Listens, in threads of its own, until it is ended.
    ///
    /// # Errors
    /// When it cannot, or would be seen by other machines.
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
        let door = Door::new(address, names, tls.is_some()).map_err(UiError::Random)?;
        let url = door.url();
        let acceptor = Acceptor::default();
        let site = Arc::new(Site::new(door, program, Started::default(), options.made, acceptor.clone()));
        let serving = Arc::clone(&site);
        let serve = move |socket: TcpStream, slot: &Slot| {
            let Ok(local) = socket.local_addr() else { return };
            let timed = Timed::new(socket, bounds::REQUEST);
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

    /// Ends it: nobody else is served, streams end, and so do runs that were started here.
    pub fn end(self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        self.acceptor.end();
        self.site.started.end();
        let until = Instant::now() + PATIENCE;
        // Whoever keeps a connection open without asking anything is not waited for.
        while self.site.streams() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Closed without a word: whoever it is has not shown a token.
fn refuse(socket: Option<TcpStream>, _: Refused) {
    drop(socket);
}
