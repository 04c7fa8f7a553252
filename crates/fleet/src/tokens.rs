//! The two tokens of a fleet, and the keys derived from them.
//!
//! ```text
//! token       = ldt1. base64url( secret, 32 bytes · SHA-256 of the broker's certificate, 32 bytes )
//! agent-token = lda1. base64url( agents' password, 32 bytes · Ed25519 public key, 32 bytes · the same SHA-256 )
//! ```
//!
//! HKDF with SHA-256 derives three values from the secret: the coordinator's password at the broker, the
//! agents' password, and the seed of the Ed25519 key that signs orders. So the `agent-token` follows from
//! `token`, but never the other way round. Both contain the certificate's digest, which clients compare,
//! since no authority signs a certificate made by lastdrop.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use ring::{digest, hkdf};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

const TOKEN: &str = "ldt1.";
const AGENT_TOKEN: &str = "lda1.";

/// The token that controls the fleet: its holder can start runs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: [u8; 32],
    certificate: Digest,
}

/// The token that only lets agents join.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentToken {
    password: [u8; 32],
    public_key: [u8; 32],
    certificate: Digest,
}

/// The text is not a valid token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("this is the agent-token: it only lets agents join; starting runs takes the token ({TOKEN}…)")]
    OnlyAgents,
    #[error("this is no token of a fleet: `lastdrop fleet up` prints them ({TOKEN}… and {AGENT_TOKEN}…)")]
    NoToken,
    #[error("the token is damaged or cut short: copy it whole, as `lastdrop fleet up` prints it")]
    Damaged,
}

/// Returns random bytes from the system.
///
/// # Errors
/// If the system provides none.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| std::io::Error::other("the system gives no random numbers"))?;
    Ok(bytes)
}

/// Computes SHA-256.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Digest {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// Formats bytes as lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Token {
    /// Creates a token for a broker with this certificate (DER).
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub fn new(certificate: &[u8]) -> std::io::Result<Token> {
        Ok(Token { secret: random()?, certificate: sha256(certificate) })
    }

    /// Like [`Token::new`], for the first certificate of a PEM file.
    ///
    /// # Errors
    /// If the file has no certificate, or as for [`Token::new`].
    pub fn of_pem(certificate: &[u8]) -> std::io::Result<Token> {
        Token::new(&first_of_pem(certificate)?)
    }

    /// Returns whether the token belongs to a broker with the first certificate of this PEM file.
    ///
    /// # Errors
    /// If the file has no certificate.
    pub fn is_for_pem(&self, certificate: &[u8]) -> std::io::Result<bool> {
        Ok(sha256(&first_of_pem(certificate)?) == self.certificate)
    }

    /// # Errors
    /// If the text is anything else, for example an agent-token.
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        if text.starts_with(AGENT_TOKEN) {
            return Err(TokenError::OnlyAgents);
        }
        let [secret, certificate] = parts(text.strip_prefix(TOKEN).ok_or(TokenError::NoToken)?)?;
        Ok(Token { secret, certificate })
    }

    /// Returns the token for agents.
    #[must_use]
    pub fn agent_token(&self) -> AgentToken {
        AgentToken {
            password: self.derived(b"agents' password"),
            public_key: self.signing_key().public_key(),
            certificate: self.certificate,
        }
    }

    /// Returns the coordinator's password at the broker.
    pub(crate) fn password(&self) -> String {
        hex(&self.derived(b"coordinator's password"))
    }

    #[must_use]
    pub fn signing_key(&self) -> SigningKey {
        SigningKey(self.derived(b"signing key"))
    }

    #[must_use]
    pub fn certificate(&self) -> &Digest {
        &self.certificate
    }

    fn derived(&self, what: &[u8]) -> [u8; 32] {
        derived(&self.secret, what)
    }
}

fn first_of_pem(text: &[u8]) -> std::io::Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(text).map_err(|_| std::io::Error::other("there is no certificate in it (PEM)"))
}

