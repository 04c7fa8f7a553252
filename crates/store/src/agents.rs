//! Records that a fleet's agents sent for a run, as they came. Each is stored here before the fleet's broker
//! may forget it. They are deleted once all agents' records of the run are complete.

use rusqlite::params;

use crate::{Store, StoreError};

/// An agent that takes part in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAgent {
    pub name: String,
    pub weight: u32,
    pub offset_us: i64,
    pub error_us: u64,
}

/// A record or final report of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRecord {
    pub agent: String,
    /// The agent's epoch, and the sequence number within it.
    pub epoch: u64,
    pub seq: u64,
    pub what: RecordBody,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordBody {
    Record(Vec<u8>),
    /// The final report: why the job is incomplete, if it is.
    Last(Option<String>),
}

impl Store {
    /// Stores the agents of a run, in the order of their shares.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_agents(&self, run: &str, agents: &[RunAgent]) -> Result<(), StoreError> {
        let connection = self.connection();
        for (position, a) in agents.iter().enumerate() {
            connection.execute(
                "INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?, ?, ?)",
                params![run, position as i64, a.name, a.weight, a.offset_us, a.error_us as i64],
            )?;
        }
        Ok(())
    }

    /// Returns the agents of a run.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn agents(&self, run: &str) -> Result<Vec<RunAgent>, StoreError> {
        let connection = self.connection();
        let mut all = connection
            .prepare("SELECT name, weight, offset_us, error_us FROM agents WHERE run = ? ORDER BY position")?;
        let rows = all.query_map([run], |r| {
            let error_us: i64 = r.get(3)?;
            Ok(RunAgent { name: r.get(0)?, weight: r.get(1)?, offset_us: r.get(2)?, error_us: error_us as u64 })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Stores a record of an agent; one that is already stored stays unchanged.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_agent_record(&self, run: &str, word: &AgentRecord) -> Result<(), StoreError> {
        let (record, last) = match &word.what {
            RecordBody::Record(bytes) => (Some(bytes), None),
            RecordBody::Last(why) => (None, why.as_ref()),
        };
        self.connection().execute(
            "INSERT OR IGNORE INTO agent_records VALUES (?, ?, ?, ?, ?, ?)",
            params![run, word.agent, word.epoch as i64, word.seq as i64, record, last],
        )?;
        Ok(())
    }

    /// Returns all agents' records of a run, each agent's in order.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn agent_records(&self, run: &str) -> Result<Vec<AgentRecord>, StoreError> {
        let connection = self.connection();
        let mut all = connection.prepare(
            "SELECT agent, epoch, seq, record, last FROM agent_records WHERE run = ? ORDER BY agent, epoch, seq",
        )?;
        let rows = all.query_map([run], |r| {
            let (epoch, seq): (i64, i64) = (r.get(1)?, r.get(2)?);
            let record: Option<Vec<u8>> = r.get(3)?;
            let what = match record {
                Some(bytes) => RecordBody::Record(bytes),
                None => RecordBody::Last(r.get(4)?),
            };
            Ok(AgentRecord { agent: r.get(0)?, epoch: epoch as u64, seq: seq as u64, what })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Deletes the seconds of a run, so that they can be written again from the agents' records.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn forget_seconds(&self, run: &str) -> Result<(), StoreError> {
        let connection = self.connection();
        connection.execute("DELETE FROM seconds WHERE run = ?", [run])?;
        connection.execute("DELETE FROM phase_ends WHERE run = ?", [run])?;
        Ok(())
    }

    /// Deletes the agents' records of a run whose seconds are complete.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn forget_agent_records(&self, run: &str) -> Result<(), StoreError> {
        self.connection().execute("DELETE FROM agent_records WHERE run = ?", [run])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_told_is_kept_once_and_in_order() {
        let store = Store::scratch().expect("a scratch store");
        let agent = RunAgent { name: "a".into(), weight: 2, offset_us: -7, error_us: 40 };
        store.keep_agents("r", std::slice::from_ref(&agent)).expect("written");
        assert_eq!(store.agents("r").expect("read"), [agent]);
        let word = |seq, what| AgentRecord { agent: "a".into(), epoch: 3, seq, what };
        let last = word(2, RecordBody::Last(Some("killed".into())));
        let told = [word(0, RecordBody::Record(vec![1])), word(1, RecordBody::Record(vec![2])), last];
        for i in [1, 0, 1, 2, 2] {
            store.keep_agent_record("r", &told[i]).expect("written");
        }
        store.keep_agent_record("r", &word(0, RecordBody::Record(vec![9]))).expect("ignored");
        assert_eq!(store.agent_records("r").expect("read"), told);
        assert!(store.agent_records("another").expect("read").is_empty());
        store.forget_agent_records("r").expect("written");
        assert!(store.agent_records("r").expect("read").is_empty());
    }
}
