use super::*;

fn admit(node: &mut Node, connection: ConnectionId, isid: u8, tsih: u16) -> Admission {
    ask(node, connection, isid, (tsih, 0), false)
}

fn ask(
    node: &mut Node,
    connection: ConnectionId,
    isid: u8,
    (tsih, cid): (u16, u16),
    waited: bool,
) -> Admission {
    let (kind, isid) = (SessionType::Normal, [isid; 6]);
    let (initiator, realm, party) = ("iqn.i", Realm::HOME, None);
    let applicant = Applicant { connection, kind, initiator, realm, party, isid, tsih, cid };
    node.admit(Duration::ZERO, &applicant, waited)
}

fn link(host: u8) -> Link {
    Link::new(([192, 0, 2, host], 1).into(), ([192, 0, 2, 100], 3260).into())
}

fn open(node: &mut Node) -> Option<ConnectionId> {
    node.open(link(1)).map(|seat| seat.id())
}

fn node(sessions_max: usize, visitors_max: usize, visitors_per_source_max: usize) -> Node {
    let usual = Limits { data_budget: 1 << 20, ..Limits::default() };
    Node::new(Limits { sessions_max, visitors_max, visitors_per_source_max, ..usual })
}

#[test]
fn a_port_has_one_session_and_the_new_one_waits() {
    let mut node = node(4, 4, 4);
    let [a, b, c] = [(); 3].map(|()| open(&mut node).unwrap());
    let Admission::Admitted(first) = admit(&mut node, a, 1, 0) else { panic!() };
    assert!(matches!(admit(&mut node, c, 2, 0), Admission::Admitted(tsih) if tsih != first));
    assert_eq!(admit(&mut node, b, 1, 0), Admission::Wait);
    assert_eq!((node.poll_wake(), node.take_order(a)), (Some(a), Some(Order::Close)));
    assert_eq!(admit(&mut node, b, 1, 0), Admission::Wait, "until the old one has ended");
    node.closed(a);
    assert!(core::iter::from_fn(|| node.poll_wake()).any(|woken| woken == b));
    assert!(matches!(admit(&mut node, b, 1, 0), Admission::Admitted(_)));
}

#[test]
fn further_connections_are_refused() {
    let mut node = node(2, 2, 2);
    let a = open(&mut node).unwrap();
    let Admission::Admitted(tsih) = admit(&mut node, a, 1, 0) else { panic!() };
    let b = open(&mut node).unwrap();
    assert_eq!(ask(&mut node, b, 1, (tsih, 7), false), Admission::Refused(0x0206));
    assert_eq!(admit(&mut node, b, 1, tsih + 1), Admission::Refused(0x020a));
    assert_eq!(admit(&mut node, b, 2, tsih), Admission::Refused(0x020a));
    assert_eq!(admit(&mut node, b, 1, tsih), Admission::Wait, "the same connection again");
    node.closed(a);
    assert_eq!(ask(&mut node, b, 1, (tsih, 0), true), Admission::Admitted(tsih));
}

#[test]
fn visitors_and_sessions_have_their_own_bounds() {
    let mut node = node(2, 4, 3);
    for isid in 0..2 {
        let session = open(&mut node).unwrap();
        assert!(matches!(admit(&mut node, session, isid, 0), Admission::Admitted(_)));
    }
    // Sessions take no visitor's place.
    let guest = open(&mut node).unwrap();
    assert_eq!(admit(&mut node, guest, 9, 0), Admission::Full(Full::Target));
    let [second, third] = [(); 2].map(|()| open(&mut node).unwrap());
    assert_eq!(node.poll_wake(), None);
    // The fourth of one source costs that its oldest.
    let fourth = open(&mut node).unwrap();
    assert_eq!((node.poll_wake(), node.take_order(guest)), (Some(guest), Some(Order::Close)));
    node.closed(guest);
    while node.poll_wake().is_some() {}
    // When the house is full, the source that has most loses its oldest.
    let polite = node.open(link(2)).unwrap().id();
    assert_eq!(node.poll_wake(), None);
    node.open(link(3)).unwrap();
    assert_eq!((node.poll_wake(), node.take_order(second)), (Some(second), Some(Order::Close)));
    assert_eq!(node.counters().refused_busy.get(), 2);
    for connection in [third, fourth, polite] {
        assert_eq!(node.take_order(connection), None);
    }
}

#[test]
fn there_are_never_more_than_twice_as_many_visitors() {
    let mut node = node(2, 4, 4);
    for _ in 0..8 {
        assert!(node.open(link(1)).is_some());
    }
    assert!(node.open(link(1)).is_none() && node.open(link(2)).is_none());
}

