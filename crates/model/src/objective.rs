//! Objectives of a run: `p99<300ms`, `errors<0.1%`, `rate>500`.
//!
//! An objective may be about one class of requests (`checkout.p99<500ms`), or about the CPU of the server's machine
//! (`cpu<80%`, `cpu_per_request<2ms`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounds::{DURATION, RAMP_RATE};
use crate::histogram::{Kind, PERCENTILES};
use crate::units::show_us;

/// One limit that a run has to meet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Objective {
    /// The class of requests that it is about; `None` means all requests together.
    pub class: Option<String>,
    pub metric: Metric,
    /// True if a value equal to the limit does not meet the objective (`<` and `>`, not `<=` and `>=`).
    pub strict: bool,
    /// Microseconds (of a latency, or of CPU time), a share (0 to 1), or requests per second.
    pub limit: f64,
}

/// The quantity that an objective limits. Only a rate has to stay above its limit, all others below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// A field of a latency summary, such as `p99` of `response`.
    Latency { kind: Kind, field: &'static str },
    /// Share of the due requests without a good answer: no answer, an error status (400 and up), or an answer that
    /// misses an expectation of the plan.
    Errors,
    /// Replays only: share of the compared answers whose status class or redirect target differs from the log's.
    Mismatch,
    /// Answers per second before the end of the phase.
    Rate,
    /// Busy share of all processors of the server's machine, including what other programs use.
    Cpu,
    /// CPU time of the server's processes per answer.
    CpuPerRequest,
}

impl Metric {
    /// Returns true if only samples of the server's processes can tell the value.
    #[must_use]
    pub fn is_of_server(&self) -> bool {
        matches!(self, Metric::Cpu | Metric::CpuPerRequest)
    }
}

/// An objective and the value that was measured for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectiveResult {
    pub objective: Objective,
    pub met: bool,
    /// The measured value in the unit of the limit; `None` if nothing was measured.
    pub value: Option<f64>,
    /// The measured value as text.
    pub seen: String,
}

impl ObjectiveResult {
    /// Returns true if all objectives were met.
    #[must_use]
    pub fn all_met(judged: &[ObjectiveResult]) -> bool {
        judged.iter().all(|j| j.met)
    }
}

/// Fields of a latency summary other than the percentiles.
const OTHER_FIELDS: [&str; 3] = ["mean", "min", "max"];

impl Objective {
    /// Reads a list such as `p99<300ms,errors<0.1%`.
    ///
    /// # Errors
    /// A sentence naming the part that is wrong.
    pub fn list(text: &str) -> Result<Vec<Objective>, String> {
        text.split(',').map(str::parse).collect()
    }

    /// Returns the class and metric as text: `p99`, `checkout.p99`.
    #[must_use]
    pub fn what(&self) -> String {
        let class = self.class.as_ref().map_or(String::new(), |c| format!("{c}."));
        format!("{class}{}", self.metric)
    }

    /// Returns true if this value meets the objective.
    #[must_use]
    pub fn allows(&self, value: f64) -> bool {
        match (&self.metric, self.strict) {
            (Metric::Rate, true) => value > self.limit,
            (Metric::Rate, false) => value >= self.limit,
            (_, true) => value < self.limit,
            (_, false) => value <= self.limit,
        }
    }

