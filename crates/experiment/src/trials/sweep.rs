//! Measures a matrix of named variants, settings, users, requests and URLs. The server is started fresh before each
//! row.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lastdrop_analyze::objective::error_statuses;
use lastdrop_analyze::ratio;
use lastdrop_analyze::series::median;
use lastdrop_model::documents::{SWEEP_SCHEMA, SweepDocument, SweepRow};
use lastdrop_model::event::{Document, Outcome, TrialBegan};
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{Load, Phase, Plan};
use lastdrop_model::settings::describe;
use lastdrop_model::units::show_duration;
use lastdrop_model::{Event, KeptPlan, Kind, Run};
use lastdrop_server::{Change, RestoreReport, Stack};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::{Value, json};

use crate::lab::runs::{Lab, LabError, random_u32};
use crate::trials::sweep_plan::{SweepCell, SweepPlan};
use crate::trials::trial::{TrialSpec, trial};

/// Runs every cell once per round and restores the servers. If the user stops it, the document contains the rows
/// measured so far.
///
/// # Errors
/// When a server cannot be restored, or does not come up.
pub fn sweep(lab: &mut Lab<'_>, mut stack: Option<Stack>, plan: &SweepPlan) -> Result<SweepDocument, LabError> {
    let original = stack.as_ref().map(|s| s.original().settings.clone()).unwrap_or_default();
    let mut notes = stack.as_ref().map(|s| s.original().notes.clone()).unwrap_or_default();
    let named: BTreeSet<&String> = plan.cells.iter().flat_map(|c| c.settings.keys()).collect();
    let mut measured: Vec<Vec<SweepRow>> = vec![Vec::new(); plan.cells.len()];
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(u64::from(plan.seed.unwrap_or_else(random_u32)));
    let mut done = 0;
    let turns = (0..plan.rounds).flat_map(|round| {
        let mut order: Vec<usize> = (0..plan.cells.len()).collect();
        // Shuffled, so that a drift over time does not always affect the same row.
        if plan.rounds > 1 {
            for i in (1..order.len()).rev() {
                order.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
            }
        }
        order.into_iter().map(move |i| (round, i))
    });
    let turns: Vec<(u32, usize)> = turns.collect();
    let outcome = turns.into_iter().try_for_each(|(round, i)| {
        let cell = &plan.cells[i];
        done += 1;
        let began = TrialBegan {
            number: done,
            of: Some(plan.cells.len() as u64 * u64::from(plan.rounds)),
            round: (plan.rounds > 1).then_some(round + 1),
            role: "sweep".into(),
            series: cell.series.as_str().into(),
            settings: Cow::Borrowed(&cell.settings),
            directives: cell.directives().into(),
            users: cell.users,
            requests: cell.requests,
            duration: cell.duration,
            url: cell.url.to_string().into(),
        };
        lab.tell(&Event::TrialBegan { trial: began });
        let mut row = measure(lab, stack.as_mut(), plan, cell)?;
        for name in &named {
            if let Some(value) = original.get(*name) {
                row.settings.entry((*name).clone()).or_insert_with(|| value.clone());
            }
        }
        let outcome = Outcome::Sweep { row: Cow::Borrowed(&row) };
        lab.tell(&Event::TrialDone { outcome });
        measured[i].push(row);
        Ok::<(), LabError>(())
    });
    if let Some(stack) = &mut stack {
        lab.tell(&Event::Restoring);
        let restored = stack.restore()?;
        notes.extend(restored.iter().flat_map(RestoreReport::notes));
    }
    match outcome {
        Ok(()) | Err(LabError::Interrupted) => {}
        Err(e) => return Err(e),
    }
    let complete = measured.iter().all(|rounds| rounds.len() == plan.rounds as usize);
    let mut rows: Vec<SweepRow> = measured.iter().filter_map(|rounds| together(rounds)).collect();
    let sorted_by = plan.sort.clone().unwrap_or_default();
    sort_rows(&mut rows, &sorted_by);
    // The number of requests that a row made in a fixed time is a result, not a parameter.
    let counted = plan.cells.iter().any(|c| c.requests.is_some());
    let abbreviations = stack.as_ref().map(Stack::abbreviations).unwrap_or_default();
    let (varying, mut fixed) = split(&rows, counted, &abbreviations);
    if let (false, Some(d)) = (counted, plan.cells.first().and_then(|c| c.duration)) {
        fixed.insert("duration".into(), json!(show_duration(d)));
    }
    fixed.insert("keepalive".into(), json!(plan.keepalive.to_string()));
    if plan.http.version != Version::Http11 {
        fixed.insert("http".into(), json!(plan.http.spoken().name()));
    }
    fixed.insert("timeout".into(), json!(show_duration(plan.timeout)));
    if plan.rounds > 1 {
        fixed.insert("rounds".into(), json!(plan.rounds));
    }
    let server = stack.as_ref().map(Stack::name);
    let schema = SWEEP_SCHEMA.into();
    let rounds = plan.rounds;
    let document =
        SweepDocument { schema, server, varying, abbreviations, fixed, rows, rounds, sorted_by, complete, notes };
    lab.tell(&Event::Concluded { document: Document::Sweep { found: Cow::Borrowed(&document) } });
    Ok(document)
}

