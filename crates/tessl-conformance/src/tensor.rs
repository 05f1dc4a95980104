//! Cases of tensors: views, copies and fills at odd places.

use crate::data::{decode, encode, read_bytes, write_bytes};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::{BufferKind, DType, bf16, f16};
use tessl_oracle::Rng;

fn text(error: tessl::Error) -> String {
    error.to_string()
}

/// A read that is compared only where commands are executed.
fn same<T: PartialEq + std::fmt::Debug>(env: &Env, what: &str, got: &[T], want: &[T]) -> Result<(), String> {
    if !env.computes || got == want {
        return Ok(());
    }
    let at = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0);
    Err(format!("{what}: element {at} is {:?} instead of {:?}", got.get(at), want.get(at)))
}

/// pytorch#183631: fills and copies on views with odd byte offsets.
fn odd_offsets(env: &Env) -> Result<(), String> {
    let rt = &env.rt;
    for start in 0..8usize {
        for length in 1..=9usize.min(16 - start) {
            let bytes = rt.from_slice(&[0u8; 16], &[16]).map_err(text)?;
            bytes.narrow(0, start, length).and_then(|v| v.write(&vec![1u8; length])).map_err(text)?;
            let mut want = [0u8; 16];
            want[start..start + length].fill(1);
            same(env, &format!("u8 view {start}+{length}"), &bytes.read::<u8>().map_err(text)?, &want)?;
            let part = bytes.narrow(0, start, length).and_then(|v| v.read::<u8>()).map_err(text)?;
            same(env, "u8 part", &part, &vec![1u8; length])?;
        }
    }
    for start in [1usize, 3] {
        let mut want = [f16::ZERO; 8];
        want[start..6].fill(f16::ONE);
        let x = rt.from_slice(&[f16::ZERO; 8], &[8]).map_err(text)?;
        x.narrow(0, start, 6 - start).and_then(|v| v.write(&vec![f16::ONE; 6 - start])).map_err(text)?;
        same(env, "f16 view", &x.read::<f16>().map_err(text)?, &want)?;
        let want = want.map(|x| bf16::from_f32(x.to_f32()));
        let x = rt.from_slice(&[bf16::ZERO; 8], &[8]).map_err(text)?;
        x.narrow(0, start, 6 - start).and_then(|v| v.write(&vec![bf16::ONE; 6 - start])).map_err(text)?;
        same(env, "bf16 view", &x.read::<bf16>().map_err(text)?, &want)?;
    }
    Ok(())
}

/// Random chains of views: reads and writes agree with indices worked out by hand.
fn random_views(env: &Env) -> Result<(), String> {
    let mut rng = Rng::new(env.seed);
    for round in 0..200 {
        let shape: Vec<usize> = (0..rng.between(1, 4)).map(|_| rng.between(1, 6)).collect();
        let len: usize = shape.iter().product();
        let dtype = *rng.pick(&[DType::F32, DType::F16, DType::Bf16]);
        let whole = env.rt.uninit(dtype, &shape, BufferKind::Cold).map_err(text)?;
        write_bytes(&whole, &encode(dtype, (0..len).map(|x| x as f64 % 251.0)), None)?;
        // A list of the storage places that the view's elements stand for.
        let mut view = whole.clone();
        let mut dims = shape.clone();
        let mut places: Vec<usize> = (0..len).collect();
        let rank = dims.len();
        for _ in 0..rng.below(4) {
            let axis = rng.below(rank);
            if rng.one_in(2) {
                let start = rng.below(dims[axis]);
                let length = rng.between(1, dims[axis] - start);
                view = view.narrow(axis, start, length).map_err(text)?;
                places = pick(&places, &dims, |index| (start..start + length).contains(&index[axis]));
                dims[axis] = length;
            } else {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(axis, rng.below(rank));
                view = view.permute(&order).map_err(text)?;
                let new: Vec<usize> = order.iter().map(|&o| dims[o]).collect();
                places = (0..places.len()).map(|at| places[permuted(at, &new, &order, &dims)]).collect();
                dims = new;
            }
        }
        if view.shape() != dims {
            return Err(format!("round {round}: shape {:?} instead of {dims:?}", view.shape()));
        }
        let got = read_bytes(&view)?;
        let got: Vec<f64> = (0..places.len()).map(|at| decode(dtype, &got, at)).collect();
        let want: Vec<f64> = places.iter().map(|&p| p as f64 % 251.0).collect();
        same(env, &format!("round {round}, read {view:?}"), &got, &want)?;
        // Writing through the view changes these places and no others.
        write_bytes(&view, &encode(dtype, (0..places.len()).map(|x| -1.0 - (x % 100) as f64)), None)?;
        let all = read_bytes(&whole)?;
        let all: Vec<f64> = (0..len).map(|at| decode(dtype, &all, at)).collect();
        let mut want: Vec<f64> = (0..len).map(|x| x as f64 % 251.0).collect();
        for (x, &place) in places.iter().enumerate() {
            want[place] = -1.0 - (x % 100) as f64;
        }
        same(env, &format!("round {round}, write {view:?}"), &all, &want)?;
    }
    Ok(())
}

