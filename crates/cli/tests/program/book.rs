//! Checks that the manual is true. A test runs every command of its pages and of the README, in their order, on a simulated
//! machine (`common/house.rs`) that is as the text assumes. The tables below say what is changed in the commands: how long
//! they run, and placeholder names. Links have to lead somewhere, and generated pages have to be current. It needs root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::chapters::{Step, anchors, commands, links};
use crate::common::house::{Front, House};
use crate::common::{CommandOutput, Folder};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Commands that are not run, by a part of their text, each with the reason. A chapter may say so, too: `<!-- not run: REASON -->`.
const NOT_RUN: &[(&str, &str)] = &[
    ("./x ", "builds lastdrop; the tests are part of it"),
    ("record-…/ca.pem", "the name of a folder is left out"),
    ("4318", "a collector of OTLP is elsewhere; exports.rs has one"),
    ("chromium ", "opens a browser; record.rs does it"),
    ("--flame page.svg", "page.svg is made in looks.rs, which has perf where that may be used"),
];
/// Limit of the commands that are not run.
const MOST_NOT_RUN: usize = 20;

/// Placeholders in commands, and their values.
const MEANT: &[(&str, &str)] = &[
    ("URL_A", "http://127.0.0.1:8080/"),
    ("URL_B", "http://127.0.0.1:8081/"),
    (" URL", " http://127.0.0.1:8080/"),
    // The comment after the command names the plan.
    ("sweep plan.toml            # server = \"nginx\"", "sweep nginx.toml # "),
    ("sweep plan.toml            # server = \"php-fpm\"", "sweep php-fpm.toml # "),
    ("sweep plan.toml            # server = \"haproxy\"", "sweep haproxy.toml # "),
    // The server that writes such a log.
    ("http://127.0.0.1:8080/ --server-time log:", "http://127.0.0.1:8082/ --server-time log:"),
];

/// Options that shorten a command unless it has them, by its name.
const SHORT: &[(&str, &[(&str, &str)])] = &[
    ("capacity", &[("--max-time", "5s"), ("-c", "4")]),
    ("doctor", &[("-d", "1s")]),
    ("guard", &[("-d", "1s"), ("--every", "200ms")]),
    ("headroom", &[("--max-time", "8s")]),
    ("profile", &[("-d", "1s")]),
    ("run", &[("-d", "1s")]),
    ("top", &[("-d", "1s")]),
    ("trace", &[("-n", "3")]),
    ("tune", &[("--trials", "2"), ("--blocks", "4"), ("-d", "300ms"), ("--warm-up", "100ms")]),
    ("watch", &[("-d", "1s"), ("--interval", "300ms")]),
];
/// Like [`SHORT`], for commands with a certain word.
const SHORT_WITH: &[(&str, &[(&str, &str)])] = &[
    ("--live", &[("--blocks", "4"), ("-d", "100ms")]),
    ("--fit", &[("--sizes", "2,3,4"), ("--requests-per-worker", "8")]),
];
/// Words of commands that end by themselves and need no such option.
const ENDS: &[&str] =
    &["-n ", "--once", "doctor --list", "doctor --explain", "--from ", "--replay", "--dry-run", ".toml "];
/// The tunes that try settings, by a part of their text: one that keeps what is better, one that watches it, and one beside visitors.
/// The others only print what they would try; tune.rs and tune_live.rs test the trials.
const TUNES: &[&str] = &["--time 2m --keep", "--watch 10s", "--watch 15s"];
/// Replacements for longer times in commands.
const SHORTER: &[(&str, &str)] = &[
    ("-d", "1s"),
    ("--max-time", "5s"),
    ("--time", "20s"),
    ("--trials", "2"),
    ("--blocks", "4"),
    ("--interval", "300ms"),
    ("--warm-up", "100ms"),
    ("--watch", "1s"),
];

/// Splits a command from the comment, pipe or redirection after it.
fn split(command: &str) -> (&str, &str) {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in command.char_indices() {
        match quote {
            Some(q) if q == c => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if before == ' ' && matches!(c, '#' | '|' | '>') => return command.split_at(at),
            None => {}
        }
        before = c;
    }
    (command, "")
}

