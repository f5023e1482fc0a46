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

/// Bytes on the network for each [`NETWORK_PER`] bytes of data, in each direction: headers of 48
/// bytes (RFC 7143) and digests of 8 on each PDU, commands, R2Ts and answers come to at most 2.6%
/// of requests of 4 KiB and to less of longer ones. An agent's network rate counts what TCP
/// carries.
const NETWORK: u64 = 33;
/// See [`NETWORK`].
const NETWORK_PER: u64 = 32;
/// With a log: what pages of checksums and of the stripe table add, both reading and writing. A
/// page of checksums stands for some 3 MiB of the volume; two members are asked for 8 KiB to read
/// it, and m + 1 write 4 KiB: less than a 128th at all levels.
const PAGES: u64 = 129;
/// See [`PAGES`].
const PAGES_PER: u64 = 128;
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
/// A promise holds for reading and for writing: the dearer of both is booked. The network's rate
/// holds in each direction, so the direction that has more to carry counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    device: Ratio,
    network: Ratio,
    through_log: Ratio,
}

impl Load {
    /// Of a volume of that shape; levels with redundancy have a log.
    #[must_use]
    pub fn new(geometry: &Geometry, traffic: &Traffic) -> Self {
        let request = traffic.request_bytes.clamp(1, REQUEST_MAX);
        let lost = u64::from(traffic.lost).min(geometry.tolerance().into());
        if geometry.level() == Level::Raid0 {
            let share = Ratio::new(1, u64::from(geometry.members()));
            return Self::of(share, share, Ratio::NONE);
        }
        let partial = partial_bytes(geometry, request, traffic.gathered);
        let (whole, small) = (Cost::whole(geometry, lost), Cost::small(geometry, request, lost));
        let mix = |whole, small| Ratio::mix(whole, small, partial, request);
        Self::of(
            mix(whole.device(), small.device()),
            mix(whole.network(), small.network()),
            Ratio::new(partial, request),
        )
    }

    fn of(device: Ratio, network: Ratio, through_log: Ratio) -> Self {
        Self { device, network: network.times(NETWORK, NETWORK_PER), through_log }
    }

    /// What each member must give so that the volume's data moves at `rate`, in that of its device
    /// and of its network, rounded up; none when that is no rate.
    #[must_use]
    pub fn rates(&self, rate: Rate) -> Option<(Rate, Rate)> {
        Some((self.device.of(rate)?, self.network.of(rate)?))
    }

