//! Where a change may be made: in files that lastdrop may write, and in drop-ins of the server's unit.

use crate::ServerError;
use crate::adapter::Placement;
use crate::change::Change;
use crate::edited::EditedFile;
use crate::patch::Rewrite;
use crate::persisted_in::PersistedIn;
use crate::restart::Launch;

use super::Session;

impl Session {
    /// Refuses a change of files that lastdrop may not write; the error contains it as a patch.
    pub(super) fn refuse_what_is_not_ours(&self, change: &Change) -> Result<(), ServerError> {
        let placement = self.placement_of(change);
        let rewrites: Vec<Rewrite> = match &placement {
            _ if change.is_empty() => Vec::new(),
            Placement::Edited => self.adapter.edits(change)?.iter().map(EditedFile::rewrite).collect(),
            Placement::IncludedFile(file) => vec![Rewrite {
                path: file.clone(),
                before: self.journal.included_before.clone(),
                after: self.render(change, &placement),
            }],
            Placement::OwnFile | Placement::StartedWith => Vec::new(),
        };
        let Some(hindrance) = rewrites.iter().find_map(Rewrite::hindrance) else { return Ok(()) };
        let then = match &self.journal.unit {
            Some(unit) => format!("systemctl reload-or-restart {unit}"),
            None if self.journal.reloads => format!("kill -{} {}", self.journal.reload_signal, self.master),
            None => "start the server anew".into(),
        };
        let patch = rewrites.iter().map(Rewrite::unified).collect();
        Err(ServerError::NotOurs { hindrance, patch, then })
    }

    /// Makes the server's unit, if it has one, start it in this way from now on.
    pub(super) fn keep_beside_the_unit(&self, launch: &Launch) -> Result<Option<PersistedIn>, ServerError> {
        let [_, kept] = self.journal.drop_ins.as_slice() else { return Ok(None) };
        kept.write(&self.journal.birth, launch)?;
        Ok(Some(PersistedIn::InFile(kept.path.clone())))
    }
}
