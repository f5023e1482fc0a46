//! Volumes and data as they are stored: how they lie on agents, and who has them.

use std::collections::BTreeMap;

use netraid_cluster::{
    Problem,
    agent::Label,
    mediator::{CleanClose, Kind, Layout},
};
use netraid_control::{
    lease::{Access, Holder, LeaseState},
    placement::{Load, Traffic},
    units::{AgentId, Generation, PlanId, SegmentId, VolumeId},
};
use netraid_raid::{
    geometry::{Geometry, Level},
    member::{MemberIndex, MemberSet},
};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use crate::store::{Sql, aside, decode, encode, from_word, one, word};

/// Logical block of what lies on agents.
const BLOCK_LEN: u32 = 512;

/// How far a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Its space is being booked.
    Creating,
    /// Its segments are being made.
    Booked,
    /// It can be opened.
    Ready,
    /// Its segments are being removed. It has no name any more.
    Removing,
}

/// How it lies on agents, and what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) version: u32,
    pub(crate) kind: Kind,
    pub(crate) layout: Layout,
    /// None for what has no bytes, or is not placed yet.
    pub(crate) placed: Option<Placed>,
    pub(crate) is_formatted: bool,
    /// Of an upload: bytes that are to be there in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upload_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Placed {
    pub(crate) level: u8,
    pub(crate) chunk_len: u32,
    pub(crate) logged: bool,
    pub(crate) member_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) reasons: Vec<String>,
    /// In the array's order.
    pub(crate) members: Vec<Member>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Member {
    pub(crate) agent: AgentId,
    pub(crate) segment: SegmentId,
    /// In the place of a lost one, and not known to be rebuilt.
    pub(crate) is_fresh: bool,
}

impl Placed {
    pub(crate) fn geometry(&self) -> Result<Geometry, Problem> {
        let level = Level::from_number(self.level);
        let geometry = level.and_then(|level| {
            Geometry::new(level, self.members.len(), self.chunk_len, BLOCK_LEN, 0, 0).ok()
        });
        geometry.ok_or_else(|| Problem::internal("a stored volume of no possible shape"))
    }

    /// What moving its data takes of each member.
    pub(crate) fn load(&self, kind: Kind, request_bytes: u64, lost: u8) -> Result<Load, Problem> {
        let traffic = Traffic { request_bytes, gathered: kind == Kind::Data, lost };
        Ok(Load::new(&self.geometry()?, &traffic))
    }

    pub(crate) fn agents(&self) -> impl Iterator<Item = AgentId> {
        self.members.iter().map(|member| member.agent)
    }

    fn has_an_agent_twice(&self) -> bool {
        self.agents().enumerate().any(|(at, agent)| self.agents().take(at).any(|it| it == agent))
    }
}

/// Those members for which `is` holds.
pub(crate) fn members_that(
    members: &[Member],
    mut is: impl FnMut(usize, &Member) -> bool,
) -> MemberSet {
    let indices = (0..).map(MemberIndex);
    let those = members.iter().enumerate().zip(indices);
    those.filter(|((at, member), _)| is(*at, member)).map(|(_, index)| index).collect()
}

/// How the last writer left a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Closed {
    version: u32,
    /// Who that was.
    plan: PlanId,
    /// Of the volume, that it had.
    generation: Generation,
    clean_close: CleanClose,
}

/// A row.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) state: State,
    pub(crate) lease: LeaseState,
    pub(crate) record: Record,
    closed: Option<Closed>,
    /// The generation that is stored.
    stored: Generation,
}

impl Volume {
    pub(crate) fn new(id: VolumeId, kind: Kind, layout: Layout) -> Self {
        let (placed, is_formatted, upload_bytes) = (None, false, None);
        let record = Record { version: 1, kind, layout, placed, is_formatted, upload_bytes };
        let lease = LeaseState::default();
        let stored = lease.generation();
        Self { id, state: State::Ready, lease, record, closed: None, stored }
    }

