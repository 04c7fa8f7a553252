//! The subset of MySQL's protocol that a few queries need: the handshake, the two password methods that servers have by
//! default, and text results.
//!
//! <https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html>; every length that a server sends is checked.

use std::io::{Read, Write};

use lastdrop_model::TroubleKind;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::access::{Access, Password, TlsChoice, TlsMode};
use crate::failure::{Failure, MOST_COLUMNS, MOST_ROWS, QueryConnection, ResultRow, beginning};
use crate::stream::Stream;

/// No packet that lastdrop asks for is larger.
const MOST_BYTES: usize = 1 << 20;

const LONG_PASSWORD: u32 = 1;
const CONNECT_WITH_DB: u32 = 8;
const PROTOCOL_41: u32 = 0x200;
const SSL: u32 = 0x800;
const TRANSACTIONS: u32 = 0x2000;
const SECURE_CONNECTION: u32 = 0x8000;
const PLUGIN_AUTH: u32 = 0x8_0000;
const UTF8MB4: u8 = 45;
const COM_QUERY: u8 = 3;
/// Bytes of a challenge in the handshake.
const NONCE: usize = 20;

pub(crate) struct Mysql {
    stream: Stream,
    sequence: u8,
    /// Why the connection can no longer be used.
    ended: Option<Failure>,
    /// The server's version string: `10.11.6-MariaDB-0+deb12u1`.
    pub version: String,
}

impl Mysql {
    pub fn connect(access: &Access) -> Result<Mysql, Failure> {
        let stream = Stream::connect(access)?;
        let mut server = Mysql { stream, sequence: 0, ended: None, version: String::new() };
        let hello = server.packet()?;
        let hello = Handshake::read(&hello)?;
        server.version = beginning(hello.version.as_bytes());
        let with_name = access.database.as_ref().map_or(0, |_| CONNECT_WITH_DB);
        let mut flags = LONG_PASSWORD | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | PLUGIN_AUTH | with_name;
        if server.stream.wants_tls(access) {
            if hello.has_tls {
                flags |= SSL;
                server.send(&login_head(flags))?;
                server.stream = match server.stream.encrypted(access) {
                    Ok(stream) => stream,
                    // A server whose TLS is too old for rustls is treated as one without TLS.
                    Err(_) if access.tls.mode == TlsMode::Offered => {
                        let tls = TlsChoice { mode: TlsMode::Never, ca: None };
                        return Mysql::connect(&Access { tls, ..access.clone() });
                    }
                    Err(e) => return Err(e),
                };
            } else if access.tls.mode != TlsMode::Offered {
                return Err(Failure::new(
                    TroubleKind::Other,
                    "it has no TLS (have_ssl), and sslmode or --db-ca wants it",
                ));
            }
        }
        let password = access.password.as_ref();
        let proof = server.proof(&hello.plugin, &hello.nonce, password)?;
        let mut answer = login_head(flags);
        answer.extend([access.user.as_bytes(), &[0, proof.len() as u8], &proof].concat());
        if let Some(name) = &access.database {
            answer.extend([name.as_bytes(), &[0]].concat());
        }
        answer.extend([hello.plugin.as_bytes(), &[0]].concat());
        server.send(&answer)?;
        server.be_let_in(password)?;
        Ok(server)
    }

    /// Handles what follows the login request, until the server accepts it.
    fn be_let_in(&mut self, password: Option<&Password>) -> Result<(), Failure> {
        // No real server asks more often.
        for _ in 0..8 {
            let packet = self.packet()?;
            match packet.split_first() {
                Some((0x00, _)) => return Ok(()),
                Some((0xff, rest)) => return Err(refusal(rest)),
                Some((0xfe, rest)) => {
                    let mut cursor = Cursor(rest);
                    let plugin = cursor.until_zero().ok_or_else(|| Failure::protocol("a change of authentication"))?;
                    let nonce = cursor.0.strip_suffix(&[0]).unwrap_or(cursor.0);
                    let proof = self.proof(&plugin, nonce, password)?;
                    self.send(&proof)?;
                }
                // caching_sha2_password: 3 means success, 4 asks for the password in clear.
                Some((0x01, [3])) => {}
                Some((0x01, [4])) => {
                    let whole = self.in_clear("caching_sha2_password's full authentication", password)?;
                    self.send(&whole)?;
                }
                _ => return Err(Failure::protocol("its answer to the login")),
            }
        }
        Err(Failure::protocol("a login without an end"))
    }

