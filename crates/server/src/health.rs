//! Checks that a server still answers its URL with the status that it gave before anything was changed.

use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_probe::{process, status};

use crate::ServerError;

/// How long a restarted server with a different answer may take to answer as before.
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a running server may take to answer at all: a Java server on a busy machine needs more than a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
pub const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// A URL and the status with which the server answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub url: Url,
    pub status: u16,
}

impl Health {
    /// Sends one request to check that it still does.
    ///
    /// # Errors
    /// With the different answer.
    pub fn check(&self) -> Result<(), ServerError> {
        let said = match status::get(&self.url, ASK_TIMEOUT) {
            Ok(answer) if answer.status == self.status => return Ok(()),
            Ok(answer) => format!("it answers {} instead of {}", answer.status, self.status),
            Err(e) => e.to_string(),
        };
        Err(ServerError::Unhealthy(said))
    }
}

/// Records the present answer.
///
/// # Errors
/// If the server does not answer.
pub fn look_at_health(url: &Url, pid: i32) -> Result<Health, ServerError> {
    let answer = status::get(url, ASK_TIMEOUT)
        .map_err(|e| ServerError::Unhealthy(format!("the server (process {pid}) is not healthy: {e}")))?;
    Ok(Health { url: url.clone(), status: answer.status })
}

/// Records the present answer of a URL whose server is not on this machine.
///
/// # Errors
/// If it does not answer.
pub fn ask(url: &Url) -> Result<Health, ServerError> {
    let answer = status::get(url, ASK_TIMEOUT)
        .map_err(|e| ServerError::Unhealthy(format!("{url} does not answer from this machine: {e}")))?;
    Ok(Health { url: url.clone(), status: answer.status })
}

/// Waits until a site with servers on other machines answers as it did at the start.
///
/// # Errors
/// If it does not.
pub fn wait_until_it_answers(health: &Health) -> Result<(), ServerError> {
    let begun = Instant::now();
    loop {
        let Err(e) = health.check() else { return Ok(()) };
        if begun.elapsed() > HEALTHY_TIMEOUT {
            let (url, limit) = (&health.url, HEALTHY_TIMEOUT.as_secs());
            return Err(ServerError::Unhealthy(format!("{url} does not answer as before, for {limit} s: {e}")));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the server answers as it did at the start.
pub fn wait_healthy(health: Option<&Health>, master: i32) -> Result<(), ServerError> {
    let Some(health) = health else { return Ok(()) };
    let begun = Instant::now();
    let ended = || process::look(master).is_none_or(|p| p.state == 'Z');
    loop {
        // Checked before the request: a server that answers afterwards has not ended.
        let gone = ended();
        let (seen, limit) = match status::get(&health.url, ASK_TIMEOUT) {
            Ok(answer) if answer.status == health.status => return Ok(()),
            Ok(answer) => (format!("it answers {} instead of {}", answer.status, health.status), HEALTHY_TIMEOUT),
            Err(e) => (e.to_string(), ANSWER_TIMEOUT),
        };
        if gone {
            return Err(ServerError::Unhealthy(format!(
                "the server (process {master}) has ended, and nothing answers as before: {seen}; look at its error log"
            )));
        }
        if begun.elapsed() > limit {
            return Err(ServerError::Unhealthy(format!(
                "the server (process {master}) did not become healthy within {} s: {seen}",
                limit.as_secs()
            )));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
