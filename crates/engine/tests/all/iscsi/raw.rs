//! An initiator of a few PDUs that a test sends one by one, and what only such a one can show.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use netraid_block::{BlockDevice, Device, DeviceInfo, Op, Request};
use netraid_engine::target::Identity;
use netraid_iscsi_proto::{
    pdu::{
        Bhs, LoginRequest, LoginResponse, LunField, Opcode, ScsiCommand, TaskFunction, TaskRequest,
        TaskResponse, TaskResponseCode,
    },
    serial::Serial,
    text,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::iscsi::{
    common::{NAME, Running, config, ram},
    fencing::{PREEMPT_AND_ABORT, REGISTER, reserve_out},
};

const ABORT_ITT: u32 = 0xabcd;

pub(crate) struct Raw {
    stream: TcpStream,
    cmd_sn: Serial,
    itt: u32,
    /// Where commands go.
    pub(crate) lun: u16,
}

impl Raw {
    /// A connection that somebody else logs in.
    pub(crate) async fn dial(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        Ok(Self { stream, cmd_sn: Serial(1), itt: 0, lun: 0 })
    }

    /// Logs in; the inner error is the status of a refusal.
    pub(crate) async fn log_in(address: SocketAddr, isid: u8) -> io::Result<Result<Self, u16>> {
        let mut raw = Self::dial(address).await?;
        let request = LoginRequest {
            transit: true,
            more: false,
            current_stage: 1,
            next_stage: 3,
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, isid],
            tsih: 0,
            itt: 0,
            cid: 1,
        };
        let mut keys = Vec::new();
        let name = "iqn.2026-01.org.example:raw";
        for (key, value) in [("InitiatorName", name), ("TargetName", NAME)] {
            text::push(&mut keys, key, value);
        }
        let mut bhs = request.encode();
        bhs.stamp_command(raw.cmd_sn, Serial(0));
        raw.send(bhs, &keys).await?;
        let response = LoginResponse::parse(&raw.receive().await?);
        Ok(if response.status == 0 { Ok(raw) } else { Err(response.status) })
    }

    pub(crate) async fn send(&mut self, bhs: Bhs, data: &[u8]) -> io::Result<()> {
        let mut bytes = bhs.with_data_len(u32::try_from(data.len()).unwrap()).0.to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.stream.write_all(&bytes).await
    }

    pub(crate) async fn receive(&mut self) -> io::Result<Bhs> {
        self.receive_with().await.map(|(bhs, _)| bhs)
    }

    /// The next PDU, and its data.
    pub(crate) async fn receive_with(&mut self) -> io::Result<(Bhs, Vec<u8>)> {
        let mut bhs = Bhs([0; 48]);
        self.stream.read_exact(&mut bhs.0).await?;
        let len = usize::try_from(bhs.data_len()).unwrap().next_multiple_of(4);
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).await?;
        Ok((bhs, data))
    }

    /// Sends a command without Data-Out; its tag.
    pub(crate) async fn command(&mut self, cdb: &[u8], read_len: u32) -> u32 {
        self.command_with(cdb, read_len, &[]).await
    }

    /// Sends a command with all its Data-Out, which has to fit into one PDU; its tag.
    pub(crate) async fn command_with(&mut self, cdb: &[u8], read_len: u32, data: &[u8]) -> u32 {
        self.itt += 1;
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let command = ScsiCommand {
            immediate: false,
            last: true,
            read: read_len > 0,
            write: !data.is_empty(),
            attribute: 1,
            lun: LunField::from_number(self.lun),
            itt: self.itt,
            expected_len: read_len + u32::try_from(data.len()).unwrap(),
            cdb: padded,
        };
        let mut bhs = command.encode();
        bhs.stamp_command(self.cmd_sn, Serial(0));
        self.cmd_sn = self.cmd_sn.next();
        self.send(bhs, data).await.unwrap();
        self.itt
    }

    /// Takes the unit attention that the first command of a session gets.
    pub(crate) async fn take_attention(&mut self) {
        self.command(&[0; 6], 0).await;
        self.receive().await.unwrap();
    }

    pub(crate) async fn manage(&mut self, function: TaskFunction, referenced_itt: u32) {
        let request = TaskRequest {
            immediate: true,
            function,
            lun: LunField::from_number(0),
            itt: ABORT_ITT,
            referenced_itt,
            ref_cmd_sn: 0,
        };
        let mut bhs = request.encode();
        bhs.stamp_command(self.cmd_sn, Serial(0));
        self.send(bhs, &[]).await.unwrap();
    }

    pub(crate) async fn managed(&mut self) {
        let bhs = self.receive().await.unwrap();
        assert_eq!(bhs.opcode(), Some(Opcode::TaskResponse));
        assert_eq!(TaskResponse::parse(&bhs).code, TaskResponseCode::Complete);
    }
}

