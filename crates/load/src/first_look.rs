//! A look at a few answers of requests of which nobody has said what to expect: did the server do the work that was asked of it?
//!
//! A page behind a login answers 302, or 200 with the login's form; a form whose token is missing comes back with 200. Nothing of that
//! is an error status, and all of it is faster than the work. Looked at are the first answer of a class, the 2nd, the 4th, the 7th, the 12th
//! and so on, so that looks cost nothing where many requests are sent; of a body, its beginning.

use lastdrop_model::class::fold;
use lastdrop_model::request::{Body, RequestSpec};
use lastdrop_model::{Url, printable};
use memchr::memmem;

use crate::logged::redirect_target;

/// Answers that a thread looks at, at most.
const MOST_LOOKS: u32 = 200;

/// Of a title or a redirect's target.
const MOST_SHOWN_CHARS: usize = 80;

/// When the next look at an answer of each class is due.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Requests that were sent, and the number of the next that is looked at.
    classes: Vec<(u32, u32)>,
    left: u32,
}

impl Looks {
    /// `classes` is 0 where all requests are of one.
    pub fn new(classes: usize) -> Looks {
        Looks { classes: vec![(0, 1); classes.max(1)], left: MOST_LOOKS }
    }

    /// A request of a class is about to be sent: is its answer to be looked at?
    #[inline]
    pub fn is_due(&mut self, class: u16) -> bool {
        let Some((sent, next)) = self.classes.get_mut(usize::from(class)) else { return false };
        *sent = sent.saturating_add(1);
        if *sent < *next || self.left == 0 {
            return false;
        }
        // Neither all odd nor all even: with redirects a request and what follows from it take turns.
        *next = next.saturating_add(*next / 3 * 2 + *next % 3 * 2 / 3 + 1);
        self.left -= 1;
        true
    }
}

/// An answer, and what it answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looked<'a> {
    pub spec: &'a RequestSpec,
    pub method: &'a str,
    /// The URL that it was asked for, with the path as it was sent.
    pub here: &'a Url,
    pub status: u16,
    pub location: Option<&'a [u8]>,
    /// The run follows redirects of it.
    pub is_followed: bool,
    /// The beginning of it.
    pub body: &'a [u8],
}

/// Words with which the title of a page begins that only asks for a login.
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
/// Parts of a path that leads to one.
const LOGIN_PATHS: [&str; 9] =
    ["login", "log-in", "log_in", "logon", "signin", "sign-in", "sign_in", "authenticate", "/sso"];

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

fn leads_to_login(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    LOGIN_PATHS.iter().any(|word| path.contains(word))
}

impl Looked<'_> {
    /// What the request is called: its method, and its path as classes have it.
    pub fn name(&self) -> String {
        format!("{} {}", self.spec.method, fold(&self.spec.url.path))
    }

    /// Is it a redirect that is followed? It says nothing yet.
    pub fn leads_on(&self) -> bool {
        self.is_followed && is_redirect(self.status) && self.location.is_some()
    }

    /// Why the answer looks as if the work was not done; it goes on where the name ends.
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
        // A login's own page is what is wanted where that is asked for; whoever posts there wants another.
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

    /// Does the page have a form with all fields that were sent, and with one that a page for reading has not?
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

/// What a server said, as it is shown: its beginning, control characters visible.
fn shown(text: &str) -> String {
    let beginning: String = text.chars().take(MOST_SHOWN_CHARS).collect();
    printable::line(&beginning)
}

/// Has a page an input of a type? The page is in small letters.
fn has_input(lower: &str, kind: &str) -> bool {
    ['"', '\''].iter().any(|q| lower.contains(&format!("type={q}{kind}{q}")))
}

/// The title of a page, with single blanks.
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
        let looked =
            Looked { spec: &spec, method, here: &here, status, location, is_followed: false, body: body.as_bytes() };
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
        let mut looks = Looks::new(2);
        let due: Vec<u32> = (1..100).filter(|_| looks.is_due(1)).collect();
        assert_eq!(due, [1, 2, 4, 7, 12, 21, 36, 61]);
        assert!(looks.is_due(0) && looks.is_due(0) && !looks.is_due(0) && !looks.is_due(7));
        let mut many = Looks::new(1000);
        assert_eq!((0..1000).filter(|class| many.is_due(*class)).count(), MOST_LOOKS as usize);
    }
}
