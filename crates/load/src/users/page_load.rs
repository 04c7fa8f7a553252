//! A page that a user loads, and what it remembers to have.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use lastdrop_model::Micros;

use crate::prepare::Detour;

/// Resources that a user remembers to have.
pub(crate) const MOST_CACHED: usize = 10_000;

/// Names what was fetched. Sixty-four bits instead of a URL of some kilobytes, of which each user may have thousands.
pub(crate) fn cache_key(endpoint: usize, path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (endpoint, path).hash(&mut hasher);
    hasher.finish()
}

/// A page being loaded.
#[derive(Debug)]
pub(crate) struct PageLoad {
    pub due: Micros,
    pub phase: u16,
    pub waiting: VecDeque<Detour>,
    pub running: u32,
    pub failed: bool,
    /// The request of the plan that the page is.
    pub request: usize,
    /// What the page itself came to, without what it embeds: whether a session can go on, and its status.
    pub good: bool,
    pub status: u16,
}

impl PageLoad {
    /// A page of which the first request goes out now.
    pub fn begin(due: Micros, phase: u16, request: usize) -> Box<PageLoad> {
        let waiting = VecDeque::new();
        Box::new(PageLoad { due, phase, waiting, running: 1, failed: false, request, good: false, status: 0 })
    }
}
