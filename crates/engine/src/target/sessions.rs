//! The sessions of a running target as the shell knows them: who, from where, since when, and
//! what they did.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Instant,
};

use netraid_iscsi_proto::{chap::Algorithm, negotiation::SessionType, target::ConnectionId};

use super::{cells::Guarded, guests::Guest, statistics::Counters};

/// One connection, which is one session once it has logged in.
pub(super) struct SessionEntry {
    pub(super) connection: ConnectionId,
    pub(super) peer: SocketAddr,
    /// Which of the target's serves it.
    pub(super) thread: usize,
    login: OnceLock<Login>,
    guest: OnceLock<Arc<Guest>>,
    pub(super) counters: Counters,
}

/// What is known once a session has logged in.
pub(super) struct Login {
    pub(super) initiator: String,
    pub(super) kind: SessionType,
    /// The digest of its proof, where it had to give one.
    pub(super) chap: Option<Algorithm>,
    pub(super) since: Instant,
}

impl SessionEntry {
    pub(super) fn new(connection: ConnectionId, peer: SocketAddr, thread: usize) -> Arc<Self> {
        let (login, guest) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { connection, peer, thread, login, guest, counters: Counters::default() })
    }

    /// The session has logged in.
    pub(super) fn log_in(&self, initiator: String, kind: SessionType, chap: Option<Algorithm>) {
        let login = Login { initiator, kind, chap, since: Instant::now() };
        // A connection logs in once.
        let _ = self.login.set(login);
    }

    /// A token let it in.
    pub(super) fn let_in(&self, guest: Arc<Guest>) {
        // Once, as a connection logs in.
        let _ = self.guest.set(guest);
    }

    /// What it was let in to, if by a token.
    pub(super) fn guest(&self) -> Option<&Arc<Guest>> {
        self.guest.get()
    }

    pub(super) fn login(&self) -> Option<&Login> {
        self.login.get()
    }

    /// Its initiator's name; empty before the login.
    pub(super) fn initiator(&self) -> &str {
        self.login().map_or("", |login| &login.initiator)
    }
}

/// All that have logged in.
#[derive(Default)]
pub(super) struct SessionTable(Guarded<BTreeMap<ConnectionId, Arc<SessionEntry>>>);

impl SessionTable {
    pub(super) fn insert(&self, session: Arc<SessionEntry>) {
        self.0.lock().insert(session.connection, session);
    }

    pub(super) fn remove(&self, connection: ConnectionId) {
        self.0.lock().remove(&connection);
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<Arc<SessionEntry>> {
        self.0.lock().get(&connection).cloned()
    }

    /// All of them, oldest first.
    pub(super) fn all(&self) -> Vec<Arc<SessionEntry>> {
        self.0.lock().values().cloned().collect()
    }
}
