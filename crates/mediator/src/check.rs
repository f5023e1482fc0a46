//! What agents have booked against what the store says.
//!
//! Both change while one looks. So it is looked twice, and what differs counts only if it does both
//! times in the same way; and what is held, opening, ending or being removed does not count: it is finished,
//! or ends by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use netraid_cluster::{
    Problem,
    agent::{LedgerPage, PAGE_MAX, SegmentPage, SegmentReport, rates_of, space_of},
    http::RequestError,
    mediator::{CheckReport, Difference, DifferenceKind},
    now,
    paging::{PageError, Pages},
};
use netraid_control::{
    ledger::{Allotment, ENTRIES_PER_MEDIATOR_MAX, State},
    retry::Failure,
    units::{AgentId, AllotmentId, Moment, PlanId, Resources, SegmentId, VolumeId},
};

use crate::{
    agents::Service,
    core::Core,
    link::nowhere,
    plan::{self, Plan},
    store::{Sql, not_stored, or_aside},
    volume::{self, SegmentState, Volume},
};

/// Between both looks.
const BETWEEN: Duration = Duration::from_millis(1500);
/// Allotments of one mediator that an agent has at most, and so segments.
const LIST_MAX: u64 = ENTRIES_PER_MEDIATOR_MAX as u64;
/// Entries of a page of the store's.
const PAGE: u32 = 1000;

/// What the store says of one agent.
#[derive(Debug, Default)]
struct Expected {
    segments: BTreeMap<SegmentId, (SegmentState, Option<u64>)>,
    /// Of plans: what, and whether it is there for certain.
    rates: BTreeMap<AllotmentId, (Resources, bool)>,
    /// Segments of volumes, and rates of plans, whose rows are set aside: they are not compared.
    segments_aside: BTreeMap<SegmentId, VolumeId>,
    rates_aside: BTreeMap<AllotmentId, PlanId>,
}

/// A segment as its agent has it.
struct Found {
    len_bytes: u64,
    is_lost: bool,
}

#[derive(Debug, Default)]
struct Look {
    agents: u32,
    silent: Vec<AgentId>,
    allotments: u64,
    segments: u64,
    differences: BTreeMap<(AgentId, String), Difference>,
}

/// Compares all agents with the store.
pub(crate) async fn check(core: &Arc<Core>) -> Result<CheckReport, Problem> {
    let first = look(core).await?;
    tokio::time::sleep(BETWEEN).await;
    let second = look(core).await?;
    let stays = |key: &(AgentId, String), difference: &Difference| {
        first.differences.get(key).is_some_and(|before| before.kind == difference.kind)
    };
    let differences = second.differences.iter().filter(|(key, difference)| stays(key, difference));
    Ok(CheckReport {
        agents: second.agents,
        silent: second.silent,
        allotments: second.allotments,
        segments: second.segments,
        differences: differences.map(|(_, difference)| difference.clone()).collect(),
    })
}

async fn look(core: &Arc<Core>) -> Result<Look, Problem> {
    let mut look = Look::default();
    for agent in core.agents.ids() {
        if core.agents.service(agent) == Some(Service::Retired) {
            continue;
        }
        // What changes between these is in one of them.
        let before = expected(core, agent).await?;
        match found(core, agent).await {
            Ok((allotments, segments)) => {
                look.agents += 1;
                let after = expected(core, agent).await?;
                compare(&mut look, agent, &[before, after], &allotments, &segments);
            }
            Err(NotFound::Silent(error)) => {
                tracing::warn!("agent {agent}: {error}");
                look.silent.push(agent);
            }
            Err(NotFound::Lies(error)) => {
                let (kind, id) = (DifferenceKind::Implausible, agent.to_string());
                let difference = Difference { agent, kind, id, detail: error.to_string() };
                look.differences.insert((agent, "list".to_owned()), difference);
            }
        }
    }
    Ok(look)
}

