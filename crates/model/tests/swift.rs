//! Swift 1991.
use netraid_model::{Config, Model, Preset, Results, config::{read_value,set}, summarise};
use netraid_sim::Seed;

fn point(name: &str, settings: &[&str]) -> Results {
    let mut table = Preset::find(name).unwrap().table().unwrap();
    for setting in settings {
        let (path, value) = setting.split_once('=').unwrap();
        set(&mut table, path, read_value(value)).unwrap();
    }
    let model = Model::new(Config::from_table(table).unwrap()).unwrap();
    let runs: Vec<_> = (0..5).map(|seed| model.run(Seed(seed)).unwrap()).collect();
    summarise(&runs)
}

#[test]
fn swift() {
    let show = |name: &str, settings: &[&str]| {
        let r = point(name, settings);
        let rest: Vec<String> = r.iter().filter(|(k,_)| !["rate_mb_s","client_cpu","disk","network","latency_ms","latency_p99_ms","agent_cpu","requests_per_second"].contains(&k.as_str())).map(|(k,v)| format!("{k} {:.3}", v.mean)).collect();
        println!("{name} {settings:?} {:.2} cpu {:.3} disk {:.3} net {:.3} lat {:.1} {}", r["rate_mb_s"].mean, r["client_cpu"].mean, r["disk"].mean, r["network"].mean, r["latency_ms"].mean, rest.join(" "));
        r
    };
    for op in ["operation=read","operation=write"] {
        show("swift-1991", &[op]);
        for o in [1,2,3,4,6,8] { show("raid-ii", &[op, &format!("workload.outstanding={o}")]); }
        for d in [3,6] { show("raid-ii", &[op, &format!("disks={d}"), "level=0"]); }
        show("raid-ii", &[op, "disks=12", "level=0", "stations.bus.disks=12", "stations.crossbar_port.disks=12"]);
        show("raid-i", &[op]);
        show("visa-1998", &[op]);
        show("visa-1998", &[op, "client.costs.copy.instructions_per_byte=0"]);
        show("visa-1998", &[op, "client.costs.copy.instructions_per_byte=0","client.costs.copy_read.instructions_per_byte=0","client.costs.network.instructions_per_byte=0"]);
        show("visa-1998", &[op, "client.costs.tcp.instructions_per_byte=27.9"]);
    }
    for o in [4,8,16,32] { for mb in [10,1000] {
    for b in [4096,16384,65536] { for (l,d) in [(0,1),(0,2),(0,3),(0,4),(5,3),(5,4)] {
        show("iraid-2003", &["operation=mix", &format!("level={l}"), &format!("disks={d}"), &format!("workload.outstanding={o}"), &format!("workload.request_bytes={b}"), &format!("network.rate_mbit_s={mb}")]);
    }}}}
}
