//! The whole terminal to draw on, and its keys.
//!
//! ratatui computes what has changed between two frames. This file works around three of its faults. Its `Terminal` prints
//! with `eprintln!` when it cannot show the cursor again, which panics if the terminal is gone. A frame takes memory for each
//! cell that a terminal claims to have. And crossterm never returns when it reads keys from a terminal that is gone.

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

/// Size of the output buffer, so that a frame is one write.
const FRAME_BYTES: usize = 64 << 10;
/// Limits of the area that is drawn. A cell takes 48 bytes, and there are two frames: 48 MB at most.
const MOST_ROWS: u16 = 500;
const MOST_COLUMNS: u16 = 1000;

/// The whole terminal; restores it on drop.
pub struct Canvas {
    terminal: Terminal<ClippedBackend>,
    keys: Option<KeySource>,
}

impl Canvas {
    /// Takes the terminal at a stream.
    ///
    /// # Errors
    /// When the stream is not a terminal, or the terminal is gone.
    pub fn take(stream: Stream, signals: KeySignals) -> io::Result<Canvas> {
        tty::take(stream, signals)?;
        let backend = ClippedBackend(CrosstermBackend::new(BufWriter::with_capacity(FRAME_BYTES, Tty)));
        let terminal = Terminal::new(backend).inspect_err(|_| tty::give_back())?;
        Ok(Canvas { terminal, keys: KeySource::open() })
    }

    /// Draws a frame.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if tty::was_taken_again() {
            self.redraw()?;
        }
        self.terminal.draw(paint).map(drop)
    }

    /// Makes the next frame draw all cells.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn redraw(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        // Before ratatui's terminal is dropped, so that its last output is discarded.
        tty::give_back();
    }
}

/// Input from the keyboard.
#[derive(Debug)]
pub enum Input {
    Key(KeyEvent),
    /// No key within the time.
    Nothing,
}

/// The terminal that keys are read from; None is stdin.
#[derive(Debug)]
struct KeySource(Option<File>);

impl KeySource {
    /// Opens the source that crossterm chooses: stdin if that is a terminal, otherwise the terminal of the session.
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

/// The keyboard of the terminal that is drawn on.
#[derive(Debug)]
pub struct Keyboard {
    source: Option<KeySource>,
    /// Keys that have been read and wait.
    pressed: VecDeque<KeyEvent>,
}

impl Canvas {
    /// Returns the keyboard; the second call returns one without keys.
    pub fn keyboard(&mut self) -> Keyboard {
        Keyboard { source: self.keys.take(), pressed: VecDeque::new() }
    }
}

impl Keyboard {
    /// Waits for a key, at most `wait`.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn next(&mut self, wait: Duration) -> io::Result<Input> {
        let wait = if self.pressed.is_empty() { wait } else { Duration::ZERO };
        let fd = self.source.as_ref().map(KeySource::fd);
        // Read only if there is input: crossterm would retry forever if the terminal is gone or the process is in the
        // background.
        if tty::wait_for_input(fd, wait)? && self.read().is_err() {
            // Go on without keys if they cannot be read.
            self.source = None;
        }
        Ok(self.pressed.pop_front().map_or(Input::Nothing, Input::Key))
    }

    /// Reads all available keys: the terminal does not show input that crossterm has already read.
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

/// crossterm's backend, limited to the area that is drawn.
struct ClippedBackend(CrosstermBackend<BufWriter<Tty>>);

/// The area of a terminal that is drawn.
fn clipped(size: Size) -> Size {
    Size { width: size.width.min(MOST_COLUMNS), height: size.height.min(MOST_ROWS) }
}

impl Backend for ClippedBackend {
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

    /// Returns the origin. The cursor is hidden, and asking the terminal for its position would take a round trip.
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
