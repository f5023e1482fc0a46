//! What happens around the sessions of a target: gates move, policies and grants change, grants of
//! a pace and judgements come late; and commands that need more than a pattern.

use arbitrary::Arbitrary;
use netraid_block::ErrorKind;
use netraid_iscsi_proto::{
    pdu::{LunField, ScsiCommand},
    target::Realm,
};
use netraid_node::Gate;
use netraid_scsi::Identity;

use super::{
    BLOCK_LEN, World,
    lun::Denied,
    outside::{CopyOrder, Judgement},
};
use crate::wire::TARGET;

#[derive(Debug, Arbitrary)]
pub(super) enum Around {
    Gate { lun: u8, to: u8 },
    Policy { lun: u8, denied: u8, from: u8 },
    Grant { which: u8, count: u8 },
    EndGrant { at: u8 },
    Admit { at: u8, how: u8 },
    Work { lun: u8, steps: u8, failure: u8 },
    CompleteSome { which: u8, count: u8, failure: u8 },
    TransmitSome { at: u8, count: u8 },
    Copy { at: u8, lun: u8, order: CopyBytes },
    Reserve { at: u8, lun: u8, action: u8, kind: u8, key: u8, other: u8 },
    Sanitize { at: u8, lun: u8, how: u8 },
    Break { at: u8 },
}

#[derive(Debug, Arbitrary)]
pub(super) struct CopyBytes {
    from: u8,
    to: u8,
    lba: u8,
    onto: u8,
    blocks: u8,
}

impl World {
    pub(super) fn perform_around(&mut self, around: Around) {
        match around {
            Around::Gate { lun, to } => self.move_gate(u16::from(lun % 3), to),
            Around::Policy { lun, denied, from } => self.set_policy(lun, denied, from),
            Around::Grant { which, count } => {
                (0..=count % 8).for_each(|_| self.grant(usize::from(which)));
            }
            Around::EndGrant { at } => {
                if let Some(index) = self.index(at)
                    && let Some(guest) = &self.served[index].reach.guest
                {
                    guest.has_ended.set(true);
                }
            }
            Around::Admit { at, how } => self.admit(at, how % 8),
            Around::Work { lun, steps, failure } => {
                self.work(u16::from(lun % 3), steps % 16, failure);
            }
            Around::CompleteSome { which, count, failure } => {
                self.complete_some(which, count, failure);
            }
            Around::TransmitSome { at, count } => {
                if let Some(index) = self.index(at) {
                    (0..=count % 8).take_while(|_| self.take_pdu(index)).for_each(drop);
                    self.transmitted(index);
                }
            }
            Around::Copy { at, lun, order } => self.copy(at, lun, &order),
            Around::Reserve { at, lun, action, kind, key, other } => {
                self.reserve(at, lun, (action, kind), (key, other));
            }
            Around::Sanitize { at, lun, how } => self.sanitize(at, lun, how),
            Around::Break { at } => {
                if let Some(index) = self.index(at) {
                    self.break_off(index);
                }
            }
        }
    }

    fn move_gate(&mut self, number: u16, to: u8) {
        match to % 5 {
            0 => self.set_gate(number, Gate::Held),
            1 => self.set_gate(number, Gate::Open),
            2 => self.retire(number),
            3 => self.remove(number),
            _ if self.shared.find(number).is_none() => self.shared.add_lun(number, to & 0x80 != 0),
            _ => {}
        }
    }

    /// Whoever leaves does not come back.
    fn set_gate(&self, number: u16, gate: Gate) {
        let Some(lun) = self.shared.find(number) else { return };
        if lun.house.gate() != Gate::Leaving {
            lun.house.set(gate);
            self.note_there(number);
        }
    }

    fn note_there(&self, number: u16) {
        let Some(lun) = self.shared.find(number) else { return };
        let commands = self.served.iter().flat_map(|served| served.reach.commands.values());
        let began = commands.filter(|command| command.lun == Some(number) && command.began);
        *lun.there.borrow_mut() = began.map(|command| command.generation).collect();
    }

    pub(super) fn retire(&mut self, number: u16) {
        let Some(lun) = self.shared.find(number) else { return };
        if lun.house.gate() == Gate::Leaving {
            return;
        }
        self.shared.units.borrow_mut().retire(number);
        lun.house.set(Gate::Leaving);
        self.note_there(number);
        self.end_waits(number, Err(ErrorKind::Aborted));
    }

