//! What is told of copies: limits before them, status after them (SPC-4, section 6.17), and VPD
//! page 8Fh (section 7.8.17).

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use super::{
    COPIES_MAX, SEGMENT_LEN_MAX,
    parameters::{
        CSCDS_MAX, DESCRIPTORS_LEN_MAX, SEGMENTS_MAX, TYPE_BLOCK_TO_BLOCK, TYPE_IDENTIFICATION,
    },
};
use crate::{bytes::put, inquiry, unit::NexusId};

/// Copies that are remembered; the oldest is forgotten first.
const RECORDS_MAX: usize = 256;

/// How a copy ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyResult {
    /// Segments that were copied as a whole.
    pub(crate) segments: u16,
    /// Bytes that were written.
    pub(crate) written: u64,
    /// SCSI status and sense data of a copy that failed.
    pub(crate) failure: Option<(u8, Vec<u8>)>,
}

#[derive(Debug)]
struct Record {
    nexus: NexusId,
    list_id: u8,
    /// None while the copy is under way.
    result: Option<CopyResult>,
}

/// The copies of all nexuses, under way and ended. A list identifier names at most one copy of a
/// nexus.
#[derive(Debug, Default)]
pub(crate) struct CopyRecords {
    records: Vec<Record>,
}

impl CopyRecords {
    /// A copy begins. False when its nexus has one of this identifier under way.
    pub(crate) fn begin(&mut self, nexus: NexusId, list_id: u8) -> bool {
        if let Some(at) = self.find(nexus, list_id) {
            if self.records[at].result.is_none() {
                return false;
            }
            self.records.remove(at);
        }
        if self.records.len() >= RECORDS_MAX
            && let Some(oldest) = self.records.iter().position(|record| record.result.is_some())
        {
            self.records.remove(oldest);
        }
        self.records.push(Record { nexus, list_id, result: None });
        true
    }

    /// A copy has ended; without a result it is forgotten.
    pub(crate) fn end(&mut self, nexus: NexusId, list_id: u8, result: Option<CopyResult>) {
        let Some(at) = self.find(nexus, list_id) else { return };
        match result {
            Some(result) => self.records[at].result = Some(result),
            None => {
                self.records.remove(at);
            }
        }
    }

    /// Forgets what a lost nexus asked for.
    pub(crate) fn remove_nexus(&mut self, nexus: NexusId) {
        self.records.retain(|record| record.nexus != nexus);
    }

    /// Parameter data of COPY STATUS; none for an unknown identifier.
    pub(crate) fn status(&self, nexus: NexusId, list_id: u8) -> Option<Vec<u8>> {
        let record = &self.records[self.find(nexus, list_id)?];
        let mut out = vec![0; 12];
        out[3] = 8;
        let Some(result) = &record.result else { return Some(out) };
        out[4] = if result.failure.is_some() { 2 } else { 1 };
        put(&mut out, 5, result.segments.to_be_bytes());
        // Counted in bytes as long as that fits, then in KiB.
        let (unit, count) = match u32::try_from(result.written) {
            Ok(bytes) => (0, bytes),
            // Clamped: the field holds no more.
            Err(_) => (1, u32::try_from(result.written >> 10).unwrap_or(u32::MAX)),
        };
        out[7] = unit;
        put(&mut out, 8, count.to_be_bytes());
        Some(out)
    }

    /// Parameter data of FAILED SEGMENT DETAILS; none when there is no copy of this identifier
    /// that failed.
    pub(crate) fn failed_segment(&self, nexus: NexusId, list_id: u8) -> Option<Vec<u8>> {
        let record = &self.records[self.find(nexus, list_id)?];
        let (status, sense) = record.result.as_ref()?.failure.as_ref()?;
        let mut out = vec![0; 60];
        out[56] = *status;
        put(&mut out, 58, narrow::<_, u16>(sense.len()).to_be_bytes());
        out.extend_from_slice(sense);
        let len: u32 = narrow(out.len() - 4);
        put(&mut out, 0, len.to_be_bytes());
        Some(out)
    }

    fn find(&self, nexus: NexusId, list_id: u8) -> Option<usize> {
        self.records.iter().position(|record| record.nexus == nexus && record.list_id == list_id)
    }
}

/// Parameter data of OPERATING PARAMETERS (SPC-4, section 6.17.4).
pub(crate) fn operating_parameters() -> Vec<u8> {
    let types = [TYPE_BLOCK_TO_BLOCK, TYPE_IDENTIFICATION];
    let mut out = vec![0; 44];
    out[4] = 0x01; // SNLID: copies without list identifier are taken
    put(&mut out, 8, to_u16(CSCDS_MAX));
    put(&mut out, 10, to_u16(SEGMENTS_MAX));
    put(&mut out, 12, to_u32(DESCRIPTORS_LEN_MAX));
    put(&mut out, 16, SEGMENT_LEN_MAX.to_be_bytes());
    put(&mut out, 34, to_u16(COPIES_MAX));
    out[36] = narrow(COPIES_MAX);
    out[37] = 9; // segments in units of 512 bytes
    out[43] = narrow(types.len());
    out.extend(types);
    let len = to_u32(out.len() - 4);
    put(&mut out, 0, len);
    out
}

