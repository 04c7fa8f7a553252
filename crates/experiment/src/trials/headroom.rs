//! Demand against capacity: searches for the capacity with the requests of the demand, unless it is known.

use lastdrop_analyze::headroom::{CapacitySource, HeadroomEvidence, headroom as compute};
use lastdrop_model::documents::HeadroomDocument;

use super::capacity::{CapacityOptions, capacity};
use crate::lab::{Lab, LabError};

/// Searches for the capacity and computes the headroom.
///
/// # Errors
/// As [`capacity`].
pub fn headroom(
    lab: &mut Lab<'_>,
    evidence: HeadroomEvidence,
    search: &CapacityOptions,
) -> Result<HeadroomDocument, LabError> {
    let found = capacity(lab, search)?;
    Ok(compute(HeadroomEvidence { capacity: CapacitySource::Measured(Box::new(found)), ..evidence }))
}
