use std::sync::{
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use super::*;

/// What a stream does with what it is given.
#[derive(Debug, Default)]
struct Stream {
    taken: Mutex<Vec<u8>>,
    /// Takes nothing, and says so.
    is_full: AtomicBool,
    /// Takes so many bytes of the next piece, and then is full.
    takes_then_full: Mutex<Option<usize>>,
    /// Nothing is taken, and nothing said.
    stands_still: Mutex<bool>,
    goes_on: Condvar,
}

impl Stream {
    fn text(&self) -> String {
        String::from_utf8(self.taken.lock().unwrap().clone()).unwrap()
    }

    fn stand_still(&self, is_still: bool) {
        *self.stands_still.lock().unwrap() = is_still;
        self.goes_on.notify_all();
    }
}

struct Sink(Arc<Stream>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let still = self.0.stands_still.lock().unwrap();
        drop(self.0.goes_on.wait_while(still, |still| *still).unwrap());
        if self.0.is_full.load(Ordering::SeqCst) {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut len = bytes.len();
        if let Some(part) = self.0.takes_then_full.lock().unwrap().take() {
            self.0.is_full.store(true, Ordering::SeqCst);
            len = part;
        }
        self.0.taken.lock().unwrap().extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start() -> (Arc<Stream>, Lines) {
    let stream = Arc::new(Stream::default());
    let lines = Lines::start(Sink(stream.clone()), None, says_lost);
    (stream, lines)
}

/// Waits until what is awaited is there.
fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(20), "it never came");
        thread::sleep(Duration::from_millis(2));
    }
}

/// How many lines a text has, and how many it says that it lacks.
fn count(text: &str) -> (u64, u64) {
    let mut counts = (0, 0);
    for line in text.lines() {
        match line.strip_suffix(" lines could not be written here") {
            Some(lost) => counts.1 += lost.trim_start_matches("netraid: ").parse::<u64>().unwrap(),
            None => counts.0 += 1,
        }
    }
    counts
}

#[test]
fn a_reader_that_stands_still_costs_lines_and_neither_time_nor_memory() {
    let (stream, lines) = start();
    stream.stand_still(true);
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200_000 {
                lines.push(format!("line {number} of a log that nobody reads\n").as_bytes());
            }
            sender.send(()).unwrap();
        });
        done.recv_timeout(Duration::from_secs(20)).expect("writers wait for the reader");
    });
    let waiting = lines.shared.lock().backlog.bytes;
    assert!(waiting <= WAITING_MAX + 2 * size_of::<Line>(), "{waiting} bytes wait");
    let began = Instant::now();
    lines.finish();
    assert!(began.elapsed() < Duration::from_secs(3), "the end waits for the reader");
    stream.stand_still(false);
    lines.finish();
    let (written, lost) = count(&stream.text());
    assert_eq!((written + lost, lost > 0), (200_000, true), "{written} and {lost}");
}

#[test]
fn lines_that_a_full_disk_did_not_take_are_counted_and_said_once_it_does() {
    let (stream, lines) = start();
    lines.push(b"one\n");
    lines.finish();
    stream.is_full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        lines.push(b"lost\n");
        lines.finish();
    }
    stream.is_full.store(false, Ordering::SeqCst);
    lines.push(b"two\n");
    lines.finish();
    assert_eq!(stream.text(), "one\nnetraid: 3 lines could not be written here\ntwo\n");
}

#[test]
fn a_line_that_was_cut_off_is_ended_before_the_next_one() {
    let (stream, lines) = start();
    *stream.takes_then_full.lock().unwrap() = Some(4);
    lines.push(b"cut off\n");
    lines.finish();
    until(|| !lines.shared.lock().is_writing);
    lines.push(b"lost\n");
    lines.finish();
    until(|| !lines.shared.lock().is_writing);
    stream.is_full.store(false, Ordering::SeqCst);
    lines.push(b"whole\n");
    lines.finish();
    assert_eq!(stream.text(), "cut \nnetraid: 2 lines could not be written here\nwhole\n");
}

