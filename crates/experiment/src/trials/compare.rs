//! Compares A with B on the live servers, in interleaved blocks.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lastdrop_analyze::compare::{LiveComparison, NextBlock, metrics_of};
use lastdrop_analyze::ratio;
use lastdrop_diagnose::disturbance;
use lastdrop_model::documents::{
    COMPARE_SCHEMA, CompareBlock, CompareDocument, CompareKind, CompareSide, NoiseFloor, SideConnections,
};
use lastdrop_model::event::{Document, Lead, Outcome};
use lastdrop_model::plan::{Load, Phase, Plan};
use lastdrop_model::units::show_duration;
use lastdrop_model::{Event, Run, Verdict};
use lastdrop_server::{Change, RestoreReport, Stack};

use crate::lab::{Lab, LabError};
use crate::trials::trial::{TrialSpec, start};

/// What to compare.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// Name and plan of A and of B; only the measured phase of each is run.
    pub a: (String, Plan),
    pub b: (String, Plan),
    /// Both are the same, to find the noise.
    pub aa: bool,
    /// Most blocks that count.
    pub blocks: u32,
    /// Length of each stretch at A and at B, unless the plan counts requests.
    pub stretch: Duration,
    /// Load before each stretch that is not measured.
    pub settling: Duration,
    pub seed: u64,
}

/// A server of which A and B are two changes.
#[derive(Debug)]
pub struct ChangedServer {
    pub stack: Stack,
    pub a: Change,
    pub b: Change,
}

/// Load before each stretch if workers are recycled too fast to be warmed one by one.
const RECYCLING_WARM_UP: Duration = Duration::from_secs(3);

/// Returns B relative to A so far, in the main metric of the comparison.
fn lead(blocks: &[CompareBlock], open: bool) -> Option<Lead<'static>> {
    let (metric, times) = if open { ("p50_us", "A's median") } else { ("rps", "A's throughput") };
    let counted = blocks.iter().filter(|b| b.spoiled.is_empty());
    let pairs: Vec<(f64, f64)> = counted.filter_map(|b| Some((*b.a.get(metric)?, *b.b.get(metric)?))).collect();
    let found = ratio::paired(&pairs, 0.95)?;
    Some(Lead {
        what: "B".into(),
        ratio: found.ratio,
        interval: Some([found.low, found.high]),
        times: times.into(),
        rests_on: format!("{} blocks", found.pairs).into(),
    })
}

/// Counts repetitions of disturbed blocks.
struct RepeatBudget {
    /// Blocks that may still be repeated.
    left: u32,
    /// Repetitions of the present block.
    of_one: u32,
}

/// Most repetitions of one block: if it is disturbed again and again, the machine stays busy.
const MOST_REPEATS_OF_ONE: u32 = 2;

impl RepeatBudget {
    fn of(blocks: u32) -> RepeatBudget {
        RepeatBudget { left: (blocks / 12).max(1), of_one: 0 }
    }

    /// Returns true if a disturbed block may be measured again; otherwise it counts as it is.
    fn may_repeat(&mut self) -> bool {
        let may = self.left > 0 && self.of_one < MOST_REPEATS_OF_ONE;
        if may {
            (self.left, self.of_one) = (self.left - 1, self.of_one + 1);
        }
        may
    }
}

/// Runs the comparison. If the user stops it, the document contains the blocks so far.
///
/// # Errors
/// When no load can be generated, or one side gives no response.
pub fn compare(lab: &mut Lab<'_>, order: &CompareOptions) -> Result<CompareDocument, LabError> {
    run_blocks(lab, order, None)
}

/// Compares two changes of a server, which is started afresh before each stretch, and restores it.
///
/// # Errors
/// As [`compare`]; when the server refuses a change, or is not as it was at the end.
pub fn compare_changes(
    lab: &mut Lab<'_>,
    order: &CompareOptions,
    mut server: ChangedServer,
) -> Result<CompareDocument, LabError> {
    let (of_a, of_b) = (server.stack.preview(&server.a)?, server.stack.preview(&server.b)?);
    // Both are checked before anything is changed.
    server.stack.check(&server.a)?;
    server.stack.check(&server.b)?;
    let found = run_blocks(lab, order, Some(&mut server));
    lab.tell(&Event::Restoring);
    let restored = server.stack.restore()?;
    let mut document = found?;
    (document.a.changes, document.b.changes) = (of_a, of_b);
    document.notes.extend(restored.iter().flat_map(RestoreReport::notes));
    lab.tell(&Event::Concluded { document: Document::Compare { found: Cow::Borrowed(&document) } });
    Ok(document)
}

