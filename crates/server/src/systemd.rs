//! Servers that belong to a systemd unit: they are restarted and reloaded by their unit. A drop-in file changes how the
//! unit starts them: below /run for a trial, so that it is gone after a boot, and below /etc for settings that stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_files::{input, step};
use lastdrop_probe::process::Birth;
use lastdrop_probe::tool;
use serde::{Deserialize, Serialize};

use crate::ServerError;
use crate::journal::Journal;
use crate::private::{remove_if_there, unfinished, write_durably};
use crate::restart::{Launch, family, masters};

/// A unit may report a start before the service's program runs.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The systemd unit of a server, if it has one.
pub fn unit_of(birth: &Birth) -> Option<String> {
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    birth
        .cgroups
        .iter()
        .filter(|(controllers, _)| controllers.is_empty() || controllers == "name=systemd")
        .find_map(|(_, path)| unit_of_group(path))
        .map(str::to_string)
}

/// The unit of a control group. Units of a user's own systemd are excluded: the user chooses their names.
fn unit_of_group(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    let is_of_user = parts.any(|part| part.starts_with("user@") || part.starts_with("user-") || part == "user.slice");
    path.rsplit('/').find(|part| part.ends_with(".service")).filter(|_| !is_of_user)
}

/// A drop-in file of a unit, and its former content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropIn {
    pub path: PathBuf,
    pub before: Option<String>,
}

impl DropIn {
    /// The drop-in for a trial. Its name sorts after the permanent one, so that it overrides it.
    pub fn of_trial(unit: &str) -> Result<DropIn, ServerError> {
        DropIn::at(Path::new("/run/systemd/system").join(format!("{unit}.d/zzz-lastdrop-trial.conf")))
    }

    /// The drop-in for settings that stay.
    pub fn of_kept(unit: &str) -> Result<DropIn, ServerError> {
        DropIn::at(Path::new("/etc/systemd/system").join(format!("{unit}.d/zz-lastdrop.conf")))
    }

    fn at(path: PathBuf) -> Result<DropIn, ServerError> {
        let before = match input::read_regular_text(&path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(ServerError::io(format!("cannot read {}", path.display()))(e)),
        };
        Ok(DropIn { path, before })
    }

    /// Makes the unit start its server in this way from the next [`restart`] on.
    pub fn write(&self, birth: &Birth, launch: &Launch) -> Result<(), ServerError> {
        let cannot = || ServerError::io(format!("cannot write {}", self.path.display()));
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new("/"))).map_err(cannot())?;
        // The former content covers what this change does not.
        let text = self.before.clone().unwrap_or_default() + &drop_in(birth, launch)?;
        write_durably(&self.path, text.as_bytes()).map_err(cannot())
    }

    /// Removes the drop-in or restores its former content. Returns true if one of lastdrop's was there.
    pub fn put_back(&self) -> Result<bool, ServerError> {
        let now = input::read_regular_text(&self.path).ok();
        let put_back = || {
            remove_if_there(&unfinished(&self.path))?;
            match &self.before {
                Some(_) if now == self.before => {}
                Some(text) => write_durably(&self.path, text.as_bytes())?,
                None => remove_if_there(&self.path)?,
            }
            // This removes only an empty folder.
            let _ = self.path.parent().map(fs::remove_dir);
            Ok(())
        };
        put_back().map_err(ServerError::io(format!("cannot put back {}", self.path.display())))?;
        Ok(now != self.before)
    }
}

/// Contains only what differs from the original start: the unit provides the rest. See systemd.service(5),
/// systemd.exec(5).
fn drop_in(birth: &Birth, launch: &Launch) -> Result<String, ServerError> {
    let mut text = String::from("# lastdrop's; lastdrop restore takes it away.\n[Service]\n");
    if launch.argv != birth.argv {
        let Some((name, rest)) = launch.argv.split_first() else {
            return Err(ServerError::Setting("nobody can tell how the server is started: it shows a title".into()));
        };
        let program = birth.exe.to_string_lossy();
        let program = program.trim_end_matches(" (deleted)");
        // With '@' before the program, the next word is the program's name for itself.
        let words: Vec<String> =
            std::iter::once(name).chain(rest).map(|word| quoted(word).replace('$', "$$")).collect();
        text.push_str(&format!("ExecStart=\nExecStart={} {}\n", quoted(&format!("@{program}")), words.join(" ")));
    }
    for (name, value) in launch.environment.iter().filter(|v| !birth.environment.contains(v)) {
        text.push_str(&format!("Environment={}\n", quoted(&format!("{name}={value}"))));
    }
    let gone = birth.environment.iter().filter(|(name, _)| !launch.environment.iter().any(|(n, _)| n == name));
    for (name, _) in gone {
        text.push_str(&format!("UnsetEnvironment={}\n", quoted(name)));
    }
    Ok(text)
}

