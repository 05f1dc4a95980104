//! Queries, keys and values of a few tokens.

use super::c_type;

args! {
    /// `q, k, v = heads of norm(x) W^T + bias`, normalised, turned and stored where they belong. Strides count elements.
    struct NormQkvRopeArgs {
        /// Stride of x between sequences.
        x_b: u64,
        /// Stride of x between tokens.
        x_t: u64,
        /// Stride of what is added to x between sequences.
        a_b: u64,
        /// Stride of what is added to x between tokens.
        a_t: u64,
        /// Stride of the sum between sequences.
        s_b: u64,
        /// Stride of the sum between tokens.
        s_t: u64,
        /// Stride of q between sequences.
        q_b: u64,
        /// Stride of q between tokens.
        q_t: u64,
        /// Stride of q between heads.
        q_h: u64,
        /// Stride of k between sequences or pages.
        k_b: u64,
        /// Stride of k between tokens or slots.
        k_t: u64,
        /// Stride of k between heads.
        k_h: u64,
        /// Stride of v between sequences or pages.
        v_b: u64,
        /// Stride of v between tokens or slots.
        v_t: u64,
        /// Stride of v between heads.
        v_h: u64,
        /// Bytes from a row of codes (or of dense weights) to the next one.
        row: u64,
        /// Stride between rows of the table.
        table_s: u64,
        /// Stride between first positions; 0 where all sequences share one.
        start_s: u64,
        /// First position, where the host knows it.
        start: u64,
        /// Rows of x, at most 8.
        m: u32,
        /// Tokens of each sequence.
        tokens: u32,
        /// Length of the sums.
        k: u32,
        /// Heads of q.
        heads: u32,
        /// Heads of k, and of v.
        kv_heads: u32,
        /// Elements of a head.
        dim: u32,
        /// Elements of a head that are turned.
        dims: u32,
        /// Weights that share factors.
        group: u32,
        /// Element type of factors beside the codes: 0 f32, 1 f16, 2 bf16.
        factors: u32,
        /// The code of the weights: that of their format, then dense f32, f16 and bf16.
        weights: u32,
        /// Element type of x, of what is added to it and of the outputs, by the same numbers.
        x_type: u32,
        /// Element type of all weights of norms.
        norm_type: u32,
        /// 1 and the element type of the biases; 0 without.
        bias: u32,
        /// A norm of something is added to x first (1).
        residual: u32,
        /// Heads of q and k are normalised (1).
        head_norm: u32,
        /// Pairs are neighbours (1) or lie half of `dims` apart (0).
        interleaved: u32,
        /// Keys and values go to the places of their positions (1) or tokens (0).
        cached: u32,
        /// Position p takes slot `p % capacity` (1).
        ring: u32,
        /// Tokens that a sequence has room for.
        capacity: u32,
        /// Tokens of a page; 0 without pages.
        page: u32,
        /// Pages in memory.
        pages: u32,
        /// Pages of a sequence.
        width: u32,
        /// The host knows the first position (1).
        start_known: u32,
        /// Threadgroups launched.
        groups: u32,
        /// Columns of one tile, as planned.
        tile_n: u32,
        /// Depth of one step along k, as planned.
        tile_k: u32,
        /// Added to mean squares.
        eps: f32,
        /// Added to the weights of norms.
        weight_offset: f32,
    }
}
