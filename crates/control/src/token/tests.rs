use super::*;
use crate::{clocks::Difference, keys::Rotation};
use proptest::prelude::*;
use std::{cell::Cell, format};

const MEDIATOR: MediatorId = MediatorId([1; 16]);
/// Shares the agent with it.
const OTHER: MediatorId = MediatorId([6; 16]);
const AGENT: AgentId = AgentId([2; 16]);
const SEGMENT: SegmentId = SegmentId([3; 16]);
const CLIENT: &str = "iqn.2026-11.org.example:client";
const NOW: Moment = Moment(1_800_000_000_000);
const INFO: SegmentInfo =
    SegmentInfo { generation: Generation(9), capacity: 1 << 30, block_len: 512 };

fn sectors(ranges: &[(u64, u64)]) -> Ranges {
    let bytes = |(sector, count): &(u64, u64)| ByteRange {
        offset: sector * SECTOR_LEN,
        len: count * SECTOR_LEN,
    };
    let ranges: Vec<_> = ranges.iter().map(bytes).collect();
    Ranges::new(&ranges).unwrap()
}

fn token() -> Token {
    Token {
        mediator: MEDIATOR,
        key: KeyId(0),
        agent: AGENT,
        segment: SEGMENT,
        plan: PlanId([4; 16]),
        initiator: Initiator::named(CLIENT),
        terms: Terms {
            ranges: sectors(&[(8, 16), (4096, 2048)]),
            rights: Rights::READ.and(Rights::WRITE).and(Rights::FLUSH),
            append_only: false,
            generation: Generation(9),
            expires: NOW.after_ms(60_000),
        },
        rates: Rates { floor: Rate(50_000_000), limit: Some(Rate(80_000_000)), weight: 300 },
        not_before: NOW,
    }
}

/// A mediator and one of its agents.
struct Cluster {
    roots: Ring<RootKey>,
    keys: Keyring,
    agent: AgentId,
    info: Option<SegmentInfo>,
    /// Another mediator's segment of the same id.
    others: Option<SegmentInfo>,
    revoked: Option<(MediatorId, PlanId)>,
}

impl Cluster {
    fn new() -> Self {
        let mut roots = Ring::default();
        roots.rotate(NOW, &Rotation::default(), &[7; KEY_LEN]).unwrap();
        let mut keys = Keyring::default();
        for mediator in [MEDIATOR, OTHER] {
            keys.set(mediator, roots.of_agent(mediator, AGENT)).unwrap();
        }
        Self { roots, keys, agent: AGENT, info: Some(INFO), others: None, revoked: None }
    }

    fn issue(&self, token: Token) -> Credentials {
        token.issue(&self.roots, NOW).unwrap()
    }

    /// Logs in with a name by a secret, and sees that the secret is asked for once.
    fn log_in(&self, name: &str, secret: &str, client: &str, now: Moment) -> Result<Grant, Denied> {
        let segment = |mediator, id| {
            let own = self.info.filter(|_| mediator == MEDIATOR);
            let other = self.others.filter(|_| mediator == OTHER);
            own.or(other).filter(|_| id == SEGMENT)
        };
        let is_revoked = |mediator, plan| self.revoked == Some((mediator, plan));
        let (agent, keys) = (self.agent, &self.keys);
        let view = AgentView { agent, keys, segment: &segment, is_revoked: &is_revoked };
        let asked = Cell::new(0);
        let granted = admit(name, client, &view, now, |right| {
            asked.set(asked.get() + 1);
            right.is(secret)
        });
        assert_eq!(asked.get(), 1);
        granted
    }

    fn present(&self, credentials: &Credentials) -> Result<Grant, Denied> {
        self.log_in(&credentials.name, credentials.secret.expose(), CLIENT, NOW)
    }
}

