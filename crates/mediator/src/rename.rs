//! Giving something another name, also one that something else has: that one is removed in the same
//! change, so that the name stands for the old or for the new, whole, whenever this ends.

use std::sync::{Arc, atomic::Ordering};

use netraid_cluster::{
    Problem,
    mediator::{Entry, Kind, Rename},
};
use netraid_control::units::VolumeId;
use rusqlite::Connection;

use crate::{
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
    let (from, to) = (Path::parse(&rename.from)?, Path::parse(&rename.to)?);
    let shown = to.to_string();
    let renamed = change(&core.store, move |connection| begin(connection, &from, &to, &rename));
    let Renamed { name, volume, replaced } = renamed.await?;
    if let Some(volume) = &volume {
        relabel(core, volume, &shown, name.length_bytes);
    }
    if let Some(replaced) = replaced {
        core.names.fetch_sub(1, Ordering::Relaxed);
        end::finish_removal(core, replaced).await;
    }
    Ok(entry(core, &name, shown, volume.as_ref()))
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
    let volume = Volume::load(connection, name.id)?;
    Ok(Ok(Renamed { name, volume, replaced }))
}
