//! Dates and times as the original programs print them.

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The local time, in its fields, of a second since 1970.
pub fn local_time(unix_s: u64) -> libc::tm {
    let seconds = unix_s as libc::time_t;
    // SAFETY: a structure of numbers and a pointer, for which zeros are valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid during the call, which writes into the second.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    tm
}

fn name_of(names: &[&'static str], at: i32) -> &'static str {
    names.get(at as usize).copied().unwrap_or("???")
}

/// `Sun`
pub fn day(unix_s: u64) -> &'static str {
    name_of(&DAYS, local_time(unix_s).tm_wday)
}

/// `Sun Nov 22 09:13:41 2026`, as ctime(3).
pub fn c_time(unix_s: u64) -> String {
    let t = local_time(unix_s);
    format!(
        "{} {} {:02} {:02}:{:02}:{:02} {}",
        name_of(&DAYS, t.tm_wday),
        name_of(&MONTHS, t.tm_mon),
        t.tm_mday,
        t.tm_hour,
        t.tm_min,
        t.tm_sec,
        t.tm_year + 1900
    )
}
