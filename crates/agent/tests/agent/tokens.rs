//! Who gets in by a token, to what, for how long; and who does not, and learns nothing.

use std::{sync::Arc, time::Duration};

use netraid_agent::Ready;
use netraid_block::{Buf, Device, Pool, SgList, TargetUri};
use netraid_cluster::{
    agent::{Operation, SegmentPage},
    now,
};
use netraid_control::{
    derived::{Ranges, Rights, Terms},
    keys::KeyId,
    token::{Initiator, Rates, Token},
    units::{AgentId, Generation, PlanId, Rate, SegmentId},
};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Remote, Secret},
};

use crate::support::{AgentClient, MIB, Mediator, Running, audit, config, file_of};

const CLIENT: &str = "iqn.2026-11.org.example:client";

pub(crate) fn token(
    mediator: &Mediator,
    agent: AgentId,
    segment: SegmentId,
    generation: u64,
) -> Token {
    Token {
        mediator: mediator.id,
        key: KeyId(0),
        agent,
        segment,
        plan: PlanId([6; 16]),
        initiator: Initiator::named(CLIENT),
        terms: Terms {
            ranges: Ranges::WHOLE,
            rights: Rights::ALL,
            append_only: false,
            generation: Generation(generation),
            expires: now().after_ms(600_000),
        },
        rates: Rates { floor: Rate::ZERO, limit: None, weight: 1 },
        not_before: now(),
    }
}

/// Name and secret of a token.
fn issue(mediator: &Mediator, token: Token) -> (String, String) {
    let issued = mediator.issue(token);
    (issued.name.clone(), issued.secret.expose().to_owned())
}

async fn login(ready: &Ready, name: &str, secret: &str, client: &str) -> Result<Device, String> {
    let uri = format!("iscsi://{name}@{}/{}/0", ready.portal, ready.target);
    let config = InitiatorConfig {
        secret: Some(Secret::new(secret).unwrap()),
        initiator_name: client.to_owned(),
        request_timeout: Duration::from_secs(5),
        ..InitiatorConfig::new(TargetUri::parse(&uri).unwrap())
    };
    match Remote::connect(config, Pool::new()).await {
        Ok(remote) => Ok(Device::new(Arc::new(remote))),
        Err(error) => Err(format!("{:?}", error.into_reason())),
    }
}

pub(crate) async fn open(
    ready: &Ready,
    mediator: &Mediator,
    token: Token,
) -> Result<Device, String> {
    let (name, secret) = issue(mediator, token);
    login(ready, &name, &secret, CLIENT).await
}

pub(crate) async fn put(device: &Device, byte: u8) -> bool {
    let data: SgList = Buf::copy_from(&[byte; 4096]).into();
    completions::write(device, 4096, data, true).await.is_ok()
}

pub(crate) async fn got(device: &Device) -> Option<u8> {
    let data = completions::read(device, 4096, 4096).await.ok()?.to_contiguous();
    assert!(data.iter().all(|byte| *byte == data[0]));
    Some(data[0])
}

pub(crate) async fn raise(client: &AgentClient, segment: SegmentId, generation: u64) {
    let generation = Generation(generation);
    client
        .one(Operation::RaiseGeneration { segment, generation, taken_by: PlanId([5; 16]) })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_token_opens_its_segment_until_that_is_raised_or_removed() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let agent = start();
    let client = mediator.at(&agent.ready);
    let segment = client.segment(4 * MIB).await;
    raise(&client, segment, 1).await;
    let old = token(&mediator, agent.ready.agent, segment, 1);
    let device = open(&agent.ready, &mediator, old).await.unwrap();
    assert_eq!(device.info().capacity, 4 * MIB);
    assert!(put(&device, 0xa1).await);
    drop(device);
    drop(agent);

    let agent = start();
    let client = mediator.at(&agent.ready);
    let first = open(&agent.ready, &mediator, old).await.unwrap();
    assert_eq!(got(&first).await, Some(0xa1));
    raise(&client, segment, 2).await;
    // The session is over, and its token opens nothing.
    assert!(!put(&first, 0xb2).await);
    assert!(open(&agent.ready, &mediator, old).await.is_err());
    let new = Token { terms: Terms { generation: Generation(2), ..old.terms }, ..old };
    let second = open(&agent.ready, &mediator, new).await.unwrap();
    assert_eq!(got(&second).await, Some(0xa1));
    assert!(put(&second, 0xc3).await);

    let path = file_of(directory.path(), &mediator, segment);
    assert!(path.exists());
    client.one(Operation::RemoveSegment { segment }).await.unwrap();
    assert!(!path.exists());
    assert_eq!(got(&second).await, None);
    assert!(open(&agent.ready, &mediator, new).await.is_err());
}

