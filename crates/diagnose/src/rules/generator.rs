//! Rules about the generator: was it the bottleneck?

use lastdrop_model::plan::Load;
use lastdrop_model::{Kind, Verdict};

use crate::rule::ValidityRule;

/// Share of a core above which a load thread counts as saturated.
const SATURATED_CORES: f64 = 0.95;
/// Maximum share of the time for which the generator may be throttled.
const MOST_THROTTLED: f64 = 0.01;
/// Lateness below this occurs on any machine.
const MOST_LATE_US: f64 = 1000.0;

/// A load thread was saturated.
pub(super) const GENERATOR_SATURATED: ValidityRule = ValidityRule {
    name: "generator-saturated",
    of_generator: true,
    disturbs: false,
    look: |e| {
        let cores = e.generator.busiest_thread_cores;
        if !e.generator.saturated {
            return None;
        }
        let open = e.plan.phases.iter().any(|p| p.measured && matches!(p.load, Load::Open { .. }));
        let verdict = if open { Verdict::Invalid } else { Verdict::Doubtful };
        Some((
            verdict,
            format!(
                "a load thread used {:.0} % of a core: this is the generator's limit, not the server's",
                cores * 100.0
            ),
            format!("use more threads (-t {}) or load from another machine", e.plan.threads + 1),
        ))
    },
};

/// The kernel throttled the generator.
pub(super) const THROTTLED: ValidityRule = ValidityRule {
    name: "throttled",
    of_generator: true,
    disturbs: true,
    look: |e| {
        let throttled = e.generator.throttled_s?;
        let share = throttled / e.phase?.duration_s.max(0.001);
        (share > MOST_THROTTLED).then(|| {
            (
                Verdict::Doubtful,
                format!("the generator's own cgroup was throttled for {throttled:.2} s"),
                "give it more CPU (cpu.max), or run it outside that group".into(),
            )
        })
    },
};

/// Requests left after they were due.
pub(super) const LATE: ValidityRule = ValidityRule {
    name: "late",
    of_generator: true,
    disturbs: true,
    look: |e| {
        let phase = e.phase?;
        let (late, service) = (phase.latency(Kind::Lateness, "p99")?, phase.latency(Kind::Service, "p50")?);
        (late > MOST_LATE_US && late > service).then(|| {
            (
                Verdict::Doubtful,
                format!("1 % of the requests left {:.1} ms or more after they were due", late / 1000.0),
                "use more threads (-t) or a quieter machine; response latency includes the delay".into(),
            )
        })
    },
};

/// Local ports ran short.
pub(super) const PORTS: ValidityRule = ValidityRule {
    name: "ports",
    of_generator: true,
    disturbs: false,
    look: |e| {
        let (ports, sources) = (e.generator.local_ports, e.plan.network.sources.len().max(1) as u64);
        let advice = "keep connections (--keepalive on), or add addresses: --source 127.0.0.2,127.0.0.3";
        let none = e.generator.shortage.ports;
        if none > 0 {
            let what =
                format!("{none} connections found no free local port: one address has {ports} of them for one server");
            return Some((Verdict::Doubtful, what, advice.into()));
        }
        // Open connections go to TIME_WAIT afterwards: the larger of the two numbers is in use, not their sum.
        let used = e.generator.time_wait.max(e.phase.map_or(0, |p| p.connections.peak));
        let opens = e.phase.is_some_and(|p| p.connections.opened > p.connections.peak);
        (ports > 0 && opens && used * 10 > ports * sources * 8).then(|| {
            let what = format!("{used} of {} local ports are in use or in TIME_WAIT", ports * sources);
            (Verdict::Doubtful, what, advice.into())
        })
    },
};

/// Open files ran short.
pub(super) const DESCRIPTORS: ValidityRule = ValidityRule {
    name: "descriptors",
    of_generator: true,
    disturbs: false,
    look: |e| {
        let (limit, peak) = (e.generator.descriptor_limit, e.phase?.connections.peak);
        let advice = "raise it (ulimit -n), or use fewer users (-c)";
        let waited = e.generator.shortage.descriptors;
        if waited > 0 {
            let what =
                format!("{waited} requests had to wait for a descriptor: this process may have {limit} open files");
            return Some((Verdict::Doubtful, what, advice.into()));
        }
        (limit > 0 && peak * 10 > limit * 9).then(|| {
            let what = format!("{peak} connections are close to the limit of {limit} open files");
            (Verdict::Doubtful, what, advice.into())
        })
    },
};

/// True if the generator was the bottleneck. `cores` is the CPU use of its busiest thread.
#[must_use]
pub fn saturated(cores: f64) -> bool {
    cores >= SATURATED_CORES
}
