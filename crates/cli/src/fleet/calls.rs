//! The calls to an agent about a server of its machine: one table of argument, answer, whether it changes anything, how
//! long the answer may take, and what the agent does. Both enums, the agent's dispatch and the refusal without `--act`
//! follow from it. Calls are plain bytes to the transport. Both sides have the same version of lastdrop; otherwise the
//! agent refuses.

use std::fmt::Debug;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use lastdrop_experiment::doctor::{Goal, MachineFacts, ModuleTrials, Servers, Site, SiteSummary};
use lastdrop_experiment::lab::LabError;
use lastdrop_experiment::machine::{Machine, ThisMachine};
use lastdrop_experiment::observe::watch::ServerInfo;
use lastdrop_fleet::EngineError;
use lastdrop_model::documents::{KnobsDocument, SizeDocument, WatchDocument};
use lastdrop_model::examination::{ExaminationStep, ServerProfile};
use lastdrop_model::{Knob, Sample, Settings};
use lastdrop_server::operations::OperationCall;
use lastdrop_server::{Change, EffectiveSettings, RestoreReport, ServerError, ServerRef, StackPlace};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::respond::ServerHandler;

/// Timeout of a sample, or of reading something from a running server.
const SOON: Duration = Duration::from_secs(60);
/// Timeout of a restart: it may take as long as the longest request, twice, and then until the server answers.
const LATER: Duration = Duration::from_secs(900);
/// Timeout of a doctor's question. Most take some seconds; a fully loaded machine takes longer to evaluate its samples.
const EXAMINED: Duration = Duration::from_secs(120);

/// A call about one of the servers that the agent was started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallAbout {
    pub server: ServerName,
    pub call: ServerCall,
}

/// The name of a server for an agent. It never contains a file to read or a command to run: the agent only compares the path
/// with those that it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerName {
    pub kind: String,
    pub config: Option<PathBuf>,
}

impl ServerName {
    /// The name of a server for its agent.
    pub fn of(server: &ServerRef) -> ServerName {
        ServerName { kind: server.kind.name.into(), config: server.config.clone() }
    }
}

/// A row of the table.
pub trait Call: Into<ServerCall> {
    type Answer: DeserializeOwned;
    /// How long the answer may take.
    const WITHIN: Duration;
}

/// Why the agent did not do it.
#[derive(Debug)]
pub enum CallError {
    /// It refuses the call itself.
    Refused(EngineError),
    /// It tried, and failed.
    Failed(CallFailure),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallFailure {
    pub what: String,
    /// The server refuses the settings and runs on without them.
    pub refusal: bool,
}

impl From<ServerError> for CallError {
    fn from(e: ServerError) -> CallError {
        CallError::Failed(CallFailure { what: e.to_string(), refusal: e.is_refusal() })
    }
}

impl From<LabError> for CallError {
    fn from(e: LabError) -> CallError {
        CallError::Failed(CallFailure { what: e.to_string(), refusal: false })
    }
}

impl From<EngineError> for CallError {
    fn from(e: EngineError) -> CallError {
        CallError::Refused(e)
    }
}

/// Writes an answer for the coordinator.
fn written<T: Serialize>(answer: Result<T, CallError>) -> Result<Vec<u8>, EngineError> {
    let answer = match answer {
        Ok(answer) => Ok(answer),
        Err(CallError::Failed(failure)) => Err(failure),
        Err(CallError::Refused(e)) => return Err(e),
    };
    serde_json::to_vec(&answer).map_err(|e| EngineError(format!("its answer cannot be written down: {e}")))
}

macro_rules! calls {
    ($at:ident: $(
        $(#[$doc:meta])*
        $name:ident { $($field:ident: $type:ty),* } -> $answer:ty, $changes:expr, $within:expr => $does:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Serialize, Deserialize)]
            pub struct $name {
                $(pub $field: $type),*
            }

            impl From<$name> for ServerCall {
                fn from(call: $name) -> ServerCall {
                    ServerCall::$name(call)
                }
            }

            impl Call for $name {
                type Answer = $answer;
                const WITHIN: Duration = $within;
            }
        )*

        /// Any call.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ServerCall {
            $($name($name)),*
        }

        impl ServerCall {
            /// True if it changes the server or starts another instance of it.
            #[allow(unused_variables)]
            pub fn changes(&self) -> bool {
                match self {
                    $(ServerCall::$name($name { $($field),* }) => $changes),*
                }
            }

            /// Does it on this machine, and returns the answer as it is sent.
            ///
            /// # Errors
            /// When the agent refuses it.
            pub fn carry_out(self, handler: &mut ServerHandler) -> Result<Vec<u8>, EngineError> {
                match self {
                    $(ServerCall::$name($name { $($field),* }) => {
                        let does = |$at: &mut ServerHandler| -> Result<$answer, CallError> { Ok($does) };
                        written(does(handler))
                    }),*
                }
            }
        }
    };
}

