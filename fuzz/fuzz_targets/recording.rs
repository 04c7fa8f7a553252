//! What was recorded elsewhere: whatever is read becomes a plan that can be read back.
#![no_main]

use std::path::Path;

use lastdrop_model::{Url, plan_file};
use lastdrop_traffic::recording::{
    ImportedFile, PlanOptions, plan, read_curl, read_har, read_siege, read_wlog, read_wsesslog,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Some(choice) = text.chars().next() else { return };
    let text = &text[choice.len_utf8()..];
    let server: Url = "http://127.0.0.1:8080/".parse().expect("a URL");
    let read = match choice {
        'h' => read_har(text),
        'c' => read_curl(text),
        's' => read_siege(text).map(ImportedFile::from),
        'w' => read_wlog(text, &server).map(ImportedFile::from),
        _ => read_wsesslog(text, &server).map(ImportedFile::from),
    };
    let Ok(ImportedFile { exchanges, settings, left_out }) = read else { return };
    let independent = matches!(choice, 's' | 'w');
    let options =
        PlanOptions { data_file: "plan.csv".into(), independent, settings, left_out, ..PlanOptions::default() };
    let count = exchanges.len();
    let Ok(recorded) = plan(exchanges, &options) else { return };
    let again = plan_file::parse(&recorded.plan, Path::new("/folder"));
    let again = again.unwrap_or_else(|e| panic!("{e}\n{}", recorded.plan)).plan;
    assert!((1..=count).contains(&again.requests.len()));
    assert!(recorded.data.is_none_or(|data| data.lines().count() >= 2));
});
