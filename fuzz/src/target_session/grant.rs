//! Sessions that a grant let in.

use std::{cell::Cell, rc::Rc};

use netraid_block::{DeviceInfo, Op};
use netraid_control::{
    derived::{ByteRange, Pieces, Ranges, Rights, Rule, SegmentNow, Terms, Verdict},
    units::{Generation, Moment as Instant},
};
use netraid_node::{Barred, Guest, Needs, Place};
use netraid_scsi::{MediumRequest, View};

use super::{BLOCK_LEN, BLOCKS, outside::Shared};

const CAPACITY: u64 = (BLOCKS * BLOCK_LEN) as u64;
/// Grants hold before it, and it never comes: they end otherwise.
const EXPIRY: Instant = Instant(1);

/// A session that a grant let in.
pub(super) struct Visitor {
    shared: Rc<Shared>,
    rule: Rule,
    view: Option<View>,
    pub(super) has_ended: Cell<bool>,
    pub(super) running: Cell<u32>,
    /// What was allowed last, and is on its way.
    pub(super) allowed: Cell<Option<Allowed>>,
    pub(super) taken_back: Cell<Option<(u64, u64)>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    request: (Op, u64, u64),
    appended: Option<(u64, u64)>,
}

impl Visitor {
    pub(super) fn new(shared: Rc<Shared>, kind: u8, info: &DeviceInfo) -> Self {
        let part = |first: u64, count: u64| ByteRange {
            offset: first * BLOCK_LEN as u64,
            len: count * BLOCK_LEN as u64,
        };
        let (ranges, rights, append_only) = match kind % 4 {
            0 => (Ranges::WHOLE, Rights::ALL, false),
            1 => (Ranges::WHOLE, Rights::READ.and(Rights::WRITE).and(Rights::FLUSH), true),
            2 => {
                let parts = [part(2, 5), part(9, 20)];
                (Ranges::new(&parts).expect("they ascend"), Rights::ALL, false)
            }
            _ => (Ranges::WHOLE, Rights::READ.and(Rights::FLUSH), false),
        };
        let generation = Generation::default();
        let terms = Terms { ranges, rights, append_only, generation, expires: EXPIRY };
        let rule = Rule::new(terms, CAPACITY, BLOCK_LEN as u32).expect("it fits");
        let shown: Vec<_> =
            ranges.as_slice().iter().map(|range| range.offset..range.end()).collect();
        let view = View {
            info: DeviceInfo {
                capacity: rule.capacity(),
                read_only: info.read_only || rule.is_read_only(),
                can_discard: rights.contain(Rights::DISCARD),
                ..info.clone()
            },
            ranges: if shown.is_empty() { std::iter::once(0..CAPACITY).collect() } else { shown },
        };
        Self {
            shared,
            rule,
            view: Some(view).filter(|view| view.info != *info),
            has_ended: Cell::new(false),
            running: Cell::new(0),
            allowed: Cell::new(None),
            taken_back: Cell::new(None),
        }
    }

    pub(super) fn governs(&self) -> bool {
        let terms = self.rule.terms();
        terms.rights.contain(Rights::WRITE) && !terms.append_only
    }

    fn weigh(&self, (op, offset, len): (Op, u64, u64)) -> Result<Pieces, Barred> {
        let now = SegmentNow { generation: Generation::default(), end: self.shared.end.get() };
        let verdict = self.rule.judge(op, ByteRange { offset, len }, now, Instant(0));
        match verdict {
            Verdict::Allow(pieces) if !self.has_ended.get() => Ok(pieces),
            Verdict::Allow(_) | Verdict::Deny(_) => Err(Barred),
        }
    }

    /// A request is on its way to where `place` says; what a failure of it has to take back.
    pub(super) fn check_arrival(
        &self,
        request: &MediumRequest,
        place: &Place,
    ) -> Option<(u64, u64)> {
        assert!(!self.has_ended.get(), "{request:?} of a grant that has ended");
        let allowed = self.allowed.take().expect("a request is judged");
        assert_eq!(allowed.request, (request.op, request.offset, request.len));
        let shown = self.rule.terms().ranges;
        let is_shown = |piece: &ByteRange| {
            let mut ranges = shown.as_slice().iter();
            shown.as_slice().is_empty()
                || ranges.any(|range| range.offset <= piece.offset && piece.end() <= range.end())
        };
        for piece in pieces_of(request, place) {
            assert!(piece.len == 0 || is_shown(&piece), "{piece:?} is not granted");
        }
        allowed.appended
    }
}

/// Where the bytes of a request are, in order.
pub(super) fn pieces_of(request: &MediumRequest, place: &Place) -> Vec<ByteRange> {
    match place {
        Place::Same => vec![ByteRange { offset: request.offset, len: request.len }],
        Place::Pieces(pieces) => pieces.as_slice().to_vec(),
    }
}

impl Guest for Visitor {
    fn may(&self, needs: Needs) -> Result<(), Barred> {
        let may = match needs {
            Needs::Nothing => true,
            Needs::Reserve => self.rule.may_reserve(Generation::default(), Instant(0)).is_ok(),
            Needs::Govern => self.governs(),
        };
        if may && !self.has_ended.get() { Ok(()) } else { Err(Barred) }
    }

    fn foresee(&self, request: (Op, u64, u64)) -> Result<(), Barred> {
        if self.rule.terms().append_only && request.0 == Op::Write {
            return Ok(());
        }
        self.weigh(request).map(|_| ())
    }

    fn judge(&self, request: (Op, u64, u64)) -> Result<(Pieces, Option<(u64, u64)>), Barred> {
        assert!(self.running.get() > 0, "a request is judged before it entered");
        let pieces = self.weigh(request)?;
        let before = self.shared.end.get();
        if matches!(request.0, Op::Write | Op::WriteZeroes) {
            self.shared.end.set(before.max(pieces.end()));
        }
        let end = self.shared.end.get();
        let appended = (self.rule.terms().append_only && end != before).then_some((before, end));
        self.allowed.set(Some(Allowed { request, appended }));
        Ok((pieces, appended))
    }

    fn take_back(&self, before: u64, end: u64) {
        assert_eq!(self.taken_back.replace(Some((before, end))), None, "it is taken back once");
        if self.shared.end.get() == end {
            self.shared.end.set(before);
        }
    }

    fn enter(&self) {
        self.running.set(self.running.get() + 1);
    }

    fn leave(&self) {
        let was = self.running.get();
        self.running.set(was.checked_sub(1).expect("a command leaves that did not enter"));
    }

    fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
}
