//! The same servers on several machines, which share a load. Each machine is asked the same, at the same time. Their
//! answers together are those of a site. The samples of each machine, with its part of the load, are an examination of
//! its own.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;

use crate::lab::LabError;
use lastdrop_model::examination::{Examination, ExaminationStep, Growth, ServerProfile, StepKind};

use crate::doctor::site::{Goal, MachineFacts, ModuleTrials, Servers, Site, SiteSummary};
use crate::doctor::step::cores_beside;

/// Several machines as one site.
pub struct Nodes(Vec<Node>);

/// A machine, and its answers so far.
struct Node {
    site: Box<dyn Site>,
    machine: MachineFacts,
    servers: Servers,
    steps: Vec<ExaminationStep>,
    inside: Vec<ServerProfile>,
    modules: ModuleTrials,
    growth: Vec<Growth>,
    cost_cores: f64,
    cost_s: BTreeMap<String, f64>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|node| &node.machine.name)).finish()
    }
}

impl Nodes {
    #[must_use]
    pub fn new(sites: Vec<Box<dyn Site>>) -> Nodes {
        Nodes(sites.into_iter().map(Node::new).collect())
    }

    /// Asks all machines at once, so that their samples are of the same time.
    fn ask<T: Send>(
        &mut self,
        ask: impl Fn(&mut dyn Site) -> Result<T, LabError> + Sync,
    ) -> Result<Vec<(&mut Node, T)>, LabError> {
        let ask = &ask;
        let answers: Vec<Result<T, LabError>> = thread::scope(|scope| {
            let asked: Vec<_> = self.0.iter_mut().map(|node| scope.spawn(move || ask(node.site.as_mut()))).collect();
            let broken = |_| Err(LabError::Other("asking a machine failed".into()));
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(broken)).collect()
        });
        self.0.iter_mut().zip(answers).map(|(node, answer)| Ok((node, answer?))).collect()
    }

    /// Like [`Nodes::ask`], for a question without an answer.
    fn tell(&mut self, ask: impl Fn(&mut dyn Site) -> Result<(), LabError> + Sync) -> Result<(), LabError> {
        self.ask(ask).map(|_| ())
    }
}

impl Node {
    fn new(site: Box<dyn Site>) -> Node {
        Node {
            site,
            machine: MachineFacts::default(),
            servers: Servers::default(),
            steps: Vec::new(),
            inside: Vec::new(),
            modules: ModuleTrials::default(),
            growth: Vec::new(),
            cost_cores: 0.0,
            cost_s: BTreeMap::new(),
        }
    }

    /// Returns this machine's part of an examination of all.
    fn examination(&self, whole: &Examination, parts: u64) -> Examination {
        let mut seen = self.steps.iter();
        let step = |step: &ExaminationStep| {
            let own = match step.kind {
                StepKind::Alone | StepKind::Inside => None,
                _ => seen.next(),
            };
            part(step, own, &self.machine, parts)
        };
        let mut servers = self.servers.servers.clone();
        for server in &mut servers {
            server.modules = self.modules.modules.get(&server.server).cloned();
        }
        Examination {
            url: whole.url.clone(),
            tls: whole.tls,
            machine: self.machine.name.clone(),
            processors: self.machine.processors,
            memory_bytes: self.machine.memory_bytes,
            load: whole.load,
            servers,
            steps: whole.steps.iter().map(step).collect(),
            inside: self.inside.clone(),
            growth: self.growth.clone(),
            answers: whole.answers.clone(),
            sysctls: self.servers.sysctls.clone(),
            cost_cores: self.cost_cores,
            cost_s: self.cost_s.clone(),
            ..Examination::default()
        }
    }
}

