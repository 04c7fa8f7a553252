//! A page that a user loads, and the user's cache.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use lastdrop_model::Micros;

use crate::prepare::Detour;

/// Most resources that a user's cache remembers.
pub(crate) const MOST_CACHED: usize = 10_000;

/// Key of a fetched resource: 64 bits instead of a URL of up to some kilobytes, of which each user may have thousands.
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
    /// The plan's request for this page.
    pub request: usize,
    /// Result of the page's HTML alone: whether a session can continue, and its status.
    pub good: bool,
    pub status: u16,
}

impl PageLoad {
    /// A page whose first request goes out now.
    pub fn begin(due: Micros, phase: u16, request: usize) -> Box<PageLoad> {
        let waiting = VecDeque::new();
        Box::new(PageLoad { due, phase, waiting, running: 1, failed: false, request, good: false, status: 0 })
    }
}
