//! Where in a stream of PDUs a byte is, to count where breaks and cuts are.

/// Bytes of a header, without additional segments (RFC 7143, section 11.2.1).
const BHS_LEN: usize = 48;

/// Between which bytes it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Between,
    Header,
    Data,
}

/// A stream of PDUs up to a byte of it.
pub(super) struct Framed {
    digests: (bool, bool),
    /// The first bytes of the header, that say how long all is.
    first: [u8; 8],
    /// Bytes of this PDU so far.
    at: usize,
    header_len: usize,
    len: usize,
}

impl Framed {
    /// A stream whose sessions have these digests, of headers and of data, behind the login.
    pub(super) const fn new(digests: (bool, bool)) -> Self {
        Self { digests, first: [0; 8], at: 0, header_len: BHS_LEN, len: BHS_LEN }
    }

    /// More bytes; where it is behind them.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Phase {
        while !bytes.is_empty() {
            if self.at < self.first.len() {
                let len = bytes.len().min(self.first.len() - self.at);
                self.first[self.at..self.at + len].copy_from_slice(&bytes[..len]);
                self.at += len;
                bytes = &bytes[len..];
                if self.at == self.first.len() {
                    self.measure();
                }
                continue;
            }
            let len = bytes.len().min(self.len - self.at);
            self.at += len;
            bytes = &bytes[len..];
            if self.at == self.len {
                (self.at, self.len) = (0, BHS_LEN);
            }
        }
        self.phase()
    }

    pub(super) const fn phase(&self) -> Phase {
        match self.at {
            0 => Phase::Between,
            at if at < self.header_len => Phase::Header,
            _ => Phase::Data,
        }
    }

    fn measure(&mut self) {
        let [opcode, _, _, _, ahs, high, mid, low] = self.first;
        // Login requests and responses have no digests.
        let has_digests = !matches!(opcode & 0x3f, 0x03 | 0x23);
        let (header, data) = self.digests;
        let digest = |is_wanted: bool| if is_wanted && has_digests { 4 } else { 0 };
        self.header_len = BHS_LEN + 4 * usize::from(ahs) + digest(header);
        let data_len = u32::from_be_bytes([0, high, mid, low]) as usize;
        let trailer = if data_len > 0 { digest(data) } else { 0 };
        self.len = self.header_len + data_len.next_multiple_of(4) + trailer;
    }
}
