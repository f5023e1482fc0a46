//! Our initiator against a target whose every PDU a test writes: what it must refuse, and what it
//! must understand although our own target does not say it.

use std::time::Duration;

use netraid_iscsi_proto::{
    chap::{Algorithm, Credentials, Secret},
    initiator::{Event, LoginError, Mutual, Setup, TaskEnd},
    machine::Fatal,
    pdu::{
        AsyncEvent, AsyncMessage, Bhs, DataIn, LoginResponse, LogoutResponse, LunField, NO_TAG,
        NopIn, Opcode, R2t, ScsiResponse, TextResponse,
    },
    serial::Serial,
    text,
};

use crate::harness::{Guest, READ, WRITE, command, initiator_setup};

const CHALLENGE: [u8; 32] = [5; 32];

/// The target, as a test plays it.
struct Liar {
    guest: Guest,
    stat_sn: Serial,
    /// ExpCmdSN and MaxCmdSN.
    window: (Serial, Serial),
}

impl Liar {
    fn new(setup: Setup) -> Self {
        let window = (Serial(1), Serial(33));
        Self { guest: Guest::new(setup), stat_sn: Serial(u32::MAX), window }
    }

    /// The initiator's next PDU.
    fn receive(&mut self) -> (Bhs, Vec<u8>) {
        let (transmit, data) = self.guest.transmit().expect("nothing was sent");
        (transmit.header, data)
    }

    /// Sends a PDU with the next status number.
    fn send(&mut self, mut bhs: Bhs, data: &[u8]) -> Result<(), Fatal> {
        bhs.stamp_stat_sn(self.stat_sn);
        self.stat_sn = self.stat_sn.next();
        self.send_as_is(bhs, data)
    }

    fn send_as_is(&mut self, mut bhs: Bhs, data: &[u8]) -> Result<(), Fatal> {
        bhs.stamp_window(self.window.0, self.window.1);
        let bhs = bhs.with_data_len(u32::try_from(data.len()).unwrap());
        self.guest.receive(Duration::ZERO, &bhs, data)
    }

    fn login_response(&mut self, stages: Option<(u8, u8)>, status: u16, keys: &[(&str, &str)]) {
        let (request, _) = self.receive();
        let current_stage = request.0[1] >> 2 & 3;
        let mut data = Vec::new();
        keys.iter().for_each(|(key, value)| text::push(&mut data, key, value));
        let response = LoginResponse {
            transit: stages.is_some(),
            more: false,
            current_stage: stages.map_or(current_stage, |(current, _)| current),
            next_stage: stages.map_or(0, |(_, next)| next),
            version_active: 0,
            isid: [0x80; 6],
            tsih: 1,
            itt: request.itt(),
            status,
        };
        self.send(response.encode(), &data).unwrap();
    }

    fn logged_in(setup: Setup) -> Self {
        let mut liar = Self::new(setup);
        liar.login_response(Some((1, 3)), 0, &[("TargetPortalGroupTag", "7")]);
        assert_eq!(liar.guest.events, [Event::LoggedIn]);
        liar.guest.events.clear();
        liar
    }
}

fn mutual_setup() -> Setup {
    let secret = |bytes: &[u8]| Secret::new(bytes).unwrap();
    Setup {
        chap: Some(Credentials { user: "joe".into(), secret: secret(b"secret of joe") }),
        mutual: Some(Mutual {
            user: Some("disk".into()),
            secret: secret(b"secret of disk"),
            identifier: 9,
            challenge: CHALLENGE,
        }),
        algorithms: &[Algorithm::Md5],
        ..initiator_setup()
    }
}

/// A login up to the initiator's answer, whose keys are returned.
fn challenged(challenge: &str) -> (Liar, Vec<u8>) {
    let mut liar = Liar::new(mutual_setup());
    liar.login_response(None, 0, &[("AuthMethod", "CHAP")]);
    liar.login_response(None, 0, &[("CHAP_A", "5"), ("CHAP_I", "1"), ("CHAP_C", challenge)]);
    let next = liar.guest.machine.poll_transmit();
    let sent = match next.map(|transmit| transmit.payload) {
        Some(netraid_iscsi_proto::machine::Payload::Control(data)) => data,
        other => {
            assert!(other.is_none(), "{other:?}");
            Vec::new()
        }
    };
    (liar, sent)
}

