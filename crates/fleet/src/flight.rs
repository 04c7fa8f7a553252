//! A run under way on several agents: its records as one stream, who has ended, who is lost.
//!
//! ```text
//! let fleet = Fleet::connect(url, token)?;
//! let chosen = choose(&fleet.agents()?, "all")?;
//! let mut flight = fleet.start(run, assignments, &Departure::default())?;   // or fleet.resume(run, names, &have)
//! while let Some(news) = flight.next(Duration::from_secs(1))? {              // None: nothing within that time
//!     match news {
//!         News::Arrived(arrived) => { commit(&arrived); flight.commit(&arrived.id); }   // once for each record
//!         News::Ended(end) => { commit(&end); flight.commit(&end.id); }               // once for each agent and epoch
//!         News::Lost { agent, since } => …     // silent; records of it may still come, then News::Back
//!         News::Back { agent } => …
//!         News::Status(status) => …            // for people to read
//!     }
//!     if flight.is_over() { break }
//! }
//! flight.stop("…")          // asks all agents for an orderly end; records go on to arrive
//! fleet.waiting()           // runs of which records came after their flight was over: resume them, and amend
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::message::Acker;
use async_nats::jetstream::{self, AckKind};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;

use crate::coordinator::{Deliveries, Departure, Fleet, FleetError};
use crate::crew::Crew;
use crate::intake::{Inbound, QUEUE, consumer, fetch, hear, settled};
use crate::journal::{END, RECORD};
use crate::link::{Driver, Link, chain};
use crate::messages::{Beat, Clock, LastWord};
use crate::parts::{Puzzle, Seen, Whole};
use crate::subjects::{ALIVE, PartOf, RECORDS};

/// One record of one agent: the same however often it is delivered. The key for `INSERT OR IGNORE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordId {
    pub run: String,
    pub agent: String,
    /// The life of the agent's process in which it was made.
    pub epoch: u64,
    /// From 0 on, without gaps, within run, agent and epoch. `End` has the number after the last record.
    pub seq: u64,
}

/// What a flight has to tell.
#[derive(Debug)]
pub enum News {
    /// A record, for the first time. Records of one agent come in order of their numbers unless a part of one had to be sent
    /// again; those of several agents in any order.
    Arrived(Arrived),
    /// An agent's last word of an epoch: how many records it made, and whether it did all it should. It may come before some
    /// of those records do.
    Ended(End),
    /// Nothing was heard of an agent for `Departure::patience`. `since` is how long ago it was heard of last.
    Lost { agent: String, since: Duration },
    /// An agent that was lost is heard of again.
    Back { agent: String },
    /// The broker is away, back; an agent's disk is full; a message was refused: for people to read.
    Status(Status),
}

/// A record that is to be committed, and `Flight::commit`ted then. Whoever drops it has it again after a while, or when the run
/// is resumed.
#[derive(Debug)]
pub struct Arrived {
    pub id: RecordId,
    /// What the engine gave to `Sink::record`.
    pub bytes: Vec<u8>,
}

/// How an epoch of an agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub id: RecordId,
    /// How many records the agent made in this epoch: numbers 0 to `records` - 1.
    pub records: u64,
    /// None: the job was done. Otherwise why it was not: the engine's error, or that the agent was killed and started again.
    pub error: Option<String>,
}

/// Something that people want to know, with whom it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// No connection to the broker: nothing can be said of agents meanwhile, and none is called lost.
    BrokerAway,
    BrokerBack,
    /// What an agent says of itself: "the journal cannot be written: No space left on device".
    Trouble {
        agent: String,
        what: String,
    },
    /// Messages that were no records of this run, or not whole: how many so far, and what was wrong with the last.
    Refused {
        count: u64,
        last: String,
    },
}

/// A run under way. Dropping it leaves the agents at work and their records in the broker: `Fleet::resume` takes them up.
pub struct Flight {
    driver: Arc<Driver>,
    link: Link,
    run: String,
    patience: Duration,
    deliveries: Deliveries,
    messages: Receiver<Inbound>,
    agents: BTreeMap<String, Watched>,
    puzzle: Puzzle<Acker>,
    /// What each record that was handed over and not committed is acknowledged by.
    receipts: HashMap<RecordId, Vec<Acker>>,
    pending: VecDeque<News>,
    refused: u64,
    acknowledged: u64,
    /// Since when there has been a connection; None: there is none.
    up_since: Option<Instant>,
    pub(crate) crew: Option<Crew>,
    pub(crate) started_us: i64,
    /// Ends the tasks of the connection's thread.
    _alive: watch::Sender<()>,
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight").field("run", &self.run).field("agents", &self.agents).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Watched {
    /// The life of it that took the order; None where that is not known.
    epoch: Option<u64>,
    heard: Instant,
    lost: bool,
    trouble: Option<String>,
    epochs: BTreeMap<u64, Epoch>,
}

