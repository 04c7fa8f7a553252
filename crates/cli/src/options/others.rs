//! Others who use a server that is to be changed.

use std::net::IpAddr;

use clap::Args;
use lastdrop_server::Others;

/// Others who use a server that is to be changed.
#[derive(Debug, Clone, Default, Args)]
pub struct OthersArgs {
    /// Do it although other people use the server: by a graceful reload where that is enough
    #[arg(long)]
    pub live: bool,
    /// Whoever connects from this address is no visitor, but checks the server's health; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub ignore_source: Vec<IpAddr>,
    /// Of the host change what belongs to the whole machine, too: conntrack's table, the queueing discipline, open files,
    /// swapping, huge pages
    #[arg(long)]
    pub host_wide: bool,
}

impl From<&OthersArgs> for Others {
    fn from(args: &OthersArgs) -> Others {
        Others { live: args.live, ignore: args.ignore_source.clone(), host_wide: args.host_wide }
    }
}