async fn expected(core: &Core, agent: AgentId) -> Result<Expected, Problem> {
    let mut expected = Expected::default();
    let mut after = None;
    loop {
        let page = core.store.read(move |connection| segments(connection, agent, after));
        let page = page.await.map_err(not_stored)?;
        let Some(last) = page.last() else { break };
        after = Some(last.segment);
        for SegmentRow { segment, state, len, aside } in page {
            expected.segments.insert(segment, (state, len));
            expected.segments_aside.extend(aside.map(|volume| (segment, volume)));
        }
    }
    let mut after = None;
    loop {
        let page = core.store.read(move |connection| {
            let plans = Plan::all(connection, after, PAGE)?;
            Ok((plans.next(PAGE), plans))
        });
        let (next, plans) = page.await.map_err(not_stored)?;
        expected.rates_aside.extend(plans.aside.iter().map(|plan| (rates_of(plan.id), plan.id)));
        for plan in plans.usable.into_iter().filter(|plan| plan.state != plan::State::Closed) {
            let is_certain = plan.state == plan::State::Open && now() < plan.until;
            let id = rates_of(plan.id);
            let part = plan.record.parts.iter().find(|part| part.agent == agent);
            match part {
                Some(part) => drop(expected.rates.insert(id, (part.resources, is_certain))),
                // An agent whose answer was lost may have booked for it what the plan does without.
                None if !is_certain || plan.record.agents.contains(&agent) => {
                    expected.rates.insert(id, (Resources::default(), false));
                }
                None => {}
            }
        }
        let Some(next) = next else { break };
        after = Some(next);
    }
    Ok(expected)
}

struct SegmentRow {
    segment: SegmentId,
    state: SegmentState,
    len: Option<u64>,
    /// Its volume, if that is set aside.
    aside: Option<VolumeId>,
}

fn segments(
    connection: &rusqlite::Connection,
    agent: AgentId,
    after: Option<SegmentId>,
) -> Sql<Vec<SegmentRow>> {
    let rows = volume::segments_of(connection, agent, after, PAGE)?;
    let row = |(segment, state, id): (SegmentId, SegmentState, VolumeId)| {
        let (volume, aside) = match or_aside(Volume::load(connection, id))? {
            Ok(volume) => (volume, None),
            Err(why) => {
                tracing::error!("segment {segment} on agent {agent} is not compared: {why}");
                (None, Some(id))
            }
        };
        let is_ready = |volume: &Volume| volume.state == volume::State::Ready;
        let len = volume.filter(is_ready).and_then(|volume| volume.record.placed);
        // What is not ready is being made or removed.
        let state = if len.is_none() { SegmentState::Spare } else { state };
        Ok(SegmentRow { segment, state, len: len.map(|placed| placed.member_bytes), aside })
    };
    rows.into_iter().map(row).collect()
}