fn answer(liar: &mut Liar, keys: &[(&str, &str)]) {
    let mut data = Vec::new();
    keys.iter().for_each(|(key, value)| text::push(&mut data, key, value));
    let response = LoginResponse {
        transit: true,
        more: false,
        current_stage: 0,
        next_stage: 1,
        version_active: 0,
        isid: [0x80; 6],
        tsih: 0,
        itt: 0,
        status: 0,
    };
    liar.send(response.encode(), &data).unwrap();
}

fn proof(secret: &[u8]) -> String {
    let secret = Secret::new(secret).unwrap();
    text::to_hex(&Algorithm::Md5.answer(9, &secret, &CHALLENGE))
}

/// RFC 7143, section 12.1.3: the target proves itself to an initiator that sends a challenge.
#[test]
fn a_target_that_proves_itself_is_taken() {
    let (mut liar, sent) = challenged("0xaabbcc");
    let pairs = text::parse(&sent).unwrap();
    assert!(pairs.contains(&("CHAP_I", "9")), "{pairs:?}");
    assert!(pairs.contains(&("CHAP_C", text::to_hex(&CHALLENGE).as_str())), "{pairs:?}");
    answer(&mut liar, &[("CHAP_N", "disk"), ("CHAP_R", &proof(b"secret of disk"))]);
    liar.login_response(Some((1, 3)), 0, &[]);
    assert_eq!(liar.guest.events, [Event::LoggedIn]);
}

#[test]
fn a_target_that_cannot_prove_itself_is_refused() {
    let right = proof(b"secret of disk");
    let wrong = proof(b"secret of none");
    for keys in [
        &[][..],
        &[("CHAP_N", "disk"), ("CHAP_R", &wrong)],
        &[("CHAP_N", "disk"), ("CHAP_R", "")],
        &[("CHAP_N", "other"), ("CHAP_R", &right)],
        &[("CHAP_R", &right)],
    ] {
        let (mut liar, _) = challenged("0xaabbcc");
        answer(&mut liar, keys);
        let refused =
            matches!(liar.guest.events[..], [Event::LoginFailed(LoginError::Unproven(_))]);
        assert!(refused, "{keys:?}: {:?}", liar.guest.events);
    }
}

/// RFC 7143, section 9.2.1: a challenge that comes back is an attempt at reflection.
#[test]
fn this_sides_own_challenge_is_not_answered() {
    let (liar, sent) = challenged(&text::to_hex(&CHALLENGE));
    let refused = matches!(liar.guest.events[..], [Event::LoginFailed(LoginError::Unproven(_))]);
    assert!(refused && sent.is_empty(), "{:?}", liar.guest.events);
}

#[test]
fn who_wants_a_proof_does_not_go_without() {
    let mut liar = Liar::new(mutual_setup());
    let (_, sent) = {
        let (transmit, data) = liar.guest.transmit().unwrap();
        (transmit, data)
    };
    assert!(text::parse(&sent).unwrap().contains(&("AuthMethod", "CHAP")));
    answer(&mut liar, &[("AuthMethod", "None")]);
    let refused = matches!(liar.guest.events[..], [Event::LoginFailed(LoginError::Unasked)]);
    assert!(refused, "{:?}", liar.guest.events);
}

/// RFC 7143, section 11.13.5: status 0x0101 is temporary, 0x0102 permanent.
#[test]
fn a_redirection_tells_where_and_for_how_long() {
    for (status, permanent) in [(0x0101, false), (0x0102, true)] {
        let mut liar = Liar::new(initiator_setup());
        liar.login_response(None, status, &[("TargetAddress", "192.0.2.9:3261,1")]);
        let address = "192.0.2.9:3261,1".to_owned();
        let moved = LoginError::Moved { address, permanent };
        assert_eq!(liar.guest.events, [Event::LoginFailed(moved)]);
    }
}

