//! Process attributes besides rights: control groups, limits, processors, priority, umask.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use lastdrop_probe::process::{Birth, ResourceLimit};
use nix::sched::CpuSet;
use nix::unistd::Pid;

/// The attributes, prepared before the fork.
#[derive(Debug)]
pub struct ProcessAttributes {
    /// Open `cgroup.procs` files, by which a process enters a control group.
    cgroups: Vec<File>,
    limits: Vec<ResourceLimit>,
    processors: Option<CpuSet>,
    nice: i64,
    umask: Option<u32>,
}

impl ProcessAttributes {
    /// Attributes for the server itself.
    pub fn of(birth: &Birth) -> ProcessAttributes {
        let open = |(controllers, path): &(String, String)| {
            let file = cgroup_file(controllers, path)?;
            OpenOptions::new().write(true).open(file).ok()
        };
        ProcessAttributes {
            cgroups: birth.cgroups.iter().filter_map(open).collect(),
            ..ProcessAttributes::of_question(birth)
        }
    }

    /// Attributes for a question. It stays in lastdrop's control group, because the owner of the server's group may
    /// have frozen that.
    pub fn of_question(birth: &Birth) -> ProcessAttributes {
        let mut processors = CpuSet::new();
        for processor in &birth.cpus {
            let _ = processors.set(*processor);
        }
        ProcessAttributes {
            cgroups: Vec::new(),
            limits: birth.limits.clone(),
            processors: (!birth.cpus.is_empty()).then_some(processors),
            nice: birth.nice,
            umask: birth.umask,
        }
    }

    /// Takes the attributes on as far as allowed; otherwise lastdrop's own remain. For the child only, between fork and
    /// exec: makes only system calls.
    pub fn take(&self) {
        for group in &self.cgroups {
            // The kernel takes 0 as the writing process.
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

/// The file by which a process enters a control group, if it can be entered from here.
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