    /// The highest rate at which the volume's data can be moved when each member can still give
    /// `left`.
    #[must_use]
    pub fn most(&self, left: &Resources) -> Rate {
        self.device.most(left.device).min(self.network.most(left.network))
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

/// What a member does while `per` bytes of the volume are moved.
struct Cost {
    /// Bytes that it reads, when those are read.
    read: u64,
    /// Bytes that it writes, when those are written.
    write: u64,
    /// Bytes that it reads, when those are written.
    write_reads: u64,
    per: u64,
}

impl Cost {
    /// In whole stripes.
    fn whole(geometry: &Geometry, lost: u64) -> Self {
        let live = u64::from(geometry.members()) - lost;
        let rows = geometry.chunk_len() / LOG_BLOCK_LEN;
        let record = remap_blocks(rows, u32::from(geometry.members()) * rows);
        let record = copies(geometry) * u64::from(record) * u64::from(LOG_BLOCK_LEN);
        // Degraded, all that is left of a stripe is read.
        let read = live * u64::from(geometry.chunk_len());
        Self { read, write: read + record, write_reads: 0, per: live * geometry.stripe_data_len() }
    }

    /// In requests of less than a stripe, in any order.
    fn small(geometry: &Geometry, request: u64, lost: u64) -> Self {
        let members = u64::from(geometry.members());
        let live = members - lost;
        let (copies, checks) = (copies(geometry), logged_checks(geometry));
        let block = u64::from(LOG_BLOCK_LEN);
        let unaligned = u64::from(!request.is_multiple_of(block));
        let blocks = request.div_ceil(block) + unaligned;
        // Each request may be a batch of its own, and so may its rows' checks: a block of head.
        let heads = if checks == 0 { 1 } else { 2 };
        let to_log = copies * (blocks * (1 + checks) + heads);
        let home = blocks * (u64::from(geometry.tolerance()) + 1);
        let old = if checks == 0 { 0 } else { (1 + checks) * (1 + lost * lost) };
        // Blocks that are written in part are read before.
        let reads = blocks * (old + unaligned * (1 + lost));
        Self {
            read: blocks * block * (1 + lost) * live,
            write: (to_log + home) * block * members,
            write_reads: reads * block * members,
            per: live * members * request,
        }
    }

    /// A device does one thing at a time.
    fn device(&self) -> Ratio {
        self.ratio(self.read.max(self.write + self.write_reads))
    }

    /// A network carries both directions at the same time.
    fn network(&self) -> Ratio {
        self.ratio(self.read.max(self.write).max(self.write_reads))
    }

    fn ratio(&self, bytes: u64) -> Ratio {
        Ratio::new(bytes, self.per).times(PAGES, PAGES_PER)
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
        for request in [4096, 64 << 10, 1 << 20] {
            // A thirty-second more on the network, rounded up.
            assert_eq!(rates(&four, request, 0, 1000), (250, 258));
        }
    }

    #[test]
    fn whole_stripes_cost_a_data_column_and_a_record() {
        // A stripe of 256 KiB: 64 KiB of each member, and two blocks of log on two of the four
        // that are left. All with a 128th for pages.
        let five = geometry(Level::Raid5, 5, 64 << 10);
        let rate = (256 << 10) * 128;
        let each: u64 = ((64 << 10) + 2 * 4096 / 4) * 129;
        assert_eq!(rates(&five, 256 << 10, 1, rate), (each, (each * 33).div_ceil(32)));
        assert_eq!(each, 8_718_336); // Of 33,554,432: 26%.
        // Healthy, that log is on five.
        let healthy = ((64_u64 << 10) * 129 * 5 + 2 * 4096 * 129).div_ceil(5);
        assert_eq!(rates(&five, 256 << 10, 0, rate).0, healthy);
        // A stripe of two data columns of 1 MiB, and three records of two blocks: 1,024 checksums
        // are 4 KiB.
        let four = geometry(Level::Raid6, 4, 1 << 20);
        let each = (1 << 20) * 129 + 3 * 2 * 4096 * 129 / 2;
        assert_eq!(rates(&four, 2 << 20, 2, (2 << 20) * 128).0, each);
        // Mirrors: everything on each.
        let two = geometry(Level::Raid1, 2, 1 << 20);
        assert_eq!(rates(&two, 1 << 20, 1, (1 << 20) * 128).0, ((1 << 20) + 2 * 4096) * 129);
    }

    #[test]
    fn small_writes_cost_what_the_log_and_the_way_home_do() {
        let blocks = |level, members, request: u64, lost| {
            let rate = request * 128 * 1000;
            let (device, network) = rates(&geometry(level, members, 1 << 20), request, lost, rate);
            (device.div_ceil(129 * 4096), network.div_ceil(129 * 4096))
        };
        let thousand = |blocks: u64, by: u64| (blocks * 1000).div_ceil(by);
        let network = |blocks: u64, by: u64| (blocks * 1000 * 33).div_ceil(by * 32);
        // One block: block, check, two heads, on two members each; home both, of which both old
        // ones are read.
        let five = |lost| blocks(Level::Raid5, 5, 4096, lost);
        assert_eq!(five(0), (thousand(8 + 2 + 2, 5), network(8 + 2, 5)));
        // Degraded up to twice as much is read, and four share it.
        assert_eq!(five(1), (thousand(8 + 2 + 4, 4), network(8 + 2, 4)));
        // 16 blocks, two checks each, on three members: 3 x (48 + 2); home 48, read 48.
        let six = blocks(Level::Raid6, 6, 64 << 10, 0);
        assert_eq!(six, (thousand(150 + 48 + 48, 6), network(150 + 48, 6)));
        // Mirrors have no checks to log, and read nothing old.
        let ten = blocks(Level::Raid10, 4, 4096, 0);
        assert_eq!(ten, (thousand(4 + 2, 4), network(4 + 2, 4)));
        // Blocks that are written in part are two, and are read before.
        let mirror = blocks(Level::Raid1, 2, 1000, 0);
        let edges = |blocks: u64| (blocks * 4096 * 1000 * 1000).div_ceil(2 * 1000 * 4096 * 1000);
        assert!(mirror.0 >= edges(2 * 3 + 4 + 2));
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
                // In chunks, out of all of the volume.
                let all = stripes * u64::from(k);
                let cost = Cost::small(&geometry, 64 << 10, lost.count_ones().into());
                let booked = Ratio::new(cost.read, cost.per).of(Rate(all)).unwrap();
                assert!(
                    alone.iter().all(|reads| *reads <= booked.0),
                    "{level:?} {lost:b} {alone:?}"
                );
                let cost = Cost::whole(&geometry, lost.count_ones().into());
                let booked = Ratio::new(cost.read, cost.per).of(Rate(all)).unwrap();
                assert!(together.iter().all(|reads| *reads <= booked.0), "{level:?} {lost:b}");
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
