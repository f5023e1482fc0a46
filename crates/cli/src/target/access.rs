//! Who may log in to a target, and where.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use netraid_engine::target::{ChapAlgorithm, Redirect, TargetConfig};
use serde::Serialize;

use crate::{
    listen,
    secret::{ChapFile, read_chap_file},
};

#[derive(Debug, Clone, Args)]
pub(crate) struct AccessArgs {
    /// Let in only who knows this: 'user:secret' in each line, or user and secret in two; a last
    /// line 'mutual:user:secret' is the target's own proof for initiators that ask for one; '#' begins
    /// a comment
    #[arg(long, value_name = "FILE")]
    chap_file: Option<PathBuf>,
    /// CHAP digests that may be chosen from what an initiator offers; its order counts
    #[arg(long, value_name = "DIGEST,...", value_delimiter = ',', value_parser = digest,
          default_value = "sha3-256,sha256,sha1,md5")]
    chap_allow: Vec<ChapAlgorithm>,
    /// Let in only the initiator of this name; may be given several times
    #[arg(long, value_name = "IQN", value_parser = initiator_name)]
    allow: Vec<String>,
    /// Send logins elsewhere: those to one portal, or all of them
    #[arg(
        long,
        value_name = "[PORTAL=]ADDR:PORT[,temporary|permanent]",
        value_parser = redirect
    )]
    redirect: Vec<Redirect>,
    /// Allow everybody in, also from other hosts
    #[arg(long)]
    insecure: bool,
}

impl AccessArgs {
    /// Puts it into the configuration; what the CHAP file says.
    pub(super) fn apply(&self, config: &mut TargetConfig) -> Result<Option<Users>> {
        config.allow.clone_from(&self.allow);
        config.redirects.clone_from(&self.redirect);
        config.chap_allow.clone_from(&self.chap_allow);
        let chap = self.chap_file.as_deref().map(read_chap_file).transpose()?;
        let Some(ChapFile { form, initiators, target }) = chap else { return Ok(None) };
        let users = initiators.iter().map(|one| one.user.clone()).collect();
        let own = target.as_ref().map(|own| own.user.clone());
        config.chap = initiators;
        config.mutual_chap = target;
        Ok(Some(Users { read_as: form.name(), users, target: own }))
    }

    fn lets_everybody_in(&self) -> bool {
        self.chap_file.is_none() && self.allow.is_empty()
    }
}

/// Who may log in by CHAP, as the file was read; no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Users {
    /// The form of the file's lines.
    pub(super) read_as: &'static str,
    /// Names, in the order of the file; at least one.
    pub(super) users: Vec<String>,
    /// The name by which the target proves itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
}

/// Where to listen; an address that others reach needs to know whom it lets in.
pub(super) fn listen_addresses(listen: &[String], access: &AccessArgs) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for text in listen {
        let found = listen::resolve(text).with_context(|| {
            format!(
                "address '{text}': is not HOST:PORT; write 127.0.0.1:3260, [::1]:3260 or \
                 [fe80::1%eth0]:3260"
            )
        })?;
        addresses.extend(found);
    }
    let open = addresses.iter().find(|address| !address.ip().is_loopback());
    if let Some(open) = open.filter(|_| access.lets_everybody_in() && !access.insecure) {
        bail!(
            "address {open}: other hosts could read and write without a secret; give \
             --chap-file FILE, or --allow IQN (a name is easily pretended), or --insecure where \
             everybody is trusted"
        );
    }
    Ok(addresses)
}