    /// Returns a value of the objective's metric with its unit.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        match self.metric {
            Metric::Latency { .. } | Metric::CpuPerRequest => show_us(value),
            Metric::Cpu => format!("{:.1} %", value * 100.0),
            Metric::Errors | Metric::Mismatch => format!("{:.3} %", value * 100.0),
            Metric::Rate => format!("{value:.1}/s"),
        }
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let at = text.find(['<', '>']).ok_or_else(|| {
            format!("'{text}' is not an objective; write it as p99<300ms, errors<0.1%, rate>500 or cpu<80%")
        })?;
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let above = rest.starts_with('>');
        let strict = !rest[1..].starts_with('=');
        let value = rest[1 + usize::from(!strict)..].trim();
        let (class, metric) = of_class(name)?;
        if above != (metric == Metric::Rate) {
            let right = if above { "<" } else { ">" };
            return Err(format!("'{text}': {name} has to be {right} something, or every server reaches it"));
        }
        if let (true, Some(class)) = (metric.is_of_server(), &class) {
            return Err(format!("'{text}': {metric} is not known of {class} alone; it is of all requests: {metric}<…"));
        }
        let limit = match metric {
            Metric::Latency { .. } | Metric::CpuPerRequest => {
                if value.parse::<f64>().is_ok() {
                    return Err(format!("'{text}': say the unit, as in {name}<{value}ms"));
                }
                DURATION.read::<Duration>(value).map_err(|e| format!("'{text}': {e}"))?.as_secs_f64() * 1e6
            }
            Metric::Errors | Metric::Mismatch | Metric::Cpu => {
                let (number, scale) = value.strip_suffix('%').map_or((value, 1.0), |v| (v, 100.0));
                match number.trim().parse::<f64>() {
                    Ok(n) if n.is_finite() && (0.0..=1.0).contains(&(n / scale)) => n / scale,
                    _ if metric == Metric::Cpu => {
                        return Err(format!("'{text}': write a share of all processors, as in cpu<80%"));
                    }
                    _ => return Err(format!("'{text}': write a share, as in {metric}<0.1% or {metric}<0.001")),
                }
            }
            Metric::Rate => RAMP_RATE
                .read(value.trim_end_matches("/s"))
                .map_err(|e| format!("'{text}': {e}; write requests per second, as in rate>500"))?,
        };
        Ok(Objective { class, metric, strict, limit })
    }
}

/// Splits `checkout.p99` into class and metric. The metric is the longest suffix that names one, so that class names
/// may contain dots.
fn of_class(name: &str) -> Result<(Option<String>, Metric), String> {
    let whole = metric(name);
    if whole.is_ok() {
        return whole.map(|m| (None, m));
    }
    let mut dots = name.match_indices('.').map(|(at, _)| at).filter(|at| *at > 0);
    let found = dots.find_map(|at| Some((Some(name[..at].to_string()), metric(&name[at + 1..]).ok()?)));
    found.map_or_else(|| whole.map(|m| (None, m)), Ok)
}

fn metric(name: &str) -> Result<Metric, String> {
    let name = name.to_ascii_lowercase();
    match name.as_str() {
        "errors" => return Ok(Metric::Errors),
        "mismatch" => return Ok(Metric::Mismatch),
        "rate" | "rps" => return Ok(Metric::Rate),
        "cpu" => return Ok(Metric::Cpu),
        "cpu_per_request" => return Ok(Metric::CpuPerRequest),
        _ => {}
    }
    let (kind, field) =
        name.split_once('.').filter(|(k, _)| !k.starts_with('p') || *k == "page").unwrap_or(("response", &name));
    let kinds = Kind::ALL.map(Kind::name);
    let field = field.replace('.', "_");
    let fields: Vec<&'static str> = PERCENTILES.iter().map(|(f, _)| *f).chain(OTHER_FIELDS).collect();
    let kind = Kind::ALL.into_iter().find(|k| k.name() == kind);
    match (kind, fields.iter().find(|f| **f == field)) {
        (Some(kind), Some(field)) => Ok(Metric::Latency { kind, field }),
        _ => Err(format!(
            "'{name}' cannot be an objective; there are errors, mismatch (of replays), rate, cpu, cpu_per_request, and {}, of the response or, as in connect.p99, of {}; \
             a class of requests stands before it: checkout.p99",
            fields.iter().map(|f| f.replace('_', ".")).collect::<Vec<_>>().join(", "),
            kinds[1..].join(", "),
        )),
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Metric::Errors => f.write_str("errors"),
            Metric::Mismatch => f.write_str("mismatch"),
            Metric::Rate => f.write_str("rate"),
            Metric::Cpu => f.write_str("cpu"),
            Metric::CpuPerRequest => f.write_str("cpu_per_request"),
            Metric::Latency { kind, field } => {
                if *kind != Kind::Response {
                    write!(f, "{}.", kind.name())?;
                }
                f.write_str(&field.replace('_', "."))
            }
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match (&self.metric, self.strict) {
            (Metric::Rate, true) => ">",
            (Metric::Rate, false) => ">=",
            (_, true) => "<",
            (_, false) => "<=",
        };
        write!(f, "{}{sign}", self.what())?;
        match self.metric {
            Metric::Latency { .. } | Metric::CpuPerRequest => {
                write!(f, "{}", humantime::format_duration(Duration::from_micros(self.limit.round() as u64)))
            }
            Metric::Errors | Metric::Mismatch | Metric::Cpu => write!(f, "{}%", self.limit * 100.0),
            Metric::Rate => write!(f, "{}", self.limit),
        }
    }
}

