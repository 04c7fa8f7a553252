//! Random command lines of other programs for a server that misbehaves: valid, invalid and combined flags of each program.
//! `{U}` is the server's URL, `{H}` the same in httperf's form.

use super::misbehaving::WAYS;

/// Marsaglia's xorshift: the same cases for the same seed.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    pub fn of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// A flag, its valid values, and its invalid values; both are empty for a flag without a value.
type Flag = (&'static str, &'static [&'static str], &'static [&'static str]);

pub struct Program {
    pub name: &'static str,
    flags: &'static [Flag],
    /// The shortest command line, with `{W}` for a way to misbehave.
    rest: &'static [&'static str],
}

const HEADERS: &[&str] = &["X:y", "'X-A: b c'", "'Accept: none'", "'User-Agent: me'", "'Host: q'", "'A: é{FF}'"];

pub const PROGRAMS: [Program; 4] = [
    Program {
        name: "ab",
        flags: &[
            ("-n", &["1", "2", "7", "12"], &["0", "x", "-3", ""]),
            ("-c", &["1"], &["99", "-1", "0", "300000"]),
            ("-s", &["1", "2"], &[]),
            ("-b", &["4096", "1"], &[]),
            ("-v", &["0", "1", "2", "4"], &["x", "-1"]),
            ("-k", &[], &[]),
            ("-l", &[], &[]),
            ("-r", &[], &[]),
            ("-q", &[], &[]),
            ("-d", &[], &[]),
            ("-S", &[], &[]),
            ("-w", &[], &[]),
            ("-i", &[], &[]),
            ("-x", &["border=1"], &[]),
            ("-e", &["e.csv"], &["/none/x"]),
            ("-g", &["g.tsv"], &["/none/x"]),
            ("-C", &["a=b", "c=d"], &[]),
            ("-A", &["u:p", "u"], &[]),
            ("-T", &["text/x"], &[]),
            ("-H", HEADERS, &["bad"]),
            ("-m", &["GET", "DELETE", "FOO"], &[]),
            ("-p", &["post"], &["/none"]),
            ("-u", &["post"], &["/none"]),
            ("-B", &["127.0.0.1"], &["xx"]),
            ("-h", &[], &[]),
            ("-V", &[], &[]),
            ("-Q", &[], &[]),
            ("-n", &["3"], &[]),
        ],
        rest: &[
            "-q -n 4 {U}/{W}",
            "-q -n 9 -s 1 {U}/{W}",
            "-q -n 3 '{U}/a b/{W}'",
            "-q {U}/{W} extra",
            "-n 160 {U}/{W}",
        ],
    },
    Program {
        name: "siege",
        flags: &[
            ("-c", &["1"], &["0", "x"]),
            ("-r", &["1", "2", "5", "once"], &["0", "x", "-1", "-2", ""]),
            ("-d", &["0", "0.001"], &["x"]),
            ("-b", &[], &[]),
            ("-q", &[], &[]),
            ("-v", &[], &[]),
            ("-j", &[], &[]),
            ("-p", &[], &[]),
            ("-N", &[], &[]),
            ("-F", &[], &[]),
            ("-H", HEADERS, &["bad"]),
            ("-A", &["me", "'you and me'"], &[]),
            ("-T", &["text/x"], &[]),
            ("-lsiege.log", &[], &[]),
            ("-m", &["mark"], &[]),
            ("-C", &[], &[]),
            ("-h", &[], &[]),
            ("-V", &[], &[]),
            ("--foo", &[], &[]),
            ("--reps=2", &[], &[]),
            ("--concurrent=1", &[], &[]),
        ],
        rest: &[
            "-R rc -r 3 {U}/{W}",
            "-R empty -r 2 {U}/{W}",
            "-R five -r 8 {U}/{W}",
            "-R csv -r 2 {U}/{W}",
            "-R id -r 2 {U}/{W}",
            "-R head -r 2 {U}/{W}",
            "-R json -r 2 {U}/{W}",
            "-R rc -r 2 '{U}/{W} POST a=b'",
            "-R rc -r 2 '{U}/{W} DELETE'",
            "-R rc -r 2 '{U}/a b/{W}'",
            "-R rc -r once -f urls",
            "-R /none -r 1 {U}/{W}",
        ],
    },
    Program {
        name: "httperf",
        flags: &[
            ("--num-conns", &["1", "2", "5"], &["x", "2x", ""]),
            ("--num-calls", &["1", "2", "3"], &["x", ""]),
            ("--rate", &["100", "0", "-1"], &["x"]),
            ("--period", &["0.01", "d0.01", "e0.01", "u0.01,0.02"], &["x1", "u0.1", "e", "d-1"]),
            ("--timeout", &["0.3", "1"], &["x"]),
            ("--think-timeout", &["0.1"], &["x"]),
            ("--failure-status", &["404", "500"], &["0", "x"]),
            ("--method", &["GET", "PUT", "FOO"], &[]),
            ("--add-header", &["'X: y\\n'", "'A:{FF}\\n'", "'B: \\101\\n'"], &[]),
            ("--http-version", &["1.0", "1.1", "1.1x"], &["abc", "2.0", "1"]),
            ("--client", &["0/1", "1/3"], &["3/2", "3", "x/1"]),
            ("--server-name", &["foo"], &[]),
            ("--max-connections", &["1", "5"], &["x"]),
            ("--send-buffer", &["8192"], &["x"]),
            ("--print-reply=header", &[], &[]),
            ("--print-request", &[], &[]),
            ("--hog", &[], &[]),
            ("-v", &[], &[]),
            ("--wsess", &["2,3,0", "1,2,0.01"], &["1,2", "x,1,0", "1,2,x", "1,2,0,4"]),
            ("--wset", &["2,0.5"], &["3", "3,2"]),
            ("--wlog", &["y,two"], &["y,/none"]),
            ("--wsesslog", &[], &["1,0", "1,x,sess", "1,0,/none"]),
            ("--port", &[], &["x", "70000"]),
            ("--num", &[], &[]),
            ("--foo", &[], &[]),
            ("extra", &[], &[]),
        ],
        rest: &["{H} --timeout 0.5 --uri /{W}", "{H} --timeout 0.5 --num-conns 3 --num-calls 2 --uri /{W}"],
    },
    Program {
        name: "wrk",
        flags: &[
            ("-t", &["1"], &["0", "x", "3"]),
            ("-c", &["1", "2"], &["0", "x"]),
            ("-T", &["1"], &["x"]),
            ("--latency", &[], &[]),
            ("-H", HEADERS, &[]),
            ("-v", &[], &[]),
            ("-x", &[], &[]),
            ("-d", &[], &["0", "1x", "x"]),
        ],
        rest: &["-d1 -t1 -c1 {U}/{W}", "-d1 -t1 -c1 '{U}/a b/{W}'", "-d1 -t1 -c1 {A}/{W}"],
    },
];

/// A random command line of this program.
pub fn line(chance: &mut Chance, program: &Program) -> String {
    let mut words = vec![program.name.to_string()];
    // At most one value is invalid, so that the error is about that one.
    let mut may_be_wrong = chance.below(4) == 0;
    for _ in 0..chance.below(5) {
        let (flag, good, bad) = program.flags[chance.below(program.flags.len())];
        // The original does not take two kinds of sessions, and the output of a double -v is random.
        if ["--wsess", "-v"].contains(&flag) && words.iter().any(|w| w == flag) {
            continue;
        }
        let value = if may_be_wrong && !bad.is_empty() {
            may_be_wrong = false;
            bad[chance.below(bad.len())]
        } else if !good.is_empty() {
            good[chance.below(good.len())]
        } else if bad.is_empty() {
            words.push(flag.to_string());
            continue;
        } else {
            continue;
        };
        words.extend([flag.to_string(), if value.is_empty() { "''".into() } else { value.to_string() }]);
    }
    words.push(chance.of(program.rest).replace("{W}", chance.of(&WAYS)));
    words.join(" ")
}
