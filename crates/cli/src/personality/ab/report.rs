//! The output of ab: its report as text or HTML, its files, and the lines around them.

use std::fmt::Write as _;
use std::fs;

use lastdrop_analyze::samples::Samples;
use lastdrop_load::{TlsFacts, describe};
use lastdrop_model::{Micros, Url, printable, secrets};
use lastdrop_wire::Certificate;

use super::counts::AbCounts;
use super::flags::{AbOptions, BANNER, HTML_BANNER};
use crate::personality::{Compatibility, FinishedRun, Refusal, c_time, refuse};
use crate::stdio::out;

const PERCENTILES: [u64; 9] = [50, 66, 75, 80, 90, 95, 98, 99, 100];

pub fn unresolved<T>(o: &AbOptions, shown: &str, host: &str) -> Result<T, Refusal> {
    // APR's name for EAI_NONAME.
    out(start_line(o, shown, None));
    refuse(50, format!("apr_sockaddr_info_get() for {host}: Name or service not known (670002)"))
}

pub fn start_line(o: &AbOptions, host: &str, proxy: Option<&(String, u16)>) -> String {
    if o.html {
        return HTML_BANNER.into();
    }
    let through = proxy.map_or_else(String::new, |(host, port)| format!("[through {host}:{port}] "));
    let end = if o.heartbeat().is_some() { "\n" } else { "..." };
    format!("{BANNER}Benchmarking {host} {through}(be patient){end}")
}

pub fn answer_log(raw: &[u8], verbosity: i64) -> String {
    // A response that was cut off may still have a status; without one ab says nothing about it.
    let status = std::str::from_utf8(raw.get(9..12).unwrap_or_default()).ok().and_then(|text| text.parse::<u16>().ok());
    let mut text = format!("LOG: header received:\n{}\n", printable::lossless(raw));
    let Some(status) = status else { return text };
    if !(200..300).contains(&status) {
        let _ = writeln!(text, "WARNING: Response code not 2xx ({status})");
    } else if verbosity >= 4 {
        let _ = writeln!(text, "LOG: Response code = {status}");
    }
    text
}

/// Milliseconds as ab rounds them.
fn ms(us: f64) -> i64 {
    ((us as i64) + 500) / 1000
}

/// A line of the report.
fn line(out: &mut String, label: &str, value: String) {
    let _ = writeln!(out, "{label:<24}{value}");
}

/// A row of the table of -w; `tr` and `td` are the attributes that the user gave for those elements.
fn row(out: &mut String, [tr, td]: &[&str; 2], label: &str, value: String) {
    let _ = writeln!(
        out,
        "<tr {tr}><th colspan=2 {td}>{label}</th><td colspan=2 {td}>{}</td></tr>",
        printable::xml(&value)
    );
}

pub struct Report<'a> {
    pub o: &'a AbOptions,
    pub url: &'a Url,
    pub counts: &'a AbCounts,
    pub finished: &'a FinishedRun,
    pub compatibility: Compatibility,
}

/// The four rows of the table of times.
const ROWS: [(&str, &str); 4] = [
    ("Connect:    ", "the initial connection time"),
    ("Processing: ", "the processing time"),
    ("Waiting:    ", "the waiting time"),
    ("Total:      ", "the total time"),
];

