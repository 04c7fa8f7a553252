//! Samples of the servers cover the time of the load, however late the load begins after the run, and however late the run ends
//! after the load. It has a file of its own because the load comes from this process, which may have no other server as a child.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Folder, Target};
use lastdrop_experiment::doctor::{
    DoctorOptions, Goal, Intrusiveness, LocalSite, MachineFacts, ModuleTrials, Servers, Site, SiteSummary, examine,
};
use lastdrop_experiment::lab::{Carrier, CarrierResult, CarrierTask, Lab, LabError};
use lastdrop_experiment::observe::databases::DatabaseOptions;
use lastdrop_load::{PreparedPlan, RunClock};
use lastdrop_model::examination::{ExaminationStep, ServerProfile, StepKind};
use lastdrop_model::{CaptureLevel, Event, KeepAlive, Load, Plan};
use serde::Serialize;
use serde::de::DeserializeOwned;

const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);

/// A carrier that runs in this process, with the pauses that a fleet has before and after.
struct DelayedCarrier;

impl Carrier for DelayedCarrier {
    fn carry(&mut self, run: &CarrierTask<'_>, report: &mut dyn FnMut(&Event<'_>)) -> Result<CarrierResult, String> {
        let at = Instant::now() + BEFORE;
        let prepared = PreparedPlan::new(run.plan).map_err(|e| e.to_string())?.starting(at);
        (run.begins)(at);
        let (clock, wish) = (RunClock::start(), CaptureLevel::default());
        let finished = lastdrop_load::run(run.plan, &prepared, clock, run.stop, run.enough, wish, report);
        thread::sleep(AFTER);
        let finished = finished.map_err(|e| e.to_string())?;
        Ok(CarrierResult { unreachable: finished.unreachable, stopped: finished.stopped, ..CarrierResult::default() })
    }
}

/// A site like that of a remote machine: every question and every answer is serialized and parsed.
struct RemoteSiteStub(LocalSite);

fn sent<T: Serialize + DeserializeOwned>(what: T) -> T {
    let text = serde_json::to_string(&what).expect("it is data");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

impl Site for RemoteSiteStub {
    fn find(&mut self, goal: &Goal) -> Result<MachineFacts, LabError> {
        self.0.find(&sent(goal.clone())).map(sent)
    }

    fn visitors(&mut self) -> Result<Option<String>, LabError> {
        self.0.visitors().map(sent)
    }

    fn follow(&mut self) -> Result<(), LabError> {
        self.0.follow()
    }

    fn servers(&mut self) -> Result<Servers, LabError> {
        self.0.servers().map(sent)
    }

    fn begin(&mut self) -> Result<(), LabError> {
        self.0.begin()
    }

    fn end(&mut self) -> Result<ExaminationStep, LabError> {
        self.0.end().map(sent)
    }

    fn inside(&mut self, profile: bool) -> Result<Vec<ServerProfile>, LabError> {
        self.0.inside(profile).map(sent)
    }

    fn memory(&mut self, requests: u64) -> Result<(), LabError> {
        self.0.memory(requests)
    }

    fn settle(&mut self) -> Result<(), LabError> {
        self.0.settle()
    }

    fn modules(&mut self) -> Result<ModuleTrials, LabError> {
        self.0.modules().map(sent)
    }

    fn finish(&mut self) -> Result<SiteSummary, LabError> {
        self.0.finish().map(sent)
    }
}

#[test]
fn pauses_of_a_run_before_and_after_its_load_do_not_thin_out_what_is_seen() {
    let folder = Folder::new();
    // One worker, always busy for one of two users, while the other one waits.
    let target = Target::with_config(&folder, "workers = 1\nservice = '200ms'\n");
    let servers = [target.name().parse().expect("a server")];
    let mut plan = Plan::new(target.url().parse().expect("valid"), 7);
    (plan.phases[0].load, plan.keepalive) = (Load::closed(2), KeepAlive::Off);
    let order = DoctorOptions {
        servers: &servers,
        plan,
        intrusiveness: Intrusiveness::Gentle,
        live: false,
        ignore: Vec::new(),
        databases: DatabaseOptions::default(),
        time: Duration::from_secs(6),
        brief: false,
    };
    let stop = AtomicBool::new(false);
    let mut lab = Lab { carrier: Some(Box::new(DelayedCarrier)), ..Lab::new(&stop, Vec::new()) };
    let (told, _looks) = channel();
    let mut site = RemoteSiteStub(LocalSite::new(&servers, DatabaseOptions::default(), told));
    let all = examine(&mut lab, &order, &mut site).expect("an examination");
    let step = all.step(StepKind::Few).expect("a step");
    let seen = step.server("target").unwrap_or_else(|| panic!("{step:#?}"));
    // If all seven seconds counted, two seconds of load would be less than a third.
    // On a busy machine the worker also waits for a processor.
    let at_work = seen.waiting("sleep") + seen.waiting("running");
    let queue = seen.queue_mean.expect("a listener");
    assert!(seen.threads > 0.9 && at_work > 0.75 * seen.threads, "{:?}", seen.waits);
    assert!(queue > 0.6, "{queue}");
    // The profile was taken under load, too.
    assert!(all.inside.iter().any(|i| i.requests > 0.0), "{:?}", all.inside);
}
