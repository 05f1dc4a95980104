//! Compiled kernels on disk: a folder of our own, one file per content hash, each with a digest of its contents.
//!
//! A wrong kernel would be wrong numbers or worse, so the folder must belong to the user and be closed to others, and
//! whatever does not match its digest is built again. Losing the cache costs time only: every failure here is a
//! miss, told once through `tracing`.

use crate::RuntimeOptions;
use sha2::{Digest, Sha256};
use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Format of an entry: this mark, the digest of the payload, the payload.
const MARK: &[u8; 8] = b"tesslk01";
const HEAD: usize = MARK.len() + 32;
/// Bytes kept; the oldest entries go first.
const CAPACITY: u64 = 256 << 20;

/// The folder, checked.
#[derive(Debug)]
pub(in crate::device) struct Cache {
    folder: PathBuf,
    capacity: u64,
}

/// The name of an entry: a hash of everything that decides the kernel.
pub(in crate::device) fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // The length keeps neighbouring parts apart.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|d| char::from(DIGITS[usize::from(d)])).collect()
}

impl Cache {
    /// The cache in `folder`, made if absent; `None`, with a warning, where it must not or cannot be used.
    pub(in crate::device) fn open(folder: &Path) -> Option<Self> {
        Self::with_capacity(folder, CAPACITY)
    }

    fn with_capacity(folder: &Path, capacity: u64) -> Option<Self> {
        match prepare(folder) {
            Ok(()) => Some(Cache { folder: folder.to_owned(), capacity }),
            Err(reason) => {
                tracing::warn!(
                    target: "tessl::cache",
                    "kernel cache {} is not used: {reason}; kernels are compiled again in every process",
                    folder.display()
                );
                None
            }
        }
    }

    /// The payload stored under `key`, if it is whole. A damaged entry is removed.
    pub(in crate::device) fn load(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut entry = fs::read(&path).ok()?;
        let whole = entry.len() >= HEAD
            && entry[..MARK.len()] == MARK[..]
            && Sha256::digest(&entry[HEAD..])[..] == entry[MARK.len()..HEAD];
        if !whole {
            tracing::warn!(target: "tessl::cache", "kernel cache entry {} is damaged; building it again", path.display());
            let _ = fs::remove_file(path);
            return None;
        }
        entry.drain(..HEAD);
        Some(entry)
    }

    /// Stores a payload; readers see all of it or nothing.
    pub(in crate::device) fn store(&self, key: &str, payload: &[u8]) {
        if let Err(error) = self.try_store(key, payload) {
            tracing::debug!(target: "tessl::cache", "kernel cache: {key} not stored: {error}");
        }
    }

    /// A name in the folder that nobody else uses.
    pub(in crate::device) fn temporary(&self, key: &str) -> PathBuf {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{key}.{}.{unique}.tmp", std::process::id()))
    }

    fn try_store(&self, key: &str, payload: &[u8]) -> io::Result<()> {
        let temporary = self.temporary(key);
        let write = || {
            let mut file = create_private(&temporary)?;
            file.write_all(MARK)?;
            file.write_all(&Sha256::digest(payload))?;
            file.write_all(payload)?;
            drop(file);
            fs::rename(&temporary, self.path(key))
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
        self.shrink()
    }

    /// The file stored under `key`, if it is whole. A damaged one is removed.
    #[cfg_attr(not(any(target_vendor = "apple", tessl_mock, test)), expect(dead_code, reason = "for Metal archives"))]
    pub(in crate::device) fn file(&self, key: &str) -> Option<PathBuf> {
        let digest = String::from_utf8(self.load(key)?).ok()?;
        let path = self.folder.join(format!("{digest}.file"));
        let whole = fs::read(&path).is_ok_and(|content| hex(&Sha256::digest(content)) == digest);
        if !whole {
            tracing::warn!(target: "tessl::cache", "kernel cache entry {} is damaged; building it again", path.display());
            self.forget(key);
            let _ = fs::remove_file(&path);
        }
        whole.then_some(path)
    }

    /// Stores a file that was written to a [`temporary`](Self::temporary) name, under a name that is its digest, so that a
    /// reader that needs a file of its own can be sure of it.
    #[cfg_attr(not(any(target_vendor = "apple", tessl_mock, test)), expect(dead_code, reason = "for Metal archives"))]
    pub(in crate::device) fn adopt(&self, key: &str, temporary: &Path) {
        let adopted = fs::read(temporary).and_then(|content| {
            let digest = hex(&Sha256::digest(content));
            fs::rename(temporary, self.folder.join(format!("{digest}.file")))?;
            self.try_store(key, digest.as_bytes())
        });
        if let Err(error) = adopted {
            let _ = fs::remove_file(temporary);
            tracing::debug!(target: "tessl::cache", "kernel cache: {key} not stored: {error}");
        }
    }

    /// Removes the entry of `key`.
    pub(in crate::device) fn forget(&self, key: &str) {
        let _ = fs::remove_file(self.path(key));
    }

    /// Removes the oldest entries until the rest fits.
    fn shrink(&self) -> io::Result<()> {
        let mut entries: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            // Another process may remove files meanwhile.
            let Ok(entry) = entry else { continue };
            let Ok(data) = entry.metadata() else { continue };
            if data.is_file() {
                entries.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), data.len(), entry.path()));
            }
        }
        let mut total: u64 = entries.iter().map(|e| e.1).sum();
        entries.sort();
        for (_, bytes, path) in entries {
            if total <= self.capacity {
                break;
            }
            let _ = fs::remove_file(path);
            total -= bytes;
        }
        Ok(())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.kernel"))
    }
}

