//! The kinds of members of a stack, and how each does what all members do.

use std::path::Path;

use lastdrop_model::{Knob, Settings};

use crate::adapter::{Adapter, EffectiveSettings};
use crate::host::HostSession;
use crate::persisted_in::PersistedIn;
use crate::remote::RemoteSession;
use crate::restore::{RestoreReport, RestoredServer};
use crate::session::{Session, check_names};
use crate::{Change, ServerError};

/// A member of a stack.
pub(super) enum MemberKind {
    Server(Box<Session>),
    Host(Box<HostSession>),
    /// A server in a container, with its settings: a change is reported, not made.
    Contained(Box<dyn Adapter>, EffectiveSettings),
    /// A server on one or more other machines.
    Elsewhere(Box<dyn RemoteSession>),
}

impl MemberKind {
    pub fn session(&self) -> Option<&Session> {
        match self {
            MemberKind::Server(session) => Some(session),
            MemberKind::Host(_) | MemberKind::Contained(..) | MemberKind::Elsewhere(_) => None,
        }
    }

    pub fn is_host(&self) -> bool {
        matches!(self, MemberKind::Host(_))
    }

    /// The name for a command line.
    pub fn name(&self) -> &str {
        match self {
            MemberKind::Server(session) => &session.adapter().facts().name,
            MemberKind::Host(session) => session.host().name(),
            MemberKind::Contained(adapter, _) => &adapter.facts().name,
            MemberKind::Elsewhere(there) => &there.about().name,
        }
    }

    pub fn original(&self) -> &EffectiveSettings {
        match self {
            MemberKind::Server(session) => session.original(),
            MemberKind::Host(session) => session.original(),
            MemberKind::Contained(_, effective) => effective,
            MemberKind::Elsewhere(there) => &there.about().original,
        }
    }

    pub fn knobs(&self) -> Vec<&'static Knob> {
        match self {
            MemberKind::Server(session) => session.adapter().knobs().iter().collect(),
            MemberKind::Host(session) => session.host().knobs(),
            MemberKind::Contained(adapter, _) => adapter.knobs().iter().collect(),
            MemberKind::Elsewhere(there) => there.about().knobs.iter().collect(),
        }
    }

    pub fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        match self {
            MemberKind::Server(session) => session.check_names(settings),
            MemberKind::Host(session) => session.check_names(settings),
            MemberKind::Contained(adapter, _) => check_names(adapter.knobs(), settings),
            MemberKind::Elsewhere(there) => check_names(there.about().knobs, settings),
        }
    }

    pub fn check(&self, settings: Settings) -> Result<(), ServerError> {
        match self {
            MemberKind::Server(session) => session.check(&Change::from(settings)),
            MemberKind::Host(session) => session.check(&Change::from(settings)),
            MemberKind::Contained(adapter, _) => adapter.check(&Change::from(settings), Path::new("")),
            MemberKind::Elsewhere(there) => {
                check_names(there.about().knobs, &settings)?;
                there.check(&settings)
            }
        }
    }

    pub fn apply(&mut self, settings: Settings) -> Result<(), ServerError> {
        match self {
            MemberKind::Server(session) => session.apply(settings),
            MemberKind::Host(session) => session.apply(settings),
            MemberKind::Contained(adapter, _) => refuse(adapter.as_ref(), settings),
            MemberKind::Elsewhere(there) => there.apply(&settings),
        }
    }

    /// Adds the settings that follow from the given ones.
    pub fn complete(&self, settings: Settings) -> Result<Settings, ServerError> {
        Ok(match self {
            MemberKind::Server(session) => session.adapter().complete(&settings, &session.original().settings),
            MemberKind::Host(_) => settings,
            MemberKind::Contained(adapter, effective) => adapter.complete(&settings, &effective.settings),
            MemberKind::Elsewhere(there) => there.complete(&settings)?,
        })
    }

    /// True if a change is neither undone nor kept.
    pub fn is_open(&self) -> bool {
        match self {
            MemberKind::Server(session) => session.is_open(),
            MemberKind::Host(session) => session.is_open(),
            MemberKind::Contained(..) => false,
            MemberKind::Elsewhere(there) => there.is_open(),
        }
    }

    pub fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        match self {
            MemberKind::Server(session) => session.restore_files(),
            MemberKind::Host(session) => session.restore().map(RestoredServer::whole),
            MemberKind::Contained(adapter, _) => {
                Ok(RestoredServer::whole(RestoreReport::untouched(&adapter.facts().name)))
            }
            MemberKind::Elsewhere(there) => {
                there.restore_files()?;
                Ok(RestoredServer::whole(RestoreReport::untouched(&there.about().name)))
            }
        }
    }

    pub fn verify_health(&mut self, half: RestoredServer) -> Result<RestoreReport, ServerError> {
        match self {
            MemberKind::Server(session) => session.verify_health(half),
            MemberKind::Host(_) | MemberKind::Contained(..) => Ok(half.into_restored()),
            // The other machine keeps the first half's result.
            MemberKind::Elsewhere(there) => there.verify_health(),
        }
    }

    pub fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        match self {
            MemberKind::Server(session) => session.persist(settings),
            MemberKind::Host(session) => session.persist(settings),
            MemberKind::Contained(adapter, _) => refuse(adapter.as_ref(), settings.clone()),
            MemberKind::Elsewhere(there) => there.persist(settings),
        }
    }

    pub fn commit(&mut self, kept: &PersistedIn) -> Result<(), ServerError> {
        match self {
            MemberKind::Server(session) => session.commit(kept),
            MemberKind::Host(session) => session.commit(),
            MemberKind::Contained(..) => Ok(()),
            MemberKind::Elsewhere(there) => there.commit(),
        }
    }
}

/// The error for a change of a server in a container.
pub(super) fn refuse<T>(adapter: &dyn Adapter, settings: Settings) -> Result<T, ServerError> {
    let not_from_here = || ServerError::Setting(format!("{} is not changed from here", adapter.facts().name));
    Err(adapter.contained().map_or_else(not_from_here, |contained| contained.tell(&Change::from(settings))))
}