/// Combines the rounds of a row: sums of counts, the geometric mean of the throughput with Student's interval of the
/// logarithms, medians of the percentiles. None if no round was measured.
fn together(rounds: &[SweepRow]) -> Option<SweepRow> {
    let mut row = rounds.last()?.clone();
    row.runs = rounds.iter().map(|r| r.run.clone()).filter(|id| !id.is_empty()).collect();
    if rounds.len() < 2 {
        return Some(row);
    }
    row.answered = rounds.iter().map(|r| r.answered).sum();
    row.failed = rounds.iter().map(|r| r.failed).sum();
    let weighted: f64 = rounds.iter().map(|r| r.avtime_us * r.answered as f64).sum();
    row.avtime_us = if row.answered > 0 { weighted / row.answered as f64 } else { 0.0 };
    let middle = |of: fn(&SweepRow) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
    (row.p50_us, row.p99_us) = (middle(|r| r.p50_us), middle(|r| r.p99_us));
    // The ratio to one request per second is the throughput itself.
    let pairs: Vec<(f64, f64)> = rounds.iter().map(|r| (1.0, r.rps)).collect();
    match ratio::paired(&pairs, 0.95) {
        Some(r) => (row.rps, row.rps_interval) = (r.ratio, Some([r.low, r.high])),
        None => row.rps = rounds.iter().map(|r| r.rps).sum::<f64>() / rounds.len() as f64,
    }
    row.note = rounds.iter().map(|r| r.note.clone()).find(|n| !n.is_empty()).unwrap_or_default();
    Some(row)
}

/// Sorts the best row first: throughput and completed requests descending, everything else ascending. Rows without
/// numbers come last.
fn sort_rows(rows: &mut [SweepRow], by: &str) {
    let number = |r: &SweepRow| -> Option<f64> {
        Some(match by.to_ascii_lowercase().as_str() {
            "rps" => -r.rps,
            "completed" => -(r.answered as f64),
            "avtime" => r.avtime_us,
            "p99" => r.p99_us,
            "failed" => r.failed as f64,
            "users" => f64::from(r.users),
            "requests" => r.requests as f64,
            "query_length" => f64::from(r.query_length.unwrap_or(0)),
            _ => return None,
        })
    };
    let setting = |r: &SweepRow| r.settings.iter().find(|(k, _)| k.eq_ignore_ascii_case(by)).map(|(_, v)| v.clone());
    match by.to_ascii_lowercase().as_str() {
        "" => {}
        "name" => rows.sort_by(|a, b| a.series.cmp(&b.series)),
        "url" => rows.sort_by(|a, b| a.url.cmp(&b.url)),
        _ => rows.sort_by(|a, b| {
            let (na, nb) = (number(a).unwrap_or(0.0), number(b).unwrap_or(0.0));
            a.run.is_empty().cmp(&b.run.is_empty()).then(na.total_cmp(&nb)).then_with(|| setting(a).cmp(&setting(b)))
        }),
    }
}

