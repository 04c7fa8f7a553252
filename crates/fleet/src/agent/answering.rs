//! Conversations: what an agent answers to questions of the token's holder, beside whatever job it is at.
//!
//! Each has a thread of its own, in which what answers is made, used and dropped. It ends when whoever asks says so, when
//! nothing was heard of him for `AgentOptions::silence`, or with the agent; whatever it has changed is undone then by who answers.
//!
//! A conversation begins once: its name is on the disk before its first question is answered, so that one that somebody has
//! overheard cannot begin again. Its messages count up, and its questions do so, too: one that is asked again is answered again
//! with the same answer.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{AgentOptions, Tell, Told};
use crate::asking::{ANSWER, DECLINED};
use crate::engine::{EngineError, Stop};
use crate::link::{Driver, Link};
use crate::messages::Reply;
use crate::order::{Order, Refusal, What};
use crate::parts::split;
use crate::subjects::PartOf;

/// Conversations at once.
const MOST: usize = 64;
/// How soon a thread notices that it is over.
const LOOK: Duration = Duration::from_millis(200);
/// How long the broker may take for an answer; whoever asks will ask again.
const SEND: Duration = Duration::from_secs(10);

/// Makes what answers, one for each conversation, in the thread of that.
pub trait Respond: Send + Sync {
    fn begin(&self, conversation: &str) -> Box<dyn Answers>;
}

/// What answers in one conversation.
pub trait Answers {
    /// The answer to a question, which is asked once.
    ///
    /// # Errors
    /// Why it is refused, as a sentence: counted and told as an order that was.
    fn answer(&mut self, question: &[u8]) -> Result<Vec<u8>, EngineError>;

    /// The conversation is over: whatever it has changed and was not asked to leave so is to be undone now. What a person at the agent
    /// is to know of it.
    fn end(&mut self, _why: &Over) -> Option<String> {
        None
    }
}

/// Why a conversation is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Whoever asked has said so.
    Left,
    /// Nothing was heard of whoever asked for so long.
    Silent(Duration),
    /// The agent ends.
    Agent,
}

/// Refuses to answer anything.
#[derive(Debug, Clone, Copy)]
pub struct Mute;

impl Respond for Mute {
    fn begin(&self, _: &str) -> Box<dyn Answers> {
        Box::new(Mute)
    }
}

impl Answers for Mute {
    fn answer(&mut self, _: &[u8]) -> Result<Vec<u8>, EngineError> {
        Err(EngineError("this agent answers no questions".into()))
    }
}

/// All that are open.
#[derive(Clone)]
pub(super) struct Conversations(Arc<Shared>);

