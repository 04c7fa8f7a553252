//! The agent's side of questions about servers. It watches the servers named at its start, and changes them if it may.
//!
//! A session lasts as long as the conversation in which it was opened. At its end, for any reason, the agent itself restores
//! what is still changed. A killed agent leaves its journal to `lastdrop restore`.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lastdrop_experiment::doctor::{Goal, LocalSite, ModuleTrials, Site};
use lastdrop_experiment::lab::LabError;
use lastdrop_experiment::machine::{Machine, ThisMachine};
use lastdrop_experiment::observe::databases::DatabaseOptions;
use lastdrop_experiment::observe::watch::{ServerInfo, ServerWatch};
use lastdrop_experiment::trials::size::size_of_server;
use lastdrop_fleet::{Answerer, ConversationEnd, EngineError, Responder};
use lastdrop_model::documents::SizeDocument;
use lastdrop_model::{Sample, Settings, Url};
use lastdrop_probe::host::cpus;
use lastdrop_probe::listeners::is_local;
use lastdrop_probe::status;
use lastdrop_server::kind::Status;
use lastdrop_server::operations::OperationCall;
use lastdrop_server::{
    Change, OtherTrafficPolicy, PendingPersist, PendingRestore, RestoreReport, Server, ServerError, ServerRef, Stack,
    find,
};
use serde_json::Value;

use super::calls::{CallAbout, CallError, OpenRequest, OpenedSession, RemoteLook, ServerName, ServersFound};

/// Timeout of the request that records what a healthy server answers.
const OWN_ANSWER: Duration = Duration::from_secs(5);

/// The servers of an agent.
#[derive(Debug, Clone)]
pub struct AgentServers {
    pub agent: String,
    /// The servers named at its start.
    pub named: Vec<ServerRef>,
    /// The agent may change their settings.
    pub act: bool,
    /// It may also put directives into their configurations.
    pub directives: bool,
}

impl Responder for AgentServers {
    fn begin(&self, _: &str) -> Box<dyn Answerer> {
        Box::new(ConversationHandler { servers: self.clone(), handler: None })
    }
}

/// Answers the calls of one conversation.
struct ConversationHandler {
    servers: AgentServers,
    handler: Option<ServerHandler>,
}

/// Carries out the calls of one conversation, about one server.
pub struct ServerHandler {
    servers: AgentServers,
    /// The server of the present call.
    pub server: ServerRef,
    watcher: Option<Box<dyn ServerWatch>>,
    session: Option<ChangeSession>,
    examined: Option<ExaminedSite>,
}

/// A server that is being changed.
pub struct ChangeSession {
    server: ServerRef,
    pub stack: Stack,
    halves: Option<PendingRestore>,
    staying: Option<PendingPersist>,
}

/// The examination of this machine; ends on drop.
struct ExaminedSite {
    site: LocalSite,
    told: Receiver<Sample>,
    url: Url,
}

impl AgentServers {
    /// The server with this name.
    fn meant(&self, named: &ServerName) -> Result<&ServerRef, EngineError> {
        let agent = &self.agent;
        let mut meant = self.named.iter().filter(|server| server.answers_to(&named.kind, named.config.as_deref()));
        let all = self.named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let asked = match &named.config {
            Some(config) => format!("{}:{}", named.kind, config.display()),
            None => named.kind.clone(),
        };
        match (meant.next(), meant.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Err(EngineError(format!(
                "it looks at several that are '{asked}': {all}; say which, with its configuration: {agent}/KIND:CONFIG"
            ))),
            (None, _) if self.named.is_empty() => Err(EngineError(format!(
                "it looks at no server, and so not at '{asked}': start it with --server {asked}"
            ))),
            (None, _) => Err(EngineError(format!("it looks at {all}, and not at '{asked}'"))),
        }
    }
}

