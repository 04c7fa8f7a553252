//! Restores the host's settings from their journal, in the same process or long after lastdrop was killed. A value that
//! is neither the former one nor one of ours belongs to someone else: it is left and reported.

use std::fs;
use std::path::Path;

use super::journal::{HostJournal, ValueBefore, files_of, lock_of_the_machine};
use super::kept::KeptFile;
use super::knobs::{self, Scope};
use super::limits;
use super::namespace_access::NamespaceAccess;
use crate::ServerError;
use crate::journal::{Lock, Stage};
use crate::private::keep_to_ourselves;
use crate::restore::RestoreReport;
use crate::undo_step::{StepKind, UndoStep};

/// An id of this boot of the machine.
pub fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

/// Undoes what a journal describes. Doing it twice does no harm.
pub fn undo(journal: &HostJournal, place: &NamespaceAccess) -> Result<RestoreReport, ServerError> {
    let was_changed = journal.stage == Stage::Changed;
    let mut differences = Vec::new();
    if was_changed {
        if journal.boot == boot() {
            differences = put_back(journal, place)?;
        } else {
            differences.push("the machine has been started again since, and nothing of it was left".into());
        }
        differences.extend(journal.kept.as_ref().map(|file| file.put_back()).transpose()?.flatten());
    }
    journal.remove()?;
    if let Some(folder) = journal.path.parent() {
        let _ = keep_to_ourselves(folder);
    }
    Ok(RestoreReport { was_changed, differences, ..RestoreReport::untouched(&journal.server) })
}

fn put_back(journal: &HostJournal, place: &NamespaceAccess) -> Result<Vec<String>, ServerError> {
    let mut told = Vec::new();
    if place.is_gone() {
        told.push("its network namespace is gone, and what was changed in it".into());
    }
    // If one value cannot be restored, the others still are.
    let (done, failed): (Vec<_>, Vec<_>) =
        journal.values.iter().map(|value| put_back_value(value, place)).partition(Result::is_ok);
    told.extend(done.into_iter().filter_map(Result::ok).flatten());
    told.extend(limits::put_back(&journal.limits, &journal.our_limits)?);
    failed.into_iter().find_map(Result::err).map_or(Ok(told), Err)
}

fn put_back_value(value: &ValueBefore, place: &NamespaceAccess) -> Result<Option<String>, ServerError> {
    let ValueBefore { name, before, ours } = value;
    let Some(knob) = knobs::named(name) else {
        return Ok(Some(format!("{name}: was {before}; this lastdrop does not know it, and it is left")));
    };
    if knob.scope == Scope::Namespace && place.is_gone() {
        return Ok(None);
    }
    match place.read(knob)? {
        Some(now) if now == *before => Ok(None),
        Some(now) if ours.contains(&now) => place.write(knob, before).map(|()| None),
        Some(now) => Ok(Some(format!("{name}: was {before}, is {now}: somebody else has set it, and it is left"))),
        None => Ok(Some(format!("{name}: was {before}, and is not there any more"))),
    }
}

/// Undoes what a killed run left.
///
/// # Errors
/// If another process is at work there, the journal cannot be used, or its content may not be restored.
pub fn restore(path: &Path, dry_run: bool) -> Result<RestoreReport, ServerError> {
    let HostJournal { namespace, host_wide, .. } = HostJournal::read(path)?;
    let _machine = host_wide.then(lock_of_the_machine).transpose()?.map(|lock| Lock::take(&lock)).transpose()?;
    let _lock = Lock::take(&files_of(namespace.inode)?.lock)?;
    // Read again: the process that held the lock until now may have written another journal, or finished.
    let journal = HostJournal::read(path)?;
    if dry_run {
        let was_changed = journal.stage == Stage::Changed;
        let place = NamespaceAccess::again(journal.namespace, journal.process)?;
        let steps = if was_changed { steps_of(&journal, &place) } else { Vec::new() };
        return Ok(RestoreReport { was_changed, steps, ..RestoreReport::untouched(&journal.server) });
    }
    undo(&journal, &NamespaceAccess::again(journal.namespace, journal.process)?)
}

/// The steps that [`undo`] would take.
fn steps_of(journal: &HostJournal, place: &NamespaceAccess) -> Vec<UndoStep> {
    let mut steps = Vec::new();
    if journal.boot == boot() {
        for ValueBefore { name, before, ours } in &journal.values {
            let now = knobs::named(name).and_then(|knob| place.read(knob).ok().flatten());
            if let Some(now) = now.filter(|now| now != before && ours.contains(now)) {
                steps.push(UndoStep::new(StepKind::Sysctl, name, format!("set from {now} to {before}")));
            }
        }
        for of in &journal.limits {
            let now = limits::shown(of.process.0).map(|(soft, _)| soft);
            if let Some(now) = now.filter(|now| *now != of.soft && journal.our_limits.contains(now)) {
                let action = format!("set its limit of open files from {now} to {}", of.soft);
                steps.push(UndoStep::new(StepKind::Limit, of.process.0, action));
            }
        }
    }
    steps.extend(journal.kept.as_ref().and_then(KeptFile::undo_step));
    steps
}
