//! What the kernel tests share: argument blocks, elements as f64, buffers with NaN slack and canaries.
#![allow(dead_code, unreachable_pub)]

use half::{bf16, f16};
use std::ffi::c_void;
use std::io::Write;
use tessl_sim::{Launch, Module, Schedule};

pub mod gemm;
pub mod norm;

#[path = "../../../tessl/src/args.rs"]
#[allow(unreachable_pub, unused_imports, clippy::cast_possible_truncation)]
pub mod args;

/// The orders under which every kernel runs: a missing barrier may be harmless in one of them.
pub const SCHEDULES: [Schedule; 3] = [Schedule::Forward, Schedule::Backward, Schedule::Random(20)];

/// [`SCHEDULES`], or the one that `TESSL_SIM_SEED` names: 0 forward, 1 backward, any other number a random order.
pub fn schedules() -> Vec<Schedule> {
    match std::env::var("TESSL_SIM_SEED") {
        Err(_) => SCHEDULES.to_vec(),
        Ok(seed) => match seed.parse().expect("TESSL_SIM_SEED is a number below 2^32") {
            0 => vec![Schedule::Forward],
            1 => vec![Schedule::Backward],
            seed => vec![Schedule::Random(seed)],
        },
    }
}

/// True when the simulator is missing. Tells so on stderr and, for `cargo xtask test`, in the file `TESSL_SKIP_LOG`.
pub fn skipped(test: &str) -> bool {
    let Err(reason) = tessl_sim::available() else { return false };
    let required = std::env::var("TESSL_REQUIRE").is_ok_and(|v| v.split(',').any(|w| w == "sim"));
    assert!(!required, "TESSL_REQUIRE names sim: {reason}");
    skip(test, &reason);
    true
}

/// Counts a test as skipped.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIP {test}: {reason}");
    if let Some(log) = std::env::var_os("TESSL_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        file.write_all(format!("{test}\t{reason}\n").as_bytes()).unwrap();
    }
}

/// True when [`Module::compile`] cannot work: no simulator, or a sanitizer build.
pub fn cannot_compile(test: &str) -> bool {
    if tessl_sim::sanitized() {
        skip(test, "sanitizer builds compile no kernels at run time");
    }
    tessl_sim::sanitized() || skipped(test)
}

/// Where a kernel comes from: the repository, or a text compiled by the test.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    Linked,
    Module(&'a Module),
}

impl Target<'_> {
    /// # Safety
    /// As [`tessl_sim::launch`].
    pub unsafe fn launch(self, launch: &Launch) -> Result<(), String> {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Target::Linked => tessl_sim::launch(launch),
                Target::Module(module) => module.launch(launch),
            }
        }
    }
}

/// Returns `Err(format!(..))` unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        // Not `if !condition`: a comparison with NaN is false, and must fail.
        if $condition {
        } else {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

pub trait Elem: Copy + PartialEq + std::fmt::Debug {
    /// As kernel names spell it.
    const NAME: &'static str;
    /// Largest relative error of one rounding.
    const UNIT: f64;
    const NAN: Self;
    fn of(v: f64) -> Self;
    fn f64(self) -> f64;
    fn bits(self) -> u32;
}

impl Elem for f32 {
    const NAME: &'static str = "f32";
    const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
    const NAN: f32 = f32::NAN;
    #[allow(clippy::cast_possible_truncation)]
    fn of(v: f64) -> f32 {
        v as f32
    }
    fn f64(self) -> f64 {
        self.into()
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Elem for f16 {
    const NAME: &'static str = "f16";
    const UNIT: f64 = 1.0 / 2048.0;
    const NAN: f16 = f16::NAN;
    fn of(v: f64) -> f16 {
        f16::from_f64(v)
    }
    fn f64(self) -> f64 {
        self.to_f64()
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Elem for bf16 {
    const NAME: &'static str = "bf16";
    const UNIT: f64 = 1.0 / 256.0;
    const NAN: bf16 = bf16::NAN;
    fn of(v: f64) -> bf16 {
        bf16::from_f64(v)
    }
    fn f64(self) -> f64 {
        self.to_f64()
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

/// `len` elements at a 16-byte boundary plus `skew` elements, between guards. Everything starts as NaN, the canary.
/// Under AddressSanitizer there are no guards: the red zones of the allocation are closer and catch reads too.
pub struct Buf<T> {
    store: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Elem> Buf<T> {
    pub fn new(len: usize, skew: usize) -> Buf<T> {
        let unit = 16 / size_of::<T>();
        let guard = if tessl_sim::sanitized() { 0 } else { 64 };
        let mut store = Vec::with_capacity(len + skew + 2 * guard + unit);
        let at = store.as_ptr() as usize % 16 / size_of::<T>();
        let start = guard + (unit - at) % unit + skew;
        store.resize(start + len + guard, T::NAN);
        if tessl_sim::sanitized() {
            store.shrink_to_fit();
            assert_eq!((store.as_ptr() as usize + start * size_of::<T>()) % 16, skew * size_of::<T>() % 16);
        }
        Buf { store, start, len }
    }

    pub fn filled(len: usize, skew: usize, mut value: impl FnMut(usize) -> f64) -> Buf<T> {
        let mut buf = Buf::new(len, skew);
        for i in 0..len {
            buf.set(i, value(i));
        }
        buf
    }

    pub fn set(&mut self, i: usize, v: f64) {
        assert!(i < self.len);
        self.store[self.start + i] = T::of(v);
    }

    pub fn get(&self, i: usize) -> T {
        assert!(i < self.len);
        self.store[self.start + i]
    }

    pub fn ptr(&mut self) -> *mut c_void {
        self.store[self.start..].as_mut_ptr().cast()
    }

    /// All elements that `written` denies must still be the canary.
    pub fn untouched(&self, what: &str, written: impl Fn(usize) -> bool) -> Result<(), String> {
        for (i, v) in self.store.iter().enumerate() {
            let inside = i >= self.start && i < self.start + self.len && written(i - self.start);
            ensure!(
                inside || v.bits() == T::NAN.bits(),
                "{what}: element {} written",
                i as isize - self.start as isize
            );
        }
        Ok(())
    }
}

/// The address of an argument block.
pub fn block<A>(args: &A) -> *mut c_void {
    std::ptr::from_ref(args).cast_mut().cast()
}

/// Small numbers without a pattern that a wrong index would keep.
pub fn pseudo(i: usize, salt: u64) -> f64 {
    let mut x = (i as u64).wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(1);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x >> 40) as f64) / (1u64 << 23) as f64 - 1.0
}

/// Integers -3..=3.
pub fn integer(i: usize, salt: u64) -> f64 {
    (pseudo(i, salt) * 3.49).round()
}
