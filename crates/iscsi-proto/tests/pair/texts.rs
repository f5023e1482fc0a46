//! Text requests after the login (RFC 7143, sections 6.4 and 11.10, appendix C).

use netraid_iscsi_proto::{
    initiator,
    pdu::{Bhs, LunField, NO_TAG, Opcode, Reject, RejectReason, TextRequest, TextResponse},
    serial::Serial,
    text,
};

use crate::harness::{Pair, READ, TARGET, command, initiator_setup, target_setup};

fn request(last: bool, more: bool, itt: u32, ttt: u32) -> TextRequest {
    TextRequest { immediate: true, last, more, lun: LunField::default(), itt, ttt }
}

/// Sends a request; header and text of the only answer.
fn say(pair: &mut Pair, request: TextRequest, data: &[u8]) -> (Bhs, String) {
    let mut bhs = request.encode().with_data_len(u32::try_from(data.len()).unwrap());
    bhs.stamp_command(Serial(1), Serial(0));
    pair.host.receive(pair.now, &mut pair.node, &bhs, data).unwrap();
    let (transmit, data) = pair.host.transmit().expect("an answer");
    assert!(pair.host.transmit().is_none());
    (transmit.header, String::from_utf8_lossy(&data).replace('\0', " "))
}

fn ask(pair: &mut Pair, data: &[u8]) -> String {
    let (bhs, text) = say(pair, request(true, false, 7, NO_TAG), data);
    let response = TextResponse::parse(&bhs);
    assert_eq!((response.last, response.more, response.ttt), (true, false, NO_TAG));
    text
}

#[track_caller]
fn refused((bhs, _): &(Bhs, String)) {
    assert_eq!(bhs.opcode(), Some(Opcode::Reject));
    assert_eq!(Reject::parse(bhs).reason, RejectReason::Protocol);
}

fn normal() -> Pair {
    let mut pair = Pair::new(&target_setup(), initiator_setup());
    pair.log_in();
    pair
}

fn discovery(portals: usize, max_recv_len: u32) -> Pair {
    let mut target = target_setup();
    target.portals = (0..portals).map(|at| format!("192.0.2.{at}:3260")).collect();
    let mut initiator = initiator::Setup { target_name: None, ..initiator_setup() };
    initiator.wishes.max_recv_len = max_recv_len;
    let mut pair = Pair::new(&target, initiator);
    // The initiator asks by itself; the test does from here on.
    pair.run();
    pair
}

#[test]
fn send_targets_depends_on_the_kind_of_session() {
    // Appendix C: All in discovery, nothing in a normal session, names in both.
    let whole = format!("TargetName={TARGET} TargetAddress=127.0.0.1:3260,1 ");
    let mut pair = normal();
    assert!(ask(&mut pair, b"SendTargets=\0").starts_with(&whole));
    assert_eq!(ask(&mut pair, b"SendTargets=All\0"), "SendTargets=Reject ");
    let own = format!("SendTargets={}\0", TARGET.to_uppercase());
    assert!(ask(&mut pair, own.as_bytes()).starts_with(&whole));
    assert_eq!(ask(&mut pair, b"SendTargets=iqn.2026-01.org.example:other\0"), "");
    let mut pair = discovery(1, 8192);
    assert!(ask(&mut pair, b"SendTargets=All\0").starts_with(&whole));
    assert_eq!(ask(&mut pair, b"SendTargets=\0"), "SendTargets=Reject ");
}

#[test]
fn only_its_own_limit_may_still_change() {
    // Section 13: use of the keys; ALL only for what is declared.
    let mut pair = normal();
    for key in ["MaxBurstLength", "HeaderDigest", "InitialR2T", "ErrorRecoveryLevel", "IFMarker"] {
        assert_eq!(ask(&mut pair, format!("{key}=512\0").as_bytes()), format!("{key}=Reject "));
    }
    assert_eq!(ask(&mut pair, b"X-what=1\0"), "X-what=NotUnderstood ");
    assert_eq!(ask(&mut pair, b"InitiatorAlias=me\0"), "");
    let declare = |len: &str| format!("MaxRecvDataSegmentLength={len}\0").into_bytes();
    assert_eq!(ask(&mut pair, &declare("511")), "MaxRecvDataSegmentLength=Reject ");
    assert_eq!(ask(&mut pair, &declare("1024")), "");
    pair.trace.clear();
    pair.guest.submit(pair.now, command(READ, 0, 4096), &[]);
    let (read, _) = pair.guest.transmit().unwrap();
    pair.host.receive(pair.now, &mut pair.node, &read.header, &[]).unwrap();
    let lens: Vec<_> = std::iter::from_fn(|| pair.host.transmit())
        .map(|(transmit, _)| transmit.header.data_len())
        .collect();
    assert_eq!(lens, [1024; 4]);
}

