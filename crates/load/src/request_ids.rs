//! Ids that requests carry: one by which their lines in the server's log are found, and one that begins a trace. Both end
//! in a number of sixteen hexadecimal digits. No other request of the run has it, whichever thread sent it.

use lastdrop_model::TraceId;
use lastdrop_model::plan::{REQUEST_ID, TRACEPARENT};

/// Bits for the requests of one thread: more than a run of years sends.
const THREAD_SHIFT: u32 = 48;
/// A span's id must not be 0.
const SPAN: u64 = 1 << 63;

/// Which ids the requests of a run carry.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdFields {
    /// What the ids for the server's log begin with.
    pub log_prefix: Option<String>,
    /// The first half of all trace ids.
    pub trace_prefix: Option<u64>,
}

/// The ids of one thread's requests.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// The header fields; their numbers are overwritten each time.
    fields: Vec<u8>,
    /// Where the digits of a number begin, and the bits that are set in it besides.
    numbers: Vec<(usize, u64)>,
    trace_prefix: Option<u64>,
    /// True if lines of the server's log are found by the ids.
    pub joins_log: bool,
    next: u64,
}

impl RequestIds {
    /// Returns None if requests carry no id.
    pub fn new(wanted: &IdFields, thread: usize) -> Option<RequestIds> {
        let IdFields { log_prefix, trace_prefix } = wanted;
        let (mut fields, mut numbers) = (Vec::new(), Vec::new());
        if let Some(prefix) = log_prefix {
            fields.extend_from_slice(format!("{REQUEST_ID}: {prefix}").as_bytes());
            numbers.push((fields.len(), 0));
            fields.extend_from_slice(format!("{:016x}\r\n", 0).as_bytes());
        }
        if let Some(prefix) = trace_prefix {
            fields.extend_from_slice(format!("{TRACEPARENT}: 00-{prefix:016x}").as_bytes());
            numbers.push((fields.len(), 0));
            fields.extend_from_slice(format!("{:016x}-", 0).as_bytes());
            numbers.push((fields.len(), SPAN));
            // The last two digits ask that the trace is kept.
            fields.extend_from_slice(format!("{:016x}-01\r\n", 0).as_bytes());
        }
        (!fields.is_empty()).then(|| RequestIds {
            fields,
            numbers,
            trace_prefix: *trace_prefix,
            joins_log: log_prefix.is_some(),
            next: (thread as u64) << THREAD_SHIFT,
        })
    }

    /// Returns the number of a new request, and reserves `more` after it.
    pub fn take(&mut self, more: usize) -> u64 {
        let number = self.next;
        self.next += 1 + more as u64;
        number
    }

    /// The trace that the request with this number begins.
    pub fn trace(&self, number: u64) -> Option<TraceId> {
        self.trace_prefix.map(|prefix| TraceId(u128::from(prefix) << 64 | u128::from(number)))
    }

    /// The header fields of the request with this number, each with its end of line.
    pub fn fields(&mut self, number: u64) -> &[u8] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for (at, bits) in &self.numbers {
            let mut rest = number | bits;
            for digit in self.fields[*at..at + 16].iter_mut().rev() {
                *digit = DIGITS[(rest & 15) as usize];
                rest >>= 4;
            }
        }
        &self.fields
    }

    /// Appends a prepared request, with the fields of its ids after the first line.
    pub fn write(&mut self, number: u64, request: &[u8], out: &mut Vec<u8>) {
        let line = request.windows(2).position(|w| w == b"\r\n").map_or(request.len(), |at| at + 2);
        out.extend_from_slice(&request[..line]);
        out.extend_from_slice(self.fields(number));
        out.extend_from_slice(&request[line..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(log: Option<&str>, trace_prefix: Option<u64>) -> Option<RequestIds> {
        RequestIds::new(&IdFields { log_prefix: log.map(str::to_string), trace_prefix }, 2)
    }

    #[test]
    fn each_request_has_an_id_of_its_own() {
        let mut ids = ids(Some("run-"), None).expect("ids");
        assert_eq!((ids.take(0), ids.take(2), ids.take(0)), (2 << 48, (2 << 48) + 1, (2 << 48) + 4));
        assert_eq!(ids.fields(0xabc), b"X-Request-Id: run-0000000000000abc\r\n");
        let mut out = b"before".to_vec();
        ids.write(255, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", &mut out);
        assert_eq!(out, b"beforeGET / HTTP/1.1\r\nX-Request-Id: run-00000000000000ff\r\nHost: h\r\n\r\n");
        assert_eq!(ids.trace(1), None);
    }

    #[test]
    fn each_request_begins_a_trace_of_its_own() {
        let mut both = ids(Some("run-"), Some(0xfe)).expect("ids");
        assert_eq!(
            String::from_utf8_lossy(both.fields(5)),
            "X-Request-Id: run-0000000000000005\r\ntraceparent: 00-00000000000000fe0000000000000005-8000000000000005-01\r\n"
        );
        assert_eq!(both.trace(5).map(|id| id.to_string()).as_deref(), Some("00000000000000fe0000000000000005"));
        // Not even the first request of the first thread has a span of zeros.
        let mut alone = RequestIds::new(&IdFields { log_prefix: None, trace_prefix: Some(1) }, 0).expect("ids");
        let first = alone.take(0);
        assert!(alone.fields(first).ends_with(b"-8000000000000000-01\r\n") && !alone.joins_log);
        assert!(ids(None, None).is_none());
    }
}
