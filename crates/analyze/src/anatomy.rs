//! Finds where requests spend their time, from moments at which the servers were read.
//!
//! At each moment, so many typical requests are in flight and so many slow ones, and so many threads wait for a place. If a
//! slow request is in that place for the share `f` of its time and a typical one for the share `g`, the expected number of
//! threads is `g` × typical + `f` × slow. Least squares over all moments give both shares, without knowing which thread serves
//! which request. Their errors come from a jackknife over stretches of time, as neighbouring moments see the same requests.

use lastdrop_model::Micros;
use lastdrop_model::run::{Anatomy, AnatomyPart, PartTime, RequestGroup};

/// Times of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestSpan {
    pub sent: Micros,
    pub in_flight: u32,
    /// Due → sent, sent → ready to be written, first byte → last byte.
    pub before: u32,
    pub connect: u32,
    pub transfer: u32,
}

/// The numbers of threads or requests in places at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moment {
    pub at: Micros,
    /// Index of the place, and the number in it; places without any are left out.
    pub counts: Vec<(u16, f32)>,
    /// The sockets were read, too.
    pub has_sockets: bool,
}

/// A place where requests may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestPlace {
    pub server: String,
    /// As in [`AnatomyPart::what`].
    pub what: String,
    pub peer: Option<String>,
    pub behind: bool,
    /// Other threads than those of requests may be there all the time: the smallest number is left out.
    pub has_residents: bool,
    /// It is a place in sockets, which not every moment has.
    pub is_socket: bool,
}

/// Slow requests take at least this many times what the median takes.
const SLOWER: f64 = 1.5;
/// Fewer slow requests say nothing.
const FEWEST_SLOW: usize = 5;
/// Most of the requests that can be called slow.
const MOST_SLOW: f64 = 0.2;
/// Stretches of time for the jackknife.
const STRETCHES: usize = 20;
/// States in which a thread has no request.
const WITHOUT_REQUEST: &[&str] = &["idle", "events", "client kept", "client"];

/// Finds the anatomy. The slow requests are those above the geometric mean of the median and of the median of the slowest
/// hundredth: between the two groups, if there are two.
#[must_use]
pub fn dissect(places: &[RequestPlace], moments: &[Moment], requests: &[RequestSpan]) -> Anatomy {
    let limit = slow_from(requests);
    let (slow, typical): (Vec<&RequestSpan>, Vec<&RequestSpan>) =
        requests.iter().partition(|r| limit.is_some_and(|limit| f64::from(r.in_flight) >= limit));
    let of_threads = sums(places, moments.iter(), &typical, &slow);
    let of_sockets = sums(places, moments.iter().filter(|m| m.has_sockets), &typical, &slow);
    let (mut of_typical, mut of_slow) = (group(&typical), group(&slow));
    let mut parts = Vec::new();
    for (i, place) in places.iter().enumerate().filter(|(_, p)| !WITHOUT_REQUEST.contains(&p.what.as_str())) {
        let stretches = if place.is_socket { &of_sockets } else { &of_threads };
        let (typical, slow) = times(stretches, i, &of_typical, limit.map(|_| &of_slow));
        if typical.us > 0.0 || slow.is_some_and(|slow| slow.us > 0.0) {
            let RequestPlace { server, what, peer, behind, .. } = place.clone();
            parts.push(AnatomyPart { server, what, peer, behind, typical, slow });
        }
    }
    let within = |of: fn(&AnatomyPart) -> f64| parts.iter().filter(|p| !p.behind).map(of).sum::<f64>();
    of_typical.rest_us = (of_typical.in_flight_us - within(|p| p.typical.us)).max(0.0);
    of_slow.rest_us = (of_slow.in_flight_us - within(|p| p.slow.map_or(0.0, |s| s.us))).max(0.0);
    let most = |p: &AnatomyPart| p.slow.map_or(0.0, |s| s.us).max(p.typical.us);
    parts.sort_by(|a, b| a.behind.cmp(&b.behind).then(most(b).total_cmp(&most(a))));
    Anatomy {
        moments: moments.len() as u64,
        typical: of_typical,
        slow: limit.map(|_| of_slow),
        parts,
        ..Anatomy::default()
    }
}

