//! The HTTP options: one row per option with its names, bounds, default and help. The command line, `[http]` of plan
//! files and their schema read this table.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::bounds::{Bound, CHUNK, PIPELINE, REDIRECTS, STREAMS, WINDOW, read_within};

/// Most requests in flight on an HTTP/2 connection, unless the user says another number.
const STREAMS_OF_A_CONNECTION: u32 = 100;

/// Kind of value that an option takes.
#[derive(Debug, Clone, Copy)]
pub enum OptionKind {
    /// No value on the command line; true or false in a file.
    Switch,
    /// A number within its bounds, below 2^32.
    Number(&'static Bound),
    /// One of these words.
    Word(&'static [&'static str]),
}

/// Value that the user gave an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionValue {
    Switch(bool),
    Number(u32),
    Word(String),
}

impl OptionValue {
    fn is(&self, word: &str) -> bool {
        matches!(self, OptionValue::Word(w) if w == word)
    }

    fn on(&self) -> bool {
        *self == OptionValue::Switch(true)
    }

    fn number(&self) -> Option<u32> {
        if let OptionValue::Number(n) = self { Some(*n) } else { None }
    }
}

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Version {
    #[serde(rename = "1.0")]
    Http10,
    #[serde(rename = "1.1")]
    Http11,
    #[serde(rename = "2")]
    Http2,
    /// The one that ALPN agrees on before the run: 2, or 1.1.
    #[serde(rename = "auto")]
    Auto,
}

impl Version {
    fn of(given: &OptionValue) -> Version {
        match given {
            given if given.is("1.0") => Version::Http10,
            given if given.is("2") => Version::Http2,
            given if given.is("auto") => Version::Auto,
            _ => Version::Http11,
        }
    }

    /// The number, as the user writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2",
            Version::Auto => "auto",
        }
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Version, D::Error> {
        /// Plans that older versions stored only say whether it is HTTP/1.0.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum StoredVersion {
            Is10(bool),
            Name(String),
        }
        match StoredVersion::deserialize(deserializer)? {
            StoredVersion::Is10(true) => Ok(Version::Http10),
            StoredVersion::Is10(false) => Ok(Version::Http11),
            StoredVersion::Name(name) => Ok(Version::of(&OptionValue::Word(name))),
        }
    }
}

/// A row of the table.
pub struct HttpOption {
    /// Name on the command line, without dashes.
    pub flag: &'static str,
    /// Name of the value in the command line's help.
    pub value_name: &'static str,
    /// Help text for the command line.
    pub help: &'static str,
    /// Key in a plan file, and its description in the schema.
    pub key: &'static str,
    pub description: &'static str,
    pub takes: OptionKind,
    /// True if the option may be given in addition to a plan file, which it then overrides. Otherwise it belongs in the
    /// file.
    pub beside_a_file: bool,
    pub set: fn(&mut HttpOptions, &OptionValue),
    /// Returns the option's number in a plan, for checking its bounds.
    pub number: fn(&HttpOptions) -> Option<u32>,
}

impl fmt::Debug for HttpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.flag)
    }
}