#[cfg(unix)]
fn create_private(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn create_private(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).open(path)
}

/// The folder of the kernel cache; an empty path in the options turns it off.
pub(in crate::device) fn folder(options: &RuntimeOptions) -> Option<PathBuf> {
    match &options.cache_dir {
        Some(path) => (!path.as_os_str().is_empty()).then(|| path.clone()),
        None => user_cache(|name| env::var_os(name).map(PathBuf::from)),
    }
}

/// The user's cache folder: as the XDG base directory specification has it, or macOS, or Windows.
fn user_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|p| p.is_absolute());
    let home = |below: &str| absolute("HOME").map(|home| home.join(below));
    let base = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        home("Library/Caches")
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| home(".cache"))
    };
    base.map(|p| p.join("tessl"))
}

/// Makes the folder and checks that only this user can write there.
#[cfg(unix)]
fn prepare(folder: &Path) -> Result<(), String> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    if !folder.is_absolute() {
        return Err("not an absolute path".to_owned());
    }
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).map_err(|e| e.to_string())?;
    }
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e.to_string()),
        _ => {}
    }
    // Not following a link: a link could be turned elsewhere after the check.
    let data = fs::symlink_metadata(folder).map_err(|e| e.to_string())?;
    // SAFETY: geteuid has no preconditions and cannot fail.
    let user = unsafe { libc::geteuid() };
    if !data.is_dir() {
        return Err("not a folder".to_owned());
    }
    if data.uid() != user {
        return Err(format!("it belongs to user {}, not to {user}", data.uid()));
    }
    let mode = data.permissions().mode() & 0o777;
    if mode != 0o700 {
        return Err(format!("its mode is {mode:04o} and must be 0700"));
    }
    Ok(())
}

