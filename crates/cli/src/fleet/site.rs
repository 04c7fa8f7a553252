//! The coordinator's side of a doctor's questions: the machine of an agent as a [`Site`]. Whatever the agent calls its servers, here they
//! are called as the user named them; those that he did not name are `AGENT/NAME`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_doctor::{Goal, Machine, ModuleTrials, Nodes, Servers, Site, SiteSummary};
use lastdrop_lab::LabError;
use lastdrop_model::Sample;
use lastdrop_model::examination::{ExaminationStep, ServerProfile};
use lastdrop_probe::listeners::is_local;
use lastdrop_server::{ServerError, ServerRef};

use super::questions::{Answer, Examine, Examined, Named, Question};
use super::reach::{Asking, Reach};

/// What is asked takes some seconds at most; a machine that is full takes longer to read what it has seen.
const WITHIN: Duration = Duration::from_secs(120);
/// How often looks are asked for that people are shown.
const EVERY: Duration = Duration::from_secs(1);

/// The machine of an agent.
struct Elsewhere {
    asking: Arc<Asking>,
    /// As the user named them.
    servers: Vec<ServerRef>,
    /// What the agent calls them, with what they are called here.
    called: BTreeMap<String, String>,
    /// The agent may change servers.
    acts: bool,
    /// One of the servers is of a kind that may have modules, or extensions, that nothing needs.
    has_modules: bool,
    /// The agent as it is seen from here, and the agents that are on the same machine.
    address: Option<IpAddr>,
    there: Vec<String>,
    told: Sender<Sample>,
    telling: Option<Telling>,
    /// Why it is not asked any more: nobody waits for a machine that is lost again and again.
    failed: Option<String>,
}

/// Asks for looks while a load is on, so that whoever watches it sees the server. Dropped, it ends.
struct Telling {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Reach {
    /// The machine of servers that are all of one agent; or those of several that each have all of them. Looks at the first server are told
    /// as they come.
    ///
    /// # Errors
    /// When an agent cannot be asked.
    pub fn sites(&self, servers: &[ServerRef], told: &Sender<Sample>) -> Result<Box<dyn Site>, ServerError> {
        let agents = servers.first().map_or(&[][..], ServerRef::agents);
        let mut sites = Vec::new();
        for place in 0..agents.len() {
            let own: Vec<ServerRef> =
                servers.iter().filter_map(|server| server.each().into_iter().nth(place)).collect();
            // A view has one server.
            let told = if place == 0 { told.clone() } else { channel().0 };
            sites.push(self.site(&own, told)?);
        }
        Ok(if sites.len() == 1 { sites.swap_remove(0) } else { Box::new(Nodes::new(sites)) })
    }

    /// The machine of servers that are all of one agent.
    fn site(&self, servers: &[ServerRef], told: Sender<Sample>) -> Result<Box<dyn Site>, ServerError> {
        let Some(first) = servers.first() else { return Err(ServerError::Setting("no server is named".into())) };
        let asking = self.about(first)?;
        let failed = |what: String| ServerError::Elsewhere { agent: asking.agent().into(), what, refusal: false };
        let agents = self.agents().map_err(|e| failed(e.to_string()))?;
        let own = agents.iter().find(|(agent, _)| agent.name == asking.agent());
        let address = own.and_then(|(_, address)| *address);
        let same = agents.iter().filter(|(agent, at)| agent.name == asking.agent() || at.is_some() && *at == address);
        Ok(Box::new(Elsewhere {
            there: same.map(|(agent, _)| agent.name.clone()).collect(),
            acts: own.is_some_and(|(agent, _)| agent.limits.act),
            address,
            asking: Arc::new(asking),
            servers: servers.to_vec(),
            has_modules: false,
            called: BTreeMap::new(),
            told,
            telling: None,
            failed: None,
        }))
    }
}

impl Elsewhere {
    fn ask(&mut self, what: Examine) -> Result<Examined, LabError> {
        match self.answer(what)? {
            Answer::Examined(examined) => Ok(*examined),
            other => Err(self.asking.odd(&other).into()),
        }
    }

