use super::*;
use proptest::prelude::*;
use std::{format, vec};

const MEDIATOR: MediatorId = MediatorId([1; 16]);
const AGENT: AgentId = AgentId([2; 16]);

fn ramp() -> [u8; KEY_LEN] {
    core::array::from_fn(|at| u8::try_from(at).unwrap())
}

fn held(id: u32, from: u64, until: u64) -> Held<RootKey> {
    let key = RootKey::new(&[u8::try_from(id).unwrap(); KEY_LEN]);
    Held { id: KeyId(id), from: Moment(from), until: Moment(until), key }
}

#[test]
fn macs_and_derived_keys_are_those_that_others_compute() {
    // RFC 4231, test case 2: a shorter key is one with zeros behind it.
    let mut jefe = [0; KEY_LEN];
    jefe[..4].copy_from_slice(b"Jefe");
    let mac = Key::new(&jefe).mac(&[b"what do ya ", b"want for nothing?"]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&*mac), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    // Computed with Python's hmac.
    let key = RootKey::new(&ramp()).of_agent(MEDIATOR, AGENT, KeyId(7));
    assert_eq!(hex(&*key.0), "7cf2376e67f7cc5ed8ce0b86db29ccf6d2aa02e62280290e8d299320ff2fc3aa");
}

#[test]
fn each_agent_mediator_and_number_has_a_key_of_its_own() {
    let root = RootKey::new(&ramp());
    let mut keys = vec![root.of_agent(MEDIATOR, AGENT, KeyId(1))];
    keys.push(root.of_agent(MEDIATOR, AGENT, KeyId(2)));
    keys.push(root.of_agent(MEDIATOR, AgentId([3; 16]), KeyId(1)));
    keys.push(root.of_agent(MediatorId([3; 16]), AGENT, KeyId(1)));
    keys.push(RootKey::new(&[9; KEY_LEN]).of_agent(MEDIATOR, AGENT, KeyId(1)));
    for (at, key) in keys.iter().enumerate() {
        assert!(keys[..at].iter().all(|other| other != key), "{at}");
        assert!(*key != root.0);
    }
}

#[test]
fn the_newest_signs_once_it_has_begun_and_older_ones_verify_until_they_end() {
    let mut ring = Ring::default();
    for (id, from, until) in [(1, 0, 30), (2, 20, 50)] {
        ring.add(held(id, from, until)).unwrap();
    }
    let signer = |at| ring.signer(Moment(at)).map(|held| held.id.0);
    let signers = [0, 19, 20, 29, 49, 50].map(signer);
    assert_eq!(signers, [Some(1), Some(1), Some(2), Some(2), Some(2), None]);
    assert!(ring.verifier(KeyId(1), Moment(29)).is_ok());
    let ended = KeyFault::Ended { id: KeyId(1), until: Moment(30) };
    assert_eq!(ring.verifier(KeyId(1), Moment(30)), Err(ended));
    // A signer whose clock is ahead is understood.
    assert!(ring.verifier(KeyId(2), Moment(0)).is_ok());
    assert_eq!(ring.verifier(KeyId(3), Moment(0)), Err(KeyFault::Unknown(KeyId(3))));
    ring.prune(Moment(30));
    assert_eq!(ring.held().len(), 1);
}

#[test]
fn a_ring_takes_newer_keys_only_and_none_twice() {
    let mut ring = Ring::default();
    ring.add(held(2, 0, 30)).unwrap();
    assert_eq!(ring.add(held(2, 0, 30)), Ok(()));
    assert_eq!(ring.add(held(2, 0, 31)), Err(KeyError::Differs(KeyId(2))));
    let order = |id| Err(KeyError::Order { id: KeyId(id), last: KeyId(2) });
    assert_eq!(ring.add(held(1, 0, 30)), order(1));
    assert_eq!(ring.add(held(3, 30, 30)), Err(KeyError::Window(KeyId(3))));
    assert_eq!(ring.held().len(), 1);
    // A number that was given away does not come again, also once its key is gone.
    assert!(ring.remove(KeyId(2)) && !ring.remove(KeyId(2)));
    assert_eq!(ring.add(held(2, 0, 30)), order(2));
    let mut ring = Ring::<RootKey>::restore(&ring.expose()).unwrap();
    assert_eq!(ring.rotate(Moment(5), &Rotation::default(), &[1; KEY_LEN]), Ok(KeyId(3)));
    for id in 4..=10 {
        ring.add(held(id, 0, 30)).unwrap();
    }
    assert_eq!(ring.add(held(11, 0, 30)), Err(KeyError::Full));
}

