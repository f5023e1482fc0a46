//! Why an array cannot be made, opened or changed.

use netraid_block::{ErrorKind, IoError, UriError};
use netraid_raid::{
    access::{Failure, Unfit},
    array::CommandError,
    assemble::AssembleError,
    fencing::steps::FenceError,
    label::LabelError,
    member::{MemberIndex, MemberSet},
    regions::RegionsError,
    volume::ScrubError,
};

use crate::initiator::{InitiatorError, Reason};

/// A process of this machine, by its id where that can be seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who(pub Option<u32>);

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// Why an array cannot be made, opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// A member cannot be reached.
    #[error(transparent)]
    Member(#[from] InitiatorError),
    /// An address that is none.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// An array with a log that has something in it which must be written first.
    #[error(
        "array '{0}' was not closed, and what is in its log must be brought home; attach it for \
         writing once, or wait until it is closed"
    )]
    NotClosed(String),
    /// Members that took part last are not there, or are left out.
    #[error(
        "array '{name}': {} took part last, and cannot be used now; bring back what is away, or give --degraded to go on \
         without{notes}",
        numbers(*members)
    )]
    Fewer {
        /// Name of the array.
        name: String,
        /// Which.
        members: MemberSet,
        /// What there is to say of members.
        notes: String,
    },
    /// An engine that is silent could go on with members at which it cannot be shut out.
    #[error(
        "array '{name}': the engine of '{holder}' is silent, and could go on with {} alone, where it cannot be shut out; bring \
         back what is away, or make sure that it is dead, and attach the array with --take-over",
        numbers(*members)
    )]
    NotShutOut {
        /// Name of the array.
        name: String,
        /// Who has it open, by the labels.
        holder: String,
        /// The members.
        members: MemberSet,
    },
    /// A member's label is not usable.
    #[error("{address}: {reason}")]
    Label {
        /// The member.
        address: String,
        /// Why.
        reason: LabelError,
    },
    /// A member takes registrations of reservations, and does not keep them: nobody could be fenced there.
    #[error(
        "{address}: has taken a registration, and does not know of it; mend its persistent reservations, or \
         turn them off"
    )]
    Forgetful {
        /// The member.
        address: String,
    },
    /// An engine that was found silent could still write to it.
    #[error(
        "{address}: cannot shut out an engine that may be alive: it has no persistent reservations, or no PREEMPT AND ABORT; make \
         sure that the engine is dead, and attach the array with --take-over"
    )]
    CannotShutOut {
        /// The member.
        address: String,
    },
    /// A member could not be read or written.
    #[error("{address}: {what}: {reason}")]
    Io {
        /// The member.
        address: String,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        reason: IoError,
    },
    /// An array could not be made, and its members are not as they were before.
    #[error("{reason}; what was there before may be lost of {lost}")]
    NotPutBack {
        /// Why it could not be made.
        reason: Box<ArrayError>,
        /// Addresses of members, and places in bytes.
        lost: String,
    },
    /// A member belongs to somebody.
    #[error("{address} is in use: it carries {what}; give --force to overwrite it")]
    InUse {
        /// The member.
        address: String,
        /// What was found on it.
        what: String,
    },
    /// A member of an array that an engine of this machine has open: force is no answer to that.
    #[error(
        "{address} is a member of array '{name}', which is open on this machine, or was one when it could not \
         be reached; stop that array first, or give another device"
    )]
    OpenHere {
        /// The member.
        address: String,
        /// The array's name.
        name: String,
    },
    /// A member of an array that may hold data.
    #[error("{address} is a member of array '{name}', which was opened before; bring its others")]
    WasOpened {
        /// The member.
        address: String,
        /// The array's name.
        name: String,
    },
    /// One LUN under two addresses.
    #[error("{first} and {second} are the same lun; give each member once")]
    Twice {
        /// One address.
        first: String,
        /// The other.
        second: String,
    },
    /// A level that arrays without a log cannot have.
    #[error("level {0} needs a log; do not give `--log off`")]
    NeedsLog(u8),
    /// A level that has no use for a log.
    #[error("level {0} has no redundancy for a log to keep; give `--log off`")]
    NoUseForLog(u8),
    /// Members whose sizes differ too much.
    #[error(
        "{small} has {small_bytes} bytes and {large} {large_bytes}: too unequal, since every member \
         is used as if it were the smallest; give --force to waste the rest"
    )]
    Unequal {
        /// The smallest member.
        small: String,
        /// Its size.
        small_bytes: u64,
        /// The largest member.
        large: String,
        /// Its size.
        large_bytes: u64,
    },
    /// A device that cannot take the place of a member.
    #[error("{address} cannot be a member: {what} is {value}, the array needs {limit}")]
    Unfit {
        /// The device.
        address: String,
        /// Which property.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is needed.
        limit: u64,
    },
    /// A name that cannot be used.
    #[error(
        "array name '{0}': use 1 to 63 letters, digits, '.', '_' or '-', and not '.' or '..' alone"
    )]
    Name(String),
    /// No layout fits.
    #[error(transparent)]
    Layout(#[from] RegionsError),
    /// The labels do not add up.
    #[error("{reason}{notes}")]
    Assemble {
        /// Why.
        reason: AssembleError,
        /// Members that could not be used, with why.
        notes: String,
    },
    /// No given member carries a label.
    #[error("no member of an array among the given ones{0}")]
    NoLabels(String),
    /// A scrub that cannot be begun or commanded.
    #[error(transparent)]
    Scrub(ScrubError),
    /// Another process of this machine has the array open.
    #[error("array '{name}' is open in {who} of this machine (lock {path}); stop it first")]
    Locked {
        /// The array.
        name: String,
        /// The lock file.
        path: String,
        /// Who has it.
        who: Who,
    },
    /// Somebody is registered at a member who may be alive.
    #[error(
        "{address} is registered to another engine or host (key {key:#018x}), which may be writing; \
         stop it, or give --take-over when it is a dead engine of this array, --force when it is \
         anybody else"
    )]
    Reserved {
        /// The member.
        address: String,
        /// The other's key.
        key: u64,
    },
    /// Another engine came to a device while it was looked whose the array is.
    #[error(
        "{address} was registered by another engine or host (key {key:#018x}) while this engine was taking it; nothing was \
         taken from it, and it may have the array now"
    )]
    Overtaken {
        /// The member.
        address: String,
        /// The other's key.
        key: u64,
    },
    /// Others reserve a member again and again.
    #[error("{address} is being reserved by somebody else at the same time; try again")]
    Contended {
        /// The member.
        address: String,
    },
    /// The lock file cannot be used.
    #[error("lock file {path}: {source}")]
    Lock {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Labels moved on while the array was opened.
    #[error(
        "array '{name}' was changed by another engine while it was being opened, on {}; try again",
        members.join(", ")
    )]
    Changed {
        /// Name of the array.
        name: String,
        /// Addresses of the members whose labels are others now, or cannot be read any more.
        members: Vec<String>,
    },
    /// Those that have the last label of the engine that goes on with the array are away.
    #[error(
        "array '{name}': only members that were set aside before are here (generation {generation}, epoch {epoch}); \
         bring the others"
    )]
    Behind {
        /// Name of the array.
        name: String,
        /// What the newest label says.
        generation: u64,
        /// What the newest label says.
        epoch: u64,
    },
    /// The members are those of another array by now.
    #[error(
        "the members belong to array '{name}' by now, which was made on them meanwhile; stop this one"
    )]
    MadeAnew {
        /// Name of that array.
        name: String,
    },
    /// A member that is not looked for while the array pauses.
    #[error("{address}: is not looked for: it was set aside, and does not come back by itself")]
    SetAside {
        /// Where it is.
        address: String,
    },
    /// Requests wait for members.
    #[error("the array is paused: too many members are away; try again when it goes on")]
    Paused,
    /// Another engine has had the array since it was opened here.
    #[error(
        "array '{name}' was opened by '{holder}' meanwhile (generation {generation}): this engine is excluded; stop it"
    )]
    TakenOver {
        /// Name of the array.
        name: String,
        /// Who had it.
        holder: String,
        /// The generation that its labels show.
        generation: u64,
    },
    /// A label that is another one each time.
    #[error(
        "{address}: its label was changed while the array was being opened, and now says generation \
         {generation}, epoch {epoch}, of which the other members know nothing: find out who writes to it, or replace it"
    )]
    LabelChanged {
        /// The member.
        address: String,
        /// What its label says now.
        generation: u64,
        /// What its label says now.
        epoch: u64,
    },
    /// A page of written bits has no valid copy.
    #[error(
        "page {page} of the written bits is corrupt on every member in sync; the array cannot be opened"
    )]
    WrittenBits {
        /// Which page.
        page: u64,
    },
    /// Written bits that cannot both be the array's.
    #[error(
        "{first} and {second} contradict each other about which stripes are written: the first is ahead by \
         more changes than can have been, and no other member can tell which of them lies; give the members \
         without the one that lies, with --force"
    )]
    WrittenBitsDisagree {
        /// Address of one member.
        first: String,
        /// Address of the other.
        second: String,
    },
    /// The array failed while it was opened.
    #[error("{0}")]
    Failed(IoError),
    /// A command that the array refuses.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// No member by that index or address.
    #[error(
        "'{given}' is no member of the array; give an index from 0 to {last} or a member's address"
    )]
    NoSuchMember {
        /// What was given.
        given: String,
        /// The last index.
        last: MemberIndex,
    },
    /// No secret is known for the user of an address; the text says what to do.
    #[error("{0}")]
    NoSecret(String),
    /// A member that was not given when the array was opened.
    #[error(
        "member {0} was not given when the array was attached, so its address is not known; stop the \
         array, and attach it with that address, too"
    )]
    NotGiven(MemberIndex),
    /// A LUN that is a member already.
    #[error("{address} serves as member {member} of this array; give another device")]
    Serves {
        /// The LUN.
        address: String,
        /// Which member it is.
        member: MemberIndex,
    },
    /// One replacement at a time.
    #[error("a device is being prepared for the place of {address}; try again when that is done")]
    Joining {
        /// The member that is to be replaced.
        address: String,
    },
    /// A device that was taken and left before it was part of the array.
    #[error("the device for member {member} does not take part: {reason}; see `netraid status`")]
    NotJoined {
        /// Whose place it was for.
        member: MemberIndex,
        /// Why.
        reason: String,
    },
    /// A label that belongs elsewhere.
    #[error(
        "{address} was not this array's member {member}; use `netraid replace` to put it there"
    )]
    NotThatMember {
        /// The device.
        address: String,
        /// Which member it was expected to be.
        member: MemberIndex,
    },
    /// The array is closing.
    #[error("the array is closing")]
    Closing,
}

