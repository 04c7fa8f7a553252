//! An attacker who has the agent-token or has recorded messages gets nothing.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_nats::Subscriber;
use futures_util::StreamExt;

use super::{Broker, BrokerOptions};
use crate::agent::{AgentOptions, AgentStatus, JoinAttempt, MuteResponder, run as run_agent};
use crate::coordinator::{Fleet, StartOptions};
use crate::engine::{Engine, EngineError, Job, Limits, Sink, Start, Stop};
use crate::link::{Link, Login};
use crate::messages::{Clock, Reply};
use crate::order::{OrderKind, Refusal, SignedOrder};
use crate::participants::ask;
use crate::remote_run::RemoteRunEvent;
use crate::roster::{Agent, Assignment};
use crate::subjects::{JOINER, RECORDS, inbox};
use crate::tokens::Token;

const LONG: Duration = Duration::from_secs(50);

/// An engine that records its payload forty times.
struct Parrot;

impl Engine for Parrot {
    fn run(&mut self, job: &Job, _: Start, sink: &dyn Sink, _: &Stop) -> Result<(), EngineError> {
        for _ in 0..40 {
            sink.record(&job.payload).map_err(|e| EngineError(e.to_string()))?;
        }
        Ok(())
    }
}

struct RunningAgent {
    stop: Stop,
    told: Receiver<AgentStatus>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        self.stop.ask("the test is over");
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn broker(folder: &Path) -> Broker {
    let listen = "127.0.0.1:0".parse().expect("an address");
    Broker::start(&BrokerOptions { listen, folder: folder.join("broker"), version: "1".into() })
        .expect("is nats-server installed?")
}

fn agent(broker: &Broker, folder: &Path) -> RunningAgent {
    let options = AgentOptions {
        url: broker.url().into(),
        token: broker.token().agent_token(),
        name: "a".into(),
        folder: folder.join("a"),
        version: "1".into(),
        limits: Limits::default(),
        looks: Vec::new(),
        silence: Duration::from_secs(30),
        skew_us: 0,
        twice: false,
    };
    let stop = Stop::default();
    let ends = stop.clone();
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let tell = Arc::new(move |what| drop(tell.lock().expect("lock").send(what)));
    let thread = std::thread::spawn(move || {
        run_agent(&options, &mut Parrot, Arc::new(MuteResponder), &ends, tell).expect("an agent")
    });
    RunningAgent { stop, told, thread: Some(thread) }
}

fn the_agent(fleet: &Fleet) -> Agent {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(agent) = fleet.agents().ok().and_then(|agents| agents.into_iter().next()) {
            return agent;
        }
        assert!(Instant::now() < deadline, "the agent never came");
    }
}

fn order_for(agent: &Agent) -> SignedOrder {
    SignedOrder {
        run: "r1".into(),
        agent: agent.name.clone(),
        instance: agent.instance.clone(),
        version: "1".into(),
        sequence: agent.last_order + 1,
        expires_us: Clock::default().now_us() + 60_000_000,
        what: OrderKind::Stop { why: "enough".into() },
        payload_sha256: String::new(),
    }
}

/// Sends a message to a subject of an agent and returns its reply.
fn send(fleet: &Fleet, to: &str, message: &[u8]) -> Reply {
    fleet.driver.wait(ask(&fleet.link.client, to.into(), message, LONG)).expect("an answer")
}

/// Returns the reason why the message is refused.
fn refusal(fleet: &Fleet, to: &str, message: &[u8]) -> Refusal {
    match send(fleet, to, message) {
        Reply::Refused(refusal) => refusal,
        other => panic!("it was taken: {other:?}"),
    }
}

