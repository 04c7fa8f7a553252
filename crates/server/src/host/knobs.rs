//! The host's settings: what values each takes, where it is, and who shares it.
//!
//! Which of them each network namespace has for itself was tested on Linux 6.18: set in a new namespace and read
//! outside. `default_qdisc` does not exist in a new namespace and `nf_conntrack_max` cannot be written there, so they
//! belong to the machine, like everything outside networking. Effects are from the kernel's documentation (ip-sysctl,
//! nf_conntrack-sysctl, vm, fs).

use std::path::Path;

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, ReloadClass};

/// Who shares a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All processes in a network namespace.
    Namespace,
    /// All processes on the machine.
    Machine,
    /// Each process has its own value.
    Processes,
}

/// A setting of the host.
#[derive(Debug)]
pub struct HostKnob {
    pub knob: Knob,
    pub scope: Scope,
    /// The file to read and write; empty for a setting of processes.
    pub file: &'static str,
    /// Why lastdrop does not change it.
    pub refused: Option<&'static str>,
}

impl HostKnob {
    pub fn file(&self) -> &'static Path {
        Path::new(self.file)
    }

    /// True if sysctl has a name for it.
    pub fn is_sysctl(&self) -> bool {
        self.file.starts_with("/proc/sys/")
    }
}

/// The largest listen queue.
pub const SOMAXCONN: &str = "net.core.somaxconn";

/// The soft limit of open files.
pub const NOFILE: &str = "nofile";

/// The setting with this name.
pub fn named(name: &str) -> Option<&'static HostKnob> {
    KNOBS.iter().find(|k| k.knob.name == name)
}

const fn row(
    scope: Scope,
    name: &'static str,
    file: &'static str,
    takes: KnobValues,
    default: &'static str,
) -> HostKnob {
    let knob = Knob::new(name, takes, default, ReloadClass::Sysctl, "", "");
    HostKnob { knob, scope, file, refused: None }
}

impl HostKnob {
    const fn does(mut self, effect: &'static str) -> HostKnob {
        self.knob.effect = effect;
        self
    }

    const fn but(mut self, constraint: &'static str) -> HostKnob {
        self.knob.constraint = constraint;
        self
    }

    const fn for_findings(mut self, findings: &'static [&'static str]) -> HostKnob {
        self.knob.findings = findings;
        self
    }

    const fn refused(mut self, why: &'static str) -> HostKnob {
        self.refused = Some(why);
        self
    }
}

/// Largest number of seconds that fits the kernel's ticks.
const LONGEST_S: i64 = 2_147_483;

