//! The coordinator's side of questions about servers: sessions, samples and settings of servers on agents' machines.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use lastdrop_experiment::lab::RemoteSampler;
use lastdrop_experiment::observe::watch::{RemoteServerInfo, RemoteWatcher};
use lastdrop_fleet::{Agent, Conversation, Fleet, FleetError, choose};
use lastdrop_model::documents::{KnobsDocument, SizeDocument, WatchDocument};
use lastdrop_model::{Knob, Settings};
use lastdrop_server::{
    PersistedIn, RemoteHosts, RemoteServer, RemoteSession, RestoreReport, ServerError, ServerRef, SessionRequest,
};

use super::calls::{
    Apply, Call, CallAbout, CallFailure, Check, Commit, Complete, CountWorkers, Look, Open, OpenRequest, OpenedSession,
    Persist, ReadKnobs, RealMemory, RemoteLook, RestoreFiles, RestoreLeft, ServerName, Size, VerifyHealth, Watch,
};
use super::link::address_from_here;
use crate::exit::UsageError;
use crate::options::{FleetArgs, address_of};
use crate::stdio::note;

/// A fleet whose agents have servers.
#[derive(Debug)]
pub struct FleetHosts {
    fleet: Fleet,
    /// The broker's address.
    broker: Option<IpAddr>,
}

/// A conversation with an agent about one of its servers.
#[derive(Debug)]
pub(super) struct ServerConversation {
    conversation: Conversation,
    named: ServerName,
}

/// Connects to the fleet of the servers, if one of them is on another machine.
///
/// # Errors
/// When there is no such fleet.
pub fn reach(servers: &[ServerRef], fleet: &FleetArgs) -> Result<Option<FleetHosts>> {
    if !servers.iter().any(ServerRef::is_elsewhere) {
        return Ok(None);
    }
    let reach = FleetHosts::connect(fleet)?;
    let agents = reach.fleet.agents()?;
    for name in servers.iter().flat_map(ServerRef::agents) {
        agent(&agents, name).map_err(UsageError)?;
    }
    Ok(Some(reach))
}

