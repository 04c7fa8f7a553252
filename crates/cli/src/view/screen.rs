//! The whole screen, drawn by a thread of its own.
//!
//! The thread that tells of events only adds them up (some tens of microseconds a second of load); drawing goes on beside it, at
//! most four times a second and only where something has changed. Between the two is a lock that is held while cells are
//! painted in memory, never while the terminal is written: a slow line delays pictures, not measurements.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_lab::Observer;
use lastdrop_model::Event;
use lastdrop_report::live::{LiveExperiment, ScreenOptions, draw};
use ratatui::crossterm::event::KeyEvent;

use super::canvas::{Canvas, Input, Keyboard};
use super::keys::{Asked, Keys};
use super::tty::{self, KeySignals, Stream};
use crate::signals::Stop;
use crate::stdio::{self, Occupant};

/// Time between two pictures, at least.
const FRAME: Duration = Duration::from_millis(250);
/// How soon a key is heard.
const HEARING: Duration = Duration::from_millis(50);

/// What the observer and the thread that draws share.
#[derive(Default)]
struct Shared {
    live: Mutex<LiveExperiment>,
    remarks: Mutex<Vec<(Instant, String)>>,
    /// Nothing is drawn any more.
    gone: AtomicBool,
}

/// The view as an observer.
pub struct Screen {
    shared: Arc<Shared>,
}

type Drawn = Arc<Mutex<Option<Canvas>>>;

/// Who has the terminal.
struct Taken {
    shared: Arc<Shared>,
    terminal: Drawn,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When it cannot be drawn on, or there can be no thread.
    pub fn new(stop: Stop, colour: bool) -> io::Result<Screen> {
        let mut canvas = Canvas::take(Stream::Stderr, KeySignals::Signal)?;
        let keyboard = canvas.keyboard();
        let shared = Arc::new(Shared::default());
        let terminal: Drawn = Arc::new(Mutex::new(Some(canvas)));
        stdio::occupy(Box::new(Taken { shared: Arc::clone(&shared), terminal: Arc::clone(&terminal) }));
        let drawing = Drawing {
            shared: Arc::clone(&shared),
            terminal,
            stop,
            manner: ScreenOptions { colour, ..ScreenOptions::default() },
            keyboard,
            keys: Keys::default(),
            held: None,
            began: Instant::now(),
            drawn: None,
        };
        let thread = thread::Builder::new().name("view".into()).spawn(move || drawing.go_on());
        thread.inspect_err(|_| stdio::vacate())?;
        Ok(Screen { shared })
    }
}

impl Observer for Screen {
    fn on_event(&mut self, event: &Event<'_>) {
        if !self.shared.gone.load(Ordering::Relaxed) {
            lock(&self.shared.live).on_event(event);
        }
    }

    fn take_marks(&mut self) -> Vec<(Instant, String)> {
        std::mem::take(&mut lock(&self.shared.remarks))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        stdio::vacate();
    }
}

impl Occupant for Taken {
    fn leave(&self) {
        self.shared.gone.store(true, Ordering::Relaxed);
        // Waits for a frame that is under way, and none comes after it.
        drop(lock(&self.terminal).take());
    }
}

struct Drawing {
    shared: Arc<Shared>,
    terminal: Drawn,
    stop: Stop,
    manner: ScreenOptions,
    keyboard: Keyboard,
    keys: Keys,
    /// The picture that is held.
    held: Option<Box<LiveExperiment>>,
    began: Instant,
    /// What was drawn last: the version of it, the second of the clock, and the size of the terminal.
    drawn: Option<(u64, u64, (u16, u16))>,
}

impl Drawing {
    /// Until the terminal is given back. Where it cannot be drawn on any more there is nobody to tell.
    fn go_on(mut self) {
        let mut due = Instant::now();
        while !self.shared.gone.load(Ordering::Relaxed) {
            if Instant::now() >= due {
                due = Instant::now() + FRAME;
                if self.frame().is_err() {
                    return;
                }
            }
            match self.keyboard.next(HEARING) {
                // A key is answered at once.
                Ok(Input::Key(key)) => {
                    self.take(key);
                    (self.drawn, due) = (None, Instant::now());
                }
                Ok(Input::Nothing) => {}
                Err(_) => return,
            }
        }
    }

    fn frame(&mut self) -> io::Result<()> {
        self.manner.elapsed = self.began.elapsed();
        self.manner.stopping = self.stop.is_asked();
        let mut terminal = lock(&self.terminal);
        let Some(terminal) = terminal.as_mut() else { return Ok(()) };
        let clock = self.manner.elapsed.as_secs() * 2 + u64::from(self.manner.stopping);
        let version = self.held.as_ref().map_or_else(|| lock(&self.shared.live).version, |held| held.version);
        let now = (version, clock, tty::size()?);
        if self.drawn == Some(now) && !tty::is_to_be_drawn_again() {
            return Ok(());
        }
        self.drawn = Some(now);
        let (shared, held, manner) = (&self.shared, &self.held, &self.manner);
        // Painted under the lock, written after it.
        let paint = |frame: &mut ratatui::Frame<'_>| match held {
            Some(held) => draw(frame, held, manner),
            None => draw(frame, &lock(&shared.live), manner),
        };
        terminal.draw(paint)
    }

    /// Takes a key.
    fn take(&mut self, key: KeyEvent) {
        let panes = lock(&self.shared.live).panes();
        match self.keys.press(key, &mut self.manner, &panes, Instant::now()) {
            Asked::Nothing => {}
            Asked::Stop => self.stop.interrupt(),
            Asked::Hold => {
                self.held = match self.held.take() {
                    Some(_) => None,
                    None => Some(Box::new(lock(&self.shared.live).clone())),
                };
                self.manner.paused = self.held.is_some();
            }
            Asked::Mark(at, text) => lock(&self.shared.remarks).push((at, text)),
            Asked::Redraw => {
                if let Some(terminal) = lock(&self.terminal).as_mut() {
                    let _ = terminal.redraw();
                }
            }
        }
    }
}