#[test]
fn what_there_was_no_room_for_is_said_in_its_place() {
    let mut backlog = Backlog::default();
    let large = vec![b'x'; WAITING_MAX / 2];
    backlog.push(&large, false);
    backlog.push(b"kept\n", false);
    backlog.push(&large, false);
    backlog.push(&large, false);
    backlog.push(b"kept\n", false);
    let mut text = String::new();
    while !backlog.is_empty() {
        text += &String::from_utf8(backlog.take(0, says_lost).bytes).unwrap();
    }
    let rest = text.trim_start_matches('x');
    assert_eq!(rest, "kept\nnetraid: 2 lines could not be written here\nkept\n");
    assert_eq!(backlog.bytes, 0);
}

#[test]
fn one_line_larger_than_all_room_is_written_when_nothing_waits() {
    let (stream, lines) = start();
    let mut line = vec![b'x'; 3 * WAITING_MAX];
    line.push(b'\n');
    lines.push(&line);
    lines.finish();
    assert_eq!(stream.text().len(), line.len());
}

#[test]
fn bars_give_way_to_lines_and_are_not_missed() {
    let (stream, lines) = start();
    stream.stand_still(true);
    lines.push(b"taken\n");
    until(|| lines.shared.lock().is_writing && lines.shared.lock().backlog.is_empty());
    lines.push(&vec![b'x'; REDRAWN_MAX]);
    for _ in 0..1000 {
        lines.redraw(b"\rbar");
    }
    assert!(!lines.shared.lock().backlog.is_empty());
    stream.stand_still(false);
    lines.finish();
    assert!(!stream.text().contains("could not be written"), "{}", stream.text());
}

#[test]
fn the_log_shows_no_secret_of_an_address_that_it_quotes() {
    let shown =
        |line: &'static str| String::from_utf8(without_secrets(line.as_bytes()).into()).unwrap();
    assert_eq!(
        shown(" WARN lost address=nbd://joe:secret@h:1/x peer=[::1]:7\n"),
        " WARN lost address=nbd://joe:***@h:1/x peer=[::1]:7\n"
    );
    let plain = " WARN login refused peer=127.0.0.1:36974 initiator=\"iqn.2026-01.x:y\"\n";
    assert_eq!(shown(plain), plain);
    assert_eq!(*without_secrets(b"\xff@"), *b"\xff@");
}

#[test]
fn where_there_is_no_thread_the_end_writes_what_waits() {
    let stream = Arc::new(Stream::default());
    let lines = Lines {
        shared: Arc::default(),
        sink: Mutex::new(Some(super::Sink { write: Box::new(Sink(stream.clone())), stream: None })),
        says: says_lost,
    };
    lines.push(b"one\n");
    lines.push(b"two\n");
    lines.finish();
    assert_eq!(stream.text(), "one\ntwo\n");
    stream.is_full.store(true, Ordering::SeqCst);
    lines.push(b"three\n");
    lines.finish();
    stream.is_full.store(false, Ordering::SeqCst);
    lines.push(b"four\n");
    lines.finish();
    let said = "one\ntwo\nnetraid: 1 lines could not be written here\nfour\n";
    assert_eq!(stream.text(), said);
}

#[test]
fn without_a_thread_the_end_does_not_wait_for_a_reader_that_stands_still_either() {
    for is_blocking in [true, false] {
        let (mut reader, writer) = io::pipe().unwrap();
        let stream = writer.as_fd().try_clone_to_owned().unwrap();
        rustix::io::ioctl_fionbio(&writer, !is_blocking).unwrap();
        let sink = super::Sink { write: Box::new(writer), stream: Some(stream) };
        let (shared, sink) = (Arc::new(Shared::default()), Mutex::new(Some(sink)));
        let lines = Lines { shared, sink, says: says_lost };
        let line = vec![b'x'; 1000];
        // More than a pipe holds.
        (0..200).for_each(|_| lines.push(&line));
        let (sender, done) = mpsc::channel();
        let ended = thread::spawn(move || {
            lines.finish();
            sender.send(()).unwrap();
            lines
        });
        done.recv_timeout(Duration::from_secs(20)).expect("the end waits for the reader");
        drop(ended.join().unwrap());
        let mut taken = Vec::new();
        io::Read::read_to_end(&mut reader, &mut taken).unwrap();
        assert!(taken.len() >= PIPE_LEN && taken.len() < 200_000, "{} bytes", taken.len());
    }
}
