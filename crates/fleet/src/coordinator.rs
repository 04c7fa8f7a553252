//! Whoever starts runs: sees who is there, measures their clocks, and gives orders.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::{Client, RequestErrorKind};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;

use crate::files::store;
use crate::flight::{Flight, RecordId};
use crate::link::{Driver, Link, LinkError, Login, chain};
use crate::messages::{Clock, Reply};
use crate::order::{Order, Refusal, Stored, What};
use crate::roster::{Agent, Assignment};
use crate::streams;
use crate::subjects::{COORDINATOR, RECORDS, WHO, is_agent_name, is_name, order, ping};
use crate::tokens::Token;

/// Round trips of which the shortest tells the offset of a clock.
const ROUND_TRIPS: usize = 20;
/// Everybody has answered when nobody has for so long.
const QUIET: Duration = Duration::from_millis(500);
/// A payload above this travels as a file.
const INLINE: usize = 256 << 10;

/// A fleet, for the holder of its token.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub(crate) driver: Arc<Driver>,
    pub(crate) link: Link,
    token: Token,
    version: String,
}

/// How a run is started.
#[derive(Debug, Clone)]
pub struct Departure {
    /// Agents may take so long to get their files and to prepare.
    pub ready_within: Duration,
    /// The common instant lies so far ahead of the moment at which all are ready. It must be longer than an order travels.
    pub lead: Duration,
    /// An agent of which nothing was heard for so long, while there is a broker, is called lost.
    pub patience: Duration,
}

impl Default for Departure {
    fn default() -> Self {
        Departure {
            ready_within: Duration::from_secs(60),
            lead: Duration::from_secs(1),
            patience: Duration::from_secs(8),
        }
    }
}

/// Why a run does not start, or cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0:?} is no id of a run: letters, digits, - and _, at most 64")]
    Run(String),
    #[error("two agents are called {0}: give one of them another --name")]
    SameName(String),
    #[error("nobody is to take part")]
    Nobody,
    #[error("{}", refused(.0))]
    Refused(Vec<(String, String)>),
    #[error("the broker fails: {0}")]
    Broker(String),
}

fn refused(who: &[(String, String)]) -> String {
    let each: Vec<String> = who.iter().map(|(agent, why)| format!("agent {agent}: {why}")).collect();
    format!("the run does not start: {}", each.join("; "))
}

/// A run of which records wait that nobody has committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub run: String,
    /// Parts of records.
    pub messages: u64,
}

impl Fleet {
    /// Connects with the token that starts runs. `version` is lastdrop's own.
    ///
    /// # Errors
    /// When there is no broker, or it is of another fleet than the token.
    pub fn connect(url: &str, token: &Token, version: &str) -> Result<Fleet, FleetError> {
        let driver = Driver::start().map_err(LinkError::from)?;
        let login = Login {
            url: url.to_owned(),
            user: COORDINATOR.into(),
            password: token.password(),
            certificate: *token.certificate(),
            inbox: "_INBOX".into(),
        };
        let link = driver.wait(Link::open(&login))?;
        driver.wait(streams::make(&link.jetstream)).map_err(FleetError::Broker)?;
        Ok(Fleet { driver, link, token: token.clone(), version: version.to_owned() })
    }

    /// Who is there, by name, with their clocks measured now.
    ///
    /// # Errors
    /// When the broker fails, or two agents have one name.
    pub fn agents(&self) -> Result<Vec<Agent>, FleetError> {
        self.driver.wait(async {
            let mut agents = self.hellos().await?;
            agents.sort_by(|a, b| a.name.cmp(&b.name));
            if let Some(pair) = agents.windows(2).find(|pair| pair[0].name == pair[1].name) {
                return Err(FleetError::SameName(pair[0].name.clone()));
            }
            let clocks = join_all(agents.iter().map(|a| offset(&self.link.client, &a.name))).await;
            // Who does not answer a ping any more has gone meanwhile.
            let known = agents.into_iter().zip(clocks).filter_map(|(agent, clock)| {
                let (offset_us, error_us) = clock?;
                Some(Agent { offset_us, error_us, ..agent })
            });
            Ok(known.collect())
        })
    }

