//! Short names, and what objc2-metal leaves to its user: thread safety and error texts.

use crate::error::{DeviceError, Scope};
use objc2::Message;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString};

/// A retained Metal object.
pub(super) type Obj<T> = Retained<ProtocolObject<T>>;

/// A Metal object that one thread uses at a time. Its owner keeps it behind a lock or hands it on as a whole.
pub(super) struct Own<T>(pub(super) T);

// SAFETY: Metal objects have no thread affinity; those without a promise of their own only forbid concurrent use, which
// exclusive ownership rules out.
unsafe impl<T> Send for Own<T> {}

pub(super) fn ns(text: &str) -> Retained<NSString> {
    NSString::from_str(text)
}

pub(super) fn items<T: Message>(array: &NSArray<T>) -> impl Iterator<Item = Retained<T>> {
    (0..array.count()).map(|index| array.objectAtIndex(index))
}

pub(super) fn error(op: &'static str, error: &NSError, context: &str, scope: Scope) -> DeviceError {
    let text = error.localizedDescription().to_string();
    let message = if context.is_empty() { text } else { format!("{context}: {text}") };
    DeviceError { op, code: i64::try_from(error.code()).unwrap_or(-1), message, scope }
}

/// The device would not make an object and gives no reason.
pub(super) fn none(op: &'static str) -> crate::error::Error {
    crate::error::Error::device(op, 0, "Metal returned no object", Scope::Call)
}
