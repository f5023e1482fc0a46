//! Where CHAP secrets come from: files and the environment. They are never shown.

mod lines;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
pub(crate) use lines::Form;
use lines::Lines;
use netraid_block::{TargetUri, redact_addresses};
use netraid_control::text::is_unseen;
pub(crate) use netraid_engine::target::{ChapCredentials as Credentials, Secret};

const VARIABLE: &str = "NETRAID_SECRET";
const MUTUAL_VARIABLE: &str = "NETRAID_MUTUAL_SECRET";

/// Options of every command that logs in to members.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SecretArgs {
    /// File with the members' CHAP secret, or with lines `user:secret` (a line that begins with `#` is a comment); a last line
    /// `mutual:user:secret` is what the members must prove in turn. Without it the secret
    /// is taken from NETRAID_SECRET_USER (user in capitals) or NETRAID_SECRET, and that of the
    /// members from NETRAID_MUTUAL_SECRET
    #[arg(long, value_name = "FILE", global = false)]
    pub(crate) secret_file: Option<PathBuf>,
    /// Log in also to members that ask for no proof although a secret is at hand: others may have
    /// taken their place
    #[arg(long)]
    pub(crate) allow_none: bool,
}

/// The secrets of all members' users.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    by_user: BTreeMap<String, Secret>,
    common: Option<Secret>,
    mutual: Option<Mutual>,
}

/// What members must prove (mutual CHAP).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutual {
    /// The name that they must give; none: any.
    pub(crate) user: Option<String>,
    pub(crate) secret: Secret,
}

impl Secrets {
    /// Reads the file, if there is one; the environment stands behind it.
    pub(crate) fn load(args: &SecretArgs) -> Result<Self> {
        let mut secrets = Self::default();
        if let Some(path) = &args.secret_file {
            let shown = path.display();
            let read = read_private(path).and_then(|text| Lines::read(&text));
            let found = read.with_context(|| format!("secret file {shown}"))?;
            tracing::info!("secret file {shown}: was read as {}", found.form.name());
            if let Some((at, Credentials { user, secret })) = found.mutual {
                let place = || format!("secret file {shown}: line {at}");
                too_short(&secret).with_context(place)?;
                secrets.mutual = Some(Mutual { user: Some(user), secret });
            }
            secrets.common = found.common.map(|(_, secret)| secret);
            let users = found.users.into_iter();
            secrets.by_user = users.map(|(_, one)| (one.user, one.secret)).collect();
        }
        if secrets.mutual.is_none() {
            let secret = variable(MUTUAL_VARIABLE)?;
            secrets.mutual = secret.map(|secret| Mutual { user: None, secret });
        }
        Ok(secrets)
    }

    /// What members must prove, if anything.
    pub(crate) const fn mutual(&self) -> Option<&Mutual> {
        self.mutual.as_ref()
    }

    /// The secret of the user of `uri`, as far as there is one: not of its address. None when the address
    /// names no user.
    pub(crate) fn known(&self, uri: &TargetUri) -> Result<Option<Secret>> {
        let Some(user) = &uri.user else { return Ok(None) };
        let known = self.by_user.get(user).or(self.common.as_ref()).cloned();
        known.map_or_else(|| from_environment(user), |known| Ok(Some(known)))
    }

    /// The secret to log in to `uri` with; `None` when it names no user.
    pub(crate) fn of(&self, uri: &TargetUri) -> Result<Option<Credentials>> {
        let Some(user) = &uri.user else { return Ok(None) };
        if let Some(secret) = &uri.secret {
            tracing::warn!(
                "the address {uri} carries its secret, which other users of this machine can \
                 read; put it into a file (--secret-file) or {VARIABLE}"
            );
            let secret = Secret::new(secret.as_bytes())?;
            return Ok(Some(Credentials { user: user.clone(), secret }));
        }
        match (self.known(uri)?, user.split_once(':')) {
            (Some(secret), _) => Ok(Some(Credentials { user: user.clone(), secret })),
            (None, None) => bail!(
                "no secret for user '{user}' of {uri}; give --secret-file FILE, or set {VARIABLE} \
                 or {}",
                variable_of(user)
            ),
            // What follows the colon may be the secret.
            (None, Some((name, _))) => bail!(
                "no secret for user '{name}:***' of {}; such a name goes on behind its ':', and a \
                 secret in an address stands behind a %; give --secret-file FILE, or set {VARIABLE}",
                redact_addresses(&uri.to_string())
            ),
        }
    }
}

