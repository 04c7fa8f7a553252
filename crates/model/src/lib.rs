//! The nouns of lastdrop: plans, outcomes, histograms, runs, settings and the documents made of them.
//!
//! Nothing here does I/O, reads a clock or starts a thread, so everything that judges or renders a run can be tested
//! with values alone. Times are microseconds since the start of the run (`Micros`) unless a name says otherwise.

pub mod again;
pub mod bounds;
pub mod class;
pub mod counts;
pub mod database;
pub mod documents;
pub mod event;
pub mod examination;
pub mod exchange;
pub mod executed;
pub mod experience;
pub mod histogram;
pub mod http_options;
pub mod kept_plan;
pub mod look;
pub mod objective;
pub mod plan;
pub mod plan_file;
pub mod printable;
pub mod raw;
pub mod record;
pub mod request;
pub mod run;
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

pub use again::NotAgain;
pub use class::Classes;
pub use counts::{Counts, Failure};
pub use database::{
    DatabaseLook, DatabaseService, DatabaseTrouble, LockWait, SessionState, StatementLook, TableScan, TroubleKind,
};
pub use event::Event;
pub use exchange::{Exchange, Fate, Wish};
pub use executed::Executed;
pub use experience::Experience;
pub use histogram::{Histogram, Kind};
pub use kept_plan::KeptPlan;
pub use look::{CgroupLook, HostLook, ListenQueue, Look, Observed, PortsHeld, WorkerLook};
pub use objective::{Judged, Objective};
pub use plan::{Arrival, KeepAlive, Load, Phase, Plan};
pub use printable::Printable;
pub use request::RequestSpec;
pub use run::{Generator, PhaseReport, Run};
pub use settings::{Knob, ReloadClass, Role, Setting, Settings};
pub use slice::{ClassAnswer, Identified, Slice};
pub use timeline::Timeline;
pub use url::Url;
pub use validity::{Reason, Validity, Verdict};

/// Microseconds since the start of a run, on its one monotonic clock.
pub type Micros = u64;
