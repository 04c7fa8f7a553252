//! What is true of a world: measured without noise, for so long that chance plays no part.

use std::cell::Cell;
use std::time::Duration;

use lastdrop_model::plan::{Arrival, Load, Phase};
use lastdrop_model::{Event, Kind, Plan, Url};

use super::{World, WorldPlan};

/// Requests of each measurement.
const REQUESTS: f64 = 150_000.0;
/// Seeds of a rate.
const SEEDS: u64 = 4;
/// Most seeds of a rate of an open load that neither clearly holds nor clearly fails.
const MOST_SEEDS: u64 = 8;
/// How far the share of late answers of one measurement may be from that of an endless one, as a share of it. Late answers
/// come together: 1 % of 150,000 are some fifty independent ones, with a standard deviation of a seventh.
const CHANCE: f64 = 0.5;
/// Share of answers that p99 allows to be late.
const LATE: f64 = 0.01;
/// Precision of a capacity, as a share of it.
const PRECISION: f64 = 0.005;
/// Rates below this share of the throughput count as none.
const LOWEST: f64 = 0.001;
const SHORTEST_S: f64 = 20.0;

/// Returns the throughput, in answers per second, of a closed load of so many users with these settings: without noise, over
/// many simulated seconds after a warm-up, with several seeds. A request times out after 5 s, as in a plan's default.
#[must_use]
pub fn true_rate(plan: &WorldPlan, workers: u32, backlog: u32, users: u32) -> f64 {
    let mut quiet = plan.without_noise();
    (quiet.pool.workers, quiet.pool.backlog) = (workers, backlog);
    let load = Load::closed(users);
    let seconds = seconds_for(rate(&quiet, &load, 0, SHORTEST_S));
    (1..=SEEDS).map(|seed| rate(&quiet, &load, seed, seconds)).sum::<f64>() / SEEDS as f64
}

/// Returns the same from a single run of so many seconds, which is less precise and much faster: for choosing among many
/// settings.
#[must_use]
pub fn rough_rate(plan: &WorldPlan, workers: u32, backlog: u32, users: u32, seconds: f64) -> f64 {
    let mut quiet = plan.without_noise();
    (quiet.pool.workers, quiet.pool.backlog) = (workers, backlog);
    rate(&quiet, &Load::closed(users), 1, seconds)
}

/// Returns the highest rate per second of an open load (uniform arrivals) with the plan's own settings at which p99 of the
/// response is below `p99_us` and the share of requests without an answer is at most `errors`. Without noise, by bisection,
/// to 0.5 %. 0 if no rate is that good, or only one below a thousandth of the throughput.
#[must_use]
pub fn true_capacity(plan: &WorldPlan, connections: u32, p99_us: f64, errors: f64) -> f64 {
    let quiet = plan.without_noise();
    // More than this no load gets through. With many users requests may time out in the queue, or switches cost more.
    let most = |users: u32| {
        let closed = Load::closed(users);
        rate(&quiet, &closed, 1, seconds_for(rate(&quiet, &closed, 0, SHORTEST_S)))
    };
    let all = connections.max(1);
    let users = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < all).chain([all]);
    let mut high = 1.05 * users.map(most).fold(0.0, f64::max);
    let (mut low, lowest) = (0.0, LOWEST * high);
    while high - low > PRECISION * high && high > lowest {
        let middle = (low + high) / 2.0;
        if holds(&quiet, &Load::open(middle, Arrival::Uniform, connections), middle, p99_us, errors) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if low > 0.0 { (low + high) / 2.0 } else { 0.0 }
}

/// How long [`REQUESTS`] take at a rate.
fn seconds_for(rate_rps: f64) -> f64 {
    if rate_rps > 0.0 { (REQUESTS / rate_rps).max(SHORTEST_S) } else { SHORTEST_S }
}

fn rate(plan: &WorldPlan, load: &Load, seed: u64, seconds: f64) -> f64 {
    measure(plan, seed, load, seconds, u64::MAX, u64::MAX).in_time as f64 / seconds
}

/// Measures with one seed after the other until the result is clear.
fn holds(plan: &WorldPlan, load: &Load, rate_rps: f64, p99_us: f64, errors: f64) -> bool {
    let seconds = seconds_for(rate_rps);
    // Twice as many failures as allowed decide a measurement before its end.
    let most = (rate_rps * seconds * 2.0 * (LATE + errors)) as u64 + u64::from(load.most_concurrent());
    let mut sum = LoadSum::default();
    for seed in 1..=MOST_SEEDS {
        let found = measure(plan, seed, load, seconds, p99_us as u64, most);
        if found.late + found.missing() > most {
            return false;
        }
        sum.add(&found);
        let late = sum.late as f64 / sum.responses.max(1) as f64 / LATE;
        let missing = sum.missing() as f64 / sum.due.max(1) as f64;
        let margin = CHANCE / (seed as f64).sqrt();
        // More comes due than is answered: such a load is late in the end, however long p99 may be.
        let most_in_flight = seed as f64 * f64::from(load.most_concurrent());
        let grows = (sum.in_time as f64) < sum.due as f64 * (1.0 - PRECISION) - most_in_flight;
        if grows || late > 1.0 + margin || missing > errors * (1.0 + margin) {
            return false;
        }
        if late < 1.0 - margin && missing <= errors * (1.0 - margin) {
            return true;
        }
        if seed == MOST_SEEDS {
            return late < 1.0 && missing <= errors;
        }
    }
    false
}

/// What has become of the requests of a load.
#[derive(Debug, Clone, Copy, Default)]
struct LoadSum {
    due: u64,
    answered: u64,
    in_time: u64,
    /// Responses recorded, and those of them above the bound of p99.
    responses: u64,
    late: u64,
}

impl LoadSum {
    fn missing(&self) -> u64 {
        self.due - self.answered
    }

    fn add(&mut self, other: &LoadSum) {
        self.due += other.due;
        self.answered += other.answered;
        self.in_time += other.in_time;
        self.responses += other.responses;
        self.late += other.late;
    }
}

/// Measures a load for so many seconds, or until more than `most` requests are late or unanswered.
fn measure(plan: &WorldPlan, seed: u64, load: &Load, seconds: f64, late_us: u64, most: u64) -> LoadSum {
    let mut world = World::new(plan, seed);
    let mut run = Plan::new(Url { tls: false, host: "localhost".into(), port: 80, path: "/".into() }, seed);
    let phase = |name: &str, measured, seconds| Phase {
        name: name.into(),
        measured,
        load: load.clone(),
        requests: None,
        duration: Some(Duration::from_secs_f64(seconds)),
    };
    run.phases = vec![phase("warm-up", false, (seconds / 10.0).max(10.0)), phase("main", true, seconds)];
    let sum = Cell::new(LoadSum::default());
    let mut report = |event: &Event<'_>| {
        if let Event::Second { slice } = event
            && slice.phase == 1
        {
            let (counts, responses) = (&slice.counts, &slice.latencies[Kind::Response as usize]);
            let mut so_far = sum.get();
            so_far.add(&LoadSum {
                due: counts.due,
                answered: counts.answered,
                in_time: counts.answered_in_time,
                responses: responses.count(),
                late: responses.count_above(late_us),
            });
            sum.set(so_far);
        }
    };
    world.load(&run, &mut report, &|| sum.get().late + sum.get().missing() > most);
    sum.get()
}