#[test]
fn name_and_secret_are_those_that_others_compute() {
    // By docs/formats/token.md, computed with Python's hmac and base64.
    let mut roots = Ring::default();
    let key = RootKey::new(&core::array::from_fn(|at| u8::try_from(at).unwrap()));
    let until = NOW.after_ms(60_000);
    roots.add(crate::keys::Held { id: KeyId(7), from: NOW, until, key }).unwrap();
    let Credentials { name, secret } = token().issue(&roots, NOW).unwrap();
    assert_eq!(
        name,
        "AQsAAgcAAAABAQEBAQEBAQEBAQEBAQEBAgICAgICAgICAgICAgICAgMDAwMDAwMDAwMDAwMDAwMEBAQE\
         BAQEBAQEBAQEBAQEzpe3Xx22VgzOpKioqP7N9gkAAAAAAAAAAFBcGKMBYDpdGKMBgPD6AgAAALTEBAAA\
         LAEACAAAAAAAEAAAAAAAABAAAAAAAAgAAAAA"
    );
    assert_eq!(secret.expose(), "2iS4tgXdYKL9SlC1dq67vfpS");
}

#[test]
fn who_knows_the_secret_is_told_what_is_wrong_and_by_how_much_a_clock_is_off() {
    let told = |denied: Denied, ahead_ms: Option<i64>| {
        denied.told(NOW, ahead_ms.map(|ahead_ms| Difference { ahead_ms })).unwrap()
    };
    let early = Denied::NotYet(NOW.after_ms(3_590_000));
    let text = told(early, Some(-3_600_000));
    assert!(text.starts_with("its token begins in 3,590 s by the agent's clock"), "{text}");
    assert!(text.contains("its clock is 3,600 s behind the mediator's"), "{text}");
    assert!(told(early, None).contains("set the agent's clock"));

    let late = Denied::Lapsed(Lapsed::Expired { at: Moment(NOW.0 - 2_990_000) });
    let text = told(late, Some(3_600_000));
    assert!(
        text.starts_with(
            "its token ended 2,990 s ago by the agent's clock: its clock is 3,600 s ahead"
        ),
        "{text}"
    );
    // A clock that is right is not the reason.
    for right in [None, Some(20)] {
        let text = told(late, right);
        assert!(text.contains("was not renewed in time") && !text.contains("ahead"), "{text}");
    }
    let fenced = Lapsed::Fenced { granted: Generation(3), current: Generation(5) };
    let text = told(fenced.into(), Some(3_600_000));
    assert!(text.contains("generation 3") && text.contains("generation 5"), "{text}");

    let none = [
        Denied::Name(DecodeError::Text),
        Denied::OtherAgent(AGENT),
        Denied::Key(KeyFault::Unknown(KeyId(1))),
        Denied::Unproven,
        Denied::OtherInitiator,
    ];
    for denied in none {
        assert_eq!(denied.told(NOW, Some(Difference { ahead_ms: 3_600_000 })), None, "{denied}");
    }
}

#[test]
fn a_token_opens_its_segment_to_its_initiator() {
    let cluster = Cluster::new();
    let credentials = cluster.issue(token());
    let grant = cluster.present(&credentials).unwrap();
    let told = Token { key: KeyId(1), ..token() };
    assert_eq!((grant.token(), grant.rule().terms()), (&told, &told.terms));
    assert_eq!(grant.rule().capacity(), (16 + 2048) * SECTOR_LEN);
    assert_eq!(grant.expires(), told.terms.expires);
    // Names of initiators are compared without case.
    let shouted = CLIENT.to_ascii_uppercase();
    let secret = credentials.secret.expose();
    assert!(cluster.log_in(&credentials.name, secret, &shouted, NOW).is_ok());
}

#[test]
fn names_and_secrets_are_printable_and_not_too_long() {
    let mut largest = token();
    let last = MAX_48;
    largest.terms.ranges = sectors(&[(last - 7, 1), (last - 5, 1), (last - 3, 1), (last - 1, 1)]);
    largest.terms.rights = Rights::ALL;
    largest.terms.generation = Generation(u64::MAX);
    largest.rates = Rates { floor: Rate(MAX_48), limit: Some(Rate(MAX_48)), weight: u16::MAX };
    let Credentials { name, secret } = Cluster::new().issue(largest);
    assert_eq!((name.len(), secret.expose().len()), (228, 24));
    // text-value of RFC 7143, section 6.1, and nothing that an URL would need to escape.
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    assert!(name.bytes().chain(secret.expose().bytes()).all(good));
    assert_eq!(Token::from_name(&name).map(|token| token.terms), Ok(largest.terms));
    let whole = Terms { ranges: Ranges::WHOLE, ..token().terms };
    assert_eq!(Cluster::new().issue(Token { terms: whole, ..token() }).name.len(), 164);
}

