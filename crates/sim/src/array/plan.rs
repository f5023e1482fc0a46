//! What a run is made of: the array, its users and what befalls it, all by the seed.

use core::{ops::RangeInclusive, time::Duration};

use netraid_raid::{
    geometry::{Geometry, Level},
    logged::Limits,
    regions::{LoggedShape, Regions},
};

use super::{plain, session::Patience, tables::Tables};
use crate::{
    dice::Seed,
    disk::{Disk, DiskShape, Fill},
    network::Wire,
    station::Pace,
    target::Manners,
};

/// How much befalls the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing that the level does not survive: no error ever reaches a user.
    Within,
    /// More than that: errors are allowed, wrong bytes never.
    Beyond,
}

/// What befalls an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Fault {
    EngineCrash,
    CrashInRecovery,
    PowerOfOne,
    PowerOfAll,
    ConnectionLost,
    Partition,
    SlowLink,
    Hang,
    Rot,
    Unreadable,
    LostWrite,
    MisdirectedWrite,
    OlderImage,
    Replaced,
    TwoEngines,
    SpaceRunsOut,
}

impl Fault {
    /// Those of an array without a log.
    const WITHOUT_LOG: [Self; 6] = [
        Self::PowerOfOne,
        Self::PowerOfAll,
        Self::ConnectionLost,
        Self::Partition,
        Self::SlowLink,
        Self::Hang,
    ];

    /// Those that are drawn while an array is in use; crashes have their own times, and whether space
    /// runs out is drawn apart.
    pub const DRAWN: [Self; 13] = [
        Self::PowerOfOne,
        Self::PowerOfAll,
        Self::ConnectionLost,
        Self::Partition,
        Self::SlowLink,
        Self::Hang,
        Self::Rot,
        Self::Unreadable,
        Self::LostWrite,
        Self::MisdirectedWrite,
        Self::OlderImage,
        Self::Replaced,
        Self::TwoEngines,
    ];
}

/// What a campaign wants of its runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// Only this level.
    pub level: Option<u8>,
    /// Only this mode.
    pub mode: Option<ModeChoice>,
    /// Only arrays with a log, or only such without.
    pub has_log: Option<bool>,
    /// Only these faults, beside crashes of engines; all when there are none.
    pub faults: Option<Vec<Fault>>,
}

/// A mode, to be compared.
pub type ModeChoice = Mode;

/// What some runs have more of than others: what takes several things at one time is rare where
/// each is drawn alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moods {
    /// One command in so many takes much longer than others; 0: none.
    pub stragglers: u32,
    /// One engine in so many that loses a member dies then; 0: none.
    pub dies_of_losses: u32,
    /// At one crash in so many a block of the log that was just written cannot be read for some
    /// time; 0: never.
    pub spoils_log_end: u32,
    /// At one power failure of a member in so many it restarts while nothing of it is under way; 0: never.
    pub restarts: u32,
    /// One engine in so many is told to close; 0: none.
    pub stops: u32,
    /// The administrator sets members aside, scrubs, and holds rebuilds back.
    pub has_orders: bool,
}

impl Moods {
    fn new(seed: Seed, faults: &[Fault]) -> Self {
        let mut dice = seed.dice("moods");
        let mut often = |one_run_in: u32, often: u32| {
            let is_so = dice.one_in(one_run_in);
            if is_so { often } else { 0 }
        };
        let moods = Self {
            stragglers: often(3, 12),
            dies_of_losses: often(2, 2),
            spoils_log_end: often(2, 2),
            restarts: often(3, 2),
            stops: often(3, 4),
            has_orders: often(6, 1) > 0,
        };
        let spoils_log_end =
            if faults.contains(&Fault::Unreadable) { moods.spoils_log_end } else { 0 };
        Self { spoils_log_end, ..moods }
    }
}

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What decides everything.
    pub seed: Seed,
    /// How much may befall it.
    pub mode: Mode,
    /// The array has a log.
    pub has_log: bool,
    /// The array.
    pub geometry: Geometry,
    /// What is where on its members.
    pub regions: Regions,
    /// What its tables can say, and say of snapshots.
    pub tables: Tables,
    /// Completed writes may be lost with the power, by member.
    pub volatile: Vec<bool>,
    /// A member that works slower than the others, if any does.
    pub slow: Option<usize>,
    /// What new members hold.
    pub fill: Fill,
    /// How often the engine dies.
    pub lives: u32,
    /// Requests in flight.
    pub depth: RangeInclusive<u64>,
    /// Member requests from an opening to the crash, on average.
    pub life: u64,
    /// What may happen.
    pub faults: Vec<Fault>,
    /// Time between faults, on average.
    pub fault_every: Duration,
    /// One opening in so many is crashed; 0: none.
    pub crash_in_recovery: u32,
    /// How long users' requests wait for members, in the volume's time; zero: the array fails at once.
    pub pause: Duration,
    /// What else is peculiar to it.
    pub moods: Moods,
    /// Largest member request.
    pub max_io_len: u32,
    /// What the machine may use.
    pub limits: Limits,
    /// Bytes for what is read ahead; none: nothing is.
    pub read_ahead: Option<u64>,
}

