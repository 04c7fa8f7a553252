//! Demand against capacity: how many times the busiest minute a server bears, workers, machines, waits in a burst, and
//! when the limit is reached.
//!
//! Headroom is capacity / busiest minute. Workers are those busy in the busiest minute: by Little's law (Little, "A proof
//! for the queuing formula L = λW", 1961) rate × the time that a request holds one. Machines are as many as the busiest
//! minute (times a reserve) needs, and one more that may be down. The user at rank k of a burst is served after k /
//! capacity. `days` finds the days that can be compared, `trend` their growth and rhythm, `forecast` the day.

mod days;
mod demand;
#[cfg(test)]
mod fixtures;
mod forecast;
mod trend;

use lastdrop_model::Objective;
use lastdrop_model::demand::{RequestCounts, date};
use lastdrop_model::documents::{
    BurstWait, CapacityDocument, DayInterval, HEADROOM_SCHEMA, HeadroomDocument, HeadroomStep, StaircaseStep, StepKind,
};

pub use self::demand::DailyDemand;
use self::demand::{demand_of, first_day_above};
use self::forecast::DemandTrend;

/// With so many times the busiest minute, and no limit within [`SOON_DAYS`], nothing has to be done.
const AMPLE: f64 = 2.0;
const SOON_DAYS: i64 = 183;

/// Where the demand comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum DemandSource {
    Logs { files: Vec<String>, counts: RequestCounts },
    Daily(DailyDemand),
}

/// Where the capacity comes from.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum CapacitySource {
    #[default]
    Unknown,
    Given(f64),
    Measured(Box<CapacityDocument>),
}

/// All that a headroom is computed from.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadroomEvidence {
    pub url: String,
    pub objective: Vec<Objective>,
    pub demand: DemandSource,
    pub capacity: CapacitySource,
    /// Machines are counted for so many times the busiest minute.
    pub reserve: f64,
    /// Users of a burst, if the caller asks for one; otherwise the busiest second's.
    pub burst: Option<u64>,
    /// Workers that the server has, if known.
    pub workers: Option<u64>,
    pub notes: Vec<String>,
}

/// Computes the document.
#[must_use]
pub fn headroom(evidence: HeadroomEvidence) -> HeadroomDocument {
    let mut d = HeadroomDocument {
        schema: HEADROOM_SCHEMA.into(),
        url: evidence.url,
        objective: evidence.objective,
        notes: evidence.notes,
        ..HeadroomDocument::default()
    };
    let mut trend = Err("a number of requests a day says nothing about growth; --log does".to_string());
    let (mut counts, mut server_us) = (None, None);
    match evidence.demand {
        DemandSource::Daily(daily) => {
            d.demand = daily.demand();
            d.logs = vec!["--per-day".into()];
            d.assumptions.push(format!("the busiest minute is {} times as busy as the mean of the day", daily.peak));
        }
        DemandSource::Logs { files, counts: read } => {
            let whole = days::whole_days(&read);
            d.demand = demand_of(&read, &whole);
            d.logs = files;
            trend = DemandTrend::fit(&whole);
            if read.beyond > 0 {
                d.notes.push(format!("{} requests are on more days than are counted, and are left out", read.beyond));
            }
            server_us = read.server_us;
            counts = Some(read);
        }
    }
    if let Ok(trend) = &trend {
        d.demand.growth = Some(trend.growth());
        d.demand.rhythm = trend.rhythm();
    }
    let (mut stairs, mut lowest_failed) = (Vec::new(), None);
    match evidence.capacity {
        CapacitySource::Unknown => {}
        CapacitySource::Given(rps) => {
            d.capacity_rps = Some(rps);
            d.assumptions.push("the capacity is what --capacity says".into());
        }
        CapacitySource::Measured(found) => {
            d.capacity_rps = Some(found.capacity_rps).filter(|_| found.met);
            d.at_least = found.met && found.generator_limited;
            stairs.clone_from(&found.stairs);
            lowest_failed = Some(found.interval[1]);
            if !found.met {
                d.notes.push(format!("the capacity is not known: {}", found.reason));
            }
            d.notes.extend(found.notes.iter().cloned());
            d.capacity = Some(*found);
        }
    }
    let busiest = d.demand.busiest_minute_rps;
    if let Some((held_s, from)) = held(server_us, &stairs, busiest) {
        d.workers = Some(((busiest * held_s).ceil() as u64).max(u64::from(busiest > 0.0)));
        d.held_s = Some(held_s);
        d.held_from = from.into();
        d.assumptions
            .push("a request holds one worker for its whole time; idle keep-alive connections hold none".into());
    }
    match d.capacity_rps.filter(|c| *c > 0.0) {
        Some(capacity) if busiest > 0.0 => {
            against(&mut d, capacity, evidence.reserve, evidence.burst);
            let capacities = [capacity, lowest_failed.unwrap_or(capacity).max(capacity)];
            reached(&mut d, capacities, counts.as_ref(), &trend);
            let workers = evidence.workers.zip(d.workers).filter(|(has, needs)| needs > has);
            d.step = Some(step(&d, capacities, workers, trend.as_ref().ok()));
        }
        Some(_) => d.cannot_tell = "there is no demand".into(),
        None => {
            d.cannot_tell = match &trend {
                Err(why) => why.clone(),
                Ok(_) => "the capacity is not known; --url with --objective measures it, --capacity says it".into(),
            };
        }
    }
    d
}