    /// A LUN that leaves goes when nothing is there any more.
    pub(super) fn remove(&mut self, number: u16) {
        let Some(lun) = self.shared.find(number) else { return };
        if lun.house.gate() != Gate::Leaving || lun.house.running() > 0 {
            return;
        }
        self.check_running(&lun);
        self.shared.units.borrow_mut().remove(number);
        self.shared.luns.borrow_mut().retain(|lun| lun.number != number);
        self.shared.node.borrow_mut().remove_lun(Realm::HOME, number);
        // What comes to it from here on is found by whoever asks who is there.
        self.gone.push(lun);
    }

    fn set_policy(&self, lun: u8, denied: u8, from: u8) {
        let Some(lun) = self.shared.find(u16::from(lun % 3)) else { return };
        let denied = (denied & 3 != 0).then_some(Denied {
            reads: denied & 1 != 0,
            changes: denied & 2 != 0,
            from: u64::from(from % 64) * BLOCK_LEN as u64,
            only_requests: denied & 4 != 0,
        });
        lun.set_denied(denied);
    }

    pub(super) fn grant(&mut self, which: usize) {
        let granted = self.shared.pace.borrow_mut().grant(which);
        if let Some(id) = granted {
            self.shared.wake(id);
        }
    }

    /// It is known whether a login goes on.
    pub(super) fn admit(&mut self, at: u8, how: u8) {
        let Some(index) = self.index(at) else { return };
        let served = &mut self.served[index];
        if served.reach.judgement == Judgement::Waits {
            served.reach.judgement = Judgement::Known { how };
            self.shared.wake(served.id);
        }
    }

    fn copy(&mut self, at: u8, lun: u8, order: &CopyBytes) {
        let CopyBytes { from, to, lba, onto, blocks } = *order;
        let order = CopyOrder {
            from: u16::from(from % 3),
            to: u16::from(to % 3),
            lba: lba % 40,
            onto: onto % 40,
            blocks: 1 + blocks % 14,
        };
        let list = copy_list(&order);
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x83, list.len() as u8);
        self.command_with(at, lun, cdb, list, Some(order));
    }

    fn reserve(&mut self, at: u8, lun: u8, (action, kind): (u8, u8), (key, other): (u8, u8)) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action % 7, kind % 10, 24);
        let mut list = vec![0; 24];
        // Whether they are to be kept.
        (list[7], list[15], list[20]) = (key % 4, other % 4, key >> 2 & 1);
        self.command_with(at, lun, cdb, list, None);
    }

    fn sanitize(&mut self, at: u8, lun: u8, how: u8) {
        let mut cdb = [0; 16];
        // OVERWRITE, BLOCK ERASE, EXIT FAILURE MODE; IMMED; AUSE.
        let action = [0x01, 0x02, 0x02, 0x1f][usize::from(how % 4)];
        (cdb[0], cdb[1]) = (0x48, action | (how & 0x04) << 5 | (how & 0x08) << 2);
        let list = if action == 1 { vec![1, 0, 0, 1, 0xa5] } else { Vec::new() };
        cdb[8] = list.len() as u8;
        self.command_with(at, lun, cdb, list, None);
    }

    /// A command with data of its own, which comes along unless it has to be asked for.
    fn command_with(
        &mut self,
        at: u8,
        lun: u8,
        cdb: [u8; 16],
        data: Vec<u8>,
        copy: Option<CopyOrder>,
    ) {
        let Some(index) = self.index(at) else { return };
        let (itt, expected_len) = (self.itt(at), data.len() as u32);
        let len = if self.shared.setting.get().is_paced { 0 } else { expected_len };
        self.served[index].peer.bring(itt, data, copy);
        let command = ScsiCommand {
            immediate: false,
            last: true,
            read: false,
            write: expected_len > 0,
            attribute: 0,
            lun: LunField::from_number(u16::from(lun % 3)),
            itt,
            expected_len,
            cdb,
        };
        self.send(at, command.encode().with_data_len(len), &Vec::new(), None);
    }
}

/// The parameter list of an EXTENDED COPY of one segment, whose list identifier is not kept.
fn copy_list(order: &CopyOrder) -> Vec<u8> {
    let CopyOrder { from, to, lba, onto, blocks } = *order;
    let mut list = vec![0; 16];
    // No list identifier; two descriptors of 32 bytes, a segment of 28.
    (list[1], list[3], list[11]) = (0x18, 64, 28);
    for lun in [from, to] {
        let naa = 0x3 << 60 | Identity::for_lun(TARGET, lun).naa;
        let mut descriptor = vec![0; 32];
        descriptor[0] = 0xe4;
        descriptor[4..8].copy_from_slice(&[1, 3, 0, 8]);
        descriptor[8..16].copy_from_slice(&naa.to_be_bytes());
        list.extend(descriptor);
    }
    list.extend([0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, blocks]);
    list.extend(u64::from(lba).to_be_bytes());
    list.extend(u64::from(onto).to_be_bytes());
    list
}
