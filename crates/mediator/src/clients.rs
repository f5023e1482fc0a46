//! Clients of plans: what they say of themselves, which of them are gone, and who stands in the way.
//!
//! Whoever opens what only clients have that are gone takes it over, as with `--take-over`; who removes or renames it is told
//! who has it. Nothing of it is stored: a mediator that starts knows of no client until it is heard of.

use std::{convert::Infallible, time::Duration};

use netraid_cluster::{
    Code, Problem,
    mediator::{Mode, PlanBeat, PlanBeaten},
    now,
};
use netraid_control::{
    clients::{BEAT_MS, held_by},
    lease::Access,
    units::PlanId,
};
use rusqlite::Connection;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    core::Core,
    lock,
    names::{self, Path},
    renew::own,
    store::{Sql, look},
    volume::Volume,
};

const TICK: Duration = Duration::from_secs(1);

/// The client of a plan is there.
pub(crate) async fn beat(
    core: &Core,
    owner: Option<u64>,
    id: PlanId,
    beat: PlanBeat,
) -> Result<PlanBeaten, Problem> {
    // Also where it is known: who has been shut out hears of that soon.
    look(&core.store, move |connection| own(connection, id, owner)).await?;
    lock(&core.clients).handle_beat(core.running_ms(), id, beat.process);
    Ok(PlanBeaten { beat_ms: BEAT_MS })
}

/// Says each second that the mediator runs, beside all that it does.
pub(crate) async fn tick(core: &Core) -> Infallible {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        lock(&core.clients).handle_tick(core.running_ms());
    }
}

/// Plans that stand in the way of somebody who wants what has one of these paths.
fn holders(connection: &Connection, paths: &[Path], wanted: Access) -> Sql<Vec<PlanId>> {
    let mut holders = Vec::new();
    for path in paths {
        let Ok(name) = names::find(connection, path)? else { continue };
        let Some(volume) = Volume::load(connection, name.id)? else { continue };
        let excluding = volume.lease.excluding(now(), wanted);
        holders.extend(excluding.map(|(_, holder)| holder.plan));
    }
    Ok(holders)
}

/// Whether all plans that keep what has this path from somebody who wants to open it so are of clients that are gone; not
/// where there is none.
pub(crate) async fn are_gone(core: &Core, path: &Path, wanted: Mode) -> Result<bool, Problem> {
    if lock(&core.clients).gone(core.running_ms()).is_empty() {
        return Ok(false);
    }
    let paths = [path.clone()];
    let wanted = match wanted {
        Mode::Read => Access::Read,
        Mode::Write => Access::Write,
    };
    let find = move |connection: &Connection| holders(connection, &paths, wanted).map(Ok);
    let held = look(&core.store, find).await?;
    let gone = lock(&core.clients).gone(core.running_ms());
    Ok(!held.is_empty() && held.iter().all(|plan| gone.contains(plan)))
}

/// A refusal for want of what others have, with who that is and what ends it.
pub(crate) async fn with_holder(core: &Core, problem: Problem, paths: &[Path]) -> Problem {
    if problem.code != Code::Conflict {
        return problem;
    }
    let paths = paths.to_vec();
    // Whoever removes or renames is refused for readers, too.
    let find = move |connection: &Connection| holders(connection, &paths, Access::Write).map(Ok);
    let held = look(&core.store, find).await;
    let Some(plan) = held.unwrap_or_default().into_iter().next() else { return problem };
    let held = {
        let clients = lock(&core.clients);
        held_by(plan, clients.find(core.running_ms(), plan))
    };
    Problem { detail: format!("{}; {held}", problem.detail), ..problem }
}
