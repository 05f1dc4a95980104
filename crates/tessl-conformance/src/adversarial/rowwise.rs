//! Wrong calls of operations on rows, by one list for all of them.

use super::{Bench, Kind, Result, text};
use tessl::nn::{Activate, Add, ArgMax, Cast, Glu, LogSoftmax, Mul, Reduce, Reduction, Scale, Softmax};
use tessl::{Activation, BufferKind, DType, Scalar, Stream, Tensor};

/// Calls an op on its operands: the inputs, then the output.
type Call<'a> = &'a dyn Fn(&[Tensor], Option<&mut Stream>) -> tessl::Result<()>;

/// Every operand of an element-wise op with everything that can be wrong about it. `names` are those of the operands,
/// the output last; all have one type and one shape.
pub(super) fn elementwise(bench: &mut Bench<'_>, op: &str, names: &[&str], call: Call<'_>) -> Result {
    rows(bench, op, names, call)?;
    let scalar = vec![bench.zeros(DType::F32, &[])?; names.len()];
    bench.accept(&format!("{op}: a scalar"), || call(&scalar, None));
    Ok(())
}

/// The same for an op that needs rows.
pub(super) fn rows(bench: &mut Bench<'_>, op: &str, names: &[&str], call: Call<'_>) -> Result {
    let shape = [2usize, 4];
    let count = names.len();
    let good =
        |bench: &Bench<'_>| -> Result<Vec<Tensor>> { names.iter().map(|_| bench.zeros(DType::F32, &shape)).collect() };
    let flat = bench.zeros(DType::F32, &[64])?;
    let view = |shape: &[usize], strides: &[usize], at: usize| flat.view(shape, strides, at).map_err(text);
    for i in 0..count {
        let name = format!("`{}`", names[i]);
        let said = |word: &'static str| [op.to_owned(), name.clone(), word.to_owned()];
        let wrong = |bench: &mut Bench<'_>, what: &str, kind, words: [String; 3], tensor: Tensor| -> Result {
            let mut operands = good(bench)?;
            operands[i] = tensor;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            bench.reject(&format!("{op}: {what} {name}"), kind, &words, || call(&operands, None));
            Ok(())
        };
        if i > 0 {
            for shape in [&[2usize, 5][..], &[4, 2], &[8], &[1, 2, 4], &[]] {
                let tensor = bench.zeros(DType::F32, shape)?;
                wrong(bench, "shape of", Kind::Shape, said("[2, 4]"), tensor)?;
            }
        }
        for dtype in DType::ALL.into_iter().filter(|d| if i == 0 { !d.is_float() } else { *d != DType::F32 }) {
            let tensor = bench.zeros(dtype, &shape)?;
            wrong(bench, "type of", Kind::DType, said(dtype.name()), tensor)?;
        }
        wrong(bench, "stride of", Kind::Layout, said("stride"), view(&shape, &[16, 2], 0)?)?;
        let foreign = bench.other.zeros(DType::F32, &shape, BufferKind::Cold).map_err(text)?;
        if i > 0 {
            wrong(bench, "foreign", Kind::WrongRuntime, said("runtime"), foreign)?;
        }
        let mut mine = bench.env.rt.stream().map_err(text)?;
        let old = mine.step(|s| s.bump(DType::F32, &shape)).map_err(text)?;
        wrong(bench, "expired", Kind::Expired, said("step"), old)?;
    }
    let output = format!("`{}`", names[count - 1]);
    let mut operands = good(bench)?;
    for (strides, what) in [([0, 1], "rows on one place"), ([3, 1], "rows that overlap")] {
        operands[count - 1] = view(&shape, &strides, 0)?;
        let call = || call(&operands, None);
        bench.reject(&format!("{op}: {what}"), Kind::Layout, &[op, &output, "repeat"], call);
    }
    for i in 0..count - 1 {
        let mut operands = good(bench)?;
        (operands[i], operands[count - 1]) = (view(&shape, &[4, 1], 0)?, view(&shape, &[4, 1], 3)?);
        let words = [op, &output, &format!("`{}`", names[i])];
        bench.reject(&format!("{op}: shifted over"), Kind::Overlap, &words, || call(&operands, None));
        operands[count - 1] = operands[i].clone();
        bench.accept(&format!("{op}: in place"), || call(&operands, None));
    }
    rest(bench, op, names, call)
}

