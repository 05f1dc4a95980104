//! The dimensions of a model, from the metadata of its file.

use crate::error::{LlmError, Result};
use crate::file::{Element, Value, WeightFile};
use tessl::DType;

/// A family of models: which layers there are and how they are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM 2, Mistral: pre-norms, SwiGLU.
    Llama,
    /// Gemma 3: norms before and after, norms of queries and keys, GeGLU, five layers of six with a sliding window.
    Gemma3,
    /// Qwen 3: as Llama, with norms of queries and keys.
    Qwen3,
}

/// How positions are scaled beyond the length that the model was trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Positions as they are.
    None,
    /// Positions divided by this factor.
    Linear(f64),
}

/// The dimensions of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Its family.
    pub architecture: Architecture,
    /// Number of layers.
    pub layers: usize,
    /// Elements of the hidden state.
    pub width: usize,
    /// Elements between the two halves of the feed-forward network.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a head that turn with the position.
    pub rotary_dim: usize,
    /// Longest sequence.
    pub context: usize,
    /// Added to the mean square in norms.
    pub eps: f32,
    /// Base of the rotary frequencies of layers that see everything.
    pub rope_base: f64,
    /// Base of the rotary frequencies of layers with a window.
    pub rope_base_local: f64,
    /// Scaling of the positions of layers that see everything.
    pub rope_scaling: RopeScaling,
    /// Positions that layers with a window see, the own one included.
    pub window: Option<usize>,
    /// The type of everything between weights. f32, but bf16 where the weights are.
    pub activations: DType,
    /// Of so many layers, the last one sees everything, whatever [`window`](Self::window) says.
    pub window_pattern: usize,
}

/// No model has more; what a damaged file claims beyond is refused before anything is allocated.
const MOST: u64 = 1 << 24;
/// Base of the rotary frequencies where a file names none.
const ROPE_BASE: f64 = 10_000.0;
/// Every sixth layer of Gemma 3 sees everything.
const GEMMA3_PATTERN: u64 = 6;

impl ModelConfig {
    /// Reads the metadata of a GGUF file.
    ///
    /// # Errors
    /// `Unsupported` for another architecture, `File` for dimensions that are missing or contradict each other.
    pub fn from_file(file: &WeightFile) -> Result<Self> {
        let name = file.value("general.architecture").and_then(Value::as_str);
        let name = name.ok_or_else(|| LlmError::file(file.path(), "names no architecture (general.architecture)"))?;
        let architecture = match name {
            "llama" => Architecture::Llama,
            "gemma3" => Architecture::Gemma3,
            "qwen3" => Architecture::Qwen3,
            other => {
                let what = format!("{}: architecture `{other}`", file.path().display());
                return Err(LlmError::unsupported(what, "llama, gemma3 and qwen3 are"));
            }
        };
        let keys = Keys { file, name };
        let config = keys.config(architecture)?;
        config
            .check()
            .map_err(|what| LlmError::file(file.path(), format!("its dimensions do not fit together: {what}")))?;
        Ok(config)
    }

    /// Whether this layer sees only the last [`window`](Self::window) positions.
    pub fn has_window(&self, layer: usize) -> bool {
        self.window.is_some() && !(layer + 1).is_multiple_of(self.window_pattern)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = [
            ("layers", self.layers),
            ("width", self.width),
            ("feed-forward width", self.feed_forward),
            ("heads", self.heads),
            ("KV heads", self.kv_heads),
            ("head size", self.head_dim),
            ("context", self.context),
        ];
        if let Some((what, _)) = positive.iter().find(|(_, n)| *n == 0) {
            return Err(format!("{what}: 0"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} heads over {} KV heads", self.heads, self.kv_heads));
        }
        if self.rotary_dim > self.head_dim || !self.rotary_dim.is_multiple_of(2) {
            return Err(format!("{} rotary elements of {}", self.rotary_dim, self.head_dim));
        }
        if !(self.eps > 0.0 && self.eps < 1.0) {
            return Err(format!("epsilon {}", self.eps));
        }
        if [self.rope_base, self.rope_base_local].iter().any(|base| !(base.is_finite() && *base > 1.0)) {
            return Err(format!("rotary bases {} and {}", self.rope_base, self.rope_base_local));
        }
        Ok(())
    }
}

/// Metadata under the name of the architecture.
struct Keys<'f> {
    file: &'f WeightFile,
    name: &'f str,
}

