//! Models: weights in device memory, and the operations of a forward pass.

mod cache;
mod layer;
mod room;

use crate::config::{Architecture, ModelConfig, RopeScaling};
use crate::error::Result;
use crate::file::WeightFile;
use crate::tokenizer::Tokenizer;
use crate::weights::{Loader, Matrix};
use layer::Layer;
use tessl::nn::{RmsNorm, RopeFrequencies};
use tessl::{DType, GpuRuntime, Stream, Tensor};

pub(crate) use cache::{Cache, Place};
pub(crate) use room::Room;

/// A model in device memory.
#[derive(Debug)]
pub struct Model {
    rt: GpuRuntime,
    config: ModelConfig,
    tokenizer: Tokenizer,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Tensor,
    /// The output projection, where it is not the embedding.
    head: Option<Matrix>,
    frequencies: RopeFrequencies,
    frequencies_local: RopeFrequencies,
}

/// The type of everything between weights: what they are multiplied with is never quantised.
pub(crate) const ACTIVATIONS: DType = DType::F32;

impl Model {
    /// Loads a GGUF file onto a device.
    ///
    /// # Errors
    /// What opening reports; `File` for tensors that are missing or of another shape than the metadata say;
    /// `Unsupported` for parts that this crate does not compute; what tessl reports.
    pub fn load(rt: &GpuRuntime, file: &WeightFile) -> Result<Self> {
        Self::load_with(rt, file, &|_| ())
    }

    /// As [`load`](Self::load); `progress` is told the bytes of each tensor when it has been read. Together they are
    /// [`WeightFile::bytes`].
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(rt: &GpuRuntime, file: &WeightFile, progress: &dyn Fn(u64)) -> Result<Self> {
        let config = ModelConfig::from_file(file)?;
        let tokenizer = Tokenizer::from_file(file)?;
        let loader = Loader::new(rt, file, progress);
        let table = [tokenizer.vocabulary(), config.width];
        let embedding = loader.matrix("token_embd.weight", table, ACTIVATIONS)?;
        let layers = (0..config.layers).map(|i| Layer::load(&loader, &config, i)).collect::<Result<_>>()?;
        let norm = loader.vector("output_norm.weight", config.width)?;
        let head =
            loader.has("output.weight").then(|| loader.matrix("output.weight", table, ACTIVATIONS)).transpose()?;
        loader.finish()?;
        let scaling = match config.rope_scaling {
            RopeScaling::None => tessl::nn::RopeScaling::None,
            RopeScaling::Linear(factor) => tessl::nn::RopeScaling::Linear(factor),
        };
        let frequencies = RopeFrequencies::new(rt, config.rotary_dim, config.rope_base, scaling)?;
        let plain = tessl::nn::RopeScaling::None;
        let frequencies_local = RopeFrequencies::new(rt, config.rotary_dim, config.rope_base_local, plain)?;
        let rt = rt.clone();
        Ok(Model { rt, config, tokenizer, embedding, layers, norm, head, frequencies, frequencies_local })
    }

    /// Its dimensions.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The device it is on.
    pub fn runtime(&self) -> &GpuRuntime {
        &self.rt
    }

    /// Hidden states of the tokens in `ids` [T], left in `room.x`; their keys and values go into the caches.
    pub(crate) fn forward(
        &self,
        s: &mut Stream,
        ids: &Tensor,
        place: Place<'_>,
        room: &Room,
        caches: &[Cache],
    ) -> tessl::Result<()> {
        #[allow(clippy::cast_precision_loss)]
        let scale = (self.config.architecture == Architecture::Gemma3).then(|| (self.config.width as f32).sqrt());
        room.look(s, place)?;
        self.embedding.rows(s, ids, &room.x, scale)?;
        for (i, (layer, cache)) in self.layers.iter().zip(caches).enumerate() {
            let window = if self.config.has_window(i) { self.config.window } else { None };
            let frequencies = if window.is_some() { &self.frequencies_local } else { &self.frequencies };
            layer.forward(s, &self.config, place, room, cache, frequencies, window)?;
        }
        Ok(())
    }

    /// Logits [T, vocabulary] of hidden states [T, width]; `normed` is room for their norm.
    pub(crate) fn logits(&self, s: &mut Stream, x: &Tensor, normed: &Tensor, logits: &Tensor) -> tessl::Result<()> {
        RmsNorm::new(x, &self.norm, normed).eps(self.config.eps).run_on(s)?;
        self.head.as_ref().unwrap_or(&self.embedding).multiply(s, normed, logits, false)?;
        Ok(())
    }
}
