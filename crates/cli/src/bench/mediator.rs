//! `netraid bench mediator`: how many plans a mediator gives and takes back in a second.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use hdrhistogram::Histogram;
use netraid_cluster::{
    access::Bearer,
    http::{Client, RequestError},
    mediator::{Close, Mode, Open, TransferPlan},
};
use netraid_control::units::Rate;
use serde::{Serialize, de::IgnoredAny};

use crate::{
    cluster::{AccessArgs, parse_duration, parse_rate},
    output::Output,
};

const ANSWER_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Args)]
pub(crate) struct MediatorArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// What is opened to be read, by turns: data or volumes that exist
    #[arg(long, required = true, num_args = 1..)]
    path: Vec<String>,
    /// How many clients ask at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// For how long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rate that is booked on all agents for each; none without it
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    rate: Option<Rate>,
    /// How long a plan holds that is not given back, as the mediator was not there
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    term: Duration,
}

/// What was measured. An open is a plan that is given, and one that is released.
#[derive(Debug, Serialize)]
struct Report {
    clients: u16,
    seconds: f64,
    opens: u64,
    refused: u64,
    /// Plans that ended by themselves: the mediator was not there to take them back.
    not_released: u64,
    opens_per_s: f64,
    /// Milliseconds from the request to the plan.
    open_ms: Latency,
    release_ms: Latency,
    /// The last refusal, or why the last plan was not taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p99: f64,
    max: f64,
}

/// Of one client.
struct Tally {
    open_us: Histogram<u64>,
    release_us: Histogram<u64>,
    refused: u64,
    not_released: u64,
    why: Option<String>,
}

impl Tally {
    fn new() -> Result<Self> {
        let empty = || Histogram::new(3).context("a histogram");
        Ok(Self { open_us: empty()?, release_us: empty()?, refused: 0, not_released: 0, why: None })
    }

    /// Who is refused does not ask again at once.
    async fn wait(&mut self, error: &RequestError) {
        self.why = Some(error.to_string());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn run(args: &MediatorArgs, output: Output) -> Result<()> {
    if !(0.1..=3600.0).contains(&args.seconds) {
        bail!("--seconds {}: give 0.1 to 3600", args.seconds);
    }
    let client = Client::with_access(&args.access.file()?, ANSWER_LIMIT)?;
    let report = crate::runtime()?.block_on(measure(args, client))?;
    output.document(&report, || {
        let Report { opens, refused, not_released, opens_per_s, open_ms, release_ms, .. } = &report;
        let line = |what: &str, latency: &Latency| {
            let Latency { p50, p99, max } = latency;
            format!("{what}  p50 {p50:.2} ms  p99 {p99:.2} ms  max {max:.2} ms\n")
        };
        let head = format!(
            "{opens} opens, {opens_per_s:.0}/s; {refused} refused, {not_released} not released\n"
        );
        let why = report.why.as_ref().map_or(String::new(), |why| format!("the last: {why}\n"));
        head + &line("open   ", open_ms) + &line("release", release_ms) + &why
    })
}

async fn measure(args: &MediatorArgs, client: Client) -> Result<Report> {
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(args.seconds);
    let paths = Arc::new(args.path.clone());
    let rate = args.rate.unwrap_or(Rate::ZERO);
    let term_ms = u64::try_from(args.term.as_millis())?;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..usize::from(args.clients) {
        tasks.spawn(ask(client.clone(), Arc::clone(&paths), number, (rate, term_ms), until));
    }
    let mut all = Tally::new()?;
    while let Some(ended) = tasks.join_next().await {
        let one = ended??;
        all.open_us.add(&one.open_us)?;
        all.release_us.add(&one.release_us)?;
        all.refused += one.refused;
        all.not_released += one.not_released;
        all.why = one.why.or(all.why);
    }
    let seconds = began.elapsed().as_secs_f64();
    let opens = all.open_us.len();
    Ok(Report {
        clients: args.clients,
        seconds,
        opens,
        refused: all.refused,
        not_released: all.not_released,
        opens_per_s: opens as f64 / seconds,
        open_ms: latency(&all.open_us),
        release_ms: latency(&all.release_us),
        why: all.why,
    })
}

fn latency(of: &Histogram<u64>) -> Latency {
    let ms = |us: u64| us as f64 / 1e3;
    let at = |quantile| ms(of.value_at_quantile(quantile));
    Latency { p50: at(0.5), p99: at(0.99), max: ms(of.max()) }
}

/// One client: opens and releases, one after the other.
async fn ask(
    client: Client,
    paths: Arc<Vec<String>>,
    number: usize,
    (rate, term_ms): (Rate, u64),
    until: Instant,
) -> Result<Tally> {
    let mut tally = Tally::new()?;
    let mut turn = number;
    while Instant::now() < until {
        let key = Bearer::draw();
        let open = Open {
            path: paths[turn % paths.len()].clone(),
            mode: Mode::Read,
            initiator: format!("iqn.2026-01.netraid:bench-{number}"),
            rate,
            limit: None,
            request_bytes: None,
            degraded: true,
            for_ms: Some(term_ms),
            take_over: false,
            plan: None,
            close_key: Some(key.clone()),
            upload: false,
            id: None,
            kind: None,
        };
        turn += 1;
        let began = Instant::now();
        match client.post::<_, TransferPlan>("/v1/plans", &open).await {
            Ok(plan) => {
                tally.open_us.record(micros(began))?;
                let began = Instant::now();
                let close = Close { key, clean_close: None };
                let path = format!("/v1/plans/{}/close", plan.plan);
                match client.post::<_, IgnoredAny>(&path, &close).await {
                    Ok(_) => tally.release_us.record(micros(began))?,
                    Err(error) => {
                        tally.not_released += 1;
                        tally.wait(&error).await;
                    }
                }
            }
            Err(error) => {
                tally.refused += 1;
                tally.wait(&error).await;
            }
        }
    }
    Ok(tally)
}

fn micros(began: Instant) -> u64 {
    // Clamped: that is after 584,000 years.
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
}
