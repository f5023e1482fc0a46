//! The bytes that are written: made for each block and each time that it is written, so that nothing is
//! there twice, or taken from a file; and in each block of 4 KiB a mark of its own, by which it is known
//! again when it is read.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use netraid_block::narrow;
use netraid_evaluate::{
    data::{GENERATED, PLACES, keeps, places, repeats},
    record::DataProof,
};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::pattern;

/// Bytes of the pool: more than the caches of a processor hold.
const POOL_LEN: usize = 32 << 20;
/// Bytes of a mark: the first half says which block this is, the second which time it is written.
const MARK_LEN: usize = 16;
/// Bytes that have a mark of their own.
pub(super) const BLOCK_LEN: usize = pattern::BLOCK_LEN;
/// Bytes that are compressed at each place for the proof.
const SAMPLE_LEN: usize = 512 << 10;
/// Fewest bytes of a file: its places do not overlap then.
const FILE_LEN_MIN: usize = SAMPLE_LEN * PLACES;
/// Over so many bytes the places of data that is made are spread.
const MADE_LEN: u64 = 1 << 40;
/// How far the pool is shifted for each time that a block is written, in blocks: a prime.
const SHIFT: u64 = 251;

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    /// Data that does not compress, with marks made from this number.
    Marked(u64),
    /// Zeros.
    Zeros,
    /// Anything: nothing is checked.
    Any,
}

/// A file of the user's from which data is taken, as the run began with it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct DataFile {
    pub(super) path: PathBuf,
    /// What tells its data from that of another file of this name, here or elsewhere.
    pub(super) digest: String,
}

/// Data to write.
pub(super) struct Data {
    pool: Vec<u8>,
    zeros: Vec<u8>,
    /// The file that the pool is from; none: data is made.
    source: Option<String>,
}

impl Data {
    /// From a file of the user's, or made from a seed.
    pub(super) fn new(file: Option<&Path>, seed: u64) -> Result<Self> {
        let (pool, source) = match file {
            Some(path) => (read_pool(path)?, Some(path.display().to_string())),
            None => {
                let mut pool = vec![0; POOL_LEN];
                pattern::fill(seed, 0, &mut pool);
                (pool, None)
            }
        };
        // As long, and touched: zeros that the kernel shares would come from a cache of the processor.
        let mut zeros = vec![1; pool.len()];
        zeros.fill(0);
        Ok(Self { pool, zeros, source })
    }

    /// From a file that must be the one with which the run began: clients have copies of it.
    pub(super) fn of_file(file: &DataFile) -> Result<Self> {
        let DataFile { path, digest } = file;
        let shown = path.display();
        let data = Self::new(Some(path), 0)
            .with_context(|| format!("--data {shown} (digest {digest}): give this host a copy"))?;
        match data.digest() {
            Some(here) if here != *digest => bail!(
                "--data {shown}: has digest {here} here, and {digest} where the run began; give this host a copy of \
                 that file"
            ),
            Some(_) | None => Ok(data),
        }
    }

    /// What tells data of a file from any other's; none where it is made.
    fn digest(&self) -> Option<String> {
        self.source.as_ref().map(|_| format!("{:016x}", digest(&self.pool)))
    }

    /// Makes what lies at `offset`, for the `turn`th time.
    pub(super) fn fill(&self, content: Content, offset: u64, turn: u64, bytes: &mut [u8]) {
        match content {
            Content::Marked(seed) if self.source.is_none() => {
                pattern::fill(pattern::mix(seed ^ pattern::mix(turn)), offset, bytes);
            }
            Content::Marked(_) | Content::Any => Self::copy(&self.pool, offset, turn, bytes),
            Content::Zeros => Self::copy(&self.zeros, offset, turn, bytes),
        }
        let Content::Marked(seed) = content else { return };
        for (block, at) in bytes.chunks_mut(BLOCK_LEN).zip((offset..).step_by(BLOCK_LEN)) {
            let mark = mark(seed, at);
            block[..8].copy_from_slice(&mark.to_le_bytes());
            block[8..MARK_LEN].copy_from_slice(&pattern::mix(mark ^ turn).to_le_bytes());
        }
    }

