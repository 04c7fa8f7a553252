//! Runs a command line with the original program and with ours, and compares the two.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use regex::Regex;

use super::Folder;

/// Settings of siege without those built-in ones that make it slow or coloured.
const SIEGE: &str = "verbose = true\ncolor = off\nbenchmark = true\n";

/// The folders in which the originals and ours run.
pub struct OriginalAndOwn {
    pub folder: Folder,
    /// Placeholders of command lines and their values: `{U}` is a URL.
    words: Vec<(&'static str, String)>,
    /// Files that the command lines name.
    files: Vec<(&'static str, Vec<u8>)>,
}

impl OriginalAndOwn {
    pub fn new(
        folder: Folder,
        words: Vec<(&'static str, String)>,
        files: Vec<(&'static str, Vec<u8>)>,
    ) -> OriginalAndOwn {
        // Without this siege would write its settings and print a message.
        fs::create_dir_all(folder.join("home/.siege")).expect("created");
        fs::write(folder.join("home/.siege/siege.conf"), "json_output = true\nverbose = true\n").expect("written");
        OriginalAndOwn { folder, words, files }
    }

    /// Has the files and placeholders for a server that misbehaves.
    pub fn for_misbehaving(folder: Folder, port: u16) -> OriginalAndOwn {
        let url = format!("http://127.0.0.1:{port}");
        let words = vec![
            ("{U}", url.clone()),
            ("{A}", format!("127.0.0.1:{port}")),
            ("{H}", format!("--server 127.0.0.1 --port {port}")),
        ];
        let files = [
            ("rc", SIEGE.to_string()),
            ("empty", String::new()),
            ("five", format!("{SIEGE}failures = 5\n")),
            ("never", format!("{SIEGE}failures = 0\n")),
            ("csv", format!("{SIEGE}csv = true\ndisplay-id = true\n")),
            ("id", format!("{SIEGE}display-id = true\nfullurl = true\n")),
            ("csvurl", format!("{SIEGE}csv = true\nfullurl = true\ntimestamp = true\n")),
            ("head", format!("{SIEGE}gmethod = HEAD\nprotocol = HTTP/1.1\n")),
            ("json", format!("{SIEGE}gmethod = HEAD\njson_output = true\n")),
            ("waits", format!("{SIEGE}timeout = 1\n")),
            ("post", "abc\n".into()),
            ("urls", format!("# c\n{url}/ok\n{url}/404\n{url}/a b\n{url}/ok POST a=b\n{url}/ok DELETE\n")),
            ("sess", "/ok\n  /once\n/404\n\n/ok method=POST contents=\"a b\"\n".into()),
            ("two", "/ok\0/404\0".into()),
            ("five-uris", "/ok\0/404\0/500\0/ok\0/ok\0".into()),
            ("list", format!("{url}/resetlater\n")),
        ];
        let files = files.into_iter().map(|(name, text)| (name, text.into_bytes())).collect();
        OriginalAndOwn::new(folder, words, files)
    }

    /// Creates a folder for one of the two, with the files that the command lines name.
    pub fn place(&self, name: &str) -> PathBuf {
        let place = self.folder.join(name);
        fs::create_dir_all(&place).expect("created");
        self.put_files(&place);
        place
    }

    pub fn put_files(&self, folder: &Path) {
        for (name, text) in &self.files {
            fs::write(folder.join(name), text).expect("written");
        }
    }

    /// The words of a command line; quotes keep blanks together.
    pub fn words(&self, line: &str) -> Vec<String> {
        let line = self.words.iter().fold(line.to_string(), |line, (short, long)| line.replace(short, long));
        let (mut words, mut quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                '\'' => {
                    quoted = !quoted;
                    // Quotes make a word, even an empty one.
                    words.last_mut().expect("one").push('\0');
                }
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().expect("one").push(c),
            }
        }
        words.retain(|w| !w.is_empty());
        words.iter().map(|w| w.replace('\0', "")).collect()
    }

    /// Runs a command; starts it again if it hangs, as siege sometimes does when its time is up.
    pub fn run(&self, mut make: impl FnMut() -> Command, place: &Path) -> Output {
        for _ in 0..4 {
            if let Some(output) = self.run_once(make(), place, Duration::from_secs(14)) {
                return output;
            }
        }
        panic!("hangs again and again");
    }

    /// Runs a command. None if it did not end in time and was killed.
    pub fn run_once(&self, mut command: Command, place: &Path, patience: Duration) -> Option<Output> {
        command.current_dir(place).env("HOME", self.folder.join("home")).env_remove("SIEGERC");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.unwrap_or_else(|e| panic!("{command:?}: {e} (./x test installs it)"));
        let id = child.id() as i32;
        let waiting = thread::spawn(move || child.wait_with_output().expect("ends"));
        let deadline = Instant::now() + patience;
        while !waiting.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(3));
        }
        let hung = !waiting.is_finished();
        if hung {
            // SAFETY: a plain call on our own process, which has not been waited for.
            unsafe { libc::kill(id, libc::SIGKILL) };
        }
        let output = waiting.join().expect("no panic");
        (!hung).then_some(output)
    }

    /// The commands of a line for the original and for ours. `~` before it stands for --like-the-original.
    pub fn commands(&self, line: &str) -> (Command, Command) {
        let (like, line) = line.strip_prefix('~').map_or((false, line), |rest| (true, rest));
        let words: Vec<OsString> = self.words(line).iter().map(|w| with_bytes(w)).collect();
        // An original without a package may have been built.
        let variable = format!("LASTDROP_PEER_{}", self.words(line)[0].to_uppercase());
        let mut original = Command::new(std::env::var_os(variable).unwrap_or_else(|| words[0].clone()));
        original.args(&words[1..]);
        let mut own = Command::new(env!("CARGO_BIN_EXE_lastdrop"));
        own.args(&words).args(like.then_some("--like-the-original"));
        (original, own)
    }

    /// Runs a command line with the original and with ours; `between` is called before each.
    pub fn both_with(&self, line: &str, mut between: impl FnMut()) -> (Output, Output) {
        let (theirs, ours) = (self.place("theirs"), self.place("ours"));
        let original = self.run(
            || {
                between();
                self.commands(line).0
            },
            &theirs,
        );
        let own = self.run(
            || {
                between();
                self.commands(line).1
            },
            &ours,
        );
        (original, own)
    }

    pub fn both(&self, line: &str) -> (Output, Output) {
        self.both_with(line, || {})
    }

    /// Asserts that both print the same except for numbers, exit alike, leave the same files, and agree in the fields `equal`.
    pub fn compare(&self, line: &str, equal: &[&str]) {
        let (theirs, ours) = (self.place("theirs"), self.place("ours"));
        let (original, own) = thread::scope(|scope| {
            let original = scope.spawn(|| self.run(|| self.commands(line).0, &theirs));
            let own = self.run(|| self.commands(line).1, &ours);
            (original.join().expect("no panic"), own)
        });
        self.assert_equal(line, &original, &own, equal);
    }

    pub fn compare_with(&self, line: &str, equal: &[&str], between: impl FnMut()) {
        let (original, own) = self.both_with(line, between);
        self.assert_equal(line, &original, &own, equal);
    }

    fn assert_equal(&self, line: &str, original: &Output, own: &Output, equal: &[&str]) {
        if let Some(difference) = self.difference(original, own, equal) {
            panic!("{line}\n{difference}");
        }
    }

    /// The difference between the two results of a command line.
    pub fn difference(&self, original: &Output, own: &Output, equal: &[&str]) -> Option<String> {
        let (a, b) = (text(&original.stdout), text(&own.stdout));
        let (ea, eb) = (text(&original.stderr), text(&own.stderr));
        let all = format!("---- original: {:?}\n{a}{ea}\n---- ours: {:?}\n{b}{eb}", original.status, own.status);
        if shape(&a) != shape(&b) {
            return Some(format!("stdout\n{all}"));
        }
        if shape(&ea) != shape(&eb) {
            return Some(format!("stderr\n{all}"));
        }
        if original.status.code() != own.status.code() {
            return Some(format!("exit code\n{all}"));
        }
        let (fa, fb) = (fields(&format!("{a}\n{ea}")), fields(&format!("{b}\n{eb}")));
        // `Total#3`: the first three numbers of that line.
        let of = |all: &BTreeMap<String, Vec<String>>, label: &str| {
            let (label, n) =
                label.split_once('#').map_or((label, usize::MAX), |(l, n)| (l, n.parse().expect("a number")));
            all.get(label).map(|numbers| numbers.iter().take(n).cloned().collect::<Vec<_>>())
        };
        if let Some(label) = equal.iter().find(|label| of(&fa, label) != of(&fb, label)) {
            return Some(format!("{label}\n{all}"));
        }
        let files = |name: &str| {
            let entries = fs::read_dir(self.folder.join(name)).expect("readable");
            let read = |path: PathBuf| {
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                (name, shape(&String::from_utf8_lossy(&fs::read(path).expect("readable"))))
            };
            entries.map(|e| read(e.expect("readable").path())).collect::<BTreeMap<_, _>>()
        };
        let (theirs, ours) = (files("theirs"), files("ours"));
        (theirs != ours).then(|| format!("files: {theirs:?} and {ours:?}\n{all}"))
    }

    pub fn matrix(&self, lines: &str, equal: &[&str]) {
        for line in lines.lines().map(str::trim).filter(|l| !l.is_empty()) {
            self.compare(line, equal);
        }
    }
}

/// Replaces bytes that are not UTF-8 as ours does.
fn text(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|b| out.push_str(&format!("\\x{b:02x}")));
    }
    out
}

