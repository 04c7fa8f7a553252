//! Timelines of a run: its seconds, and the samples of its server. A run may last for days, so older entries may be
//! only on disk; an iterator reads both alike.

use std::fmt;
use std::sync::Arc;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// Entries to keep in memory if an archive holds the older ones.
pub const KEPT: usize = 60;

/// An entry of a timeline; the timeline is ordered by its key.
pub trait TimelineEntry: Clone + fmt::Debug {
    fn key(&self) -> u64;
}

/// Storage of the older entries.
pub trait Archive<T>: fmt::Debug + Send + Sync {
    /// Returns some of the entries whose key is at least `from`, in order; none at the end. An entry that cannot be
    /// read ends the timeline; the archive records the failure, so that a caller can ask whether it was complete.
    fn page(&self, from: u64) -> Vec<T>;
}

/// Entries in order: the older ones in the archive, the recent ones in memory.
#[derive(Clone)]
pub struct Timeline<T> {
    archive: Option<Arc<dyn Archive<T>>>,
    recent: Vec<T>,
}

impl<T> Default for Timeline<T> {
    fn default() -> Self {
        Timeline { archive: None, recent: Vec::new() }
    }
}

impl<T: TimelineEntry> Timeline<T> {
    /// Makes a timeline whose older entries are, or will be, in an archive: see [`Timeline::forget_older`].
    #[must_use]
    pub fn archived(archive: Arc<dyn Archive<T>>) -> Timeline<T> {
        Timeline { archive: Some(archive), recent: Vec::new() }
    }

    pub fn push(&mut self, entry: T) {
        self.recent.push(entry);
    }

    /// Frees entries that the archive has; the latest [`KEPT`] stay. Without an archive all entries stay.
    pub fn forget_older(&mut self) {
        // Drains many at a time, because each drain moves all entries that stay.
        if self.archive.is_some() && self.recent.len() >= 2 * KEPT {
            self.recent.drain(..self.recent.len() - KEPT);
        }
    }

    /// Returns the latest entry if it is in memory.
    #[must_use]
    pub fn latest(&self) -> Option<&T> {
        self.recent.last()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns all entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        let first_recent = self.recent.first().map_or(u64::MAX, TimelineEntry::key);
        let mut from = Some(0);
        let pages = std::iter::from_fn(move || {
            let page = self.archive.as_ref()?.page(from?);
            from = page.last().map(|e| e.key() + 1).filter(|next| *next < first_recent);
            (!page.is_empty()).then_some(page)
        });
        pages.flatten().filter(move |e| e.key() < first_recent).chain(self.recent.iter().cloned())
    }
}

impl<T: fmt::Debug> fmt::Debug for Timeline<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("archive", &self.archive).field("recent", &self.recent.len()).finish()
    }
}

impl<T: TimelineEntry + PartialEq> PartialEq for Timeline<T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: TimelineEntry> From<Vec<T>> for Timeline<T> {
    fn from(recent: Vec<T>) -> Self {
        Timeline { archive: None, recent }
    }
}

impl<T: TimelineEntry> FromIterator<T> for Timeline<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Vec::from_iter(entries).into()
    }
}

impl<T: TimelineEntry + Serialize> Serialize for Timeline<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, T: TimelineEntry + Deserialize<'de>> Deserialize<'de> for Timeline<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Timeline::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TimelineEntry for u32 {
        fn key(&self) -> u64 {
            u64::from(*self)
        }
    }

    /// An archive of the numbers below a bound; a page has seven.
    #[derive(Debug)]
    struct NumbersBelow(u32);

    impl Archive<u32> for NumbersBelow {
        fn page(&self, from: u64) -> Vec<u32> {
            (from as u32..self.0).take(7).collect()
        }
    }

    #[test]
    fn what_is_on_disk_comes_before_what_is_in_memory() {
        let mut timeline = Timeline::archived(Arc::new(NumbersBelow(1000)));
        for i in 0..500 {
            timeline.push(i);
            timeline.forget_older();
        }
        assert!(timeline.recent.len() < 2 * KEPT);
        assert!(timeline.iter().eq(0..500), "nothing twice, nothing left out");
        assert_eq!(timeline.latest(), Some(&499));
        assert_eq!(
            serde_json::to_string(&timeline).expect("JSON"),
            serde_json::to_string(&(0..500).collect::<Vec<u32>>()).expect("JSON")
        );
    }

    #[test]
    fn without_an_archive_everything_stays() {
        let mut timeline = Timeline::default();
        for i in 0..500u32 {
            timeline.push(i);
            timeline.forget_older();
        }
        assert!(timeline.iter().eq(0..500));
        assert!(Timeline::archived(Arc::new(NumbersBelow(20))).iter().eq(0..20));
        assert!(Timeline::<u32>::default().is_empty());
    }
}
