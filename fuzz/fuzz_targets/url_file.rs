//! Files of URLs, and references joined to them.
#![no_main]

use std::path::Path;

use lastdrop_model::url_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match url_file::parse(text, Path::new("/folder"), |name| (name == "HOME").then(|| "/root".into())) {
        Err(e) => assert!(e.line >= 1 && e.line <= text.lines().count().max(1)),
        Ok(requests) => {
            for request in requests {
                let again: lastdrop_model::Url = request.url.in_full().parse().expect("a URL reads what it prints");
                assert_eq!(again, request.url);
                if let Ok(joined) = request.url.join(text.lines().last().unwrap_or_default()) {
                    assert!(joined.path.starts_with('/'));
                }
            }
        }
    }
});
