//! Giving something another name, also one that something else has: that one is removed in the same
//! change, so that the name stands for the old or for the new, whole, whenever this ends.

use std::sync::{Arc, atomic::Ordering};

use netraid_cluster::{
    Code, Problem,
    mediator::{Entry, Kind, Rename},
    now,
};
use netraid_control::{lease::Access, units::VolumeId};
use rusqlite::Connection;

use crate::{
    clients,
    core::Core,
    create::{drop_named, entry},
    end,
    names::{self, Name, Path},
    replace::relabel,
    store::{Sql, change},
    volume::Volume,
};

/// What has another name now, and what has none any more.
struct Renamed {
    name: Name,
    volume: Option<Volume>,
    replaced: Option<VolumeId>,
}

/// Gives something another name. What was replaced is gone from all agents that answer when this is
/// over.
pub(crate) async fn rename(core: &Arc<Core>, rename: Rename) -> Result<Entry, Problem> {
    let (from, to) = (Path::new(&rename.from, rename.upload)?, Path::parse(&rename.to)?);
    let shown = to.text();
    let paths = [from.clone(), to.clone()];
    let renamed = change(&core.store, move |connection| begin(connection, &from, &to, &rename));
    let Renamed { name, volume, replaced } = match renamed.await {
        Ok(renamed) => renamed,
        Err(problem) => return Err(clients::with_holder(core, problem, &paths).await),
    };
    if let Some(volume) = &volume {
        relabel(core, volume, &shown, name.length_bytes);
    }
    if let Some(replaced) = replaced {
        core.names.fetch_sub(1, Ordering::Relaxed);
        end::finish_removal(core, replaced).await;
    }
    Ok(entry(core, &name, shown, volume.as_ref()))
}

/// An upload becomes data of its name when all of it is there, and anybody can read it at once.
fn check_upload(connection: &Connection, name: &Name, path: &Path) -> Sql<Result<(), Problem>> {
    let conflict = |detail: String| Ok(Err(Problem::new(Code::Conflict, detail)));
    let volume = if name.is_upload { Volume::load(connection, name.id)? } else { None };
    let Some(volume) = volume else { return Ok(Ok(())) };
    let (there, all) = (name.length_bytes, volume.record.upload_bytes.unwrap_or(name.length_bytes));
    if there != all {
        return conflict(format!("{path}: {there} of {all} bytes are there; go on with it first"));
    }
    match volume.lease.conflict(now(), Access::Read) {
        Some(writes) => conflict(format!("{path}: {writes}")),
        None => Ok(Ok(())),
    }
}

fn begin(
    connection: &Connection,
    from: &Path,
    to: &Path,
    rename: &Rename,
) -> Sql<Result<Renamed, Problem>> {
    let moved = match names::look_to_move(connection, from, to, rename.id)? {
        Ok(moved) => moved,
        Err(problem) => return Ok(Err(problem)),
    };
    if let Err(problem) = check_upload(connection, &moved.name, from)? {
        return Ok(Err(problem));
    }
    let mut replaced = None;
    if let Some(there) = moved.there.as_ref().filter(|there| there.id != moved.name.id) {
        if !rename.replace || there.is_pending {
            return Ok(Err(names::exists(to)));
        }
        if there.kind == Kind::Directory || there.kind != moved.name.kind {
            let detail = format!("{to} is another kind of thing, or a directory; remove it first");
            return Ok(Err(Problem::invalid(detail)));
        }
        if let Err(problem) = drop_named(connection, there, to, rename.force)? {
            return Ok(Err(problem));
        }
        replaced = Some(there.id);
    } else if moved.there.is_some() && !rename.replace {
        return Ok(Err(names::exists(to)));
    }
    let name = names::set(connection, moved)?;
    let mut volume = Volume::load(connection, name.id)?;
    if let Some(volume) = volume.as_mut().filter(|volume| volume.record.upload_bytes.is_some()) {
        volume.record.upload_bytes = None;
        volume.save(connection)?;
    }
    Ok(Ok(Renamed { name, volume, replaced }))
}
