//! Data-Out that is not as agreed: its command ends with CHECK CONDITION once all of it has come,
//! and the session goes on (RFC 7143, sections 7.8, 7.9 and 11.4.7.2).

use netraid_iscsi_proto::{
    machine::Placement,
    negotiation::Wishes,
    pdu::{
        Bhs, DataOut, LunField, NO_TAG, Opcode, R2t, Reject, RejectReason, ScsiCommand,
        ScsiResponse,
    },
    serial::Serial,
};

use crate::{
    harness::{BAD, Pair, READ, WRITE, command},
    order::{give, read, replies},
};

const ITT: u32 = 77;
const LEN: u32 = 4096;

/// Unsolicited data up to 2048 bytes, immediate or not, then bursts of 1024.
fn unsolicited() -> Pair {
    let wishes = Wishes {
        max_recv_len: 1024,
        max_burst_len: 2048,
        first_burst_len: 2048,
        max_outstanding_r2t: 2,
        ..Wishes::default()
    };
    Pair::with_wishes(wishes.clone(), wishes)
}

/// Nothing comes unasked.
fn solicited() -> Pair {
    let wishes = Wishes {
        max_burst_len: 1024,
        max_outstanding_r2t: 2,
        initial_r2t: true,
        immediate_data: false,
        ..Wishes::default()
    };
    Pair::with_wishes(wishes.clone(), wishes)
}

fn send(pair: &mut Pair, bhs: &Bhs, data: &[u8]) {
    let bhs = bhs.with_data_len(u32::try_from(data.len()).unwrap());
    pair.host.receive(pair.now, &mut pair.node, &bhs, data).unwrap();
}

/// A write of `LEN` bytes with immediate data, the `last` of the unsolicited data or not.
fn write(pair: &mut Pair, last: bool, immediate: &[u8]) {
    let command = ScsiCommand {
        immediate: false,
        last,
        read: false,
        write: true,
        attribute: 1,
        lun: LunField::from_number(0),
        itt: ITT,
        expected_len: LEN,
        cdb: command(WRITE, 0, LEN).cdb,
    };
    let mut bhs = command.encode();
    bhs.stamp_command(Serial(1), Serial(0));
    send(pair, &bhs, immediate);
}

fn data_out(ttt: u32, data_sn: u32, offset: u32, last: bool) -> Bhs {
    DataOut { last, lun: LunField::from_number(0), itt: ITT, ttt, data_sn, offset }.encode()
}

/// Additional sense code and qualifier of the only response; the session serves on.
#[track_caller]
fn sense(pair: &mut Pair) -> [u8; 2] {
    let (transmit, sense) = pair.host.transmit().expect("a response");
    assert_eq!(transmit.header.opcode(), Some(Opcode::ScsiResponse));
    assert_eq!(ScsiResponse::parse(&transmit.header).status, 2);
    assert!(replies(pair).is_empty());
    // Length, then fixed format: ABORTED COMMAND.
    assert_eq!((sense[..2].to_vec(), sense[2], sense[4]), (vec![0, 18], 0x70, 0x0b));
    assert!(pair.host.disk.iter().all(|byte| *byte == 0), "data of a failed write was written");
    give(pair, &read(Serial(2), 78, false)).unwrap();
    assert!(!replies(pair).is_empty(), "the session goes on");
    [sense[14], sense[15]]
}

#[test]
fn data_sn_counts_from_zero_without_gaps() {
    for (first, second) in [(0, 0), (0, 2), (1, 0), (27, 28), (u32::MAX, 0)] {
        let mut pair = unsolicited();
        write(&mut pair, false, &[]);
        send(&mut pair, &data_out(NO_TAG, first, 0, false), &[1; 1024]);
        assert!(replies(&mut pair).is_empty(), "answered before all of it has come");
        send(&mut pair, &data_out(NO_TAG, second, 1024, true), &[1; 1024]);
        assert_eq!(sense(&mut pair), [0x4b, 0x00], "{first} {second}");
    }
    // In order, it is asked for the rest.
    let mut pair = unsolicited();
    write(&mut pair, false, &[1; 512]);
    send(&mut pair, &data_out(NO_TAG, 0, 512, false), &[1; 512]);
    send(&mut pair, &data_out(NO_TAG, 1, 1024, true), &[1; 1024]);
    let asked = replies(&mut pair);
    assert_eq!((asked.len(), R2t::parse(&asked[0]).offset), (1, 2048));
}

#[test]
fn data_goes_where_the_last_ended() {
    for offset in [0, 512, 2048, u32::MAX] {
        let mut pair = unsolicited();
        write(&mut pair, false, &[1; 1024]);
        send(&mut pair, &data_out(NO_TAG, 0, offset, true), &[1; 512]);
        assert_eq!(sense(&mut pair), [0x4b, 0x05], "{offset}");
    }
}

#[test]
fn unsolicited_data_ends_at_the_first_burst() {
    let mut pair = unsolicited();
    write(&mut pair, false, &[1; 1024]);
    send(&mut pair, &data_out(NO_TAG, 0, 1024, false), &[1; 1023]);
    send(&mut pair, &data_out(NO_TAG, 1, 2047, true), &[1; 2]);
    assert_eq!(sense(&mut pair), [0x4b, 0x02]);
}

