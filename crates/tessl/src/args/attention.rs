//! Attention and caches.

use super::c_type;

args! {
    /// Attention. Strides count elements along sequence (b; page of k and v), token (t), head (h) and, in masks, key (k).
    struct AttentionArgs {
        /// q from sequence to sequence; 0 where queries are packed.
        q_b: u64,
        /// q from token to token.
        q_t: u64,
        /// q from head to head.
        q_h: u64,
        /// k from sequence to sequence, or page to page.
        k_b: u64,
        /// k from token to token.
        k_t: u64,
        /// k from head to head.
        k_h: u64,
        /// v from sequence to sequence, or page to page.
        v_b: u64,
        /// v from token to token.
        v_t: u64,
        /// v from head to head.
        v_h: u64,
        /// out from sequence to sequence; 0 where queries are packed.
        o_b: u64,
        /// out from token to token.
        o_t: u64,
        /// out from head to head.
        o_h: u64,
        /// Scales of k from sequence to sequence, or page to page.
        ks_b: u64,
        /// Scales of k from token to token.
        ks_t: u64,
        /// Scales of k from head to head.
        ks_h: u64,
        /// Scales of v from sequence to sequence, or page to page.
        vs_b: u64,
        /// Scales of v from token to token.
        vs_t: u64,
        /// Scales of v from head to head.
        vs_h: u64,
        /// The mask from sequence to sequence.
        m_b: u64,
        /// The mask from head to head.
        m_h: u64,
        /// The mask from query to query.
        m_t: u64,
        /// The mask from key to key.
        m_k: u64,
        /// The table from sequence to sequence.
        table_s: u64,
        /// From one length to the next.
        length_s: u64,
        /// From one cumulative number of queries to the next.
        cu_s: u64,
        /// From one sink to the next.
        sink_s: u64,
        /// From one first position to the next.
        start_s: u64,
        /// First position, in start mode 1.
        start: u64,
        /// Pieces of work, which threadgroups walk over.
        work: u64,
        /// Sequences.
        sequences: u32,
        /// Queries of each sequence, or of all where they are packed.
        queries: u32,
        /// Keys of each sequence, at most, or of all where they are packed.
        keys: u32,
        /// Heads of q.
        heads: u32,
        /// Heads of k and v.
        kv_heads: u32,
        /// Query heads that share a key head.
        group: u32,
        /// Elements of a head.
        dim: u32,
        /// Keys of a page; 0 for none.
        page: u32,
        /// Pages in memory.
        pages: u32,
        /// Queries of all sequences lie one after the other.
        packed: u32,
        /// Keys of a sequence: 0 all, 1 as many as its length, 2 between two cumulative lengths.
        length_mode: u32,
        /// First position: 0 not causal, 1 `start`, 2 in memory, 3 so that the last query stands at the last key.
        start_mode: u32,
        /// Keys that a query sees; 0 for all.
        window: u32,
        /// 0 none, 1 u8 (0 hides), 2 f32, 3 f16, 4 bf16 (added).
        mask: u32,
        /// Sinks take part (1).
        has_sinks: u32,
        /// k and v are codes with scales (1).
        coded: u32,
        /// Nothing; keeps the size a multiple of 8.
        unused: u32,
        /// Rows of one piece of work, as planned.
        tile: u32,
        /// Pieces that the rows of all sequences are cut into, at most.
        tiles: u32,
        /// Parts that the keys of a piece are split into.
        split: u32,
        /// Threadgroups launched; each walks pieces `g, g + groups, ..`.
        groups: u32,
        /// Factor of the products.
        scale: f32,
        /// Bound of the scores; 0 for none.
        softcap: f32,
        /// One over it.
        inverse_softcap: f32,
    }
    /// Joins the parts of an attention: row r is query `r / heads` (of sequence `/ queries`) and head `r % heads`.
    struct CombineArgs {
        /// out from sequence to sequence.
        o_b: u64,
        /// out from token to token.
        o_t: u64,
        /// out from head to head.
        o_h: u64,
        /// From one sink to the next.
        sink_s: u64,
        /// Rows.
        rows: u64,
        /// Queries of each sequence, or of all where they are packed.
        queries: u32,
        /// Heads.
        heads: u32,
        /// Elements of a head.
        dim: u32,
        /// Parts of each row.
        split: u32,
        /// Sinks take part (1).
        has_sinks: u32,
        /// Threadgroups launched.
        groups: u32,
    }
    /// Rows of tokens (a, and b of a second operand) and their places in caches (c and d). Row r is token `r / heads` (of
    /// sequence `/ tokens`) and head `r % heads`.
    struct CacheArgs {
        /// a from sequence to sequence.
        a_b: u64,
        /// a from token to token.
        a_t: u64,
        /// a from head to head.
        a_h: u64,
        /// b from sequence to sequence.
        b_b: u64,
        /// b from token to token.
        b_t: u64,
        /// b from head to head.
        b_h: u64,
        /// c from sequence to sequence, or page to page.
        c_b: u64,
        /// c from slot to slot.
        c_t: u64,
        /// c from head to head.
        c_h: u64,
        /// d from sequence to sequence, or page to page.
        d_b: u64,
        /// d from slot to slot.
        d_t: u64,
        /// d from head to head.
        d_h: u64,
        /// Scales of c from sequence to sequence, or page to page.
        e_b: u64,
        /// Scales of c from slot to slot.
        e_t: u64,
        /// Scales of c from head to head.
        e_h: u64,
        /// Scales of d from sequence to sequence, or page to page.
        f_b: u64,
        /// Scales of d from slot to slot.
        f_t: u64,
        /// Scales of d from head to head.
        f_h: u64,
        /// The table from sequence to sequence.
        table_s: u64,
        /// From one first position to the next.
        start_s: u64,
        /// First position, where `start_known` is 1.
        start: u64,
        /// Rows.
        rows: u64,
        /// Tokens of each sequence.
        tokens: u32,
        /// Heads.
        heads: u32,
        /// Elements of a row.
        n: u32,
        /// Tokens that a sequence has room for.
        capacity: u32,
        /// Slots of a page; 0 for none.
        page: u32,
        /// Pages in memory.
        pages: u32,
        /// Pages of a sequence.
        width: u32,
        /// Positions are taken modulo the capacity (1).
        ring: u32,
        /// The first position is `start` (1) or in memory (0).
        start_known: u32,
        /// Vectors of a row, of both operands where there are two.
        vectors: u32,
        /// Vectors of a row of one operand.
        vectors_of_one: u32,
        /// Whole rows that a thread steps over to its next vector.
        step_rows: u32,
        /// Vectors that it steps over beyond them.
        step_vectors: u32,
        /// Threadgroups launched, where each walks rows.
        groups: u32,
    }
}
