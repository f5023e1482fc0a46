//! Names that initiators log in with: tokens as they were issued, changed, or anything. Nothing is
//! granted but what was issued, and what is granted is within the segment.

use arbitrary::Arbitrary;
use netraid_block::Op;
use netraid_control::{
    derived::{ByteRange, Ranges, Rights, SECTOR_LEN, SegmentNow, Terms, Verdict},
    keys::{Key, Keyring, Ring, RootKey, Rotation},
    token::{
        AgentView, Credentials, Grant, Initiator, NAME_LEN_MAX, Rates, SegmentInfo, Token, admit,
    },
    units::{AgentId, Generation, MediatorId, Moment, PlanId, Rate, SegmentId},
};

use crate::operations;

const MEDIATOR: MediatorId = MediatorId([1; 16]);
const AGENT: AgentId = AgentId([2; 16]);
const SEGMENT: SegmentId = SegmentId([3; 16]);
const CAPACITY: u64 = 1 << 20;
const NOW: Moment = Moment(1 << 40);

#[derive(Debug, Arbitrary)]
enum Login {
    /// A token as it was issued, with changed characters.
    Issued { wish: Wish, changes: Vec<(u8, u8)>, cut: u8, requests: Vec<Request> },
    /// Bytes that claim to be a token.
    Bytes { bytes: Vec<u8>, changes: Vec<(u8, u8)> },
    /// Anything.
    Text { name: String },
}

#[derive(Debug, Arbitrary)]
struct Wish {
    other: u8,
    generation: u8,
    rights: u8,
    append_only: bool,
    ranges: Vec<(u8, u16)>,
    from: u32,
    term: u32,
    floor: u64,
    limit: u64,
    weight: u16,
}

#[derive(Debug, Arbitrary)]
struct Request {
    op: u8,
    offset: u64,
    len: u64,
    end: u32,
    whole: bool,
}

struct Agent {
    roots: Ring<RootKey>,
    keys: Keyring,
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let mut roots = Ring::default();
    let rotation = Rotation::default();
    roots.rotate(NOW, &rotation, &[7; 32]).expect("the first key");
    let mut keys = Keyring::default();
    let ring: Ring<Key> = roots.of_agent(MEDIATOR, AGENT);
    keys.set(MEDIATOR, ring).expect("the first mediator");
    let agent = Agent { roots, keys };
    for login in operations::<Login>(input, 16) {
        match login {
            Login::Issued { wish, changes, cut, requests } => {
                agent.issued(&wish, &changes, cut, &requests);
            }
            Login::Bytes { mut bytes, changes } => {
                // Often enough a version and a length that are right.
                bytes.resize(123 + bytes.len() % 5 * 12, 0);
                bytes[0] = 1;
                for (at, value) in changes {
                    bytes[usize::from(at) % 123] = value;
                }
                read_bytes(&bytes);
            }
            Login::Text { name } => {
                let _ = Token::from_name(&name);
                assert!(agent.log_in(&name, "").is_none());
            }
        }
    }
}

impl Agent {
    fn issued(&self, wish: &Wish, changes: &[(u8, u8)], cut: u8, requests: &[Request]) {
        let Some(token) = wish.token() else { return };
        let Ok(Credentials { name, secret }) = token.issue(&self.roots, NOW) else { return };
        assert!(name.len() <= NAME_LEN_MAX && name.is_ascii());
        let read = Token::from_name(&name).expect("our own token");
        assert_eq!(Token { key: token.key, ..read }, token);
        if let Some(grant) = self.log_in(&name, secret.expose()) {
            assert_eq!(*grant.token(), read);
            requests.iter().for_each(|request| request.judge(&grant));
        }
        let mut bytes = name.clone().into_bytes();
        for (at, value) in changes {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *value;
        }
        bytes.truncate(bytes.len() - usize::from(cut) % bytes.len());
        let Ok(changed) = String::from_utf8(bytes) else { return };
        if changed != name {
            assert!(self.log_in(&changed, secret.expose()).is_none(), "{changed} for {name}");
        }
    }

