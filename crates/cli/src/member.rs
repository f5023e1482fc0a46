//! Addresses of members and the secrets that go with them.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use netraid_block::TargetUri;
use netraid_engine::array::{Keyring, MemberConfig};

use crate::secret::{SecretArgs, Secrets};

/// How members are reached.
#[derive(Debug, Clone, Args)]
pub(crate) struct MemberArgs {
    /// Members: iscsi://[user@]host[:port]/iqn/lun[?portal=host[:port]&...], with further portals of
    /// the same target
    // Read later and not by clap, which would repeat a secret in its message.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    #[command(flatten)]
    secrets: SecretArgs,
    /// Insist on header and data digests (CRC32C)
    #[arg(long)]
    digests: bool,
    /// Sessions to each member, 1 to 8; each begins at another of the member's portals. With two and more,
    /// small requests have the first one for themselves while they come
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    sessions: u8,
}

impl MemberArgs {
    /// What was typed.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The members in the order in which they were given.
    pub(crate) fn configs(&self) -> Result<Vec<MemberConfig>> {
        self.configs_of(&self.urls)
    }

    /// Other devices, reached as the members are.
    pub(crate) fn configs_of(&self, urls: &[String]) -> Result<Vec<MemberConfig>> {
        let mut configs = configs(urls, &self.secrets)?;
        for config in &mut configs {
            (config.digests, config.sessions) = (self.digests, self.sessions);
        }
        Ok(configs)
    }
}

/// Members at these addresses.
pub(crate) fn configs(urls: &[String], secrets: &SecretArgs) -> Result<Vec<MemberConfig>> {
    let allow_none = secrets.allow_none;
    let secrets = Arc::new(Secrets::load(secrets)?);
    let known = Arc::clone(&secrets);
    let keyring = Keyring::new(move |uri| {
        let found = known.of(uri).map_err(|error| format!("{error:#}"))?;
        Ok(found.map(|credentials| credentials.secret))
    });
    let config = |url: &String| {
        let uri = TargetUri::parse(url)?;
        let secret = secrets.of(&uri)?.map(|credentials| credentials.secret);
        let mut config = MemberConfig::new(uri, secret);
        config.keyring = Some(keyring.clone());
        config.allow_none = allow_none;
        config.mutual = secrets.mutual().map(|mutual| (mutual.user.clone(), mutual.secret.clone()));
        Ok(config)
    };
    urls.iter().map(config).collect()
}
