//! Options about connections: addresses, proxy, bandwidth, TLS.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lastdrop_model::bounds::{BUFFER, INTERVAL};
use lastdrop_model::plan::{Network, Plan, Proxy, TlsOptions};
use lastdrop_model::plan_file::Bandwidth;

use super::values::within;

/// Options about connections, for `run`, `compare --live` and `capacity`.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Connections")]
pub struct NetworkArgs {
    /// Connect to this unix socket instead of to the URL's host
    #[arg(long, value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// Addresses to connect from, in turn: 127.0.0.2,127.0.0.3
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    pub source: Vec<IpAddr>,
    /// Go through a proxy, http://host:port (or http://USER:PASSWORD@host:port); https by CONNECT
    #[arg(long, value_name = "URL", value_parser = str::parse::<Proxy>)]
    pub proxy: Option<Proxy>,
    /// CONNECT for http too
    #[arg(long, requires = "proxy")]
    pub proxy_tunnel: bool,
    /// Only IPv4 addresses
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// Only IPv6 addresses
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// Resolve names again this often [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(INTERVAL))]
    pub dns_refresh: Option<Duration>,
    /// What each connection reads and writes at most: 33.6kbit, 10Mbit, or bytes a second as in 100k
    #[arg(long, value_name = "RATE", value_parser = str::parse::<Bandwidth>)]
    pub bandwidth: Option<Bandwidth>,
    /// Size of each socket's receive buffer
    #[arg(long, value_name = "SIZE", value_parser = within::<u32>(BUFFER))]
    pub receive_buffer: Option<u32>,
    /// Size of each socket's send buffer
    #[arg(long, value_name = "SIZE", value_parser = within::<u32>(BUFFER))]
    pub send_buffer: Option<u32>,
    /// TLS: accept any certificate
    #[arg(short = 'k', long)]
    pub insecure: bool,
    /// TLS: trust the authorities in this PEM file besides the system's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// TLS: the client's certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// TLS: its key
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// TLS: the name to ask for and to verify [default: the URL's host]
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// TLS: only this version, 1.2 or 1.3
    #[arg(long, value_name = "VERSION", value_parser = ["1.2", "1.3"])]
    pub tls: Option<String>,
    /// TLS: a full handshake for each connection
    #[arg(long)]
    pub no_resumption: bool,
}

impl NetworkArgs {
    /// Sets these options in a plan that comes from the command line alone.
    pub fn fill(&self, plan: &mut Plan) {
        plan.network = Network {
            unix_socket: self.unix_socket.clone(),
            connect_to: None,
            sources: self.source.clone(),
            proxy: self.proxy.clone().map(|p| Proxy { tunnel: self.proxy_tunnel, ..p }),
            family: if self.ipv4 { Some(4) } else { self.ipv6.then_some(6) },
            dns_refresh: self.dns_refresh,
            bandwidth_bytes: self.bandwidth.map(|b| b.0),
            receive_buffer_bytes: self.receive_buffer,
            send_buffer_bytes: self.send_buffer,
        };
        plan.tls = TlsOptions {
            no_sni: false,
            insecure: self.insecure,
            ca: self.ca.clone(),
            certificate: self.cert.clone(),
            key: self.key.clone(),
            server_name: self.server_name.clone(),
            version: self.tls.clone(),
            resumption: !self.no_resumption,
        };
    }
}
