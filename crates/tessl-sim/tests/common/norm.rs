//! RMSNorm cases against f64.

use super::args::RmsNormArgs;
use super::{Buf, Elem, Target, block, ensure, pseudo};
use tessl_sim::{Launch, Schedule};

/// Rows as [outer, r1, r2] with `pad` unused elements after each row.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub n: usize,
    pub rows: [usize; 3],
    pub pad: usize,
    pub groups: u32,
    pub vec16: bool,
    pub in_place: bool,
    pub weight_offset: f32,
}

pub const PLAIN: Case =
    Case { n: 1, rows: [1, 1, 2], pad: 0, groups: 2, vec16: false, in_place: false, weight_offset: 0.0 };

impl Case {
    pub fn pitch(&self) -> usize {
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
            ..RmsNormArgs::default()
        }
    }
}

/// Runs the kernel; without `y` in place.
pub fn run<X: Elem, W: Elem>(
    target: Target,
    case: &Case,
    x: &mut Buf<X>,
    w: &mut Buf<W>,
    y: Option<&mut Buf<X>>,
    schedule: Schedule,
) -> Result<(), String> {
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
    unsafe { target.launch(&l) }.map_err(|e| format!("{case:?} {schedule:?}: {e}"))
}

/// One case against f64, with slack and canaries.
pub fn check<X: Elem, W: Elem>(target: Target, case: &Case, schedule: Schedule) -> Result<(), String> {
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
        run(target, case, &mut x, &mut w, None, schedule)?;
        &x
    } else {
        run(target, case, &mut x, &mut w, Some(&mut y), schedule)?;
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
            let error = (got - want).abs();
            ensure!(error <= bound, "{case:?} {schedule:?} row {row} [{i}]: {got}, want {want}");
        }
    }
    let pitch = case.pitch();
    out.untouched("y", |i| i % pitch < n)
}
