//! The section of demand against capacity: how many times the busiest minute a server bears, and what follows.

use lastdrop_model::documents::HeadroomDocument;
use lastdrop_model::units::show_us;
use maud::{Markup, html};

use super::compare::notes;
use super::number::{Unit, count};
use super::page::Section;
use super::table::{NOTES, Table};
use super::verdict::{Headline, Tone};
use crate::headroom::{days_text, facts};

pub(super) fn section(d: &HeadroomDocument) -> Section {
    let known = Table::new("what is known", 1, &["about", NOTES])
        .rows(facts(d).into_iter().map(|(name, text)| vec![name.to_string(), text]));
    let body = html! {
        (verdict(d).shown())
        h2.group { "Demand and capacity" }
        (known.shown())
        (burst(d))
        (notes(&d.assumptions.iter().map(|a| format!("assumed: {a}")).chain(d.notes.iter().cloned()).collect::<Vec<_>>()))
    };
    Section { title: "How much more demand is borne".into(), about: vec![d.url.clone(), d.logs.join(", ")], body }
}

pub(crate) fn verdict(d: &HeadroomDocument) -> Headline {
    let least = if d.at_least { "at least " } else { "" };
    let mut told = match d.headroom {
        Some(times) if times >= 1.0 => {
            Headline::new(Tone::Good, format!("The server bears {least}{times:.1} times the busiest minute."))
        }
        Some(times) => Headline::new(Tone::Bad, format!("The server bears only {times:.2} of the busiest minute.")),
        None if d.demand.requests == 0 => Headline::new(Tone::Warning, "There is no request, so there is no demand."),
        None => Headline::new(
            Tone::Note,
            format!(
                "The busiest minute has {} requests/s; the capacity is not known.",
                rate(d.demand.busiest_minute_rps)
            ),
        ),
    };
    match &d.reached {
        Some(days) => told.say(format!("The limit is reached {}.", days_text(days))),
        None => told.say(format!("Cannot tell when the limit is reached: {}.", d.cannot_tell)),
    }
    told.number(Unit::Rate.show(d.demand.busiest_minute_rps), "busiest minute");
    told.number(Unit::Rate.show(d.demand.peak_rps), "busiest second");
    if let Some(rps) = d.capacity_rps {
        told.number(Unit::Rate.show(rps), "capacity");
    }
    if let Some(workers) = d.workers {
        told.number(count(workers), "workers busy");
    }
    if let Some(machines) = d.machines {
        told.number(count(machines), "machines, one may be down");
    }
    told
}

fn rate(rps: f64) -> String {
    format!("{rps:.1}")
}

fn burst(d: &HeadroomDocument) -> Markup {
    if d.burst.is_empty() {
        return Markup::default();
    }
    let table = Table::new("waits in a burst", 0, &["rank", "waits"])
        .rows(d.burst.iter().map(|b| vec![count(b.rank), show_us(b.wait_s * 1e6)]));
    html! { (table.shown()) }
}
