//! Checks a few answers to requests without expectations: did the server do the work that was asked of it?
//!
//! A page behind a login answers 302, or 200 with the login form; a form with a missing token comes back with 200. None
//! of these is an error status, and all are faster than the work. Checked are the first answer of a class, the 2nd, the
//! 4th, the 7th, the 12th and so on, so that the checks cost nothing at many requests. Only the beginning of a body is
//! kept.

use lastdrop_model::class::fold;
use lastdrop_model::request::{Body, RequestSpec};
use lastdrop_model::{Url, printable};
use memchr::memmem;

use crate::logged::redirect_target;

/// Most answers that a thread checks.
const MOST_LOOKS: u32 = 200;

/// Longest title or redirect target shown.
const MOST_SHOWN_CHARS: usize = 80;

/// When the next check of an answer of each class is due.
#[derive(Debug, Default)]
pub(crate) struct CheckSchedule {
    /// Requests sent, and the number of the next one to check.
    classes: Vec<(u32, u32)>,
    left: u32,
}

impl CheckSchedule {
    /// `classes` is 0 if all requests are of one class.
    pub fn new(classes: usize) -> CheckSchedule {
        CheckSchedule { classes: vec![(0, 1); classes.max(1)], left: MOST_LOOKS }
    }

    /// Whether to check the answer to the next request of a class.
    #[inline]
    pub fn is_due(&mut self, class: u16) -> bool {
        let Some((sent, next)) = self.classes.get_mut(usize::from(class)) else { return false };
        *sent = sent.saturating_add(1);
        if *sent < *next || self.left == 0 {
            return false;
        }
        // Neither all odd nor all even: with redirects, a request and its follow-up alternate.
        *next = next.saturating_add(*next / 3 * 2 + *next % 3 * 2 / 3 + 1);
        self.left -= 1;
        true
    }
}

/// An answer to check, with its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckedAnswer<'a> {
    pub spec: &'a RequestSpec,
    pub method: &'a str,
    /// The requested URL, with the path as sent.
    pub here: &'a Url,
    pub status: u16,
    pub location: Option<&'a [u8]>,
    /// The run follows its redirects.
    pub is_followed: bool,
    /// The beginning of the body.
    pub body: &'a [u8],
}

/// Beginnings of the title of a page that only asks for a login.
const LOGIN_TITLES: [&str; 18] = [
    "log in",
    "login",
    "log on",
    "logon",
    "sign in",
    "signin",
    "sign on",
    "not logged in",
    "please log in",
    "please sign in",
    "anmelden",
    "anmeldung",
    "einloggen",
    "connexion",
    "se connecter",
    "iniciar sesi",
    "inloggen",
    "accedi",
];
/// Parts of a path that leads to a login page.
const LOGIN_PATHS: [&str; 9] =
    ["login", "log-in", "log_in", "logon", "signin", "sign-in", "sign_in", "authenticate", "/sso"];

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

fn leads_to_login(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    LOGIN_PATHS.iter().any(|word| path.contains(word))
}

impl CheckedAnswer<'_> {
    /// The request's name: its method, and its path as in classes.
    pub fn name(&self) -> String {
        format!("{} {}", self.spec.method, fold(&self.spec.url.path))
    }

    /// Whether it is a redirect that is followed. It proves nothing yet.
    pub fn leads_on(&self) -> bool {
        self.is_followed && is_redirect(self.status) && self.location.is_some()
    }

    /// Why the answer looks as if the work was not done; the text continues after the name.
    pub fn doubt(&self) -> Option<String> {
        if is_redirect(self.status) {
            return self.redirect();
        }
        if self.status != 200 {
            return None;
        }
        let html = String::from_utf8_lossy(self.body);
        let lower = html.to_ascii_lowercase();
        let title = title(&html, &lower);
        let small = title.to_ascii_lowercase();
        let page = || format!("is answered with a page called '{}'", shown(&title));
        let asks_for_login = LOGIN_TITLES.iter().any(|word| small.starts_with(word))
            || (LOGIN_TITLES.iter().any(|word| small.contains(word)) && has_input(&lower, "password"));
        let changes = matches!(self.spec.method.as_str(), "POST" | "PUT" | "PATCH" | "DELETE");
        // A login page is the right answer to a request for it; a POST there expects another.
        if asks_for_login && (self.method != "GET" || !leads_to_login(&self.spec.url.path)) {
            return Some(page());
        }
        if changes && (small.contains("csrf") || small.contains("cross-site request forgery")) {
            return Some(page());
        }
        (self.method == "POST" && self.is_form_again(&lower))
            .then(|| "is answered with the same form again: it may not have been accepted".into())
    }

    fn redirect(&self) -> Option<String> {
        let location = self.location?;
        let there = self.here.join(location).ok()?;
        let path = redirect_target(self.here, location)?;
        // After a POST a redirect is the usual answer.
        if !matches!(self.method, "GET" | "HEAD") && !leads_to_login(&path) {
            return None;
        }
        let is_same = there.tls == self.here.tls && there.port == self.here.port && there.host == self.here.host;
        let origin = match (is_same, there.tls) {
            (true, _) => String::new(),
            (false, tls) => format!("{}://{}", if tls { "https" } else { "http" }, there.host),
        };
        Some(format!("redirects to {}", shown(&format!("{origin}{path}"))))
    }

    /// Whether the page has a form with all fields that were sent, and a field that a page for reading does not have.
    fn is_form_again(&self, lower: &str) -> bool {
        let names: Vec<String> = match &self.spec.body {
            Body::Form(fields) => fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect(),
            Body::Text(text) if !text.starts_with(['{', '[', '<']) => {
                let name = |field: &str| field.split_once('=').map(|(name, _)| name.to_ascii_lowercase());
                text.split('&').filter_map(name).collect()
            }
            _ => Vec::new(),
        };
        let has_field = |name: &String| ['"', '\''].iter().any(|q| lower.contains(&format!("name={q}{name}{q}")));
        !names.is_empty()
            && ["method=\"post\"", "method='post'", "method=post"].iter().any(|post| lower.contains(post))
            && names.iter().all(has_field)
            && (lower.contains("<textarea") || has_input(lower, "hidden") || has_input(lower, "password"))
    }
}

