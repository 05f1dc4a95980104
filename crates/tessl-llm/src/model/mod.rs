//! Models: weights in device memory, and the operations of a forward pass.

mod cache;
mod layer;
mod room;

use crate::config::{Architecture, ModelConfig, RopeScaling};
use crate::error::{LlmError, Result};
use crate::file::WeightFile;
use crate::random::{Random, Shape};
use crate::tokenizer::Tokenizer;
use crate::weights::{Loader, Matrix, Weights};
use layer::Layer;
use tessl::nn::{RmsNorm, RopeFrequencies};
use tessl::{DType, GpuRuntime, QFormat, Stream, Tensor};

pub(crate) use cache::{Cache, Place};
use room::Hidden;
pub(crate) use room::Room;

/// What each rotary frequency is divided by, in files of Llama 3.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The type of everything between weights, and of keys and values; `None`: what [`ModelConfig::activations`] says of the
    /// file. bf16 runs on matrix units and moves half the bytes, at three digits for each number.
    pub activations: Option<DType>,
}

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

impl Model {
    /// Loads a GGUF file onto a device.
    ///
    /// # Errors
    /// What opening reports; `File` for tensors that are missing or of another shape than the metadata say;
    /// `Unsupported` for parts that this crate does not compute; what tessl reports.
    pub fn load(rt: &GpuRuntime, file: &WeightFile) -> Result<Self> {
        Self::load_with(rt, file, LoadOptions::default(), &|_| ())
    }

    /// As [`load`](Self::load) with options; `progress` is told how many bytes have been read since the last time. Together they
    /// are [`WeightFile::bytes`].
    ///
    /// # Errors
    /// As [`load`](Self::load); `Unsupported` for activations of another type than f32, f16 and bf16.
    pub fn load_with(rt: &GpuRuntime, file: &WeightFile, options: LoadOptions, progress: &dyn Fn(u64)) -> Result<Self> {
        let mut config = ModelConfig::from_file(file)?;
        if let Some(dtype) = options.activations {
            if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
                return Err(LlmError::unsupported(format!("activations in {dtype}"), "f32, f16 and bf16 are"));
            }
            config.activations = dtype;
        }
        let vocabulary = Tokenizer::size_in(file)?;
        let loader = Loader::new(rt, file, progress);
        std::thread::scope(|scope| {
            // Large vocabularies take as long as the weights.
            let tokenizer = scope.spawn(|| Tokenizer::from_file(file));
            let tokenizer = || tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let model = Self::build(rt, config, vocabulary, tokenizer, &loader)?;
            loader.finish()?;
            Ok(model)
        })
    }

    /// A model of these sizes with random weights, for measurements; with `format` its matrices are quantised, else they are
    /// dense, of the type of the activations. Its tokenizer knows no text.
    ///
    /// # Errors
    /// `Unsupported` for sizes that do not fit together, what tessl reports.
    pub fn random(rt: &GpuRuntime, shape: &Shape, format: Option<QFormat>) -> Result<Self> {
        let config = shape.config()?;
        let weights = Random::new(rt, format, shape.tied);
        let tokenizer = || Ok(Tokenizer::of_no_text(shape.vocabulary));
        Self::build(rt, config, shape.vocabulary, tokenizer, &weights)
    }

    fn build(
        rt: &GpuRuntime,
        config: ModelConfig,
        vocabulary: usize,
        tokenizer: impl FnOnce() -> Result<Tokenizer>,
        weights: &dyn Weights,
    ) -> Result<Self> {
        let table = [vocabulary, config.width];
        let matrix = |name: &str| weights.matrix(name, table, config.activations, &[]);
        let embedding = matrix("token_embd.weight")?;
        let layers = (0..config.layers).map(|i| Layer::load(weights, &config, i)).collect::<Result<_>>()?;
        let norm = weights.vector("output_norm.weight", config.width)?;
        let head = weights.has("output.weight").then(|| matrix("output.weight")).transpose()?;
        let scaling = match config.rope_scaling {
            RopeScaling::None => tessl::nn::RopeScaling::None,
            RopeScaling::Linear(factor) => tessl::nn::RopeScaling::Linear(factor),
        };
        let frequencies = if weights.has(ROPE_FACTORS) {
            let factors = weights.vector(ROPE_FACTORS, config.rotary_dim / 2)?.read::<f32>()?;
            RopeFrequencies::with_factors(rt, config.rope_base, &factors)?
        } else {
            RopeFrequencies::new(rt, config.rotary_dim, config.rope_base, scaling)?
        };
        let plain = tessl::nn::RopeScaling::None;
        let frequencies_local = RopeFrequencies::new(rt, config.rotary_dim, config.rope_base_local, plain)?;
        let (rt, tokenizer) = (rt.clone(), tokenizer()?);
        Ok(Model { rt, config, tokenizer, embedding, layers, norm, head, frequencies, frequencies_local })
    }

    /// Bytes of weights and of keys and values that the token after `position` others reads: what bounds its speed.
    pub fn bytes_per_token(&self, position: usize) -> u64 {
        let c = &self.config;
        let seen = |layer| if c.has_window(layer) { c.window.map_or(position, |w| w.min(position)) } else { position };
        let keys: usize = (0..c.layers).map(seen).sum();
        let cached = 2 * keys * c.kv_heads * c.head_dim * c.activations.size();
        let weights: u64 = self.layers.iter().map(Layer::bytes).sum();
        weights + self.head.as_ref().unwrap_or(&self.embedding).bytes() + cached as u64
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
        let mut hidden = Hidden::new(room);
        for (i, (layer, cache)) in self.layers.iter().zip(caches).enumerate() {
            let window = if self.config.has_window(i) { self.config.window } else { None };
            let frequencies = if window.is_some() { &self.frequencies_local } else { &self.frequencies };
            layer.forward(s, &self.config, place, room, &mut hidden, cache, frequencies, window)?;
        }
        hidden.settle(s, &self.config, &room.normed, &room.x)
    }

    /// Logits [T, vocabulary] of hidden states [T, width]; `normed` is room for their norm.
    pub(crate) fn logits(&self, s: &mut Stream, x: &Tensor, normed: &Tensor, logits: &Tensor) -> tessl::Result<()> {
        RmsNorm::new(x, &self.norm, normed).eps(self.config.eps).run_on(s)?;
        self.head.as_ref().unwrap_or(&self.embedding).multiply(s, normed, logits, false)?;
        Ok(())
    }
}
