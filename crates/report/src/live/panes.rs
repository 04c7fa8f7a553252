//! What a screen can show: all of it in small, or a part in large.

/// A part of the screen that the user may have as a whole.
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
    /// In the order in which they are gone through.
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

    /// The one that is `steps` further among those that there are, round and round.
    #[must_use]
    pub fn step(self, among: &[Pane], steps: isize) -> Pane {
        let at = among.iter().position(|p| *p == self).unwrap_or(0) as isize;
        match among.len() as isize {
            0 => self,
            all => among[(at + steps).rem_euclid(all) as usize],
        }
    }
}
