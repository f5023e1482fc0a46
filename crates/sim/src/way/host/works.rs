//! What is done at a host's disk, and what becomes of it when the program or the power ends.

use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Op, SgList, narrow};
use netraid_iscsi_proto::target::ConnectionId;
use netraid_scsi::MediumRequest;

use super::{AtDisk, Host};
use crate::{
    dice::Dice,
    way::{
        agent::Agent,
        counts::Count,
        desk::Desk,
        interface::{Effect, HostConfig},
        reach::Work,
        stream::Streams,
        watch::Applied,
    },
};

impl Host {
    pub(super) fn carry_out(
        &mut self,
        desk: &mut Desk,
        streams: &Streams,
        at: &AtDisk,
    ) -> Result<SgList, IoError> {
        match &at.work {
            Work::Nothing => Err(ErrorKind::Aborted.into()),
            Work::Store(bytes) => {
                desk.count(Count::Stored);
                self.kept.clone_from(bytes);
                Ok(SgList::new())
            }
            Work::Request(_) | Work::Pieces(_) if self.is_failing => Err(ErrorKind::Device.into()),
            Work::Request(request) => {
                if request.op == Op::Write && streams.engine_has_left(at.stream) {
                    desk.count(Count::LateWrite);
                }
                self.note_effect(desk, at, request, false);
                self.access(desk, request)
            }
            Work::Pieces(pieces) => {
                let mut read = SgList::new();
                for piece in pieces {
                    read.append(self.access(desk, piece)?);
                }
                Ok(read)
            }
        }
    }

    fn access(&mut self, desk: &mut Desk, request: &MediumRequest) -> Result<SgList, IoError> {
        let block_len = u64::from(self.disk.shape().block_len);
        let first = request.offset / block_len;
        let blocks = first..first + request.len / block_len;
        match request.op {
            Op::Read => {
                desk.count(Count::Read);
                self.disk.read(blocks).map_err(|_| {
                    desk.count(Count::MediumError);
                    ErrorKind::Medium.into()
                })
            }
            Op::Write => {
                desk.count(Count::Write);
                self.disk.write(first, &request.data, request.flags.fua);
                Ok(SgList::new())
            }
            Op::Flush => {
                desk.count(Count::Flush);
                Ok(SgList::new())
            }
            Op::Discard if self.config.disk.can_discard => {
                desk.count(Count::Discard);
                self.disk.discard(blocks);
                Ok(SgList::new())
            }
            Op::Discard => Ok(SgList::new()),
            Op::WriteZeroes => {
                desk.count(Count::Discard);
                let zeroes = SgList::zeroes(narrow(request.len));
                self.disk.write(first, &zeroes, request.flags.fua);
                Ok(SgList::new())
            }
            Op::Extents => Err(ErrorKind::Unsupported.into()),
        }
    }

    fn note_effect(&self, desk: &mut Desk, at: &AtDisk, request: &MediumRequest, is_torn: bool) {
        let MediumRequest { op, offset, len, .. } = *request;
        desk.trace.mix(&[0xd15c, self.id.0 as u64, op as u64, offset, len]);
        let is_late = desk.watch.note_applied(&Applied {
            host: self.id,
            line: at.line,
            op,
            offset,
            len,
            data: &request.data,
            fua: request.flags.fua,
            is_torn,
            is_outsider: at.is_outsider,
        });
        if is_late {
            desk.count(Count::LateAfterSilence);
        }
        let effect = Effect {
            at: desk.now(),
            host: self.id,
            engine: at.engine,
            stream: at.stream,
            op,
            offset,
            len,
            is_torn,
        };
        if let Some(effects) = &mut desk.effects {
            effects.push(effect);
        }
    }

    /// Of what is at the disk each thing is carried out, or torn, or not, in any order.
    pub(super) fn end_works(&mut self, desk: &mut Desk, streams: &Streams) {
        if !self.works.is_empty() {
            desk.count(Count::KilledUnderWay);
        }
        let mut works: Vec<AtDisk> = core::mem::take(&mut self.works).into_values().collect();
        self.dice.shuffle(&mut works);
        for at in works {
            let is_write = matches!(&at.work, Work::Request(request) if request.op == Op::Write);
            match self.dice.below(3) {
                0 => {}
                1 if is_write => self.tear(desk, at),
                _ => {
                    // Nobody waits for how it ends.
                    let _ = self.carry_out(desk, streams, &at);
                }
            }
        }
    }

    fn tear(&mut self, desk: &mut Desk, at: AtDisk) {
        let Work::Request(request) = &at.work else { return };
        if self.is_failing {
            return;
        }
        desk.count(Count::TornWrite);
        let first = request.offset / u64::from(self.disk.shape().block_len);
        self.disk.tear(first, &request.data, request.flags.fua, &mut self.dice);
        self.note_effect(desk, &at, request, true);
    }

    pub(super) fn lose_cache(&mut self, desk: &mut Desk) {
        desk.watch.note_power_fails(self.id, &self.disk);
        self.disk.lose_power(&mut self.dice);
        desk.watch.note_power_failed(self.id, &self.disk);
    }
}

/// What is wrong with something that comes to the disk of an agent, if anything is.
pub(super) fn wrong_to(agent: &Agent, connection: ConnectionId, work: &Work) -> Option<String> {
    let place = |request: &MediumRequest| (request.offset, request.len);
    match work {
        Work::Store(_) | Work::Nothing => None,
        Work::Request(request) if request.op == Op::Flush => {
            agent.what_is_wrong(connection, (request.op, &[]))
        }
        Work::Request(request) => agent.what_is_wrong(connection, (request.op, &[place(request)])),
        Work::Pieces(pieces) => {
            let op = pieces.first()?.op;
            let places: Vec<_> = pieces.iter().map(place).collect();
            agent.what_is_wrong(connection, (op, &places))
        }
    }
}

/// How long something takes at the disk.
pub(super) fn work_time(config: &HostConfig, dice: &mut Dice, work: &Work) -> Duration {
    let disk = &config.disk;
    match work {
        Work::Nothing => Duration::ZERO,
        Work::Store(_) => dice.time_in(&disk.store),
        Work::Request(_) | Work::Pieces(_) if dice.one_in(disk.slow_one_in) => {
            dice.time_in(&disk.slow)
        }
        Work::Request(_) | Work::Pieces(_) => dice.time_in(&disk.latency),
    }
}
