//! JUnit XML for continuous integration: each requirement on the server is a test case.

use std::fmt::Write as _;

use lastdrop_model::documents::{
    CapacityDocument, CompareDocument, DoctorDocument, HeadroomDocument, MetricVerdict, Severity, SweepDocument,
};
use lastdrop_model::documents::{TuneDocument, TuneVerdict};
use lastdrop_model::printable::xml;
use lastdrop_model::{Run, Verdict};

use crate::html::ReportDocument;

/// The outcome of a test case; reasons are sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TestOutcome {
    Passed,
    /// The reason, and details.
    Failed(String, String),
    /// The measurement allows no statement.
    Skipped(String),
    /// The test could not be run.
    Error(String),
}

/// The test cases of one document.
#[derive(Debug)]
struct Suite {
    /// The subject of the test.
    of: String,
    seconds: f64,
    cases: Vec<(String, TestOutcome)>,
}

/// Renders the objectives of a run as a test suite: a test case each; a missed objective is a failure. An
/// invalid run is an error, because its numbers prove nothing.
#[must_use]
pub fn junit(run: &Run) -> String {
    written(&[of_run(run)])
}

/// Renders the test suites of several documents.
///
/// # Errors
/// If one of them has no requirement that could pass or fail.
pub(super) fn of_documents(shown: &[ReportDocument]) -> Result<String, String> {
    let suite = |one: &ReportDocument| match one {
        ReportDocument::Run(run) => Ok(of_run(run)),
        ReportDocument::Pair(d, ..) | ReportDocument::Compare(d) => Ok(of_compare(d)),
        ReportDocument::Capacity(d) => Ok(of_capacity(d)),
        ReportDocument::Headroom(d) => Ok(of_headroom(d)),
        ReportDocument::Tune(d) => Ok(of_tune(d)),
        ReportDocument::Doctor(d) => Ok(of_doctor(d)),
        ReportDocument::Sweep(d) => Ok(of_sweep(d)),
        ReportDocument::Size(_) | ReportDocument::Trace(_) | ReportDocument::Profile(_) => {
            Err("this document has nothing that a server could pass or fail; choose text, json, csv or md".to_string())
        }
    };
    Ok(written(&shown.iter().map(suite).collect::<Result<Vec<_>, _>>()?))
}

fn of_run(run: &Run) -> Suite {
    let judged = run.objectives.iter().map(|j| {
        let name = j.objective.to_string();
        let came = match j.met {
            true => TestOutcome::Passed,
            false => TestOutcome::Failed(
                format!("{name} was missed: {} is {}", j.objective.what(), j.seen),
                format!("run {}", run.id),
            ),
        };
        (name, came)
    });
    let why = || run.validity.reasons.iter().map(|r| r.what.as_str()).collect::<Vec<_>>().join("; ");
    let invalid = (run.validity.verdict == Verdict::Invalid).then(|| ("validity".into(), TestOutcome::Error(why())));
    Suite {
        of: run.plan.url.to_string(),
        seconds: run.measured().map_or(0.0, |p| p.duration_s),
        cases: judged.chain(invalid).collect(),
    }
}

fn of_compare(d: &CompareDocument) -> Suite {
    let classes =
        d.classes.iter().flat_map(|c| c.metrics.iter().map(move |(name, m)| (format!("{}.{name}", c.name), m)));
    let all = d.metrics.iter().map(|(name, m)| (name.clone(), m)).chain(classes);
    let case = |(name, m): (String, &lastdrop_model::documents::MetricComparison)| {
        let ratio = format!("B / A is {:.3} ({:.3} to {:.3})", m.ratio, m.interval[0], m.interval[1]);
        let came = match m.verdict {
            MetricVerdict::Better | MetricVerdict::NoDifference => TestOutcome::Passed,
            MetricVerdict::Worse => TestOutcome::Failed(format!("{name} is worse: {ratio}"), d.reason.clone()),
            MetricVerdict::Inconclusive => TestOutcome::Skipped("the measurement cannot tell".into()),
        };
        (name, came)
    };
    Suite { of: format!("{} to {}", d.a.name, d.b.name), seconds: 0.0, cases: all.map(case).collect() }
}

fn of_capacity(d: &CapacityDocument) -> Suite {
    let name = d.objective.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let came = match d.met {
        true => TestOutcome::Passed,
        false if d.generator_limited || d.out_of_time => TestOutcome::Error(d.reason.clone()),
        false => TestOutcome::Failed(d.reason.clone(), format!("capacity {:.1}/s", d.capacity_rps)),
    };
    let seconds = d.steps.iter().map(|s| s.seconds).sum();
    Suite { of: d.url.clone(), seconds, cases: vec![(if name.is_empty() { "capacity".into() } else { name }, came)] }
}

fn of_headroom(d: &HeadroomDocument) -> Suite {
    let came = match d.headroom {
        Some(times) if times >= 1.0 => TestOutcome::Passed,
        Some(times) => TestOutcome::Failed(
            format!("the server bears only {times:.2} of the busiest minute"),
            format!("busiest minute {:.1}/s", d.demand.busiest_minute_rps),
        ),
        None => TestOutcome::Skipped("the capacity is not known".into()),
    };
    Suite { of: d.url.clone(), seconds: 0.0, cases: vec![("headroom".into(), came)] }
}