macro_rules! options {
    ($(
        $(#[$meta:meta])+
        $field:ident: $type:ty = $default:expr, $takes:expr, flag $flag:literal $value_name:literal,
        key $key:literal, beside_a_file $beside:literal,
        help $help:literal, description $description:literal,
        set $set:expr, number $number:expr;
    )*) => {
        /// HTTP options of a plan.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct HttpOptions {
            $($(#[$meta])+ pub $field: $type,)*
            /// The version that was agreed on before the run, with [`Version::Auto`].
            #[serde(skip_serializing_if = "Option::is_none")]
            pub agreed: Option<Version>,
        }

        impl Default for HttpOptions {
            fn default() -> Self {
                HttpOptions { $($field: $default,)* agreed: None }
            }
        }

        /// The whole table. An option that implies another comes after it.
        pub const HTTP_OPTIONS: &[HttpOption] = &[$(HttpOption {
            flag: $flag,
            value_name: $value_name,
            help: $help,
            key: $key,
            description: $description,
            takes: $takes,
            beside_a_file: $beside,
            set: $set,
            number: $number,
        },)*];

        const KEYS: &[&str] = &[$($key),*];
    };
}

options! {
    /// Most redirects in a row to follow.
    redirects: u32 = 0, OptionKind::Number(REDIRECTS), flag "redirects" "N", key "redirects", beside_a_file false,
        help "Follow this many redirects", description "Redirects that are followed, at most [0].",
        set |o, given| o.redirects = given.number().unwrap_or(0), number |o| Some(o.redirects);
    /// Each user keeps the cookies that it receives.
    cookies: bool = false, OptionKind::Switch, flag "cookies" "", key "cookies", beside_a_file true,
        help "Each user keeps its cookies", description "Users keep cookies [in sessions].",
        set |o, given| o.cookies = given.on(), number |_| None;
    /// Ask for gzip and brotli.
    compressed: bool = false, OptionKind::Switch, flag "compressed" "", key "compressed", beside_a_file true,
        help "Ask for gzip and brotli", description "Ask for gzip and brotli.",
        set |o, given| o.compressed = given.on(), number |_| None;
    /// Decode gzip and brotli for expectations and extracted values, and count the bytes.
    decode: bool = false, OptionKind::Switch, flag "decode" "", key "decode", beside_a_file true,
        help "Decompress gzip and brotli, and count the bytes", description "Undo gzip and brotli.",
        set |o, given| (o.decode, o.compressed) = (given.on(), o.compressed || given.on()), number |_| None;
    /// The version of HTTP.
    #[serde(alias = "http10")]
    version: Version = Version::Http11, OptionKind::Word(&["1.0", "1.1", "2", "auto"]), flag "http" "VERSION", key "version",
        beside_a_file true,
        help "Version of HTTP: 1.1, 1.0 or 2; auto: what the server agrees on (ALPN)",
        description "\"1.1\", \"1.0\", \"2\", or \"auto\": what the server agrees on (ALPN).",
        set |o, given| o.version = Version::of(given), number |_| None;
    /// HTTP/2: most requests in flight on a connection; never above the server's limit.
    streams: Option<u32> = None, OptionKind::Number(STREAMS), flag "streams" "N", key "streams", beside_a_file true,
        help "HTTP/2: most requests in flight on a connection [100]",
        description "HTTP/2: most requests in flight on a connection [100].",
        set |o, given| o.streams = given.number(), number |o| o.streams;
    /// HTTP/2: bytes that the server may send ahead on a stream.
    window: Option<u32> = None, OptionKind::Number(WINDOW), flag "window" "SIZE", key "window", beside_a_file true,
        help "HTTP/2: bytes that the server may send ahead on a stream [6M]",
        description "HTTP/2: bytes that the server may send ahead on a stream [6M].",
        set |o, given| o.window = given.number(), number |o| o.window;
    /// Requests in flight on one connection.
    pipeline: u32 = 1, OptionKind::Number(PIPELINE), flag "pipeline" "N", key "pipeline", beside_a_file false,
        help "Requests in flight on one connection", description "Requests in flight on one connection [1].",
        set |o, given| o.pipeline = given.number().unwrap_or(1), number |o| Some(o.pipeline);
    /// Each request begins a trace of its own, by the field `traceparent` of W3C Trace Context.
    traceparent: bool = false, OptionKind::Switch, flag "traceparent" "", key "traceparent", beside_a_file true,
        help "Each request begins a trace (W3C traceparent); the report lists the traces of the slowest",
        description "Each request begins a trace of its own (W3C traceparent).",
        set |o, given| o.traceparent = given.on(), number |_| None;
    /// Send bodies in chunks of this many bytes.
    chunked: Option<u32> = None, OptionKind::Number(CHUNK), flag "chunked" "SIZE", key "chunked", beside_a_file true,
        help "Send bodies in chunks of this size", description "Send bodies in chunks of this size.",
        set |o, given| o.chunked = given.number(), number |o| o.chunked;
    /// Send bodies only after `100 Continue`, or a second without it.
    expect_continue: bool = false, OptionKind::Switch, flag "expect-continue" "", key "expect_continue", beside_a_file true,
        help "Send bodies only after '100 Continue', or after one second without it",
        description "Send bodies only after `100 Continue`.",
        set |o, given| o.expect_continue = given.on(), number |_| None;
}

impl HttpOptions {
    /// The version that is spoken. Where one is agreed on and has not been yet, that is HTTP/1.1.
    #[must_use]
    pub fn spoken(&self) -> Version {
        match self.version {
            Version::Auto => self.agreed.unwrap_or(Version::Http11),
            version => version,
        }
    }

    /// HTTP/2: most requests in flight on a connection.
    #[must_use]
    pub fn most_streams(&self) -> u32 {
        self.streams.unwrap_or(STREAMS_OF_A_CONNECTION)
    }

    #[must_use]
    pub fn is_http10(&self) -> bool {
        self.version == Version::Http10
    }

    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.spoken() == Version::Http2
    }
}

/// The options that the user gave, on the command line or in `[http]` of a file.
#[derive(Debug, Clone, Default)]
pub struct HttpOptionValues(Vec<(&'static HttpOption, OptionValue)>);

impl HttpOptionValues {
    pub fn add(&mut self, option: &'static HttpOption, given: OptionValue) {
        self.0.push((option, given));
    }

    /// Returns the value of an option by its key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&OptionValue> {
        self.0.iter().find(|(option, _)| option.key == key).map(|(_, given)| given)
    }

    /// Returns the given options, in no particular order.
    pub fn options(&self) -> impl Iterator<Item = &'static HttpOption> {
        self.0.iter().map(|(option, _)| *option)
    }

    /// Sets the options that `which` selects, in the order of the table.
    pub fn set(&self, http: &mut HttpOptions, which: impl Fn(&HttpOption) -> bool) {
        for option in HTTP_OPTIONS.iter().filter(|o| which(o)) {
            if let Some(given) = self.get(option.key) {
                (option.set)(http, given);
            }
        }
    }
}

impl<'de> Deserialize<'de> for HttpOptionValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HttpOptionValues, D::Error> {
        struct Table;

        impl<'de> Visitor<'de> for Table {
            type Value = HttpOptionValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HttpOptionValues, A::Error> {
                let mut all = HttpOptionValues::default();
                while let Some(key) = map.next_key::<String>()? {
                    let option = HTTP_OPTIONS.iter().find(|o| o.key == key);
                    let option = option.ok_or_else(|| A::Error::unknown_field(&key, KEYS))?;
                    all.add(option, map.next_value_seed(option.takes)?);
                }
                Ok(all)
            }
        }

        deserializer.deserialize_map(Table)
    }
}

