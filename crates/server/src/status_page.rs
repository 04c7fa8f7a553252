//! Finds the status page of a server.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use lastdrop_probe::fastcgi::FpmSocket;
use lastdrop_probe::process::Birth;
use lastdrop_probe::status::StatusSource;

use crate::execution::{Reader, may_connect};
use crate::kind::Status;
use crate::resolve::url_of;
use crate::{ServerRef, fpm_config};

const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// The status page in a configuration, read with the rights of the process that names the configuration.
fn status_of_fpm(pid: i32, config: &Path) -> Option<StatusSource> {
    let found = {
        let _reader = Reader::of_process(pid);
        fpm_config::status(config)
    };
    found.filter(|status| {
        let StatusSource::FastCgi { socket: FpmSocket::Unix(path), .. } = status else { return true };
        let birth = Birth::of(pid).map(|birth| Birth { code: vec![config.into()], ..birth });
        birth.is_ok_and(|birth| may_connect(&birth, path))
    })
}

/// The status page: at the URL in the server's name, otherwise where its kind has it.
pub(crate) fn status_of(
    server: &ServerRef,
    pid: i32,
    config: Option<&Path>,
    listeners: &[SocketAddr],
) -> Option<StatusSource> {
    match &server.kind.status {
        // Only the adapter reads the configuration that contains the address of a stats socket.
        Status::Nowhere | Status::StatsSocket => None,
        Status::Http { format, paths } => match &server.url {
            Some(url) if url.path != "/" => Some(StatusSource::Page { format: *format, url: url.clone() }),
            given => {
                let base = given.clone().or_else(|| listeners.first().map(|a| url_of(*a)))?;
                paths.iter().find_map(|path| {
                    let source = StatusSource::Page { format: *format, url: base.with_path(path) };
                    source.read(false, ASK_TIMEOUT).is_ok().then_some(source)
                })
            }
        },
        Status::FastCgi { path } => {
            let own = config.and_then(|config| status_of_fpm(pid, config));
            let Some(url) = &server.url else { return own };
            let address = (url.host.as_str(), url.port).to_socket_addrs().ok()?.next()?;
            let socket = FpmSocket::Tcp(address);
            let apart = matches!(&own, Some(StatusSource::FastCgi { socket: s, apart: true, .. }) if *s == socket);
            let path = if url.path == "/" { (*path).to_string() } else { url.path.clone() };
            Some(StatusSource::FastCgi { socket, path, apart })
        }
    }
}
