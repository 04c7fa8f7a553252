//! Where requests spent their time, as text and as a table: typical requests beside slow ones.

use std::fmt::Write as _;

use lastdrop_model::printable::line;
use lastdrop_model::run::{Anatomy, AnatomyPart, PartTime, RequestGroup};
use lastdrop_model::units::show_us;

use crate::table::aligned;

/// Parts that are shorter than this share of the time in flight, for typical and for slow requests, are summed up.
const SMALL: f64 = 0.01;
/// Excess below this share of the whole excess names no cause.
const MAIN: f64 = 0.5;

/// Says in one sentence where the slow requests lose their time; None if none stand out.
#[must_use]
pub fn sentence(anatomy: &Anatomy) -> Option<String> {
    let slow = anatomy.slow.as_ref()?;
    let (part, lost) = anatomy.most_lost()?;
    let more = slow.in_flight_us - anatomy.typical.in_flight_us;
    let all = (slow.requests + anatomy.typical.requests).max(1);
    let share = 100.0 * slow.requests as f64 / all as f64;
    let whom = format!(
        "{share:.1} % of the requests ({}) took {} and not {}",
        slow.requests,
        show_us(slow.in_flight_us),
        show_us(anatomy.typical.in_flight_us)
    );
    if lost < MAIN * more {
        return Some(format!("{whom}: no single place has half of the difference"));
    }
    let place = part.map_or_else(
        || "outside of every thread, queue and socket that was read".into(),
        |part| format!("where {} {}", part.server, what(part)),
    );
    Some(format!("{whom}: {} of the difference is {place}", show_us(lost)))
}

/// What a part is, after the server's name.
fn what(part: &AnatomyPart) -> String {
    let (first, rest) = part.what.split_once(' ').map_or((part.what.as_str(), ""), |(f, r)| (f, r));
    let peer = || part.peer.as_ref().map_or_else(|| rest.to_string(), |name| format!("{name} at {rest}"));
    match (first, rest) {
        ("running", _) => "computes, or waits for a processor".into(),
        ("queue", _) => "has not taken the request yet".into(),
        ("network", _) => "has not got the request, or its answer is on the way (network)".into(),
        ("disk", _) => "waits for a disk".into(),
        ("sleep", _) => "sleeps".into(),
        ("peer", _) => format!("waits for {}", peer()),
        ("lock", "") => "waits for a file lock".into(),
        ("lock", file) => format!("waits for the lock of {file}"),
        ("read", file) => format!("reads {file}"),
        ("write", file) => format!("writes {file}"),
        ("child", _) => "waits for a program that it started".into(),
        ("pipe", _) => "waits for a pipe".into(),
        ("futex", _) => "waits for another of its threads, or for a lock in memory".into(),
        ("semaphore", _) => "waits for a semaphore".into(),
        ("client", "request") => "waits for the rest of the request".into(),
        ("client-write", _) => "waits for the client to take the answer".into(),
        ("connect", _) => "connects".into(),
        ("unseen", _) => "waits for something that may not be read".into(),
        _ => "waits for something else".into(),
    }
}

/// One row: what, and the time of a typical and of a slow request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnatomyRow {
    pub what: String,
    pub typical: f64,
    pub slow: Option<f64>,
    /// Standard errors, where they are estimates.
    pub errors: Option<(f64, f64)>,
}

/// The rows in the order of a request: before it was sent, its parts, the rest, then parts of servers behind the pool.
pub(crate) fn rows(anatomy: &Anatomy) -> Vec<AnatomyRow> {
    let (typical, slow) = (&anatomy.typical, anatomy.slow.as_ref());
    let of_groups = |what: &str, of: fn(&RequestGroup) -> f64| AnatomyRow {
        what: what.into(),
        typical: of(typical),
        slow: slow.map(of),
        errors: None,
    };
    let mut rows = vec![
        of_groups("before it was sent", |g| g.before_us),
        of_groups("in flight", |g| g.in_flight_us),
        of_groups("  to connect", |g| g.connect_us),
    ];
    let us = |time: Option<PartTime>| time.map_or(0.0, |t| t.us);
    let is_small = |p: &AnatomyPart| {
        p.typical.us < SMALL * typical.in_flight_us && us(p.slow) < SMALL * slow.map_or(f64::MAX, |s| s.in_flight_us)
    };
    let row = |p: &AnatomyPart| AnatomyRow {
        what: format!("{}{} {}", if p.behind { "    meanwhile " } else { "  " }, p.server, what(p)),
        typical: p.typical.us,
        slow: p.slow.map(|s| s.us),
        errors: Some((p.typical.error_us, p.slow.map_or(0.0, |s| s.error_us))),
    };
    rows.extend(anatomy.parts.iter().filter(|p| !p.behind && !is_small(p)).map(row));
    let small: Vec<&AnatomyPart> = anatomy.parts.iter().filter(|p| !p.behind && is_small(p)).collect();
    let sum = |of: fn(&AnatomyPart) -> f64| small.iter().map(|p| of(p)).sum::<f64>();
    rows.push(AnatomyRow {
        what: "  in no thread, queue or socket, or in small parts".into(),
        typical: typical.rest_us + sum(|p| p.typical.us),
        slow: slow.map(|s| s.rest_us + sum(|p| p.slow.map_or(0.0, |s| s.us))),
        errors: None,
    });
    rows.extend(anatomy.parts.iter().filter(|p| p.behind && !is_small(p)).map(row));
    rows
}

