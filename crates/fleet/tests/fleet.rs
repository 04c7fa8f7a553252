//! A whole fleet on this machine, with a real nats-server and processes that are killed during runs.

// Agents and brokers are processes of the tests.
#[allow(clippy::disallowed_methods)]
mod common;

use std::time::{Duration, SystemTime};

use common::{
    AgentThread, Count, PATIENCE, RunLog, VERSION, World, agent_process, agents, assignments, broker_in, until,
};
use lastdrop_fleet::{AgentStatus, Fleet, FleetError, LinkError, StartOptions, Token, choose};
use nix::sys::signal::Signal;

#[test]
#[ignore = "the body of agents that the other tests start as processes"]
fn an_agent_as_a_process() {
    agent_process();
}

#[test]
fn each_record_of_each_agent_comes_once_with_files_parts_and_clocks() {
    let world = World::new();
    let skewed = |name: &str, skew_us| {
        let mut options = world.options(name);
        options.skew_us = skew_us;
        options.looks = vec!["nginx".into()];
        AgentThread::start(options)
    };
    let _agents = [skewed("a", 5_000_000), skewed("b", -5_000_000)];
    let fleet = world.fleet();
    let there = agents(&fleet, 2);
    for (agent, skew) in there.iter().zip([5_000_000, -5_000_000]) {
        let off = (agent.offset_us - skew).unsigned_abs();
        assert!(off <= agent.error_us, "{}: {} ± {}", agent.name, agent.offset_us, agent.error_us);
        assert!(
            agent.cores > 0 && agent.version == VERSION && agent.address == "127.0.0.1" && agent.looks == ["nginx"]
        );
    }
    // More than two messages large.
    let count = Count { records: 20, every_ms: 5, large: Some((7, 2_500_000)) };
    let mut assignments = assignments(&there, &count);
    for assignment in &mut assignments {
        let mut numbers = b"1,2,3\n".to_vec();
        numbers.resize(1_300_000, b'x');
        assignment.files = vec![("numbers.csv".into(), numbers.into())];
        // A payload too large for an order.
        assignment.payload.resize(2_000_000, b' ');
    }
    let mut flight = fleet.start("r1", assignments, &StartOptions::default()).expect("started");
    let now_us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros() as i64;
    assert!((flight.started_us() - now_us).abs() < 60_000_000);
    let mut log = RunLog::default();
    log.follow(&mut flight, |_, flight| flight.is_over());
    log.is_whole(&["a", "b"], &count);
    assert_eq!(log.ends.iter().map(|e| (e.records, e.error.clone())).collect::<Vec<_>>(), [(20, None), (20, None)]);
    flight.close();
    until("the stream to be empty", || fleet.waiting().expect("answered").is_empty().then_some(()));
    // The agents stay for the next run.
    let there = agents(&fleet, 2);
    let chosen = choose(&there, "b*2").expect("there");
    let count = Count { records: 3, every_ms: 0, large: None };
    let mut flight = fleet
        .start("r2", common::assignments(&[chosen[0].agent.clone()], &count), &StartOptions::default())
        .expect("started");
    let mut log = RunLog::default();
    log.follow(&mut flight, |_, flight| flight.is_over());
    log.is_whole(&["b"], &count);
}

#[test]
fn a_broker_that_is_killed_comes_back_and_nothing_is_missing() {
    let world = World::new();
    let _agents = [world.agent("a"), world.agent("b")];
    let fleet = world.fleet();
    let count = Count { records: 60, every_ms: 25, large: Some((30, 1_500_000)) };
    let mut flight =
        fleet.start("r1", assignments(&agents(&fleet, 2), &count), &StartOptions::default()).expect("started");
    let mut log = RunLog::default();
    log.follow(&mut flight, |log, _| log.records.len() > 20);
    world.signal(Signal::SIGKILL);
    log.follow(&mut flight, |_, flight| flight.is_over());
    log.is_whole(&["a", "b"], &count);
    assert!(
        log.other.iter().any(|o| o.contains("BrokerAway")) && !log.other.iter().any(|o| o.contains("Lost")),
        "{:?}",
        log.other
    );
}

#[test]
fn a_broker_that_is_ended_and_started_again_is_the_same_fleet() {
    let world = World::new();
    let agent = world.agent("a");
    let fleet = world.fleet();
    let count = Count { records: 40, every_ms: 25, large: None };
    let mut flight =
        fleet.start("r1", assignments(&agents(&fleet, 1), &count), &StartOptions::default()).expect("started");
    let mut log = RunLog::default();
    log.follow(&mut flight, |log, _| log.records.len() > 5);
    let World { broker, folder } = world;
    let (url, token) = (broker.url().to_owned(), broker.token().to_string());
    drop(broker);
    let broker = broker_in(folder.path(), url.strip_prefix("tls://").expect("an address"));
    assert_eq!((broker.url(), broker.token().to_string()), (url.as_str(), token));
    log.follow(&mut flight, |_, flight| flight.is_over());
    log.is_whole(&["a"], &count);
    drop(agent);
}

