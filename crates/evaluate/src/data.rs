//! What is written: where samples for its proof lie, what is proof enough, and which data a run that is
//! resumed goes on with.

use crate::record::DataProof;

/// Name of data that is made.
pub const GENERATED: &str = "generated";
/// Places at which data is sampled.
pub const PLACES: usize = 8;
/// What does not compress keeps this share of its length.
pub const KEPT_MIN: f64 = 0.98;
/// What does not repeat has at most this share of its anchors more than once.
pub const REPEATED_MAX: f64 = 0.02;
/// Places begin at multiples of this.
const ALIGNMENT: u64 = 4096;
/// One place in 2 to the power of this is an anchor.
const ANCHOR_BITS: u32 = 12;

/// Data that cannot be taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DataError {
    /// A place compresses.
    #[error(
        "data of {name}: {len} bytes at {at} compress to {compressed}, below {kept_percent:.0}%: a target that \
         compresses would look fast; give data that is compressed already, or none to have it made"
    )]
    Compresses {
        /// Whose data.
        name: String,
        /// The place.
        at: u64,
        /// Its length.
        len: u64,
        /// What came out.
        compressed: u64,
        /// [`KEPT_MIN`] in percent.
        kept_percent: f64,
    },
    /// Parts of it are there more than once.
    #[error(
        "data of {name}: {repeated_percent:.0}% of it is there more than once, more than {most_percent:.0}%: a \
         target that leaves out what it has would look fast; give data that does not repeat, or none to have it \
         made"
    )]
    Repeats {
        /// Whose data.
        name: String,
        /// How much of it.
        repeated_percent: f64,
        /// [`REPEATED_MAX`] in percent.
        most_percent: f64,
    },
    /// The run wrote data that is made, and a file was given.
    #[error(
        "--data {given}: the run of the log writes data that is made; leave --data out, or begin a new run without \
         --resume"
    )]
    Given {
        /// The file.
        given: String,
    },
    /// It is not what the run began with.
    #[error(
        "data of {name}: is not what the run began with (digest {was}, now {is}); give the same file by --data, or \
         begin a new run without --resume"
    )]
    Other {
        /// The file.
        name: String,
        /// The log's digest.
        was: String,
        /// That of now.
        is: String,
    },
}

/// Where pieces of `piece` bytes lie that are spread over all of `len`: the first at its beginning, the last
/// at its end. Data that is shorter than all of them has fewer.
#[must_use]
pub fn places(len: u64, piece: u64) -> Vec<u64> {
    let count = (PLACES as u64).min(len / piece.max(1)).max(1);
    let room = len.saturating_sub(piece);
    let step = |index: u64| room / (count - 1).max(1) * index / ALIGNMENT * ALIGNMENT;
    let end = room / ALIGNMENT * ALIGNMENT;
    (0..count)
        .map(|index| if index > 0 && index + 1 == count { end } else { step(index) })
        .collect()
}

/// Fails when what lies at a place got shorter.
///
/// # Errors
/// When it did.
pub fn keeps(name: &str, at: u64, len: u64, compressed: u64) -> Result<(), DataError> {
    if compressed as f64 >= len as f64 * KEPT_MIN {
        return Ok(());
    }
    let (name, kept_percent) = (name.to_owned(), KEPT_MIN * 100.0);
    Err(DataError::Compresses { name, at, len, compressed, kept_percent })
}

/// Fails when parts of `bytes` are there more than once, wherever they begin.
///
/// Words at any place that have a certain hash are anchors: what repeats has the same ones again, and in data
/// that does not compress no two are alike.
///
/// # Errors
/// When too many are there more than once.
pub fn repeats(name: &str, bytes: &[u8]) -> Result<(), DataError> {
    let mut anchors: Vec<u64> = bytes
        .array_windows()
        .map(|word| u64::from_le_bytes(*word))
        .filter(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ANCHOR_BITS) == 0)
        .collect();
    let all = anchors.len();
    anchors.sort_unstable();
    anchors.dedup();
    let repeated = (all - anchors.len()) as f64 / all.max(1) as f64;
    if repeated <= REPEATED_MAX {
        return Ok(());
    }
    let (name, most_percent) = (name.to_owned(), REPEATED_MAX * 100.0);
    Err(DataError::Repeats { name, repeated_percent: repeated * 100.0, most_percent })
}