/// The anatomy as text; empty if it was not asked for.
pub(crate) fn anatomy_text(anatomy: Option<&Anatomy>) -> String {
    let Some(anatomy) = anatomy else { return String::new() };
    let mut out = String::from("\nanatomy");
    if anatomy.typical.requests > 0 {
        let _ =
            write!(out, ": {} readings of the servers ({:.1} % of the machine)", anatomy.moments, 100.0 * anatomy.cost);
        let shown = |us: f64, error: Option<f64>| match error.filter(|e| *e > 0.05 * us) {
            Some(error) => format!("{} ± {}", show_us(us), show_us(2.0 * error)),
            None => show_us(us),
        };
        let cells = |r: &AnatomyRow| {
            let slow = r.slow.map_or_else(String::new, |us| shown(us, r.errors.map(|e| e.1)));
            // Tables have no leading blanks, so dots show what is within what.
            vec![r.what.replace("  ", "· "), shown(r.typical, r.errors.map(|e| e.0)), slow]
        };
        let rows: Vec<Vec<String>> = rows(anatomy).iter().map(cells).collect();
        let _ = write!(out, "\n{}", aligned(&["mean of a request", "typical", "slow"], &rows));
    } else {
        out.push('\n');
    }
    let told = sentence(anatomy)
        .or_else(|| (anatomy.typical.requests > 0).then(|| "no group of requests stands out as slow".to_string()));
    for said in told.iter().chain(&anatomy.notes) {
        let _ = writeln!(out, "  {}", line(said));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(what: &str, typical: f64, slow: f64) -> AnatomyPart {
        let time = |us| PartTime { us, error_us: 0.01 * us };
        AnatomyPart {
            server: "php-fpm".into(),
            what: what.into(),
            typical: time(typical),
            slow: Some(time(slow)),
            ..AnatomyPart::default()
        }
    }

    fn anatomy() -> Anatomy {
        let group = |requests, in_flight_us, rest_us| RequestGroup {
            requests,
            in_flight_us,
            rest_us,
            ..RequestGroup::default()
        };
        Anatomy {
            moments: 1500,
            cost: 0.011,
            typical: group(1980, 5_000.0, 900.0),
            slow: Some(group(20, 205_000.0, 1_000.0)),
            parts: vec![
                AnatomyPart { peer: Some("mariadb".into()), ..part("peer 127.0.0.1:3306", 1_000.0, 200_000.0) },
                part("running", 3_000.0, 3_900.0),
                part("disk", 10.0, 20.0),
                AnatomyPart { server: "mariadb".into(), behind: true, ..part("futex", 0.0, 190_000.0) },
            ],
            notes: vec!["mariadb: SELECT ?".into()],
        }
    }

    #[test]
    fn the_place_of_the_difference_is_named_with_its_time() {
        let said = sentence(&anatomy()).expect("slow ones");
        assert_eq!(
            said,
            "1.0 % of the requests (20) took 205.0 ms and not 5.00 ms: 199.0 ms of the difference is where php-fpm waits for \
             mariadb at 127.0.0.1:3306"
        );
        let lost = Anatomy { parts: vec![part("running", 3_000.0, 3_900.0)], ..anatomy() };
        let rest = Anatomy { slow: lost.slow.map(|s| RequestGroup { rest_us: 200_000.0, ..s }), ..lost };
        assert!(sentence(&rest).expect("slow ones").contains("outside of every thread"), "{rest:?}");
        assert_eq!(sentence(&Anatomy { slow: None, ..anatomy() }), None);
    }

    #[test]
    fn the_rows_of_a_request_add_up_to_its_time_in_flight() {
        let rows = rows(&anatomy());
        let within = |r: &&AnatomyRow| r.what.starts_with("  ") && !r.what.starts_with("    ");
        let typical: f64 = rows.iter().filter(within).map(|r| r.typical).sum();
        assert!((typical - 4_910.0).abs() < 1.0, "{rows:?}");
        let text = anatomy_text(Some(&anatomy()));
        assert!(text.contains("· · meanwhile mariadb waits for another of its threads"), "{text}");
        assert!(
            text.contains("1500 readings") && text.contains("mariadb: SELECT ?") && !text.contains("disk"),
            "{text}"
        );
        assert_eq!(anatomy_text(None), "");
        let untold = Anatomy { notes: vec!["not here".into()], ..Anatomy::default() };
        assert_eq!(anatomy_text(Some(&untold)), "\nanatomy\n  not here\n");
    }
}
