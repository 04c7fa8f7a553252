//! Checks that types of all crates are named by nouns of the field, not by a bare participle or preposition.
//!
//! [`FORBIDDEN`] lists such words. `type_names.txt` lists the types that still have such a name, as `CRATE: NAME`. An entry that
//! no longer exists also fails the test, so the list only gets shorter.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::sentences::files;

const ALLOWED: &str = include_str!("type_names.txt");
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Names that say nothing by themselves; as a part of a longer name they are fine.
const FORBIDDEN: [&str; 6] = [
    // Participles and other forms of verbs.
    "Added Appended Applied Arrived Asked Asking Assigned Began Beginning Begun Being Blocked Borrowed Bounded Bought \
     Broken Brought Built Busied Called Calling Cancelled Carried Caught Changed Changing Checked Chosen Claimed Closed Closing \
     Come Coming Committed Compared Completed Connected Counted Cut Dealt Decided Decoded Deleted Described Dialed Done Drained \
     Drawing Drawn Driven Dropped Ended Ending Escaped Examined Examining Excluded Executed Expected Failed Fallen Filling \
     Finished Fixed Followed Foretold Forgotten Found Freed Gave Given Giving Going Gone Got Granted Growing Grown Guarded Had \
     Halted Handed Handled Having Heard Hearing Held Hidden Holding Ignored Imported Included Incoming Joined Judged Judging \
     Keeping Kept Killed Knew Known Laid Lasting Leaving Led Left Lent Listed Listening Lived Living Loaded Logged Looked \
     Looking Lost Made Making Marked Matched Meant Measured Measuring Met Missed Missing Misread Moved Named Naming Needed \
     Noticed Offered Opened Ordered Outgoing Owned Paid Painted Parsed Passed Paused Picked Placed Placing Planned Planted \
     Played Playing Posted Prepared Proven Published Put Putting Queued Ran Reached Read Reading Recalled Received Recorded \
     Refused Rejected Remembered Removed Renamed Replaced Replayed Reported Requested Resolved Restored Resumed Returned \
     Rewritten Running Said Saved Saw Saying Scaled Seeing Seen Sent Served Serving Settled Shared Shown Simulated Skipped \
     Sleeping Sorted Spent Split Spoken Started Starting Stated Stayed Staying Stolen Stood Stopped Stored Stranded \
     Stuck Swept Taken Taking Talking Taught Telling Tested Thought Timed Told Took Touched Traced Tracked Tried Trying Tuned \
     Turned Understood Undone Unrecognised Unseen Used Using Visited Waited Waiting Walked Wanted Watched Watching Went Woken \
     Won Worked Working Written Wrote",
    // Verbs that are no nouns.
    "Allow Allows Beat Become Begin Carry Choose Discard Drop Encode Examine Extract Fetch Forget Give Give Go Has Hear Is Keep \
     Keeps Know Knows Leave Let Lets Make Means Merge Obey Says See Sees Send Settle Show Take Takes Tell Tells Want Wants Write",
    // Prepositions.
    "About Above Across After Against Along Among Around As At Away Before Behind Below Beneath Beside Besides Between Beyond By \
     Down For From In Inside Into Near Of Off On Onto Out Outside Over Past Since Through Throughout Till To Toward Towards Under \
     Until Up Upon With Within Without",
    // Adverbs, pronouns, conjunctions.
    "Afar All Alone Also Always Anybody Anything Anywhere Apart Back Both Each Earlier Either Else Elsewhere Ever Everybody \
     Everything Everywhere Here Hither How If Its Just Later Many Meanwhile Mine Much Neither Never Nobody None Nothing Now \
     Nowhere Once Only Other Others Ours Own Perhaps Same So Some Somebody Something Somewhere Soon Still Such Theirs Then There \
     They Thing This Those Thus Together What When Where Whether Which Whichever While Who Whoever Whole Whom Whose Why Yet",
    // Private words of this project.
    "Bar Book Case Coarse Crew Desk Diary Dice Door Errand Flight Habits Halves Happening Knock Look Looker Lookout Looks Manner \
     Pages Parrot Puzzle Way Weather Wish Wishes Wiring Word World",
    // Nouns that need another word to say anything.
    "Data Entry Helper Info Item Line Manager Order Part Place Row Tally Thing Utils",
];

/// The name of a type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let is_associated = line.starts_with(' ') && line.trim_start().starts_with("type ");
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (keyword, rest) = line.strip_prefix("unsafe ").unwrap_or(line).split_once(' ')?;
    let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
    (KEYWORDS.contains(&keyword) && !is_associated && name.starts_with(|c: char| c.is_ascii_uppercase()))
        .then_some(name)
}

#[test]
fn names_of_types_are_nouns_of_the_field() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let forbidden: BTreeSet<&str> = FORBIDDEN.iter().flat_map(|group| group.split_whitespace()).collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(crates).expect("the crates") {
        let path = entry.expect("an entry").path();
        let crate_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for source in files(&path.join("src"), "rs") {
            let text = fs::read_to_string(source).expect("readable");
            let names = text.lines().filter_map(defined_type).filter(|name| forbidden.contains(name));
            found.extend(names.map(|name| format!("{crate_name}: {name}")));
        }
    }
    let allowed: BTreeSet<String> = ALLOWED.lines().filter(|l| !l.starts_with('#')).map(str::to_string).collect();
    let new: Vec<&str> = found.difference(&allowed).map(String::as_str).collect();
    let gone: Vec<&str> = allowed.difference(&found).map(String::as_str).collect();
    assert!(new.is_empty(), "name these types by a noun of the field, such as CommandOutput:\n{}", new.join("\n"));
    assert!(gone.is_empty(), "not needed any more, take it out of type_names.txt:\n{}", gone.join("\n"));
}

#[test]
fn definitions_of_types_are_recognized() {
    for (line, name) in [
        ("pub struct Told {", Some("Told")),
        ("    pub(super) enum Seen<'a> {", Some("Seen")),
        ("pub(in crate::a) trait Of: Send {", Some("Of")),
        ("type Found = Result<Option<u8>, String>;", Some("Found")),
        ("struct Taken(Arc<Told>);", Some("Taken")),
        ("// struct Told {", None),
        ("let kind = \"struct\";", None),
        ("pub fn type_of() {", None),
    ] {
        assert_eq!(defined_type(line), name, "{line}");
    }
}