/// Brings a change into force and warms the server up. Returns the load before its stretch.
fn begin(
    lab: &mut Lab<'_>,
    stack: &mut Stack,
    change: &Change,
    plan: &Plan,
    settling: Duration,
) -> Result<Duration, LabError> {
    let order = TrialSpec {
        plan,
        change: change.clone(),
        label: String::new(),
        role: "compare",
        recycling_warm_up: RECYCLING_WARM_UP,
        settling,
        until_grown: false,
        budget: None,
        most_unanswered: 1.0,
        early_stop: None,
    };
    let mut trial = order.begun();
    start(lab, stack, &order, &mut trial)?.ok_or(LabError::Other(trial.why))
}

/// Measures one side of a block.
fn stretch(
    lab: &mut Lab<'_>,
    server: Option<&mut ChangedServer>,
    plan: &Plan,
    name: &str,
    number: usize,
    mut settling: Duration,
) -> Result<Run, LabError> {
    lab.check_stop()?;
    if let Some(ChangedServer { stack, a, b }) = server {
        let change = if name == "A" { a } else { b };
        settling = begin(lab, stack, change, plan, settling)?;
    }
    let mut plan = plan.clone();
    plan.warm_up("settling", settling);
    let run = lab.run(&plan, &format!("compare {name} {number}"))?;
    lab.check_stop()?;
    Ok(run)
}

fn run_blocks(
    lab: &mut Lab<'_>,
    order: &CompareOptions,
    mut server: Option<&mut ChangedServer>,
) -> Result<CompareDocument, LabError> {
    let side = |name: &str| CompareSide { name: name.into(), changes: Vec::new(), connections: None, runs: Vec::new() };
    let (mut a, mut b) = (side(&order.a.0), side(&order.b.0));
    let (plan_a, plan_b) = (stretch_of(order, &order.a.1)?, stretch_of(order, &order.b.1)?);
    let open = [&plan_a, &plan_b].iter().all(|p| p.phases.iter().any(|p| matches!(p.load, Load::Open { .. })));
    // Where the sides differ in how they share connections, that is a part of the answer.
    let is_shared = [&plan_a, &plan_b].iter().any(|p| p.http.is_http2());
    let mut live = LiveComparison::new(order.blocks as usize, open, !order.aa, order.seed);
    let mut blocks: Vec<CompareBlock> = Vec::new();
    let mut repeats = RepeatBudget::of(order.blocks);
    // Disturbed blocks that count because there were too few quiet ones, and what disturbed them.
    let mut disturbed: Vec<(usize, String)> = Vec::new();
    let outcome = loop {
        let NextBlock::Pair { b_first } = live.ask() else { break Ok(()) };
        let number = live.blocks() + 1;
        let mut measure = |side: &mut CompareSide, plan: &Plan, name: &str| {
            let run = stretch(lab, server.as_deref_mut(), plan, name, number, order.settling)?;
            side.runs.push(run.id.clone());
            if is_shared {
                let before = side.connections.as_ref().map_or(0, |c| c.peak);
                side.connections = Some(connections_of(&run, before));
            }
            if run.answered_anything() {
                return Ok(run);
            }
            Err(LabError::Other(format!("{name} ({}) answers nothing: {}", side.name, silence(&run, order.stretch))))
        };
        let pair = if b_first {
            measure(&mut b, &plan_b, "B").and_then(|rb| Ok((measure(&mut a, &plan_a, "A")?, rb)))
        } else {
            measure(&mut a, &plan_a, "A").and_then(|ra| Ok((ra, measure(&mut b, &plan_b, "B")?)))
        };
        let (ra, rb) = match pair {
            Ok(pair) => pair,
            Err(e) => break Err(e),
        };
        let mut why = spoiled(&ra).or_else(|| spoiled(&rb)).unwrap_or_default();
        if !why.is_empty() && !repeats.may_repeat() {
            disturbed.push((number, std::mem::take(&mut why)));
        }
        let of = |run: &Run| run.measured().map(|p| metrics_of(run, p)).unwrap_or_default();
        let (ma, mb) = (of(&ra), of(&rb));
        if why.is_empty() {
            live.add(ma.clone(), mb.clone());
            repeats.of_one = 0;
        }
        let block = CompareBlock { a: ma, b: mb, b_first, spoiled: why };
        let (number, of) = (number as u64, u64::from(order.blocks));
        let outcome = Outcome::Compare { number, of, block: Cow::Borrowed(&block) };
        lab.tell(&Event::TrialDone { outcome });
        blocks.push(block);
        if let Some(lead) = lead(&blocks, open) {
            lab.tell(&Event::Leading { lead });
        }
    };
    let interrupted = match outcome {
        Ok(()) => false,
        Err(LabError::Interrupted) => true,
        Err(e) => return Err(e),
    };
    let comparison = live.conclude();
    let mut notes: Vec<String> = disturbed_note(&disturbed).into_iter().collect();
    notes.extend(comparison.notes);
    if live.blocks() < order.blocks as usize && !interrupted {
        notes.push(format!("the answer was clear after {} of {} blocks", live.blocks(), order.blocks));
    }
    let noise_floor = order.aa.then(|| NoiseFloor {
        floor: live.noise_floor(),
        measured_unix_ms: Some(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)),
        url: plan_a.url.to_string(),
    });
    let document = CompareDocument {
        schema: COMPARE_SCHEMA.into(),
        kind: if order.aa { CompareKind::Aa } else { CompareKind::Live },
        server: server.as_ref().map(|server| server.stack.name()),
        a,
        b,
        metrics: comparison.metrics,
        classes: comparison.classes,
        verdict: comparison.verdict,
        reason: comparison.reason,
        smallest_difference: comparison.smallest_difference,
        blocks,
        noise_floor,
        interrupted,
        notes,
    };
    // The end of a comparison of changes is told when the server is restored.
    if server.is_none() {
        lab.tell(&Event::Concluded { document: Document::Compare { found: Cow::Borrowed(&document) } });
    }
    Ok(document)
}

