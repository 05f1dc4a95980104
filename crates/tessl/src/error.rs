//! The one error type of the crate.

use crate::dtype::DType;
use std::fmt;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the operation and operand as fields.
///
/// `Display` is one line that says what is, what should be and, where known, the fix. The type is at most 64 bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has the wrong shape for the call.
    #[error("{op}: operand `{operand}` {}", .detail)]
    Shape {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// Found and wanted.
        detail: Box<Mismatch>,
    },
    /// A tensor's strides, offset or aliasing do not fit the call.
    #[error("{op}: operand `{operand}` {}", .detail)]
    Layout {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// Found and wanted.
        detail: Box<Mismatch>,
    },
    /// A tensor has the wrong element type.
    #[error("{op}: operand `{operand}` is {actual} but must be {expected}")]
    DType {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// Element type found.
        actual: DType,
        /// Element types accepted.
        expected: &'static str,
    },
    /// The output shares memory with an input where the operation cannot work in place.
    #[error("{op}: output `{output}` overlaps input `{input}`; give the output memory of its own")]
    Overlap {
        /// Operation.
        op: &'static str,
        /// Output operand.
        output: &'static str,
        /// Input operand.
        input: &'static str,
    },
    /// Operands live on different runtimes.
    #[error("{op}: operand `{operand}` belongs to another runtime; copy it to this one with read() and write()")]
    WrongRuntime {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
    },
    /// A scalar argument is outside its domain.
    #[error("{op}: `{name}` is {value} but must be {expected}")]
    Scalar {
        /// Operation.
        op: &'static str,
        /// Argument.
        name: &'static str,
        /// Value given.
        value: f64,
        /// Domain.
        expected: &'static str,
    },
    /// A size passes a limit of the library or of the device.
    #[error("{op}: {what} is {value}, above the limit of {limit}")]
    TooLarge {
        /// Operation.
        op: &'static str,
        /// Quantity.
        what: &'static str,
        /// Value given.
        value: u64,
        /// Largest value accepted.
        limit: u64,
    },
    /// A device cannot be used on this machine.
    #[error("device `{}` is not available: {}{}", .0.device, .0.reason, help_suffix(&.0.help))]
    Unavailable(Box<Unavailable>),
    /// The device has no way to do what was asked.
    #[error("{op}: {what} is not supported on device `{device}`")]
    Unsupported {
        /// Operation.
        op: &'static str,
        /// Thing asked for.
        what: Box<str>,
        /// Device.
        device: &'static str,
    },
    /// The device or the configured limit has no room for an allocation.
    #[error("out of memory: {requested} bytes asked for, {in_use} in use, limit {limit}")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes in use by this runtime.
        in_use: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The driver or a kernel compiler reported an error.
    #[error("{}: {} (code {})", .0.op, .0.message, .0.code)]
    Device(Box<DeviceError>),
    /// A kernel met an input it must not use and skipped the store (reported when the device had finished).
    #[error("{op}: {kind} at index {index}: value {value} (found on the device; reported by a later call)")]
    Fault {
        /// Label of the command.
        op: &'static str,
        /// What the kernel found.
        kind: FaultKind,
        /// Position of the bad value.
        index: u64,
        /// The bad value.
        value: i64,
    },
    /// An earlier command of this stream failed.
    #[error("{op}: the stream is stopped by an earlier failure of `{failed}`; call Stream::recover() to go on")]
    Poisoned {
        /// Operation refused.
        op: &'static str,
        /// Label of the command that failed.
        failed: &'static str,
    },
    /// A CPU kernel panicked; the panic was caught.
    #[error("{op}: a CPU kernel panicked: {message}")]
    Panicked {
        /// Label of the command.
        op: &'static str,
        /// The panic's message.
        message: Box<str>,
    },
    /// A call does not fit the state of a capture or graph.
    #[error("{op}: {reason}")]
    Capture {
        /// Call refused.
        op: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Scratch memory would have to grow where it may not.
    #[error("{op}: needs {bytes} bytes of scratch inside a capture; call Stream::reserve({bytes}) before it")]
    Scratch {
        /// Operation.
        op: &'static str,
        /// Bytes needed.
        bytes: u64,
    },
    /// A Bump tensor was used after its step had ended.
    #[error("{op}: operand `{operand}` is a Bump tensor of a step that has ended")]
    Expired {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
    },
    /// Text could not be understood.
    #[error("{what}: `{text}` is not {expected}")]
    Parse {
        /// What was read.
        what: &'static str,
        /// Text found.
        text: Box<str>,
        /// What is accepted.
        expected: &'static str,
    },
    /// A name is taken or missing.
    #[error("{op}: {what} `{name}` {}", if *.taken { "exists already" } else { "does not exist" })]
    Name {
        /// Operation.
        op: &'static str,
        /// Kind of thing named.
        what: &'static str,
        /// The name.
        name: Box<str>,
        /// The name exists already (else it does not exist).
        taken: bool,
    },
    /// A wait ran past its time limit.
    #[error("{op}: not finished within {millis} ms")]
    Timeout {
        /// Call.
        op: &'static str,
        /// The limit.
        millis: u64,
    },
    /// A file could not be used.
    #[error("{op}: {}: {source}", .path.display())]
    Io {
        /// Operation.
        op: &'static str,
        /// The file.
        path: Box<std::path::Path>,
        /// Reason.
        source: std::io::Error,
    },
    /// The runtime was made by another process (before a fork).
    #[error("{op}: this runtime belongs to the parent process; make a new one after fork")]
    Forked {
        /// Call.
        op: &'static str,
    },
}

