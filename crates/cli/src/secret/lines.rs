//! What the lines of a secret file mean. Nothing of a line is in an error but its number: what is taken
//! for a name may be a secret.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use netraid_control::text::is_unseen;

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

/// What a secret file says; with each part the number of its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) form: Form,
    /// In the order of the file.
    pub(super) users: Vec<(usize, Credentials)>,
    pub(super) common: Option<(usize, Secret)>,
    /// The target's own proof.
    pub(super) mutual: Option<(usize, Credentials)>,
}

/// A line that says something, and its number.
type Line<'t> = (usize, &'t str);

/// Begins the line of the target's own proof.
const MUTUAL: &str = "mutual:";

impl Lines {
    /// Reads the text of a file. Empty lines, and those that begin with `#`, say nothing.
    pub(super) fn read(text: &str) -> Result<Self> {
        if let Some((at, _)) = (1..).zip(text.split('\n')).find(|(_, line)| line.contains(MARK)) {
            bail!(
                "line {at}: has a byte order mark (BOM), which would be a part of the name or secret; save the \
                 file as UTF-8 without one"
            );
        }
        let says = |(_, line): &Line<'_>| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with('#')
        };
        let mut lines: Vec<Line<'_>> = (1..).zip(text.lines()).filter(says).collect();
        let mut mutual = take_mutual(&mut lines)?;
        let is_mutual_alone = mutual.is_some() && lines.is_empty();
        let mut users = Vec::new();
        let tgt = take_tgt(&mut lines, &mut users, &mut mutual)?;
        let mut found = Self { form: Form::Users, users, common: None, mutual };
        match lines[..] {
            [] if tgt || is_mutual_alone => {}
            [] => bail!("has no line with a secret; write user:secret"),
            [(at, secret)] if !tgt && !secret.contains(':') => {
                found.form = Form::Secret;
                found.common = Some((at, plain_secret(at, secret)?));
            }
            [(above, user), (at, secret)] if !tgt && is_name(user, secret)? => {
                found.form = Form::TwoLines;
                let one = Credentials {
                    user: plain_name(above, user)?,
                    secret: plain_secret(at, secret)?,
                };
                found.users = vec![(at, one)];
            }
            _ => {
                for (at, line) in lines {
                    found.users.push((at, pair(at, line)?));
                }
            }
        }
        check_once(&found.users)?;
        Ok(found)
    }

    /// Refuses secrets of less than `least` bytes.
    pub(super) fn check_lengths(&self, least: usize) -> Result<()> {
        let all = self.users.iter().chain(&self.mutual).map(|(at, one)| (*at, &one.secret));
        for (at, secret) in all.chain(self.common.iter().map(|(at, secret)| (*at, secret))) {
            ensure!(
                secret.len() >= least,
                "line {at}: has a secret of {} bytes, fewer than {least}; choose a longer one",
                secret.len()
            );
        }
        Ok(())
    }
}

/// A byte order mark, as editors put it before a text.
const MARK: char = '\u{feff}';

/// Takes a last line `mutual:user:secret`. Alone, `mutual:secret` is a user of that name.
fn take_mutual(lines: &mut Vec<Line<'_>>) -> Result<Option<(usize, Credentials)>> {
    let own_of = |line: &str| line.trim_start().strip_prefix(MUTUAL).map(str::len);
    let Some(((at, last), first)) = lines.split_last() else { return Ok(None) };
    if let Some((at, _)) = first.iter().find(|(_, line)| own_of(line).is_some()) {
        bail!("line {at}: 'mutual:user:secret' stands in the last line; move it there");
    }
    let Some(len) = own_of(last) else { return Ok(None) };
    let own = &last[last.len() - len..];
    if first.is_empty() && !own.contains(':') {
        return Ok(None);
    }
    let own = (*at, pair(*at, own)?);
    lines.pop();
    Ok(Some(own))
}

/// Takes lines as tgt's configuration has them; whether there were any.
fn take_tgt(
    lines: &mut Vec<Line<'_>>,
    users: &mut Vec<(usize, Credentials)>,
    mutual: &mut Option<(usize, Credentials)>,
) -> Result<bool> {
    let mut rest = Vec::new();
    for (at, line) in lines.drain(..) {
        let (word, words) = line.trim().split_once(char::is_whitespace).unwrap_or_default();
        let is_kind = |kind: &&str| kind.eq_ignore_ascii_case(word);
        let Some(kind) = ["incominguser", "outgoinguser"].into_iter().find(is_kind) else {
            rest.push((at, line));
            continue;
        };
        let Some([user, secret]) = two_words(words) else {
            bail!(
                "line {at}: is not '{kind} USER SECRET'; put a name or secret with blanks into \
                 quotation marks, and a comment into a line of its own"
            );
        };
        let one = Credentials { user: name_of(at, user)?, secret: secret_of(at, secret)? };
        if kind == "incominguser" {
            users.push((at, one));
        } else {
            ensure!(mutual.is_none(), "line {at}: is a second secret of the target; it has one");
            *mutual = Some((at, one));
        }
    }
    *lines = rest;
    Ok(!users.is_empty() || mutual.is_some() && lines.is_empty())
}