#[tokio::test]
async fn a_session_whose_peer_takes_nothing_can_be_replaced() {
    let target = Running::start(config(), &[ram()]);
    let mut old = Raw::log_in(target.address, 7).await.unwrap().unwrap();
    old.take_attention().await;
    let mut read = [0; 16];
    (read[0], read[12]) = (0x88, 0x10);
    // More than the sockets on the way hold, so that the target cannot send its answers.
    for _ in 0..60 {
        old.command(&read, 4096 * 512).await;
    }
    // Each makes the target fill what the kernel took of its queue meanwhile, until that is full.
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        old.command(&[0; 6], 0).await;
    }
    let started = Instant::now();
    let fresh = Raw::log_in(target.address, 7);
    let fresh = tokio::time::timeout(Duration::from_secs(5), fresh).await.unwrap();
    fresh.unwrap().unwrap().take_attention().await;
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    target.stop().await;
}

/// A device that holds requests of one kind until the test lets them go, one by one.
struct Gate {
    inner: Device,
    kind: Op,
    held: Mutex<Vec<Request>>,
    seen: AtomicU64,
    arrived: tokio::sync::Notify,
}

impl Gate {
    fn of(kind: Op) -> Arc<Self> {
        let (held, arrived) = (Mutex::default(), tokio::sync::Notify::new());
        Arc::new(Self { inner: ram(), kind, held, seen: AtomicU64::new(0), arrived })
    }

    fn release(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.into_iter().for_each(|request| self.inner.submit(request));
    }
}

impl BlockDevice for Gate {
    fn info(&self) -> DeviceInfo {
        self.inner.info().clone()
    }

    fn submit(&self, request: Request) {
        if request.op == self.kind {
            self.seen.fetch_add(1, Ordering::AcqRel);
            self.held.lock().unwrap().push(request);
            self.arrived.notify_one();
        } else {
            self.inner.submit(request);
        }
    }
}

/// WRITE SAME of nearly all 16384 blocks, which takes several writes.
const WRITE_SAME: [u8; 10] = [0x41, 0, 0, 0, 0, 0, 0, 0x3f, 0xff, 0];
/// What it repeats.
const BLOCK: [u8; 512] = [7; 512];

#[tokio::test]
async fn an_aborted_command_begins_no_further_step() {
    let gate = Gate::of(Op::Write);
    let target = Running::start(config(), &[Device::new(gate.clone())]);
    let mut raw = Raw::log_in(target.address, 7).await.unwrap().unwrap();
    raw.take_attention().await;
    let itt = raw.command_with(&WRITE_SAME, 0, &BLOCK).await;
    gate.arrived.notified().await;
    raw.manage(TaskFunction::AbortTask, itt).await;
    // What comes after the request has been answered, so the request has been taken.
    raw.command(&[0; 6], 0).await;
    assert_eq!(raw.receive().await.unwrap().opcode(), Some(Opcode::ScsiResponse));
    gate.release();
    raw.managed().await;
    assert_eq!(gate.seen.load(Ordering::Acquire), 1, "it went on");
    target.stop().await;
}

#[tokio::test]
async fn a_command_ends_with_its_connection() {
    let gate = Gate::of(Op::Write);
    let target = Running::start(config(), &[Device::new(gate.clone())]);
    let mut raw = Raw::log_in(target.address, 7).await.unwrap().unwrap();
    raw.take_attention().await;
    raw.command_with(&WRITE_SAME, 0, &BLOCK).await;
    gate.arrived.notified().await;
    drop(raw);
    // The same initiator port is admitted once the old session's command has ended.
    let fresh = tokio::spawn(Raw::log_in(target.address, 7));
    let pause = tokio::time::sleep(Duration::from_millis(100));
    pause.await;
    assert!(!fresh.is_finished(), "admitted while a command runs");
    gate.release();
    let fresh = tokio::time::timeout(Duration::from_secs(3), fresh).await.unwrap();
    fresh.unwrap().unwrap().unwrap().take_attention().await;
    assert_eq!(gate.seen.load(Ordering::Acquire), 1, "it went on");
    target.stop().await;
}

#[tokio::test]
async fn a_reset_is_answered_when_nothing_of_others_is_under_way() {
    let gate = Gate::of(Op::Write);
    let target = Running::start(config(), &[Device::new(gate.clone())]);
    let mut one = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    one.take_attention().await;
    let mut two = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    two.take_attention().await;
    one.command_with(&WRITE_SAME, 0, &BLOCK).await;
    gate.arrived.notified().await;
    two.manage(TaskFunction::LogicalUnitReset, u32::MAX).await;
    two.command(&[0; 6], 0).await;
    let first = two.receive().await.unwrap().opcode();
    assert_eq!(first, Some(Opcode::ScsiResponse), "a write of the other session still runs");
    gate.release();
    two.managed().await;
    assert_eq!(gate.seen.load(Ordering::Acquire), 1, "it went on");
    target.stop().await;
}

