//! Reads `[[request]]` of a plan file.

use std::path::Path;

use super::format::RequestFile;
use crate::request::{Auth, Body, ExtractSource, ExtractSpec, FormPart, PartContent, RequestSpec, check_header};
use crate::url::Url;

/// A mistake: what is wrong, and what to try.
type Mistake = (&'static str, &'static str);

pub(super) fn read_request(r: &RequestFile, url: Option<&Url>, folder: &Path) -> Result<RequestSpec, Mistake> {
    let url = match (&r.url, url) {
        (Some(own), _) => own.0.clone(),
        (None, Some(url)) => url.clone(),
        (None, None) => return Err(("a request without a url", "give it one, or one for all at the top of the file")),
    };
    let mut bodies: Vec<Body> = Vec::new();
    bodies.extend(r.body.clone().map(Body::Text));
    bodies.extend(r.body_file.as_ref().map(|p| Body::File(folder.join(p))));
    if let Some(form) = &r.form {
        bodies.push(Body::Form(form.0.clone()));
    }
    if let Some(parts) = &r.multipart {
        let mut all = Vec::new();
        for part in parts {
            let content = match (&part.value, &part.file) {
                (Some(value), None) => PartContent::Text(value.clone()),
                (None, Some(file)) => PartContent::File(folder.join(file)),
                _ => return Err(("a part of a multipart body needs a value or a file", "write value = or file =")),
            };
            let (file_name, content_type) = (part.filename.clone(), part.content_type.clone());
            if content_type.as_ref().is_some_and(|kind| check_header("Content-Type", kind).is_err()) {
                return Err(("a type of a part that is no header's value", "write type = \"text/plain\""));
            }
            all.push(FormPart { name: part.name.clone(), content, file_name, content_type });
        }
        bodies.push(Body::Multipart(all));
    }
    if bodies.len() > 1 {
        return Err(("a request with more than one body", "keep one of body, body_file, form and multipart"));
    }
    let body = bodies.pop().unwrap_or_default();
    let split = |text: &String| {
        text.split_once(':')
            .map(|(user, password)| (user.to_string(), password.to_string()))
            .ok_or(("basic and digest need a user and a password", "write \"user:password\""))
    };
    let auth = match (&r.basic, &r.digest, &r.bearer) {
        (None, None, None) => None,
        (Some(text), None, None) => {
            let (user, password) = split(text)?;
            Some(Auth::Basic { user, password })
        }
        (None, Some(text), None) => {
            let (user, password) = split(text)?;
            Some(Auth::Digest { user, password })
        }
        (None, None, Some(token)) => Some(Auth::Bearer(token.clone())),
        _ => return Err(("a request with more than one way to authenticate", "keep one of basic, digest and bearer")),
    };
    let mut extract = Vec::new();
    for (name, from) in &r.extract {
        let from = match (&from.header, &from.regex, &from.json, &from.url) {
            (Some(header), None, None, None) => ExtractSource::Header(header.clone()),
            (None, Some(regex), None, None) => ExtractSource::Regex(regex.clone()),
            (None, None, Some(pointer), None) => ExtractSource::Json(pointer.clone()),
            (None, None, None, Some(regex)) => ExtractSource::Url(regex.clone()),
            _ => {
                return Err((
                    "a value is taken from a header, by a regex, from JSON, or from where a redirect led to",
                    "write one of header =, regex =, json = and url =",
                ));
            }
        };
        extract.push(ExtractSpec { name: name.clone(), from });
    }
    let method = r.method.clone().unwrap_or_else(|| if body == Body::None { "GET" } else { "POST" }.into());
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
        return Err(("that is not a request method", "write GET, HEAD, POST, PUT, DELETE …"));
    }
    let mut headers = Vec::new();
    for (name, value) in &r.headers {
        if check_header(name, value).is_err() {
            return Err((
                "a header that cannot be sent",
                "names are letters, digits and hyphens; values have no control characters",
            ));
        }
        headers.push((name.clone(), value.clone()));
    }
    Ok(RequestSpec {
        name: r.name.clone().unwrap_or_default(),
        method: method.to_ascii_uppercase(),
        url,
        headers,
        lines: None,
        body,
        weight: r.weight.map_or(1.0, |w| w.0),
        auth,
        expect: r.expect.iter().map(|e| e.0.clone()).collect(),
        extract,
        think: r.think.as_ref().map(|t| t.0),
        once: r.once,
        last: r.last,
        literal: false,
    })
}