    /// Whether there is a row of this, whatever it holds.
    pub(crate) fn is_there(connection: &Connection, id: VolumeId) -> Sql<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM volumes WHERE id = ?1)";
        connection.prepare_cached(sql)?.query_row([id.0], |row| row.get(0))
    }

    pub(crate) fn load(connection: &Connection, id: VolumeId) -> Sql<Option<Self>> {
        let sql = "SELECT state, lease, record, closed FROM volumes WHERE id = ?1";
        let mut query = connection.prepare_cached(sql)?;
        let read = |row: &rusqlite::Row<'_>| {
            let lease: LeaseState = decode(row.get_ref(1)?.as_str()?)?;
            let record: Record = decode(row.get_ref(2)?.as_str()?)?;
            // What is booked for a volume is booked once on each agent.
            if record.placed.as_ref().is_some_and(Placed::has_an_agent_twice) {
                let why = "a stored volume has two members on one agent".into();
                let text = rusqlite::types::Type::Text;
                return Err(rusqlite::Error::FromSqlConversionFailure(2, text, why));
            }
            Ok(Self {
                id,
                state: from_word(row.get_ref(0)?.as_str()?)?,
                stored: lease.generation(),
                lease,
                record,
                closed: row.get_ref(3)?.as_str_or_null()?.map(decode).transpose()?,
            })
        };
        let read = |row: &rusqlite::Row<'_>| read(row).map_err(|error| aside("volumes", id, error));
        query.query_row([id.0], read).optional()
    }

    pub(crate) fn insert(&self, connection: &Connection) -> Sql<()> {
        let sql = "INSERT INTO volumes (id, state, lease, is_raised, record) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let (lease, record) = (encode(&self.lease)?, encode(&self.record)?);
        let values = params![self.id.0, word(&self.state)?, lease, self.has_no_raise_due(), record];
        connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// Stores who has it, or how it was left.
    pub(crate) fn save_lease(&self, connection: &Connection) -> Sql<()> {
        let sql = "UPDATE volumes SET lease = ?2, is_raised = ?3, closed = ?4 WHERE id = ?1";
        assert!(self.lease.generation() >= self.stored, "generations never fall");
        let closed = self.closed.as_ref().filter(|closed| self.is_of_now(closed));
        let closed = closed.map(encode).transpose()?;
        let values = params![self.id.0, encode(&self.lease)?, self.has_no_raise_due(), closed];
        one(connection.prepare_cached(sql)?.execute(values)?)?;
        Ok(())
    }

    /// How it was left, if nobody could write to it since: each writer has a generation of its own, and
    /// so has everybody who comes after one that was shut out, or that is not known here.
    pub(crate) fn clean_close(&self) -> Option<&CleanClose> {
        let closed = self.closed.as_ref().filter(|closed| self.is_of_now(closed));
        closed.map(|closed| &closed.clean_close)
    }

    fn is_of_now(&self, closed: &Closed) -> bool {
        (closed.plan, closed.generation) == (self.lease.taken_by(), self.lease.generation())
    }

    /// A plan gives it back, which says how it left it. Counts from a writer alone, and for segments
    /// that are members.
    pub(crate) fn release(&mut self, plan: PlanId, clean_close: Option<CleanClose>) {
        let is_writer = |(access, by): (_, &Holder)| access == Access::Write && by.plan == plan;
        let writes = self.lease.holders().any(is_writer);
        let generation = self.lease.generation();
        self.lease = self.lease.release(plan);
        let members = self.record.placed.as_ref().map_or(&[][..], |placed| &placed.members);
        let is_member = |segment: &SegmentId| members.iter().any(|one| one.segment == *segment);
        if let Some(mut clean_close) = clean_close.filter(|_| writes) {
            clean_close.in_sync.retain(is_member);
            self.closed = Some(Closed { version: 1, plan, generation, clean_close });
        }
    }

    /// Whether nobody has to look after its generation: all agents have it, or it is being removed.
    fn has_no_raise_due(&self) -> bool {
        self.lease.is_raised() || self.state == State::Removing
    }

    /// Stores how it is, but not who has it.
    pub(crate) fn save(&self, connection: &Connection) -> Sql<()> {
        let sql = "UPDATE volumes SET state = ?2, record = ?3 WHERE id = ?1";
        let values = params![self.id.0, word(&self.state)?, encode(&self.record)?];
        one(connection.prepare_cached(sql)?.execute(values)?)?;
        Ok(())
    }

    pub(crate) fn label(&self, member: usize, path: &str, length_bytes: u64) -> Option<Label> {
        let placed = self.record.placed.as_ref()?;
        Some(Label {
            version: 1,
            volume: self.id,
            path: path.to_owned(),
            kind: self.record.kind,
            member: u16::try_from(member).ok()?,
            members: u16::try_from(placed.members.len()).ok()?,
            level: placed.level,
            chunk_len: placed.chunk_len,
            logged: placed.logged,
            capacity_bytes: placed.capacity_bytes,
            length_bytes,
            generation: self.lease.generation(),
            share: None,
            wrapped_key: None,
            sealed_path: None,
            more: BTreeMap::new(),
        })
    }
}