pub(super) fn initiator_name(text: &str) -> Result<String, String> {
    let known = ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind));
    if !known || text.len() > 223 || text.contains(char::is_whitespace) {
        return Err("is not an iSCSI name; write iqn.YYYY-MM.DOMAIN:NAME".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

/// The name of a target (RFC 7143, section 4.2.7.2). It is a part of addresses, and of the names of
/// files in `--state DIR`.
pub(super) fn target_name(text: &str) -> Result<String, String> {
    let possible = |c: char| c.is_alphanumeric() || "-.:_".contains(c);
    if initiator_name(text).is_err() || !text.chars().all(possible) {
        return Err("is not an iSCSI name; write iqn.YYYY-MM.DOMAIN:NAME, with letters, digits, \
                    dots, colons and dashes"
            .to_owned());
    }
    Ok(text.to_owned())
}

fn digest(text: &str) -> Result<ChapAlgorithm, String> {
    ChapAlgorithm::from_name(text)
        .ok_or_else(|| "is none of sha3-256, sha256, sha1 and md5".to_owned())
}

fn redirect(text: &str) -> Result<Redirect, String> {
    const FORM: &str = "is not [PORTAL=]ADDR:PORT[,temporary|permanent]";
    let (portal, rest) = match text.split_once('=') {
        Some((portal, rest)) => {
            let portal = portal.parse().map_err(|_| "has a portal that is no IP:PORT")?;
            (Some(portal), rest)
        }
        None => (None, text),
    };
    let (address, permanent) = match rest.split_once(',') {
        Some((address, "permanent")) => (address, true),
        Some((address, "temporary")) => (address, false),
        Some(_) => return Err(FORM.to_owned()),
        None => (rest, false),
    };
    let (host, port) = address.rsplit_once(':').ok_or(FORM)?;
    let port: u16 = port.parse().map_err(|_| "has a port that is no number to 65535")?;
    if host.is_empty() || port == 0 || (host.contains(':') && !host.starts_with('[')) {
        return Err(FORM.to_owned());
    }
    if host.contains('%') {
        return Err("has a zone, which means nothing to initiators; leave it out".to_owned());
    }
    Ok(Redirect { portal, address: address.to_owned(), permanent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_name_portals_and_places() {
        let plain = redirect("storage.example:3260").unwrap();
        assert_eq!((plain.portal, plain.permanent), (None, false));
        let full = redirect("10.0.0.1:3260=[2001:db8::1]:3261,permanent").unwrap();
        assert_eq!(full.portal, Some("10.0.0.1:3260".parse().unwrap()));
        assert_eq!((full.address.as_str(), full.permanent), ("[2001:db8::1]:3261", true));
        for bad in [
            "a",
            "a:",
            ":1",
            "a:0",
            "a:1,never",
            "x=a:1",
            "2001:db8::1:1",
            "a:99999",
            "[fe80::1%lo]:1",
            "iscsi://joe:hidden@127.0.0.1/iqn.x",
            "iscsi://joe%hidden=127.0.0.1:1",
        ] {
            let error = redirect(bad).unwrap_err();
            assert!(!error.contains("hidden"), "{bad}: {error}");
        }
    }

    #[test]
    fn allowed_names_are_iscsi_names() {
        assert_eq!(initiator_name("iqn.2026-01.Org:A").unwrap(), "iqn.2026-01.org:a");
        assert!(initiator_name("joe").is_err() && initiator_name("iqn.x y").is_err());
    }

    #[test]
    fn a_target_name_is_no_path_and_no_address() {
        assert_eq!(target_name("iqn.2026-01.org:a-b.c").unwrap(), "iqn.2026-01.org:a-b.c");
        let long = format!("iqn.{}", "n".repeat(219));
        assert!(target_name(&long).is_ok() && target_name(&format!("{long}n")).is_err());
        for bad in ["", "joe", "iqn.x/../../y", "iqn.x,y", "iqn.x y", "iscsi://u%secret@h/iqn.x/0"]
        {
            let error = target_name(bad).unwrap_err();
            assert!(error.contains("iqn.YYYY-MM") && !error.contains("secret"), "{bad}");
        }
    }

    #[test]
    fn open_addresses_want_to_know_whom_they_let_in() {
        let access = |allow: &[&str], insecure| AccessArgs {
            chap_file: None,
            chap_allow: Vec::new(),
            allow: allow.iter().map(ToString::to_string).collect(),
            redirect: Vec::new(),
            insecure,
        };
        let open = ["192.0.2.1:3260".to_owned()];
        assert!(listen_addresses(&open, &access(&[], false)).is_err());
        assert!(listen_addresses(&open, &access(&[], true)).is_ok());
        assert!(listen_addresses(&open, &access(&["iqn.x"], false)).is_ok());
        assert!(listen_addresses(&["127.0.0.1:0".to_owned()], &access(&[], false)).is_ok());
    }
}
