//! Lines of a file, plain or packed with gzip or zstd, as recognised by its first bytes. Only one buffer of a file is
//! in memory.

use std::io::{self, BufRead, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use lastdrop_files::input;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Longer lines are not kept: no server writes them.
pub const MOST_LINE_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// Number of first bytes that identify the packing of a file.
pub(crate) const MAGIC_BYTES: u64 = 6;

/// How to unpack a file of a program whose files lastdrop does not read.
fn unpack_first(program: &str) -> String {
    let unpack = match program {
        "zip" => "unzip -p",
        "bzip2" => "bzip2 -dc",
        "lzip" => "lzip -dc",
        "lz4" => "lz4 -dc",
        _ => "xz -dc",
    };
    format!(
        "it is packed with {program}, and only gzip and zstd are unpacked here; write `{unpack} FILE > access.log`, or for an analysis \
         `{unpack} FILE | lastdrop replay - --analyse`"
    )
}

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
    /// By another program, which has to unpack it.
    Other(&'static str),
}

impl Packing {
    /// Recognises the packing by the first six bytes.
    pub(crate) fn of(magic: &[u8]) -> Packing {
        match magic {
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Packing::Other("xz"),
            [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', ..] => Packing::Other("bzip2"),
            [b'L', b'Z', b'I', b'P', ..] => Packing::Other("lzip"),
            [0x04, 0x22, 0x4d, 0x18, ..] => Packing::Other("lz4"),
            [b'P', b'K', 3, 4, ..] => Packing::Other("zip"),
            [0x1f, 0x8b, ..] => Packing::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Packing::Zstd,
            _ => Packing::Plain,
        }
    }
}

/// The result of reading a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineRead {
    Line,
    /// The last line, without its line end: perhaps still being written.
    Torn,
    /// A line of this many bytes, not kept.
    TooLong(u64),
    End,
}

/// The lines of an input, numbered.
pub struct Lines {
    input: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The number of the last line, from 1.
    pub number: u64,
    over: bool,
    /// Why reading failed, until that has been reported.
    broken: Option<io::Error>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines(at line {})", self.number)
    }
}

impl Lines {
    /// Opens a file; `-` is stdin.
    ///
    /// # Errors
    /// It cannot be read, or is neither a regular file nor a pipe with a writer.
    pub fn open(path: &Path) -> io::Result<Lines> {
        if path.as_os_str() == "-" {
            input::check_stdin()?;
            return Lines::new(io::stdin());
        }
        Lines::new(input::open_stream(path)?)
    }

    /// # Errors
    /// The first bytes cannot be read.
    pub fn new(mut input: impl Read + Send + 'static) -> io::Result<Lines> {
        let mut magic = Vec::new();
        input.by_ref().take(MAGIC_BYTES).read_to_end(&mut magic)?;
        let packing = Packing::of(&magic);
        let whole = Cursor::new(magic).chain(input);
        let input: Box<dyn Read + Send> = match packing {
            Packing::Gzip => Box::new(MultiGzDecoder::new(io::BufReader::new(whole))),
            Packing::Zstd => Box::new(ZstdFrames::new(io::BufReader::new(whole))),
            Packing::Plain => Box::new(whole),
            Packing::Other(program) => return Err(io::Error::new(io::ErrorKind::Unsupported, unpack_first(program))),
        };
        Ok(Lines { input, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, number: 0, over: false, broken: None })
    }

    /// Fills the buffer and returns its lines without consuming them. If reading fails within, the lines before that
    /// are returned.
    ///
    /// # Errors
    /// There is no line, because the file cannot be read.
    pub fn sample(&mut self) -> io::Result<impl Iterator<Item = &[u8]>> {
        while !self.over && self.end < self.buffer.len() {
            self.broken = self.fill().err();
        }
        if self.start == self.end
            && let Some(error) = self.broken.take()
        {
            return Err(error);
        }
        let held = &self.buffer[self.start..self.end];
        // The last line may be cut off.
        let whole = if self.over { held } else { &held[..memchr::memrchr(b'\n', held).unwrap_or(0)] };
        Ok(whole.split(|b| *b == b'\n').map(trimmed))
    }

    /// Reads the next line, without its line end, into `line`.
    ///
    /// # Errors
    /// The file cannot be read, or its packing is damaged. Reading ends then.
    pub fn next(&mut self, line: &mut Vec<u8>) -> io::Result<LineRead> {
        line.clear();
        let mut length = 0;
        loop {
            let held = &self.buffer[self.start..self.end];
            let found = memchr::memchr(b'\n', held);
            let part = &held[..found.unwrap_or(held.len())];
            length += part.len() as u64;
            if length <= MOST_LINE_BYTES as u64 {
                line.extend_from_slice(part);
            } else {
                line.clear();
            }
            self.start += part.len() + usize::from(found.is_some());
            if found.is_some() {
                self.number += 1;
                break;
            }
            if let Some(error) = self.broken.take() {
                return Err(error);
            }
            if self.over || !self.fill()? {
                if length == 0 {
                    return Ok(LineRead::End);
                }
                self.number += 1;
                let kept = trimmed(line).len();
                line.truncate(kept);
                return Ok(if length > MOST_LINE_BYTES as u64 { LineRead::TooLong(length) } else { LineRead::Torn });
            }
        }
        if length > MOST_LINE_BYTES as u64 {
            return Ok(LineRead::TooLong(length));
        }
        let kept = trimmed(line).len();
        line.truncate(kept);
        Ok(LineRead::Line)
    }

