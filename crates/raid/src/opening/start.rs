//! The machine of an array whose members are this engine's, and what runs around it.

use alloc::{boxed::Box, vec::Vec};

use netraid_block::{DeviceInfo, IoError};

use super::{Engine, OpenError, Opened, Opening, own::Held};
use crate::{
    access::Failure,
    array::{ArrayMachine, MemberCaps, OpenConfig},
    assemble::{Assembly, Found},
    executor::Executor,
    label::{Holder, Label},
    logged::{FoundMember, LoggedArray, OpenConfig as LoggedConfig},
    member::{MemberIndex, MemberState},
    volume::{Logged, Plain, PlainOrLogged, logged_caps},
    written::WrittenBits,
};

/// Largest request to a member, in bytes; neighbours are merged up to it.
const MEMBER_IO_LEN_MAX: u32 = 1 << 20;
/// Largest request that the array takes at once, in bytes.
const TRANSFER_LEN_MAX: u32 = 32 << 20;

/// For each member in order: its label, and the counter of its newest checkpoint.
pub(super) type Labels = Vec<Option<(Label, Option<u64>)>>;

impl<E: Failure> Opening<E> {
    /// Makes the machine. It weighs the labels of those members alone that it has, and without those that were left
    /// out, it may not be clear any more which one counts.
    pub(super) fn start(
        &self,
        held: Held,
        (written, labels): (Option<WrittenBits>, Labels),
        liars: Vec<(MemberIndex, usize)>,
        engine: Engine,
    ) -> Result<Opened<E>, OpenError<E>> {
        let Held { assembly, places, fence } = held;
        let info_of = |place: &Option<usize>| place.and_then(|at| self.devices[at].as_ref());
        let infos: Vec<Option<&DeviceInfo>> =
            places.iter().map(|place| info_of(place).map(|device| &device.info)).collect();
        let caps: Vec<MemberCaps> =
            infos.iter().map(|info| info.map(caps).unwrap_or_default()).collect();
        let limits = infos.iter().flatten().map(|info| info.max_transfer_len);
        let merged = limits.min().unwrap_or(MEMBER_IO_LEN_MAX).min(MEMBER_IO_LEN_MAX);
        let max_io_len = merged.max(assembly.label.geometry.chunk_len());
        let read_only = self.options.read_only;
        let volatile_cache = caps.iter().any(|caps| caps.volatile_cache);
        let info = volume_info(&assembly, read_only, volatile_cache);
        // Who only reads does not keep others from writing, and hears of it by its next read of a member. In a cluster the
        // mediator keeps writers away.
        let can_read_ahead = !read_only || self.options.is_placed;
        let generation = assembly.label.generation;
        let holder = self.this.clone();
        let engine_id = holder.engine_id;
        let machine = match written {
            Some(written) => {
                let trust_parity = self.options.force;
                let config = OpenConfig { read_only, trust_parity, holder, caps, max_io_len };
                let machine = ArrayMachine::open(&assembly, written, config);
                PlainOrLogged::Plain(Box::new(Plain::new(machine, Executor::new(engine.pool))))
            }
            None => {
                let members = logged_members(&assembly, labels, &caps, read_only);
                let logged = start_logged(members, (holder, max_io_len, read_only), engine);
                PlainOrLogged::Logged(Box::new(logged.map_err(OpenError::Machine)?))
            }
        };
        let is_unused = |at: &usize| !places.contains(&Some(*at));
        let unused = self.reached().into_iter().filter(is_unused).collect();
        let notes = Vec::new();
        Ok(Opened {
            machine,
            info,
            can_read_ahead,
            generation,
            engine: engine_id,
            fence,
            places,
            liars,
            unused,
            notes,
        })
    }
}

/// Members that are left out, with their devices: those that the others contradict, that lie about written bits, and
/// that are `strangers`.
pub(super) fn liars(
    assembly: &Assembly,
    found: &[(usize, Found)],
    forgers: Vec<(MemberIndex, usize)>,
    strangers: Vec<(MemberIndex, usize)>,
) -> Vec<(MemberIndex, usize)> {
    let liar = |(at, _): &(usize, _)| {
        let (place, Found { label, .. }) = &found[*at];
        (label.index, *place)
    };
    // The place of a member that is there is not the liar's.
    let is_free = |(member, _): &(MemberIndex, usize)| {
        assembly.found.get(member.as_usize()).is_some_and(Option::is_none)
    };
    let liars = assembly.liars.iter().map(liar).filter(is_free).chain(forgers).chain(strangers);
    // More members may be given, or told of, than the array has: nobody comes back to such a place.
    liars.filter(|(member, _)| member.as_usize() < assembly.found.len()).collect()
}

const fn caps(info: &DeviceInfo) -> MemberCaps {
    MemberCaps { volatile_cache: info.volatile_cache, can_discard: info.can_discard }
}

/// The members of an array with a log, by their labels and what their devices can do.
fn logged_members(
    assembly: &Assembly,
    labels: Labels,
    caps: &[MemberCaps],
    read_only: bool,
) -> Vec<Option<FoundMember>> {
    // Who is not in sync cannot catch up when nothing is written.
    let serves = |at: usize| !read_only || assembly.label.members[at].state == MemberState::InSync;
    let members = labels.into_iter().zip(caps).enumerate().map(|(at, (label, caps))| {
        let (label, checkpoint) = label.filter(|_| serves(at))?;
        Some(FoundMember { caps: logged_caps(*caps), label, checkpoint })
    });
    members.collect()
}

fn start_logged(
    members: Vec<Option<FoundMember>>,
    (holder, max_io_len, read_only): (Holder, u32, bool),
    engine: Engine,
) -> Result<Logged, IoError> {
    let Engine { pool, limits, .. } = engine;
    let config = LoggedConfig { members, holder, max_io_len, pool, limits };
    Ok(Logged::new(LoggedArray::open(config)?, read_only, max_io_len))
}

fn volume_info(assembly: &Assembly, read_only: bool, volatile_cache: bool) -> DeviceInfo {
    let geometry = assembly.label.geometry;
    DeviceInfo {
        capacity: geometry.capacity(),
        block_len: geometry.block_len(),
        optimal_len: u32::try_from(geometry.stripe_data_len()).unwrap_or(geometry.chunk_len()),
        max_transfer_len: TRANSFER_LEN_MAX,
        read_only,
        volatile_cache,
        can_discard: true,
        can_map: false,
    }
}
