//! NVRTC through our own table: text to cubin, with the compiler's log.

use super::loader::{self, Wanted};
use crate::error::{Error, Result, Scope};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;

type Program = *mut c_void;

#[derive(Clone, Copy)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
}

impl Functions {
    /// # Safety
    /// `library` is NVRTC and stays open for as long as the table is used.
    unsafe fn resolve(library: &Library) -> Result<Self, String> {
        /// # Safety
        /// The symbol has type `T`.
        unsafe fn get<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
            // SAFETY: the caller vouches for the type.
            let found = unsafe { library.get::<T>(name.as_bytes()) };
            found.map(|s| *s).map_err(|_| format!("symbol {name} is missing"))
        }
        // SAFETY: the types are those of nvrtc.h, unchanged since CUDA 11.1.
        unsafe {
            Ok(Functions {
                version: get(library, "nvrtcVersion")?,
                error_string: get(library, "nvrtcGetErrorString")?,
                create: get(library, "nvrtcCreateProgram")?,
                destroy: get(library, "nvrtcDestroyProgram")?,
                compile: get(library, "nvrtcCompileProgram")?,
                log_size: get(library, "nvrtcGetProgramLogSize")?,
                log: get(library, "nvrtcGetProgramLog")?,
                cubin_size: get(library, "nvrtcGetCUBINSize")?,
                cubin: get(library, "nvrtcGetCUBIN")?,
            })
        }
    }
}

/// A compiled source.
#[derive(Debug)]
pub(super) struct Compiled {
    /// The cubin.
    pub(super) cubin: Vec<u8>,
    /// What the compiler and the assembler said.
    pub(super) log: String,
}

/// Headers offered to a source by name.
pub(super) type Headers<'a> = &'a [(&'a str, &'a str)];

/// The opened compiler. Thread-safe, as NVRTC is. Never closed, as its builtins library is found by being open.
pub(super) struct Nvrtc {
    f: Functions,
    /// Major and minor version.
    pub(super) version: (i32, i32),
    _library: ManuallyDrop<Library>,
}

impl Nvrtc {
    /// Opens the compiler.
    ///
    /// # Errors
    /// One line that names every path tried.
    pub(super) fn load(user: Option<&Path>) -> Result<Self, String> {
        loader::find(Wanted::Nvrtc, user, |library, path| {
            // SAFETY: a library of this name with these symbols is NVRTC; it is never closed.
            let f = unsafe { Functions::resolve(&library)? };
            let (mut major, mut minor) = (0, 0);
            // SAFETY: both pointers are valid for one int.
            if unsafe { (f.version)(&mut major, &mut minor) } != 0 {
                return Err("nvrtcVersion failed".to_owned());
            }
            if let Some(folder) = path.parent().filter(|f| f.is_absolute()) {
                open_builtins(folder, major, minor);
            }
            Ok(Nvrtc { f, version: (major, minor), _library: ManuallyDrop::new(library) })
        })
    }

    /// Compiles `source` to a cubin.
    ///
    /// # Errors
    /// `Device` with the compiler's log.
    pub(super) fn compile(
        &self,
        name: &str,
        source: &str,
        headers: Headers<'_>,
        options: &[String],
    ) -> Result<Compiled> {
        let c_string = |text: &str| {
            CString::new(text).map_err(|_| Error::device("nvrtc", 0, "source or option holds a NUL byte", Scope::Call))
        };
        let c_strings = |texts: &mut dyn Iterator<Item = &str>| texts.map(c_string).collect::<Result<Vec<_>>>();
        let (source, file) = (c_string(source)?, c_string(name)?);
        let options = c_strings(&mut options.iter().map(String::as_str))?;
        let header_names = c_strings(&mut headers.iter().map(|h| h.0))?;
        let header_texts = c_strings(&mut headers.iter().map(|h| h.1))?;
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (options, names, texts) = (pointers(&options), pointers(&header_names), pointers(&header_texts));

        let mut program = Owned { f: &self.f, program: ptr::null_mut() };
        // SAFETY: every pointer is to a NUL-terminated string that lives until the end of this function.
        let code = unsafe {
            let count = small(names.len());
            let (texts, names) = (texts.as_ptr(), names.as_ptr());
            (self.f.create)(&mut program.program, source.as_ptr(), file.as_ptr(), count, texts, names)
        };
        self.check(code, name, "")?;
        // SAFETY: the program was created above and the options are as many strings as told.
        let code = unsafe { (self.f.compile)(program.program, small(options.len()), options.as_ptr()) };
        let log = self.fetch(program.program, self.f.log_size, self.f.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        self.check(code, name, &log)?;
        match self.fetch(program.program, self.f.cubin_size, self.f.cubin) {
            Ok(cubin) if !cubin.is_empty() => Ok(Compiled { cubin, log }),
            Ok(_) => Err(Error::device("nvrtc", 0, format!("{name}: no cubin; {log}"), Scope::Call)),
            Err(code) => self.check(code, name, &log).map(|()| Compiled { cubin: Vec::new(), log }),
        }
    }

    /// One of the program's byte arrays.
    fn fetch(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, c_int> {
        let mut bytes = 0;
        // SAFETY: the program lives and the pointer is valid for one size.
        let code = unsafe { size(program, &mut bytes) };
        let mut data = vec![0u8; bytes];
        if code == 0 && bytes > 0 {
            // SAFETY: the buffer has the size that NVRTC asked for.
            let code = unsafe { get(program, data.as_mut_ptr().cast()) };
            return if code == 0 { Ok(data) } else { Err(code) };
        }
        if code == 0 { Ok(data) } else { Err(code) }
    }

    fn check(&self, code: c_int, name: &str, log: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC answers every number with a static string.
        let text = unsafe { (self.f.error_string)(code).as_ref().map(|first| CStr::from_ptr(first)) };
        let text = text.map_or_else(|| "unknown".into(), CStr::to_string_lossy);
        let separator = if log.is_empty() { "" } else { "\n" };
        Err(Error::device("nvrtc", i64::from(code), format!("{name}: {text}{separator}{log}"), Scope::Call))
    }
}

/// Destroys the program on every way out.
struct Owned<'a> {
    f: &'a Functions,
    program: Program,
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: the program was created by this table and is destroyed once.
            unsafe { (self.f.destroy)(&mut self.program) };
        }
    }
}

/// NVRTC opens its builtins by bare name at the first compile and fails there when their folder is not on the loader's
/// path; once open under their soname they are found.
fn open_builtins(folder: &Path, major: c_int, minor: c_int) {
    if !cfg!(windows)
        && let Ok(library) = loader::open(&folder.join(format!("libnvrtc-builtins.so.{major}.{minor}")))
    {
        std::mem::forget(library);
    }
}

/// Counts of options and headers, a dozen at most.
fn small(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}