/// Streams, deep views, broadcast inputs, nothing to do.
fn rest(bench: &mut Bench<'_>, op: &str, names: &[&str], call: Call<'_>) -> Result {
    let count = names.len();
    let all = |t: &Tensor| vec![t.clone(); count];
    let flat = bench.zeros(DType::F32, &[64])?;
    let plain = bench.zeros(DType::F32, &[2, 4])?;
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject(&format!("{op}: foreign stream"), Kind::WrongRuntime, &[op, "`stream`"], || {
        call(&all(&plain), Some(&mut stream))
    });
    let deep = flat.view(&[2, 2, 2, 2, 1], &[31, 15, 7, 3, 1], 0).map_err(text)?;
    let words = [op, &format!("`{}`", names[0]), "three"];
    bench.reject(&format!("{op}: four strided axes"), Kind::Layout, &words, || call(&all(&deep), None));
    let row = bench.zeros(DType::F32, &[4])?;
    let mut operands = all(&plain);
    operands[count - 2] = row.broadcast_to(&[2, 4]).map_err(text)?;
    operands[count - 1] = bench.zeros(DType::F32, &[2, 4])?;
    bench.accept(&format!("{op}: a row for all"), || call(&operands, None));
    let tall = row.broadcast_to(&[1 << 33, 4]).map_err(text)?;
    let words = [op, "8589934592"];
    let mut operands = all(&tall);
    operands[count - 1] = bench.zeros(DType::F32, &[0])?.view(&[0], &[1], 0).map_err(text)?;
    bench.reject(&format!("{op}: nothing for much"), Kind::Shape, &words, || call(&operands, None));
    let before = bench.env.rt.dispatch_count();
    for shape in [&[0usize, 4][..], &[3, 0, 4], &[3, 0], &[0]] {
        let empty = bench.zeros(DType::F32, shape)?;
        bench.accept(&format!("{op}: nothing"), || call(&all(&empty), None));
    }
    if bench.env.rt.dispatch_count() != before {
        return Err(format!("{op}: nothing was launched"));
    }
    Ok(())
}

/// Runs a built op on a stream or on the default one.
macro_rules! run {
    ($op:expr, $stream:expr) => {
        match $stream {
            Some(stream) => $op.run_on(stream),
            None => $op.run(),
        }
    };
}
pub(super) use run;

pub(super) fn mlp(bench: &mut Bench<'_>) -> Result {
    let act = Activation::Silu;
    elementwise(bench, "activate", &["x", "y"], &|t, s| run!(Activate::new(&t[0], &t[1], act), s))?;
    elementwise(bench, "glu", &["gate", "up", "out"], &|t, s| run!(Glu::new(&t[0], &t[1], &t[2], act), s))
}

pub(super) fn softmaxes(bench: &mut Bench<'_>) -> Result {
    rows(bench, "softmax", &["x", "y"], &|t, s| run!(Softmax::new(&t[0], &t[1]), s))?;
    rows(bench, "log_softmax", &["x", "y"], &|t, s| run!(LogSoftmax::new(&t[0], &t[1]), s))
}

pub(super) fn arithmetic(bench: &mut Bench<'_>) -> Result {
    elementwise(bench, "add", &["a", "b", "y"], &|t, s| run!(Add::new(&t[0], &t[1], &t[2]), s))?;
    elementwise(bench, "mul", &["a", "b", "y"], &|t, s| run!(Mul::new(&t[0], &t[1], &t[2]), s))?;
    elementwise(bench, "scale", &["x", "y"], &|t, s| run!(Scale::new(&t[0], 2.0, &t[1]), s))
}

/// What only scale and cast can get wrong.
pub(super) fn factors_and_types(bench: &mut Bench<'_>) -> Result {
    let x = bench.zeros(DType::F32, &[2, 4])?;
    for factor in [f32::NAN, f32::INFINITY] {
        bench.reject("factor", Kind::Scalar, &["scale", "`factor`", "finite"], || Scale::new(&x, factor, &x).run());
    }
    let scale = |factor: &Tensor| Scale::new(&x, Scalar::Device(factor), &x).run();
    for shape in [&[2usize][..], &[0], &[1, 2]] {
        let factor = bench.zeros(DType::F32, shape)?;
        bench.reject("factor", Kind::Shape, &["scale", "`factor`", "one element"], || scale(&factor));
    }
    for dtype in [DType::F16, DType::I32] {
        let factor = bench.zeros(dtype, &[1])?;
        bench.reject("factor", Kind::DType, &["scale", "`factor`", dtype.name()], || scale(&factor));
    }
    let mine = x.view(&[1], &[1], 3).map_err(text)?;
    bench.reject("factor in y", Kind::Overlap, &["scale", "`y`", "`factor`"], || scale(&mine));
    for shape in [&[1usize][..], &[], &[1, 1]] {
        let factor = bench.zeros(DType::F32, shape)?;
        bench.accept("one factor", || scale(&factor));
    }
    for (from, to) in DType::ALL.into_iter().flat_map(|a| DType::ALL.map(|b| (a, b))) {
        let (a, b) = (bench.zeros(from, &[2, 4])?, bench.zeros(to, &[2, 4])?);
        if from == to || from.is_float() && to.is_float() {
            bench.accept("cast", || Cast::new(&a, &b).run());
            bench.accept("cast of nothing", || Cast::new(&a.narrow(0, 0, 0)?, &b.narrow(0, 1, 0)?).run());
        } else {
            bench.reject("cast", Kind::DType, &["cast", "dtype of `"], || Cast::new(&a, &b).run());
        }
    }
    let wide = bench.zeros(DType::F32, &[4])?;
    let narrow = wide.bitcast(DType::Bf16).and_then(|t| t.narrow(0, 0, 4)).map_err(text)?;
    bench.reject("cast in place", Kind::Overlap, &["cast", "`y`", "`x`"], || Cast::new(&wide, &narrow).run());
    bench.accept("copy in place", || Cast::new(&wide, &wide).run());
    let column = bench.zeros(DType::F32, &[2, 1])?;
    bench.reject("shape", Kind::Shape, &["cast", "`y`", "[2, 4]"], || Cast::new(&x, &column).run());
    bench.reject("stride", Kind::Layout, &["cast", "`x`", "stride"], || Cast::new(&x.t()?, &x.t()?).run());
    Ok(())
}

