//! Every key of RFC 7143, section 13, as the target answers it: one test each, with both sides of
//! its limits.

use netraid_iscsi_proto::{negotiation::Wishes, target};

use crate::{
    harness::{TARGET, target_setup},
    logins::{Hand, INITIATOR},
};

const OPERATIONAL: u8 = 1;
const FULL: u8 = 3;
const NAMES: [(&str, &str); 2] = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
const DISCOVERY: [(&str, &str); 2] = [("InitiatorName", INITIATOR), ("SessionType", "Discovery")];

/// What the target answers to a key in the operational stage; an error is its login status.
fn ask(first: &[(&str, &str)], key: &str, value: &str) -> Result<Option<String>, u16> {
    let mut hand = Hand::new(&target_setup());
    let keys: Vec<_> = first.iter().copied().chain([(key, value)]).collect();
    let answer = hand.say(OPERATIONAL, None, &keys);
    if answer.response.status != 0 {
        return Err(answer.response.status);
    }
    // What the target declares is no answer.
    Ok(answer.value(key).filter(|found| {
        key != "MaxRecvDataSegmentLength" || found == "Reject" || found == "Irrelevant"
    }))
}

#[track_caller]
fn answers(key: &str, cases: &[(&str, Option<&str>)]) {
    for (value, expected) in cases {
        let found = ask(&NAMES, key, value);
        assert_eq!(found, Ok(expected.map(Into::into)), "{key}={value}");
    }
}

/// A number from `low` to `high`, of which the target's wish makes `results`.
#[track_caller]
fn number(key: &str, (low, high): (u64, u64), results: (&str, &str)) {
    let (below, above) = (low.wrapping_sub(1), high + 1);
    answers(
        key,
        &[
            (&low.to_string(), Some(results.0)),
            (&format!("0x{high:x}"), Some(results.1)),
            (&high.to_string(), Some(results.1)),
            (&above.to_string(), Some("Reject")),
            ("ten", Some("Reject")),
            ("", Some("Reject")),
        ],
    );
    if low > 0 {
        answers(key, &[(&below.to_string(), Some("Reject"))]);
    }
}

#[test]
fn header_digest() {
    digest("HeaderDigest");
}

#[test]
fn data_digest() {
    digest("DataDigest");
}

/// Section 13.1: the first of the list that the target takes.
#[track_caller]
fn digest(key: &str) {
    answers(
        key,
        &[
            ("None", Some("None")),
            ("CRC32C", Some("CRC32C")),
            ("CRC32C,None", Some("CRC32C")),
            ("None,CRC32C", Some("None")),
            ("X-other,CRC32C", Some("CRC32C")),
        ],
    );
    assert_eq!(ask(&NAMES, key, "X-other"), Err(0x0200));
}

#[test]
fn max_connections() {
    // Section 13.2.
    number("MaxConnections", (1, 65_535), ("1", "1"));
}

#[test]
fn initiator_r2t_and_immediate_data() {
    // Sections 13.10 (OR) and 13.11 (AND); the target wishes for No and Yes.
    let mixed = [("Yes", Some("Yes")), ("No", Some("No")), ("yes", Some("Reject"))];
    answers("InitialR2T", &mixed);
    answers("ImmediateData", &mixed);
    let wishes = Wishes { initial_r2t: true, immediate_data: false, ..Wishes::default() };
    let mut hand = Hand::new(&target::Setup { wishes, ..target_setup() });
    let keys = [NAMES[0], NAMES[1], ("InitialR2T", "No"), ("ImmediateData", "Yes")];
    let answer = hand.say(OPERATIONAL, None, &keys);
    assert_eq!(answer.value("InitialR2T").as_deref(), Some("Yes"));
    assert_eq!(answer.value("ImmediateData").as_deref(), Some("No"));
}

#[test]
fn max_recv_data_segment_length() {
    // Section 13.12: declared by each side, 512 to 2^24 - 1.
    let key = "MaxRecvDataSegmentLength";
    answers(key, &[("512", None), ("16777215", None)]);
    answers(key, &[("511", Some("Reject")), ("16777216", Some("Reject"))]);
    let mut hand = Hand::new(&target_setup());
    let declared = hand.say(OPERATIONAL, None, &NAMES);
    assert_eq!(declared.value(key).as_deref(), Some("1048576"));
}

#[test]
fn burst_lengths() {
    // Sections 13.13 and 13.14.
    number("MaxBurstLength", (512, 16_777_215), ("512", "1048576"));
    number("FirstBurstLength", (512, 16_777_215), ("512", "262144"));
}

#[test]
fn times_to_wait_and_retain() {
    // Sections 13.15 (the larger one) and 13.16 (the smaller one).
    number("DefaultTime2Wait", (0, 3600), ("0", "3600"));
    number("DefaultTime2Retain", (0, 3600), ("0", "0"));
}

#[test]
fn max_outstanding_r2t() {
    // Section 13.17.
    number("MaxOutstandingR2T", (1, 65_535), ("1", "8"));
}

#[test]
fn data_in_order() {
    // Sections 13.18 and 13.19: Yes wins.
    for key in ["DataPDUInOrder", "DataSequenceInOrder"] {
        answers(key, &[("No", Some("Yes")), ("Yes", Some("Yes")), ("1", Some("Reject"))]);
    }
}

#[test]
fn error_recovery_level() {
    // Section 13.20.
    number("ErrorRecoveryLevel", (0, 2), ("0", "0"));
}