fn index_of(mut at: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, &d) in index.iter_mut().zip(dims).rev() {
        *i = at % d;
        at /= d;
    }
    index
}

fn pick(places: &[usize], dims: &[usize], keep: impl Fn(&[usize]) -> bool) -> Vec<usize> {
    places.iter().enumerate().filter(|(at, _)| keep(&index_of(*at, dims))).map(|(_, &p)| p).collect()
}

/// The row-major place in `dims` of element `at` of the permuted array.
fn permuted(at: usize, new: &[usize], order: &[usize], dims: &[usize]) -> usize {
    let index = index_of(at, new);
    let mut old = vec![0; dims.len()];
    for (i, &o) in order.iter().enumerate() {
        old[o] = index[i];
    }
    old.iter().zip(dims).fold(0, |place, (&i, &d)| place * d + i)
}

/// Broadcast, reshape, select, zero-sized tensors, all element types.
fn shapes(env: &Env) -> Result<(), String> {
    let rt = &env.rt;
    let x = rt.from_slice(&[1.0f32, 2.0, 3.0], &[3, 1]).map_err(text)?;
    let wide = x.broadcast_to(&[2, 3, 2]).map_err(text)?;
    let want = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
    same(env, "broadcast", &wide.read::<f32>().map_err(text)?, &want)?;
    let m = rt.from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3]).map_err(text)?;
    same(env, "t", &m.t().and_then(|t| t.read::<i32>()).map_err(text)?, &[1, 4, 2, 5, 3, 6])?;
    same(env, "select", &m.select(1, 2).and_then(|t| t.read::<i32>()).map_err(text)?, &[3, 6])?;
    same(env, "reshape", &m.reshape(&[3, 2]).and_then(|t| t.select(0, 1)?.read::<i32>()).map_err(text)?, &[3, 4])?;
    for shape in [&[0usize][..], &[3, 0], &[0, 5, 2]] {
        let empty = rt.zeros(DType::F32, shape, BufferKind::Cold).map_err(text)?;
        empty.write::<f32>(&[]).map_err(text)?;
        if !empty.read::<f32>().map_err(text)?.is_empty() {
            return Err(format!("{shape:?} has elements"));
        }
    }
    for dtype in DType::ALL {
        for kind in [BufferKind::Hot, BufferKind::Cold] {
            // Dirty memory first, so that zeros are written and not found.
            let dirty = rt.uninit(DType::U8, &[300 * dtype.size()], kind).map_err(text)?;
            dirty.write(&vec![0xEEu8; 300 * dtype.size()]).map_err(text)?;
            drop(dirty);
            let zero = rt.zeros(dtype, &[300], kind).and_then(|t| t.bitcast(DType::U8)).map_err(text)?;
            let bytes = zero.read::<u8>().map_err(text)?;
            same(env, "zeros", &bytes, &vec![0u8; 300 * dtype.size()])?;
        }
    }
    Ok(())
}

/// Cases of this area.
pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Env) -> Result<(), String>| {
        Case::new(format!("tensor/{name}"), "tensor", move |env: &Env| Outcome::from(body(env))).tagged(&["quick"])
    };
    vec![case("pt_183631", odd_offsets), case("random_views", random_views), case("shapes", shapes)]
}
