//! Texts that quote addresses, without the secrets in these.
//!
//! Where an address begins and where its secret ends is made out as well as can be, in any scheme and
//! without one; in doubt more is hidden. What was redacted once stays as it is.

use alloc::{string::String, vec::Vec};

use crate::uri::is_place;

/// What stands for a secret.
const HIDDEN: &str = "***";

/// Schemes of backings and sockets: what follows is a path.
const PATHS: [&str; 4] = ["file", "block", "unix", "ram"];

/// `text` without the secrets of addresses in it, and with all else: for texts that quote what a user
/// typed, before it was understood, and perhaps as a path.
///
/// Hidden is what a login has behind its first `:` or `%`, and the value of each option that is not known
/// to be harmless. Host, port, path and LUN stay. A secret with blanks in an address without quotation
/// marks is hidden as far as the last `@` of the line that a host follows.
#[must_use]
pub fn redact_addresses(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut at = 0;
        while let Some(mark) = next_mark(line, at) {
            if let Some(end) = end_of_schemeless(line, at, mark.scheme) {
                redact_words(&line[at..end], &mut shown);
                at = end;
                continue;
            }
            redact_words(&line[at..mark.scheme], &mut shown);
            shown.push_str(&line[mark.scheme..mark.login]);
            at = redact_quoted(line, &mark, &mut shown);
        }
        redact_words(&line[at..], &mut shown);
    }
    shown
}

/// `message`, which says what is wrong with `value`, without the secrets of addresses in `value`: also where
/// it quotes pieces of it, as of what a comma divides. Of a piece of less than four bytes nothing is hidden.
#[must_use]
pub fn redact_message(message: &str, value: &str) -> String {
    const PIECE_LEN_MIN: usize = 4;
    let mut shown = redact_addresses(message);
    for secret in hidden_of(value) {
        let pieces = secret.split([',', '=', '&', ':', ';', '/', '@']);
        for piece in core::iter::once(secret).chain(pieces) {
            if piece.len() >= PIECE_LEN_MIN {
                shown = shown.replace(piece, HIDDEN);
            }
        }
    }
    shown
}

