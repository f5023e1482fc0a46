//! What a run is made of: the array, its users, and what befalls them, all by the seed.

use core::{ops::RangeInclusive, time::Duration};

use netraid_raid::{
    format::Format,
    geometry::{Geometry, Level},
    logged::Limits,
    regions::{LoggedShape, Regions},
};

use netraid_iscsi_proto::negotiation::Wishes;

use super::interface::{DiskConfig, HostConfig, LineConfig, Manners, Quirks};
use crate::{
    array::{plain, tables::Tables},
    dice::{Dice, Seed},
    disk::{DiskShape, Fill},
};

/// What befalls the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Fault {
    Cut,
    Stall,
    Part,
    LongPart,
    Hang,
    LongHang,
    Slow,
    Stuck,
    Straggling,
    Held,
    Removed,
    Outsider,
    Dropped,
    Spoilt,
    Failing,
    Restart,
    PowerOfOne,
    PowerOfAll,
    Reset,
    FailedByOrder,
    NewDisk,
    Spare,
    Scrub,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::Cut,
        Self::Stall,
        Self::Part,
        Self::LongPart,
        Self::Hang,
        Self::LongHang,
        Self::Slow,
        Self::Stuck,
        Self::Straggling,
        Self::Held,
        Self::Removed,
        Self::Outsider,
        Self::Dropped,
        Self::Spoilt,
        Self::Failing,
        Self::Restart,
        Self::PowerOfOne,
        Self::PowerOfAll,
        Self::Reset,
        Self::FailedByOrder,
        Self::NewDisk,
        Self::Spare,
        Self::Scrub,
    ];
}

