//! Requests that are no SCSI commands: login, NOP, logout; text requests and task management have
//! modules of their own.

use alloc::vec::Vec;
use core::time::Duration;

use super::{
    Connection, Event,
    connection::{Current, Phase},
    login::{Claim, End, Identity, Step},
    node::{Admission, Applicant, Node, Standing},
    window::Window,
};
use crate::{
    machine::Fatal,
    negotiation::SessionType,
    pdu::{
        Bhs, LoginRequest, LoginResponse, LogoutReason, LogoutRequest, LogoutResponse, LunField,
        NO_TAG, NopIn, NopOut, Opcode, RejectReason,
    },
};

/// There is no room for a session now (RFC 7143, section 11.13.5).
const OUT_OF_RESOURCES: u16 = 0x0302;

impl Connection {
    /// Takes the data segment of a PDU whose placement was `Control`.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn handle_control(
        &mut self,
        _now: Duration,
        node: &mut Node,
        data: &[u8],
    ) -> Result<(), Fatal> {
        let Current::Control(bhs) = core::mem::take(&mut self.current) else {
            return Ok(());
        };
        match bhs.opcode() {
            Some(Opcode::LoginRequest) if matches!(self.phase, Phase::Login(_)) => {
                self.handle_login(node, &bhs, data);
                Ok(())
            }
            Some(Opcode::NopOut) => self.handle_nop(&bhs, data),
            Some(Opcode::TextRequest) => self.handle_text(&bhs, data),
            Some(Opcode::LogoutRequest) => self.handle_logout(&bhs),
            Some(Opcode::TaskRequest) if self.session == SessionType::Normal => {
                self.handle_task_request(node, &bhs)
            }
            Some(Opcode::Snack) => {
                self.reject(&bhs, RejectReason::Snack);
                Ok(())
            }
            Some(Opcode::LoginRequest | Opcode::ScsiCommand | Opcode::TaskRequest) => {
                self.refuse(&bhs, RejectReason::Protocol)
            }
            Some(
                Opcode::DataOut
                | Opcode::NopIn
                | Opcode::ScsiResponse
                | Opcode::TaskResponse
                | Opcode::LoginResponse
                | Opcode::TextResponse
                | Opcode::DataIn
                | Opcode::LogoutResponse
                | Opcode::R2t
                | Opcode::AsyncMessage
                | Opcode::Reject,
            )
            | None => self.refuse(&bhs, RejectReason::Unsupported),
        }
    }

    fn refuse(&mut self, bhs: &Bhs, reason: RejectReason) -> Result<(), Fatal> {
        self.reject_request(bhs, reason);
        Ok(())
    }

    fn handle_login(&mut self, node: &mut Node, bhs: &Bhs, data: &[u8]) {
        let Phase::Login(login) = &mut self.phase else { return };
        let request = LoginRequest::parse(bhs);
        let step = login.handle(&request, data, &self.setup, self.link.portal);
        // Login requests carry the CmdSN of the first command to come.
        self.window = Window::new(bhs.cmd_sn(), self.tasks.window());
        self.take_step(node, step, request.cid);
    }

    /// Who waits for an answer to [`Event::AskStanding`].
    #[must_use]
    pub fn claim(&self) -> Option<Claim<'_>> {
        match &self.phase {
            Phase::Login(login) => login.claim(),
            Phase::Admission { .. } | Phase::Full | Phase::Closing => None,
        }
    }

    /// What whoever waits for it is let in to; none when it is not let in, which it is told as
    /// everybody is. Without effect when nobody waits. Poll the node's wakes after.
    pub fn handle_standing(&mut self, node: &mut Node, standing: Option<Standing>) {
        let Phase::Login(login) = &mut self.phase else { return };
        let Some(step) = login.judge(standing.is_some(), None) else { return };
        self.standing = standing.unwrap_or_default();
        let cid = login.cid();
        self.take_step(node, step, cid);
    }

    /// Whoever waits to be judged has proven who it is, and is not let in all the same: it is told why. Without effect when
    /// nobody waits.
    pub fn handle_denied(&mut self, node: &mut Node, told: &str) {
        let Phase::Login(login) = &mut self.phase else { return };
        let Some(step) = login.judge(false, Some(told)) else { return };
        let cid = login.cid();
        self.take_step(node, step, cid);
    }

    /// Whoever waits to be judged has proven that it may come in, and there is nothing to serve it with:
    /// it is told so. Without effect when nobody waits.
    pub fn handle_shortage(&mut self) {
        const OUT_OF_RESOURCES: u16 = 0x0302;
        let Phase::Login(login) = &mut self.phase else { return };
        let Some(step) = login.judge(false, None) else { return };
        let refusal = LoginResponse { status: OUT_OF_RESOURCES, ..step.response };
        self.refuse_login(&refusal, step.text);
    }

    fn take_step(&mut self, node: &mut Node, step: Step, cid: u16) {
        match step.end {
            End::Judge => self.events.push_back(Event::AskStanding),
            End::Open => self.push_control(step.response.encode(), step.text, true),
            End::Refused => self.refuse_login(&step.response, step.text),
            End::Admit => {
                if let Phase::Login(login) = core::mem::replace(&mut self.phase, Phase::Closing) {
                    let (response, text) = (step.response, step.text);
                    self.phase = Phase::Admission { login, response, text, cid };
                }
                self.seek_admission(node, false);
            }
        }
    }

    fn refuse_login(&mut self, response: &LoginResponse, text: Vec<u8>) {
        self.counters.count_refusal(response.status);
        if let Phase::Login(login) | Phase::Admission { login, .. } = &self.phase {
            self.refused = Some(login.refused(response.status));
        }
        self.push_control(response.encode(), text, true);
        self.close();
    }

    /// Asks the node to admit the session whose login is complete.
    pub(super) fn seek_admission(&mut self, node: &mut Node, waited: bool) {
        let Phase::Admission { login, response, text, cid } = &mut self.phase else { return };
        let Some(Identity { initiator, session }) = login.identity().cloned() else { return };
        let (response, cid) = (*response, *cid);
        let applicant = Applicant {
            connection: self.id,
            kind: session,
            initiator: &initiator,
            realm: self.standing.realm,
            party: self.standing.party,
            isid: response.isid,
            tsih: response.tsih,
            cid,
        };
        match node.admit(self.latest, &applicant, waited) {
            Admission::Wait => {}
            Admission::Refused(status) => {
                let refusal = LoginResponse { status, transit: false, next_stage: 0, ..response };
                self.refuse_login(&refusal, Vec::new());
            }
            Admission::Full(full) => {
                let status = OUT_OF_RESOURCES;
                let refusal = LoginResponse { status, transit: false, next_stage: 0, ..response };
                self.refuse_login(&refusal, Vec::new());
                self.refused.iter_mut().for_each(|refused| refused.full = Some(full));
            }
            Admission::Admitted(tsih) => {
                let (text, params) = (core::mem::take(text), login.negotiation().params());
                let chap = login.algorithm();
                self.cid = cid;
                // The response itself still goes without digests.
                self.push_control(LoginResponse { tsih, ..response }.encode(), text, true);
                self.enter_full_feature(params, session);
                let isid = response.isid;
                self.events.push_back(Event::LoggedIn { initiator, isid, tsih, session, chap });
            }
        }
    }

    fn handle_nop(&mut self, bhs: &Bhs, data: &[u8]) -> Result<(), Fatal> {
        let nop = NopOut::parse(bhs);
        if !self.window.admits(bhs)? {
            return Ok(());
        }
        self.window.take(bhs);
        if nop.itt == NO_TAG {
            // An answer to a ping of this side, or no answer is wanted.
            return Ok(());
        }
        // Clamped: whatever is there is shorter.
        let limit = usize::try_from(self.params.max_send_len).unwrap_or(usize::MAX);
        let echo = data[..data.len().min(limit)].to_vec();
        let header = NopIn { lun: LunField::default(), itt: nop.itt, ttt: NO_TAG }.encode();
        self.push_control(header, echo, true);
        Ok(())
    }

    fn handle_logout(&mut self, bhs: &Bhs) -> Result<(), Fatal> {
        let request = LogoutRequest::parse(bhs);
        if !self.window.admits(bhs)? {
            return Ok(());
        }
        let response = match request.reason {
            LogoutReason::CloseConnection if request.cid != self.cid => 1,
            LogoutReason::CloseSession | LogoutReason::CloseConnection => 0,
            LogoutReason::Recovery => 2,
            LogoutReason::Unknown(_) => return self.refuse(bhs, RejectReason::InvalidField),
        };
        self.window.take(bhs);
        let header =
            LogoutResponse { response, itt: request.itt, time2wait_s: 0, time2retain_s: 0 };
        self.push_control(header.encode(), Vec::new(), true);
        if response == 0 {
            self.close();
        }
        Ok(())
    }
}
