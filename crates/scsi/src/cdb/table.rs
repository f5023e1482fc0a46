//! The table of supported commands: how each is checked, read, and reported by REPORT SUPPORTED
//! OPERATION CODES, and what keeps it from being acted upon. A command exists by its row; nothing
//! else lists commands.

use netraid_block::narrow;

use super::{
    ByteCheck, Cdb, Command, CommandKind, CopyQuestion, DataOut, Extent, ModeSense, PageControl,
    Report, Reported, ReserveIn, ReserveOut, Sanitize, SanitizeAction, StartStop,
};
use crate::sense::Sense;

/// Which reservations of other nexuses keep a command out (SPC-4, table 66; SBC-3, table 13).
/// Whoever holds a reservation, or is registered where that is enough, is never kept out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// None, or the command has rules of its own.
    Always,
    /// RESERVE (SPC-2, section 5.5), but no persistent reservation.
    Query,
    /// Besides these, persistent reservations with exclusive access.
    Read,
    /// All.
    Write,
}

/// Whether a command is acted upon while a sanitize operation is under way, or has failed (SBC-3,
/// section 4.11.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhileSanitizing {
    /// It is refused.
    Refused,
    /// It is refused until the operation has failed.
    AllowedAfterFailure,
    /// It is acted upon.
    Allowed,
}

/// What a logical unit has to have for a command to be supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Its device gives bytes back.
    Discard,
    /// Its device has writes that happen as a whole or not at all.
    AtomicWrite,
    /// It sanitizes.
    Sanitize,
}

/// One supported command. A column that a row does not name has its strictest value.
#[derive(Debug)]
pub struct Row {
    /// Its service action, where its operation code has them.
    pub service_action: Option<u16>,
    /// CDB usage data (SPC-4, section 6.34.3): the operation code, then a mask of used bits.
    pub usage: &'static [u8],
    pub(super) parse: fn(&Cdb) -> Result<Command, Sense>,
    access: Access,
    /// Where bits of the CDB decide about access.
    access_by: Option<fn(&Cdb) -> Access>,
    /// Whether it is refused while the medium is stopped or ejected.
    pub needs_medium: bool,
    /// Whether it is refused while a sanitize operation is under way.
    pub while_sanitizing: WhileSanitizing,
    /// Whether a pending unit attention condition keeps it from being acted upon, and is reported
    /// in its place (SAM-5, section 5.14).
    pub tells_attention: bool,
    /// All that it has to be offered by.
    pub features: &'static [Feature],
    /// What it does to the medium.
    pub kind: CommandKind,
}

impl Row {
    /// Operation code.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        self.usage[0]
    }

    pub(super) fn access_of(&self, cdb: &Cdb) -> Access {
        self.access_by.map_or(self.access, |access| access(cdb))
    }

    const fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    const fn access_by(self, access: fn(&Cdb) -> Access) -> Self {
        Self { access_by: Some(access), ..self }
    }

    const fn without_medium(self) -> Self {
        Self { needs_medium: false, ..self }
    }

    const fn while_sanitizing(self, while_sanitizing: WhileSanitizing) -> Self {
        Self { while_sanitizing, ..self }
    }

    const fn past_attention(self) -> Self {
        Self { tells_attention: false, ..self }
    }

    const fn with(self, features: &'static [Feature]) -> Self {
        Self { features, ..self }
    }

    const fn kind(self, kind: CommandKind) -> Self {
        Self { kind, ..self }
    }
}

const fn row(usage: &'static [u8], parse: fn(&Cdb) -> Result<Command, Sense>) -> Row {
    Row {
        service_action: None,
        usage,
        parse,
        access: Access::Write,
        access_by: None,
        needs_medium: true,
        while_sanitizing: Refused,
        tells_attention: true,
        features: &[],
        kind: CommandKind::Other,
    }
}

const fn action(
    service_action: u16,
    usage: &'static [u8],
    parse: fn(&Cdb) -> Result<Command, Sense>,
) -> Row {
    Row { service_action: Some(service_action), ..row(usage, parse) }
}

