//! Keeps the better settings in force and watches them for some time; if users fare worse than before, the settings are
//! rolled back.
//!
//! Until the time is over the journal exists, so if the watch is killed or crashes, the servers are restored: nothing
//! is watching any more. If the user ends it (Ctrl-C), the settings stay: they were proven and requested.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::lab::{Lab, LabError};
use lastdrop_model::documents::{TuneDocument, WatchPeriod};
use lastdrop_model::event::{ExperimentDecision, Stage};
use lastdrop_model::units::show_duration;
use lastdrop_model::{Arrival, Event, Experience, Load, Plan, Settings};
use lastdrop_server::{PersistedIn, Server, Stack};
use lastdrop_tune::RegressionDetector;

use super::TuneOptions;
use super::visits::{UserMetricSource, UserSampler};

/// The watching load if there are no visitors: this share of the baseline's throughput, and its limits in requests per
/// second.
const LIGHT: f64 = 0.1;
const LIGHTEST: f64 = 2.0;
const HEAVIEST: f64 = 100.0;
/// Seconds for which a server that has just started is slow.
const BEGINNING_S: f64 = 3.0;
/// How long the original settings are measured before the watch: a fraction of the watch, within limits.
const BEFORE: u32 = 10;
const SHORTEST_BEFORE: Duration = Duration::from_secs(10);
const LONGEST_BEFORE: Duration = Duration::from_secs(60);
/// Requests that the original settings are measured with, if the longest time suffices: of fewer nobody can tell what is slow.
const LEAST_BEFORE: f64 = 200.0;

/// Applies the better settings permanently, unless users fare worse with them. Returns None if they have to be rolled
/// back.
///
/// # Errors
/// When settings cannot be applied, or the watching load cannot be generated.
#[allow(clippy::too_many_arguments)]
pub(super) fn keep_if_good(
    lab: &mut Lab<'_>,
    stack: &mut Stack,
    order: &TuneOptions,
    plan: &Plan,
    settings: &Settings,
    whose: UserMetricSource,
    time: Duration,
    document: &mut TuneDocument,
) -> Result<Option<Vec<PersistedIn>>, LabError> {
    let (visitors, mut before, watched, load, enough) = match whose {
        UserMetricSource::Visitors { visitors, before } => {
            let by = format!("visitors, by the {}", visitors.borrow().by());
            (Some(visitors), before, by, order.beside_visitors.clone(), Duration::ZERO)
        }
        UserMetricSource::Load => {
            let (light, rate) = light(plan, document);
            let enough = Duration::from_secs_f64((LEAST_BEFORE / rate).ceil());
            (None, Vec::new(), format!("a load of ours, {rate:.1} requests a second"), Some(light), enough)
        }
    };
    let mut looking = UserSampler {
        visitors: visitors.as_ref(),
        load: load.as_ref(),
        time: (time / BEFORE).max(enough).clamp(SHORTEST_BEFORE, LONGEST_BEFORE),
        detector: None,
        label: "tune watch: before",
    };
    if before.is_empty() {
        lab.tell(&Event::Stage { stage: Stage::Before });
        stack.apply(Settings::new())?;
        warm(lab, stack, plan);
        before = looking.look(lab, stack)?.seconds;
        if lab.stopped() {
            document.interrupted = true;
            return Ok(None);
        }
    }
    let staying = stack.persist(settings)?;
    if visitors.is_none() {
        warm(lab, stack, plan);
    }
    lab.tell(&Event::Stage { stage: Stage::Watch });
    let detector = Rc::new(RefCell::new(RegressionDetector::new(&before, BEGINNING_S)));
    (looking.detector, looking.label, looking.time) = (Some(&detector), "tune watch", time);
    let looked = looking.look(lab, stack)?;
    let during = Experience::sum(&looked.seconds);
    let seen = during.metrics();
    let stopped = lab.stopped();
    let reason = match &looked.worse {
        Some(worse) => format!("after {:.0} s it had got worse: {worse}", seen.seconds),
        None if stopped => format!(
            "the watch was ended after {:.0} s of {}; nothing had got worse, and the settings stay",
            seen.seconds,
            show_duration(time)
        ),
        None if during.requests == 0 => "nobody used the servers: nothing was seen, and the settings stay".into(),
        None => "nothing got worse than chance makes it".into(),
    };
    document.interrupted |= stopped;
    document.watch = Some(WatchPeriod {
        watched,
        asked_s: time.as_secs_f64(),
        before: Experience::sum(&before).metrics(),
        during: seen,
        went_back: looked.worse.is_some(),
        reason: reason.clone(),
    });
    if looked.worse.is_some() {
        lab.tell(&Event::Decided { what: ExperimentDecision::GoBack, reason: reason.into() });
        return Ok(None);
    }
    Ok(Some(stack.commit(staying)?))
}

/// Returns a light load of the same requests, and its rate.
fn light(plan: &Plan, document: &TuneDocument) -> (Plan, f64) {
    let answered = document.baseline.as_ref().map_or(0.0, |b| b.objective);
    let rate = (LIGHT * answered).clamp(LIGHTEST, HEAVIEST);
    let mut light = Plan { objectives: Vec::new(), ..plan.clone() };
    for phase in &mut light.phases {
        phase.load = Load::open(rate, Arrival::Uniform, phase.load.most_concurrent().max(1));
        phase.requests = None;
    }
    (light, rate)
}

/// Sends one request to each worker, because a worker's first request is always slow.
fn warm(lab: &mut Lab<'_>, stack: &Stack, plan: &Plan) {
    let _ = lab.warm_each(plan, stack.pool().map_or(0, Server::count_workers));
}
