//! The section of a profile: where a server's CPU time goes, as a flame graph if there are stacks, and as
//! lists; or which request class makes its workers grow.

use lastdrop_model::documents::{ClassVerdict, ProfileDocument, ProfileMemory};
use lastdrop_model::units::show_us;
use maud::{Markup, PreEscaped, html};

use super::bars::{Bar, bars};
use super::compare::notes;
use super::number::{count, seconds, share};
use super::page::Section;
use super::table::Table;
use super::text::short;
use super::verdict::{Headline, Tone};
use crate::profile::flame_graph;
use crate::profile_memory;

/// Functions that get a bar.
const MOST_BARS: usize = 20;

pub(super) fn section(d: &ProfileDocument) -> Section {
    if let Some(memory) = &d.memory {
        return memory_section(d, memory);
    }
    let body = html! {
        (verdict(d).shown())
        h2.group { "Where it goes" }
        (flames(d))
        (functions(d))
        (libraries(d))
        (notes(&d.notes))
    };
    let about = vec![d.how.clone(), seconds(d.seconds), format!("{} {}", count(d.samples), d.counted())];
    Section { title: format!("Where the CPU of {} goes", d.server), about, body }
}

/// The section of `profile --memory`.
fn memory_section(d: &ProfileDocument, memory: &ProfileMemory) -> Section {
    let rows: Vec<Bar> = memory
        .classes
        .iter()
        .filter(|class| class.growth_bytes.value > 0.0)
        .take(MOST_BARS)
        .map(|class| Bar {
            name: short(&class.class, 90),
            value: class.growth_bytes.value,
            says: profile_memory::bytes(class.growth_bytes.value),
            colour: if class.verdict == ClassVerdict::Steady { "c3" } else { "c1" },
            mark: None,
        })
        .collect();
    let heading = ["class", "verdict", "in", "bytes per request", "95 % interval", "per 1,000 requests", "requests"];
    let table = Table::new("request classes", 3, &heading).rows(memory.classes.iter().map(|class| {
        let mut cells = profile_memory::cells(class);
        // In a page, the columns of words come first.
        cells.rotate_left(4);
        cells
    }));
    let heading = ["function", "file:line", "bytes per request", "%"];
    let functions =
        Table::new("functions that allocate what is kept", 2, &heading).rows(memory.functions.iter().map(|f| {
            let mut cells = profile_memory::function_cells(f);
            cells.rotate_left(2);
            cells
        }));
    let body = html! {
        (verdict(d).shown())
        h2.group { "Growth by request class" }
        (bars("Bytes per request", "", &rows, &table))
        @if !functions.is_empty() { (functions.shown()) }
        (notes(&d.notes))
    };
    let about = vec![seconds(d.seconds), format!("{} rounds", memory.rounds), format!("{} workers", memory.workers)];
    Section { title: format!("What makes the workers of {} grow", d.server), about, body }
}

fn memory_verdict(memory: &ProfileMemory) -> Headline {
    let grows = memory.classes.iter().any(|class| class.verdict == ClassVerdict::Grows);
    let tone = if grows { Tone::Bad } else { Tone::Good };
    let mut told = Headline::new(tone, profile_memory::sentence(memory));
    told.number(profile_memory::bytes(memory.gained_bytes), "gained in all");
    told.number(count(memory.classes.iter().map(|class| class.requests).sum()), "requests");
    told
}

pub(super) fn verdict(d: &ProfileDocument) -> Headline {
    if let Some(memory) = &d.memory {
        return memory_verdict(memory);
    }
    let mut told = match (d.functions.first(), d.libraries.first()) {
        (Some(f), _) => Headline::new(
            Tone::Note,
            format!(
                "Most of it goes to {} of {}: {}.",
                short(&f.function, 80),
                short(&f.library, 60),
                share(f.self_share)
            ),
        ),
        (None, Some(l)) => {
            Headline::new(Tone::Note, format!("Most of it goes to {}: {}.", short(&l.name, 80), share(l.share)))
        }
        (None, None) => Headline::new(Tone::Warning, "It used too little CPU to say where it goes."),
    };
    told.number(seconds(d.cpu_s), "of CPU");
    if let Some(us) = d.us_per_request {
        told.number(show_us(us), "a request");
    }
    if let Some(n) = d.requests {
        told.number(count(n), "requests");
    }
    told
}

fn flames(d: &ProfileDocument) -> Markup {
    html! {
        @if !d.stacks.is_empty() {
            h3 { "Who calls whom" }
            p.quiet { "A box a function, as wide as its share of the samples, above its caller." }
            div.flame tabindex="0" role="img" aria-label="Flame graph" { (PreEscaped(flame_graph("", &d.stacks, d.unit()))) }
        }
    }
}

fn functions(d: &ProfileDocument) -> Markup {
    if d.functions.is_empty() {
        return Markup::default();
    }
    let us = |v: Option<f64>| v.map_or("–".into(), show_us);
    let table = Table::new("functions", 2, &["function", "in", "by itself", "with what it calls", "a request"]).rows(
        d.functions.iter().map(|f| {
            vec![f.function.clone(), f.library.clone(), share(f.self_share), share(f.total_share), us(f.us_per_request)]
        }),
    );
    let rows: Vec<Bar> = d
        .functions
        .iter()
        .filter(|f| f.self_share > 0.0)
        .take(MOST_BARS)
        .map(|f| Bar {
            name: format!("{} – {}", short(&f.function, 70), short(&f.library, 40)),
            value: f.self_share,
            says: share(f.self_share),
            colour: "c1",
            mark: None,
        })
        .collect();
    bars("Functions by what they use themselves", "", &rows, &table)
}

fn libraries(d: &ProfileDocument) -> Markup {
    let rows: Vec<Bar> = d
        .libraries
        .iter()
        .take(MOST_BARS)
        .map(|l| Bar { name: short(&l.name, 90), value: l.share, says: share(l.share), colour: "c3", mark: None })
        .collect();
    let table = Table::new("programs and libraries", 1, &["name", "share"])
        .rows(d.libraries.iter().map(|l| vec![l.name.clone(), share(l.share)]));
    html! { @if !rows.is_empty() { (bars("Programs and libraries", "", &rows, &table)) } }
}
