//! The questions to an agent about servers of its machine, and its answers. They are plain bytes to the transport. Both sides
//! have the same version of lastdrop; otherwise the agent refuses.

use std::net::IpAddr;
use std::path::PathBuf;

use lastdrop_experiment::doctor;
use lastdrop_experiment::observe::watch::RemoteServerInfo;
use lastdrop_model::documents::{KnobsDocument, SizeDocument, WatchDocument};
use lastdrop_model::examination::{ExaminationStep, ServerProfile};
use lastdrop_model::{Knob, Sample, Settings};
use lastdrop_server::{EffectiveSettings, RestoreReport, ServerError, StackPlace};
use serde::{Deserialize, Serialize};

/// A question about one of the servers that the agent was started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerQuestion {
    pub server: ServerName,
    pub what: Question,
}

/// The name of a server for an agent. It never contains a file to read or a command to run: the agent only compares the path
/// with those that it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerName {
    pub kind: String,
    pub config: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Begin to watch it.
    Watch,
    Look {
        patient: bool,
    },
    Knobs,
    /// Begin to change it: lock it, check its health, open the journal.
    Open(OpenRequest),
    Check(Settings),
    Complete(Settings),
    Apply(Settings),
    PutBack,
    Confirm,
    BringToStay(Settings),
    Settle,
    Workers,
    Memory,
    Size {
        memory: Option<u64>,
    },
    /// Undo what killed runs left.
    Restore {
        dry_run: bool,
    },
    /// A doctor's question about the machine.
    Examine(ExamineQuestion),
}

/// The questions of a [`doctor::Site`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExamineQuestion {
    Find {
        /// Further servers, after the one that the question names.
        beside: Vec<ServerName>,
        /// Without its servers: the agent uses its own names.
        goal: Box<doctor::Goal>,
    },
    Visitors,
    Follow,
    Servers,
    Begin,
    /// Samples of the first server since the last such question.
    Looks,
    End,
    Inside {
        /// With a CPU profile of the busy processes.
        profile: bool,
    },
    Memory {
        requests: u64,
    },
    Settle,
    Modules,
    Rest,
}

impl Question {
    /// True if it changes the server or starts another instance of it.
    pub fn changes(&self) -> bool {
        match self {
            Question::Watch
            | Question::Look { .. }
            | Question::Knobs
            | Question::Check(_)
            | Question::Complete(_)
            | Question::Workers
            | Question::Memory
            | Question::Size { .. } => false,
            Question::Restore { dry_run } => !dry_run,
            // It starts another instance of the server.
            Question::Examine(what) => matches!(what, ExamineQuestion::Modules),
            Question::Open(_)
            | Question::Apply(_)
            | Question::PutBack
            | Question::Confirm
            | Question::BringToStay(_)
            | Question::Settle => true,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenRequest {
    pub live: bool,
    pub ignore: Vec<IpAddr>,
    pub host_wide: bool,
    pub place: Option<StackPlace>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    Found(RemoteServerInfo),
    Look {
        document: Box<WatchDocument>,
        alive: bool,
        found: RemoteServerInfo,
    },
    Knobs(Box<KnobsDocument>),
    Opened(Box<OpenedSession>),
    Settings(Settings),
    Restored(Vec<Result<RestoreReport, String>>),
    Kept(String),
    Workers(usize),
    Memory(Option<u64>),
    Size(Box<SizeDocument>),
    Examined(Box<ExamineAnswer>),
    /// The agent tried, and failed.
    Failed {
        what: String,
        refusal: bool,
    },
}

/// The answers to [`ExamineQuestion`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExamineAnswer {
    /// With the agent's names for the servers of the question, in their order.
    Found {
        machine: doctor::Machine,
        called: Vec<String>,
    },
    Visitors(Option<String>),
    Servers(doctor::Servers),
    Looks(Vec<Sample>),
    Step(Box<ExaminationStep>),
    Inside(Vec<ServerProfile>),
    Modules(doctor::ModuleTrials),
    Rest(doctor::SiteSummary),
}

impl From<&ServerError> for Answer {
    fn from(e: &ServerError) -> Answer {
        Answer::Failed { what: e.to_string(), refusal: e.is_refusal() }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenedSession {
    /// Its name on a command line there.
    pub name: String,
    pub original: EffectiveSettings,
    pub knobs: Vec<Knob>,
    pub cores: u64,
    pub is_host: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_back_and_says_whether_it_changes_anything() {
        let server = ServerName { kind: "apache".into(), config: Some("/a b.conf".into()) };
        let settings = Settings::from([("MaxRequestWorkers".to_string(), 7_u64.into())]);
        let all = [
            (Question::Watch, false),
            (Question::Look { patient: true }, false),
            (Question::Size { memory: Some(1) }, false),
            (Question::Apply(settings.clone()), true),
            (Question::BringToStay(settings), true),
            (Question::Restore { dry_run: true }, false),
            (Question::Restore { dry_run: false }, true),
            (Question::Examine(ExamineQuestion::Inside { profile: true }), false),
            (Question::Examine(ExamineQuestion::Modules), true),
        ];
        for (what, changes) in all {
            let bytes = serde_json::to_vec(&ServerQuestion { server: server.clone(), what }).expect("JSON");
            let read: ServerQuestion = serde_json::from_slice(&bytes).expect("the same");
            assert_eq!((read.server == server, read.what.changes()), (true, changes), "{:?}", read.what);
        }
    }
}
