//! Anything in any order, held against what a disk may hold.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const SEEDS: u64 = 300;
const STEPS: u32 = 250;
/// Blocks of the disk here.
const SMALL: usize = 512;
/// Small requests are for the first of them, large ones for the rest.
const NEAR: u64 = 12;
const HOSTS: [&str; 2] = ["a", "b"];

/// What a block may hold: the numbers of what was written there, and 0.
#[derive(Debug, Clone)]
struct Place {
    now: BTreeSet<u32>,
    /// What it may hold after the cache was lost.
    stable: BTreeSet<u32>,
}

/// A request that has not ended.
struct Asked {
    op: Op,
    block: u64,
    blocks: u64,
    fua: bool,
    /// How often the cache was lost when it was asked for.
    losses: u64,
    /// What a flush may make stable.
    flushed: Vec<BTreeSet<u32>>,
}

/// How often something came about: a test that never gets there shows nothing.
#[derive(Debug, Default)]
struct Counts {
    done: u64,
    failed: u64,
    timeouts: u64,
    fenced: u64,
    losses: u64,
    reconnects: u64,
    read: u64,
    aborts: u64,
}

struct Any {
    rng: StdRng,
    world: World,
    places: Vec<Place>,
    asked: BTreeMap<u32, Asked>,
    losses: u64,
    next_order: u64,
    /// Registrations survive a restart.
    is_persistent: bool,
    counts: Counts,
}

