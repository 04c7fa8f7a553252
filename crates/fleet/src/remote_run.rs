//! A run on several agents: its records as one stream, and which agents have ended or are lost.
//!
//! ```text
//! let fleet = Fleet::connect(url, token)?;
//! let chosen = choose(&fleet.agents()?, "all")?;
//! let mut run = fleet.start(id, assignments, &StartOptions::default())?;   // or fleet.resume(id, names, &have)
//! while let Some(event) = run.next(Duration::from_secs(1))? {               // None: nothing within that time
//!     match event {
//!         Arrived(arrived) => { commit(&arrived); run.commit(&arrived.id); }   // once for each record
//!         Ended(end) => { commit(&end); run.commit(&end.id); }                 // once for each agent and epoch
//!         Lost { agent, since } => …     // silent; its records may still come, after Back
//!         Back { agent } => …
//!         Status(notice) => …            // for people to read
//!     }
//!     if run.is_over() { break }
//! }
//! run.stop("…")             // asks all agents to stop in an orderly way; records continue to arrive
//! fleet.waiting()           // runs whose records came after the coordinator had left: resume them, and add the records
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::message::Acker;
use async_nats::jetstream::{self, AckKind};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;

use crate::coordinator::{DeliveryMode, Fleet, FleetError, StartOptions};
use crate::intake::{InboundMessage, QUEUE, consumer, fetch, hear, settled};
use crate::journal::{END, RECORD};
use crate::link::{Driver, Link, chain};
use crate::messages::{Clock, FinalReport, Heartbeat};
use crate::participants::Participants;
use crate::reassembly::{CompleteMessage, Reassembly, SequenceSet};
use crate::subjects::{ALIVE, PartId, RECORDS};

/// Identifies one record of one agent, however often it is delivered. Use it as the key for `INSERT OR
/// IGNORE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordId {
    pub run: String,
    pub agent: String,
    /// The epoch of the agent that made it.
    pub epoch: u64,
    /// Counts from 0 without gaps, per run, agent and epoch. `EpochEnd` has the number after the last record.
    pub seq: u64,
}

/// An event of a run.
#[derive(Debug)]
pub enum RemoteRunEvent {
    /// A record, the first time it arrives. Records of one agent come in order unless a part had to be sent
    /// again; those of different agents come in any order.
    Arrived(ArrivedRecord),
    /// The last message of an agent's epoch: its number of records, and whether it finished its job. It may
    /// arrive before some of those records.
    Ended(EpochEnd),
    /// Nothing was heard of an agent for `StartOptions::patience`. `since` is the time since the last message.
    Lost { agent: String, since: Duration },
    /// A lost agent is heard again.
    Back { agent: String },
    /// A message for people: the broker is away or back, an agent's disk is full, a message was refused.
    Status(FleetNotice),
}

/// A record to commit, and then to confirm with `RemoteRun::commit`. Without that it is delivered again after a
/// while, or when the run is resumed.
#[derive(Debug)]
pub struct ArrivedRecord {
    pub id: RecordId,
    /// The bytes passed to `Sink::record`.
    pub bytes: Vec<u8>,
}

/// The end of an agent's epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochEnd {
    pub id: RecordId,
    /// Number of records the agent made in this epoch, numbered 0 to `records` - 1.
    pub records: u64,
    /// `None` if the job was done. Otherwise why not: the engine's error, or that the agent was killed and
    /// restarted.
    pub error: Option<String>,
}

/// A message for people, about the broker or an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetNotice {
    /// There is no connection to the broker. Meanwhile the state of agents is unknown, and none is called
    /// lost.
    BrokerAway,
    BrokerBack,
    /// A problem that an agent reports: "the journal cannot be written: No space left on device".
    Trouble {
        agent: String,
        what: String,
    },
    /// Messages that were not valid records of this run: their number so far, and what was wrong with the
    /// last.
    Refused {
        count: u64,
        last: String,
    },
}