/// Quotes a word for systemd's parser.
fn quoted(word: &str) -> String {
    let mut out = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' => out.push_str("%%"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn systemctl(args: &[&str]) -> Result<String, ServerError> {
    let cannot = || ServerError::io("cannot run systemctl");
    let mut command =
        tool::command("systemctl", "asks systemd about a server, or has it restart one").map_err(cannot())?;
    step();
    let output = command.args(args).stdin(Stdio::null()).output().map_err(cannot())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(ServerError::ConfigTest { command: format!("systemctl {}", args.join(" ")), output: said })
}

/// Restarts a server by its unit, with the unit's files as they are on disk now. Returns the new master.
pub fn restart(journal: &Journal, unit: &str, launch: &Launch) -> Result<i32, ServerError> {
    if !journal.drop_ins.is_empty() {
        systemctl(&["daemon-reload"])?;
    }
    // Trials may exceed the number of starts that a unit may have in ten seconds.
    let _ = systemctl(&["reset-failed", unit]);
    systemctl(&["restart", unit])?;
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let [master, ..] = masters(&family(&journal.birth, &[&launch.argv])).as_slice() {
            return in_force(master.pid, launch, unit);
        }
        let state = systemctl(&["show", "--property=ActiveState", "--value", unit]).unwrap_or_default();
        if state == "failed" || state == "inactive" {
            let status = format!("its unit is {state}; journalctl -u {unit}");
            return Err(ServerError::Ended { command: launch.argv.join(" "), status });
        }
        if Instant::now() > deadline {
            return Err(ServerError::NotFound {
                what: format!("systemd restarted {unit}, but no server runs as '{}'", launch.argv.join(" ")),
                advice: format!("look at: systemctl cat {unit}; journalctl -u {unit}"),
            });
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Checks that the process has its new variables: a file that the unit names as EnvironmentFile= overrides ours.
fn in_force(master: i32, launch: &Launch, unit: &str) -> Result<i32, ServerError> {
    let Ok(birth) = Birth::of(master) else { return Ok(master) };
    let own = |name: &str| birth.environment.iter().find(|(n, _)| n == name).map(|(_, value)| value);
    // A variable that the title has overwritten is not known to be wrong. systemd's own variables are new at each
    // start.
    let is_other = |(name, value): &&(String, String)| {
        own(name).is_some_and(|now| now != value) && !OF_SYSTEMD.contains(&name.as_str())
    };
    match launch.environment.iter().find(is_other) {
        None => Ok(master),
        Some((name, _)) => Err(ServerError::Setting(format!(
            "{name} is not what the drop-in of {unit} says: another drop-in or its EnvironmentFile counts more; change it there"
        ))),
    }
}

/// Variables that differ from start to start.
const OF_SYSTEMD: [&str; 9] = [
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDS",
    "LISTEN_PID",
    "MAINPID",
    "NOTIFY_SOCKET",
    "SYSTEMD_EXEC_PID",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Reloads a unit. Returns false if it does not support that; then the server itself must be signalled.
pub fn reload(unit: &str) -> Result<bool, ServerError> {
    if systemctl(&["show", "--property=CanReload", "--value", unit]).is_ok_and(|can| can == "yes") {
        return systemctl(&["reload", unit]).map(|_| true);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_so_that_systemd_reads_it_back() {
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted("50%\"\\\n"), "\"50%%\\\"\\\\\\n\"");
    }

    #[test]
    fn a_drop_in_is_put_back_whatever_stood_there() {
        let dir = std::env::temp_dir().join(format!("lastdrop-drop-in-{}", std::process::id()));
        let path = dir.join("x.service.d/zz.conf");
        let none = DropIn::at(path.clone()).expect("nothing there");
        assert!(!none.put_back().expect("nothing to do"));
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, "ours").expect("written");
        assert!(none.put_back().expect("taken away") && !path.parent().expect("a folder").exists());
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, "theirs").expect("written");
        let theirs = DropIn::at(path.clone()).expect("read");
        fs::write(&path, "ours").expect("written");
        assert!(theirs.put_back().expect("brought back"));
        assert_eq!(fs::read_to_string(&path).expect("there"), "theirs");
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn a_unit_of_a_user_is_none_of_the_systems() {
        assert_eq!(unit_of_group("/system.slice/nginx.service"), Some("nginx.service"));
        assert_eq!(unit_of_group("/system.slice/system-php.slice/php@8.service/pool"), Some("php@8.service"));
        for path in [
            "/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service",
            "/user.slice/user-1000.slice/user@1000.service",
            "/user.slice/user-1000.slice/session-3.scope",
            "/",
        ] {
            assert_eq!(unit_of_group(path), None, "{path}");
        }
    }
}
