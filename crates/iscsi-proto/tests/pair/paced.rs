//! A target that is paced: nothing moves before it is granted.

use netraid_iscsi_proto::{
    negotiation::Wishes,
    pdu::{
        Bhs, DataOut, LoginRequest, LunField, NO_TAG, Opcode, R2t, ScsiCommand, TaskFunction,
        TaskRequest,
    },
    serial::Serial,
    target, text,
};

use crate::harness::{
    Pair, READ, TARGET, WRITE, command, connection, initiator_setup, target_setup,
};

const BURST: u32 = 64 << 10;

/// A paced target with short bursts, whose initiator would send what it may unasked.
fn paced() -> Pair {
    let wishes = Wishes { max_burst_len: BURST, ..Wishes::default() };
    let target = target::Setup { paced: true, wishes, ..target_setup() };
    let mut pair = Pair::new(&target, initiator_setup());
    pair.log_in();
    pair.trace.clear();
    pair
}

/// Lengths of the R2Ts that the target sent.
fn asked(pair: &Pair) -> Vec<u32> {
    let sent = pair.trace.iter().filter(|(out, _)| !out);
    let r2ts = sent.filter(|(_, bhs)| bhs.opcode() == Some(Opcode::R2t));
    r2ts.map(|(_, bhs)| R2t::parse(bhs).len).collect()
}

fn data_pdus(pair: &Pair) -> usize {
    let data = |bhs: &Bhs| bhs.opcode() == Some(Opcode::DataOut);
    pair.trace.iter().filter(|(out, bhs)| *out && data(bhs)).count()
}

#[test]
fn data_of_a_write_comes_as_it_is_granted_and_is_granted_once() {
    let mut pair = paced();
    let data: Vec<u8> = (0..3 * BURST + 512).map(|at| at.to_le_bytes()[1]).collect();
    let len = u32::try_from(data.len()).unwrap();
    pair.guest.submit(pair.now, command(WRITE, 4096, len), &data);
    pair.run();
    assert_eq!(pair.host.commands, 1);
    for count in 0..4 {
        assert_eq!((asked(&pair).len(), data_pdus(&pair)), (count, count), "not before a grant");
        assert!(pair.guest.ends.is_empty());
        let piece = if count == 3 { 512 } else { BURST };
        assert_eq!(pair.host.grant(), Some((piece, false)));
        pair.run();
    }
    assert_eq!(pair.host.grant(), None, "the bytes were granted: it is executed");
    assert_eq!(asked(&pair), [BURST, BURST, BURST, 512]);
    assert_eq!(pair.guest.ends.len(), 1);
    assert_eq!(&pair.host.disk[4096..][..data.len()], &data[..]);
}

#[test]
fn several_pieces_are_under_way_as_far_as_they_are_granted() {
    let mut pair = paced();
    let data = vec![7; 4 * BURST as usize];
    pair.guest.submit(pair.now, command(WRITE, 0, 4 * BURST), &data);
    // The target's turn alone: the data of what it asks for does not come yet.
    let (transmit, segment) = pair.guest.transmit().unwrap();
    assert!(segment.is_empty(), "no data comes with the command");
    pair.host.receive(pair.now, &mut pair.node, &transmit.header, &segment).unwrap();
    for number in 0..3 {
        assert!(pair.host.transmit().is_none());
        assert_eq!(pair.host.grant(), Some((BURST, false)));
        let (transmit, _) = pair.host.transmit().expect("an R2T");
        let r2t = R2t::parse(&transmit.header);
        assert_eq!((r2t.r2t_sn, r2t.offset, r2t.len), (number, number * BURST, BURST));
        pair.guest.receive(pair.now, &transmit.header, &[]).unwrap();
    }
    pair.run();
    while pair.host.grant().is_some() {
        pair.run();
    }
    assert_eq!(pair.guest.ends.len(), 1);
    assert_eq!(pair.host.disk[..data.len()], data);
}

#[test]
fn a_read_is_granted_before_it_is_executed() {
    let mut pair = paced();
    pair.host.eager = false;
    for offset in [0, 8192] {
        pair.guest.submit(pair.now, command(READ, offset, 8192), &[]);
    }
    pair.run();
    assert!(pair.host.executing.is_empty());
    for executing in 1..=2 {
        assert_eq!(pair.host.grant(), Some((8192, true)));
        assert_eq!(pair.host.executing.len(), executing);
    }
    while let Some(task) = pair.host.executing.pop_front() {
        assert!(!pair.host.machine.is_waiting(task));
        pair.host.execute(task);
    }
    pair.run();
    assert_eq!(pair.guest.ends.len(), 2);
}

fn send(pair: &mut Pair, bhs: &Bhs, data: &[u8]) {
    let bhs = bhs.with_data_len(u32::try_from(data.len()).unwrap());
    pair.host.receive(pair.now, &mut pair.node, &bhs, data).unwrap();
}

fn write(len: u32, itt: u32, cmd_sn: u32) -> Bhs {
    let command = ScsiCommand {
        immediate: false,
        last: true,
        read: false,
        write: true,
        attribute: 1,
        lun: LunField::from_number(0),
        itt,
        expected_len: len,
        cdb: command(WRITE, 0, len).cdb,
    };
    let mut bhs = command.encode();
    bhs.stamp_command(Serial(cmd_sn), Serial(0));
    bhs
}

