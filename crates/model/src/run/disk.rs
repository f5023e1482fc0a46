//! A disk: an arm that serves one access after another, and a cache of writes before it.

use core::time::Duration;
use std::collections::VecDeque;

use netraid_sim::{Dice, Seed, Time, station::Station};

use crate::{config::Disk, layout::Access};

#[derive(Debug)]
pub(super) struct DiskArm {
    pub(super) arm: Station,
    dice: Dice,
    /// Where the last access ended.
    next: u64,
    /// Writes that were acknowledged or are about to be, with when they are on the medium.
    cached: VecDeque<(Time, u64)>,
    cached_bytes: u64,
}

impl DiskArm {
    pub(super) fn new(seed: Seed, disk: usize) -> Self {
        Self {
            arm: Station::new(1),
            dice: seed.dice(&format!("disk {disk}")),
            next: u64::MAX,
            cached: VecDeque::new(),
            cached_bytes: 0,
        }
    }

    /// Queues an access; says when it is done, as the disk tells.
    pub(super) fn access(
        &mut self,
        now: Time,
        disk: &Disk,
        access: &Access,
        is_read: bool,
    ) -> Time {
        let mb_s = if is_read { disk.read_mb_s } else { disk.write_mb_s };
        let seconds = disk.overhead_us / 1e6 + f64::from(access.len) / (mb_s * 1e6);
        let mut work = Duration::from_secs_f64(seconds);
        if !disk.sequential_without_seek || access.offset != self.next {
            work += disk.seek.draw(&mut self.dice) + disk.rotation.draw(&mut self.dice);
        }
        self.next = access.offset + u64::from(access.len);
        let done = self.arm.serve(now, work);
        if is_read || disk.write_cache_bytes == 0 {
            return done;
        }
        self.cache(now, done, u64::from(access.len), disk.write_cache_bytes)
    }

    /// When there is room for a write that will be on the medium at `done`.
    fn cache(&mut self, now: Time, done: Time, len: u64, room: u64) -> Time {
        while let Some((_, len)) = self.cached.front().filter(|(done, _)| *done <= now) {
            self.cached_bytes -= len;
            self.cached.pop_front();
        }
        self.cached.push_back((done, len));
        self.cached_bytes += len;
        let (mut left, mut told) = (self.cached_bytes, now);
        for (done, len) in &self.cached {
            if left <= room {
                break;
            }
            left -= len;
            told = *done;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::Distribution;

    const MS: Duration = Duration::from_millis(1);

    fn disk(write_cache_bytes: u64) -> Disk {
        Disk {
            seek: Distribution::Constant { mean_ms: 10.0 },
            rotation: Distribution::Constant { mean_ms: 5.0 },
            overhead_us: 1000.0,
            read_mb_s: 1.0,
            write_mb_s: 0.5,
            sequential_without_seek: true,
            access_bytes_max: None,
            write_cache_bytes,
        }
    }

    fn at(ms: u32) -> Time {
        Time::START.after(ms * MS)
    }

    #[test]
    fn an_access_is_seek_rotation_and_transfer_and_one_in_a_row_is_transfer_alone() {
        let mut arm = DiskArm::new(Seed(1), 0);
        let mut read = |offset| {
            arm.access(Time::START, &disk(0), &Access { disk: 0, offset, len: 4000 }, true)
        };
        assert_eq!(read(0), at(20));
        assert_eq!(read(4000), at(25));
        assert_eq!(read(0), at(45));
    }

    #[test]
    fn a_cache_takes_writes_until_it_is_full() {
        let mut arm = DiskArm::new(Seed(1), 0);
        let mut write = |now, offset| {
            arm.access(at(now), &disk(8000), &Access { disk: 0, offset, len: 4000 }, false)
        };
        assert_eq!(write(0, 0), at(0));
        assert_eq!(write(0, 4000), at(0));
        // On the medium at 24, 33, 42: there is room for the third when the first is there.
        assert_eq!(write(0, 8000), at(24));
        assert_eq!(write(50, 0), at(50));
    }
}
