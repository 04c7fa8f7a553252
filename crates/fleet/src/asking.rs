//! The coordinator's side of a conversation with an agent: questions and answers, both opaque bytes.
//!
//! A question is signed like an order. The agent confirms at once that it has taken it; the answer follows
//! when it is ready, in as many messages as it needs. Until then the question is repeated every two seconds
//! under the same number. The agent repeats its answer without acting again. So a lost message costs two
//! seconds, and an agent that stays silent is lost.
//!
//! While a conversation is open, the agent gets a keep-alive message every two seconds. If it hears nothing
//! for `AgentOptions::silence`, it ends the conversation and undoes the changes that belong to it. An agent that
//! ends a conversation says so, so that nobody waits for an agent that has gone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::coordinator::Fleet;
use crate::link::{Driver, chain};
use crate::messages::{Clock, Reply};
use crate::order::{OrderKind, Refusal, SignedOrder};
use crate::participants::{INLINE, ask, offset};
use crate::reassembly::Reassembly;
use crate::roster::Agent;
use crate::subjects::{PartId, answers_of, question};
use crate::tokens::{SigningKey, hex, random};

/// The first byte of each answer gives its kind.
pub(crate) const ANSWER: u8 = b'a';
pub(crate) const DECLINED: u8 = b'd';
/// The agent has ended the conversation. This message has the number [`END`].
pub(crate) const ENDED: u8 = b'e';
/// Number of the agent's last message; questions have numbers from 1.
pub(crate) const END: u64 = 0;

/// A question without an answer is repeated after this time.
const AGAIN: Duration = Duration::from_secs(2);
/// An agent that is silent for this long is lost: longer than it takes to restart a killed broker.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval of keep-alive messages.
const BEAT: Duration = Duration::from_secs(2);
/// An agent confirms a question within this time.
const TAKEN: Duration = Duration::from_secs(5);
/// A message expires after this time, by the agent's clock.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// Time limit for the last message of either side.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// The reason why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("agent {agent}: it is lost, nothing was heard of it for {} s{}", silent.as_secs(), reason(.last))]
    Lost { agent: String, silent: Duration, last: Option<String> },
    #[error(
        "agent {agent}: it has ended the conversation, because it was told to end, was started anew or heard nothing of us for too long; what \
         it had changed for us it puts back (lastdrop restore shows what is left)"
    )]
    Ended { agent: String },
    #[error("agent {agent}: {why}")]
    Refused { agent: String, why: Refusal },
    #[error("agent {agent}: it has not done what it was asked within {} s", within.as_secs())]
    TooLong { agent: String, within: Duration },
    #[error("a question of {bytes} bytes is too large")]
    TooLarge { bytes: usize },
    #[error("the broker fails: {0}")]
    Broker(String),
}

impl AskError {
    /// Returns the message without the agent's name in front.
    #[must_use]
    pub fn what(&self, agent: &str) -> String {
        let text = self.to_string();
        text.strip_prefix(&format!("agent {agent}: ")).unwrap_or(&text).to_owned()
    }
}

fn reason(last: &Option<String>) -> String {
    last.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
}

/// An open conversation with an agent; dropping it ends it.
#[derive(Debug)]
pub struct Conversation {
    driver: Arc<Driver>,
    agent: String,
    sender: Arc<tokio::sync::Mutex<MessageSender>>,
    /// Locked for one question at a time.
    answers: Mutex<AnswerStream>,
    over: watch::Sender<bool>,
    patience: Duration,
}

#[derive(Debug)]
struct AnswerStream {
    incoming: Subscriber,
    /// Number of the last question.
    number: u64,
    reassembly: Reassembly<()>,
    /// The agent has ended the conversation.
    is_over: bool,
}

/// Sends the signed messages of a conversation to the agent.
#[derive(Debug)]
struct MessageSender {
    client: Client,
    key: SigningKey,
    version: String,
    /// Name of the conversation.
    name: String,
    agent: String,
    instance: String,
    offset_us: i64,
    sequence: u64,
}

impl MessageSender {
    /// Sends a message; returns the agent's reply, or why there is none.
    async fn say(&mut self, what: &OrderKind, payload: &[u8]) -> Result<Reply, String> {
        let reply = self.say_once(what, payload).await;
        let Ok(Reply::Refused(Refusal::Expired { .. })) = reply else { return reply };
        // One of the two clocks was set, so measure the offset and send again.
        if let Some((offset_us, _)) = offset(&self.client, &self.agent).await {
            self.offset_us = offset_us;
        }
        self.say_once(what, payload).await
    }

    async fn say_once(&mut self, what: &OrderKind, payload: &[u8]) -> Result<Reply, String> {
        self.sequence += 1;
        let order = SignedOrder {
            run: self.name.clone(),
            agent: self.agent.clone(),
            instance: self.instance.clone(),
            version: self.version.clone(),
            sequence: self.sequence,
            expires_us: Clock::default().now_us() + self.offset_us + GOOD_FOR.as_micros() as i64,
            what: what.clone(),
            payload_sha256: String::new(),
        };
        ask(&self.client, question(&self.agent), &order.seal(payload, &self.key), TAKEN).await
    }
}

