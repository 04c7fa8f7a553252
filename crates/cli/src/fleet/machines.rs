//! The coordinator's side of servers on agents' machines: where a command's servers run, and conversations about them.

use std::net::IpAddr;
use std::sync::mpsc::Sender;

use anyhow::Result;
use lastdrop_experiment::doctor::Site;
use lastdrop_experiment::lab::{LabError, SampledServer};
use lastdrop_experiment::machine::{Machine, ThisMachine};
use lastdrop_experiment::observe::databases::DatabaseOptions;
use lastdrop_experiment::observe::watch::{ServerInfo, ServerWatch};
use lastdrop_fleet::{Agent, Conversation, Fleet, FleetError, choose};
use lastdrop_model::documents::{KnobRow, KnobsDocument, WatchDocument};
use lastdrop_model::{Sample, Settings, Url};
use lastdrop_server::{Member, OtherTrafficPolicy, RestoreReport, ServerError, ServerRef, Stack, StackPlace};

use super::agent_session::AgentSession;
use super::calls::{Call, CallAbout, CallFailure, Look, ReadKnobs, RemoteLook, RestoreLeft, ServerName, Watch};
use super::link::address_from_here;
use crate::exit::UsageError;
use crate::options::{FleetArgs, address_of};

/// The machines of a command's servers: this one, and those of a fleet's agents.
#[derive(Debug)]
pub struct Machines(Option<AgentHosts>);

/// A fleet whose agents have servers.
#[derive(Debug, Clone)]
pub struct AgentHosts {
    fleet: Fleet,
    /// The broker's address.
    broker: Option<IpAddr>,
}

/// A conversation with an agent about one of its servers.
#[derive(Debug)]
pub(super) struct ServerConversation {
    conversation: Conversation,
    pub(super) named: ServerName,
}

/// The machines of the servers. Connects to their fleet, if one of them is on another machine.
///
/// # Errors
/// When there is no such fleet.
pub fn machines(servers: &[ServerRef], fleet: &FleetArgs) -> Result<Machines> {
    if !servers.iter().any(ServerRef::is_elsewhere) {
        return Ok(Machines(None));
    }
    let hosts = AgentHosts::connect(fleet)?;
    let agents = hosts.fleet.agents()?;
    for name in servers.iter().flat_map(ServerRef::agents) {
        agent(&agents, name).map_err(UsageError)?;
    }
    Ok(Machines(Some(hosts)))
}

/// The servers on the machines of the agents that `who` chooses, and these machines. `who` has the same form as for load: all
/// agents that have the servers, a number of them, or names.
///
/// # Errors
/// When a server already names its agents, a named agent does not have a server, or no agent has.
pub fn on_agents(servers: &[ServerRef], who: &str, fleet: &FleetArgs) -> Result<(Vec<ServerRef>, Machines)> {
    if let Some(elsewhere) = servers.iter().find(|server| server.is_elsewhere()) {
        let what = format!("--fleet says on whose machines the servers are, and so does '{elsewhere}': one of the two");
        return Err(UsageError(what).into());
    }
    let hosts = AgentHosts::connect(fleet)?;
    let agents = hosts.fleet.agents()?;
    let missing = |agent: &Agent| servers.iter().find(|server| !looks_at(agent, server));
    let able: Vec<Agent> = agents.iter().filter(|agent| missing(agent).is_none()).cloned().collect();
    // Named agents have to have the servers; otherwise choose among those that have.
    let is_named = who.trim() != "all" && who.trim().parse::<usize>().is_err();
    if able.is_empty() && !agents.is_empty() && !is_named {
        let all = servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        return Err(UsageError(format!("no agent of the fleet looks at {all}: start one there with --server")).into());
    }
    let chosen = choose(if is_named { &agents } else { &able }, who);
    let chosen = chosen.map_err(|e| UsageError(format!("--fleet: {e}")))?;
    if let Some((agent, server)) = chosen.iter().find_map(|c| Some((&c.agent, missing(&c.agent)?))) {
        let looks = if agent.looks.is_empty() { "no server".into() } else { agent.looks.join(", ") };
        return Err(UsageError(format!("agent {} looks at {looks}, and not at '{server}'", agent.name)).into());
    }
    if chosen.iter().any(|c| (c.weight - 1.0).abs() > f64::EPSILON) {
        return Err(UsageError("--fleet: weights share out a load, and here is none: names alone".into()).into());
    }
    let names: Vec<String> = chosen.into_iter().map(|c| c.agent.name).collect();
    Ok((servers.iter().map(|server| server.on(names.clone())).collect(), Machines(Some(hosts))))
}

