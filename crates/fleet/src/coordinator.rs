//! The coordinator: lists agents, measures their clocks, and starts runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;

use crate::link::{Driver, Link, LinkError, Login, chain, patiently};
use crate::participants::{Participants, offset};
use crate::remote_run::{RecordId, RemoteRun};
use crate::roster::{Agent, Assignment};
use crate::streams;
use crate::subjects::{COORDINATOR, RECORDS, WHO, is_agent_name, is_name};
use crate::tokens::Token;

/// If no agent answers for this long, all have answered.
const QUIET: Duration = Duration::from_millis(500);

/// A fleet, as the holder of its token sees it.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub(crate) driver: Arc<Driver>,
    pub(crate) link: Link,
    pub(crate) token: Token,
    pub(crate) version: String,
}

/// Options for starting a run.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// Time limit for agents to get their files and to prepare.
    pub ready_within: Duration,
    /// Time from the moment when all are ready to the common start. It must be longer than the delivery of an
    /// order.
    pub lead: Duration,
    /// An agent that is silent for this long while the broker is up is lost.
    pub patience: Duration,
    pub deliveries: DeliveryMode,
}

/// How records are taken from the broker. All variants but the first simulate faults of network and broker,
/// for tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeliveryMode {
    #[default]
    Once,
    /// Returns each new message to the broker, so that it is delivered again.
    Again,
    /// Loses every second acknowledgement.
    Unacknowledged,
}

impl Default for StartOptions {
    fn default() -> Self {
        StartOptions {
            ready_within: Duration::from_secs(60),
            lead: Duration::from_secs(1),
            patience: Duration::from_secs(8),
            deliveries: DeliveryMode::Once,
        }
    }
}

/// The reason why a run cannot be started or followed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0:?} is no id of a run: letters, digits, - and _, at most 64")]
    Run(String),
    #[error("two agents are called {0}: give one of them another --name")]
    SameName(String),
    #[error("no agent is to take part")]
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

/// A run with records in the broker that nobody has committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncommittedRun {
    pub run: String,
    /// Number of messages; a large record has several.
    pub messages: u64,
}

impl Fleet {
    /// Connects with the fleet's token. `version` is lastdrop's own.
    ///
    /// # Errors
    /// If there is no broker, or it belongs to another fleet than the token.
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

    /// Returns the connected agents by name, with freshly measured clocks.
    ///
    /// # Errors
    /// If the broker fails, or two agents have the same name.
    pub fn agents(&self) -> Result<Vec<Agent>, FleetError> {
        self.driver.wait(async {
            let mut agents = self.hellos().await?;
            agents.sort_by(|a, b| a.name.cmp(&b.name));
            if let Some(pair) = agents.windows(2).find(|pair| pair[0].name == pair[1].name) {
                return Err(FleetError::SameName(pair[0].name.clone()));
            }
            let clocks = join_all(agents.iter().map(|a| offset(&self.link.client, &a.name))).await;
            // An agent that does not answer a ping has disconnected meanwhile.
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
        // Ask twice: a busy machine may miss the first time limit.
        for _ in 0..2 {
            client.publish_with_reply(WHO, inbox.clone(), Bytes::new()).await.map_err(|e| failed(&e))?;
            client.flush().await.map_err(|e| failed(&e))?;
            while let Ok(Some(answer)) = tokio::time::timeout(QUIET, answers.next()).await {
                // The broker sends an empty message if nobody listens.
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

    /// Starts a run: all agents prepare, then all are told the same start time. If one agent cannot, none
    /// starts.
    ///
    /// # Errors
    /// Names the agents that refuse, with their reasons. The other agents have then discarded the run.
    pub fn start(&self, run: &str, assignments: Vec<Assignment>, how: &StartOptions) -> Result<RemoteRun, FleetError> {
        if !is_name(run) {
            return Err(FleetError::Run(run.to_owned()));
        }
        if assignments.is_empty() {
            return Err(FleetError::Nobody);
        }
        self.driver.wait(async {
            let mut participants = Participants::new(self, run);
            let ready = participants.prepare(&assignments, how).await;
            let epochs = match ready {
                Ok(epochs) => epochs,
                Err(e) => {
                    participants.stop("another agent could not take part").await;
                    return Err(e);
                }
            };
            let departed = async {
                // Subscribe before any agent can publish.
                let flight = RemoteRun::open(self, run, epochs, how, &[]).await?;
                participants.measure().await;
                Ok::<_, FleetError>(flight)
            };
            let mut flight = match departed.await {
                Ok(flight) => flight,
                Err(e) => {
                    participants.stop("the coordinator failed").await;
                    return Err(e);
                }
            };
            flight.started_us = participants.go(how.lead).await;
            flight.participants = Some(participants);
            Ok(flight)
        })
    }

    /// Follows a run whose coordinator is gone, or whose records came late. `agents` take part in the run;
    /// `have` is what the caller has committed already.
    ///
    /// # Errors
    /// If the broker fails.
    pub fn resume(
        &self,
        run: &str,
        agents: &[String],
        have: &[RecordId],
        how: &StartOptions,
    ) -> Result<RemoteRun, FleetError> {
        if !is_name(run) {
            return Err(FleetError::Run(run.to_owned()));
        }
        self.driver.wait(async {
            let there = self.hellos().await?;
            let epochs = agents.iter().map(|name| {
                let at_it = there.iter().find(|a| a.name == *name && a.busy.as_deref() == Some(run));
                (name.clone(), at_it.map(|a| a.epoch))
            });
            let mut flight = RemoteRun::open(self, run, epochs.collect(), how, have).await?;
            let mut participants = Participants::new(self, run);
            for agent in there.into_iter().filter(|a| agents.contains(&a.name)) {
                participants.add(&agent);
            }
            // Orders expire by the agents' clocks.
            participants.measure().await;
            flight.participants = Some(participants);
            Ok(flight)
        })
    }

    /// Returns the runs with records that arrived after their coordinator had left; `resume` gets them.
    ///
    /// # Errors
    /// If the broker fails.
    pub fn waiting(&self) -> Result<Vec<UncommittedRun>, FleetError> {
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
            let mut waiting: Vec<UncommittedRun> =
                runs.into_iter().map(|(run, messages)| UncommittedRun { run, messages }).collect();
            waiting.sort_by(|a, b| a.run.cmp(&b.run));
            Ok(waiting)
        })
    }
}