struct Shared {
    options: AgentOptions,
    driver: Arc<Driver>,
    link: Link,
    respond: Arc<dyn Respond>,
    stop: Stop,
    tell: Tell,
    /// Counts a refusal.
    count: Box<dyn Fn(&Refusal) + Send + Sync>,
    open: Mutex<HashMap<String, Open>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Open {
    /// The sequence of the last message.
    last: u64,
    heard: Instant,
    number: u64,
    /// That to the question of this number, with its kind.
    answer: Option<(u8, Bytes)>,
    questions: Sender<Vec<u8>>,
}

impl Conversations {
    pub fn new(
        options: &AgentOptions,
        driver: &Arc<Driver>,
        link: &Link,
        respond: Arc<dyn Respond>,
        stop: &Stop,
        tell: &Tell,
        count: Box<dyn Fn(&Refusal) + Send + Sync>,
    ) -> Conversations {
        Conversations(Arc::new(Shared {
            options: options.clone(),
            driver: Arc::clone(driver),
            link: link.clone(),
            respond,
            stop: stop.clone(),
            tell: Arc::clone(tell),
            count,
            open: Mutex::default(),
            threads: Mutex::default(),
        }))
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is it one that is open?
    pub fn is_open(&self, name: &str) -> bool {
        self.open().contains_key(name)
    }

    /// Takes a message of a conversation that is open; None: there is no such one (any more).
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn take(&self, order: &Order, payload: &[u8]) -> Result<Option<Reply>, Refusal> {
        let mut all = self.open();
        let Some(open) = all.get_mut(&order.run) else { return Ok(None) };
        if order.sequence <= open.last {
            return Err(Refusal::Replayed { sequence: order.sequence, last: open.last });
        }
        (open.last, open.heard) = (order.sequence, Instant::now());
        match order.what {
            What::Ask { number } if number == open.number => {
                if let Some((kind, bytes)) = open.answer.clone() {
                    let (conversations, name) = (self.clone(), order.run.clone());
                    self.0.driver.spawn(async move { conversations.send(&name, number, kind, &bytes).await });
                }
            }
            What::Ask { number } if number == open.number + 1 && open.answer.is_some() => {
                (open.number, open.answer) = (number, None);
                // One that is about to end leaves it without an answer.
                let _ = open.questions.send(payload.to_vec());
            }
            What::Ask { .. } => return Err(Refusal::Declined("questions of a conversation come one by one".into())),
            What::Leave => {
                all.remove(&order.run);
                return Ok(Some(Reply::Stopping));
            }
            _ => {}
        }
        Ok(Some(Reply::Taken))
    }

    /// Begins one with its first question.
    ///
    /// # Errors
    /// When there are too many, or no thread for it.
    pub fn begin(&self, order: &Order, payload: &[u8]) -> Result<Reply, Refusal> {
        let mut all = self.open();
        if all.len() >= MOST {
            return Err(Refusal::Declined(format!("{MOST} conversations are open already")));
        }
        let (questions, taken) = channel();
        let _ = questions.send(payload.to_vec());
        let (conversations, name) = (self.clone(), order.run.clone());
        let thread = std::thread::Builder::new().name("answer".into());
        let thread = thread.spawn(move || conversations.converse(&name, &taken));
        let thread = thread.map_err(|e| Refusal::Declined(format!("no thread for it: {e}")))?;
        let open = Open { last: order.sequence, heard: Instant::now(), number: 1, answer: None, questions };
        all.insert(order.run.clone(), open);
        drop(all);
        let mut threads = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(Reply::Taken)
    }

    /// Waits until all have ended: the agent was told to.
    pub fn close(&self) {
        let threads = std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// The thread of one.
    fn converse(&self, name: &str, questions: &Receiver<Vec<u8>>) {
        let mut answers = self.0.respond.begin(name);
        let over = loop {
            match questions.recv_timeout(LOOK) {
                Ok(question) => self.answer(name, answers.as_mut(), &question),
                Err(RecvTimeoutError::Disconnected) => break Over::Left,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.0.stop.is_asked() {
                break Over::Agent;
            }
            let silent = self.open().get(name).map(|open| open.heard.elapsed());
            if let Some(silent) = silent.filter(|silent| *silent > self.0.options.silence) {
                break Over::Silent(silent);
            }
        };
        // Whoever asks from here on hears that it has ended.
        self.open().remove(name);
        let ended = catch_unwind(AssertUnwindSafe(|| answers.end(&over)));
        let told = ended.unwrap_or_else(|_| Some("the end of a conversation broke".into()));
        // What it holds may break on its way out, too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(answers)));
        if let Some(what) = told {
            (self.0.tell)(Told::Trouble(what));
        }
    }

    fn answer(&self, name: &str, answers: &mut dyn Answers, question: &[u8]) {
        let answered = catch_unwind(AssertUnwindSafe(|| answers.answer(question)));
        let answered =
            answered.unwrap_or_else(|_| Err(EngineError("answering it broke; see the agent's output".into())));
        let (kind, bytes) = match answered {
            Ok(bytes) => (ANSWER, bytes),
            Err(why) => {
                let refusal = Refusal::Declined(why.0);
                (self.0.count)(&refusal);
                (self.0.tell)(Told::Refused(refusal.clone()));
                (DECLINED, serde_json::to_vec(&refusal).expect("a refusal is JSON"))
            }
        };
        let bytes = Bytes::from(bytes);
        let number = {
            let mut all = self.open();
            // Nobody waits for it any more.
            let Some(open) = all.get_mut(name) else { return };
            open.answer = Some((kind, bytes.clone()));
            open.number
        };
        self.0.driver.wait(self.send(name, number, kind, &bytes));
    }

    /// Publishes an answer. One that does not get through is asked for again.
    async fn send(&self, name: &str, number: u64, kind: u8, bytes: &[u8]) {
        let client = &self.0.link.client;
        let parts = split(kind, bytes, client.max_payload());
        let count = parts.len() as u32;
        let publish = async {
            for (part, bytes) in (0..).zip(parts) {
                let (run, agent) = (name.to_owned(), self.0.options.name.clone());
                let of = PartOf { run, agent, epoch: 0, seq: number, part, parts: count };
                if client.publish(of.answer_subject(), bytes).await.is_err() {
                    return;
                }
            }
            let _ = client.flush().await;
        };
        let _ = tokio::time::timeout(SEND, publish).await;
    }
}
