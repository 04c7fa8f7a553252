//! PostgreSQL's protocol as far as a few questions need it: messages and SCRAM by `postgres-protocol`, over our socket.

use std::io::{Read, Write};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use lastdrop_model::TroubleKind;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{ErrorResponseBody, Message};
use postgres_protocol::message::frontend;

use crate::access::{Access, Password};
use crate::failure::{Ask, Failure, Row};
use crate::stream::Stream;

/// A message is not longer.
const MOST_BYTES: usize = 1 << 20;
const MOST_ROWS: usize = 20_000;
/// Rounds of a password's hash; PostgreSQL has 4,096 by default. More would keep a processor busy for whoever asks.
const MOST_ROUNDS: u64 = 1_000_000;

pub(crate) struct Postgres {
    stream: Stream,
    input: BytesMut,
}

impl Postgres {
    pub fn connect(access: &Access) -> Result<Postgres, Failure> {
        let mut server = Postgres { stream: Stream::connect(access)?, input: BytesMut::new() };
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

    /// What follows until it is ready for a question.
    fn be_let_in(&mut self, access: &Access) -> Result<(), Failure> {
        let wanted = || {
            access.password.as_ref().map(Password::bytes).ok_or_else(|| {
                Failure::new(TroubleKind::Denied, format!("it wants a password for {access}; {PASSWORD_ADVICE}"))
            })
        };
        let mut scram: Option<ScramSha256> = None;
        loop {
            match self.message()? {
                Message::AuthenticationCleartextPassword if self.stream.is_private() => {
                    let secret = wanted()?;
                    self.send(|to| frontend::password_message(secret, to))?;
                }
                Message::AuthenticationCleartextPassword => {
                    return Err(Failure::new(
                        TroubleKind::Denied,
                        "it asks for the password itself over a connection on which others may listen; ask at its local \
                         socket, or let pg_hba.conf say scram-sha-256",
                    ));
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(access.user.as_bytes(), wanted()?, body.salt());
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
                    if rounds.is_none_or(|rounds| rounds > MOST_ROUNDS) {
                        return Err(Failure::protocol("a password's hash of very many rounds"));
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

    fn send(&mut self, write: impl FnOnce(&mut BytesMut) -> std::io::Result<()>) -> Result<(), Failure> {
        let mut out = BytesMut::new();
        write(&mut out).map_err(|e| Failure::new(TroubleKind::Other, e.to_string()))?;
        self.stream.write_all(&out).map_err(|e| Failure::io(&e))
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

pub(crate) const PASSWORD_ADVICE: &str = "give it by --db-password-file FILE or LASTDROP_DB_PASSWORD";

impl Ask for Postgres {
    fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
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
                    rows.push(body.ranges().map(cell).collect().map_err(|_| Failure::protocol("a row"))?);
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
        let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = text(),
            b'M' => message = text(),
            _ => {}
        }
    }
    match code.as_str() {
        "53300" => Failure::new(TroubleKind::Full, message),
        "28P01" | "28000" | "3D000" => Failure::new(TroubleKind::Denied, message),
        // It is being shut down; the session was ended by somebody.
        "57P01" | "57P02" | "57P03" => Failure::new(TroubleKind::Unreachable, message),
        _ => Failure::Query { code, message },
    }
}
