//! Names: a tree of directories, of which each name is a row under its directory's id. So a page is
//! read from where it begins, however many names there are, and a directory with all that is in it
//! gets another name by a change of one row.

use netraid_cluster::{
    Code, Problem,
    mediator::{Entry, Kind, NAME_LEN_MAX, PAGE_MAX, PATH_LEN_MAX, Page},
};
use netraid_control::units::{Moment, VolumeId};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::store::{Sql, from_word, int, moment, one, uint, word};

/// The uppermost directory.
pub(crate) const ROOT: VolumeId = VolumeId([0; 16]);
/// Directories in directories, at most.
const DEPTH_MAX: usize = 128;
/// Begins the name of an upload as it is stored: no path has a control character, so no user can say
/// such a name, and an upload's name is as long as its data's name may be, and this.
const UPLOAD: char = '\u{1}';
/// What comes before every name that a user can give.
const BEFORE_NAMES: &str = "\u{1f}";

/// An absolute path, whose names are none of `.`, `..` and nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    parts: Vec<String>,
    /// The upload of that name is meant.
    is_upload: bool,
}

impl Path {
    /// The path that a user says; of the upload of that name, if that is meant.
    pub(crate) fn new(text: &str, is_upload: bool) -> Result<Self, Problem> {
        Ok(Self { is_upload, ..Self::parse(text)? })
    }

    /// The path that a user says.
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let wrong = |why: &str| {
            let shown: String = text.chars().take(80).collect();
            Problem::invalid(format!("path '{}': {why}", shown.escape_debug()))
        };
        if text.len() > PATH_LEN_MAX {
            return Err(wrong(&format!("{} bytes, {PATH_LEN_MAX} at most", text.len())));
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err(wrong("begins with /"));
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let parts: Vec<String> = match rest {
            "" => Vec::new(),
            rest => rest.split('/').map(str::to_owned).collect(),
        };
        if parts.len() > DEPTH_MAX {
            return Err(wrong(&format!("{} names deep, {DEPTH_MAX} at most", parts.len())));
        }
        for part in &parts {
            if matches!(part.as_str(), "" | "." | "..") {
                return Err(wrong("a name in it is empty, '.' or '..'"));
            }
            if part.len() > NAME_LEN_MAX {
                return Err(wrong(&format!("a name in it is longer than {NAME_LEN_MAX} bytes")));
            }
            if part.chars().any(char::is_control) {
                return Err(wrong("a control character"));
            }
        }
        Ok(Self { parts, is_upload: false })
    }

    /// Its directory's names, and its own; none for the uppermost directory.
    pub(crate) fn split(&self) -> Option<(&[String], Own<'_>)> {
        let own = |name| Own { name, is_upload: self.is_upload };
        self.parts.split_last().map(|(name, above)| (above, own(name)))
    }

    /// The path as a user says it.
    pub(crate) fn text(&self) -> String {
        match self.parts.is_empty() {
            true => "/".to_owned(),
            false => self.parts.iter().flat_map(|part| ["/", part]).collect(),
        }
    }

    /// What labels of segments say: an upload's begins with [`UPLOAD`] in the place of the first `/`, so
    /// that nobody who finds the label takes a part for the whole.
    pub(crate) fn label(&self) -> String {
        let text = self.text();
        match (self.is_upload, text.strip_prefix('/')) {
            (true, Some(rest)) => format!("{UPLOAD}{rest}"),
            _ => text,
        }
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.is_upload { "the upload of " } else { "" };
        write!(f, "{what}{}", self.text())
    }
}

/// A name within its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Own<'a> {
    pub(crate) name: &'a str,
    /// The upload of that name is meant.
    pub(crate) is_upload: bool,
}

impl Own<'_> {
    fn stored(self) -> String {
        match self.is_upload {
            true => format!("{UPLOAD}{}", self.name),
            false => self.name.to_owned(),
        }
    }
}

/// A row.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub(crate) parent: VolumeId,
    /// As a user says it.
    pub(crate) name: String,
    /// Nobody finds it by its name before all of it is there.
    pub(crate) is_upload: bool,
    pub(crate) id: VolumeId,
    pub(crate) kind: Kind,
    pub(crate) capacity_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) made: Moment,
    pub(crate) changed: Moment,
    pub(crate) is_pending: bool,
}

const COLUMNS: &str = "parent, name, id, kind, capacity, length, made, changed, is_pending";

impl Name {
    fn read(row: &Row<'_>) -> Sql<Self> {
        let stored = row.get_ref(1)?.as_str()?;
        let upload = stored.strip_prefix(UPLOAD);
        Ok(Self {
            parent: VolumeId(row.get(0)?),
            name: upload.unwrap_or(stored).to_owned(),
            is_upload: upload.is_some(),
            id: VolumeId(row.get(2)?),
            kind: from_word(&row.get::<_, String>(3)?)?,
            capacity_bytes: uint(row, 4)?,
            length_bytes: uint(row, 5)?,
            made: moment(row, 6)?,
            changed: moment(row, 7)?,
            is_pending: row.get(8)?,
        })
    }