impl TryFrom<String> for Objective {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Objective> for String {
    fn from(o: Objective) -> String {
        o.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_read_as_people_write_them() {
        let list = Objective::list("p99<300ms, errors<0.1%,rate>500").expect("valid");
        assert_eq!(list.iter().map(|o| o.limit).collect::<Vec<_>>(), [300_000.0, 0.001, 500.0]);
        assert_eq!(
            Objective::list("p99.9<=1.5s,connect.p50<2ms,page.p95<3s,mean<20ms")
                .expect("valid")
                .iter()
                .map(|o| o.metric.to_string())
                .collect::<Vec<_>>(),
            ["p99.9", "connect.p50", "page.p95", "mean"]
        );
        let bound: Objective = "errors<=0".parse().expect("valid");
        assert!(bound.allows(0.0) && !bound.allows(0.1));
    }

    #[test]
    fn they_are_written_as_they_are_read() {
        for text in [
            "p99<300ms",
            "p99.9<=1s 500ms",
            "errors<0.1%",
            "rate>500",
            "service.max<2s",
            "checkout.p99<500ms",
            "GET /a.html?x.service.p99.9<1s",
            "GET /item/{n}.errors<1%",
            "Log in.rate>5",
            "cpu<80%",
            "mismatch<1%",
            "GET /a.mismatch<0.5%",
            "cpu_per_request<=1ms 500us",
        ] {
            let o: Objective = text.parse().expect("valid");
            assert_eq!(o.to_string(), text);
            assert_eq!(o.to_string().parse::<Objective>().expect("own text"), o);
        }
    }

    #[test]
    fn a_class_stands_before_its_metric() {
        let parts = |text: &str| {
            let o: Objective = text.parse().expect("valid");
            (o.class, o.metric.to_string())
        };
        assert_eq!(parts("checkout.p99<1s"), (Some("checkout".into()), "p99".into()));
        assert_eq!(parts("GET /a.b.p99.9<1s"), (Some("GET /a.b".into()), "p99.9".into()));
        assert_eq!(parts("a.connect.p50<1s"), (Some("a".into()), "connect.p50".into()));
        // The name of a latency kind always means the kind, even if a class has the same name.
        assert_eq!(parts("service.p99<1s"), (None, "service.p99".into()));
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, hint) in [
            ("p99", "p99<300ms"),
            ("p98<3ms", "p95"),
            ("p99<300", "unit"),
            ("p99>300ms", "<"),
            ("rate<5", ">"),
            ("errors<5", "0.1%"),
            ("errors<nan%", "0.1%"),
            ("mismatch<3", "mismatch<0.1%"),
            ("mismatch>1%", "<"),
            ("rate>inf", "rate>500"),
            ("cpu<120%", "cpu<80%"),
            ("cpu>10%", "<"),
            ("cpu_per_request<2", "unit"),
            ("login.cpu<80%", "of all requests"),
        ] {
            let e = Objective::list(text).expect_err(text);
            assert!(e.contains(hint), "{text}: {e}");
        }
    }
}