    fn copy(pool: &[u8], offset: u64, turn: u64, bytes: &mut [u8]) {
        let blocks =
            (pool.len() / BLOCK_LEN).saturating_sub(bytes.len().div_ceil(BLOCK_LEN)) as u64;
        let first = (offset / BLOCK_LEN as u64 + turn * SHIFT) % (blocks + 1);
        // Within the pool by the line above.
        let from = narrow::<_, usize>(first) * BLOCK_LEN;
        bytes.copy_from_slice(&pool[from..from + bytes.len()]);
    }

    /// Compresses samples from places all over the data, and fails when one got shorter; of a file's data
    /// also when parts of it are there more than once.
    pub(super) fn prove(&self) -> Result<DataProof> {
        let made = self.source.is_none();
        let source = self.source.clone().unwrap_or_else(|| GENERATED.to_owned());
        let len = if made { MADE_LEN } else { self.pool.len() as u64 };
        let places = places(len, SAMPLE_LEN as u64);
        let mut sample = vec![0; SAMPLE_LEN];
        let (mut sample_bytes, mut compressed_bytes) = (0, 0);
        for at in &places {
            self.fill(Content::Marked(1), *at, 0, &mut sample);
            let compressed =
                compress_to_vec(sample.as_slice(), CompressionLevel::Fastest).len() as u64;
            keeps(&source, *at, SAMPLE_LEN as u64, compressed)?;
            sample_bytes += SAMPLE_LEN as u64;
            compressed_bytes += compressed;
        }
        if !made {
            repeats(&source, &self.pool)?;
        }
        Ok(DataProof {
            source,
            digest: self.digest(),
            places: u32::try_from(places.len())?,
            sample_bytes,
            compressed_bytes,
            compressor: "zstd (ruzstd, fastest)".to_owned(),
        })
    }
}

/// Tells data from other data; nobody tries to forge it.
fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(bytes.len() as u64, |digest, word| pattern::mix(digest ^ word))
}

/// The first block, by its place, that does not carry its mark.
pub(super) fn first_wrong(content: Content, offset: u64, bytes: &[u8]) -> Option<u64> {
    let Content::Marked(seed) = content else { return None };
    let mut blocks = bytes.chunks(BLOCK_LEN).zip((offset..).step_by(BLOCK_LEN));
    let wrong = blocks.find(|(block, at)| block.get(..8) != Some(&mark(seed, *at).to_le_bytes()));
    wrong.map(|(_, at)| at)
}

const fn mark(seed: u64, offset: u64) -> u64 {
    pattern::mix(seed ^ pattern::mix(offset))
}

