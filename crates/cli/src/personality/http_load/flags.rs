//! The flags of http_load, which may be shortened.

use lastdrop_model::bounds::{BANDWIDTH, DURATION, RATE, REQUESTS, TIMEOUT, USERS};

use crate::personality::{Refusal, host_and_port, refuse, whole};

const USAGE: &str = "usage:  http_load [-checksum] [-throttle] [-proxy host:port] [-verbose] [-timeout secs] [-sip sip_file] \
    [-cipher str]\n            ( -parallel N | -rate N [-jitter] )\n            ( -fetches N | -seconds N )\n            \
    url_file\nOne start specifier, either -parallel or -rate, is required.\n\
    One end specifier, either -fetches or -seconds, is required.";
/// Bytes per second of a 33.6 kbit/s modem.
const MODEM: u64 = 3360;

/// Options in the order in which abbreviations are matched: `-p` is -parallel, `-s` -seconds, `-t` -throttle.
const OPTIONS: &[(&str, bool)] = &[
    ("-checksum", false),
    ("-throttle", false),
    ("-Throttle", true),
    ("-verbose", false),
    ("-timeout", true),
    ("-jitter", false),
    ("-parallel", true),
    ("-rate", true),
    ("-fetches", true),
    ("-seconds", true),
    ("-sip", true),
    ("-cipher", true),
    ("-proxy", true),
];

#[derive(Debug, Default)]
pub struct HttpLoadOptions {
    pub checksum: bool,
    pub throttle: Option<u64>,
    pub verbose: bool,
    pub timeout_s: u64,
    pub jitter: bool,
    pub parallel: Option<u64>,
    pub rate: Option<u64>,
    pub fetches: Option<u64>,
    pub seconds: Option<u64>,
    pub sources: Option<String>,
    pub proxy: Option<(String, u16)>,
    pub file: String,
}

fn usage<T>() -> Result<T, Refusal> {
    refuse(1, USAGE)
}

pub fn read(args: &[String]) -> Result<HttpLoadOptions, Refusal> {
    let mut o = HttpLoadOptions { timeout_s: 60, ..HttpLoadOptions::default() };
    let mut rest = args.iter().peekable();
    while let Some(word) = rest.next_if(|w| w.starts_with('-') && w.len() > 1) {
        let Some((name, takes)) = OPTIONS.iter().find(|(name, _)| name.starts_with(word.as_str())) else {
            return usage();
        };
        let value = if *takes {
            match rest.next() {
                Some(value) => value.clone(),
                None => return usage(),
            }
        } else {
            String::new()
        };
        let count = |what: &str, bound| -> Result<Option<u64>, Refusal> {
            match whole("http_load", name, &value, bound)? {
                n if n >= 1 => Ok(Some(n as u64)),
                _ => refuse(1, format!("http_load: {what} must be at least 1")),
            }
        };
        match *name {
            "-checksum" => o.checksum = true,
            "-throttle" => o.throttle = Some(MODEM),
            "-Throttle" => o.throttle = count("throttle", BANDWIDTH)?.map(|bits| (bits / 10).max(1)),
            "-verbose" => o.verbose = true,
            "-timeout" => o.timeout_s = count("timeout", TIMEOUT)?.unwrap_or(60),
            "-jitter" => o.jitter = true,
            "-parallel" => o.parallel = count("parallel", USERS)?,
            "-rate" => {
                o.rate = count("rate", RATE)?;
                if o.rate.is_some_and(|r| r > 1000) {
                    return refuse(1, "http_load: rate must be at most 1000");
                }
            }
            "-fetches" => o.fetches = count("fetches", REQUESTS)?,
            "-seconds" => o.seconds = count("seconds", DURATION)?,
            "-sip" => o.sources = Some(value),
            "-proxy" => o.proxy = Some(host_and_port("http_load", "-proxy", &value)?),
            _ => return refuse(1, "http_load: -cipher: cipher suites cannot be chosen here; leave it away"),
        }
    }
    let (Some(file), None) = (rest.next(), rest.next()) else { return usage() };
    o.file.clone_from(file);
    let one = |a: Option<u64>, b: Option<u64>| a.is_some() != b.is_some();
    if !one(o.parallel, o.rate) || !one(o.fetches, o.seconds) || (o.jitter && o.rate.is_none()) {
        return usage();
    }
    Ok(o)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_be_short_and_the_first_of_the_list_wins() {
        let order = |text: &str| read(&text.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let o = order("-p 5 -s 10 -t file").expect("valid");
        assert_eq!((o.parallel, o.seconds, o.throttle), (Some(5), Some(10), Some(3360)));
        assert!(order("-p 5 -r 3 -f 1 file").is_err() && order("-r 5 file").is_err() && order("-p 5 -f 1").is_err());
        assert!(order("-p 5 -j -f 1 file").is_err(), "jitter is for rates");
        for line in ["-parallel 99999999999", "-parallel inf", "-fetches 1e300", "-seconds 99999999999", "-timeout nan"]
        {
            let refusal = order(&format!("{line} file")).expect_err(line);
            assert!(refusal.code == 2 && refusal.message.as_str().contains(line), "{refusal:?}");
        }
    }
}
