//! Sessions of tiny models.
#![allow(dead_code, unreachable_pub)]

use crate::tiny;
use tessl::{Device, GpuRuntime, RuntimeOptions};
use tessl_llm::{Model, Sampling, Session, WeightFile};

pub fn model(tiny: tiny::Tiny, threads: usize) -> Model {
    let rt = GpuRuntime::with_options(&RuntimeOptions::new().device(Device::cpu()).threads(threads)).unwrap();
    let file = tiny.file();
    Model::load(&rt, &WeightFile::open(&file.0).unwrap()).unwrap()
}

pub fn continued(session: &mut Session<'_>, sampling: &Sampling, count: usize) -> Vec<u32> {
    (0..count).map(|_| session.generate(sampling).unwrap()).collect()
}

pub const PROMPT: [u32; 5] = [3, 14, 15, 9, 2];
pub const WARM: Sampling =
    Sampling { temperature: 1.5, top_k: 40, top_p: 0.98, min_p: 0.001, seed: 7, ..Sampling::GREEDY };