/// Softmax, log-softmax and their options; reductions to a column.
pub(super) fn reductions(bench: &mut Bench<'_>) -> Result {
    let x = bench.zeros(DType::F32, &[2, 4])?;
    for bad in [f32::NAN, f32::INFINITY] {
        let (soft, log) = (Softmax::new(&x, &x).scale(bad), LogSoftmax::new(&x, &x).scale(bad));
        bench.reject("scale", Kind::Scalar, &["softmax", "`scale`", "finite"], || soft.run());
        bench.reject("scale", Kind::Scalar, &["log_softmax", "`scale`", "finite"], || log.run());
    }
    for bad in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let op = Softmax::new(&x, &x).softcap(bad);
        bench.reject("softcap", Kind::Scalar, &["softmax", "`softcap`", "above 0"], || op.run());
    }
    let masked = |mask: &Tensor| Softmax::new(&x, &x).mask(mask).run();
    for dtype in [DType::I32, DType::U32, DType::I8, DType::F8E5M2] {
        let mask = bench.zeros(dtype, &[2, 4])?;
        bench.reject("mask", Kind::DType, &["softmax", "`mask`", dtype.name()], || masked(&mask));
    }
    for shape in [&[4usize][..], &[2, 1], &[4, 2], &[]] {
        let mask = bench.zeros(DType::U8, shape)?;
        bench.reject("mask", Kind::Shape, &["softmax", "`mask`", "[2, 4]"], || masked(&mask));
    }
    bench.reject("mask is y", Kind::Overlap, &["softmax", "`y`", "`mask`"], || masked(&x));
    let row = bench.zeros(DType::U8, &[4])?;
    bench.accept("a mask for all rows", || masked(&row.broadcast_to(&[2, 4])?));
    let scalar = bench.zeros(DType::F32, &[])?;
    bench.reject("a scalar", Kind::Shape, &["softmax", "`x`", "rows"], || Softmax::new(&scalar, &scalar).run());
    let column = bench.zeros(DType::F32, &[2])?;
    let sum = |x: &Tensor, y: &Tensor| Reduce::new(x, y, Reduction::Sum).run();
    for shape in [&[4usize][..], &[2, 1], &[2, 4], &[]] {
        let y = bench.zeros(DType::F32, shape)?;
        bench.reject("y", Kind::Shape, &["row_sum", "`y`", "[2]"], || sum(&x, &y));
    }
    bench.reject("a scalar", Kind::Shape, &["row_sum", "`x`", "rows"], || sum(&scalar, &scalar));
    for reduction in Reduction::ALL {
        let empty = bench.zeros(DType::F32, &[2, 0])?;
        let call = || Reduce::new(&empty, &column, reduction).run();
        bench.reject("rows of nothing", Kind::Shape, &["row_", "`x`", "without elements"], call);
        let (none, nothing) = (bench.zeros(DType::F32, &[0, 0])?, bench.zeros(DType::F32, &[0])?);
        bench.accept("no rows", || Reduce::new(&none, &nothing, reduction).run());
    }
    for dtype in [DType::F16, DType::Bf16, DType::I32] {
        let y = bench.zeros(dtype, &[2])?;
        bench.reject("y", Kind::DType, &["row_sum", "`y`", dtype.name()], || sum(&x, &y));
        bench.reject("y", Kind::DType, &["row_argmax", "`y`", "u32"], || ArgMax::new(&x, &y).run());
    }
    let flat = bench.zeros(DType::F32, &[64])?;
    let view = |shape: &[usize], strides: &[usize]| flat.view(shape, strides, 0).map_err(text);
    let (wide, inside) = (view(&[2, 4], &[16, 2])?, view(&[2], &[1])?);
    bench.reject("stride", Kind::Layout, &["row_sum", "`x`", "stride"], || sum(&wide, &column));
    let dense = view(&[2, 4], &[4, 1])?;
    bench.reject("y over x", Kind::Overlap, &["row_sum", "`y`", "`x`"], || sum(&dense, &inside));
    let repeated = view(&[2], &[0])?;
    bench.reject("y repeats", Kind::Layout, &["row_sum", "`y`", "repeat"], || sum(&x, &repeated));
    Ok(())
}
