//! Cases by hand, then random histories against what agents would let in.

use super::*;
use proptest::prelude::*;
use std::{collections::BTreeMap, string::ToString};

const NOW: Moment = Moment(1_000_000);
const TERM_MS: u64 = 60_000;

fn plan(at: u8) -> PlanId {
    PlanId([at; 16])
}

fn asks(at: u8, access: Access) -> Request {
    Request { plan: plan(at), access, term_ms: TERM_MS, take_over: None }
}

fn reads(at: u8) -> Request {
    asks(at, Access::Read)
}

fn writes(at: u8) -> Request {
    asks(at, Access::Write)
}

fn opened(state: &mut LeaseState, now: Moment, request: &Request) -> Granted {
    let (new, granted) = state.open(now, request).unwrap();
    *state = new;
    granted
}

/// From when on others may have it.
fn free(granted: &Granted) -> Moment {
    granted.until.after_ms(SKEW_MS)
}

#[test]
fn one_writes_and_who_else_wants_it_hears_who_has_it_until_when() {
    let mut state = LeaseState::default();
    let granted = opened(&mut state, NOW, &writes(1));
    let until = NOW.after_ms(TERM_MS);
    assert_eq!(granted, Granted { generation: Generation(1), until, must_raise: true });
    let holder = Holder { plan: plan(1), until };
    let (generation, access) = (Generation(1), Access::Write);
    let conflict = Conflict { generation, access, holder, others: 0 };
    for request in [reads(2), writes(2)] {
        let before_end = Moment(until.0 + SKEW_MS - 1);
        assert_eq!(state.open(before_end, &request), Err(OpenError::Conflict(conflict)));
    }
    let text = conflict.to_string();
    // Not before the tokens have ended on an agent whose clock is behind.
    let free = until.after_ms(SKEW_MS);
    assert!(text.contains(&plan(1).to_string()) && text.contains(&free.0.to_string()), "{text}");
    assert_eq!(opened(&mut state, free, &writes(2)).generation, Generation(2));
    let gone = RenewError::Gone { plan: plan(1), generation: Generation(2) };
    assert_eq!(state.renew(free, plan(1), TERM_MS), Err(gone));
}

#[test]
fn many_read_at_the_generation_there_is_and_a_writer_waits_for_the_last_of_them() {
    let mut state = LeaseState::default();
    let first = opened(&mut state, NOW, &reads(1));
    assert_eq!((first.generation, first.must_raise), (Generation(0), false));
    let later = NOW.after_ms(10);
    assert_eq!(opened(&mut state, later, &reads(2)).generation, Generation(0));
    let until = later.after_ms(TERM_MS);
    let holder = Holder { plan: plan(2), until };
    let (generation, access) = (Generation(0), Access::Read);
    let conflict = Conflict { generation, access, holder, others: 1 };
    assert_eq!(state.open(later, &writes(3)), Err(OpenError::Conflict(conflict)));
    state = state.release(plan(2));
    assert!(matches!(state.conflict(later, Access::Write), Some(Conflict { others: 0, .. })));
    assert_eq!(opened(&mut state, free(&first), &writes(3)).generation, Generation(1));
}

#[test]
fn who_reads_after_a_writer_that_did_not_release_does_so_at_a_new_generation() {
    let mut state = LeaseState::default();
    let written = opened(&mut state, NOW, &writes(1));
    state = state.raised(written.generation);
    let released = opened(&mut state.release(plan(1)), NOW, &reads(2));
    assert_eq!((released.generation, released.must_raise), (Generation(1), false));
    let silent = opened(&mut state, free(&written), &reads(2));
    assert_eq!((silent.generation, silent.must_raise), (Generation(2), true));
}

#[test]
fn a_generation_is_raised_until_all_agents_are_known_to_have_it() {
    let mut state = LeaseState::default();
    opened(&mut state, NOW, &writes(1));
    // The mediator crashed here: who comes next has the same to do.
    state = state.release(plan(1));
    assert!(opened(&mut state.clone(), NOW, &reads(2)).must_raise);
    let late = state.raised(Generation(0));
    assert!(opened(&mut late.clone(), NOW, &reads(2)).must_raise, "an older one counted");
    assert!(!opened(&mut state.raised(Generation(1)), NOW, &reads(2)).must_raise);
    assert!(opened(&mut state.raised(Generation(1)), NOW, &writes(2)).must_raise);
}

