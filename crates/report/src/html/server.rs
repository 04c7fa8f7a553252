//! The server during the load: CPU, workers, queues and memory on the same time axis as the answers, and
//! kernel events.

use std::collections::BTreeMap;

use lastdrop_model::{Sample, ServerTimeline};
use maud::{Markup, html};

use super::bins::Bins;
use super::number::{Unit, count, seconds};
use super::table::Table;
use super::text::EscapedText;
use super::timeplot::{Clock, Plots, Series, TimePlot};
use crate::server::{events, server_text, shown_queue};

/// Characters of the events at one moment; the list of events has all of them.
const MOST_TOLD: usize = 100;
/// Workers listed in the table.
const MOST_WORKERS: usize = 50;

/// Samples of the server in one stretch of the run.
#[derive(Default, Clone)]
struct StretchSamples {
    looks: u32,
    server_cores: Mean,
    host_busy: Mean,
    steal: Mean,
    workers: Option<f64>,
    busy: Option<f64>,
    queue: Option<f64>,
    established: Option<f64>,
    time_wait: Option<f64>,
    memory: Option<f64>,
    private: Option<f64>,
    events: BTreeMap<String, u64>,
}

#[derive(Default, Clone, Copy)]
struct Mean(f64, u32);

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(v) = value {
            *self = Mean(self.0 + v, self.1 + 1);
        }
    }

    fn get(self) -> Option<f64> {
        (self.1 > 0).then(|| self.0 / f64::from(self.1))
    }
}

impl StretchSamples {
    fn add(&mut self, look: &Sample) {
        self.looks += 1;
        self.server_cores.add(look.cpu_cores);
        let cores = &look.host.cores;
        self.host_busy.add((!cores.is_empty()).then(|| cores.iter().sum()));
        self.steal.add(look.host.steal.map(|s| s * cores.len().max(1) as f64));
        self.workers = Some(look.worker_count as f64);
        let most = |a: Option<f64>, b: Option<u64>| a.into_iter().chain(b.map(|b| b as f64)).reduce(f64::max);
        self.busy = most(self.busy, look.busy);
        self.queue = most(self.queue, shown_queue(look).map(|q| q.queue));
        self.established = most(self.established, look.sockets.get("established").copied());
        self.time_wait = most(self.time_wait, look.sockets.get("time_wait").copied());
        self.memory = look.real_memory_bytes.map(|b| b as f64).or(self.memory);
        self.private = look.private_bytes.map(|b| b as f64).or(self.private);
        for (what, n) in events(look) {
            *self.events.entry(what).or_default() += n;
        }
    }
}

/// Returns the plots, and the values that are not plotted.
pub(super) fn server(observed: &ServerTimeline, bins: &Bins, clock: &Clock, plots: &mut Plots) -> Markup {
    let mut all: Vec<StretchSamples> = vec![StretchSamples::default(); bins.bins.len()];
    let (mut limit, mut first_seen) = (0, BTreeMap::<String, (f64, u64)>::new());
    let mut processors = 0;
    for look in observed.samples.iter() {
        let at = bins.at(super::live::middle(&look));
        if let Some(seen) = all.get_mut(at) {
            seen.add(&look);
        }
        limit = limit.max(shown_queue(&look).map_or(0, |q| q.limit));
        processors = processors.max(look.host.cores.len());
        for (what, n) in events(&look) {
            first_seen.entry(what).or_insert((look.t_s, 0)).1 += n;
        }
    }
    if all.iter().all(|s| s.looks == 0) {
        return html! { pre.said { (super::text::block(&server_text(observed))) } };
    }
    let values = |of: fn(&StretchSamples) -> Option<f64>| all.iter().map(of).collect::<Vec<_>>();
    let marked: Vec<(usize, String)> = all
        .iter()
        .enumerate()
        .filter(|(_, s)| !s.events.is_empty())
        .map(|(i, s)| (i, s.events.iter().map(|(what, n)| format!("{what}: {n}")).collect::<Vec<_>>().join("; ")))
        .map(|(i, what)| (i, super::text::short(&what, MOST_TOLD)))
        .collect();
    // Only the first plot labels the events; those below just mark them.
    let silent: Vec<(usize, String)> = marked.iter().map(|(i, _)| (*i, String::new())).collect();
    let whole = table(&all, bins);
    let small = |title, tells: &str, unit, series| TimePlot {
        title,
        tells: tells.into(),
        unit,
        log: false,
        small: true,
        series,
    };
    let none = Table::default();
    let cpu = small(
        "Processors",
        &format!("The machine has {processors}."),
        Unit::Cores,
        vec![
            Series::new("server", "c1", values(|s| s.server_cores.get())),
            Series::new("whole machine", "c3", values(|s| s.host_busy.get())).dashed(),
            Series::new("stolen by the hypervisor", "c2", values(|s| s.steal.get().filter(|v| *v > 0.001))),
        ],
    );
    let workers = small(
        "Workers",
        "All there are, and those at work.",
        Unit::Count,
        vec![Series::new("busy", "c1", values(|s| s.busy)), Series::new("there", "c3", values(|s| s.workers)).dashed()],
    );
    let queue = small(
        "Waiting to be accepted",
        &format!("Connections in the listen queue, which has {} places.", count(limit)),
        Unit::Count,
        vec![Series::new("in the queue", "c2", values(|s| s.queue))],
    );
    let sockets = small(
        "Connections",
        "Of the server's network namespace.",
        Unit::Count,
        vec![
            Series::new("open", "c1", values(|s| s.established)),
            Series::new("closed, holding a port", "c4", values(|s| s.time_wait)).dashed(),
        ],
    );
    let memory = small(
        "Memory",
        "Shared pages counted once.",
        Unit::Bytes,
        vec![
            Series::new("real", "c1", values(|s| s.memory)),
            Series::new("private", "c3", values(|s| s.private)).dashed(),
        ],
    );
    html! {
        h2.group { "The server at the same moments" }
        div.stack {
            (plots.add(clock, cpu, &marked, &whole))
            (plots.add(clock, workers, &silent, &none))
            (plots.add(clock, queue, &silent, &none))
            (plots.add(clock, sockets, &[], &none))
            (plots.add(clock, memory, &[], &none))
        }
        (happened(&first_seen))
        details { summary { "What was seen, in words" } pre.said { (super::text::block(&server_text(observed))) } }
        (workers_table(observed).map(|t| t.folded()).unwrap_or_default())
    }
}

