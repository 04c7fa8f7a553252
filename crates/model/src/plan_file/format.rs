//! The format of plan files. The doc comments of its structs are part of the JSON schema.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::bounds::{BANDWIDTH, BoundedValue, row};
use crate::http_options::HttpOptionValues;
use crate::objective::Objective;
use crate::plan::{Arrival, KeepAlive, Proxy, ServerTimeFrom};
use crate::request::{Expectation, Pick, RowScope, ThinkTime};
use crate::units::parse_bytes;
use crate::url::Url;

/// A value that the file has as text and that its type parses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<T>(pub T);

/// A type that a [`Text`] can hold.
pub trait Readable: Sized {
    /// # Errors
    /// With what is wrong, and what to write instead.
    fn read(text: &str) -> Result<Self, String>;
}

impl<'de, T: Readable> Deserialize<'de> for Text<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum RawValue {
            Text(String),
            Whole(i64),
            Number(f64),
            Truth(bool),
        }
        let text =
            match RawValue::deserialize(deserializer).map_err(|_| serde::de::Error::custom("a text is needed here"))? {
                RawValue::Text(text) => text,
                RawValue::Whole(n) => n.to_string(),
                RawValue::Number(n) => n.to_string(),
                RawValue::Truth(b) => if b { "on" } else { "off" }.to_string(),
            };
        T::read(&text).map(Text).map_err(serde::de::Error::custom)
    }
}

/// Bytes a second: `33.6kbit`, `1Mbit`, or a size as in `100k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth(pub u64);

impl FromStr for Bandwidth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a bandwidth; write 33.6kbit, 10Mbit, or bytes a second as in 100k");
        let lower = text.trim().to_ascii_lowercase();
        let bytes = match lower.strip_suffix("bit") {
            Some(bits) => {
                let (digits, factor) = match bits.as_bytes().last() {
                    Some(b'k') => (&bits[..bits.len() - 1], 1e3),
                    Some(b'm') => (&bits[..bits.len() - 1], 1e6),
                    Some(b'g') => (&bits[..bits.len() - 1], 1e9),
                    _ => (bits, 1.0),
                };
                digits.trim().parse::<f64>().map_err(|_| wrong())? * factor / 8.0
            }
            None => match parse_bytes(text) {
                Ok(bytes) => bytes as f64,
                // Read it as a plain number, so that the bounds check reports a value such as -1 or inf.
                Err(_) => text.trim().parse().map_err(|_| wrong())?,
            },
        };
        BANDWIDTH.check(bytes.floor()).map_err(|e| format!("'{text}': {e}"))?;
        Ok(Bandwidth(bytes as u64))
    }
}

macro_rules! readable {
    ($($t:ty),*) => {
        $(impl Readable for $t {
            fn read(text: &str) -> Result<Self, String> {
                text.parse::<$t>().map_err(|e| e.to_string())
            }
        })*
    };
}

/// What has to be reached: `p99<300ms,errors<0.1%`.
#[derive(Debug, Clone, PartialEq)]
pub struct Objectives(pub Vec<Objective>);

impl Readable for Objectives {
    fn read(text: &str) -> Result<Self, String> {
        Objective::list(text).map(Objectives)
    }
}

readable!(Url, KeepAlive, Arrival, ThinkTime, Expectation, Proxy, Bandwidth, IpAddr, ServerTimeFrom);