#[test]
fn orders_that_are_forged_sent_again_or_expired_are_refused_and_counted() {
    let folder = tempfile::tempdir().expect("folder");
    let broker = broker(folder.path());
    let running = agent(&broker, folder.path());
    let fleet = Fleet::connect(broker.url(), broker.token(), "1").expect("connected");
    let there = the_agent(&fleet);
    let key = broker.token().signing_key();
    let order = order_for(&there);
    let send = |message: &[u8]| send(&fleet, "ld.to.a.order", message);
    let refusal = |message: &[u8]| refusal(&fleet, "ld.to.a.order", message);
    let sealed = order.clone().seal(b"", &key);
    let mut tampered = sealed.clone();
    let at = tampered.windows(6).position(|w| w == b"enough").expect("the reason");
    tampered[at] = b'E';
    assert_eq!(refusal(&tampered), Refusal::Forged);
    let stranger = Token::new(b"another").expect("random");
    assert_eq!(refusal(&order.clone().seal(b"", &stranger.signing_key())), Refusal::Forged);
    assert_eq!(refusal(b"do it"), Refusal::Malformed);
    let expired = SignedOrder { expires_us: Clock::default().now_us() - 1, ..order.clone() };
    assert!(matches!(refusal(&expired.seal(b"", &key)), Refusal::Expired { .. }));
    // None of those messages used up the sequence number.
    assert!(matches!(send(&sealed), Reply::NotHere));
    assert!(matches!(refusal(&sealed), Refusal::Replayed { .. }));
    let counted = the_agent(&fleet).refused;
    assert_eq!(
        (counted.forged, counted.malformed, counted.expired, counted.replayed, counted.total()),
        (2, 1, 1, 1, 5)
    );
    // Neither a restarted agent nor a fresh agent of the same name takes it.
    drop(running);
    let running = agent(&broker, folder.path());
    assert_eq!(the_agent(&fleet).epoch, there.epoch + 1);
    assert!(matches!(refusal(&sealed), Refusal::Replayed { .. }));
    drop(running);
    std::fs::remove_dir_all(folder.path().join("a")).expect("removed");
    let _running = agent(&broker, folder.path());
    assert_ne!(the_agent(&fleet).instance, there.instance);
    assert!(matches!(refusal(&sealed), Refusal::Misdirected(_)));
}

#[test]
fn a_question_that_is_forged_or_sent_again_is_refused_and_counted() {
    let folder = tempfile::tempdir().expect("folder");
    let broker = broker(folder.path());
    let running = agent(&broker, folder.path());
    let fleet = Fleet::connect(broker.url(), broker.token(), "1").expect("connected");
    let there = the_agent(&fleet);
    let key = broker.token().signing_key();
    let question =
        SignedOrder { run: "c1".into(), sequence: 1, what: OrderKind::Ask { number: 1 }, ..order_for(&there) };
    let send = |to: &str, message: &[u8]| send(&fleet, to, message);
    let refusal = |to: &str, message: &[u8]| refusal(&fleet, to, message);
    let sealed = question.clone().seal(b"what", &key);
    let stranger = Token::new(b"another").expect("random");
    assert_eq!(refusal("ld.to.a.ask", &question.clone().seal(b"what", &stranger.signing_key())), Refusal::Forged);
    // A question is not accepted as an order, nor an order as a question, although the same key signed both.
    assert_eq!(refusal("ld.to.a.order", &sealed), Refusal::Malformed);
    assert_eq!(refusal("ld.to.a.ask", &order_for(&there).seal(b"", &key)), Refusal::Malformed);
    assert!(matches!(send("ld.to.a.ask", &sealed), Reply::Taken));
    assert!(matches!(refusal("ld.to.a.ask", &sealed), Refusal::Replayed { .. }));
    let leave = SignedOrder { sequence: 2, what: OrderKind::Leave, ..question.clone() };
    assert!(matches!(send("ld.to.a.ask", &leave.seal(b"", &key)), Reply::Stopping));
    // A finished conversation cannot begin again, not even after the agent restarts.
    assert!(matches!(refusal("ld.to.a.ask", &sealed), Refusal::Replayed { .. }));
    let counted = the_agent(&fleet).refused;
    // The question itself was declined, because this agent answers none.
    assert_eq!((counted.forged, counted.malformed, counted.replayed, counted.declined), (1, 2, 2, 1));
    drop(running);
    let _running = agent(&broker, folder.path());
    the_agent(&fleet);
    let later = SignedOrder { sequence: 9, ..question };
    assert!(matches!(refusal("ld.to.a.ask", &later.seal(b"what", &key)), Refusal::Replayed { .. }));
}