/// The command as it is run.
fn short(command: &str) -> String {
    let mut command = command.to_string();
    for (word, meant) in MEANT {
        command = command.replace(word, meant);
    }
    let (words, rest) = split(&command);
    if !words.trim_start().starts_with("lastdrop ") {
        return command;
    }
    let mut words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
    let name = words.get(1).cloned().unwrap_or_default();
    for at in 1..words.len() {
        if let Some((flag, time)) = SHORTER.iter().find(|(flag, _)| words[at - 1] == *flag) {
            // That of a comparison or a tune is a block.
            words[at] = match (name.as_str(), *flag) {
                ("compare", "-d") => "100ms".into(),
                ("tune", "-d") if !command.contains("--live") => "300ms".into(),
                _ => (*time).into(),
            };
        }
    }
    let line = words.join(" ") + " ";
    // A plan says how long a run is, but not a search.
    let ends = |end: &&str| line.contains(*end) && (*end, name.as_str()) != (".toml ", "capacity");
    let by_name = SHORT.iter().filter(|(sub, _)| *sub == name && !ENDS.iter().any(ends));
    let by_word = SHORT_WITH.iter().filter(|(word, _)| line.contains(word) && name != "tune");
    for (flag, value) in by_name.chain(by_word).flat_map(|(_, options)| options.iter()) {
        if !line.contains(&format!(" {flag} ")) {
            words.splice(2..2, [(*flag).to_string(), (*value).to_string()]);
        }
    }
    if name == "tune" && !["--dry-run"].iter().chain(TUNES).any(|tune| command.contains(tune)) {
        // A dry run takes none of these.
        words.retain(|word| word != "--keep" && word != "--doctor");
        if let Some(at) = words.iter().position(|word| word == "--watch") {
            words.drain(at..at + 2);
        }
        words.push("--dry-run".into());
    }
    format!("{} {rest}", words.join(" "))
}

/// The machine that a command of a page is for.
fn front(page: &str, command: &str) -> Front {
    let words = ["nginx", "php-fpm", "haproxy", "chain.toml"];
    if page.contains("nginx") || !command.contains("apache") && words.iter().any(|word| command.contains(word)) {
        Front::Nginx
    } else {
        Front::Apache
    }
}

/// Exit codes with which a command has done what the text says, also on a busy machine.
fn done_with(command: &str) -> BTreeSet<i32> {
    let mut codes = BTreeSet::from([0]);
    let name = command.split_whitespace().nth(1).unwrap_or_default();
    // Two equal servers may still measure differently on a busy machine.
    if ["--objective", "--fail-on-worse", "examples/ci/regression"].iter().any(|word| command.contains(word)) {
        codes.insert(3);
    }
    if ["run", "replay", "capacity", "headroom", "compare"].contains(&name) {
        codes.insert(4);
    }
    if ["target", "record", "ui"].contains(&name) {
        codes.extend([143, 130]);
    }
    codes
}

/// Commands that run until they are ended; the test ends them after they have done something.
fn ended(command: &str) -> Option<String> {
    let visit = if command.starts_with("lastdrop target") {
        "curl -s -o /dev/null --max-time 5 http://127.0.0.1:9801/"
    } else if command.starts_with("lastdrop record --host") {
        "curl -sk -o /dev/null --max-time 5 --proxy http://127.0.0.1:8888 https://shop.example/"
    } else if command.starts_with("lastdrop record") {
        "curl -s -o /dev/null --max-time 5 http://127.0.0.1:8888/"
    } else if command.starts_with("lastdrop ui") {
        // With TLS or without: the server answers, if only that the token is missing.
        "{ curl -sk -o /dev/null --max-time 5 https://127.0.0.1:8484/ || curl -s -o /dev/null --max-time 5 http://127.0.0.1:8484/; }"
    } else if command.starts_with("lastdrop fleet up") {
        "lastdrop fleet status"
    } else {
        return None;
    };
    let command = command.replace("lastdrop fleet up", "lastdrop fleet up --listen 127.0.0.1:0");
    let command = command.replace("lastdrop target", "lastdrop target --listen 127.0.0.1:9801");
    let listens = command.contains("--listen ");
    let command = if listens { command } else { command.replace("lastdrop ui", "lastdrop ui --listen 127.0.0.1:8484") };
    let (words, _) = split(&command);
    Some(format!(
        "rm -f plan.toml; {words} & pid=$!; for i in $(seq 300); do {visit} && break; kill -0 $pid || break; sleep 0.1; done; kill -TERM $pid; wait $pid"
    ))
}

/// Creates the files that each page assumes: logs, plans, recordings.
const FILES: &str = r#"
set -e
for i in $(seq 200); do
    echo "10.0.0.$((i % 9)) - - [31/Jan/2026:12:00:0$((i % 2)) +0000] \"GET /page?i=$i HTTP/1.1\" 200 36 $((1000 + i))"