/// A run in progress. Dropping it leaves the agents at work and their records in the broker; `Fleet::resume`
/// continues it.
pub struct RemoteRun {
    driver: Arc<Driver>,
    link: Link,
    run: String,
    patience: Duration,
    deliveries: DeliveryMode,
    messages: Receiver<InboundMessage>,
    agents: BTreeMap<String, WatchedAgent>,
    reassembly: Reassembly<Acker>,
    /// The acknowledgements of each record that was handed over and not committed yet.
    receipts: HashMap<RecordId, Vec<Acker>>,
    pending: VecDeque<RemoteRunEvent>,
    refused: u64,
    acknowledged: u64,
    /// Time of the last connect; `None` while disconnected.
    up_since: Option<Instant>,
    /// Whether the connection is up. It remembers a change between two looks at it.
    up: watch::Receiver<bool>,
    pub(crate) participants: Option<Participants>,
    pub(crate) started_us: i64,
    /// Dropping it ends the tasks on the connection's thread.
    _alive: watch::Sender<()>,
}

impl std::fmt::Debug for RemoteRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteRun").field("run", &self.run).field("agents", &self.agents).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct WatchedAgent {
    /// The epoch that took the order, if known.
    epoch: Option<u64>,
    heard: Instant,
    lost: bool,
    trouble: Option<String>,
    epochs: BTreeMap<u64, Epoch>,
}

/// What is known of one epoch of an agent.
#[derive(Debug, Default)]
struct Epoch {
    seen: SequenceSet,
    committed: SequenceSet,
    /// The number of records, once the final report has come.
    records: Option<u64>,
}

impl Epoch {
    /// All records and the final report are committed.
    fn is_whole(&self) -> bool {
        self.records.is_some_and(|records| self.committed.has_all_below(records.saturating_add(1)))
    }
}

impl RemoteRun {
    pub(crate) async fn open(
        fleet: &Fleet,
        run: &str,
        agents: Vec<(String, Option<u64>)>,
        how: &StartOptions,
        have: &[RecordId],
    ) -> Result<RemoteRun, FleetError> {
        let failed = |e: &dyn std::error::Error| FleetError::Broker(chain(e));
        let (alive, ends) = watch::channel(());
        let (send, messages) = channel(QUEUE);
        let beats = fleet.link.client.subscribe(ALIVE).await.map_err(|e| failed(&e))?;
        fleet.driver.spawn(hear(beats, run.to_owned(), send.clone(), ends.clone()));
        // Without the old consumer, all records that a previous coordinator did not acknowledge are delivered
        // again at once.
        let _ = fleet.link.jetstream.delete_consumer_from_stream(run, RECORDS).await;
        let consumer = consumer(&fleet.link.jetstream, run).await.map_err(FleetError::Broker)?;
        fleet.driver.spawn(fetch(fleet.link.clone(), consumer, run.to_owned(), send, ends));
        let now = Instant::now();
        let mut up = fleet.link.up.clone();
        up.mark_unchanged();
        let watched = |epoch| WatchedAgent { epoch, heard: now, lost: false, trouble: None, epochs: BTreeMap::new() };
        let mut flight = RemoteRun {
            driver: Arc::clone(&fleet.driver),
            link: fleet.link.clone(),
            run: run.to_owned(),
            patience: how.patience,
            deliveries: how.deliveries,
            messages,
            agents: agents.into_iter().map(|(name, epoch)| (name, watched(epoch))).collect(),
            reassembly: Reassembly::default(),
            receipts: HashMap::new(),
            pending: VecDeque::new(),
            refused: 0,
            acknowledged: 0,
            up_since: Some(now),
            up,
            participants: None,
            started_us: 0,
            _alive: alive,
        };
        for id in have.iter().filter(|id| id.run == run) {
            if let Some(agent) = flight.agents.get_mut(&id.agent) {
                let epoch = agent.epochs.entry(id.epoch).or_default();
                epoch.seen.insert(id.seq);
                epoch.committed.insert(id.seq);
            }
        }
        Ok(flight)
    }

    /// The common start by this machine's clock, in microseconds since 1970; 0 if the run was resumed.
    #[must_use]
    pub fn started_us(&self) -> i64 {
        self.started_us
    }

    /// The common start by this machine's monotonic clock; long ago if the run was resumed.
    #[must_use]
    pub fn started(&self) -> Instant {
        Clock::default().instant(self.started_us)
    }

