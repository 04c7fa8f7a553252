//! The logged answer to a replayed request, and whether the answer now is of the same kind.
//!
//! The comparison covers the status class (2xx, 3xx, 4xx, 5xx) and the redirect's target, if the log has it. A 304
//! answers a conditional request, and a replay sends none: 304 and 2xx count as the same. A 499 is nginx's note that
//! the client closed the connection, so it says nothing about the answer.

use lastdrop_model::Url;
use lastdrop_model::class::fold;
use serde::{Deserialize, Serialize};

const NOT_MODIFIED: u16 = 304;
const CLIENT_WENT_AWAY: u16 = 499;

/// A logged answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedAnswer {
    pub status: u16,
    /// The redirect's target as [`redirect_target`] makes it, if the log has one.
    pub target: Option<String>,
}

impl LoggedAnswer {
    /// Returns the answer in a log line; `None` if the line has nothing to compare.
    #[must_use]
    pub fn new(status: u16, target: Option<String>) -> Option<LoggedAnswer> {
        let says = (100..600).contains(&status) && status != CLIENT_WENT_AWAY;
        says.then(|| LoggedAnswer { status, target: target.filter(|_| is_redirect(status)) })
    }

    /// Whether an answer is of another kind. `location` is its Location field, `here` the requested URL.
    #[must_use]
    pub fn differs(&self, status: u16, location: Option<&[u8]>, here: &Url) -> bool {
        if class(self.status) != class(status) {
            return true;
        }
        self.target.as_ref().is_some_and(|target| {
            location.and_then(|location| redirect_target(here, location)).as_ref() != Some(target)
        })
    }
}

/// The first digit of a status; 2 for a 304.
fn class(status: u16) -> u16 {
    if status == NOT_MODIFIED { 2 } else { status / 100 }
}

fn is_redirect(status: u16) -> bool {
    class(status) == 3
}

/// Returns a redirect's path with numbers and ids folded, and the names of its query's fields: ids differ from run to
/// run. The host is left out, because the log's server may have another name.
#[must_use]
pub fn redirect_target(here: &Url, location: &[u8]) -> Option<String> {
    here.join(location).ok().map(|there| fold(&there.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Url {
        "http://127.0.0.1/shop/cart".parse().expect("valid")
    }

    fn logged(status: u16, target: Option<&str>) -> LoggedAnswer {
        LoggedAnswer::new(status, target.map(String::from)).expect("it says something")
    }

    #[test]
    fn another_status_class_differs_and_another_status_of_the_class_does_not() {
        for (log, answer, differs) in [
            (200, 200, false),
            (200, 206, false),
            (200, 302, true),
            (302, 200, true),
            (302, 303, false),
            (404, 410, false),
            (200, 500, true),
            (503, 200, true),
        ] {
            assert_eq!(logged(log, None).differs(answer, None, &here()), differs, "{log} {answer}");
        }
    }

    #[test]
    fn a_304_is_as_good_as_a_200_and_no_redirect() {
        assert!(!logged(304, None).differs(200, None, &here()));
        assert!(!logged(200, None).differs(304, None, &here()));
        assert!(logged(304, None).differs(302, Some(b"/login"), &here()));
        assert!(logged(302, None).differs(304, None, &here()));
        assert!(logged(304, None).differs(404, None, &here()));
    }

    #[test]
    fn a_redirect_to_elsewhere_differs_and_one_to_another_id_or_host_does_not() {
        let order = logged(302, Some("/order/{n}?tab"));
        for (location, differs) in [
            (&b"/order/8471?tab=2"[..], false),
            (b"http://www.example.com/order/1?tab=", false),
            (b"../order/7?tab=1", false),
            (b"/login?next=/order/7", true),
            (b"/order/7", true),
        ] {
            assert_eq!(order.differs(303, Some(location), &here()), differs, "{location:?}");
        }
        assert!(order.differs(302, None, &here()), "a redirect to nowhere");
        assert!(!logged(302, None).differs(302, Some(b"/anywhere"), &here()), "the log has no target");
    }

    #[test]
    fn a_line_without_an_answer_says_nothing() {
        for status in [0, 499, 99, 600, 999] {
            assert_eq!(LoggedAnswer::new(status, None), None, "{status}");
        }
        assert_eq!(logged(200, Some("/x")).target, None, "a 201 has a Location, too, and is no redirect");
    }
}
