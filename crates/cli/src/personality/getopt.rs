//! Parses command lines as the C library and APR do, with their error messages.

/// The form of options, and what ends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// APR: short options up to the first other word.
    Apr,
    /// getopt_long: options may stand after other words.
    Long,
    /// getopt_long_only: long options may have one dash.
    LongOnly,
}

/// Whether an option has an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    None,
    Required,
    /// Only in the same word: `--name=value`, `-nvalue`.
    Optional,
}

/// An option. A short name of `\0` means that it has none.
#[derive(Debug, Clone, Copy)]
pub struct Opt {
    pub short: char,
    pub long: &'static str,
    pub takes: Argument,
}

pub const fn opt(short: char, long: &'static str, takes: Argument) -> Opt {
    Opt { short, long, takes }
}

/// A parsed command line: options by their index in the table, in order, and the other words.
#[derive(Debug, Default)]
pub struct ParsedOptions {
    pub options: Vec<(usize, Option<String>)>,
    pub words: Vec<String>,
    /// In the order of the command line. With APR the first error ends the options.
    pub errors: Vec<String>,
    /// For each error, the number of options before it.
    pub errors_at: Vec<usize>,
}

/// Parses a command line.
pub fn parse(program: &str, style: Style, table: &[Opt], args: &[String]) -> ParsedOptions {
    let mut parsed = ParsedOptions::default();
    let mut rest = args.iter().cloned();
    while let Some(word) = rest.next() {
        if word == "--" {
            parsed.words.extend(rest);
            break;
        }
        if !word.starts_with('-') || word == "-" {
            parsed.words.push(word);
            if style == Style::Apr {
                parsed.words.extend(rest);
                break;
            }
            continue;
        }
        let long = match style {
            Style::Apr => None,
            Style::Long => word.strip_prefix("--"),
            Style::LongOnly => {
                let name = word.trim_start_matches('-');
                let is_short = !word.starts_with("--")
                    && name.chars().count() == 1
                    && table.iter().any(|o| name.starts_with(o.short));
                (!is_short).then_some(name)
            }
        };
        let is_cluster = |text: &str| {
            style == Style::LongOnly
                && !word.starts_with("--")
                && table.iter().any(|o| text.starts_with(o.short))
                && !table.iter().any(|o| o.long.starts_with(text.split('=').next().unwrap_or_default()))
        };
        let found = match long.filter(|text| !is_cluster(text)) {
            Some(text) => long_option(program, table, text, &word, &mut rest),
            None => short_options(program, style, table, &word, &mut rest, &mut parsed.options),
        };
        match found {
            Ok(Some(option)) => parsed.options.push(option),
            Ok(None) => {}
            Err(e) => {
                parsed.errors.push(e);
                parsed.errors_at.push(parsed.options.len());
                if style == Style::Apr {
                    parsed.words.extend(rest);
                    break;
                }
            }
        }
    }
    parsed
}

type FoundOption = Result<Option<(usize, Option<String>)>, String>;

fn long_option(
    program: &str,
    table: &[Opt],
    text: &str,
    word: &str,
    rest: &mut impl Iterator<Item = String>,
) -> FoundOption {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_string())),
        None => (text, None),
    };
    let dashes = &word[..word.len() - text.len()];
    let exact = table.iter().position(|o| o.long == name && !name.is_empty());
    let mut begun = table.iter().enumerate().filter(|(_, o)| !name.is_empty() && o.long.starts_with(name));
    let at = match (exact, begun.next(), begun.next()) {
        (Some(at), _, _) | (None, Some((at, _)), None) => at,
        (None, Some(_), Some(_)) => {
            let all: Vec<String> =
                table.iter().filter(|o| o.long.starts_with(name)).map(|o| format!(" '{dashes}{}'", o.long)).collect();
            return Err(format!("{program}: option '{dashes}{name}' is ambiguous; possibilities:{}", all.concat()));
        }
        _ => return Err(format!("{program}: unrecognized option '{dashes}{name}'")),
    };
    let long = table[at].long;
    match (table[at].takes, value) {
        (Argument::None, Some(_)) => Err(format!("{program}: option '{dashes}{long}' doesn't allow an argument")),
        (Argument::Required, None) => match rest.next() {
            Some(value) => Ok(Some((at, Some(value)))),
            None => Err(format!("{program}: option '{dashes}{long}' requires an argument")),
        },
        (_, value) => Ok(Some((at, value))),
    }
}

