//! Encodes and decodes one second.

use super::RecordError;
use super::bytes::{MOST, MOST_US, Reader, write_number};
use crate::counts::Counts;
use crate::histogram::{Histogram, Kind};
use crate::slice::{ClassAnswer, ClassPart, Slice};

/// Most classes that a record may have; a plan has fewer.
const MOST_CLASSES: usize = 4096;

/// Number of fields of `Counts`.
const COUNTS: usize = 31;

/// Returns all numbers of `Counts` in the order of the format. A new number goes to the end, with a new version.
fn numbers(c: &mut Counts) -> [&mut u64; COUNTS] {
    [
        &mut c.due,
        &mut c.sent,
        &mut c.answered,
        &mut c.failed.connect,
        &mut c.failed.reset,
        &mut c.failed.closed,
        &mut c.failed.protocol,
        &mut c.timed_out,
        &mut c.answered_in_time,
        &mut c.opened,
        &mut c.lost_on_reuse,
        &mut c.bytes_sent,
        &mut c.bytes_received,
        &mut c.missed,
        &mut c.handshakes_full,
        &mut c.handshakes_resumed,
        &mut c.redirected,
        &mut c.challenged,
        &mut c.elsewhere,
        &mut c.unusable,
        &mut c.left_out,
        &mut c.bytes_coded,
        &mut c.bytes_decoded,
        &mut c.pages,
        &mut c.pages_failed,
        &mut c.compared,
        &mut c.mismatched,
        &mut c.odd_sizes,
        &mut c.failed.refused,
        &mut c.goaway,
        &mut c.sent_again,
    ]
}

/// Writes a bit set of the numbers that are not 0, then these numbers.
fn write_counts(counts: &Counts, out: &mut Vec<u8>) {
    let mut counts = *counts;
    let numbers = numbers(&mut counts);
    let there = numbers.iter().enumerate().filter(|(_, n)| ***n > 0).fold(0, |bits, (i, _)| bits | 1u64 << i);
    write_number(there, out);
    numbers.into_iter().filter(|n| **n > 0).for_each(|n| write_number(*n, out));
}

fn read_counts(reader: &mut Reader<'_>) -> Result<Counts, RecordError> {
    let mut counts = Counts::default();
    let mut there = reader.number_below((1 << COUNTS) - 1, "counts")?;
    for number in numbers(&mut counts) {
        if there & 1 == 1 {
            *number = reader.number_below(MOST, "count")?;
        }
        there >>= 1;
    }
    Ok(counts)
}

pub fn write(slice: &Slice, out: &mut Vec<u8>) {
    write_number(slice.phase.into(), out);
    write_number(slice.second.into(), out);
    write_counts(&slice.counts, out);
    let status: Vec<(usize, u64)> = slice.status.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
    write_number(status.len() as u64, out);
    for (code, n) in status {
        write_number(code as u64, out);
        write_number(n, out);
    }
    let latencies: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| slice.latencies[*kind as usize].count() > 0).collect();
    write_number(latencies.len() as u64, out);
    for kind in latencies {
        write_number(kind as u64, out);
        write_histogram(&slice.latencies[kind as usize], out);
    }
    let classes = &slice.by_class;
    write_number(classes.counts.len() as u64, out);
    classes.counts.iter().for_each(|counts| write_counts(counts, out));
    write_number(classes.answers.len() as u64, out);
    for a in &classes.answers {
        write_number(a.class.into(), out);
        write_number(a.status.into(), out);
        [a.response_us, a.service_us, a.first_byte_us].into_iter().for_each(|us| write_number(us.into(), out));
    }
    write_number(classes.parts.len() as u64, out);
    for p in &classes.parts {
        write_number(p.class.into(), out);
        write_number(p.kind.into(), out);
        write_number(p.us.into(), out);
    }
}

/// Writes each bucket that is not empty: the distance of its highest value from the previous bucket's, and its count.
fn write_histogram(histogram: &Histogram, out: &mut Vec<u8>) {
    write_number(histogram.recorded().count() as u64, out);
    let mut before = 0;
    for (us, n) in histogram.recorded() {
        write_number(us - before, out);
        write_number(n, out);
        before = us;
    }
}

fn read_histogram(reader: &mut Reader<'_>) -> Result<Histogram, RecordError> {
    let mut histogram = Histogram::new();
    let (mut us, mut left) = (0u64, MOST);
    for _ in 0..reader.length(2, "buckets")? {
        us += reader.number_below(MOST_US, "latency")?;
        if us > MOST_US {
            return Err(RecordError::Wrong("a latency is longer than a year".into()));
        }
        // `left` limits the sum over all buckets, because several of them may merge into one.
        let samples = reader.number_below(left, "samples")?;
        left -= samples;
        histogram.record_many(us, samples);
    }
    Ok(histogram)
}

pub fn read(reader: &mut Reader<'_>) -> Result<Slice, RecordError> {
    let phase = reader.number_below(u64::from(u16::MAX), "phase")? as u16;
    // A second is below u32::MAX, because code adds 1 to it.
    let second = reader.number_below(u64::from(u32::MAX) - 1, "second")? as u32;
    let mut slice = Slice::new(phase, second);
    slice.counts = read_counts(reader)?;
    for _ in 0..reader.length(2, "statuses")? {
        let code = reader.number_below(slice.status.len() as u64 - 1, "status")? as usize;
        slice.status[code] = reader.number_below(MOST, "answers")?;
    }
    for _ in 0..reader.length(3, "latencies")? {
        let kind = reader.number_below(Kind::COUNT as u64 - 1, "kind of latency")? as usize;
        slice.latencies[kind] = read_histogram(reader)?;
    }
    let classes = reader.length(1, "classes")?;
    if classes > MOST_CLASSES {
        return Err(RecordError::Wrong(format!("{classes} classes are more than {MOST_CLASSES}")));
    }
    for _ in 0..classes {
        slice.by_class.counts.push(read_counts(reader)?);
    }
    let class = |reader: &mut Reader<'_>| match classes {
        0 => Err(RecordError::Wrong("an answer is of a class, and there are none".into())),
        n => Ok(reader.number_below(n as u64 - 1, "class")? as u16),
    };
    let us = |reader: &mut Reader<'_>| Ok(reader.number_below(u64::from(u32::MAX), "time")? as u32);
    for _ in 0..reader.length(5, "answers")? {
        let answer = ClassAnswer {
            class: class(reader)?,
            status: reader.number_below(999, "status")? as u16,
            response_us: us(reader)?,
            service_us: us(reader)?,
            first_byte_us: us(reader)?,
        };
        slice.by_class.answers.push(answer);
    }
    for _ in 0..reader.length(3, "parts of answers")? {
        let class = class(reader)?;
        let kind = reader.number_below(Kind::COUNT as u64 - 1, "kind of latency")? as u8;
        slice.by_class.parts.push(ClassPart { class, kind, us: us(reader)? });
    }
    Ok(slice)
}
