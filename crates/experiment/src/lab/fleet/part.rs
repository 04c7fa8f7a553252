//! The agent's side: it carries out its share of a run and reports it.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lastdrop_load::files::Files;
use lastdrop_load::{AllowedNetworks, PreparedPlan, RunPart};
use lastdrop_model::plan::Load;
use lastdrop_model::record::{AgentEnd, Record};
use lastdrop_model::run::End;
use lastdrop_model::{Event, Generator, Plan};

use super::order::{PartOrder, files_of};
use super::tape;
use crate::lab::observers::{Observer, RequestLog};
use crate::lab::runs::Lab;

/// Limits set by the owner of the agent's machine, whatever a plan says.
#[derive(Debug, Clone, Default)]
pub struct AgentTerms {
    /// Where it may connect to.
    pub allow: AllowedNetworks,
    /// Maximum requests per second, and maximum duration of a run.
    pub max_rate: Option<f64>,
    pub max_time: Option<Duration>,
}

/// Returns the files of a plan by their paths in the plan. `read` returns the content of a file by its name in the
/// order.
///
/// # Errors
/// When a file was not sent.
fn files(plan: &Plan, read: &dyn Fn(&str) -> Result<Vec<u8>, String>) -> Result<Files, String> {
    let one = |(i, path): (usize, PathBuf)| {
        let bytes = read(&i.to_string()).map_err(|e| format!("{} of the plan: {e}", path.display()))?;
        Ok((path, bytes))
    };
    let files = files_of(plan).into_iter().enumerate().map(one).collect::<Result<_, String>>()?;
    Ok(Files::Sent(std::sync::Arc::new(files)))
}

/// Prepares the part that an order asks for, within the terms.
///
/// # Errors
/// Why it is refused.
pub fn prepare(
    order: &PartOrder,
    terms: &AgentTerms,
    read: &dyn Fn(&str) -> Result<Vec<u8>, String>,
) -> Result<PreparedPlan, String> {
    within(order, terms)?;
    let files = files(&order.plan, read)?;
    let share = order.share()?;
    let tape = tape(&order.plan, |path| files.read(path))?;
    let part = RunPart { share: share.clone(), start: None, allow: Some(terms.allow.clone()), files };
    let mut prepared = PreparedPlan::part(&order.plan, part).map_err(|e| e.to_string())?;
    if let Some(tape) = tape {
        let tape = tape.play(&share).map_err(|e| format!("cannot start a thread that reads the tape: {e}"))?;
        prepared = prepared.playing(tape);
    }
    // Loads the certificates, too, before anything begins.
    prepared.tls_configs(&order.plan, 1).map_err(|e| e.to_string())?;
    Ok(prepared)
}

/// Checks that an order keeps to the terms.
fn within(order: &PartOrder, terms: &AgentTerms) -> Result<(), String> {
    let plan = &order.plan;
    if let Some(most) = terms.max_time {
        let whole: Option<Duration> = plan.phases.iter().map(|p| p.duration).sum();
        if let Some(whole) = whole.filter(|whole| *whole > most) {
            return Err(format!("the run takes {whole:?} and this agent runs at most {most:?} (--max-time)"));
        }
    }
    if let Some(most) = terms.max_rate {
        let weights: f64 = order.weights.iter().map(|w| f64::from(*w)).sum();
        let share = order.weights.get(order.member).map_or(1.0, |w| f64::from(*w) / weights);
        for phase in &plan.phases {
            let Load::Open { rate_rps, to_rps, .. } = &phase.load else { continue };
            let rate = to_rps.unwrap_or(*rate_rps).max(*rate_rps) * share;
            if rate > most {
                return Err(format!(
                    "its share is {rate:.0} requests a second and this agent sends at most {most:.0} (--max-rate)"
                ));
            }
        }
    }
    Ok(())
}

/// Carries out a prepared part and calls `tell` with each complete record; the last one contains the result. `stop`
/// ends it early, with what there is. `log` sees each request.
///
/// # Errors
/// Why it is incomplete. Records sent before count all the same.
pub fn carry_out(
    order: &PartOrder,
    prepared: PreparedPlan,
    terms: &AgentTerms,
    stop: &AtomicBool,
    tell: &dyn Fn(&Record),
    log: Option<&mut RequestLog>,
) -> Result<(), String> {
    let mut teller = RecordReporter { tell, max_rate: terms.max_rate, too_fast: None };
    let mut plan = order.plan.clone();
    // Objectives are judged for the whole run.
    plan.objectives.clear();
    let progress = prepared.progress();
    let result = {
        let mut observers: Vec<Box<dyn Observer + '_>> = vec![Box::new(&mut teller)];
        observers.extend(log.map(|log| -> Box<dyn Observer + '_> { Box::new(log) }));
        let mut lab = Lab::new(stop, observers);
        lab.observe = false;
        lab.run_prepared(&plan, Some(prepared), "")
    };
    let failed = |why: String| AgentEnd {
        end: End::Interrupted,
        generator: Generator::default(),
        reasons: Vec::new(),
        failed: Some(why),
        played_up_to: None,
    };
    let end = match result {
        Ok(run) => {
            let reasons = run.validity.reasons;
            let played_up_to = progress.and_then(|progress| progress.behind());
            AgentEnd { end: run.end, generator: run.generator, reasons, failed: teller.too_fast.take(), played_up_to }
        }
        Err(e) => failed(e.to_string()),
    };
    let why = end.failed.clone();
    tell(&Record::Ended(Box::new(end)));
    why.map_or(Ok(()), Err)
}

/// Reports each second as a record.
struct RecordReporter<'a> {
    tell: &'a dyn Fn(&Record),
    max_rate: Option<f64>,
    too_fast: Option<String>,
}

impl Observer for RecordReporter<'_> {
    fn on_event(&mut self, event: &Event<'_>) {
        match event {
            Event::Second { slice } => {
                // A closed loop is as fast as its server, so its rate can only be checked afterwards.
                let sent = slice.counts.sent as f64;
                if let Some(most) = self.max_rate.filter(|most| sent > most * 1.05 + 1.0) {
                    let sentence = format!("it sent {sent} requests in a second, and may send {most:.0} (--max-rate)");
                    self.too_fast.get_or_insert(sentence);
                }
                (self.tell)(&Record::Second(Box::new(slice.as_ref().clone())));
            }
            Event::PhaseEnd { phase, duration_us, peak } => {
                (self.tell)(&Record::PhaseEnd { phase: *phase as u16, duration_us: *duration_us, peak: *peak });
            }
            _ => {}
        }
    }

    fn has_seen_enough(&self) -> bool {
        self.too_fast.is_some()
    }
}
