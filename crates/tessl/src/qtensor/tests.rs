use super::*;
use crate::{Device, bf16};

fn cpu() -> GpuRuntime {
    GpuRuntime::with_device(&Device::cpu()).unwrap()
}

fn line(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 37 % 101) as f32 / 16.0 - 3.0).collect()
}

#[test]
fn parts_are_kept_as_they_are() {
    let rt = cpu();
    let codes = rt.from_slice(&[0x7654_3210u32; 2 * 8], &[2, 8]).unwrap();
    let scales = rt.from_slice(&[bf16::from_f32(0.5), bf16::from_f32(2.0)], &[2, 1]).unwrap();
    let biases = rt.from_slice(&[bf16::from_f32(-1.0), bf16::from_f32(0.0)], &[2, 1]).unwrap();
    let q = QTensor::from_parts(QFormat::Affine { bits: 4, group: 64 }, &codes, &[&scales, &biases]).unwrap();
    assert_eq!((q.shape(), q.storage_len(), q.factors_dtype()), (&[2, 64][..], 64 + 8, Some(DType::Bf16)));
    let w = q.dequantize().unwrap().read::<f32>().unwrap();
    assert!((0..64).all(|k| w[k] == 0.5 * (k % 8) as f32 - 1.0 && w[64 + k] == 2.0 * (k % 8) as f32));
    let second = q.narrow(0, 1, 1).unwrap();
    assert_eq!(second.dequantize().unwrap().read::<f32>().unwrap(), w[64..]);
    assert!(format!("{q:?}").contains("affine4-g64 [2, 64]"));
}

#[test]
fn stacks_are_narrowed_and_selected() {
    let rt = cpu();
    for format in QFormat::all() {
        let w = rt.from_slice(&line(3 * 4 * 512), &[3, 4, 512]).unwrap();
        let q = QTensor::quantize(&w, format).unwrap();
        let all = q.dequantize().unwrap();
        let read = |t: Tensor| t.read::<f32>().unwrap();
        let middle = q.narrow(1, 1, 2).unwrap();
        assert_eq!(middle.shape(), [3, 2, 512]);
        assert_eq!(read(middle.dequantize().unwrap()), read(all.narrow(1, 1, 2).unwrap()), "{format}");
        let one = middle.select(2).unwrap();
        assert_eq!(read(one.dequantize().unwrap()), read(all.select(0, 2).unwrap().narrow(0, 1, 2).unwrap()));
        assert!(one.select(0).is_err() && one.narrow(1, 0, 32).is_err() && one.narrow(0, 1, 2).is_err());
    }
}

#[test]
fn bytes_of_a_file_round_trip() {
    let rt = cpu();
    for format in QFormat::BLOCKS {
        let w = rt.from_slice(&line(5 * 256), &[5, 256]).unwrap();
        let q = QTensor::quantize(&w, format).unwrap();
        let bytes = q.parts().next().unwrap().read::<u8>().unwrap();
        assert_eq!(bytes.len(), 5 * 256 / format.group() * format.group_bytes());
        let again = QTensor::from_bytes(&rt, format, &[5, 256], &bytes).unwrap();
        let read = |q: &QTensor| q.dequantize().unwrap().read::<f32>().unwrap();
        assert_eq!(read(&again), read(&q));
        let short = QTensor::from_bytes(&rt, format, &[5, 256], &bytes[1..]).unwrap_err().to_string();
        assert!(short.contains("bytes") && short.contains("[5, 256]"), "{short}");
    }
    let apart = QTensor::from_bytes(&rt, QFormat::Q8 { group: 32 }, &[1, 32], &[0; 32]).unwrap_err();
    assert!(apart.to_string().contains("from_parts"), "{apart}");
}

