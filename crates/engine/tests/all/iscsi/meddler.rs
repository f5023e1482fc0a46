//! A portal in front of a target that a test closes, opens and freezes, and that changes what the
//! target says.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use netraid_iscsi_proto::pdu::{Bhs, Opcode};
use netraid_scsi::{Additional, Sense, SenseKey, sense::SenseFormat};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    task::{JoinHandle, JoinSet},
};

const MODE_SENSE_6: u8 = 0x1a;

/// What is said instead of GOOD to the next command with an operation code.
struct Lie {
    code: u8,
    status: u8,
    sense: Vec<u8>,
}

/// What is said to every command with an operation code, however it ended.
struct Refusal {
    code: u8,
    /// Only to those that have the FUA bit.
    fua: bool,
    status: u8,
    sense: Vec<u8>,
    /// How often it was said.
    times: usize,
}

/// A command that has no answer yet.
#[derive(Clone, Copy)]
struct Sent {
    code: u8,
    fua: bool,
}

#[derive(Default)]
struct Shared {
    lies: VecDeque<Lie>,
    refusal: Option<Refusal>,
    /// Login responses that are still to become redirections, to there.
    redirect: Option<(u16, String)>,
    /// Connections that were made.
    connections: usize,
    /// The next answer to a command with this operation code ends the connection instead.
    cut: Option<u8>,
    /// Answers to commands with this operation code end the connection, or do not arrive.
    endless: Option<(u8, Endless)>,
    /// Requests to abort a task do not arrive.
    swallow_aborts: bool,
    /// The disk is said not to know the FUA bit.
    hide_fua: bool,
    /// The portal group that is said instead of 1.
    group: Option<u8>,
    /// Connections that are let in; all when none.
    connections_max: Option<usize>,
}

/// What becomes of the answers to some commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endless {
    /// The connection ends instead.
    Cut,
    /// Nothing.
    Silent,
}

pub(crate) struct Meddler {
    pub(crate) address: SocketAddr,
    target: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    open: Option<JoinHandle<()>>,
    frozen: tokio::sync::watch::Sender<bool>,
}