#[test]
fn session_type() {
    // Section 13.21.
    for (value, status) in [("Normal", 0), ("normal", 0x0209), ("Other", 0x0209)] {
        let mut hand = Hand::new(&target_setup());
        let keys = [NAMES[0], NAMES[1], ("SessionType", value)];
        assert_eq!(hand.say(OPERATIONAL, None, &keys).response.status, status, "{value}");
    }
}

#[test]
fn private_and_unknown_keys() {
    // Section 13.22 and 6.2: NotUnderstood, but never to an answer of that kind.
    for key in ["X-com.example.key", "Y-other", "NoSuchKey", "maxburstlength"] {
        answers(key, &[("1", Some("NotUnderstood"))]);
        answers(key, &[("NotUnderstood", None), ("Irrelevant", None), ("Reject", None)]);
    }
}

#[test]
fn task_reporting() {
    // Section 13.23: a list; without agreement RFC3720 holds anyway.
    answers(
        "TaskReporting",
        &[
            ("RFC3720", Some("RFC3720")),
            ("FastAbort,ResponseFence,RFC3720", Some("RFC3720")),
            ("FastAbort", Some("Reject")),
        ],
    );
}

#[test]
fn protocol_level() {
    // Section 13.24: the smaller one, 0 to 31.
    let cases = [("0", "0"), ("1", "1"), ("2", "1"), ("31", "1"), ("32", "Reject")];
    for (value, expected) in cases {
        answers("iSCSIProtocolLevel", &[(value, Some(expected))]);
    }
}

#[test]
fn obsolete_markers() {
    // Section 13.25: No or Reject, and never NotUnderstood.
    for key in ["IFMarker", "OFMarker"] {
        answers(key, &[("Yes", Some("No")), ("No", Some("No"))]);
    }
    for key in ["IFMarkInt", "OFMarkInt"] {
        answers(key, &[("2048~4096", Some("Reject")), ("2048", Some("Reject"))]);
    }
}

#[test]
fn what_a_peer_tells_of_itself() {
    // Sections 13.6, 13.7 and 13.26: declared, not answered, at most 255 bytes.
    for key in ["InitiatorAlias", "TargetAlias", "X#NodeArchitecture"] {
        let (longest, longer) = ("a".repeat(255), "a".repeat(256));
        answers(key, &[("My host", None), (&longest, None), (&longer, Some("Reject"))]);
    }
}

#[test]
fn keys_that_mean_nothing_to_discovery() {
    // Section 13: "Irrelevant when SessionType=Discovery".
    for key in [
        "MaxConnections",
        "InitialR2T",
        "ImmediateData",
        "MaxBurstLength",
        "FirstBurstLength",
        "MaxOutstandingR2T",
        "DataPDUInOrder",
        "DataSequenceInOrder",
        "TaskReporting",
        "iSCSIProtocolLevel",
    ] {
        assert_eq!(ask(&DISCOVERY, key, "1"), Ok(Some("Irrelevant".into())), "{key}");
    }
    assert_eq!(ask(&DISCOVERY, "HeaderDigest", "None"), Ok(Some("None".into())));
    assert_eq!(ask(&DISCOVERY, "ErrorRecoveryLevel", "1"), Ok(Some("0".into())));
}

#[test]
fn a_key_comes_once() {
    // Section 6.1, and 6.3: no renegotiation within a login.
    for key in ["InitialR2T", "MaxRecvDataSegmentLength", "IFMarker", "DefaultTime2Wait"] {
        let mut hand = Hand::new(&target_setup());
        let keys = [NAMES[0], NAMES[1], (key, "1024"), (key, "1024")];
        assert_eq!(hand.say(OPERATIONAL, None, &keys).response.status, 0x0200, "{key}");
        let mut hand = Hand::new(&target_setup());
        assert_eq!(hand.say(OPERATIONAL, None, &keys[..3]).response.status, 0);
        assert_eq!(hand.say(OPERATIONAL, Some(FULL), &keys[2..3]).response.status, 0x0200);
    }
}

#[test]
fn names() {
    // Sections 13.4, 13.5 and 4.2.7.1; login status in 11.13.5.
    let longest = format!("iqn.{}", "a".repeat(219));
    let longer = format!("{longest}a");
    let upper = TARGET.to_uppercase();
    for (initiator, target, status) in [
        (Some(INITIATOR), Some(TARGET), 0),
        (Some(&longest[..]), Some(&upper[..]), 0),
        (Some(&longer[..]), Some(TARGET), 0x0200),
        (Some(""), Some(TARGET), 0x0200),
        (None, Some(TARGET), 0x0207),
        (Some(INITIATOR), None, 0x0207),
        (Some(INITIATOR), Some("iqn.2026-01.org.example:other"), 0x0203),
    ] {
        let mut hand = Hand::new(&target_setup());
        let initiator = initiator.map(|name| ("InitiatorName", name));
        let keys: Vec<_> =
            initiator.into_iter().chain(target.map(|name| ("TargetName", name))).collect();
        assert_eq!(hand.say(OPERATIONAL, None, &keys).response.status, status, "{keys:?}");
    }
}

#[test]
fn who_one_is_does_not_change_within_a_login() {
    let other = [("InitiatorName", "iqn.2026-01.org.example:j"), NAMES[1]];
    for (again, status) in [(NAMES, 0), (other, 0x0200)] {
        let mut hand = Hand::new(&target_setup());
        assert_eq!(hand.say(OPERATIONAL, None, &NAMES).response.status, 0);
        assert_eq!(hand.say(OPERATIONAL, Some(FULL), &again).response.status, status);
    }
}
