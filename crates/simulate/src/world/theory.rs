//! The simulated servers against queueing theory, and the accounts of the client.

use std::time::Duration;

use lastdrop_model::plan::{Arrival, Load, Phase};
use lastdrop_model::request::ThinkTime;
use lastdrop_model::run::RunBuilder;
use lastdrop_model::{Counts, Event, Histogram, Kind, Plan, Url};

use super::*;

/// Servers that cost nothing but this CPU, in as many workers as are ever needed.
fn processors(cores: u32, cpu_us: f64, cpu_spread: f64) -> WorldPlan {
    let pool = PoolPlan {
        workers: 1_000,
        cpu_us,
        cpu_spread,
        wait_us: 0.0,
        cold_us: 0.0,
        switch_cost: 0.0,
        worker_mb: 0.0,
        ..PoolPlan::default()
    };
    WorldPlan { cores, front: None, pool, ..WorldPlan::default() }
}

fn plan(load: Load, seconds: f64) -> Plan {
    let mut plan = Plan::new(Url { tls: false, host: "localhost".into(), port: 80, path: "/".into() }, 1);
    plan.phases[0].load = load;
    plan.phases[0].duration = Some(Duration::from_secs_f64(seconds));
    plan
}

/// Sums of one phase.
#[derive(Debug, Clone, Default, PartialEq)]
struct PhaseSum {
    counts: Counts,
    responses: Vec<(u64, u64)>,
    mean_us: f64,
    blocked_us: u64,
    seconds: Vec<u32>,
    end: Option<(u64, u64)>,
}

/// Puts a load on servers. Returns the sums of each phase.
fn run(world: &mut World, plan: &Plan) -> Vec<PhaseSum> {
    let mut sums = vec![PhaseSum::default(); plan.phases.len()];
    let mut responses = vec![Histogram::new(); plan.phases.len()];
    world.load(
        plan,
        &mut |event| match event {
            Event::Second { slice } => {
                let sum = &mut sums[usize::from(slice.phase)];
                sum.counts.add(&slice.counts);
                sum.seconds.push(slice.second);
                sum.blocked_us = sum.blocked_us.max(slice.latencies[Kind::Blocked as usize].max());
                responses[usize::from(slice.phase)].add(&slice.latencies[Kind::Response as usize]);
            }
            Event::PhaseEnd { phase, duration_us, peak } => sums[*phase].end = Some((*duration_us, *peak)),
            other => panic!("{other:?}"),
        },
        &|| false,
    );
    for (sum, responses) in sums.iter_mut().zip(&responses) {
        (sum.responses, sum.mean_us) = (responses.recorded().collect(), responses.mean());
        let c = &sum.counts;
        assert_eq!(c.due, c.answered + c.failed.total() + c.timed_out + c.censored() + c.unsent(), "{c:?}");
        assert!(sum.seconds.iter().copied().eq(0..sum.seconds.len() as u32), "{:?}", sum.seconds);
    }
    sums
}

fn first(plan: &WorldPlan, load: &Plan) -> PhaseSum {
    run(&mut World::new(plan, 1), load).swap_remove(0)
}

/// Answers per second of a closed load.
fn closed_rate(plan_of_world: &WorldPlan, users: u32, seconds: f64) -> f64 {
    first(plan_of_world, &plan(Load::closed(users), seconds)).counts.answered_in_time as f64 / seconds
}

fn assert_near(found: f64, expected: f64, share: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < share, "{what}: {found}, {expected} by theory");
}

/// Stationary distribution of a birth-death process, from its rates up and down.
fn birth_death(states: usize, up: impl Fn(usize) -> f64, down: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut p = vec![1.0];
    for n in 1..states {
        p.push(p[n - 1] * up(n - 1) / down(n));
    }
    let sum: f64 = p.iter().sum();
    p.iter().map(|x| x / sum).collect()
}

#[test]
fn an_open_load_on_processors_is_m_m_c() {
    // With a queue before as many workers as processors, and with processor sharing: the same number of requests inside.
    let (cores, cpu_us, rate) = (3u32, 1_000.0, 2_100.0);
    let inside = birth_death(400, |_| rate, |n| n.min(cores as usize) as f64 * 1e6 / cpu_us);
    let mean = inside.iter().enumerate().map(|(n, p)| n as f64 * p).sum::<f64>();
    for workers in [cores, 1_000] {
        let mut servers = processors(cores, cpu_us, 1.0);
        servers.pool.workers = workers;
        let found = first(&servers, &plan(Load::open(rate, Arrival::Poisson, 1_000), 120.0));
        assert_near(found.mean_us, 1e6 * mean / rate, 0.02, "mean response");
        assert_near(found.counts.answered as f64 / 120.0, rate, 0.01, "throughput");
    }
}

