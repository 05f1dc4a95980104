//! Quantised weights.

use super::c_type;

args! {
    /// `y = act(x W^T + bias) + residual`, W quantised: one matrix, two (gated), or three with an output each.
    struct QuantArgs {
        /// Stride between rows of x.
        x_rs: u64,
        /// Stride between rows of the residual.
        r_rs: u64,
        /// Stride between rows of the first output.
        y0_rs: u64,
        /// Stride between rows of the second output.
        y1_rs: u64,
        /// Stride between rows of the third output.
        y2_rs: u64,
        /// Bytes of a row of codes.
        row: u64,
        /// Rows of x.
        m: u32,
        /// Rows of the first matrix.
        n0: u32,
        /// Rows of the second matrix.
        n1: u32,
        /// Rows of the third matrix.
        n2: u32,
        /// Length of the sums.
        k: u32,
        /// Weights that share factors.
        group: u32,
        /// Element type of factors beside the codes: 0 f32, 1 f16, 2 bf16.
        factors: u32,
        /// Element type of the outputs, by the same numbers.
        output: u32,
        /// Bit i: matrix i has a bias.
        bias: u32,
        /// Biases have the outputs' type (1) or are f32 (0).
        bias_typed: u32,
        /// A residual is added (1).
        residual: u32,
        /// [`Activation`](crate::Activation) as a number.
        activation: u32,
        /// Matrices of weights.
        matrices: u32,
        /// The output is `act(first) * second` (1).
        gated: u32,
        /// Rows of one tile, as planned.
        tile_m: u32,
        /// Columns of one tile, as planned.
        tile_n: u32,
        /// Depth of one step along k, as planned.
        tile_k: u32,
        /// Threadgroups launched.
        groups: u32,
    }
    /// `y[r] = scale * table[ids[r]]` with a quantised table. Rows split as in [`RmsNormArgs`](super::RmsNormArgs).
    struct QuantEmbedArgs {
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
        /// Number of ids.
        rows: u64,
        /// Bytes of a row of codes.
        row: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Vectors of 32 elements of a row.
        vectors: u32,
        /// Whole rows that a thread steps over to its next vector.
        step_rows: u32,
        /// Vectors that it steps over beyond them.
        step_vectors: u32,
        /// Rows of the table.
        vocabulary: u32,
        /// Ids are i32 (1) or u32 (0).
        is_signed: u32,
        /// Weights that share factors.
        group: u32,
        /// Element type of factors beside the codes: 0 f32, 1 f16, 2 bf16.
        factors: u32,
        /// Elements are multiplied by `scale` (1) or stored as they are (0).
        scaled: u32,
        /// The factor.
        scale: f32,
    }
}