#[test]
fn a_take_over_shuts_out_those_that_were_seen_and_nobody_else() {
    let mut state = LeaseState::default();
    opened(&mut state, NOW, &writes(1));
    let force =
        |request, generation| Request { take_over: Some(Generation(generation)), ..request };
    assert!(matches!(state.open(NOW, &force(writes(2), 0)), Err(OpenError::Conflict(_))));
    assert_eq!(opened(&mut state, NOW, &force(writes(2), 1)).generation, Generation(2));
    // Another that saw the first one as well.
    assert!(matches!(state.open(NOW, &force(writes(3), 1)), Err(OpenError::Conflict(_))));
    assert_eq!(opened(&mut state, NOW, &force(reads(3), 2)).generation, Generation(3));
    // A reader is in no reader's way, and stays.
    assert_eq!(opened(&mut state, NOW, &force(reads(4), 3)).generation, Generation(3));
    assert_eq!(state.holders().count(), 2);
}

#[test]
fn whose_lease_is_taken_from_it_is_shut_out_and_whose_was_given_back_is_not() {
    let mut state = LeaseState::default();
    let written = opened(&mut state, NOW, &writes(1));
    state = state.raised(written.generation);
    let closed = state.release(plan(1));
    assert_eq!((closed.generation(), closed.quiet_at()), (written.generation, Moment(0)));
    let revoked = state.revoke(plan(1));
    assert_eq!((revoked.generation(), revoked.is_raised()), (Generation(2), false));
    assert_eq!((revoked.quiet_at(), revoked.holders().count()), (free(&written), 0));
    assert!(matches!(revoked.renew(NOW, plan(1), TERM_MS), Err(RenewError::Gone { .. })));
    let read = opened(&mut revoked.clone(), NOW, &reads(2));
    assert_eq!((read.generation, read.must_raise), (Generation(2), true));
    // Of those who read one is taken out; a writer has to wait for it where it is not raised.
    let mut state = LeaseState::default();
    opened(&mut state, NOW, &reads(1));
    let other = opened(&mut state, NOW.after_ms(7), &reads(2));
    state = state.revoke(plan(2));
    assert_eq!((state.generation(), state.quiet_at()), (Generation(0), free(&other)));
    assert_eq!(state.holders().map(|(_, holder)| holder.plan).collect::<Vec<_>>(), [plan(1)]);
    assert_eq!(state.revoke(plan(2)), state);
}

#[test]
fn whoever_was_shut_out_is_forgotten_once_all_agents_know_it() {
    let take_over = |state: &mut LeaseState, by: u8| {
        let take_over = Some(state.generation());
        opened(state, NOW, &Request { take_over, ..writes(by) })
    };
    let mut state = LeaseState::default();
    let dead = opened(&mut state, NOW, &writes(1));
    let written = take_over(&mut state, 2);
    assert_eq!((state.quiet_at(), state.is_raised()), (free(&dead), false));
    assert_eq!(state.raised(dead.generation), state, "agents that know the one before");
    state = state.raised(written.generation).release(plan(2));
    assert_eq!(state.quiet_at(), Moment(0));
    opened(&mut state, NOW, &writes(3));
    assert_eq!(state.quiet_at(), Moment(0), "half of the agents do");
    // A reader's tokens are of the generation that all agents have, and of the next one are not.
    state = state.raised(state.generation()).release(plan(3));
    let reader = opened(&mut state, NOW, &reads(4));
    state = state.revoke(plan(4)).raised(state.generation());
    assert_eq!(state.quiet_at(), free(&reader));
    let written = opened(&mut state, NOW, &writes(5));
    assert_eq!(state.quiet_at(), free(&reader));
    assert_eq!(state.raised(written.generation).quiet_at(), Moment(0));
    // Which of them it was is not known of what is stored already.
    let stored = serde_json::to_string(&state.revoke(plan(5))).unwrap();
    let mut older = serde_json::from_str::<serde_json::Value>(&stored).unwrap();
    older.as_object_mut().unwrap().remove("same_quiet_at").unwrap();
    let older: LeaseState = serde_json::from_value(older).unwrap();
    assert_eq!(older.raised(older.generation()).quiet_at(), free(&written));
}

#[test]
fn a_repeated_request_gives_what_it_gave_and_never_less() {
    let mut state = LeaseState::default();
    let first = opened(&mut state, NOW, &writes(1));
    assert_eq!(opened(&mut state, NOW, &writes(1)), first);
    let short = Request { term_ms: 1, ..writes(1) };
    assert_eq!(opened(&mut state, NOW, &short), first);
    let (renewed, granted) = state.renew(NOW, plan(1), 1).unwrap();
    assert_eq!((&renewed, granted), (&state, first));
    let other = OpenError::Different { plan: plan(1), access: Access::Write };
    assert_eq!(state.open(NOW, &reads(1)), Err(other));
    assert_eq!(state.release(plan(1)).release(plan(1)).release(plan(2)).holders().count(), 0);
}

