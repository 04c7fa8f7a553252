//! Which class of requests makes the workers of a server grow, and in which mapping.
//!
//! All workers are warmed with every class. Then each class has its turn in several rounds, in changing order. Between
//! two turns the memory of each worker is read by mapping. `lastdrop_analyze::class_growth` has the arithmetic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_analyze::class_growth::{self, ClassRounds, FEWEST_ROUNDS, PoolFacts, mean_of, per_request};
use lastdrop_load::{PreparedPlan, RunClock};
use lastdrop_model::documents::{
    ClassMemory, ClassVerdict, Interval, MappingGrowth, PROFILE_SCHEMA, ProfileDocument, ProfileMemory,
};
use lastdrop_model::http_options::Version;
use lastdrop_model::{CaptureLevel, Event, Plan, Sample};
use lastdrop_probe::group::ProcessGroup;
use lastdrop_probe::host::HostMemory;
use lastdrop_probe::memory::{self, MappingMemory};
use lastdrop_probe::{ProbeError, process};
use lastdrop_server::{FoundServer, ServerRef, find};

use super::memory_classes::{ClassPlan, classes_of};
use super::memory_functions::functions_of;
use super::profile::{Profile, cpu_s};
use crate::lab::LabError;
use crate::lab::warm::warm_each;

/// Rounds that count. One more goes before them, in which free memory is used up.
const ROUNDS: usize = 6;
/// Share of the time in which the workers get warm.
const WARM: u32 = 5;
/// Time of the warm-up of a class: at least this, and at most this until the first answer.
const SHORTEST: Duration = Duration::from_millis(100);
const FIRST_ANSWER: Duration = Duration::from_secs(30);
/// Most requests of a block.
const MOST_REQUESTS: u64 = 20_000;
/// A block of slow requests ends after this time.
const LONGEST_BLOCK: Duration = Duration::from_secs(300);
/// Most users by default, and most workers: reading one takes some milliseconds.
const MOST_USERS: usize = 32;
const MOST_WORKERS: usize = 256;
/// Time in which a worker frees what its last request used.
const SETTLE: Duration = Duration::from_millis(20);
/// No more requests are sent once less than this share of the machine's memory is available.
const SPARE: f64 = 0.1;
/// Mappings of a class in the document.
const MOST_MAPPINGS: usize = 6;

/// What is measured, and how long.
#[derive(Debug, Clone, Copy)]
pub struct MemoryOptions {
    /// None: one for each worker.
    pub users: Option<u32>,
    pub time: Duration,
}

/// Memory of the workers by process id and start, each by mapping.
type PoolReading = BTreeMap<(i32, u64), BTreeMap<String, MappingMemory>>;

/// Requests by class, and what the workers gained by mapping: private and resident bytes.
#[derive(Debug, Clone)]
struct Block {
    counts: Vec<f64>,
    gained: BTreeMap<String, (f64, f64)>,
}

/// Answers of a load.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    all: u64,
    /// With a status of 400 or more.
    refused: u64,
}

