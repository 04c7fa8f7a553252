//! The plan file of a sweep: lists of values, of which every combination is measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_model::bounds::{BoundRow, BoundedValue, row};
use lastdrop_model::http_options::{HttpOptionValues, HttpOptions, Version};
use lastdrop_model::request::header_line;
use lastdrop_model::toml_error;
use lastdrop_model::{KeepAlive, Setting, Settings, Url};
use lastdrop_server::{Change, ConfigScope, ServerError, ServerRef, Stack, check_called_apart};
use serde::{Deserialize, Deserializer};

/// A plan that cannot be used; the message has file, line and column if it concerns a place in the file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct SweepPlanError {
    pub path: PathBuf,
    pub message: String,
}

/// One value or several.
#[derive(Debug, Clone)]
struct OneOrMany<T>(Vec<T>);

impl<T: Clone> OneOrMany<T> {
    fn list(&self) -> Vec<T> {
        self.0.clone()
    }
}

impl<R: BoundRow> OneOrMany<BoundedValue<R>> {
    fn numbers(&self) -> Vec<R::Value> {
        self.0.iter().map(|n| n.0).collect()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not an untagged enum, which would hide what is wrong with a value.
        let list = match toml::Value::deserialize(deserializer)? {
            toml::Value::Array(list) if list.is_empty() => {
                return Err(serde::de::Error::custom("a list needs a value"));
            }
            toml::Value::Array(list) => list,
            one => vec![one],
        };
        let read = |value: toml::Value| T::deserialize(value).map_err(|e| serde::de::Error::custom(e.message()));
        list.into_iter().map(read).collect::<Result<_, _>>().map(OneOrMany)
    }
}

/// Values of settings by name; the entries of a table are the settings of a server: NAME.SETTING.
#[derive(Debug, Clone, Default)]
struct SettingValues(BTreeMap<String, OneOrMany<Setting>>);

impl<'de> Deserialize<'de> for SettingValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = BTreeMap::<String, SettingEntry>::deserialize(deserializer)?;
        let mut all = BTreeMap::new();
        for (name, entry) in entries {
            entry.add_to(&mut all, name).map_err(serde::de::Error::custom)?;
        }
        Ok(SettingValues(all))
    }
}

/// The value of a key: settings values, or a table of settings whose names continue the key.
enum SettingEntry {
    Values(OneOrMany<Setting>),
    Table(BTreeMap<String, SettingEntry>),
}