#[tokio::test]
async fn whoever_may_not_gets_one_answer_and_a_line_in_the_audit_log_and_is_told_why_with_a_token()
{
    let directory = tempfile::tempdir().unwrap();
    let (mediator, other) = (Mediator::start().await, Mediator::start().await);
    let agent = Running::start(config(directory.path(), &[&mediator, &other]));
    let (ready, id) = (&agent.ready, agent.ready.agent);
    let client = mediator.at(ready);
    let segment = client.segment(4 * MIB).await;
    raise(&client, segment, 3).await;
    let good = token(&mediator, id, segment, 3);
    let theirs = other.at(ready).segment(4 * MIB).await;
    assert!(open(ready, &mediator, good).await.is_ok());

    let mut answers = Vec::new();
    let (name, secret) = issue(&mediator, good);
    answers.push(login(ready, &name, &secret, "iqn.2026-11.org.example:thief").await);
    answers.push(login(ready, &name, "no-such-secret-at-all", CLIENT).await);
    answers.push(login(ready, "somebody", "some-secret-of-them", CLIENT).await);
    // Each field of the token, altered: its secret is another one then.
    for at in (0..name.len()).step_by(11) {
        let altered = if name.as_bytes()[at] == b'A' { "B" } else { "A" };
        let altered = format!("{}{altered}{}", &name[..at], &name[at + 1..]);
        answers.push(login(ready, &altered, &secret, CLIENT).await);
    }
    let past = now().0 - 60_000;
    let expired = Terms { expires: netraid_control::units::Moment(past), ..good.terms };
    let floor = Rates { floor: Rate(MIB), ..good.rates };
    answers.push(open(ready, &mediator, Token { agent: AgentId([9; 16]), ..good }).await);
    for answer in &answers {
        assert_eq!(answer.as_ref().unwrap_err(), "Login(Authentication)", "nothing is told");
    }
    // Who proves to know a token's secret is told what is wrong with it.
    let begins = netraid_control::units::Moment(now().0 + 60_000);
    let tokens = [
        (
            Token { terms: expired, not_before: netraid_control::units::Moment(past - 1), ..good },
            "its token ended 60.",
        ),
        (Token { not_before: begins, ..good }, "its token begins in 59."),
        (
            Token { terms: Terms { generation: Generation(2), ..good.terms }, ..good },
            "fenced: it is of generation 2 of the volume, and the agent has generation 3",
        ),
        (
            Token { terms: Terms { generation: Generation(4), ..good.terms }, ..good },
            "fenced: it is of generation 4",
        ),
        (Token { segment: SegmentId([9; 16]), ..good }, "no such segment"),
        (Token { segment: theirs, ..good }, "no such segment"),
        // Promises a rate that nobody booked.
        (Token { rates: floor, ..good }, "the rate that its token promises is not booked"),
    ];
    let mut denied = answers.len();
    for (token, why) in tokens {
        let told = open(ready, &mediator, token).await.unwrap_err();
        assert!(told.starts_with("Login(Denied(") && told.contains(why), "{why}: {told}");
        denied += 1;
        // By another secret it is nobody's.
        let (name, _) = issue(&mediator, token);
        let unproven = login(ready, &name, "no-such-secret-at-all", CLIENT).await.unwrap_err();
        assert_eq!(unproven, "Login(Authentication)");
        denied += 1;
    }
    // Another mediator's word for a segment that is not its own.
    let told = open(ready, &other, Token { mediator: other.id, ..good }).await.unwrap_err();
    assert!(told.contains("no such segment"), "{told}");
    let lines = audit(directory.path(), "login_denied", denied + 1).await;
    let text = format!("{lines:?}");
    for why in
        ["another initiator", "not proven", "no token", "expired", "at 3", "agent", "not there"]
    {
        assert!(text.contains(why), "{why}: {text}");
    }
    assert!(text.contains("is not booked") && !text.contains(&secret));
    assert!(open(ready, &mediator, good).await.is_ok());
}

