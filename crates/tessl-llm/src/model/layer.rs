//! One layer: attention and a gated feed-forward network, each around a residual connection.

use super::cache::{Cache, Place};
use super::room::Room;
use crate::config::{Architecture, ModelConfig};
use crate::error::Result;
use crate::weights::{Matrix, Weights};
use tessl::nn::{Glu, Positions, QkNorm, QuantizedGlu, QuantizedQkv, RmsNorm, Rope, RopeFrequencies, RopeStyle};
use tessl::{Activation, Gemm, Scalar, Stream, Tensor};

#[derive(Debug)]
pub(super) struct Layer {
    attention_norm: Tensor,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    /// All three side by side, where they are dense: one product.
    qkv: Option<Tensor>,
    /// Norms of each head of queries and keys.
    qk_norm: Option<[Tensor; 2]>,
    out: Matrix,
    /// Of what attention adds, where the family has it.
    attention_post_norm: Option<Tensor>,
    feed_forward_norm: Tensor,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    /// Of what the feed-forward network adds.
    feed_forward_post_norm: Option<Tensor>,
}

impl Layer {
    pub(super) fn load(loader: &dyn Weights, c: &ModelConfig, index: usize) -> Result<Self> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let matrix = |part: &str, rows, columns| loader.matrix(&name(part), [rows, columns], c.activations);
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let gemma = c.architecture == Architecture::Gemma3;
        let normed_heads = gemma || c.architecture == Architecture::Qwen3;
        let head = |part: &str| loader.vector(&name(part), c.head_dim);
        let post = |part: &str| gemma.then(|| loader.vector(&name(part), c.width)).transpose();
        let projections =
            [matrix("attn_q", q, c.width)?, matrix("attn_k", kv, c.width)?, matrix("attn_v", kv, c.width)?];
        let ([q_matrix, k_matrix, v_matrix], qkv) = Matrix::side_by_side(projections)?;
        Ok(Layer {
            attention_norm: loader.vector(&name("attn_norm"), c.width)?,
            q: q_matrix,
            k: k_matrix,
            v: v_matrix,
            qkv,
            qk_norm: if normed_heads { Some([head("attn_q_norm")?, head("attn_k_norm")?]) } else { None },
            out: matrix("attn_output", c.width, q)?,
            attention_post_norm: post("post_attention_norm")?,
            feed_forward_norm: loader.vector(&name("ffn_norm"), c.width)?,
            gate: matrix("ffn_gate", c.feed_forward, c.width)?,
            up: matrix("ffn_up", c.feed_forward, c.width)?,
            down: matrix("ffn_down", c.width, c.feed_forward)?,
            feed_forward_post_norm: post("post_ffw_norm")?,
        })
    }

    /// Bytes of weights that a token reads.
    pub(super) fn bytes(&self) -> u64 {
        [&self.q, &self.k, &self.v, &self.out, &self.gate, &self.up, &self.down].map(Matrix::bytes).iter().sum()
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward(
        &self,
        s: &mut Stream,
        c: &ModelConfig,
        place: Place<'_>,
        room: &Room,
        cache: &Cache,
        frequencies: &RopeFrequencies,
        window: Option<usize>,
    ) -> tessl::Result<()> {
        let tokens = room.x.shape()[0];
        RmsNorm::new(&room.x, &self.attention_norm, &room.normed).eps(c.eps).run_on(s)?;
        let q = room.qkv.narrow(1, 0, c.heads)?;
        let k = room.qkv.narrow(1, c.heads, c.kv_heads)?;
        let v = room.qkv.narrow(1, c.heads + c.kv_heads, c.kv_heads)?;
        self.project(s, c, room)?;
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            QkNorm::new(&q, &k, q_norm, k_norm).eps(c.eps).run_on(s)?;
        }
        // GGUF files of Llama have the rows of q and k in the order that pairs neighbours.
        let style = if c.architecture == Architecture::Llama { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
        let qk = room.qkv.narrow(1, 0, c.heads + c.kv_heads)?;
        let from = Positions::From(Scalar::Device(place.start));
        Rope::new(&qk, frequencies, from, &qk).style(style).run_on(s)?;
        let [q, k, v, attended] = [&q, &k, &v, &room.attended].map(one_sequence);
        let (q, k, v, attended) = (q?, k?, v?, attended?);
        cache.attend(s, [&q, &k, &v, &attended], place, window, room.ring.as_ref())?;
        let attended = room.attended.reshape(&[tokens, c.heads * c.head_dim])?;
        self.add(s, c, &self.out, &attended, self.attention_post_norm.as_ref(), room)?;

        RmsNorm::new(&room.x, &self.feed_forward_norm, &room.normed).eps(c.eps).run_on(s)?;
        self.gated(s, c, room)?;
        self.add(s, c, &self.down, &room.gate, self.feed_forward_post_norm.as_ref(), room)
    }

    /// Queries, keys and values, in one launch where their weights have one form.
    fn project(&self, s: &mut Stream, c: &ModelConfig, room: &Room) -> tessl::Result<()> {
        let tokens = room.x.shape()[0];
        let all = (c.heads + 2 * c.kv_heads) * c.head_dim;
        let flat = room.qkv.reshape(&[tokens, all])?;
        if let Some(w) = &self.qkv {
            return Gemm::new(&room.normed, &w.t()?, &flat).run_on(s);
        }
        let (nq, nk) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let [q, k, v] = [flat.narrow(1, 0, nq)?, flat.narrow(1, nq, nk)?, flat.narrow(1, nq + nk, nk)?];
        match [&self.q, &self.k, &self.v] {
            [Matrix::Quantized(wq), Matrix::Quantized(wk), Matrix::Quantized(wv)]
                if wq.format() == wk.format() && wk.format() == wv.format() =>
            {
                QuantizedQkv::new(&room.normed, [wq, wk, wv], [&q, &k, &v]).run_on(s)?;
            }
            all => {
                for (w, y) in all.into_iter().zip([&q, &k, &v]) {
                    w.multiply(s, &room.normed, y, false)?;
                }
            }
        }
        Ok(())
    }

    /// `gate = act(normed Wg^T) * (normed Wu^T)`.
    fn gated(&self, s: &mut Stream, c: &ModelConfig, room: &Room) -> tessl::Result<()> {
        let activation = match c.architecture {
            Architecture::Gemma3 => Activation::GeluTanh,
            _ => Activation::Silu,
        };
        match (&self.gate, &self.up) {
            (Matrix::Quantized(gate), Matrix::Quantized(up)) if gate.format() == up.format() => {
                QuantizedGlu::new(&room.normed, gate, up, &room.gate, activation).run_on(s)?;
            }
            (Matrix::Dense(gate), Matrix::Dense(up)) => {
                let (gate, up) = (gate.t()?, up.t()?);
                Gemm::new(&room.normed, &gate, &room.gate).up(&up).activation(activation).run_on(s)?;
            }
            (gate, up) => {
                gate.multiply(s, &room.normed, &room.gate, false)?;
                up.multiply(s, &room.normed, &room.up, false)?;
                Glu::new(&room.gate, &room.up, &room.gate, activation).run_on(s)?;
            }
        }
        Ok(())
    }

    /// `x += y W^T`, or `x += norm(y W^T)`.
    fn add(
        &self,
        s: &mut Stream,
        c: &ModelConfig,
        w: &Matrix,
        y: &Tensor,
        norm: Option<&Tensor>,
        room: &Room,
    ) -> tessl::Result<()> {
        let Some(norm) = norm else { return w.multiply(s, y, &room.x, true) };
        w.multiply(s, y, &room.normed, false)?;
        RmsNorm::new(&room.normed, norm, &room.x).eps(c.eps).then_add(&room.x).run_on(s)?;
        Ok(())
    }
}

/// [T, H, D] as [1, T, H, D].
fn one_sequence(t: &Tensor) -> tessl::Result<Tensor> {
    let (shape, strides) = (t.shape(), t.strides());
    t.view(&[&[1], shape].concat(), &[&[strides[0]], strides].concat(), 0)
}
