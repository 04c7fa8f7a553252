//! `lastdrop ui`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_model::Run;
use lastdrop_model::documents::CompareDocument;
use lastdrop_probe::tool;
use lastdrop_store::Store;
use lastdrop_ui::{Options, Program, Ui, UiError};
use lastdrop_wire::loopback;

use crate::commands::compare::compare_runs;
use crate::commands::default_store;
use crate::exit::{Exit, UsageError};
use crate::signals::Stop;
use crate::stdio::{note, say};

/// How often to check for a signal.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(
    after_help = "The URL that is printed first lets in whoever has it. Runs that are under way are seen, whichever process makes them.\n\nExamples:\n  lastdrop ui\n  lastdrop ui --listen 127.0.0.1:8484\n  lastdrop ui --listen 0.0.0.0:8484 --listen-anyway --name box.example --tls-cert box.pem --tls-key box.key"
)]
pub struct UiArgs {
    /// Address of this machine alone, and port; port 0 takes a free one [default: a free port of 127.0.0.1, or of ::1 where there is only IPv6]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Listen also where other machines can connect, by TLS
    #[arg(long)]
    pub listen_anyway: bool,
    /// Another name by which browsers may call it, besides its address and localhost; several may be given
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Vec<String>,
    /// TLS: certificates (PEM) [default beyond loopback: one that is made, and told by its fingerprint]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// TLS: the key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

/// A name of a host.
fn name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if is_name { Ok(text.into()) } else { Err(format!("'{text}' is no name of a host; write box.example")) }
}

/// The parts of this program that the pages need.
#[derive(Debug)]
struct OwnProgram {
    store: PathBuf,
}

impl Program for OwnProgram {
    fn store(&self) -> Result<Store, String> {
        Store::open(&self.store).map_err(|e| e.to_string())
    }

    fn compare(&self, a: &Run, b: &Run, store: &Store) -> Result<CompareDocument, String> {
        compare_runs((&a.id, a), (&b.id, b), Some(store)).map_err(|e| e.to_string())
    }

    fn again(&self, id: &str) -> Command {
        let mut command = tool::ourselves("runs a stored run again");
        command.args(["run", "--quiet", "--again", id, "--store"]).arg(&self.store).stdin(Stdio::null());
        command
    }
}

pub fn ui(args: UiArgs) -> Result<Exit> {
    let store = args.store.or_else(default_store);
    let store = store.context("there is no home folder with runs; name a store: --store FILE")?;
    // Check the store before anything is served.
    drop(Store::open(&store)?);
    let stop = Stop::on_signals(true)?;
    let options = Options {
        listen: args.listen.map_or_else(|| loopback(0).to_vec(), |address| vec![address]),
        anyway: args.listen_anyway,
        names: args.name,
        certificate: args.tls_cert.zip(args.tls_key),
        made: format!("lastdrop {}. Times are in UTC.", env!("CARGO_PKG_VERSION")),
    };
    let ui = Ui::start(options, Box::new(OwnProgram { store })).map_err(|e| match e {
        UiError::NotLoopback(_) | UiError::File { .. } => UsageError(e.to_string()).into(),
        other => anyhow::Error::new(other),
    })?;
    say!("{}", ui.url);
    note!("Open it in a browser; Ctrl-C ends it.");
    if let Some(fingerprint) = &ui.fingerprint {
        note!("The browser does not know its certificate, whose SHA-256 is {fingerprint}");
    }
    while !stop.flag.load(std::sync::atomic::Ordering::Relaxed) {
        thread::sleep(LOOK);
    }
    ui.end();
    Ok(Exit::Done)
}
