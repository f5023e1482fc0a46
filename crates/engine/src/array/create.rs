//! Making an array: the members are checked first, all of them, and labelled last.

use futures_util::future::try_join_all;
use netraid_block::{Buf, BufMut, Pool};
use netraid_raid::{
    geometry::Level,
    label::{Closure, Holder, LABEL_LEN, Label, MemberEntry, NAME_LEN_MAX},
    lack::Lack,
    member::{MemberIndex, MemberState},
    regions::{LABEL_OFFSETS, Wish, plan},
    written::{PageImage, WrittenBits},
};
use serde::Serialize;

use super::{
    error::ArrayError,
    lock::hex,
    member::{Connected, MemberConfig},
};

/// The smallest member may have this share of the largest, in percent.
const EQUAL_PERCENT: u64 = 75;

/// What kind of array to make.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The array's name.
    pub name: String,
    /// Its level.
    pub level: Level,
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// Overwrite what is on the members, and accept unequal ones.
    pub force: bool,
}

/// What was made.
#[derive(Debug, Clone, Serialize)]
pub struct CreateReport {
    /// The array's name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Its level.
    pub level: u8,
    /// Its members, in order.
    pub members: Vec<String>,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Bytes of the volume.
    pub capacity_bytes: u64,
}

/// Labels `members` as a new array.
///
/// # Errors
/// When a member cannot be reached, is in use, given twice, too small or too unequal; then
/// nothing was written. Or when writing fails.
pub async fn create(
    options: CreateOptions,
    members: Vec<MemberConfig>,
    pool: Pool,
) -> Result<CreateReport, ArrayError> {
    check_name(&options.name)?;
    if options.level.needs_log() {
        return Err(ArrayError::NeedsLog(options.level.number()));
    }
    for (at, member) in members.iter().enumerate() {
        if let Some(first) = members[..at].iter().find(|first| first.uri == member.uri) {
            return Err(ArrayError::Twice { first: first.address(), second: member.address() });
        }
    }
    let connect = |config: MemberConfig| Connected::visit(config, pool.clone());
    let mut members = try_join_all(members.into_iter().map(connect)).await?;
    let result = make(&options, &mut members).await;
    for member in &mut members {
        member.set_free().await;
        member.remote.close().await;
    }
    result
}

async fn make(
    options: &CreateOptions,
    members: &mut [Connected],
) -> Result<CreateReport, ArrayError> {
    let label = lay_out(options, members)?;
    if !options.force {
        check_equal(members)?;
        try_join_all(members.iter().map(Connected::check_unused)).await?;
    } else {
        try_join_all(members.iter_mut().map(Connected::seize)).await?;
    }
    check_distinct(members).await?;
    let mut written = WrittenBits::new(label.array_uuid, label.geometry.stripes());
    let images = written.images(&label.regions.written, &(0..written.pages()).collect());
    try_join_all(members.iter().map(Connected::erase_label)).await?;
    let page = |image: PageImage| (label.regions.written.offset + image.offset, image.bytes);
    let pages = images.into_iter().map(page).map(|(at, bytes)| (at, Buf::copy_from(&bytes)));
    let pages: Vec<(u64, Buf)> = pages.collect();
    let what = "writing the written bits";
    try_join_all(members.iter().map(|member| member.write_stable(&pages, what))).await?;
    let labels = (0..).map(MemberIndex).map(|index| Label { index, ..label.clone() });
    let labelled = members.iter().zip(labels);
    try_join_all(labelled.map(async |(member, label)| member.write_label(&label).await)).await?;
    Ok(CreateReport {
        name: label.name.clone(),
        uuid: hex(&label.array_uuid),
        level: label.geometry.level().number(),
        members: members.iter().map(Connected::address).collect(),
        chunk_bytes: label.geometry.chunk_len(),
        block_bytes: label.geometry.block_len(),
        capacity_bytes: label.geometry.capacity(),
    })
}

