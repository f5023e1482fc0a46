//! The field of 256 elements that Q is computed in: polynomials over the bits modulo
//! x^8 + x^4 + x^3 + x^2 + 1 (0x11D), generator 2, as Linux md has it.

/// The polynomial's lower eight bits.
pub(crate) const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator, twice over, so that a sum of two logarithms needs no modulo.
const POWERS: [u8; 510] = {
    let mut powers = [0; 510];
    let mut power: u8 = 1;
    let mut at = 0;
    while at < 510 {
        powers[at] = power;
        power = double(power);
        at += 1;
    }
    powers
};

const LOGARITHMS: [u8; 256] = {
    let mut logarithms = [0; 256];
    let mut at: u8 = 0;
    while at < 255 {
        logarithms[POWERS[at as usize] as usize] = at;
        at += 1;
    }
    logarithms
};

/// Twice `a`.
#[must_use]
pub(crate) const fn double(a: u8) -> u8 {
    (a << 1) ^ (if a >> 7 == 1 { POLYNOMIAL } else { 0 })
}

/// The product.
#[must_use]
pub const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[a as usize] as usize + LOGARITHMS[b as usize] as usize]
}

/// The element that gives 1 when multiplied by `a`.
///
/// # Panics
/// When `a` is 0.
#[must_use]
pub const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    POWERS[255 - LOGARITHMS[a as usize] as usize]
}

/// The generator to the power of a data column's number: the column's coefficient in Q.
///
/// # Panics
/// When `column` is 255 or more: coefficients would repeat.
#[must_use]
pub const fn coefficient(column: u8) -> u8 {
    assert!(column < 255, "more data columns than the field has coefficients");
    POWERS[column as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication by the definition: shift and add.
    fn slow(a: u8, b: u8) -> u8 {
        let (mut a, mut sum) = (a, 0);
        for bit in 0..8 {
            sum ^= if b >> bit & 1 == 1 { a } else { 0 };
            a = double(a);
        }
        sum
    }

    #[test]
    fn products_and_inverses_are_those_of_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), slow(a, b));
            }
            assert!(a == 0 || multiply(a, inverse(a)) == 1);
        }
    }

    #[test]
    fn no_two_columns_have_one_coefficient() {
        let all: std::collections::BTreeSet<u8> = (0..255).map(coefficient).collect();
        assert_eq!(all.len(), 255);
        assert_eq!([0, 1, 2, 8].map(coefficient), [1, 2, 4, 0x1d]);
    }
}