#[test]
fn processor_sharing_does_not_care_how_much_service_times_vary() {
    // M/G/1-PS: mean response s/(1-ρ) for any distribution (Kleinrock 1976, 4.4).
    for spread in [0.0, 0.5, 1.5] {
        let servers = processors(1, 1_000.0, spread);
        let found = first(&servers, &plan(Load::open(600.0, Arrival::Poisson, 1_000), 400.0));
        assert_near(found.mean_us, 1_000.0 / 0.4, 0.02, "mean response");
    }
}

#[test]
fn a_closed_load_with_think_time_is_the_machine_repair_model() {
    let (users, cores, cpu_us, think_us) = (20u32, 2u32, 1_000.0, 8_000.0);
    let inside = birth_death(
        users as usize + 1,
        |n| (f64::from(users) - n as f64) / think_us,
        |n| n.min(cores as usize) as f64 / cpu_us,
    );
    let rate = 1e6 / think_us * inside.iter().enumerate().map(|(n, p)| (f64::from(users) - n as f64) * p).sum::<f64>();
    let mean = inside.iter().enumerate().map(|(n, p)| n as f64 * p).sum::<f64>();
    let mut load = plan(Load::closed(users), 100.0);
    load.think = Some(ThinkTime::Exponential(Duration::from_micros(think_us as u64)));
    let found = first(&processors(cores, cpu_us, 1.0), &load);
    assert_near(found.counts.answered_in_time as f64 / 100.0, rate, 0.02, "throughput");
    assert_near(found.mean_us, 1e6 * mean / rate, 0.02, "mean response");
}

#[test]
fn littles_law_holds_for_a_closed_load() {
    for (users, workers) in [(5, 20), (30, 12), (60, 7)] {
        let mut servers = WorldPlan { backend: Some(BackendPlan::default()), ..WorldPlan::default() };
        (servers.pool.workers, servers.pool.backlog) = (workers, 100);
        servers.pool.locked_share = 0.1;
        let found = first(&servers, &plan(Load::closed(users), 60.0));
        let inside = found.counts.answered_in_time as f64 / 60e6 * found.mean_us;
        assert_near(inside, f64::from(users), 0.01, "requests inside");
    }
}

#[test]
fn few_workers_and_one_lock_and_few_connections_bound_the_throughput() {
    // Workers: each is held for its CPU and its wait.
    let mut servers = processors(16, 1_000.0, 0.0);
    (servers.pool.workers, servers.pool.wait_us, servers.pool.wait_spread) = (5, 9_000.0, 1.0);
    assert_near(closed_rate(&servers, 50, 60.0), 5.0 / 0.010, 0.01, "workers");
    // The lock: one request at a time for 0.4 ms.
    let mut servers = processors(16, 1_000.0, 1.0);
    servers.pool.locked_share = 0.4;
    assert_near(closed_rate(&servers, 50, 60.0), 1.0 / 0.000_4, 0.01, "lock");
    // The database: three requests at a time for 5 ms.
    let mut servers = processors(16, 100.0, 0.0);
    servers.backend =
        Some(BackendPlan { connections: 3, cpu_us: 1_000.0, cpu_spread: 0.0, wait_us: 4_000.0, wait_spread: 0.5 });
    assert_near(closed_rate(&servers, 50, 60.0), 3.0 / 0.005, 0.01, "connections");
    // The proxy and the pool share the processors.
    let mut servers = processors(2, 700.0, 1.0);
    servers.front = Some(FrontPlan { cpu_us: 300.0 });
    assert_near(closed_rate(&servers, 50, 60.0), 2.0 / 0.001, 0.01, "processors");
}

#[test]
fn more_workers_help_until_they_cost_more_than_they_bring() {
    let servers = WorldPlan::default();
    let rate = |workers| {
        let mut servers = servers.clone();
        servers.pool.workers = workers;
        closed_rate(&servers, 100, 40.0)
    };
    let (few, good, many, too_many) = (rate(5), rate(20), rate(45), rate(60));
    assert!(good > 2.0 * few && many < 0.99 * good, "{few} {good} {many}");
    // 60 workers need 2500 MB of 2000: the pool swaps.
    assert!(too_many < 0.3 * good, "{too_many} of {good}");
}