#[test]
fn a_process_without_descriptors_lets_visitors_go_and_no_session() {
    let mut node = node(4, 8, 8);
    let session = open(&mut node).unwrap();
    assert!(matches!(admit(&mut node, session, 1, 0), Admission::Admitted(_)));
    let lone = node.open(link(2)).unwrap().id();
    let [first, second] = [(); 2].map(|()| open(&mut node).unwrap());
    for leaves in [first, second, lone] {
        // Of two that have as many, it does not matter who goes first.
        assert!(node.handle_exhausted());
        let told = node.poll_wake().unwrap();
        assert_eq!(node.take_order(told), Some(Order::Close));
        assert!(leaves != first || told == first, "{told:?}");
        node.closed(told);
    }
    assert!(!node.handle_exhausted());
    assert_eq!((node.poll_wake(), node.session_count()), (None, 1));
}

#[test]
fn few_descriptors_are_shared_out() {
    let limits = Limits::default().within_descriptors(40);
    assert_eq!((limits.sessions_max, limits.visitors_max), (20, 5));
    assert_eq!(limits.visitors_per_source_max, 5);
    assert!(limits.sessions_max + 2 * limits.visitors_max < 40);
    assert_eq!(Limits::default().within_descriptors(u64::MAX), Limits::default());
    assert_eq!(Limits::default().within_descriptors(0).sessions_max, 1);
}

#[test]
fn sources_are_hosts_or_networks() {
    let of = |text: &str| Link::new(text.parse().unwrap(), link(1).portal).source();
    assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::ffff:1]:6"));
    assert_ne!(of("[2001:db8:0:1::1]:5"), of("[2001:db8::1]:5"));
    assert_eq!(of("[::ffff:192.0.2.7]:5"), of("192.0.2.7:6"));
    assert_ne!(of("192.0.2.8:5"), of("192.0.2.7:5"));
}

#[test]
fn sessions_are_listed_and_dropped() {
    let mut node = node(2, 2, 2);
    let a = open(&mut node).unwrap();
    let Admission::Admitted(tsih) = admit(&mut node, a, 3, 0) else { panic!() };
    let seen: Vec<_> =
        node.sessions().map(|one| (one.tsih, one.initiator, one.isid, one.link)).collect();
    assert_eq!(seen, [(tsih, "iqn.i", [3; 6], link(1))]);
    assert!(!node.drop_session(tsih + 1));
    assert_eq!(node.poll_wake(), None);
    assert!(node.drop_session(tsih));
    assert_eq!((node.poll_wake(), node.take_order(a)), (Some(a), Some(Order::Close)));
    node.closed(a);
    assert_eq!(node.sessions().count(), 0);
}

#[test]
fn realms_do_not_reach_each_other() {
    let mut node = node(4, 4, 4);
    let connections: Vec<_> = (0..4).map(|_| open(&mut node).unwrap()).collect();
    // One name and ISID, in two realms; and another session in the first.
    for (connection, realm, isid) in [(0, 1, 7), (1, 2, 7), (2, 1, 8)] {
        let applicant = Applicant {
            connection: connections[connection],
            kind: SessionType::Normal,
            initiator: "iqn.i",
            realm: Realm(realm),
            party: None,
            isid: [isid; 6],
            tsih: 0,
            cid: 0,
        };
        let admitted = node.admit(Duration::ZERO, &applicant, false);
        assert!(matches!(admitted, Admission::Admitted(_)), "{admitted:?}");
    }
    node.add_lun(Realm(1), 0);
    assert!(
        node.has_lun(Realm(1), 0) && !node.has_lun(Realm(2), 0) && !node.has_lun(Realm::HOME, 0)
    );
    let sender = connections[0];
    assert!(node.abort_others(sender, None, Cause::Reset).is_some());
    assert!(node.close_others(sender).is_some());
    assert!(node.abort_in(sender, &connections, 0, Cause::Cleared).is_some());
    let orders = |node: &mut Node, at: usize| {
        core::iter::from_fn(|| node.take_order(connections[at])).count()
    };
    assert_eq!([0, 1, 2, 3].map(|at| orders(&mut node, at)), [0, 0, 3, 0]);
    assert_eq!(node.close_others(connections[1]), None, "it is alone");
}

/// A login of one who came from `host`, by the name, realm and plan that are given.
fn enter(
    node: &mut Node,
    host: u8,
    (initiator, realm, plan): (&str, u64, u8),
    isid: u8,
) -> Admission {
    let connection = node.open(link(host)).unwrap().id();
    let applicant = Applicant {
        connection,
        kind: SessionType::Normal,
        initiator,
        realm: Realm(realm),
        party: Some(Party([plan; 32])),
        isid: [isid; 6],
        tsih: 0,
        cid: 0,
    };
    let admission = node.admit(Duration::ZERO, &applicant, false);
    if !matches!(admission, Admission::Admitted(_)) {
        node.closed(connection);
    }
    admission
}

