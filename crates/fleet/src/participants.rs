//! The agents that take part in a run, and the orders they get.

use std::time::{Duration, Instant};

use async_nats::{Client, RequestErrorKind, jetstream};
use bytes::Bytes;
use futures_util::future::join_all;

use crate::coordinator::{Fleet, FleetError, StartOptions};
use crate::files::store;
use crate::link::chain;
use crate::messages::{Clock, Reply};
use crate::order::{OrderKind, Refusal, SignedOrder, StoredFile};
use crate::roster::{Agent, Assignment};
use crate::subjects::{self, ping};
use crate::tokens::Token;

/// Number of pings; the one with the shortest round trip gives the clock's offset.
const ROUND_TRIPS: usize = 20;
/// A larger payload is sent as a file.
pub(crate) const INLINE: usize = 256 << 10;

/// Returns an agent's clock minus ours, and half of the shortest round trip, both in microseconds.
pub(crate) async fn offset(client: &Client, agent: &str) -> Option<(i64, u64)> {
    let clock = Clock::default();
    let mut best: Option<(i64, u64)> = None;
    for _ in 0..ROUND_TRIPS {
        let (sent_us, sent) = (clock.now_us(), Instant::now());
        let answer = tokio::time::timeout(Duration::from_secs(2), client.request(ping(agent), Bytes::new())).await;
        let half = sent.elapsed().as_micros() as u64 / 2;
        let theirs = match answer {
            Ok(Ok(message)) => std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse::<i64>().ok()),
            Ok(Err(e)) if e.kind() == RequestErrorKind::NoResponders => return None,
            _ => None,
        };
        let Some(theirs) = theirs else { continue };
        if best.is_none_or(|(_, error)| half < error) {
            best = Some((theirs.saturating_sub(sent_us).saturating_sub(half as i64), half));
        }
    }
    best
}

/// The agents that take part in a run, and the orders they get.
#[derive(Debug)]
pub(crate) struct Participants {
    client: Client,
    jetstream: jetstream::Context,
    token: Token,
    version: String,
    run: String,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    name: String,
    instance: String,
    offset_us: i64,
    error_us: u64,
    last_order: u64,
}

impl Participants {
    pub fn new(fleet: &Fleet, run: &str) -> Participants {
        Participants {
            client: fleet.link.client.clone(),
            jetstream: fleet.link.jetstream.clone(),
            token: fleet.token.clone(),
            version: fleet.version.clone(),
            run: run.to_owned(),
            members: Vec::new(),
        }
    }

    pub fn add(&mut self, agent: &Agent) {
        self.members.push(Member {
            name: agent.name.clone(),
            instance: agent.instance.clone(),
            offset_us: agent.offset_us,
            error_us: agent.error_us,
            last_order: agent.last_order,
        });
    }

    /// Sends the files and has all agents prepare; returns each agent's epoch.
    pub async fn prepare(
        &mut self,
        assignments: &[Assignment],
        how: &StartOptions,
    ) -> Result<Vec<(String, Option<u64>)>, FleetError> {
        let mut orders = Vec::new();
        for assignment in assignments {
            self.add(&assignment.agent);
            let mut files: Vec<StoredFile> = Vec::new();
            for (name, content) in &assignment.files {
                files.push(store(&self.jetstream, name, content).await.map_err(FleetError::Broker)?);
            }
            let inline = assignment.payload.len() <= INLINE;
            let payload = match inline {
                true => None,
                false => {
                    Some(store(&self.jetstream, "the plan", &assignment.payload).await.map_err(FleetError::Broker)?)
                }
            };
            let bytes = if inline { assignment.payload.clone() } else { Vec::new() };
            orders.push((OrderKind::Prepare { payload, files }, bytes));
        }
        let replies = self.give(orders, how.ready_within).await;
        let mut epochs = Vec::new();
        let mut refusals = Vec::new();
        for (member, reply) in self.members.iter().zip(replies) {
            match reply {
                Ok(Reply::Ready { epoch }) => epochs.push((member.name.clone(), Some(epoch))),
                Ok(Reply::Refused(why)) => refusals.push((member.name.clone(), why.to_string())),
                Ok(_) => refusals.push((member.name.clone(), "it is about to end".into())),
                Err(why) => refusals.push((member.name.clone(), why)),
            }
        }
        if refusals.is_empty() {
            return Ok(epochs);
        }
        // Those that did prepare have to discard the run.
        self.members.retain(|m| epochs.iter().any(|(name, _)| *name == m.name));
        Err(FleetError::Refused(refusals))
    }

