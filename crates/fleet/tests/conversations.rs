//! Questions to agents and their answers: each question acts once despite lost messages, and abandoned
//! conversations end.

// Agents and brokers are processes of the tests.
#[allow(clippy::disallowed_methods)]
mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{AgentThread, PATIENCE, World, agents, until};
use lastdrop_fleet::{Agent, Answerer, AskError, Conversation, ConversationEnd, EngineError, Fleet, Responder};
use nix::sys::signal::Signal;

#[test]
#[ignore = "the body of agents that the other tests start as processes"]
fn an_agent_as_a_process() {
    common::agent_process();
}

/// Answers with the question itself, and reports its end.
struct Echo {
    asked: Arc<AtomicU32>,
    ended: Mutex<Sender<ConversationEnd>>,
}

struct Voice {
    asked: Arc<AtomicU32>,
    ended: Sender<ConversationEnd>,
}

impl Responder for Echo {
    fn begin(&self, _: &str) -> Box<dyn Answerer> {
        let ended = self.ended.lock().expect("lock").clone();
        Box::new(Voice { asked: Arc::clone(&self.asked), ended })
    }
}

impl Answerer for Voice {
    fn answer(&mut self, question: &[u8]) -> Result<Vec<u8>, EngineError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let text = String::from_utf8_lossy(question);
        match text.split_once(' ') {
            Some(("large", bytes)) => Ok(vec![b'x'; bytes.parse().expect("a number")]),
            // Waits until this time has passed and this many questions were asked.
            Some(("slow", words)) => {
                let (ms, count) = words.split_once(' ').expect("two numbers");
                std::thread::sleep(Duration::from_millis(ms.parse().expect("a number")));
                let count: u32 = count.parse().expect("a number");
                until("other questions", || (self.asked.load(Ordering::SeqCst) >= count).then_some(()));
                Ok(b"late".to_vec())
            }
            Some(("refuse", why)) => Err(EngineError(why.into())),
            Some(("break", why)) => panic!("{why}"),
            _ => Ok(question.to_vec()),
        }
    }

    fn end(&mut self, why: &ConversationEnd) -> Option<String> {
        let _ = self.ended.send(why.clone());
        None
    }
}

struct Scene {
    _agent: AgentThread,
    fleet: Fleet,
    agent: Agent,
    asked: Arc<AtomicU32>,
    ended: Receiver<ConversationEnd>,
    world: World,
}

impl Scene {
    fn new(silence: Duration) -> Scene {
        let world = World::new();
        let (asked, (send, ended)) = (Arc::new(AtomicU32::new(0)), channel());
        let echo = Echo { asked: Arc::clone(&asked), ended: Mutex::new(send) };
        let mut options = world.options("a");
        options.silence = silence;
        options.skew_us = 7_000_000;
        let thread = AgentThread::answering(options, Arc::new(echo));
        let fleet = world.fleet();
        let agent = agents(&fleet, 1).remove(0);
        Scene { _agent: thread, fleet, agent, asked, ended, world }
    }

    fn converse(&self) -> Conversation {
        self.fleet.converse(&self.agent).expect("a conversation")
    }
}

#[test]
fn each_question_has_its_answer_however_large_or_late_and_a_refusal_is_counted() {
    let scene = Scene::new(PATIENCE);
    let (one, other) = (scene.converse(), scene.converse());
    let ask = |of: &Conversation, text: &str| of.ask(text.as_bytes(), PATIENCE);
    assert_eq!(ask(&one, "hello"), Ok(b"hello".to_vec()));
    assert_eq!(ask(&one, "large 2500000").map(|a| a.len()), Ok(2_500_000));
    // The question is repeated meanwhile and acts once; another conversation does not wait for it.
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| ask(&one, "slow 2500 4"));
        until("the question to be taken", || (scene.asked.load(Ordering::SeqCst) == 3).then_some(()));
        assert_eq!(ask(&other, ""), Ok(Vec::new()));
        assert_eq!(slow.join().expect("asked"), Ok(b"late".to_vec()));
    });
    assert_eq!(scene.asked.load(Ordering::SeqCst), 4);
    for (question, why) in [("refuse no such server", "no such server"), ("break now", "answering it broke")] {
        match ask(&one, question) {
            Err(AskError::Refused { agent, why: refusal }) => {
                assert!(agent == "a" && refusal.to_string().contains(why), "{refusal}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ask(&one, "still there"), Ok(b"still there".to_vec()));
    assert_eq!(agents(&scene.fleet, 1)[0].refused.declined, 2);
    assert_eq!(one.ask(&vec![0; 300 << 10], PATIENCE), Err(AskError::TooLarge { bytes: 300 << 10 }));
    drop(one);
    assert_eq!(scene.ended.recv_timeout(PATIENCE), Ok(ConversationEnd::Left));
}

#[test]
fn a_broker_that_is_killed_costs_neither_the_question_nor_the_conversation() {
    let scene = Scene::new(PATIENCE);
    let one = scene.converse();
    assert_eq!(one.ask(b"before", PATIENCE), Ok(b"before".to_vec()));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| one.ask(b"slow 1500 2", PATIENCE));
        until("the question to be taken", || (scene.asked.load(Ordering::SeqCst) == 2).then_some(()));
        scene.world.signal(Signal::SIGKILL);
        assert_eq!(slow.join().expect("asked"), Ok(b"late".to_vec()));
    });
    assert_eq!(one.ask(b"after", PATIENCE), Ok(b"after".to_vec()));
    assert_eq!(scene.asked.load(Ordering::SeqCst), 3);
}

#[test]
fn a_conversation_that_nobody_leads_any_more_ends_by_itself() {
    // Shorter than the interval of keep-alive messages.
    let scene = Scene::new(Duration::from_millis(600));
    let one = scene.converse();
    assert_eq!(one.ask(b"hello", PATIENCE), Ok(b"hello".to_vec()));
    assert!(matches!(scene.ended.recv_timeout(PATIENCE), Ok(ConversationEnd::Silent(_))));
    assert_eq!(one.ask(b"hello?", PATIENCE), Err(AskError::Ended { agent: "a".into() }));
    assert_eq!(scene.asked.load(Ordering::SeqCst), 1);
}

#[test]
fn an_agent_that_ends_says_so_and_one_that_is_killed_is_lost_by_name() {
    let Scene { _agent: thread, fleet, agent, ended, world, .. } = Scene::new(PATIENCE);
    let one = fleet.converse(&agent).expect("a conversation");
    assert_eq!(one.ask(b"hello", PATIENCE), Ok(b"hello".to_vec()));
    drop(thread);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(ConversationEnd::Agent));
    for _ in 0..2 {
        assert_eq!(one.ask(b"hello?", PATIENCE), Err(AskError::Ended { agent: "a".into() }));
    }
    let killed = world.process("b");
    let agent = agents(&fleet, 1).remove(0);
    let other = fleet.converse(&agent).expect("a conversation").with_patience(Duration::from_secs(3));
    assert!(matches!(other.ask(b"hello", PATIENCE), Err(AskError::Refused { .. })));
    killed.signal(Signal::SIGKILL);
    match other.ask(b"hello?", PATIENCE) {
        Err(e @ AskError::Lost { .. }) => assert!(e.to_string().starts_with("agent b: it is lost"), "{e}"),
        other => panic!("{other:?}"),
    }
}
