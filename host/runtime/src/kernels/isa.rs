//! Instruction sets, chosen at run time.

/// For which instructions a kernel was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// What every processor of the target has.
    Scalar,
    /// 256-bit vectors and half-precision conversion.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Isa {
    /// The best that this processor has.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Scalar)
    }

    /// All that this processor has, slowest first.
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx512 {
                return &[Self::Scalar, Self::Avx2, Self::Avx512];
            }
            if avx2 {
                return &[Self::Scalar, Self::Avx2];
            }
        }
        &[Self::Scalar]
    }

    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// This instruction set if the processor has it, else the best that it has.
    pub(super) fn checked(self) -> Self {
        if Self::available().contains(&self) { self } else { Self::detect() }
    }
}

/// Compiles a function body for each instruction set and dispatches on an [`Isa`].
///
/// `fn name(isa; arguments) -> result = body(arguments)`, where `body` is `#[inline(always)]`.
macro_rules! for_each_isa {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident$(<$lifetime:lifetime>)?($($argument:ident: $type:ty),*) $(-> $result:ty)? = $body:path) => {
        $(#[$meta])*
        $visibility fn $name$(<$lifetime>)?(isa: $crate::kernels::Isa, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,f16c")]
                fn avx2$(<$lifetime>)?($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512$(<$lifetime>)?($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                match isa.checked() {
                    // SAFETY: `checked` returns only what this processor has.
                    $crate::kernels::Isa::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    $crate::kernels::Isa::Avx2 => return unsafe { avx2($($argument),*) },
                    $crate::kernels::Isa::Scalar => {}
                }
            }
            let _ = isa;
            $body($($argument),*)
        }
    };
}
pub(super) use for_each_isa;