#[test]
fn the_portal_group_is_known() {
    let liar = Liar::logged_in(initiator_setup());
    assert_eq!(liar.guest.machine.portal_group(), Some(7));
    let mut silent = Liar::new(initiator_setup());
    silent.login_response(Some((1, 3)), 0, &[]);
    assert_eq!(silent.guest.machine.portal_group(), None);
}

fn response(itt: u32) -> Bhs {
    ScsiResponse {
        overflow: false,
        underflow: false,
        response: 0,
        status: 0,
        itt,
        exp_data_sn: 0,
        residual: 0,
    }
    .encode()
}

/// RFC 7143, section 4.2.2.2: a gap means a lost response.
#[test]
fn status_numbers_have_no_gaps() {
    for (skip, good) in [(0, true), (1, false), (u32::MAX, false)] {
        let mut liar = Liar::logged_in(initiator_setup());
        liar.guest.submit(Duration::ZERO, command(9, 0, 0), &[]);
        let (request, _) = liar.receive();
        liar.stat_sn = Serial(liar.stat_sn.0.wrapping_add(skip));
        let end = liar.send(response(request.itt()), &[]);
        assert_eq!(end.is_ok(), good, "{skip}: {end:?}");
        assert_eq!(liar.guest.ends.len(), usize::from(good));
    }
}

/// A ping of the target takes no status number, and is answered with its tag and data.
#[test]
fn pings_are_answered_without_taking_a_number() {
    let mut liar = Liar::logged_in(initiator_setup());
    let mut ping = NopIn { lun: LunField::from_number(0), itt: NO_TAG, ttt: 77 }.encode();
    ping.stamp_stat_sn(liar.stat_sn);
    liar.send_as_is(ping, b"anybody?").unwrap();
    let (pong, data) = liar.receive();
    assert_eq!((pong.opcode(), pong.itt()), (Some(Opcode::NopOut), NO_TAG));
    assert_eq!((&pong.0[20..24], &data[..]), (&[0, 0, 0, 77][..], &b"anybody?"[..]));
    liar.guest.submit(Duration::ZERO, command(9, 0, 0), &[]);
    let (request, _) = liar.receive();
    liar.send(response(request.itt()), &[]).unwrap();
    assert_eq!(liar.guest.ends.len(), 1);
}

/// RFC 7143, sections 11.8.2 and 13.19: R2Ts are numbered, and ask for sequences in order.
#[test]
fn r2ts_come_in_order() {
    let ask = |itt, r2t_sn, offset, len, ttt| {
        R2t { lun: LunField::from_number(0), itt, ttt, r2t_sn, offset, len }.encode()
    };
    let wishes = netraid_iscsi_proto::negotiation::Wishes {
        initial_r2t: true,
        immediate_data: false,
        ..Default::default()
    };
    for (sn, offset, ttt, good) in [
        (1, 512, 1, true),
        (0, 512, 1, false),
        (2, 512, 1, false),
        (1, 0, 1, false),
        (1, 1024, 1, false),
        (1, 512, NO_TAG, false),
    ] {
        let setup = Setup { wishes: wishes.clone(), ..initiator_setup() };
        let mut liar = Liar::new(setup);
        let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
        liar.login_response(Some((1, 3)), 0, &keys);
        liar.guest.submit(Duration::ZERO, command(WRITE, 0, 4096), &[3; 4096]);
        let (request, _) = liar.receive();
        liar.send_as_is(ask(request.itt(), 0, 0, 512, 1), &[]).unwrap();
        let (first, data) = liar.receive();
        assert_eq!((first.opcode(), data.len()), (Some(Opcode::DataOut), 512));
        let end = liar.send_as_is(ask(request.itt(), sn, offset, 512, ttt), &[]);
        assert_eq!(end.is_ok(), good, "{sn} {offset} {ttt}: {end:?}");
        assert_eq!(liar.guest.transmit().is_some(), good);
    }
}

