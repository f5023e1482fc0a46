//! What an engine asks of a device that may be, or become, a member of its array: to be looked at by a visit, then to be
//! taken over and fenced.
//!
//! [`crate::opening`] and [`crate::volume::preparing`] say what is asked, and in which order; whoever drives them does it
//! and decides nothing.

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};
use core::fmt::Debug;

use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError};

use crate::{
    checkpoint::Checkpoint,
    fencing::{Fence, steps::FenceError},
    label::{Label, LabelError, Uuid},
    regions::Regions,
};

/// What is asked of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// To let this side in beside whomever, to look at it: [`Answer::Device`].
    Visit,
    /// For its label: [`Answer::Label`] by [`label_of`].
    Label,
    /// For the counter of the newest checkpoint of this array on it: [`Answer::Checkpoint`] by [`checkpoint_of`].
    Checkpoint(Uuid),
    /// For bytes: [`Answer::Bytes`].
    Read {
        /// From where.
        offset: u64,
        /// How many.
        len: u64,
        /// What for.
        what: &'static str,
    },
    /// Whether nothing is on it, and nobody has reserved it: [`Answer::Done`].
    Unused,
    /// Which keys of reservations are registered: [`Answer::Keys`].
    Keys,
    /// To end the visit: [`Answer::Done`].
    Close,
    /// To let this side in as the engine of an array whose lock it holds, with all its sessions: [`Answer::Device`]. What a
    /// dead predecessor of this machine had under way ends before, by whichever identity the machine had. A visit ends
    /// when that is done, and goes on when it fails.
    TakeOver {
        /// The array.
        array: Uuid,
        /// Former identities of this machine.
        former: BTreeSet<Uuid>,
    },
    /// To let no other engine write, by [`crate::fencing::steps::Steps::fence`]: [`Answer::Fenced`] or
    /// [`Answer::NotFenced`].
    Fence(Fence),
    /// To register this engine beside whomever, by [`crate::fencing::steps::Steps::announce`]: [`Answer::Fenced`] or
    /// [`Answer::NotFenced`].
    Announce {
        /// This engine's key, and what it may do to others.
        fence: Fence,
        /// What is registered.
        known: BTreeSet<u64>,
    },
    /// To tell who only reads of who writes later, by [`crate::fencing::steps::Steps::attend`]: [`Answer::Fenced`] or
    /// [`Answer::NotFenced`].
    Attend(Fence),
    /// To try out whether an engine that may be alive can be shut out, by [`crate::fencing::steps::Steps::try_out`]:
    /// [`Answer::Fenced`] or [`Answer::NotFenced`].
    TryOut(Fence),
    /// The same as [`Self::Fence`] once more, by [`crate::fencing::steps::Steps::fence_again`].
    FenceAgain {
        /// This engine's key, and what it may do to others.
        fence: Fence,
        /// What was registered anywhere before.
        known: BTreeSet<u64>,
    },
    /// The same as [`Self::Fence`], by [`crate::fencing::steps::Steps::fence_known`].
    FenceKnown {
        /// This engine's key, and what it may do to others.
        fence: Fence,
        /// What was registered before the engine made sure that it has the array; as many as [`Self::Keys`] tells.
        known: BTreeSet<u64>,
    },
    /// To prove that it takes writes where labels are and where data of the array end: [`Answer::Done`].
    ProveWritable {
        /// That end.
        data_end: u64,
    },
    /// To allocate the space of log and tables: [`Answer::Done`].
    ReserveTables(Regions),
    /// To end whatever sessions there are, after their registrations were taken back by
    /// [`crate::fencing::steps::Steps::renounce`]: [`Answer::Done`].
    Leave,
}

/// What a device answers; `E` is why something cannot be, as whoever asks it knows that.
#[derive(Debug, Clone)]
pub enum Answer<E> {
    /// It is done, or is so.
    Done,
    /// It lets this side in, and is such a device.
    Device(DeviceInfo),
    /// Its label, or why it has none.
    Label(Result<Box<Label>, LabelError>),
    /// The counter of its newest checkpoint, where one can be read.
    Checkpoint(Option<u64>),
    /// What is there.
    Bytes(Buf),
    /// These keys are registered; there are more where the list `is_cut`.
    Keys {
        /// The keys.
        keys: Vec<u64>,
        /// The list has no room for all.
        is_cut: bool,
    },
    /// It is this engine's, as far as it can be.
    Fenced {
        /// Only this engine may write to it; else it has no reservations.
        exclusive: bool,
    },
    /// It could not be made this engine's.
    NotFenced(FenceError),
    /// It is not done, or not known.
    Failed(E),
}

/// Why something could not be asked of a device.
pub trait Failure: Debug + Send + Sync + 'static {
    /// Whether somebody's reservation is why, or that somebody else has the array now.
    fn is_conflict(&self) -> bool;

    /// Whether the device answered, and refused: it may not know what it was asked for.
    fn is_refusal(&self) -> bool;
}

impl Failure for IoError {
    fn is_conflict(&self) -> bool {
        self.kind() == ErrorKind::Fenced
    }

    fn is_refusal(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unsupported | ErrorKind::Fenced | ErrorKind::Device)
    }
}

/// Each of these takes the answer to one kind of question.
///
/// # Panics
/// When it is an answer to another one: then whoever asks the device is wrong.
impl<E: Debug> Answer<E> {
    pub(crate) fn done(self) -> Result<(), E> {
        let Self::Done = self else { return self.failed("whether it is done") };
        Ok(())
    }

    pub(crate) fn device(self) -> Result<DeviceInfo, E> {
        let Self::Device(info) = self else { return self.failed("a device") };
        Ok(info)
    }

