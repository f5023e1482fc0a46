//! The whole way in its simulated world: some runs, that a seed decides everything, and that what may happen does.
//! Campaigns: `cargo xtask simulate way`.

use netraid_sim::{
    Seed,
    array::trace::Keep,
    campaign::Extent,
    way::{campaign, plan::Plan, world::World},
};

const KEPT: &str = include_str!("../../seeds/way.txt");

#[test]
fn seeds_that_once_failed() {
    for line in KEPT.lines().filter(|line| !line.starts_with('#')) {
        let Some((seed, _)) = line.split_once(' ') else {
            panic!("a kept seed has a number and a name: {line}");
        };
        let plan = Plan::new(Seed(seed.parse().unwrap()));
        assert_eq!(World::new(plan, Keep::Hash).run().violation, None, "{line}");
    }
}

#[test]
fn a_seed_and_a_program_decide_a_run() {
    for seed in [1, 2, 3] {
        let [one, other] = [(); 2].map(|()| World::new(Plan::new(Seed(seed)), Keep::Hash).run());
        assert_eq!((one.hash, one.sights.events), (other.hash, other.sights.events));
        assert_eq!(one.violation, None, "seed {seed}");
    }
}

#[test]
fn nothing_is_wrong_in_the_same_runs_each_time_and_everything_happens_in_them() {
    let report = campaign::run(Seed(8_012_000), Extent::Runs(200), 2, 3);
    assert!(report.failures.is_empty(), "{report}");
    assert_eq!(report.never(), [""; 0], "{report}");
}
