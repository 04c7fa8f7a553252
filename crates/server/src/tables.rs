//! The settings of every kind of server for the manual, without a running server.

use lastdrop_model::Knob;
use lastdrop_model::settings::KnobValues;

use crate::haproxy::knobs::{self as haproxy, KnobLocation};
use crate::{apache, fpm, host, kinds, nginx, target};

/// The settings of a kind, or of some of its servers.
#[derive(Debug)]
pub struct KnobTable {
    /// The name on the command line: `apache`.
    pub kind: &'static str,
    /// The name in prose: `Apache`.
    pub title: &'static str,
    /// Which servers of the kind have these, if not all: `prefork`.
    pub of: &'static str,
    pub rows: Vec<KnobRow>,
}

/// A setting, independent of any server.
#[derive(Debug)]
pub struct KnobRow {
    pub knob: Knob,
    /// The possible values in words; machine-dependent ones by their formula.
    pub may_be: String,
    pub default: String,
}

/// Tables of all of lastdrop's own kinds, in the order of help.
#[must_use]
pub fn knob_tables() -> Vec<KnobTable> {
    let mut tables = Vec::new();
    for (name, text) in kinds::OWN {
        let Some(kind) = kinds::named(name) else { continue };
        let file: Option<toml::Value> = toml::from_str(text).ok();
        let mut add = |of: &'static str, knobs: Vec<Knob>| {
            let rows = knobs.into_iter().map(|knob| row(knob, file.as_ref())).collect();
            tables.push(KnobTable { kind: kind.name, title: kind.title, of, rows });
        };
        match (kind.name, &kind.means) {
            ("apache", _) => {
                add("prefork", apache::knobs::of("prefork", false, true).to_vec());
                add("event and worker, with mod_perl", apache::knobs::of("event", true, true).to_vec());
            }
            ("nginx", _) => add("", nginx::knobs::KNOBS.to_vec()),
            ("php-fpm", _) => add("", fpm::knobs::KNOBS.to_vec()),
            ("haproxy", _) => add("by the names of its sections", of_haproxy()),
            ("target", _) => add("", target::KNOBS.to_vec()),
            ("host", _) => add("", host::knobs::KNOBS.iter().map(|k| k.knob).collect()),
            (_, Some(means)) => add("", means.knobs.to_vec()),
            (_, None) => {}
        }
    }
    tables
}

/// The knobs of a configuration with one section of each sort. The maximum number of threads depends on the processors.
fn of_haproxy() -> Vec<Knob> {
    let entry = |name: &str, keyword, place| haproxy::ConfigKnob { name: name.into(), keyword, place };
    let (section, server) = (KnobLocation::Section(0), KnobLocation::Server(0));
    let entries = [
        entry(haproxy::MAXCONN, haproxy::MAXCONN, KnobLocation::Global),
        entry(haproxy::NBTHREAD, haproxy::NBTHREAD, KnobLocation::Global),
        entry("FRONTEND.maxconn", haproxy::MAXCONN, section),
        entry("BACKEND.http-reuse", haproxy::REUSE, section),
        entry("BACKEND.balance", haproxy::BALANCE, section),
        entry("BACKEND/SERVER.maxconn", haproxy::MAXCONN, server),
    ];
    let knobs = haproxy::table(&entries, 1, true);
    let of_machine = |knob: &Knob| match knob.name {
        haproxy::NBTHREAD => {
            Knob { default: "processors", takes: KnobValues::Count(1, haproxy::MOST_THREADS as i64), ..*knob }
        }
        _ => *knob,
    };
    knobs.iter().map(of_machine).collect()
}

/// A knob with the machine-dependent text from its kind's file: `2 * processors` is not a number in a manual.
fn row(knob: Knob, file: Option<&toml::Value>) -> KnobRow {
    let written = file.and_then(|f| {
        let all = f.get("knobs")?.as_array()?;
        all.iter().find(|k| k.get("name").and_then(toml::Value::as_str) == Some(knob.name))
    });
    let bound = |index: usize, number: i64| {
        let word = written.and_then(|k| k.get("count")?.get(index)?.as_str());
        word.map_or_else(|| number.to_string(), str::to_string)
    };
    let count = |least, most| format!("{} to {}", bound(0, least), bound(1, most));
    let may_be = match knob.takes {
        KnobValues::Count(least, most) => count(least, most),
        KnobValues::CountOr(least, most, word) => format!("{}, {word}", count(least, most)),
        KnobValues::Range(least, most) => format!("two of {least} to {most}"),
        KnobValues::Switch { on, off } => format!("{on}, {off}"),
        // It is shown but never changed.
        KnobValues::Choice([]) => "–".into(),
        KnobValues::Choice(words) => words.join(", "),
    };
    let of_machine = written.and_then(|k| k.get("default_of_machine")?.as_str());
    KnobRow { default: of_machine.unwrap_or(knob.default).to_string(), may_be, knob }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_can_be_changed_has_a_table_and_none_says_what_this_machine_has() {
        let tables = knob_tables();
        for kind in kinds::all().iter().filter(|k| k.can_change()) {
            assert!(tables.iter().any(|t| t.kind == kind.name && !t.rows.is_empty()), "{}", kind.name);
        }
        let found = |kind: &str, name: &str| {
            let rows = tables.iter().filter(|t| t.kind == kind).flat_map(|t| &t.rows);
            rows.filter(|r| r.knob.name == name).map(|r| (r.may_be.clone(), r.default.clone())).next()
        };
        let caddy = found("caddy", "GOMAXPROCS").expect("a setting of Caddy");
        assert_eq!(caddy, ("1 to 2 * processors".into(), "processors".into()));
        assert_eq!(found("haproxy", "nbthread").expect("threads").1, "processors");
        assert_eq!(found("gunicorn", "workers").expect("workers").0, "1 to 1000");
        let rows = || tables.iter().flat_map(|t| &t.rows);
        let untold: Vec<&str> =
            rows().filter(|r| r.knob.effect.is_empty() || r.may_be.is_empty()).map(|r| r.knob.name).collect();
        assert!(untold.is_empty(), "{untold:?}");
    }
}
