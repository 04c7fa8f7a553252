//! Parses values with several parts, `3,5,0.1`, from the left as strtoul(3) and strtod(3) do, with the original's error
//! messages.

use lastdrop_model::bounds::Bound;

use super::flags::usage;
use crate::personality::{Refusal, out_of_bounds};

pub struct Parameters<'a> {
    flag: &'static str,
    /// The text from the current part on, and the text that is not read yet.
    part: &'a str,
    rest: &'a str,
}

impl<'a> Parameters<'a> {
    pub fn new(flag: &'static str, text: &'a str) -> Parameters<'a> {
        Parameters { flag, part: text, rest: text }
    }

    fn wrong<T>(&self, what: &str) -> Result<T, Refusal> {
        // The original shows the wrong part for --wset, and the rest after it for other flags.
        let rest = if self.flag == "--wset" { self.part } else { self.rest };
        usage(&format!("bad {what} in {} arg (rest: `{rest}')", self.flag).replace("bad extraneous", "extraneous"))
    }

    fn within(&self, bound: &'static Bound, value: f64) -> Result<(), Refusal> {
        match value.is_nan() || value > bound.most {
            true => out_of_bounds("httperf", self.flag, bound.error(&value.to_string())),
            false => Ok(()),
        }
    }

    /// Reads the longest text that is a number.
    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, Refusal> {
        let text = self.rest.trim_start();
        let end = text.find(',').unwrap_or(text.len());
        let ends = text[..end].char_indices().map(|(i, c)| i + c.len_utf8()).rev();
        match ends.into_iter().find_map(|end| Some((text[..end].parse().ok()?, end))) {
            Some((number, end)) => {
                self.rest = &text[end..];
                Ok(number)
            }
            None => self.wrong(what),
        }
    }

    pub fn whole(&mut self, what: &str, bound: &'static Bound) -> Result<u64, Refusal> {
        // A number above the bound may not even fit into a u64.
        let text = self.rest.split(',').next().unwrap_or_default();
        if let Ok(number) = text.trim().parse::<f64>() {
            self.within(bound, number)?;
        }
        self.number(what)
    }

    /// A number from 0 to `most`, if that is given.
    pub fn real(&mut self, what: &str, bound: &'static Bound, most: Option<f64>) -> Result<f64, Refusal> {
        let number: f64 = self.number(what)?;
        if !number.is_finite() {
            self.within(bound, f64::INFINITY)?;
        }
        if most.is_some_and(|most| number > most) || number < 0.0 {
            return self.wrong(what);
        }
        self.within(bound, number)?;
        Ok(number)
    }

    /// Reads the comma before the part that errors call `what`.
    pub fn comma(&mut self, what: &str) -> Result<(), Refusal> {
        match self.rest.strip_prefix(',') {
            Some(rest) => {
                (self.part, self.rest) = (rest, rest);
                Ok(())
            }
            None => self.wrong(what),
        }
    }

    /// Reads the text up to the next comma.
    pub fn word(&mut self) -> String {
        let (word, rest) = self.rest.split_once(',').unwrap_or((self.rest, ""));
        self.rest = rest;
        word.to_string()
    }

    pub fn end(&self) -> Result<(), Refusal> {
        if self.rest.is_empty() { Ok(()) } else { self.wrong("extraneous parameter") }
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::bounds::{PAUSE, REQUESTS};

    use super::*;

    #[test]
    fn parts_are_read_from_the_left() {
        let read = |text: &str| -> Result<(u64, f64), Refusal> {
            let mut p = Parameters::new("--wsess", text);
            let n = p.whole("number of sessions (1st param)", REQUESTS)?;
            p.comma("user think time (3rd param)")?;
            let x = p.real("user think time (3rd param)", PAUSE, None)?;
            p.end()?;
            Ok((n, x))
        };
        assert_eq!(read("3,0.5").expect("valid"), (3, 0.5));
        for (text, words) in [
            ("x,1", "httperf: bad number of sessions (1st param) in --wsess arg (rest: `x,1')"),
            ("3x,1", "httperf: bad user think time (3rd param) in --wsess arg (rest: `x,1')"),
            ("3,1,2", "httperf: extraneous parameter in --wsess arg (rest: `,2')"),
            ("3,-1", "httperf: bad user think time (3rd param) in --wsess arg (rest: `')"),
        ] {
            assert_eq!(read(text).expect_err(text).message.as_str(), words);
        }
        assert_eq!(read("99999999999999999999,1").expect_err("too many").code, 2);
        assert_eq!(read("1,inf").expect_err("too long").code, 2);
    }
}
