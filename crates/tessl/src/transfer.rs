//! Host transfers: views cut into runs of bytes, staging, copies.

use crate::error::{Error, Result};
use crate::stream::{Access, Binding, Rect, Stream, copy};
use crate::tensor::{Tensor, to_usize};

/// Pieces of one staging buffer, at most.
const STAGING_BYTES: u64 = 64 << 20;
/// Staging memory of uploads that have not finished, at most; a further upload waits for its stream first.
const STAGING_IN_USE: u64 = 256 << 20;

/// Bytes that the host reads before it lets waiting commands pass.
const HELD_BYTES: usize = 4 << 20;

/// Calls `f(byte offset of a contiguous run in the tensor's memory, byte offset in row-major host order, bytes)`.
fn for_runs(tensor: &Tensor, mut f: impl FnMut(u64, usize, usize)) {
    let size = tensor.dtype().size();
    let (shape, strides) = (tensor.shape(), tensor.strides());
    if tensor.is_empty() {
        return;
    }
    // The longest suffix of axes that is contiguous forms one run.
    let mut run = 1;
    let mut outer = shape.len();
    while outer > 0 && (shape[outer - 1] == 1 || strides[outer - 1] == run) {
        run *= shape[outer - 1];
        outer -= 1;
    }
    let mut index = vec![0usize; outer];
    let mut host = 0;
    loop {
        let at: u64 = index.iter().zip(strides).map(|(&i, &s)| i as u64 * s as u64).sum();
        f(tensor.byte_offset() + at * size as u64, host, run * size);
        host += run * size;
        let mut axis = outer;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// Copies the tensor to `out` in row-major order, after the unfinished writers of its bytes.
pub(crate) fn read(tensor: &Tensor, op: &'static str, out: &mut [u8]) -> Result<()> {
    if tensor.is_empty() {
        return Ok(());
    }
    let rt = tensor.runtime();
    let host = tensor.memory().raw().host;
    if !host.is_null() {
        return read_mapped(tensor, op, host, out);
    }
    // Not mapped: the span comes through staging memory on a stream of its own, then is taken apart on the host.
    let span = tensor.span_bytes();
    let start = tensor.byte_offset();
    let mut stream = rt.stream()?;
    let staging = rt.memory().allocate_staging(span.min(STAGING_BYTES))?;
    let mut flat = vec![0u8; if tensor.is_contiguous() { 0 } else { to_usize(span) }];
    let mut done = 0;
    while done < span {
        let bytes = (span - done).min(STAGING_BYTES);
        let from =
            Binding { memory: tensor.memory().clone(), rect: Rect::linear(start + done, bytes), access: Access::Read };
        let to = Binding { memory: staging.clone(), rect: Rect::linear(0, bytes), access: Access::Write };
        stream.encode(copy(op, from, to))?;
        stream.synchronize()?;
        let target = if flat.is_empty() { &mut *out } else { &mut flat };
        let range = to_usize(done)..to_usize(done + bytes);
        // SAFETY: staging memory is mapped and `bytes` long; the copy into it has finished.
        target[range].copy_from_slice(unsafe { std::slice::from_raw_parts(staging.raw().host, to_usize(bytes)) });
        done += bytes;
    }
    if !flat.is_empty() {
        for_runs(tensor, |at, to, bytes| {
            let from = to_usize(at - start);
            out[to..to + bytes].copy_from_slice(&flat[from..from + bytes]);
        });
    }
    Ok(())
}

/// The host reads mapped memory itself. While it does, no command on this memory can be encoded; the memory is let go
/// between pieces, so that a long read does not hold up other threads.
fn read_mapped(tensor: &Tensor, op: &'static str, host: *const u8, out: &mut [u8]) -> Result<()> {
    let mut held = None;
    let mut left = 0;
    let mut outcome = Ok(());
    for_runs(tensor, |at, to, bytes| {
        let mut done = 0;
        while done < bytes && outcome.is_ok() {
            if left == 0 {
                held = None;
                match tensor.runtime().host_access(tensor, Access::Read, op) {
                    Ok(hazards) => held = Some(hazards),
                    Err(error) => {
                        outcome = Err(error);
                        return;
                    }
                }
                left = HELD_BYTES;
            }
            let piece = (bytes - done).min(left);
            debug_assert!(held.is_some());
            // SAFETY: the view was bounds-checked against its allocation, which is mapped. Its writers have finished,
            // and holding the hazards keeps new ones from being encoded.
            let from = unsafe { std::slice::from_raw_parts(host.add(to_usize(at) + done), piece) };
            out[to + done..to + done + piece].copy_from_slice(from);
            done += piece;
            left -= piece;
        }
    });
    outcome
}

/// Copies `data` into the tensor through staging memory, ordered on `stream` (or the default one).
pub(crate) fn write(tensor: &Tensor, op: &'static str, data: &[u8], stream: Option<&mut Stream>) -> Result<()> {
    if tensor.repeats_elements() {
        let actual = format!("{:?} with strides {:?}", tensor.shape(), tensor.strides());
        return Err(Error::layout(op, "self", actual, "a view that repeats elements cannot be written"));
    }
    if tensor.is_empty() {
        return Ok(());
    }
    // Runs in memory order become rectangles of equal rows, so that a padded matrix is one copy.
    let (view, order) = in_memory_order(tensor)?;
    let mut reordered = Vec::new();
    let data = if order { data } else { gather(tensor, &view, data, &mut reordered) };
    let rect = view.rect();
    let exact = rect.width * rect.rows == data.len() as u64;
    let mut pieces: Vec<Rect> = Vec::new();
    if exact {
        pieces.push(rect);
    } else {
        for_runs(&view, |at, _, bytes| pieces.push(Rect::linear(at, bytes as u64)));
    }
    let rt = tensor.runtime();
    let target = |encoded| match &stream {
        Some(stream) => stream.encode(encoded),
        None => rt.encode_default(encoded),
    };
    let mut taken = 0;
    for piece in pieces.iter().flat_map(split) {
        let bytes = piece.width * piece.rows;
        if rt.memory().staging_bytes() + bytes > STAGING_IN_USE {
            rt.finish(stream.as_deref())?;
        }
        let staging = rt.memory().allocate_staging(bytes)?;
        let range = taken..taken + to_usize(bytes);
        // SAFETY: staging memory is mapped, at least `bytes` long, fresh, and not yet known to the device.
        unsafe { std::ptr::copy_nonoverlapping(data[range].as_ptr(), staging.raw().host, to_usize(bytes)) };
        taken += to_usize(bytes);
        let from = Rect { offset: 0, width: piece.width, pitch: piece.width, rows: piece.rows };
        target(copy(
            op,
            Binding { memory: staging, rect: from, access: Access::Read },
            Binding { memory: tensor.memory().clone(), rect: piece, access: Access::Write },
        ))?;
    }
    Ok(())
}

/// The same elements with axes sorted by falling stride, and whether that is the order they are in already.
fn in_memory_order(tensor: &Tensor) -> Result<(Tensor, bool)> {
    let mut order: Vec<usize> = (0..tensor.rank()).collect();
    order.sort_by_key(|&axis| {
        std::cmp::Reverse(if tensor.shape()[axis] > 1 { tensor.strides()[axis] } else { usize::MAX })
    });
    let view = tensor.permute(&order)?;
    let significant = |t: &Tensor| -> Vec<usize> {
        t.shape().iter().zip(t.strides()).filter(|&(&d, _)| d > 1).map(|(_, &s)| s).collect()
    };
    let same = significant(&view) == significant(tensor);
    Ok((view, same))
}

/// Row-major data of `tensor` in the order of `view`.
fn gather<'a>(tensor: &Tensor, view: &Tensor, data: &[u8], out: &'a mut Vec<u8>) -> &'a [u8] {
    let size = tensor.dtype().size();
    let base = tensor.byte_offset();
    let mut flat = vec![0u8; to_usize(tensor.span_bytes())];
    for_runs(tensor, |at, from, bytes| {
        let to = to_usize(at - base);
        flat[to..to + bytes].copy_from_slice(&data[from..from + bytes]);
    });
    out.resize(view.len() * size, 0);
    for_runs(view, |at, to, bytes| {
        let from = to_usize(at - base);
        out[to..to + bytes].copy_from_slice(&flat[from..from + bytes]);
    });
    out
}

/// A rectangle in pieces that fit staging memory.
fn split(rect: &Rect) -> impl Iterator<Item = Rect> + use<> {
    let rect = *rect;
    let rows_each = (STAGING_BYTES / rect.width.max(1)).max(1);
    let wide = rect.width > STAGING_BYTES;
    let steps = if wide { rect.rows } else { rect.rows.div_ceil(rows_each) };
    (0..steps).flat_map(move |i| {
        let rows = if wide { 1 } else { rows_each.min(rect.rows - i * rows_each) };
        let first = if wide { i } else { i * rows_each };
        let columns = if wide { rect.width.div_ceil(STAGING_BYTES) } else { 1 };
        (0..columns).map(move |j| {
            let start = j * STAGING_BYTES;
            let width = if wide { STAGING_BYTES.min(rect.width - start) } else { rect.width };
            Rect { offset: rect.offset + first * rect.pitch + start, width, pitch: rect.pitch, rows }
        })
    })
}