/// What of `text` is hidden.
fn hidden_of(text: &str) -> Vec<&str> {
    let redacted = redact_addresses(text);
    let (mut rest, mut hidden) = (text, Vec::new());
    let last = redacted.split(HIDDEN).count() - 1;
    for (index, part) in redacted.split(HIDDEN).enumerate() {
        // What stands behind the last secret may be a part of the secret, too.
        let found = match part {
            "" if index > 0 => None,
            part if index == last && index > 0 => rest.strip_suffix(part).map(str::len),
            part => rest.find(part),
        };
        let at = found.unwrap_or(rest.len());
        hidden.push(&rest[..at]);
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    hidden.retain(|secret| !secret.is_empty());
    hidden
}

/// A text that is an address or was meant for one, as a whole.
pub(crate) fn redact_whole(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let head = next_mark(text, 0).filter(|mark| mark.scheme == 0).map_or(0, |mark| mark.login);
    shown.push_str(&text[..head]);
    let login_len = login_of(&text[head..], true).len();
    redact_address(&text[head..], login_len, &mut shown);
    shown
}

/// Where an address begins, and where it goes on behind its scheme and the slashes.
struct Mark {
    scheme: usize,
    login: usize,
    /// The scheme is one of networks, or two slashes stand behind it: what follows has a host.
    has_host: bool,
}

/// The next scheme with a slash in `line`, from `from` on.
fn next_mark(line: &str, from: usize) -> Option<Mark> {
    let mut at = from;
    while let Some(found) = line[at..].find(":/") {
        let colon = at + found;
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let before = &line[from..colon];
        let scheme = from + before.trim_end_matches(is_scheme).len();
        let behind = &line[colon + 1..];
        let slashes = behind.len() - behind.trim_start_matches('/').len();
        let name = line[scheme..colon].to_ascii_lowercase();
        let is_path = PATHS.contains(&name.as_str()) && slashes != 2;
        if !name.is_empty() && !is_path {
            let is_network = name.ends_with("scsi") || name.starts_with("nbd");
            let has_host = slashes == 2 || is_network;
            return Some(Mark { scheme, login: colon + 1 + slashes, has_host });
        }
        at = colon + 1;
    }
    None
}

const fn is_quote(c: char) -> bool {
    matches!(c, '\'' | '"' | '`')
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || is_quote(c)
}

/// A word up to the blank or the quotation mark that ends it, without what belongs to the sentence.
fn word_of(text: &str) -> &str {
    let word = &text[..text.find(ends_word).unwrap_or(text.len())];
    word.trim_end_matches([':', ';', ',', '.', ')'])
}

/// What stands in quotation marks of which the first is `quote`.
fn quoted_of(text: &str, quote: char) -> Option<&str> {
    let is_boundary = |c: char| c.is_whitespace() || ":;,.)]}".contains(c);
    let mut all = text.match_indices(quote).map(|(at, _)| at);
    let end = all.find(|at| text[at + 1..].chars().next().is_none_or(is_boundary))?;
    Some(&text[..end])
}

/// Whether a blank, or a quotation mark behind one, stands before `at`.
fn begins_word(line: &str, at: usize) -> bool {
    let before = line[..at].trim_end_matches(is_quote);
    before.is_empty() || before.ends_with(char::is_whitespace)
}

/// Where an address without a scheme ends that has one in its secret, before the byte `inside`.
fn end_of_schemeless(line: &str, from: usize, inside: usize) -> Option<usize> {
    let begin = line[from..inside].rfind(char::is_whitespace).map_or(from, |at| from + at);
    let begin = begin + line[begin..].len() - line[begin..].trim_start().len();
    let len = line[begin..].find(char::is_whitespace).unwrap_or(line.len() - begin);
    let path = skip_kinds(bare(&line[begin..begin + len]).1);
    // A quotation mark before the scheme begins another address, as in JSON.
    let before = line[begin..inside].trim_start_matches(|c| is_quote(c) || c == '(');
    let is_before = skip_kinds(before).contains([':', '%']) && !before.ends_with('"');
    (is_before && has_secret(login_of(path, false))).then_some(begin + len)
}

/// Appends the address of a line whose scheme is shown already; where it ends in the line.
fn redact_quoted(line: &str, mark: &Mark, shown: &mut String) -> usize {
    let text = &line[mark.login..];
    let token = line[..mark.scheme].rfind(ends_word).map(|at| &line[at..]);
    let quote = token.and_then(|token| token.chars().next()).filter(|c| is_quote(*c));
    if let Some(quoted) = quote.and_then(|quote| quoted_of(text, quote)) {
        redact_address(quoted, login_of(quoted, mark.has_host).len(), shown);
        return mark.login + quoted.len();
    }
    // Another address begins where a scheme begins a word.
    let mut end = mark.login;
    let next = loop {
        match next_mark(line, end) {
            Some(next) if begins_word(line, next.scheme) => break next.scheme,
            Some(next) => end = next.login,
            None => break line.len(),
        }
    };
    let text = &line[mark.login..next];
    let word = word_of(text);
    let login = login_of(word, mark.has_host);
    let login_len = beyond_blanks(text, word, login).unwrap_or(login.len());
    let address_len = login_len + word_of(&text[login_len..]).len();
    redact_address(&text[..address_len.max(word.len())], login_len, shown);
    mark.login + address_len.max(word.len())
}

/// Where a login ends whose secret has blanks or quotation marks; none where it has none.
fn beyond_blanks(text: &str, word: &str, login: &str) -> Option<usize> {
    let place = word[login.len()..].strip_prefix('@');
    let secret = split_known(login).1?;
    if secret == HIDDEN || place.is_some_and(is_place) {
        return None;
    }
    let is_certain = place.is_some_and(may_be_place);
    let is_host = |c: char| c.is_ascii_alphanumeric() || c == '[';
    let mut all = text.rmatch_indices('@').map(|(at, _)| at);
    all.find(|at| {
        let place = word_of(&text[at + 1..]);
        let is_sure = !is_certain || place.contains('/') && may_be_place(place);
        *at > login.len() && place.starts_with(is_host) && is_sure
    })
}

/// The login of an address; all of it where that is no place and may be a login alone.
fn login_of(address: &str, has_host: bool) -> &str {
    if is_place(address) {
        return "";
    }
    let all = || address.rmatch_indices('@').map(|(at, _)| at);
    let strict = all().find(|at| is_place(&address[at + 1..]));
    if strict.is_none() && may_be_place(address) {
        return "";
    }
    let loose = || all().find(|at| may_be_place(&address[at + 1..]));
    match strict.or_else(loose).or_else(|| all().next()) {
        Some(end) => &address[..end],
        None if has_host => address,
        None => "",
    }
}

/// Whether this may be `host[:port]` with anything behind a slash or a question mark.
fn may_be_place(text: &str) -> bool {
    let place = text.split('?').next().unwrap_or(text);
    let address = place.split('/').next().unwrap_or(place);
    // Texts of usage have a word for the port.
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit())
            || port.trim_end_matches(']').eq_ignore_ascii_case("port")
    };
    if place.contains('@') {
        return false;
    }
    match address.split_once(':') {
        _ if address.starts_with('[') => true,
        _ if address.contains('%') => false,
        Some((_, port)) => is_port(port),
        None => true,
    }
}

