//! Wrong calls of selections and draws.

use super::{Bench, Kind, Result, text};
use tessl::nn::{Sample, TopK};
use tessl::{BufferKind, DType, Scalar, Tensor};

pub(super) fn top_k(bench: &mut Bench<'_>) -> Result {
    let (x, values, indices) =
        (bench.zeros(DType::F32, &[2, 6])?, bench.zeros(DType::F32, &[2, 3])?, bench.zeros(DType::U32, &[2, 3])?);
    let call = |x: &Tensor, v: &Tensor, i: &Tensor| TopK::new(x, v, i).run();
    bench.accept("plain", || call(&x, &values, &indices));
    for dtype in DType::ALL {
        let (wrong, list) = (bench.zeros(dtype, &[2, 6])?, bench.zeros(dtype, &[2, 3])?);
        if !dtype.is_float() {
            bench.reject("x", Kind::DType, &["top_k", "`x`", dtype.name()], || call(&wrong, &values, &indices));
        }
        if dtype != DType::F32 {
            bench.reject("values", Kind::DType, &["top_k", "`values`", dtype.name()], || call(&x, &list, &indices));
        }
        if dtype != DType::U32 {
            bench.reject("indices", Kind::DType, &["top_k", "`indices`", "u32"], || call(&x, &values, &list));
        }
    }
    for shape in [&[2usize, 7][..], &[3, 3], &[3], &[], &[2, 1, 3]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("values", Kind::Shape, &["top_k", "`values`", "at most 6"], || call(&x, &wrong, &indices));
    }
    let short = bench.zeros(DType::U32, &[2, 2])?;
    bench.reject("indices", Kind::Shape, &["top_k", "`indices`", "[2, 3]"], || call(&x, &values, &short));
    let scalar = bench.zeros(DType::F32, &[])?;
    bench.reject("a scalar", Kind::Shape, &["top_k", "`x`", "rows"], || call(&scalar, &scalar, &indices));
    let wide = bench.zeros(DType::F32, &[1, 300])?;
    let (v, i) = (bench.zeros(DType::F32, &[1, 257])?, bench.zeros(DType::U32, &[1, 257])?);
    bench.reject("k", Kind::TooLarge, &["top_k", "257", "256"], || call(&wide, &v, &i));
    let part = x.narrow(1, 0, 3).map_err(text)?;
    bench.reject("in place", Kind::Overlap, &["top_k", "`values`", "`x`"], || call(&x, &part, &indices));
    let bits = values.bitcast(DType::U32).map_err(text)?;
    bench.reject("both outputs", Kind::Overlap, &["top_k"], || call(&x, &values, &bits));
    let strided = bench.zeros(DType::F32, &[3, 2])?;
    bench.reject("stride", Kind::Layout, &["top_k", "`values`", "stride"], || call(&x, &strided.t()?, &indices));
    let (none, nothing) = (bench.zeros(DType::F32, &[2, 0])?, bench.zeros(DType::U32, &[2, 0])?);
    bench.accept("none of them", || call(&x, &none, &nothing));
    let foreign = bench.other.zeros(DType::F32, &[2, 3], BufferKind::Cold).map_err(text)?;
    bench.reject("foreign", Kind::WrongRuntime, &["top_k", "`values`"], || call(&x, &foreign, &indices));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("stream", Kind::WrongRuntime, &["top_k", "`stream`"], || {
        TopK::new(&x, &values, &indices).run_on(&mut stream)
    });
    Ok(())
}

