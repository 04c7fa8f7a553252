//! A slow link in a network namespace. It sends each packet for the far end back, each way after the same delay. To both
//! sides' TCP a server on the near end, requested at the far end, is that far away.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use super::Namespace;

/// The address where servers listen, and the one where clients reach them.
pub const NEAR: &str = "10.9.0.1";
pub const FAR: &str = "10.9.0.2";

pub struct Link {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Creates the link; None if the device cannot be created.
    pub fn start(space: &Namespace, one_way: Duration) -> Option<Link> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, made) = mpsc::channel();
        let (pid, stopped) = (space.pid(), Arc::clone(&stop));
        let thread = thread::spawn(move || match device(pid) {
            Some(device) => {
                let _ = ready.send(true);
                carry(device, one_way, &stopped);
            }
            None => drop(ready.send(false)),
        });
        let link = Link { stop, thread: Some(thread) };
        if !made.recv().expect("the thread says") {
            return None;
        }
        let set_up = format!("ip address add {NEAR}/24 dev far0 && ip link set far0 up");
        let mut command = Command::new("sh");
        command.args(["-c", &set_up]);
        space.inside(&command).stderr(Stdio::null()).status().is_ok_and(|s| s.success()).then_some(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().expect("one thread").join();
    }
}

/// A TUN device in the namespace of a process.
fn device(pid: i32) -> Option<File> {
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: libc::c_short,
        rest: [u8; 22],
    }
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    let space = File::open(format!("/proc/{pid}/ns/net")).ok()?;
    setns(space, CloneFlags::CLONE_NEWNET).ok()?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun").ok()?;
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    let mut request = Request { name: [0; 16], flags, rest: [0; 22] };
    request.name[..4].copy_from_slice(b"far0");
    // SAFETY: the structure is the one that the call expects (struct ifreq), and is valid during the call.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, &raw mut request) };
    (made == 0).then_some(file)
}

/// Sends each packet back with its addresses exchanged, which leaves all checksums right.
fn carry(mut device: File, one_way: Duration, stop: &AtomicBool) {
    let mut waiting: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        while waiting.front().is_some_and(|(due, _)| *due <= now) {
            let (_, packet) = waiting.pop_front().expect("there is one");
            let _ = device.write_all(&packet);
        }
        let until = waiting.front().map_or(Duration::from_millis(50), |(due, _)| due.saturating_duration_since(now));
        let wait = libc::timespec { tv_sec: 0, tv_nsec: until.as_nanos().min(50_000_000) as libc::c_long };
        let mut fd = libc::pollfd { fd: device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor and one time, valid during the call.
        unsafe { libc::ppoll(&raw mut fd, 1, &raw const wait, std::ptr::null()) };
        while let Ok(n) = device.read(&mut buffer) {
            let mut packet = buffer[..n].to_vec();
            if n >= 20 && packet[0] >> 4 == 4 {
                for i in 12..16 {
                    packet.swap(i, i + 4);
                }
                waiting.push_back((Instant::now() + one_way, packet));
            }
        }
    }
}
