//! The types that all crates share: plans, outcomes, histograms, runs, settings and the documents made of them.
//!
//! Nothing here does I/O, reads a clock or starts a thread. Code that judges or renders a run can therefore be tested
//! with values alone. Times are microseconds since the start of the run (`Micros`) unless a name says otherwise.

pub mod bounds;
pub mod class;
pub mod counts;
pub mod database;
pub mod demand;
pub mod documents;
pub mod event;
pub mod examination;
pub mod exchange;
pub mod executed;
pub mod experience;
pub mod histogram;
pub mod http_options;
pub mod json;
pub mod kept_plan;
pub mod objective;
pub mod plan;
pub mod plan_file;
pub mod printable;
pub mod raw;
pub mod record;
pub mod repeatable;
pub mod request;
pub mod run;
pub mod sample;
pub mod secrets;
pub mod session_file;
pub mod settings;
pub mod slice;
pub mod timeline;
pub mod toml_error;
pub mod units;
pub mod url;
pub mod url_file;
pub mod validity;

pub use class::Classes;
pub use counts::{Counts, Failure};
pub use database::{
    DatabaseSample, DatabaseService, DatabaseTrouble, LockWait, SessionState, StatementSample, TableScan, TroubleKind,
};
pub use event::Event;
pub use exchange::{CaptureLevel, Exchange, RequestOutcome};
pub use executed::ExecutedProgram;
pub use experience::Experience;
pub use histogram::{Histogram, Kind};
pub use json::read_json;
pub use kept_plan::KeptPlan;
pub use objective::{Objective, ObjectiveResult};
pub use plan::{Arrival, KeepAlive, Load, Phase, Plan};
pub use printable::Printable;
pub use repeatable::NotRepeatable;
pub use request::RequestSpec;
pub use run::{Generator, PhaseReport, Run};
pub use sample::{CgroupSample, HostSample, ListenQueue, PortsInUse, Sample, ServerTimeline, WorkerSample};
pub use settings::{Knob, ReloadClass, Role, Setting, Settings};
pub use slice::{ClassAnswer, IdentifiedAnswer, Slice, TraceId, TracedRequest};
pub use timeline::Timeline;
pub use url::Url;
pub use validity::{Reason, Validity, Verdict};

/// Microseconds since the start of a run, on its one monotonic clock.
pub type Micros = u64;