impl Answerer for ConversationHandler {
    fn answer(&mut self, question: &[u8]) -> Result<Vec<u8>, EngineError> {
        let CallAbout { server, call } = lastdrop_model::read_json(question)
            .map_err(|e| EngineError(format!("a question that it does not understand: {e}")))?;
        let server = self.servers.meant(&server)?.clone();
        if call.changes() && !self.servers.act {
            return Err(EngineError(format!(
                "it only looks at {server}: it was started without --act, and changes nothing"
            )));
        }
        let handler = self.handler.get_or_insert_with(|| ServerHandler::new(&self.servers, &server));
        handler.server = server;
        call.carry_out(handler)
    }

    fn end(&mut self, why: &ConversationEnd) -> Option<String> {
        let session = self.handler.as_mut()?.session.take()?;
        let server = session.server.to_string();
        let restored = session.end().transpose()?;
        let reason = match why {
            ConversationEnd::Left => "whoever changed it has left".to_string(),
            ConversationEnd::Silent(silent) => {
                format!("nothing was heard for {} s of whoever changed it", silent.as_secs())
            }
            ConversationEnd::Agent => "the agent ends".into(),
        };
        Some(match restored {
            Ok(_) => format!("{server}: {reason}; put back as it was found"),
            Err(e) => format!("{server}: {reason}; {e}"),
        })
    }
}

impl ServerHandler {
    fn new(servers: &AgentServers, server: &ServerRef) -> ServerHandler {
        let (servers, server) = (servers.clone(), server.clone());
        ServerHandler { servers, server, watcher: None, session: None, examined: None }
    }

    pub fn watch(&mut self) -> Result<ServerInfo, ServerError> {
        Ok(self.watcher.insert(ThisMachine.watch(&self.server)?).info())
    }

    pub fn look(&mut self, patient: bool) -> Result<RemoteLook, ServerError> {
        if self.watcher.is_none() {
            self.watch()?;
        }
        let watcher = self.watcher.as_mut().ok_or_else(|| ServerError::Setting("it is not watched".into()))?;
        let (document, alive) = watcher.sample(patient)?;
        Ok(RemoteLook { document, alive, found: watcher.info() })
    }

    pub fn restore_left(&self, dry_run: bool) -> Result<Vec<Result<RestoreReport, String>>, ServerError> {
        let results = ThisMachine.restore_left(&self.server, dry_run)?;
        Ok(results.into_iter().map(|result| result.map_err(|e| e.to_string())).collect())
    }

    pub fn open(&mut self, request: OpenRequest) -> Result<OpenedSession, ServerError> {
        if self.session.is_some() {
            return Err(ServerError::Setting("its session is open already".into()));
        }
        let OpenRequest { live, ignore, host_wide, place } = request;
        let others = OtherTrafficPolicy { live, ignore, host_wide };
        let url = own_url(&self.server);
        let server = self.server.unnamed();
        let stack = Stack::open_for(&server, place, url.as_ref(), &others)?;
        stack.check_changeable()?;
        let opened = OpenedSession {
            name: stack.name(),
            original: stack.original().clone(),
            knobs: stack.all_knobs().into_iter().map(|(_, knob, _)| *knob).collect(),
            cores: cpus() as u64,
            is_host: server.kind.is_host(),
            takes_directives: server.kind.directives,
        };
        self.session = Some(ChangeSession { server, stack, halves: None, staying: None });
        Ok(opened)
    }

    /// The server that is being changed.
    pub fn changed(&mut self) -> Result<&mut ChangeSession, ServerError> {
        self.session.as_mut().ok_or_else(|| ServerError::Setting("its session was not opened".into()))
    }