fn of_tune(d: &TuneDocument) -> Suite {
    let came = match d.verdict {
        TuneVerdict::Improved | TuneVerdict::NoGain | TuneVerdict::Planned => TestOutcome::Passed,
        TuneVerdict::Infeasible => TestOutcome::Failed(d.reason.clone(), String::new()),
        TuneVerdict::Inconclusive => TestOutcome::Skipped(d.reason.clone()),
    };
    Suite { of: d.url.clone(), seconds: 0.0, cases: vec![("tune".into(), came)] }
}

fn of_doctor(d: &DoctorDocument) -> Suite {
    let case = |f: &lastdrop_model::documents::Finding| {
        // A rate limit is usually intended.
        let is_fault = f.severity != Severity::Waste && f.id != "rate-limited";
        let came = match is_fault {
            true => TestOutcome::Failed(f.title.clone(), f.advice.clone()),
            false => TestOutcome::Skipped(f.title.clone()),
        };
        (f.id.clone(), came)
    };
    let mut cases: Vec<(String, TestOutcome)> = d.findings.iter().map(case).collect();
    if let Some(why) = d.undecided() {
        cases.push(("examination".into(), TestOutcome::Error(why)));
    } else if cases.is_empty() {
        cases.push(("nothing was found".into(), TestOutcome::Passed));
    }
    Suite { of: d.url.clone(), seconds: 0.0, cases }
}

fn of_sweep(d: &SweepDocument) -> Suite {
    let case = |(i, r): (usize, &lastdrop_model::documents::SweepRow)| {
        let settings = r.settings.iter().map(|(name, value)| format!("{name}={value}"));
        let parts = [format!("{}.", i + 1), r.series.clone(), format!("{} users", r.users)];
        let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty()).chain(settings).collect();
        let came = match (r.answered, r.failed) {
            (0, _) => {
                TestOutcome::Error(if r.note.is_empty() { "nothing was answered".into() } else { r.note.clone() })
            }
            (_, 0) => TestOutcome::Passed,
            (_, failed) => TestOutcome::Failed(format!("{failed} requests failed"), format!("run {}", r.run)),
        };
        (parts.join(" "), came)
    };
    let of = d.rows.first().map_or(String::new(), |r| r.url.clone());
    Suite { of, seconds: 0.0, cases: d.rows.iter().enumerate().map(case).collect() }
}

fn written(suites: &[Suite]) -> String {
    let count = |suites: &[Suite], of: fn(&TestOutcome) -> bool| -> usize {
        suites.iter().flat_map(|s| &s.cases).filter(|(_, came)| of(came)).count()
    };
    let counts = |suites: &[Suite]| {
        let tests = count(suites, |_| true);
        let failures = count(suites, |c| matches!(c, TestOutcome::Failed(..)));
        let errors = count(suites, |c| matches!(c, TestOutcome::Error(_)));
        let skipped = count(suites, |c| matches!(c, TestOutcome::Skipped(_)));
        format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\"")
    };
    let seconds: f64 = suites.iter().map(|s| s.seconds).sum();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // The `testsuites` element has no `skipped` attribute.
    let whole = counts(suites);
    let whole = whole.split(" skipped=").next().unwrap_or_default();
    let _ = writeln!(out, "<testsuites {whole} time=\"{seconds:.3}\">");
    for suite in suites {
        let (of, seconds) = (xml(&suite.of), suite.seconds);
        let counts = counts(std::slice::from_ref(suite));
        let _ = writeln!(out, "  <testsuite name=\"lastdrop {of}\" {counts} time=\"{seconds:.3}\">");
        for (name, came) in &suite.cases {
            let name = xml(name);
            let _ = write!(out, "    <testcase name=\"{name}\" classname=\"{of}\" time=\"{seconds:.3}\"");
            let inner = match came {
                TestOutcome::Passed => None,
                TestOutcome::Failed(why, more) => {
                    Some(format!("<failure message=\"{}\">{}</failure>", xml(why), xml(more)))
                }
                TestOutcome::Skipped(why) => Some(format!("<skipped message=\"{}\"/>", xml(why))),
                TestOutcome::Error(why) => Some(format!("<error message=\"{}\"/>", xml(why))),
            };
            match inner {
                None => out.push_str("/>\n"),
                Some(inner) => {
                    let _ = writeln!(out, ">\n      {inner}\n    </testcase>");
                }
            }
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::Finding;
    use lastdrop_model::examination::{Examination, ExaminationStep};

    use super::*;

    #[test]
    fn what_was_not_measured_has_not_passed_and_a_rate_limit_is_no_fault() {
        let came = |steps: Vec<ExaminationStep>, findings: Vec<Finding>| -> Vec<TestOutcome> {
            let examination = Examination { steps, ..Examination::default() };
            let suite = of_doctor(&DoctorDocument { findings, examination, ..DoctorDocument::default() });
            suite.cases.into_iter().map(|(_, came)| came).collect()
        };
        assert_eq!(came(Vec::new(), Vec::new()), [TestOutcome::Error("nothing was measured".into())]);
        let main = || vec![ExaminationStep::default()];
        assert_eq!(came(main(), Vec::new()), [TestOutcome::Passed]);
        let risk =
            |id: &str| Finding { id: id.into(), severity: Severity::Risk, title: "so".into(), ..Finding::default() };
        assert_eq!(came(main(), vec![risk("rate-limited")]), [TestOutcome::Skipped("so".into())]);
        assert_eq!(came(main(), vec![risk("memory-leak")]), [TestOutcome::Failed("so".into(), String::new())]);
    }
}
