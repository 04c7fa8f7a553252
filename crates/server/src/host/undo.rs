//! Puts the host's settings back as their journal says, in the same process or long after the one that changed them was
//! killed. A value that is neither what it was nor one of ours is somebody else's: it is left, and told.

use std::fs;
use std::path::Path;

use super::journal::{HostJournal, ValueBefore, files_of, lock_of_the_machine};
use super::kept::KeptFile;
use super::knobs::{self, Scope};
use super::limits;
use super::place::Place;
use crate::ServerError;
use crate::journal::{Lock, Stage};
use crate::private::keep_to_ourselves;
use crate::restore::RestoreReport;
use crate::undo_step::{StepKind, UndoStep};

/// Tells one start of the machine from the next.
pub fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

/// Undoes what a journal describes. Doing it twice does no harm.
pub fn undo(journal: &HostJournal, place: &Place) -> Result<RestoreReport, ServerError> {
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

fn put_back(journal: &HostJournal, place: &Place) -> Result<Vec<String>, ServerError> {
    let mut told = Vec::new();
    if place.is_gone() {
        told.push("its network namespace is gone, and what was changed in it".into());
    }
    // One that cannot be put back shall not keep the others from it.
    let (done, failed): (Vec<_>, Vec<_>) =
        journal.values.iter().map(|value| put_back_value(value, place)).partition(Result::is_ok);
    told.extend(done.into_iter().filter_map(Result::ok).flatten());
    told.extend(limits::put_back(&journal.limits, &journal.our_limits)?);
    failed.into_iter().find_map(Result::err).map_or(Ok(told), Err)
}

fn put_back_value(value: &ValueBefore, place: &Place) -> Result<Option<String>, ServerError> {
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
/// When somebody is at work there, the journal cannot be used, or what it describes may not be put back.
pub fn restore(path: &Path, dry_run: bool) -> Result<RestoreReport, ServerError> {
    let HostJournal { namespace, host_wide, .. } = HostJournal::read(path)?;
    let _machine = host_wide.then(lock_of_the_machine).transpose()?.map(|lock| Lock::take(&lock)).transpose()?;
    let _lock = Lock::take(&files_of(namespace.inode)?.lock)?;
    // Whoever was at work until now may have written another, or be done.
    let journal = HostJournal::read(path)?;
    if dry_run {
        let was_changed = journal.stage == Stage::Changed;
        let place = Place::again(journal.namespace, journal.process)?;
        let steps = if was_changed { steps_of(&journal, &place) } else { Vec::new() };
        return Ok(RestoreReport { was_changed, steps, ..RestoreReport::untouched(&journal.server) });
    }
    undo(&journal, &Place::again(journal.namespace, journal.process)?)
}

/// What [`undo`] would do.
fn steps_of(journal: &HostJournal, place: &Place) -> Vec<UndoStep> {
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