#[tokio::test]
async fn a_plan_that_is_taken_back_ends_its_sessions_and_opens_nothing_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let agent = start();
    let client = mediator.at(&agent.ready);
    let segment = client.segment(4 * MIB).await;
    raise(&client, segment, 1).await;
    let own = |plan| Token { plan, ..token(&mediator, agent.ready.agent, segment, 1) };
    let (gone, other) = (own(PlanId([7; 16])), own(PlanId([8; 16])));
    let writes = open(&agent.ready, &mediator, gone).await.unwrap();
    let reads = open(&agent.ready, &mediator, other).await.unwrap();
    assert!(put(&writes, 1).await);
    let revoked_until = Some(gone.terms.expires);
    client.one(Operation::EndPlan { plan: gone.plan, revoked_until }).await.unwrap();
    assert!(!put(&writes, 2).await);
    assert!(open(&agent.ready, &mediator, gone).await.is_err());
    assert_eq!(got(&reads).await, Some(1));
    assert!(open(&agent.ready, &mediator, other).await.is_ok());
    drop((writes, reads, agent));
    // Nor after a restart.
    let agent = start();
    assert!(open(&agent.ready, &mediator, gone).await.is_err());
    let again = open(&agent.ready, &mediator, other).await.unwrap();
    assert_eq!(got(&again).await, Some(1));
}

#[tokio::test]
async fn one_id_is_a_segment_of_each_mediator() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (Mediator::start().await, Mediator::start().await);
    let agent = Running::start(config(directory.path(), &[&one, &other]));
    let (mine, theirs) = (one.at(&agent.ready), other.at(&agent.ready));
    let id = mine.segment(4 * MIB).await;
    raise(&mine, id, 7).await;
    let my_token = token(&one, agent.ready.agent, id, 7);
    let their_token = |generation| token(&other, agent.ready.agent, id, generation);
    let my_device = open(&agent.ready, &one, my_token).await.unwrap();
    assert!(put(&my_device, 0x11).await);
    assert!(open(&agent.ready, &other, their_token(7)).await.is_err());

    theirs.segment_of(id, 8 * MIB).await;
    raise(&theirs, id, 2).await;
    let their_device = open(&agent.ready, &other, their_token(2)).await.unwrap();
    assert_eq!((their_device.info().capacity, my_device.info().capacity), (8 * MIB, 4 * MIB));
    assert_eq!(got(&their_device).await, Some(0));
    assert!(put(&their_device, 0x22).await);
    // What one of them raises or removes is its own.
    raise(&theirs, id, 8).await;
    assert!(!put(&their_device, 0x33).await);
    assert!(open(&agent.ready, &one, my_token).await.is_ok());
    theirs.one(Operation::RemoveSegment { segment: id }).await.unwrap();
    assert_eq!(got(&my_device).await, Some(0x11));
    assert!(open(&agent.ready, &other, their_token(8)).await.is_err());
    assert!(open(&agent.ready, &other, their_token(7)).await.is_err());
}

#[tokio::test]
async fn keys_come_and_go_with_beats() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let agent = start();
    let client = mediator.at(&agent.ready);
    let segment = client.segment(4 * MIB).await;
    raise(&client, segment, 1).await;
    let token = token(&mediator, agent.ready.agent, segment, 1);
    let key_of = |name: &str| Token::from_name(name).unwrap().key;
    let (first_name, first_secret) = issue(&mediator, token);
    assert_eq!(key_of(&first_name), KeyId(1));
    let first = login(&agent.ready, &first_name, &first_secret, CLIENT).await.unwrap();
    assert!(put(&first, 1).await);

    // A newer key: the older one is good until it ends.
    mediator.rotate(None).await;
    let (second_name, second_secret) = issue(&mediator, Token { plan: PlanId([7; 16]), ..token });
    assert_eq!(key_of(&second_name), KeyId(2));
    let second = login(&agent.ready, &second_name, &second_secret, CLIENT).await.unwrap();
    assert!(put(&second, 2).await && put(&first, 1).await);
    assert!(login(&agent.ready, &first_name, &first_secret, CLIENT).await.is_ok());

    // One that is taken back opens nothing, and who is in by it has to go.
    mediator.rotate(Some(KeyId(1))).await;
    assert!(login(&agent.ready, &first_name, &first_secret, CLIENT).await.is_err());
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while put(&first, 1).await {
        assert!(std::time::Instant::now() < end, "a session of a key that was taken back goes on");
    }
    let said = || std::fs::read_to_string(directory.path().join("audit.jsonl")).unwrap();
    while !said().contains("there is no key 1") {
        assert!(std::time::Instant::now() < end, "{}", said());
        tokio::task::yield_now().await;
    }
    assert!(put(&second, 2).await);
    let third = open(&agent.ready, &mediator, token).await.unwrap();
    assert_eq!(got(&third).await, Some(2));
    drop(agent);

    // All of it is durable.
    let agent = start();
    assert!(login(&agent.ready, &first_name, &first_secret, CLIENT).await.is_err());
    let second = login(&agent.ready, &second_name, &second_secret, CLIENT).await.unwrap();
    assert_eq!(got(&second).await, Some(2));
    assert!(open(&agent.ready, &mediator, token).await.is_ok());
}