#[test]
fn nobody_takes_all_sessions_of_a_target() {
    let mut node = Node::new(Limits {
        sessions_max: 12,
        sessions_per_source_max: 10,
        sessions_per_initiator_max: 6,
        sessions_per_plan_max: 4,
        sessions_per_token_max: 3,
        ..Limits::default()
    });
    let mut isid = 0..;
    let mut take = |host, who, count: usize| {
        let mut next = || enter(&mut node, host, who, isid.next().unwrap());
        for _ in 0..count {
            assert!(matches!(next(), Admission::Admitted(_)), "{who:?}");
        }
        next()
    };
    // A token, then its plan with another segment, then its initiator with other plans.
    assert_eq!(take(1, ("iqn.e", 1, 1), 3), Admission::Full(Full::Token));
    assert_eq!(take(1, ("iqn.e", 2, 1), 1), Admission::Full(Full::Plan));
    assert_eq!(take(1, ("iqn.e", 1, 2), 2), Admission::Full(Full::Initiator));
    // Its host under other names; and all others have what is left.
    assert_eq!(take(1, ("iqn.f", 1, 3), 3), Admission::Full(Full::Token));
    assert_eq!(take(1, ("iqn.g", 1, 4), 1), Admission::Full(Full::Source));
    assert_eq!(take(2, ("iqn.v", 1, 5), 2), Admission::Full(Full::Target));
    // Whoever has as many as may be still takes the place of a session of its own.
    assert_eq!(enter(&mut node, 1, ("iqn.e", 1, 1), 0), Admission::Wait);
}

/// The tickets of the orders to abort that a connection has not taken yet.
fn take_aborts(node: &mut Node, connection: ConnectionId) -> Vec<Ticket> {
    let ticket = |order| match order {
        Order::Abort { ticket, .. } => Some(ticket),
        Order::Close => None,
    };
    core::iter::from_fn(|| node.take_order(connection)).filter_map(ticket).collect()
}

#[test]
fn what_a_session_ordered_that_is_gone_is_carried_out_and_known_until_then() {
    let mut node = node(4, 4, 4);
    let [a, b, c] = [(); 3].map(|()| open(&mut node).unwrap());
    assert!(node.abort_in(a, &[b], 5, Cause::Cleared).is_some());
    node.closed(a);
    assert!(node.is_ending(c, 5) && !node.is_ending(c, 6));
    let tickets = take_aborts(&mut node, b);
    assert_eq!(tickets.len(), 1, "it is carried out");
    assert!(node.is_ending(c, 5), "and has not ended");
    node.acknowledge(b, tickets[0]);
    assert!(!node.is_ending(c, 5));
    assert!(node.abort_in(c, &[b], 6, Cause::Cleared).is_some());
    assert!(node.is_ending(c, 6));
    node.closed(b);
    assert!(!node.is_ending(c, 6), "who is gone has no tasks");
    assert!(
        open(&mut node).is_some_and(
            |d| node.abort_others(c, None, Cause::Reset).is_some() && !node.is_ending(d, 5)
        ),
        "nobody was preempted"
    );
}

#[test]
fn an_order_is_carried_out_when_all_before_it_are() {
    let mut node = node(4, 4, 4);
    let [a, b] = [(); 2].map(|()| open(&mut node).unwrap());
    for _ in 0..2 {
        node.abort_in(a, &[b], 5, Cause::Cleared);
    }
    let tickets = take_aborts(&mut node, b);
    node.acknowledge(b, tickets[0]);
    assert!(node.is_ending(a, 5));
    node.acknowledge(b, tickets[1]);
    assert!(!node.is_ending(a, 5));
}

#[test]
fn orders_of_those_that_are_gone_do_not_pile_up() {
    let mut node = node(4, 4, 4);
    let b = open(&mut node).unwrap();
    for _ in 0..100 {
        let a = open(&mut node).unwrap();
        node.abort_others(a, Some(5), Cause::Reset);
        node.closed(a);
    }
    let a = open(&mut node).unwrap();
    let waited_for = node.abort_others(a, Some(5), Cause::Cleared).unwrap();
    let tickets = take_aborts(&mut node, b);
    assert_eq!(tickets.len(), 2, "one of each cause");
    tickets.into_iter().for_each(|ticket| node.acknowledge(b, ticket));
    assert_eq!(node.take_finished(a), Some(waited_for));
}