#[test]
fn an_agent_publishes_and_hears_its_own_subjects_only() {
    let folder = tempfile::tempdir().expect("folder");
    let broker = broker(folder.path());
    let fleet = Fleet::connect(broker.url(), broker.token(), "1").expect("connected");
    let entry = JoinAttempt {
        url: broker.url().into(),
        token: broker.token().agent_token(),
        name: "b".into(),
        password: "ab".repeat(32),
    };
    let joiner = Login {
        url: broker.url().into(),
        user: JOINER.into(),
        password: entry.token.password(),
        certificate: *entry.token.certificate(),
        inbox: inbox(JOINER),
    };
    let first = |heard: Subscriber| async move {
        let mut heard = heard;
        let message = tokio::time::timeout(LONG, heard.next()).await.expect("in time").expect("a message");
        (message.subject.to_string(), heard)
    };
    fleet.driver.wait(async {
        let client = &fleet.link.client;
        let heard = client.subscribe("ld.>").await.expect("subscribed");
        client.flush().await.expect("flushed");
        let b = entry.enter().await.expect("in");
        let (knock, heard) = first(heard).await;
        assert_eq!(knock, "ld.join");
        let joiner = Link::open(&joiner).await.expect("in");
        let forbidden = [
            "ld.to.a.order",
            "ld.to.b.ask",
            "ld.answer.a.c.0.1.0.1",
            "ld.who",
            "ld.alive.a",
            "ld.record.r.a.1.0.0.1",
            "ld.file.00.0",
            "$JS.API.STREAM.DELETE.LD_RECORDS",
            "$JS.API.CONSUMER.DURABLE.CREATE.LD_RECORDS.x",
        ];
        for subject in forbidden {
            b.client.publish(subject, "".into()).await.expect("sent");
            joiner.client.publish(subject, "".into()).await.expect("sent");
        }
        joiner.client.publish("ld.alive.b", "".into()).await.expect("sent");
        joiner.client.flush().await.expect("flushed");
        b.client.publish("ld.record.r.b.1.0.0.1", "".into()).await.expect("sent");
        b.client.flush().await.expect("flushed");
        // Messages of one connection keep their order, so no forbidden message arrived before.
        let (record, heard) = first(heard).await;
        assert_eq!(record, "ld.record.r.b.1.0.0.1");
        fleet.link.jetstream.get_stream(RECORDS).await.expect("still there");
        // Nor does it receive messages for others.
        let own = b.client.subscribe("ld.to.b.ping").await.expect("subscribed");
        let mut others = Vec::new();
        for subject in
            ["ld.to.a.order", "ld.to.>", "ld.record.>", "ld.>", "_INBOX.>", "_INBOX_a.>", "_INBOX_joiner.>", ">"]
        {
            others.push(b.client.subscribe(subject).await.expect("asked"));
        }
        // When this message comes back, the broker has processed the subscriptions before it; a flush only
        // hands data to the system.
        b.client.publish("ld.record.r.b.1.0.0.2", "".into()).await.expect("sent");
        b.client.flush().await.expect("flushed");
        assert_eq!(first(heard).await.0, "ld.record.r.b.1.0.0.2");
        for subject in
            ["ld.to.a.order", "ld.record.r.a.1.0.0.1", "_INBOX.x", "_INBOX_a.x", "_INBOX_joiner.x", "ld.to.b.ping"]
        {
            client.publish(subject, "".into()).await.expect("sent");
        }
        assert_eq!(first(own).await.0, "ld.to.b.ping");
        for mut other in others {
            assert!(
                tokio::time::timeout(Duration::from_millis(20), other.next()).await.is_err(),
                "it hears what it may not"
            );
        }
    });
}

#[test]
fn a_broker_that_is_full_is_said_and_keeps_what_it_has_acknowledged() {
    let folder = tempfile::tempdir().expect("folder");
    let broker = broker(folder.path());
    let running = agent(&broker, folder.path());
    let fleet = Fleet::connect(broker.url(), broker.token(), "1").expect("connected");
    let limit = |max_bytes| {
        let jetstream = &fleet.link.jetstream;
        fleet.driver.wait(async {
            let stream = jetstream.get_stream(RECORDS).await.expect("there");
            let config = async_nats::jetstream::stream::Config { max_bytes, ..stream.cached_info().config.clone() };
            jetstream.update_stream(config).await.expect("updated");
        });
    };
    // Room for a few records.
    limit(20_000);
    let assignment = Assignment { agent: the_agent(&fleet), payload: vec![b'x'; 2_000], files: Vec::new() };
    let mut flight = fleet.start("r1", vec![assignment], &StartOptions::default()).expect("started");
    let deadline = Instant::now() + LONG;
    loop {
        let told = running.told.recv_timeout(deadline.saturating_duration_since(Instant::now())).expect("it says so");
        if matches!(&told, AgentStatus::Trouble(what) if what.contains("does not take records")) {
            break;
        }
    }
    limit(-1);
    let mut seqs = Vec::new();
    while !flight.is_over() {
        assert!(Instant::now() < deadline + LONG, "it has not come: {seqs:?}");
        match flight.next(Duration::from_millis(200)).expect("a connection") {
            Some(RemoteRunEvent::Arrived(arrived)) => {
                assert!(arrived.bytes == [b'x'; 2_000]);
                flight.commit(&arrived.id);
                seqs.push(arrived.id.seq);
            }
            Some(RemoteRunEvent::Ended(end)) => flight.commit(&end.id),
            _ => {}
        }
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (0..40).collect::<Vec<_>>());
}
