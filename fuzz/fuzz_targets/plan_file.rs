//! Plan files: an error has a place in the file; a plan that is read can be written and read as JSON.
#![no_main]

use std::path::Path;

use lastdrop_model::{KeptPlan, plan_file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match plan_file::parse(text, Path::new("/folder")) {
        Err(e) => {
            assert!(e.line >= 1 && e.line <= text.matches('\n').count() + 1 && e.column >= 1);
            assert!(!e.what.is_empty() && !e.advice.is_empty());
        }
        Ok(read) => {
            let kept = KeptPlan::from(read.plan);
            let json = serde_json::to_string(&kept).expect("plans can be written");
            let again: KeptPlan = serde_json::from_str(&json).expect("and read again");
            assert_eq!(serde_json::to_string(&again).expect("plans can be written"), json);
        }
    }
});
