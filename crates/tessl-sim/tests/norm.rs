//! RMSNorm against f64: every dtype pair, both access widths, row strides, in place, NaN and overflow.

mod common;

use common::args::RmsNormArgs;
use common::{Buf, Elem, SCHEDULES, block, pseudo, skipped};
use half::{bf16, f16};
use tessl_sim::{Launch, Schedule, launch};

/// Rows as [outer, r1, r2] with `pad` unused elements after each row.
#[derive(Clone, Copy, Debug)]
struct Case {
    n: usize,
    rows: [usize; 3],
    pad: usize,
    groups: u32,
    vec16: bool,
    in_place: bool,
    weight_offset: f32,
}

const PLAIN: Case =
    Case { n: 1, rows: [1, 1, 2], pad: 0, groups: 2, vec16: false, in_place: false, weight_offset: 0.0 };

impl Case {
    fn pitch(&self) -> usize {
        self.n + self.pad
    }

    fn count(&self) -> usize {
        self.rows.iter().product()
    }

    /// x is dense in its row index; y swaps the two inner ones, so that a mixed-up stride shows.
    fn offset(&self, row: usize, swap: bool) -> usize {
        let [_, r1, r2] = self.rows;
        let (outer, middle, inner) = (row / (r1 * r2), row / r2 % r1, row % r2);
        let place = if swap { inner * r1 + middle } else { middle * r2 + inner };
        (outer * r1 * r2 + place) * self.pitch()
    }

    fn args(&self) -> RmsNormArgs {
        let [_, r1, r2] = self.rows.map(|r| r as u64);
        let pitch = self.pitch() as u64;
        let (y_s1, y_s2) = if self.in_place { (r2 * pitch, pitch) } else { (pitch, r1 * pitch) };
        RmsNormArgs {
            x_s0: r1 * r2 * pitch,
            x_s1: r2 * pitch,
            x_s2: pitch,
            y_s0: r1 * r2 * pitch,
            y_s1,
            y_s2,
            rows: self.count() as u64,
            r1: u32::try_from(r1).unwrap(),
            r2: u32::try_from(r2).unwrap(),
            n: u32::try_from(self.n).unwrap(),
            groups: self.groups,
            eps: 1e-5,
            weight_offset: self.weight_offset,
        }
    }
}

fn run<X: Elem, W: Elem>(case: &Case, x: &mut Buf<X>, w: &mut Buf<W>, y: Option<&mut Buf<X>>, schedule: Schedule) {
    let args = case.args();
    let x_ptr = x.ptr();
    let y_ptr = y.map_or(x_ptr, |y| y.ptr());
    let kernel = format!("rms_norm_{}_{}", X::NAME, W::NAME);
    let l = Launch {
        kernel: &kernel,
        constants: &[("VEC16", f64::from(u8::from(case.vec16)))],
        grid: [case.groups, 1, 1],
        threads: 256,
        args: &[x_ptr, w.ptr(), y_ptr, block(&args)],
        schedule,
    };
    // SAFETY: the buffers cover the rows that `args` describes and outlive the call.
    unsafe { launch(&l) }.unwrap_or_else(|e| panic!("{case:?} {schedule:?}: {e}"));
}

fn check<X: Elem, W: Elem>(case: &Case, schedule: Schedule) {
    let (n, skew) = (case.n, if case.vec16 { 0 } else { 1 });
    let size = case.count() * case.pitch() - case.pad;
    let mut x = Buf::<X>::new(size, skew);
    for row in 0..case.count() {
        (0..n).for_each(|i| x.set(case.offset(row, false) + i, pseudo(row * n + i, 1) * 3.0));
    }
    let source: Vec<f64> = (0..size).map(|i| x.get(i).f64()).collect();
    let mut w = Buf::<W>::filled(n, skew, |i| pseudo(i, 2));
    let mut y = Buf::<X>::new(size, skew);
    let out = if case.in_place {
        run(case, &mut x, &mut w, None, schedule);
        &x
    } else {
        run(case, &mut x, &mut w, Some(&mut y), schedule);
        &y
    };

    // Sum of squares: n / 256 terms a thread, then 5 + 8 additions, each within one unit; a handful of roundings after.
    let unit = f32::UNIT;
    let relative = (n as f64 / 256.0 + 24.0) * unit + 1.01 * X::UNIT;
    for row in 0..case.count() {
        let values = &source[case.offset(row, false)..][..n];
        let mean = values.iter().map(|v| v * v).sum::<f64>() / n as f64;
        let scale = 1.0 / (mean + f64::from(1e-5f32)).sqrt();
        for (i, v) in values.iter().enumerate() {
            let weight = w.get(i).f64() + f64::from(case.weight_offset);
            let want = v * scale * weight;
            let got = out.get(case.offset(row, !case.in_place) + i).f64();
            // The sum of weight and offset is rounded once, to the precision of its larger part; f16 may be subnormal.
            let bound = want.abs() * relative + (v * scale).abs() * 2.0 * unit + 6e-8;
            assert!((got - want).abs() <= bound, "{case:?} {schedule:?} row {row} [{i}]: {got}, want {want}");
        }
    }
    let pitch = case.pitch();
    out.assert_untouched("y", |i| i % pitch < n);
}

