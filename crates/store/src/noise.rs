//! The measured noise of this machine.

use lastdrop_model::documents::NoiseFloor;
use rusqlite::{OptionalExtension, params};

use crate::{Store, StoreError, json};

impl Store {
    /// Stores a measurement of this machine's noise.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_noise(&self, noise: &NoiseFloor) -> Result<(), StoreError> {
        self.connection().execute(
            "INSERT INTO noise (measured_unix_ms, url, document) VALUES (?, ?, ?)",
            params![noise.measured_unix_ms.unwrap_or(0) as i64, noise.url, json(noise)],
        )?;
        Ok(())
    }

    /// Returns the latest noise measurement, preferably for this URL, otherwise for any.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn noise(&self, url: &str) -> Result<Option<NoiseFloor>, StoreError> {
        let document: Option<String> = self
            .connection()
            .query_row("SELECT document FROM noise ORDER BY url = ? DESC, measured_unix_ms DESC LIMIT 1", [url], |r| {
                r.get(0)
            })
            .optional()?;
        Ok(document.and_then(|d| lastdrop_model::read_json(&d).ok()))
    }
}
