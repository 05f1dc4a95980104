//! An Objective-C runtime: the functions that objc2 imports, for objects that are Rust values.

use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicIsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// A class: its name, and how its objects are dropped.
#[repr(C)]
pub struct Class {
    isa: *const Class,
    pub name: &'static CStr,
    /// Makes an empty object, for classes that the host code instantiates.
    pub make: fn() -> *mut Header,
}

// SAFETY: classes are never written.
unsafe impl Sync for Class {}

static META: Class = Class { isa: ptr::null(), name: c"Meta", make: no_instances };

fn no_instances() -> *mut Header {
    panic!("the mock does not instantiate this class")
}

impl Class {
    /// A class whose objects only the driver makes.
    pub const fn inner(name: &'static CStr) -> Self {
        Class { isa: &META, name, make: no_instances }
    }

    pub const fn new(name: &'static CStr, make: fn() -> *mut Header) -> Self {
        Class { isa: &META, name, make }
    }
}

/// What every object starts with.
#[repr(C)]
pub struct Header {
    isa: *const Class,
    count: AtomicIsize,
    free: unsafe fn(*mut Header),
}

/// An object with a Rust value inside.
#[repr(C)]
pub struct Object<T> {
    header: Header,
    pub body: T,
}

/// A new object with one reference, as its address.
pub fn make<T>(class: &'static Class, body: T) -> *mut Header {
    unsafe fn free<T>(object: *mut Header) {
        // SAFETY: made by `make` with this type; the last reference is gone.
        drop(unsafe { Box::from_raw(object.cast::<Object<T>>()) });
    }
    let header = Header { isa: class, count: AtomicIsize::new(1), free: free::<T> };
    Box::into_raw(Box::new(Object { header, body })).cast()
}

/// The value of an object.
///
/// # Safety
/// `object` is alive and was made with this type.
pub unsafe fn body<'a, T>(object: *const Header) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &(*object.cast::<Object<T>>()).body }
}

/// The class of an object.
///
/// # Safety
/// `object` is alive.
pub unsafe fn class_of<'a>(object: *const Header) -> &'a Class {
    // SAFETY: the caller's promise; classes are never freed.
    unsafe { &*(*object).isa }
}

pub fn retain(object: *mut Header) -> *mut Header {
    if !object.is_null() {
        // SAFETY: a message receiver or argument is alive.
        unsafe { &*object }.count.fetch_add(1, Ordering::Relaxed);
    }
    object
}

pub fn release(object: *mut Header) {
    if object.is_null() {
        return;
    }
    // SAFETY: the caller owns a reference, so the object is alive.
    let header = unsafe { &*object };
    let before = header.count.fetch_sub(1, Ordering::AcqRel);
    assert!(before > 0, "an object was released more often than retained");
    if before == 1 {
        // SAFETY: that was the last reference.
        unsafe { (header.free)(object) };
    }
}

thread_local! {
    static POOLS: RefCell<Vec<Vec<*mut Header>>> = const { RefCell::new(Vec::new()) };
}

/// Releases an object when the innermost pool ends.
pub fn autorelease(object: *mut Header) -> *mut Header {
    POOLS.with_borrow_mut(|pools| match pools.last_mut() {
        Some(pool) => pool.push(object),
        None => crate::report::note("an object was autoreleased outside a pool and leaks"),
    });
    object
}

/// A selector's name; equal names have one address.
pub type Sel = *const c_char;

/// The name of a selector, interned.
pub fn selector(name: &CStr) -> Sel {
    static NAMES: OnceLock<Mutex<HashMap<CString, usize>>> = OnceLock::new();
    let mut names = NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return *known as Sel;
    }
    let address = Box::leak(name.to_owned().into_boxed_c_str()).as_ptr();
    names.insert(name.to_owned(), address as usize);
    address
}

/// The code of a method.
pub type Imp = unsafe extern "C-unwind" fn();

/// The methods of all classes.
pub struct Methods(FxHashMap<(usize, usize), Imp>);

impl Methods {
    pub fn add(&mut self, class: &'static Class, name: &CStr, code: Imp) {
        let clash = self.0.insert((class as *const Class as usize, selector(name) as usize), code);
        assert!(clash.is_none(), "two methods -[{:?} {name:?}]", class.name);
    }
}