/// Parts a login into what is a name for certain, and the rest. A name may have colons of its own, and
/// so may a secret that was put behind one.
fn split_known(login: &str) -> (&str, Option<&str>) {
    let mark = login.find([':', '%', '=']);
    mark.map_or((login, None), |at| (&login[..at], Some(&login[at + 1..])))
}

/// Appends an address behind its scheme, of which the first `login_len` bytes are the login.
fn redact_address(address: &str, login_len: usize, shown: &mut String) {
    let (login, rest) = address.split_at(login_len);
    redact_login(login, shown);
    let query = rest.find(['?', '&', '#', ';']).map_or(rest.len(), |at| at + 1);
    shown.push_str(&rest[..query]);
    redact_query(&rest[query..], shown);
}

/// Appends a login without its secret.
fn redact_login(login: &str, shown: &mut String) {
    let (user, secret) = split_known(login);
    shown.push_str(user);
    if let Some(secret) = secret {
        shown.push_str(&login[user.len()..=user.len()]);
        shown.push_str(if secret.is_empty() { "" } else { HIDDEN });
    }
}

/// Appends what follows the `?` of an address, without all values that are not known to be harmless.
fn redact_query(query: &str, shown: &mut String) {
    let mut is_hiding = false;
    for pair in query.split_inclusive(['&', ';']) {
        let (pair, end) = pair.split_at(pair.trim_end_matches(['&', ';']).len());
        let (key, value) = pair.split_once('=').map_or((pair, None), |(k, v)| (k, Some(v)));
        let before = shown.len();
        match (key.to_ascii_lowercase().as_str(), value) {
            (_, Some("")) if !is_hiding => shown.push_str(pair),
            ("", None) => {}
            ("portal", Some(portal)) => {
                shown.push_str(&pair[..=key.len()]);
                let (login, place) = portal.rsplit_once('@').unwrap_or(("", portal));
                redact_login(login, shown);
                shown.push_str(if login.is_empty() { "" } else { "@" });
                if may_be_place(place) {
                    shown.push_str(place);
                } else {
                    redact_login(place, shown);
                }
            }
            ("target_user", Some(user)) => {
                shown.push_str(&pair[..=key.len()]);
                redact_login(user, shown);
            }
            ("header_digest" | "data_digest", Some(value)) if is_digest(value) => {
                shown.push_str(pair);
            }
            ("socket", Some(_)) => shown.push_str(pair),
            // What follows a secret may belong to it.
            _ if is_hiding => shown.push_str(HIDDEN),
            (_, None) => shown.push_str(pair),
            (_, Some(_)) => {
                shown.push_str(&pair[..=key.len()]);
                shown.push_str(HIDDEN);
            }
        }
        is_hiding |= shown[before..].ends_with(HIDDEN);
        shown.push_str(end);
    }
}

