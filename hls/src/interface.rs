//! Names and types of the kernels' arguments. Every caller binds them by name: the native build, the host of the card, the
//! card's emulation.

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Device memory that the kernel reads.
    Read,
    /// Device memory that the kernel writes.
    Write,
    /// A 32-bit number.
    U32,
    /// A 64-bit number.
    U64,
    /// An fp32 number.
    F32,
}

impl Kind {
    /// Whether it is device memory.
    pub const fn is_memory(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Bytes in the kernel's register file.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Read | Self::Write | Self::U64 => 8,
            Self::U32 | Self::F32 => 4,
        }
    }
}

/// One argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the sources.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Whether a drive reads or writes this memory directly.
    pub on_drive: bool,
}

/// One kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelInterface {
    /// Its name.
    pub name: &'static str,
    /// Its arguments, in the order of the sources.
    pub arguments: &'static [Argument],
}

impl KernelInterface {
    /// The place of an argument.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.arguments.iter().position(|argument| argument.name == name)
    }
}

const fn stored(name: &'static str, kind: Kind) -> Argument {
    Argument { name, kind, on_drive: true }
}

const fn own(name: &'static str, kind: Kind) -> Argument {
    Argument { name, kind, on_drive: false }
}

/// State and results, of both updates.
const STATE: [Argument; 8] = [
    stored("param_in", Kind::Read),
    stored("exp_avg_in", Kind::Read),
    stored("exp_avg_sq_in", Kind::Read),
    stored("param_out", Kind::Write),
    stored("exp_avg_out", Kind::Write),
    stored("exp_avg_sq_out", Kind::Write),
    own("weights_out", Kind::Write),
    own("result", Kind::Write),
];

/// What is updated, and by which rule.
const RUN: [Argument; 7] = [
    own("start", Kind::U64),
    own("elements", Kind::U64),
    own("begin", Kind::U64),
    own("end", Kind::U64),
    own("first_element", Kind::U64),
    own("origin", Kind::U64),
    own("rule", Kind::U32),
];

/// Formats, random bits and scalars.
const NUMBERS: [Argument; 14] = [
    own("moment_format", Kind::U32),
    own("weights_format", Kind::U32),
    own("key0", Kind::U32),
    own("key1", Kind::U32),
    own("unscale", Kind::F32),
    own("beta1", Kind::F32),
    own("one_minus_beta1", Kind::F32),
    own("beta2", Kind::F32),
    own("one_minus_beta2", Kind::F32),
    own("bias_root", Kind::F32),
    own("alpha", Kind::F32),
    own("eps", Kind::F32),
    own("omega", Kind::F32),
    own("decay", Kind::F32),
];

/// Lists one after the other, `N` arguments together.
const fn join<const N: usize>(lists: &[&[Argument]]) -> [Argument; N] {
    let mut joined = [lists[0][0]; N];
    let (mut list, mut at) = (0, 0);
    while list < lists.len() {
        let mut place = 0;
        while place < lists[list].len() {
            joined[at] = lists[list][place];
            at += 1;
            place += 1;
        }
        list += 1;
    }
    assert!(at == N, "as many arguments as the lists have");
    joined
}

/// The update rule on a dense gradient.
pub const UPDATE: KernelInterface = KernelInterface {
    name: "update",
    arguments: &join::<31>(&[
        &[stored("gradient", Kind::Read)],
        &STATE,
        &RUN,
        &[own("gradient_format", Kind::U32)],
        &NUMBERS,
    ]),
};

/// The update rule on kept pairs.
pub const UPDATE_TOPK: KernelInterface = KernelInterface {
    name: "update_topk",
    arguments: &join::<32>(&[
        &[stored("indices", Kind::Read), stored("values", Kind::Read), own("bounds", Kind::Read)],
        &STATE,
        &RUN,
        &NUMBERS,
    ]),
};

/// The check of kept pairs.
pub const CHECK_PAIRS: KernelInterface = KernelInterface {
    name: "check_pairs",
    arguments: &[
        stored("indices", Kind::Read),
        own("bounds", Kind::Write),
        own("result", Kind::Write),
        own("pairs", Kind::U32),
        own("elements", Kind::U64),
    ],
};

/// All kernels.
pub const KERNELS: [&KernelInterface; 3] = [&UPDATE, &UPDATE_TOPK, &CHECK_PAIRS];

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_char};

    use super::*;

    unsafe extern "C" {
        fn nearfield_letters_update() -> *const c_char;
        fn nearfield_letters_update_topk() -> *const c_char;
        fn nearfield_letters_check_pairs() -> *const c_char;
    }

    /// A letter for the type of each argument, as the compiler sees it.
    fn letters(kernel: &KernelInterface) -> String {
        // SAFETY: the functions give pointers to constant text.
        let text = unsafe {
            CStr::from_ptr(match kernel.name {
                "update" => nearfield_letters_update(),
                "update_topk" => nearfield_letters_update_topk(),
                _ => nearfield_letters_check_pairs(),
            })
        };
        text.to_string_lossy().into_owned()
    }

    fn letter(kind: Kind) -> char {
        match kind {
            Kind::Read => 'r',
            Kind::Write => 'w',
            Kind::U32 => 'i',
            Kind::U64 => 'l',
            Kind::F32 => 'f',
        }
    }

    /// Parameter names as the sources have them.
    fn names_in(source: &str, kernel: &str) -> Vec<String> {
        let head = format!("extern \"C\" void {kernel}(");
        let list = source
            .split(&head)
            .nth(1)
            .expect("the kernel's definition")
            .split(')')
            .next()
            .expect("its end");
        let name = |parameter: &str| {
            parameter
                .split_whitespace()
                .last()
                .unwrap_or_default()
                .trim_start_matches('*')
                .to_owned()
        };
        list.split(',').map(name).collect()
    }

    #[test]
    fn the_table_has_the_arguments_of_the_sources_in_their_order() {
        let sources = [
            include_str!("../kernels/update.cpp"),
            include_str!("../kernels/update_topk.cpp"),
            include_str!("../kernels/check_pairs.cpp"),
        ];
        for (kernel, source) in KERNELS.iter().zip(sources) {
            let table: Vec<&str> = kernel.arguments.iter().map(|argument| argument.name).collect();
            assert_eq!(table, names_in(source, kernel.name), "{}", kernel.name);
            let table: String = kernel.arguments.iter().map(|a| letter(a.kind)).collect();
            assert_eq!(table, letters(kernel), "{}", kernel.name);
        }
    }
}
