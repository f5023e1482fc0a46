//! What a running target answers at its control socket.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use netraid_block::{Pool, lun_in_addresses, narrow, redact_addresses};
use netraid_engine::{
    backings::Shrink,
    control::{
        LunStatus, RegistrantStatus, SanitizeStatus, Service, SessionStatus, TargetRequest,
        TargetStatus,
    },
    filters::FilterSpec,
    target::{LUN_MAX, LunReport, RegistrantReport, SanitizeState, SessionReport, TargetHandle},
};
use serde_json::Value;
use tokio::sync::watch;

use super::{access::Users, made::MadeFiles, open::Opened};
use crate::{
    describe,
    ending::{Ending, LEAVING},
    lun::LunSpec,
};

/// A running target with what its LUNs store on.
#[derive(Clone)]
pub(super) struct TargetService(Arc<Inner>);

struct Inner {
    handle: TargetHandle,
    about: About,
    opened: Mutex<BTreeMap<u16, Opened>>,
    /// Changes to LUNs take turns.
    changes: tokio::sync::Mutex<()>,
    stop: watch::Sender<bool>,
    ending: Ending,
}

/// What stays as it is while the target runs.
pub(super) struct About {
    pub(super) iqn: String,
    pub(super) addresses: Vec<String>,
    /// Who may log in, if not everybody.
    pub(super) chap: Option<Users>,
    pub(super) block_len: Option<u32>,
    /// Whether media can be ejected.
    pub(super) removable: bool,
    /// Where reservations are kept of what is no file.
    pub(super) state: Option<PathBuf>,
    pub(super) pool: Pool,
}

impl About {
    /// The address of a LUN.
    pub(super) fn uri(&self, lun: u16) -> String {
        let first = self.addresses.first().map_or("", String::as_str);
        let user = self.chap.as_ref().and_then(|chap| chap.users.first());
        let user = user.map(|user| format!("{user}@")).unwrap_or_default();
        format!("iscsi://{user}{first}/{}/{}", self.iqn, lun_in_addresses(lun))
    }
}

impl TargetService {
    pub(super) fn new(handle: TargetHandle, about: About, opened: Vec<Opened>) -> Self {
        let opened = Mutex::new((0..).zip(opened).collect());
        let changes = tokio::sync::Mutex::new(());
        let (stop, ending) = (watch::Sender::new(false), Ending::new());
        Self(Arc::new(Inner { handle, about, opened, changes, stop, ending }))
    }

    /// How the target has ended, once it has.
    pub(super) fn ending(&self) -> &Ending {
        &self.0.ending
    }

    /// Resolves when somebody asked for the target to stop.
    pub(super) async fn stop_requested(&self) {
        // The sender lives as long as this.
        let _ = self.0.stop.subscribe().wait_for(|stop| *stop).await;
    }

    /// Ends the filters of all LUNs.
    pub(super) fn end_filters(&self) {
        self.opened().values_mut().for_each(Opened::end_filters);
    }

    pub(super) async fn status(&self) -> Result<TargetStatus> {
        let report = self.0.handle.report().await?;
        let opened = self.opened();
        let luns = report
            .luns
            .iter()
            .map(|lun| lun_status(lun, self.0.about.uri(lun.number), opened.get(&lun.number)));
        Ok(TargetStatus {
            kind: "target".to_owned(),
            iqn: self.0.about.iqn.clone(),
            addresses: self.0.about.addresses.clone(),
            uptime_s: report.uptime.as_secs(),
            luns: luns.collect(),
            sessions: report.sessions.iter().map(session_status).collect(),
            counters: report.counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        })
    }

    async fn carry_out(&self, request: TargetRequest) -> Result<Value> {
        match request {
            TargetRequest::Status => Ok(serde_json::to_value(self.status().await?)?),
            TargetRequest::AddLun { backing, lun, block_bytes } => {
                self.add(&backing, lun, block_bytes).await
            }
            TargetRequest::ResizeLun { lun, size, shrink } => {
                let shrink = if shrink { Shrink::Allow } else { Shrink::Refuse };
                self.resize(lun, size, shrink).await
            }
            TargetRequest::RemoveLun { lun, force } => self.remove(lun, force).await,
            TargetRequest::SetFilter { lun, filter } => self.set_filter(lun, filter).await,
            TargetRequest::DropSession { session } => {
                let dropped = self.0.handle.drop_sessions(session).await?;
                Ok(serde_json::json!({ "dropped": dropped }))
            }
            TargetRequest::Stop { force } => self.stop(force).await,
        }
    }