impl SettingEntry {
    fn add_to(self, all: &mut BTreeMap<String, OneOrMany<Setting>>, name: String) -> Result<(), String> {
        match self {
            SettingEntry::Values(values) if !all.contains_key(&name) => _ = all.insert(name, values),
            SettingEntry::Values(_) => return Err(format!("the setting {name} is there twice")),
            SettingEntry::Table(entries) => {
                return entries.into_iter().try_for_each(|(key, entry)| entry.add_to(all, format!("{name}.{key}")));
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for SettingEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entry = match toml::Value::deserialize(deserializer)? {
            table @ toml::Value::Table(_) => BTreeMap::deserialize(table).map(SettingEntry::Table),
            values => OneOrMany::deserialize(values).map(SettingEntry::Values),
        };
        entry.map_err(|e: toml::de::Error| serde::de::Error::custom(e.message()))
    }
}

/// Keys that are allowed both at the top, for all series, and in a series.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesBlock {
    name: Option<String>,
    url: Option<OneOrMany<String>>,
    users: Option<OneOrMany<BoundedValue<row::Users>>>,
    requests: Option<OneOrMany<BoundedValue<row::Requests>>>,
    duration: Option<BoundedValue<row::Duration>>,
    /// The URL's query is filled up to this many characters.
    query_length: Option<OneOrMany<BoundedValue<row::QueryLength>>>,
    /// Headers, `Name: value`; each request has all of them.
    header: Option<OneOrMany<String>>,
    /// Directives of the server, which this variant has and others do not.
    #[serde(default)]
    directives: Vec<String>,
    /// Where they apply.
    at: Option<ConfigScope>,
    #[serde(default)]
    settings: SettingValues,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepFile {
    /// One server, or several that are changed together.
    #[serde(alias = "servers")]
    server: Option<OneOrMany<String>>,
    url: Option<OneOrMany<String>>,
    users: Option<OneOrMany<BoundedValue<row::Users>>>,
    requests: Option<OneOrMany<BoundedValue<row::Requests>>>,
    duration: Option<BoundedValue<row::Duration>>,
    query_length: Option<OneOrMany<BoundedValue<row::QueryLength>>>,
    header: Option<OneOrMany<String>>,
    /// Every row is measured once per round, in random order.
    rounds: Option<BoundedValue<row::Rounds>>,
    /// The column by which the table is sorted.
    sort: Option<String>,
    keepalive: Option<String>,
    timeout: Option<BoundedValue<row::Timeout>>,
    #[serde(default)]
    insecure: bool,
    /// Rows also set everything that depends on the size of a pool.
    #[serde(default)]
    whole_pools: bool,
    /// How HTTP is spoken, as in a plan of requests.
    #[serde(default)]
    http: HttpOptionValues,
    threads: Option<BoundedValue<row::Threads>>,
    seed: Option<BoundedValue<row::Seed>>,
    /// Duration of the warm-up load if recycling makes warming each worker impossible.
    warm_up: Option<BoundedValue<row::Pause>>,
    #[serde(default)]
    settings: SettingValues,
    #[serde(default, alias = "variant")]
    series: Vec<SeriesBlock>,
}

/// One combination: a row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepCell {
    pub series: String,
    pub url: Url,
    pub users: u32,
    pub requests: Option<u64>,
    pub duration: Option<Duration>,
    pub query_length: Option<u32>,
    pub headers: Vec<(String, String)>,
    pub settings: Settings,
    /// The directives as the plan has them, and where they apply.
    pub lines: Vec<String>,
    pub at: Option<ConfigScope>,
    /// The directives as the servers take them; settings are in `settings`.
    pub change: Change,
}

impl SweepCell {
    /// The directives as text.
    #[must_use]
    pub fn directives(&self) -> String {
        let text = self.lines.join("; ");
        match &self.at {
            Some(at) if !text.is_empty() => format!("{text} (at {at})"),
            _ => text,
        }
    }
}

#[derive(Debug, Clone)]
pub struct SweepPlan {
    pub servers: Vec<ServerRef>,
    pub cells: Vec<SweepCell>,
    pub keepalive: KeepAlive,
    pub timeout: Duration,
    /// Certificates of the server are not verified.
    pub insecure: bool,
    /// Together with the size of a pool, also set the settings with which all of its workers exist from the start.
    pub whole_pools: bool,
    /// How HTTP is spoken.
    pub http: HttpOptions,
    pub threads: u32,
    pub seed: Option<u32>,
    pub warm_up: Duration,
    pub rounds: u32,
    pub sort: Option<String>,
    /// Runs and documents are stored with their secrets.
    pub keep_secrets: bool,
}

impl SweepPlan {
    /// Checks that the table can be sorted as the plan wants.
    ///
    /// # Errors
    /// With the columns that exist.
    pub fn check_sort(&self) -> Result<(), String> {
        let Some(sort) = &self.sort else { return Ok(()) };
        let mut columns: Vec<&str> = SORTABLE.to_vec();
        columns.extend(self.cells.iter().flat_map(|c| c.settings.keys()).map(String::as_str));
        columns.dedup();
        if columns.iter().any(|c| c.eq_ignore_ascii_case(sort)) {
            Ok(())
        } else {
            Err(format!("the table has no column '{sort}' to sort by; there are {}", columns.join(", ")))
        }
    }
}

impl SweepPlan {
    /// Checks the settings against their servers, and gives them the names used there.
    ///
    /// # Errors
    /// With a setting that no server has, or a value that it cannot take.
    pub fn settle_names(&mut self, stack: &Stack) -> Result<(), ServerError> {
        for cell in &mut self.cells {
            cell.settings = stack.settings(&cell.settings)?;
            let Change { settings, directives, scope, .. } = stack.change(&cell.lines.join("\n"), cell.at.as_ref())?;
            cell.settings.extend(settings);
            cell.change = Change { directives, scope, ..Change::default() };
            stack.check_names(&cell.settings)?;
        }
        let as_setting = |sort: &String| Settings::from([(sort.clone(), Setting::Count(0))]);
        let settled = self.sort.as_ref().and_then(|sort| stack.settings(&as_setting(sort)).ok()?.pop_first());
        self.sort = settled.map(|(name, _)| name).or(self.sort.take());
        Ok(())
    }
}

/// Columns by which every table can be sorted.
pub const SORTABLE: [&str; 10] =
    ["name", "url", "query_length", "users", "requests", "avtime", "completed", "failed", "rps", "p99"];

/// More rows than this are a mistake.
const MOST_CELLS: usize = 10_000;

impl SweepPlan {
    /// Reads a plan file. The configuration path in `server` is relative to the file's folder.
    ///
    /// # Errors
    /// When it cannot be read or is not a valid plan.
    pub fn read(path: &Path) -> Result<SweepPlan, SweepPlanError> {
        let error = |message: String| SweepPlanError { path: path.to_path_buf(), message };
        let text = lastdrop_load::files::read_text(path).map_err(|e| error(e.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        SweepPlan::parse(&text, folder).map_err(error)
    }

    fn parse(text: &str, folder: &Path) -> Result<SweepPlan, String> {
        let file: SweepFile =
            toml::from_str(text).map_err(|e| e.to_string().replace(e.message(), &toml_error::what(&e)))?;
        let named = file.server.as_ref().map_or_else(Vec::new, OneOrMany::list);
        let mut servers = named.iter().map(|name| name.parse()).collect::<Result<Vec<ServerRef>, _>>()?;
        check_called_apart(&servers)?;
        // For a server on another machine it is a path there.
        let here = servers.iter_mut().filter(|s| !s.is_elsewhere());
        for config in here.filter_map(|s| s.config.as_mut()) {
            *config = folder.join(&*config);
        }
        let top = SeriesBlock {
            name: None,
            url: file.url.clone(),
            users: file.users.clone(),
            requests: file.requests.clone(),
            duration: file.duration,
            query_length: file.query_length.clone(),
            header: file.header.clone(),
            directives: Vec::new(),
            at: None,
            settings: file.settings.clone(),
        };
        let series = if file.series.is_empty() { vec![SeriesBlock::default()] } else { file.series.clone() };
        let mut cells = Vec::new();
        for block in &series {
            cells.extend(expand(&top, block)?);
            if cells.len() > MOST_CELLS {
                return Err(format!("more than {MOST_CELLS} combinations; split the plan"));
            }
        }
        if series.iter().any(|block| block.at.is_some() && block.directives.is_empty()) {
            return Err("a variant says at where, but has no directives".into());
        }
        if servers.is_empty() && cells.iter().any(|c| !c.settings.is_empty() || !c.lines.is_empty()) {
            return Err(
                "it has settings or directives but no server; add: server = \"apache:/path/apache2.conf\"".into()
            );
        }
        let mut http = HttpOptions::default();
        file.http.set(&mut http, |_| true);
        // A connection of HTTP/2 for each request would measure little but handshakes.
        let is_kept = matches!(http.version, Version::Http2 | Version::Auto);
        Ok(SweepPlan {
            servers,
            cells,
            keepalive: file.keepalive.as_deref().unwrap_or(if is_kept { "on" } else { "off" }).parse()?,
            timeout: file.timeout.map_or(Duration::from_secs(5), |t| t.0),
            insecure: file.insecure,
            whole_pools: file.whole_pools,
            http,
            threads: file.threads.map_or(1, |t| t.0),
            seed: file.seed.map(|s| s.0),
            warm_up: file.warm_up.map_or(Duration::from_secs(15), |t| t.0),
            rounds: file.rounds.map_or(1, |r| r.0),
            sort: file.sort,
            keep_secrets: false,
        })
    }
}

/// Returns the URL with a query of this many characters: its own query filled up with letters, or a new one.
fn with_query(url: &Url, length: u32) -> Url {
    let mut url = url.clone();
    let length = length as usize;
    let have = url.path.split_once('?').map(|(_, query)| query.chars().count());
    match have {
        None if length == 0 => {}
        None => {
            url.path.push('?');
            url.path.extend("q=".chars().chain(std::iter::repeat('x')).take(length));
        }
        Some(n) => url.path.extend(std::iter::repeat_n('x', length.saturating_sub(n))),
    }
    url
}

/// Returns every combination of a series; the settings vary slowest.
fn expand(top: &SeriesBlock, series: &SeriesBlock) -> Result<Vec<SweepCell>, String> {
    let urls = series.url.as_ref().or(top.url.as_ref()).ok_or("it has no url")?.list();
    let users = series.users.as_ref().or(top.users.as_ref()).map_or(vec![10], OneOrMany::numbers);
    let requests = series.requests.as_ref().or(top.requests.as_ref()).map(OneOrMany::numbers);
    let duration = series.duration.or(top.duration).map(|d| d.0);
    let requests: Vec<Option<u64>> = match requests {
        Some(list) => list.into_iter().map(Some).collect(),
        None => vec![None],
    };
    let duration = duration.or(if requests == [None] { Some(Duration::from_secs(10)) } else { None });
    let lengths: Vec<Option<u32>> = match series.query_length.as_ref().or(top.query_length.as_ref()) {
        Some(list) => list.numbers().into_iter().map(Some).collect(),
        None => vec![None],
    };
    let headers = series.header.as_ref().or(top.header.as_ref()).map_or(Vec::new(), OneOrMany::list);
    let headers = headers.iter().map(|h| header_line(h)).collect::<Result<Vec<_>, _>>()?;
    let mut all_settings = top.settings.0.clone();
    all_settings.extend(series.settings.0.clone());
    let mut combinations = vec![Settings::new()];
    for (name, values) in &all_settings {
        combinations = combinations
            .into_iter()
            .flat_map(|c| {
                values.list().into_iter().map(move |v| {
                    let mut with = c.clone();
                    with.insert(name.clone(), v);
                    with
                })
            })
            .collect();
        if combinations.len() > MOST_CELLS {
            return Err(format!("more than {MOST_CELLS} combinations; split the plan"));
        }
    }
    let mut cells = Vec::new();
    for settings in &combinations {
        for url in &urls {
            let url: Url = url.parse().map_err(|e: lastdrop_model::plan::UrlError| e.to_string())?;
            for length in &lengths {
                let url = length.map_or_else(|| url.clone(), |n| with_query(&url, n));
                for users in &users {
                    for requests in &requests {
                        cells.push(SweepCell {
                            series: series.name.clone().unwrap_or_default(),
                            url: url.clone(),
                            users: *users,
                            requests: *requests,
                            duration,
                            query_length: *length,
                            headers: headers.clone(),
                            settings: settings.clone(),
                            lines: series.directives.clone(),
                            at: series.at.clone(),
                            change: Change::default(),
                        });
                    }
                }
            }
        }
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_row() {
        let text = "server = 'apache:run/a.conf'\nurl = ['http://h/a', 'http://h/b']\nusers = [1, 2]\nrequests = 10\n\
                    [settings]\nMaxRequestWorkers = [5, 6, 7]\nKeepAlive = 'Off'\n";
        let plan = SweepPlan::parse(text, Path::new("/x")).expect("valid");
        assert_eq!(plan.cells.len(), 12);
        assert_eq!(plan.cells[0].settings["KeepAlive"], Setting::Text("Off".into()));
        assert_eq!(plan.servers[0].config, Some(PathBuf::from("/x/run/a.conf")));
    }

    #[test]
    fn a_series_overrides_the_top() {
        let text = "url = 'http://h/'\nusers = 5\nrequests = 10\n[[series]]\nname = 'a'\nusers = [7, 8]\n[[series]]\nname = 'b'\n";
        let plan = SweepPlan::parse(text, Path::new("")).expect("valid");
        let users: Vec<u32> = plan.cells.iter().map(|c| c.users).collect();
        assert_eq!(users, [7, 8, 5]);
    }

    #[test]
    fn variants_have_queries_and_headers() {
        let text = "url = 'http://h/a?b=1'\nrounds = 3\nsort = 'rps'\nrequests = 10\n[[variant]]\nname = 'short'\nquery_length = [3, 25]\n\
                    header = 'X-A: b'\n[[variant]]\nname = 'none'\nurl = 'http://h/c'\nquery_length = 6\n";
        let plan = SweepPlan::parse(text, Path::new("")).expect("valid");
        let paths: Vec<&str> = plan.cells.iter().map(|c| c.url.path.as_str()).collect();
        assert_eq!(paths, ["/a?b=1", &format!("/a?b=1{}", "x".repeat(22)), "/c?q=xxxx"]);
        assert_eq!(plan.cells[0].headers, [("X-A".to_string(), "b".to_string())]);
        assert_eq!((plan.rounds, plan.sort.as_deref()), (3, Some("rps")));
        assert!(SweepPlan::parse("url='http://h/'\nheader='no colon'\n", Path::new("")).is_err());
    }

    #[test]
    fn settings_of_several_servers_are_told_by_name() {
        let plan = |settings: &str| {
            let head = "servers = ['web=nginx:a.conf', 'php-fpm']\nurl = 'http://h/'\nusers = 1\nrequests = 10\n";
            SweepPlan::parse(&format!("{head}{settings}"), Path::new("/x"))
        };
        let quoted = plan("[settings]\n'web.worker_processes' = [1, 2]\n'php-fpm.pm.max_children' = [5, 10]\n");
        let tables = plan("[settings.web]\nworker_processes = [1, 2]\n[settings.php-fpm]\npm.max_children = [5, 10]\n");
        let (quoted, tables) = (quoted.expect("valid"), tables.expect("valid"));
        assert_eq!(quoted.cells, tables.cells);
        let names: Vec<&str> = quoted.cells[3].settings.keys().map(String::as_str).collect();
        assert_eq!((quoted.cells.len(), names), (4, vec!["php-fpm.pm.max_children", "web.worker_processes"]));
        assert_eq!(quoted.servers[0].config, Some(PathBuf::from("/x/a.conf")));
        assert_eq!((quoted.servers[0].called(), quoted.servers[1].called()), ("web", "php-fpm"));
        let twice = plan("[settings]\n'web.gzip' = 'on'\n[settings.web]\ngzip = 'off'\n").expect_err("twice");
        assert!(twice.contains("web.gzip is there twice"), "{twice}");
        let empty = plan("[settings.web]\ngzip = []\n").expect_err("nothing");
        assert!(empty.contains("a list needs a value") && empty.contains("line 5"), "{empty}");
        let same =
            SweepPlan::parse("server = ['nginx:a', 'nginx:b']\nurl = 'http://h/'\n", Path::new("")).expect_err("two");
        assert!(same.contains("two servers are called 'nginx'"), "{same}");
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let wrong = |text: &str| SweepPlan::parse(text, Path::new("")).expect_err("wrong");
        assert!(wrong("url = 'http://h/'\nuser = 5\n").contains("line 2"));
        let kind = wrong("url = 'http://h/'\nusers = [1, 'x']\n");
        assert!(kind.contains("users must be a whole number from 1 to 1000000, not 'x'"), "{kind}");
        assert!(wrong("users = 5\n").contains("url"));
        assert!(wrong("url = 'http://h/'\n[settings]\nX = 1\n").contains("server"));
        for (text, words) in [
            ("users = 0", "users must be a whole number from 1 to 1000000, not '0'"),
            ("users = [1, -1]", "not '-1'"),
            ("requests = inf", "requests must be"),
            ("timeout = '0s'", "a timeout must be"),
            ("threads = 257", "threads must be"),
            ("rounds = 99999999999", "rounds must be"),
            ("query_length = 1e300", "the length of the query must be"),
        ] {
            let message = wrong(&format!("url = 'http://h/'\n{text}\n"));
            assert!(message.contains(words) && message.contains("line 2"), "{message}");
        }
    }
}