done | sort -t: -k4,4 > access.log
cp access.log access.log.1
gzip -c access.log > access.log.2.gz
mkdir -p /var/log/nginx && cp access.log /var/log/nginx/access.log
echo secret > "$HOME/.db" && chmod 600 "$HOME/.db"
printf 'url = "http://127.0.0.1/app"\nduration = "1s"\n' > plan.toml
echo 'url = "http://127.0.0.1:8080/"' > old.toml
echo 'url = "http://127.0.0.1:8081/"' > new.toml
printf '%s\n' 'http://127.0.0.1:8080/a' 'http://127.0.0.1:8080/b' > urls.txt
printf '/a think=1\n/b\n\n/c\n' > sess.log
echo "curl 'http://127.0.0.1:8080/page' -H 'Accept: text/html'" > copied.txt
cat > shop.har <<'END'
{"log":{"version":"1.2","creator":{"name":"browser","version":"1"},"pages":[],"entries":[
{"startedDateTime":"2026-01-31T12:00:00.000Z","time":5,"request":{"method":"GET","url":"http://127.0.0.1:8080/","httpVersion":"HTTP/1.1",
"cookies":[],"headers":[{"name":"Accept","value":"text/html"}],"queryString":[],"headersSize":-1,"bodySize":0},"response":{"status":200,
"statusText":"OK","httpVersion":"HTTP/1.1","cookies":[],"headers":[{"name":"Content-Type","value":"text/html"}],"content":{"size":5,
"mimeType":"text/html","text":"hello"},"redirectURL":"","headersSize":-1,"bodySize":5},"cache":{},"timings":{"send":0,"wait":5,"receive":0}}]}}
END
common='url = "http://127.0.0.1/index.php"
users = 4
requests = 20'
printf 'server = "nginx"\n%s\n[settings]\nworker_processes = [1, 2]\n' "$common" > nginx.toml
printf 'server = "php-fpm"\n%s\n[settings]\npm = ["static", "dynamic"]\n' "$common" > php-fpm.toml
printf 'server = "haproxy"\nurl = "http://127.0.0.1:8090/"\nusers = 4\nrequests = 20\n[settings]\nnbthread = [1, 2]\n"be_app/app1.maxconn" = [5, 20]\n' > haproxy.toml
"#;

/// Makes the runs and documents that they assume.
const RUNS: &str = r#"
set -e
lastdrop run http://127.0.0.1:8080/ -n 200 -c 2 --quiet --json before.json
lastdrop run http://127.0.0.1:8080/ -n 200 -c 2 --quiet --json after.json
for run in before after; do lastdrop ab -n 200 -c 2 http://127.0.0.1:8080/ > ab-$run.txt; done
lastdrop size target@http://127.0.0.1:8080/ --quiet --json size.json
lastdrop profile target@http://127.0.0.1:8080/ -d 100ms --quiet --json profile.json
"#;

/// The reason why a command is not run, if a table has one.
fn left_out(step: &Step) -> Option<String> {
    let known = NOT_RUN.iter().find(|(word, _)| step.text.contains(word)).map(|(_, why)| (*why).to_string());
    step.not_run.clone().or(known)
}

