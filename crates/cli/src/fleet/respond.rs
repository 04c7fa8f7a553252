//! The agent's side of questions about servers. It watches the servers named at its start, and changes them if it may.
//!
//! A session lasts as long as the conversation in which it was opened. At its end, for any reason, the agent itself restores
//! what is still changed. A killed agent leaves its journal to `lastdrop restore`.

use std::time::Duration;

use lastdrop_experiment::observe::knobs::knobs;
use lastdrop_experiment::observe::watch::{RemoteServerInfo, Watcher};
use lastdrop_experiment::trials::size::{real_memory, size_of};
use lastdrop_fleet::{Answerer, ConversationEnd, EngineError, Responder};
use lastdrop_model::Url;
use lastdrop_probe::host::cpus;
use lastdrop_probe::status;
use lastdrop_server::kind::Status;
use lastdrop_server::{
    OtherTrafficPolicy, PendingPersist, PendingRestore, RestoreReport, ServerError, ServerRef, Stack, find,
    restore_like,
};

use super::examination::LocalExamination;
use super::questions::{Answer, OpenRequest, OpenedSession, Question, ServerName, ServerQuestion};

/// Timeout of the request that records what a healthy server answers.
const OWN_ANSWER: Duration = Duration::from_secs(5);

/// The servers of an agent.
#[derive(Debug, Clone)]
pub struct AgentServers {
    pub agent: String,
    /// The servers named at its start.
    pub named: Vec<ServerRef>,
    /// The agent may change them.
    pub act: bool,
}

impl Responder for AgentServers {
    fn begin(&self, _: &str) -> Box<dyn Answerer> {
        Box::new(ConversationHandler {
            servers: self.clone(),
            watcher: None,
            session: None,
            examined: LocalExamination::default(),
        })
    }
}

/// Answers the questions of one conversation, about one server.
struct ConversationHandler {
    servers: AgentServers,
    watcher: Option<Watcher>,
    session: Option<ChangeSession>,
    examined: LocalExamination,
}

/// A server that is being changed.
struct ChangeSession {
    server: ServerRef,
    stack: Stack,
    halves: Option<PendingRestore>,
    staying: Option<PendingPersist>,
}

impl AgentServers {
    /// The server with this name.
    pub(super) fn meant(&self, named: &ServerName) -> Result<&ServerRef, EngineError> {
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
        let asked: ServerQuestion = serde_json::from_slice(question)
            .map_err(|e| EngineError(format!("a question that it does not understand: {e}")))?;
        let server = self.servers.meant(&asked.server)?.clone();
        if asked.what.changes() && !self.servers.act {
            return Err(EngineError(format!(
                "it only looks at {server}: it was started without --act, and changes nothing"
            )));
        }
        let answer = match asked.what {
            Question::Examine(what) => self.examined.answer(&self.servers, &server, what)?,
            what => self.carry_out(&server, what).unwrap_or_else(|e| Answer::from(&e)),
        };
        serde_json::to_vec(&answer).map_err(|e| EngineError(format!("its answer cannot be written down: {e}")))
    }

