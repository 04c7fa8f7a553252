//! Where the time of answers went, as text, where servers say their own time.

use std::fmt::Write as _;

use lastdrop_model::Kind;
use lastdrop_model::plan::ServerTimeFrom;
use lastdrop_model::printable::line;
use lastdrop_model::run::{PhaseReport, Results};
use lastdrop_model::units::show_us;

use crate::classes::name_of;
use crate::table::aligned;

/// The means of the parts of a response, of all requests and of each class that is shown. Nothing where nobody asked.
pub(crate) fn parts_text(p: &PhaseReport, from: Option<&ServerTimeFrom>) -> String {
    let mut out = String::new();
    let Some(from) = from else { return out };
    let said =
        Kind::PARTS.iter().any(|k| !matches!(k, Kind::Link | Kind::Transfer) && p.latency(*k, "count").is_some());
    if !said {
        let _ = writeln!(out, "\n  server time: no answer says it ({})", line(&from.to_string()));
        return out;
    }
    let mut rows = vec![row("all requests".into(), p)];
    if p.classes.len() > 1 {
        rows.extend(crate::classes::shown(p).into_iter().map(|c| row(name_of(c), c)));
    }
    let heading = ["mean of", "service", "link", "queue", "server", "of it upstream", "transfer", "rest"];
    let _ = write!(out, "\n{}", aligned(&heading, &rows));
    out
}

fn row(name: String, r: &Results) -> Vec<String> {
    let mean = |kind: Kind| r.latency(kind, "mean");
    let show = |us: Option<f64>| us.map_or("–".to_string(), show_us);
    let mut cells = vec![name, show(mean(Kind::Service))];
    cells.extend(Kind::PARTS.iter().map(|kind| show(mean(*kind))));
    // Means are of the same answers only where each of them said everything.
    let parts = [Kind::Link, Kind::Queue, Kind::Server, Kind::Transfer];
    let whole = r.latency(Kind::Service, "count");
    let all_said = parts.iter().all(|k| r.latency(*k, "count") == whole);
    let rest = mean(Kind::Service).filter(|_| all_said).map(|service| {
        let sum: f64 = parts.iter().filter_map(|k| mean(*k)).sum();
        (service - sum).max(0.0)
    });
    cells.push(show(rest));
    cells
}
