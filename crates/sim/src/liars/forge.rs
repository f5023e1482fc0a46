//! Bytes that have the checksum of other bytes: a checksum is no identity.

/// Bytes with the checksum `wanted` at `crc_at`, by 32 bits at `spare_at` that stand for nothing: a checksum is linear in
/// them. `checksum` tells that of bytes as if it stood there itself.
pub(super) fn with_checksum(
    mut bytes: Vec<u8>,
    (crc_at, spare_at): (usize, usize),
    wanted: u32,
    checksum: impl Fn(&[u8]) -> u32,
) -> Option<Vec<u8>> {
    let spare_at = spare_at..spare_at + 4;
    bytes[spare_at.clone()].fill(0);
    let own = checksum(&bytes);
    let change = |bit: u32| -> u32 {
        let mut bytes = bytes.clone();
        bytes[spare_at.clone()].copy_from_slice(&(1_u32 << bit).to_le_bytes());
        checksum(&bytes) ^ own
    };
    // Rows of a system of 32 equations: what a set of bits changes, and the bits.
    let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (change(bit), 1 << bit)).collect();
    let mut left = wanted ^ own;
    let mut spare = 0_u32;
    for bit in 0..32 {
        let at = rows.iter().position(|(changes, _)| changes >> bit & 1 == 1)?;
        let (changes, bits) = rows.swap_remove(at);
        for row in rows.iter_mut().filter(|(other, _)| other >> bit & 1 == 1) {
            *row = (row.0 ^ changes, row.1 ^ bits);
        }
        if left >> bit & 1 == 1 {
            (left, spare) = (left ^ changes, spare ^ bits);
        }
    }
    bytes[spare_at].copy_from_slice(&spare.to_le_bytes());
    bytes[crc_at..crc_at + 4].copy_from_slice(&wanted.to_le_bytes());
    Some(bytes)
}
