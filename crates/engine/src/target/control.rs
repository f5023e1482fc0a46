//! Commands to a running target: they travel to its thread, and are carried out between two steps
//! of its connections.
//!
//! What changes a LUN waits for the commands at its device, for a bounded time; everything else
//! is answered at once. Nothing here is on the path of a SCSI command.

use std::{sync::Arc, time::Duration};

use netraid_block::Device;
use netraid_control::units::{Generation, MediatorId, Moment, PlanId, SegmentId};
use netraid_iscsi_proto::target::{ConnectionId, Realm, SessionView};
use netraid_node::{Gate, Policy, segments::ORDER_LIMIT};
use netraid_scsi::{AddUnitError, Identity, LUN_MAX, LogicalUnit, Reservations, UnitConfig};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Lun, Shared,
    luns::ServedLun,
    pacing::{Pace, PaceError},
    realm::ServedRealm,
    reports::TargetReport,
};

/// Commands that wait for the target's thread.
const JOBS_MAX: usize = 16;
/// How long commands at a device are waited for.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce(Arc<Shared>) + Send>;
/// Where the target's thread takes its commands from.
pub(super) type Jobs = mpsc::Receiver<Job>;
/// What a target holds as long as anything of it is left.
pub(super) type Life = watch::Sender<()>;

/// A way to command a running target; clones lead to the same one.
#[derive(Clone)]
pub struct TargetHandle {
    jobs: mpsc::Sender<Job>,
    life: watch::Receiver<()>,
}

impl std::fmt::Debug for TargetHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TargetHandle")
    }
}

/// Why a target does not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It has ended.
    #[error("the target has ended")]
    Ended,
    /// No such LUN.
    #[error("LUN {number}: there is none; the target has {luns}")]
    NoLun {
        /// The number.
        number: u16,
        /// What there is.
        luns: String,
    },
    /// The number cannot be given.
    #[error("LUN {number}: the largest is {LUN_MAX}")]
    TooLarge {
        /// The number.
        number: u16,
    },
    /// The number is taken.
    #[error("LUN {number}: is in use, or is still being removed; choose another number")]
    Taken {
        /// The number.
        number: u16,
    },
    /// All numbers are taken.
    #[error("there are {} LUNs, the most that a target has; remove one first", LUN_MAX + 1)]
    Full,
    /// Sessions use the LUN: have read or written there, or are registered with its persistent reservation.
    #[error(
        "LUN {number}: is in use by {count} sessions ({initiators}); end their use, or give --force"
    )]
    InUse {
        /// The number.
        number: u16,
        /// How many sessions.
        count: usize,
        /// Names of the first of them.
        initiators: String,
    },
    /// Another command changes the LUN.
    #[error("LUN {number}: another command changes or removes it; wait for that")]
    Changing {
        /// The number.
        number: u16,
    },
    /// Another command ended the hold before it had begun.
    #[error("LUN {number}: was released, changed or removed while its commands were waited for")]
    Released {
        /// The number.
        number: u16,
    },
    /// Commands do not end.
    #[error(
        "LUN {number}: {running} commands are still at its device after {} s; {left}",
        DRAIN_LIMIT.as_secs()
    )]
    Stuck {
        /// The number.
        number: u16,
        /// How many.
        running: u32,
        /// What is the case now.
        left: &'static str,
    },
    /// A device with other blocks.
    #[error("LUN {number}: has blocks of {old} bytes, and cannot get blocks of {new}")]
    BlockLen {
        /// The number.
        number: u16,
        /// Bytes of a block.
        old: u32,
        /// What was asked for.
        new: u32,
    },
    /// Nobody's rate is watched.
    #[error("the target has no rates to share; start it with what its devices and network do")]
    NotPaced,
    /// The rates do not fit.
    #[error("initiator {initiator}: {source}")]
    Pace {
        /// Its name.
        initiator: String,
        /// Why.
        source: PaceError,
    },
    /// There are LUNs instead.
    #[error("the target has no segments; it lets nobody in by tokens")]
    NoSegments,
    /// Commands of sessions that were ended do not end; or, where there are none, the device is neither opened nor closed.
    #[error("segment {segment}: after {} s {}", ORDER_LIMIT.as_secs(), describe_stuck(*running))]
    SegmentStuck {
        /// Which.
        segment: SegmentId,
        /// How many.
        running: u32,
    },
    /// A pace that is none.
    #[error("plan {plan}: {source}")]
    PlanPace {
        /// Whose it would be.
        plan: PlanId,
        /// Why.
        source: PaceError,
    },
    /// No such session.
    #[error("session {id}: there is none; `netraid session list` shows those that there are")]
    NoSession {
        /// The number.
        id: u64,
    },
}

