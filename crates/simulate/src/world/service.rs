//! Random service times with a mean and a coefficient of variation.

use crate::rng::Rng;

/// A distribution of times.
#[derive(Debug, Clone, Copy)]
pub(super) enum ServiceTime {
    Fixed(f64),
    Exponential(f64),
    Gamma(GammaTime),
}

/// A gamma distribution, prepared for drawing.
#[derive(Debug, Clone, Copy)]
pub(super) struct GammaTime {
    scale_us: f64,
    /// A third below a shape of at least 1, and 1/√(9d).
    d: f64,
    c: f64,
    /// 1 / the real shape, if that is below 1.
    power: Option<f64>,
}

impl ServiceTime {
    /// Times with this mean and coefficient of variation.
    pub fn new(mean_us: f64, spread: f64) -> ServiceTime {
        if mean_us <= 0.0 || spread <= 0.0 {
            return ServiceTime::Fixed(mean_us.max(0.0));
        }
        if (spread - 1.0).abs() < 1e-9 {
            return ServiceTime::Exponential(mean_us);
        }
        let shape = 1.0 / (spread * spread);
        let from = if shape < 1.0 { shape + 1.0 } else { shape };
        let d = from - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        ServiceTime::Gamma(GammaTime { scale_us: mean_us / shape, d, c, power: (shape < 1.0).then_some(1.0 / shape) })
    }

    /// Whether every time is 0.
    pub fn is_zero(&self) -> bool {
        matches!(self, ServiceTime::Fixed(us) if *us == 0.0)
    }

    /// Draws a time, µs.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> f64 {
        match self {
            ServiceTime::Fixed(us) => *us,
            ServiceTime::Exponential(mean_us) => mean_us * rng.exponential(),
            ServiceTime::Gamma(gamma) => gamma.draw(rng),
        }
    }
}

impl GammaTime {
    /// The method of Marsaglia and Tsang (2000), with their power of a uniform number for a shape below 1.
    fn draw(&self, rng: &mut Rng) -> f64 {
        let drawn = loop {
            let x = rng.normal();
            let v = (1.0 + self.c * x).powi(3);
            let u = rng.share();
            let (v_is_good, squared) = (v > 0.0, x * x);
            if v_is_good
                && (u < 1.0 - 0.0331 * squared * squared || u.ln() < 0.5 * squared + self.d * (1.0 - v + v.ln()))
            {
                break self.d * v;
            }
        };
        self.scale_us * drawn * self.power.map_or(1.0, |power| rng.share().powf(power))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_mean_and_spread() {
        let mut rng = Rng::new(3);
        for spread in [0.0, 0.2, 0.5, 0.9, 1.0, 1.5] {
            let time = ServiceTime::new(400.0, spread);
            let drawn: Vec<f64> = (0..100_000).map(|_| time.draw(&mut rng)).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let variance = drawn.iter().map(|us| (us - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
            assert!((mean / 400.0 - 1.0).abs() < 0.015, "{spread}: mean {mean}");
            assert!((variance.sqrt() / 400.0 - spread).abs() < 0.03, "{spread}: {}", variance.sqrt() / 400.0);
        }
    }
}
