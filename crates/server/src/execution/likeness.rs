//! What a process inherits besides its rights: control groups, limits, processors, priority, file mask.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use lastdrop_probe::process::{Birth, Limit};
use nix::sched::CpuSet;
use nix::unistd::Pid;

/// All of it, made ready before the fork.
#[derive(Debug)]
pub struct Likeness {
    /// Open files by which a process enters a control group.
    cgroups: Vec<File>,
    limits: Vec<Limit>,
    processors: Option<CpuSet>,
    nice: i64,
    umask: Option<u32>,
}

impl Likeness {
    /// For the server itself.
    pub fn of(birth: &Birth) -> Likeness {
        let open = |(controllers, path): &(String, String)| {
            let file = cgroup_file(controllers, path)?;
            OpenOptions::new().write(true).open(file).ok()
        };
        Likeness { cgroups: birth.cgroups.iter().filter_map(open).collect(), ..Likeness::of_question(birth) }
    }

    /// For a question: it stays in our control group, since whoever owns that of the server may have frozen it.
    pub fn of_question(birth: &Birth) -> Likeness {
        let mut processors = CpuSet::new();
        for processor in &birth.cpus {
            let _ = processors.set(*processor);
        }
        Likeness {
            cgroups: Vec::new(),
            limits: birth.limits.clone(),
            processors: (!birth.cpus.is_empty()).then_some(processors),
            nice: birth.nice,
            umask: birth.umask,
        }
    }

    /// Takes it on, as far as that is allowed: our own is as good as we can give. For the child alone, between fork and exec: only
    /// system calls are made.
    pub fn take(&self) {
        for group in &self.cgroups {
            // The kernel takes 0 for whoever writes it.
            let _ = (&*group).write(b"0");
        }
        for (resource, soft, hard) in &self.limits {
            let value = |n: &Option<u64>| n.unwrap_or(libc::RLIM64_INFINITY);
            let limit = libc::rlimit64 { rlim_cur: value(soft), rlim_max: value(hard) };
            // SAFETY: the structure lives for the call.
            unsafe { libc::prlimit64(0, *resource, &raw const limit, std::ptr::null_mut()) };
        }
        if let Some(processors) = &self.processors {
            let _ = nix::sched::sched_setaffinity(Pid::from_raw(0), processors);
        }
        // SAFETY: plain calls.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, self.nice as libc::c_int);
            if let Some(mask) = self.umask {
                libc::umask(mask as libc::mode_t);
            }
        }
    }
}

/// The file by which a process enters a control group, where it can be entered from here.
pub fn cgroup_file(controllers: &str, path: &str) -> Option<String> {
    let mount = match controllers {
        "" => ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .into_iter()
            .find(|m| Path::new(m).join("cgroup.controllers").exists())
            .map(str::to_string)?,
        named => format!("/sys/fs/cgroup/{}", named.trim_start_matches("name=")),
    };
    Some(format!("{mount}{}/cgroup.procs", path.trim_end_matches('/')))
}
