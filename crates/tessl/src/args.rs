//! The argument block of every kernel: one `#[repr(C)]` definition, read by all devices.
//!
//! The C twin (`kernels/prelude/args.h`) is generated from the same text by [`c_header`]; a test compares the
//! checked-in file with it, so the two cannot drift. Only `u32`, `u64` and `f32` appear, 64-bit fields first, so
//! that the layout has no padding on any compiler.

/// Declares argument blocks for Rust and, as text, for the kernel compilers.
macro_rules! args {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ident),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
            pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        )*
        /// These blocks in C.
        pub(super) fn in_c() -> String {
            let mut out = String::new();
            $(
                out += concat!("struct ", stringify!($name), " {\n");
                $( out += &format!("  {} {};\n", c_type(stringify!($ty)), stringify!($field)); )*
                out += "};\n";
                out += &format!("static_assert(sizeof({}) == {}, \"args layout\");\n", stringify!($name), size_of::<$name>());
            )*
            out
        }
    };
}

fn c_type(rust: &str) -> &'static str {
    match rust {
        "u32" => "uint",
        "u64" => "ulong",
        "f32" => "float",
        other => unreachable!("{other} is not an argument type"),
    }
}

// Paths, because tests of the simulator include this file by its path.
#[path = "args/attention.rs"]
mod attention;
#[path = "args/experts.rs"]
mod experts;
#[path = "args/qkv.rs"]
mod qkv;
#[path = "args/quant.rs"]
mod quant;

pub use attention::{AttentionArgs, CacheArgs, CombineArgs};
pub use experts::{CombineExpertsArgs, SortByExpertArgs};
pub use qkv::NormQkvRopeArgs;
pub use quant::{QuantArgs, QuantEmbedArgs};

/// The text of `kernels/prelude/args.h`.
pub fn c_header() -> String {
    let head = "// Generated from src/args.rs by `cargo xtask docs`; do not edit.\n#pragma once\n";
    [head, &in_c(), &attention::in_c(), &experts::in_c(), &qkv::in_c(), &quant::in_c()].concat()
}