pub(super) fn sample(bench: &mut Bench<'_>) -> Result {
    let (x, tokens) = (bench.zeros(DType::F32, &[2, 6])?, bench.zeros(DType::U32, &[2])?);
    let plain = || Sample::new(&x, &tokens);
    bench.accept("plain", || plain().run());
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        bench.reject("temperature", Kind::Scalar, &["sample", "`temperature`"], || plain().temperature(bad).run());
        bench.reject("softcap", Kind::Scalar, &["sample", "`softcap`"], || plain().softcap(bad).run());
        bench.reject("top_p", Kind::Scalar, &["sample", "`top_p`"], || plain().top_p(bad).run());
        bench.reject("min_p", Kind::Scalar, &["sample", "`min_p`"], || plain().min_p(bad).run());
        bench.reject("penalty", Kind::Scalar, &["sample", "`repetition_penalty`"], || {
            plain().repetition_penalty(bad, &tokens.reshape(&[2, 1])?).run()
        });
    }
    bench.reject("top_p", Kind::Scalar, &["sample", "`top_p`"], || plain().top_p(0.0).run());
    bench.reject("top_p", Kind::Scalar, &["sample", "`top_p`"], || plain().top_p(1.5).run());
    bench.reject("min_p", Kind::Scalar, &["sample", "`min_p`"], || plain().min_p(1.5).run());
    for dtype in DType::ALL {
        let (logits, list) = (bench.zeros(dtype, &[2, 6])?, bench.zeros(dtype, &[2])?);
        if !dtype.is_float() {
            bench.reject("logits", Kind::DType, &["sample", "`logits`", dtype.name()], || {
                Sample::new(&logits, &tokens).run()
            });
        }
        if dtype != DType::U32 {
            bench.reject("tokens", Kind::DType, &["sample", "`tokens`", "u32"], || Sample::new(&x, &list).run());
            bench.reject("top_k", Kind::DType, &["sample", "`top_k`"], || plain().top_k(Scalar::Device(&list)).run());
            bench.reject("seed", Kind::DType, &["sample", "`seed`"], || plain().seed(Scalar::Device(&list)).run());
        }
        if dtype != DType::F32 {
            bench.reject("temperature", Kind::DType, &["sample", "`temperature`", "f32"], || {
                plain().temperature(Scalar::Device(&list)).run()
            });
        }
    }
    for shape in [&[3usize][..], &[2, 1], &[]] {
        let wrong = bench.zeros(DType::U32, shape)?;
        bench.reject("tokens", Kind::Shape, &["sample", "`tokens`", "[2]"], || Sample::new(&x, &wrong).run());
    }
    for shape in [&[3usize][..], &[0], &[4]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("top_p", Kind::Shape, &["sample", "`top_p`", "each"], || {
            plain().top_p(Scalar::Device(&wrong)).run()
        });
    }
    let ones = bench.env.rt.from_slice(&[1.0f32, 1.0], &[2]).map_err(text)?;
    bench.accept("one for each row", || plain().temperature(Scalar::Device(&ones)).run());
    bench.accept("one for all", || plain().min_p(Scalar::Device(&ones.narrow(0, 0, 1)?)).run());
    let two = bench.zeros(DType::U32, &[2])?;
    bench.accept("a seed", || plain().seed(Scalar::Device(&two)).run());
    let one = bench.zeros(DType::U32, &[1])?;
    bench.reject("half a seed", Kind::Shape, &["sample", "`seed`"], || plain().seed(Scalar::Device(&one)).run());
    let history = bench.zeros(DType::I32, &[5])?;
    bench.reject("one list for all", Kind::Shape, &["sample", "`previous`", "broadcast_to"], || {
        plain().repetition_penalty(1.5, &history).run()
    });
    bench.accept("broadcast", || plain().repetition_penalty(1.5, &history.broadcast_to(&[2, 5])?).run());
    let empty = bench.zeros(DType::U32, &[2, 0])?;
    bench.accept("no previous tokens", || plain().repetition_penalty(1.5, &empty).run());
    let floats = bench.zeros(DType::F32, &[2, 3])?;
    bench.reject("previous", Kind::DType, &["sample", "`previous`", "f32"], || {
        plain().repetition_penalty(1.5, &floats).run()
    });
    let row = bench.zeros(DType::F32, &[1])?;
    let huge = row.broadcast_to(&[2, (1 << 21) + 1]).map_err(text);
    bench.reject("tokens", Kind::TooLarge, &["sample", "2097152"], || {
        Sample::new(huge.as_ref().unwrap_or(&x), &tokens).run()
    });
    let none = bench.zeros(DType::F32, &[2, 0])?;
    bench.reject("nothing to choose", Kind::Shape, &["sample", "`logits`", "no token"], || {
        Sample::new(&none, &tokens).run()
    });
    let bits = x.bitcast(DType::U32).and_then(|t| t.view(&[2], &[1], 0)).map_err(text)?;
    bench
        .reject("over the logits", Kind::Overlap, &["sample", "`tokens`", "`logits`"], || Sample::new(&x, &bits).run());
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("stream", Kind::WrongRuntime, &["sample", "`stream`"], || plain().run_on(&mut stream));
    Ok(())
}
