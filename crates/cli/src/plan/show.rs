//! Proposals for people.

use netraid_model::plan::{Expected, Proposal, Rate, Rates, Unmet};

use super::describe;
use crate::size;

/// The proposals, the best first, and what is missing when it does not meet all wishes.
pub(crate) fn text(proposals: &[Proposal]) -> String {
    let mut out = String::new();
    for (index, proposal) in proposals.iter().enumerate() {
        out += &format!("{}. {}\n", index + 1, describe(&proposal.layout));
        out += &one(proposal);
    }
    match proposals.first() {
        Some(best) if !best.unmet.is_empty() => {
            out += "No layout of these parts meets all wishes. What the first one lacks:\n";
            best.unmet.iter().for_each(|unmet| out += &format!("   {}\n", lack(unmet)));
        }
        Some(_) | None => (),
    }
    out
}

fn one(proposal: &Proposal) -> String {
    let mut out = format!(
        "   volume {}, survives {}, data lasts {:.3e} years on average",
        size::show(proposal.capacity_bytes),
        proposal.survives,
        proposal.mttdl_years
    );
    if let Some(hours) = proposal.rebuild_hours {
        out += &format!(", a rebuild takes {hours:.1} h");
    }
    if let (Some(price), Some(each)) = (proposal.price, proposal.price_per_usable_tb) {
        out += &format!(", costs {price:.0}, {each:.0} a usable TB");
    }
    out.push('\n');
    proposal.rates.iter().for_each(|expected| out += &rates(expected));
    if !proposal.unmet.is_empty() {
        let names: Vec<&str> = proposal.unmet.iter().map(|unmet| unmet.wish).collect();
        out += &format!("   not met: {}\n", names.join(", "));
    }
    out
}

fn rates(expected: &Expected) -> String {
    let request = size::show(expected.request_bytes);
    let rate = |Rate { mb_s, limit }: &Rate| format!("{mb_s:.1} MB/s ({limit})");
    let line = |name: &str, rates: &Rates| {
        let (read, write) = (rate(&rates.read), rate(&rates.write));
        format!("   {request} {name}: reads {read}, writes {write}\n")
    };
    let mut out = line("healthy", &expected.healthy);
    let others = [("degraded", &expected.degraded), ("rebuilding", &expected.rebuilding)];
    for (name, rates) in others {
        out += &rates.as_ref().map_or(String::new(), |rates| line(name, rates));
    }
    out
}

fn lack(Unmet { wish, wished, expected }: &Unmet) -> String {
    let expected = expected.map_or("none".to_owned(), |expected| format!("{expected:.4e}"));
    format!("{wish}: wished {wished:.4e}, expected {expected}")
}
