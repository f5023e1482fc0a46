//! SANITIZE (SBC-3, sections 4.11 and 5.22).

use super::*;

fn sanitize(action: u8, parameter_len: u16) -> Vec<u8> {
    let [high, low] = parameter_len.to_be_bytes();
    cdb(&[0x48, action, 0, 0, 0, 0, 0, high, low])
}

#[test]
fn overwriting_repeats_the_pattern_from_the_start_of_each_block() {
    let mut bench = Bench::new();
    bench.medium.fill(9);
    // Two passes, inverted between them: the last one writes the pattern (SBC-3, section 5.22.2).
    bench.good(&sanitize(0x01, 7), &[0x82, 0, 0, 3, 1, 2, 3]);
    let block: Vec<u8> = [1, 2, 3].into_iter().cycle().take(512).collect();
    assert!(bench.medium.chunks(512).all(|part| part == block));
    let flushes = bench.submitted.iter().filter(|(op, ..)| *op == Op::Flush).count();
    assert_eq!((flushes, &bench.kept), (2, &None));
    bench.good(&build::test_unit_ready(), &[]);
}

#[test]
fn parameters_of_an_overwrite_are_checked_on_both_sides() {
    let mut bench = Bench::new();
    for len in [0, 4, 517] {
        let sense = bench.sense(&sanitize(0x01, len), &vec![1; usize::from(len)]);
        assert_eq!(sense.field.map(|field| (field.in_cdb, field.byte)), Some((true, 7)), "{len}");
    }
    for (head, byte) in
        [([0, 0, 0, 1], 0), ([0x21, 0, 0, 1], 0), ([1, 0, 0, 0], 2), ([1, 0, 0, 2], 2)]
    {
        let list = [&head[..], &[7]].concat();
        let sense = bench.sense(&sanitize(0x01, 5), &list);
        assert_eq!(sense.field.map(|field| (field.in_cdb, field.byte)), Some((false, byte)));
    }
    assert!(bench.submitted.is_empty());
    bench.good(&sanitize(0x01, 5), &[1, 0, 0, 1, 7]);
    let whole = [&[1, 0, 2, 0][..], &[8; 512]].concat();
    bench.good(&sanitize(0x01, 516), &whole);
    assert!(bench.medium.iter().all(|byte| *byte == 8));
    for action in [0x02, 0x1f] {
        let sense = bench.sense(&sanitize(action, 8), &[0; 8]);
        assert_eq!(sense.field.map(|field| field.byte), Some(7), "no parameters are expected");
    }
}

#[test]
fn nothing_can_be_had_of_a_medium_that_is_being_erased() {
    let mut bench = Bench::new();
    bench.medium.fill(9);
    let (mut task, step) = bench.unit.handle_command(NEXUS, &sanitize(0x82, 0), 0);
    assert!(matches!(step, Step::Wait));
    assert!(bench.unit.poll_background().is_none(), "it may still be refused");
    bench.unit.begin_background();
    let Some(Background::Keep(Some(kept))) = bench.unit.poll_background() else { panic!() };
    assert_eq!(kept.method, Method::BlockErase);
    assert!(bench.unit.poll_background().is_none(), "one thing at a time");
    bench.unit.handle_background_done(Ok(SgList::new()));
    // The answer comes when the operation is certain to be found again (IMMED).
    let Some(Background::Wake(Ok(()))) = bench.unit.poll_background() else { panic!() };
    bench.unit.handle_background_done(Ok(SgList::new()));
    let step = bench.unit.handle_medium_done(&mut task, Ok(SgList::new()));
    assert!(matches!(step, Step::Respond(Response { status: Status::Good, .. })));
    let Some(Background::Submit(_)) = bench.unit.poll_background() else { panic!() };
    // Neither a reset nor the end of its nexus ends it (SBC-3, section 4.11.2).
    bench.unit.handle_reset();
    bench.sense(&build::inquiry(Some(0xff), 1), &[]);
    let attention = bench.sense(&build::test_unit_ready(), &[]);
    assert_eq!(attention.key, SenseKey::UnitAttention);
    for refused in
        [build::test_unit_ready(), build::read(extent(0, 1), false), build::read_capacity_10()]
    {
        let sense = bench.sense(&refused, &[]);
        let expected = (SenseKey::NotReady, Additional::SANITIZE_IN_PROGRESS);
        assert_eq!((sense.key, sense.additional), expected);
        assert!(sense.progress.is_some());
    }
    assert_eq!(bench.sense(&sanitize(0x02, 0), &[]).key, SenseKey::NotReady, "one at a time");
    bench.good(&build::inquiry(None, 36), &[]);
    let polled = bench.good(&cdb(&[0x03, 0, 0, 0, 252]), &[]);
    let polled = Sense::decode(&polled).unwrap();
    assert_eq!((polled.key, polled.progress), (SenseKey::NotReady, Some(0)));
}