calls! { at:
    /// Begins to watch the server.
    Watch {} -> ServerInfo, false, SOON => at.watch()?;
    Look { patient: bool } -> RemoteLook, false, SOON => at.look(patient)?;
    ReadKnobs {} -> KnobsDocument, false, SOON => ThisMachine.knobs(&at.server.unnamed())?;
    /// Undoes what killed runs left.
    RestoreLeft { dry_run: bool } -> Vec<Result<RestoreReport, String>>, !dry_run, LATER => at.restore_left(dry_run)?;

    /// Begins to change the server: locks it, checks its health, opens the journal. The calls until the doctor's are about
    /// such a server, as the methods of `server::Member`.
    Open { request: OpenRequest } -> OpenedSession, true, LATER => at.open(request)?;
    Check { change: Change } -> (), false, LATER => at.changed_by(&change)?.stack.check(change)?;
    Complete { settings: Settings } -> Settings, false, SOON => at.changed()?.stack.complete(&settings)?;
    Apply { change: Change } -> (), true, LATER => at.changed_by(&change)?.stack.apply(change)?;
    RestoreFiles {} -> (), true, LATER => at.changed()?.restore_files();
    VerifyHealth {} -> Vec<RestoreReport>, true, LATER => at.changed()?.verify_health()?;
    Persist { settings: Settings } -> String, true, LATER => at.changed()?.persist(&settings)?;
    Commit {} -> (), true, LATER => at.changed()?.commit()?;
    Operate { call: OperationCall } -> Value, call.changes(), SOON => at.changed()?.operate(call)?;
    Size { memory: Option<u64> } -> SizeDocument, false, SOON => at.changed()?.size(memory)?;

    /// Finds the server and those `beside` it. The calls from here on are the methods of a [`Site`].
    FindServers { beside: Vec<ServerName>, goal: Box<Goal> } -> ServersFound, false, EXAMINED => at.find(&beside, *goal)?;
    FindVisitors {} -> Option<String>, false, EXAMINED => at.site()?.visitors()?;
    FollowLinks {} -> (), false, EXAMINED => at.site()?.follow()?;
    ReadServers {} -> Servers, false, EXAMINED => at.site()?.servers()?;
    BeginStep {} -> (), false, EXAMINED => at.begin_step()?;
    /// Takes the samples of the first server since the last such call.
    TakeSamples {} -> Vec<Sample>, false, EXAMINED => at.samples()?;
    EndStep {} -> ExaminationStep, false, EXAMINED => at.site()?.end()?;
    TraceServers { profile: bool } -> Vec<ServerProfile>, false, EXAMINED => at.site()?.inside(profile)?;
    ReadMemory { requests: u64 } -> (), false, EXAMINED => at.site()?.memory(requests)?;
    SettleQueues {} -> (), false, EXAMINED => at.site()?.settle()?;
    /// Starts another instance of the server.
    TryModules {} -> ModuleTrials, true, EXAMINED => at.try_modules()?;
    FinishExamination {} -> SiteSummary, false, EXAMINED => at.site()?.finish()?;
}

/// Parameters of [`Open`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenRequest {
    pub live: bool,
    pub ignore: Vec<IpAddr>,
    pub host_wide: bool,
    pub place: Option<StackPlace>,
}

/// The answer to [`Open`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenedSession {
    /// Its name on a command line there.
    pub name: String,
    pub original: EffectiveSettings,
    pub knobs: Vec<Knob>,
    pub cores: u64,
    pub is_host: bool,
    pub takes_directives: bool,
}

/// The answer to [`Look`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RemoteLook {
    pub document: WatchDocument,
    pub alive: bool,
    pub found: ServerInfo,
}

/// The answer to [`FindServers`], with the agent's names for the servers, in their order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServersFound {
    pub machine: MachineFacts,
    pub called: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_back_and_says_whether_it_changes_anything() {
        let server = ServerName { kind: "apache".into(), config: Some("/a b.conf".into()) };
        let settings = Settings::from([("MaxRequestWorkers".to_string(), 7_u64.into())]);
        let all: [(ServerCall, bool); 9] = [
            (Watch {}.into(), false),
            (Look { patient: true }.into(), false),
            (Size { memory: Some(1) }.into(), false),
            (Apply { change: Change::from(&settings) }.into(), true),
            (Persist { settings }.into(), true),
            (RestoreLeft { dry_run: true }.into(), false),
            (RestoreLeft { dry_run: false }.into(), true),
            (TraceServers { profile: true }.into(), false),
            (TryModules {}.into(), true),
        ];
        for (call, changes) in all {
            let bytes = serde_json::to_vec(&CallAbout { server: server.clone(), call }).expect("JSON");
            let read: CallAbout = lastdrop_model::read_json(&bytes).expect("the same");
            assert_eq!((read.server == server, read.call.changes()), (true, changes), "{:?}", read.call);
        }
    }
}
