//! What limits a server, what is wasted, what will bite: one table of rules over an [`Examination`].
//!
//! A rule fires only on evidence of these minutes, and only where what looks alike is excluded. Limits stand in the order in
//! which they explain each other: whoever is refused by the kernel never reaches a worker, a full processor makes every pool
//! look full, a pool that waits for the one behind it is not the limit, and lost packets make workers wait for clients. The first
//! that fires is the limit; those after it on the same evidence are not told.

mod about;
mod advice;
mod case;
mod clients;
mod clues;
mod databases;
mod kernel;
mod locks;
mod nodes;
mod peers;
mod pools;
mod processors;
mod proxies;
mod risks;
mod upstreams;
mod wastes;

#[cfg(test)]
mod tests;

use lastdrop_model::documents::{DOCTOR_SCHEMA, DoctorDocument, Finding, Link, Severity, WorkersAdvice};
use lastdrop_model::event::{Suspect, Suspicion};
use lastdrop_model::examination::{Examination, ServerMeasurements, StepKind};
use serde_json::Value;

pub use about::{About, about, all_about};
pub use clues::clues;

use case::{Case, View};

/// A rule: the id of its finding, and a look at the evidence.
pub(crate) struct Rule {
    pub id: &'static str,
    pub look: fn(&Case<'_>) -> Option<Finding>,
}

/// What bounds throughput, in the order in which causes hide each other.
const LIMITS: &[&[Rule]] = &[
    kernel::OURSELVES,
    proxies::QUEUES,
    kernel::REFUSED,
    peers::REFUSED,
    kernel::DEATHS,
    kernel::TAKEN_AWAY,
    processors::CHURN,
    processors::FULL,
    kernel::PACKETS,
    processors::ONE,
    peers::WAITING,
    kernel::LOST,
    clients::HOLDING,
    pools::EXHAUSTED,
    kernel::NETWORK,
    peers::BY_EXCLUSION,
    processors::TAKEN_BY_OTHERS,
];
/// What one user alone waits for as long as many do: nobody waits for another, and it is all the same what throughput ends at.
const SIDE_BY_SIDE: &[&[Rule]] = &[peers::LONG];
/// Beside visitors a few users of ours need not wait for workers that nobody else could have.
const HELD: &[&[Rule]] = &[clients::HOLDING];
const WASTES: &[&[Rule]] = &[wastes::ALL];
const RISKS: &[&[Rule]] = &[risks::ALL];

/// What counters alone prove: a limit that needs no experiment, nor a look at what workers wait for. What `run` and `watch` say
/// in a line.
#[must_use]
pub fn certain(examination: &Examination) -> Option<Finding> {
    let case = Case::of(examination)?;
    let fired = kernel::CERTAIN.iter().filter_map(|rule| Some(Finding { id: rule.id.into(), ..(rule.look)(&case)? }));
    fired.into_iter().find(|f| f.confidence >= 0.9)
}

/// Threads of which it may not be seen what they wait for, in words.
fn unseen_threads(examination: &Examination) -> Vec<String> {
    let seen = examination.main().map_or(&[][..], |step| &step.servers);
    let of = |s: &ServerMeasurements| {
        let unseen = s.waiting("unseen");
        (unseen >= 0.5).then(|| {
            let (n, all) = (unseen.ceil(), s.threads.ceil());
            format!("what {n} of {all} threads of {} wait for: root may see it, or the user that they run as", s.server)
        })
    };
    seen.iter().filter_map(of).collect()
}

/// Where a diagnosis stands before all experiments are made: limits for which there is evidence, in the order in which they
/// explain each other, and those for which there is none now that the load that is asked about was on. None before that.
#[must_use]
pub fn suspicion(examination: &Examination) -> Option<Suspicion<'static>> {
    let case = Case::of(examination)?;
    let mut suspects = Vec::<Suspect>::new();
    for rule in tables_for(&case).iter().flat_map(|table| table.iter()) {
        // Some limits have several rules.
        if !suspects.iter().any(|s| s.id == rule.id) {
            suspects.extend((rule.look)(&case).map(|finding| suspect(rule.id, &finding)));
        }
    }
    let mut excluded = Vec::<String>::new();
    for rule in LIMITS.iter().flat_map(|table| table.iter()) {
        if !suspects.iter().any(|s| s.id == rule.id) && !excluded.iter().any(|id| id == rule.id) {
            excluded.push(rule.id.into());
        }
    }
    Some(Suspicion { suspects: suspects.into(), excluded: excluded.into() })
}

