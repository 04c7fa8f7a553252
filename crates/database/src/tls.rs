//! TLS to a database. A certificate that cannot be verified does not end the handshake: such a connection counts as one
//! without TLS. It is never trusted with a password.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lastdrop_files::input;
use lastdrop_model::TroubleKind;
use lastdrop_wire::{AcceptAnyCertificate, Verifier, pem, verify};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::access::TlsChoice;
use crate::failure::Failure;

/// The certificates of a PEM file.
///
/// # Errors
/// When it cannot be read, or has none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |what: String| format!("no certificates can be read from {}: {what}", path.display());
    pem::certificates(&input::read(path).map_err(|e| wrong(e.to_string()))?).map_err(wrong)
}

/// Returns the TLS session, and why the server's certificate is not trusted; None if it was verified against the host's
/// name.
pub(crate) fn handshake(
    host: &str,
    choice: &TlsChoice,
    socket: &mut (impl Read + Write),
) -> Result<(ClientConnection, Option<String>), Failure> {
    let failed =
        |what: String| Failure::new(TroubleKind::Other, format!("TLS: {what}; sslmode=disable asks without it"));
    let name = ServerName::try_from(host.to_string()).map_err(|_| failed(format!("'{host}' is no name of a host")))?;
    let given = choice.ca.as_deref().map(certificates).transpose();
    let given = given.map_err(|what| Failure::new(TroubleKind::Other, what))?;
    let verifier = Verifier::new(system_roots(), given.unwrap_or_default(), verify::provider());
    let recorder = Arc::new(RecordingVerifier {
        verifier: verifier.as_ref().ok().cloned(),
        anybody: AcceptAnyCertificate::new(verify::provider()),
        distrust: Mutex::new(Some(verifier.err().unwrap_or_else(|| "it was not shown".into()))),
    });
    let config =
        verify::client(Arc::clone(&recorder) as Arc<dyn ServerCertVerifier>).map_err(|e| failed(e.to_string()))?;
    let mut session = ClientConnection::new(Arc::new(config), name).map_err(|e| failed(e.to_string()))?;
    while session.is_handshaking() {
        match session.complete_io(socket) {
            Ok((0, 0)) => return Err(Failure::io(&std::io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(e) => {
                let of_tls = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
                return Err(of_tls.map_or_else(|| Failure::io(&e), |e| failed(verify::why(e))));
            }
        }
    }
    let distrust = recorder.distrust.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok((session, distrust))
}

/// The system's root certificates, read once.
fn system_roots() -> RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    };
    ROOTS.get_or_init(read).clone()
}

/// A verifier that accepts any certificate and records what is wrong with it.
#[derive(Debug)]
struct RecordingVerifier {
    verifier: Option<Verifier>,
    anybody: AcceptAnyCertificate,
    distrust: Mutex<Option<String>>,
}

impl RecordingVerifier {
    fn note(&self, distrust: Option<String>) {
        *self.distrust.lock().unwrap_or_else(PoisonError::into_inner) = distrust;
    }

    /// Returns the verifier of the handshake's signature. The signature is checked only if the certificate is trusted.
    fn signatures(&self) -> &dyn ServerCertVerifier {
        let trusted = self.distrust.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        match &self.verifier {
            Some(verifier) if trusted => verifier,
            _ => &self.anybody,
        }
    }
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(verifier) = &self.verifier {
            let verified = verifier.verify_server_cert(certificate, intermediates, name, ocsp, now);
            self.note(verified.err().map(|e| verify::why_not(&e)));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signatures().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signatures().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.anybody.supported_verify_schemes()
    }
}
