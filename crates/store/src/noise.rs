//! What the noise of this machine was found to be.

use lastdrop_model::documents::NoiseFloor;
use rusqlite::{OptionalExtension, params};

use crate::{Store, StoreError, json};

impl Store {
    /// Keeps what the noise of this machine was found to be.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn keep_noise(&self, noise: &NoiseFloor) -> Result<(), StoreError> {
        self.connection().execute(
            "INSERT INTO noise (measured_unix_ms, url, document) VALUES (?, ?, ?)",
            params![noise.measured_unix_ms.unwrap_or(0) as i64, noise.url, json(noise)],
        )?;
        Ok(())
    }

    /// The noise that was found last: with this URL where there is one, else with any.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn noise(&self, url: &str) -> Result<Option<NoiseFloor>, StoreError> {
        let document: Option<String> = self
            .connection()
            .query_row("SELECT document FROM noise ORDER BY url = ? DESC, measured_unix_ms DESC LIMIT 1", [url], |r| {
                r.get(0)
            })
            .optional()?;
        Ok(document.and_then(|d| serde_json::from_str(&d).ok()))
    }
}
