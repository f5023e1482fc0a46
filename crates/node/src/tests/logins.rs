//! Logins that are judged.

use super::*;
use crate::Entry;
use netraid_iscsi_proto::target::Standing;

const REFUSED: u16 = 0x0201;
const OUT_OF_RESOURCES: u16 = 0x0302;

/// What is said of a login that has given its proof.
fn judged(entry: Entry) -> Session {
    let site = Site::new();
    let setup = Setup { chap: vec![credentials()], asks_standing: true, ..setup() };
    let mut session = Session::connect(&site, setup);
    session.outside.entry = entry;
    session.prove();
    session
}

fn status(session: &Session) -> Option<u16> {
    session.login.as_ref().map(|login| login.status)
}

#[test]
fn a_login_is_let_in_or_refused_by_whoever_judges() {
    for (entry, expected) in [
        (Entry::Granted(Standing::default()), 0),
        (Entry::Refused, REFUSED),
        (Entry::Exhausted, OUT_OF_RESOURCES),
    ] {
        assert_eq!(status(&judged(entry)), Some(expected), "{entry:?}");
    }
}

#[test]
fn a_login_waits_until_it_is_known_whether_it_goes_on() {
    for (entry, expected) in [
        (Entry::Granted(Standing::default()), 0),
        (Entry::Refused, REFUSED),
        (Entry::Exhausted, OUT_OF_RESOURCES),
    ] {
        let mut session = judged(Entry::Later);
        assert_eq!(status(&session), None);
        session.wake();
        assert_eq!(status(&session), None, "it is still not known");
        session.outside.entry = entry;
        session.wake();
        assert_eq!(status(&session), Some(expected), "{entry:?}");
    }
}

#[test]
fn a_discovery_session_is_not_known_to_units() {
    let site = Site::new();
    let mut session = Session::connect(&site, setup());
    let mut keys = Vec::new();
    text::push(&mut keys, "InitiatorName", "iqn.2026-01.org.example:i");
    text::push(&mut keys, "SessionType", "Discovery");
    session.login_pdu(1, (true, 1, 3), &keys);
    assert_eq!(status(&session), Some(0));
    let nexus = netraid_scsi::NexusId(session.outside.connection.0);
    let lun = LunField::from_number(0).0;
    let (_, step) =
        site.units.borrow_mut().handle_command(nexus, lun, &build::test_unit_ready(), 0);
    let netraid_scsi::Step::Respond(response) = step else { panic!("{step:?}") };
    assert_eq!(response.status as u8, BUSY, "of a nexus that is not known");
}