impl<'de> DeserializeSeed<'de> for OptionKind {
    type Value = OptionValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<OptionValue, D::Error> {
        match self {
            OptionKind::Switch => bool::deserialize(deserializer).map(OptionValue::Switch),
            OptionKind::Number(bound) => read_within(bound, deserializer).map(OptionValue::Number),
            OptionKind::Word(words) => {
                let word = String::deserialize(deserializer)?;
                if words.contains(&word.as_str()) {
                    return Ok(OptionValue::Word(word));
                }
                Err(D::Error::custom(format!("'{word}' is not known here; write \"{}\"", words.join("\" or \""))))
            }
        }
    }
}

impl JsonSchema for HttpOptionValues {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HttpFile".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let property = |o: &HttpOption| {
            let mut schema = match o.takes {
                OptionKind::Number(bound) => bound.schema(),
                OptionKind::Switch => json_schema!({"type": "boolean"}),
                OptionKind::Word(_) => json_schema!({"type": "string"}),
            };
            // Every key is optional.
            let present = schema.get("type").cloned().unwrap_or_default();
            schema.insert("type".into(), serde_json::json!([present, "null"]));
            schema.insert("description".into(), o.description.into());
            (o.key.to_string(), schema.to_value())
        };
        let properties: serde_json::Map<String, serde_json::Value> = HTTP_OPTIONS.iter().map(property).collect();
        json_schema!({
            "description": "`[http]`",
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_names_of_its_own_and_acts() {
        for (i, o) in HTTP_OPTIONS.iter().enumerate() {
            assert!(!HTTP_OPTIONS[..i].iter().any(|p| p.flag == o.flag || p.key == o.key), "{o:?}");
            let given = match o.takes {
                OptionKind::Switch => OptionValue::Switch(true),
                OptionKind::Number(bound) => OptionValue::Number(bound.most as u32),
                OptionKind::Word(words) => OptionValue::Word(words[0].into()),
            };
            let mut http = HttpOptions::default();
            (o.set)(&mut http, &given);
            assert_ne!(http, HttpOptions::default(), "{o:?}");
            if let OptionKind::Number(bound) = o.takes {
                assert_eq!((o.number)(&http).map(f64::from), Some(bound.most), "{o:?}");
            }
        }
    }

    #[test]
    fn a_table_is_read_by_its_rows() {
        let read = |text: &str| toml::from_str::<HttpOptionValues>(text).map_err(|e| e.message().to_string());
        let mut http = HttpOptions::default();
        let given = read("decode = true\ncompressed = false\nchunked = '8k'\nversion = '1.0'").expect("valid");
        given.set(&mut http, |_| true);
        let want = HttpOptions {
            decode: true,
            compressed: true,
            chunked: Some(8192),
            version: Version::Http10,
            ..HttpOptions::default()
        };
        assert_eq!(http, want);
        assert!(read("pipelin = 3").expect_err("unknown").contains("unknown field `pipelin`, expected one of"));
        assert!(read("pipeline = 0").expect_err("too few").contains("pipeline must be a whole number from 1 to 1000"));
        assert!(read("version = '3'").expect_err("unknown").contains("write \"1.0\" or \"1.1\" or \"2\""));
        let stored = |text: &str| crate::read_json::<HttpOptions>(text).expect("valid").version;
        assert_eq!(stored("{\"http10\":true}"), Version::Http10);
        assert_eq!((stored("{\"http10\":false}"), stored("{\"version\":\"2\"}")), (Version::Http11, Version::Http2));
    }
}