fn read(page: &str) -> String {
    fs::read_to_string(Path::new(SOURCE).join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// Runs all commands of some pages.
fn carry_out(pages: &[&str]) {
    let mut houses: BTreeMap<Front, House> = BTreeMap::new();
    let mut troubles = Vec::new();
    for page in pages {
        let steps: Vec<Step> = commands(&read(page)).into_iter().filter(|step| left_out(step).is_none()).collect();
        assert!(!steps.is_empty(), "{page} has no command");
        for house in houses.values() {
            assert_eq!(house.sh(FILES).code, 0, "the files of {page}");
        }
        for step in steps {
            let house = houses.entry(front(page, &step.text)).or_insert_with_key(|front| furnished(*front));
            troubles.extend(trouble(house, page, &step));
        }
    }
    for house in houses.values() {
        let done = house.sh("lastdrop restore");
        if done.code != 0 {
            troubles.push(format!("{:?}: {done:?}", house.front()));
        }
    }
    assert!(troubles.is_empty(), "{} commands:\n{}", troubles.len(), troubles.join("\n"));
}

/// A machine with everything that the pages assume.
fn furnished(front: Front) -> House {
    let house = House::new(front);
    let examples = format!(
        "cp -r '{SOURCE}/examples' examples && sed -i 's/^duration = .*/duration = \"300ms\"/; s/^rounds = .*/rounds = 2/' examples/*.toml"
    );
    for script in [&examples, FILES, RUNS] {
        let done = house.sh(script);
        assert_eq!(done.code, 0, "{done:?}");
    }
    house
}

/// Runs a command of a page; returns what is wrong with its end.
fn trouble(house: &House, page: &str, step: &Step) -> Option<String> {
    let mut command = short(&step.text);
    if command.contains("3fa2") {
        let first = house.sh("sed 's/.*\"id\": *\"\\([^\"]*\\)\".*/\\1/; t end; d; :end q' before.json").stdout;
        command = command.replace("3fa2", first.trim());
    }
    let script = ended(&command).unwrap_or_else(|| command.clone());
    let done = house.sh(&script);
    let no_time = ["lastdrop capacity", "lastdrop headroom"].iter().any(|c| command.starts_with(c))
        && done.code == 1
        && done.stdout.contains("the time was over");
    // A machine with busy processors has none left for a comparison of settings.
    let no_cpu = command.contains("cpu<") && done.code == 1 && done.stdout.contains("INFEASIBLE");
    let wrong = !done_with(&command).contains(&done.code) && !no_time && !no_cpu;
    wrong.then(|| format!("{page}:{}: {}\n  as {script}: {done:?}", step.line, step.text))
}

macro_rules! pages {
    ($($test:ident [$($page:literal),* $(,)?],)*) => {
        /// The pages with commands; those of a test share their machines.
        const PAGES: &[&str] = &[$($($page),*),*];
        $(
            #[test]
            fn $test() {
                carry_out(&[$($page),*]);
            }
        )*
    };
}

pages! {
    the_readme_and_the_first_minutes_with_apache_do_what_they_say ["README.md", "docs/first-minutes-apache.md"],
    the_first_minutes_with_nginx_do_what_they_say ["docs/first-minutes-nginx-fpm.md"],
    the_page_about_an_application_does_what_it_says ["docs/tune-an-application.md"],
    how_to_slow_now ["docs/slow-now.md"],
    how_to_size_a_pool ["docs/how-many-workers.md", "docs/safe-as-root.md"],
    how_to_judge_a_release_or_a_rate [
        "docs/release-slower.md",
        "docs/how-much.md",
        "docs/replay-production.md",
        "docs/ci.md",
        "docs/method.md",
        "docs/objectives.md",
        "docs/personalities.md",
        "docs/plan-file.md",
    ],
    commands_that_put_load_on [
        "docs/commands/capacity.md",
        "docs/commands/compare.md",
        "docs/commands/replay.md",
        "docs/commands/run.md",
        "docs/commands/target.md",
    ],
    commands_about_runs_and_requests [
        "docs/commands/export.md",
        "docs/commands/fleet.md",
        "docs/commands/headroom.md",
        "docs/commands/history.md",
        "docs/commands/import.md",
        "docs/commands/record.md",
        "docs/commands/report.md",
        "docs/commands/show.md",
        "docs/commands/ui.md",
    ],
    commands_about_servers [
        "docs/commands/guard.md",
        "docs/commands/knobs.md",
        "docs/commands/profile.md",
        "docs/commands/restore.md",
        "docs/commands/size.md",
        "docs/commands/top.md",
        "docs/commands/trace.md",
        "docs/commands/watch.md",
    ],
    command_doctor ["docs/commands/doctor.md"],
    command_tune ["docs/commands/tune.md"],
    pages_about_kinds_of_servers [
        "docs/anatomy.md",
        "docs/databases.md",
        "docs/server-time.md",
        "docs/servers-haproxy.md",
        "docs/servers-host.md",
        "docs/servers-nginx.md",
        "docs/servers-php-fpm.md",
    ],
}

/// All pages of the book, as paths from the top of the repository.
fn chapters() -> Vec<String> {
    let pages = |folder: &'static str| {
        let files =
            fs::read_dir(Path::new(SOURCE).join(folder)).expect("readable").map(|e| e.expect("an entry").path());
        let pages = files.filter(|f| f.extension().is_some_and(|e| e == "md"));
        pages.map(move |f| format!("{folder}/{}", f.file_name().expect("a name").to_string_lossy()))
    };
    pages("docs").chain(pages("docs/commands")).collect()
}

#[test]
fn no_page_with_commands_is_forgotten_and_few_are_left_out() {
    let mut out = Vec::new();
    for page in chapters().into_iter().chain(["README.md".to_string()]) {
        let steps = commands(&read(&page));
        let (left, run): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|s| left_out(s).is_some());
        out.extend(left.iter().map(|s| format!("{page}:{}: {}: {}", s.line, s.text, left_out(s).expect("a reason"))));
        // Generated pages, and pages about this repository, have no commands of their own.
        assert!(
            run.is_empty() || PAGES.contains(&page.as_str()),
            "{page} has commands that no test carries out: {run:?}"
        );
    }
    println!("{} commands are not carried out:\n{}", out.len(), out.join("\n"));
    assert!(out.len() <= MOST_NOT_RUN, "{} commands are not carried out:\n{}", out.len(), out.join("\n"));
    let texts: String = PAGES.iter().map(|page| read(page)).collect();
    for tune in TUNES {
        assert!(texts.contains(tune), "no tune of the manual has {tune} any more");
    }
    for (word, why) in NOT_RUN {
        assert!(out.iter().any(|line| line.contains(word)), "nothing is left out for '{word}' ({why}) any more");
    }
}

