//! The target's side of a login (RFC 7143, section 6.3): stages, authentication, parameters.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, net::SocketAddr};

use super::{RefusedLogin, Setup};
use crate::{
    chap::{Algorithm, Challenge, ChapError, Question, Secret},
    negotiation::{Negotiation, NegotiationError, SessionType},
    pdu::{LoginRequest, LoginResponse},
    text::{self, Collector, REFUSAL_KEY, REFUSAL_LEN_MAX},
};

/// Login status (RFC 7143, section 11.13.5).
mod status {
    pub(super) const MOVED_TEMPORARILY: u16 = 0x0101;
    pub(super) const MOVED_PERMANENTLY: u16 = 0x0102;
    pub(super) const INITIATOR_ERROR: u16 = 0x0200;
    pub(super) const AUTHENTICATION_FAILURE: u16 = 0x0201;
    pub(super) const AUTHORIZATION_FAILURE: u16 = 0x0202;
    pub(super) const NOT_FOUND: u16 = 0x0203;
    pub(super) const UNSUPPORTED_VERSION: u16 = 0x0205;
    pub(super) const MISSING_PARAMETER: u16 = 0x0207;
    pub(super) const SESSION_TYPE: u16 = 0x0209;
}

/// Stages, as they stand in headers.
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Most requests of one login, and most keys over all of them: an ordinary one has four requests
/// and twenty-five keys.
const REQUESTS_MAX: u32 = 32;
const KEYS_MAX: usize = 128;

/// Longest iSCSI name (RFC 7143, section 4.2.7.1).
const NAME_LEN_MAX: usize = 223;

/// Longest answer: what an initiator takes before it has declared anything.
const ANSWER_LEN_MAX: usize = 8192;

/// Longest CHAP name that is looked at (RFC 7143, section 6.1).
const CLAIM_LEN_MAX: usize = 255;

/// How far the initiator has proven itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Auth {
    /// Nothing yet; proof is needed.
    Needed,
    /// CHAP was agreed on.
    Method,
    /// The challenge was sent.
    Challenged(Algorithm),
    /// Name and answer are here, and the shell judges them.
    Claimed,
    /// Proven, or no proof is needed.
    Done,
}

/// What a request leads to: a response with this text, and whether it ends the login.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) response: LoginResponse,
    pub(super) text: Vec<u8>,
    pub(super) end: End,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// More requests follow.
    Open,
    /// The initiator is to be judged before anything is said: see [`Login::judge`].
    Judge,
    /// The initiator is to be admitted before the response leaves.
    Admit,
    /// The response refuses the login.
    Refused,
}

/// One login in progress.
pub(super) struct Login {
    stage: Option<u8>,
    auth: Auth,
    /// The digest that was chosen.
    algorithm: Option<Algorithm>,
    challenge: Challenge,
    negotiation: Negotiation,
    collector: Collector,
    identity: Option<Identity>,
    /// The name that the initiator gave, allowed or not.
    claimed: Option<String>,
    first: Option<LoginRequest>,
    told_portal_group: bool,
    requests: u32,
    keys: usize,
    /// Of [`SECURITY_KEYS`] those that have come.
    seen: u32,
    proof: Option<Proof>,
    /// The request that brought the proof, and what follows when it is good.
    held: Option<(LoginRequest, Step)>,
}

/// What an initiator gave to prove who it is.
struct Proof {
    name: String,
    algorithm: Algorithm,
    /// None when it cannot be read.
    answer: Option<Vec<u8>>,
}

/// Who wants to log in, as it says: nothing of it is proven.
#[derive(Clone, Copy)]
pub struct Claim<'a> {
    login: &'a Login,
    proof: &'a Proof,
    identity: &'a Identity,
}

impl Claim<'_> {
    /// The CHAP name: at most 255 bytes, longer ones are cut off.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.proof.name
    }

    /// The initiator's iSCSI name, in lower case.
    #[must_use]
    pub fn initiator(&self) -> &str {
        &self.identity.initiator
    }

    /// Kind of session.
    #[must_use]
    pub const fn session(&self) -> SessionType {
        self.identity.session
    }

    /// Whether whoever claims this knows the secret: one digest, whatever the answer.
    #[must_use]
    pub fn proves(&self, secret: &Secret) -> bool {
        let Challenge { identifier, bytes } = &self.login.challenge;
        let Proof { algorithm, answer, .. } = self.proof;
        let answer = answer.as_deref().unwrap_or_default();
        algorithm.verify(*identifier, secret, bytes, answer)
    }
}

impl fmt::Debug for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?})", self.identity)
    }
}

/// Keys of the security negotiation: each comes at most once.
const SECURITY_KEYS: [&str; 6] = ["AuthMethod", "CHAP_A", "CHAP_N", "CHAP_R", "CHAP_I", "CHAP_C"];

