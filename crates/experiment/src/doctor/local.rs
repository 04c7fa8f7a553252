//! Answers the doctor's questions about this machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::LabError;
use crate::observe::code::{CodeOptions, profile_code};
use crate::observe::databases::DatabaseOptions;
use lastdrop_model::documents::ProfileFunction;
use lastdrop_model::examination::{ExaminationStep, HotFunction, ServerProfile};
use lastdrop_model::{Plan, Sample};
use lastdrop_probe::host::{self, HostMemory, timed};
use lastdrop_probe::listeners;
use lastdrop_probe::namespace::{Namespace, taken, wait_for_empty_queues};
use lastdrop_probe::process;
use lastdrop_server::ServerRef;
use lastdrop_server::code::{Clock, is_profiled_unasked};

use crate::doctor::costs::Costs;
use crate::doctor::growth::Readings;
use crate::doctor::samplers::StepSamplers;
use crate::doctor::site::{Goal, MachineFacts, ModuleTrials, Servers, Site, SiteSummary};
use crate::doctor::{inside, settings};
use crate::observe::members::{ConnectionFollower, Member, Members, Scope, named};

/// Number of checks for visitors, and the pause after each: a connection may be a single request and last only some
/// milliseconds.
const VISITOR_LOOKS: u32 = 60;
const VISITOR_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a check as a multiple of its processor time, at least.
const VISITOR_PAUSES: u32 = 4;

/// A server that used fewer cores than this does not lack processors, if some were free. Its profile says nothing, and
/// perf takes half a second of a core for it.
const WORTH_A_PROFILE: f64 = 0.25;
/// Used share of all processors from which on none was free.
const FULL: f64 = 0.85;

/// How long the functions of a server's own language are profiled, and how many are kept.
const CODE: Duration = Duration::from_secs(2);
const MOST_HOT: usize = 5;

/// The servers of this machine.
pub struct LocalSite {
    /// Servers known by the name with which they are displayed: a kind that the user defined has no name that could be
    /// parsed.
    known: Vec<ServerRef>,
    /// True if no other servers may be examined.
    only_known: bool,
    scope: Scope,
    databases: DatabaseOptions,
    /// Receives the samples of the first server as they are made.
    samples: Sender<Sample>,
    goal: Option<Goal>,
    following: Option<ConnectionFollower>,
    members: Members,
    samplers: Option<StepSamplers>,
    readings: Readings,
    /// Cores that each member used in its busiest step, as far as that could be read.
    used: Vec<Option<f64>>,
    began: Instant,
    /// Processor time of sampling so far, without that of the step samplers.
    costs: Costs,
}

impl std::fmt::Debug for LocalSite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSite").field("members", &self.members).finish_non_exhaustive()
    }
}

impl LocalSite {
    #[must_use]
    pub fn new(known: &[ServerRef], databases: DatabaseOptions, samples: Sender<Sample>) -> LocalSite {
        LocalSite {
            known: known.to_vec(),
            only_known: false,
            scope: Scope::All,
            databases,
            samples,
            goal: None,
            following: None,
            members: Members::default(),
            samplers: None,
            readings: Readings::default(),
            used: Vec::new(),
            began: Instant::now(),
            costs: Costs::default(),
        }
    }

    /// Like [`LocalSite::new`], but examines only the known servers, and nothing behind them.
    #[must_use]
    pub fn only(known: &[ServerRef], databases: DatabaseOptions, samples: Sender<Sample>) -> LocalSite {
        LocalSite { only_known: true, ..LocalSite::new(known, databases, samples) }
    }

    fn goal(&self) -> Result<&Goal, LabError> {
        self.goal.as_ref().ok_or_else(|| LabError::Other("no servers have been looked for yet".into()))
    }

    fn samplers(&mut self) -> Result<&mut StepSamplers, LabError> {
        self.samplers.as_mut().ok_or_else(|| LabError::Other("the servers are not looked at yet".into()))
    }
}

