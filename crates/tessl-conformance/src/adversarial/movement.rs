//! Wrong calls of copies, gathers and scatters.

use super::{Bench, Kind, Result, text};
use tessl::nn::{Concat, Copy, GatherRows, ScatterAdd, ScatterRows, Transpose};
use tessl::{DType, Tensor};

pub(super) fn copies(bench: &mut Bench<'_>) -> Result {
    let (x, y) = (bench.zeros(DType::F32, &[2, 4])?, bench.zeros(DType::F32, &[2, 4])?);
    let flat = bench.zeros(DType::F32, &[64])?;
    let view = |shape: &[usize], strides: &[usize], at: usize| flat.view(shape, strides, at).map_err(text);
    let copy = |x: &Tensor, y: &Tensor| Copy::new(x, y).run();
    bench.accept("in place", || copy(&x, &x));
    for shape in [&[4usize, 2][..], &[8], &[2, 5], &[]] {
        let wrong = bench.zeros(DType::F32, shape)?;
        bench.reject("shape", Kind::Shape, &["copy", "`y`", "[2, 4]"], || copy(&x, &wrong));
    }
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::F32) {
        let wrong = bench.zeros(dtype, &[2, 4])?;
        bench.reject("type", Kind::DType, &["copy", "`y`", dtype.name()], || copy(&x, &wrong));
        bench.accept("every type", || copy(&wrong, &bench_like(&wrong)?));
    }
    let (first, shifted) = (view(&[2, 4], &[4, 1], 0)?, view(&[2, 4], &[4, 1], 3)?);
    bench.reject("shifted", Kind::Overlap, &["copy", "`y`", "`x`"], || copy(&first, &shifted));
    let repeated = view(&[2, 4], &[0, 1], 0)?;
    bench.reject("repeats", Kind::Layout, &["copy", "`y`", "repeat"], || copy(&x, &repeated));
    bench.accept("from a broadcast", || copy(&repeated, &y));
    // Six axes with a gap after each.
    let (shape, strides) = ([2usize; 6], [364, 121, 40, 13, 4, 1]);
    let big = bench.zeros(DType::F32, &[1200])?;
    let deep = big.view(&shape, &strides, 0).map_err(text)?;
    let other = bench.zeros(DType::F32, &[2; 6])?;
    bench.reject("six axes", Kind::Layout, &["copy", "`y`", "five"], || copy(&deep, &other));
    bench.accept("five axes", || copy(&deep.select(0, 1)?, &other.select(0, 1)?));
    let foreign = bench.other.zeros(DType::F32, &[2, 4], tessl::BufferKind::Cold).map_err(text)?;
    bench.reject("foreign", Kind::WrongRuntime, &["copy", "`y`"], || copy(&x, &foreign));
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("stream", Kind::WrongRuntime, &["copy", "`stream`"], || Copy::new(&x, &y).run_on(&mut stream));
    for empty in [&[0usize, 4][..], &[3, 0]] {
        let nothing = bench.zeros(DType::F32, empty)?;
        bench.accept("nothing", || copy(&nothing, &bench_like(&nothing)?));
    }
    bench.reject("shape of a transpose", Kind::Shape, &["copy", "`y`"], || Transpose::new(&x, &y).run());
    let t = bench.zeros(DType::F32, &[4, 2])?;
    bench.accept("transpose", || Transpose::new(&x, &t).run());
    for order in [&[0usize][..], &[0, 0], &[0, 2]] {
        let call = || Transpose::new(&x, &t).order(order).run();
        bench.reject("order", Kind::Shape, &["order"], call);
    }
    concat(bench, &x, &y)
}

/// Another tensor of the same type and shape.
fn bench_like(x: &Tensor) -> tessl::Result<Tensor> {
    x.runtime().uninit(x.dtype(), x.shape(), tessl::BufferKind::Cold)
}

fn concat(bench: &mut Bench<'_>, x: &Tensor, y: &Tensor) -> Result {
    let out = bench.zeros(DType::F32, &[2, 8])?;
    bench.accept("concat", || Concat::new(&[x, y], 1, &out).run());
    bench.reject("axis", Kind::Shape, &["concat", "`axis`"], || Concat::new(&[x, y], 2, &out).run());
    bench.reject("along the rows", Kind::Shape, &["concat", "`inputs`"], || Concat::new(&[x, y], 0, &out).run());
    bench.reject("too short", Kind::Shape, &["concat", "`y`", "4"], || Concat::new(&[x], 1, &out).run());
    bench.reject("too long", Kind::Shape, &["concat", "`inputs`"], || Concat::new(&[x, y, x], 1, &out).run());
    let part = out.narrow(1, 2, 4).map_err(text)?;
    bench.reject("its own input", Kind::Overlap, &["concat", "`y`"], || Concat::new(&[x, &part], 1, &out).run());
    let place = out.narrow(1, 4, 4).map_err(text)?;
    bench.accept("in place", || Concat::new(&[x, &place], 1, &out).run());
    for dtype in [DType::F16, DType::I32] {
        let wrong = bench.zeros(dtype, &[2, 4])?;
        bench.reject("type", Kind::DType, &["concat", "`inputs`", dtype.name()], || {
            Concat::new(&[x, &wrong], 1, &out).run()
        });
    }
    let (vector, foreign) = (
        bench.zeros(DType::F32, &[4])?,
        bench.other.zeros(DType::F32, &[2, 4], tessl::BufferKind::Cold).map_err(text)?,
    );
    bench.reject("rank", Kind::Shape, &["concat", "`inputs`"], || Concat::new(&[x, &vector], 1, &out).run());
    bench.reject("foreign", Kind::WrongRuntime, &["concat", "`inputs`"], || Concat::new(&[x, &foreign], 1, &out).run());
    let mut stream = bench.other.stream().map_err(text)?;
    bench.reject("stream", Kind::WrongRuntime, &["concat", "`stream`"], || {
        Concat::new(&[x, y], 1, &out).run_on(&mut stream)
    });
    let none = bench.zeros(DType::F32, &[2, 0])?;
    bench.accept("of nothing", || Concat::new(&[], 1, &none).run());
    Ok(())
}

