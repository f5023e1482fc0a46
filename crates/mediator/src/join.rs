//! Agents that join, are heard of, and go.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use netraid_block::narrow;
use netraid_cluster::{
    Code, Problem,
    access::{Bearer, Role},
    mediator::{AgentEntry, Beat, Beaten, Join, Joined, NewAccess},
    now,
    tls::authority_keys,
    vet::{self, url_host},
};
use netraid_control::{
    clocks::{Difference, News},
    text::shown,
    units::AgentId,
};
use rusqlite::Connection;

use crate::{
    access::Caller,
    agents::{AGENTS_MAX, AgentError, BEAT, Service, Stored},
    core::Core,
    lock, names,
    store::{Sql, change},
    volume,
};

/// Bytes of a bearer token that an agent draws.
const TOKEN_LEN: std::ops::RangeInclusive<usize> = 16..=512;
/// Bytes of an authority in PEM.
const AUTHORITY_LEN_MAX: usize = 64 << 10;
/// Volumes that are named of an agent that is not retired.
const NAMED_MAX: u32 = 20;
/// How long a name may take to become addresses.
const RESOLVE_LIMIT: Duration = Duration::from_secs(2);

fn beat_ms() -> u64 {
    narrow(BEAT.as_millis())
}

fn unfit(error: &AgentError) -> Problem {
    Problem::invalid(error.to_string())
}

/// Refuses the URL of an API on another host than the one that asks, `peer`: the mediator will call it, and
/// an agent is not to choose whom it calls.
async fn check_origin(peer: SocketAddr, api: &str) -> Result<(), Problem> {
    let host = url_host(api).map_err(|why| Problem::invalid(why.to_string()))?;
    let addresses: Vec<IpAddr> = match host.parse() {
        Ok(address) => vec![address],
        Err(_) => {
            let found = tokio::time::timeout(
                RESOLVE_LIMIT,
                tokio::net::lookup_host((host.as_str(), 0_u16)),
            );
            let found = found.await.ok().and_then(Result::ok);
            found.into_iter().flatten().map(|address| address.ip()).collect()
        }
    };
    let peer = peer.ip();
    if is_at(peer, &addresses, is_here) {
        return Ok(());
    }
    let detail = format!(
        "the agent's API '{}' is not on the host that asks, {}; start the agent with --advertise and a \
         name or address of that host by which it asks, or join with an administrator's access file",
        shown(api),
        peer.to_canonical()
    );
    Err(Problem::invalid(detail))
}

/// Whether a peer is at one of these addresses. What is an address of this host, as `is_here` says, is at
/// all of its addresses.
fn is_at(peer: IpAddr, addresses: &[IpAddr], is_here: impl Fn(IpAddr) -> bool) -> bool {
    let peer = peer.to_canonical();
    let of = |address: &IpAddr| address.to_canonical();
    addresses.iter().any(|address| of(address) == peer)
        || (is_here(peer) && addresses.iter().any(|address| is_here(of(address))))
}

