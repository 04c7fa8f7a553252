//! Which stored plans can be run again: those that are complete.

use std::fmt;

use crate::KeptPlan;
use crate::plan::{Plan, ServerTimeFrom};
use crate::request::{Body, PartContent};
use crate::secrets::MARK;

/// Why a stored plan cannot be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRepeatable {
    /// Its passwords, tokens, forms or bodies are replaced by marks.
    Secrets,
    /// It reads files, which may have changed.
    Files,
    /// It replayed a log, which the plan does not contain.
    Replay,
}

impl fmt::Display for NotRepeatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotRepeatable::Secrets => "its passwords, forms or bodies were not kept (--keep-secrets keeps them)",
            NotRepeatable::Files => "it needs files, which may not be what they were",
            NotRepeatable::Replay => "it played a log, which is not in its plan",
        })
    }
}

impl std::error::Error for NotRepeatable {}

impl KeptPlan {
    /// Returns the plan as it was run. The stored plan must include its requests.
    ///
    /// # Errors
    /// When the stored plan is not complete.
    pub fn repeatable(&self) -> Result<Plan, NotRepeatable> {
        if self.replay.is_some() {
            return Err(NotRepeatable::Replay);
        }
        if reads_files(self) {
            return Err(NotRepeatable::Files);
        }
        // This also refuses a plan in which the user's own text contains the mark.
        let text = serde_json::to_string(self).unwrap_or_else(|_| MARK.into());
        if !self.keep_secrets && text.contains(MARK) {
            return Err(NotRepeatable::Secrets);
        }
        Ok(Plan::clone(self))
    }
}

fn reads_files(plan: &Plan) -> bool {
    let tls = &plan.tls;
    plan.data.is_some()
        || plan.network.unix_socket.is_some()
        || [&tls.ca, &tls.certificate, &tls.key].iter().any(|file| file.is_some())
        || matches!(plan.server_time, Some(ServerTimeFrom::Log { .. }))
        || plan.requests.iter().any(|request| match &request.body {
            Body::File(_) => true,
            Body::Multipart(parts) => parts.iter().any(|part| matches!(part.content, PartContent::File(_))),
            Body::None | Body::Text(_) | Body::Form(_) => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{DataSource, FormPart, RowScope};

    fn plan() -> Plan {
        Plan::new("http://127.0.0.1/a?b=c".parse().expect("valid"), 7)
    }

    #[test]
    fn a_plan_that_is_whole_is_what_it_was() {
        let kept = KeptPlan::from(plan());
        let read: KeptPlan = crate::read_json(&serde_json::to_string(&kept).expect("JSON")).expect("reads");
        assert_eq!(read.repeatable(), Ok(plan()));
    }

    #[test]
    fn a_plan_that_lacks_something_says_what() {
        let with = |change: fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            KeptPlan::from(plan).repeatable().expect_err("not whole")
        };
        assert_eq!(with(|p| p.requests[0].headers.push(("Cookie".into(), "a=b".into()))), NotRepeatable::Secrets);
        assert_eq!(with(|p| p.requests[0].body = Body::Text("{}".into())), NotRepeatable::Secrets);
        assert_eq!(with(|p| p.requests[0].body = Body::File("f".into())), NotRepeatable::Files);
        let part = |p: &mut Plan| {
            p.requests[0].body = Body::Multipart(vec![FormPart::new("a", PartContent::File("f".into()))]);
        };
        assert_eq!(with(part), NotRepeatable::Files);
        assert_eq!(with(|p| p.tls.ca = Some("ca.pem".into())), NotRepeatable::Files);
        assert_eq!(with(|p| p.network.unix_socket = Some("s".into())), NotRepeatable::Files);
        assert_eq!(
            with(|p| p.data = Some(DataSource { file: "d".into(), per: RowScope::User, random: false })),
            NotRepeatable::Files
        );
        let log = |p: &mut Plan| p.server_time = Some(ServerTimeFrom::Log { file: "l".into(), format: None });
        assert_eq!(with(log), NotRepeatable::Files);
        let kept = |p: &mut Plan| {
            p.keep_secrets = true;
            p.requests[0].body = Body::Text("***".into());
        };
        let mut plan = plan();
        kept(&mut plan);
        assert!(KeptPlan::from(plan).repeatable().is_ok(), "what was kept is there");
    }
}
