//! Wrong calls of operations that take positions or ids.

use super::{Bench, Kind, Result, text};
use tessl::nn::{Embedding, Positions, Rope, RopeFrequencies, RopeScaling};
use tessl::{BufferKind, DType, Scalar, Tensor};

pub(super) fn rope(bench: &mut Bench<'_>) -> Result {
    let rt = bench.env.rt.clone();
    let new = |dims, base, scaling| RopeFrequencies::new(&rt, dims, base, scaling);
    for dims in [0, 1, 7] {
        bench
            .reject("dims", Kind::Scalar, &["RopeFrequencies", "`dims`", "even"], || new(dims, 1e4, RopeScaling::None));
    }
    bench.reject("dims", Kind::TooLarge, &["RopeFrequencies", "1026"], || new(1026, 1e4, RopeScaling::None));
    for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        bench.reject("base", Kind::Scalar, &["`base`"], || new(4, base, RopeScaling::None));
        bench.reject("factor", Kind::Scalar, &["`factor`"], || new(4, 1e4, RopeScaling::Linear(base)));
    }
    let llama = RopeScaling::Llama3 { factor: 8.0, low: 4.0, high: 1.0, original: 8192.0 };
    bench.reject("low above high", Kind::Scalar, &["`high`", "`low` below"], || new(4, 1e4, llama));

    let yarn = |factor, original, fast, slow| RopeScaling::Yarn { factor, original, fast, slow };
    bench.reject("ntk", Kind::Scalar, &["`factor`"], || new(4, 1e4, RopeScaling::Ntk(f64::NAN)));
    bench.reject("factor", Kind::Scalar, &["`factor`"], || new(4, 1e4, yarn(0.0, 4096.0, 32.0, 1.0)));
    bench.reject("original", Kind::Scalar, &["`original`"], || new(4, 1e4, yarn(4.0, -1.0, 32.0, 1.0)));
    bench
        .reject("slow above fast", Kind::Scalar, &["`fast`", "`slow` below"], || new(4, 1e4, yarn(4.0, 4e3, 1.0, 2.0)));
    bench.reject("base of yarn", Kind::Scalar, &["`base`", "YaRN"], || new(4, 1.0, yarn(4.0, 4096.0, 32.0, 1.0)));

    let table = new(4, 1e4, RopeScaling::None).map_err(text)?;
    let shape = [2usize, 3, 2, 4];
    let (x, y) = (bench.zeros(DType::F32, &shape)?, bench.zeros(DType::F32, &shape)?);
    let call = |x: &Tensor, y: &Tensor| Rope::new(x, &table, 5, y).run();
    bench.accept("plain", || call(&x, &y));
    bench.accept("in place", || call(&x, &x));
    for dtype in [DType::F16, DType::I32, DType::U8] {
        let other = bench.zeros(dtype, &shape)?;
        if !dtype.is_float() {
            bench.reject("x", Kind::DType, &["rope", "`x`", dtype.name()], || call(&other, &y));
        }
        bench.reject("y", Kind::DType, &["rope", "`y`", dtype.name()], || call(&x, &other));
    }
    let wrong = bench.zeros(DType::F32, &[2, 3, 4])?;
    bench.reject("y", Kind::Shape, &["rope", "`y`", "[2, 3, 2, 4]"], || call(&x, &wrong));
    let (short, vector) = (bench.zeros(DType::F32, &[3, 2, 2])?, bench.zeros(DType::F32, &[4])?);
    bench.reject("rows below dims", Kind::Shape, &["rope", "`x`", "4 elements"], || call(&short, &short));
    bench.reject("no tokens", Kind::Shape, &["rope", "`x`", "tokens"], || call(&vector, &vector));
    bench.reject("axis", Kind::Shape, &["rope", "token_axis", "0..3"], || {
        Rope::new(&x, &table, 5, &y).token_axis(3).run()
    });

    let each = |p: &Tensor| Rope::new(&x, &table, Positions::Each(p), &y).run();
    let first = |p: &Tensor| Rope::new(&x, &table, Positions::From(Scalar::Device(p)), &y).run();
    for dtype in [DType::F32, DType::Bf16, DType::U8] {
        let (all, one) = (bench.zeros(dtype, &[2, 3, 2])?, bench.zeros(dtype, &[1])?);
        bench.reject("positions", Kind::DType, &["rope", "`positions`", dtype.name()], || each(&all));
        bench.reject("positions", Kind::DType, &["rope", "`positions`", dtype.name()], || first(&one));
    }
    for shape in [&[3usize][..], &[2, 3], &[2, 3, 2, 1], &[]] {
        let all = bench.zeros(DType::U32, shape)?;
        bench.reject("positions", Kind::Shape, &["rope", "`positions`", "[2, 3, 2]"], || each(&all));
    }
    let tokens = bench.zeros(DType::I32, &[3, 1])?;
    bench.reject("positions of tokens", Kind::Shape, &["did you mean broadcast_to"], || each(&tokens));
    bench.accept("repeated over heads", || each(&tokens.broadcast_to(&[2, 3, 2])?));
    let two = bench.zeros(DType::U32, &[2])?;
    bench.reject("two first positions", Kind::Shape, &["rope", "`positions`", "one element"], || first(&two));

    let flat = bench.zeros(DType::F32, &[256])?;
    let view = |strides: &[usize], at| flat.view(&shape, strides, at).map_err(text);
    let (a, b) = (view(&[24, 8, 4, 1], 0)?, view(&[24, 8, 4, 1], 2)?);
    bench.reject("shifted over", Kind::Overlap, &["rope", "`y`", "`x`"], || call(&a, &b));
    let wide = view(&[48, 16, 8, 2], 0)?;
    bench.reject("stride", Kind::Layout, &["rope", "`x`", "stride"], || call(&wide, &y));
    let repeated = view(&[0, 8, 4, 1], 0)?;
    bench.reject("repeats", Kind::Layout, &["rope", "`y`", "repeat"], || call(&x, &repeated));
    let (foreign, mut stream) =
        (bench.other.zeros(DType::F32, &shape, BufferKind::Cold).map_err(text)?, bench.other.stream().map_err(text)?);
    bench.reject("foreign y", Kind::WrongRuntime, &["rope", "`y`"], || call(&x, &foreign));
    bench.reject("foreign frequencies", Kind::WrongRuntime, &["rope", "`frequencies`"], || call(&foreign, &foreign));
    bench.reject("foreign stream", Kind::WrongRuntime, &["rope", "`stream`"], || {
        Rope::new(&x, &table, 5, &y).run_on(&mut stream)
    });
    let before = rt.dispatch_count();
    let empty = bench.zeros(DType::F32, &[2, 0, 2, 4])?;
    bench.accept("no tokens", || call(&empty, &empty));
    if rt.dispatch_count() == before { Ok(()) } else { Err("nothing was launched".into()) }
}

