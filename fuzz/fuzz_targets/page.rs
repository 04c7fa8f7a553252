//! Pages of a hostile server: what they embed are URLs that can be sent, each once, and not too many.
#![no_main]

use std::collections::HashSet;

use lastdrop_load::page::embedded;
use lastdrop_model::Url;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|html: &[u8]| {
    let page: Url = "http://h/d/p?q".parse().expect("valid");
    let found = embedded(html, &page);
    assert!(found.urls.len() <= 1000);
    assert_eq!(found.urls.iter().collect::<HashSet<_>>().len(), found.urls.len());
    for url in &found.urls {
        assert!(url.path.starts_with('/') && url.path.bytes().all(|b| b.is_ascii_graphic()), "{url}");
        assert!(!url.path.contains(['<', '>', '"', '#']), "{url}");
    }
});
