//! Wrong calls of sorts by expert and of sums of experts' rows.

use super::{Bench, Kind, Result, text};
use tessl::nn::{CombineExperts, SortByExpert};
use tessl::{DType, Tensor};

pub(super) fn sort(bench: &mut Bench<'_>) -> Result {
    let u32s = |bench: &Bench<'_>, shape: &[usize]| bench.zeros(DType::U32, shape);
    let (experts, offsets) = (u32s(bench, &[3, 2])?, u32s(bench, &[5])?);
    let (tokens, places) = (u32s(bench, &[6])?, u32s(bench, &[3, 2])?);
    let call = |t: [&Tensor; 4]| SortByExpert::new(t[0], t[1], t[2], t[3]).run();
    let good = [&experts, &offsets, &tokens, &places];
    bench.accept("a sort", || call(good));
    let names = ["experts", "offsets", "tokens", "places"];
    for (i, name) in names.into_iter().enumerate() {
        let quoted = format!("`{name}`");
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::U32 && (i > 0 || *d != DType::I32)) {
            let wrong = bench.zeros(dtype, good[i].shape())?;
            let mut t = good;
            t[i] = &wrong;
            bench.reject("type", Kind::DType, &["sort_by_expert", &quoted, dtype.name()], || call(t));
        }
        let foreign = bench.other.zeros(DType::U32, good[i].shape(), tessl::BufferKind::Cold).map_err(text)?;
        let mut t = good;
        t[i] = &foreign;
        let named = if i == 0 { "`offsets`".to_owned() } else { quoted };
        bench.reject("foreign", Kind::WrongRuntime, &["sort_by_expert", &named], || call(t));
    }
    for (i, shape) in
        [(1, &[][..]), (1, &[0]), (1, &[5, 1]), (2, &[5]), (2, &[7]), (2, &[3, 2]), (3, &[2, 3]), (3, &[6])]
    {
        let wrong = u32s(bench, shape)?;
        let mut t = good;
        t[i] = &wrong;
        bench.reject("shape", Kind::Shape, &["sort_by_expert", &format!("`{}`", names[i])], || call(t));
    }
    let scalar = u32s(bench, &[])?;
    bench.reject("scalar", Kind::Shape, &["sort_by_expert", "`experts`"], || {
        call([&scalar, &offsets, &tokens, &scalar])
    });
    let flat = u32s(bench, &[64])?;
    let view = |shape: &[usize], strides: &[usize], at: usize| flat.view(shape, strides, at).map_err(text);
    for (i, wrong) in [
        (0, view(&[3, 2], &[4, 2], 0)?),
        (1, view(&[5], &[2], 0)?),
        (2, view(&[6], &[2], 0)?),
        (3, view(&[3, 2], &[4, 2], 0)?),
        (3, view(&[3, 2], &[1, 1], 0)?),
    ] {
        let mut t = good;
        t[i] = &wrong;
        bench.reject("strides", Kind::Layout, &["sort_by_expert", &format!("`{}`", names[i])], || call(t));
    }
    bench.reject("places over experts", Kind::Overlap, &["sort_by_expert", "`places`", "`experts`"], || {
        call([&experts, &offsets, &tokens, &experts])
    });
    let (first, second) = (view(&[6], &[1], 0)?, view(&[5], &[1], 3)?);
    bench.reject("outputs meet", Kind::Overlap, &["sort_by_expert", "`offsets`", "`tokens`"], || {
        call([&experts, &second, &first, &places])
    });
    let (none, nowhere, alone) = (u32s(bench, &[0, 2])?, u32s(bench, &[0])?, u32s(bench, &[1])?);
    let empty = u32s(bench, &[0, 2])?;
    bench.accept("no tokens", || call([&none, &offsets, &nowhere, &empty]));
    bench.accept("no experts, no tokens", || call([&none, &alone, &nowhere, &empty]));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("stream", Kind::WrongRuntime, &["sort_by_expert", "`stream`"], || {
        SortByExpert::new(&experts, &offsets, &tokens, &places).run_on(&mut stream)
    });
    Ok(())
}

