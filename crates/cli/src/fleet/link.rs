//! The connection to agents over NATS.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use lastdrop_experiment::lab::fleet::{AgentEvent, AgentOrder, Link, Member};
use lastdrop_fleet::{
    Assignment, ChosenAgent, DeliveryMode, Fleet, FleetNotice, RecordId, RemoteRun, RemoteRunEvent, StartOptions,
};
use lastdrop_probe::listeners::is_local;

use crate::stdio::note;

/// Weights become whole numbers by this factor.
const WEIGHT_STEPS: f64 = 1000.0;

/// The agents of a fleet that take part in successive runs.
#[derive(Debug)]
pub struct NatsLink {
    fleet: Fleet,
    chosen: Vec<ChosenAgent>,
    members: Vec<Member>,
    deliveries: DeliveryMode,
    flight: Option<RemoteRun>,
    /// The last record that was passed on.
    last: Option<RecordId>,
}

/// The address of an agent as this machine sees it. The broker sees an agent on its own machine at a loopback address, which
/// here means another machine.
pub(super) fn address_from_here(seen: &str, broker: Option<IpAddr>) -> Option<IpAddr> {
    let broker_is_here = || broker.is_some_and(|ip| is_local(&SocketAddr::new(ip, 0)));
    let address: IpAddr = seen.parse().ok()?;
    if address.is_loopback() && !broker_is_here() { broker } else { Some(address) }
}

impl NatsLink {
    /// `broker` is the broker's address.
    pub fn new(fleet: Fleet, chosen: Vec<ChosenAgent>, broker: Option<IpAddr>) -> NatsLink {
        let member = |c: &ChosenAgent| Member {
            name: c.agent.name.clone(),
            weight: (c.weight * WEIGHT_STEPS).round().clamp(1.0, 1e6) as u32,
            offset_us: c.agent.offset_us,
            error_us: c.agent.error_us,
            address: address_from_here(&c.agent.address, broker),
        };
        let members = chosen.iter().map(member).collect();
        NatsLink { fleet, chosen, members, deliveries: DeliveryMode::default(), flight: None, last: None }
    }

    /// Changes how records are delivered, for tests.
    #[must_use]
    pub fn with_deliveries(self, deliveries: DeliveryMode) -> NatsLink {
        NatsLink { deliveries, ..self }
    }

    fn member(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|m| m.name == name)
    }

    /// What a message means for the run. None if nothing, or if it was only a note for the user.
    fn told(&mut self, news: RemoteRunEvent) -> Option<AgentEvent> {
        match news {
            RemoteRunEvent::Arrived(arrived) => {
                let member = self.member(&arrived.id.agent)?;
                let (epoch, seq) = (arrived.id.epoch, arrived.id.seq);
                self.last = Some(arrived.id);
                Some(AgentEvent::Record { member, epoch, seq, bytes: arrived.bytes })
            }
            RemoteRunEvent::Ended(end) => {
                let member = self.member(&end.id.agent)?;
                let epoch = end.id.epoch;
                self.last = Some(end.id);
                Some(AgentEvent::Ended { member, epoch, records: end.records, error: end.error })
            }
            RemoteRunEvent::Lost { agent, since } => {
                note!("lastdrop: agent {agent} is lost: nothing was heard of it for {} s", since.as_secs());
                Some(AgentEvent::Lost { member: self.member(&agent)? })
            }
            RemoteRunEvent::Back { agent } => {
                note!("lastdrop: agent {agent} is heard of again");
                Some(AgentEvent::Back { member: self.member(&agent)? })
            }
            RemoteRunEvent::Status(status) => {
                match status {
                    FleetNotice::BrokerAway => note!("lastdrop: no connection to the fleet's broker; the agents go on"),
                    FleetNotice::BrokerBack => note!("lastdrop: the fleet's broker is there again"),
                    FleetNotice::Trouble { agent, what } => note!("lastdrop: agent {agent}: {what}"),
                    FleetNotice::Refused { count, last } => note!("lastdrop: {count} messages were refused: {last}"),
                }
                None
            }
        }
    }
}

impl Link for NatsLink {
    fn members(&self) -> &[Member] {
        &self.members
    }

    fn start(&mut self, run: &str, orders: Vec<AgentOrder>, patience: Duration) -> Result<Instant, String> {
        self.leave();
        let assignment = |order: AgentOrder| {
            let agent = self.chosen.get(order.member)?.agent.clone();
            Some(Assignment { agent, payload: order.payload, files: order.files })
        };
        let assignments = orders.into_iter().filter_map(assignment).collect();
        let how = StartOptions { patience, deliveries: self.deliveries, ..StartOptions::default() };
        let flight = self.fleet.start(run, assignments, &how).map_err(|e| e.to_string())?;
        Ok(self.flight.insert(flight).started())
    }

    fn next(&mut self, within: Duration) -> Result<Option<AgentEvent>, String> {
        let until = Instant::now() + within;
        loop {
            let Some(flight) = &mut self.flight else { return Err("the run has not begun".into()) };
            let left = until.saturating_duration_since(Instant::now());
            match flight.next(left).map_err(|e| e.to_string())? {
                None => return Ok(None),
                Some(news) => {
                    if let Some(told) = self.told(news) {
                        return Ok(Some(told));
                    }
                }
            }
        }
    }

    fn kept(&mut self) {
        if let (Some(flight), Some(id)) = (&mut self.flight, self.last.take()) {
            flight.commit(&id);
        }
    }

    fn stop(&mut self, why: &str) {
        if let Some(flight) = &mut self.flight {
            flight.stop(why);
        }
    }

    fn leave(&mut self) {
        if let Some(flight) = self.flight.take() {
            flight.close();
        }
    }
}