fn methods() -> &'static Methods {
    static METHODS: OnceLock<Methods> = OnceLock::new();
    METHODS.get_or_init(|| {
        let mut methods = Methods(FxHashMap::default());
        crate::register(&mut methods);
        methods
    })
}

unsafe extern "C-unwind" fn new_object(class: *const Class, _: Sel) -> *mut Header {
    // SAFETY: the receiver of +new and +alloc is a class.
    (unsafe { &*class }.make)()
}

unsafe extern "C-unwind" fn init_object(object: *mut Header, _: Sel) -> *mut Header {
    object
}

/// The code for a message, or the end of the process with the message's name: a call that the mock does not know must
/// not pass in silence.
#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: *mut Header, sel: Sel) -> Imp {
    // SAFETY: objc2 sends no message to nil, and both objects and classes start with `isa`.
    let class = unsafe { (*receiver).isa };
    if let Some(code) = methods().0.get(&(class as usize, sel as usize)) {
        return *code;
    }
    // SAFETY: selectors are interned strings, classes have names.
    let (name, class_name) = unsafe { (CStr::from_ptr(sel), (*class).name) };
    if ptr::eq(class, &META) {
        // SAFETY: the receiver is a class.
        let receiver = unsafe { (*receiver.cast::<Class>()).name };
        match name.to_bytes() {
            b"new" | b"alloc" => {
                // SAFETY: every method is called with the signature that its name implies.
                return unsafe { std::mem::transmute::<unsafe extern "C-unwind" fn(_, _) -> _, Imp>(new_object) };
            }
            _ => {
                let key = (receiver.as_ptr() as usize, sel as usize);
                if let Some(code) = class_methods().get(&key) {
                    return *code;
                }
                eprintln!("mock: no +[{} {}]", receiver.to_string_lossy(), name.to_string_lossy());
            }
        }
    } else if name.to_bytes() == b"init" {
        // SAFETY: as above.
        return unsafe { std::mem::transmute::<unsafe extern "C-unwind" fn(_, _) -> _, Imp>(init_object) };
    } else {
        eprintln!("mock: no -[{} {}]", class_name.to_string_lossy(), name.to_string_lossy());
    }
    std::process::abort()
}

/// Class methods by class name and selector.
static CLASS_METHODS: RwLock<Option<&'static FxHashMap<(usize, usize), Imp>>> = RwLock::new(None);

