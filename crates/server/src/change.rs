//! What a trial puts on top of a server's own configuration: settings that lastdrop knows, and directives that it does
//! not.

use std::fmt;
use std::str::FromStr;

use lastdrop_model::{Knob, Setting, Settings};
use serde::{Deserialize, Serialize};

use crate::page_cache::PageCache;

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

/// The part of a configuration that directives apply to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ConfigScope {
    /// A virtual host, server block or proxy with this name.
    Host(String),
    /// URLs that begin with this path.
    Location(String),
    /// Files in this folder.
    Directory(String),
}

impl FromStr for ConfigScope {
    type Err = String;

    fn from_str(text: &str) -> Result<ConfigScope, String> {
        match text.split_once(':').map(|(kind, name)| (kind, name.trim())) {
            Some(("vhost", name)) if !name.is_empty() => Ok(ConfigScope::Host(name.into())),
            Some(("location", path)) if !path.is_empty() => Ok(ConfigScope::Location(path.into())),
            Some(("directory", path)) if path.starts_with('/') => Ok(ConfigScope::Directory(path.into())),
            _ => Err(format!("'{text}' is none of vhost:NAME, location:PATH and directory:/PATH")),
        }
    }
}

impl fmt::Display for ConfigScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigScope::Host(name) => write!(f, "vhost:{name}"),
            ConfigScope::Location(path) => write!(f, "location:{path}"),
            ConfigScope::Directory(path) => write!(f, "directory:{path}"),
        }
    }
}

impl TryFrom<String> for ConfigScope {
    type Error = String;

    fn try_from(text: String) -> Result<ConfigScope, String> {
        text.parse()
    }
}

impl From<ConfigScope> for String {
    fn from(scope: ConfigScope) -> String {
        scope.to_string()
    }
}

/// A change of a server's configuration; the empty change is the server as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    #[serde(default)]
    pub settings: Settings,
    #[serde(default)]
    pub directives: Directives,
    /// Where the directives apply; `None` is wherever the configuration has them now, otherwise the whole server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ConfigScope>,
    /// A cache of pages, for lastdrop's own requests alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<PageCache>,
}

impl Change {
    /// Reads a change of one or more lines, separated by `;`. A line is a setting if it sets one of the knobs to a value
    /// that it can have. Other lines are directives if the server takes such; otherwise they have to be settings.
    ///
    /// # Errors
    /// With the line that has no value.
    pub fn read(text: &str, takes_directives: bool, knobs: &[&Knob]) -> Result<Change, String> {
        let mut change = Change::default();
        for line in Directives::read(text).0 {
            let setting = line.split_once(char::is_whitespace).map(|(name, value)| (name, Setting::read(value.trim())));
            let has = |(name, value): &(&str, Setting)| {
                !change.settings.contains_key(*name)
                    && knobs.iter().any(|knob| knob.name == *name && knob.check(value).is_ok())
            };
            match setting {
                Some((name, value)) if !takes_directives => _ = change.settings.insert(name.into(), value),
                None if !takes_directives => return Err(format!("'{line}' is no SETTING VALUE")),
                Some(setting) if has(&setting) => _ = change.settings.insert(setting.0.into(), setting.1),
                _ => change.directives.0.push(line),
            }
        }
        Ok(change)
    }

    /// Adds a directive as it is.
    pub(crate) fn push(&mut self, line: &str) {
        self.directives.0.push(line.into());
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.directives.0.is_empty() && self.cache.is_none()
    }

    /// True if it consists of a cache and nothing more.
    pub(crate) fn is_cache_alone(&self) -> bool {
        self.cache.is_some() && self.settings.is_empty() && self.directives.0.is_empty()
    }

    /// The configuration lines of the change, settings first.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let line = |(name, value): (&String, &Setting)| format!("{name} {value}");
        let lines = self.settings.iter().map(line).chain(self.directives.0.iter().cloned());
        lines.chain(self.cache.iter().map(PageCache::line))
    }

    /// Names of the settings and directives in which two changes differ.
    pub(crate) fn differing<'a>(&'a self, other: &'a Change) -> impl Iterator<Item = &'a str> {
        let settings = self.settings.keys().chain(other.settings.keys());
        let settings = settings.filter(|name| self.settings.get(*name) != other.settings.get(*name));
        let is_other = (&self.directives, &self.scope) != (&other.directives, &other.scope);
        let directives = is_other.then(|| self.directives.names().chain(other.directives.names()));
        let cache = (self.cache != other.cache).then_some("cache");
        settings.map(String::as_str).chain(directives.into_iter().flatten()).chain(cache)
    }
}

impl From<Settings> for Change {
    fn from(settings: Settings) -> Change {
        Change { settings, ..Change::default() }
    }
}

impl From<&Settings> for Change {
    fn from(settings: &Settings) -> Change {
        settings.clone().into()
    }
}

impl From<&Change> for Change {
    fn from(change: &Change) -> Change {
        change.clone()
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
        let read = Change::read("pm static; pm.max_children  4 ;", false, &[]).expect("settings");
        let expected =
            Settings::from([("pm".to_string(), "static".into()), ("pm.max_children".to_string(), 4_u64.into())]);
        assert_eq!((read, Change::read("", false, &[])), (Change::from(expected), Ok(Change::default())));
        assert_eq!(Change::read("KeepAlive On", true, &[]), Ok(Directives::read("KeepAlive On").into()));
        assert!(Change::read("pm", false, &[]).is_err_and(|e| e.contains("'pm' is no SETTING VALUE")));
    }

    #[test]
    fn a_line_is_a_setting_where_it_sets_a_knob_and_a_directive_otherwise() {
        let knob = Knob::by_reload("gzip_comp_level", lastdrop_model::settings::KnobValues::Count(1, 9), "1", "", "");
        let read = |text: &str| Change::read(text, true, &[&knob]).expect("a change");
        let (setting, other) = (read("gzip_comp_level 9"), read("gzip_comp_level 9 9; gzip_comp_level 70; gzip on"));
        assert_eq!((setting.settings.len(), setting.directives.lines().len()), (1, 0));
        assert_eq!((other.settings.len(), other.directives.lines().len()), (0, 3));
    }

    #[test]
    fn scopes_are_read_as_they_are_written() {
        for text in ["vhost:shop.example", "vhost:*:80", "location:/app", "directory:/srv/www"] {
            let scope: ConfigScope = text.parse().expect("a scope");
            assert_eq!(scope.to_string(), text);
            let json = serde_json::to_string(&scope).expect("JSON");
            assert_eq!(lastdrop_model::read_json::<ConfigScope>(&json).expect("the same"), scope);
        }
        for wrong in ["", "shop", "vhost:", "location: ", "directory:www", "server:a"] {
            assert!(wrong.parse::<ConfigScope>().is_err_and(|e| e.contains("vhost:NAME")), "{wrong}");
        }
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
