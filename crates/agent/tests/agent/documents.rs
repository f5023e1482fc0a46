//! Operations one by one, with a restart between them, and what is refused.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use netraid_cluster::agent::{
    AgentStatus, Answer, Done, FaultCode, LedgerPage, OPERATIONS_MAX, Operation, space_of,
};
use netraid_control::{
    ledger::{Commit, State},
    units::Moment,
    units::{AllotmentId, Generation, PlanId, SegmentId},
};

use crate::support::{MIB, Mediator, Running, audit, config, create, file_of, label, rates, space};

#[tokio::test]
async fn a_segment_lives_through_restarts_from_its_hold_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let segment = SegmentId([5; 16]);
    let path = file_of(directory.path(), &mediator, segment);

    let agent = start();
    let first = agent.ready.agent;
    let held = mediator.at(&agent.ready).hold(space(segment, 8 * MIB)).await.unwrap();
    drop(agent);

    let agent = start();
    let client = mediator.at(&agent.ready);
    // Not committed yet.
    assert_eq!(client.fault(create(segment, 8 * MIB)).await, FaultCode::Absent);
    let commit = Commit { id: held.id, serial: held.serial, for_ms: None };
    let done = client.one(Operation::Commit(commit)).await.unwrap();
    let Done::Booked(booked) = done else { panic!("{done:?}") };
    assert_eq!(booked.state, State::Committed { until: None });
    drop(agent);

    let agent = start();
    let client = mediator.at(&agent.ready);
    assert_eq!(client.one(Operation::Commit(commit)).await, Ok(Done::Booked(booked)));
    let zero = Ok(Done::Generation(Generation(0)));
    assert_eq!(client.one(create(segment, 8 * MIB)).await, zero);
    assert_eq!(path.metadata().unwrap().len(), 8 * MIB);
    assert_eq!(path.metadata().unwrap().blocks(), 0, "thin");
    drop(agent);

    let agent = start();
    let client = mediator.at(&agent.ready);
    assert_eq!(client.one(create(segment, 8 * MIB)).await, zero);
    assert_eq!(client.fault(create(segment, 4 * MIB)).await, FaultCode::Conflict);
    assert_eq!(
        client.fault(Operation::Release { id: space_of(segment) }).await,
        FaultCode::Conflict
    );
    let raise = |to| Operation::RaiseGeneration {
        segment,
        generation: Generation(to),
        taken_by: PlanId([5; 16]),
    };
    let raised = |to| Ok(Done::Raised { generation: Generation(to), taken_by: PlanId([5; 16]) });
    assert_eq!(client.one(raise(3)).await, raised(3));
    drop(agent);

    let agent = start();
    let client = mediator.at(&agent.ready);
    assert_eq!(client.one(raise(2)).await, raised(3));
    assert_eq!(client.one(create(segment, 8 * MIB)).await, Ok(Done::Generation(Generation(3))));
    let relabel = Operation::SetLabel { segment, label: label("/b") };
    assert_eq!(client.one(relabel).await, Ok(Done::Done));
    std::fs::File::options().write(true).open(&path).unwrap().write_all_at(b"x", 9).unwrap();
    drop(agent);

    let agent = start();
    let client = mediator.at(&agent.ready);
    let page = client.segments().await;
    assert!(!page.more);
    let [report] = page.entries.as_slice() else { panic!("{page:?}") };
    assert_eq!((report.segment, report.generation), (segment, Generation(3)));
    assert_eq!((report.len_bytes, report.label.path.as_str()), (8 * MIB, "/b"));
    assert!(report.used_bytes > 0 && report.used_bytes <= 64 << 10, "{report:?}");
    let beside = std::fs::read_to_string(path.with_extension("label")).unwrap();
    let beside: serde_json::Value = serde_json::from_str(&beside).unwrap();
    assert_eq!(beside["label"]["path"], "/b");
    let remove = Operation::RemoveSegment { segment };
    assert_eq!(client.one(remove.clone()).await, Ok(Done::Released(1)));
    assert!(!path.exists() && !path.with_extension("label").exists());
    drop(agent);

    let agent = start();
    let client = mediator.at(&agent.ready);
    assert_eq!(client.one(remove).await, Ok(Done::Released(0)));
    assert!(client.ledger().await.is_empty());
    assert!(client.segments().await.entries.is_empty());
    assert_eq!(agent.ready.agent, first);
    assert_eq!(mediator.joins(), 1, "it joins once");
}

#[tokio::test]
async fn rates_are_booked_renewed_fenced_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    let segment = client.segment(MIB).await;
    // 80 of 100 are for clients.
    let plan = client.plan(segment, 50 * MIB).await.unwrap();
    let short = client.plan(segment, 31 * MIB).await.unwrap_err();
    assert_eq!(short.code, FaultCode::Short, "{short:?}");
    let other = client.plan(segment, 30 * MIB).await.unwrap();
    let id = AllotmentId(plan.0);
    assert!(client.one(Operation::Renew { id, for_ms: 700_000 }).await.is_ok());
    let end = Operation::EndPlan { plan: other, revoked_until: None };
    assert_eq!(client.one(end).await, Ok(Done::Done));
    assert_eq!(client.ledger().await.len(), 2);
    // The plan was for generation 1.
    let raise = Operation::RaiseGeneration {
        segment,
        generation: Generation(2),
        taken_by: PlanId([5; 16]),
    };
    client.one(raise).await.unwrap();
    let [left] = client.ledger().await.try_into().unwrap();
    assert_eq!(left.id, space_of(segment));
    assert_eq!(client.fault(Operation::Renew { id, for_ms: 1000 }).await, FaultCode::Absent);
    let status: AgentStatus = client.client.get("/v1/status").await.unwrap();
    assert_eq!((status.left.device.0, status.left.space_bytes), (80 * MIB, 79 * MIB));
    assert_eq!(status.left_for_rebuild.space_bytes, 99 * MIB);
    assert_eq!((status.segments, status.sessions), (1, 0));
}

