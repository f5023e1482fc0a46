//! What the watch calls broken, and what not: without them a run that is clean says nothing.

use netraid_block::{Buf, RequestFlags};

use super::*;
use crate::{
    dice::Seed,
    disk::{DiskShape, Fill},
};

const BLOCK_LEN: u32 = 512;
const SHAPE: DiskShape =
    DiskShape { block_len: BLOCK_LEN, blocks: 64, volatile_cache: true, fill: Fill::Zeroes };
const HOST: HostId = HostId(0);
const LINE: LineId = LineId(0);
const OTHER: LineId = LineId(1);
const TIME: Duration = Duration::from_secs(5);

struct Bench {
    watch: Watch,
    disk: Disk,
}

impl Bench {
    /// One disk, and lines of two engines to it.
    fn new() -> Self {
        let (mut watch, disk) = (Watch::default(), Disk::new(SHAPE));
        watch.add_medium(&disk);
        watch.add_line(EngineId(0), HOST, TIME);
        watch.add_line(EngineId(1), HOST, TIME);
        Self { watch, disk }
    }

    fn submit(&mut self, line: LineId, op: Op, byte: u8, fua: bool) -> u64 {
        let data = if op == Op::Write { bytes(byte) } else { SgList::new() };
        let len = if op == Op::Flush { 0 } else { BLOCK_LEN.into() };
        let flags = RequestFlags { fua, no_unmap: false };
        let request = Request { op, offset: 0, len, flags, data, user: () };
        self.watch.note_request(line, Time::START, &request)
    }

    fn write(&mut self, line: LineId, byte: u8) -> u64 {
        self.submit(line, Op::Write, byte, false)
    }

    fn end(&mut self, line: LineId, number: u64, is_well: bool) {
        self.watch.note_end(line, Time::START, number, is_well);
    }

    fn register(&mut self, line: LineId) {
        self.watch.note_order(line, OrderId(0), &Order::Register { key: 7, ignore: true });
        self.watch.note_answer(line, OrderId(0), true);
    }

    fn apply(&mut self, line: LineId, byte: u8) {
        let data = bytes(byte);
        let _ = self.watch.note_applied(&Applied {
            host: HOST,
            line,
            op: Op::Write,
            offset: 0,
            len: BLOCK_LEN.into(),
            data: &data,
            fua: false,
            is_torn: false,
            is_outsider: false,
        });
        self.disk.write(0, &data, false);
    }

    /// The power fails until that undoes what the cache has.
    fn lose_power(&mut self) {
        let mut dice = Seed(1).dice("power");
        let lost = loop {
            let mut disk = self.disk.clone();
            if disk.lose_power(&mut dice) > 0 {
                break disk;
            }
        };
        self.watch.note_power_fails(HOST, &self.disk);
        self.disk = lost;
        self.watch.note_power_failed(HOST, &self.disk);
    }

    fn is_broken(&mut self) -> bool {
        self.watch.violation().is_some()
    }
}

fn bytes(byte: u8) -> SgList {
    Buf::copy_from(&vec![byte; BLOCK_LEN as usize]).into()
}

#[test]
fn what_failed_is_not_applied_over_what_was_submitted_later() {
    let mut bench = Bench::new();
    let first = bench.write(LINE, 1);
    bench.end(LINE, first, false);
    // It may land as long as nobody has written over it.
    bench.apply(LINE, 1);
    bench.write(LINE, 2);
    bench.apply(LINE, 1);
    bench.apply(LINE, 2);
    assert!(!bench.is_broken());
    bench.apply(LINE, 1);
    assert!(bench.is_broken());
}

#[test]
fn what_has_ended_well_is_not_applied_again() {
    let mut bench = Bench::new();
    let first = bench.write(LINE, 1);
    bench.apply(LINE, 1);
    // A session was lost, and it was sent again.
    bench.apply(LINE, 1);
    bench.end(LINE, first, true);
    assert!(!bench.is_broken());
    bench.apply(LINE, 1);
    assert!(bench.is_broken());
}

#[test]
fn what_was_not_submitted_is_not_applied() {
    let mut bench = Bench::new();
    bench.write(OTHER, 1);
    bench.apply(LINE, 1);
    assert!(bench.is_broken());
}

#[test]
fn a_flush_that_ended_well_is_true() {
    for (flushes, is_told) in [(true, false), (false, true), (false, false)] {
        let mut bench = Bench::new();
        let write = bench.write(LINE, 1);
        bench.apply(LINE, 1);
        bench.end(LINE, write, true);
        let flush = bench.submit(LINE, Op::Flush, 0, false);
        if flushes {
            bench.watch.note_flush(HOST);
        }
        if is_told {
            bench.watch.note_losses(LINE, 1);
        }
        bench.end(LINE, flush, true);
        assert_eq!(bench.is_broken(), !flushes && !is_told, "{flushes} {is_told}");
    }
}

#[test]
fn a_forced_write_is_stable_when_it_ends_well() {
    let mut bench = Bench::new();
    let write = bench.submit(LINE, Op::Write, 1, true);
    bench.apply(LINE, 1);
    bench.end(LINE, write, true);
    assert!(bench.is_broken());
}