#[test]
fn a_lease_that_nobody_else_took_is_renewed_after_its_end() {
    let mut state = LeaseState::default();
    let first = opened(&mut state, NOW, &writes(1));
    let late = first.until.after_ms(1_000_000);
    let (_, again) = state.renew(late, plan(1), TERM_MS).unwrap();
    assert_eq!((again.generation, again.until), (first.generation, late.after_ms(TERM_MS)));
}

#[test]
fn when_agents_are_further_all_but_who_opens_are_shut_out() {
    let mut state = LeaseState::default();
    opened(&mut state, NOW, &reads(1));
    opened(&mut state, NOW, &reads(2));
    let further = state.surpassed(NOW, Generation(7), plan(2)).unwrap();
    assert_eq!((further.generation(), further.taken_by()), (Generation(8), plan(2)));
    assert_eq!(further.quiet_at(), NOW.after_ms(TERM_MS_MAX + SKEW_MS));
    assert_eq!(further.holders().map(|(_, holder)| holder.plan).collect::<Vec<_>>(), [plan(2)]);
    assert!(!further.is_raised());
    // Also where it is the same number, taken for another.
    let mut state = LeaseState::default();
    let written = opened(&mut state, NOW, &writes(3));
    let again = state.surpassed(NOW, written.generation, plan(3)).unwrap();
    assert_eq!((again.generation(), again.holders().count()), (Generation(2), 1));
}

#[test]
fn limits_are_kept() {
    let mut state = LeaseState::default();
    for term_ms in [0, TERM_MS_MAX + 1, u64::MAX] {
        let request = Request { term_ms, ..writes(1) };
        assert!(matches!(state.open(NOW, &request), Err(OpenError::Term(_))));
    }
    for at in 0..READERS_MAX {
        let plan = PlanId((u128::try_from(at).unwrap() << 8).to_be_bytes());
        let request = Request { plan, ..reads(0) };
        opened(&mut state, NOW, &request);
    }
    assert_eq!(state.open(NOW, &reads(1)), Err(OpenError::TooMany));
    let over = NOW.after_ms(TERM_MS + SKEW_MS);
    opened(&mut state, over, &reads(1));
    assert_eq!(state.holders().count(), 1, "those that are over have gone");
    let at = |seen| LeaseState::default().surpassed(NOW, Generation(seen), plan(1));
    assert_eq!(at(u64::MAX), Err(Spent));
    let last = at(u64::MAX - 1).unwrap();
    assert_eq!(last.open(NOW, &writes(1)), Err(OpenError::Spent(Spent)));
    let (read, _) = last.open(NOW, &reads(1)).unwrap();
    assert_eq!(read.revoke(plan(1)).holders().count(), 0);
    let before = at(u64::MAX - 2).unwrap();
    let (written, _) = before.open(NOW, &writes(1)).unwrap();
    let stays = written.revoke(plan(1));
    assert_eq!((stays.generation(), stays.holders().count()), (Generation(u64::MAX), 1));
}

#[test]
fn what_is_stored_is_read_again_and_nothing_else() {
    let mut state = LeaseState::default();
    opened(&mut state, NOW, &writes(1));
    let stored = serde_json::to_string(&state).unwrap();
    let holder = "{\"plan\":\"01010101010101010101010101010101\",\"until\":1060000}";
    let shown = std::format!(
        "{{\"generation\":1,\"taken_by\":\"01010101010101010101010101010101\",\"is_raised\":false,\"quiet_at\":0,\"same_quiet_at\":0,\"held\":{{\"writer\":{holder}}}}}"
    );
    assert_eq!(stored, shown);
    assert_eq!(serde_json::from_str::<LeaseState>(&stored).unwrap(), state);
    let more = stored.replacen('{', "{\"more\":1,", 1);
    assert!(serde_json::from_str::<LeaseState>(&more).is_err());
}

