//! The table of cases in `docs/placement.md`, made from what [`place`] says.

use std::{env, format, fs, string::String, vec::Vec};

use super::{
    reason::{ShowBytes, ShowRate},
    tests::{agents, book, mb},
    *,
};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const BEGIN: &str = "<!-- cases: made by a test -->\n";
const END: &str = "<!-- end of cases -->\n";

struct Case {
    asked: &'static str,
    wanted: Wanted,
    agents: Vec<AgentState>,
}

/// 40 hosts, each with an agent: 16 TiB, devices of 400 MB/s, network of 110 MB/s.
fn forty() -> Vec<AgentState> {
    agents(40, Resources { space_bytes: 16 * TIB, device: mb(400), network: mb(110) })
}

/// Links of 200 Mbit/s, of which 22.5 MB/s were measured.
fn few(hosts: u8) -> Vec<AgentState> {
    agents(hosts, Resources { space_bytes: TIB, device: mb(100), network: Rate(22_500_000) })
}

/// After so many streams of 16.2 MB/s.
fn five_after(streams: u32) -> Vec<AgentState> {
    let mut agents = few(5);
    for _ in 0..streams {
        let placement = place(&Wanted::new(10 * GIB, Rate(16_200_000)), &agents).unwrap();
        book(&mut agents, &placement);
    }
    agents
}

fn two_racks() -> Vec<AgentState> {
    let mut agents = few(6);
    for (at, agent) in agents.iter_mut().enumerate() {
        agent.rack = ["north", "south"][at % 2].into();
    }
    agents
}

fn cases() -> Vec<Case> {
    let usual = |rate| Wanted::new(TIB, mb(rate));
    let of = |asked, wanted, agents| Case { asked, wanted, agents };
    let forty = |asked, wanted| of(asked, wanted, forty());
    let stream = Wanted::new(10 * GIB, Rate(16_200_000));
    let mut racks = Wanted { spread: Domain::Rack, survives: 2, ..Wanted::new(10 * GIB, mb(10)) };
    racks.may_share = true;
    Vec::from([
        forty("1 TiB, no rate", usual(0)),
        forty("1 TiB, 1 MB/s", usual(1)),
        forty("1 TiB, 50 MB/s", usual(50)),
        forty("1 TiB, 120 MB/s", usual(120)),
        forty("1 TiB, 500 MB/s", usual(500)),
        forty(
            "1 TiB, 500 MB/s, however much of an agent that takes",
            Wanted { share_percent: 100, ..usual(500) },
        ),
        forty("1 TiB, 900 MB/s", usual(900)),
        forty(
            "1 TiB, 900 MB/s, in requests of 16 MiB",
            Wanted { request_bytes: 16 << 20, ..usual(900) },
        ),
        forty("1 TiB, 5,000 MB/s", usual(5_000)),
        forty("1 TiB, 120 MB/s, nothing survives", Wanted { survives: 0, ..usual(120) }),
        forty("1 TiB, 120 MB/s, survives 2", Wanted { survives: 2, ..usual(120) }),
        forty(
            "1 TiB, 120 MB/s, requests of 1 MiB as they come",
            Wanted { gathered: false, ..usual(120) },
        ),
        forty(
            "100 GiB, 5 MB/s, requests of 4 KiB as they come",
            Wanted { request_bytes: 4096, gathered: false, ..Wanted::new(100 * GIB, mb(5)) },
        ),
        forty(
            "the same, but not while a member is lost",
            Wanted {
                request_bytes: 4096,
                gathered: false,
                degraded: false,
                ..Wanted::new(100 * GIB, mb(5))
            },
        ),
        forty("16 MiB, 50 MB/s", Wanted::new(16 << 20, mb(50))),
        forty("200 TiB, 50 MB/s", Wanted::new(200 * TIB, mb(50))),
        of("10 GiB, 16.2 MB/s, of five agents with 22.5 MB/s", stream.clone(), five_after(0)),
        of("the same, when four have it", stream.clone(), five_after(4)),
        of("the same, when five have it", stream, five_after(5)),
        of("10 GiB, 10 MB/s, of two agents with 22.5 MB/s", Wanted::new(10 * GIB, mb(10)), few(2)),
        of("10 GiB, 10 MB/s, survives 2, over racks, of which there are two", racks, two_racks()),
    ])
}

fn describe() -> String {
    let mut table = String::from(
        "| | asked for | level | members | unit | of each: space | device | network |\n\
         | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let mut reasons = String::new();
    for (number, Case { asked, wanted, agents }) in (1..).zip(cases()) {
        let (row, why) = match place(&wanted, &agents) {
            Ok(placement) => (row(&placement), lines(&placement)),
            Err(refusal) => (String::from("refused | | | | |"), refused(&refusal)),
        };
        table.push_str(&format!("| {number} | {asked} | {row} |\n"));
        reasons.push_str(&format!("{number}. {asked}:\n{why}"));
    }
    format!("{table}\n### Reasons\n\n{reasons}")
}

fn row(placement: &Placement) -> String {
    let Placement { level, chunk_len, members, each, .. } = placement;
    let rate = |rate| match rate {
        Rate::ZERO => String::from("none"),
        rate => format!("{}", ShowRate(rate)),
    };
    let (unit, space) = (ShowBytes((*chunk_len).into()), ShowBytes(each.space_bytes));
    let (level, members) = (level.number(), members.len());
    let (device, network) = (rate(each.device), rate(each.network));
    format!("{level} | {members} | {unit} | {space} | {device} | {network}")
}

fn lines(placement: &Placement) -> String {
    placement.reasons.iter().map(|reason| format!("   - {reason}\n")).collect()
}

fn refused(refusal: &Refusal) -> String {
    let later = if refusal.later { "possible if nothing were booked" } else { "never possible" };
    let offer = match &refusal.offer {
        Some(offer) => {
            let Placement { level, members, chunk_len, .. } = &offer.placement;
            let (rate, unit) = (ShowRate(offer.rate), ShowBytes((*chunk_len).into()));
            let (level, members) = (level.number(), members.len());
            format!("offer: {rate}, level {level} over {members} members, unit of {unit}")
        }
        None => String::from("no offer"),
    };
    format!("   - {refusal}\n   - {later}\n   - {offer}\n")
}

/// With `NETRAID_WRITE_DOCS` set it writes them.
#[test]
fn the_documents_cases_are_what_is_placed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/placement.md");
    let text = fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (cases, after) = rest.split_once(END).unwrap();
    let now = describe();
    if env::var_os("NETRAID_WRITE_DOCS").is_some() {
        fs::write(path, format!("{before}{BEGIN}{now}{END}{after}")).unwrap();
    } else {
        assert!(cases == now, "docs/placement.md is stale: set NETRAID_WRITE_DOCS=1, then:\n{now}");
    }
}