fn describe_stuck(running: u32) -> String {
    match running {
        0 => "its device is still being opened or closed".to_owned(),
        _ => format!(
            "{running} commands of ended sessions are still at its device, and may change it"
        ),
    }
}

impl TargetHandle {
    pub(super) fn channel() -> (Self, Jobs, Life) {
        let (jobs, receiver) = mpsc::channel(JOBS_MAX);
        let (held, life) = watch::channel(());
        (Self { jobs, life }, receiver, held)
    }

    /// Waits until the target has ended, and nothing of it is left: no connection, and no address
    /// that it listened on.
    pub async fn ended(&self) {
        let mut life = self.life.clone();
        while life.changed().await.is_ok() {}
    }

    /// How the target is.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn report(&self) -> Result<TargetReport, CommandError> {
        self.call(|shared| async move { Ok(shared.report()) }).await
    }

    /// Serves one more LUN, with the lowest free number if none is given; its number. Initiators
    /// that are logged in are told.
    ///
    /// # Errors
    /// When the number is taken or too large.
    pub async fn add_lun(&self, number: Option<u16>, lun: Lun) -> Result<u16, CommandError> {
        self.call(move |shared| async move { shared.add_lun(&shared.home, number, lun) }).await
    }

    /// Stops serving a LUN: later commands end with LOGICAL UNIT NOT SUPPORTED, those at the
    /// device are waited for, and initiators are told. Its device is let go then.
    ///
    /// # Errors
    /// When sessions use it and `force` is not set, or its commands do not end in time; then it is
    /// let go when they have.
    pub async fn remove_lun(&self, number: u16, force: bool) -> Result<(), CommandError> {
        self.call(move |shared| async move { shared.remove_lun(number, force).await }).await
    }

    /// Keeps new requests off a LUN's device (they end as BUSY), and waits until none is there:
    /// until [`Self::release_lun`] or [`Self::change_lun`].
    ///
    /// # Errors
    /// When its commands do not end in time; then it serves as before. When another command
    /// releases, changes or removes it meanwhile.
    pub async fn hold_lun(&self, number: u16) -> Result<(), CommandError> {
        self.call(move |shared| async move { shared.hold_lun(number).await }).await
    }

    /// Serves a LUN again that was held.
    ///
    /// # Errors
    /// When there is none.
    pub async fn release_lun(&self, number: u16) -> Result<(), CommandError> {
        self.call(move |shared| async move {
            let lun = shared.steady_lun(number)?;
            lun.set_gate(Gate::Open);
            Ok(())
        })
        .await
    }

    /// Puts `device` in the place of a LUN's device, which must have the same bytes as far as both
    /// reach; a LUN that was held serves again. Initiators are told when the capacity changed.
    /// Requests at the old device end there.
    ///
    /// # Errors
    /// When there is no such LUN, or the blocks have another length.
    pub async fn change_lun(&self, number: u16, device: Device) -> Result<(), CommandError> {
        self.call(move |shared| async move { shared.change_lun(number, device) }).await
    }

    /// Ends a session, or all of them; how many. Their initiators may log in again.
    ///
    /// # Errors
    /// When there is no such session.
    pub async fn drop_sessions(&self, id: Option<u64>) -> Result<usize, CommandError> {
        self.call(move |shared| async move { shared.drop_sessions(id) }).await
    }

    /// Gives a LUN another policy, or none.
    ///
    /// # Errors
    /// When there is no such LUN.
    pub async fn set_policy(
        &self,
        number: u16,
        policy: Option<Box<dyn Policy>>,
    ) -> Result<(), CommandError> {
        self.call(move |shared| async move {
            shared.home_lun(number)?.set_policy(policy);
            Ok(())
        })
        .await
    }

    /// Gives an initiator a pace from now on, whether it is logged in or not; the one for all
    /// others when none.
    ///
    /// # Errors
    /// When the target is not paced, or floors would be more than what there is.
    pub async fn set_pace(
        &self,
        initiator: String,
        pace: Option<Pace>,
    ) -> Result<(), CommandError> {
        self.call(move |shared| async move {
            let paced = shared.paced.as_ref().ok_or(CommandError::NotPaced)?;
            let set = paced.set_pace(shared.started.elapsed(), &initiator, pace);
            set.map_err(|source| CommandError::Pace { initiator, source })
        })
        .await
    }

    /// A segment has this generation from now on, if that is newer: sessions with tokens of an
    /// older one end, and nothing that they ask for happens any more. Returns when nothing of theirs
    /// is at the device: no write of theirs lands after that.
    ///
    /// # Errors
    /// When requests of theirs do not end in time; they may land later then. When the target has no
    /// segments.
    pub async fn raise_generation(
        &self,
        mediator: MediatorId,
        segment: SegmentId,
        generation: Generation,
    ) -> Result<(), CommandError> {
        self.call(move |shared| async move {
            shared.raise_generation((mediator, segment), generation).await
        })
        .await
    }

    /// Ends all sessions of a segment, and closes its device when nothing of theirs is there. Returns when the target knows
    /// the segment no more, nor who was registered with it. A segment that is being opened or closed is waited for.
    ///
    /// # Errors
    /// When commands do not end, or the device is neither opened nor closed, in [`ORDER_LIMIT`]; the segment is closed when
    /// they have. When the target has no segments.
    pub async fn close_segment(
        &self,
        mediator: MediatorId,
        segment: SegmentId,
    ) -> Result<(), CommandError> {
        self.call(move |shared| async move { shared.close_segment((mediator, segment)).await })
            .await
    }

    /// The running sessions of a plan may go on until then, if that is later than what they have;
    /// how many there are that were not ended.
    ///
    /// # Errors
    /// When the target has no segments.
    pub async fn extend_plan(
        &self,
        mediator: MediatorId,
        plan: PlanId,
        until: Moment,
    ) -> Result<usize, CommandError> {
        self.call(move |shared| async move { shared.extend_plan((mediator, plan), until) }).await
    }

    /// The running sessions of a plan have this pace from now on, together; how many there are. A
    /// floor that does not fit is made as large as fits.
    ///
    /// # Errors
    /// When the target has no segments, is not paced, or the pace is none.
    pub async fn set_plan_pace(
        &self,
        mediator: MediatorId,
        plan: PlanId,
        pace: Pace,
    ) -> Result<usize, CommandError> {
        self.call(move |shared| async move { shared.set_plan_pace((mediator, plan), pace) }).await
    }

    /// Ends the running sessions of a plan, and waits until nothing of theirs is at a device, nor of those that were ended
    /// before; how many this call has ended. Their token lets them in again while it holds.
    ///
    /// # Errors
    /// When requests of theirs do not end in time. When the target has no segments.
    pub async fn end_plan(
        &self,
        mediator: MediatorId,
        plan: PlanId,
    ) -> Result<usize, CommandError> {
        self.call(move |shared| async move { shared.end_plan((mediator, plan)).await }).await
    }

    /// Carries out `work` on the target's thread.
    async fn call<T, W, F>(&self, work: W) -> Result<T, CommandError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Shared>) -> F + Send + 'static,
        F: Future<Output = Result<T, CommandError>> + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |shared| {
            tokio::task::spawn_local(async move {
                // Nobody waits for the answer any more.
                let _ = reply.send(work(shared).await);
            });
        });
        self.jobs.send(job).await.map_err(|_| CommandError::Ended)?;
        answer.await.unwrap_or(Err(CommandError::Ended))
    }
}

