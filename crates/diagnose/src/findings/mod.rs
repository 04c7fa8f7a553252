//! Limits, wastes and risks of a server: one table of rules over an [`Examination`].
//!
//! A rule fires only on evidence from the examined minutes, and only if everything that looks alike is excluded. Limits
//! stand in the order in which they explain each other. A request that the kernel refuses never reaches a worker. Full
//! processors make every pool look full. A pool that waits for its upstream is not the limit. Lost packets make workers
//! wait for clients. The first rule that fires names the limit; later ones rest on the same evidence and are not
//! reported.

mod advice;
mod answers;
mod classes;
mod clients;
mod clues;
mod databases;
mod evidence;
mod habits;
mod kernel;
mod kinds;
mod locks;
mod nodes;
mod peers;
mod pools;
mod processors;
mod programs;
mod proxies;
mod risks;
mod sharing;
mod upstreams;
mod wastes;

#[cfg(test)]
mod tests;

use lastdrop_model::documents::{DOCTOR_SCHEMA, DoctorDocument, Finding, Link, Severity, WorkersAdvice};
use lastdrop_model::event::{Suspect, Suspicion};
use lastdrop_model::examination::{Examination, ServerMeasurements, StepKind};
use serde_json::Value;

pub use clues::clues;
pub use kinds::{FindingKind, finding_kind, finding_kinds};
pub use sharing::cacheable_pages;

use evidence::{LoadEvidence, ServerEvidence};

/// A rule: the id of its finding, and a function that examines the evidence.
pub(crate) struct Rule {
    pub id: &'static str,
    pub look: fn(&LoadEvidence<'_>) -> Option<Finding>,
}

/// Limits of throughput, in the order in which causes hide each other.
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
/// Waits that are as long for one user as for many. Users do not wait for each other, whatever throughput they reach.
const SIDE_BY_SIDE: &[&[Rule]] = &[peers::LONG];
/// The limit of requests that wait for processors which other programs use: one user alone waits as long as many.
const STARVED: &[&[Rule]] = &[processors::TAKEN_BY_OTHERS];
/// Limits of visitors. A few users of ours need not wait for the workers that the visitors' connections hold.
const HELD: &[&[Rule]] = &[clients::HOLDING];
const WASTES: &[&[Rule]] = &[wastes::ALL, answers::ALL, programs::ALL, sharing::ALL, habits::ALL, classes::ALL];
const RISKS: &[&[Rule]] = &[risks::ALL];

/// Returns a limit that counters alone prove, without an experiment or thread states. `run` and `watch` print it in a
/// line.
#[must_use]
pub fn certain(examination: &Examination) -> Option<Finding> {
    let case = LoadEvidence::of(examination)?;
    let fired = kernel::CERTAIN.iter().filter_map(|rule| Some(Finding { id: rule.id.into(), ..(rule.look)(&case)? }));
    fired.into_iter().find(|f| f.confidence >= 0.9)
}

/// Describes the threads whose waits lastdrop may not read.
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

/// Returns the interim state of a diagnosis: limits with evidence, in the order in which they explain each other, and
/// limits without. None before the load that was asked about has run.
#[must_use]
pub fn suspicion(examination: &Examination) -> Option<Suspicion<'static>> {
    let case = LoadEvidence::of(examination)?;
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

/// Returns the server whose own code is the question: it uses most processor time, and processors are the limit.
#[must_use]
pub fn wants_code(examination: &Examination) -> Option<String> {
    let first = suspicion(examination)?.suspects.first()?.id.clone();
    let case = LoadEvidence::of(examination).filter(|_| first == "cpu-saturated")?;
    // A profile that waits for other programs' processors has few samples, and those with a bias.
    if case.main.generator.others_cores >= 0.5 * case.busy_cores() {
        return None;
    }
    let server = processors::top(&case)?;
    // An Apache without a language's module executes no code of a program's.
    (!server.is(&["apache"]) || !server.about.embeds.is_empty()).then(|| server.about.server.clone())
}

/// Returns the experiments that would answer what the others left open.
#[must_use]
pub fn open_questions(examination: &Examination) -> Vec<StepKind> {
    let Some(case) = LoadEvidence::of(examination).filter(LoadEvidence::requests_wait) else { return Vec::new() };
    let mut all = Vec::new();
    // A program without function names may be doing anything; function names would have shown it already.
    if processors::may_compress(&case) {
        all.push(StepKind::Uncompressed);
    }
    if locks::may_share_a_session(&case) {
        all.push(StepKind::OtherSessions);
    }
    all
}

/// True if a CPU profile would help: not if no request waits.
#[must_use]
pub fn wants_profile(examination: &Examination) -> bool {
    LoadEvidence::of(examination).is_none_or(|case| case.requests_wait())
}

/// Returns the limit rules that apply, if anything limits throughput.
fn tables_for(case: &LoadEvidence<'_>) -> &'static [&'static [Rule]] {
    match () {
        // If most requests are rejected at once, no limit could make those answers faster.
        () if clients::turns_most_away(case) => &[],
        () if case.requests_wait() => LIMITS,
        () if case.is_starved_by_others() => STARVED,
        () if case.each_waits_long() => SIDE_BY_SIDE,
        () if clients::visitors_hold_workers(case) => HELD,
        () => &[],
    }
}

fn suspect(id: &str, finding: &Finding) -> Suspect {
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let reason = finding.evidence.first().map_or(String::new(), |e| format!("{} {}", e.name, value(&e.value)));
    let confidence = (finding.confidence * 100.0).round() as u8;
    Suspect { id: id.into(), title: finding.title.clone(), reason, confidence }
}

/// Diagnoses an examination.
#[must_use]
pub fn diagnose(examination: &Examination) -> DoctorDocument {
    diagnose_without(examination, &[])
}

/// Diagnoses an examination without the limits that an experiment has refuted.
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
    let Some(case) = LoadEvidence::of(examination) else { return document };
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
        document.findings.push(case.with_load_evidence(limit));
    }
    let mut rest = fire(WASTES, Severity::Waste);
    rest.extend(fire(RISKS, Severity::Risk));
    // The limit is not reported again as a waste or risk.
    rest.retain(|f| document.limit.as_ref() != Some(&f.id));
    document.workers_advice = workers_of(&case).pop();
    rest.sort_by(by_weight);
    document.findings.extend(rest);
    document
}

/// Recommended number of workers for each pool of the chain, the front first.
#[must_use]
pub fn workers_advice(examination: &Examination) -> Vec<WorkersAdvice> {
    LoadEvidence::of(examination).map_or_else(Vec::new, |case| workers_of(&case))
}

fn workers_of(case: &LoadEvidence<'_>) -> Vec<WorkersAdvice> {
    case.servers().iter().filter_map(ServerEvidence::workers_advice).collect()
}

/// Orders the limit first, then wastes, then risks; of each, the largest expected gain first, then the highest
/// confidence.
fn by_weight(a: &Finding, b: &Finding) -> std::cmp::Ordering {
    let brings = |f: &Finding| f.expect.as_ref().map_or(1.0, |e| e.ratio);
    a.severity.cmp(&b.severity).then(brings(b).total_cmp(&brings(a))).then(b.confidence.total_cmp(&a.confidence))
}