#[derive(Debug, Clone)]
enum Step {
    Open { plan: u8, access: Access, term_ms: u64, take_over: bool },
    Renew { plan: u8, term_ms: u64 },
    Release { plan: u8 },
    Revoke { plan: u8 },
    Raise,
    Wait { ms: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    let step = prop_oneof![
        4 => (0..6_u8, access, 1..100_u64, prop::bool::weighted(0.2)).prop_map(
            |(plan, access, term_ms, take_over)| Step::Open { plan, access, term_ms, take_over }
        ),
        2 => (0..6_u8, 1..100_u64).prop_map(|(plan, term_ms)| Step::Renew { plan, term_ms }),
        2 => (0..6_u8).prop_map(|plan| Step::Release { plan }),
        1 => (0..6_u8).prop_map(|plan| Step::Revoke { plan }),
        2 => Just(Step::Raise),
        2 => prop_oneof![1..80_u64, SKEW_MS - 80..SKEW_MS + 80].prop_map(|ms| Step::Wait { ms }),
    ];
    prop::collection::vec(step, 1..60)
}

/// What clients believe and what the segments of the agents are at: the slow and simple view.
#[derive(Default)]
struct World {
    now: Moment,
    state: LeaseState,
    /// What each plan was told last, unless it released.
    told: BTreeMap<u8, (Access, Granted)>,
    /// What those were told that do not know that it was taken from them.
    strays: Vec<(Access, Granted)>,
    /// The segments' generation: whoever got tokens of another opens nothing.
    agents: Generation,
}

impl World {
    fn note(&mut self, plan: u8, access: Access, new: LeaseState, granted: Granted) {
        assert!(new.generation() >= self.state.generation(), "a generation fell");
        assert!(granted.until > self.now, "over when it was granted");
        if let Some(before) = self.told.get(&plan).copied() {
            if before.1.generation == granted.generation && before.0 == access {
                assert!(granted.until >= before.1.until, "shortened");
            } else {
                self.strays.push(before);
            }
        }
        self.state = new;
        if granted.must_raise {
            self.agents = granted.generation;
        }
        assert_eq!(self.agents, granted.generation, "tokens that no agent takes");
        self.told.insert(plan, (access, granted));
    }

    fn take(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Open { plan: at, access, term_ms, take_over } => {
                let take_over = take_over.then_some(self.state.generation());
                let request = Request { plan: plan(at), access, term_ms, take_over };
                let live = |(of, (does, held)): (&u8, &(Access, Granted))| {
                    *of != at
                        && free(held) > now
                        && held.generation == self.state.generation()
                        && (access == Access::Write || *does == Access::Write)
                };
                let is_excluded = self.told.iter().any(live);
                match self.state.open(now, &request) {
                    Ok((new, granted)) => {
                        assert!(!is_excluded || take_over.is_some(), "two at once: {request:?}");
                        self.note(at, access, new, granted);
                    }
                    Err(OpenError::Conflict(_)) => {
                        assert!(is_excluded && take_over.is_none(), "refused for nothing");
                    }
                    Err(OpenError::Different { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Renew { plan: at, term_ms } => {
                let had = self.told.get(&at).copied();
                match (self.state.renew(now, plan(at), term_ms), had) {
                    (Ok((new, granted)), Some((access, before))) => {
                        assert_eq!(before.generation, granted.generation);
                        self.note(at, access, new, granted);
                    }
                    (Ok(_), None) => panic!("renewed what nobody has"),
                    (Err(_), Some((_, had))) => assert!(
                        had.generation < self.state.generation() || free(&had) <= now,
                        "refused while it lasts"
                    ),
                    (Err(_), None) => {}
                }
            }
            Step::Release { plan: at } => {
                self.state = self.state.release(plan(at));
                self.told.remove(&at);
            }
            Step::Revoke { plan: at } => {
                self.state = self.state.revoke(plan(at));
                self.strays.extend(self.told.remove(&at));
            }
            Step::Raise => {
                self.agents = self.state.generation();
                self.state = self.state.raised(self.agents);
            }
            Step::Wait { ms } => self.now = now.after_ms(ms),
        }
    }

    /// Whoever's tokens the agents would take, whatever clocks say, if they were used: a writer
    /// alone, or readers. Who is not among the holders has no tokens that last longer than is said.
    fn check(&self) {
        let all = || self.told.values().chain(&self.strays);
        let open = || all().filter(|(_, held)| held.generation == self.agents);
        let writers = open().filter(|(access, _)| *access == Access::Write).count();
        assert!(writers == 0 || open().count() == 1, "{:?} {:?}", self.told, self.strays);
        let holds = |at: u8| self.state.holders().any(|(_, holder)| holder.plan == plan(at));
        let out = self.told.iter().filter(|(at, _)| !holds(**at)).map(|(_, told)| told);
        // What is of a generation before that of all agents opens nothing.
        let is_let_in = |granted: &&Granted| granted.generation >= self.agents;
        for granted in out.chain(&self.strays).map(|(_, granted)| granted).filter(is_let_in) {
            assert!(free(granted) <= self.state.quiet_at(), "{granted:?} {:?}", self.state);
        }
    }
}

proptest! {
    #[test]
    fn of_whom_agents_let_in_one_writes_or_all_read(steps in steps()) {
        let mut world = World::default();
        for step in &steps {
            world.take(step);
            world.check();
            let stored = serde_json::to_string(&world.state).unwrap();
            world.state = serde_json::from_str(&stored).unwrap();
        }
    }
}
