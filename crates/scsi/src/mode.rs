//! Mode pages: read-write error recovery (01h), caching (08h), control (0Ah) and its extension
//! (0Ah/01h), and informational exceptions control (1Ch), as MODE SENSE shows and MODE SELECT
//! changes them (SPC-4, sections 6.11, 6.13 and 7.5; SBC-3, section 6.5). [`ModeData`] is the
//! initiator's view.

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use crate::{
    bytes::{be16, put, saturate_u32},
    cdb::{ModeSense, PageControl},
    sense::{Additional, Sense},
};

const PAGE_RECOVERY: u8 = 0x01;
const PAGE_CACHING: u8 = 0x08;
const PAGE_CONTROL: u8 = 0x0a;
const PAGE_EXCEPTIONS: u8 = 0x1c;
const SUBPAGE_CONTROL_EXTENSION: u8 = 0x01;
const PAGE_ALL: u8 = 0x3f;
const SUBPAGE_ALL: u8 = 0xff;

/// A page with a subpage code and a length of 16 bits.
const SPF: u8 = 0x40;
const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

/// The settings behind the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeSettings {
    /// Completed writes may wait in a volatile cache.
    pub write_cache: bool,
    /// Writes are refused until this is taken back.
    pub software_write_protect: bool,
    /// Sense data is reported in descriptor format.
    pub descriptor_sense: bool,
}

/// What is said about a medium beside the pages.
#[derive(Debug, Clone, Copy)]
pub struct ModeMedium {
    /// Writes are refused, for whatever reason.
    pub write_protected: bool,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Logical block in bytes.
    pub block_len: u32,
    /// The device has a volatile cache, so that caching can be switched.
    pub cache_switchable: bool,
}

impl ModeSettings {
    /// The settings of a logical unit that nobody has changed.
    #[must_use]
    pub const fn new(volatile_cache: bool) -> Self {
        Self { write_cache: volatile_cache, software_write_protect: false, descriptor_sense: false }
    }

    /// All pages in the order in which they are reported.
    fn pages(self) -> [Page; PAGE_COUNT] {
        // All zero: no retries of ours, what the device reports is what it could do.
        let recovery = Page::new(PAGE_RECOVERY, 12);
        let mut caching = Page::new(PAGE_CACHING, 20);
        caching.bytes[2] = if self.write_cache { WCE } else { 0 };
        let mut control = Page::new(PAGE_CONTROL, 12);
        // GLTSD: no log parameters are saved.
        control.bytes[2] = 0x02 | if self.descriptor_sense { D_SENSE } else { 0 };
        // Commands may be reordered without restriction.
        control.bytes[3] = 0x10;
        control.bytes[4] = if self.software_write_protect { SWP } else { 0 };
        put(&mut control.bytes, 8, u16::MAX.to_be_bytes());
        let mut extension = Page::new(PAGE_CONTROL | SPF, 32);
        extension.bytes[1..4].copy_from_slice(&[SUBPAGE_CONTROL_EXTENSION, 0, 28]);
        let mut exceptions = Page::new(PAGE_EXCEPTIONS, 12);
        // DEXCPT: informational exceptions are not reported.
        exceptions.bytes[2] = 0x08;
        [recovery, caching, control, extension, exceptions]
    }