impl Report<'_> {
    fn seconds(&self) -> f64 {
        self.finished.run.phases[0].duration_s
    }

    fn software(&self) -> String {
        let first = self.finished.first_answer.as_ref();
        let server = first.and_then(|f| f.server.clone()).unwrap_or_default();
        // ab reads the field up to the first control character or blank line.
        server.split(|c: char| (c as u32) < 32).next().unwrap_or_default().to_string()
    }

    fn tls(&self) -> Option<&TlsFacts> {
        self.finished.first_answer.as_ref()?.tls.as_ref()
    }

    fn length(&self) -> String {
        if self.o.any_length { "Variable".into() } else { format!("{} bytes", self.counts.length.unwrap_or(0)) }
    }

    /// Rates per second: requests, and kilobytes received, sent, and both.
    fn rates(&self) -> (f64, [f64; 3]) {
        let (t, s) = (self.counts, self.seconds().max(1e-9));
        (t.done as f64 / s, [t.read, t.sent, t.read + t.sent].map(|b| b as f64 / 1024.0 / s))
    }

    pub fn text(&self) -> String {
        let (o, t, s) = (self.o, self.counts, self.seconds());
        let mut out = String::from("\n\n");
        line(&mut out, "Server Software:", self.software());
        line(&mut out, "Server Hostname:", self.url.host.clone());
        line(&mut out, "Server Port:", self.url.port.to_string());
        if let Some(tls) = self.tls() {
            line(&mut out, "SSL/TLS Protocol:", protocol(tls));
            if let Some(key) = temp_key(&tls.group) {
                line(&mut out, "Server Temp Key:", key);
            }
            if !o.no_sni && self.url.host.parse::<std::net::IpAddr>().is_err() {
                line(&mut out, "TLS Server Name:", self.url.host.clone());
            }
        }
        out.push('\n');
        line(&mut out, "Document Path:", secrets::url(&self.url.path).into_owned());
        line(&mut out, "Document Length:", self.length());
        out.push('\n');
        line(&mut out, "Concurrency Level:", o.concurrency.to_string());
        line(&mut out, "Time taken for tests:", format!("{s:.3} seconds"));
        line(&mut out, "Complete requests:", t.done.to_string());
        line(&mut out, "Failed requests:", t.failed().to_string());
        if t.failed() > 0 {
            let _ = writeln!(
                out,
                "   (Connect: 0, Receive: {}, Length: {}, Exceptions: {})",
                t.failed_receive, t.failed_length, t.exceptions
            );
        }
        if t.bad_status > 0 {
            line(&mut out, "Non-2xx responses:", t.bad_status.to_string());
        }
        if o.keep_alive {
            line(&mut out, "Keep-Alive requests:", t.kept.to_string());
        }
        line(&mut out, "Total transferred:", format!("{} bytes", t.read));
        if o.body.is_some() {
            line(&mut out, "Total body sent:", t.sent.to_string());
        }
        line(&mut out, "HTML transferred:", format!("{} bytes", t.body));
        if s > 0.0 && t.done > 0 {
            let (rate, kb) = self.rates();
            line(&mut out, "Requests per second:", format!("{rate:.2} [#/sec] (mean)"));
            let each = s * 1000.0 / t.done as f64;
            line(&mut out, "Time per request:", format!("{:.3} [ms] (mean)", each * o.concurrency as f64));
            line(&mut out, "Time per request:", format!("{each:.3} [ms] (mean, across all concurrent requests)"));
            line(&mut out, "Transfer rate:", format!("{:.2} [Kbytes/sec] received", kb[0]));
            if o.body.is_some() {
                line(&mut out, "", format!("{:.2} kb/s sent", kb[1]));
                line(&mut out, "", format!("{:.2} kb/s total", kb[2]));
            }
            out.push_str(&self.times());
        }
        out
    }

    fn kinds(&self) -> [&Samples; 4] {
        let t = self.counts;
        [&t.connect, &t.processing, &t.waiting, &t.total]
    }

    /// The median. The original's is half a rank too high for an odd number of requests, and the upper of two for an even one.
    fn median(&self, s: &Samples) -> f64 {
        let n = s.count();
        match self.compatibility.like_the_original {
            false => s.median(),
            true if n > 1 && n % 2 == 1 => ((s.at_rank(n / 2) + s.at_rank(n / 2 + 1)) / 2) as f64,
            true => s.at_rank(n / 2) as f64,
        }
    }

    /// The rank, from 0, of a percentile. The original takes the next higher rank if the percentage is a whole number of
    /// samples.
    fn rank(&self, n: u64, percent: u64) -> u64 {
        if self.compatibility.like_the_original { n * percent / 100 } else { (n * percent).div_ceil(100).max(1) - 1 }
    }

    fn times(&self) -> String {
        let mut out = String::from("\nConnection Times (ms)\n");
        if self.o.no_confidence {
            out.push_str("              min   avg   max\n");
            for ((label, _), s) in ROWS.iter().zip(self.kinds()) {
                let _ = writeln!(out, "{label}{:5} {:5}{:5}", ms(s.min() as f64), ms(s.mean()), ms(s.max() as f64));
            }
        } else {
            out.push_str("              min  mean[+/-sd] median   max\n");
            for ((label, _), s) in ROWS.iter().zip(self.kinds()) {
                let _ = writeln!(
                    out,
                    "{label}{:5} {:4} {:5.1} {:6} {:7}",
                    ms(s.min() as f64),
                    ms(s.mean()),
                    s.deviation() / 1000.0,
                    ms(self.median(s)),
                    ms(s.max() as f64)
                );
            }
            for ((_, what), s) in ROWS.iter().zip(self.kinds()) {
                // ab compares numbers that it has rounded to whole milliseconds.
                let apart = if self.compatibility.like_the_original {
                    (ms(s.mean()) - ms(self.median(s))).abs() as f64 * 1000.0
                } else {
                    (s.mean() - self.median(s)).abs()
                };
                if apart > 2.0 * s.deviation() {
                    let _ = writeln!(
                        out,
                        "ERROR: The median and mean for {what} are more than twice the standard\n       deviation apart. \
                         These results are NOT reliable."
                    );
                } else if apart > s.deviation() {
                    let _ = writeln!(
                        out,
                        "WARNING: The median and mean for {what} are not within a normal deviation\n        These results \
                         are probably not that reliable."
                    );
                }
            }
        }
        let n = self.counts.done;
        if !self.o.no_percentiles && n > 1 {
            out.push_str("\nPercentage of the requests served within a certain time (ms)\n");
            for p in PERCENTILES {
                let total = &self.counts.total;
                let _ = match p {
                    100 => writeln!(out, " 100%  {:5} (longest request)", ms(total.max() as f64)),
                    _ => writeln!(out, "  {p}%  {:5}", ms(total.at_rank(self.rank(n, p)) as f64)),
                };
            }
        }
        out
    }

    pub fn html(&self) -> String {
        let (o, t, s) = (self.o, self.counts, self.seconds());
        let [table, tr, td] = &o.attributes;
        let td = if td.is_empty() { "bgcolor=white" } else { td };
        let mut out = format!("\n\n<table {table}>\n");
        let cells = [tr.as_str(), td];
        row(&mut out, &cells, "Server Software:", self.software());
        row(&mut out, &cells, "Server Hostname:", self.url.host.clone());
        row(&mut out, &cells, "Server Port:", self.url.port.to_string());
        row(&mut out, &cells, "Document Path:", secrets::url(&self.url.path).into_owned());
        row(&mut out, &cells, "Document Length:", self.length());
        row(&mut out, &cells, "Concurrency Level:", o.concurrency.to_string());
        row(&mut out, &cells, "Time taken for tests:", format!("{s:.3} seconds"));
        row(&mut out, &cells, "Complete requests:", t.done.to_string());
        row(&mut out, &cells, "Failed requests:", t.failed().to_string());
        if t.failed() > 0 {
            let _ = writeln!(
                out,
                "<tr {tr}><td colspan=4 {td} >   (Connect: 0, Length: {}, Exceptions: {})</td></tr>",
                t.failed_length, t.exceptions
            );
        }
        if t.bad_status > 0 {
            row(&mut out, &cells, "Non-2xx responses:", t.bad_status.to_string());
        }
        if o.keep_alive {
            row(&mut out, &cells, "Keep-Alive requests:", t.kept.to_string());
        }
        row(&mut out, &cells, "Total transferred:", format!("{} bytes", t.read));
        if o.body.is_some() {
            row(&mut out, &cells, "Total body sent:", t.sent.to_string());
        }
        row(&mut out, &cells, "HTML transferred:", format!("{} bytes", t.body));
        if s > 0.0 && t.done > 0 {
            let (rate, kb) = self.rates();
            row(&mut out, &cells, "Requests per second:", format!("{rate:.2}"));
            row(&mut out, &cells, "Transfer rate:", format!("{:.2} kb/s received", kb[0]));
            if o.body.is_some() {
                for (kb, what) in [(kb[1], "sent"), (kb[2], "total")] {
                    let _ = writeln!(
                        out,
                        "<tr {tr}><td colspan=2 {td}>&nbsp;</td><td colspan=2 {td}>{kb:.2} kb/s {what}</td></tr>"
                    );
                }
            }
            let _ = writeln!(out, "<tr {tr}><th {td} colspan=4>Connection Times (ms)</th></tr>");
            let _ = writeln!(
                out,
                "<tr {tr}><th {td}>&nbsp;</th> <th {td}>min</th>   <th {td}>avg</th>   <th {td}>max</th></tr>"
            );
            for (label, s) in [("Connect:", &t.connect), ("Processing:", &t.processing), ("Total:", &t.total)] {
                let _ = writeln!(
                    out,
                    "<tr {tr}><th {td}>{label}</th><td {td}>{:5}</td><td {td}>{:5}</td><td {td}>{:5}</td></tr>",
                    ms(s.min() as f64),
                    ms(s.mean()),
                    ms(s.max() as f64)
                );
            }
            out.push_str("</table>\n");
        }
        out
    }

    /// -g and -e.
    pub fn files(&self) -> Result<(), Refusal> {
        let t = self.counts;
        let write = |file: &str, what: &str, text: String| {
            fs::write(file, text).or_else(|e| refuse(1, format!("Cannot open {what} output file: {}", describe(&e))))
        };
        if t.done == 0 {
            return Ok(());
        }
        if let Some(file) = &self.o.csv {
            let mut text = String::from("Percentage served,Time in ms\n");
            for i in 0..=100u64 {
                let rank = ((t.done * i) as f64 / 100.0 + 0.5) as u64;
                let us = match i {
                    0 => t.total.min(),
                    100 => t.total.max(),
                    _ => t.total.at_rank(rank),
                };
                let _ = writeln!(text, "{i},{:.3}", us as f64 / 1000.0);
            }
            write(file, "CSV", text)?;
        }
        if let Some(file) = &self.o.gnuplot {
            let mut samples = t.samples.clone();
            samples.sort_by_key(|s| s.total);
            let mut text = String::from("starttime\tseconds\tctime\tdtime\tttime\twait\n");
            for s in samples {
                let seconds = s.start / 1_000_000;
                let of = |us: Micros| ms(us as f64);
                let _ = writeln!(
                    text,
                    "{}\t{seconds}\t{}\t{}\t{}\t{}",
                    c_time(seconds),
                    of(s.connect),
                    of(s.total - s.connect.min(s.total)),
                    of(s.total),
                    of(s.wait)
                );
            }
            write(file, "gnuplot", text)?;
        }
        Ok(())
    }
}

