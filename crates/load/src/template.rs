//! Text with variables: `{{name}}`. Four braces, `{{{{`, stand for two literal ones.

use std::collections::HashMap;

use rand_core::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// How a value is encoded for its place, so that text from a server or a file cannot add a line to a request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// In a request target: characters that are not allowed there are percent-encoded.
    Target,
    /// In a header field: control characters are removed.
    Field,
    /// In a form: everything but letters, digits and `-._~` is percent-encoded.
    Form,
    /// In a body: unchanged.
    Raw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    /// Number of the user, from 1.
    User,
    /// How many times the user has begun, from 1.
    Iteration,
    /// A random whole number below 2^31.
    Random,
    /// A column of the data file or a value from an answer: index into the user's values.
    Value(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Literal(Vec<u8>),
    Variable(Variable, Encoding),
}

/// Names of the plan's values, each with its index.
#[derive(Debug, Clone, Default)]
pub struct Names {
    list: Vec<String>,
    at: HashMap<String, usize>,
}

impl Names {
    /// Adds a name unless it exists. Returns its index.
    pub fn add(&mut self, name: &str) -> usize {
        *self.at.entry(name.to_string()).or_insert_with(|| {
            self.list.push(name.to_string());
            self.list.len() - 1
        })
    }

    #[must_use]
    pub fn index(&self, name: &str) -> Option<usize> {
        self.at.get(name).copied()
    }

    /// The names in the order of their indices.
    #[must_use]
    pub fn list(&self) -> &[String] {
        &self.list
    }
}

impl<'a> FromIterator<&'a str> for Names {
    fn from_iter<I: IntoIterator<Item = &'a str>>(all: I) -> Names {
        let mut names = Names::default();
        for name in all {
            names.add(name);
        }
        names
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

/// The values that templates are filled with.
#[derive(Debug)]
pub struct Values<'a> {
    pub user: u64,
    pub iteration: u64,
    pub values: &'a [Vec<u8>],
    pub rng: &'a mut Xoshiro256PlusPlus,
}

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// A name has no value, or braces do not close.
    pub fn parse(text: &str, names: &Names, encode: Encoding) -> Result<Template, String> {
        Template::parse_with(text, names, encode, |fixed, out| out.extend_from_slice(fixed.as_bytes()))
    }

    /// Like `parse`, but also encodes the literal text: for the value of a form field.
    ///
    /// # Errors
    /// As [`Template::parse`].
    pub fn parse_encoded(text: &str, names: &Names, encode: Encoding) -> Result<Template, String> {
        Template::parse_with(text, names, encode, |fixed, out| encode_into(fixed.as_bytes(), encode, out))
    }

    fn parse_with(
        text: &str,
        names: &Names,
        encode: Encoding,
        add: impl Fn(&str, &mut Vec<u8>),
    ) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            add(before, &mut literal);
            if let Some(behind) = after.strip_prefix("{{") {
                add("{{", &mut literal);
                rest = behind;
                continue;
            }
            let (name, behind) = after.split_once("}}").ok_or_else(|| {
                format!("'{{{{' without '}}}}' in '{}'; '{{{{{{{{' are two braces that are sent", shorten(text))
            })?;
            if !literal.is_empty() {
                parts.push(TemplatePart::Literal(std::mem::take(&mut literal)));
            }
            parts.push(TemplatePart::Variable(variable(name.trim(), names)?, encode));
            rest = behind;
        }
        add(rest, &mut literal);
        parts.extend((!literal.is_empty()).then_some(TemplatePart::Literal(literal)));
        Ok(Template { parts })
    }

    /// A template of bytes that never change.
    #[must_use]
    pub fn literal(bytes: Vec<u8>) -> Template {
        Template { parts: if bytes.is_empty() { Vec::new() } else { vec![TemplatePart::Literal(bytes)] } }
    }

    pub fn append(&mut self, other: Template) {
        self.parts.extend(other.parts);
    }

    /// Its length; `None` if that changes.
    #[must_use]
    pub fn literal_bytes(&self) -> Option<usize> {
        let length = |part: &TemplatePart| match part {
            TemplatePart::Literal(bytes) => Some(bytes.len()),
            TemplatePart::Variable(..) => None,
        };
        self.parts.iter().map(length).sum()
    }

    pub fn is_literal(&self) -> bool {
        self.parts.iter().all(|p| matches!(p, TemplatePart::Literal(_)))
    }

    /// Appends the text with its values.
    pub fn render(&self, values: &mut Values<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                TemplatePart::Literal(bytes) => out.extend_from_slice(bytes),
                TemplatePart::Variable(variable, encode) => match variable {
                    Variable::User => out.extend_from_slice(values.user.to_string().as_bytes()),
                    Variable::Iteration => out.extend_from_slice(values.iteration.to_string().as_bytes()),
                    Variable::Random => {
                        out.extend_from_slice((values.rng.next_u32() >> 1).to_string().as_bytes());
                    }
                    Variable::Value(i) => {
                        encode_into(values.values.get(*i).map_or(&[][..], Vec::as_slice), *encode, out)
                    }
                },
            }
        }
    }
}