fn happened(events: &BTreeMap<String, (f64, u64)>) -> Markup {
    let mut rows: Vec<_> = events.iter().collect();
    rows.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
    let table = Table::new(
        "what the kernel and the server's limits had to say",
        1,
        &["what happened", "how often", "first at"],
    )
    .rows(rows.into_iter().map(|(what, (at, n))| vec![what.clone(), count(*n), seconds(*at)]));
    html! {
        @if table.is_empty() { p.quiet { (EscapedText("Nothing was refused, dropped or throttled by the kernel meanwhile.")) } }
        @else { h2.group { "Events" } (table.shown()) }
    }
}

fn table(all: &[StretchSamples], bins: &Bins) -> Table {
    const ROWS: usize = 120;
    let together = all.len().div_ceil(ROWS);
    let heading =
        ["from", "server cores", "machine cores", "workers", "busy", "queue", "real memory", super::table::NOTES];
    let mut table = Table::new("the server over time", 1, &heading);
    for (some, bin) in all.chunks(together).zip(bins.bins.chunks(together)) {
        let most = |of: fn(&StretchSamples) -> Option<f64>| some.iter().filter_map(of).reduce(f64::max);
        let show = |v: Option<f64>, unit: Unit| v.map_or("–".into(), |v| unit.show(v));
        let mut what: BTreeMap<&str, u64> = BTreeMap::new();
        some.iter().flat_map(|s| &s.events).for_each(|(e, n)| *what.entry(e).or_default() += n);
        let what: Vec<String> = what.into_iter().map(|(e, n)| format!("{e}: {n}")).collect();
        table.row(vec![
            seconds(bin[0].start_s),
            show(most(|s| s.server_cores.get()), Unit::Cores),
            show(most(|s| s.host_busy.get()), Unit::Cores),
            show(most(|s| s.workers), Unit::Count),
            show(most(|s| s.busy), Unit::Count),
            show(most(|s| s.queue), Unit::Count),
            show(most(|s| s.memory), Unit::Bytes),
            what.join("; "),
        ]);
    }
    table
}

fn workers_table(observed: &ServerTimeline) -> Option<Table> {
    if observed.workers.is_empty() {
        return None;
    }
    let heading = ["process", "state", "CPU", "resident", "real", "private", "age", "requests"];
    let bytes = |b: Option<u64>| b.map_or("–".into(), |b| Unit::Bytes.show(b as f64));
    let rows = observed.workers.iter().take(MOST_WORKERS).map(|w| {
        vec![
            w.pid.to_string(),
            w.state.clone(),
            w.cpu_cores.map_or("–".into(), |c| format!("{c:.2}")),
            bytes(w.rss_bytes),
            bytes(w.pss_bytes),
            bytes(w.private_bytes),
            seconds(w.age_s),
            w.requests.map_or("–".into(), count),
        ]
    });
    let shown = observed.workers.len().min(MOST_WORKERS);
    let caption = format!("workers at the end ({shown} of {})", observed.workers.len());
    Some(Table::new(caption, 2, &heading).rows(rows))
}