/// Found and wanted, as text; `help` only where a fix is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What the operand is.
    pub actual: String,
    /// What it must be.
    pub expected: String,
    /// The likely fix.
    pub help: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is {} but {}", self.actual, self.expected)?;
        match &self.help {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// Device asked for.
    pub device: String,
    /// What is missing.
    pub reason: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// An error of a driver or kernel compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceError {
    /// Command or call.
    pub op: &'static str,
    /// The driver's number.
    pub code: i64,
    /// The driver's text, with kernel and dimensions where known.
    pub message: String,
    /// How much of the session is lost.
    pub scope: Scope,
}

/// What a kernel found wrong in its input data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// An index lies outside its table.
    IndexOutOfRange,
    /// A cache has no room at the position given.
    CacheOverflow,
    /// A length read on the device is not valid.
    BadLength,
    /// A number read on the device is outside its domain, or NaN where none can be; the value holds its bits.
    BadValue,
    /// A number defined by the caller's own kernel.
    Custom(u32),
}

impl FaultKind {
    /// The kind with this number in a status block.
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => FaultKind::IndexOutOfRange,
            2 => FaultKind::CacheOverflow,
            3 => FaultKind::BadLength,
            4 => FaultKind::BadValue,
            other => FaultKind::Custom(other),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::IndexOutOfRange => f.write_str("index out of range"),
            FaultKind::CacheOverflow => f.write_str("cache overflow"),
            FaultKind::BadLength => f.write_str("bad length"),
            FaultKind::BadValue => f.write_str("bad value"),
            FaultKind::Custom(code) => write!(f, "kernel fault {code}"),
        }
    }
}

/// The class of an [`enum@Error`], stable across versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call's arguments are wrong; fix the call.
    InvalidArgument,
    /// The device cannot do this.
    Unsupported,
    /// The device is not there.
    Unavailable,
    /// No memory.
    OutOfMemory,
    /// The device failed.
    Device,
    /// Data on the device was invalid.
    Data,
    /// A call came in the wrong state.
    State,
    /// A file or the system failed.
    Io,
}

/// What an error leaves usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Only the call failed; nothing changed.
    Call,
    /// The stream must be recovered.
    Stream,
    /// The runtime must be dropped and made anew.
    Runtime,
}

fn help_suffix(help: &Option<String>) -> String {
    help.as_ref().map(|h| format!("; {h}")).unwrap_or_default()
}

impl Error {
    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Shape { .. }
            | Error::Layout { .. }
            | Error::DType { .. }
            | Error::Overlap { .. }
            | Error::WrongRuntime { .. }
            | Error::Scalar { .. }
            | Error::TooLarge { .. }
            | Error::Parse { .. }
            | Error::Name { .. } => ErrorKind::InvalidArgument,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::Unavailable(_) => ErrorKind::Unavailable,
            Error::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Error::Device(_) | Error::Panicked { .. } => ErrorKind::Device,
            Error::Fault { .. } => ErrorKind::Data,
            Error::Poisoned { .. }
            | Error::Capture { .. }
            | Error::Scratch { .. }
            | Error::Expired { .. }
            | Error::Timeout { .. }
            | Error::Forked { .. } => ErrorKind::State,
            Error::Io { .. } => ErrorKind::Io,
        }
    }

    /// What this error leaves usable.
    pub fn scope(&self) -> Scope {
        match self {
            Error::Device(e) => e.scope,
            Error::Fault { .. } | Error::Panicked { .. } | Error::Poisoned { .. } => Scope::Stream,
            Error::Forked { .. } => Scope::Runtime,
            _ => Scope::Call,
        }
    }

    pub(crate) fn parse(what: &'static str, text: &str, expected: &'static str) -> Self {
        Error::Parse { what, text: text.into(), expected }
    }

    pub(crate) fn shape(
        op: &'static str,
        operand: &'static str,
        actual: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        let detail = Mismatch { actual: actual.to_string(), expected: expected.into(), help: None };
        Error::Shape { op, operand, detail: Box::new(detail) }
    }

    pub(crate) fn layout(
        op: &'static str,
        operand: &'static str,
        actual: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        let detail = Mismatch { actual: actual.to_string(), expected: expected.into(), help: None };
        Error::Layout { op, operand, detail: Box::new(detail) }
    }

    /// Adds the likely fix to a shape or layout error.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        if let Error::Shape { detail, .. } | Error::Layout { detail, .. } = &mut self {
            detail.help = Some(help.into());
        }
        self
    }

    /// An error of a driver call, for devices.
    pub fn device(op: &'static str, code: i64, message: impl Into<String>, scope: Scope) -> Self {
        Error::Device(Box::new(DeviceError { op, code, message: message.into(), scope }))
    }

    /// A device that cannot be used.
    pub fn unavailable(device: impl Into<String>, reason: impl Into<String>, help: Option<String>) -> Self {
        Error::Unavailable(Box::new(Unavailable { device: device.into(), reason: reason.into(), help }))
    }

    /// A request that the device has no way to meet.
    pub fn unsupported(op: &'static str, what: impl Into<String>, device: &'static str) -> Self {
        Error::Unsupported { op, what: what.into().into_boxed_str(), device }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_small_and_portable() {
        assert!(size_of::<Error>() <= 64, "{}", size_of::<Error>());
        fn portable<T: Send + Sync + std::error::Error + 'static>() {}
        portable::<Error>();
    }

    #[test]
    fn display_is_one_line_with_the_fix() {
        let e = Error::shape("gemm", "b", "[1024, 512]", "k = 768 (from `a` [32, 768])").help("did you mean b.t()?");
        assert_eq!(
            e.to_string(),
            "gemm: operand `b` is [1024, 512] but k = 768 (from `a` [32, 768]); did you mean b.t()?"
        );
        assert_eq!((e.kind(), e.scope()), (ErrorKind::InvalidArgument, Scope::Call));
    }
}
