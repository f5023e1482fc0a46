//! What moving a volume's data costs each of its members: the arithmetic of what is booked.
//!
//! Everything is a bound for the busiest member, averaged over some megabytes (columns, checks and
//! copies of the log go round over all members). Its members: N, k of data and m of checks; f of
//! them are lost while the rate is still promised.

use netraid_raid::{
    geometry::{Geometry, Level},
    log::{LOG_BLOCK_LEN, remap_blocks},
};

use crate::units::{Rate, Resources};

/// What a request costs beyond its bytes, as the scheduler counts
/// ([`crate::mclock::Capacity::request_cost_bytes`]).
const REQUEST_COST: u64 = 4096;
/// The shortest pieces that a target cuts a request's data into, of which each is a request to the
/// scheduler. Fast ones take longer pieces; what is booked for theirs is a little too much.
const PIECE_LEN: u64 = 64 << 10;
/// With a log: what pages of checksums and of the stripe table add, both reading and writing. A
/// page of checksums stands for some 3 MiB of the volume, 4 MiB of its members; two members are
/// asked for 8 KiB to read it, and m + 1 write 4 KiB, each with a request's cost: less than a 64th
/// at all levels.
const PAGES: u64 = 65;
/// See [`PAGES`].
const PAGES_PER: u64 = 64;
/// Requests beyond this length count as so long: less than nothing changes.
const REQUEST_MAX: u64 = 1 << 32;
/// Fractions that are not exact are rounded up to multiples of one of so many parts.
const PARTS: u128 = 1 << 24;

/// How a volume's data is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of a request; 0 is taken as 1.
    pub request_bytes: u64,
    /// Whether whoever moves it does so in whole stripes where requests are at least as long as a
    /// stripe.
    pub gathered: bool,
    /// Members that are lost while the rate is still promised; at most what the level survives.
    pub lost: u8,
}

/// How much of each member's rates it takes to move a volume's data at some rate.
///
/// | | of each member's device, for each byte of the volume |
/// | --- | --- |
/// | whole stripes are read | 1/k: with m lost, all of what is left of a stripe; healthy 1/N would do |
/// | whole stripes are written | 1/k, and the record in the log that says where: its blocks on m + 1 members |
/// | less than a stripe is read | (1 + f)/N: its own share, and one of each lost member's, whose blocks are computed from one of every other; in whole blocks |
/// | less than a stripe is written | to the log m + 1 times; check blocks of its row to the log m + 1 times, each beside a block of head; read, and write home, the block and its row's checks; by N - f. Mirrors have no check blocks to log or read |
///
/// What is read while f are lost for a block's new checks: at most (1 + m)(1 + f²) blocks, because
/// with a chance of (1 + m)f/N one of them is lost, and then it takes at most f times k others.
/// Streams of short requests are brought home cheaper than that, in whole stripes; this is the
/// bound for any order. Level 0, which has no log, costs 1/N whatever is moved.
///
/// To that comes what each request costs beyond its bytes: one for each piece of up to 64 KiB that
/// a member is asked to move.
///
/// A promise holds for reading and for writing: the dearer of both is booked. It is what the
/// scheduler of a target counts, which shares the lesser of its devices' rate and its network's
/// among reads and writes together. So device and network are booked alike, and that is the
/// session's floor: floors are never more than there is of either. Headers of 48 bytes (RFC 7143)
/// and digests of 8 on each PDU, commands, R2Ts and answers come to at most 2.6% of requests of
/// 4 KiB and to less of longer ones: less than what a request costs is booked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    each: Ratio,
    through_log: Ratio,
}