#[test]
fn no_bit_of_a_name_can_be_changed() {
    let cluster = Cluster::new();
    for append_only in [false, true] {
        let terms = Terms { append_only, ..token().terms };
        let Credentials { name, secret } = cluster.issue(Token { terms, ..token() });
        let opens = |name: &str| cluster.log_in(name, secret.expose(), CLIENT, NOW).is_ok();
        assert!(opens(&name));
        // Of its characters, and of the bytes that they stand for.
        for bit in 0..name.len() * 8 {
            let mut changed = name.clone().into_bytes();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(changed) = String::from_utf8(changed) {
                assert!(!opens(&changed), "bit {bit} of the name");
            }
        }
        let bytes = Base64UrlUnpadded::decode_vec(&name).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&Base64UrlUnpadded::encode_string(&changed)), "bit {bit} of the token");
        }
    }
}

#[test]
fn a_name_is_not_cut_and_not_extended() {
    let cluster = Cluster::new();
    let Credentials { name, secret } = cluster.issue(token());
    let open = |name: &str| cluster.log_in(name, secret.expose(), CLIENT, NOW);
    for len in 0..name.len() {
        assert!(matches!(open(&name[..len]), Err(Denied::Name(_))), "{len}");
    }
    for more in ["A", "AA", "AAAA", "=", " ", "\n", &"A".repeat(16), &"A".repeat(100_000)] {
        assert!(matches!(open(&format!("{name}{more}")), Err(Denied::Name(_))), "{more}");
    }
    let long = "A".repeat(NAME_LEN_MAX + 4);
    assert_eq!(open(&long), Err(Denied::Name(DecodeError::Text)));
    for other in ["", "joe", "é", "AQ==", "+/+/"] {
        assert!(matches!(open(other), Err(Denied::Name(_))), "{other}");
    }
}

#[test]
fn a_name_without_its_secret_opens_nothing() {
    let cluster = Cluster::new();
    let credentials = cluster.issue(token());
    let other = cluster.issue(Token { plan: PlanId([5; 16]), ..token() });
    let short = &credentials.secret.expose()[..23];
    for secret in ["", "A", short, other.secret.expose(), &credentials.name] {
        let denied = cluster.log_in(&credentials.name, secret, CLIENT, NOW);
        assert_eq!(denied, Err(Denied::Unproven), "{secret}");
    }
    // One who knows another mediator's key cannot sign for this one.
    let mut foreign = Ring::default();
    foreign.rotate(NOW, &Rotation::default(), &[8; KEY_LEN]).unwrap();
    let forged = token().issue(&foreign, NOW).unwrap();
    assert_eq!(cluster.present(&forged), Err(Denied::Unproven));
}

#[test]
fn an_unknown_key_is_not_replaced_by_one_that_all_know() {
    // Signed by the zeros that stand in for a key that is not there.
    let cluster = Cluster::new();
    let zeros = Key::new(&[0; KEY_LEN]);
    let unknown = Token { key: KeyId(99), ..token() };
    let foreign = Token { mediator: MediatorId([9; 16]), key: KeyId(1), ..token() };
    for (token, fault) in [
        (unknown, KeyFault::Unknown(KeyId(99))),
        (foreign, KeyFault::Mediator(MediatorId([9; 16]))),
    ] {
        let bytes = token.encode().unwrap();
        let name = Base64UrlUnpadded::encode_string(&bytes);
        let secret = Secret::of(&bytes, &zeros);
        let denied = cluster.log_in(&name, secret.expose(), CLIENT, NOW);
        assert_eq!(denied, Err(Denied::Key(fault)));
    }
}

#[test]
fn a_stolen_token_is_useless_to_another_initiator() {
    let cluster = Cluster::new();
    let Credentials { name, secret } = cluster.issue(token());
    for thief in ["iqn.2026-11.org.example:thief", "", "iqn.2026-11.org.example:client "] {
        let denied = cluster.log_in(&name, secret.expose(), thief, NOW);
        assert_eq!(denied, Err(Denied::OtherInitiator), "{thief}");
    }
}

