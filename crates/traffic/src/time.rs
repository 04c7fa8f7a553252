//! Parses times in the forms of logs, from the beginning of a text. A time without a zone is taken as UTC.

/// The form of a format's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeForm {
    /// `10/Oct/2000:13:55:36 -0700`, perhaps with a fraction (HAProxy) or without a zone.
    Common,
    /// `2000-10-10T13:55:36.123+00:00`, the `T` perhaps a blank, the zone perhaps `Z` or missing.
    Iso,
    /// A number since 1970, perhaps with a fraction, in units of this many µs.
    Epoch(u32),
    /// Only the fraction of a second, in units of this many µs; it is added to another field.
    Fraction(u32),
    /// `29:23:53:25`: day and time in August 1995, as in the traces of the EPA.
    Epa,
    /// A strftime format.
    Strftime(Vec<TimeItem>),
}

/// A piece of a strftime format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeItem {
    Literal(Vec<u8>),
    Year,
    /// Two digits.
    ShortYear,
    Month,
    MonthName,
    DayOfMonth,
    DayName,
    Hour,
    Hour12,
    Half,
    Minute,
    Second,
    Zone,
    ZoneName,
    Epoch,
}

/// A parsed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    /// µs since 1970, UTC.
    pub us: i64,
    /// Its resolution.
    pub resolution_us: u32,
    /// Length of its text in bytes.
    pub length: usize,
}

const SECOND_US: i64 = 1_000_000;
/// A number beyond the year 9999 is not a time.
const LATEST_US: i64 = 253_402_300_800 * SECOND_US;

impl TimeForm {
    /// Parses a strftime format.
    ///
    /// # Errors
    /// The letter that is not supported.
    pub fn strftime(format: &str) -> Result<TimeForm, String> {
        let mut items = Vec::new();
        expand(format, &mut items)?;
        if items.is_empty() {
            return Err("an empty format of time".into());
        }
        Ok(TimeForm::Strftime(items))
    }

    /// Reads the time at the beginning of the text; for a [`TimeForm::Fraction`] that fraction of a second.
    #[must_use]
    pub fn read(&self, text: &[u8]) -> Option<Timestamp> {
        let stamp = match self {
            TimeForm::Common => common(text),
            TimeForm::Iso => iso(text),
            TimeForm::Epoch(unit_us) => epoch(text, *unit_us),
            TimeForm::Fraction(unit_us) => {
                let (n, length) = digits(text, 6)?;
                let us = n * i64::from(*unit_us);
                (us < SECOND_US).then_some(Timestamp { us, resolution_us: *unit_us, length })
            }
            TimeForm::Epa => epa(text),
            TimeForm::Strftime(items) => by_items(text, items),
        };
        stamp.filter(|stamp| stamp.us.unsigned_abs() < LATEST_US as u64)
    }
}

impl TimeForm {
    /// What all forms of one format together lack for a complete time. A form other than strftime is complete.
    pub(crate) fn missing<'a>(forms: impl Iterator<Item = &'a TimeForm>) -> Option<&'static str> {
        let mut all: Vec<&TimeItem> = Vec::new();
        for form in forms {
            match form {
                TimeForm::Strftime(items) => all.extend(items),
                TimeForm::Fraction(_) => {}
                _ => return None,
            }
        }
        if all.contains(&&TimeItem::Epoch) {
            return None;
        }
        let needed: [(&str, &[TimeItem]); 5] = [
            ("year (%Y)", &[TimeItem::Year, TimeItem::ShortYear]),
            ("month (%b or %m)", &[TimeItem::Month, TimeItem::MonthName]),
            ("day (%d)", &[TimeItem::DayOfMonth]),
            ("hour (%H)", &[TimeItem::Hour, TimeItem::Hour12]),
            ("minute (%M)", &[TimeItem::Minute]),
        ];
        needed.iter().find(|(_, any)| !any.iter().any(|item| all.contains(&item))).map(|(name, _)| *name)
    }

    /// Describes, for people, what such a time looks like.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            TimeForm::Common => "a time such as 10/Oct/2000:13:55:36 -0700",
            TimeForm::Iso => "a time such as 2000-10-10T13:55:36-07:00",
            TimeForm::Epoch(1_000_000) => "seconds since 1970",
            TimeForm::Epoch(1_000) => "milliseconds since 1970",
            TimeForm::Epoch(_) => "microseconds since 1970",
            TimeForm::Fraction(_) => "a part of a second",
            TimeForm::Epa => "a time such as 29:23:53:25",
            TimeForm::Strftime(_) => "a time of that form",
        }
    }
}

