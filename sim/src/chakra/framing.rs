//! Messages one after the other, each behind its length.

use std::path::Path;

use nearfield_runtime::{Error, Result};
use prost::Message;

/// Longest message. An attribute without content has two bytes in a file and some fifty times as many in memory, so
/// that this bounds what decoding a damaged file can allocate. Nodes have some hundred bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// What to do about a file that is not whole.
pub(super) const COPY_AGAIN: &str = "the file was cut short or damaged: write or copy it again";

/// Appends a message.
///
/// # Errors
/// [`Error::Invalid`] when it is longer than readers take.
pub(super) fn put(bytes: &mut Vec<u8>, message: &impl Message) -> Result<()> {
    let length = message.encoded_len();
    if length > MESSAGE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "a message of {length} bytes is longer than the {MESSAGE_BYTES_MAX} that are read back from a Chakra \
             trace; write a smaller graph"
        )));
    }
    bytes.extend(message.encode_length_delimited_to_vec());
    Ok(())
}

/// Decodes the message at `at` and moves `at` behind it; `None` at the end of the file.
///
/// # Errors
/// [`Error::Format`] that names the file and `what` the message should be.
pub(super) fn next<M: Message + Default>(
    path: &Path,
    bytes: &[u8],
    at: &mut usize,
    what: impl Fn() -> String,
) -> Result<Option<M>> {
    let mut rest = &bytes[*at..];
    if rest.is_empty() {
        return Ok(None);
    }
    let damaged = |why: String| Error::Format {
        path: path.to_path_buf(),
        what: format!("{} at byte {at} {why}", what()),
        remedy: COPY_AGAIN.into(),
    };
    let length = prost::decode_length_delimiter(&mut rest)
        .map_err(|_| damaged("has no valid length".into()))?;
    if length > rest.len() {
        let left = rest.len();
        return Err(damaged(format!("has a length of {length} bytes, but {left} are left")));
    }
    if length > MESSAGE_BYTES_MAX {
        return Err(damaged(format!("is longer than {MESSAGE_BYTES_MAX} bytes: {length}")));
    }
    let message =
        M::decode(&rest[..length]).map_err(|error| damaged(format!("cannot be read ({error})")))?;
    *at = bytes.len() - rest.len() + length;
    Ok(Some(message))
}
