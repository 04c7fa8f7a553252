//! Passes records (through a consumer of the stream) and heartbeats from the broker to a `RemoteRun`, on the
//! connection's thread.

use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use futures_util::StreamExt;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

use crate::link::{Link, chain, patiently};
use crate::messages::Heartbeat;
use crate::subjects::{RECORDS, records_of};

/// Capacity of the channel from the connection's thread to the caller: how many messages are fetched ahead.
pub(crate) const QUEUE: usize = 256;

/// An item of that channel.
pub(crate) enum InboundMessage {
    Message(Box<jetstream::Message>),
    Heartbeat(String, Heartbeat),
}

pub(crate) async fn consumer(jetstream: &jetstream::Context, run: &str) -> Result<PullConsumer, String> {
    let config = pull::Config {
        durable_name: Some(run.to_owned()),
        filter_subject: records_of(run),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(30),
        max_ack_pending: 4 * QUEUE as i64,
        ..pull::Config::default()
    };
    patiently(|| jetstream.create_consumer_on_stream(config.clone(), RECORDS)).await.map_err(|e| chain(&e))
}

/// Waits until the broker has processed our acknowledgements, because those that arrive after the consumer is
/// deleted have no effect. `open` records stay unacknowledged, as do those fetched ahead, so the wait is
/// bounded.
pub(crate) async fn settled(link: &Link, run: &str, open: usize) {
    for _ in 0..20 {
        let consumer = link.jetstream.get_consumer_from_stream::<pull::Config, _, _>(run, RECORDS).await;
        let pending = consumer.map_or(0, |consumer: PullConsumer| consumer.cached_info().num_ack_pending);
        if pending <= open {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Fetches records in batches, for ever.
pub(crate) async fn fetch(
    link: Link,
    mut consumer: PullConsumer,
    run: String,
    to: Sender<InboundMessage>,
    mut ends: watch::Receiver<()>,
) {
    let work = async {
        loop {
            link.wait_up().await;
            if !some(&consumer, &to).await {
                // The broker was away, or has lost the consumer.
                tokio::time::sleep(Duration::from_millis(200)).await;
                if let Ok(again) = self::consumer(&link.jetstream, &run).await {
                    consumer = again;
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        _ = ends.changed() => {}
    }
}

/// Fetches what arrives within a second; returns false if the broker failed.
async fn some(consumer: &PullConsumer, to: &Sender<InboundMessage>) -> bool {
    let asked = consumer.batch().max_messages(64).expires(Duration::from_secs(1)).messages();
    let Ok(Ok(mut batch)) = tokio::time::timeout(Duration::from_secs(5), asked).await else { return false };
    loop {
        match tokio::time::timeout(Duration::from_secs(3), batch.next()).await {
            Ok(Some(Ok(message))) => {
                if to.send(InboundMessage::Message(Box::new(message))).await.is_err() {
                    return true;
                }
            }
            Ok(None) => return true,
            Ok(Some(Err(_))) | Err(_) => return false,
        }
    }
}

/// Passes on the heartbeats of the run.
pub(crate) async fn hear(
    mut beats: Subscriber,
    run: String,
    to: Sender<InboundMessage>,
    mut ends: watch::Receiver<()>,
) {
    let work = async {
        while let Some(message) = beats.next().await {
            let Some(agent) = message.subject.strip_prefix("ld.alive.").map(str::to_owned) else { continue };
            let Some(beat) = serde_json::from_slice::<Heartbeat>(&message.payload).ok().filter(|b| b.run == run) else {
                continue;
            };
            if to.send(InboundMessage::Heartbeat(agent, beat)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = work => {}
        _ = ends.changed() => {}
    }
}
