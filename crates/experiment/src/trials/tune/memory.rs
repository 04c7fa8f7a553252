//! Predicts the memory that the best settings need before the race, to be compared with what they used.

use lastdrop_analyze::memory_model::fit_pool;
use lastdrop_model::documents::{MemoryPrediction, SizeDocument, Trial};
use lastdrop_model::{Role, Setting, Settings};

use super::Tuning;

/// The predicted memory for a number of workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedMemory {
    workers: u64,
    bytes: u64,
}

impl Tuning<'_, '_> {
    /// Predicts from a line through the memory of other pool sizes in the search; with too few of those, from the size
    /// of a worker at the start. None if the pool has no known size.
    pub(super) fn predict_memory<Pool>(
        &self,
        sizes: &[(Pool, SizeDocument)],
        settings: &Settings,
    ) -> Option<ExpectedMemory> {
        // `sizes` is in the order of the pools; their masters have changed since.
        let ((name, ..), (_, size)) = (self.stack.knobs(Role::PoolSize).into_iter().next()?, sizes.first()?);
        let present = self.stack.original().settings.get(&name).and_then(Setting::count);
        let workers = |settings: &Settings| {
            let threads = settings.get(&name).and_then(Setting::count).or(present)?;
            Some(u64::try_from(threads).ok()?.div_ceil(size.threads_per_worker.max(1)))
        };
        let wanted = workers(settings)?;
        let of = |trial: &Trial| Some((workers(&trial.settings)?, trial.real_memory_bytes?));
        let others: Vec<(u64, u64)> = self
            .document
            .trials
            .iter()
            .filter(|t| t.role != "race")
            .filter_map(of)
            .filter(|(n, _)| *n != wanted)
            .collect();
        Some(ExpectedMemory { workers: wanted, bytes: bytes(&others, size, wanted) })
    }

    /// Records the prediction with the memory that the best settings used in the race.
    pub(super) fn compare_memory(&mut self, expected: ExpectedMemory, settings: &Settings) {
        let races = self.document.trials.iter().filter(|t| t.role == "race" && t.settings == *settings);
        let used: Vec<u64> = races.filter_map(|t| t.real_memory_bytes).collect();
        if let (Some(winner), false) = (&mut self.document.winner, used.is_empty()) {
            let used_bytes = used.iter().sum::<u64>() / used.len() as u64;
            let ExpectedMemory { workers, bytes } = expected;
            winner.memory = Some(MemoryPrediction { workers, predicted_bytes: bytes, used_bytes });
        }
    }
}

fn bytes(others: &[(u64, u64)], size: &SizeDocument, workers: u64) -> u64 {
    match fit_pool(others) {
        Some(line) => line.at(workers).max(0.0) as u64,
        None => size.shared_once_bytes + workers * size.workers.private_bytes.mean,
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::{MeanMax, SizeWorkers};

    use super::*;

    #[test]
    fn pools_of_other_sizes_tell_what_one_needs_and_without_them_a_worker_does() {
        let workers = SizeWorkers { private_bytes: MeanMax { mean: 10, max: 12 }, ..SizeWorkers::default() };
        let size = SizeDocument { shared_once_bytes: 100, workers, ..SizeDocument::default() };
        assert_eq!(bytes(&[], &size, 8), 180);
        assert_eq!(bytes(&[(2, 130), (4, 160)], &size, 8), 180, "two points are no line yet");
        assert_eq!(bytes(&[(2, 130), (4, 160), (6, 190)], &size, 8), 220);
    }
}