/// Measures how the workers of a server grow with the requests of each class of a plan.
///
/// # Errors
/// If the server is not found or may not be read, if a class is not answered, or if no worker lives long enough.
pub fn profile_memory(
    server: &ServerRef,
    plan: &Plan,
    options: &MemoryOptions,
    stop: &AtomicBool,
) -> Result<Profile, LabError> {
    let classes = classes_of(plan)?;
    let found = find(server)?;
    check(&found)?;
    let workers = read(&found)?.len();
    if workers > MOST_WORKERS {
        return Err(LabError::Other(format!("it has {workers} workers, and --memory reads at most {MOST_WORKERS}")));
    }
    let users = options.users.unwrap_or_else(|| workers.clamp(1, MOST_USERS) as u32);
    let mut group = ProcessGroup::new(found.master, false, found.helpers);
    let (start, cpu_before) = (Instant::now(), cpu_s(&mut group));
    let mut measurement = Measurement {
        found: &found,
        requests: vec![0; classes.len()],
        cohort: BTreeSet::new(),
        answers: vec![Answers::default(); classes.len()],
        classes: &classes,
        users,
        stop,
    };
    let rates = measurement.warm(options.time / WARM / classes.len() as u32)?;
    let block = options.time.saturating_sub(options.time / WARM) / ((ROUNDS + 1) * classes.len()) as u32;
    measurement.requests = rates.iter().map(|rate| block_of(rate * block.as_secs_f64(), users)).collect();
    let (rounds, mut notes) = measurement.rounds()?;
    notes.extend(measurement.refusals());
    let mut memory = measurement.result(&rounds);
    let growing = memory.classes.iter().find(|class| class.verdict == ClassVerdict::Grows);
    let growing = growing.and_then(|class| classes.iter().find(|plan| plan.name == class.class));
    if let Some(class) = growing {
        notes.push("the workers keep what they gained; a restart or reload of the server frees it".into());
        match functions_of(server, class, users, options.time / 4, stop) {
            Ok((functions, note)) => {
                memory.functions = functions;
                notes.push(note);
            }
            Err(LabError::Interrupted) => return Err(LabError::Interrupted),
            Err(e) => notes.push(format!("which functions allocate this is not known: {e}")),
        }
    }
    let sent: u64 = measurement.answers.iter().map(|answers| answers.all).sum();
    let cpu_s = (cpu_s(&mut group) - cpu_before).max(0.0);
    let document = ProfileDocument {
        schema: PROFILE_SCHEMA.into(),
        server: found.name.clone(),
        how: "smaps".into(),
        seconds: (start.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        samples: (rounds.len() * classes.len()) as u64,
        cpu_s: (cpu_s * 1e3).round() / 1e3,
        requests: Some(sent),
        memory: Some(memory),
        notes,
        ..ProfileDocument::default()
    };
    Ok(Profile { document, stacks: Vec::new() })
}

/// Requests of a block, enough that each worker has some.
fn block_of(requests: f64, users: u32) -> u64 {
    (requests.round() as u64).clamp(4 * u64::from(users), MOST_REQUESTS.max(4 * u64::from(users)))
}

/// Refuses servers whose growth says nothing about requests.
fn check(found: &FoundServer) -> Result<(), LabError> {
    let why = if found.kind.database.is_some() {
        "a database fills its cache, so its growth says nothing about requests"
    } else if found.is_jvm() {
        "a JVM fills its configured heap, so the growth of its process says nothing about requests; --code shows its functions"
    } else {
        return Ok(());
    };
    Err(LabError::Other(format!("--memory does not measure {}: {why}", found.name)))
}

/// Whether the server's language collects garbage now and then. An unknown program may.
fn collects(found: &FoundServer) -> bool {
    const COUNTED: [&str; 7] = ["python", "perl", "php", "apache", "httpd", "nginx", "uwsgi"];
    let program = process::name(found.master).unwrap_or_default();
    let is_counted = COUNTED.iter().any(|name| program.starts_with(name));
    matches!(found.kind.name, "node" | "caddy") || found.kind.name == "pid" && !is_counted
}

/// Reads the memory of all workers.
fn read(found: &FoundServer) -> Result<PoolReading, LabError> {
    let mut group = ProcessGroup::new(found.master, false, found.helpers);
    group.look(false, &mut Sample::default());
    let mut pool = PoolReading::new();
    for pid in group.workers() {
        let Some(process) = process::look(pid) else { continue };
        match memory::of_mappings(pid) {
            Ok(mappings) => pool.insert((pid, process.start_ticks), mappings),
            Err(ProbeError::Gone(_)) => continue,
            Err(e) => return Err(e.into()),
        };
    }
    if pool.is_empty() { Err(LabError::Other(format!("{} has no process any more", found.name))) } else { Ok(pool) }
}

/// A running measurement.
struct Measurement<'a> {
    found: &'a FoundServer,
    classes: &'a [ClassPlan],
    users: u32,
    stop: &'a AtomicBool,
    /// Requests of a block, by class.
    requests: Vec<u64>,
    /// Workers that have lived through all readings so far.
    cohort: BTreeSet<(i32, u64)>,
    /// What was answered, by class.
    answers: Vec<Answers>,
}