/// Text of a server for display: its beginning, control characters visible.
fn shown(text: &str) -> String {
    let beginning: String = text.chars().take(MOST_SHOWN_CHARS).collect();
    printable::line(&beginning)
}

/// Whether a page, given in lower case, has an input of a type.
fn has_input(lower: &str, kind: &str) -> bool {
    ['"', '\''].iter().any(|q| lower.contains(&format!("type={q}{kind}{q}")))
}

/// The title of a page, with single spaces.
fn title(html: &str, lower: &str) -> String {
    let inside = || {
        let start = memmem::find(lower.as_bytes(), b"<title")?;
        let start = start + lower.get(start..)?.find('>')? + 1;
        let end = start + lower.get(start..)?.find("</title")?;
        html.get(start..end)
    };
    let words: Vec<&str> = inside().unwrap_or_default().split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt(method: &str, path: &str, sent: &str, status: u16, location: &str, body: &str) -> Option<String> {
        let here: Url = format!("http://127.0.0.1:8000{path}").parse().expect("a URL");
        let mut spec = RequestSpec::get(here.clone());
        spec.method = method.into();
        if !sent.is_empty() {
            spec.body = Body::Text(sent.into());
        }
        let location = Some(location.as_bytes()).filter(|l| !l.is_empty());
        let looked = CheckedAnswer {
            spec: &spec,
            method,
            here: &here,
            status,
            location,
            is_followed: false,
            body: body.as_bytes(),
        };
        looked.doubt()
    }

    const LOGIN: &str = "<html><head><TITLE>\n Log in\n</TITLE></head><form method=post><input type='password'></form>";
    const FORM: &str = "<title>Editing Main Page</title><form method=\"post\"><input type=\"hidden\" name=\"token\" \
                        value=\"\"><textarea name=\"text\">x</textarea></form>";

    #[test]
    fn work_that_was_not_done_is_doubted_and_other_answers_are_not() {
        for (method, path, sent, status, location, body, why) in [
            ("GET", "/mine/", "", 302, "/accounts/login/?next=/mine/", "", "redirects to /accounts/login/?next"),
            ("GET", "/a", "", 301, "https://127.0.0.1:8443/a", "", "redirects to https://127.0.0.1/a"),
            ("GET", "/a", "", 304, "", "", ""),
            ("GET", "/a", "", 200, "/b", "<title>A</title>", ""),
            ("POST", "/edit", "text=x", 302, "/item/7", "", ""),
            ("POST", "/edit", "text=x", 302, "/Login.html?next=8", "", "redirects to /Login.html?next"),
            ("GET", "/mine", "", 200, "", LOGIN, "is answered with a page called 'Log in'"),
            ("GET", "/login", "", 200, "", LOGIN, ""),
            ("POST", "/login", "user=x", 200, "", LOGIN, "is answered with a page called 'Log in'"),
            ("GET", "/help", "", 200, "", "<title>How to log in</title>", ""),
            ("GET", "/shop", "", 200, "", "<title>Shop</title><input type=\"password\">", ""),
            (
                "POST",
                "/edit",
                "text=x",
                200,
                "",
                FORM,
                "is answered with the same form again: it may not have been accepted",
            ),
            ("POST", "/edit", "other=x", 200, "", FORM, ""),
            ("POST", "/api", "{\"text\":1}", 200, "", FORM, ""),
            ("GET", "/edit", "", 200, "", FORM, ""),
            (
                "POST",
                "/edit",
                "id=1",
                200,
                "",
                "<title>Possible cross-site request forgery</title>",
                "is answered with a page called 'Possible cross-site request forgery'",
            ),
            ("POST", "/edit", "id=1", 403, "", FORM, ""),
            (
                "GET",
                "/a",
                "",
                200,
                "",
                "<title>Login \u{1b}[2J</title>",
                "is answered with a page called 'Login \\x1b[2J'",
            ),
            ("GET", "/a", "", 200, "", "<title", ""),
            ("GET", "/a", "", 200, "", "<title>Ⱥ log in", ""),
        ] {
            let got = doubt(method, path, sent, status, location, body).unwrap_or_default();
            assert_eq!(got, why, "{method} {path} {status} {location} {body}");
        }
    }

    #[test]
    fn looks_become_rare_and_end() {
        let mut looks = CheckSchedule::new(2);
        let due: Vec<u32> = (1..100).filter(|_| looks.is_due(1)).collect();
        assert_eq!(due, [1, 2, 4, 7, 12, 21, 36, 61]);
        assert!(looks.is_due(0) && looks.is_due(0) && !looks.is_due(0) && !looks.is_due(7));
        let mut many = CheckSchedule::new(1000);
        assert_eq!((0..1000).filter(|class| many.is_due(*class)).count(), MOST_LOOKS as usize);
    }
}
