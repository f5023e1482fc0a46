//! PDUs in a stream of bytes, for both sides: framing, digests, and where bytes land.
//!
//! [`Incoming`] takes what a connection gave, [`Outgoing`] has what it is to take. Data segments of commands are received
//! straight into the command's buffer; only what came in with a header is copied. What is sent leaves from the buffers that
//! hold it.
//!
//! Invariant: a machine sees a header or the end of a data segment only after its digest was found right, however the
//! stream was cut.
//!
//! Not here: the connection itself.

mod incoming;
mod outgoing;

pub use self::{incoming::Incoming, outgoing::Outgoing};
use crate::{
    machine::{Digests, Fatal, Placement, TaskId},
    pdu::Bhs,
};

/// Why a stream cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The peer broke the rules, or is silent.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// A digest is wrong.
    #[error("{0} digest is wrong")]
    Digest(&'static str),
}

/// One side's machine and buffers, as the receiver needs them.
pub trait Side {
    /// Digests of the next PDU.
    fn receive_digests(&self) -> Digests;
    /// Whether the next PDU may be taken.
    fn wants_input(&self) -> bool;
    /// Takes a header; where its data belongs.
    ///
    /// # Errors
    /// When the connection must be dropped.
    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, Broken>;
    /// The whole buffer of a task.
    fn buffer(&mut self, task: TaskId) -> &mut [u8];
    /// The data segment is in place; `control` has it when it was for the machine.
    ///
    /// # Errors
    /// When the connection must be dropped.
    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), Broken>;
    /// The data segment of `bhs` came with a wrong digest.
    ///
    /// # Errors
    /// When the connection must be dropped.
    fn handle_bad_digest(&mut self, bhs: &Bhs) -> Result<(), Broken>;
}

#[cfg(test)]
mod tests;
