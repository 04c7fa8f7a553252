//! The section of a capacity search: the sustainable rate, how latency rises towards it, and throughput by
//! number of users with the knee and the fitted law.

use lastdrop_model::Kind;
use lastdrop_model::documents::{CapacityDocument, CapacityStep, Usl};
use lastdrop_model::objective::Metric;
use lastdrop_model::units::show_us;
use maud::{Markup, html};

use super::axis::Axis;
use super::chart::{Chart, Shape};
use super::compare::notes;
use super::number::{Unit, grouped, seconds, share};
use super::page::Section;
use super::table::{NOTES, Table};
use super::verdict::{Headline, Tone};

pub(super) fn section(d: &CapacityDocument) -> Section {
    let objectives: Vec<String> = d.objective.iter().map(ToString::to_string).collect();
    let body = html! {
        (verdict(d).shown())
        h2.group { "What more load does" }
        div.pair { (by_rate(d)) (by_users(d)) (latency_by_users(d)) }
        (law(d))
        (notes(&d.notes))
    };
    Section {
        title: format!("How much {} can take", d.url),
        about: vec![format!("objective {}", objectives.join(", "))],
        body,
    }
}

pub(crate) fn verdict(d: &CapacityDocument) -> Headline {
    let held = d.held_s > 0.0;
    let mut told = if d.met && !held {
        // A rate held for a few seconds during the search proves nothing yet.
        Headline::new(
            Tone::Warning,
            format!(
                "For a few seconds it did what is asked of it at {} requests a second; longer was not tried.",
                grouped(d.capacity_rps)
            ),
        )
    } else if d.met {
        Headline::new(
            Tone::Good,
            format!("It takes {} requests a second and still does what is asked of it.", grouped(d.capacity_rps)),
        )
    } else if d.generator_limited {
        Headline::new(Tone::Warning, "It could not be found out: the generator was at its limit first.")
    } else if d.out_of_time || d.interrupted {
        Headline::new(Tone::Warning, "There was no time to find a rate at which it does what is asked of it.")
    } else {
        Headline::new(Tone::Bad, "At no rate does it do what is asked of it.")
    };
    told.say(d.reason.clone());
    if d.met {
        let how = if held { format!("held for {}", seconds(d.held_s)) } else { "met, but not held".into() };
        told.number(Unit::Rate.show(d.capacity_rps), how);
        if d.interval[1] > d.interval[0] {
            told.number(Unit::Rate.show(d.interval[1]), "the lowest rate that failed");
        }
    }
    if let Some(knee) = &d.knee {
        told.number(grouped(knee.users), format!("users at the knee, {}", Unit::Rate.show(knee.rps)));
    }
    if let Some(rps) = d.usl.as_ref().filter(|u| u.fits).and_then(|u| u.peak_rps) {
        told.number(Unit::Rate.show(rps), "most that the law allows");
    }
    told
}

fn step_says(s: &CapacityStep) -> String {
    let verdict = if s.ok { "met".to_string() } else { format!("not met: {}", s.why) };
    format!(
        "{} asked for, {} answered; half within {}, 99 of 100 within {}; errors {}; {verdict}",
        Unit::Rate.show(s.rate),
        Unit::Rate.show(s.answered_rps),
        show_us(s.p50_us),
        show_us(s.p99_us),
        share(s.errors)
    )
}

/// Latency against rate, for each rate that was tried.
fn by_rate(d: &CapacityDocument) -> Markup {
    let mut steps: Vec<&CapacityStep> = d.steps.iter().collect();
    steps.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let mut table = Table::new(
        "rates that were tried, in their order",
        1,
        &["for", "rate", "answered", "half within", "99 of 100 within", "errors", "seconds", NOTES],
    );
    for s in &d.steps {
        table.row(vec![
            s.role.clone(),
            Unit::Rate.show(s.rate),
            Unit::Rate.show(s.answered_rps),
            show_us(s.p50_us),
            show_us(s.p99_us),
            share(s.errors),
            format!("{:.1}", s.seconds),
            if s.ok { "met".into() } else { format!("not met: {}", s.why) },
        ]);
    }
    if steps.is_empty() {
        return Markup::default();
    }
    let limits: Vec<(String, f64)> = d
        .objective
        .iter()
        .filter(|o| matches!(o.metric, Metric::Latency { kind: Kind::Response, .. }) && o.class.is_none())
        .map(|o| (o.to_string(), o.limit))
        .collect();
    let values = steps.iter().flat_map(|s| [s.p50_us, s.p99_us]).chain(limits.iter().map(|l| l.1));
    let mut chart = Chart::new(
        "Latency against the rate",
        Axis::from_zero("requests a second", Unit::Rate, steps.iter().map(|s| s.rate)),
        Axis::around("response", Unit::Micros, values),
    );
    for (word, limit) in &limits {
        chart.level("c4", *limit, word);
    }
    if d.met {
        chart.mark("c3", d.capacity_rps, if d.held_s > 0.0 { "holds" } else { "met" });
    }
    let line = |of: fn(&CapacityStep) -> f64| steps.iter().map(|s| (s.rate, of(s))).collect::<Vec<_>>();
    chart.line("c1", "thin", &line(|s| s.p50_us));
    for s in &steps {
        chart.point("c1", Shape::Ring, s.rate, s.p50_us, &step_says(s));
        let (colour, shape) = if s.ok { ("c3", Shape::Dot) } else { ("c2", Shape::Cross) };
        chart.point(colour, shape, s.rate, s.p99_us, &step_says(s));
    }
    chart.legend("c1", "ring", "half within");
    chart.legend("c3", "dot", "99 of 100 within, objective met");
    chart.legend("c2", "cross", "99 of 100 within, not met");
    chart.figure("Latency against the rate", "Each rate that was tried, whenever it was.", &table)
}

