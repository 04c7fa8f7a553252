//! Values that are extracted from answers for later requests.

use lastdrop_model::request::{ExtractSource, ExtractSpec};
use regex::bytes::Regex;

/// Where a value is taken from.
#[derive(Debug, Clone)]
pub enum Rule {
    Header(String),
    Regex(Box<Regex>),
    Json(String),
    Url(Box<Regex>),
}

/// A value to take from each answer to a request.
#[derive(Debug, Clone)]
pub struct Extraction {
    /// Index into the user's values.
    pub value: usize,
    pub rule: Rule,
}

impl Extraction {
    /// # Errors
    /// The rule is not valid.
    pub fn new(extract: &ExtractSpec, value: usize) -> Result<Extraction, String> {
        let regex = |pattern: &str| {
            let built = regex::bytes::RegexBuilder::new(pattern).size_limit(1 << 20).build();
            built.map(Box::new).map_err(|e| format!("the regex of '{}': {e}", extract.name))
        };
        let rule = match &extract.from {
            ExtractSource::Header(name) => Rule::Header(name.clone()),
            ExtractSource::Regex(pattern) => Rule::Regex(regex(pattern)?),
            ExtractSource::Url(pattern) => Rule::Url(regex(pattern)?),
            ExtractSource::Json(pointer) if pointer.is_empty() || pointer.starts_with('/') => {
                Rule::Json(pointer.clone())
            }
            ExtractSource::Json(pointer) => {
                return Err(format!("'{pointer}' of '{}' is not a JSON pointer; write /items/0/id", extract.name));
            }
        };
        Ok(Extraction { value, rule })
    }

    /// Returns the value if the answer has it; `url` is the redirect's target or the requested URL.
    #[must_use]
    pub fn take(&self, headers: &[(String, Vec<u8>)], body: &[u8], url: &[u8]) -> Option<Vec<u8>> {
        let first = |regex: &Regex, text: &[u8]| {
            let found = regex.captures(text)?;
            Some(found.get(1).or_else(|| found.get(0))?.as_bytes().to_vec())
        };
        match &self.rule {
            Rule::Header(name) => {
                headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
            }
            Rule::Regex(regex) => first(regex, body),
            Rule::Url(regex) => first(regex, url),
            Rule::Json(pointer) => {
                let document: serde_json::Value = lastdrop_model::read_json(body).ok()?;
                match document.pointer(pointer)? {
                    serde_json::Value::String(text) => Some(text.clone().into_bytes()),
                    serde_json::Value::Null => None,
                    other => Some(other.to_string().into_bytes()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extraction(from: ExtractSource) -> Extraction {
        Extraction::new(&ExtractSpec { name: "x".into(), from }, 0).expect("valid")
    }

    #[test]
    fn values_are_taken_from_where_they_are() {
        let headers = vec![("X-Token".to_string(), b"t1".to_vec())];
        let body = br#"{"items":[{"id":17,"name":"a b"}]} <input name="csrf" value="c9">"#;
        let json = br#"{"items":[{"id":17,"name":"a b"}],"none":null}"#;
        let take = |from, body: &[u8]| {
            extraction(from).take(&headers, body, b"/order/4?x").map(|v| String::from_utf8(v).expect("text"))
        };
        assert_eq!(take(ExtractSource::Header("x-token".into()), b""), Some("t1".into()));
        assert_eq!(take(ExtractSource::Regex("name=\"csrf\" value=\"([^\"]+)".into()), body), Some("c9".into()));
        assert_eq!(take(ExtractSource::Json("/items/0/id".into()), json), Some("17".into()));
        assert_eq!(take(ExtractSource::Json("/items/0/name".into()), json), Some("a b".into()));
        assert_eq!(take(ExtractSource::Url("/order/([0-9]+)".into()), body), Some("4".into()));
        for missing in [
            ExtractSource::Url("/item/(.*)".into()),
            ExtractSource::Header("y".into()),
            ExtractSource::Regex("zzz".into()),
            ExtractSource::Json("/none".into()),
            ExtractSource::Json("/items/9".into()),
        ] {
            assert_eq!(take(missing, json), None);
        }
    }

    #[test]
    fn rules_that_cannot_be_understood_are_errors() {
        for from in [
            ExtractSource::Regex("(".into()),
            ExtractSource::Regex("(a{1000}){1000}".into()),
            ExtractSource::Json("items".into()),
        ] {
            assert!(Extraction::new(&ExtractSpec { name: "x".into(), from }, 0).is_err());
        }
    }
}
