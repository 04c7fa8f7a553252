//! The experiments, and what they leave behind.

use std::net::IpAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_diagnose::findings::{open_questions, suspicion, wants_profile};
use lastdrop_lab::{Lab, LabError};
use lastdrop_looks::databases::DatabaseOptions;
use lastdrop_model::examination::{Examination, ExaminationStep, LoadShape, ServerProfile, StepKind};
use lastdrop_model::plan::{KeepAlive, Load, Plan};
use lastdrop_model::run::with_question;
use lastdrop_model::{Event, Sample};
use lastdrop_server::{ServerError, ServerRef};

use crate::contrast;
use crate::inside::CONNECTS_EACH;
use crate::load_time::during;
use crate::site::{Goal, Machine, Servers, Site, Tried};
use crate::step;

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
    /// Whoever connects from there only checks the servers' health.
    pub ignore: Vec<IpAddr>,
    /// How databases of the chain are asked.
    pub databases: DatabaseOptions,
    /// How long the load is watched that is asked about.
    pub time: Duration,
    /// Only one user alone and the load that is asked about: enough for clues, too little for a diagnosis.
    pub brief: bool,
}

/// How long the other steps last, in parts of the time of the main one, and at least.
const ALONE: f64 = 0.35;
const FEW: f64 = 0.35;
const BEYOND: f64 = 0.5;
const CONTRAST: f64 = 0.4;
const SHORTEST: Duration = Duration::from_secs(2);
/// Of a brief look: the shortest step.
const SHORTEST_BRIEF: Duration = Duration::from_millis(600);
/// Tracing and profiling take as long as they take.
const INSIDE: Duration = Duration::from_secs(7);
/// Parts of the load that is asked about, where it is a rate, after each of which memory is read.
const READINGS: u32 = 3;
const FEW_USERS: u32 = 4;
const GENTLE_USERS: u32 = 2;
/// Of the load's time, before the look inside begins.
const BEFORE_INSIDE: Duration = Duration::from_secs(1);

impl Order<'_> {
    fn part(&self, of: f64) -> Duration {
        self.time.mul_f64(of).max(if self.brief { SHORTEST_BRIEF } else { SHORTEST })
    }
}

