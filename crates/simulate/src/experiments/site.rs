//! What the doctor sees of a simulated machine: status pages, states of threads, sockets, counters of the kernel. All of it follows
//! from what the servers did; nothing here knows what limits them.

use std::collections::BTreeMap;
use std::time::Duration;

use lastdrop_experiment::doctor::{Goal, MachineFacts, ModuleTrials, Servers, Site, SiteSummary};
use lastdrop_experiment::lab::{Clock, LabError};
use lastdrop_model::Setting;
use lastdrop_model::documents::WorkersCeiling;
use lastdrop_model::examination::{ExaminationStep, ExaminedServer, Runnable, ServerMeasurements, ServerProfile};

use super::machine::{SimulatedMachine, bytes};
use crate::world::{PoolKind, Stage, Usage, WaitFor, WorldPlan};

const FRONT: &str = "nginx";
const DATABASE: &str = "mariadb";
/// Addresses of the front, the pool, the database and the service on another machine.
const FRONT_AT: &str = "127.0.0.1:8000";
const POOL_AT: &str = "127.0.0.1:9000";
const DATABASE_AT: &str = "127.0.0.1:3306";
const PEER: &str = "192.0.2.9:443";
const LOCK_FILE: &str = "/srv/app/lock";
/// Readings of threads and sockets per second.
const READINGS: f64 = 20.0;
/// Processor time of a page that is swapped, µs.
const PAGE_US: f64 = 100.0;

const WORKING: [Stage; 2] = [Stage::Worker, Stage::Lock];
const IN_DATABASE: [Stage; 3] = [Stage::DatabaseQueue, Stage::Database, Stage::DatabaseWait];

/// A simulated machine, as the doctor asks about it.
#[derive(Debug)]
pub struct SimulatedSite(pub SimulatedMachine);

impl SimulatedSite {
    /// Names of the pool's program and of the setting that bounds its workers.
    fn pool(&self) -> (&'static str, &'static str) {
        match self.0.plan().pool.kind {
            PoolKind::PhpFpm => ("php-fpm", "pm.max_children"),
            PoolKind::Gunicorn => ("gunicorn", "workers"),
            PoolKind::Apache => ("apache", "MaxRequestWorkers"),
        }
    }

    fn examined(&self) -> Vec<ExaminedServer> {
        let plan = self.0.plan();
        let (kind, knob) = self.pool();
        let cpus: Vec<usize> = (0..plan.cores as usize).collect();
        let server = |name: &str, listens: &str| ExaminedServer {
            server: name.into(),
            kind: name.into(),
            named: name.into(),
            software: name.into(),
            listens: vec![listens.into()],
            cpus: cpus.clone(),
            ..ExaminedServer::default()
        };
        let number = |name: &str, n: u32| (name.to_string(), Setting::Count(i64::from(n)));
        let mut pool = server(kind, if plan.front.is_some() { POOL_AT } else { FRONT_AT });
        pool.one_request_a_worker = true;
        pool.pool = Some(knob.into());
        pool.settings.extend([number(knob, plan.pool.workers)]);
        pool.needs.insert(knob.into(), "restart".into());
        match plan.pool.kind {
            PoolKind::PhpFpm => pool.settings.extend([("pm".to_string(), Setting::read("static"))]),
            PoolKind::Gunicorn => pool.settings.extend([("worker_class".to_string(), Setting::read("sync"))]),
            PoolKind::Apache => {
                pool.settings.extend([number("ServerLimit", plan.pool.workers)]);
                pool.directives.insert("MaxRequestWorkers".into(), plan.pool.workers.to_string());
            }
        }
        let connects = |server: &mut ExaminedServer, address: &str, to: &str| {
            server.connects.push(address.into());
            server.to.push(to.into());
        };
        if plan.backend.is_some() {
            connects(&mut pool, DATABASE_AT, DATABASE);
        }
        if plan.pool.waits_for == WaitFor::Peer && plan.pool.wait_us > 0.0 {
            connects(&mut pool, PEER, "");
        }
        let front = plan.front.as_ref().map(|_| {
            let mut front = server(FRONT, FRONT_AT);
            connects(&mut front, POOL_AT, kind);
            front
        });
        front.into_iter().chain([pool]).chain(plan.backend.as_ref().map(|_| server(DATABASE, DATABASE_AT))).collect()
    }

