//! Events of an experiment, one line each, for a person who watches it run.

use std::collections::BTreeMap;

use lastdrop_model::Event;
use lastdrop_model::documents::Trial;
use lastdrop_model::event::{ExperimentDecision, GuardEvent, Outcome, RepeatScope, Stage, TrialBegan};
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_duration, show_us};

/// Returns the line for an event, without a newline; `None` if the event gets no line.
#[must_use]
pub fn event_line(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Experiment { what } => format!("· {what}"),
        Event::Stage { stage: Stage::Search } => "search:".into(),
        Event::Stage { stage: Stage::KeepAlive } => "KeepAlive, with clients that keep their connections:".into(),
        Event::Stage { stage: Stage::Race } => "race, baseline against best, each on a fresh start:".into(),
        Event::Stage { stage: Stage::Hold } => "the rate of the best, held on a fresh start:".into(),
        Event::Stage { stage: Stage::Steps } => "one small step at a time, judged by what visitors see:".into(),
        Event::Stage { stage: Stage::Before } => "how it does with the settings from before, to compare with:".into(),
        Event::Stage { stage: Stage::Watch } => "the better settings are in force and watched:".into(),
        Event::TrialBegan { trial } => began(trial)?,
        Event::TrialDone { outcome } => done(outcome),
        Event::Repeated { what: RepeatScope::Run, why, .. } => format!("     {why}: measured again"),
        Event::Repeated { what: RepeatScope::Rate, why, .. } => format!("     repeated: {why}"),
        Event::Decided { what: ExperimentDecision::RepeatNoMore, reason } => {
            format!("     {reason}: from here on nothing is measured again for that")
        }
        Event::Decided { what: ExperimentDecision::LongerBlocks, reason } => reason.to_string(),
        Event::Decided { what: ExperimentDecision::GoBack, reason } => format!("     going back: {reason}"),
        Event::Sized { size } => format!(
            "{} ({}, {}): {} workers use {} of real memory; {} fit into {} ({}){}{}",
            size.server,
            size.version,
            size.model,
            size.workers.count,
            show_bytes(size.real_memory_bytes),
            size.fitting() * size.threads_per_worker,
            show_bytes(size.budget_bytes),
            size.budget_from,
            if size.fits.is_none() { "; they have served nothing yet, so that is how many there are" } else { "" },
            size.workers_advice.as_ref().map_or_else(String::new, |advice| format!("; workers: {}", advice.line())),
        ),
        Event::Warmed { answered, workers } if answered < workers => {
            format!("{answered} of {workers} workers answered their first request")
        }
        // Interim states: the result of a pair, trial or experiment has its own event.
        Event::Leading { .. } | Event::Suspicion { .. } => return None,
        Event::Mark { mark } => format!("mark at {:.1} s: {}", mark.t_s, mark.text),
        Event::Recovering => "     waiting for the server to recover".into(),
        Event::Restoring => "putting the server back as it was found".into(),
        Event::Keeping { .. } => "keeping the better settings".into(),
        Event::Guard { seen } => guarding(seen),
        Event::Warmed { .. }
        | Event::Began { .. }
        | Event::Second { .. }
        | Event::Sample { .. }
        | Event::Exchanges { .. }
        | Event::Classes { .. }
        | Event::PhaseEnd { .. }
        | Event::Finding { .. }
        | Event::Ended { .. }
        | Event::Failed { .. }
        | Event::Visited { .. }
        | Event::Concluded { .. } => return None,
    })
}

/// Announces a trial that belongs to a numbered series, so that the reader sees how many are left. Other
/// trials get a line only when they end.
fn began(trial: &TrialBegan<'_>) -> Option<String> {
    if trial.role == "variant" {
        return Some(format!("variant {}", trial.series));
    }
    let of = trial.of?;
    let round = trial.round.map_or(String::new(), |n| format!("  round {n}"));
    let name = if trial.series.is_empty() { String::new() } else { format!("{}: ", trial.series) };
    let length =
        trial.requests.map_or_else(|| show_duration(trial.duration.unwrap_or_default()), |n| format!("{n} requests"));
    Some(format!(
        "{}/{of}{round}  {name}{} users, {length}, {}  {}",
        trial.number,
        trial.users,
        trial.changes(),
        short(&trial.url),
    ))
}

/// Cuts a URL with a long query.
fn short(url: &str) -> String {
    const LONGEST: usize = 80;
    if url.chars().count() <= LONGEST { url.into() } else { url.chars().take(LONGEST).chain(['…']).collect() }
}