impl Load {
    /// Of a volume of that shape; levels with redundancy have a log.
    #[must_use]
    pub fn new(geometry: &Geometry, traffic: &Traffic) -> Self {
        let request = traffic.request_bytes.clamp(1, REQUEST_MAX);
        let lost = u64::from(traffic.lost).min(geometry.tolerance().into());
        let partial = partial_bytes(geometry, request, traffic.gathered);
        // Parts at the ends of requests are half a stripe on average.
        let part = request.min((geometry.stripe_data_len() / 2).max(1));
        let is_aligned = request.is_multiple_of(LOG_BLOCK_LEN.into());
        let part = Part { bytes: if partial == request { request } else { part }, is_aligned };
        let (whole, small) = match geometry.level() {
            Level::Raid0 => (Cost::plain_whole(geometry), Cost::plain_small(geometry, &part)),
            Level::Raid1 | Level::Raid5 | Level::Raid6 | Level::Raid10 => {
                (Cost::whole(geometry, lost), Cost::small(geometry, &part, lost))
            }
        };
        let is_logged = geometry.level() != Level::Raid0;
        Self {
            each: Ratio::mix(whole.ratio(is_logged), small.ratio(is_logged), partial, request),
            through_log: if is_logged { Ratio::new(partial, request) } else { Ratio::NONE },
        }
    }

    /// What each member must give so that the volume's data moves at `rate`, in that of its device
    /// and of its network, rounded up; none when that is no rate. The former is the floor of the
    /// sessions with it.
    #[must_use]
    pub fn rates(&self, rate: Rate) -> Option<(Rate, Rate)> {
        let each = self.each.of(rate)?;
        Some((each, each))
    }

    /// The highest rate at which the volume's data can be moved when each member can still give
    /// `left`.
    #[must_use]
    pub fn most(&self, left: &Resources) -> Rate {
        self.each.most(left.device.min(left.network))
    }

    /// Per cent of what is written that is not whole stripes, and goes through the log; rounded up.
    #[must_use]
    pub fn through_log_percent(&self) -> u64 {
        self.through_log.of(Rate(100)).map_or(100, |percent| percent.0)
    }
}

