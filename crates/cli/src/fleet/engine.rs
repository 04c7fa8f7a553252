//! The load engine of an agent: carries out the agent's share of a run.

use std::fs::File;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lastdrop_experiment::lab::fleet::{AgentTerms, PartOrder, carry_out, prepare};
use lastdrop_experiment::lab::observers::RequestLog;
use lastdrop_fleet::{Engine, EngineError, Job, Limits, Sink, Start, Stop};
use lastdrop_load::files;
use lastdrop_load::{AddressRange, AllowedNetworks, PreparedPlan};

/// How often the waiting for a stop checks whether the job has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The agent's load generator.
#[derive(Debug, Default)]
pub struct LoadEngine {
    ready: Option<PreparedJob>,
    /// The file to which each request of the latest run is logged.
    log: Option<PathBuf>,
}

impl LoadEngine {
    pub fn new(log: Option<PathBuf>) -> LoadEngine {
        LoadEngine { ready: None, log }
    }
}

/// A job that is ready to start.
#[derive(Debug)]
struct PreparedJob {
    run: String,
    order: PartOrder,
    terms: AgentTerms,
    prepared: PreparedPlan,
}

impl Engine for LoadEngine {
    fn prepare(&mut self, job: &Job) -> Result<(), EngineError> {
        self.ready = None;
        let order = PartOrder::decode(&job.payload).map_err(EngineError)?;
        let terms = terms(&job.limits).map_err(EngineError)?;
        let read = |name: &str| {
            let path = job.files.path(name).ok_or("it did not come along")?;
            files::read(path).map_err(|e| e.to_string())
        };
        let prepared = prepare(&order, &terms, &read).map_err(EngineError)?;
        self.ready = Some(PreparedJob { run: job.run.clone(), order, terms, prepared });
        Ok(())
    }

    fn run(&mut self, job: &Job, start: Start, sink: &dyn Sink, stop: &Stop) -> Result<(), EngineError> {
        let ready = self.ready.take().filter(|ready| ready.run == job.run);
        let Some(PreparedJob { order, terms, prepared, .. }) = ready else {
            return Err(EngineError("it was not prepared for this run".into()));
        };
        let log = self.log.as_ref().map(|path| {
            let file = File::create(path).map_err(|e| EngineError(format!("--log {}: {e}", path.display())))?;
            Ok(RequestLog::new(file))
        });
        let mut log = log.transpose()?;
        let (asked, over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    asked.fetch_or(stop.wait(LOOK), Ordering::Relaxed);
                }
            });
            // Ignore a failed write of the journal: the transport reports it and has the record in memory.
            let tell = |record: &lastdrop_model::record::Record| drop(sink.record(&record.encode()));
            let done = carry_out(&order, prepared.starting(start.at), &terms, &asked, &tell, log.as_mut());
            over.store(true, Ordering::Relaxed);
            done.map_err(EngineError)
        })
    }
}

/// The limits that this agent was started with, in the load's types.
fn terms(limits: &Limits) -> Result<AgentTerms, String> {
    let allow = match limits.allow.as_slice() {
        [] => AllowedNetworks::loopback(),
        hosts => {
            let networks = hosts.iter().map(|host| networks(host)).collect::<Result<Vec<_>, _>>()?;
            AllowedNetworks::only(networks.into_iter().flatten())
        }
    };
    Ok(AgentTerms { allow, max_rate: limits.max_rate, max_time: limits.max_time })
}

/// The networks of a host of `--allow`: a network, an address, or the current addresses of a name.
fn networks(host: &str) -> Result<Vec<AddressRange>, String> {
    if let Ok(network) = host.parse() {
        return Ok(vec![network]);
    }
    let found = (host, 0).to_socket_addrs().map_err(|e| format!("--allow {host}: {e}"))?;
    Ok(found.map(|a| AddressRange::from(a.ip())).collect())
}
