//! Drives an array with a log over members in memory, one request at a time and every member
//! request in the order in which it is asked for, so that the same is written each time.

use netraid_block::{Buf, ErrorKind, IoError, Op, Pool, SgList};
use netraid_raid::{
    label::{Holder, Label},
    logged::{
        Action, Event, FoundMember, Limits, LoggedArray, MemberCaps, OpenConfig, RequestId,
        ScrubCommand, ScrubOptions, ScrubStatus, UserRequest,
    },
    member::MemberIndex,
    regions::LABEL_OFFSETS,
};

use super::image::Image;

const CAPS: MemberCaps = MemberCaps { volatile_cache: true, can_discard: false };

pub(crate) struct Array {
    machine: LoggedArray,
    members: Vec<Image>,
    away: Vec<bool>,
    next_request: u64,
    opened: bool,
    closed: bool,
    /// The end of the last request.
    ended: Option<(RequestId, Result<SgList, IoError>)>,
}

impl Array {
    /// Opens an array with these members, of which some are away.
    pub(crate) fn open(members: Vec<Image>, away: &[usize]) -> Result<Self, IoError> {
        let away: Vec<bool> = (0..members.len()).map(|at| away.contains(&at)).collect();
        let found = |(image, away): (&Image, &bool)| {
            let label = label(image)?;
            (!away).then_some(FoundMember { caps: CAPS, label, checkpoint: None })
        };
        let machine = LoggedArray::open(OpenConfig {
            members: members.iter().zip(&away).map(found).collect(),
            holder: Holder { name: "golden".into(), ..Holder::default() },
            max_io_len: 1 << 20,
            pool: Pool::new(),
            limits: Limits::default(),
        })?;
        let (opened, closed, ended) = (false, false, None);
        let mut array = Self { machine, members, away, next_request: 0, opened, closed, ended };
        array.run();
        match array.machine.failure() {
            Some(error) => Err(error),
            None => {
                assert!(array.opened, "neither opened nor failed");
                Ok(array)
            }
        }
    }

    /// Blocks of 4 KiB.
    pub(crate) fn blocks(&self) -> u64 {
        self.machine.capacity() / 4096
    }

    /// One request to its end.
    pub(crate) fn request(
        &mut self,
        op: Op,
        first: u64,
        count: u64,
        byte: u8,
    ) -> Result<SgList, IoError> {
        let bytes = if op == Op::Write {
            vec![byte; usize::try_from(count * 4096).unwrap()]
        } else {
            Vec::new()
        };
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let (offset, len, fua) = (first * 4096, count * 4096, false);
        let data = SgList::from(Buf::copy_from(&bytes));
        self.machine.handle_request(id, UserRequest { op, offset, len, fua, data });
        self.run();
        let (ended, result) = self.ended.take().expect("a request that ends");
        assert_eq!(ended, id);
        result
    }

    pub(crate) fn read(&mut self, block: u64) -> Result<Vec<u8>, IoError> {
        Ok(self.request(Op::Read, block, 1, 0)?.to_contiguous().to_vec())
    }

    /// Brings everything home.
    pub(crate) fn idle(&mut self) {
        self.machine.handle_idle();
        self.run();
    }

    /// Has all that is at rest read and compared, and waits for the end.
    pub(crate) fn scrub(&mut self) -> ScrubStatus {
        let start = ScrubCommand::Start(ScrubOptions::default());
        self.machine.handle_scrub(start).unwrap();
        self.machine.handle_scrub_allowance(u32::MAX);
        self.run();
        self.machine.scrub_status().unwrap()
    }

    /// A member is there no more.
    pub(crate) fn lose(&mut self, member: u8) {
        self.away[usize::from(member)] = true;
        self.machine.handle_gone(MemberIndex(member), "gone");
        self.run();
    }

    /// A member that was lost is there again, with these bytes. Whether it is one of the array.
    pub(crate) fn come_back(&mut self, member: u8, image: Image) -> bool {
        let at = usize::from(member);
        self.members[at] = image;
        let known = self.machine.label();
        let Some(label) = label(&self.members[at]) else { return false };
        let salt = |label: &Label| label.log.as_ref().map(|log| log.salt);
        let is_its = (label.array_uuid, label.index.0) == (known.array_uuid, member)
            && (label.geometry, label.regions) == (known.geometry, known.regions)
            && label.members[at].uuid == known.members[at].uuid
            && salt(&label) == salt(&known);
        if is_its {
            self.away[at] = false;
            self.machine.handle_return(
                MemberIndex(member),
                FoundMember { caps: CAPS, label, checkpoint: None },
            );
            self.run();
        }
        is_its
    }

    /// A member's bytes as they are.
    pub(crate) fn image(&self, member: u8) -> Image {
        self.members[usize::from(member)].clone()
    }

    /// Closes the array; its members as they are then.
    pub(crate) fn close(mut self) -> Result<Vec<Image>, IoError> {
        self.machine.handle_close();
        self.run();
        assert!(self.closed, "neither closed nor failed");
        match self.machine.failure() {
            Some(error) => Err(error),
            None => Ok(self.members),
        }
    }

    /// The members as they are when the engine dies now.
    pub(crate) fn crash(self) -> Vec<Image> {
        self.members
    }

    /// Does what is to be done until nothing is.
    fn run(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            self.act(action);
        }
        while let Some(event) = self.machine.poll_event() {
            self.opened |= event == Event::Opened;
            self.closed |= event == Event::Closed;
        }
    }

    fn act(&mut self, action: Action) {
        let (io, member) = match &action {
            Action::Read { io, member, .. }
            | Action::Write { io, member, .. }
            | Action::Flush { io, member }
            | Action::Discard { io, member, .. } => (*io, member.as_usize()),
            Action::Complete { request, result } => {
                self.ended = Some((*request, result.clone()));
                return;
            }
        };
        let image = &mut self.members[member];
        let result = match action {
            _ if self.away[member] => Err(ErrorKind::Unreachable.into()),
            Action::Read { offset, len, .. } => {
                Ok(Buf::copy_from(image.read(offset, len as usize)).into())
            }
            Action::Write { offset, data, .. } => {
                image.write(offset, &data.to_contiguous());
                Ok(SgList::new())
            }
            Action::Flush { .. } | Action::Discard { .. } | Action::Complete { .. } => {
                Ok(SgList::new())
            }
        };
        self.machine.handle_io_done(io, result);
    }
}

/// The newest copy of a member's label.
pub(crate) fn label(image: &Image) -> Option<Label> {
    let read = |copy: usize| Label::decode(image.read(LABEL_OFFSETS[copy], 4096), copy).ok();
    (0..2).filter_map(read).max_by_key(|label| (label.generation, label.epoch))
}
