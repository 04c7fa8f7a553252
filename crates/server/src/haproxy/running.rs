//! Reads the state of a running HAProxy over its stats socket.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lastdrop_model::Setting;
use lastdrop_probe::listeners::Endpoint;
use lastdrop_probe::stats_socket::{self, StatsRow, ask};

use super::config::Config;
use super::knobs::{ConfigKnob, KnobLocation, MAXCONN, NBTHREAD};

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// The present state.
pub struct RuntimeState {
    info: BTreeMap<String, String>,
    rows: Vec<StatsRow>,
}

impl RuntimeState {
    /// Asks the stats socket.
    ///
    /// # Errors
    /// In words: why it does not answer.
    pub fn ask(at: &Endpoint) -> Result<RuntimeState, String> {
        let answer = |command| ask(at, command, ASK_TIMEOUT).map_err(|e| format!("{at}: {e}"));
        let info = stats_socket::info(&answer("show info")?);
        let rows = stats_socket::rows(&answer("show stat")?).ok_or_else(|| format!("{at} gives no table"))?;
        Ok(RuntimeState { info, rows })
    }

    pub fn count(&self, name: &str) -> Option<u64> {
        self.info.get(name)?.parse().ok()
    }

    /// The present value of a knob; `None` if the state does not contain it.
    pub fn value(&self, config: &Config, entry: &ConfigKnob) -> Option<Setting> {
        let row = |proxy: &str, part: &str| self.rows.iter().find(|row| row.is(proxy, part));
        match (entry.place, entry.keyword) {
            (KnobLocation::Global, MAXCONN) => self.count("Maxconn").map(Setting::from),
            (KnobLocation::Global, NBTHREAD) => self.count("Nbthread").map(Setting::from),
            (KnobLocation::Global, _) => None,
            (KnobLocation::Section(section), MAXCONN) => {
                let section = &config.sections[section];
                row(&section.name, "FRONTEND").filter(|_| section.kind != "defaults")?.count("slim").map(Setting::from)
            }
            // Shown only on sockets with level operator or admin.
            (KnobLocation::Section(section), "balance") => {
                let name = row(&config.sections[section].name, "BACKEND")?.text("algo");
                (!name.is_empty()).then(|| Setting::read(name))
            }
            (KnobLocation::Section(_), _) => None,
            (KnobLocation::Server(line), _) => {
                let line = &config.lines[line];
                let mut name = line.argument(1)?.text.clone();
                if line.keyword() == "server-template" {
                    // A number, or a range.
                    let numbers = &line.argument(2)?.text;
                    name.push_str(numbers.split_once('-').map_or("1", |(first, _)| first));
                }
                let row = row(&config.sections[line.section].name, &name)?;
                Some(Setting::from(row.count("slim").unwrap_or(0)))
            }
        }
    }
}

/// The first stats socket of a configuration that is reachable from outside.
pub fn stats_socket(config: &Config) -> Option<Endpoint> {
    let text = |n: usize, line: &super::config::ConfigLine| line.argument(n).map(|word| word.text.clone());
    let prefixes = config.of_global("unix-bind").filter(|line| text(1, line).as_deref() == Some("prefix"));
    let prefix = prefixes.filter_map(|line| text(2, line)).next_back().unwrap_or_default();
    let sockets = config.of_global("stats").filter(|line| text(1, line).as_deref() == Some("socket"));
    sockets.filter_map(|line| endpoint(&text(2, line)?, &prefix)).next()
}

fn endpoint(text: &str, prefix: &str) -> Option<Endpoint> {
    let (family, address) = text.split_once('@').unwrap_or(("", text));
    match family {
        "unix" | "" if address.starts_with('/') => Some(Endpoint::Unix(format!("{prefix}{address}").into())),
        "" | "ipv4" | "ipv6" => {
            let (host, port) = address.rsplit_once(':')?;
            let ip: IpAddr = match host.trim_start_matches('[').trim_end_matches(']') {
                "" | "*" | "0.0.0.0" => Ipv4Addr::LOCALHOST.into(),
                "::" => Ipv6Addr::LOCALHOST.into(),
                other => other.parse().ok()?,
            };
            Some(Endpoint::Tcp(SocketAddr::new(ip, port.parse().ok()?)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_socket_is_where_the_configuration_says() {
        let tcp = |text: &str| Some(Endpoint::Tcp(text.parse().expect("an address")));
        assert_eq!(endpoint("/run/h.sock", ""), Some(Endpoint::Unix("/run/h.sock".into())));
        assert_eq!(endpoint("unix@/h.sock", "/run"), Some(Endpoint::Unix("/run/h.sock".into())));
        assert_eq!(endpoint("ipv4@*:9999", "/run"), tcp("127.0.0.1:9999"));
        assert_eq!((endpoint(":::81", ""), endpoint("10.0.0.1:81", "")), (tcp("[::1]:81"), tcp("10.0.0.1:81")));
        assert_eq!((endpoint("abns@x", ""), endpoint("fd@3", ""), endpoint("x", "")), (None, None, None));
    }
}
