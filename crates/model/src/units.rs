//! Units as people type and read them: `30s`, `400M`, `1.2 ms`.

use std::time::Duration;

/// Reads a duration: a number with `us`, `ms`, `s`, `m` or `h` (or a sum, `1m30s`); a bare number is seconds.
///
/// # Errors
/// A sentence saying what was expected, for a message that already names the option.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| format!("'{text}' is not a length of time"));
    }
    humantime::parse_duration(text)
        .map_err(|e| format!("'{text}' is not a length of time ({e}); write it as 500ms, 30s or 2m"))
}

/// Reads a size in bytes: `400M`, `1.5G`, `4096`. Powers of 1024, as `free` and Apache's own limits use them.
///
/// # Errors
/// A sentence saying what was expected.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = trimmed[digits.len()..].to_ascii_lowercase();
    let factor: f64 = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1024.0 * 1024.0,
        "g" => 1024.0 * 1024.0 * 1024.0,
        "t" => 1024.0f64.powi(4),
        _ => return Err(format!("'{text}' is not a size; write it as 400M or 2G")),
    };
    match digits.trim().parse::<f64>() {
        Ok(n) if n >= 0.0 && n.is_finite() => Ok((n * factor) as u64),
        _ => Err(format!("'{text}' is not a size; write it as 400M or 2G")),
    }
}

/// Formats bytes with one decimal and a unit, in powers of 1024.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Formats a latency in a fitting unit: `840 µs`, `12.3 ms`, `1.05 s`.
#[must_use]
pub fn show_us(us: f64) -> String {
    if us < 1_000.0 {
        format!("{us:.0} µs")
    } else if us < 10_000.0 {
        format!("{:.2} ms", us / 1e3)
    } else if us < 1_000_000.0 {
        format!("{:.1} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

/// Formats a duration as the command line accepts it.
#[must_use]
pub fn show_duration(d: Duration) -> String {
    humantime::format_duration(Duration::from_micros(d.as_micros() as u64)).to_string()
}

/// (De)serialises a `Duration` as seconds, a JSON number.
pub mod serde_seconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(d.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(d)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// (De)serialises an optional `Duration` as seconds.
pub mod serde_seconds_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub fn serialize<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        d.map(|d| d.as_secs_f64()).serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Option::<f64>::deserialize(d)?
            .map(|s| Duration::try_from_secs_f64(s).map_err(serde::de::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_type_them() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("-3").is_err());
        assert!(parse_duration("soon").is_err());
        assert!(parse_duration("1e400").is_err());
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_bytes("400M"), Ok(400 << 20));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert!(parse_bytes("many").is_err());
        assert!(parse_bytes("-1M").is_err());
    }
}