#[test]
fn a_key_that_comes_twice_is_refused() {
    let mut pair = normal();
    refused(&say(&mut pair, request(true, false, 7, NO_TAG), b"SendTargets=\0SendTargets=\0"));
    assert!(ask(&mut pair, b"SendTargets=\0").starts_with("TargetName="));
}

#[test]
fn a_text_may_come_in_parts() {
    let mut pair = normal();
    let (bhs, empty) = say(&mut pair, request(false, true, 7, NO_TAG), b"SendTa");
    let response = TextResponse::parse(&bhs);
    assert_eq!((response.last, response.more, response.itt), (false, false, 7));
    assert!(response.ttt != NO_TAG && empty.is_empty());
    let (bhs, whole) = say(&mut pair, request(true, false, 7, response.ttt), b"rgets=\0");
    assert!(whole.starts_with("TargetName=") && TextResponse::parse(&bhs).last);
}

#[test]
fn the_target_does_not_end_what_the_initiator_goes_on_with() {
    // Section 11.11.1: F=1 only in answer to F=1.
    let mut pair = normal();
    let (bhs, _) = say(&mut pair, request(false, false, 7, NO_TAG), b"X-a=1\0");
    let first = TextResponse::parse(&bhs);
    assert!(!first.last && !first.more && first.ttt != NO_TAG);
    let (bhs, _) = say(&mut pair, request(true, false, 7, first.ttt), b"");
    assert!(TextResponse::parse(&bhs).last);
}

#[test]
fn a_long_answer_is_asked_for_piece_by_piece() {
    let mut pair = discovery(60, 512);
    let (bhs, mut whole) = say(&mut pair, request(true, false, 7, NO_TAG), b"SendTargets=All\0");
    let mut response = TextResponse::parse(&bhs);
    let mut pieces = 1;
    while !response.last {
        assert!(response.more && bhs.data_len() == 512);
        let (bhs, part) = say(&mut pair, request(true, false, 7, response.ttt), b"");
        response = TextResponse::parse(&bhs);
        whole += &part;
        pieces += 1;
    }
    assert_eq!((whole.matches("TargetAddress=").count(), response.more), (61, false));
    assert_eq!(pieces, whole.len().div_ceil(512));
}

#[test]
fn tags_and_bits_that_do_not_fit_are_refused() {
    let mut pair = discovery(60, 512);
    // C and F together (section 11.10.2).
    refused(&say(&mut pair, request(true, true, 7, NO_TAG), b"SendTargets=All\0"));
    // A tag that was never given.
    refused(&say(&mut pair, request(true, false, 7, 1234), b""));
    let begin = |pair: &mut Pair| {
        let (bhs, _) = say(pair, request(true, false, 7, NO_TAG), b"SendTargets=All\0");
        TextResponse::parse(&bhs).ttt
    };
    // Another task's tag, one that was used already, and data where more is only asked for.
    let ttt = begin(&mut pair);
    refused(&say(&mut pair, request(true, false, 8, ttt), b""));
    let ttt = begin(&mut pair);
    say(&mut pair, request(true, false, 7, ttt), b"");
    refused(&say(&mut pair, request(true, false, 7, ttt), b""));
    let ttt = begin(&mut pair);
    refused(&say(&mut pair, request(true, false, 7, ttt), b"X-a=1\0"));
    // A new request begins anew.
    begin(&mut pair);
    assert_ne!(begin(&mut pair), NO_TAG);
}

#[test]
fn a_text_that_never_ends_ends_the_session() {
    let mut pair = normal();
    let mut ttt = NO_TAG;
    let mut sent = 0;
    let error = loop {
        let data = [b'a'; 4096];
        let mut bhs = request(false, true, 7, ttt).encode().with_data_len(4096);
        bhs.stamp_command(Serial(1), Serial(0));
        match pair.host.receive(pair.now, &mut pair.node, &bhs, &data) {
            Ok(()) => ttt = TextResponse::parse(&pair.host.transmit().unwrap().0.header).ttt,
            Err(error) => break error,
        }
        sent += data.len();
    };
    assert_eq!(sent, text::TEXT_LEN_MAX, "{error}");
}
