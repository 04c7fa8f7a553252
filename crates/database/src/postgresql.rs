//! The subset of PostgreSQL's protocol that a few queries need: messages and SCRAM by `postgres-protocol`, over our
//! socket.

use std::io::{Read, Write};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use lastdrop_model::TroubleKind;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{ErrorResponseBody, Message};
use postgres_protocol::message::frontend;

use crate::access::{Access, Password, TlsChoice, TlsMode};
use crate::failure::{Failure, MOST_COLUMNS, MOST_ROWS, QueryConnection, ResultRow, beginning};
use crate::stream::Stream;

/// Longest message that is accepted.
const MOST_BYTES: usize = 1 << 20;
/// Most hash rounds of a password; PostgreSQL's default is 4,096. More would let a server keep a processor of ours
/// busy.
const MOST_ROUNDS: u64 = 1_000_000;
/// RFC 7677 requires at least this many. With fewer, an impostor could guess the password from the response.
const LEAST_ROUNDS: u64 = 4096;

pub(crate) struct Postgres {
    stream: Stream,
    input: BytesMut,
}

impl Postgres {
    pub fn connect(access: &Access) -> Result<Postgres, Failure> {
        let mut stream = Stream::connect(access)?;
        if stream.wants_tls(access) {
            stream = match encrypted(stream, access) {
                // A server whose TLS is too old for rustls is treated as one without TLS.
                Err(_) if access.tls.mode == TlsMode::Offered => {
                    let tls = TlsChoice { mode: TlsMode::Never, ca: None };
                    return Postgres::connect(&Access { tls, ..access.clone() });
                }
                other => other?,
            };
        }
        let mut server = Postgres { stream, input: BytesMut::new() };
        let name = access.database.as_deref().unwrap_or("postgres");
        let options = "-c statement_timeout=2000 -c lock_timeout=1000 -c default_transaction_read_only=on";
        let parameters = [
            ("user", access.user.as_str()),
            ("database", name),
            ("application_name", "lastdrop"),
            ("client_encoding", "UTF8"),
            ("options", options),
        ];
        server.send(|to| frontend::startup_message(parameters, to))?;
        server.be_let_in(access)?;
        Ok(server)
    }

    /// Handles what follows the startup message, until the server is ready for a query.
    fn be_let_in(&mut self, access: &Access) -> Result<(), Failure> {
        let wanted = || {
            access.password.as_ref().map(Password::bytes).ok_or_else(|| {
                Failure::new(TroubleKind::Denied, format!("it wants a password for {access}; {PASSWORD_ADVICE}"))
            })
        };
        let mut scram: Option<ScramSha256> = None;
        let mut is_proven = false;
        loop {
            match self.message()? {
                Message::AuthenticationCleartextPassword => {
                    let secret = wanted()?;
                    self.trust("the password itself")?;
                    self.send(|to| frontend::password_message(secret, to))?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let secret = wanted()?;
                    self.trust("the password's MD5 hash")?;
                    let hash = md5_hash(access.user.as_bytes(), secret, body.salt());
                    self.send(|to| frontend::password_message(hash.as_bytes(), to))?;
                }
                Message::AuthenticationSasl(body) => {
                    let known = body.mechanisms().any(|m| Ok(m == SCRAM_SHA_256)).map_err(|e| Failure::io(&e))?;
                    if !known {
                        return Err(Failure::new(
                            TroubleKind::Denied,
                            "it wants an authentication that is not spoken here",
                        ));
                    }
                    let exchange = ScramSha256::new(wanted()?, ChannelBinding::unsupported());
                    self.send(|to| frontend::sasl_initial_response(SCRAM_SHA_256, exchange.message(), to))?;
                    scram = Some(exchange);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let exchange = scram.as_mut().ok_or_else(|| Failure::protocol("its login"))?;
                    let text = String::from_utf8_lossy(body.data());
                    let rounds = text.split(',').find_map(|part| part.strip_prefix("i=")?.parse::<u64>().ok());
                    let rounds = rounds.filter(|rounds| *rounds <= MOST_ROUNDS);
                    if rounds.ok_or_else(|| Failure::protocol("a password's hash of very many rounds"))? < LEAST_ROUNDS
                    {
                        self.trust("a hash of the password of very few rounds (scram_iterations)")?;
                    }
                    exchange.update(body.data()).map_err(|_| Failure::protocol("its login"))?;
                    let next = exchange.message().to_vec();
                    self.send(|to| frontend::sasl_response(&next, to))?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let exchange = scram.as_mut().ok_or_else(|| Failure::protocol("its login"))?;
                    exchange
                        .finish(body.data())
                        .map_err(|_| Failure::protocol("it does not know the password itself"))?;
                    is_proven = true;
                }
                // A server that accepts the login without its own proof does not know the password.
                Message::AuthenticationOk if scram.is_some() && !is_proven => {
                    return Err(Failure::protocol("it has not proven that it knows the password"));
                }
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => {
                    return Err(match refusal(&body) {
                        Failure::Query { code, message } if code.starts_with("57P") => {
                            Failure::new(TroubleKind::Unreachable, message)
                        }
                        Failure::Query { code, message } => {
                            Failure::new(TroubleKind::Other, format!("{message} ({code})"))
                        }
                        ended => ended,
                    });
                }
                Message::AuthenticationOk
                | Message::ParameterStatus(_)
                | Message::BackendKeyData(_)
                | Message::NoticeResponse(_) => {}
                _ => {
                    return Err(Failure::new(
                        TroubleKind::Denied,
                        "it wants an authentication that is not spoken here",
                    ));
                }
            }
        }
    }