/// Why a login goes no further.
enum Refusal {
    /// With this login status.
    Status(u16),
    /// It is to be tried at another portal.
    Moved { status: u16, address: String },
}

impl From<u16> for Refusal {
    fn from(status: u16) -> Self {
        Self::Status(status)
    }
}

/// Who logs in, from the first request.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) initiator: String,
    pub(super) session: SessionType,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The challenge stays out of logs.
        write!(f, "Login({:?}, {:?})", self.stage, self.auth)
    }
}

impl Login {
    pub(super) fn new(setup: &Setup, challenge: Challenge) -> Self {
        let mut wishes = setup.wishes.clone();
        if setup.paced {
            (wishes.initial_r2t, wishes.immediate_data) = (true, false);
        }
        Self {
            stage: None,
            auth: if setup.chap.is_empty() && !setup.asks_standing {
                Auth::Done
            } else {
                Auth::Needed
            },
            algorithm: None,
            challenge,
            negotiation: Negotiation::new(wishes),
            collector: Collector::default(),
            identity: None,
            claimed: None,
            first: None,
            told_portal_group: false,
            requests: 0,
            keys: 0,
            seen: 0,
            proof: None,
            held: None,
        }
    }

    pub(super) fn negotiation(&self) -> &Negotiation {
        &self.negotiation
    }

    /// The digest of the initiator's proof, where it had to give one.
    pub(super) const fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// What there is to tell of the login when it is refused.
    pub(super) fn refused(&self, status: u16) -> RefusedLogin {
        RefusedLogin { status, initiator: self.claimed.clone(), full: None }
    }

    /// The connection's number in its session, as the first request said.
    pub(super) fn cid(&self) -> u16 {
        self.first.map_or(0, |first| first.cid)
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Takes one request that came to `portal`, and its data segment.
    pub(super) fn handle(
        &mut self,
        request: &LoginRequest,
        data: &[u8],
        setup: &Setup,
        portal: SocketAddr,
    ) -> Step {
        let (status, text) = match self.advance(request, data, setup, portal) {
            Ok(step) if self.auth == Auth::Claimed => {
                self.held = Some((*request, step));
                let response = respond(request);
                return Step { response, text: Vec::new(), end: End::Judge };
            }
            Ok(step) => return step,
            Err(Refusal::Status(status)) => (status, Vec::new()),
            Err(Refusal::Moved { status, address }) => {
                let mut text = Vec::new();
                text::push(&mut text, "TargetAddress", &address);
                (status, text)
            }
        };
        let response = LoginResponse { status, ..respond(request) };
        Step { response, text, end: End::Refused }
    }

    /// Who waits to be judged.
    pub(super) fn claim(&self) -> Option<Claim<'_>> {
        let (_, proof) = self.held.as_ref().zip(self.proof.as_ref())?;
        Some(Claim { login: self, proof, identity: self.identity.as_ref()? })
    }

    /// Goes on with who waits to be judged; none when nobody does. Whoever is refused gets the same
    /// bytes whatever the reason, unless it is to be `told`.
    pub(super) fn judge(&mut self, is_good: bool, told: Option<&str>) -> Option<Step> {
        let (request, step) = self.held.take()?;
        self.proof = None;
        if is_good {
            self.auth = Auth::Done;
            return Some(step);
        }
        let response =
            LoginResponse { status: status::AUTHENTICATION_FAILURE, ..respond(&request) };
        let mut text = Vec::new();
        if let Some(told) = told.filter(|told| told.len() <= REFUSAL_LEN_MAX) {
            text::push(&mut text, REFUSAL_KEY, told);
        }
        Some(Step { response, text, end: End::Refused })
    }

    fn advance(
        &mut self,
        request: &LoginRequest,
        data: &[u8],
        setup: &Setup,
        portal: SocketAddr,
    ) -> Result<Step, Refusal> {
        if self.held.is_some() {
            // Nothing may come before the answer.
            return Err(status::INITIATOR_ERROR.into());
        }
        self.check(request)?;
        self.collector.add(data).map_err(|_| status::INITIATOR_ERROR)?;
        if request.more {
            let response = respond(request);
            return Ok(Step { response, text: Vec::new(), end: End::Open });
        }
        let text = self.collector.take();
        let pairs = text::parse(&text).map_err(|_| status::INITIATOR_ERROR)?;
        self.count(&pairs)?;
        if self.identity.is_none() {
            let name = text::value(&pairs, "InitiatorName");
            self.claimed = name.map(|name| name.chars().take(NAME_LEN_MAX).collect());
            let identity = identify(&pairs, setup)?;
            if identity.session == SessionType::Normal
                && let Some(to) = setup.redirects.iter().find(|one| one.applies_to(portal))
            {
                let status = if to.permanent {
                    status::MOVED_PERMANENTLY
                } else {
                    status::MOVED_TEMPORARILY
                };
                return Err(Refusal::Moved { status, address: to.address.clone() });
            }
            self.identity = Some(identity);
        }
        let mut out = Vec::new();
        self.take_pairs(&pairs, setup, &mut out)?;
        if request.transit && self.auth == Auth::Needed {
            // It wants to go on, and not to prove itself: asking again would never end.
            return Err(status::AUTHENTICATION_FAILURE.into());
        }
        self.declare(request, &mut out);
        if out.len() > ANSWER_LEN_MAX {
            return Err(status::INITIATOR_ERROR.into());
        }
        let transit = request.transit && matches!(self.auth, Auth::Claimed | Auth::Done);
        if transit {
            self.stage = Some(request.next_stage);
        }
        let end =
            if transit && request.next_stage == FULL_FEATURE { End::Admit } else { End::Open };
        let next_stage = if transit { request.next_stage } else { 0 };
        let response = LoginResponse { transit, next_stage, ..respond(request) };
        Ok(Step { response, text: out, end })
    }

