//! Puts directives that a user gives into a configuration: in place of the same directive where the configuration has it,
//! otherwise as a new line of the block.
//!
//! Most directives stand once in a block, so a line of the same name is the same directive. Of those that may stand
//! several times (`add_header`, `SetEnv`, `option`) a line is the same if its first words are, too. A table per language
//! has the usual ones; of others a block shows it by having several.

use std::ops::Range;

use crate::change::Change;
use crate::edits::Edits;

/// A directive as the user gives it.
#[derive(Debug, Clone)]
pub struct GivenDirective {
    pub name: String,
    pub arguments: Vec<String>,
    pub is_negated: bool,
    /// The whole line, as it is written into a configuration.
    pub text: String,
}

/// A directive of the configuration.
#[derive(Debug, Clone)]
pub struct PresentDirective {
    pub name: String,
    pub arguments: Vec<String>,
    pub source: usize,
    /// Bytes of the whole directive.
    pub at: Range<usize>,
    /// True if it switches something off by a word before its name (`no option`).
    pub is_negated: bool,
}

/// The result of replacing directives of a block.
#[derive(Debug, Default)]
pub struct DirectiveReplacement {
    /// True if the block has one of them.
    pub found: bool,
    /// Text of those that it does not have.
    pub missing: Vec<String>,
}

/// How a language tells directives apart.
#[derive(Debug)]
pub struct DirectiveNames {
    pub ignore_case: bool,
    /// Directives that may stand several times, and how many of their arguments tell them apart.
    pub repeated: &'static [(&'static str, usize)],
    /// What separates two directives in a line or from each other.
    pub between: &'static str,
}

/// Arguments that tell directives apart which a block has several times.
const USUAL_KEY: usize = 1;

impl DirectiveNames {
    pub fn is_same(&self, one: &str, other: &str) -> bool {
        if self.ignore_case { one.eq_ignore_ascii_case(other) } else { one == other }
    }

    /// The number of arguments that tell directives of a name apart; `None` if it stands once.
    fn key_of(&self, name: &str) -> Option<usize> {
        self.repeated.iter().find(|(known, _)| self.is_same(known, name)).map(|(_, words)| *words)
    }

    /// Replaces what one block has of the given directives.
    pub fn replace(
        &self,
        edits: &mut Edits,
        given: &[GivenDirective],
        block: &[PresentDirective],
    ) -> DirectiveReplacement {
        let mut result = DirectiveReplacement::default();
        let mut done: Vec<usize> = Vec::new();
        for (i, first) in given.iter().enumerate() {
            if done.contains(&i) {
                continue;
            }
            let of_name = |name: &str| self.is_same(name, &first.name);
            let present: Vec<&PresentDirective> = block.iter().filter(|d| of_name(&d.name)).collect();
            let several = present.len() > 1 || given.iter().filter(|d| of_name(&d.name)).count() > 1;
            let words = self.key_of(&first.name).or(several.then_some(USUAL_KEY)).unwrap_or(0);
            let key = |arguments: &[String]| arguments[..words.min(arguments.len())].to_vec();
            let is_meant = |arguments: &[String]| key(arguments) == key(&first.arguments);
            let same: Vec<usize> =
                (0..given.len()).filter(|j| of_name(&given[*j].name) && is_meant(&given[*j].arguments)).collect();
            let text = same.iter().map(|j| given[*j].text.as_str()).collect::<Vec<_>>().join(self.between);
            done.extend(&same);
            let mut old = present.into_iter().filter(|d| is_meant(&d.arguments));
            let Some(line) = old.next() else {
                result.missing.push(text);
                continue;
            };
            result.found = true;
            let is_there = same.len() == 1 && line.arguments == first.arguments && line.is_negated == first.is_negated;
            if !is_there {
                edits.replace(line.source, line.at.clone(), text);
            }
            old.for_each(|line| edits.replace(line.source, line.at.clone(), String::new()));
        }
        result
    }