/// What becomes of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Fall {
    Process,
    Machine,
    PushedAside,
    Close,
    Hang,
}

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What decides everything.
    pub seed: Seed,
    /// The array has a log.
    pub has_log: bool,
    /// The array.
    pub geometry: Geometry,
    /// What is where on its members.
    pub regions: Regions,
    /// What its tables can say, and say of snapshots.
    pub tables: Tables,
    /// Completed writes may be lost with the power, by host; the last one is the spare.
    pub volatile: Vec<bool>,
    /// What each disk lacks.
    pub quirks: Vec<Quirks>,
    /// Disks have persistent reservations; where they have none, one machine has all engines.
    pub reserves: bool,
    /// Most bytes of a transfer.
    pub max_transfer_len: u32,
    /// What new disks hold.
    pub fill: Fill,
    /// Engines that open the array before nothing befalls it any more.
    pub lives: u32,
    /// The longest that this takes.
    pub length: Duration,
    /// Users' requests in flight, at most.
    pub depth: u64,
    /// Requests until users pause, at most.
    pub burst: u64,
    /// How long they pause, on average.
    pub pause: Duration,
    /// What may befall members.
    pub faults: Vec<Fault>,
    /// Time between faults, on average.
    pub fault_every: Duration,
    /// What may become of engines.
    pub falls: Vec<Fall>,
    /// How long an engine serves, on average.
    pub life: Duration,
    /// One opening in so many is crashed.
    pub crash_in_opening: u32,
    /// How the network is.
    pub manners: Manners,
    /// How engines reach disks.
    pub line: LineConfig,
    /// Each engine has so many sessions at most, and not the same number.
    pub varies_sessions: bool,
    /// Portals of a host.
    pub portals: u16,
    /// Hosts keep reservations over restarts, where a registration asks for it.
    pub persists: bool,
    /// Which hosts do so whether a registration asks for it or not; the last one is the spare.
    pub remembers: Vec<bool>,
    /// Commands of one session that a host has in progress.
    pub queue_depth: u16,
    /// How long a disk takes.
    pub latency: RangeInclusive<Duration>,
    /// What the machine may use.
    pub limits: Limits,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: Seed) -> Self {
        let mut dice = seed.dice("way");
        let has_log = !dice.one_in(4);
        let (level, members) = match (has_log, dice.index(8)) {
            (true, 0..=2) => (Level::Raid5, 3 + dice.index(2)),
            (true, 3 | 4) => (Level::Raid1, 2 + dice.index(2)),
            (true, 5 | 6) => (Level::Raid6, 4 + dice.index(2)),
            (true, _) => (Level::Raid10, 4),
            (false, 0..=3) => (Level::Raid1, 2 + dice.index(2)),
            (false, _) => (Level::Raid5, 3 + dice.index(2)),
        };
        let block_len = if dice.one_in(3) { 4096 } else { 512 };
        let tables = Tables::of(seed);
        let (regions, geometry) =
            layout(&mut dice, tables.format, has_log, level, (members, block_len));
        let all_safe = dice.one_in(8);
        let volatile: Vec<bool> = (0..=members).map(|_| !all_safe && !dice.one_in(8)).collect();
        let reserves = !dice.one_in(6);
        let quirks = draw_quirks(&mut dice, &volatile, reserves);
        // Each run knows some kinds of faults only, so that each meets others undisturbed too.
        let share = [3, 5, 8][dice.index(3)];
        let mut faults: Vec<Fault> =
            Fault::ALL.into_iter().filter(|_| dice.below(8) < share).collect();
        if !reserves && !faults.contains(&Fault::NewDisk) {
            faults.push(Fault::NewDisk);
        }
        if !has_log {
            // What only checksums or a log would mend, or what a rebuild would take too long for.
            faults.retain(|fault| {
                !matches!(fault, Fault::Spoilt | Fault::Scrub | Fault::Failing | Fault::PowerOfAll)
            });
        }
        let all = [Fall::Process, Fall::Machine, Fall::PushedAside, Fall::Close, Fall::Hang];
        let mut falls: Vec<Fall> = all.into_iter().filter(|_| dice.one_in(2)).collect();
        if !reserves {
            falls.retain(|fall| !matches!(fall, Fall::PushedAside));
        }
        if falls.is_empty() {
            falls.push(Fall::Process);
        }
        let (micro, milli) = (Duration::from_micros(1), Duration::from_millis(1));
        let manners = Manners {
            latency: 20 * micro..=(50 + narrow(dice.below(1500))) * micro,
            late_one_in: [0, 50, 200][dice.index(3)],
            break_one_in: [3, 8, 40][dice.index(3)],
            unanswered_one_in: [0, 0, 60][dice.index(3)],
            slow_one_in: [0, 0, 20][dice.index(3)],
            slow: 100 * milli..=800 * milli,
            beside_unanswered_one_in: [0, 3, 12][dice.index(3)],
            ..Manners::default()
        };
        let mut line = LineConfig::new("iqn.2025-01.example:engine");
        line.sessions = [1, 1, 2, 3, 4][dice.index(5)];
        line.wishes = draw_wishes(&mut dice);
        line.request_timeout = Duration::from_secs([5, 2, 3, 8][dice.index(4)]);
        line.login_timeout = Duration::from_secs([5, 2, 1][dice.index(3)]);
        line.digests = (dice.one_in(4), dice.one_in(4));
        let depth = 1 + dice.below(16);
        let remember = reserves && dice.one_in(2);
        let remembers = (0..=members).map(|_| remember && !dice.one_in(4)).collect();
        Self {
            seed,
            has_log,
            geometry,
            regions,
            tables,
            volatile,
            quirks,
            reserves,
            max_transfer_len: [2 << 20, 2 << 20, 16 << 10, geometry.chunk_len()][dice.index(4)],
            fill: if dice.one_in(2) { Fill::Zeroes } else { Fill::Old(seed) },
            lives: 2 + narrow(dice.below(5)),
            length: Duration::from_secs(30 + dice.below(60)),
            depth,
            burst: 4 + dice.below(60),
            pause: (200 + narrow(dice.below(2500))) * milli,
            faults,
            fault_every: (300 + narrow(dice.below(6000))) * milli,
            falls,
            life: (1500 + narrow(dice.below(15_000))) * milli,
            crash_in_opening: [0, 3, 6][dice.index(3)],
            manners,
            line,
            varies_sessions: dice.one_in(2),
            portals: [1, 1, 2][dice.index(3)],
            persists: !dice.one_in(4),
            remembers,
            queue_depth: [128, 128, 16, 3][dice.index(4)],
            latency: 20 * micro..=(100 + narrow(dice.below(4000))) * micro,
            limits: Limits {
                sum_pages: [0, 8, 64][dice.index(3)],
                dirty_blocks: 16 + dice.index(256),
                stripes_at_once: 1 + dice.index(8),
                ..Limits::default()
            },
        }
    }

    /// Bytes of a member.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.regions.data.end()
    }

    /// How a host is.
    #[must_use]
    pub fn host(&self, host: usize) -> HostConfig {
        let block_len = self.geometry.block_len();
        let shape = DiskShape {
            block_len,
            blocks: self.capacity() / u64::from(block_len),
            volatile_cache: self.volatile[host],
            fill: self.fill,
        };
        let mut disk = DiskConfig::new(shape);
        disk.latency = self.latency.clone();
        (disk.max_transfer_len, disk.quirks) = (self.max_transfer_len, self.quirks[host]);
        disk.slow = Duration::from_millis(2)..=Duration::from_millis(10);
        let mut config = HostConfig::new(disk);
        (config.portals, config.persists) = (self.portals, self.persists);
        (config.remembers, config.queue_depth) = (self.remembers[host], self.queue_depth);
        config.max_recv_len = self.line.wishes.max_recv_len;
        config
    }
}