/// Whether an address is one of this host's: no other can be bound.
fn is_here(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

/// Takes an agent that speaks this version of documents. One that is known is taken again if it is the same, or was never heard of since: its
/// answer was lost. Nobody else can take an agent's place but an administrator.
pub(crate) async fn join(
    core: &Arc<Core>,
    (caller, peer, version): (&Caller, SocketAddr, u32),
    join: Join,
) -> Result<Joined, Problem> {
    let Join { status, token, authority } = join;
    let authority_len = authority.as_ref().map_or(0, String::len);
    if !TOKEN_LEN.contains(&token.len()) || authority_len > AUTHORITY_LEN_MAX {
        let detail = "a token of 16 to 512 bytes, an authority of 64 KiB at most";
        return Err(Problem::invalid(detail));
    }
    let is_none =
        |text: &String| authority_keys(Some(text)).map_or(true, |(keys, _)| keys.is_empty());
    if authority.as_ref().is_some_and(is_none) {
        let detail = "the agent's authority is no certificate in PEM";
        return Err(Problem::invalid(detail));
    }
    if core.agents.len() >= AGENTS_MAX && core.agents.service(status.agent).is_none() {
        let detail = format!("there are {AGENTS_MAX} agents; retire some");
        return Err(Problem::new(Code::Conflict, detail));
    }
    let id = status.agent;
    let token = Bearer::from_text(token);
    let stored = Stored { status, token, authority, service: Service::Serving, has_beaten: false };
    stored.client().map_err(|error| unfit(&error))?;
    let is_admin = caller.role == Role::Admin;
    if !is_admin {
        check_origin(peer, &stored.status.api).await?;
    }
    let stored = change(&core.store, move |connection| {
        let mut stored = stored;
        if let Some(known) = Stored::load(connection, id)? {
            let is_same = known.token.digest() == stored.token.digest();
            let is_taken = known.has_beaten && known.service != Service::Retired;
            if is_taken && !is_same && !is_admin {
                let detail = format!(
                    "agent {id} is in service already, and this join brings another bearer token: \
                     join with an administrator's access file, as the agent itself does after `agent \
                     leave --force`; or retire the agent first, where it has no segments"
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
    core.agents.insert(&stored).map_err(|error| unfit(&error))?;
    core.agents.handle_documents(id, version);
    core.wake.notify_one();
    let keys = lock(&core.keys).of_agent(core.id, id).expose();
    Ok(Joined { mediator: core.id, token: made.token, beat_ms: beat_ms(), keys })
}

/// An agent says how it is, in documents of this version. Nothing of it counts, or is stored, unless all of it can be so.
pub(crate) async fn beat(
    core: &Arc<Core>,
    (id, peer, version): (AgentId, SocketAddr, u32),
    beat: Beat,
) -> Result<Beaten, Problem> {
    let asked = Instant::now();
    let Beat { status, keys_mark, clock } = beat;
    let said = clock.map(|clock| Difference::between(clock, now()));
    if status.agent != id {
        return Err(Problem::invalid("a status of another agent"));
    }
    vet::status(&status).map_err(|error| Problem::invalid(error.to_string()))?;
    let none = move || Problem::absent(format!("agent {id} is not known; it joins first"));
    let service = core.agents.service(id).ok_or_else(none)?;
    let known = core.agents.status(id);
    let is_elsewhere =
        known.as_ref().is_none_or(|known| url_host(&known.api) != url_host(&status.api));
    if is_elsewhere {
        check_origin(peer, &status.api).await?;
    }
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
            if let Err(error) = stored.client() {
                return Ok(Err(unfit(&error)));
            }
            stored.save(connection)?;
            Ok(Ok(stored))
        })
        .await?;
        if is_moved {
            core.agents.insert(&stored).map_err(|error| unfit(&error))?;
        }
        core.agents.handle_beat(id);
    }
    core.agents.handle_status(status, asked);
    core.agents.handle_documents(id, version);
    if let Some(news) = core.agents.handle_clock(id, said) {
        tell_clock(core, id, news);
    }
    let clock_ahead_ms = core.agents.clock(id).map(|difference| difference.ahead_ms);
    let ring = lock(&core.keys).of_agent(core.id, id);
    // Also where this store is an older copy, and other keys have these numbers now.
    let is_other = ring.mark() != keys_mark;
    Ok(Beaten {
        beat_ms: beat_ms(),
        keys: is_other.then(|| ring.expose()),
        draining: service != Service::Serving,
        retired: service == Service::Retired,
        clock_ahead_ms,
    })
}

/// Says what is new of an agent's clock, in the log and in the audit log.
fn tell_clock(core: &Core, id: AgentId, news: News) {
    let named = core.agents.named(id);
    let outcome = match news {
        News::Off(difference) => {
            tracing::warn!("{named}: {difference}");
            difference.to_string()
        }
        News::Right => {
            tracing::warn!("{named}: its clock is right again");
            "it is right again".to_owned()
        }
    };
    core.audit.note(&core.store, &named, Role::Agent.name(), "its clock", &outcome);
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
            let named = named_on(connection, id)?;
            let detail = format!(
                "agent {id} has {segments} segments, of {named}; drain it, stop it where it is not lost, have each of those \
                 healed (`netraid volume heal PATH`), then retire it"
            );
            return Ok(Err(Problem::new(Code::Conflict, detail)));
        }
        // What is still to be removed there is removed when the agent joins again.
    }
    stored.service = service;
    stored.save(connection)?;
    Ok(Ok(()))
}

/// What has segments on an agent, by its path, as much of it as a line takes.
fn named_on(connection: &Connection, id: AgentId) -> Sql<String> {
    let mut paths = Vec::new();
    for volume in volume::some_on(connection, id, NAMED_MAX + 1)? {
        let path = names::path_of(connection, volume)?;
        paths.push(path.map_or_else(|| format!("volume {volume}"), |path| path.to_string()));
    }
    let more = paths.len() > narrow::<_, usize>(NAMED_MAX);
    paths.truncate(narrow(NAMED_MAX));
    let more = if more { ", and others" } else { "" };
    Ok(format!("{}{more}", paths.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_names_its_own_host_alone() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let mine = [at("127.0.0.1"), at("10.0.0.1")];
        let is_here = |address: IpAddr| mine.contains(&address);
        for (peer, host, expected) in [
            ("10.0.0.7", "10.0.0.7", true),
            ("::ffff:10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.8", false),
            ("10.0.0.7", "127.0.0.1", false),
            ("10.0.0.7", "10.0.0.1", false),
            // The mediator's own host, by whichever of its addresses.
            ("127.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "169.254.169.254", false),
        ] {
            assert_eq!(is_at(at(peer), &[at(host)], is_here), expected, "{peer} {host}");
        }
        assert!(!is_at(at("10.0.0.7"), &[], is_here));
    }
}
