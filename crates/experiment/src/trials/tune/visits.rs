//! Measures what users of the servers experience for some time: real visitors, or a load of ours.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::lab::clock::Stopwatch;
use crate::lab::{Clock, Lab, LabError, Observer};
use crate::observe::visitors::Visitors;
use lastdrop_model::{Event, Experience, Plan};
use lastdrop_server::Stack;
use lastdrop_tune::RegressionDetector;

use crate::trials::trial::expected_status;

/// Visitors shared between several owners.
pub(super) type SharedCell<T> = Rc<RefCell<T>>;

/// Source of the user metrics.
#[derive(Debug)]
pub(super) enum UserMetricSource {
    /// A load of ours.
    Load,
    /// Visitors, with their metrics before the tune, second by second.
    Visitors { visitors: SharedCell<Visitors>, before: Vec<Experience> },
}

/// What to measure.
#[derive(Debug)]
pub(super) struct UserSampler<'a> {
    /// None: the responses to the load are measured.
    pub visitors: Option<&'a SharedCell<Visitors>>,
    /// Load to generate meanwhile, for `time`; None: no load.
    pub load: Option<&'a Plan>,
    pub time: Duration,
    /// Ends the measurement when this detects a regression.
    pub detector: Option<&'a SharedCell<RegressionDetector>>,
    pub label: &'a str,
}

/// The result of a measurement.
#[derive(Debug, Default)]
pub(super) struct UserSamples {
    pub seconds: Vec<Experience>,
    /// Why it ended early.
    pub worse: Option<String>,
    /// Id of the load's run, if there was a load.
    pub run: String,
}

/// How often the health of the site is checked, in case the visitors' metrics do not show an outage.
const HEALTH_EVERY: Duration = Duration::from_secs(5);
/// Failed checks in a row before the site counts as down.
const ASKED: u32 = 3;
const NAP: Duration = Duration::from_millis(50);

impl UserSampler<'_> {
    /// Measures until the time is over, things get worse, or the user stops it.
    ///
    /// # Errors
    /// When the load could not be generated.
    pub fn look(&self, lab: &mut Lab<'_>, stack: &Stack) -> Result<UserSamples, LabError> {
        if let Some(visitors) = self.visitors {
            // Drop requests from before this measurement.
            visitors.borrow_mut().look();
        }
        match self.load {
            Some(plan) => self.under_load(lab, stack, plan),
            None => Ok(self.beside(lab, stack)),
        }
    }

    fn under_load(&self, lab: &mut Lab<'_>, stack: &Stack, plan: &Plan) -> Result<UserSamples, LabError> {
        let plan = of_length(plan, self.time);
        let phase = plan.phases.iter().position(|p| p.measured).unwrap_or(0) as u16;
        let looked = Rc::new(RefCell::new(UserSamples::default()));
        let seeing = UserSampleObserver {
            visitors: self.visitors.cloned(),
            detector: self.detector.cloned(),
            expected: expected_status(stack),
            phase,
            looked: Rc::clone(&looked),
        };
        let others = lab.observers.len();
        lab.observers.push(Box::new(seeing));
        let ran = lab.run(&plan, self.label);
        lab.observers.truncate(others);
        let mut looked = looked.take();
        looked.run = ran?.id;
        Ok(looked)
    }

    fn beside(&self, lab: &mut Lab<'_>, stack: &Stack) -> UserSamples {
        let mut looked = UserSamples::default();
        let Some(visitors) = self.visitors else { return looked };
        let began = Stopwatch::start(lab.clock);
        let (mut second, mut asked) = (began, began);
        let mut over = false;
        while !over {
            lab.clock.sleep(NAP);
            over = began.elapsed() >= self.time || lab.stopped();
            if second.elapsed() < Duration::from_secs(1) && !over {
                continue;
            }
            let seen = Experience { seconds: second.elapsed().as_secs_f64(), ..visitors.borrow_mut().look() };
            second = Stopwatch::start(lab.clock);
            lab.tell(&Event::Visited { seen: Cow::Owned(seen.metrics()) });
            looked.take(seen, self.detector);
            if self.detector.is_some() && asked.elapsed() >= HEALTH_EVERY {
                asked = Stopwatch::start(lab.clock);
                looked.worse = looked.worse.take().or_else(|| is_down(lab.clock, stack));
            }
            over |= looked.worse.is_some();
        }
        looked
    }
}

/// Returns why the site is down. A log does not show requests without a response.
fn is_down(clock: &dyn Clock, stack: &Stack) -> Option<String> {
    let mut said = None;
    for _ in 0..ASKED {
        said = Some(stack.check_health().err()?.to_string());
        clock.sleep(NAP);
    }
    said
}

/// Returns the same load for another duration.
fn of_length(plan: &Plan, time: Duration) -> Plan {
    let mut plan = plan.clone();
    for phase in plan.phases.iter_mut().filter(|p| p.measured) {
        phase.duration = Some(time);
    }
    plan
}

impl UserSamples {
    fn take(&mut self, seen: Experience, detector: Option<&SharedCell<RegressionDetector>>) {
        if let Some(detector) = detector.filter(|_| self.worse.is_none()) {
            self.worse = detector.borrow_mut().add(seen.clone());
        }
        self.seconds.push(seen);
    }
}

/// Follows the seconds of a run.
#[derive(Debug)]
struct UserSampleObserver {
    visitors: Option<SharedCell<Visitors>>,
    detector: Option<SharedCell<RegressionDetector>>,
    expected: u16,
    /// Index of the measured phase.
    phase: u16,
    looked: SharedCell<UserSamples>,
}

impl Observer for UserSampleObserver {
    fn on_event(&mut self, event: &Event<'_>) {
        let Event::Second { slice } = event else { return };
        if slice.phase != self.phase {
            return;
        }
        let seen = match &self.visitors {
            Some(visitors) => Experience { seconds: 1.0, ..visitors.borrow_mut().look() },
            None => Experience::of_load(slice, self.expected),
        };
        self.looked.borrow_mut().take(seen, self.detector.as_ref());
    }

    fn has_seen_enough(&self) -> bool {
        self.looked.borrow().worse.is_some()
    }
}
