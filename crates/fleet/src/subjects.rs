//! The subjects of all messages, and the broker's permissions on them.
//!
//! | subject | who publishes | what |
//! |---|---|---|
//! | `ld.who` | coordinator | asks for all agents; each answers with `Agent` |
//! | `ld.to.AGENT.ping` | coordinator | asks for the agent's clock |
//! | `ld.to.AGENT.order` | coordinator | a signed order |
//! | `ld.to.AGENT.ask` | coordinator | a signed question of a conversation |
//! | `ld.answer.AGENT.CONVERSATION.0.NUMBER.PART.PARTS` | agent | a part of an answer |
//! | `ld.alive.AGENT` | agent | once a second while it has a job (`Heartbeat`) |
//! | `ld.record.RUN.AGENT.EPOCH.SEQ.PART.PARTS` | agent | a part of a record; stream `LD_RECORDS` |
//! | `ld.file.SHA256.CHUNK` | coordinator | a chunk of a file; stream `LD_FILES` |
//! | `ld.join` | holder of the agent-token | join request with the agent's name |

pub(crate) const WHO: &str = "ld.who";
pub(crate) const JOIN: &str = "ld.join";
pub(crate) const ALIVE: &str = "ld.alive.*";
pub(crate) const RECORDS: &str = "LD_RECORDS";
pub(crate) const FILES: &str = "LD_FILES";

/// The coordinator's user name at the broker.
pub(crate) const COORDINATOR: &str = "coordinator";
/// The user name for join requests, which has no other permissions.
pub(crate) const JOINER: &str = "joiner";

pub(crate) fn ping(agent: &str) -> String {
    format!("ld.to.{agent}.ping")
}

pub(crate) fn order(agent: &str) -> String {
    format!("ld.to.{agent}.order")
}

pub(crate) fn question(agent: &str) -> String {
    format!("ld.to.{agent}.ask")
}

pub(crate) fn answers_of(agent: &str, conversation: &str) -> String {
    format!("ld.answer.{agent}.{conversation}.>")
}

pub(crate) fn alive(agent: &str) -> String {
    format!("ld.alive.{agent}")
}

pub(crate) fn chunk(sha256: &str, index: u64) -> String {
    format!("ld.file.{sha256}.{index}")
}

pub(crate) fn records_of(run: &str) -> String {
    format!("ld.record.{run}.>")
}

/// The user name of an agent at the broker.
pub(crate) fn user(agent: &str) -> String {
    format!("agent-{agent}")
}

/// A separate inbox per agent, so that no agent can read another's answers.
pub(crate) fn inbox(agent: &str) -> String {
    format!("_INBOX_{agent}")
}

/// The subjects an agent may publish to, besides replies to requests.
pub(crate) fn may_publish(agent: &str) -> [String; 4] {
    [
        format!("ld.record.*.{agent}.>"),
        format!("ld.answer.{agent}.>"),
        alive(agent),
        format!("$JS.API.DIRECT.GET.{FILES}.ld.file.>"),
    ]
}

pub(crate) fn may_subscribe(agent: &str) -> [String; 3] {
    [WHO.to_owned(), format!("ld.to.{agent}.>"), format!("{}.>", inbox(agent))]
}

/// Identifies a part of a record; encoded in the subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PartId {
    pub run: String,
    pub agent: String,
    pub epoch: u64,
    pub seq: u64,
    pub part: u32,
    pub parts: u32,
}

impl PartId {
    pub fn subject(&self) -> String {
        let PartId { run, agent, epoch, seq, part, parts } = self;
        format!("ld.record.{run}.{agent}.{epoch}.{seq}.{part}.{parts}")
    }

    /// Returns the subject of a part of an answer; `run` holds the conversation, `seq` the question's number.
    pub fn answer_subject(&self) -> String {
        let PartId { run, agent, epoch, seq, part, parts } = self;
        format!("ld.answer.{agent}.{run}.{epoch}.{seq}.{part}.{parts}")
    }

    /// Parses the subject of a part of an answer; `None` if it has another form.
    pub fn read_answer(subject: &str) -> Option<PartId> {
        let rest = subject.strip_prefix("ld.answer.")?;
        let (agent, rest) = rest.split_once('.')?;
        let (run, rest) = rest.split_once('.')?;
        PartId::read(&format!("ld.record.{run}.{agent}.{rest}"))
    }

    /// Parses the subject of a part of a record; `None` if it has another form.
    pub fn read(subject: &str) -> Option<PartId> {
        let words: Vec<&str> = subject.split('.').collect();
        let ["ld", "record", run, agent, epoch, seq, part, parts] = words[..] else { return None };
        let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
        let known = PartId {
            run: run.to_owned(),
            agent: agent.to_owned(),
            epoch: epoch.parse().ok()?,
            seq: seq.parse().ok()?,
            part,
            parts,
        };
        (part < parts && is_name(run) && is_name(agent)).then_some(known)
    }
}

/// Returns whether the text can be part of a subject, of a user name and of a file name: letters, digits,
/// `-`, `_`, at most 64.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Returns whether an agent can have this name. `choose` must be able to tell it from a number and from
/// `all`.
#[must_use]
pub fn is_agent_name(text: &str) -> bool {
    is_name(text) && text != "all" && !text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_read_back_and_others_are_none() {
        let part = PartId { run: "r-1".into(), agent: "web_2".into(), epoch: 3, seq: u64::MAX, part: 0, parts: 2 };
        assert_eq!(PartId::read(&part.subject()), Some(part.clone()));
        assert_eq!(PartId::read_answer(&part.answer_subject()), Some(part));
        assert_eq!(PartId::read_answer("ld.answer.a.r.1.2.2.2"), None);
        for other in
            ["ld.record.r.a.1.2.3", "ld.record.r.a.1.2.2.2", "ld.record.r.a.-1.2.0.1", "ld.record.r!.a.1.2.0.1"]
        {
            assert_eq!(PartId::read(other), None, "{other}");
        }
    }

    #[test]
    fn names_are_fit_for_subjects_and_for_choosing() {
        assert!(is_agent_name("web-1") && is_agent_name("1a"));
        for none in ["", "all", "12", "a.b", "a b", "ü", "*", &"x".repeat(65)] {
            assert!(!is_agent_name(none), "{none}");
        }
    }
}