/// A plan file. Times are texts such as "30s" or "1m30s", sizes such as "64k". Relative file names start at the plan's
/// own folder.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "lastdrop plan")]
pub struct PlanFile {
    /// What to load. Or: `urls`, or several `[[request]]`.
    #[schemars(with = "Option<String>")]
    pub(super) url: Option<Text<Url>>,
    /// A file of URLs in the format of siege or http_load.
    pub(super) urls: Option<PathBuf>,
    /// Users who each wait for their answer before asking again [10].
    pub(super) users: Option<BoundedValue<row::Users>>,
    /// Requests (or sessions, or pages) per second, whatever the server does.
    pub(super) rate: Option<BoundedValue<row::Rate>>,
    /// What the measured phase has to reach: "p99<300ms,errors<0.1%,rate>500". Missed, the exit code is 3.
    #[schemars(with = "Option<String>")]
    pub(super) objective: Option<Text<Objectives>>,
    /// Where the server says its own time of a request: "auto", "header:X-Runtime", "header:NAME:ms", "log:FILE,FORMAT".
    #[schemars(with = "Option<String>")]
    pub(super) server_time: Option<Text<ServerTimeFrom>>,
    /// "uniform" or "poisson".
    #[schemars(with = "Option<String>")]
    pub(super) arrivals: Option<Text<Arrival>>,
    /// So many arrive together [1].
    pub(super) burst: Option<BoundedValue<row::Burst>>,
    /// Most connections open at once [256 with a rate; a connection for each user].
    pub(super) connections: Option<BoundedValue<row::Connections>>,
    /// Stop after this many requests.
    pub(super) requests: Option<BoundedValue<row::Requests>>,
    /// Stop after this long ["10s", or no limit with `requests`].
    pub(super) duration: Option<BoundedValue<row::Duration>>,
    /// Load before the measurement, outside its numbers.
    pub(super) warm_up: Option<BoundedValue<row::Duration>>,
    /// Load threads [1].
    pub(super) threads: Option<BoundedValue<row::Threads>>,
    /// A request without an answer after this long has timed out ["5s"].
    pub(super) timeout: Option<BoundedValue<row::Timeout>>,
    /// How long requests in flight may take once nothing more comes due [the timeout].
    pub(super) drain: Option<BoundedValue<row::Drain>>,
    /// "on", "off", or requests on each connection ["on"].
    #[schemars(with = "Option<String>")]
    pub(super) keepalive: Option<Text<KeepAlive>>,
    /// Seed of everything random.
    pub(super) seed: Option<BoundedValue<row::Seed>>,
    /// Pause between an answer and the next request: "2s", "1s-3s" (uniform), "exp 2s" (exponential).
    #[schemars(with = "Option<String>")]
    pub(super) think: Option<Text<ThinkTime>>,
    /// "weighted" (at random by weight), "order" (in turn), "session" (all in order are one session of one user).
    pub(super) pick: Option<Pick>,
    /// Rows for templates.
    pub(super) data: Option<DataFile>,
    /// Load pages as a browser does.
    pub(super) page: Option<WithSpan<PageFile>>,
    pub(super) http: Option<WithSpan<HttpOptionValues>>,
    pub(super) network: Option<WithSpan<NetworkFile>>,
    pub(super) tls: Option<WithSpan<TlsFile>>,
    /// Stretches of load, one after the other, instead of one by `users` or `rate`.
    #[serde(default)]
    pub(super) phase: Vec<WithSpan<PhaseFile>>,
    #[serde(default)]
    pub(super) request: Vec<WithSpan<RequestFile>>,
}

/// A part of the file with its position.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct WithSpan<T>(pub(super) Spanned<T>);

impl<T: JsonSchema> JsonSchema for WithSpan<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}

/// `[data]`: CSV with a line of names; `{{name}}` in a template is the column.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DataFile {
    pub(super) file: PathBuf,
    /// "request" (each request or session has the next row) or "user" (a user keeps its row) ["request"].
    #[serde(default)]
    pub(super) per: RowScope,
    /// Rows at random instead of in turn.
    #[serde(default)]
    pub(super) random: bool,
}

/// `[page]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageFile {
    /// Connections to each host at once [6].
    pub(super) connections: Option<BoundedValue<row::PageConnections>>,
    /// A user fetches what may be cached once.
    #[serde(default)]
    pub(super) cache: bool,
}

/// `[network]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkFile {
    /// Connect to this unix socket instead of the URL's host.
    pub(super) unix_socket: Option<PathBuf>,
    /// Addresses to connect from, in turn.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(super) sources: Vec<Text<IpAddr>>,
    /// "http://user:password@host:3128"; https goes through it by CONNECT.
    #[schemars(with = "Option<String>")]
    pub(super) proxy: Option<Text<Proxy>>,
    /// CONNECT for http too.
    #[serde(default)]
    pub(super) proxy_tunnel: bool,
    /// 4 or 6: only addresses of this family.
    pub(super) family: Option<BoundedValue<row::Family>>,
    /// Names are resolved again this often ["30s"].
    pub(super) dns_refresh: Option<BoundedValue<row::Interval>>,
    /// What each connection reads and writes at most: "33.6kbit".
    #[schemars(with = "Option<String>")]
    pub(super) bandwidth: Option<Text<Bandwidth>>,
    pub(super) receive_buffer: Option<BoundedValue<row::Buffer>>,
    pub(super) send_buffer: Option<BoundedValue<row::Buffer>>,
}

/// `[tls]`, for https URLs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsFile {
    /// Any certificate is good.
    #[serde(default)]
    pub(super) insecure: bool,
    /// PEM file of authorities that are trusted besides the system's.
    pub(super) ca: Option<PathBuf>,
    /// PEM file of our own certificate.
    pub(super) certificate: Option<PathBuf>,
    /// PEM file of its key.
    pub(super) key: Option<PathBuf>,
    /// The name to ask for and to verify, instead of the URL's host.
    pub(super) server_name: Option<String>,
    /// "1.2" or "1.3" [both].
    pub(super) version: Option<String>,
    /// Resume earlier sessions [true].
    pub(super) resumption: Option<bool>,
}

