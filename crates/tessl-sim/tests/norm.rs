//! RMSNorm on the simulator: every dtype pair, both access widths, row strides, in place, NaN and overflow.

mod common;

use common::norm::{Case, PLAIN, check, run};
use common::{Buf, Elem, SCHEDULES, Target, pseudo, schedules, skipped};
use half::{bf16, f16};
use tessl_sim::Schedule;

fn expect<X: Elem, W: Elem>(case: &Case, schedule: Schedule) {
    check::<X, W>(Target::Linked, case, schedule).unwrap_or_else(|e| panic!("{e}"));
}

fn sizes<X: Elem, W: Elem>() {
    if skipped(&format!("rms_norm_{}_{}", X::NAME, W::NAME)) {
        return;
    }
    let unit = 16 / size_of::<X>();
    for schedule in schedules() {
        for n in [1, 3, 31, 32, 33, 255, 256, 257, 1000] {
            expect::<X, W>(&Case { n, pad: 3, ..PLAIN }, schedule);
        }
        // Around one vector, one pass of the group, what is kept in registers, and a second and third pass beyond it.
        for vectors in [1, 2, 255, 256, 257, 1024, 1025, 1300] {
            for tail in [0, 1, unit - 1] {
                let n = vectors * unit + tail;
                let pad = unit + (unit - n % unit) % unit;
                let rows = [1, 1, if vectors < 1000 { 3 } else { 1 }];
                expect::<X, W>(&Case { n, pad, rows, vec16: true, weight_offset: 1.0, ..PLAIN }, schedule);
            }
        }
        for vec16 in [false, true] {
            let nested = Case { n: 5 * unit, rows: [2, 3, 4], pad: unit, groups: 5, vec16, ..PLAIN };
            expect::<X, W>(&nested, schedule);
            expect::<X, W>(&Case { in_place: true, n: 300 * unit, groups: 7, ..nested }, schedule);
            expect::<X, W>(&Case { groups: 40, ..nested }, schedule);
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
        run(Target::Linked, &case, &mut x, &mut w, Some(&mut y), Schedule::Forward).unwrap();
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
            run(Target::Linked, &Case { groups, rows: [1, 1, 5], ..case }, &mut x, &mut w, Some(&mut y), schedule)
                .unwrap();
            let bits: Vec<u32> = (0..5 * case.pitch()).map(|i| y.get(i).bits()).collect();
            assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits);
        }
    }
}
