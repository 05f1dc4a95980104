//! Choosing; kernels/simt/sample.metal has the definitions of keys, masses and limits, which are the same here.
//!
//! Kernels are `top_k_{dtype}_{isa}` (bindings x, values, indices) and `sample_{dtype}_{isa}` (bindings logits, previous, the
//! seven parameters, tokens, scratch memory). One row is one chunk.

mod draw;
mod topk;

pub(super) use draw::BUILTINS as SAMPLE;
pub(super) use topk::BUILTINS as TOP_K;

/// Grows with v; the two zeros are one, and so are all NaN, which come last.
#[inline(always)]
fn order_key(v: f32) -> u32 {
    let bits = (v + 0.0).to_bits();
    let key = if bits >> 31 != 0 { !bits } else { bits | 1 << 31 };
    if v.is_nan() { u32::MAX } else { key }
}

/// The first word of Philox4x32-10 for a counter and a key.
fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> u32 {
    #[allow(clippy::cast_possible_truncation)] // Two words of one product.
    let product = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let ((high0, low0), (high2, low2)) = (product(c[0], 0xD251_1F53), product(c[2], 0xCD9E_8D57));
        c = [high2 ^ c[1] ^ key[0], low2, high0 ^ c[3] ^ key[1], low0];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with Random123.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), 0x6627_E8D5);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), 0x408F_276D);
        let pi = [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344];
        assert_eq!(philox(pi, [0xA409_3822, 0x299F_31D0]), 0xD16C_FE09);
    }

    #[test]
    fn keys_are_ordered() {
        let values = [f32::NEG_INFINITY, -3.0, -1e-40, 0.0, 1e-40, 2.0, f32::INFINITY, f32::NAN];
        assert!(values.is_sorted_by(|a, b| order_key(*a) < order_key(*b)));
        assert_eq!(order_key(-0.0), order_key(0.0));
        assert_eq!(order_key(-f32::NAN), u32::MAX);
    }
}