fn check_name(name: &str) -> Result<(), ArrayError> {
    let fits = (1..=NAME_LEN_MAX).contains(&name.len());
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if fits && plain { Ok(()) } else { Err(ArrayError::Name(name.into())) }
}

/// Two addresses of one LUN would be no redundancy at all. Targets of some vendors give every
/// host's LUNs the same identity, so where two are alike a mark on one must show on the other.
async fn check_distinct(members: &[Connected]) -> Result<(), ArrayError> {
    for (at, member) in members.iter().enumerate() {
        let identity = member.remote.identity();
        let alike = members[..at].iter().filter(|other| other.remote.identity() == identity);
        for first in alike {
            if shows_mark(first, member).await? {
                let (first, second) = (first.address(), member.address());
                return Err(ArrayError::Twice { first, second });
            }
        }
    }
    Ok(())
}

/// Whether what is written where `one`'s label will be can be read from `other`.
async fn shows_mark(one: &Connected, other: &Connected) -> Result<bool, ArrayError> {
    let mut mark = BufMut::zeroed(LABEL_LEN);
    mark.chunks_mut(16).for_each(|part| part.copy_from_slice(&rand::random::<[u8; 16]>()));
    let mark = mark.freeze();
    one.write(LABEL_OFFSETS[0], mark.clone(), "marking it").await?;
    let seen = other.read(LABEL_OFFSETS[0], LABEL_LEN as u64, "looking for a mark").await?;
    Ok(*seen == *mark)
}

fn check_equal(members: &[Connected]) -> Result<(), ArrayError> {
    let small = members.iter().min_by_key(|member| member.capacity());
    let large = members.iter().max_by_key(|member| member.capacity());
    let (Some(small), Some(large)) = (small, large) else { return Ok(()) };
    if small.capacity() / EQUAL_PERCENT >= large.capacity() / 100 {
        return Ok(());
    }
    Err(ArrayError::Unequal {
        small: small.address(),
        small_bytes: small.capacity(),
        large: large.address(),
        large_bytes: large.capacity(),
    })
}

fn lay_out(options: &CreateOptions, members: &[Connected]) -> Result<Label, ArrayError> {
    let wish = Wish {
        level: options.level,
        members: members.len(),
        chunk_len: options.chunk_len,
        block_len: members.iter().map(|m| m.device.info().block_len).max().unwrap_or(512),
    };
    let smallest = members.iter().map(Connected::capacity).min().unwrap_or(0);
    let (regions, geometry) = plan(&wish, smallest)?;
    let needs = Needs {
        capacity: regions.data.end(),
        transfer_len: geometry.chunk_len(),
        block_len: geometry.block_len(),
        writes: true,
    };
    members.iter().try_for_each(|member| needs.check(member))?;
    let entry = || MemberEntry {
        uuid: rand::random(),
        state: MemberState::InSync,
        last_checkpoint: 0,
        rebuilt_stripes: 0,
        lack: Lack::NOTHING,
    };
    Ok(Label {
        array_uuid: rand::random(),
        name: options.name.clone(),
        index: MemberIndex(0),
        geometry,
        regions,
        generation: 1,
        epoch: 1,
        holder: Holder::default(),
        closure: Closure::Clean,
        members: members.iter().map(|_| entry()).collect(),
        log: None,
        compatible: 0,
        read_only_compatible: 0,
    })
}

/// What an array asks of a member's device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    pub(super) capacity: u64,
    pub(super) transfer_len: u32,
    pub(super) block_len: u32,
    pub(super) writes: bool,
}

impl Needs {
    /// Refuses a device that could not do it.
    pub(super) fn check(&self, member: &Connected) -> Result<(), ArrayError> {
        let info = member.device.info();
        let unfit = |what, value, limit| {
            Err(ArrayError::Unfit { address: member.address(), what, value, limit })
        };
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