/// Summarizes them in one sentence.
fn disturbed_note(disturbed: &[(usize, String)]) -> Option<String> {
    let (first, why) = disturbed.first()?;
    let numbers: Vec<String> = disturbed.iter().map(|(number, _)| number.to_string()).collect();
    Some(match disturbed.len() {
        1 => format!("block {first} counts although it was disturbed ({why}): too many were"),
        _ => format!(
            "blocks {} count although they were disturbed (the first: {why}): too many were",
            numbers.join(", ")
        ),
    })
}

/// Makes the plan of one stretch: the load of the plan's measured phase.
fn stretch_of(order: &CompareOptions, plan: &Plan) -> Result<Plan, LabError> {
    let Some(measured) = plan.phases.iter().find(|p| p.measured) else {
        return Err(LabError::Other("a plan without a measured phase cannot be compared".into()));
    };
    let main = Phase {
        duration: if measured.requests.is_some() { measured.duration } else { Some(order.stretch) },
        ..measured.clone()
    };
    // A stretch is short, so hanging requests must not take longer than one of them.
    let drain = plan.drain.min(order.stretch.max(Duration::from_secs(1)));
    Ok(Plan { phases: vec![main], drain, ..plan.clone() })
}

/// The connections of a run, and of earlier ones that had up to `before` at once.
fn connections_of(run: &Run, before: u64) -> SideConnections {
    let http = &run.plan.http;
    SideConnections {
        version: http.spoken().name().into(),
        peak: run.measured().map_or(0, |p| p.connections.peak).max(before),
        streams: if http.is_http2() { http.most_streams() } else { http.pipeline.max(1) },
    }
}

/// Says how a stretch went in which nothing was answered.
fn silence(run: &Run, stretch: Duration) -> String {
    let refused = run.generator.connect_errors.keys().next().cloned();
    refused.unwrap_or_else(|| match run.measured().map(|p| &p.requests) {
        Some(r) if r.sent > 0 && r.failed.total() == 0 => {
            format!("{} requests had no answer within {}; try longer blocks (-d)", r.sent, show_duration(stretch))
        }
        _ => "no answer".into(),
    })
}

/// Returns why a stretch says nothing about A and B.
fn spoiled(run: &Run) -> Option<String> {
    let invalid = || run.validity.reasons.iter().find(|r| r.verdict == Verdict::Invalid);
    disturbance(&run.validity).or_else(invalid).map(|r| r.what.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_disturbed_again_and_again_counts_in_the_end() {
        let mut repeats = RepeatBudget::of(200);
        assert_eq!([0; 3].map(|_| repeats.may_repeat()), [true, true, false]);
        // The next block has repetitions of its own; all blocks together may repeat at most a twelfth of the blocks.
        let mut repeated = 2;
        for _ in 0..50 {
            repeats.of_one = 0;
            while repeats.may_repeat() {
                repeated += 1;
            }
        }
        assert_eq!(repeated, 16);
    }

    #[test]
    fn many_disturbed_blocks_are_one_sentence() {
        assert_eq!(disturbed_note(&[]), None);
        let one = disturbed_note(&[(3, "steal".into())]).expect("a note");
        assert_eq!(one, "block 3 counts although it was disturbed (steal): too many were");
        let many = disturbed_note(&[(3, "steal".into()), (5, "others".into())]).expect("a note");
        assert_eq!(many, "blocks 3, 5 count although they were disturbed (the first: steal): too many were");
    }
}
