use super::*;
use alloc::vec::Vec;

fn answer(negotiation: &mut Negotiation, key: &str, value: &str) -> String {
    let mut out = Vec::new();
    negotiation.answer(key, value, SessionType::Normal, &mut out).unwrap();
    String::from_utf8(out).unwrap().trim_end_matches('\0').into()
}

#[test]
fn results_follow_the_rfc() {
    let mut n = Negotiation::new(Wishes::default());
    for (key, value, expected) in [
        ("HeaderDigest", "None,CRC32C", "HeaderDigest=None"),
        ("DataDigest", "X-other,CRC32C,None", "DataDigest=CRC32C"),
        ("MaxRecvDataSegmentLength", "0x1000", ""),
        ("MaxBurstLength", "16776192", "MaxBurstLength=1048576"),
        ("FirstBurstLength", "4096", "FirstBurstLength=4096"),
        ("InitialR2T", "No", "InitialR2T=No"),
        ("ImmediateData", "Maybe", "ImmediateData=Reject"),
        ("MaxOutstandingR2T", "0", "MaxOutstandingR2T=Reject"),
        ("MaxConnections", "8", "MaxConnections=1"),
        ("DataPDUInOrder", "No", "DataPDUInOrder=Yes"),
        ("ErrorRecoveryLevel", "2", "ErrorRecoveryLevel=0"),
        ("DefaultTime2Wait", "2", "DefaultTime2Wait=2"),
        ("DefaultTime2Retain", "20", "DefaultTime2Retain=0"),
        ("IFMarker", "Yes", "IFMarker=No"),
        ("X-com.example", "1", "X-com.example=NotUnderstood"),
    ] {
        assert_eq!(answer(&mut n, key, value), expected);
    }
    let params = n.params();
    assert_eq!((params.max_send_len, params.first_burst_len), (4096, 4096));
    assert!(params.data_digest && !params.header_digest && !params.initial_r2t);
    assert!(params.immediate_data, "a rejected key keeps its default");
    let again = n.answer("InitialR2T", "No", SessionType::Normal, &mut Vec::new());
    assert_eq!(again, Err(NegotiationError::Repeated("InitialR2T")));
}

#[test]
fn first_burst_never_exceeds_max_burst() {
    let mut n = Negotiation::new(Wishes::default());
    answer(&mut n, "MaxBurstLength", "1024");
    answer(&mut n, "FirstBurstLength", "65536");
    assert_eq!(n.params().first_burst_len, 1024);
}

#[test]
fn digest_policies_meet_or_fail() {
    for (ours, theirs, expected) in [
        (DigestPolicy::Never, "CRC32C,None", Some(false)),
        (DigestPolicy::Never, "CRC32C", None),
        (DigestPolicy::Allowed, "CRC32C,None", Some(true)),
        (DigestPolicy::Required, "None,CRC32C", Some(true)),
        (DigestPolicy::Required, "None", None),
    ] {
        let mut n = Negotiation::new(Wishes { header_digest: ours, ..Wishes::default() });
        let result = n.answer("HeaderDigest", theirs, SessionType::Normal, &mut Vec::new());
        assert_eq!(result.is_ok().then(|| n.params().header_digest), expected, "{theirs}");
    }
}

#[test]
fn an_originator_accepts_only_what_it_offered() {
    let fresh = || {
        let mut n = Negotiation::new(Wishes {
            header_digest: DigestPolicy::Required,
            initial_r2t: true,
            ..Wishes::default()
        });
        n.offer(SessionType::Normal, &mut Vec::new());
        n
    };
    for (key, value, good) in [
        ("MaxBurstLength", "262144", true),
        ("MaxBurstLength", "2097152", false),
        ("MaxBurstLength", "Irrelevant", true),
        ("InitialR2T", "Yes", true),
        ("InitialR2T", "No", false),
        ("HeaderDigest", "CRC32C", true),
        ("HeaderDigest", "None", false),
        ("HeaderDigest", "Reject", false),
        ("DataDigest", "None", true),
        ("DataDigest", "CRC32C,None", false),
        ("MaxRecvDataSegmentLength", "65536", true),
        ("DefaultTime2Wait", "2", true),
        ("ErrorRecoveryLevel", "1", false),
    ] {
        let result = fresh().accept(key, value, &mut Vec::new());
        assert_eq!(result.is_ok(), good, "{key}={value}: {result:?}");
    }
}

#[test]
fn both_sides_reach_the_same_parameters() {
    let mut initiator = Negotiation::new(Wishes { max_burst_len: 300_000, ..Wishes::default() });
    let mut target = Negotiation::new(Wishes { immediate_data: false, ..Wishes::default() });
    let (mut offers, mut answers) = (Vec::new(), Vec::new());
    initiator.offer(SessionType::Normal, &mut offers);
    for (key, value) in text::parse(&offers).unwrap() {
        target.answer(key, value, SessionType::Normal, &mut answers).unwrap();
    }
    target.declare(&mut answers);
    let mut more = Vec::new();
    for (key, value) in text::parse(&answers).unwrap() {
        initiator.accept(key, value, &mut more).unwrap();
    }
    assert!(more.is_empty());
    assert_eq!(initiator.params(), target.params());
    assert_eq!(initiator.params().max_burst_len, 300_000);
    assert!(!initiator.params().immediate_data && initiator.params().data_digest);
}
