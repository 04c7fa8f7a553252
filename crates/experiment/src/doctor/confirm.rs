//! Tries the proposed change in interleaved blocks against the server as it is, and finds the limit afterwards.

use std::time::Duration;

use crate::lab::warm::RECYCLING_WARM_UP;
use crate::lab::{Lab, LabError};
use crate::machine::Machine;
use crate::trials::trial::{TrialSpec, trial};
use lastdrop_analyze::ratio;
use lastdrop_diagnose::findings::{diagnose, diagnose_without};
use lastdrop_model::documents::{Confirmation, DoctorDocument, Finding, Fix, Severity};
use lastdrop_model::examination::Examination;
use lastdrop_model::plan::Plan;
use lastdrop_model::{Event, Setting, Settings};
use lastdrop_server::{Change, OtherTrafficPolicy, RestoreReport, ServerRef, Stack};
use serde_json::Value;

use crate::doctor::examine::{DoctorOptions, examine_again};
use crate::doctor::page_cache;
use crate::doctor::site::Site;

/// Number of pairs of blocks, and length of a block; it is shorter if the load that the user asks about is.
pub(super) const PAIRS: usize = 4;
const BLOCK: Duration = Duration::from_secs(4);
const SHORTEST_BLOCK: Duration = Duration::from_secs(1);
const SETTLING: Duration = Duration::from_secs(1);

/// Options for trying a change.
pub struct ConfirmOptions<'a> {
    /// How to treat other traffic on the servers.
    pub others: &'a OtherTrafficPolicy,
    /// Keeps the change if it helped.
    pub keep: bool,
    /// Where the servers run.
    pub machine: &'a dyn Machine,
}

impl std::fmt::Debug for ConfirmOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfirmOptions").field("keep", &self.keep).finish_non_exhaustive()
    }
}

/// Tries the change of the limit, and then restores the server, or keeps the change. The document gets the result: a
/// finding that the change refutes is withdrawn. Then tries a cache for pages that all users share, and restores that.
///
/// # Errors
/// When the servers cannot be changed or do not come back.
pub fn confirm(
    lab: &mut Lab<'_>,
    options: &DoctorOptions<'_>,
    site: &mut dyn Site,
    trying: &ConfirmOptions<'_>,
    document: &mut DoctorDocument,
) -> Result<(), LabError> {
    confirm_limit(lab, options, site, trying, document)?;
    page_cache::confirm(lab, options, trying, document)
}

fn confirm_limit(
    lab: &mut Lab<'_>,
    options: &DoctorOptions<'_>,
    site: &mut dyn Site,
    trying: &ConfirmOptions<'_>,
    document: &mut DoctorDocument,
) -> Result<(), LabError> {
    let Some(limit) = document.findings.iter().find(|f| f.severity == Severity::Limit).cloned() else {
        if !document.findings.iter().any(|f| f.id == page_cache::FINDING) {
            document.notes.push("nothing to confirm: there is no limit".into());
        }
        return Ok(());
    };
    let servers = servers_of(&limit, &document.examination, options.servers);
    let Some((references, settings)) = servers.filter(|(_, settings)| !settings.is_empty()) else {
        document.notes.push(format!("{} cannot be confirmed: no setting that lastdrop changes mends it", limit.id));
        return Ok(());
    };
    let url = Some(&options.plan.url);
    let mut stack = trying.machine.open(&references, url, trying.others)?;
    if let Err(e) = stack.check_names(&settings).and_then(|()| stack.check(&settings)) {
        document.notes.push(format!("{} cannot be confirmed: {e}", limit.id));
        return Ok(());
    }
    // Adds the limits and spares that go with a pool size: a pool that still grows while it is measured is not what was
    // proposed.
    let settings = stack.complete(&settings)?;
    let said = lastdrop_model::settings::describe(&settings);
    lab.tell(&Event::Experiment { what: format!("does it help? {said}, in {PAIRS} pairs of blocks").into() });
    let outcome = measure(lab, &options.plan, options.time, &mut stack, &Change::from(&settings));
    let after = match &outcome {
        Ok(_) => {
            examine_again(lab, options, site, &document.examination).map(|examination| diagnose(&examination).limit)
        }
        Err(_) => Ok(None),
    };
    let pairs = match outcome {
        Ok(pairs) => pairs,
        Err(e) => {
            stack.restore()?;
            return Err(e);
        }
    };
    let measured = ratio::paired(&pairs, 0.95);
    let (ratio, interval) = measured.map_or((0.0, [0.0, 0.0]), |r| (r.ratio, [r.low, r.high]));
    let mut confirmation = Confirmation { id: limit.id.clone(), ratio, interval, ..Confirmation::default() };
    confirmation.kept = trying.keep && !confirmation.is_refuted() && interval[0] > 1.0;
    if confirmation.kept {
        lab.tell(&Event::Keeping { settings: std::borrow::Cow::Borrowed(&settings) });
        stack.keep(&settings)?;
    } else {
        lab.tell(&Event::Restoring);
        let restored = stack.restore()?;
        document.notes.extend(restored.iter().flat_map(RestoreReport::notes));
    }
    confirmation.limit_after = after?;
    if confirmation.is_refuted() {
        let again = diagnose_without(&document.examination, &[limit.id.as_str()]);
        document.notes.push(format!(
            "{} is withdrawn: {said} gives {ratio:.2} times the throughput, between {:.2} and {:.2}",
            limit.id, interval[0], interval[1]
        ));
        (document.findings, document.limit) = (again.findings, again.limit);
        document.cannot_tell = again.cannot_tell;
    }
    document.confirmed = Some(confirmation);
    Ok(())
}

