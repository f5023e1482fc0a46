//! The sessions of a running target as the shell knows them: who, from where, since when, and
//! what they did.

use std::{
    cell::{OnceCell, RefCell},
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
    time::Instant,
};

use netraid_iscsi_proto::{negotiation::SessionType, target::ConnectionId};

use super::{guests::Guest, statistics::Counters};

/// One connection, which is one session once it has logged in.
pub(super) struct SessionEntry {
    pub(super) connection: ConnectionId,
    pub(super) peer: SocketAddr,
    login: OnceCell<Login>,
    guest: OnceCell<Rc<Guest>>,
    pub(super) counters: Counters,
}

/// What is known once a session has logged in.
pub(super) struct Login {
    pub(super) initiator: String,
    pub(super) kind: SessionType,
    pub(super) since: Instant,
}

impl SessionEntry {
    pub(super) fn new(connection: ConnectionId, peer: SocketAddr) -> Rc<Self> {
        let (login, guest) = (OnceCell::new(), OnceCell::new());
        Rc::new(Self { connection, peer, login, guest, counters: Counters::default() })
    }

    /// The session has logged in.
    pub(super) fn log_in(&self, initiator: String, kind: SessionType) {
        let login = Login { initiator, kind, since: Instant::now() };
        // A connection logs in once.
        let _ = self.login.set(login);
    }

    /// A token let it in.
    pub(super) fn let_in(&self, guest: Rc<Guest>) {
        // Once, as a connection logs in.
        let _ = self.guest.set(guest);
    }

    /// What it was let in to, if by a token.
    pub(super) fn guest(&self) -> Option<&Rc<Guest>> {
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
pub(super) struct SessionTable(RefCell<BTreeMap<ConnectionId, Rc<SessionEntry>>>);

impl SessionTable {
    pub(super) fn insert(&self, session: Rc<SessionEntry>) {
        self.0.borrow_mut().insert(session.connection, session);
    }

    pub(super) fn remove(&self, connection: ConnectionId) {
        self.0.borrow_mut().remove(&connection);
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<Rc<SessionEntry>> {
        self.0.borrow().get(&connection).cloned()
    }

    /// All of them, oldest first.
    pub(super) fn all(&self) -> Vec<Rc<SessionEntry>> {
        self.0.borrow().values().cloned().collect()
    }
}
