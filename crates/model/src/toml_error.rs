//! Messages for errors of the TOML reader, with the key that they are about.

/// Returns the key whose value is wrong, such as `request.form`; `None` if the error is not about a value.
fn key(error: &toml::de::Error) -> Option<String> {
    let mut error = error.clone();
    // The error's text names the key only if it has no position.
    error.set_input(None);
    let text = error.to_string();
    let key = text.lines().last()?.strip_prefix("in `")?.strip_suffix('`')?;
    (!key.is_empty()).then(|| key.to_string())
}

/// Returns true if the message already names the key. Messages about bounds begin with the name.
fn names_it(message: &str, key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key);
    [last, "unknown field", "missing field"].iter().any(|start| message.starts_with(start))
}

/// Returns the first line of the error, after the key if the message does not name it.
#[must_use]
pub fn what(error: &toml::de::Error) -> String {
    let message = error.message().lines().next().unwrap_or("it is not TOML");
    // serde's messages for untagged enums and maps are about our types, not about the file.
    let message = match message {
        m if m.starts_with("data did not match any variant") => "a value of that kind cannot stand here",
        "invalid type: sequence, expected a map" => {
            "a list cannot stand here, but a table such as { name = \"value\" } can"
        }
        m => m,
    };
    match key(error) {
        Some(key) if !names_it(message, &key) => format!("{key}: {message}"),
        _ => message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_named_where_the_message_does_not() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct File {
            inner: Vec<Inner>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Inner {
            form: serde_json::Map<String, serde_json::Value>,
        }
        let wrong = |text: &str| what(&toml::from_str::<File>(text).expect_err("wrong"));
        assert_eq!(
            wrong("[[inner]]\nform = ['a']\n"),
            "inner.form: a list cannot stand here, but a table such as { name = \"value\" } can"
        );
        assert!(wrong("[[inner]]\nfrom = 3\n").starts_with("unknown field `from`"));
        assert!(!wrong("inner = [\n").contains("inner:"));
    }
}