/// True if the agent was started with this server.
fn looks_at(agent: &Agent, server: &ServerRef) -> bool {
    let mut named = agent.looks.iter().filter_map(|named| named.parse::<ServerRef>().ok());
    named.any(|named| named.answers_to(server.kind.name, server.config.as_deref()))
}

/// The agent of this name.
fn agent<'a>(agents: &'a [Agent], name: &str) -> Result<&'a Agent, String> {
    agents.iter().find(|agent| agent.name == name).ok_or_else(|| {
        let there: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
        let there = if there.is_empty() { "no agents".into() } else { there.join(", ") };
        format!("there is no agent {name} in the fleet, which has {there}: lastdrop agent URL --name {name} --server KIND starts it there")
    })
}

impl AgentHosts {
    fn connect(fleet: &FleetArgs) -> Result<AgentHosts> {
        let (url, fleet) = fleet.connect_to()?;
        Ok(AgentHosts { fleet, broker: address_of(&url) })
    }

    /// Begins a conversation about a server with its first agent.
    pub(super) fn about(&self, server: &ServerRef) -> Result<ServerConversation, ServerError> {
        let failed = |agent: &str, what: String| ServerError::Elsewhere { agent: agent.into(), what, refusal: false };
        let Some(name) = server.agents().first() else {
            return Err(ServerError::Setting(format!("'{server}' is on this machine")));
        };
        let agents = self.fleet.agents().map_err(|e| failed(name, e.to_string()))?;
        let agent = agent(&agents, name).map_err(|what| failed(name, what))?;
        let conversation = self.fleet.converse(agent).map_err(|e| failed(name, e.what(name)))?;
        Ok(ServerConversation { conversation, named: ServerName::of(server) })
    }

    /// The connected agents, each with its address as this machine sees it.
    pub(super) fn agents(&self) -> Result<Vec<(Agent, Option<IpAddr>)>, FleetError> {
        let of = |agent: Agent| {
            let address = address_from_here(&agent.address, self.broker);
            (agent, address)
        };
        Ok(self.fleet.agents()?.into_iter().map(of).collect())
    }
}

impl Machines {
    /// The fleet of a server; None if it is on this machine.
    fn hosts_of(&self, server: &ServerRef) -> Result<Option<&AgentHosts>, ServerError> {
        match &self.0 {
            _ if !server.is_elsewhere() => Ok(None),
            None => Err(ServerError::Setting(format!("'{server}' is on another machine"))),
            hosts => Ok(hosts.as_ref()),
        }
    }

    /// Checks that these servers may be changed.
    ///
    /// # Errors
    /// Names the first agent that was started without `--act`.
    pub fn check_may_act(&self, servers: &[ServerRef], what_for: &str) -> Result<()> {
        let Some(hosts) = &self.0 else { return Ok(()) };
        let agents = hosts.fleet.agents()?;
        for (server, name) in servers.iter().flat_map(|server| server.agents().iter().map(move |name| (server, name))) {
            if !agent(&agents, name).map_err(UsageError)?.limits.act {
                return Err(UsageError(format!(
                    "{what_for} changes {server}, and agent {name} only looks: start it with --act"
                ))
                .into());
            }
        }
        Ok(())
    }
}

impl Machine for Machines {
    fn watch(&self, server: &ServerRef) -> Result<Box<dyn ServerWatch>, ServerError> {
        let Some(hosts) = self.hosts_of(server)? else { return ThisMachine.watch(server) };
        Ok(Box::new(RemoteWatch::begin(hosts, server)?))
    }

    fn sampled(&self, server: &ServerRef) -> Result<SampledServer, ServerError> {
        let Some(hosts) = self.hosts_of(server)? else { return ThisMachine.sampled(server) };
        Ok(SampledServer::watched(RemoteWatch::begin(hosts, server)?))
    }

    fn knobs(&self, server: &ServerRef) -> Result<KnobsDocument, LabError> {
        let Some(hosts) = self.hosts_of(server)? else { return ThisMachine.knobs(server) };
        let agent = server.agents().join("+");
        let KnobsDocument { knobs, notes, .. } = hosts.about(server)?.ask(ReadKnobs {})?;
        let named = |row: KnobRow| KnobRow { server: server.naming(&format!("{agent}/{}", row.server)), ..row };
        Ok(KnobsDocument {
            knobs: knobs.into_iter().map(named).collect(),
            notes: notes.iter().map(|note| format!("{agent}/{note}")).collect(),
            ..KnobsDocument::default()
        })
    }