/// Both words of a text, each perhaps in quotation marks.
fn two_words(text: &str) -> Option<[&str; 2]> {
    let (first, rest) = next_word(text)?;
    let (second, rest) = next_word(rest)?;
    rest.trim().is_empty().then_some([first, second])
}

/// The next word and what follows it; none where a quotation mark lacks its other one.
fn next_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| QUOTES.contains(c));
    let (word, rest) = match quote {
        Some(quote) => text[1..].split_once(quote)?,
        None => text.split_at(text.find(char::is_whitespace).unwrap_or(text.len())),
    };
    let is_apart = rest.is_empty() || rest.starts_with(char::is_whitespace);
    (is_apart && !word.is_empty()).then_some((word, rest))
}

const QUOTES: [char; 2] = ['"', '\''];

/// Names of this kind may have colons of their own.
fn is_iscsi_name(name: &str) -> bool {
    ["iqn.", "eui.", "naa."].iter().any(|kind| name.trim_start().starts_with(kind))
}

/// Whether the first of two lines is a name, and the second its secret.
fn is_name(first: &str, second: &str) -> Result<bool> {
    match (first.contains(':'), second.contains(':')) {
        (false, _) => Ok(true),
        (true, false) => Ok(is_iscsi_name(first)),
        (true, true) if is_iscsi_name(first) => bail!(
            "can be read as a name and its secret, or as two users; write 'incominguser NAME SECRET' \
             in one line for each user"
        ),
        (true, true) => Ok(false),
    }
}

/// `user:secret`.
fn pair(at: usize, line: &str) -> Result<Credentials> {
    let parts =
        line.split_once(':').filter(|(user, secret)| !user.trim().is_empty() && !secret.is_empty());
    let Some((user, secret)) = parts else {
        bail!(
            "line {at}: is not 'user:secret'; write that, or user and secret in two lines and \
             nothing else, and the target's own proof as 'mutual:user:secret' in the last line"
        );
    };
    ensure!(
        !user.trim_start().starts_with("iqn.") || !secret.contains(':'),
        "line {at}: has a name that may go on behind its first ':'; write 'incominguser NAME SECRET', \
         or 'outgoinguser NAME SECRET' for the target's own proof"
    );
    Ok(Credentials { user: plain_name(at, user)?, secret: plain_secret(at, secret)? })
}

/// A name without quotation marks; blanks around it are none of it.
fn plain_name(at: usize, name: &str) -> Result<String> {
    let name = name.trim();
    ensure!(
        !name.starts_with(QUOTES),
        "line {at}: has a quotation mark that would be a part of the name; leave it out, or write \
         'incominguser \"NAME\" \"SECRET\"'"
    );
    ensure!(
        !name.contains(char::is_whitespace),
        "line {at}: has a blank in what would be a name; write user:secret, or 'incominguser \"NAME\" \"SECRET\"' \
         if the name has one, and begin a comment with #"
    );
    name_of(at, name)
}

/// A secret without quotation marks.
fn plain_secret(at: usize, secret: &str) -> Result<Secret> {
    let (first, last) = (secret.chars().next(), secret.chars().next_back());
    let is_quoted = secret.len() > 1 && first == last && secret.starts_with(QUOTES);
    let comment = secret.find('#').filter(|at| secret[..*at].ends_with(char::is_whitespace));
    for (is_doubtful, what, instead) in [
        (is_quoted, "quotation marks around its secret", "leave them out"),
        (secret.trim() != secret, "a blank at an end of its secret", "leave it out"),
        (comment.is_some(), "a # behind a blank", "give a comment a line of its own"),
    ] {
        ensure!(
            !is_doubtful,
            "line {at}: has {what}, which would be a part of the secret; {instead}, or write \
             'incominguser NAME \"SECRET\"' if it is meant"
        );
    }
    secret_of(at, secret)
}

fn name_of(at: usize, name: &str) -> Result<String> {
    check_seen(at, "name", name)?;
    Ok(name.into())
}

fn secret_of(at: usize, secret: &str) -> Result<Secret> {
    check_seen(at, "secret", secret)?;
    match Secret::new(secret) {
        Ok(secret) => Ok(secret),
        Err(error) => bail!("line {at}: {error}"),
    }
}

/// Refuses what no editor shows, and nobody types.
fn check_seen(at: usize, what: &str, text: &str) -> Result<()> {
    if let Some(unseen) = text.chars().find(|c| is_unseen(*c)) {
        let number = u32::from(unseen);
        bail!(
            "line {at}: has the character U+{number:04X} in the {what}, which is not shown as itself; \
             write the line anew without it"
        );
    }
    Ok(())
}