/// RFC 7143, section 11.9.1: whatever way a target announces its going, no command is begun any
/// more, those under way end, and the session is left in order.
#[test]
fn a_target_that_goes_away_is_left_in_order() {
    for event in
        [AsyncEvent::LogoutRequested, AsyncEvent::ConnectionDropped, AsyncEvent::SessionDropped]
    {
        let mut liar = Liar::logged_in(initiator_setup());
        liar.guest.submit(Duration::ZERO, command(9, 0, 0), &[]);
        let (request, _) = liar.receive();
        let lun = LunField::from_number(0);
        let message = AsyncMessage { event, lun, parameter1: 0, parameter2: 2, parameter3: 3 };
        liar.send(message.encode(), &[]).unwrap();
        assert_eq!(liar.guest.events, [Event::Ending]);
        assert_eq!(liar.guest.machine.capacity(), 0);
        assert!(liar.guest.transmit().is_none(), "a command is still under way");
        liar.send(response(request.itt()), &[]).unwrap();
        assert_eq!(liar.receive().0.opcode(), Some(Opcode::LogoutRequest));
    }
}

/// RFC 7143, section 11.15: a target that answers a logout that nobody asked for is not understood,
/// and the session, whose commands may run on, has not ended in order.
#[test]
fn a_logout_that_was_not_asked_for_is_no_end_in_order() {
    for (asks, itt, good) in [(true, None, true), (true, Some(7), false), (false, None, false)] {
        let mut liar = Liar::logged_in(initiator_setup());
        let mut asked = 0xff02;
        if asks {
            liar.guest.machine.logout(Duration::ZERO);
            asked = liar.receive().0.itt();
        }
        let itt = itt.unwrap_or(asked);
        let answer = LogoutResponse { response: 0, itt, time2wait_s: 0, time2retain_s: 0 };
        let end = liar.send(answer.encode(), &[]);
        assert_eq!(end.is_ok(), good, "{asks} {itt}: {end:?}");
        assert_eq!(liar.guest.events.contains(&Event::LoggedOut), good);
    }
}

/// RFC 7143, section 11.11: a list of targets comes only to who asked for one, once.
#[test]
fn a_text_that_was_not_asked_for_finds_no_target() {
    let answer = |itt| TextResponse { last: true, more: false, itt, ttt: NO_TAG }.encode();
    let list = b"TargetName=iqn.2026-01.org.example:other\0";
    let mut normal = Liar::logged_in(initiator_setup());
    assert!(matches!(normal.send(answer(0xff03), list), Err(Fatal::Protocol(_))));
    assert!(normal.guest.events.is_empty());
    let discovery = Setup { target_name: None, ..initiator_setup() };
    let mut liar = Liar::logged_in(discovery);
    let (request, _) = liar.receive();
    assert_eq!(request.opcode(), Some(Opcode::TextRequest));
    liar.send(answer(request.itt()), list).unwrap();
    assert!(matches!(liar.guest.events.last(), Some(Event::Found(found)) if found.len() == 1));
    assert!(matches!(liar.send(answer(request.itt()), list), Err(Fatal::Protocol(_))));
}

/// What names no task of this session changes nothing.
#[test]
fn answers_to_nobody_are_ignored() {
    let mut liar = Liar::logged_in(initiator_setup());
    liar.guest.submit(Duration::ZERO, command(WRITE, 0, 4096), &[3; 4096]);
    let (request, _) = liar.receive();
    let other = request.itt() ^ 0x0001_0000;
    let lun = LunField::from_number(0);
    let r2t = R2t { lun, itt: other, ttt: 1, r2t_sn: 0, offset: 0, len: 512 };
    liar.send_as_is(r2t.encode(), &[]).unwrap();
    liar.send(response(other), &[]).unwrap();
    assert!(liar.guest.ends.is_empty() && liar.guest.transmit().is_none());
    liar.send(response(request.itt()), &[]).unwrap();
    assert_eq!(liar.guest.ends.len(), 1);
}

