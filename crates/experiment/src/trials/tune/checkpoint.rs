//! Stores the trials of a tune on disk, one by one, so that a killed tune resumes without losing any.
//!
//! The search depends only on its seed and on what was measured: with the same values it asks for the same trials in
//! the same order. Resuming therefore means starting again with known results.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::lab::LabError;
use lastdrop_files::{FileError, Folder, TrustedFile};
use lastdrop_model::documents::{Clue, Proposal, Trial, WorkersAdvice};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CheckpointHeader {
    schema: String,
    /// Fingerprint of the servers, the load and the options; a checkpoint of anything else is useless.
    order: String,
    seed: u64,
    #[serde(flatten)]
    hints: Hints,
}

/// What was known before the search, which decides what is tried and what comes first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Hints {
    #[serde(default)]
    pub proposals: Vec<Proposal>,
    #[serde(default)]
    pub clues: Vec<Clue>,
    #[serde(default)]
    pub workers: Vec<WorkersAdvice>,
}

const SCHEMA: &str = "lastdrop.tune-diary/1";

/// Where the checkpoint is, and whether to resume from it.
#[derive(Debug, Clone)]
pub struct CheckpointOptions {
    pub folder: PathBuf,
    pub resume: bool,
}

#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    file: Option<(PathBuf, File)>,
    /// Trials of the tune that is resumed, the next one first.
    known: VecDeque<Trial>,
    /// How many of them were reused instead of measured.
    pub used: usize,
    /// Why nothing more is written.
    pub trouble: Option<String>,
}

/// Returns a digest as hexadecimal digits.
pub(super) fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// A longer file is not ours.
const MOST_BYTES: u64 = 256 << 20;

/// Reads the header and the trials of a file; an incomplete last line is ignored. None if there is no checkpoint.
///
/// # Errors
/// When another user may have written it: the file decides which settings are tried and which remain in force.
fn read(path: &Path) -> Result<Option<(CheckpointHeader, Vec<Trial>)>, FileError> {
    let text = match TrustedFile::open(path).and_then(|file| file.read(MOST_BYTES)) {
        Err(FileError::Io { .. }) => return Ok(None),
        text => text?,
    };
    let mut lines = text.split(|b| *b == b'\n');
    let head: Option<CheckpointHeader> = lines.next().and_then(|line| lastdrop_model::read_json(line).ok());
    let head = head.filter(|head| head.schema == SCHEMA);
    Ok(head.map(|head| (head, lines.map_while(|line| lastdrop_model::read_json(line).ok()).collect())))
}

impl Checkpoint {
    /// Opens the checkpoint of a tune of `server`; returns it with the seed and the hints of the tune.
    ///
    /// # Errors
    /// When there is nothing to resume.
    pub fn open(
        order: &CheckpointOptions,
        server: &str,
        fingerprint: &str,
        seed: u64,
        hints: &Hints,
    ) -> Result<(Checkpoint, u64, Hints), LabError> {
        let path = order.folder.join(format!("{}.jsonl", &digest(server)[..16]));
        let before = match order.resume {
            true => read(&path).map_err(|e| LabError::Other(format!("cannot go on with a tune of {server}: {e}")))?,
            false => None,
        };
        let (known, seed, hints) = match (order.resume, before) {
            (true, Some((head, trials))) if head.order == fingerprint => (trials, head.seed, head.hints),
            (true, Some(_)) => {
                return Err(LabError::Other(format!(
                    "the tune of {server} that was ended had another load, other settings to search or another goal: --resume \
                     needs the same command, or begin anew without it"
                )));
            }
            (true, None) => {
                return Err(LabError::Other(format!(
                    "there is no tune of {server} to go on with: begin one without --resume"
                )));
            }
            (false, _) => (Vec::new(), seed, hints.clone()),
        };
        let head = CheckpointHeader { schema: SCHEMA.into(), order: fingerprint.into(), seed, hints };
        let mut checkpoint = Checkpoint { known: known.iter().cloned().collect(), ..Checkpoint::default() };
        match begin(&path, &head, &known) {
            Ok(file) => checkpoint.file = Some((path, file)),
            Err(e) => {
                checkpoint.trouble = Some(format!("{}: {e}; it could not be resumed after a kill", path.display()))
            }
        }
        Ok((checkpoint, seed, head.hints))
    }

