//! Documents as one self-contained HTML file that can be viewed offline and sent to others.
//!
//! `page` is the frame, `verdict` the headline of a section, and each document's file makes its section of
//! plots. There are two kinds of plots. Those over time are drawn by the page's script (`timeplot`); all
//! others are SVG made here (`chart`, `heatmap`, `bars`). Each plot has its `table`. Foreign text enters only
//! through `text`. `live` shows a run in progress and appears in served pages only.
//! in pages that are served.

mod axis;
mod bars;
mod bins;
mod capacity;
mod chart;
mod classes;
mod compare;
mod doctor;
#[cfg(test)]
pub(crate) mod fixtures;
mod headroom;
mod heatmap;
mod live;
pub(crate) mod number;
mod page;
mod percentiles;
mod profile;
mod run;
mod server;
mod size;
mod sweep;
mod table;
mod text;
mod timeplot;
mod trace;
mod tune;
mod verdict;

use lastdrop_model::Run;
use lastdrop_model::documents::{
    CAPACITY_SCHEMA, COMPARE_SCHEMA, CapacityDocument, CompareDocument, DOCTOR_SCHEMA, DoctorDocument, HEADROOM_SCHEMA,
    HeadroomDocument, PROFILE_SCHEMA, ProfileDocument, SIZE_SCHEMA, SWEEP_SCHEMA, SizeDocument, SweepDocument,
    TRACE_SCHEMA, TUNE_SCHEMA, TraceDocument, TuneDocument,
};
use lastdrop_model::run::RUN_SCHEMA;
use serde_json::Value;

use maud::Markup;

pub use self::live::{LiveRun, LiveSample, LiveSecond};
pub use self::page::served_policy;
use self::page::{Page, Section};
pub use self::text::EscapedText;
use self::timeplot::Plots;
use self::verdict::Headline;

/// The headlines of documents, for other formats.
pub(crate) mod first {
    pub(crate) use super::capacity::verdict as capacity;
    pub(crate) use super::compare::verdict as compare;
    pub(crate) use super::headroom::verdict as headroom;
    pub(crate) use super::run::verdict as run;
    pub(crate) use super::size::verdict as size;
    pub(crate) use super::sweep::verdict as sweep;
    pub(crate) use super::tune::verdict as tune;
}

/// A document that can be reported.
#[derive(Debug)]
pub enum ReportDocument {
    Run(Box<Run>),
    Capacity(Box<CapacityDocument>),
    Headroom(Box<HeadroomDocument>),
    Compare(Box<CompareDocument>),
    /// A comparison with both of its runs.
    Pair(Box<CompareDocument>, Box<Run>, Box<Run>),
    Tune(Box<TuneDocument>),
    Doctor(Box<DoctorDocument>),
    Sweep(Box<SweepDocument>),
    Size(Box<SizeDocument>),
    Trace(Box<TraceDocument>),
    Profile(Box<ProfileDocument>),
}

impl ReportDocument {
    /// Reads a document that `--json` wrote, about one server or several.
    ///
    /// # Errors
    /// A sentence that says why the text cannot be read.
    pub fn read(text: &str) -> Result<Vec<ReportDocument>, String> {
        let value: Value = lastdrop_model::read_json(text).map_err(|e| format!("no JSON: {e}"))?;
        let schema = value["schema"].as_str().unwrap_or_default().to_string();
        match value.get("servers").and_then(Value::as_array) {
            Some(servers) => servers.iter().map(|s| ReportDocument::of(&schema, &s.to_string())).collect(),
            None => ReportDocument::of(&schema, text).map(|s| vec![s]),
        }
    }

