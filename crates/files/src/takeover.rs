//! Before a volume is taken over: whatever can refuse here is asked before the mediator shuts anybody
//! out, and a refusal leaves whoever has the volume as it is.

use std::{collections::HashMap, net::ToSocketAddrs as _, time::Duration};

use futures_util::future::join_all;
use netraid_cluster::mediator::{Entry, Mode, Stored};
use netraid_control::{
    fencing::{self, Unfit},
    units::{AgentId, VolumeId},
};
use netraid_engine::array::{ArrayError, HostLock};
use netraid_raid::{
    geometry::{Geometry, Level},
    member::{MemberIndex, MemberSet},
};
use tokio::{net::TcpStream, time::timeout};

use crate::{Cluster, Error, VolumeOptions};

/// How long an agent's target may take to be connected to.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Files and sockets beside those of the members: the array's lock, connections to the mediator, and what
/// looking up a name takes.
const DESCRIPTORS_BESIDE: u64 = 6;
/// Bytes of a segment's logical block.
const BLOCK_LEN: u32 = 512;

/// Keeps other processes of this machine from opening a volume to write.
///
/// # Errors
/// When one of them has it.
pub(crate) fn lock(path: &str, id: VolumeId) -> Result<HostLock, Error> {
    let path = path.to_owned();
    HostLock::take(&format!("volume-{id}"), &path).map_err(|error| {
        if let ArrayError::Locked { path: lock, who, .. } = error {
            return Error::InUse { path, lock, who };
        }
        Error::Array { path, source: Box::new(error) }
    })
}

/// Looks at all that can refuse here; the volume that was looked at, and its lock.
///
/// # Errors
/// When the volume could not be opened from here if it was taken over.
pub(crate) async fn prepare(
    cluster: &Cluster,
    path: &str,
    options: &VolumeOptions,
) -> Result<(VolumeId, Option<HostLock>), Error> {
    let entry = match options.upload {
        true => cluster.stat_upload(path).await?,
        false => cluster.stat(path).await?,
    };
    // The mediator refuses it: nothing of this host is needed for that.
    if options.kind.is_some_and(|kind| kind != entry.kind) {
        return Ok((entry.id, None));
    }
    let lock = match options.mode {
        Mode::Write => Some(lock(path, entry.id)?),
        Mode::Read => None,
    };
    if let Some(stored) = &entry.stored {
        if options.mode == Mode::Read && !stored.formatted {
            return Err(Error::Kind {
                path: path.to_owned(),
                what: "nothing was ever written to it",
            });
        }
        check_descriptors(path, stored)?;
        reach(cluster, &entry, stored).await?;
    }
    Ok((entry.id, lock))
}

/// Whether this host has what it takes to write something of the shape of this.
///
/// # Errors
/// When locks cannot be taken here, or too few files can be opened.
pub(crate) fn check_host(entry: &Entry) -> Result<(), Error> {
    match lock(&entry.path, entry.id) {
        // Whoever has it here is no hindrance to something else.
        Ok(_) | Err(Error::InUse { .. }) => {}
        Err(error) => return Err(error),
    }
    entry.stored.as_ref().map_or(Ok(()), |stored| check_descriptors(&entry.path, stored))
}

/// Whether this process may open the files and sockets that an array of so many members takes.
fn check_descriptors(path: &str, stored: &Stored) -> Result<(), Error> {
    let (free, needed) = (netraid_private::free_descriptors(), descriptors(stored.members.len()));
    if free >= needed {
        return Ok(());
    }
    let why = format!(
        "{free} more files and sockets can be opened, and {needed} are needed (raise the limit, as \
         `ulimit -n` does)"
    );
    Err(Error::NotTaken { path: path.to_owned(), why })
}

/// Files and sockets that an array of so many members takes while it is opened: two sessions of each, of
/// which the first is closed when there is the second, and [`DESCRIPTORS_BESIDE`].
const fn descriptors(members: usize) -> u64 {
    2 * members as u64 + DESCRIPTORS_BESIDE
}

/// Whether as many agents can be reached from here as it takes.
async fn reach(cluster: &Cluster, entry: &Entry, stored: &Stored) -> Result<(), Error> {
    let agents = cluster.agents().await?;
    let portals: HashMap<AgentId, String> =
        agents.into_iter().map(|agent| (agent.status.agent, agent.status.portal)).collect();
    let tried = stored.members.iter().map(|member| answers(portals.get(&member.agent)));
    let answering = (0..).map(MemberIndex).zip(join_all(tried).await);
    let answering: MemberSet =
        answering.filter_map(|(at, is_there)| is_there.then_some(at)).collect();
    let geometry = Level::from_number(stored.level).and_then(|level| {
        Geometry::new(level, stored.members.len(), stored.chunk_len, BLOCK_LEN, 0, 0).ok()
    });
    let path = entry.path.clone();
    let none = || Error::Plan { path: path.clone(), why: "a shape of its own".to_owned() };
    match fencing::judge(&geometry.ok_or_else(none)?, answering) {
        Err(why @ Unfit::TooFew { .. }) => Err(Error::NotTaken { path, why: why.to_string() }),
        // The mediator knows whether there is anybody to be shut out, and reaches agents that this does
        // not.
        Ok(()) | Err(Unfit::Unfenced { .. }) => Ok(()),
    }
}

/// Whether an agent's target takes connections.
async fn answers(portal: Option<&String>) -> bool {
    let Some(portal) = portal.cloned() else { return false };
    let found = tokio::task::spawn_blocking(move || portal.to_socket_addrs().map(Vec::from_iter));
    let connected = async {
        let Ok(Ok(addresses)) = found.await else { return false };
        TcpStream::connect(&addresses[..]).await.is_ok()
    };
    timeout(CONNECT_LIMIT, connected).await.unwrap_or(false)
}
