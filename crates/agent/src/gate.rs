//! The target's admission: tokens are held against what the [`View`] says, and every refusal goes to the
//! audit log with its reason, which the peer learns only if it has proven that it knows the token's secret.

use std::{net::SocketAddr, sync::Arc};

use netraid_cluster::now;
use netraid_control::{
    derived::Denial,
    token::{AgentView, Denied, Grant, Secret, Token, admit},
    units::{AgentId, MediatorId, Moment, Rate, SegmentId},
};
use netraid_engine::target::{Admission, Admitted, NotAdmitted, NotOpened, Opened, Pace};
use serde_json::{Value, json};

use crate::{
    audit::{Audit, shown},
    segments::Segments,
    view::{Known, View},
};

#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) agent: AgentId,
    pub(crate) view: Arc<View>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) audit: Audit,
}

impl Gate {
    fn grant(
        &self,
        known: &Known,
        (name, initiator): (&str, &str),
        now: Moment,
        proves: &mut dyn FnMut(&Secret) -> bool,
    ) -> Result<Grant, Denied> {
        let segment = |mediator, id| known.segments.get(&(mediator, id)).copied();
        let is_revoked = |mediator, plan| known.revoked.contains_key(&(mediator, plan));
        let (agent, keys) = (self.agent, &known.keys);
        let view = AgentView { agent, keys, segment: &segment, is_revoked: &is_revoked };
        admit(name, initiator, &view, now, proves)
    }
}

/// A floor holds as long as it is booked here.
fn is_booked(known: &Known, token: &Token, now: Moment) -> bool {
    let booked = known.booked.get(&(token.mediator, token.plan));
    token.rates.floor == Rate::ZERO
        || booked.is_some_and(|booked| {
            booked.segment == token.segment
                && booked.rate >= token.rates.floor
                && booked.until > now
        })
}

impl Admission for Gate {
    fn admit(
        &self,
        name: &str,
        initiator: &str,
        peer: SocketAddr,
        proves: &mut dyn FnMut(&Secret) -> bool,
    ) -> Result<Admitted, NotAdmitted> {
        let now = now();
        let known = self.view.read();
        let granted = self.grant(&known, (name, initiator), now, proves);
        let off = Token::from_name(name).ok().and_then(|token| known.off(token.mediator));
        let granted = match granted {
            Ok(grant) if is_booked(&known, grant.token(), now) => Ok(grant),
            Ok(_) => {
                let why = "the rate that its token promises is not booked any more";
                Err((why.to_owned(), Some(format!("{why}; open the volume again"))))
            }
            Err(denied) => Err((denied.to_string(), denied.told(now, off))),
        };
        drop(known);
        let grant = match granted {
            Ok(grant) => grant,
            Err((why, told)) => {
                // What the token says, true or not, tells whom to ask.
                let mut fields = Token::from_name(name).map_or(json!({}), |token| named(&token));
                fields["initiator"] = shown(initiator).into();
                fields["peer"] = peer.to_string().into();
                fields["why"] = why.into();
                self.audit.refuse("login_denied", fields);
                return Err(NotAdmitted { told });
            }
        };
        let rates = grant.token().rates;
        let pace = Pace { floor: rates.floor, limit: rates.limit, weight: u32::from(rates.weight) };
        Ok(Admitted { grant, pace })
    }

    fn open(&self, mediator: MediatorId, segment: SegmentId) -> Result<Opened, NotOpened> {
        let key = (mediator, segment);
        let info = self.view.read().segments.get(&key).copied();
        let info = info.ok_or("the segment is not there")?;
        let (lun, is_written) = self.segments.open(key, info.capacity)?;
        // How far it was written is not kept: what was written at all is not appended to.
        let end_bytes = if is_written { info.capacity } else { 0 };
        // Raised meanwhile, it is raised in the target after this.
        let generation = self.view.read().segments.get(&key).map(|info| info.generation);
        let generation = generation.ok_or("the segment is being removed")?;
        Ok(Opened { lun, generation, end_bytes })
    }

    fn stands(&self, grant: &Grant) -> bool {
        self.view.read().stands(grant.token())
    }

    fn denied(&self, grant: &Grant, denial: &Denial) {
        let mut fields = named(grant.token());
        fields["why"] = denial.to_string().into();
        self.audit.refuse("request_denied", fields);
    }

    fn now(&self) -> Moment {
        now()
    }
}

/// What a token names.
fn named(token: &Token) -> Value {
    json!({
        "mediator": token.mediator,
        "plan": token.plan,
        "segment": token.segment,
        "generation": token.terms.generation,
    })
}