/// Returns a step with one machine's samples and its part of the load. The machines are assumed to share the load
/// evenly, as nothing here shows how they do.
fn part(
    whole: &ExaminationStep,
    seen: Option<&ExaminationStep>,
    machine: &MachineFacts,
    parts: u64,
) -> ExaminationStep {
    let n = parts.max(1);
    let each = |map: &BTreeMap<String, u64>| map.iter().map(|(k, v)| (k.clone(), v.div_ceil(n))).collect();
    let mut step = ExaminationStep {
        // One user alone is one user on each machine.
        users: u64::from(whole.users).div_ceil(n) as u32,
        rate_rps: whole.rate_rps / n as f64,
        due: whole.due / n,
        answered: whole.answered / n,
        answered_rps: whole.answered_rps / n as f64,
        timed_out: whole.timed_out.div_ceil(n),
        failed: each(&whole.failed),
        connect_errors: each(&whole.connect_errors),
        status: each(&whole.status),
        connections: whole.connections / n,
        handshakes_full: whole.handshakes_full / n,
        handshakes_resumed: whole.handshakes_resumed / n,
        bytes_received: whole.bytes_received / n,
        ..whole.clone()
    };
    let seen = seen.cloned().unwrap_or_default();
    step.cores = seen.cores;
    step.softirq = seen.softirq;
    step.steal = seen.steal;
    step.pressure = seen.pressure;
    step.swapped_pages = seen.swapped_pages;
    step.started_tasks = seen.started_tasks;
    step.oom_kills = seen.oom_kills;
    step.databases = seen.databases;
    step.kernel_log = seen.kernel_log;
    step.servers = seen.servers;
    step.generator.cores_here = cores_beside(&whole.generator, machine);
    step
}

impl Site for Nodes {
    fn find(&mut self, goal: &Goal) -> Result<MachineFacts, LabError> {
        let mut all = MachineFacts { away: true, ..MachineFacts::default() };
        let mut names = Vec::new();
        for (node, machine) in self.ask(|site| site.find(goal))? {
            all.processors += machine.processors;
            all.memory_bytes += machine.memory_bytes;
            all.away &= machine.away;
            all.agents.extend(machine.agents.iter().cloned());
            names.push(machine.name.clone());
            (node.machine, node.servers, node.modules) = (machine, Servers::default(), ModuleTrials::default());
            (node.steps, node.inside, node.growth) = (Vec::new(), Vec::new(), Vec::new());
        }
        all.agents.sort();
        all.agents.dedup();
        Ok(MachineFacts { name: names.join(", "), ..all })
    }

    fn visitors(&mut self) -> Result<Option<String>, LabError> {
        let seen = self.ask(|site| site.visitors())?;
        Ok(seen.into_iter().find_map(|(node, seen)| Some(format!("{} to {}", seen?, node.machine.name))))
    }

    fn follow(&mut self) -> Result<(), LabError> {
        self.tell(|site| site.follow())
    }

    fn servers(&mut self) -> Result<Servers, LabError> {
        let mut all = Servers::default();
        for (node, own) in self.ask(|site| site.servers())? {
            all.servers.extend(own.servers.iter().cloned());
            all.unseen.extend(own.unseen.iter().cloned());
            // The kernel settings of the first machine stand for the site; each machine has its own.
            if all.sysctls.is_empty() {
                all.sysctls.clone_from(&own.sysctls);
            }
            node.servers = own;
        }
        Ok(all)
    }

    fn begin(&mut self) -> Result<(), LabError> {
        self.tell(|site| site.begin())
    }

    fn end(&mut self) -> Result<ExaminationStep, LabError> {
        let mut all = ExaminationStep::default();
        for (node, own) in self.ask(|site| site.end())? {
            let seen = own.clone();
            all.cores.extend(seen.cores);
            all.softirq.extend(seen.softirq);
            all.steal = all.steal.max(seen.steal);
            for (what, share) in seen.pressure {
                let most = all.pressure.entry(what).or_default();
                *most = most.max(share);
            }
            all.swapped_pages += seen.swapped_pages;
            all.started_tasks = all.started_tasks.into_iter().chain(seen.started_tasks).reduce(|a, b| a + b);
            all.oom_kills += seen.oom_kills;
            all.databases.extend(seen.databases);
            all.kernel_log.extend(seen.kernel_log.iter().map(|line| format!("{}: {line}", node.machine.name)));
            all.servers.extend(seen.servers);
            node.steps.push(own);
        }
        Ok(all)
    }

