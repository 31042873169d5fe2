//! Memory for transfers.