    /// Reads more; returns false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.over = true;
                    return Ok(false);
                }
                Ok(n) => {
                    self.end += n;
                    return Ok(true);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.over = true;
                    return Err(e);
                }
            }
        }
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The window that `zstd --long` needs.
const MOST_WINDOW_BYTES: u64 = 128 << 20;

/// A zstd file: consecutive frames, some of which are skippable.
struct ZstdFrames<R> {
    input: R,
    decoder: FrameDecoder,
    /// Whether a frame is being decoded.
    within: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(input: R) -> ZstdFrames<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MOST_WINDOW_BYTES);
        ZstdFrames { input, decoder, within: false }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let broken = |e: FrameDecoderError| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
        loop {
            if self.within {
                while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                    let step = BlockDecodingStrategy::UptoBlocks(1);
                    self.decoder.decode_blocks(&mut self.input, step).map_err(broken)?;
                }
                let length = self.decoder.read(buffer)?;
                if length > 0 || buffer.is_empty() {
                    return Ok(length);
                }
                self.within = false;
            }
            if self.input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match self.decoder.init(&mut self.input) {
                Ok(()) => self.within = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.input.by_ref().take(u64::from(length)), &mut io::sink())?;
                }
                Err(e) => return Err(broken(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn all(bytes: Vec<u8>) -> Vec<String> {
        let mut lines = Lines::new(Cursor::new(bytes)).expect("readable");
        let (mut line, mut all) = (Vec::new(), Vec::new());
        loop {
            match lines.next(&mut line) {
                Ok(LineRead::End) => return all,
                Ok(LineRead::TooLong(n)) => all.push(format!("{n} bytes")),
                Ok(_) => all.push(String::from_utf8_lossy(&line).into_owned()),
                Err(e) => {
                    all.push(e.kind().to_string());
                    return all;
                }
            }
        }
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text).expect("memory");
        packed.finish().expect("memory")
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn lines_of_every_end_are_lines() {
        assert_eq!(all(b"a\nb\r\n\nlast".to_vec()), ["a", "b", "", "last"]);
        assert!(all(Vec::new()).is_empty());
        assert_eq!(all(b"\n".to_vec()), [""]);
    }

    #[test]
    fn a_line_of_a_megabyte_is_counted_and_not_kept() {
        let mut text = vec![b'x'; 1 << 20];
        text.extend_from_slice(b"\nnext\n");
        text.extend_from_slice(&vec![b'y'; MOST_LINE_BYTES]);
        text.push(b'\n');
        let got = all(text);
        assert_eq!(got[..2], ["1048576 bytes".to_string(), "next".into()]);
        assert_eq!(got[2].len(), MOST_LINE_BYTES);
    }

    #[test]
    fn a_file_that_another_program_packed_says_how_to_unpack_it() {
        for (magic, command) in [
            (&b"\xfd7zXZ\0\0\x04"[..], "`xz -dc FILE | lastdrop"),
            (b"BZh91AY&SY", "`bzip2 -dc FILE | lastdrop"),
            (b"PK\x03\x04..", "unzip -p"),
        ] {
            let error = Lines::new(Cursor::new(magic.to_vec())).expect_err("packed");
            assert!(error.to_string().contains(command), "{error}");
        }
        assert_eq!(all(b"BZh is a word\n".to_vec()), ["BZh is a word"]);
    }

    #[test]
    fn packed_files_are_unpacked_member_by_member() {
        let long = "line of text\n".repeat(100_000);
        for pack in [gzip, zstd] {
            let mut bytes = pack(b"one\ntw");
            bytes.extend(pack(b"o\n"));
            if bytes[0] == 0x28 {
                // A skippable frame.
                bytes.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
            }
            bytes.extend(pack(long.as_bytes()));
            let got = all(bytes.clone());
            assert_eq!(
                (got.len(), &got[0][..], &got[1][..], &got[100_001][..]),
                (100_002, "one", "two", "line of text")
            );
            let torn = all(bytes[..bytes.len() - 9].to_vec());
            assert!(torn.len() > 2 && torn.last().is_some_and(|e| !e.starts_with("line")), "{:?}", torn.last());
        }
    }
}