    fn proof(&self, plugin: &str, nonce: &[u8], password: Option<&Password>) -> Result<Vec<u8>, Failure> {
        let secret = password.map_or(&[][..], Password::bytes);
        match plugin {
            // The server takes the user from the socket.
            "auth_socket" | "unix_socket" | "" => Ok(Vec::new()),
            "mysql_native_password" | "caching_sha2_password" if secret.is_empty() => Ok(Vec::new()),
            // With a shorter challenge the proof could repeat, and could be replayed.
            "mysql_native_password" | "caching_sha2_password" if nonce.len() != NONCE => {
                Err(Failure::protocol("a challenge of another length"))
            }
            "mysql_native_password" => {
                let once = Sha1::digest(secret);
                let twice = Sha1::digest(once);
                let mask = Sha1::new().chain_update(nonce).chain_update(twice).finalize();
                Ok(once.iter().zip(mask).map(|(a, b)| a ^ b).collect())
            }
            "caching_sha2_password" => {
                let once = Sha256::digest(secret);
                let twice = Sha256::digest(once);
                let mask = Sha256::new().chain_update(twice).chain_update(nonce).finalize();
                Ok(once.iter().zip(mask).map(|(a, b)| a ^ b).collect())
            }
            "mysql_clear_password" => self.in_clear("the password itself (mysql_clear_password)", password),
            other => Err(Failure::new(
                TroubleKind::Denied,
                format!(
                    "it wants the authentication '{}', which is not spoken here; give the user of the look one of \
                     mysql_native_password, caching_sha2_password or unix_socket",
                    beginning(other.as_bytes())
                ),
            )),
        }
    }

    /// Returns the password in clear, for a server that was verified.
    fn in_clear(&self, method: &str, password: Option<&Password>) -> Result<Vec<u8>, Failure> {
        let secret = password.map_or(&[][..], Password::bytes);
        match self.stream.distrust() {
            Some(why) if !secret.is_empty() => Err(Failure::not_sent(method, why, ADVICE)),
            _ => Ok([secret, &[0]].concat()),
        }
    }

    fn packet(&mut self) -> Result<Vec<u8>, Failure> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head).map_err(|e| Failure::io(&e))?;
        let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
        if length > MOST_BYTES {
            return Err(Failure::protocol("a packet that is too long"));
        }
        self.sequence = head[3].wrapping_add(1);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(|e| Failure::io(&e))?;
        Ok(body)
    }

    fn send(&mut self, body: &[u8]) -> Result<(), Failure> {
        let mut packet = (body.len() as u32).to_le_bytes()[..3].to_vec();
        packet.push(self.sequence);
        packet.extend(body);
        self.sequence = self.sequence.wrapping_add(1);
        self.stream.write_all(&packet).and_then(|()| self.stream.flush()).map_err(|e| Failure::io(&e))
    }
}

/// What error messages suggest instead of a password in clear.
const ADVICE: &str = "ask at its unix socket (mysql://user@localhost/?socket=/run/mysqld/mysqld.sock), over TLS with a \
                      certificate that is verified (--db-ca FILE), or give the user of the look mysql_native_password";

/// The first fields of a login request; alone they are the request for TLS.
fn login_head(flags: u32) -> Vec<u8> {
    let mut head = flags.to_le_bytes().to_vec();
    head.extend((MOST_BYTES as u32).to_le_bytes());
    head.push(UTF8MB4);
    head.extend([0; 23]);
    head
}

impl QueryConnection for Mysql {
    fn rows(&mut self, sql: &str) -> Result<Vec<ResultRow>, Failure> {
        // After a failed exchange, its remaining bytes would be taken for the next response.
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let answer = self.exchange(sql);
        self.ended = answer.as_ref().err().filter(|e| matches!(e, Failure::Ended { .. })).cloned();
        answer
    }
}

impl Mysql {
    fn exchange(&mut self, sql: &str) -> Result<Vec<ResultRow>, Failure> {
        self.stream.begin();
        self.sequence = 0;
        self.send(&[&[COM_QUERY], sql.as_bytes()].concat())?;
        let packet = self.packet()?;
        match packet.split_first() {
            Some((0x00, _)) => return Ok(Vec::new()),
            Some((0xff, rest)) => return Err(refusal(rest)),
            // LOCAL INFILE: the server asks for a file of this machine, although the client did not offer that. An
            // empty packet answers "no file".
            Some((0xfb, name)) => {
                let _ = self.send(&[]);
                return Err(Failure::new(
                    TroubleKind::Other,
                    format!(
                        "it asks for a file of this machine instead of answering (LOCAL INFILE '{}'), which it does not get",
                        beginning(name)
                    ),
                ));
            }
            _ => {}
        }
        let columns = Cursor(&packet).number().filter(|n| *n > 0 && *n <= MOST_COLUMNS);
        let columns = columns.ok_or_else(|| Failure::protocol("a number of columns"))?;
        for _ in 0..columns {
            self.packet()?;
        }
        let mut rows = Vec::new();
        let mut ends = 0;
        loop {
            let packet = self.packet()?;
            match packet.split_first() {
                // One EOF packet ends the columns, the next ends the rows.
                Some((0xfe, rest)) if rest.len() < 8 => ends += 1,
                Some((0xff, rest)) => return Err(refusal(rest)),
                _ if ends == 1 => {
                    let mut cursor = Cursor(&packet);
                    let row: Option<ResultRow> = (0..columns).map(|_| cursor.cell()).collect();
                    rows.push(row.ok_or_else(|| Failure::protocol("a row"))?);
                }
                _ => return Err(Failure::protocol("an answer")),
            }
            if ends == 2 {
                return Ok(rows);
            }
            if rows.len() > MOST_ROWS {
                return Err(Failure::protocol("an answer without an end"));
            }
        }
    }
}

