use std::time::Duration;

use netraid_block::{Buf, ErrorKind, Op, Pool, RequestFlags};

use super::*;
use crate::{
    backings,
    completions::{self, CompletionQueue},
};

const SIZE: u64 = 1 << 20;

fn volume() -> Device {
    backings::ram(SIZE, 512, Pool::new()).unwrap()
}

fn over(device: &Device, spec: &str) -> Filters {
    Filters::new(device, spec.parse().unwrap()).unwrap()
}

fn bytes(byte: u8) -> SgList {
    Buf::copy_from(&[byte; 4096]).into()
}

fn read(device: &Device, queue: &CompletionQueue, tag: u64) {
    let flags = RequestFlags::default();
    let (data, completion) = (SgList::new(), queue.completion(tag));
    device.submit(Request { op: Op::Read, offset: 0, len: 512, flags, data, completion });
}

#[tokio::test]
async fn a_delay_is_waited_for() {
    let filters = over(&volume(), "delay=30ms");
    let begun = Instant::now();
    completions::write(filters.device(), 0, bytes(7), false).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(30));
    let found = completions::read(filters.device(), 0, 4096).await.unwrap();
    assert_eq!(*found.to_contiguous(), [7; 4096]);
    assert!(begun.elapsed() >= Duration::from_millis(60));
}

#[tokio::test]
async fn requests_wait_at_the_same_time() {
    let filters = over(&volume(), "delay=50ms");
    let (queue, mut ends) = CompletionQueue::channel();
    let begun = Instant::now();
    (0..100).for_each(|tag| read(filters.device(), &queue, tag));
    for wanted in 0..100 {
        let (tag, result) = ends.recv().await.unwrap();
        assert!(result.is_ok());
        assert_eq!(tag, wanted, "equal delays keep the order");
    }
    assert!(begun.elapsed() < Duration::from_millis(50 * 100 / 2));
}

#[tokio::test]
async fn an_error_does_not_reach_the_device() {
    let device = volume();
    let filters = over(&device, "error=100%:write:nospace");
    let error = completions::write(filters.device(), 0, bytes(7), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("filter"), "{error}");
    let found = completions::read(filters.device(), 0, 4096).await.unwrap();
    assert_eq!(*found.to_contiguous(), [0; 4096]);
}

#[tokio::test]
async fn one_bit_of_a_read_is_corrupt_and_the_medium_is_not() {
    let device = volume();
    completions::write(&device, 4096, bytes(0x55), false).await.unwrap();
    let filters = over(&device, "corrupt=100%,range=4096+4096");
    let found = completions::read(filters.device(), 4096, 4096).await.unwrap().to_contiguous();
    let flipped: u32 = found.iter().map(|byte| (byte ^ 0x55).count_ones()).sum();
    assert_eq!(flipped, 1);
    let elsewhere = completions::read(filters.device(), 0, 4096).await.unwrap();
    assert_eq!(*elsewhere.to_contiguous(), [0; 4096]);
    let below = completions::read(&device, 4096, 4096).await.unwrap();
    assert_eq!(*below.to_contiguous(), [0x55; 4096]);
}

#[tokio::test]
async fn what_hangs_is_aborted_when_the_filter_is_taken_away() {
    let mut filters = over(&volume(), "hang=after 2");
    let (queue, mut ends) = CompletionQueue::channel();
    (0..5).for_each(|tag| read(filters.device(), &queue, tag));
    for tag in 0..2 {
        let (ended, result) = ends.recv().await.unwrap();
        assert_eq!(ended, tag);
        assert!(result.is_ok());
    }
    assert!(ends.take().is_none());
    filters.end();
    for tag in 2..5 {
        let (ended, result) = ends.recv().await.unwrap();
        assert_eq!(ended, tag);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Aborted);
    }
    let later = completions::read(filters.device(), 0, 512).await;
    assert!(later.is_ok(), "the device goes on without its filters");
}

#[tokio::test]
async fn what_waits_goes_on_when_the_filter_is_taken_away() {
    let filters = over(&volume(), "delay=3600s,error=100%");
    let device = filters.device().clone();
    let (queue, mut ends) = CompletionQueue::channel();
    (0..3).for_each(|tag| read(&device, &queue, tag));
    drop(filters);
    for _ in 0..3 {
        let (_, result) = ends.recv().await.unwrap();
        assert!(result.is_ok(), "the filters behind it are gone as well");
    }
    assert!(completions::read(&device, 0, 512).await.is_ok());
}

#[tokio::test]
async fn a_rate_is_not_exceeded() {
    let filters = over(&volume(), "rate=10MiB/s");
    let begun = Instant::now();
    let mut done = 0;
    while done < 3 * SIZE {
        done += completions::read(filters.device(), 0, SIZE / 4).await.unwrap().len() as u64;
    }
    // The last piece, and a tenth of a second's bytes, may be ahead.
    let least = Duration::from_millis(300 - 25 - 100);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_trace_has_a_line_for_each_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let spec = format!("trace={},error=100%:flush:device", path.display());
    let filters = over(&volume(), &spec);
    completions::write(filters.device(), 4096, bytes(1), true).await.unwrap();
    completions::read(filters.device(), 0, 512).await.unwrap();
    completions::flush(filters.device()).await.unwrap_err();
    drop(filters);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let told = lines.iter().map(|line| (line[1], line[2], line[3], line[4], line[6]));
    let told: Vec<_> = told.collect();
    let wanted = [
        ("op", "offset", "len", "fua", "result"),
        ("write", "4096", "4096", "1", "ok"),
        ("read", "0", "512", "0", "ok"),
        ("flush", "0", "0", "0", "device"),
    ];
    assert_eq!(told, wanted);
}

#[tokio::test]
async fn a_trace_to_the_file_of_one_that_still_runs_loses_no_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let spec = format!("trace={}", path.display());
    let device = volume();
    let first = over(&device, &spec);
    completions::read(first.device(), 0, 512).await.unwrap();
    let second = over(&device, &spec);
    completions::read(first.device(), 512, 512).await.unwrap();
    drop(first);
    completions::read(second.device(), 1024, 512).await.unwrap();
    drop(second);
    let text = std::fs::read_to_string(&path).unwrap();
    let offsets: Vec<_> = text.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(offsets, ["offset", "0", "512", "offset", "1024"]);
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_by_name() {
    let spec = "trace=/nonexistent/trace".parse().unwrap();
    let error = Filters::new(&volume(), spec).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/trace"), "{error}");
}

#[test]
fn a_trace_to_a_pipe_is_refused_and_waits_for_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let refused = || {
        let spec = format!("trace={}", path.display()).parse().unwrap();
        Filters::new(&volume(), spec).unwrap_err().to_string()
    };
    assert!(refused().contains("no regular file"), "{}", refused());
    // The same while somebody has it open.
    let _reader = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    assert!(refused().contains("no regular file"), "{}", refused());
}