impl Keys<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.file.value(&format!("{}.{key}", self.name))
    }

    fn count_or(&self, key: &str, default: Option<u64>) -> Result<usize> {
        let fail = |what: String| LlmError::file(self.file.path(), format!("{}.{key} {what}", self.name));
        let count = match self.value(key) {
            None => default.ok_or_else(|| fail("is missing".to_owned()))?,
            Some(value) => value.as_u64().ok_or_else(|| fail(format!("is {value:?}, not one count for all layers")))?,
        };
        usize::try_from(count).ok().filter(|_| count <= MOST).ok_or_else(|| fail(format!("is {count}")))
    }

    fn count(&self, key: &str) -> Result<usize> {
        self.count_or(key, None)
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.value(key) else { return Ok(default) };
        let fail = || LlmError::file(self.file.path(), format!("{}.{key} is {value:?}", self.name));
        value.as_f64().filter(|x| x.is_finite()).ok_or_else(fail)
    }

    fn scaling(&self) -> Result<RopeScaling> {
        match self.value("rope.scaling.type").and_then(Value::as_str) {
            None | Some("none") => Ok(RopeScaling::None),
            Some("linear") => {
                let factor = self.number("rope.scaling.factor", 1.0)?;
                let wrong = || LlmError::file(self.file.path(), format!("its rope scaling factor is {factor}"));
                if factor > 0.0 { Ok(RopeScaling::Linear(factor)) } else { Err(wrong()) }
            }
            Some(other) => {
                let what = format!("{}: rope scaling `{other}`", self.file.path().display());
                Err(LlmError::unsupported(what, "none and linear are"))
            }
        }
    }

    fn config(&self, architecture: Architecture) -> Result<ModelConfig> {
        let (width, heads) = (self.count("embedding_length")?, self.count("attention.head_count")?);
        let per_head = width.checked_div(heads).unwrap_or(0) as u64;
        let head_dim = self.count_or("attention.key_length", Some(per_head))?;
        let values = self.count_or("attention.value_length", Some(head_dim as u64))?;
        if values != head_dim {
            let what = format!("{}: keys of {head_dim} and values of {values} elements", self.file.path().display());
            return Err(LlmError::unsupported(what, "heads of one size are"));
        }
        let rope_base = self.number("rope.freq_base", ROPE_BASE)?;
        let gemma = architecture == Architecture::Gemma3;
        let window = self.count_or("attention.sliding_window", Some(0))?;
        #[allow(clippy::cast_possible_truncation)]
        let eps = self.number("attention.layer_norm_rms_epsilon", 1e-5)? as f32;
        Ok(ModelConfig {
            architecture,
            layers: self.count("block_count")?,
            width,
            feed_forward: self.count("feed_forward_length")?,
            heads,
            kv_heads: self.count_or("attention.head_count_kv", Some(heads as u64))?,
            head_dim,
            rotary_dim: self.count_or("rope.dimension_count", Some(head_dim as u64))?,
            context: self.count("context_length")?,
            eps,
            rope_base,
            rope_base_local: self.number("rope.local.freq_base", if gemma { ROPE_BASE } else { rope_base })?,
            rope_scaling: self.scaling()?,
            window: Some(window).filter(|w| *w > 0),
            activations: match self.file.tensor("token_embd.weight").map(|t| t.element) {
                Some(Element::Bf16) => DType::Bf16,
                _ => DType::F32,
            },
            window_pattern: if gemma {
                self.count_or("attention.sliding_window_pattern", Some(GEMMA3_PATTERN))?.max(1)
            } else {
                // A window that all layers share: no layer number is a multiple of this.
                usize::MAX
            },
        })
    }
}
