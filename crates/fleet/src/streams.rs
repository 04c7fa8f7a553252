//! The broker's streams and their settings.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use crate::link::{chain, patiently};
use crate::subjects::{FILES, RECORDS};

/// A record published again within this time is not stored twice. Later duplicates are recognised by their
/// receivers.
const DUPLICATES: Duration = Duration::from_secs(120);
/// Files unused for a week expire; they are sent again when needed.
const FILES_AGE: Duration = Duration::from_secs(7 * 86_400);

/// Creates the streams if they are missing.
pub(crate) async fn make(jetstream: &Context) -> Result<(), String> {
    let records = Config {
        name: RECORDS.into(),
        subjects: vec!["ld.record.>".into()],
        // A record stays until the coordinator has committed it; then it is removed.
        retention: RetentionPolicy::WorkQueue,
        // A full disk refuses new records, so that acknowledged ones are kept.
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        duplicate_window: DUPLICATES,
        ..Config::default()
    };
    let files = Config {
        name: FILES.into(),
        subjects: vec!["ld.file.>".into()],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        max_age: FILES_AGE,
        allow_direct: true,
        ..Config::default()
    };
    for stream in [records, files] {
        patiently(|| jetstream.get_or_create_stream(stream.clone())).await.map_err(|e| chain(&e))?;
    }
    Ok(())
}
