//! Files of an order, stored in the broker's JetStream by their digest.
//!
//! A file is cut into chunks. Each is a message of the stream `LD_FILES` under the file's SHA-256 and the
//! chunk's number. NATS has an object store, but reading it takes consumers, and a user who may create
//! consumers may have the broker deliver to any subject. Here an agent gets a message by its subject (direct
//! get) and has no other rights.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::jetstream::Context;
use bytes::Bytes;

use crate::link::{chain, patiently};
use crate::order::StoredFile;
use crate::subjects::{FILES, chunk};
use crate::tokens::{hex, sha256};

/// Smaller than the usual `max_payload` of 1 MiB.
const CHUNK: usize = 512 << 10;

/// Stores a file unless it is already stored.
pub(crate) async fn store(jetstream: &Context, name: &str, content: &[u8]) -> Result<StoredFile, String> {
    let stored = StoredFile { name: name.to_owned(), sha256: hex(&sha256(content)), bytes: content.len() as u64 };
    let stream = jetstream.get_stream_no_info(FILES).await.map_err(|e| chain(&e))?;
    for (index, part) in content.chunks(CHUNK).enumerate() {
        let subject = chunk(&stored.sha256, index as u64);
        // A chunk that is stored under this digest is not sent again.
        if stream.direct_get_last_for_subject(subject.as_str()).await.is_ok() {
            continue;
        }
        let part = Bytes::copy_from_slice(part);
        let send = || async { jetstream.publish(subject.clone(), part.clone()).await?.await };
        patiently(send).await.map_err(|e| format!("the broker does not take {name}: {}", chain(&e)))?;
    }
    Ok(stored)
}

/// Fetches a file into `folder`, named by its digest, unless it is there already. The digest is checked in
/// both cases.
pub(crate) async fn fetch(jetstream: &Context, file: &StoredFile, folder: &Path) -> Result<PathBuf, FetchError> {
    let digest = |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !digest(&file.sha256) {
        return Err(FetchError::Damaged);
    }
    let path = folder.join(&file.sha256);
    if std::fs::read(&path).is_ok_and(|content| hex(&sha256(&content)) == file.sha256) {
        return Ok(path);
    }
    let stream = jetstream.get_stream_no_info(FILES).await.map_err(|e| FetchError::Broker(chain(&e)))?;
    let partial = folder.join(format!("{}.partial", file.sha256));
    let mut to = io::BufWriter::new(std::fs::File::create(&partial)?);
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for index in 0..file.bytes.div_ceil(CHUNK as u64) {
        let part = get(&stream, &chunk(&file.sha256, index)).await?;
        context.update(&part);
        to.write_all(&part)?;
    }
    to.flush()?;
    drop(to);
    if hex(context.finish().as_ref()) != file.sha256 {
        std::fs::remove_file(&partial)?;
        return Err(FetchError::Damaged);
    }
    std::fs::rename(&partial, &path)?;
    Ok(path)
}

/// Gets a chunk; retries, because the broker may be away for a moment.
async fn get(stream: &async_nats::jetstream::stream::Stream<()>, subject: &str) -> Result<Bytes, FetchError> {
    let mut last = String::new();
    for attempt in 0..5_u32 {
        match stream.direct_get_last_for_subject(subject).await {
            Ok(message) => return Ok(message.payload),
            Err(e) => last = chain(&e),
        }
        tokio::time::sleep(Duration::from_millis(100 << attempt)).await;
    }
    Err(FetchError::Broker(last))
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("its content does not have the digest that was signed")]
    Damaged,
    #[error("the broker does not give it: {0}")]
    Broker(String),
    #[error("it cannot be written here: {0}")]
    Disk(#[from] io::Error),
}
