//! Thresholds of the table, and the limits of small devices.

use super::attention::attention;
use super::tables::attention_rows;
use crate::device::{DeviceKind, DeviceProfile, PROFILES};
use crate::dtype::DType;
use crate::nn::AttentionDesc;

fn desc(queries: u32, keys: u32, dim: u32) -> AttentionDesc {
    AttentionDesc {
        sequences: 2,
        queries,
        keys,
        heads: 8,
        kv_heads: 2,
        dim,
        dtype: DType::Bf16,
        coded: false,
        causal: true,
        window: false,
        packed: false,
        page: 0,
        mask: None,
        align: 7,
    }
}

fn gpus() -> impl Iterator<Item = &'static DeviceProfile> {
    PROFILES.iter().copied().flatten().filter(|p| p.kind != DeviceKind::Cpu)
}

#[test]
fn rows_are_taken_at_their_thresholds() {
    for profile in gpus() {
        for row in attention_rows().iter().filter(|r| r.min_queries > 0) {
            let stem =
                |queries| attention(&desc(queries, 512, 128), profile).unwrap().kernel.name.starts_with(row.stem);
            let t = row.min_queries;
            assert_eq!([t - 1, t, t + 1].map(stem), [false, true, true], "{}", profile.name);
        }
    }
}

#[test]
fn keys_are_split_for_a_few_rows_and_never_below_a_part() {
    for profile in gpus() {
        let split = |keys| attention(&desc(1, keys, 128), profile).unwrap().split;
        assert_eq!([0, 128, 255, 256].map(split)[..3], [1, 1, 1]);
        let d = desc(1, 1 << 20, 128);
        let plan = attention(&d, profile).unwrap();
        assert!(plan.split > 1 && plan.split <= 64 && plan.scratch_bytes == d.scratch_bytes(plan.split), "{plan:?}");
        assert_eq!(attention(&AttentionDesc { packed: true, ..d }, profile).unwrap().split, 1);
    }
}

#[test]
fn tiles_that_do_not_fit_are_refused_with_numbers() {
    for profile in gpus() {
        for dim in [1, 64, 128, 129, 256, 512] {
            attention(&desc(64, 64, dim), profile).unwrap();
        }
        let small = DeviceProfile { shared_bytes: 4096, ..profile.clone() };
        let error = attention(&desc(64, 64, 128), &small).unwrap_err().to_string();
        assert!(error.contains("14720 bytes") && error.contains("4096"), "{error}");
    }
}
