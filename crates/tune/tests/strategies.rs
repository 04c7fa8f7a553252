//! Runs searches on planted surfaces and on surfaces measured on real servers, with noise, many times: the one that
//! ships must win. `SEEDS=100 cargo test -p lastdrop-tune --test strategies -- --nocapture` prints the table.

mod surfaces;

use lastdrop_tune::rivals::{CoordinateSearch, OneFactorSearch, ParzenSearch, RandomSearch};
use lastdrop_tune::{ExpectedImprovement, Finals, History, Point, Strategy, trials_of_finals};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use surfaces::{Surface, grids};

/// Trials of the search and its finals together, and finalists for whom trials are reserved.
const TRIALS: usize = 25;
const FINALISTS: usize = 3;
/// A search ends when it promises less than this.
const WORTH: f64 = 0.0002;

type StrategyFactory = fn(u64) -> Box<dyn Strategy>;

/// The one that ships, then its rivals.
const ALL: [StrategyFactory; 5] = [
    |seed| Box::new(ExpectedImprovement::new(seed, Vec::new(), WORTH)),
    |_| Box::new(CoordinateSearch::default()),
    |seed| Box::new(ParzenSearch::new(seed)),
    |seed| Box::new(RandomSearch::new(seed)),
    |_| Box::new(OneFactorSearch::new(TRIALS)),
];

fn normal(rng: &mut Xoshiro256PlusPlus) -> f64 {
    (0..12).map(|_| (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
}

/// Measures a surface, with noise.
struct NoisyServer<'a> {
    surface: &'a Surface,
    noise: f64,
    rng: Xoshiro256PlusPlus,
}

impl NoisyServer<'_> {
    fn new(surface: &Surface, noise: f64, seed: u64) -> NoisyServer<'_> {
        NoisyServer { surface, noise, rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x5eed) }
    }

    fn measure(&mut self, history: &mut History, point: Point) {
        let space = &self.surface.space;
        assert!(space.allows(&point) && space.canonical(point.clone()) == point, "{point:?}");
        let value = self.surface.throughput(&point).map(|x| x.ln() + self.noise * normal(&mut self.rng));
        history.trials.push((point, value));
    }

    /// Runs all trials of a search.
    fn searched(&mut self, strategy: &mut dyn Strategy) -> History {
        let mut history = History { noise: self.noise.max(0.001), ..History::default() };
        while history.trials.len() < TRIALS - trials_of_finals(FINALISTS)
            && let Some(point) = strategy.next(&self.surface.space, &history)
        {
            self.measure(&mut history, point);
        }
        history
    }
}

/// Returns the value of the chosen point without noise, as a share of the best, and the trials used.
fn chosen(surface: &Surface, best: f64, make: StrategyFactory, noise: f64, seed: u64) -> (f64, usize) {
    let (mut strategy, mut server) = (make(seed), NoisyServer::new(surface, noise, seed));
    let mut history = server.searched(strategy.as_mut());
    let mut finals = Finals::new(strategy.ranked(&surface.space, &history), &history, TRIALS - history.trials.len());
    while let Some(point) = finals.next(|| strategy.ranked(&surface.space, &history)) {
        server.measure(&mut history, point);
    }
    let winner = strategy.plain(&surface.space, &history, finals.winner().expect("a point"));
    (surface.throughput(&winner).expect("it counted") / best, history.trials.len())
}

/// Share of searches that reached 95 % of the best, and the mean result of all.
#[derive(Debug, Clone, Copy)]
struct Score {
    reached: f64,
    mean: f64,
}

/// Returns the scores, and a table of them by surface.
fn scores(surfaces: &[Surface], noise: f64, seeds: u64) -> ([Score; ALL.len()], String) {
    let mut sums = [Score { reached: 0.0, mean: 0.0 }; ALL.len()];
    let mut table = format!("noise {noise}: searches that reach 95 % of the best, mean, worst, trials\n");
    for surface in surfaces {
        let best = surface.best();
        let mut row = format!("{:58}", surface.name);
        for (make, sum) in ALL.iter().zip(&mut sums) {
            let all: Vec<(f64, usize)> = (0..seeds).map(|seed| chosen(surface, best, *make, noise, seed)).collect();
            let share = |of: &dyn Fn(&(f64, usize)) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
            let reached = share(&|(x, _)| f64::from(u8::from(*x >= 0.95)));
            let (mean, trials) = (share(&|(x, _)| *x), share(&|(_, n)| *n as f64));
            let worst = all.iter().map(|(x, _)| *x).fold(1.0, f64::min);
            row += &format!("  {:3.0}% {mean:.2} {worst:.2} {trials:2.0}", reached * 100.0);
            sum.reached += reached / surfaces.len() as f64;
            sum.mean += mean / surfaces.len() as f64;
        }
        table += &(row + "\n");
    }
    (sums, table)
}

