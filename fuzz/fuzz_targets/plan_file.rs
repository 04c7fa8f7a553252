//! Plan files: an error has a place in the file; a plan that is read can be written and read as JSON.
#![no_main]

use std::path::Path;

use lastdrop_model::{Plan, plan_file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match plan_file::parse(text, Path::new("/folder")) {
        Err(e) => {
            assert!(e.line >= 1 && e.line <= text.matches('\n').count() + 1 && e.column >= 1);
            assert!(!e.what.is_empty() && !e.advice.is_empty());
        }
        Ok(read) => {
            let json = serde_json::to_string(&read.plan).expect("plans can be written");
            let _: Plan = serde_json::from_str(&json).expect("and read again");
        }
    }
});