    /// Answers MODE SENSE.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for a page that does not exist; SAVING PARAMETERS NOT SUPPORTED.
    pub fn sense(self, request: &ModeSense, medium: ModeMedium) -> Result<Vec<u8>, Sense> {
        if request.control == PageControl::Saved {
            return Err(Sense::illegal(Additional::SAVING_NOT_SUPPORTED));
        }
        let shown = match request.control {
            PageControl::Changeable => changeable(medium),
            PageControl::Default => Self::new(medium.cache_switchable).pages(),
            PageControl::Current | PageControl::Saved => self.pages(),
        };
        let of_code = |page: &&Page| request.page == PAGE_ALL || page.code() == request.page;
        if shown.iter().find(of_code).is_none() {
            return Err(Sense::invalid_cdb(2, Some(5)));
        }
        let wanted = |page: &&Page| [page.subpage(), SUBPAGE_ALL].contains(&request.subpage);
        let mut pages = Vec::with_capacity(96);
        for page in shown.iter().filter(of_code).filter(wanted) {
            pages.extend_from_slice(page.as_slice());
        }
        let of_all = request.page == PAGE_ALL && ![0, SUBPAGE_ALL].contains(&request.subpage);
        if pages.is_empty() || of_all {
            return Err(Sense::invalid_cdb(3, None));
        }
        let descriptor = if request.no_descriptors {
            Vec::new()
        } else {
            block_descriptor(medium, request.long_lba)
        };
        Ok(with_header(request.long, request.long_lba, medium, &descriptor, &pages))
    }

    /// The settings after MODE SELECT with this parameter list; nothing changes on an error.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR when something is cut off; INVALID FIELD IN PARAMETER LIST
    /// for a page that does not exist, and for a change of what cannot be changed.
    pub fn select(self, long: bool, list: &[u8], medium: ModeMedium) -> Result<Self, Sense> {
        if list.is_empty() {
            return Ok(self);
        }
        let mut at = check_header(long, list, medium)?;
        let mut settings = self;
        while at < list.len() {
            let len = settings.select_page(list, at, medium)?;
            at += len;
        }
        Ok(settings)
    }

    /// Takes over the page at `at`; answers its length.
    fn select_page(&mut self, list: &[u8], at: usize, medium: ModeMedium) -> Result<usize, Sense> {
        // PS is reserved here (SPC-4, section 7.5.7).
        let code = list[at] & 0x3f;
        let with_subpage = list[at] & SPF != 0;
        let subpage = if with_subpage { *list.get(at + 1).ok_or(cut_off())? } else { 0 };
        let (pages, masks) = (self.pages(), changeable(medium));
        let known = pages.iter().zip(&masks).find(|(page, _)| {
            page.code() == code && page.subpage() == subpage && page.has_subpage() == with_subpage
        });
        let Some((current, mask)) = known else { return Err(invalid_at(at)) };
        let (current, mask) = (current.as_slice(), mask.as_slice());
        let body_at = if with_subpage { 4 } else { 2 };
        let given = list.get(at..at + body_at).ok_or(cut_off())?;
        if given[1..] != current[1..body_at] {
            return Err(invalid_at(at + body_at - 1));
        }
        let page = list.get(at..at + current.len()).ok_or(cut_off())?;
        for offset in body_at..page.len() {
            if (page[offset] ^ current[offset]) & !mask[offset] != 0 {
                return Err(invalid_at(at + offset));
            }
        }
        match (code, subpage) {
            (PAGE_CACHING, 0) => self.write_cache = page[2] & WCE != 0,
            (PAGE_CONTROL, 0) => {
                self.descriptor_sense = page[2] & D_SENSE != 0;
                self.software_write_protect = page[4] & SWP != 0;
            }
            _ => {}
        }
        Ok(page.len())
    }
}

const PAGE_COUNT: usize = 5;

/// A mode page, header and all.
struct Page {
    bytes: [u8; 32],
    len: usize,
}

impl Page {
    fn new(code: u8, len: usize) -> Self {
        let mut bytes = [0; 32];
        bytes[0] = code;
        bytes[1] = narrow(len - 2);
        Self { bytes, len }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    const fn code(&self) -> u8 {
        self.bytes[0] & 0x3f
    }

    const fn has_subpage(&self) -> bool {
        self.bytes[0] & SPF != 0
    }

    const fn subpage(&self) -> u8 {
        if self.has_subpage() { self.bytes[1] } else { 0 }
    }
}

/// Masks of what MODE SELECT may change.
fn changeable(medium: ModeMedium) -> [Page; PAGE_COUNT] {
    let mut pages = ModeSettings::new(false).pages();
    for page in &mut pages {
        let body_at = if page.has_subpage() { 4 } else { 2 };
        page.bytes[body_at..].fill(0);
        match (page.code(), page.subpage()) {
            (PAGE_CACHING, 0) if medium.cache_switchable => page.bytes[2] = WCE,
            (PAGE_CONTROL, 0) => {
                page.bytes[2] = D_SENSE;
                page.bytes[4] = SWP;
            }
            _ => {}
        }
    }
    pages
}

const fn cut_off() -> Sense {
    Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR)
}

