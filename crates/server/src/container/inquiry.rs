//! Questions about a server in a container and their answers: plain data, since they pass from one process to another.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use lastdrop_model::settings::SpareWorkers;
use lastdrop_model::{Knob, ReloadClass, Settings};
use serde::{Deserialize, Serialize};

use crate::adapter::{Adapter, EffectiveSettings};
use crate::adapters::find_adapter;
use crate::change::Change;
use crate::patch::Rewrite;
use crate::{ServerError, ServerRef};

/// A question and the server it is about, by its name inside the container.
#[derive(Debug, Serialize, Deserialize)]
pub struct Visit<'a> {
    pub pid: i32,
    /// Name of the server's kind.
    pub kind: Cow<'a, str>,
    pub config: Option<Cow<'a, Path>>,
    pub inquiry: Inquiry<'a>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Inquiry<'a> {
    /// Describe the server.
    Look,
    /// Work out what a change would do to its files.
    Plan(Cow<'a, Change>),
    /// Settings for a pool of `size` workers.
    Pool { size: u64, effective: Cow<'a, Settings> },
    /// Settings for a pool with this many spare workers: at the start, minimum, maximum.
    Spares { spares: [u64; 3], effective: Cow<'a, Settings> },
    /// Settings that follow from the given ones.
    Complete { settings: Cow<'a, Settings>, effective: Cow<'a, Settings> },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Look(Box<Portrait>),
    Plan(PlannedChange),
    Settings(Settings),
}

/// The server as the adapter inside the container describes it.
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

/// A change that is only planned: the rewritten files, and the step that brings them into force.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlannedChange {
    pub rewrites: Vec<Rewrite>,
    pub then: NextStep,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum NextStep {
    Reload,
    Restart,
    /// Start the server with these environment variables and words.
    StartWith(Vec<String>),
}

/// Answers a question in the place where the server runs.
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
            let spares = SpareWorkers { start: *start, min_spare: *min_spare, max_spare: *max_spare };
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
