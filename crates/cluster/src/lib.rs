//! What the daemons and clients of a cluster have in common: the documents that they exchange, who
//! may send them, TLS, HTTP both ways, and an SQLite store that commits many changes at once.
//!
//! - [`agent`] and [`mediator`]: the documents.
//! - [`audit`]: the audit log, as it is read.
//! - [`documents`]: their versions, and what is said of a request that is none.
//! - [`access`]: access files and roles. Bearer tokens are drawn here, and stored as digests only.
//! - [`tls`]: an authority of one's own, and whom a client trusts.
//! - [`serve`] and [`http`]: a server, which refuses to be open to others without TLS, and a client.
//! - [`store`]: changes of many requests in one transaction.
//!
//! Decides nothing about volumes, allotments or plans: `netraid_control` does.

pub mod access;
pub mod agent;
pub mod audit;
pub mod documents;
mod gathered;
pub mod http;
mod label;
pub mod mediator;
pub mod paging;
pub mod problem;
pub mod serve;
pub mod store;
pub mod tls;
pub mod vet;

pub use problem::{Code, Problem};

/// The moment by this host's clock.
#[must_use]
pub fn now() -> netraid_control::units::Moment {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Clamped: a clock before 1970 is at its begin, and the end is half a billion years away.
    let ms = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    netraid_control::units::Moment(ms)
}
