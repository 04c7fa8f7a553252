//! What is asked of an agent about a server of its machine, and what it answers. Bytes to the transport; both sides are the same
//! version of lastdrop, or the agent refuses.

use std::net::IpAddr;
use std::path::PathBuf;

use lastdrop_doctor as doctor;
use lastdrop_looks::watch::RemoteServerInfo;
use lastdrop_model::documents::{KnobsDocument, SizeDocument, WatchDocument};
use lastdrop_model::examination::{ExaminationStep, ServerProfile};
use lastdrop_model::{Knob, Sample, Settings};
use lastdrop_server::{EffectiveSettings, RestoreReport, ServerError, StackPlace};
use serde::{Deserialize, Serialize};

/// A question about one of the servers that the agent was started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asked {
    pub server: Named,
    pub what: Question,
}

/// A server by what an agent may be told of it: never a file to be read or a command to be run. The path is compared with those that the
/// agent knows, and nothing else is done with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub kind: String,
    pub config: Option<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Begin to look at it.
    Watch,
    Look {
        patient: bool,
    },
    Knobs,
    /// Begin to change it: lock, health, journal.
    Open(OpenOrder),
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
    /// What a doctor asks of the machine.
    Examine(Examine),
}

/// The questions of a [`doctor::Site`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Examine {
    Find {
        /// Further servers, after the one that is asked about.
        beside: Vec<Named>,
        /// Without its servers: the agent knows them by the names of its own start.
        goal: Box<doctor::Goal>,
    },
    Visitors,
    Follow,
    Servers,
    Begin,
    /// Looks at the first server that were made since they were asked for.
    Looks,
    End,
    Inside {
        /// With a profile of those that compute.
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
    /// Does it change anything of the server's?
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
            // Another instance of the server is started for it.
            Question::Examine(what) => matches!(what, Examine::Modules),
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
pub struct OpenOrder {
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
    Opened(Box<Opened>),
    Settings(Settings),
    Restored(Vec<Result<RestoreReport, String>>),
    Kept(String),
    Workers(usize),
    Memory(Option<u64>),
    Size(Box<SizeDocument>),
    Examined(Box<Examined>),
    /// It was tried, and did not come about.
    Failed {
        what: String,
        refusal: bool,
    },
}

/// What it answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Examined {
    /// With what the agent calls the servers that were asked for, in their order.
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
pub struct Opened {
    /// As it is named on a command line there.
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
        let server = Named { kind: "apache".into(), config: Some("/a b.conf".into()) };
        let settings = Settings::from([("MaxRequestWorkers".to_string(), 7_u64.into())]);
        let all = [
            (Question::Watch, false),
            (Question::Look { patient: true }, false),
            (Question::Size { memory: Some(1) }, false),
            (Question::Apply(settings.clone()), true),
            (Question::BringToStay(settings), true),
            (Question::Restore { dry_run: true }, false),
            (Question::Restore { dry_run: false }, true),
            (Question::Examine(Examine::Inside { profile: true }), false),
            (Question::Examine(Examine::Modules), true),
        ];
        for (what, changes) in all {
            let bytes = serde_json::to_vec(&Asked { server: server.clone(), what }).expect("JSON");
            let read: Asked = serde_json::from_slice(&bytes).expect("the same");
            assert_eq!((read.server == server, read.what.changes()), (true, changes), "{:?}", read.what);
        }
    }
}