    /// Bounds the keys of a login, and refuses those that come again (RFC 7143, section 6.1).
    fn count(&mut self, pairs: &[(&str, &str)]) -> Result<(), u16> {
        self.keys += pairs.len();
        if self.keys > KEYS_MAX {
            return Err(status::INITIATOR_ERROR);
        }
        for (key, _) in pairs {
            let Some(at) = SECURITY_KEYS.iter().position(|known| known == key) else { continue };
            let bit = 1 << at;
            if self.seen & bit != 0 {
                return Err(status::INITIATOR_ERROR);
            }
            self.seen |= bit;
        }
        Ok(())
    }

    /// Refuses requests that do not fit what came before.
    fn check(&mut self, request: &LoginRequest) -> Result<(), u16> {
        self.requests += 1;
        if self.requests > REQUESTS_MAX {
            return Err(status::INITIATOR_ERROR);
        }
        if request.version_min > 0 {
            return Err(status::UNSUPPORTED_VERSION);
        }
        let first = self.first.get_or_insert(*request);
        let fixed = |one: &LoginRequest| (one.isid, one.tsih, one.cid);
        let same = fixed(first) == fixed(request);
        let stage = *self.stage.get_or_insert(request.current_stage);
        let stage_known = matches!(stage, SECURITY | OPERATIONAL);
        let next = (request.current_stage, request.next_stage);
        let next_known =
            matches!(next, (SECURITY, OPERATIONAL | FULL_FEATURE) | (OPERATIONAL, FULL_FEATURE));
        if !same
            || !stage_known
            || request.current_stage != stage
            || (request.transit && (!next_known || request.more))
        {
            return Err(status::INITIATOR_ERROR);
        }
        if stage == OPERATIONAL && self.auth != Auth::Done {
            return Err(status::AUTHENTICATION_FAILURE);
        }
        Ok(())
    }

    fn take_pairs(
        &mut self,
        pairs: &[(&str, &str)],
        setup: &Setup,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        let Some(identity) = self.identity.clone() else { return Err(status::INITIATOR_ERROR) };
        let session = identity.session;
        for (key, value) in pairs {
            match *key {
                // Some initiators say who they are in each stage: then always the same.
                "InitiatorName" if value.eq_ignore_ascii_case(&identity.initiator) => {}
                "TargetName" if value.eq_ignore_ascii_case(&setup.name) => {}
                "SessionType" if session_type(value) == Some(session) => {}
                "InitiatorName" | "TargetName" | "SessionType" => {
                    return Err(status::INITIATOR_ERROR);
                }
                "AuthMethod" => self.take_method(value, out)?,
                "CHAP_A" => self.take_algorithms(value, setup, out)?,
                "CHAP_N" => self.take_proof(pairs, setup, out)?,
                // Taken together with CHAP_N, and worth nothing without it.
                "CHAP_R" | "CHAP_I" | "CHAP_C" if self.auth == Auth::Done => {}
                "CHAP_R" | "CHAP_I" | "CHAP_C" if text::value(pairs, "CHAP_N").is_some() => {}
                "CHAP_R" | "CHAP_I" | "CHAP_C" => return Err(status::INITIATOR_ERROR),
                _ => self.negotiation.answer(key, value, session, out).map_err(refuse)?,
            }
        }
        Ok(())
    }

    /// What the target says of itself: its portal group at first, its limit when parameters are
    /// talked about.
    fn declare(&mut self, request: &LoginRequest, out: &mut Vec<u8>) {
        let normal =
            self.identity.as_ref().is_some_and(|known| known.session == SessionType::Normal);
        if normal && !self.told_portal_group {
            self.told_portal_group = true;
            text::push(out, "TargetPortalGroupTag", "1");
        }
        if request.current_stage == OPERATIONAL {
            self.negotiation.declare(out);
        }
    }