impl Measurement<'_> {
    /// Sends each class to all workers. Returns the requests per second of each class.
    fn warm(&mut self, time: Duration) -> Result<Vec<f64>, LabError> {
        let workers = self.found.workers().len().max(1);
        let mut rates = Vec::new();
        for at in 0..self.classes.len() {
            let class = &self.classes[at];
            if class.plan.http.version != Version::Http2 {
                let _ = warm_each(&class.load(self.users, 1, time), workers);
            }
            let start = Instant::now();
            let mut sent = self.send(at, MOST_REQUESTS, time.max(SHORTEST))?;
            if sent == 0 {
                sent = self.send(at, 1, FIRST_ANSWER)?;
            }
            if sent == 0 {
                let name = &self.classes[at].name;
                return Err(LabError::Other(format!("no request of `{name}` was answered; is the URL right?")));
            }
            rates.push(sent as f64 / start.elapsed().as_secs_f64());
        }
        Ok(rates)
    }

    /// Sends requests of a class and returns how many were answered.
    fn send(&mut self, class: usize, requests: u64, limit: Duration) -> Result<u64, LabError> {
        let plan = self.classes[class].load(self.users, requests, limit);
        let prepared = PreparedPlan::new(&plan)?;
        let (clock, halt) = (RunClock::start(), AtomicBool::new(false));
        let mut answers = Answers::default();
        lastdrop_load::run(&plan, &prepared, clock, self.stop, &halt, CaptureLevel::Nothing, |event| {
            if let Event::Second { slice } = event {
                answers.all += slice.counts.answered;
                answers.refused += slice.status.iter().skip(400).sum::<u64>();
            }
        })?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted);
        }
        let total = &mut self.answers[class];
        (total.all, total.refused) = (total.all + answers.all, total.refused + answers.refused);
        Ok(answers.all)
    }

    /// Carries out all rounds, and returns those in which some worker lived through each block.
    fn rounds(&mut self) -> Result<(Vec<Vec<Block>>, Vec<String>), LabError> {
        let (mut rounds, mut notes) = (Vec::new(), Vec::new());
        let mut before = read(self.found)?;
        self.cohort = before.keys().copied().collect();
        let at_first = self.cohort.len();
        for round in 0..=ROUNDS {
            let mut blocks = Vec::new();
            for turn in 0..self.classes.len() {
                let after = self.block(turn_of(round, turn, self.classes.len()), &before, &mut blocks)?;
                before = after;
            }
            // Only whole rounds tell the classes apart, and the first has used up free memory.
            if round > 0 && blocks.len() == self.classes.len() {
                rounds.push(blocks);
            }
            if self.cohort.is_empty() {
                break;
            }
            if HostMemory::now().is_some_and(|m| (m.available as f64) < SPARE * m.total as f64) {
                notes.push(format!("stopped after {} rounds: the machine ran out of memory", rounds.len()));
                break;
            }
        }
        if rounds.len() < FEWEST_ROUNDS {
            let why = notes.pop().unwrap_or_else(|| {
                format!(
                    "all {at_first} workers were replaced within {} rounds of {} requests",
                    rounds.len(),
                    self.requests.iter().sum::<u64>()
                )
            });
            let advice = "measure for a shorter time (-d), or let workers serve more requests before they are replaced";
            return Err(LabError::Other(format!("{why}; {FEWEST_ROUNDS} rounds are needed: {advice}")));
        }
        if self.cohort.len() < at_first {
            let gone = at_first - self.cohort.len();
            notes.push(format!("{gone} of {at_first} workers ended meanwhile and are left out, as are new ones"));
        }
        Ok((rounds, notes))
    }

    /// Sends the requests of one class, then a few of each, and reads the memory.
    fn block(&mut self, class: usize, before: &PoolReading, blocks: &mut Vec<Block>) -> Result<PoolReading, LabError> {
        let mut counts = vec![0.0; self.classes.len()];
        counts[class] += self.send(class, self.requests[class], LONGEST_BLOCK)? as f64;
        if self.classes.len() > 1 {
            for (other, count) in counts.iter_mut().enumerate() {
                *count += self.send(other, u64::from(self.users), LONGEST_BLOCK)? as f64;
            }
        }
        thread::sleep(SETTLE);
        let after = read(self.found)?;
        self.cohort.retain(|worker| after.contains_key(worker));
        if !self.cohort.is_empty() {
            // What other workers answered does not count.
            let share = self.cohort.len() as f64 / before.len().max(self.cohort.len()) as f64;
            counts.iter_mut().for_each(|n| *n *= share);
            blocks.push(Block { counts, gained: gained(before, &after, &self.cohort) });
        }
        Ok(after)
    }

    /// Says which classes were answered by errors.
    fn refusals(&self) -> Vec<String> {
        let of = |(class, answers): (&ClassPlan, &Answers)| {
            (answers.refused * 2 > answers.all).then(|| {
                format!(
                    "`{}`: {} of {} answers were errors (status 400 or more)",
                    class.name, answers.refused, answers.all
                )
            })
        };
        self.classes.iter().zip(&self.answers).filter_map(of).collect()
    }

    /// Judges each class.
    fn result(&self, rounds: &[Vec<Block>]) -> ProfileMemory {
        let pool =
            PoolFacts { workers: self.cohort.len(), classes: self.classes.len(), collects: collects(self.found) };
        let growth = growth_of(rounds, self.classes.len());
        let mut classes: Vec<ClassMemory> =
            growth.iter().zip(self.classes).map(|(growth, class)| growth.judged(&class.name, pool)).collect();
        classes.sort_by(|a, b| b.growth_bytes.value.total_cmp(&a.growth_bytes.value));
        let unseen = |class: &ClassMemory| class.smallest_bytes.max(class.growth_bytes.interval[1]);
        let steady = classes.iter().filter(|class| class.verdict == ClassVerdict::Steady);
        let gained = rounds.iter().flatten().flat_map(|block| block.gained.values()).map(|(private, _)| private).sum();
        ProfileMemory {
            workers: self.cohort.len() as u64,
            rounds: rounds.len() as u64,
            smallest_bytes: steady.map(unseen).fold(0.0, f64::max).ceil(),
            gained_bytes: gained,
            functions: Vec::new(),
            classes,
        }
    }
}