/// One run in so many is of an array without a log.
const WITHOUT_LOG: u32 = 5;

impl Plan {
    /// The plan of a seed, of an array with a log or without.
    #[must_use]
    pub fn of_any(seed: Seed, choice: &Choice) -> Self {
        let needs_log = choice.level.is_some_and(|level| ![0, 1, 5].contains(&level));
        let is_drawn = !needs_log
            && choice.mode != Some(Mode::Beyond)
            && seed.dice("kind").one_in(WITHOUT_LOG);
        match choice.has_log.unwrap_or(!is_drawn) {
            true => Self::new(seed, choice),
            false => Self::without_log(seed, choice),
        }
    }

    /// The plan of a seed for an array with a log.
    #[must_use]
    pub fn new(seed: Seed, choice: &Choice) -> Self {
        let mut dice = seed.dice("plan");
        let levels: [u8; 8] = [5, 5, 5, 1, 1, 6, 10, 0];
        let drawn = levels[dice.index(levels.len())];
        let level = choice.level.unwrap_or(drawn);
        let level = Level::from_number(level).unwrap_or(Level::Raid5);
        let members = match level {
            Level::Raid0 => 1 + dice.index(4),
            Level::Raid1 => 2 + dice.index(3),
            Level::Raid5 => 3 + dice.index(3),
            Level::Raid6 => 4 + dice.index(3),
            Level::Raid10 => 4 + 2 * dice.index(2),
        };
        let is_large = dice.one_in(16);
        let logical_stripes = if is_large { 24 + dice.below(120) } else { 8 };
        let reserve = if is_large { 3 + dice.below(24) } else { 2 + dice.below(3) };
        let block_len = if dice.one_in(3) { 4096 } else { 512 };
        let log_blocks = if is_large { 128 + dice.below(384) } else { 64 + 16 * dice.below(5) };
        let chunk_len = if dice.one_in(8) { 4096 } else { 8192 };
        let tables = Tables::of(seed);
        let (regions, geometry) = layout(LoggedShape {
            level,
            members,
            chunk_len,
            block_len,
            logical_stripes,
            physical_stripes: logical_stripes + reserve,
            log_blocks,
            format: tables.format,
        });
        let all_safe = dice.one_in(8);
        let volatile = (0..members).map(|_| !all_safe && !dice.one_in(10)).collect();
        let mode = if dice.one_in(4) { Mode::Beyond } else { Mode::Within };
        // Each run knows some kinds of faults only, so that each meets others undisturbed too.
        let share = [2, 3, 8][dice.index(3)];
        let mut faults: Vec<Fault> =
            Fault::DRAWN.into_iter().filter(|_| dice.below(8) < share).collect();
        // Space runs out where nothing else is wrong: seldom, where much else befalls. The dice have the name
        // with which the plans of the seeds that are kept stay what they are.
        if seed.dice("pools").one_in(8) {
            faults = Vec::from([Fault::SpaceRunsOut]);
        } else if seed.dice("space").one_in(4) {
            faults.push(Fault::SpaceRunsOut);
        }
        if let Some(only) = &choice.faults {
            faults.clone_from(only);
        }
        let shallow = 4 + dice.below(6);
        let stripes_at_once = 1 + dice.index(8);
        Self {
            seed,
            mode: choice.mode.unwrap_or(mode),
            has_log: true,
            volatile,
            slow: slow_member(seed, members),
            fill: if dice.one_in(2) { Fill::Zeroes } else { Fill::Old(seed) },
            pause: match seed.dice("pause").index(6) {
                0..=3 => Duration::ZERO,
                4 => Duration::from_secs(6),
                _ => Duration::from_secs(60),
            },
            moods: Moods::new(seed, &faults),
            lives: 8 + u32::try_from(dice.below(16)).unwrap_or(0),
            depth: shallow..=shallow + 4 + dice.below(12),
            life: 60 + dice.below(500),
            fault_every: Duration::from_micros(2_000 + dice.below(30_000)),
            crash_in_recovery: [2, 3, 6][dice.index(3)],
            max_io_len: if is_large { 4 << 20 } else { 1 << 20 },
            limits: Limits {
                // Half of all runs forget each page of checksums as soon as nobody uses it.
                sum_pages: {
                    let pages = if is_large { 2 + dice.index(8) } else { 8 };
                    if seed.0.is_multiple_of(2) { 0 } else { pages }
                },
                dirty_blocks: 16 + dice.index(256),
                stripes_at_once,
                stripes_per_mark: 1 + u32::try_from(seed.dice("marks").below(12)).unwrap_or(0),
                unstable_len: {
                    let mut dice = seed.dice("unstable");
                    let few = geometry.stripe_data_len() * (1 + dice.below(4));
                    if dice.one_in(4) { few } else { 1 << 30 }
                },
                beginnings: {
                    let only_space = faults == [Fault::SpaceRunsOut];
                    let few = if only_space { 1 } else { 3 };
                    [1, few, 16][seed.dice("beginnings").index(3)]
                },
            },
            read_ahead: {
                let mut dice = seed.dice("read ahead");
                let memory = [64 << 10, 256 << 10, 16 << 20][dice.index(3)];
                dice.one_in(3).then_some(memory)
            },
            faults,
            geometry,
            regions,
            tables,
        }
    }

