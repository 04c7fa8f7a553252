//! The chunked transfer coding (RFC 9112 section 7.1), one byte or many at a time.

use crate::{MAX_HEAD_BYTES, ProtocolError};

/// Most digits of a chunk's size, including leading zeros.
const MOST_DIGITS: u8 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Reading the hex digits of a size; holds their number so far.
    Size(u8),
    /// In a chunk extension, up to the line feed.
    Extension,
    /// The line feed after a size.
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line.
    TrailerStart,
    /// Within a trailer line.
    Trailer,
    /// The line feed after the empty line.
    End,
    Done,
}

/// Decodes a chunked body.
#[derive(Debug, Clone)]
pub struct ChunkDecoder {
    state: State,
    remaining: u64,
    /// Bytes of the current extension, or of the trailers. They carry nothing, so a peer may not send them for ever.
    overhead: usize,
}

impl Default for ChunkDecoder {
    fn default() -> Self {
        ChunkDecoder { state: State::Size(0), remaining: 0, overhead: 0 }
    }
}

impl ChunkDecoder {
    /// Takes bytes. Returns how many belong to the body (all of them, unless it ended) and whether it is complete.
    ///
    /// # Errors
    /// The bytes are not a chunked body.
    pub fn feed(&mut self, data: &[u8], mut body: impl FnMut(&[u8])) -> Result<(usize, bool), ProtocolError> {
        let mut at = 0;
        while at < data.len() {
            let byte = data[at];
            match self.state {
                State::Data => {
                    let take = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(data.len() - at);
                    body(&data[at..at + take]);
                    self.remaining -= take as u64;
                    at += take;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                    continue;
                }
                State::Size(digits) => match (char::from(byte).to_digit(16), byte) {
                    // Leading zeros are allowed, up to the limit.
                    (Some(d), _) if digits < MOST_DIGITS && self.remaining >> 56 == 0 => {
                        self.remaining = self.remaining * 16 + u64::from(d);
                        self.state = State::Size(digits + 1);
                    }
                    (Some(_), _) => return Err(ProtocolError("a chunk size that is too large")),
                    (None, b'\r') if digits > 0 => self.state = State::SizeEnd,
                    (None, b'\n') if digits > 0 => self.size_read(),
                    (None, b';' | b' ' | b'\t') if digits > 0 => self.state = State::Extension,
                    _ => return Err(ProtocolError("a chunk size that is not a number")),
                },
                State::Extension => {
                    self.count_overhead()?;
                    if byte == b'\n' {
                        self.size_read();
                    }
                }
                State::SizeEnd if byte == b'\n' => self.size_read(),
                State::DataCr if byte == b'\r' => self.state = State::DataLf,
                State::DataCr | State::DataLf if byte == b'\n' => {
                    self.remaining = 0;
                    self.state = State::Size(0);
                }
                State::TrailerStart => match byte {
                    b'\r' => self.state = State::End,
                    b'\n' => self.state = State::Done,
                    _ => self.state = State::Trailer,
                },
                State::Trailer => {
                    self.count_overhead()?;
                    if byte == b'\n' {
                        self.state = State::TrailerStart;
                    }
                }
                State::End if byte == b'\n' => self.state = State::Done,
                State::Done => break,
                _ => return Err(ProtocolError("a chunk that does not end where its size says")),
            }
            at += 1;
            if self.state == State::Done {
                break;
            }
        }
        Ok((at, self.state == State::Done))
    }

    /// Whether the chunk of size zero has arrived, so that only trailers are missing.
    #[must_use]
    pub fn has_last_chunk(&self) -> bool {
        matches!(self.state, State::TrailerStart | State::Trailer | State::End | State::Done)
    }

    fn size_read(&mut self) {
        self.overhead = 0;
        self.state = if self.remaining == 0 { State::TrailerStart } else { State::Data };
    }

    fn count_overhead(&mut self) -> Result<(), ProtocolError> {
        self.overhead += 1;
        if self.overhead > MAX_HEAD_BYTES {
            return Err(ProtocolError("chunk extensions or trailers without an end"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(data: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), ProtocolError> {
        let (mut body, mut decoder, mut used) = (Vec::new(), ChunkDecoder::default(), 0);
        for part in data.chunks(step) {
            let (n, done) = decoder.feed(part, |b| body.extend_from_slice(b))?;
            used += n;
            if done {
                return Ok((body, used, true));
            }
        }
        Ok((body, used, false))
    }

    #[test]
    fn a_body_is_the_same_however_it_is_cut() {
        let wire = b"4\r\nWiki\r\n6;x=y\r\npedia \r\nB\r\nin \r\nchunks\r\n0\r\nTrailer: x\r\n\r\nGET";
        for step in 1..wire.len() {
            let (body, used, done) = decode(wire, step).expect("valid");
            assert_eq!(body, b"Wikipedia in \r\nchunks");
            assert_eq!((used, done), (wire.len() - 3, true));
        }
    }

    #[test]
    fn sizes_may_have_zeros_before_and_blanks_behind_them_in_any_number_of_chunks() {
        let wire = [b"0000000000000000000003   \r\nabc\r\n".repeat(30_000), b"0\r\n\r\n".to_vec()].concat();
        let (body, used, done) = decode(&wire, 4096).expect("valid");
        assert_eq!((body.len(), used, done), (90_000, wire.len(), true));
    }

    #[test]
    fn lies_about_sizes_are_errors() {
        for bad in [&b"x\r\n"[..], b"\r\n", b"3\r\nabcd\r\n", b"fffffffffffffffff\r\n", b"-1\r\n"] {
            assert!(decode(bad, 1).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn an_endless_extension_is_an_error() {
        let mut wire = b"1;".to_vec();
        wire.resize(MAX_HEAD_BYTES + 10, b'a');
        assert!(decode(&wire, 1000).is_err());
    }
}
