//! The panes of the screen: an overview of everything, or one part in large.

/// A part of the screen that can fill it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pane {
    #[default]
    Overview,
    Latency,
    Server,
    Trials,
    Doctor,
    News,
}

impl Pane {
    /// In the order in which keys step through them.
    pub const ALL: [Pane; 6] = [Pane::Overview, Pane::Latency, Pane::Server, Pane::Trials, Pane::Doctor, Pane::News];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pane::Overview => "overview",
            Pane::Latency => "latency",
            Pane::Server => "server",
            Pane::Trials => "trials",
            Pane::Doctor => "causes",
            Pane::News => "events",
        }
    }

    /// Returns the pane `steps` further among those with content, wrapping around.
    #[must_use]
    pub fn step(self, among: &[Pane], steps: isize) -> Pane {
        let at = among.iter().position(|p| *p == self).unwrap_or(0) as isize;
        match among.len() as isize {
            0 => self,
            all => among[(at + steps).rem_euclid(all) as usize],
        }
    }
}
