//! The JSON form of a knob, for messages between processes. A `Knob` has `'static` text, so the text of a knob that
//! is read is leaked.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Knob, KnobValues, ReloadClass, Role};

#[derive(Serialize, Deserialize)]
struct KnobJson {
    name: String,
    short: Option<String>,
    role: Option<Role>,
    takes: KnobValuesJson,
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
enum KnobValuesJson {
    Count(i64, i64),
    CountOr(i64, i64, String),
    Range(i64, i64),
    Switch { on: String, off: String },
    Choice(Vec<String>),
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn leak(word: String) -> &'static str {
    word.leak()
}

fn leak_all(words: Vec<String>) -> &'static [&'static str] {
    words.into_iter().map(leak).collect::<Vec<_>>().leak()
}

impl Serialize for Knob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        KnobJson::from(*self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Knob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Knob, D::Error> {
        KnobJson::deserialize(from).map(Knob::from)
    }
}

impl From<Knob> for KnobJson {
    fn from(knob: Knob) -> KnobJson {
        KnobJson {
            name: knob.name.into(),
            short: knob.short.map(Into::into),
            role: knob.role,
            takes: match knob.takes {
                KnobValues::Count(least, most) => KnobValuesJson::Count(least, most),
                KnobValues::CountOr(least, most, word) => KnobValuesJson::CountOr(least, most, word.into()),
                KnobValues::Range(least, most) => KnobValuesJson::Range(least, most),
                KnobValues::Switch { on, off } => KnobValuesJson::Switch { on: on.into(), off: off.into() },
                KnobValues::Choice(words) => KnobValuesJson::Choice(owned(words)),
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

impl From<KnobJson> for Knob {
    fn from(json: KnobJson) -> Knob {
        Knob {
            name: leak(json.name),
            short: json.short.map(leak),
            role: json.role,
            takes: match json.takes {
                KnobValuesJson::Count(least, most) => KnobValues::Count(least, most),
                KnobValuesJson::CountOr(least, most, word) => KnobValues::CountOr(least, most, leak(word)),
                KnobValuesJson::Range(least, most) => KnobValues::Range(least, most),
                KnobValuesJson::Switch { on, off } => KnobValues::Switch { on: leak(on), off: leak(off) },
                KnobValuesJson::Choice(words) => KnobValues::Choice(leak_all(words)),
            },
            default: leak(json.default),
            needs: json.needs,
            constraint: leak(json.constraint),
            effect: leak(json.effect),
            when: json.when.map(|(name, values)| (leak(name), leak_all(values))),
            findings: leak_all(json.findings),
            usual: json.usual.leak(),
            by_name: json.by_name.map(leak),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knob_survives_a_round_trip_through_json() {
        let plain = Knob::new("a", KnobValues::Count(1, 9), "1", ReloadClass::Restart, "c", "e");
        let all = [
            plain.with_role(Role::Backlog).called("q").only_with("pm", &["static", "dynamic"]),
            Knob { takes: KnobValues::CountOr(1, 2, "auto"), ..plain }.worth_trying_for(&["x", "y"]).usually(&[2, 1]),
            Knob { takes: KnobValues::Range(1, 2), ..plain }.only_by_name("w"),
            Knob { takes: KnobValues::Switch { on: "yes", off: "no" }, ..plain },
            Knob { takes: KnobValues::Choice(&["a", "b"]), ..plain },
        ];
        let text = serde_json::to_string(&all).expect("text");
        assert_eq!(serde_json::from_str::<Vec<Knob>>(&text).expect("knobs"), all);
    }
}