/// VPD page 8Fh: which copies are possible (SPC-4, section 7.8.17).
pub(crate) fn third_party_copy_page() -> Vec<u8> {
    let mut body = Vec::new();
    // Supported commands: EXTENDED COPY (LID1), RECEIVE COPY STATUS, PARAMETERS and DETAILS.
    descriptor(&mut body, 0x0001, &[8, 0x83, 1, 0x00, 0x84, 3, 0x00, 0x03, 0x04]);
    let mut parameters = vec![0; 28];
    put(&mut parameters, 8, to_u16(CSCDS_MAX));
    put(&mut parameters, 10, to_u16(SEGMENTS_MAX));
    put(&mut parameters, 12, to_u32(DESCRIPTORS_LEN_MAX));
    descriptor(&mut body, 0x0004, &parameters);
    descriptor(&mut body, 0x0008, &[2, TYPE_BLOCK_TO_BLOCK, TYPE_IDENTIFICATION]);
    let mut general = vec![0; 32];
    put(&mut general, 0, to_u32(COPIES_MAX));
    put(&mut general, 4, to_u32(COPIES_MAX));
    put(&mut general, 8, SEGMENT_LEN_MAX.to_be_bytes());
    general[12] = 9;
    descriptor(&mut body, 0x8001, &general);
    inquiry::vpd(inquiry::PAGE_THIRD_PARTY_COPY, &body)
}

/// Appends a third-party copy descriptor, padded to four bytes.
fn descriptor(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = value.len().next_multiple_of(4);
    out.extend(kind.to_be_bytes());
    out.extend(to_u16(len));
    out.extend_from_slice(value);
    out.resize(out.len() + len - value.len(), 0);
}

fn to_u16(value: usize) -> [u8; 2] {
    narrow::<_, u16>(value).to_be_bytes()
}

fn to_u32(value: usize) -> [u8; 4] {
    narrow::<_, u32>(value).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXUS: NexusId = NexusId(1);

    fn ended(written: u64) -> Option<CopyResult> {
        Some(CopyResult { segments: 2, written, failure: None })
    }

    #[test]
    fn an_identifier_names_one_copy_of_its_nexus() {
        let mut records = CopyRecords::default();
        assert_eq!(records.status(NEXUS, 5), None);
        assert!(records.begin(NEXUS, 5));
        assert!(!records.begin(NEXUS, 5), "it is under way");
        assert!(records.begin(NexusId(2), 5), "another nexus");
        assert_eq!(records.status(NEXUS, 5).unwrap()[4], 0);
        records.end(NEXUS, 5, ended(77));
        assert_eq!(records.status(NEXUS, 5).unwrap()[3..], [8, 1, 0, 2, 0, 0, 0, 0, 77]);
        assert!(records.begin(NEXUS, 5), "it has ended");
        records.remove_nexus(NEXUS);
        assert_eq!(records.status(NEXUS, 5), None);
        assert!(records.status(NexusId(2), 5).is_some());
    }

    #[test]
    fn many_bytes_are_counted_in_larger_units() {
        let mut records = CopyRecords::default();
        for (written, counted) in [(u64::from(u32::MAX), (0, u32::MAX)), (1 << 32, (1, 1 << 22))] {
            assert!(records.begin(NEXUS, 1));
            records.end(NEXUS, 1, ended(written));
            let status = records.status(NEXUS, 1).unwrap();
            let count = u32::from_be_bytes(status[8..].try_into().unwrap());
            assert_eq!((status[7], count), counted);
        }
    }

    #[test]
    fn records_are_bounded_and_the_oldest_goes() {
        let mut records = CopyRecords::default();
        for at in 0..1000 {
            let (nexus, list_id) = (NexusId(at / 200), u8::try_from(at % 200).unwrap());
            assert!(records.begin(nexus, list_id));
            records.end(nexus, list_id, ended(0));
        }
        assert_eq!(records.records.len(), RECORDS_MAX);
        assert_eq!(records.status(NexusId(0), 0), None);
        assert!(records.status(NexusId(4), 199).is_some());
    }

    #[test]
    fn details_exist_of_failures_alone() {
        let mut records = CopyRecords::default();
        records.begin(NEXUS, 1);
        records.end(NEXUS, 1, ended(1));
        assert_eq!(records.failed_segment(NEXUS, 1), None);
        records.begin(NEXUS, 2);
        let failure = Some((2, vec![0x70, 0, 0x0a]));
        records.end(NEXUS, 2, Some(CopyResult { segments: 0, written: 0, failure }));
        let details = records.failed_segment(NEXUS, 2).unwrap();
        assert_eq!((details[3], details[56], details[59]), (59, 2, 3));
        assert_eq!(details[60..], [0x70, 0, 0x0a]);
        assert_eq!(records.status(NEXUS, 2).unwrap()[4], 2);
    }

    #[test]
    fn announced_lengths_are_true() {
        let parameters = operating_parameters();
        assert_eq!(u32::from_be_bytes(parameters[..4].try_into().unwrap()), 42);
        let page = third_party_copy_page();
        assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
        let mut rest = &page[4..];
        let mut kinds = Vec::new();
        while let [high, low, len_high, len_low, ..] = *rest {
            kinds.push(u16::from_be_bytes([high, low]));
            let len = usize::from(u16::from_be_bytes([len_high, len_low]));
            assert!(len.is_multiple_of(4));
            rest = &rest[4 + len..];
        }
        assert_eq!((kinds, rest.len()), (vec![0x0001, 0x0004, 0x0008, 0x8001], 0));
    }
}
