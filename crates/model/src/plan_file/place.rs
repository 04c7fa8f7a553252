//! Where the parts of a plan file stand, for the line and column of a mistake.

use super::format::{Placed, PlanFile};
use crate::plan::{PlanError, Trouble};

/// Where the lines of a text begin: a file of 100,000 requests is asked for the place of each.
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl Lines<'_> {
    pub(super) fn of(text: &str) -> Lines<'_> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Lines { text, starts }
    }

    /// Line and column, from 1.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|start| *start <= offset);
        (line, self.text[self.starts[line - 1]..offset].chars().count() + 1)
    }
}

/// Where the parts of a file begin.
pub(super) struct Spans {
    phases: Vec<usize>,
    pub(super) requests: Vec<usize>,
    http: usize,
    page: usize,
    network: usize,
    tls: usize,
}

impl Spans {
    pub(super) fn of(file: &PlanFile) -> Spans {
        fn start<T>(part: Option<&Placed<T>>) -> usize {
            part.map_or(0, |p| p.0.span().start)
        }
        Spans {
            phases: file.phase.iter().map(|p| p.0.span().start).collect(),
            requests: file.request.iter().map(|r| r.0.span().start).collect(),
            http: start(file.http.as_ref()),
            page: start(file.page.as_ref()),
            network: start(file.network.as_ref()),
            tls: start(file.tls.as_ref()),
        }
    }

    pub(super) fn of_trouble(&self, trouble: &PlanError) -> usize {
        match trouble.part {
            Trouble::Phase(i) => self.phases.get(i).copied().unwrap_or(0),
            Trouble::Request(i) => self.requests.get(i).copied().unwrap_or(0),
            Trouble::Http => self.http,
            Trouble::Page => self.page,
            Trouble::Network => self.network,
            Trouble::Tls => self.tls,
            Trouble::Whole => 0,
        }
    }
}
