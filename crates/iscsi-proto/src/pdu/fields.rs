//! How the fields of PDUs stand in a header. [`pdu!`] says each PDU once, as a list of its fields
//! and their places; reading and writing both follow that list.

use super::{Bhs, LunField};

/// Where a field stands, and in which form.
pub(super) trait Place<T> {
    fn get(self, bhs: &Bhs) -> T;
    /// Writes the field into a header that is zero there.
    fn put(self, value: T, bhs: &mut Bhs);
}

/// Whole bytes, beginning at this one; numbers are big-endian.
pub(super) struct At(pub(super) usize);

/// One bit: its byte, and its mask.
pub(super) struct Flag(pub(super) usize, pub(super) u8);

/// Some bits of a byte: the byte, how far they are shifted, and their mask after that.
pub(super) struct Bits(pub(super) usize, pub(super) u32, pub(super) u8);

/// A code in the low bits of a byte: the byte, and the mask.
pub(super) struct Coded(pub(super) usize, pub(super) u8);

/// "Moved less than expected" (RFC 7143, section 11.4.5), which stands in the list after
/// [`OVERFLOW`]: when both bits are set, overflow is believed.
pub(super) struct Underflow;

/// Delivered at once.
pub(super) const IMMEDIATE: Flag = Flag(0, 0x40);
/// F of most PDUs.
pub(super) const FINAL: Flag = Flag(1, 0x80);
/// C of text and login PDUs.
pub(super) const MORE: Flag = Flag(1, 0x40);
/// "Would have moved more than expected".
pub(super) const OVERFLOW: Flag = Flag(1, 0x04);
/// LUN, or what stands in its place.
pub(super) const LUN: At = At(8);
/// Initiator task tag.
pub(super) const ITT: At = At(16);
/// Target transfer tag, or what stands in its place.
pub(super) const TTT: At = At(20);

/// What [`At`] holds.
pub(super) trait Bytes {
    fn read(bhs: &Bhs, at: usize) -> Self;
    fn write(self, bhs: &mut Bhs, at: usize);
}

impl<const N: usize> Bytes for [u8; N] {
    fn read(bhs: &Bhs, at: usize) -> Self {
        bhs.array_at(at)
    }

    fn write(self, bhs: &mut Bhs, at: usize) {
        bhs.put(at, &self);
    }
}

impl Bytes for u8 {
    fn read(bhs: &Bhs, at: usize) -> Self {
        bhs.0[at]
    }

    fn write(self, bhs: &mut Bhs, at: usize) {
        bhs.0[at] = self;
    }
}

impl Bytes for u16 {
    fn read(bhs: &Bhs, at: usize) -> Self {
        Self::from_be_bytes(bhs.array_at(at))
    }

    fn write(self, bhs: &mut Bhs, at: usize) {
        bhs.put(at, &self.to_be_bytes());
    }
}

impl Bytes for u32 {
    fn read(bhs: &Bhs, at: usize) -> Self {
        bhs.u32_at(at)
    }

    fn write(self, bhs: &mut Bhs, at: usize) {
        bhs.put_u32(at, self);
    }
}

impl Bytes for LunField {
    fn read(bhs: &Bhs, at: usize) -> Self {
        Self(bhs.array_at(at))
    }

    fn write(self, bhs: &mut Bhs, at: usize) {
        bhs.put(at, &self.0);
    }
}

/// A value that stands in a header as a number.
pub(super) trait Code: Copy + PartialEq + 'static {
    /// The numbers that RFC 7143 gives.
    const KNOWN: &'static [(u8, Self)];

    /// What any other number means.
    fn other(code: u8) -> Self;

    /// The number of what is not known.
    fn other_code(self) -> u8;
}

impl<T: Bytes> Place<T> for At {
    fn get(self, bhs: &Bhs) -> T {
        T::read(bhs, self.0)
    }

    fn put(self, value: T, bhs: &mut Bhs) {
        value.write(bhs, self.0);
    }
}

impl Place<bool> for Flag {
    fn get(self, bhs: &Bhs) -> bool {
        bhs.0[self.0] & self.1 != 0
    }

    fn put(self, value: bool, bhs: &mut Bhs) {
        bhs.0[self.0] |= if value { self.1 } else { 0 };
    }
}

impl Place<u8> for Bits {
    fn get(self, bhs: &Bhs) -> u8 {
        bhs.0[self.0] >> self.1 & self.2
    }

    fn put(self, value: u8, bhs: &mut Bhs) {
        bhs.0[self.0] |= (value & self.2) << self.1;
    }
}

impl<C: Code> Place<C> for Coded {
    fn get(self, bhs: &Bhs) -> C {
        let code = bhs.0[self.0] & self.1;
        let known = C::KNOWN.iter().find(|(known, _)| *known == code);
        known.map_or_else(|| C::other(code), |(_, value)| *value)
    }

    fn put(self, value: C, bhs: &mut Bhs) {
        let known = C::KNOWN.iter().find(|(_, known)| *known == value);
        let code = known.map_or_else(|| value.other_code(), |(code, _)| *code);
        bhs.0[self.0] |= code & self.1;
    }
}

impl Place<bool> for Underflow {
    fn get(self, bhs: &Bhs) -> bool {
        Flag(1, 0x02).get(bhs) && !OVERFLOW.get(bhs)
    }

    fn put(self, value: bool, bhs: &mut Bhs) {
        Flag(1, 0x02).put(value && !OVERFLOW.get(bhs), bhs);
    }
}

/// Defines a PDU: its name, which is that of its opcode, in brackets what always stands in its
/// header, and its fields.
macro_rules! pdu {
    (
        $(#[$meta:meta])*
        $name:ident $([$($fixed:expr => $value:expr),*])? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $place:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $name {
            /// Reads the fields.
            #[must_use]
            pub fn parse(bhs: &Bhs) -> Self {
                Self { $($field: $place.get(bhs),)* }
            }

            /// Writes the header.
            #[must_use]
            pub fn encode(&self) -> Bhs {
                let mut bhs = Bhs::new(Opcode::$name);
                $($($fixed.put($value, &mut bhs);)*)?
                $($place.put(self.$field, &mut bhs);)*
                bhs
            }
        }
    };
}
pub(super) use pdu;