    /// A new one.
    pub(crate) fn new(
        parent: VolumeId,
        own: Own<'_>,
        id: VolumeId,
        kind: Kind,
        now: Moment,
    ) -> Self {
        Self {
            parent,
            name: own.name.to_owned(),
            is_upload: own.is_upload,
            id,
            kind,
            capacity_bytes: 0,
            length_bytes: 0,
            made: now,
            changed: now,
            is_pending: false,
        }
    }

    fn own(&self) -> Own<'_> {
        Own { name: &self.name, is_upload: self.is_upload }
    }

    /// What a client sees of it, without how it is stored.
    pub(crate) fn entry(&self, path: String) -> Entry {
        let Self { id, kind, capacity_bytes, length_bytes, made, changed, .. } = *self;
        let (stored, upload_bytes) = (None, None);
        Entry { path, kind, id, capacity_bytes, length_bytes, made, changed, stored, upload_bytes }
    }

    pub(crate) fn insert(&self, connection: &Connection) -> Sql<()> {
        let sql = "INSERT INTO names VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let values = params![
            self.parent.0,
            self.own().stored(),
            self.id.0,
            word(&self.kind)?,
            int(self.capacity_bytes),
            int(self.length_bytes),
            int(self.made.0),
            int(self.changed.0),
            self.is_pending,
        ];
        connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// Writes what may change beside the name.
    pub(crate) fn update(&self, connection: &Connection) -> Sql<()> {
        let sql = "UPDATE names SET capacity = ?2, length = ?3, changed = ?4, is_pending = ?5 \
                   WHERE id = ?1";
        let (capacity, length) = (int(self.capacity_bytes), int(self.length_bytes));
        let values = params![self.id.0, capacity, length, int(self.changed.0), self.is_pending];
        one(connection.prepare_cached(sql)?.execute(values)?)?;
        Ok(())
    }
}

/// What is there by that name in a directory, pending or not.
pub(crate) fn child(connection: &Connection, parent: VolumeId, own: Own<'_>) -> Sql<Option<Name>> {
    let sql = format!("SELECT {COLUMNS} FROM names WHERE parent = ?1 AND name = ?2");
    let mut query = connection.prepare_cached(&sql)?;
    query.query_row(params![parent.0, own.stored()], Name::read).optional()
}

/// The row of an id.
pub(crate) fn by_id(connection: &Connection, id: VolumeId) -> Sql<Option<Name>> {
    let sql = format!("SELECT {COLUMNS} FROM names WHERE id = ?1");
    connection.prepare_cached(&sql)?.query_row([id.0], Name::read).optional()
}

/// The directory of these names.
pub(crate) fn directory(
    connection: &Connection,
    parts: &[String],
) -> Sql<Result<VolumeId, Problem>> {
    let mut at = ROOT;
    for (depth, part) in parts.iter().enumerate() {
        let shown = || Path { parts: parts[..=depth].to_vec(), is_upload: false };
        match child(connection, at, plain(part))? {
            Some(name) if name.kind == Kind::Directory => at = name.id,
            Some(_) => return Ok(Err(Problem::invalid(format!("{} is no directory", shown())))),
            None => return Ok(Err(absent(&shown()))),
        }
    }
    Ok(Ok(at))
}

/// A name that a user finds.
const fn plain(name: &str) -> Own<'_> {
    Own { name, is_upload: false }
}

/// What has that path, and is not pending.
pub(crate) fn find(connection: &Connection, path: &Path) -> Sql<Result<Name, Problem>> {
    let Some((above, name)) = path.split() else {
        let root = Name::new(ROOT, plain(""), ROOT, Kind::Directory, Moment(0));
        return Ok(Ok(root));
    };
    let parent = match directory(connection, above)? {
        Ok(parent) => parent,
        Err(problem) => return Ok(Err(problem)),
    };
    let found = child(connection, parent, name)?.filter(|name| !name.is_pending);
    Ok(found.ok_or_else(|| absent(path)))
}

pub(crate) fn absent(path: &Path) -> Problem {
    Problem::absent(match path.is_upload {
        true => format!("{path}: nothing of that name is being uploaded"),
        false => format!("{path}: there is no such thing"),
    })
}

pub(crate) fn exists(path: &Path) -> Problem {
    Problem::new(Code::Exists, format!("{path} is there already"))
}

