//! What is asked about a server in a container, and what is answered: plain data, since it goes from one process to another.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use lastdrop_model::settings::Spares;
use lastdrop_model::{Knob, ReloadClass, Settings};
use serde::{Deserialize, Serialize};

use crate::adapter::{Adapter, EffectiveSettings};
use crate::adapters::find_adapter;
use crate::change::Change;
use crate::patch::Rewrite;
use crate::{ServerError, ServerRef};

/// A question with the server that it is about, by its name there.
#[derive(Debug, Serialize, Deserialize)]
pub struct Visit<'a> {
    pub pid: i32,
    /// The name of its kind.
    pub kind: Cow<'a, str>,
    pub config: Option<Cow<'a, Path>>,
    pub inquiry: Inquiry<'a>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Inquiry<'a> {
    /// What is there.
    Look,
    /// What a change would do to its files.
    Plan(Cow<'a, Change>),
    /// Settings of a pool of so many workers.
    Pool { size: u64, effective: Cow<'a, Settings> },
    /// Settings of a pool with so many spare workers: at the start, at least, at most.
    Spares { spares: [u64; 3], effective: Cow<'a, Settings> },
    /// What follows from settings.
    Complete { settings: Cow<'a, Settings>, effective: Cow<'a, Settings> },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Look(Box<Portrait>),
    Plan(Planned),
    Settings(Settings),
}

/// What an adapter within says of the server.
#[derive(Debug, Serialize, Deserialize)]
pub struct Portrait {
    pub version: String,
    pub model: String,
    pub effective: EffectiveSettings,
    pub directives: BTreeMap<String, String>,
    pub knobs: Vec<Knob>,
    pub needs: Vec<Option<ReloadClass>>,
    pub daemonizes: bool,
    pub reload_signal: i32,
}

/// A change that is not made: what it would make of files, and what to do then.
#[derive(Debug, Serialize, Deserialize)]
pub struct Planned {
    pub rewrites: Vec<Rewrite>,
    pub then: Then,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Then {
    Reload,
    Restart,
    /// With what is said here: variables of the environment and words.
    StartWith(Vec<String>),
}

/// Answers a question where the server is.
///
/// # Errors
/// In words.
pub fn answer(server: &ServerRef, inquiry: &Inquiry<'_>) -> Result<Reply, String> {
    let text = |e: ServerError| e.to_string();
    let adapter = find_adapter(server).map_err(text)?;
    Ok(match inquiry {
        Inquiry::Look => Reply::Look(Box::new(portrait(adapter.as_ref()).map_err(text)?)),
        Inquiry::Plan(change) => Reply::Plan(super::contained::plan(adapter.as_ref(), change).map_err(text)?),
        Inquiry::Pool { size, effective } => Reply::Settings(adapter.pool_settings(*size, effective)),
        Inquiry::Spares { spares: [start, min_spare, max_spare], effective } => {
            let spares = Spares { start: *start, min_spare: *min_spare, max_spare: *max_spare };
            Reply::Settings(adapter.spare_settings(spares, effective))
        }
        Inquiry::Complete { settings, effective } => Reply::Settings(adapter.complete(settings, effective)),
    })
}

fn portrait(adapter: &dyn Adapter) -> Result<Portrait, ServerError> {
    let knobs = adapter.knobs().to_vec();
    Ok(Portrait {
        version: adapter.facts().version.clone(),
        model: adapter.facts().model.clone(),
        effective: adapter.effective()?,
        directives: adapter.directives(),
        needs: knobs.iter().map(|knob| adapter.needs(knob.name)).collect(),
        knobs,
        daemonizes: adapter.daemonizes(),
        reload_signal: adapter.reload_signal() as i32,
    })
}