    fn done(&mut self, what: Examine) -> Result<(), LabError> {
        match self.answer(what)? {
            Answer::Done => Ok(()),
            other => Err(self.asking.odd(&other).into()),
        }
    }

    fn answer(&mut self, what: Examine) -> Result<Answer, LabError> {
        let agent = || self.asking.agent().to_string();
        if let Some(what) = &self.failed {
            return Err(ServerError::Elsewhere { agent: agent(), what: what.clone(), refusal: false }.into());
        }
        let answer = self.asking.ask(Question::Examine(what), WITHIN);
        answer.map_err(|e| self.fails(e))
    }

    fn fails(&mut self, e: ServerError) -> LabError {
        if let ServerError::Elsewhere { what, .. } = &e {
            self.failed = Some(what.clone());
        }
        e.into()
    }

    fn odd(&self, examined: Examined) -> LabError {
        self.asking.odd(&Answer::Examined(Box::new(examined))).into()
    }

    /// What a server is called here.
    fn name(&self, theirs: &str) -> String {
        let own = || format!("{}/{theirs}", self.asking.agent());
        self.called.get(theirs).cloned().unwrap_or_else(own)
    }

    /// A server as it is named on a command line here: without the name that its agent has for it.
    fn named(&self, theirs: &str, called: &str) -> String {
        let user = self.servers.iter().find(|server| server.called() == called);
        user.map_or_else(|| format!("{}/{}", self.asking.agent(), without_name(theirs)), ToString::to_string)
    }

    /// Of what is not seen it is said where.
    fn there(&self, what: &str) -> String {
        format!("{}: {what}", self.asking.agent())
    }

    fn is_here(&self) -> bool {
        self.address.is_some_and(|address| is_local(&SocketAddr::new(address, 0)))
    }

