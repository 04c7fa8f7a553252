//! Tests runs on several agents, each an engine in a thread, over a link that may deliver twice, out of order, or not
//! at all.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_experiment::lab::fleet::{
    AgentEvent, AgentOrder, AgentTerms, Fleet, Link, Member, PartOrder, carry_out, prepare, rebuild_run,
};
use lastdrop_experiment::lab::observers::Keeper;
use lastdrop_experiment::lab::{Lab, Observer};
use lastdrop_load::{AllowedNetworks, RecordedRequest};
use lastdrop_model::plan::{Pace, Replay};
use lastdrop_model::record::Record;
use lastdrop_model::{Arrival, Event, Kind, Load, Plan, Run, Slice, Verdict};
use lastdrop_store::{AgentRecord, RecordBody, Store};

/// A server that answers everything and counts it.
fn server() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("its address");
    let served = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&served);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            thread::spawn(move || {
                let (mut buffer, mut head) = ([0; 4096], Vec::new());
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    head.extend_from_slice(&buffer[..n]);
                    while let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") {
                        head.drain(..end + 4);
                        count.fetch_add(1, Ordering::SeqCst);
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                    }
                }
            });
        }
    });
    (address, served)
}

/// What happens to an agent's records on their way.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RecordDelivery {
    /// Each comes once, in order.
    Good,
    /// Each comes twice, and pairs of them in the wrong order.
    Twice,
    /// The agent dies after this many records.
    DiesAfter(u64),
    /// After this many records nothing is heard of the agent, until it has finished its part.
    SilentAfter(u64),
}

struct FakeLink {
    members: Vec<Member>,
    fates: Vec<RecordDelivery>,
    told: (Sender<AgentEvent>, Receiver<AgentEvent>),
    stop: Arc<AtomicBool>,
    /// All records as they were made.
    all: Arc<Mutex<Vec<(usize, Record)>>>,
    held: VecDeque<AgentEvent>,
}

impl FakeLink {
    fn new(weights: &[u32], fates: &[RecordDelivery]) -> FakeLink {
        let member = |(i, weight): (usize, &u32)| {
            let name = ["a", "b", "c", "d"][i].to_string();
            Member { name, weight: *weight, offset_us: 0, error_us: 50, address: None }
        };
        FakeLink {
            members: weights.iter().enumerate().map(member).collect(),
            fates: fates.to_vec(),
            told: mpsc::channel(),
            stop: Arc::default(),
            all: Arc::default(),
            held: VecDeque::new(),
        }
    }
}

impl Link for FakeLink {
    fn members(&self) -> &[Member] {
        &self.members
    }

    fn start(&mut self, _: &str, orders: Vec<AgentOrder>, _: Duration) -> Result<Instant, String> {
        let at = Instant::now() + Duration::from_millis(200);
        let mut parts = Vec::new();
        for order in orders {
            let part = PartOrder::decode(&order.payload)?;
            let terms = AgentTerms { allow: AllowedNetworks::loopback(), ..AgentTerms::default() };
            let files = order.files;
            let read = |name: &str| {
                let file = files.iter().find(|(n, _)| n == name).ok_or("not there")?;
                Ok(file.1.to_vec())
            };
            let prepared = prepare(&part, &terms, &read)?.starting(at);
            parts.push((order.member, part, terms, prepared));
        }
        for (member, part, terms, prepared) in parts {
            let (out, stop, fate, all) =
                (self.told.0.clone(), Arc::clone(&self.stop), self.fates[member], Arc::clone(&self.all));
            thread::spawn(move || {
                let (seq, dead) = (AtomicU64::new(0), AtomicBool::new(false));
                let own_stop = AtomicBool::new(false);
                let held = Mutex::new(Vec::new());
                let tell = |record: &Record| {
                    let n = seq.fetch_add(1, Ordering::SeqCst);
                    if matches!(fate, RecordDelivery::DiesAfter(most) if n >= most) {
                        dead.store(true, Ordering::SeqCst);
                        own_stop.store(true, Ordering::SeqCst);
                        return;
                    }
                    all.lock().expect("whole").push((member, record.clone()));
                    let told = AgentEvent::Record { member, epoch: 3, seq: n, bytes: record.encode() };
                    if matches!(fate, RecordDelivery::SilentAfter(most) if n >= most) {
                        if matches!(fate, RecordDelivery::SilentAfter(most) if n == most) {
                            let _ = out.send(AgentEvent::Lost { member });
                        }
                        held.lock().expect("whole").push(told);
                        return;
                    }
                    let _ = out.send(told);
                };
                let over = AtomicBool::new(false);
                let error = thread::scope(|scope| {
                    scope.spawn(|| {
                        while !over.load(Ordering::SeqCst) {
                            own_stop.fetch_or(stop.load(Ordering::SeqCst), Ordering::SeqCst);
                            thread::sleep(Duration::from_millis(10));
                        }
                    });
                    let done = carry_out(&part, prepared, &terms, &own_stop, &tell, None);
                    over.store(true, Ordering::SeqCst);
                    done.err()
                });
                let held = held.into_inner().expect("whole");
                if !held.is_empty() {
                    let _ = out.send(AgentEvent::Back { member });
                    held.into_iter().for_each(|told| drop(out.send(told)));
                }
                let last = match dead.load(Ordering::SeqCst) {
                    true => AgentEvent::Lost { member },
                    false => AgentEvent::Ended { member, epoch: 3, records: seq.load(Ordering::SeqCst), error },
                };
                let _ = out.send(last);
            });
        }
        Ok(at)
    }

