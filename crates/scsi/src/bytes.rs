//! Big-endian fields (SPC-4, section 3.6): reads answer `None` past the end.

/// Reads `N` bytes at `at`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// Writes `value` at `at`.
///
/// # Panics
/// When it does not fit; only for buffers whose length this crate chose.
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// Writes `text` into a field of ASCII data, left aligned and padded with spaces
/// (SPC-4, section 4.3.1).
pub(crate) fn put_ascii(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = if (0x20..0x7f).contains(&byte) { byte } else { b'?' };
    }
}

/// `value`, or the largest number that the field holds.
pub(crate) fn saturate_u32(value: u64) -> u32 {
    // Clamped: its last value stands for all that is more.
    u32::try_from(value).unwrap_or(u32::MAX)
}
