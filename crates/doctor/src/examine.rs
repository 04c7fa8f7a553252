//! The experiments, and what they leave behind.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_diagnose::findings::suspicion;
use lastdrop_diagnose::fold;
use lastdrop_lab::{Lab, LabError};
use lastdrop_looks::databases::DatabaseOptions;
use lastdrop_model::examination::{Examination, GeneratorSeen, Inside, LoadShape, Step, StepKind};
use lastdrop_model::plan::{KeepAlive, Load, Plan};
use lastdrop_model::{Event, Kind, Look, Run};
use lastdrop_probe::host::{self, HostMemory};
use lastdrop_probe::namespace::Namespace;
use lastdrop_server::ServerRef;

use crate::behind::{Following, Member, Members, endpoint, follow, named};
use crate::beside::Beside;
use crate::growth::Readings;
use crate::inside;
use crate::settings::examined;

/// How much a server may be disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Whole,
    /// Below the knee: a few users.
    Gentle,
    /// No load of ours at all.
    Observe,
}

/// What is to be found out.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    pub servers: &'a [ServerRef],
    /// The load that is asked about: of its measured phase.
    pub plan: Plan,
    pub manner: Manner,
    /// Other people's traffic does not mind.
    pub live: bool,
    /// How databases of the chain are asked.
    pub databases: DatabaseOptions,
    /// How long the load is watched that is asked about.
    pub time: Duration,
}

/// How long the other steps last, in parts of the time of the main one, and at least.
const ALONE: f64 = 0.35;
const FEW: f64 = 0.35;
const BEYOND: f64 = 0.5;
const CONTRAST: f64 = 0.4;
const SHORTEST: Duration = Duration::from_secs(2);
/// Tracing and profiling take as long as they take.
const INSIDE: Duration = Duration::from_secs(7);
const VISITOR_LOOKS: u32 = 20;
const VISITOR_PAUSE: Duration = Duration::from_millis(50);
const FEW_USERS: u32 = 4;
const GENTLE_USERS: u32 = 2;
/// A queue that requests have left who gave up takes a while to empty.
const MOST_SETTLING: Duration = Duration::from_secs(6);

impl Order<'_> {
    fn part(&self, of: f64) -> Duration {
        self.time.mul_f64(of).max(SHORTEST)
    }
}

/// Makes the experiments. What was seen until then comes back also when the user stops it.
///
/// # Errors
/// When a server is not found, or no load can be put on at all.
pub fn examine(lab: &mut Lab<'_>, order: &Order<'_>) -> Result<Examination, LabError> {
    let plan = &order.plan;
    lab.observe = false;
    // A doctor's runs differ from each other: nothing is repeated for the sake of comparing them.
    lab.repeats = 0;
    let members = named(order.servers, plan)?;
    let to = endpoint(plan);
    let mut unasked = None;
    let manner = match order.manner {
        Manner::Whole if !order.live => match visitors(lab, &members) {
            Some(seen) => {
                unasked = Some(format!(
                    "others use the server ({seen}): only a few users of ours; --live loads it all the same"
                ));
                Manner::Gentle
            }
            None => Manner::Whole,
        },
        other => other,
    };
    let order = &Order { manner, ..order.clone() };
    let plan = &order.plan;
    let (_, is_open) = users_of(plan);
    let mut all = Examination {
        url: plan.url.to_string(),
        tls: plan.url.tls,
        processors: host::processors(),
        memory_bytes: HostMemory::now().map_or(0, |m| m.total),
        load: match (order.manner, is_open) {
            (Manner::Observe, _) => LoadShape::Foreign,
            (_, true) => LoadShape::Open,
            _ => LoadShape::Closed,
        },
        ..Examination::default()
    };
    if let Some(words) = unasked {
        lab.tell(&Event::Experiment { what: words.as_str().into() });
        all.notes.push(words);
    }
    // The first step is also there to find out who is behind whom.
    let following = Following::start(members, plan);
    lab.tell(&Event::Experiment { what: "one user alone, and who is behind whom".into() });
    let alone = match order.manner {
        Manner::Observe => {
            wait(lab, Duration::from_secs(3));
            Ok(None)
        }
        _ => put_on(lab, plan, StepKind::Alone, Some(1), order.part(ALONE), None).map(Some),
    };
    let members = following.end()?;
    all.servers = examined(&members, &mut all.unseen);
    all.sysctls = crate::settings::sysctls();
    let alone = alone?;
    if let Some(step) = alone.as_ref().filter(|s| s.answered == 0 && s.timed_out == 0) {
        let why = step.connect_errors.keys().next().cloned().unwrap_or_else(|| "nothing was answered".into());
        return Err(LabError::Other(format!(
            "{}: {why}; is the server running, and is that its port? try: curl -v {0}",
            plan.url
        )));
    }
    all.steps.extend(alone);
    let mut readings = Readings::default();
    let mut beside = Beside::start(&members, to.as_ref(), &order.databases, &telling(lab));
    let outcome = steps(lab, order, &members, &mut beside, &mut readings, &mut all);
    all.growth = readings.growth();
    all.unseen.append(&mut beside.unread);
    all.cost_cores = (beside.cost_cores * 1e4).round() / 1e4;
    match outcome {
        Err(LabError::Interrupted) if all.main().is_some() => {}
        Err(e) => return Err(e),
        Ok(()) => {}
    }
    Ok(all)
}