#[test]
fn what_comes_unasked_is_against_what_was_agreed() {
    let mut pair = paced();
    send(&mut pair, &write(512, 1, 1), &[7; 512]);
    assert!(pair.host.asks.is_empty());
    let (transmit, _) = pair.host.transmit().expect("a response");
    assert_eq!(transmit.header.opcode(), Some(Opcode::ScsiResponse));
    assert_eq!(pair.host.disk[..512], [0; 512], "nothing is written");
}

/// An initiator that does not speak of immediate data may send some: so much is granted before the
/// command goes on.
#[test]
fn what_comes_unasked_because_it_was_not_spoken_of_is_granted_afterwards() {
    let mut pair = paced();
    // As if the keys had never come.
    pair.host.machine = {
        let target = target::Setup { paced: true, ..target_setup() };
        connection(&mut pair.node, &target)
    };
    log_in_without_a_word(&mut pair);
    send(&mut pair, &write(4096, 1, 1), &[7; 1024]);
    assert_eq!(pair.host.grant(), Some((3072, false)));
    let (transmit, _) = pair.host.transmit().expect("an R2T");
    let r2t = R2t::parse(&transmit.header);
    assert_eq!((r2t.offset, r2t.len), (1024, 3072));
    let (lun, offset) = (LunField::from_number(0), 1024);
    let rest = DataOut { last: true, lun, itt: 1, ttt: r2t.ttt, data_sn: 0, offset };
    send(&mut pair, &rest.encode(), &[7; 3072]);
    assert_eq!(pair.host.disk[..4096], [0; 4096], "not before it is granted");
    assert_eq!(pair.host.grant(), Some((1024, true)));
    assert_eq!(pair.host.disk[..4096], [7; 4096]);
}

fn log_in_without_a_word(pair: &mut Pair) {
    let request = LoginRequest {
        transit: true,
        more: false,
        current_stage: 1,
        next_stage: 3,
        version_max: 0,
        version_min: 0,
        isid: [0x80, 0, 0, 0, 0, 9],
        tsih: 0,
        itt: 0,
        cid: 1,
    };
    let mut keys = Vec::new();
    let names = [("InitiatorName", "iqn.2026-01.org.example:mute"), ("TargetName", TARGET)];
    for (key, value) in names {
        text::push(&mut keys, key, value);
    }
    let mut bhs = request.encode();
    bhs.stamp_command(Serial(1), Serial(0));
    send(pair, &bhs, &keys);
    while pair.host.transmit().is_some() {}
}

#[test]
fn a_task_that_is_aborted_while_it_waits_ends_at_once_and_its_grant_is_nobodys() {
    let mut pair = paced();
    send(&mut pair, &write(4096, 1, 1), &[]);
    let (task, ..) = pair.host.asks[0];
    let request = TaskRequest {
        immediate: true,
        function: TaskFunction::AbortTask,
        lun: LunField::from_number(0),
        itt: 2,
        referenced_itt: 1,
        ref_cmd_sn: 1,
    };
    let mut bhs = request.encode();
    bhs.stamp_command(Serial(2), Serial(0));
    send(&mut pair, &bhs, &[]);
    assert!(pair.host.asks.is_empty(), "it was released");
    let (transmit, _) = pair.host.transmit().expect("an answer");
    assert_eq!(transmit.header.opcode(), Some(Opcode::TaskResponse));
    // A grant that was on its way.
    pair.host.machine.handle_grant(task);
    pair.host.handle_events();
    assert!(pair.host.transmit().is_none());
}

#[test]
fn a_fault_in_the_data_ends_the_task_whatever_is_granted_then() {
    let mut pair = paced();
    send(&mut pair, &write(2 * BURST, 1, 1), &[]);
    assert_eq!(pair.host.grant(), Some((BURST, false)));
    let (transmit, _) = pair.host.transmit().expect("an R2T");
    let r2t = R2t::parse(&transmit.header);
    // The second piece is asked for; then the data of the first is not where it belongs.
    assert_eq!(pair.host.asks.len(), 1);
    let lun = LunField::from_number(0);
    let wrong = DataOut { last: true, lun, itt: 1, ttt: r2t.ttt, data_sn: 0, offset: 512 };
    send(&mut pair, &wrong.encode(), &vec![7; BURST as usize]);
    let _ = pair.host.grant();
    let (transmit, _) = pair.host.transmit().expect("a response");
    assert_eq!(transmit.header.opcode(), Some(Opcode::ScsiResponse));
    assert!(pair.host.transmit().is_none());
    assert_ne!(r2t.ttt, NO_TAG);
}

#[test]
fn a_target_that_is_not_paced_asks_for_nothing() {
    let mut pair = Pair::with_wishes(Wishes::default(), Wishes::default());
    pair.guest.submit(pair.now, command(WRITE, 0, 1 << 20), &vec![7; 1 << 20]);
    pair.guest.submit(pair.now, command(READ, 0, 1 << 20), &[]);
    pair.run();
    assert_eq!(pair.guest.ends.len(), 2);
    assert!(pair.host.asks.is_empty());
}
