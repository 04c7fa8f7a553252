//! Handles requests to an agent on the connection's thread: who it is, what its clock shows, and orders.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::Message;
use futures_util::StreamExt;
use tokio::sync::{oneshot, watch};

use super::answering::{Conversations, Responder};
use super::home::Home;
use super::join::JoinAttempt;
use super::{AgentOptions, AgentStatus, Shared, StatusListener};
use crate::engine::{File, Files, Job, Start, Stop};
use crate::files::{FetchError, fetch};
use crate::link::{Driver, Link};
use crate::messages::{Heartbeat, Reply};
use crate::order::{OrderKind, OrderVerifier, Refusal, SignedOrder, StoredFile};
use crate::outbox::Outbox;
use crate::roster::{Agent, Refusals};
use crate::subjects::{WHO, alive, order, ping, question};

/// A job for the engine's thread.
#[derive(Debug)]
pub(super) struct Task {
    pub job: Job,
    pub stop: Stop,
    pub go: Receiver<Start>,
    /// The coordinator sends `Go` before this time or not at all.
    pub expires: Instant,
    pub ready: oneshot::Sender<Reply>,
}

/// The current job.
#[derive(Debug)]
struct CurrentJob {
    run: String,
    stop: Stop,
    go: Sender<Start>,
    /// When it began; `None` while it is only prepared. Beats are sent from then on.
    began: Option<Instant>,
}

#[derive(Debug)]
struct HandlerState {
    home: Home,
    current: Option<CurrentJob>,
    refused: Refusals,
    /// The journal's last error. It is kept until a heartbeat has reported it, even if writing works again.
    journal_trouble: Option<String>,
    journal_works: bool,
    /// The trouble that was reported last, so that each is reported once.
    told: Option<String>,
}

fn lock(state: &Mutex<HandlerState>) -> MutexGuard<'_, HandlerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_noted(e: std::io::Error) -> Refusal {
    Refusal::Declined(format!("the agent cannot note that it has seen the order: {e}"))
}

/// Handles requests until closed.
#[derive(Clone)]
pub(super) struct OrderHandler {
    options: Arc<AgentOptions>,
    state: Shared<HandlerState>,
    outbox: Arc<Outbox>,
    link: Link,
    tasks: Sender<Task>,
    conversations: Conversations,
    driver: Arc<Driver>,
    closed: Arc<watch::Sender<bool>>,
    tell: StatusListener,
}

impl OrderHandler {
    #[expect(clippy::too_many_arguments, reason = "the parts of an agent meet here, once")]
    pub fn open(
        options: &AgentOptions,
        home: Home,
        driver: &Arc<Driver>,
        link: Link,
        outbox: &Arc<Outbox>,
        tasks: Sender<Task>,
        respond: Arc<dyn Responder>,
        stop: &Stop,
        tell: &StatusListener,
    ) -> OrderHandler {
        let entry = JoinAttempt {
            url: options.url.clone(),
            token: options.token.clone(),
            name: options.name.clone(),
            password: home.state.password.clone(),
        };
        let state = HandlerState {
            home,
            current: None,
            refused: Refusals::default(),
            journal_trouble: None,
            journal_works: true,
            told: None,
        };
        let state = Arc::new(Mutex::new(state));
        let counted = Arc::clone(&state);
        let count = move |refusal: &Refusal| lock(&counted).refused.count(refusal);
        let conversations = Conversations::new(options, driver, &link, respond, stop, tell, Box::new(count));
        let handler = OrderHandler {
            options: Arc::new(options.clone()),
            state,
            conversations,
            outbox: Arc::clone(outbox),
            link,
            tasks,
            driver: Arc::clone(driver),
            closed: Arc::new(watch::channel(false).0),
            tell: Arc::clone(tell),
        };
        handler.spawn(handler.clone().answer_who());
        handler.spawn(handler.clone().answer_pings());
        handler.spawn(handler.clone().take_orders());
        handler.spawn(handler.clone().take_questions());
        handler.spawn(handler.clone().keep_time(stop.clone()));
        handler.spawn(handler.clone().stay_in(entry));
        handler
    }