/// Returns the time in flight from which a request is slow. None if none stand out.
fn slow_from(requests: &[RequestSpan]) -> Option<f64> {
    let mut all: Vec<u32> = requests.iter().map(|r| r.in_flight).collect();
    all.sort_unstable();
    let hundredth = all.len().div_ceil(100).max(FEWEST_SLOW);
    let top = all.len().checked_sub(hundredth).map(|at| &all[at..])?;
    let (median, of_top) = (f64::from(*all.get(all.len() / 2)?), f64::from(top[top.len() / 2]));
    let limit = (median.max(1.0) * of_top).sqrt().max(SLOWER * median);
    let slow = all.len() - all.partition_point(|t| f64::from(*t) < limit);
    (slow >= FEWEST_SLOW && slow as f64 <= MOST_SLOW * all.len() as f64).then_some(limit)
}

fn group(requests: &[&RequestSpan]) -> RequestGroup {
    let mean = |of: fn(&RequestSpan) -> u32| {
        requests.iter().map(|r| f64::from(of(r))).sum::<f64>() / requests.len().max(1) as f64
    };
    let in_flight = || requests.iter().map(|r| f64::from(r.in_flight));
    RequestGroup {
        requests: requests.len() as u64,
        from_us: in_flight().reduce(f64::min).unwrap_or(0.0),
        to_us: in_flight().reduce(f64::max).unwrap_or(0.0),
        before_us: mean(|r| r.before),
        in_flight_us: mean(|r| r.in_flight),
        connect_us: mean(|r| r.connect),
        transfer_us: mean(|r| r.transfer),
        rest_us: 0.0,
    }
}

/// Sums over the moments of a stretch: of the products of the numbers of typical and slow requests in flight, and of each
/// of them with the number in each place.
#[derive(Debug, Clone, Default)]
struct StretchSums {
    typical_typical: f64,
    typical_slow: f64,
    slow_slow: f64,
    with_typical: Vec<f64>,
    with_slow: Vec<f64>,
}

fn sums<'a>(
    places: &[RequestPlace],
    moments: impl Iterator<Item = &'a Moment>,
    typical: &[&RequestSpan],
    slow: &[&RequestSpan],
) -> Vec<StretchSums> {
    let moments: Vec<&Moment> = moments.collect();
    let (typical, slow) = (InFlight::of(typical), InFlight::of(slow));
    let mut counts = vec![0.0; places.len()];
    let floors = floors(places, &moments);
    let empty = StretchSums {
        with_typical: vec![0.0; places.len()],
        with_slow: vec![0.0; places.len()],
        ..StretchSums::default()
    };
    let mut all = vec![empty; STRETCHES];
    for (i, moment) in moments.iter().enumerate() {
        let (n, s) = (typical.at(moment.at), slow.at(moment.at));
        let stretch = &mut all[i * STRETCHES / moments.len()];
        stretch.typical_typical += n * n;
        stretch.typical_slow += n * s;
        stretch.slow_slow += s * s;
        counts.fill(0.0);
        for (place, count) in &moment.counts {
            counts[usize::from(*place)] = f64::from(*count);
        }
        for (place, count) in counts.iter().enumerate() {
            let count = count - floors[place];
            stretch.with_typical[place] += n * count;
            stretch.with_slow[place] += s * count;
        }
    }
    all
}

/// The number in each place at all times, where that may be others than requests.
fn floors(places: &[RequestPlace], moments: &[&Moment]) -> Vec<f64> {
    let floor = |(i, place): (usize, &RequestPlace)| {
        let count = |moment: &&Moment| {
            moment.counts.iter().find(|(p, _)| usize::from(*p) == i).map_or(0.0, |(_, count)| f64::from(*count))
        };
        if place.has_residents { moments.iter().map(count).reduce(f64::min).unwrap_or(0.0) } else { 0.0 }
    };
    places.iter().enumerate().map(floor).collect()
}

