//! Live peers that mean harm, over loopback: what `fuzz/` does to the machines, done to the shells.

#[path = "../iscsi/common.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests, which use more of it")]
mod common;
mod initiators;
mod peer;
mod proxy;
mod targets;