#[test]
fn what_comes_unasked_must_be_agreed_on() {
    // Immediate data without ImmediateData=Yes.
    let mut pair = solicited();
    write(&mut pair, true, &[1; 512]);
    assert_eq!(sense(&mut pair), [0x0c, 0x0c]);
    // More to come in spite of InitialR2T=Yes: answered when it has come.
    let mut pair = solicited();
    write(&mut pair, false, &[]);
    assert!(replies(&mut pair).is_empty());
    send(&mut pair, &data_out(NO_TAG, 0, 0, true), &[1; 512]);
    assert_eq!(sense(&mut pair), [0x0c, 0x0c]);
    // Immediate data beyond FirstBurstLength.
    let wishes = Wishes { first_burst_len: 512, ..Wishes::default() };
    for (len, good) in [(512, true), (513, false)] {
        let mut pair = Pair::with_wishes(wishes.clone(), wishes.clone());
        write(&mut pair, true, &vec![1; len]);
        if good {
            assert_eq!(replies(&mut pair)[0].opcode(), Some(Opcode::R2t));
        } else {
            assert_eq!(sense(&mut pair), [0x0c, 0x0c]);
        }
    }
}

#[test]
fn a_read_brings_no_data() {
    let mut pair = unsolicited();
    let mut bhs = read(Serial(1), ITT, false);
    bhs.0[32] = READ;
    send(&mut pair, &bhs, &[1; 4]);
    assert_eq!(sense(&mut pair), [0x0c, 0x0c]);
}

#[test]
fn an_answer_to_an_r2t_is_as_long_as_that() {
    for (len, last, expected) in
        [(1023, true, [0x0c, 0x0d]), (1024, false, [0x0c, 0x0d]), (1025, true, [0x4b, 0x02])]
    {
        let mut pair = solicited();
        write(&mut pair, true, &[]);
        let asked: Vec<_> = replies(&mut pair).iter().map(|bhs| R2t::parse(bhs).ttt).collect();
        assert_eq!(asked.len(), 2);
        send(&mut pair, &data_out(asked[0], 0, 0, last), &vec![1; len]);
        if !last {
            send(&mut pair, &data_out(asked[0], 1, 1024, true), &[]);
        }
        assert!(replies(&mut pair).is_empty(), "another R2T is not answered yet, and none follows");
        send(&mut pair, &data_out(asked[1], 0, 1024, true), &[1; 1024]);
        assert_eq!(sense(&mut pair), expected, "{len} {last}");
    }
}

#[test]
fn data_with_a_tag_that_was_not_given_goes_to_nobody() {
    let mut pair = solicited();
    write(&mut pair, true, &[]);
    let asked: Vec<_> = replies(&mut pair).iter().map(|bhs| R2t::parse(bhs).ttt).collect();
    for stray in [NO_TAG, asked[0] + 1, asked[1], 0x7fff_ffff, 0xffff] {
        let bhs = data_out(stray, 0, 0, true).with_data_len(1024);
        pair.host.machine.handle_header(pair.now, &bhs).unwrap();
        assert_eq!(pair.host.machine.placement(), Placement::Discard, "{stray:#x}");
        pair.host.machine.handle_data();
    }
    for (index, ttt) in (0..).zip(asked) {
        send(&mut pair, &data_out(ttt, 0, index * 1024, true), &[1; 1024]);
    }
    let asked: Vec<_> = replies(&mut pair).iter().map(R2t::parse).collect();
    assert_eq!((asked[0].r2t_sn, asked[0].offset, asked.len()), (2, 2048, 2));
}

#[test]
fn a_wrong_data_digest_costs_one_command() {
    let mut pair = unsolicited();
    write(&mut pair, false, &[1; 1024]);
    let bhs = data_out(NO_TAG, 0, 1024, true).with_data_len(1024);
    pair.host.machine.handle_header(pair.now, &bhs).unwrap();
    pair.host.machine.handle_bad_digest(&bhs);
    let (reject, copy) = pair.host.transmit().unwrap();
    assert_eq!(Reject::parse(&reject.header).reason, RejectReason::DataDigest);
    assert_eq!(copy, bhs.0);
    assert_eq!(sense(&mut pair), [0x47, 0x05]);
    assert_eq!(pair.node.counters().digest_errors.get(), 1);
}

#[test]
fn a_faulty_command_can_be_aborted() {
    let mut pair = unsolicited();
    write(&mut pair, false, &[1; 1024]);
    send(&mut pair, &data_out(NO_TAG, 9, 1024, false), &[1; 512]);
    let abort = crate::management::abort(ITT, 1);
    give(&mut pair, &abort).unwrap();
    assert_eq!(crate::management::codes(&mut pair), [0]);
    send(&mut pair, &data_out(NO_TAG, 1, 1536, true), &[1; 512]);
    assert!(replies(&mut pair).is_empty());
    assert!(pair.host.machine.is_idle());
}

#[test]
fn a_wrong_digest_of_data_that_nobody_wants_changes_no_answer() {
    // The unit has refused the command already.
    let mut pair = unsolicited();
    let mut bhs = read(Serial(1), ITT, false);
    (bhs.0[1], bhs.0[32]) = (0xa1, BAD);
    let bhs = bhs.with_data_len(512);
    pair.host.machine.handle_header(pair.now, &bhs).unwrap();
    pair.host.handle_events();
    pair.host.machine.handle_bad_digest(&bhs);
    let opcodes: Vec<_> = replies(&mut pair).iter().map(Bhs::opcode).collect();
    assert_eq!(opcodes, [Some(Opcode::Reject), Some(Opcode::ScsiResponse)]);
}
