//! Reads and sets options of a command line.

use lastdrop_model::Knob;
use lastdrop_model::settings::KnobValues;

use crate::change_method::Spelling;

/// How a command line word relates to an option.
enum WordRole<'a> {
    Other,
    /// The option alone; its value, if any, is the next word.
    Name,
    /// Option and value in one word: `--workers=4`, `-w4`.
    With(&'a str),
}

fn read<'a>(word: &'a str, name: &str) -> WordRole<'a> {
    if word == name && !name.ends_with('=') {
        return WordRole::Name;
    }
    match word.strip_prefix(name) {
        // `-Dworkers=4`: the equals sign is part of the option's name.
        Some(value) if name.ends_with('=') => WordRole::With(value),
        Some(rest) if name.starts_with("--") => rest.strip_prefix('=').map_or(WordRole::Other, WordRole::With),
        Some(value) if name.len() == 2 && name.starts_with('-') && !value.is_empty() => WordRole::With(value),
        _ => WordRole::Other,
    }
}

fn read_any<'a>(word: &'a str, spelled: &Spelling) -> WordRole<'a> {
    let names = spelled.option.iter().chain(spelled.also);
    names.map(|name| read(word, name)).find(|w| !matches!(w, WordRole::Other)).unwrap_or(WordRole::Other)
}

/// The value that the last option for a knob gives it.
pub fn value(argv: &[String], knob: &Knob, spelled: &Spelling) -> Option<String> {
    let is_switch = matches!(knob.takes, KnobValues::Switch { .. });
    let mut found = None;
    let mut words = argv.iter().skip(1).map(String::as_str);
    while let Some(word) = words.next() {
        if is_switch {
            let off = spelled.option_off == Some(word);
            if off || matches!(read_any(word, spelled), WordRole::Name) {
                found = Some(knob.switched(!off).to_string());
            }
            continue;
        }
        match read_any(word, spelled) {
            WordRole::Other => {}
            WordRole::Name => found = words.next().map(str::to_string).or(found),
            WordRole::With(value) => found = Some(value.to_string()),
        }
    }
    found
}

/// Sets an option: at its first position; otherwise before the word `before`; otherwise at the end. Removes all other
/// options that set the same knob.
pub fn set(argv: &mut Vec<String>, knob: &Knob, spelled: &Spelling, value: &str, before: Option<&str>) {
    let Some(option) = spelled.option else { return };
    let is_switch = matches!(knob.takes, KnobValues::Switch { .. });
    let new: Vec<String> = match (is_switch, lastdrop_model::Setting::read(value).is_on()) {
        (true, true) => vec![option.into()],
        (true, false) => spelled.option_off.iter().map(ToString::to_string).collect(),
        (false, _) if option.ends_with('=') => vec![format!("{option}{value}")],
        (false, _) => vec![option.into(), value.into()],
    };
    let (mut kept, mut at) = (Vec::new(), None);
    let mut words = std::mem::take(argv).into_iter();
    kept.extend(words.next());
    while let Some(word) = words.next() {
        let is_off = spelled.option_off.is_some_and(|off| off == word);
        match read_any(&word, spelled) {
            WordRole::Other if !is_off => {
                kept.push(word);
                continue;
            }
            WordRole::Name if !is_switch => drop(words.next()),
            _ => {}
        }
        at.get_or_insert(kept.len());
    }
    let at = at.or_else(|| kept.iter().position(|word| Some(word.as_str()) == before)).unwrap_or(kept.len());
    kept.splice(at..at, new);
    *argv = kept;
}

#[cfg(test)]
mod tests {
    use lastdrop_model::ReloadClass;

    use super::*;

    const SPELLED: Spelling =
        Spelling { option: Some("--workers"), also: &["-w"], option_off: None, variable: "", line: None, aliases: &[] };

    fn argv(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_string).collect()
    }

    fn knob(takes: KnobValues) -> Knob {
        Knob::new("workers", takes, "1", ReloadClass::Restart, "", "")
    }

    #[test]
    fn every_spelling_is_read_and_replaced() {
        let count = knob(KnobValues::Count(1, 99));
        for (before, is, after) in [
            ("g app -w 4 --bind x", Some("4"), "g app --workers 7 --bind x"),
            ("g -w4 app", Some("4"), "g --workers 7 app"),
            ("g --workers=2 -w 3 app", Some("3"), "g --workers 7 app"),
            ("g app", None, "g app --workers 7"),
            ("g --workersmax 3", None, "g --workersmax 3 --workers 7"),
        ] {
            let mut words = argv(before);
            assert_eq!(value(&words, &count, &SPELLED).as_deref(), is, "{before}");
            set(&mut words, &count, &SPELLED, "7", None);
            assert_eq!(words, argv(after));
            assert_eq!(value(&words, &count, &SPELLED).as_deref(), Some("7"));
        }
        let joined = Spelling { option: Some("-Dpool="), also: &[], ..SPELLED };
        let mut words = argv("java -Dpool=3 x");
        assert_eq!(value(&words, &count, &joined).as_deref(), Some("3"));
        set(&mut words, &count, &joined, "5", None);
        assert_eq!(words, argv("java -Dpool=5 x"));
        let mut words = argv("java -x Main start");
        set(&mut words, &count, &joined, "5", Some("Main"));
        assert_eq!(words, argv("java -x -Dpool=5 Main start"));
    }

    #[test]
    fn a_switch_is_on_by_its_presence() {
        let switch = knob(KnobValues::Switch { on: "True", off: "False" });
        let spelled = Spelling { option: Some("--preload"), also: &[], option_off: Some("--no-preload"), ..SPELLED };
        let mut words = argv("g --preload app");
        assert_eq!(value(&words, &switch, &spelled).as_deref(), Some("True"));
        set(&mut words, &switch, &spelled, "False", None);
        assert_eq!(words, argv("g --no-preload app"));
        assert_eq!(value(&words, &switch, &spelled).as_deref(), Some("False"));
        let without = Spelling { option_off: None, ..spelled };
        let mut words = argv("g --preload app");
        set(&mut words, &switch, &without, "False", None);
        assert_eq!(words, argv("g app"));
    }
}
