//! From a plan to the array that its agents make up: the first labels, and the opening.
//!
//! Invariant: an array that was ever opened is never made again, whatever the mediator's store says;
//! and what the mediator says of the last close is handed to the array, which alone decides by it.

use netraid_block::Pool;
use netraid_cluster::mediator::{Mode, SetState, TransferPlan};
use netraid_engine::array::{
    self, Array, ArrayError, CreateOptions, LabelReport, Log, MemberConfig, OpenOptions,
};
use netraid_raid::{
    assemble::{AssembleError, CleanClose},
    geometry::{Geometry, Level},
    member::{MEMBERS_MAX, MemberIndex, MemberSet},
    regions::CHUNK_USUAL,
};

use crate::{Cluster, Error, VolumeOptions, keeper::Place};

/// Bytes of a segment's logical block.
const BLOCK_LEN: u32 = 512;

/// Why an array was not opened.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Nothing was written under the plan: the array is as it was left before.
    pub(crate) is_as_before: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, is_as_before: false }
    }
}

/// Logs in to the agents of a plan, and opens the array that they make up.
pub(crate) async fn assemble(
    cluster: &Cluster,
    plan: &TransferPlan,
    initiator: &str,
    options: &VolumeOptions,
    pool: &Pool,
) -> Result<(Array, Vec<Place>), Failed> {
    let path = &plan.entry.path;
    let wrong = |why: &str| Error::Plan { path: path.clone(), why: why.to_owned() };
    let stored = plan.entry.stored.as_ref().ok_or_else(|| wrong("it has no bytes"))?;
    if plan.members.len() > MEMBERS_MAX {
        return Err(wrong("it has more members than an array can have").into());
    }
    let places = plan.members.iter().map(|member| Place::new(path, member, initiator));
    let places: Vec<Place> = places.collect::<Result<_, _>>()?;
    let configs = || places.iter().map(|place| place.config.clone()).collect::<Vec<_>>();
    if !stored.formatted {
        if plan.mode == Mode::Read {
            return Err(wrong("nothing was ever written to it").into());
        }
        let level = Level::from_number(stored.level).ok_or_else(|| wrong("a level of its own"))?;
        let create = CreateOptions {
            name: plan.entry.id.to_string(),
            level,
            chunk_len: Some(stored.chunk_len),
            // The lease says that nobody else has it, and the mediator that nothing is in it.
            force: true,
            // Its store may be older than the volume.
            keep_opened: true,
            log: if stored.logged { Log::On(None) } else { Log::Off },
        };
        label(create, configs(), pool).await.map_err(|source| failed(path, source))?;
        let state = SetState { formatted: true, length_bytes: None, rebuilt: Vec::new() };
        cluster.set_state(plan.plan, &state).await.map_err(Error::from)?;
    }
    let open = OpenOptions {
        read_only: plan.mode == Mode::Read,
        // The lease is the proof that whoever had it has it no more: agents let nobody else in.
        take_over: plan.mode == Mode::Write,
        force: false,
        clean_close: clean_close(plan),
        is_placed: true,
        wants_all: false,
        caches: options.caches,
        reads_under_way: None,
        pause: options.pause,
        // Nobody stands by for it: its mediator says who may open it.
        heartbeats: false,
        silent: None,
    };
    let array = Array::open(open, configs(), pool.clone()).await.map_err(|source| Failed {
        is_as_before: stored.formatted && is_refused(&source),
        error: failed(path, source),
    })?;
    let array = array.with_path(path);
    if array.device().info().capacity < plan.entry.capacity_bytes {
        let _ = array.close().await;
        return Err(wrong("its members are too small for it").into());
    }
    Ok((array, places))
}

/// What the mediator knows of the last close, by the places of the plan's members.
fn clean_close(plan: &TransferPlan) -> Option<CleanClose> {
    let close = plan.clean_close.as_ref()?;
    let members = (0..).map(MemberIndex).zip(&plan.members);
    let held_all = members.filter(|(_, member)| close.in_sync.contains(&member.segment));
    let in_sync: MemberSet = held_all.map(|(index, _)| index).collect();
    Some(CleanClose { generation: close.generation, epoch: close.epoch, in_sync })
}

/// Whether an array was refused for what its labels say, or could not be read at all: before anything
/// is written to it.
const fn is_refused(error: &ArrayError) -> bool {
    matches!(
        error,
        ArrayError::Assemble { .. }
            | ArrayError::NoLabels(_)
            | ArrayError::Locked { .. }
            | ArrayError::Lock { .. }
    )
}

fn failed(path: &str, source: ArrayError) -> Error {
    let path = path.to_owned();
    if let ArrayError::Assemble { reason: AssembleError::Contested { missing, .. }, .. } = source {
        return Error::Contested { path, missing };
    }
    Error::Array { path, source: Box::new(source) }
}

/// Makes the array, unless it is there. What is lost before anything was written is no loss: the array
/// lacks it, and has it replaced as any other.
async fn label(
    create: CreateOptions,
    members: Vec<MemberConfig>,
    pool: &Pool,
) -> Result<(), ArrayError> {
    let found = array::examine(members.clone(), pool.clone()).await;
    let labels = found.iter().filter_map(|one| one.label.as_ref());
    let own: Vec<&LabelReport> = labels.filter(|label| label.name == create.name).collect();
    let Some(first) = own.first() else {
        return array::create_degraded(create, members, pool.clone()).await.map(drop);
    };
    let is_one = own.iter().all(|label| label.array_uuid == first.array_uuid);
    let is_made = is_one && own.len() == members.len();
    // A mediator whose store is older than the volume does not know what is there.
    if is_made || own.iter().any(|label| label.was_opened()) {
        return Ok(());
    }
    let chunk_len = create.chunk_len.unwrap_or(CHUNK_USUAL);
    let geometry = Geometry::new(create.level, members.len(), chunk_len, BLOCK_LEN, 0, 0);
    let those: MemberSet = own.iter().map(|label| MemberIndex(label.member)).collect();
    let is_enough = geometry.is_ok_and(|geometry| geometry.can_serve_from(those));
    // Its making was interrupted: it is made again if all are there, and none was opened. Else what is
    // away may have what the others lack.
    match array::create(create, members, pool.clone()).await {
        Err(error) if !is_enough => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
