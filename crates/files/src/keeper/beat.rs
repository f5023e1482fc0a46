//! Says to the mediator that the client of a plan is there, so that nobody has to wait for the plan's end when it is not.

use std::time::Duration;

use netraid_cluster::{Code, mediator::PlanBeat};
use netraid_control::{
    clients::{BEAT_MS, Process},
    units::PlanId,
};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::Answer;
use crate::Cluster;

/// A heartbeat that goes on until this is dropped.
pub(super) struct Beat(JoinHandle<()>);

impl Drop for Beat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Beat {
    /// Begins to say that this process has the plan; says to its keeper when the mediator does not know that any more.
    pub(super) fn start(cluster: Cluster, plan: PlanId, keeper: mpsc::Sender<Answer>) -> Self {
        Self(tokio::spawn(async move {
            let beat = PlanBeat { process: this_process() };
            let mut beat_ms = BEAT_MS;
            loop {
                // A mediator of an earlier version takes none, and may be replaced by a later one meanwhile.
                if cluster.hears_beats() {
                    // One that hangs is given up: the next one goes by another connection.
                    let beaten = timeout(Duration::from_millis(BEAT_MS), cluster.beat(plan, &beat));
                    match beaten.await {
                        Err(_) => continue,
                        Ok(Ok(beaten)) => beat_ms = beaten.beat_ms.clamp(BEAT_MS / 10, BEAT_MS),
                        Ok(Err(error)) => {
                            let code = error.problem().map(|problem| problem.code);
                            let is_gone = code == Some(Code::Absent) && cluster.hears_beats();
                            if is_gone && keeper.send(Answer::Gone).await.is_err() {
                                return;
                            }
                        }
                    }
                }
                tokio::time::sleep(Duration::from_millis(beat_ms)).await;
            }
        }))
    }
}

fn this_process() -> Process {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Process { host: host.trim().to_owned(), pid: std::process::id() }
}