/// Headroom, machines and the waits of a burst.
fn against(d: &mut HeadroomDocument, capacity: f64, reserve: f64, burst: Option<u64>) {
    let busiest = d.demand.busiest_minute_rps;
    d.headroom = Some(capacity / busiest);
    d.machines = Some((busiest * reserve / capacity).ceil().max(1.0) as u64 + 1);
    d.assumptions.push(format!(
        "machines: {}the busiest minute, spread evenly over machines like this one, of which one is down",
        if reserve == 1.0 { String::new() } else { format!("{reserve} times ") }
    ));
    let most = burst.unwrap_or(d.demand.peak_rps.ceil() as u64).max(1);
    let ranks = std::iter::successors(Some(1u64), |rank| rank.checked_mul(10)).take_while(|rank| *rank < most);
    d.burst = ranks.chain([most]).map(|rank| BurstWait { rank, wait_s: rank as f64 / capacity }).collect();
    d.assumptions.push("a burst comes at once, while nothing else is served, and is served at the capacity".into());
}

/// When the capacity is reached, which is between the rate that was held and the lowest that failed.
fn reached(
    d: &mut HeadroomDocument,
    capacity: [f64; 2],
    counts: Option<&RequestCounts>,
    trend: &Result<DemandTrend, String>,
) {
    if let Some(day) = counts.and_then(|counts| first_day_above(counts, capacity[0])) {
        d.reached = Some(DayInterval { from: date(day), to: date(day) });
        d.notes.push("the logs have minutes above the capacity already".into());
        return;
    }
    match trend.as_ref().map_err(Clone::clone).and_then(|trend| trend.reaches(capacity.map(|rps| rps * 60.0))) {
        Ok(days) => {
            d.reached = Some(interval(days));
            d.assumptions
                .push("demand goes on growing as in the logs, with their rhythm; the day ends an 80 % interval".into());
        }
        Err(why) => d.cannot_tell = why,
    }
}

fn interval([from, to]: [i64; 2]) -> DayInterval {
    DayInterval { from: date(from), to: date(to) }
}

/// The seconds that a request holds a worker at a rate, and where that is from: the log's own times, or the staircase of
/// a capacity search. Between two steps of the staircase the time is interpolated; above them all it is that of the
/// last step before users only add waiting.
fn held(server_us: Option<f64>, stairs: &[StaircaseStep], rate: f64) -> Option<(f64, &'static str)> {
    if let Some(us) = server_us.filter(|us| *us > 0.0) {
        return Some((us / 1e6, "the logs' own times"));
    }
    let good = |s: &&StaircaseStep| s.errors < 0.01 && s.rps > 0.0 && s.mean_us > 0.0;
    let mut rising: Vec<&StaircaseStep> = Vec::new();
    for step in stairs.iter().filter(good) {
        // A step that adds less than a tenth to the throughput mostly adds waiting.
        if rising.last().is_none_or(|last| step.rps > 1.1 * last.rps) {
            rising.push(step);
        }
    }
    let above = rising.iter().position(|s| s.rps >= rate);
    let us = match above {
        Some(0) => rising.first()?.mean_us,
        Some(i) => {
            let (a, b) = (rising[i - 1], rising[i]);
            a.mean_us + (b.mean_us - a.mean_us) * (rate - a.rps) / (b.rps - a.rps)
        }
        None => rising.last()?.mean_us,
    };
    Some((us / 1e6, "the search for the capacity"))
}

