//! Reads an X.509 certificate's version, dates, key and issuer, enough to report its weaknesses. Nothing is verified
//! here, and certificates that a verifier refuses to parse (version 1) are read too. This is our own reader of eighty
//! lines, because the crates that parse whole certificates add ten more to the build.

use std::time::SystemTime;

/// <https://www.rfc-editor.org/rfc/rfc5280#section-4.1>
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub version: u8,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    /// Issuer and subject are the same.
    pub self_signed: bool,
    pub key: PublicKey,
    hash: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublicKey {
    Rsa { bits: usize },
    Curve { bits: usize },
    Other,
}

impl PublicKey {
    /// The size of an RSA modulus or of the field of a curve; 0 for other keys.
    #[must_use]
    pub fn bits(self) -> usize {
        match self {
            PublicKey::Rsa { bits } | PublicKey::Curve { bits } => bits,
            PublicKey::Other => 0,
        }
    }
}

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];
const CURVE: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// Named curves with their sizes: P-256, P-384, P-521.
const CURVES: [(&[u8], usize); 3] = [
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], 256),
    (&[0x2b, 0x81, 0x04, 0x00, 0x22], 384),
    (&[0x2b, 0x81, 0x04, 0x00, 0x23], 521),
];
/// Signatures by hashes for which collisions are known.
const BROKEN: [(&[u8], &str); 3] = [
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04], "MD5"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], "SHA-1"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01], "SHA-1"),
];

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

impl Certificate {
    /// Reads a certificate; `None` if it is not one in DER.
    #[must_use]
    pub fn read(der: &[u8]) -> Option<Certificate> {
        let mut tbs = Der(Der(Der(der).value(SEQUENCE)?).value(SEQUENCE)?);
        let version = match tbs.0.first() {
            Some(&VERSION) => Der(tbs.value(VERSION)?).value(INTEGER)?.last()?.checked_add(1)?,
            _ => 1,
        };
        tbs.value(INTEGER)?;
        let signature = Der(tbs.value(SEQUENCE)?).value(OID)?;
        let issuer = tbs.value(SEQUENCE)?;
        let mut validity = Der(tbs.value(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let self_signed = tbs.value(SEQUENCE)? == issuer;
        let key = public_key(Der(tbs.value(SEQUENCE)?))?;
        let hash = BROKEN.iter().find(|(oid, _)| *oid == signature).map(|(_, hash)| *hash);
        Some(Certificate { version, not_before, not_after, self_signed, key, hash })
    }

    /// Lists what a careful client would object to, in words that follow "it".
    #[must_use]
    pub fn weaknesses(&self, now: SystemTime) -> Vec<String> {
        let mut weak = Vec::new();
        if self.version != 3 {
            weak.push(format!("is an X.509 version {} certificate", self.version));
        }
        if let PublicKey::Rsa { bits: bits @ ..2048 } = self.key {
            weak.push(format!("has an RSA key of {bits} bits"));
        }
        if let Some(hash) = self.hash {
            weak.push(format!("is signed with {hash}"));
        }
        if now > self.not_after {
            weak.push(format!("expired on {}", day(self.not_after)));
        }
        if now < self.not_before {
            weak.push(format!("is not valid before {}", day(self.not_before)));
        }
        if self.self_signed {
            weak.push("is self-signed".into());
        }
        weak
    }
}

/// `2026-11-27`
#[must_use]
pub fn day(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string().split('T').next().unwrap_or_default().to_string()
}

fn public_key(mut info: Der) -> Option<PublicKey> {
    let mut algorithm = Der(info.value(SEQUENCE)?);
    let oid = algorithm.value(OID)?;
    if oid == RSA || oid == RSA_PSS {
        // The first byte is the number of unused bits in the last one.
        let (_, key) = info.value(BIT_STRING)?.split_first()?;
        let modulus = Der(Der(key).value(SEQUENCE)?).value(INTEGER)?;
        let zeros = modulus.iter().take_while(|b| **b == 0).count();
        let bits = (modulus.len() - zeros) * 8 - modulus.get(zeros).map_or(0, |b| b.leading_zeros() as usize);
        return Some(PublicKey::Rsa { bits });
    }
    let curve = if oid == CURVE { algorithm.value(OID) } else { None };
    let known = CURVES.iter().find(|(oid, _)| Some(*oid) == curve);
    Some(known.map_or(PublicKey::Other, |(_, bits)| PublicKey::Curve { bits: *bits }))
}

/// The unread rest of some DER.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next element of any tag.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, length], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
                (bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    /// The next element, if it has this tag.
    fn value(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }

    /// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
    fn time(&mut self) -> Option<SystemTime> {
        let (tag, value) = self.next()?;
        let text = std::str::from_utf8(value).ok().filter(|t| t.is_ascii())?.strip_suffix('Z')?;
        let whole = match (tag, text.len()) {
            (0x17, 12) => format!("{}{text}", if text < "50" { "20" } else { "19" }),
            (0x18, 14) => text.to_string(),
            _ => return None,
        };
        let part = |range: std::ops::Range<usize>| whole.get(range).unwrap_or_default();
        let (day, time) = ([part(0..4), part(4..6), part(6..8)], [part(8..10), part(10..12), part(12..14)]);
        if whole.as_str() < "1970" {
            return Some(SystemTime::UNIX_EPOCH);
        }
        let written = format!("{}T{}Z", day.join("-"), time.join(":"));
        // A leap second, or a day that this reader does not know, is not worth an error.
        Some(humantime::parse_rfc3339(&written).unwrap_or(SystemTime::UNIX_EPOCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_2048: &[u8] = include_bytes!("../tests/rsa-2048.der");
    const OF_VERSION_1: &[u8] = include_bytes!("../tests/version-1-rsa-1024-sha1.der");
    const CURVED: &[u8] = include_bytes!("../tests/p256.der");

    fn now() -> SystemTime {
        humantime::parse_rfc3339("2030-01-01T00:00:00Z").expect("a time")
    }

    #[test]
    fn an_ordinary_certificate_has_no_weakness_but_that_it_is_self_signed() {
        let certificate = Certificate::read(OF_2048).expect("a certificate");
        assert_eq!((certificate.version, certificate.key), (3, PublicKey::Rsa { bits: 2048 }));
        assert_eq!(certificate.weaknesses(now()), ["is self-signed"]);
        assert_eq!(Certificate::read(CURVED).expect("a certificate").key, PublicKey::Curve { bits: 256 });
    }

    #[test]
    fn an_old_certificate_is_read_with_all_that_is_weak_about_it() {
        let certificate = Certificate::read(OF_VERSION_1).expect("a certificate");
        let weak = certificate.weaknesses(now());
        let wanted = [
            "is an X.509 version 1 certificate",
            "has an RSA key of 1024 bits",
            "is signed with SHA-1",
            "expired on 2021-01-02",
        ];
        assert_eq!(weak[..4], wanted, "{weak:?}");
    }

    #[test]
    fn bytes_that_are_no_certificate_are_none() {
        assert_eq!(Certificate::read(b""), None);
        for at in 0..OF_2048.len() {
            let _ = Certificate::read(&OF_2048[..at]);
            let mut broken = OF_2048.to_vec();
            broken[at] ^= 0x91;
            let _ = Certificate::read(&broken).map(|c| c.weaknesses(now()));
        }
    }
}
