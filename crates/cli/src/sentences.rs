//! Checks that users read short sentences: the pages of docs/, README.md, CHANGELOG.md, and the help of every command.
//! docs/findings.md has the findings that `doctor --explain` prints.
//!
//! A sentence has at most [`MOST_WORDS`] words; the sentences of a page have at most [`MOST_MEAN`] on average.
//! `long_sentences.txt` lists the exceptions. An exception that is no longer needed also fails the test, so the list only
//! gets shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::args::Cli;
use crate::help::arranged;

const MOST_WORDS: usize = 35;
const MOST_MEAN: f64 = 18.0;
/// The average of fewer sentences than this is not checked.
const FEWEST_FOR_MEAN: usize = 5;
/// An exception is a place and this many characters of its sentence.
const CHARACTERS: usize = 60;
const ALLOWED: &str = include_str!("long_sentences.txt");

/// A piece of text between blank lines, or a cell of a table.
struct Paragraph {
    text: String,
    is_cell: bool,
}

/// The prose of a page: without code, headings and comments.
fn paragraphs(page: &str) -> Vec<Paragraph> {
    let mut all: Vec<Paragraph> = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    let mut fenced = false;
    for line in page.lines().chain([""]) {
        let text = line.trim().trim_start_matches("> ");
        let is_fence = text.starts_with("```");
        let item = text.strip_prefix("* ").or(text.strip_prefix("- ")).or_else(|| {
            let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
            rest.strip_prefix(". ").filter(|_| rest.len() < text.len())
        });
        let is_cells = text.starts_with('|');
        let is_prose = !fenced
            && !is_fence
            && !is_cells
            && !text.is_empty()
            && !line.starts_with("    ")
            && !text.starts_with('#')
            && !text.starts_with("<!--");
        if !is_prose || item.is_some() {
            all.extend((!lines.is_empty()).then(|| Paragraph { text: lines.join(" "), is_cell: false }));
            lines.clear();
        }
        fenced ^= is_fence;
        if is_cells && !fenced {
            let cells = text.replace("\\|", "/");
            all.extend(cells.split('|').map(|cell| Paragraph { text: cell.trim().into(), is_cell: true }));
        } else if is_prose {
            lines.push(item.unwrap_or(text));
        }
    }
    all
}

/// Text without markup: code counts as one word, a link as its words.
fn without_markup(text: &str) -> String {
    let code = text.split('`').enumerate().map(|(i, part)| if i % 2 == 1 { "Code" } else { part }).collect::<String>();
    let mut plain = String::new();
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain.replace(['*', '['], "")
}

/// The sentences of a paragraph, each with its number of words.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let plain = without_markup(text);
    let mut all = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    for word in plain.split_whitespace() {
        words.push(word);
        if word.trim_end_matches([')', '"']).ends_with(['.', '!', '?']) {
            all.push(std::mem::take(&mut words));
        }
    }
    all.push(words);
    let count = |words: &[&str]| words.iter().filter(|w| w.contains(char::is_alphanumeric)).count();
    all.into_iter().map(|words| (count(&words), words.join(" "))).filter(|(count, _)| *count > 0).collect()
}

/// The faults of a text, as lines of the list of exceptions.
fn faults(place: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut words, mut number) = (0, 0);
    for paragraph in paragraphs(text) {
        for (count, sentence) in sentences(&paragraph.text) {
            if count > MOST_WORDS {
                faults.push(format!("{place}: {}", sentence.chars().take(CHARACTERS).collect::<String>()));
            }
            if !paragraph.is_cell {
                words += count;
                number += 1;
            }
        }
    }
    if number >= FEWEST_FOR_MEAN && words as f64 > MOST_MEAN * number as f64 {
        faults.push(format!("{place}: (mean)"));
    }
    faults
}

/// All files with this extension in a folder and in the folders in it.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            all.push(path);
        }
    }
    all
}

/// Adds the texts of a command's help, by command and option.
fn help(command: &clap::Command, name: &str, all: &mut BTreeMap<String, String>) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let after = after.lines().map(|l| if l.starts_with("  ") { "" } else { l }).collect::<Vec<_>>().join("\n");
    all.insert(name.into(), format!("{about}\n\n{after}"));
    for arg in command.get_arguments().filter(|a| !a.is_hide_set()) {
        let text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        all.insert(format!("{name} {}", arg.get_id()), text);
    }
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        help(inner, &format!("{name} {}", inner.get_name()), all);
    }
}

#[test]
fn what_people_read_is_in_short_sentences() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut pages = vec![root.join("README.md"), root.join("CHANGELOG.md"), root.join("CONTRIBUTING.md")];
    pages.extend(files(&root.join("docs"), "md"));
    let mut found: BTreeSet<String> = BTreeSet::new();
    for file in pages {
        let place = file.strip_prefix(root).expect("below it").display().to_string();
        // The check of the help covers the options, once for all commands that share one.
        let text = fs::read_to_string(&file).expect("readable");
        let by_hand = text.split("<!-- From here on: ").next().unwrap_or_default();
        // Nobody reads the changelog as continuous text, so its average does not matter.
        found.extend(faults(&place, by_hand).into_iter().filter(|f| f != "CHANGELOG.md: (mean)"));
    }
    let mut texts = BTreeMap::new();
    help(&arranged(Cli::command()), "lastdrop", &mut texts);
    // Many commands share an option and its text: check each text once.
    let mut once: BTreeMap<String, String> = BTreeMap::new();
    for (place, text) in texts {
        once.entry(text).or_insert(place);
    }
    for (text, place) in once {
        found.extend(faults(&place, &text).into_iter().filter(|f| !f.ends_with("(mean)")));
    }
    let allowed: BTreeSet<String> = ALLOWED.lines().filter(|l| !l.starts_with('#')).map(str::to_string).collect();
    let new: Vec<&str> = found.difference(&allowed).map(String::as_str).collect();
    let gone: Vec<&str> = allowed.difference(&found).map(String::as_str).collect();
    assert!(
        new.is_empty(),
        "over {MOST_WORDS} words, or over {MOST_MEAN} on average; make two sentences of it:\n{}",
        new.join("\n")
    );
    assert!(gone.is_empty(), "not needed any more, take it out of long_sentences.txt:\n{}", gone.join("\n"));
}

#[test]
fn sentences_are_counted_as_a_reader_does() {
    let page = "# A heading that does not count\n\nOne two. Three `a b c` [four five](x.md)!\nsix\n\n    code code\n\n* an item\n  of one\n* another\n\n| a cell | b \\| c |\n|---|---|\n\n```sh\nlastdrop run\n```\n1. last";
    let counted: Vec<usize> = paragraphs(page).iter().flat_map(|p| sentences(&p.text)).map(|(n, _)| n).collect();
    assert_eq!(counted, [2, 4, 1, 4, 1, 2, 2, 1], "{counted:?}");
    let long = vec!["word"; MOST_WORDS + 1].join(" ");
    assert_eq!(faults("here", &format!("{long}.")).len(), 1);
    assert!(faults("here", &format!("{}.", &long[5..])).is_empty());
    assert_eq!(faults("here", &"Nineteen words: a b c d e f g h i j k l m n o p q. ".repeat(5)), ["here: (mean)"]);
}
