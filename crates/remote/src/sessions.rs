//! The sessions: each is made again when it is lost, and what was found of the disk is compared.

use alloc::{boxed::Box, format, string::ToString, vec};
use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Portal};
use netraid_planted::{Planted, planted};

use crate::{
    Reason, Remote,
    dial::{Redirected, Step},
    disk::Profile,
    examination::{Examination, Examine, Probed, Untold},
    interface::{Action, Event, Fresh, Place},
    lane::{Examining, JOINS_MAX, Lane, Stage},
    link::Link,
    remote::{Down, Phase},
    requests::Ticket,
    verdict::Unanswered,
};

/// How long a target is waited for that lets this side in no more: it may be set up anew right after a
/// restart, and who is let in by a token may get another one.
const DENIAL_LIMIT: Duration = Duration::from_secs(10);

impl<U> Remote<U> {
    /// Begins what is due on lanes that carry nothing.
    pub(crate) fn tend(&mut self) {
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            match &lane.stage {
                Stage::Waiting(when) if *when <= self.now => self.begin_dial(at),
                Stage::Up(_) if lane.examine && lane.running == 0 => {
                    lane.examine = false;
                    if let Stage::Up(link) = core::mem::replace(&mut lane.stage, Stage::GivenUp) {
                        self.begin_examination(at, link, false);
                    }
                }
                Stage::Up(_)
                | Stage::Dialing(_)
                | Stage::Examining(_)
                | Stage::Waiting(_)
                | Stage::GivenUp => {}
            }
        }
    }

    /// Begins to log in as session `at`.
    pub(crate) fn begin_dial(&mut self, at: usize) {
        let dial = self.dialer.dial(self.now, at, self.lanes[at].portal);
        self.connect(Place(at), dial.at().clone());
        self.lanes[at].stage = Stage::Dialing(Box::new(dial));
    }

    /// The connection of a lane that dials is made.
    pub(crate) fn take_connection(&mut self, at: usize, fresh: Fresh) {
        if let Stage::Dialing(dial) = &mut self.lanes[at].stage {
            dial.handle_connected(self.now, &self.dialer, fresh);
        }
    }

    /// Something was received on the connection of a lane, up to this end.
    pub(crate) fn take_input(&mut self, at: usize, end: Result<(), Reason>) {
        match &mut self.lanes[at].stage {
            Stage::Up(link) if matches!(self.phase, Phase::Leaving(_)) => {
                if link.end_of_input(end).is_err() || link.is_logged_out() {
                    self.part(at);
                }
            }
            Stage::Up(_) => self.take_answers(at, end),
            Stage::Dialing(dial) => {
                let step = dial.handle_received(self.now, &mut self.dialer, end);
                self.go_on_dialing(at, step);
            }
            Stage::Examining(_) => self.take_examined(at, end),
            Stage::Waiting(_) | Stage::GivenUp => {}
        }
    }

    /// Time has passed for a lane.
    pub(crate) fn take_time(&mut self, at: usize) {
        let now = self.now;
        match &mut self.lanes[at].stage {
            Stage::Up(link) => match link.handle_timeout(now) {
                Ok(()) => {}
                Err(_) if matches!(self.phase, Phase::Leaving(_)) => self.part(at),
                Err(reason) => self.lose(at, &reason),
            },
            Stage::Dialing(dial) => {
                let step = dial.handle_timeout(now, &self.dialer);
                self.go_on_dialing(at, step);
            }
            Stage::Examining(examining) => {
                let Examining { link, examination, .. } = &mut **examining;
                match examination.handle_timeout(now).and_then(|()| link.handle_timeout(now)) {
                    Ok(()) => self.advance_examination(at),
                    Err(reason) => self.end_examination(at, Err(reason)),
                }
            }
            Stage::Waiting(_) | Stage::GivenUp => {}
        }
    }

    /// The login of a lane goes on.
    pub(crate) fn go_on_dialing(&mut self, at: usize, step: Step) {
        match step {
            Step::Wait => {}
            Step::Connect(portal) => self.connect_again(Place(at), portal),
            Step::Redirect(redirected) => self.redirect(Place(at), redirected),
            Step::LoggedIn(link) => self.begin_examination(at, link, true),
            Step::Failed(reason) => self.take_session(at, Err(reason)),
        }
    }

    fn begin_examination(&mut self, at: usize, link: Box<Link>, is_new: bool) {
        let lane = &mut self.lanes[at];
        let how = Examine {
            lun: self.dialer.settings.lun,
            key: self.orders.key().filter(|_| {
                lane.registered && !(is_new && planted(Planted::KeyUncheckedAfterReconnect))
            }),
            reader_keys: self.dialer.settings.reader_keys,
            is_new,
            untold: match planted(Planted::DoubtOfExaminationForgotten) {
                true => Untold::Nothing,
                false => lane.untold,
            },
            limit: if is_new { self.dialer.limit() } else { self.dialer.settings.login_timeout },
        };
        // What the disk tells this examination is told once.
        lane.untold = Untold::Something;
        let examination = Examination::new(self.now, how);
        lane.stage = Stage::Examining(Box::new(Examining { link, examination, is_new }));
        self.advance_examination(at);
    }

    fn advance_examination(&mut self, at: usize) {
        if let Stage::Examining(examining) = &mut self.lanes[at].stage
            && examining.link.capacity() > 0
            && let Some((command, data_out)) = examining.examination.next_command(self.now)
        {
            examining.link.submit(self.now, command, data_out, Ticket::CONTROL);
        }
    }

    /// Something was received while the disk is examined.
    fn take_examined(&mut self, at: usize, end: Result<(), Reason>) {
        let Stage::Examining(examining) = &mut self.lanes[at].stage else { return };
        let Examining { link, examination, .. } = &mut **examining;
        let mut end = link.end_of_input(end);
        if end.is_ok() && link.is_logged_out() {
            end = Err(Reason::Lost("the target ended the session".to_string()));
        }
        if let Err(reason) = end {
            return self.end_examination(at, Err(reason));
        }
        while let Some(done) = link.poll_done() {
            match examination.handle_done(self.now, done) {
                Ok(None) => {}
                Ok(Some(probed)) => return self.end_examination(at, Ok(probed)),
                Err(reason) => return self.end_examination(at, Err(reason)),
            }
        }
        self.advance_examination(at);
    }

    fn end_examination(&mut self, at: usize, found: Result<Probed, Reason>) {
        let lane = &mut self.lanes[at];
        let stage = core::mem::replace(&mut lane.stage, Stage::GivenUp);
        let Stage::Examining(examining) = stage else {
            unreachable!("an examination ends that did not begin");
        };
        let Examining { link, examination, is_new } = *examining;
        lane.untold = examination.untold();
        if is_new {
            return self.take_session(at, found.map(|probed| (link, probed)));
        }
        let first = &self.first;
        let found = found.and_then(|probed| {
            first.as_ref().map_or(Ok(()), |first| probed.check_successor(first)).map(|()| probed)
        });
        match found {
            Ok(probed) => {
                lane.untold = Untold::Nothing;
                lane.stage = Stage::Up(link);
                if probed.heard.cache_lost {
                    self.status.cache_losses += 1;
                }
                let profile = probed.profile.clone().without_what_was_refused(&self.profile);
                self.know(Probed { profile, ..probed });
            }
            Err(reason) => self.lose(at, &reason),
        }
    }

    /// Commands may have ended on a session that carries some.
    fn take_answers(&mut self, at: usize, end: Result<(), Reason>) {
        let lane = &mut self.lanes[at];
        let Some(link) = lane.link() else { return };
        let mut result = link.end_of_input(end);
        if link.is_logged_out() {
            result = Err(Reason::Lost("the target ended the session".to_string()));
        }
        let (is_heard, is_asked_to_end) = (link.take_news(), link.take_asked_to_end());
        let (has_done, all) = (link.has_done(), link.all_moved());
        let moved = all.saturating_sub(lane.noted);
        lane.noted = all;
        self.status.signs = self.status.signs.wrapping_add(is_heard.into());
        if is_asked_to_end {
            self.tell(Event::Ending { session: at });
        }
        if has_done || moved > 0 {
            self.heard_at = self.now;
        }
        if moved > 0 {
            self.moved += moved;
            self.moved_at = self.heard_at;
        }
        // What ended before the session was lost has ended.
        while let Some(done) = self.lanes[at].link().and_then(Link::poll_done) {
            self.handle_done(at, done);
        }
        if let Err(reason) = result {
            self.lose(at, &reason);
        }
    }

    /// A session was made, or not.
    pub(crate) fn take_session(&mut self, at: usize, made: Result<(Box<Link>, Probed), Reason>) {
        if matches!(self.phase, Phase::Opening(_)) {
            return self.take_first_session(made);
        }
        let made = made.and_then(|(link, probed)| {
            if let Some(first) = &self.first {
                probed.check_successor(first)?;
            }
            let (new, lane) = (link.portal_group(), &self.lanes[at]);
            match lane.group {
                Some(old) if old != new => Err(Reason::OtherPortalGroup { new, old }),
                Some(_) | None => Ok((link, probed)),
            }
        });
        let (link, probed) = match made {
            Ok(made) => made,
            Err(reason) => return self.fail(at, &reason),
        };
        let alone = !self.lanes.iter().any(Lane::is_connected);
        let lane = &mut self.lanes[at];
        // Any target tells a session that is new to it that it was powered on.
        let again = lane.group.replace(link.portal_group()).is_some();
        lane.noted = link.all_moved();
        lane.stage = Stage::Up(link);
        lane.suspect = false;
        lane.joins_left = JOINS_MAX;
        let held = core::mem::take(&mut lane.held);
        lane.untold = Untold::Nothing;
        // When the sessions before are gone, it is all that is known.
        let may_have_lost = probed.heard.may_have_lost_its_cache()
            && !planted(Planted::CacheLossBeforeReconnectForgotten);
        if if again { may_have_lost } else { alone } {
            self.status.cache_losses += 1;
        }
        if again {
            self.status.reconnects += 1;
            self.tell(Event::Reconnected { session: at });
        }
        self.know(probed);
        self.requests.release(held);
        self.down = None;
        self.status.is_gone = false;
        self.status.is_connected = true;
        self.status.signs = self.status.signs.wrapping_add(1);
    }

    /// Goes by what was found now.
    fn know(&mut self, probed: Probed) {
        let blocks = probed.profile.blocks;
        let told = self.first.as_ref().map_or(blocks, |first| first.profile.blocks);
        if blocks != told {
            self.tell(Event::Grown { blocks });
        }
        self.status.capacity = probed.profile.capacity();
        let profile = Profile {
            blocks: told,
            flush_proven: self.profile.flush_proven,
            synchronize_cache: probed.profile.synchronize_cache && self.profile.synchronize_cache,
            ..probed.profile
        };
        self.profile = self.unanswered.without_unanswered(profile);
    }

    /// The link of a lane is gone; its socket closes before another one is opened.
    pub(crate) fn lose(&mut self, at: usize, reason: &Reason) {
        self.tell(Event::Lost { session: at, reason: reason.to_string() });
        self.disconnect(at);
        let (now, portals) = (self.now, self.dialer.portals());
        let lane = &mut self.lanes[at];
        let portal = lane.portal;
        lane.lose(now, portals);
        for kind in Unanswered::KINDS {
            if self.requests.has_on(at, kind) {
                self.note_unanswered(kind);
            }
        }
        let lane = &mut self.lanes[at];
        lane.held.extend(self.requests.hold_running(at));
        lane.suspect |= self.aborting.iter().any(|aborting| aborting.lane == at && aborting.writes)
            && !planted(Planted::GivenUpForgottenWithSession);
        self.aborting.retain(|aborting| aborting.lane != at);
        self.orders.lose(at, &self.place);
        if matches!(reason, Reason::Fenced) {
            self.lanes[at].stage = Stage::GivenUp;
            return self.fence();
        }
        self.note_forgotten(at, reason);
        self.note_failure(portal, reason);
    }

    /// No session could be made.
    pub(crate) fn fail(&mut self, at: usize, reason: &Reason) {
        self.tell(Event::NotMade { session: at, reason: reason.to_string() });
        self.disconnect(at);
        let (now, portals) = (self.now, self.dialer.portals());
        let portal = self.lanes[at].portal;
        self.lanes[at].fail(now, portals);
        if matches!(reason, Reason::Fenced) {
            self.lanes[at].stage = Stage::GivenUp;
            return self.fence();
        }
        self.note_forgotten(at, reason);
        self.note_failure(portal, reason);
    }

    /// A disk that has forgotten the registration of one session alone: the session joins the others, one of which shows
    /// that nobody has taken over.
    fn note_forgotten(&mut self, at: usize, reason: &Reason) {
        let is_beside =
            |(other, lane): (usize, &Lane)| other != at && lane.registered && lane.is_connected();
        if matches!(reason, Reason::Unregistered) && self.lanes.iter().enumerate().any(is_beside) {
            self.lanes[at].registered = false;
        }
    }

    fn note_failure(&mut self, portal: usize, reason: &Reason) {
        if self.lanes.iter().any(Lane::is_connected) {
            return;
        }
        self.status.is_connected = false;
        if matches!(reason, Reason::Forgotten | Reason::Unregistered) {
            // It was restarted, and no session can be made that would say so: who asks for nothing
            // learns it all the same, before the next disk restarts.
            self.status.cache_losses += 1;
        }
        let portals = self.dialer.portals();
        let down =
            self.down.get_or_insert_with(|| Down { since: self.now, refused: vec![None; portals] });
        let failure = reason.to_string();
        self.status.failures += u64::from(failure != self.failure);
        self.failure = failure;
        if let Some(refused) = down.refused.get_mut(portal) {
            let limit = self.dialer.settings.refusal_limit;
            *refused = match reason {
                reason if reason.is_refusal() => Some(limit),
                reason if reason.is_denial() => Some(limit.max(DENIAL_LIMIT)),
                _ => None,
            };
        }
        if self.is_gone() {
            self.status.is_gone = true;
            // Whoever waits has waited for the attempt that just failed.
            self.fail_idle();
        }
    }

    /// Whether the peer is surely not there, for longer than a restart takes.
    pub(crate) fn is_gone(&self) -> bool {
        self.down.as_ref().is_some_and(|down| {
            let since = self.now.saturating_sub(down.since);
            down.refused.iter().all(|limit| limit.is_some_and(|limit| since >= limit))
        })
    }

    /// Ends all requests that have nothing under way.
    pub(crate) fn fail_idle(&mut self) {
        for ticket in self.requests.idle() {
            let error = self.failure(None);
            let left = self.end(ticket, Err(error));
            self.leave(left);
        }
    }

    /// Ends all requests that have nothing under way, as aborted.
    pub(crate) fn abort_idle(&mut self) {
        for ticket in self.requests.idle() {
            let left = self.end(ticket, Err(ErrorKind::Aborted.into()));
            self.leave(left);
        }
    }

    /// Ends all requests that have nothing under way: the disk is not the one any more that they rely on.
    pub(crate) fn end_unsent(&mut self) {
        for ticket in self.requests.idle() {
            let text = format!(
                "{}: restarted or was reset: writes that were not flushed may be lost",
                self.place
            );
            let error = IoError::with_detail(ErrorKind::Unreachable, text);
            let left = self.end(ticket, Err(error));
            self.leave(left);
        }
    }

    /// This side may not write any more: nothing is sent again, and nothing waits.
    pub(crate) fn fence(&mut self) {
        if !self.status.is_fenced {
            self.tell(Event::Fenced);
            self.status.is_fenced = true;
        }
        self.fail_idle();
    }

    /// Why a request that is not carried out ends, after it `waited` so long.
    pub(crate) fn failure(&self, waited: Option<Duration>) -> IoError {
        let (place, limit) = (&self.place, self.dialer.settings.request_timeout);
        if self.status.is_fenced {
            let text = format!("{place}: another host has taken over, and excludes this one");
            return IoError::with_detail(ErrorKind::Fenced, text);
        }
        match &self.down {
            Some(Down { since, .. }) => {
                let (since, failure) = (self.now.saturating_sub(*since), &self.failure);
                let since = since.as_secs_f64();
                let text = format!("{place}: not reachable for {since:.1} s: {failure}");
                IoError::with_detail(ErrorKind::Unreachable, text)
            }
            None => {
                let long = waited.filter(|waited| *waited > limit.saturating_mul(2));
                let text = match long {
                    Some(waited) => format!(
                        "{place}: not done {:.0} s after it was asked for; keep less under \
                         way on a slow path",
                        waited.as_secs_f64()
                    ),
                    None => format!("{place}: no answer within {limit:?}"),
                };
                IoError::with_detail(ErrorKind::Timeout, text)
            }
        }
    }

    fn connect(&mut self, place: Place, portal: Portal) {
        self.actions.push_back(Action::Connect { place, portal });
    }

    /// A login goes on where it was sent to.
    pub(crate) fn redirect(&mut self, place: Place, redirected: Redirected) {
        let Redirected { from, to, permanent } = redirected;
        self.tell(Event::Redirected { from, to: to.clone(), permanent });
        self.connect_again(place, to);
    }

    /// A login goes on by another connection.
    pub(crate) fn connect_again(&mut self, place: Place, portal: Portal) {
        self.actions.push_back(Action::Disconnect(place));
        self.connect(place, portal);
    }

    /// The connection of a lane is over.
    pub(crate) fn disconnect(&mut self, at: usize) {
        self.actions.push_back(Action::Disconnect(Place(at)));
    }
}
