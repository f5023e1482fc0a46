//! INQUIRY: standard data and the pages that identify a logical unit (SPC-4, sections 6.6 and
//! 7.8). Both directions: [`Identity`] is what our logical units say, the `decode` functions read
//! what any logical unit says.

use alloc::{
    string::{String, ToString},
    vec,
    vec::Vec,
};

use netraid_block::narrow;

use crate::{
    bytes::{array, be16, put, put_ascii},
    ports::{NAME_LEN_MAX, TARGET_PORT, TARGET_PORT_GROUP},
};

/// Supported VPD pages.
pub const PAGE_SUPPORTED: u8 = 0x00;
/// Unit serial number.
pub const PAGE_SERIAL: u8 = 0x80;
/// Device identification.
pub const PAGE_IDENTIFICATION: u8 = 0x83;
/// SCSI ports.
pub const PAGE_PORTS: u8 = 0x88;
/// Extended INQUIRY data.
pub const PAGE_EXTENDED: u8 = 0x86;
/// Third-party copy.
pub const PAGE_THIRD_PARTY_COPY: u8 = 0x8f;
/// Block limits.
pub const PAGE_BLOCK_LIMITS: u8 = 0xb0;
/// Block device characteristics.
pub const PAGE_CHARACTERISTICS: u8 = 0xb1;
/// Logical block provisioning.
pub const PAGE_PROVISIONING: u8 = 0xb2;

const PAGES: [u8; 9] = [
    PAGE_SUPPORTED,
    PAGE_SERIAL,
    PAGE_IDENTIFICATION,
    PAGE_EXTENDED,
    PAGE_PORTS,
    PAGE_THIRD_PARTY_COPY,
    PAGE_BLOCK_LIMITS,
    PAGE_CHARACTERISTICS,
    PAGE_PROVISIONING,
];

const STANDARD_LEN: usize = 96;
pub(crate) const SERIAL_LEN_MAX: usize = 64;

/// Who a logical unit says that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// T10 vendor identification, up to 8 printable characters.
    pub vendor: String,
    /// Product identification, up to 16 printable characters.
    pub product: String,
    /// Product revision, up to 4 printable characters.
    pub revision: String,
    /// Unit serial number, up to 64 printable characters; the same as long as the data is.
    pub serial: String,
    /// The lower 60 bits of the locally assigned NAA designator; unique where it is used.
    pub naa: u64,
    /// iSCSI name of the target device.
    pub target_name: String,
}

impl Identity {
    /// The identity of a LUN that has none of its own: serial number and designator follow from
    /// the target's name and the LUN, so that they are the same after a restart.
    #[must_use]
    pub fn for_lun(target_name: &str, lun: u16) -> Self {
        let hash = fnv(target_name.bytes().chain(lun.to_be_bytes()));
        Self::with_serial(target_name, &alloc::format!("{hash:016x}"))
    }

    /// The identity with this serial number: the designator follows from it alone, so that a disk
    /// is the same whichever target shows it. Sixteen hexadecimal digits are the designator itself,
    /// but for its first four bits.
    #[must_use]
    pub fn with_serial(target_name: &str, serial: &str) -> Self {
        let is_plain = serial.len() == 16
            && serial.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let number = u64::from_str_radix(serial, 16).ok().filter(|_| is_plain);
        Self {
            vendor: "NETRAID".to_string(),
            product: "DISK".to_string(),
            revision: "1".to_string(),
            serial: serial.to_string(),
            naa: number.unwrap_or_else(|| fnv(serial.bytes())) & 0x0fff_ffff_ffff_ffff,
            target_name: target_name.to_string(),
        }
    }

    /// Standard INQUIRY data (SPC-4, section 6.6.2).
    #[must_use]
    pub fn standard(&self) -> Vec<u8> {
        let mut out = vec![0; STANDARD_LEN];
        out[2] = 0x06; // SPC-4
        out[3] = 0x12; // HISUP, response data format 2
        out[4] = 91; // length after byte 4
        out[5] = 0x18; // TPGS: implicit asymmetric access; 3PC: third-party copy
        out[7] = 0x02; // CMDQUE
        put_ascii(&mut out[8..16], &self.vendor);
        put_ascii(&mut out[16..32], &self.product);
        put_ascii(&mut out[32..36], &self.revision);
        // Version descriptors: SAM-5, iSCSI, SPC-4, SBC-3.
        for (at, version) in [0x00a0_u16, 0x0960, 0x0460, 0x04c0].into_iter().enumerate() {
            put(&mut out, 58 + 2 * at, version.to_be_bytes());
        }
        out
    }

    /// The contents of VPD page 80h.
    #[must_use]
    pub fn serial_page(&self) -> Vec<u8> {
        let mut field = vec![0; self.serial.len().min(SERIAL_LEN_MAX)];
        put_ascii(&mut field, &self.serial);
        vpd(PAGE_SERIAL, &field)
    }

