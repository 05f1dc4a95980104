//! Wrong calls of products with packed weights, scales, residuals, gates, groups and 8-bit types.

use super::{Bench, Kind, Result, text};
use tessl::{Activation, BufferKind, DType, DeviceKind, Gemm, GemmBackend, GpuRuntime, PackedWeights, Tensor, gemm};

fn run(gemm: &Gemm<'_>) -> tessl::Result<()> {
    gemm.run()
}

fn foreign(bench: &Bench<'_>, shape: &[usize]) -> Result<Tensor> {
    bench.other.zeros(DType::F32, shape, BufferKind::Cold).map_err(text)
}

/// Vectors and matrices beside the product.
pub(super) fn fused(bench: &mut Bench<'_>) -> Result {
    let (a, b, c) = (bench.a.clone(), bench.b.clone(), bench.c.clone());
    type Set = for<'a> fn(Gemm<'a>, &'a Tensor) -> Gemm<'a>;
    let vectors: [(&str, usize, Set); 3] = [
        ("row_bias", 2, |g, t| g.row_bias(t)),
        ("row_scale", 2, |g, t| g.row_scale(t)),
        ("col_scale", 4, |g, t| g.col_scale(t)),
    ];
    for (name, len, set) in vectors {
        let quoted = format!("`{name}`");
        for shape in [&[len + 1][..], &[len, 1], &[], &[2, len]] {
            let wrong = bench.zeros(DType::F32, shape)?;
            let words = ["gemm", &quoted];
            bench.reject("vector shape", Kind::Shape, &words, || run(&set(Gemm::new(&a, &b, &c), &wrong)));
        }
        for dtype in DType::ALL.into_iter().filter(|&d| d != DType::F32) {
            let wrong = bench.zeros(dtype, &[len])?;
            let words = ["gemm", &quoted, dtype.name()];
            bench.reject("vector type", Kind::DType, &words, || run(&set(Gemm::new(&a, &b, &c), &wrong)));
        }
        let strided = bench.zeros(DType::F32, &[32])?.view(&[len], &[2], 0).map_err(text)?;
        bench.reject("vector stride", Kind::Layout, &[&quoted], || run(&set(Gemm::new(&a, &b, &c), &strided)));
        let other = foreign(bench, &[len])?;
        bench.reject("foreign vector", Kind::WrongRuntime, &[&quoted], || run(&set(Gemm::new(&a, &b, &c), &other)));
        let flat = bench.zeros(DType::F32, &[64])?;
        let (over, out) = (flat.view(&[len], &[1], 7).map_err(text)?, flat.view(&[2, 4], &[4, 1], 3).map_err(text)?);
        bench.reject("vector under c", Kind::Overlap, &["`c`", &quoted], || run(&set(Gemm::new(&a, &b, &out), &over)));
    }
    let (rows, columns) = (bench.zeros(DType::F32, &[2])?, bench.zeros(DType::F32, &[4])?);
    bench.reject("two biases", Kind::Shape, &["`row_bias`", "second"], || {
        Gemm::new(&a, &b, &c).bias(&columns).row_bias(&rows).run()
    });
    residuals(bench)
}

fn residuals(bench: &mut Bench<'_>) -> Result {
    let (a, b, c) = (bench.a.clone(), bench.b.clone(), bench.c.clone());
    for shape in [&[2usize, 3][..], &[4, 2], &[8], &[2, 2, 4]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("residual shape", Kind::Shape, &["gemm", "`residual`"], || {
            Gemm::new(&a, &b, &c).residual(&wrong).run()
        });
    }
    let wrong = bench.zeros(DType::F16, &[2, 4])?;
    bench.reject("residual type", Kind::DType, &["`residual`", "f16"], || Gemm::new(&a, &b, &c).residual(&wrong).run());
    let turned = bench.zeros(DType::F32, &[4, 2])?.t().map_err(text)?;
    bench.reject("residual axis", Kind::Layout, &["`residual`"], || Gemm::new(&a, &b, &c).residual(&turned).run());
    let flat = bench.zeros(DType::F32, &[64])?;
    let (out, over) = (flat.view(&[2, 4], &[4, 1], 0).map_err(text)?, flat.view(&[2, 4], &[4, 1], 2).map_err(text)?);
    bench.reject("residual shifted", Kind::Overlap, &["`c`", "`residual`"], || {
        Gemm::new(&a, &b, &out).residual(&over).run()
    });
    let other = foreign(bench, &[2, 4])?;
    bench.reject("foreign residual", Kind::WrongRuntime, &["`residual`"], || {
        Gemm::new(&a, &b, &c).residual(&other).run()
    });
    Ok(())
}

