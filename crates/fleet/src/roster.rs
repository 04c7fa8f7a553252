//! The agents of a fleet, and how a run chooses among them.

use serde::{Deserialize, Serialize};

use crate::engine::Limits;

/// An agent as announced by itself, with its measured clock.
///
/// An agent of another version may announce less; it is listed, but cannot take part in a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// Letters, digits, `-` and `_`, at most 64, not a number alone.
    pub name: String,
    /// Number of CPUs that its process may use.
    pub cores: u32,
    /// The version of lastdrop; a run takes agents of the coordinator's version only.
    pub version: String,
    /// Its address as seen by the broker.
    pub address: String,
    /// Its clock minus the coordinator's, in microseconds, by the shortest of 20 round trips.
    pub offset_us: i64,
    /// Error bound of `offset_us`: half of that round trip.
    pub error_us: u64,
    /// Servers that it can observe, as named when it was started.
    pub looks: Vec<String>,
    pub limits: Limits,
    /// The run that it is working on.
    pub busy: Option<String>,
    pub refused: Refusals,
    /// Number of the agent's current epoch.
    pub epoch: u64,
    /// Created once with the agent's folder. Orders contain it, so that orders for an earlier folder are
    /// refused even though their sequence numbers are forgotten.
    pub instance: String,
    /// The highest sequence number of an order it has taken; the next must be higher.
    pub last_order: u64,
}

/// Numbers of refused orders by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusals {
    /// Not an order at all.
    pub malformed: u64,
    /// Not signed by the token's holder: forged, or changed on the way.
    pub forged: u64,
    /// For another agent, or for an earlier folder of this one.
    pub misdirected: u64,
    /// Seen before, or older than an order that was taken.
    pub replayed: u64,
    pub expired: u64,
    /// From another version of lastdrop.
    pub other_version: u64,
    /// A payload or file does not match its signed digest.
    pub damaged: u64,
    /// The agent was busy with another run.
    pub busy: u64,
    /// The engine refused it.
    pub declined: u64,
}

/// An agent chosen for a run, with its share.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenAgent {
    pub agent: Agent,
    /// Its share is weight / Σ weights. The default is 1.
    pub weight: f64,
}

/// The task of one agent in a run.
#[derive(Debug, Clone)]
pub struct Assignment {
    pub agent: Agent,
    /// The payload for its engine: `Job::payload`.
    pub payload: Vec<u8>,
    /// Name and content of each file: `Job::files`. Identical content is sent to the broker once.
    pub files: Vec<(String, std::sync::Arc<[u8]>)>,
}

/// The reason why no agents could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    #[error("the fleet has no agents: start some with `lastdrop agent URL`")]
    Nobody,
    #[error("{wanted} agents are wanted, the fleet has {there}: {names}")]
    TooFew { wanted: usize, there: usize, names: String },
    #[error("there is no agent {name} in the fleet; it has {names}")]
    Unknown { name: String, names: String },
    #[error("agent {0} is named twice")]
    Twice(String),
    #[error("{0:?} is no weight of an agent: a number above 0, as in a*2,b")]
    Weight(String),
    #[error("{0:?} selects no agents: give all, a number, or names with weights (a*2,b)")]
    Empty(String),
}

/// Returns the agents that `wanted` selects: `all`, a number (that many, in order of name), or names with
/// weights (`a*2,b`).
///
/// # Errors
/// If there are too few agents, a name is unknown or repeated, or a weight is invalid.
pub fn choose(agents: &[Agent], wanted: &str) -> Result<Vec<ChosenAgent>, ChooseError> {
    let mut agents: Vec<&Agent> = agents.iter().collect();
    agents.sort_by(|a, b| a.name.cmp(&b.name));
    let names = || agents.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", ");
    let alike = |agents: &[&Agent]| agents.iter().map(|a| ChosenAgent { agent: (*a).clone(), weight: 1.0 }).collect();
    let wanted = wanted.trim();
    if agents.is_empty() {
        return Err(ChooseError::Nobody);
    }
    if wanted == "all" {
        return Ok(alike(&agents));
    }
    if let Ok(n) = wanted.parse::<usize>() {
        return match n {
            0 => Err(ChooseError::Empty(wanted.into())),
            n if n > agents.len() => Err(ChooseError::TooFew { wanted: n, there: agents.len(), names: names() }),
            n => Ok(alike(&agents[..n])),
        };
    }
    let mut chosen: Vec<ChosenAgent> = Vec::new();
    for part in wanted.split(',') {
        let (name, weight) = part.split_once('*').map_or((part, None), |(name, weight)| (name, Some(weight)));
        let name = name.trim();
        if name.is_empty() {
            return Err(ChooseError::Empty(wanted.into()));
        }
        let weight = match weight {
            None => 1.0,
            Some(text) => match text.trim().parse::<f64>() {
                Ok(weight) if weight > 0.0 && weight.is_finite() => weight,
                _ => return Err(ChooseError::Weight(text.into())),
            },
        };
        let agent = agents
            .iter()
            .find(|a| a.name == name)
            .ok_or_else(|| ChooseError::Unknown { name: name.into(), names: names() })?;
        if chosen.iter().any(|c| c.agent.name == name) {
            return Err(ChooseError::Twice(name.into()));
        }
        chosen.push(ChosenAgent { agent: (*agent).clone(), weight });
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(names: &[&str]) -> Vec<Agent> {
        let named = |name: &&str| Agent { name: (*name).to_owned(), ..Agent::default() };
        names.iter().map(named).collect()
    }

    fn named(wanted: &str) -> Result<Vec<(String, f64)>, ChooseError> {
        let chosen = choose(&agents(&["b", "a", "c"]), wanted)?;
        Ok(chosen.into_iter().map(|c| (c.agent.name, c.weight)).collect())
    }

    #[test]
    fn agents_are_chosen_by_all_number_and_names_with_weights() {
        let a = |list: &[(&str, f64)]| Ok(list.iter().map(|(n, w)| ((*n).to_owned(), *w)).collect());
        assert_eq!(named("all"), a(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]));
        assert_eq!(named("2"), a(&[("a", 1.0), ("b", 1.0)]));
        assert_eq!(named("c, a*2.5"), a(&[("c", 1.0), ("a", 2.5)]));
    }

    #[test]
    fn a_choice_that_means_nobody_is_refused_and_says_who_is_there() {
        assert_eq!(choose(&[], "all"), Err(ChooseError::Nobody));
        assert!(named("4").is_err_and(|e| e.to_string().contains("a, b, c")));
        assert!(named("a,d").is_err_and(|e| e.to_string().contains("no agent d in the fleet; it has a, b, c")));
        for (wanted, error) in [
            ("a,a", ChooseError::Twice("a".into())),
            ("a*0", ChooseError::Weight("0".into())),
            ("a*-1", ChooseError::Weight("-1".into())),
            ("a*inf", ChooseError::Weight("inf".into())),
            ("a*", ChooseError::Weight(String::new())),
            ("0", ChooseError::Empty("0".into())),
            ("", ChooseError::Empty(String::new())),
            ("a,,b", ChooseError::Empty("a,,b".into())),
        ] {
            assert_eq!(named(wanted), Err(error), "{wanted:?}");
        }
    }
}
