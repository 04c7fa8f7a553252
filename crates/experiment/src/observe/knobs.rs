//! Lists the settings of servers: present values, their sources, and possible values.

use crate::lab::LabError;
use lastdrop_analyze::nodes::{Node, differing};
use lastdrop_model::documents::{KNOBS_SCHEMA, KnobRow, KnobsDocument};
use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Setting, Settings};
use lastdrop_server::{ServerError, ServerRef, knobs_of};

/// Returns the `knobs` document of one server on another machine.
pub type ReadRemoteKnobs<'a> = &'a dyn Fn(&ServerRef) -> Result<KnobsDocument, ServerError>;

/// Reads the settings of running servers. Servers on other machines are read through `elsewhere`, and compared with
/// each other.
///
/// # Errors
/// When one of them is not found, or is of a kind whose settings cannot be read.
pub fn knobs_anywhere(servers: &[ServerRef], elsewhere: ReadRemoteKnobs<'_>) -> Result<KnobsDocument, LabError> {
    let each: Vec<ServerRef> = servers.iter().flat_map(ServerRef::each).collect();
    let mut all = KnobsDocument::default();
    let mut nodes = Vec::new();
    for server in &each {
        if !server.is_elsewhere() {
            let mut own = knobs(std::slice::from_ref(server))?;
            own.knobs.iter_mut().for_each(|row| row.setting = setting(&each, server, &row.name));
            all.knobs.append(&mut own.knobs);
            all.notes.append(&mut own.notes);
            continue;
        }
        let there = elsewhere(server)?;
        let agent = server.agents().join("+");
        let named = |name: &str| server.naming(&format!("{agent}/{name}"));
        let settings: Settings =
            there.knobs.iter().filter_map(|row| Some((row.name.clone(), row.value.clone()?))).collect();
        let (called, kind) = (server.called().to_string(), server.kind.name.to_string());
        nodes.push(Node { server: called, kind, settings: Some(settings), ..Node::default() });
        all.knobs.extend(there.knobs.into_iter().map(|row| KnobRow {
            setting: setting(&each, server, &row.name),
            server: named(&row.server),
            ..row
        }));
        all.notes.extend(there.notes.iter().map(|note| format!("{agent}/{note}")));
    }
    all.differs = differing(&nodes);
    Ok(KnobsDocument { schema: KNOBS_SCHEMA.into(), ..all })
}

/// Returns the qualified name of a setting among several servers.
fn setting(servers: &[ServerRef], server: &ServerRef, name: &str) -> String {
    if servers.len() > 1 { format!("{}.{name}", server.called()) } else { String::new() }
}

/// Reads the settings of running servers on this machine.
///
/// # Errors
/// When one of them is not found, or is of a kind whose settings cannot be read.
pub fn knobs(servers: &[ServerRef]) -> Result<KnobsDocument, LabError> {
    let mut document = KnobsDocument { schema: KNOBS_SCHEMA.into(), ..KnobsDocument::default() };
    for server in servers {
        let of = knobs_of(server)?;
        let (name, effective) = (server.naming(&of.server), &of.effective);
        document.knobs.extend(of.knobs.iter().map(|knob| {
            let (range, choices) = match knob.takes {
                KnobValues::Count(least, most) | KnobValues::Range(least, most) => (Some([least, most]), Vec::new()),
                KnobValues::CountOr(least, most, word) => (Some([least, most]), vec![word.to_string()]),
                KnobValues::Switch { on, off } => (None, vec![on.to_string(), off.to_string()]),
                KnobValues::Choice(words) => (None, words.iter().map(ToString::to_string).collect()),
            };
            KnobRow {
                server: name.clone(),
                name: knob.name.into(),
                setting: setting(servers, server, knob.name),
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
        }));
        document.notes.extend(effective.notes.iter().map(|note| format!("{name}: {note}")));
    }
    Ok(document)
}