    fn of(schema: &str, text: &str) -> Result<ReportDocument, String> {
        fn boxed<T: serde::de::DeserializeOwned>(text: &str) -> Result<Box<T>, String> {
            lastdrop_model::read_json(text).map(Box::new).map_err(|e| format!("a document that cannot be read: {e}"))
        }
        Ok(match schema {
            RUN_SCHEMA => ReportDocument::Run(boxed(text)?),
            CAPACITY_SCHEMA => ReportDocument::Capacity(boxed(text)?),
            HEADROOM_SCHEMA => ReportDocument::Headroom(boxed(text)?),
            COMPARE_SCHEMA => ReportDocument::Compare(boxed(text)?),
            TUNE_SCHEMA => ReportDocument::Tune(boxed(text)?),
            DOCTOR_SCHEMA => ReportDocument::Doctor(boxed(text)?),
            SWEEP_SCHEMA => ReportDocument::Sweep(boxed(text)?),
            SIZE_SCHEMA => ReportDocument::Size(boxed(text)?),
            TRACE_SCHEMA => ReportDocument::Trace(boxed(text)?),
            PROFILE_SCHEMA => ReportDocument::Profile(boxed(text)?),
            "" => return Err("it does not say what it is: no \"schema\"".into()),
            other => return Err(format!("there is no page for {other}")),
        })
    }

    /// Renders the document as text.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            ReportDocument::Run(run) => crate::run_text(run),
            ReportDocument::Pair(d, ..) | ReportDocument::Compare(d) => crate::compare_text(d),
            ReportDocument::Capacity(d) => crate::capacity_text(d),
            ReportDocument::Headroom(d) => crate::headroom_text(d),
            ReportDocument::Tune(d) => crate::tune_text(d, false),
            // There is no --all for a stored document, so show everything.
            ReportDocument::Doctor(d) => crate::doctor_text(d, true),
            ReportDocument::Sweep(d) => crate::sweep_text(d),
            ReportDocument::Size(d) => crate::size_text(d),
            ReportDocument::Trace(d) => crate::trace_text(d, false),
            ReportDocument::Profile(d) => crate::profile_text(d),
        }
    }

    /// Returns the document's headline.
    pub(crate) fn headline(&self) -> Headline {
        match self {
            ReportDocument::Run(run) => run::verdict(run),
            ReportDocument::Pair(d, ..) | ReportDocument::Compare(d) => compare::verdict(d),
            ReportDocument::Capacity(d) => capacity::verdict(d),
            ReportDocument::Headroom(d) => headroom::verdict(d),
            ReportDocument::Tune(d) => tune::verdict(d),
            ReportDocument::Doctor(d) => doctor::verdict(d),
            ReportDocument::Sweep(d) => sweep::verdict(d),
            ReportDocument::Size(d) => size::verdict(d),
            ReportDocument::Trace(d) => trace::verdict(d),
            ReportDocument::Profile(d) => profile::verdict(d),
        }
    }

    /// Returns whether the user asked to keep secrets in this document that others must not read.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        match self {
            ReportDocument::Run(run) => run.plan.keep_secrets,
            ReportDocument::Pair(_, a, b) => a.plan.keep_secrets || b.plan.keep_secrets,
            _ => false,
        }
    }
}

/// Renders a page with a section for each document.
#[must_use]
pub fn html_report(shown: &[ReportDocument], made: &str) -> String {
    let mut plots = Plots::default();
    let sections = sections(shown, &mut plots);
    let title = sections.first().map_or("report", |s| s.title.as_str());
    let (lead, tail, plots) = (Markup::default(), Markup::default(), plots.json());
    Page { title, lead, sections: &sections, tail, plots: &plots, made, served: false }.html()
}

/// The part of a served page between its lead and its tail.
#[derive(Debug)]
pub enum Content<'a> {
    Nothing,
    Documents(&'a [ReportDocument]),
    Live(&'a LiveRun<'a>),
}

/// Renders a page of the web UI, with its own markup around the sections. Serve it with [`served_policy`].
#[must_use]
pub fn served_page(title: &str, lead: Markup, content: &Content<'_>, tail: Markup, made: &str) -> String {
    let mut plots = Plots::default();
    let sections = match content {
        Content::Nothing => Vec::new(),
        Content::Documents(shown) => sections(shown, &mut plots),
        Content::Live(live) => vec![live::section(live, &mut plots)],
    };
    Page { title, lead, sections: &sections, tail, plots: &plots.json(), made, served: true }.html()
}