/// Finds the variable of a name. A column or value of the plan overrides the built-in of the same name.
fn variable(name: &str, names: &Names) -> Result<Variable, String> {
    if let Some(at) = names.index(name) {
        return Ok(Variable::Value(at));
    }
    match name {
        "user" => Ok(Variable::User),
        "iteration" => Ok(Variable::Iteration),
        "random" => Ok(Variable::Random),
        _ => {
            const SHOWN: usize = 50;
            let known: String = names.list.iter().take(SHOWN).map(|n| format!(", {n}")).collect();
            Err(format!(
                "nothing gives {{{{{name}}}}} a value; there are: user, iteration, random{known}; '{{{{{{{{' are two braces \
                 that are sent"
            ))
        }
    }
}

/// Appends bytes, encoded for their place.
pub fn encode_into(bytes: &[u8], encode: Encoding, out: &mut Vec<u8>) {
    let percent = |b: u8, out: &mut Vec<u8>| out.extend_from_slice(format!("%{b:02X}").as_bytes());
    for &b in bytes {
        match encode {
            Encoding::Raw => out.push(b),
            Encoding::Field if b >= 0x20 && b != 0x7f || b == b'\t' => out.push(b),
            Encoding::Field => {}
            Encoding::Target if b.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&b) => out.push(b),
            Encoding::Form if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => out.push(b),
            Encoding::Form if b == b' ' => out.push(b'+'),
            Encoding::Target | Encoding::Form => percent(b, out),
        }
    }
}

fn shorten(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    fn names() -> Names {
        ["a"].into_iter().collect()
    }

    fn render(text: &str, encode: Encoding, value: &[u8]) -> String {
        let template = Template::parse(text, &names(), encode).expect("valid");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let values = [value.to_vec()];
        let mut out = Vec::new();
        template.render(&mut Values { user: 7, iteration: 2, values: &values, rng: &mut rng }, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn values_are_put_in() {
        assert_eq!(render("/x/{{a}}?u={{ user }}&i={{iteration}}", Encoding::Target, b"y"), "/x/y?u=7&i=2");
        assert_eq!(render("no change }} {", Encoding::Raw, b""), "no change }} {");
    }

    #[test]
    fn a_value_cannot_add_a_line_to_a_head() {
        let evil = b"a b\r\nX: y";
        assert_eq!(render("/{{a}}", Encoding::Target, evil), "/a%20b%0D%0AX:%20y");
        assert_eq!(render("{{a}}", Encoding::Field, evil), "a bX: y");
        assert_eq!(render("q={{a}}", Encoding::Form, "ä&=".as_bytes()), "q=%C3%A4%26%3D");
    }

    #[test]
    fn braces_can_be_sent_as_they_are() {
        assert_eq!(render("/{{{{a}}?{{a}}", Encoding::Target, b"y"), "/{{a}}?y");
        assert_eq!(render("{{{{{ {{{{{{a}}}", Encoding::Raw, b"y"), "{{{ {{y}");
        let form = Template::parse_encoded("ä {{{{{{a}}", &names(), Encoding::Form).expect("valid");
        let mut out = Vec::new();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        form.render(&mut Values { user: 1, iteration: 1, values: &[b"&".to_vec()], rng: &mut rng }, &mut out);
        assert_eq!(out, b"%C3%A4+%7B%7B%26");
    }

    #[test]
    fn names_of_the_plan_go_before_those_that_are_built_in() {
        let template =
            Template::parse("{{random}} {{user}}", &["user"].into_iter().collect(), Encoding::Raw).expect("valid");
        assert!(matches!(template.parts[2], TemplatePart::Variable(Variable::Value(0), _)), "{template:?}");
        assert!(matches!(template.parts[0], TemplatePart::Variable(Variable::Random, _)), "{template:?}");
    }

    #[test]
    fn unknown_names_and_open_braces_are_errors() {
        assert!(Template::parse("{{b}}", &names(), Encoding::Raw).expect_err("unknown").contains("there are: user"));
        assert!(Template::parse("{{a", &names(), Encoding::Raw).is_err());
    }
}
