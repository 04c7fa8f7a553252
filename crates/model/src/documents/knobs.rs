//! `lastdrop.knobs/1`: the document of the command `knobs`.

use serde::{Deserialize, Serialize};

use super::NodeDifference;
use crate::{ReloadClass, Setting};

pub const KNOBS_SCHEMA: &str = "lastdrop.knobs/1";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KnobsDocument {
    pub schema: String,
    pub knobs: Vec<KnobRow>,
    /// Nodes of a fleet whose settings differ from those of other nodes of their kind.
    #[serde(default)]
    pub differs: Vec<NodeDifference>,
    pub notes: Vec<String>,
}

/// A setting of a server: its value, and the values it could have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnobRow {
    /// Name of the server on a command line.
    pub server: String,
    pub name: String,
    /// With several servers: the setting's name in a plan, NAME.SETTING.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub setting: String,
    /// The running server's value; `None` if unknown.
    pub value: Option<Setting>,
    /// Source of the value: a file and line, the running server, or the server's default.
    pub source: String,
    pub default: Setting,
    /// The smallest and the largest value, for a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[i64; 2]>,
    /// The allowed words, for a word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    pub needs: ReloadClass,
    /// Its effect.
    pub effect: String,
    /// What it depends on.
    pub constraint: String,
    /// The setting and its values with which this one has an effect: `pm is dynamic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// True if it has an effect with the present settings.
    #[serde(default = "yes")]
    pub matters: bool,
    /// Ids of the findings that make it worth trying.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

fn yes() -> bool {
    true
}
