//! Reads and writes the host's settings: in the server's network namespace, by a thread that enters it; machine-wide
//! settings directly.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lastdrop_files::step;
use lastdrop_probe::namespace::{self, Namespace, NamespaceId};
use lastdrop_probe::process;

use super::knobs::{HostKnob, Scope};
use crate::ServerError;

/// A pid and the process's start time, which together identify it for good.
pub type Process = (i32, u64);

/// Access to the settings that are files.
#[derive(Debug)]
pub struct NamespaceAccess {
    /// `None` if the namespace is gone: then only machine-wide settings can be reached.
    namespace: Option<Namespace>,
}

impl NamespaceAccess {
    /// Access to the namespace of a process.
    pub fn of(pid: i32) -> Result<NamespaceAccess, ServerError> {
        let namespace =
            Namespace::of(pid).map_err(denied(format!("cannot open the network namespace of process {pid}")))?;
        Ok(NamespaceAccess { namespace: Some(namespace) })
    }

    /// Access to the namespace with this id, if there is still a way into it; otherwise only to machine-wide settings.
    /// `process` was in it.
    ///
    /// # Errors
    /// If that process is alive and hidden.
    pub fn again(id: NamespaceId, process: Process) -> Result<NamespaceAccess, ServerError> {
        let own = std::process::id() as i32;
        let lives = process::is_alive(process.0, process.1);
        if lives && namespace::inode_of(process.0).is_none() {
            let what = format!("cannot look at the network namespace of process {}", process.0);
            return Err(ServerError::Permission { what });
        }
        let known: Vec<i32> = std::iter::once(own).chain(lives.then_some(process.0)).collect();
        let others = process::all().into_iter().map(|p| p.pid);
        let kept = ["/run/netns", "/var/run/netns"].iter().flat_map(fs::read_dir).flatten();
        let by_process = known.iter().copied().chain(others).filter(|pid| namespace::inode_of(*pid) == Some(id.inode));
        let ways = by_process.map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")));
        for way in ways.chain(kept.filter_map(|entry| Some(entry.ok()?.path()))) {
            // Between two steps, a process may end and a file may change its owner.
            let Ok(namespace) = Namespace::at(&way) else { continue };
            let Ok(now) = namespace.id() else { continue };
            // Without a cookie, an inode proves nothing about a namespace unless a process that was in it is still
            // there.
            let same = now == id && (id.cookie.is_some() || known.iter().any(|pid| way == own_file(*pid)));
            if same {
                return Ok(NamespaceAccess { namespace: Some(namespace) });
            }
        }
        Ok(NamespaceAccess { namespace: None })
    }

    pub fn is_gone(&self) -> bool {
        self.namespace.is_none()
    }

    /// True if lastdrop itself is in this namespace.
    pub fn is_ours(&self) -> bool {
        self.namespace.as_ref().is_some_and(Namespace::is_ours)
    }

    pub fn id(&self) -> io::Result<NamespaceId> {
        self.namespace.as_ref().ok_or(io::ErrorKind::NotFound)?.id()
    }

    /// Runs a function in the place where a setting of this scope is.
    fn at<T: Send>(&self, scope: Scope, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match (scope, &self.namespace) {
            (Scope::Namespace, Some(namespace)) => namespace.apart(act),
            (Scope::Namespace, None) => Err(io::ErrorKind::NotFound.into()),
            (Scope::Machine | Scope::Processes, _) => act(),
        }
    }

    /// The present value; `None` if the setting does not exist.
    pub fn read(&self, knob: &HostKnob) -> Result<Option<String>, ServerError> {
        match self.at(knob.scope, || fs::read_to_string(knob.file())) {
            Ok(text) => Ok(Some(value_in(&text))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(denied(format!("cannot read {}", knob.file))(e)),
        }
    }

    /// Checks that the setting may be written. Writes nothing.
    pub fn check_writable(&self, knob: &HostKnob) -> Result<(), ServerError> {
        let name = knob.knob.name;
        self.at(knob.scope, || open(knob.file(), false).map(drop)).map_err(|e| match (e.kind(), knob.scope) {
            (io::ErrorKind::PermissionDenied, Scope::Machine) if nix::unistd::geteuid().is_root() => {
                ServerError::Setting(format!(
                    "{name} can be set only from where the machine's own network namespace is (nsenter -t 1 -n)"
                ))
            }
            _ => denied(format!("cannot set {name}"))(e),
        })
    }

    /// Writes the setting and checks that the kernel uses exactly this value.
    pub fn write(&self, knob: &HostKnob, value: &str) -> Result<(), ServerError> {
        let name = knob.knob.name;
        step();
        let written = self.at(knob.scope, || open(knob.file(), true)?.write_all(value.as_bytes()));
        written.map_err(denied(format!("the kernel does not take {name} {value}")))?;
        match self.read(knob)? {
            Some(now) if now == value => Ok(()),
            now => Err(ServerError::Clamped {
                settings: format!("{name} {value}"),
                output: format!("the kernel has made {} of it", now.unwrap_or_default()),
            }),
        }
    }

    /// True if it is the machine's own namespace, which a boot configures. Only that one shows settings of all devices.
    pub fn is_the_machines(&self) -> bool {
        self.at(Scope::Namespace, || Ok(Path::new("/proc/sys/net/core/netdev_max_backlog").exists())).unwrap_or(false)
    }
}

fn own_file(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/net"))
}

/// Opens a file for writing; `anew` truncates it, like `>` in a shell.
fn open(file: &Path, anew: bool) -> io::Result<File> {
    OpenOptions::new().write(true).truncate(anew).open(file)
}

/// The value in the text of such a file: words separated by one blank, or the word in brackets if there are several
/// choices.
fn value_in(text: &str) -> String {
    let chosen = text.split_once('[').and_then(|(_, after)| Some(after.split_once(']')?.0));
    in_words(chosen.unwrap_or(text))
}

/// Normalises white space to single blanks.
pub fn in_words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn denied(what: String) -> impl FnOnce(io::Error) -> ServerError {
    move |e| match e.kind() {
        io::ErrorKind::PermissionDenied => ServerError::Permission { what },
        _ => ServerError::io(what)(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_out_of_its_file() {
        assert_eq!(value_in("32768\t60999\n"), "32768 60999");
        assert_eq!(value_in("always [madvise] never\n"), "madvise");
        assert_eq!(value_in("4096\n"), "4096");
    }

    #[test]
    fn our_own_namespace_is_found_again_and_one_that_is_gone_is_not() {
        let own = std::process::id() as i32;
        let id = NamespaceAccess::of(own).and_then(|p| p.id().map_err(denied(String::new()))).expect("ours");
        let again = NamespaceAccess::again(id, (own, 0)).expect("looked for");
        assert!(again.is_ours() && !again.is_gone());
        // The kernel reuses an inode as soon as it is free.
        let other = NamespaceId { cookie: Some(u64::MAX), ..id };
        assert!(NamespaceAccess::again(other, (own, 0)).expect("looked for").is_gone());
    }
}
