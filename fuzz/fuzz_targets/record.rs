//! What agents of a fleet tell: whatever the bytes are, reading them makes no more than they are, and what is read is written the same.
#![no_main]

use lastdrop_model::record::Record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::decode(bytes) {
        let written = record.encode();
        let again = Record::decode(&written).expect("own output");
        assert_eq!(again.encode(), written);
    }
});