    /// Returns what is seen of each server under a load.
    fn seen(&self, used: &Usage) -> Vec<ServerMeasurements> {
        let plan = self.0.plan();
        let mut all = Vec::new();
        let kernel = BTreeMap::from([("ListenOverflows", used.drops), ("ListenDrops", used.drops)]);
        let seen = |name: &str, processes: u32, threads: f64, stages: &[Stage]| {
            let (cores, runnable) = (used.cores(stages), used.mean_in(stages));
            ServerMeasurements {
                server: name.into(),
                workers_first: processes.into(),
                workers_last: processes.into(),
                workers_most: processes.into(),
                readings: (used.now_us / 1e6 * READINGS) as u64,
                threads,
                cpu_cores: Some(cores),
                hottest_thread_cores: (cores / threads).min(1.0),
                hottest_process_cores: (cores / threads).min(1.0),
                most_runnable: Some(Runnable {
                    cores: (cores / threads).min(1.0),
                    run_delay: ((runnable - cores) / threads).max(0.0),
                }),
                waits: BTreeMap::from([("running".to_string(), runnable)]),
                kernel: kernel.iter().filter(|(_, n)| **n > 0).map(|(name, n)| ((*name).into(), *n)).collect(),
                ..ServerMeasurements::default()
            }
        };
        let add = |seen: &mut ServerMeasurements, what: &str, n: f64| {
            if n > 1e-9 {
                *seen.waits.entry(what.into()).or_default() += n;
            }
        };
        if plan.front.is_some() {
            let loops = f64::from(plan.cores);
            let mut front = seen(FRONT, plan.cores, loops, &[Stage::Proxy]);
            add(&mut front, "events", loops - used.mean_in(&[Stage::Proxy]));
            (front.queue_mean, front.queue_most, front.queue_limit) =
                (Some(used.mean_in(&[Stage::ProxyQueue])), Some(0), Some(511));
            front.queue_at = FRONT_AT.into();
            all.push(front);
        }
        let (kind, _) = self.pool();
        let workers = plan.pool.workers;
        let mut pool = seen(kind, workers, f64::from(workers), &WORKING);
        let waits_for = match plan.pool.waits_for {
            WaitFor::Sleep => "sleep".to_string(),
            WaitFor::Peer => format!("peer {PEER}"),
        };
        add(&mut pool, &format!("lock {LOCK_FILE}"), used.mean_in(&[Stage::LockQueue]));
        add(&mut pool, &waits_for, used.mean_in(&[Stage::Wait]));
        add(&mut pool, &format!("peer {DATABASE_AT}"), used.mean_in(&IN_DATABASE));
        let busy: f64 = pool.waits.values().sum();
        add(&mut pool, "idle", f64::from(workers) - busy);
        if plan.pool.kind != PoolKind::Gunicorn {
            pool.status_busy = Some(busy);
        }
        (pool.queue_mean, pool.queue_most, pool.queue_limit) =
            (Some(used.mean_in(&[Stage::ListenQueue])), Some(used.longest_queue), Some(u64::from(plan.pool.backlog)));
        pool.queue_at = if plan.front.is_some() { POOL_AT } else { FRONT_AT }.into();
        pool.real_memory_bytes = Some(bytes(plan.memory_of(workers)));
        pool.private_bytes = Some(bytes(f64::from(workers) * plan.pool.worker_mb));
        all.push(pool);
        if let Some(backend) = &plan.backend {
            let sessions = f64::from(backend.connections.min(workers));
            let mut database = seen(DATABASE, 1, sessions, &[Stage::Database]);
            add(&mut database, "disk", used.mean_in(&[Stage::DatabaseWait]));
            add(&mut database, "idle", sessions - used.mean_in(&[Stage::Database, Stage::DatabaseWait]));
            database.hottest_process_cores = used.cores(&[Stage::Database]);
            all.push(database);
        }
        all
    }

    fn memory_ceiling(plan: &WorldPlan) -> WorkersCeiling {
        WorkersCeiling {
            by: "memory".into(),
            number: plan.fitting_workers().into(),
            reason: "the memory of the world".into(),
        }
    }
}

impl Site for SimulatedSite {
    fn find(&mut self, _: &Goal) -> Result<MachineFacts, LabError> {
        let plan = self.0.plan();
        Ok(MachineFacts {
            processors: plan.cores.into(),
            memory_bytes: bytes(plan.memory_mb),
            ..MachineFacts::default()
        })
    }

    fn visitors(&mut self) -> Result<Option<String>, LabError> {
        Ok(None)
    }

    fn follow(&mut self) -> Result<(), LabError> {
        Ok(())
    }

    fn servers(&mut self) -> Result<Servers, LabError> {
        Ok(Servers { servers: self.examined(), ..Servers::default() })
    }

    fn begin(&mut self) -> Result<(), LabError> {
        Ok(())
    }

    fn end(&mut self) -> Result<ExaminationStep, LabError> {
        let plan = self.0.plan();
        let used = self.0.last_load();
        let servers = self.seen(&used);
        let own: f64 = servers.iter().filter_map(|s| s.cpu_cores).sum();
        let span_us = used.now_us.max(1.0);
        let cores = f64::from(plan.cores);
        let busy = (own + (used.others_us - used.stolen_us) / span_us) / cores;
        let missing_mb = plan.memory_mb - plan.memory_of(plan.pool.workers);
        let swapped_us = own * span_us * (1.0 - 1.0 / used.slowdown.max(1.0));
        Ok(ExaminationStep {
            cores: vec![busy.min(1.0); plan.cores as usize],
            softirq: vec![0.0; plan.cores as usize],
            steal: used.stolen_us / span_us / cores,
            server_cpu_s: Some(own * span_us / 1e6),
            swapped_pages: (swapped_us / PAGE_US) as u64,
            memory_available_bytes: Some(bytes(missing_mb.max(0.0))),
            servers,
            ..ExaminationStep::default()
        })
    }

    fn inside(&mut self, _: bool) -> Result<Vec<ServerProfile>, LabError> {
        Ok(Vec::new())
    }

    fn memory(&mut self, _: u64) -> Result<(), LabError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<(), LabError> {
        self.0.clock().sleep(Duration::from_secs(1));
        Ok(())
    }

    fn modules(&mut self) -> Result<ModuleTrials, LabError> {
        Ok(ModuleTrials::default())
    }

    fn finish(&mut self) -> Result<SiteSummary, LabError> {
        let ceilings = vec![SimulatedSite::memory_ceiling(self.0.plan())];
        Ok(SiteSummary { ceilings: BTreeMap::from([(self.pool().0.into(), ceilings)]), ..SiteSummary::default() })
    }
}
