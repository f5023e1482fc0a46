//! What the lines of a secret file mean. Nothing of a line is in an error but its number: what is taken
//! for a name may be a secret.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::{Credentials, Secret};

/// How the lines were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `user:secret`, or `incominguser USER SECRET` of tgt, a user each.
    Users,
    /// A user, and below it the secret.
    TwoLines,
    /// One secret for all users.
    Secret,
}

impl Form {
    /// The form as documentation has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Users => "a user and a secret in each line",
            Self::TwoLines => "a user, and the secret in the next line",
            Self::Secret => "one secret",
        }
    }
}

/// What a secret file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) form: Form,
    /// In the order of the file.
    pub(super) users: Vec<Credentials>,
    pub(super) common: Option<Secret>,
    /// The target's own proof.
    pub(super) mutual: Option<Credentials>,
}

/// A line that says something, and its number.
type Line<'t> = (usize, &'t str);

impl Lines {
    /// Reads the text of a file. Empty lines, and those that begin with `#`, say nothing.
    pub(super) fn read(text: &str) -> Result<Self> {
        ensure!(
            !text.starts_with('\u{feff}'),
            "line 1: begins with a byte order mark (BOM), which would be a part of the name; save the file as \
             UTF-8 without one"
        );
        let says = |(_, line): &Line<'_>| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with('#')
        };
        let mut lines: Vec<Line<'_>> = (1..).zip(text.lines()).filter(says).collect();
        let mut mutual = take_mutual(&mut lines)?;
        let mut users = Vec::new();
        let tgt = take_tgt(&mut lines, &mut users, &mut mutual)?;
        let mut found = Self { form: Form::Users, users, common: None, mutual };
        match lines[..] {
            [] if tgt => {}
            [] => bail!("has no line with a secret; write user:secret"),
            [(at, secret)] if !tgt && !secret.contains(':') => {
                found.form = Form::Secret;
                found.common = Some(secret_of(at, secret)?);
            }
            [(_, user), (at, secret)] if !tgt && is_name(user, secret)? => {
                found.form = Form::TwoLines;
                found.users =
                    vec![Credentials { user: user.into(), secret: secret_of(at, secret)? }];
            }
            _ => {
                for (at, line) in lines {
                    found.users.push(pair(at, line)?);
                }
            }
        }
        check_once(&found.users)?;
        Ok(found)
    }

    /// Refuses secrets of less than `least` bytes.
    pub(super) fn check_lengths(&self, least: usize) -> Result<()> {
        let all = self.users.iter().chain(&self.mutual).map(|one| &one.secret);
        for secret in all.chain(&self.common) {
            ensure!(
                secret.len() >= least,
                "has a secret of {} bytes, fewer than {least}; choose a longer one",
                secret.len()
            );
        }
        Ok(())
    }
}

/// Takes a last line `mutual:user:secret` that others stand before.
fn take_mutual(lines: &mut Vec<Line<'_>>) -> Result<Option<Credentials>> {
    let Some(((at, last), first)) = lines.split_last().filter(|(_, first)| !first.is_empty())
    else {
        return Ok(None);
    };
    if let Some((at, _)) = first.iter().find(|(_, line)| line.starts_with("mutual:")) {
        bail!("line {at}: 'mutual:user:secret' stands in the last line; move it there");
    }
    let Some(own) = last.strip_prefix("mutual:") else { return Ok(None) };
    let own = pair(*at, own)?;
    lines.pop();
    Ok(Some(own))
}

/// Takes lines as tgt's configuration has them; whether there were any.
fn take_tgt(
    lines: &mut Vec<Line<'_>>,
    users: &mut Vec<Credentials>,
    mutual: &mut Option<Credentials>,
) -> Result<bool> {
    let mut rest = Vec::new();
    for (at, line) in lines.drain(..) {
        let mut words = line.split_whitespace();
        let kind = words.next().filter(|word| ["incominguser", "outgoinguser"].contains(word));
        let Some(kind) = kind.filter(|_| words.clone().next().is_some()) else {
            rest.push((at, line));
            continue;
        };
        let (Some(user), Some(secret), None) = (words.next(), words.next(), words.next()) else {
            bail!("line {at}: is not '{kind} USER SECRET'");
        };
        let one = Credentials { user: user.into(), secret: secret_of(at, secret)? };
        if kind == "incominguser" {
            users.push(one);
        } else {
            ensure!(mutual.is_none(), "line {at}: is a second secret of the target; it has one");
            *mutual = Some(one);
        }
    }
    *lines = rest;
    Ok(!users.is_empty() || mutual.is_some() && lines.is_empty())
}

