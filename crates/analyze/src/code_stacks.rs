//! Stacks of functions of a program's own language, as profilers of languages record them: the costliest functions, and
//! who calls whom.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::documents::{CodeFunction, ProfileFunction};

/// A function, or a file's code outside of functions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodeFrame {
    pub name: String,
    pub file: String,
    pub line: u32,
}

impl CodeFrame {
    /// Reads `name|file|line`.
    fn of_record(text: &str) -> Option<CodeFrame> {
        let (rest, line) = text.rsplit_once('|')?;
        let (name, file) = rest.split_once('|')?;
        Some(CodeFrame { name: name.into(), file: file.into(), line: line.parse().unwrap_or(0) })
    }
}

/// Stacks, outermost caller first, with their weight in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CodeStacks {
    stacks: BTreeMap<Vec<CodeFrame>, u64>,
    /// How often each function was called; empty if the profiler samples.
    calls: BTreeMap<CodeFrame, u64>,
    samples: u64,
}

impl CodeStacks {
    /// Reads lines `s TAB STACK TAB WEIGHT` and `c TAB FRAME TAB COUNT`, where frames are separated by `;`, and
    /// `n TAB samples TAB COUNT`. Other lines are skipped.
    #[must_use]
    pub fn of_records(text: &str) -> CodeStacks {
        let mut all = CodeStacks::default();
        for line in text.lines() {
            let mut words = line.split('\t');
            let (Some(sort), Some(what), Some(number)) = (words.next(), words.next(), words.next()) else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match sort {
                "s" => all.add(what.split(';').filter_map(CodeFrame::of_record).collect(), number),
                "c" => {
                    if let Some(frame) = CodeFrame::of_record(what) {
                        *all.calls.entry(frame).or_default() += number;
                    }
                }
                "n" => all.samples += number,
                _ => {}
            }
        }
        all
    }

    fn add(&mut self, stack: Vec<CodeFrame>, weight: u64) {
        if !stack.is_empty() && weight > 0 {
            *self.stacks.entry(stack).or_default() += weight;
        }
    }

    /// Sum of all weights.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.stacks.values().sum()
    }

    /// All calls; of a profiler that does not count them, its samples.
    #[must_use]
    pub fn observations(&self) -> u64 {
        self.samples + self.calls.values().sum::<u64>()
    }

    /// The functions by exclusive share, the costliest first.
    #[must_use]
    pub fn functions(&self, us_per_request: Option<f64>) -> Vec<ProfileFunction> {
        let (mut own, mut total) = (BTreeMap::<&CodeFrame, u64>::new(), BTreeMap::<&CodeFrame, u64>::new());
        for (stack, weight) in &self.stacks {
            if let Some(last) = stack.last() {
                *own.entry(last).or_default() += weight;
            }
            // A recursive function counts once.
            for frame in stack.iter().collect::<BTreeSet<_>>() {
                *total.entry(frame).or_default() += weight;
            }
        }
        let share = |n: u64| round(n as f64 / self.total().max(1) as f64);
        let row = |(frame, total): (&CodeFrame, u64)| {
            let own = share(own.get(frame).copied().unwrap_or(0));
            let library = match (frame.file.as_str(), frame.line) {
                (file, 0) => file.to_string(),
                (file, line) => format!("{file}:{line}"),
            };
            ProfileFunction {
                function: frame.name.clone(),
                library,
                self_share: own,
                total_share: share(total),
                us_per_request: us_per_request.map(|us| round(us * own)),
                code: Some(CodeFunction {
                    name: frame.name.clone(),
                    file: frame.file.clone(),
                    line: frame.line,
                    exclusive_share: own,
                    cumulative_share: share(total),
                    calls: (!self.calls.is_empty()).then(|| self.calls.get(frame).copied().unwrap_or(0)),
                }),
            }
        };
        let mut rows: Vec<ProfileFunction> = total.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.self_share.total_cmp(&a.self_share).then(b.total_share.total_cmp(&a.total_share)));
        rows
    }

    /// The stacks by names, the heaviest first.
    #[must_use]
    pub fn by_names(self) -> Vec<(Vec<String>, u64)> {
        let mut all: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (stack, weight) in self.stacks {
            *all.entry(stack.into_iter().map(|frame| frame.name).collect()).or_default() += weight;
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all
    }
}

fn round(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_several_workers_are_added_up() {
        let record = "s\tmain|/a.pl|1;heavy|/a.pl|3\t60\ns\tmain|/a.pl|1\t10\ns\tmain|/a.pl|1;light||0;light||0\t30\nc\theavy|/a.pl|3\t4\n";
        let stacks = CodeStacks::of_records(&format!("{record}{record}garbage\ns\tx\ts\tx\n"));
        assert_eq!((stacks.total(), stacks.observations()), (200, 8));
        let rows = stacks.functions(Some(1000.0));
        let code = |n: usize| rows[n].code.clone().expect("code");
        assert_eq!((code(0).name.as_str(), code(0).exclusive_share, code(0).calls), ("heavy", 0.6, Some(8)));
        assert_eq!((code(1).name.as_str(), code(1).cumulative_share, code(1).calls), ("light", 0.3, Some(0)));
        assert_eq!(
            (rows[0].library.as_str(), rows[0].us_per_request, rows[1].library.as_str()),
            ("/a.pl:3", Some(600.0), "")
        );
        assert_eq!((code(2).exclusive_share, code(2).cumulative_share), (0.1, 1.0));
        assert_eq!(stacks.by_names()[0], (vec!["main".to_string(), "heavy".into()], 120));
        let sampled = CodeStacks::of_records("n\tsamples\t3\ns\tmain||0\t3000\n");
        assert_eq!((sampled.observations(), sampled.functions(None)[0].code.clone().and_then(|c| c.calls)), (3, None));
    }
}
