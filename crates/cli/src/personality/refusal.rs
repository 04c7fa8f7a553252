//! How a personality says that it cannot do what it was asked for, and the values that it refuses.

use lastdrop_model::Printable;
use lastdrop_model::bounds::{Bound, BoundError};

use super::getopt;

/// The end of a personality that could not do its work: its words, and the original's exit code.
#[derive(Debug)]
pub struct Refusal {
    pub message: Printable,
    pub code: u8,
}

pub fn refuse<T>(code: u8, message: impl Into<Printable>) -> Result<T, Refusal> {
    Err(Refusal { message: message.into(), code })
}

/// Refuses a number that no run can carry out: `inf`, `nan`, and what is above the bound. What is no number at all, or too
/// small, is for the program's own rules.
pub fn beyond(program: &str, flag: &str, text: &str, bound: &'static Bound) -> Result<(), Refusal> {
    match text.trim().parse::<f64>() {
        Ok(n) if n.is_nan() || n > bound.most => out_of_bounds(program, flag, bound.error(text)),
        _ => Ok(()),
    }
}

/// A whole number as atoi(3) reads it, unless it is beyond what a run can do.
pub fn whole(program: &str, flag: &str, text: &str, bound: &'static Bound) -> Result<i64, Refusal> {
    beyond(program, flag, text, bound)?;
    match getopt::atoi(text) {
        n if n as f64 > bound.most => out_of_bounds(program, flag, bound.error(text)),
        n => Ok(n),
    }
}

/// A port of `host:port`, 80 where there is none.
pub fn host_and_port(program: &str, flag: &str, text: &str) -> Result<(String, u16), Refusal> {
    let (host, port) = text.split_once(':').unwrap_or((text, "80"));
    match u16::try_from(getopt::atoi(port)) {
        Ok(port) if port > 0 => Ok((host.to_string(), port)),
        _ => {
            refuse(2, format!("{program}: {flag} {text}: a port must be a whole number from 1 to 65535, not '{port}'"))
        }
    }
}

pub fn out_of_bounds<T>(program: &str, flag: &str, error: BoundError) -> Result<T, Refusal> {
    refuse(2, format!("{program}: {flag} {}: {error}", error.value))
}

/// Something that could not be done, in the words of the engine.
pub fn failed(program: &str, e: impl std::fmt::Display) -> Refusal {
    Refusal { message: format!("{program}: {e}").into(), code: 1 }
}
