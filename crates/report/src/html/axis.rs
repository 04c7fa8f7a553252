//! Axes: maps values to positions and chooses labelled grid lines.

use super::number::Unit;

/// An axis from a lowest to a highest value.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub title: &'static str,
    pub unit: Unit,
    low: f64,
    high: f64,
    log: bool,
    /// Labelled lines that replace the round numbers.
    named: Vec<(f64, String)>,
}

/// If the largest value exceeds the smallest by more than this factor, the axis may be logarithmic.
const WIDE: f64 = 30.0;

impl Axis {
    /// From zero to slightly above the largest value.
    pub(super) fn from_zero(title: &'static str, unit: Unit, values: impl IntoIterator<Item = f64>) -> Axis {
        let high = values.into_iter().filter(|v| v.is_finite()).fold(0.0, f64::max);
        let high = if high > 0.0 { high * 1.06 } else { 1.0 };
        Axis { title, unit, low: 0.0, high, log: false, named: Vec::new() }
    }

    /// Around the values; logarithmic if they are far apart.
    pub(super) fn around(title: &'static str, unit: Unit, values: impl IntoIterator<Item = f64>) -> Axis {
        let positive: Vec<f64> = values.into_iter().filter(|v| v.is_finite() && *v > 0.0).collect();
        let low = positive.iter().copied().fold(f64::INFINITY, f64::min);
        let high = positive.iter().copied().fold(0.0, f64::max);
        if low.is_finite() && high / low > WIDE {
            return Axis { title, unit, low: low / 1.15, high: high * 1.15, log: true, named: Vec::new() };
        }
        Axis::from_zero(title, unit, positive)
    }

    /// Logarithmic between two values, with these labelled lines.
    pub(super) fn named(title: &'static str, low: f64, high: f64, named: Vec<(f64, String)>) -> Axis {
        Axis { title, unit: Unit::Count, low, high: high.max(low * 1.01), log: true, named }
    }

    /// Linear between two values.
    pub(super) fn between(title: &'static str, unit: Unit, low: f64, high: f64) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        Axis { title, unit, low, high, log: false, named: Vec::new() }
    }

    /// Uses these labelled lines instead of round numbers.
    pub(super) fn with_names(self, named: Vec<(f64, String)>) -> Axis {
        Axis { named, ..self }
    }

    /// Returns the position of a value: 0 at the start of the axis, 1 at its end; values outside are clamped.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns the values that get a line, with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let within = |v: &f64| *v >= self.low * 0.9999 && *v <= self.high * 1.0001;
        if !self.named.is_empty() {
            return self.named.iter().filter(|(v, _)| within(v)).cloned().collect();
        }
        let values: Vec<f64> = if self.log { self.decades() } else { self.round_steps() };
        values.into_iter().filter(within).map(|v| (v, self.word(v))).collect()
    }

    fn word(&self, v: f64) -> String {
        match self.unit {
            Unit::Rate | Unit::Count | Unit::Cores => super::number::grouped(v),
            Unit::Micros if v == 0.0 => "0".into(),
            Unit::Micros => tidy(&self.unit.show(v)),
            Unit::Bytes => tidy(&self.unit.show(v)),
            Unit::Ratio => super::number::change(v),
            Unit::Share => format!("{} %", super::number::grouped((v * 1e4).round() / 100.0)),
        }
    }

    fn decades(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let marks: &[f64] = if decades < 1.2 {
            &[1.0, 2.0, 3.0, 5.0]
        } else if decades < 2.5 {
            &[1.0, 3.0]
        } else {
            &[1.0]
        };
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        (first..=last).flat_map(|e| marks.iter().map(move |m| m * 10f64.powi(e))).collect()
    }

    fn round_steps(&self) -> Vec<f64> {
        // Round numbers of bytes are powers of 1024.
        let scale = match self.unit {
            Unit::Bytes => 1024f64.powi((self.high.max(1.0).log2() / 10.0).floor() as i32),
            _ => 1.0,
        };
        let span = (self.high - self.low) / scale;
        let rough = span / 5.0;
        let power = 10f64.powi(rough.log10().floor() as i32);
        let whole = matches!(self.unit, Unit::Count) && span >= 1.0;
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(power * 10.0);
        let step = if whole { step.max(1.0).ceil() } else { step };
        let first = (self.low / scale / step).ceil() as i64;
        let last = (self.high / scale / step).floor() as i64;
        (first..=last.min(first + 20)).map(|i| i as f64 * step * scale).collect()
    }
}

/// Removes trailing zeros: `5.00 ms` becomes `5 ms`.
fn tidy(text: &str) -> String {
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, w)| w).collect()
    }

    #[test]
    fn lines_stand_at_round_values() {
        assert_eq!(words(&Axis::from_zero("", Unit::Rate, [4600.0])), ["0", "1,000", "2,000", "3,000", "4,000"]);
        assert_eq!(words(&Axis::around("", Unit::Micros, [90.0, 8_000.0])), ["100 µs", "300 µs", "1 ms", "3 ms"]);
        assert_eq!(words(&Axis::from_zero("", Unit::Bytes, [3e6])), ["0 B", "1 MB", "2 MB", "3 MB"]);
        assert_eq!(words(&Axis::from_zero("", Unit::Count, [2.0])), ["0", "1", "2"]);
    }

    #[test]
    fn whatever_comes_lies_on_the_axis() {
        for axis in [
            Axis::from_zero("", Unit::Count, []),
            Axis::around("", Unit::Micros, [f64::NAN, 0.0]),
            Axis::around("", Unit::Micros, [5.0]),
            Axis::between("", Unit::Count, 3.0, 3.0),
        ] {
            for v in [0.0, -5.0, f64::NAN, f64::INFINITY, 1e300] {
                assert!((0.0..=1.0).contains(&axis.at(v)), "{axis:?} {v}");
            }
            assert!(axis.ticks().len() < 30);
        }
    }
}
