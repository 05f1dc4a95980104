//! Mixtures of experts.

use super::c_type;

args! {
    /// Choices of tokens by expert. Choice c is element `c % each` of row `c / each`; rows split as in
    /// [`RmsNormArgs`](super::RmsNormArgs).
    struct SortByExpertArgs {
        /// Stride of experts along the outermost row index.
        e_s0: u64,
        /// Stride of experts along the middle row index.
        e_s1: u64,
        /// Stride of experts along the innermost row index.
        e_s2: u64,
        /// Stride of places along the outermost row index.
        p_s0: u64,
        /// Stride of places along the middle row index.
        p_s1: u64,
        /// Stride of places along the innermost row index.
        p_s2: u64,
        /// Number of choices.
        choices: u32,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Choices of a token.
        each: u32,
        /// Number of experts.
        experts: u32,
        /// Choices are i32 (1) or u32 (0).
        is_signed: u32,
        /// Threadgroups launched; each walks experts `g, g + groups, ..`.
        groups: u32,
        /// Nothing; keeps the size a multiple of 8.
        unused: u32,
    }
    /// `y[t] = residual[t] + sum_j weights[t, j] x[places[t, j]]`. Rows split as in [`RmsNormArgs`](super::RmsNormArgs).
    struct CombineExpertsArgs {
        /// Stride of y along the outermost row index.
        y_s0: u64,
        /// Stride of y along the middle row index.
        y_s1: u64,
        /// Stride of y along the innermost row index.
        y_s2: u64,
        /// Stride of the residual along the outermost row index.
        r_s0: u64,
        /// Stride of the residual along the middle row index.
        r_s1: u64,
        /// Stride of the residual along the innermost row index.
        r_s2: u64,
        /// Stride of places along the outermost row index.
        p_s0: u64,
        /// Stride of places along the middle row index.
        p_s1: u64,
        /// Stride of places along the innermost row index.
        p_s2: u64,
        /// Stride of weights along the outermost row index.
        w_s0: u64,
        /// Stride of weights along the middle row index.
        w_s1: u64,
        /// Stride of weights along the innermost row index.
        w_s2: u64,
        /// Stride between rows of x.
        x_s: u64,
        /// Number of tokens.
        rows: u64,
        /// Extent of the middle row index.
        r1: u32,
        /// Extent of the innermost row index.
        r2: u32,
        /// Elements of a row.
        n: u32,
        /// Vectors of a row.
        vectors: u32,
        /// Whole rows that a thread steps over to its next vector.
        step_rows: u32,
        /// Vectors that it steps over beyond them.
        step_vectors: u32,
        /// Experts of a token.
        each: u32,
        /// Rows of x.
        places: u32,
        /// Weights are of x's type (1) or f32 (0).
        weights_typed: u32,
        /// There is a residual (1).
        residual: u32,
    }
}