fn done(outcome: &Outcome<'_>) -> String {
    match outcome {
        Outcome::Tune { trial } => tuned(trial),
        Outcome::Sweep { row } if row.run.is_empty() => format!("     refused: {}", row.note),
        Outcome::Sweep { row } => format!("     {:.1}/s  p99 {}  failed {}", row.rps, show_us(row.p99_us), row.failed),
        Outcome::Stair { stair } => format!(
            "{:>6} users   {:>9.1}/s  p50 {}  p99 {}",
            stair.users,
            stair.rps,
            show_us(stair.p50_us),
            show_us(stair.p99_us)
        ),
        Outcome::Capacity { step } => format!(
            "{:>10.1}/s for {:.0} s   p50 {}  p99 {}   {}",
            step.rate,
            step.seconds,
            show_us(step.p50_us),
            show_us(step.p99_us),
            if step.ok { "ok" } else { &step.why }
        ),
        Outcome::Compare { number, of, block } => {
            let show = |m: &BTreeMap<String, f64>| {
                let get = |name: &str| m.get(name).copied().unwrap_or(0.0);
                format!("{:.1}/s p50 {} p99 {}", get("rps"), show_us(get("p50_us")), show_us(get("p99_us")))
            };
            let spoiled = &block.spoiled;
            let spoiled = if spoiled.is_empty() { String::new() } else { format!("   spoiled, repeated: {spoiled}") };
            format!("{number}/{of}  A {}   B {}{spoiled}", show(&block.a), show(&block.b))
        }
        Outcome::Age { workers, step, of, point } => format!(
            "{workers} workers, age {step} of {of}: {:.0} requests each, {} private each",
            point.requests,
            show_bytes(point.private_bytes)
        ),
        Outcome::Pool { workers, requests, point } => format!(
            "{workers} workers after {requests:.0} requests each: {} and {} of the kernel's",
            show_bytes(point.pss_bytes),
            show_bytes(point.kernel_bytes),
        ),
    }
}

fn tuned(trial: &Trial) -> String {
    let shown = describe(&trial.settings);
    if trial.valid {
        format!("  {:>8.1}/s  p99 {:>8}  {shown}", trial.objective, show_us(trial.p99_us))
    } else if trial.run.is_empty() {
        format!("  refused: {}  ({shown})", trial.why)
    } else if trial.cut_short {
        format!("            cut short: {}  ({shown})", trial.why)
    } else {
        format!("  {:>8.1}/s  does not count: {}  ({shown})", trial.objective, trial.why)
    }
}

fn guarding(seen: &GuardEvent) -> String {
    match seen {
        GuardEvent::Started { server, workers, act } => {
            let how = if *act { "replacing" } else { "dry run: nothing is replaced without --act" };
            format!("guarding {server}: {workers} workers; {how}")
        }
        GuardEvent::Asked { pid, why, requests, age_s, real_memory, acted } => {
            let what = if *acted { "replacing" } else { "would replace" };
            let requests = requests.map_or(String::new(), |n| format!(", {n} requests"));
            let real = real_memory.map_or(String::new(), |b| format!("; the group has {}", show_bytes(b)));
            format!("{what} {pid}: {why} ({age_s:.0} s old{requests}{real})")
        }
        GuardEvent::Left { pid, after_s } => format!("{pid} has left after {after_s:.2} s"),
        GuardEvent::Killed { pid, signal } => format!("{pid} did not leave: {signal}"),
        GuardEvent::Restarted { master } => format!("the server was restarted: process {master} now"),
        GuardEvent::Gone => "the server has ended; waiting for it to come back".into(),
        GuardEvent::NoStatus => "without a status page it cannot be told that a worker is stuck".into(),
        GuardEvent::Blind { why } => format!("{why}; what the workers are at is not known now"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;
    use std::time::Duration;

    #[test]
    fn a_row_of_a_sweep_is_announced_and_a_trial_of_a_tune_is_not() {
        let mut trial = TrialBegan {
            number: 3,
            of: Some(8),
            round: Some(2),
            role: "sweep".into(),
            series: "heavy".into(),
            users: 4,
            duration: Some(Duration::from_millis(1500)),
            url: format!("http://10.0.0.1/?{}", "q".repeat(100)).into(),
            ..TrialBegan::default()
        };
        let line = |trial: &TrialBegan<'_>| event_line(&Event::TrialBegan { trial: trial.clone() });
        let shown = format!("3/8  round 2  heavy: 4 users, 1s 500ms, as it is  http://10.0.0.1/?{}…", "q".repeat(63));
        assert_eq!(line(&trial), Some(shown));
        trial.of = None;
        assert_eq!(line(&trial), None);
    }

    #[test]
    fn only_a_rate_that_is_not_met_says_why() {
        let mut step = lastdrop_model::documents::CapacityStep {
            rate: 1234.56,
            ok: false,
            role: "search".into(),
            seconds: 3.0,
            answered_rps: 1200.0,
            p50_us: 1500.0,
            p99_us: 900_000.0,
            errors: 0.0,
            why: "p99 is 900 ms".into(),
            run: String::new(),
        };
        let line = |step| event_line(&Event::TrialDone { outcome: Outcome::Capacity { step: Cow::Owned(step) } });
        assert!(
            line(step.clone())
                .is_some_and(|l| l.starts_with("    1234.6/s for 3 s ") && l.ends_with("   p99 is 900 ms"))
        );
        step.ok = true;
        assert!(line(step).is_some_and(|l| l.ends_with("   ok")));
    }
}