impl Site for LocalSite {
    fn find(&mut self, goal: &Goal) -> Result<MachineFacts, LabError> {
        let read = |name: &String| match self.known.iter().find(|s| s.to_string() == *name) {
            Some(server) => Ok(server.clone()),
            None if self.only_known => {
                Err(LabError::Other(format!("'{name}' is none of the servers that may be looked at")))
            }
            None => name.parse::<ServerRef>().map_err(LabError::Other),
        };
        let servers = goal.servers.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        (self.samplers, self.following, self.readings) = (None, None, Readings::default());
        (self.began, self.costs) = (Instant::now(), Costs::default());
        self.scope = if self.only_known { Scope::only(&self.known) } else { Scope::All };
        let all = self.costs.timed("finding", || named(&servers, goal.endpoint().as_ref(), &self.scope))?;
        self.members = Members { all, ..Members::default() };
        self.goal = Some(goal.clone());
        let memory_bytes = HostMemory::now().map_or(0, |m| m.total);
        Ok(MachineFacts { processors: host::processors(), memory_bytes, ..MachineFacts::default() })
    }

    fn visitors(&mut self) -> Result<Option<String>, LabError> {
        // Servers are named in any order: visitors are clients of the one at the URL.
        let at = self.goal()?.endpoint();
        let met = self.costs.timed("visitors", || at.and_then(|e| listeners::owner(&e)));
        let is_met = |m: &&Member| met.is_some_and(|pid| process::ancestry(pid).any(|p| p == m.found.master));
        let Some(front) = self.members.all.iter().find(is_met).or(self.members.all.first()) else { return Ok(None) };
        let Ok(namespace) = Namespace::of(front.found.master) else { return Ok(None) };
        let ignore: Vec<IpAddr> = self.goal()?.ignore.iter().map(IpAddr::to_canonical).collect();
        let ports = front.found.ports();
        let (mut seen, mut before) = (BTreeMap::<String, usize>::new(), None);
        for _ in 0..VISITOR_LOOKS {
            let mut now = BTreeMap::<String, usize>::new();
            // The kernel walks its whole table to list connections. So it is asked again only after another connection
            // has come.
            let (ends, cost) = timed(|| {
                let so_far = taken(front.found.master).ok();
                if so_far.is_some() && so_far == before {
                    return Vec::new();
                }
                let ends = namespace.others(&ports);
                before = so_far.filter(|_| ends.is_ok());
                ends.unwrap_or_default()
            });
            self.costs.add("visitors", cost);
            for end in ends.into_iter().filter(|end| !ignore.contains(&end.ip().to_canonical())) {
                *now.entry(end.ip().to_string()).or_default() += 1;
            }
            for (address, n) in now {
                let most = seen.entry(address).or_default();
                *most = n.max(*most);
            }
            thread::sleep(VISITOR_PAUSE.max(cost * VISITOR_PAUSES));
        }
        let most = seen.into_iter().max_by_key(|(_, n)| *n);
        Ok(most.map(|(address, n)| format!("{n} connections from {address}")))
    }

    fn follow(&mut self) -> Result<(), LabError> {
        let goal = self.goal()?.clone();
        self.following =
            Some(ConnectionFollower::start(std::mem::take(&mut self.members).all, goal.endpoint(), &self.scope));
        Ok(())
    }

    fn servers(&mut self) -> Result<Servers, LabError> {
        if let Some(following) = self.following.take() {
            let (members, cost) = following.end()?;
            self.members = members;
            self.costs.add("following", cost);
        }
        let hidden = |what: &String| format!("{what}, which takes part, is none of the servers that may be looked at");
        let mut unseen: Vec<String> = self.members.hidden.iter().map(hidden).collect();
        let servers = self.costs.timed("settings", || settings::examined(&self.members, &mut unseen));
        let sysctls = settings::sysctls(&self.members, &mut unseen);
        self.used = vec![None; self.members.all.len()];
        let goal = self.goal()?;
        self.samplers = Some(StepSamplers::start(&self.members, goal, &self.databases, &self.samples));
        Ok(Servers { servers, sysctls, unseen })
    }

    fn begin(&mut self) -> Result<(), LabError> {
        let samplers = self.samplers()?;
        let ((), cost) = timed(|| samplers.begin());
        self.costs.add("steps", cost);
        Ok(())
    }

