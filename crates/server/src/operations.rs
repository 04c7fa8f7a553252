//! Operations of an open server, wherever it runs: one table of argument, answer, whether it changes anything, what a server
//! of this machine does, and what the answers of several machines are together.
//!
//! An operation leaves nothing to be undone. What has to be undone is a setting, and goes through [`crate::Member::apply`].
//! Operations travel to agents as they are: a new one is a row here, and the function of [`Session`] that it names.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ServerError;
use crate::session::Session;

/// A row of the table.
pub trait Operation: Into<OperationCall> {
    type Answer: DeserializeOwned;
}

/// Reads an answer.
pub(crate) fn read<T: DeserializeOwned>(answer: Value) -> Result<T, ServerError> {
    lastdrop_model::read_json(&answer.to_string())
        .map_err(|e| ServerError::Setting(format!("an answer that cannot be read: {e}")))
}

fn written<T: Serialize>(answer: &T) -> Result<Value, ServerError> {
    serde_json::to_value(answer).map_err(|e| ServerError::Setting(format!("an answer that cannot be written: {e}")))
}

macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $name:ident -> $answer:ty, $changes:expr, $does:expr, $together:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Serialize, Deserialize)]
            pub struct $name;

            impl From<$name> for OperationCall {
                fn from($name: $name) -> OperationCall {
                    OperationCall::$name
                }
            }

            impl Operation for $name {
                type Answer = $answer;
            }
        )*

        /// Any operation.
        #[derive(Debug, Clone, Copy, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum OperationCall {
            $($name),*
        }

        impl OperationCall {
            /// True if it changes the server.
            #[must_use]
            pub fn changes(self) -> bool {
                match self {
                    $(OperationCall::$name => $changes),*
                }
            }

            /// Does it with a server of this machine.
            pub(crate) fn carry_out(self, session: &Session) -> Result<Value, ServerError> {
                match self {
                    $(OperationCall::$name => {
                        let does: fn(&Session) -> Result<$answer, ServerError> = $does;
                        written(&does(session)?)
                    }),*
                }
            }

            /// Makes one answer of those of several machines.
            pub(crate) fn together(self, each: Vec<Value>) -> Result<Value, ServerError> {
                match self {
                    $(OperationCall::$name => {
                        let each = each.into_iter().map(read).collect::<Result<Vec<$answer>, _>>()?;
                        let together: fn(Vec<$answer>) -> $answer = $together;
                        written(&together(each))
                    }),*
                }
            }
        }
    };
}

operations! {
    /// Returns the number of workers now.
    CountWorkers -> usize, false, |session| Ok(session.workers().len()), |each| each.into_iter().sum();
    /// Returns the sum of the PSS of master and workers in bytes; None if it cannot be read. Of several machines it is the
    /// largest: each has its own budget.
    RealMemory -> Option<u64>, false, |session| Ok(session.real_memory()),
        |each| each.into_iter().collect::<Option<Vec<u64>>>()?.into_iter().max();
    /// Lets the server finish the connections that wait to be accepted, some seconds at most. Returns whether none waits.
    Drain -> bool, false, |session| Ok(session.drain()), |each| each.into_iter().all(|drained| drained);
}