    /// The contents of VPD page 83h (SPC-4, section 7.8.6).
    #[must_use]
    pub fn identification_page(&self) -> Vec<u8> {
        let mut vendor = vec![0; 8 + self.serial.len().min(SERIAL_LEN_MAX)];
        put_ascii(&mut vendor[..8], &self.vendor);
        put_ascii(&mut vendor[8..], &self.serial);
        let naa = (0x3 << 60 | (self.naa & 0x0fff_ffff_ffff_ffff)).to_be_bytes();
        let port = u32::from(TARGET_PORT).to_be_bytes();
        let mut body = Vec::new();
        designator(&mut body, 0x01, 0x03, &naa);
        designator(&mut body, 0x02, 0x01, &vendor);
        designator(&mut body, 0x51, 0x94, &port);
        designator(&mut body, 0x51, 0x95, &u32::from(TARGET_PORT_GROUP).to_be_bytes());
        designator(&mut body, 0x53, 0x98, &name_string(&self.port_name()));
        designator(&mut body, 0x53, 0xa8, &name_string(self.name()));
        vpd(PAGE_IDENTIFICATION, &body)
    }

    /// The contents of VPD page 88h (SPC-4, section 7.8.15): the one port of the target.
    #[must_use]
    pub fn ports_page(&self) -> Vec<u8> {
        let mut names = Vec::new();
        designator(&mut names, 0x53, 0x98, &name_string(&self.port_name()));
        let mut body = vec![0; 12];
        put(&mut body, 2, TARGET_PORT.to_be_bytes());
        put(&mut body, 10, narrow::<_, u16>(names.len()).to_be_bytes());
        body.extend(names);
        vpd(PAGE_PORTS, &body)
    }

    fn name(&self) -> &str {
        self.target_name.get(..NAME_LEN_MAX).unwrap_or(&self.target_name)
    }

    /// The SCSI port name: target name and portal group (RFC 7143, section 4.4.3).
    fn port_name(&self) -> String {
        alloc::format!("{},t,0x{:04x}", self.name(), TARGET_PORT_GROUP)
    }
}

/// FNV-1a: identifiers need to differ, not to be hard to guess.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A VPD page: header and `body`.
pub(crate) fn vpd(page: u8, body: &[u8]) -> Vec<u8> {
    let len = narrow::<_, u16>(body.len()).to_be_bytes();
    let mut out = vec![0x00, page, len[0], len[1]];
    out.extend_from_slice(body);
    out
}

/// VPD page 86h (SPC-4, section 7.8.7): simple tasks, and whether there is a volatile cache.
pub(crate) fn extended_page(volatile_cache: bool) -> Vec<u8> {
    let mut body = [0; 60];
    body[1] = 0x01;
    body[2] = u8::from(volatile_cache);
    vpd(PAGE_EXTENDED, &body)
}

/// VPD page 00h.
pub(crate) fn supported_pages() -> Vec<u8> {
    vpd(PAGE_SUPPORTED, &PAGES)
}

/// Appends a designator: code set and protocol, then kind and association.
fn designator(out: &mut Vec<u8>, code_set: u8, kind: u8, value: &[u8]) {
    // Clamped: of a longer value there is as much as a designator holds.
    let len = u8::try_from(value.len()).unwrap_or(u8::MAX);
    out.extend([code_set, kind, 0, len]);
    out.extend_from_slice(&value[..usize::from(len)]);
}

/// A SCSI name string: ended by a zero and padded to four bytes (SPC-4, section 7.8.6.11).
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
    bytes
}

/// What standard INQUIRY data says about a peer's logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandardInquiry {
    /// Peripheral qualifier: 0 connected, 1 could be connected, 3 not there at all.
    pub qualifier: u8,
    /// Peripheral device type: 0 is a disk, 1Fh unknown.
    pub device_type: u8,
    /// Whether the medium can be removed.
    pub removable: bool,
    /// Version of SPC that is claimed, as its code.
    pub version: u8,
    /// Vendor, without padding.
    pub vendor: String,
    /// Product, without padding.
    pub product: String,
    /// Revision, without padding.
    pub revision: String,
}

impl StandardInquiry {
    /// Reads standard INQUIRY data; `None` when it has less than the 36 mandatory bytes.
    #[must_use]
    pub fn decode(data: &[u8]) -> Option<Self> {
        let head: [u8; 36] = array(data, 0)?;
        Some(Self {
            qualifier: head[0] >> 5,
            device_type: head[0] & 0x1f,
            removable: head[1] & 0x80 != 0,
            version: head[2],
            vendor: text(&head[8..16]),
            product: text(&head[16..32]),
            revision: text(&head[32..36]),
        })
    }
}

/// One name of a logical unit, of its port, or of its target device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Designator {
    /// 1 binary, 2 ASCII, 3 UTF-8.
    pub code_set: u8,
    /// 0 the logical unit, 1 the target port, 2 the target device.
    pub association: u8,
    /// Designator type: 1 T10 vendor, 2 EUI-64, 3 NAA, 8 SCSI name string.
    pub kind: u8,
    /// Its value.
    pub value: Vec<u8>,
}

