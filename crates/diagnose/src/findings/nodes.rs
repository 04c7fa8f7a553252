//! Combines the diagnoses of a site's machines. Each machine is diagnosed by itself; a finding that several share is
//! reported once, with their names.

use std::collections::BTreeMap;

use lastdrop_analyze::nodes::{Node, differing};
use lastdrop_model::documents::{DoctorDocument, Evidence, Finding, NodeDifference, Severity};
use lastdrop_model::examination::{Examination, ExaminedServer};

use super::{by_weight, diagnose_without};

/// A finding, and the indexes of the machines that have it.
struct SharedFinding<'a> {
    finding: Finding,
    /// Kind of the affected server, if there is one: an Apache and a PHP-FPM may have the same finding.
    kind: Option<&'a str>,
    nodes: Vec<usize>,
}

/// Adds the combined findings of the machines to a document.
pub(super) fn conclude(document: &mut DoctorDocument, site: &Examination, refuted: &[&str]) {
    let each: Vec<DoctorDocument> = site.nodes.iter().map(|node| diagnose_without(node, refuted)).collect();
    document.differs = differs(site);
    for (place, node) in each.iter().enumerate() {
        for note in node.notes.iter().filter(|note| !document.notes.contains(note)).cloned().collect::<Vec<_>>() {
            let everywhere = each.iter().all(|other| other.notes.contains(&note));
            document.notes.push(if everywhere { note } else { format!("{}: {note}", site.nodes[place].machine) });
        }
    }
    // The limit with the highest confidence; of equals, the first.
    let limits = each.iter().enumerate().filter_map(|(place, node)| Some((place, limit(node)?)));
    let surest = limits.reduce(|best, other| if other.1.confidence > best.1.confidence { other } else { best });
    if let Some((place, finding)) = surest {
        document.limit = Some(finding.id.clone());
        document.cannot_tell.clone_from(&each[place].cannot_tell);
    }
    let mut all: Vec<SharedFinding<'_>> = Vec::new();
    for (place, node) in each.iter().enumerate() {
        for finding in &node.findings {
            if finding.severity == Severity::Limit && document.limit.as_ref() != Some(&finding.id) {
                // A different limit of another machine becomes a note: the site has one limit.
                let what = name_of(site, place, finding);
                document.notes.push(format!("{what}, too, is held back: {} ({})", finding.title, finding.id));
                continue;
            }
            let own = site.nodes[place].servers.iter().find(|server| server.server == finding.server);
            let kind = own.map(|server| server.kind.as_str());
            let known = |of: &&mut SharedFinding<'_>| {
                (&of.finding.id, of.finding.severity, of.kind) == (&finding.id, finding.severity, kind)
            };
            match all.iter_mut().find(known) {
                Some(of) => of.add(site, place, finding),
                None => all.push(SharedFinding { finding: finding.clone(), kind, nodes: vec![place] }),
            }
        }
    }
    document.findings = all.into_iter().map(|of| of.named(site)).collect();
    document.findings.sort_by(by_weight);
}

fn limit(document: &DoctorDocument) -> Option<&Finding> {
    document.findings.iter().find(|f| f.severity == Severity::Limit)
}

/// Returns the name of what a machine's finding is about: a server, or the machine.
fn name_of(site: &Examination, place: usize, finding: &Finding) -> String {
    if finding.server.is_empty() { site.nodes[place].machine.clone() } else { finding.server.clone() }
}

impl SharedFinding<'_> {
    /// Merges the same finding of another machine.
    fn add(&mut self, site: &Examination, place: usize, other: &Finding) {
        let name = name_of(site, place, other);
        self.nodes.push(place);
        self.finding.fix.extend(other.fix.iter().cloned());
        self.finding.confidence = self.finding.confidence.max(other.confidence);
        let of_it = |e: &Evidence| Evidence { name: format!("{name}: {}", e.name), ..e.clone() };
        self.finding.evidence.extend(other.evidence.iter().map(of_it));
    }

    /// Returns the finding with the names of the machines or servers that have it.
    fn named(self, site: &Examination) -> Finding {
        let SharedFinding { mut finding, nodes, .. } = self;
        let everywhere = nodes.len() == site.nodes.len();
        let own = site.nodes.iter().flat_map(|node| &node.servers).find(|server| server.server == finding.server);
        let of = |place: &usize| match own {
            // The same server of each machine.
            Some(own) => {
                let server = site.nodes[*place].servers.iter().find(|other| is_same(own, other));
                server.map_or_else(|| site.nodes[*place].machine.clone(), |server| server.server.clone())
            }
            None => site.nodes[*place].machine.clone(),
        };
        let names: Vec<String> = nodes.iter().map(of).collect();
        // A finding about no machine, such as the load, is the same on all.
        if !(everywhere && own.is_none()) && (names.len() > 1 || !finding.title.contains(&names[0])) {
            finding.title = format!("{} ({})", finding.title, names.join(", "));
        }
        // The gain for the whole site is unknown if only some machines have the finding.
        if !everywhere {
            finding.expect = None;
        }
        finding
    }
}

/// True for the same server on two machines: `a/apache` and `b/apache`.
fn is_same(one: &ExaminedServer, other: &ExaminedServer) -> bool {
    let name = |server: &ExaminedServer| server.server.split_once('/').map(|(_, name)| name.to_string());
    one.kind == other.kind && name(one) == name(other)
}

/// Returns how the machines' servers differ in settings, memory and errors. How they share the load is not known here.
fn differs(site: &Examination) -> Vec<NodeDifference> {
    let node = |examination: &Examination, server: &ExaminedServer| {
        let step = examination.main();
        let seen = step.and_then(|step| step.server(&server.server));
        let mut errors: BTreeMap<String, u64> = seen.map(|seen| seen.kernel.clone()).unwrap_or_default();
        errors.retain(|name, _| name.contains("Overflow") || name.contains("Drop"));
        if let Some(killed) = seen.map(|seen| seen.group_oom_kills).filter(|killed| *killed > 0) {
            errors.insert("killed for memory".into(), killed);
        }
        Node {
            server: server.server.clone(),
            kind: server.kind.clone(),
            settings: (!server.settings.is_empty()).then(|| server.settings.clone()),
            real_memory_bytes: seen.and_then(|seen| seen.real_memory_bytes),
            requests_rps: None,
            span_s: step.map_or(0.0, |step| step.duration_s),
            errors,
        }
    };
    let of = |examination: &Examination| examination.servers.iter().map(|s| node(examination, s)).collect::<Vec<_>>();
    differing(&site.nodes.iter().flat_map(of).collect::<Vec<Node>>())
}