    fn log_in(&self, name: &str, secret: &str) -> Option<Grant> {
        let info = SegmentInfo { generation: Generation(1), capacity: CAPACITY, block_len: 512 };
        let segment = |mediator, id| ((mediator, id) == (MEDIATOR, SEGMENT)).then_some(info);
        let (keys, is_revoked) = (&self.keys, &|_, _| false);
        let view = AgentView { agent: AGENT, keys, segment: &segment, is_revoked };
        let mut asked = 0;
        let granted = admit(name, "iqn.client", &view, NOW, |right| {
            asked += 1;
            right.is(secret)
        });
        assert_eq!(asked, 1, "the secret is asked for once");
        granted.map_err(|denied| assert!(!denied.to_string().is_empty())).ok()
    }
}

impl Wish {
    /// What a mediator would issue; none when it would not even say that.
    fn token(&self) -> Option<Token> {
        let other = |bit: u8| if self.other >> bit & 1 == 0 { 0 } else { 100 };
        let mut end = 0;
        let place = |(gap, len): &(u8, u16)| {
            let offset = end + u64::from(*gap) * SECTOR_LEN;
            let len = u64::from(len % 1024) * SECTOR_LEN;
            end = offset + len;
            ByteRange { offset, len }
        };
        let ranges: Vec<_> = self.ranges.iter().map(place).collect();
        Some(Token {
            mediator: MEDIATOR,
            key: Default::default(),
            agent: AgentId([2 + other(0); 16]),
            segment: SegmentId([3 + other(1); 16]),
            plan: PlanId([self.weight as u8; 16]),
            initiator: Initiator::named(if other(2) == 0 { "IQN.client" } else { "other" }),
            terms: Terms {
                ranges: Ranges::new(&ranges).ok()?,
                rights: Rights::from_bits(self.rights % 33)?,
                append_only: self.append_only,
                generation: Generation(u64::from(self.generation % 3)),
                expires: Moment(NOW.0 + u64::from(self.term) % (1 << 28)),
            },
            rates: Rates {
                floor: Rate(self.floor >> 18),
                limit: (self.limit > 0).then_some(Rate(self.limit >> 15)),
                weight: self.weight,
            },
            not_before: Moment(NOW.0 - (1 << 31) + u64::from(self.from)),
        })
    }
}

impl Request {
    /// What is allowed is within the segment and what was granted, in order, and no more or less
    /// than was asked for.
    fn judge(&self, grant: &Grant) {
        let ops = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Extents];
        let op = ops[usize::from(self.op) % ops.len()];
        let (rule, terms) = (grant.rule(), &grant.token().terms);
        let fit = |number: u64| if self.whole { number } else { number % rule.capacity() };
        let asked = ByteRange { offset: fit(self.offset), len: fit(self.len) };
        let end = u64::from(self.end) % CAPACITY;
        let segment = SegmentNow { generation: Generation(1), end };
        let Verdict::Allow(pieces) = rule.judge(op, asked, segment, NOW) else { return };
        assert!(terms.rights.contain(Rights::for_op(op)), "{op:?} without a right");
        if op == Op::Flush {
            assert!(pieces.as_slice().is_empty());
            return;
        }
        let mut behind = if terms.append_only && op.changes() {
            assert_eq!(op, Op::Write, "changes what was appended");
            end
        } else {
            0
        };
        let mut sum = 0;
        for piece in pieces.as_slice() {
            assert!(piece.len > 0 && piece.offset >= behind && piece.end() <= CAPACITY);
            let within =
                |range: &ByteRange| range.offset <= piece.offset && piece.end() <= range.end();
            let ranges = terms.ranges.as_slice();
            assert!(ranges.is_empty() || ranges.iter().any(within), "{piece:?} was not granted");
            behind = piece.end();
            sum += piece.len;
        }
        assert_eq!(sum, asked.len);
        let now = terms.expires;
        assert!(matches!(rule.judge(op, asked, segment, now), Verdict::Deny(_)));
    }
}

/// Bytes have one meaning, and a meaning one form.
fn read_bytes(bytes: &[u8]) {
    match Token::decode(bytes) {
        Ok(token) => assert_eq!(token.encode().expect("what was read"), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