/// The load that is asked about once more, and what was seen of the same servers: what follows from it is told with what one
/// user alone got before.
///
/// # Errors
/// As [`examine`].
pub fn look_again(lab: &mut Lab<'_>, order: &Order<'_>, before: &Examination) -> Result<Examination, LabError> {
    lab.observe = false;
    let members = follow(named(order.servers, &order.plan)?, &order.plan, &AtomicBool::new(true));
    let mut all = before.clone();
    // Those that are behind are found by their connections, which are there while there is load.
    let members = if members.all.len() < before.servers.len() { with_load(lab, order, members.all)? } else { members };
    all.servers = examined(&members, &mut all.unseen);
    all.steps.retain(|s| s.kind == StepKind::Alone);
    let (users, is_open) = users_of(&order.plan);
    let users = (!is_open).then_some(users);
    let mut beside = Beside::start(&members, endpoint(&order.plan).as_ref(), &order.databases, &telling(lab));
    all.steps.push(put_on(lab, &order.plan, StepKind::Main, users, order.part(BEYOND), Some(&mut beside))?);
    all.inside = inside_step(lab, &order.plan, users, &members, &mut all)?;
    Ok(all)
}

/// Follows connections while a few users put load on.
fn with_load(lab: &mut Lab<'_>, order: &Order<'_>, known: Vec<Member>) -> Result<Members, LabError> {
    let following = Following::start(known, &order.plan);
    let step = put_on(lab, &order.plan, StepKind::Few, Some(GENTLE_USERS), Duration::from_secs(2), None);
    let members = following.end()?;
    step?;
    Ok(members)
}

/// Who else is connected to the server at the URL, looked at for a moment: address and connections.
fn visitors(lab: &Lab<'_>, members: &[Member]) -> Option<String> {
    let front = members.first()?;
    let namespace = Namespace::of(front.found.master).ok()?;
    let ports = front.found.ports();
    // Connections that last for a moment only are requests, too.
    let mut seen = BTreeMap::<String, usize>::new();
    for _ in 0..VISITOR_LOOKS {
        let mut now = BTreeMap::<String, usize>::new();
        for end in namespace.others(&ports).unwrap_or_default() {
            *now.entry(end.ip().to_string()).or_default() += 1;
        }
        for (address, n) in now {
            let most = seen.entry(address).or_default();
            *most = n.max(*most);
        }
        wait(lab, VISITOR_PAUSE);
    }
    let (address, n) = seen.into_iter().max_by_key(|(_, n)| *n)?;
    Some(format!("{n} connections from {address}"))
}

