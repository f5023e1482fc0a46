//! CRC32C (Castagnoli), by the processor's own instructions where a program asks for them by the
//! feature `hardware-crc`: the crate that knows them needs the standard library.

/// The checksum of the bytes that gave `crc`, followed by `bytes`; that of none is 0.
#[cfg(feature = "hardware-crc")]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// The checksum of the bytes that gave `crc`, followed by `bytes`; that of none is 0.
#[cfg(not(feature = "hardware-crc"))]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    static CRC: crc::Crc<u32, crc::Table<16>> =
        crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);
    // What a digest begins with is the register, which is the checksum inverted and reflected.
    let mut digest = CRC.digest_with_initial((!crc).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::append;

    #[test]
    fn checksums_are_those_of_the_standard_however_the_bytes_are_cut() {
        // RFC 7143 A.4: 32 bytes of zeros, of ones, and counting up.
        assert_eq!(append(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(append(0, &[0xff; 32]), 0x62a8_ab43);
        let counting: [u8; 32] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        for cut in 0..=32 {
            let (one, two) = counting.split_at(cut);
            assert_eq!(append(append(0, one), two), 0x46dd_794e);
        }
        assert_eq!(append(0, &[]), 0);
    }
}
