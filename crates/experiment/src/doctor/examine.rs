//! Runs the experiments and collects what they show.

use std::net::IpAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{Lab, LabError};
use crate::observe::databases::DatabaseOptions;
use lastdrop_diagnose::findings::{open_questions, suspicion, wants_code, wants_profile};
use lastdrop_model::examination::{Examination, ExaminationStep, LoadShape, ServerProfile, StepKind};
use lastdrop_model::plan::{KeepAlive, Load, Plan};
use lastdrop_model::run::with_question;
use lastdrop_model::{Event, Sample};
use lastdrop_server::{ServerError, ServerRef};

use crate::doctor::inside::CONNECTS_EACH;
use crate::doctor::load_time::{LoadTime, during, until_done};
use crate::doctor::site::{Goal, MachineFacts, ModuleTrials, Servers, Site, SiteSummary};
use crate::doctor::step;
use crate::doctor::{answers, contrast};

/// How much a server may be disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intrusiveness {
    Whole,
    /// Below the knee: a few users.
    Gentle,
    /// No load of ours at all.
    Observe,
}

/// What to examine, and how.
#[derive(Debug, Clone)]
pub struct DoctorOptions<'a> {
    pub servers: &'a [ServerRef],
    /// The load that the user asks about is that of the plan's measured phase.
    pub plan: Plan,
    pub intrusiveness: Intrusiveness,
    /// Puts the full load on even if visitors use the server.
    pub live: bool,
    /// Addresses that only send health checks.
    pub ignore: Vec<IpAddr>,
    /// How to query databases of the chain.
    pub databases: DatabaseOptions,
    /// Duration of the load that the user asks about.
    pub time: Duration,
    /// Only one user alone and the load that the user asks about: enough for clues, too little for a diagnosis.
    pub brief: bool,
}

/// Duration of the other steps, as shares of the main one, and their minimum; none has to be longer than the main one.
const ALONE: f64 = 0.35;
/// One user that waits so many times as long as one of many has met workers that had served nothing.
const COLD: f64 = 1.5;
/// One user is asked so often again at most.
const MOST_COLD: u32 = 2;
/// A request that costs so many times the processor time of one alone, while workers start, has their start in it.
const STARTING: f64 = 1.25;
const FEW: f64 = 0.35;
const BEYOND: f64 = 0.5;
const CONTRAST: f64 = 0.4;
const SHORTEST: Duration = Duration::from_secs(2);
/// Minimum duration of a step in a brief examination.
const SHORTEST_BRIEF: Duration = Duration::from_millis(600);
/// Maximum duration of the step for tracing and profiling; it ends with them.
const INSIDE: Duration = Duration::from_secs(7);
/// A shorter main step has too few readings for an anatomy.
const SHORTEST_ANATOMY: Duration = Duration::from_secs(5);
/// Parts of the main step of an open load; memory is read after each.
const READINGS: u32 = 3;
const FEW_USERS: u32 = 4;
const GENTLE_USERS: u32 = 2;
/// Time of load before tracing and profiling begin.
const BEFORE_INSIDE: Duration = Duration::from_secs(1);

impl DoctorOptions<'_> {
    fn part(&self, of: f64) -> Duration {
        let shortest = if self.brief { SHORTEST_BRIEF } else { SHORTEST.min(self.time).max(SHORTEST_BRIEF) };
        self.time.mul_f64(of).max(shortest)
    }
}

/// Returns what may be done to the servers, the plan for it, and why it is less than was asked for: others use them.
fn careful(
    options: &DoctorOptions<'_>,
    site: &mut dyn Site,
) -> Result<(Intrusiveness, Plan, Option<String>), LabError> {
    let mut unasked = None;
    let intrusiveness = match options.intrusiveness {
        // A brief examination is part of a command that has looked for visitors itself.
        Intrusiveness::Whole if !options.live && !options.brief => match site.visitors()? {
            Some(seen) => {
                unasked = Some(format!(
                    "others use the server ({seen}): only a few users of ours; --live loads it all the same"
                ));
                Intrusiveness::Gentle
            }
            None => Intrusiveness::Whole,
        },
        other => other,
    };
    let mut plan = options.plan.clone();
    if unasked.is_some() {
        // A full rate is not a load of a few users. With --gentle the user has asked for it.
        for phase in plan.phases.iter_mut().filter(|p| matches!(p.load, Load::Open { .. })) {
            phase.load = Load::closed(GENTLE_USERS);
        }
    }
    Ok((intrusiveness, plan, unasked))
}

