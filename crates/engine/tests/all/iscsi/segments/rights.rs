//! What a token allows, and what it shows.

use netraid_block::{Buf, ErrorKind};
use netraid_control::{
    derived::{Denial, Rights, Terms},
    token::Token,
};
use netraid_engine::completions;
use netraid_iscsi_proto::pdu::{Opcode, TaskFunction, TaskResponse, TaskResponseCode};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{
    CHECK_CONDITION, GOOD,
    agent::{Agent, ranges},
    byte, write,
};
use crate::iscsi::{
    common::{SIZE, ram},
    fencing::{REGISTER, reserve_out},
    raw::Raw,
};

const RESERVATION_CONFLICT: u8 = 0x18;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;
/// WRITE (10) of block 0.
const WRITE_BLOCK: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn with_rights(agent: &Agent, rights: Rights) -> Token {
    let token = agent.token(1);
    Token { terms: Terms { rights, ..token.terms }, ..token }
}

/// The status of a command with this data.
async fn status(raw: &mut Raw, cdb: &[u8], data: &[u8]) -> u8 {
    raw.command_with(cdb, 0, data).await;
    raw.receive().await.unwrap().0[3]
}

#[tokio::test]
async fn who_may_read_changes_nothing_in_any_way() {
    let agent = Agent::new(&[ram()]);
    let target = agent.start();
    let token = with_rights(&agent, Rights::READ);
    let device = agent.connect(&target, token).await;
    assert!(device.info().read_only && !device.info().can_discard);
    assert_eq!(device.info().capacity, SIZE);
    assert_eq!(byte(&device, 0).await, 0);
    let mut raw = agent.raw(&target, token, 1).await;
    let write_same = [0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    assert_eq!(status(&mut raw, &WRITE_BLOCK, &[1; 512]).await, CHECK_CONDITION);
    assert_eq!(status(&mut raw, &write_same, &[1; 512]).await, CHECK_CONDITION);
    assert_eq!(status(&mut raw, &compare, &[0; 1024]).await, CHECK_CONDITION);
    // SYNCHRONIZE CACHE, START STOP UNIT, RESERVE.
    for opcode in [0x35, 0x1b, 0x16] {
        let cdb = [opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(status(&mut raw, &cdb, &[]).await, CHECK_CONDITION, "{opcode:#x}");
    }
    // MODE SELECT of the control page with software write protection.
    let select = [0x15, 0x10, 0, 0, 16, 0];
    let page = [0, 0, 0, 0, 0x0a, 10, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(status(&mut raw, &select, &page).await, CHECK_CONDITION);
    reserve_out(&mut raw, REGISTER, 0, 0, 5).await;
    assert_eq!(raw.receive().await.unwrap().0[3], CHECK_CONDITION);
    for function in [TaskFunction::LogicalUnitReset, TaskFunction::ClearTaskSet] {
        raw.manage(function, 0).await;
        let answer = raw.receive().await.unwrap();
        assert_eq!(answer.opcode(), Some(Opcode::TaskResponse));
        assert_eq!(TaskResponse::parse(&answer).code, TaskResponseCode::Unauthorized);
    }
    // Whoever may do so finds nothing changed.
    let owner = agent.connect(&target, agent.token(1)).await;
    assert!(!owner.info().read_only);
    assert_eq!(byte(&owner, 0).await, 0);
    write(&owner, 0, 3).await.unwrap();
    let denials = agent.denials.lock().unwrap().clone();
    let told = |denial: &Denial| matches!(denial, Denial::Right { held: Rights::READ, .. });
    assert!(!denials.is_empty() && denials.iter().all(told), "{denials:?}");
    assert!(denials.len() < 4, "so many were told at once: {denials:?}");
    target.stop().await;
}

#[tokio::test]
async fn each_right_is_asked_for() {
    let agent = Agent::new(&[ram()]);
    let target = agent.start();
    let writer = agent.connect(&target, with_rights(&agent, Rights::READ.and(Rights::WRITE))).await;
    write(&writer, 0, 7).await.unwrap();
    assert!(!writer.info().can_discard && !writer.info().read_only);
    // Zeros may be written as any bytes are.
    completions::write_zeroes(&writer, 4096, 4096).await.unwrap();
    // A disk without a cache has nothing to flush.
    completions::flush(&writer).await.unwrap();
    assert_eq!(byte(&writer, 0).await, 7);
    let blind = with_rights(&agent, Rights::WRITE.and(Rights::RESERVE));
    let mut raw = agent.raw(&target, blind, 1).await;
    assert_eq!(status(&mut raw, &WRITE_BLOCK, &[8; 512]).await, GOOD);
    raw.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512).await;
    assert_eq!(raw.receive().await.unwrap().opcode(), Some(Opcode::ScsiResponse));
    reserve_out(&mut raw, REGISTER, 0, 0, 5).await;
    assert_eq!(raw.receive().await.unwrap().0[3], GOOD);
    reserve_out(&mut raw, RESERVE, WRITE_EXCLUSIVE, 5, 0).await;
    assert_eq!(raw.receive().await.unwrap().0[3], GOOD);
    // It holds against all sessions of the segment.
    let error = write(&writer, 0, 9).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    let mut other = agent.raw(&target, agent.token(1), 2).await;
    assert_eq!(status(&mut other, &WRITE_BLOCK, &[9; 512]).await, RESERVATION_CONFLICT);
    target.stop().await;
}

#[tokio::test]
async fn ranges_are_shown_one_after_the_other_and_nothing_else_is() {
    let inner = ram();
    let agent = Agent::new(std::slice::from_ref(&inner));
    let target = agent.start();
    let shown = [(4096, 6144), (65_536, 512), (1 << 20, 8192), (SIZE - 512, 512)];
    let token = agent.token(1);
    let terms = Terms { ranges: ranges(&shown), ..token.terms };
    let device = agent.connect(&target, Token { terms, ..token }).await;
    let len: u64 = shown.iter().map(|(_, len)| len).sum();
    assert_eq!(device.info().capacity, len);
    let mut model = vec![0_u8; usize::try_from(len).unwrap()];
    let mut rng = StdRng::seed_from_u64(1);
    for round in 0..200_u8 {
        let blocks = rng.random_range(1..=len / 512);
        let from = rng.random_range(0..=len / 512 - blocks);
        let range =
            usize::try_from(from * 512).unwrap()..usize::try_from((from + blocks) * 512).unwrap();
        if round.is_multiple_of(4) {
            model[range].fill(0);
            completions::write_zeroes(&device, from * 512, blocks * 512).await.unwrap();
        } else if round.is_multiple_of(2) {
            rng.fill(&mut model[range.clone()]);
            let data = Buf::copy_from(&model[range]).into();
            completions::write(&device, from * 512, data, false).await.unwrap();
        } else {
            let data = completions::read(&device, from * 512, blocks * 512).await.unwrap();
            assert!(*data.to_contiguous() == model[range], "{blocks} blocks at {from}");
        }
    }
    // The segment has them where they belong, and nothing anywhere else.
    let mut expected = vec![0_u8; usize::try_from(SIZE).unwrap()];
    let mut from = 0;
    for (offset, len) in shown {
        let (offset, len) = (usize::try_from(offset).unwrap(), usize::try_from(len).unwrap());
        expected[offset..offset + len].copy_from_slice(&model[from..from + len]);
        from += len;
    }
    for (at, expected) in expected.chunks(1 << 20).enumerate() {
        let data = completions::read(&inner, (at as u64) << 20, 1 << 20).await.unwrap();
        assert!(*data.to_contiguous() == *expected, "MiB {at}");
    }
    target.stop().await;
}

#[tokio::test]
async fn what_was_appended_stays() {
    let agent = Agent::new(&[ram()]);
    let target = agent.start();
    let token = agent.token(1);
    let terms = Terms { append_only: true, ..token.terms };
    let device = agent.connect(&target, Token { terms, ..token }).await;
    for at in 0..4 {
        write(&device, at * 512, 1).await.unwrap();
    }
    for at in [0, 512, 1536, 4096] {
        write(&device, at, 2).await.unwrap_err();
    }
    completions::write_zeroes(&device, 0, 512).await.unwrap_err();
    // What others write moves the end.
    let owner = agent.connect(&target, agent.token(1)).await;
    write(&owner, 4096, 3).await.unwrap();
    write(&device, 2048, 2).await.unwrap_err();
    write(&device, 4608, 4).await.unwrap();
    let seen = [byte(&owner, 0).await, byte(&owner, 1536).await, byte(&owner, 4608).await];
    assert_eq!(seen, [1, 1, 4]);
    target.stop().await;
}
