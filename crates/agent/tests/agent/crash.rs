//! An agent that is killed in the middle of what it does: what it answered is there, what it removed
//! is not, and nothing is there twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Stdio,
    time::Duration,
};

use netraid_agent::Agent;
use netraid_cluster::{
    access::AccessFile,
    agent::{Done, Operation, SegmentReport, space_of},
};
use netraid_control::{
    ledger::{Commit, State},
    units::{AgentId, AllotmentId, Generation, PlanId, SegmentId},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    task::JoinSet,
};

use crate::support::{AgentClient, MIB, Mediator, config, create, file_of, rates, space};

const DIRECTORY: &str = "NETRAID_TEST_AGENT_DIRECTORY";
const ACCESS: &str = "NETRAID_TEST_AGENT_ACCESS";
/// How often the agent is killed.
const CRASHES: &str = "NETRAID_AGENT_CRASHES";
const CLIENTS: u64 = 4;

/// The process that is killed; nothing without its directory.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "the test that started it reads this")]
async fn agent_process() {
    let (Some(directory), Some(access)) = (std::env::var_os(DIRECTORY), std::env::var_os(ACCESS))
    else {
        return;
    };
    let mut config = config(Path::new(&directory), &[]);
    config.mediators = vec![AccessFile::read(Path::new(&access)).unwrap()];
    let agent = Agent::start(config).await.unwrap();
    let announce = |ready: &netraid_agent::Ready| println!("READY {} {}", ready.agent, ready.api);
    agent.run(std::future::pending(), announce).await.unwrap();
}

async fn start(directory: &Path, access: &Path) -> (Child, AgentId, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::agent_process", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(ACCESS, access)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        // The harness may have begun the line.
        if let Some((_, said)) = line.split_once("READY ") {
            let (agent, api) = said.split_once(' ').unwrap();
            return (child, agent.parse().unwrap(), api.to_owned());
        }
    }
    panic!("the agent ended");
}

/// What a client knows of what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It was answered that it is there.
    There,
    /// It was answered that it is not.
    Gone,
    /// No answer came.
    Unsure,
}

#[derive(Debug, Default)]
struct Client {
    segments: BTreeMap<SegmentId, (Known, Generation)>,
    plans: BTreeMap<PlanId, Known>,
}

impl Client {
    /// Asks for this and that until nobody answers.
    async fn work(&mut self, agent: &AgentClient) {
        while self.turn(agent).await.is_some() {}
    }

    async fn turn(&mut self, agent: &AgentClient) -> Option<()> {
        match rand::random_range(0..6) {
            0 | 1 => {
                let id = SegmentId(rand::random());
                let hold = Operation::Hold(space(id, MIB));
                let Ok(done) = ask(agent, hold).await? else { return Some(()) };
                let Done::Booked(held) = done else { panic!() };
                let commit = Commit { id: held.id, serial: held.serial, for_ms: None };
                self.segments.insert(id, (Known::Unsure, Generation(0)));
                let all = [Operation::Commit(commit), create(id, MIB)];
                for answer in ask_all(agent, &all).await? {
                    answer.unwrap();
                }
                self.segments.insert(id, (Known::There, Generation(0)));
            }
            2 => {
                let (id, (known, generation)) = self.some_segment()?;
                let next = Generation(generation.0 + 1);
                self.segments.insert(id, (known, next));
                let raise = Operation::RaiseGeneration {
                    segment: id,
                    generation: next,
                    taken_by: PlanId([5; 16]),
                };
                if ask(agent, raise).await.is_none() {
                    // It may have been raised or not.
                    self.segments.insert(id, (Known::Unsure, generation));
                    return None;
                }
            }
            3 => {
                let (id, (_, generation)) = self.some_segment()?;
                self.segments.insert(id, (Known::Unsure, generation));
                ask(agent, Operation::RemoveSegment { segment: id }).await?.unwrap();
                self.segments.insert(id, (Known::Gone, generation));
            }
            4 => {
                let (plan, segment) = (PlanId(rand::random()), SegmentId([1; 16]));
                let Ok(done) = ask(agent, Operation::Hold(rates(plan, segment, 1 + MIB))).await?
                else {
                    return Some(());
                };
                let Done::Booked(held) = done else { panic!() };
                self.plans.insert(plan, Known::Unsure);
                let commit = Commit { id: held.id, serial: held.serial, for_ms: Some(3_600_000) };
                ask(agent, Operation::Commit(commit)).await?.unwrap();
                self.plans.insert(plan, Known::There);
            }
            _ => {
                let there = |(_, known): &(&PlanId, &Known)| **known == Known::There;
                let Some((plan, _)) = self.plans.iter().find(there) else { return Some(()) };
                let plan = *plan;
                self.plans.insert(plan, Known::Unsure);
                ask(agent, Operation::Release { id: AllotmentId(plan.0) }).await?.unwrap();
                self.plans.insert(plan, Known::Gone);
            }
        }
        Some(())
    }

