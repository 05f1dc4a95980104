//! The few classes of Foundation that the host code uses, and bags of properties for descriptors.

use crate::runtime::{Class, Header, Imp, Methods, Sel, autorelease, body, make, release, retain};
use rustc_hash::FxHashMap;
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Exports a class under the name that objc2 links with.
macro_rules! class {
    ($(#[$doc:meta])* $symbol:ident, $name:literal, $text:literal, $make:expr) => {
        $(#[$doc])*
        #[unsafe(export_name = $name)]
        pub static $symbol: Class = Class::new($text, $make);
    };
}
pub(crate) use class;

/// The code of a method, given as a closure with the message's signature.
macro_rules! imp {
    (|$($arg:ident: $kind:ty),*| -> $ret:ty $body:block) => {{
        unsafe extern "C-unwind" fn code($($arg: $kind),*) -> $ret $body
        // SAFETY: the runtime calls a method only for its own selector, whose signature this is.
        unsafe { std::mem::transmute::<unsafe extern "C-unwind" fn($($kind),*) -> $ret, $crate::runtime::Imp>(code) }
    }};
}
pub(crate) use imp;

class!(STRING, "_OBJC_CLASS_NSString", c"NSString", || make(&STRING, OnceLock::<CString>::new()));
class!(ARRAY, "_OBJC_CLASS_NSArray", c"NSArray", || make(&ARRAY, OnceLock::<Items>::new()));
class!(URL, "_OBJC_CLASS_NSURL", c"NSURL", || make(&URL, OnceLock::<CString>::new()));
class!(PROCESS, "_OBJC_CLASS_NSProcessInfo", c"NSProcessInfo", || make(&PROCESS, ()));
class!(ERROR, "_OBJC_CLASS_NSError", c"NSError", || make(&ERROR, ErrorBody { code: 0, text: CString::default() }));

struct Items(Vec<*mut Header>);

impl Drop for Items {
    fn drop(&mut self) {
        self.0.drain(..).for_each(release);
    }
}

struct ErrorBody {
    code: isize,
    text: CString,
}

/// A new string with one reference.
pub fn string(text: &str) -> *mut Header {
    let text = CString::new(text.replace('\0', " ")).expect("no NUL left");
    make(&STRING, OnceLock::from(text))
}

/// The text of a string or the path of a URL; empty for nil.
pub fn text<'a>(object: *const Header) -> &'a str {
    if object.is_null() {
        return "";
    }
    // SAFETY: callers pass strings and URLs, which have the same body.
    let content = unsafe { body::<OnceLock<CString>>(object) };
    content.get().and_then(|s| s.to_str().ok()).unwrap_or("")
}

/// A new error with one reference.
pub fn error(code: isize, text: &str) -> *mut Header {
    make(&ERROR, ErrorBody { code, text: CString::new(text).unwrap_or_default() })
}

/// Writes an autoreleased error where the caller wants it, and returns nil.
///
/// # Safety
/// `out` is null or valid for one pointer.
pub unsafe fn fail(out: *mut *mut Header, code: isize, text: &str) -> *mut Header {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *out = autorelease(error(code, text)) };
    }
    ptr::null_mut()
}

/// A new array with one reference, which takes over those of its items.
pub fn array(items: Vec<*mut Header>) -> *mut Header {
    make(&ARRAY, OnceLock::from(Items(items)))
}

/// The major version of macOS that the process seems to run on.
static OS: AtomicIsize = AtomicIsize::new(26);

/// Makes the process seem to run on this macOS. For all threads.
pub fn set_macos(major: isize) {
    OS.store(major, Ordering::SeqCst);
}

#[repr(C)]
struct Version {
    major: isize,
    minor: isize,
    patch: isize,
}

unsafe extern "C-unwind" fn process_info(_: *const Class, _: Sel) -> *mut Header {
    autorelease(make(&PROCESS, ()))
}

unsafe extern "C-unwind" fn file_url(_: *const Class, _: Sel, path: *const Header) -> *mut Header {
    autorelease(make(&URL, OnceLock::from(CString::new(text(path)).expect("a string has no NUL"))))
}

/// Methods of classes themselves.
pub fn class_methods() -> Vec<(&'static Class, &'static CStr, Imp)> {
    // SAFETY: each is called for its own selector only.
    unsafe {
        vec![
            (
                &PROCESS,
                c"processInfo",
                std::mem::transmute::<unsafe extern "C-unwind" fn(_, _) -> _, Imp>(process_info),
            ),
            (
                &URL,
                c"fileURLWithPath:",
                std::mem::transmute::<unsafe extern "C-unwind" fn(_, _, _) -> _, Imp>(file_url),
            ),
        ]
    }
}