    /// The same for a change, if the agent may make it.
    ///
    /// # Errors
    /// If it has directives and the agent takes none, if they name code, or if it has a cache.
    pub fn changed_by(&mut self, change: &Change) -> Result<&mut ChangeSession, ServerError> {
        if let Some(line) = change.directives.lines().first().filter(|_| !self.servers.directives) {
            let what = format!(
                "it takes settings and no directives such as '{line}': it was started without --act directives"
            );
            return Err(ServerError::Setting(what));
        }
        if change.cache.is_some() {
            return Err(ServerError::Setting("a cache is tried by a lastdrop on the server's own machine".into()));
        }
        let session = self.changed()?;
        match session.stack.code_in(change)?.first() {
            Some(line) => Err(ServerError::Setting(format!(
                "'{line}' names code that the server would run, or a file that it would write: no agent takes such; do it on that machine"
            ))),
            None => Ok(session),
        }
    }

    pub fn find(&mut self, beside: &[ServerName], goal: Goal) -> Result<ServersFound, CallError> {
        let mut wanted = vec![&self.server];
        for named in beside {
            wanted.push(self.servers.meant(named)?);
        }
        let called = wanted.iter().map(|server| server.called().to_string()).collect();
        // Its own names, and not those of the coordinator.
        let goal = Goal { servers: wanted.iter().map(ToString::to_string).collect(), ..goal };
        let (tell, told) = channel();
        // The agent uses no database options of the coordinator: no password comes over the network.
        let site = LocalSite::only(&self.servers.named, DatabaseOptions::default(), tell);
        let examined = self.examined.insert(ExaminedSite { site, told, url: goal.url.clone() });
        Ok(ServersFound { machine: examined.site.find(&goal)?, called })
    }

    fn examined(&mut self) -> Result<&mut ExaminedSite, LabError> {
        self.examined.as_mut().ok_or_else(|| LabError::Other("no servers have been looked for yet".into()))
    }

    /// The examination of this machine.
    pub fn site(&mut self) -> Result<&mut LocalSite, LabError> {
        Ok(&mut self.examined()?.site)
    }

    pub fn begin_step(&mut self) -> Result<(), LabError> {
        // Discard samples from before the load.
        self.samples()?;
        self.site()?.begin()
    }

    pub fn samples(&mut self) -> Result<Vec<Sample>, LabError> {
        Ok(self.examined()?.told.try_iter().collect())
    }

    pub fn try_modules(&mut self) -> Result<ModuleTrials, LabError> {
        let ExaminedSite { site, url, .. } = self.examined()?;
        // The trial sends requests to the URL; they must not go to another machine.
        if lastdrop_load::resolve(url).is_ok_and(|address| is_local(&address)) {
            return site.modules();
        }
        let why = "which modules it could do without: the URL leads to another machine";
        Ok(ModuleTrials { unseen: vec![why.into()], ..ModuleTrials::default() })
    }
}

impl ChangeSession {
    /// Restores what is still changed; None if nothing is.
    fn end(mut self) -> Result<Option<RestoreReport>, ServerError> {
        Ok(self.verify_health()?.into_iter().find(|r| r.was_changed))
    }

    pub fn restore_files(&mut self) {
        self.halves = Some(self.stack.restore_files());
    }

    pub fn verify_health(&mut self) -> Result<Vec<RestoreReport>, ServerError> {
        let halves = self.halves.take().unwrap_or_else(|| self.stack.restore_files());
        self.stack.verify_health(halves)
    }

    /// Returns where the settings are, in words.
    pub fn persist(&mut self, settings: &Settings) -> Result<String, ServerError> {
        let staying = self.staying.insert(self.stack.persist(settings)?);
        Ok(staying.kept().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }

    pub fn commit(&mut self) -> Result<(), ServerError> {
        let staying = self.staying.take().ok_or_else(|| ServerError::Setting("nothing is to stay".into()))?;
        self.stack.commit(staying).map(drop)
    }

    fn own(&self) -> Result<Server<'_>, ServerError> {
        self.stack.pool().ok_or_else(|| ServerError::Setting(format!("{} has no workers", self.server)))
    }

    pub fn operate(&self, call: OperationCall) -> Result<Value, ServerError> {
        self.own()?.call(call)
    }

    pub fn size(&self, memory: Option<u64>) -> Result<SizeDocument, CallError> {
        Ok(size_of_server(self.own()?, memory)?)
    }
}

