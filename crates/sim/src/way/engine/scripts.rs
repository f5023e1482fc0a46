//! The scripts of an engine: how far they are, and what becomes of their ends.

use netraid_raid::{
    member::MemberIndex,
    reach::Sessions as _,
    volume::{Expect, Machine as _},
};

use super::{Case, Context, Engine, Joined, Notice, Script, Serving, Stage, candidate, joining};

impl Engine {
    /// Goes on with all scripts that have answers; whether one has ended.
    pub(super) fn advance_scripts(&mut self, context: &mut Context<'_>) -> bool {
        match &mut self.stage {
            Stage::Opening(script) => {
                let Some(end) = script.poll() else { return false };
                match end {
                    Ok(opened) => {
                        self.trusts_parity = opened.trusts_parity;
                        let there: Vec<bool> = opened.members.iter().map(Option::is_some).collect();
                        context
                            .note(|| format!("engine {}: opens with members {there:?}", self.id.0));
                        let serving = Serving::new(opened, &self.hosts, context.now());
                        self.stage = Stage::Open(Box::new(serving));
                    }
                    Err(failure) => {
                        self.stage = Stage::Over;
                        context.notices.push_back((self.id, Notice::Refused(failure)));
                    }
                }
                true
            }
            Stage::Open(_) => self.advance_members(context),
            Stage::Ending(script, failure) => {
                if script.poll().is_none() {
                    return false;
                }
                let failure = failure.take();
                self.stage = Stage::Over;
                context.notices.push_back((self.id, Notice::Closed(failure)));
                true
            }
            Stage::Over => false,
        }
    }

    fn advance_members(&mut self, context: &mut Context<'_>) -> bool {
        let Stage::Open(serving) = &mut self.stage else { return false };
        let mut has_ended = false;
        serving.unused.retain_mut(|script| script.poll().is_none());
        for slot in &mut serving.slots {
            if let Some(leaving) = &mut slot.leaving
                && leaving.poll().is_some()
            {
                slot.leaving = None;
                context.cases.add(Case::GivenBack);
                has_ended = true;
            }
        }
        let joined = serving
            .joining
            .as_mut()
            .and_then(|(member, script)| script.poll().map(|end| (*member, end)));
        if let Some((member, end)) = joined {
            serving.joining = None;
            self.take_joined(context, member, end);
            has_ended = true;
        }
        let Stage::Open(serving) = &mut self.stage else { return has_ended };
        let mut returned = Vec::new();
        for (member, slot) in (0..).map(MemberIndex).zip(&mut serving.slots) {
            if let Some(end) = slot.attempt.as_mut().and_then(Script::poll) {
                slot.attempt = None;
                returned.push((member, end));
            }
        }
        for (member, end) in returned {
            self.take_returned(context, member, end);
            has_ended = true;
        }
        has_ended
    }

    /// Makes a session to the device that was asked for, and prepares it.
    pub(super) fn begin_join(&mut self, member: MemberIndex, expect: Expect, ends_former: bool) {
        let Stage::Open(serving) = &mut self.stage else { return };
        let Some(host) = serving.asked else {
            unreachable!("nobody asked for a device in the place of member {member}")
        };
        let former = serving.slots[member.as_usize()].connected.take_if(|_| ends_former);
        let leaving: Vec<_> =
            serving.slots.iter_mut().filter_map(|slot| slot.leaving.take()).collect();
        let beside = serving.beside(&self.this, member, expect);
        let desk = self.desk.clone();
        let work = async move {
            if let Some(mut former) = former {
                former.leave().await;
            }
            for session in leaving {
                session.await;
            }
            joining::join(desk, host, member, expect, beside).await
        };
        serving.joining = Some((member, Script::new(work)));
    }

    fn take_joined(&mut self, context: &mut Context<'_>, member: MemberIndex, end: Joined) {
        let (low, high) = (self.desk.random(), self.desk.random());
        let Stage::Open(serving) = &mut self.stage else { return };
        match end {
            Ok((connected, label)) => {
                context.cases.add(Case::DeviceJoined);
                let mut uuid = [0; 16];
                uuid[..8].copy_from_slice(&low.to_le_bytes());
                uuid[8..].copy_from_slice(&high.to_le_bytes());
                let slot = &mut serving.slots[member.as_usize()];
                let candidate = candidate(slot, connected, label, uuid);
                serving.volume.handle_joined(member, candidate);
            }
            Err(failure) => {
                context.cases.add(Case::DeviceNotJoined);
                context.note(|| {
                    format!("engine {}: no device for member {member}: {failure}", self.id.0)
                });
                let host = serving.asked.take();
                serving.volume.handle_not_joined(member);
                let notice = host.map(|host| (self.id, Notice::NotJoined(host, failure)));
                context.notices.extend(notice);
            }
        }
    }

    fn take_returned(&mut self, context: &mut Context<'_>, member: MemberIndex, end: Joined) {
        let looks = self.looks();
        let id = self.id.0;
        let Stage::Open(serving) = &mut self.stage else { return };
        let end = match end {
            Ok((connected, label)) => {
                context.cases.add(Case::MemberFound);
                let slot = &mut serving.slots[member.as_usize()];
                Ok(candidate(slot, connected, label, [0; 16]))
            }
            Err(failure) => {
                context.note(|| format!("engine {id}: member {member} is not back: {failure}"));
                let text = format!("{failure}");
                let host = serving.slots[member.as_usize()].host;
                context.notices.push_back((self.id, Notice::NotJoined(host, failure)));
                Err(text)
            }
        };
        serving.volume.handle_returned(member, &looks, end);
    }

    /// The volume has closed: its sessions end.
    pub(super) fn begin_end(&mut self) {
        let Stage::Open(serving) = core::mem::replace(&mut self.stage, Stage::Over) else { return };
        let failure = serving.volume.machine().failure();
        self.closed_label = Some(serving.volume.machine().label());
        let has_failed = failure.is_some();
        let Serving { slots, joining, unused, .. } = *serving;
        let work = async move {
            let mut slots = slots;
            for slot in &mut slots {
                if let Some(attempt) = slot.attempt.take() {
                    let_go(attempt.await).await;
                }
            }
            for slot in &mut slots {
                if let Some(mut connected) = slot.connected.take() {
                    match has_failed {
                        false => connected.leave().await,
                        // Until somebody opens it again, nobody else writes to what is left of it.
                        true => connected.close().await,
                    }
                }
            }
            if let Some((_, joining)) = joining {
                let_go(joining.await).await;
            }
            for mut slot in slots {
                if let Some(mut candidate) = slot.candidate.take() {
                    candidate.leave().await;
                }
                if let Some(leaving) = slot.leaving.take() {
                    leaving.await;
                }
            }
            for unused in unused {
                unused.await;
            }
        };
        self.stage = Stage::Ending(Script::new(work), failure);
    }
}

/// The array has closed: a device that was found is given back.
async fn let_go(joined: Joined) {
    if let Ok((mut connected, _)) = joined {
        connected.leave().await;
    }
}
