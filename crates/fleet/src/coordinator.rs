//! Whoever starts runs: sees who is there, measures their clocks, and gives orders.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;

use crate::crew::{Crew, offset};
use crate::flight::{Flight, RecordId};
use crate::link::{Driver, Link, LinkError, Login, chain, patiently};
use crate::roster::{Agent, Assignment};
use crate::streams;
use crate::subjects::{COORDINATOR, RECORDS, WHO, is_agent_name, is_name};
use crate::tokens::Token;

/// Everybody has answered when nobody has for so long.
const QUIET: Duration = Duration::from_millis(500);

/// A fleet, for the holder of its token.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub(crate) driver: Arc<Driver>,
    pub(crate) link: Link,
    pub(crate) token: Token,
    pub(crate) version: String,
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
    pub deliveries: Deliveries,
}

/// How records are taken from the broker. Anything but the first is for tests: what a network and a broker may do by themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Deliveries {
    #[default]
    Once,
    /// Whatever is delivered for the first time is sent back, and so delivered once more.
    Again,
    /// Every second acknowledgement never reaches the broker.
    Unacknowledged,
}

impl Default for Departure {
    fn default() -> Self {
        Departure {
            ready_within: Duration::from_secs(60),
            lead: Duration::from_secs(1),
            patience: Duration::from_secs(8),
            deliveries: Deliveries::Once,
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
        let link = driver.wait(Link::open_patiently(&login))?;
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
                let flight = Flight::open(self, run, epochs, how, &[]).await?;
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
            let mut flight = Flight::open(self, run, epochs.collect(), how, have).await?;
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
            let mut subjects = patiently(|| stream.info_with_subjects("ld.record.>")).await.map_err(|e| failed(&e))?;
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