fn expand(format: &str, items: &mut Vec<TimeItem>) -> Result<(), String> {
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            match items.last_mut() {
                Some(TimeItem::Literal(text)) => text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                _ => items.push(TimeItem::Literal(c.to_string().into_bytes())),
            }
            continue;
        }
        let letter = letters.next().filter(|c| !matches!(c, 'E' | 'O' | '-')).or_else(|| letters.next());
        let item = match letter {
            Some('Y') => TimeItem::Year,
            Some('y') => TimeItem::ShortYear,
            Some('m') => TimeItem::Month,
            Some('b' | 'B' | 'h') => TimeItem::MonthName,
            Some('d' | 'e') => TimeItem::DayOfMonth,
            Some('a' | 'A') => TimeItem::DayName,
            Some('H' | 'k') => TimeItem::Hour,
            Some('I' | 'l') => TimeItem::Hour12,
            Some('p' | 'P') => TimeItem::Half,
            Some('M') => TimeItem::Minute,
            Some('S') => TimeItem::Second,
            Some('z') => TimeItem::Zone,
            Some('Z') => TimeItem::ZoneName,
            Some('s') => TimeItem::Epoch,
            Some('%') => TimeItem::Literal(b"%".to_vec()),
            Some('n' | 't') => TimeItem::Literal(b" ".to_vec()),
            Some('T') => return_into("%H:%M:%S", items)?,
            Some('R') => return_into("%H:%M", items)?,
            Some('F') => return_into("%Y-%m-%d", items)?,
            Some('D') => return_into("%m/%d/%y", items)?,
            Some('c') => return_into("%a %b %e %H:%M:%S %Y", items)?,
            other => {
                let letter = other.map(String::from).unwrap_or_default();
                return Err(format!("%{letter} in a format of time is not understood"));
            }
        };
        items.push(item);
    }
    Ok(())
}

/// Appends all items but the last of a letter's expansion; returns the last.
fn return_into(format: &str, items: &mut Vec<TimeItem>) -> Result<TimeItem, String> {
    expand(format, items)?;
    Ok(items.pop().unwrap_or(TimeItem::Literal(Vec::new())))
}

/// Reads up to `most` digits.
fn digits(text: &[u8], most: usize) -> Option<(i64, usize)> {
    let length = text.iter().take(most).position(|b| !b.is_ascii_digit()).unwrap_or(text.len().min(most));
    (length > 0).then(|| (text[..length].iter().fold(0, |n, b| n * 10 + i64::from(b - b'0')), length))
}

/// Reads exactly `length` digits at a position.
fn fixed(text: &[u8], at: usize, length: usize) -> Option<i64> {
    let part = text.get(at..at + length)?;
    part.iter().try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
}

fn is_at(text: &[u8], at: usize, b: u8) -> Option<()> {
    (text.get(at) == Some(&b)).then_some(())
}

fn month(name: &[u8]) -> Option<i64> {
    const NAMES: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    let name = name.get(..3)?;
    NAMES.iter().position(|n| n.eq_ignore_ascii_case(name)).map(|i| i as i64 + 1)
}