/// Whether something is of the kind that is meant, where one is: else what it is, and what is for it.
pub(crate) fn check_kind(name: &Name, path: &Path, wanted: Option<Kind>) -> Result<(), Problem> {
    if wanted.is_none_or(|wanted| wanted == name.kind) {
        return Ok(());
    }
    let what = match (name.kind, name.is_upload) {
        (Kind::Directory, _) => "a directory: `netraid ls` lists it, `netraid rm` removes it",
        (Kind::Volume, _) => {
            "a volume: `netraid volume attach` exports it, `netraid volume rm` removes it"
        }
        (Kind::Data, false) => {
            "data: `netraid get` fetches it, `netraid put --force` replaces it, `netraid rm` removes it"
        }
        (Kind::Data, true) => {
            "data: `netraid put --resume` goes on with it, `netraid rm --upload` removes it"
        }
    };
    Err(Problem::invalid(format!("{path} is {what}")))
}

/// The refusal of who means something by its id that does not have that path any more.
pub(crate) fn other(path: &Path) -> Problem {
    Problem::new(Code::Conflict, format!("{path} is something else by now"))
}

/// The path of an id.
pub(crate) fn path_of(connection: &Connection, id: VolumeId) -> Sql<Option<Path>> {
    let mut parts = Vec::new();
    let mut is_upload = false;
    let mut at = id;
    while at != ROOT {
        let Some(name) = by_id(connection, at)? else { return Ok(None) };
        // Nothing is below one.
        is_upload |= name.is_upload;
        parts.push(name.name);
        at = name.parent;
    }
    parts.reverse();
    Ok(Some(Path { parts, is_upload }))
}

/// The directory of these names; those that are missing are made, from above. Refuses before it makes
/// any.
pub(crate) fn make_directories(
    connection: &Connection,
    parts: &[String],
    now: Moment,
    mut draw: impl FnMut() -> VolumeId,
) -> Sql<Result<(VolumeId, Vec<VolumeId>), Problem>> {
    let mut at = ROOT;
    let mut made = Vec::new();
    for part in parts {
        at = match child(connection, at, plain(part))? {
            Some(name) if name.kind == Kind::Directory => name.id,
            Some(name) => {
                return Ok(Err(Problem::invalid(format!("'{}' is no directory", name.name))));
            }
            None => {
                let name = Name::new(at, plain(part), draw(), Kind::Directory, now);
                name.insert(connection)?;
                made.push(name.id);
                name.id
            }
        };
    }
    Ok(Ok((at, made)))
}

/// The SQL of a page of names after one and before another, whose plan a test looks at.
pub(crate) const PAGE: &str = "SELECT parent, name, id, kind, capacity, length, made, changed, is_pending \
    FROM names WHERE parent = ?1 AND name > ?2 AND name < ?3 AND is_pending = 0 ORDER BY name LIMIT ?4";
/// What comes after every name: the largest character, more often than a name has characters.
fn after_names() -> String {
    "\u{10ffff}".repeat(NAME_LEN_MAX)
}

/// A part of a directory: its uploads, or all else.
pub(crate) fn page(
    connection: &Connection,
    path: &Path,
    (after, limit): (Option<&str>, Option<u32>),
    uploads: bool,
) -> Sql<Result<Page, Problem>> {
    let parent = match find(connection, path)? {
        Ok(name) if name.kind == Kind::Directory => name.id,
        Ok(_) => return Ok(Err(Problem::invalid(format!("{path} is no directory")))),
        Err(problem) => return Ok(Err(problem)),
    };
    let limit = limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
    let mut query = connection.prepare_cached(PAGE)?;
    let own = Own { name: after.unwrap_or(""), is_upload: uploads };
    let (after, before) = match uploads {
        true => (own.stored(), BEFORE_NAMES.to_owned()),
        false => (own.stored().max(BEFORE_NAMES.to_owned()), after_names()),
    };
    let values = params![parent.0, after, before, limit + 1];
    let rows = query.query_map(values, Name::read)?.collect::<Sql<Vec<_>>>()?;
    let limit = limit as usize;
    let has_more = rows.len() > limit;
    let above = if path.parts.is_empty() { String::new() } else { path.text() };
    let entry = |name: &Name| name.entry(format!("{above}/{}", name.name));
    let entries: Vec<Entry> = rows.iter().take(limit).map(entry).collect();
    let next = has_more.then(|| rows[limit - 1].name.clone());
    Ok(Ok(Page { entries, next }))
}

/// What is to get another name, and where.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) name: Name,
    parent: VolumeId,
    new: String,
    /// What has that name now.
    pub(crate) there: Option<Name>,
}