    fn next(&mut self, within: Duration) -> Result<Option<AgentEvent>, String> {
        if let Some(told) = self.held.pop_front() {
            return Ok(Some(told));
        }
        let told = match self.told.1.recv_timeout(within) {
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            other => other.map_err(|e| e.to_string())?,
        };
        let AgentEvent::Record { member, epoch, seq, bytes } = told else { return Ok(Some(told)) };
        let again = |seq: u64, bytes: &[u8]| AgentEvent::Record { member, epoch, seq, bytes: bytes.to_vec() };
        if self.fates[member] == RecordDelivery::Twice {
            // The record after it, if it is there, comes first.
            if let Ok(next) = self.told.1.try_recv() {
                self.held.push_back(next);
            }
            self.held.push_back(again(seq, &bytes));
            self.held.push_back(again(seq, &bytes));
            return self.next(within);
        }
        Ok(Some(again(seq, &bytes)))
    }

    fn kept(&mut self) {}

    fn stop(&mut self, _: &str) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn leave(&mut self) {}
}

/// The seconds in the order reported.
#[derive(Default)]
struct Seconds(Vec<(u16, u32)>);

impl Observer for Seconds {
    fn on_event(&mut self, event: &Event<'_>) {
        if let Event::Second { slice } = event {
            self.0.push((slice.phase, slice.second));
        }
    }
}

/// Makes a run on a fleet that is stored.
fn kept_run(plan: &Plan, weights: &[u32], fates: &[RecordDelivery], store: &Store) -> Run {
    let stop = AtomicBool::new(false);
    let mut lab = Lab::new(&stop, vec![Box::new(Keeper::new(store.clone()))]);
    lab.observe = false;
    lab.carrier = Some(Box::new(Fleet::new(FakeLink::new(weights, fates))));
    lab.run(plan, "").expect("a run")
}

/// Makes a run on a fleet; also returns all records of its agents.
fn run(plan: &Plan, weights: &[u32], fates: &[RecordDelivery]) -> (Run, Vec<(usize, Record)>) {
    let stop = AtomicBool::new(false);
    let mut seconds = Seconds::default();
    let link = FakeLink::new(weights, fates);
    let all = Arc::clone(&link.all);
    let mut lab = Lab::new(&stop, vec![Box::new(&mut seconds)]);
    lab.observe = false;
    lab.carrier = Some(Box::new(Fleet::new(link)));
    let run = lab.run(plan, "").expect("a run");
    drop(lab);
    let told = seconds.0;
    assert!(told.is_sorted_by(|a, b| a < b), "each second once and in order: {told:?}");
    let records = all.lock().expect("whole").clone();
    (run, records)
}

fn plan(address: SocketAddr, load: Load, seconds: u64) -> Plan {
    let mut plan = Plan::new(format!("http://{address}/").parse().expect("valid"), 11);
    plan.phases[0].load = load;
    plan.phases[0].duration = Some(Duration::from_secs(seconds));
    plan.drain = Duration::from_secs(2);
    plan
}