/// Users of a closed loop, or 0 and true.
fn users_of(plan: &Plan) -> (u32, bool) {
    match plan.phases.iter().find(|p| p.measured).map(|p| &p.load) {
        Some(Load::Closed { users, .. }) => (*users, false),
        Some(Load::Open { .. }) => (0, true),
        None => (1, false),
    }
}

fn steps(
    lab: &mut Lab<'_>,
    order: &Order<'_>,
    members: &Members,
    beside: &mut Beside,
    readings: &mut Readings,
    all: &mut Examination,
) -> Result<(), LabError> {
    let plan = &order.plan;
    let (users, is_open) = users_of(plan);
    let mut answered = all.steps.iter().map(|s| s.answered).sum::<u64>();
    // Read after each step, so that what grows with requests is told from what settles.
    let mut note = |step: &Step| {
        answered += step.answered;
        readings.read(members, answered);
    };
    let say = |lab: &mut Lab<'_>, what: String| lab.tell(&Event::Experiment { what: what.into() });
    if order.manner == Manner::Observe {
        say(lab, format!("watching what there is for {} s, without load of ours", order.time.as_secs()));
        beside.begin();
        let began = Instant::now();
        wait(lab, order.time);
        let mut step = Step { kind: StepKind::Observed, ..Step::default() };
        step.duration_s = began.elapsed().as_secs_f64();
        beside.end(&mut step);
        all.steps.push(step);
        lab.check_stop()?;
        suspect(lab, all);
        all.inside = inside::look(members, &plan.url);
        suspect(lab, all);
        return Ok(());
    }
    let gentle = order.manner == Manner::Gentle;
    let few = if gentle { GENTLE_USERS } else { FEW_USERS };
    if gentle || users > 2 * few || is_open {
        say(lab, format!("{few} users"));
        let step = put_on(lab, plan, StepKind::Few, few_of(gentle, is_open, few), order.part(FEW), Some(beside))?;
        note(&step);
        all.steps.push(step);
    }
    if gentle {
        all.inside = inside_step(lab, plan, few_of(gentle, is_open, few), members, all)?;
        suspect(lab, all);
        return Ok(());
    }
    settle(members);
    let words = if is_open { "the rate that is asked about".into() } else { format!("{users} users") };
    say(lab, words);
    let asked = (!is_open).then_some(users);
    let step = put_on(lab, plan, StepKind::Main, asked, order.time, Some(beside))?;
    note(&step);
    all.steps.push(step);
    suspect(lab, all);
    settle(members);
    if !is_open {
        say(lab, format!("twice as many: {} users", users.saturating_mul(2)));
        let step =
            put_on(lab, plan, StepKind::Beyond, Some(users.saturating_mul(2)), order.part(BEYOND), Some(beside))?;
        note(&step);
        all.steps.push(step);
        suspect(lab, all);
        settle(members);
        let mut other = plan.clone();
        other.keepalive = if plan.keepalive == KeepAlive::Off { KeepAlive::On } else { KeepAlive::Off };
        say(lab, format!("{users} users with keep-alive {}", other.keepalive));
        let step = put_on(lab, &other, StepKind::OtherKeepalive, Some(users), order.part(CONTRAST), Some(beside))?;
        note(&step);
        all.steps.push(step);
        suspect(lab, all);
        settle(members);
    }
    say(lab, "the same load, and a look inside: system calls, profile".into());
    all.inside = inside_step(lab, plan, asked, members, all)?;
    suspect(lab, all);
    crate::settings::try_modules(members, plan, all);
    Ok(())
}

/// Where looks go so that whoever watches the runs sees them.
fn telling(lab: &mut Lab<'_>) -> Sender<Look> {
    let (tell, told) = channel();
    lab.looks = Some(told);
    tell
}