#[test]
fn another_agent_does_not_take_it() {
    let mut other = Cluster::new();
    let credentials = other.issue(token());
    other.agent = AgentId([8; 16]);
    other.keys.set(MEDIATOR, other.roots.of_agent(MEDIATOR, other.agent)).unwrap();
    assert_eq!(other.present(&credentials), Err(Denied::OtherAgent(AGENT)));
    // Also not when it is made to say that it is for this one.
    let renamed = Token { agent: other.agent, key: KeyId(1), ..token() };
    let name = Base64UrlUnpadded::encode_string(&renamed.encode().unwrap());
    let denied = other.log_in(&name, credentials.secret.expose(), CLIENT, NOW);
    assert_eq!(denied, Err(Denied::Unproven));
}

#[test]
fn a_plan_that_was_taken_back_opens_nothing() {
    let mut cluster = Cluster::new();
    let credentials = cluster.issue(token());
    // Another mediator's plan of that name is another.
    cluster.revoked = Some((OTHER, token().plan));
    assert!(cluster.present(&credentials).is_ok());
    cluster.revoked = Some((MEDIATOR, token().plan));
    assert_eq!(cluster.present(&credentials), Err(Denied::Revoked(token().plan)));
    let other = cluster.issue(Token { plan: PlanId([5; 16]), ..token() });
    assert!(cluster.present(&other).is_ok());
    // To whoever does not know the secret it says nothing.
    let guessed = cluster.log_in(&credentials.name, "no-such-secret-at-all", CLIENT, NOW);
    assert_eq!(guessed, Err(Denied::Unproven));
}

#[test]
fn a_token_holds_from_its_beginning_less_the_skew_to_its_end() {
    let cluster = Cluster::new();
    let begins = NOW.after_ms(30_000);
    let Credentials { name, secret } = cluster.issue(Token { not_before: begins, ..token() });
    let at = |ms: u64| cluster.log_in(&name, secret.expose(), CLIENT, Moment(ms)).map(|_| ());
    let first = begins.0 - SKEW_MS;
    assert_eq!(at(first - 1), Err(Denied::NotYet(begins)));
    assert_eq!(at(first), Ok(()));
    let expires = token().terms.expires;
    assert_eq!(at(expires.0 - 1), Ok(()));
    let expired = Err(Denied::Lapsed(Lapsed::Expired { at: expires }));
    assert_eq!(at(expires.0), expired);
    assert_eq!(at(expires.0 + SKEW_MS), expired);
}

#[test]
fn a_raised_generation_fences_old_tokens_and_running_sessions() {
    let mut cluster = Cluster::new();
    let old = cluster.issue(token());
    let grant = cluster.present(&old).unwrap();
    assert_eq!(grant.still_holds(NOW, Some(Generation(9))), Ok(()));
    let newer = Terms { generation: Generation(10), ..token().terms };
    let new = cluster.issue(Token { terms: newer, ..token() });
    // Nobody has told the agent: two generations never hold at once.
    let fenced = |granted, current| Lapsed::Fenced {
        granted: Generation(granted),
        current: Generation(current),
    };
    assert_eq!(cluster.present(&new), Err(Denied::Lapsed(fenced(10, 9))));
    cluster.info = Some(SegmentInfo { generation: Generation(10), ..INFO });
    assert_eq!(cluster.present(&old), Err(Denied::Lapsed(fenced(9, 10))));
    assert!(cluster.present(&new).is_ok());
    assert_eq!(grant.still_holds(NOW, Some(Generation(10))), Err(fenced(9, 10)));
    assert_eq!(grant.still_holds(NOW, None), Err(Lapsed::Absent));
    let end = grant.expires();
    assert_eq!(grant.still_holds(end, Some(Generation(9))), Err(Lapsed::Expired { at: end }));
}