    fn end(&mut self, why: &ConversationEnd) -> Option<String> {
        let session = self.session.take()?;
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

impl ChangeSession {
    /// Restores what is still changed; None if nothing is.
    fn end(mut self) -> Result<Option<RestoreReport>, ServerError> {
        let halves = self.halves.take().unwrap_or_else(|| self.stack.restore_files());
        let restored = self.stack.verify_health(halves)?;
        Ok(restored.into_iter().find(|r| r.was_changed))
    }
}

impl ConversationHandler {
    fn carry_out(&mut self, server: &ServerRef, what: Question) -> Result<Answer, ServerError> {
        Ok(match what {
            Question::Watch => {
                let watcher = Watcher::start(server)?;
                let found = RemoteServerInfo::from(watcher.found());
                self.watcher = Some(watcher);
                Answer::Found(found)
            }
            Question::Look { patient } => self.look(server, patient)?,
            Question::Knobs => match knobs(std::slice::from_ref(&server.unnamed())) {
                Ok(document) => Answer::Knobs(Box::new(document)),
                Err(e) => Answer::Failed { what: e.to_string(), refusal: false },
            },
            Question::Open(order) => self.open(server, &order)?,
            Question::Restore { dry_run } => {
                let config = server.config.as_deref();
                let results = restore_like(dry_run, |journal| {
                    journal.kind.name == server.kind.name && (config.is_none() || journal.config.as_deref() == config)
                })?;
                let told = |result: Result<RestoreReport, ServerError>| result.map_err(|e| e.to_string());
                Answer::Restored(results.into_iter().map(told).collect())
            }
            of_session => self.session()?.carry_out(of_session)?,
        })
    }

    fn session(&mut self) -> Result<&mut ChangeSession, ServerError> {
        self.session.as_mut().ok_or_else(|| ServerError::Setting("its session was not opened".into()))
    }

    fn look(&mut self, server: &ServerRef, patient: bool) -> Result<Answer, ServerError> {
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => none.insert(Watcher::start(server)?),
        };
        if !watcher.is_alive() {
            watcher.find_again();
        }
        let document = Box::new(watcher.look(patient));
        Ok(Answer::Look { document, alive: watcher.is_alive(), found: watcher.found().into() })
    }

    fn open(&mut self, server: &ServerRef, order: &OpenRequest) -> Result<Answer, ServerError> {
        if self.session.is_some() {
            return Err(ServerError::Setting("its session is open already".into()));
        }
        let OpenRequest { live, ignore, host_wide, place } = order.clone();
        let others = OtherTrafficPolicy { live, ignore, host_wide };
        let url = own_url(server);
        let server = server.unnamed();
        let stack = Stack::open_for(&server, place, url.as_ref(), &others)?;
        stack.check_changeable()?;
        let opened = OpenedSession {
            name: stack.name(),
            original: stack.original().clone(),
            knobs: stack.all_knobs().into_iter().map(|(_, knob, _)| *knob).collect(),
            cores: cpus() as u64,
            is_host: server.kind.is_host(),
        };
        self.session = Some(ChangeSession { server, stack, halves: None, staying: None });
        Ok(Answer::Opened(Box::new(opened)))
    }
}

impl ChangeSession {
    fn carry_out(&mut self, what: Question) -> Result<Answer, ServerError> {
        let stack = &mut self.stack;
        Ok(match what {
            Question::Check(settings) => {
                stack.check(&settings)?;
                Answer::Done
            }
            Question::Complete(settings) => Answer::Settings(stack.complete(&settings)?),
            Question::Apply(settings) => {
                stack.apply(&settings)?;
                Answer::Done
            }
            Question::PutBack => {
                self.halves = Some(stack.restore_files());
                Answer::Done
            }
            Question::Confirm => {
                let halves = self.halves.take().unwrap_or_else(|| stack.restore_files());
                let restored = stack.verify_health(halves)?;
                Answer::Restored(restored.into_iter().map(Ok).collect())
            }
            Question::BringToStay(settings) => {
                let staying = stack.persist(&settings)?;
                let kept = staying.kept().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                self.staying = Some(staying);
                Answer::Kept(kept)
            }
            Question::Settle => match self.staying.take() {
                None => return Err(ServerError::Setting("nothing is to stay".into())),
                Some(staying) => {
                    stack.commit(staying)?;
                    Answer::Done
                }
            },
            Question::Workers => Answer::Workers(stack.count_workers()),
            Question::Memory => {
                let session = stack.pool().and_then(|server| server.session());
                Answer::Memory(session.and_then(|s| real_memory(s.master(), &s.workers()).ok()))
            }
            Question::Size { memory } => match stack.pool().and_then(|server| server.session()) {
                None => return Err(ServerError::Setting(format!("{} has no workers", self.server))),
                Some(session) => match size_of(session.adapter(), &session.original().settings, memory, Vec::new()) {
                    Ok(size) => Answer::Size(Box::new(size)),
                    Err(e) => Answer::Failed { what: e.to_string(), refusal: false },
                },
            },
            Question::Watch
            | Question::Look { .. }
            | Question::Knobs
            | Question::Open(_)
            | Question::Restore { .. }
            | Question::Examine(_) => Answer::Done,
        })
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