/// What a CHAP file says: who may log in, and how the target proves itself.
#[derive(Debug)]
pub(crate) struct ChapFile {
    /// How it was read.
    pub(crate) form: Form,
    /// At least one.
    pub(crate) initiators: Vec<Credentials>,
    pub(crate) target: Option<Credentials>,
}

/// Most bytes of a file with secrets: some ten thousand users.
const FILE_MAX: u64 = 1 << 20;

/// Shortest secret that a target takes (RFC 7143, section 9.2.1: 96 bits).
const TARGET_SECRET_MIN: usize = 12;

/// Reads a CHAP file: `user:secret` in each line, or user and secret in two; then possibly
/// `mutual:user:secret` for the target itself.
pub(crate) fn read_chap_file(path: &Path) -> Result<ChapFile> {
    let read = || -> Result<ChapFile> {
        let found = Lines::read(&read_private(path)?)?;
        found.check_lengths(TARGET_SECRET_MIN)?;
        if let (true, Some((at, _))) = (found.users.is_empty(), &found.mutual) {
            bail!(
                "line {at}: is the target's own proof, and nobody could log in; write 'user:secret' above \
                 it, or 'incominguser NAME SECRET' for a user of the name mutual"
            );
        }
        if found.users.is_empty() {
            bail!(
                "has no name with a secret; write 'user:secret' in one line, or user and secret in \
                 two, and 'mutual:user:secret' below for the target's own proof"
            );
        }
        let initiators = found.users.into_iter().map(|(_, one)| one).collect();
        let target = found.mutual.map(|(_, own)| own);
        Ok(ChapFile { form: found.form, initiators, target })
    };
    read().with_context(|| format!("CHAP file {}", path.display()))
}

fn too_short(secret: &Secret) -> Result<()> {
    let len = secret.len();
    if len < TARGET_SECRET_MIN {
        bail!(
            "the members' secret has {len} bytes, fewer than {TARGET_SECRET_MIN}; choose a longer one"
        );
    }
    Ok(())
}

/// Reads a file with secrets; whoever calls it names the file in the error.
fn read_private(path: &Path) -> Result<String> {
    let shown = path.display();
    let unread = "cannot be read";
    netraid_private::check_link(path).context("is a symbolic link")?;
    // What is judged is what is read, whatever has the name by then.
    let mut file = fs::File::open(path).context(unread)?;
    let metadata = file.metadata().context(unread)?;
    let mode = metadata.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!("{shown} can be read by others (mode {:o}); chmod 600 it", mode & 0o777);
    }
    if let Err(error) = netraid_private::check_owner(&metadata) {
        tracing::warn!("{shown} {error}: its owner knows the secret, and may change it");
    }
    let mut bytes = Vec::new();
    file.by_ref().take(FILE_MAX + 1).read_to_end(&mut bytes).context(unread)?;
    if bytes.len() as u64 > FILE_MAX {
        bail!("has more than {FILE_MAX} bytes; give a file with secrets alone");
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        anyhow!("line {line}: is not UTF-8; save the file as UTF-8 without a byte order mark")
    })
}

fn from_environment(user: &str) -> Result<Option<Secret>> {
    let own = variable_of(user);
    variable(if env::var_os(&own).is_some() { &own } else { VARIABLE })
}

/// The secret in a variable of the environment; none where it is unset or empty.
fn variable(name: &str) -> Result<Option<Secret>> {
    let Some(found) = env::var_os(name).filter(|secret| !secret.is_empty()) else {
        return Ok(None);
    };
    secret_in(&found).map(Some).with_context(|| name.to_owned())
}

fn secret_in(found: &OsStr) -> Result<Secret> {
    let text = found.to_str().context("is not UTF-8; set it anew")?;
    if let Some(unseen) = text.chars().find(|c| is_unseen(*c)) {
        let number = u32::from(unseen);
        bail!(
            "has the character U+{number:04X}, which is not shown as itself; set it without that"
        );
    }
    Ok(Secret::new(text)?)
}

