//! Whether a server's certificate is trusted: as webpki has it, and two ways more lenient where a user has said so.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use crate::certificate::{Certificate, day};

/// Trusts what the authorities have signed, and the very certificates that the user has given: `openssl req -x509` makes one
/// that says it is an authority, which webpki then refuses as a server's. Name and dates are checked in either case.
#[derive(Debug, Clone)]
pub struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// `roots` are trusted authorities, `given` the certificates that are trusted themselves.
    ///
    /// # Errors
    /// When there is nothing to trust.
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
            // webpki has looked at its dates before it found this.
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

/// The certificate of an authority was presented as a server's.
fn is_authoritys(e: &rustls::Error) -> bool {
    // webpki's own error: rustls has no name for it.
    matches!(e, rustls::Error::InvalidCertificate(CertificateError::Other(other)) if format!("{other:?}").contains("CaUsedAsEndEntity"))
}

/// The reason why a certificate is not trusted, where rustls alone cannot know it.
#[derive(Debug)]
struct Reason(String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Reason {}

fn with_reason(e: rustls::Error, certificate: &CertificateDer<'_>) -> rustls::Error {
    let read = Certificate::read(certificate);
    let reason = match &e {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => if read.is_some_and(|c| c.self_signed) {
            "it is self-signed"
        } else {
            "its issuer is not an authority that this machine knows"
        }
        .to_string(),
        _ if is_authoritys(&e) => {
            let by_itself =
                if read.is_some_and(|c| c.self_signed) { "it is self-signed" } else { "it is not a server's" };
            format!("{by_itself}, the certificate of an authority (CA:TRUE)")
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(_) | CertificateError::BadEncoding) => {
            match read.map(|c| c.version) {
                Some(version @ 1..=2) => format!("it is of X.509 version {version}, which has no names to verify"),
                _ => return e,
            }
        }
        _ => return e,
    };
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Reason(reason)))))
}

/// What went wrong with TLS, in words for a user; without advice, which depends on the options of who asks.
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

/// Is it about the server's certificate?
#[must_use]
pub fn is_distrust(e: &rustls::Error) -> bool {
    matches!(e, rustls::Error::InvalidCertificate(_))
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

/// `DnsName("a.example")` as rustls writes a name.
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
            "the server found no version, cipher or certificate in common"
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

    #[test]
    fn an_alert_is_explained_by_what_the_server_wants() {
        let of = |alert| why(&rustls::Error::AlertReceived(alert));
        let wants = of(AlertDescription::CertificateRequired);
        assert_eq!(wants, "the server requires a client certificate (TLS alert CertificateRequired)");
    }
}