pub(super) fn embedding(bench: &mut Bench<'_>) -> Result {
    let (table, ids) = (bench.zeros(DType::F32, &[10, 4])?, bench.zeros(DType::U32, &[2, 3])?);
    let out = bench.zeros(DType::F32, &[2, 3, 4])?;
    let call = |table: &Tensor, ids: &Tensor, out: &Tensor| Embedding::new(table, ids, out).run();
    bench.accept("plain", || call(&table, &ids, &out));
    for shape in [&[10usize][..], &[1, 10, 4], &[]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("table", Kind::Shape, &["embedding", "`table`", "[vocabulary, n]"], || call(&wrong, &ids, &out));
    }
    for shape in [&[2usize, 3][..], &[2, 3, 5], &[6, 4], &[3, 2, 4], &[]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("out", Kind::Shape, &["embedding", "`out`", "[2, 3]"], || call(&table, &ids, &wrong));
    }
    for dtype in DType::ALL {
        let (t, i, o) = (bench.zeros(dtype, &[10, 4])?, bench.zeros(dtype, &[2, 3])?, bench.zeros(dtype, &[2, 3, 4])?);
        if !dtype.is_float() {
            bench.reject("table", Kind::DType, &["embedding", "`table`", dtype.name()], || call(&t, &ids, &out));
        }
        if !matches!(dtype, DType::U32 | DType::I32) {
            bench.reject("ids", Kind::DType, &["embedding", "`ids`", dtype.name()], || call(&table, &i, &out));
        }
        if dtype != DType::F32 {
            bench.reject("out", Kind::DType, &["embedding", "`out`", dtype.name()], || call(&table, &ids, &o));
        }
    }
    for scale in [f32::NAN, f32::INFINITY] {
        let op = Embedding::new(&table, &ids, &out).scale(scale);
        bench.reject("scale", Kind::Scalar, &["embedding", "`scale`", "finite"], || op.run());
    }
    let tall = bench.zeros(DType::F32, &[1, 4])?.broadcast_to(&[1 << 31, 4]).map_err(text)?;
    bench.reject("2^31 rows", Kind::TooLarge, &["embedding", "2147483648"], || call(&tall, &ids, &out));
    let flat = bench.zeros(DType::F32, &[64])?;
    let view = |shape: &[usize], strides: &[usize], at| flat.view(shape, strides, at).map_err(text);
    let inside = view(&[2, 3, 4], &[12, 4, 1], 4)?;
    bench.reject("out in the table", Kind::Overlap, &["embedding", "`out`", "`table`"], || {
        call(&view(&[10, 4], &[4, 1], 0).expect("inside"), &ids, &inside)
    });
    let wide = view(&[2, 4], &[16, 2], 0)?;
    bench.reject("table stride", Kind::Layout, &["embedding", "`table`", "stride"], || call(&wide, &ids, &out));
    let repeated = view(&[2, 3, 4], &[0, 4, 1], 0)?;
    bench.reject("out repeats", Kind::Layout, &["embedding", "`out`", "repeat"], || call(&table, &ids, &repeated));
    let foreign = bench.other.zeros(DType::U32, &[2, 3], BufferKind::Cold).map_err(text)?;
    bench.reject("foreign ids", Kind::WrongRuntime, &["embedding", "`ids`"], || call(&table, &foreign, &out));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("foreign stream", Kind::WrongRuntime, &["embedding", "`stream`"], || {
        Embedding::new(&table, &ids, &out).run_on(&mut stream)
    });
    let before = bench.env.rt.dispatch_count();
    let (none, nothing) = (bench.zeros(DType::U32, &[0])?, bench.zeros(DType::F32, &[0, 4])?);
    bench.accept("no ids", || call(&table, &none, &nothing));
    if bench.env.rt.dispatch_count() == before { Ok(()) } else { Err("nothing was launched".into()) }
}
