//! Decodes gzip, deflate and brotli as a body arrives, without keeping it.

use std::fmt;
use std::io::{self, Write};

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use crate::ProtocolError;

/// Most bytes that one body may decode to. A gzip bomb makes 1000 bytes out of each one.
pub const MOST_DECODED_BYTES: u64 = 64 << 20;

const BROTLI_BUFFER_BYTES: usize = 16 * 1024;
/// The largest window of brotli (RFC 7932, section 9.1).
const BROTLI_WINDOW_BYTES: u64 = 16 << 20;

/// Passes bytes on, counts them, and fails beyond the limit.
struct BoundedWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for BoundedWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.bytes += data.len() as u64;
        if self.bytes > MOST_DECODED_BYTES {
            return Err(io::Error::other("too much"));
        }
        self.inner.write_all(data)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// brotli with the windows that browsers support. The crate's own writer also accepts windows of a gigabyte, which no
/// server may send.
struct Brotli<W> {
    state: BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    out: W,
    total: usize,
    ended: bool,
}

impl<W: Write> Brotli<W> {
    fn new(out: W) -> Brotli<W> {
        let alloc = StandardAlloc::default;
        Brotli { state: BrotliState::new_strict(alloc(), alloc(), alloc()), out, total: 0, ended: false }
    }

    fn feed(&mut self, data: &[u8]) -> io::Result<()> {
        let (mut available, mut at) = (data.len(), 0);
        let mut buffer = [0; BROTLI_BUFFER_BYTES];
        while !self.ended {
            let (mut room, mut made) = (buffer.len(), 0);
            let result = BrotliDecompressStream(
                &mut available,
                &mut at,
                data,
                &mut room,
                &mut made,
                &mut buffer,
                &mut self.total,
                &mut self.state,
            );
            self.out.write_all(&buffer[..made])?;
            match result {
                BrotliResult::NeedsMoreOutput => {}
                BrotliResult::NeedsMoreInput => return Ok(()),
                BrotliResult::ResultSuccess => self.ended = true,
                BrotliResult::ResultFailure => return Err(io::Error::other("damaged")),
            }
        }
        if available == 0 { Ok(()) } else { Err(io::Error::other("more than there should be")) }
    }

    fn finish(&self) -> io::Result<()> {
        if self.ended { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

enum Coding<W: Write> {
    Gzip(MultiGzDecoder<BoundedWriter<W>>),
    Zlib(ZlibDecoder<BoundedWriter<W>>),
    /// "deflate" without zlib's frame, as some servers send it. Browsers and curl accept it too.
    RawDeflate(DeflateDecoder<BoundedWriter<W>>),
    /// "deflate" before its first byte.
    Deflate(Option<BoundedWriter<W>>),
    Brotli(Box<Brotli<BoundedWriter<W>>>),
}

/// Decodes one body into `W`.
pub struct Decoder<W: Write>(Coding<W>);

impl<W: Write> fmt::Debug for Decoder<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decoder")
    }
}

impl<W: Write> Decoder<W> {
    /// Creates a decoder for a `Content-Encoding`.
    ///
    /// # Errors
    /// Returns `inner` if the coding is not known.
    pub fn new(coding: &[u8], inner: W) -> Result<Decoder<W>, W> {
        let bounded = |inner| BoundedWriter { inner, bytes: 0 };
        match coding.trim_ascii().to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => Ok(Decoder(Coding::Gzip(MultiGzDecoder::new(bounded(inner))))),
            b"deflate" => Ok(Decoder(Coding::Deflate(Some(bounded(inner))))),
            b"br" => Ok(Decoder(Coding::Brotli(Box::new(Brotli::new(bounded(inner)))))),
            _ => Err(inner),
        }
    }

    /// Takes a piece of the encoded body.
    ///
    /// # Errors
    /// The body is damaged, or decodes to more than [`MOST_DECODED_BYTES`].
    pub fn feed(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        if let (Coding::Deflate(undecided), Some(first)) = (&mut self.0, data.first())
            && let Some(inner) = undecided.take()
        {
            // RFC 1950: the method is 8 and the window at most 32 KB.
            let is_zlib = first & 0x0f == 8 && first >> 4 <= 7;
            self.0 = if is_zlib {
                Coding::Zlib(ZlibDecoder::new(inner))
            } else {
                Coding::RawDeflate(DeflateDecoder::new(inner))
            };
        }
        let result = match &mut self.0 {
            Coding::Gzip(d) => d.write_all(data).and_then(|()| d.flush()),
            Coding::Zlib(d) => d.write_all(data).and_then(|()| d.flush()),
            Coding::RawDeflate(d) => d.write_all(data).and_then(|()| d.flush()),
            Coding::Deflate(_) => Ok(()),
            Coding::Brotli(d) => d.feed(data),
        };
        result.map_err(|_| self.broken())
    }