#[test]
fn every_link_of_the_book_leads_somewhere_and_every_page_is_in_it() {
    let summary: BTreeSet<String> = links(&read("docs/SUMMARY.md")).iter().map(|l| format!("docs/{l}")).collect();
    for page in chapters() {
        assert!(page == "docs/SUMMARY.md" || summary.contains(&page), "{page} is not in SUMMARY.md");
    }
    let mut wrong = Vec::new();
    for page in chapters().into_iter().chain(["README.md".to_string(), "CONTRIBUTING.md".to_string()]) {
        let page = Path::new(SOURCE).join(page);
        let text = fs::read_to_string(&page).expect("readable");
        for link in links(&text).into_iter().filter(|l| !l.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let to = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let found = fs::read(&to).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            match found {
                Err(e) => wrong.push(format!("{}: {link}: {e}", page.display())),
                Ok(text) if !anchor.is_empty() && !anchors(&text).contains(anchor) => {
                    wrong.push(format!("{}: {link}: no such heading", page.display()));
                }
                Ok(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn chapters_of_tables_are_those_of_this_program() {
    let folder = Folder::new();
    for chapter in ["findings", "knobs"] {
        let done = folder.run(&["chapter", chapter]);
        assert_eq!(done.code, 0, "{done:?}");
        let page = format!("docs/{chapter}.md");
        assert_eq!(read(&page), done.stdout, "write it anew: lastdrop chapter {chapter} > {page}");
    }
}

#[test]
fn pages_of_commands_have_the_options_of_this_program() {
    let folder = Folder::new();
    let names: Vec<String> = chapters().into_iter().filter(|page| page.starts_with("docs/commands/")).collect();
    let here = |page: &str| folder.join(page.rsplit('/').next().expect("a name"));
    for page in &names {
        fs::write(here(page), read(page)).expect("written");
    }
    let done = folder.run(&["chapter", "commands", folder.path().to_str().expect("text")]);
    assert_eq!(done.code, 0, "{done:?}");
    for page in &names {
        let now = fs::read_to_string(here(page)).expect("readable");
        assert!(now == read(page), "{page}: write it anew: lastdrop chapter commands docs/commands");
    }
    let written = fs::read_dir(folder.path()).expect("readable").map(|e| e.expect("an entry").file_name());
    let written = written.filter(|n| n.to_string_lossy().ends_with(".md")).count();
    assert_eq!(written, names.len(), "a command has no page: lastdrop chapter commands docs/commands");
}

#[test]
fn the_help_of_every_command_has_examples() {
    let lastdrop = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_lastdrop")).args(args).output().expect("it runs");
        CommandOutput::of(output, args)
    };
    let help = lastdrop(&["-h"]).stdout;
    let listed = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let names: Vec<&str> =
        listed.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next()).collect();
    assert!(names.len() > 20, "{help}");
    for name in names.into_iter().filter(|n| *n != "help") {
        for flag in ["-h", "--help"] {
            let text = lastdrop(&[name, flag]).stdout;
            let examples =
                text.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("{name} {flag} has no examples: {text}"));
            assert!(examples.contains(&format!("lastdrop {name}")), "{name} {flag}: {examples}");
        }
    }
    assert!(lastdrop(&["--help"]).stdout.contains("Examples:\n  lastdrop "), "the program itself");
}