    fn end(&mut self) -> Result<ExaminationStep, LabError> {
        let samplers = self.samplers()?;
        let (step, cost) = timed(|| samplers.end());
        self.costs.add("steps", cost);
        // `cpu_cores` misses a program that is started for a request and ends between two samples.
        let is_full = step.cores.iter().sum::<f64>() >= FULL * step.cores.len() as f64;
        for (most, seen) in self.used.iter_mut().zip(&step.servers) {
            let at_least = is_full.then_some(WORTH_A_PROFILE);
            *most = seen.cpu_cores.into_iter().chain(at_least).chain(*most).reduce(f64::max);
        }
        Ok(step)
    }

    fn inside(&mut self, profile: bool) -> Result<Vec<ServerProfile>, LabError> {
        let computes = |used: &Option<f64>| used.is_none_or(|cores| cores >= WORTH_A_PROFILE);
        let profiled: Vec<bool> = self.used.iter().map(|used| profile && computes(used)).collect();
        let (seen, costs) = inside::look(&self.members, &self.goal()?.url, &profiled);
        self.costs.add_all(&costs);
        Ok(seen)
    }

    fn code(
        &mut self,
        server: &str,
        plan: &Plan,
        stop: &AtomicBool,
    ) -> Result<Option<Result<Vec<HotFunction>, String>>, LabError> {
        let Some(member) = self.members.all.iter().find(|member| member.called == server) else { return Ok(None) };
        let found = || member.found.name.parse().ok();
        let Some(server) = member.named.clone().or_else(found).filter(is_profiled_unasked) else { return Ok(None) };
        let options = CodeOptions { language: None, clock: Clock::Cpu, time: CODE };
        match profile_code(&server, plan, &options, stop) {
            Ok(profile) => {
                let how = &profile.document.how;
                let of = |function: &ProfileFunction| {
                    let code = function.code.as_ref()?;
                    Some(HotFunction {
                        name: code.name.clone(),
                        file: code.file.clone(),
                        line: code.line,
                        share: code.exclusive_share,
                        how: how.clone(),
                    })
                };
                Ok(Some(Ok(profile.document.functions.iter().take(MOST_HOT).filter_map(of).collect())))
            }
            Err(LabError::Interrupted) => Err(LabError::Interrupted),
            Err(why) => Ok(Some(Err(why.to_string()))),
        }
    }

    fn memory(&mut self, requests: u64) -> Result<(), LabError> {
        self.costs.timed("memory", || self.readings.read(&self.members, requests));
        Ok(())
    }

    fn settle(&mut self) -> Result<(), LabError> {
        let masters: Vec<i32> = self.members.all.iter().map(|m| m.found.master).collect();
        let (_, cost) = wait_for_empty_queues(&masters);
        self.costs.add("settling", cost);
        Ok(())
    }

    fn modules(&mut self) -> Result<ModuleTrials, LabError> {
        Ok(settings::try_modules(&self.members, &self.goal()?.url))
    }

    fn finish(&mut self) -> Result<SiteSummary, LabError> {
        let growth = self.readings.growth();
        let ceilings = self.costs.timed("memory", || settings::ceilings(&self.members));
        let Some(mut samplers) = self.samplers.take() else {
            return Ok(SiteSummary { growth, ceilings, ..SiteSummary::default() });
        };
        self.costs.add_all(&samplers.costs());
        let cores = self.costs.total().as_secs_f64() / self.began.elapsed().as_secs_f64().max(1e-3);
        let (cost_cores, cost_s) = ((cores * 1e4).round() / 1e4, self.costs.seconds());
        let mut unseen = std::mem::take(&mut samplers.unread);
        // That a server has ended explains everything that could not be read of it.
        for member in self.members.all.iter().filter(|m| process::look(m.found.master).is_none_or(|p| p.state == 'Z')) {
            let (name, pid) = (&member.called, member.found.master);
            unseen.retain(|line| !line.starts_with(&format!("{name}: ")));
            unseen.push(format!("{name} once it had ended (process {pid}, while it was examined): its log may say why; steps without answers are of no server"));
        }
        Ok(SiteSummary { growth, ceilings, unseen, cost_cores, cost_s })
    }
}
