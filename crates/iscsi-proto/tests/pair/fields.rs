//! What the fields of single PDUs demand of the target (RFC 7143, section 11).

use netraid_iscsi_proto::{
    initiator,
    machine::Fatal,
    negotiation::Wishes,
    pdu::{
        Bhs, LoginRequest, LogoutReason, LogoutRequest, NO_TAG, NopIn, NopOut, Opcode, Reject,
        RejectReason, TaskFunction,
    },
    serial::Serial,
};

use crate::{
    harness::{Pair, TARGET, initiator_setup, target_setup},
    logins::{Hand, INITIATOR},
    management::request,
    order::{give, pair, read, replies},
};

/// Sends a ping with these bytes; the answer and what it echoes.
fn ping(pair: &mut Pair, data: &[u8]) -> (Bhs, Vec<u8>) {
    let bhs = NopOut::ping(9).encode().with_data_len(u32::try_from(data.len()).unwrap());
    pair.host.receive(pair.now, &mut pair.node, &bhs, data).unwrap();
    let (transmit, echo) = pair.host.transmit().expect("an answer");
    (transmit.header, echo)
}

#[test]
fn a_ping_is_echoed_with_its_tag() {
    // Sections 11.18 and 11.19: a status number of its own, and no tag of the target.
    let mut pair = pair();
    let (first, echo) = ping(&mut pair, b"anybody?");
    assert_eq!(first.opcode(), Some(Opcode::NopIn));
    let NopIn { itt, ttt, .. } = NopIn::parse(&first);
    assert_eq!((itt, ttt, &echo[..]), (9, NO_TAG, &b"anybody?"[..]));
    let (second, _) = ping(&mut pair, b"");
    assert_eq!(second.stat_sn(), first.stat_sn().next());
}

#[test]
fn a_ping_is_echoed_as_far_as_the_initiator_takes_it() {
    // Section 11.18.4: up to the initiator's MaxRecvDataSegmentLength.
    let small = Wishes { max_recv_len: 512, ..Wishes::default() };
    let mut pair = Pair::with_wishes(Wishes::default(), small);
    assert_eq!(ping(&mut pair, &[7; 512]).1.len(), 512);
    assert_eq!(ping(&mut pair, &[7; 513]).1.len(), 512);
}

#[test]
fn a_ping_of_the_target_takes_no_status_number() {
    // Section 11.19.2: StatSN is the next one, and is not advanced.
    let mut pair = pair();
    pair.now = pair.host.machine.next_timeout().unwrap();
    pair.host.machine.handle_timeout(pair.now).unwrap();
    let asked = replies(&mut pair)[0];
    assert_eq!((asked.opcode(), asked.itt()), (Some(Opcode::NopIn), NO_TAG));
    assert_ne!(NopIn::parse(&asked).ttt, NO_TAG, "an answer is wanted");
    assert_eq!(ping(&mut pair, b"").0.stat_sn(), asked.stat_sn());
}

#[test]
fn a_reject_brings_the_header_that_it_refuses() {
    // Section 11.17.
    let mut pair = pair();
    let mut unknown = read(Serial(1), 5, false);
    unknown.0[0] = 0x1f;
    give(&mut pair, &unknown).unwrap();
    let (transmit, data) = pair.host.transmit().unwrap();
    assert_eq!(transmit.header.opcode(), Some(Opcode::Reject));
    assert_eq!(transmit.header.itt(), NO_TAG);
    assert_eq!(data, unknown.0);
}

#[test]
fn requests_after_a_logout_are_ignored() {
    // Section 11.14: no further ones may be sent.
    let mut pair = pair();
    let reason = LogoutReason::CloseSession;
    give(&mut pair, &LogoutRequest { immediate: true, reason, itt: 9, cid: 1 }.encode()).unwrap();
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    assert_eq!(pair.host.commands, 0);
    let sent: Vec<_> = replies(&mut pair).iter().map(Bhs::opcode).collect();
    assert_eq!(sent, [Some(Opcode::LogoutResponse)]);
}

#[test]
fn a_session_begins_with_a_login() {
    // Section 6.3: anything else first ends the connection.
    let mut pair = Pair::new(&target_setup(), initiator_setup());
    for bhs in [read(Serial(1), 5, false), NopOut::ping(9).encode()] {
        let end = give(&mut pair, &bhs);
        assert!(matches!(end, Err(Fatal::Protocol(_))), "{bhs:?}: {end:?}");
    }
    assert_eq!(pair.host.commands, 0);
}

#[test]
fn a_session_has_one_login() {
    // Section 11.17.1: a login request in full feature phase is a protocol error.
    let mut pair = pair();
    let login = LoginRequest {
        transit: true,
        more: false,
        current_stage: 1,
        next_stage: 3,
        version_max: 0,
        version_min: 0,
        isid: [0x80; 6],
        tsih: 0,
        itt: 1,
        cid: 1,
    };
    give(&mut pair, &login.encode()).unwrap();
    assert_eq!(Reject::parse(&replies(&mut pair)[0]).reason, RejectReason::Protocol);
}

#[test]
fn a_discovery_session_takes_no_commands() {
    // Section 4.3: text requests and a logout are all that it knows.
    let discovery = initiator::Setup { target_name: None, ..initiator_setup() };
    for bhs in [read(Serial(1), 5, true), request(TaskFunction::TargetColdReset, 0, 0).encode()] {
        let mut pair = Pair::new(&target_setup(), discovery.clone());
        pair.run();
        give(&mut pair, &bhs).unwrap();
        assert_eq!(Reject::parse(&replies(&mut pair)[0]).reason, RejectReason::Protocol);
        assert_eq!((pair.host.commands, pair.host.resets), (0, 0));
    }
}

#[test]
fn a_login_keeps_its_identifiers() {
    // Sections 11.12.5 to 11.12.7: ISID, TSIH and CID are those of its first request.
    for (what, isid, tsih, cid) in
        [("nothing", 0, 0, 0), ("isid", 1, 0, 0), ("tsih", 0, 1, 0), ("cid", 0, 0, 1)]
    {
        let mut hand = Hand::new(&target_setup());
        let names = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
        assert_eq!(hand.say(1, None, &names).response.status, 0);
        hand.request.isid[5] ^= isid;
        hand.request.tsih ^= tsih;
        hand.request.cid ^= cid;
        let status = hand.say(1, None, &[]).response.status;
        assert_eq!(status, if what == "nothing" { 0 } else { 0x0200 }, "{what}");
    }
}

#[test]
fn eight_immediate_commands_at_a_time() {
    // Section 4.2.2.1: as many as the target likes; more are rejected (11.17.1, reason 6), and the
    // window stays open for the others.
    let mut pair = pair();
    pair.host.eager = false;
    for itt in 0..8 {
        give(&mut pair, &read(Serial(1), itt, true)).unwrap();
    }
    assert_eq!((pair.host.commands, replies(&mut pair).len()), (8, 0));
    give(&mut pair, &read(Serial(1), 8, true)).unwrap();
    assert_eq!(Reject::parse(&replies(&mut pair)[0]).reason, RejectReason::TooManyImmediate);
    give(&mut pair, &read(Serial(1), 9, false)).unwrap();
    assert_eq!(pair.host.commands, 9);
    let task = pair.host.executing.pop_front().unwrap();
    pair.host.execute(task);
    replies(&mut pair);
    give(&mut pair, &read(Serial(2), 8, true)).unwrap();
    assert_eq!(pair.host.commands, 10, "a place is free again");
}
