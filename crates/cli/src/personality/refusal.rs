//! Errors of personalities, and checks of their values.

use lastdrop_model::Printable;
use lastdrop_model::bounds::{Bound, BoundError};

use super::getopt;

/// The error that ends a personality: its message, and the exit code of the original.
#[derive(Debug)]
pub struct Refusal {
    pub message: Printable,
    pub code: u8,
}

pub fn refuse<T>(code: u8, message: impl Into<Printable>) -> Result<T, Refusal> {
    Err(Refusal { message: message.into(), code })
}

/// Refuses a number that no run can carry out: `inf`, `nan`, and numbers above the bound. The personality's own rules
/// decide about numbers that are too small and text that is not a number.
pub fn beyond(program: &str, flag: &str, text: &str, bound: &'static Bound) -> Result<(), Refusal> {
    match text.trim().parse::<f64>() {
        Ok(n) if n.is_nan() || n > bound.most => out_of_bounds(program, flag, bound.error(text)),
        _ => Ok(()),
    }
}

/// A whole number as atoi(3) reads it; refuses one above the bound.
pub fn whole(program: &str, flag: &str, text: &str, bound: &'static Bound) -> Result<i64, Refusal> {
    beyond(program, flag, text, bound)?;
    match getopt::atoi(text) {
        n if n as f64 > bound.most => out_of_bounds(program, flag, bound.error(text)),
        n => Ok(n),
    }
}

/// Host and port of `host:port`; the default port is 80.
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

/// An error of the engine, in its own words.
pub fn failed(program: &str, e: impl std::fmt::Display) -> Refusal {
    Refusal { message: format!("{program}: {e}").into(), code: 1 }
}
