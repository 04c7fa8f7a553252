//! Numbers of variable length (LEB128): seven bits a byte, the lowest first.

use super::RecordError;

/// Counts of one second are below this, so that sums of a run of years do not overflow.
pub const MOST: u64 = 1 << 44;
/// A year and some: times beyond it are none. It is the last of its bucket, as which it is written again.
pub const MOST_US: u64 = (1 << 45) - 1;

pub fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads one after the other what is there, and never beyond it.
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

    /// A number that is at most `most`; `what` it is, for the error.
    pub fn number_below(&mut self, most: u64, what: &str) -> Result<u64, RecordError> {
        let number = self.number()?;
        if number > most {
            Err(RecordError::Wrong(format!("{what}: {number} is more than {most}")))
        } else {
            Ok(number)
        }
    }

    /// How many of something follow, each of which has at least `bytes` bytes: no more than there is room for.
    pub fn length(&mut self, bytes: usize, what: &str) -> Result<usize, RecordError> {
        let length = self.number()?;
        let room = (self.rest.len() / bytes) as u64;
        if length > room {
            return Err(RecordError::Wrong(format!("{what}: {length} of them are not there")));
        }
        Ok(length as usize)
    }

    /// That was all.
    pub fn end(&self) -> Result<(), RecordError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(RecordError::Wrong(format!("{} bytes follow its end", self.rest.len())))
        }
    }
}