    fn site(
        &self,
        servers: &[ServerRef],
        databases: &DatabaseOptions,
        samples: Sender<Sample>,
    ) -> Result<Box<dyn Site>, ServerError> {
        match &self.0 {
            Some(hosts) => hosts.sites(servers, &samples),
            None => ThisMachine.site(servers, databases, samples),
        }
    }

    fn open(
        &self,
        servers: &[ServerRef],
        url: Option<&Url>,
        others: &OtherTrafficPolicy,
    ) -> Result<Stack, ServerError> {
        let Some(hosts) = &self.0 else { return ThisMachine.open(servers, url, others) };
        let open = |server: &ServerRef, place: Option<StackPlace>| -> Result<Box<dyn Member>, ServerError> {
            Ok(Box::new(AgentSession::open(hosts.about(server)?, others, place)?))
        };
        Stack::open_with(servers, url, others, &open)
    }

    fn restore_left(
        &self,
        server: &ServerRef,
        dry_run: bool,
    ) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
        let Some(hosts) = self.hosts_of(server)? else { return ThisMachine.restore_left(server, dry_run) };
        let asking = hosts.about(server)?;
        let there = |result: Result<_, String>| match result {
            Ok(restored) => Ok(asking.named_there(restored)),
            Err(what) => Err(asking.failed(what, false)),
        };
        Ok(asking.ask(RestoreLeft { dry_run })?.into_iter().map(there).collect())
    }
}

impl ServerConversation {
    pub(super) fn agent(&self) -> &str {
        self.conversation.agent()
    }

    pub(super) fn failed(&self, what: String, refusal: bool) -> ServerError {
        ServerError::Elsewhere { agent: self.agent().into(), what, refusal }
    }

    pub(super) fn ask<C: Call>(&self, call: C) -> Result<C::Answer, ServerError> {
        let failed = |what| self.failed(what, false);
        let call = CallAbout { server: self.named.clone(), call: call.into() };
        let bytes = serde_json::to_vec(&call).map_err(|e| failed(e.to_string()))?;
        let answer = self.conversation.ask(&bytes, C::WITHIN).map_err(|e| failed(e.what(self.agent())))?;
        let answer: Result<C::Answer, CallFailure> =
            lastdrop_model::read_json(&answer).map_err(|e| failed(format!("its answer is none: {e}")))?;
        answer.map_err(|CallFailure { what, refusal }| self.failed(what, refusal))
    }

    pub(super) fn named_there(&self, restored: RestoreReport) -> RestoreReport {
        RestoreReport { server: format!("{}/{}", self.agent(), restored.server), ..restored }
    }
}

/// A server under watch. If its agent is lost, the next sample begins a new conversation.
struct RemoteWatch {
    hosts: AgentHosts,
    server: ServerRef,
    asking: Option<ServerConversation>,
    found: ServerInfo,
}

impl RemoteWatch {
    fn begin(hosts: &AgentHosts, server: &ServerRef) -> Result<RemoteWatch, ServerError> {
        let (hosts, server) = (hosts.clone(), server.clone());
        let asking = hosts.about(&server)?;
        let found = asking.ask(Watch {})?;
        Ok(RemoteWatch { hosts, server, asking: Some(asking), found })
    }
}

impl ServerWatch for RemoteWatch {
    fn info(&self) -> ServerInfo {
        self.found.clone()
    }

    fn sample(&mut self, patient: bool) -> Result<(WatchDocument, bool), ServerError> {
        // Kept only if it answers.
        let asking = match self.asking.take() {
            Some(asking) => asking,
            None => {
                let anew = RemoteWatch::begin(&self.hosts, &self.server)?;
                self.found = anew.found;
                self.asking = anew.asking;
                return self.sample(patient);
            }
        };
        let RemoteLook { mut document, alive, found } = asking.ask(Look { patient })?;
        document.server = format!("{}/{}", asking.agent(), document.server);
        (self.found, self.asking) = (found, Some(asking));
        Ok((document, alive))
    }

    fn settings(&mut self) -> Option<Settings> {
        let document = self.asking.as_ref()?.ask(ReadKnobs {}).ok()?;
        Some(document.knobs.into_iter().filter_map(|row| Some((row.name, row.value?))).collect())
    }
}