/// The class whose turn it is: each round begins with another class, and every second one goes backwards.
fn turn_of(round: usize, turn: usize, classes: usize) -> usize {
    let forwards = (round / 2 + turn) % classes;
    if round.is_multiple_of(2) { forwards } else { classes - 1 - forwards }
}

/// What these workers gained between two readings, by mapping: private and resident bytes.
fn gained(before: &PoolReading, after: &PoolReading, workers: &BTreeSet<(i32, u64)>) -> BTreeMap<String, (f64, f64)> {
    let mut gained: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut add = |reading: &PoolReading, sign: f64| {
        for (mapping, memory) in workers.iter().filter_map(|worker| reading.get(worker)).flatten() {
            let sums = gained.entry(mapping.clone()).or_default();
            sums.0 += sign * memory.private as f64;
            sums.1 += sign * memory.resident as f64;
        }
    };
    add(before, -1.0);
    add(after, 1.0);
    gained
}

/// Growth per request of a class, one value per round.
#[derive(Debug, Default)]
struct ClassGrowth {
    requests: f64,
    private: Vec<f64>,
    resident: Vec<f64>,
    by_mapping: BTreeMap<String, Vec<f64>>,
}

impl ClassGrowth {
    fn judged(&self, name: &str, pool: PoolFacts) -> ClassMemory {
        let rounds = ClassRounds { private: &self.private, resident: &self.resident, requests: self.requests };
        let (verdict, smallest) = class_growth::judge(&rounds, pool);
        let mut mappings: Vec<MappingGrowth> = self
            .by_mapping
            .iter()
            .map(|(mapping, rounds)| MappingGrowth { mapping: mapping.clone(), growth_bytes: rounded(mean_of(rounds)) })
            .filter(|growth| growth.growth_bytes.value != 0.0)
            .collect();
        mappings.sort_by(|a, b| b.growth_bytes.value.total_cmp(&a.growth_bytes.value));
        mappings.truncate(MOST_MAPPINGS);
        ClassMemory {
            class: name.into(),
            verdict,
            requests: self.requests.round() as u64,
            growth_bytes: rounded(mean_of(&self.private)),
            resident_bytes: rounded(mean_of(&self.resident)),
            smallest_bytes: smallest.ceil(),
            mappings,
        }
    }
}

