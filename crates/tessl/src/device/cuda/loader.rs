//! Finding shared libraries: a path given by the user, then the system loader; never the working directory.

use libloading::Library;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Which of the two libraries is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The driver, part of the GPU's installation.
    Driver,
    /// The run-time compiler, part of the CUDA toolkit.
    Nvrtc,
}

impl Wanted {
    /// File names, newest first. The unversioned name is last: it may belong to another CUDA.
    fn names(self) -> &'static [&'static str] {
        match (self, cfg!(windows)) {
            (Wanted::Driver, true) => &["nvcuda.dll"],
            (Wanted::Driver, false) => &["libcuda.so.1", "libcuda.so"],
            (Wanted::Nvrtc, true) => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
            (Wanted::Nvrtc, false) => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
        }
    }

    /// Folders searched after the system loader.
    fn folders(self) -> &'static [&'static str] {
        match (self, cfg!(windows)) {
            (Wanted::Nvrtc, false) => &["/usr/local/cuda/lib64"],
            _ => &[],
        }
    }
}

/// Every path or name to try, in order. `user` is the value of `TESSL_CUDA_LIB`: a folder, or the file of one library
/// (a file whose name contains `nvrtc` is the compiler, any other the driver). A relative path would be looked up in
/// the working directory and is left out; `refused` says so.
pub(super) fn candidates(wanted: Wanted, user: Option<&Path>) -> (Vec<PathBuf>, Option<String>) {
    let mut list = Vec::new();
    let mut refused = None;
    match user {
        Some(path) if !path.is_absolute() => {
            refused = Some(format!("TESSL_CUDA_LIB={}: not an absolute path, ignored", path.display()));
        }
        Some(path) if path.is_file() => {
            let compiler = path.file_name().is_some_and(|n| n.to_string_lossy().contains("nvrtc"));
            if compiler == (wanted == Wanted::Nvrtc) {
                list.push(path.to_owned());
            }
        }
        Some(folder) => list.extend(wanted.names().iter().map(|n| folder.join(n))),
        None => {}
    }
    list.extend(wanted.names().iter().map(PathBuf::from));
    list.extend(wanted.folders().iter().flat_map(|f| wanted.names().iter().map(move |n| Path::new(f).join(n))));
    (list, refused)
}

/// The first library that opens and that `accept` takes, or one line that names everything tried.
pub(super) fn find<T>(
    wanted: Wanted,
    user: Option<&Path>,
    mut accept: impl FnMut(Library, &Path) -> Result<T, String>,
) -> Result<T, String> {
    let (list, refused) = candidates(wanted, user);
    let mut tried = refused.unwrap_or_default();
    for path in list {
        match open(&path).and_then(|library| accept(library, &path)) {
            Ok(found) => return Ok(found),
            Err(reason) => {
                let separator = if tried.is_empty() { "" } else { "; " };
                let _ = write!(tried, "{separator}{}: {reason}", path.display());
            }
        }
    }
    Err(tried)
}

/// Opens one library.
pub(super) fn open(path: &Path) -> Result<Library, String> {
    if path.is_absolute() && !path.exists() {
        return Err("no such file".to_owned());
    }
    #[cfg(windows)]
    // SAFETY: the initialisers are those of NVIDIA's libraries. The flag keeps the working directory out of the search.
    let library = unsafe {
        libloading::os::windows::Library::load_with_flags(
            path,
            libloading::os::windows::LOAD_LIBRARY_SEARCH_DEFAULT_DIRS,
        )
        .map(Library::from)
    };
    #[cfg(not(windows))]
    // SAFETY: the initialisers are those of NVIDIA's libraries; names without a slash are looked up by the system loader,
    // whose search does not include the working directory.
    let library = unsafe { Library::new(path) };
    library.map_err(|e| reason(&e, path))
}

/// The loader's own text, which is the error's source, without the path that the caller puts in front.
fn reason(error: &libloading::Error, path: &Path) -> String {
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix(&format!("{}: ", path.display())).unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_looked_up_in_the_working_directory() {
        let (list, refused) = candidates(Wanted::Driver, Some(Path::new("here")));
        assert!(refused.unwrap().contains("not an absolute path"));
        assert!(list.iter().all(|p| p.is_absolute() || p.components().count() == 1), "{list:?}");
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_comes_first_and_a_file_counts_for_its_own_library() {
        let (list, _) = candidates(Wanted::Nvrtc, Some(Path::new("/opt/cuda")));
        assert_eq!(list[0], Path::new("/opt/cuda/libnvrtc.so.13"));
        let file = std::env::temp_dir().join(format!("libnvrtc-{}.so", std::process::id()));
        std::fs::write(&file, b"").unwrap();
        assert_eq!(candidates(Wanted::Nvrtc, Some(&file)).0[0], file);
        assert_ne!(candidates(Wanted::Driver, Some(&file)).0[0], file);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn the_error_names_every_path() {
        let error = find::<()>(Wanted::Nvrtc, Some(Path::new("/nowhere")), |_, _| Err("refused".into())).unwrap_err();
        let (list, _) = candidates(Wanted::Nvrtc, Some(Path::new("/nowhere")));
        assert!(list.iter().all(|p| error.contains(&*p.to_string_lossy())), "{error}");
    }
}
