//! A thread that takes pieces from a queue, so that the measuring threads never wait.

use std::cell::RefCell;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

/// Limit of waiting pieces: minutes, at one piece per second.
const MOST_WAITING: usize = 256;
/// How long the end waits for the pieces in the queue.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of lost pieces, and why.
#[derive(Debug, Default)]
pub struct Losses {
    pub pieces: AtomicU64,
    /// The first reason.
    why: Mutex<Option<String>>,
}

impl Losses {
    pub fn add(&self, pieces: u64, why: impl FnOnce() -> String) {
        self.pieces.fetch_add(pieces, Ordering::Relaxed);
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(why);
    }
}

/// The sender of pieces, and a receiver that disconnects when the thread has ended.
type QueueEnds = (SyncSender<Vec<u8>>, Receiver<()>);

/// The queue to the thread.
#[derive(Debug)]
pub struct Thread {
    /// None once it is closed.
    to: RefCell<Option<QueueEnds>>,
    losses: Arc<Losses>,
    taken: AtomicU64,
}

impl Thread {
    /// # Errors
    /// When the system has no more threads.
    pub fn start(name: &str, work: impl FnOnce(&Receiver<Vec<u8>>, &Losses) + Send + 'static) -> io::Result<Thread> {
        let (to, from) = sync_channel(MOST_WAITING);
        let (over, when_over): (Sender<()>, _) = channel();
        let losses = Arc::new(Losses::default());
        let theirs = Arc::clone(&losses);
        thread::Builder::new().name(name.into()).spawn(move || {
            work(&from, &theirs);
            drop(over);
        })?;
        Ok(Thread { to: RefCell::new(Some((to, when_over))), losses, taken: AtomicU64::new(0) })
    }

    /// Queues a piece, or drops it if too many wait.
    pub fn take(&self, piece: Vec<u8>) {
        let to = self.to.borrow();
        let Some((to, _)) = to.as_ref() else { return };
        self.taken.fetch_add(1, Ordering::Relaxed);
        match to.try_send(piece) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.losses.add(1, || "it was too slow to take them".into()),
            Err(TrySendError::Disconnected(_)) => self.losses.add(1, || "its thread has ended".into()),
        }
    }

    /// Waits until the queue is empty; returns a text about lost pieces.
    pub fn close(&self) -> Option<String> {
        if let Some((to, when_over)) = self.to.borrow_mut().take() {
            drop(to);
            if when_over.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let patience = PATIENCE.as_secs();
                self.losses.add(1, || format!("what waited could not be got rid of within {patience} s"));
            }
        }
        let lost = self.losses.pieces.load(Ordering::Relaxed);
        let why = self.losses.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.as_ref().map(|why| format!("{lost} of {} pieces are missing: {why}", self.taken.load(Ordering::Relaxed)))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_nothing_holds_nobody_up_and_what_is_dropped_is_counted() {
        let (go, wait) = channel::<()>();
        let thread = Thread::start("slow", move |from, _| {
            let _ = wait.recv();
            while from.recv().is_ok() {}
        })
        .expect("a thread");
        for _ in 0..MOST_WAITING + 7 {
            thread.take(vec![0]);
        }
        go.send(()).expect("it waits");
        let told = thread.close();
        assert_eq!(told.as_deref(), Some("7 of 263 pieces are missing: it was too slow to take them"));
        assert_eq!(thread.close(), told);
    }
}