impl Fleet {
    /// Begins a conversation with an agent, which learns of it with the first question.
    ///
    /// # Errors
    /// If the broker fails.
    pub fn converse(&self, agent: &Agent) -> Result<Conversation, AskError> {
        let failed = |e: &dyn std::error::Error| AskError::Broker(chain(e));
        let name = hex(&random::<16>().map_err(|e| failed(&e))?);
        let client = self.link.client.clone();
        // Messages of one connection keep their order, so the subscription is active before the first
        // question.
        let incoming = self.driver.wait(client.subscribe(answers_of(&agent.name, &name))).map_err(|e| failed(&e))?;
        let sender = MessageSender {
            client,
            key: self.token.signing_key(),
            version: self.version.clone(),
            name,
            agent: agent.name.clone(),
            instance: agent.instance.clone(),
            offset_us: agent.offset_us,
            sequence: 0,
        };
        let sender = Arc::new(tokio::sync::Mutex::new(sender));
        let (over, mut is_over) = watch::channel(false);
        let of = Arc::clone(&sender);
        self.driver.spawn(async move {
            // Stops as soon as the conversation ends, even in the middle of a keep-alive message.
            let beats = async {
                loop {
                    tokio::time::sleep(BEAT).await;
                    let mut sender = of.lock().await;
                    // The agent knows the conversation only after its first question.
                    if sender.sequence > 0 {
                        let _ = sender.say(&OrderKind::Still, &[]).await;
                    }
                }
            };
            tokio::select! {
                () = beats => {}
                _ = is_over.wait_for(|over| *over) => {}
            }
        });
        let answers =
            Mutex::new(AnswerStream { incoming, number: 0, reassembly: Reassembly::default(), is_over: false });
        let (driver, agent) = (Arc::clone(&self.driver), agent.name.clone());
        Ok(Conversation { driver, agent, sender, answers, over, patience: PATIENCE })
    }
}

impl Conversation {
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// An agent that is silent for this long is lost.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Conversation {
        self.patience = patience;
        self
    }

    /// Asks a question and waits for the answer. Other threads wait until it is answered.
    ///
    /// # Errors
    /// If there is no answer. The question may have taken effect all the same.
    pub fn ask(&self, question: &[u8], within: Duration) -> Result<Vec<u8>, AskError> {
        if question.len() > INLINE {
            return Err(AskError::TooLarge { bytes: question.len() });
        }
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.number += 1;
        self.driver.wait(self.until_answered(&mut answers, question, within))
    }

    async fn until_answered(
        &self,
        answers: &mut AnswerStream,
        question: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let agent = || self.agent.clone();
        let (began, mut heard) = (Instant::now(), Instant::now());
        while !answers.is_over {
            let said = self.sender.lock().await.say(&OrderKind::Ask { number: answers.number }, question).await;
            let last = match said {
                Ok(Reply::Taken) => {
                    heard = Instant::now();
                    None
                }
                // The conversation began in an earlier epoch of the agent.
                Ok(Reply::NotHere | Reply::Refused(Refusal::Replayed { .. })) => break,
                Ok(Reply::Refused(why)) => return Err(AskError::Refused { agent: agent(), why }),
                Ok(_) => Some("it sent an unknown reply".into()),
                Err(why) => Some(why),
            };
            if let Ok(answer) = tokio::time::timeout(AGAIN, answers.next()).await {
                return match answer {
                    None => Err(AskError::Broker("the connection is gone".into())),
                    Some((ANSWER, bytes)) => Ok(bytes),
                    Some((ENDED, _)) => break,
                    Some((_, bytes)) => {
                        let why = serde_json::from_slice(&bytes).unwrap_or(Refusal::Malformed);
                        Err(AskError::Refused { agent: agent(), why })
                    }
                };
            }
            if heard.elapsed() > self.patience {
                return Err(AskError::Lost { agent: agent(), silent: heard.elapsed(), last });
            }
            if began.elapsed() > within {
                return Err(AskError::TooLong { agent: agent(), within });
            }
        }
        answers.is_over = true;
        Err(AskError::Ended { agent: agent() })
    }
}

impl AnswerStream {
    /// Returns kind and content of the answer to the last question, or of the agent's last message; `None` if the
    /// connection is gone.
    async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let message = self.incoming.next().await?;
            let part = PartId::read_answer(&message.subject);
            let Some(part) = part.filter(|part| part.seq == self.number || part.seq == END) else { continue };
            if let Ok(Some(whole)) = self.reassembly.add(&part, message.payload, ()) {
                // Leftover parts come from duplicates and belong to no further answer.
                self.reassembly = Reassembly::default();
                return Some((whole.kind, whole.content));
            }
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.over.send_replace(true);
        let leave = async {
            let mut sender = self.sender.lock().await;
            if sender.sequence > 0 {
                let _ = sender.say(&OrderKind::Leave, &[]).await;
            }
        };
        let _ = self.driver.wait(async { tokio::time::timeout(FAREWELL, leave).await });
    }
}
