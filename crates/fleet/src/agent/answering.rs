//! Conversations: an agent answers questions of the token's holder, independently of its current job.
//!
//! Each conversation has its own thread, in which its [`Answerer`] is created, used and dropped. It ends when
//! the questioner leaves, when nothing was heard for `AgentOptions::silence`, or when the agent ends.
//! `Answerer::end` then undoes what the conversation changed.
//!
//! A conversation begins once. Its name is on the disk before its first question is answered, so a replayed
//! conversation cannot begin again. Messages have increasing sequence numbers, and questions have increasing
//! numbers of their own. A repeated question gets the same answer again.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{AgentOptions, AgentStatus, StatusListener};
use crate::asking::{ANSWER, DECLINED, END, ENDED, FAREWELL};
use crate::engine::{EngineError, Stop};
use crate::link::{Driver, Link};
use crate::messages::Reply;
use crate::order::{OrderKind, Refusal, SignedOrder};
use crate::reassembly::split;
use crate::subjects::PartId;

/// Largest number of open conversations.
const MOST: usize = 64;
/// How often a thread checks whether its conversation is over.
const LOOK: Duration = Duration::from_millis(200);
/// How long publishing an answer may take; the questioner repeats a question without an answer.
const SEND: Duration = Duration::from_secs(10);

/// Creates the [`Answerer`] of each conversation, in that conversation's thread.
pub trait Responder: Send + Sync {
    fn begin(&self, conversation: &str) -> Box<dyn Answerer>;
}

/// Answers the questions of one conversation.
pub trait Answerer {
    /// Returns the answer to a question. A repeated question does not get here.
    ///
    /// # Errors
    /// The reason for a refusal, as a sentence. It is counted and reported like a refused order.
    fn answer(&mut self, question: &[u8]) -> Result<Vec<u8>, EngineError>;

    /// Called when the conversation is over. Undoes changes that were not meant to last, and returns a
    /// message for the agent's user, if there is one.
    fn end(&mut self, _why: &ConversationEnd) -> Option<String> {
        None
    }
}

/// The reason why a conversation is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConversationEnd {
    /// The questioner ended it.
    Left,
    /// Nothing was heard of the questioner for this long.
    Silent(Duration),
    /// The agent ends.
    Agent,
}

/// Refuses every question.
#[derive(Debug, Clone, Copy)]
pub struct MuteResponder;

impl Responder for MuteResponder {
    fn begin(&self, _: &str) -> Box<dyn Answerer> {
        Box::new(MuteResponder)
    }
}

impl Answerer for MuteResponder {
    fn answer(&mut self, _: &[u8]) -> Result<Vec<u8>, EngineError> {
        Err(EngineError("this agent answers no questions".into()))
    }
}

/// All open conversations.
#[derive(Clone)]
pub(super) struct Conversations(Arc<ConversationsState>);