#[test]
fn the_same_seed_is_the_same_world() {
    let noise = NoisePlan {
        start_spread: 0.05,
        drift: 0.05,
        neighbour_cores: 1.0,
        neighbour_on_s: 2.0,
        neighbour_off_s: 3.0,
        steal: 0.05,
    };
    let servers = WorldPlan { backend: Some(BackendPlan::default()), noise, ..WorldPlan::default() };
    let all = |seed| {
        let mut world = World::new(&servers, seed);
        let mut sums = run(&mut world, &plan(Load::closed(20), 5.0));
        world.apply(12, 50);
        let warmed = world.warm_each();
        sums.append(&mut run(&mut world, &plan(Load::open(300.0, Arrival::Poisson, 50), 5.0)));
        (sums, warmed, world.now(), world.settings(), world.usage().others_us)
    };
    let (one, other) = (all(1), all(2));
    assert_eq!(one, all(1));
    assert_ne!(one.0, other.0);
    assert_eq!(one.1, 12);
    assert!(one.3.start_factor != 1.0 && one.3.workers == 12 && one.4 > 0.0, "{one:?}");
}

#[test]
fn a_neighbour_slows_a_load_by_the_processors_that_it_uses() {
    let mut servers = processors(4, 1_000.0, 1.0);
    servers.noise = NoisePlan { neighbour_cores: 2.0, neighbour_on_s: 1.0, ..NoisePlan::default() };
    let mut world = World::new(&servers, 1);
    let rate = run(&mut world, &plan(Load::closed(6), 60.0))[0].counts.answered_in_time as f64 / 60.0;
    // Six jobs and two of the neighbour share four processors.
    let others = |world: &World| world.usage().others_us / world.usage().now_us;
    assert_near(others(&world), 1.0, 0.01, "processors of the neighbour");
    assert_near(rate, 3_000.0, 0.01, "throughput");
    servers.noise = NoisePlan { steal: 0.2, ..NoisePlan::default() };
    let mut world = World::new(&servers, 1);
    let rate = run(&mut world, &plan(Load::closed(6), 60.0))[0].counts.answered_in_time as f64 / 60.0;
    let stolen = others(&world);
    assert!(world.usage().stolen_us == world.usage().others_us);
    assert_near(rate, (4.0 - stolen) * 1_000.0, 0.01, "throughput");
}

#[test]
fn a_timeout_a_full_listen_queue_and_an_end_leave_exact_accounts() {
    // 200 users of two workers for 10 ms each, and a listen queue of 20.
    let mut servers = processors(2, 10_000.0, 0.0);
    (servers.pool.workers, servers.pool.backlog) = (2, 20);
    let mut load = plan(Load::closed(200), 10.0);
    load.timeout = Duration::from_millis(1_500);
    load.drain = Duration::from_millis(200);
    let found = first(&servers, &load);
    let c = found.counts;
    assert!(c.timed_out > 100 && c.censored() > 0 && c.answered > 1_500, "{c:?}");
    assert_eq!((c.due, found.end), (c.sent, Some((10_000_000, 200))));
    // An answer after a retry took more than a second.
    assert!(found.responses.iter().any(|(us, n)| (1_000_000..1_400_000).contains(us) && *n > 0));

    // An open load beyond the capacity: most requests wait for a connection, and their time goes on.
    let mut load = plan(Load::open(400.0, Arrival::Uniform, 10), 5.0);
    load.drain = Duration::from_secs(1);
    let found = first(&servers, &load);
    let c = found.counts;
    assert_eq!((c.due, c.answered, c.censored()), (2_000, c.sent, 0));
    assert!((990..=1_015).contains(&c.sent) && found.blocked_us > 2_000_000, "{c:?} {}", found.blocked_us);
}

#[test]
fn a_number_of_requests_is_exact_in_either_loop() {
    let servers = WorldPlan::default();
    for load in [
        Load::closed(7),
        Load::closed(100),
        Load::Closed { users: 40, to_users: None, connections: Some(3) },
        Load::open(200.0, Arrival::Poisson, 4),
    ] {
        for duration in [None, Some(Duration::from_secs(60))] {
            let mut plan = plan(load.clone(), 1.0);
            (plan.phases[0].duration, plan.phases[0].requests) = (duration, Some(50));
            let found = first(&servers, &plan);
            let c = found.counts;
            assert_eq!((c.due, c.sent, c.answered), (50, 50, 50), "{load:?}");
            let (duration_us, peak) = found.end.expect("an end");
            assert!(duration_us < 2_000_000 && peak <= 50, "{duration_us} {peak}");
        }
    }
}