fn is_digest(value: &str) -> bool {
    matches!(value, "crc32c" | "none" | "none-crc32c" | "crc32c-none")
}

/// Appends a text without schemes; words of it may be addresses all the same.
fn redact_words(text: &str, shown: &mut String) {
    for word in text.split_inclusive(char::is_whitespace) {
        let (before, address, behind) = bare(word);
        let path = skip_kinds(address);
        let login = login_of(path, false);
        let is_path = path.len() < address.len() && path.starts_with('/');
        if is_path || !has_secret(login) {
            shown.push_str(word);
            continue;
        }
        shown.push_str(before);
        shown.push_str(&address[..address.len() - path.len()]);
        redact_address(path, login.len(), shown);
        shown.push_str(behind);
    }
}

/// Whether this is a name and a secret.
fn has_secret(login: &str) -> bool {
    let (name, secret) = split_known(login);
    !name.is_empty() && secret.is_some_and(|secret| !secret.is_empty())
}

/// A word without what a sentence puts around it, and that before and behind it.
fn bare(word: &str) -> (&str, &str, &str) {
    let from_address = word.trim_start_matches(|c| is_quote(c) || c == '(');
    let (before, _) = word.split_at(word.len() - from_address.len());
    let is_end = |c: char| ends_word(c) || ":;,.)".contains(c);
    let (address, behind) = from_address.split_at(from_address.trim_end_matches(is_end).len());
    (before, address, behind)
}

