//! Bodies of requests: text, files, forms.

use std::path::Path;

use lastdrop_model::request::{Body, PartContent};
use lastdrop_model::units::show_bytes;

use crate::files::Files;
use crate::template::{Encoding, Template, encode_into};

/// Boundary of multipart bodies; fixed, so that a run can be repeated byte by byte.
const BOUNDARY: &str = "----lastdrop-7f83b1657ff1fc53b92dc18148a1d65d";

/// Most bytes of files to send: they are kept in memory twice, as read and in their request.
const MOST_BODY_BYTES: u64 = 512 << 20;

/// The files to send, with their total size.
#[derive(Debug)]
pub(super) struct Bodies<'a> {
    files: &'a Files,
    bytes: u64,
}

impl<'a> Bodies<'a> {
    pub fn new(files: &'a Files) -> Bodies<'a> {
        Bodies { files, bytes: 0 }
    }

    /// Reads a file to send.
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        let bytes = self.files.read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        self.bytes += bytes.len() as u64;
        if self.bytes > MOST_BODY_BYTES {
            let most = show_bytes(MOST_BODY_BYTES);
            return Err(format!("with {} the bodies of all requests have more than {most} together", path.display()));
        }
        Ok(bytes)
    }
}

pub(super) fn prepare_body(
    body: &Body,
    template: &dyn Fn(&str, Encoding) -> Result<Template, String>,
    encoded: &dyn Fn(&str, Encoding) -> Result<Template, String>,
    bodies: &mut Bodies<'_>,
    headers: &mut Vec<(String, String)>,
) -> Result<Option<Template>, String> {
    let mut content_type = |value: String| {
        if !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-type")) {
            headers.push(("Content-Type".into(), value));
        }
    };
    Ok(match body {
        Body::None => None,
        Body::Text(text) => Some(template(text, Encoding::Raw)?),
        Body::File(path) => Some(Template::literal(bodies.read(path)?)),
        Body::Form(fields) => {
            content_type("application/x-www-form-urlencoded".into());
            let mut whole = Template::default();
            for (i, (name, value)) in fields.iter().enumerate() {
                let mut start = if i == 0 { Vec::new() } else { vec![b'&'] };
                encode_into(name.as_bytes(), Encoding::Form, &mut start);
                start.push(b'=');
                whole.append(Template::literal(start));
                whole.append(encoded(value, Encoding::Form)?);
            }
            Some(whole)
        }
        Body::Multipart(parts) => {
            content_type(format!("multipart/form-data; boundary={BOUNDARY}"));
            let mut whole = Template::default();
            for part in parts {
                let escaped = |text: &str| text.replace('"', "%22").replace(['\r', '\n'], "");
                let mut head =
                    format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{}\"", escaped(&part.name));
                let (file_name, kind) = match &part.content {
                    PartContent::Text(_) => (None, None),
                    PartContent::File(path) => {
                        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                        (Some(name), Some("application/octet-stream"))
                    }
                };
                if let Some(name) = part.file_name.as_ref().or(file_name.as_ref()) {
                    head.push_str(&format!("; filename=\"{}\"", escaped(name)));
                }
                if let Some(kind) = part.content_type.as_deref().or(kind) {
                    head.push_str(&format!("\r\nContent-Type: {kind}"));
                }
                head.push_str("\r\n\r\n");
                whole.append(Template::literal(head.into_bytes()));
                match &part.content {
                    PartContent::Text(text) => whole.append(template(text, Encoding::Raw)?),
                    PartContent::File(path) => whole.append(Template::literal(bodies.read(path)?)),
                }
                whole.append(Template::literal(b"\r\n".to_vec()));
            }
            whole.append(Template::literal(format!("--{BOUNDARY}--\r\n").into_bytes()));
            Some(whole)
        }
    })
}
