//! The part of a run that this process does: all of it, or an agent's share, within the limits set by the agent's
//! owner.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::Address;
use crate::files::Files;
use crate::share::Share;

/// The part of a run that this process does.
#[derive(Debug, Clone)]
pub struct RunPart {
    pub share: Share,
    /// When the first phase begins, the same moment for all agents; `None` means as soon as all threads are ready.
    pub start: Option<Instant>,
    /// Where it may connect to; `None` means anywhere.
    pub allow: Option<AllowedNetworks>,
    /// Where the files of the plan are.
    pub files: Files,
}

impl Default for RunPart {
    fn default() -> RunPart {
        RunPart { share: Share::whole(), start: None, allow: None, files: Files::Disk }
    }
}

/// Where connections may go, whatever a plan or an answer says. It is checked for the address of each connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedNetworks(Arc<[AddressRange]>);

/// Addresses with a common prefix, such as `10.1.0.0/16`, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    bits: u32,
}

impl AllowedNetworks {
    /// Allows only these networks.
    #[must_use]
    pub fn only(networks: impl IntoIterator<Item = AddressRange>) -> AllowedNetworks {
        AllowedNetworks(networks.into_iter().collect())
    }

    /// Allows this machine alone.
    #[must_use]
    pub fn loopback() -> AllowedNetworks {
        AllowedNetworks::only([
            AddressRange { first: IpAddr::from([127, 0, 0, 0]), bits: 8 },
            AddressRange { first: IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), bits: 128 },
        ])
    }

    /// Whether a connection may go there. Never to a path: it belongs to this machine, and a plan from elsewhere cannot
    /// know it.
    #[must_use]
    pub fn allows(&self, address: &Address) -> bool {
        match address {
            Address::Tcp(to) => self.0.iter().any(|n| n.holds(to.ip())),
            Address::Unix(_) => false,
        }
    }
}

impl AddressRange {
    fn holds(self, address: IpAddr) -> bool {
        // ::ffff:10.0.0.1 goes to 10.0.0.1.
        let (a, b, width) = match (self.first.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
            _ => return false,
        };
        let free = width - self.bits.min(width);
        (a ^ b).checked_shr(free).unwrap_or(0) == 0
    }
}

impl From<IpAddr> for AddressRange {
    fn from(address: IpAddr) -> AddressRange {
        let first = address.to_canonical();
        AddressRange { first, bits: if first.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressRange, String> {
        let wrong = || format!("'{text}' is no address; write 10.0.0.7, 10.1.0.0/16 or fd00::/8");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let first: IpAddr = address.trim_matches(['[', ']']).parse().map_err(|_| wrong())?;
        let first = first.to_canonical();
        let width = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |b| b.parse().map_err(|_| wrong()))?;
        if bits > width { Err(wrong()) } else { Ok(AddressRange { first, bits }) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::path::Path;

    fn allows(allow: &AllowedNetworks, address: &str) -> bool {
        allow.allows(&Address::Tcp(SocketAddr::new(address.parse().expect("an address"), 80)))
    }

    #[test]
    fn only_what_is_allowed_is_allowed() {
        let loopback = AllowedNetworks::loopback();
        for (address, may) in [
            ("127.0.0.1", true),
            ("127.255.0.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("128.0.0.1", false),
            ("::2", false),
            ("0.0.0.0", false),
            ("::", false),
            ("169.254.169.254", false),
            ("::ffff:10.0.0.1", false),
        ] {
            assert_eq!(allows(&loopback, address), may, "{address}");
        }
        assert!(!loopback.allows(&Address::Unix(Path::new("/run/docker.sock").into())));
        let networks =
            ["10.1.0.0/16", "192.0.2.7", "fd00::/8", "0.0.0.0/0"].map(|n| n.parse::<AddressRange>().expect(n));
        let some = AllowedNetworks::only(networks[..3].iter().copied());
        assert!(allows(&some, "10.1.255.1") && !allows(&some, "10.2.0.0") && allows(&some, "fdff::1"));
        assert!(allows(&some, "192.0.2.7") && !allows(&some, "192.0.2.6") && !allows(&some, "fe00::1"));
        let v4 = AllowedNetworks::only([networks[3]]);
        assert!(allows(&v4, "8.8.8.8") && !allows(&v4, "2001:db8::1"));
        assert!(!allows(&AllowedNetworks::default(), "127.0.0.1"));
    }

    #[test]
    fn what_is_no_network_is_an_error() {
        for text in ["", "a host", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "::/129"] {
            assert!(text.parse::<AddressRange>().is_err(), "{text}");
        }
        assert_eq!("[::1]".parse::<AddressRange>().expect("valid").to_string(), "::1/128");
    }
}