    /// Runs a future until it is done or the handler is closed.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut closed = self.closed.subscribe();
        self.driver.spawn(async move {
            tokio::select! {
                () = task => {}
                _ = closed.wait_for(|closed| *closed) => {}
            }
        });
    }

    /// Waits until all conversations have undone their changes; call it after the agent was told to end.
    pub fn end_conversations(&self) {
        self.conversations.close();
    }

    /// Disconnects from the broker after a flush.
    pub fn close(&self) {
        self.closed.send_replace(true);
        let leave = async { (self.link.client.flush().await, self.link.client.drain().await) };
        let _ = self.driver.wait(async { tokio::time::timeout(Duration::from_secs(2), leave).await });
    }

    fn state(&self) -> MutexGuard<'_, HandlerState> {
        lock(&self.state)
    }

    /// Ends the current job.
    pub fn free(&self) {
        let mut state = self.state();
        state.current = None;
        state.home.forget_files();
    }

    /// Records an error of the journal, or with `None` that it can be written again.
    pub fn journal_trouble(&self, error: Option<String>) {
        let mut state = self.state();
        state.journal_works = error.is_none();
        if let Some(e) = error {
            state.journal_trouble = Some(format!("the journal cannot be written: {e}"));
        }
    }

    /// Returns the journal's trouble if no heartbeat has reported it: no heartbeat follows the final report of a job.
    pub fn untold_trouble(&self) -> Option<String> {
        let state = self.state();
        state.journal_trouble.clone().filter(|what| state.told.as_ref() != Some(what))
    }

    async fn answer_who(self) {
        let Ok(mut asked) = self.link.client.subscribe(WHO).await else { return };
        while let Some(message) = asked.next().await {
            let hello = serde_json::to_vec(&self.hello()).expect("an agent's description is JSON");
            self.answer(&message, hello).await;
        }
    }

    fn hello(&self) -> Agent {
        let state = self.state();
        Agent {
            name: self.options.name.clone(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            version: self.options.version.clone(),
            address: self.link.client.server_info().client_ip,
            offset_us: 0,
            error_us: 0,
            looks: self.options.looks.clone(),
            limits: self.options.limits.clone(),
            busy: state.current.as_ref().map(|c| c.run.clone()),
            refused: state.refused,
            epoch: state.home.state.epoch,
            instance: state.home.state.instance.clone(),
            last_order: state.home.state.last_order,
        }
    }

    async fn answer_pings(self) {
        let Ok(mut asked) = self.link.client.subscribe(ping(&self.options.name)).await else { return };
        while let Some(message) = asked.next().await {
            let now = self.options.clock().now_us().to_string();
            self.answer(&message, now.into()).await;
        }
    }

    async fn answer(&self, message: &Message, answer: Vec<u8>) {
        if let Some(to) = &message.reply {
            let _ = self.link.client.publish(to.clone(), answer.into()).await;
        }
    }

    async fn take_orders(self) {
        let Ok(mut given) = self.link.client.subscribe(order(&self.options.name)).await else { return };
        while let Some(message) = given.next().await {
            let handler = self.clone();
            // Files may take a while to arrive, and a stop must not wait behind them.
            self.spawn(async move {
                let reply = handler.take(&message.payload).await;
                handler.reply(&message, reply).await;
            });
        }
    }

    /// Replies to an order or a question; a refusal is counted and reported.
    async fn reply(&self, message: &Message, reply: Result<Reply, Refusal>) {
        let reply = reply.unwrap_or_else(|refusal| {
            self.state().refused.count(&refusal);
            (self.tell)(AgentStatus::Refused(refusal.clone()));
            Reply::Refused(refusal)
        });
        self.answer(message, serde_json::to_vec(&reply).expect("a reply is JSON")).await;
    }

    async fn take_questions(self) {
        let Ok(mut asked) = self.link.client.subscribe(question(&self.options.name)).await else { return };
        while let Some(message) = asked.next().await {
            let reply = self.take_question(&message.payload);
            self.reply(&message, reply).await;
        }
    }

    fn take_question(&self, message: &[u8]) -> Result<Reply, Refusal> {
        let (order, payload) = self.read(message, |_| 0)?;
        if !matches!(order.what, OrderKind::Ask { .. } | OrderKind::Still | OrderKind::Leave) {
            return Err(Refusal::Malformed);
        }
        if let Some(reply) = self.conversations.take(&order, payload)? {
            return Ok(reply);
        }
        if order.what != (OrderKind::Ask { number: 1 }) {
            return Ok(Reply::NotHere);
        }
        let mut state = self.state();
        let now_us = self.options.clock().now_us();
        if !state.home.state.begin_conversation(&order.run, now_us, |name| self.conversations.is_open(name)) {
            return Err(Refusal::Replayed { sequence: order.sequence, last: order.sequence });
        }
        state.home.save().map_err(not_noted)?;
        drop(state);
        self.conversations.begin(&order, payload)
    }

    async fn take(&self, message: &[u8]) -> Result<Reply, Refusal> {
        let (order, payload) = self.open_order(message)?;
        match order.what {
            OrderKind::Prepare { payload: stored, files } => {
                let (job, stop, go) = self.begin(&order.run)?;
                let fetched = self.fetched(job, payload, stored.as_ref(), &files).await;
                let job = fetched.inspect_err(|_| self.free())?;
                let (ready, readied) = oneshot::channel();
                let expires = self.options.clock().instant(order.expires_us);
                let _ = self.tasks.send(Task { job, stop, go, expires, ready });
                match readied.await {
                    Ok(Reply::Refused(refusal)) => Err(refusal),
                    Ok(reply) => Ok(reply),
                    // The agent is ending.
                    Err(_) => Ok(Reply::NotHere),
                }
            }
            OrderKind::Go { at_us, coordinator_us, error_us } => {
                let mut state = self.state();
                let Some(current) = state.current.as_mut().filter(|c| c.run == order.run) else {
                    return Ok(Reply::NotHere);
                };
                let start = Start { at: self.options.clock().instant(at_us), unix_us: coordinator_us, error_us };
                current.began = Some(start.at);
                Ok(if current.go.send(start).is_ok() { Reply::Going } else { Reply::NotHere })
            }
            OrderKind::Ask { .. } | OrderKind::Still | OrderKind::Leave => Err(Refusal::Malformed),
            OrderKind::Stop { why } => {
                let state = self.state();
                let Some(current) = state.current.as_ref().filter(|c| c.run == order.run) else {
                    return Ok(Reply::NotHere);
                };
                current.stop.ask(&why);
                Ok(Reply::Stopping)
            }
        }
    }

    /// Checks an order, and stores its sequence number before anything is done about it.
    fn open_order<'m>(&self, message: &'m [u8]) -> Result<(SignedOrder, &'m [u8]), Refusal> {
        let (order, payload) = self.read(message, |state| state.home.state.last_order)?;
        if matches!(order.what, OrderKind::Ask { .. } | OrderKind::Still | OrderKind::Leave) {
            return Err(Refusal::Malformed);
        }
        let mut state = self.state();
        state.home.state.last_order = order.sequence;
        state.home.save().map_err(not_noted)?;
        Ok((order, payload))
    }

    /// Checks that a message is signed, meant for this agent, and not expired or replayed.
    fn read<'m>(
        &self,
        message: &'m [u8],
        last: impl Fn(&HandlerState) -> u64,
    ) -> Result<(SignedOrder, &'m [u8]), Refusal> {
        let state = self.state();
        let reader = OrderVerifier {
            token: &self.options.token,
            agent: &self.options.name,
            instance: &state.home.state.instance,
            version: &self.options.version,
            last: last(&state),
            now_us: self.options.clock().now_us(),
        };
        SignedOrder::open(message, &reader)
    }

    fn begin(&self, run: &str) -> Result<(Job, Stop, Receiver<Start>), Refusal> {
        let mut state = self.state();
        if let Some(current) = &state.current {
            return Err(Refusal::Busy(current.run.clone()));
        }
        let (stop, (send, go)) = (Stop::default(), channel());
        state.current = Some(CurrentJob { run: run.to_owned(), stop: stop.clone(), go: send, began: None });
        let job = Job {
            run: run.to_owned(),
            agent: self.options.name.clone(),
            epoch: state.home.state.epoch,
            payload: Vec::new(),
            files: Files::default(),
            limits: self.options.limits.clone(),
        };
        Ok((job, stop, go))
    }

    async fn fetched(
        &self,
        mut job: Job,
        payload: &[u8],
        stored: Option<&StoredFile>,
        files: &[StoredFile],
    ) -> Result<Job, Refusal> {
        let folder = self.state().home.files();
        let refused = |file: &StoredFile, e: FetchError| match e {
            FetchError::Damaged => Refusal::Damaged(format!("file {}", file.name)),
            e => Refusal::Declined(format!("file {}: {e}", file.name)),
        };
        job.payload = match stored {
            None => payload.to_vec(),
            Some(file) => {
                let path = fetch(&self.link.jetstream, file, &folder).await.map_err(|e| refused(file, e))?;
                std::fs::read(path).map_err(|e| refused(file, e.into()))?
            }
        };
        let mut fetched = Vec::new();
        for file in files {
            let path = fetch(&self.link.jetstream, file, &folder).await.map_err(|e| refused(file, e))?;
            fetched.push(File { name: file.name.clone(), path, sha256: file.sha256.clone() });
        }
        job.files = Files::new(fetched);
        Ok(job)
    }

    /// Sends heartbeats while there is a job, enforces its time limits, and stops it when the agent ends.
    async fn keep_time(self, stop: Stop) {
        let mut beat = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let due = beat <= Instant::now() && self.link.is_up();
            let Some(sign) = self.look_after(&stop, due) else { continue };
            if due {
                beat = Instant::now() + Duration::from_secs(1);
                let sign = serde_json::to_vec(&sign).expect("a sign of life is JSON");
                let _ = self.link.client.publish(alive(&self.options.name), sign.into()).await;
            }
        }
    }

    /// Returns the heartbeat to send, if a job is running.
    fn look_after(&self, stop: &Stop, tell: bool) -> Option<Heartbeat> {
        let mut state = self.state();
        let trouble = state.journal_trouble.clone().or_else(|| self.outbox.trouble());
        if tell && trouble != state.told {
            state.told.clone_from(&trouble);
            if let Some(what) = &trouble {
                (self.tell)(AgentStatus::Trouble(what.clone()));
            }
        }
        if tell && state.journal_works {
            state.journal_trouble = None;
        }
        let epoch = state.home.state.epoch;
        let current = state.current.as_ref()?;
        if let Some(why) = stop.why() {
            current.stop.ask(&why);
        }
        let began = current.began?;
        if self.options.limits.max_time.is_some_and(|limit| Instant::now().saturating_duration_since(began) > limit) {
            current.stop.ask("the agent's --max-time is over");
        }
        Some(Heartbeat { run: current.run.clone(), epoch, trouble })
    }

    /// Reports when the connection to the broker breaks and returns. A broker that has forgotten its users
    /// gets a new join request.
    async fn stay_in(self, entry: JoinAttempt) {
        let mut up = self.link.up.clone();
        loop {
            if up.wait_for(|up| !*up).await.is_err() {
                return;
            }
            (self.tell)(AgentStatus::Away("the connection to the broker broke".into()));
            while tokio::time::timeout(Duration::from_secs(5), self.link.wait_up()).await.is_err() {
                let _ = entry.ask().await;
            }
            (self.tell)(AgentStatus::Back);
        }
    }
}
