//! Named bytes for programs without an async runtime.

use std::io::{BufReader, BufWriter, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};

use crate::common::{House, bytes, data};
use netraid_cluster::mediator::Mode;
use netraid_files::blocking::File;

fn house() -> (tokio::runtime::Runtime, House) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let house = runtime.block_on(House::new(3));
    (runtime, house)
}

#[test]
fn a_file_reads_writes_and_seeks() {
    let (runtime, house) = house();
    let access = house.access();
    let all = bytes(1, 0, 5_000_001);
    let mut writing = File::create(&access, &data("/d/x", 6_000_000, 5, 3)).unwrap();
    // More than one request takes.
    writing.write_all(&all).unwrap();
    writing.flush().unwrap();
    assert_eq!(writing.length(), 5_000_001);
    writing.seek(SeekFrom::Start(17)).unwrap();
    writing.write_all(b"seventeen").unwrap();
    assert_eq!(writing.stream_position().unwrap(), 26);
    // Beyond what there can be.
    writing.seek(SeekFrom::Start(1 << 30)).unwrap();
    writing.write_all(b"x").unwrap_err();
    writing.close().unwrap();

    let mut expected = all;
    expected[17..26].copy_from_slice(b"seventeen");
    let mut reading = File::open(&access, "/d/x", Mode::Read).unwrap();
    let mut found = Vec::new();
    reading.read_to_end(&mut found).unwrap();
    assert!(found == expected);
    reading.rewind().unwrap();
    let mut some = [0; 9];
    reading.seek(SeekFrom::Start(17)).unwrap();
    reading.read_exact(&mut some).unwrap();
    assert_eq!(&some, b"seventeen");
    reading.seek(SeekFrom::End(-3)).unwrap();
    assert_eq!(reading.read_exact(&mut some).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    reading.seek(SeekFrom::Current(-5_000_002)).unwrap_err();
    reading.write_all(b"x").unwrap_err();
    reading.close().unwrap();
    File::open(&access, "/d/none", Mode::Read).unwrap_err();
    runtime.block_on(house.nothing_is_open());
}

#[test]
fn lines_go_through_buffers_and_what_is_dropped_is_closed() {
    let (runtime, house) = house();
    let access = house.access();
    {
        let file = File::create(&access, &data("/lines", 1 << 20, 1, 2)).unwrap();
        let mut writing = BufWriter::new(file);
        for number in 0..10_000 {
            writeln!(writing, "line {number}").unwrap();
        }
        writing.flush().unwrap();
    }
    runtime.block_on(house.nothing_is_open());
    let reading = BufReader::new(File::open(&access, "/lines", Mode::Read).unwrap());
    let lines = std::io::BufRead::lines(reading);
    let count = lines.enumerate().map(|(number, line)| {
        assert_eq!(line.unwrap(), format!("line {number}"));
    });
    assert_eq!(count.count(), 10_000);
    runtime.block_on(house.nothing_is_open());
}