args! {
    /// `C = act(alpha * A B + beta * C + bias)` for `batch` matrices. Strides count elements; C is row-major. What stands
    /// behind `bias_typed`, and the strides of up and residual, is read by the kernels for the whole formula only.
    struct GemmArgs {
        /// Stride between rows of A (along m).
        a_rs: u64,
        /// Stride between columns of A (along k).
        a_cs: u64,
        /// Stride between matrices of A; 0 broadcasts.
        a_bs: u64,
        /// Stride between rows of B (along k).
        b_rs: u64,
        /// Stride between columns of B (along n).
        b_cs: u64,
        /// Stride between matrices of B; 0 broadcasts.
        b_bs: u64,
        /// Stride between rows of C; its columns are contiguous.
        c_rs: u64,
        /// Stride between matrices of C.
        c_bs: u64,
        /// Stride between rows of up (along k).
        u_rs: u64,
        /// Stride between columns of up (along n).
        u_cs: u64,
        /// Stride between matrices of up; 0 broadcasts.
        u_bs: u64,
        /// Stride between rows of the residual; its columns are contiguous.
        r_rs: u64,
        /// Stride between matrices of the residual; 0 broadcasts.
        r_bs: u64,
        /// Rows of C.
        m: u32,
        /// Columns of C.
        n: u32,
        /// Length of the sums.
        k: u32,
        /// Matrices.
        batch: u32,
        /// Rows of one tile, as planned.
        tile_m: u32,
        /// Columns of one tile, as planned.
        tile_n: u32,
        /// Depth of one step along k, as planned.
        tile_k: u32,
        /// Tiles along m.
        tiles_m: u32,
        /// Tiles along n.
        tiles_n: u32,
        /// 0 none, 1 one value per column, 2 one value per row.
        bias: u32,
        /// [`Activation`](crate::Activation) as a number.
        activation: u32,
        /// Factor of the product.
        alpha: f32,
        /// Factor of the old C; 0 means that C is not read.
        beta: f32,
        /// The bias has C's type (1) or is f32 (0).
        bias_typed: u32,
        /// Scales of rows: 0 none, 1 f32, 2 C's type.
        row_scale: u32,
        /// Scales of columns: 0 none, 1 f32, 2 C's type.
        col_scale: u32,
        /// A residual is added (1).
        residual: u32,
        /// The product is gated: B is the gate, and up has its shape (1).
        gated: u32,
        /// B is packed (1).
        packed: u32,
        /// Type of A's 8-bit elements: 0 signed, 1 unsigned, 2 e4m3, 3 e5m2.
        a_type: u32,
        /// Type of B's 8-bit elements.
        b_type: u32,
        /// Groups of rows, each with a matrix of B; 0 for a plain product.
        groups: u32,
        /// Sums of 128 steps are multiplied by scales of A (1 x 128) and B (128 x 128) (1).
        block_scales: u32,
        /// Type of C's 8-bit elements.
        c_type: u32,
    }
    /// Copies B to the order in which the CPU's kernels read it.
    struct PackArgs {
        /// Stride between rows of B (along k).
        b_rs: u64,
        /// Stride between columns of B (along n).
        b_cs: u64,
        /// Stride between matrices of B.
        b_bs: u64,
        /// Stride between rows of up (along k).
        u_rs: u64,
        /// Stride between columns of up (along n).
        u_cs: u64,
        /// Stride between matrices of up.
        u_bs: u64,
        /// Columns of C.
        n: u32,
        /// Length of the sums.
        k: u32,
        /// Matrices.
        batch: u32,
        /// Columns of gate and up alternate (1).
        gated: u32,
        /// Type of 8-bit elements, as in [`GemmArgs`].
        b_type: u32,
        /// Keeps the size a multiple of eight bytes.
        unused: u32,
    }
    /// `y = norm(x)`, or `h = (x + r) * scale`, `y = norm(h)`, or `y = (norm(x) + r) * scale`, row by row; norm(x) is
    /// `x * rsqrt(mean(x^2) + eps) * (w + weight_offset)`. Row r is (r / (r1 * r2), r / r2 % r1, r % r2).
    struct RmsNormArgs {
        /// Stride of x along the outermost row index.
        x_s0: u64,
        /// Stride of x along the middle row index.
        x_s1: u64,
        /// Stride of x along the innermost row index.
        x_s2: u64,
        /// Stride of the residual along the outermost row index.
        r_s0: u64,
        /// Stride of the residual along the middle row index.
        r_s1: u64,
        /// Stride of the residual along the innermost row index.
        r_s2: u64,
        /// Stride of h along the outermost row index.
        h_s0: u64,
        /// Stride of h along the middle row index.
        h_s1: u64,
        /// Stride of h along the innermost row index.
        h_s2: u64,
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the middle row index.
        y_s1: u64,
        /// Stride of y along the innermost row index.
        y_s2: u64,
        /// Number of rows.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Threadgroups launched; each walks rows `g, g + groups, ..`.
        groups: u32,
        /// Added to the mean square.
        eps: f32,
        /// Added to each weight (1 in Gemma, else 0).
        weight_offset: f32,
        /// The scale of the sum is read from memory (1) or from here (0).
        scale_from_memory: u32,
        /// That scale.
        scale: f32,
    }
    /// `y = (x - mean(x)) * rsqrt(var(x) + eps) * w + bias`, row by row. Rows split as in [`RmsNormArgs`].
    struct LayerNormArgs {
        /// Stride of x along the outermost row index.
        x_s0: u64,
        /// Stride of x along the middle row index.
        x_s1: u64,
        /// Stride of x along the innermost row index.
        x_s2: u64,
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the middle row index.
        y_s1: u64,
        /// Stride of y along the innermost row index.
        y_s2: u64,
        /// Number of rows.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Threadgroups launched; each walks rows `g, g + groups, ..`.
        groups: u32,
        /// Added to the variance.
        eps: f32,
        /// There is a bias.
        bias: u32,
    }
    /// Root-mean-square normalisation of the heads of q, then of k. Rows split as in [`RmsNormArgs`].
    struct QkNormArgs {
        /// Stride of q along the outermost row index.
        q_s0: u64,
        /// Stride of q along the middle row index.
        q_s1: u64,
        /// Stride of q along the innermost row index.
        q_s2: u64,
        /// Stride of the output of q along the outermost row index.
        o_s0: u64,
        /// Stride of the output of q along the middle row index.
        o_s1: u64,
        /// Stride of the output of q along the innermost row index.
        o_s2: u64,
        /// Stride of k along the outermost row index.
        k_s0: u64,
        /// Stride of k along the middle row index.
        k_s1: u64,
        /// Stride of k along the innermost row index.
        k_s2: u64,
        /// Stride of the output of k along the outermost row index.
        p_s0: u64,
        /// Stride of the output of k along the middle row index.
        p_s1: u64,
        /// Stride of the output of k along the innermost row index.
        p_s2: u64,
        /// Heads of q.
        q_rows: u64,
        /// Heads of q and k.
        rows: u64,
        /// Extent of the middle row index of q.
        q_r1: u32,
        /// Extent of its innermost row index.
        q_r2: u32,
        /// Extent of the middle row index of k.
        k_r1: u32,
        /// Extent of its innermost row index.
        k_r2: u32,
        /// Elements of a head.
        n: u32,
        /// Threadgroups launched; each simdgroup walks rows.
        groups: u32,
        /// Added to the mean square.
        eps: f32,
        /// Added to each weight.
        weight_offset: f32,
    }
    /// `y = f(a, b)` element by element over rows; one input does without b. Rows split as in [`RmsNormArgs`].
    struct MapArgs {
        /// Stride of a along the outermost row index.
        a_s0: u64,
        /// Stride of a along the middle row index.
        a_s1: u64,
        /// Stride of a along the innermost row index.
        a_s2: u64,
        /// Stride of b along the outermost row index.
        b_s0: u64,
        /// Stride of b along the middle row index.
        b_s1: u64,
        /// Stride of b along the innermost row index.
        b_s2: u64,
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the middle row index.
        y_s1: u64,
        /// Stride of y along the innermost row index.
        y_s2: u64,
        /// Number of rows.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Vectors of a row, the last one perhaps not full; a thread does one at a time.
        vectors: u32,
        /// Whole rows that a thread steps over to its next vector.
        step_rows: u32,
        /// Vectors that it steps over beyond them.
        step_vectors: u32,
        /// Activations: [`Activation`](crate::Activation) as a number. Scale: 0 factor in `scale`, 1 in memory.
        mode: u32,
        /// A factor.
        scale: f32,
    }
    /// Reductions of rows, which split as in [`RmsNormArgs`]. Where there is no mask, its strides are not used.
    struct ReduceArgs {
        /// Stride of x along the outermost row index.
        x_s0: u64,
        /// Stride of x along the middle row index.
        x_s1: u64,
        /// Stride of x along the innermost row index.
        x_s2: u64,
        /// Stride of the mask along the outermost row index.
        m_s0: u64,
        /// Stride of the mask along the middle row index.
        m_s1: u64,
        /// Stride of the mask along the innermost row index.
        m_s2: u64,
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the middle row index.
        y_s1: u64,
        /// Stride of y along the innermost row index.
        y_s2: u64,
        /// Number of rows.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Threadgroups launched; each walks rows `g, g + groups, ..`.
        groups: u32,
        /// 0 none, 1 u8 (0 hides), 2 f32, 3 f16, 4 bf16 (added).
        mask: u32,
        /// Factor of x, or of the sum.
        scale: f32,
        /// Bound of the scores; 0 for none.
        softcap: f32,
        /// One over it.
        inverse_softcap: f32,
    }
    /// Rotary embedding of rows, which split as in [`RmsNormArgs`].
    struct RopeArgs {
        /// Stride of x along the outermost row index.
        x_s0: u64,
        /// Stride of x along the middle row index.
        x_s1: u64,
        /// Stride of x along the innermost row index.
        x_s2: u64,
        /// Stride of positions along the outermost row index.
        p_s0: u64,
        /// Stride of positions along the middle row index.
        p_s1: u64,
        /// Stride of positions along the innermost row index.
        p_s2: u64,
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the middle row index.
        y_s1: u64,
        /// Stride of y along the innermost row index.
        y_s2: u64,
        /// Number of rows.
        rows: u64,
        /// Position of the first token, in mode 0.
        offset: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Elements that are turned, an even number.
        dims: u32,
        /// Vectors of a row: those of pairs, then those that are copied.
        vectors: u32,
        /// Whole rows that a thread steps over to its next vector.
        step_rows: u32,
        /// Vectors that it steps over beyond them.
        step_vectors: u32,
        /// Positions: 0 counted from `offset`, 1 counted from the first of the operand, 2 one a row; 4 more for i32.
        mode: u32,
    }
    /// `y[r] = table[ids[r]]`. Rows split as in [`RmsNormArgs`].
    struct EmbedArgs {
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the middle row index.
        y_s1: u64,
        /// Stride of y along the innermost row index.
        y_s2: u64,
        /// Stride of ids along the outermost row index.
        i_s0: u64,
        /// Stride of ids along the middle row index.
        i_s1: u64,
        /// Stride of ids along the innermost row index.
        i_s2: u64,
        /// Stride between rows of the table.
        t_s: u64,
        /// Number of ids.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Vectors of a row, the last one perhaps not full.
        vectors: u32,
        /// Whole rows that a thread steps over to its next vector.
        step_rows: u32,
        /// Vectors that it steps over beyond them.
        step_vectors: u32,
        /// Rows of the table.
        vocabulary: u32,
        /// Ids are i32 (1) or u32 (0).
        is_signed: u32,
        /// Elements are multiplied by `scale` (1) or copied (0).
        scaled: u32,
        /// The factor.
        scale: f32,
    }
    /// `y[r, i] = x[r, i]` element by element. Row r is (r / (r1 * r2 * r3), r / (r2 * r3) % r1, r / r3 % r2, r % r3).
    struct StridedArgs {
        /// Stride of x along the outermost row index.
        x_s0: u64,
        /// Stride of x along the second row index.
        x_s1: u64,
        /// Stride of x along the third row index.
        x_s2: u64,
        /// Stride of x along the innermost row index.
        x_s3: u64,
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the second row index.
        y_s1: u64,
        /// Stride of y along the third row index.
        y_s2: u64,
        /// Stride of y along the innermost row index.
        y_s3: u64,
        /// Stride of x inside a row.
        x_n: u64,
        /// Stride of y inside a row.
        y_n: u64,
        /// Number of rows.
        rows: u64,
        /// Extent of the second row index.
        r1: u32,
        /// Extent of the third row index.
        r2: u32,
        /// Extent of the innermost row index.
        r3: u32,
        /// Elements of a row.
        n: u32,
        /// The same: a thread does one element at a time.
        vectors: u32,
        /// Whole rows that a thread steps over to its next element.
        step_rows: u32,
        /// Elements that it steps over beyond them.
        step_vectors: u32,
        /// Unused.
        zero: u32,
    }
    /// `y[b, i, j] = x[b, j, i]` for matrices b: x is contiguous along i in `0..n`, y along j in `0..m`. Matrices split as
    /// rows do in [`RmsNormArgs`].
    struct TransposeArgs {
        /// Stride of x along the outermost matrix index.
        x_s0: u64,
        /// Stride of x along the middle matrix index.
        x_s1: u64,
        /// Stride of x along the innermost matrix index.
        x_s2: u64,
        /// Stride of y along the outermost matrix index.
        y_s0: u64,
        /// Stride of y along the middle matrix index.
        y_s1: u64,
        /// Stride of y along the innermost matrix index.
        y_s2: u64,
        /// Stride of x along j.
        x_m: u64,
        /// Stride of y along i.
        y_n: u64,
        /// Extent of the middle matrix index.
        r1: u32,
        /// Extent of the innermost matrix index.
        r2: u32,
        /// Extent of j.
        m: u32,
        /// Extent of i.
        n: u32,
        /// Tiles along j.
        tiles_m: u32,
        /// Tiles along i.
        tiles_n: u32,
        /// Number of matrices.
        matrices: u32,
        /// Threadgroups launched; each walks tiles `g, g + groups, ..`.
        groups: u32,
    }
    /// Rows of x to the rows of y that ids name. Rows split as in [`RmsNormArgs`].
    struct ScatterArgs {
        /// Stride of x along the outermost row index.
        x_s0: u64,
        /// Stride of x along the middle row index.
        x_s1: u64,
        /// Stride of x along the innermost row index.
        x_s2: u64,
        /// Stride of ids along the outermost row index.
        i_s0: u64,
        /// Stride of ids along the middle row index.
        i_s1: u64,
        /// Stride of ids along the innermost row index.
        i_s2: u64,
        /// Stride of the weights along the outermost row index.
        w_s0: u64,
        /// Stride of the weights along the middle row index.
        w_s1: u64,
        /// Stride of the weights along the innermost row index.
        w_s2: u64,
        /// Stride between rows of y.
        y_s: u64,
        /// Number of ids.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Rows of y.
        targets: u32,
        /// Ids are i32 (1) or u32 (0).
        is_signed: u32,
        /// Panels that a row is cut into.
        panels: u32,
        /// Threadgroups launched; each walks panels of rows.
        groups: u32,
        /// Rows of x have weights: 0 none, 1 f32, 2 x's type.
        weights: u32,
    }
    /// The k largest elements of rows, which split as in [`RmsNormArgs`].
    struct TopKArgs {
        /// Stride of x along the outermost row index.
        x_s0: u64,
        /// Stride of x along the middle row index.
        x_s1: u64,
        /// Stride of x along the innermost row index.
        x_s2: u64,
        /// Stride of values along the outermost row index.
        v_s0: u64,
        /// Stride of values along the middle row index.
        v_s1: u64,
        /// Stride of values along the innermost row index.
        v_s2: u64,
        /// Stride of indices along the outermost row index.
        i_s0: u64,
        /// Stride of indices along the middle row index.
        i_s1: u64,
        /// Stride of indices along the innermost row index.
        i_s2: u64,
        /// Number of rows.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Threadgroups launched; each walks rows `g, g + groups, ..`.
        groups: u32,
        /// How many.
        k: u32,
        /// Unused.
        zero: u32,
    }
    /// A token for each row of logits; rows split as in [`RmsNormArgs`].
    struct SampleArgs {
        /// Stride of the logits along the outermost row index.
        x_s0: u64,
        /// Stride of the logits along the middle row index.
        x_s1: u64,
        /// Stride of the logits along the innermost row index.
        x_s2: u64,
        /// Stride of previous tokens along the outermost row index.
        p_s0: u64,
        /// Stride of previous tokens along the middle row index.
        p_s1: u64,
        /// Stride of previous tokens along the innermost row index.
        p_s2: u64,
        /// Stride of tokens along the outermost row index.
        y_s0: u64,
        /// Stride of tokens along the middle row index.
        y_s1: u64,
        /// Stride of tokens along the innermost row index.
        y_s2: u64,
        /// Number of rows.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Threadgroups launched; each walks rows `g, g + groups, ..`.
        groups: u32,
        /// Previous tokens of a row; 0 for no penalty.
        previous: u32,
        /// Previous tokens are i32 (1) or u32 (0).
        is_signed: u32,
        /// Bit i: parameter i is read from memory. Temperature, top_k, top_p, min_p, penalty, seed, position.
        from_memory: u32,
        /// Bit i: it has one element for each row there.
        per_row: u32,
        /// Low word of the seed.
        seed_low: u32,
        /// High word of the seed.
        seed_high: u32,
        /// First word of the counter of random numbers.
        position: u32,
        /// How many are kept; 0 for all.
        top_k: u32,
        /// Bound of the scores; 0 for none.
        softcap: f32,
        /// One over it.
        inverse_softcap: f32,
        /// Divides the scores; 0 takes the largest.
        temperature: f32,
        /// Probability that is kept.
        top_p: f32,
        /// Smallest weight that is kept.
        min_p: f32,
        /// What makes previous tokens less probable.
        penalty: f32,
    }
    /// Rows of equal width copied or filled, in units of 1, 4 or 16 bytes.
    struct TransferArgs {
        /// Units from one row of the source to the next.
        from_pitch: u64,
        /// Units from one row of the target to the next.
        to_pitch: u64,
        /// Units of a row.
        width: u64,
        /// Units in all.
        total: u64,
        /// Threadgroups launched; threads walk over the units.
        groups: u32,
        /// What is filled in.
        value: u32,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn checked_in_header_is_the_generated_one() {
        // `cargo xtask docs` asks for the file instead of the comparison.
        if std::env::var_os("TESSL_WRITE_ARGS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/prelude/args.h");
            return std::fs::write(path, super::c_header()).expect("a writable source tree");
        }
        let header = include_str!("../kernels/prelude/args.h");
        assert_eq!(header, super::c_header(), "run `cargo xtask docs`");
    }
}
