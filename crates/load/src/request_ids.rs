//! Ids that requests carry, so that their lines in the server's log can be found. An id is the run's prefix and a
//! number of sixteen hexadecimal digits. No other request of the run has it, whichever thread sent it.

use lastdrop_http::request::write_field;
use lastdrop_model::plan::REQUEST_ID;

/// Bits for the requests of one thread: more than a run of years sends.
const THREAD_SHIFT: u32 = 48;

/// The ids of one thread's requests.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// The whole id; its number is overwritten each time.
    text: Vec<u8>,
    next: u64,
}

impl RequestIds {
    pub fn new(prefix: &str, thread: usize) -> RequestIds {
        let text = format!("{prefix}{:016x}", 0).into_bytes();
        RequestIds { text, next: (thread as u64) << THREAD_SHIFT }
    }

    /// Returns the number of a new request, and reserves `more` after it.
    pub fn take(&mut self, more: usize) -> u64 {
        let number = self.next;
        self.next += 1 + more as u64;
        number
    }

    /// The id with this number.
    pub fn text(&mut self, number: u64) -> &[u8] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut rest = number;
        for digit in self.text.iter_mut().rev().take(16) {
            *digit = DIGITS[(rest & 15) as usize];
            rest >>= 4;
        }
        &self.text
    }

    /// Appends a prepared request, with the field of its id after the first line.
    pub fn write(&mut self, number: u64, request: &[u8], out: &mut Vec<u8>) {
        let line = request.windows(2).position(|w| w == b"\r\n").map_or(request.len(), |at| at + 2);
        out.extend_from_slice(&request[..line]);
        write_field(out, REQUEST_ID, self.text(number));
        out.extend_from_slice(&request[line..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_an_id_of_its_own() {
        let mut ids = RequestIds::new("run-", 2);
        assert_eq!((ids.take(0), ids.take(2), ids.take(0)), (2 << 48, (2 << 48) + 1, (2 << 48) + 4));
        assert_eq!(ids.text(0xabc), b"run-0000000000000abc");
        assert_eq!(ids.text(5), b"run-0000000000000005");
        let mut out = b"before".to_vec();
        ids.write(255, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", &mut out);
        assert_eq!(out, b"beforeGET / HTTP/1.1\r\nX-Request-Id: run-00000000000000ff\r\nHost: h\r\n\r\n");
    }
}