#[test]
fn a_fleet_counts_what_the_server_counts_and_merges_what_its_agents_measured() {
    let (address, served) = server();
    let plan = plan(address, Load::open(300.0, Arrival::Poisson, 64), 2);
    let (run, records) = run(&plan, &[2, 1, 1], &[RecordDelivery::Good, RecordDelivery::Twice, RecordDelivery::Good]);
    let phase = &run.phases[0];
    let whole =
        lastdrop_load::schedule::DueCounter::of(&plan, 0, &lastdrop_load::share::Share::whole()).up_to(u64::MAX);
    assert_eq!(phase.requests.due, whole);
    assert_eq!((phase.requests.sent, phase.requests.answered), (whole, whole), "{:?}", phase.requests);
    assert_eq!(served.load(Ordering::SeqCst), whole);
    // The histogram equals the sum of all that the agents recorded.
    let mut sum = Slice::new(0, 0);
    for (_, record) in &records {
        if let Record::Second(slice) = record {
            sum.add(slice);
        }
    }
    let h = &sum.latencies[Kind::Response as usize];
    assert_eq!(phase.latency(Kind::Response, "count"), Some(h.count() as f64));
    for (name, q) in [("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999)] {
        assert_eq!(phase.latency(Kind::Response, name), Some(h.quantile(q) as f64), "{name}");
    }
    let by_agent: Vec<_> = run.agents.iter().map(|a| (a.name.as_str(), a.complete, a.requests.due)).collect();
    assert!(run.agents.iter().all(|a| a.complete && a.requests.due == a.requests.answered), "{by_agent:?}");
    assert_eq!(run.agents.iter().map(|a| a.requests.due).sum::<u64>(), whole);
    assert!(run.agents[0].requests.due.abs_diff(whole / 2) <= 1, "{by_agent:?}");
    assert_ne!(run.validity.verdict, Verdict::Invalid, "{:?}", run.validity);
    assert_eq!(run.generator.threads, 3);
}

#[test]
fn counted_requests_of_a_closed_loop_are_made_once() {
    let (address, served) = server();
    let mut plan = plan(address, Load::closed(5), 30);
    plan.phases[0].requests = Some(1001);
    plan.threads = 2;
    let (run, _) = run(&plan, &[1, 1], &[RecordDelivery::Twice, RecordDelivery::Good]);
    assert_eq!((run.phases[0].requests.answered, served.load(Ordering::SeqCst)), (1001, 1001));
    assert!(run.phases[0].duration_s < 30.0);
}

#[test]
fn what_a_lost_agent_did_not_tell_is_unsent_and_the_run_is_invalid() {
    let (address, served) = server();
    let plan = plan(address, Load::open(200.0, Arrival::Uniform, 64), 3);
    let (run, _) = run(&plan, &[1, 1], &[RecordDelivery::Good, RecordDelivery::DiesAfter(1)]);
    let r = &run.phases[0].requests;
    // Everything came due, as if no agent had been lost.
    assert_eq!(r.due, 600);
    let [a, b] = run.agents.as_slice() else { panic!("{:?}", run.agents) };
    assert!(a.complete && !b.complete);
    assert_eq!((a.requests.due, a.requests.answered, b.requests.due), (300, 300, 300));
    // It reported its first second, in which a hundred requests came due, or some more if the machine was busy.
    assert!(b.requests.sent >= 99 && b.requests.sent < 300, "{b:?}");
    assert_eq!(r.unsent, 600 - r.sent);
    assert_eq!(b.requests.unsent, r.unsent);
    assert!(served.load(Ordering::SeqCst) >= r.sent);
    assert_eq!(run.validity.verdict, Verdict::Invalid);
    let reason = &run.validity.reasons[0];
    assert_eq!(reason.rule, "agent-lost");
    assert!(reason.what.contains("agent b") && reason.what.contains("1 s"), "{}", reason.what);
}

#[test]
fn what_comes_too_late_is_unsent_until_the_run_is_put_together_again() {
    let (address, served) = server();
    let plan = plan(address, Load::open(200.0, Arrival::Uniform, 64), 4);
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&folder.path().join("runs.sqlite")).expect("a store");
    let first = kept_run(&plan, &[1, 1], &[RecordDelivery::Good, RecordDelivery::SilentAfter(1)], &store);
    let (r, [a, b]) = (&first.phases[0].requests, first.agents.as_slice()) else { panic!("{:?}", first.agents) };
    assert!(a.complete && !b.complete, "{b:?}");
    assert_eq!((r.due, r.due - r.sent, r.unsent), (800, b.requests.unsent, b.requests.unsent), "{r:?}");
    assert!(r.unsent >= 100, "a second of it was told without it: {r:?}");
    assert_eq!((first.validity.verdict, first.validity.reasons[0].rule.as_str()), (Verdict::Invalid, "agent-lost"));
    // Everything it sent is there.
    let whole = rebuild_run(&store, &first.id).expect("the store works").expect("it is another now");
    assert_eq!((whole.phases[0].requests.due, whole.phases[0].requests.answered), (800, served.load(Ordering::SeqCst)));
    assert!(whole.agents.iter().all(|a| a.complete && a.requests.answered == 400), "{:?}", whole.agents);
    assert_ne!(whole.validity.verdict, Verdict::Invalid, "{:?}", whole.validity);
    assert!(rebuild_run(&store, &first.id).expect("the store works").is_none(), "there is nothing more to it");
    // A record comes again: partial records do not replace a complete run.
    let again = AgentRecord { agent: "a".into(), epoch: 3, seq: 0, what: RecordBody::Last(None) };
    store.keep_agent_record(&first.id, &again).expect("kept");
    assert!(rebuild_run(&store, &first.id).expect("the store works").is_none());
    assert_eq!(store.load(&first.id).expect("kept").phases[0].requests.answered, whole.phases[0].requests.answered);
}

