//! Logins request by request: who gets in, and what the target answers.

use netraid_iscsi_proto::{
    chap::{Algorithm, Challenge, ChapError, Credentials, Question, Secret},
    machine::Fatal,
    pdu::{LoginRequest, LoginResponse},
    serial::Serial,
    target, text,
};

use crate::harness::{Pair, TARGET, initiator_setup, target_setup};

pub(crate) const INITIATOR: &str = "iqn.2026-01.org.example:i";
const SECURITY: u8 = 0;
pub(crate) const OPERATIONAL: u8 = 1;
const FULL: u8 = 3;

/// A login by hand.
pub(crate) struct Hand {
    pub(crate) pair: Pair,
    pub(crate) request: LoginRequest,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: LoginResponse,
    pub(crate) text: Vec<u8>,
}

impl Answer {
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        text::value(&text::parse(&self.text).unwrap(), key).map(Into::into)
    }
}

impl Hand {
    pub(crate) fn new(setup: &target::Setup) -> Self {
        let request = LoginRequest {
            transit: false,
            more: false,
            current_stage: SECURITY,
            next_stage: 0,
            version_max: 0,
            version_min: 0,
            isid: [0x80; 6],
            tsih: 0,
            itt: 1,
            cid: 1,
        };
        Self { pair: Pair::new(setup, initiator_setup()), request }
    }

    /// Sends one request with these keys, which goes on to `next` when one is given.
    pub(crate) fn say(&mut self, stage: u8, next: Option<u8>, keys: &[(&str, &str)]) -> Answer {
        let mut data = Vec::new();
        keys.iter().for_each(|(key, value)| text::push(&mut data, key, value));
        self.request.current_stage = stage;
        self.request.next_stage = next.unwrap_or(0);
        self.request.transit = next.is_some();
        self.say_bytes(&data)
    }

    pub(crate) fn say_bytes(&mut self, data: &[u8]) -> Answer {
        self.send(data).expect("an answer")
    }

    /// Sends one request; the answer, if there is one already.
    pub(crate) fn send(&mut self, data: &[u8]) -> Option<Answer> {
        let len = u32::try_from(data.len()).unwrap();
        let mut bhs = self.request.encode().with_data_len(len);
        bhs.stamp_command(Serial(1), Serial(0));
        self.pair.host.receive(self.pair.now, &mut self.pair.node, &bhs, data).unwrap();
        self.answer()
    }

    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let (transmit, text) = self.pair.host.transmit()?;
        Some(Answer { response: LoginResponse::parse(&transmit.header), text })
    }

    /// Names and what is to come in the security stage.
    pub(crate) fn ask_for_chap(&mut self, algorithms: &str) -> Answer {
        let names = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
        let first = self.say(SECURITY, None, &[names[0], names[1], ("AuthMethod", "CHAP,None")]);
        assert_eq!(first.value("AuthMethod").as_deref(), Some("CHAP"));
        self.say(SECURITY, None, &[("CHAP_A", algorithms)])
    }
}

fn credentials(user: &str, secret: &str) -> Credentials {
    Credentials { user: user.into(), secret: Secret::new(secret).unwrap() }
}

fn mutual() -> target::Setup {
    target::Setup {
        chap: vec![
            credentials("ann", "another's secret"),
            credentials("joe", "the initiator's secret"),
        ],
        mutual_chap: Some(credentials("tgt", "the target's secret")),
        ..target_setup()
    }
}

/// The answer to the target's challenge, with its own challenge when `asks`.
pub(crate) fn proof(answer: &Answer, who: &Credentials, asks: Option<&Challenge>) -> Vec<u8> {
    let pairs = text::parse(&answer.text).unwrap();
    let number = text::value(&pairs, "CHAP_A").and_then(text::number).unwrap();
    let question = Question::read(&pairs).unwrap().unwrap();
    let mut out = Vec::new();
    question.answer(Algorithm::from_number(number).unwrap(), who, None, &mut out).unwrap();
    if let Some(challenge) = asks {
        challenge.push(&mut out);
    }
    out
}

#[test]
fn the_first_chap_algorithm_is_taken_that_may_be() {
    // RFC 7143, section 12.1.3: proposed in the order of preference.
    for (offered, taken) in [("5,6,7,8", "5"), ("7,5", "7"), ("6,5", "6"), ("9,0x8", "8")] {
        let mut hand = Hand::new(&mutual());
        assert_eq!(hand.ask_for_chap(offered).value("CHAP_A").as_deref(), Some(taken));
    }
    let chap_allow = vec![Algorithm::Sha3, Algorithm::Sha256];
    let strict = target::Setup { chap_allow, ..mutual() };
    let mut hand = Hand::new(&strict);
    assert_eq!(hand.ask_for_chap("5,6,7,8").value("CHAP_A").as_deref(), Some("7"));
    for refused in ["5,6", "9", ""] {
        let mut hand = Hand::new(&strict);
        assert_eq!(hand.ask_for_chap(refused).response.status, 0x0201, "{refused}");
    }
}