/// X(N) = λN / (1 + σ(N − 1) + κN(N − 1))
fn law_at(u: &Usl, n: f64) -> f64 {
    u.lambda * n / (1.0 + u.sigma * (n - 1.0) + u.kappa * n * (n - 1.0))
}

/// Throughput against users, with the fitted law and the knee.
fn by_users(d: &CapacityDocument) -> Markup {
    if d.stairs.is_empty() {
        return Markup::default();
    }
    let most = d.stairs.iter().map(|s| f64::from(s.users)).fold(1.0, f64::max);
    let law = d.usl.as_ref().filter(|u| u.lambda.is_finite());
    let curve: Vec<(f64, f64)> = law.map_or_else(Vec::new, |u| {
        (0..=80).map(|i| (most / 80.0 * f64::from(i)).max(0.01)).map(|n| (n, law_at(u, n).max(0.0))).collect()
    });
    let top = d.stairs.iter().map(|s| s.rps).chain(curve.iter().map(|c| c.1).filter(|v| v.is_finite()));
    let mut chart = Chart::new(
        "Throughput against users",
        Axis::from_zero("users", Unit::Count, [most]),
        Axis::from_zero("answers a second", Unit::Rate, top),
    );
    chart.line("c4", "dashed", &curve);
    if let Some(knee) = &d.knee {
        chart.mark("c2", knee.users, &format!("knee, {} users", grouped(knee.users.round())));
    }
    let mut table = Table::new(
        "users that were tried",
        1,
        &["users", "answered", "mean", "half within", "99 of 100 within", "errors", "law"],
    );
    for s in &d.stairs {
        let by_law = law.map(|u| law_at(u, f64::from(s.users)));
        let says = format!(
            "{} users: {}, mean {}, 99 of 100 within {}",
            s.users,
            Unit::Rate.show(s.rps),
            show_us(s.mean_us),
            show_us(s.p99_us)
        );
        chart.point("c1", Shape::Dot, f64::from(s.users), s.rps, &says);
        table.row(vec![
            s.users.to_string(),
            Unit::Rate.show(s.rps),
            show_us(s.mean_us),
            show_us(s.p50_us),
            show_us(s.p99_us),
            share(s.errors),
            by_law.map_or("–".into(), |v| Unit::Rate.show(v)),
        ]);
    }
    chart.legend("c1", "dot", "measured");
    if !curve.is_empty() {
        let fits = law.is_some_and(|u| u.fits);
        chart.legend(
            "c4",
            "dashed",
            if fits { "scalability law" } else { "scalability law, which does not describe it" },
        );
    }
    chart.figure(
        "What more users bring",
        "Up to the knee users add answers; beyond it they mostly add waiting.",
        &table,
    )
}

fn latency_by_users(d: &CapacityDocument) -> Markup {
    if d.stairs.is_empty() {
        return Markup::default();
    }
    let mut chart = Chart::new(
        "Latency against users",
        Axis::from_zero("users", Unit::Count, d.stairs.iter().map(|s| f64::from(s.users))),
        Axis::around("response", Unit::Micros, d.stairs.iter().flat_map(|s| [s.p50_us, s.p99_us])),
    );
    if let Some(knee) = &d.knee {
        chart.mark("c2", knee.users, "knee");
    }
    for (colour, shape, name, of) in [
        ("c1", Shape::Dot, "half within", (|s| s.p50_us) as fn(&lastdrop_model::documents::StaircaseStep) -> f64),
        ("c5", Shape::Square, "99 of 100 within", |s| s.p99_us),
    ] {
        chart.line(colour, "thin", &d.stairs.iter().map(|s| (f64::from(s.users), of(s))).collect::<Vec<_>>());
        for s in &d.stairs {
            chart.point(
                colour,
                shape,
                f64::from(s.users),
                of(s),
                &format!("{} users: {name} {}", s.users, show_us(of(s))),
            );
        }
        chart.legend(colour, if shape == Shape::Dot { "dot" } else { "square" }, name);
    }
    chart.figure("What more users wait", "", &Table::default())
}

fn law(d: &CapacityDocument) -> Markup {
    let Some(u) = &d.usl else { return Markup::default() };
    let number = |v: f64| format!("{v:.4}");
    let row = |name: &str, what: &str, v: f64, interval: [f64; 2]| {
        vec![name.to_string(), what.to_string(), number(v), number(interval[0]), number(interval[1])]
    };
    let table = Table::new(
        "the scalability law, X(N) = λN / (1 + σ(N − 1) + κN(N − 1))",
        2,
        &["parameter", "what it is", "value", "from", "to"],
    )
    .rows([
        row("λ", "answers a second of one user", u.lambda, u.lambda_interval),
        row("σ", "share of the work that waits for others", u.sigma, u.sigma_interval),
        row("κ", "cost of each pair that has to agree", u.kappa, u.kappa_interval),
    ]);
    html! {
        @if !u.fits { p.quiet { "The law does not describe these steps: " (super::text::EscapedText(&u.why)) } }
        (table.folded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_was_not_held_is_no_capacity_yet() {
        let mut d = CapacityDocument { met: true, capacity_rps: 500.0, held_s: 15.0, ..CapacityDocument::default() };
        let told = verdict(&d);
        assert!(told.tone == Tone::Good && told.headline.starts_with("It takes 500 requests a second"), "{told:?}");
        d.held_s = 0.0;
        let told = verdict(&d);
        assert!(told.tone == Tone::Warning && told.headline.contains("longer was not tried"), "{told:?}");
        assert_eq!(told.numbers[0].1, "met, but not held");
    }
}
