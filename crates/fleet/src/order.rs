//! Orders: what a coordinator tells an agent to do, signed.
//!
//! ```text
//! "LDO1" · length of the head, 4 bytes, big-endian · head (JSON) · Ed25519 signature, 64 bytes · payload
//! ```
//!
//! The signature covers the head as sent, with a prefix that no other use of the key has; the head contains
//! the payload's SHA-256. An order is valid for one agent and one of its folders, until a time on that
//! agent's clock. Its sequence number is higher than that of any order the agent has taken. So a recorded
//! order is useless to an attacker.

use serde::{Deserialize, Serialize};

use crate::roster::Refusals;
use crate::tokens::{AgentToken, SigningKey, hex, sha256};

const MAGIC: &[u8; 4] = b"LDO1";
const CONTEXT: &[u8] = b"lastdrop fleet order 1\0";
/// A head has names and digests of files; this is enough for about a hundred thousand files.
const HEAD_BYTES: usize = 8 << 20;

/// The signed head of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SignedOrder {
    pub run: String,
    pub agent: String,
    /// Identifies the agent's folder (`Agent::instance`).
    pub instance: String,
    /// The coordinator's version of lastdrop.
    pub version: String,
    pub sequence: u64,
    /// Microseconds since 1970 by the agent's clock.
    pub expires_us: i64,
    pub what: OrderKind,
    pub payload_sha256: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKind {
    /// Prepare a run. The payload is for the engine. It follows the signature, or is among the files if it
    /// does not fit into a message.
    Prepare { payload: Option<StoredFile>, files: Vec<StoredFile> },
    /// Begin the prepared run.
    Go {
        /// By the agent's clock.
        at_us: i64,
        /// The same moment by the coordinator's clock.
        coordinator_us: i64,
        error_us: u64,
    },
    /// Stop the run in an orderly way, or discard its preparation.
    Stop { why: String },
    /// A question of the conversation named by `run`; the payload holds it. Questions are numbered from 1; a
    /// repeated question keeps its number.
    Ask { number: u64 },
    /// Keep-alive: the questioner is still there.
    Still,
    /// The conversation is over.
    Leave,
}

/// A file in the broker's store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredFile {
    pub name: String,
    pub sha256: String,
    pub bytes: u64,
}

/// What an agent needs to check an order.
#[derive(Debug)]
pub struct OrderVerifier<'a> {
    pub token: &'a AgentToken,
    pub agent: &'a str,
    pub instance: &'a str,
    pub version: &'a str,
    /// The highest sequence number taken so far; each conversation has its own count.
    pub last: u64,
    /// Microseconds since 1970 by the agent's clock.
    pub now_us: i64,
}

/// The reason why an order is refused. `Refusals` counts them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    #[error("this is no order")]
    Malformed,
    #[error("the signature is not that of the token's holder")]
    Forged,
    #[error("the order is for {0}")]
    Misdirected(String),
    #[error(
        "an order of sequence {sequence} after one of {last}: it was sent again, or two coordinators give orders at once"
    )]
    Replayed { sequence: u64, last: u64 },
    #[error("the order expired {ago_us} µs ago by the agent's clock")]
    Expired { ago_us: i64 },
    #[error("the coordinator is lastdrop {theirs}, the agent {ours}: use the same version on all machines")]
    OtherVersion { theirs: String, ours: String },
    #[error("{0} does not have the digest that was signed")]
    Damaged(String),
    #[error("the agent is at run {0}")]
    Busy(String),
    #[error("{0}")]
    Declined(String),
}

impl Refusals {
    pub(crate) fn count(&mut self, refusal: &Refusal) {
        *match refusal {
            Refusal::Malformed => &mut self.malformed,
            Refusal::Forged => &mut self.forged,
            Refusal::Misdirected(_) => &mut self.misdirected,
            Refusal::Replayed { .. } => &mut self.replayed,
            Refusal::Expired { .. } => &mut self.expired,
            Refusal::OtherVersion { .. } => &mut self.other_version,
            Refusal::Damaged(_) => &mut self.damaged,
            Refusal::Busy(_) => &mut self.busy,
            Refusal::Declined(_) => &mut self.declined,
        } += 1;
    }

    /// Returns the sum of all refusals.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Refusals { malformed, forged, misdirected, replayed, expired, other_version, damaged, busy, declined } =
            self;
        malformed + forged + misdirected + replayed + expired + other_version + damaged + busy + declined
    }
}

impl SignedOrder {
    /// Signs the order and returns the message. Sets `payload_sha256`.
    #[must_use]
    pub fn seal(mut self, payload: &[u8], key: &SigningKey) -> Vec<u8> {
        self.payload_sha256 = hex(&sha256(payload));
        let head = serde_json::to_vec(&self).expect("text, numbers and lists are JSON");
        let mut message = Vec::with_capacity(72 + head.len() + payload.len());
        message.extend_from_slice(MAGIC);
        message.extend_from_slice(&(head.len() as u32).to_be_bytes());
        message.extend_from_slice(&head);
        message.extend_from_slice(&key.sign(&[CONTEXT, &head].concat()));
        message.extend_from_slice(payload);
        message
    }

