//! The initiator's side of a login (RFC 7143, section 6.3).

use alloc::{
    string::{String, ToString},
    vec::Vec,
};

use super::Setup;
use crate::{
    chap::Algorithm,
    machine::Fatal,
    negotiation::{Negotiation, SessionType},
    pdu::{LoginRequest, LoginResponse},
    text::{self, Collector},
};

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Most requests of one login; an ordinary one takes four.
const REQUESTS_MAX: u32 = 32;

/// Why a target refused a login.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// Wrong name or secret, or a secret is needed and none was given (status 0x0201).
    #[error("authentication failed; check the user name and the secret")]
    Authentication,
    /// The secret was right, and the target says why it lets nobody in by it all the same (status 0x0201 with
    /// [`text::REFUSAL_KEY`]).
    #[error("the target knows the secret and refuses the login: {0}")]
    Denied(String),
    /// The initiator may not use this target (status 0x0202).
    #[error("this initiator is not allowed to use the target")]
    Forbidden,
    /// There is no such target there (status 0x0203 or 0x0204).
    #[error("there is no such target at this address; check the target's name")]
    NotFound,
    /// The target is elsewhere (status 0x0101 or 0x0102).
    #[error("the target has moved to {address}; use that address")]
    Moved {
        /// Where: `host[:port][,portal group]`.
        address: String,
        /// From now on; else for this login only.
        permanent: bool,
    },
    /// The target cannot serve now (status class 3).
    #[error("the target cannot serve now (status {status:#06x})")]
    Unavailable {
        /// Login status.
        status: u16,
    },
    /// Another refusal.
    #[error(
        "the target refused the login (status {status:#06x}): it may demand or forbid what this side \
         does not, such as digests; compare the settings of both"
    )]
    Refused {
        /// Login status.
        status: u16,
    },
    /// The target chose an authentication method or algorithm that was not offered.
    #[error("the target wants an authentication that is not supported: {0}")]
    Unsupported(&'static str),
    /// There is a secret to prove, and the target lets in without.
    #[error(
        "the target asks for no proof (AuthMethod=None) although there is a user and a secret: it may be \
         another than the one that was meant; take the user out of the address, or allow that with --allow-none"
    )]
    Unasked,
    /// Mutual CHAP is demanded, and the target did not prove that it knows the secret.
    #[error(
        "the target did not prove itself ({0}); check its name and secret, and that it does mutual chap"
    )]
    Unproven(&'static str),
}

impl LoginError {
    fn from_status(status: u16, address: Option<String>, denial: Option<String>) -> Self {
        match status {
            0x0101 | 0x0102 => {
                let permanent = status == 0x0102;
                Self::Moved { address: address.unwrap_or_default(), permanent }
            }
            0x0201 => denial.map_or(Self::Authentication, Self::Denied),
            0x0202 => Self::Forbidden,
            0x0203 | 0x0204 => Self::NotFound,
            0x0300..=0x03ff => Self::Unavailable { status },
            _ => Self::Refused { status },
        }
    }

    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Authentication
            | Self::Denied(_)
            | Self::Forbidden
            | Self::NotFound
            | Self::Moved { .. }
            | Self::Refused { .. }
            | Self::Unsupported(_)
            | Self::Unasked
            | Self::Unproven(_) => false,
        }
    }
}

/// What a target says to people: none of what is too long, or does something to a terminal.
fn readable(said: &str) -> Option<String> {
    let is_fit = said.len() <= text::REFUSAL_LEN_MAX
        && !said.is_empty()
        && said.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    is_fit.then(|| said.to_string())
}

/// What a response leads to.
#[derive(Debug)]
pub(super) enum Step {
    /// Send this next.
    Request(LoginRequest, Vec<u8>),
    /// The login is complete.
    Done,
    /// The target refused.
    Failed(LoginError),
}

/// One login in progress.
#[derive(Debug)]
pub(super) struct Login {
    stage: u8,
    requests: u32,
    offered: bool,
    /// This side has answered the target's challenge, or the target wants no answer.
    proven: bool,
    /// The algorithm that was agreed on, once this side has answered with it.
    algorithm: Option<Algorithm>,
    /// The target has answered this side's challenge.
    target_proven: bool,
    portal_group: Option<u16>,
    negotiation: Negotiation,
    collector: Collector,
    session: SessionType,
    itt: u32,
}

