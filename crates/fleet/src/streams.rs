//! What the broker keeps, and how.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use crate::link::{chain, patiently};
use crate::subjects::{FILES, RECORDS};

/// A record that an agent publishes again within this time is not even stored twice. Later ones are recognised by whoever has them.
const DUPLICATES: Duration = Duration::from_secs(120);
/// Files that nobody has asked for a week are sent anew.
const FILES_AGE: Duration = Duration::from_secs(7 * 86_400);

/// Makes the streams where they are missing.
pub(crate) async fn make(jetstream: &Context) -> Result<(), String> {
    let records = Config {
        name: RECORDS.into(),
        subjects: vec!["ld.record.>".into()],
        // A record is there until whoever asked for the run has committed it, and then gone.
        retention: RetentionPolicy::WorkQueue,
        // A full disk refuses what is new: what was acknowledged stays.
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
