//! Variable-length numbers (LEB128): seven bits per byte, the lowest first.

use super::RecordError;

/// Limit of the counts of one second, so that the sums of a run of years do not overflow.
pub const MOST: u64 = 1 << 44;
/// Longest valid time, about 400 days. It is the largest value of its histogram bucket, so that it is written back
/// unchanged.
pub const MOST_US: u64 = (1 << 45) - 1;

pub fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads numbers one after the other, never past the end.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(rest: &'a [u8]) -> Reader<'a> {
        Reader { rest }
    }

    pub fn number(&mut self) -> Result<u64, RecordError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(RecordError::Torn)?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RecordError::Wrong("a number has more than 64 bits".into()))
    }

    /// Reads a number that is at most `most`; `what` names it in the error.
    pub fn number_below(&mut self, most: u64, what: &str) -> Result<u64, RecordError> {
        let number = self.number()?;
        if number > most {
            Err(RecordError::Wrong(format!("{what}: {number} is more than {most}")))
        } else {
            Ok(number)
        }
    }

    /// Reads a number of items that follow, each of at least `bytes` bytes. More items than fit are an error.
    pub fn length(&mut self, bytes: usize, what: &str) -> Result<usize, RecordError> {
        let length = self.number()?;
        let room = (self.rest.len() / bytes) as u64;
        if length > room {
            return Err(RecordError::Wrong(format!("{what}: {length} of them are not there")));
        }
        Ok(length as usize)
    }

    /// Checks that all bytes were read.
    pub fn end(&self) -> Result<(), RecordError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(RecordError::Wrong(format!("{} bytes follow its end", self.rest.len())))
        }
    }
}
