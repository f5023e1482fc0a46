//! Opens the array of what was found on devices, by the steps of [`netraid_raid::opening`]: devices that were looked at,
//! and are this engine's alone, answer at once.

use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError};
use netraid_raid::{
    access,
    assemble::AssembleError,
    label::{Holder, Label, LabelError},
    opening::{self, Answer, Ask, OpenError, Step, Steps},
};

use super::engine::Fittings;

/// How the devices are called.
const NAME: &str = "member ";

/// What a device is found to have, as far as an opening asks for it.
#[derive(Debug, Clone, Default)]
pub struct FoundDevice {
    /// Its newest label, of whichever array.
    pub label: Option<Box<Label>>,
    /// The counter of its newest checkpoint.
    pub checkpoint: Option<u64>,
    /// Its region of written bits, of an array without a log.
    pub written: Option<Buf>,
}

/// An opened array.
pub type Opened = opening::Opened<IoError>;
/// Why it is not opened.
pub type Refusal = OpenError<IoError>;

/// Opens the array; `found` is by member, with none for devices that are not there. `is_forced` by an administrator's
/// word.
///
/// # Errors
/// As the product says it.
pub fn open(
    found: &[Option<FoundDevice>],
    this: Holder,
    fittings: &Fittings,
    is_forced: bool,
) -> Result<Opened, Refusal> {
    let options = opening::Options {
        read_only: false,
        take_over: true,
        force: is_forced,
        clean_close: None,
        is_placed: true,
        continues: None,
        wants_all: false,
        spares: 0,
        silent: None,
    };
    open_with(options, found, this, fittings)
}

/// Opens the array anew, for the engine that has had it all the time.
///
/// # Errors
/// As the product says it.
pub fn open_anew(
    found: &[Option<FoundDevice>],
    (this, known): (Holder, opening::Continues),
    fittings: &Fittings,
) -> Result<Opened, Refusal> {
    let options = opening::Options {
        read_only: false,
        // Its own lock proves that its former self is dead.
        take_over: true,
        force: false,
        clean_close: None,
        is_placed: true,
        continues: Some(known),
        wants_all: false,
        spares: 0,
        silent: None,
    };
    open_with(options, found, this, fittings)
}

fn open_with(
    options: opening::Options,
    found: &[Option<FoundDevice>],
    this: Holder,
    fittings: &Fittings,
) -> Result<Opened, Refusal> {
    let names = (0..found.len()).map(|at| format!("{NAME}{at}")).collect();
    let (pool, limits) = (fittings.pool.clone(), fittings.limits);
    let engine = opening::Engine { this, random: 7, pool, limits };
    let mut steps = Steps::open(options, names, engine);
    loop {
        let answer = match steps.poll() {
            Step::Ask(Ask::Lock(_)) => Answer::Lock(Ok((1, 7))),
            Step::Ask(Ask::Each(asks)) => {
                let answer = |(at, ask): (usize, access::Ask)| match &found[at] {
                    Some(device) => answer(device, ask, fittings, at),
                    None => access::Answer::Failed(ErrorKind::Unreachable.into()),
                };
                Answer::Each(asks.into_iter().map(answer).collect())
            }
            Step::Done(Ok(opened)) => return Ok(*opened),
            Step::Done(Err(refused)) => return Err(refused.error),
        };
        steps.answer(answer);
    }
}

/// Opens the array by an administrator's word. Of two devices that say each that the other was set aside, the one with
/// the older label is not given; which ones.
pub fn open_by_force(
    found: &[Option<FoundDevice>],
    this: impl Fn() -> Holder,
    fittings: &Fittings,
) -> (Result<Opened, Refusal>, Vec<usize>) {
    let (mut given, mut left_out) = (found.to_vec(), Vec::new());
    loop {
        let opened = open(&given, this(), fittings, true);
        match opened.as_ref().err().and_then(left_behind) {
            Some(member) if given[member].take().is_some() => left_out.push(member),
            Some(_) | None => return (opened, left_out),
        }
    }
}

/// The member with the older label of two that say each that the other was set aside, where that is why it is not opened.
pub fn left_behind(refusal: &Refusal) -> Option<usize> {
    let OpenError::Assemble(AssembleError::Diverged { second, .. }) = refusal else { return None };
    second.strip_prefix(NAME).and_then(|member| member.parse().ok())
}

/// Whether an array without a log is not opened because it was not closed, and lacks members: parity may not match.
pub const fn is_doubt_of_parity(refusal: &Refusal) -> bool {
    matches!(refusal, OpenError::Assemble(AssembleError::UncleanDegraded { .. }))
}

/// Whether an array is not opened because labels contradict each other of which an administrator believes the newer one.
pub fn is_doubt_of_labels(refusal: &Refusal) -> bool {
    matches!(refusal, OpenError::Assemble(AssembleError::Contradict { is_needed: true, .. }))
}

/// Whether it is not opened because members that are not here could carry the array alone.
pub const fn is_doubt_of_others(refusal: &Refusal) -> bool {
    matches!(refusal, OpenError::Assemble(AssembleError::Contested { .. }))
}

fn answer(
    device: &FoundDevice,
    ask: access::Ask,
    fittings: &Fittings,
    member: usize,
) -> access::Answer<IoError> {
    match ask {
        access::Ask::Visit | access::Ask::TakeOver { .. } => {
            access::Answer::Device(info(fittings, member))
        }
        access::Ask::Label => access::Answer::Label(device.label.clone().ok_or(LabelError::Absent)),
        access::Ask::Checkpoint(_) => access::Answer::Checkpoint(device.checkpoint),
        access::Ask::Read { .. } => match &device.written {
            Some(bytes) => access::Answer::Bytes(bytes.clone()),
            None => access::Answer::Failed(ErrorKind::Medium.into()),
        },
        access::Ask::Fence(_)
        | access::Ask::FenceAgain { .. }
        | access::Ask::Announce { .. }
        | access::Ask::FenceKnown { .. } => access::Answer::Fenced { exclusive: true },
        access::Ask::Close | access::Ask::Leave => access::Answer::Done,
        access::Ask::Keys => access::Answer::Keys { keys: Vec::new(), is_cut: false },
        ask @ (access::Ask::Unused
        | access::Ask::Attend(_)
        | access::Ask::TryOut(_)
        | access::Ask::ProveWritable { .. }
        | access::Ask::ReserveTables(_)) => {
            unreachable!("an opening asks a device for {ask:?}")
        }
    }
}

fn info(fittings: &Fittings, member: usize) -> DeviceInfo {
    let caps = fittings.caps[member];
    DeviceInfo {
        capacity: fittings.capacity,
        block_len: fittings.block_len,
        optimal_len: fittings.block_len,
        max_transfer_len: fittings.max_io_len,
        read_only: false,
        volatile_cache: caps.volatile_cache,
        can_discard: caps.can_discard,
        can_map: false,
    }
}