    /// The goal as the agent has to know it.
    fn goal_there(&self, goal: &Goal) -> Goal {
        let is_here = self.is_here();
        // An address of this machine, and a path of it, mean something else there.
        let address = goal.address.filter(|address| is_here || !is_local(address));
        let mut load_from = goal.load_from.clone();
        let to = [goal.address, self.address.map(|ip| SocketAddr::new(ip, 9))];
        if goal.load_from.is_empty() {
            load_from.extend(to.iter().flatten().filter_map(source));
        }
        // What comes of a balancer is the load.
        load_from.extend(goal.address.map(|a| a.ip()).filter(|ip| !is_here && Some(*ip) != self.address));
        load_from.sort();
        load_from.dedup();
        let unix_socket = goal.unix_socket.clone().filter(|_| is_here);
        Goal { servers: Vec::new(), address, unix_socket, load_from, ..goal.clone() }
    }
}

/// The name before `=` off.
fn without_name(named: &str) -> &str {
    let own = named.split_once('=').filter(|(name, _)| !name.contains([':', '@', '/']));
    own.map_or(named, |(_, rest)| rest)
}

/// The address of this machine from which it talks to another.
fn source(to: &SocketAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

impl Site for Elsewhere {
    fn find(&mut self, goal: &Goal) -> Result<Machine, LabError> {
        (self.telling, self.failed) = (None, None);
        let beside = self.servers.iter().skip(1).map(Named::of).collect();
        let goal = Box::new(self.goal_there(goal));
        match self.ask(Examine::Find { beside, goal })? {
            Examined::Found { machine, called } => {
                let ours = self.servers.iter().map(|server| server.called().to_string());
                self.called = called.into_iter().zip(ours).collect();
                let (name, agents) = (self.asking.agent().into(), self.there.clone());
                Ok(Machine { name, away: !self.is_here(), agents, ..machine })
            }
            other => Err(self.odd(other)),
        }
    }

    fn visitors(&mut self) -> Result<Option<String>, LabError> {
        match self.ask(Examine::Visitors)? {
            Examined::Visitors(seen) => Ok(seen),
            other => Err(self.odd(other)),
        }
    }

    fn follow(&mut self) -> Result<(), LabError> {
        self.done(Examine::Follow)
    }

    fn servers(&mut self) -> Result<Servers, LabError> {
        let Servers { mut servers, sysctls, unseen } = match self.ask(Examine::Servers)? {
            Examined::Servers(servers) => servers,
            other => return Err(self.odd(other)),
        };
        for server in &mut servers {
            server.server = self.name(&server.server);
            server.named = self.named(&server.named, &server.server);
            server.to.iter_mut().filter(|to| !to.is_empty()).for_each(|to| *to = self.name(to));
        }
        self.has_modules = servers.iter().any(|server| ["apache", "php-fpm"].contains(&server.kind.as_str()));
        Ok(Servers { servers, sysctls, unseen: unseen.iter().map(|what| self.there(what)).collect() })
    }

    fn begin(&mut self) -> Result<(), LabError> {
        self.done(Examine::Begin)?;
        self.telling = Some(Telling::start(&self.asking, &self.told));
        Ok(())
    }

    fn end(&mut self) -> Result<ExaminationStep, LabError> {
        if let Some(Err(e)) = self.telling.take().and_then(Telling::end) {
            return Err(self.fails(e));
        }
        let mut step = match self.ask(Examine::End)? {
            Examined::Step(step) => *step,
            other => return Err(self.odd(other)),
        };
        step.servers.iter_mut().for_each(|seen| seen.server = self.name(&seen.server));
        for look in &mut step.databases {
            look.server = look.server.as_ref().map(|server| self.name(server));
        }
        Ok(step)
    }

    fn inside(&mut self, profile: bool) -> Result<Vec<ServerProfile>, LabError> {
        match self.ask(Examine::Inside { profile })? {
            Examined::Inside(mut all) => {
                for inside in &mut all {
                    inside.server = self.name(&inside.server);
                    inside.unseen.iter_mut().for_each(|what| *what = self.there(what));
                }
                Ok(all)
            }
            other => Err(self.odd(other)),
        }
    }

    fn memory(&mut self, requests: u64) -> Result<(), LabError> {
        self.done(Examine::Memory { requests })
    }

    fn settle(&mut self) -> Result<(), LabError> {
        self.done(Examine::Settle)
    }

    fn modules(&mut self) -> Result<ModuleTrials, LabError> {
        if !self.has_modules {
            return Ok(ModuleTrials::default());
        }
        if !self.acts {
            let what = "which modules it could do without: a second instance is started for that, and the agent only looks (--act)";
            return Ok(ModuleTrials { unseen: vec![self.there(what)], ..ModuleTrials::default() });
        }
        match self.ask(Examine::Modules)? {
            Examined::Modules(ModuleTrials { modules, unseen }) => Ok(ModuleTrials {
                modules: modules.into_iter().map(|(server, tried)| (self.name(&server), tried)).collect(),
                unseen: unseen.iter().map(|what| self.there(what)).collect(),
            }),
            other => Err(self.odd(other)),
        }
    }

    fn finish(&mut self) -> Result<SiteSummary, LabError> {
        let mut rest = match self.ask(Examine::Rest)? {
            Examined::Rest(rest) => rest,
            other => return Err(self.odd(other)),
        };
        rest.growth.iter_mut().for_each(|growth| growth.server = self.name(&growth.server));
        rest.unseen.iter_mut().for_each(|what| *what = self.there(what));
        Ok(rest)
    }
}

impl Telling {
    fn start(asking: &Arc<Asking>, told: &Sender<Sample>) -> Telling {
        let (asking, told) = (Arc::clone(asking), told.clone());
        let (over, is_over) = channel::<()>();
        let work = move || {
            while let Err(RecvTimeoutError::Timeout) = is_over.recv_timeout(EVERY) {
                let answer = asking.ask(Question::Examine(Examine::Looks), WITHIN)?;
                if let Answer::Examined(examined) = answer
                    && let Examined::Looks(looks) = *examined
                {
                    // Nobody may be there to hear it.
                    looks.into_iter().for_each(|look| _ = told.send(look));
                }
            }
            Ok(())
        };
        Telling { over: Some(over), thread: thread::Builder::new().name("looks".into()).spawn(work).ok() }
    }

    /// Why the machine could not be asked.
    fn end(mut self) -> Option<Result<(), ServerError>> {
        self.over = None;
        self.thread.take()?.join().ok()
    }
}

impl Drop for Telling {
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
