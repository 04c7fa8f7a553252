use super::*;
use crate::Kind;
use crate::counts::Counts;
use crate::slice::{ClassAnswer, ClassPart};

/// A pseudo-random generator with a fixed sequence (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn slice(dice: &mut Rng) -> Slice {
    let mut slice = Slice::new(dice.below(5) as u16, dice.below(100_000) as u32);
    slice.counts = Counts { due: 1000, sent: dice.below(1000), answered: dice.below(900), ..Counts::default() };
    slice.counts.failed.closed = dice.below(3);
    slice.counts.bytes_received = dice.below(1 << 40);
    slice.counts.pages_failed = dice.below(2);
    slice.status[200] = dice.below(500);
    slice.status[999] = dice.below(2);
    for kind in Kind::ALL.into_iter().take(dice.below(14) as usize) {
        for _ in 0..dice.below(300) {
            let bits = dice.below(36);
            let us = dice.below(1 << bits);
            slice.record(kind, us);
        }
    }
    if dice.below(2) == 1 {
        slice.by_class.counts = vec![Counts { answered: 7, ..Counts::default() }, Counts::default()];
        let answer = |i: u64| ClassAnswer::new((i % 2) as u16, 200, i * 1000, i * 900, i * 500);
        slice.by_class.answers = (0..dice.below(50)).map(answer).collect();
        slice.by_class.parts = vec![ClassPart { class: 1, kind: Kind::Server as u8, us: 77 }];
    }
    slice
}

fn same(a: &Slice, b: &Slice) {
    assert_eq!(
        (a.phase, a.second, a.counts, &a.status, &a.by_class),
        (b.phase, b.second, b.counts, &b.status, &b.by_class)
    );
    for (a, b) in a.latencies.iter().zip(&b.latencies) {
        assert_eq!(a.recorded().collect::<Vec<_>>(), b.recorded().collect::<Vec<_>>());
        assert_eq!((a.count(), a.min(), a.max()), (b.count(), b.min(), b.max()));
        assert!((a.mean() - b.mean()).abs() < 1e-9);
    }
}

fn ended() -> Record {
    let end = AgentEnd {
        end: End::Finished,
        generator: Generator { cpu_s: 1.5, threads: 2, steal: Some(0.25), ..Generator::default() },
        reasons: Vec::new(),
        failed: None,
        played_up_to: Some(9),
    };
    Record::Ended(Box::new(end))
}

#[test]
fn a_second_is_read_as_it_was_written() {
    let mut dice = Rng(1);
    for _ in 0..300 {
        let slice = slice(&mut dice);
        let bytes = Record::Second(Box::new(slice.clone())).encode();
        match Record::decode(&bytes) {
            Ok(Record::Second(back)) => same(&slice, &back),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_count_is_written() {
    let names = serde_json::to_value(Counts::default()).expect("JSON");
    // `failed` is five.
    assert_eq!(names.as_object().expect("an object").len() + 4, 31);
}

#[test]
fn ends_are_read_as_they_were_written() {
    let over = Record::PhaseEnd { phase: 3, duration_us: 10_000_000, peak: 256 }.encode();
    match Record::decode(&over) {
        Ok(Record::PhaseEnd { phase: 3, duration_us: 10_000_000, peak: 256 }) => {}
        other => panic!("{other:?}"),
    }
    match (Record::decode(&ended().encode()), ended()) {
        (Ok(Record::Ended(back)), Record::Ended(end)) => assert_eq!(back, end),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_idle_second_is_a_few_bytes_and_a_busy_one_some_thousand() {
    let idle = Record::Second(Box::new(Slice::new(0, 9))).encode();
    assert!(idle.len() < 16, "{}", idle.len());
    let (mut dice, mut busy) = (Rng(3), Slice::new(0, 9));
    for _ in 0..100_000 {
        for kind in [Kind::Response, Kind::Service, Kind::FirstByte, Kind::Lateness, Kind::Blocked] {
            let us = 200 + dice.below(800) * dice.below(10);
            busy.record(kind, us);
        }
    }
    let bytes = Record::Second(Box::new(busy)).encode().len();
    assert!(bytes < 40_000, "{bytes}");
}

#[test]
fn torn_and_foreign_bytes_are_errors() {
    let mut dice = Rng(5);
    for record in
        [Record::Second(Box::new(slice(&mut dice))), ended(), Record::PhaseEnd { phase: 0, duration_us: 1, peak: 1 }]
    {
        let bytes = record.encode();
        // Every end of the first and last fields, and some of the many alike between them.
        let last = bytes.len().saturating_sub(300);
        for end in (0..bytes.len()).filter(|end| *end < 300 || *end > last || end % 17 == 0) {
            assert!(Record::decode(&bytes[..end]).is_err(), "{end} of {}", bytes.len());
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(Record::decode(&longer).is_err());
        let mut newer = bytes.clone();
        newer[2] = VERSION + 1;
        assert_eq!(Record::decode(&newer).expect_err("another version"), RecordError::Version(VERSION + 1));
    }
    assert_eq!(Record::decode(b"{\"a\":1}").expect_err("JSON"), RecordError::NoRecord);
}

#[test]
fn hostile_bytes_never_make_more_than_they_are() {
    let mut dice = Rng(7);
    let good = Record::Second(Box::new(slice(&mut dice))).encode();
    for _ in 0..5_000 {
        let mut bytes = good.clone();
        for _ in 0..=dice.below(4) {
            let at = 3 + dice.below(bytes.len() as u64 - 3) as usize;
            bytes[at] = dice.next() as u8;
        }
        if let Ok(record) = Record::decode(&bytes) {
            // Bytes that still decode must encode again.
            assert!(Record::decode(&record.encode()).is_ok());
        }
    }
    // Each claims that very many items follow: statuses, kinds, buckets, classes, answers.
    let many = [0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    for before in [&[0, 0, 0][..], &[0, 0, 0, 0], &[0, 0, 0, 0, 1, 0], &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0]] {
        let bytes = [&[b'l', b'd', VERSION, 1][..], before, &many].concat();
        assert!(matches!(Record::decode(&bytes), Err(RecordError::Wrong(_))), "{before:?}");
    }
    // Two buckets that merge into one and exceed the limit of counts.
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x03];
    let twice = [&[1][..], &most, &[0], &most].concat();
    let bytes = [&[b'l', b'd', VERSION, 1][..], &[0, 0, 0, 0, 1, 0, 2], &twice, &[0, 0, 0]].concat();
    assert!(matches!(Record::decode(&bytes), Err(RecordError::Wrong(_))));
    // Small steps that add up to more than a year.
    let far: Vec<u8> = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x07, 1].repeat(3);
    let bytes = [&[b'l', b'd', VERSION, 1][..], &[0, 0, 0, 0, 1, 0, 3], &far, &[0, 0, 0]].concat();
    assert!(matches!(Record::decode(&bytes), Err(RecordError::Wrong(_))));
}