    /// One that is there for sure; makes do with none.
    fn some_segment(&self) -> Option<(SegmentId, (Known, Generation))> {
        let there = self.segments.iter().filter(|(_, (known, _))| *known == Known::There);
        let there: Vec<_> = there.collect();
        let at = rand::random_range(0..there.len().max(1));
        there.get(at).map(|(id, state)| (**id, **state)).or(Some((
            // Nobody has it: what is asked of it is refused, or nothing.
            SegmentId([0xff; 16]),
            (Known::Gone, Generation(0)),
        )))
    }
}

/// None when no answer came.
async fn ask(agent: &AgentClient, operation: Operation) -> Option<netraid_cluster::agent::Answer> {
    ask_all(agent, &[operation]).await.map(|mut answers| answers.remove(0))
}

async fn ask_all(
    agent: &AgentClient,
    operations: &[Operation],
) -> Option<Vec<netraid_cluster::agent::Answer>> {
    agent.client.post("/v1/operations", &operations).await.ok()
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_kill_and_nothing_twice() {
    let rounds = std::env::var(CRASHES).map_or(6, |rounds| rounds.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let access = directory.path().join("access");
    mediator.access.write(&access).unwrap();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::default()).collect();
    for round in 0..rounds {
        let (mut child, id, api) = start(directory.path(), &access).await;
        let agent = mediator.at_url(id, &api);
        compare(&agent, &mut clients, directory.path(), &mediator, round).await;
        let mut tasks = JoinSet::new();
        for mut client in clients.drain(..) {
            let agent = agent.clone();
            tasks.spawn(async move {
                client.work(&agent).await;
                client
            });
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(5..400))).await;
        child.kill().await.unwrap();
        clients = tasks.join_all().await;
    }
    let (_child, id, api) = start(directory.path(), &access).await;
    let agent = mediator.at_url(id, &api);
    compare(&agent, &mut clients, directory.path(), &mediator, rounds).await;
    assert_eq!(mediator.joins(), 1);
    let there = clients.iter().map(|client| client.segments.len() + client.plans.len());
    assert!(there.sum::<usize>() > 10, "the agent did nothing");
}

/// Compares what is there with what was answered, and takes note of what was not known.
async fn compare(
    agent: &AgentClient,
    clients: &mut [Client],
    directory: &Path,
    mediator: &Mediator,
    round: u32,
) {
    let ledger = agent.ledger().await;
    let committed = |state| matches!(state, State::Committed { .. });
    let booked: BTreeSet<AllotmentId> =
        ledger.iter().filter(|entry| committed(entry.state)).map(|entry| entry.id).collect();
    let mut reports = BTreeMap::new();
    let mut after = String::new();
    loop {
        let path = format!("/v1/segments?limit=50{after}");
        let page: netraid_cluster::agent::SegmentPage = agent.client.get(&path).await.unwrap();
        let found = |report: SegmentReport| (report.segment, report);
        reports.extend(page.entries.into_iter().map(found));
        if !page.more {
            break;
        }
        after = reports.last_key_value().map(|(id, _)| format!("&after={id}")).unwrap_or_default();
    }
    let mut expected = BTreeSet::new();
    for client in clients {
        for (id, (known, generation)) in &mut client.segments {
            let (report, space) = (reports.get(id), booked.contains(&space_of(*id)));
            let path = file_of(directory, mediator, *id);
            match known {
                Known::There => {
                    assert_eq!(report.unwrap().generation, *generation, "round {round}: {id}");
                    assert!(space && path.exists(), "round {round}: {id}");
                }
                Known::Gone => {
                    let gone = report.is_none() && !space && !path.exists();
                    assert!(gone, "round {round}: {id} is there, {report:?}, space {space}");
                }
                Known::Unsure => {
                    assert_eq!(report.is_some(), path.exists(), "round {round}: {id}");
                    assert!(report.is_none() || space, "round {round}: {id}");
                    if let Some(report) = report {
                        let found = report.generation.0;
                        assert!(found == generation.0 || found == generation.0 + 1);
                        (*known, *generation) = (Known::There, report.generation);
                    }
                }
            }
            if report.is_some() || space {
                expected.insert(space_of(*id));
            }
        }
        for (plan, known) in &mut client.plans {
            let there = booked.contains(&AllotmentId(plan.0));
            match known {
                Known::There => assert!(there, "round {round}: plan {plan}"),
                Known::Gone => assert!(!there, "round {round}: plan {plan}"),
                Known::Unsure if there => *known = Known::There,
                Known::Unsure => {}
            }
            if there {
                expected.insert(AllotmentId(plan.0));
            }
        }
    }
    assert_eq!(booked, expected, "round {round}: nothing that nobody asked for");
    let files = std::fs::read_dir(directory.join("segments").join(mediator.id.to_string()));
    let files = files.into_iter().flatten().map(|file| file.unwrap().path());
    let files = files.filter(|path| path.extension().is_none()).count();
    assert_eq!(files, reports.len(), "round {round}");
}