fn invalid_at(at: usize) -> Sense {
    // Clamped: what lies beyond the reach of a field pointer is named by its last value.
    Sense::invalid_parameter(u16::try_from(at).unwrap_or(u16::MAX))
}

/// Checks header and block descriptor; answers where the pages begin.
fn check_header(long: bool, list: &[u8], medium: ModeMedium) -> Result<usize, Sense> {
    let (header_len, descriptor_len) = if long {
        (8, usize::from(be16(list, 6).ok_or(cut_off())?))
    } else {
        (4, usize::from(*list.get(3).ok_or(cut_off())?))
    };
    if list.len() < header_len + descriptor_len {
        return Err(cut_off());
    }
    let long_lba = long && list[4] & 0x01 != 0;
    let expected = block_descriptor(medium, long_lba);
    if descriptor_len == 0 {
        return Ok(header_len);
    }
    if descriptor_len != expected.len() {
        return Err(invalid_at(if long { 6 } else { 3 }));
    }
    let given = &list[header_len..header_len + descriptor_len];
    // A count of zero keeps the capacity.
    let count_len = expected.len() / 2;
    let count_same = given[..count_len] == expected[..count_len];
    let count_zero = given[..count_len].iter().all(|byte| *byte == 0);
    if !(count_same || count_zero) || given[count_len..] != expected[count_len..] {
        return Err(invalid_at(header_len));
    }
    Ok(header_len + descriptor_len)
}

fn block_descriptor(medium: ModeMedium, long_lba: bool) -> Vec<u8> {
    if long_lba {
        let mut out = vec![0; 16];
        put(&mut out, 0, medium.blocks.to_be_bytes());
        put(&mut out, 12, medium.block_len.to_be_bytes());
        return out;
    }
    let mut out = vec![0; 8];
    put(&mut out, 0, saturate_u32(medium.blocks).to_be_bytes());
    // Block lengths are far below 2^24, so that the byte in front stays zero.
    put(&mut out, 4, medium.block_len.to_be_bytes());
    out
}

/// Header, descriptor and pages of either form (SPC-4, section 7.5.4).
fn with_header(
    long: bool,
    long_lba: bool,
    medium: ModeMedium,
    descriptor: &[u8],
    pages: &[u8],
) -> Vec<u8> {
    // WP, and DPOFUA: the bits DPO and FUA of reads and writes are understood.
    let specific = 0x10 | if medium.write_protected { 0x80 } else { 0 };
    let body_len = descriptor.len() + pages.len();
    let mut out = vec![0; if long { 8 } else { 4 }];
    if long {
        put(&mut out, 0, narrow::<_, u16>(body_len + 6).to_be_bytes());
        out[3] = specific;
        out[4] = u8::from(long_lba && !descriptor.is_empty());
        put(&mut out, 6, narrow::<_, u16>(descriptor.len()).to_be_bytes());
    } else {
        out[0] = narrow(body_len + 3);
        out[2] = specific;
        out[3] = narrow(descriptor.len());
    }
    out.extend_from_slice(descriptor);
    out.extend_from_slice(pages);
    out
}

/// What MODE SENSE (6) of a peer says, as far as it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeData {
    /// Writes are refused.
    pub write_protected: bool,
    /// The FUA bit is understood.
    pub dpofua: bool,
    /// Completed writes may wait in a volatile cache; `None` without a caching page.
    pub write_cache: Option<bool>,
}