/// The second matrix of a gated product.
pub(super) fn gated(bench: &mut Bench<'_>) -> Result {
    let (a, b, c) = (bench.a.clone(), bench.b.clone(), bench.c.clone());
    for shape in [&[3usize, 5][..], &[4, 3], &[12], &[1, 3, 4]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("up shape", Kind::Shape, &["gemm", "`up`"], || Gemm::new(&a, &b, &c).up(&wrong).run());
    }
    let wrong = bench.zeros(DType::Bf16, &[3, 4])?;
    bench.reject("up type", Kind::DType, &["`up`", "bf16"], || Gemm::new(&a, &b, &c).up(&wrong).run());
    let up = bench.zeros(DType::F32, &[3, 4])?;
    bench.reject("beta", Kind::Scalar, &["`beta`", "gated"], || Gemm::new(&a, &b, &c).up(&up).beta(1.0).run());
    let bias = bench.bias.clone();
    bench.reject("bias of the gate alone", Kind::Shape, &["`bias`", "[8]"], || {
        Gemm::new(&a, &b, &c).up(&up).bias(&bias).run()
    });
    let odd = bench.zeros(DType::F32, &[3, 7])?;
    bench.reject("odd columns", Kind::Shape, &["`b`", "even"], || Gemm::new(&a, &odd, &c).gated().run());
    bench.reject("halves of b", Kind::Shape, &["`c`"], || Gemm::new(&a, &b, &c).gated().run());
    let turned = bench.zeros(DType::F32, &[4, 2])?.t().map_err(text)?;
    bench.reject("c in columns", Kind::Layout, &["`c`", "contiguous"], || Gemm::new(&a, &b, &turned).up(&up).run());
    let other = foreign(bench, &[3, 4])?;
    bench.reject("foreign up", Kind::WrongRuntime, &["`up`"], || Gemm::new(&a, &b, &c).up(&other).run());
    Ok(())
}