/// Makes the experiments, wherever the servers are. What was seen until then comes back also when the user stops it.
///
/// # Errors
/// When a server is not found or its machine cannot be asked, or no load can be put on at all.
pub fn examine(lab: &mut Lab<'_>, order: &Order<'_>, site: &mut dyn Site) -> Result<Examination, LabError> {
    lab.observe = false;
    // A doctor's runs differ from each other: nothing is repeated for the sake of comparing them.
    lab.repeats = 0;
    let machine = site.find(&goal(lab, order))?;
    let mut unasked = None;
    let manner = match order.manner {
        // A brief look is part of a command that has looked for visitors itself.
        Manner::Whole if !order.live && !order.brief => match site.visitors()? {
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
    let mut plan = order.plan.clone();
    if unasked.is_some() {
        // A rate in full is no load of a few users; with --gentle it was asked for.
        for phase in plan.phases.iter_mut().filter(|p| matches!(p.load, Load::Open { .. })) {
            phase.load = Load::closed(GENTLE_USERS);
        }
    }
    let order = &Order { manner, plan, ..order.clone() };
    let plan = &order.plan;
    let (_, is_open) = users_of(plan);
    let mut all = Examination {
        url: plan.url.to_string(),
        tls: plan.url.tls,
        machine: machine.name.clone(),
        processors: machine.processors,
        memory_bytes: machine.memory_bytes,
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
    site.follow()?;
    lab.tell(&Event::Experiment { what: "one user alone, and who is behind whom".into() });
    let alone = match order.manner {
        Manner::Observe => {
            wait(lab, if order.brief { Duration::from_secs(1) } else { Duration::from_secs(3) });
            Ok(None)
        }
        _ => put_on(lab, plan, &machine, StepKind::Alone, Some(1), order.part(ALONE), None).map(Some),
    };
    take(&mut all, site.servers()?);
    let alone = alone?;
    // Of one that was lost nothing is known, not that nothing was answered.
    if let Some(step) = alone.as_ref().filter(|s| s.is_whole() && s.answered == 0 && s.timed_out == 0) {
        let why = step.connect_errors.keys().next().cloned().unwrap_or_else(|| "nothing was answered".into());
        return Err(LabError::Other(format!("{}: {}; try: curl -v {0}", plan.url, with_question(&why))));
    }
    all.steps.extend(alone);
    let outcome = steps(lab, order, site, &machine, &mut all);
    match site.rest() {
        Ok(rest) => {
            all.growth = rest.growth;
            let mut ceilings = rest.ceilings;
            for server in &mut all.servers {
                server.ceilings = ceilings.remove(&server.server).unwrap_or_default();
            }
            all.unseen.extend(rest.unseen);
            (all.cost_cores, all.cost_s) = (rest.cost_cores, rest.cost_s);
        }
        // Whoever was lost before is told of there.
        Err(_) if outcome.is_err() => {}
        Err(e) => all.unseen.push(e.to_string()),
    }
    for step in all.steps.iter().filter(|s| !s.is_whole()) {
        let (agents, what) = (step.lost.join(", "), step::name(step.kind));
        all.notes.push(format!("agent {agents} was lost during '{what}': nothing is concluded from that step"));
    }
    // Fewer users do not stand for it.
    let asked_about = match order.manner {
        Manner::Whole => StepKind::Main,
        Manner::Gentle => StepKind::Few,
        Manner::Observe => StepKind::Observed,
    };
    // What is known then is not lost with an agent that is.
    let enough = all.main().is_some() || all.steps.iter().any(|s| !s.is_whole());
    match outcome {
        Err(LabError::Interrupted) if all.main().is_some() => {}
        Err(LabError::Other(why)) if enough && lab.carrier.is_some() => {
            all.notes.push(format!("no further steps were made: {why}"))
        }
        Err(LabError::Server(e @ ServerError::Elsewhere { .. })) if all.step(asked_about).is_some() => {
            all.notes.push(format!("no further steps were made: {e}"));
        }
        Err(e) => return Err(e),
        Ok(()) => {}
    }
    all.nodes = site.nodes(&all);
    Ok(all)
}

/// The load that is asked about once more, and what is seen of the same servers: what follows from it is told with what one user
/// alone got before.
///
/// # Errors
/// As [`examine`].
pub fn look_again(
    lab: &mut Lab<'_>,
    order: &Order<'_>,
    site: &mut dyn Site,
    before: &Examination,
) -> Result<Examination, LabError> {
    lab.observe = false;
    let machine = &site.find(&goal(lab, order))?;
    site.follow()?;
    let mut servers = site.servers()?;
    let mut all = before.clone();
    // Those that are behind are found by their connections, which are there while there is load.
    if servers.servers.len() < before.servers.len() {
        site.follow()?;
        let time = Duration::from_secs(2);
        let step = put_on(lab, &order.plan, machine, StepKind::Few, Some(GENTLE_USERS), time, None);
        servers = site.servers()?;
        step?;
    }
    take(&mut all, Servers { sysctls: before.sysctls.clone(), ..servers });
    all.steps.retain(|s| s.kind == StepKind::Alone);
    let (users, is_open) = users_of(&order.plan);
    let users = (!is_open).then_some(users);
    let time = order.part(BEYOND);
    let step = put_on(lab, &order.plan, machine, StepKind::Main, users, time, Some((&mut *site, 0)))?;
    if !step.is_whole() {
        return Err(LabError::Other(format!("agent {} was lost meanwhile", step.lost.join(", "))));
    }
    all.steps.push(step);
    all.inside = inside_step(lab, &order.plan, machine, users, site, &mut all)?;
    // It is put back next.
    site.rest()?;
    all.nodes = site.nodes(&all);
    Ok(all)
}

/// What the machine of the servers has to know.
fn goal(lab: &Lab<'_>, order: &Order<'_>) -> Goal {
    Goal {
        servers: order.servers.iter().map(ToString::to_string).collect(),
        url: order.plan.url.clone(),
        address: lastdrop_load::resolve(&order.plan.url).ok(),
        unix_socket: order.plan.network.unix_socket.clone(),
        load_from: lab.load_from(),
        ignore: order.ignore.clone(),
    }
}

/// Takes over who takes part.
fn take(all: &mut Examination, of: Servers) {
    (all.servers, all.sysctls) = (of.servers, of.sysctls);
    all.unseen.extend(of.unseen);
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
    site: &mut dyn Site,
    machine: &Machine,
    all: &mut Examination,
) -> Result<(), LabError> {
    let plan = &order.plan;
    let (users, is_open) = users_of(plan);
    let say = |lab: &mut Lab<'_>, what: String| lab.tell(&Event::Experiment { what: what.into() });
    if order.manner == Manner::Observe {
        say(lab, format!("watching what there is for {} s, without load of ours", order.time.as_secs()));
        site.begin()?;
        let began = Instant::now();
        wait(lab, order.time);
        let duration_s = began.elapsed().as_secs_f64();
        all.steps.push(ExaminationStep { kind: StepKind::Observed, duration_s, ..site.end()? });
        lab.check_stop()?;
        suspect(lab, all);
        if !order.brief {
            all.inside = site.inside(wants_profile(all))?;
            suspect(lab, all);
        }
        return Ok(());
    }
    let gentle = order.manner == Manner::Gentle;
    let few = if gentle { GENTLE_USERS } else { FEW_USERS };
    if gentle || !order.brief && (users > 2 * few || is_open) {
        say(lab, format!("{few} users"));
        let (users, time) = (few_of(gentle, is_open, few), order.part(FEW));
        all.steps.push(put_on(lab, plan, machine, StepKind::Few, users, time, Some((&mut *site, 0)))?);
        note(site, all)?;
    }
    if gentle {
        all.inside = inside_step(lab, plan, machine, few_of(gentle, is_open, few), &mut *site, all)?;
        suspect(lab, all);
        return Ok(());
    }
    site.settle()?;
    let words = if is_open { "the rate that is asked about".into() } else { format!("{users} users") };
    say(lab, words);
    let asked = (!is_open).then_some(users);
    let step = put_on(lab, plan, machine, StepKind::Main, asked, order.time, Some((&mut *site, answered(all))))?;
    all.steps.push(step);
    if order.brief {
        return Ok(());
    }
    note(site, all)?;
    suspect(lab, all);
    site.settle()?;
    if !is_open {
        say(lab, format!("twice as many: {} users", users.saturating_mul(2)));
        let (twice, time) = (Some(users.saturating_mul(2)), order.part(BEYOND));
        all.steps.push(put_on(lab, plan, machine, StepKind::Beyond, twice, time, Some((&mut *site, 0)))?);
        note(site, all)?;
        suspect(lab, all);
        site.settle()?;
        let mut other = plan.clone();
        other.keepalive = if plan.keepalive == KeepAlive::Off { KeepAlive::On } else { KeepAlive::Off };
        say(lab, format!("{users} users with keep-alive {}", other.keepalive));
        let (kind, time) = (StepKind::OtherKeepalive, order.part(CONTRAST));
        all.steps.push(put_on(lab, &other, machine, kind, Some(users), time, Some((&mut *site, 0)))?);
        note(site, all)?;
        suspect(lab, all);
        site.settle()?;
    }
    say(lab, "the same load, and a look inside: system calls, profile".into());
    all.inside = inside_step(lab, plan, machine, asked, &mut *site, all)?;
    note(site, all)?;
    complete(all);
    suspect(lab, all);
    let asked_about = if is_open { Vec::new() } else { open_questions(all) };
    for (kind, other) in asked_about.into_iter().filter_map(|kind| Some((kind, contrast::plan(plan, kind)?))) {
        site.settle()?;
        say(lab, format!("{users} users, {}", step::name(kind)));
        let step = put_on(lab, &other, machine, kind, Some(users), order.part(CONTRAST), Some((&mut *site, 0)))?;
        all.steps.push(step);
        suspect(lab, all);
    }
    let Tried { mut modules, unseen } = site.modules()?;
    all.servers.iter_mut().for_each(|server| server.modules = modules.remove(&server.server));
    all.unseen.extend(unseen);
    Ok(())
}

/// Whom a server connects to by its traced calls, where no connection has been met: it may have lasted for a millisecond each time.
fn complete(all: &mut Examination) {
    for inside in all.inside.iter().filter(|i| i.calls.get("connect").is_some_and(|n| *n >= CONNECTS_EACH)) {
        let Some(peer) = inside.objects.get("connect") else { continue };
        let to = all
            .servers
            .iter()
            .find(|s| s.server != inside.server && s.listens.contains(peer))
            .map(|s| s.server.clone());
        if let Some(server) = all.servers.iter_mut().find(|s| s.server == inside.server && !s.connects.contains(peer)) {
            server.connects.push(peer.clone());
            server.to.push(to.unwrap_or_default());
        }
    }
}

/// Requests that were answered so far.
fn answered(all: &Examination) -> u64 {
    all.steps.iter().map(|s| s.answered).sum()
}

/// Reads memory after a step, so that what grows with requests is told from what settles.
fn note(site: &mut dyn Site, all: &Examination) -> Result<(), LabError> {
    site.memory(answered(all))
}

/// Where looks go so that whoever watches the runs of a lab sees them.
#[must_use]
pub fn telling(lab: &mut Lab<'_>) -> Sender<Sample> {
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

/// Gentle by order, a rate that is asked for is kept; else a few users.
fn few_of(gentle: bool, is_open: bool, few: u32) -> Option<u32> {
    (!(gentle && is_open)).then_some(few)
}

/// Load, and while it is on, a look inside.
fn inside_step(
    lab: &mut Lab<'_>,
    plan: &Plan,
    machine: &Machine,
    users: Option<u32>,
    site: &mut dyn Site,
    all: &mut Examination,
) -> Result<Vec<ServerProfile>, LabError> {
    lab.check_stop()?;
    let plan = step::plan(plan, users, INSIDE);
    let label = step::label(StepKind::Inside);
    let profile = wants_profile(all);
    let (run, inside) =
        during(
            lab,
            &plan,
            &label,
            |time| {
                if time.wait(BEFORE_INSIDE) { site.inside(profile) } else { Ok(Vec::new()) }
            },
        )?;
    let step = step::of(&run, StepKind::Inside, &plan, users.unwrap_or(0), None, machine);
    lab.check_stop()?;
    let whole = step.is_whole();
    all.steps.push(step);
    // Of a server that got a part of its load only it shows nothing.
    Ok(if whole { inside? } else { Vec::new() })
}

fn wait(lab: &Lab<'_>, time: Duration) {
    let end = Instant::now() + time;
    while !lab.stopped() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
    }
}

/// One experiment: load of so many users, or as the plan has it; what is seen of the servers while it is on. With the site go the
/// requests that were answered before.
fn put_on(
    lab: &mut Lab<'_>,
    plan: &Plan,
    machine: &Machine,
    kind: StepKind,
    users: Option<u32>,
    time: Duration,
    site: Option<(&mut dyn Site, u64)>,
) -> Result<ExaminationStep, LabError> {
    lab.check_stop()?;
    let plan = step::plan(plan, users, time);
    let label = step::label(kind);
    let measured = plan.phases.iter().find(|p| p.measured).map(|p| &p.load);
    let rate_rps = measured.and_then(|load| match load {
        Load::Open { rate_rps, .. } if kind == StepKind::Main => Some(*rate_rps),
        _ => None,
    });
    let (run, seen) = match site {
        None => (lab.run(&plan, &label)?, Ok(None)),
        Some((site, before)) => during(lab, &plan, &label, |on| {
            // Without a beginning there is nothing to see.
            if !on.wait(Duration::ZERO) {
                return Ok(None);
            }
            site.begin()?;
            // With a rate there are few steps: readings of memory between make up for it.
            for part in 1..READINGS {
                let so_far = time * part / READINGS;
                if let Some(rate_rps) = rate_rps.filter(|_| on.wait(so_far)) {
                    site.memory(before + (rate_rps * so_far.as_secs_f64()) as u64)?;
                }
            }
            on.wait(time);
            site.end().map(Some)
        })?,
    };
    let step = step::of(&run, kind, &plan, users.unwrap_or(0), seen?, machine);
    lab.check_stop()?;
    Ok(step)
}