fn sizes<X: Elem, W: Elem>() {
    if skipped("rms_norm") {
        return;
    }
    let unit = 16 / size_of::<X>();
    for schedule in SCHEDULES {
        for n in [1, 3, 31, 32, 33, 255, 256, 257, 1000] {
            check::<X, W>(&Case { n, pad: 3, ..PLAIN }, schedule);
        }
        // Around one vector, one pass of the group, what is kept in registers, and a second and third pass beyond it.
        for vectors in [1, 2, 255, 256, 257, 1024, 1025, 1300] {
            for tail in [0, 1, unit - 1] {
                let n = vectors * unit + tail;
                let pad = unit + (unit - n % unit) % unit;
                let rows = [1, 1, if vectors < 1000 { 3 } else { 1 }];
                check::<X, W>(&Case { n, pad, rows, vec16: true, weight_offset: 1.0, ..PLAIN }, schedule);
            }
        }
        for vec16 in [false, true] {
            let nested = Case { n: 5 * unit, rows: [2, 3, 4], pad: unit, groups: 5, vec16, ..PLAIN };
            check::<X, W>(&nested, schedule);
            check::<X, W>(&Case { in_place: true, n: 300 * unit, groups: 7, ..nested }, schedule);
            check::<X, W>(&Case { groups: 40, ..nested }, schedule);
        }
    }
}

#[test]
fn rms_norm_f32_f32() {
    sizes::<f32, f32>();
}

#[test]
fn rms_norm_f16_f16() {
    sizes::<f16, f16>();
}

#[test]
fn rms_norm_bf16_bf16() {
    sizes::<bf16, bf16>();
}

#[test]
fn rms_norm_f16_f32() {
    sizes::<f16, f32>();
}

#[test]
fn rms_norm_bf16_f32() {
    sizes::<bf16, f32>();
}

/// NaN stays in its row and fills it; zero rows are zero; the documented overflow gives zeros, not NaN.
#[test]
fn special_rows() {
    if skipped("special_rows") {
        return;
    }
    let n = 64;
    for vec16 in [false, true] {
        let case = Case { n, rows: [1, 1, 4], groups: 4, vec16, ..PLAIN };
        let mut x = Buf::<f32>::filled(4 * n, 0, |i| match i / n {
            0 => 1.0,
            1 if i % n == 17 => f64::NAN,
            1 => 1.0,
            2 => 0.0,
            _ => 1e30,
        });
        let mut w = Buf::<f32>::filled(n, 0, |_| 1.0);
        let mut y = Buf::<f32>::new(4 * n, 0);
        run(&case, &mut x, &mut w, Some(&mut y), Schedule::Forward);
        for i in 0..n {
            assert!((y.get(i) - 1.0).abs() < 1e-4);
            assert!(y.get(n + i).is_nan());
            assert_eq!(y.get(2 * n + i), 0.0);
            assert_eq!(y.get(3 * n + i), 0.0);
        }
    }
}

/// The result of a row does not depend on the schedule or on how many groups share the rows.
#[test]
fn bits_do_not_depend_on_schedule_or_grid() {
    if skipped("bits_do_not_depend_on_schedule_or_grid") {
        return;
    }
    let case = Case { n: 1031, rows: [1, 1, 5], pad: 1, vec16: true, ..PLAIN };
    let mut first = None;
    for schedule in SCHEDULES {
        for groups in [1, 2, 5] {
            let mut x = Buf::<f16>::filled(5 * case.pitch(), 0, |i| pseudo(i, 3));
            let mut w = Buf::<f16>::filled(case.n, 0, |i| pseudo(i, 4));
            let mut y = Buf::<f16>::new(5 * case.pitch(), 0);
            run(&Case { groups, rows: [1, 1, 5], ..case }, &mut x, &mut w, Some(&mut y), schedule);
            let bits: Vec<u32> = (0..5 * case.pitch()).map(|i| y.get(i).bits()).collect();
            assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits);
        }
    }
}
