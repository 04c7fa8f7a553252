//! `lastdrop.doctor/1`: what limits a server, what it wastes, and what is a risk.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NodeDifference, WorkersAdvice};
use crate::examination::Examination;

pub const DOCTOR_SCHEMA: &str = "lastdrop.doctor/1";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DoctorDocument {
    pub schema: String,
    pub url: String,
    /// The limit first, then wastes and risks by their effect.
    pub findings: Vec<Finding>,
    /// The one finding that limits throughput now.
    pub limit: Option<String>,
    /// Advised number of workers for the last pool of the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_advice: Option<WorkersAdvice>,
    pub chain: Vec<Link>,
    /// Differences between nodes of the same kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<NodeDifference>,
    /// Pairs of causes that the evidence cannot tell apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cannot_tell: Vec<[String; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<Confirmation>,
    /// A cache that was tried for the pages of `cacheable-responses`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheTrial>,
    /// Information that is not a fault: rejections by a rate limit, deviations from what was asked for.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub unseen: Vec<String>,
    /// Processors that the examination used.
    pub cost_cores: f64,
    pub interrupted: bool,
    /// The data that the diagnosis rests on.
    pub examination: Examination,
}

impl DoctorDocument {
    /// Returns why a server without a finding of a limit cannot be said to have none. None: a limit was found, or the load that is asked
    /// about was put on and answered.
    #[must_use]
    pub fn undecided(&self) -> Option<String> {
        /// A larger share of failures is what a limit looks like, whether its cause was seen or not.
        const MOST_FAILED: f64 = 0.01;
        if self.limit.is_some() {
            return None;
        }
        if self.examination.has_lost_main() {
            return Some("an agent was lost while the load that is asked about was on".into());
        }
        let Some(main) = self.examination.main() else { return Some("nothing was measured".into()) };
        let (unanswered, all) = (main.unanswered(), main.unanswered() + main.answered);
        if unanswered as f64 > MOST_FAILED * all as f64 {
            return Some(format!(
                "{unanswered} of {all} requests were not answered, and nothing that was looked at shows why"
            ));
        }
        // A configured limit that turns clients away is no fault.
        let rejects = self.findings.iter().any(|f| f.id == "rate-limited");
        let errors = main.share_of_errors(rejects);
        (errors > MOST_FAILED).then(|| {
            format!("{:.0} % of the answers are errors (5xx), and nothing that was looked at shows why", errors * 100.0)
        })
    }
}

/// A server of the chain: the addresses that it listens on, those it connects to, and which server listens there.
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
    /// Limits throughput now.
    #[default]
    Limit,
    /// Costs resources but does not limit throughput.
    Waste,
    /// Will cause trouble later.
    Risk,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub id: String,
    pub severity: Severity,
    /// 0 to 1.
    pub confidence: f64,
    pub title: String,
    /// Name of the server that the finding is about; empty: the machine, or the generator.
    pub server: String,
    pub evidence: Vec<Evidence>,
    /// What was ruled out: observations that would have contradicted the finding.
    pub against: Vec<String>,
    pub fix: Vec<Fix>,
    /// What to do besides changing settings, or if no setting helps.
    pub advice: String,
    /// The gain that the model predicts for the fix.
    #[serde(default, rename = "expected", alias = "expect", skip_serializing_if = "Option::is_none")]
    pub expect: Option<ExpectedGain>,
    /// How to verify that it helped.
    pub check: String,
}

/// A number, and the threshold from which it supports the finding.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub source: String,
    pub name: String,
    pub value: Value,
    pub threshold: Value,
}

impl Evidence {
    /// Returns true if the number supports the finding. Numbers that do not are listed for completeness.
    #[must_use]
    pub fn speaks(&self) -> bool {
        match (self.value.as_f64(), self.threshold.as_f64()) {
            (Some(value), Some(threshold)) => value >= threshold,
            (Some(value), None) => value > 0.0,
            _ => self.value != Value::String(String::new()),
        }
    }
}

/// A setting, and the value that it should have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Fix {
    /// Name of the server that has the setting.
    pub server: String,
    pub knob: String,
    pub from: Value,
    pub to: Value,
    pub needs: String,
    /// Where its present value comes from: a file and line, or the server's default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
}

/// Predicted throughput after the change, as a ratio to now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpectedGain {
    pub ratio: f64,
    /// Bounds of the ratio, if the evidence gives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    #[serde(rename = "because")]
    pub reason: String,
}

/// Measured effect of the proposed change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    pub id: String,
    pub ratio: f64,
    pub interval: [f64; 2],
    pub limit_after: Option<String>,
    pub kept: bool,
}

/// A trial of a cache that only requests of lastdrop's knew.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheTrial {
    /// Name of the server in the chain.
    pub server: String,
    #[serde(default)]
    pub kind: String,
    /// Paths of the pages that the cache could answer, each with any query.
    pub pages: Vec<String>,
    pub lifetime_s: u64,
    /// Expected times of the throughput, and the measured ones. Not measured: 0.
    pub promised: f64,
    pub ratio: f64,
    pub interval: [f64; 2],
    /// Number of requests that were asked with and without the cache.
    pub compared: u64,
    /// The difference that ended the trial, with the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<String>,
    /// Lines of the configuration, for nginx in its http block, that make it a cache for all visitors.
    pub lines: Vec<String>,
    /// True if it is one now; `lastdrop restore` takes it away.
    #[serde(default)]
    pub kept: bool,
    /// The pages of one that is kept, as visitors ask for them: `www.example.com:80/index.php`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<String>,
}

/// A change whose gain is below this with 95 % confidence has not moved the limit.
const WORTH: f64 = 1.05;

impl Confirmation {
    /// Returns true if the trial showed that the finding is not the limit. Without a ratio that is unknown.
    #[must_use]
    pub fn is_refuted(&self) -> bool {
        self.ratio > 0.0 && self.interval[1] < WORTH
    }
}