/// The URL at which this machine checks the server's health. The coordinator's URL may mean another server here. None if the
/// server does not speak HTTP or does not answer.
fn own_url(server: &ServerRef) -> Option<Url> {
    if !matches!(server.kind.status, Status::Http { .. }) {
        return None;
    }
    let listening = || {
        let address = *find(server).ok()?.listeners.first()?;
        let ip = match address.ip() {
            ip if !ip.is_unspecified() => ip,
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        format!("http://{}/", std::net::SocketAddr::new(ip, address.port())).parse::<Url>().ok()
    };
    let url = server.url.clone().or_else(listening)?;
    status::get(&url, OWN_ANSWER).is_ok().then_some(url)
}

#[cfg(test)]
mod tests {
    use super::super::calls::{
        Apply, BeginStep, CallFailure, Check, EndStep, FindServers, ServerCall, TraceServers, TryModules,
    };
    use super::*;

    fn failure(handler: &mut ServerHandler, call: impl Into<ServerCall>) -> Result<String, EngineError> {
        let answer = call.into().carry_out(handler)?;
        let answer: Result<serde_json::Value, CallFailure> = lastdrop_model::read_json(&answer).expect("an answer");
        Ok(answer.expect_err("a failure").what)
    }

    #[test]
    fn directives_need_a_right_of_the_agent() {
        let named: Vec<ServerRef> = vec!["apache:/a.conf".parse().expect("a server")];
        let servers = AgentServers { agent: "a".into(), named, act: true, directives: false };
        let change: Change = lastdrop_model::read_json(r#"{"directives":["KeepAlive On"]}"#).expect("a change");
        let ask = |servers: &AgentServers, call: ServerCall| {
            failure(&mut ServerHandler::new(servers, &servers.named[0]), call).expect("an answer")
        };
        for call in [Check { change: change.clone() }.into(), Apply { change: change.clone() }.into()] {
            let what = ask(&servers, call);
            assert!(what.contains("--act directives") && what.contains("KeepAlive On"), "{what}");
        }
        // With the right, the next obstacle is that no session is open.
        let servers = AgentServers { directives: true, ..servers };
        let what = ask(&servers, Apply { change }.into());
        assert!(what.contains("was not opened"), "{what}");
        let cache = r#"{"cache":{"token":"1","paths":["/"],"lifetime_s":10}}"#;
        let what = ask(&servers, Apply { change: lastdrop_model::read_json(cache).expect("a change") }.into());
        assert!(what.contains("server's own machine"), "{what}");
    }

    #[test]
    fn only_servers_of_the_agents_start_are_examined_and_nothing_before_they_were_found() {
        let named: Vec<ServerRef> = vec!["apache:/a.conf".parse().expect("a server")];
        let servers = AgentServers { agent: "a".into(), named, act: false, directives: false };
        let goal = Box::new(Goal {
            servers: vec!["target".into()],
            url: "http://127.0.0.1:1/".parse().expect("a URL"),
            address: None,
            unix_socket: None,
            load_from: Vec::new(),
            ignore: Vec::new(),
        });
        let mut here = ServerHandler::new(&servers, &servers.named[0]);
        let calls: [ServerCall; 4] =
            [BeginStep {}.into(), EndStep {}.into(), TraceServers { profile: true }.into(), TryModules {}.into()];
        for call in calls {
            let what = failure(&mut here, call).expect("an answer");
            assert!(what.contains("looked for"), "{what}");
        }
        let beside = vec![ServerName { kind: "nginx".into(), config: None }];
        let refused = failure(&mut here, FindServers { beside, goal: goal.clone() });
        assert!(refused.expect_err("not its own").0.contains("not at 'nginx'"));
        // The agent replaces the servers of a goal by its own.
        let what = failure(&mut here, FindServers { beside: Vec::new(), goal }).expect("an answer");
        assert!(what.contains("/a.conf"), "{what}");
    }
}