/// What of a file is written: all of it, or pieces from all over it where it is longer than the pool.
fn read_pool(path: &Path) -> Result<Vec<u8>> {
    let shown = || format!("data of {}", path.display());
    let mut file = File::open(path).with_context(shown)?;
    // Devices that give bytes without end have no length.
    let len = file.seek(SeekFrom::End(0)).unwrap_or_default();
    let mut pool = Vec::with_capacity(POOL_LEN);
    if len > POOL_LEN as u64 {
        pool.resize(POOL_LEN, 0);
        let piece_len = POOL_LEN / PLACES;
        let pieces = pool.chunks_mut(piece_len);
        for (piece, at) in pieces.zip(places(len, piece_len as u64)) {
            file.read_exact_at(piece, at).with_context(shown)?;
        }
    } else {
        // What has no length may know no places either.
        let _ = file.rewind();
        file.take(POOL_LEN as u64).read_to_end(&mut pool).with_context(shown)?;
    }
    if pool.len() < FILE_LEN_MIN {
        bail!(
            "{}: has {} bytes, fewer than {FILE_LEN_MIN}; give a longer file",
            shown(),
            pool.len()
        );
    }
    pool.truncate(pool.len() / BLOCK_LEN * BLOCK_LEN);
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file_of(parts: &[&[u8]]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for part in parts {
            file.write_all(part).unwrap();
        }
        file
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern::fill(seed, 0, &mut bytes);
        bytes
    }

    fn refused(file: &tempfile::NamedTempFile) -> String {
        Data::new(Some(file.path()), 1).unwrap().prove().unwrap_err().to_string()
    }

    #[test]
    fn generated_data_does_not_compress_and_text_does() {
        let proof = Data::new(None, 1).unwrap().prove().unwrap();
        assert_eq!((proof.source.as_str(), proof.places, proof.digest), (GENERATED, 8, None));
        let line = b"the quick brown fox jumps over the lazy dog; ";
        let error = refused(&file_of(&vec![&line[..]; FILE_LEN_MIN / line.len() + 1]));
        assert!(error.contains("compress to"), "{error}");
    }

    #[test]
    fn what_compresses_anywhere_in_a_file_is_found() {
        let noise = noise(3, 40 << 20);
        let digits: Vec<u8> = noise[..8 << 20].iter().map(|byte| b'0' + byte % 10).collect();
        // Far behind what the pool could hold of its beginning.
        let error = refused(&file_of(&[&noise, &digits, &self::noise(4, 8 << 20)]));
        assert!(error.contains("compress to"), "{error}");
        let error = refused(&file_of(&[&noise[..24 << 20], &digits]));
        assert!(error.contains("compress to"), "{error}");
        let error = refused(&file_of(&[&noise[..5_000_001], &noise[..5_000_001]]));
        assert!(error.contains("more than once"), "{error}");
    }

    #[test]
    fn a_digest_tells_data_from_other_data() {
        let digest = |bytes: &[u8]| {
            let file = file_of(&[bytes]);
            Data::new(Some(file.path()), 1).unwrap().prove().unwrap().digest.unwrap()
        };
        let mut bytes = noise(3, FILE_LEN_MIN);
        let before = digest(&bytes);
        assert_eq!(before, digest(&bytes));
        bytes[FILE_LEN_MIN / 2] ^= 1;
        assert_ne!(before, digest(&bytes));
    }

    #[test]
    fn a_client_writes_no_other_data_than_the_run() {
        let file = file_of(&[&noise(3, FILE_LEN_MIN)]);
        let path = file.path().to_owned();
        let digest = Data::new(Some(&path), 1).unwrap().digest().unwrap();
        assert!(Data::of_file(&DataFile { path: path.clone(), digest: digest.clone() }).is_ok());
        let refused = |path: &Path, digest: &str| {
            let file = DataFile { path: path.to_owned(), digest: digest.to_owned() };
            let error = Data::of_file(&file).err().unwrap();
            format!("{error:#}")
        };
        let error = refused(&path, "0123456789abcdef");
        for named in [path.to_str().unwrap(), &digest, "0123456789abcdef"] {
            assert!(error.contains(named), "{error}");
        }
        let error = refused(Path::new("/nowhere/data"), &digest);
        assert!(error.contains("/nowhere/data") && error.contains(&digest), "{error}");
    }

    #[test]
    fn made_data_does_not_repeat_behind_the_length_of_the_pool() {
        let data = Data::new(None, 1).unwrap();
        let block = |offset, turn| {
            let mut bytes = vec![0; BLOCK_LEN];
            data.fill(Content::Marked(7), offset, turn, &mut bytes);
            bytes.split_off(MARK_LEN)
        };
        let pool = POOL_LEN as u64;
        let all = [block(0, 0), block(pool, 0), block(pool - 4096, 0), block(0, 1), block(4096, 0)];
        // Words in common would be what a compressor with a large window finds.
        let mut words: Vec<&[u8]> = all.iter().flat_map(|block| block.chunks(8)).collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
    }

    #[test]
    fn blocks_are_known_again_and_no_two_are_alike() {
        let data = Data::new(None, 1).unwrap();
        let content = Content::Marked(7);
        let mut bytes = vec![0; 64 << 10];
        data.fill(content, 1 << 20, 0, &mut bytes);
        assert_eq!(first_wrong(content, 1 << 20, &bytes), None);
        assert_eq!(first_wrong(Content::Marked(8), 1 << 20, &bytes), Some(1 << 20));
        let mut again = bytes.clone();
        data.fill(content, 1 << 20, 1, &mut again);
        assert_eq!(first_wrong(content, 1 << 20, &again), None);
        assert!(bytes.chunks(BLOCK_LEN).zip(again.chunks(BLOCK_LEN)).all(|(a, b)| a != b));
        bytes[8192] ^= 1;
        assert_eq!(first_wrong(content, 1 << 20, &bytes), Some((1 << 20) + 8192));
    }

    #[test]
    fn zeros_are_zeros() {
        let mut bytes = vec![1; 8192];
        Data::new(None, 1).unwrap().fill(Content::Zeros, 0, 0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