impl Login {
    /// A login, and its first request.
    pub(super) fn start(setup: &Setup, itt: u32) -> (Self, LoginRequest, Vec<u8>) {
        let session = match setup.target_name {
            Some(_) => SessionType::Normal,
            None => SessionType::Discovery,
        };
        let mut login = Self {
            stage: if setup.chap.is_some() { SECURITY } else { OPERATIONAL },
            requests: 0,
            offered: false,
            proven: false,
            algorithm: None,
            target_proven: false,
            portal_group: None,
            negotiation: Negotiation::new(setup.wishes.clone()),
            collector: Collector::default(),
            session,
            itt,
        };
        let mut out = Vec::new();
        text::push(&mut out, "InitiatorName", &setup.initiator_name);
        match &setup.target_name {
            Some(name) => {
                text::push(&mut out, "TargetName", name);
                text::push(&mut out, "SessionType", "Normal");
            }
            None => text::push(&mut out, "SessionType", "Discovery"),
        }
        let transit = login.stage == OPERATIONAL;
        if transit {
            login.offer(&mut out);
        } else {
            // Who wants a proof from the target does not let it go without.
            let methods = if setup.mutual.is_some() { "CHAP" } else { "CHAP,None" };
            text::push(&mut out, "AuthMethod", methods);
        }
        let request = login.request(setup, 0, transit);
        (login, request, out)
    }

    pub(super) fn negotiation(&self) -> &Negotiation {
        &self.negotiation
    }

    pub(super) fn session(&self) -> SessionType {
        self.session
    }

    /// The target portal group, when the target named it.
    pub(super) fn portal_group(&self) -> Option<u16> {
        self.portal_group
    }

    /// Takes a response and its text.
    pub(super) fn handle(
        &mut self,
        response: &LoginResponse,
        data: &[u8],
        setup: &Setup,
    ) -> Result<Step, Fatal> {
        if response.status != 0 {
            let pairs = text::parse(data).unwrap_or_default();
            let address = value(&pairs, "TargetAddress").map(ToString::to_string);
            // Before that it knows nothing that it could say.
            let denial =
                value(&pairs, text::REFUSAL_KEY).filter(|_| self.proven).and_then(readable);
            return Ok(Step::Failed(LoginError::from_status(response.status, address, denial)));
        }
        self.requests += 1;
        if response.current_stage != self.stage || self.requests > REQUESTS_MAX {
            return Err(Fatal::Protocol("login response does not fit the login"));
        }
        self.collector.add(data)?;
        if response.more {
            let request = self.request(setup, response.tsih, false);
            return Ok(Step::Request(request, Vec::new()));
        }
        let text = self.collector.take();
        let pairs = text::parse(&text)?;
        let mut out = Vec::new();
        if let Some(error) = self.take_pairs(&pairs, setup, &mut out)? {
            return Ok(Step::Failed(error));
        }
        if response.transit {
            if setup.mutual.is_some() && !self.target_proven {
                return Ok(Step::Failed(LoginError::Unproven("it gave no answer")));
            }
            if setup.chap.is_some() && !self.proven && !setup.allow_none {
                return Ok(Step::Failed(LoginError::Unasked));
            }
            match (self.stage, response.next_stage) {
                (OPERATIONAL, FULL_FEATURE) => return Ok(Step::Done),
                (SECURITY, OPERATIONAL) => self.stage = OPERATIONAL,
                _ => return Err(Fatal::Protocol("login stage was not asked for")),
            }
        }
        let transit = self.stage == OPERATIONAL || self.proven;
        if self.stage == OPERATIONAL {
            self.offer(&mut out);
        }
        Ok(Step::Request(self.request(setup, response.tsih, transit), out))
    }

    fn offer(&mut self, out: &mut Vec<u8>) {
        if !self.offered {
            self.offered = true;
            self.negotiation.offer(self.session, out);
        }
    }

