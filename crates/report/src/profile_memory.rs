//! The report of `profile --memory`: which class of requests makes a worker grow.

use std::fmt::Write as _;

use lastdrop_model::documents::{
    AllocatingFunction, ClassMemory, ClassVerdict, Interval, ProfileDocument, ProfileMemory,
};
use lastdrop_model::printable::line;
use lastdrop_model::units::show_bytes;

use crate::table::aligned;

/// A mapping with less than this share of the growth is not named.
const NAMED_SHARE: f64 = 0.1;

/// The report as text.
pub(crate) fn memory_text(d: &ProfileDocument, memory: &ProfileMemory) -> String {
    let mut out = format!(
        "{}   memory by request class, {:.1} s, {} rounds, {} worker{}\n{}\n\n",
        line(&d.server),
        d.seconds,
        memory.rounds,
        memory.workers,
        if memory.workers == 1 { "" } else { "s" },
        sentence(memory)
    );
    out.push_str(&aligned(&COLUMNS, &memory.classes.iter().map(cells).collect::<Vec<_>>()));
    if !memory.functions.is_empty() {
        out.push_str("\nfunctions that allocate what is kept\n");
        out.push_str(&aligned(&FUNCTION_COLUMNS, &memory.functions.iter().map(function_cells).collect::<Vec<_>>()));
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {}", line(note));
    }
    out
}

/// Columns of the table.
pub(crate) const COLUMNS: [&str; 7] =
    ["bytes per request", "95 % interval", "per 1,000 requests", "requests", "class", "verdict", "in"];

/// The row of a class.
pub(crate) fn cells(class: &ClassMemory) -> Vec<String> {
    let Interval { value, interval: [low, high] } = class.growth_bytes;
    let is_steady = class.verdict == ClassVerdict::Steady;
    vec![
        format!("{value:.0}"),
        format!("{low:.0} to {high:.0}"),
        if is_steady { "–".into() } else { bytes(value * 1000.0) },
        class.requests.to_string(),
        class.class.clone(),
        class.verdict.name().into(),
        if is_steady { String::new() } else { mappings(class) },
    ]
}

/// Columns of the table of functions.
pub(crate) const FUNCTION_COLUMNS: [&str; 4] = ["bytes per request", "%", "function", "file:line"];

/// The row of a function.
pub(crate) fn function_cells(function: &AllocatingFunction) -> Vec<String> {
    let place = match (function.file.as_str(), function.line) {
        (file, 0) => file.to_string(),
        (file, line) => format!("{file}:{line}"),
    };
    vec![format!("{:.0}", function.kept_bytes), format!("{:.1}", function.share * 100.0), function.name.clone(), place]
}

/// The sentence that names the classes which make a worker grow.
pub(crate) fn sentence(memory: &ProfileMemory) -> String {
    let of = |verdict: ClassVerdict| memory.classes.iter().filter(move |class| class.verdict == verdict);
    let grow: Vec<String> = of(ClassVerdict::Grows)
        .map(|class| {
            let per_request = bytes(class.growth_bytes.value);
            format!(
                "`{}` makes a worker grow by {per_request} per request, in {}",
                line(&class.class),
                line(&mappings(class))
            )
        })
        .collect();
    let steady = of(ClassVerdict::Steady).count();
    let least = bytes(memory.smallest_bytes);
    let mut sentences = match (grow.is_empty(), steady) {
        (true, _) if steady == memory.classes.len() => {
            vec![format!("No class makes a worker grow by more than {least} per request.")]
        }
        (true, 0) => vec!["No class makes a worker grow without end.".to_string()],
        (true, _) => vec![format!(
            "No class makes a worker grow without end; the steady ones grow by {least} per request at most."
        )],
        (false, 0) => vec![format!("{}.", grow.join("; "))],
        (false, 1) => vec![format!("{}; the other does not grow by more than {least}.", grow.join("; "))],
        (false, _) => vec![format!("{}; the others do not grow by more than {least}.", grow.join("; "))],
    };
    sentences.extend(of(ClassVerdict::Unshares).map(|class| {
        format!(
            "`{}` writes to memory that workers share, {} per request: this ends once nothing is left to unshare.",
            line(&class.class),
            bytes(class.growth_bytes.value)
        )
    }));
    sentences.extend(of(ClassVerdict::Slows).map(|class| {
        format!(
            "`{}` adds less in each round, {} per request so far: a cache that fills; measure for longer (-d).",
            line(&class.class),
            bytes(class.growth_bytes.value)
        )
    }));
    sentences.join(" ")
}