/// Parses an error packet after its first byte: an error number, `#` with the SQL state, the text.
fn refusal(rest: &[u8]) -> Failure {
    let code = rest.get(..2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    let text = rest.get(2..).unwrap_or_default();
    let text = if text.first() == Some(&b'#') { text.get(6..).unwrap_or_default() } else { text };
    let message = beginning(text);
    match code {
        // Too many connections: of the server, of this user.
        1040 | 1203 | 1226 => Failure::new(TroubleKind::Full, message),
        // Access denied for the user or the database; host blocked or not allowed; plugin not available.
        1044 | 1045 | 1129 | 1130 | 1251 | 1524 | 1698 => Failure::new(TroubleKind::Denied, message),
        _ => Failure::Query { code: code.to_string(), message },
    }
}

/// The server's first packet.
struct Handshake {
    version: String,
    nonce: Vec<u8>,
    plugin: String,
    has_tls: bool,
}

impl Handshake {
    fn read(packet: &[u8]) -> Result<Handshake, Failure> {
        if let Some((0xff, rest)) = packet.split_first() {
            return Err(match refusal(rest) {
                Failure::Query { code, message } => {
                    Failure::new(TroubleKind::Unreachable, format!("{message} ({code})"))
                }
                ended => ended,
            });
        }
        let read = || {
            let mut cursor = Cursor(packet);
            (cursor.take(1)? == [10]).then_some(())?;
            let version = cursor.until_zero()?;
            cursor.take(4)?;
            let mut nonce = cursor.take(8)?.to_vec();
            // A filler, capability flags, a character set, a status, more flags.
            let has_tls = cursor.take(1 + 2)?[2] & (SSL >> 8) as u8 != 0;
            cursor.take(1 + 2 + 2)?;
            let length = usize::from(cursor.take(1)?[0]);
            cursor.take(10)?;
            let more = cursor.take(length.saturating_sub(8).max(13))?;
            nonce.extend(more.strip_suffix(&[0]).unwrap_or(more));
            let plugin = cursor.until_zero().unwrap_or_else(|| "mysql_native_password".into());
            Some(Handshake { version, nonce, plugin, has_tls })
        };
        read().ok_or_else(|| Failure::protocol("its greeting is not MySQL's"))
    }
}

/// The rest of a packet, while it is parsed.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes a text that ends with a zero byte.
    fn until_zero(&mut self) -> Option<String> {
        let end = self.0.iter().position(|b| *b == 0)?;
        let text = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.take(1)?;
        Some(text)
    }

    fn number(&mut self) -> Option<usize> {
        let wide = match self.take(1)?[0] {
            small @ 0..=250 => return Some(small.into()),
            252 => 2,
            253 => 3,
            254 => 8,
            _ => return None,
        };
        let bytes = self.take(wide)?;
        usize::try_from(bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b))).ok()
    }

    /// Takes a cell of a row: None at the end of the packet, Some(None) for NULL.
    fn cell(&mut self) -> Option<Option<String>> {
        if self.0.first() == Some(&251) {
            self.take(1)?;
            return Some(None);
        }
        let length = self.number()?;
        Some(Some(String::from_utf8_lossy(self.take(length)?).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_and_anything_else_refused() {
        let mut packet = vec![10];
        packet.extend(b"10.11.6-MariaDB\0\x01\0\0\0abcdefgh\0\xff\xff\x2d\x02\0\xff\xff\x15");
        packet.extend([0; 10]);
        packet.extend(b"ijklmnopqrst\0mysql_native_password\0");
        let hello = Handshake::read(&packet).expect("a greeting");
        assert_eq!((hello.version.as_str(), hello.nonce.as_slice()), ("10.11.6-MariaDB", &b"abcdefghijklmnopqrst"[..]));
        assert_eq!((hello.plugin.as_str(), hello.has_tls), ("mysql_native_password", true));
        for length in 0..60 {
            let _ = Handshake::read(&packet[..length]);
        }
        assert!(Handshake::read(b"HTTP/1.1 400 Bad Request").is_err());
        let full = [&[0xff, 0x10, 0x04], &b"Too many connections"[..]].concat();
        let kind = |e: Failure| e.trouble().kind;
        assert_eq!(Handshake::read(&full).map(|_| ()).map_err(kind), Err(TroubleKind::Full));
    }

    #[test]
    fn cells_have_a_length_or_are_null_and_lie_within_their_packet() {
        let mut cursor = Cursor(b"\x02ab\xfb\xfc\x01\0c\x05ab");
        let cells: Vec<_> = (0..4).map(|_| cursor.cell()).collect();
        assert_eq!(cells, [Some(Some("ab".into())), Some(None), Some(Some("c".into())), None]);
        assert_eq!(Cursor(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff").cell(), None);
    }
}