/// What is known of one life of an agent.
#[derive(Debug, Default)]
struct Epoch {
    seen: Seen,
    committed: Seen,
    /// How many records there are, once its last word has come.
    records: Option<u64>,
}

impl Epoch {
    /// All records and the last word are committed.
    fn is_whole(&self) -> bool {
        self.records.is_some_and(|records| self.committed.has_all_below(records.saturating_add(1)))
    }
}

impl Flight {
    pub(crate) async fn open(
        fleet: &Fleet,
        run: &str,
        agents: Vec<(String, Option<u64>)>,
        how: &Departure,
        have: &[RecordId],
    ) -> Result<Flight, FleetError> {
        let failed = |e: &dyn std::error::Error| FleetError::Broker(chain(e));
        let (alive, ends) = watch::channel(());
        let (send, messages) = channel(QUEUE);
        let beats = fleet.link.client.subscribe(ALIVE).await.map_err(|e| failed(&e))?;
        fleet.driver.spawn(hear(beats, run.to_owned(), send.clone(), ends.clone()));
        // What a coordinator that is gone had been given is given to us at once: the stream has all that was not acknowledged.
        let _ = fleet.link.jetstream.delete_consumer_from_stream(run, RECORDS).await;
        let consumer = consumer(&fleet.link.jetstream, run).await.map_err(FleetError::Broker)?;
        fleet.driver.spawn(fetch(fleet.link.clone(), consumer, run.to_owned(), send, ends));
        let now = Instant::now();
        let watched = |epoch| Watched { epoch, heard: now, lost: false, trouble: None, epochs: BTreeMap::new() };
        let mut flight = Flight {
            driver: Arc::clone(&fleet.driver),
            link: fleet.link.clone(),
            run: run.to_owned(),
            patience: how.patience,
            deliveries: how.deliveries,
            messages,
            agents: agents.into_iter().map(|(name, epoch)| (name, watched(epoch))).collect(),
            puzzle: Puzzle::default(),
            receipts: HashMap::new(),
            pending: VecDeque::new(),
            refused: 0,
            acknowledged: 0,
            up_since: Some(now),
            crew: None,
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

    /// The common instant, on this machine's clock: microseconds since 1970. 0 for a flight that was resumed.
    #[must_use]
    pub fn started_us(&self) -> i64 {
        self.started_us
    }

    /// The common instant by this machine's monotonic clock. Of a flight that was resumed: long ago.
    #[must_use]
    pub fn started(&self) -> Instant {
        Clock::default().instant(self.started_us)
    }

    /// What comes next; None when nothing does within `timeout`.
    ///
    /// # Errors
    /// When the thread of the connection is gone, which only its end does.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<News>, FleetError> {
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
                Ok(Some(Inbound::Message(message))) => self.message(*message),
                Ok(Some(Inbound::Beat(agent, beat))) => self.beat(&agent, beat),
                Ok(None) => return Err(FleetError::Broker("the connection has ended".into())),
                Err(_) if Instant::now() >= deadline => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// The caller has it for good: the broker may forget it. What is committed twice does no harm.
    pub fn commit(&mut self, id: &RecordId) {
        if let Some(agent) = self.agents.get_mut(&id.agent) {
            agent.epochs.entry(id.epoch).or_default().committed.insert(id.seq);
        }
        for receipt in self.receipts.remove(id).into_iter().flatten() {
            self.acknowledge(receipt);
        }
    }

    /// Has every agent said its last word for the life that took the order, and is all that it made committed?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.agents.values().all(|agent| match agent.epoch {
            Some(epoch) => agent.epochs.get(&epoch).is_some_and(Epoch::is_whole),
            None => agent.epochs.values().any(Epoch::is_whole),
        })
    }

    /// Asks all agents for an orderly end. Their records go on to come.
    pub fn stop(&mut self, why: &str) {
        if let Some(crew) = &mut self.crew {
            self.driver.wait(crew.stop(why));
        }
    }

    /// Leaves the run. What comes from now on waits in the broker (`Fleet::waiting`). What was committed is acknowledged first.
    pub fn close(self) {
        let Flight { driver, link, run, receipts, _alive: alive, .. } = self;
        // Nothing more is asked for.
        drop(alive);
        let leave = async {
            let _ = link.client.flush().await;
            settled(&link, &run, receipts.len()).await;
            // The records stay; only our place among them goes.
            let _ = link.jetstream.delete_consumer_from_stream(&run, RECORDS).await;
        };
        let _ = driver.wait(async { tokio::time::timeout(Duration::from_secs(5), leave).await });
    }

    /// Who is lost, and whether there is a broker.
    fn look_around(&mut self) {
        let now = Instant::now();
        match (self.link.is_up(), self.up_since) {
            (false, Some(_)) => {
                self.up_since = None;
                self.pending.push_back(News::Status(Status::BrokerAway));
            }
            (true, None) => {
                self.up_since = Some(now);
                self.pending.push_back(News::Status(Status::BrokerBack));
            }
            _ => {}
        }
        // Without a broker nobody can be heard; after it came back, agents need their time to come back as well.
        let Some(up_since) = self.up_since.filter(|since| now.duration_since(*since) >= self.patience) else { return };
        for (name, agent) in &mut self.agents {
            let over = match agent.epoch {
                Some(epoch) => agent.epochs.get(&epoch).is_some_and(|e| e.records.is_some()),
                None => agent.epochs.values().any(|e| e.records.is_some()),
            };
            let since = now.duration_since(agent.heard);
            if !agent.lost && !over && now.duration_since(agent.heard.max(up_since)) >= self.patience {
                agent.lost = true;
                self.pending.push_back(News::Lost { agent: name.clone(), since });
            }
        }
    }

    fn beat(&mut self, name: &str, beat: Beat) {
        let Some(agent) = self.agents.get_mut(name) else { return };
        if agent.epoch.is_none() {
            agent.epoch = Some(beat.epoch);
        }
        self.trouble(name, beat.trouble);
        self.heard(name);
    }

    /// Tells what an agent says of itself, once.
    fn trouble(&mut self, name: &str, said: Option<String>) {
        let Some(agent) = self.agents.get_mut(name).filter(|agent| agent.trouble != said) else { return };
        agent.trouble.clone_from(&said);
        if let Some(what) = said {
            self.pending.push_back(News::Status(Status::Trouble { agent: name.to_owned(), what }));
        }
    }

    fn heard(&mut self, name: &str) {
        let Some(agent) = self.agents.get_mut(name) else { return };
        agent.heard = Instant::now();
        if std::mem::take(&mut agent.lost) {
            self.pending.push_back(News::Back { agent: name.to_owned() });
        }
    }

    fn message(&mut self, message: jetstream::Message) {
        if self.deliveries == Deliveries::Again && message.info().is_ok_and(|info| info.delivered == 1) {
            let _ = self.driver.wait(message.ack_with(AckKind::Nak(None)));
            return;
        }
        let (message, receipt) = message.split();
        let known =
            PartOf::read(&message.subject).filter(|of| of.run == self.run && self.agents.contains_key(&of.agent));
        let Some(of) = known else {
            return self.refuse(receipt, format!("{} is no record of run {}", message.subject, self.run));
        };
        self.heard(&of.agent);
        let id = RecordId { run: of.run.clone(), agent: of.agent.clone(), epoch: of.epoch, seq: of.seq };
        let Some(agent) = self.agents.get_mut(&of.agent) else { return };
        let epoch = agent.epochs.entry(of.epoch).or_default();
        if epoch.committed.contains(of.seq) {
            // Delivered again after it was committed: the acknowledgement was lost, or an agent published it twice.
            return self.acknowledge(receipt);
        }
        if epoch.seen.contains(of.seq) {
            self.receipts.entry(id).or_default().push(receipt);
            return;
        }
        match self.puzzle.add(&of, message.payload, receipt) {
            Ok(None) => {}
            Ok(Some(whole)) => self.whole(id, whole),
            Err(receipt) => self.refuse(receipt, format!("{} is a part of no record", message.subject)),
        }
    }

    fn whole(&mut self, id: RecordId, whole: Whole<Acker>) {
        let Whole { kind, content: bytes, with: receipts } = whole;
        let news = match kind {
            RECORD => Ok(News::Arrived(Arrived { id: id.clone(), bytes })),
            END => match serde_json::from_slice::<LastWord>(&bytes) {
                Ok(word) if word.records == id.seq => {
                    if word.trouble.is_some() {
                        self.trouble(&id.agent, word.trouble);
                    }
                    Ok(News::Ended(End { id: id.clone(), records: word.records, error: word.error }))
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
                    if let News::Ended(end) = &news {
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

    /// Takes what is no record out of the stream, and counts it.
    fn refuse(&mut self, receipt: Acker, last: String) {
        self.refused += 1;
        self.pending.push_back(News::Status(Status::Refused { count: self.refused, last }));
        let _ = self.driver.wait(receipt.ack_with(AckKind::Term));
    }

    fn acknowledge(&mut self, receipt: Acker) {
        self.acknowledged += 1;
        if self.deliveries == Deliveries::Unacknowledged && self.acknowledged.is_multiple_of(2) {
            return;
        }
        // What does not get through is delivered again, and recognised.
        let _ = self.driver.wait(receipt.ack());
    }
}
