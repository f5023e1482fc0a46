//! The sessions: each is made again when it is lost, and what was found of the disk is compared.

use std::{sync::atomic::Ordering, time::Duration};

use netraid_block::{ErrorKind, IoError};
use tokio::time::Instant;

use super::{
    super::{
        disk::Profile,
        error::Reason,
        lane::{JOINS_MAX, Lane, Made, News, Stage},
        link::Link,
        probe::Probed,
        verdict::Unanswered,
    },
    Actor, Down,
};

/// How long a target is waited for that lets this side in no more: it may be set up anew right after a
/// restart, and who is let in by a token may get another one.
const DENIAL_LIMIT: Duration = Duration::from_secs(10);

impl Actor {
    /// Begins what is due on lanes that carry nothing.
    pub(super) fn tend(&mut self) {
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            let due = match &lane.stage {
                Stage::Waiting(when) => *when <= Instant::now(),
                Stage::Up(_) => lane.examine && lane.running == 0,
                Stage::Dialing(_) | Stage::Examining(_) | Stage::GivenUp => false,
            };
            if !due {
                continue;
            }
            let key = self.controls.key().filter(|_| lane.registered);
            let (dialer, portal, untold) = (self.dialer.clone(), lane.portal, lane.untold.clone());
            lane.stage = match std::mem::replace(&mut lane.stage, Stage::GivenUp) {
                Stage::Up(link) => {
                    lane.examine = false;
                    Stage::Examining(tokio::spawn(async move {
                        dialer.examine(*link, key, &untold).await
                    }))
                }
                Stage::Dialing(_) | Stage::Examining(_) | Stage::Waiting(_) | Stage::GivenUp => {
                    Stage::Dialing(tokio::spawn(async move {
                        dialer.dial(at, portal, key, &untold).await
                    }))
                }
            };
        }
    }

    pub(super) fn take_news(&mut self, at: usize, news: News) {
        match news {
            News::Ready(ready) => {
                let Some(link) = self.lanes[at].link() else { return };
                let mut result = ready.and_then(|()| link.receive());
                if link.is_logged_out() {
                    result = Err(Reason::Lost("the target ended the session".to_owned()));
                }
                let is_heard = link.take_news();
                let (has_done, all) = (link.has_done(), link.all_moved());
                let moved = all.saturating_sub(self.lanes[at].noted);
                self.lanes[at].noted = all;
                if is_heard {
                    self.state.note_sign();
                }
                if has_done || moved > 0 {
                    self.heard_at = Instant::now();
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
                    self.lose(at, reason);
                }
            }
            News::Dialed(made) => self.take_session(at, made),
            News::Examined(Ok((link, probed))) => match probed.check_successor(&self.first) {
                Ok(()) => {
                    if probed.heard.cache_lost {
                        self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
                    }
                    self.lanes[at].untold.store(false, Ordering::Release);
                    let profile = probed.profile.without_what_was_refused(&self.profile);
                    self.know(Probed { profile, ..probed });
                    self.lanes[at].stage = Stage::Up(Box::new(link));
                }
                Err(reason) => {
                    drop(link);
                    self.lose(at, reason);
                }
            },
            News::Examined(Err(reason)) => self.lose(at, reason),
        }
    }

    /// A session was made, or not.
    fn take_session(&mut self, at: usize, made: Made) {
        let made = made.and_then(|(link, probed)| {
            probed.check_successor(&self.first)?;
            let (new, lane) = (link.portal_group(), &mut self.lanes[at]);
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
        lane.stage = Stage::Up(Box::new(link));
        lane.suspect = false;
        lane.joins_left = JOINS_MAX;
        let held = std::mem::take(&mut lane.held);
        lane.untold.store(false, Ordering::Release);
        // When the sessions before are gone, it is all that is known.
        if if again { probed.heard.may_have_lost_its_cache() } else { alone } {
            self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
        }
        if again {
            self.state.reconnects.fetch_add(1, Ordering::AcqRel);
            tracing::info!(place = %self.place, session = at, "connected again");
        }
        self.know(probed);
        self.requests.release(held);
        self.down = None;
        self.state.gone.store(false, Ordering::Release);
        self.state.connected.store(true, Ordering::Release);
        self.state.note_sign();
    }

    /// Goes by what was found now.
    fn know(&mut self, probed: Probed) {
        let blocks = probed.profile.blocks;
        if blocks != self.first.profile.blocks {
            tracing::info!(place = %self.place, blocks, "disk has grown");
        }
        self.state.capacity.store(probed.profile.capacity(), Ordering::Release);
        let profile = Profile {
            blocks: self.first.profile.blocks,
            flush_proven: self.profile.flush_proven,
            synchronize_cache: probed.profile.synchronize_cache && self.profile.synchronize_cache,
            ..probed.profile
        };
        self.profile = self.unanswered.without_unanswered(profile);
    }

    /// The link of a lane is gone; its socket closes before another one is opened.
    pub(super) fn lose(&mut self, at: usize, reason: Reason) {
        tracing::warn!(place = %self.place, session = at, %reason, "session lost");
        let portals = self.dialer.portals();
        let lane = &mut self.lanes[at];
        let portal = lane.portal;
        lane.lose(portals);
        for kind in Unanswered::KINDS {
            if self.requests.has_on(at, kind) {
                self.note_unanswered(kind);
            }
        }
        let lane = &mut self.lanes[at];
        lane.held.extend(self.requests.hold_running(at));
        lane.suspect |= self.aborting.iter().any(|aborting| aborting.lane == at && aborting.writes);
        self.aborting.retain(|aborting| aborting.lane != at);
        self.controls.lose(at, &self.place);
        if matches!(reason, Reason::Fenced) {
            self.lanes[at].stage = Stage::GivenUp;
            return self.fence();
        }
        self.note_failure(portal, &reason);
    }

    /// No session could be made.
    pub(super) fn fail(&mut self, at: usize, reason: &Reason) {
        tracing::debug!(place = %self.place, session = at, %reason, "no session yet");
        let portals = self.dialer.portals();
        let portal = self.lanes[at].portal;
        self.lanes[at].fail(portals);
        if matches!(reason, Reason::Fenced) {
            self.lanes[at].stage = Stage::GivenUp;
            return self.fence();
        }
        self.note_failure(portal, reason);
    }

    fn note_failure(&mut self, portal: usize, reason: &Reason) {
        if self.lanes.iter().any(Lane::is_connected) {
            return;
        }
        self.state.connected.store(false, Ordering::Release);
        if matches!(reason, Reason::Forgotten) {
            // It was restarted, and no session can be made that would say so: who asks for nothing
            // learns it all the same, before the next disk restarts.
            self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
        }
        let portals = self.dialer.portals();
        let down = self.down.get_or_insert_with(|| Down {
            since: Instant::now(),
            failure: String::new(),
            refused: vec![None; portals],
        });
        down.failure = reason.to_string();
        self.state.failure.send_replace(down.failure.clone());
        if let Some(refused) = down.refused.get_mut(portal) {
            let limit = self.dialer.config.refusal_limit;
            *refused = match reason {
                reason if reason.is_refusal() => Some(limit),
                reason if reason.is_denial() => Some(limit.max(DENIAL_LIMIT)),
                _ => None,
            };
        }
        if self.is_gone() {
            self.state.gone.store(true, Ordering::Release);
            // Whoever waits has waited for the attempt that just failed.
            self.fail_idle();
        }
    }

    /// Whether the peer is surely not there, for longer than a restart takes.
    pub(super) fn is_gone(&self) -> bool {
        self.down.as_ref().is_some_and(|down| {
            let since = down.since.elapsed();
            down.refused.iter().all(|limit| limit.is_some_and(|limit| since >= limit))
        })
    }

    /// Ends all requests that have nothing under way.
    pub(super) fn fail_idle(&mut self) {
        for ticket in self.requests.idle() {
            let error = self.failure(None);
            let left = self.requests.finish(ticket, Err(error));
            self.leave(left);
        }
    }

    /// This side may not write any more: nothing is sent again, and nothing waits.
    pub(super) fn fence(&mut self) {
        if !self.fenced {
            tracing::error!(place = %self.place, "fenced: another host has taken over");
            self.fenced = true;
            self.state.fenced.store(true, Ordering::Release);
        }
        self.fail_idle();
    }

    /// Why a request that is not carried out ends, after it `waited` so long.
    pub(super) fn failure(&self, waited: Option<Duration>) -> IoError {
        let (place, limit) = (&self.place, self.dialer.config.request_timeout);
        if self.fenced {
            let text = format!("{place}: another host has taken over, and excludes this one");
            return IoError::with_detail(ErrorKind::Fenced, text);
        }
        match &self.down {
            Some(Down { failure, since, .. }) => {
                let text = format!("{place}: not reachable for {:?}: {failure}", since.elapsed());
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
}
