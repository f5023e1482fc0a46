//! What a running target says of itself: its LUNs, its sessions, its counters.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use netraid_block::DeviceInfo;
use netraid_control::units::{Generation, MediatorId, Moment, PlanId, SegmentId};
use netraid_iscsi_proto::{
    chap::Algorithm,
    negotiation::SessionType,
    target::{ConnectionId, Counters},
};
use netraid_node::Gate;
use netraid_scsi::{LogicalUnit, Nexus, Reservations, SanitizeState};

use super::{CommandCounts, Shared, luns::ServedLun, pacing::PaceReport, sessions::SessionEntry};

/// How one LUN is.
#[derive(Debug, Clone)]
pub struct LunReport {
    /// Its number.
    pub number: u16,
    /// What its device is; none while it leaves, or before the target runs.
    pub info: Option<DeviceInfo>,
    /// `serving`, `held` (its device is being changed) or `leaving`.
    pub state: &'static str,
    /// Commands at its device.
    pub running: u32,
    /// Sessions that use the LUN: that have used its medium, are registered or hold it.
    pub sessions: usize,
    /// The type of its reservation, and by whom where that is no registrant.
    pub reservation: Option<String>,
    /// Who is registered for persistent reservations.
    pub registrants: Vec<RegistrantReport>,
    /// The sanitize operation that keeps commands from its medium.
    pub sanitize: Option<SanitizeState>,
    /// What it did.
    pub commands: CommandCounts,
}

/// A registration for persistent reservations.
#[derive(Debug, Clone)]
pub struct RegistrantReport {
    /// Name of the initiator.
    pub initiator: String,
    /// Its part of the session identifier.
    pub isid: [u8; 6],
    /// The reservation key.
    pub key: u64,
    /// It holds the reservation.
    pub holds: bool,
}

/// How one session is.
#[derive(Debug, Clone)]
pub struct SessionReport {
    /// Number of its connection: never used again while the target runs.
    pub id: u64,
    /// Name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session identifier, and the target's; none of a discovery
    /// session.
    pub handle: Option<([u8; 6], u16)>,
    /// Its address.
    pub peer: std::net::SocketAddr,
    /// Which thread of the target serves it.
    pub thread: usize,
    /// Whether it only asks for targets.
    pub discovery: bool,
    /// The CHAP digest by which it proved itself; none where it did not have to.
    pub chap: Option<Algorithm>,
    /// Time since it logged in.
    pub age: Duration,
    /// What it did.
    pub commands: CommandCounts,
    /// How fast it may go, if the target says: with all sessions of its initiator, or of its plan.
    pub pace: Option<PaceReport>,
    /// What it was let in to by a token.
    pub grant: Option<GrantReport>,
}

/// What a session was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantReport {
    /// Who granted it.
    pub mediator: MediatorId,
    /// The plan that it belongs to.
    pub plan: PlanId,
    /// What it is for.
    pub segment: SegmentId,
    /// The generation of the segment for which it was granted.
    pub generation: Generation,
    /// When it ends.
    pub until: Moment,
}

/// How a running target is.
#[derive(Debug, Clone)]
pub struct TargetReport {
    /// LUNs, ascending.
    pub luns: Vec<LunReport>,
    /// Sessions, oldest first.
    pub sessions: Vec<SessionReport>,
    /// Logins, refusals, errors of peers, task management: a name and a number each.
    pub counters: Vec<(&'static str, u64)>,
    /// Time since the target began to serve.
    pub uptime: Duration,
}
impl Shared {
    pub(super) fn report(&self) -> TargetReport {
        let luns = self.home.luns.all().iter().map(|lun| self.report_lun(lun)).collect();
        let node = self.node.lock();
        let handles: BTreeMap<_, _> =
            node.sessions().map(|known| (known.connection, (known.isid, known.tsih))).collect();
        let report = |session: &Arc<SessionEntry>| {
            let pace = self.paced.as_ref().and_then(|paced| paced.report(session.connection));
            report_session(session, handles.get(&session.connection).copied(), pace)
        };
        let sessions = self.sessions.all().iter().filter_map(report).collect();
        let counters = report_counters(node.counters());
        TargetReport { luns, sessions, counters, uptime: self.started.elapsed() }
    }

    fn report_lun(&self, lun: &ServedLun) -> LunReport {
        let units = self.home.units.lock();
        let unit = units.unit(lun.number());
        let registrants = unit.map(|unit| report_registrants(unit.reservations()));
        let reservation = unit.and_then(|unit| match unit.reservations().reserved() {
            Some(kind) => Some(kind.name().to_owned()),
            None => unit.reserved_by().map(|nexus| {
                let session = self.sessions.get(ConnectionId(nexus.0));
                let initiator = session.as_ref().map_or("", |session| session.initiator());
                format!("RESERVE (SPC-2) of {initiator}")
            }),
        });
        LunReport {
            number: lun.number(),
            info: lun.device().map(|device| device.info().clone()),
            state: match lun.gate() {
                Gate::Open => "serving",
                Gate::Held => "held",
                Gate::Leaving => "leaving",
            },
            running: lun.running(),
            sessions: lun.users(unit).len(),
            reservation,
            registrants: registrants.unwrap_or_default(),
            sanitize: unit.and_then(LogicalUnit::sanitize_state),
            commands: lun.counts(),
        }
    }
}

fn report_registrants(reservations: &Reservations) -> Vec<RegistrantReport> {
    let report = |(nexus, key, holds): (&Nexus, u64, bool)| RegistrantReport {
        initiator: nexus.initiator.name().to_owned(),
        isid: nexus.initiator.isid(),
        key,
        holds,
    };
    reservations.registrants().map(report).collect()
}

fn report_session(
    session: &SessionEntry,
    handle: Option<([u8; 6], u16)>,
    pace: Option<PaceReport>,
) -> Option<SessionReport> {
    let login = session.login()?;
    Some(SessionReport {
        id: session.connection.0,
        initiator: login.initiator.clone(),
        handle,
        peer: session.peer,
        thread: session.thread,
        discovery: login.kind == SessionType::Discovery,
        chap: login.chap,
        age: login.since.elapsed(),
        commands: session.counters.snapshot(),
        pace,
        grant: session.guest().map(|guest| guest.report()),
    })
}

fn report_counters(counters: &Counters) -> Vec<(&'static str, u64)> {
    [
        ("logins", &counters.logins),
        ("discoveries", &counters.discoveries),
        ("reinstatements", &counters.reinstatements),
        ("redirected", &counters.redirected),
        ("refused_authentication", &counters.refused_authentication),
        ("refused_authorization", &counters.refused_authorization),
        ("refused_not_found", &counters.refused_not_found),
        ("refused_busy", &counters.refused_busy),
        ("refused_other", &counters.refused_other),
        ("login_timeouts", &counters.login_timeouts),
        ("protocol_errors", &counters.protocol_errors),
        ("digest_errors", &counters.digest_errors),
        ("silent_peers", &counters.silent_peers),
        ("rejected_pdus", &counters.rejected_pdus),
        ("task_functions", &counters.task_functions),
        ("task_functions_failed", &counters.task_functions_failed),
        ("aborted_tasks", &counters.aborted_tasks),
        ("dropped_sessions", &counters.dropped_sessions),
    ]
    .map(|(name, count)| (name, count.get()))
    .to_vec()
}