/// Whether the first of two lines is a name, and the second its secret.
fn is_name(first: &str, second: &str) -> Result<bool> {
    let is_iscsi_name = ["iqn.", "eui.", "naa."].iter().any(|kind| first.starts_with(kind));
    match (first.contains(':'), second.contains(':')) {
        (false, _) => Ok(true),
        (true, false) => Ok(is_iscsi_name),
        (true, true) if is_iscsi_name => bail!(
            "can be read as a name and its secret, or as two users; write 'incominguser NAME SECRET' \
             in one line for each user"
        ),
        (true, true) => Ok(false),
    }
}

/// `user:secret`.
fn pair(at: usize, line: &str) -> Result<Credentials> {
    let parts =
        line.split_once(':').filter(|(user, secret)| !user.is_empty() && !secret.is_empty());
    let Some((user, secret)) = parts else {
        bail!(
            "line {at}: is not 'user:secret'; write that, or user and secret in two lines and \
             nothing else, and the target's own proof as 'mutual:user:secret' in the last line"
        );
    };
    Ok(Credentials { user: user.into(), secret: secret_of(at, secret)? })
}

fn secret_of(at: usize, secret: &str) -> Result<Secret> {
    match Secret::new(secret) {
        Ok(secret) => Ok(secret),
        Err(error) => bail!("line {at}: {error}"),
    }
}

fn check_once(users: &[Credentials]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for (at, one) in (1..).zip(users) {
        if let Some(before) = seen.insert(&one.user, at) {
            bail!("users {before} and {at} have the same name; give each its own");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(text: &str) -> (Form, Vec<(String, Secret)>) {
        let Lines { form, users, .. } = Lines::read(text).unwrap();
        (form, users.into_iter().map(|one| (one.user, one.secret)).collect())
    }

    fn one(user: &str, secret: &str) -> (String, Secret) {
        (user.into(), Secret::new(secret).unwrap())
    }

    #[test]
    fn several_users_are_read_as_such_among_comments() {
        let joe = one("joe", "first:secret1");
        let ann = one("ann", "othersecret2");
        let both = (Form::Users, vec![joe.clone(), ann.clone()]);
        assert_eq!(users("joe:first:secret1\nann:othersecret2\n"), both);
        assert_eq!(users("# users\n\njoe:first:secret1\r\n  # more\nann:othersecret2"), both);
        assert_eq!(users("# one\njoe:first:secret1\n"), (Form::Users, vec![joe.clone()]));
        let text = "incominguser joe first:secret1\n  incominguser\tann othersecret2\n";
        assert_eq!(users(text), both);
        let three = "joe:first:secret1\nann:othersecret2\nmutual:tgt:the targets own\n";
        assert_eq!(users(three), both);
        let mutual = Lines::read(three).unwrap().mutual.unwrap();
        assert_eq!((mutual.user, mutual.secret), one("tgt", "the targets own"));
        let own = Lines::read("incominguser a b\noutgoinguser c d\n").unwrap().mutual.unwrap();
        assert_eq!((own.user, own.secret), one("c", "d"));
    }

    #[test]
    fn a_name_and_its_secret_may_have_a_line_each() {
        for (text, user, secret) in [
            ("joe\ntwelve:bytes\n", "joe", "twelve:bytes"),
            ("# x\njoe\n# y\ntwelve bytes\n", "joe", "twelve bytes"),
            ("iqn.2026-01.org.x:y\ntwelve bytes\n", "iqn.2026-01.org.x:y", "twelve bytes"),
        ] {
            assert_eq!(users(text), (Form::TwoLines, vec![one(user, secret)]));
        }
        assert_eq!(Lines::read("just a secret\n").unwrap().form, Form::Secret);
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused_and_no_line_is_shown() {
        for bad in [
            "",
            "# hidden\n",
            "\u{feff}joe:hidden",
            "joe:hidden\nhidden",
            "joe:hidden\nann hidden",
            "iqn.x:hidden1\nann:hidden2",
            "joe:",
            ":hidden",
            "joe:hidden\njoe:hidden2",
            "mutual:a:hidden\njoe:hidden",
            "joe:hidden\nmutual:hidden",
            "incominguser joe\njoe:hidden",
            "incominguser joe hidden more",
            "a\nhidden\nhidden\n",
        ] {
            let error = Lines::read(bad).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{bad}: {error}");
        }
        let short = Lines::read("joe:hidden").unwrap();
        let error = short.check_lengths(12).unwrap_err().to_string();
        assert!(error.contains("6 bytes") && !error.contains("hidden"), "{error}");
    }
}
