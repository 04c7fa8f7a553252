//! What `knobs` says.

use serde::{Deserialize, Serialize};

use super::NodeDifference;
use crate::{ReloadClass, Setting};

pub const KNOBS_SCHEMA: &str = "lastdrop.knobs/1";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KnobsDocument {
    pub schema: String,
    pub knobs: Vec<KnobRow>,
    /// Nodes of a fleet whose settings are not those of the others of their kind.
    #[serde(default)]
    pub differs: Vec<NodeDifference>,
    pub notes: Vec<String>,
}

/// A setting of a server: what it is now, and what it could be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnobRow {
    /// As it is named on a command line.
    pub server: String,
    pub name: String,
    /// What a plan about several servers calls it, where there are several: NAME.SETTING.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub setting: String,
    /// None: it is not known what the running server has.
    pub value: Option<Setting>,
    /// Where the value is from: a file and line, the running server, the server's default.
    pub source: String,
    pub default: Setting,
    /// The smallest and the largest number, of those that are numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[i64; 2]>,
    /// The words that it may be, of those that are words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    pub needs: ReloadClass,
    /// What it does.
    pub effect: String,
    /// What it depends on.
    pub constraint: String,
    /// The setting and its values with which it does anything: `pm is dynamic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Does it do anything with the present settings?
    #[serde(default = "yes")]
    pub matters: bool,
    /// Ids of the findings that make it worth trying.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

fn yes() -> bool {
    true
}