/// The mappings that grow, with their shares if there are several.
pub(crate) fn mappings(class: &ClassMemory) -> String {
    let all = class.growth_bytes.value;
    let grown: Vec<_> = class.mappings.iter().filter(|m| m.growth_bytes.value >= NAMED_SHARE * all).collect();
    match &grown[..] {
        [] => "no single mapping".into(),
        [one] => one.mapping.clone(),
        several => several
            .iter()
            .map(|m| format!("{} ({:.0} %)", m.mapping, m.growth_bytes.value / all * 100.0))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

pub(crate) fn bytes(value: f64) -> String {
    show_bytes(value.max(0.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::MappingGrowth;

    use super::*;

    fn class(name: &str, verdict: ClassVerdict, value: f64) -> ClassMemory {
        let growth = Interval { value, interval: [value - 50.0, value + 50.0] };
        ClassMemory {
            class: name.into(),
            verdict,
            requests: 600,
            growth_bytes: growth,
            resident_bytes: growth,
            smallest_bytes: 200.0,
            mappings: vec![MappingGrowth { mapping: "[heap]".into(), growth_bytes: growth }],
        }
    }

    fn report(classes: Vec<ClassMemory>) -> String {
        let keep = AllocatingFunction {
            name: "keep".into(),
            file: "/srv/a.js".into(),
            line: 7,
            kept_bytes: 900.0,
            share: 0.9,
        };
        let memory = ProfileMemory {
            workers: 2,
            rounds: 6,
            classes,
            smallest_bytes: 213.0,
            functions: vec![keep],
            ..ProfileMemory::default()
        };
        crate::profile_text(&ProfileDocument {
            server: "gunicorn".into(),
            seconds: 10.0,
            memory: Some(memory),
            notes: vec!["a note".into()],
            ..ProfileDocument::default()
        })
    }

    #[test]
    fn the_class_that_grows_is_named_with_its_mapping() {
        let text = report(vec![
            class("GET /report", ClassVerdict::Grows, 21.0 * 1024.0),
            class("GET /a", ClassVerdict::Steady, 3.0),
            class("GET /b", ClassVerdict::Steady, -2.0),
        ]);
        let sentence = "`GET /report` makes a worker grow by 21.0 KB per request, in [heap]; the others do not grow by more than 213 B.";
        assert!(text.contains("10.0 s, 6 rounds, 2 workers") && text.contains(sentence), "{text}");
        let row = text.lines().find(|l| l.contains("GET /report  ")).expect("a row");
        assert!(row.contains("21504") && row.contains("20.5 MB") && row.trim_end().ends_with("[heap]"), "{text}");
        assert!(text.contains("keep") && text.contains("/srv/a.js:7") && text.contains("90.0"), "{text}");
        assert!(text.ends_with("note: a note\n"), "{text}");
    }

    #[test]
    fn without_growth_the_smallest_that_would_have_been_seen_is_named() {
        let text = report(vec![class("GET /a", ClassVerdict::Steady, 3.0)]);
        assert!(text.contains("No class makes a worker grow by more than 213 B per request."), "{text}");
        let text = report(vec![class("GET /a", ClassVerdict::Unshares, 4096.0)]);
        assert!(text.contains("without end") && text.contains("unshare"), "{text}");
        let text = report(vec![class("GET /a", ClassVerdict::Slows, 4096.0)]);
        assert!(text.contains("`GET /a` adds less in each round, 4.0 KB per request so far"), "{text}");
    }
}
