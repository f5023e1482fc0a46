//! Agents that join, are heard of, and go.

use std::{sync::Arc, time::Instant};

use netraid_cluster::{
    Code, Problem,
    access::{Bearer, Role},
    mediator::{AgentEntry, Beat, Beaten, Join, Joined, NewAccess},
};
use netraid_control::units::AgentId;
use rusqlite::Connection;

use crate::{
    access::Caller,
    agents::{AGENTS_MAX, BEAT, Service, Stored},
    core::Core,
    lock,
    store::{Sql, change},
    volume,
};

/// Bytes of each text that an agent says of itself.
const TEXT_LEN_MAX: usize = 512;
/// Bytes of an authority in PEM.
const AUTHORITY_LEN_MAX: usize = 64 << 10;

fn beat_ms() -> u64 {
    u64::try_from(BEAT.as_millis()).unwrap_or(u64::MAX)
}

/// Takes an agent. One that is known is taken again if it is the same, or was never heard of since: its
/// answer was lost. Nobody else can take an agent's place but an administrator.
pub(crate) async fn join(core: &Arc<Core>, caller: &Caller, join: Join) -> Result<Joined, Problem> {
    let Join { status, token, authority } = join;
    let texts = [&status.host, &status.rack, &status.api, &status.portal, &status.target, &token];
    if texts.iter().any(|text| text.len() > TEXT_LEN_MAX || text.chars().any(char::is_control)) {
        let detail = format!("labels, addresses and tokens have {TEXT_LEN_MAX} bytes at most");
        return Err(Problem::invalid(detail));
    }
    if token.len() < 16 || authority.as_ref().is_some_and(|pem| pem.len() > AUTHORITY_LEN_MAX) {
        return Err(Problem::invalid(
            "a token of 16 bytes at least, an authority of 64 KiB at most",
        ));
    }
    if core.agents.len() >= AGENTS_MAX && core.agents.service(status.agent).is_none() {
        let detail = format!("there are {AGENTS_MAX} agents; retire some");
        return Err(Problem::new(Code::Conflict, detail));
    }
    let id = status.agent;
    let token = Bearer::from_text(token);
    let stored = Stored { status, token, authority, service: Service::Serving, has_beaten: false };
    stored.client().map_err(|error| Problem::invalid(error.to_string()))?;
    let is_admin = caller.role == Role::Admin;
    let stored = change(&core.store, move |connection| {
        let mut stored = stored;
        if let Some(known) = Stored::load(connection, id)? {
            let is_same = known.token.digest() == stored.token.digest();
            let is_taken = known.has_beaten && known.service != Service::Retired;
            if is_taken && !is_same && !is_admin {
                let detail = format!(
                    "agent {id} is in service already; retire it first, or join with an \
                     administrator's access file"
                );
                return Ok(Err(Problem::new(Code::Conflict, detail)));
            }
            if known.service == Service::Draining {
                stored.service = Service::Draining;
            }
        }
        stored.save(connection)?;
        Ok(Ok(stored))
    })
    .await?;
    let new = NewAccess { role: Role::Agent, name: format!("agent {id}"), for_ms: None };
    let made = core.access.make(&core.store, &new, Some(id)).await?;
    core.agents.insert(&stored).map_err(|error| Problem::invalid(error.to_string()))?;
    core.wake.notify_one();
    let keys = lock(&core.keys).of_agent(core.id, id).expose();
    Ok(Joined { mediator: core.id, token: made.token, beat_ms: beat_ms(), keys })
}

/// An agent says how it is.
pub(crate) async fn beat(core: &Arc<Core>, id: AgentId, beat: Beat) -> Result<Beaten, Problem> {
    let asked = Instant::now();
    let Beat { status, keys_mark } = beat;
    if status.agent != id {
        return Err(Problem::invalid("a status of another agent"));
    }
    let none = move || Problem::absent(format!("agent {id} is not known; it joins first"));
    let service = core.agents.service(id).ok_or_else(none)?;
    let known = core.agents.status(id);
    let is_moved = known.is_none_or(|known| {
        (&known.api, &known.portal, &known.target, &known.host, &known.rack)
            != (&status.api, &status.portal, &status.target, &status.host, &status.rack)
    });
    if is_moved || core.agents.is_silent(id) {
        let new = status.clone();
        let stored = change(&core.store, move |connection| {
            let Some(mut stored) = Stored::load(connection, id)? else { return Ok(Err(none())) };
            stored.status = new;
            stored.has_beaten = true;
            stored.save(connection)?;
            Ok(Ok(stored))
        })
        .await?;
        if is_moved {
            core.agents.insert(&stored).map_err(|error| Problem::invalid(error.to_string()))?;
        }
        core.agents.handle_beat(id);
    }
    core.agents.handle_status(status, asked);
    let ring = lock(&core.keys).of_agent(core.id, id);
    // Also where this store is an older copy, and other keys have these numbers now.
    let is_other = ring.mark() != keys_mark;
    Ok(Beaten {
        beat_ms: beat_ms(),
        keys: is_other.then(|| ring.expose()),
        draining: service != Service::Serving,
        retired: service == Service::Retired,
    })
}

/// All agents.
pub(crate) async fn list(core: &Core) -> Result<Vec<AgentEntry>, Problem> {
    let mut entries = core.agents.entries();
    entries.retain(|entry| core.agents.service(entry.status.agent) != Some(Service::Retired));
    let ids: Vec<AgentId> = entries.iter().map(|entry| entry.status.agent).collect();
    let counted = core.store.read(move |connection| {
        ids.iter().map(|id| volume::count_segments(connection, *id)).collect::<Sql<Vec<u64>>>()
    });
    let counted = counted.await.map_err(crate::store::not_stored)?;
    for (entry, segments) in entries.iter_mut().zip(counted) {
        entry.segments = segments;
    }
    Ok(entries)
}

/// Takes an agent out of service, or back, or lets it go when nothing of this mediator is on it.
pub(crate) async fn set_service(
    core: &Arc<Core>,
    id: AgentId,
    service: Service,
) -> Result<AgentEntry, Problem> {
    let none = || Problem::absent(format!("agent {id} is not known"));
    let entry = list(core).await?.into_iter().find(|entry| entry.status.agent == id);
    let entry = entry.ok_or_else(none)?;
    // Nothing new comes to it from here on.
    let before = core.agents.service(id);
    if service == Service::Retired {
        core.agents.set_service(id, Service::Draining);
    }
    let changed =
        change(&core.store, move |connection| retire_or_set(connection, id, service)).await;
    match (&changed, before) {
        (Ok(()), _) => core.agents.set_service(id, service),
        (Err(_), Some(before)) => core.agents.set_service(id, before),
        (Err(_), None) => {}
    }
    changed?;
    let now = list(core).await?.into_iter().find(|entry| entry.status.agent == id);
    Ok(now.unwrap_or(entry))
}

fn retire_or_set(
    connection: &Connection,
    id: AgentId,
    service: Service,
) -> Sql<Result<(), Problem>> {
    let Some(mut stored) = Stored::load(connection, id)? else {
        return Ok(Err(Problem::absent(format!("agent {id} is not known"))));
    };
    if service == Service::Retired {
        let segments = volume::count_segments(connection, id)?;
        if segments > 0 {
            let detail = format!(
                "agent {id} has {segments} segments; drain it, replace those, then retire it"
            );
            return Ok(Err(Problem::new(Code::Conflict, detail)));
        }
        // What was still to be removed there is its owner's.
        volume::forget_agent(connection, id)?;
    }
    stored.service = service;
    stored.save(connection)?;
    Ok(Ok(()))
}