/// When requests began and ended, each sorted.
struct InFlight {
    begun: Vec<Micros>,
    ended: Vec<Micros>,
}

impl InFlight {
    fn of(requests: &[&RequestSpan]) -> InFlight {
        let mut begun: Vec<Micros> = requests.iter().map(|r| r.sent).collect();
        let mut ended: Vec<Micros> = requests.iter().map(|r| r.sent + Micros::from(r.in_flight)).collect();
        begun.sort_unstable();
        ended.sort_unstable();
        InFlight { begun, ended }
    }

    fn at(&self, moment: Micros) -> f64 {
        let before = |all: &[Micros]| all.partition_point(|at| *at <= moment);
        before(&self.begun).saturating_sub(before(&self.ended)) as f64
    }
}

/// Returns the time in a place of a typical and of a slow request.
fn times(
    stretches: &[StretchSums],
    place: usize,
    typical: &RequestGroup,
    slow: Option<&RequestGroup>,
) -> (PartTime, Option<PartTime>) {
    let all = shares(stretches.iter(), place, slow.is_some());
    // The jackknife: the estimate without each stretch in turn.
    let without: Vec<(f64, f64)> = (0..stretches.len())
        .map(|left_out| {
            let rest = stretches.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, sums)| sums);
            shares(rest, place, slow.is_some())
        })
        .collect();
    let count = without.len() as f64;
    let error = |of: fn(&(f64, f64)) -> f64| {
        let mean = without.iter().map(of).sum::<f64>() / count;
        (without.iter().map(|w| (of(w) - mean).powi(2)).sum::<f64>() * (count - 1.0) / count).sqrt()
    };
    let time = |share: f64, error: f64, group: &RequestGroup| PartTime {
        us: share.max(0.0) * group.in_flight_us,
        error_us: error * group.in_flight_us,
    };
    (time(all.0, error(|w| w.0), typical), slow.map(|slow| time(all.1, error(|w| w.1), slow)))
}

