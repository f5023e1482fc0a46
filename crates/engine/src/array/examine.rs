//! What labels say, without an engine: of each address for itself, or weighed against each other.
//!
//! Nothing is written, and nothing is locked.

use futures_util::future::join_all;
use netraid_block::{Pool, narrow};
use netraid_raid::{
    assemble::Assembly,
    format::Format,
    label::{FIRST_GENERATION, Label},
    member::MemberState,
    regions::Region,
};
use serde::Serialize;

use super::{
    error::ArrayError,
    lock::hex,
    member::{Connected, MemberConfig},
    open::weigh,
};

/// What one address turned out to be.
#[derive(Debug, Clone, Serialize)]
pub struct ExamineReport {
    /// The address.
    pub address: String,
    /// Why nothing is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What its label says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelReport>,
}

/// A label in words.
#[derive(Debug, Clone, Serialize)]
pub struct LabelReport {
    /// The array's name.
    pub name: String,
    /// The array's identity.
    pub array_uuid: String,
    /// Its level.
    pub level: u8,
    /// The format of its tables; 1 without a log, too.
    pub format: u8,
    /// Which member this is.
    pub member: u8,
    /// States of all members, as this label knows them.
    pub members: Vec<&'static str>,
    /// Bytes of the volume.
    pub capacity_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Generation.
    pub generation: u64,
    /// Epoch.
    pub epoch: u64,
    /// Who had it open last.
    pub holder: String,
    /// Whether it was closed in good order.
    pub clean: bool,
    /// Bytes of the log on each member; 0 without one.
    pub log_bytes: u64,
    /// What is where on the member.
    pub regions: Vec<RegionReport>,
}

impl LabelReport {
    /// Whether the array was ever opened for writing.
    #[must_use]
    pub const fn was_opened(&self) -> bool {
        self.generation > FIRST_GENERATION
    }
}

/// A region of a member.
#[derive(Debug, Clone, Serialize)]
pub struct RegionReport {
    /// Its name, as in the format's description.
    pub name: &'static str,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Reads the labels at addresses, each for itself.
pub async fn examine(members: Vec<MemberConfig>, pool: Pool) -> Vec<ExamineReport> {
    join_all(members.into_iter().map(|config| examine_one(config, pool.clone()))).await
}

async fn examine_one(config: MemberConfig, pool: Pool) -> ExamineReport {
    let address = config.address();
    let label = async {
        let member = Connected::visit(config, pool).await?;
        let label = member.label().await;
        member.remote.close().await;
        label?.map_err(|reason| ArrayError::Label { address: address.clone(), reason })
    };
    let (error, label) = match label.await {
        Ok(label) => (None, Some(describe(&label))),
        Err(error) => (Some(error.to_string()), None),
    };
    ExamineReport { address, error, label }
}

/// What labels add up to while no engine is asked.
#[derive(Debug, Clone, Serialize)]
pub struct SurveyReport {
    /// The array's name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Its level.
    pub level: u8,
    /// `optimal` or `degraded`: what it would be when it was attached with these members.
    pub state: &'static str,
    /// Bytes of the volume.
    pub capacity_bytes: u64,
    /// Whether it was closed in good order; open, or its engine died, otherwise.
    pub clean: bool,
    /// Bytes of the log on each member; 0 without one.
    pub log_bytes: u64,
    /// Who had it open last.
    pub holder: String,
    /// Members in order.
    pub members: Vec<SurveyMember>,
    /// Members that could not be used, with why.
    pub notes: Vec<String>,
}

/// A member in a survey.
#[derive(Debug, Clone, Serialize)]
pub struct SurveyMember {
    /// Index.
    pub index: u8,
    /// Address; empty when it is not among the given ones.
    pub url: String,
    /// State.
    pub state: &'static str,
}

/// Weighs the labels at `members` against each other, and changes nothing.
///
/// # Errors
/// When they do not add up to an array that could be attached for reading.
pub async fn survey(members: Vec<MemberConfig>, pool: Pool) -> Result<SurveyReport, ArrayError> {
    let (assembly, mut addresses, notes) = weigh(members, &pool).await?;
    let Assembly { label, unclean, .. } = assembly;
    let member = |(at, entry): (usize, &netraid_raid::label::MemberEntry)| SurveyMember {
        index: narrow(at),
        url: addresses[at].take().unwrap_or_default(),
        state: entry.state.name(),
    };
    let whole = label.members.iter().all(|entry| entry.state == MemberState::InSync);
    Ok(SurveyReport {
        name: label.name.clone(),
        uuid: hex(&label.array_uuid),
        level: label.geometry.level().number(),
        state: if whole { "optimal" } else { "degraded" },
        capacity_bytes: label.geometry.capacity(),
        clean: !unclean,
        log_bytes: log_bytes(&label),
        holder: label.holder.name.clone(),
        members: label.members.iter().enumerate().map(member).collect(),
        notes,
    })
}

fn log_bytes(label: &Label) -> u64 {
    label.log.as_ref().map_or(0, |_| label.regions.log.len)
}

fn describe(label: &Label) -> LabelReport {
    LabelReport {
        name: label.name.clone(),
        array_uuid: hex(&label.array_uuid),
        level: label.geometry.level().number(),
        format: format_number(label),
        member: label.index.0,
        members: label.members.iter().map(|entry| entry.state.name()).collect(),
        capacity_bytes: label.geometry.capacity(),
        chunk_bytes: label.geometry.chunk_len(),
        generation: label.generation,
        epoch: label.epoch,
        holder: label.holder.name.clone(),
        clean: label.closure == netraid_raid::label::Closure::Clean,
        log_bytes: log_bytes(label),
        regions: regions(label),
    }
}

/// The number of an array's format.
pub(super) fn format_number(label: &Label) -> u8 {
    match label.log.as_ref().map(|log| log.format) {
        None | Some(Format::One) => 1,
        Some(Format::Two) => 2,
    }
}

fn regions(label: &Label) -> Vec<RegionReport> {
    let names = ["labels", "written", "stale", "map", "sums", "log", "data"];
    let regions = names.into_iter().zip(label.regions.in_order());
    let regions = regions.filter(|(_, region)| region.len > 0);
    let report = |(name, Region { offset, len })| RegionReport { name, offset, len };
    regions.map(report).collect()
}