#[test]
fn writes_that_began_before_end_before_anything_is_erased() {
    let mut bench = Bench::new();
    let write = build::write(extent(0, 1), false, false);
    let block: SgList = Buf::copy_from(&[1; 512]).into();
    let (mut early, _) = bench.unit.handle_command(NEXUS, &write, 512);
    assert!(matches!(bench.unit.handle_data_out(&mut early, block.clone()), Step::Submit(_)));
    let (mut late, step) = bench.unit.handle_command(NEXUS, &write, 512);
    assert!(matches!(step, Step::DataOut { .. }));
    let _waits = bench.unit.handle_command(NEXUS, &sanitize(0x02, 0), 0);
    bench.unit.begin_background();
    assert!(matches!(bench.unit.poll_background(), Some(Background::Keep(Some(_)))));
    bench.unit.handle_background_done(Ok(SgList::new()));
    assert!(matches!(bench.unit.poll_background(), Some(Background::Pause)));
    bench.unit.handle_background_done(Ok(SgList::new()));
    // One whose data comes only now never gets to the medium.
    let Step::Respond(response) = bench.unit.handle_data_out(&mut late, block) else { panic!() };
    let sense = Sense::decode(&response.sense).unwrap();
    assert_eq!(sense.additional, Additional::SANITIZE_IN_PROGRESS);
    let _ = bench.unit.handle_medium_done(&mut early, Ok(SgList::new()));
    let Some(Background::Submit(request)) = bench.unit.poll_background() else { panic!() };
    assert_eq!((request.op, request.offset, request.len), (Op::WriteZeroes, 0, BLOCKS * 512));
}

#[test]
fn a_failed_operation_is_left_as_its_mode_says() {
    // Restricted (AUSE zero): only another one in that mode helps (SBC-3, section 4.11.3).
    let mut bench = Bench::new();
    bench.fail_next = Some(ErrorKind::Medium);
    let failed = (SenseKey::MediumError, Additional::SANITIZE_COMMAND_FAILED);
    let sense = bench.sense(&sanitize(0x02, 0), &[]);
    assert_eq!((sense.key, sense.additional), failed);
    assert!(bench.kept.as_ref().is_some_and(|marker| marker.failed));
    let sense = bench.sense(&build::read(extent(0, 1), false), &[]);
    assert_eq!((sense.key, sense.additional), failed);
    for (cdb, bit) in [(sanitize(0x1f, 0), 4), (sanitize(0x22, 0), 5)] {
        let sense = bench.sense(&cdb, &[]);
        assert_eq!(sense.field.map(|field| (field.byte, field.bit)), Some((1, Some(bit))));
    }
    bench.good(&sanitize(0x02, 0), &[]);
    assert_eq!(bench.kept, None);
    bench.good(&build::read(extent(0, 1), false), &[]);
    // Unrestricted: it may be given up.
    bench.fail_next = Some(ErrorKind::Medium);
    bench.sense(&sanitize(0x22, 0), &[]);
    bench.good(&sanitize(0x1f, 0), &[]);
    assert_eq!(bench.kept, None);
    bench.good(&build::read(extent(0, 1), false), &[]);
    bench.good(&sanitize(0x1f, 0), &[]);
}

#[test]
fn an_operation_that_cannot_be_found_again_does_not_begin() {
    let mut bench = Bench::new();
    bench.fail_keep = true;
    let sense = bench.sense(&sanitize(0x02, 0), &[]);
    assert_eq!(sense.additional, Additional::INTERNAL_TARGET_FAILURE);
    assert!(bench.submitted.is_empty());
    bench.good(&build::test_unit_ready(), &[]);
}

#[test]
fn an_interrupted_operation_goes_on_from_its_start() {
    let mut bench = Bench::new();
    bench.medium.fill(9);
    let method = Method::Overwrite { pattern: vec![5], passes: 1, invert: false };
    let marker = Marker { method, unrestricted: false, failed: false };
    bench.kept = Some(marker.clone());
    bench.unit.resume_sanitize(marker);
    let sense = bench.sense(&build::test_unit_ready(), &[]);
    assert_eq!(sense.additional, Additional::SANITIZE_IN_PROGRESS);
    bench.work().unwrap();
    assert!(bench.medium.iter().all(|byte| *byte == 5));
    assert_eq!(bench.kept, None);
    bench.good(&build::test_unit_ready(), &[]);
    let failed = Marker { method: Method::BlockErase, unrestricted: true, failed: true };
    bench.unit.resume_sanitize(failed);
    assert!(bench.unit.poll_background().is_none(), "it waits for a command");
    let sense = bench.sense(&build::test_unit_ready(), &[]);
    assert_eq!(sense.additional, Additional::SANITIZE_COMMAND_FAILED);
}

