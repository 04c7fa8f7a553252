//! Counters of the most frequent of any number of names, in bounded memory.
//!
//! As in Space-Saving (Metwally, Agrawal, El Abbadi 2005) a name without a counter gets one, and the rarest lose
//! theirs. Here half of them are dropped at once, which costs almost nothing per name. Their counts go to the rest, so
//! that all sums stay exact. A name that returns may have lost at most [`Slot::missed`]; as long as no name was
//! dropped, all counts are exact.
//!
//! Names are identified by 64 bits of a hash with a random seed. Comparing the names themselves would cost a cache miss
//! each (a tenth of the time of an analysis). Of a million names two have the same hash once in thirty million logs.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;

/// A value that is kept with a count.
pub(crate) trait Mergeable: Default {
    fn merge(&mut self, other: Self);
}

/// A name's counter.
#[derive(Debug)]
pub(crate) struct Slot<V> {
    pub name: Box<[u8]>,
    hash: u64,
    pub count: u64,
    /// At most this many may have been counted before, and are in the rest now.
    pub missed: u64,
    pub value: V,
}

impl<V> Slot<V> {
    /// The sum of all names without a counter.
    pub(crate) fn of_rest(name: &str, count: u64, value: V) -> Slot<V> {
        Slot { name: name.as_bytes().into(), hash: 0, count, missed: 0, value }
    }
}

/// The most frequent names.
#[derive(Debug)]
pub(crate) struct TopCounters<V> {
    most: usize,
    hasher: RandomState,
    places: HashMap<u64, u32, RandomState>,
    slots: Vec<Slot<V>>,
    /// No name without a counter has been counted more often.
    floor: u64,
    pub rest: Option<(u64, V)>,
    /// How often places have changed.
    pub changes: u64,
}

impl<V: Mergeable> TopCounters<V> {
    /// Keeps at least the `most` most frequent names, and at most twice as many.
    pub(crate) fn new(most: usize) -> TopCounters<V> {
        let (hasher, places) = (RandomState::default(), HashMap::default());
        TopCounters { most, hasher, places, slots: Vec::new(), floor: 0, rest: None, changes: 0 }
    }

    /// The place of a name; it is valid until [`TopCounters::changes`] changes.
    pub(crate) fn place(&mut self, name: &[u8]) -> usize {
        let hash = self.hasher.hash_one(name);
        if let Some(place) = self.places.get(&hash) {
            return *place as usize;
        }
        if self.slots.len() >= 2 * self.most {
            self.drop_rarest();
        }
        let place = self.slots.len();
        self.places.insert(hash, place as u32);
        self.slots.push(Slot { name: name.into(), hash, count: 0, missed: self.floor, value: V::default() });
        place
    }

    /// Counts the name at a place.
    pub(crate) fn count(&mut self, place: usize) -> &mut V {
        let slot = &mut self.slots[place];
        slot.count += 1;
        &mut slot.value
    }

    /// Adds counts from elsewhere to the name at a place.
    pub(crate) fn add(&mut self, place: usize, count: u64, value: V) {
        let slot = &mut self.slots[place];
        slot.count += count;
        slot.value.merge(value);
    }

    fn drop_rarest(&mut self) {
        self.changes += 1;
        self.slots.sort_unstable_by_key(|s| std::cmp::Reverse(s.count + s.missed));
        let (count, rest) = self.rest.get_or_insert_default();
        for slot in self.slots.drain(self.most..) {
            self.floor = self.floor.max(slot.count + slot.missed);
            *count += slot.count;
            rest.merge(slot.value);
        }
        let places = self.slots.iter().enumerate().map(|(place, s)| (s.hash, place as u32));
        self.places = places.collect();
    }

    /// Returns all names with a counter, the most frequent first; those beyond `shown` go to the rest.
    pub(crate) fn finish(mut self, shown: usize) -> (Vec<Slot<V>>, Option<(u64, V)>) {
        self.slots.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        if self.slots.len() > shown {
            let (count, rest) = self.rest.get_or_insert_default();
            for slot in self.slots.drain(shown..) {
                *count += slot.count;
                rest.merge(slot.value);
            }
        }
        (self.slots, self.rest)
    }

    /// All names with a counter, in no order.
    pub(crate) fn slots(&self) -> &[Slot<V>] {
        &self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Mergeable for u64 {
        fn merge(&mut self, other: u64) {
            *self += other;
        }
    }

    #[test]
    fn the_most_frequent_of_a_million_names_are_found_and_sums_are_exact() {
        let mut names: TopCounters<u64> = TopCounters::new(100);
        let mut all = 0;
        let mut count = |names: &mut TopCounters<u64>, name: String| {
            let place = names.place(name.as_bytes());
            *names.count(place) += 2;
            all += 1;
        };
        for i in 0..300_000u64 {
            count(&mut names, format!("once {i}"));
            if i % 10 == 0 {
                count(&mut names, format!("often {}", i / 10 % 5));
            }
        }
        let (slots, rest) = names.finish(5);
        let found: Vec<&[u8]> = slots.iter().map(|s| s.name.as_ref()).collect();
        assert_eq!(found, [b"often 0", b"often 1", b"often 2", b"often 3", b"often 4"]);
        let (count, value) = rest.expect("the rest");
        assert_eq!(slots.iter().map(|s| s.count).sum::<u64>() + count, all);
        assert_eq!(slots.iter().map(|s| s.value).sum::<u64>() + value, 2 * all);
        for slot in &slots {
            assert!(slot.count <= 6000 && slot.count + slot.missed >= 6000, "{} {}", slot.count, slot.missed);
        }
    }

    #[test]
    fn few_names_are_counted_exactly() {
        let mut names: TopCounters<u64> = TopCounters::new(2);
        for name in [b"a", b"b", b"a", b"c", b"d"] {
            let place = names.place(name);
            names.count(place);
        }
        let (slots, rest) = names.finish(10);
        assert_eq!((slots.len(), slots[0].count, slots[0].missed, rest), (4, 2, 0, None));
    }
}
