//! Elements of tensors.

use faclient_sys as sys;

/// How keys, values and results are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32 bits, [`f32`].
    F32,
    /// IEEE half, [`F16`].
    F16,
    /// The upper half of an [`f32`], [`Bf16`].
    Bf16,
    /// 8-bit floats, [`E4m3`], only in pages that the program manages.
    E4m3,
    /// Integers of 32 bits, only in tables of pages and in masks.
    I32,
    /// Integers of 64 bits, only in tables of pages.
    I64,
}

impl Dtype {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::E4m3 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::I64 => 8,
        }
    }

    pub(crate) fn raw(self) -> u32 {
        match self {
            Dtype::F32 => sys::FA_F32,
            Dtype::F16 => sys::FA_F16,
            Dtype::Bf16 => sys::FA_BF16,
            Dtype::E4m3 => sys::FA_E4M3,
            Dtype::I32 => sys::FA_I32,
            Dtype::I64 => sys::FA_I64,
        }
    }

    pub(crate) fn of_raw(raw: u32) -> Option<Dtype> {
        [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|dtype| dtype.raw() == raw)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::F16 {}
    impl Sealed for super::Bf16 {}
    impl Sealed for super::E4m3 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// What a [`Tensor`](crate::Tensor) holds: an [`Element`], [`E4m3`], or the `i32` and `i64` of tables and masks.
pub trait Stored: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Its name at run time.
    const DTYPE: Dtype;
}

/// A number to compute with: `f32`, [`F16`] or [`Bf16`].
pub trait Element: Stored {
    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;
    /// The same value.
    fn to_f32(self) -> f32;
}

/// An IEEE half, by its bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The upper 16 bits of an `f32`, by its bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// An 8-bit float with 4 bits of exponent, by its bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E4m3(pub u8);

macro_rules! stored {
    ($($stored:ty: $dtype:ident),*) => {
        $(impl Stored for $stored {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}
stored!(f32: F32, F16: F16, Bf16: Bf16, E4m3: E4m3, i32: I32, i64: I64);

impl Element for f32 {
    fn from_f32(value: f32) -> f32 {
        value
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for Bf16 {
    fn from_f32(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl Element for F16 {
    fn from_f32(value: f32) -> F16 {
        let bits = value.to_bits();
        let sign = (bits >> 16) as u16 & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return F16(sign | 0x7e00);
        }
        if magnitude < 0x3880_0000 {
            // Below 2^-14. The sum's last bit is worth 2^-24, the smallest half.
            let sum = f32::from_bits(magnitude) + 0.5;
            return F16(sign | (sum.to_bits() - 0.5f32.to_bits()) as u16);
        }
        // The exponent's bias falls from 127 to 15, and 13 bits of the fraction are rounded away.
        let rounded = magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1);
        F16(sign | (rounded >> 13).min(0x7c00) as u16)
    }
    fn to_f32(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7fff);
        let value = match magnitude >> 10 {
            0 => magnitude as f32 / (1 << 24) as f32,
            31 => f32::from_bits(0x7f80_0000 | (magnitude << 13)),
            _ => f32::from_bits((magnitude << 13) + (112 << 23)),
        };
        f32::from_bits(value.to_bits() | sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number comes back, and what lies between two goes to the nearer one.
    fn check_all<T: Element>(of_bits: fn(u16) -> T, bits: fn(T) -> u16, infinity: u16) {
        for n in 0..infinity {
            let (low, high) = (of_bits(n).to_f32(), of_bits(n + 1).to_f32());
            assert_eq!(bits(T::from_f32(low)), n);
            assert_eq!(bits(T::from_f32(-low)), n | 0x8000);
            if n + 1 == infinity {
                continue;
            }
            assert!(low < high);
            let middle = low / 2.0 + high / 2.0;
            assert_eq!(bits(T::from_f32(middle)), if n % 2 == 0 { n } else { n + 1 });
            let (below, above) =
                (f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1));
            if low < below && above < high {
                assert_eq!(bits(T::from_f32(below)), n);
                assert_eq!(bits(T::from_f32(above)), n + 1);
            }
        }
        assert_eq!(bits(T::from_f32(f32::INFINITY)), infinity);
        assert_eq!(bits(T::from_f32(f32::MAX)), infinity);
        assert_eq!(of_bits(infinity).to_f32(), f32::INFINITY);
        assert!(T::from_f32(f32::NAN).to_f32().is_nan());
        assert!(of_bits(infinity + 1).to_f32().is_nan());
    }

    #[test]
    fn halves() {
        check_all(F16, |x| x.0, 0x7c00);
        assert_eq!(F16::from_f32(1.0), F16(0x3c00));
        assert_eq!(F16::from_f32(65519.0), F16(0x7bff));
        assert_eq!(F16::from_f32(65520.0), F16(0x7c00));
        assert_eq!(F16::from_f32(-0.0), F16(0x8000));
    }

    #[test]
    fn upper_halves() {
        check_all(Bf16, |x| x.0, 0x7f80);
        assert_eq!(Bf16::from_f32(1.0), Bf16(0x3f80));
    }
}
