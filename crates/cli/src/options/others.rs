//! Options about other users of a server that is to be changed.

use std::net::IpAddr;

use clap::Args;
use lastdrop_server::OtherTrafficPolicy;

/// Options about other users of a server that is to be changed.
#[derive(Debug, Clone, Default, Args)]
pub struct OthersArgs {
    /// Change the server although other people use it, by a graceful reload if that is enough
    #[arg(long)]
    pub live: bool,
    /// A client with this address is a health check and no visitor; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub ignore_source: Vec<IpAddr>,
    /// Also change host settings of the whole machine: conntrack's table, the queueing discipline, open files, swapping,
    /// huge pages
    #[arg(long)]
    pub host_wide: bool,
}

impl From<&OthersArgs> for OtherTrafficPolicy {
    fn from(args: &OthersArgs) -> OtherTrafficPolicy {
        OtherTrafficPolicy { live: args.live, ignore: args.ignore_source.clone(), host_wide: args.host_wide }
    }
}