/// Returns the number of searches on each surface, unless SEEDS says another.
fn seeds(usual: u64) -> u64 {
    std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn with_noise_the_one_that_ships_comes_nearest_to_the_best() {
    // The finals are part of the 25 trials: with much noise, five measurements less for the search cost it 4 % of the
    // seeds.
    for (noise, least) in [(0.05, 0.95), (0.1, 0.85)] {
        let ([ours, rivals @ ..], table) = scores(&surfaces::all(), noise, seeds(25));
        println!("{table}{ours:.3?} {rivals:.3?}");
        assert!(ours.reached >= least, "{ours:?}\n{table}");
        for rival in rivals {
            assert!(ours.reached > rival.reached + 0.05 && ours.mean > rival.mean, "{ours:?} {rival:?}");
        }
    }
}

#[test]
fn on_what_real_servers_were_measured_to_give_it_comes_to_the_best_and_beats_one_factor_at_a_time() {
    let grids = grids::all();
    // 25 trials cover most of a few dozen points in any way, and real servers mostly give a slope and a plateau, which
    // coordinate search climbs. So chance, TPE and coordinate search come about as far here, but ask for changes
    // without effect.
    for (noise, least) in [(0.05, 0.95), (0.1, 0.9)] {
        let ([ours, coordinate, parzen, chance, one_factor], table) = scores(&grids, noise, seeds(50));
        println!("{table}{ours:.3?} {coordinate:.3?} {parzen:.3?} {chance:.3?} {one_factor:.3?}");
        assert!(ours.reached >= least && ours.mean >= 0.97, "{ours:?}\n{table}");
        assert!(ours.reached > one_factor.reached + 0.1, "{ours:?}\n{table}");
        for rival in [coordinate, parzen, chance] {
            assert!(
                ours.reached > rival.reached - 0.03 && ours.mean > rival.mean - 0.01,
                "{ours:?} {rival:?}\n{table}"
            );
        }
    }
}

#[test]
fn a_search_goes_on_from_what_is_stored() {
    let surface = &surfaces::all()[0];
    for make in ALL {
        let whole = NoisyServer::new(surface, 0.05, 7).searched(make(7).as_mut());
        let mut strategy = make(7);
        let mut stored = History { noise: whole.noise, ..History::default() };
        for trial in &whole.trials {
            assert_eq!(strategy.next(&surface.space, &stored).as_ref(), Some(&trial.0), "{}", strategy.name());
            stored.trials.push(trial.clone());
        }
    }
}

#[test]
fn what_an_expert_would_try_comes_first_and_what_is_not_allowed_never() {
    let surface = surfaces::all().pop().expect("one with a limit");
    let moves = vec![vec![5, 3], surface.space.start(), vec![5, 3]];
    let last = |p: usize| surface.space.parameters[p].levels.len() - 1;
    let too_much = vec![last(0), last(1)];
    let moves = [moves, vec![too_much.clone()]].concat();
    let mut strategy = ExpectedImprovement::new(1, moves, WORTH);
    let history = NoisyServer::new(&surface, 0.05, 1).searched(&mut strategy);
    assert_eq!([&history.trials[0].0, &history.trials[1].0], [&surface.space.start(), &vec![5, 3]]);
    assert!(history.trials.iter().all(|(p, _)| *p != too_much));
    let mut once: Vec<_> = history.trials.iter().map(|(p, _)| p).collect();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), history.trials.len());
}

#[test]
fn what_brings_nothing_is_not_asked_for() {
    let surfaces = surfaces::all();
    let surface = surfaces.iter().find(|s| s.name.starts_with("eight settings")).expect("it is there");
    let idle = |p: &Point| surface.space.settings(p).keys().filter(|k| ["backlog", "x", "y"].contains(&&***k)).count();
    let (mut chosen, mut plain) = (0, 0);
    for seed in 0..20 {
        let mut strategy = ExpectedImprovement::new(seed, Vec::new(), WORTH);
        let history = NoisyServer::new(surface, 0.05, seed).searched(&mut strategy);
        let best = strategy.ranked(&surface.space, &history).swap_remove(0);
        let fewer = strategy.plain(&surface.space, &history, &best);
        assert!(surface.space.allows(&fewer) && fewer != surface.space.start(), "{fewer:?}");
        chosen += idle(&best);
        plain += idle(&fewer);
    }
    println!("changes of three settings that do nothing, in 20 searches: {chosen}, of these asked for: {plain}");
    assert!(chosen > 0 && plain * 10 <= chosen * 7, "{plain} of {chosen}");
}