impl Any {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let sessions = rng.random_range(1..=3);
        let portals = rng.random_range(1..=2);
        let (asks, dpofua, unmaps) = (rng.random(), rng.random(), rng.random());
        let takes_over = rng.random_ratio(1, 8);
        let (write_cache, is_persistent) = (rng.random_ratio(3, 4), rng.random_ratio(7, 8));
        let world = World::opened_with(|settings, target| {
            settings.portals = HOSTS[..portals].iter().map(|host| portal(host)).collect();
            (settings.sessions, settings.takes_over) = (sessions, takes_over);
            target.medium = Medium::new(SMALL);
            target.medium.dpofua = dpofua;
            target.medium.unmaps = unmaps;
            target.medium.write_cache = write_cache;
            target.asks = Some(4096).filter(|_| asks);
        });
        let zero = BTreeSet::from([0]);
        let place = Place { now: zero.clone(), stable: zero };
        let mut any = Self {
            rng,
            world,
            places: vec![place; SMALL],
            asked: BTreeMap::new(),
            losses: 0,
            next_order: 0,
            is_persistent,
            counts: Counts::default(),
        };
        if any.rng.random() {
            any.world.register(7);
            any.world.target.medium.is_reserved = any.rng.random();
        }
        any
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.do_something();
            if self.rng.random_ratio(2, 3) {
                self.world.drive();
            }
            self.hear();
        }
        self.heal();
        if self.rng.random_ratio(3, 4) {
            self.read_all();
        } else {
            self.ask();
        }
        self.close();
    }

    fn do_something(&mut self) {
        match self.rng.random_range(0..100) {
            0..45 => self.ask(),
            45..65 => self.pass(),
            65..75 => self.let_go(),
            75..90 => self.change_target(),
            90..96 => self.break_something(),
            96 => self.leave_a_write(),
            _ => self.order(),
        }
    }

    fn place(&mut self) -> usize {
        self.rng.random_range(0..self.world.lines.len())
    }

    fn ask(&mut self) {
        let op = match self.rng.random_range(0..12) {
            0..4 => Op::Read,
            4..8 => Op::Write,
            8 | 9 => Op::Flush,
            10 => Op::Discard,
            _ => Op::WriteZeroes,
        };
        let is_near = self.rng.random_ratio(5, 6);
        let blocks = self.rng.random_range(1..=if is_near { 3 } else { 160 });
        let first = if is_near { 0 } else { NEAR };
        let end = if is_near { NEAR } else { SMALL as u64 };
        let block = self.rng.random_range(first..=end - blocks);
        let (block, blocks) = if op == Op::Flush { (0, 0) } else { (block, blocks) };
        let fua = matches!(op, Op::Write | Op::WriteZeroes) && self.rng.random_ratio(1, 3);
        // Who writes what somebody reads or writes meanwhile may expect nothing.
        let meets = |other: &Asked| {
            let apart = other.block >= block + blocks || block >= other.block + other.blocks;
            !(apart || op == Op::Read && other.op == Op::Read)
        };
        if !self.asked.values().any(meets) {
            self.ask_for(op, block, blocks, fua);
        }
    }

    fn ask_for(&mut self, op: Op, block: u64, blocks: u64, fua: bool) -> u32 {
        let number = self.world.next_user + 1;
        let data = if op == Op::Write { stamped(number, blocks) } else { Vec::new() };
        let flushed = match op {
            Op::Flush => self.places.iter().map(|place| place.now.clone()).collect(),
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes | Op::Extents => Vec::new(),
        };
        let losses = self.losses;
        let user = self.next_request(op, block, blocks, fua, data);
        self.asked.insert(user, Asked { op, block, blocks, fua, losses, flushed });
        user
    }

    fn next_request(&mut self, op: Op, block: u64, blocks: u64, fua: bool, data: Vec<u8>) -> u32 {
        self.world.request(op, block * BLOCK, blocks * BLOCK, fua, data)
    }

    fn pass(&mut self) {
        let time = match self.rng.random_range(0..10) {
            0..4 => MILLI,
            4..6 => 12 * MILLI,
            6 => 150 * MILLI,
            7 => SECOND / 2,
            8 => 2 * SECOND,
            _ => 5 * SECOND,
        };
        self.world.pass(time);
    }

    /// Something goes on that was held.
    fn let_go(&mut self) {
        let place = self.place();
        match self.rng.random_range(0..10) {
            0 => self.world.target.holds.clear(),
            7..10 => self.mend(),
            1 => self.world.target.carry_out_orphans(),
            2 => drop(self.world.connect(place)),
            3 => self.answer_aborts(place),
            4 => drop(self.world.transmit(place)),
            5 => drop(self.world.deliver(place)),
            _ => self.carry_out(place),
        }
    }

    fn answer_aborts(&mut self, place: usize) {
        if let Line::Open(conn) = &mut self.world.lines[place] {
            conn.answer_aborts(&self.world.target);
        }
    }

    /// One command is carried out, and perhaps not answered.
    fn carry_out(&mut self, place: usize) {
        let is_silent = self.rng.random();
        let pick: usize = self.rng.random_range(0..64);
        let Line::Open(conn) = &mut self.world.lines[place] else { return };
        if conn.tasks.is_empty() {
            return;
        }
        let at = pick % conn.tasks.len();
        if !conn.tasks[at].is_whole() || conn.tasks[at].is_carried_out {
            return;
        }
        if is_silent && conn.tasks[at].cdb[0] == WRITE {
            let task = &mut conn.tasks[at];
            let told = self.world.target.medium.attentions.get(&conn.isid);
            if told.is_some_and(|told| told.is_empty()) {
                self.world.target.medium.execute(conn.isid, &task.cdb, &task.data);
                (task.is_stuck, task.is_carried_out) = (true, true);
            }
        } else {
            conn.carry_out(&mut self.world.target, at);
        }
    }

    /// The target does something else from now on.
    fn change_target(&mut self) {
        let opcodes = [READ, WRITE, FLUSH, UNMAP, WRITE_SAME, RESERVE_OUT, READY, INQUIRY];
        let opcode = opcodes[self.rng.random_range(0..opcodes.len())];
        let host = HOSTS[self.rng.random_range(0..HOSTS.len())];
        let times = self.rng.random_range(1..=3);
        match self.rng.random_range(0..12) {
            0..4 => self.world.target.holds.push(opcode),
            4 => {
                let doors = [Door::Refuses, Door::Lost, Door::Mute, Door::Denies(0x0201)];
                let door = doors[self.rng.random_range(0..doors.len())].clone();
                self.world.set_door(host, door);
            }
            5 | 6 => self.world.target.doors.clear(),
            7 => {
                let ways = [None, Some(TaskResponseCode::Unsupported)];
                self.world.target.aborts = ways[self.rng.random_range(0..ways.len())];
            }
            8 => self.world.target.aborts = Some(TaskResponseCode::Complete),
            9 => self.world.is_slow = self.rng.random(),
            10 => self.world.target.is_silent = self.rng.random_ratio(1, 3),
            _ => {
                let answer = self.refusal();
                self.world.target.refuse(opcode, times, answer);
            }
        }
    }

    fn refusal(&mut self) -> Answer {
        match self.rng.random_range(0..7) {
            0 => Answer::status(Scsi::Busy),
            1 => Answer::status(Scsi::TaskAborted),
            2 => Answer::deferred(),
            3 => Answer::attention(Additional::CAPACITY_DATA_CHANGED),
            4 => Answer::status(Scsi::ReservationConflict),
            5 => Answer::sense(SenseKey::MediumError, Additional::WRITE_ERROR),
            _ => Answer::unknown(),
        }
    }

    fn break_something(&mut self) {
        let place = self.place();
        match self.rng.random_range(0..24) {
            0..8 if self.world.is_connected(place) => self.world.cut(place),
            0..8 => {}
            8..11 => self.lose_cache(),
            11..14 => self.restart(),
            14..17 if self.world.is_connected(place) => {
                // Somebody else has them aborted, and nobody is told (TAS 0).
                let isid = self.world.conn(place).isid;
                self.world.conn(place).tasks.clear();
                if let Some(told) = self.world.target.medium.attentions.get_mut(&isid) {
                    told.push_back(Additional::COMMANDS_CLEARED_BY_ANOTHER);
                }
            }
            14..17 => {}
            17..19 => self.world.target.medium.remembers = self.rng.random(),
            19..22 if self.world.is_connected(place) && self.world.conn(place).is_full => {
                self.world.conn(place).ask_for_logout();
            }
            19..22 => {}
            22 if self.rng.random_ratio(1, 4) => self.world.target.medium.take_over(),
            _ => self.world.target.medium.tell(Additional::RESERVATIONS_RELEASED),
        }
    }

    fn restart(&mut self) {
        let registrations = self.world.target.medium.registrations.clone();
        self.world.restart();
        if self.is_persistent {
            self.world.target.medium.registrations = registrations;
        }
    }

    /// A write gets no answer, and may land late: its session is lost, or it is given up, and not aborted.
    fn leave_a_write(&mut self) {
        self.mend();
        self.world.drive();
        self.world.target.holds.push(WRITE);
        let block = self.rng.random_range(0..NEAR);
        self.hear();
        if self
            .asked
            .values()
            .any(|other| other.block <= block && block < other.block + other.blocks)
        {
            return;
        }
        let write = self.ask_for(Op::Write, block, 1, false);
        self.world.drive();
        self.world.stick();
        if self.rng.random() {
            self.world.target.aborts = None;
            self.world.pass(TIME);
        } else {
            self.world.is_slow = true;
            let all = (0..self.world.lines.len()).filter(|at| self.world.is_connected(*at));
            let all: Vec<usize> = all.collect();
            let is_there = |conn: &Conn| conn.tasks.iter().any(|task| task.is_stuck);
            for place in all {
                if is_there(self.world.conn(place)) {
                    self.world.cut(place);
                }
            }
            self.world.pass(if self.rng.random() { TIME } else { SECOND });
        }
        self.hear();
        if self.world.has_ended(write) {
            let fua = self.rng.random();
            self.ask_for(Op::Write, block, 1, fua);
            self.world.pass(MILLI);
            self.hear();
        }
        if !self.asked.values().any(|other| other.op != Op::Flush) {
            self.ask_for(Op::Read, block, 1, false);
        }
        self.world.drive();
        self.hear();
        (0..self.world.lines.len()).for_each(|place| self.carry_out(place));
        self.world.target.carry_out_orphans();
    }

    /// The disk resets itself: no command goes on.
    fn lose_cache(&mut self) {
        self.world.target.medium.lose_cache();
        self.world.target.orphans.iter_mut().for_each(|conn| conn.tasks.clear());
        for line in &mut self.world.lines {
            if let Line::Open(conn) = line {
                conn.tasks.clear();
            }
        }
    }

    fn order(&mut self) {
        let cdb = netraid_scsi::cdb::reserve::read_keys(64);
        let order = match self.rng.random_range(0..3) {
            0 => Order::Once { cdb, parameters: Vec::new(), read_len: 64 },
            1 => Order::Register { key: 7, ignore: true },
            _ => Order::Register { key: 7, ignore: false },
        };
        let id = OrderId(self.next_order);
        self.next_order += 1;
        self.world.orders.insert(id);
        self.world.remote.handle_order(self.world.now, id, order);
    }

    /// Takes what has ended into what the disk may hold.
    fn hear(&mut self) {
        for user in mem::take(&mut self.world.ended) {
            self.note_losses(self.world.losses_at[&user]);
            let asked = self.asked.remove(&user).unwrap();
            let end = self.world.ends[&user].clone();
            self.count(&end);
            self.note_end(user + 1, &asked, end);
        }
        self.note_losses(self.world.losses());
    }

    fn count(&mut self, end: &Result<Vec<u8>, IoError>) {
        let kind = end.as_ref().err().map(IoError::kind);
        self.counts.done += u64::from(kind.is_none());
        self.counts.failed += u64::from(kind.is_some());
        self.counts.timeouts += u64::from(kind == Some(ErrorKind::Timeout));
        self.counts.fenced += u64::from(kind == Some(ErrorKind::Fenced));
    }

    fn note_losses(&mut self, losses: u64) {
        assert!(losses >= self.losses, "a loss is taken back");
        if losses == self.losses {
            return;
        }
        self.losses = losses;
        for (at, place) in self.places.iter_mut().enumerate() {
            place.now.extend(&place.stable);
            for asked in self.asked.values_mut().filter(|asked| asked.op == Op::Flush) {
                asked.flushed[at].extend(&place.stable);
            }
        }
    }

    fn note_end(&mut self, number: u32, asked: &Asked, end: Result<Vec<u8>, IoError>) {
        match (asked.op, end) {
            (Op::Read, Ok(data)) => self.check_read(asked, &data),
            (Op::Read, Err(_)) | (Op::Flush, Err(_)) | (Op::Extents, _) => {}
            (Op::Write, end) => self.note_written(number, asked, end.is_ok()),
            (Op::WriteZeroes, end) => self.note_written(0, asked, end.is_ok()),
            (Op::Discard, _) => self.note_written(0, asked, false),
            (Op::Flush, Ok(_)) => {
                for (place, flushed) in self.places.iter_mut().zip(&asked.flushed) {
                    place.stable.clone_from(flushed);
                }
            }
        }
    }

    fn note_written(&mut self, number: u32, asked: &Asked, is_done: bool) {
        let is_sure = is_done && (asked.fua || asked.losses == self.losses);
        for at in blocks_of(asked) {
            let place = &mut self.places[at];
            if is_sure {
                place.now.clear();
            }
            if is_done && asked.fua {
                place.stable.clear();
            }
            place.now.insert(number);
            place.stable.insert(number);
            for other in self.asked.values_mut().filter(|other| other.op == Op::Flush) {
                other.flushed[at].insert(number);
            }
        }
    }

    fn check_read(&mut self, asked: &Asked, data: &[u8]) {
        assert_eq!(data.len() as u64, asked.blocks * BLOCK);
        self.counts.read += 1;
        for (at, block) in blocks_of(asked).zip(data.chunks_exact(BLOCK_LEN)) {
            let number = u32::from_le_bytes(block[..4].try_into().unwrap());
            assert_eq!(block, stamped(number, 1), "a block is of one write");
            let place = &mut self.places[at];
            assert!(place.now.contains(&number), "block {at} holds {number}, may {place:?}");
            if asked.losses == self.losses {
                place.now = BTreeSet::from([number]);
            }
        }
    }

    fn mend(&mut self) {
        let target = &mut self.world.target;
        target.doors.clear();
        target.holds.clear();
        target.refusals.clear();
        target.aborts = Some(TaskResponseCode::Complete);
        target.is_silent = false;
        self.world.is_slow = false;
    }

    /// Nothing goes wrong any more.
    fn heal(&mut self) {
        self.mend();
        for place in 0..self.world.lines.len() {
            self.answer_aborts(place);
            // Who has asked for the end of a session waits for it no longer.
            if self.world.is_connected(place) && self.world.conn(place).is_ending {
                self.world.cut(place);
            }
        }
        self.world.pass(TIME * 13);
        self.hear();
        assert!(self.asked.is_empty() && self.world.orders.is_empty(), "something never ends");
        self.world.target.carry_out_orphans();
    }

    fn read_all(&mut self) {
        let reads = (0..SMALL as u64 / 64).map(|part| (part * 64, 64));
        let users: Vec<u32> =
            reads.map(|(block, blocks)| self.ask_for(Op::Read, block, blocks, false)).collect();
        self.world.pass(TIME);
        self.hear();
        let status = self.world.remote.status();
        let is_registered = self.is_persistent && self.world.target.medium.others.is_empty();
        let is_given_up = |event: &Event| matches!(event, Event::GivenUp { .. });
        let is_there = status.is_connected && self.world.told(is_given_up) == 0;
        let is_well = is_there && !status.is_fenced && is_registered;
        assert!(users.iter().all(|user| self.world.has_ended(*user)));
        let is_read = |user: &u32| self.world.ends[user].is_ok();
        assert!(!is_well || users.iter().all(is_read), "a disk that is well is not read");
    }

    fn close(&mut self) {
        if self.rng.random_ratio(1, 3) {
            self.world.remote.handle_cut(self.world.now);
            self.world.drive();
        } else {
            self.world.remote.handle_close(self.world.now);
            self.world.pass(TIME + 3 * SECOND);
        }
        self.hear();
        assert!(self.world.is_closed && self.asked.is_empty() && self.world.orders.is_empty());
        assert!(self.world.lines.iter().all(|line| matches!(line, Line::Closed)));
        assert_eq!(self.world.remote.next_timeout(), None);
        self.counts.losses += self.losses;
        self.counts.reconnects += self.world.remote.status().reconnects;
        self.counts.aborts += self.world.got(Opcode::TaskRequest) as u64;
    }
}

fn blocks_of(asked: &Asked) -> core::ops::Range<usize> {
    let at = |block: u64| usize::try_from(block).unwrap();
    at(asked.block)..at(asked.block + asked.blocks)
}

/// Blocks that say by which request they were written.
fn stamped(number: u32, blocks: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_LEN / 4 * usize::try_from(blocks).unwrap())
}

#[test]
fn whatever_happens_requests_end_once_and_what_was_written_is_there() {
    let mut all = Counts::default();
    for seed in 0..SEEDS {
        let mut any = Any::new(seed);
        any.run();
        let one = any.counts;
        all.done += one.done;
        all.failed += one.failed;
        all.timeouts += one.timeouts;
        all.fenced += one.fenced;
        all.losses += one.losses;
        all.reconnects += one.reconnects;
        all.read += one.read;
        all.aborts += one.aborts;
    }
    let Counts { done, failed, timeouts, fenced, losses, reconnects, read, aborts } = all;
    let often = [done, failed, timeouts, fenced, losses, reconnects, read, aborts];
    assert!(often.iter().all(|count| *count > 100), "{all:?}");
}