pub(crate) fn delete(connection: &Connection, id: VolumeId) -> Sql<()> {
    connection.prepare_cached("DELETE FROM volumes WHERE id = ?1")?.execute([id.0]).map(drop)
}

/// Ids of volumes in some state that is not `ready`; as many at most.
pub(crate) fn in_state(connection: &Connection, state: State, limit: u32) -> Sql<Vec<VolumeId>> {
    let sql = "SELECT id FROM volumes WHERE state = ?1 AND state <> 'ready' LIMIT ?2";
    let mut query = connection.prepare_cached(sql)?;
    query.query_map(params![word(&state)?, limit], |row| row.get(0).map(VolumeId))?.collect()
}

/// Volumes by id whose agents are not all known to have their generation.
pub(crate) fn unraised(connection: &Connection, after: VolumeId, limit: u32) -> Sql<Vec<VolumeId>> {
    let sql = "SELECT id FROM volumes WHERE is_raised = 0 AND id > ?1 ORDER BY id LIMIT ?2";
    let mut query = connection.prepare_cached(sql)?;
    query.query_map(params![after.0, limit], |row| row.get(0).map(VolumeId))?.collect()
}

/// What a row of segments says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SegmentState {
    /// A member.
    Live,
    /// To take the place of one.
    Spare,
    /// Was a member until another took its place, which is not rebuilt yet: what is lost of the others
    /// may be found here.
    Former,
    /// To be removed.
    Gone,
}

pub(crate) fn insert_segment(
    connection: &Connection,
    volume: VolumeId,
    member: &Member,
    state: SegmentState,
) -> Sql<()> {
    let sql = "INSERT OR REPLACE INTO segments VALUES (?1, ?2, ?3, ?4)";
    let values = params![member.segment.0, member.agent.0, volume.0, word(&state)?];
    connection.prepare_cached(sql)?.execute(values).map(drop)
}

pub(crate) fn set_segment(
    connection: &Connection,
    segment: SegmentId,
    state: SegmentState,
) -> Sql<()> {
    let sql = "UPDATE segments SET state = ?2 WHERE segment = ?1";
    connection.prepare_cached(sql)?.execute(params![segment.0, word(&state)?]).map(drop)
}

pub(crate) fn delete_segment(connection: &Connection, segment: SegmentId) -> Sql<()> {
    let sql = "DELETE FROM segments WHERE segment = ?1";
    connection.prepare_cached(sql)?.execute([segment.0]).map(drop)
}

