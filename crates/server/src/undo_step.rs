//! The steps that a restore would take, found without taking or executing any of them.

use std::fmt;
use std::path::Path;

use lastdrop_files::input;
use lastdrop_probe::process;
use serde::{Deserialize, Serialize};

use crate::journal::{Journal, Stage};
use crate::restart;

/// What a step acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// A file of the server, or one of lastdrop's.
    File,
    /// A drop-in file of a systemd unit.
    DropIn,
    /// A process that is reloaded or restarted.
    Process,
    /// A program that is executed.
    Command,
    /// A setting of the kernel.
    Sysctl,
    /// A process's limit of open files.
    Limit,
}

impl StepKind {
    fn word(self) -> &'static str {
        match self {
            StepKind::File => "file",
            StepKind::DropIn => "drop-in",
            StepKind::Process => "process",
            StepKind::Command => "command",
            StepKind::Sysctl => "sysctl",
            StepKind::Limit => "limit",
        }
    }
}

/// A step of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoStep {
    pub kind: StepKind,
    /// The file, process, command line or setting.
    pub target: String,
    pub action: String,
}

impl UndoStep {
    pub fn new(kind: StepKind, target: impl fmt::Display, action: impl Into<String>) -> UndoStep {
        UndoStep { kind, target: target.to_string(), action: action.into() }
    }
}

impl fmt::Display for UndoStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind.word(), self.target, self.action)
    }
}

/// What a restore does with a file, depending on whether it existed before.
pub fn action_of(before: Option<&String>) -> &'static str {
    match before {
        Some(_) => "bring back what stood in it",
        None => "remove",
    }
}

/// The steps that the restore of a server would take.
pub fn steps_of(journal: &Journal) -> Vec<UndoStep> {
    if journal.stage != Stage::Changed {
        return Vec::new();
    }
    let mut steps = Vec::new();
    let mut file = |kind, path: &Path, action: &str| steps.push(UndoStep::new(kind, path.display(), action));
    for edited in &journal.edited {
        file(StepKind::File, &edited.path, edited.undo_action());
    }
    let now = |path: &Path| input::read_regular_text(path).ok();
    for drop_in in journal.drop_ins.iter().filter(|drop_in| now(&drop_in.path) != drop_in.before) {
        file(StepKind::DropIn, &drop_in.path, action_of(drop_in.before.as_ref()));
    }
    if let Some(included) = journal.included_file.as_ref().filter(|path| now(path) != journal.included_before) {
        file(StepKind::File, included, action_of(journal.included_before.as_ref()));
    }
    for path in [Some(&journal.own_file), journal.test_file.as_ref()].into_iter().flatten() {
        if path.symlink_metadata().is_ok() {
            file(StepKind::File, path, "remove");
        }
    }
    steps.extend(process_steps(journal));
    steps.extend(folder_steps(journal));
    steps
}

/// The steps that take away a cache which was kept for all visitors. A server that does not run is not started.
pub fn steps_of_cache(journal: &Journal) -> Vec<UndoStep> {
    let edited = journal.edited.iter();
    let mut steps: Vec<UndoStep> =
        edited.map(|file| UndoStep::new(StepKind::File, file.path.display(), file.undo_action())).collect();
    if !restart::family(&journal.birth, &journal.argvs()).is_empty() {
        steps.extend(process_steps(journal));
    }
    steps.extend(folder_steps(journal));
    steps
}

fn folder_steps(journal: &Journal) -> impl Iterator<Item = UndoStep> {
    let there = journal.cache_folders.iter().filter(|folder| folder.symlink_metadata().is_ok());
    there.map(|folder| {
        UndoStep::new(StepKind::File, folder.display(), "remove with all that is in it: a cache of pages")
    })
}

fn process_steps(journal: &Journal) -> Vec<UndoStep> {
    let birth = &journal.birth;
    let family = restart::family(birth, &journal.argvs());
    let master = restart::masters(&family).first().map(|master| master.pid);
    let was_started_anew = journal.restarted;
    let is_the_same = process::is_alive(birth.pid, birth.start_ticks);
    let is_reloaded = !was_started_anew && (journal.reloads || (journal.live && is_the_same));
    let command = |words: String, action: &str| UndoStep::new(StepKind::Command, words, action);
    let mut steps = Vec::new();
    if journal.unit.is_some() && !journal.drop_ins.is_empty() {
        steps.push(command("systemctl daemon-reload".into(), "execute"));
    }
    match (master, &journal.unit) {
        (Some(_), Some(unit)) if is_reloaded => {
            steps.push(command(format!("systemctl reload {unit}"), "execute, or send the signal that reloads it"));
        }
        (Some(pid), None) if is_reloaded => {
            let signal = nix::sys::signal::Signal::try_from(journal.reload_signal);
            let signal = signal.map_or_else(|_| journal.reload_signal.to_string(), |signal| signal.to_string());
            steps.push(UndoStep::new(StepKind::Process, pid, format!("reload by {signal}")));
        }
        (_, Some(unit)) => steps.push(command(format!("systemctl restart {unit}"), "execute")),
        (master, None) => {
            if let Some(pid) = master {
                steps.push(UndoStep::new(StepKind::Process, pid, "end with its workers"));
            }
            let words = match birth.argv.is_empty() {
                true => birth.shown.clone().unwrap_or_default(),
                false => birth.argv.join(" "),
            };
            let unless = if master.is_some() { "" } else { ", unless it was started meanwhile" };
            steps.push(command(words, &format!("start as user {}{unless}", birth.uid)));
        }
    }
    steps
}
