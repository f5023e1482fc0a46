//! Who uses the exports of a volume, and whether these may end.
//!
//! Invariant: once exports were let end without force, nobody uses them, and nobody begins to.

use std::{fmt, sync::Arc};

use serde::Serialize;
use tokio::sync::watch;

/// How somebody uses an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A client that has negotiated.
    NbdClient,
    /// The file of a mount, opened; a loop device and a mapping keep it open.
    OpenFile,
}

/// How many use the exports of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct InUse {
    /// NBD clients that have negotiated, idle ones too.
    pub nbd_clients: usize,
    /// Times that the file of the FUSE mount is open.
    pub open_files: usize,
}

/// Who uses the exports of a volume; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Users(Arc<watch::Sender<Usage>>);

/// One use, until it is dropped.
#[derive(Debug)]
pub(crate) struct Using {
    users: Users,
    by: Use,
}

/// The count, and whether it may grow.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    in_use: InUse,
    is_ending: bool,
}

impl InUse {
    /// Whether nobody does.
    #[must_use]
    pub const fn is_nobody(&self) -> bool {
        self.nbd_clients == 0 && self.open_files == 0
    }

    const fn count(&mut self, by: Use) -> &mut usize {
        match by {
            Use::NbdClient => &mut self.nbd_clients,
            Use::OpenFile => &mut self.open_files,
        }
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let Self { nbd_clients, open_files } = *self;
        let clients =
            (nbd_clients > 0).then(|| format!("{nbd_clients} NBD client{}", plural(nbd_clients)));
        let files = (open_files > 0)
            .then(|| format!("{open_files} open file{} of the FUSE mount", plural(open_files)));
        match (clients, files) {
            (Some(clients), Some(files)) => write!(f, "{clients} and {files}"),
            (Some(one), None) | (None, Some(one)) => f.write_str(&one),
            (None, None) => f.write_str("nobody"),
        }
    }
}

impl Users {
    /// Lets the exports end when nobody uses them, or by `force`: nobody begins to use them then.
    /// Answers who is cut off by that.
    ///
    /// # Errors
    /// With those who use them, when it is not by `force`; nothing has changed then.
    pub fn let_end(&self, force: bool) -> Result<InUse, InUse> {
        let mut end = Ok(InUse::default());
        self.0.send_if_modified(|usage| {
            end = usage.let_end(force);
            end.is_ok()
        });
        end
    }

    /// Waits until nobody uses the exports; cancel safe.
    pub async fn nobody(&self) {
        // The sender lives as long as this.
        let _ = self.0.subscribe().wait_for(|usage| usage.in_use.is_nobody()).await;
    }

    /// Counts one more use; false when the exports are ending.
    pub(crate) fn begin(&self, by: Use) -> bool {
        self.0.send_if_modified(|usage| usage.begin(by))
    }

    /// Ends a use that was counted.
    pub(crate) fn end(&self, by: Use) {
        self.0.send_modify(|usage| usage.end(by));
    }

    /// Counts one more use until the answer is dropped; none when the exports are ending.
    pub(crate) fn using(&self, by: Use) -> Option<Using> {
        self.begin(by).then(|| Using { users: self.clone(), by })
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.users.end(self.by);
    }
}

impl Usage {
    fn begin(&mut self, by: Use) -> bool {
        if !self.is_ending {
            *self.in_use.count(by) += 1;
        }
        !self.is_ending
    }

    fn end(&mut self, by: Use) {
        let count = self.in_use.count(by);
        *count = count.saturating_sub(1);
    }

    fn let_end(&mut self, force: bool) -> Result<InUse, InUse> {
        if !force && !self.in_use.is_nobody() {
            return Err(self.in_use);
        }
        self.is_ending = true;
        Ok(self.in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_that_somebody_uses_do_not_end_without_force() {
        let users = Users::default();
        let client = users.using(Use::NbdClient).unwrap();
        assert!(users.begin(Use::OpenFile) && users.begin(Use::OpenFile));
        let used = users.let_end(false).unwrap_err();
        assert_eq!(used, InUse { nbd_clients: 1, open_files: 2 });
        assert_eq!(used.to_string(), "1 NBD client and 2 open files of the FUSE mount");
        assert!(users.begin(Use::NbdClient), "who was refused has changed nothing");
        users.end(Use::NbdClient);
        users.end(Use::OpenFile);
        users.end(Use::OpenFile);
        assert_eq!(users.let_end(false).unwrap_err().to_string(), "1 NBD client");
        drop(client);
        assert_eq!(users.let_end(false), Ok(InUse::default()));
    }

    #[test]
    fn nobody_begins_to_use_exports_that_end() {
        for force in [false, true] {
            let users = Users::default();
            assert_eq!(users.let_end(force), Ok(InUse::default()));
            assert!(!users.begin(Use::OpenFile) && users.using(Use::NbdClient).is_none());
            assert_eq!(users.let_end(false), Ok(InUse::default()), "those refused do not count");
        }
    }

    #[test]
    fn force_says_who_is_cut_off() {
        let users = Users::default();
        assert!(users.begin(Use::OpenFile));
        let cut = users.let_end(true).unwrap();
        assert_eq!(cut, InUse { nbd_clients: 0, open_files: 1 });
        assert!(!users.begin(Use::OpenFile));
        users.end(Use::OpenFile);
        assert_eq!(users.let_end(false), Ok(InUse::default()));
    }

    #[tokio::test]
    async fn the_last_end_of_use_is_noticed() {
        let users = Users::default();
        users.nobody().await;
        let using = users.using(Use::NbdClient).unwrap();
        let waits = tokio::spawn({
            let users = users.clone();
            async move { users.nobody().await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(using);
        waits.await.unwrap();
    }
}
