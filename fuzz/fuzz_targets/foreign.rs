//! Text of others: nothing of it steers a terminal or breaks a document, and taking the secrets out of it never fails.
#![no_main]

use lastdrop_model::{Printable, printable, secrets};
use libfuzzer_sys::fuzz_target;

fn steers(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t' | '\r') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fuzz_target!(|bytes: &[u8]| {
    let text = printable::lossless(bytes);
    let shown = Printable::from(&text).to_string();
    assert!(!shown.contains(steers) && !shown.replace("\r\n", "").contains('\r'));
    assert_eq!(Printable::from(text.clone()).to_string(), shown);
    let line = printable::line(&text);
    assert!(!line.contains(steers) && !line.contains(['\n', '\r', '\t']));
    assert!(!printable::xml(&text).contains(['<', '>', '"', '\'', '\n', '\u{fffe}', '\u{ffff}']));
    let json = serde_json::to_string(&text).expect("text is JSON");
    let harmless = printable::json(&json);
    assert!(!harmless.contains(steers));
    assert_eq!(serde_json::from_str::<String>(&harmless).expect("still JSON"), text);
    let url = secrets::url(&text);
    assert_eq!(secrets::url(&url), url, "what is hidden stays hidden");
    let _ = secrets::login(&text);
});