use Access::{Always, Query, Read};
use CommandKind as Kind;
use WhileSanitizing::{Allowed, AllowedAfterFailure, Refused};

/// POWER CONDITION field: go to the active power condition.
const POWER_ACTIVE: u8 = 0x1;

const F: u8 = 0xff;
/// The GROUP NUMBER field, which is taken and has no effect: nothing is collected for groups.
const G: u8 = 0x1f;

/// All supported commands, by operation code, then by service action.
pub const TABLE: &[Row] = &[
    row(&[0x00, 0, 0, 0, 0, 0], |_| Ok(Report::TestUnitReady.into())).access(Query),
    row(&[0x03, 0x01, 0, 0, F, 0], request_sense)
        .access(Always)
        .without_medium()
        .while_sanitizing(Allowed)
        .past_attention(),
    row(&[0x08, 0x1f, F, F, F, 0], |cdb| Ok(Command::Read { extent: cdb.extent(), fua: false }))
        .access(Read)
        .kind(Kind::Read),
    row(&[0x0a, 0x1f, F, F, F, 0], |cdb| {
        Ok(DataOut::Write { extent: cdb.extent(), fua: false }.into())
    })
    .kind(Kind::Write),
    row(&[0x12, 0x01, F, F, F, 0], inquiry)
        .access(Always)
        .without_medium()
        .while_sanitizing(Allowed)
        .past_attention(),
    row(&[0x15, 0x10, 0, 0, F, 0], mode_select).without_medium(),
    row(&[0x16, 0, 0, 0, 0, 0], |_| Ok(Command::Reserve)).access(Always).without_medium(),
    row(&[0x17, 0, 0, 0, 0, 0], |_| Ok(Command::Release)).access(Always).without_medium(),
    row(&[0x1a, 0x08, F, F, F, 0], mode_sense_6).access(Read).without_medium(),
    row(&[0x1b, 0x01, 0, 0, 0xf7, 0], start_stop_unit)
        .access_by(start_stop_access)
        .without_medium(),
    row(&[0x1e, 0, 0, 0, 0x03, 0], prevent_allow).access_by(prevent_access).without_medium(),
    row(&[0x25, 0, F, F, F, F, 0, 0, 0x01, 0], read_capacity_10).access(Query),
    row(&[0x28, 0x18, F, F, F, F, G, F, F, 0], read).access(Read).kind(Kind::Read),
    row(&[0x2a, 0x18, F, F, F, F, G, F, F, 0], write).kind(Kind::Write),
    row(&[0x2e, 0x16, F, F, F, F, G, F, F, 0], write_and_verify).kind(Kind::Write),
    row(&[0x2f, 0x16, F, F, F, F, G, F, F, 0], verify).access(Read),
    row(&[0x34, 0x02, F, F, F, F, G, F, F, 0], pre_fetch).access(Read),
    row(&[0x35, 0x06, F, F, F, F, G, F, F, 0], synchronize_cache).kind(Kind::Flush),
    row(&[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, 0], read_defect_data_10).access(Read),
    row(&[0x41, 0x08, F, F, F, F, G, F, F, 0], write_same).kind(Kind::Write),
    row(&[0x42, 0, 0, 0, 0, 0, G, F, F, 0], |cdb| {
        Ok(DataOut::Unmap { parameter_len: cdb.be16(7) }.into())
    })
    .with(&[Feature::Discard])
    .kind(Kind::Unmap),
    action(0x01, &[0x48, 0xa1, 0, 0, 0, 0, 0, F, F, 0], sanitize)
        .while_sanitizing(AllowedAfterFailure)
        .with(&[Feature::Sanitize]),
    action(0x02, &[0x48, 0xa2, 0, 0, 0, 0, 0, F, F, 0], sanitize)
        .while_sanitizing(AllowedAfterFailure)
        .with(&[Feature::Sanitize, Feature::Discard]),
    action(0x1f, &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, 0], sanitize)
        .while_sanitizing(AllowedAfterFailure)
        .with(&[Feature::Sanitize]),
    row(&[0x4d, 0, F, F, 0, F, F, F, F, 0], log_sense).access(Query).without_medium(),
    row(&[0x55, 0x10, 0, 0, 0, 0, 0, F, F, 0], mode_select).without_medium(),
    row(&[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], |_| Ok(Command::Reserve))
        .access(Always)
        .without_medium(),
    row(&[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], |_| Ok(Command::Release))
        .access(Always)
        .without_medium(),
    row(&[0x5a, 0x18, F, F, 0, 0, 0, F, F, 0], mode_sense_10).access(Read).without_medium(),
    action(0x00, &[0x5e, 0x00, 0, 0, 0, 0, 0, F, F, 0], reserve_in).access(Always).without_medium(),
    action(0x01, &[0x5e, 0x01, 0, 0, 0, 0, 0, F, F, 0], reserve_in).access(Always).without_medium(),
    action(0x02, &[0x5e, 0x02, 0, 0, 0, 0, 0, F, F, 0], reserve_in).access(Always).without_medium(),
    action(0x03, &[0x5e, 0x03, 0, 0, 0, 0, 0, F, F, 0], reserve_in).access(Always).without_medium(),
    action(0x00, &[0x5f, 0x00, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x01, &[0x5f, 0x01, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x02, &[0x5f, 0x02, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x03, &[0x5f, 0x03, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x04, &[0x5f, 0x04, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x05, &[0x5f, 0x05, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x06, &[0x5f, 0x06, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x07, &[0x5f, 0x07, F, 0, 0, F, F, F, F, 0], reserve_out)
        .access(Always)
        .without_medium(),
    action(0x00, &[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], |cdb| {
        Ok(Command::ExtendedCopy { parameter_len: cdb.be32(10) })
    })
    .without_medium(),
    action(0x00, &[0x84, 0, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], |cdb| {
        Ok(receive_copy_results(cdb, CopyQuestion::Status))
    })
    .access(Query)
    .without_medium(),
    action(0x03, &[0x84, 0x03, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], |cdb| {
        Ok(receive_copy_results(cdb, CopyQuestion::OperatingParameters))
    })
    .access(Query)
    .without_medium(),
    action(0x04, &[0x84, 0x04, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], |cdb| {
        Ok(receive_copy_results(cdb, CopyQuestion::FailedSegment))
    })
    .access(Query)
    .without_medium(),
    row(&[0x88, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], read)
        .access(Read)
        .kind(Kind::Read),
    row(&[0x89, 0x18, F, F, F, F, F, F, F, F, 0, 0, 0, F, G, 0], compare_and_write)
        .kind(Kind::Write),
    row(&[0x8a, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], write).kind(Kind::Write),
    row(&[0x8b, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], or_write).kind(Kind::Write),
    row(&[0x8e, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], write_and_verify)
        .kind(Kind::Write),
    row(&[0x8f, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], verify).access(Read),
    row(&[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], pre_fetch).access(Read),
    row(&[0x91, 0x06, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], synchronize_cache)
        .kind(Kind::Flush),
    row(&[0x93, 0x09, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], write_same).kind(Kind::Write),
    row(&[0x9c, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], write_atomic)
        .with(&[Feature::AtomicWrite])
        .kind(Kind::Write),
    action(0x10, &[0x9e, 0x10, F, F, F, F, F, F, F, F, F, F, F, F, 0x01, 0], read_capacity_16)
        .access(Query),
    action(0x12, &[0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], |cdb| {
        Ok(Command::GetLbaStatus { lba: cdb.be64(2), allocation_len: cdb.be32(10) })
    })
    .access(Read),
    row(&[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0], report_luns)
        .access(Always)
        .without_medium()
        .while_sanitizing(Allowed)
        .past_attention(),
    action(0x0a, &[0xa3, 0xea, 0, 0, 0, 0, F, F, F, F, 0, 0], report_target_port_groups)
        .access(Query)
        .without_medium(),
    action(0x0c, &[0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, 0], report_supported_opcodes)
        .access(Read)
        .without_medium()
        .while_sanitizing(Allowed),
    action(0x0d, &[0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, 0], |cdb| {
        let allocation_len = cdb.be32(6);
        Ok(Report::ReportSupportedTasks { extended: cdb.bit(2, 7), allocation_len }.into())
    })
    .access(Read)
    .without_medium()
    .while_sanitizing(Allowed),
    row(&[0xa8, 0x18, F, F, F, F, F, F, F, F, G, 0], read).access(Read).kind(Kind::Read),
    row(&[0xaa, 0x18, F, F, F, F, F, F, F, F, G, 0], write).kind(Kind::Write),
    row(&[0xae, 0x16, F, F, F, F, F, F, F, F, G, 0], write_and_verify).kind(Kind::Write),
    row(&[0xaf, 0x16, F, F, F, F, F, F, F, F, G, 0], verify).access(Read),
    row(&[0xb7, 0x1f, F, F, F, F, F, F, F, F, 0, 0], read_defect_data_12).access(Read),
];

/// Where each operation code's rows begin and end in the table.
const INDEX: [(usize, usize); 256] = {
    let mut index = [(0, 0); 256];
    let mut at = 0;
    while at < TABLE.len() {
        let opcode = TABLE[at].opcode() as usize;
        assert!(at == 0 || TABLE[at - 1].opcode() as usize <= opcode, "rows are sorted");
        assert!(TABLE[at].usage.len() <= super::CDB_LEN_MAX, "CDBs fit");
        let (start, end) = &mut index[opcode];
        if *end == 0 {
            *start = at;
        }
        *end = at + 1;
        at += 1;
    }
    index
};

/// The rows of an operation code; none when it is not supported.
#[must_use]
pub fn rows(opcode: u8) -> &'static [Row] {
    let (start, end) = INDEX[usize::from(opcode)];
    &TABLE[start..end]
}

fn start_stop_access(cdb: &Cdb) -> Access {
    let starts = cdb.bit(4, 0) && cdb.byte(4) >> 4 == 0;
    if starts { Access::Query } else { Access::Write }
}

fn prevent_access(cdb: &Cdb) -> Access {
    if cdb.byte(4) & 0x03 == 0 { Access::Query } else { Access::Write }
}

fn request_sense(cdb: &Cdb) -> Result<Command, Sense> {
    let allocation_len = u32::from(cdb.byte(4));
    Ok(Report::RequestSense { descriptor: cdb.bit(1, 0), allocation_len }.into())
}

fn inquiry(cdb: &Cdb) -> Result<Command, Sense> {
    let allocation_len = u32::from(cdb.be16(3));
    let page = cdb.byte(2);
    match (cdb.bit(1, 0), page) {
        (true, _) => Ok(Report::Inquiry { page: Some(page), allocation_len }.into()),
        (false, 0) => Ok(Report::Inquiry { page: None, allocation_len }.into()),
        // A page code without EVPD (SPC-4, section 6.6.1).
        (false, _) => Err(Sense::invalid_cdb(2, None)),
    }
}

fn mode_select(cdb: &Cdb) -> Result<Command, Sense> {
    let long = cdb.byte(0) == 0x55;
    let parameter_len = if long { cdb.be16(7) } else { u16::from(cdb.byte(4)) };
    // PF zero is a vendor's own layout.
    if !cdb.bit(1, 4) && parameter_len != 0 {
        return Err(Sense::invalid_cdb(1, Some(4)));
    }
    Ok(DataOut::ModeSelect { long, parameter_len }.into())
}

fn mode_sense_6(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Report::ModeSense(mode_sense(cdb, false, u32::from(cdb.byte(4)))).into())
}

fn mode_sense_10(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Report::ModeSense(mode_sense(cdb, true, u32::from(cdb.be16(7)))).into())
}

fn mode_sense(cdb: &Cdb, long: bool, allocation_len: u32) -> ModeSense {
    let control = match cdb.byte(2) >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => PageControl::Saved,
    };
    ModeSense {
        long,
        long_lba: long && cdb.bit(1, 4),
        no_descriptors: cdb.bit(1, 3),
        control,
        page: cdb.byte(2) & 0x3f,
        subpage: cdb.byte(3),
        allocation_len,
    }
}

fn read_capacity_10(cdb: &Cdb) -> Result<Command, Sense> {
    // Without the obsolete PMI bit the address must be zero (SBC-3, section 5.15).
    if !cdb.bit(8, 0) && cdb.be32(2) != 0 {
        return Err(Sense::invalid_cdb(2, None));
    }
    Ok(Report::ReadCapacity10.into())
}

fn read_capacity_16(cdb: &Cdb) -> Result<Command, Sense> {
    if !cdb.bit(14, 0) && cdb.be64(2) != 0 {
        return Err(Sense::invalid_cdb(2, None));
    }
    Ok(Report::ReadCapacity16 { allocation_len: cdb.be32(10) }.into())
}

fn read(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::Read { extent: cdb.extent(), fua: cdb.bit(1, 3) })
}

fn write(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(DataOut::Write { extent: cdb.extent(), fua: cdb.bit(1, 3) }.into())
}

fn write_atomic(cdb: &Cdb) -> Result<Command, Sense> {
    let extent = Extent { lba: cdb.be64(2), blocks: u32::from(cdb.be16(12)) };
    Ok(DataOut::WriteAtomic { extent, boundary: cdb.be16(10), fua: cdb.bit(1, 3) }.into())
}

fn or_write(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(DataOut::OrWrite { extent: cdb.extent(), fua: cdb.bit(1, 3) }.into())
}

fn write_and_verify(cdb: &Cdb) -> Result<Command, Sense> {
    let check = match cdb.byte(1) >> 1 & 0x03 {
        0 => ByteCheck::Medium,
        1 => ByteCheck::Compare,
        _ => return Err(Sense::invalid_cdb(1, Some(2))),
    };
    Ok(DataOut::WriteAndVerify { extent: cdb.extent(), check }.into())
}

fn verify(cdb: &Cdb) -> Result<Command, Sense> {
    let check = match cdb.byte(1) >> 1 & 0x03 {
        0 => ByteCheck::Medium,
        1 => ByteCheck::Compare,
        3 => ByteCheck::CompareOne,
        _ => return Err(Sense::invalid_cdb(1, Some(2))),
    };
    Ok(DataOut::Verify { extent: cdb.extent(), check }.into())
}

fn start_stop_unit(cdb: &Cdb) -> Result<Command, Sense> {
    let no_flush = cdb.bit(4, 2);
    // START and LOEJ are ignored with a power condition (SBC-3, table 121), of which only active
    // is supported.
    let (start, load_eject) = match cdb.byte(4) >> 4 {
        0 => (cdb.bit(4, 0), cdb.bit(4, 1)),
        POWER_ACTIVE => (true, false),
        _ => return Err(Sense::invalid_cdb(4, Some(7))),
    };
    Ok(Command::StartStopUnit(StartStop { no_flush, load_eject, start }))
}

fn prevent_allow(cdb: &Cdb) -> Result<Command, Sense> {
    match cdb.byte(4) & 0x03 {
        prevent @ 0..=1 => Ok(Command::PreventAllowMediumRemoval { prevent: prevent == 1 }),
        _ => Err(Sense::invalid_cdb(4, Some(1))),
    }
}

fn read_defect_data_10(cdb: &Cdb) -> Result<Command, Sense> {
    let wanted = defect_format(cdb, 2)?;
    Ok(Report::ReadDefectData { long: false, wanted, allocation_len: u32::from(cdb.be16(7)) }
        .into())
}

fn read_defect_data_12(cdb: &Cdb) -> Result<Command, Sense> {
    let wanted = defect_format(cdb, 1)?;
    Ok(Report::ReadDefectData { long: true, wanted, allocation_len: cdb.be32(6) }.into())
}

/// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT, which the answer repeats.
fn defect_format(cdb: &Cdb, at: usize) -> Result<u8, Sense> {
    match cdb.byte(at) & 0x07 {
        // Vendor specific and reserved formats (SBC-3, table 59).
        6 | 7 => Err(Sense::invalid_cdb(narrow(at), Some(2))),
        _ => Ok(cdb.byte(at) & 0x1f),
    }
}

fn log_sense(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Report::LogSense {
        page: cdb.byte(2) & 0x3f,
        subpage: cdb.byte(3),
        parameter: cdb.be16(5),
        allocation_len: u32::from(cdb.be16(7)),
    }
    .into())
}

