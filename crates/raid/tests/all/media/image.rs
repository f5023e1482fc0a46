//! A member's bytes, and the text that they are kept in: for each run of equal lines of 32 bytes
//! that are not zeros its offset, how many lines, and one of them, in hexadecimal digits or as the
//! number of the line among those that are written so.

use std::{collections::HashMap, fmt::Write as _};

const LINE: usize = 32;

/// A member's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image(Vec<u8>);

impl Image {
    /// So many zeros.
    pub(crate) fn new(len: u64) -> Self {
        Self(vec![0; usize::try_from(len).unwrap()])
    }

    /// Number of bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> &[u8] {
        let at = usize::try_from(offset).unwrap();
        &self.0[at..at + len]
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let at = usize::try_from(offset).unwrap();
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

pub(crate) fn to_text(members: &[Image]) -> String {
    let mut text = String::new();
    let mut known: HashMap<[u8; LINE], usize> = HashMap::new();
    for (at, Image(bytes)) in members.iter().enumerate() {
        writeln!(text, "member {at} {}", bytes.len()).unwrap();
        let mut offset = 0;
        for run in bytes.as_chunks::<LINE>().0.chunk_by(|one, two| one == two) {
            if run[0] != [0; LINE] {
                write!(text, "{offset:x} {} ", run.len()).unwrap();
                let number = known.len();
                match *known.entry(run[0]).or_insert(number) {
                    new if new == number => {
                        run[0].iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
                    }
                    other => write!(text, "={other}").unwrap(),
                }
                text.push('\n');
            }
            offset += run.len() * LINE;
        }
    }
    text
}

pub(crate) fn from_text(text: &str) -> Vec<Image> {
    let mut members: Vec<Image> = Vec::new();
    let mut known: Vec<[u8; LINE]> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [first, second, third] = words[..] else { panic!("three words in {line:?}") };
        if first == "member" {
            assert_eq!(second, members.len().to_string(), "members in order");
            members.push(Image::new(third.parse().unwrap()));
            continue;
        }
        let bytes = match third.strip_prefix('=') {
            Some(number) => known[number.parse::<usize>().unwrap()],
            None => {
                let hex = |at: usize| u8::from_str_radix(&third[at * 2..at * 2 + 2], 16).unwrap();
                known.push(std::array::from_fn(hex));
                known[known.len() - 1]
            }
        };
        let offset = u64::from_str_radix(first, 16).unwrap();
        let count = second.parse().unwrap();
        members.last_mut().unwrap().write(offset, &bytes.repeat(count));
    }
    members
}
