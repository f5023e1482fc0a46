//! An agent as far as a target sees it, and logins with its tokens.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use netraid_block::{Device, Pool, TargetUri};
use netraid_control::{
    derived::{ByteRange, Denial, Ranges, Rights, Terms},
    keys::{KEY_LEN, KeyId, Keyring, Ring, RootKey, Rotation},
    token::{self, AgentView, Credentials, Denied, Grant, Initiator, Rates, SegmentInfo, Token},
    units::{AgentId, Generation, MediatorId, Moment, PlanId, Rate, SegmentId},
};
use netraid_engine::{
    initiator::{InitiatorConfig, Remote},
    target::{Admission, Admitted, NotAdmitted, NotOpened, Opened, Pace, TargetConfig},
};
use netraid_iscsi_proto::{
    chap::{Algorithm, Secret},
    pdu::{Bhs, LoginRequest},
    serial::Serial,
    text,
};

use crate::iscsi::{
    common::{NAME, Running, one_thread},
    raw::Raw,
};

pub(super) const MEDIATOR: MediatorId = MediatorId([1; 16]);
pub(super) const AGENT: AgentId = AgentId([2; 16]);
pub(super) const PLAN: PlanId = PlanId([4; 16]);
pub(super) const CLIENT: &str = "iqn.2026-11.org.example:client";
pub(super) const NOW: Moment = Moment(1_800_000_000_000);
/// How long tokens hold.
pub(super) const TERM_MS: u64 = 60_000;

pub(super) const fn segment(number: u8) -> SegmentId {
    SegmentId([number; 16])
}

/// A segment on the agent.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) device: Device,
    pub(super) generation: Generation,
    pub(super) mediator: MediatorId,
    pub(super) fails: bool,
    /// Opening it finds no descriptor.
    pub(super) lacks_descriptors: bool,
    /// Its generation is raised while it is being opened.
    pub(super) is_raised_late: bool,
    /// Its plan is taken back while it is being opened.
    pub(super) is_revoked_late: bool,
    pub(super) opened: usize,
}

/// An agent, and the mediator that it belongs to.
#[derive(Debug)]
pub(super) struct Agent {
    roots: Ring<RootKey>,
    keys: Keyring,
    pub(super) segments: Mutex<BTreeMap<SegmentId, Stored>>,
    pub(super) refused: Mutex<Vec<Denied>>,
    pub(super) denials: Mutex<Vec<Denial>>,
    clock: AtomicU64,
    pub(super) pace: Mutex<Pace>,
    /// No session may go on.
    pub(super) is_revoked: AtomicBool,
}

impl Agent {
    /// An agent with these segments, 1, 2, and so on, of generation 1.
    pub(super) fn new(devices: &[Device]) -> Arc<Self> {
        let mut roots = Ring::default();
        roots.rotate(NOW, &Rotation::default(), &[7; KEY_LEN]).unwrap();
        let mut keys = Keyring::default();
        keys.set(MEDIATOR, roots.of_agent(MEDIATOR, AGENT)).unwrap();
        let stored = |(number, device): (u8, &Device)| {
            let device = device.clone();
            let generation = Generation(1);
            let stored = Stored {
                device,
                generation,
                mediator: MEDIATOR,
                fails: false,
                lacks_descriptors: false,
                is_raised_late: false,
                is_revoked_late: false,
                opened: 0,
            };
            (segment(number), stored)
        };
        let segments = Mutex::new((1_u8..).zip(devices).map(stored).collect());
        Arc::new(Self {
            roots,
            keys,
            segments,
            refused: Mutex::default(),
            denials: Mutex::default(),
            clock: AtomicU64::new(NOW.0),
            pace: Mutex::new(Pace::FREE),
            is_revoked: AtomicBool::new(false),
        })
    }