    /// Returns the next event; `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// If the connection's thread is gone, which happens only when it ends.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<RemoteRunEvent>, FleetError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(news) = self.pending.pop_front() {
                return Ok(Some(news));
            }
            self.look_around();
            if !self.pending.is_empty() {
                continue;
            }
            let rest = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(200));
            let (driver, messages) = (Arc::clone(&self.driver), &mut self.messages);
            match driver.wait(async { tokio::time::timeout(rest, messages.recv()).await }) {
                Ok(Some(InboundMessage::Message(message))) => self.message(*message),
                Ok(Some(InboundMessage::Heartbeat(agent, beat))) => self.beat(&agent, beat),
                Ok(None) => return Err(FleetError::Broker("the connection has ended".into())),
                Err(_) if Instant::now() >= deadline => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// Confirms that the caller has stored the record, so that the broker may forget it. Confirming twice
    /// does no harm.
    pub fn commit(&mut self, id: &RecordId) {
        if let Some(agent) = self.agents.get_mut(&id.agent) {
            agent.epochs.entry(id.epoch).or_default().committed.insert(id.seq);
        }
        for receipt in self.receipts.remove(id).into_iter().flatten() {
            self.acknowledge(receipt);
        }
    }

    /// Returns whether every agent has sent its final report for the epoch that took the order, and all its
    /// records are committed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.agents.values().all(|agent| match agent.epoch {
            Some(epoch) => agent.epochs.get(&epoch).is_some_and(Epoch::is_whole),
            None => agent.epochs.values().any(Epoch::is_whole),
        })
    }

    /// Asks all agents to stop in an orderly way. Their records continue to arrive.
    pub fn stop(&mut self, why: &str) {
        if let Some(participants) = &mut self.participants {
            self.driver.wait(participants.stop(why));
        }
    }

    /// Leaves the run after acknowledging what was committed. Later records wait in the broker
    /// (`Fleet::waiting`).
    pub fn close(self) {
        let RemoteRun { driver, link, run, receipts, _alive: alive, .. } = self;
        // Stop fetching.
        drop(alive);
        let leave = async {
            let _ = link.client.flush().await;
            settled(&link, &run, receipts.len()).await;
            // The records stay in the stream; only our consumer is deleted.
            let _ = link.jetstream.delete_consumer_from_stream(&run, RECORDS).await;
        };
        let _ = driver.wait(async { tokio::time::timeout(Duration::from_secs(5), leave).await });
    }

    /// Updates the connection state and finds lost agents.
    fn look_around(&mut self) {
        let now = Instant::now();
        // A connection that is up, and has changed, was away for a moment.
        let changed = self.up.has_changed().unwrap_or(false);
        let up = *self.up.borrow_and_update();
        if self.up_since.is_some() && (changed || !up) {
            self.up_since = None;
            self.pending.push_back(RemoteRunEvent::Status(FleetNotice::BrokerAway));
        }
        if self.up_since.is_none() && up {
            self.up_since = Some(now);
            self.pending.push_back(RemoteRunEvent::Status(FleetNotice::BrokerBack));
        }
        // Agents are silent while the broker is away, and need time to reconnect after it is back.
        let Some(up_since) = self.up_since.filter(|since| now.duration_since(*since) >= self.patience) else { return };
        for (name, agent) in &mut self.agents {
            let over = match agent.epoch {
                Some(epoch) => agent.epochs.get(&epoch).is_some_and(|e| e.records.is_some()),
                None => agent.epochs.values().any(|e| e.records.is_some()),
            };
            let since = now.duration_since(agent.heard);
            if !agent.lost && !over && now.duration_since(agent.heard.max(up_since)) >= self.patience {
                agent.lost = true;
                self.pending.push_back(RemoteRunEvent::Lost { agent: name.clone(), since });
            }
        }
    }

    fn beat(&mut self, name: &str, beat: Heartbeat) {
        let Some(agent) = self.agents.get_mut(name) else { return };
        if agent.epoch.is_none() {
            agent.epoch = Some(beat.epoch);
        }
        self.trouble(name, beat.trouble);
        self.heard(name);
    }

    /// Reports an agent's trouble once.
    fn trouble(&mut self, name: &str, said: Option<String>) {
        let Some(agent) = self.agents.get_mut(name).filter(|agent| agent.trouble != said) else { return };
        agent.trouble.clone_from(&said);
        if let Some(what) = said {
            self.pending.push_back(RemoteRunEvent::Status(FleetNotice::Trouble { agent: name.to_owned(), what }));
        }
    }

    fn heard(&mut self, name: &str) {
        let Some(agent) = self.agents.get_mut(name) else { return };
        agent.heard = Instant::now();
        if std::mem::take(&mut agent.lost) {
            self.pending.push_back(RemoteRunEvent::Back { agent: name.to_owned() });
        }
    }

    fn message(&mut self, message: jetstream::Message) {
        if self.deliveries == DeliveryMode::Again && message.info().is_ok_and(|info| info.delivered == 1) {
            let _ = self.driver.wait(message.ack_with(AckKind::Nak(None)));
            return;
        }
        let (message, receipt) = message.split();
        let known =
            PartId::read(&message.subject).filter(|of| of.run == self.run && self.agents.contains_key(&of.agent));
        let Some(of) = known else {
            return self.refuse(receipt, format!("{} is no record of run {}", message.subject, self.run));
        };
        self.heard(&of.agent);
        let id = RecordId { run: of.run.clone(), agent: of.agent.clone(), epoch: of.epoch, seq: of.seq };
        let Some(agent) = self.agents.get_mut(&of.agent) else { return };
        let epoch = agent.epochs.entry(of.epoch).or_default();
        if epoch.committed.contains(of.seq) {
            // Delivered again after it was committed: the acknowledgement got lost, or the agent published it
            // twice.
            return self.acknowledge(receipt);
        }
        if epoch.seen.contains(of.seq) {
            self.receipts.entry(id).or_default().push(receipt);
            return;
        }
        match self.reassembly.add(&of, message.payload, receipt) {
            Ok(None) => {}
            Ok(Some(whole)) => self.whole(id, whole),
            Err(receipt) => self.refuse(receipt, format!("{} is a part of no record", message.subject)),
        }
    }

    fn whole(&mut self, id: RecordId, whole: CompleteMessage<Acker>) {
        let CompleteMessage { kind, content: bytes, with: receipts } = whole;
        let news = match kind {
            RECORD => Ok(RemoteRunEvent::Arrived(ArrivedRecord { id: id.clone(), bytes })),
            END => match serde_json::from_slice::<FinalReport>(&bytes) {
                Ok(word) if word.records == id.seq => {
                    if word.trouble.is_some() {
                        self.trouble(&id.agent, word.trouble);
                    }
                    Ok(RemoteRunEvent::Ended(EpochEnd { id: id.clone(), records: word.records, error: word.error }))
                }
                _ => Err(format!("the last word of agent {} makes no sense", id.agent)),
            },
            other => Err(format!("agent {} sends a record of kind {other}", id.agent)),
        };
        match news {
            Ok(news) => {
                if let Some(agent) = self.agents.get_mut(&id.agent) {
                    let epoch = agent.epochs.entry(id.epoch).or_default();
                    epoch.seen.insert(id.seq);
                    if let RemoteRunEvent::Ended(end) = &news {
                        epoch.records = Some(end.records);
                    }
                }
                self.receipts.insert(id, receipts);
                self.pending.push_back(news);
            }
            Err(why) => {
                for receipt in receipts {
                    self.refuse(receipt, why.clone());
                }
            }
        }
    }

    /// Removes an invalid message from the stream and counts it.
    fn refuse(&mut self, receipt: Acker, last: String) {
        self.refused += 1;
        self.pending.push_back(RemoteRunEvent::Status(FleetNotice::Refused { count: self.refused, last }));
        let _ = self.driver.wait(receipt.ack_with(AckKind::Term));
    }

    fn acknowledge(&mut self, receipt: Acker) {
        self.acknowledged += 1;
        if self.deliveries == DeliveryMode::Unacknowledged && self.acknowledged.is_multiple_of(2) {
            return;
        }
        // If the acknowledgement gets lost, the record is delivered again and recognised.
        let _ = self.driver.wait(receipt.ack());
    }
}