/// Packing, and products with what was packed.
pub(super) fn packed(bench: &mut Bench<'_>) -> Result {
    let (a, b, c) = (bench.a.clone(), bench.b.clone(), bench.c.clone());
    for dtype in [DType::I32, DType::U32] {
        let wrong = bench.zeros(dtype, &[3, 4])?;
        bench.reject("type", Kind::DType, &["pack_weights", "`b`", dtype.name()], || PackedWeights::new(&wrong));
    }
    for shape in [&[][..], &[3], &[1, 1, 3, 4]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("shape", Kind::Shape, &["pack_weights", "`b`"], || PackedWeights::new(&wrong));
    }
    let strided = bench.zeros(DType::F32, &[64])?.view(&[3, 4], &[16, 2], 0).map_err(text)?;
    bench.reject("stride", Kind::Layout, &["pack_weights", "`b`"], || PackedWeights::new(&strided));
    let (up, half) = (bench.zeros(DType::F32, &[3, 5])?, bench.zeros(DType::F16, &[3, 4])?);
    bench.reject("up shape", Kind::Shape, &["pack_weights", "`up`"], || PackedWeights::gated(&b, &up));
    bench.reject("up type", Kind::DType, &["pack_weights", "`up`"], || PackedWeights::gated(&b, &half));
    let weights = PackedWeights::new(&b).map_err(text)?;
    let bad_a = bench.zeros(DType::F32, &[2, 5])?;
    bench.reject("k", Kind::Shape, &["gemm", "`b`", "[3, 4]", "k = 5"], || Gemm::new(&bad_a, &weights, &c).run());
    let bad_c = bench.zeros(DType::F32, &[2, 5])?;
    bench.reject("c", Kind::Shape, &["gemm", "`c`"], || Gemm::new(&a, &weights, &bad_c).run());
    let wrong = bench.zeros(DType::Bf16, &[2, 3])?;
    bench.reject("a of another type", Kind::DType, &["gemm", "`b`", "f32"], || Gemm::new(&wrong, &weights, &c).run());
    bench.reject("a gate beside them", Kind::Layout, &["`up`", "PackedWeights"], || {
        Gemm::new(&a, &weights, &c).up(&b).run()
    });
    let other = foreign(bench, &[2, 3])?;
    let foreign_c = foreign(bench, &[2, 4])?;
    bench.reject("foreign weights", Kind::WrongRuntime, &["gemm"], || Gemm::new(&other, &weights, &foreign_c).run());
    bench.accept("packed", || Gemm::new(&a, &weights, &c).run());
    if bench.env.rt.info().kind == DeviceKind::Cpu {
        let turned = bench.zeros(DType::F32, &[4, 2])?.t().map_err(text)?;
        bench.reject("c in columns", Kind::Layout, &["`c`", "packed"], || Gemm::new(&a, &weights, &turned).run());
        let portable = PackedWeights::pack(&b, None, GemmBackend::Simdgroup).map_err(text)?;
        bench.reject("the other path", Kind::Unsupported, &["gemm", "packed"], || Gemm::new(&a, &portable, &c).run());
    }
    let empty = bench.zeros(DType::F32, &[0, 4])?;
    bench.accept("k = 0", || PackedWeights::new(&empty));
    let none = bench.zeros(DType::F32, &[3, 0])?;
    bench.accept("n = 0", || PackedWeights::new(&none));
    Ok(())
}

/// Bounds of groups.
pub(super) fn groups(bench: &mut Bench<'_>) -> Result {
    let (a, b) = (bench.zeros(DType::F32, &[5, 3])?, bench.zeros(DType::F32, &[2, 3, 4])?);
    let c = bench.zeros(DType::F32, &[5, 4])?;
    for bad in [&[0u32, 5][..], &[0, 1, 2, 5], &[]] {
        bench.reject("count", Kind::Shape, &["gemm", "`offsets`", "3 values"], || {
            Gemm::new(&a, &b, &c).grouped(bad).run()
        });
    }
    for bad in [&[0u32, 6, 5], &[0, 3, 2], &[2, 3, 6], &[0, 0, u32::MAX]] {
        bench.reject("order", Kind::Shape, &["gemm", "`offsets`", "decrease"], || {
            Gemm::new(&a, &b, &c).grouped(bad).run()
        });
    }
    let matrix = bench.zeros(DType::F32, &[3, 4])?;
    bench
        .reject("one matrix", Kind::Shape, &["`b`", "groups"], || Gemm::new(&a, &matrix, &c).grouped(&[0, 1, 5]).run());
    let (batch, out) = (bench.zeros(DType::F32, &[2, 5, 3])?, bench.zeros(DType::F32, &[2, 5, 4])?);
    bench.reject("a batch", Kind::Shape, &["`a`", "groups"], || Gemm::new(&batch, &b, &out).grouped(&[0, 1, 5]).run());
    let wrong = bench.zeros(DType::I32, &[3])?;
    bench.reject("type", Kind::DType, &["`offsets`", "u32"], || Gemm::new(&a, &b, &c).grouped(&wrong).run());
    let short = bench.zeros(DType::U32, &[2])?;
    bench.reject("count", Kind::Shape, &["`offsets`"], || Gemm::new(&a, &b, &c).grouped(&short).run());
    let strided = bench.zeros(DType::U32, &[16])?.view(&[3], &[2], 0).map_err(text)?;
    bench.reject("stride", Kind::Layout, &["`offsets`"], || Gemm::new(&a, &b, &c).grouped(&strided).run());
    let turned = bench.zeros(DType::F32, &[4, 5])?.t().map_err(text)?;
    bench.reject("c in columns", Kind::Layout, &["`c`", "groups"], || {
        Gemm::new(&a, &b, &turned).grouped(&[0, 1, 5]).run()
    });
    let other = bench.other.zeros(DType::U32, &[3], BufferKind::Cold).map_err(text)?;
    bench.reject("foreign", Kind::WrongRuntime, &["`offsets`"], || Gemm::new(&a, &b, &c).grouped(&other).run());
    bench.accept("empty groups", || Gemm::new(&a, &b, &c).grouped(&[2, 2, 2]).run());
    Ok(())
}

