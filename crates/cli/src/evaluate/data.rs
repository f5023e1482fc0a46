//! The bytes that are written: a pool of data that does not compress, and in each block of 4 KiB a mark
//! of its own, by which it is known again when it is read, and by which no two blocks are alike.

use std::{fs::File, io::Read as _, path::Path};

use anyhow::{Context as _, Result, bail};
use netraid_evaluate::record::DataProof;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::pattern;

/// Bytes of the pool: more than the caches of a processor hold.
const POOL_LEN: usize = 32 << 20;
/// Bytes of a mark: the first half says which block this is, the second which time it is written.
const MARK_LEN: usize = 16;
/// Bytes that have a mark of their own.
pub(super) const BLOCK_LEN: usize = pattern::BLOCK_LEN;
/// Bytes that are compressed for the proof.
const SAMPLE_LEN: usize = 4 << 20;
/// What does not compress keeps this share of its length.
const KEPT_MIN: f64 = 0.98;
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

/// Data to write.
pub(super) struct Data {
    pool: Vec<u8>,
    zeros: Vec<u8>,
    source: String,
}

impl Data {
    /// From a file of the user's, or made from a seed.
    pub(super) fn new(file: Option<&Path>, seed: u64) -> Result<Self> {
        let (pool, source) = match file {
            Some(path) => (read_pool(path)?, path.display().to_string()),
            None => {
                let mut pool = vec![0; POOL_LEN];
                pattern::fill(seed, 0, &mut pool);
                (pool, "generated".to_owned())
            }
        };
        // As long, and touched: zeros that the kernel shares would come from a cache of the processor.
        let mut zeros = vec![1; pool.len()];
        zeros.fill(0);
        Ok(Self { pool, zeros, source })
    }

    /// Makes what lies at `offset`, for the `turn`th time.
    pub(super) fn fill(&self, content: Content, offset: u64, turn: u64, bytes: &mut [u8]) {
        let pool = if content == Content::Zeros { &self.zeros } else { &self.pool };
        let blocks =
            (pool.len() / BLOCK_LEN).saturating_sub(bytes.len().div_ceil(BLOCK_LEN)) as u64;
        let first = (offset / BLOCK_LEN as u64 + turn * SHIFT) % (blocks + 1);
        // Within the pool by the line above.
        let from = usize::try_from(first).unwrap_or_default() * BLOCK_LEN;
        bytes.copy_from_slice(&pool[from..from + bytes.len()]);
        let Content::Marked(seed) = content else { return };
        for (block, at) in bytes.chunks_mut(BLOCK_LEN).zip((offset..).step_by(BLOCK_LEN)) {
            let mark = mark(seed, at);
            block[..8].copy_from_slice(&mark.to_le_bytes());
            block[8..MARK_LEN].copy_from_slice(&pattern::mix(mark ^ turn).to_le_bytes());
        }
    }

    /// Compresses a sample, and fails when it got shorter.
    pub(super) fn prove(&self) -> Result<DataProof> {
        let mut sample = vec![0; SAMPLE_LEN.min(self.pool.len())];
        let len = sample.len();
        self.fill(Content::Marked(1), 0, 0, &mut sample);
        let compressed = compress_to_vec(sample.as_slice(), CompressionLevel::Fastest).len();
        if (compressed as f64) < len as f64 * KEPT_MIN {
            bail!(
                "data of {}: {len} bytes compress to {compressed}, below {:.0}%: a target that compresses would \
                 look fast; give data that is compressed already, or none to have it made",
                self.source,
                KEPT_MIN * 100.0
            );
        }
        let (sample_bytes, compressed_bytes) = (len as u64, compressed as u64);
        let compressor = "zstd (ruzstd, fastest)".to_owned();
        Ok(DataProof { source: self.source.clone(), sample_bytes, compressed_bytes, compressor })
    }
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

fn read_pool(path: &Path) -> Result<Vec<u8>> {
    let shown = || format!("data of {}", path.display());
    let mut pool = Vec::with_capacity(POOL_LEN);
    let file = File::open(path).with_context(shown)?;
    file.take(POOL_LEN as u64).read_to_end(&mut pool).with_context(shown)?;
    if pool.len() < SAMPLE_LEN {
        bail!("{}: has {} bytes, fewer than {SAMPLE_LEN}; give a longer file", shown(), pool.len());
    }
    pool.truncate(pool.len() / BLOCK_LEN * BLOCK_LEN);
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn generated_data_does_not_compress_and_text_does() {
        Data::new(None, 1).unwrap().prove().unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let line = b"the quick brown fox jumps over the lazy dog; ";
        for _ in 0..SAMPLE_LEN / line.len() + 1 {
            file.write_all(line).unwrap();
        }
        let data = Data::new(Some(file.path()), 1).unwrap();
        let error = data.prove().unwrap_err().to_string();
        assert!(error.contains("compress"), "{error}");
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
