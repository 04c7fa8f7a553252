//! Generates a configuration from a template, in which `{{name}}` stands for a value.

use lastdrop_model::Settings;

/// Returns the template with all values inserted.
///
/// # Errors
/// In words, if a name in braces has no value.
pub fn render(template: &str, values: &Settings) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after.split_once("}}").ok_or_else(|| format!("'{{{{{after}' has no end"))?;
        let value = values.get(name.trim()).ok_or_else(|| format!("{{{{{name}}}}} is no knob of this kind"))?;
        out.push_str(before);
        out.push_str(&value.to_string());
        rest = behind;
    }
    Ok(out + rest)
}

/// The value in a text at the place where the template has the name, and its line.
pub fn value(template: &str, text: &str, name: &str) -> Option<(String, usize)> {
    let mark = format!("{{{{{name}}}}}");
    let line = template.lines().find(|l| l.contains(&mark))?;
    let (before, after) = line.split_once(&mark)?;
    let before = before.rsplit("}}").next().unwrap_or(before);
    let after = after.split("{{").next().unwrap_or(after);
    text.lines().enumerate().find_map(|(i, l)| {
        let rest = &l[l.find(before)? + before.len()..];
        let value = if after.is_empty() { rest } else { &rest[..rest.find(after)?] };
        (!value.is_empty()).then(|| (value.trim().to_string(), i + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_and_read_back() {
        let template = "<pool max=\"{{max}}\" min=\"{{min}}\"/>\nlog {{log}}\n";
        let values =
            Settings::from([("max", "9"), ("min", "2"), ("log", "off")].map(|(k, v)| (k.to_string(), v.into())));
        let text = render(template, &values).expect("filled");
        assert_eq!(text, "<pool max=\"9\" min=\"2\"/>\nlog off\n");
        assert_eq!(value(template, &text, "max"), Some(("9".into(), 1)));
        assert_eq!(value(template, &text, "min"), Some(("2".into(), 1)));
        assert_eq!(value(template, &text, "log"), Some(("off".into(), 2)));
        assert_eq!(value(template, &text, "other"), None);
        assert!(render("{{x}}", &values).is_err() && render("{{max", &values).is_err());
    }
}
