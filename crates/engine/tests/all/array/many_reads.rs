//! More large reads at a time than move at once: some wait for others.

use netraid_block::{RequestFlags, SgList};
use netraid_engine::completions::{Completed, CompletionQueue, CompletionReceiver};

use super::*;

const LEN: u64 = 1 << 20;
const DEPTH: u64 = 24;
/// So many are under way; the others wait.
const BOUNDED: u64 = 4;
const COUNT: u64 = 100;

struct Reader {
    device: Device,
    queue: CompletionQueue,
    ends: CompletionReceiver,
}

impl Reader {
    fn new(array: &Array) -> Self {
        let (queue, ends) = CompletionQueue::channel();
        Self { device: array.device().clone(), queue, ends }
    }

    fn offset(&self, number: u64) -> u64 {
        number % (self.device.info().capacity / LEN) * LEN
    }

    fn begin(&self, number: u64) {
        let (flags, data) = (RequestFlags::default(), SgList::new());
        let (offset, completion) = (self.offset(number), self.queue.completion(number));
        self.device.submit(Request { op: Op::Read, offset, len: LEN, flags, data, completion });
    }

    async fn end(&mut self) -> Completed {
        let end = tokio::time::timeout(Duration::from_secs(30), self.ends.recv()).await;
        end.expect("a read waits for ever").unwrap()
    }

    /// So many in all, and so many under way at the end.
    async fn run(&mut self, all: &[u8]) {
        (0..DEPTH).for_each(|number| self.begin(number));
        for next in DEPTH..COUNT + DEPTH {
            let (number, result) = self.end().await;
            let at = usize::try_from(self.offset(number)).unwrap();
            let read = result.unwrap().to_contiguous();
            assert!(*read == all[at..at + read.len()], "read {number} has other bytes");
            self.begin(next);
        }
    }

    /// How those under way end.
    async fn rest(&mut self) -> Vec<bool> {
        let mut rest = Vec::new();
        for _ in 0..DEPTH {
            rest.push(self.end().await.1.is_ok());
        }
        rest
    }
}

async fn array_of(count: usize, log: Log) -> (Vec<Member>, Array, Vec<u8>) {
    let (targets, configs) = members(count).await;
    create(CreateOptions { log, ..options(Level::Raid5) }, configs.clone(), Pool::new())
        .await
        .unwrap();
    let options = OpenOptions { reads_under_way: Some(BOUNDED * LEN), ..OpenOptions::default() };
    let array = Array::open(options, configs.clone(), Pool::new()).await.unwrap();
    write(array.device(), 1).await;
    let all = contents(1, usize::try_from(array.device().info().capacity).unwrap());
    (targets, array, all)
}

#[tokio::test]
async fn reads_that_wait_have_their_bytes_and_end_when_the_array_closes() {
    for log in [Log::Off, Log::On(Some(4 << 20))] {
        let (_targets, array, all) = array_of(4, log).await;
        let mut reader = Reader::new(&array);
        reader.run(&all).await;
        array.close().await.unwrap();
        reader.rest().await;
    }
}

#[tokio::test]
async fn reads_that_wait_end_with_an_array_that_fails() {
    let (mut targets, array, all) = array_of(4, Log::Off).await;
    let mut reader = Reader::new(&array);
    reader.run(&all).await;
    for target in &mut targets {
        target.kill().await;
    }
    // Those whose data had come are well.
    assert!(reader.rest().await.contains(&false));
    array.close().await.unwrap_err();
}