fn derived(secret: &[u8; 32], what: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    hkdf::Salt::new(hkdf::HKDF_SHA256, b"lastdrop fleet 1")
        .extract(secret)
        .expand(&[what], hkdf::HKDF_SHA256)
        .and_then(|key| key.fill(&mut out))
        .expect("HKDF gives 32 bytes, the length of its hash");
    out
}

impl AgentToken {
    /// Parses an agent-token, or derives it from a token, of which only the agent's part is kept.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<AgentToken, TokenError> {
        let text = text.trim();
        if text.starts_with(TOKEN) {
            return Token::parse(text).map(|t| t.agent_token());
        }
        let [password, public_key, certificate] = parts(text.strip_prefix(AGENT_TOKEN).ok_or(TokenError::NoToken)?)?;
        Ok(AgentToken { password, public_key, certificate })
    }

    pub(crate) fn password(&self) -> String {
        hex(&self.password)
    }

    /// Returns an agent's password at a broker that the user runs, which admits nobody by itself. Any holder
    /// of the agent-token can derive every agent's password.
    pub(crate) fn password_of(&self, agent: &str) -> String {
        hex(&derived(&self.password, format!("password of agent {agent}").as_bytes()))
    }

    #[must_use]
    pub fn certificate(&self) -> &Digest {
        &self.certificate
    }

    /// Returns whether the holder of the token signed this message.
    #[must_use]
    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.public_key).verify(message, signature).is_ok()
    }
}

/// The key that signs orders.
pub struct SigningKey([u8; 32]);

impl SigningKey {
    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.0).expect("32 bytes are a seed of Ed25519, whatever they are")
    }

    fn public_key(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(self.pair().public_key().as_ref());
        out
    }

    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut out = [0; 64];
        out.copy_from_slice(self.pair().sign(message).as_ref());
        out
    }
}

/// Decodes the token's text into parts of 32 bytes.
fn parts<const N: usize>(text: &str) -> Result<[[u8; 32]; N], TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Damaged)?;
    if bytes.len() != 32 * N {
        return Err(TokenError::Damaged);
    }
    let mut out = [[0; 32]; N];
    for (part, bytes) in out.iter_mut().zip(bytes.chunks_exact(32)) {
        part.copy_from_slice(bytes);
    }
    Ok(out)
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TOKEN}{}", URL_SAFE_NO_PAD.encode([self.secret, self.certificate].concat()))
    }
}

impl fmt::Display for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [self.password, self.public_key, self.certificate].concat();
        write!(f, "{AGENT_TOKEN}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

// Secrets must not appear in logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentToken(…)")
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_and_only_the_token_makes_the_other() {
        let token = Token::new(b"certificate").expect("random");
        assert_eq!(Token::parse(&format!(" {token}\n")), Ok(token.clone()));
        let agents = token.agent_token();
        assert_eq!(AgentToken::parse(&agents.to_string()), Ok(agents.clone()));
        assert_eq!(AgentToken::parse(&token.to_string()), Ok(agents.clone()));
        assert_eq!(Token::parse(&agents.to_string()), Err(TokenError::OnlyAgents));
        assert_ne!(token.password(), agents.password());
    }

    #[test]
    fn a_token_cut_short_or_of_something_else_is_refused() {
        let text = Token::new(b"certificate").expect("random").to_string();
        assert_eq!(Token::parse(&text[..text.len() - 1]), Err(TokenError::Damaged));
        assert_eq!(Token::parse(&format!("{text}!")), Err(TokenError::Damaged));
        assert_eq!(Token::parse("secret"), Err(TokenError::NoToken));
        assert_eq!(AgentToken::parse(""), Err(TokenError::NoToken));
    }

    #[test]
    fn only_the_tokens_holder_can_sign() {
        let token = Token::new(b"certificate").expect("random");
        let other = Token::new(b"certificate").expect("random");
        let signature = token.signing_key().sign(b"go");
        assert!(token.agent_token().has_signed(b"go", &signature));
        assert!(!token.agent_token().has_signed(b"no", &signature));
        assert!(!other.agent_token().has_signed(b"go", &signature));
        assert!(!token.agent_token().has_signed(b"go", &signature[..63]));
    }
}
