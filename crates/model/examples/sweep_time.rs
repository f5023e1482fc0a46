//! How long the sweep of 32 disk counts, 5 transfer units and 30 seeds takes on one thread:
//! `cargo run --release -p netraid-model --example sweep_time`.

use std::time::Instant;

use netraid_model::{Model, Preset, sweep::points};
use netraid_sim::Seed;

#[allow(clippy::print_stdout, reason = "it is what the example is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(preset) = Preset::find("swift-1991") else { return Ok(()) };
    let sweeps = ["disks=1..32", "transfer_unit_bytes=4096,8192,16384,32768,65536"];
    for operation in ["read", "write", "mix"] {
        let mut table = preset.table()?;
        table.insert("operation".into(), operation.into());
        let sweeps = sweeps.map(str::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
        let points = points(&table, &sweeps)?;
        let begin = Instant::now();
        for point in &points {
            let model = Model::new(point.config.clone())?;
            for seed in 0..30 {
                model.run(Seed(seed))?;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!("{operation}: {} points, 30 seeds each: {seconds:.1} s", points.len());
    }
    Ok(())
}
