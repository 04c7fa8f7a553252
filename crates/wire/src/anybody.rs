//! TLS with a server that is not asked who it is.

use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use crate::verify::{client, provider};

/// Takes any certificate, as `curl -k` does: of any version, key size and hash. The handshake's signature is not verified
/// either. It would prove that the server has the certificate's key, which means nothing where any certificate is taken, and
/// *ring* cannot verify the signatures of weak keys (RSA below 2048 bits) or of P-521.
#[derive(Debug)]
pub struct Anybody(Arc<CryptoProvider>);

/// Offered after those of the provider: a server that has no better one would end the handshake.
const LAST_RESORTS: [SignatureScheme; 4] = [
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED448,
    SignatureScheme::RSA_PKCS1_SHA1,
    SignatureScheme::ECDSA_SHA1_Legacy,
];

impl Anybody {
    #[must_use]
    pub fn new(provider: Arc<CryptoProvider>) -> Anybody {
        Anybody(provider)
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.0.signature_verification_algorithms.supported_schemes();
        schemes.extend(LAST_RESORTS);
        schemes
    }
}

/// A client of whoever is there: for questions that hold no secret, to a server that was found by its process.
///
/// # Errors
/// When the provider has no protocol in common with what is known, which says that it was built without any.
pub(crate) fn anybodys_client() -> Result<Arc<ClientConfig>, rustls::Error> {
    static CONFIG: LazyLock<Result<Arc<ClientConfig>, rustls::Error>> =
        LazyLock::new(|| client(Arc::new(Anybody::new(provider()))).map(Arc::new));
    CONFIG.clone()
}
