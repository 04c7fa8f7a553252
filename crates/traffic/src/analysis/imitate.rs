//! Creates a plan that imitates a log: the same mix, by a fair sample of its requests, at the rates of its busiest ten
//! minutes.
//!
//! Only GET and HEAD: a log has no bodies, and requests with side effects must not be repeated. The sample is a file of
//! URLs from which each request is drawn at random. So the mix is that of the log, whatever its classes.

use lastdrop_model::documents::ArrivalsLaw;
use lastdrop_model::printable::line;

use super::bounded::{Mergeable, TopCounters};
use super::rates::Rates;
use crate::LogEntry;

/// Requests in the sample.
const SAMPLE: usize = 5_000;
const MOST_TARGET_BYTES: usize = 2_000;
/// Length in seconds of the busiest part that is imitated, if the log is longer.
const IMITATED_S: usize = 600;
const PHASES: usize = 10;
/// Classes named in the plan's comment.
const NAMED: usize = 12;

/// A plan file, and its file of URLs; the plan calls it `plan.urls` until it has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imitation {
    pub plan: String,
    pub urls: String,
}

/// Placeholder in the plan for the name of the file of URLs.
pub const URLS: &str = "plan.urls";

/// A fair sample of the requests that may be repeated (algorithm R, Vitter 1985).
#[derive(Debug)]
pub(crate) struct Sample {
    seen: u64,
    left_out: u64,
    /// Whether it is a HEAD, and the target.
    kept: Vec<(bool, Box<[u8]>)>,
    random: u64,
}

impl Default for Sample {
    fn default() -> Sample {
        // Any seed will do: the same log gives the same plan.
        Sample { seen: 0, left_out: 0, kept: Vec::new(), random: 0x9e37_79b9_7f4a_7c15 }
    }
}

impl Sample {
    pub(crate) fn take(&mut self, entry: &LogEntry) {
        let (Some(method), Some(path)) = (entry.method(), entry.path()) else {
            self.left_out += 1;
            return;
        };
        let head = method == b"HEAD";
        if !(head || method == b"GET") || path.len() > MOST_TARGET_BYTES || !path.starts_with(b"/") {
            self.left_out += 1;
            return;
        }
        self.seen += 1;
        let place = if self.kept.len() < SAMPLE { self.kept.len() } else { (self.next() % self.seen) as usize };
        if place >= SAMPLE {
            return;
        }
        let Some(target) = entry.target().filter(|t| t.len() <= MOST_TARGET_BYTES) else { return };
        let one = (head, target.as_ref().into());
        match self.kept.get_mut(place) {
            Some(other) => *other = one,
            None => self.kept.push(one),
        }
    }

    /// xorshift64*
    fn next(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 1
    }

    pub(crate) fn plan<V: Mergeable>(
        &self,
        origin: &str,
        rates: &Rates,
        classes: &TopCounters<V>,
    ) -> Option<Imitation> {
        if self.kept.is_empty() {
            return None;
        }
        let mut urls = format!("# {} requests of a log, drawn fairly\n", self.kept.len());
        for (head, target) in &self.kept {
            urls.push_str(origin);
            push_target(target, &mut urls);
            urls.push_str(if *head { " HEAD\n" } else { "\n" });
        }
        let all = self.seen + self.left_out;
        // Requests that are not imitated do not count in the rate.
        let share = self.seen as f64 / all.max(1) as f64;
        let mut plan = format!(
            "# Looks like a log of {all} requests: its mix, and the rates of its busiest {} minutes.\n",
            IMITATED_S / 60
        );
        if self.left_out > 0 {
            plan.push_str(&format!("# {} of them are left out: no GET and no HEAD, or no path.\n", self.left_out));
        }
        let mut named: Vec<_> = classes.slots().iter().collect();
        named.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        for slot in named.iter().take(NAMED) {
            let name = line(&String::from_utf8_lossy(&slot.name));
            plan.push_str(&format!("#   {:5.1} %  {name}\n", slot.count as f64 * 100.0 / all.max(1) as f64));
        }
        plan.push_str(&format!("urls = \"{URLS}\"\npick = \"weighted\"\n"));
        let arrivals = rates.arrivals();
        let burst = arrivals.burst.round().max(1.0);
        for (number, (rps, seconds)) in rates.busiest(IMITATED_S, PHASES).into_iter().enumerate() {
            let rate = (rps * share).max(0.1);
            plan.push_str(&format!(
                "\n[[phase]]\nname = \"part {}\"\nrate = {rate:.2}\nduration = \"{seconds}s\"\n",
                number + 1
            ));
            match arrivals.law {
                Some(ArrivalsLaw::Uniform) => {}
                _ => plan.push_str("arrivals = \"poisson\"\n"),
            }
            if burst > 1.0 {
                plan.push_str(&format!("burst = {burst}\n"));
            }
        }
        Some(Imitation { plan, urls })
    }
}

/// Writes a target for a file of URLs: characters with a meaning there are percent-encoded.
fn push_target(target: &[u8], to: &mut String) {
    for &b in target {
        if b.is_ascii_graphic() && !b"\"#$<>\\^`{|}".contains(&b) {
            to.push(char::from(b));
        } else {
            to.push_str(&format!("%{b:02X}"));
        }
    }
}