struct ConversationsState {
    options: AgentOptions,
    driver: Arc<Driver>,
    link: Link,
    respond: Arc<dyn Responder>,
    stop: Stop,
    tell: StatusListener,
    /// Counts a refusal.
    count: Box<dyn Fn(&Refusal) + Send + Sync>,
    open: Mutex<HashMap<String, OpenConversation>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct OpenConversation {
    /// Sequence number of the last message.
    last: u64,
    heard: Instant,
    number: u64,
    /// The answer to that question, with its kind; `None` until it is ready.
    answer: Option<(u8, Bytes)>,
    questions: Sender<Vec<u8>>,
}

impl Conversations {
    pub fn new(
        options: &AgentOptions,
        driver: &Arc<Driver>,
        link: &Link,
        respond: Arc<dyn Responder>,
        stop: &Stop,
        tell: &StatusListener,
        count: Box<dyn Fn(&Refusal) + Send + Sync>,
    ) -> Conversations {
        Conversations(Arc::new(ConversationsState {
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

    fn open(&self) -> MutexGuard<'_, HashMap<String, OpenConversation>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this conversation is open.
    pub fn is_open(&self, name: &str) -> bool {
        self.open().contains_key(name)
    }

    /// Takes a message of an open conversation; `None` if that conversation is not open (any more).
    ///
    /// # Errors
    /// The reason why the message is refused.
    pub fn take(&self, order: &SignedOrder, payload: &[u8]) -> Result<Option<Reply>, Refusal> {
        let mut all = self.open();
        let Some(open) = all.get_mut(&order.run) else { return Ok(None) };
        if order.sequence <= open.last {
            return Err(Refusal::Replayed { sequence: order.sequence, last: open.last });
        }
        (open.last, open.heard) = (order.sequence, Instant::now());
        match order.what {
            OrderKind::Ask { number } if number == open.number => {
                if let Some((kind, bytes)) = open.answer.clone() {
                    let (conversations, name) = (self.clone(), order.run.clone());
                    self.0.driver.spawn(async move { conversations.send(&name, number, kind, &bytes).await });
                }
            }
            OrderKind::Ask { number } if number == open.number + 1 && open.answer.is_some() => {
                (open.number, open.answer) = (number, None);
                // A conversation that is about to end leaves the question without an answer.
                let _ = open.questions.send(payload.to_vec());
            }
            OrderKind::Ask { .. } => {
                return Err(Refusal::Declined("questions of a conversation come one by one".into()));
            }
            OrderKind::Leave => {
                all.remove(&order.run);
                return Ok(Some(Reply::Stopping));
            }
            _ => {}
        }
        Ok(Some(Reply::Taken))
    }

    /// Begins a conversation with its first question.
    ///
    /// # Errors
    /// If too many conversations are open, or no thread can be started.
    pub fn begin(&self, order: &SignedOrder, payload: &[u8]) -> Result<Reply, Refusal> {
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
        let open = OpenConversation { last: order.sequence, heard: Instant::now(), number: 1, answer: None, questions };
        all.insert(order.run.clone(), open);
        drop(all);
        let mut threads = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(Reply::Taken)
    }

    /// Waits until all conversations have ended; call it after the agent was told to end.
    pub fn close(&self) {
        let threads = std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Runs one conversation in its thread.
    fn converse(&self, name: &str, questions: &Receiver<Vec<u8>>) {
        let mut answers = self.0.respond.begin(name);
        let over = loop {
            match questions.recv_timeout(LOOK) {
                Ok(question) => self.answer(name, answers.as_mut(), &question),
                Err(RecvTimeoutError::Disconnected) => break ConversationEnd::Left,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.0.stop.is_asked() {
                break ConversationEnd::Agent;
            }
            let silent = self.open().get(name).map(|open| open.heard.elapsed());
            if let Some(silent) = silent.filter(|silent| *silent > self.0.options.silence) {
                break ConversationEnd::Silent(silent);
            }
        };
        // From here on, a questioner is told that the conversation has ended.
        self.open().remove(name);
        let ended = catch_unwind(AssertUnwindSafe(|| answers.end(&over)));
        let told = ended.unwrap_or_else(|_| Some("the end of a conversation broke".into()));
        // Dropping its values may panic, too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(answers)));
        if let Some(what) = told {
            (self.0.tell)(AgentStatus::Trouble(what));
        }
        if over != ConversationEnd::Left {
            let farewell = async { tokio::time::timeout(FAREWELL, self.send(name, END, ENDED, &[])).await };
            let _ = self.0.driver.wait(farewell);
        }
    }

    fn answer(&self, name: &str, answers: &mut dyn Answerer, question: &[u8]) {
        let answered = catch_unwind(AssertUnwindSafe(|| answers.answer(question)));
        let answered =
            answered.unwrap_or_else(|_| Err(EngineError("answering it broke; see the agent's output".into())));
        let (kind, bytes) = match answered {
            Ok(bytes) => (ANSWER, bytes),
            Err(why) => {
                let refusal = Refusal::Declined(why.0);
                (self.0.count)(&refusal);
                (self.0.tell)(AgentStatus::Refused(refusal.clone()));
                (DECLINED, serde_json::to_vec(&refusal).expect("a refusal is JSON"))
            }
        };
        let bytes = Bytes::from(bytes);
        let number = {
            let mut all = self.open();
            // The conversation was closed meanwhile, so nobody waits for the answer.
            let Some(open) = all.get_mut(name) else { return };
            open.answer = Some((kind, bytes.clone()));
            open.number
        };
        self.0.driver.wait(self.send(name, number, kind, &bytes));
    }

    /// Publishes an answer. If it gets lost, the question is asked again.
    async fn send(&self, name: &str, number: u64, kind: u8, bytes: &[u8]) {
        let client = &self.0.link.client;
        let parts = split(kind, bytes, client.max_payload());
        let count = parts.len() as u32;
        let publish = async {
            for (part, bytes) in (0..).zip(parts) {
                let (run, agent) = (name.to_owned(), self.0.options.name.clone());
                let of = PartId { run, agent, epoch: 0, seq: number, part, parts: count };
                if client.publish(of.answer_subject(), bytes).await.is_err() {
                    return;
                }
            }
            let _ = client.flush().await;
        };
        let _ = tokio::time::timeout(SEND, publish).await;
    }
}