/// Replaces `{FF}` by a byte that is not UTF-8.
fn with_bytes(word: &str) -> OsString {
    OsString::from_vec(word.split("{FF}").map(str::as_bytes).collect::<Vec<_>>().join(&0xff))
}

/// The lines of a text with each number replaced by its number of decimals, and blanks by a single one. Omits lines that a
/// program prints only if its numbers happen to be far apart.
pub fn shape(text: &str) -> Vec<String> {
    let number = Regex::new(r"-?\b\d+(\.\d+)?(us|ms|s|m|k|K|M|G)?(B\b)?").expect("valid");
    let nothing = Regex::new(r"-?\b(inf|nan)\b").expect("valid");
    let blanks = Regex::new(r"[ \t]+").expect("valid");
    let chance =
        Regex::new(r"^\s*(ERROR: The median|WARNING: The median|deviation apart|These results are)").expect("valid");
    text.lines()
        .filter(|l| !chance.is_match(l))
        .map(|l| {
            // siege divides by an elapsed time of 0.00.
            let l = nothing.replace_all(l, "0.00");
            let l = number.replace_all(&l, |c: &regex::Captures<'_>| {
                format!("#{}", c.get(1).map_or(0, |places| places.as_str().len() - 1))
            });
            blanks.replace_all(&l, " ").into_owned()
        })
        .collect()
}

/// Reads any of these reports: the label before the first number of each line, and the numbers.
pub fn fields(text: &str) -> BTreeMap<String, Vec<String>> {
    let number = Regex::new(r"-?\b\d+(\.\d+)?").expect("valid");
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let Some((label, rest)) = line.split_once(':') else { continue };
        let label = label.trim().trim_matches('"').to_string();
        all.entry(label).or_default().extend(number.find_iter(rest).map(|m| m.as_str().to_string()));
    }
    all
}
