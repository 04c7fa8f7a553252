//! Lists the settings of servers: present values, their sources, and possible values.

use crate::lab::LabError;
use crate::machine::Machine;
use lastdrop_analyze::nodes::{Node, differing};
use lastdrop_model::documents::{KNOBS_SCHEMA, KnobRow, KnobsDocument};
use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, Setting, Settings};
use lastdrop_server::{ServerRef, knobs_of};

/// Reads the settings of running servers, and compares those of the same kind on agents' machines.
///
/// # Errors
/// When one of them is not found, or is of a kind whose settings cannot be read.
pub fn knobs_of_all(servers: &[ServerRef], machine: &dyn Machine) -> Result<KnobsDocument, LabError> {
    let each: Vec<ServerRef> = servers.iter().flat_map(ServerRef::each).collect();
    let mut all = KnobsDocument { schema: KNOBS_SCHEMA.into(), ..KnobsDocument::default() };
    let mut nodes = Vec::new();
    for server in &each {
        let own = machine.knobs(server)?;
        if !server.agents().is_empty() {
            let settings: Settings =
                own.knobs.iter().filter_map(|row| Some((row.name.clone(), row.value.clone()?))).collect();
            let (called, kind) = (server.called().to_string(), server.kind.name.to_string());
            nodes.push(Node { server: called, kind, settings: Some(settings), ..Node::default() });
        }
        all.knobs
            .extend(own.knobs.into_iter().map(|row| KnobRow { setting: setting(&each, server, &row.name), ..row }));
        all.notes.extend(own.notes);
    }
    all.differs = differing(&nodes);
    Ok(all)
}

/// Returns the qualified name of a setting among several servers.
fn setting(servers: &[ServerRef], server: &ServerRef, name: &str) -> String {
    if servers.len() > 1 { format!("{}.{name}", server.called()) } else { String::new() }
}

/// Reads the settings of a running server on this machine.
///
/// # Errors
/// When it is not found, or is of a kind whose settings cannot be read.
pub fn knobs(server: &ServerRef) -> Result<KnobsDocument, LabError> {
    let of = knobs_of(server)?;
    let (name, effective) = (server.naming(&of.server), &of.effective);
    let row = |knob: &Knob| {
        let (range, choices) = match knob.takes {
            KnobValues::Count(least, most) | KnobValues::Range(least, most) => (Some([least, most]), Vec::new()),
            KnobValues::CountOr(least, most, word) => (Some([least, most]), vec![word.to_string()]),
            KnobValues::Switch { on, off } => (None, vec![on.to_string(), off.to_string()]),
            KnobValues::Choice(words) => (None, words.iter().map(ToString::to_string).collect()),
        };
        KnobRow {
            server: name.clone(),
            name: knob.name.into(),
            setting: String::new(),
            value: effective.settings.get(knob.name).cloned(),
            source: effective.sources.get(knob.name).cloned().unwrap_or_default(),
            default: Setting::read(knob.default),
            range,
            choices,
            needs: knob.needs,
            effect: knob.effect.into(),
            constraint: knob.constraint.into(),
            when: knob.when.map(|(name, values)| format!("{name} is {}", values.join(" or "))),
            matters: knob.matters(&effective.settings),
            findings: knob.findings.iter().map(ToString::to_string).collect(),
        }
    };
    Ok(KnobsDocument {
        schema: KNOBS_SCHEMA.into(),
        knobs: of.knobs.iter().map(row).collect(),
        notes: effective.notes.iter().map(|note| format!("{name}: {note}")).collect(),
        ..KnobsDocument::default()
    })
}
