//! Publishes the records of an agent's journals: in order, several at a time, and repeatedly until the broker
//! has them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::context::PublishAckFuture;
use futures_util::future::join_all;

use crate::journal::{END, EntryLocation, Journal, JournalBacklog, JournalId};
use crate::link::{Driver, Link, chain};
use crate::reassembly::split;
use crate::subjects::PartId;

/// Records in flight to the broker: enough for 160 per second at a round trip of 100 ms, and few enough to
/// send again.
const AT_ONCE: usize = 16;

/// A journal and what remains to be published of it.
#[derive(Debug)]
pub(crate) struct OutgoingJournal {
    id: JournalId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` after it was removed.
    journal: Option<Journal>,
    next: u64,
    pending: u64,
    ended: bool,
}

/// A record to publish, and where its content is.
#[derive(Debug)]
struct QueuedRecord {
    journal: Arc<OutgoingJournal>,
    seq: u64,
    content: RecordContent,
}

#[derive(Debug)]
enum RecordContent {
    Disk(EntryLocation),
    /// Writing to the disk failed.
    Memory(u8, Vec<u8>),
}

/// The queue of records to publish, over all journals.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Publishes each record twice, as two messages, for tests.
    twice: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<QueuedRecord>,
    /// Number of records taken out and not acknowledged.
    under_way: usize,
    closed: bool,
    /// The reason why the broker does not take records now.
    trouble: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OutgoingJournal {
    pub fn new(journal: Journal) -> Arc<OutgoingJournal> {
        let id = journal.id().clone();
        Arc::new(OutgoingJournal {
            id,
            state: Mutex::new(State { journal: Some(journal), next: 0, pending: 0, ended: false }),
        })
    }

    /// Writes a record to the journal, or keeps it in memory if that fails, and queues it for publishing.
    /// Returns its sequence number, and the error if it is not on the disk.
    pub fn add(self: &Arc<Self>, outbox: &Outbox, kind: u8, record: &[u8]) -> (u64, Option<std::io::Error>) {
        let mut state = lock(&self.state);
        let seq = state.next;
        let written = match &mut state.journal {
            Some(journal) => journal.append(kind, seq, record),
            None => Err(std::io::Error::other("the journal is closed")),
        };
        state.next += 1;
        state.pending += 1;
        state.ended |= kind == END;
        let (content, error) = match written {
            Ok(place) => (RecordContent::Disk(place), None),
            Err(e) => (RecordContent::Memory(kind, record.to_vec()), Some(e)),
        };
        // Still under the lock, so that records are published in the order of their numbers.
        outbox.push(QueuedRecord { journal: Arc::clone(self), seq, content });
        (seq, error)
    }

    /// Returns the number of records.
    pub fn next(&self) -> u64 {
        lock(&self.state).next
    }

    pub fn path(&self) -> std::path::PathBuf {
        lock(&self.state).journal.as_ref().map(|j| j.path().to_owned()).unwrap_or_default()
    }

    /// Removes a journal that was never used.
    pub fn discard(&self) {
        if let Some(journal) = lock(&self.state).journal.take() {
            let _ = journal.remove();
        }
    }

    fn acknowledged(&self, seq: u64) {
        let mut state = lock(&self.state);
        state.pending -= 1;
        if let Some(journal) = &mut state.journal {
            // Without this note the record is sent again after a restart, and recognised.
            let _ = journal.acknowledged(seq);
        }
        if state.ended && state.pending == 0 {
            drop(state);
            self.discard();
        }
    }
}

impl Outbox {
    pub fn new(twice: bool) -> Outbox {
        Outbox { twice, ..Outbox::default() }
    }

    /// Takes over a journal of an earlier epoch and adds its final report.
    pub fn take_up(&self, journal: Journal, left: JournalBacklog, last_word: &[u8]) {
        let id = journal.id().clone();
        let state =
            State { journal: Some(journal), next: left.next, pending: left.pending.len() as u64, ended: left.ended };
        let journal = Arc::new(OutgoingJournal { id, state: Mutex::new(state) });
        if left.ended && left.pending.is_empty() {
            journal.discard();
            return;
        }
        for (seq, place) in left.pending {
            self.push(QueuedRecord { journal: Arc::clone(&journal), seq, content: RecordContent::Disk(place) });
        }
        if !left.ended {
            journal.add(self, END, last_word);
        }
    }

    fn push(&self, item: QueuedRecord) {
        lock(&self.queue).waiting.push_back(item);
        self.changed.notify_all();
    }

    pub fn trouble(&self) -> Option<String> {
        lock(&self.queue).trouble.clone()
    }

    /// Waits at most `limit` until the broker has all records, and closes. Returns how many it does not have.
    pub fn close(&self, limit: Duration) -> usize {
        let deadline = Instant::now() + limit;
        let mut queue = lock(&self.queue);
        while queue.waiting.len() + queue.under_way > 0 {
            let Some(rest) = deadline.checked_duration_since(Instant::now()) else { break };
            (queue, _) = self.changed.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner);
        }
        queue.closed = true;
        self.changed.notify_all();
        queue.waiting.len() + queue.under_way
    }

    /// Publishes until closed, in a thread of its own. It reads the disk and waits while journals are
    /// flushed. The connection's thread must not wait like that, because it answers pings.
    pub fn publish(&self, driver: &Driver, link: &Link) {
        while let Some(batch) = self.take() {
            let mut failed = Vec::new();
            let mut trouble = None;
            let read: Vec<_> = batch.into_iter().filter_map(|item| self.read(item, &mut trouble)).collect();
            let sent = driver.wait(send(link, &read, self.twice));
            for ((item, ..), sent) in read.into_iter().zip(sent) {
                match sent {
                    Ok(()) => item.journal.acknowledged(item.seq),
                    Err(why) => {
                        trouble.get_or_insert(why);
                        failed.push(item);
                    }
                }
            }
            let pause = !failed.is_empty();
            let mut queue = lock(&self.queue);
            queue.under_way = 0;
            for item in failed.into_iter().rev() {
                queue.waiting.push_front(item);
            }
            // A lost connection is not reported as trouble: it is noticed anyway.
            queue.trouble = trouble.filter(|_| link.is_up());
            self.changed.notify_all();
            if pause && !queue.closed {
                let _ = self.changed.wait_timeout(queue, Duration::from_millis(300));
            }
        }
    }

    /// Returns the next records; `None` when closed.
    fn take(&self) -> Option<Vec<QueuedRecord>> {
        let mut queue = lock(&self.queue);
        while queue.waiting.is_empty() && !queue.closed {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.closed {
            return None;
        }
        let count = queue.waiting.len().min(AT_ONCE);
        queue.under_way = count;
        Some(queue.waiting.drain(..count).collect())
    }

    /// Reads an item's kind and content. A record that cannot be read back from the disk is lost; retrying
    /// would not help, so this is reported.
    fn read(&self, item: QueuedRecord, trouble: &mut Option<String>) -> Option<(QueuedRecord, u8, Vec<u8>)> {
        let read = match &item.content {
            RecordContent::Memory(kind, record) => Ok((*kind, record.clone())),
            RecordContent::Disk(place) => match &lock(&item.journal.state).journal {
                Some(journal) => journal.read(*place),
                None => Err(std::io::Error::other("the journal is closed")),
            },
        };
        match read {
            Ok((kind, record)) => Some((item, kind, record)),
            Err(e) => {
                *trouble = Some(format!("record {} of run {} cannot be read back: {e}", item.seq, item.journal.id.run));
                None
            }
        }
    }
}

/// Publishes all records, then waits for all acknowledgements; returns the result for each.
async fn send(link: &Link, batch: &[(QueuedRecord, u8, Vec<u8>)], twice: bool) -> Vec<Result<(), String>> {
    // Wait for a connection: otherwise each try would add one more copy to the client's buffer.
    if tokio::time::timeout(Duration::from_secs(1), link.wait_up()).await.is_err() {
        return batch.iter().map(|_| Err("no connection to the broker".into())).collect();
    }
    let mut acknowledgements = Vec::new();
    for (item, kind, record) in batch {
        let JournalId { run, agent, epoch } = item.journal.id.clone();
        let parts = split(*kind, record, link.client.max_payload());
        let mut of = PartId { run, agent, epoch, seq: item.seq, part: 0, parts: parts.len() as u32 };
        let mut sent = Vec::new();
        for bytes in parts {
            let subject = of.subject();
            // The broker drops a repeated message id, so the second message has an id of its own.
            let ids = [Some(subject.clone()), twice.then(|| format!("{subject} again"))];
            for id in ids.into_iter().flatten() {
                let mut headers = HeaderMap::new();
                headers.insert(NATS_MESSAGE_ID, id.as_str());
                let publish = link.jetstream.publish_with_headers(subject.clone(), headers, bytes.clone());
                sent.push(publish.await.map_err(|e| chain(&e)));
            }
            of.part += 1;
        }
        acknowledgements.push(sent);
    }
    // Waits for all at once, so that the time limits run in parallel.
    join_all(acknowledgements.into_iter().map(|parts| whole(link, parts))).await
}

/// Waits for the acknowledgement of every part of a record. A connection that breaks delivers none of them.
async fn whole(link: &Link, parts: Vec<Result<PublishAckFuture, String>>) -> Result<(), String> {
    let parts = parts.into_iter().map(async |part| {
        tokio::select! {
            biased;
            answer = part?.into_future() => answer.map(drop).map_err(|e| format!("the broker does not take records: {}", chain(&e))),
            () = link.wait_down() => Err("the connection to the broker broke".into()),
        }
    });
    join_all(parts).await.into_iter().collect()
}