    async fn add(&self, backing: &str, lun: Option<u16>, block_len: Option<u32>) -> Result<Value> {
        let _turn = self.0.changes.lock().await;
        let report = self.0.handle.report().await?;
        let taken = |number: &u16| report.luns.iter().any(|lun| lun.number == *number);
        if let Some(number) = lun.filter(taken) {
            bail!("LUN {number}: is in use, or is still being removed; choose another number");
        }
        // Before a file is made for it.
        if let Some(number) = lun.filter(|number| *number > LUN_MAX) {
            bail!("LUN {number}: the largest is {LUN_MAX}");
        }
        let number = lun.or_else(|| (0..=LUN_MAX).find(|number| !taken(number)));
        let number = number.context("all LUNs are in use; remove one first")?;
        // A LUN whose commands did not end in time has gone meanwhile: its backing is let go.
        self.opened().retain(|number, _| taken(number));
        let About { iqn, pool, removable, state, .. } = &self.0.about;
        let block_len = block_len.or(self.0.about.block_len);
        let spec: LunSpec = backing.parse()?;
        let mut made = MadeFiles::default();
        made.note(&spec);
        let mut opened = Opened::open(spec, block_len, pool)?;
        opened.identify(iqn, number, state.as_deref())?;
        opened.check_alone(number, self.opened().iter().map(|(other, unit)| (*other, unit)))?;
        let lun = opened.lun(iqn, number, *removable, state.as_deref())?;
        // Whoever finds the LUN finds the identity that it will have.
        opened.keep_identity();
        self.0.handle.add_lun(Some(number), lun).await?;
        made.keep();
        self.opened().insert(number, opened);
        self.lun(number).await
    }

    /// Requests go on while a LUN grows; none may be under way while it shrinks.
    async fn resize(&self, number: u16, size: u64, shrink: Shrink) -> Result<Value> {
        let _turn = self.0.changes.lock().await;
        let report = self.0.handle.report().await?;
        let lun = report.luns.iter().find(|lun| lun.number == number);
        let capacity = lun.and_then(|lun| lun.info.as_ref()).map_or(0, |info| info.capacity);
        let held = size < capacity && shrink == Shrink::Allow;
        if held {
            self.0.handle.hold_lun(number).await?;
        }
        let resized = match self.opened().get_mut(&number) {
            Some(opened) => opened.resize(size, shrink).map(Some),
            None => Ok(None),
        };
        match resized {
            Ok(Some(device)) => self.0.handle.change_lun(number, device).await?,
            // A LUN of which nothing is known here does not exist: that is said.
            Ok(None) => self.0.handle.release_lun(number).await?,
            Err(error) => {
                if held {
                    self.0.handle.release_lun(number).await?;
                }
                return Err(error);
            }
        }
        self.lun(number).await
    }

    async fn set_filter(&self, number: u16, filter: Option<String>) -> Result<Value> {
        let spec: Option<FilterSpec> = filter.map(|spec| spec.parse()).transpose()?;
        let _turn = self.0.changes.lock().await;
        let device = match self.opened().get_mut(&number) {
            Some(opened) => {
                opened.set_filters(spec.iter())?;
                Some(opened.device().clone())
            }
            None => None,
        };
        match device {
            Some(device) => self.0.handle.change_lun(number, device).await?,
            // A LUN of which nothing is known here does not exist: that is said.
            None => self.0.handle.release_lun(number).await?,
        }
        self.lun(number).await
    }

    async fn remove(&self, number: u16, force: bool) -> Result<Value> {
        let _turn = self.0.changes.lock().await;
        if let Some(opened) = self.opened().get_mut(&number).filter(|_| force) {
            // What hangs in a filter is not waited for.
            opened.end_filters();
        }
        let removed = self.0.handle.remove_lun(number, force).await;
        let left = self.0.handle.report().await?;
        if left.luns.iter().all(|lun| lun.number != number) {
            self.opened().remove(&number);
        }
        removed?;
        Ok(Value::Null)
    }

    /// Ends the target unless initiators are logged in; answers when it has ended.
    async fn stop(&self, force: bool) -> Result<Value> {
        let deadline = Instant::now() + if force { Duration::ZERO } else { LEAVING };
        let logged_in = loop {
            let sessions = self.0.handle.report().await?.sessions;
            let users: Vec<_> = sessions.iter().filter(|session| !session.discovery).collect();
            let names = users.iter().map(|session| session.initiator.as_str());
            match may_stop(&names.collect::<Vec<_>>(), force) {
                Ok(()) => break users.len(),
                Err(refusal) if Instant::now() >= deadline => bail!(refusal),
                // Whoever is just leaving.
                Err(_) => tokio::time::sleep(LEAVING / 20).await,
            }
        };
        self.0.stop.send_replace(true);
        self.0.ending.wait().await.map_err(anyhow::Error::msg)?;
        Ok(serde_json::json!({ "cut_off": { "sessions": logged_in } }))
    }