/// Looks whether something can have another name, if nothing else has it. Changes nothing.
pub(crate) fn look_to_move(
    connection: &Connection,
    from: &Path,
    to: &Path,
    id: Option<VolumeId>,
) -> Sql<Result<Moved, Problem>> {
    let (Some(_), Some((above, new))) = (from.split(), to.split()) else {
        return Ok(Err(Problem::invalid("the uppermost directory keeps its name")));
    };
    let name = match find(connection, from)? {
        Ok(name) => name,
        Err(problem) => return Ok(Err(problem)),
    };
    if id.is_some_and(|id| id != name.id) {
        return Ok(Err(other(from)));
    }
    let parent = match directory(connection, above)? {
        Ok(parent) => parent,
        Err(problem) => return Ok(Err(problem)),
    };
    let there = child(connection, parent, new)?;
    let new = new.name;
    // A directory within itself could not be reached any more.
    let mut at = parent;
    while at != ROOT {
        if at == name.id {
            return Ok(Err(Problem::invalid(format!("{to} is in {from} itself"))));
        }
        at = by_id(connection, at)?.map_or(ROOT, |name| name.parent);
    }
    Ok(Ok(Moved { name, parent, new: new.to_owned(), there }))
}

/// Gives something its other name, which nothing has any more.
pub(crate) fn set(connection: &Connection, moved: Moved) -> Sql<Name> {
    let Moved { name, parent, new, .. } = moved;
    let sql = "UPDATE names SET parent = ?2, name = ?3 WHERE id = ?1";
    one(connection.prepare_cached(sql)?.execute(params![name.id.0, parent.0, new])?)?;
    Ok(Name { parent, name: new, is_upload: false, ..name })
}

/// Takes back directories that were made for something which is not there, as far as nobody uses them.
/// How many.
pub(crate) fn unmake_directories(connection: &Connection, made: &[VolumeId]) -> Sql<u64> {
    let mut unmade = 0;
    for id in made.iter().rev() {
        if by_id(connection, *id)?.is_none() || anything_in(connection, *id)?.is_some() {
            break;
        }
        remove(connection, *id)?;
        unmade += 1;
    }
    Ok(unmade)
}

/// What is in a directory, if anything: a name that a user finds, where there is one.
pub(crate) fn anything_in(connection: &Connection, id: VolumeId) -> Sql<Option<Name>> {
    let sql = format!("SELECT {COLUMNS} FROM names WHERE parent = ?1 ORDER BY name DESC LIMIT 1");
    connection.prepare_cached(&sql)?.query_row([id.0], Name::read).optional()
}

pub(crate) fn remove(connection: &Connection, id: VolumeId) -> Sql<()> {
    connection.prepare_cached("DELETE FROM names WHERE id = ?1")?.execute([id.0]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::STEPS;

    fn steps(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> i32 {
        let mut query = connection.prepare(sql).unwrap();
        let rows = query.query_map(values, Name::read).unwrap().count();
        assert!(rows > 0);
        query.get_status(rusqlite::StatementStatus::VmStep)
    }

    #[test]
    fn directories_are_taken_back_as_far_as_they_are_empty() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(STEPS[0]).unwrap();
        let mut number = 0_u128;
        let mut draw = || {
            number += 1;
            VolumeId(number.to_be_bytes())
        };
        let parts = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        let now = Moment(0);
        let mut make = |text: &str| {
            make_directories(&connection, &parts(text), now, &mut draw).unwrap().unwrap().1
        };
        let kept = make("a");
        let made = make("a/b/c/d");
        assert_eq!((kept.len(), made.len()), (1, 3));
        let other = make("a/b/other");
        assert_eq!(unmake_directories(&connection, &made).unwrap(), 2, "another one is in b");
        assert!(anything_in(&connection, other[0]).unwrap().is_none());
        assert_eq!(unmake_directories(&connection, &other).unwrap(), 1);
        assert_eq!(unmake_directories(&connection, &made[..1]).unwrap(), 1);
        assert!(anything_in(&connection, kept[0]).unwrap().is_none());
        assert!(by_id(&connection, kept[0]).unwrap().is_some(), "it was there before");
    }

    #[test]
    fn a_page_costs_the_same_however_many_names_there_are() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(STEPS[0]).unwrap();
        let mut costs = Vec::new();
        let mut number: u128 = 1;
        for count in [2_000, 100_000] {
            connection.execute_batch("BEGIN").unwrap();
            while number < count {
                let (id, name) = (VolumeId(number.to_be_bytes()), format!("{number:06}"));
                let own = Own { name: &name, is_upload: false };
                Name::new(ROOT, own, id, Kind::Data, Moment(0)).insert(&connection).unwrap();
                number += 1;
            }
            connection.execute_batch("COMMIT").unwrap();
            let values = params![ROOT.0, "001000", after_names(), 900];
            costs.push(steps(&connection, PAGE, values));
        }
        assert_eq!(costs[0], costs[1]);
        // All of them, page after page.
        let (mut seen, mut after) = (0, None);
        loop {
            let root = Path::parse("/").unwrap();
            let page = page(&connection, &root, (after.as_deref(), None), false);
            let page = page.unwrap().unwrap();
            seen += page.entries.len();
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, 99_999);
    }
}
