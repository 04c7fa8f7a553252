//! Positions of the parts of a plan file, for the line and column of a mistake.

use super::format::{PlanFile, WithSpan};
use crate::plan::PlanPart;

/// Offsets of the lines of a text. The index is built once, because a file may have 100,000 requests to locate.
pub(super) struct LineIndex<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl LineIndex<'_> {
    pub(super) fn of(text: &str) -> LineIndex<'_> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        LineIndex { text, starts }
    }

    /// Returns line and column of an offset, from 1.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|start| *start <= offset);
        (line, self.text[self.starts[line - 1]..offset].chars().count() + 1)
    }
}

/// Line and column of the parts of a plan in its file, from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartPositions {
    phases: Vec<(usize, usize)>,
    requests: Vec<(usize, usize)>,
    http: (usize, usize),
    page: (usize, usize),
    network: (usize, usize),
    tls: (usize, usize),
}

/// Position of mistakes that concern the whole file.
const BEGINNING: (usize, usize) = (1, 1);

impl PartPositions {
    pub(super) fn of(file: &PlanFile, lines: &LineIndex<'_>) -> PartPositions {
        fn start<T>(part: Option<&WithSpan<T>>, lines: &LineIndex<'_>) -> (usize, usize) {
            part.map_or(BEGINNING, |p| lines.place(p.0.span().start))
        }
        PartPositions {
            phases: file.phase.iter().map(|p| lines.place(p.0.span().start)).collect(),
            requests: file.request.iter().map(|r| lines.place(r.0.span().start)).collect(),
            http: start(file.http.as_ref(), lines),
            page: start(file.page.as_ref(), lines),
            network: start(file.network.as_ref(), lines),
            tls: start(file.tls.as_ref(), lines),
        }
    }

    /// Returns the position of a part; `None` if it is not in the file but in a URL file or on the command line.
    #[must_use]
    pub fn of_part(&self, part: PlanPart) -> Option<(usize, usize)> {
        match part {
            PlanPart::Phase(i) => self.phases.get(i).copied(),
            PlanPart::Request(i) => self.requests.get(i).copied(),
            PlanPart::Http => Some(self.http),
            PlanPart::Page => Some(self.page),
            PlanPart::Network => Some(self.network),
            PlanPart::Tls => Some(self.tls),
            PlanPart::Whole => Some(BEGINNING),
        }
    }
}
