//! A matrix of settings × users × requests × URLs, the server started afresh before each row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lastdrop_model::documents::{SWEEP_SCHEMA, SweepDocument, SweepRow};
use lastdrop_model::plan::{Load, Phase, Plan};
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_duration, show_us};
use lastdrop_model::{Kind, Run};
use lastdrop_server::Session;
use serde_json::{Value, json};

use crate::lab::{Lab, LabError, random_u32};
use crate::sweep_plan::{Cell, SweepPlan};
use crate::trial::{TrialOrder, trial};

/// Runs every cell. The document comes back with the rows that were measured also when the user stops it; the server
/// is as it was found.
///
/// # Errors
/// When the server cannot be brought back, or does not come up.
pub fn sweep(lab: &mut Lab<'_>, mut session: Option<Session>, plan: &SweepPlan) -> Result<SweepDocument, LabError> {
    let mut rows = Vec::new();
    let original = session.as_ref().map(|s| s.original().settings.clone()).unwrap_or_default();
    let mut notes = session.as_ref().map(|s| s.original().notes.clone()).unwrap_or_default();
    let named: BTreeSet<&String> = plan.cells.iter().flat_map(|c| c.settings.keys()).collect();
    let outcome = plan.cells.iter().enumerate().try_for_each(|(i, cell)| {
        lab.narrator.note(format!(
            "{}/{}  {} users, {}, {}  {}",
            i + 1,
            plan.cells.len(),
            cell.users,
            cell.requests.map_or_else(|| show_duration(cell.duration.unwrap_or_default()), |n| format!("{n} requests")),
            describe(&cell.settings),
            cell.url,
        ));
        let mut row = measure(lab, session.as_mut(), plan, cell)?;
        for name in &named {
            if let Some(value) = original.get(*name) {
                row.settings.entry((*name).clone()).or_insert_with(|| value.clone());
            }
        }
        let shown = if row.run.is_empty() {
            format!("     refused: {}", row.note)
        } else {
            format!("     {:.1}/s  p99 {}  failed {}", row.rps, show_us(row.p99_us), row.failed)
        };
        lab.narrator.note(shown);
        rows.push(row);
        Ok::<(), LabError>(())
    });
    if let Some(session) = &mut session {
        lab.narrator.note("putting the server back as it was found");
        let restored = session.restore()?;
        notes.extend(restored.differences.into_iter().map(|d| format!("after putting it back: {d}")));
    }
    match outcome {
        Ok(()) | Err(LabError::Interrupted) => {}
        Err(e) => return Err(e),
    }
    let complete = rows.len() == plan.cells.len();
    let (varying, mut fixed) = split(&rows);
    fixed.insert("keepalive".into(), json!(plan.keepalive.to_string()));
    fixed.insert("timeout".into(), json!(show_duration(plan.timeout)));
    let server = session.as_ref().map(|s| s.adapter().facts().name.clone());
    Ok(SweepDocument { schema: SWEEP_SCHEMA.into(), server, varying, fixed, rows, complete, notes })
}

fn measure(
    lab: &mut Lab<'_>,
    session: Option<&mut Session>,
    plan: &SweepPlan,
    cell: &Cell,
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
    load.timeout = plan.timeout;
    load.drain = plan.timeout;
    load.threads = plan.threads;
    let label = format!("sweep {}: {}", cell.series, describe(&cell.settings));
    let (run, warmed, note) = match session {
        Some(session) => {
            let order = TrialOrder {
                plan: &load,
                settings: cell.settings.clone(),
                label,
                role: "sweep",
                recycling_warm_up: plan.warm_up,
                settling: Duration::ZERO,
                budget: None,
                most_unanswered: 1.0,
            };
            let measured = trial(lab, session, &order)?;
            (measured.run, measured.trial.warmed, measured.trial.why)
        }
        None => {
            let run = lab.run(&load, &label)?;
            lab.check_stop()?;
            (Some(run), "no".into(), String::new())
        }
    };
    Ok(row(cell, run.as_ref(), warmed, note))
}

fn row(cell: &Cell, run: Option<&Run>, warmed: String, note: String) -> SweepRow {
    let phase = run.and_then(Run::measured);
    let latency = |q| phase.and_then(|p| p.latency(Kind::Response, q)).unwrap_or(0.0);
    let answered = phase.map_or(0, |p| p.requests.answered);
    let bad_status: u64 =
        phase.map_or(0, |p| p.status.iter().filter(|(c, _)| *c >= &"400".to_string()).map(|(_, n)| n).sum());
    SweepRow {
        series: cell.series.clone(),
        url: cell.url.to_string(),
        settings: cell.settings.clone(),
        requests: cell.requests.unwrap_or_else(|| phase.map_or(0, |p| p.requests.due)),
        users: cell.users,
        answered,
        failed: phase.map_or(0, |p| p.requests.due - answered.min(p.requests.due)) + bad_status,
        rps: phase.map_or(0.0, |p| p.rate.answered_rps),
        p50_us: latency("p50"),
        p99_us: latency("p99"),
        warmed,
        run: run.map(|r| r.id.clone()).unwrap_or_default(),
        note,
    }
}

/// Which parameters differ between rows, and the values of those that do not.
fn split(rows: &[SweepRow]) -> (Vec<String>, BTreeMap<String, Value>) {
    let mut varying = Vec::new();
    let mut fixed = BTreeMap::new();
    let named: BTreeSet<&String> = rows.iter().flat_map(|r| r.settings.keys()).collect();
    // The columns of the field's tables come first, in their order: NR, NC, MC, MRPC.
    let first = ["MaxRequestWorkers", "MaxConnectionsPerChild"];
    let mut settings: Vec<String> = named.into_iter().cloned().collect();
    settings.sort_by_key(|name| first.iter().position(|f| f == name).unwrap_or(first.len()));
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
    column("requests", &|r| json!(r.requests));
    column("users", &|r| json!(r.users));
    for name in &settings {
        column(name, &|r| r.settings.get(name).map_or(Value::Null, |v| json!(v)));
    }
    column("url", &|r| json!(r.url));
    (varying, fixed)
}
