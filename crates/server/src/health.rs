//! Is a server as it was: does it answer its URL with the status that it gave before anything was changed?

use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_probe::{process, status};

use crate::ServerError;

/// How long a restarted server that answers otherwise may take to answer as before.
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one that runs may take to answer at all: a Java machine on a busy computer needs more than a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
pub const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// The server answers this URL with this status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub url: Url,
    pub status: u16,
}

impl Health {
    /// Asks once whether it still does.
    ///
    /// # Errors
    /// With what it does instead.
    pub fn check(&self) -> Result<(), ServerError> {
        let said = match status::get(&self.url, ASK_TIMEOUT) {
            Ok(answer) if answer.status == self.status => return Ok(()),
            Ok(answer) => format!("it answers {} instead of {}", answer.status, self.status),
            Err(e) => e.to_string(),
        };
        Err(ServerError::Unhealthy(said))
    }
}

/// What it answers now.
///
/// # Errors
/// When it does not answer.
pub fn look_at_health(url: &Url, pid: i32) -> Result<Health, ServerError> {
    let answer = status::get(url, ASK_TIMEOUT)
        .map_err(|e| ServerError::Unhealthy(format!("the server (process {pid}) is not healthy: {e}")))?;
    Ok(Health { url: url.clone(), status: answer.status })
}

/// What a site answers now that is not asked of a server of this machine.
///
/// # Errors
/// When it does not answer.
pub fn ask(url: &Url) -> Result<Health, ServerError> {
    let answer = status::get(url, ASK_TIMEOUT)
        .map_err(|e| ServerError::Unhealthy(format!("{url} does not answer from this machine: {e}")))?;
    Ok(Health { url: url.clone(), status: answer.status })
}

/// Waits until a site of servers on other machines answers as it did at the start.
///
/// # Errors
/// When it does not.
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
        // Looked at before it is asked: one that answers meanwhile has not ended.
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
