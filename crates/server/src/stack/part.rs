//! What a member of a stack is, and what each sort of them does of what all do.

use std::path::Path;

use lastdrop_model::{Knob, Settings};

use crate::adapter::{Adapter, EffectiveSettings};
use crate::host::HostSession;
use crate::persisted_in::PersistedIn;
use crate::remote::RemoteSession;
use crate::restore::{PutBack, RestoreReport};
use crate::session::{Session, check_names};
use crate::{Change, ServerError};

/// What a member is.
pub(super) enum Part {
    Server(Box<Session>),
    Host(Box<HostSession>),
    /// One in a container, with what its settings are: a change of them is told, and not made.
    Contained(Box<dyn Adapter>, EffectiveSettings),
    /// On another machine, or on several.
    Elsewhere(Box<dyn RemoteSession>),
}

impl Part {
    pub fn session(&self) -> Option<&Session> {
        match self {
            Part::Server(session) => Some(session),
            Part::Host(_) | Part::Contained(..) | Part::Elsewhere(_) => None,
        }
    }

    pub fn is_host(&self) -> bool {
        matches!(self, Part::Host(_))
    }

    /// As it is named on a command line.
    pub fn name(&self) -> &str {
        match self {
            Part::Server(session) => &session.adapter().facts().name,
            Part::Host(session) => session.host().name(),
            Part::Contained(adapter, _) => &adapter.facts().name,
            Part::Elsewhere(there) => &there.about().name,
        }
    }

    pub fn original(&self) -> &EffectiveSettings {
        match self {
            Part::Server(session) => session.original(),
            Part::Host(session) => session.original(),
            Part::Contained(_, effective) => effective,
            Part::Elsewhere(there) => &there.about().original,
        }
    }

    pub fn knobs(&self) -> Vec<&'static Knob> {
        match self {
            Part::Server(session) => session.adapter().knobs().iter().collect(),
            Part::Host(session) => session.host().knobs(),
            Part::Contained(adapter, _) => adapter.knobs().iter().collect(),
            Part::Elsewhere(there) => there.about().knobs.iter().collect(),
        }
    }

    pub fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        match self {
            Part::Server(session) => session.check_names(settings),
            Part::Host(session) => session.check_names(settings),
            Part::Contained(adapter, _) => check_names(adapter.knobs(), settings),
            Part::Elsewhere(there) => check_names(there.about().knobs, settings),
        }
    }

    pub fn check(&self, settings: Settings) -> Result<(), ServerError> {
        match self {
            Part::Server(session) => session.check(&Change::from(settings)),
            Part::Host(session) => session.check(&Change::from(settings)),
            Part::Contained(adapter, _) => adapter.check(&Change::from(settings), Path::new("")),
            Part::Elsewhere(there) => {
                check_names(there.about().knobs, &settings)?;
                there.check(&settings)
            }
        }
    }

    pub fn apply(&mut self, settings: Settings) -> Result<(), ServerError> {
        match self {
            Part::Server(session) => session.apply(settings),
            Part::Host(session) => session.apply(settings),
            Part::Contained(adapter, _) => refuse(adapter.as_ref(), settings),
            Part::Elsewhere(there) => there.apply(&settings),
        }
    }

    /// Settings with what follows from them.
    pub fn complete(&self, settings: Settings) -> Result<Settings, ServerError> {
        Ok(match self {
            Part::Server(session) => session.adapter().complete(&settings, &session.original().settings),
            Part::Host(_) => settings,
            Part::Contained(adapter, effective) => adapter.complete(&settings, &effective.settings),
            Part::Elsewhere(there) => there.complete(&settings)?,
        })
    }

    /// Is there anything that is neither undone nor kept?
    pub fn is_open(&self) -> bool {
        match self {
            Part::Server(session) => session.is_open(),
            Part::Host(session) => session.is_open(),
            Part::Contained(..) => false,
            Part::Elsewhere(there) => there.is_open(),
        }
    }

    pub fn restore_files(&mut self) -> Result<PutBack, ServerError> {
        match self {
            Part::Server(session) => session.restore_files(),
            Part::Host(session) => session.restore().map(PutBack::whole),
            Part::Contained(adapter, _) => Ok(PutBack::whole(RestoreReport::untouched(&adapter.facts().name))),
            Part::Elsewhere(there) => {
                there.restore_files()?;
                Ok(PutBack::whole(RestoreReport::untouched(&there.about().name)))
            }
        }
    }

    pub fn verify_health(&mut self, half: PutBack) -> Result<RestoreReport, ServerError> {
        match self {
            Part::Server(session) => session.verify_health(half),
            Part::Host(_) | Part::Contained(..) => Ok(half.into_restored()),
            // The other half is there.
            Part::Elsewhere(there) => there.verify_health(),
        }
    }

    pub fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        match self {
            Part::Server(session) => session.persist(settings),
            Part::Host(session) => session.persist(settings),
            Part::Contained(adapter, _) => refuse(adapter.as_ref(), settings.clone()),
            Part::Elsewhere(there) => there.persist(settings),
        }
    }

    pub fn commit(&mut self, kept: &PersistedIn) -> Result<(), ServerError> {
        match self {
            Part::Server(session) => session.commit(kept),
            Part::Host(session) => session.commit(),
            Part::Contained(..) => Ok(()),
            Part::Elsewhere(there) => there.commit(),
        }
    }
}

/// What a change of a server in a container comes to.
pub(super) fn refuse<T>(adapter: &dyn Adapter, settings: Settings) -> Result<T, ServerError> {
    let not_from_here = || ServerError::Setting(format!("{} is not changed from here", adapter.facts().name));
    Err(adapter.contained().map_or_else(not_from_here, |contained| contained.tell(&Change::from(settings))))
}
