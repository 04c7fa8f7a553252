//! TLS without verification of the server.

use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use crate::verify::{client, provider};

/// Accepts any certificate of any version, key size and hash, as `curl -k` does. The handshake's signature is not
/// verified either. It would prove that the server has the certificate's key, which means nothing if any certificate is
/// accepted. *ring* also cannot verify signatures of weak keys (RSA below 2048 bits) or of P-521.
#[derive(Debug)]
pub struct AcceptAnyCertificate(Arc<CryptoProvider>);

/// Schemes offered after those of the provider: a server with nothing better would otherwise end the handshake.
const LAST_RESORTS: [SignatureScheme; 4] = [
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED448,
    SignatureScheme::RSA_PKCS1_SHA1,
    SignatureScheme::ECDSA_SHA1_Legacy,
];

impl AcceptAnyCertificate {
    #[must_use]
    pub fn new(provider: Arc<CryptoProvider>) -> AcceptAnyCertificate {
        AcceptAnyCertificate(provider)
    }
}

impl ServerCertVerifier for AcceptAnyCertificate {
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

/// A client that accepts any server: for requests without secrets to a server found by its process.
///
/// # Errors
/// The provider supports no known protocol version, because it was built without any.
pub(crate) fn unverified_client() -> Result<Arc<ClientConfig>, rustls::Error> {
    static CONFIG: LazyLock<Result<Arc<ClientConfig>, rustls::Error>> =
        LazyLock::new(|| client(Arc::new(AcceptAnyCertificate::new(provider()))).map(Arc::new));
    CONFIG.clone()
}