    /// Ends the body.
    ///
    /// # Errors
    /// The body ended too early.
    pub fn finish(&mut self) -> Result<(), ProtocolError> {
        let result = match &mut self.0 {
            Coding::Gzip(d) => d.try_finish(),
            Coding::Zlib(d) => d.try_finish(),
            Coding::RawDeflate(d) => d.try_finish(),
            Coding::Deflate(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Coding::Brotli(d) => d.finish(),
        };
        result.map_err(|_| self.broken())
    }

    fn bounded(&self) -> &BoundedWriter<W> {
        match &self.0 {
            Coding::Gzip(d) => d.get_ref(),
            Coding::Zlib(d) => d.get_ref(),
            Coding::RawDeflate(d) => d.get_ref(),
            Coding::Deflate(inner) => inner.as_ref().expect("it is taken only to be put into a decoder"),
            Coding::Brotli(d) => &d.out,
        }
    }

    fn broken(&self) -> ProtocolError {
        if self.bytes() > MOST_DECODED_BYTES {
            ProtocolError("a compressed body that becomes more than 64 MB")
        } else {
            ProtocolError("a compressed body that is damaged")
        }
    }

    /// Decoded bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bounded().bytes
    }

    /// Memory that the decoder itself uses, in bytes: for brotli as much of its window as was decoded.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        match &self.0 {
            Coding::Gzip(_) | Coding::Zlib(_) | Coding::RawDeflate(_) | Coding::Deflate(_) => 32 * 1024,
            Coding::Brotli(_) => self.bytes().min(BROTLI_WINDOW_BYTES),
        }
    }

    /// The writer that receives the decoded bytes.
    #[must_use]
    pub fn inner(&self) -> &W {
        &self.bounded().inner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut e = GzEncoder::new(Vec::new(), Compression::default());
        e.write_all(text).expect("memory");
        e.finish().expect("memory")
    }

    // "hello hello hello hello" encoded by the reference encoder.
    const BROTLI: &[u8] = &[
        0x1b, 0x16, 0x00, 0xf8, 0x8d, 0x94, 0x6e, 0xde, 0x44, 0x55, 0x86, 0x96, 0x6c, 0x20, 0x6f, 0x21, 0x4f, 0x1c,
        0xe0, 0x38,
    ];

    #[test]
    fn a_body_comes_out_however_it_is_cut() {
        let text = b"hello hello hello hello ".repeat(100);
        let wire = gzip(&text);
        for step in [1, 7, wire.len()] {
            let mut d = Decoder::new(b"GZIP", Vec::new()).expect("known");
            for part in wire.chunks(step) {
                d.feed(part).expect("valid");
            }
            d.finish().expect("whole");
            assert_eq!(d.inner(), &text);
        }
    }

    #[test]
    fn deflate_is_undone_with_and_without_the_frame_of_zlib() {
        let text = b"hello hello hello hello ".repeat(100);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), Compression::default());
        let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&text).and_then(|()| raw.write_all(&text)).expect("memory");
        for wire in [zlib.finish().expect("memory"), raw.finish().expect("memory")] {
            for step in [1, wire.len()] {
                let mut d = Decoder::new(b"deflate", Vec::new()).expect("known");
                wire.chunks(step).try_for_each(|part| d.feed(part)).expect("valid");
                assert_eq!((d.finish(), d.inner()), (Ok(()), &text));
            }
            let mut d = Decoder::new(b"deflate", Vec::new()).expect("known");
            assert!(d.feed(&wire[..wire.len() / 2]).is_err() || d.finish().is_err(), "it is cut off");
        }
    }

    #[test]
    fn damage_is_an_error() {
        let wire = gzip(b"hello");
        let mut d = Decoder::new(b"gzip", Vec::new()).expect("known");
        assert!(d.feed(b"this is no gzip at all").is_err() || d.finish().is_err());
        let mut d = Decoder::new(b"gzip", Vec::new()).expect("known");
        let early = d.feed(&wire[..wire.len() - 6]).is_err() || d.finish().is_err();
        assert!(early);
        let mut d = Decoder::new(b"br", Vec::new()).expect("known");
        assert!(d.feed(&[0xff; 64]).is_err() || d.finish().is_err());
        assert!(Decoder::new(b"zstd", Vec::new()).is_err());
    }

    #[test]
    fn brotli_is_undone() {
        let mut d = Decoder::new(b"br", Vec::new()).expect("known");
        d.feed(BROTLI).expect("valid");
        d.finish().expect("whole");
        assert_eq!(d.inner(), b"hello hello hello hello");
        for step in [1, 3] {
            let mut d = Decoder::new(b"br", Vec::new()).expect("known");
            BROTLI.chunks(step).try_for_each(|part| d.feed(part)).expect("valid");
            assert_eq!((d.finish(), d.inner().len()), (Ok(()), 23));
        }
        let mut d = Decoder::new(b"br", Vec::new()).expect("known");
        d.feed(&BROTLI[..15]).expect("so far");
        assert!(d.finish().is_err(), "it is cut off");
    }

    #[test]
    fn windows_that_no_browser_takes_are_refused() {
        // 0x11 and then 30 bits of window: a gigabyte before the first byte of the body.
        let mut d = Decoder::new(b"br", Vec::new()).expect("known");
        assert!(d.feed(&[0x11, 0x1e, 0x1b, 0x00, 0x00, 0x00]).is_err() || d.finish().is_err());
    }

    #[test]
    fn a_bomb_is_refused() {
        let zeros = gzip(&vec![0u8; 70 << 20]);
        let mut d = Decoder::new(b"gzip", io::sink()).expect("known");
        let result = zeros.chunks(65536).try_for_each(|part| d.feed(part));
        assert_eq!(result, Err(ProtocolError("a compressed body that becomes more than 64 MB")));
    }
}
