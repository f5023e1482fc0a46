//! CDB usage data (SPC-4, section 6.34.3) against what is refused.

use std::format;

use proptest::{prelude::*, strategy::ValueTree};

use super::*;
use crate::cdb::table::{Row, TABLE};

/// The shortest CDB of a row: its operation code and service action, all else zero.
fn bare(row: &Row) -> Vec<u8> {
    let mut cdb = vec![0; row.usage.len()];
    cdb[0] = row.opcode();
    if let Some(action) = row.service_action {
        cdb[1] = u8::try_from(action).unwrap();
    }
    cdb
}

/// The bits of a byte that tell nothing of the command.
fn used(row: &Row, at: usize) -> u8 {
    match (at, row.service_action) {
        (0, _) => 0,
        (1, Some(_)) => row.usage[1] & 0xe0,
        _ => row.usage[at],
    }
}

/// What is not reported as used is refused, by its place.
#[test]
fn every_bit_outside_the_mask_is_an_invalid_field() {
    let mut bench = Bench::new();
    for row in TABLE {
        for at in 1..row.usage.len() {
            for bit in 0..8_u8 {
                let code = at == 1 && row.service_action.is_some() && bit < 5;
                if code || used(row, at) & 1 << bit != 0 {
                    continue;
                }
                let mut cdb = bare(row);
                cdb[at] |= 1 << bit;
                let sense = bench.sense(&cdb, &[]);
                assert_eq!(sense.additional, Additional::INVALID_FIELD_IN_CDB, "{cdb:x?}");
                let field = sense.field.map(|field| (field.in_cdb, usize::from(field.byte)));
                assert_eq!(field, Some((true, at)), "{cdb:x?}");
                assert_eq!(sense.field.and_then(|field| field.bit), Some(bit), "{cdb:x?}");
            }
        }
    }
    assert!(bench.submitted.is_empty());
}

#[test]
fn a_cdb_that_is_cut_off_is_refused_where_it_ends() {
    for row in TABLE {
        let whole = bare(row);
        for len in 1..whole.len() {
            // Without its second byte the service action is not known.
            let Err(sense) = cdb::parse(&whole[..len]) else { panic!("{whole:x?} {len}") };
            let field = sense.field.map(|field| usize::from(field.byte));
            let wanted =
                if len == 1 && row.service_action.is_some_and(|it| it > 0) { 1 } else { len };
            assert_eq!(field, Some(wanted), "{whole:x?} {len}");
        }
    }
}

/// Bits of fields of several bits (operation code, byte, bit): these are reported as a whole,
/// although not all of their values are taken.
const PARTS: [(u8, usize, u8); 10] = [
    // POWER CONDITION.
    (0x1b, 4, 7),
    (0x1b, 4, 6),
    (0x1b, 4, 5),
    // PREVENT.
    (0x1e, 4, 1),
    // BYTCHK.
    (0x2e, 1, 2),
    (0x8e, 1, 2),
    (0xae, 1, 2),
    // PARAMETER DATA FORMAT and REPORTING OPTIONS.
    (0xa3, 1, 7),
    (0xa3, 1, 6),
    (0xa3, 2, 2),
];

/// What is reported as used is taken with at least some values of the other fields: SP of MODE
/// SELECT and the modifier of START STOP UNIT never were.
#[test]
fn every_bit_of_the_mask_is_taken() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut refused = Vec::new();
    for row in TABLE {
        for at in 1..row.usage.len() {
            for bit in (0..8_u8).filter(|bit| used(row, at) & 1 << bit != 0) {
                let taken = (0..400).any(|_| {
                    let tree = proptest::collection::vec(any::<u8>(), 16).new_tree(&mut runner);
                    let random = tree.unwrap().current();
                    let mut cdb = bare(row);
                    for (place, byte) in cdb.iter_mut().enumerate().skip(1) {
                        *byte |= random[place] & used(row, place);
                    }
                    cdb[at] |= 1 << bit;
                    cdb::parse(&cdb).is_ok()
                });
                if taken == PARTS.contains(&(row.opcode(), at, bit)) {
                    refused.push(format!("{:x}/{:?} {at}.{bit}", row.opcode(), row.service_action));
                }
            }
        }
    }
    assert_eq!(refused, Vec::<std::string::String>::new());
}