#[tokio::test]
async fn a_segment_whose_data_is_gone_is_not_served_and_told_and_all_else_is() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let agent = start();
    let client = mediator.at(&agent.ready);
    let mut segments = Vec::new();
    for byte in 0..5 {
        let segment = client.segment(4 * MIB).await;
        raise(&client, segment, 1).await;
        let token = token(&mediator, agent.ready.agent, segment, 1);
        assert!(put(&open(&agent.ready, &mediator, token).await.unwrap(), byte).await);
        segments.push((segment, token));
    }
    let path = |at: usize| file_of(directory.path(), &mediator, segments[at].0);
    let label = |at: usize| path(at).with_extension("label");
    let lost = |page: SegmentPage| {
        let is_lost =
            |segment| page.entries.iter().any(|one| one.segment == segment && one.is_lost);
        (0..5).filter(|at| is_lost(segments[*at].0)).collect::<Vec<usize>>()
    };
    assert!(lost(client.segments().await).is_empty());
    drop(agent);
    // Removed, cut off, with a label that is none, another's, and the last one as it was.
    std::fs::remove_file(path(0)).unwrap();
    std::fs::File::options().write(true).open(path(1)).unwrap().set_len(MIB).unwrap();
    std::fs::write(label(2), "{\"version\": 1, \"seg").unwrap();
    std::fs::copy(label(4), label(3)).unwrap();

    let agent = start();
    let client = mediator.at(&agent.ready);
    assert_eq!(lost(client.segments().await), [0, 1, 3]);
    for (at, (_, token)) in segments.iter().enumerate() {
        match open(&agent.ready, &mediator, *token).await {
            Ok(device) => assert_eq!(got(&device).await, u8::try_from(at).ok()),
            Err(_) => assert!([0, 1, 3].contains(&at), "{at}"),
        }
    }
    assert_eq!(std::fs::read(label(3)).unwrap(), std::fs::read(label(4)).unwrap(), "as it was");
    let mended = std::fs::read_to_string(label(2)).unwrap();
    assert!(mended.contains(&segments[2].0.to_string()), "{mended}");
    // It is told at once, not at the next start only; and what is lost can be removed.
    std::fs::remove_file(path(4)).unwrap();
    assert_eq!(lost(client.segments().await), [0, 1, 3, 4]);
    for (segment, _) in &segments {
        client.one(Operation::RemoveSegment { segment: *segment }).await.unwrap();
    }
    assert!(client.segments().await.entries.is_empty() && client.ledger().await.is_empty());
    assert!(!label(3).exists());
}

#[tokio::test]
async fn files_that_an_earlier_program_left_open_are_closed_at_the_start() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let agent = start();
    let client = mediator.at(&agent.ready);
    let (segment, linked) = (client.segment(4 * MIB).await, client.segment(4 * MIB).await);
    drop(agent);
    let (data, label) = {
        let data = file_of(directory.path(), &mediator, segment);
        (data.clone(), data.with_extension("label"))
    };
    // What a store knows no more, and the lines of the audit log before the last ones.
    let unknown = data.with_file_name(SegmentId([8; 16]).to_string());
    std::fs::write(&unknown, "data").unwrap();
    let older = directory.path().join("audit.jsonl.1");
    std::fs::write(&older, "{}\n").unwrap();
    let open = std::fs::Permissions::from_mode(0o666);
    let paths = [&data, &label, &unknown, &older];
    paths.iter().for_each(|path| std::fs::set_permissions(path, open.clone()).unwrap());
    // Somebody else's file under the name of a segment, and behind a link.
    let victim = directory.path().join("victim");
    let names = [
        file_of(directory.path(), &mediator, linked),
        file_of(directory.path(), &mediator, linked).with_extension("label"),
    ];
    for name in &names {
        std::fs::rename(name, &victim).unwrap();
        std::fs::set_permissions(&victim, open.clone()).unwrap();
        for hard in [true, false] {
            if hard {
                std::fs::hard_link(&victim, name).unwrap();
            } else {
                std::os::unix::fs::symlink(&victim, name).unwrap();
            }
            let agent = start();
            let page = mediator.at(&agent.ready).segments().await;
            let lost: Vec<_> = page.entries.iter().filter(|one| one.is_lost).collect();
            assert_eq!((lost.len(), lost[0].segment), (1, linked), "{}", name.display());
            assert_eq!(mode_of(&victim), 0o666, "{}", name.display());
            std::fs::remove_file(name).unwrap();
        }
        std::fs::rename(&victim, name).unwrap();
    }
    for path in paths {
        assert_eq!(mode_of(path), 0o600, "{}", path.display());
    }

    let agent = start();
    let page = mediator.at(&agent.ready).segments().await;
    assert!(page.entries.iter().all(|one| !one.is_lost), "as it was again");
    for name in names {
        assert_eq!(mode_of(&name), 0o600, "{}", name.display());
    }
}