impl ArrayError {
    /// The member at `address` could not be made an engine's alone.
    pub(super) fn not_fenced(address: String, error: FenceError) -> Self {
        match error {
            FenceError::Failed { what, reason } => Self::Io { address, what, reason },
            FenceError::Reserved { key } => Self::Reserved { address, key },
            FenceError::Overtaken { key } => Self::Overtaken { address, key },
            FenceError::Forgetful => Self::Forgetful { address },
            FenceError::CannotShutOut => Self::CannotShutOut { address },
            FenceError::Contended => Self::Contended { address },
        }
    }

    /// The device at `address` could not be a member.
    pub(super) const fn unfit(address: String, unfit: Unfit) -> Self {
        let Unfit { what, value, limit } = unfit;
        Self::Unfit { address, what, value, limit }
    }
}

impl Failure for ArrayError {
    fn is_conflict(&self) -> bool {
        let is_taken = |error: &InitiatorError| {
            matches!(error.reason(), Reason::Plan | Reason::PlanDenied(_) | Reason::Fenced)
        };
        matches!(self, Self::Io { reason, .. } if reason.kind() == ErrorKind::Fenced)
            || matches!(self, Self::Member(error) if is_taken(error))
    }

    fn is_refusal(&self) -> bool {
        matches!(self, Self::Io { reason, .. } if reason.is_refusal())
    }
}

/// `member 1`, or `members 1, 3`.
fn numbers(members: MemberSet) -> String {
    let all: Vec<String> = members.iter().map(|member| member.to_string()).collect();
    format!("member{} {}", if all.len() == 1 { "" } else { "s" }, all.join(", "))
}
