#[derive(Debug, thiserror::Error)]
pub enum ServerError { #[error("x")] X }