#[test]
fn a_key_that_was_taken_back_is_gone_at_the_agent_too() {
    let rotation = Rotation { every_ms: 100, lead_ms: 10, term_ms: 50 };
    let mut roots = Ring::default();
    roots.rotate(Moment(0), &rotation, &[1; KEY_LEN]).unwrap();
    roots.rotate(Moment(90), &rotation, &[2; KEY_LEN]).unwrap();
    let mut keys = Keyring::default();
    keys.set(MEDIATOR, roots.of_agent(MEDIATOR, AGENT)).unwrap();
    assert!(roots.remove(KeyId(1)));
    // Nothing signs any more, so that the next one begins at once.
    assert_eq!(roots.signer(Moment(95)), None);
    assert_eq!(roots.rotate(Moment(95), &rotation, &[3; KEY_LEN]), Ok(KeyId(3)));
    assert_eq!(roots.signer(Moment(95)).map(|held| held.id), Some(KeyId(3)));
    keys.set(MEDIATOR, roots.of_agent(MEDIATOR, AGENT)).unwrap();
    let unknown = KeyFault::Unknown(KeyId(1));
    assert_eq!(keys.verifier(MEDIATOR, KeyId(1), Moment(95)), Err(unknown));
    assert!(keys.verifier(MEDIATOR, KeyId(3), Moment(95)).is_ok());
    let other = MediatorId([9; 16]);
    assert_eq!(keys.verifier(other, KeyId(3), Moment(95)), Err(KeyFault::Mediator(other)));
    assert!(keys.remove(MEDIATOR) && keys.rings().next().is_none());
}

#[test]
fn a_new_key_begins_after_the_lead_or_when_no_other_signs() {
    let rotation = Rotation { every_ms: 100, lead_ms: 10, term_ms: 50 };
    for (late_ms, begins) in [(0, 110), (45, 155), (55, 160), (60, 160), (70, 170)] {
        let mut roots = Ring::default();
        roots.rotate(Moment(0), &rotation, &[1; KEY_LEN]).unwrap();
        assert_eq!(roots.next_timeout(&rotation), Moment(100));
        let last = Moment(100).after_ms(late_ms);
        roots.rotate(last, &rotation, &[2; KEY_LEN]).unwrap();
        let new = roots.held().last().unwrap();
        assert_eq!((new.from, new.until), (Moment(begins), Moment(begins + 160)), "{late_ms}");
        // In time, there is a key for a full term at every moment.
        let full = |now: u64| roots.signer(Moment(now)).is_some_and(|key| key.until.0 >= now + 50);
        assert!(late_ms > 0 || (100..=220).all(full));
    }
}

#[test]
fn an_agent_works_for_so_many_mediators() {
    let mut keys = Keyring::default();
    for number in 0..MEDIATORS_MAX {
        let mediator = MediatorId([u8::try_from(number).unwrap(); 16]);
        keys.set(mediator, Ring::default()).unwrap();
    }
    assert_eq!(keys.set(MediatorId([200; 16]), Ring::default()), Err(KeyError::Mediators));
    assert_eq!(keys.set(MediatorId([0; 16]), Ring::default()), Ok(()));
}

#[test]
fn secrets_are_in_what_is_exposed_and_nowhere_else() {
    let mut roots = Ring::default();
    roots
        .add(Held { id: KeyId(4), from: Moment(1), until: Moment(2), key: RootKey::new(&ramp()) })
        .unwrap();
    let stored = roots.expose();
    let json = serde_json::to_string(&stored).unwrap();
    let secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let wanted = format!(
        r#"{{"version":1,"kind":"root","last":4,"keys":[{{"id":4,"from":1,"until":2,"secret":"{secret}"}}]}}"#
    );
    assert_eq!(json, wanted);
    let read: StoredRing = serde_json::from_str(&json).unwrap();
    assert_eq!(Ring::restore(&read).as_ref(), Ok(&roots));
    let agent = roots.of_agent(MEDIATOR, AGENT);
    assert_eq!(Ring::<Key>::restore(&agent.expose()).as_ref(), Ok(&agent));
    for shown in [format!("{stored:?}"), format!("{roots:?}"), format!("{agent:?}")] {
        assert!(shown.contains("***") && !shown.contains("AAEC"), "{shown}");
        assert!(!shown.contains("1, 2, 3") && !shown.contains("010203"), "{shown}");
    }
}

