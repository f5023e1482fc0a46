//! Initiators that are no engine: they ask hosts how they are, and end what others have under way.
//!
//! Invariant: an outsider neither writes nor registers; what it ends is sent again by whoever has sent it.

use core::time::Duration;

use netraid_remote::Order;
use netraid_scsi::cdb::{build, reserve::read_keys};

use super::{Case, World};
use crate::way::{
    engine::User,
    interface::{LineConfig, LineId, News},
    quirks,
};

/// Room for the answer of READ KEYS.
const KEYS_LEN: u16 = 256;
/// The longest that an outsider's request may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What an outsider does once it has a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outsider {
    /// The task management function that it sends.
    function: Option<u8>,
    /// Answers that are to come.
    left: usize,
}

impl World {
    /// An outsider logs in to a host.
    pub(super) fn begin_outsider(&mut self, host: usize) {
        self.count(Case::Outsider);
        let mut config = LineConfig::new("iqn.2025-01.example:outsider");
        (config.request_timeout, config.login_timeout) = (TIMEOUT, TIMEOUT);
        let functions = [None, Some(quirks::CLEAR_TASK_SET), Some(quirks::LOGICAL_UNIT_RESET)];
        let function = functions[self.fault_dice.index(functions.len())];
        let line = self.net.open(self.outside, self.hosts[host].id, config);
        self.outsiders.insert(line, Outsider { function, left: 0 });
    }

    /// Something of an outsider's line.
    pub(super) fn hear_outsider(&mut self, line: LineId, news: &News<User>) {
        let Some(Outsider { function, left }) = self.outsiders.get(&line).copied() else { return };
        match news {
            News::Opened(Ok(_)) => {
                let function = function.map(quirks::task_function);
                let asked = [build::test_unit_ready(), read_keys(KEYS_LEN)];
                let asked: Vec<_> = asked.into_iter().chain(function).collect();
                self.outsiders.insert(line, Outsider { function: None, left: asked.len() });
                for (cdb, read_len) in asked.into_iter().zip([0, u32::from(KEYS_LEN), 0]) {
                    let order = Order::Once { cdb, parameters: Vec::new(), read_len };
                    self.net.order(line, order);
                }
            }
            News::Answered { .. } => {
                let left = left.saturating_sub(1);
                self.outsiders.insert(line, Outsider { function, left });
                if left == 0 {
                    self.net.close(line);
                }
            }
            News::Closed => {
                self.outsiders.remove(&line);
            }
            News::Opened(Err(_)) | News::Ended { .. } | News::Told(_) => {}
        }
    }
}
