//! Kernel texts compiled at run time: planted bugs in tests, sources handed to a mock device.

use crate::launch::{KernelFn, KernelInfo, Launch, LaunchFn, launch_with, list_with};
use crate::{available, sanitized, toolchain};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

/// Kernels compiled from one text, with an executor of their own.
pub struct Module {
    handle: libloading::Library,
}

impl Module {
    /// Compiles a kernel text, without prelude, as the build script does. `name` appears in messages and, with the
    /// suffix `.metal`, as the file name in compiler errors.
    ///
    /// # Errors
    /// The compiler's message, or why the simulator cannot compile here.
    pub fn compile(name: &str, text: &str) -> Result<Module, String> {
        available()?;
        if sanitized() {
            return Err("modules cannot be compiled at run time in a sanitizer build".into());
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("tessl-sim-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(unique);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let result = compile_in(&folder, name, text);
        // Linux keeps a loaded library alive after its file is gone.
        let _ = fs::remove_dir_all(&folder);
        result
    }

    /// Runs a kernel of this module, as [`launch`](crate::launch()).
    ///
    /// # Errors
    /// As [`launch`](crate::launch()).
    ///
    /// # Safety
    /// As [`launch`](crate::launch()).
    pub unsafe fn launch(&self, launch: &Launch) -> Result<(), String> {
        // SAFETY: the library was built from launch.h; the kernel's accesses are the caller's promise.
        unsafe {
            let entry = self.handle.get::<LaunchFn>(b"tessl_sim_launch\0").map_err(|e| e.to_string())?;
            launch_with(*entry, launch)
        }
    }

    /// The kernels of this module in order of their names.
    pub fn kernels(&self) -> Vec<KernelInfo> {
        // SAFETY: the library was built from launch.h.
        unsafe { self.handle.get::<KernelFn>(b"tessl_sim_kernel\0").map(|entry| list_with(*entry)).unwrap_or_default() }
    }
}

fn compile_in(folder: &Path, name: &str, text: &str) -> Result<Module, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (source, library) = (folder.join("kernel.cc"), folder.join("kernel.so"));
    let assembled = toolchain::assemble(&here.join("../tessl/kernels/prelude"), &format!("{name}.metal"), text)
        .map_err(|e| format!("prelude: {e}"))?;
    fs::write(&source, assembled).map_err(|e| format!("{}: {e}", source.display()))?;

    let mut command = Command::new(option_env!("TESSL_SIM_CLANG").unwrap_or("clang++"));
    command.args(toolchain::flags(&here.join("cpp")));
    command.args([&format!("-std={}", toolchain::standard(text)), "-O1", "-shared", "-Wl,-Bsymbolic", "-o"]);
    command.arg(&library).arg(&source).args(["-Wl,--whole-archive", archive(), "-Wl,--no-whole-archive"]);
    let output = command.output().map_err(|e| format!("{}: {e}", PathBuf::from(command.get_program()).display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    // SAFETY: the library's constructors are ours (registration of kernels) and those of libstdc++.
    let handle = unsafe { libloading::Library::new(&library) }.map_err(|e| e.to_string())?;
    Ok(Module { handle })
}

/// The executor, as the build script made it.
fn archive() -> &'static str {
    option_env!("TESSL_SIM_ARCHIVE").unwrap_or("")
}
