//! What is done to bytes: the one place that combines, slices and hands them on, for the driver
//! and the simulator alike. The machine names buffers; here they are.

use alloc::{collections::BTreeMap, vec::Vec};

use netraid_block::{Buf, Pool, SgList};

use crate::array::{BufferId, RequestId, Source};

/// Buffers of an array, and the data of its users' writes.
#[derive(Debug)]
pub struct Executor {
    pool: Pool,
    buffers: Vec<Option<SgList>>,
    requests: BTreeMap<RequestId, SgList>,
}

impl Executor {
    /// An executor that takes its buffers from `pool`.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool, buffers: Vec::new(), requests: BTreeMap::new() }
    }

    /// Takes the data of a user's write, until [`Self::end_request`].
    pub fn begin_request(&mut self, request: RequestId, data: SgList) {
        self.requests.insert(request, data);
    }

    /// Forgets the data of a user's write.
    pub fn end_request(&mut self, request: RequestId) {
        self.requests.remove(&request);
    }

    /// Puts what was read into the buffers that follow each other on the member.
    ///
    /// # Panics
    /// When the lengths do not add up.
    pub fn fill(&mut self, parts: &[(BufferId, u32)], data: &SgList) {
        let total: usize = parts.iter().map(|(_, len)| *len as usize).sum();
        assert_eq!(total, data.len(), "a read of another length");
        let mut at = 0;
        for (buffer, len) in parts {
            let end = at + *len as usize;
            self.put(*buffer, data.slice(at..end));
            at = end;
        }
    }

    /// Forgets a buffer.
    pub fn free(&mut self, buffer: BufferId) {
        if let Some(slot) = self.buffers.get_mut(buffer.0) {
            *slot = None;
        }
    }

    /// Sets `into` to the XOR of `sources`, each of `len` bytes.
    ///
    /// # Panics
    /// When a source has another length or does not exist.
    pub fn xor(&mut self, into: BufferId, len: u32, sources: &[Source]) {
        let len = len as usize;
        let lists: Vec<SgList> = sources.iter().map(|source| self.resolve(*source)).collect();
        assert!(lists.iter().all(|list| list.len() == len), "sources of one length");
        let mut sum = self.pool.get(len);
        if lists.iter().all(|list| list.parts().len() == 1) {
            let slices: Vec<&[u8]> = lists.iter().map(|list| &*list.parts()[0]).collect();
            netraid_parity::xor(&mut sum, &slices);
        } else {
            let whole: Vec<Buf> = lists.iter().map(SgList::to_contiguous).collect();
            let slices: Vec<&[u8]> = whole.iter().map(|buf| &**buf).collect();
            netraid_parity::xor(&mut sum, &slices);
        }
        self.put(into, sum.freeze().into());
    }

    /// The bytes of `sources`, in order, sharing memory.
    ///
    /// # Panics
    /// When a source does not exist.
    #[must_use]
    pub fn gather(&self, sources: &[Source]) -> SgList {
        let mut list = SgList::new();
        sources.iter().for_each(|source| list.append(self.resolve(*source)));
        list
    }

    fn resolve(&self, source: Source) -> SgList {
        let range = |offset: u32, len: u32| offset as usize..offset as usize + len as usize;
        match source {
            Source::Request { request, offset, len } => match self.requests.get(&request) {
                Some(data) => data.slice(range(offset, len)),
                None => unreachable!("data of a request that has ended"),
            },
            Source::Buffer { buffer, offset, len } => match self.buffers.get(buffer.0) {
                Some(Some(data)) => data.slice(range(offset, len)),
                Some(None) | None => unreachable!("a buffer that was never filled"),
            },
            Source::Zeroes { len } => SgList::zeroes(len as usize),
        }
    }

    fn put(&mut self, buffer: BufferId, data: SgList) {
        if self.buffers.len() <= buffer.0 {
            self.buffers.resize(buffer.0 + 1, None);
        }
        self.buffers[buffer.0] = Some(data);
    }
}