/// Date and time, each within its bounds, as µs since 1970.
fn moment(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> Option<i64> {
    let valid = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        // A leap second.
        && (0..=60).contains(&second);
    // Days from the civil calendar: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let of_era = y - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    valid.then_some(((days * 24 + hour) * 60 + minute) * 60 + second).map(|s| s * SECOND_US)
}

/// Reads `.123`; returns µs, their resolution, and the length.
fn fraction(text: &[u8]) -> (i64, u32, usize) {
    let none = (0, SECOND_US as u32, 0);
    if !matches!(text.first(), Some(b'.' | b',')) {
        return none;
    }
    let all = text[1..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len() - 1);
    let Some((n, length)) = digits(&text[1..], 6) else { return none };
    let unit = 10u32.pow(6 - length as u32);
    (n * i64::from(unit), unit, all + 1)
}

/// Reads `+0200`, `-07:00` or `Z`; returns seconds east of Greenwich, and the length.
fn zone(text: &[u8]) -> Option<(i64, usize)> {
    let sign = match text.first()? {
        b'Z' | b'z' => return Some((0, 1)),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let hours = fixed(text, 1, 2)?;
    let colon = usize::from(text.get(3) == Some(&b':'));
    let minutes = fixed(text, 3 + colon, 2)?;
    (hours < 24 && minutes < 60).then_some((sign * (hours * 3600 + minutes * 60), 5 + colon))
}

fn common(text: &[u8]) -> Option<Timestamp> {
    let two = (fixed(text, 0, 2), 2);
    // NCSA's httpd wrote the day without its zero.
    let (day, at) = if let (Some(day), length) = two { (day, length) } else { (fixed(text, 0, 1)?, 1) };
    let text = &text[at..];
    for (place, b) in [(0, b'/'), (4, b'/'), (9, b':'), (12, b':'), (15, b':')] {
        is_at(text, place, b)?;
    }
    let month = month(&text[1..])?;
    let [hour, minute, second] = [fixed(text, 10, 2)?, fixed(text, 13, 2)?, fixed(text, 16, 2)?];
    let us = moment(fixed(text, 5, 4)?, month, day, hour, minute, second)?;
    let (part, resolution_us, length) = fraction(&text[18..]);
    let end = 18 + length;
    let (east, length) = match text.get(end) {
        Some(b' ') => zone(&text[end + 1..]).map_or((0, 0), |(east, length)| (east, length + 1)),
        _ => (0, 0),
    };
    Some(Timestamp { us: us + part - east * SECOND_US, resolution_us, length: at + end + length })
}

fn iso(text: &[u8]) -> Option<Timestamp> {
    for (place, b) in [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')] {
        is_at(text, place, b)?;
    }
    matches!(text[10], b'T' | b't' | b' ').then_some(())?;
    let [year, month, day] = [fixed(text, 0, 4)?, fixed(text, 5, 2)?, fixed(text, 8, 2)?];
    let [hour, minute, second] = [fixed(text, 11, 2)?, fixed(text, 14, 2)?, fixed(text, 17, 2)?];
    let us = moment(year, month, day, hour, minute, second)?;
    let (part, resolution_us, length) = fraction(&text[19..]);
    let end = 19 + length;
    let (east, length) = zone(&text[end..]).unwrap_or((0, 0));
    Some(Timestamp { us: us + part - east * SECOND_US, resolution_us, length: end + length })
}

fn epoch(text: &[u8], unit_us: u32) -> Option<Timestamp> {
    let (n, length) = digits(text, 17)?;
    let whole = n.checked_mul(i64::from(unit_us))?;
    if unit_us != SECOND_US as u32 {
        let rest = fraction(&text[length..]).2;
        return Some(Timestamp { us: whole, resolution_us: unit_us, length: length + rest });
    }
    let (part, resolution_us, rest) = fraction(&text[length..]);
    Some(Timestamp { us: whole.checked_add(part)?, resolution_us, length: length + rest })
}

fn epa(text: &[u8]) -> Option<Timestamp> {
    for (place, b) in [(2, b':'), (5, b':'), (8, b':')] {
        is_at(text, place, b)?;
    }
    let [day, hour, minute, second] = [fixed(text, 0, 2)?, fixed(text, 3, 2)?, fixed(text, 6, 2)?, fixed(text, 9, 2)?];
    let us = moment(1995, 8, day, hour, minute, second)?;
    Some(Timestamp { us, resolution_us: SECOND_US as u32, length: 11 })
}

fn by_items(text: &[u8], items: &[TimeItem]) -> Option<Timestamp> {
    let mut moment = PartialTime::default();
    let length = moment.read(text, items)?;
    moment.stamp(length)
}

/// A time that is read piece by piece; missing pieces default to the beginning of 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartialTime {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    east_s: i64,
    is_afternoon: Option<bool>,
    epoch_s: Option<i64>,
    part_us: i64,
    resolution_us: u32,
}

impl Default for PartialTime {
    fn default() -> PartialTime {
        PartialTime {
            year: 1970,
            month: 1,
            day: 1,
            hour: 0,
            minute: 0,
            second: 0,
            east_s: 0,
            is_afternoon: None,
            epoch_s: None,
            part_us: 0,
            resolution_us: SECOND_US as u32,
        }
    }
}

impl PartialTime {
    /// Reads the pieces at the beginning of a text; returns their length.
    pub(crate) fn read(&mut self, text: &[u8], items: &[TimeItem]) -> Option<usize> {
        let mut at = 0;
        for item in items {
            let rest = text.get(at..)?;
            // May be padded with blanks, as by %e.
            let number = |most| {
                let blanks = rest.iter().take_while(|b| **b == b' ').count();
                digits(&rest[blanks..], most).map(|(n, length)| (n, length + blanks))
            };
            let letters = rest.iter().position(|b| !b.is_ascii_alphabetic()).unwrap_or(rest.len());
            let (value, length) = match item {
                TimeItem::Literal(literal) => (0, rest.starts_with(literal).then_some(literal.len())?),
                TimeItem::Year => number(4)?,
                TimeItem::Epoch => number(17)?,
                TimeItem::MonthName => (month(rest)?, letters),
                TimeItem::DayName | TimeItem::ZoneName => (0, Some(letters).filter(|n| *n > 0)?),
                TimeItem::Half => (i64::from(rest.first()?.eq_ignore_ascii_case(&b'p')), 2),
                TimeItem::Zone => zone(rest)?,
                _ => number(2)?,
            };
            match item {
                TimeItem::Year => self.year = value,
                TimeItem::ShortYear => self.year = if value < 69 { 2000 + value } else { 1900 + value },
                TimeItem::Month | TimeItem::MonthName => self.month = value,
                TimeItem::DayOfMonth => self.day = value,
                TimeItem::Hour | TimeItem::Hour12 => self.hour = value,
                TimeItem::Half => self.is_afternoon = Some(value == 1),
                TimeItem::Minute => self.minute = value,
                TimeItem::Second => self.second = value,
                TimeItem::Zone => self.east_s = value,
                TimeItem::Epoch => self.epoch_s = Some(value),
                TimeItem::Literal(_) | TimeItem::DayName | TimeItem::ZoneName => {}
            }
            at += length;
        }
        if matches!(items.last(), Some(TimeItem::Second | TimeItem::Epoch)) {
            let (part_us, resolution_us, length) = fraction(text.get(at..)?);
            (self.part_us, self.resolution_us) = (part_us, resolution_us);
            at += length;
        }
        Some(at)
    }

    /// The time as a stamp of this length.
    pub(crate) fn stamp(&self, length: usize) -> Option<Timestamp> {
        let hour = match self.is_afternoon {
            Some(is_afternoon) => self.hour % 12 + if is_afternoon { 12 } else { 0 },
            None => self.hour,
        };
        let us = match self.epoch_s {
            Some(s) => s.checked_mul(SECOND_US)?,
            None => moment(self.year, self.month, self.day, hour, self.minute, self.second)? - self.east_s * SECOND_US,
        };
        Some(Timestamp { us: us.checked_add(self.part_us)?, resolution_us: self.resolution_us, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: &TimeForm, text: &str) -> Option<(i64, u32, usize)> {
        form.read(text.as_bytes()).map(|s| (s.us, s.resolution_us, s.length))
    }

    #[test]
    fn times_of_all_forms_are_the_same_moment() {
        let strftime = |format| TimeForm::strftime(format).expect("understood");
        // date -u -d @971211336
        let us = 971_211_336 * SECOND_US;
        for (form, text, part, resolution) in [
            (TimeForm::Common, "10/Oct/2000:13:55:36 -0700", 0, 1_000_000),
            (TimeForm::Common, "10/Oct/2000:20:55:36.250", 250_000, 1_000),
            (TimeForm::Iso, "2000-10-10T20:55:36+00:00", 0, 1_000_000),
            (TimeForm::Iso, "2000-10-10 22:55:36.123456789+0200", 123_456, 1),
            (TimeForm::Iso, "2000-10-10T20:55:36.5Z", 500_000, 100_000),
            (TimeForm::Epoch(1_000_000), "971211336.789", 789_000, 1_000),
            (TimeForm::Epoch(1_000), "971211336789", 789_000, 1_000),
            (TimeForm::Epoch(1), "971211336789012", 789_012, 1),
            (strftime("%d/%b/%Y:%T %z"), "10/Oct/2000:13:55:36 -0700", 0, 1_000_000),
            (strftime("%a %b %e %I:%M:%S %p %y"), "Tue Oct 10 08:55:36 PM 00", 0, 1_000_000),
            (strftime("%FT%T"), "2000-10-10T20:55:36.001", 1_000, 1_000),
            (strftime("%s"), "971211336", 0, 1_000_000),
        ] {
            assert_eq!(read(&form, text), Some((us + part, resolution, text.len())), "{text}");
        }
        assert_eq!(read(&TimeForm::Epa, "29:23:53:25]"), Some((809_740_405 * SECOND_US, 1_000_000, 11)));
        assert_eq!(read(&TimeForm::Fraction(1), "012345"), Some((12_345, 1, 6)));
        assert!(TimeForm::strftime("%Q").is_err());
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "-",
            "10/Oct/2000",
            "32/Oct/2000:13:55:36",
            "10/Okt/2000:13:55:36 +0000",
            "10/Oct/2000:25:55:36",
            "1\u{0}/Oct/2000:13:55:36",
            "2000-13-10T20:55:36Z",
            "999999999999999999999",
        ] {
            for form in [TimeForm::Common, TimeForm::Iso] {
                assert_eq!(read(&form, text), None, "{text}");
            }
        }
        for text in ["99999999999999999", "9000000000000", "253402300800"] {
            assert_eq!(read(&TimeForm::Epoch(1_000_000), text), None, "{text}");
        }
        assert!(read(&TimeForm::Epoch(1_000_000), "253402300799").is_some());
    }
}