    async fn hellos(&self) -> Result<Vec<Agent>, FleetError> {
        let client = &self.link.client;
        let failed = |e: &dyn std::error::Error| FleetError::Broker(chain(e));
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(inbox.clone()).await.map_err(|e| failed(&e))?;
        let mut agents: Vec<Agent> = Vec::new();
        // Twice: a machine that is busy may be late for the first time.
        for _ in 0..2 {
            client.publish_with_reply(WHO, inbox.clone(), Bytes::new()).await.map_err(|e| failed(&e))?;
            client.flush().await.map_err(|e| failed(&e))?;
            while let Ok(Some(answer)) = tokio::time::timeout(QUIET, answers.next()).await {
                // Nobody listens: the broker says so by an empty message.
                match serde_json::from_slice::<Agent>(&answer.payload) {
                    Ok(agent) if is_agent_name(&agent.name) => {
                        agents.retain(|a| (&a.name, &a.instance) != (&agent.name, &agent.instance));
                        agents.push(agent);
                    }
                    _ => {}
                }
            }
        }
        Ok(agents)
    }

    /// Starts a run: all get ready, then all are told the same instant. If one cannot, none does.
    ///
    /// # Errors
    /// Who refuses and why; the others have forgotten the run then.
    pub fn start(&self, run: &str, assignments: Vec<Assignment>, how: &Departure) -> Result<Flight, FleetError> {
        if !is_name(run) {
            return Err(FleetError::Run(run.to_owned()));
        }
        if assignments.is_empty() {
            return Err(FleetError::Nobody);
        }
        self.driver.wait(async {
            let mut crew = Crew::new(self, run);
            let ready = crew.prepare(&assignments, how).await;
            let epochs = match ready {
                Ok(epochs) => epochs,
                Err(e) => {
                    crew.stop("another agent could not take part").await;
                    return Err(e);
                }
            };
            let departed = async {
                // Listening before anybody speaks.
                let flight = Flight::open(self, run, epochs, how.patience, &[]).await?;
                crew.measure().await;
                Ok::<_, FleetError>(flight)
            };
            let mut flight = match departed.await {
                Ok(flight) => flight,
                Err(e) => {
                    crew.stop("the coordinator failed").await;
                    return Err(e);
                }
            };
            flight.started_us = crew.go(how.lead).await;
            flight.crew = Some(crew);
            Ok(flight)
        })
    }

    /// Follows a run that was started by a coordinator that is gone, or of which records came late. `agents` are those that take
    /// part; `have` is what the caller has committed already.
    ///
    /// # Errors
    /// When the broker fails.
    pub fn resume(
        &self,
        run: &str,
        agents: &[String],
        have: &[RecordId],
        how: &Departure,
    ) -> Result<Flight, FleetError> {
        if !is_name(run) {
            return Err(FleetError::Run(run.to_owned()));
        }
        self.driver.wait(async {
            let there = self.hellos().await?;
            let epochs = agents.iter().map(|name| {
                let at_it = there.iter().find(|a| a.name == *name && a.busy.as_deref() == Some(run));
                (name.clone(), at_it.map(|a| a.epoch))
            });
            let mut flight = Flight::open(self, run, epochs.collect(), how.patience, have).await?;
            let mut crew = Crew::new(self, run);
            for agent in there.into_iter().filter(|a| agents.contains(&a.name)) {
                crew.add(&agent);
            }
            // Orders expire by the agents' clocks.
            crew.measure().await;
            flight.crew = Some(crew);
            Ok(flight)
        })
    }

    /// Runs of which records wait in the broker: they came after whoever started the run had left. `resume` gets them.
    ///
    /// # Errors
    /// When the broker fails.
    pub fn waiting(&self) -> Result<Vec<Waiting>, FleetError> {
        self.driver.wait(async {
            let failed = |e: &dyn std::error::Error| FleetError::Broker(chain(e));
            let stream = self.link.jetstream.get_stream_no_info(RECORDS).await.map_err(|e| failed(&e))?;
            let mut subjects = stream.info_with_subjects("ld.record.>").await.map_err(|e| failed(&e))?;
            let mut runs: HashMap<String, u64> = HashMap::new();
            while let Some(subject) = subjects.next().await {
                let (subject, count) = subject.map_err(|e| failed(&e))?;
                if let Some(run) = subject.split('.').nth(2) {
                    *runs.entry(run.to_owned()).or_default() += count as u64;
                }
            }
            let mut waiting: Vec<Waiting> = runs.into_iter().map(|(run, messages)| Waiting { run, messages }).collect();
            waiting.sort_by(|a, b| a.run.cmp(&b.run));
            Ok(waiting)
        })
    }
}

