//! Finds servers, lists and changes their settings, and restores everything.
//!
//! An [`Adapter`] knows one kind of server and changes nothing by itself. A [`Session`] makes changes in the same way
//! for every kind. It takes one lock per server, writes a journal to disk before the first change, and puts the
//! settings in one override file. Then it restarts the server exactly as it had been started. [`restore_all`] needs
//! only the journal, so that it works when the process that wrote it is gone. The [`Host`] that a server runs on has no
//! program and no configuration; a [`HostSession`] changes its settings.

pub mod abilities;
mod adapter;
mod adapters;
mod apache;
mod change;
mod change_method;
mod change_method_file;
pub mod code;
mod code_directives;
mod complaints;
mod container;
mod described;
mod directive_edits;
mod edited;
mod edits;
pub mod execution;
mod find;
mod fpm;
mod fpm_config;
mod group;
mod haproxy;
mod health;
mod host;
mod intern;
mod journal;
mod kept_cache;
pub mod kind;
mod kind_file;
pub mod kinds;
mod knob_file;
mod launch;
mod leftover_folders;
mod leftovers;
mod member;
mod nginx;
pub mod operations;
mod other_traffic;
mod page_cache;
mod patch;
mod persisted_in;
mod private;
mod resolve;
mod restart;
mod restore;
mod server_ref;
mod session;
mod shadow_instance;
mod stack;
mod status_page;
mod streams;
mod systemd;
mod tables;
mod target;
mod undo_step;
mod wildcard;

use std::path::PathBuf;
use std::time::Duration;

pub use adapter::{Adapter, EffectiveSettings, Facts};
pub use adapters::{ServerKnobs, discover, knobs_of, served_folders};
pub use apache::unused_modules;
pub use change::{Change, ConfigScope, Directives};
pub use container::{COMMAND as VISIT, serve as visit};
pub use find::{FoundServer, find, find_listening_at, found_of_process};
pub use fpm::unused_extensions;
pub use health::Health;
pub use host::{Host, HostSession};
pub use journal::{Journal, JournalFault, StackPlace, state_folder};
pub use kind::Kind;
pub use kind_file::schema as kind_schema;
pub use leftover_folders::remove as remove_leftover_folders;
pub use leftovers::{forget, left_at};
pub use member::Member;
pub use other_traffic::OtherTrafficPolicy;
pub use page_cache::{CacheOffer, PageCache};
pub use persisted_in::PersistedIn;
pub use restore::{RestoreReport, RestoredServer, restore_all, restore_like, restore_of};
pub use server_ref::{RemoteLocation, ServerRef, check_called_apart};
pub use session::Session;
pub use stack::{OpenMember, PendingPersist, PendingRestore, Server, Stack};
pub use tables::{KnobRow, KnobTable, knob_tables};
pub use undo_step::{StepKind, UndoStep};

/// Why a server cannot be found, changed or restored: what, where, and what to try.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{what}; {advice}")]
    NotFound { what: String, advice: String },
    #[error("{what}: permission denied; run as root, or as the user that started the server")]
    Permission { what: String },
    #[error("the configuration does not pass its test ({command}):\n{output}")]
    ConfigTest { command: String, output: String },
    #[error("the server would not take these settings as they are ({settings}):\n{output}")]
    Clamped { settings: String, output: String },
    #[error("{0}")]
    Setting(String),
    /// lastdrop does not execute a program for a server if users other than the server's owner could have written what
    /// it would do.
    #[error("{program} is not asked: {why}")]
    NotAsked { program: String, why: String },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("{what} within {} s; {advice}", limit.as_secs())]
    Timeout { what: String, limit: Duration, advice: String },
    #[error(
        "the server ended as soon as it was started ({command}: {status}); look at its error log, or start it by hand"
    )]
    Ended { command: String, status: String },
    #[error("{0}")]
    Unhealthy(String),
    #[error("another lastdrop (process {pid}) is at work on this server; wait for it, or end it")]
    Locked { pid: String },
    #[error("an earlier run on this server was killed and left its settings changed; first: lastdrop restore")]
    Unrestored,
    #[error(
        "the server is serving other people ({evidence}); changing its settings would disturb them. One who only checks \
         its health is left out of account with --ignore-source ADDRESS; --live does it all the same"
    )]
    Busy { evidence: String },
    #[error(
        "whether a graceful reload brings {directive} into force is not known, and a fresh start would cut off those who \
         use the server: do it without --live, when nobody does"
    )]
    UnknownDirective { directive: String },
    #[error("the server does not run, and its place is taken: {evidence}; end that one, then: lastdrop restore")]
    Occupied { evidence: String },
    #[error("the journal {}: {what}", path.display())]
    Journal { path: PathBuf, what: String },
    #[error(
        "the journal {} of a killed run cannot be used: {fault}. It is about {about}. By hand:\n  {by_hand};\n  then forget \
         it: lastdrop restore --forget",
        path.display()
    )]
    BrokenJournal { path: PathBuf, fault: JournalFault, about: String, by_hand: String },
    #[error(
        "the change is not made, since its files are not ours to write ({hindrance}). As a patch, which has not been tested:\n\
         {patch}then: {then}"
    )]
    NotOurs { hindrance: String, patch: String, then: String },
    #[error("the server did not take its configuration at a reload and runs on with the one before:\n{output}")]
    NotReloaded { output: String },
    #[error(
        "somebody else has changed {files} meanwhile: left as it is. Put right what is in it of lastdrop's; then, if this \
         was a restore: lastdrop restore --forget"
    )]
    ChangedByOthers { files: String },
    #[error("the server is not put back: {0}\nwhen that is mended: lastdrop restore")]
    NotRestored(Box<ServerError>),
    /// An agent's error about a server of its machine, in words.
    #[error("agent {agent}: {what}")]
    Elsewhere { agent: String, what: String, refusal: bool },
    /// The error of one of several servers.
    #[error("{server}: {what}")]
    Of { server: String, what: Box<ServerError> },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<ServerError>),
    #[error(transparent)]
    File(#[from] lastdrop_files::FileError),
    #[error(transparent)]
    Probe(#[from] lastdrop_probe::ProbeError),
}

impl ServerError {
    /// True if the server refuses the settings and runs on without them.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            ServerError::Of { what, .. } => what.is_refusal(),
            ServerError::Elsewhere { refusal, .. } => *refusal,
            ServerError::Clamped { .. }
            | ServerError::ConfigTest { .. }
            | ServerError::NotReloaded { .. }
            // The server does not start with these settings; it will be started again with the next ones.
            | ServerError::Ended { .. }
            | ServerError::Unhealthy(_)
            | ServerError::Setting(_) => true,
            _ => false,
        }
    }

    /// Returns the errors of several as one; Ok without any.
    pub(crate) fn all_of(mut errors: Vec<ServerError>) -> Result<(), ServerError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.swap_remove(0)),
            _ => Err(ServerError::Several(errors)),
        }
    }

    /// The same error, naming one of several servers.
    pub(crate) fn of(self, server: &str) -> ServerError {
        ServerError::Of { server: server.into(), what: Box::new(self) }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ServerError {
        let what = what.into();
        move |source| ServerError::Io { what, source }
    }
}