impl Meddler {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (frozen, _) = tokio::sync::watch::channel(false);
        let mut meddler = Self { address, target, shared: Arc::default(), open: None, frozen };
        meddler.listen(listener);
        meddler
    }

    fn listen(&mut self, listener: TcpListener) {
        let (target, shared, frozen) = (self.target, self.shared.clone(), self.frozen.subscribe());
        self.open = Some(tokio::spawn(async move {
            let mut relays = JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let Ok(far) = TcpStream::connect(target).await else { continue };
                {
                    let mut shared = shared.lock().unwrap();
                    if shared.connections_max.is_some_and(|max| shared.connections >= max) {
                        continue;
                    }
                    shared.connections += 1;
                }
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let commands = Arc::new(Mutex::new(BTreeMap::new()));
                let (out, there, back) = (commands.clone(), shared.clone(), shared.clone());
                relays.spawn(pass(near_in, far_out, frozen.clone(), move |bhs, _| {
                    if bhs.opcode() == Some(Opcode::ScsiCommand) {
                        let sent = Sent { code: bhs.0[32], fua: bhs.0[33] & 0x08 != 0 };
                        out.lock().unwrap().insert(bhs.itt(), sent);
                    }
                    let is_abort = bhs.opcode() == Some(Opcode::TaskRequest);
                    if is_abort && there.lock().unwrap().swallow_aborts {
                        return Fate::Swallow;
                    }
                    Fate::Pass
                }));
                relays.spawn(pass(far_in, near_out, frozen.clone(), move |bhs, data| {
                    meddle(&back, &commands, bhs, data)
                }));
            }
        }));
    }

    /// Nobody listens any more, and all connections end.
    pub(crate) async fn close(&mut self) {
        let open = self.open.take().expect("it is closed");
        open.abort();
        let _ = open.await;
    }

    /// Listens again at the same address.
    pub(crate) async fn reopen(&mut self) {
        for _ in 0..5000 {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            if socket.bind(self.address).is_ok() {
                return self.listen(socket.listen(64).unwrap());
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("{} is still taken", self.address);
    }

    /// Passes nothing any more, with all connections open.
    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.lock().unwrap().connections
    }

    /// The next command `code` that ends with GOOD is said to have met a unit attention.
    pub(crate) fn attention(&self, code: u8, asc: u8, ascq: u8) {
        let sense = Sense::new(SenseKey::UnitAttention, Additional { asc, ascq });
        let sense = sense.encode(SenseFormat::Fixed);
        self.shared.lock().unwrap().lies.push_back(Lie { code, status: 0x02, sense });
    }

    /// The next commands `code` that end with GOOD are said to have failed, so many of them.
    pub(crate) fn refuse(&self, code: u8, key: SenseKey, additional: Additional, times: usize) {
        let sense = Sense::new(key, additional).encode(SenseFormat::Fixed);
        for _ in 0..times {
            let lie = Lie { code, status: 0x02, sense: sense.clone() };
            self.shared.lock().unwrap().lies.push_back(lie);
        }
    }

    /// From now on all commands `code` are said to have failed; with `fua`, those that have the FUA bit.
    pub(crate) fn refuse_always(&self, code: u8, fua: bool, key: SenseKey, additional: Additional) {
        let sense = Sense::new(key, additional).encode(SenseFormat::Fixed);
        let refusal = Refusal { code, fua, status: 0x02, sense, times: 0 };
        self.shared.lock().unwrap().refusal = Some(refusal);
    }

    /// From now on all commands `code` are said to have met a reservation.
    pub(crate) fn conflict_always(&self, code: u8) {
        let refusal = Refusal { code, fua: false, status: 0x18, sense: Vec::new(), times: 0 };
        self.shared.lock().unwrap().refusal = Some(refusal);
    }

    /// How often what was refused always was refused.
    pub(crate) fn refused(&self) -> usize {
        self.shared.lock().unwrap().refusal.as_ref().map_or(0, |refusal| refusal.times)
    }

    /// The same by a deferred error: an earlier command has failed after all.
    pub(crate) fn deferred(&self, code: u8, key: SenseKey) {
        let mut sense = Sense::new(key, Additional::NONE);
        sense.deferred = true;
        let sense = sense.encode(SenseFormat::Fixed);
        self.shared.lock().unwrap().lies.push_back(Lie { code, status: 0x02, sense });
    }

    /// The next answer to a command `code` ends the connection instead.
    pub(crate) fn cut(&self, code: u8) {
        self.shared.lock().unwrap().cut = Some(code);
    }

    /// From now on commands `code` have no answer.
    pub(crate) fn answer_never(&self, code: u8, how: Endless) {
        self.shared.lock().unwrap().endless = Some((code, how));
    }

    /// Whether the connection was not cut yet.
    pub(crate) fn is_to_cut(&self) -> bool {
        self.shared.lock().unwrap().cut.is_some()
    }

    /// Requests to abort a task do not arrive.
    pub(crate) fn swallow_aborts(&self) {
        self.shared.lock().unwrap().swallow_aborts = true;
    }

    /// MODE SENSE says that there is no FUA bit (SBC-3, section 6.4.1: DPOFUA).
    pub(crate) fn hide_fua(&self) {
        self.shared.lock().unwrap().hide_fua = true;
    }

    /// The portal is said to be of another group than 1.
    pub(crate) fn be_of_group(&self, group: u8) {
        self.shared.lock().unwrap().group = Some(group);
    }

    /// Lets in no more than so many connections, those before included.
    pub(crate) fn let_in(&self, connections: Option<usize>) {
        self.shared.lock().unwrap().connections_max = connections;
    }

    /// The next command `code` that ends with GOOD is said to have met a reservation.
    pub(crate) fn conflict(&self, code: u8) {
        let lie = Lie { code, status: 0x18, sense: Vec::new() };
        self.shared.lock().unwrap().lies.push_back(lie);
    }

    /// The next command `code` that ends with GOOD is said to have wanted more data.
    pub(crate) fn overflow(&self, code: u8) {
        let lie = Lie { code, status: 0, sense: Vec::new() };
        self.shared.lock().unwrap().lies.push_back(lie);
    }

    /// Logins are sent elsewhere, with this status.
    pub(crate) fn redirect(&self, status: u16, to: impl Into<String>) {
        self.shared.lock().unwrap().redirect = Some((status, to.into()));
    }

    /// Logins are let in again.
    pub(crate) fn stay(&self) {
        self.shared.lock().unwrap().redirect = None;
    }

    /// Lies that were not told yet.
    pub(crate) fn lies_left(&self) -> usize {
        self.shared.lock().unwrap().lies.len()
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            open.abort();
        }
    }
}

