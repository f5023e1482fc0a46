//! Where the files of a run lie on a target without a file system: spread over its whole address range,
//! so that neither its fast nor its slow end is measured alone.
//!
//! The range is cut into [`BANDS`] bands of equal length. Each file has one piece in each band, at the same
//! place in all of them.

/// Bands of the range.
pub const BANDS: u64 = 16;

/// Where bands begin: at multiples of this.
const ALIGNMENT: u64 = 4096;

/// The map of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    band_bytes: u64,
    piece_bytes: u64,
    slots: u16,
}

/// Files that do not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "capacity of {capacity} bytes: {slots} files of {file_bytes} bytes need {needed}; give a --file-size and a \
     --net-file-size of at most {fit}"
)]
pub struct TooSmall {
    capacity: u64,
    slots: u16,
    file_bytes: u64,
    needed: u64,
    fit: u64,
}

impl Places {
    /// The map of a device of `capacity` bytes for `slots` files of `file_bytes`, whose requests are at most
    /// `request_bytes` long and never cross from one piece into another.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn new(
        capacity: u64,
        slots: u16,
        file_bytes: u64,
        request_bytes: u32,
    ) -> Result<Self, TooSmall> {
        let request = u64::from(request_bytes).max(ALIGNMENT).next_multiple_of(ALIGNMENT);
        let piece_bytes = file_bytes.div_ceil(BANDS).next_multiple_of(request);
        let band_bytes = capacity / BANDS / ALIGNMENT * ALIGNMENT;
        if u64::from(slots).saturating_mul(piece_bytes) > band_bytes {
            let needed = u64::from(slots).saturating_mul(piece_bytes).saturating_mul(BANDS);
            let fit = band_bytes / u64::from(slots.max(1)) / request * request * BANDS;
            return Err(TooSmall { capacity, slots, file_bytes, needed, fit });
        }
        Ok(Self { band_bytes, piece_bytes, slots })
    }

    /// Bytes of a file in each band.
    #[must_use]
    pub const fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// Where byte `offset` of a file lies on the device. Bytes behind the end of a file lie in its last band.
    #[must_use]
    pub fn at(&self, slot: u16, offset: u64) -> u64 {
        debug_assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let band = (offset / self.piece_bytes).min(BANDS - 1);
        let within = offset - band * self.piece_bytes;
        band * self.band_bytes + u64::from(slot) * self.piece_bytes + within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_reach_both_ends_and_never_overlap() {
        let (capacity, buffer) = (1 << 30, 256 << 10);
        let places = Places::new(capacity, 4, 64 << 20, buffer).unwrap();
        let mut pieces: Vec<u64> = (0..4)
            .flat_map(|slot| {
                (0..64 << 20).step_by(buffer as usize).map(move |offset| places.at(slot, offset))
            })
            .collect();
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|two| two[1] - two[0] >= u64::from(buffer)));
        assert_eq!(pieces[0], 0);
        let last = pieces[pieces.len() - 1] + u64::from(buffer);
        assert!(last <= capacity && last > capacity / 16 * 15);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_does() {
        let error = Places::new(256 << 20, 4, 1 << 30, 256 << 10).unwrap_err();
        assert!(Places::new(256 << 20, 4, error.fit, 256 << 10).is_ok(), "{error}");
        assert!(Places::new(256 << 20, 4, error.fit + (8 << 20), 256 << 10).is_err());
        assert_eq!(Places::new(1 << 20, 4, 1 << 30, 256 << 10).unwrap_err().fit, 0);
    }
}