/// The servers on the machines of the agents that `who` chooses, and their fleet. `who` has the same form as for load: all
/// agents that have the servers, a number of them, or names.
///
/// # Errors
/// When a server already names its agents, a named agent does not have a server, or no agent has.
pub fn on_agents(servers: &[ServerRef], who: &str, fleet: &FleetArgs) -> Result<(Vec<ServerRef>, FleetHosts)> {
    if let Some(elsewhere) = servers.iter().find(|server| server.is_elsewhere()) {
        let what = format!("--fleet says on whose machines the servers are, and so does '{elsewhere}': one of the two");
        return Err(UsageError(what).into());
    }
    let reach = FleetHosts::connect(fleet)?;
    let agents = reach.fleet.agents()?;
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
    Ok((servers.iter().map(|server| server.on(names.clone())).collect(), reach))
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

impl FleetHosts {
    fn connect(fleet: &FleetArgs) -> Result<FleetHosts> {
        let (url, fleet) = fleet.connect_to()?;
        Ok(FleetHosts { fleet, broker: address_of(&url) })
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

    /// Checks that these servers may be changed.
    ///
    /// # Errors
    /// Names the first agent that was started without `--act`.
    pub fn check_may_act(&self, servers: &[ServerRef], what_for: &str) -> Result<()> {
        let agents = self.fleet.agents()?;
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

    /// The settings of a server on one machine.
    ///
    /// # Errors
    /// When the agent cannot be asked, or cannot read them.
    pub fn knobs(&self, server: &ServerRef) -> Result<KnobsDocument, ServerError> {
        self.about(server)?.ask(ReadKnobs {})
    }

    /// Begins to watch a server on one machine.
    ///
    /// # Errors
    /// When the agent cannot be asked, or does not find the server.
    pub fn watch(&self, server: &ServerRef) -> Result<Box<dyn RemoteWatcher>, ServerError> {
        let mut watch = RemoteWatch {
            reach: FleetHosts { fleet: self.fleet.clone(), broker: self.broker },
            server: server.clone(),
            asking: None,
            found: RemoteServerInfo::default(),
        };
        watch.begin()?;
        Ok(Box::new(watch))
    }

    /// A sampler of a server on one machine, for the time of a run.
    ///
    /// # Errors
    /// As [`FleetHosts::watch`].
    pub fn looks(&self, server: &ServerRef) -> Result<RemoteSampler, ServerError> {
        let mut watch = self.watch(server)?;
        Ok(Box::new(move || watch.look(false).map(|(document, _)| document).map_err(|e| e.to_string())))
    }

    /// Undoes the changes of killed runs to a server on one machine.
    ///
    /// # Errors
    /// When the agent cannot be asked, or cannot read its state folder.
    pub fn restore(
        &self,
        server: &ServerRef,
        dry_run: bool,
    ) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
        let asking = self.about(server)?;
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

    fn failed(&self, what: String, refusal: bool) -> ServerError {
        ServerError::Elsewhere { agent: self.agent().into(), what, refusal }
    }

    pub(super) fn ask<C: Call>(&self, call: C) -> Result<C::Answer, ServerError> {
        let failed = |what| self.failed(what, false);
        let call = CallAbout { server: self.named.clone(), call: call.into() };
        let bytes = serde_json::to_vec(&call).map_err(|e| failed(e.to_string()))?;
        let answer = self.conversation.ask(&bytes, C::WITHIN).map_err(|e| failed(e.what(self.agent())))?;
        let answer: Result<C::Answer, CallFailure> =
            serde_json::from_slice(&answer).map_err(|e| failed(format!("its answer is none: {e}")))?;
        answer.map_err(|CallFailure { what, refusal }| self.failed(what, refusal))
    }

    fn named_there(&self, restored: RestoreReport) -> RestoreReport {
        RestoreReport { server: format!("{}/{}", self.agent(), restored.server), ..restored }
    }
}

/// A server under watch. If its agent is lost, the next sample begins a new conversation.
struct RemoteWatch {
    reach: FleetHosts,
    server: ServerRef,
    asking: Option<ServerConversation>,
    found: RemoteServerInfo,
}

impl RemoteWatch {
    fn begin(&mut self) -> Result<&ServerConversation, ServerError> {
        let asking = self.reach.about(&self.server)?;
        self.found = asking.ask(Watch {})?;
        Ok(self.asking.insert(asking))
    }
}

impl RemoteWatcher for RemoteWatch {
    fn found(&self) -> &RemoteServerInfo {
        &self.found
    }

    fn look(&mut self, patient: bool) -> Result<(WatchDocument, bool), ServerError> {
        if self.asking.is_none() {
            self.begin()?;
        }
        let Some(asking) = &self.asking else { return Err(ServerError::Setting("nobody is asked".into())) };
        match asking.ask(Look { patient }) {
            Ok(RemoteLook { mut document, alive, found }) => {
                document.server = format!("{}/{}", asking.agent(), document.server);
                self.found = found;
                Ok((document, alive))
            }
            Err(e) => {
                self.asking = None;
                Err(e)
            }
        }
    }

    fn settings(&mut self) -> Option<Settings> {
        let document = self.asking.as_ref()?.ask(ReadKnobs {}).ok()?;
        Some(document.knobs.into_iter().filter_map(|row| Some((row.name, row.value?))).collect())
    }
}

impl RemoteHosts for FleetHosts {
    fn open(&self, server: &ServerRef, opening: &SessionRequest<'_>) -> Result<Box<dyn RemoteSession>, ServerError> {
        let asking = self.about(server)?;
        let request = OpenRequest {
            live: opening.others.live,
            ignore: opening.others.ignore.clone(),
            host_wide: opening.others.host_wide,
            place: opening.place.clone(),
        };
        let OpenedSession { name, original, knobs, cores, is_host } = asking.ask(Open { request })?;
        let name = format!("{}/{name}", asking.agent());
        let knobs: &'static [Knob] = knobs.leak();
        let about = RemoteServer { name, original, knobs, cores, is_host };
        Ok(Box::new(AgentSession { asking, about, open: true, completed: RefCell::default() }))
    }
}

/// A session on another machine.
struct AgentSession {
    asking: ServerConversation,
    about: RemoteServer,
    open: bool,
    /// Cache: a search completes the same settings again and again.
    completed: RefCell<BTreeMap<Settings, Settings>>,
}

impl AgentSession {
    fn not_restored(&self, e: ServerError) -> ServerError {
        let ServerError::Elsewhere { agent, what, .. } = e else { return e };
        let what = format!(
            "{what}\nthe server may not be put back: an agent that hears nothing does it by itself within a minute, what a killed one leaves is \
             put back by lastdrop restore there, or from here: lastdrop restore {agent}/{}",
            self.asking.named.kind
        );
        ServerError::Elsewhere { agent, what, refusal: false }
    }
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        if self.open {
            // An early return must not leave a changed server. If this fails too, the agent restores it by itself.
            if let Err(e) = self.restore_files().and_then(|()| self.verify_health()) {
                note!("lastdrop: {e}");
            }
        }
    }
}

impl RemoteSession for AgentSession {
    fn about(&self) -> &RemoteServer {
        &self.about
    }

    fn check(&self, settings: &Settings) -> Result<(), ServerError> {
        self.asking.ask(Check { settings: settings.clone() })
    }

    fn apply(&mut self, settings: &Settings) -> Result<(), ServerError> {
        self.asking.ask(Apply { settings: settings.clone() })
    }

    fn complete(&self, settings: &Settings) -> Result<Settings, ServerError> {
        // No settings need no completion.
        if settings.is_empty() {
            return Ok(Settings::new());
        }
        if let Some(known) = self.completed.borrow().get(settings) {
            return Ok(known.clone());
        }
        let whole = self.asking.ask(Complete { settings: settings.clone() })?;
        self.completed.borrow_mut().insert(settings.clone(), whole.clone());
        Ok(whole)
    }

    fn is_open(&self) -> bool {
        self.open
    }

    fn restore_files(&mut self) -> Result<(), ServerError> {
        // Closed even if it fails: a second attempt would fail in the same way.
        self.open = false;
        self.asking.ask(RestoreFiles {}).map_err(|e| self.not_restored(e))
    }

    fn verify_health(&mut self) -> Result<RestoreReport, ServerError> {
        let restored = self.asking.ask(VerifyHealth {}).map_err(|e| self.not_restored(e))?;
        let none = || self.asking.failed("nothing was left to be put back".into(), false);
        restored.into_iter().next().map(|restored| self.asking.named_there(restored)).ok_or_else(none)
    }

    fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        let place = self.asking.ask(Persist { settings: settings.clone() })?;
        Ok(PersistedIn::Elsewhere(format!("{place} on {}", self.asking.agent())))
    }

    fn commit(&mut self) -> Result<(), ServerError> {
        self.asking.ask(Commit {})?;
        self.open = false;
        Ok(())
    }

    fn count_workers(&self) -> usize {
        self.asking.ask(CountWorkers {}).unwrap_or(0)
    }

    fn real_memory(&self) -> Option<u64> {
        self.asking.ask(RealMemory {}).ok()?
    }

    fn size(&self, memory: Option<u64>) -> Result<SizeDocument, ServerError> {
        self.asking.ask(Size { memory })
    }
}