pub static KNOBS: &[HostKnob] = &[
    row(
        Scope::Namespace,
        SOMAXCONN,
        "/proc/sys/net/core/somaxconn",
        KnobValues::Count(1, 65_535),
        "4096",
    )
    .for_findings(&["accept-queue-overflow", "upstream-backlog-overflow"]).does("the largest accept queue that a listener may ask for, unix sockets included")
    .but("a listener has the limit of when it began to listen: it takes a new start of the server; and the server has to ask for as much"),
    row(
        Scope::Namespace,
        "net.ipv4.tcp_max_syn_backlog",
        "/proc/sys/net/ipv4/tcp_max_syn_backlog",
        KnobValues::Count(1, 1_048_576),
        "by memory",
    )
    .for_findings(&["accept-queue-overflow"]).does("handshakes of all clients that may be under way at a listener before new ones are dropped")
    .but("only with net.ipv4.tcp_syncookies 0; with cookies the listener's own backlog is the limit"),
    row(
        Scope::Namespace,
        "net.ipv4.ip_local_port_range",
        "/proc/sys/net/ipv4/ip_local_port_range",
        KnobValues::Range(1024, 65_535),
        "32768 60999",
    )
    .for_findings(&["port-exhaustion"]).does("ports for outgoing connections, as a proxy needs them: so many to one destination at once")
    .but("listeners inside the range need net.ipv4.ip_local_reserved_ports"),
    row(Scope::Namespace, "net.ipv4.tcp_tw_reuse", "/proc/sys/net/ipv4/tcp_tw_reuse", KnobValues::Count(0, 2), "2")
        .for_findings(&["port-exhaustion"]).does("a port in TIME_WAIT may be taken again after a second for an outgoing connection: 0 never, 1 always, 2 on loopback")
        .but("helps only who connects, such as a proxy; needs TCP timestamps"),
    row(Scope::Namespace, "net.ipv4.tcp_fin_timeout", "/proc/sys/net/ipv4/tcp_fin_timeout", KnobValues::Choice(&[]), "60")
        .does("seconds that a connection which its program has closed waits in FIN_WAIT_2 for the other end")
        .but("not changed by lastdrop: useless for TIME_WAIT, which is always 60 s")
        .refused(
            "it bounds FIN_WAIT_2 of connections that their program has closed, and is useless for TIME_WAIT, which is \
             always 60 s; for a shortage of ports: keep-alive to the upstream, net.ipv4.ip_local_port_range, \
             net.ipv4.tcp_tw_reuse",
        ),
    row(
        Scope::Namespace,
        "net.netfilter.nf_conntrack_tcp_timeout_established",
        "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
        KnobValues::Count(1, LONGEST_S),
        "432000",
    )
    .for_findings(&["conntrack-full"]).does("seconds for which an idle connection keeps its place in the connection table")
    .but("only where rules track connections; a connection idle for longer is cut off by stateful rules"),
    row(
        Scope::Namespace,
        "net.netfilter.nf_conntrack_tcp_timeout_time_wait",
        "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait",
        KnobValues::Count(1, LONGEST_S),
        "120",
    )
    .for_findings(&["conntrack-full"]).does("seconds for which a closed connection keeps its place in the connection table")
    .but("only where rules track connections"),
    row(
        Scope::Namespace,
        "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
        "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
        KnobValues::Count(1, LONGEST_S),
        "60",
    )
    .does("seconds for which a connection that one end has closed keeps its place in the connection table")
    .but("only where rules track connections"),
    row(Scope::Processes, NOFILE, "", KnobValues::Count(64, 1_073_741_816), "1024")
        .does("files and connections that a process may have open (soft limit): beyond it accept fails with EMFILE")
        .but("of the processes that run: not above their hard limit, and gone when they are started anew"),
    row(
        Scope::Machine,
        "net.netfilter.nf_conntrack_max",
        "/proc/sys/net/netfilter/nf_conntrack_max",
        KnobValues::Count(1024, 268_435_456),
        "by memory",
    )
    .for_findings(&["conntrack-full"]).does("places of the connection table; when it is full, packets of new connections are dropped")
    .but("--host-wide; some 256 bytes each, and the hash table stays as large as it is"),
    row(
        Scope::Machine,
        "net.core.default_qdisc",
        "/proc/sys/net/core/default_qdisc",
        KnobValues::Choice(&["pfifo_fast", "fq", "fq_codel", "cake", "sfq", "pfifo"]),
        "pfifo_fast",
    )
    .does("queueing discipline of network devices that come up from now on; fq paces what BBR sends")
    .but("--host-wide; devices that are up keep theirs, and loopback has none"),
    row(Scope::Machine, "fs.file-max", "/proc/sys/fs/file-max", KnobValues::Count(8192, i64::MAX), "by memory")
        .for_findings(&["fd-limit"]).does("files that all processes together may have open: beyond it everybody fails with ENFILE")
        .but("--host-wide; almost never the limit"),
    row(Scope::Machine, "vm.swappiness", "/proc/sys/vm/swappiness", KnobValues::Count(0, 200), "60")
        .for_findings(&["memory-pressure"]).does("how readily memory of programs is swapped out instead of dropping cached files")
        .but("--host-wide; without swap nothing"),
    row(
        Scope::Machine,
        "transparent_hugepage",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        KnobValues::Choice(&["always", "madvise", "never"]),
        "madvise",
    )
    .does("whether memory comes in pages of 2 MiB: fewer misses, but a forked worker that writes copies all of such a page")
    .but("--host-wide; memory that is there keeps its pages, so the server has to be started anew"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_says_where_it_is_and_what_it_does() {
        let mut names = BTreeSet::new();
        for row in KNOBS {
            let knob = &row.knob;
            assert!(names.insert(knob.name), "{} is there twice", knob.name);
            assert!(
                !knob.effect.is_empty() && !knob.constraint.is_empty() && !knob.default.is_empty(),
                "{}",
                knob.name
            );
            assert_eq!(row.file.is_empty(), row.scope == Scope::Processes, "{}", knob.name);
            if row.is_sysctl() {
                assert_eq!(row.file, format!("/proc/sys/{}", knob.name.replace('.', "/")));
            }
            let advised = knob.constraint.starts_with("--host-wide");
            assert_eq!(advised, row.scope == Scope::Machine, "{}", knob.name);
        }
    }
}