    fn inside(&mut self, profile: bool) -> Result<Vec<ServerProfile>, LabError> {
        let mut all = Vec::new();
        for (node, own) in self.ask(|site| site.inside(profile))? {
            all.extend(own.iter().cloned());
            node.inside = own;
        }
        Ok(all)
    }

    fn memory(&mut self, requests: u64) -> Result<(), LabError> {
        let each = requests / self.0.len().max(1) as u64;
        self.tell(|site| site.memory(each))
    }

    fn settle(&mut self) -> Result<(), LabError> {
        self.tell(|site| site.settle())
    }

    fn modules(&mut self) -> Result<ModuleTrials, LabError> {
        let mut all = ModuleTrials::default();
        for (node, tried) in self.ask(|site| site.modules())? {
            all.modules.extend(tried.modules.clone());
            all.unseen.extend(tried.unseen.iter().cloned());
            node.modules = tried;
        }
        Ok(all)
    }

    fn finish(&mut self) -> Result<SiteSummary, LabError> {
        let mut all = SiteSummary::default();
        for (node, own) in self.ask(|site| site.finish())? {
            (node.growth, node.cost_cores) = (own.growth.clone(), own.cost_cores);
            for (what, seconds) in &own.cost_s {
                *all.cost_s.entry(what.clone()).or_default() += seconds;
            }
            node.cost_s = own.cost_s;
            all.growth.extend(own.growth);
            all.unseen.extend(own.unseen);
            all.cost_cores += own.cost_cores;
        }
        Ok(all)
    }

