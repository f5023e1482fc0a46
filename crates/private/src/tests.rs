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
    for error in [replace(&link, b"ours").unwrap_err(), check_replaceable(&link).unwrap_err()] {
        assert_eq!(reason(&error), Some(NotPrivate::Link), "{error}");
    }
    assert_eq!((fs::read(&other).unwrap(), mode_of(&other)), (b"theirs".to_vec(), 0o666));
    assert_eq!(fs::read_link(&link).unwrap(), other);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing is left beside it");
}

#[test]
fn a_file_with_a_second_name_is_not_changed_under_it() {
    let directory = without_umask();
    let (planted, victim) = (directory.path().join("store"), directory.path().join("victim"));
    fs::write(&victim, "theirs").unwrap();
    fs::hard_link(&victim, &planted).unwrap();
    let modes = [Mode::Read, Mode::Write, Mode::Append];
    let opened = modes.map(|mode| open(&planted, mode).unwrap_err());
    let looked = [tighten(&planted).unwrap_err(), check(&planted).unwrap_err()];
    for error in opened.iter().chain(&looked) {
        assert_eq!(reason(error), Some(NotPrivate::Names { names: 2 }), "{error}");
    }
    assert_eq!((fs::read(&victim).unwrap(), mode_of(&victim)), (b"theirs".to_vec(), 0o666));
    // A copy that shares its bytes with what somebody keeps is read, and replaced under this name alone.
    open_named(&planted).unwrap();
    replace(&planted, b"ours").unwrap();
    assert_eq!((fs::read(&victim).unwrap(), mode_of(&victim)), (b"theirs".to_vec(), 0o666));
    assert_eq!((fs::read(&planted).unwrap(), mode_of(&planted)), (b"ours".to_vec(), 0o600));
    open(&planted, Mode::Write).unwrap();
}

#[test]
fn a_file_of_a_known_name_is_no_link_pipe_or_second_name_of_another() {
    let directory = without_umask();
    let path = |name: &str| directory.path().join(name);
    let open = |name: &str| open_known(&path(name), OpenOptions::new().append(true).create(true));
    fs::write(path("victim"), "theirs").unwrap();
    symlink(path("victim"), path("link")).unwrap();
    fs::write(path("other"), "theirs").unwrap();
    fs::hard_link(path("other"), path("names")).unwrap();
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    );
    made.unwrap();
    assert_eq!(reason(&open("link").unwrap_err()), Some(NotPrivate::Link));
    assert_eq!(reason(&open("names").unwrap_err()), Some(NotPrivate::Names { names: 2 }));
    assert_eq!(reason(&open("pipe").unwrap_err()), Some(NotPrivate::Kind));
    open("new").unwrap();
    assert_eq!(mode_of(&path("new")), 0o666, "as the umask says");

    // Links of one's own are followed where that is asked for, also to what is made now.
    symlink("made", path("to made")).unwrap();
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    open_known_through_links(&path("to made"), &mut options).unwrap();
    assert!(path("made").is_file());
    open_known_through_links(&path("link"), &mut options).unwrap();
}

#[test]
fn a_prepared_file_shows_only_when_it_is_finished() {
    let directory = without_umask();
    let path = directory.path().join("access");
    fs::write(&path, "old").unwrap();
    drop(prepare(&path, 8192).unwrap());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "what was prepared has gone");
    let prepared = prepare(&path, 8192).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    prepared.finish(b"new").unwrap();
    assert_eq!((fs::read(&path).unwrap(), mode_of(&path)), (b"new".to_vec(), 0o600));

    assert!(prepare(&directory.path().join("missing/access"), 1).is_err());
    assert!(prepare(Path::new("/proc/access"), 1).is_err(), "nothing is made there");
}

#[test]
fn a_key_is_read_through_links_unless_others_than_its_group_may_read_it() {
    let directory = without_umask();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("archive")).unwrap();
    fs::create_dir(path("live")).unwrap();
    fs::write(path("archive/key1.pem"), "key").unwrap();
    symlink("../archive/key1.pem", path("live/key.pem")).unwrap();
    symlink(path("live/key.pem"), path("key.pem")).unwrap();
    let set = |mode| {
        fs::set_permissions(path("archive/key1.pem"), Permissions::from_mode(mode)).unwrap();
    };
    for name in ["archive/key1.pem", "live/key.pem", "key.pem"] {
        for mode in [0o400, 0o600, 0o640] {
            set(mode);
            let mut text = String::new();
            open_key(&path(name)).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!((text.as_str(), mode_of(&path("archive/key1.pem"))), ("key", mode));
        }
        for mode in [0o644, 0o604, 0o660, 0o666, 0o602] {
            set(mode);
            let error = open_key(&path(name)).unwrap_err();
            assert_eq!(reason(&error), Some(NotPrivate::Readable { mode }), "{name}: {error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    let error = open_key(&path("live")).unwrap_err();
    assert_eq!(reason(&error), Some(NotPrivate::Kind), "{error}");
    symlink("loop", path("loop")).unwrap();
    assert!(open_key(&path("loop")).is_err());
    symlink("gone", path("dangling")).unwrap();
    assert_eq!(open_key(&path("dangling")).unwrap_err().kind(), io::ErrorKind::NotFound);
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
        let opened = open(path, Mode::Write).unwrap_err();
        for error in [opened, replace(path, b"secret").unwrap_err()] {
            assert_eq!(reason(&error), Some(NotPrivate::Kind), "{}: {error}", path.display());
        }
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

/// Only root can give a link to another user.
#[test]
fn a_link_of_another_user_is_not_followed_to_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    make_directory(&link).unwrap();
    if own_id() == 0 {
        std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
        for end in [make_directory(&link), check_link(&link), make_directory(&link.join(""))] {
            assert_eq!(end.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert!(check_link(&real).is_ok() && check_link(&directory.path().join("none")).is_ok());
    }
}