fn mode_of(path: &std::path::Path) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o777
}

#[tokio::test]
async fn files_that_a_kill_left_half_written_go_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let agent = start();
    let segment = mediator.at(&agent.ready).segment(4 * MIB).await;
    drop(agent);
    let data = file_of(directory.path(), &mediator, segment);
    let (id, gone) = (segment, SegmentId([9; 16]));
    let names = [
        format!("{id}.label.new-17"),
        format!("{id}.reservations.new"),
        format!("{gone}.label.new-17"),
        format!("{gone}.label"),
        format!("{gone}.reservations"),
    ];
    for name in &names {
        std::fs::write(data.with_file_name(name), "{").unwrap();
    }
    // Data that nobody knows stays, and what says whose it is.
    let unknown = data.with_file_name(SegmentId([8; 16]).to_string());
    std::fs::write(&unknown, "data").unwrap();
    std::fs::write(unknown.with_extension("label"), "{}").unwrap();
    std::fs::write(data.with_file_name("README"), "somebody's").unwrap();
    let _agent = start();
    let there = |name: &String| data.with_file_name(name).exists();
    assert!(!names.iter().any(there), "{names:?}");
    assert!(data.exists() && data.with_extension("label").exists());
    assert!(unknown.exists() && unknown.with_extension("label").exists());
    assert!(data.with_file_name("README").exists());
}

#[tokio::test]
async fn a_promised_rate_ends_with_its_booking() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    let segment = client.segment(4 * MIB).await;
    raise(&client, segment, 1).await;
    let plan = client.plan(segment, 10 * MIB).await.unwrap();
    let floor = |rate| Rates { floor: Rate(rate), limit: None, weight: 1 };
    let good = token(&mediator, agent.ready.agent, segment, 1);
    let good = Token { plan, rates: floor(10 * MIB), ..good };
    let more = Token { rates: floor(11 * MIB), ..good };
    assert!(open(&agent.ready, &mediator, more).await.is_err());
    let device = open(&agent.ready, &mediator, good).await.unwrap();
    assert!(put(&device, 1).await);
    let extend = Operation::ExtendPlan { plan, until: now().after_ms(1_000_000) };
    client.one(extend).await.unwrap();
    client.one(Operation::EndPlan { plan, revoked_until: None }).await.unwrap();
    assert!(!put(&device, 2).await);
    assert!(open(&agent.ready, &mediator, good).await.is_err());
    // Without a promise it still gets in.
    let free = Token { rates: floor(0), ..good };
    let device = open(&agent.ready, &mediator, free).await.unwrap();
    assert_eq!(got(&device).await, Some(1));
}

#[tokio::test]
async fn one_token_does_not_take_all_sessions_of_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let segment = mediator.at(&agent.ready).segment(MIB).await;
    let greedy = token(&mediator, agent.ready.agent, segment, 0);
    let mut sessions = Vec::new();
    for _ in 0..16 {
        sessions.push(open(&agent.ready, &mediator, greedy).await.unwrap());
    }
    assert!(open(&agent.ready, &mediator, greedy).await.is_err());
    let other = Token { plan: PlanId([7; 16]), ..greedy };
    let device = open(&agent.ready, &mediator, other).await.unwrap();
    assert_eq!(got(&device).await, Some(0));
    // Who has gone makes room.
    drop(sessions);
    let again = async {
        while open(&agent.ready, &mediator, greedy).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.unwrap();
}
