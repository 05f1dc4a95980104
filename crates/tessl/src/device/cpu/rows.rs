//! Walking rows: where a row starts, how rows are cut into chunks, and functions of one or two operands over them.

use super::call::KernelCall;
use super::convert::{narrow, widen};
use super::simd::{Simd, Task};
use crate::args::MapArgs;
use crate::dtype::DType;

/// Elements of one chunk, about.
const CHUNK: u64 = 16 << 10;
/// Elements converted at once.
pub(super) const RUN: usize = 256;

/// Rows and columns of one chunk; depends on the row length alone.
pub(super) fn chunk_of(n: u32) -> [u64; 2] {
    let n = u64::from(n.max(1));
    if n >= 2 * CHUNK { [1, CHUNK] } else { [(CHUNK / n).max(1), n] }
}

/// The chunks of `rows` rows of `n` elements.
pub(super) fn chunks(rows: u64, n: u32) -> u64 {
    let [tall, wide] = chunk_of(n);
    rows.div_ceil(tall).saturating_mul(u64::from(n).div_ceil(wide))
}

/// One chunk: some rows, and the columns of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// First row.
    pub(super) row: u64,
    /// Rows.
    pub(super) rows: u64,
    /// First column.
    pub(super) column: usize,
    /// Columns.
    pub(super) columns: usize,
}

impl Part {
    /// The `i`-th chunk of `rows` rows of `n` elements.
    #[allow(clippy::cast_possible_truncation)] // Columns are below 2^32.
    pub(super) fn new(i: usize, rows: u64, n: u32) -> Self {
        let [tall, wide] = chunk_of(n);
        let across = u64::from(n).div_ceil(wide);
        let (down, right) = (i as u64 / across, i as u64 % across);
        let (row, column) = (down * tall, right * wide);
        let (rows, columns) = (tall.min(rows - row), wide.min(u64::from(n) - column));
        Part { row, rows, column: column as usize, columns: columns as usize }
    }
}

/// Elements from the first one to row `row`, whose number splits by r1 and r2.
#[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
pub(super) fn row_offset(row: u64, [r1, r2]: [u32; 2], strides: [u64; 3]) -> usize {
    let (r1, r2) = (u64::from(r1), u64::from(r2));
    let index = [row / (r1 * r2), row / r2 % r1, row % r2];
    index.iter().zip(strides).map(|(i, s)| i * s).sum::<u64>() as usize
}

/// Runs `body` for every chunk of the rows on the pool.
pub(super) fn for_each_part(call: &KernelCall<'_>, rows: u64, n: u32, body: &(dyn Fn(Part) + Sync)) {
    let count = usize::try_from(chunks(rows, n)).expect("INVARIANT: rows lie in memory");
    call.pool().run(count, &|i| body(Part::new(i, rows, n)));
}

/// `a = f(a, b)` for a run of elements; functions of one operand leave b alone. Implementations are `#[inline(always)]`.
pub(super) trait Function: Copy + Sync {
    /// Operands read.
    const INPUTS: usize;
    /// Binding of y.
    const OUTPUT: usize = Self::INPUTS;
    /// Applies the function.
    fn apply(self, a: &mut [f32], b: &[f32]);
}

/// Element-wise work on a part of the rows. Bindings a, b (with two inputs), y; y may be exactly a or exactly b.
#[derive(Clone, Copy)]
struct Map<'a, F> {
    operands: [*mut u8; 3],
    dtypes: [DType; 3],
    args: &'a MapArgs,
    function: F,
    part: Part,
}

// SAFETY: threads write disjoint parts of y, and y is apart from each input or has the same elements in the same parts.
unsafe impl<F: Sync> Sync for Map<'_, F> {}

impl<F: Function> Task for Map<'_, F> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (args, part) = (self.args, self.part);
        let strides =
            [[args.a_s0, args.a_s1, args.a_s2], [args.b_s0, args.b_s1, args.b_s2], [args.y_s0, args.y_s1, args.y_s2]];
        let sizes = self.dtypes.map(DType::size);
        for row in part.row..part.row + part.rows {
            let at = |i: usize| {
                let start = row_offset(row, [args.r1, args.r2], strides[i]) + part.column;
                self.operands[i].wrapping_add(start * sizes[i])
            };
            let (a, b, y) = (at(0), at(1), at(2));
            let (mut av, mut bv) = ([0.0f32; RUN], [0.0f32; RUN]);
            for start in (0..part.columns).step_by(RUN) {
                let count = RUN.min(part.columns - start);
                // SAFETY: the row is inside every operand. A run is read before it is written, and no other run has its
                // elements.
                unsafe {
                    widen::<S>(a.add(start * sizes[0]), self.dtypes[0], av.as_mut_ptr(), count);
                    if F::INPUTS == 2 {
                        widen::<S>(b.add(start * sizes[1]), self.dtypes[1], bv.as_mut_ptr(), count);
                    }
                    let used = count.next_multiple_of(16);
                    self.function.apply(&mut av[..used], &bv[..used]);
                    narrow::<S>(av.as_ptr(), y.add(start * sizes[2]), self.dtypes[2], count);
                }
            }
        }
    }
}

