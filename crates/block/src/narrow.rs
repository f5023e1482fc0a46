//! Numbers in smaller types.

use core::fmt::Display;

/// A number in another type, in which it fits: this is for numbers that the code itself computed, and of which it
/// knows that.
///
/// What a peer, a medium or a user gave is no such number: it becomes an error, or a clamp that says so.
///
/// # Panics
/// When it does not fit. The message names the place of the call.
#[track_caller]
#[inline]
#[must_use]
pub fn narrow<From: Copy + Display, To: TryFrom<From>>(number: From) -> To {
    match To::try_from(number) {
        Ok(number) => number,
        Err(_) => does_not_fit(&number, core::any::type_name::<To>()),
    }
}

#[track_caller]
#[cold]
#[inline(never)]
fn does_not_fit(number: &dyn Display, kind: &str) -> ! {
    panic!("{number} does not fit into {kind}")
}

#[cfg(test)]
mod tests {
    use super::narrow;
    use std::string::String;

    #[test]
    fn what_fits_is_the_same_number() {
        assert_eq!(narrow::<usize, u8>(255), 255);
        assert_eq!(narrow::<u64, u32>(u32::MAX.into()), u32::MAX);
        assert_eq!(narrow::<i64, u16>(7), 7);
    }

    #[test]
    fn what_does_not_fit_stops_and_names_number_type_and_place() {
        let end = std::panic::catch_unwind(|| narrow::<u64, u8>(256));
        let text = end.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(*text, "256 does not fit into u8");
        std::panic::catch_unwind(|| narrow::<i32, u32>(-1)).unwrap_err();
    }
}