/// All segments of a volume are to be removed.
pub(crate) fn drop_segments(connection: &Connection, volume: VolumeId) -> Sql<()> {
    let sql = "UPDATE segments SET state = 'gone' WHERE volume = ?1";
    connection.prepare_cached(sql)?.execute([volume.0]).map(drop)
}

/// Segments of a volume that others have replaced are to be removed.
pub(crate) fn drop_former(connection: &Connection, volume: VolumeId) -> Sql<()> {
    let sql = "UPDATE segments SET state = 'gone' WHERE volume = ?1 AND state = 'former'";
    connection.prepare_cached(sql)?.execute([volume.0]).map(drop)
}

/// An agent's segments that are to be removed; as many at most.
pub(crate) fn gone_segments(
    connection: &Connection,
    agent: AgentId,
    limit: u32,
) -> Sql<Vec<(SegmentId, VolumeId)>> {
    let sql = "SELECT segment, volume FROM segments \
               WHERE state = 'gone' AND state <> 'live' AND agent = ?1 LIMIT ?2";
    let mut query = connection.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| Ok((SegmentId(row.get(0)?), VolumeId(row.get(1)?)));
    query.query_map(params![agent.0, limit], read)?.collect()
}

/// A volume's segments that are to be removed, and where they are.
pub(crate) fn segments_of_volume(
    connection: &Connection,
    volume: VolumeId,
) -> Sql<Vec<(SegmentId, AgentId)>> {
    let sql = "SELECT segment, agent FROM segments WHERE volume = ?1 AND state = 'gone'";
    let mut query = connection.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| Ok((SegmentId(row.get(0)?), AgentId(row.get(1)?)));
    query.query_map([volume.0], read)?.collect()
}

/// Agents that have segments to be removed.
pub(crate) fn agents_with_gone(connection: &Connection) -> Sql<Vec<AgentId>> {
    let sql = "SELECT DISTINCT agent FROM segments WHERE state = 'gone' AND state <> 'live'";
    let mut query = connection.prepare_cached(sql)?;
    query.query_map([], |row| row.get(0).map(AgentId))?.collect()
}

/// Segments that were to take the place of a member.
pub(crate) fn spare_segments(connection: &Connection) -> Sql<Vec<SegmentId>> {
    let sql = "SELECT segment FROM segments WHERE state = 'spare' AND state <> 'live'";
    connection.prepare_cached(sql)?.query_map([], |row| row.get(0).map(SegmentId))?.collect()
}

pub(crate) fn is_spare(connection: &Connection, segment: SegmentId) -> Sql<bool> {
    let sql = "SELECT 1 FROM segments WHERE segment = ?1 AND state = 'spare'";
    connection.prepare_cached(sql)?.exists([segment.0])
}

/// A part of the segments on an agent that are not to be removed, by id.
pub(crate) fn segments_of(
    connection: &Connection,
    agent: AgentId,
    after: Option<SegmentId>,
    limit: u32,
) -> Sql<Vec<(SegmentId, SegmentState, VolumeId)>> {
    let sql = "SELECT segment, state, volume FROM segments \
               WHERE agent = ?1 AND segment > ?2 ORDER BY segment LIMIT ?3";
    let after = after.map_or(Vec::new(), |after| after.0.to_vec());
    let mut query = connection.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        let state = from_word(row.get_ref(1)?.as_str()?)?;
        Ok((SegmentId(row.get(0)?), state, VolumeId(row.get(2)?)))
    };
    query.query_map(params![agent.0, after, limit], read)?.collect()
}

/// Segments that are, or are to be, members, on an agent.
pub(crate) fn count_segments(connection: &Connection, agent: AgentId) -> Sql<u64> {
    let sql = "SELECT count(*) FROM segments WHERE agent = ?1 AND state <> 'gone'";
    connection.prepare_cached(sql)?.query_row([agent.0], |row| crate::store::uint(row, 0))
}

