//! Turns findings into changes that can be tried.

use lastdrop_diagnose::findings;
use lastdrop_model::Settings;
use lastdrop_model::documents::{Clue, DoctorDocument, Proposal, WorkersAdvice};
use lastdrop_model::examination::Examination;
use lastdrop_server::ServerRef;

use crate::doctor::confirm::{named_server, setting};

/// Returns the changes that findings want on the named servers, the largest expected gain first. With several servers,
/// a setting is called SERVER.NAME. Fixes that are not settings, or are for other servers, are left out.
#[must_use]
pub fn proposals(document: &DoctorDocument, named: &[ServerRef]) -> Vec<Proposal> {
    let mut all: Vec<Proposal> = Vec::new();
    for finding in &document.findings {
        let changes = finding.fix.iter().map(|fix| {
            let server = named_server(named, &fix.server)?;
            let examined = document.examination.servers.iter().find(|s| s.server == fix.server)?;
            let to = setting(&fix.to).filter(|_| examined.needs.contains_key(&fix.knob))?;
            let own = named.len() == 1;
            Some((if own { fix.knob.clone() } else { format!("{}.{}", server.called(), fix.knob) }, to))
        });
        // Half of a change may do the opposite of the whole.
        let Some(settings) = changes.collect::<Option<Settings>>() else { continue };
        if settings.is_empty() || all.iter().any(|p| p.settings == settings) {
            continue;
        }
        let expected = finding.expect.as_ref().map(|e| e.ratio);
        all.push(Proposal { settings, reason: finding.title.clone(), finding: finding.id.clone(), expected });
    }
    all.sort_by(|a, b| b.expected.unwrap_or(1.0).total_cmp(&a.expected.unwrap_or(1.0)));
    all
}

/// Returns the clues for the named servers, under their names. A note names each other server of the chain that has a
/// clue and could be changed, too.
#[must_use]
pub fn clues(examination: &Examination, named: &[ServerRef]) -> (Vec<Clue>, Vec<String>) {
    let (mut of_named, mut notes): (Vec<Clue>, Vec<String>) = (Vec::new(), Vec::new());
    for clue in findings::clues(examination) {
        if clue.server.is_empty() {
            of_named.push(clue);
        } else if let Some(server) = named_server(named, &clue.server) {
            of_named.push(Clue { server: server.called().into(), ..clue });
        } else if let Some(about) = examination.servers.iter().find(|s| s.server == clue.server && !s.needs.is_empty())
        {
            let all: Vec<String> = named.iter().map(ToString::to_string).chain([about.named.clone()]).collect();
            let note = format!(
                "{} takes part and is left as it is, for it was not named; to have it searched, too: lastdrop tune {} …",
                about.server,
                all.join(" ")
            );
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    (of_named, notes)
}

/// Returns the recommended number of workers for the pools of the named servers.
#[must_use]
pub fn workers(examination: &Examination, named: &[ServerRef]) -> Vec<WorkersAdvice> {
    let all = findings::workers_advice(examination).into_iter();
    all.filter_map(|advice| {
        Some(WorkersAdvice { server: named_server(named, &advice.server)?.called().into(), ..advice })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::{ExpectedGain, Finding, Fix};
    use lastdrop_model::examination::{Examination, ExaminedServer};
    use serde_json::json;

    use super::*;

    #[test]
    fn only_whole_changes_of_named_servers_are_proposed_the_most_promising_first() {
        let fix = |server: &str, knob: &str, to: i64| Fix {
            server: server.into(),
            knob: knob.into(),
            to: json!(to),
            ..Fix::default()
        };
        let finding = |id: &str, ratio: Option<f64>, fix: Vec<Fix>| Finding {
            id: id.into(),
            title: id.into(),
            fix,
            expect: ratio.map(|ratio| ExpectedGain { ratio, ..ExpectedGain::default() }),
            ..Finding::default()
        };
        let mut seen = ExaminedServer { server: "target".into(), ..ExaminedServer::default() };
        for knob in ["workers", "backlog"] {
            seen.needs.insert(knob.into(), "reload".into());
        }
        let document = DoctorDocument {
            findings: vec![
                finding("queue", None, vec![fix("target", "backlog", 1024)]),
                finding("workers", Some(3.0), vec![fix("target", "workers", 8)]),
                finding("half", Some(9.0), vec![fix("target", "workers", 9), fix("other", "x", 1)]),
                finding("unknown", Some(9.0), vec![fix("target", "nothing", 1)]),
                finding("advice", Some(9.0), Vec::new()),
            ],
            examination: Examination { servers: vec![seen], ..Examination::default() },
            ..DoctorDocument::default()
        };
        let named: Vec<ServerRef> = vec!["target".parse().expect("a server")];
        let all = proposals(&document, &named);
        let found: Vec<&str> = all.iter().map(|p| p.finding.as_str()).collect();
        assert_eq!(found, ["workers", "queue"]);
        assert!(all[0].settings.contains_key("workers") && all[0].expected == Some(3.0));
    }
}