fn sections(shown: &[ReportDocument], plots: &mut Plots) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for one in shown {
        match one {
            ReportDocument::Run(run) => sections.push(run::section(run, plots)),
            ReportDocument::Pair(document, a, b) => {
                sections.push(compare::section(document, Some((a, b)), plots));
                sections.extend([a, b].map(|run| run::section(run, plots)));
            }
            ReportDocument::Compare(document) => sections.push(compare::section(document, None, plots)),
            ReportDocument::Capacity(document) => sections.push(capacity::section(document)),
            ReportDocument::Headroom(document) => sections.push(headroom::section(document)),
            ReportDocument::Tune(document) => sections.push(tune::section(document)),
            ReportDocument::Doctor(document) => sections.push(doctor::section(document)),
            ReportDocument::Sweep(document) => sections.push(sweep::section(document)),
            ReportDocument::Size(document) => sections.push(size::section(document)),
            ReportDocument::Trace(document) => sections.push(trace::section(document)),
            ReportDocument::Profile(document) => sections.push(profile::section(document)),
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lastdrop_model::documents::{Evidence, Finding, Severity};
    use lastdrop_model::{HostSample, ListenQueue, Sample, ServerTimeline, Timeline};
    use serde_json::json;

    use super::fixtures::run_of;
    use super::*;

    const EVIL: &str = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u{2028}\0";

    /// A server with a hostile name, sampled every second.
    fn observed(seconds: u32) -> ServerTimeline {
        let look = |t: u32| Sample {
            t_s: f64::from(t) + 1.0,
            span_s: 1.0,
            worker_count: 8,
            busy: Some(u64::from(t % 8)),
            cpu_cores: Some(f64::from(t % 13) * 0.123_456),
            real_memory_bytes: Some(123_456_789 + u64::from(t) * 1000),
            private_bytes: Some(23_456_789),
            listen: vec![ListenQueue {
                address: EVIL.into(),
                queue: u64::from(t % 40),
                limit: 511,
                ..ListenQueue::default()
            }],
            sockets: BTreeMap::from([("established".into(), u64::from(t)), ("time_wait".into(), 7)]),
            kernel: BTreeMap::from([("ListenOverflows".into(), u64::from(t.is_multiple_of(3)))]),
            host: HostSample { cores: vec![0.5, 0.25], steal: Some(0.01), ..HostSample::default() },
            log: vec![EVIL.into()],
            ..Sample::default()
        };
        ServerTimeline {
            name: EVIL.into(),
            samples: (0..seconds).map(look).collect::<Timeline<Sample>>(),
            unread: vec![EVIL.into()],
            ..ServerTimeline::default()
        }
    }

    fn is_closed(page: &str) {
        let own = page.matches("<script").count() - page.matches("<script type=\"application/json\"").count();
        assert_eq!(own, 1, "one script is ours and the rest is data");
        assert!(!page.contains("<img"), "markup of others");
        assert!(page.chars().all(|c| !c.is_control() || c == '\n' || c == '\t') && !page.contains('\u{2028}'));
    }

    #[test]
    fn an_hour_is_less_than_a_megabyte() {
        let mut run = run_of(3600, 60);
        run.server = Some(observed(3600));
        let page = html_report(&[ReportDocument::Run(Box::new(run))], "test");
        assert!(page.len() < 1_000_000, "{} bytes", page.len());
        is_closed(&page);
    }

    #[test]
    fn whatever_others_are_called_a_page_is_closed() {
        let mut run = run_of(2, 5);
        run.server = Some(observed(2));
        run.label = EVIL.into();
        run.generator.connect_errors.insert(EVIL.into(), 3);
        run.environment = json!({ EVIL: EVIL });
        run.phases[0].classes[0].name = EVIL.into();
        let more: Vec<_> = (0..5000)
            .map(|i| {
                let mut c = run.phases[0].classes[0].clone();
                c.name = format!("{EVIL}{i}");
                c
            })
            .collect();
        run.phases[0].classes.extend(more);
        let size = |p: &str| p.len();
        let page = html_report(&[ReportDocument::Run(Box::new(run))], EVIL);
        is_closed(&page);
        assert!(size(&page) < 300_000, "5,000 classes: {} bytes", size(&page));
    }

    #[test]
    fn every_document_has_a_page() {
        let finding = Finding {
            id: EVIL.into(),
            severity: Severity::Limit,
            title: EVIL.into(),
            evidence: vec![Evidence {
                name: EVIL.into(),
                source: EVIL.into(),
                value: json!(3.0),
                threshold: json!(2.0),
            }],
            ..Finding::default()
        };
        let doctor = DoctorDocument { url: EVIL.into(), findings: vec![finding], ..DoctorDocument::default() };
        let documents = [
            json!({"schema": TUNE_SCHEMA, "server": EVIL, "url": EVIL, "verdict": "improved", "because": EVIL, "baseline": null,
                "winner": null, "trials": [
                    {"settings": {"workers": EVIL}, "objective": 90.0, "valid": true, "why": "", "p99_us": 900.0, "unanswered": 0,
                     "real_memory_bytes": 1, "warmed": "no", "role": "search", "keepalive": "on", "run": "a"},
                    {"settings": {}, "objective": 80.0, "valid": false, "why": EVIL, "p99_us": 950.0, "unanswered": 1,
                     "real_memory_bytes": null, "warmed": "no", "role": "baseline", "keepalive": "on", "run": "b"}],
                "race": [{"baseline": 0.0, "best": 90.0}], "diff": [format!("+{EVIL}")], "kept": false, "kept_in": null,
                "restored": true, "interrupted": false, "notes": [EVIL]}),
            json!({"schema": CAPACITY_SCHEMA, "url": EVIL, "objective": ["p99<300ms"], "met": true, "capacity_rps": 100.0,
                "interval": [100.0, 120.0], "because": EVIL, "held_s": 15.0, "steps": [
                    {"rate": 100.0, "ok": true, "role": EVIL, "seconds": 2.0, "answered_rps": 99.0, "p50_us": 100.0, "p99_us": 900.0,
                     "errors": 0.0, "why": "", "run": "a"}],
                "stairs": [{"users": 1, "rps": 10.0, "mean_us": 1.0, "p50_us": 1.0, "p99_us": 1.0, "errors": 0.0, "run": "b"}],
                "knee": {"users": 4.0, "interval": [3.0, 5.0], "rps": 40.0, "from": "usl"},
                "usl": {"lambda": 10.0, "sigma": 0.1, "kappa": 0.001, "lambda_interval": [9.0, 11.0], "sigma_interval": [0.0, 0.2],
                    "kappa_interval": [0.0, 0.01], "peak_users": 30.0, "peak_rps": 70.0, "residuals": [0.0], "fits": true, "why": ""},
                "departure_rps": null, "interrupted": false, "notes": [EVIL]}),
            json!({"schema": HEADROOM_SCHEMA, "url": EVIL, "objective": ["p99<300ms"], "logs": [EVIL],
                "demand": {"peak_rps": 9.0, "busiest_minute_rps": 5.0, "requests": 9, "rhythm": [1.0],
                    "growth": {"per_week": 0.1, "interval": [0.0, 0.2]}},
                "capacity_rps": 10.0, "headroom": 2.0, "workers": 3, "held_s": 0.1, "held_from": EVIL, "machines": 2,
                "burst": [{"rank": 9, "wait_s": 0.9}], "reached": {"from": EVIL, "to": EVIL}, "cannot_tell": EVIL,
                "step": {"what": "machine", "because": EVIL, "headroom": 4.0}, "assumptions": [EVIL], "notes": [EVIL]}),
            json!({"schema": COMPARE_SCHEMA, "kind": "live", "a": {"name": EVIL, "runs": []}, "b": {"name": EVIL, "runs": []},
                "metrics": {"rps": {"a": 1.0, "b": 2.0, "ratio": 2.0, "interval": [1.5, 2.5], "verdict": "better", "smallest_difference": 0.1},
                    EVIL: {"a": 0.0, "b": 0.0, "ratio": 1.0, "interval": [0.0, 1e300], "verdict": "inconclusive", "smallest_difference": 0.1}},
                "verdict": "better", "because": EVIL, "smallest_difference": 0.1,
                "blocks": [{"a": {"rps": 1.0}, "b": {"rps": 2.0}, "b_first": false, "spoiled": EVIL}], "noise_floor": null,
                "interrupted": false, "notes": [EVIL]}),
            json!({"schema": SWEEP_SCHEMA, "server": EVIL, "varying": ["workers", EVIL], "fixed": {EVIL: EVIL}, "rows": [
                    {"series": EVIL, "url": EVIL, "settings": {"workers": 4}, "requests": 9, "users": 2, "answered": 9, "failed": 0,
                     "rps": 5.0, "p50_us": 3.0, "p99_us": 4.0, "warmed": "no", "run": "a", "note": EVIL},
                    {"series": EVIL, "url": EVIL, "settings": {"workers": 8}, "requests": 9, "users": 2, "answered": 9, "failed": 0,
                     "rps": 9.0, "rps_interval": [8.0, 10.0], "p50_us": 3.0, "p99_us": 4.0, "warmed": "no", "run": "a", "note": ""}],
                "complete": true, "notes": [EVIL]}),
            json!({"schema": TRACE_SCHEMA, "server": EVIL, "url": EVIL, "requests": 3, "calls_per_request": 4.0, "us_per_request": 5.0,
                "floor_us": 1.0, "calls": [{"call": EVIL, "path": EVIL, "per_request": 1.0, "error": EVIL, "us_per_request": 2.0, "traced": true}],
                "waiting": [{"call": EVIL, "what": EVIL, "peer": EVIL, "per_request": 1.0, "us_per_request": 1.0}],
                "kinds": [{"kind": EVIL, "per_request": 1.0, "us_per_request": 1.0, "title": EVIL, "advice": EVIL}], "notes": [EVIL]}),
            json!({"schema": PROFILE_SCHEMA, "server": EVIL, "how": EVIL, "seconds": 3.0, "samples": 9, "cpu_s": 1.0, "requests": 4,
                "us_per_request": 5.0, "functions": [{"function": EVIL, "library": EVIL, "self_share": 0.5, "total_share": 0.6,
                "us_per_request": null}], "libraries": [{"name": EVIL, "share": 0.4, "us_per_request": null}],
                "stacks": [[[EVIL, "main"], 9]], "notes": [EVIL]}),
            serde_json::to_value(doctor)
                .expect("a document")
                .as_object()
                .map(|o| {
                    let mut o = o.clone();
                    o.insert("schema".into(), json!(DOCTOR_SCHEMA));
                    Value::Object(o)
                })
                .expect("an object"),
        ];
        let shown: Vec<ReportDocument> = documents
            .iter()
            .flat_map(|d| ReportDocument::read(&d.to_string()).unwrap_or_else(|e| panic!("{e}: {d}")))
            .collect();
        for one in &shown {
            let page = html_report(std::slice::from_ref(one), "test");
            is_closed(&page);
            assert!(!page.contains("NaN") && !page.contains(">inf"), "{one:?}");
        }
        is_closed(&html_report(&shown, "all of them"));
    }

    #[test]
    fn what_has_no_page_says_so() {
        for (text, why) in [
            ("{", "JSON"),
            ("{}", "schema"),
            ("{\"schema\":\"lastdrop.watch/1\"}", "no page"),
            ("{\"schema\":\"lastdrop.run/1\"}", "cannot be read"),
        ] {
            assert!(ReportDocument::read(text).expect_err(text).contains(why), "{text}");
        }
    }
}
