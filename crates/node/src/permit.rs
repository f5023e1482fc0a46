//! A [`Permit`] says what a session may do that was let in by a token: the rule of its grant, until somebody ends the session.
//!
//! Invariant: nothing is allowed that the rule does not allow at that moment, with the generation that the segment has
//! then; and nothing at all once the session was ended.
//!
//! Not here: the segment, the count of its commands ([`crate::segments::Running`]), and the report of a denial.

use netraid_block::{DeviceInfo, Op};
use netraid_control::{
    derived::{
        ByteRange, Denial, Lapsed, Pieces, Rights, Rule, RuleError, SegmentNow, Terms, Verdict,
    },
    units::{Generation, Moment},
};
use netraid_planted::{Planted, planted};
use netraid_scsi::View;

use crate::{outside::Needs, written::Written};

/// What one session may do.
#[derive(Debug, Clone)]
pub struct Permit {
    rule: Rule,
    has_ended: bool,
}

/// Why a session may not do something; nothing is to be told of one that was ended.
pub type Refused = Option<Denial>;

/// Why a session has no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPermit {
    /// The grant does not hold.
    #[error(transparent)]
    Lapsed(#[from] Lapsed),
    /// The grant does not fit the segment.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

impl Permit {
    /// That of a session which a token with these terms lets in now, to a segment with this device and this generation. The
    /// rule is computed from the device itself: what the grant was made for may have been another one.
    ///
    /// # Errors
    /// When the grant does not fit the segment, or does not hold any more.
    pub fn new(
        terms: Terms,
        info: &DeviceInfo,
        generation: Generation,
        now: Moment,
    ) -> Result<Self, NoPermit> {
        let rule = Rule::new(terms, info.capacity, info.block_len)?;
        rule.holds(generation, now)?;
        Ok(Self { rule, has_ended: false })
    }

    /// The rule of the grant.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Nothing is allowed from now on. False when that was so already.
    pub const fn end(&mut self) -> bool {
        !core::mem::replace(&mut self.has_ended, true)
    }

    /// Whether the session was ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Lets the grant hold until this moment, if the moment is later than its end. Size and blocks are the segment's, in bytes.
    pub fn extend(&mut self, until: Moment, capacity: u64, block_len: u32) {
        if planted(Planted::ExtensionIgnored) {
            return;
        }
        let terms = *self.rule.terms();
        let terms = Terms { expires: until.max(terms.expires), ..terms };
        if let Ok(extended) = Rule::new(terms, capacity, block_len) {
            self.rule = extended;
            self.has_ended &= !planted(Planted::ExtensionRevives);
        }
    }

    /// Whether the session may say how the logical unit behaves for all, and end what others do there: as one that may
    /// write all of it.
    #[must_use]
    pub const fn governs(&self) -> bool {
        let terms = self.rule.terms();
        terms.rights.contain(Rights::WRITE) && !terms.append_only
    }

    /// What the logical unit looks like to the session, given what the segment is like; none where the unit looks the same.
    #[must_use]
    pub fn view(&self, info: &DeviceInfo) -> Option<View> {
        let terms = self.rule.terms();
        let ranges = terms.ranges.as_slice();
        let can_discard = terms.rights.contain(Rights::DISCARD) && !terms.append_only;
        let seen = DeviceInfo {
            capacity: match planted(Planted::SegmentSizeShown) {
                true => info.capacity,
                false => self.rule.capacity(),
            },
            read_only: info.read_only || self.rule.is_read_only(),
            can_discard: info.can_discard && can_discard,
            can_map: info.can_map && ranges.is_empty(),
            ..info.clone()
        };
        if ranges.is_empty() {
            let ranges = core::iter::once(0..info.capacity).collect();
            return (seen != *info).then_some(View { info: seen, ranges });
        }
        let ranges = ranges.iter().map(|range| range.offset..range.end()).collect();
        Some(View { info: seen, ranges })
    }

    /// Whether a request may go to the device now, and where.
    ///
    /// # Errors
    /// When it must not.
    pub fn judge(
        &self,
        (op, offset, len): (Op, u64, u64),
        segment: SegmentNow,
        now: Moment,
    ) -> Result<Pieces, Refused> {
        if self.has_ended && !planted(Planted::EndedPermitHolds) {
            return Err(None);
        }
        let segment = match planted(Planted::NewerGenerationHolds) {
            true => SegmentNow { generation: self.rule.terms().generation, ..segment },
            false => segment,
        };
        match self.rule.judge(op, ByteRange { offset, len }, segment, now) {
            Verdict::Allow(pieces) => Ok(pieces),
            Verdict::Deny(denial) => Err(Some(denial)),
        }
    }

    /// Whether the session may only write behind what is written.
    #[must_use]
    pub const fn appends(&self) -> bool {
        self.rule.terms().append_only
    }

    /// Whether a request may go to the device now, and where. A write moves the end of what is written. Of an append the old
    /// and the new end are told, too: a failed append is taken back by these ([`Written::take_back`]).
    ///
    /// # Errors
    /// When the request must not go: nothing has changed then.
    pub fn send(
        &self,
        request: (Op, u64, u64),
        (generation, written): (Generation, &mut Written),
        now: Moment,
    ) -> Result<(Pieces, Option<(u64, u64)>), Refused> {
        let end = written.end();
        let pieces = self.judge(request, SegmentNow { generation, end }, now)?;
        let new_end = pieces.end();
        if !matches!(request.0, Op::Write | Op::WriteZeroes) || new_end == 0 {
            return Ok((pieces, None));
        }
        if !self.appends() {
            written.write_to(new_end);
            return Ok((pieces, None));
        }
        written.append_to(new_end);
        Ok((pieces, Some((end, new_end))))
    }

    /// Whether a request that may come later would be allowed.
    ///
    /// # Errors
    /// When it would not.
    pub fn foresee(
        &self,
        request: (Op, u64, u64),
        segment: SegmentNow,
        now: Moment,
    ) -> Result<(), Refused> {
        if !self.appends() || request.0 != Op::Write {
            return self.judge(request, segment, now).map(|_| ());
        }
        // Where an append has to begin is known when the writes before it are on their way.
        if self.has_ended {
            return Err(None);
        }
        self.holds(segment.generation, now).map_err(|lapsed| Some(lapsed.into()))
    }

    /// Whether a command may be carried out that is no request to the device, but takes a right.
    ///
    /// # Errors
    /// When it must not.
    pub fn may(&self, needs: Needs, generation: Generation, now: Moment) -> Result<(), Refused> {
        if self.has_ended {
            return Err(None);
        }
        let allowed = match needs {
            Needs::Nothing => Ok(()),
            Needs::Reserve if planted(Planted::ReserveByAnyGrant) => {
                self.holds(generation, now).map_err(Denial::from)
            }
            Needs::Reserve => self.rule.may_reserve(generation, now),
            Needs::Govern if !self.governs() => {
                let held = self.rule.terms().rights;
                Err(Denial::Right { needed: Rights::WRITE, held })
            }
            Needs::Govern => self.holds(generation, now).map_err(Denial::from),
        };
        allowed.map_err(Some)
    }

    /// Whether the grant holds, whatever is asked for.
    ///
    /// # Errors
    /// When it has expired, or the segment has another generation.
    pub fn holds(&self, generation: Generation, now: Moment) -> Result<(), Lapsed> {
        self.rule.holds(generation, now)
    }
}

#[cfg(test)]
mod tests {
    use netraid_control::derived::Ranges;

    use super::*;

    const BLOCK: u64 = 512;
    const CAPACITY: u64 = 64 * BLOCK;
    const GENERATION: Generation = Generation(3);
    const NOW: Moment = Moment(1000);
    const SEGMENT: SegmentNow = SegmentNow { generation: GENERATION, end: 4 * BLOCK };
    const WRITE: (Op, u64, u64) = (Op::Write, 0, BLOCK);

    fn terms(rights: Rights) -> Terms {
        Terms {
            ranges: Ranges::WHOLE,
            rights,
            append_only: false,
            generation: GENERATION,
            expires: Moment(2000),
        }
    }

    fn permit(terms: Terms) -> Permit {
        Permit::new(terms, &info(), GENERATION, NOW).unwrap()
    }

    fn info() -> DeviceInfo {
        DeviceInfo {
            capacity: CAPACITY,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 20,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: true,
        }
    }

    #[test]
    fn a_session_that_was_ended_may_do_nothing_and_nobody_is_told_why() {
        let mut permit = permit(terms(Rights::ALL));
        assert!(permit.judge(WRITE, SEGMENT, NOW).is_ok());
        assert!(permit.end() && !permit.end() && permit.has_ended());
        assert_eq!(permit.judge(WRITE, SEGMENT, NOW), Err(None));
        assert_eq!(permit.foresee(WRITE, SEGMENT, NOW), Err(None));
        assert_eq!(permit.may(Needs::Nothing, GENERATION, NOW), Err(None));
    }

    #[test]
    fn an_append_is_foreseen_wherever_it_begins_and_judged_by_the_end_of_the_moment() {
        let permit = permit(Terms { append_only: true, ..terms(Rights::ALL) });
        assert_eq!(permit.foresee(WRITE, SEGMENT, NOW), Ok(()));
        assert!(matches!(permit.judge(WRITE, SEGMENT, NOW), Err(Some(Denial::NotAtEnd { .. }))));
        assert!(permit.judge((Op::Write, SEGMENT.end, BLOCK), SEGMENT, NOW).is_ok());
        assert!(permit.foresee((Op::Discard, 0, BLOCK), SEGMENT, NOW).is_err());
    }

    #[test]
    fn an_append_moves_the_end_and_the_next_one_begins_there() {
        let permit = permit(Terms { append_only: true, ..terms(Rights::ALL) });
        let mut written = Written::default();
        let mut send = |request| permit.send(request, (GENERATION, &mut written), NOW);
        assert_eq!(send(WRITE).unwrap().1, Some((0, BLOCK)));
        assert!(matches!(send(WRITE), Err(Some(Denial::NotAtEnd { .. }))));
        assert_eq!(send((Op::Read, 0, BLOCK)).unwrap().1, None);
        assert_eq!(send((Op::Write, BLOCK, 2 * BLOCK)).unwrap().1, Some((BLOCK, 3 * BLOCK)));
        assert_eq!(written.end(), 3 * BLOCK);
    }

    #[test]
    fn a_write_of_one_who_may_write_all_moves_the_end_and_takes_nothing_back() {
        let permit = permit(terms(Rights::ALL));
        let mut written = Written::default();
        let write = (Op::Write, 4 * BLOCK, BLOCK);
        assert_eq!(permit.send(write, (GENERATION, &mut written), NOW).unwrap().1, None);
        assert_eq!((written.end(), written.floor()), (5 * BLOCK, 5 * BLOCK));
        assert!(permit.send(write, (Generation(4), &mut written), NOW).is_err());
    }

    #[test]
    fn an_append_of_a_session_that_was_ended_is_not_foreseen() {
        let mut permit = permit(Terms { append_only: true, ..terms(Rights::ALL) });
        permit.end();
        assert_eq!(permit.foresee(WRITE, SEGMENT, NOW), Err(None));
    }

    #[test]
    fn what_a_command_takes_is_asked_of_rights_generation_and_time() {
        let reader = permit(terms(Rights::READ));
        assert!(reader.may(Needs::Reserve, GENERATION, NOW).is_err());
        assert!(reader.may(Needs::Govern, GENERATION, NOW).is_err());
        let all = permit(terms(Rights::ALL));
        for needs in [Needs::Reserve, Needs::Govern] {
            assert_eq!(all.may(needs, GENERATION, NOW), Ok(()));
            assert!(all.may(needs, Generation(4), NOW).is_err());
            assert!(all.may(needs, GENERATION, Moment(2000)).is_err());
        }
        let appends = permit(Terms { append_only: true, ..terms(Rights::ALL) });
        assert!(appends.may(Needs::Govern, GENERATION, NOW).is_err() && !appends.governs());
    }

    #[test]
    fn a_grant_is_extended_and_never_cut_short() {
        let mut permit = permit(terms(Rights::ALL));
        permit.extend(Moment(1500), CAPACITY, 512);
        assert!(permit.holds(GENERATION, Moment(1999)).is_ok());
        permit.extend(Moment(3000), CAPACITY, 512);
        assert!(permit.judge(WRITE, SEGMENT, Moment(2999)).is_ok());
        assert!(permit.judge(WRITE, SEGMENT, Moment(3000)).is_err());
    }

    #[test]
    fn a_session_sees_the_segment_as_its_grant_shows_it() {
        assert_eq!(permit(terms(Rights::ALL)).view(&info()), None);
        let view = permit(terms(Rights::READ)).view(&info()).unwrap();
        assert!(view.info.read_only && !view.info.can_discard && view.info.can_map);
        assert_eq!((view.ranges.len(), &view.ranges[0]), (1, &(0..CAPACITY)));
        let part = [ByteRange { offset: 8 * BLOCK, len: 4 * BLOCK }];
        let ranges = Ranges::new(&part).unwrap();
        let view = permit(Terms { ranges, ..terms(Rights::ALL) }).view(&info()).unwrap();
        assert_eq!(view.info.capacity, 4 * BLOCK);
        assert_eq!((view.ranges.len(), &view.ranges[0]), (1, &(8 * BLOCK..12 * BLOCK)));
        assert!(!view.info.can_map && !view.info.read_only);
    }
}
