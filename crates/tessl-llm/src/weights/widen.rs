//! Blocks of 4 and 5 bits as blocks of 8: the same scale and the same codes in wider places, so the same weights.

use crate::file::Element;

/// Weights of a block.
const BLOCK: usize = 32;

/// Bytes of a block of those whose weights are a scale times a whole number, and what codes are above that number.
fn block(element: Element) -> Option<(usize, u8)> {
    match element {
        Element::Q4_0 => Some((18, 8)),
        Element::Q5_0 => Some((22, 16)),
        _ => None,
    }
}

/// Whether a matrix becomes `Q8_0` because others that are multiplied together with it have another form.
pub(super) fn wanted(element: Element, others: impl IntoIterator<Item = Element>) -> bool {
    let mut differ = false;
    let widens = |e| e == Element::Q8_0 || block(e).is_some();
    let all = others.into_iter().all(|other| {
        differ |= other != element;
        widens(other)
    });
    all && differ && block(element).is_some()
}

/// Blocks of `element`, which [`wanted`] was true for, as blocks of `Q8_0`.
pub(super) fn to_q8_0(element: Element, blocks: &[u8]) -> Vec<u8> {
    let Some((size, offset)) = block(element) else { return blocks.to_vec() };
    let mut out = Vec::with_capacity(blocks.len() / size * (2 + BLOCK));
    for block in blocks.chunks_exact(size) {
        let (factor, rest) = block.split_at(2);
        let (fifth, halves) = rest.split_at(size - 18);
        let fifth = fifth.try_into().map_or(0, u32::from_le_bytes);
        out.extend_from_slice(factor);
        for i in 0..BLOCK {
            let low = halves[i % 16] >> (4 * (i / 16)) & 15;
            let high = u8::from(fifth >> i & 1 != 0) << 4;
            out.push((low | high).wrapping_sub(offset));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessl::{Device, GpuRuntime, QFormat, QTensor};

    #[test]
    fn weights_keep_their_bits() {
        let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
        let shape = [3, 96];
        let values: Vec<f32> = (0..3 * 96).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        let weights = rt.from_slice(&values, &shape).unwrap();
        for (element, format) in [(Element::Q4_0, QFormat::Q4_0), (Element::Q5_0, QFormat::Q5_0)] {
            let narrow = QTensor::quantize(&weights, format).unwrap();
            let bytes = narrow.parts().next().unwrap().read::<u8>().unwrap();
            let wide = QTensor::from_bytes(&rt, QFormat::Q8_0, &shape, &to_q8_0(element, &bytes)).unwrap();
            let read = |q: &QTensor| q.dequantize().unwrap().read::<f32>().unwrap();
            assert_eq!(read(&wide), read(&narrow), "{format}");
        }
    }

    #[test]
    fn only_what_differs_and_loses_nothing_widens() {
        use Element::{Q4_0, Q4K, Q5_0, Q8_0};
        assert!(wanted(Q5_0, [Q5_0, Q5_0, Q8_0]) && wanted(Q4_0, [Q4_0, Q5_0]));
        assert!(!wanted(Q8_0, [Q5_0, Q5_0, Q8_0]) && !wanted(Q5_0, [Q5_0; 3]) && !wanted(Q5_0, []));
        assert!(!wanted(Q5_0, [Q5_0, Q4K]) && !wanted(Q4K, [Q4K, Q8_0]));
    }
}
