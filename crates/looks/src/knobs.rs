//! The settings of servers: what they are now, where that comes from, and what they could be.

use lastdrop_lab::LabError;
use lastdrop_model::Setting;
use lastdrop_model::documents::{KNOBS_SCHEMA, KnobRow, KnobsDocument};
use lastdrop_model::settings::Takes;
use lastdrop_server::{ServerRef, knobs_of};

/// Reads the settings of running servers.
///
/// # Errors
/// When one of them is not found, or is of a kind whose settings cannot be read.
pub fn knobs(servers: &[ServerRef]) -> Result<KnobsDocument, LabError> {
    let mut document = KnobsDocument { schema: KNOBS_SCHEMA.into(), knobs: Vec::new(), notes: Vec::new() };
    for server in servers {
        let of = knobs_of(server)?;
        let (name, effective) = (server.naming(&of.server), &of.effective);
        let called = (servers.len() > 1).then(|| server.called());
        document.knobs.extend(of.knobs.iter().map(|knob| {
            let (range, choices) = match knob.takes {
                Takes::Count(least, most) | Takes::Range(least, most) => (Some([least, most]), Vec::new()),
                Takes::CountOr(least, most, word) => (Some([least, most]), vec![word.to_string()]),
                Takes::Switch { on, off } => (None, vec![on.to_string(), off.to_string()]),
                Takes::Choice(words) => (None, words.iter().map(ToString::to_string).collect()),
            };
            KnobRow {
                server: name.clone(),
                name: knob.name.into(),
                setting: called.map_or_else(String::new, |called| format!("{called}.{}", knob.name)),
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