/// Makes the folder. Folders of a Windows profile are closed to other users by inheritance.
#[cfg(not(unix))]
fn prepare(folder: &Path) -> Result<(), String> {
    if !folder.is_absolute() {
        return Err("not an absolute path".to_owned());
    }
    fs::create_dir_all(folder).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// A fresh folder, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            Folder(std::env::temp_dir().join(format!("tessl-cache-test-{}-{n}", std::process::id())))
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_stored_is_loaded_and_parts_of_a_key_do_not_run_together() {
        let folder = Folder::new();
        let cache = Cache::open(&folder.0).unwrap();
        let name = key([b"source".as_slice(), b"options"]);
        assert_eq!(cache.load(&name), None);
        cache.store(&name, b"payload");
        assert_eq!(cache.load(&name).as_deref(), Some(b"payload".as_slice()));
        assert_ne!(name, key([b"sourceo".as_slice(), b"ptions"]));
        assert_eq!(name.len(), 64);
    }

    #[test]
    fn every_damage_is_a_miss_and_the_entry_can_be_replaced() {
        let folder = Folder::new();
        let cache = Cache::open(&folder.0).unwrap();
        let name = key([b"x".as_slice()]);
        cache.store(&name, &[7; 100]);
        let good = fs::read(cache.path(&name)).unwrap();
        type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
        let damages: [Damage<'_>; 6] = [
            &|e| e.clear(),
            &|e| e.truncate(HEAD - 1),
            &|e| e.truncate(HEAD + 50),
            &|e| e.push(0),
            &|e| e[0] ^= 1,
            &|e| *e.last_mut().unwrap() ^= 0x80,
        ];
        for damage in damages {
            let mut entry = good.clone();
            damage(&mut entry);
            fs::write(cache.path(&name), &entry).unwrap();
            assert_eq!(cache.load(&name), None);
            assert!(!cache.path(&name).exists(), "a damaged entry is removed");
            cache.store(&name, &[7; 100]);
            assert_eq!(cache.load(&name).as_deref(), Some([7; 100].as_slice()));
        }
        assert_eq!(folder.files(), 1, "no temporary file is left");
    }

    #[test]
    fn many_writers_and_readers_never_see_half_an_entry() {
        let folder = Folder::new();
        let cache = Cache::open(&folder.0).unwrap();
        let name = key([b"shared".as_slice()]);
        let payload: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0]).collect();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let (cache, name, payload) = (&cache, &name, &payload);
                scope.spawn(move || {
                    for _ in 0..10 {
                        if writer % 2 == 0 {
                            cache.store(name, payload);
                        } else if let Some(found) = cache.load(name) {
                            assert_eq!(&found, payload);
                        }
                    }
                });
            }
        });
        assert_eq!(cache.load(&name).as_ref(), Some(&payload));
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let folder = Folder::new();
        let cache = Cache::with_capacity(&folder.0, 3 * (HEAD as u64 + 100)).unwrap();
        let names: Vec<String> = (0..5u8).map(|i| key([[i].as_slice()])).collect();
        for (age, name) in names.iter().enumerate() {
            cache.store(name, &[1; 100]);
            if let Ok(file) = fs::File::options().write(true).open(cache.path(name)) {
                file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age as u64)).unwrap();
            }
        }
        let kept: Vec<bool> = names.iter().map(|n| cache.load(n).is_some()).collect();
        assert_eq!(kept, [false, false, true, true, true]);
    }

    #[test]
    fn a_file_is_found_whole_or_not_at_all() {
        let folder = Folder::new();
        let cache = Cache::open(&folder.0).unwrap();
        let name = key([b"archive".as_slice()]);
        let store = || {
            let temporary = cache.temporary(&name);
            fs::write(&temporary, [9; 1000]).unwrap();
            cache.adopt(&name, &temporary);
        };
        assert_eq!(cache.file(&name), None);
        store();
        let path = cache.file(&name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [9; 1000]);
        fs::write(&path, [9; 999]).unwrap();
        assert_eq!(cache.file(&name), None);
        assert_eq!(folder.files(), 0, "both parts of a damaged entry are removed");
        store();
        fs::remove_file(cache.file(&name).unwrap()).unwrap();
        assert_eq!(cache.file(&name), None);
        store();
        assert_eq!(folder.files(), 2, "no temporary file is left");
        cache.adopt(&key([b"absent".as_slice()]), Path::new("/nowhere/to/be/found"));
        assert_eq!(folder.files(), 2);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_cache_is_the_user_s_unless_options_say_otherwise() {
        let of = |xdg: &'static str, home: &'static str| {
            user_cache(move |name| match name {
                "XDG_CACHE_HOME" if !xdg.is_empty() => Some(xdg.into()),
                "HOME" if !home.is_empty() => Some(home.into()),
                _ => None,
            })
        };
        assert_eq!(of("/x", "/u"), Some("/x/tessl".into()));
        assert_eq!(of("", "/u"), Some("/u/.cache/tessl".into()));
        assert_eq!(of("relative", "/u"), Some("/u/.cache/tessl".into()));
        assert_eq!(of("", ""), None);
        assert_eq!(super::folder(&RuntimeOptions::new().cache_dir("")), None);
        assert_eq!(super::folder(&RuntimeOptions::new().cache_dir("/c")), Some("/c".into()));
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_that_others_can_reach_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::new();
        assert!(Cache::open(&folder.0).is_some());
        assert_eq!(fs::metadata(&folder.0).unwrap().permissions().mode() & 0o777, 0o700);
        for mode in [0o755, 0o770, 0o702] {
            fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
            assert!(Cache::open(&folder.0).is_none(), "{mode:o}");
        }
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
        let link = Folder::new();
        symlink(&folder.0, &link.0).unwrap();
        assert!(Cache::open(&link.0).is_none());
        fs::remove_file(&link.0).unwrap();
        assert!(Cache::open(Path::new("relative")).is_none());
    }
}