    pub(super) fn sleep(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::AcqRel);
    }

    pub(super) fn moment(&self) -> Moment {
        Moment(self.clock.load(Ordering::Acquire))
    }

    pub(super) fn change(&self, number: u8, change: impl FnOnce(&mut Stored)) {
        change(self.segments.lock().unwrap().get_mut(&segment(number)).unwrap());
    }

    pub(super) fn opened(&self, number: u8) -> usize {
        self.segments.lock().unwrap()[&segment(number)].opened
    }

    /// A token of all rights.
    pub(super) fn token(&self, number: u8) -> Token {
        let generation = self.segments.lock().unwrap().get(&segment(number)).map(|s| s.generation);
        Token {
            mediator: MEDIATOR,
            key: KeyId(0),
            agent: AGENT,
            segment: segment(number),
            plan: PLAN,
            initiator: Initiator::named(CLIENT),
            terms: Terms {
                ranges: Ranges::WHOLE,
                rights: Rights::ALL,
                append_only: false,
                generation: generation.unwrap_or(Generation(1)),
                expires: self.moment().after_ms(TERM_MS),
            },
            rates: Rates { floor: Rate::ZERO, limit: None, weight: 1 },
            not_before: self.moment(),
        }
    }

    pub(super) fn issue(&self, token: Token) -> Credentials {
        token.issue(&self.roots, NOW).unwrap()
    }

    pub(super) fn start(self: &Arc<Self>) -> Running {
        self.start_with(one_thread())
    }

    pub(super) fn start_with(self: &Arc<Self>, config: TargetConfig) -> Running {
        let admission = Some(self.clone() as Arc<dyn Admission>);
        Running::start_luns(TargetConfig { admission, ..config }, Vec::new())
    }

    /// How our initiator logs in with a token.
    pub(super) fn initiator(&self, target: &Running, token: Token) -> InitiatorConfig {
        let Credentials { name, secret } = self.issue(token);
        let uri = format!("iscsi://{name}@{}/{NAME}/0", target.address);
        InitiatorConfig {
            secret: Some(Secret::new(secret.expose()).unwrap()),
            initiator_name: CLIENT.to_owned(),
            request_timeout: Duration::from_secs(2),
            ..InitiatorConfig::new(TargetUri::parse(&uri).unwrap())
        }
    }

    pub(super) async fn connect(&self, target: &Running, token: Token) -> Device {
        let config = self.initiator(target, token);
        Device::new(Arc::new(Remote::connect(config, Pool::new()).await.unwrap()))
    }

    /// A session to send single PDUs on, whose first unit attention was taken.
    pub(super) async fn raw(&self, target: &Running, token: Token, isid: u8) -> Raw {
        let credentials = self.issue(token);
        let login = Login { isid, ..Login::with(&credentials) };
        let mut raw = login.attempt(target.address).await.unwrap().raw.unwrap();
        raw.take_attention().await;
        raw
    }
}

impl Admission for Agent {
    fn admit(
        &self,
        name: &str,
        initiator: &str,
        _peer: SocketAddr,
        proves: &mut dyn FnMut(&token::Secret) -> bool,
    ) -> Result<Admitted, NotAdmitted> {
        let find = |mediator, id| {
            let segments = self.segments.lock().unwrap();
            let Stored { device, generation, .. } =
                segments.get(&id).filter(|stored| stored.mediator == mediator)?;
            let (capacity, block_len) = (device.info().capacity, device.info().block_len);
            Some(SegmentInfo { generation: *generation, capacity, block_len })
        };
        let (keys, is_revoked) = (&self.keys, &|_, _| false);
        let view = AgentView { agent: AGENT, keys, segment: &find, is_revoked };
        match token::admit(name, initiator, &view, self.moment(), proves) {
            Ok(grant) => Ok(Admitted { grant, pace: *self.pace.lock().unwrap() }),
            Err(denied) => {
                self.refused.lock().unwrap().push(denied);
                Err(NotAdmitted { told: denied.told(self.moment(), None) })
            }
        }
    }

    fn open(&self, mediator: MediatorId, segment: SegmentId) -> Result<Opened, NotOpened> {
        assert_eq!(mediator, MEDIATOR);
        let mut segments = self.segments.lock().unwrap();
        let stored = segments.get_mut(&segment).ok_or("there is none")?;
        stored.opened += 1;
        if stored.lacks_descriptors {
            let error = io::Error::from_raw_os_error(24);
            return Err(NotOpened::from_error(&error));
        }
        if stored.fails {
            return Err("its file is gone".into());
        }
        if std::mem::take(&mut stored.is_raised_late) {
            stored.generation = Generation(stored.generation.0 + 1);
        }
        if stored.is_revoked_late {
            self.is_revoked.store(true, Ordering::Release);
        }
        let (lun, generation) = (stored.device.clone().into(), stored.generation);
        Ok(Opened { lun, generation, end_bytes: 0 })
    }