pub(super) fn combine(bench: &mut Bench<'_>) -> Result {
    let (rows, y) = (bench.zeros(DType::F16, &[6, 4])?, bench.zeros(DType::F16, &[3, 4])?);
    let (places, weights) = (bench.zeros(DType::U32, &[3, 2])?, bench.zeros(DType::F16, &[3, 2])?);
    let old = bench.zeros(DType::F16, &[3, 4])?;
    let call = |t: [&Tensor; 5]| CombineExperts::new(t[0], t[1], t[2], t[4]).residual(t[3]).run();
    let good = [&rows, &places, &weights, &old, &y];
    bench.accept("a sum", || call(good));
    bench.accept("in place", || call([&rows, &places, &weights, &y, &y]));
    let single = bench.zeros(DType::F32, &[3, 2])?;
    bench.accept("f32 weights", || call([&rows, &places, &single, &old, &y]));
    let names = ["rows", "places", "weights", "residual", "y"];
    for (i, name) in names.into_iter().enumerate() {
        let right = |d: DType| d == good[i].dtype() || (i == 2 && d == DType::F32) || (i == 0 && d.is_float());
        for dtype in DType::ALL.into_iter().filter(|d| !right(*d)) {
            let wrong = bench.zeros(dtype, good[i].shape())?;
            let mut t = good;
            t[i] = &wrong;
            bench.reject("type", Kind::DType, &["combine_experts", &format!("`{name}`"), dtype.name()], || call(t));
        }
    }
    for (i, shape) in [
        (0, &[24][..]),
        (0, &[2, 3, 4]),
        (0, &[6, 5]),
        (1, &[3]),
        (1, &[2, 2]),
        (2, &[3, 3]),
        (2, &[6]),
        (3, &[4]),
        (3, &[3, 5]),
        (4, &[12]),
        (4, &[3, 5]),
    ] {
        let wrong = bench.zeros(good[i].dtype(), shape)?;
        let mut t = good;
        t[i] = &wrong;
        bench.reject("shape", Kind::Shape, &["combine_experts"], || call(t));
    }
    let flat = bench.zeros(DType::F16, &[64])?;
    let view = |shape: &[usize], strides: &[usize], at: usize| flat.view(shape, strides, at).map_err(text);
    for (i, wrong) in [
        (0, view(&[6, 4], &[8, 2], 0)?),
        (2, view(&[3, 2], &[4, 2], 0)?),
        (3, view(&[3, 4], &[8, 2], 0)?),
        (4, view(&[3, 4], &[8, 2], 0)?),
        (4, view(&[3, 4], &[0, 1], 0)?),
    ] {
        let mut t = good;
        t[i] = &wrong;
        bench.reject("strides", Kind::Layout, &["combine_experts", &format!("`{}`", names[i])], || call(t));
    }
    let (many, shifted) = (view(&[6, 4], &[4, 1], 0)?, view(&[3, 4], &[4, 1], 8)?);
    bench.reject("y in rows", Kind::Overlap, &["combine_experts", "`y`", "`rows`"], || {
        call([&many, &places, &weights, &old, &shifted])
    });
    let (first, other) = (view(&[3, 4], &[4, 1], 0)?, view(&[3, 4], &[4, 1], 2)?);
    bench.reject("shifted", Kind::Overlap, &["combine_experts", "`y`", "`residual`"], || {
        call([&rows, &places, &weights, &first, &other])
    });
    let foreign = bench.other.zeros(DType::F16, &[3, 4], tessl::BufferKind::Cold).map_err(text)?;
    bench.reject("foreign", Kind::WrongRuntime, &["combine_experts", "`y`"], || {
        call([&rows, &places, &weights, &old, &foreign])
    });
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("stream", Kind::WrongRuntime, &["combine_experts", "`stream`"], || {
        CombineExperts::new(&rows, &places, &weights, &y).run_on(&mut stream)
    });
    let (empty, nothing) = (bench.zeros(DType::U32, &[0, 2])?, bench.zeros(DType::F16, &[0, 2])?);
    let out = bench.zeros(DType::F16, &[0, 4])?;
    bench.accept("no tokens", || call([&rows, &empty, &nothing, &out, &out]));
    Ok(())
}