/// Tells what the evidence so far speaks for.
fn suspect(lab: &mut Lab<'_>, all: &Examination) {
    if let Some(suspicion) = suspicion(all) {
        lab.tell(&Event::Suspicion { suspicion });
    }
}

/// Gentle, a rate that is asked for is kept; else a few users.
fn few_of(gentle: bool, is_open: bool, few: u32) -> Option<u32> {
    (!(gentle && is_open)).then_some(few)
}

/// Load, and while it is on, a look inside.
fn inside_step(
    lab: &mut Lab<'_>,
    plan: &Plan,
    users: Option<u32>,
    members: &Members,
    all: &mut Examination,
) -> Result<Vec<Inside>, LabError> {
    let (inner, url) = (members.clone(), plan.url.clone());
    let looking = thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        inside::look(&inner, &url)
    });
    let step = put_on(lab, plan, StepKind::Inside, users, INSIDE, None);
    let seen = looking.join().unwrap_or_default();
    all.steps.push(step?);
    Ok(seen)
}

fn wait(lab: &Lab<'_>, time: Duration) {
    let end = Instant::now() + time;
    while !lab.stopped() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
    }
}

/// Waits until nobody waits for the servers any more.
fn settle(members: &Members) {
    let end = Instant::now() + MOST_SETTLING;
    let waits = |m: &Member| lastdrop_probe::namespace::longest_queue(m.found.master).unwrap_or(0) > 0;
    while Instant::now() < end && members.all.iter().any(waits) {
        thread::sleep(Duration::from_millis(100));
    }
}

/// One experiment: load of so many users, or as the plan has it.
fn put_on(
    lab: &mut Lab<'_>,
    plan: &Plan,
    kind: StepKind,
    users: Option<u32>,
    time: Duration,
    mut beside: Option<&mut Beside>,
) -> Result<Step, LabError> {
    lab.check_stop()?;
    let mut plan = plan.clone();
    plan.phases.retain(|p| p.measured);
    for phase in &mut plan.phases {
        phase.requests = None;
        phase.duration = Some(time);
        match (&mut phase.load, users) {
            (Load::Closed { users: all, to_users, .. }, Some(users)) => (*all, *to_users) = (users, None),
            (load @ Load::Open { .. }, Some(users)) => *load = Load::closed(users),
            _ => {}
        }
    }
    if let Some(beside) = &mut beside {
        beside.begin();
    }
    let run = lab.run(&plan, &format!("doctor {}", name(kind)))?;
    let mut step = step_of(&run, kind, &plan, users.unwrap_or(0));
    if let Some(beside) = beside {
        beside.end(&mut step);
    }
    lab.check_stop()?;
    Ok(step)
}

fn name(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Alone => "one user",
        StepKind::Few => "a few users",
        StepKind::Main => "the load asked about",
        StepKind::Beyond => "twice as many users",
        StepKind::OtherKeepalive => "keep-alive the other way",
        StepKind::Inside => "look inside",
        StepKind::Observed => "watched",
    }
}

fn step_of(run: &Run, kind: StepKind, plan: &Plan, users: u32) -> Step {
    let mut step =
        Step { kind, users, keepalive: plan.keepalive != KeepAlive::Off, run: run.id.clone(), ..Step::default() };
    step.steal = run.generator.steal.unwrap_or(0.0);
    let Some(phase) = run.measured() else { return step };
    fold::phase(phase, &mut step);
    step.connect_errors = run.generator.connect_errors.clone();
    step.generator = GeneratorSeen {
        saturated: run.generator.saturated,
        cores: if phase.duration_s > 0.0 { run.generator.cpu_s / phase.duration_s } else { 0.0 },
        no_ports: run.generator.shortage.ports,
        no_descriptors: run.generator.shortage.descriptors,
        lateness_p99_us: phase.latency(Kind::Lateness, "p99").unwrap_or(0.0),
        others_cores: run.generator.others_cores.unwrap_or(0.0),
    };
    step
}
