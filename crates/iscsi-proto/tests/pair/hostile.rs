//! Peers that send anything at all: no panic, nothing unbounded, no byte outside a buffer.

use std::time::Duration;

use netraid_iscsi_proto::{
    machine::{CONTROL_LEN_MAX, Placement},
    negotiation::Wishes,
    pdu::Bhs,
};
use proptest::prelude::*;

use crate::harness::{Guest, Host, Pair, WRITE, command, connection, target_setup};

/// What a header is made of: a mode, a real header to begin with, and changed bytes.
type Draft = (u8, prop::sample::Index, Vec<(usize, u8)>);

/// Headers: random, or real ones of an exchange with some bytes changed.
fn headers() -> impl Strategy<Value = Vec<Draft>> {
    let change = (0..48_usize, any::<u8>());
    let one = (any::<u8>(), any::<prop::sample::Index>(), prop::collection::vec(change, 0..6));
    prop::collection::vec(one, 1..60)
}

/// What an ordinary exchange sends in one direction.
fn real(from_initiator: bool) -> Vec<Bhs> {
    let wishes = Wishes { max_burst_len: 2048, first_burst_len: 1024, ..Wishes::default() };
    let mut pair = Pair::with_wishes(wishes.clone(), wishes);
    for opcode in [1, WRITE, 3] {
        pair.guest.submit(pair.now, command(opcode, 0, 9000), &[5; 9000]);
    }
    pair.run();
    pair.guest.machine.logout(pair.now);
    pair.run();
    pair.trace.iter().filter(|(out, _)| *out == from_initiator).map(|(_, bhs)| *bhs).collect()
}

fn mutate(bases: &[Bhs], (mode, pick, changes): &Draft) -> Bhs {
    let mut bhs = if mode % 8 == 0 { Bhs([*mode; 48]) } else { *pick.get(bases) };
    for (at, value) in changes {
        bhs.0[*at] = *value;
    }
    // Most lengths are those that a machine takes.
    if mode % 4 != 1 {
        bhs.0[5] = 0;
    }
    bhs
}

fn bytes_for(bhs: &Bhs) -> Vec<u8> {
    vec![b'=', 0, b'a'].into_iter().cycle().take(bhs.data_len() as usize).collect()
}

fn attack_target(host: &mut Host, pair_node: &mut netraid_iscsi_proto::target::Node, list: &[Bhs]) {
    let mut now = Duration::from_secs(1);
    let mut out = 0;
    for bhs in list {
        now += Duration::from_millis(10);
        if !host.machine.wants_input() {
            // As the shell does: nothing is read until something was sent.
            while host.transmit().is_some() {}
            if !host.machine.wants_input() {
                return;
            }
        }
        // `receive` indexes the task's buffer, which is as long as the plan.
        if host.receive(now, pair_node, bhs, &bytes_for(bhs)).is_err() {
            return;
        }
        if let Placement::Control = host.machine.placement() {
            assert!(bhs.data_len() <= CONTROL_LEN_MAX);
        }
        if bhs.0[47] % 2 == 0
            && let Some(task) = host.executing.pop_front()
        {
            host.execute(task);
            host.handle_events();
        }
        if bhs.0[46] % 2 == 0 {
            while let Some((_, data)) = host.transmit() {
                out += data.len();
                assert!(out < 1 << 30);
            }
        }
        let _ = host.machine.handle_timeout(now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_request_harms_the_target(list in headers(), logged_in in any::<bool>()) {
        let bases = real(true);
        let list: Vec<_> = list.iter().map(|one| mutate(&bases, one)).collect();
        let mut pair = if logged_in {
            Pair::with_wishes(Wishes::default(), Wishes::default())
        } else {
            let mut pair = Pair::new(&target_setup(), crate::harness::initiator_setup());
            let machine = connection(&mut pair.node, &target_setup());
            pair.host = Host::new(machine, 1 << 16);
            pair
        };
        pair.host.eager = false;
        attack_target(&mut pair.host, &mut pair.node, &list);
    }

    #[test]
    fn no_response_harms_the_initiator(list in headers(), logged_in in any::<bool>()) {
        let bases = real(false);
        let mut pair = if logged_in {
            Pair::with_wishes(Wishes::default(), Wishes::default())
        } else {
            Pair::new(&target_setup(), crate::harness::initiator_setup())
        };
        let guest: &mut Guest = &mut pair.guest;
        for opcode in [1, WRITE, 1, WRITE] {
            if guest.machine.capacity() > 0 {
                guest.submit(pair.now, command(opcode, 0, 9000), &[5; 9000]);
            }
        }
        let mut now = Duration::from_secs(1);
        for one in &list {
            let bhs = mutate(&bases, one);
            now += Duration::from_millis(10);
            for _ in 0..20 {
                let Some((transmit, data)) = guest.transmit() else { break };
                prop_assert_eq!(transmit.header.data_len() as usize, data.len());
            }
            if !guest.machine.wants_input() || guest.receive(now, &bhs, &bytes_for(&bhs)).is_err() {
                break;
            }
            prop_assert!(guest.ends.len() <= 4);
            let _ = guest.machine.handle_timeout(now);
        }
    }
}
