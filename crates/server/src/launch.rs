//! Finds out how a server was started that shows a title instead of its command line.
//!
//! At a reload, its master executes itself with the words and environment that it got at first. From then until it
//! writes its title again, the kernel shows both. So lastdrop reloads it, as it would for any change, and watches it
//! meanwhile.
//!
//! The result counts only if it is complete. The command line must be the same before and after reading the
//! environment. The environment must contain the variable with which the master passes its sockets to itself.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_probe::process;

use crate::ServerError;
use crate::adapter::{Adapter, Placement};
use crate::journal::Journal;
use crate::restart::Launch;
use crate::restore::reload;

/// The title returns after at least 40 ms of work.
const POLL: Duration = Duration::from_micros(200);
/// On a busy machine the moment may be missed.
const TRIES: u32 = 5;

/// Records in journal and adapter how the server was started, if it shows only a title and a reload can reveal it.
/// Returns the master.
///
/// # Errors
/// If it does not come back from a reload, or never shows how it was started.
pub fn learn(journal: &mut Journal, adapter: &mut dyn Adapter, mut master: i32) -> Result<i32, ServerError> {
    // systemd restarts a unit, however it is started.
    let Some(variable) = adapter.hands_over_by().filter(|_| !journal.launch_is_known && journal.unit.is_none()) else {
        return Ok(master);
    };
    for _ in 0..TRIES {
        let watch = Watch::start(master, variable);
        let reloaded = reload(journal, master);
        let seen = watch.end();
        master = reloaded?;
        if let Some(launch) = seen {
            adapter.learn(&launch);
            (journal.birth.argv, journal.birth.environment) = (launch.argv, launch.environment);
            journal.changed_argv = match adapter.placement() {
                Placement::OwnFile => adapter.argv_with(&journal.own_file),
                _ => journal.birth.argv.clone(),
            };
            (journal.daemonizes, journal.launch_is_known) = (adapter.daemonizes(), true);
            journal.write()?;
            return Ok(master);
        }
    }
    let shown = journal.birth.shown.as_deref().unwrap_or_default();
    Err(ServerError::NotFound {
        what: format!(
            "the server would have to be started again; it shows '{shown}' instead of its command line, and did not show \
             that at a reload either"
        ),
        advice: "leave out the settings that need a restart (lastdrop knobs tells which)".into(),
    })
}

/// A thread that polls a process until it shows how it was started.
struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Option<Launch>>,
}

impl Watch {
    fn start(pid: i32, variable: &'static str) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let before = process::execution(pid);
        let is_over = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if process::execution(pid) != before
                    && let Some(launch) = whole(pid, variable)
                {
                    return Some(launch);
                }
                thread::sleep(POLL);
            }
            None
        });
        Watch { over, thread }
    }

    fn end(self) -> Option<Launch> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().ok().flatten()
    }
}

/// Command line and environment of a process, if both are complete.
fn whole(pid: i32, variable: &str) -> Option<Launch> {
    let words = |file: &str| -> Option<Vec<String>> {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
        let bytes = bytes.strip_suffix(&[0])?;
        bytes.split(|b| *b == 0).map(|word| String::from_utf8(word.to_vec()).ok()).collect()
    };
    let (argv, environment) = (words("cmdline")?, words("environ")?);
    let pairs = environment.iter().filter_map(|word| word.split_once('='));
    let environment: Vec<(String, String)> =
        pairs.clone().filter(|(name, _)| *name != variable).map(|(name, value)| (name.into(), value.into())).collect();
    let is_whole = pairs.count() > environment.len() && words("cmdline")? == argv && !argv[0].is_empty();
    is_whole.then_some(Launch { argv, environment })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_a_process_was_started_with_is_read_whole_or_not_at_all() {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().envs([("A", "1"), ("SOCKETS", "x=3")]).stdin(Stdio::null());
        let mut child = command.spawn().expect("it runs");
        let pid = child.id() as i32;
        let (seen, without) = (whole(pid, "SOCKETS"), whole(pid, "OTHERS"));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let launch = Launch { argv: vec!["sleep".into(), "600".into()], environment: vec![("A".into(), "1".into())] };
        assert_eq!((seen, without), (Some(launch), None));
        assert_eq!(whole(pid, "SOCKETS"), None);
    }
}