fn sanitize(cdb: &Cdb) -> Result<Command, Sense> {
    let action = match cdb.byte(1) & 0x1f {
        0x01 => SanitizeAction::Overwrite,
        0x02 => SanitizeAction::BlockErase,
        _ => SanitizeAction::ExitFailureMode,
    };
    Ok(DataOut::Sanitize(Sanitize {
        action,
        immediate: cdb.bit(1, 7),
        unrestricted: cdb.bit(1, 5),
        parameter_len: cdb.be16(7),
    })
    .into())
}

fn write_same(cdb: &Cdb) -> Result<Command, Sense> {
    let no_data_out = cdb.byte(0) == 0x93 && cdb.bit(1, 0);
    Ok(DataOut::WriteSame { extent: cdb.extent(), unmap: cdb.bit(1, 3), no_data_out }.into())
}

fn compare_and_write(cdb: &Cdb) -> Result<Command, Sense> {
    let extent = Extent { lba: cdb.be64(2), blocks: u32::from(cdb.byte(13)) };
    Ok(DataOut::CompareAndWrite { extent, fua: cdb.bit(1, 3) }.into())
}

fn synchronize_cache(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::SynchronizeCache { extent: cdb.extent() })
}

fn pre_fetch(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::PreFetch { extent: cdb.extent() })
}

