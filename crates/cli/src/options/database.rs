//! Options for reading the databases at the end of a chain.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_database::{Access, Password};
use lastdrop_experiment::observe::databases::DatabaseOptions;

use crate::exit::UsageError;
use crate::options::secret::first_line;

#[derive(Debug, Args)]
pub struct DatabaseArgs {
    /// Also read this database: postgres://user@host/name or mysql://user@host/, with ?socket=/path for a local socket [default: the
    /// local socket of a database that is named or connected to]
    #[arg(long, value_name = "URL")]
    pub db: Vec<Access>,
    /// Read the database's password from the first line of this file [default: LASTDROP_DB_PASSWORD]
    #[arg(long, value_name = "FILE")]
    pub db_password_file: Option<PathBuf>,
    /// Trust these authorities, or these certificates, of databases, a PEM file; TLS is then required over TCP [default: the
    /// system's, where the database has TLS]
    #[arg(long, value_name = "FILE")]
    pub db_ca: Option<PathBuf>,
}

impl DatabaseArgs {
    /// The first of these options that was given.
    pub fn first(&self) -> Option<&'static str> {
        let given = [
            ("--db", !self.db.is_empty()),
            ("--db-password-file", self.db_password_file.is_some()),
            ("--db-ca", self.db_ca.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// The options for reading databases.
    ///
    /// # Errors
    /// When the file of the password or of the certificates cannot be read.
    pub fn options(&self) -> Result<DatabaseOptions> {
        let by_environment = || std::env::var("LASTDROP_DB_PASSWORD").ok();
        let password = match &self.db_password_file {
            None => by_environment(),
            Some(path) => {
                let about = || format!("the database's password: {}", path.display());
                Some(first_line(path).with_context(about)?)
            }
        };
        if let Some(path) = &self.db_ca {
            lastdrop_database::certificates(path).map_err(|what| UsageError(format!("--db-ca: {what}")))?;
        }
        Ok(DatabaseOptions {
            urls: self.db.clone(),
            password: password.filter(|p| !p.is_empty()).map(Password::new),
            ca: self.db_ca.clone(),
        })
    }
}