    fn nodes(&mut self, whole: &Examination) -> Vec<Examination> {
        let parts = self.0.len() as u64;
        self.0.iter().map(|node| node.examination(whole, parts)).collect()
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::examination::{
        ExaminedServer, GeneratorMeasurements, ModuleSize, ModuleTrial, ServerMeasurements,
    };

    use super::*;

    /// A fake machine with one server, which uses these cores.
    struct FakeSite {
        name: &'static str,
        cores: Vec<f64>,
        lost: bool,
    }

    impl FakeSite {
        fn server(&self) -> String {
            format!("{}/apache", self.name)
        }
    }

    impl Site for FakeSite {
        fn find(&mut self, _: &Goal) -> Result<MachineFacts, LabError> {
            let processors = self.cores.len() as u64;
            Ok(MachineFacts {
                name: self.name.into(),
                away: true,
                processors,
                agents: vec![self.name.into()],
                ..MachineFacts::default()
            })
        }
        fn visitors(&mut self) -> Result<Option<String>, LabError> {
            Ok((self.name == "b").then(|| "2 connections from 10.0.0.9".into()))
        }
        fn follow(&mut self) -> Result<(), LabError> {
            Ok(())
        }
        fn servers(&mut self) -> Result<Servers, LabError> {
            let servers = vec![ExaminedServer { server: self.server(), ..ExaminedServer::default() }];
            Ok(Servers { servers, ..Servers::default() })
        }
        fn begin(&mut self) -> Result<(), LabError> {
            Ok(())
        }
        fn end(&mut self) -> Result<ExaminationStep, LabError> {
            if self.lost {
                return Err(LabError::Other(format!("{} is lost", self.name)));
            }
            let servers = vec![ServerMeasurements { server: self.server(), ..ServerMeasurements::default() }];
            Ok(ExaminationStep { cores: self.cores.clone(), servers, ..ExaminationStep::default() })
        }
        fn inside(&mut self, _profile: bool) -> Result<Vec<ServerProfile>, LabError> {
            Ok(vec![ServerProfile { server: self.server(), ..ServerProfile::default() }])
        }
        fn memory(&mut self, requests: u64) -> Result<(), LabError> {
            assert_eq!(requests, 50);
            Ok(())
        }
        fn settle(&mut self) -> Result<(), LabError> {
            Ok(())
        }
        fn modules(&mut self) -> Result<ModuleTrials, LabError> {
            let unused = vec![ModuleSize { name: self.name.into(), ..ModuleSize::default() }];
            let tried = ModuleTrial { unused, ..ModuleTrial::default() };
            Ok(ModuleTrials { modules: [(self.server(), tried)].into(), unseen: vec![format!("{}: why", self.name)] })
        }
        fn finish(&mut self) -> Result<SiteSummary, LabError> {
            Ok(SiteSummary { cost_cores: 0.25, ..SiteSummary::default() })
        }
    }

    fn nodes(lost: bool) -> Nodes {
        let a = FakeSite { name: "a", cores: vec![1.0, 0.5], lost: false };
        Nodes::new(vec![Box::new(a), Box::new(FakeSite { name: "b", cores: vec![0.1], lost })])
    }

    fn goal() -> Goal {
        Goal {
            servers: Vec::new(),
            url: "http://127.0.0.1/".parse().expect("a URL"),
            address: None,
            unix_socket: None,
            load_from: Vec::new(),
            ignore: Vec::new(),
        }
    }

    #[test]
    fn each_machine_has_what_was_seen_of_it_and_its_part_of_the_load() {
        let mut nodes = nodes(false);
        let machine = nodes.find(&goal()).expect("found");
        assert_eq!((machine.name.as_str(), machine.processors, machine.away), ("a, b", 3, true));
        let visitors = nodes.visitors().expect("asked");
        assert_eq!(visitors.as_deref(), Some("2 connections from 10.0.0.9 to b"));
        assert_eq!(nodes.servers().expect("told").servers.len(), 2);
        let tried = nodes.modules().expect("tried");
        assert_eq!(tried.modules.keys().collect::<Vec<_>>(), ["a/apache", "b/apache"]);
        assert_eq!(tried.unseen, ["a: why", "b: why"]);
        nodes.memory(100).expect("read");
        let seen = nodes.end().expect("a step");
        assert_eq!((&seen.cores, seen.servers.len()), (&vec![1.0, 0.5, 0.1], 2));
        assert_eq!(nodes.finish().expect("told").cost_cores, 0.5);
        let agents = [("a".to_string(), 0.3), ("far".to_string(), 0.9)].into();
        let generator = GeneratorMeasurements { cores: 1.2, agents, ..GeneratorMeasurements::default() };
        let alone = ExaminationStep { kind: StepKind::Alone, users: 1, answered: 9, ..ExaminationStep::default() };
        let main = ExaminationStep { users: 20, answered: 101, answered_rps: 10.1, generator, ..seen };
        let whole = Examination { steps: vec![alone, main], ..Examination::default() };
        let each = nodes.nodes(&whole);
        let of = |node: usize, step: usize| {
            let step = &each[node].steps[step];
            (step.users, step.answered, step.cores.clone(), step.generator.cores_here)
        };
        assert_eq!(of(0, 0), (1, 4, Vec::new(), Some(0.0)));
        assert_eq!(of(0, 1), (10, 50, vec![1.0, 0.5], Some(0.3)));
        assert_eq!(of(1, 1), (10, 50, vec![0.1], Some(0.0)));
        assert_eq!(each[1].servers[0].server, "b/apache");
        let own = each[1].servers[0].modules.as_ref().expect("tried");
        assert_eq!(own.unused[0].name, "b", "each has its own");
        assert_eq!(each[1].steps[1].servers[0].server, "b/apache");
    }

    #[test]
    fn a_machine_that_is_lost_is_no_machine_that_saw_nothing() {
        let mut nodes = nodes(true);
        nodes.find(&goal()).expect("found");
        assert_eq!(nodes.end().expect_err("b is lost").to_string(), "b is lost");
    }
}