/// Of each `request` bytes of a long transfer by requests that follow each other, how many are in
/// parts of stripes. Of a request of r bytes at a multiple of g = gcd(r, S) in stripes of S bytes,
/// r - S + g are in whole stripes on average.
fn partial_bytes(geometry: &Geometry, request: u64, gathered: bool) -> u64 {
    let stripe = geometry.stripe_data_len();
    if request < stripe {
        request
    } else if gathered {
        0
    } else {
        stripe - gcd(request, stripe)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A request, or a part of one, that is not a whole stripe.
struct Part {
    bytes: u64,
    /// Whether it begins and ends with blocks.
    is_aligned: bool,
}

impl Part {
    /// Chunks that it is in, on average: of requests of r bytes at multiples of g = gcd(r, chunk),
    /// r - g of each chunk's bytes begin another one.
    fn chunks(&self, geometry: &Geometry) -> u64 {
        let chunk = u64::from(geometry.chunk_len());
        (chunk + self.bytes - gcd(self.bytes, chunk)).div_ceil(chunk)
    }
}

/// What a member does while `per` bytes of the volume are moved, as the scheduler counts.
struct Cost {
    /// When those are read.
    read: u64,
    /// When those are written, with what is read for that.
    write: u64,
    per: u64,
}

/// What it counts of so many bytes that are moved by so many commands, of any lengths.
const fn counted(bytes: u64, commands: u64) -> u64 {
    bytes + (commands + bytes.saturating_sub(commands) / PIECE_LEN) * REQUEST_COST
}

impl Cost {
    /// In whole stripes, without a log.
    fn plain_whole(geometry: &Geometry) -> Self {
        let each = counted(geometry.chunk_len().into(), 1);
        Self { read: each, write: each, per: geometry.stripe_data_len() }
    }

    /// In requests of less than a stripe, without a log.
    fn plain_small(geometry: &Geometry, part: &Part) -> Self {
        let each = counted(part.bytes, part.chunks(geometry));
        Self { read: each, write: each, per: u64::from(geometry.members()) * part.bytes }
    }

    /// In whole stripes.
    fn whole(geometry: &Geometry, lost: u64) -> Self {
        let live = u64::from(geometry.members()) - lost;
        let rows = geometry.chunk_len() / LOG_BLOCK_LEN;
        let record = remap_blocks(rows, u32::from(geometry.members()) * rows);
        let record = copies(geometry) * counted(u64::from(record) * u64::from(LOG_BLOCK_LEN), 1);
        // Degraded, all that is left of a stripe is read.
        let read = live * counted(geometry.chunk_len().into(), 1);
        Self { read, write: read + record, per: live * geometry.stripe_data_len() }
    }

    /// In requests of less than a stripe, in any order.
    fn small(geometry: &Geometry, part: &Part, lost: u64) -> Self {
        let members = u64::from(geometry.members());
        let live = members - lost;
        let (copies, checks) = (copies(geometry), logged_checks(geometry));
        let block = u64::from(LOG_BLOCK_LEN);
        let unaligned = u64::from(!part.is_aligned);
        let blocks = part.bytes.div_ceil(block) + unaligned;
        let chunks = part.chunks(geometry);
        let moved = counted(blocks * block, chunks);
        // Each request may be a batch of its own, and so may its rows' checks: a block of head.
        let batch = |blocks: u64| counted((blocks + 1) * block, 1);
        let parity = if checks == 0 { 0 } else { batch(blocks * checks) };
        let to_log = copies * (batch(blocks) + parity);
        let home = moved * (u64::from(geometry.tolerance()) + 1);
        let old = if checks == 0 { 0 } else { (1 + checks) * (1 + lost * lost) };
        // Blocks that are written in part are read before.
        let reads = moved * old + unaligned * (1 + lost) * counted(blocks * block, 2);
        Self {
            read: moved * (1 + lost) * live,
            write: (to_log + home + reads) * members,
            per: live * members * part.bytes,
        }
    }

    fn ratio(&self, is_logged: bool) -> Ratio {
        let each = Ratio::new(self.read.max(self.write), self.per);
        if is_logged { each.times(PAGES, PAGES_PER) } else { each }
    }
}

/// Copies of each batch of the log while no member is lost.
fn copies(geometry: &Geometry) -> u64 {
    u64::from(geometry.tolerance()) + 1
}

/// Check blocks that are logged with each row; mirrors have their copies.
fn logged_checks(geometry: &Geometry) -> u64 {
    match geometry.level() {
        Level::Raid5 | Level::Raid6 => geometry.check_columns().into(),
        Level::Raid0 | Level::Raid1 | Level::Raid10 => 0,
    }
}

/// An exact ratio, in no lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ratio {
    num: u128,
    den: u128,
}

impl Ratio {
    const NONE: Self = Self { num: 0, den: 1 };

    fn new(num: u64, den: u64) -> Self {
        assert!(den > 0, "a share of nothing");
        Self { num: num.into(), den: den.into() }
    }

    fn times(self, num: u64, den: u64) -> Self {
        Self { num: self.num * u128::from(num), den: self.den * u128::from(den) }
    }

    /// `part` of each `all` bytes at `small`, the others at `whole`.
    fn mix(whole: Self, small: Self, part: u64, all: u64) -> Self {
        if part == 0 {
            return whole;
        }
        if part == all {
            return small;
        }
        let parts = |ratio: Self| (ratio.num * PARTS).div_ceil(ratio.den);
        let sum = parts(whole) * u128::from(all - part) + parts(small) * u128::from(part);
        Self { num: sum.div_ceil(all.into()), den: PARTS }
    }

    /// That much of a rate, rounded up.
    fn of(self, rate: Rate) -> Option<Rate> {
        let share = (u128::from(rate.0) * self.num).div_ceil(self.den);
        u64::try_from(share).ok().map(Rate)
    }

    /// The highest rate of which this is no more than `left`.
    fn most(self, left: Rate) -> Rate {
        let most = u128::from(left.0) * self.den / self.num.max(1);
        // Clamped: what takes next to nothing leaves room for any rate.
        Rate(u64::try_from(most).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netraid_raid::{code::Code, member::MemberIndex};
    use std::vec;

    fn geometry(level: Level, members: usize, chunk_len: u32) -> Geometry {
        Geometry::new(level, members, chunk_len, 512, 0, 0).unwrap()
    }

    /// Device and network of each member for so many bytes a second of the volume.
    fn rates(geometry: &Geometry, request_bytes: u64, lost: u8, rate: u64) -> (u64, u64) {
        let load = Load::new(geometry, &Traffic { request_bytes, gathered: true, lost });
        let (device, network) = load.rates(Rate(rate)).unwrap();
        (device.0, network.0)
    }

    #[test]
    fn stripes_without_redundancy_cost_each_member_its_share() {
        let four = geometry(Level::Raid0, 4, 64 << 10);
        // A request for each 64 KiB of a member, or each 4 KiB of the volume.
        for (request, cost) in [(4096, 4096), (64 << 10, 4096), (1 << 20, 4096)] {
            let data = request.min(64 << 10);
            let each = 1000 * (data + cost);
            assert_eq!(rates(&four, request, 0, 1000).0, each.div_ceil(data * 4), "{request}");
        }
        // Some requests of 24 KiB are in two chunks: counted as if all were.
        let each = (24_u64 << 10) + 2 * 4096;
        let rate = 4 * (24 << 10) * 10;
        assert_eq!(rates(&four, 24 << 10, 0, rate).0, each * 10);
    }

    #[test]
    fn whole_stripes_cost_a_data_column_and_a_record_and_their_requests() {
        // A stripe of 256 KiB: 64 KiB of each member, and two blocks of log on two of the four
        // that are left. All with a 64th for pages.
        let five = geometry(Level::Raid5, 5, 64 << 10);
        let rate = (256 << 10) * 64;
        let each: u64 = ((68 << 10) + 2 * (4096 + 4096) / 4) * 65;
        assert_eq!(rates(&five, 256 << 10, 1, rate), (each, each));
        assert_eq!(each, 4_792_320); // Of 16,777,216: 28.6%.
        // Healthy, that log is on five.
        let healthy = ((68_u64 << 10) * 65 * 5 + 2 * 8192 * 65).div_ceil(5);
        assert_eq!(rates(&five, 256 << 10, 0, rate).0, healthy);
        // A stripe of two data columns of 1 MiB, in 16 pieces each, and three records of two blocks:
        // 1,024 checksums are 4 KiB.
        let four = geometry(Level::Raid6, 4, 1 << 20);
        let each = ((1 << 20) + 16 * 4096) * 65 + 3 * 3 * 4096 * 65 / 2;
        assert_eq!(rates(&four, 2 << 20, 2, (2 << 20) * 64).0, each);
        // Mirrors: everything on each.
        let two = geometry(Level::Raid1, 2, 1 << 20);
        let each = ((1 << 20) + 16 * 4096 + 2 * 2 * 4096) * 65;
        assert_eq!(rates(&two, 1 << 20, 1, (1 << 20) * 64).0, each);
    }

    #[test]
    fn small_writes_cost_what_the_log_and_the_way_home_do() {
        let blocks = |level, members, request: u64, lost| {
            let rate = request * 64 * 1000;
            let (device, network) = rates(&geometry(level, members, 1 << 20), request, lost, rate);
            assert_eq!(device, network);
            device.div_ceil(65 * 4096)
        };
        let thousand = |blocks: u64, by: u64| (blocks * 1000).div_ceil(by);
        // One block: a batch of block and head, and one of check and head, each a request, on two
        // members each; home both, of which both old ones are read: four requests of a block.
        let five = |lost| blocks(Level::Raid5, 5, 4096, lost);
        assert_eq!(five(0), thousand(2 * (3 + 3) + 2 * (2 + 2), 5));
        // Degraded up to twice as much is read, and four share it.
        assert_eq!(five(1), thousand(2 * (3 + 3) + 2 * 2 + 4 * 2, 4));
        // 16 blocks in one request, 17 in two, 33 in three: on three members; home three times 16,
        // and as many read.
        let six = blocks(Level::Raid6, 6, 64 << 10, 0);
        assert_eq!(six, thousand(3 * ((17 + 2) + (33 + 3)) + 3 * 17 + 3 * 17, 6));
        // Mirrors have no checks to log, and read nothing old.
        let ten = blocks(Level::Raid10, 4, 4096, 0);
        assert_eq!(ten, thousand(2 * 3 + 2 * 2, 4));
        // Blocks that are written in part are two, and are read before: in three requests, because
        // of half of these there is an end in another chunk.
        let mirror = blocks(Level::Raid1, 2, 1000, 0);
        let (log, home, read) = (2 * (3 + 1), 2 * (2 + 2), 2 + 2);
        assert_eq!(mirror, thousand(log + home + read, 2));
    }

    #[test]
    fn a_request_is_booked_for_each_piece_that_the_scheduler_grants() {
        // Against the pieces themselves: a target cuts each command's data, whatever its place.
        for bytes in [1, 4096, 65_535, 65_536, 65_537, 131_072, 1 << 20, (1 << 20) + 1] {
            assert_eq!(counted(bytes, 1), bytes + bytes.div_ceil(64 << 10) * 4096);
            for cut in
                [1, 512, 4096, 65_536, 65_537, bytes / 2].into_iter().filter(|cut| *cut < bytes)
            {
                let pieces = cut.div_ceil(64 << 10) + (bytes - cut).div_ceil(64 << 10);
                if cut > 0 {
                    assert!(counted(bytes, 2) >= bytes + pieces * 4096, "{bytes} {cut}");
                }
            }
        }
        // And chunks that a request is in, on average over all places where it can be.
        let shape = geometry(Level::Raid0, 4, 4096);
        for bytes in [1, 512, 1024, 3072, 4096, 5120, 6144, 8192, 12_288, 14_336] {
            let chunks = Part { bytes, is_aligned: true }.chunks(&shape);
            let touched: u64 = (0..4096)
                .map(|at| (at + 1) * bytes)
                .map(|end| (end - 1) / 4096 - (end - bytes) / 4096 + 1)
                .sum();
            assert_eq!(chunks, touched.div_ceil(4096), "{bytes}");
        }
    }

    /// Reads as the engine makes them: of a lost column's chunk, whatever its recipe says.
    #[test]
    fn no_survivor_reads_more_than_is_booked_whoever_is_lost() {
        let shapes = [
            (Level::Raid5, 3),
            (Level::Raid5, 6),
            (Level::Raid6, 4),
            (Level::Raid6, 7),
            (Level::Raid1, 3),
            (Level::Raid10, 6),
        ];
        for (level, members) in shapes {
            let geometry = geometry(level, members, 64 << 10);
            let code = Code::new(&geometry);
            let (k, stripes) = (geometry.data_columns(), members as u64);
            for lost in 0_u32..1 << members {
                let is_lost = |member: MemberIndex| lost >> member.0 & 1 == 1;
                if lost.count_ones() > geometry.tolerance() {
                    continue;
                }
                let (mut alone, mut together) = (vec![0_u64; members], vec![0_u64; members]);
                for stripe in 0..stripes {
                    let mut touched = vec![false; members];
                    for column in 0..k {
                        let there = (0..geometry.members())
                            .filter(|column| !is_lost(geometry.member_of(stripe, *column)));
                        let from: std::vec::Vec<u8> = if is_lost(geometry.member_of(stripe, column))
                        {
                            let recipe = code.recipe(column, there.collect()).unwrap();
                            recipe.iter().map(|(column, _)| *column).collect()
                        } else {
                            vec![column]
                        };
                        for column in from {
                            let member = geometry.member_of(stripe, column).as_usize();
                            alone[member] += 1;
                            touched[member] = true;
                        }
                    }
                    for (member, touched) in touched.into_iter().enumerate() {
                        together[member] += u64::from(touched);
                    }
                }
                // In chunks of 17 blocks with their request, out of all of the volume.
                let all = Rate(stripes * u64::from(k) * 16);
                let part = Part { bytes: 64 << 10, is_aligned: true };
                let cost = Cost::small(&geometry, &part, lost.count_ones().into());
                let booked = Ratio::new(cost.read, cost.per).of(all).unwrap().0;
                assert!(
                    alone.iter().all(|reads| *reads * 17 <= booked),
                    "{level:?} {lost:b} {alone:?}"
                );
                let cost = Cost::whole(&geometry, lost.count_ones().into());
                let booked = Ratio::new(cost.read, cost.per).of(all).unwrap().0;
                assert!(together.iter().all(|reads| *reads * 17 <= booked), "{level:?} {lost:b}");
            }
        }
    }

    #[test]
    fn parts_of_stripes_are_what_is_left_of_requests_at_their_ends() {
        for members in 2..8 {
            let shape = geometry(Level::Raid0, members, 4096);
            let stripe = shape.stripe_data_len();
            for request in [1, 3, 4, 5, 7, 9, 12, 16, 21, 100].map(|blocks| blocks * 1024) {
                let mut whole = 0;
                let requests = stripe; // More than enough to begin at each place once.
                for at in 0..requests {
                    let (from, to) = (at * request, (at + 1) * request);
                    whole += (to / stripe).saturating_sub(from.div_ceil(stripe)) * stripe;
                }
                let partial = partial_bytes(&shape, request, false);
                assert_eq!(partial * requests, requests * request - whole, "{members} {request}");
                let gathered = partial_bytes(&shape, request, true);
                assert_eq!(gathered, if request < stripe { request } else { 0 });
            }
        }
    }

    #[test]
    fn what_is_mixed_costs_something_between() {
        // A third of 1 MiB is no power of two: half of each request is parts of stripes.
        let four = geometry(Level::Raid5, 4, 256 << 10);
        let load = |gathered, request_bytes| {
            Load::new(&four, &Traffic { request_bytes, gathered, lost: 1 })
        };
        let of = |load: Load| load.rates(Rate(1_000_000)).unwrap().0.0;
        assert_eq!(load(false, 1 << 20).through_log_percent(), 50);
        assert_eq!(load(true, 1 << 20).through_log_percent(), 0);
        let small = of(load(true, 512 << 10));
        assert!(of(load(true, 1 << 20)) < of(load(false, 1 << 20)));
        assert!(of(load(false, 1 << 20)) < small);
    }

    #[test]
    fn the_highest_rate_is_the_last_that_fits() {
        let level = [(Level::Raid0, 3), (Level::Raid5, 5), (Level::Raid6, 7), (Level::Raid10, 4)];
        for (level, members) in level {
            for request_bytes in [1, 4096, 1 << 20, 1_000_000, u64::MAX] {
                for gathered in [false, true] {
                    let traffic = Traffic { request_bytes, gathered, lost: 1 };
                    let load = Load::new(&geometry(level, members, 64 << 10), &traffic);
                    for left in [0, 1, 1000, 22_500_000, 10_u64.pow(11), u64::MAX] {
                        let left = Resources {
                            space_bytes: 0,
                            device: Rate(left),
                            network: Rate(left / 2),
                        };
                        let most = load.most(&left);
                        let fits = |rate| {
                            let rates = load.rates(Rate(rate));
                            rates.is_some_and(|(device, network)| {
                                device <= left.device && network <= left.network
                            })
                        };
                        assert!(fits(most.0), "{level:?} {traffic:?} {left:?}");
                        assert!(!fits(most.0.saturating_add(1)) || most.0 == u64::MAX);
                    }
                }
            }
        }
    }
}
