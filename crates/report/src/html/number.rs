//! Numbers as people read them: with unit, few digits and grouped thousands.

use lastdrop_model::units::{show_bytes, show_us};

/// The unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// A number of things.
    Count,
    /// Per second.
    Rate,
    Micros,
    Bytes,
    /// A fraction from 0 to 1.
    Share,
    /// Processor cores.
    Cores,
    /// One value divided by another.
    Ratio,
}

impl Unit {
    /// Name of the unit in the page's script.
    pub(super) fn name(self) -> &'static str {
        match self {
            Unit::Count => "count",
            Unit::Rate => "rate",
            Unit::Micros => "us",
            Unit::Bytes => "bytes",
            Unit::Share => "share",
            Unit::Cores => "cores",
            Unit::Ratio => "ratio",
        }
    }

    pub(super) fn show(self, value: f64) -> String {
        // An empty sum is minus zero.
        let value = value + 0.0;
        match self {
            Unit::Count | Unit::Cores => grouped(value),
            Unit::Rate => format!("{}/s", grouped(value)),
            Unit::Micros => show_us(value),
            Unit::Bytes => show_bytes(value.max(0.0) as u64),
            Unit::Share => share(value),
            Unit::Ratio => format!("{value:.2} ×"),
        }
    }
}

/// `12,345`, `123.4`, `1.23`: about four digits.
pub(crate) fn grouped(value: f64) -> String {
    let value = value + 0.0;
    let digits = match value.abs() {
        v if v >= 1000.0 || v.fract() == 0.0 => 0,
        v if v >= 100.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), ""), |(w, r)| (w, r));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |w| ("-", w));
    let mut out = String::from(sign);
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    if !rest.is_empty() {
        out.push('.');
        out.push_str(rest);
    }
    out
}

/// Formats a count.
pub(super) fn count(n: u64) -> String {
    grouped(n as f64)
}

/// Formats a fraction as percent. A small share never shows as 0 %, one just below 1 never as 100 %.
pub(super) fn share(value: f64) -> String {
    let percent = value * 100.0;
    match percent {
        p if p == 0.0 || p == 100.0 => format!("{p:.0} %"),
        p if p > 0.0 && p < 0.001 => "< 0.001 %".into(),
        p if p > 99.99 && p < 100.0 => "> 99.99 %".into(),
        p if p.abs() < 1.0 => format!("{p:.3} %"),
        p => format!("{p:.1} %"),
    }
}

/// Formats a duration: `12.3 s`, `5 min 20 s`, `1 h 2 min`.
pub(super) fn seconds(s: f64) -> String {
    let whole = s.round() as u64;
    match whole {
        _ if s == 0.0 => "0 s".into(),
        _ if s < 1.0 => show_us(s * 1e6),
        0..120 if s.fract() == 0.0 => format!("{s:.0} s"),
        0..120 => format!("{s:.1} s"),
        120..3600 if whole.is_multiple_of(60) => format!("{} min", whole / 60),
        120..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ if (whole % 3600) / 60 == 0 => format!("{} h", whole / 3600),
        _ => format!("{} h {} min", whole / 3600, (whole % 3600) / 60),
    }
}

/// Formats a ratio as a change: `+12.3 %`; from a factor of three on as `3.8 ×`.
pub(super) fn change(ratio: f64) -> String {
    match ratio {
        r if r >= 100.0 => format!("{} ×", grouped(r.round())),
        r if r >= 3.0 => format!("{r:.1} ×"),
        r => format!("{:+.1} %", (r - 1.0) * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_true() {
        assert_eq!(
            [-0.0, 12.0, 999.96, 1234567.8, 1.234, -4500.0].map(grouped),
            ["0", "12", "1,000.0", "1,234,568", "1.23", "-4,500"]
        );
        assert_eq!(
            [0.0, 1.0, 0.000_000_1, 0.999_999, 0.005, 0.25].map(share),
            ["0 %", "100 %", "< 0.001 %", "> 99.99 %", "0.500 %", "25.0 %"]
        );
        assert_eq!(
            [0.25, 10.0, 10.04, 320.0, 3600.0, 3725.0].map(seconds),
            ["250.0 ms", "10 s", "10.0 s", "5 min 20 s", "1 h", "1 h 2 min"]
        );
        assert_eq!([1.123, 0.5, 3.84, 1234.5].map(change), ["+12.3 %", "-50.0 %", "3.8 ×", "1,235 ×"]);
    }
}
