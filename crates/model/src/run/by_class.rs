//! Adds up the results of each request class.

use super::phase::{ClassReport, Results};
use super::summary::results;
use crate::class::{Classes, OTHERS};
use crate::counts::Counts;
use crate::histogram::{Histogram, Kind};
use crate::slice::ByClass;

/// Latencies that no class has, because waiting for and opening a connection belong to no class.
const OF_NO_CLASS: [Kind; 5] = [Kind::Blocked, Kind::Lateness, Kind::Connect, Kind::Tls, Kind::Page];

#[derive(Debug, Default)]
struct ClassTotal {
    counts: Counts,
    /// Answers by status; a class seldom has more than three statuses.
    status: Vec<(u16, u64)>,
    /// One histogram per [`Kind`], indexed by it.
    latencies: [Histogram; Kind::COUNT],
}

/// Sums of a phase by class; empty if there is only one class.
#[derive(Debug, Default)]
pub(super) struct ClassTotals(Vec<ClassTotal>);

impl ClassTotals {
    pub fn add(&mut self, second: &ByClass) {
        if self.0.len() < second.counts.len() {
            self.0.resize_with(second.counts.len(), ClassTotal::default);
        }
        for (total, counts) in self.0.iter_mut().zip(&second.counts) {
            total.counts.add(counts);
        }
        for answer in &second.answers {
            let Some(total) = self.0.get_mut(usize::from(answer.class)) else { continue };
            let mut record = |kind: Kind, us: u32| total.latencies[kind as usize].record(u64::from(us));
            record(Kind::Response, answer.response_us);
            if answer.status == 0 {
                continue;
            }
            record(Kind::Service, answer.service_us);
            record(Kind::FirstByte, answer.first_byte_us);
            match total.status.iter_mut().find(|(code, _)| *code == answer.status) {
                Some((_, n)) => *n += 1,
                None => total.status.push((answer.status, 1)),
            }
        }
        for part in &second.parts {
            let total = self.0.get_mut(usize::from(part.class));
            if let Some(histogram) = total.and_then(|t| t.latencies.get_mut(usize::from(part.kind))) {
                histogram.record(u64::from(part.us));
            }
        }
    }

    /// Returns the classes of a phase. A single class has the results of the whole phase.
    pub fn report(&self, classes: &Classes, whole: &Results, duration_s: f64, replay: bool) -> Vec<ClassReport> {
        if let ([name], true) = (classes.names.as_slice(), self.0.is_empty()) {
            let mut results = whole.clone();
            results.latency_us.retain(|kind, _| OF_NO_CLASS.iter().all(|k| k.name() != kind));
            return vec![ClassReport { name: name.clone(), patterns: 1, results }];
        }
        self.several(classes, duration_s, replay)
    }

    pub fn several(&self, classes: &Classes, duration_s: f64, replay: bool) -> Vec<ClassReport> {
        let report = |(name, total): (&String, &ClassTotal)| {
            let latencies = Kind::ALL.into_iter().zip(&total.latencies);
            ClassReport {
                name: name.clone(),
                patterns: if name == OTHERS { classes.together.max(1) } else { 1 },
                results: results(&total.counts, total.status.iter().copied(), latencies, duration_s, replay),
            }
        };
        classes.names.iter().zip(&self.0).map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::RunBuilder;
    use super::*;
    use crate::plan::Plan;
    use crate::slice::{ClassAnswer, Slice};

    fn plan(names: &[&str]) -> Plan {
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        plan.requests = names.iter().map(|_| plan.requests[0].clone()).collect();
        plan.requests.iter_mut().zip(names).for_each(|(r, name)| r.name = (*name).into());
        plan
    }

    #[test]
    fn slices_of_threads_and_seconds_add_up_by_class() {
        let plan = plan(&["a", "b"]);
        let mut builder = RunBuilder::new(&plan);
        for second in 0..2 {
            let mut sum = Slice::new(0, second);
            for thread in 0..3u16 {
                let mut slice = Slice::new(0, second);
                slice.by_class.counts = vec![Counts::default(); 2];
                slice.count(thread % 2, |c| c.due += 1);
                slice.count(thread % 2, |c| c.sent += 1);
                slice.count(thread % 2, |c| c.answered += 1);
                let us = 100 * (u32::from(thread) + 1);
                slice.record_class(ClassAnswer {
                    class: thread % 2,
                    status: 200 + thread,
                    response_us: us,
                    service_us: us,
                    first_byte_us: us,
                });
                sum.add(&slice);
            }
            builder.add(&sum);
        }
        let so_far = builder.classes(0);
        let phase = &builder.into_reports()[0];
        assert_eq!(so_far, phase.classes);
        let seen: Vec<_> = phase.classes.iter().map(|c| (c.name.as_str(), c.requests.answered)).collect();
        assert_eq!(seen, [("a", 4), ("b", 2)]);
        assert_eq!(phase.classes[0].status.keys().collect::<Vec<_>>(), ["200", "202"]);
        assert_eq!(phase.classes[1].latency(Kind::Response, "max"), Some(200.0));
        assert_eq!(phase.requests.answered, 6);
    }

    #[test]
    fn one_class_is_the_whole_phase() {
        let mut builder = RunBuilder::new(&plan(&["a"]));
        let mut slice = Slice::new(0, 0);
        slice.count(0, |c| c.due += 3);
        slice.record(Kind::Response, 5);
        slice.record(Kind::Lateness, 5);
        builder.add(&slice);
        let phase = &builder.into_reports()[0];
        assert_eq!((phase.classes.len(), phase.classes[0].requests.due), (1, 3));
        assert!(phase.classes[0].latency(Kind::Response, "p50").is_some());
        assert!(phase.classes[0].latency(Kind::Lateness, "p50").is_none());
    }

    #[test]
    fn a_timeout_is_in_the_response_alone() {
        let mut builder = RunBuilder::new(&plan(&["a", "b"]));
        let mut slice = Slice::new(0, 0);
        slice.by_class.counts = vec![Counts::default(); 2];
        slice.record_class(ClassAnswer { class: 1, status: 0, response_us: 9, service_us: 0, first_byte_us: 0 });
        builder.add(&slice);
        let phase = &builder.into_reports()[0];
        let b = &phase.classes[1];
        assert_eq!(
            (b.latency(Kind::Response, "max"), b.latency(Kind::Service, "max"), b.status.len()),
            (Some(9.0), None, 0)
        );
    }
}