    fn stands(&self, _grant: &Grant) -> bool {
        !self.is_revoked.load(Ordering::Acquire)
    }

    fn denied(&self, _grant: &Grant, denial: &Denial) {
        self.denials.lock().unwrap().push(*denial);
    }

    fn now(&self) -> Moment {
        self.moment()
    }
}

/// Ranges of bytes.
pub(super) fn ranges(ranges: &[(u64, u64)]) -> Ranges {
    let range = |(offset, len): &(u64, u64)| ByteRange { offset: *offset, len: *len };
    Ranges::new(&ranges.iter().map(range).collect::<Vec<_>>()).unwrap()
}

/// A login PDU by PDU.
pub(super) struct Login<'a> {
    pub(super) name: &'a str,
    pub(super) secret: &'a str,
    pub(super) initiator: &'a str,
    pub(super) discovery: bool,
    pub(super) isid: u8,
    /// Instead of the right proof.
    pub(super) proof: Option<&'a str>,
}

/// What came of it.
pub(super) struct Attempt {
    /// All that the target said, but for its challenge.
    pub(super) said: Vec<([u8; 48], String)>,
    pub(super) status: u16,
    /// The session, when it let it in.
    pub(super) raw: Option<Raw>,
}

impl<'a> Login<'a> {
    pub(super) fn with(credentials: &'a Credentials) -> Self {
        Self {
            name: &credentials.name,
            secret: credentials.secret.expose(),
            initiator: CLIENT,
            discovery: false,
            isid: 7,
            proof: None,
        }
    }

    pub(super) async fn attempt(&self, address: SocketAddr) -> io::Result<Attempt> {
        let mut raw = Raw::dial(address).await?;
        let mut said = Vec::new();
        let mut first = vec![("InitiatorName", self.initiator), ("AuthMethod", "CHAP,None")];
        if self.discovery {
            first.push(("SessionType", "Discovery"));
        } else {
            first.push(("TargetName", NAME));
        }
        self.ask(&mut raw, false, &first, &mut said).await?;
        let challenge = self.ask(&mut raw, false, &[("CHAP_A", "5")], &mut said).await?;
        let of = |key: &str| {
            let mut values = challenge.split('\0').filter_map(|pair| pair.split_once('='));
            values.find(|(known, _)| *known == key).unwrap().1.to_owned()
        };
        let secret = Secret::new(self.secret).unwrap();
        let bytes = text::binary(&of("CHAP_C")).unwrap();
        let answer = Algorithm::Md5.answer(of("CHAP_I").parse().unwrap(), &secret, &bytes);
        let answer = text::to_hex(&answer);
        let proof = [("CHAP_N", self.name), ("CHAP_R", self.proof.unwrap_or(&answer))];
        self.ask(&mut raw, true, &proof, &mut said).await?;
        let status = u16::from_be_bytes([said[2].0[36], said[2].0[37]]);
        Ok(Attempt { said, status, raw: (status == 0).then_some(raw) })
    }

    async fn ask(
        &self,
        raw: &mut Raw,
        transit: bool,
        keys: &[(&str, &str)],
        said: &mut Vec<([u8; 48], String)>,
    ) -> io::Result<String> {
        let request = LoginRequest {
            transit,
            more: false,
            current_stage: 0,
            next_stage: if transit { 3 } else { 0 },
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, self.isid],
            tsih: 0,
            itt: 0,
            cid: 1,
        };
        let mut text = Vec::new();
        keys.iter().for_each(|(key, value)| text::push(&mut text, key, value));
        let mut bhs = request.encode();
        bhs.stamp_command(Serial(1), Serial(0));
        raw.send(bhs, &text).await?;
        let (Bhs(mut bytes), data) = raw.receive_with().await?;
        let data = String::from_utf8(data).unwrap();
        let told = if data.contains("CHAP_C") {
            // Its number has one digit to three.
            bytes[5..8].fill(0);
            "a challenge".to_owned()
        } else {
            data.clone()
        };
        said.push((bytes, told));
        Ok(data)
    }
}