impl Shared {
    fn drop_sessions(&self, id: Option<u64>) -> Result<usize, CommandError> {
        let chosen = |known: &SessionView<'_>| id.is_none_or(|id| id == known.connection.0);
        let mut node = self.node.lock();
        let handles: Vec<_> =
            node.sessions().filter(chosen).map(|known| (known.connection, known.tsih)).collect();
        if let (Some(id), []) = (id, handles.as_slice()) {
            return Err(CommandError::NoSession { id });
        }
        for (connection, tsih) in &handles {
            tracing::info!(session = connection.0, tsih, "a session is dropped by command");
            node.drop_session(*tsih);
        }
        drop(node);
        self.wake();
        Ok(handles.len())
    }

    /// Takes a LUN of the configuration, or a new one.
    pub(super) fn add_lun(
        &self,
        realm: &Arc<ServedRealm>,
        number: Option<u16>,
        lun: Lun,
    ) -> Result<u16, CommandError> {
        let free = || (0..=LUN_MAX).find(|number| realm.luns.get(*number).is_none());
        let number = number.or_else(free).ok_or(CommandError::Full)?;
        let Lun { device, discard_zeroes, physical_len, removable, atomic_len, .. } = lun;
        let Lun { sanitizing, identity, policy, reservations, .. } = lun;
        let identity = identity.unwrap_or_else(|| Identity::for_lun(&self.setup.name, number));
        let (place, reservations) = match reservations {
            Some(store) => (Some(store.place), store.state),
            None => (None, Reservations::new(false)),
        };
        let unit = UnitConfig {
            info: device.info().clone(),
            discard_zeroes,
            physical_len,
            removable,
            atomic_len,
            can_sanitize: sanitizing.is_some(),
            identity,
            reservations,
        };
        let serve = || realm.luns.insert(number, device, policy, place);
        let resumes = match realm.add_unit(number, unit, sanitizing, serve) {
            Ok(resumes) => resumes,
            Err(AddUnitError::TooLarge) => return Err(CommandError::TooLarge { number }),
            Err(AddUnitError::Taken) => return Err(CommandError::Taken { number }),
        };
        self.node.lock().add_lun(realm.id, number);
        if let Some(lun) = realm.luns.get(number).filter(|_| resumes) {
            tracing::warn!(lun = number, "goes on with a sanitize operation");
            realm.start_background(&lun);
        }
        Ok(number)
    }

