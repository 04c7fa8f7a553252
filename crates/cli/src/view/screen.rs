//! The full-screen view, drawn by a thread of its own.
//!
//! The thread that reports events only adds them up, some tens of microseconds per second of load. The drawing thread draws
//! at most four frames per second, and only after a change. It holds their common lock while it paints cells in memory, never
//! while it writes to the terminal: a slow line delays frames, not measurements.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_experiment::lab::Observer;
use lastdrop_model::Event;
use lastdrop_report::live::{LiveExperiment, ScreenOptions, draw};
use ratatui::crossterm::event::KeyEvent;

use super::canvas::{Canvas, Input, Keyboard};
use super::keys::{KeyCommand, Keys};
use super::tty::{self, KeySignals, Stream};
use crate::signals::Stop;
use crate::stdio::{self, Occupant};

/// Minimum time between two frames.
const FRAME: Duration = Duration::from_millis(250);
/// How long to wait for a key at a time.
const HEARING: Duration = Duration::from_millis(50);

/// State that the observer and the drawing thread share.
#[derive(Default)]
struct SharedState {
    live: Mutex<LiveExperiment>,
    remarks: Mutex<Vec<(Instant, String)>>,
    /// The terminal has been given back.
    gone: AtomicBool,
}

/// The view as an observer.
pub struct Screen {
    shared: Arc<SharedState>,
}

type SharedCanvas = Arc<Mutex<Option<Canvas>>>;

/// Owns the terminal until stdout is written.
struct TerminalOwner {
    shared: Arc<SharedState>,
    terminal: SharedCanvas,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When it cannot be drawn on, or the system has no more threads.
    pub fn new(stop: Stop, colour: bool) -> io::Result<Screen> {
        let mut canvas = Canvas::take(Stream::Stderr, KeySignals::Signal)?;
        let keyboard = canvas.keyboard();
        let shared = Arc::new(SharedState::default());
        let terminal: SharedCanvas = Arc::new(Mutex::new(Some(canvas)));
        stdio::occupy(Box::new(TerminalOwner { shared: Arc::clone(&shared), terminal: Arc::clone(&terminal) }));
        let drawing = DrawingThread {
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

impl Occupant for TerminalOwner {
    fn leave(&self) {
        self.shared.gone.store(true, Ordering::Relaxed);
        // Waits for a frame in progress; none comes after it.
        drop(lock(&self.terminal).take());
    }
}

struct DrawingThread {
    shared: Arc<SharedState>,
    terminal: SharedCanvas,
    stop: Stop,
    manner: ScreenOptions,
    keyboard: Keyboard,
    keys: Keys,
    /// The frozen view.
    held: Option<Box<LiveExperiment>>,
    began: Instant,
    /// The last frame: version of the data, second of the clock, size of the terminal.
    drawn: Option<(u64, u64, (u16, u16))>,
}

impl DrawingThread {
    /// Draws until the terminal is given back, or cannot be drawn on any more.
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
                // Draw the effect of a key at once.
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

    /// Handles a key.
    fn take(&mut self, key: KeyEvent) {
        let panes = lock(&self.shared.live).panes();
        match self.keys.press(key, &mut self.manner, &panes, Instant::now()) {
            KeyCommand::Nothing => {}
            KeyCommand::Stop => self.stop.interrupt(),
            KeyCommand::Hold => {
                self.held = match self.held.take() {
                    Some(_) => None,
                    None => Some(Box::new(lock(&self.shared.live).clone())),
                };
                self.manner.paused = self.held.is_some();
            }
            KeyCommand::Mark(at, text) => lock(&self.shared.remarks).push((at, text)),
            KeyCommand::Redraw => {
                if let Some(terminal) = lock(&self.terminal).as_mut() {
                    let _ = terminal.redraw();
                }
            }
        }
    }
}