#[test]
fn what_a_killed_agent_has_written_comes_with_its_next_life() {
    let world = World::new();
    let mut process = world.process("a");
    let fleet = world.fleet();
    let count = Count { records: 1_000, every_ms: 20, large: None };
    let how = StartOptions { patience: Duration::from_secs(3), ..StartOptions::default() };
    let mut flight = fleet.start("r1", assignments(&agents(&fleet, 1), &count), &how).expect("started");
    let mut log = RunLog::default();
    log.follow(&mut flight, |log, _| log.records.len() >= 5);
    // From now on the broker takes no records.
    world.signal(Signal::SIGSTOP);
    process.says("recorded 40");
    process.signal(Signal::SIGKILL);
    process.wait();
    world.signal(Signal::SIGCONT);
    log.follow(&mut flight, |log, _| log.other.iter().any(|o| o.contains("Lost")));
    assert!(!flight.is_over());
    let _again = world.process("a");
    log.follow(&mut flight, |_, flight| flight.is_over());
    let [end] = &log.ends[..] else { panic!("one end: {:?}", log.ends) };
    assert!(end.records > 40 && end.error.as_ref().is_some_and(|e| e.contains("killed")), "{end:?}");
    log.is_whole(&["a"], &Count { records: end.records, ..count });
    assert!(log.other.iter().any(|o| o.contains("Back")), "{:?}", log.other);
    // The journal is removed once the broker has all of it.
    let journals = world.folder.path().join("a/journal");
    until("the journal to be removed", || std::fs::read_dir(&journals).expect("there").next().is_none().then_some(()));
}

#[test]
fn an_agent_that_is_told_to_end_publishes_what_it_has_first() {
    let world = World::new();
    let mut process = world.process("a");
    let fleet = world.fleet();
    let count = Count { records: 1_000, every_ms: 20, large: None };
    let mut flight =
        fleet.start("r1", assignments(&agents(&fleet, 1), &count), &StartOptions::default()).expect("started");
    process.says("recorded 10");
    process.signal(Signal::SIGTERM);
    assert!(process.wait().success());
    let mut log = RunLog::default();
    log.follow(&mut flight, |_, flight| flight.is_over());
    assert!(log.ends[0].records > 10 && log.ends[0].error.as_deref() == Some("SIGTERM"), "{:?}", log.ends);
    log.is_whole(&["a"], &Count { records: log.ends[0].records, ..count });
}

#[test]
fn a_coordinator_that_is_gone_is_taken_over_from_where_it_had_committed() {
    let world = World::new();
    let _agents = [world.agent("a"), world.agent("b")];
    // More than they get to before they are stopped, on a busy machine, too.
    let count = Count { records: 2_000, every_ms: 25, large: None };
    let mut log = RunLog::default();
    {
        let fleet = world.fleet();
        let mut flight =
            fleet.start("r1", assignments(&agents(&fleet, 2), &count), &StartOptions::default()).expect("started");
        log.follow(&mut flight, |log, _| log.records.len() > 20);
        // This record was handed over but never committed, so its commit is lost with the coordinator.
        until("one more", || match flight.next(Duration::from_secs(1)).expect("a connection") {
            Some(lastdrop_fleet::RemoteRunEvent::Arrived(_)) => Some(()),
            _ => None,
        });
    }
    let fleet = world.fleet();
    let have: Vec<_> = log.records.keys().cloned().collect();
    let mut flight = fleet.resume("r1", &["a".into(), "b".into()], &have, &StartOptions::default()).expect("resumed");
    log.follow(&mut flight, |log, _| log.records.len() > 40);
    flight.stop("enough");
    log.follow(&mut flight, |_, flight| flight.is_over());
    assert_eq!(log.ends.iter().map(|e| e.error.as_deref()).collect::<Vec<_>>(), [Some("enough"); 2]);
    for end in &log.ends {
        let records = log.records.keys().filter(|id| id.agent == end.id.agent).count() as u64;
        assert_eq!(records, end.records, "{}", end.id.agent);
    }
}

#[test]
fn records_that_nobody_waited_for_are_there_later() {
    let world = World::new();
    let _agent = world.agent("a");
    let count = Count { records: 10, every_ms: 10, large: None };
    let fleet = world.fleet();
    let flight = fleet.start("r1", assignments(&agents(&fleet, 1), &count), &StartOptions::default()).expect("started");
    flight.close();
    // Ten records and the final report.
    until("all of it to wait", || {
        fleet.waiting().expect("answered").iter().find(|w| w.run == "r1" && w.messages == 11).map(drop)
    });
    let mut flight = fleet.resume("r1", &["a".into()], &[], &StartOptions::default()).expect("resumed");
    let mut log = RunLog::default();
    log.follow(&mut flight, |_, flight| flight.is_over());
    log.is_whole(&["a"], &count);
}

