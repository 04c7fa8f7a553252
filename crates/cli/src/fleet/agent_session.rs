//! A server of another machine that is being changed. Its lock and journal are there; if this side is silent or gone, the agent
//! restores it by itself.

use std::cell::RefCell;
use std::collections::BTreeMap;

use lastdrop_model::documents::SizeDocument;
use lastdrop_model::{Knob, Settings};
use lastdrop_server::operations::OperationCall;
use lastdrop_server::{
    Change, EffectiveSettings, Member, OtherTrafficPolicy, PersistedIn, RestoreReport, RestoredServer, ServerError,
    StackPlace,
};
use serde_json::Value;

use super::calls::{
    Apply, Check, Commit, Complete, Open, OpenRequest, OpenedSession, Operate, Persist, RestoreFiles, Size,
    VerifyHealth,
};
use super::machines::ServerConversation;
use crate::stdio::note;

/// A session on another machine.
pub struct AgentSession {
    asking: ServerConversation,
    opened: OpenedSession,
    knobs: &'static [Knob],
    open: bool,
    /// Cache: a search completes the same settings again and again.
    completed: RefCell<BTreeMap<Settings, Settings>>,
}

impl AgentSession {
    /// Opens a session for the server of a conversation, with this position in its stack.
    ///
    /// # Errors
    /// As [`lastdrop_server::Stack::open`]; or the agent does not have that server.
    pub fn open(
        asking: ServerConversation,
        others: &OtherTrafficPolicy,
        place: Option<StackPlace>,
    ) -> Result<AgentSession, ServerError> {
        let OtherTrafficPolicy { live, ignore, host_wide } = others.clone();
        let mut opened = asking.ask(Open { request: OpenRequest { live, ignore, host_wide, place } })?;
        opened.name = format!("{}/{}", asking.agent(), opened.name);
        let knobs = std::mem::take(&mut opened.knobs).leak();
        Ok(AgentSession { asking, opened, knobs, open: true, completed: RefCell::default() })
    }

    fn not_restored(&self, e: ServerError) -> ServerError {
        let ServerError::Elsewhere { agent, what, .. } = e else { return e };
        let what = format!(
            "{what}\nthe server may not be put back: an agent that hears nothing does it by itself within a minute, what a killed one leaves is \
             put back by lastdrop restore there, or from here: lastdrop restore {agent}/{}",
            self.asking.named.kind
        );
        ServerError::Elsewhere { agent, what, refusal: false }
    }
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        if self.open {
            // An early return must not leave a changed server. If this fails too, the agent restores it by itself.
            if let Err(e) = self.restore_files().and_then(|half| self.verify_health(half)) {
                note!("lastdrop: {e}");
            }
        }
    }
}

impl Member for AgentSession {
    fn name(&self) -> &str {
        &self.opened.name
    }

    fn original(&self) -> &EffectiveSettings {
        &self.opened.original
    }

    fn knobs(&self) -> Vec<&'static Knob> {
        self.knobs.iter().collect()
    }

    fn cores(&self) -> u64 {
        self.opened.cores
    }

    fn is_host(&self) -> bool {
        self.opened.is_host
    }

    fn is_here(&self) -> bool {
        false
    }

    fn takes_directives(&self) -> bool {
        self.opened.takes_directives
    }

    fn check(&self, change: &Change) -> Result<(), ServerError> {
        self.check_names(&change.settings)?;
        self.asking.ask(Check { change: change.clone() })
    }

    fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
        // No settings need no completion.
        if settings.is_empty() {
            return Ok(Settings::new());
        }
        if let Some(known) = self.completed.borrow().get(settings) {
            return Ok(known.clone());
        }
        let whole = self.asking.ask(Complete { settings: settings.clone() })?;
        self.completed.borrow_mut().insert(settings.clone(), whole.clone());
        Ok(whole)
    }

    fn apply(&mut self, change: &Change) -> Result<(), ServerError> {
        self.asking.ask(Apply { change: change.clone() })
    }

    fn is_open(&self) -> bool {
        self.open
    }

    fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        // Closed even if it fails: a second attempt would fail in the same way.
        self.open = false;
        self.asking.ask(RestoreFiles {}).map_err(|e| self.not_restored(e))?;
        Ok(RestoredServer::whole(RestoreReport::untouched(&self.opened.name)))
    }

    /// The agent keeps the first half's result.
    fn verify_health(&mut self, _: RestoredServer) -> Result<RestoreReport, ServerError> {
        let restored = self.asking.ask(VerifyHealth {}).map_err(|e| self.not_restored(e))?;
        let none = || self.asking.failed("nothing was left to be put back".into(), false);
        restored.into_iter().next().map(|restored| self.asking.named_there(restored)).ok_or_else(none)
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        let place = self.asking.ask(Persist { settings: settings.clone() })?;
        Ok(PersistedIn::Elsewhere(format!("{place} on {}", self.asking.agent())))
    }

    fn commit(&mut self, _: &PersistedIn) -> Result<(), ServerError> {
        self.asking.ask(Commit {})?;
        self.open = false;
        Ok(())
    }

    fn operate(&self, call: OperationCall) -> Result<Value, ServerError> {
        self.asking.ask(Operate { call })
    }

    fn size(&self, memory: Option<u64>) -> Result<SizeDocument, ServerError> {
        self.asking.ask(Size { memory })
    }
}