fn variable_of(user: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("{VARIABLE}_{}", user.chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn secret(text: &str) -> Secret {
        Secret::new(text).unwrap()
    }

    #[test]
    fn secret_files_may_say_what_members_must_prove() {
        let load = |text: &str| {
            let file = file(text);
            Secrets::load(&SecretArgs {
                secret_file: Some(file.path().into()),
                ..SecretArgs::default()
            })
        };
        let both = load("twelve bytes\nmutual:disk:other twelve\n").unwrap();
        assert_eq!(both.common, Some(secret("twelve bytes")));
        let expected = Mutual { user: Some("disk".into()), secret: secret("other twelve") };
        assert_eq!(both.mutual(), Some(&expected));
        let named = load("joe:twelve bytes\nmutual:disk:other twelve\n").unwrap();
        assert_eq!(named.by_user.get("joe"), Some(&secret("twelve bytes")));
        assert_eq!(named.mutual(), Some(&expected));
        assert!(load("mutual:twelve bytes\n").unwrap().mutual().is_none(), "a user of that name");
        let alone = load("mutual:disk:other twelve\n").unwrap();
        assert_eq!((alone.mutual(), alone.by_user.len()), (Some(&expected), 0));
        for bad in ["twelve bytes\nmutual:disk", "twelve bytes\nmutual:disk:short"] {
            assert!(load(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn chap_files_name_one_user_or_several() {
        let read = |text: &str| read_chap_file(file(text).path());
        let both = read("joe:twelve:bytes\nann:more twelve bytes\n").unwrap();
        assert_eq!(both.form, Form::Users);
        let users: Vec<_> = both.initiators.iter().map(|one| one.user.as_str()).collect();
        assert_eq!(users, ["joe", "ann"]);
        assert_eq!(both.initiators[0].secret, secret("twelve:bytes"));
        let two = read("iqn.2026-01.org.x:y\ntwelve bytes\nmutual:tgt:other:secret\n").unwrap();
        assert_eq!((two.form, two.initiators.len()), (Form::TwoLines, 1));
        assert_eq!(two.initiators[0].user, "iqn.2026-01.org.x:y");
        let own = two.target.unwrap();
        assert_eq!((own.user.as_str(), own.secret), ("tgt", secret("other:secret")));
        // Without a name of the target it is a user of that name.
        assert_eq!(read("mutual:twelve bytes\n").unwrap().initiators[0].user, "mutual");
        let alone = format!("{:#}", read("mutual:tgt:twelve bytes\n").unwrap_err());
        assert!(alone.contains("line 1: is the target's own proof"), "{alone}");
        for bad in [
            "",
            "twelve bytes alone",
            "joe:elevenbytes",
            "a\nelevenbytes",
            "joe:twelve:bytes\nmutual:tgt:elevenbytes",
            "joe:twelve:bytes\nann:elevenbytes",
        ] {
            let error = format!("{:#}", read(bad).unwrap_err());
            assert!(error.contains("CHAP file") && !error.contains("eleven"), "{error}");
        }
    }

    #[test]
    fn the_users_own_secret_goes_before_the_common_one() {
        let uri = TargetUri::parse("iscsi://ann@h/t/0").unwrap();
        let path = |file: &tempfile::NamedTempFile| SecretArgs {
            secret_file: Some(file.path().into()),
            ..SecretArgs::default()
        };
        let many = file("joe:1\nann:2\n");
        let found = Secrets::load(&path(&many)).unwrap().of(&uri).unwrap().unwrap();
        assert_eq!(found.secret, secret("2"));
        let single = file("3\n");
        let found = Secrets::load(&path(&single)).unwrap().of(&uri).unwrap().unwrap();
        assert!(!format!("{found:?}").contains('3'));
        assert_eq!(found.secret, secret("3"));
        let missing = Secrets::default().of(&uri).unwrap_err().to_string();
        assert!(missing.contains("NETRAID_SECRET_ANN"), "{missing}");
        assert_eq!(variable_of("iqn.x:y"), "NETRAID_SECRET_IQN_X_Y");
        let typed = TargetUri::parse("iscsi://iqn.2026-01.x:joe:hidden@h/t/0").unwrap();
        let error = Secrets::default().of(&typed).unwrap_err().to_string();
        assert!(!error.to_lowercase().contains("hidden"), "{error}");
        assert!(error.contains("iqn.2026-01.x:***@h:3260/t/0") && error.contains('%'), "{error}");
    }

    #[test]
    fn files_and_variables_that_nobody_could_have_meant_are_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"# x\njoe:hidden\xff\n").unwrap();
        let error = format!("{:#}", read_chap_file(file.path()).unwrap_err());
        assert!(error.contains("line 2: is not UTF-8") && !error.contains("hidden"), "{error}");
        let error = format!("{:#}", read_chap_file(Path::new("/dev/zero")).unwrap_err());
        assert!(error.contains("more than 1048576 bytes"), "{error}");
        assert_eq!(secret_in(OsStr::new("twelve bytes")).unwrap(), secret("twelve bytes"));
        for bad in ["\u{feff}hidden", "hidden\r", "hid\nden"] {
            let error = secret_in(OsStr::new(bad)).unwrap_err().to_string();
            assert!(error.contains("U+") && !error.contains("hid"), "{error}");
        }
    }
}