fn check_once(users: &[(usize, Credentials)]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for (at, one) in users {
        if let Some(before) = seen.insert(&one.user, at) {
            bail!("lines {before} and {at} have the same name; give each user its own");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(text: &str) -> (Form, Vec<(String, Secret)>) {
        let Lines { form, users, .. } = Lines::read(text).unwrap();
        (form, users.into_iter().map(|(_, one)| (one.user, one.secret)).collect())
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
        let (_, mutual) = Lines::read(three).unwrap().mutual.unwrap();
        assert_eq!((mutual.user, mutual.secret), one("tgt", "the targets own"));
        let (_, own) = Lines::read("incominguser a b\noutgoinguser c d\n").unwrap().mutual.unwrap();
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
            "joe hidden1\nann hidden2\n",
            "set auth password=hidden1\nset auth userid=joe",
            "; hidden\njoe:hidden2",
            "auth.username = hidden\nauth.password = hidden",
        ] {
            let error = Lines::read(bad).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{bad}: {error}");
        }
        let short = Lines::read("joe:hidden").unwrap();
        let error = short.check_lengths(12).unwrap_err().to_string();
        assert!(error.contains("6 bytes") && !error.contains("hidden"), "{error}");
    }
    #[test]
    fn names_and_secrets_are_read_as_they_are_meant() {
        let joe = (Form::Users, vec![one("joe", "twelve bytes")]);
        for text in [
            "  joe :twelve bytes\n",
            "incominguser \"joe\" \"twelve bytes\"\n",
            "IncomingUser 'joe'\t\"twelve bytes\"  \r\n",
            "  incominguser joe 'twelve bytes'",
        ] {
            assert_eq!(users(text), joe, "{text}");
        }
        for (text, secret) in [
            ("incominguser joe \" #'s\"", " #'s"),
            ("incominguser joe '\"s\"'", "\"s\""),
            ("incominguser joe s\"s#", "s\"s#"),
            ("joe:#s's'", "#s's'"),
            ("joe:s#s", "s#s"),
        ] {
            assert_eq!(users(text).1, [one("joe", secret)], "{text}");
        }
        assert_eq!(users(" joe \ntwelve bytes\n"), (Form::TwoLines, joe.1));
        assert_eq!(users("eui.01:a:b").1, [one("eui.01", "a:b")]);
        let alone = Lines::read("# members\n mutual: disk :twelve:bytes\n").unwrap();
        assert_eq!((alone.users.len(), alone.common), (0, None));
        let (at, own) = alone.mutual.unwrap();
        assert_eq!(
            (at, own.user, own.secret),
            (2, "disk".into(), Secret::new("twelve:bytes").unwrap())
        );
    }

    #[test]
    fn what_lets_nobody_in_is_refused_with_its_line_and_what_to_do() {
        for (text, line, wanted) in [
            ("\u{feff}joe:hidden", 1, "without one"),
            ("joe:hidden\n\u{feff}ann:hidden2", 2, "without one"),
            ("joe:hidden\nann:hid\u{feff}den", 2, "without one"),
            ("joe\nhidden\u{feff}", 2, "without one"),
            ("joe:hidden\0x", 1, "U+0000 in the secret"),
            ("j\u{1b}[2Joe:hidden", 1, "U+001B in the name"),
            ("# x\njoe\nhid\tden", 3, "U+0009 in the secret"),
            ("hidden\u{200b}", 1, "U+200B in the secret"),
            ("incominguser jo\0e hidden", 1, "U+0000 in the name"),
            ("joe:hidden\nmutual:d\u{202e}:hidden2", 2, "U+202E in the name"),
            ("joe:hidden\rann:hidden2", 1, "U+000D in the secret"),
            ("joe: hidden", 1, "leave it out"),
            ("joe:hidden ", 1, "leave it out"),
            ("joe\n hidden", 2, "leave it out"),
            ("joe:hidden # joe", 1, "comment"),
            ("\"joe\":hidden", 1, "leave it out"),
            ("joe:\"hidden\"", 1, "leave them out"),
            ("joe\n'hidden'", 2, "leave them out"),
            ("incominguser \"joe hidden", 1, "quotation marks"),
            ("incominguser joe \"hidden\"x", 1, "quotation marks"),
            ("incominguser joe hidden # joe", 1, "comment"),
            ("incominguser \"\" hidden", 1, "USER SECRET"),
            ("iqn.2026-01.x:joe:hidden", 1, "incominguser NAME SECRET"),
            ("joe:hidden\n\njoe:hidden2", 1, "and 3 have the same name"),
        ] {
            let error = Lines::read(text).unwrap_err().to_string();
            let begin = [format!("line {line}: "), format!("lines {line} ")];
            assert!(begin.iter().any(|begin| error.starts_with(begin)), "{text:?}: {error}");
            assert!(error.contains(wanted) && !error.contains("hid"), "{text:?}: {error}");
        }
    }
}
