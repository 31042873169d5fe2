//! The version of the kernels: a digest of their sources. A bitstream carries it in the names of its kernels' instances.

const SOURCES: [(&str, &[u8]); 13] = [
    ("arithmetic.hpp", include_bytes!("../../../hls/kernels/arithmetic.hpp")),
    ("check_pairs.cpp", include_bytes!("../../../hls/kernels/check_pairs.cpp")),
    ("checksum.hpp", include_bytes!("../../../hls/kernels/checksum.hpp")),
    ("formats.hpp", include_bytes!("../../../hls/kernels/formats.hpp")),
    ("kernels.hpp", include_bytes!("../../../hls/kernels/kernels.hpp")),
    ("loops.hpp", include_bytes!("../../../hls/kernels/loops.hpp")),
    ("merge.hpp", include_bytes!("../../../hls/kernels/merge.hpp")),
    ("process.hpp", include_bytes!("../../../hls/kernels/process.hpp")),
    ("region.hpp", include_bytes!("../../../hls/kernels/region.hpp")),
    ("span.hpp", include_bytes!("../../../hls/kernels/span.hpp")),
    ("update.cpp", include_bytes!("../../../hls/kernels/update.cpp")),
    ("update_topk.cpp", include_bytes!("../../../hls/kernels/update_topk.cpp")),
    ("word.hpp", include_bytes!("../../../hls/kernels/word.hpp")),
];

/// Characters of a digest.
pub const DIGEST_LENGTH: usize = 8;

/// The digest of the kernels that this program was built with.
pub fn kernels_digest() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, source) in &SOURCES {
        hasher.update(name.as_bytes());
        hasher.update(&(source.len() as u64).to_le_bytes());
        hasher.update(source);
    }
    hasher.finalize().to_hex()[..DIGEST_LENGTH].to_owned()
}

/// Whether a text may be a digest.
pub fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_LENGTH
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The name of a kernel's instance in a bitstream.
pub fn instance_name(kernel: &str, digest: &str) -> String {
    format!("{kernel}_{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_counts() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../hls/kernels");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let known: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        assert_eq!(known, there);
        assert!(is_digest(&kernels_digest()));
        assert!(!is_digest("0123456G"));
    }
}