/// Takes what the site knows at the end. `has_failed`: an error of the steps already reports a lost machine.
fn take_summary(all: &mut Examination, summary: Result<SiteSummary, LabError>, has_failed: bool) {
    match summary {
        Ok(rest) => {
            all.growth = rest.growth;
            let mut ceilings = rest.ceilings;
            for server in &mut all.servers {
                server.ceilings = ceilings.remove(&server.server).unwrap_or_default();
            }
            all.unseen.extend(rest.unseen);
            (all.cost_cores, all.cost_s) = (rest.cost_cores, rest.cost_s);
            add_cost_of_anatomy(all);
        }
        Err(_) if has_failed => {}
        Err(e) => all.unseen.push(e.to_string()),
    }
}

/// Adds what the anatomy of the main step cost, which the run itself has measured.
fn add_cost_of_anatomy(all: &mut Examination) {
    let cores = |step: &ExaminationStep| step.anatomy.as_ref().map_or(0.0, |a| a.cost) * all.processors as f64;
    let anatomy_s: f64 = all.steps.iter().map(|step| cores(step) * step.duration_s).sum();
    let others_s: f64 = all.cost_s.values().sum();
    if anatomy_s > 0.0 && others_s > 0.0 {
        all.cost_cores *= 1.0 + anatomy_s / others_s;
        all.cost_s.insert("anatomy".into(), anatomy_s);
    }
}