    pub(crate) fn label(self) -> Result<Result<Label, LabelError>, E> {
        let Self::Label(label) = self else { return self.failed("a label") };
        Ok(label.map(|label| *label))
    }

    /// None where none can be read, for whatever reason.
    pub(crate) fn checkpoint(self) -> Option<u64> {
        if let Self::Checkpoint(counter) = self {
            return counter;
        }
        self.failed::<Option<u64>>("a checkpoint").ok().flatten()
    }

    pub(crate) fn bytes(self) -> Result<Buf, E> {
        let Self::Bytes(bytes) = self else { return self.failed("bytes") };
        Ok(bytes)
    }

    pub(crate) fn keys(self) -> Result<(Vec<u64>, bool), E> {
        let Self::Keys { keys, is_cut } = self else { return self.failed("keys") };
        Ok((keys, is_cut))
    }

    /// Whether it is this engine's alone.
    pub(crate) fn fenced(self) -> Result<bool, FenceError> {
        if let Self::Fenced { exclusive } = self {
            return Ok(exclusive);
        }
        let Self::NotFenced(error) = self else {
            panic!("asked to be fenced, a device answers {self:?}")
        };
        Err(error)
    }

    fn failed<T>(self, asked: &str) -> Result<T, E> {
        let Self::Failed(error) = self else {
            panic!("asked for {asked}, a device answers {self:?}")
        };
        Err(error)
    }
}

/// What an array asks of a member's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Fewest bytes.
    pub capacity: u64,
    /// Fewest bytes of its largest transfer.
    pub transfer_len: u32,
    /// Largest logical block, in bytes.
    pub block_len: u32,
    /// It is to take writes.
    pub writes: bool,
}

/// What a device lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit {
    /// Which property.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// What is needed.
    pub limit: u64,
}

impl Needs {
    /// What an array with this label, which sends requests up to `transfer_len` bytes, asks of its members.
    #[must_use]
    pub const fn of(label: &Label, transfer_len: u32, writes: bool) -> Self {
        let capacity = label.regions.data.end();
        Self { capacity, transfer_len, block_len: label.geometry.block_len(), writes }
    }

    /// Refuses a device that could not do it.
    ///
    /// # Errors
    /// Which property is why.
    pub fn check(&self, info: &DeviceInfo) -> Result<(), Unfit> {
        let unfit = |what, value, limit| Err(Unfit { what, value, limit });
        if info.capacity < self.capacity {
            return unfit("its capacity in bytes", info.capacity, self.capacity);
        }
        if info.max_transfer_len < self.transfer_len {
            let (value, limit) = (info.max_transfer_len.into(), self.transfer_len.into());
            return unfit("its largest transfer in bytes", value, limit);
        }
        if info.block_len > self.block_len {
            let (value, limit) = (info.block_len.into(), self.block_len.into());
            return unfit("its logical block in bytes", value, limit);
        }
        if info.read_only && self.writes {
            return unfit("the number of writes it allows", 0, 1);
        }
        Ok(())
    }
}

/// The label on a device, by its copies in their order; none for a copy that cannot be read: another one may be whole.
///
/// # Errors
/// Why there is none: of a copy that is damaged rather than that another is absent.
pub fn label_of<'a>(
    copies: impl IntoIterator<Item = Option<&'a [u8]>>,
) -> Result<Label, LabelError> {
    let mut best = Err(LabelError::Absent);
    for (copy, bytes) in copies.into_iter().enumerate() {
        let Some(bytes) = bytes else { continue };
        best = match (best, Label::decode(bytes, copy)) {
            (Ok(one), Ok(two)) => {
                let is_newer = (two.generation, two.epoch) > (one.generation, one.epoch);
                Ok(if is_newer { two } else { one })
            }
            (Ok(label), Err(_)) | (Err(_), Ok(label)) => Ok(label),
            (Err(LabelError::Absent), Err(error)) | (Err(error), Err(_)) => Err(error),
        };
    }
    best
}

/// The counter of the newest checkpoint of an array on a device, by its slots in their order; none for what cannot be read.
pub fn checkpoint_of<'a>(
    array: Uuid,
    slots: impl IntoIterator<Item = Option<&'a [u8]>>,
) -> Option<u64> {
    let counter = |(slot, image): (usize, Option<&[u8]>)| {
        let found = Checkpoint::decode(image?, array, slot).ok()?;
        Some(found.counter)
    };
    slots.into_iter().enumerate().filter_map(counter).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{geometry::Level, label::tests::sample};

    #[test]
    fn the_newest_copy_of_a_label_counts_and_one_is_enough() {
        let old = sample(Level::Raid5, 4);
        let new = Label { epoch: old.epoch + 1, ..old.clone() };
        let copies = |one: &Label, two: &Label| [one.encode(0).to_vec(), two.encode(1).to_vec()];
        for [one, two] in [copies(&old, &new), copies(&new, &old)] {
            let both = [Some(&one[..]), Some(&two[..])];
            assert_eq!(label_of(both), Ok(new.clone()));
        }
        let [one, mut two] = copies(&old, &new);
        two[100] ^= 1;
        assert_eq!(label_of([Some(&one[..]), Some(&two)]), Ok(old.clone()));
        assert_eq!(label_of([Some(&one[..]), None]), Ok(old));
        let nothing = [0; 4096];
        assert!(matches!(
            label_of([Some(&nothing[..]), Some(&two)]),
            Err(LabelError::Checksum { .. })
        ));
        assert_eq!(label_of([Some(&nothing[..]), None]), Err(LabelError::Absent));
        assert_eq!(label_of([None, None]), Err(LabelError::Absent));
    }
}