#[test]
fn a_run_that_one_agent_cannot_do_starts_nowhere() {
    let world = World::new();
    let (_a, b) = (world.agent("a"), world.agent("b"));
    let fleet = world.fleet();
    let there = agents(&fleet, 2);
    let count = Count { records: 1, every_ms: 0, large: None };
    let mut assignments = assignments(&there, &count);
    assignments[1].payload = b"nonsense".to_vec();
    let error = fleet.start("r1", assignments, &StartOptions::default()).expect_err("b cannot").to_string();
    assert!(error.contains("agent b: no count: "), "{error}");
    assert!(matches!(b.told.recv_timeout(PATIENCE), Ok(AgentStatus::Joined)));
    assert!(matches!(b.told.recv_timeout(PATIENCE), Ok(AgentStatus::Refused(_))));
    // The other agent has discarded the run, and both are free.
    until("both to be free", || agents(&fleet, 2).iter().all(|a| a.busy.is_none()).then_some(()));
    assert_eq!(agents(&fleet, 2)[1].refused.declined, 1);
    assert!(fleet.waiting().expect("answered").is_empty());
}

#[test]
fn another_version_is_refused_by_name() {
    let world = World::new();
    let _agent = world.agent("a");
    let fleet = Fleet::connect(world.broker.url(), world.broker.token(), "9.9.9").expect("connected");
    let there = agents(&fleet, 1);
    let count = Count { records: 1, every_ms: 0, large: None };
    let error = fleet
        .start("r1", assignments(&there, &count), &StartOptions::default())
        .expect_err("another version")
        .to_string();
    assert!(error.contains("the coordinator is lastdrop 9.9.9, the agent 1.0.0-test"), "{error}");
    assert_eq!(agents(&fleet, 1)[0].refused.other_version, 1);
}

#[test]
fn a_token_of_another_fleet_and_an_agents_token_open_nothing() {
    let world = World::new();
    // The same certificate with another secret, then another certificate.
    let mut text = world.broker.token().to_string();
    let wrong = if text.as_bytes()[10] == b'A' { "B" } else { "A" };
    text.replace_range(10..11, wrong);
    let stranger = Token::parse(&text).expect("a token");
    let connected = |token: &Token| Fleet::connect(world.broker.url(), token, VERSION).expect_err("a stranger");
    assert!(matches!(connected(&stranger), FleetError::Link(LinkError::NotWelcome(_))));
    let other = Token::new(b"another certificate").expect("random");
    assert!(matches!(connected(&other), FleetError::Link(LinkError::OtherCertificate(_))));
    let agents = world.broker.token().agent_token().to_string();
    assert!(Token::parse(&agents).expect_err("no token").to_string().contains("only lets agents join"));
}

/// Follows a run with these records on an agent whose disk has no room for the large one.
fn told_of_a_full_disk(count: &Count) -> RunLog {
    let world = World::new();
    let _process = world.cramped("a", 16 << 10);
    let fleet = world.fleet();
    let mut flight =
        fleet.start("r1", assignments(&agents(&fleet, 1), count), &StartOptions::default()).expect("started");
    let mut log = RunLog::default();
    log.follow(&mut flight, |_, flight| flight.is_over());
    log.is_whole(&["a"], count);
    log
}

#[test]
fn a_full_disk_of_an_agent_is_said_and_its_records_come_all_the_same() {
    let log = told_of_a_full_disk(&Count { records: 80, every_ms: 40, large: Some((5, 20_000)) });
    assert!(log.other.iter().any(|o| o.contains("journal cannot be written")), "{:?}", log.other);
}

#[test]
fn a_full_disk_is_said_also_by_a_job_that_is_over_before_a_sign_of_life() {
    let log = told_of_a_full_disk(&Count { records: 3, every_ms: 1, large: Some((1, 20_000)) });
    let said = log.other.iter().filter(|o| o.contains("journal cannot be written")).count();
    assert_eq!(said, 1, "{:?}", log.other);
}

#[test]
fn a_name_belongs_to_who_is_there_and_is_free_when_it_has_gone() {
    let world = World::new();
    let first = world.agent("a");
    assert_eq!(first.told.recv_timeout(PATIENCE), Ok(AgentStatus::Joined));
    let mut options = world.options("a");
    options.folder = world.folder.path().join("elsewhere");
    let stop = lastdrop_fleet::Stop::default();
    let refused = lastdrop_fleet::run_agent(
        &options,
        &mut common::Counter,
        std::sync::Arc::new(lastdrop_fleet::MuteResponder),
        &stop,
        std::sync::Arc::new(|_| {}),
    );
    assert!(refused.is_err_and(|e| e.to_string().contains("there is one of that name")));
    drop(first);
    let second = AgentThread::start(options);
    assert_eq!(second.told.recv_timeout(PATIENCE), Ok(AgentStatus::Joined));
}
