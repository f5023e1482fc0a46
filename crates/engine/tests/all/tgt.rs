//! Our initiator against a target of another kind: Linux's user-space tgt. Does nothing where
//! tgtd is not installed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::Write as _,
    net::TcpListener,
    num::NonZeroU64,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use netraid_block::{Buf, ErrorKind, Pool, TargetUri};
use netraid_engine::{
    completions,
    initiator::{
        self, Credentials, InitiatorConfig, LoginError, Reason, Remote, Reservation,
        ReservationType, Secret,
    },
};

const NAME: &str = "iqn.2026-01.org.example:tgt";
/// What tgt says of digests.
const BOTH: &str = "CRC32C,None";
const SIZE: u64 = 16 << 20;

/// A tgtd of our own: its control socket and its port are its alone.
struct Tgt {
    daemon: Child,
    directory: tempfile::TempDir,
    port: u16,
}

impl Tgt {
    fn start() -> Option<Self> {
        let program =
            ["/usr/sbin/tgtd", "/usr/bin/tgtd"].into_iter().find(|p| Path::new(p).exists())?;
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let daemon = Command::new(program)
            .args(["-f", "--iscsi", &format!("portal=127.0.0.1:{port}")])
            .env("TGT_IPC_SOCKET", directory.path().join("socket"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let tgt = Self { daemon, directory, port };
        tgt.set_up();
        Some(tgt)
    }

    fn set_up(&self) {
        let disk = self.directory.path().join("disk");
        std::fs::File::create(&disk).unwrap().set_len(SIZE).unwrap();
        // The daemon listens a little after it was started.
        let up = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            self.admin(&["--op", "show", "--mode", "target"])
        });
        assert!(up, "tgtd does not answer");
        let disk = disk.to_str().unwrap();
        for line in [
            &["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME][..],
            &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", disk],
            &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
            &["--op", "update", "--mode", "target", "--tid", "1", "-n", "HeaderDigest", "-v", BOTH],
            &["--op", "update", "--mode", "target", "--tid", "1", "-n", "DataDigest", "-v", BOTH],
        ] {
            assert!(self.admin(line), "{line:?}");
        }
    }

    fn protect(&self, user: &str, password: &str) {
        let account = ["--mode", "account", "--user", user];
        let new = [&["--op", "new"][..], &account, &["--password", password]].concat();
        let bind = [&["--op", "bind", "--tid", "1"][..], &account].concat();
        assert!(self.admin(&new) && self.admin(&bind));
    }

    fn admin(&self, arguments: &[&str]) -> bool {
        let status = Command::new("tgtadm")
            .args(["--lld", "iscsi"])
            .args(arguments)
            .env("TGT_IPC_SOCKET", self.directory.path().join("socket"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    }

    fn config(&self, user: Option<&str>, secret: &[u8]) -> InitiatorConfig {
        let user = user.map(|user| format!("{user}@")).unwrap_or_default();
        let uri = format!("iscsi://{user}127.0.0.1:{}/{NAME}/1", self.port);
        let mut config = InitiatorConfig::new(TargetUri::parse(&uri).unwrap());
        config.secret = Secret::new(secret).ok();
        config
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[tokio::test]
async fn a_disk_of_tgt_is_read_and_written() {
    let Some(tgt) = Tgt::start() else {
        let _ = writeln!(std::io::stderr(), "tgtd is not installed: nothing was tested");
        return;
    };
    for (header_digest, data_digest) in [(false, false), (true, true)] {
        let mut config = tgt.config(None, b"");
        (config.header_digest, config.data_digest) = (header_digest, data_digest);
        let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
        assert_eq!(remote.identity().vendor, "IET");
        let device = remote.clone().into_device();
        assert_eq!(device.info().capacity, SIZE);
        let max = u64::from(device.info().max_transfer_len);
        for (at, len) in [(0, 512), (4096, 4096), (1 << 20, max), (SIZE - max, max)] {
            let seed = if header_digest { 3 } else { 7 };
            let bytes: Vec<u8> = (0..len).map(|byte| (byte * seed / 5).to_le_bytes()[0]).collect();
            completions::write(&device, at, Buf::copy_from(&bytes).into(), true).await.unwrap();
            let data = completions::read(&device, at, len).await.unwrap();
            assert!(*data.to_contiguous() == bytes[..], "{len} bytes at {at}");
        }
        completions::flush(&device).await.unwrap();
        completions::write_zeroes(&device, 1 << 20, 3 << 20).await.unwrap();
        completions::discard(&device, 8 << 20, 1 << 20).await.unwrap();
        let data = completions::read(&device, 1 << 20, 1 << 20).await.unwrap();
        assert!(data.to_contiguous().iter().all(|byte| *byte == 0));
        remote.close().await;
    }
    let limit = Duration::from_secs(2);
    let found = initiator::discover("127.0.0.1", tgt.port, None, limit).await.unwrap();
    assert_eq!(found[0].name, NAME);
}

#[tokio::test]
async fn chap_of_tgt_is_answered() {
    let Some(tgt) = Tgt::start() else { return };
    tgt.protect("joe", "secretsecret12");
    let right = tgt.config(Some("joe"), b"secretsecret12");
    Remote::connect(right, Pool::new()).await.unwrap().close().await;
    for wrong in [tgt.config(Some("joe"), b"secretsecret13"), tgt.config(None, b"")] {
        let error = Remote::connect(wrong, Pool::new()).await.unwrap_err();
        let authentication = matches!(error.reason(), Reason::Login(LoginError::Authentication));
        assert!(authentication, "{error}");
    }
    let credentials =
        Credentials { user: "joe".into(), secret: Secret::new(*b"secretsecret12").unwrap() };
    let limit = Duration::from_secs(2);
    // It asks nobody for a proof who only looks: that may be another one in its place.
    let found = initiator::discover("127.0.0.1", tgt.port, Some(credentials), limit).await;
    let error = found.unwrap_err();
    assert!(matches!(error.reason(), Reason::Login(LoginError::Unasked)), "{error}");
}

/// A second initiator takes the disk over by force: the first one learns it, and is fenced.
#[tokio::test]
async fn who_is_preempted_at_tgt_is_fenced() {
    let Some(tgt) = Tgt::start() else { return };
    let connect = async |name: &str, sessions| {
        let mut config = tgt.config(None, b"");
        config.initiator_name = format!("iqn.2026-01.org.example:{name}");
        config.sessions = sessions;
        Arc::new(Remote::connect(config, Pool::new()).await.unwrap())
    };
    let (key, victor_key) = (NonZeroU64::new(0x1111).unwrap(), NonZeroU64::new(0x2222).unwrap());
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    for sessions in [1, 3] {
        let (victim, victor) = (connect("victim", sessions).await, connect("victor", 1).await);
        let device = victim.clone().into_device();
        let write = async |remote: &Arc<Remote>, byte| {
            let device = remote.clone().into_device();
            completions::write(&device, 0, Buf::copy_from(&[byte; 512]).into(), false).await
        };
        victim.register_and_ignore(key).await.unwrap();
        let keys = victim.reservation_keys().await.unwrap().keys;
        assert_eq!(keys, vec![key.get(); usize::from(sessions)]);
        assert_eq!(victor.reservation().await.unwrap(), None);
        victim.reserve(key, kind).await.unwrap();
        assert_eq!(victor.reservation().await.unwrap().map(|held| held.kind), Some(kind));
        for byte in 1..=6 {
            write(&victim, byte).await.unwrap();
        }
        // Whoever is not registered may read, and is refused for the moment, not for good.
        let refused = write(&victor, 9).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
        assert!(!victor.is_fenced());
        assert_eq!(completions::read(&device, 0, 512).await.unwrap().to_contiguous()[0], 6);
        victor.register(victor_key).await.unwrap();
        // tgt has no PREEMPT AND ABORT, and says so.
        let without = victor.preempt(victor_key, key, kind, true).await.unwrap_err();
        assert_eq!(without.kind(), ErrorKind::Unsupported, "{without}");
        victor.preempt(victor_key, key, kind, false).await.unwrap();
        assert_eq!(victor.reservation_keys().await.unwrap().keys, [victor_key.get()]);
        let fenced = write(&victim, 7).await.unwrap_err();
        assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
        assert!(victim.is_fenced());
        // Reads too: what this side knows of the disk is out of date.
        let fenced = completions::read(&device, 0, 512).await.unwrap_err();
        assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
        write(&victor, 8).await.unwrap();
        victor.clear_reservations(victor_key).await.unwrap();
        assert_eq!(victor.reservation().await.unwrap(), None);
        assert!(victor.reservation_keys().await.unwrap().keys.is_empty());
        // Nothing is left of it: not for this side either.
        write(&victor, 9).await.unwrap();
        assert!(!victor.is_fenced());
        victim.close().await;
        victor.close().await;
    }
}

#[tokio::test]
async fn reservations_are_given_back_at_tgt() {
    let Some(tgt) = Tgt::start() else { return };
    let remote = Remote::connect(tgt.config(None, b""), Pool::new()).await.unwrap();
    let (one, two) = (NonZeroU64::new(1).unwrap(), NonZeroU64::new(2).unwrap());
    let kind = ReservationType::ExclusiveAccess;
    let refused = remote.reserve(one, kind).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "nobody is registered: {refused}");
    remote.register(one).await.unwrap();
    remote.register(two).await.unwrap();
    assert_eq!(remote.reservation_keys().await.unwrap().keys, [2], "in place of the first");
    remote.reserve(two, kind).await.unwrap();
    let held = Reservation { key: 2, kind };
    assert_eq!(remote.reservation().await.unwrap(), Some(held));
    remote.release(two, kind).await.unwrap();
    assert_eq!(remote.reservation().await.unwrap(), None);
    remote.unregister().await.unwrap();
    assert!(remote.reservation_keys().await.unwrap().keys.is_empty());
    assert!(!remote.is_fenced());
    remote.close().await;
}