    fn take_method(&mut self, list: &str, out: &mut Vec<u8>) -> Result<(), u16> {
        let offers = |method| list.split(',').any(|item| item == method);
        match self.auth {
            Auth::Needed if offers("CHAP") => {
                self.auth = Auth::Method;
                text::push(out, "AuthMethod", "CHAP");
                Ok(())
            }
            Auth::Done if offers("None") => {
                text::push(out, "AuthMethod", "None");
                Ok(())
            }
            Auth::Needed | Auth::Done => Err(status::AUTHENTICATION_FAILURE),
            Auth::Method | Auth::Challenged(_) | Auth::Claimed => Err(status::INITIATOR_ERROR),
        }
    }

    fn take_algorithms(&mut self, list: &str, setup: &Setup, out: &mut Vec<u8>) -> Result<(), u16> {
        if self.auth != Auth::Method {
            return Err(status::INITIATOR_ERROR);
        }
        let algorithm = Algorithm::choose(list, &setup.chap_allow);
        let algorithm = algorithm.ok_or(status::AUTHENTICATION_FAILURE)?;
        self.algorithm = Some(algorithm);
        self.auth = Auth::Challenged(algorithm);
        text::push(out, "CHAP_A", &algorithm.number().to_string());
        self.challenge.push(out);
        Ok(())
    }

    /// The initiator proves itself, and may ask the target to do so too (RFC 7143, section 12.1.3).
    fn take_proof(
        &mut self,
        pairs: &[(&str, &str)],
        setup: &Setup,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        let Auth::Challenged(algorithm) = self.auth else { return Err(status::INITIATOR_ERROR) };
        let refused = |_| status::AUTHENTICATION_FAILURE;
        if setup.asks_standing {
            return self.take_claim(algorithm, pairs).map_err(refused);
        }
        // First of all: who has proven nothing gets no answer to its own question.
        self.challenge.verify(algorithm, &setup.chap, pairs).map_err(refused)?;
        if let Some(question) = Question::read(pairs).map_err(refused)? {
            let own = setup.mutual_chap.as_ref().ok_or(status::AUTHENTICATION_FAILURE)?;
            question.answer(algorithm, own, Some(&self.challenge), out).map_err(refused)?;
        }
        self.auth = Auth::Done;
        Ok(())
    }

    /// Keeps what the initiator gave, for the shell.
    fn take_claim(
        &mut self,
        algorithm: Algorithm,
        pairs: &[(&str, &str)],
    ) -> Result<(), ChapError> {
        if Question::read(pairs)?.is_some() {
            // The target has no secret to prove itself by.
            return Err(ChapError::Wrong);
        }
        let name = text::value(pairs, "CHAP_N").unwrap_or_default();
        let name = name[..name.floor_char_boundary(CLAIM_LEN_MAX)].to_string();
        let answer = text::value(pairs, "CHAP_R").and_then(text::binary);
        self.proof = Some(Proof { name, algorithm, answer });
        self.auth = Auth::Claimed;
        Ok(())
    }
}

fn respond(request: &LoginRequest) -> LoginResponse {
    LoginResponse {
        transit: false,
        more: false,
        current_stage: request.current_stage,
        next_stage: 0,
        version_active: 0,
        isid: request.isid,
        tsih: request.tsih,
        itt: request.itt,
        status: 0,
    }
}

fn refuse(_: NegotiationError) -> u16 {
    status::INITIATOR_ERROR
}

fn session_type(value: &str) -> Option<SessionType> {
    match value {
        "Normal" => Some(SessionType::Normal),
        "Discovery" => Some(SessionType::Discovery),
        _ => None,
    }
}

/// Reads who logs in where from the first request.
fn identify(pairs: &[(&str, &str)], setup: &Setup) -> Result<Identity, u16> {
    let value = |key| text::value(pairs, key);
    let initiator = value("InitiatorName").ok_or(status::MISSING_PARAMETER)?;
    if initiator.is_empty() || initiator.len() > NAME_LEN_MAX {
        return Err(status::INITIATOR_ERROR);
    }
    // iSCSI names are compared without case (RFC 7143, section 4.2.7.1).
    let allowed = setup.allow.iter().any(|name| name.eq_ignore_ascii_case(initiator));
    if !setup.allow.is_empty() && !allowed {
        return Err(status::AUTHORIZATION_FAILURE);
    }
    let session = value("SessionType").map_or(Some(SessionType::Normal), session_type);
    let session = session.ok_or(status::SESSION_TYPE)?;
    if session == SessionType::Normal {
        let target = value("TargetName").ok_or(status::MISSING_PARAMETER)?;
        if !target.eq_ignore_ascii_case(&setup.name) {
            return Err(status::NOT_FOUND);
        }
    }
    Ok(Identity { initiator: initiator.to_ascii_lowercase(), session })
}