#[tokio::test]
async fn a_document_is_carried_out_in_its_order_and_fails_one_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    // All space of clients.
    let first = client.segment(80 * MIB).await;
    let [second, absent] = [SegmentId([2; 16]), SegmentId([3; 16])];
    let all = [
        Operation::Hold(space(second, 80 * MIB)),
        Operation::RemoveSegment { segment: first },
        Operation::RemoveSegment { segment: absent },
        Operation::Hold(space(second, 80 * MIB)),
        Operation::SetLabel { segment: first, label: label("/gone") },
    ];
    let answers = client.ask(&all).await;
    assert_eq!(answers[0].as_ref().unwrap_err().code, FaultCode::Short);
    assert_eq!(answers[1], Ok(Done::Released(1)));
    assert_eq!(answers[2], Ok(Done::Released(0)));
    assert!(matches!(answers[3], Ok(Done::Booked(_))), "{:?}", answers[3]);
    assert_eq!(answers[4].as_ref().unwrap_err().code, FaultCode::Absent);
    // Made and raised at once.
    client.one(Operation::Release { id: space_of(second) }).await.unwrap();
    let third = SegmentId([4; 16]);
    let held = client.hold(space(third, MIB)).await.unwrap();
    let commit = Commit { id: held.id, serial: held.serial, for_ms: None };
    let raise = Operation::RaiseGeneration {
        segment: third,
        generation: Generation(9),
        taken_by: PlanId([5; 16]),
    };
    let answers = client.ask(&[Operation::Commit(commit), create(third, MIB), raise]).await;
    assert_eq!(
        answers[2],
        Ok(Done::Raised { generation: Generation(9), taken_by: PlanId([5; 16]) })
    );
    assert_eq!(client.segments().await.entries[0].generation, Generation(9));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    let segment = client.segment(MIB).await;
    let plan = PlanId([1; 16]);
    let mut wrong_id = space(SegmentId([8; 16]), MIB);
    wrong_id.id = AllotmentId([9; 16]);
    let mut disguised = rates(plan, segment, MIB);
    disguised.id = space_of(segment);
    let mut long = label("/");
    long.path = "x".repeat(5000);
    let mut newer = label("/");
    newer.version = 2;
    for (operation, code) in [
        (Operation::Hold(wrong_id), FaultCode::Invalid),
        (Operation::Hold(disguised), FaultCode::Invalid),
        (create(SegmentId([8; 16]), 4097), FaultCode::Invalid),
        (create(SegmentId([8; 16]), 0), FaultCode::Invalid),
        (Operation::SetLabel { segment, label: long }, FaultCode::Invalid),
        (Operation::SetLabel { segment, label: newer }, FaultCode::Invalid),
        (Operation::ExtendPlan { plan, until: Moment(u64::MAX) }, FaultCode::Invalid),
        (
            Operation::RaiseGeneration {
                segment: SegmentId([8; 16]),
                generation: Generation(1),
                taken_by: PlanId([5; 16]),
            },
            FaultCode::Absent,
        ),
    ] {
        assert_eq!(client.fault(operation.clone()).await, code, "{operation:?}");
    }
    let asked = client.client.post::<_, Vec<Answer>>("/v1/operations", &["?"]).await;
    assert_eq!(asked.unwrap().remove(0).unwrap_err().code, FaultCode::Invalid);
    let refused = client.client.post::<_, Vec<Answer>>("/v1/operations", &"?").await;
    assert!(refused.unwrap_err().problem().is_some());
    let many = vec![Operation::Release { id: AllotmentId([1; 16]) }; OPERATIONS_MAX + 1];
    let refused = client.client.post::<_, Vec<Answer>>("/v1/operations", &many).await;
    assert!(refused.unwrap_err().to_string().contains("1025; 1024 at most"));
    for path in
        ["/v1/ledger?limit=0", "/v1/ledger?limit=1001", "/v1/ledger?after=x", "/v1/ledger?colour=x"]
    {
        let refused = client.client.get::<serde_json::Value>(path).await;
        assert!(refused.unwrap_err().problem().is_some(), "{path}");
    }
    let page: LedgerPage = client.client.get("/v1/ledger?limit=1").await.unwrap();
    assert_eq!(page.entries.len(), 1);
}

#[tokio::test]
async fn an_agent_that_drains_makes_nothing_new_and_one_that_is_retired_forgets() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    let segment = client.segment(MIB).await;
    let plan = client.plan(segment, MIB).await.unwrap();
    mediator.drain(true).await;
    let new = space(SegmentId([1; 16]), MIB);
    assert_eq!(client.fault(Operation::Hold(new)).await, FaultCode::Draining);
    let renew = Operation::Renew { id: AllotmentId(plan.0), for_ms: 60_000 };
    assert!(client.one(renew).await.is_ok());
    let status: AgentStatus = client.client.get("/v1/status").await.unwrap();
    assert!(status.draining);
    drop(agent);
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    assert_eq!(client.fault(Operation::Hold(new)).await, FaultCode::Draining, "after a restart");
    client.one(Operation::RemoveSegment { segment }).await.unwrap();
    mediator.drain(false).await;
    assert!(client.hold(new).await.is_ok());
    mediator.retire().await;
    // The next beat would come in 50 ms; the agent forgets before it answers nobody any more.
    while client.client.get::<AgentStatus>("/v1/status").await.is_ok() {
        tokio::task::yield_now().await;
    }
    audit(directory.path(), "membership_ended", 1).await;
}