pub fn register(m: &mut Methods) {
    m.add(
        &STRING,
        c"initWithBytes:length:encoding:",
        imp!(|this: *mut Header, _s: Sel, bytes: *const u8, length: usize, _encoding: usize| -> *mut Header {
            // SAFETY: objc2 passes a string slice; the receiver is a fresh string.
            let (bytes, content) =
                unsafe { (std::slice::from_raw_parts(bytes, length), body::<OnceLock<CString>>(this)) };
            let _ = content.set(CString::new(bytes).unwrap_or_default());
            this
        }),
    );
    m.add(
        &STRING,
        c"UTF8String",
        imp!(|this: *mut Header, _s: Sel| -> *const c_char {
            // SAFETY: the receiver is a string.
            unsafe { body::<OnceLock<CString>>(this) }.get().map_or(c"".as_ptr(), |s| s.as_ptr())
        }),
    );
    m.add(
        &STRING,
        c"lengthOfBytesUsingEncoding:",
        imp!(|this: *mut Header, _s: Sel, _encoding: usize| -> usize { text(this).len() }),
    );
    m.add(
        &ERROR,
        c"code",
        imp!(|this: *mut Header, _s: Sel| -> isize {
            // SAFETY: the receiver is an error.
            unsafe { body::<ErrorBody>(this) }.code
        }),
    );
    m.add(
        &ERROR,
        c"localizedDescription",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            // SAFETY: the receiver is an error.
            autorelease(string(&unsafe { body::<ErrorBody>(this) }.text.to_string_lossy()))
        }),
    );
    m.add(
        &ARRAY,
        c"initWithObjects:count:",
        imp!(|this: *mut Header, _s: Sel, objects: *const *mut Header, count: usize| -> *mut Header {
            let mut items = Vec::new();
            if count > 0 {
                // SAFETY: the caller passes `count` objects.
                items = unsafe { std::slice::from_raw_parts(objects, count) }.iter().map(|o| retain(*o)).collect();
            }
            // SAFETY: the receiver is a fresh array.
            let _ = unsafe { body::<OnceLock<Items>>(this) }.set(Items(items));
            this
        }),
    );
    m.add(
        &ARRAY,
        c"count",
        imp!(|this: *mut Header, _s: Sel| -> usize {
            // SAFETY: the receiver is an array.
            unsafe { body::<OnceLock<Items>>(this) }.get().map_or(0, |i| i.0.len())
        }),
    );
    m.add(
        &ARRAY,
        c"objectAtIndex:",
        imp!(|this: *mut Header, _s: Sel, index: usize| -> *mut Header {
            // SAFETY: the receiver is an array.
            unsafe { body::<OnceLock<Items>>(this) }.get().expect("a filled array").0[index]
        }),
    );
    m.add(
        &PROCESS,
        c"operatingSystemVersionString",
        imp!(|_this: *mut Header, _s: Sel| -> *mut Header {
            autorelease(string(&format!("Version {}.1 (Build 25A1)", OS.load(Ordering::SeqCst))))
        }),
    );
    m.add(
        &PROCESS,
        c"operatingSystemVersion",
        imp!(|_this: *mut Header, _s: Sel| -> Version {
            Version { major: OS.load(Ordering::SeqCst), minor: 1, patch: 0 }
        }),
    );
}

/// Properties of a descriptor, by setter.
#[derive(Default)]
pub struct Bag(Mutex<FxHashMap<usize, Value>>);

enum Value {
    Word(usize),
    Object(usize),
}

impl Drop for Value {
    fn drop(&mut self) {
        if let Value::Object(object) = *self {
            release(object as *mut Header);
        }
    }
}

impl Bag {
    fn set(&self, sel: Sel, value: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(sel as usize, value);
    }

    pub fn set_word(&self, sel: Sel, word: usize) {
        self.set(sel, Value::Word(word));
    }

    /// What the setter of this name was given last: a number, or an object's address.
    pub fn get(&self, setter: &CStr) -> Option<usize> {
        let sel = crate::runtime::selector(setter) as usize;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&sel).map(|v| match *v {
            Value::Word(word) | Value::Object(word) => word,
        })
    }

    /// The object that the setter of this name was given; nil if none.
    pub fn object(&self, setter: &CStr) -> *mut Header {
        self.get(setter).unwrap_or(0) as *mut Header
    }
}

/// Adds setters to a class whose body is a [`Bag`].
pub fn properties(m: &mut Methods, class: &'static Class, objects: &[&CStr], words: &[&CStr]) {
    for name in objects {
        m.add(
            class,
            name,
            imp!(|this: *mut Header, sel: Sel, value: *mut Header| -> () {
                // SAFETY: the receiver is a descriptor.
                unsafe { body::<Bag>(this) }.set(sel, Value::Object(retain(value) as usize));
            }),
        );
    }
    for name in words {
        m.add(
            class,
            name,
            imp!(|this: *mut Header, sel: Sel, value: usize| -> () {
                // SAFETY: the receiver is a descriptor.
                unsafe { body::<Bag>(this) }.set(sel, Value::Word(value));
            }),
        );
    }
}
