//! The M/M/W queue: Erlang's formulas, and the queue itself in simulated time through lastdrop's own arrivals, recorder
//! and report.

use lastdrop_load::arrivals::{Arrivals, Profile};
use lastdrop_load::share::Shard;
use lastdrop_model::plan::Load;
use lastdrop_model::run::RunBuilder;
use lastdrop_model::{Arrival, Counts, Kind, Plan, Slice};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Mean and 99th percentile of the response time.
#[derive(Debug, Clone, Copy)]
pub struct Response {
    pub mean: f64,
    pub p99: f64,
}

/// Computes Erlang's C formula (the probability of waiting) and what follows from it: any wait is exponential with rate
/// Wμ(1 − ρ), and the response time is wait plus service. `service` is the mean service time, `load` is ρ.
pub fn erlang(workers: u32, load: f64, service: f64) -> Response {
    let offered = load * f64::from(workers);
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..workers {
        sum += term;
        term *= offered / f64::from(k + 1);
    }
    let waiting = term / (1.0 - load) / (sum + term / (1.0 - load));
    let (mu, theta) = (1.0 / service, f64::from(workers) / service * (1.0 - load));
    let beyond = |x: f64| {
        if (theta - mu).abs() < 1e-9 * mu {
            (1.0 + waiting * mu * x) * (-mu * x).exp()
        } else {
            (1.0 - waiting) * (-mu * x).exp()
                + waiting * (theta * (-mu * x).exp() - mu * (-theta * x).exp()) / (theta - mu)
        }
    };
    let (mut low, mut high) = (0.0, 10_000.0 * service);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if beyond(middle) > 0.01 { low = middle } else { high = middle }
    }
    Response { mean: service + waiting / theta, p99: low }
}

/// Simulates the queue for `seconds`, first come first served, from empty, and returns what the report contains, in
/// microseconds. Arrivals in the first `warm_up_s` are left out.
pub fn simulate(workers: u32, load: f64, service_us: f64, warm_up_s: f64, seconds: f64, seed: u64) -> Response {
    let rate = load * f64::from(workers) / service_us * 1e6;
    let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), seed);
    plan.phases[0].load = Load::open(rate, Arrival::Poisson, 1000);
    let mut arrivals = Arrivals::new(Arrival::Poisson, Profile::constant(rate), 1, seed, Shard::whole());
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x5851_f42d_4c95_7f2d);
    let mut free_at = vec![0.0f64; workers as usize];
    let mut slice = Slice::new(0, 0);
    let end = ((warm_up_s + seconds) * 1e6) as u64;
    while arrivals.next_due() < end {
        let due = arrivals.next_due();
        arrivals.advance();
        let first = free_at.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("a worker");
        let u = ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let done = first.max(due as f64) - service_us * u.ln();
        *first = done;
        if due as f64 >= warm_up_s * 1e6 {
            slice.record(Kind::Response, (done - due as f64).round() as u64);
            slice.counts.add(&Counts { due: 1, sent: 1, answered: 1, answered_in_time: 1, ..Counts::default() });
        }
    }
    let mut builder = RunBuilder::new(&plan);
    builder.add(&slice);
    builder.end_phase(0, (seconds * 1e6) as u64, workers.into());
    let phase = builder.into_reports().remove(0);
    let latency = |field| phase.latency(Kind::Response, field).unwrap_or(0.0);
    Response { mean: latency("mean"), p99: latency("p99") }
}
