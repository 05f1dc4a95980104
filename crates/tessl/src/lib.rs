//! tessl