/// The same list for all three: the table first, then ids, then rows.
pub(super) fn rows(bench: &mut Bench<'_>) -> Result {
    type Call = fn(&Tensor, &Tensor, &Tensor) -> tessl::Result<()>;
    let ops: [(&str, [&str; 2], Call); 3] = [
        ("gather_rows", ["x", "y"], |table, ids, rows| GatherRows::new(table, ids, rows).run()),
        ("scatter_rows", ["y", "x"], |table, ids, rows| ScatterRows::new(rows, ids, table).run()),
        ("scatter_add", ["y", "x"], |table, ids, rows| ScatterAdd::new(rows, ids, table).run()),
    ];
    for (op, [table_name, rows_name], call) in ops {
        let (table, ids, rows) =
            (bench.zeros(DType::F32, &[6, 4])?, bench.zeros(DType::U32, &[3])?, bench.zeros(DType::F32, &[3, 4])?);
        let (table_name, rows_name) = (format!("`{table_name}`"), format!("`{rows_name}`"));
        bench.accept(op, || call(&table, &ids, &rows));
        for dtype in [DType::F32, DType::U8, DType::Bf16] {
            let wrong = bench.zeros(dtype, &[3])?;
            bench.reject("ids", Kind::DType, &[op, "`ids`", dtype.name()], || call(&table, &wrong, &rows));
        }
        for dtype in [DType::F16, DType::I32, DType::U8] {
            let wrong = bench.zeros(dtype, &[3, 4])?;
            bench.reject("type", Kind::DType, &[op, "`"], || call(&table, &ids, &wrong));
            let both = bench.zeros(dtype, &[6, 4])?;
            if op == "scatter_add" && !dtype.is_float() {
                bench.reject("integers", Kind::DType, &[op, "`x`", dtype.name()], || call(&both, &ids, &wrong));
            } else {
                bench.accept("another type", || call(&both, &ids, &wrong));
            }
        }
        for shape in [&[4usize][..], &[2, 3, 4], &[]] {
            let wrong = bench.zeros(DType::F32, shape)?;
            bench.reject("table", Kind::Shape, &[op, &table_name], || call(&wrong, &ids, &rows));
        }
        for shape in [&[3usize, 5][..], &[2, 4], &[12], &[3, 1, 4], &[]] {
            let wrong = bench.zeros(DType::F32, shape)?;
            bench.reject("rows", Kind::Shape, &[op, &rows_name, "`ids` [3]"], || call(&table, &ids, &wrong));
        }
        let flat = bench.zeros(DType::F32, &[64])?;
        let (wide, steps) =
            (flat.view(&[6, 4], &[10, 2], 0).map_err(text)?, flat.view(&[3, 4], &[10, 2], 0).map_err(text)?);
        bench.reject("stride", Kind::Layout, &[op, &table_name, "stride"], || call(&wide, &ids, &rows));
        bench.reject("stride", Kind::Layout, &[op, &rows_name, "stride"], || call(&table, &ids, &steps));
        let inside = table.narrow(0, 1, 3).map_err(text)?;
        bench.reject("overlap", Kind::Overlap, &[op], || call(&table, &ids, &inside));
        bench.reject("ids in the output", Kind::Overlap, &[op, "`ids`"], || {
            let bits = if op == "gather_rows" { rows.bitcast(DType::U32)? } else { table.bitcast(DType::U32)? };
            call(&table, &bits.view(&[3], &[1], 0)?, &rows)
        });
        let huge = flat.view(&[4], &[1], 0).and_then(|t| t.broadcast_to(&[1 << 32, 4])).map_err(text)?;
        if op == "gather_rows" {
            bench.reject("too many rows", Kind::TooLarge, &[op, "4294967296"], || call(&huge, &ids, &rows));
        } else {
            bench.reject("repeated rows", Kind::TooLarge, &[op, "4294967296"], || call(&huge, &ids, &rows));
        }
        let (none, nothing) = (bench.zeros(DType::U32, &[0])?, bench.zeros(DType::F32, &[0, 4])?);
        bench.accept("no ids", || call(&table, &none, &nothing));
    }
    let (y, ids, x) =
        (bench.zeros(DType::F32, &[6, 4])?, bench.zeros(DType::U32, &[3])?, bench.zeros(DType::F32, &[3, 4])?);
    let weighted = |w: &Tensor| ScatterAdd::new(&x, &ids, &y).weights(w).run();
    let good = bench.zeros(DType::F32, &[3])?;
    bench.accept("weights", || weighted(&good));
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::F32) {
        let bad = bench.zeros(dtype, &[3])?;
        bench.reject("weights", Kind::DType, &["scatter_add", "`weights`", dtype.name()], || weighted(&bad));
    }
    for shape in [&[4usize][..], &[3, 1], &[]] {
        let bad = bench.zeros(DType::F32, shape)?;
        bench.reject("weights", Kind::Shape, &["scatter_add", "`weights`", "[3]"], || weighted(&bad));
    }
    let inside = y.view(&[3], &[4], 0).map_err(text)?;
    bench.reject("weights in y", Kind::Overlap, &["scatter_add", "`y`", "`weights`"], || weighted(&inside));
    Ok(())
}
