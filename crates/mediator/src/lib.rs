//! The mediator: who gets a volume, where it lies, at which rate, and until when.
//!
//! A client asks for a name, a size, a rate and a resilience, and gets a transfer plan that is booked on
//! every agent it names, or a refusal with the most that could be had. Data never passes here.
//!
//! ```text
//! client ──HTTP──▶ api ──▶ create, open, replace, end ──▶ store   (names, volumes, plans, bookings)
//!                                     │
//!                                     └──▶ book ──▶ link, one for each agent ──HTTP──▶ agent
//! ```
//!
//! Invariants: an answer leaves when all that it says is stored, here and on the agents. Whatever
//! the mediator asks of agents was stored before, or ends by itself: so it may be killed at any
//! instant, and at its next start goes on with what was under way, or takes it back (`end`). Running
//! clients need it for renewals only.
//!
//! The decisions are `netraid_control`'s: where something goes (`placement`), all or nothing
//! (`booking`), who may write (`lease`), what lets in (`token`). Here are its store, its agents and
//! its API. Does not move, keep, or see data.

mod access;
mod agents;
mod api;
mod audit;
mod book;
mod check;
mod choice;
mod clients;
mod core;
mod create;
mod end;
mod join;
mod link;
mod names;
mod open;
mod plan;
mod rename;
mod renew;
mod replace;
mod store;
mod takeover;
mod volume;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Instant,
};

use netraid_cluster::{
    Problem,
    access::{AccessError, AccessFile, AccessPlace, Bearer, Role, TokenDigest},
    mediator::NewAccess,
    serve::{Limits, ServeError, Server},
    store::{OpenError, Store},
    tls::{Identity, TlsError},
    vet::{UrlError, url_host},
};
use netraid_control::{keys::Rotation, units::MediatorId};

use crate::{
    access::AccessBook,
    agents::{Agents, Stored},
    audit::Audit,
    core::{Busy, Core, Counter, identity, load_keys},
    store::{NAME, STEPS, uint},
};

pub use api::openapi;

/// How a mediator is run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where its store is, and the access files that it writes at its first start.
    pub directory: PathBuf,
    /// Where its API listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The host or address under which others reach it; the address it listens on when none.
    pub advertise: Option<String>,
    /// How it is known that it is the mediator.
    pub tls: Tls,
    /// How long a plan lasts when nobody says, in milliseconds.
    pub term_ms: u64,
    /// What its API lets in.
    pub api: Limits,
}

/// How it is known that the mediator is itself.
#[derive(Debug, Clone)]
pub enum Tls {
    /// By an authority of its own, made at its first start.
    Own,
    /// By a certificate and key of the user's, and whom clients are to trust for it; in PEM.
    Given {
        /// The certificate with its chain.
        cert: PathBuf,
        /// Its key.
        key: PathBuf,
        /// Whom clients are to trust.
        authority: PathBuf,
    },
    /// Not at all: on loopback only.
    None,
}

/// Why there is no mediator.
#[derive(Debug, thiserror::Error)]
pub enum MediatorError {
    /// Its store cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What it stores cannot be read or written.
    #[error("the store in {}: {why}", directory.display())]
    Store {
        /// Where it is.
        directory: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// No TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// It does not listen.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Nobody would ask it at its URL.
    #[error("its URL '{url}': {why}; see --advertise")]
    Url {
        /// The URL.
        url: String,
        /// Why not.
        why: UrlError,
    },
    /// An access file cannot be read or written.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A file of no use is in the place of an access file, and there is no administrator.
    #[error("{0}; there is no administrator yet: remove the file, and the next start writes one")]
    Occupied(String),
    /// It cannot go on.
    #[error("{0}")]
    Ended(String),
}

/// A mediator that listens, and does not serve yet.
#[derive(Debug)]
pub struct Mediator {
    core: Arc<Core>,
    server: Server,
    url: String,
    admin: PathBuf,
}

impl Mediator {
    /// Opens a mediator's store, or makes one, and listens. At the first start the access files
    /// `admin.access`, `client.access` and `agent.access` are written beside the store.
    ///
    /// # Errors
    /// When that cannot be done.
    pub async fn open(config: Config) -> Result<Self, MediatorError> {
        let Config { directory, listen, advertise, tls, term_ms, api } = config;
        let store = Store::open(&directory, NAME, STEPS)?;
        let identity_of = |tls: &Tls| match tls {
            Tls::Own => {
                Identity::own(&directory, &tls_names(listen, advertise.as_deref())).map(Some)
            }
            Tls::Given { cert, key, authority } => Identity::given(cert, key, authority).map(Some),
            Tls::None => Ok(None),
        };
        let server = Server::bind(listen, identity_of(&tls)?)?.with_limits(api);
        let url = url(&server, advertise.as_deref());
        url_host(&url).map_err(|why| MediatorError::Url { url: url.clone(), why })?;
        let core = load(store, term_ms).await;
        let wrong = |why: String| MediatorError::Store { directory: directory.clone(), why };
        let core = Arc::new(core.map_err(wrong)?);
        core.rotate().await.map_err(|problem| wrong(problem.detail))?;
        let admin = directory.join("admin.access");
        write_access(&core, &directory, &url, server.authority()).await?;
        Ok(Self { core, server, url, admin })
    }

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> MediatorId {
        self.core.id
    }

    /// Where it is reached.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The access file of who may do everything.
    #[must_use]
    pub fn admin_access(&self) -> &Path {
        &self.admin
    }