impl ModeData {
    /// Reads the answer to MODE SENSE (6); `None` when it has no header.
    #[must_use]
    pub fn decode_6(data: &[u8]) -> Option<Self> {
        let [len, _, specific, descriptor_len] = crate::bytes::array(data, 0)?;
        let end = data.len().min(usize::from(len) + 1);
        let mut rest = data.get(4 + usize::from(descriptor_len)..end).unwrap_or(&[]);
        let mut write_cache = None;
        while let [page, len, third, ..] = *rest {
            if page & 0x7f == PAGE_CACHING {
                write_cache = Some(third & WCE != 0);
            }
            // Pages with subpages have a length of 16 bits.
            let end = if page & 0x40 == 0 {
                2 + usize::from(len)
            } else {
                4 + usize::from(be16(rest, 2).unwrap_or(0))
            };
            rest = rest.get(end..).unwrap_or(&[]);
        }
        let write_protected = specific & 0x80 != 0;
        Some(Self { write_protected, dpofua: specific & 0x10 != 0, write_cache })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::{Command, Report, build, parse};
    use proptest::prelude::*;

    const MEDIUM: ModeMedium =
        ModeMedium { write_protected: false, blocks: 64, block_len: 512, cache_switchable: true };

    fn request(cdb: [u8; 16]) -> ModeSense {
        let Ok(Command::Report(Report::ModeSense(request))) = parse(&cdb) else {
            panic!("{cdb:?}")
        };
        request
    }

    #[test]
    fn the_initiator_reads_what_the_target_says() {
        for write_cache in [false, true] {
            let settings = ModeSettings { write_cache, ..ModeSettings::new(true) };
            let protected = ModeMedium { write_protected: true, ..MEDIUM };
            let data = settings.sense(&request(build::mode_sense_6(0x3f, 255)), protected).unwrap();
            let expected =
                ModeData { write_protected: true, dpofua: true, write_cache: Some(write_cache) };
            assert_eq!(ModeData::decode_6(&data), Some(expected));
            assert_eq!(usize::from(data[0]) + 1, data.len());
        }
    }

    #[test]
    fn select_takes_back_what_sense_showed_and_only_changes_what_may_change() {
        let settings = ModeSettings::new(true);
        let mut long = [0; 16];
        long[0] = 0x5a;
        long[2] = 0x3f;
        for (cdb, is_long) in [(build::mode_sense_6(0x3f, 255), false), (long, true)] {
            let mut list = settings.sense(&request(cdb), MEDIUM).unwrap();
            assert_eq!(settings.select(is_long, &list, MEDIUM), Ok(settings));
            let place = |page: u8| {
                let at = (4..list.len() - 1).find(|at| list[*at] == page && list[at + 1] > 9);
                at.unwrap()
            };
            let (header, control) = (place(PAGE_CACHING), place(PAGE_CONTROL));
            list[header + 2] &= !WCE;
            list[control + 4] |= SWP;
            let changed = settings.select(is_long, &list, MEDIUM).unwrap();
            assert!(!changed.write_cache && changed.software_write_protect);
            list[header + 2] |= 0x01;
            let error = settings.select(is_long, &list, MEDIUM).unwrap_err();
            assert_eq!(error.additional, Additional::INVALID_FIELD_IN_PARAMETER_LIST);
            list.truncate(header + 5);
            assert_eq!(settings.select(is_long, &list, MEDIUM), Err(cut_off()));
        }
    }

    #[test]
    fn pages_that_do_not_exist_are_refused() {
        let settings = ModeSettings::new(false);
        assert!(settings.sense(&request(build::mode_sense_6(0x1b, 255)), MEDIUM).is_err());
        let mut saved = request(build::mode_sense_6(0x08, 255));
        saved.control = PageControl::Saved;
        let error = settings.sense(&saved, MEDIUM).unwrap_err();
        assert_eq!(error.additional, Additional::SAVING_NOT_SUPPORTED);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_without_panic(
            list in proptest::collection::vec(any::<u8>(), 0..64), long: bool,
        ) {
            let _ = ModeSettings::new(true).select(long, &list, MEDIUM);
            let _ = ModeData::decode_6(&list);
        }
    }
}
