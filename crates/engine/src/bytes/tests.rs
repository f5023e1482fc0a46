use std::sync::{Mutex, mpsc};

use netraid_block::{BlockDevice, Buf};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const CAPACITY: usize = 64 << 10;

/// Plain bytes; requests end on another thread and out of order.
struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    sender: Mutex<mpsc::Sender<Request>>,
}

fn memory() -> (Device, Arc<Mutex<Vec<u8>>>) {
    let bytes = Arc::new(Mutex::new(vec![0; CAPACITY]));
    let (sender, receiver) = mpsc::channel::<Request>();
    let store = bytes.clone();
    std::thread::spawn(move || {
        let mut rng = StdRng::seed_from_u64(3);
        while let Ok(first) = receiver.recv() {
            let mut batch = vec![first];
            batch.extend(receiver.try_iter());
            while !batch.is_empty() {
                let request = batch.swap_remove(rng.random_range(0..batch.len()));
                let result = apply(&store, &request);
                request.completion.finish(Ok(result));
            }
        }
    });
    let device = Device::new(Arc::new(Memory { bytes: bytes.clone(), sender: Mutex::new(sender) }));
    (device, bytes)
}

fn apply(store: &Mutex<Vec<u8>>, request: &Request) -> SgList {
    let mut bytes = store.lock().unwrap();
    let range: Range<usize> = narrow(request.offset)..narrow(request.offset + request.len);
    match request.op {
        Op::Read => return Buf::copy_from(&bytes[range]).into(),
        Op::Write => request.data.copy_to(&mut bytes[range]),
        Op::WriteZeroes | Op::Discard => bytes[range].fill(0),
        Op::Flush | Op::Extents => {}
    }
    SgList::new()
}

impl BlockDevice for Memory {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            capacity: self.bytes.lock().unwrap().len() as u64,
            block_len: 512,
            optimal_len: 512,
            max_transfer_len: 2048,
            read_only: false,
            volatile_cache: false,
            can_discard: true,
            can_map: false,
        }
    }

    fn submit(&self, request: Request) {
        self.sender.lock().unwrap().send(request).unwrap();
    }
}

type End = (u64, Result<SgList, IoError>);

struct Ends(Mutex<mpsc::Sender<End>>);

impl Complete for Ends {
    fn complete(&self, tag: u64, result: Result<SgList, IoError>) {
        self.0.lock().unwrap().send((tag, result)).unwrap();
    }
}

fn port(device: &ByteDevice) -> (Port, mpsc::Receiver<End>) {
    let (sender, receiver) = mpsc::channel();
    (device.port(Arc::new(Ends(Mutex::new(sender)))), receiver)
}

fn request(op: Op, range: Range<usize>, data: SgList) -> ByteRequest {
    let (offset, len) = (range.start as u64, range.len() as u64);
    ByteRequest { op, offset, len, flags: RequestFlags::default(), data }
}

#[test]
fn any_range_reads_and_writes_as_flat_bytes() {
    let (device, bytes) = memory();
    let (port, ends) = port(&ByteDevice::new(device));
    let mut rng = StdRng::seed_from_u64(1);
    let mut model = vec![0; CAPACITY];
    for tag in 0..3000 {
        let start = rng.random_range(0..CAPACITY);
        let len = rng.random_range(0..=(CAPACITY - start).min(9000));
        let round = if rng.random_bool(0.3) { 512 } else { 1 };
        let range = start / round * round..(start + len) / round * round;
        match rng.random_range(0..4) {
            0 => {
                port.submit(request(Op::Read, range.clone(), SgList::new()), tag);
                let (end, result) = ends.recv().unwrap();
                assert_eq!(end, tag);
                assert!(*result.unwrap().to_contiguous() == model[range]);
                continue;
            }
            1 | 2 => {
                let data: Vec<u8> = range.clone().map(|_| rng.random()).collect();
                model[range.clone()].copy_from_slice(&data);
                port.submit(request(Op::Write, range, Buf::copy_from(&data).into()), tag);
            }
            _ => {
                model[range.clone()].fill(0);
                port.submit(request(Op::WriteZeroes, range, SgList::new()), tag);
            }
        }
        let (end, result) = ends.recv().unwrap();
        assert_eq!(end, tag);
        result.unwrap();
    }
    assert!(*bytes.lock().unwrap() == model);
}