/// `[[phase]]`: either `users` or `rate`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PhaseFile {
    pub(super) name: Option<String>,
    /// false: a warm-up, outside the numbers [true].
    pub(super) measured: Option<bool>,
    pub(super) users: Option<BoundedValue<row::RampUsers>>,
    /// So many users at its end, in a straight line.
    pub(super) to_users: Option<BoundedValue<row::RampUsers>>,
    pub(super) rate: Option<BoundedValue<row::RampRate>>,
    /// Such a rate at its end: in a straight line, or in `steps`.
    pub(super) to_rate: Option<BoundedValue<row::RampRate>>,
    pub(super) steps: Option<BoundedValue<row::Steps>>,
    #[schemars(with = "Option<String>")]
    pub(super) arrivals: Option<Text<Arrival>>,
    pub(super) burst: Option<BoundedValue<row::Burst>>,
    pub(super) connections: Option<BoundedValue<row::Connections>>,
    pub(super) requests: Option<BoundedValue<row::Requests>>,
    pub(super) duration: Option<BoundedValue<row::Duration>>,
}

/// `[[request]]`: one request of a mix, or a step of a session. URL path, header values and bodies are templates.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestFile {
    pub(super) name: Option<String>,
    pub(super) method: Option<String>,
    #[schemars(with = "Option<String>")]
    pub(super) url: Option<Text<Url>>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Option<String>,
    pub(super) body_file: Option<PathBuf>,
    /// Fields of an application/x-www-form-urlencoded body.
    pub(super) form: Option<Fields>,
    /// Fields of a multipart/form-data body.
    pub(super) multipart: Option<Vec<PartFile>>,
    pub(super) weight: Option<BoundedValue<row::Weight>>,
    /// "user:password"
    pub(super) basic: Option<String>,
    /// "user:password"
    pub(super) digest: Option<String>,
    pub(super) bearer: Option<String>,
    /// "status=200", "length=1234", "text=Hello", "no-text=Error", "url=/orders/{n}", "checksum=sha256:…", "checksum=same".
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(super) expect: Vec<Text<Expectation>>,
    /// Values taken from the answer, for `{{name}}` in later requests.
    #[serde(default)]
    pub(super) extract: BTreeMap<String, ExtractFile>,
    #[schemars(with = "Option<String>")]
    pub(super) think: Option<Text<ThinkTime>>,
    /// In a session: only the first time that a user comes, as for a login. Cookies and values are then kept.
    #[serde(default)]
    pub(super) once: bool,
    /// With pick = "sessions": a session ends here, and its connection with it.
    #[serde(default)]
    pub(super) last: bool,
}

/// Names and values in the order of the file.
#[derive(Debug)]
pub(super) struct Fields(pub(super) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = serde_json::Map::deserialize(deserializer)?;
        map.into_iter()
            .map(|(name, value)| match value {
                serde_json::Value::String(text) => Ok((name, text)),
                serde_json::Value::Number(n) => Ok((name, n.to_string())),
                serde_json::Value::Bool(b) => Ok((name, b.to_string())),
                _ => Err(serde::de::Error::custom(format!("the field {name} of a form needs a text"))),
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Fields)
    }
}

impl JsonSchema for Fields {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Fields".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <BTreeMap<String, String>>::json_schema(generator)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PartFile {
    pub(super) name: String,
    pub(super) value: Option<String>,
    pub(super) file: Option<PathBuf>,
    /// The name of a file, as it is sent [that of the file].
    pub(super) filename: Option<String>,
    /// Its Content-Type [application/octet-stream for a file].
    #[serde(rename = "type")]
    pub(super) content_type: Option<String>,
}

/// One of the three.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtractFile {
    /// Name of a header field.
    pub(super) header: Option<String>,
    /// Its first group, or the whole match.
    pub(super) regex: Option<String>,
    /// JSON pointer: "/items/0/id".
    pub(super) json: Option<String>,
    /// A regex over where the answer leads to (its Location), or else over the path and query after redirects: "/order/(\\d+)".
    pub(super) url: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_read_as_people_say_them() {
        assert_eq!("33.6kbit".parse(), Ok(Bandwidth(4200)));
        assert_eq!("10Mbit".parse(), Ok(Bandwidth(1_250_000)));
        assert_eq!("100k".parse(), Ok(Bandwidth(102_400)));
        assert!("fast".parse::<Bandwidth>().is_err() && "0".parse::<Bandwidth>().is_err());
    }
}
