//! `lastdrop.doctor/1`: what limits a server, what is wasted, what will bite.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NodeDifference, WorkersAdvice};
use crate::examination::Examination;

pub const DOCTOR_SCHEMA: &str = "lastdrop.doctor/1";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DoctorDocument {
    pub schema: String,
    pub url: String,
    /// The limit first, then wastes and risks by what they are worth.
    pub findings: Vec<Finding>,
    /// The one thing that bounds throughput now.
    pub limit: Option<String>,
    /// How many workers the pool furthest behind should have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_advice: Option<WorkersAdvice>,
    pub chain: Vec<Link>,
    /// In what nodes differ from the others of their kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<NodeDifference>,
    /// Causes that the evidence cannot tell apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cannot_tell: Vec<[String; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<Confirmation>,
    /// What is worth a word and no fault: answers of a rate limit, what was done otherwise than asked.
    pub notes: Vec<String>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
    /// Processors that looking took.
    pub cost_cores: f64,
    pub interrupted: bool,
    /// All that it rests on.
    pub examination: Examination,
}

/// A server of the chain: where it listens, where it connects to, and which of the others listens there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    pub server: String,
    pub kind: String,
    pub listens: Vec<String>,
    pub connects: Vec<String>,
    pub to: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Bounds throughput now.
    #[default]
    Limit,
    /// Costs without being the bound.
    Waste,
    /// Will bite.
    Risk,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub id: String,
    pub severity: Severity,
    /// 0 to 1.
    pub confidence: f64,
    pub title: String,
    /// What the server is called that it is about; empty: the machine, or ourselves.
    pub server: String,
    pub evidence: Vec<Evidence>,
    /// What would have contradicted it and did not.
    pub against: Vec<String>,
    pub fix: Vec<Fix>,
    /// What to do where no setting does it, and beside those that do.
    pub advice: String,
    /// What that should bring, by the model.
    #[serde(default, rename = "expected", alias = "expect", skip_serializing_if = "Option::is_none")]
    pub expect: Option<ExpectedGain>,
    /// How to see that it helped.
    pub check: String,
}

/// A number, and from where on it speaks for the finding.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub source: String,
    pub name: String,
    pub value: Value,
    pub threshold: Value,
}

impl Evidence {
    /// Is the number on the side of the finding? Others are there for whoever wants to see all of them.
    #[must_use]
    pub fn speaks(&self) -> bool {
        match (self.value.as_f64(), self.threshold.as_f64()) {
            (Some(value), Some(threshold)) => value >= threshold,
            (Some(value), None) => value > 0.0,
            _ => self.value != Value::String(String::new()),
        }
    }
}

/// A setting and what it should be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Fix {
    /// What the server is called whose setting it is.
    pub server: String,
    pub knob: String,
    pub from: Value,
    pub to: Value,
    pub needs: String,
    /// Where it stands now: a file and line, the server's default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
}

/// Throughput after the change, as a ratio to now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpectedGain {
    pub ratio: f64,
    /// Between what and what it should be, where the evidence bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    pub because: String,
}

/// What the proposed change brought when it was tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    pub id: String,
    pub ratio: f64,
    pub interval: [f64; 2],
    pub limit_after: Option<String>,
    pub kept: bool,
}

/// A change that brings less than this with 95 % confidence has not moved the limit.
const WORTH: f64 = 1.05;

impl Confirmation {
    /// Is it no limit, after all, whose change was tried? Without a ratio nobody knows.
    #[must_use]
    pub fn is_refuted(&self) -> bool {
        self.ratio > 0.0 && self.interval[1] < WORTH
    }
}