/// Bytes per request with one decimal.
fn rounded(Interval { value, interval }: Interval) -> Interval {
    // Adding 0 makes -0 a plain 0.
    let round = |x: f64| (x * 10.0).round() / 10.0 + 0.0;
    Interval { value: round(value), interval: interval.map(round) }
}

/// Solves the blocks of each round for the growth of each class.
fn growth_of(rounds: &[Vec<Block>], classes: usize) -> Vec<ClassGrowth> {
    let mut all: Vec<ClassGrowth> = (0..classes).map(|_| ClassGrowth::default()).collect();
    let mappings: BTreeSet<&String> = rounds.iter().flatten().flat_map(|block| block.gained.keys()).collect();
    for round in rounds {
        let counts: Vec<Vec<f64>> = round.iter().map(|block| block.counts.clone()).collect();
        let solve = |of: &dyn Fn(&Block) -> f64| per_request(&counts, &round.iter().map(of).collect::<Vec<_>>());
        let sum = |block: &Block, of: fn(&(f64, f64)) -> f64| block.gained.values().map(of).sum::<f64>();
        let (Some(private), Some(resident)) = (solve(&|b| sum(b, |g| g.0)), solve(&|b| sum(b, |g| g.1))) else {
            continue;
        };
        for (at, growth) in all.iter_mut().enumerate() {
            growth.private.push(private[at]);
            growth.resident.push(resident[at]);
            growth.requests += counts.iter().map(|row| row[at]).sum::<f64>();
        }
        for mapping in &mappings {
            let of_mapping = solve(&|block| block.gained.get(*mapping).map_or(0.0, |gained| gained.0));
            for (growth, bytes) in all.iter_mut().zip(of_mapping.into_iter().flatten()) {
                growth.by_mapping.entry((*mapping).clone()).or_default().push(bytes);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolFacts = PoolFacts { workers: 1, classes: 2, collects: false };

    fn block(counts: [f64; 2], heap: f64, file: f64) -> Block {
        let gained = [("[heap]".to_string(), (heap, heap)), ("/a.so".to_string(), (file, 0.0))].into();
        Block { counts: counts.to_vec(), gained }
    }

    #[test]
    fn growth_is_that_of_the_class_and_of_the_mapping() {
        // The first class leaks 1,000 bytes per request in [heap]; the second unshares 500 bytes per request of a file.
        let round = vec![block([100.0, 10.0], 100_000.0, 5_000.0), block([10.0, 200.0], 10_000.0, 100_000.0)];
        let growth = growth_of(&vec![round; 6], 2);
        let (first, second) = (growth[0].judged("a", POOL), growth[1].judged("b", POOL));
        assert_eq!((first.verdict, first.growth_bytes.value), (ClassVerdict::Grows, 1000.0));
        assert_eq!(first.mappings.len(), 1, "{first:?}");
        assert_eq!((first.mappings[0].mapping.as_str(), first.requests), ("[heap]", 660));
        assert_eq!((second.verdict, second.growth_bytes.value), (ClassVerdict::Unshares, 500.0));
        assert_eq!(second.resident_bytes.value, 0.0);
    }

    #[test]
    fn only_workers_that_lived_through_a_block_count() {
        let pool = |workers: &[(i32, u64)]| -> PoolReading {
            let heap = |(pid, bytes): &(i32, u64)| {
                let memory = MappingMemory { private: *bytes, resident: *bytes };
                ((*pid, 7), [("[heap]".to_string(), memory)].into())
            };
            workers.iter().map(heap).collect()
        };
        let (before, after) = (pool(&[(1, 1000), (2, 900)]), pool(&[(1, 1500), (3, 50)]));
        assert_eq!(gained(&before, &after, &[(1, 7)].into())["[heap]"], (500.0, 500.0));
    }

    #[test]
    fn each_class_has_one_turn_in_each_round() {
        for round in 0..7 {
            let turns: BTreeSet<usize> = (0..3).map(|turn| turn_of(round, turn, 3)).collect();
            assert_eq!(turns.len(), 3);
        }
        assert_ne!(turn_of(0, 0, 3), turn_of(1, 0, 3));
        assert_eq!((block_of(0.2, 4), block_of(1e9, 4)), (16, MOST_REQUESTS));
    }
}