/// Solves the normal equations for the shares of typical and slow requests.
fn shares<'a>(stretches: impl Iterator<Item = &'a StretchSums>, place: usize, has_slow: bool) -> (f64, f64) {
    let (mut tt, mut ts, mut ss, mut ty, mut sy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for s in stretches {
        tt += s.typical_typical;
        ts += s.typical_slow;
        ss += s.slow_slow;
        ty += s.with_typical[place];
        sy += s.with_slow[place];
    }
    let alone = |y: f64, square: f64| if square > 0.0 { y / square } else { 0.0 };
    let determinant = tt * ss - ts * ts;
    if !has_slow {
        (alone(ty, tt), 0.0)
    } else if determinant > 1e-9 * tt * ss {
        ((ty * ss - sy * ts) / determinant, (sy * tt - ty * ts) / determinant)
    } else {
        (alone(ty, tt), alone(sy, ss))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splitmix64.
    struct Chance(u64);

    impl Chance {
        fn share(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    fn place(what: &str) -> RequestPlace {
        RequestPlace { server: "php-fpm".into(), what: what.into(), ..RequestPlace::default() }
    }

    /// 100 requests per second for 20 s, read every 10 ms: each computes for 3 ms and waits for a peer for 2 ms. One in a
    /// hundred waits for `tail` longer in a place of its own. Three threads of nobody are in `futex`.
    fn seen(seed: u64, tail: u32) -> (Vec<RequestPlace>, Vec<Moment>, Vec<RequestSpan>) {
        let mut places: Vec<RequestPlace> =
            ["running", "peer 127.0.0.1:3306", "lock /tmp/l", "futex", "idle"].map(place).into();
        places[3].has_residents = true;
        let mut chance = Chance(seed);
        let mut spans: Vec<(Micros, Micros, usize)> = Vec::new();
        let mut requests = Vec::new();
        for i in 0..2000u64 {
            let sent = i * 10_000 + (chance.share() * 20_000.0) as u64;
            let extra = if chance.share() < 0.01 { tail } else { 0 };
            spans.push((sent, sent + 3_000, 0));
            spans.push((sent + 3_000, sent + 5_000, 1));
            spans.push((sent + 5_000, sent + 5_000 + u64::from(extra), 2));
            requests.push(RequestSpan { sent, in_flight: 5_000 + extra, ..RequestSpan::default() });
        }
        let at = |i: usize| i as Micros * 10_000 + 5_000;
        let mut counts = vec![[0.0f32, 0.0, 0.0, 3.0, 5.0]; 2000];
        for (from, to, place) in spans {
            // The moments within it.
            let first = from.saturating_sub(5_000).div_ceil(10_000) as usize;
            (first..counts.len()).take_while(|i| at(*i) < to).for_each(|i| counts[i][place] += 1.0);
        }
        let moment = |(i, counts): (usize, [f32; 5])| Moment {
            at: at(i),
            counts: counts.into_iter().enumerate().map(|(i, n)| (i as u16, n)).collect(),
            has_sockets: i.is_multiple_of(4),
        };
        (places, counts.into_iter().enumerate().map(moment).collect(), requests)
    }

    #[test]
    fn what_slow_requests_have_that_typical_ones_have_not_is_found_within_a_tenth() {
        for seed in 0..30 {
            let (places, moments, requests) = seen(seed, 200_000);
            let found = dissect(&places, &moments, &requests);
            let (part, lost) = found.most_lost().expect("slow ones");
            let part = part.expect("a place");
            assert_eq!(part.what, "lock /tmp/l", "{seed}: {found:?}");
            assert!((lost / 200_000.0 - 1.0).abs() < 0.1, "{seed}: {lost} {found:?}");
            let of = |what: &str| found.parts.iter().find(|p| p.what == what).map_or(0.0, |p| p.typical.us);
            assert!((of("running") - 3_000.0).abs() < 900.0, "{seed}: {found:?}");
            assert!((of("peer 127.0.0.1:3306") - 2_000.0).abs() < 900.0, "{seed}: {found:?}");
            assert!(of("futex") < 1.0 && of("idle") < 1.0, "{seed}: {found:?}");
            let slow = found.slow.expect("slow ones");
            assert!((205_000.0 - slow.in_flight_us).abs() < 1.0 && slow.rest_us < 30_000.0, "{seed}: {found:?}");
        }
    }

    #[test]
    fn the_true_time_lies_within_two_standard_errors_as_often_as_it_should() {
        let mut within = 0;
        for seed in 100..200 {
            let (places, moments, requests) = seen(seed, 200_000);
            let found = dissect(&places, &moments, &requests);
            let time = found.parts.iter().find(|p| p.what == "running").map(|p| p.typical).unwrap_or_default();
            within += u32::from((time.us - 3_000.0).abs() <= 2.0 * time.error_us);
        }
        assert!((88..=100).contains(&within), "{within} of 100");
    }

    #[test]
    fn requests_that_all_take_about_as_long_have_no_slow_ones() {
        let (places, moments, requests) = seen(7, 1_000);
        let found = dissect(&places, &moments, &requests);
        assert!(found.slow.is_none() && found.most_lost().is_none(), "{found:?}");
        assert_eq!(found.typical.requests, 2000);
        let nothing = dissect(&places, &[], &[]);
        assert!(nothing.slow.is_none() && nothing.parts.is_empty(), "{nothing:?}");
    }

    #[test]
    fn time_that_no_place_shows_is_the_rest() {
        let (places, mut moments, requests) = seen(3, 200_000);
        moments.iter_mut().for_each(|m| m.counts.retain(|(place, _)| *place != 2));
        let found = dissect(&places, &moments, &requests);
        let (part, lost) = found.most_lost().expect("slow ones");
        assert!(part.is_none() && (lost / 200_000.0 - 1.0).abs() < 0.1, "{lost} {found:?}");
    }
}