    /// Returns the result of a trial that was measured before the kill. If the next stored trial is another one,
    /// something has changed, and the rest is dropped.
    pub fn recall(&mut self, is_the_same: impl Fn(&Trial) -> bool) -> Option<Trial> {
        let next = self.known.pop_front()?;
        if is_the_same(&next) {
            self.used += 1;
            return Some(next);
        }
        self.known.clear();
        None
    }

    pub fn write(&mut self, trial: &Trial) {
        let Some((path, file)) = &mut self.file else { return };
        if let Err(e) = append(file, trial) {
            self.trouble = Some(format!("{}: {e}; it could not be resumed after a kill", path.display()));
            self.file = None;
        }
    }

    /// Removes the file: the tune is complete.
    pub fn close(self) {
        if let Some((path, _)) = self.file {
            // At worst the file remains for a --resume that has nothing to do.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn append(file: &mut File, line: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}

/// Writes a new file with the known trials in place of the old one.
fn begin(path: &Path, head: &CheckpointHeader, known: &[Trial]) -> io::Result<File> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let folder = Folder::trusted(folder)?;
    let name = path.file_name().unwrap_or_default();
    let new = path.with_extension("new");
    let new = new.file_name().unwrap_or_default();
    folder.remove_if_there(new)?;
    let mut file = folder.create_new(new)?;
    append(&mut file, head)?;
    for trial in known {
        append(&mut file, trial)?;
    }
    folder.rename(new, name)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use lastdrop_model::{Setting, Settings};

    use super::*;

    fn trial(workers: i64) -> Trial {
        Trial {
            settings: Settings::from([("workers".to_string(), Setting::Count(workers))]),
            objective: 1.5,
            valid: true,
            why: String::new(),
            p99_us: 20.0,
            unanswered: 0,
            real_memory_bytes: None,
            warmed: "each".into(),
            role: "search".into(),
            keepalive: "off".into(),
            run: "a".into(),
            repeated: 0,
            cut_short: false,
            steps: Vec::new(),
        }
    }

    struct TemporaryFolder(PathBuf);

    impl Drop for TemporaryFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn trials_come_back_in_their_order_until_something_differs() {
        let place = TemporaryFolder(std::env::temp_dir().join(format!("lastdrop-diary-{}", std::process::id())));
        let order = |resume| CheckpointOptions { folder: place.0.clone(), resume };
        let clue = Clue { finding: "cpu-saturated".into(), server: "s".into(), reason: "a core is full".into() };
        let (seen, none) = (Hints { clues: vec![clue], ..Hints::default() }, Hints::default());
        assert!(Checkpoint::open(&order(true), "s", "order", 1, &none).is_err(), "there is none");
        let (mut checkpoint, seed, _) = Checkpoint::open(&order(false), "s", "order", 1, &seen).expect("begun");
        assert_eq!((seed, checkpoint.recall(|_| true)), (1, None));
        for workers in [4, 8, 16] {
            checkpoint.write(&trial(workers));
        }
        drop(checkpoint);
        assert!(Checkpoint::open(&order(true), "s", "another", 2, &none).is_err());
        // An incomplete last line.
        let file = std::fs::read_dir(&place.0).expect("there").next().expect("one").expect("readable").path();
        let mut text = std::fs::read(&file).expect("text");
        text.truncate(text.len() - 9);
        std::fs::write(&file, text).expect("written");
        let (mut again, seed, hints) = Checkpoint::open(&order(true), "s", "order", 2, &none).expect("gone on with");
        assert_eq!(hints, seen, "the same settings are searched for the same reasons");
        assert_eq!((seed, again.recall(|t| *t == trial(4))), (1, Some(trial(4))));
        again.write(&trial(99));
        assert_eq!(again.recall(|t| *t == trial(5)), None, "another one was wanted");
        assert_eq!(again.recall(|_| true), None);
        again.close();
        assert!(!file.exists());
    }
}
