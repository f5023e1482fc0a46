//! Logins that the shell judges.

use netraid_iscsi_proto::{
    chap::{Credentials, Secret},
    negotiation::SessionType,
    target::{self, Realm, Standing},
};

use crate::{
    harness::target_setup,
    logins::{Answer, Hand, INITIATOR, OPERATIONAL, proof},
};

const HERE: Standing = Standing { realm: Realm(3), ends_others: true, party: None };

fn judged() -> target::Setup {
    // Neither is used.
    let chap = vec![Credentials { user: "joe".into(), secret: Secret::new("a secret").unwrap() }];
    target::Setup { chap, asks_standing: true, ..target_setup() }
}

fn who(user: &str, secret: &str) -> Credentials {
    Credentials { user: user.into(), secret: Secret::new(secret).unwrap() }
}

/// A login whose proof has come, and waits.
fn claimed(who: &Credentials) -> Hand {
    let mut hand = Hand::new(&judged());
    let asked = hand.ask_for_chap("7");
    let data = proof(&asked, who, None);
    (hand.request.transit, hand.request.next_stage) = (true, OPERATIONAL);
    assert!(hand.send(&data).is_none(), "an answer before anybody has judged");
    hand
}

fn judge(hand: &mut Hand, standing: Option<Standing>) -> Option<Answer> {
    hand.pair.host.machine.handle_standing(&mut hand.pair.node, standing);
    hand.answer()
}

#[test]
fn the_shell_judges_name_and_proof() {
    let mut hand = claimed(&who("the name", "the secret"));
    assert_eq!(hand.pair.host.judged, 1);
    let claim = hand.pair.host.machine.claim().unwrap();
    assert_eq!((claim.name(), claim.initiator()), ("the name", INITIATOR));
    assert_eq!(claim.session(), SessionType::Normal);
    assert!(claim.proves(&Secret::new("the secret").unwrap()));
    assert!(!claim.proves(&Secret::new("a secret").unwrap()));
    let answer = judge(&mut hand, Some(HERE)).unwrap();
    assert_eq!((answer.response.status, answer.response.transit), (0, true));
    assert!(hand.pair.host.machine.claim().is_none());
    assert!(judge(&mut hand, None).is_none(), "nobody waits");
}

#[test]
fn who_may_come_in_is_told_that_there_is_nothing_to_serve_it_with() {
    let mut hand = claimed(&who("the name", "the secret"));
    hand.pair.host.machine.handle_shortage();
    let answer = hand.answer().unwrap();
    assert_eq!(answer.response.status, 0x0302);
    assert!(hand.pair.host.machine.is_finished());
    assert!(judge(&mut hand, Some(HERE)).is_none(), "let in after all");
    assert_eq!(hand.pair.node.counters().refused_busy.get(), 1);
}

#[test]
fn who_is_not_let_in_is_told_one_thing_only() {
    let mut answers = Vec::new();
    for name in ["the name", "another"] {
        let mut hand = claimed(&who(name, "the secret"));
        let answer = judge(&mut hand, None).unwrap();
        assert_eq!(answer.response.status, 0x0201);
        answers.push((answer.response, answer.text));
        assert!(hand.pair.host.machine.is_finished());
        assert!(judge(&mut hand, Some(HERE)).is_none(), "let in after all");
        assert_eq!(hand.pair.node.session_count(), 0);
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn who_has_proven_itself_is_told_why_it_is_refused_in_words_of_a_bounded_length() {
    for (told, expected) in
        [("fenced", &b"X-io.netraid.refusal=fenced\0"[..]), (&"x".repeat(513), b"")]
    {
        let mut hand = claimed(&who("the name", "the secret"));
        hand.pair.host.machine.handle_denied(&mut hand.pair.node, told);
        let answer = hand.answer().unwrap();
        assert_eq!((answer.response.status, &answer.text[..]), (0x0201, expected));
        assert!(hand.pair.host.machine.is_finished());
        assert!(judge(&mut hand, Some(HERE)).is_none(), "let in after all");
    }
}

#[test]
fn nothing_comes_before_the_answer() {
    let mut hand = claimed(&who("the name", "the secret"));
    let answer = hand.say(OPERATIONAL, Some(3), &[]);
    assert_eq!(answer.response.status, 0x0200);
    assert!(judge(&mut hand, Some(HERE)).is_none());
    assert_eq!(hand.pair.node.session_count(), 0);
}

#[test]
fn a_proof_that_cannot_be_read_proves_nothing_and_names_are_cut() {
    let name = "é".repeat(200);
    let mut hand = Hand::new(&judged());
    hand.ask_for_chap("5");
    let text = format!("CHAP_N={name}\0CHAP_R=rubbish\0");
    (hand.request.transit, hand.request.next_stage) = (true, OPERATIONAL);
    assert!(hand.send(text.as_bytes()).is_none());
    let claim = hand.pair.host.machine.claim().unwrap();
    assert_eq!(claim.name(), "é".repeat(127));
    assert!(!claim.proves(&Secret::new("the secret").unwrap()));
}

#[test]
fn a_target_that_has_no_secret_proves_nothing() {
    let mut hand = Hand::new(&judged());
    let asked = hand.ask_for_chap("5");
    let challenge = target::Challenge { identifier: 1, bytes: [5; 32] };
    let data = proof(&asked, &who("the name", "the secret"), Some(&challenge));
    let answer = hand.say_bytes(&data);
    assert_eq!(answer.response.status, 0x0201);
    assert!(hand.pair.host.machine.claim().is_none());
}
