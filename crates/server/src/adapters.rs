//! The adapters, a line each.

use crate::adapter::Adapter;
use crate::apache::Apache;
use crate::fpm::Fpm;
use crate::haproxy::Haproxy;
use crate::kind::AdapterName;
use crate::kinds;
use crate::left::or_restore;
use crate::nginx::Nginx;
use crate::target::Target;
use crate::{ServerError, ServerRef};

/// Finds the running server that a name means.
///
/// # Errors
/// When there is none, more than one, or it may not be looked at.
pub fn discover(server: &ServerRef) -> Result<Box<dyn Adapter>, ServerError> {
    find_adapter(server).map_err(|e| or_restore(e, server))
}

pub(crate) fn find_adapter(server: &ServerRef) -> Result<Box<dyn Adapter>, ServerError> {
    let adapter = server.kind.adapter.ok_or_else(|| {
        ServerError::Setting(format!(
            "the settings of '{server}' cannot be read or changed yet; those of {} can. Any server can be loaded \
             (lastdrop run URL) and looked at (lastdrop watch {server})",
            kinds::changeable()
        ))
    })?;
    Ok(match adapter {
        AdapterName::Apache => Box::new(Apache::discover(server)?),
        AdapterName::Haproxy => Box::new(Haproxy::discover(server)?),
        AdapterName::Nginx => Box::new(Nginx::discover(server)?),
        AdapterName::PhpFpm => Box::new(Fpm::discover(server)?),
        AdapterName::Target => Box::new(Target::discover(server)?),
    })
}