    async fn remove_lun(self: Arc<Self>, number: u16, force: bool) -> Result<(), CommandError> {
        let lun = self.retire_lun(number, force)?;
        self.home.background.remove(number);
        tracing::info!(lun = number, running = lun.running(), "a LUN is removed");
        let (shared, leaving) = (self.clone(), lun.clone());
        // It goes on when nobody waits for it any more.
        let gone = tokio::task::spawn_local(async move {
            // Nobody moves the gate of a LUN that leaves.
            while !leaving.wait_idle().await {}
            let mut units = shared.home.units.lock();
            units.remove(number);
            let device = leaving.replace_device(None);
            shared.home.luns.remove(number);
            drop(units);
            // To close it may take a while.
            drop(device);
            shared.node.lock().remove_lun(Realm::HOME, number);
        });
        match tokio::time::timeout(DRAIN_LIMIT, gone).await {
            Ok(_) => Ok(()),
            Err(_) => {
                let left = "it takes no more commands, and goes when these have ended";
                Err(CommandError::Stuck { number, running: lun.running(), left })
            }
        }
    }

    /// No command begins any more at a LUN that nobody uses, or by `force`.
    fn retire_lun(&self, number: u16, force: bool) -> Result<Arc<ServedLun>, CommandError> {
        let lun = self.steady_lun(number)?;
        // Whoever begins to use it now does so before or after all of this.
        let mut units = self.home.units.lock();
        if !force {
            self.check_unused(&lun, units.unit(number))?;
        }
        units.retire(number);
        lun.set_gate(Gate::Leaving);
        Ok(lun)
    }

    async fn hold_lun(&self, number: u16) -> Result<(), CommandError> {
        let lun = self.steady_lun(number)?;
        if lun.gate() == Gate::Held {
            return Err(CommandError::Changing { number });
        }
        lun.set_gate(Gate::Held);
        let moves = lun.moves();
        match tokio::time::timeout(DRAIN_LIMIT, lun.wait_idle()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(CommandError::Released { number }),
            Err(_) => {
                // Unless somebody else decided by now.
                if lun.moves() == moves {
                    lun.set_gate(Gate::Open);
                }
                let left = "it serves as before";
                Err(CommandError::Stuck { number, running: lun.running(), left })
            }
        }
    }

    fn change_lun(&self, number: u16, device: Device) -> Result<(), CommandError> {
        let lun = self.steady_lun(number)?;
        let old = lun.device().map(|device| device.info().block_len);
        let new = device.info().block_len;
        if let Some(old) = old.filter(|old| *old != new) {
            return Err(CommandError::BlockLen { number, old, new });
        }
        self.home.units.lock().handle_changed(number, device.info().clone());
        drop(lun.replace_device(Some(device)));
        lun.set_gate(Gate::Open);
        Ok(())
    }

    fn home_lun(&self, number: u16) -> Result<Arc<ServedLun>, CommandError> {
        self.home.luns.get(number).ok_or_else(|| {
            let luns: Vec<_> =
                self.home.luns.all().iter().map(|lun| lun.number().to_string()).collect();
            let luns = if luns.is_empty() {
                "none".to_owned()
            } else {
                format!("LUN {}", luns.join(", "))
            };
            CommandError::NoLun { number, luns }
        })
    }

    /// A LUN that is not on its way out.
    fn steady_lun(&self, number: u16) -> Result<Arc<ServedLun>, CommandError> {
        let lun = self.home_lun(number)?;
        match lun.gate() {
            Gate::Open | Gate::Held => Ok(lun),
            Gate::Leaving => Err(CommandError::Changing { number }),
        }
    }

    fn check_unused(
        &self,
        lun: &ServedLun,
        unit: Option<&LogicalUnit>,
    ) -> Result<(), CommandError> {
        const SHOWN: usize = 3;
        let users = lun.users(unit);
        if users.is_empty() {
            return Ok(());
        }
        let name = |id: &ConnectionId| Some(self.sessions.get(*id)?.initiator().to_owned());
        let mut names: Vec<_> = users.iter().filter_map(name).take(SHOWN).collect();
        if users.len() > SHOWN {
            names.push("...".to_owned());
        }
        let (number, count) = (lun.number(), users.len());
        Err(CommandError::InUse { number, count, initiators: names.join(", ") })
    }
}