/// Why it is not known what an agent has.
#[derive(Debug, thiserror::Error)]
enum NotFound {
    /// It cannot be asked.
    #[error(transparent)]
    Silent(#[from] RequestError),
    /// What it says cannot be so.
    #[error(transparent)]
    Lies(#[from] PageError),
}

/// All that an agent has of this mediator.
async fn found(
    core: &Core,
    agent: AgentId,
) -> Result<(Vec<Allotment>, BTreeMap<SegmentId, Found>), NotFound> {
    let none = || RequestError::Lost {
        url: agent.to_string(),
        why: "it is not known".to_owned(),
        failure: Failure::Final,
    };
    let client = core.agents.link(agent).ok_or_else(none)?.client().ok_or_else(nowhere)?;
    let mut allotments: Vec<Allotment> = Vec::new();
    let (mut pages, mut after) = (Pages::of_at_most(PAGE_MAX, LIST_MAX), String::new());
    loop {
        let page: LedgerPage = client.get(&format!("/v1/ledger?limit={PAGE_MAX}{after}")).await?;
        let ids = || page.entries.iter().map(|entry| entry.id);
        let next = pages.take(ids(), ids().next_back().filter(|_| page.more))?;
        allotments.extend(page.entries);
        match next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let mut segments = BTreeMap::new();
    let (mut pages, mut after) = (Pages::of_at_most(PAGE_MAX, LIST_MAX), String::new());
    loop {
        let page: SegmentPage =
            client.get(&format!("/v1/segments?limit={PAGE_MAX}{after}")).await?;
        let ids = || page.entries.iter().map(|entry| entry.segment);
        let next = pages.take(ids(), ids().next_back().filter(|_| page.more))?;
        segments.extend(page.entries.iter().map(|entry| {
            let SegmentReport { segment, len_bytes, is_lost, .. } = *entry;
            (segment, Found { len_bytes, is_lost })
        }));
        match next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    Ok((allotments, segments))
}

fn compare(
    look: &mut Look,
    agent: AgentId,
    expected: &[Expected; 2],
    allotments: &[Allotment],
    segments: &BTreeMap<SegmentId, Found>,
) {
    let mut differ = |kind, what: &str, id: String, detail: String| {
        let difference = Difference { agent, kind, id: id.clone(), detail };
        look.differences.insert((agent, format!("{what} {id}")), difference);
    };
    let [before, after] = expected;
    let known = |segment: &SegmentId| {
        [before, after].into_iter().any(|expected| expected.segments.contains_key(segment))
    };
    // Both times for certain.
    let certain = |segment: &SegmentId| {
        let live = |expected: &Expected| match expected.segments.get(segment) {
            Some((SegmentState::Live, len)) => *len,
            Some((SegmentState::Spare | SegmentState::Former | SegmentState::Gone, _)) | None => {
                None
            }
        };
        live(before).filter(|len| live(after) == Some(*len))
    };
    for (segment, Found { len_bytes: len, is_lost }) in segments {
        if !known(segment) {
            let detail = format!("a segment of {len} bytes that no volume has");
            differ(DifferenceKind::Leaked, "segment", segment.to_string(), detail);
        } else if let Some(wanted) = certain(segment).filter(|wanted| wanted != len) {
            let detail = format!("a segment of {len} bytes, of {wanted} in the store");
            differ(DifferenceKind::Different, "segment", segment.to_string(), detail);
        } else if *is_lost && certain(segment).is_some() {
            let detail = format!("a member of {len} bytes whose data is gone on its agent");
            differ(DifferenceKind::Lost, "segment", segment.to_string(), detail);
        }
    }
    let of_agent: BTreeMap<AllotmentId, &Allotment> =
        allotments.iter().map(|allotment| (allotment.id, allotment)).collect();
    let mut matched = BTreeSet::new();
    let mut both = 0;
    for segment in before.segments.keys() {
        let Some(len) = certain(segment) else { continue };
        match segments.get(segment) {
            Some(_) => both += 1,
            None => differ(
                DifferenceKind::Missing,
                "segment",
                segment.to_string(),
                format!("a member of {len} bytes that its agent does not have"),
            ),
        }
        let id = space_of(*segment);
        let wanted = Resources { space_bytes: len, ..Resources::default() };
        compare_one(&mut differ, &of_agent, &mut matched, id, wanted);
    }
    for (id, (wanted, _)) in before.rates.iter().filter(|(_, (_, is_certain))| *is_certain) {
        if after.rates.get(id) == Some(&(*wanted, true)) {
            compare_one(&mut differ, &of_agent, &mut matched, *id, *wanted);
        }
    }
    let aside = |what: String| {
        format!(
            "not compared: the row of {what} in the mediator's store is set aside, as this mediator cannot read it; start \
             the program that wrote the row or a later one"
        )
    };
    for (segment, volume) in &after.segments_aside {
        let detail = aside(format!("volume {volume} (table volumes)"));
        differ(DifferenceKind::Different, "segment", segment.to_string(), detail);
    }
    for (id, plan) in after.rates_aside.iter().filter(|(id, _)| of_agent.contains_key(id)) {
        let detail = aside(format!("plan {plan} (table plans)"));
        differ(DifferenceKind::Different, "allotment", id.to_string(), detail);
    }
    let is_known = |id: &AllotmentId| {
        let of = |expected: &Expected| {
            let is_aside = expected.rates_aside.contains_key(id);
            is_aside
                || expected.rates.contains_key(id)
                || expected.segments.contains_key(&SegmentId(id.0))
        };
        of(before) || of(after)
    };
    for allotment in allotments.iter().filter(|allotment| !is_known(&allotment.id)) {
        // What is held only ends by itself.
        if let State::Committed { until } = allotment.state {
            let until = until.map_or("released".to_owned(), |Moment(ms)| format!("{ms} ms"));
            let resources = allotment.resources;
            let detail = format!("{resources:?} until {until}, of no volume and no plan");
            differ(DifferenceKind::Leaked, "allotment", allotment.id.to_string(), detail);
        }
    }
    look.segments += both;
    look.allotments += matched.len() as u64;
}

fn compare_one(
    differ: &mut impl FnMut(DifferenceKind, &str, String, String),
    of_agent: &BTreeMap<AllotmentId, &Allotment>,
    matched: &mut BTreeSet<AllotmentId>,
    id: AllotmentId,
    wanted: Resources,
) {
    match of_agent.get(&id) {
        Some(found) if found.resources == wanted => drop(matched.insert(id)),
        Some(found) => {
            let detail = format!("{:?} is booked, {wanted:?} in the store", found.resources);
            differ(DifferenceKind::Different, "allotment", id.to_string(), detail);
        }
        None => {
            let detail = format!("{wanted:?} in the store is not booked");
            differ(DifferenceKind::Missing, "allotment", id.to_string(), detail);
        }
    }
}