fn class_methods() -> &'static FxHashMap<(usize, usize), Imp> {
    if let Some(known) = *CLASS_METHODS.read().unwrap_or_else(PoisonError::into_inner) {
        return known;
    }
    let mut table = FxHashMap::default();
    for (class, name, code) in crate::class_methods() {
        table.insert((class.name.as_ptr() as usize, selector(name) as usize), code);
    }
    CLASS_METHODS.write().unwrap_or_else(PoisonError::into_inner).insert(Box::leak(Box::new(table)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_registerName(name: *const c_char) -> Sel {
    // SAFETY: objc2 passes C strings.
    selector(unsafe { CStr::from_ptr(name) })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_getName(sel: Sel) -> *const c_char {
    sel
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_isEqual(a: Sel, b: Sel) -> bool {
    ptr::eq(a, b)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn object_getClass(object: *const Header) -> *const Class {
    // SAFETY: objects and classes start with `isa`.
    unsafe { (*object).isa }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getName(class: *const Class) -> *const c_char {
    // SAFETY: a class of this runtime.
    unsafe { (*class).name.as_ptr() }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_isMetaClass(class: *const Class) -> bool {
    ptr::eq(class, &META)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getSuperclass(_: *const Class) -> *const Class {
    ptr::null()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getInstanceMethod(_: *const Class, _: Sel) -> *const c_void {
    ptr::null()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_getClass(_: *const c_char) -> *const Class {
    ptr::null()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn method_getName(_: *const c_void) -> Sel {
    ptr::null()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn method_getTypeEncoding(_: *const c_void) -> *const c_char {
    ptr::null()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retain(object: *mut Header) -> *mut Header {
    retain(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_release(object: *mut Header) {
    release(object);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(object: *mut Header) -> *mut Header {
    retain(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autorelease(object: *mut Header) -> *mut Header {
    autorelease(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleaseReturnValue(object: *mut Header) -> *mut Header {
    autorelease(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    POOLS.with_borrow_mut(|pools| {
        pools.push(Vec::new());
        pools.len() as *mut c_void
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(context: *mut c_void) {
    loop {
        let objects = POOLS.with_borrow_mut(|pools| (pools.len() >= context as usize).then(|| pools.pop()).flatten());
        let Some(objects) = objects else { return };
        objects.into_iter().for_each(release);
    }
}

/// A block, by Clang's block ABI.
#[repr(C)]
pub struct Block {
    isa: *const c_void,
    flags: AtomicI32,
    _reserved: c_int,
    invoke: unsafe extern "C-unwind" fn(*mut Block, *mut Header),
    descriptor: *const Descriptor,
}

#[repr(C)]
struct Descriptor {
    _reserved: usize,
    size: usize,
    copy: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void)>,
    dispose: Option<unsafe extern "C-unwind" fn(*mut c_void)>,
}

const NEEDS_FREE: i32 = 1 << 24;
const HAS_COPY_DISPOSE: i32 = 1 << 25;
const IS_GLOBAL: i32 = 1 << 28;
const ONE: i32 = 2;
const COUNT: i32 = 0xfffe;

/// A block that the driver holds.
pub struct Held(*mut Block);

// SAFETY: Metal calls commit handlers from a thread of its own; the host code makes them fit for that.
unsafe impl Send for Held {}

impl Held {
    /// # Safety
    /// `block` points to a block that takes one object.
    pub unsafe fn copy(block: *mut Block) -> Self {
        Held(_Block_copy(block))
    }

    /// # Safety
    /// `argument` is an object of the type that the block takes.
    pub unsafe fn call(&self, argument: *mut Header) {
        // SAFETY: the block is alive; the caller vouches for the argument.
        unsafe { ((*self.0).invoke)(self.0, argument) };
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        _Block_release(self.0);
    }
}

#[unsafe(no_mangle)]
static _NSConcreteStackBlock: [usize; 32] = [0; 32];
#[unsafe(no_mangle)]
static _NSConcreteGlobalBlock: [usize; 32] = [0; 32];
static MALLOC_BLOCK: [usize; 32] = [0; 32];

#[unsafe(no_mangle)]
extern "C-unwind" fn _Block_copy(block: *mut Block) -> *mut Block {
    // SAFETY: a block of Clang's layout; blocks with the flag have helper functions.
    unsafe {
        let flags = (*block).flags.load(Ordering::Relaxed);
        if flags & NEEDS_FREE != 0 {
            (*block).flags.fetch_add(ONE, Ordering::Relaxed);
            return block;
        }
        if flags & IS_GLOBAL != 0 {
            return block;
        }
        let size = (*(*block).descriptor).size;
        let copy = std::alloc::alloc(layout(size)).cast::<Block>();
        ptr::copy_nonoverlapping(block.cast::<u8>(), copy.cast::<u8>(), size);
        (*copy).isa = MALLOC_BLOCK.as_ptr().cast();
        (*copy).flags.store((flags & !COUNT) | NEEDS_FREE | ONE, Ordering::Relaxed);
        if flags & HAS_COPY_DISPOSE != 0
            && let Some(helper) = (*(*block).descriptor).copy
        {
            helper(copy.cast(), block.cast());
        }
        copy
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn _Block_release(block: *mut Block) {
    // SAFETY: as in `_Block_copy`; the caller owns a reference.
    unsafe {
        let flags = (*block).flags.load(Ordering::Relaxed);
        if flags & NEEDS_FREE == 0 || (*block).flags.fetch_sub(ONE, Ordering::AcqRel) & COUNT != ONE {
            return;
        }
        if flags & HAS_COPY_DISPOSE != 0
            && let Some(helper) = (*(*block).descriptor).dispose
        {
            helper(block.cast());
        }
        std::alloc::dealloc(block.cast(), layout((*(*block).descriptor).size));
    }
}

fn layout(size: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(size, 16).expect("a block's size")
}