#[test]
fn wrong_parts_are_refused_by_name() {
    let rt = cpu();
    let affine = QFormat::Affine { bits: 4, group: 64 };
    let u32s = |shape: &[usize]| rt.zeros(DType::U32, shape, BufferKind::Cold).unwrap();
    let f32s = |shape: &[usize]| rt.zeros(DType::F32, shape, BufferKind::Cold).unwrap();
    let (codes, scales) = (u32s(&[2, 16]), f32s(&[2, 2]));
    let text = |format, codes: &Tensor, factors: &[&Tensor]| {
        QTensor::from_parts(format, codes, factors).map(|_| ()).unwrap_err().to_string()
    };
    assert!(QTensor::from_parts(affine, &codes, &[&scales, &scales]).is_ok());
    assert!(text(affine, &codes, &[&scales]).contains("1 arrays"));
    assert!(text(affine, &f32s(&[2, 16]), &[&scales, &scales]).contains("`codes` is f32"));
    assert!(text(affine, &u32s(&[2, 12]), &[&scales, &scales]).contains("whole groups"));
    assert!(text(affine, &codes, &[&scales, &f32s(&[2, 4])]).contains("`biases`"));
    let halves = rt.zeros(DType::F16, &[2, 2], BufferKind::Cold).unwrap();
    assert!(text(affine, &codes, &[&scales, &halves]).contains("`biases` is f16"));
    assert!(text(affine, &codes, &[&codes, &codes]).contains("`scales` is u32"));
    assert!(text(affine, &u32s(&[16]), &[&scales, &scales]).contains("[N, ..]"));
    assert!(text(affine, &u32s(&[1, 1, 2, 16]), &[&scales, &scales]).contains("[N, ..]"));
    let wide = u32s(&[2, 32]).narrow(1, 0, 16).unwrap();
    assert!(text(affine, &wide, &[&scales, &scales]).contains("packed"));
    let odd = u32s(&[64]).view(&[2, 16], &[16, 1], 1).unwrap();
    assert!(text(affine, &odd, &[&scales, &scales]).contains("multiples of 16 bytes"));
    assert!(text(QFormat::Affine { bits: 3, group: 64 }, &codes, &[&scales, &scales]).contains("`bits` is 3"));
    assert!(text(QFormat::Q8 { group: 96 }, &codes, &[&scales]).contains("`group` is 96"));
    for bad in [f32::NAN, f32::INFINITY, 7e4] {
        let w = rt.from_slice(&[bad; 32], &[1, 32]).unwrap();
        let message = QTensor::quantize(&w, QFormat::Q4_0).unwrap_err().to_string();
        assert!(message.contains("`a weight`"), "{message}");
    }
    let ragged = rt.zeros(DType::F32, &[2, 48], BufferKind::Cold).unwrap();
    let message = QTensor::quantize(&ragged, QFormat::Q4K).unwrap_err().to_string();
    assert!(message.contains("K = 48") && message.contains("256"), "{message}");
    assert!(QTensor::quantize(&codes, QFormat::Q4_0).unwrap_err().to_string().contains("`weights` is u32"));
}

#[test]
fn rows_side_by_side_are_the_same_weights() {
    let rt = cpu();
    for format in QFormat::all() {
        let q = QTensor::quantize(&rt.from_slice(&line(3 * 48 * 512), &[3, 48, 512]).unwrap(), format).unwrap();
        let read = |q: &QTensor| q.dequantize().unwrap().read::<f32>().unwrap();
        let Ok(packed) = q.repack(QLayout::Rows16) else {
            assert_eq!(QTensor::best_layout(&rt, format, 48), QLayout::Rows, "{format}");
            assert!(q.repack(QLayout::Rows).is_ok());
            continue;
        };
        assert_eq!((packed.layout(), packed.storage_len()), (QLayout::Rows16, q.storage_len()));
        assert_eq!(read(&packed), read(&q), "{format}");
        let bytes = q.parts().next().unwrap().read::<u8>().unwrap();
        let again = QTensor::from_bytes_as(&rt, format, QLayout::Rows16, &[3, 48, 512], &bytes).unwrap();
        let stored = |q: &QTensor| q.parts().next().unwrap().read::<u8>().unwrap();
        assert_eq!(stored(&again), stored(&packed));
        let part = |q: &QTensor| q.narrow(1, 16, 32).unwrap().select(1).unwrap();
        assert_eq!(read(&part(&packed)), read(&part(&q)), "{format}");
        assert_eq!(read(&packed.repack(QLayout::Rows).unwrap()), read(&q), "{format}");
        assert!(packed.narrow(1, 8, 16).is_err() && packed.narrow(1, 16, 8).is_err());
        assert!(q.narrow(1, 0, 8).unwrap().repack(QLayout::Rows16).is_err());
    }
}

#[test]
fn pieces_of_a_reader_come_in_order_and_its_errors_come_out() {
    let rt = cpu();
    let (rows, k) = (2064, 512);
    for format in QFormat::BLOCKS {
        let row = k / format.group() * format.group_bytes();
        let mut rng = tessl_oracle::Rng::new(3);
        #[allow(clippy::cast_possible_truncation)]
        let bytes: Vec<u8> = (0..rows * row).map(|_| rng.bits() as u8).collect();
        let layout = QTensor::best_layout(&rt, format, rows);
        let mut pieces = Vec::new();
        let q = QTensor::from_reader(&rt, format, layout, &[rows, k], |at, into| {
            pieces.push((at, into.len()));
            into.copy_from_slice(&bytes[at..at + into.len()]);
            Ok::<(), Error>(())
        });
        let q = q.unwrap();
        assert!(pieces.len() > 1 && pieces[0].0 == 0, "{format}");
        assert!(pieces.windows(2).all(|p| p[0].0 + p[0].1 == p[1].0), "{format}: {pieces:?}");
        assert_eq!(pieces.iter().map(|p| p.1).sum::<usize>(), bytes.len());
        let by_rows = q.repack(QLayout::Rows).unwrap();
        assert_eq!(by_rows.parts().next().unwrap().read::<u8>().unwrap(), bytes, "{format}");
        let failing = QTensor::from_reader(&rt, format, layout, &[rows, k], |at, _| {
            if at == 0 { Ok(()) } else { Err(Error::shape("test", "x", at, "no more")) }
        });
        assert!(failing.unwrap_err().to_string().contains("no more"), "{format}");
    }
    let none =
        QTensor::from_reader(&rt, QFormat::Q4_0, QLayout::Rows, &[0, 32], |_, _| Err(Error::shape("test", "x", 0, "")));
    assert_eq!(none.unwrap().shape(), [0, 32]);
}