/// Runs the experiments, wherever the servers are. If the user stops it, returns what was measured until then.
///
/// # Errors
/// When a server is not found or its machine cannot be asked, or no load can be put on at all.
pub fn examine(lab: &mut Lab<'_>, options: &DoctorOptions<'_>, site: &mut dyn Site) -> Result<Examination, LabError> {
    lab.observe = false;
    // The doctor's runs differ from each other: none is repeated for comparison.
    lab.repeats = 0;
    let machine = site.find(&goal(lab, options))?;
    let (intrusiveness, plan, unasked) = careful(options, site)?;
    let options = &DoctorOptions { intrusiveness, plan, ..options.clone() };
    let plan = &options.plan;
    let (_, is_open) = users_of(plan);
    let mut all = Examination {
        url: plan.url.to_string(),
        tls: plan.url.tls,
        machine: machine.name.clone(),
        processors: machine.processors,
        memory_bytes: machine.memory_bytes,
        load: match (options.intrusiveness, is_open) {
            (Intrusiveness::Observe, _) => LoadShape::Foreign,
            (_, true) => LoadShape::Open,
            _ => LoadShape::Closed,
        },
        ..Examination::default()
    };
    if let Some(words) = unasked {
        lab.tell(&Event::Experiment { what: words.as_str().into() });
        all.notes.push(words);
    }
    // The first step also shows which server is behind which.
    site.follow()?;
    lab.tell(&Event::Experiment { what: "one user alone, and who is behind whom".into() });
    let alone = match options.intrusiveness {
        Intrusiveness::Observe => {
            wait(lab, if options.brief { Duration::from_secs(1) } else { Duration::from_secs(3) });
            Ok(None)
        }
        _ => put_on(lab, plan, &machine, StepKind::Alone, Some(1), options.part(ALONE), None).map(Some),
    };
    take(&mut all, site.servers()?);
    let alone = alone?;
    // A step that lost an agent shows nothing, not even that nothing was answered.
    if let Some(step) = alone.as_ref().filter(|s| s.is_whole() && s.answered == 0 && s.timed_out == 0) {
        let why = step.connect_errors.keys().next().cloned().unwrap_or_else(|| "nothing was answered".into());
        return Err(LabError::Other(format!("{}: {}; try: curl -v {0}", plan.url, with_question(&why))));
    }
    all.steps.extend(alone);
    // On a simulated machine there is nobody to ask.
    if lab.is_real() && options.intrusiveness != Intrusiveness::Observe && !options.brief {
        all.answers = answers::look(plan);
    }
    let outcome = steps(lab, options, site, &machine, &mut all);
    answers::look_again(plan, &mut all.answers);
    take_summary(&mut all, site.finish(), outcome.is_err());
    for step in all.steps.iter().filter(|s| !s.is_whole()) {
        let (agents, what) = (step.lost.join(", "), step::name(step.kind));
        all.notes.push(format!("agent {agents} was lost during '{what}': nothing is concluded from that step"));
    }
    // A step with fewer users does not replace the load that the user asks about.
    let asked_about = match options.intrusiveness {
        Intrusiveness::Whole => StepKind::Main,
        Intrusiveness::Gentle => StepKind::Few,
        Intrusiveness::Observe => StepKind::Observed,
    };
    // What is known so far is not lost with an agent.
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

/// Runs the load that the user asks about once more, and samples the same servers. From `before` the result keeps the
/// step of one user alone.
///
/// # Errors
/// As [`examine`].
pub fn examine_again(
    lab: &mut Lab<'_>,
    options: &DoctorOptions<'_>,
    site: &mut dyn Site,
    before: &Examination,
) -> Result<Examination, LabError> {
    lab.observe = false;
    let machine = &site.find(&goal(lab, options))?;
    site.follow()?;
    let mut servers = site.servers()?;
    let mut all = before.clone();
    // Servers behind are found by their connections, which exist only under load.
    if servers.servers.len() < before.servers.len() {
        site.follow()?;
        let time = Duration::from_secs(2);
        let step = put_on(lab, &options.plan, machine, StepKind::Few, Some(GENTLE_USERS), time, None);
        servers = site.servers()?;
        step?;
    }
    take(&mut all, Servers { sysctls: before.sysctls.clone(), ..servers });
    all.steps.retain(|s| s.kind == StepKind::Alone);
    let (users, is_open) = users_of(&options.plan);
    let users = (!is_open).then_some(users);
    let time = options.part(BEYOND);
    let step = put_on(lab, &options.plan, machine, StepKind::Main, users, time, Some((&mut *site, 0)))?;
    if !step.is_whole() {
        return Err(LabError::Other(format!("agent {} was lost meanwhile", step.lost.join(", "))));
    }
    all.steps.push(step);
    all.inside = inside_step(lab, &options.plan, machine, users, site, &mut all)?;
    // The servers are restored next, so sampling ends here.
    site.finish()?;
    all.nodes = site.nodes(&all);
    Ok(all)
}

/// Returns what the servers' machine has to know.
fn goal(lab: &Lab<'_>, options: &DoctorOptions<'_>) -> Goal {
    Goal {
        servers: options.servers.iter().map(ToString::to_string).collect(),
        url: options.plan.url.clone(),
        address: lastdrop_load::resolve(&options.plan.url).ok(),
        unix_socket: options.plan.network.unix_socket.clone(),
        load_from: lab.load_from(),
        ignore: options.ignore.clone(),
    }
}

/// Asks one user again, as long as it waited longer than one of many: its requests met workers that had served nothing.
/// What they load on their first request, an application of Perl or PHP, is no cost of a request.
fn ask_alone_again(
    lab: &mut Lab<'_>,
    options: &DoctorOptions<'_>,
    machine: &MachineFacts,
    all: &mut Examination,
) -> Result<(), LabError> {
    for _ in 0..MOST_COLD {
        let (Some(alone), Some(main)) = (all.step(StepKind::Alone), all.main()) else { return Ok(()) };
        let is_cold = alone.answered > 0
            && main.answered > alone.answered
            && alone.service.mean > COLD * main.service.mean
            && [alone, main].iter().all(|step| step.is_whole() && step.share_of_status(|s| !s.starts_with('2')) < 0.1);
        if !is_cold {
            return Ok(());
        }
        lab.tell(&Event::Experiment { what: "one user again: alone it waited longer than one of many".into() });
        let again = put_on(lab, &options.plan, machine, StepKind::Alone, Some(1), options.part(ALONE), None)?;
        if let Some(step) = all.steps.iter_mut().find(|s| s.kind == StepKind::Alone) {
            *step = again;
        }
    }
    Ok(())
}

/// Returns true if the main load's processor time has in it what workers load on their first request: it costs more than one
/// user alone or a few did, and nothing in it shows what a request costs after that.
fn starts_workers(all: &Examination) -> bool {
    let before = all.steps.iter().filter(|s| matches!(s.kind, StepKind::Alone | StepKind::Few) && !s.starting);
    let least_s = before.filter_map(ExaminationStep::cpu_per_request_s).fold(f64::INFINITY, f64::min);
    let costs_more = |main: &ExaminationStep| main.cpu_per_request_s().is_some_and(|s| s > STARTING * least_s);
    all.step(StepKind::Main).is_some_and(|main| main.starting && main.is_whole() && costs_more(main))
}

/// Copies the servers of the chain into the examination.
fn take(all: &mut Examination, of: Servers) {
    (all.servers, all.sysctls) = (of.servers, of.sysctls);
    all.unseen.extend(of.unseen);
}

/// Returns the users of a closed loop and false, or 0 and true for an open loop.
fn users_of(plan: &Plan) -> (u32, bool) {
    match plan.phases.iter().find(|p| p.measured).map(|p| &p.load) {
        Some(Load::Closed { users, .. }) => (*users, false),
        Some(Load::Open { .. }) => (0, true),
        None => (1, false),
    }
}

fn steps(
    lab: &mut Lab<'_>,
    options: &DoctorOptions<'_>,
    site: &mut dyn Site,
    machine: &MachineFacts,
    all: &mut Examination,
) -> Result<(), LabError> {
    let plan = &options.plan;
    let (users, is_open) = users_of(plan);
    let say = |lab: &mut Lab<'_>, what: String| lab.tell(&Event::Experiment { what: what.into() });
    if options.intrusiveness == Intrusiveness::Observe {
        say(lab, format!("watching what there is for {} s, without load of ours", options.time.as_secs()));
        site.begin()?;
        let began = Instant::now();
        wait(lab, options.time);
        let duration_s = began.elapsed().as_secs_f64();
        all.steps.push(ExaminationStep { kind: StepKind::Observed, duration_s, ..site.end()? });
        lab.check_stop()?;
        suspect(lab, all);
        if !options.brief {
            all.inside = site.inside(wants_profile(all))?;
            suspect(lab, all);
        }
        return Ok(());
    }
    let gentle = options.intrusiveness == Intrusiveness::Gentle;
    let few = if gentle { GENTLE_USERS } else { FEW_USERS };
    if gentle || !options.brief && (users > 2 * few || is_open) {
        say(lab, format!("{few} users"));
        let (users, time) = (few_of(gentle, is_open, few), options.part(FEW));
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
    let step = put_on(lab, plan, machine, StepKind::Main, asked, options.time, Some((&mut *site, answered(all))))?;
    all.steps.push(step);
    ask_alone_again(lab, options, machine, all)?;
    if options.brief {
        return Ok(());
    }
    if starts_workers(all) {
        all.steps.iter_mut().filter(|s| s.kind == StepKind::Main).for_each(|s| s.kind = StepKind::Starting);
        say(lab, "the same load again: workers were still loading the application".into());
        let step = put_on(lab, plan, machine, StepKind::Main, asked, options.time, Some((&mut *site, answered(all))))?;
        all.steps.push(step);
    }
    note(site, all)?;
    suspect(lab, all);
    site.settle()?;
    if !is_open {
        say(lab, format!("twice as many: {} users", users.saturating_mul(2)));
        let (twice, time) = (Some(users.saturating_mul(2)), options.part(BEYOND));
        all.steps.push(put_on(lab, plan, machine, StepKind::Beyond, twice, time, Some((&mut *site, 0)))?);
        note(site, all)?;
        suspect(lab, all);
        site.settle()?;
        let mut other = plan.clone();
        other.keepalive = if plan.keepalive == KeepAlive::Off { KeepAlive::On } else { KeepAlive::Off };
        say(lab, format!("{users} users with keep-alive {}", other.keepalive));
        let (kind, time) = (StepKind::OtherKeepalive, options.part(CONTRAST));
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
        let step = put_on(lab, &other, machine, kind, Some(users), options.part(CONTRAST), Some((&mut *site, 0)))?;
        all.steps.push(step);
        suspect(lab, all);
    }
    if let Some(server) = wants_code(all) {
        lab.check_stop()?;
        look_at_code(lab, plan, &server, site, all)?;
    }
    let ModuleTrials { mut modules, unseen } = site.modules()?;
    all.servers.iter_mut().for_each(|server| server.modules = modules.remove(&server.server));
    all.unseen.extend(unseen);
    Ok(())
}

/// Profiles the functions of a server's own language, because processors are the limit and it uses most of them.
fn look_at_code(
    lab: &mut Lab<'_>,
    plan: &Plan,
    server: &str,
    site: &mut dyn Site,
    all: &mut Examination,
) -> Result<(), LabError> {
    match site.code(server, plan, lab.stop)? {
        Some(Ok(code)) => {
            if let Some(inside) = all.inside.iter_mut().find(|inside| inside.server == server) {
                inside.code = code;
            }
            suspect(lab, all);
        }
        Some(Err(why)) => all.unseen.push(format!("the functions of {server}'s own language: {why}")),
        None => {}
    }
    Ok(())
}

/// Adds the peers that only traced calls show: their connections may last for a millisecond each, and were never
/// sampled.
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

/// Returns the number of requests answered so far.
fn answered(all: &Examination) -> u64 {
    all.steps.iter().map(|s| s.answered).sum()
}

/// Reads memory after a step: several readings tell growth with requests from growth that settles.
fn note(site: &mut dyn Site, all: &Examination) -> Result<(), LabError> {
    site.memory(answered(all))
}

/// Returns a channel for samples that the lab receives, so that observers of its runs see them.
#[must_use]
pub fn sample_channel(lab: &mut Lab<'_>) -> Sender<Sample> {
    let (sender, samples) = channel();
    lab.looks = Some(samples);
    sender
}

/// Reports the suspicion that the evidence so far supports.
fn suspect(lab: &mut Lab<'_>, all: &Examination) {
    if let Some(suspicion) = suspicion(all) {
        lab.tell(&Event::Suspicion { suspicion });
    }
}

/// Returns the users of a gentle or small step. None keeps the rate that the user asked for with --gentle.
fn few_of(gentle: bool, is_open: bool, few: u32) -> Option<u32> {
    (!(gentle && is_open)).then_some(few)
}

/// Puts load on, and traces and profiles the servers meanwhile. The load ends within a second after that.
fn inside_step(
    lab: &mut Lab<'_>,
    plan: &Plan,
    machine: &MachineFacts,
    users: Option<u32>,
    site: &mut dyn Site,
    all: &mut Examination,
) -> Result<Vec<ServerProfile>, LabError> {
    lab.check_stop()?;
    let plan = step::plan(plan, users, INSIDE);
    let label = step::label(StepKind::Inside);
    let profile = wants_profile(all);
    let look = |time: &LoadTime| if time.wait(BEFORE_INSIDE) { site.inside(profile) } else { Ok(Vec::new()) };
    let (run, inside) = until_done(lab, &plan, &label, look)?;
    let step = step::of(&run, StepKind::Inside, &plan, users.unwrap_or(0), None, machine);
    lab.check_stop()?;
    let whole = step.is_whole();
    all.steps.push(step);
    // If an agent was lost, the server got only a part of its load: the traces show nothing.
    Ok(if whole { inside? } else { Vec::new() })
}

fn wait(lab: &Lab<'_>, time: Duration) {
    let end = Instant::now() + time;
    while !lab.stopped() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
    }
}

/// Runs one experiment: load of this many users, or as the plan has it, while `site` samples the servers. The number
/// beside the site is that of requests answered before.
fn put_on(
    lab: &mut Lab<'_>,
    plan: &Plan,
    machine: &MachineFacts,
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
    lab.anatomy = kind == StepKind::Main && site.is_some() && time >= SHORTEST_ANATOMY;
    let (run, seen) = match site {
        None => (lab.run(&plan, &label)?, Ok(None)),
        Some((site, before)) => during(lab, &plan, &label, |on| {
            // If the load never started, there is nothing to sample.
            if !on.wait(Duration::ZERO) {
                return Ok(None);
            }
            site.begin()?;
            // An open load has few steps: reading memory during the step makes up for it.
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
    lab.anatomy = false;
    let step = step::of(&run, kind, &plan, users.unwrap_or(0), seen?, machine);
    lab.check_stop()?;
    Ok(step)
}