    /// Serves until `stop` is done.
    ///
    /// # Errors
    /// When the listener fails, or the store does.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<(), MediatorError> {
        let ended = |problem: Problem| MediatorError::Ended(problem.detail);
        end::recover(&self.core).await.map_err(ended)?;
        let router = api::router(Arc::clone(&self.core));
        let known = Arc::clone(&self.core);
        let knows = move |token: &TokenDigest| known.access.find(token).is_some();
        let background = end::run(Arc::clone(&self.core));
        tokio::select! {
            served = self.server.serve(router, knows, stop) => {
                served.map_err(|error| MediatorError::Ended(error.to_string()))
            }
            problem = background => Err(ended(problem)),
            never = clients::tick(&self.core) => match never {},
        }
    }
}

/// Names in the mediator's own certificate.
fn tls_names(listen: SocketAddr, advertise: Option<&str>) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend((!listen.ip().is_unspecified()).then(|| listen.ip().to_string()));
    names.extend(advertise.map(|name| name.trim_matches(['[', ']']).to_owned()));
    names.sort_unstable();
    names.dedup();
    names
}

fn url(server: &Server, advertise: Option<&str>) -> String {
    let scheme = if server.authority().is_some() { "https" } else { "http" };
    match advertise {
        Some(name) => format!("{scheme}://{name}:{}", server.address().port()),
        None => server.url(),
    }
}

async fn load(store: Store, term_ms: u64) -> Result<Core, String> {
    let loaded = store.write(|connection| {
        let id = identity(connection)?;
        let (keys, access) = (load_keys(connection)?, AccessBook::load(connection)?);
        let agents = Stored::all(connection)?;
        let sql = "SELECT count(*) FROM names";
        let names = connection.query_row(sql, [], |row| uint(row, 0))?;
        Ok((id, keys, access, agents, names))
    });
    let (id, keys, access, stored, names) = loaded.await.map_err(|error| error.to_string())?;
    let agents = Arc::new(Agents::default());
    for (stored, wrong) in stored {
        agents.restore(stored, wrong);
    }
    Ok(Core {
        id,
        store,
        agents,
        access,
        keys: Mutex::new(keys),
        rotation: Rotation::default(),
        term_ms,
        names: AtomicU64::new(names),
        bookings: Counter::default(),
        busy_plans: Busy::default(),
        busy_volumes: Busy::default(),
        known: Mutex::default(),
        beliefs: Mutex::default(),
        told_aside: Mutex::default(),
        clients: Mutex::default(),
        began: Instant::now(),
        wake: tokio::sync::Notify::new(),
        audit: Audit::default(),
    })
}

/// Writes access files at the first start; later closes them to others, and writes only what changed of where
/// the mediator is.
async fn write_access(
    core: &Core,
    directory: &Path,
    url: &str,
    authority: Option<&str>,
) -> Result<(), MediatorError> {
    let find = |role: Role| {
        let path = directory.join(format!("{}.access", role.name()));
        find_access(core, &path).map(|found| (role, path, found))
    };
    // All of them before the first is written.
    let found = [find(Role::Admin)?, find(Role::Client)?, find(Role::Agent)?];
    for (role, path, found) in found {
        let file = |token| {
            let (mediator, authority) = (url.to_owned(), authority.map(str::to_owned));
            AccessFile { version: 1, mediator, authority, token }
        };
        match found {
            Found::Known(access)
                if access.mediator == url && access.authority.as_deref() == authority => {}
            Found::Known(access) => file(access.token).write(&path)?,
            Found::Other => {}
            // Whoever took it away wanted it gone; the first administrator is needed.
            Found::Nothing if !core.access.is_new(role) => {}
            Found::Nothing => {
                let place = AccessPlace::prepare(&path)?;
                let name = format!("first {}", role.name());
                let new = NewAccess { role, name, for_ms: None };
                let made = core.access.make(&core.store, &new, None).await;
                let made = made.map_err(|problem| MediatorError::Ended(problem.detail))?;
                if let Err(error) = place.write(&file(Bearer::from_text(made.token))) {
                    take_back(core, made.entry.id).await;
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}

/// Takes back a token that nobody has: the next start makes another one.
async fn take_back(core: &Core, id: u64) {
    let removed = core.store.write(move |connection| access::remove(connection, id).map(drop));
    match removed.await {
        Ok(()) => core.access.handle_removed(id),
        Err(error) => tracing::error!(
            "bearer token {id}, which nobody has, cannot be taken back: {error}; where it is that of the first \
             administrator, remove the store before the next start"
        ),
    }
}

/// What has the name of an access file at a start.
enum Found {
    /// No file.
    Nothing,
    /// A file with a token that is good here.
    Known(AccessFile),
    /// A file of this user with something else, which is left as it is.
    Other,
}

/// Looks at a file, and closes it to others. As long as there is no administrator, a file that is of no use
/// here is an error: nobody would have the mediator.
fn find_access(core: &Core, path: &Path) -> Result<Found, MediatorError> {
    let read = match AccessFile::close(path) {
        Ok(false) => return Ok(Found::Nothing),
        Ok(true) => AccessFile::read(path),
        // It is not closed, and not read either.
        Err(error) => Err(error),
    };
    let why = match read {
        Ok(access) if core.access.find(&access.token.digest()).is_some() => {
            return Ok(Found::Known(access));
        }
        Ok(_) => format!("{}: its token is not known here", path.display()),
        Err(error) => error.to_string(),
    };
    if core.access.is_new(Role::Admin) {
        return Err(MediatorError::Occupied(why));
    }
    tracing::warn!("left as it is: {why}");
    Ok(Found::Other)
}

/// A lock whose holder panicked is taken all the same: what it keeps is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