    /// True if a directive of this name may stand several times in a block.
    pub fn is_repeated(&self, name: &str) -> bool {
        self.key_of(name).is_some()
    }

    /// The given directives by name: those of one name are placed together.
    pub fn by_name(&self, given: &[GivenDirective]) -> Vec<Vec<GivenDirective>> {
        let mut groups: Vec<Vec<GivenDirective>> = Vec::new();
        for one in given {
            match groups.iter_mut().find(|group| self.is_same(&group[0].name, &one.name)) {
                Some(group) => group.push(one.clone()),
                None => groups.push(vec![one.clone()]),
            }
        }
        groups
    }
}

/// Advice for a server's refusal of a directive that may stand elsewhere: `signs` are its words for that. Empty otherwise.
pub fn where_to(change: &Change, signs: &[&str], said: &str) -> &'static str {
    let is_misplaced = signs.iter().any(|sign| said.contains(sign));
    let has_directives = !change.directives.lines().is_empty() && change.scope.is_none();
    if is_misplaced && has_directives { "\n(--at vhost:NAME or location:PATH says where it goes)" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: DirectiveNames = DirectiveNames { ignore_case: true, repeated: &[("header", 2)], between: "\n" };

    fn given(text: &str) -> GivenDirective {
        let mut words = text.split(' ').map(str::to_string);
        let name = words.next().expect("a name");
        GivenDirective { name, arguments: words.collect(), is_negated: false, text: text.into() }
    }

    /// The text with directives put into it, and the result.
    fn changed(text: &str, lines: &[&str]) -> (String, DirectiveReplacement) {
        let mut from = 0;
        let present: Vec<PresentDirective> = text
            .split('\n')
            .map(|line| {
                let GivenDirective { name, arguments, is_negated, .. } = given(line);
                let at = from..from + line.len();
                from = at.end + 1;
                PresentDirective { name, arguments, is_negated, source: 0, at }
            })
            .collect();
        let mut edits = Edits::default();
        let given: Vec<GivenDirective> = lines.iter().map(|line| given(line)).collect();
        let result = NAMES.replace(&mut edits, &given, &present);
        (String::from_utf8(edits.apply(0, text.as_bytes(), 0..text.len())).expect("text"), result)
    }

    #[test]
    fn a_directive_takes_the_place_of_the_same_one() {
        let (new, result) = changed("Timeout 5\nkeepalive On", &["KeepAlive Off", "Options None"]);
        assert_eq!((new.as_str(), result.found), ("Timeout 5\nKeepAlive Off", true));
        assert_eq!(result.missing, ["Options None"]);
        let (same, result) = changed("Timeout 5", &["timeout 5"]);
        assert_eq!((same.as_str(), result.found, result.missing.len()), ("Timeout 5", true, 0));
    }

    #[test]
    fn of_those_that_stand_several_times_the_first_words_tell_which_is_meant() {
        let (new, result) = changed("Header set A 1\nHeader set B 1", &["Header set B 2", "Header set C 3"]);
        assert_eq!((new.as_str(), result.found), ("Header set A 1\nHeader set B 2", true));
        assert_eq!(result.missing, ["Header set C 3"]);
        assert!(!changed("Header set A 1", &["Header set C 3"]).1.found);
        // It is in no table, but the block has two.
        let (new, result) = changed("Env A 1\nEnv B 1", &["Env B 2"]);
        assert_eq!((new.as_str(), result.missing.len()), ("Env A 1\nEnv B 2", 0));
        let (new, result) = changed("Env A 1\nEnv A 2\nX 1", &["Env A 3", "Env A 4"]);
        assert_eq!((new.as_str(), result.missing.len()), ("Env A 3\nEnv A 4\n\nX 1", 0));
    }

    #[test]
    fn directives_of_one_name_stay_together() {
        let groups: Vec<usize> =
            NAMES.by_name(&[given("A 1"), given("B 1"), given("a 2")]).iter().map(Vec::len).collect();
        assert_eq!(groups, [2, 1]);
    }
}