/// RFC 7143, sections 11.7.5, 11.7.4 and 13.18: Data-In is numbered, comes in order, and brings no
/// more than was expected.
#[test]
fn data_in_comes_in_order() {
    for (data_sn, offset, len, good) in [
        (1, 512, 512, true),
        (1, 512, 3584, true),
        (0, 512, 512, false),
        (2, 512, 512, false),
        (1, 0, 512, false),
        (1, 1024, 512, false),
        (1, 512, 3585, false),
    ] {
        let mut liar = Liar::logged_in(initiator_setup());
        liar.guest.submit(Duration::ZERO, command(READ, 0, 4096), &[]);
        let (request, _) = liar.receive();
        let pdu = |data_sn, offset| DataIn {
            last: false,
            has_status: false,
            overflow: false,
            underflow: false,
            status: 0,
            itt: request.itt(),
            data_sn,
            offset,
            residual: 0,
        };
        liar.send_as_is(pdu(0, 0).encode(), &[1; 512]).unwrap();
        let end = liar.send_as_is(pdu(data_sn, offset).encode(), &vec![2; len]);
        assert_eq!(end.is_ok(), good, "{data_sn} {offset} {len}: {end:?}");
    }
}

/// RFC 7143, section 13.12: a data segment is at most as long as this side declared.
#[test]
fn a_segment_is_as_long_as_was_declared_at_most() {
    for (len, good) in [(512, true), (513, false)] {
        let mut setup = initiator_setup();
        setup.wishes.max_recv_len = 512;
        let mut liar = Liar::logged_in(setup);
        let ping = NopIn { lun: LunField::from_number(0), itt: NO_TAG, ttt: 77 }.encode();
        let end = liar.send_as_is(ping, &vec![1; len]);
        assert_eq!(end.is_ok(), good, "{len}: {end:?}");
    }
}

/// RFC 7143, section 11.4.7: sense data is as long as it says, and no longer than it came.
#[test]
fn sense_data_is_no_longer_than_it_came() {
    for (segment, sense) in [
        (&[0, 3, 0x70, 0, 5, 9][..], &[0x70, 0, 5][..]),
        (&[0xff, 0xff, 0x70, 0, 5], &[0x70, 0, 5]),
        (&[0, 0, 0x70], &[]),
        (&[0], &[]),
        (&[], &[]),
    ] {
        let mut liar = Liar::logged_in(initiator_setup());
        liar.guest.submit(Duration::ZERO, command(9, 0, 0), &[]);
        let (request, _) = liar.receive();
        let mut check = response(request.itt());
        check.0[3] = 2;
        liar.send(check, segment).unwrap();
        let TaskEnd::Status { status, sense: found, .. } = &liar.guest.ends[0].1 else { panic!() };
        assert_eq!((*status, &found[..]), (2, sense), "{segment:?}");
    }
}

/// RFC 7143, section 4.2.2.1: commands wait for the window, which never moves back; what is
/// immediate does not wait.
#[test]
fn commands_wait_for_the_window() {
    let first = Serial(initiator_setup().first_cmd_sn);
    let mut liar = Liar::new(initiator_setup());
    liar.window = (first, first.plus(1));
    liar.login_response(Some((1, 3)), 0, &[]);
    for _ in 0..2 {
        assert!(liar.guest.machine.capacity() > 0);
        liar.guest.submit(Duration::ZERO, command(9, 0, 0), &[]);
    }
    assert_eq!(liar.guest.machine.capacity(), 0, "two were let in");
    let requests = [liar.receive().0, liar.receive().0];
    let ping = NopIn { lun: LunField::from_number(0), itt: NO_TAG, ttt: 77 };
    for (window, capacity) in [
        // Closed, older than what was told, and one that contradicts itself.
        ((first.plus(2), first.plus(1)), 0),
        ((first, first), 0),
        ((first.plus(9), first.plus(5)), 0),
        ((first.plus(2), first.plus(2)), 1),
    ] {
        liar.window = window;
        let mut asked = ping.encode();
        asked.stamp_stat_sn(liar.stat_sn);
        liar.send_as_is(asked, &[]).unwrap();
        assert_eq!(liar.receive().0.opcode(), Some(Opcode::NopOut), "immediate");
        assert_eq!(liar.guest.machine.capacity(), capacity, "{window:?}");
    }
    liar.guest.submit(Duration::ZERO, command(9, 0, 0), &[]);
    assert_eq!(liar.receive().0.cmd_sn(), requests[1].cmd_sn().next());
}