/// The step that brings most, only from what is known: too few workers, a generator at its limit, too little capacity.
fn step(
    d: &HeadroomDocument,
    capacity: [f64; 2],
    short: Option<(u64, u64)>,
    trend: Option<&DemandTrend>,
) -> HeadroomStep {
    let now = capacity[0] / d.demand.busiest_minute_rps;
    if let Some((has, needs)) = short {
        let reason = format!("the busiest minute keeps {needs} workers busy, and the server has {has}");
        return HeadroomStep { what: StepKind::Workers, reason, ..HeadroomStep::default() };
    }
    if d.at_least {
        let reason = "the load generator was at its limit, so the server may bear more: use more threads (-t) or another machine";
        return HeadroomStep { what: StepKind::Measure, reason: reason.into(), ..HeadroomStep::default() };
    }
    let last = d.demand.end_unix_s.div_euclid(lastdrop_model::demand::DAY_S);
    let soon = d.reached.as_ref().is_some_and(|r| r.from <= date(last + SOON_DAYS));
    if now >= AMPLE && !soon {
        let reason = format!("the server bears {now:.1} times the busiest minute");
        return HeadroomStep { what: StepKind::None, reason, ..HeadroomStep::default() };
    }
    let reason = "a second machine like this one doubles the capacity, if the load spreads evenly";
    let later = trend.and_then(|trend| trend.reaches(capacity.map(|rps| 2.0 * rps * 60.0)).ok());
    HeadroomStep {
        what: StepKind::Machine,
        reason: reason.into(),
        headroom: Some(2.0 * now),
        reached: later.map(interval),
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{Course, counts_of};
    use super::*;

    fn evidence(demand: DemandSource, capacity: CapacitySource) -> HeadroomEvidence {
        HeadroomEvidence {
            url: String::new(),
            objective: Vec::new(),
            demand,
            capacity,
            reserve: 1.0,
            burst: None,
            workers: None,
            notes: Vec::new(),
        }
    }

    fn logs(counts: RequestCounts) -> DemandSource {
        DemandSource::Logs { files: vec!["access.log".into()], counts }
    }

    fn daily(requests: f64) -> DemandSource {
        DemandSource::Daily(DailyDemand { requests, peak: 3.0, answer_bytes: None })
    }

    fn stair(users: u32, rps: f64, mean_us: f64) -> StaircaseStep {
        StaircaseStep { users, rps, mean_us, p50_us: mean_us, p99_us: mean_us, errors: 0.0, run: String::new() }
    }

    #[test]
    fn a_day_of_requests_becomes_machines_and_waits() {
        // 8,640,000 a day: 100/s, 300/s in the busiest minute.
        let mut asked = evidence(daily(8_640_000.0), CapacitySource::Given(250.0));
        asked.burst = Some(5000);
        let d = headroom(asked);
        assert_eq!((d.capacity_rps, d.machines), (Some(250.0), Some(3)));
        assert!((d.headroom.expect("known") - 0.8333).abs() < 1e-3);
        let waits: Vec<(u64, f64)> = d.burst.iter().map(|b| (b.rank, b.wait_s)).collect();
        assert_eq!(waits, [(1, 0.004), (10, 0.04), (100, 0.4), (1000, 4.0), (5000, 20.0)]);
        assert_eq!(d.step.as_ref().map(|s| s.what), Some(StepKind::Machine));
        assert!(d.reached.is_none() && d.cannot_tell.contains("--log"), "{d:?}");
        assert_eq!(d.workers, None);
        let mut asked = evidence(daily(8_640_000.0), CapacitySource::Given(250.0));
        asked.reserve = 2.0;
        assert_eq!(headroom(asked).machines, Some(4));
    }

    #[test]
    fn without_a_capacity_there_is_the_demand_alone() {
        let d = headroom(evidence(logs(counts_of(&Course::default(), 1)), CapacitySource::Unknown));
        assert_eq!((d.capacity_rps, d.headroom, d.workers, d.machines), (None, None, None, None));
        assert!(d.demand.growth.is_some() && d.demand.rhythm.len() == 7 && d.step.is_none());
        assert!(d.cannot_tell.contains("--capacity"), "{d:?}");
    }

    #[test]
    fn the_busiest_minute_of_a_log_is_within_a_few_percent_of_the_truth() {
        let course = Course { noise: 0.01, ..Course::default() };
        for seed in 0..40 {
            let d = headroom(evidence(logs(counts_of(&course, seed)), CapacitySource::Given(100.0)));
            let ratio = d.demand.busiest_minute_rps * 60.0 / course.busiest_minute();
            // The busiest of many minutes is above the rate behind it by chance.
            assert!((0.97..1.15).contains(&ratio), "{ratio}");
            assert_eq!(d.headroom, Some(100.0 / d.demand.busiest_minute_rps));
        }
    }

    #[test]
    fn little_s_law_gives_the_workers() {
        let with_times = RequestCounts { server_us: Some(50_000.0), ..counts_of(&Course::default(), 1) };
        let d = headroom(evidence(logs(with_times), CapacitySource::Unknown));
        assert_eq!(d.workers, Some((d.demand.busiest_minute_rps * 0.05).ceil() as u64));
        // Four workers of 20 ms: more users only wait.
        let stairs =
            [stair(1, 50.0, 20_000.0), stair(2, 99.0, 20_200.0), stair(4, 195.0, 20_500.0), stair(8, 197.0, 40_600.0)];
        assert_eq!(held(None, &stairs, 30.0).map(|h| h.0), Some(0.02));
        let between = held(None, &stairs, 147.0).expect("known").0;
        assert!((between - 0.02035).abs() < 1e-4, "{between}");
        assert_eq!(held(None, &stairs, 500.0).map(|h| h.0), Some(0.0205));
        assert_eq!(held(None, &[], 500.0), None);
    }

    #[test]
    fn what_is_beyond_the_capacity_already_is_said() {
        let counts = counts_of(&Course::default(), 1);
        let d = headroom(evidence(logs(counts), CapacitySource::Given(10.0)));
        let reached = d.reached.expect("at once");
        assert_eq!((reached.from.as_str(), reached.to.as_str()), ("2026-01-05", "2026-01-05"));
    }

    #[test]
    fn a_step_is_what_the_evidence_allows() {
        let what = |asked: HeadroomEvidence| headroom(asked).step.map(|s| s.what);
        assert_eq!(what(evidence(daily(864_000.0), CapacitySource::Given(250.0))), Some(StepKind::None));
        let with_times = RequestCounts { server_us: Some(500_000.0), ..counts_of(&Course::default(), 1) };
        let mut few = evidence(logs(with_times), CapacitySource::Given(1000.0));
        few.workers = Some(4);
        assert_eq!(what(few), Some(StepKind::Workers));
        let found =
            CapacityDocument { met: true, capacity_rps: 40.0, generator_limited: true, ..CapacityDocument::default() };
        let limited = evidence(daily(864_000.0), CapacitySource::Measured(Box::new(found)));
        assert_eq!(what(limited), Some(StepKind::Measure));
        let none = CapacityDocument { reason: "no rate meets p99<1ms".into(), ..CapacityDocument::default() };
        let d = headroom(evidence(daily(864_000.0), CapacitySource::Measured(Box::new(none))));
        assert!(d.headroom.is_none() && d.step.is_none() && d.notes[0].contains("no rate meets"), "{d:?}");
    }

    #[test]
    fn an_empty_log_is_no_demand() {
        let d = headroom(evidence(logs(RequestCounts::default()), CapacitySource::Given(10.0)));
        assert_eq!((d.headroom, d.machines, d.reached), (None, None, None));
        assert_eq!(d.cannot_tell, "there is no demand");
    }
}