/// What TEST UNIT READY tells until there is nothing more: additional sense codes.
async fn told(raw: &mut Raw) -> Vec<[u8; 2]> {
    let mut told = Vec::new();
    loop {
        let itt = raw.command(&[0; 6], 0).await;
        let (bhs, data) = raw.receive_with().await.unwrap();
        assert_eq!(bhs.itt(), itt, "the status of another command came");
        match data.get(14..16) {
            Some(additional) => told.push([additional[0], additional[1]]),
            None => return told,
        }
    }
}

/// TAS is zero: commands that another nexus aborts end without status, and their initiator is told
/// once (SAM-5, sections 5.6 and 5.14; SPC-4, section 5.13.11.5).
#[tokio::test]
async fn who_lost_commands_to_another_nexus_hears_of_that_alone() {
    let reset = TaskFunction::LogicalUnitReset;
    let (cleared, preempted) = ([0x2f, 0x00], [0x2a, 0x05]);
    for (function, expected) in [
        (Some(TaskFunction::ClearTaskSet), vec![cleared]),
        (Some(reset), vec![[0x29, 0x03]]),
        (None, vec![cleared, preempted]),
    ] {
        let gate = Gate::of(Op::Write);
        let target = Running::start(config(), &[Device::new(gate.clone())]);
        let mut one = Raw::log_in(target.address, 1).await.unwrap().unwrap();
        let mut two = Raw::log_in(target.address, 2).await.unwrap().unwrap();
        for (raw, key) in [(&mut one, 1), (&mut two, 2)] {
            raw.take_attention().await;
            reserve_out(raw, REGISTER, 0, 0, key).await;
            assert_eq!(raw.receive().await.unwrap().0[3], 0, "registered");
        }
        one.command_with(&WRITE_SAME, 0, &BLOCK).await;
        gate.arrived.notified().await;
        match function {
            Some(function) => two.manage(function, u32::MAX).await,
            None => drop(reserve_out(&mut two, PREEMPT_AND_ABORT, 0, 2, 1).await),
        }
        // What comes after it has been answered, so it has been taken.
        let itt = two.command(&[0; 6], 0).await;
        assert_eq!(two.receive().await.unwrap().itt(), itt);
        gate.release();
        match function {
            Some(_) => two.managed().await,
            None => assert_eq!(two.receive().await.unwrap().0[3], 0, "preempted"),
        }
        assert_eq!(told(&mut one).await, expected, "{function:?}");
        target.stop().await;
    }
}

/// EXTENDED COPY of the first block of LUN 1 to LUN 0, and its parameters (SPC-4, section 6.4).
fn copy_to_lun_0() -> ([u8; 16], Vec<u8>) {
    let mut list = vec![0; 16];
    (list[3], list[11]) = (2 * 32, 28);
    for lun in [0, 1] {
        let naa = 0x3 << 60 | Identity::for_lun(NAME, lun).naa;
        list.extend([0xe4, 0, 0, 0, 1, 3, 0, 8]);
        list.extend(naa.to_be_bytes());
        list.extend([0; 16]);
    }
    list.extend([2, 0, 0, 0x18, 0, 1, 0, 0, 0, 0, 0, 1]);
    list.extend([0; 16]);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, u8::try_from(list.len()).unwrap());
    (cdb, list)
}

#[tokio::test]
async fn a_reset_is_answered_when_no_copy_writes_to_the_logical_unit_any_more() {
    let gate = Gate::of(Op::Write);
    let target = Running::start(config(), &[Device::new(gate.clone()), ram()]);
    let mut one = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    one.take_attention().await;
    let mut two = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    two.take_attention().await;
    let (cdb, list) = copy_to_lun_0();
    // The first one hears of the power on; the copy is a command to LUN 1.
    one.lun = 1;
    one.command_with(&cdb, 0, &list).await;
    one.receive().await.unwrap();
    one.command_with(&cdb, 0, &list).await;
    gate.arrived.notified().await;
    two.manage(TaskFunction::LogicalUnitReset, u32::MAX).await;
    // What comes after it is answered by far when the other session has been asked.
    for _ in 0..20 {
        two.command(&[0; 6], 0).await;
        let answer = two.receive().await.unwrap().opcode();
        assert_eq!(answer, Some(Opcode::ScsiResponse), "a write of the copy is under way");
    }
    gate.release();
    two.managed().await;
    assert_eq!(one.receive().await.unwrap().opcode(), Some(Opcode::ScsiResponse));
    target.stop().await;
}