fn receive_copy_results(cdb: &Cdb, question: CopyQuestion) -> Command {
    let (list_id, allocation_len) = (cdb.byte(2), cdb.be32(10));
    Command::ReceiveCopyResults { question, list_id, allocation_len }
}

fn reserve_in(cdb: &Cdb) -> Result<Command, Sense> {
    ReserveIn::parse(cdb).map(Command::PersistentReserveIn)
}

fn reserve_out(cdb: &Cdb) -> Result<Command, Sense> {
    ReserveOut::parse(cdb).map(|out| DataOut::PersistentReserveOut(out).into())
}

fn report_luns(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Report::ReportLuns { select: cdb.byte(2), allocation_len: cdb.be32(6) }.into())
}

fn report_target_port_groups(cdb: &Cdb) -> Result<Command, Sense> {
    let extended = match cdb.byte(1) >> 5 {
        0 => false,
        1 => true,
        _ => return Err(Sense::invalid_cdb(1, Some(7))),
    };
    Ok(Report::ReportTargetPortGroups { extended, allocation_len: cdb.be32(6) }.into())
}

fn report_supported_opcodes(cdb: &Cdb) -> Result<Command, Sense> {
    let (opcode, service_action) = (cdb.byte(3), cdb.be16(4));
    let reported = match cdb.byte(2) & 0x07 {
        0 => Reported::All,
        1 => Reported::Opcode(opcode),
        2 => Reported::ServiceAction(opcode, service_action),
        3 => Reported::Either(opcode, service_action),
        _ => return Err(Sense::invalid_cdb(2, Some(2))),
    };
    let timeouts = cdb.bit(2, 7);
    Ok(Report::ReportSupportedOpcodes { reported, timeouts, allocation_len: cdb.be32(6) }.into())
}