#[test]
fn phases_follow_each_other_and_keep_their_own_requests() {
    let mut plan = plan(Load::closed(10), 2.0);
    let phase = |load, seconds| Phase {
        name: "next".into(),
        measured: true,
        load,
        requests: None,
        duration: Some(Duration::from_secs_f64(seconds)),
    };
    plan.phases.push(phase(Load::open(2_000.0, Arrival::Uniform, 30), 1.5));
    plan.phases.push(phase(Load::open(100.0, Arrival::Poisson, 100), 1.0));
    plan.phases.push(phase(Load::Closed { users: 0, to_users: Some(60), connections: None }, 3.0));
    plan.phases.push(phase(Load::Closed { users: 20, to_users: None, connections: Some(5) }, 1.0));
    let mut world = World::new(&WorldPlan::default(), 1);
    let found = run(&mut world, &plan);
    let ends: Vec<u64> = found.iter().map(|sum| sum.end.expect("an end").0).collect();
    assert_eq!(ends, [2_000_000, 1_500_000, 1_000_000, 3_000_000, 1_000_000]);
    assert_eq!(found[1].counts.due, 3_000);
    let peaks: Vec<u64> = found.iter().map(|sum| sum.end.expect("an end").1).collect();
    assert!(peaks[0] == 10 && peaks[1] == 30 && (50..=100).contains(&peaks[3]), "{peaks:?}");
    // Nothing is lost between phases, and answers in time are counted where they arrive.
    let in_time: u64 = found.iter().map(|sum| sum.counts.answered_in_time).sum();
    let answered: u64 = found.iter().map(|sum| sum.counts.answered).sum();
    assert!(in_time <= answered && answered - in_time <= 30);
    // A report can be made of it.
    let mut builder = RunBuilder::new(&plan);
    World::new(&WorldPlan::default(), 1).load(
        &plan,
        &mut |event| match event {
            Event::Second { slice } => builder.add(slice),
            Event::PhaseEnd { phase, duration_us, peak } => builder.end_phase(*phase, *duration_us, *peak),
            _ => {}
        },
        &|| false,
    );
    assert_eq!(builder.into_reports().len(), 5);
}

#[test]
fn a_caller_who_has_seen_enough_ends_a_load() {
    let seconds = std::cell::Cell::new(0);
    let mut ends = Vec::new();
    let mut world = World::new(&WorldPlan::default(), 1);
    world.load(
        &plan(Load::closed(10), 60.0),
        &mut |event| match event {
            Event::Second { .. } => seconds.set(seconds.get() + 1),
            Event::PhaseEnd { duration_us, .. } => ends.push(*duration_us),
            _ => {}
        },
        &|| seconds.get() == 3,
    );
    assert_eq!((ends, world.now()), (vec![3_000_000], Duration::from_secs(3)));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "six million requests need optimised code")]
fn the_truth_is_that_of_theory_and_of_long_runs() {
    let mut servers = processors(4, 1_000.0, 1.0);
    servers.noise = NoisePlan { drift: 0.5, start_spread: 0.5, ..NoisePlan::default() };
    assert_near(true_rate(&servers, 2, 511, 50), 2_000.0, 0.005, "rate of two workers");
    // D/M/1: the share of requests with a response above t is exp(-μ(1-σ)t), with σ = exp(-μ(1-σ)/λ) (Kleinrock 1975, 6.4).
    let mut servers = processors(1, 1_000.0, 1.0);
    servers.pool.workers = 1;
    let p99_us = 15_000.0;
    let share_late = |rate: f64| {
        let mut sigma: f64 = 0.5;
        (0..500).for_each(|_| sigma = (-1_000.0 * (1.0 - sigma) / rate).exp());
        (-1_000.0 * (1.0 - sigma) * p99_us / 1e6).exp()
    };
    let mut bounds = (1.0, 999.0);
    for _ in 0..60 {
        let middle = (bounds.0 + bounds.1) / 2.0;
        if share_late(middle) < 0.01 { bounds.0 = middle } else { bounds.1 = middle }
    }
    assert_near(true_capacity(&servers, 1_000, p99_us, 0.01), bounds.0, 0.01, "capacity");
    // With a bound that no answer misses, it is the throughput of the processor.
    assert_near(true_capacity(&servers, 50, 4e6, 0.01), 1_000.0, 0.01, "capacity");
    // Half of all requests need longer without any load.
    assert_eq!(true_capacity(&servers, 1_000, 690.0, 0.01), 0.0);
}

/// CPU time of this thread, s.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number") / 1e9
}

/// How many requests per second of CPU time: `cargo test --release -p lastdrop-simulate --lib speed -- --ignored --nocapture`.
#[test]
#[ignore = "prints the speed of this machine"]
fn speed() {
    let backend = Some(BackendPlan::default());
    let all = [
        ("processors only", processors(4, 1_000.0, 1.0)),
        ("proxy, pool, wait", WorldPlan::default()),
        ("proxy, pool, wait, database", WorldPlan { backend, ..WorldPlan::default() }),
    ];
    for (name, servers) in all {
        let mut servers = servers;
        servers.pool.workers = 30;
        let began = cpu_s();
        let counts = first(&servers, &plan(Load::closed(50), 500.0)).counts;
        let spent = cpu_s() - began;
        println!("{name}: {:.2} million requests per second", counts.answered as f64 / spent / 1e6);
    }
}
