//! Plans: what is proposed for a site's parts and somebody's wishes.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test, which shows its figures")]

use netraid_model::{
    Preset,
    config::{read_table, read_value, set},
    plan::{EXAMPLE_FACTS, PlanError, Proposal, Site, Wishes, layouts, propose, rank},
};

fn site_with(settings: &[(&str, &str)]) -> Result<Site, PlanError> {
    let text = format!("{}{EXAMPLE_FACTS}", Preset::find("today").unwrap().text);
    let mut table = read_table(&text).unwrap();
    let small = [("disks", "5"), ("plan.chunk_bytes", "[65536]"), ("workload.requests", "200")];
    for (path, value) in small.iter().chain(settings) {
        set(&mut table, path, read_value(value)).unwrap();
    }
    Site::from_table(table)
}

fn wishes() -> Wishes {
    Wishes { request_bytes: vec![1 << 20], ..Wishes::default() }
}

fn plan(site: &Site, wishes: &Wishes) -> Vec<Proposal> {
    let layouts = layouts(site, wishes).unwrap();
    let mut proposals: Vec<Proposal> =
        layouts.into_iter().map(|layout| propose(site, wishes, layout).unwrap()).collect();
    rank(&mut proposals);
    for one in &proposals {
        println!("{one:?}");
    }
    proposals
}

#[test]
fn every_layout_has_rates_and_times_that_can_be() {
    let site = site_with(&[("plan.price_per_agent", "1000"), ("plan.price_per_disk", "500")]);
    let proposals = plan(&site.unwrap(), &wishes());
    // Level 0 of 1 to 5, level 5 of 2 to 5, level 6 of 3 to 5.
    assert_eq!(proposals.len(), 5 + 4 + 3 + 1);
    for one in &proposals {
        let expected = &one.rates[0];
        let has_redundancy = one.survives > 0;
        assert_eq!(expected.degraded.is_some(), has_redundancy);
        assert_eq!(one.rebuild_hours.is_some(), has_redundancy);
        assert!(one.rebuild_hours.is_none_or(|hours| hours > 0.0));
        if let (Some(degraded), Some(rebuilding)) = (&expected.degraded, &expected.rebuilding) {
            assert!(degraded.read.mb_s <= 1.05 * expected.healthy.read.mb_s, "{one:?}");
            assert!(rebuilding.read.mb_s <= 1.05 * expected.healthy.read.mb_s, "{one:?}");
        }
        assert!(one.mttdl_years > 1.0 && one.unmet.is_empty());
        let price = one.layout.members as f64 * 1500.0;
        assert_eq!(one.price, Some(price));
        let per_tb = price / (one.capacity_bytes as f64 / 1e12);
        assert!((one.price_per_usable_tb.unwrap() / per_tb - 1.0).abs() < 1e-12);
    }
    let find = |level, members| {
        let is = |one: &&Proposal| one.layout.level == level && one.layout.members == members;
        proposals.iter().find(is).unwrap()
    };
    assert!(find(6, 5).mttdl_years > find(5, 5).mttdl_years);
    assert!(find(5, 5).mttdl_years > find(0, 5).mttdl_years);
    assert_eq!(find(5, 5).capacity_bytes, 16_000_000_000_000);
    assert_eq!(find(6, 3).survives, 2);
}

#[test]
fn wishes_choose_and_who_meets_them_at_least_cost_is_first() {
    let site = site_with(&[]).unwrap();
    let capacity = 8_000_000_000_000;
    let wish = Wishes { survive: 1, capacity_bytes: Some(capacity), ..wishes() };
    let proposals = plan(&site, &wish);
    assert!(proposals.iter().all(|one| one.survives >= 1 && one.capacity_bytes >= capacity));
    assert_eq!((proposals[0].layout.level, proposals[0].layout.members), (5, 3));
    let lasting = Wishes { mttdl_years: Some(1e6), ..wish };
    let first = &plan(&site, &lasting)[0];
    assert_eq!((first.layout.level, first.unmet.len()), (6, 0), "{first:?}");
}

#[test]
fn wishes_beyond_the_site_say_what_is_missing_and_what_limits() {
    let site = site_with(&[("network.rate_mbit_s", "1000")]).unwrap();
    let wish = Wishes {
        survive: 1,
        read_mb_s: Some(5000.0),
        capacity_bytes: Some(1 << 50),
        rebuild_within_hours: Some(0.01),
        ..wishes()
    };
    let proposals = plan(&site, &wish);
    assert!(proposals.iter().all(|one| one.layout.members == 5));
    let first = &proposals[0];
    let names: Vec<&str> = first.unmet.iter().map(|unmet| unmet.wish).collect();
    assert_eq!(names, ["read_mb_s", "capacity_bytes", "rebuild_hours"]);
    assert_eq!(first.rates[0].healthy.read.limit, "network");
    assert!(first.unmet[0].expected.unwrap() < 125.0);
}

#[test]
fn sites_and_wishes_without_sense_are_refused() {
    let site = site_with(&[]).unwrap();
    let refused = |wishes: &Wishes| layouts(&site, wishes).unwrap_err().to_string();
    assert!(refused(&Wishes { survive: 3, ..wishes() }).contains("survives the loss of 3"));
    assert!(refused(&Wishes::default()).contains("lengths of requests"));
    assert!(refused(&Wishes { read_mb_s: Some(f64::NAN), ..wishes() }).contains("NaN"));
    let site_refused =
        |path: &str, value: &str| site_with(&[(path, value)]).unwrap_err().to_string();
    assert!(
        site_refused("plan.disk_capacity_bytes", "0").contains("plan.disk_capacity_bytes is 0")
    );
    assert!(site_refused("plan.chunk_bytes", "[]").contains("in number"));
    assert!(site_refused("plan.chunk_bytes", "[5000]").contains("power of two"));
    assert!(site_refused("plan.price_per_disk", "-1").contains("price_per_disk is -1"));
    assert!(site_refused("plan.prize", "1").contains("prize"));
    let without = Site::from_table(Preset::find("today").unwrap().table().unwrap());
    assert_eq!(without.unwrap_err(), PlanError::NoFacts);
    let broken = site_with(&[("plan.member_mttf_hours", "0")]).unwrap();
    let layout = layouts(&broken, &wishes()).unwrap()[0];
    let error = propose(&broken, &wishes(), layout).unwrap_err().to_string();
    assert!(error.contains("member_mttf_hours is 0"), "{error}");
}