    /// The status of one LUN.
    async fn lun(&self, number: u16) -> Result<Value> {
        let status = self.status().await?;
        let lun = status.luns.iter().find(|lun| lun.lun == number);
        Ok(serde_json::to_value(lun)?)
    }

    fn opened(&self) -> MutexGuard<'_, BTreeMap<u16, Opened>> {
        self.0.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for TargetService {
    type Request = TargetRequest;

    async fn answer(&self, request: TargetRequest) -> Result<Value, String> {
        let changes = request != TargetRequest::Status;
        let command = format!("{request:?}");
        let done = self.carry_out(request).await.map_err(|error| describe(&error));
        if changes {
            // Both may quote what was typed.
            let error = redact_addresses(done.as_ref().err().map_or("", String::as_str));
            let command = redact_addresses(&command);
            tracing::info!(%command, %error, "told through the control socket");
        }
        done
    }
}

/// Whether a target may end in which these initiators have sessions.
fn may_stop(initiators: &[&str], force: bool) -> Result<(), String> {
    const SHOWN: usize = 3;
    if force || initiators.is_empty() {
        return Ok(());
    }
    let more = if initiators.len() > SHOWN { ", ..." } else { "" };
    let names = initiators.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    let count = initiators.len();
    let plural = if count == 1 { "" } else { "s" };
    Err(format!(
        "the target is in use by {count} session{plural} ({names}{more}); have them log out, or give --force: it \
         cuts them off"
    ))
}

fn lun_status(lun: &LunReport, uri: String, opened: Option<&Opened>) -> LunStatus {
    LunStatus {
        lun: lun.number,
        uri,
        backing: opened.map(|opened| opened.spec.to_string()).unwrap_or_default(),
        serial: opened.map(|opened| opened.serial.clone()).unwrap_or_default(),
        state: lun.state.to_owned(),
        capacity_bytes: lun.info.as_ref().map_or(0, |info| info.capacity),
        filters: opened
            .map(|opened| opened.filters().map(ToString::to_string).collect())
            .unwrap_or_default(),
        free_bytes: opened.and_then(|opened| opened.backing.free_bytes()),
        flush_failed: opened.is_some_and(|opened| opened.backing.has_failed()),
        sanitize: lun.sanitize.map(sanitize_status),
        reservation: lun.reservation.clone(),
        registrants: lun.registrants.iter().map(registrant_status).collect(),
        used_bytes: opened.and_then(|opened| opened.backing.used_bytes()),
        block_bytes: lun.info.as_ref().map_or(0, |info| info.block_len),
        read_only: lun.info.as_ref().is_some_and(|info| info.read_only),
        sessions: lun.sessions,
        running: lun.running,
        commands: lun.commands,
    }
}

fn sanitize_status(state: SanitizeState) -> SanitizeStatus {
    match state {
        SanitizeState::Failed => SanitizeStatus { failed: true, done_percent: 0 },
        SanitizeState::UnderWay { progress } => {
            let percent = u32::from(progress) * 100 / (1 << 16);
            SanitizeStatus { failed: false, done_percent: narrow(percent) }
        }
    }
}

fn registrant_status(registrant: &RegistrantReport) -> RegistrantStatus {
    RegistrantStatus {
        initiator: registrant.initiator.clone(),
        isid: hex(registrant.isid),
        key: format!("{:#x}", registrant.key),
        holds: registrant.holds,
    }
}

fn hex(isid: [u8; 6]) -> String {
    isid.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn session_status(session: &SessionReport) -> SessionStatus {
    SessionStatus {
        session: session.id,
        initiator: session.initiator.clone(),
        isid: session.handle.map(|(isid, _)| hex(isid)),
        tsih: session.handle.map(|(_, tsih)| tsih),
        peer: session.peer.to_string(),
        kind: if session.discovery { "discovery" } else { "normal" }.to_owned(),
        chap: session.chap.map(|digest| digest.name().to_owned()),
        age_s: session.age.as_secs(),
        commands: session.commands,
        pace: session.pace.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_with_sessions_ends_by_force_alone() {
        assert_eq!(may_stop(&[], false), Ok(()));
        assert_eq!(may_stop(&["iqn.a"], true), Ok(()));
        let one = may_stop(&["iqn.a"], false).unwrap_err();
        assert!(one.contains("in use by 1 session (iqn.a); "), "{one}");
        let many = may_stop(&["iqn.a", "iqn.b", "iqn.c", "iqn.d"], false).unwrap_err();
        assert!(many.contains("in use by 4 sessions (iqn.a, iqn.b, iqn.c, ...); "), "{many}");
    }
}
