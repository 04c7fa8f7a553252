//! Values out of answers and into requests: rules and templates that a user writes, bodies that a server sends.
#![no_main]

use lastdrop_load::extract::Extraction;
use lastdrop_load::template::{Encoding, Template, encode_into};
use lastdrop_model::request::{ExtractSpec, ExtractSource};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &str, &str, Vec<u8>)| {
    let (kind, rule, template, body) = input;
    let from = match kind % 3 {
        0 => ExtractSource::Header(rule.into()),
        1 => ExtractSource::Regex(rule.chars().take(200).collect()),
        _ => ExtractSource::Json(rule.into()),
    };
    let _ = Template::parse(template, &["value"].into_iter().collect(), Encoding::Field);
    let Ok(extraction) = Extraction::new(&ExtractSpec { name: "value".into(), from }, 0) else { return };
    let headers = vec![("X-Value".to_string(), body.clone())];
    if let Some(value) = extraction.take(&headers, &body, &body) {
        for encode in [Encoding::Target, Encoding::Field, Encoding::Form] {
            let mut out = Vec::new();
            encode_into(&value, encode, &mut out);
            assert!(!out.contains(&b'\n') && !out.contains(&b'\r'));
        }
    }
});
