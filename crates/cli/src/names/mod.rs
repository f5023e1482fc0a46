//! `netraid ls`, `stat`, `rm`, `mv`, `mkdir`: names of a cluster; `put`, `get` and `cat` beside.

mod transfer;

use anyhow::Result;
use clap::Args;
use netraid_cluster::{
    http::RequestError,
    mediator::{Create, Entry, Kind, Layout, PAGE_MAX},
    paging::Pages,
};
use netraid_control::text::{escaped, shown};
use serde_json::json;

use crate::{cluster::AccessArgs, output::Output, runtime, size};

pub(crate) use transfer::{CatArgs, GetArgs, PutArgs, cat, get, put};

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    /// Absolute path of a directory
    #[arg(default_value = "/")]
    path: String,
    /// What is being put into it, or was interrupted, in the place of all else
    #[arg(long)]
    uploads: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PathArgs {
    /// Absolute path
    path: String,
    /// What is being put there, or was interrupted, in the place of what has the name
    #[arg(long)]
    upload: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RemoveArgs {
    /// Absolute paths
    #[arg(required = true)]
    paths: Vec<String>,
    /// Also when somebody uses it: they are fenced
    #[arg(long)]
    force: bool,
    /// What an interrupted `put` left there, in the place of what has the name
    #[arg(long)]
    upload: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MoveArgs {
    /// Absolute path
    from: String,
    /// Absolute path, where nothing is yet unless it is to be replaced
    to: String,
    /// Remove what has that name, in the same step
    #[arg(long)]
    replace: bool,
    /// Also when somebody uses it: they are fenced
    #[arg(long, requires = "replace")]
    force: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MakeDirectoryArgs {
    /// Absolute path
    path: String,
    /// Make missing directories above it
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// One entry a line, or one document with all.
pub(crate) fn list(args: &ListArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let mut list = output.list();
    runtime()?.block_on(async {
        let mut after: Option<String> = None;
        let mut pages = Pages::new(usize::try_from(PAGE_MAX)?);
        loop {
            let page = match args.uploads {
                true => cluster.list_uploads(&args.path, after.as_deref()).await?,
                false => cluster.list(&args.path, after.as_deref()).await?,
            };
            let names = page.entries.iter().map(|entry| name_of(entry).to_owned());
            after = pages.take(names, page.next)?;
            list.add(&page.entries, line)?;
            if after.is_none() {
                return anyhow::Ok(());
            }
        }
    })?;
    list.end()
}

pub(crate) fn stat(args: &PathArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let entry = runtime()?.block_on(async {
        match args.upload {
            true => cluster.stat_upload(&args.path).await,
            false => cluster.stat(&args.path).await,
        }
    })?;
    output.document(&entry, || describe(&entry))
}

pub(crate) fn remove(args: &RemoveArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let remove = async |path: &str| match args.upload {
        true => cluster.remove_upload(path, None, args.force).await,
        false => cluster.remove(path, args.force).await,
    };
    remove_each(&args.paths, remove, output)
}

/// Removes one after the other, up to the first that cannot be; what is gone by then is told.
pub(crate) fn remove_each(
    paths: &[String],
    remove: impl AsyncFn(&str) -> Result<(), RequestError>,
    output: Output,
) -> Result<()> {
    runtime()?.block_on(async {
        for (index, path) in paths.iter().enumerate() {
            let removed = remove(path).await.map_err(anyhow::Error::from);
            removed.map_err(|error| match &paths[..index] {
                [] => error,
                gone => error.context(format!("removed before that: {}", gone.join(" "))),
            })?;
        }
        anyhow::Ok(())
    })?;
    output.document(&json!({ "removed": paths }), || format!("removed: {}", paths.join(" ")))
}

pub(crate) fn rename(args: &MoveArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let (from, to) = (args.from.as_str(), args.to.as_str());
    let entry = runtime()?.block_on(async {
        match args.replace {
            true => cluster.replace_name(from, to, None, args.force).await,
            false => cluster.rename(from, to, None).await,
        }
    })?;
    output.document(&entry, || format!("{} is {} now", args.from, escaped(&entry.path)))
}

pub(crate) fn make_directory(args: &MakeDirectoryArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let create = Create {
        path: args.path.clone(),
        kind: Kind::Directory,
        size_bytes: 0,
        layout: Layout::default(),
        parents: args.parents,
        upload: false,
        replaces: None,
    };
    let entry = runtime()?.block_on(cluster.create(&create))?;
    output.document(&entry, || format!("{}: made", escaped(&entry.path)))
}

/// The last name of an entry's path.
fn name_of(entry: &Entry) -> &str {
    entry.path.rsplit('/').next().unwrap_or_default()
}

/// An entry in a line.
fn line(entry: &Entry) -> String {
    let name = escaped(name_of(entry));
    match entry.kind {
        Kind::Directory => format!("{:>12}  {name}/", "-"),
        Kind::Volume | Kind::Data => {
            let of = entry.upload_bytes.map(|all| format!(", of {} to be there", size::show(all)));
            format!("{:>12}  {name}{}", size::show(entry.length_bytes), of.unwrap_or_default())
        }
    }
}

/// An entry in full.
pub(crate) fn describe(entry: &Entry) -> String {
    let path = escaped(&entry.path);
    let kind = match entry.kind {
        Kind::Directory => return format!("{path}: directory"),
        Kind::Volume => "volume",
        Kind::Data => "data",
    };
    let length = entry.length_bytes;
    let mut text = format!("{path}: {kind}, {length} bytes ({})\n", size::show(length));
    if let Some(all) = entry.upload_bytes {
        text += &format!("being put, or that was interrupted: {all} bytes are to be there\n");
    }
    if let Some(stored) = &entry.stored {
        let chunk = size::show(u64::from(stored.chunk_len));
        let (level, members) = (stored.level, stored.members.len());
        text += &format!("level {level} over {members} members, striping unit {chunk}\n");
        for (at, member) in stored.members.iter().enumerate() {
            let away = if member.reachable { "" } else { ", away" };
            let fresh = if member.fresh { ", not rebuilt yet" } else { "" };
            let (agent, host) = (member.agent, shown(&member.host));
            text += &format!("  {at}: agent {agent} on {host}{away}{fresh}\n");
        }
        for reason in &stored.reasons {
            text += &format!("  because: {}\n", shown(reason));
        }
    }
    text
}