#[test]
fn a_mediator_opens_its_own_segments_only() {
    let mut cluster = Cluster::new();
    cluster.others = Some(SegmentInfo { generation: Generation(1), capacity: 4096, ..INFO });
    assert!(cluster.present(&cluster.issue(token())).is_ok());
    // The other one's token opens its own by the same id, and nothing else.
    let theirs = cluster.issue(Token { mediator: OTHER, ..token() });
    assert!(cluster.present(&theirs).is_err());
    cluster.others = None;
    assert_eq!(cluster.present(&theirs), Err(Denied::Lapsed(Lapsed::Absent)));
    cluster.others = Some(INFO);
    cluster.info = None;
    assert!(cluster.present(&theirs).is_ok());
    assert_eq!(cluster.present(&cluster.issue(token())), Err(Denied::Lapsed(Lapsed::Absent)));
    cluster.info = Some(SegmentInfo { capacity: 1 << 20, ..INFO });
    let denied = cluster.present(&cluster.issue(token()));
    assert!(matches!(denied, Err(Denied::Rule(RuleError::Beyond { .. }))), "{denied:?}");
}

#[test]
fn tokens_of_a_key_end_with_it() {
    let mut cluster = Cluster::new();
    let rotation = Rotation { every_ms: 100, lead_ms: 10, term_ms: 50 };
    cluster.roots = Ring::default();
    cluster.roots.rotate(NOW, &rotation, &[3; KEY_LEN]).unwrap();
    let until = NOW.after_ms(160);
    let ends = |at| Token { terms: Terms { expires: at, ..token().terms }, ..token() };
    let term = IssueError::Term { expires: until.after_ms(1), key: KeyId(1), until };
    assert_eq!(ends(until.after_ms(1)).issue(&cluster.roots, NOW), Err(term));
    let credentials = cluster.issue(ends(until));
    cluster.keys.set(MEDIATOR, cluster.roots.of_agent(MEDIATOR, AGENT)).unwrap();
    assert!(cluster.present(&credentials).is_ok());
    assert_eq!(ends(until).issue(&cluster.roots, until), Err(IssueError::NoKey(until)));
    // Rotated out, though the token might have been signed for longer.
    let Credentials { name, secret } = credentials;
    let ended = KeyFault::Ended { id: KeyId(1), until };
    let denied = cluster.log_in(&name, secret.expose(), CLIENT, until);
    assert_eq!(denied, Err(Denied::Key(ended)));
    cluster.roots.rotate(until, &rotation, &[4; KEY_LEN]).unwrap();
    cluster.keys.set(MEDIATOR, cluster.roots.of_agent(MEDIATOR, AGENT)).unwrap();
    let denied = cluster.log_in(&name, secret.expose(), CLIENT, NOW);
    assert_eq!(denied, Err(Denied::Key(KeyFault::Unknown(KeyId(1)))));
}

#[test]
fn what_a_token_cannot_say_is_not_issued() {
    let roots = Cluster::new().roots;
    let issue = |change: &dyn Fn(&mut Token)| {
        let mut token = token();
        change(&mut token);
        token.issue(&roots, NOW).map(|_| ())
    };
    let wrong = |error| Err(IssueError::Token(error));
    let far = Moment(MAX_48 + 1);
    assert_eq!(issue(&|token| token.not_before = far), wrong(TokenError::Far(far)));
    let fast = Rate(MAX_48 + 1);
    assert_eq!(issue(&|token| token.rates.limit = Some(fast)), wrong(TokenError::Fast(fast)));
    assert_eq!(issue(&|token| token.rates.floor = fast), wrong(TokenError::Fast(fast)));
    assert_eq!(issue(&|token| token.rates.limit = Some(Rate(0))), wrong(TokenError::NoLimit));
    let (floor, limit) = (Rate(80_000_001), Rate(80_000_000));
    let above = TokenError::Floor { floor, limit };
    assert_eq!(issue(&|token| token.rates.floor = floor), wrong(above));
    assert_eq!(issue(&|token| token.rates.weight = 0), wrong(TokenError::Weight));
    assert_eq!(issue(&|token| token.terms.rights = Rights::NONE), wrong(TokenError::Rights));
    let expires = token().terms.expires;
    let window = TokenError::Window { not_before: expires, expires };
    assert_eq!(issue(&|token| token.not_before = expires), wrong(window));
    assert_eq!(issue(&|token| token.rates.limit = None), Ok(()));
}