/// `TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256`: version, suite, bits of the server's key and of the cipher.
fn protocol(tls: &TlsFacts) -> String {
    let bits = if tls.cipher.contains("AES_128") { 128 } else { 256 };
    let suite = match tls.cipher.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => tls.cipher.trim_start_matches("TLS_").replace("_WITH_", "_").replace("AES_", "AES").replace('_', "-"),
    };
    // OpenSSL omits the hash of this suite.
    let suite =
        if suite.starts_with("ECDHE") { suite.replace("CHACHA20-POLY1305-SHA256", "CHACHA20-POLY1305") } else { suite };
    format!("{},{suite},{},{bits}", tls.version.replace('_', "."), key_bits(&tls.certificate))
}

/// Bits of a certificate's public key: the RSA modulus, or the field of the curve.
fn key_bits(der: &[u8]) -> usize {
    Certificate::read(der).map_or(0, |certificate| certificate.key.bits())
}

/// OpenSSL's name for the ephemeral key.
fn temp_key(group: &str) -> Option<String> {
    Some(match group {
        "X25519" | "X25519MLKEM768" => "X25519 253 bits".into(),
        "secp256r1" => "ECDH prime256v1 256 bits".into(),
        "secp384r1" => "ECDH secp384r1 384 bits".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_the_names_of_openssl() {
        let facts = |version: &str, cipher: &str| TlsFacts {
            version: version.into(),
            cipher: cipher.into(),
            ..TlsFacts::default()
        };
        assert_eq!(protocol(&facts("TLSv1_3", "TLS13_AES_256_GCM_SHA384")), "TLSv1.3,TLS_AES_256_GCM_SHA384,0,256");
        let old = facts("TLSv1_2", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(protocol(&old), "TLSv1.2,ECDHE-RSA-AES128-GCM-SHA256,0,128");
    }
}
