//! `netraid stop` at the side that ends: who asked is answered with how the end was.

use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;

use crate::describe;

/// How long those who are just leaving are waited for: a file that was closed, or a client that has gone,
/// is heard of a moment later.
pub(crate) const LEAVING: Duration = Duration::from_secs(1);

/// How something that runs has ended, once it has; clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Ending(watch::Sender<Option<Result<(), String>>>);

impl Ending {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// It has ended so.
    pub(crate) fn tell(&self, end: &Result<()>) {
        let end = end.as_ref().map_or_else(|error| Err(describe(error)), |()| Ok(()));
        self.0.send_replace(Some(end));
    }

    /// Waits for its end, and answers how that was; cancel safe.
    pub(crate) async fn wait(&self) -> Result<(), String> {
        let mut told = self.0.subscribe();
        // The sender lives as long as this.
        let end = told.wait_for(Option::is_some).await;
        end.map_or(Ok(()), |end| end.clone().unwrap_or(Ok(())))
    }
}
