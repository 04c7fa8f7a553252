//! Host settings that are meant to stay: a file that is read at every boot.
//!
//! Only lastdrop writes this file. Settings from an earlier `--keep` stay in it unless they are kept again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lastdrop_files::input;
use lastdrop_model::Settings;
use serde::{Deserialize, Serialize};

use super::knobs;
use super::namespace_access::in_words;
use crate::ServerError;
use crate::private::{Readers, remove_if_there, unfinished, write_durably_for};
use crate::undo_step::{StepKind, UndoStep, action_of};

const NAME: &str = "90-lastdrop.conf";
const HEAD: &str = "# Settings that lastdrop was told to keep. Read at every start; at once with: sysctl --system\n";

/// The folder from the environment instead of the machine's: for another root, or for the setup of a namespace.
pub fn named_folder() -> Option<PathBuf> {
    std::env::var_os("LASTDROP_SYSCTL_D").filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The file before and after a `--keep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    pub path: PathBuf,
    before: Option<String>,
    after: String,
}

impl KeptFile {
    /// The file with these settings added.
    pub fn with(settings: &Settings) -> Result<KeptFile, ServerError> {
        let path = named_folder().unwrap_or_else(|| PathBuf::from("/etc/sysctl.d")).join(NAME);
        let before = match input::read_regular_text(&path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(ServerError::io(format!("cannot read {}", path.display()))(e)),
        };
        let after = merged(before.as_deref().unwrap_or(HEAD), settings);
        Ok(KeptFile { path, before, after })
    }

    pub fn write(&self) -> Result<(), ServerError> {
        write_durably_for(Readers::AsBefore { or_like: None }, &self.path, self.after.as_bytes())
            .map_err(ServerError::io(format!("cannot write {}", self.path.display())))
    }

    /// What a restore would do with the file, if anything.
    pub fn undo_step(&self) -> Option<UndoStep> {
        let now = input::read_regular_text(&self.path).ok();
        let is_ours = now.as_ref() == Some(&self.after);
        let step = || UndoStep::new(StepKind::File, self.path.display(), action_of(self.before.as_ref()));
        (is_ours && now != self.before).then(step)
    }

    /// Restores the former content. If others have changed the file, it is left alone and that is reported.
    pub fn put_back(&self) -> Result<Option<String>, ServerError> {
        let now = input::read_regular_text(&self.path).ok();
        let removed = remove_if_there(&unfinished(&self.path));
        let done = match (&now, &self.before) {
            (now, before) if now == before => removed,
            (Some(now), _) if *now != self.after => {
                return Ok(Some(format!("{}: somebody else has changed it, and it is left", self.path.display())));
            }
            (_, Some(text)) => write_durably_for(Readers::AsBefore { or_like: None }, &self.path, text.as_bytes()),
            (_, None) => remove_if_there(&self.path),
        };
        done.map_err(ServerError::io(format!("cannot put back {}", self.path.display())))?;
        Ok(None)
    }
}

/// Replaces these settings in a text. A setting that is not a sysctl becomes a comment, because it does not stay.
fn merged(text: &str, settings: &Settings) -> String {
    let mut lines: BTreeMap<&str, String> = settings
        .iter()
        .map(|(name, value)| {
            let value = in_words(&value.to_string());
            let lasts = knobs::named(name).is_none_or(|knob| knob.is_sysctl());
            let line = if lasts {
                format!("{name} = {value}\n")
            } else {
                format!("# {name} = {value}, which is no sysctl and does not outlast a new start\n")
            };
            (name.as_str(), line)
        })
        .collect();
    let mut out = String::new();
    for line in text.lines() {
        let name =
            line.trim_start_matches(['#', ' ', '-']).split_once('=').map(|(name, _)| name.trim().replace('/', "."));
        match name.filter(|name| settings.contains_key(name)) {
            Some(name) => out.extend(lines.remove(name.as_str())),
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out.extend(lines.into_values());
    out
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lastdrop_model::Setting;

    use super::*;

    fn settings(all: &[(&str, &str)]) -> Settings {
        all.iter().map(|(name, value)| ((*name).to_string(), Setting::read(value))).collect()
    }

    #[test]
    fn what_was_kept_earlier_stays() {
        let first = merged(HEAD, &settings(&[("net.core.somaxconn", "1024"), ("nofile", "4096")]));
        assert_eq!(
            first.strip_prefix(HEAD),
            Some("net.core.somaxconn = 1024\n# nofile = 4096, which is no sysctl and does not outlast a new start\n")
        );
        let again = settings(&[("net.core.somaxconn", "2048"), ("net.ipv4.ip_local_port_range", "1024\t65535")]);
        let second = merged(&first, &again);
        assert!(second.starts_with(HEAD) && second.contains("# nofile = 4096"), "{second}");
        assert!(second.contains("\nnet.core.somaxconn = 2048\n") && !second.contains("1024\n"), "{second}");
        assert!(second.ends_with("net.ipv4.ip_local_port_range = 1024 65535\n"), "{second}");
        let by_hand =
            merged("net/core/somaxconn=5\n-net.core.somaxconn = 6\nx = 1", &settings(&[("net.core.somaxconn", "7")]));
        assert_eq!(by_hand, "net.core.somaxconn = 7\nx = 1\n");
    }

    #[test]
    fn the_file_comes_back_and_what_others_wrote_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        let of = |before: Option<&str>| KeptFile {
            path: path.clone(),
            before: before.map(str::to_string),
            after: "ours = 1\n".into(),
        };
        let new = of(None);
        assert_eq!(new.put_back().expect("nothing to do"), None);
        new.write().expect("written");
        assert_eq!(new.put_back().expect("taken away"), None);
        assert!(!path.exists());
        let changed = of(Some("earlier = 1\n"));
        changed.write().expect("written");
        assert_eq!(changed.put_back().expect("put back"), None);
        assert_eq!(fs::read_to_string(&path).expect("there"), "earlier = 1\n");
        fs::write(&path, "theirs = 1\n").expect("written");
        assert!(changed.put_back().expect("left").expect("told").contains("somebody else"));
        assert_eq!(fs::read_to_string(&path).expect("there"), "theirs = 1\n");
    }
}
