#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    io::Read as _,
    os::unix::{
        fs::{FileTypeExt as _, symlink},
        net::UnixStream,
    },
};

use super::*;

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

/// Every test of this process runs with it: nothing is taken from what is asked for.
fn without_umask() -> tempfile::TempDir {
    rustix::process::umask(rustix::fs::Mode::empty());
    tempfile::tempdir().unwrap()
}

fn reason(error: &io::Error) -> Option<NotPrivate> {
    error.get_ref()?.downcast_ref().copied()
}

#[test]
fn a_new_file_is_closed_to_others_whatever_the_umask() {
    let directory = without_umask();
    for (name, mode) in [("lock", Mode::Write), ("log", Mode::Append)] {
        let path = directory.path().join(name);
        open(&path, mode).unwrap();
        assert_eq!(mode_of(&path), 0o600, "{name}");
    }
    let path = directory.path().join("secret");
    replace(&path, b"one").unwrap();
    assert_eq!((mode_of(&path), fs::read(&path).unwrap()), (0o600, b"one".to_vec()));
    let path = directory.path().join("a/b");
    make_directory(&path).unwrap();
    assert_eq!((mode_of(&path), mode_of(path.parent().unwrap())), (0o700, 0o700));
}

#[test]
fn a_file_that_others_could_read_is_closed_to_them_and_keeps_its_bytes() {
    let directory = without_umask();
    let path = directory.path().join("store");
    assert!(!tighten(&path).unwrap(), "there is none, and none is made");
    assert!(!path.exists());
    fs::write(&path, "rows").unwrap();
    assert_eq!(mode_of(&path), 0o666);
    let error = check(&path).unwrap_err();
    assert_eq!(reason(&error), Some(NotPrivate::Readable { mode: 0o666 }));
    assert!(tighten(&path).unwrap());
    check(&path).unwrap();
    assert_eq!((mode_of(&path), fs::read(&path).unwrap()), (0o600, b"rows".to_vec()));
    // Permissions that are not the owner's own are no obstacle.
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let mut text = String::new();
    open(&path, Mode::Append).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), mode_of(&path)), ("rows", 0o600));
}

#[test]
fn a_link_is_not_followed_and_what_it_leads_to_is_left_alone() {
    let directory = without_umask();
    let (link, other) = (directory.path().join("lock"), directory.path().join("other"));
    symlink(&other, &link).unwrap();
    for mode in [Mode::Read, Mode::Write, Mode::Append] {
        let error = open(&link, mode).unwrap_err();
        assert_eq!(reason(&error), Some(NotPrivate::Link), "{mode:?}: {error}");
    }
    for error in [open_named(&link).unwrap_err(), check(&link).unwrap_err()] {
        assert_eq!(reason(&error), Some(NotPrivate::Link), "{error}");
    }
    assert_eq!(reason(&make_known_directory(&link).unwrap_err()), None, "leads nowhere");
    assert!(!other.exists(), "nothing was made behind the link");

    fs::write(&other, "theirs").unwrap();
    replace(&link, b"ours").unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"theirs");
    assert_eq!((fs::read(&link).unwrap(), mode_of(&link)), (b"ours".to_vec(), 0o600));
    assert!(fs::symlink_metadata(&link).unwrap().is_file());
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let directory = without_umask();
    let path = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    for path in [&path, directory.path()] {
        let error = open(path, Mode::Write).unwrap_err();
        assert_eq!(reason(&error), Some(NotPrivate::Kind), "{}: {error}", path.display());
    }
}

#[test]
fn a_file_counts_when_it_is_its_readers_or_roots() {
    assert_eq!(judge_owner(1000, 1000), Ok(()));
    assert_eq!(judge_owner(0, 1000), Ok(()));
    assert_eq!(judge_owner(1000, 0), Err(NotPrivate::Owner { owner: 1000, own: 0 }));
    assert_eq!(judge_owner(1001, 1000), Err(NotPrivate::Owner { owner: 1001, own: 1000 }));
}

#[test]
fn a_directory_under_a_known_name_is_closed_to_writes_of_others() {
    let directory = without_umask();
    let path = directory.path().join("locks");
    make_known_directory(&path).unwrap();
    assert_eq!(mode_of(&path), 0o700);
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    make_known_directory(&path).unwrap();
    assert_eq!(mode_of(&path), 0o700);
    // What an administrator opened to readers stays so.
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    make_known_directory(&path).unwrap();
    assert_eq!(mode_of(&path), 0o755);
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    let error = make_known_directory(&link).unwrap_err();
    assert_eq!(reason(&error), Some(NotPrivate::Link));
}

#[test]
fn a_socket_is_its_owners_and_takes_the_place_of_a_dead_one_only() {
    let directory = without_umask();
    let path = directory.path().join("socket");
    let first = listen(&path, 16).unwrap();
    let found = fs::symlink_metadata(&path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(mode_of(&path), 0o600);
    assert_eq!(listen(&path, 16).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(first);
    let _second = listen(&path, 16).unwrap();
    UnixStream::connect(&path).unwrap();

    // A link to a dead socket is somebody else's business.
    let (dead, link) = (directory.path().join("dead"), directory.path().join("link"));
    drop(listen(&dead, 16).unwrap());
    symlink(&dead, &link).unwrap();
    assert_eq!(listen(&link, 16).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let file = directory.path().join("file");
    fs::write(&file, "kept").unwrap();
    assert!(listen(&file, 16).is_err());
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}
