//! Where the host's settings are read and written: in the network namespace of the server, by a thread that goes there, or
//! for what belongs to the whole machine where we are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lastdrop_files::step;
use lastdrop_probe::namespace::{self, Namespace, NamespaceId};
use lastdrop_probe::process;

use super::knobs::{HostKnob, Scope};
use crate::ServerError;

/// A process and the time at which it began, which name it for good.
pub type Process = (i32, u64);

/// A way to the settings that are files.
#[derive(Debug)]
pub struct Place {
    /// None: it is gone, and only what belongs to the whole machine can be reached.
    namespace: Option<Namespace>,
}

impl Place {
    /// The one of a process.
    pub fn of(pid: i32) -> Result<Place, ServerError> {
        let namespace =
            Namespace::of(pid).map_err(denied(format!("cannot open the network namespace of process {pid}")))?;
        Ok(Place { namespace: Some(namespace) })
    }

    /// The one that had this id, wherever there is a way into it; without one, only what is the machine's. `process` was in
    /// it.
    ///
    /// # Errors
    /// When that process lives and hides it.
    pub fn again(id: NamespaceId, process: Process) -> Result<Place, ServerError> {
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
            // A process may end, and a file may be another's, between two looks.
            let Ok(namespace) = Namespace::at(&way) else { continue };
            let Ok(now) = namespace.id() else { continue };
            // Without a cookie an inode says nothing of a namespace in which nobody is that was there.
            let same = now == id && (id.cookie.is_some() || known.iter().any(|pid| way == own_file(*pid)));
            if same {
                return Ok(Place { namespace: Some(namespace) });
            }
        }
        Ok(Place { namespace: None })
    }

    pub fn is_gone(&self) -> bool {
        self.namespace.is_none()
    }

    /// Is it the one that we are in?
    pub fn is_ours(&self) -> bool {
        self.namespace.as_ref().is_some_and(Namespace::is_ours)
    }

    pub fn id(&self) -> io::Result<NamespaceId> {
        self.namespace.as_ref().ok_or(io::ErrorKind::NotFound)?.id()
    }

    /// Does something where a setting of this scope is.
    fn at<T: Send>(&self, scope: Scope, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match (scope, &self.namespace) {
            (Scope::Namespace, Some(namespace)) => namespace.apart(act),
            (Scope::Namespace, None) => Err(io::ErrorKind::NotFound.into()),
            (Scope::Machine | Scope::Processes, _) => act(),
        }
    }

    /// The present value; None where there is no such setting.
    pub fn read(&self, knob: &HostKnob) -> Result<Option<String>, ServerError> {
        match self.at(knob.scope, || fs::read_to_string(knob.file())) {
            Ok(text) => Ok(Some(value_in(&text))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(denied(format!("cannot read {}", knob.file))(e)),
        }
    }

    /// May it be written? Writes nothing.
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

    /// Sets it, and makes sure that the kernel has taken it as it is.
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

    /// Is it the namespace that the machine itself has, so that its start sets it? No other shows what belongs to all
    /// devices.
    pub fn is_the_machines(&self) -> bool {
        self.at(Scope::Namespace, || Ok(Path::new("/proc/sys/net/core/netdev_max_backlog").exists())).unwrap_or(false)
    }
}

fn own_file(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/net"))
}

/// As a shell does it where it is to hold nothing but what is written.
fn open(file: &Path, anew: bool) -> io::Result<File> {
    OpenOptions::new().write(true).truncate(anew).open(file)
}

/// The value that the text of such a file is: words with one blank between them; of several the one in brackets.
fn value_in(text: &str) -> String {
    let chosen = text.split_once('[').and_then(|(_, after)| Some(after.split_once(']')?.0));
    in_words(chosen.unwrap_or(text))
}

/// Words with one blank between them.
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
        let id = Place::of(own).and_then(|p| p.id().map_err(denied(String::new()))).expect("ours");
        let again = Place::again(id, (own, 0)).expect("looked for");
        assert!(again.is_ours() && !again.is_gone());
        // The inode is given to another as soon as it is free.
        let other = NamespaceId { cookie: Some(u64::MAX), ..id };
        assert!(Place::again(other, (own, 0)).expect("looked for").is_gone());
    }
}