/// One launch of an element-wise kernel on vectors of `S`, from elements of `input` to elements of `output`.
///
/// # Safety
/// The bindings cover the rows that the arguments describe.
pub(super) unsafe fn map<S: Simd, F: Function>(call: &KernelCall<'_>, input: DType, output: DType, function: F) {
    let args: &MapArgs = call.args();
    let a = call.binding(0).ptr;
    let b = if F::INPUTS == 2 { call.binding(1).ptr } else { a };
    let operands = [a, b, call.binding(F::OUTPUT).ptr];
    let part = Part { row: 0, rows: 0, column: 0, columns: 0 };
    let all = Map { operands, dtypes: [input, input, output], args, function, part };
    for_each_part(call, args.rows, args.n, &|part| {
        let all = &all;
        // SAFETY: forwarded; parts are disjoint.
        unsafe { S::vectorize(Map { part, ..*all }) };
    });
}

/// Kernels of one instruction set: module, name, element types as `DType` variants, and the body of an entry point.
macro_rules! map_kernels {
    ($module:literal, $isa:literal, $which:expr, $s:ty;
     $($name:literal, $from:ident => $to:ident, |$call:ident| $function:expr;)*) => {
        &[$({
            unsafe fn entry($call: &$crate::device::cpu::call::KernelCall<'_>) {
                let function = $function;
                // SAFETY: forwarded.
                unsafe {
                    $crate::device::cpu::rows::map::<$s, _>(
                        $call, $crate::dtype::DType::$from, $crate::dtype::DType::$to, function,
                    )
                }
            }
            $crate::device::cpu::registry::Builtin {
                module: $module,
                name: concat!($name, "_", $isa),
                isa: $which,
                function: entry as $crate::device::cpu::call::KernelFn,
            }
        }),*]
    };
}
pub(super) use map_kernels;

/// `$kernels!(suffix, isa, vectors)` for every instruction set of this architecture.
macro_rules! for_each_isa {
    ($kernels:ident) => {
        &[
            $kernels!("scalar", $crate::device::Isa::Scalar, $crate::device::cpu::simd::Scalar),
            #[cfg(target_arch = "aarch64")]
            $kernels!("neon", $crate::device::Isa::Neon, $crate::device::cpu::simd::Neon),
            #[cfg(target_arch = "x86_64")]
            $kernels!("avx2", $crate::device::Isa::Avx2, $crate::device::cpu::simd::Avx2),
            #[cfg(target_arch = "x86_64")]
            $kernels!("avx512", $crate::device::Isa::Avx512, $crate::device::cpu::simd::Avx512),
        ]
    };
}
pub(super) use for_each_isa;

#[cfg(test)]
pub(super) mod harness;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_element_once() {
        for n in [1u32, 7, 300, 16_383, 16_384, 32_767, 32_768, 70_001] {
            for rows in [1u64, 2, 5, 60] {
                let mut seen = 0;
                let mut next = (0, 0);
                for i in 0..usize::try_from(chunks(rows, n)).unwrap() {
                    let part = Part::new(i, rows, n);
                    assert!(part.rows > 0 && part.columns > 0, "{part:?}");
                    assert_eq!((part.row, part.column), next, "{rows} rows of {n}");
                    assert!(part.rows == 1 || part.columns == n as usize, "only whole rows are grouped");
                    let end = part.column + part.columns;
                    next = if end == n as usize { (part.row + part.rows, 0) } else { (part.row, end) };
                    seen += part.rows * part.columns as u64;
                }
                assert_eq!(seen, rows * u64::from(n));
            }
        }
    }

    #[test]
    fn offsets_of_nested_rows() {
        let strides = [1000, 100, 10];
        assert_eq!(row_offset(2 * 12 + 2 * 4 + 3, [3, 4], strides), 2230);
        assert_eq!(row_offset(u64::from(u32::MAX) - 1, [1, u32::MAX], [7, 7, 2]), (u32::MAX as usize - 1) * 2);
    }
}
