//! Gradient codecs.