/// A cluster of short options: `-kq`, `-n10`.
fn short_options(
    program: &str,
    style: Style,
    table: &[Opt],
    word: &str,
    rest: &mut impl Iterator<Item = String>,
    options: &mut Vec<(usize, Option<String>)>,
) -> FoundOption {
    let letters = &word[1..];
    for (i, letter) in letters.char_indices() {
        let Some(at) = table.iter().position(|o| o.short == letter) else {
            return Err(match style {
                Style::Apr => format!("{program}: illegal option -- {letter}"),
                _ => format!("{program}: invalid option -- '{letter}'"),
            });
        };
        let hanging = &letters[i + letter.len_utf8()..];
        match table[at].takes {
            Argument::None => options.push((at, None)),
            Argument::Optional => return Ok(Some((at, (!hanging.is_empty()).then(|| hanging.to_string())))),
            Argument::Required if !hanging.is_empty() => return Ok(Some((at, Some(hanging.to_string())))),
            Argument::Required => {
                return match rest.next() {
                    Some(value) => Ok(Some((at, Some(value)))),
                    None => Err(match style {
                        Style::Apr => format!("{program}: option requires an argument -- {letter}"),
                        _ => format!("{program}: option requires an argument -- '{letter}'"),
                    }),
                };
            }
        }
    }
    Ok(None)
}

/// A number as atoi(3) reads it: leading digits, or 0 without any.
pub fn atoi(text: &str) -> i64 {
    let text = text.trim_start();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    sign * digits[..end].parse::<i64>().unwrap_or(if end > 0 { i64::from(i32::MAX) } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Opt] = &[
        opt('n', "number", Argument::Required),
        opt('k', "keep", Argument::None),
        opt('l', "log", Argument::Optional),
        opt('\0', "num-calls", Argument::Required),
    ];

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn options_are_taken_apart_in_each_style() {
        let p = parse("ab", Style::Apr, TABLE, &words("-kn 5 -n6 url -k"));
        assert_eq!(p.options, [(1, None), (0, Some("5".into())), (0, Some("6".into()))]);
        assert_eq!(p.words, ["url", "-k"]);
        let p = parse("wrk", Style::Long, TABLE, &words("url --num=3 -lfile --log --k"));
        assert_eq!(p.errors, ["wrk: option '--num' is ambiguous; possibilities: '--number' '--num-calls'"]);
        assert_eq!(p.options, [(2, Some("file".into())), (2, None), (1, None)]);
        let p = parse("httperf", Style::LongOnly, TABLE, &words("-num-c 3 --foo -k -kk"));
        assert_eq!(p.options, [(3, Some("3".into())), (1, None), (1, None), (1, None)]);
        assert_eq!(p.errors, ["httperf: unrecognized option '--foo'"]);
    }

    #[test]
    fn what_is_wrong_is_said_as_the_originals_say_it() {
        let p = parse("ab", Style::Apr, TABLE, &words("-Q url"));
        assert_eq!(
            (p.errors.as_slice(), p.words.as_slice()),
            (&["ab: illegal option -- Q".to_string()][..], &words("url")[..])
        );
        let p = parse("wrk", Style::Long, TABLE, &words("-n"));
        assert_eq!(p.errors, ["wrk: option requires an argument -- 'n'"]);
        assert_eq!((atoi("12x"), atoi("x"), atoi("-3")), (12, 0, -3));
    }
}
