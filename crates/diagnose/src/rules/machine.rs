//! Rules about the machine that the generator runs on.

use lastdrop_model::Verdict;

use crate::rule::ValidityRule;

/// Maximum share of stolen CPU time (kernel-limits: repeat a trial when steal exceeds 2 to 3 %).
const MOST_STEAL: f64 = 0.02;
/// Maximum step of the wall clock, and maximum suspension of the machine. Longer ones spoil times.
const MOST_CLOCK_STEP_S: f64 = 0.1;
/// Maximum share of the processors that programs unrelated to the run may use; and the maximum number of cores.
const MOST_OTHERS: f64 = 0.05;
const MOST_OTHERS_CORES: f64 = 0.5;
/// Number of such programs that the message names.
const OTHERS_NAMED: usize = 3;

/// Generator and server share the processors.
pub(super) const CO_LOCATED: ValidityRule = ValidityRule {
    name: "co-located",
    of_generator: true,
    disturbs: false,
    look: |e| {
        let apart = e.pool.is_some_and(|p| !p.shares_cpus);
        (e.generator.co_located && !apart).then(|| {
            (
                Verdict::Doubtful,
                "generator and server share this machine".into(),
                "good for comparing settings; for absolute numbers load from another machine, or give each its own \
                 cores (taskset)"
                    .into(),
            )
        })
    },
};

/// The hypervisor took CPU time.
pub(super) const STEAL: ValidityRule = ValidityRule {
    name: "steal",
    of_generator: true,
    disturbs: true,
    look: |e| {
        let steal = e.generator.steal?;
        (steal > MOST_STEAL).then(|| {
            (
                Verdict::Doubtful,
                format!("the hypervisor took {:.1} % of the CPU time", steal * 100.0),
                "repeat the run, or compare in interleaved blocks".into(),
            )
        })
    },
};

/// Programs unrelated to the run used CPU time.
pub(super) const OTHERS_BUSY: ValidityRule = ValidityRule {
    name: crate::rule::OTHERS_BUSY,
    of_generator: true,
    disturbs: true,
    look: |e| {
        let g = e.generator;
        let cores = g.others_cores.filter(|c| *c >= others_threshold_cores(g.processors))?;
        let named: Vec<String> = g
            .others
            .iter()
            .take(OTHERS_NAMED)
            .map(|p| format!("{} {:.2} (process {})", p.name, p.cores, p.pid))
            .collect();
        let more = if g.others.len() > OTHERS_NAMED { " …" } else { "" };
        let list = if named.is_empty() { String::new() } else { format!(": {}{more}", named.join(", ")) };
        Some((
            Verdict::Doubtful,
            format!("other programs took {cores:.2} of {} processors meanwhile{list}", g.processors),
            "end them or wait for their end, and repeat the run; it may have been slower for their sake".into(),
        ))
    },
};

/// The clock was set or the machine was suspended, so times are wrong.
pub(super) const CLOCK: ValidityRule = ValidityRule {
    name: "clock",
    of_generator: true,
    disturbs: true,
    look: |e| {
        let (step, slept) = (e.generator.clock_step_s, e.generator.suspended_s);
        if slept > MOST_CLOCK_STEP_S {
            return Some((
                Verdict::Invalid,
                format!("the machine was suspended for {slept:.1} s during the run"),
                "repeat the run".into(),
            ));
        }
        (step.abs() > MOST_CLOCK_STEP_S).then(|| {
            (
                Verdict::Invalid,
                format!("the clock was set by {step:+.2} s during the run"),
                "repeat the run; see whether the clock is disciplined (chrony, ntpd)".into(),
            )
        })
    },
};

/// Returns the CPU use of unrelated programs, in cores, from which on it spoils a run on a machine with this many
/// processors.
#[must_use]
pub fn others_threshold_cores(processors: u64) -> f64 {
    (processors.max(1) as f64 * MOST_OTHERS).min(MOST_OTHERS_CORES)
}
