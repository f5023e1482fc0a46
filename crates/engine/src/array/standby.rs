//! Standing by for the engine that has an array: the devices are read about once a second, each one by a task of its own, over
//! sessions that disturb nobody and write nothing.
//!
//! What the readings mean, and when an attempt to open the array is made, [`netraid_raid::standby`] decides.

use std::time::Duration;

use netraid_block::Pool;
use netraid_raid::{
    heartbeat::Heartbeat,
    regions::{HEARTBEAT_OFFSETS, PAGE_LEN},
    standby::{READ_EVERY, Reading, Standby},
};
pub use netraid_raid::{
    opening::Silent,
    standby::{AFTER_MIN, AFTER_USUAL, Attempt, Outlook},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    ArrayError,
    member::{Connected, MemberConfig},
};

/// How often the machine is asked, at least.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// The devices of an array for which this process stands by.
#[derive(Debug)]
pub struct Watch {
    standby: Standby,
    readings: mpsc::Receiver<Told>,
    started: Instant,
    /// Those that read; they end with this.
    _readers: JoinSet<()>,
}

/// A device was read.
#[derive(Debug)]
struct Told {
    device: usize,
    begun: Duration,
    reading: Reading,
}

impl Watch {
    /// Begins to read these members and spares. Their engine is silent `after` that time without a sign of life.
    #[must_use]
    pub fn begin(
        mut devices: Vec<MemberConfig>,
        spares: Vec<MemberConfig>,
        after: Duration,
        pool: &Pool,
    ) -> Self {
        let spare = spares.len();
        devices.extend(spares);
        let (sender, readings) = mpsc::channel(devices.len().max(1));
        let started = Instant::now();
        let standby = Standby::new((devices.len(), spare), after, rand::random(), Duration::ZERO);
        let mut readers = JoinSet::new();
        for (device, config) in devices.into_iter().enumerate() {
            readers.spawn(follow((device, config), started, sender.clone(), pool.clone()));
        }
        Self { standby, readings, started, _readers: readers }
    }

    /// Waits until the array is to be opened, and tells what is known of it when that changes. Ends by [`Self::failed`], if
    /// the opening does not end this.
    pub async fn attempt(&mut self, mut tell: impl FnMut(Outlook)) -> Attempt {
        loop {
            let now = self.started.elapsed();
            let attempt = self.standby.poll(now);
            if let Some(outlook) = self.standby.news(now) {
                tell(outlook);
            }
            if let Some(attempt) = attempt {
                return attempt;
            }
            tokio::select! {
                Some(Told { device, begun, reading }) = self.readings.recv() => {
                    self.standby.handle_reading(self.started.elapsed(), (device, begun), reading);
                }
                () = sleep(ASK_EVERY) => {}
            }
        }
    }

    /// The array was not opened.
    pub fn failed(&mut self) {
        self.standby.handle_failed(self.started.elapsed());
    }
}

/// Reads a device again and again.
async fn follow(
    (device, config): (usize, MemberConfig),
    started: Instant,
    sender: mpsc::Sender<Told>,
    pool: Pool,
) {
    let mut session = None;
    loop {
        let begun = started.elapsed();
        match read(&mut session, &config, &pool).await {
            Ok(reading) => {
                if sender.send(Told { device, begun, reading }).await.is_err() {
                    // Nobody stands by any more.
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a member cannot be read while this engine stands by");
                if let Some(lost) = session.take() {
                    let lost: Connected = lost;
                    lost.remote.cut().await;
                }
            }
        }
        sleep(READ_EVERY).await;
    }
}

/// Reads a device once; a session that is made stays in `session`.
async fn read(
    session: &mut Option<Connected>,
    config: &MemberConfig,
    pool: &Pool,
) -> Result<Reading, ArrayError> {
    let connected = match session.take() {
        Some(connected) => connected,
        None => Connected::visit(config.clone(), pool.clone()).await?,
    };
    let connected = session.insert(connected);
    let label = connected.label().await?.map_err(|reason| {
        let address = connected.address();
        ArrayError::Label { address, reason }
    })?;
    let mut slots = Vec::with_capacity(HEARTBEAT_OFFSETS.len());
    for offset in HEARTBEAT_OFFSETS {
        slots.push(connected.read(offset, PAGE_LEN.into(), "reading heartbeats").await?);
    }
    let heartbeat = Heartbeat::newest(label.array_uuid, slots.iter().map(|slot| &**slot));
    let keys = connected.remote.reservation_keys().await.ok().map(|found| found.keys);
    Ok(Reading { label: Box::new(label), heartbeat, keys })
}
