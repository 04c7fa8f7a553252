//! Numbers as C prints them.

/// A number as `%g` prints it: six significant digits, no zeros at the end.
pub fn g(x: f64) -> String {
    if x == 0.0 {
        return "0".into();
    }
    let exponent = format!("{x:.5e}").rsplit('e').next().and_then(|e| e.parse::<i32>().ok()).unwrap_or(0);
    let trimmed = |text: String| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
    };
    if (-4..6).contains(&exponent) {
        trimmed(format!("{x:.*}", (5 - exponent).max(0) as usize))
    } else {
        let text = format!("{x:.5e}");
        let (mantissa, _) = text.split_once('e').unwrap_or((&text, ""));
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(mantissa.to_string()), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_g() {
        for (x, text) in [
            (0.0, "0"),
            (100.0, "100"),
            (0.5, "0.5"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_012_3, "1.23e-05"),
            (2.345_678_9, "2.34568"),
        ] {
            assert_eq!(g(x), text);
        }
    }
}