    /// Refuses to send the password in a form that would reveal it, unless the server is trusted.
    fn trust(&self, method: &str) -> Result<(), Failure> {
        self.stream.distrust().map_or(Ok(()), |why| Err(Failure::not_sent(method, why, ADVICE)))
    }

    fn send(&mut self, write: impl FnOnce(&mut BytesMut) -> std::io::Result<()>) -> Result<(), Failure> {
        let mut out = BytesMut::new();
        write(&mut out).map_err(|e| Failure::new(TroubleKind::Other, e.to_string()))?;
        self.stream.write_all(&out).and_then(|()| self.stream.flush()).map_err(|e| Failure::io(&e))
    }

    fn message(&mut self) -> Result<Message, Failure> {
        loop {
            if let Some(length) = self.input.get(1..5) {
                let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
                if length as usize > MOST_BYTES {
                    return Err(Failure::protocol("its messages are not PostgreSQL's"));
                }
            }
            let parsed = Message::parse(&mut self.input);
            if let Some(message) = parsed.map_err(|_| Failure::protocol("its messages are not PostgreSQL's"))? {
                return Ok(message);
            }
            let mut bytes = [0; 8192];
            let n = self.stream.read(&mut bytes).map_err(|e| Failure::io(&e))?;
            if n == 0 {
                return Err(Failure::io(&std::io::ErrorKind::UnexpectedEof.into()));
            }
            self.input.extend_from_slice(&bytes[..n]);
        }
    }
}

/// What error messages suggest instead.
const ADVICE: &str = "ask at its unix socket (postgres:///NAME?host=/run/postgresql), over TLS with a certificate that is \
                      verified (--db-ca FILE), or let pg_hba.conf say scram-sha-256";

/// Agrees on TLS if the server has it.
/// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL>
fn encrypted(mut stream: Stream, access: &Access) -> Result<Stream, Failure> {
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    let mut answer = [0];
    stream.write_all(&request).and_then(|()| stream.read_exact(&mut answer)).map_err(|e| Failure::io(&e))?;
    match &answer {
        b"S" => stream.encrypted(access),
        b"N" if access.tls.mode == TlsMode::Offered => Ok(stream),
        b"N" => Err(Failure::new(TroubleKind::Other, "it has no TLS (ssl = off), and sslmode or --db-ca wants it")),
        _ => Err(Failure::protocol("its answer to a request for TLS")),
    }
}

pub(crate) const PASSWORD_ADVICE: &str = "give it by --db-password-file FILE or LASTDROP_DB_PASSWORD";

impl QueryConnection for Postgres {
    fn rows(&mut self, sql: &str) -> Result<Vec<ResultRow>, Failure> {
        self.stream.begin();
        self.send(|to| frontend::query(sql, to))?;
        let mut rows = Vec::new();
        let mut failed = None;
        loop {
            match self.message()? {
                Message::DataRow(body) => {
                    let cell = |range: Option<std::ops::Range<usize>>| {
                        let bytes = range.map(|r| body.buffer().get(r).unwrap_or_default());
                        Ok(bytes.map(|b| String::from_utf8_lossy(b).into_owned()))
                    };
                    let row: ResultRow = body.ranges().map(cell).collect().map_err(|_| Failure::protocol("a row"))?;
                    if row.len() > MOST_COLUMNS {
                        return Err(Failure::protocol("a row"));
                    }
                    rows.push(row);
                    if rows.len() > MOST_ROWS {
                        return Err(Failure::protocol("an answer without an end"));
                    }
                }
                Message::ErrorResponse(body) => match refusal(&body) {
                    refused @ Failure::Query { .. } => failed = Some(refused),
                    ended => return Err(ended),
                },
                Message::ReadyForQuery(_) => return failed.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }
}

fn refusal(body: &ErrorResponseBody) -> Failure {
    let (mut code, mut message) = (String::new(), String::new());
    let mut fields = body.fields();
    while let Ok(Some(field)) = fields.next() {
        let text = || beginning(field.value_bytes());
        match field.type_() {
            b'C' => code = text(),
            b'M' => message = text(),
            _ => {}
        }
    }
    match code.as_str() {
        "53300" => Failure::new(TroubleKind::Full, message),
        "28P01" | "28000" | "3D000" => Failure::new(TroubleKind::Denied, message),
        // The server is shutting down, or an administrator ended the session.
        "57P01" | "57P02" | "57P03" => Failure::new(TroubleKind::Unreachable, message),
        _ => Failure::Query { code, message },
    }
}