fn meddle(
    shared: &Mutex<Shared>,
    commands: &Mutex<BTreeMap<u32, Sent>>,
    bhs: &mut Bhs,
    data: &mut Vec<u8>,
) -> Fate {
    let mut shared = shared.lock().unwrap();
    let sent = commands.lock().unwrap().get(&bhs.itt()).copied();
    let code = sent.map(|sent| sent.code);
    let is_answer = matches!(bhs.opcode(), Some(Opcode::ScsiResponse | Opcode::DataIn));
    if is_answer && shared.cut.take_if(|cut| Some(*cut) == code).is_some() {
        return Fate::Cut;
    }
    if let Some((_, how)) = shared.endless.filter(|(endless, _)| Some(*endless) == code)
        && is_answer
    {
        return match how {
            Endless::Cut => Fate::Cut,
            Endless::Silent => Fate::Swallow,
        };
    }
    // The status comes in a response, or with the last data.
    let has_status = match bhs.opcode() {
        Some(Opcode::ScsiResponse) => true,
        Some(Opcode::DataIn) => bhs.0[1] & 0x01 != 0,
        _ => false,
    };
    if let Some(refusal) = shared.refusal.as_mut().filter(|_| has_status)
        && sent.is_some_and(|sent| sent.code == refusal.code && (sent.fua || !refusal.fua))
    {
        refusal.times += 1;
        let (status, sense) = (refusal.status, refusal.sense.clone());
        become_refusal(bhs, data, status, &sense);
        return Fate::Pass;
    }
    match bhs.opcode() {
        Some(Opcode::LoginResponse) => {
            if let Some((status, to)) = &shared.redirect {
                *data = format!("TargetAddress={to}\0").into_bytes();
                bhs.0[1] = 0;
                bhs.0[36..38].copy_from_slice(&status.to_be_bytes());
            }
            const GROUP: &[u8] = b"TargetPortalGroupTag=1\0";
            let at = data.windows(GROUP.len()).position(|part| part == GROUP);
            if let (Some(group), Some(at)) = (shared.group, at) {
                data[at + GROUP.len() - 2] = b'0' + group;
            }
        }
        Some(Opcode::DataIn) if code == Some(MODE_SENSE_6) && shared.hide_fua => {
            data[2] &= !0x10;
        }
        Some(Opcode::ScsiResponse) if bhs.0[3] == 0 => {
            let lie = shared.lies.iter().position(|lie| Some(lie.code) == code);
            if let Some(lie) = lie.and_then(|at| shared.lies.remove(at)) {
                bhs.0[3] = lie.status;
                if lie.status == 0 {
                    bhs.0[1] |= 0x04;
                    bhs.0[44..48].copy_from_slice(&512_u32.to_be_bytes());
                }
                *data = Vec::new();
                if !lie.sense.is_empty() {
                    let len = u16::try_from(lie.sense.len()).unwrap();
                    *data = [&len.to_be_bytes()[..], &lie.sense].concat();
                }
            }
        }
        _ => {}
    }
    Fate::Pass
}

/// Becomes a SCSI Response without residual (RFC 7143, section 11.4).
fn become_refusal(bhs: &mut Bhs, data: &mut Vec<u8>, status: u8, sense: &[u8]) {
    (bhs.0[0], bhs.0[1], bhs.0[2], bhs.0[3]) = (0x21, 0x80, 0, status);
    bhs.0[20..24].fill(0);
    bhs.0[36..48].fill(0);
    *data = Vec::new();
    if !sense.is_empty() {
        *data = [&u16::try_from(sense.len()).unwrap().to_be_bytes()[..], sense].concat();
    }
}

/// What becomes of a PDU.
enum Fate {
    Pass,
    Swallow,
    /// The connection ends instead.
    Cut,
}

/// Passes PDUs without digests on, one by one.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut frozen: tokio::sync::watch::Receiver<bool>,
    mut change: impl FnMut(&mut Bhs, &mut Vec<u8>) -> Fate,
) {
    loop {
        let mut bhs = Bhs([0; 48]);
        if from.read_exact(&mut bhs.0).await.is_err() {
            return;
        }
        let len = usize::try_from(bhs.data_len()).unwrap();
        let mut data = vec![0; len.next_multiple_of(4)];
        if from.read_exact(&mut data).await.is_err() {
            return;
        }
        if *frozen.borrow_and_update() {
            // Open, and silent for good.
            std::future::pending::<()>().await;
        }
        data.truncate(len);
        match change(&mut bhs, &mut data) {
            Fate::Pass => {}
            Fate::Swallow => continue,
            Fate::Cut => return,
        }
        let bhs = bhs.with_data_len(u32::try_from(data.len()).unwrap());
        data.resize(data.len().next_multiple_of(4), 0);
        if to.write_all(&[&bhs.0[..], &data].concat()).await.is_err() {
            return;
        }
    }
}