#[test]
fn a_loss_is_told_before_later_requests_end_well() {
    for is_told in [true, false] {
        let mut bench = Bench::new();
        let write = bench.write(LINE, 1);
        bench.apply(LINE, 1);
        bench.end(LINE, write, true);
        let before = bench.submit(LINE, Op::Read, 0, false);
        bench.lose_power();
        let after = bench.submit(LINE, Op::Read, 0, false);
        bench.end(LINE, before, true);
        assert!(!bench.is_broken());
        if is_told {
            bench.watch.note_losses(LINE, 1);
        }
        bench.end(LINE, after, true);
        assert_eq!(bench.is_broken(), !is_told);
    }
}

#[test]
fn nobody_writes_beside_who_is_exclusive() {
    let mut bench = Bench::new();
    for line in [LINE, OTHER] {
        bench.write(line, 1);
    }
    bench.watch.note_fenced(OTHER, true);
    bench.apply(OTHER, 1);
    assert!(!bench.is_broken());
    bench.apply(LINE, 1);
    assert!(bench.is_broken());
    bench.watch.note_order(OTHER, OrderId(0), &Order::Register { key: 0, ignore: true });
    bench.apply(LINE, 1);
    assert!(!bench.is_broken());
}

#[test]
fn a_line_that_gave_its_registration_back_writes_nothing() {
    let mut bench = Bench::new();
    bench.write(LINE, 1);
    bench.watch.note_order(LINE, OrderId(0), &Order::Register { key: 0, ignore: true });
    bench.apply(LINE, 1);
    bench.watch.note_command(LINE);
    assert!(!bench.is_broken());
    bench.watch.note_answer(LINE, OrderId(0), true);
    bench.watch.note_command(LINE);
    assert!(bench.is_broken());
    bench.apply(LINE, 1);
    assert!(bench.is_broken());
}

#[test]
fn a_session_made_after_its_registration_was_removed_is_an_outsider() {
    let mut bench = Bench::new();
    bench.register(LINE);
    assert!(!bench.watch.is_outsider(LINE));
    bench.watch.note_fenced(OTHER, true);
    assert!(bench.watch.is_outsider(LINE) && !bench.watch.is_outsider(OTHER));
}

#[test]
fn who_was_registered_writes_nothing_once_another_uses_the_disk_unfenced() {
    for is_registered in [true, false] {
        let mut bench = Bench::new();
        if is_registered {
            bench.register(LINE);
        }
        bench.write(LINE, 1);
        bench.watch.note_fenced(OTHER, false);
        bench.apply(LINE, 1);
        assert_eq!(bench.is_broken(), is_registered);
    }
}

#[test]
fn a_disk_is_not_left_to_all_while_an_engine_lives_that_was_removed_there() {
    let clear = Order::Clear { key: 8 };
    let frees = |before: fn(&mut Bench)| {
        let mut bench = Bench::new();
        bench.register(LINE);
        bench.watch.note_fenced(OTHER, true);
        before(&mut bench);
        bench.watch.note_order(OTHER, OrderId(1), &clear);
        bench.is_broken()
    };
    assert!(frees(|_| ()));
    assert!(frees(|bench| bench.watch.note_program_over(HOST, true)));
    assert!(!frees(|bench| bench.watch.note_program_over(HOST, false)), "nobody knows");
    assert!(!frees(|bench| bench.watch.note_over(LINE)), "it is dead");
    assert!(!frees(|bench| bench.register(LINE)), "it is back");
}

#[test]
fn a_line_writes_to_no_other_disk_than_it_found() {
    for has_opened in [true, false] {
        let mut bench = Bench::new();
        if has_opened {
            bench.watch.note_opened(LINE);
        }
        bench.watch.note_replaced(HOST, &Disk::new(SHAPE));
        bench.write(LINE, 1);
        bench.apply(LINE, 1);
        assert_eq!(bench.is_broken(), has_opened);
    }
}

#[test]
fn nobody_is_fenced_by_nobody() {
    let mut bench = Bench::new();
    bench.watch.note_told_fenced(LINE);
    assert!(bench.is_broken());
    bench.watch.note_order(OTHER, OrderId(0), &Order::Clear { key: 7 });
    bench.watch.note_told_fenced(LINE);
    assert!(!bench.is_broken());
    bench.watch.note_told_fenced(OTHER);
    assert!(bench.is_broken());
}

#[test]
fn who_has_the_turn_ends_in_time_unless_the_engine_stands_still() {
    let late = Time::START.after(TIME * TIMES_MAX + LATE_MAX + Duration::from_nanos(1));
    let mut bench = Bench::new();
    let first = bench.write(LINE, 1);
    bench.write(LINE, 2);
    bench.watch.check_time(LINE, Time::START.after(TIME));
    assert!(!bench.is_broken());
    bench.watch.check_time(LINE, late);
    assert!(bench.is_broken());
    bench.watch.note_end(LINE, late, first, false);
    bench.watch.check_time(LINE, late);
    assert!(!bench.is_broken(), "the second one has its turn now");
    bench.watch.note_hung(EngineId(0), late.after(TIME));
    bench.watch.check_time(LINE, late.after(TIME * TIMES_MAX + LATE_MAX + TIME));
    assert!(!bench.is_broken());
}
