//! The watch after a tune: does it put back what proves bad, how soon, and only that?

use std::time::Duration;

use lastdrop_model::Experience;
use lastdrop_model::documents::WatchPeriod;

use super::machine::Worsening;
use super::shares::Claim;
use crate::rng::Rng;
use crate::world::World;

pub const BACK: &str = "watch puts back what proves bad";
pub const SOON: &str = "watch puts it back within 20 s";
pub const STAYS: &str = "watch puts back what is good";

pub const CLAIMS: [Claim; 3] = [
    Claim { name: BACK, least: 0.98, most: 1.0 },
    Claim { name: SOON, least: 0.90, most: 1.0 },
    Claim { name: STAYS, least: 0.0, most: 0.02 },
];

const SOON_S: f64 = 20.0;

/// A watch, and what becomes of the settings meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    pub time: Duration,
    pub worsens: Option<Worsening>,
}

impl Watch {
    pub fn draw(rng: &mut Rng) -> Watch {
        let time = Duration::from_secs(rng.between(60, 180));
        let after = Duration::from_secs(rng.between(5, 30));
        let factor = rng.between(40, 120) as f64 / 10.0;
        Watch { time, worsens: rng.in_thousand(500).then_some(Worsening { after, factor }) }
    }
}

/// Simulated seconds that tell the time of visits, after those of the start.
pub const TRUTH: Duration = Duration::from_secs(120);
const START: Duration = Duration::from_secs(5);
/// Visits that take so many times as long as with the original settings are bad.
const BAD: f64 = 2.0;

/// Returns what visitors experience for some time in a world with so many workers, each request costing `factor` times the CPU.
pub fn visits(mut world: World, (workers, backlog): (u32, u32), rate: f64, factor: f64, time: Duration) -> Experience {
    world.apply(workers, backlog);
    world.set_cpu_factor(factor);
    world.be_visited(rate, VISITORS);
    world.sleep(START);
    world.visited();
    world.sleep(time);
    world.visited()
}

/// Seed of the visitors whose times are a truth.
const VISITORS: u64 = 1;

/// Returns which claims held. `times` gives the median time of visits with the original settings, and that with those that were kept
/// at this factor of the processor time.
pub fn held(
    watch: Option<Watch>,
    seen: Option<&WatchPeriod>,
    times: impl Fn(f64) -> (u64, u64),
) -> Vec<(&'static str, bool)> {
    let Some((watch, seen)) = watch.zip(seen).filter(|(_, seen)| seen.during.requests > 0) else { return Vec::new() };
    let Some(Worsening { after, factor }) = watch.worsens else { return vec![(STAYS, seen.went_back)] };
    let (before_us, worse_us) = times(factor);
    if (worse_us as f64) < BAD * before_us as f64 {
        return Vec::new();
    }
    let soon = seen.went_back && seen.during.seconds <= after.as_secs_f64() + SOON_S;
    vec![(BACK, seen.went_back), (SOON, soon)]
}
