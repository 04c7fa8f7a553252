//! Objectives in the XML that continuous integration reads.

use std::fmt::Write as _;

use lastdrop_model::printable::xml;
use lastdrop_model::{Run, Verdict};

/// The objectives of a run as a JUnit test suite: a test case each, missed ones are failures. A run that is invalid is
/// an error of its own, since its numbers prove nothing.
#[must_use]
pub fn junit(run: &Run) -> String {
    let seconds = run.measured().map_or(0.0, |p| p.duration_s);
    let invalid = run.validity.verdict == Verdict::Invalid;
    let failures = run.objectives.iter().filter(|o| !o.met).count();
    let url = xml(&run.plan.url.to_string());
    let tests = run.objectives.len() + usize::from(invalid);
    let counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{}\"", u8::from(invalid));
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(out, "<testsuites {counts} time=\"{seconds:.3}\">");
    let _ = writeln!(out, "  <testsuite name=\"lastdrop {url}\" {counts} skipped=\"0\" time=\"{seconds:.3}\">");
    for judged in &run.objectives {
        let (name, seen) = (xml(&judged.objective.to_string()), xml(&judged.seen));
        let _ = write!(out, "    <testcase name=\"{name}\" classname=\"{url}\" time=\"{seconds:.3}\"");
        if judged.met {
            out.push_str("/>\n");
        } else {
            let text = format!("{name} was missed: {} is {seen}", xml(&judged.objective.what()));
            let _ =
                writeln!(out, ">\n      <failure message=\"{text}\">run {}</failure>\n    </testcase>", xml(&run.id));
        }
    }
    if invalid {
        let why: Vec<String> = run.validity.reasons.iter().map(|r| r.what.clone()).collect();
        let _ = writeln!(
            out,
            "    <testcase name=\"validity\" classname=\"{url}\" time=\"{seconds:.3}\">\n      <error message=\"{}\"/>\n    </testcase>",
            xml(&why.join("; "))
        );
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}
