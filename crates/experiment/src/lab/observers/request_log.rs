//! Writes a line per request, as CSV.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};

use lastdrop_model::{CaptureLevel, Event, Exchange};

use super::Observer;

/// The columns; times are microseconds since 1970, empty if there is none.
const COLUMNS: &str = "phase,request,due_us,sent_us,first_byte_us,done_us,fate,status\n";

/// A file that gets a line per request.
#[derive(Debug)]
pub struct RequestLog {
    file: File,
    /// The first error; nothing is written after it.
    pub error: Option<io::Error>,
}

impl RequestLog {
    #[must_use]
    pub fn new(mut file: File) -> RequestLog {
        let error = file.write_all(COLUMNS.as_bytes()).err();
        RequestLog { file, error }
    }

    fn write(&mut self, exchanges: &[Exchange]) {
        let mut text = String::new();
        for e in exchanges {
            let _ = write!(text, "{},{},{},", e.phase, e.request, e.due);
            for at in [e.sent, e.first_byte, e.done] {
                if let Some(at) = at {
                    let _ = write!(text, "{at}");
                }
                text.push(',');
            }
            let _ = writeln!(text, "{},{}", e.fate.name(), e.status);
        }
        self.error = self.file.write_all(text.as_bytes()).err();
    }
}

impl Observer for RequestLog {
    fn on_event(&mut self, event: &Event<'_>) {
        if let (Event::Exchanges { exchanges }, None) = (event, &self.error) {
            self.write(exchanges);
        }
    }

    fn capture_level(&self) -> CaptureLevel {
        CaptureLevel::Exchanges
    }

    fn error(&self) -> Option<String> {
        self.error.as_ref().map(|e| format!("could not be logged: {e}"))
    }
}