/// 8-bit types.
pub(super) fn eight_bits(bench: &mut Bench<'_>) -> Result {
    let of = |dtype: DType, shape: &[usize]| bench.zeros(dtype, shape);
    let (a, b, c) = (of(DType::I8, &[2, 3])?, of(DType::U8, &[3, 4])?, of(DType::I32, &[2, 4])?);
    let (f, scale) = (of(DType::F32, &[3, 4])?, of(DType::F32, &[2])?);
    let (e4, e5) = (of(DType::F8E4M3, &[2, 3])?, of(DType::F8E5M2, &[3, 4])?);
    let out = of(DType::F32, &[2, 4])?;
    let t = GemmBackend::TensorOps;
    bench.reject("i8 x f32", Kind::DType, &["gemm", "`b`", "f32"], || gemm(&a, &f, &out, t));
    bench.reject("fp8 x u8", Kind::DType, &["gemm", "`b`", "u8"], || gemm(&e4, &b, &out, t));
    bench.reject("fp8 to i32", Kind::DType, &["gemm", "`c`", "i32"], || gemm(&e4, &e5, &c, t));
    for narrow in [DType::F8E4M3, DType::F8E5M2] {
        let short = bench.zeros(narrow, &[2, 4])?;
        bench.reject("i8 to fp8", Kind::DType, &["gemm", "`c`", narrow.name()], || gemm(&a, &b, &short, t));
        let (x, y) = (bench.zeros(DType::F32, &[2, 3])?, bench.zeros(DType::F32, &[3, 4])?);
        bench.reject("f32 to fp8", Kind::DType, &["gemm", "`c`", narrow.name()], || gemm(&x, &y, &short, t));
    }
    let i32_only = ["`c`", "i32", "where anything is done"];
    bench.reject("scaled i32", Kind::DType, &i32_only, || Gemm::new(&a, &b, &c).row_scale(&scale).run());
    bench.reject("alpha of i32", Kind::DType, &i32_only, || Gemm::new(&a, &b, &c).alpha(2.0).run());
    bench.reject("relu of i32", Kind::DType, &i32_only, || Gemm::new(&a, &b, &c).activation(Activation::Relu).run());
    let (sa, sb) = (bench.zeros(DType::F32, &[2, 1])?, bench.zeros(DType::F32, &[1, 1])?);
    bench.reject("blocks of f32", Kind::DType, &["`a`", "fp8"], || {
        Gemm::new(&bench_a(&bench.env.rt)?, &f, &out).block_scales(&sa, &sb).run()
    });
    let wrong = bench.zeros(DType::F32, &[2, 2])?;
    bench.reject("blocks of a", Kind::Shape, &["block_scales of a", "[2, 1]"], || {
        Gemm::new(&e4, &e5, &out).block_scales(&wrong, &sb).run()
    });
    bench.reject("blocks of b", Kind::Shape, &["block_scales of b", "[1, 1]"], || {
        Gemm::new(&e4, &e5, &out).block_scales(&sa, &wrong).run()
    });
    Ok(())
}

fn bench_a(rt: &GpuRuntime) -> tessl::Result<Tensor> {
    rt.zeros(DType::F32, &[2, 3], BufferKind::Cold)
}
