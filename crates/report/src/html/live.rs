//! A run in progress: how far it is, its latest numbers and its plots, which the page's script extends.

use lastdrop_model::units::show_us;
use lastdrop_model::{KeptPlan, Sample};
use maud::{Markup, html};
use serde::Serialize;

use super::number::{Unit, count, seconds};
use super::page::Section;
use super::timeplot::{Clock, Plots, Series, TimePlot};
use crate::run::{describe, utc};
use crate::server::shown_queue;

/// One second of a run, in the page and in the updates sent to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveSecond {
    /// Middle of the second, in seconds since the run began.
    pub at_s: f64,
    pub answered: u64,
    pub failed: u64,
    /// Response time percentiles, microseconds; `None` without answers.
    pub p50: Option<u64>,
    pub p90: Option<u64>,
    pub p99: Option<u64>,
    pub max: Option<u64>,
}

/// One sample of the server, in the page and in the updates sent to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveSample {
    /// Middle of the sampled time, in seconds since the run began.
    pub at_s: f64,
    pub server_cores: Option<f64>,
    pub machine_cores: Option<f64>,
    pub workers: u64,
    pub busy: Option<u64>,
    /// Length of the listen queue.
    pub queue: Option<u64>,
}

impl LiveSample {
    #[must_use]
    pub fn of(look: &Sample) -> LiveSample {
        let cores = &look.host.cores;
        LiveSample {
            at_s: middle(look),
            server_cores: look.cpu_cores,
            machine_cores: (!cores.is_empty()).then(|| cores.iter().sum()),
            workers: look.worker_count,
            busy: look.busy,
            queue: shown_queue(look).map(|q| q.queue),
        }
    }
}

/// Returns the middle of the time that a sample covers, which is at most its last second.
pub(super) fn middle(look: &Sample) -> f64 {
    look.t_s - look.span_s.min(1.0) / 2.0
}

/// What is known so far of a run in progress.
#[derive(Debug)]
pub struct LiveRun<'a> {
    pub id: &'a str,
    pub label: &'a str,
    pub started_unix_ms: u64,
    /// The plan, without its requests.
    pub plan: &'a KeptPlan,
    /// The latest seconds, in order of time.
    pub moments: Vec<LiveSecond>,
    /// The latest samples of the server, in order of time; empty if no server is sampled.
    pub sights: Vec<LiveSample>,
    /// Total since the run began.
    pub answered: u64,
    pub failed: u64,
    /// The position in the event stream up to which this page is complete.
    pub key: String,
    /// Address of the event stream.
    pub address: String,
}

impl LiveRun<'_> {
    /// Planned length in seconds; `None` if the run ends after a number of requests.
    fn length_s(&self) -> Option<f64> {
        self.plan.phases.iter().map(|p| p.duration.filter(|_| p.requests.is_none()).map(|d| d.as_secs_f64())).sum()
    }
}

/// Rows of the table of seconds.
const ROWS: usize = 120;

fn us(value: Option<u64>) -> String {
    value.map_or("–".into(), |us| show_us(us as f64))
}

fn latest_seconds(live: &LiveRun<'_>) -> Markup {
    html! {
        details.numbers {
            summary { "Table: the latest seconds" }
            div.wide tabindex="0" role="group" aria-label="The latest seconds" {
                table {
                    caption { "the latest seconds" }
                    thead { tr {
                        th scope="col" { "from" }
                        @for name in ["answers", "failed", "half within", "90 of 100 within", "99 of 100 within", "slowest"] {
                            th scope="col" .n { (name) }
                        }
                    } }
                    tbody data-live="rows" {
                        @for m in live.moments.iter().rev().take(ROWS) { tr {
                            th scope="row" { (seconds(m.at_s - 0.5)) }
                            td.n { (count(m.answered)) }
                            td.n { (count(m.failed)) }
                            @for value in [m.p50, m.p90, m.p99, m.max] { td.n { (us(value)) } }
                        } }
                    }
                }
            }
        }
    }
}