#[test]
fn bytes_that_no_token_has_are_refused() {
    let good = token().encode().unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Token::decode(&bytes).map(|_| ())
    };
    assert_eq!(with(0, 2), Err(DecodeError::Version(2)));
    assert_eq!(with(1, 0x20), Err(DecodeError::Reserved));
    assert_eq!(with(1, 0), Err(DecodeError::Fields(TokenError::Rights)));
    assert_eq!(with(2, 2), Err(DecodeError::Reserved));
    assert_eq!(with(3, 1), Err(DecodeError::Len(147)));
    assert_eq!(with(3, 5), Err(DecodeError::Ranges(RangesError::TooMany(5))));
    assert_eq!(with(122, 1), Err(DecodeError::Reserved));
    // The second range begins within the first.
    let order = RangesError::Order { offset: 0, end: 12288 };
    assert_eq!(with(136, 0), Err(DecodeError::Ranges(order)));
}

#[test]
fn secrets_do_not_show() {
    let credentials = Cluster::new().issue(token());
    let shown = format!("{credentials:?}");
    assert!(shown.contains("***") && !shown.contains(credentials.secret.expose()));
}

prop_compose! {
    fn some_token()(
        ids in any::<[[u8; 16]; 5]>(),
        key in any::<u32>(),
        generation in any::<u64>(),
        times in (0..MAX_48, 1..=MAX_48),
        rates in (0..=MAX_48, prop::option::of(1..=MAX_48), 1..=u16::MAX),
        rights in 1_u8..32,
        append_only in any::<bool>(),
        parts in prop::collection::vec((0_u64..1 << 40, 1_u64..1 << 40), 0..=RANGES_MAX),
    ) -> Token {
        let [mediator, agent, segment, plan, initiator] = ids;
        let mut end = 0;
        let ranges: Vec<_> = parts.iter().map(|(gap, len)| {
            let first = end + gap;
            end = first + len;
            (first, *len)
        }).collect();
        let (floor, limit, weight) = rates;
        Token {
            mediator: MediatorId(mediator),
            key: KeyId(key),
            agent: AgentId(agent),
            segment: SegmentId(segment),
            plan: PlanId(plan),
            initiator: Initiator(initiator),
            terms: Terms {
                ranges: sectors(&ranges),
                rights: Rights::from_bits(rights).unwrap(),
                append_only,
                generation: Generation(generation),
                expires: Moment(times.0.max(times.1)),
            },
            rates: Rates {
                floor: Rate(limit.map_or(floor, |limit| limit.min(floor))),
                limit: limit.map(Rate),
                weight,
            },
            not_before: Moment(times.0.min(times.1 - 1)),
        }
    }
}

proptest! {
    #[test]
    fn a_token_comes_back_from_its_bytes(token in some_token()) {
        let bytes = token.encode().unwrap();
        prop_assert_eq!(bytes.len(), 123 + 12 * token.terms.ranges.as_slice().len());
        prop_assert_eq!(Token::decode(&bytes), Ok(token));
        let name = Base64UrlUnpadded::encode_string(&bytes);
        prop_assert!(name.len() <= NAME_LEN_MAX);
        prop_assert_eq!(Token::from_name(&name), Ok(token));
    }

    /// Changed bytes are no token, or another one, which is written as it was read.
    #[test]
    fn bytes_have_one_meaning_and_a_meaning_one_form(
        token in some_token(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = token.encode().unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(read) = Token::decode(&bytes) {
            prop_assert_eq!(read.encode(), Ok(bytes));
        }
    }

    /// Whatever else a mediator says by the same key goes with another secret.
    #[test]
    fn another_tokens_secret_opens_nothing(one in some_token(), other in some_token()) {
        let key = Key::new(&[5; KEY_LEN]);
        let secret = |token: &Token| Secret::of(&token.encode().unwrap(), &key);
        prop_assert_eq!(secret(&one) == secret(&other), one == other);
    }

    #[test]
    fn no_name_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".{0,300}") {
        let cluster = Cluster::new();
        let encoded = Base64UrlUnpadded::encode_string(&bytes);
        for name in [&encoded, &text] {
            prop_assert!(cluster.log_in(name, "secret", CLIENT, NOW).is_err());
        }
        if let Ok(token) = Token::decode(&bytes) {
            prop_assert_eq!(token.encode(), Ok(bytes));
        }
    }
}