/// An agent's clock minus ours and half of the round trip, both in microseconds, by the shortest round trip.
async fn offset(client: &Client, agent: &str) -> Option<(i64, u64)> {
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

/// The agents of a run and what orders they get.
#[derive(Debug)]
pub(crate) struct Crew {
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

impl Crew {
    fn new(fleet: &Fleet, run: &str) -> Crew {
        Crew {
            client: fleet.link.client.clone(),
            jetstream: fleet.link.jetstream.clone(),
            token: fleet.token.clone(),
            version: fleet.version.clone(),
            run: run.to_owned(),
            members: Vec::new(),
        }
    }

    fn add(&mut self, agent: &Agent) {
        self.members.push(Member {
            name: agent.name.clone(),
            instance: agent.instance.clone(),
            offset_us: agent.offset_us,
            error_us: agent.error_us,
            last_order: agent.last_order,
        });
    }

    /// Sends the files, has all get ready: the epoch of each.
    async fn prepare(
        &mut self,
        assignments: &[Assignment],
        how: &Departure,
    ) -> Result<Vec<(String, Option<u64>)>, FleetError> {
        let mut orders = Vec::new();
        for assignment in assignments {
            self.add(&assignment.agent);
            let mut files: Vec<Stored> = Vec::new();
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
            orders.push((What::Prepare { payload, files }, bytes));
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
        // The others have something to forget.
        self.members.retain(|m| epochs.iter().any(|(name, _)| *name == m.name));
        Err(FleetError::Refused(refusals))
    }

    /// Measures the clocks again: preparing may have taken a while.
    async fn measure(&mut self) {
        let clocks = join_all(self.members.iter().map(|m| offset(&self.client, &m.name))).await;
        for (member, clock) in self.members.iter_mut().zip(clocks) {
            if let Some((offset_us, error_us)) = clock {
                (member.offset_us, member.error_us) = (offset_us, error_us);
            }
        }
    }

    /// Tells all when to begin. That instant, in microseconds since 1970 on our clock. Whoever does not answer is not heard of
    /// either, and so lost in time.
    async fn go(&mut self, lead: Duration) -> i64 {
        let coordinator_us = Clock::default().now_us() + lead.as_micros() as i64;
        let go = |m: &Member| What::Go { at_us: coordinator_us + m.offset_us, coordinator_us, error_us: m.error_us };
        let orders = self.members.iter().map(|m| (go(m), Vec::new())).collect();
        self.give(orders, Duration::from_secs(5)).await;
        coordinator_us
    }

    pub async fn stop(&mut self, why: &str) {
        let orders = self.members.iter().map(|_| (What::Stop { why: why.to_owned() }, Vec::new())).collect();
        self.give(orders, Duration::from_secs(5)).await;
    }

    /// An order for each member, all at once; what each says.
    async fn give(&mut self, orders: Vec<(What, Vec<u8>)>, within: Duration) -> Vec<Result<Reply, String>> {
        let now_us = Clock::default().now_us();
        let mut each = Vec::new();
        for (member, (what, payload)) in self.members.iter_mut().zip(orders) {
            let order = Order {
                run: self.run.clone(),
                agent: member.name.clone(),
                instance: member.instance.clone(),
                version: self.version.clone(),
                sequence: member.last_order + 1,
                // Also how long an agent that is ready waits to be told to begin.
                expires_us: now_us + member.offset_us + (within + Duration::from_secs(60)).as_micros() as i64,
                what,
                payload_sha256: String::new(),
            };
            let (client, key) = (&self.client, self.token.signing_key());
            each.push(async move {
                // Another coordinator may have given orders since: once more, after those.
                let mut order = order;
                for again in [true, false] {
                    let reply = ask(client, &order, &order.clone().seal(&payload, &key), within).await;
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

pub(crate) async fn ask(client: &Client, to: &Order, message: &[u8], within: Duration) -> Result<Reply, String> {
    let request = async_nats::Request::new().payload(Bytes::copy_from_slice(message)).timeout(Some(within));
    match client.send_request(order(&to.agent), request).await {
        Ok(answer) => serde_json::from_slice(&answer.payload)
            .map_err(|_| "it answers what nobody understands: another version?".into()),
        Err(e) if e.kind() == RequestErrorKind::NoResponders => Err("it is not there any more".into()),
        Err(e) if e.kind() == RequestErrorKind::TimedOut => Err(format!("it has not answered within {within:?}")),
        Err(e) => Err(chain(&e)),
    }
}
