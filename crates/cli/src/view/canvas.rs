//! The whole terminal to draw on, and its keys.
//!
//! ratatui computes what has changed between two pictures. Three things are done here because its own way does harm: its
//! `Terminal` prints with `eprintln!` when it cannot show the cursor again, which panics where the terminal has gone; a picture
//! takes memory for each cell that a terminal claims to have; and crossterm, asked for keys of a terminal that has gone, never returns.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use ratatui::backend::{Backend, ClearType, CrosstermBackend, WindowSize};
use ratatui::buffer::Cell;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::layout::{Position, Size};
use ratatui::{Frame, Terminal};

use super::tty::{self, KeySignals, Stream, Tty};

/// A frame is one write.
const FRAME_BYTES: usize = 64 << 10;
/// More of a terminal is not drawn on. A cell takes 48 bytes, and there are two pictures: 48 MB at most.
const MOST_ROWS: u16 = 500;
const MOST_COLUMNS: u16 = 1000;

/// The whole terminal. Dropped, it gives the terminal back as it was.
pub struct Canvas {
    terminal: Terminal<Screenful>,
    keys: Option<KeySource>,
}

impl Canvas {
    /// Takes the terminal that a stream is.
    ///
    /// # Errors
    /// When it is none, or has gone.
    pub fn take(stream: Stream, signals: KeySignals) -> io::Result<Canvas> {
        tty::take(stream, signals)?;
        let backend = Screenful(CrosstermBackend::new(BufWriter::with_capacity(FRAME_BYTES, Tty)));
        let terminal = Terminal::new(backend).inspect_err(|_| tty::give_back())?;
        Ok(Canvas { terminal, keys: KeySource::open() })
    }

    /// Draws a picture.
    ///
    /// # Errors
    /// When the terminal has gone.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if tty::was_taken_again() {
            self.redraw()?;
        }
        self.terminal.draw(paint).map(drop)
    }

    /// Has the next picture drawn whole.
    ///
    /// # Errors
    /// When the terminal has gone.
    pub fn redraw(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        // Before the terminal of ratatui is dropped: what that writes goes nowhere then.
        tty::give_back();
    }
}

/// What comes from a keyboard.
#[derive(Debug)]
pub enum Input {
    Key(KeyEvent),
    /// Nothing within the time.
    Nothing,
}

/// Where keys come from.
#[derive(Debug)]
struct KeySource(Option<File>);

impl KeySource {
    /// As crossterm chooses it: stdin if that is a terminal, or else the terminal of the session.
    fn open() -> Option<KeySource> {
        if tty::is_terminal(libc::STDIN_FILENO) {
            return Some(KeySource(None));
        }
        File::open("/dev/tty").ok().map(|file| KeySource(Some(file)))
    }

    fn fd(&self) -> i32 {
        self.0.as_ref().map_or(libc::STDIN_FILENO, File::as_raw_fd)
    }
}

/// Keys of the terminal that is drawn on.
#[derive(Debug)]
pub struct Keyboard {
    source: Option<KeySource>,
    /// Keys that came together with others.
    pressed: VecDeque<KeyEvent>,
}

impl Canvas {
    /// The keys, for whoever listens to them.
    pub fn keyboard(&mut self) -> Keyboard {
        Keyboard { source: self.keys.take(), pressed: VecDeque::new() }
    }
}

impl Keyboard {
    /// Waits for a key, for so long at most.
    ///
    /// # Errors
    /// When the terminal has gone.
    pub fn next(&mut self, wait: Duration) -> io::Result<Input> {
        let wait = if self.pressed.is_empty() { wait } else { Duration::ZERO };
        let fd = self.source.as_ref().map(KeySource::fd);
        // Only where there is something to read: of a terminal that has gone, or as a process in the background, crossterm
        // would try again for ever.
        if tty::wait_for_input(fd, wait)? && self.read().is_err() {
            // Without keys, where there is nothing to read them from.
            self.source = None;
        }
        Ok(self.pressed.pop_front().map_or(Input::Nothing, Input::Key))
    }

    /// Takes all keys that are there: what crossterm has read is no input of the terminal any more.
    fn read(&mut self) -> io::Result<()> {
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                self.pressed.push_back(key);
            }
        }
        Ok(())
    }
}

/// crossterm's way of drawing, on as much of the terminal as is drawn on.
struct Screenful(CrosstermBackend<BufWriter<Tty>>);

/// The part of a terminal that is drawn on.
fn clipped(size: Size) -> Size {
    Size { width: size.width.min(MOST_COLUMNS), height: size.height.min(MOST_ROWS) }
}

impl Backend for Screenful {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        self.0.draw(content)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.0.hide_cursor()
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.0.show_cursor()
    }

    /// Where the cursor was is of no interest: it is hidden. The terminal would have to be asked for it.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.0.set_cursor_position(position)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.0.clear()
    }

    fn clear_region(&mut self, part: ClearType) -> io::Result<()> {
        self.0.clear_region(part)
    }

    fn size(&self) -> io::Result<Size> {
        let (columns, rows) = tty::size()?;
        Ok(clipped(Size { width: columns, height: rows }))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        Backend::flush(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_of_any_size_takes_little_memory() {
        let most = clipped(Size { width: u16::MAX, height: u16::MAX });
        assert_eq!((most.height, most.width), (500, 1000));
        assert!(2 * usize::from(most.width) * usize::from(most.height) * size_of::<Cell>() <= 100 << 20);
        let small = Size { width: 80, height: 24 };
        assert_eq!(clipped(small), small);
    }
}
