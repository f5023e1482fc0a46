//! What `--lun` takes: the backing of a logical unit.

pub(crate) use netraid_engine::backings::BackingSpec as LunSpec;