    fn take_pairs(
        &mut self,
        pairs: &[(&str, &str)],
        setup: &Setup,
        out: &mut Vec<u8>,
    ) -> Result<Option<LoginError>, Fatal> {
        for (key, answer) in pairs {
            match *key {
                "TargetPortalGroupTag" => {
                    let tag = text::number(answer).and_then(|tag| u16::try_from(tag).ok());
                    self.portal_group = tag;
                }
                "TargetAlias" | "TargetAddress" | "TargetName" => {}
                "AuthMethod" => match *answer {
                    "None" if setup.allow_none => self.proven = true,
                    "None" => return Ok(Some(LoginError::Unasked)),
                    "CHAP" => {
                        let numbers: Vec<_> =
                            setup.algorithms.iter().map(|one| one.number().to_string()).collect();
                        text::push(out, "CHAP_A", &numbers.join(","));
                    }
                    _ => return Ok(Some(LoginError::Unsupported("method"))),
                },
                "CHAP_A" => match self.prove(pairs, setup, out) {
                    Ok(()) => self.proven = true,
                    Err(error) => return Ok(Some(error)),
                },
                "CHAP_R" => {
                    if let Err(error) = self.check_target(pairs, setup) {
                        return Ok(Some(error));
                    }
                    self.target_proven = true;
                }
                // Read together with CHAP_A and CHAP_R.
                "CHAP_I" | "CHAP_C" | "CHAP_N" => {}
                _ => self.negotiation.accept(key, answer, out)?,
            }
        }
        Ok(None)
    }

    /// Answers the target's challenge, and challenges it in turn when that is wanted.
    fn prove(
        &mut self,
        pairs: &[(&str, &str)],
        setup: &Setup,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        let number = value(pairs, "CHAP_A").and_then(text::number);
        let algorithm = number
            .and_then(Algorithm::from_number)
            .filter(|algorithm| setup.algorithms.contains(algorithm))
            .ok_or(LoginError::Unsupported("chap algorithm"))?;
        let identifier = value(pairs, "CHAP_I").and_then(text::number);
        let identifier = identifier.and_then(|number| u8::try_from(number).ok());
        let challenge = value(pairs, "CHAP_C").and_then(text::binary);
        let (Some(identifier), Some(challenge), Some(chap)) = (identifier, challenge, &setup.chap)
        else {
            return Err(LoginError::Unsupported("chap challenge"));
        };
        if let Some(mutual) = &setup.mutual {
            // RFC 7143, section 9.2.1: a peer that sends this side's challenge back wants it to
            // answer itself.
            if self.algorithm.is_some() || challenge == mutual.challenge {
                return Err(LoginError::Unproven("it repeats challenges"));
            }
            text::push(out, "CHAP_I", &mutual.identifier.to_string());
            text::push(out, "CHAP_C", &text::to_hex(&mutual.challenge));
        }
        self.algorithm = Some(algorithm);
        let answer = algorithm.answer(identifier, &chap.secret, &challenge);
        text::push(out, "CHAP_N", &chap.user);
        text::push(out, "CHAP_R", &text::to_hex(&answer));
        Ok(())
    }

    /// Checks the target's answer to this side's challenge.
    fn check_target(&self, pairs: &[(&str, &str)], setup: &Setup) -> Result<(), LoginError> {
        let (Some(mutual), Some(algorithm)) = (&setup.mutual, self.algorithm) else {
            return Err(LoginError::Unproven("it answers what it was not asked"));
        };
        let name = value(pairs, "CHAP_N").unwrap_or_default();
        if mutual.user.as_ref().is_some_and(|user| user != name) {
            return Err(LoginError::Unproven("it gives another name"));
        }
        let answer = value(pairs, "CHAP_R").and_then(text::binary).unwrap_or_default();
        if algorithm.verify(mutual.identifier, &mutual.secret, &mutual.challenge, &answer) {
            return Ok(());
        }
        Err(LoginError::Unproven("its answer is wrong"))
    }

    fn request(&self, setup: &Setup, tsih: u16, transit: bool) -> LoginRequest {
        let next = if self.stage == SECURITY { OPERATIONAL } else { FULL_FEATURE };
        LoginRequest {
            transit,
            more: false,
            current_stage: self.stage,
            next_stage: if transit { next } else { 0 },
            version_max: 0,
            version_min: 0,
            isid: setup.isid,
            tsih,
            itt: self.itt,
            cid: 1,
        }
    }
}

fn value<'a>(pairs: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}