pub(super) fn section(live: &LiveRun<'_>, plots: &mut Plots) -> Section {
    let mut about = vec![format!("{} UTC", utc(live.started_unix_ms).replace('T', " ").trim_end_matches('Z'))];
    about.extend(live.plan.phases.iter().find(|p| p.measured).map(|p| describe(live.plan, p)));
    about.push(format!("keep-alive {}", live.plan.keepalive));
    about.push(format!("run {}", live.id));
    if !live.label.is_empty() {
        about.push(live.label.into());
    }
    let clock = Clock {
        name: live.id.into(),
        moments: live.moments.iter().map(|m| m.at_s).collect(),
        end_s: live.length_s().unwrap_or(10.0),
        marks: Vec::new(),
    };
    let of =
        |f: fn(&LiveSecond) -> Option<u64>| live.moments.iter().map(|m| f(m).map(|v| v as f64)).collect::<Vec<_>>();
    let rate = plots.add_growing(
        &clock,
        &TimePlot {
            title: "Answers a second",
            tells: "Each second.".into(),
            unit: Unit::Rate,
            log: false,
            small: false,
            series: vec![
                Series::new("answered", "c1", of(|m| Some(m.answered))),
                Series::new("failed or timed out", "c2", of(|m| Some(m.failed))),
            ],
        },
        &["answered", "failed"],
    );
    let latency = plots.add_growing(
        &clock,
        &TimePlot {
            title: "How long people waited",
            tells: "From when a request was due to the end of its answer. The scale is logarithmic.".into(),
            unit: Unit::Micros,
            log: true,
            small: false,
            series: vec![
                Series::new("half within", "c1", of(|m| m.p50)),
                Series::new("90 of 100 within", "c3", of(|m| m.p90)),
                Series::new("99 of 100 within", "c2", of(|m| m.p99)),
                Series::new("slowest", "c4", of(|m| m.max)).dashed(),
            ],
        },
        &["p50", "p90", "p99", "max"],
    );
    let server = server(live, &clock, plots);
    let last = live.moments.last();
    let at_s = last.map_or(0.0, |m| m.at_s);
    let numbers = [
        ("rate", last.map_or("–".into(), |m| Unit::Rate.show(m.answered as f64)), "answered now"),
        ("p50", us(last.and_then(|m| m.p50)), "half within"),
        ("p99", us(last.and_then(|m| m.p99)), "99 of 100 within"),
        ("max", us(last.and_then(|m| m.max)), "slowest"),
        ("failed", count(live.failed), "failed or timed out"),
        ("answers", count(live.answered), "answers so far"),
    ];
    let length = live.length_s();
    let body = html! {
        div data-follow=(live.address) data-key=(live.key) data-at=(at_s) data-length=(length.unwrap_or(0.0))
            data-answered=(live.answered) data-failed=(live.failed) {
            div.verdict.note {
                p.headline {
                    span.tone { "Under way" } " "
                    span data-live="time" { (seconds((at_s + 0.5).floor())) }
                    @if let Some(length) = length { " of " (seconds(length)) }
                }
                @if let Some(length) = length {
                    progress max=(length) value=(at_s.min(length)) aria-label="Time that has passed" {}
                }
                p.quiet role="status" data-live="state" {}
                noscript { p.quiet { "Scripts are not allowed here: load this page again to see what is new." } }
            }
            dl.key { @for (key, value, name) in numbers { div { dt { (name) } dd data-live=(key) { (value) } } } }
            h2.group { "Over time" }
            div.stack data-grows="second" { (rate) (latency) }
            (server)
            (latest_seconds(live))
        }
    };
    Section { title: live.plan.url.to_string(), about, body }
}

/// The server's plots, hidden until the first sample arrives.
fn server(live: &LiveRun<'_>, clock: &Clock, plots: &mut Plots) -> Markup {
    let clock = Clock {
        name: clock.name.clone(),
        moments: live.sights.iter().map(|s| s.at_s).collect(),
        end_s: clock.end_s,
        marks: Vec::new(),
    };
    let of = |f: fn(&LiveSample) -> Option<f64>| live.sights.iter().map(f).collect::<Vec<_>>();
    let mut small = |title, tells: &str, unit, series, news: &[&str]| {
        plots.add_growing(&clock, &TimePlot { title, tells: tells.into(), unit, log: false, small: true, series }, news)
    };
    let cpu = small(
        "Processors",
        "",
        Unit::Cores,
        vec![
            Series::new("server", "c1", of(|s| s.server_cores)),
            Series::new("whole machine", "c3", of(|s| s.machine_cores)).dashed(),
        ],
        &["server_cores", "machine_cores"],
    );
    let workers = small(
        "Workers",
        "All there are, and those at work.",
        Unit::Count,
        vec![
            Series::new("busy", "c1", of(|s| s.busy.map(|n| n as f64))),
            Series::new("there", "c3", of(|s| Some(s.workers as f64))).dashed(),
        ],
        &["busy", "workers"],
    );
    let queue = small(
        "Waiting to be accepted",
        "Connections in the listen queue.",
        Unit::Count,
        vec![Series::new("in the queue", "c2", of(|s| s.queue.map(|n| n as f64)))],
        &["queue"],
    );
    html! {
        div data-grows="look" hidden[live.sights.is_empty()] {
            h2.group { "The server at the same moments" }
            div.stack { (cpu) (workers) (queue) }
        }
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::Plan;

    use super::super::{Content, served_page};
    use super::*;

    #[test]
    fn a_run_that_has_just_begun_is_a_page_with_plots_to_grow() {
        let plan = KeptPlan::from(Plan::new("http://127.0.0.1/".parse().expect("valid"), 1));
        let moment = |t: u32| LiveSecond {
            at_s: f64::from(t) + 0.5,
            answered: 9,
            failed: 1,
            p50: Some(100),
            p90: Some(200),
            p99: Some(300),
            max: Some(400),
        };
        let look = Sample { t_s: 1.0, span_s: 1.0, worker_count: 4, ..Sample::default() };
        for (moments, sights) in [(vec![], vec![]), (vec![moment(0), moment(1)], vec![LiveSample::of(&look)])] {
            let hidden = sights.is_empty();
            let (answered, failed) = (9 * moments.len() as u64, moments.len() as u64);
            let label = "<script>alert(1)</script>";
            let (key, address) = ("7.0".to_string(), "/run/a/events".to_string());
            let live = LiveRun {
                id: "a",
                label,
                started_unix_ms: 5,
                plan: &plan,
                moments,
                sights,
                answered,
                failed,
                key,
                address,
            };
            let lead = html! {};
            let page = served_page("a run", lead.clone(), &Content::Live(&live), lead, "test");
            assert_eq!((page.matches("data-plot=").count(), page.matches("<script").count()), (5, 2), "{page}");
            assert_eq!(page.contains("data-grows=\"look\" hidden"), hidden, "{page}");
            assert!(page.contains("of 10 s") && page.contains("data-length=\"10\""), "{page}");
        }
    }
}