/// The body of VPD page `page`; `None` when `data` is not that page.
#[must_use]
pub fn vpd_body(data: &[u8], page: u8) -> Option<&[u8]> {
    if data.get(1) != Some(&page) {
        return None;
    }
    let len = usize::from(be16(data, 2)?);
    // What was cut by the allocation length is read as far as it came.
    let body = data.get(4..)?;
    body.get(..len.min(body.len()))
}

/// The page codes of VPD page 00h.
#[must_use]
pub fn decode_supported_pages(data: &[u8]) -> Option<Vec<u8>> {
    vpd_body(data, PAGE_SUPPORTED).map(<[u8]>::to_vec)
}

/// The serial number of VPD page 80h, without padding.
#[must_use]
pub fn decode_serial(data: &[u8]) -> Option<String> {
    vpd_body(data, PAGE_SERIAL).map(text)
}

/// The designators of VPD page 83h; those that are cut off are left out.
#[must_use]
pub fn decode_designators(data: &[u8]) -> Option<Vec<Designator>> {
    let mut rest = vpd_body(data, PAGE_IDENTIFICATION)?;
    let mut out = Vec::new();
    while let [code_set, kind, _, len, ..] = *rest {
        let Some(value) = rest.get(4..4 + usize::from(len)) else { break };
        out.push(Designator {
            code_set: code_set & 0x0f,
            association: kind >> 4 & 0x03,
            kind: kind & 0x0f,
            value: value.to_vec(),
        });
        rest = &rest[4 + usize::from(len)..];
    }
    Some(out)
}

/// Printable ASCII without padding; all else becomes a question mark, so that it can be shown.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let shown = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
    bytes[..end].iter().map(shown).collect::<String>().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_identity_survives_the_wire() {
        let identity = Identity::for_lun("iqn.2026-01.org.example:disk", 3);
        let standard = StandardInquiry::decode(&identity.standard()).unwrap();
        assert_eq!((standard.qualifier, standard.device_type, standard.version), (0, 0, 6));
        assert_eq!((standard.vendor.as_str(), standard.product.as_str()), ("NETRAID", "DISK"));
        let serial = decode_serial(&identity.serial_page());
        assert_eq!(serial.as_deref(), Some(identity.serial.as_str()));
        let page = identity.identification_page();
        let all = decode_designators(&page).unwrap();
        assert_eq!(all[0].value, (0x3 << 60 | identity.naa).to_be_bytes());
        let kinds: Vec<_> = all.iter().map(|one| (one.association, one.kind)).collect();
        assert_eq!(kinds, [(0, 3), (0, 1), (1, 4), (1, 5), (1, 8), (2, 8)]);
        assert_eq!((&all[2].value[..], &all[3].value[..]), (&[0, 0, 0, 1][..], &[0, 0, 0, 1][..]));
        assert!(all[4].value.starts_with(b"iqn.2026-01.org.example:disk,t,0x0001\0"));
        assert!(all[5].value.starts_with(b"iqn.2026-01.org.example:disk\0"));
        assert_ne!(identity.naa, Identity::for_lun("iqn.2026-01.org.example:disk", 4).naa);
    }

    #[test]
    fn the_designator_follows_from_the_serial_number_alone() {
        let derived = Identity::for_lun("iqn.2026-01.org.example:disk", 3);
        // What earlier programs gave: the designator is the serial number's lower 60 bits.
        assert_eq!(
            derived.naa,
            0x0fff_ffff_ffff_ffff & u64::from_str_radix(&derived.serial, 16).unwrap()
        );
        let again = Identity::with_serial("iqn.2026-01.org.example:other", &derived.serial);
        assert_eq!((&again.serial, again.naa), (&derived.serial, derived.naa));
        let named = |serial| Identity::with_serial("iqn.x", serial).naa;
        assert_eq!(named("WD-1"), named("WD-1"));
        assert_ne!(named("WD-1"), named("WD-2"));
        assert_ne!(named("00000000000000AB"), 0xab, "only as this program writes it");
    }

    #[test]
    fn the_ports_page_names_the_one_port() {
        let page = Identity::for_lun("iqn.2026-01.org.example:d", 0).ports_page();
        assert_eq!(page[..4], [0, 0x88, 0, 52]);
        assert_eq!(page[4..16], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 40]);
        assert_eq!(page[16..20], [0x53, 0x98, 0, 36]);
        assert!(page[20..].starts_with(b"iqn.2026-01.org.example:d,t,0x0001\0"));
    }

    #[test]
    fn hostile_text_cannot_reach_a_terminal() {
        assert_eq!(text(b"a\x1b[31m\xff  "), "a?[31m?");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(data in proptest::collection::vec(any::<u8>(), 0..260)) {
            let _ = (StandardInquiry::decode(&data), decode_designators(&data));
            let _ = (decode_serial(&data), decode_supported_pages(&data));
        }
    }
}
