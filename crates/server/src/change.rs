//! What a trial puts on top of a server's own configuration: settings that lastdrop knows, and directives that it does
//! not.

use lastdrop_model::{Setting, Settings};
use serde::{Deserialize, Serialize};

/// Lines in the server's own language, as the user gave them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directives(Vec<String>);

impl Directives {
    /// Splits text at `;` and at line ends outside quotes. As in Apache, a quote counts only at the start of a word.
    #[must_use]
    pub fn read(text: &str) -> Directives {
        let mut lines = vec![String::new()];
        let (mut quote, mut last) = (None, ' ');
        for c in text.chars() {
            match quote {
                None if c == ';' || c == '\n' => {
                    lines.push(String::new());
                    last = ' ';
                    continue;
                }
                None if (c == '"' || c == '\'') && last.is_whitespace() => quote = Some(c),
                Some(open) if c == open && last != '\\' => quote = None,
                _ => {}
            }
            last = c;
            if let Some(line) = lines.last_mut() {
                line.push(c);
            }
        }
        Directives(lines.into_iter().map(|l| l.trim().to_string()).filter(|l| !l.is_empty()).collect())
    }

    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.0
    }

    /// Names of the directives; for a section its kind, such as `Directory`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(|l| !l.starts_with("</") && !l.starts_with('#'))
            .filter_map(|l| l.trim_start_matches('<').split(|c: char| c.is_whitespace() || c == '>').next())
    }
}

/// A change of a server's configuration; the empty change is the server as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub settings: Settings,
    pub directives: Directives,
}

impl Change {
    /// Reads a change of one or more lines, separated by `;`. They are directives if the server takes such, otherwise
    /// settings with a value each.
    ///
    /// # Errors
    /// With the line that has no value.
    pub fn read(text: &str, takes_directives: bool) -> Result<Change, String> {
        let directives = Directives::read(text);
        if takes_directives {
            return Ok(directives.into());
        }
        let setting = |line: &String| {
            let (name, value) = line.split_once(char::is_whitespace).ok_or(format!("'{line}' is no SETTING VALUE"))?;
            Ok((name.to_string(), Setting::read(value.trim())))
        };
        directives.lines().iter().map(setting).collect::<Result<Settings, String>>().map(Change::from)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.directives.0.is_empty()
    }

    /// The configuration lines of the change, settings first.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let line = |(name, value): (&String, &Setting)| format!("{name} {value}");
        self.settings.iter().map(line).chain(self.directives.0.iter().cloned())
    }

    /// Names of the settings and directives in which two changes differ.
    pub(crate) fn differing<'a>(&'a self, other: &'a Change) -> impl Iterator<Item = &'a str> {
        let settings = self.settings.keys().chain(other.settings.keys());
        let settings = settings.filter(|name| self.settings.get(*name) != other.settings.get(*name));
        let directives =
            (self.directives != other.directives).then(|| self.directives.names().chain(other.directives.names()));
        settings.map(String::as_str).chain(directives.into_iter().flatten())
    }
}

impl From<Settings> for Change {
    fn from(settings: Settings) -> Change {
        Change { settings, ..Change::default() }
    }
}

impl From<Directives> for Change {
    fn from(directives: Directives) -> Change {
        Change { directives, ..Change::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_taken_apart_outside_of_quotes() {
        let d = Directives::read("<Directory />; AllowOverride None; </Directory>;\nHeader set X \"a;b\" ; ");
        assert_eq!(d.lines(), ["<Directory />", "AllowOverride None", "</Directory>", "Header set X \"a;b\""]);
        assert_eq!(d.names().collect::<Vec<_>>(), ["Directory", "AllowOverride", "Header"]);
        assert_eq!(Directives::read(" ; \n"), Directives::default());
        let words = Directives::read("ErrorDocument 404 don't; Header set X \"a\\\"b;c\";A b");
        assert_eq!(words.lines(), ["ErrorDocument 404 don't", "Header set X \"a\\\"b;c\"", "A b"]);
    }

    #[test]
    fn settings_are_read_as_directives_are() {
        let read = Change::read("pm static; pm.max_children  4 ;", false).expect("settings");
        let expected =
            Settings::from([("pm".to_string(), "static".into()), ("pm.max_children".to_string(), 4_u64.into())]);
        assert_eq!((read, Change::read("", false)), (Change::from(expected), Ok(Change::default())));
        assert_eq!(Change::read("KeepAlive On", true), Ok(Directives::read("KeepAlive On").into()));
        assert!(Change::read("pm", false).is_err_and(|e| e.contains("'pm' is no SETTING VALUE")));
    }

    #[test]
    fn changes_differ_in_what_comes_and_in_what_goes() {
        let settings =
            |n: i64| Settings::from([("A".to_string(), Setting::Count(1)), ("B".to_string(), Setting::Count(n))]);
        let (one, two) = (Change::from(settings(1)), Change::from(settings(2)));
        assert_eq!(one.differing(&one).count(), 0);
        assert!(one.differing(&two).all(|name| name == "B"));
        let with = Change::from(Directives::read("ListenBacklog 5"));
        assert_eq!(with.differing(&Change::default()).collect::<Vec<_>>(), ["ListenBacklog"]);
        assert_eq!(Change::default().differing(&with).collect::<Vec<_>>(), ["ListenBacklog"]);
    }
}
