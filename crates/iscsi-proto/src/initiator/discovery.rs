//! What a discovery session asks for: the list of all targets (RFC 7143, appendix C).
//!
//! Invariant: a text response is taken only while one is asked for, and all of them together are
//! bounded.

use alloc::{string::ToString, vec::Vec};

use super::FoundTarget;
use crate::{
    machine::Fatal,
    pdu::{LunField, NO_TAG, TextRequest, TextResponse},
    text::{self, TextError},
};

/// The tag of its requests: the low half is above every task's place.
const TAG: u32 = 0xff03;

/// Longest list that is taken, in bytes, and the number of targets: what comes after is left out.
const LEN_MAX: usize = 1 << 20;
const TARGETS_MAX: usize = 4096;
/// Text responses that one list may come in.
const ROUNDS_MAX: u32 = 4096;

#[derive(Debug, Default)]
pub(super) struct Discovery {
    /// A request was not answered yet.
    asked: bool,
    text: Vec<u8>,
    rounds: u32,
}

/// What a response leads to.
pub(super) enum Found {
    /// The list goes on: ask for more.
    More(TextRequest),
    /// It is complete.
    All(Vec<FoundTarget>),
}

impl Discovery {
    /// The first request, and its text.
    pub(super) fn begin(&mut self) -> (TextRequest, Vec<u8>) {
        let mut text = Vec::new();
        text::push(&mut text, "SendTargets", "All");
        (self.ask(NO_TAG), text)
    }

    pub(super) fn handle(&mut self, response: &TextResponse, data: &[u8]) -> Result<Found, Fatal> {
        if !core::mem::take(&mut self.asked) || response.itt != TAG {
            return Err(Fatal::Protocol("text response out of place"));
        }
        self.rounds += 1;
        if self.text.len() + data.len() > LEN_MAX || self.rounds > ROUNDS_MAX {
            return Err(Fatal::Text(TextError::TooLong));
        }
        self.text.extend_from_slice(data);
        if !response.last || response.more {
            return Ok(Found::More(self.ask(response.ttt)));
        }
        targets(&core::mem::take(&mut self.text)).map(Found::All)
    }

    fn ask(&mut self, ttt: u32) -> TextRequest {
        self.asked = true;
        let lun = LunField::default();
        TextRequest { immediate: true, last: true, more: false, lun, itt: TAG, ttt }
    }
}

fn targets(list: &[u8]) -> Result<Vec<FoundTarget>, Fatal> {
    let mut targets: Vec<FoundTarget> = Vec::new();
    for pair in text::pairs(list) {
        let (key, value) = pair?;
        if key == "TargetName" {
            if targets.len() == TARGETS_MAX {
                break;
            }
            targets.push(FoundTarget { name: value.to_string(), addresses: Vec::new() });
        } else if key == "TargetAddress"
            && let Some(target) = targets.last_mut()
        {
            target.addresses.push(value.to_string());
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_target_too_many_are_given_to_no_other() {
        // RFC 7143, appendix C: an address belongs to the name before it.
        let mut list = Vec::new();
        for number in 0..=TARGETS_MAX {
            text::push(&mut list, "TargetName", &number.to_string());
            text::push(&mut list, "TargetAddress", &alloc::format!("192.0.2.1:{number},1"));
        }
        let found = targets(&list).unwrap();
        assert_eq!(found.len(), TARGETS_MAX);
        let last = &found[TARGETS_MAX - 1];
        assert_eq!((&*last.name, last.addresses.len()), ("4095", 1));
    }
}