    /// Measures the clocks again, because preparing may take a while.
    pub async fn measure(&mut self) {
        let clocks = join_all(self.members.iter().map(|m| offset(&self.client, &m.name))).await;
        for (member, clock) in self.members.iter_mut().zip(clocks) {
            if let Some((offset_us, error_us)) = clock {
                (member.offset_us, member.error_us) = (offset_us, error_us);
            }
        }
    }

    /// Tells all agents when to begin. Returns that time in microseconds since 1970, by our clock. An agent
    /// that does not answer will send no heartbeats either, and so is lost in time.
    pub async fn go(&mut self, lead: Duration) -> i64 {
        let coordinator_us = Clock::default().now_us() + lead.as_micros() as i64;
        let go =
            |m: &Member| OrderKind::Go { at_us: coordinator_us + m.offset_us, coordinator_us, error_us: m.error_us };
        let orders = self.members.iter().map(|m| (go(m), Vec::new())).collect();
        self.give(orders, Duration::from_secs(5)).await;
        coordinator_us
    }

    pub async fn stop(&mut self, why: &str) {
        let orders = self.members.iter().map(|_| (OrderKind::Stop { why: why.to_owned() }, Vec::new())).collect();
        self.give(orders, Duration::from_secs(5)).await;
    }

    /// Sends an order to each member, all at once; returns their replies.
    async fn give(&mut self, orders: Vec<(OrderKind, Vec<u8>)>, within: Duration) -> Vec<Result<Reply, String>> {
        let now_us = Clock::default().now_us();
        let mut each = Vec::new();
        for (member, (what, payload)) in self.members.iter_mut().zip(orders) {
            let order = SignedOrder {
                run: self.run.clone(),
                agent: member.name.clone(),
                instance: member.instance.clone(),
                version: self.version.clone(),
                sequence: member.last_order + 1,
                // This is also how long a prepared agent waits for `Go`.
                expires_us: now_us + member.offset_us + (within + Duration::from_secs(60)).as_micros() as i64,
                what,
                payload_sha256: String::new(),
            };
            let (client, key) = (&self.client, self.token.signing_key());
            each.push(async move {
                // Another coordinator may have used higher sequence numbers since: send once more, with the
                // next one.
                let mut order = order;
                for again in [true, false] {
                    let to = subjects::order(&order.agent);
                    let reply = ask(client, to, &order.clone().seal(&payload, &key), within).await;
                    match reply {
                        Ok(Reply::Refused(Refusal::Replayed { last, .. })) if again => {
                            order.sequence = last.saturating_add(1)
                        }
                        reply => return (order.sequence, reply),
                    }
                }
                (order.sequence, Err("two coordinators give it orders at once".into()))
            });
        }
        let replies = join_all(each).await;
        let given = self.members.iter_mut().zip(replies).map(|(member, (sequence, reply))| {
            member.last_order = sequence;
            reply
        });
        given.collect()
    }
}

/// Sends a message to an agent's subject; returns its reply, or why there is none.
pub(crate) async fn ask(client: &Client, to: String, message: &[u8], within: Duration) -> Result<Reply, String> {
    let request = async_nats::Request::new().payload(Bytes::copy_from_slice(message)).timeout(Some(within));
    match client.send_request(to, request).await {
        Ok(answer) => serde_json::from_slice(&answer.payload)
            .map_err(|_| "it sent an unknown reply: is it another version?".into()),
        Err(e) if e.kind() == RequestErrorKind::NoResponders => Err("it is not there any more".into()),
        Err(e) if e.kind() == RequestErrorKind::TimedOut => Err(format!("it has not answered within {within:?}")),
        Err(e) => Err(chain(&e)),
    }
}