/// Experiments that would tell what the others have left open.
#[must_use]
pub fn open_questions(examination: &Examination) -> Vec<StepKind> {
    let Some(case) = Case::of(examination).filter(Case::somebody_waits) else { return Vec::new() };
    let mut all = Vec::new();
    // A program without names for its functions may be at anything; those that have them have said it.
    if processors::may_compress(&case) {
        all.push(StepKind::Uncompressed);
    }
    if locks::may_share_a_session(&case) {
        all.push(StepKind::OtherSessions);
    }
    all
}

/// Would it tell anything where processors' time goes? Not where nobody waits for them.
#[must_use]
pub fn wants_profile(examination: &Examination) -> bool {
    Case::of(examination).is_none_or(|case| case.somebody_waits())
}

/// The rules about what bounds throughput, as far as something does.
fn tables_for(case: &Case<'_>) -> &'static [&'static [Rule]] {
    match () {
        // What most are told at once is no answer that could be given faster.
        () if clients::turns_most_away(case) => &[],
        () if case.somebody_waits() => LIMITS,
        () if case.each_waits_long() => SIDE_BY_SIDE,
        () if clients::visitors_hold_workers(case) => HELD,
        () => &[],
    }
}

fn suspect(id: &str, finding: &Finding) -> Suspect {
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let because = finding.evidence.first().map_or(String::new(), |e| format!("{} {}", e.name, value(&e.value)));
    let confidence = (finding.confidence * 100.0).round() as u8;
    Suspect { id: id.into(), title: finding.title.clone(), because, confidence }
}

/// What the evidence shows.
#[must_use]
pub fn diagnose(examination: &Examination) -> DoctorDocument {
    diagnose_without(examination, &[])
}

/// The same, of all but some limits: those that an experiment has refuted.
#[must_use]
pub fn diagnose_without(examination: &Examination, refuted: &[&str]) -> DoctorDocument {
    let mut document = DoctorDocument {
        schema: DOCTOR_SCHEMA.into(),
        url: examination.url.clone(),
        unseen: [
            examination.unseen.clone(),
            examination.inside.iter().flat_map(|i| i.unseen.clone()).collect(),
            unseen_threads(examination),
        ]
        .concat(),
        cost_cores: examination.cost_cores,
        chain: examination
            .servers
            .iter()
            .map(|s| Link {
                server: s.server.clone(),
                kind: s.kind.clone(),
                listens: s.listens.clone(),
                connects: s.connects.clone(),
                to: s.to.clone(),
            })
            .collect(),
        examination: examination.clone(),
        notes: examination.notes.clone(),
        ..DoctorDocument::default()
    };
    if !examination.nodes.is_empty() {
        nodes::conclude(&mut document, examination, refuted);
        return document;
    }
    let Some(case) = Case::of(examination) else { return document };
    document.notes.extend(clients::notes(&case));
    let fire = |tables: &[&[Rule]], severity: Severity| -> Vec<Finding> {
        let rules = tables.iter().flat_map(|table| table.iter());
        let found = rules.filter_map(|rule| Some(Finding { id: rule.id.into(), severity, ..(rule.look)(&case)? }));
        found.map(|finding| advice::checked(&case, finding)).collect()
    };
    let limits = fire(tables_for(&case), Severity::Limit);
    if let Some(limit) = limits.into_iter().find(|l| !refuted.contains(&l.id.as_str())) {
        document.limit = Some(limit.id.clone());
        document.cannot_tell = databases::cannot_tell(&case, &limit);
        document.findings.push(case.felt(limit));
    }
    let mut rest = fire(WASTES, Severity::Waste);
    rest.extend(fire(RISKS, Severity::Risk));
    // What bounds throughput now is no waste or risk beside.
    rest.retain(|f| document.limit.as_ref() != Some(&f.id));
    document.workers_advice = workers_of(&case).pop();
    rest.sort_by(by_weight);
    document.findings.extend(rest);
    document
}

/// How many workers each pool of the chain should have, by what was seen of it; the front first.
#[must_use]
pub fn workers_advice(examination: &Examination) -> Vec<WorkersAdvice> {
    Case::of(examination).map_or_else(Vec::new, |case| workers_of(&case))
}

fn workers_of(case: &Case<'_>) -> Vec<WorkersAdvice> {
    case.servers().iter().filter_map(View::workers_advice).collect()
}

/// The limit first, then wastes and risks; of each those that should bring most first, then the surest.
fn by_weight(a: &Finding, b: &Finding) -> std::cmp::Ordering {
    let brings = |f: &Finding| f.expect.as_ref().map_or(1.0, |e| e.ratio);
    a.severity.cmp(&b.severity).then(brings(b).total_cmp(&brings(a))).then(b.confidence.total_cmp(&a.confidence))
}