#[test]
fn what_a_lost_agent_did_not_tell_of_a_tape_is_unsent() {
    let (address, _) = server();
    let mut plan = plan(address, Load::open(200.0, Arrival::Uniform, 64), 30);
    (plan.phases[0].duration, plan.phases[0].requests) = (None, Some(1_000_000));
    // Bursts of fifty, which no rate describes.
    let mut tape = tempfile::NamedTempFile::new().expect("a file");
    for number in 1..=600 {
        let (due, target) = ((number - 1) / 50 * 250_000, format!("/{number}"));
        let played =
            RecordedRequest { due, request: 0, method: "GET".into(), target, host: None, who: 0, number, logged: None };
        lastdrop_load::tape_file::write(&played, &mut tape).expect("written");
    }
    tape.flush().expect("written");
    let path = Some(tape.path().into());
    plan.replay = Some(Replay { logs: Vec::new(), pace: Pace::Original { speed: 1.0 }, tape: path, usual: Vec::new() });
    let (run, _) = run(&plan, &[1, 1], &[RecordDelivery::Good, RecordDelivery::DiesAfter(1)]);
    let r = &run.phases[0].requests;
    let [a, b] = run.agents.as_slice() else { panic!("{:?}", run.agents) };
    assert_eq!((r.due, a.requests.due, a.requests.answered, b.requests.due), (600, 300, 300, 300), "{r:?}");
    assert!(!b.complete && b.requests.sent >= 50 && b.requests.unsent == 300 - b.requests.sent, "{b:?}");
    assert_eq!((r.unsent, a.played_up_to), (b.requests.unsent, None));
}

#[test]
fn whoever_wants_to_know_is_told_when_the_load_begins() {
    let (address, _) = server();
    let plan = plan(address, Load::closed(1), 1);
    let stop = AtomicBool::new(false);
    let begun = |carrier: Option<Box<dyn lastdrop_experiment::lab::Carrier>>| {
        let (tell, told) = mpsc::channel();
        let mut lab = Lab { carrier, begins: Some(tell), ..Lab::new(&stop, Vec::new()) };
        lab.observe = false;
        let before = Instant::now();
        lab.run(&plan, "").expect("a run");
        let (begins, over) = (told.recv().expect("a beginning"), Instant::now());
        let whole = Duration::from_secs(1);
        assert!(begins >= before && begins + whole <= over, "{:?} of {:?}", begins - before, over - before);
        begins - before
    };
    begun(None);
    // It begins 200 ms after its agents are ready.
    assert!(
        begun(Some(Box::new(Fleet::new(FakeLink::new(&[1], &[RecordDelivery::Good]))))) >= Duration::from_millis(200)
    );
}

#[test]
fn an_agent_goes_nowhere_that_it_was_not_allowed_to() {
    let (address, served) = server();
    let plan = plan(address, Load::closed(1), 1);
    let order = PartOrder::new(plan, vec![1], 0);
    let only = |network: &str| AgentTerms {
        allow: AllowedNetworks::only([network.parse().expect("valid")]),
        ..AgentTerms::default()
    };
    let nothing = |_: &str| Err("no files".to_string());
    let refused = prepare(&order, &only("10.0.0.0/8"), &nothing).expect_err("not allowed");
    assert!(refused.contains("--allow"), "{refused}");
    assert!(prepare(&order, &only("127.0.0.1"), &nothing).is_ok());
    let slow = AgentTerms { max_time: Some(Duration::from_millis(500)), ..only("127.0.0.1") };
    assert!(prepare(&order, &slow, &nothing).expect_err("too long").contains("--max-time"));
    assert_eq!(served.load(Ordering::SeqCst), 0);
}

#[test]
fn a_plan_cannot_read_files_of_an_agent() {
    let (address, _) = server();
    let mut plan = plan(address, Load::closed(1), 1);
    plan.requests[0].body = lastdrop_model::request::Body::File("/etc/hostname".into());
    let order = PartOrder::new(plan, vec![1], 0);
    let terms = AgentTerms { allow: AllowedNetworks::loopback(), ..AgentTerms::default() };
    let refused = prepare(&order, &terms, &|_| Err("it did not come along".into())).expect_err("no file");
    assert!(refused.contains("/etc/hostname") && refused.contains("come along"), "{refused}");
}
