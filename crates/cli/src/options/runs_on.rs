//! Options that choose the machines that generate the load.

use std::net::{IpAddr, ToSocketAddrs};

use anyhow::Result;
use clap::{Args, ValueEnum};
use lastdrop_experiment::lab::Carrier;
use lastdrop_experiment::lab::fleet::{self, Link};
use lastdrop_fleet::{DeliveryMode, choose};
use lastdrop_model::Plan;
use lastdrop_store::Store;

use super::FleetArgs;
use crate::exit::UsageError;
use crate::fleet::{NatsLink, catch_up};

/// Options that choose the machines that generate the load.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Fleet")]
pub struct RunsOnArgs {
    /// Put the load on from agents of a fleet: all, a number of them, or names with weights ('a*2,b')
    #[arg(long = "fleet", value_name = "WHO")]
    pub who: Option<String>,
    #[command(flatten)]
    pub of: FleetArgs,
    /// What happens to records on their way: for tests
    #[arg(long, value_enum, hide = true, default_value_t)]
    deliveries: DeliveriesArg,
}

/// [`DeliveryMode`] by name.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum DeliveriesArg {
    #[default]
    Once,
    Again,
    Unacknowledged,
}

impl From<DeliveriesArg> for DeliveryMode {
    fn from(arg: DeliveriesArg) -> DeliveryMode {
        match arg {
            DeliveriesArg::Once => DeliveryMode::Once,
            DeliveriesArg::Again => DeliveryMode::Again,
            DeliveriesArg::Unacknowledged => DeliveryMode::Unacknowledged,
        }
    }
}

impl RunsOnArgs {
    /// The fleet that carries out plans, one after the other; None for this machine. Plans that are made later are checked
    /// when they are carried out. First adds to the runs in `store` what agents reported late.
    ///
    /// # Errors
    /// When there is no such fleet, `--fleet` chooses no agent, or a fleet cannot carry out the plan.
    pub fn carrier(&self, plans: &[&Plan], store: Option<&Store>) -> Result<Option<Box<dyn Carrier>>> {
        let Some(who) = &self.who else { return Ok(None) };
        // Checks that need no agent come first.
        plans.iter().try_for_each(|plan| fleet::check(plan, &[1])).map_err(UsageError)?;
        let (url, fleet) = self.of.connect_to()?;
        if let Some(store) = store {
            catch_up(&fleet, store)?;
        }
        let chosen = choose(&fleet.agents()?, who).map_err(|e| UsageError(format!("--fleet: {e}")))?;
        let link = NatsLink::new(fleet, chosen, address_of(&url)).with_deliveries(self.deliveries.into());
        let weights: Vec<u32> = link.members().iter().map(|m| m.weight).collect();
        plans.iter().try_for_each(|plan| fleet::check(plan, &weights)).map_err(UsageError)?;
        Ok(Some(Box::new(fleet::Fleet::new(link))))
    }

    /// True if a fleet generates the load.
    pub fn is_fleet(&self) -> bool {
        self.who.is_some()
    }
}

/// The IP address of a broker at `tls://HOST:PORT`.
pub fn address_of(url: &str) -> Option<IpAddr> {
    url.strip_prefix("tls://")?.to_socket_addrs().ok()?.map(|a| a.ip()).next()
}