    /// Checks a message; returns the order and its payload.
    ///
    /// # Errors
    /// The reason for a refusal. The signature is checked first, so that others learn nothing.
    pub fn open<'m>(message: &'m [u8], reader: &OrderVerifier<'_>) -> Result<(SignedOrder, &'m [u8]), Refusal> {
        let (head, signature, payload) = split(message).ok_or(Refusal::Malformed)?;
        if !reader.token.has_signed(&[CONTEXT, head].concat(), signature) {
            return Err(Refusal::Forged);
        }
        let version = serde_json::from_slice::<VersionField>(head).map_err(|_| Refusal::Malformed)?.version;
        if version != reader.version {
            return Err(Refusal::OtherVersion { theirs: version, ours: reader.version.to_owned() });
        }
        let order: SignedOrder = serde_json::from_slice(head).map_err(|_| Refusal::Malformed)?;
        if order.agent != reader.agent {
            return Err(Refusal::Misdirected(format!("agent {}", order.agent)));
        }
        if order.instance != reader.instance {
            return Err(Refusal::Misdirected(format!("another folder of agent {}", order.agent)));
        }
        if order.sequence <= reader.last {
            return Err(Refusal::Replayed { sequence: order.sequence, last: reader.last });
        }
        if order.expires_us < reader.now_us {
            return Err(Refusal::Expired { ago_us: reader.now_us.saturating_sub(order.expires_us) });
        }
        if hex(&sha256(payload)) != order.payload_sha256 {
            return Err(Refusal::Damaged("the payload".into()));
        }
        if !crate::subjects::is_name(&order.run) {
            return Err(Refusal::Malformed);
        }
        Ok((order, payload))
    }
}

/// The only field that is read before the versions are compared.
#[derive(Deserialize)]
struct VersionField {
    version: String,
}

fn split(message: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let rest = message.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > HEAD_BYTES {
        return None;
    }
    let (head, rest) = rest.split_at_checked(length)?;
    let (signature, payload) = rest.split_at_checked(64)?;
    Some((head, signature, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Token;

    fn order() -> SignedOrder {
        SignedOrder {
            run: "r1".into(),
            agent: "a".into(),
            instance: "i".into(),
            version: "1".into(),
            sequence: 8,
            expires_us: 1_000,
            what: OrderKind::Stop { why: "enough".into() },
            payload_sha256: String::new(),
        }
    }

    fn opened(message: &[u8], token: &AgentToken) -> Result<(SignedOrder, Vec<u8>), Refusal> {
        let reader = OrderVerifier { token, agent: "a", instance: "i", version: "1", last: 7, now_us: 1_000 };
        SignedOrder::open(message, &reader).map(|(order, payload)| (order, payload.to_vec()))
    }

    #[test]
    fn an_order_is_taken_as_it_was_signed() {
        let token = Token::new(b"certificate").expect("random");
        let message = order().seal(b"payload", &token.signing_key());
        let (read, payload) = opened(&message, &token.agent_token()).expect("its own");
        assert_eq!((read.run.as_str(), read.what, payload.as_slice()), ("r1", order().what, b"payload".as_slice()));
    }

    #[test]
    fn an_order_changed_in_any_byte_is_refused() {
        let token = Token::new(b"certificate").expect("random");
        let message = order().seal(b"payload", &token.signing_key());
        for at in 0..message.len() {
            let mut changed = message.clone();
            changed[at] ^= 1;
            let refusal = opened(&changed, &token.agent_token()).expect_err("it was changed");
            assert!(matches!(refusal, Refusal::Forged | Refusal::Malformed | Refusal::Damaged(_)), "{at}: {refusal}");
        }
        for cut in 0..message.len() {
            assert!(opened(&message[..cut], &token.agent_token()).is_err());
        }
    }

    #[test]
    fn an_order_of_another_time_agent_or_version_is_refused_by_name() {
        let token = Token::new(b"certificate").expect("random");
        let refusal = |change: fn(&mut SignedOrder)| {
            let mut order = order();
            change(&mut order);
            opened(&order.seal(b"", &token.signing_key()), &token.agent_token()).expect_err("it is not for us")
        };
        assert_eq!(refusal(|o| o.sequence = 7), Refusal::Replayed { sequence: 7, last: 7 });
        assert_eq!(refusal(|o| o.expires_us = 999), Refusal::Expired { ago_us: 1 });
        assert_eq!(refusal(|o| o.agent = "b".into()), Refusal::Misdirected("agent b".into()));
        assert!(matches!(refusal(|o| o.instance = "j".into()), Refusal::Misdirected(_)));
        assert!(matches!(refusal(|o| o.version = "2".into()), Refusal::OtherVersion { .. }));
        assert_eq!(refusal(|o| o.run = "../r".into()), Refusal::Malformed);
        let other = Token::new(b"certificate").expect("random");
        assert_eq!(opened(&order().seal(b"", &other.signing_key()), &token.agent_token()), Err(Refusal::Forged));
    }
}
