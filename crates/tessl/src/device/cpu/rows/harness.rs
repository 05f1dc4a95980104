//! Runs element-wise kernels on strided rows and compares them with f64.
#![allow(clippy::cast_possible_truncation)] // Test values are small.

use crate::args::MapArgs;
use crate::device::cpu::registry::Builtin;
use crate::device::cpu::{Bound, FaultCell, KernelCall, Pool, isa};
use crate::stream::Access;
use half::{bf16, f16};

/// A host type of the kernels.
pub(in crate::device::cpu) trait Value: bytemuck::Pod {
    const NAME: &'static str;
    fn of(x: f64) -> Self;
    fn f64(self) -> f64;
}

impl Value for f32 {
    const NAME: &'static str = "f32";
    fn of(x: f64) -> Self {
        x as f32
    }
    fn f64(self) -> f64 {
        self.into()
    }
}

impl Value for f16 {
    const NAME: &'static str = "f16";
    fn of(x: f64) -> Self {
        f16::from_f64(x)
    }
    fn f64(self) -> f64 {
        self.to_f64()
    }
}

impl Value for bf16 {
    const NAME: &'static str = "bf16";
    fn of(x: f64) -> Self {
        bf16::from_f64(x)
    }
    fn f64(self) -> f64 {
        self.to_f64()
    }
}

/// Numbers in -5..5 without a short period.
pub(in crate::device::cpu) fn operand(i: usize, salt: usize) -> f64 {
    ((i * 7919 + salt * 104_729 + i / 1000 * 31) % 1009) as f64 / 100.0 - 5.0
}

pub(in crate::device::cpu) fn bound<T>(data: &mut [T]) -> Bound {
    let bytes = size_of_val(data);
    Bound { ptr: data.as_mut_ptr().cast(), bytes, access: Access::Write }
}

/// Calls one kernel.
pub(in crate::device::cpu) fn call<A: bytemuck::Pod>(kernel: &Builtin, args: &A, bindings: &[Bound], threads: usize) {
    let (pool, fault) = (Pool::new(threads), FaultCell::default());
    let call = KernelCall { args: bytemuck::bytes_of(args), bindings, pool: &pool, fault: &fault };
    // SAFETY: the caller's bindings cover what the arguments describe.
    unsafe { (kernel.function)(&call) };
    assert_eq!(fault.take(), None);
}

/// The kernels of this name that work here.
pub(in crate::device::cpu) fn kernels(table: &'static [&'static [Builtin]], name: String) -> Vec<&'static Builtin> {
    let named = table.iter().copied().flatten().filter(|b| b.name.rsplit_once('_').is_some_and(|n| n.0 == name));
    let found: Vec<_> = named.filter(|b| isa::usable(b.isa)).collect();
    assert!(!found.is_empty(), "no kernel is called {name}");
    found
}

/// Kernels `{name}_{type}` (or `{name}_{from}_{to}`) on every shape: values, slack, places, threads.
pub(in crate::device::cpu) fn check<X: Value, Y: Value>(
    table: &'static [&'static [Builtin]],
    name: &str,
    inputs: usize,
    args: MapArgs,
    want: impl Fn(f64, f64) -> f64,
    error: impl Fn(f64) -> f64,
) {
    let full =
        if X::NAME == Y::NAME { format!("{name}_{}", X::NAME) } else { format!("{name}_{}_{}", X::NAME, Y::NAME) };
    for kernel in kernels(table, full) {
        for (rows, n) in [(1, 1), (3, 17), (4, 255), (5, 257), (2, 1000), (40, 31), (1, 40_000), (2, 32_768 + 3)] {
            let (ld, nested) = (n + 3, rows % 2 == 0);
            let data = |salt| -> Vec<X> {
                let value = |i: usize| if i % ld < n { operand(i, salt) } else { f64::NAN };
                (0..rows * ld).map(|i| X::of(value(i))).collect()
            };
            let run = |place: Option<usize>, threads: usize| -> Vec<Y> {
                let (mut a, mut b, mut y) = (data(1), data(2), vec![Y::of(7.0); rows * ld]);
                let mut bindings = vec![bound(&mut a)];
                if inputs == 2 {
                    bindings.push(bound(&mut b));
                }
                bindings.push(place.map_or(bound(&mut y), |input| bindings[input]));
                let wide = ld as u64;
                let s0 = if nested { 2 * wide } else { wide };
                let args = MapArgs {
                    a_s0: s0,
                    a_s2: wide,
                    b_s0: s0,
                    b_s2: wide,
                    y_s0: s0,
                    y_s2: wide,
                    rows: rows as u64,
                    r1: 1,
                    r2: if nested { 2 } else { u32::MAX },
                    n: n as u32,
                    ..args
                };
                call(kernel, &args, &bindings, threads);
                match place {
                    Some(0) => bytemuck::cast_slice(&a).to_vec(),
                    Some(_) => bytemuck::cast_slice(&b).to_vec(),
                    None => y,
                }
            };
            let (first, a, b) = (run(None, 1), data(1), data(2));
            for i in 0..rows * ld {
                let got = first[i].f64();
                if i % ld >= n {
                    assert_eq!(got, 7.0, "{} wrote into the slack", kernel.name);
                    continue;
                }
                let want = want(a[i].f64(), b[i].f64());
                assert!((got - want).abs() <= error(want), "{} {rows}x{n} [{i}]: {got}, not {want}", kernel.name);
            }
            let same = |other: Vec<Y>| {
                (0..rows).all(|r| {
                    let range = r * ld..r * ld + n;
                    bytemuck::cast_slice::<Y, u8>(&other[range.clone()]) == bytemuck::cast_slice::<Y, u8>(&first[range])
                })
            };
            assert!(same(run(None, 3)), "{}: threads changed the result", kernel.name);
            if X::NAME == Y::NAME {
                assert!((0..inputs).all(|i| same(run(Some(i), 2))), "{}: in place differs", kernel.name);
            }
        }
    }
}
