//! What a connection tells of itself to whoever judges it: three numbers, without a lock.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use super::places::{Doing, Look};

/// Clones are the same; the connection's task alone writes.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter(Arc<Told>);

#[derive(Debug, Default)]
struct Told {
    doing: AtomicU8,
    moved: AtomicU64,
    keeps: AtomicU64,
}

impl Meter {
    /// Tells what the connection does from now on.
    pub(super) fn tell(&self, look: Look) {
        self.0.doing.store(code(look.doing), Ordering::Relaxed);
        self.0.moved.store(look.moved, Ordering::Relaxed);
        self.0.keeps.store(look.keeps, Ordering::Relaxed);
    }

    /// What was told last.
    pub(super) fn look(&self) -> Look {
        let doing = doing(self.0.doing.load(Ordering::Relaxed));
        let [moved, keeps] =
            [&self.0.moved, &self.0.keeps].map(|number| number.load(Ordering::Relaxed));
        Look { doing, moved, keeps }
    }
}

const fn code(doing: Doing) -> u8 {
    match doing {
        Doing::Negotiates => 0,
        Doing::Silent => 1,
        Doing::Idle => 2,
        Doing::IdleWriter => 3,
        Doing::Works => 4,
        Doing::WaitsForClient => 5,
    }
}

const fn doing(code: u8) -> Doing {
    match code {
        0 => Doing::Negotiates,
        1 => Doing::Silent,
        2 => Doing::Idle,
        3 => Doing::IdleWriter,
        5 => Doing::WaitsForClient,
        // Nobody else writes other numbers.
        _ => Doing::Works,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_seen() {
        let meter = Meter::default();
        assert_eq!(meter.look(), Look { doing: Doing::Negotiates, moved: 0, keeps: 0 });
        let all = [
            Doing::Negotiates,
            Doing::Silent,
            Doing::Idle,
            Doing::IdleWriter,
            Doing::Works,
            Doing::WaitsForClient,
        ];
        for (moved, doing) in (1..).zip(all) {
            let look = Look { doing, moved, keeps: 10 * moved };
            meter.tell(look);
            assert_eq!(meter.look(), look);
        }
    }
}
