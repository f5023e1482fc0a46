//! The array without a log: how it is made, and what its media hold at rest.

use std::collections::BTreeSet;

use netraid_block::{Buf, BufMut, IoError, SgList, narrow};
use netraid_raid::{
    array::Background,
    format::{Format, Image, first_label},
    geometry::{Geometry, Level},
    label::{Label, Uuid},
    member::MemberState,
    regions::{LABEL_OFFSETS, PAGE_LEN, Region, Regions},
    volume::{Plain, PlainOrLogged},
    written::WrittenBits,
};

use super::{machine::Machine, tables::Tables};
use crate::disk::Disk;

impl Machine for Plain {
    const HAS_LOG: bool = false;

    fn take(machine: PlainOrLogged, _places: &[Option<usize>]) -> Result<Self, IoError> {
        match machine {
            PlainOrLogged::Plain(machine) => Ok(*machine),
            PlainOrLogged::Logged(_) => {
                unreachable!("an array without a log is opened as one with")
            }
        }
    }

    fn label(&self) -> Label {
        self.array().label().clone()
    }

    fn is_resyncing(&self) -> bool {
        let progress = self.array().progress();
        progress.iter().any(|progress| progress.background == Background::Resync)
    }

    fn describe(&self) -> String {
        format!("{:?}", self.array())
    }

    fn format(
        format: Format,
        (regions, geometry): (Regions, Geometry),
        array_uuid: Uuid,
        members: &[Uuid],
        _salt: u64,
    ) -> Vec<Vec<Image>> {
        let layout = (regions, geometry);
        let label =
            Label { log: None, ..first_label(format, layout, "simulated", array_uuid, members, 0) };
        let mut bits = WrittenBits::new(array_uuid, geometry.stripes());
        let pages: BTreeSet<u64> = (0..bits.pages()).collect();
        let pages = bits.images(&regions.written, &pages).into_iter();
        let pages: Vec<Image> =
            pages.map(|page| (regions.written.offset + page.offset, page.bytes)).collect();
        let on_member = |index| {
            let label = Label { index, ..label.clone() };
            let labels = (0..).zip(LABEL_OFFSETS).map(|(copy, at)| (at, label.encode(copy)));
            pages.iter().cloned().chain(labels).collect()
        };
        geometry.member_indices().map(on_member).collect()
    }

    fn look(
        disks: &[&Disk],
        label: &Label,
        _tables: &Tables,
        _is_closed: bool,
    ) -> Result<SgList, String> {
        let members: Vec<usize> =
            (0..disks.len()).filter(|at| label.members[*at].state == MemberState::InSync).collect();
        let mut bits = WrittenBits::new(label.array_uuid, label.geometry.stripes());
        for member in &members {
            let bytes = written_on(disks[*member], &label.regions.written);
            bytes.iter().for_each(|bytes| bits.offer_all(&label.regions.written, bytes));
        }
        let geometry = &label.geometry;
        let stripe_len: usize = narrow(geometry.stripe_data_len());
        let mut volume = BufMut::zeroed(narrow(geometry.capacity()));
        for stripe in (0..geometry.stripes()).filter(|stripe| bits.get(*stripe)) {
            let data = &mut volume[narrow::<_, usize>(stripe) * stripe_len..][..stripe_len];
            read_stripe(disks, &members, geometry, stripe, data)?;
        }
        Ok(volume.freeze().into())
    }
}

/// Regions and geometry of an array without a log, with nothing where only others have something.
#[must_use]
pub(crate) fn layout(
    level: Level,
    members: usize,
    (chunk_len, block_len): (u32, u32),
    stripes: u64,
) -> Option<(Regions, Geometry)> {
    const ALIGN: u64 = 64 << 10;
    let (labels, written) =
        (Region { offset: 0, len: ALIGN }, Region { offset: ALIGN, len: ALIGN });
    let none = Region { offset: written.end(), len: 0 };
    let data = Region { offset: none.offset, len: stripes * u64::from(chunk_len) };
    let geometry =
        Geometry::new(level, members, chunk_len, block_len, stripes, data.offset).ok()?;
    let (stale, map, sums, log) = (none, none, none, none);
    Some((Regions { labels, written, stale, map, sums, log, data }, geometry))
}

/// The region of written bits on a disk.
pub(super) fn written_on(disk: &Disk, region: &Region) -> Option<Buf> {
    let block = u64::from(disk.shape().block_len);
    let read = disk.read(region.offset / block..region.end() / block).ok()?;
    Some(read.to_contiguous())
}

/// Puts a stripe's data into `data`, by the members that are in sync; columns of those that are not are computed.
fn read_stripe(
    disks: &[&Disk],
    members: &[usize],
    geometry: &Geometry,
    stripe: u64,
    data: &mut [u8],
) -> Result<(), String> {
    let chunk_len: usize = narrow(geometry.chunk_len());
    let mut columns: Vec<Option<Vec<u8>>> = Vec::new();
    for column in 0..geometry.members() {
        let member = geometry.member_of(stripe, column).as_usize();
        let block = u64::from(disks[member].shape().block_len);
        let first = geometry.member_offset(stripe, 0) / block;
        let blocks = first..first + u64::from(geometry.chunk_len()) / block;
        let read = disks[member].read(blocks).ok().map(|chunk| chunk.to_contiguous().to_vec());
        columns.push(read.filter(|_| members.contains(&member)));
    }
    let data_columns = usize::from(geometry.data_columns());
    let sum = |columns: &[Option<Vec<u8>>]| {
        let mut sum = vec![0; chunk_len];
        for chunk in columns.iter().flatten() {
            sum.iter_mut().zip(chunk.iter()).for_each(|(sum, byte)| *sum ^= byte);
        }
        sum
    };
    let is_mirror = geometry.level() == Level::Raid1;
    let all_are_here = columns.iter().all(Option::is_some);
    let is_wrong = match geometry.level() {
        Level::Raid1 => {
            let mut copies = columns.iter().flatten();
            let first = copies.next();
            copies.any(|copy| Some(copy) != first)
        }
        Level::Raid5 => all_are_here && sum(&columns).iter().any(|byte| *byte != 0),
        Level::Raid0 | Level::Raid6 | Level::Raid10 => false,
    };
    if is_wrong {
        return Err(format!("stripe {stripe}: the members do not agree"));
    }
    let computed =
        if is_mirror { columns.iter().flatten().next().cloned() } else { Some(sum(&columns)) };
    for (column, part) in data.chunks_exact_mut(chunk_len).enumerate().take(data_columns) {
        match (&columns[column], &computed) {
            (Some(chunk), _) => part.copy_from_slice(chunk),
            (None, Some(computed)) => part.copy_from_slice(computed),
            (None, None) => return Err(format!("stripe {stripe}: no member has it")),
        }
    }
    Ok(())
}

/// Bytes of the region of written bits that hold pages.
#[must_use]
pub(super) const fn written_len(label: &Label) -> u64 {
    netraid_raid::written::page_count(label.geometry.stripes()) * 2 * PAGE_LEN as u64
}
