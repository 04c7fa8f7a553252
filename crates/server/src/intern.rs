//! Interns knobs that depend on a configuration, and their names: a knob lives as long as the program, like a kind. An
//! equal one is reused, so that memory does not grow with the number of reads.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use lastdrop_model::Knob;

static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
static TABLES: Mutex<Vec<&'static [Knob]>> = Mutex::new(Vec::new());

pub fn text(text: &str) -> &'static str {
    let mut made = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = made.get(text) {
        return known;
    }
    let kept: &'static str = Box::leak(text.to_string().into_boxed_str());
    made.insert(kept);
    kept
}

pub fn table(knobs: Vec<Knob>) -> &'static [Knob] {
    let mut made = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = made.iter().find(|table| **table == knobs.as_slice()) {
        return known;
    }
    let kept: &'static [Knob] = Box::leak(knobs.into_boxed_slice());
    made.push(kept);
    kept
}