#[test]
fn each_of_several_users_gets_in_by_its_own_secret_alone() {
    for (user, secret, status) in [
        ("joe", "the initiator's secret", 0),
        ("ann", "another's secret", 0),
        ("ann", "the initiator's secret", 0x0201),
        ("jim", "another's secret", 0x0201),
    ] {
        let mut hand = Hand::new(&mutual());
        let asked = hand.ask_for_chap("8");
        let data = proof(&asked, &credentials(user, secret), None);
        assert_eq!(hand.say_bytes(&data).response.status, status, "{user}");
    }
}

#[test]
fn the_target_proves_itself_to_who_has_proven_itself() {
    let challenge = Challenge { identifier: 200, bytes: [5; 32] };
    for offered in ["5", "7", "8"] {
        let mut hand = Hand::new(&mutual());
        let asked = hand.ask_for_chap(offered);
        let data = proof(&asked, &credentials("joe", "the initiator's secret"), Some(&challenge));
        (hand.request.transit, hand.request.next_stage) = (true, OPERATIONAL);
        let answer = hand.say_bytes(&data);
        assert_eq!((answer.response.status, answer.response.transit), (0, true));
        let algorithm = Algorithm::from_number(text::number(offered).unwrap()).unwrap();
        let pairs = text::parse(&answer.text).unwrap();
        let known = credentials("tgt", "the target's secret");
        assert_eq!(challenge.verify(algorithm, &[known], &pairs), Ok(()));
        assert_eq!(hand.say(OPERATIONAL, Some(FULL), &[]).response.status, 0);
        assert_eq!(hand.pair.node.session_count(), 1);
    }
}

#[test]
fn who_has_not_proven_itself_is_answered_nothing() {
    let challenge = Challenge { identifier: 200, bytes: [5; 32] };
    let mut hand = Hand::new(&mutual());
    let asked = hand.ask_for_chap("7");
    let data = proof(&asked, &credentials("joe", "some other secret"), Some(&challenge));
    let answer = hand.say_bytes(&data);
    assert_eq!((answer.response.status, answer.text.len()), (0x0201, 0));
}

#[test]
fn a_target_without_a_secret_of_its_own_refuses_to_be_asked() {
    let setup = target::Setup { mutual_chap: None, ..mutual() };
    let challenge = Challenge { identifier: 200, bytes: [5; 32] };
    let mut hand = Hand::new(&setup);
    let asked = hand.ask_for_chap("7");
    let data = proof(&asked, &credentials("joe", "the initiator's secret"), Some(&challenge));
    assert_eq!(hand.say_bytes(&data).response.status, 0x0201);
}

#[test]
fn its_own_challenge_sent_back_is_refused() {
    // RFC 7143, section 12.1.3: responders check for this, and close.
    let mut hand = Hand::new(&mutual());
    let asked = hand.ask_for_chap("7");
    let own = Challenge { identifier: 1, bytes: [9; 32] };
    let pairs = text::parse(&asked.text).unwrap();
    assert_eq!(text::value(&pairs, "CHAP_C").unwrap(), text::to_hex(&own.bytes));
    let who = credentials("joe", "the initiator's secret");
    let data = proof(&asked, &who, Some(&own));
    let answer = hand.say_bytes(&data);
    assert_eq!((answer.response.status, answer.text.len()), (0x0201, 0));
    assert!(hand.pair.host.machine.is_finished());
    let again = Question::read(&pairs).unwrap().unwrap();
    let reflected = again.answer(Algorithm::Md5, &who, Some(&own), &mut Vec::new());
    assert_eq!(reflected, Err(ChapError::Reflected));
}

#[test]
fn a_question_without_a_proof_is_no_login() {
    let mut hand = Hand::new(&mutual());
    hand.ask_for_chap("7");
    let answer = hand.say(SECURITY, None, &[("CHAP_I", "1"), ("CHAP_C", "0x01020304")]);
    assert_eq!(answer.response.status, 0x0200);
}

const NAMES: [(&str, &str); 2] = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];

#[test]
fn only_allowed_initiators_log_in() {
    for (allow, status) in [
        (vec![], 0),
        (vec![INITIATOR.to_uppercase()], 0),
        (vec!["iqn.2026-01.org.example:other".into(), INITIATOR.into()], 0),
        (vec![format!("{INITIATOR}2")], 0x0202),
    ] {
        let setup = target::Setup { allow, ..target_setup() };
        let mut hand = Hand::new(&setup);
        assert_eq!(hand.say(OPERATIONAL, Some(FULL), &NAMES).response.status, status);
        assert_eq!(hand.pair.node.session_count(), usize::from(status == 0));
        let refused = hand.pair.node.counters().refused_authorization.get();
        assert_eq!(refused, u64::from(status != 0));
        let mut hand = Hand::new(&setup);
        let keys = [NAMES[0], ("SessionType", "Discovery")];
        assert_eq!(hand.say(OPERATIONAL, Some(FULL), &keys).response.status, status);
    }
}

