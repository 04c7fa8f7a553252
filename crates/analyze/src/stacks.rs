//! Merged samples of call stacks: the costliest functions and libraries, and the tree for a flame graph.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::documents::{ProfileFunction, ProfileShare};

/// A function and its program or library.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    pub function: String,
    pub library: String,
}

/// Stacks, outermost caller first, with their number of samples.
pub type Stacks = BTreeMap<Vec<Frame>, u64>;

/// Reads the output of `perf script -F comm,pid,ip,sym,dso`: per sample a header line, its frames with the
/// innermost first, and an empty line. Lines that are not frames are skipped.
#[must_use]
pub fn read_perf_script(text: &str) -> Stacks {
    perf_script_of(text, |_| true)
}

/// Like `read_perf_script`, for selected processes only.
#[must_use]
pub fn perf_script_of(text: &str, is_wanted: impl Fn(i32) -> bool) -> Stacks {
    let mut stacks = Stacks::new();
    let mut frames: Vec<Frame> = Vec::new();
    let mut wanted = true;
    for line in text.lines().chain(std::iter::once("")) {
        if line.trim().is_empty() {
            frames.reverse();
            let stack = std::mem::take(&mut frames);
            if !stack.is_empty() && wanted {
                *stacks.entry(stack).or_default() += 1;
            }
        } else if !line.starts_with([' ', '\t']) {
            // "apache2  4711"; a program's name may contain spaces.
            let pid = line.split_whitespace().next_back().and_then(|word| word.parse().ok());
            wanted = pid.is_none_or(&is_wanted);
        } else {
            // "    7f12ab34 apr_palloc+0x1c (/usr/lib/libapr-1.so.0.7.2)"
            let Some((_, rest)) = line.trim().split_once(' ') else { continue };
            let (symbol, library) = match rest.rsplit_once(" (") {
                Some((symbol, library)) => (symbol, library.trim_end_matches(')')),
                None => (rest, ""),
            };
            let symbol = symbol.rsplit_once("+0x").map_or(symbol, |(name, _)| name);
            let library = library.rsplit('/').next().unwrap_or(library);
            let library = if library.contains("kernel.kallsyms") || library == "[kernel]" { "kernel" } else { library };
            frames.push(Frame { function: symbol.to_string(), library: library.to_string() });
        }
    }
    stacks
}

/// Returns the share of each function, alone and including its callees; sorted by the former.
#[must_use]
pub fn functions(stacks: &Stacks, us_per_request: Option<f64>) -> Vec<ProfileFunction> {
    let all: u64 = stacks.values().sum();
    let mut own: BTreeMap<&Frame, u64> = BTreeMap::new();
    let mut total: BTreeMap<&Frame, u64> = BTreeMap::new();
    for (stack, n) in stacks {
        if let Some(last) = stack.last() {
            *own.entry(last).or_default() += n;
        }
        // A recursive function counts once.
        for frame in stack.iter().collect::<BTreeSet<_>>() {
            *total.entry(frame).or_default() += n;
        }
    }
    let share = |n: u64| round(n as f64 / all.max(1) as f64);
    let mut rows: Vec<ProfileFunction> = total
        .into_iter()
        .map(|(frame, total)| {
            let own = share(own.get(frame).copied().unwrap_or(0));
            ProfileFunction {
                function: frame.function.clone(),
                library: frame.library.clone(),
                self_share: own,
                total_share: share(total),
                us_per_request: us_per_request.map(|us| round(us * own)),
                code: None,
            }
        })
        .collect();
    rows.sort_by(|a, b| b.self_share.total_cmp(&a.self_share).then(b.total_share.total_cmp(&a.total_share)));
    rows
}

/// Returns the share of each library by the code executed in it, costliest first.
#[must_use]
pub fn libraries(stacks: &Stacks, us_per_request: Option<f64>) -> Vec<ProfileShare> {
    let all: u64 = stacks.values().sum();
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, n) in stacks {
        if let Some(last) = stack.last() {
            *sums.entry(last.library.as_str()).or_default() += n;
        }
    }
    let mut rows: Vec<ProfileShare> = sums
        .into_iter()
        .map(|(name, n)| {
            let share = round(n as f64 / all.max(1) as f64);
            ProfileShare { name: name.into(), share, us_per_request: us_per_request.map(|us| round(us * share)) }
        })
        .collect();
    rows.sort_by(|a, b| b.share.total_cmp(&a.share));
    rows
}

fn round(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "apache2 100 \n\t    7f01 pp_log+0x10 (/usr/lib/libperl.so.5.36)\n\t    7f02 Perl_runops+0x3 (/usr/lib/libperl.so.5.36)\n\
        \t    55aa main+0x1 (/usr/sbin/apache2)\n\napache2 101 \n\t ffff01 do_syscall_64+0x5 ([kernel.kallsyms])\n\
        \t    55aa main+0x1 (/usr/sbin/apache2)\n\napache2 100 \n\t    7f01 pp_log+0x99 (/usr/lib/libperl.so.5.36)\n\
        \t    7f02 Perl_runops+0x3 (/usr/lib/libperl.so.5.36)\n\t    55aa main+0x1 (/usr/sbin/apache2)\n\n\
        apache2 100 \n\t    0 [unknown] ([unknown])\n";

    #[test]
    fn samples_are_added_up_by_stack_function_and_library() {
        let stacks = read_perf_script(SCRIPT);
        assert_eq!(stacks.values().sum::<u64>(), 4);
        assert_eq!(stacks.len(), 3);
        let rows = functions(&stacks, Some(1000.0));
        let row = |name: &str| rows.iter().find(|r| r.function == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(rows[0].function, "pp_log");
        assert_eq!((row("pp_log").self_share, row("pp_log").us_per_request), (0.5, Some(500.0)));
        assert_eq!((row("main").self_share, row("main").total_share), (0.0, 0.75));
        let libraries = libraries(&stacks, None);
        assert_eq!((libraries[0].name.as_str(), libraries[0].share), ("libperl.so.5.36", 0.5));
        assert!(libraries.iter().any(|l| l.name == "kernel"));
        assert!(read_perf_script("").is_empty() && read_perf_script("garbage\nmore").is_empty());
    }
}