#[test]
fn neighbours_in_a_block_do_not_undo_each_other() {
    let (device, bytes) = memory();
    let device = ByteDevice::new(device);
    // Each thread owns every fourth piece of a few blocks; some pieces are whole blocks.
    let threads: Vec<_> = (0..4_usize)
        .map(|owner| {
            let (port, ends) = port(&device);
            std::thread::spawn(move || {
                let mut rng = StdRng::seed_from_u64(owner as u64);
                for round in 0..200_u64 {
                    let mut sent = 0;
                    for place in 0..8_usize {
                        let range = if place == 7 {
                            4096 + owner * 512..4096 + (owner + 1) * 512
                        } else {
                            let start = (place * 4 + owner) * 100;
                            start..start + 100
                        };
                        if rng.random_bool(0.7) || round == 199 {
                            let fill = (round % 250) as u8 + 1;
                            let data = Buf::copy_from(&vec![fill; range.len()]);
                            port.submit(request(Op::Write, range, data.into()), place as u64);
                            sent += 1;
                        }
                    }
                    (0..sent).for_each(|_| drop(ends.recv().unwrap().1.unwrap()));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let bytes = bytes.lock().unwrap();
    assert!(bytes[..2800].iter().all(|byte| *byte == 200), "an update was lost");
    assert!(bytes[4096..6144].iter().all(|byte| *byte == 200));
}

#[test]
fn a_partial_write_does_not_undo_a_whole_one_beside_it() {
    let (device, bytes) = memory();
    let (port, ends) = port(&ByteDevice::new(device));
    for round in 0..500_u64 {
        let fill = (round % 250) as u8 + 1;
        let whole = Buf::copy_from(&[fill; 512]);
        let partial = Buf::copy_from(&[255; 100]);
        // Both are under way at once, in either order.
        let mut writes = [(0..512, whole), (0..100, partial)];
        if round % 2 == 0 {
            writes.reverse();
        }
        for (range, data) in writes {
            port.submit(request(Op::Write, range, data.into()), 0);
        }
        (0..2).for_each(|_| drop(ends.recv().unwrap().1.unwrap()));
        let bytes = bytes.lock().unwrap();
        assert!(bytes[100..512].iter().all(|byte| *byte == fill), "round {round}");
    }
}

#[test]
fn a_discard_keeps_partial_blocks() {
    let (device, bytes) = memory();
    let (port, ends) = port(&ByteDevice::new(device));
    bytes.lock().unwrap().fill(1);
    port.submit(request(Op::Discard, 100..1600, SgList::new()), 1);
    ends.recv().unwrap().1.unwrap();
    port.submit(request(Op::Discard, 2100..2500, SgList::new()), 2);
    ends.recv().unwrap().1.unwrap();
    let bytes = bytes.lock().unwrap();
    let zeros: Vec<_> = (0..CAPACITY).filter(|at| bytes[*at] == 0).collect();
    assert_eq!((zeros[0], zeros.len()), (512, 1024));
}

#[test]
fn ranges_past_the_end_are_refused() {
    let (device, _) = memory();
    let (port, ends) = port(&ByteDevice::new(device));
    for (offset, len) in [(CAPACITY as u64, 1), (u64::MAX, 2), (CAPACITY as u64 - 1, 2)] {
        for op in [Op::Read, Op::WriteZeroes, Op::Discard] {
            let flags = RequestFlags::default();
            port.submit(ByteRequest { op, offset, len, flags, data: SgList::new() }, 0);
            assert_eq!(ends.recv().unwrap().1.unwrap_err().kind(), ErrorKind::OutOfRange);
        }
    }
}