#[test]
fn a_login_is_sent_to_another_portal() {
    // RFC 7143, section 11.13.5, status class 1; TargetAddress in section 13.8.
    let to = |portal: Option<&str>, permanent| target::Redirect {
        portal: portal.map(|portal| portal.parse().unwrap()),
        address: "192.0.2.9:3261".into(),
        permanent,
    };
    for (redirect, status) in [
        (to(None, false), 0x0101),
        (to(None, true), 0x0102),
        (to(Some("127.0.0.1:3260"), false), 0x0101),
        (to(Some("0.0.0.0:3260"), false), 0x0101),
        (to(Some("127.0.0.1:3261"), false), 0),
        (to(Some("127.0.0.2:3260"), false), 0),
    ] {
        let setup = target::Setup { redirects: vec![redirect], ..target_setup() };
        let mut hand = Hand::new(&setup);
        let answer = hand.say(OPERATIONAL, Some(FULL), &NAMES);
        assert_eq!(answer.response.status, status);
        let address = (status != 0).then(|| "192.0.2.9:3261".to_owned());
        assert_eq!(answer.value("TargetAddress"), address);
        assert_eq!(hand.pair.host.machine.is_finished(), status != 0);
        // Who asks for targets is told where they are here.
        let mut hand = Hand::new(&setup);
        let keys = [NAMES[0], ("SessionType", "Discovery")];
        assert_eq!(hand.say(OPERATIONAL, Some(FULL), &keys).response.status, 0);
    }
}

#[test]
fn versions_and_stages_are_checked() {
    // RFC 7143, sections 11.12.4, 11.12.3 and 6.3.
    let mut hand = Hand::new(&target_setup());
    hand.request.version_min = 1;
    assert_eq!(hand.say(OPERATIONAL, None, &NAMES).response.status, 0x0205);
    for (stage, next) in [(OPERATIONAL, SECURITY), (OPERATIONAL, 2), (2, FULL), (FULL, FULL)] {
        let mut hand = Hand::new(&target_setup());
        assert_eq!(hand.say(stage, Some(next), &NAMES).response.status, 0x0200, "{stage} {next}");
    }
    let mut hand = Hand::new(&target_setup());
    assert_eq!(hand.say(OPERATIONAL, None, &NAMES).response.status, 0);
    assert_eq!(hand.say(SECURITY, None, &[]).response.status, 0x0200, "no way back");
}

#[test]
fn a_login_has_so_many_requests_and_keys() {
    let mut hand = Hand::new(&target_setup());
    assert_eq!(hand.say(OPERATIONAL, None, &NAMES).response.status, 0);
    for _ in 1..32 {
        assert_eq!(hand.say(OPERATIONAL, None, &[]).response.status, 0);
    }
    assert_eq!(hand.say(OPERATIONAL, None, &[]).response.status, 0x0200, "the 33rd");
    for (more, status) in [(126, 0), (127, 0x0200)] {
        let keys: Vec<_> = (0..more).map(|at| format!("X-{at}")).collect();
        let keys = keys.iter().map(|key| (key.as_str(), "1"));
        let mut hand = Hand::new(&target_setup());
        let keys: Vec<_> = NAMES.into_iter().chain(keys).collect();
        let (first, rest) = keys.split_at(64);
        assert_eq!(hand.say(OPERATIONAL, None, first).response.status, 0);
        assert_eq!(hand.say(OPERATIONAL, None, rest).response.status, status, "{more}");
    }
}

#[test]
fn a_text_may_be_split_but_not_grow_for_ever() {
    // RFC 7143, section 6.1: 8192 bytes a PDU before anything is declared.
    let mut hand = Hand::new(&target_setup());
    let mut data = Vec::new();
    NAMES.iter().for_each(|(key, value)| text::push(&mut data, key, value));
    (hand.request.current_stage, hand.request.more) = (OPERATIONAL, true);
    let (first, rest) = data.split_at(30);
    assert_eq!(hand.say_bytes(first).response.status, 0);
    hand.request.more = false;
    assert_eq!(hand.say_bytes(rest).response.status, 0);
    let mut hand = Hand::new(&target_setup());
    (hand.request.current_stage, hand.request.more) = (OPERATIONAL, true);
    assert_eq!(hand.say_bytes(&[b'a'; 8192]).response.status, 0);
    assert_eq!(hand.say_bytes(&[b'a'; 8192]).response.status, 0);
    assert_eq!(hand.say_bytes(b"a").response.status, 0x0200, "16 KiB are over");
    let mut hand = Hand::new(&target_setup());
    let bhs = hand.request.encode().with_data_len(8193);
    let long = hand.pair.host.receive(hand.pair.now, &mut hand.pair.node, &bhs, &[b'a'; 8193]);
    assert_eq!(long, Err(Fatal::Oversize { len: 8193, limit: 8192 }));
}