/// Volumes with segments on an agent that are, or are to be, members; so many of them.
pub(crate) fn some_on(connection: &Connection, agent: AgentId, limit: u32) -> Sql<Vec<VolumeId>> {
    let sql = "SELECT DISTINCT volume FROM segments WHERE agent = ?1 AND state <> 'gone' LIMIT ?2";
    let mut query = connection.prepare_cached(sql)?;
    query.query_map(params![agent.0, limit], |row| row.get(0).map(VolumeId))?.collect()
}

/// Forgets a volume that is being removed once it has no segments, whatever else its row says: nothing of it is left.
pub(crate) fn forget(connection: &Connection, id: VolumeId) -> Sql<()> {
    let sql = "DELETE FROM volumes WHERE id = ?1 AND state = 'removing' \
               AND NOT EXISTS (SELECT 1 FROM segments WHERE volume = ?1)";
    connection.prepare_cached(sql)?.execute([id.0]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::STEPS;

    #[test]
    fn a_stored_volume_with_two_members_on_one_agent_is_refused() {
        let connection = Connection::open_in_memory().unwrap();
        STEPS.iter().for_each(|step| connection.execute_batch(step).unwrap());
        let on = |agents: [u8; 3]| {
            let member = |agent: u8| {
                let (agent, segment) = (AgentId([agent; 16]), SegmentId([agent; 16]));
                Member { agent, segment, is_fresh: false }
            };
            Placed {
                level: 5,
                chunk_len: 65_536,
                logged: true,
                member_bytes: 1 << 30,
                capacity_bytes: 2 << 30,
                reasons: Vec::new(),
                members: agents.into_iter().map(member).collect(),
            }
        };
        for (id, agents, is_sound) in [(1, [1, 2, 3], true), (2, [1, 2, 1], false)] {
            let id = VolumeId([id; 16]);
            let mut volume = Volume::new(id, Kind::Volume, Layout::default());
            volume.record.placed = Some(on(agents));
            volume.insert(&connection).unwrap();
            let loaded = Volume::load(&connection, id);
            assert_eq!(loaded.is_ok(), is_sound, "{loaded:?}");
        }
    }

    #[test]
    fn a_volume_that_is_removed_is_forgotten_although_its_row_cannot_be_read() {
        let connection = Connection::open_in_memory().unwrap();
        STEPS.iter().for_each(|step| connection.execute_batch(step).unwrap());
        let [removed, ready, held] = [1, 2, 3].map(|id| VolumeId([id; 16]));
        for (id, state) in
            [(removed, State::Removing), (ready, State::Ready), (held, State::Removing)]
        {
            let volume = Volume { state, ..Volume::new(id, Kind::Volume, Layout::default()) };
            volume.insert(&connection).unwrap();
        }
        let (agent, segment) = (AgentId([1; 16]), SegmentId([1; 16]));
        let member = Member { agent, segment, is_fresh: false };
        insert_segment(&connection, held, &member, SegmentState::Gone).unwrap();
        let later = "UPDATE volumes SET record = json_set(record, '$.later', 1)";
        assert_eq!(connection.execute(later, []).unwrap(), 3);
        for id in [removed, ready, held] {
            forget(&connection, id).unwrap();
        }
        let is_there = |id: VolumeId| Volume::load(&connection, id).is_err();
        assert_eq!([removed, ready, held].map(is_there), [false, true, true]);
        delete_segment(&connection, segment).unwrap();
        forget(&connection, held).unwrap();
        assert!(!is_there(held));
    }

    #[test]
    fn a_change_of_what_is_not_stored_is_an_error() {
        let connection = Connection::open_in_memory().unwrap();
        STEPS.iter().for_each(|step| connection.execute_batch(step).unwrap());
        let volume = Volume::new(VolumeId([1; 16]), Kind::Volume, Layout::default());
        assert!(volume.save_lease(&connection).is_err());
        volume.insert(&connection).unwrap();
        volume.save_lease(&connection).unwrap();
    }
}