/// What stands behind `file:` and its like, and behind the number of a LUN.
fn skip_kinds(mut word: &str) -> &str {
    while let Some((kind, rest)) = word.split_once(':') {
        let is_lun = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_digit());
        if !is_lun && !PATHS.contains(&kind) {
            break;
        }
        word = rest;
    }
    word
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::ToString as _};

    use super::*;
    use crate::TargetUri;

    /// What redaction shows stays when it is redacted again.
    fn expect(text: &str, shown: &str) {
        assert_eq!(redact_addresses(text), shown);
        assert_eq!(redact_addresses(shown), shown, "again");
    }

    #[test]
    fn texts_that_quote_addresses_show_no_secret() {
        for (text, shown) in [
            ("no address, 50% done", "no address, 50% done"),
            ("'iscsi://joe@h/t/0' is wrong", "'iscsi://joe@h/t/0' is wrong"),
            ("a\n'iscsi://joe%s/e c'r@h/t/0' x\nb", "a\n'iscsi://joe%***@h/t/0' x\nb"),
            ("iscsi://joe%s/e c'r@h/t/0 x", "iscsi://joe%***@h/t/0 x"),
            ("iscsi://joe%s@e c@h/t/0 x", "iscsi://joe%***@h/t/0 x"),
            ("iscsi://joe%secret\nb", "iscsi://joe%***\nb"),
            (
                "iscsi://j%one@h/t/0 iscsi://k%two@h/t/1: no, no@all",
                "iscsi://j%***@h/t/0 iscsi://k%***@h/t/1: no, no@all",
            ),
            ("iscsi://joe:secret@h:1/t/0: refused", "iscsi://joe:***@h:1/t/0: refused"),
            ("iscsi://joe:s:/ecret@h:1/t/0: refused", "iscsi://joe:***@h:1/t/0: refused"),
            ("'iscsi://joe:secret/t/0' has no @", "'iscsi://joe:***' has no @"),
            ("'ISCSI://joe%secret@h/t/0' is wrong", "'ISCSI://joe%***@h/t/0' is wrong"),
            (
                "/home/iscsi:/joe%secret@h/t/0: no such file",
                "/home/iscsi:/joe%***@h/t/0: no such file",
            ),
            ("file:iscsi://joe%secret@h/t/0", "file:iscsi://joe%***@h/t/0"),
        ] {
            expect(text, shown);
        }
    }

    #[test]
    fn no_scheme_shows_the_secret_of_a_login() {
        for (text, shown) in [
            ("nbd://joe:secret@h:1/x: refused", "nbd://joe:***@h:1/x: refused"),
            ("nbd://joe:secret@h:1/x: ask bob@corp", "nbd://joe:***@h:1/x: ask bob@corp"),
            ("'scsi://joe:secret@[::1]:1/t/0': write", "'scsi://joe:***@[::1]:1/t/0': write"),
            ("https://joe:secret@h:1/", "https://joe:***@h:1/"),
            ("https://joe:secret@h", "https://joe:***@h"),
            ("/home/scsi:/joe:secret@h:1/t/0: give", "/home/scsi:/joe:***@h:1/t/0: give"),
            ("'joe:secret@h:1/t/0': write unix:PATH", "'joe:***@h:1/t/0': write unix:PATH"),
            ("/home/joe:secret@h:1/t/0: give", "/home/joe:***@h:1/t/0: give"),
            ("file:joe:secret@h/t/0", "file:joe:***@h/t/0"),
            ("joe:se://cret@h/t/0: give", "joe:***@h/t/0: give"),
            ("'joe:s'ecret@h/t/0': give", "'joe:***@h/t/0': give"),
            ("iscsi://joe:s'nbd://secret@h/t/0: no", "iscsi://joe:***@h/t/0: no"),
            (
                "{\"uri\":\"iscsi://joe:secret@h/t/0\",\"lun\":0}",
                "{\"uri\":\"iscsi://joe:***@h/t/0\",\"lun\":0}",
            ),
            ("nbd://joe:se@cr/et?secret@h:1: refused", "nbd://joe:***@h:1: refused"),
            ("nbd://h:1/x?password=secret", "nbd://h:1/x?password=***"),
            ("iscsi://joe:secret@:1/t/0: no host", "iscsi://joe:***@:1/t/0: no host"),
            ("iscsi://joe:secret@h:99999/t/0: port", "iscsi://joe:***@h:99999/t/0: port"),
        ] {
            expect(text, shown);
        }
    }

    #[test]
    fn a_name_with_colons_shows_no_secret_behind_them() {
        for (text, shown) in [
            ("iscsi://iqn.2026-01.x:joe:secret@h/t/0: no", "iscsi://iqn.2026-01.x:***@h/t/0: no"),
            ("iscsi://iqn.2026-01.x:secret@h/t/0: no", "iscsi://iqn.2026-01.x:***@h/t/0: no"),
            ("iscsi://eui.0123456789abcdef:secret@h/t/0", "iscsi://eui.0123456789abcdef:***@h/t/0"),
        ] {
            expect(text, shown);
        }
    }

    #[test]
    fn only_options_that_are_known_show_their_values() {
        for (query, shown) in [
            ("target_password=s@x&portal=b", "target_password=***&portal=b"),
            ("target_passwd=secret", "target_passwd=***"),
            ("TARGET_PASSWORD=secret&portal=b:7", "TARGET_PASSWORD=***&portal=b:7"),
            ("target%5fpassword=secret", "target%5fpassword=***"),
            ("portal=joe:secret@b:7", "portal=joe:***@b:7"),
            ("portal=joe%secret", "portal=joe%***"),
            ("portal=[fe80::1%eth0]:7&portal=b", "portal=[fe80::1%eth0]:7&portal=b"),
            ("header_digest=secret&data_digest=crc32c", "header_digest=***&data_digest=crc32c"),
            ("target_user=t;target_password=secret", "target_user=t;target_password=***"),
            ("target_user=t:secret", "target_user=t:***"),
            ("target_password=se&cret&ret=x", "target_password=***&***&***"),
            ("target_password=", "target_password="),
            ("iser&portal=b&", "iser&portal=b&"),
        ] {
            expect(
                &format!("iscsi://joe@h:1/t/0?{query}; give --secret-file"),
                &format!("iscsi://joe@h:1/t/0?{shown}; give --secret-file"),
            );
            let shown = format!("address 'iscsi://joe@h:1/t/x?{shown}': has a LUN");
            expect(&format!("address 'iscsi://joe@h:1/t/x?{query}': has a LUN"), &shown);
            let query = query.replace("secret", "hidden");
            let error = TargetUri::parse(&format!("iscsi://joe@h:1/t/x?{query}")).unwrap_err();
            let error = error.to_string();
            assert!(!error.contains("hidden") && error.contains("h:1/t/x?"), "{error}");
        }
        expect("'iscsi://h/t/0?x=se c'ret': no", "'iscsi://h/t/0?x=***': no");
        expect("iscsi://h/t/0&target_password=secret: no", "iscsi://h/t/0&target_password=***: no");
        expect("iscsi://joe@h/t?target_password=x@y", "iscsi://joe@h/t?target_password=***@y");
    }

    #[test]
    fn what_is_no_secret_is_shown() {
        for text in [
            // A zone, and a name with escapes, are no secrets, and end no line.
            "iscsi://[fe80::1%lo]:1/t/0: no 50%, a@b",
            "iscsi://[fe80::1%eth0]:3260/iqn.x:y/0: refused",
            "iscsi://h:1/t%3ax/0: refused",
            "iscsi://joe@[fe80::1%lo]/t/0: refused",
            "address 'iscsi://joe%***@h/t/zero': has a LUN; write iscsi://[user@]host[:port]/t/lun",
            "write iscsi://[user@]host[:port]/target-name/lun[?portal=host:port]",
            "iscsi://[user@]host[:port]/iqn/lun[?portal=host[:port]&...], with more",
            "write nbd://host:port/name or nbd+unix:///name?socket=P",
            "cannot connect to nbd+unix:///v?socket=/run/a@b:c",
            "iscsi://..., nbd://... or a directory",
            "file:/srv/a:b@c.img:64MiB: no space",
            "0:file:a@b.img:64MiB: no space",
            "unix:/run/a:b@c/d/e: nobody listens",
            "PATH=/usr/bin:/bin:/sbin:/x:y",
            "https://127.0.0.1:8080/v1/volumes: 404",
            "peer=127.0.0.1:36974 initiator=\"iqn.2007-10.com.github:x\" mail bob@corp: 12:30",
        ] {
            expect(text, text);
        }
    }

    #[test]
    fn a_reason_that_quotes_a_piece_shows_no_secret() {
        let cases = [
            (
                "iscsi://joe:hiddenpw1234@127.0.0.1/iqn.x",
                "'hiddenpw1234@127.0.0.1/iqn.x' is not a port",
                "'***@127.0.0.1/iqn.x' is not a port",
            ),
            (
                "iscsi://h:1/iqn.x/0?target_user=u&target_password=hiddenpw1234",
                "size 'u&target_password=hiddenpw1234': is no number",
                "size 'u&target_password=***': is no number",
            ),
            (
                "iscsi://joe%hidden,secret@h/iqn.x/0",
                "'secret@h/iqn.x/0': is no weight",
                "'***@h/iqn.x/0': is no weight",
            ),
            (
                "iscsi://joe:pw@h=hiddensecret1234@h",
                "size 'hiddensecret1234@h': is no number",
                "size '***@h': is no number",
            ),
            ("file:a:64MiBB", "'64MiBB': is no size", "'64MiBB': is no size"),
        ];
        for (value, message, shown) in cases {
            assert_eq!(redact_message(message, value), shown, "{value}");
        }
    }
}
