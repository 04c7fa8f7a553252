//! The coordinator's side: it sends orders, receives records and reports them as the events of one run.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lastdrop_load::{MergedEvent, files};
use lastdrop_model::{Event, Plan};
use lastdrop_store::{AgentRecord, RecordBody, RunAgent, Store};

use super::order::{PartOrder, check, files_of};
use super::{AgentEvent, AgentOrder, Link, Member, RunAssembler, tape};
use crate::lab::carrier::{Carrier, CarrierResult, CarrierTask};

/// How often it checks whether the run is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// The agents begin at most this long after the start order.
const BEGINNING: Duration = Duration::from_secs(1);
/// How long an agent may be silent, beyond the plan's own drain, before it is lost; and how long after its end a run
/// waits for a lost agent.
const PATIENCE: Duration = Duration::from_secs(10);

/// A fleet of machines that carries out plans.
#[derive(Debug)]
pub struct Fleet<L> {
    link: L,
    /// A run that is completely reported, whose records stay in the store until its report is stored.
    whole: Option<(Store, String)>,
}

impl<L: Link> Fleet<L> {
    pub fn new(link: L) -> Fleet<L> {
        Fleet { link, whole: None }
    }

    /// Makes the order for each agent.
    fn orders(&self, plan: &Plan) -> Result<Vec<AgentOrder>, String> {
        let members = self.link.members();
        let weights: Vec<u32> = members.iter().map(|m| m.weight).collect();
        check(plan, &weights)?;
        let one = |(i, path): (usize, std::path::PathBuf)| {
            let bytes = files::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            Ok((i.to_string(), Arc::<[u8]>::from(bytes)))
        };
        let sent = files_of(plan).into_iter().enumerate().map(one).collect::<Result<Vec<_>, String>>()?;
        let order = |member| {
            let payload = PartOrder::new(plan.clone(), weights.clone(), member).encode()?;
            Ok(AgentOrder { member, payload, files: sent.clone() })
        };
        (0..members.len()).map(order).collect()
    }
}

/// Stores what agents report until the run is complete.
struct RecordArchive<'a> {
    run: &'a str,
    store: Option<&'a Store>,
    members: &'a [Member],
    /// Something could not be written: it stays with the broker, and later records stay in memory.
    is_short: Cell<bool>,
}

impl RecordArchive<'_> {
    fn begin(&self) {
        let agent = |m: &Member| RunAgent {
            name: m.name.clone(),
            weight: m.weight,
            offset_us: m.offset_us,
            error_us: m.error_us,
        };
        let agents: Vec<RunAgent> = self.members.iter().map(agent).collect();
        // The observer that stores the seconds reports a store that cannot be written.
        let _ = self.store.map(|store| store.keep_agents(self.run, &agents));
    }

    /// Returns true if the broker may forget the record. If the run is not stored, it may.
    fn keep(&self, member: usize, epoch: u64, seq: u64, what: RecordBody) -> bool {
        let (Some(store), Some(m)) = (self.store, self.members.get(member)) else { return true };
        let kept = store.keep_agent_record(self.run, &AgentRecord { agent: m.name.clone(), epoch, seq, what }).is_ok();
        self.is_short.set(self.is_short.get() || !kept);
        kept
    }
}

fn tell(merged: &MergedEvent, report: &mut dyn FnMut(&Event<'_>)) {
    match merged {
        MergedEvent::Second(slice) => report(&Event::Second { slice: Cow::Borrowed(slice) }),
        MergedEvent::PhaseEnd { phase, duration_us, peak } => {
            report(&Event::PhaseEnd { phase: *phase, duration_us: *duration_us, peak: *peak });
        }
    }
}

impl<L: Link> Carrier for Fleet<L> {
    fn carry(&mut self, run: &CarrierTask<'_>, report: &mut dyn FnMut(&Event<'_>)) -> Result<CarrierResult, String> {
        let orders = self.orders(run.plan)?;
        let members = self.link.members().to_vec();
        let assembler = match tape(run.plan, files::read)? {
            Some(tape) => RunAssembler::of_tape(run.plan, &members, &tape.dues()),
            None => RunAssembler::new(run.plan, &members),
        };
        let mut assembler = assembler.ok_or("the weights of the agents mean nothing")?;
        let patience = run.plan.drain + PATIENCE;
        let archive =
            RecordArchive { run: run.id, store: run.store.as_ref(), members: &members, is_short: Cell::new(false) };
        archive.begin();
        (run.begins)(self.link.start(run.id, orders, patience)?);
        let planned: Option<Duration> = run.plan.phases.iter().map(|p| p.duration).sum();
        // An agent that has not sent everything by then is lost, even if it is still heard of.
        let mut deadline = planned.map(|planned| Instant::now() + planned + run.plan.drain + 2 * patience);
        // Until then a silent agent may come back: a link that was cut for ten seconds loses nothing.
        let mut hoping = planned.map(|planned| Instant::now() + BEGINNING + planned + patience);
        let mut stopping = false;
        while !assembler.is_over() || assembler.has_lost() && hoping.is_some_and(|until| Instant::now() < until) {
            let stop = run.stop.load(Ordering::Relaxed);
            if !stopping && (stop || run.enough.load(Ordering::Relaxed)) {
                stopping = true;
                assembler.stopping();
                self.link.stop(if stop { "the run was stopped" } else { "enough is known" });
                deadline = Some(Instant::now() + run.plan.drain + 2 * patience);
                // A user who wants to stop does not wait for agents that are already lost.
                hoping = None;
            }
            match self.link.next(LOOK)? {
                Some(AgentEvent::Record { member, epoch, seq, bytes }) => {
                    // An invalid record is not requested again.
                    if let Err(why) = assembler.take(member, epoch, seq, &bytes) {
                        assembler.distrust(member, &why);
                    }
                    if archive.keep(member, epoch, seq, RecordBody::Record(bytes)) {
                        self.link.kept();
                    }
                }
                Some(AgentEvent::Ended { member, epoch, records, error }) => {
                    assembler.ended(member, epoch, records, error.clone());
                    if archive.keep(member, epoch, records, RecordBody::Last(error)) {
                        self.link.kept();
                    }
                }
                Some(AgentEvent::Lost { member }) => assembler.lose(member),
                Some(AgentEvent::Back { member }) => assembler.back(member),
                None if deadline.is_some_and(|at| Instant::now() >= at) => break,
                None => {}
            }
            while let Some(merged) = assembler.pop() {
                tell(&merged, report);
            }
        }
        self.link.leave();
        for merged in assembler.rest(run.plan) {
            tell(&merged, report);
        }
        let is_late = assembler.needs_rebuild();
        let carried = assembler.finish(run.stop.load(Ordering::Relaxed));
        let whole = !is_late && !archive.is_short.get() && carried.agents.iter().all(|a| a.complete);
        self.whole = run.store.clone().filter(|_| whole).map(|store| (store, run.id.to_owned()));
        Ok(carried)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.link.members().iter().filter_map(|m| m.address).collect()
    }

    fn is_kept(&mut self) {
        if let Some((store, run)) = self.whole.take() {
            // If the records stay in the store, they are read once more and give the same run.
            let _ = store.forget_agent_records(&run);
        }
    }
}
