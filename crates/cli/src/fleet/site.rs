//! The coordinator's side of a doctor's questions: the machine of an agent as a [`Site`]. It translates the agent's names of
//! servers into the user's; servers that the user did not name are `AGENT/NAME`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_experiment::doctor::{Goal, MachineFacts, ModuleTrials, Nodes, Servers, Site, SiteSummary};
use lastdrop_experiment::lab::LabError;
use lastdrop_model::Sample;
use lastdrop_model::examination::{ExaminationStep, ServerProfile};
use lastdrop_probe::listeners::is_local;
use lastdrop_server::{ServerError, ServerRef};

use super::calls::{
    BeginStep, Call, EndStep, FindServers, FindVisitors, FinishExamination, FollowLinks, ReadMemory, ReadServers,
    ServerName, ServersFound, SettleQueues, TakeSamples, TraceServers, TryModules,
};
use super::machines::{AgentHosts, ServerConversation};

/// How often samples for the user's view are asked for.
const EVERY: Duration = Duration::from_secs(1);

/// The machine of an agent.
struct RemoteSite {
    asking: Arc<ServerConversation>,
    /// The servers, as the user named them.
    servers: Vec<ServerRef>,
    /// The user's name of a server by the agent's.
    called: BTreeMap<String, String>,
    /// The agent may change servers.
    acts: bool,
    /// One of the servers is of a kind that has modules or extensions.
    has_modules: bool,
    /// The agent's address as this machine sees it.
    address: Option<IpAddr>,
    /// The agents on the same machine, this one included.
    there: Vec<String>,
    told: Sender<Sample>,
    forwarder: Option<SampleForwarder>,
    /// The error after which the agent is not asked again, so that a lost machine costs one timeout only.
    failed: Option<String>,
}

/// Asks for samples during a load and passes them on to the user's view; ends on drop.
struct SampleForwarder {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl AgentHosts {
    /// The machine of the agent that has the servers, or the machines of several agents that each have all of them. Samples of
    /// the first server go to `told` as they come.
    ///
    /// # Errors
    /// When an agent cannot be asked.
    pub fn sites(&self, servers: &[ServerRef], told: &Sender<Sample>) -> Result<Box<dyn Site>, ServerError> {
        let agents = servers.first().map_or(&[][..], ServerRef::agents);
        let mut sites = Vec::new();
        for place in 0..agents.len() {
            let own: Vec<ServerRef> =
                servers.iter().filter_map(|server| server.each().into_iter().nth(place)).collect();
            // The view shows one server.
            let told = if place == 0 { told.clone() } else { channel().0 };
            sites.push(self.site(&own, told)?);
        }
        Ok(if sites.len() == 1 { sites.swap_remove(0) } else { Box::new(Nodes::new(sites)) })
    }

    /// The machine of the agent that has all of these servers.
    fn site(&self, servers: &[ServerRef], told: Sender<Sample>) -> Result<Box<dyn Site>, ServerError> {
        let Some(first) = servers.first() else { return Err(ServerError::Setting("no server is named".into())) };
        let asking = self.about(first)?;
        let failed = |what: String| ServerError::Elsewhere { agent: asking.agent().into(), what, refusal: false };
        let agents = self.agents().map_err(|e| failed(e.to_string()))?;
        let own = agents.iter().find(|(agent, _)| agent.name == asking.agent());
        let address = own.and_then(|(_, address)| *address);
        let same = agents.iter().filter(|(agent, at)| agent.name == asking.agent() || at.is_some() && *at == address);
        Ok(Box::new(RemoteSite {
            there: same.map(|(agent, _)| agent.name.clone()).collect(),
            acts: own.is_some_and(|(agent, _)| agent.limits.act),
            address,
            asking: Arc::new(asking),
            servers: servers.to_vec(),
            has_modules: false,
            called: BTreeMap::new(),
            told,
            forwarder: None,
            failed: None,
        }))
    }
}

impl RemoteSite {
    fn ask<C: Call>(&mut self, call: C) -> Result<C::Answer, LabError> {
        if let Some(what) = &self.failed {
            let agent = self.asking.agent().to_string();
            return Err(ServerError::Elsewhere { agent, what: what.clone(), refusal: false }.into());
        }
        let answer = self.asking.ask(call);
        answer.map_err(|e| self.fails(e))
    }