#[test]
fn a_stored_ring_is_read_whole_or_not_at_all() {
    let mut roots = Ring::default();
    roots.add(held(1, 0, 30)).unwrap();
    roots.add(held(2, 0, 30)).unwrap();
    let json = serde_json::to_string(&roots.expose()).unwrap();
    let read = |from: &str, to: &str| {
        assert!(json.contains(from));
        let stored: StoredRing = serde_json::from_str(&json.replace(from, to)).unwrap();
        Ring::<RootKey>::restore(&stored).map(|ring| ring.held().len())
    };
    assert_eq!(read("root", "root"), Ok(2));
    assert_eq!(read(r#""version":1"#, r#""version":2"#), Err(KeyError::Version(2)));
    assert_eq!(read("root", "agent"), Err(KeyError::Kind(Kind::Agent)));
    assert_eq!(
        read(r#""id":1"#, r#""id":0"#),
        Err(KeyError::Order { id: KeyId(0), last: KeyId(0) })
    );
    assert_eq!(
        read(r#""id":2"#, r#""id":1"#),
        Err(KeyError::Order { id: KeyId(1), last: KeyId(1) })
    );
    assert_eq!(
        read(r#""last":2"#, r#""last":1"#),
        Err(KeyError::Order { id: KeyId(2), last: KeyId(1) })
    );
    assert_eq!(read(r#""from":0"#, r#""from":30"#), Err(KeyError::Window(KeyId(1))));
    for wrong in [
        "",
        "AAEC",
        "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJ",
        "!gICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI",
    ] {
        let right = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI";
        assert_eq!(read(right, wrong), Err(KeyError::Secret(KeyId(2))), "{wrong}");
    }
    assert!(serde_json::from_str::<StoredRing>(&json.replacen('{', r#"{"more":1,"#, 1)).is_err());
}

proptest! {
    /// An agent that gets each ring within the lead verifies all that is signed, to its end, and
    /// there is a key that signs at every moment, also when the mediator is late by a term.
    #[test]
    fn rotation_leaves_no_gap(
        every_ms in 1_u64..100,
        lead in 0_u64..=100,
        term in 1_u64..=300,
        steps in prop::collection::vec((0_u64..100, 0_u64..=100), 1..12),
    ) {
        let (lead_ms, term_ms) = (every_ms * lead / 100, (every_ms * term / 100).max(1));
        let rotation = Rotation { every_ms, lead_ms, term_ms };
        let (mut roots, mut keys) = (Ring::default(), Keyring::default());
        let mut signed: Vec<(KeyId, Moment)> = Vec::new();
        let mut now = Moment(1000);
        let mut pass = |roots: &Ring<RootKey>, keys: &Keyring, now: &mut Moment, to: Moment| {
            while *now < to {
                let signer = roots.signer(*now).expect("somebody signs at every moment");
                signed.push((signer.id, now.after_ms(term_ms).min(signer.until)));
                signed.retain(|(_, until)| *now < *until);
                for (id, _) in &signed {
                    assert!(keys.verifier(MEDIATOR, *id, *now).is_ok(), "key {id} at {now:?}");
                }
                *now = now.after_ms(1);
            }
        };
        for (number, (late, part)) in steps.into_iter().enumerate() {
            if number > 0 {
                let due = roots.next_timeout(&rotation).after_ms(late.min(term_ms));
                pass(&roots, &keys, &mut now, due);
            }
            roots.rotate(now, &rotation, &[u8::try_from(number).unwrap(); KEY_LEN]).unwrap();
            let arrives = now.after_ms(if number > 0 { lead_ms * part / 100 } else { 0 });
            pass(&roots, &keys, &mut now, arrives);
            keys.set(MEDIATOR, roots.of_agent(MEDIATOR, AGENT)).unwrap();
        }
    }
}

#[test]
fn a_mark_tells_rings_apart_also_where_numbers_are_alike() {
    let ring = |held: &[Held<RootKey>]| {
        let mut ring = Ring::default();
        held.iter().for_each(|held| ring.add(held.clone()).unwrap());
        ring.of_agent(MEDIATOR, AGENT)
    };
    let other_key = Held { key: RootKey::new(&[99; KEY_LEN]), ..held(2, 20, 50) };
    let rings = [
        ring(&[]),
        ring(&[held(1, 0, 30)]),
        ring(&[held(2, 20, 50)]),
        ring(&[held(1, 0, 30), held(2, 20, 50)]),
        ring(&[held(1, 0, 30), held(2, 21, 50)]),
        ring(&[held(1, 0, 30), held(2, 20, 51)]),
        ring(&[held(1, 0, 30), other_key]),
    ];
    for (at, one) in rings.iter().enumerate() {
        assert!(rings[..at].iter().all(|other| other.mark() != one.mark()), "{at}");
        assert_eq!(Ring::<Key>::restore(&one.expose()).unwrap().mark(), one.mark());
    }
    assert_eq!(rings[0].mark(), "");
}
