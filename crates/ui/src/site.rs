//! Routes requests and produces the responses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use lastdrop_http::RequestParser;
use lastdrop_report::html::{Content, ReportDocument, served_page};
use lastdrop_store::{ItemKind, Remark, RunState, Store, StoreError, StoredId};
use lastdrop_wire::{Acceptor, Slot, Wire};
use maud::Markup;

use crate::answer::Answer;
use crate::authenticator::{AccessDecision, Authenticator};
use crate::follow::{self, EventStream};
use crate::progress::RunningTotals;
use crate::request::{self, Request, RequestError, value};
use crate::start::StartedRuns;
use crate::{Program, bounds, pages, stop};

/// The state shared by all connections.
#[derive(Debug)]
pub struct Site {
    authenticator: Authenticator,
    program: Box<dyn Program>,
    pub started: StartedRuns,
    made: String,
    acceptor: Acceptor,
    streams: AtomicUsize,
}

/// The page or action that a path names.
#[derive(Debug, PartialEq, Eq)]
enum Route<'a> {
    List,
    Changes,
    Compare,
    Run(&'a str),
    Events(&'a str),
    /// Actions that change something.
    Stop(&'a str),
    Again(&'a str),
    Remark(&'a str),
}

impl Route<'_> {
    fn of(path: &str) -> Option<Route<'_>> {
        // Paths are not decoded and never map to files; everything else is unknown.
        let is_id = |id: &&str| (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric());
        match path {
            "/" => return Some(Route::List),
            "/events" => return Some(Route::Changes),
            "/compare" => return Some(Route::Compare),
            _ => {}
        }
        let mut parts = path.strip_prefix("/run/")?.split('/');
        let id = parts.next().filter(is_id)?;
        match (parts.next(), parts.next()) {
            (None, _) => Some(Route::Run(id)),
            (Some("events"), None) => Some(Route::Events(id)),
            (Some("stop"), None) => Some(Route::Stop(id)),
            (Some("again"), None) => Some(Route::Again(id)),
            (Some("remark"), None) => Some(Route::Remark(id)),
            _ => None,
        }
    }

    fn method(&self) -> &'static str {
        match self {
            Route::Stop(_) | Route::Again(_) | Route::Remark(_) => "POST",
            _ => "GET",
        }
    }
}

/// Counts a stream down when it ends, even by a panic.
struct StreamGuard<'a>(&'a AtomicUsize);

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Site {
    pub fn new(
        authenticator: Authenticator,
        program: Box<dyn Program>,
        started: StartedRuns,
        made: String,
        acceptor: Acceptor,
    ) -> Site {
        Site { authenticator, program, started, made, acceptor, streams: AtomicUsize::new(0) }
    }

    /// Returns the number of open event streams.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Serves a connection until it ends.
    pub fn serve(&self, mut wire: Wire, slot: &Slot, local: IpAddr) {
        let mut parser = RequestParser::default();
        let mut store = None;
        let mut is_first = true;
        loop {
            let wait = if std::mem::take(&mut is_first) { bounds::FIRST } else { bounds::IDLE };
            let request = match request::read(&mut wire, &mut parser, wait) {
                Ok(request) => request,
                Err(RequestError::Over) => return,
                Err(RequestError::Refused(status)) => {
                    let _ = Answer::empty(status).write(&mut wire, false, false);
                    return wire.linger();
                }
            };
            let keep = request.keep_alive && !self.acceptor.is_over();
            let entry = self.authenticator.enter(&request, local);
            // A client without the token may be displaced by others, even while it gets its response.
            let _busy = (!matches!(entry, AccessDecision::Refused)).then(|| {
                slot.trust();
                slot.busy()
            });
            let answer = match entry {
                AccessDecision::Refused => Answer::empty(403),
                AccessDecision::Exchange(cookie) => Answer::see("/").with("Set-Cookie", cookie),
                AccessDecision::In => {
                    let opened = match store.take() {
                        Some(store) => Ok(store),
                        None => self.program.store(),
                    };
                    match opened {
                        Err(why) => self.failure(500, &why),
                        Ok(open) => {
                            let open = store.insert(open);
                            if let Some(stream) = Route::of(&request.path).filter(|place| is_stream(place, &request)) {
                                return self.stream(&mut wire, &request, &stream, open);
                            }
                            self.answer(&request, open)
                        }
                    }
                }
            };
            let is_in = answer.status != 403;
            if answer.write(&mut wire, keep && is_in, request.method == "HEAD").is_err() {
                return;
            }
            if !keep || !is_in {
                return wire.linger();
            }
        }
    }

    fn stream(&self, wire: &mut Wire, request: &Request, place: &Route<'_>, store: &Store) {
        let streams = self.streams.fetch_add(1, Ordering::Relaxed);
        let _counted = StreamGuard(&self.streams);
        let refused = match place {
            _ if !self.authenticator.may_follow(request) => Some(403),
            _ if streams >= bounds::STREAMS => Some(503),
            Route::Events(id) if store.progress(id).is_err() => Some(404),
            _ => None,
        };
        if let Some(status) = refused {
            let _ = Answer::empty(status).write(wire, false, false);
            return wire.linger();
        }
        let Ok(stream) = EventStream::begin(wire, &self.acceptor) else { return };
        // A reconnecting browser sends its position.
        let after = request.field("last-event-id").or(request.asked("after")).and_then(|had| had.parse().ok());
        // Whichever side ended the stream, nobody is left to get an error.
        let _ = match place {
            Route::Events(id) => stream.run(store, id, after.unwrap_or_default()),
            _ => stream.list(store),
        };
        wire.linger();
    }

    fn answer(&self, request: &Request, store: &Store) -> Answer {
        let Some(place) = Route::of(&request.path) else { return self.failure(404, "There is no such page.") };
        let method = if request.method == "HEAD" { "GET" } else { &request.method };
        if method != place.method() {
            return Answer::empty(405).with("Allow", place.method());
        }
        let answer = match place {
            Route::List | Route::Changes => self.list(request, store),
            Route::Compare => self.compare(request, store),
            Route::Run(id) | Route::Events(id) => self.shown(id, store),
            Route::Stop(id) => self.stop(id, store),
            Route::Again(id) => self.again(id, store),
            Route::Remark(id) => remark(id, request, store),
        };
        answer.unwrap_or_else(|e| match e {
            StoreError::NotFound(id) | StoreError::Ambiguous(id) => {
                self.failure(404, &format!("There is nothing kept as '{id}'."))
            }
            other => self.failure(500, &other.to_string()),
        })
    }

    fn page(&self, title: &str, lead: Markup, content: &Content<'_>, tail: Markup) -> Answer {
        Answer::page(served_page(title, lead, content, tail, &self.made))
    }

    /// Returns an error page.
    fn failure(&self, status: u16, why: &str) -> Answer {
        let page = served_page("Not done", pages::failure(why), &Content::Nothing, Markup::default(), &self.made);
        Answer::page_with(status, page)
    }

    fn list(&self, request: &Request, store: &Store) -> Result<Answer, StoreError> {
        let asked = pages::ListQuery::of(request);
        let words: Vec<&str> = asked.search.split_whitespace().collect();
        let listing = store.list(&words, asked.page * pages::ROWS, pages::ROWS)?;
        // The first of a pair is shown by its name, on whichever page of the list it is.
        let first = match &asked.first {
            Some(id) => store.listed_one(id)?,
            None => None,
        };
        let mut under_way = HashMap::new();
        for one in &listing.entries {
            if let ItemKind::Run { state: RunState::UnderWay(_), .. } = one.what {
                under_way.insert(one.id.clone(), RunningTotals::of(store, &one.id)?);
            }
        }
        let lead = pages::list(&asked, first.as_ref(), &listing, &under_way);
        Ok(self.page("Runs", lead, &Content::Nothing, Markup::default()))
    }

    fn shown(&self, id: &str, store: &Store) -> Result<Answer, StoreError> {
        if whole(id, store)? == StoredId::Document(id.to_string()) {
            let text = store.document(id)?;
            let tail = pages::remark(id, &store.remark(id)?, &self.authenticator);
            return Ok(match ReportDocument::read(&text) {
                Ok(shown) => self.page(id, pages::above(None), &Content::Documents(&shown), tail),
                Err(why) => self.failure(500, &why),
            });
        }
        let state = store.state(id)?;
        let remark = pages::remark(id, &store.remark(id)?, &self.authenticator);
        if let RunState::UnderWay(_) = state {
            let progress = store.progress(id)?;
            let live = follow::live(store, id, &progress)?;
            let lead = pages::above(Some(pages::stop(id, store.was_asked_to_stop(id)?, &self.authenticator)));
            return Ok(self.page(id, lead, &Content::Live(&live), remark));
        }
        let run = store.load(id)?;
        let lead = pages::above(Some(pages::actions(&run, &self.authenticator)));
        let shown = [ReportDocument::Run(Box::new(run))];
        let answer = self.page(id, lead, &Content::Documents(&shown), remark);
        store.check_reads()?;
        Ok(answer)
    }

    fn compare(&self, request: &Request, store: &Store) -> Result<Answer, StoreError> {
        let (Some(a), Some(b)) = (request.asked("a"), request.asked("b")) else {
            return Ok(self.failure(404, "Choose two runs to compare."));
        };
        if a == b {
            return Ok(self.failure(400, "A run is as fast as itself: choose another one beside it."));
        }
        let (first, second) = (store.load(a)?, store.load(b)?);
        Ok(match self.program.compare(&first, &second, store) {
            Err(why) => self.failure(500, &why),
            Ok(document) => {
                let lead = pages::above(Some(pages::swap(a, b)));
                let shown = [ReportDocument::Pair(Box::new(document), Box::new(first), Box::new(second))];
                self.page("Two runs", lead, &Content::Documents(&shown), Markup::default())
            }
        })
    }

    fn stop(&self, id: &str, store: &Store) -> Result<Answer, StoreError> {
        let RunState::UnderWay(maker) = store.state(id)? else {
            return Ok(self.failure(409, "This run is not under way any more."));
        };
        // A second signal would kill it without a report.
        if store.ask_to_stop(id)?
            && let Err(e) = stop::interrupt(&maker)
        {
            return Ok(self.failure(500, &format!("It could not be stopped: {e}")));
        }
        Ok(Answer::see(&format!("/run/{id}")))
    }

    fn again(&self, id: &str, store: &Store) -> Result<Answer, StoreError> {
        if let Err(why) = store.load(id)?.plan.repeatable() {
            return Ok(self.failure(409, &format!("It cannot be carried out again: {why}.")));
        }
        Ok(match self.started.start(self.program.again(id), store) {
            Ok(run) => Answer::see(&format!("/run/{run}")),
            Err(why) => self.failure(409, &format!("Nothing was started: {why}")),
        })
    }
}

