//! What those who use the servers see for a time: visitors of theirs, or a load of ours.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_lab::{Lab, LabError, Observer};
use lastdrop_looks::visitors::Visitors;
use lastdrop_model::{Event, Experience, Plan};
use lastdrop_server::Stack;
use lastdrop_tune::Guard;

use crate::trial::expected_status;

/// Visitors that are asked for from several places.
pub(super) type Shared<T> = Rc<RefCell<T>>;

/// Who is looked at.
#[derive(Debug)]
pub(super) enum Whose {
    /// A load of ours.
    Load,
    /// With what they saw of the servers as they were, second by second.
    Visitors { visitors: Shared<Visitors>, before: Vec<Experience> },
}

/// What is to be looked at.
#[derive(Debug)]
pub(super) struct Looking<'a> {
    /// None: answers to the load are.
    pub visitors: Option<&'a Shared<Visitors>>,
    /// Load that is put on meanwhile, for `time`; None: nothing is.
    pub load: Option<&'a Plan>,
    pub time: Duration,
    /// It ends when this finds it worse.
    pub guard: Option<&'a Shared<Guard>>,
    pub label: &'a str,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub seconds: Vec<Experience>,
    /// Why it ended early.
    pub worse: Option<String>,
    /// The run of the load, where there was one.
    pub run: String,
}

/// The site is asked so often whether it answers, where nobody else is sure to find out.
const HEALTH_EVERY: Duration = Duration::from_secs(5);
/// It is asked again before it is taken for down.
const ASKED: u32 = 3;
const NAP: Duration = Duration::from_millis(50);

impl Looking<'_> {
    /// Looks until the time is over, things get worse, or the user asks to stop.
    ///
    /// # Errors
    /// When the load could not be put on.
    pub fn look(&self, lab: &mut Lab<'_>, stack: &Stack) -> Result<Looked, LabError> {
        if let Some(visitors) = self.visitors {
            // What has come before is not of this time.
            visitors.borrow_mut().look();
        }
        match self.load {
            Some(plan) => self.under_load(lab, stack, plan),
            None => Ok(self.beside(lab, stack)),
        }
    }

    fn under_load(&self, lab: &mut Lab<'_>, stack: &Stack, plan: &Plan) -> Result<Looked, LabError> {
        let plan = of_length(plan, self.time);
        let phase = plan.phases.iter().position(|p| p.measured).unwrap_or(0) as u16;
        let looked = Rc::new(RefCell::new(Looked::default()));
        let seeing = Seeing {
            visitors: self.visitors.cloned(),
            guard: self.guard.cloned(),
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

    fn beside(&self, lab: &mut Lab<'_>, stack: &Stack) -> Looked {
        let mut looked = Looked::default();
        let Some(visitors) = self.visitors else { return looked };
        let began = Instant::now();
        let (mut second, mut asked) = (began, began);
        let mut over = false;
        while !over {
            thread::sleep(NAP);
            over = began.elapsed() >= self.time || lab.stopped();
            if second.elapsed() < Duration::from_secs(1) && !over {
                continue;
            }
            let seen = Experience { seconds: second.elapsed().as_secs_f64(), ..visitors.borrow_mut().look() };
            second = Instant::now();
            lab.tell(&Event::Visited { seen: Cow::Owned(seen.metrics()) });
            looked.take(seen, self.guard);
            if self.guard.is_some() && asked.elapsed() >= HEALTH_EVERY {
                asked = Instant::now();
                looked.worse = looked.worse.take().or_else(|| is_down(stack));
            }
            over |= looked.worse.is_some();
        }
        looked
    }
}

/// Nobody reads in a log of what no answer came.
fn is_down(stack: &Stack) -> Option<String> {
    let mut said = None;
    for _ in 0..ASKED {
        said = Some(stack.check_health().err()?.to_string());
        thread::sleep(NAP);
    }
    said
}

/// The same load for another time.
fn of_length(plan: &Plan, time: Duration) -> Plan {
    let mut plan = plan.clone();
    for phase in plan.phases.iter_mut().filter(|p| p.measured) {
        phase.duration = Some(time);
    }
    plan
}

impl Looked {
    fn take(&mut self, seen: Experience, guard: Option<&Shared<Guard>>) {
        if let Some(guard) = guard.filter(|_| self.worse.is_none()) {
            self.worse = guard.borrow_mut().add(seen.clone());
        }
        self.seconds.push(seen);
    }
}

/// Follows the seconds of a run.
#[derive(Debug)]
struct Seeing {
    visitors: Option<Shared<Visitors>>,
    guard: Option<Shared<Guard>>,
    expected: u16,
    /// Place of the measured phase among all.
    phase: u16,
    looked: Shared<Looked>,
}

impl Observer for Seeing {
    fn see(&mut self, event: &Event<'_>) {
        let Event::Second { slice } = event else { return };
        if slice.phase != self.phase {
            return;
        }
        let seen = match &self.visitors {
            Some(visitors) => Experience { seconds: 1.0, ..visitors.borrow_mut().look() },
            None => Experience::of_load(slice, self.expected),
        };
        self.looked.borrow_mut().take(seen, self.guard.as_ref());
    }

    fn has_seen_enough(&self) -> bool {
        self.looked.borrow().worse.is_some()
    }
}