    /// The plan of a seed for an array without a log: of a level that needs none, and with nothing befalling it that
    /// only checksums would tell, or that costs a member for good.
    #[must_use]
    pub fn without_log(seed: Seed, choice: &Choice) -> Self {
        let mut dice = seed.dice("without log");
        let (level, members) = match (choice.level, dice.index(8)) {
            (Some(0), _) | (None, 0) => (Level::Raid0, 1 + dice.index(4)),
            (Some(1), _) | (None, 1..=3) => (Level::Raid1, 2 + dice.index(3)),
            (Some(_), _) | (None, _) => (Level::Raid5, 3 + dice.index(3)),
        };
        let mut plan = Self::new(seed, choice);
        let shape = (plan.geometry.chunk_len(), plan.geometry.block_len());
        let most = if dice.one_in(16) { 120 } else { 8 };
        let stripes = 8 + dice.below(most);
        if let Some((regions, geometry)) = plain::layout(level, members, shape, stripes) {
            (plan.regions, plan.geometry) = (regions, geometry);
        }
        plan.faults.retain(|fault| Fault::WITHOUT_LOG.contains(fault));
        plan.volatile = (0..members).map(|_| !dice.one_in(6)).collect();
        plan.slow = slow_member(seed, members);
        plan.moods.spoils_log_end = 0;
        (plan.mode, plan.has_log) = (Mode::Within, false);
        plan
    }

    /// Bytes of a member.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.regions.data.end()
    }

    /// A new disk, with space for all that is not data.
    #[must_use]
    pub fn new_disk(&self, shape: DiskShape) -> Disk {
        let mut disk = Disk::new(shape);
        disk.reserve(0..self.regions.data.offset / u64::from(shape.block_len));
        disk
    }

    /// How a member's target works when nothing is wrong with it.
    #[must_use]
    pub fn manners(&self, member: usize) -> Manners {
        let most = if self.slow == Some(member) { 4_000 } else { 300 };
        Manners {
            work: Duration::from_micros(20)..=Duration::from_micros(most),
            answer: Duration::from_micros(5)..=Duration::from_micros(30),
            linger: Duration::from_millis(60),
            stragglers: (self.moods.stragglers, Duration::from_millis(12)),
        }
    }

    /// How a host is connected when nothing is wrong.
    #[must_use]
    pub const fn wire() -> Wire {
        Wire { pace: Pace::INSTANT, latency: Duration::from_micros(10)..=Duration::from_micros(80) }
    }

    /// Most bytes that a member takes at once, in some runs less than the largest member request.
    #[must_use]
    pub fn transfer_len(&self) -> u32 {
        let mut dice = self.seed.dice("transfer length");
        if !dice.one_in(3) {
            return self.max_io_len;
        }
        let chunk = self.geometry.chunk_len();
        let half = (self.max_io_len / 2).next_multiple_of(4096);
        [half, half, chunk, chunk][dice.index(4)]
    }

    /// Bytes of large reads under way at once, and from which length on a read is large; as usual in half of the runs:
    /// none is large there.
    #[must_use]
    pub fn read_window(&self) -> Option<(u64, u64)> {
        let mut dice = self.seed.dice("read window");
        let (bound, from) = ([8 << 10, 16 << 10, 64 << 10], [1024, 4096, 16 << 10]);
        let window = (bound[dice.index(3)], from[dice.index(3)]);
        dice.one_in(2).then_some(window)
    }

    /// How patient engines are.
    #[must_use]
    pub const fn patience() -> Patience {
        Patience {
            deadline: Duration::from_millis(40),
            retry: Duration::from_millis(1)..=Duration::from_millis(10),
        }
    }
}

/// Where one member is slow, what waits for all of them lasts longer than what does not.
fn slow_member(seed: Seed, members: usize) -> Option<usize> {
    let mut dice = seed.dice("paces");
    dice.one_in(4).then(|| dice.index(members))
}

#[allow(clippy::panic, reason = "a shape that this file has made up")]
fn layout(shape: LoggedShape) -> (Regions, Geometry) {
    shape.layout().unwrap_or_else(|error| panic!("{shape:?}: {error}"))
}
