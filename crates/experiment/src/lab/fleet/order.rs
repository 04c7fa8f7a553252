//! An agent's order: a plan and its share of it, as bytes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use lastdrop_load::share::Share;
use lastdrop_model::Plan;
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::{Load, ServerTimeFrom};
use lastdrop_model::request::{Body, PartContent};
use serde::{Deserialize, Serialize};

/// Version of the orders' format.
const VERSION: u32 = 1;

/// An agent's part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartOrder {
    version: u32,
    #[serde(with = "Plan")]
    pub plan: Plan,
    /// Weights of all agents.
    pub weights: Vec<u32>,
    /// Index of this agent in `weights`.
    pub member: usize,
}

impl PartOrder {
    #[must_use]
    pub fn new(plan: Plan, weights: Vec<u32>, member: usize) -> PartOrder {
        PartOrder { version: VERSION, plan, weights, member }
    }

    /// Serializes the order, including the passwords that the plan needs.
    ///
    /// # Errors
    /// When a file of the plan has a name that cannot be serialized.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|e| format!("the plan cannot be sent to agents: {e}"))
    }

    /// Reads the output of [`PartOrder::encode`] and checks that it is consistent.
    ///
    /// # Errors
    /// For any other input.
    pub fn decode(bytes: &[u8]) -> Result<PartOrder, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let wrong = |e: serde_json::Error| format!("the order cannot be read: {e}");
        let Version { version } = lastdrop_model::read_json(bytes).map_err(wrong)?;
        if version != VERSION {
            return Err(format!(
                "the order is of form {version}, this lastdrop knows form {VERSION}: use the same one"
            ));
        }
        let order: PartOrder = lastdrop_model::read_json(bytes).map_err(wrong)?;
        order.share()?;
        check(&order.plan, &order.weights)?;
        Ok(order)
    }

    /// Returns this agent's share of the run.
    ///
    /// # Errors
    /// For invalid weights.
    pub fn share(&self) -> Result<Share, String> {
        let shares = Share::by_weight(&self.weights).ok_or("the weights of the agents mean nothing")?;
        shares.into_iter().nth(self.member).ok_or_else(|| "the order is for no agent of the run".into())
    }
}

/// Checks that agents with these weights can carry out the plan.
///
/// # Errors
/// Why they cannot, and what to do instead.
pub fn check(plan: &Plan, weights: &[u32]) -> Result<(), String> {
    let no = |what: &str| Err(format!("{what} cannot go through a fleet yet: run it on one machine, without --fleet"));
    if plan.replay.as_ref().is_some_and(|r| r.tape.is_none()) {
        return no("a log that is not read before it is replayed");
    }
    if plan.server_time.as_ref().is_some_and(ServerTimeFrom::is_log) {
        return no("--server-time from a log");
    }
    if matches!(plan.http.version, Version::Http2 | Version::Auto) {
        return no("HTTP/2");
    }
    if plan.network.unix_socket.is_some() {
        return no("a Unix socket, which is a path of each machine's own,");
    }
    if !plan.network.sources.is_empty() {
        return no("--source, which is about addresses of one machine,");
    }
    if plan.abandon.run.is_some() {
        return no("a run that is given up after some failures");
    }
    let shares = Share::by_weight(weights).ok_or("the weights of the agents are no whole numbers with a small sum")?;
    for phase in &plan.phases {
        // Users and sessions are dealt out separately, so an agent without a user would still be dealt sessions.
        if let (Load::Closed { users, .. }, Some(_)) = (&phase.load, &plan.replay)
            && shares.iter().any(|s| s.count((*users).into()) == 0)
        {
            return Err(format!(
                "{users} users are too few for each of {} agents to have one: more users (-c), or fewer agents",
                weights.len()
            ));
        }
        let connections = match &phase.load {
            Load::Closed { connections, .. } => *connections,
            Load::Open { connections, .. } => Some(*connections),
        };
        let Some(n) = connections else { continue };
        if shares.iter().any(|s| s.count(n.into()) == 0) {
            return Err(format!(
                "{n} connections are too few for each of {} agents to have one: more --connections, or fewer agents",
                weights.len()
            ));
        }
    }
    Ok(())
}

/// Returns the files that a plan needs in a fixed order; in an order they are named by their numbers.
#[must_use]
pub fn files_of(plan: &Plan) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    files.extend(plan.data.iter().map(|d| d.file.clone()));
    files.extend(plan.replay.iter().filter_map(|r| r.tape.clone()));
    files.extend([&plan.tls.ca, &plan.tls.certificate, &plan.tls.key].into_iter().flatten().cloned());
    for request in &plan.requests {
        match &request.body {
            Body::File(path) => files.extend([path.clone()]),
            Body::Multipart(parts) => files.extend(parts.iter().filter_map(|p| match &p.content {
                PartContent::File(path) => Some(path.clone()),
                PartContent::Text(_) => None,
            })),
            Body::None | Body::Text(_) | Body::Form(_) => {}
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::request::{Auth, FormPart};

    fn plan() -> Plan {
        Plan::new("http://127.0.0.1:1/?token=abc".parse().expect("valid"), 7)
    }

    #[test]
    fn an_order_is_read_as_it_was_written_with_its_passwords() {
        let mut plan = plan();
        plan.requests[0].auth = Some(Auth::Basic { user: "me".into(), password: "pw".into() });
        let order = PartOrder::new(plan, vec![2, 1], 1);
        let back = PartOrder::decode(&order.encode().expect("bytes")).expect("reads");
        assert_eq!(back, order);
        assert_eq!(back.share().expect("a share").count(3), 1);
    }

    #[test]
    fn orders_that_mean_nothing_are_refused() {
        for (weights, member) in [(vec![1, 1], 2), (vec![], 0), (vec![0], 0)] {
            let bytes = PartOrder::new(plan(), weights, member).encode().expect("bytes");
            assert!(PartOrder::decode(&bytes).is_err());
        }
        let newer = PartOrder { version: 2, ..PartOrder::new(plan(), vec![1], 0) }.encode().expect("bytes");
        assert!(PartOrder::decode(&newer).expect_err("newer").contains("form 2"));
        assert!(PartOrder::decode(b"{}").is_err() && PartOrder::decode(b"\xff").is_err());
    }

    #[test]
    fn what_cannot_go_through_a_fleet_is_said() {
        let mut with_socket = plan();
        with_socket.network.unix_socket = Some("/run/x".into());
        assert!(check(&with_socket, &[1]).expect_err("a path").contains("Unix socket"));
        let mut few = plan();
        few.phases[0].load.limit_connections(2);
        assert!(check(&few, &[1, 1, 1]).expect_err("too few").contains("2 connections"));
        assert_eq!(check(&few, &[1, 1]), Ok(()));
    }

    #[test]
    fn every_file_of_a_plan_goes_along() {
        let mut plan = plan();
        plan.tls.ca = Some("ca".into());
        plan.requests[0].body = Body::File("body".into());
        plan.requests.push(plan.requests[0].clone());
        let part = |name: &str| FormPart::new("f", PartContent::File(name.into()));
        plan.requests[1].body = Body::Multipart(vec![part("b"), part("a")]);
        let names: Vec<_> = files_of(&plan).into_iter().map(|p| p.display().to_string()).collect();
        assert_eq!(names, ["a", "b", "body", "ca"]);
    }
}