fn measure(
    lab: &mut Lab<'_>,
    stack: Option<&mut Stack>,
    plan: &SweepPlan,
    cell: &SweepCell,
) -> Result<SweepRow, LabError> {
    let mut load = Plan::new(cell.url.clone(), u64::from(plan.seed.unwrap_or_else(random_u32)));
    load.phases = vec![Phase {
        name: "main".into(),
        measured: true,
        load: Load::closed(cell.users),
        requests: cell.requests,
        duration: cell.duration,
    }];
    load.keepalive = plan.keepalive;
    load.http.clone_from(&plan.http);
    load.timeout = plan.timeout;
    load.tls.insecure = plan.insecure;
    load.drain = plan.timeout;
    load.threads = plan.threads;
    load.keep_secrets = plan.keep_secrets;
    for request in &mut load.requests {
        request.headers.clone_from(&cell.headers);
    }
    let label = format!("sweep {}: {}", cell.series, describe(&cell.settings));
    let (run, warmed, note) = match stack {
        Some(stack) => {
            let settings = if plan.whole_pools { stack.complete(&cell.settings)? } else { cell.settings.clone() };
            let change = Change { settings, ..cell.change.clone() };
            let order = TrialSpec {
                plan: &load,
                change,
                label,
                role: "sweep",
                recycling_warm_up: plan.warm_up,
                settling: Duration::ZERO,
                until_grown: false,
                budget: None,
                most_unanswered: 1.0,
                early_stop: None,
            };
            let measured = trial(lab, stack, &order)?;
            (measured.run, measured.trial.warmed, measured.trial.why)
        }
        None => {
            let (run, _) = lab.run_undisturbed(&load, &label)?;
            lab.check_stop()?;
            (Some(run), "no".into(), String::new())
        }
    };
    // The requested URL and headers in the form in which the run stores them.
    let asked = KeptPlan::from(load);
    let mut row = row(cell, run.as_ref(), warmed, note);
    row.url = asked.url.in_full();
    let headers = asked.requests.iter().flat_map(|r| &r.headers).map(|(n, v)| format!("{n}: {v}"));
    row.header = headers.collect::<Vec<_>>().join("; ");
    Ok(row)
}

fn row(cell: &SweepCell, run: Option<&Run>, warmed: String, note: String) -> SweepRow {
    let phase = run.and_then(Run::measured);
    let latency = |q| phase.and_then(|p| p.latency(Kind::Response, q)).unwrap_or(0.0);
    let answered = phase.map_or(0, |p| p.requests.answered);
    let bad_status = phase.map_or(0, |p| error_statuses(p));
    SweepRow {
        series: cell.series.clone(),
        url: String::new(),
        query_length: cell.query_length,
        header: String::new(),
        settings: cell.settings.clone(),
        directives: cell.directives(),
        requests: cell.requests.unwrap_or_else(|| phase.map_or(0, |p| p.requests.due)),
        users: cell.users,
        answered,
        failed: phase.map_or(0, |p| p.requests.due - answered.min(p.requests.due)) + bad_status,
        avtime_us: latency("mean"),
        rps: phase.map_or(0.0, |p| p.rate.answered_rps),
        rps_interval: None,
        p50_us: latency("p50"),
        p99_us: latency("p99"),
        warmed,
        run: run.map(|r| r.id.clone()).unwrap_or_default(),
        runs: Vec::new(),
        note,
    }
}

/// Returns the parameters that differ between rows, and the values of those that do not.
fn split(rows: &[SweepRow], counted: bool, first: &[(String, String)]) -> (Vec<String>, BTreeMap<String, Value>) {
    let mut varying = Vec::new();
    let mut fixed = BTreeMap::new();
    let named: BTreeSet<&String> = rows.iter().flat_map(|r| r.settings.keys()).collect();
    // The usual columns of such tables come first, in their order: NR, NC, MC, MRPC.
    let mut settings: Vec<String> = named.into_iter().cloned().collect();
    settings.sort_by_key(|name| first.iter().position(|(f, _)| f == name).unwrap_or(first.len()));
    let mut column = |name: &str, value: &dyn Fn(&SweepRow) -> Value| {
        let Some(first) = rows.first().map(value) else { return };
        if rows.iter().all(|r| value(r) == first) {
            if first != Value::Null && first != json!("") {
                fixed.insert(name.to_string(), first);
            }
        } else {
            varying.push(name.to_string());
        }
    };
    column("series", &|r| json!(r.series));
    if counted {
        column("requests", &|r| json!(r.requests));
    }
    column("users", &|r| json!(r.users));
    for name in &settings {
        column(name, &|r| r.settings.get(name).map_or(Value::Null, |v| json!(v)));
    }
    column("directives", &|r| json!(r.directives));
    column("query_length", &|r| json!(r.query_length));
    column("header", &|r| json!(r.header));
    // Queries that differ only in length are told apart by their length column.
    let base = |r: &SweepRow| {
        if r.query_length.is_some() { r.url.split('?').next().unwrap_or("").into() } else { r.url.clone() }
    };
    column("url", &|r| json!(base(r)));
    (varying, fixed)
}