#[test]
fn an_order_whose_task_is_refused_is_taken_back() {
    let mut bench = Bench::new();
    let (mut task, step) = bench.unit.handle_command(NEXUS, &sanitize(0x02, 0), 0);
    assert!(matches!(step, Step::Wait));
    assert_eq!(bench.unit.intent(&task), Some((Op::Write, 0, BLOCKS * 512)));
    let _ = bench.unit.handle_refusal(&mut task, Refusal::AccessDenied);
    assert!(bench.unit.poll_background().is_none());
    bench.good(&build::test_unit_ready(), &[]);
}

/// Another thread may send a command while those who wait are woken.
#[test]
fn nothing_is_ordered_while_those_who_wait_are_told_of_a_failure() {
    let mut bench = Bench::new();
    let (_task, _) = bench.unit.handle_command(NEXUS, &sanitize(0x22, 0), 0);
    bench.unit.begin_background();
    let refuses = |bench: &mut Bench| {
        for action in [0x22, 0x1f] {
            let response = bench.run(&sanitize(action, 0), &[]);
            assert_eq!(response.status, Status::Busy, "{action:#x}");
        }
    };
    let woken = loop {
        match bench.unit.poll_background().expect("it is not told yet") {
            Background::Submit(_) => {
                bench.unit.handle_background_done(Err(ErrorKind::Medium.into()));
            }
            Background::Keep(kept) => {
                bench.unit.handle_background_done(Ok(SgList::new()));
                if kept.is_some_and(|marker| marker.failed) {
                    refuses(&mut bench);
                }
            }
            Background::Pause => panic!("nothing else is under way"),
            Background::Wake(result) => break result,
        }
    };
    assert!(woken.is_err());
    refuses(&mut bench);
    bench.unit.handle_background_done(Ok(SgList::new()));
    bench.good(&sanitize(0x1f, 0), &[]);
    bench.good(&build::test_unit_ready(), &[]);
}

#[test]
fn a_failed_medium_stays_failed_when_nothing_comes_of_the_next_order() {
    let failed = (SenseKey::MediumError, Additional::SANITIZE_COMMAND_FAILED);
    for unrestricted in [false, true] {
        let mut bench = Bench::new();
        let marker = Marker { method: Method::BlockErase, unrestricted, failed: true };
        bench.kept = Some(marker.clone());
        bench.unit.resume_sanitize(marker.clone());
        let refuses = |bench: &mut Bench| {
            let sense = bench.sense(&build::read(extent(0, 1), false), &[]);
            assert_eq!((sense.key, sense.additional), failed);
            assert_eq!(bench.kept, Some(marker.clone()));
        };
        let actions: &[u8] = if unrestricted { &[0x02, 0x1f] } else { &[0x02] };
        for action in actions {
            let cdb = sanitize(*action, 0);
            // Who has no right to it changes nothing.
            let (mut task, step) = bench.unit.handle_command(NEXUS, &cdb, 0);
            assert!(matches!(step, Step::Wait), "{step:?}");
            let _ = bench.unit.handle_refusal(&mut task, Refusal::AccessDenied);
            assert!(bench.unit.poll_background().is_none(), "{action:#x}");
            refuses(&mut bench);
            // Nor does one that is aborted before it began.
            let (task, _) = bench.unit.handle_command(NEXUS, &cdb, 0);
            bench.unit.handle_abort(task);
            assert!(bench.unit.poll_background().is_none(), "{action:#x}");
            refuses(&mut bench);
        }
        // Nor one whose marker cannot be kept.
        bench.fail_keep = true;
        bench.sense(&sanitize(0x02, 0), &[]);
        assert!(bench.submitted.is_empty());
        refuses(&mut bench);
        bench.fail_keep = false;
        bench.good(&sanitize(0x02, 0), &[]);
        bench.good(&build::read(extent(0, 1), false), &[]);
    }
}

#[test]
fn sanitizing_is_told_only_where_it_is_done() {
    let mut bench = Bench::with(UnitConfig { can_sanitize: false, ..config() });
    for action in [0x00, 0x01, 0x02, 0x03, 0x1f] {
        let sense = bench.sense(&sanitize(action, 0), &[]);
        assert_eq!(sense.additional, Additional::INVALID_COMMAND_OPERATION_CODE);
    }
    let one = |action: u8| cdb(&[0xa3, 0x0c, 3, 0x48, 0, action, 0, 0, 1, 0]);
    assert_eq!(bench.good(&one(0x02), &[])[1], 1);
    let mut thick = config();
    thick.info.can_discard = false;
    let mut thick = Bench::with(thick);
    assert_eq!([thick.good(&one(0x01), &[])[1], thick.good(&one(0x02), &[])[1]], [3, 1]);
    assert_eq!(thick.good(&build::inquiry(Some(0xb1), 64), &[])[7], 0);
    assert_eq!(Bench::new().good(&build::inquiry(Some(0xb1), 64), &[])[7], 0x40, "WABEREQ");
    let crypto = Bench::new().sense(&sanitize(0x03, 0), &[]);
    assert_eq!(crypto.field.map(|field| (field.byte, field.bit)), Some((1, Some(4))));
}