/// Measures throughput as it is and with the change, pair by pair, each on a fresh start. At the end the change is in
/// force.
pub(super) fn measure(
    lab: &mut Lab<'_>,
    plan: &Plan,
    time: Duration,
    stack: &mut Stack,
    change: &Change,
) -> Result<Vec<(f64, f64)>, LabError> {
    let block = BLOCK.min(time).max(SHORTEST_BLOCK);
    let mut plan = plan.clone();
    plan.phases.retain(|p| p.measured);
    for phase in &mut plan.phases {
        (phase.requests, phase.duration) = (None, Some(block));
    }
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let mut scores = [0.0; 2];
        // The last block has the change, so that it is in force at the end.
        let change_first = pair % 2 == 1 && pair + 1 < PAIRS;
        for changed in [change_first, !change_first] {
            let change = if changed { change.clone() } else { Change::default() };
            let trial_order = TrialSpec {
                plan: &plan,
                change,
                label: format!("doctor confirm: {}", if changed { "changed" } else { "as it is" }),
                role: "confirm",
                recycling_warm_up: RECYCLING_WARM_UP.min(block),
                settling: SETTLING,
                until_grown: true,
                budget: None,
                most_unanswered: 1.0,
                early_stop: None,
            };
            let measured = trial(lab, stack, &trial_order)?;
            let Some(run) = &measured.run else {
                return Err(LabError::Other(format!("the change is not taken: {}", measured.trial.why)));
            };
            // Less load than in the other blocks would look like an effect of the settings.
            if let Some(lost) = run.agents.iter().find(|a| !a.complete) {
                return Err(LabError::Other(format!("agent {} was lost meanwhile", lost.name)));
            }
            scores[usize::from(changed)] = measured.trial.objective;
        }
        pairs.push((scores[0], scores[1]));
    }
    Ok(pairs)
}

/// Returns the servers that a finding wants to change, and the settings as a stack of these servers names them. For one
/// server on several machines with the same settings everywhere, the first machine's change applies to all.
fn servers_of(limit: &Finding, examination: &Examination, named: &[ServerRef]) -> Option<(Vec<ServerRef>, Settings)> {
    let mut all: Vec<(ServerRef, Vec<&Fix>)> = Vec::new();
    for fix in &limit.fix {
        let about = examination.servers.iter().find(|s| s.server == fix.server)?;
        // A setting that is not in the table of knobs cannot be tried.
        if !about.needs.contains_key(&fix.knob) {
            return None;
        }
        let mut reference = named_server(named, &fix.server).cloned().or_else(|| about.named.parse().ok())?;
        if reference.called() != fix.server && !is_node_of(&reference, &fix.server) {
            reference.name = Some(fix.server.clone());
        }
        match all.iter_mut().find(|(server, _)| *server == reference) {
            Some((_, fixes)) => fixes.push(fix),
            None => all.push((reference, vec![fix])),
        }
    }
    let several = all.len() > 1;
    let mut settings = Settings::new();
    for (server, fixes) in &all {
        for fix in fixes {
            let name = if several { format!("{}.{}", server.called(), fix.knob) } else { fix.knob.clone() };
            let to = setting(&fix.to)?;
            settings.entry(name).or_insert(to);
        }
    }
    Some((all.into_iter().map(|(server, _)| server).collect(), settings))
}

/// Returns the named server with this name, even if it is on one of several machines.
pub(crate) fn named_server<'a>(named: &'a [ServerRef], called: &str) -> Option<&'a ServerRef> {
    named.iter().find(|server| server.called() == called || is_node_of(server, called))
}

fn is_node_of(server: &ServerRef, called: &str) -> bool {
    server.agents().len() > 1 && server.each().iter().any(|node| node.called() == called)
}

pub(crate) fn setting(value: &Value) -> Option<Setting> {
    match value {
        Value::Number(n) => n.as_i64().or_else(|| n.as_f64().map(|f| f.round() as i64)).map(Setting::Count),
        Value::String(text) => Some(Setting::read(text)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::examination::ExaminedServer;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_of_nodes_is_one_of_all_and_each_further_server_keeps_its_own_name() {
        let seen = |server: &str, named: &str| ExaminedServer {
            server: server.into(),
            named: named.into(),
            needs: [("workers".to_string(), "restart".to_string())].into(),
            ..ExaminedServer::default()
        };
        let servers = vec![seen("a/target", "a/target"), seen("b/target", "b/target"), seen("a/back", "a/apache:/x")];
        let examination = Examination { servers, ..Examination::default() };
        let fix = |server: &str, to: i64| Fix {
            server: server.into(),
            knob: "workers".into(),
            to: json!(to),
            ..Fix::default()
        };
        let finding = |fix: Vec<Fix>| Finding { fix, ..Finding::default() };
        let named = ["a,b/target".parse::<ServerRef>().expect("a server")];
        let of = |fix: Vec<Fix>| {
            let (servers, settings) = servers_of(&finding(fix), &examination, &named)?;
            let servers = servers.iter().map(ToString::to_string).collect::<Vec<_>>();
            Some((servers, settings.into_iter().map(|(name, to)| format!("{name}={to}")).collect::<Vec<_>>()))
        };
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            of(vec![fix("b/target", 8), fix("a/target", 9)]),
            Some((names(&["a,b/target"]), names(&["workers=8"])))
        );
        let both = of(vec![fix("a/target", 8), fix("a/back", 3)]).expect("two servers");
        assert_eq!(both.1, ["a+b/target.workers=8", "a/back.workers=3"]);
        assert_eq!(both.0, ["a,b/target", "a/back=a/apache:/x"]);
        assert_eq!(of(vec![fix("c/target", 8)]), None);
    }
}
