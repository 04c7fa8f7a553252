//! Decides whether a server's certificate is trusted: by webpki, and more leniently in two ways if the user says so.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};

use crate::certificate::{Certificate, day};

/// The cryptography of all connections.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A client without a certificate, which trusts the servers that `judge` trusts.
///
/// # Errors
/// [`provider`] supports no version of TLS, because it was built without any.
pub fn client(judge: Arc<dyn ServerCertVerifier>) -> Result<ClientConfig, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(judge)
        .with_no_client_auth())
}

/// Trusts what the authorities have signed, and exactly the certificates that the user gave. `openssl req -x509` makes
/// a certificate marked as an authority, which webpki refuses as a server's. Name and dates are checked in either case.
#[derive(Debug, Clone)]
pub struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// `roots` are trusted authorities, `given` are certificates trusted themselves.
    ///
    /// # Errors
    /// There is nothing to trust.
    pub fn new(
        mut roots: RootCertStore,
        given: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Verifier, String> {
        for certificate in &given {
            roots.add(certificate.clone()).map_err(|e| format!("a certificate cannot be used: {}", why(&e)))?;
        }
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|_| "no certificate of an authority is known on this machine".to_string())?;
        Ok(Verifier { webpki, given })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.webpki.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // webpki checks the dates before it returns this error.
            Err(e) if is_authoritys(&e) && self.given.iter().any(|given| given == certificate) => {
                rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            Err(e) => Err(with_reason(e, certificate)),
            trusted => trusted,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Whether the certificate of an authority was presented as a server's.
fn is_authoritys(e: &rustls::Error) -> bool {
    // This is webpki's own error, which rustls does not name.
    matches!(e, rustls::Error::InvalidCertificate(CertificateError::Other(other)) if format!("{other:?}").contains("CaUsedAsEndEntity"))
}

/// Why a certificate is not trusted, if rustls alone cannot tell.
#[derive(Debug)]
struct DistrustReason {
    text: String,
    /// It would be trusted if the user gave it or its authority.
    can_be_given: bool,
}

impl fmt::Display for DistrustReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for DistrustReason {}

fn with_reason(e: rustls::Error, certificate: &CertificateDer<'_>) -> rustls::Error {
    let read = Certificate::read(certificate);
    let self_signed = read.as_ref().is_some_and(|c| c.self_signed);
    let (text, can_be_given) = match &e {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) if self_signed => {
            ("it is self-signed".to_string(), true)
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            ("its issuer is not an authority that this machine knows".into(), true)
        }
        _ if is_authoritys(&e) && self_signed => {
            ("it is self-signed, as the certificate of an authority (CA:TRUE)".into(), true)
        }
        _ if is_authoritys(&e) => ("it is the certificate of an authority (CA:TRUE), not of a server".into(), true),
        rustls::Error::InvalidCertificate(CertificateError::Other(_) | CertificateError::BadEncoding) => {
            match read.map(|c| c.version) {
                Some(version @ 1..=2) => {
                    (format!("it is of X.509 version {version}, which has no names to verify"), false)
                }
                _ => return e,
            }
        }
        _ => return e,
    };
    let reason = DistrustReason { text, can_be_given };
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(reason))))
}

/// Whether the server's certificate would be trusted if the user gave it or its authority.
#[must_use]
pub fn can_be_given(e: &rustls::Error) -> bool {
    match e {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
            other.0.downcast_ref::<DistrustReason>().is_some_and(|reason| reason.can_be_given)
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        _ => false,
    }
}

/// Describes a TLS error for a user; without advice, which depends on the caller's options.
#[must_use]
pub fn why(e: &rustls::Error) -> String {
    match e {
        rustls::Error::InvalidCertificate(of) => {
            format!("the server's certificate is not trusted: {}", why_not_trusted(of))
        }
        rustls::Error::AlertReceived(alert) => why_alert(*alert),
        rustls::Error::PeerIncompatible(_) => {
            format!("{e}; only TLS 1.2 and 1.3 are spoken here, with ephemeral keys (ECDHE) and AEAD ciphers")
        }
        rustls::Error::InvalidMessage(_) => "what came back is not TLS; does the port speak plain HTTP?".into(),
        other => other.to_string(),
    }
}

/// Why a certificate is not trusted, as the end of a sentence: "it expired on 2026-11-27".
#[must_use]
pub fn why_not(e: &rustls::Error) -> String {
    match e {
        rustls::Error::InvalidCertificate(of) => why_not_trusted(of),
        other => other.to_string(),
    }
}

/// Whether the server rejects the client certificate, or requires one. With TLS 1.3 this arrives after our side of the
/// handshake.
#[must_use]
pub fn is_about_client_certificate(e: &rustls::Error) -> bool {
    matches!(
        e,
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
        )
    )
}

