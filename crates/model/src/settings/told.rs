//! A knob as one process tells another: the text of knobs stays as long as the program, and what comes from elsewhere is
//! kept as long.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Knob, ReloadClass, Role, Takes};

#[derive(Serialize, Deserialize)]
struct Told {
    name: String,
    short: Option<String>,
    role: Option<Role>,
    takes: Values,
    default: String,
    needs: ReloadClass,
    constraint: String,
    effect: String,
    when: Option<(String, Vec<String>)>,
    findings: Vec<String>,
    #[serde(default)]
    usual: Vec<i64>,
    #[serde(default)]
    by_name: Option<String>,
}

#[derive(Serialize, Deserialize)]
enum Values {
    Count(i64, i64),
    CountOr(i64, i64, String),
    Range(i64, i64),
    Switch { on: String, off: String },
    Choice(Vec<String>),
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn kept(word: String) -> &'static str {
    word.leak()
}

fn all_kept(words: Vec<String>) -> &'static [&'static str] {
    words.into_iter().map(kept).collect::<Vec<_>>().leak()
}

impl Serialize for Knob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Told::from(*self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Knob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Knob, D::Error> {
        Told::deserialize(from).map(Knob::from)
    }
}

impl From<Knob> for Told {
    fn from(knob: Knob) -> Told {
        Told {
            name: knob.name.into(),
            short: knob.short.map(Into::into),
            role: knob.role,
            takes: match knob.takes {
                Takes::Count(least, most) => Values::Count(least, most),
                Takes::CountOr(least, most, word) => Values::CountOr(least, most, word.into()),
                Takes::Range(least, most) => Values::Range(least, most),
                Takes::Switch { on, off } => Values::Switch { on: on.into(), off: off.into() },
                Takes::Choice(words) => Values::Choice(owned(words)),
            },
            default: knob.default.into(),
            needs: knob.needs,
            constraint: knob.constraint.into(),
            effect: knob.effect.into(),
            when: knob.when.map(|(name, values)| (name.into(), owned(values))),
            findings: owned(knob.findings),
            usual: knob.usual.to_vec(),
            by_name: knob.by_name.map(Into::into),
        }
    }
}

impl From<Told> for Knob {
    fn from(told: Told) -> Knob {
        Knob {
            name: kept(told.name),
            short: told.short.map(kept),
            role: told.role,
            takes: match told.takes {
                Values::Count(least, most) => Takes::Count(least, most),
                Values::CountOr(least, most, word) => Takes::CountOr(least, most, kept(word)),
                Values::Range(least, most) => Takes::Range(least, most),
                Values::Switch { on, off } => Takes::Switch { on: kept(on), off: kept(off) },
                Values::Choice(words) => Takes::Choice(all_kept(words)),
            },
            default: kept(told.default),
            needs: told.needs,
            constraint: kept(told.constraint),
            effect: kept(told.effect),
            when: told.when.map(|(name, values)| (kept(name), all_kept(values))),
            findings: all_kept(told.findings),
            usual: told.usual.leak(),
            by_name: told.by_name.map(kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knob_is_the_same_when_it_has_been_told() {
        let plain = Knob::new("a", Takes::Count(1, 9), "1", ReloadClass::Restart, "c", "e");
        let all = [
            plain.with_role(Role::Backlog).called("q").only_with("pm", &["static", "dynamic"]),
            Knob { takes: Takes::CountOr(1, 2, "auto"), ..plain }.worth_trying_for(&["x", "y"]).usually(&[2, 1]),
            Knob { takes: Takes::Range(1, 2), ..plain }.only_by_name("w"),
            Knob { takes: Takes::Switch { on: "yes", off: "no" }, ..plain },
            Knob { takes: Takes::Choice(&["a", "b"]), ..plain },
        ];
        let text = serde_json::to_string(&all).expect("text");
        assert_eq!(serde_json::from_str::<Vec<Knob>>(&text).expect("knobs"), all);
    }
}