/// What each disk lacks.
fn draw_quirks(dice: &mut Dice, volatile: &[bool], reserves: bool) -> Vec<Quirks> {
    let draws = dice.one_in(2);
    let draw = |is_volatile: &bool| {
        let mut quirks = Quirks { no_reservations: !reserves, ..Quirks::default() };
        if draws {
            match dice.index(5) {
                0 => quirks.no_cache_page = true,
                1 => quirks.no_fua = true,
                2 => quirks.refuses_fua = true,
                3 => (quirks.no_cache_page, quirks.no_flush) = (true, !is_volatile),
                _ => {}
            }
        }
        quirks
    };
    volatile.iter().map(draw).collect()
}

/// How data of writes and reads is cut, and who asks for it.
fn draw_wishes(dice: &mut Dice) -> Wishes {
    if dice.one_in(2) {
        return Wishes::default();
    }
    let max_burst_len = 512 << dice.below(6);
    Wishes {
        max_recv_len: 512 << dice.below(6),
        max_burst_len,
        first_burst_len: max_burst_len.min(512 << dice.below(5)),
        initial_r2t: dice.one_in(2),
        immediate_data: dice.one_in(2),
        max_outstanding_r2t: 1 + narrow(dice.below(4)),
        ..Wishes::default()
    }
}

fn narrow(number: u64) -> u32 {
    netraid_block::narrow(number)
}

#[allow(clippy::panic, reason = "a shape that this file has made up")]
fn layout(
    dice: &mut Dice,
    format: Format,
    has_log: bool,
    level: Level,
    (members, block_len): (usize, u32),
) -> (Regions, Geometry) {
    let chunk_len = if dice.one_in(6) { 4096 } else { 8192 };
    let stripes = 8 + dice.below(12);
    if !has_log {
        let layout = plain::layout(level, members, (chunk_len, block_len), stripes);
        return layout.unwrap_or_else(|| panic!("{level:?} of {members}"));
    }
    let shape = LoggedShape {
        level,
        members,
        chunk_len,
        block_len,
        logical_stripes: stripes,
        physical_stripes: stripes + 2 + dice.below(3),
        log_blocks: 64 + 16 * dice.below(5),
        format,
    };
    shape.layout().unwrap_or_else(|error| panic!("{shape:?}: {error}"))
}