fn why_not_trusted(e: &CertificateError) -> String {
    let at = |time: &UnixTime| day(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    match e {
        CertificateError::ExpiredContext { not_after, .. } => format!("it expired on {}", at(not_after)),
        CertificateError::Expired => "it has expired".into(),
        CertificateError::NotValidYetContext { not_before, .. } => format!("it is not valid before {}", at(not_before)),
        CertificateError::NotValidYet => "it is not valid yet".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().map(|name| plain_name(name)).collect();
            let has = match names.as_slice() {
                [] => "has no names (no subjectAltName)".into(),
                names => format!("is for {}", names.join(", ")),
            };
            format!("it {has}, not for {}", expected.to_str())
        }
        CertificateError::NotValidForName => "it is for another name".into(),
        CertificateError::UnknownIssuer => "its issuer is not an authority that this machine knows".into(),
        CertificateError::BadSignature => "its signature, or the handshake's, is wrong".into(),
        CertificateError::Revoked => "it was revoked".into(),
        CertificateError::InvalidPurposeContext { .. } | CertificateError::InvalidPurpose => {
            "it is not for servers (extendedKeyUsage)".into()
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its key or its signature is too weak or not known here (RSA below 2048 bits, SHA-1, MD5)".into()
        }
        CertificateError::Other(other) => other.0.to_string(),
        other => other.to_string(),
    }
}

/// Extracts the name from `DnsName("a.example")`, as rustls writes it.
fn plain_name(name: &str) -> String {
    name.split_once('"').and_then(|(_, rest)| rest.split_once('"')).map_or(name, |(name, _)| name).to_string()
}

fn why_alert(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CertificateRequired => "the server requires a client certificate",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied => "the server does not accept the client certificate",
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "the server found no version, cipher or certificate in common, or requires a client certificate"
        }
        AlertDescription::ProtocolVersion => "the server speaks none of the TLS versions offered (1.2 and 1.3)",
        AlertDescription::UnrecognisedName => "the server does not know this name (SNI)",
        AlertDescription::NoApplicationProtocol => "the server speaks none of the protocols offered (ALPN)",
        _ => "the server ended the handshake or the connection",
    };
    format!("{text} (TLS alert {alert:?})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_not_trusted_is_explained_by_what_is_wrong_with_it() {
        let of = |e: CertificateError| why(&rustls::Error::InvalidCertificate(e));
        let time = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expired = CertificateError::ExpiredContext { time: time(1_800_000_000), not_after: time(1_700_000_000) };
        assert_eq!(of(expired), "the server's certificate is not trusted: it expired on 2023-11-14");
        let expected = ServerName::try_from("shop.example").expect("a name");
        let other = CertificateError::NotValidForNameContext {
            expected,
            presented: vec!["DnsName(\"a.example\")".into(), "DnsName(\"*.b.example\")".into()],
        };
        assert_eq!(
            of(other),
            "the server's certificate is not trusted: it is for a.example, *.b.example, not for shop.example"
        );
    }

    fn judged(given: &[&[u8]], presented: &[u8], name: &str, at: &str) -> Result<(), String> {
        let der = |bytes: &[u8]| CertificateDer::from(bytes.to_vec());
        let given = given.iter().copied().map(der).collect();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(der(P256)).expect("an authority");
        let verifier = Verifier::new(roots, given, provider).expect("something to trust");
        let at = humantime::parse_rfc3339(at).expect("a time").duration_since(SystemTime::UNIX_EPOCH).expect("later");
        let name = ServerName::try_from(name).expect("a name");
        let verified = verifier.verify_server_cert(&der(presented), &[], &name, &[], UnixTime::since_unix_epoch(at));
        verified.map(|_| ()).map_err(|e| format!("{}{}", why_not(&e), if can_be_given(&e) { " (--ca)" } else { "" }))
    }

    /// Made by `openssl req -x509`: marked as authorities, for localhost.
    const OWN: &[u8] = include_bytes!("../tests/rsa-2048.der");
    const P256: &[u8] = include_bytes!("../tests/p256.der");
    const VERSION_1: &[u8] = include_bytes!("../tests/version-1-rsa-1024-sha1.der");
    const NOW: &str = "2030-01-01T00:00:00Z";

    #[test]
    fn a_certificate_that_was_given_is_trusted_with_its_name_and_dates() {
        assert_eq!(judged(&[OWN], OWN, "localhost", NOW), Ok(()));
        let other_name = judged(&[OWN], OWN, "shop.example", NOW).expect_err("another name");
        assert_eq!(other_name, "it is for localhost, not for shop.example");
        let late = judged(&[OWN], OWN, "localhost", "2199-01-01T00:00:00Z").expect_err("too late");
        assert!(late.starts_with("it expired on 2126-"), "{late}");
        let early = judged(&[OWN], OWN, "localhost", "2020-01-01T00:00:00Z").expect_err("too early");
        assert!(early.starts_with("it is not valid before 2026-"), "{early}");
    }

    #[test]
    fn a_certificate_that_nobody_knows_is_refused_with_what_it_is() {
        let unknown = judged(&[], OWN, "localhost", NOW).expect_err("nobody knows it");
        assert!(unknown.starts_with("it is self-signed") && unknown.ends_with("(--ca)"), "{unknown}");
        let old = judged(&[VERSION_1], VERSION_1, "localhost", "2021-01-01T12:00:00Z").expect_err("no names");
        assert_eq!(old, "it is of X.509 version 1, which has no names to verify");
    }

    #[test]
    fn an_alert_is_explained_by_what_the_server_wants() {
        let of = |alert| why(&rustls::Error::AlertReceived(alert));
        let wants = of(AlertDescription::CertificateRequired);
        assert_eq!(wants, "the server requires a client certificate (TLS alert CertificateRequired)");
    }
}