fn is_stream(place: &Route<'_>, request: &Request) -> bool {
    matches!(place, Route::Events(_) | Route::Changes) && request.method == "GET"
}

/// Finds an object by its full id; addresses do not accept the beginning of an id.
fn whole(id: &str, store: &Store) -> Result<StoredId, StoreError> {
    let found = store.find_any(id)?;
    match &found {
        StoredId::Run(whole) | StoredId::Document(whole) if whole == id => Ok(found),
        _ => Err(StoreError::NotFound(id.to_string())),
    }
}

fn remark(id: &str, request: &Request, store: &Store) -> Result<Answer, StoreError> {
    whole(id, store)?;
    let form = request.form();
    let of = |name: &str| value(&form, name).unwrap_or_default();
    store.keep_remark(id, &Remark::new(of("tags"), of("note")))?;
    Ok(Answer::see(&format!("/run/{id}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_place_of_ours_is_nothing() {
        assert_eq!(Route::of("/run/3fa2"), Some(Route::Run("3fa2")));
        assert_eq!(Route::of("/run/3fa2/stop"), Some(Route::Stop("3fa2")));
        for path in [
            "",
            "//",
            "/run",
            "/run/",
            "/run//",
            "/run//stop",
            "/run/..",
            "/run/../stop",
            "/run/%2e%2e",
            "/run/a/",
            "/run/a/stop/",
            "/run/a/stop/b",
            "/run/<b>",
            "/run/a'b",
            "/run/a\"b",
            "/etc/passwd",
            "/../etc/passwd",
            "http://127.0.0.1/",
            "*",
            "/run/\u{e4}",
        ] {
            assert_eq!(Route::of(path), None, "{path}");
        }
        assert_eq!(Route::of(&format!("/run/{}", "a".repeat(65))), None);
    }
}