    fn fails(&mut self, e: ServerError) -> LabError {
        if let ServerError::Elsewhere { what, .. } = &e {
            self.failed = Some(what.clone());
        }
        e.into()
    }

    /// The user's name of a server.
    fn name(&self, theirs: &str) -> String {
        let own = || format!("{}/{theirs}", self.asking.agent());
        self.called.get(theirs).cloned().unwrap_or_else(own)
    }

    /// A server as the user's command line names it, without the agent's own name for it.
    fn named(&self, theirs: &str, called: &str) -> String {
        let user = self.servers.iter().find(|server| server.called() == called);
        user.map_or_else(|| format!("{}/{}", self.asking.agent(), without_name(theirs)), ToString::to_string)
    }

    /// A note about something unseen, with the name of the agent.
    fn there(&self, what: &str) -> String {
        format!("{}: {what}", self.asking.agent())
    }

    fn is_here(&self) -> bool {
        self.address.is_some_and(|address| is_local(&SocketAddr::new(address, 0)))
    }

    /// The goal in the agent's terms.
    fn goal_there(&self, goal: &Goal) -> Goal {
        let is_here = self.is_here();
        // Addresses and paths of this machine mean something else there.
        let address = goal.address.filter(|address| is_here || !is_local(address));
        let mut load_from = goal.load_from.clone();
        let to = [goal.address, self.address.map(|ip| SocketAddr::new(ip, 9))];
        if goal.load_from.is_empty() {
            load_from.extend(to.iter().flatten().filter_map(source));
        }
        // Requests from a load balancer at the goal's address belong to the load.
        load_from.extend(goal.address.map(|a| a.ip()).filter(|ip| !is_here && Some(*ip) != self.address));
        load_from.sort();
        load_from.dedup();
        let unix_socket = goal.unix_socket.clone().filter(|_| is_here);
        Goal { servers: Vec::new(), address, unix_socket, load_from, ..goal.clone() }
    }
}

/// Removes the name before `=`.
fn without_name(named: &str) -> &str {
    let own = named.split_once('=').filter(|(name, _)| !name.contains([':', '@', '/']));
    own.map_or(named, |(_, rest)| rest)
}

/// The source address of this machine for connections to another.
fn source(to: &SocketAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

impl Site for RemoteSite {
    fn find(&mut self, goal: &Goal) -> Result<MachineFacts, LabError> {
        (self.forwarder, self.failed) = (None, None);
        let beside = self.servers.iter().skip(1).map(ServerName::of).collect();
        let goal = Box::new(self.goal_there(goal));
        let ServersFound { machine, called } = self.ask(FindServers { beside, goal })?;
        let ours = self.servers.iter().map(|server| server.called().to_string());
        self.called = called.into_iter().zip(ours).collect();
        let (name, agents) = (self.asking.agent().into(), self.there.clone());
        Ok(MachineFacts { name, away: !self.is_here(), agents, ..machine })
    }

    fn visitors(&mut self) -> Result<Option<String>, LabError> {
        self.ask(FindVisitors {})
    }

    fn follow(&mut self) -> Result<(), LabError> {
        self.ask(FollowLinks {})
    }

    fn servers(&mut self) -> Result<Servers, LabError> {
        let Servers { mut servers, sysctls, unseen } = self.ask(ReadServers {})?;
        for server in &mut servers {
            server.server = self.name(&server.server);
            server.named = self.named(&server.named, &server.server);
            server.to.iter_mut().filter(|to| !to.is_empty()).for_each(|to| *to = self.name(to));
        }
        self.has_modules = servers.iter().any(|server| ["apache", "php-fpm"].contains(&server.kind.as_str()));
        Ok(Servers { servers, sysctls, unseen: unseen.iter().map(|what| self.there(what)).collect() })
    }

    fn begin(&mut self) -> Result<(), LabError> {
        self.ask(BeginStep {})?;
        self.forwarder = Some(SampleForwarder::start(&self.asking, &self.told));
        Ok(())
    }

    fn end(&mut self) -> Result<ExaminationStep, LabError> {
        if let Some(Err(e)) = self.forwarder.take().and_then(SampleForwarder::end) {
            return Err(self.fails(e));
        }
        let mut step = self.ask(EndStep {})?;
        step.servers.iter_mut().for_each(|seen| seen.server = self.name(&seen.server));
        for look in &mut step.databases {
            look.server = look.server.as_ref().map(|server| self.name(server));
        }
        Ok(step)
    }

    fn inside(&mut self, profile: bool) -> Result<Vec<ServerProfile>, LabError> {
        let mut all = self.ask(TraceServers { profile })?;
        for inside in &mut all {
            inside.server = self.name(&inside.server);
            inside.unseen.iter_mut().for_each(|what| *what = self.there(what));
        }
        Ok(all)
    }

    fn memory(&mut self, requests: u64) -> Result<(), LabError> {
        self.ask(ReadMemory { requests })
    }

    fn settle(&mut self) -> Result<(), LabError> {
        self.ask(SettleQueues {})
    }

    fn modules(&mut self) -> Result<ModuleTrials, LabError> {
        if !self.has_modules {
            return Ok(ModuleTrials::default());
        }
        if !self.acts {
            let what = "which modules it could do without: a second instance is started for that, and the agent only looks (--act)";
            return Ok(ModuleTrials { unseen: vec![self.there(what)], ..ModuleTrials::default() });
        }
        let ModuleTrials { modules, unseen } = self.ask(TryModules {})?;
        Ok(ModuleTrials {
            modules: modules.into_iter().map(|(server, tried)| (self.name(&server), tried)).collect(),
            unseen: unseen.iter().map(|what| self.there(what)).collect(),
        })
    }

    fn finish(&mut self) -> Result<SiteSummary, LabError> {
        let mut rest = self.ask(FinishExamination {})?;
        rest.growth.iter_mut().for_each(|growth| growth.server = self.name(&growth.server));
        rest.unseen.iter_mut().for_each(|what| *what = self.there(what));
        Ok(rest)
    }
}

impl SampleForwarder {
    fn start(asking: &Arc<ServerConversation>, told: &Sender<Sample>) -> SampleForwarder {
        let (asking, told) = (Arc::clone(asking), told.clone());
        let (over, is_over) = channel::<()>();
        let work = move || {
            while let Err(RecvTimeoutError::Timeout) = is_over.recv_timeout(EVERY) {
                // The view may have ended.
                asking.ask(TakeSamples {})?.into_iter().for_each(|look| _ = told.send(look));
            }
            Ok(())
        };
        SampleForwarder { over: Some(over), thread: thread::Builder::new().name("looks".into()).spawn(work).ok() }
    }

    /// Stops; returns an error if the agent could not be asked.
    fn end(mut self) -> Option<Result<(), ServerError>> {
        self.over = None;
        self.thread.take()?.join().ok()
    }
}

impl Drop for SampleForwarder {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_own_name_of_a_server_is_none_here() {
        assert_eq!(without_name("front=nginx:/a=b.conf"), "nginx:/a=b.conf");
        assert_eq!(without_name("nginx:/a=b.conf"), "nginx:/a=b.conf");
        assert_eq!(without_name("apache@http://127.0.0.1/s?a=b"), "apache@http://127.0.0.1/s?a=b");
    }
}