/// The file whose data a resumed run writes, where it is not made: the one that was given, else the log's.
///
/// # Errors
/// When one was given to a run whose data is made.
pub fn resumed<'a>(
    begun: &'a DataProof,
    given: Option<&'a str>,
) -> Result<Option<&'a str>, DataError> {
    match given {
        Some(given) if begun.source == GENERATED => {
            Err(DataError::Given { given: given.to_owned() })
        }
        Some(given) => Ok(Some(given)),
        None => Ok(Some(begun.source.as_str()).filter(|name| *name != GENERATED)),
    }
}

/// Fails when a file's data is not what the run began with.
///
/// # Errors
/// When its digest is another one, or the log has none.
pub fn same(begun: &DataProof, now: &DataProof) -> Result<(), DataError> {
    if now.source == GENERATED || (begun.digest.is_some() && begun.digest == now.digest) {
        return Ok(());
    }
    let of = |proof: &DataProof| proof.digest.clone().unwrap_or_else(|| "unknown".to_owned());
    Err(DataError::Other { name: now.source.clone(), was: of(begun), is: of(now) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::run;

    #[test]
    fn places_reach_from_the_beginning_to_the_end() {
        let (len, piece) = ((1 << 30) + 4096 * 3, 512 << 10);
        let all = places(len, piece);
        assert_eq!(all.len(), PLACES);
        assert_eq!((all[0], all[7] + piece), (0, len));
        assert!(all.windows(2).all(|two| two[1] - two[0] >= len / 8), "{all:?}");
        assert_eq!(places(PLACES as u64 * piece, piece)[1], piece, "none overlaps another");
        assert_eq!(places(piece, piece), [0]);
        assert_eq!(places(100, piece), [0]);
    }

    #[test]
    fn each_place_must_keep_its_length() {
        assert_eq!(keeps("f", 0, 1000, 980), Ok(()));
        let error = keeps("f", 4096, 1000, 979).unwrap_err().to_string();
        assert!(error.contains("1000 bytes at 4096 compress to 979"), "{error}");
    }

    #[test]
    fn what_repeats_is_seen_wherever_it_begins() {
        // xorshift64: any generator will do.
        let mut state = 1_u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[4]
        })
        .take(1 << 20)
        .collect();
        assert_eq!(repeats("f", &bytes), Ok(()));
        let twice = [&bytes[..300_001], &bytes[..300_001]].concat();
        let error = repeats("f", &twice).unwrap_err().to_string();
        assert!(error.contains("50%") && error.contains("leaves out"), "{error}");
        assert_eq!(repeats("f", &[]), Ok(()));
    }

    #[test]
    fn a_resumed_run_goes_on_with_its_own_data() {
        let made = run().data;
        assert_eq!(resumed(&made, None), Ok(None));
        let error = resumed(&made, Some("/f")).unwrap_err().to_string();
        assert!(error.contains("--data /f") && error.contains("leave --data out"), "{error}");
        let of = |name: &str, digest: &str| DataProof {
            source: name.to_owned(),
            digest: Some(digest.to_owned()),
            ..made.clone()
        };
        let file = of("/f", "1");
        assert_eq!(resumed(&file, None), Ok(Some("/f")));
        assert_eq!(resumed(&file, Some("/g")), Ok(Some("/g")));
        assert_eq!(same(&file, &of("/g", "1")), Ok(()));
        let error = same(&file, &of("/f", "2")).unwrap_err().to_string();
        assert!(error.contains("digest 1, now 2"), "{error}");
        let unknown = DataProof { digest: None, ..file.clone() };
        assert!(same(&unknown, &unknown).is_err(), "a log without a digest proves nothing");
        assert_eq!(same(&made, &made), Ok(()));
    }
}
